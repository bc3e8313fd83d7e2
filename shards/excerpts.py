"""The piece of a document that shows why it was found."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from shards.places import places_in
from shards.types import Array, Excerpt, LinesAround

MAX_CONTEXT_BYTES = 1 << 15  # before a span and behind it, however many lines were asked for
MAX_WORDS, MAX_MARKS = 16, 512  # enough to tell where they stand together; a query of a thousand words costs no more


@lru_cache(maxsize=256)
def _packed(words: tuple[str, ...]) -> tuple[Array, Array]:
    """The words' bytes one after the other, longest first, and where each begins: (bytes,) uint8, (words + 1,) int64."""
    encoded = (word.encode("utf-8", "surrogateescape") for word in words if word)
    longest_first = sorted(set(encoded), key=lambda w: (-len(w), w))
    offsets = np.cumsum([0, *map(len, longest_first)], dtype=np.int64)
    return np.frombuffer(b"".join(longest_first), np.uint8), offsets


def focus(text: Array, words: Sequence[str], window: int) -> int:
    """Offset into `text`, (n,) uint8, where a window of that many bytes shows the most distinct words; 0 when none occurs."""
    from shards.excerpt_kernels import densest_window

    packed, offsets = _packed(tuple(words[:MAX_WORDS]))
    if len(offsets) == 1 or len(text) <= window:
        return 0
    return int(densest_window(text, packed, offsets, window, MAX_MARKS))


def _char_start(text: memoryview, at: int) -> int:
    """The nearest UTF-8 character boundary at or before a byte offset."""
    while 0 < at < len(text) and text[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _lines_around(text: Array, start: int, end: int, lines: LinesAround) -> tuple[int, int]:
    """Where whole lines around a span begin and end, of at most MAX_CONTEXT_BYTES before it and as many behind."""
    before = np.flatnonzero(text[max(0, start - MAX_CONTEXT_BYTES) : start] == ord("\n"))
    after = np.flatnonzero(text[end : end + MAX_CONTEXT_BYTES] == ord("\n"))
    if end > start and text[end - 1] == ord("\n"):  # a span of whole lines: its last line feed ends its last line
        after = np.concatenate([[-1], after])
    first, last = len(before) - 1 - lines.before, lines.after
    whole = min(end + MAX_CONTEXT_BYTES, len(text))
    whole -= whole > end and text[whole - 1] == ord("\n")
    least = max(0, start - MAX_CONTEXT_BYTES)
    return (least + int(before[first]) + 1 if first >= 0 else least), (end + int(after[last]) if last < len(after) else whole)


def excerpt(text: memoryview, start: int, end: int, words: Sequence[str], size: int | LinesAround, kind: str = "") -> Excerpt:
    """At most about `size` bytes of a rendition around span [start, end), cut at lines where lines allow; 0: the span alone.

    Or whole lines, so many before and after those of the span.

    A long span is narrowed to where most of the words stand; a short one is widened to whole lines. kind: of the document, which says
    what places it has.
    """
    start, end = max(0, min(start, len(text))), max(0, min(end, len(text)))
    units = np.frombuffer(text, np.uint8)
    if isinstance(size, LinesAround):
        end = min(end, start + MAX_CONTEXT_BYTES)
        a, b = (_char_start(text, at) for at in _lines_around(units, start, end, size))
        return _cut_out(text, a, b, kind)
    if size and end - start > size:
        start += focus(units[start:end], words, size * 3 // 4)
        end = min(end, start + size)
    before = bytes(text[max(0, start - size) : start])
    line_start = start - len(before) + before.rfind(b"\n") + 1 if b"\n" in before or start <= size else start - size // 4
    a = max(line_start, start - size // 2)
    b = min(len(text), a + size)
    if b < len(text):
        cut = bytes(text[a:b]).rfind(b"\n")
        if a + cut >= end:
            b = a + cut
    a, b = (_char_start(text, at) for at in ((a, b) if size else (start, end)))
    return _cut_out(text, a, b, kind)


def _cut_out(text: memoryview, start: int, end: int, kind: str) -> Excerpt:
    # Six times as fast as bytes.count, which goes from one newline to the next.
    line = int(np.count_nonzero(np.frombuffer(text, np.uint8)[:start] == ord("\n"))) + 1
    shown = bytes(text[start:end]).decode("utf-8", "replace")
    return Excerpt(start, end, line, shown, places_in(kind, text, start, end), _column(text, start))


def _column(text: memoryview, at: int) -> int:
    """The 1-based character of its line that begins at a byte offset; 0 where the line began too far before."""
    first = max(0, at - MAX_CONTEXT_BYTES)
    before = bytes(text[first:at])
    if (newline := before.rfind(b"\n")) < 0 and first > 0:
        return 0
    return len(before[newline + 1 :].decode("utf-8", "replace")) + 1
