"""Whether a quoted phrase really stands in a text: its words one after the other, as the text's own analyser reads them."""

import re

from shards.analysis import TOKEN_BYTES, Analyser, atoms

_TOKEN = re.compile(TOKEN_BYTES)


class PhraseFinder:
    """Looks for phrases in texts of one language. One per query: it remembers the tokens it has seen."""

    def __init__(self, analyser: Analyser):
        self._analyser = analyser
        self._atoms: dict[bytes, tuple[str, ...]] = {}

    def begins_in(self, phrase: tuple[str, ...], text: bytes, n_bytes: int) -> bool:
        """Whether the phrase begins among the first `n_bytes` of the text, which end no token; it may end beyond."""
        head = _TOKEN.findall(text, 0, n_bytes)
        tokens = head + _TOKEN.findall(text, n_bytes)
        known = self._atoms
        new = [token for token in set(tokens) if token not in known]
        for token, words in zip(new, self._analyser.analyse([t.decode("utf-8", "replace") for t in new]), strict=True):
            known[token] = tuple(atom for word in words for atom in atoms(word))
        return any(self._stands_at(i, phrase, tokens) for i, token in enumerate(head) if phrase[0] in known[token])

    def _stands_at(self, i: int, phrase: tuple[str, ...], tokens: list[bytes]) -> bool:
        """Whether the phrase begins with one of token i's atoms."""
        n_first = len(self._atoms[tokens[i]])
        terms: list[str] = []
        while i < len(tokens) and len(terms) < n_first + len(phrase):
            terms += self._atoms[tokens[i]]
            i += 1
        return any(tuple(terms[j : j + len(phrase)]) == phrase for j in range(n_first))
