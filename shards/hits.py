"""What one space found, in one segment, shard or several shards: columns of numbers until a cut is made."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shards.types import Array, Moments, merge_moments


@dataclass(frozen=True, slots=True)
class Hits:
    """`shards.types.Found` in document numbers of the shard, or of several shards numbered one after the other.

    numbers: (m,) int64, -1 for an entry without a live document. keys: (m,) uint64, the first 8 bytes of each content hash, which
    order equal scores (`shards.segment.hash_order`). The rest as in `Found`.
    """

    numbers: Array
    keys: Array
    scores: Array
    starts: Array
    ends: Array
    moments: Moments | None
    n_matched: int
    covered: int
    total: int

    @classmethod
    def none(cls, total: int) -> "Hits":
        """Nothing looked at, of so many rows."""
        return cls(*(np.zeros(0, t) for t in (np.int64, np.uint64, float, np.int64, np.int64)), None, 0, 0, total)

    @classmethod
    def concatenate(cls, parts: Sequence["Hits"], offsets: Sequence[int] = ()) -> "Hits":
        """Several parts' hits one after the other. offsets: added to each part's numbers; none: they are numbered together."""
        if len(parts) == 1 and not any(offsets):
            return parts[0]
        if not parts:
            return cls.none(0)
        numbers = [p.numbers + offset for p, offset in zip(parts, offsets, strict=True)] if offsets else [p.numbers for p in parts]
        columns = [np.concatenate([getattr(p, name) for p in parts]) for name in ("keys", "scores", "starts", "ends")]
        return cls(
            np.concatenate(numbers),
            *columns,
            merge_moments(p.moments for p in parts),
            sum(p.n_matched for p in parts),
            sum(p.covered for p in parts),
            sum(p.total for p in parts),
        )

    def best(self, k: int) -> "Hits":
        """The k best distinct documents in ranking order; of a document's several entries the best."""
        known = np.flatnonzero(self.numbers >= 0)
        order = known[np.lexsort((self.keys[known], -self.scores[known]))]
        _, first = np.unique(self.numbers[order], return_index=True)
        order = order[np.sort(first)[:k]]
        return Hits(
            self.numbers[order], self.keys[order], self.scores[order], self.starts[order], self.ends[order], self.moments,
            self.n_matched, self.covered, self.total,
        )  # fmt: skip

    def top(self, k: int) -> Array:
        """Numbers of the k best, of distinct documents, in no order."""
        return self.numbers if len(self.numbers) <= k else self.numbers[np.lexsort((self.keys, -self.scores))[:k]]
