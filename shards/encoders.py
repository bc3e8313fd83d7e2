"""Texts to unit vectors: static (a mean of token vectors) and dense (a transformer), deterministic per text.

A text's vector has the same bits whatever texts are encoded beside it, so that an index rebuilt equals one that grew. Models
are loaded at first use, once per process; making an encoder or asking its fingerprint loads nothing.
"""

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from shards import model_files, transformer
from shards.errors import BadSpec, ModelMissing
from shards.layers.contract import Resources
from shards.types import Array

logger = logging.getLogger(__name__)

Done = Callable[[int], None]  # told how many texts are encoded; may raise Cancelled

_loading = threading.Lock()  # two threads that need the same model load it once


class Encoder(Protocol):
    """One model with its prompts and dimension.

    Both encode methods give (n, dim) float32 with rows of unit length, or zero where the model sees nothing in the text (no
    known token). They may be called from several threads. Loading raises ModelMissing, or BadSpec for an impossible `dim`.
    """

    @property
    def dim(self) -> int:
        """Components of each vector."""

    def fingerprint(self) -> str:
        """A hash of all that vectors depend on: model files, prompts, dimension, number format."""

    def encode_documents(self, texts: Sequence[str], done: Done | None = None) -> Array: ...

    def encode_queries(self, texts: Sequence[str]) -> Array: ...

    def reads(self, text: str) -> str:
        """The beginning of a query that the model really reads."""


def cut_dim(model: str, full: int, wanted: int | None) -> int:
    """The dimension to keep of a model's `full` ones (Matryoshka: the first). Raises BadSpec where there are not so many."""
    if wanted is not None and not 1 <= wanted <= full:
        raise BadSpec(f"Model {model!r} gives {full} dimensions; dim is {wanted}. Choose 1 to {full}, or leave it out.")
    return full if wanted is None else wanted


def unit_rows(sums: Array) -> Array:
    """Rows scaled to unit length, (n, dim) float32; zero rows stay zero."""
    from shards.vector_kernels import to_unit_length

    sums = np.ascontiguousarray(sums, np.float64)
    units = np.empty(sums.shape, np.float32)
    to_unit_length(sums, units)
    return units


def digest(*parts: Any) -> str:
    """A fingerprint of what JSON can say, 32 hex digits."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


# --- static ------------------------------------------------------------------------------------------------------------------


class StaticEncoder:
    """A Model2Vec model: the mean of a text's token vectors, in float64 and reading order; no torch.

    The whole of a document's text counts (model2vec itself stops at 512 tokens); a query is read up to 512 median tokens, as
    there. Measured on one core, standard library source: 12 MB/s when all words are new, 15 when they were met before; model2vec
    itself 2.2, its tokeniser alone 3.3.
    """

    def __init__(
        self, model: str, resources: Resources, *, document_prompt: str = "", query_prompt: str = "", dim: int | None = None
    ):  # fmt: skip
        self.model, self.resources = model, resources
        self.document_prompt, self.query_prompt, self._wanted_dim = document_prompt, query_prompt, dim
        self._loaded: _TokenVectors | None = None

    @property
    def dim(self) -> int:
        return cut_dim(self.model, self._load().table.shape[1], self._wanted_dim)

    def fingerprint(self) -> str:
        files = model_files.fingerprint(model_files.locate(self.model, self.resources), self.resources)
        return digest("static", files, self.document_prompt, self.query_prompt, self._wanted_dim)

    def encode_documents(self, texts: Sequence[str], done: Done | None = None) -> Array:
        return self._encode(texts, self.document_prompt, done)

    def encode_queries(self, texts: Sequence[str]) -> Array:
        return self._encode(texts, self.query_prompt, None)

    def reads(self, text: str) -> str:
        return text[: self._load().query_chars]

    def _load(self) -> "_TokenVectors":
        if self._loaded is None:  # looking for its files again at every query would cost more than the query
            folder = model_files.locate(self.model, self.resources)
            with _loading:
                self._loaded = _load_static(folder)
        return self._loaded

    def _encode(self, texts: Sequence[str], prompt: str, done: Done | None) -> Array:
        model, dim = self._load(), self.dim
        out = np.empty((len(texts), dim), np.float32)
        for start in range(0, len(texts), _STATIC_BATCH):
            batch = [prompt + text for text in texts[start : start + _STATIC_BATCH]]
            out[start : start + len(batch)] = unit_rows(model.sums(batch)[:, :dim])
            if done:
                done(start + len(batch))
        return out


_STATIC_BATCH = 1024  # texts: a megabyte of passages, 2 MB of sums


@lru_cache(maxsize=4)
def _load_static(folder: Path) -> "_TokenVectors":
    from model2vec import StaticModel

    try:
        return _TokenVectors(StaticModel.from_pretrained(folder, force_download=False))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelMissing(f"Folder {folder} holds no Model2Vec model that can be read: {error}") from error


class _TokenVectors:
    """A static model opened up for speed: tokenises each distinct word once, adds token vectors in a compiled loop.

    table: (r, dim) float32; rows, weights: of each token; query_chars: how much of a query counts
    """

    def __init__(self, model: Any):
        self.table = np.ascontiguousarray(model.embedding, np.float32)
        n_tokens = max(model.tokenizer.get_vocab().values()) + 1
        mapping, weights = model.token_mapping, model.weights
        self.rows = np.arange(n_tokens) if mapping is None else np.ascontiguousarray(mapping, np.int64)
        self.weights = np.ones(n_tokens, np.float32) if weights is None else np.ascontiguousarray(weights, np.float32)
        whole = len(self.rows) >= n_tokens <= len(self.weights) and 0 <= self.rows.min() <= self.rows.max() < len(self.table)
        if not whole:  # the compiled loop checks no bounds
            raise ValueError("some of its tokens have no vector")
        self.query_chars = 512 * model.median_token_length
        self._unknown = model.unk_token_id
        self._tokenizer = model.tokenizer
        self._tokenizer.no_truncation()
        self._lock = threading.Lock()
        self._split = _Words(self._ids).split if _splits_at_words(self._tokenizer) else self._split_by_tokens

    def sums(self, texts: Sequence[str]) -> Array:
        """The sums of the texts' token vectors, (n, dim) float64."""
        from shards.vector_kernels import sum_tokens

        with self._lock:
            words, text_offsets, tokens, word_offsets = self._split(texts)
        sums = np.empty((len(texts), self.table.shape[1]))
        sum_tokens(self.table, self.rows, self.weights, tokens, word_offsets, words, text_offsets, sums)
        return sums

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [[i for i in encoding.ids if i != self._unknown] for encoding in encodings]

    def _split_by_tokens(self, texts: Sequence[str]) -> tuple[Array, Array, Array, Array]:
        tokens, offsets = _flat(self._ids(texts))
        return np.arange(len(tokens)), offsets, tokens, np.arange(len(tokens) + 1)


