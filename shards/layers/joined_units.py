"""Where the units of a document go when segments are joined: of layers that keep several, in the order of their rows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shards.types import Array, Arrays


class Move(NamedTuple):
    """Units of one part and their places in the joined segment: (m,) int64 each."""

    arrays: Arrays
    sources: Array
    targets: Array


class JoinedUnits:
    """The rows of a joined segment and what moves into them.

    parts: as `Layer.merge` has them, with the arrays row_units (n + 1,), starts, ends (u,) and in_scope (n,) of each; n_rows: of the
    joined segment. row_units: (n_rows + 1,) int64; starts, ends: (n_units,) int64; in_scope: (n_rows,) bool
    """

    def __init__(self, parts: Sequence[tuple[Arrays, Array]], n_rows: int):
        counts = np.zeros(n_rows, np.int64)
        self.in_scope = np.zeros(n_rows, bool)
        for arrays, new_rows in parts:
            kept = new_rows >= 0
            counts[new_rows[kept]] = np.diff(arrays["row_units"])[kept]
            self.in_scope[new_rows[kept]] = arrays["in_scope"][kept]
        self.row_units = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.n_units = int(self.row_units[-1])
        self.moves = []
        for arrays, new_rows in parts:
            old = np.flatnonzero(new_rows >= 0)
            old = old[np.diff(arrays["row_units"])[old] > 0]
            if len(old):
                sources = ranges(arrays["row_units"][old], arrays["row_units"][old + 1])
                targets = ranges(self.row_units[new_rows[old]], self.row_units[new_rows[old] + 1])
                self.moves.append(Move(arrays, sources, targets))
        self.starts, self.ends = np.empty(self.n_units, np.int64), np.empty(self.n_units, np.int64)
        for move in self.moves:
            self.starts[move.targets] = move.arrays["starts"][move.sources]
            self.ends[move.targets] = move.arrays["ends"][move.sources]


def ranges(starts: Array, ends: Array) -> Array:
    """The numbers of all ranges [start, end), one after the other, int64."""
    counts = ends - starts
    before = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(starts - before, counts)
