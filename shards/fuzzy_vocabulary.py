"""All words of a corpus, and which of them a misspelt word may stand for: rapidfuzz over what a mask of letters leaves.

An edit takes at most one letter away and brings at most one, and at most three pairs of neighbours; so a word within k edits lacks at
most k of the other's letters and 3 k of its pairs, and the reverse. Masks of 64 bits tell that in a nanosecond; what they leave, some
hundreds of 100,000 words, rapidfuzz measures.
A table of deletions (SymSpell; Garbe 2012) answers sooner, and takes a hundred entries a word that must be built for each generation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shards.chance import ChanceModel
from shards.fuzzy_words import texts_of
from shards.postings import term_hashes
from shards.types import Array, Arrays

SAMPLE = 65_536  # words whose letters are counted, about, chosen by their hashes
PAIRS_AN_EDIT = 3  # pairs of neighbours that an edit may change: of `abcd`, swapping b and c leaves none
COUNTED = 1 << 18  # bytes that are counted at once, 1 ms
_BREAK = 10  # a line feed stands before and after each word


@dataclass(frozen=True)
class Vocabulary:
    """The words of a generation in order of their hashes. n_units: passages; frequencies: (t,) int64, in how many each word is."""

    n_units: int
    hashes: Array = field(repr=False)
    frequencies: Array = field(repr=False)
    blob: Array = field(repr=False)
    offsets: Array = field(repr=False)

    @classmethod
    def collect(cls, parts: Sequence[tuple[int, Arrays]]) -> "Vocabulary":
        """From (sign, statistics) of segments and tombstone sets."""
        hashes, place = np.unique(
            np.concatenate([part["term_hashes"] for _, part in parts] or [np.zeros(0, np.uint64)]), return_inverse=True
        )
        frequencies = np.zeros(len(hashes), np.int64)
        signed = [sign * part["frequencies"].astype(np.int64) for sign, part in parts]
        np.add.at(frequencies, place, np.concatenate(signed or [np.zeros(0, np.int64)]))
        hashes, frequencies = hashes[frequencies > 0], frequencies[frequencies > 0]
        texts = texts_of(hashes, [part for _, part in parts])
        n_units = sum(sign * int(part["n_units"][0]) for sign, part in parts)
        return cls(n_units, hashes, frequencies, texts["word_blob"], texts["word_offsets"])

    def words(self, numbers: Array) -> list[str]:
        """These words. numbers: (m,) int64."""
        return self._lines(numbers).tobytes().decode().split("\n")[:-1]

    def sizes(self, numbers: Array) -> Array:
        """How many characters these words have: (m,) int64."""
        return self._sizes[numbers]

    def _lines(self, numbers: Array) -> Array:
        """These words, a line feed behind each: (bytes,) uint8."""
        sizes = self.offsets[numbers + 1] - self.offsets[numbers] + 1
        ends = np.cumsum(sizes)
        places = np.repeat(self.offsets[numbers] - (ends - sizes), sizes) + np.arange(sizes.sum())
        text = self.blob[np.minimum(places, len(self.blob) - 1)]
        text[ends - 1] = _BREAK
        return text

    def frequency_of(self, word: str) -> int:
        """In how many passages a word is; 0 if in none."""
        (key,) = term_hashes([word])
        at = int(np.searchsorted(self.hashes, key))
        return int(self.frequencies[at]) if at < len(self.hashes) and self.hashes[at] == key else 0

    def near(self, word: str, edits: int) -> tuple[Array, Array]:
        """Words within so many edits (insert, drop, replace, swap neighbours): (m,) int64 numbers, ascending, (m,) int64 distances."""
        from rapidfuzz.distance import OSA
        from rapidfuzz.process import cdist

        longer = self._sizes - len(word)
        fits = np.flatnonzero(np.abs(longer) <= edits)
        longer = longer[fits]
        for masks, mask, factor in zip(self._masks, _masks_of(word), (1, PAIRS_AN_EDIT)):
            # A longer word has been inserted into that often: so many edits fewer can have taken something away.
            lacks, has = np.bitwise_count(mask & ~masks[fits]), np.bitwise_count(masks[fits] & ~mask)
            kept = (lacks <= factor * edits - np.maximum(longer, 0)) & (has <= factor * edits - np.maximum(-longer, 0))
            fits, longer = fits[kept], longer[kept]
        if not len(fits):
            return fits, fits
        distances = cdist([word], self.words(fits), scorer=OSA.distance, score_cutoff=edits, dtype=np.int64)[0]
        return fits[distances <= edits], distances[distances <= edits]

    def containing(self, word: str, edits: int) -> Array:
        """Words a part of which, or the whole, is this one but for `edits` letters that are others or stand elsewhere, by partial_ratio:
        (m,) int64 numbers, ascending."""
        from rapidfuzz.fuzz import partial_ratio
        from rapidfuzz.process import cdist

        fits = self._sizes >= len(word)
        for masks, mask, most in zip(self._masks, _masks_of(word), (edits, PAIRS_AN_EDIT * edits)):
            fits &= np.bitwise_count(mask & ~masks) <= most
        left = np.flatnonzero(fits)
        if not len(left):
            return left
        least = 100.0 * (len(word) - edits) / len(word) - 0.01  # which is rounded here and there
        alike = cdist([word], self.words(left), scorer=partial_ratio, score_cutoff=least, dtype=np.float32)[0]
        return left[alike > 0]

    @cached_property
    def _sizes(self) -> Array:
        """(t,) int64, characters of each word."""
        return np.diff(self._char_offsets)

    @cached_property
    def _char_offsets(self) -> Array:
        # Stretch by stretch, for `np.cumsum` keeps the interpreter's lock, and all bytes took 190 ms.
        begins, before = (self.blob & 0xC0) != 0x80, np.zeros(len(self.blob) + 1, np.int64)
        for low in range(0, len(begins), COUNTED):
            counted = np.cumsum(begins[low : low + COUNTED])
            before[low + 1 : low + 1 + len(counted)] = counted + before[low]
        return before[self.offsets]

    @cached_property
    def _masks(self) -> tuple[Array, Array]:
        """(t,) uint64 each: the characters of each word, and its pairs of neighbours, modulo 64."""
        if not len(self.hashes):
            return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        first = self._char_offsets[:-1]
        letters, pairs = _bits(self.blob.tobytes().decode())
        pairs[first] = 0  # with the last letter of the word before
        return np.bitwise_or.reduceat(letters, first), np.bitwise_or.reduceat(pairs, first)

    @cached_property
    def letters(self) -> ChanceModel:
        """How letters follow one another in words, each counted as often as passages hold it. A unit is a word."""
        limit = np.uint64(min(2**64 * SAMPLE // max(len(self.hashes), 1), 2**64 - 1))
        chosen = np.flatnonzero(self.hashes <= limit)
        text = np.concatenate([np.full(2, _BREAK, np.uint8), self._lines(chosen)])
        before = np.where(text[1:-1] == _BREAK, _BREAK, text[:-2])  # of a first letter two line feeds, as if each word stood alone
        weights = np.repeat(self.frequencies[chosen], np.diff(self.offsets)[chosen] + 1)
        used = np.flatnonzero(np.bincount(text, minlength=256))  # some dozens of bytes: their trigrams fit into a table
        code = np.zeros(256, np.int64)
        code[used] = np.arange(len(used))
        places = (code[before] * len(used) + code[text[1:-1]]) * len(used) + code[text[2:]]
        counts = np.bincount(places, weights).astype(np.int64)
        found = np.flatnonzero(counts)
        first, second, third = (used[code_of] for code_of in np.unravel_index(found, (len(used),) * 3))
        keys, counts = first << 16 | second << 8 | third, counts[found]
        nothing = np.zeros(0, np.uint32)
        n_words = int(self.frequencies[chosen].sum())
        return ChanceModel(n_words, int(weights.sum()), keys.astype(np.uint32), counts, nothing, nothing.astype(np.int64))

    @property
    def words_per_unit(self) -> float:
        """Distinct words of a mean passage."""
        return float(self.frequencies.sum()) / max(self.n_units, 1)


def _bits(text: str) -> tuple[Array, Array]:
    """Of each character its bit, and that of the pair it ends; the first ends none: (n,) uint64 each."""
    chars = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
    pairs = np.zeros(len(chars), np.uint64)
    pairs[1:] = np.uint64(1) << ((chars[:-1] * np.uint64(23) + chars[1:] * np.uint64(5)) & np.uint64(63))
    return np.uint64(1) << (chars & np.uint64(63)), pairs


def _masks_of(word: str) -> tuple[np.uint64, np.uint64]:
    letters, pairs = _bits(word)
    return np.bitwise_or.reduce(letters), np.bitwise_or.reduce(pairs)
