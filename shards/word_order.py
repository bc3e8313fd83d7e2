"""Whether words stand together as this corpus's writing has them: models of neighbouring words, and which words it knows.

Words drawn at random from a corpus are its words, but "the the of" does not stand in it. Two models of the pointwise mutual
information of neighbours (Church & Hanks 1990) tell: one of pairs as they stand, by absolute discounting (Ney, Essen & Kneser
1994), and one of frequent words with all others as classes, for pairs that were never seen. Of shuffled words as long as questions
and of questions, the pairs tell 95 to 99 % at 4 % of the questions; a table of 384 classes alone 61 to 94 %, pairs of a sample of
2 MB 83 to 97 % (scifact, cisi, standard library). So pairs are counted over the whole corpus, up to 16 MB of it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shards.types import Array, Arrays

N_FREQUENT = 384  # words that are told apart as classes
MIN_WORDS = 10_000  # of a smaller corpus most words of its own questions have not been seen
MIN_PAIRED = 50_000  # words; of a smaller corpus the pairs that questions are made of have not been seen
MAX_BYTES = 1 << 24  # of text that is counted
MAX_WORDS, MAX_PAIRS = 1 << 17, 1 << 19  # kept, the most frequent: 0.8 and 2.6 MB
SMOOTHING = 5.0  # pairs of classes as independence would give them, added to those seen
STEP = 1 / 16  # nats: the table of classes is int8
DISCOUNT = 0.75  # of a pair's count, for pairs never seen
_PER_OCTAVE = 8  # levels of a count


@dataclass(frozen=True, slots=True)
class WordFacts:
    """Of a text: mean PMI of neighbours in nats, and their sum over the root of their number, by classes and by pairs as they stand;
    the sum of the latter; and the share of its words that the corpus does not have, plain and weighted by rarity. All 0 where there
    is nothing to tell, as of neighbours in a corpus of less than `MIN_PAIRED` words."""

    class_mean: float = 0.0
    class_sum: float = 0.0
    pair_mean: float = 0.0
    pair_sum: float = 0.0
    pair_total: float = 0.0
    unknown: float = 0.0
    unknown_weight: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class WordCounts:
    """What was counted: words (w,) and pairs (p,), uint32 hashes ascending, how often each occurs, and how many words follow one.

    A sentence of the sample is scored without its own occurrence, which takes exact counts; they are not kept.
    """

    words: Array
    word_counts: Array
    followers: Array
    pairs: Array
    pair_counts: Array


@dataclass(frozen=True, eq=False)
class WordOrder:
    """n_words: counted in all.

    frequent: (f,) uint32 hashes (`shards.word_kernels`), most frequent first. classes: (f + 2, f + 2) int8, PMI of a word and the
    next in 1/16 nat; the last two are other words and what is not letters alone
    words: (w,) uint32 ascending; word_levels, follower_levels: (w,) uint8, level of its count and of that of words that follow it
    pairs: (p,) uint32 ascending; pair_levels: (p,) uint8. A level is 8 log2(1 + count), rounded
    counts: exact, None once read from storage
    """

    n_words: int
    frequent: Array
    classes: Array
    words: Array
    word_levels: Array
    follower_levels: Array
    pairs: Array
    pair_levels: Array
    counts: WordCounts | None = None

    @classmethod
    def fit(cls, texts: Iterable[tuple[Array, Array, Array]]) -> "WordOrder | None":
        """From a sample of the corpus; None where it is too small. Counts are integers: the same on every machine, in any order.

        texts: (text (b,) uint8, starts (n,) int64, ends (n,) int64) of documents each, `shards.documents.Documents`.
        """
        from shards.word_kernels import BYTE_KINDS, count_pairs, hash_words, number_words

        hashed = [hash_words(text, starts, ends, BYTE_KINDS) for text, starts, ends in texts]
        words = np.concatenate([np.zeros(0, np.uint32), *(hashes for hashes, _ in hashed)])
        plain = np.concatenate([np.zeros(0, bool), *(letters for _, letters in hashed)])
        numbers, keys, counts = number_words(words)
        if counts.sum() < MIN_WORDS:
            return None
        pair_keys, pair_counts, followers = count_pairs(words, numbers, len(keys))
        letters = np.zeros(len(keys), bool)
        letters[numbers[numbers >= 0]] = plain[numbers >= 0]

        ranked = np.lexsort((keys, -counts))
        frequent = keys[ranked[letters[ranked]][:N_FREQUENT]]
        kept = ranked[:MAX_WORDS]
        kept = kept[np.argsort(keys[kept])]
        if len(pair_keys) > MAX_PAIRS:
            top = np.lexsort((pair_keys, -pair_counts))[:MAX_PAIRS]
            pair_keys, pair_counts = pair_keys[top], pair_counts[top]
        order = np.argsort(pair_keys)
        exact = WordCounts(keys[kept], counts[kept], followers[kept], pair_keys[order], pair_counts[order])
        model = cls(
            int(counts.sum()),
            frequent,
            np.zeros((len(frequent) + 2, len(frequent) + 2), np.int8),
            exact.words,
            _levels(exact.word_counts),
            _levels(exact.followers),
            exact.pairs,
            _levels(exact.pair_counts),
            exact,
        )
        return model._with_classes(keys, letters, numbers)

    def _with_classes(self, keys: Array, letters: Array, numbers: Array) -> "WordOrder":
        """The same with the table of classes. keys, letters: of each distinct word; numbers: of the sample's words, -1 between texts."""
        n = len(self.classes)
        of_key = self._classes(keys, letters)
        of_word = np.append(of_key, n)[numbers]  # n: between texts
        pairs = np.bincount(of_word[:-1] * (n + 1) + of_word[1:], minlength=(n + 1) ** 2).reshape(n + 1, n + 1)[:n, :n]
        expected = pairs.sum(axis=1)[:, None] * (pairs.sum(axis=0) / max(pairs.sum(), 1))
        pmi = np.log((pairs + SMOOTHING) / (expected + SMOOTHING))
        self.classes[:] = np.clip(np.rint(pmi / STEP), -127, 127).astype(np.int8)
        return self

    @cached_property
    def _places(self) -> tuple[Array, Array]:
        """The frequent words, ascending, and the class of each."""
        order = np.argsort(self.frequent)
        return self.frequent[order], order

    def _classes(self, words: Array, letters: Array) -> Array:
        known, classes = self._places
        place = np.minimum(np.searchsorted(known, words), max(len(known) - 1, 0))
        other = np.where(letters, len(known), len(known) + 1)
        return np.where(known[place] == words, classes[place], other) if len(known) else other

    def frequent_of(self, words: Iterable[str]) -> set[str]:
        """Those of some words that are among the frequent."""
        from shards.word_kernels import BYTE_KINDS, hash_words

        wanted = sorted(set(words))
        bodies = [word.encode("utf-8", "replace") for word in wanted]
        ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
        starts = np.append(np.zeros(1, np.int64), ends[:-1]) if bodies else ends
        hashes, _ = hash_words(np.frombuffer(b"".join(bodies), np.uint8), starts, ends, BYTE_KINDS)
        known = self._places[0]
        frequent = _find(known, hashes)[1]
        ends_at = np.flatnonzero(hashes == 0)
        single = np.diff(ends_at, prepend=-1) == 2  # one hash and its separator: a word here, too
        return {word for word, at, one in zip(wanted, ends_at.tolist(), single.tolist(), strict=True) if one and frequent[at - 1]}

    def look(self, text: str, own: bool = False) -> WordFacts:
        """What can be told of a text. own: it was taken from the sample (only on a fresh fit): then it is looked at as if it had not
        been there, since whatever stands in the corpus is known to it."""
        from shards.word_kernels import BYTE_KINDS, hash_words, pair_hashes

        body = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        words, letters = hash_words(body, np.zeros(1, np.int64), np.array([len(body)], np.int64), BYTE_KINDS)
        words, letters = words[:-1], letters[:-1]
        if not len(words):
            return WordFacts()
        counts, followers = self._of_words(words, own)
        # of each word: its share, half an occurrence added to each of the known words and to one unknown
        share = (counts + 0.5) / (self.n_words + 0.5 * (len(self.words) + 1))
        rarity, unknown = -np.log(share), counts <= 0
        share_unknown = float(unknown.mean()), float(rarity[unknown].sum() / rarity.sum())
        if len(words) < 2 or self.n_words < MIN_PAIRED:
            return WordFacts(unknown=share_unknown[0], unknown_weight=share_unknown[1])
        classes = self._classes(words, letters)
        by_class = int(self.classes[classes[:-1], classes[1:]].sum(dtype=np.int64)) * STEP
        seen = self._of_pairs(pair_hashes(words), own)
        follow, after = followers[:-1], share[1:]
        before = np.maximum(counts[:-1], follow)
        discounted = np.maximum(seen - DISCOUNT, 0.0) + DISCOUNT * follow * after
        by_pair = float(np.log(np.where(follow > 0, discounted, 1.0) / np.where(follow > 0, before * after, 1.0)).sum())
        n = len(seen)
        return WordFacts(by_class / n, by_class / n**0.5, by_pair / n, by_pair / n**0.5, by_pair, *share_unknown)

    def _of_words(self, words: Array, own: bool) -> tuple[Array, Array]:
        """Counts of words and of those that follow them, as the levels give them, float64."""
        place, known = _find(self.words, words)
        if own and self.counts is not None:
            counts = np.where(known, self.counts.word_counts[place] - _times(words), 0)
            levels = _levels(np.maximum(counts, 0))
        else:
            levels = np.where(known, self.word_levels[place], 0)
        followers = np.where(known & (levels > 0), self.follower_levels[place], 0)
        return _counts(levels), _counts(followers)

    def _of_pairs(self, pairs: Array, own: bool) -> Array:
        place, known = _find(self.pairs, pairs)
        if own and self.counts is not None:
            counts = np.where(known, self.counts.pair_counts[place] - _times(pairs), 0)
            return _counts(_levels(np.maximum(counts, 0)))
        return _counts(np.where(known, self.pair_levels[place], 0))

    def to_arrays(self) -> Arrays:
        """What is kept of it."""
        names = ("frequent", "classes", "words", "word_levels", "follower_levels", "pairs", "pair_levels")
        return {"n_words": np.array([self.n_words], np.int64)} | {name: getattr(self, name) for name in names}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> "WordOrder":
        """What `to_arrays` gave."""
        return cls(**{name: array for name, array in arrays.items() if name != "n_words"}, n_words=int(arrays["n_words"][0]))


def _levels(counts: Array) -> Array:
    return np.rint(_PER_OCTAVE * np.log2(1.0 + counts)).astype(np.uint8)


def _counts(levels: Array) -> Array:
    return np.exp2(levels / _PER_OCTAVE) - 1.0


def _find(known: Array, wanted: Array) -> tuple[Array, Array]:
    """Places of hashes in an ascending array, and whether they are there."""
    if not len(known):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return place, known[place] == wanted


def _times(hashes: Array) -> Array:
    """How often each stands in the array itself."""
    counted = Counter(hashes.tolist())
    return np.array([counted[key] for key in hashes.tolist()], np.int64)
