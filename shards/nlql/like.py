"""LIKE: `%` is any run of characters, `_` any one, all else itself; there is no escape. No pattern takes longer than text x pattern."""

import re
from collections.abc import Callable
from functools import lru_cache


@lru_cache(maxsize=256)
def like(pattern: str) -> Callable[[str], bool]:
    """A test of whole texts."""
    first, *others = pattern.split("%")
    if not others:
        return _whole(first)
    *middle, last = others
    finders = [_finder(piece) for piece in middle if piece]
    n_first, n_last = len(first), len(last)
    begins, ends = _whole(first), _whole(last)

    def test(text: str) -> bool:
        stop = len(text) - n_last
        if stop < n_first or not begins(text[:n_first]) or not ends(text[stop:]):
            return False
        at = n_first
        for find in finders:  # the earliest place for each piece leaves most room for those behind it
            at = find(text, at, stop)
            if at < 0:
                return False
        return True

    return test


def _whole(piece: str) -> Callable[[str], bool]:
    if "_" not in piece:
        return piece.__eq__
    wild = _wild(piece)
    return lambda text: wild.fullmatch(text) is not None


def _finder(piece: str) -> Callable[[str, int, int], int]:
    """Gives where a piece that is found at or behind a place ends, -1 if it is not found."""
    if "_" not in piece:
        n = len(piece)

        def find(text: str, at: int, stop: int) -> int:
            found = text.find(piece, at, stop)
            return found + n if found >= 0 else -1

        return find
    wild = _wild(piece)

    def search(text: str, at: int, stop: int) -> int:
        match = wild.search(text, at, stop)
        return match.end() if match else -1

    return search


def _wild(piece: str) -> re.Pattern[str]:
    return re.compile("".join("." if char == "_" else re.escape(char) for char in piece), re.DOTALL)  # of one length: nothing to try twice
