"""Vectors of formulas, learnt from which symbol pairs stand together in the corpus's own formulas.

After Tangent-CFT (Mansouri et al. 2019, ICTIR): pairs are words, formulas are texts, a formula's vector is the sum of its pairs'. There
fastText learns them, by random steps in an order of the texts; here they are the leading eigenvectors of the positive pointwise mutual
information of pairs in one formula, which is what such a model comes to (Levy & Goldberg 2014, NIPS). Two reasons: it gives the same
bits every time, and what it needs, how often two pairs stand in one formula, is a sum over formulas. So the model is a function of the
generation's statistics: nothing is trained by a job, no formula is encoded again when the corpus changes, deletions are subtracted
exactly. Like n-grams in fastText, pairs share buckets by hash.

All that is multiplied is small whole numbers, so float64 holds every sum exactly, in whatever order a library adds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shards.formula_matching import pairs
from shards.formula_trees import Trees
from shards.types import Array, Arrays

BUCKETS = 256
DIM = 64  # a model of 16 kB, which travels with each question
LEVELS = 127  # a component of a bucket's vector is a whole number of at most this
_CHUNK_UNITS = 8192


def bag(trees: Trees) -> tuple[Array, Array]:
    """The buckets that a formula's pairs fall into, (b,) uint16 ascending, and how many fall into each, (b,) uint8, saturating."""
    found = pairs(trees)
    counts = np.bincount((found.keys % np.uint64(BUCKETS)).astype(np.int64), found.counts, BUCKETS)
    buckets = np.flatnonzero(counts)
    return buckets.astype(np.uint16), np.minimum(counts[buckets], 255).astype(np.uint8)


def table(buckets: Array, counts: Array, offsets: Array) -> Array:
    """Bags as rows, (n, BUCKETS) float32. offsets: (n + 1,) int64 into buckets and counts."""
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    dense = np.zeros((len(offsets) - 1, BUCKETS), np.float32)
    dense[rows, buckets[offsets[0] : offsets[-1]]] = counts[offsets[0] : offsets[-1]]
    return dense


def together(buckets: Array, counts: Array, offsets: Array, units: Array) -> Arrays:
    """In how many of the units two buckets occur together: "pairs" (p,) uint32, lower bucket x BUCKETS + higher, ascending; "counts"."""
    sums = np.zeros((BUCKETS, BUCKETS), np.int64)
    for first in range(0, len(offsets) - 1, _CHUNK_UNITS):
        last = min(first + _CHUNK_UNITS, len(offsets) - 1)
        holds = (table(buckets, counts, offsets[first : last + 1])[units[first:last]] > 0).astype(np.float32)
        sums += np.rint(holds.T @ holds).astype(np.int64)  # whole numbers below 2^24: exact
    flat = np.triu(sums).reshape(-1)
    places = np.flatnonzero(flat)
    return {"pairs": places.astype(np.uint32), "counts": flat[places].astype(np.uint32)}


@dataclass(frozen=True)
class FormulaStatistics:
    """n_units: formulas. occurrences: (BUCKETS, BUCKETS) int64, symmetric, in how many formulas two buckets occur together."""

    n_units: int
    occurrences: Array

    @classmethod
    def collect(cls, parts: Sequence[tuple[int, Arrays]]) -> "FormulaStatistics":
        """From (sign, `together` with "n_units") of segments and tombstone sets."""
        flat = np.zeros(BUCKETS * BUCKETS, np.int64)
        for sign, part in parts:
            flat[part["pairs"]] += sign * part["counts"].astype(np.int64)
        upper = flat.reshape(BUCKETS, BUCKETS)
        return cls(sum(sign * int(part["n_units"][0]) for sign, part in parts), upper + np.triu(upper, 1).T)

    @cached_property
    def model(self) -> Array:
        """The vector of each bucket times its rarity: (BUCKETS, DIM) int8. Made when it is first asked for: 20 ms."""
        together = self.occurrences.astype(np.float64)
        alone = together.diagonal()
        sums = together.sum(axis=0)
        expected = np.outer(sums, sums) / max(sums.sum(), 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            information = np.where(together > 0, np.log(together / expected), 0.0)
        values, vectors = np.linalg.eigh(np.maximum(information, 0.0))
        leading = np.sqrt(np.maximum(values[-DIM:], 0.0)) * vectors[:, -DIM:]
        leading *= np.log((self.n_units + 1) / (alone + 1))[:, None]
        most = np.abs(leading).max(initial=0.0)
        return np.rint(leading * (LEVELS / most if most > 0 else 0.0)).astype(np.int8)


def vectors(buckets: Array, counts: Array, offsets: Array, model: Array) -> Array:
    """The vectors of formulas: (n, DIM) float32, whole numbers."""
    found = np.zeros((len(offsets) - 1, DIM), np.float32)
    floats = model.astype(np.float32)
    for first in range(0, len(offsets) - 1, _CHUNK_UNITS):
        last = min(first + _CHUNK_UNITS, len(offsets) - 1)
        found[first:last] = table(buckets, counts, offsets[first : last + 1]) @ floats
    return found


def squared(of_units: Array) -> Array:
    """Squared lengths of vectors, (n,) float64, exactly."""
    found = np.empty(len(of_units))
    for first in range(0, len(of_units), _CHUNK_UNITS):
        wide = of_units[first : first + _CHUNK_UNITS].astype(np.float64)
        found[first : first + _CHUNK_UNITS] = np.einsum("ij,ij->i", wide, wide)
    return found


def cosines(of_units: Array, squares: Array, units: Array, question: Array) -> Array:
    """Cosines of some units and a question, (m,) float64; 0 where one has no vector. of_units: (n, DIM); question: (DIM,)."""
    from shards import formula_kernels as kernels

    found = np.empty(len(units))
    kernels.cosines(of_units, squares, units.astype(np.int64, copy=False), question.astype(np.float64), found)
    return found
