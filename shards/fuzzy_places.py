"""Where given words stand nearest to one another in a short text."""

from collections.abc import Sequence

MAX_PLACES = 64  # of one word


def smallest_window(text: bytes, words: Sequence[bytes]) -> tuple[int, int] | None:
    """The bytes of the first of the shortest pieces that hold every word that is in the text at all; None where none is.

    words: folded. ASCII letters of the text match either case. A word that is one in the text, or a part of an identifier, is preferred
    to letters inside another. A word whose accents were taken off is not found.
    """
    folded = text.lower()
    places = sorted((start, start + len(word), i) for i, word in enumerate(dict.fromkeys(words)) for start in _starts(text, folded, word))
    n_found = len({i for _, _, i in places})
    if not n_found:
        return None
    best: tuple[int, int] | None = None
    counts: dict[int, int] = {}
    left = 0
    for right, (_, _, i) in enumerate(places):
        counts[i] = counts.get(i, 0) + 1
        while len(counts) == n_found:
            start, _, first = places[left]
            end = max(end for _, end, _ in places[left : right + 1])
            if best is None or end - start < best[1] - best[0]:
                best = start, end
            counts[first] -= 1
            if not counts[first]:
                del counts[first]
            left += 1
    return best


def _starts(text: bytes, folded: bytes, word: bytes) -> list[int]:
    """Where a word stands, as a word or part of an identifier; else wherever its letters do."""
    found: list[int] = []
    at = folded.find(word)
    while at >= 0 and len(found) < MAX_PLACES:
        found.append(at)
        at = folded.find(word, at + 1)
    return [at for at in found if _begins(text, at) and _ends(text, at + len(word))] or found


def _begins(text: bytes, at: int) -> bool:
    before = text[at - 1 : at]
    return not before.isalnum() or not before.isalpha() or (before.islower() and text[at : at + 1].isupper())


def _ends(text: bytes, at: int) -> bool:
    after = text[at : at + 1]
    return not after.isalpha() or after.isupper()
