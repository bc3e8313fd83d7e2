"""Which lines of packed renditions match a text query, and how many of each document.

What a piece is searched with is decided once (`shards/text_finders.py`); AND, OR and NOT join sorted lists of lines. A query that
speaks of documents asks lines first, and narrows the documents with each part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import repeat
from typing import Any

import numpy as np

from shards.documents import Documents
from shards.text_automaton import automaton, over_lines
from shards.text_finders import Finder, OutOfTime, compile_regex, finder, first_span, search
from shards.text_pattern import AllOf, AnyOf, Formula, Leaf, MultiLine, NotOf, TextQuery, leaves
from shards.text_pieces import Part, copied, gathered, groups, on_all_cores, pieces, pool
from shards.text_starts import matches_of, starts_in
from shards.types import Array, Budget


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
    parts = pieces(documents, wanted) if ranges is None else gathered(documents, wanted, ranges)
    for part, feeds in on_all_cores(parts, lambda part: find_lines(part.text, budget), budget):
        if feeds is None:
            break
        _add(documents, part, feeds, found)
    found.complete[~wanted] = False
    return found


def _add(documents: Documents, part: Part, feeds: Array, found: LineCounts) -> None:
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
    found = find_lines(copied(text, starts, feeds + 1), budget)
    return None if found is None else feeds[_is_in(np.cumsum(sizes) - 1, found)]


# --- Documents ---------------------------------------------------------------------------------------------------------------


def _scan_documents(documents: Documents, wanted: Array, formula: Formula, budget: Budget) -> LineCounts:
    """Documents for which a formula holds, each leaf somewhere in it; counted are the lines where a leaf that is asked for matches."""
    if isinstance(formula, MultiLine):
        return _scan_spans(documents, wanted, formula, budget)
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
    known = over_lines(leaf.pattern, leaf.ignore_case)
    needed = leaf.needed if known is None else leaf.rare
    possible = wanted
    if needed is not None:
        possible, decided = _holding(documents, wanted, needed, budget)
        found.complete[decided & ~possible] = True
    starts = None if known is None else starts_in(documents, possible, known, budget)
    regex = compile_regex(leaf.pattern, leaf.ignore_case, multiline=True)
    # With an automaton of ours RE2's own is small, too, and reads 300 MB/s and more.
    slow = known is None and automaton(leaf.pattern, leaf.ignore_case) is None

    def matches_in(rows: Array) -> None:
        for row in rows.tolist():
            n, text = 0, documents.content(row).tobytes()
            if starts is not None:
                matches = matches_of(regex, text, starts.of(row), budget)
            else:
                matches = _each(regex, text, budget) if slow else regex.finditer(text)
            try:
                for match in matches:
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

    if starts is not None:
        found.complete[possible & starts.read & ~starts.some] = True
        possible = possible & starts.read & starts.some
    rows = np.flatnonzero(possible)
    parts = groups(documents, rows)
    for _ in pool().map(matches_in, parts) if len(parts) > 4 else map(matches_in, parts):
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
