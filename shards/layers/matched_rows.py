"""A reader for layers that look at all rows of a segment in one go, and know of each how well it matches."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from shards.plan import SpaceQuery
from shards.types import Array, Budget, Found, Scored


@dataclass(frozen=True, slots=True)
class Matches:
    """How each row matches. scores: (n,) float64 of its best unit, -inf where none matches; starts, ends: (n,) int64, the span of that
    unit, 0 where none does; counts: (n,) int64, units that match."""

    scores: Array
    starts: Array
    ends: Array
    counts: Array

    @classmethod
    def of_units(cls, n_rows: int, rows: Array, scores: Array | float, starts: Array, ends: Array, counts: Array | int = 1) -> "Matches":
        """From the units that match, in any order: (m,) each, or one value for all. Of a row's best the first in the text counts."""
        scores = np.broadcast_to(scores, rows.shape)
        order = np.lexsort((starts, -scores, rows))
        best = order[np.flatnonzero(np.diff(rows[order], prepend=-1))]
        n_matched = np.bincount(rows, np.broadcast_to(counts, rows.shape), n_rows).astype(np.int64)
        found = cls(np.full(n_rows, -inf), np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64), n_matched)
        found.scores[rows[best]], found.starts[rows[best]], found.ends[rows[best]] = scores[best], starts[best], ends[best]
        return found


class MatchedRows:
    """See `shards.layers.contract.Reader`; for layers with a null of rarity.

    built: (n,) bool, rows that the space was built for and could read. live: (n,) bool. matches(query, budget): of all rows, dead ones
    too; None where the budget ended.
    """

    def __init__(self, built: Array, live: Array, n_units: int, matches: Callable[[SpaceQuery, Budget], Matches | None]):
        self.n_units = n_units
        self._live = np.asarray(live, np.bool_)
        self._searchable = self._live & built
        self._matches = matches

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -inf) -> Found:
        scope = self._live if allowed is None else self._live & allowed
        looked, n_scope = self._searchable & scope, int(scope.sum())
        found = None if budget.expired else self._matches(query, budget)
        if found is None:
            nowhere = np.zeros(0, np.int64)
            return Found(nowhere.astype(np.int32), np.zeros(0), nowhere, nowhere, 0, None, 0, n_scope)
        rows = np.flatnonzero(looked & (found.scores > -inf))
        rows = rows[np.argsort(-found.scores[rows], kind="stable")[:k]].astype(np.int32)
        n_matched = int(found.counts[looked].sum())
        return Found(rows, found.scores[rows], found.starts[rows], found.ends[rows], n_matched, None, int(looked.sum()), n_scope)

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        found = None if budget.expired else self._matches(query, budget)
        if found is None:
            return Scored(np.full(len(rows), np.nan), np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64))
        return Scored(np.where(self._searchable[rows], found.scores[rows], np.nan), found.starts[rows], found.ends[rows])

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        raise TypeError("a layer with a null of rarity has no scores of units that do not match")
