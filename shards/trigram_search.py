"""Which blocks, or documents, may hold what a pattern needs: its strings' trigrams, looked up and intersected.

All that is left out holds no match; what is left need not hold one, since trigrams may stand apart.
"""

import numpy as np

from shards.text_pattern import AllOf, AnyOf, Requirement
from shards.types import Array, Arrays


class TrigramSearch:
    """The index of one segment, asked.

    starts: (rows,) int64, where each document begins in the text of the segment.
    """

    def __init__(self, arrays: Arrays, starts: Array):
        self._codes, self._group_keys, self._group_bits = arrays["codes"], arrays["group_keys"], arrays["group_bits"]
        self._first_blocks, self._block_ends, self._starts = arrays["first_blocks"], arrays["block_ends"], starts

    @property
    def n_blocks(self) -> int:
        return len(self._block_ends)

    def blocks(self, needed: Requirement) -> Array | None:
        """Blocks that may hold all of it together, (n_blocks,) bool; None where nothing can be said."""
        if isinstance(needed, AnyOf):
            found = [self.blocks(part) for part in needed.of]
            return None if any(mask is None for mask in found) else np.logical_or.reduce(found)
        parts = needed.of if isinstance(needed, AllOf) else (needed,)
        masks = [self.blocks(part) for part in parts if not isinstance(part, bytes | None)]
        # Strings together, so that the rarest trigram of all of them comes first.
        masks.append(self._holding([part for part in parts if isinstance(part, bytes)]))
        return _all([mask for mask in masks if mask is not None])

    def documents(self, needed: Requirement) -> Array | None:
        """Documents that may hold all of it anywhere, (rows,) bool; None where nothing can be said."""
        if isinstance(needed, AllOf | AnyOf):
            found = [self.documents(part) for part in needed.of]
            if isinstance(needed, AnyOf):
                return None if any(mask is None for mask in found) else np.logical_or.reduce(found)
            return _all([mask for mask in found if mask is not None])
        if needed is None:
            return None
        lines = [self._holding([line]) for line in needed.split(b"\n")]  # a line lies in one block, the next one may lie in another
        return _all([self._rows_of(mask) for mask in lines if mask is not None])

    def blocks_of(self, rows: Array) -> Array:
        """The blocks of some documents: (n_blocks,) bool. rows: (rows,) bool."""
        return np.repeat(rows, np.diff(self._first_blocks))

    def ranges(self, blocks: Array) -> Array:
        """Where the blocks of a mask lie in the text: (m, 2) int64, ascending, adjacent ones as one."""
        chosen = np.flatnonzero(blocks)
        if not len(chosen):
            return np.zeros((0, 2), np.int64)
        rows = np.searchsorted(self._first_blocks, chosen, "right") - 1
        begins = np.where(chosen == self._first_blocks[rows], 0, self._block_ends[chosen - 1].astype(np.int64))
        ranges = np.stack([begins, self._block_ends[chosen]], axis=1).astype(np.int64) + self._starts[rows, None]
        heads = np.concatenate([[True], ranges[1:, 0] != ranges[:-1, 1]])
        return np.stack([ranges[heads, 0], ranges[np.concatenate([heads[1:], [True]]), 1]], axis=1)

    def _rows_of(self, blocks: Array) -> Array:
        rows = np.zeros(len(self._first_blocks) - 1, np.bool_)
        rows[np.searchsorted(self._first_blocks, np.flatnonzero(blocks), "right") - 1] = True
        return rows

    def _holding(self, strings: list[bytes]) -> Array | None:
        """Blocks that hold all trigrams of folded strings, or as many as are worth it; None where they have none."""
        from shards.block_list_kernels import holding

        keys = sorted({key for string in strings for key in trigrams(string)})
        if not keys:
            return None
        bits = holding(self._codes, self._group_keys, self._group_bits, self.n_blocks, np.array(keys, np.int64))
        return np.unpackbits(bits.astype("<u8", copy=False).view(np.uint8), bitorder="little", count=self.n_blocks).view(np.bool_)


def _all(masks: list[Array]) -> Array | None:
    return np.logical_and.reduce(masks) if masks else None


def trigrams(string: bytes) -> set[int]:
    """The trigrams of a folded string, but for those with a line feed, which no index has."""
    return {int.from_bytes(string[i : i + 3], "big") for i in range(len(string) - 2) if b"\n" not in string[i : i + 3]}
