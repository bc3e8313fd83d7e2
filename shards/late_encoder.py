"""Texts to the vectors of their tokens, as the layer `late` compares them: projected, scaled, pruned and pooled.

A text's vectors have the same bits whatever texts are encoded beside it. Models are loaded at first use; making an encoder loads
nothing, and asking its fingerprint loads one only where axes must be fitted first.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from shards import late_models, late_projection, model_files
from shards.errors import BadSpec
from shards.late_models import TokenModel
from shards.layers.contract import Resources
from shards.types import Array

Done = Callable[[int], None]  # told how many texts are encoded; may raise Cancelled

DIM = 128  # of the vectors of a model without a ColBERT head
_PROMPTS = {"document": ("document", "passage", "corpus"), "query": ("query",)}  # names, in sentence-transformers' order

# What stop words are to a question in English: the list of Lucene's StandardAnalyzer.
STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was will with"
)

_loading = threading.Lock()


class LateEncoder:
    """One model with its dials. The prompts and lengths are the model's own where they are None."""

    def __init__(
        self,
        model: str,
        resources: Resources,
        *,
        dim: int | None = None,
        skip: Literal["model", "stopwords", "none"] = "model",
        prune: float = 0.0,
        pool: int = 1,
        document_tokens: int | None = None,
        query_tokens: int | None = None,
        document_prompt: str | None = None,
        query_prompt: str | None = None,
        dtype: Literal["fp32", "bf16"] = "fp32",
        device: Literal["cpu", "cuda"] | None = None,
    ):
        self.model, self.resources = model, resources
        self._dim, self._skip, self._prune, self._pool = dim, skip, prune, pool
        self._n_tokens = {"document": document_tokens, "query": query_tokens}
        self._prompts = {"document": document_prompt, "query": query_prompt}
        self._dtype, self._device = dtype, device

    @cached_property
    def folder(self) -> Path:
        return model_files.locate(self.model, self.resources)

    @cached_property
    def _files(self) -> str:
        return model_files.fingerprint(self.folder, self.resources)

    @cached_property
    def _axes_file(self) -> Path | None:
        """The projection's; None where the model has one of its own."""
        if late_models.has_head(self.folder):
            return None
        fitted_with = lambda: late_models.load(self.folder, "fp32", "cpu")  # noqa: E731
        return late_projection.projection_file(fitted_with, self._files, self._dim or DIM, self.resources)

    def fingerprint(self) -> str:
        """A hash of the files that vectors depend on."""
        axes = late_projection.fingerprint(self._axes_file) if self._axes_file else ""
        return hashlib.sha256(json.dumps(["late", self._files, axes]).encode()).hexdigest()[:32]

    @cached_property
    def _loaded(self) -> TokenModel:
        with _loading:
            return late_models.load(self.folder, self._dtype, self._device)

    @cached_property
    def _axes(self) -> Array | None:
        return late_projection.read(self._axes_file).astype(np.float64).T if self._axes_file else None

    @cached_property
    def dim(self) -> int:
        """Components of each vector. Raises BadSpec for more than the model has."""
        full = self._axes.shape[1] if self._axes is not None else self._loaded.dim
        if self._dim is not None and self._dim > full:
            raise BadSpec(f"Model {self.model!r} gives {full} dimensions; dim is {self._dim}. Choose 1 to {full}, or leave it out.")
        return self._dim or full

    @cached_property
    def _skipped(self) -> Array:
        """Tokens of documents that are not compared."""
        ids = [] if self._skip == "none" else self._loaded.skipped
        stops = self._loaded.ids_of(STOP_WORDS.split()) if self._skip == "stopwords" else []
        return np.array(sorted({*ids, *stops}), np.int64)

    def encode_documents(self, texts: Sequence[str], done: Done | None = None) -> list[Array]:
        """Of each text, (n, dim) float32 with n >= 1, rows of unit length (shorter where tokens were pooled)."""
        return self._encode(texts, "document", done)

    def encode_queries(self, texts: Sequence[str]) -> list[Array]:
        """Of each text, (n, dim) float32 rows of unit length; one forward pass each, so that an answer waits for no other's rows."""
        return self._encode(texts, "query", None, n_rows=1)

    def reads(self, text: str) -> str:
        """The beginning of a question that the model really reads."""
        return self._loaded.reads_of(text, self._prompt("query"), self._n_tokens["query"])

    def _prompt(self, task: late_models.Task) -> str:
        given = self._prompts[task]
        return self._loaded.prompt(_PROMPTS[task]) if given is None else given

    def _encode(self, texts: Sequence[str], task: late_models.Task, done: Done | None, n_rows: int | None = None) -> list[Array]:
        out: list[Array] = [np.zeros((0, 0), np.float32)] * len(texts)
        n_done = 0
        for places, found in self._loaded.states(texts, task, self._prompt(task), self._n_tokens[task], n_rows):
            for place, (ids, states) in zip(places.tolist(), found, strict=True):
                out[place] = self._compared(ids, states, task)
            n_done += len(places)
            if done:
                done(n_done)
        return out

    def _compared(self, ids: Array, states: Array, task: late_models.Task) -> Array:
        """The vectors that are compared, of a text's tokens and their states."""
        if task == "document" and len(self._skipped):
            kept = ~np.isin(ids, self._skipped)
            states = states[kept] if kept.any() else states
        # In float64, so that what a product's order leaves in the last bits is mostly rounded off.
        values = states.astype(np.float64)
        if self._axes is not None:
            values = values @ self._axes
        values = values[:, : self.dim]
        lengths = np.sqrt(np.square(values).sum(axis=1))
        if task == "document" and self._prune:
            kept = longest(lengths, 1.0 - self._prune)
            values, lengths = values[kept], lengths[kept]
        vectors = (values / np.where(lengths > 0, lengths, 1.0)[:, None]).astype(np.float32)
        return pooled(vectors, self._pool) if task == "document" else vectors


def longest(lengths: Array, share: float) -> Array:
    """Places of a share of tokens, at least of one, with the first: those of the longest vectors, in the order of the text."""
    n = max(int(np.ceil(share * len(lengths) - 1e-9)), 1)
    order = np.argsort(-lengths[1:], kind="stable") + 1
    return np.sort(np.concatenate([[0], order[: n - 1]]))


def pooled(vectors: Array, factor: int) -> Array:
    """A passage's vectors with like ones averaged, to about 1 / factor of their number; the first one, [CLS], stays.

    Ward's clustering of 1 - cosine, and means that keep their lengths, both as PyLate does (Clavié et al. 2024, arXiv 2409.14683:
    half the vectors at no loss, a third at 1 %).
    """
    n_clusters = max((len(vectors) - 1) // factor, 1)
    if factor == 1 or n_clusters >= len(vectors) - 1:
        return vectors
    from scipy.cluster import hierarchy

    rest = vectors[1:].astype(np.float64)
    distances = np.maximum(1.0 - rest @ rest.T, 0.0)  # of equals it may fall below, which the clustering refuses
    condensed = distances[np.triu_indices(len(rest), k=1)]
    labels = hierarchy.fcluster(hierarchy.linkage(condensed, method="ward"), t=n_clusters, criterion="maxclust")
    _, labels = np.unique(labels, return_inverse=True)
    sums = np.zeros((labels.max() + 1, rest.shape[1]))
    np.add.at(sums, labels, rest)
    means = sums / np.bincount(labels)[:, None]
    return np.concatenate([vectors[:1], means.astype(np.float32)])
