"""Which lines of packed renditions match a text query, and how many of each document: in pieces of whole lines, on all cores.

What a piece is searched with is decided once (`shards/text_finders.py`); AND, OR and NOT join sorted lists of lines. A query that
speaks of documents asks lines first, and narrows the documents with each part.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import repeat
from typing import Any

import numpy as np

from shards.documents import Documents
from shards.text_automaton import automaton
from shards.text_finders import Finder, OutOfTime, compile_regex, finder, first_span, search
from shards.text_pattern import AllOf, AnyOf, Formula, Leaf, MultiLine, NotOf, TextQuery, leaves
from shards.types import Array, Budget

PIECE_BYTES = 1 << 20  # 1 ms for compiled loops, which look at no clock; RE2 looks at it in between
MIN_SHARED_BYTES = 4 << 20  # less than this one thread scans before others have begun


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Per row of a segment, (rows,) int64 each: matching lines (matches, of a pattern that spans lines), and where the line ends in
    which the first one begins, in bytes of the document.

    complete: (rows,) bool, the rows that were asked for and read to the end; the numbers of others mean nothing.
    """

    counts: Array
    firsts: Array
    complete: Array

    @classmethod
    def none(cls, n_rows: int) -> "LineCounts":
        return cls(np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64), np.zeros(n_rows, np.bool_))


def scan(documents: Documents, wanted: Array, query: TextQuery, budget: Budget, ranges: Array | None = None) -> LineCounts:
    """Matches of the wanted rows, (rows,) bool, in order of the text, until the budget ends.

    ranges: (m, 2) int64 positions in `documents.text`, ascending: only lines that one of them touches are looked at. For queries
    that speak of lines; those that speak of documents are narrowed by `wanted`.
    """
    if query.unit == "document":
        return _scan_documents(documents, wanted, query.formula, budget)
    return _scan_lines(documents, wanted, query.formula, budget, ranges)


# --- Lines -------------------------------------------------------------------------------------------------------------------


def _scan_lines(documents: Documents, wanted: Array, formula: Formula, budget: Budget, ranges: Array | None = None) -> LineCounts:
    found = LineCounts.none(len(documents))
    find_lines = finder_of(formula)
    parts = _pieces(documents, wanted) if ranges is None else _gathered(documents, wanted, ranges)
    for part, feeds in _on_all_cores(parts, find_lines, budget):
        if feeds is None:
            break
        _add(documents, part, feeds, found)
    found.complete[~wanted] = False
    return found


@dataclass(frozen=True, slots=True)
class _Part:
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


def _pieces(documents: Documents, wanted: Array) -> Iterator[_Part]:
    for low, high in _runs(documents, wanted):
        position, stop = int(documents.starts[low]), int(documents.ends[high - 1]) + 1
        while position < stop:
            end = _line_behind(documents.text, min(position + PIECE_BYTES, stop), stop)
            first, last = np.searchsorted(documents.ends[low:high], (position, end)) + low  # whose closing b"\n" lies in it
            holds = min(int(last) + 1, high)
            where = np.array([position], np.int64)
            yield _Part(documents.text[position:end], int(first), holds, int(first), int(last), where, np.zeros(1, np.int64))
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


def _gathered(documents: Documents, wanted: Array, ranges: Array) -> Iterator[_Part]:
    """The lines that ranges touch, copied together: so few bytes that the copy costs nothing, and loops are as long as ever."""
    from shards.text_kernels import widen

    rows = np.flatnonzero(wanted)
    starts, stops = widen(documents.text, ranges, documents.starts[rows], documents.ends[rows] + 1)
    groups = np.searchsorted(np.cumsum(stops - starts), np.arange(PIECE_BYTES, int((stops - starts).sum()), PIECE_BYTES)) + 1
    done = int(rows[0]) if len(rows) else 0
    edges = np.unique(np.r_[0, groups, len(starts)])
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        first, last = np.searchsorted(documents.starts, (starts[low], starts[high - 1]), side="right") - 1
        behind = len(documents) if high == len(starts) else int(np.searchsorted(documents.ends, starts[high]))
        offsets = np.r_[0, np.cumsum(stops[low:high] - starts[low:high])]
        text = _copied(documents.text, starts[low:high], stops[low:high])
        yield _Part(text, int(first), int(last) + 1, done, behind, starts[low:high], offsets[:-1])
        done = behind
    if len(rows) and done <= rows[-1]:
        yield _Part(documents.text[:0], done, done, done, len(documents), np.zeros(1, np.int64), np.zeros(1, np.int64))


def _copied(text: Array, starts: Array, stops: Array) -> Array:
    from shards.text_kernels import gather

    copy = gather(text, starts, stops, int((stops - starts).sum()))
    copy.flags.writeable = False  # as texts are: kernels are compiled once
    return copy


