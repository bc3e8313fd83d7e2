"""A cross-encoder: reads a question and a passage together and gives one number for the pair.

A pair's score has the same bits whatever pairs are scored beside it. The model is loaded at first use, once per process; making a
`CrossEncoder` or asking its fingerprint loads nothing.
"""

import json
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from shards import model_files, transformer
from shards.errors import ModelMissing
from shards.layers.contract import Resources
from shards.types import Array, Budget

# On CPUs each pair has a forward pass of its own, of its own length: the classifying head multiplies one vector per pair, and one
# row of a matrix product has other bits than the same row of several. It costs little: 256 tokens fill a core, and passages have more.
# On GPUs a pair is padded to one of few lengths, and passes of one length always have the same number of rows.
_GPU_LENGTHS = (64, 128, 192, 256, 384, 512)  # beyond the last: multiples of it
_GPU_PASS = 16384  # tokens
_MAX_TOKENS = 8192  # read of one pair, whatever the model allows: attention is quadratic
_HEAD = "ForSequenceClassification"

_loading = threading.Lock()  # two threads that need the same model load it once


class Reranker(Protocol):
    """Who scores passages for a question: a cross-encoder here, or a judge at an endpoint (`shards.judge`)."""

    name: str

    def check(self) -> None:
        """See that there is such a model here, without loading it. Raises ModelMissing with the remedy."""

    def load(self) -> None:
        """Have it ready. Raises ModelMissing."""

    def fingerprint(self) -> str:
        """A hash of all that scores depend on beside question and passage."""

    def scores(self, query: str, passages: Sequence[str], budget: Budget) -> Iterator[tuple[int, float]]:
        """Yields (place of a passage, its score), in any order, higher is better; ends early when the budget does.

        A score depends on question and passage alone. May be called from several threads. Raises SondageError.
        """


class CrossEncoder:
    """Any sentence-transformers CrossEncoder with one label. model: a folder or a name on the Hugging Face hub.

    Scores are the model's own, behind its own activation: those of `CrossEncoder.predict` there, to the rounding of padded batches.
    The activation is computed in float64, where a sigmoid tells logits apart up to 36; in float32 all above 17 are equal.
    """

    def __init__(self, model: str, resources: Resources, device: Literal["cpu", "cuda"] | None = None):
        self.name, self._resources, self._device = model, resources, device
        self._loaded: _Pairs | None = None

    def check(self) -> None:
        _refuse_others(self._folder())

    def load(self) -> None:
        if self._loaded is None:
            folder = self._folder()
            _refuse_others(folder)
            with _loading:
                self._loaded = _load(folder, self._device)

    def fingerprint(self) -> str:
        return model_files.fingerprint(self._folder(), self._resources)

    def scores(self, query: str, passages: Sequence[str], budget: Budget) -> Iterator[tuple[int, float]]:
        self.load()
        assert self._loaded is not None
        return self._loaded.scores(query, passages, budget)

    def _folder(self) -> Path:
        return model_files.locate(self.name, self._resources)


