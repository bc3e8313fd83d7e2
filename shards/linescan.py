"""Which lines of packed renditions match: literals at memmem speed, regular expressions with RE2, in slices of whole lines.

A line ends before b"\\n" or b"\\r\\n"; nothing matches across it. Each line counts once, by its first match.
"""

import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from shards.documents import Documents
from shards.types import Array, Budget

SLICE_BYTES = 1 << 18  # fits the cache of one core; a copy of it costs 25 us
MIN_SLICE_BYTES = 1 << 12
SLICE_SECONDS = 0.008  # a slice that took longer is halved: the deadline is looked at every 10 ms
SPARSE_LOG_P = math.log(0.02)  # rarer required strings: a candidate line costs 3 us, a line of a full pass 0.1
_CHECK_EVERY = 1024  # matches, about 3 us each

# In these the whole slice is visible: they need each line on its own. Too many patterns rather than too few (slower, not wrong).
_SEES_BEYOND_LINE = re.compile(r"\\[Az]|\(\?[a-zA-Z]*-[a-zA-Z]*m")


@dataclass(frozen=True, slots=True)
class LinePattern:
    """What is looked for.

    literal: exact bytes (folded if `ignore_case`: ASCII letters match either case), or b"" where `regex` decides
    regex: RE2 pattern. required: bytes that every match holds (folded if `ignore_case`), b"" if unknown
    sparse: so few lines hold `required` that only these are tried
    """

    literal: bytes = b""
    regex: str = ""
    ignore_case: bool = False
    required: bytes = b""
    sparse: bool = False


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Per row of a segment: matching lines, (rows,) int64, and the span of the first match in the document, (rows,) int64.

    complete: (rows,) bool, the rows that were asked for and read to the end; the numbers of others mean nothing.
    """

    counts: Array
    starts: Array
    ends: Array
    complete: Array


@lru_cache(maxsize=256)
def compile_regex(pattern: str, ignore_case: bool) -> Any:
    """The compiled pattern; raises re2.error. `never_nl` keeps `\\s`, `[^x]` and `(?s).` within the line."""
    import re2

    options = re2.Options()
    options.never_nl = True
    options.never_capture = True
    options.log_errors = False
    options.case_sensitive = not ignore_case
    options.max_mem = 16 << 20  # bytes, program and lazy automaton of one pattern
    re2.compile(pattern, options)  # errors must show the caller's pattern, not ours
    return re2.compile(f"(?m:{pattern})", options)


def scan(documents: Documents, wanted: Array, pattern: LinePattern, budget: Budget) -> LineCounts:
    """Matching lines of the wanted rows, (rows,) bool, in order of the text, until the budget ends."""
    n = len(documents)
    counts, starts, ends = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    complete = np.zeros(n, np.bool_)
    find = _finder(pattern)
    size = SLICE_BYTES
    for low, high in _runs(documents, wanted):
        position, stop = int(documents.starts[low]), int(documents.ends[high - 1]) + 1
        while position < stop:
            if budget.expired:
                return LineCounts(counts, starts, ends, complete)
            began = time.monotonic()
            chunk = _whole_lines(documents.text, position, min(position + size, stop), stop)
            spans: list[tuple[int, int]] = []
            for span in find(chunk):
                spans.append(span)
                if len(spans) % _CHECK_EVERY == 0 and budget.expired:
                    return LineCounts(counts, starts, ends, complete)
            if spans:
                _add(documents, np.array(spans, np.int64) + position, counts, starts, ends)
            behind = position + len(chunk)
            first, last = np.searchsorted(documents.ends, (position, behind))  # texts whose closing b"\n" lies in this slice
            complete[max(first, low) : min(last, high)] = True
            position = behind
            seconds = time.monotonic() - began
            if seconds > SLICE_SECONDS:
                size = max(size // 2, MIN_SLICE_BYTES)
            elif seconds < SLICE_SECONDS / 4:
                size = min(size * 2, SLICE_BYTES)
    return LineCounts(counts, starts, ends, complete)


def _runs(documents: Documents, wanted: Array) -> Iterator[tuple[int, int]]:
    """Wanted rows as ranges [low, high) whose texts follow one another."""
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return
    broken = (np.diff(rows) > 1) | (documents.starts[rows[1:]] != documents.ends[rows[:-1]] + 1)
    edges = np.flatnonzero(broken) + 1
    for low, high in zip(np.r_[0, edges], np.r_[edges, len(rows)], strict=True):
        yield int(rows[low]), int(rows[high - 1]) + 1


def _whole_lines(text: Array, start: int, end: int, stop: int) -> bytes:
    """The bytes from `start` to about `end`, cut behind a line feed; a longer line is taken whole.

    text[stop - 1] is a line feed.
    """
    chunk: bytes = text[start:end].tobytes()
    cut = chunk.rfind(b"\n") + 1
    while not cut:
        more: bytes = text[start + len(chunk) : min(start + 2 * len(chunk), stop)].tobytes()
        cut = (more.find(b"\n") + 1 + len(chunk)) if b"\n" in more else 0
        chunk += more
    return chunk[:cut]


def _add(documents: Documents, spans: Array, counts: Array, starts: Array, ends: Array) -> None:
    """Add the spans of one slice, (m, 2) int64 positions in the text, ascending."""
    rows = np.searchsorted(documents.starts, spans[:, 0], side="right") - 1
    # The b"\n" behind a text that ends with one itself looks like an empty line of its own.
    at_end = (spans[:, 0] == documents.ends[rows]) & (
        (documents.starts[rows] == documents.ends[rows]) | (documents.text[spans[:, 0] - 1] == 10)
    )
    rows, spans = rows[~at_end], spans[~at_end]
    unique, first, n = np.unique(rows, return_index=True, return_counts=True)
    new = counts[unique] == 0
    starts[unique[new]] = spans[first[new], 0] - documents.starts[unique[new]]
    ends[unique[new]] = spans[first[new], 1] - documents.starts[unique[new]]
    counts[unique] += n


def _finder(pattern: LinePattern) -> Any:
    """A function from whole lines (bytes that end with b"\\n") to the first span of each matching line."""
    if pattern.literal:
        return lambda chunk: _find_literal(chunk.lower() if pattern.ignore_case else chunk, pattern.literal)
    regex = compile_regex(pattern.regex, pattern.ignore_case)
    if pattern.required and pattern.sparse:
        return lambda chunk: _find_in_candidates(chunk, regex, pattern)
    if _SEES_BEYOND_LINE.search(pattern.regex):
        return lambda chunk: _find_line_by_line(chunk, regex)
    return lambda chunk: _find_regex(chunk, regex, pattern)


def _find_literal(chunk: bytes, literal: bytes) -> Iterator[tuple[int, int]]:
    at = chunk.find(literal)
    while at >= 0:
        yield at, at + len(literal)
        at = chunk.find(literal, chunk.index(b"\n", at))


def _find_in_candidates(chunk: bytes, regex: Any, pattern: LinePattern) -> Iterator[tuple[int, int]]:
    """Try only lines that hold the required bytes."""
    folded = chunk.lower() if pattern.ignore_case else chunk
    at = folded.find(pattern.required)
    while at >= 0:
        start, end = chunk.rfind(b"\n", 0, at) + 1, chunk.index(b"\n", at)
        if match := regex.search(chunk[start : end - chunk.endswith(b"\r", start, end)]):
            yield start + match.start(), start + match.end()
        at = folded.find(pattern.required, end)


def _find_line_by_line(chunk: bytes, regex: Any) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(chunk):
        end = chunk.index(b"\n", start)
        if match := regex.search(chunk[start : end - chunk.endswith(b"\r", start, end)]):
            yield start + match.start(), start + match.end()
        start = end + 1


def _find_regex(chunk: bytes, regex: Any, pattern: LinePattern) -> Iterator[tuple[int, int]]:
    """One pass over all lines. A match costs finditer 1.5 us, search 3.6: begin anew only where a line matched twice."""
    if pattern.required and pattern.required not in (chunk.lower() if pattern.ignore_case else chunk):
        return
    text = chunk.replace(b"\r\n", b"\n\n") if b"\r\n" in chunk else chunk  # so that `$` stands before b"\r\n"; same length
    start, line_end = 0, -1
    while 0 <= start < len(text):
        begun, start = start, -1
        for match in regex.finditer(text, begun):
            low, high = match.span()
            if low <= line_end:
                start = line_end + 1
                break
            if low >= len(text):
                break
            if low == high and text is not chunk and chunk[max(low - 1, 0) : low + 1] == b"\r\n":
                continue  # an empty line that only our b"\n\n" made
            yield low, high
            line_end = text.index(b"\n", high)
