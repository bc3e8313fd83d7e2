"""The passages that a reranker reads: what a hit's span shows, neither a bare line nor a whole book.

They come from the hosts as excerpts do, 1 to 1.5 kB each: 20 to 30 kB for 20 hits, in one call per host.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from shards.types import Detail, Excerpt

# A passage of a layer stays as it is. A line, or a path that stands for the whole document, is widened to what makes sense by itself. Of
# what is longer the piece is taken where most words of the query stand: 400 tokens, of 512 that most cross-encoders read, so that 20 of
# them are read within the 2 s that a search has by default.
LEAST_BYTES, MOST_BYTES = 800, 1_500

Span = tuple[bytes, int, int]  # content hash; start and end in UTF-8 bytes of the rendition
Details = Callable[[Mapping[bytes, tuple[tuple[int, int], ...]], int], Awaitable[dict[bytes, Detail]]]


class Passage(NamedTuple):
    """Bytes [start, end) of a rendition as text; "" of a document without any, as an image."""

    start: int
    end: int
    text: str


async def read_passages(hits: Mapping[int, Span], details: Details) -> dict[int, Passage]:
    """The passages of hits, by their place; those that no host could give are left out.

    details: entries and excerpts of spans by content hash, of so many bytes; 0: exactly the span (as `Searcher.details`).
    """
    whole, narrowed = {}, {}
    for place, (key, start, end) in hits.items():
        if end - start > MOST_BYTES:
            narrowed[place] = (key, start, end)
        else:
            whole[place] = (key, *widened(start, end))
    wanted = [(spans, size) for spans, size in ((whole, 0), (narrowed, MOST_BYTES)) if spans]
    answers = await asyncio.gather(*(details({key: ((a, b),) for key, a, b in spans.values()}, size) for spans, size in wanted))
    found = {}
    for (spans, size), answer in zip(wanted, answers, strict=True):
        for place, (key, a, b) in spans.items():
            shown = answer[key].excerpts.get((a, b)) if key in answer else None
            if shown is not None:
                found[place] = Passage(shown.start, shown.end, shown.text) if size else trimmed(shown, *hits[place][1:], b)
    return dict(sorted(found.items()))


def widened(start: int, end: int) -> tuple[int, int]:
    """A span of at least LEAST_BYTES, as much before as after, as far as the document's beginning allows."""
    if end - start >= LEAST_BYTES:
        return start, end
    first = max(0, start - (LEAST_BYTES - (end - start)) // 2)
    return first, max(end, first + LEAST_BYTES)


def trimmed(shown: Excerpt, start: int, end: int, asked_end: int) -> Passage:
    """What was added to a span [start, end), without the broken lines at its edges, or where there are no lines, words.

    asked_end: what was asked for ended there, but for a broken character; where less came, the document ends.
    """
    raw = shown.text.encode()
    low, high = (max(0, min(at - shown.start, len(raw))) for at in (start, end))
    before, after = raw[:low], raw[high:]
    if shown.start > 0:
        before = before[before.find(b"\n" if b"\n" in before else b" ") + 1 :]
    if shown.end > asked_end - 4 and (cut := after.rfind(b"\n" if b"\n" in after else b" ")) >= 0:
        after = after[:cut]
    text = before + raw[low:high] + after
    first = shown.start + low - len(before)
    return Passage(first, first + len(text), text.decode("utf-8", "replace"))
