"""What turns a text into one state per token: a PyLate ColBERT model, or the transformer of any sentence-transformers text model.

Importing this module is light; `load` imports torch, and PyLate for a model that has a ColBERT head.
"""

import json
import string
from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from shards import model_files, transformer
from shards.errors import BadSpec, ModelMissing
from shards.types import Array

Task = Literal["document", "query"]

INSTALL = "run pip install 'sondage[late]', then pip install --no-deps pylate==1.6.0 fastkmeans==0.5.0"
_QUERY_TOKENS = 64  # of a model without a ColBERT head: a sentence of 40 words; each costs a pass over all tokens of a passage


def has_head(folder: Path) -> bool:
    """Whether a folder holds a ColBERT: saved by PyLate, or Stanford's own."""
    settings = _json(folder / "config_sentence_transformers.json")
    config = _json(folder / "config.json")
    return settings.get("model_type") == "ColBERT" or "query_prefix" in settings or "HF_ColBERT" in (config.get("architectures") or [])


def document_tokens(folder: Path) -> int | None:
    """How many tokens of a document a ColBERT was made to read, by its own settings; None where they do not say."""
    if not has_head(folder):
        return None
    length = _json(folder / "config_sentence_transformers.json").get("document_length")
    return int(length or _json(folder / "artifact.metadata").get("doc_maxlen") or 180)


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