def _refuse_others(folder: Path) -> None:
    """Other models would be loaded too, with a head of random numbers. Raises ModelMissing."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        kinds = [str(kind) for kind in config.get("architectures") or ()]
    except (OSError, ValueError, AttributeError) as error:
        raise ModelMissing(f"Folder {folder} holds no cross-encoder: its config.json cannot be read ({error}).") from error
    if not any(kind.endswith(_HEAD) for kind in kinds):
        raise ModelMissing(
            f"Folder {folder} holds no cross-encoder but {', '.join(kinds) or 'a model of no stated kind'}. Name one whose "
            f"architecture ends in {_HEAD}, such as cross-encoder/ms-marco-MiniLM-L6-v2."
        )


@lru_cache(maxsize=2)
def _load(folder: Path, device: str | None) -> "_Pairs":
    try:
        import torch
        from sentence_transformers import CrossEncoder as Model
    except ImportError as error:
        raise ModelMissing(f"A cross-encoder needs {error.name}: run pip install sentence-transformers.") from error
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with model_files.quiet_transformers():
            model = Model(str(folder), device=device, local_files_only=True)
    except Exception as error:  # what damaged files raise is up to three libraries: OSError, ValueError, SafetensorError, …
        raise ModelMissing(f"Folder {folder} holds no cross-encoder that can be loaded on {device}: {error}") from error
    if model.num_labels != 1:
        raise ModelMissing(f"The model in {folder} gives {model.num_labels} numbers for a pair, as classifiers do. A reranker gives one.")
    return _Pairs(model.eval(), device, alone=device == "cpu")


class _Pairs:
    """One loaded model. Safe for several threads. alone: whether each pair has a pass of its own."""

    def __init__(self, model: Any, device: str, alone: bool):
        self._model, self._device, self._tokenizer = model, device, model.tokenizer
        self._alone = alone or self._tokenizer.pad_token is None
        self._max_tokens = int(min(self._tokenizer.model_max_length, _MAX_TOKENS))
        self._lock = threading.Lock()  # a fast tokenizer's padding and truncation are its state

    def scores(self, query: str, passages: Sequence[str], budget: Budget) -> Iterator[tuple[int, float]]:
        with self._lock:
            pairs = [(query, passage) for passage in passages]
            tokens = dict(self._tokenizer(pairs, truncation=True, max_length=self._max_tokens, padding=False)) if pairs else {}
        running: deque[tuple[Array, Future[Array | None]]] = deque()
        pool = transformer._cpu_threads() if self._device == "cpu" else transformer._gpu_threads()
        passes = self._passes(np.array([len(ids) for ids in tokens.get("input_ids", ())], np.int64))
        try:
            for places, length, n_rows in passes:
                batch = {name: [values[place] for place in places] for name, values in tokens.items()}
                running.append((places, pool.submit(self._forward, batch, length, n_rows, budget)))
                if len(running) > 2 * pool._max_workers:  # keeps all busy, and lets others in between
                    yield from _done(*running.popleft())
            while running:
                yield from _done(*running.popleft())
        finally:
            for _, future in running:
                future.cancel()

    def _passes(self, sizes: Array) -> Iterator[tuple[Array, int | None, int]]:
        """Yields (places, length, rows) of each forward pass, longest first; length None: as it is, without padding."""
        if self._alone:
            for place in np.argsort(-sizes, kind="stable"):
                yield np.array([place]), None, 1
            return
        lengths = np.array([self._padded(size) for size in sizes.tolist()], np.int64)
        for length in np.unique(lengths)[::-1].tolist():
            n_rows, same = max(_GPU_PASS // length, 1), np.flatnonzero(lengths == length)
            for start in range(0, len(same), n_rows):
                yield same[start : start + n_rows], length, n_rows

    def _padded(self, size: int) -> int:
        fitting = next((length for length in _GPU_LENGTHS if length >= size), -(-size // _GPU_LENGTHS[-1]) * _GPU_LENGTHS[-1])
        return min(fitting, self._max_tokens)

    def _forward(self, batch: dict[str, list[list[int]]], length: int | None, n_rows: int, budget: Budget) -> Array | None:
        """Scores of a batch, (rows,) float64; None where the budget ended before. n_rows: of the pass, filled up with the first."""
        import torch

        if budget.expired:
            return None
        n = len(batch["input_ids"])
        if length is None:
            features = {name: torch.tensor(values) for name, values in batch.items()}
        else:
            filled = {name: values + values[:1] * (n_rows - n) for name, values in batch.items()}
            with self._lock:
                features = dict(self._tokenizer.pad(filled, padding="max_length", max_length=length, return_tensors="pt"))
        with torch.inference_mode():
            logits = self._model.model(**{name: value.to(self._device) for name, value in features.items()}, return_dict=True).logits
            return self._model.activation_fn(logits[:n, 0].double()).cpu().numpy()


def _done(places: Array, future: "Future[Array | None]") -> Iterator[tuple[int, float]]:
    scores = future.result()
    if scores is not None:
        yield from zip(places.tolist(), scores.tolist(), strict=True)
