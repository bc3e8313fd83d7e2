"""Whether words really stand together in a text, one after the other or near one another, as the text's own analyser reads them."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf

from shards.analysis import TOKEN_BYTES, Analyser, atoms

Slot = tuple[str, ...]  # terms of which one must stand at a place of the text
Operand = tuple[Slot, ...]  # successive places

_TOKEN = re.compile(TOKEN_BYTES)
_WORD_BYTES = 12  # of text that are read for each word wanted beyond a passage; if they do not suffice, four times as many


@dataclass(frozen=True, slots=True)
class Together:
    """What must stand together.

    operands: by the language of an analyser, all of one number; a phrase has one. distances: how many words lie at most between the
    last of an operand and the first of the next, on whichever side that is, plus one; one fewer than operands
    field: "title", "body" (what is not the title), or "" for the whole text
    """

    operands: Mapping[str, tuple[Operand, ...]]
    distances: tuple[int, ...] = ()
    field: str = ""

    def reach(self, language: str) -> int:
        """Places of the text that it may take, from the first word of its first operand to either side."""
        return sum(map(len, self.operands[language])) + sum(self.distances)


class TogetherFinder:
    """Looks in texts of one language. One per query: it remembers the tokens it has seen."""

    def __init__(self, analyser: Analyser):
        self._analyser = analyser
        self._atoms: dict[bytes, tuple[str, ...]] = {}

    def begins_in(self, asked: Together, content: memoryview, start: int, stop: int) -> bool:
        """Whether it stands in the text so that its first operand begins in bytes [start, stop), which cut no token in two."""
        language = self._analyser.language
        operands = asked.operands[language]
        within = self._terms(_TOKEN.findall(content[start:stop]))
        reach = asked.reach(language) - 1
        if not asked.distances:
            if _places(operands[0], within):
                return True
            within = within[len(within) - reach :] if reach < len(within) else within  # else it begins so near the end that it goes beyond
        first = operands[0][0]
        if not reach or not any(term in first for term in within):
            return False
        before = self._before(content, start, reach) if asked.distances else []
        terms = [*before, *within, *self._after(content, stop, reach)]
        places = [i for i in _places(operands[0], terms) if len(before) <= i < len(before) + len(within)]
        for operand, following, distance in zip(operands, operands[1:], asked.distances, strict=False):
            others = _places(following, terms) if places else []
            places = [j for j in others if _gap(places, len(operand), j, len(following)) <= distance]
        return bool(places)

    def _terms(self, tokens: Sequence[bytes]) -> list[str]:
        """What stands at the successive places of a text."""
        known = self._atoms
        new = [token for token in dict.fromkeys(tokens) if token not in known]
        for token, words in zip(new, self._analyser.analyse([t.decode("utf-8", "replace") for t in new]), strict=True):
            known[token] = tuple(atom for word in words for atom in atoms(word))
        return list(chain.from_iterable(map(known.__getitem__, tokens)))

    def _after(self, content: memoryview, at: int, n: int) -> list[str]:
        """The n places from byte `at` on, or as many as there are."""
        size = _WORD_BYTES * n
        while True:
            end = at + size
            tokens = _TOKEN.findall(content[at:end])
            if tokens and end < len(content):
                tokens.pop()  # it may go on
            terms = self._terms(tokens)
            if len(terms) >= n or end >= len(content):
                return terms[:n]
            size *= 4

    def _before(self, content: memoryview, at: int, n: int) -> list[str]:
        """The n places up to byte `at`, or as many as there are."""
        size = _WORD_BYTES * n
        while True:
            begin = max(at - size, 0)
            tokens = _TOKEN.findall(content[begin:at])
            terms = self._terms(tokens[1:] if begin else tokens)  # the first may have begun before
            if len(terms) >= n or not begin:
                return terms[-n:]
            size *= 4


def _places(operand: Operand, terms: Sequence[str]) -> list[int]:
    """Where an operand begins."""
    (first, *others), last = operand, len(terms) - len(operand)
    if len(first) == 1:
        (only,) = first
        places = [i for i, term in enumerate(terms) if term == only and i <= last]
    else:
        any_of = frozenset(first)
        places = [i for i, term in enumerate(terms) if term in any_of and i <= last]
    return [i for i in places if all(terms[i + j] in slot for j, slot in enumerate(others, 1))]


def _gap(places: Sequence[int], size: int, at: int, size_there: int) -> float:
    """From an operand that begins `at` to the nearest of others that does not overlap it, 1 where they touch; infinite where none is.

    places: where the others, of `size` words each, begin, ascending
    """
    before = bisect_right(places, at - size)
    after = bisect_left(places, at + size_there)
    gaps = [at - (places[before - 1] + size - 1)] if before else []
    gaps += [places[after] - (at + size_there - 1)] if after < len(places) else []
    return min(gaps, default=inf)
