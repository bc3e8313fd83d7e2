"""Encodings of a segment's documents: those that are kept, then the others, in portions that a crash may cost."""

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from shards.documents import Documents
from shards.layers.contract import Encodings, Progress
from shards.types import Array

LOOK_UP_ROWS = 4096  # documents asked of kept encodings at once, to bound what is held twice
PORTION_S = 20.0  # of encoding between two writes, which is what a crash can cost
_PORTION_UNITS = (64, 65_536)  # least and most passages of a portion: packs have a price, and what is encoded is held

Tell = Callable[[int], None]  # how many passages of a portion are encoded


def encodings(
    documents: Documents,
    row_units: Array,
    known: Encodings | None,
    progress: Progress | None,
    encode: Callable[[Array, Tell | None], Sequence[Array]],
    fits: Callable[[Array, int], bool],
    first_portion: int,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[Array, Sequence[Array]]]:
    """Yields (rows, the encoding of each) until every row with passages had its turn; new ones are kept before they are given.

    row_units: (n + 1,) int64, row i has the passages row_units[i] : row_units[i + 1]
    encode: encodings of these rows, one each. fits: whether a kept one is of so many passages
    first_portion: passages until encodings are written for the first time; then as many as take `PORTION_S` at the rate measured
    """
    counts = np.diff(row_units)
    todo = np.flatnonzero(counts)
    if known is not None:
        unknown = []
        for start in range(0, len(todo), LOOK_UP_ROWS):
            rows = todo[start : start + LOOK_UP_ROWS]
            kept = known.get(documents.hashes[rows])
            found = [kept.get(documents.hashes[row].tobytes()) for row in rows]
            fit = np.array([e is not None and fits(e, int(counts[row])) for e, row in zip(found, rows, strict=True)], bool)
            if fit.any():
                yield rows[fit], [e for e, good in zip(found, fit, strict=True) if good]
            unknown.append(rows[~fit])
        todo = np.concatenate(unknown) if unknown else todo
    before = np.concatenate([[0], np.cumsum(counts[todo])])
    total, at, wanted = int(before[-1]), 0, first_portion
    while at < len(todo):
        n_done = int(before[at])
        stop = max(int(np.searchsorted(before, n_done + wanted, "right")) - 1, at + 1)
        rows, at = todo[at:stop], stop
        tell = (lambda n, n_done=n_done: progress("encode", n_done + n, total)) if progress else None
        begun = clock()
        new = encode(rows, tell)
        if known is not None:
            known.put({documents.hashes[row].tobytes(): e for row, e in zip(rows, new, strict=True)})
        wanted = next_portion(int(counts[rows].sum()), clock() - begun)
        yield rows, new


def next_portion(n_units: int, seconds: float) -> int:
    """Passages that take `PORTION_S` at the rate of n_units in so many seconds, within bounds."""
    least, most = _PORTION_UNITS
    return int(min(max(n_units * PORTION_S / max(seconds, 1e-9), least), most))
