"""The piece of a document that shows why it was found."""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice

from shards.types import Excerpt

MAX_WORDS, MAX_MARKS = 16, 512  # enough to tell where they stand together; a query of a thousand words costs no more


@lru_cache(maxsize=256)
def _any_of(words: tuple[str, ...]) -> re.Pattern[bytes]:
    """Any of the words, longest first, so that none hides a longer one."""
    longest_first = sorted({word.encode("utf-8", "surrogateescape") for word in words}, key=lambda w: (-len(w), w))
    return re.compile(b"|".join(map(re.escape, longest_first)))


def _char_start(text: memoryview, at: int) -> int:
    """The nearest UTF-8 character boundary at or before a byte offset."""
    while 0 < at < len(text) and text[at] & 0xC0 == 0x80:
        at -= 1
    return at


def focus(text: bytes, words: Sequence[str], window: int) -> int:
    """Offset into `text` where a window of that many bytes shows the most distinct words; 0 when none occurs."""
    if not words or len(text) <= window:
        return 0
    words = tuple(words[:MAX_WORDS])
    marks: list[tuple[int, bytes]] = []
    best, best_at, left = 0, 0, 0
    counts: dict[bytes, int] = {}
    for match in islice(_any_of(words).finditer(text.lower()), MAX_MARKS):
        at, word = match.start(), match[0]
        marks.append((at, word))
        counts[word] = counts.get(word, 0) + 1
        while at - marks[left][0] > window:
            first = marks[left][1]
            counts[first] -= 1
            if not counts[first]:
                del counts[first]
            left += 1
        if len(counts) > best:
            best, best_at = len(counts), marks[left][0]
            if best == len(words):  # no window shows more
                break
    return best_at


def excerpt(text: memoryview, start: int, end: int, words: Sequence[str], size: int) -> Excerpt:
    """At most about `size` bytes of a rendition around span [start, end), cut at lines where lines allow.

    A long span is narrowed to where most of the words stand; a short one is widened to whole lines.
    """
    start, end = max(0, min(start, len(text))), max(0, min(end, len(text)))
    if end - start > size:
        start += focus(bytes(text[start:end]), words, size * 3 // 4)
        end = min(end, start + size)
    before = bytes(text[max(0, start - size) : start])
    line_start = start - len(before) + before.rfind(b"\n") + 1 if b"\n" in before or start <= size else start - size // 4
    a = max(line_start, start - size // 2)
    b = min(len(text), a + size)
    if b < len(text):
        cut = bytes(text[a:b]).rfind(b"\n")
        if a + cut >= end:
            b = a + cut
    a, b = _char_start(text, a), _char_start(text, b)
    body = bytes(text[a:b])
    line = bytes(text[:a]).count(b"\n") + 1
    return Excerpt(a, b, line, body.decode("utf-8", "replace"))
