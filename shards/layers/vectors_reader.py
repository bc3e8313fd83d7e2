"""Searching one segment's vectors: every passage in scope is scored, in canonical float64, so nothing is approximate.

One pass of `inner_products` costs 1.5 times faiss's flat float32 search. What that saves: candidates, a margin for the float32
error, a second scoring of finalists, and any dependence of results on batch, BLAS or threads.
"""

import numpy as np

from shards.plan import SpaceQuery
from shards.types import Array, Arrays, Budget, Found, Moments, Scored
from shards.vector_moments import VectorMoments

_SLICE_COMPONENTS = 1 << 22  # between two looks at the clock: 16 MB, 1 ms from memory, a few from a cold disk


class VectorReader:
    """See `shards.layers.contract.Reader`. arrays: as in `shards.layers.vectors`."""

    def __init__(self, arrays: Arrays, live: Array):
        self._vectors, self._row_units = arrays["vectors"], arrays["row_units"]
        self._starts, self._ends, self._in_scope = arrays["starts"], arrays["ends"], arrays["in_scope"]
        self._live = np.asarray(live, bool)
        self._n_live = int(self._live.sum())
        counts = np.diff(self._row_units)
        self._unit_rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        unit_is_live = self._live[self._unit_rows]
        self._live_units = np.flatnonzero(unit_is_live)
        self.n_units = len(self._live_units)
        self._moments = self._open_moments(arrays, unit_is_live)

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget) -> Found:
        vector = self._vector(query)
        if allowed is None:
            units, rows_total, in_scope = self._live_units, self._n_live, self._live & self._in_scope
        else:
            wanted = self._live & allowed
            in_scope = wanted & self._in_scope
            rows_total = int(wanted.sum())
            units = self._live_units if rows_total == self._n_live else np.flatnonzero(wanted[self._unit_rows])
        scores = self._scores(units, vector, budget)
        n_scored = len(scores)
        unit_rows = self._unit_rows[units[:n_scored]]
        rows_covered = int(in_scope.sum())
        if n_scored < len(units):
            first_late = int(self._unit_rows[units[n_scored]])  # it and all after it count as not looked at
            n_scored = int(np.searchsorted(unit_rows, first_late))
            scores, unit_rows = scores[:n_scored], unit_rows[:n_scored]
            rows_covered = int(in_scope[:first_late].sum())
        firsts = np.flatnonzero(np.r_[True, unit_rows[1:] != unit_rows[:-1]][:n_scored])
        best, which = _best(scores, np.r_[firsts, n_scored])
        top = _top(best, k)
        chosen = units[which[top]]
        return Found(
            rows=unit_rows[firsts[top]],
            scores=best[top],
            starts=self._starts[chosen],
            ends=self._ends[chosen],
            n_matched=n_scored,
            moments=self._moments.along(vector) if self._moments else self._direct_moments(vector),
            rows_covered=rows_covered,
            rows_total=rows_total,
        )

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        rows = np.asarray(rows, np.int64)
        vector = self._vector(query)
        asked = self._live[rows] & self._in_scope[rows]
        counts = np.where(asked, self._row_units[rows + 1] - self._row_units[rows], 0)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        units = np.arange(offsets[-1]) + np.repeat(self._row_units[rows] - offsets[:-1], counts)
        scores = self._scores(units, vector, budget)
        best, which = _best(scores, np.minimum(offsets, len(scores)))
        best[~asked | (offsets[1:] > len(scores))] = np.nan
        chosen = units[np.maximum(which, 0)] if len(units) else np.zeros(len(rows), np.int64)
        known = np.isfinite(best)
        starts, ends = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        starts[known], ends[known] = self._starts[chosen[known]], self._ends[chosen[known]]
        return Scored(best, starts, ends)

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
