"""One leaf of a text query on a piece of text: which lines match it, and where in a line the first match is.

A piece is whole lines, its last byte a line feed; a line is told by the offset of its line feed. A line ends before b"\\n" or
b"\\r\\n", and nothing matches across it.
"""

import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from shards.text_automaton import Automaton, automaton
from shards.text_pattern import Exact, Leaf, Regex, Within
from shards.types import Array, Budget

# What RE2 is asked at once where no automaton is small enough: it then reads 0.07 to 30 MB/s, as the pattern has it, and sees no clock.
SLICE_BYTES, MIN_SLICE_BYTES, SLICE_SECONDS = 1 << 16, 1 << 12, 0.008
WINDOW_BYTES = 1 << 14  # at worst a quarter of a second
_CHECK_EVERY = 1024  # matches, about 3 us each

# In these the whole slice is visible: they need each line on its own. Too many patterns rather than too few (slower, not wrong).
_SEES_BEYOND_LINE = re.compile(r"\\[Az]|\(\?[a-zA-Z]*-[a-zA-Z]*m")

# (text, (n,) uint8; budget) -> line feeds of matching lines, ascending int64, or None where the budget ended before the piece did
Finder = Callable[[Array, Budget], Array | None]


@lru_cache(maxsize=256)
def compile_regex(pattern: str, ignore_case: bool, multiline: bool = False) -> Any:
    """The compiled pattern; raises re2.error. `never_nl` keeps `\\s`, `[^x]` and `(?s).` within the line, unless `multiline`."""
    import re2

    options = re2.Options()
    options.never_nl = not multiline
    options.never_capture = True
    options.log_errors = False
    options.case_sensitive = not ignore_case
    options.max_mem = 16 << 20  # bytes, program and lazy automaton of one pattern
    re2.compile(pattern, options)  # errors must show the caller's pattern, not ours
    return re2.compile(f"(?m:{pattern})", options)


class OutOfTime(Exception):
    """The budget ended in the midst of a text."""


def search(regex: Any, text: bytes, start: int, budget: Budget) -> Any:
    """The first match at or behind `start`, of a pattern that may be slow: in windows that overlap, with a look at the clock.

    A match of more than half a window may be missed where the text is longer than that; none is found that is none, since
    RE2 sees what stands before and behind a window. Raises OutOfTime.
    """
    while True:
        if budget.expired:
            raise OutOfTime
        match = regex.search(text, start, min(start + WINDOW_BYTES, len(text)))
        if match or start + WINDOW_BYTES >= len(text):
            return match
        start += WINDOW_BYTES // 2


def finder(leaf: Leaf) -> Finder:
    """What finds the lines that match a leaf. Compiles: ask once for many pieces."""
    if isinstance(leaf, Exact):
        return _exact(leaf)
    if isinstance(leaf, Regex):
        return _regex(leaf)
    if isinstance(leaf, Within):
        return _within(leaf)
    raise TypeError(f"{leaf} does not speak of lines")


# Likewise, for the kernels: writes line feeds into (len(text),) uint32 and returns how many.
Writer = Callable[[Array, Array], int]


def _exact(leaf: Exact) -> Finder:
    write = _writer(leaf)

    def find(text: Array, budget: Budget) -> Array:
        out = np.empty(len(text), np.uint32)
        n = write(text, out)
        return out[:n].astype(np.int64)

    return find


def _writer(leaf: Exact) -> Writer:
    from shards.text_kernels import find_literal

    body = np.frombuffer(leaf.body, np.uint8)
    first, second = map(np.uint64, leaf.rare)
    return lambda text, out: int(find_literal(text, np.uint64(0), np.uint64(len(text)), body, first, second, leaf.ignore_case, out))


