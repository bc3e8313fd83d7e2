"""How likely a random path of this corpus matches a fuzzy query at least this well: the null model of tier 1 of `names`.

A word of m letters is met by many alignments, each a few runs of letters with gaps between them. The expected number of alignments
that score s or more in a random path bounds the chance that the best one does. Runs are as likely as their letters follow one another
in paths, their beginnings as letters begin segments and words there: all from trigrams of paths, which are sums over segments.
Capitals are not counted in them, so that a camel hump begins at HUMPS of the other letters is an assumption.
"""

import math
from dataclasses import dataclass

import numpy as np

from shards.chance import WORD_BYTES, ChanceModel
from shards.types import Array

N_LENGTHS = 256  # path lengths in bytes that are told apart; longer ones count as 255
N_QUALITIES = 512  # steps of quality that are told apart
HUMPS = 0.1  # share of the letters inside words that are capitals after small letters, or digits after letters
_SEEN = 16.0  # letters at a place of one class, seen or not, that count as seen in proportion to all letters
_SLASH = 47
_WORD = WORD_BYTES & (np.arange(256) != ord("_"))  # as `path_kernels.bonuses` sees it


@dataclass(frozen=True, slots=True)
class PathModel:
    """What is known of all paths. chance: trigrams; lengths: (256,) int64, paths by bytes; last_bytes: of all last segments."""

    chance: ChanceModel
    lengths: Array
    last_bytes: int

    @property
    def n_units(self) -> int:
        return self.chance.n_units


def log_quality_tail(model: PathModel, words: tuple[bytes, ...]) -> Array:
    """ln of the chance that a random path matches all words with quality q / N_QUALITIES or better: (N_QUALITIES + 1,) float64.

    words: folded. Quality is the mean of the words' scores as shares of the best, as `path_kernels.match_paths` has it. Words are
    taken to be met independently of one another.
    """
    from shards.path_kernels import best_score

    tail = np.ones(1)
    for word in words:
        scores = _score_tail(model, word)
        chances = np.append(scores[:-1] - scores[1:], scores[-1])  # of exactly this score
        shares = np.arange(len(chances)) / (best_score(len(word)) + 1) / len(words)
        bins = np.zeros(N_QUALITIES + 1)
        np.add.at(bins, np.minimum(np.ceil(shares * N_QUALITIES).astype(np.int64), N_QUALITIES), chances)
        tail = np.convolve(tail, bins)
    tail[N_QUALITIES] += tail[N_QUALITIES + 1 :].sum()
    total = np.cumsum(tail[: N_QUALITIES + 1][::-1])[::-1]
    with np.errstate(divide="ignore"):
        return np.log(np.minimum(total, 1.0))


def _score_tail(model: PathModel, word: bytes) -> Array:
    """The chance that a random path holds the word as a subsequence that scores s or more: (best score + 1,) float64, falling."""
    from shards import path_kernels
    from shards.path_chance_kernels import BONUSES, expected_ways

    chance, letters = model.chance, np.frombuffer(word, np.uint8)
    n_last = max(model.last_bytes / max(model.n_units, 1), 1.0)
    n_folder = max(chance.mean_bytes - 1 - n_last, 0.0)
    slashes = max(chance.unigram[_SLASH] * chance.mean_bytes, 1.0)
    ways = np.zeros(path_kernels.best_score(len(word)) + 1)
    following = np.ones(len(word))
    begins = ~_WORD[letters] | ~_WORD[np.roll(letters, 1)]  # in a run, where a word does
    for i in range(1, len(word)):
        following[i] = max(chance.next_byte(word[max(i - back, 0) : i])[letters[i]] for back in (1, 2))
    expected_ways(letters, _beginnings(chance)[letters], following, begins, n_folder, n_last, 1 / slashes, BONUSES, ways)
    tail = np.cumsum(ways[::-1])[::-1]
    # A frequent word is as likely as it is frequent; and at no score more likely than to be a subsequence at all.
    tail = np.maximum(tail, min(chance.mean_bytes * math.exp(chance.log_run(word)), 1.0))
    return np.minimum(tail, _chance_of_subsequence(model, letters))


def _beginnings(chance: ChanceModel) -> Array:
    """(256, 4) float64: the chance that a byte is this one and begins a run of class none, hump, word, segment."""
    table = chance.pair_table
    before_word = ~_WORD
    before_word[[_SLASH, ord("\n")]] = False
    ends = {"segment": np.isin(np.arange(256), (_SLASH, ord("\n"))), "word": before_word}
    joint = np.zeros((256, 4))
    total = max(table.sum(), 1.0)
    for column, which in ((2, "word"), (3, "segment")):
        counts = table[ends[which]].sum(axis=0)
        joint[:, column] = (counts + _SEEN * chance.unigram) / (counts.sum() + _SEEN) * (counts.sum() + 1) / (total + 1)
    inside = np.maximum(chance.unigram - joint[:, 2] - joint[:, 3], 0.0)
    joint[:, 1], joint[:, 0] = HUMPS * inside, (1 - HUMPS) * inside
    joint[~_WORD, 2] += joint[~_WORD, :2].sum(axis=1)  # what is no part of a word earns as much as the beginning of one
    joint[~_WORD, :2] = 0.0
    return joint


def _chance_of_subsequence(model: PathModel, letters: Array) -> float:
    """Of independent bytes, in paths as long as the corpus's: the waiting times for the letters add up to at most the length."""
    from shards import path_kernels

    total = np.ones(N_LENGTHS)
    path_kernels.waiting_times(model.chance.unigram[letters], total)
    return float((total * model.lengths).sum()) / max(int(model.lengths.sum()), 1)
