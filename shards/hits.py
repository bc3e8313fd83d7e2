"""What one space finds, in one segment after the other, as if they were one: columns of numbers until a cut is made."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shards.types import Array, Found, Moments, merge_moments


class Columns(NamedTuple):
    """Documents, each once, in no order. numbers: (m,) int64, document numbers; scores, starts, ends as in `Found`."""

    numbers: Array
    scores: Array
    starts: Array
    ends: Array


class Part(NamedTuple):
    """What one segment gave. numbers: (m,) int64 document numbers, -1 for an entry without a live document; keys: (m,) uint64, the
    first 8 bytes of each content hash, which order equal scores (`shards.segment.hash_order`)."""

    numbers: Array
    keys: Array
    found: Found


class Hits:
    """The hits of one space, of which the k best are wanted. distinct: no document comes twice (in layers over entries one may).

    best: scores of the k best so far, in no order; floor: what a further hit must reach to be among them.
    """

    def __init__(self, k: int, distinct: bool):
        self.k, self._distinct = k, distinct
        self._parts: list[Part] = []
        self.best = np.zeros(0)

    def floor(self, best: Array) -> float:
        """The score below which nothing is among the k best any more, if these are the best so far."""
        return float(best.min()) if len(best) == self.k and self._distinct else -np.inf

    def with_these(self, best: Array, scores: Array) -> Array:
        """The scores of the k best of both."""
        together = np.concatenate([best, scores])
        return together if len(together) <= self.k else np.partition(together, len(together) - self.k)[-self.k :]

    def add(self, parts: Sequence[Part], best: Array) -> None:
        """Further segments' hits; best: as they have become by them."""
        self._parts += parts
        self.best = best

    @property
    def moments(self) -> Moments | None:
        """Of the scores of all live units."""
        return merge_moments(part.found.moments for part in self._parts)

    @property
    def n_matched(self) -> int:
        """Units matched."""
        return sum(part.found.n_matched for part in self._parts)

    def columns(self) -> Columns:
        """The k best documents, each with its best score."""
        if not self._parts:
            return Columns(*(np.zeros(0, dtype) for dtype in (np.int64, np.float64, np.int64, np.int64)))
        numbers, keys = (np.concatenate([getattr(part, name) for part in self._parts]) for name in ("numbers", "keys"))
        columns = [np.concatenate([getattr(part.found, name) for part in self._parts]) for name in ("scores", "starts", "ends")]
        if not self._distinct or len(numbers) > self.k:
            order = np.lexsort((keys, -columns[0]))
            if not self._distinct:
                order = order[numbers[order] >= 0]
                _, first = np.unique(numbers[order], return_index=True)
                order = order[np.sort(first)]
            kept = order[: self.k]
            numbers, columns = numbers[kept], [column[kept] for column in columns]
        return Columns(numbers, *columns)