def _regex(leaf: Regex) -> Finder:
    from shards.text_kernels import follow_some

    known = automaton(leaf.pattern, leaf.ignore_case)
    if known is None:
        return _by_re2(leaf)
    if leaf.probe is None:
        return follower(known)
    table, matched, write = known.table, np.uint64(known.matched), _writer(leaf.probe)

    def find(text: Array, budget: Budget) -> Array:
        out = np.empty(len(text), np.uint32)
        n = follow_some(text, table, matched, out, write(text, out))
        return out[: int(n)].astype(np.int64)

    return find


def follower(known: Automaton) -> Finder:
    """What finds the lines that an automaton takes."""
    from shards.text_kernels import follow

    table, matched = known.table, np.uint64(known.matched)

    def find(text: Array, budget: Budget) -> Array:
        out = np.empty(len(text), np.uint32)
        pieces = follow(text, np.uint64(0), np.uint64(len(text)), table, matched, out)
        return np.concatenate([out[low:high] for low, high in pieces.tolist()]).astype(np.int64)

    return find


def _within(leaf: Within) -> Finder:
    from shards.text_kernels import find_within, find_within_some

    pattern = _masks(leaf)
    known = automaton(leaf.pieces, False) if leaf.pieces else None

    def find(text: Array, budget: Budget) -> Array:
        out = np.empty(len(text), np.uint32)
        span = np.uint64(0), np.uint64(len(text))
        if known is None:
            n = find_within(text, *span, *pattern, out)
        else:
            n = find_within_some(text, *span, known.table, np.uint64(known.matched), *pattern, out)
        return out[: int(n)].astype(np.int64)

    return find


def variants(char: str, ignore_case: bool) -> list[str]:
    """A character and, if case does not count, its other forms of one character; ASCII letters have only each other."""
    forms = {char, char.lower(), char.upper()} if ignore_case else {char}
    return sorted(c for c in forms if len(c) == 1 and c.isascii() == char.isascii())


@lru_cache(maxsize=256)
def _masks(leaf: Within) -> tuple[Any, ...]:
    """What the kernels ask of a pattern: its places by character (`shards.text_kernels._line_within`), length, edits, word."""
    places: dict[int, int] = {}
    for i, char in enumerate(leaf.text):
        for form in variants(char, leaf.ignore_case):
            places[ord(form)] = places.get(ord(form), 0) | 1 << i
    ascii_ = np.array([places.get(point, 0) for point in range(128)], np.uint64)
    others = sorted(point for point in places if point >= 128)
    masks = np.array([places[point] for point in others], np.uint64)
    return ascii_, np.array(others, np.int64), masks, len(leaf.text), leaf.edits, leaf.word


# --- RE2, for patterns without an automaton ----------------------------------------------------------------------------------


