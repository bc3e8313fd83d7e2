"""Which windows a long document is encoded in, for late chunking: every passage lies whole in the one that it is pooled from."""

from typing import NamedTuple

import numpy as np

from shards.types import Array

_STRETCH_CHARS = 1 << 16  # tokenised at once: what a tokeniser says of a megabyte takes a hundred


class Window(NamedTuple):
    """Tokens [start, end) of a document. passages: (m,) int64, those pooled from it, ascending."""

    start: int
    end: int
    passages: Array


def cut(n_tokens: int, firsts: Array, ends: Array, size: int) -> list[Window]:
    """The windows of a document, each passage in one of them; passages of no tokens in none.

    n_tokens: of the document; firsts, ends: (p,) int64, the tokens [first, end) of each passage, both ascending; size: most tokens
    of a window.

    A document of `size` tokens is one window. A longer one is read in windows of `size`: each begins a quarter of it before the
    first passage that is in none yet, for that is what stands before a passage at least, unless the passage then would not fit
    whole; and all further passages that lie whole in it are pooled from it. Of a passage of more tokens the first `size` count.
    So the text decides alone, and each token is read 1.3 to 2 times.
    """
    todo = np.flatnonzero(ends > firsts)
    found: list[Window] = []
    at = 0
    while at < len(todo):
        first, end = int(firsts[todo[at]]), int(ends[todo[at]])
        start = 0 if n_tokens <= size else min(first, max(first - size // 4, end - size, 0))
        stop = min(start + size, n_tokens)
        n = max(int(np.searchsorted(ends[todo[at:]], stop, "right")), 1)
        found.append(Window(start, stop, todo[at : at + n]))
        at += n
    return found


def stretches(starts: Array, n_chars: int) -> list[tuple[int, int]]:
    """A text cut at starts of passages into stretches of 64 Ki characters or a passage more: [begin, end) each, all together all of it."""
    cuts = [0]
    for start in starts.tolist():
        if start - cuts[-1] >= _STRETCH_CHARS:
            cuts.append(start)
    return list(zip(cuts, [*cuts[1:], n_chars], strict=True))
