"""Texts to weights of vocabulary entries: a learned sparse model with its prompts and cuts, deterministic per text.

A text's weights have the same bits whatever texts are encoded beside it (`shards.transformer`). The model is loaded at first use,
once per process; making an encoder or asking its fingerprint loads nothing.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shards import model_files
from shards.errors import BadQuery, ModelMissing
from shards.layers.contract import Resources
from shards.types import Array

if TYPE_CHECKING:  # imports torch
    from shards.sparse_models import SparseTransformer

Done = Callable[[int], None]  # told how many texts are encoded; may raise Cancelled

_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # names of prompts, in the order in which sentence-transformers looks
_loading = threading.Lock()


class TokenWeights(NamedTuple):
    """Weights of n texts: text i has those from offsets[i] to offsets[i + 1].

    offsets: (n + 1,) int64; tokens: (p,) uint32, ascending within a text; weights: (p,) float32, none of them 0
    """

    offsets: Array
    tokens: Array
    weights: Array


class SparseTextEncoder:
    """One model with its prompts and cuts.

    document_prompt, query_prompt: put before each text; None: as the model's own settings say, "" for none.
    document_terms, query_terms: heaviest terms kept of a text, equal ones in order of token; None: the model's own limit, if any.
    min_weight: passages' terms that weigh less are dropped. dtype: number format of the model while encoding.
    """

    def __init__(
        self,
        model: str,
        resources: Resources,
        *,
        document_prompt: str | None = None,
        query_prompt: str | None = None,
        document_terms: int | None = None,
        query_terms: int | None = None,
        min_weight: float = 0.0,
        dtype: Literal["fp32", "bf16"] = "fp32",
        device: Literal["cpu", "cuda"] | None = None,
    ):
        self.model, self.resources = model, resources
        self._document_prompt, self._query_prompt = document_prompt, query_prompt
        self._document_terms, self._query_terms, self._min_weight = document_terms, query_terms, min_weight
        self._dtype, self._device = dtype, device
        self._loaded: tuple[SparseTransformer, SparseTransformer] | None = None

    def fingerprint(self) -> str:
        """A hash of the model's files, the only thing weights depend on that parameters do not tell."""
        files = model_files.fingerprint(model_files.locate(self.model, self.resources), self.resources)
        return hashlib.sha256(json.dumps(["sparse", files]).encode()).hexdigest()[:32]

    def encode_documents(self, texts: Sequence[str], done: Done | None = None) -> TokenWeights:
        model, _ = self._load()
        prompt = model.prompt(_DOCUMENT_PROMPTS) if self._document_prompt is None else self._document_prompt
        most = self._document_terms or model.max_active_dims
        pieces: list[tuple[Array, Array]] = [(np.zeros(0, np.uint32), np.zeros(0, np.float32))] * len(texts)
        n_done = 0
        for places, vectors in model.batches(texts, prompt, "document"):
            for place, vector in zip(places.tolist(), vectors, strict=True):
                pieces[place] = heaviest(vector, most, self._min_weight)
            n_done += len(places)
            if done:
                done(n_done)
        return joined(pieces)

    def encode_query(self, text: str) -> tuple[Array, Array]:
        """(tokens, weights) of one question, in a forward pass of its own, so that an answer waits for no other's rows."""
        _, model = self._load()
        _, vectors = next(model.batches([text], self._prompt_of_queries(), "query", 1))
        return heaviest(vectors[0], self._query_terms or model.max_active_dims, 0.0)

    def reads(self, text: str) -> str:
        """The beginning of a question that the model really reads."""
        return self._load()[1].reads(text, self._prompt_of_queries())

    def names(self, tokens: Array) -> list[str]:
        """What tokens are called in the model's vocabulary; components of an autoencoder, which have no name, "#" and their number."""
        known = self._vocabulary[1]
        return [known.get(number) or f"#{number}" for number in tokens.tolist()]

    def token(self, word: str) -> int:
        """The number of the vocabulary entry that a word is, as it stands or as the model reads it. Raises BadQuery for any other."""
        numbers, names = self._vocabulary
        if word in numbers:
            return numbers[word]
        model = self._load()[0]
        number = word.removeprefix("#")
        if word.startswith("#") and number.isdecimal() and int(number) < model.dim and int(number) not in names:
            return int(number)
        pieces = model.pieces(word)
        if len(pieces) == 1 and pieces[0] in numbers:
            return numbers[pieces[0]]
        made = f"made of {', '.join(map(repr, pieces[:8]))}" if len(pieces) > 1 else "unknown"
        raise BadQuery(f"{word!r} is no entry in the vocabulary of model {self.model!r}, where it is {made}. Weigh entries of it.")

    @cached_property
    def _vocabulary(self) -> tuple[dict[str, int], dict[int, str]]:
        """Numbers by name, and names by number."""
        numbers = self._load()[0].vocabulary() or {}
        return numbers, {number: name for name, number in numbers.items()}

    def _prompt_of_queries(self) -> str:
        return self._load()[1].prompt(("query",)) if self._query_prompt is None else self._query_prompt

    def _load(self) -> "tuple[SparseTransformer, SparseTransformer]":
        if self._loaded is None:
            folder = model_files.locate(self.model, self.resources)
            with _loading:
                try:
                    from shards import sparse_models
                except ImportError as error:
                    raise ModelMissing(f"Sparse layers need {error.name}: run pip install 'sentence-transformers>=5'.") from error
                self._loaded = sparse_models.load(folder, self._dtype, self._device)
        return self._loaded


