"""Searching one segment's vectors: exact, with canonical float64 scores, by one of three ways that give the same result.

The scan scores every passage in scope. In segments of some thousands a sketch of one byte per component leaves the few that can
be a row's best (`shards.vector_sketches`). In large segments faiss names candidates in float32 first
(`shards.vector_candidates`) and only those are scored; where that is not proven to be complete, the scan follows.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shards.plan import SpaceQuery
from shards.types import Array, Arrays, Budget, Found, Moments, Scored
from shards.vector_candidates import best_units
from shards.vector_moments import VectorMoments
from shards.vector_sketches import Sketch

_SLICE_COMPONENTS = 1 << 22  # between two looks at the clock: 16 MB, 1 ms from memory, a few from a cold disk

# Measured with both ways interleaved on a busy machine (k 100, ms, scan / faiss; 256 and 384 dimensions):
# 5k .79 / .46, .50 / .49; 20k 1.9 / 1.4, 2.7 / 2.4; 100k 9.0 / 6.5, 13 / 10; 300k 31 / 18, 43 / 31. Where a
# filter lets half the documents through faiss still wins; at a third they are even.
_FLAT_UNITS = 16_384  # in smaller segments there is nothing to win, and faiss takes .1 s to import
_FLAT_SHARE = 0.5  # of the segment's units that must be wanted: faiss looks at all of them
_FLAT_UNITS_PER_HIT = 128  # even at 60 to 120: keeping longer lists costs what the search saves
_SKETCH_UNITS = 1_024  # wanted at least; a segment of so many keeps a sketch, a quarter of its vectors' bytes, unless faiss has it


class _Hits(NamedTuple):
    """The best unit of each of the best rows, best first, and its score; n_rows: rows looked at, from the first on."""

    units: Array
    scores: Array
    n_rows: int


class VectorReader:
    """See `shards.layers.contract.Reader`. arrays: as in `shards.layers.vectors`.

    of_unit_length: whether all vectors and questions are; else every score is computed, as the bounds of the fast ways are for these.
    """

    def __init__(self, arrays: Arrays, live: Array, of_unit_length: bool = True):
        self._of_unit_length = of_unit_length
        self._vectors, self._row_units = arrays["vectors"], arrays["row_units"]
        self._starts, self._ends, self._in_scope = arrays["starts"], arrays["ends"], arrays["in_scope"]
        self._live = np.asarray(live, bool)
        self._n_live = np.count_nonzero(self._live)
        self._asked = self._live & self._in_scope  # rows that are scored
        self._n_covered = np.count_nonzero(self._asked)
        counts = np.diff(self._row_units)
        self._unit_rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        unit_is_live = self._live[self._unit_rows]
        self._live_units = np.flatnonzero(unit_is_live)
        self.n_units = len(self._live_units)
        self._live_offsets = self._offsets(self._live_units)
        self._sketch = Sketch(self._vectors) if of_unit_length and _SKETCH_UNITS <= len(self._vectors) < _FLAT_UNITS else None
        self._moments = self._open_moments(arrays, unit_is_live)

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        vector = self._vector(query)
        if allowed is None:
            wanted, units, offsets, n_wanted = self._live, self._live_units, self._live_offsets, self._n_live
        else:
            wanted = self._live & allowed
            units, n_wanted = np.flatnonzero(wanted[self._unit_rows]), np.count_nonzero(wanted)
            offsets = self._offsets(units)
        hits = None
        if self._of_unit_length and len(units) >= max(_FLAT_UNITS, _FLAT_SHARE * len(self._vectors), _FLAT_UNITS_PER_HIT * k):
            hits = self._search_flat(vector, wanted, k, budget)
        elif self._sketch is not None and len(units) >= _SKETCH_UNITS and not budget.expired:
            best, scores = self._sketch.search(self._vectors, units, offsets, vector, k, floor)
            top = _top(scores, k)
            hits = _Hits(best[top], scores[top], len(self._live))
        if hits is None:
            hits = self._search_scan(vector, units, offsets, k, budget)
        whole = hits.n_rows == len(self._live)
        n_covered = self._n_covered if whole and allowed is None else np.count_nonzero((wanted & self._in_scope)[: hits.n_rows])
        return Found(
            rows=self._unit_rows[hits.units],
            scores=hits.scores,
            starts=self._starts[hits.units],
            ends=self._ends[hits.units],
            n_matched=len(units) if whole else int(units.searchsorted(self._row_units[hits.n_rows])),
            moments=self._moments.along(vector) if self._moments else self._direct_moments(vector),
            rows_covered=n_covered,
            rows_total=n_wanted,
        )

    def _search_scan(self, vector: Array, units: Array, offsets: Array, k: int, budget: Budget) -> "_Hits":
        """Scores every unit given."""
        scores = self._scores(units, vector, budget)
        if len(scores) == len(units):
            return self._best_rows(units, offsets, scores, k, len(self._live))
        n_rows = self._n_whole_rows(int(units[len(scores)]))
        units = units[: np.searchsorted(units, self._row_units[n_rows])]
        return self._best_rows(units, self._offsets(units), scores[: len(units)], k, n_rows)

    def _search_flat(self, vector: Array, wanted: Array, k: int, budget: Budget) -> "_Hits | None":
        """The same from faiss's candidates, scored anew; None where they may lack one that belongs to the k best."""
        n = int(k * len(wanted) / max(wanted.sum(), 1)) + 1
        candidates = best_units(self._vectors, vector.astype(np.float32), n, budget)
        n_rows = self._n_whole_rows(candidates.n_looked)
        units = candidates.units[: np.searchsorted(candidates.units, self._row_units[n_rows])]
        units = units[wanted[self._unit_rows[units]]]
        hits = self._best_rows(units, self._offsets(units), self._scores(units, vector, Budget()), k, n_rows)
        # Units of a score above the ceiling are all here: each row's best, and the first of equals.
        complete = candidates.ceiling == -np.inf or (len(hits.units) == k and hits.scores[-1] > candidates.ceiling)
        return hits if complete else None

    def _n_whole_rows(self, n_units: int) -> int:
        """How many rows have all their passages among the first n units: a document half looked at does not count."""
        return int(np.searchsorted(self._row_units, n_units, "right")) - 1

    def _best_rows(self, units: Array, offsets: Array, scores: Array, k: int, n_rows: int) -> "_Hits":
        best, which = _best(scores, offsets)
        top = _top(best, k)
        return _Hits(units[which[top]], best[top], n_rows)

    def _offsets(self, units: Array) -> Array:
        """Where each row's part of ascending units begins, and the end: (rows + 1,) int64."""
        rows = self._unit_rows[units]
        return np.concatenate([[0], np.flatnonzero(rows[1:] != rows[:-1]) + 1, [len(units)]]) if len(units) else np.zeros(1, np.int64)

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        from shards.vector_kernels import best_of_rows

        vector = self._vector(query)
        scores, units = np.full(len(rows), np.nan), np.full(len(rows), -1)
        for part in self._slices(rows, len(vector)):
            if budget.expired:
                break
            best_of_rows(self._vectors, self._row_units, rows[part], self._asked, vector, scores[part], units[part])
        spans = np.zeros((2, len(rows)), np.int64)
        known = units >= 0
        spans[:, known] = self._starts[units[known]], self._ends[units[known]]
        return Scored(scores, spans[0], spans[1])

    def _slices(self, rows: Array, dim: int) -> Iterator[slice]:
        """Rows in portions to be scored between two looks at the clock."""
        before = np.cumsum(self._row_units[rows + 1] - self._row_units[rows]) * dim
        start = 0
        while start < len(rows):
            done = before[start - 1] if start else 0
            stop = max(int(before.searchsorted(done + _SLICE_COMPONENTS, "right")), start + 1)
            yield slice(start, stop)
            start = stop

    @property
    def rows(self) -> Array:
        """Live rows that have a vector: (m,) int64, ascending."""
        return np.flatnonzero(self._asked & (np.diff(self._row_units) > 0))

    def vector_of(self, row: int) -> Array:
        """The first vector of a row that has one: (dim,) float64."""
        return self._vectors[self._row_units[row]].astype(np.float64)

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        return self._scores(self._live_units, self._vector(query), Budget()), self._unit_rows[self._live_units]

    def _vector(self, query: SpaceQuery) -> Array:
        vector = np.asarray(query.payload, np.float64)
        assert not len(self._vectors) or vector.shape == self._vectors.shape[1:], "a query of another space"
        return vector

    def _scores(self, units: Array, vector: Array, budget: Budget) -> Array:
        """Scores of units, (m,) float64; m is smaller than asked when the budget ends."""
        from shards.vector_kernels import inner_products

        scores = np.empty(len(units))
        step = max(_SLICE_COMPONENTS // max(len(vector), 1), 1)
        for start in range(0, len(units), step):
            if budget.expired:
                return scores[:start]
            inner_products(self._vectors, units[start : start + step], vector, scores[start : start + step])
        return scores

    def _open_moments(self, arrays: Arrays, unit_is_live: Array) -> VectorMoments | None:
        """Moments of the live units; None while scoring all of them at each query costs no more than the matrix product."""
        n_units, dim = self._vectors.shape
        if self.n_units <= dim:
            return None
        n_dead = n_units - self.n_units
        if n_dead > self.n_units:
            return VectorMoments.of(self._vectors, self._live_units)
        every = VectorMoments(n_units, arrays["mean"], arrays["scatter"])
        return every - VectorMoments.of(self._vectors, np.flatnonzero(~unit_is_live)) if n_dead else every

    def _direct_moments(self, vector: Array) -> Moments:
        return Moments.of(self._scores(self._live_units, vector, Budget()))


def _best(scores: Array, offsets: Array) -> tuple[Array, Array]:
    from shards.vector_kernels import best_units

    best, which = np.empty(len(offsets) - 1), np.empty(len(offsets) - 1, np.int64)
    best_units(scores, offsets, best, which)
    return best, which


def _top(scores: Array, k: int) -> Array:
    """Places of the k best scores, best first, ties in order of place."""
    places = np.arange(len(scores))
    if k < len(scores):
        places = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
    return places[np.argsort(-scores[places], kind="stable")][:k]