def _splits_at_words(tokenizer: Any) -> bool:
    """Whether a text's tokens are those of its words in a row, as in BERT: then equal words need not be tokenised again."""
    settings = json.loads(tokenizer.to_str())
    kinds = [(settings[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]


# BERT splits at white space and around punctuation. Only the ASCII part of either is split at here; the tokeniser splits the rest
# of a chunk itself. Other control characters stay inside chunks because BERT drops them, joining their neighbours. A literal
# "[PAD]" in a text is three words like any other, where model2vec would take it for a control token.
_CHUNK = re.compile(r"[!-/:-@\[-`{-~]|[^ \t\n\r!-/:-@\[-`{-~]+")
_MAX_WORDS = 1_000_000  # then the vocabulary is begun anew: about 150 MB
_MAX_WORD_CHARS = 32_000_000  # likewise; base64 makes words of a thousand characters


class _Words(dict[str, int]):
    """The number of each word met so far, and its tokens. tokenise: the tokens of each of many words."""

    def __init__(self, tokenise: Callable[[Sequence[str]], list[list[int]]]):
        super().__init__()
        self._tokenise = tokenise
        self._begin()

    def _begin(self) -> None:
        self.clear()
        self._new: list[str] = []
        self._n_chars = 0
        self._tokens = np.zeros(1 << 16, np.int64)  # grown by doubling; _offsets[i] : _offsets[i + 1] are the tokens of word i
        self._offsets = np.zeros(1 << 16, np.int64)

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self._new.append(word)
        return number

    def split(self, texts: Sequence[str]) -> tuple[Array, Array, Array, Array]:
        """The arguments of `sum_tokens` that tell each text's tokens: words, text_offsets, tokens, word_offsets."""
        if len(self) > _MAX_WORDS or self._n_chars > _MAX_WORD_CHARS:
            self._begin()
        words, text_offsets = _flat([list(map(self.__getitem__, _CHUNK.findall(text))) for text in texts])
        if self._new:
            n_old = len(self) - len(self._new)
            tokens, offsets = _flat(self._tokenise(self._new))
            n_tokens = self._offsets[n_old]
            self._tokens = _with(self._tokens, n_tokens, tokens)
            self._offsets = _with(self._offsets, n_old, offsets + n_tokens)
            self._n_chars += sum(map(len, self._new))
            self._new = []
        return words, text_offsets, self._tokens, self._offsets


def _flat(lists: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Lists of numbers as one array and the offsets of each list in it, both int64."""
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(numbers) for numbers in lists], out=offsets[1:])
    return np.fromiter(chain.from_iterable(lists), np.int64, int(offsets[-1])), offsets


def _with(array: Array, place: int, values: Array) -> Array:
    """The array with values written from `place` on, moved to one of twice the size when full."""
    end = int(place) + len(values)
    if end > len(array):
        larger = np.zeros(max(end, 2 * len(array)), array.dtype)
        larger[:place] = array[:place]
        array = larger
    array[place:end] = values
    return array


# --- dense -------------------------------------------------------------------------------------------------------------------

_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # names of prompts, in the order in which sentence-transformers looks


class DenseEncoder:
    """Any sentence-transformers text model (`shards.transformer`).

    document_prompt, query_prompt: put before each text; None: as the model's own settings say, "" for none.
    dtype: "bf16" is 1.8 times as fast on CPUs that have it, at a cosine of .9999 to fp32.
    metric: "dot" leaves vectors as long as the model makes them; None: "cosine", for a model whose settings ask for nothing else.
    """

    def __init__(
        self,
        model: str,
        resources: Resources,
        *,
        document_prompt: str | None = None,
        query_prompt: str | None = None,
        dim: int | None = None,
        dtype: Literal["fp32", "bf16"] = "fp32",
        device: Literal["cpu", "cuda"] | None = None,
        metric: Literal["cosine", "dot"] | None = None,
    ):
        self.model, self.resources = model, resources
        self._document_prompt, self._query_prompt, self._wanted_dim = document_prompt, query_prompt, dim
        self._dtype, self._device, self._metric = dtype, device, metric
        self._loaded: transformer.Transformer | None = None

    @property
    def dim(self) -> int:
        return cut_dim(self.model, self._load().dim, self._wanted_dim)

    def fingerprint(self) -> str:
        files = model_files.fingerprint(model_files.locate(self.model, self.resources), self.resources)
        return digest("dense", files, self._document_prompt, self._query_prompt, self._wanted_dim, self._dtype)

    def encode_documents(self, texts: Sequence[str], done: Done | None = None) -> Array:
        batches = self._load().batches(texts, self._prompt_of_documents(), "document")
        return self._gathered(len(texts), batches, done)

    def encode_passages(
        self, texts: Sequence[str], spans: Sequence[Array], window_tokens: int | None = None, done: Done | None = None
    ) -> Array:
        """Vectors of passages that were read in their documents (`Transformer.pooled`), text by text; zero for one without a token.

        spans: of each text, (p, 2) int64 characters. done: told how many passages are encoded. Raises BadSpec.
        """
        pooled = self._load().pooled(texts, spans, self._prompt_of_documents(), window_tokens)
        return self._gathered(sum(map(len, spans)), pooled, done)

    def encode_queries(self, texts: Sequence[str]) -> Array:
        """One forward pass each, so that an answer waits for no other's rows."""
        return self._gathered(len(texts), self._load().batches(texts, self._prompt_of_queries(), "query", n_rows=1), None)

    def reads(self, text: str) -> str:
        return self._load().reads(text, self._prompt_of_queries())

    def _prompt_of_documents(self) -> str:
        return self._load().prompt(_DOCUMENT_PROMPTS) if self._document_prompt is None else self._document_prompt

    def _prompt_of_queries(self) -> str:
        return self._load().prompt(("query",)) if self._query_prompt is None else self._query_prompt

    def _load(self) -> transformer.Transformer:
        if self._loaded is None:
            folder = model_files.locate(self.model, self.resources)
            with _loading:
                loaded = transformer.load(folder, self._dtype, self._device)
            if self._metric is None and loaded.metric != "cosine":
                choices = "metric=dot as it does, or metric=cosine" if loaded.metric == "dot" else "metric=cosine"
                raise BadSpec(f"Model {self.model!r} compares its vectors by {loaded.metric}, not by angle. Say {choices} all the same.")
            self._loaded = loaded
        return self._loaded

    def _gathered(self, n: int, batches: Iterable[tuple[Array, Array]], done: Done | None) -> Array:
        """All rows of batches of (places, vectors), as they are compared: (n, dim) float32, zero where there is none."""
        out = np.zeros((n, self.dim), np.float32)
        n_done = 0
        for places, vectors in batches:
            cut = vectors[:, : out.shape[1]]
            out[places] = cut if self._metric == "dot" else unit_rows(cut)
            n_done += len(places)
            if done:
                done(n_done)
        return out