def _add(documents: Documents, part: _Part, feeds: Array, found: LineCounts) -> None:
    """Count the matching lines of a part, told by their line feeds in it."""
    found.complete[part.done_low : part.done_high] = True
    if not len(feeds):
        return
    stretch = np.searchsorted(part.offsets, feeds, side="right") - 1
    feeds = feeds - part.offsets[stretch] + part.starts[stretch]
    rows = np.arange(part.low, part.high)
    ends = documents.ends[rows]
    low, high = np.searchsorted(feeds, documents.starts[rows]), np.searchsorted(feeds, ends, side="right")
    filled = np.flatnonzero(high > low)
    rows, ends, low, high = rows[filled], ends[filled], low[filled], high[filled]
    # The b"\n" behind a text that ends with one itself looks like an empty line of its own.
    empty_end = (feeds[high - 1] == ends) & ((documents.starts[rows] == ends) | (documents.text[ends - 1] == 10))
    counts = high - low - empty_end
    new = (found.counts[rows] == 0) & (counts > 0)
    for row, feed in zip(rows[new].tolist(), feeds[low[new]].tolist(), strict=True):
        found.firsts[row] = feed - documents.starts[row]
    found.counts[rows] += counts


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="lines")


def _on_all_cores(parts: Iterable[_Part], find_lines: Finder, budget: Budget) -> Iterator[tuple[_Part, Array | None]]:
    """Each part with its matching lines, in order, until the budget ends."""

    def scanned(part: _Part) -> Array | None:
        return None if budget.expired else find_lines(part.text, budget)

    known = list(parts)
    if sum(len(part.text) for part in known) < MIN_SHARED_BYTES:
        yield from ((part, scanned(part)) for part in known)
    else:
        yield from zip(known, _pool().map(scanned, known), strict=True)


# --- AND, OR, NOT on a line --------------------------------------------------------------------------------------------------


def finder_of(formula: Formula) -> Finder:
    """What finds the lines for which a formula holds."""
    match formula:
        case AllOf(of=parts):
            wanted = [finder_of(part) for part in parts if not isinstance(part, NotOf)]
            unwanted = [finder_of(part.of) for part in parts if isinstance(part, NotOf)]
            return _all_of(wanted, unwanted)
        case AnyOf(of=parts):
            return _any_of([finder_of(part) for part in parts])
        case NotOf(of=part):
            return _all_of([], [finder_of(part)])
    return finder(formula)


def _all_of(wanted: Sequence[Finder], unwanted: Sequence[Finder]) -> Finder:
    def find(text: Array, budget: Budget) -> Array | None:
        kept: Array | None = None if wanted else _feeds(text)
        for part, sign in [*zip(wanted, repeat(True)), *zip(unwanted, repeat(False))]:
            if kept is None:
                kept = part(text, budget)
            elif len(kept):
                found = _among(text, kept, part, budget)
                if found is None:
                    return None
                kept = kept[_is_in(kept, found) == sign]
            if kept is None:
                return None
        return kept

    return find


def _any_of(parts: Sequence[Finder]) -> Finder:
    def find(text: Array, budget: Budget) -> Array | None:
        lists = [part(text, budget) for part in parts]
        known = [found for found in lists if found is not None]
        return reduce(np.union1d, known) if len(known) == len(lists) else None

    return find


def _feeds(text: Array) -> Array:
    from shards.text_kernels import line_feeds

    out = np.empty(len(text), np.uint32)
    return out[: int(line_feeds(text, np.uint64(0), np.uint64(len(text)), out))].astype(np.int64)


def _is_in(values: Array, found: Array) -> Array:
    """Which of some ascending numbers are among others, (n,) bool."""
    if not len(found):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(found, values), len(found) - 1)
    return found[at] == values


def _among(text: Array, feeds: Array, find_lines: Finder, budget: Budget) -> Array | None:
    """Of some lines those that match: alone if they are few, else with all others."""
    from shards.text_kernels import line_starts

    starts = line_starts(text, feeds)
    sizes = feeds + 1 - starts
    if 2 * int(sizes.sum()) > len(text):
        return find_lines(text, budget)
    found = find_lines(_copied(text, starts, feeds + 1), budget)
    return None if found is None else feeds[_is_in(np.cumsum(sizes) - 1, found)]


# --- Documents ---------------------------------------------------------------------------------------------------------------


def _scan_documents(documents: Documents, wanted: Array, formula: Formula, budget: Budget) -> LineCounts:
    """Documents for which a formula holds, each leaf somewhere in it; counted are the lines where a leaf that is asked for matches."""
    holds, complete = _holding(documents, wanted, formula, budget)
    total = LineCounts.none(len(documents))
    total.complete[:] = complete
    spans = [leaf for leaf in leaves(formula) if isinstance(leaf, MultiLine)]
    lines = [leaf for leaf in leaves(formula) if not isinstance(leaf, MultiLine)]
    parts = [_scan_spans(documents, holds, leaf, budget) for leaf in spans]
    if lines:
        parts.append(_scan_lines(documents, holds, AnyOf(tuple(lines)), budget))
    for part in parts:
        first = (part.counts > 0) & ((total.counts == 0) | (part.firsts < total.firsts))
        total.firsts[first] = part.firsts[first]
        total.counts[:] += part.counts
        total.complete[holds & ~part.complete] = False
    total.counts[holds & total.complete & (total.counts == 0)] = 1  # by what is not in it: the document is the match
    return total


