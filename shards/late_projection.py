"""Fewer dimensions for the token states of a model that has no ColBERT head: the principal axes of a fixed sample of text.

Fitted once on a machine and kept in the models folder. The sample is the background questions and a walk through the model's own
vocabulary, so that it is the same wherever the model is, and no corpus's: spaces of all corpora share it.
"""

import fcntl
import hashlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from shards import arrays as array_files
from shards.background import BACKGROUND
from shards.errors import BadSpec
from shards.late_models import TokenModel
from shards.layers.contract import Resources
from shards.types import Array

logger = logging.getLogger(__name__)

_VERSION = 1  # of the sample and of the fit
_WORDS, _SENTENCES = 24, 512  # of the walk through the vocabulary: 12,000 words


def projection_file(load: Callable[[], TokenModel], files: str, dim: int, resources: Resources) -> Path:
    """The file with a model's axes, fitted now if it is not there; other processes wait meanwhile. files: fingerprint of the model.

    Another CPU may round otherwise, so the file has its own fingerprint, and machines that share an index should share the models
    folder too. Raises BadSpec for more dimensions than the model's.
    """
    path = resources.models / f"late-axes-{files[:12]}-{dim}-{_VERSION}.safetensors"
    if path.is_file():
        return path
    resources.models.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.is_file():
            return path
        begun = time.monotonic()
        data = array_files.dump({"axes": fit(load(), dim)})
        partial = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
        partial.write_bytes(data)
        os.replace(partial, path)
        logger.info("file=%s event=axes_fitted seconds=%.1f", path.name, time.monotonic() - begun)
    return path


def read(path: Path) -> Array:
    """The axes that `projection_file` keeps: (dim, states' dim) float32."""
    return array_files.load(path)[0]["axes"]


def fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def fit(model: TokenModel, dim: int) -> Array:
    """The `dim` orthogonal directions that keep most of the inner products of token states of unit length: (dim, model.dim) float32.

    Not centred: MaxSim compares angles, and what all tokens share is part of each. Rows in order of what they keep; the sign of each
    such that its largest component is positive.
    """
    if not 1 <= dim <= model.dim:
        raise BadSpec(f"The states of this model have {model.dim} dimensions; dim is {dim}. Choose 1 to {model.dim}.")
    total = np.zeros((model.dim, model.dim))
    by_place: dict[int, Array] = {}
    for places, found in model.states(sample(model), "document"):
        for place, (ids, states) in zip(places.tolist(), found, strict=True):
            kept = states[~np.isin(ids, model.skipped)].astype(np.float64)
            kept /= np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12)
            by_place[place] = kept.T @ kept
    for place in sorted(by_place):  # passes end in any order, and the order of a sum decides its last bits
        total += by_place[place]
    _, vectors = np.linalg.eigh(total)
    axes = vectors[:, ::-1][:, :dim].T
    largest = np.abs(axes).argmax(axis=1)
    return np.ascontiguousarray(axes * np.sign(axes[np.arange(dim), largest])[:, None], np.float32)


def sample(model: TokenModel) -> list[str]:
    """The texts that axes are fitted on."""
    return [*BACKGROUND, *_walk(model)]


def _walk(model: TokenModel) -> Iterator[str]:
    """Sentences of words of the model's vocabulary, evenly spread over it, in an order that mixes frequent and rare ones."""
    words = sorted(word for word in model.vocabulary if len(word) > 2 and word.isalpha())
    step = 7919  # prime, so that neighbours in the list are not neighbours in a sentence
    for i in range(min(_SENTENCES, len(words) // _WORDS)):
        yield " ".join(words[(i * _WORDS + j) * step % len(words)] for j in range(_WORDS))
