"""How likely a random text of this corpus holds a string like this one: the null model of layers that match or do not.

A character model of order 2 over bytes with ASCII case folded, smoothed by Witten & Bell (1991, method C), made of trigram
counts, which are exact sums over texts: they add up over segments and subtract for deleted rows. It answers for a string that
nobody knows, so a unique long literal is a certainty even though it occurs once. What it cannot know is that `isinstance` is
a word here: its letters are not that likely, its users are many. So a word more frequent than chance could make it counts as
likely as it is frequent (`ChanceModel.log_word`).

Case is not modelled: an exact capital is taken to be as likely as the letter, which only understates the surprise.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shards.types import Array, Arrays

MIN_WORD_COUNT = 16  # a word seen less often says nothing of how common it is; its letters do (then a name used once stays rare)
_NEWLINE = 10
_WORD = re.compile(rb"[a-z0-9_\x80-\xff]+")
WORD_BYTES = np.array([_WORD.fullmatch(bytes([b])) is not None for b in range(256)])  # after folding


def fold(text: bytes) -> bytes:
    """ASCII upper case to lower, byte by byte; everything else stays (bytes.lower does just this)."""
    return text.lower()


def count_texts(text: Array, starts: Array, ends: Array) -> tuple[Arrays, Array]:
    """The statistics of some texts, and the number of lines of each.

    text: (bytes,) uint8; starts, ends: (n,) int64. Each text counts as if two line feeds stood before and one after it: the sum
    over texts does not depend on how they are packed, and each byte and last line feed is the end of one trigram.
    Returns ("n_bytes", (1,) int64 with one line feed per text; "trigrams" ascending and "words" (slots), uint32, with their
    counts "trigram_counts" and "word_counts", uint32), and (n,) int64. 150 MB/s on one core.
    """
    from shards import chance_kernels

    trigrams = np.zeros(1 << 24, np.uint32)  # 64 MB of address space; only pages of pairs that occur are ever touched
    pairs = np.zeros(1 << 16, np.bool_)
    words = np.zeros(chance_kernels.N_WORD_SLOTS, np.uint32)
    slots = np.zeros(chance_kernels.N_WORD_SLOTS >> 8, np.bool_)
    lines = np.zeros(len(starts), np.int64)
    chance_kernels.tally(text, starts, ends, trigrams, pairs, words, slots, lines)
    keys, counts = chance_kernels.compact(trigrams, pairs)
    used, word_counts = chance_kernels.compact(words, slots)
    filled = ends > starts
    n_bytes = int((ends - starts)[filled].sum() + filled.sum())
    statistics = {
        "n_bytes": np.array([n_bytes], np.int64),
        "trigrams": keys,
        "trigram_counts": counts,
        "words": used,
        "word_counts": word_counts,
    }
    return statistics, lines


def add_statistics(parts: Sequence[tuple[int, Arrays]]) -> Arrays:
    """The signed sum of statistics: arrays as `count_texts` gives them, counts int64. Terms that sum to nothing are gone."""
    total = {"n_bytes": np.array([sum(sign * int(part["n_bytes"][0]) for sign, part in parts)], np.int64)}
    for keys_name, counts_name in (("trigrams", "trigram_counts"), ("words", "word_counts")):
        keys = np.concatenate([part[keys_name] for _, part in parts] or [np.zeros(0, np.uint32)])
        signed = [sign * part[counts_name].astype(np.int64) for sign, part in parts]
        unique, inverse = np.unique(keys, return_inverse=True)
        counts = np.zeros(len(unique), np.int64)
        np.add.at(counts, inverse, np.concatenate(signed or [np.zeros(0, np.int64)]))
        total[keys_name], total[counts_name] = unique[counts > 0], counts[counts > 0]
    return total


@dataclass(frozen=True)
class ChanceModel:
    """Trigram and word frequencies of a corpus. Bytes are folded; a line feed is the border of every unit.

    n_units: lines, or paths. n_bytes: with one line feed per text. trigrams (ascending), counts: the trigrams that occur.
    words, word_counts: slots of folded words (`chance_kernels.slot_of`) and how many words fell into each.
    """

    n_units: int
    n_bytes: int
    trigrams: Array = field(repr=False)
    counts: Array = field(repr=False)
    words: Array = field(repr=False)
    word_counts: Array = field(repr=False)

    @classmethod
    def collect(cls, parts: Sequence[tuple[int, Arrays]]) -> "ChanceModel":
        """The model of a corpus, from (sign, statistics with "n_units") of segments and tombstone sets."""
        total = add_statistics(parts)
        n_units = sum(sign * int(part["n_units"][0]) for sign, part in parts)
        names = ("trigrams", "trigram_counts", "words", "word_counts")
        return cls(n_units, int(total["n_bytes"][0]), *(total[name] for name in names))

    @property
    def mean_bytes(self) -> float:
        """Mean bytes of a unit, its line feed included."""
        return max(self.n_bytes / self.n_units, 1.0) if self.n_units > 0 else 1.0

    @cached_property
    def unigram(self) -> Array:
        """(256,) float64, the chance of each byte, never 0."""
        counts = np.bincount((self.trigrams & 255).astype(np.int64), self.counts, 256)
        kinds = max(int((counts > 0).sum()), 1)
        return (counts + kinds / 256) / (counts.sum() + kinds)

    @cached_property
    def _pairs(self) -> tuple[Array, Array]:
        """Byte pairs that occur, a<<8|b ascending, and their counts (as the last two of a trigram)."""
        counts = np.bincount((self.trigrams & 0xFFFF).astype(np.int64), self.counts, 1 << 16)
        pairs = np.flatnonzero(counts)
        return pairs, counts[pairs]

    def next_byte(self, context: bytes) -> Array:
        """The chance of each next byte, (256,) float64. context: folded bytes before it, the last two count; b"" if unknown."""
        chance = self.unigram
        if context:
            chance = self._blend(*self._pairs, context[-1], chance)
        if len(context) > 1:
            chance = self._blend(self.trigrams, self.counts, context[-2] << 8 | context[-1], chance)
        return chance

    def next_after(self, allowed: Array) -> Array:
        """`next_byte` where the byte before is only known to be one of `allowed`, (256,) bool."""
        chance = self.pair_table[allowed].sum(axis=0) + 256 * self.unigram
        return chance / chance.sum()

    @cached_property
    def pair_table(self) -> Array:
        """How often each byte follows each: (256, 256) float64, by the byte before, then the byte."""
        pairs, counts = self._pairs
        table = np.zeros((256, 256))
        table[pairs >> 8, pairs & 255] = counts
        return table

    @staticmethod
    def _blend(keys: Array, counts: Array, context: int, shorter: Array) -> Array:
        """Witten-Bell: (N(context, c) + T·P(c | shorter context)) / (N(context) + T), T the number of kinds of next bytes."""
        low, high = np.searchsorted(keys, (context << 8, (context + 1) << 8))
        n, kinds = float(counts[low:high].sum()), int(high - low)
        if not kinds:
            return shorter
        chance = kinds * shorter
        chance[(keys[low:high] & 255).astype(np.int64)] += counts[low:high]
        return chance / (n + kinds)

    @cached_property
    def log_boundary(self) -> float:
        """ln of the chance that a word byte has no word byte before it."""
        pairs, counts = self._pairs
        before, after = WORD_BYTES[pairs >> 8], WORD_BYTES[pairs & 255]
        inside = counts[after].sum()
        return math.log(max(counts[after & ~before].sum() / inside, 1e-6)) if inside else 0.0

    @cached_property
    def _word_noise(self) -> float:
        """What a slot holds by chance: words that merely share it, and too few to count (Deng & Rafiei 2007)."""
        from shards.chance_kernels import N_WORD_SLOTS

        return self.word_counts.sum() / N_WORD_SLOTS + MIN_WORD_COUNT

    def log_word(self, word: bytes) -> float:
        """ln of the chance that this folded word begins at a given byte, by how often it was seen; -inf unless frequent."""
        from shards.chance_kernels import slot_of

        slot = slot_of(np.frombuffer(word, np.uint8))
        at = np.searchsorted(self.words, slot)
        seen = float(self.word_counts[at]) if at < len(self.words) and self.words[at] == slot else 0.0
        excess = seen - self._word_noise
        return math.log(excess / self.n_bytes) if excess > 0 and self.n_bytes > 0 else -math.inf

    def log_letters(self, run: bytes, context: bytes = b"") -> float:
        """ln of the chance that these folded bytes come next after `context`, by their letters alone."""
        total = 0.0
        for byte in run:
            total += math.log(self.next_byte(context)[byte])
            context = context[-1:] + bytes([byte])
        return total

    def log_run(self, run: bytes, context: bytes = b"") -> float:
        """`log_letters`, where a frequent word is as likely as it is frequent: among words where one begins, else among bytes."""
        total, done = 0.0, 0
        for match in _WORD.finditer(run):
            before = (context + run[: match.start()])[-2:]
            total += self.log_letters(run[done : match.start()], (context + run[:done])[-2:])
            begins = bool(before) and not WORD_BYTES[before[-1]]
            frequent = self.log_word(match.group()) + begins * self._log_bytes_per_word
            total += max(self.log_letters(match.group(), before), frequent)
            done = match.end()
        return total + self.log_letters(run[done:], (context + run[:done])[-2:])

    @cached_property
    def _log_bytes_per_word(self) -> float:
        return math.log(max(self.n_bytes / max(float(self.word_counts.sum()), 1.0), 1.0))

    def log_edge(self, word: bytes) -> float:
        """ln of the chance of a word boundary at one end of this run of word bytes; 0 for a frequent word, counted whole."""
        return self.log_boundary if word and self.log_word(word) == -math.inf else 0.0


def edge_words(run: bytes) -> tuple[bytes, bytes]:
    """The word bytes at the beginning and at the end of a folded run."""
    words = list(_WORD.finditer(run))
    return (
        words[0].group() if words and words[0].start() == 0 else b"",
        words[-1].group() if words and words[-1].end() == len(run) else b"",
    )


def log_p_literal(model: ChanceModel, literal: bytes, word: bool = False) -> float:
    """ln of the expected number of occurrences of an equally likely string in one unit; at most 0.

    ln(mean unit length) + ln P(c1) + ln P(c2 | c1) + Σ ln P(c_i | c_{i-2} c_{i-1}); with `word`, times the chance of a word
    boundary at each end that is a word byte. 0 (no surprise) where the corpus is empty.
    """
    if model.n_units <= 0 or not literal:
        return 0.0
    run = fold(literal)
    edges = sum(map(model.log_edge, edge_words(run))) if word else 0.0
    return min(math.log(model.mean_bytes) + model.log_run(run) + edges, 0.0)