@lru_cache(maxsize=4)
def load(folder: Path, dtype: str, device: str | None) -> "TokenModel":
    """The model in a folder. dtype: fp32 | bf16; device: cpu | cuda, None: cuda where there is one.

    Raises ModelMissing where the folder holds no such model, or PyLate is needed and not installed.
    """
    if not has_head(folder):
        return TokenModel.without_head(transformer.load(folder, dtype, device))
    try:
        import torch
        from pylate.models import ColBERT
    except ImportError as error:
        raise ModelMissing(f"The ColBERT model in {folder} needs {error.name}: {INSTALL}.") from error
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        # Where a checkpoint lacks its marker tokens PyLate draws vectors for them: they must be the same in each process.
        with model_files.quiet_transformers(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = ColBERT(str(folder), device=device, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise ModelMissing(f"Folder {folder} holds no ColBERT model that can be loaded on {device}: {error}") from error
    if dtype == "bf16":
        model = model.to(torch.bfloat16)
    return TokenModel(model.eval(), folder, device)


class TokenModel(transformer.Transformer):
    """States of tokens, each text's the same bits whatever it is encoded beside. Safe for several threads.

    dim: of a state. is_colbert: whether the model has a ColBERT head; its settings then say which tokens are read and kept. Without
    one, all of a query's tokens count, the model's own [CLS] and [SEP] included, as do all of a document's but punctuation.
    """

    _parts: ClassVar[Set[str]] = transformer.Transformer._parts | {"pylate.models.Dense.Dense"}

    def __init__(self, model: Any, folder: Path, device: str, is_colbert: bool = True):
        super().__init__(model, folder, device)
        if not self._in_passes:
            raise ModelMissing(f"The model in {folder} gives no states of tokens: it is no transformer with parts that work on each.")
        self.is_colbert = is_colbert
        if is_colbert:
            skipped, self._unmasked = model.skiplist_words, bool(model.attend_to_expansion_tokens)
        else:
            self.dim = int(model[0].get_word_embedding_dimension())
            skipped, self._unmasked = list(string.punctuation), False
        vocabulary = self._tokenizer.get_vocab()
        self.vocabulary = vocabulary
        self.skipped = sorted({vocabulary[word] for word in skipped if word in vocabulary})

    @classmethod
    def without_head(cls, loaded: transformer.Transformer) -> "TokenModel":
        """The states of a dense model that is loaded already."""
        model = cls(loaded._model, loaded._folder, loaded._device, is_colbert=False)
        model._lock = loaded._lock  # one tokeniser, one lock
        return model

    def ids_of(self, words: Sequence[str]) -> list[int]:
        """The tokens that are one of these words, whole."""
        return [self.vocabulary[word] for word in words if word in self.vocabulary]

    def limit(self, task: Task, wanted: int | None) -> int:
        """Tokens of a text that are read: as wanted, else as the model's settings say. Raises BadSpec for more than it has places for."""
        model = self._model
        config = getattr(model[0].auto_model, "config", None)
        most = min(getattr(config, "max_position_embeddings", None) or self._max_tokens, transformer._MAX_TOKENS)
        if wanted is not None and not 4 <= wanted <= most:
            raise BadSpec(f"Model {self._folder.name!r} reads 4 to {most} tokens; {task}_tokens is {wanted}.")
        own = (model.query_length if task == "query" else model.document_length) if self.is_colbert else self._max_tokens
        if task == "query" and not self.is_colbert:
            own = min(own, _QUERY_TOKENS)
        return wanted or min(own, most)

    def states(
        self, texts: Sequence[str], task: Task, prompt: str = "", n_tokens: int | None = None, n_rows: int | None = None
    ) -> Iterator[tuple[Array, list[tuple[Array, Array]]]]:
        """Yields (places, of each of these texts (ids, states)): (n,) int64 tokens and (n, dim) float32, in the order of the text.

        n_tokens: most that are read, as in `limit`. n_rows: texts per forward pass; None: as many as are efficient.
        Queries of a model that expands them are filled up with mask tokens, which count like others (Khattab & Zaharia 2020, 3.2).
        """
        tokens = self._marked([prompt + text for text in texts], task, self.limit(task, n_tokens))
        model = self._model if self.is_colbert else self._model[0]

        def states(places: Array, features: dict[str, Any]) -> Array:
            return model.forward(features)["token_embeddings"][: len(places)].float().cpu().numpy()

        for places, found in self._run(tokens, states, n_rows):
            ids = [np.array(tokens["input_ids"][place], np.int64) for place in places.tolist()]
            yield places, [(own, rows[: len(own)]) for own, rows in zip(ids, found, strict=True)]

    def _marked(self, texts: list[str], task: Task, limit: int) -> transformer.Tokens:
        """Tokens with the marker that tells a ColBERT's questions from documents; its questions filled up to the limit."""
        model = self._model
        stripped = [text.strip() for text in texts]
        if not stripped:
            return {"input_ids": []}
        if self._lower:
            stripped = [text.lower() for text in stripped]
        marker = (model.query_prefix_id if task == "query" else model.document_prefix_id) if self.is_colbert else None
        with self._lock:
            read = self._tokenizer(
                stripped, truncation=True, max_length=limit - (marker is not None), padding=False, return_attention_mask=True
            )  # fmt: skip
        tokens = {name: [list(values) for values in read[name]] for name in read if name != "overflow_to_sample_mapping"}
        fillers = {"input_ids": self._tokenizer.pad_token_id, "attention_mask": int(self._unmasked)}
        for name, rows in tokens.items():
            for row in rows:
                if marker is not None:
                    row.insert(1, {"input_ids": marker, "attention_mask": 1}.get(name, 0))
                if task == "query" and self.is_colbert and model.do_query_expansion:
                    row += [fillers.get(name, 0)] * (limit - len(row))
        return tokens

    def reads_of(self, text: str, prompt: str, n_tokens: int | None) -> str:
        """The beginning of a question that the model really reads; the whole of it where its tokeniser cannot tell."""
        limit = self.limit("query", n_tokens) - self.is_colbert
        stripped = text.strip()
        near = stripped[: limit * 64]
        if not self._tokenizer.is_fast:
            return text
        with self._lock:
            offsets = self._tokenizer(prompt + near, truncation=True, max_length=limit, return_offsets_mapping=True)["offset_mapping"]
        end = max(max((stop for _, stop in offsets), default=0) - len(prompt), 0)
        return text if len(near) == len(stripped) and not near[end:].strip() else near[:end]