def heaviest(vector: Array, most: int | None, least: float) -> tuple[Array, Array]:
    """The tokens of a vector's largest components, ascending, and their weights. vector: (vocabulary,) float32.

    most: of them; equal ones in order of token. least: what a component must be at least, whatever its sign.
    """
    tokens = np.flatnonzero(vector)
    if least > 0:
        tokens = tokens[np.abs(vector[tokens]) >= least]
    if most is not None and len(tokens) > most:
        tokens = np.sort(tokens[np.argsort(-np.abs(vector[tokens]), kind="stable")[:most]])
    return tokens.astype(np.uint32), vector[tokens].astype(np.float32)


def joined(pieces: Sequence[tuple[Array, Array]]) -> TokenWeights:
    """(tokens, weights) of several texts as one."""
    offsets = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(tokens) for tokens, _ in pieces], out=offsets[1:])
    tokens = np.concatenate([np.zeros(0, np.uint32), *(tokens for tokens, _ in pieces)])
    return TokenWeights(offsets, tokens, np.concatenate([np.zeros(0, np.float32), *(weights for _, weights in pieces)]))


def packed(weights: TokenWeights) -> Array:
    """Weights of a document's texts as rows that can be kept: (1 + n + p, 2) uint32.

    First (n, p); then, of each text, (how many weights, 0); then all (token, bits of the float32 weight).
    """
    n, p = len(weights.offsets) - 1, len(weights.tokens)
    rows = np.zeros((1 + n + p, 2), np.uint32)
    rows[0] = n, p
    rows[1 : 1 + n, 0] = np.diff(weights.offsets)
    rows[1 + n :, 0], rows[1 + n :, 1] = weights.tokens, weights.weights.view(np.uint32)
    return rows


def unpacked(rows: Array) -> TokenWeights:
    """What `packed` was given. Raises ValueError where rows are not of its making."""
    of_pairs = rows.dtype == np.uint32 and rows.ndim == 2 and rows.shape[1] == 2 and len(rows)
    n, p = rows[0].tolist() if of_pairs else (0, 0)
    if not of_pairs or len(rows) != 1 + n + p or int(rows[1 : 1 + n, 0].sum(dtype=np.int64)) != p:
        raise ValueError("not the weights of a document")
    offsets = np.concatenate([[0], np.cumsum(rows[1 : 1 + n, 0], dtype=np.int64)])
    return TokenWeights(offsets, rows[1 + n :, 0].copy(), rows[1 + n :, 1].copy().view(np.float32))