def _holding(documents: Documents, wanted: Array, formula: Formula, budget: Budget) -> tuple[Array, Array]:
    """Of the wanted rows those for which a formula holds, and those that are decided; (rows,) bool each."""
    match formula:
        case AllOf(of=parts):
            holds, complete = wanted, wanted
            for part in parts:  # each is asked only of what the ones before left
                further, decided = _holding(documents, holds, part, budget)
                complete = complete & (decided | ~holds)
                holds = further
            return holds, complete
        case AnyOf(of=parts):
            holds, complete = np.zeros_like(wanted), wanted
            for part in parts:
                further, decided = _holding(documents, wanted & ~holds, part, budget)
                complete = complete & (decided | holds)
                holds = holds | further
            return holds, complete
        case NotOf(of=part):
            against, complete = _holding(documents, wanted, part, budget)
            return complete & ~against, complete
        case MultiLine():
            found = _scan_spans(documents, wanted, formula, budget, at_most=1)
        case _:
            found = _scan_lines(documents, wanted, formula, budget)
    return found.complete & (found.counts > 0), found.complete


def _scan_spans(documents: Documents, wanted: Array, leaf: MultiLine, budget: Budget, at_most: int = 1 << 62) -> LineCounts:
    """Matches of a pattern that spans lines, of each document, one behind the other."""
    found = LineCounts.none(len(documents))
    possible = wanted
    if leaf.needed is not None:
        possible, known = _holding(documents, wanted, leaf.needed, budget)
        found.complete[known & ~possible] = True
    regex = compile_regex(leaf.pattern, leaf.ignore_case, multiline=True)
    fast = automaton(leaf.pattern, leaf.ignore_case) is not None  # then RE2's own is small, too, and reads 300 MB/s and more

    def matches_in(rows: Array) -> None:
        for row in rows.tolist():
            n, text = 0, documents.content(row).tobytes()
            try:
                for match in regex.finditer(text) if fast else _each(regex, text, budget):
                    if not n:
                        found.firsts[row] = _line_end(text, match.start())
                    n += 1
                    if n >= at_most or budget.expired:  # RE2 reads all that follows, at worst, for each match
                        break
            except OutOfTime:
                pass
            if budget.expired:
                return
            found.counts[row], found.complete[row] = n, True

    rows = np.flatnonzero(possible)
    sizes = np.cumsum(documents.ends[rows] - documents.starts[rows])
    groups = np.split(rows, np.searchsorted(sizes, np.arange(PIECE_BYTES, sizes[-1], PIECE_BYTES)) + 1) if len(rows) else []
    for _ in _pool().map(matches_in, groups) if len(groups) > 4 else map(matches_in, groups):
        pass
    return found


def _each(regex: Any, text: bytes, budget: Budget) -> Iterator[Any]:
    """The matches, one behind the other."""
    at = 0
    while at <= len(text) and (match := search(regex, text, at, budget)):
        yield match
        at = match.end() + (match.start() == match.end())


def _line_end(text: bytes, at: int) -> int:
    end = text.find(b"\n", at)
    return end if end >= 0 else len(text)


# --- Spans -------------------------------------------------------------------------------------------------------------------


def spans(documents: Documents, query: TextQuery, found: LineCounts, rows: Array) -> tuple[Array, Array]:
    """The first match of each of some matching rows, (m,) int64 each: where it begins and ends in the document, in bytes.

    Of several leaves on one line the match that begins first, of these the longest; the line itself where nothing was asked for.
    """
    asked = list(leaves(query.formula))
    pairs = [_span(documents.content(row), asked, int(found.firsts[row])) for row in rows.tolist()]
    return np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64)


def _span(text: memoryview, asked: Sequence[Leaf], end: int) -> tuple[int, int]:
    if not asked and not end:
        return 0, 0
    start = bytes(text[:end]).rfind(b"\n") + 1
    line = bytes(text[start:end]).removesuffix(b"\r")
    found = []
    for leaf in asked:
        if isinstance(leaf, MultiLine):
            match = compile_regex(leaf.pattern, leaf.ignore_case, multiline=True).search(bytes(text), start)
            span = match and match.span()
        else:
            span = first_span(line, leaf)
            span = span and (start + span[0], start + span[1])
        if span and span[0] <= end:
            found.append(span)
    return min(found, key=lambda span: (span[0], -span[1]), default=(start, start + len(line)))
