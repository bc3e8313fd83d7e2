"""Which vectors can be among the best: a scan of four bits a component, with a proven bound on what it is wrong by.

A scan costs what it reads from memory: an eighth of float32 vectors. Of what four bits cannot rule out, four more leave hardly more
than is wanted, and that is scored canonically. So the result is that of scoring everything, bit for bit, however passages lie in
segments.
"""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shards.types import Array, Arrays, Budget

LEAST_UNITS = 2048  # wanted, for a search by sketch; with fewer all is scored in 0.2 ms, and an edit should write kilobytes
_BLOCK = 128  # as in `shards.sketch_kernels`, which imports numba
_CENTRE_ROWS = 4_096  # of which a centre is the mean, where there is little time
_MOST_ERROR = 0.25  # of the length, for a sketch without turning; of vectors of models it is 0.1 to 0.15
_SLICE_BYTES = 1 << 24  # of codes between two looks at the clock: 0.6 ms from memory, some from a cold disk


class Codes(NamedTuple):
    """Codes of four bits: a turned vector is near gain (code - 7.5), no further than error (Euclidean).

    codes: (u, padded / 2) uint8; gains, errors: (u,) float32
    """

    codes: Array
    gains: Array
    errors: Array

    @classmethod
    def empty(cls, n_units: int, padded: int) -> "Codes":
        return cls(np.empty((n_units, padded // 2), np.uint8), np.empty(n_units, np.float32), np.empty(n_units, np.float32))


_ARRAYS = (("codes", "gains", "errors"), ("finer_codes", "finer_gains", "finer_errors"))


@dataclass(frozen=True, slots=True)
class Sketch:
    """Vectors of a segment, less their centre, in codes: `coarse` ones that a search reads all of, and `fine` ones, of what those leave.

    centre: (dim,) float64; reach: the longest vector that codes stand for. Vectors are turned first: padded with zeros to a multiple
    of 128 and multiplied by an orthogonal matrix that `dim` alone decides (FORMAT.md). fine: None for a sketch made in haste, whose
    vectors are not turned.
    """

    centre: Array
    coarse: Codes
    fine: Codes | None
    reach: float

    @classmethod
    def of(cls, vectors: Array, centre: Array) -> "Sketch":
        """The sketch of (u, dim) float32, or float16 as kernels take it. 8 us a row of 384. centre: best the vectors' mean."""
        from shards.sketch_kernels import make_sketches

        signs = _signs(len(centre))
        coarse, fine = (Codes.empty(len(vectors), signs.shape[1]) for _ in range(2))
        return cls(centre, coarse, fine, make_sketches(vectors, centre, signs, tuple(coarse), tuple(fine)))

    @classmethod
    def in_haste(cls, vectors: Array) -> "Sketch | None":
        """A coarse one for a while, of (u, dim) float32 or float16: 1 us a row of 384, where `of` takes 8. None: it would rule out little,
        since few components have most of the length, which only turning makes even."""
        from shards.sketch_kernels import make_coarse

        rows = vectors.view(np.uint16) if vectors.dtype == np.float16 else vectors
        centre = vectors[:: max(len(vectors) // _CENTRE_ROWS, 1)].mean(axis=0, dtype=np.float64)  # any is right, the mean is best
        coarse = Codes.empty(len(vectors), -(-vectors.shape[1] // _BLOCK) * _BLOCK)
        reach, error = make_coarse(rows, centre, tuple(coarse))
        return cls(centre, coarse, None, reach) if error <= _MOST_ERROR else None

    @classmethod
    def opened(cls, arrays: Arrays, vectors: Array) -> "Sketch | None":
        """That of a segment, whose vectors are given as kernels take them; made now where an older build kept none. None: too few."""
        if "codes" not in arrays:
            arrays = {"mean": arrays["mean"], **sketch_arrays(vectors, arrays["mean"])}
        if not len(arrays["codes"]):
            return None
        coarse, fine = (Codes(*(arrays[name] for name in names)) for names in _ARRAYS)
        return cls(arrays["mean"], coarse, fine, float(arrays["reach"][0]))

    def search(
        self, vectors: Array, row_units: Array, wanted: Array, query: Array, k: int, floor: float, budget: Budget
    ) -> tuple[Array, Array, int]:
        """(units (m,) int64, scores (m,) float64, n_rows): of the first n_rows rows (all, unless the budget ended) those wanted that are
        among the k best and score `floor` at least, by their best unit, in order of row; those that equal the k-th best, too.

        vectors: those of the sketch; row_units: (r + 1,) int64; wanted: (r,) bool; query: (dim,) float64 that holds float32 values
        """
        from shards.sketch_kernels import best_rows, best_rows_coarsely, most_of_rows

        asked = self._asked(query)
        coarse = tuple(self.coarse)
        most, most_of_row = _scratch(len(vectors)), np.empty(len(wanted), np.float32)
        n_rows = 0
        for first, last in self._slices(row_units):
            if budget.expired:
                break
            most_of_rows(coarse, row_units, wanted, first, last, asked.numbers, asked.terms, most, most_of_row)
            n_rows = last
        if self.fine is None:
            return *best_rows_coarsely(vectors, query, row_units, most, most_of_row, n_rows, k, floor), n_rows
        question = (asked.numbers, asked.finer, asked.finer_terms)
        sketch = (coarse, tuple(self.fine))
        return *best_rows(vectors, sketch, query, question, row_units, most, most_of_row, n_rows, k, floor), n_rows

    def _asked(self, query: Array) -> "_Asked":
        from shards.sketch_kernels import turn

        turned = np.zeros(2 * self.coarse.codes.shape[1])
        turned[: len(query)] = query
        if self.fine is not None:
            turn(turned, _signs(len(query)), np.empty_like(turned))
        step, numbers = _in_bytes(turned)
        left = turned - step * numbers
        finer_step, finer = _in_bytes(left)
        length = float(np.linalg.norm(query))
        # By Cauchy-Schwarz: what rounding the question changes, and what sums in float64 do, over the centre and the whole vector.
        rounding, finer_rounding = (float(np.linalg.norm(rest)) * self.reach for rest in (left, left - finer_step * finer))
        middle, sums = float(self.centre @ query), 1e-9 * length * (self.reach + float(np.linalg.norm(self.centre)))
        length *= 1.0 + 1e-9
        return _Asked(numbers, (middle + sums + rounding, step, length), finer, (middle, step, finer_step, length, sums + finer_rounding))

    def _slices(self, row_units: Array) -> Iterator[tuple[int, int]]:
        """Rows [first, last) whose codes are read between two looks at the clock."""
        step, first, n_rows = max(_SLICE_BYTES // self.coarse.codes.shape[1], 1), 0, len(row_units) - 1
        while first < n_rows:
            last = max(int(np.searchsorted(row_units, row_units[first] + step, "right")) - 1, first + 1)
            yield first, last
            first = last


_own = threading.local()


def _scratch(n: int) -> Array:
    """(n,) float32 that this thread may write until it asks again: fresh pages would cost a third of a search."""
    if len(getattr(_own, "floats", ())) < n:
        _own.floats = np.empty(n, np.float32)
    return _own.floats[:n]


class _Asked(NamedTuple):
    """A question in bytes, (padded,) int8, and again what that leaves; the terms of both bounds (`shards.sketch_kernels`)."""

    numbers: Array
    terms: tuple[float, float, float]
    finer: Array
    finer_terms: tuple[float, float, float, float, float]


def _in_bytes(values: Array) -> tuple[float, Array]:
    """(step, int8): values are near step x int8."""
    step = float(np.abs(values).max()) / 127.0
    return step, np.rint(values / step if step else values).astype(np.int8)


def sketch_arrays(vectors: Array, centre: Array) -> Arrays:
    """What a segment keeps of its sketch: that of its vectors, or, where they are too few or there is no centre, empty arrays.

    vectors: (u, dim), as kernels take them; centre: (dim,) float64, the mean of the segment, or empty
    """
    if len(vectors) >= LEAST_UNITS and len(centre):
        sketch = Sketch.of(vectors, centre)
        coarse, fine, reach = sketch.coarse, sketch.fine, np.array([sketch.reach])
    else:
        coarse, fine, reach = Codes.empty(0, 0), Codes.empty(0, 0), np.zeros(0)
    named = zip(sum(_ARRAYS, ()), (*coarse, *fine), strict=True)
    return {**dict(named), "reach": reach}


@lru_cache(maxsize=64)
def _signs(dim: int) -> Array:
    """The two changes of sign of `turn`, (2, dim padded to a multiple of 128) float64: bits of SHAKE-256, the same for ever."""
    padded = -(-dim // _BLOCK) * _BLOCK
    drawn = np.frombuffer(hashlib.shake_256(b"sondage sketch").digest(2 * padded // 8), np.uint8)
    return 1.0 - 2.0 * np.unpackbits(drawn).reshape(2, padded)
