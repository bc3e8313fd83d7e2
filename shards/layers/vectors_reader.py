"""Searching one segment's vectors: exact, with canonical float64 scores, by one of two ways that give the same result.

Either every passage in scope is scored, or, where there are some thousands, only those that their sketches do not rule out
(`shards.vector_sketches`).
"""

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shards import vector_sketches
from shards.plan import SpaceQuery
from shards.types import Array, Arrays, Budget, Found, Moments, Scored
from shards.vector_moments import VectorMoments
from shards.vector_sketches import Sketch

_SLICE_COMPONENTS = 1 << 22  # between two looks at the clock: 16 MB, 1 ms from memory, a few from a cold disk


class _Hits(NamedTuple):
    """The best unit of each of the best rows, best first, and its score; n_rows: rows looked at, from the first on."""

    units: Array
    scores: Array
    n_rows: int


class Spans(NamedTuple):
    """The units of a segment's documents: arrays of these names in `shards.layers.vectors`."""

    row_units: Array
    starts: Array
    ends: Array
    in_scope: Array


class VectorReader:
    """See `shards.layers.contract.Reader`. arrays: as in `shards.layers.vectors`; older segments lack a sketch, which is made here."""

    def __init__(self, arrays: Arrays, live: Array):
        self._vectors, self._row_units = arrays["vectors"], arrays["row_units"]
        self._rows = kernel_rows(self._vectors)
        self._starts, self._ends, self._in_scope = arrays["starts"], arrays["ends"], arrays["in_scope"]
        self._live = np.asarray(live, bool)
        self._n_live = np.count_nonzero(self._live)
        self._asked = self._live & self._in_scope  # rows that are scored
        self._n_covered = np.count_nonzero(self._asked)
        self._counts = np.diff(self._row_units)  # units of each row
        self._unit_rows = np.repeat(np.arange(len(self._counts), dtype=np.int32), self._counts)
        unit_is_live = self._live[self._unit_rows]
        self._live_units = np.flatnonzero(unit_is_live)
        self.n_units = len(self._live_units)
        self._sketch = Sketch.opened(arrays, self._rows)
        self._sketching = threading.Lock()
        self._is_hasty = self._sketch is None and len(self._vectors) >= vector_sketches.LEAST_UNITS
        self._moments = self._open_moments(arrays, unit_is_live)

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        vector = self._vector(query)
        wanted = self._live if allowed is None else self._live & allowed
        n_wanted, n_units = np.count_nonzero(wanted), int(self._counts @ wanted)
        hits = self._best(vector, wanted, n_units, k, budget, floor)
        whole = hits.n_rows == len(self._live)
        n_covered = self._n_covered if whole and allowed is None else np.count_nonzero((wanted & self._in_scope)[: hits.n_rows])
        return Found(
            rows=self._unit_rows[hits.units],
            scores=hits.scores,
            starts=self._starts[hits.units],
            ends=self._ends[hits.units],
            n_matched=n_units if whole else int(self._counts[: hits.n_rows] @ wanted[: hits.n_rows]),
            moments=self._moments.along(vector) if self._moments else self._direct_moments(vector),
            rows_covered=n_covered,
            rows_total=n_wanted,
        )

    def best(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> tuple[Array, Array]:
        """Rows (m,) int32 and scores (m,) float64 that `search` finds, without moments, for which it reads a hasty segment's vectors."""
        wanted = self._live if allowed is None else self._live & allowed
        hits = self._best(self._vector(query), wanted, int(self._counts @ wanted), k, budget, floor)
        return self._unit_rows[hits.units], hits.scores

    def _best(self, vector: Array, wanted: Array, n_units: int, k: int, budget: Budget, floor: float) -> "_Hits":
        """wanted: (r,) bool, live rows, which have n_units."""
        if n_units >= vector_sketches.LEAST_UNITS and self._sketch is not None:
            units, scores, n_rows = self._sketch.search(self._rows, self._row_units, wanted, vector, k, floor, budget)
            top = _top(scores, k)
            return _Hits(units[top], scores[top], n_rows)
        return self._search_all(vector, np.flatnonzero(wanted[self._unit_rows]), k, budget)

    def _search_all(self, vector: Array, units: Array, k: int, budget: Budget) -> "_Hits":
        """Scores every unit given, as long as the budget lasts; a document half looked at does not count."""
        scores = self._scores(units, vector, budget)
        n_rows = len(self._live)
        if len(scores) < len(units):
            n_rows = int(np.searchsorted(self._row_units, units[len(scores)], "right")) - 1
            units = units[: np.searchsorted(units, self._row_units[n_rows])]
        rows = self._unit_rows[units]
        offsets = np.concatenate([[0], np.flatnonzero(rows[1:] != rows[:-1]) + 1, [len(units)]]) if len(units) else np.zeros(1, np.int64)
        best, which = _best(scores[: len(units)], offsets)
        top = _top(best, k)
        return _Hits(units[which[top]], best[top], n_rows)

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        from shards.vector_kernels import best_of_rows

        vector = self._vector(query)
        scores, units = np.full(len(rows), np.nan), np.full(len(rows), -1)
        for part in self._slices(rows, len(vector)):
            if budget.expired:
                break
            best_of_rows(self._rows, self._row_units, rows[part], self._asked, vector, scores[part], units[part])
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

    def question_of(self, row: int) -> Array:
        """The first vector of a row that has one: (dim,) float64."""
        return self._vectors[self._row_units[row]].astype(np.float64)

    def sketched(self) -> bool:
        """Whether `best` finds the best rows without scoring all; of a segment written in haste a sketch is made now, once."""
        with self._sketching:
            if self._is_hasty:
                self._sketch, self._is_hasty = Sketch.in_haste(self._vectors), False
        return self._sketch is not None

    @property
    def spans(self) -> Spans:
        """Which units documents have, whether they are live or not."""
        return Spans(self._row_units, self._starts, self._ends, self._in_scope)

    def scores_of(self, queries: Sequence[SpaceQuery], units: Array, budget: Budget) -> Array:
        """Scores of units, (queries, m) float64, the bits that `search` gives; m is smaller than asked when the budget ends.

        units: (n,) int64. All questions are asked in one pass over the vectors.
        """
        from shards.vector_kernels import inner_products_of

        vectors = np.stack([self._vector(query) for query in queries])
        scores = np.empty((len(queries), len(units)))
        step = max(_SLICE_COMPONENTS // max(vectors.shape[1], 1), 1)
        for start in range(0, len(units), step):
            if budget.expired:
                return scores[:, :start]
            part = np.empty((len(queries), len(units[start : start + step])))  # contiguous: the kernel is compiled once
            inner_products_of(self._rows, units[start : start + step], vectors, part)
            scores[:, start : start + step] = part
        return scores

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
            inner_products(self._rows, units[start : start + step], vector, scores[start : start + step])
        return scores

    def _open_moments(self, arrays: Arrays, unit_is_live: Array) -> VectorMoments | None:
        """Moments of the live units; None while scoring all of them at each query costs no more than the matrix product, and where the
        segment was written in haste."""
        n_units, dim = self._vectors.shape
        if self.n_units <= dim or not len(arrays["mean"]):
            return None
        n_dead = n_units - self.n_units
        if n_dead > self.n_units:
            return VectorMoments.of(self._vectors, self._live_units)
        every = VectorMoments(n_units, arrays["mean"], arrays["scatter"])
        return every - VectorMoments.of(self._vectors, np.flatnonzero(~unit_is_live)) if n_dead else every

    def _direct_moments(self, vector: Array) -> Moments:
        return Moments.of(self._scores(self._live_units, vector, Budget()))


def kernel_rows(vectors: Array) -> Array:
    """Vectors as kernels take them: numba knows no float16 on CPUs, so these come as their bits, uint16."""
    return vectors.view(np.uint16) if vectors.dtype == np.float16 else vectors


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
