"""A segment's text in pieces of whole lines, each scanned at once, on all cores."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shards.documents import Documents
from shards.types import Array, Budget

PIECE_BYTES = 1 << 20  # 1 ms for compiled loops, which look at no clock; RE2 looks at it in between
AHEAD = 2  # parts a core that a search has given to the threads and not taken back
MIN_SHARED_BYTES = 4 << 20  # less than this one thread scans before others have begun


@dataclass(frozen=True, slots=True)
class Part:
    """Lines that are scanned at once, and what they are of.

    low, high: rows whose lines these are; done_low, done_high: rows that are complete once it is scanned.
    starts, offsets: where the stretches it is made of begin in the documents' text, and in it; (n,) int64.
    """

    text: Array
    low: int
    high: int
    done_low: int
    done_high: int
    starts: Array
    offsets: Array


def pieces(documents: Documents, wanted: Array) -> Iterator[Part]:
    """The wanted rows, (rows,) bool, from the first to the last."""
    for low, high in _runs(documents, wanted):
        position, stop = int(documents.starts[low]), int(documents.ends[high - 1]) + 1
        while position < stop:
            end = _line_behind(documents.text, min(position + PIECE_BYTES, stop), stop)
            first, last = np.searchsorted(documents.ends[low:high], (position, end)) + low  # whose closing b"\n" lies in it
            holds = min(int(last) + 1, high)
            where = np.array([position], np.int64)
            yield Part(documents.text[position:end], int(first), holds, int(first), int(last), where, np.zeros(1, np.int64))
            position = end


def _runs(documents: Documents, wanted: Array) -> Iterator[tuple[int, int]]:
    """Wanted rows as ranges [low, high) whose texts follow one another."""
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return
    broken = (np.diff(rows) > 1) | (documents.starts[rows[1:]] != documents.ends[rows[:-1]] + 1)
    edges = np.flatnonzero(broken) + 1
    for low, high in zip(np.r_[0, edges], np.r_[edges, len(rows)], strict=True):
        yield int(rows[low]), int(rows[high - 1]) + 1


def _line_behind(text: Array, at: int, stop: int) -> int:
    """The beginning of the first line at or behind a place; text[stop - 1] is a line feed."""
    from shards.text_kernels import line_behind

    return min(int(line_behind(text, np.uint64(at - 1), np.uint64(stop))) + 1, stop)


def gathered(documents: Documents, wanted: Array, ranges: Array) -> Iterator[Part]:
    """The lines that ranges touch, copied together: so few bytes that the copy costs nothing, and loops are as long as ever."""
    from shards.text_kernels import widen

    rows = np.flatnonzero(wanted)
    starts, stops = widen(documents.text, ranges, documents.starts[rows], documents.ends[rows] + 1)
    breaks = np.searchsorted(np.cumsum(stops - starts), np.arange(PIECE_BYTES, int((stops - starts).sum()), PIECE_BYTES)) + 1
    done = int(rows[0]) if len(rows) else 0
    edges = np.unique(np.r_[0, breaks, len(starts)])
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        first, last = np.searchsorted(documents.starts, (starts[low], starts[high - 1]), side="right") - 1
        behind = len(documents) if high == len(starts) else int(np.searchsorted(documents.ends, starts[high]))
        offsets = np.r_[0, np.cumsum(stops[low:high] - starts[low:high])]
        text = copied(documents.text, starts[low:high], stops[low:high])
        yield Part(text, int(first), int(last) + 1, done, behind, starts[low:high], offsets[:-1])
        done = behind
    if len(rows) and done <= rows[-1]:
        yield Part(documents.text[:0], done, done, done, len(documents), np.zeros(1, np.int64), np.zeros(1, np.int64))


def copied(text: Array, starts: Array, stops: Array) -> Array:
    """Stretches of a text, one behind the other."""
    from shards.text_kernels import gather

    copy = gather(text, starts, stops, int((stops - starts).sum()))
    copy.flags.writeable = False  # as texts are: kernels are compiled once
    return copy


def groups(documents: Documents, rows: Array) -> list[Array]:
    """Some rows, (n,) ascending, in groups of about a piece's bytes."""
    sizes = np.cumsum(documents.ends[rows] - documents.starts[rows])
    return np.split(rows, np.searchsorted(sizes, np.arange(PIECE_BYTES, sizes[-1], PIECE_BYTES)) + 1) if len(rows) else []


@lru_cache(maxsize=1)
def pool() -> ThreadPoolExecutor:
    """Threads for all who scan: a thread a core."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="lines")


def on_all_cores(parts: Iterable[Part], find: Callable[[Part], Array | None], budget: Budget) -> Iterator[tuple[Part, Array | None]]:
    """Each part with the lines that are found in it, in order, until the budget ends. Few are given out ahead: threads are all searches',
    and one that has little time must not wait for all parts of one that has much."""

    def scanned(part: Part) -> Array | None:
        return None if budget.expired else find(part)

    known = list(parts)
    if sum(len(part.text) for part in known) < MIN_SHARED_BYTES:
        yield from ((part, scanned(part)) for part in known)
        return
    given: deque[tuple[Part, Future[Array | None]]] = deque()
    try:
        for part in known:
            given.append((part, pool().submit(scanned, part)))
            if len(given) > AHEAD * (os.cpu_count() or 1):
                part, found = given.popleft()
                yield part, found.result()
        while given:
            part, found = given.popleft()
            yield part, found.result()
    finally:  # one that raised, or a caller who wants no more
        for _, found in given:
            found.cancel()