def _by_re2(leaf: Regex) -> Finder:
    regex = compile_regex(leaf.pattern, leaf.ignore_case)
    write = _writer(leaf.probe) if leaf.probe else None
    beyond = _SEES_BEYOND_LINE.search(leaf.pattern) is not None

    def find(text: Array, budget: Budget) -> Array | None:
        found: list[int] = []
        start, size = 0, MIN_SLICE_BYTES
        while start < len(text):
            if budget.expired:
                return None
            began = time.monotonic()
            end = _line_behind(text, min(start + size, len(text)))
            chunk = text[start:end].tobytes()
            if write is not None:
                out = np.empty(len(chunk), np.uint32)
                feeds: Iterator[int] = _among(chunk, regex, out[: write(text[start:end], out)], budget)
            elif beyond or _longest_line(text[start:end]) > WINDOW_BYTES:  # so that what is found is not a matter of slices
                feeds = _line_by_line(chunk, regex, budget)
            else:
                feeds = _all_lines(chunk, regex)
            try:
                for feed in feeds:
                    found.append(start + feed)
                    if len(found) % _CHECK_EVERY == 0 and budget.expired:
                        return None
            except OutOfTime:
                return None
            start = end
            seconds = time.monotonic() - began
            size = max(size // 2, MIN_SLICE_BYTES) if seconds > SLICE_SECONDS else size
            size = min(size * 2, SLICE_BYTES) if seconds < SLICE_SECONDS / 4 else size
        return np.array(found, np.int64)

    return find


def _longest_line(text: Array) -> int:
    return int(np.diff(np.flatnonzero(text == 10), prepend=-1).max())


def _line_behind(text: Array, at: int) -> int:
    """The beginning of the first line at or behind a place."""
    while at < len(text) and text[at - 1] != 10:
        ahead = text[at : at + WINDOW_BYTES]
        feeds = np.flatnonzero(ahead == 10)
        if len(feeds):
            return at + int(feeds[0]) + 1
        at += len(ahead)
    return at


def _among(chunk: bytes, regex: Any, feeds: Array, budget: Budget) -> Iterator[int]:
    """Try some lines only."""
    for feed in feeds.tolist():
        if search(regex, _content(chunk, chunk.rfind(b"\n", 0, feed) + 1, feed), 0, budget):
            yield feed


def _content(chunk: bytes, start: int, feed: int) -> bytes:
    return chunk[start : feed - chunk.endswith(b"\r", start, feed)]


def _line_by_line(chunk: bytes, regex: Any, budget: Budget) -> Iterator[int]:
    start = 0
    while start < len(chunk):
        feed = chunk.index(b"\n", start)
        if search(regex, _content(chunk, start, feed), 0, budget):
            yield feed
        start = feed + 1


def _all_lines(chunk: bytes, regex: Any) -> Iterator[int]:
    """One pass over all lines. A match costs finditer 1.5 us, search 3.6: begin anew only where a line matched twice."""
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
            line_end = text.index(b"\n", high)
            yield line_end + (chunk[line_end] == 13)


# --- Spans -------------------------------------------------------------------------------------------------------------------


def first_span(line: bytes, leaf: Leaf) -> tuple[int, int] | None:
    """Where the first match of a leaf in a line (without its end) begins and ends; None if there is none.

    Of `Within` the occurrence with the fewest edits, of these the one that ends first, each end taken as far as it goes.
    """
    if isinstance(leaf, Exact):
        at = (line.lower() if leaf.ignore_case else line).find(leaf.body)
        return (at, at + len(leaf.body)) if at >= 0 else None
    if isinstance(leaf, Regex):
        match = compile_regex(leaf.pattern, leaf.ignore_case).search(line)
        return match.span() if match else None
    assert isinstance(leaf, Within)
    from shards.text_kernels import nearest_end

    text = np.frombuffer(line, np.uint8)
    n_edits, end = nearest_end(text, np.uint64(0), np.uint64(len(text)), *_masks(leaf))
    return (_beginning(line[: int(end)], leaf, int(n_edits)), int(end)) if n_edits <= leaf.edits else None


def _beginning(text: bytes, leaf: Within, n_edits: int) -> int:
    """Where an occurrence with `n_edits` begins that ends with `text`: Sellers' table (1980), read backwards.

    The last such place; if at most so many characters before it is another one, that, and so on: `xecieve` begins with its x.
    """
    tail = text[-4 * (len(leaf.text) + n_edits + 1) :].decode("utf-8", "ignore")  # whole characters, and as many as could matter
    forms = [set(variants(char, leaf.ignore_case)) for char in reversed(leaf.text)]
    row = list(range(len(forms) + 1))  # row[i]: edits between the last i characters of the pattern and what was read
    n_bytes, begun, since = 0, -1, 0
    for n_read, char in enumerate([*reversed(tail), ""]):
        inside = leaf.word and char.isascii() and (char.isalnum() or char == "_")
        if row[-1] <= n_edits and not inside:
            begun, since = n_bytes, 0
        if begun >= 0 and since == n_edits:
            break
        since += 1
        above, row = row, [n_read + 1]
        for i, form in enumerate(forms):
            row.append(min(above[i] + (char not in form), above[i + 1] + 1, row[i] + 1))
        n_bytes += len(char.encode())
    return len(text) - begun
