"""What BM25 knows of the whole corpus: how many units hold each term, and which terms begin alike."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from shards.analysis import Analyser
from shards.postings import TITLE, term_hash, term_hashes, title_term
from shards.types import Array

MAX_FORMS = 512  # words that a prefix stands for, the most frequent: 6 kB of a question
# Where a stemmer cuts deeper than a prefix reaches (`universit*`: "univers"), the word is found by what may follow.
_ENDINGS = {
    "english": ("", "e", "y", "s", "ed", "ing", "ion", "al", "ity", "ation"),
    "french": ("", "e", "é", "er", "s", "ion", "ement", "aire"),
    "german": ("", "e", "en", "er", "ung", "keit", "isch"),
    "spanish": ("", "a", "o", "e", "ad", "ar", "ción", "al"),
    "portuguese": ("", "a", "o", "e", "ade", "ar", "ção", "al"),
    "italian": ("", "a", "o", "e", "à", "are", "zione", "ale"),
}


@dataclass(frozen=True, slots=True)
class WordList:
    """The texts of a segment's terms, by their bytes. blob, offsets: packed as `shards.arrays.pack_strings`."""

    blob: Array
    offsets: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> bytes:
        return self.blob[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def beginning_with(self, prefix: bytes) -> list[bytes]:
        """Those that begin so: they stand together."""
        low = bisect_left(self, prefix)
        high = bisect_left(self, prefix + b"\xff", low)  # above any UTF-8
        data = self.blob[self.offsets[low] : self.offsets[high]].tobytes()
        edges = (self.offsets[low : high + 1] - self.offsets[low]).tolist()
        return [data[start:end] for start, end in pairwise(edges)]


@dataclass(frozen=True, slots=True)
class Statistics:
    """terms: (t,) uint64 term hashes, ascending; frequencies: (t,) int64, units that hold the term

    n_units, total_length: units of the corpus and their words
    languages: of the analysers in use, sorted; units_of: how many units are read by each
    words: the texts of the terms, of each segment; some may be of deleted documents only, and are then no terms
    """

    terms: Array
    frequencies: Array
    n_units: int
    total_length: int
    languages: tuple[str, ...]
    units_of: tuple[int, ...]
    words: tuple[WordList, ...] = field(default=(), repr=False, compare=False)

    @property
    def average_length(self) -> float:
        """Words of a unit."""
        return self.total_length / self.n_units or 1.0

    def frequency_of(self, terms: Sequence[str]) -> dict[str, int]:
        """In how many units each term occurs; only terms that do."""
        # Words of questions recur; of the thousands that begin alike few do.
        keys = term_hashes(terms) if len(terms) > MAX_FORMS else np.array([term_hash(term) for term in terms], np.uint64)
        places = np.searchsorted(self.terms, keys)
        places[places == len(self.terms)] = 0
        known = self.terms[places] == keys if len(self.terms) else np.zeros(len(keys), np.bool_)
        return {terms[i]: int(self.frequencies[places[i]]) for i in np.flatnonzero(known)}

    def idf(self, frequency: int) -> float:
        """Lucene's idf of a term that so many units hold."""
        df = min(frequency, self.n_units)
        return math.log1p((self.n_units - df + 0.5) / (df + 0.5))

    def beginning_with(self, prefix: str, in_title: bool = False) -> tuple[list[str], int]:
        """The terms of the words that begin so, most frequent first, at most MAX_FORMS; and how many there are.

        prefix: case-folded, without accents. Terms are stems: one that begins so is meant, and one that a word which begins so may be
        cut to, as far as common endings tell.
        """
        body = (title_term(prefix) if in_title else prefix).encode()
        found = {text.decode() for words in self.words for text in words.beginning_with(body)}
        if not in_title:
            found = {term for term in found if not term.startswith(TITLE)}
        for language in self.languages:
            for words in Analyser(language).recall([prefix + ending for ending in _ENDINGS.get(language, ("",))]):
                if len(words) == 1:
                    found.add(title_term(words[0][0]) if in_title else words[0][0])
        frequency = self.frequency_of(sorted(found))
        ranked = sorted(frequency, key=lambda term: (-frequency[term], term))
        return ranked[:MAX_FORMS], len(ranked)
