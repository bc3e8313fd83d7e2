"""How much like a sentence a query is, as against words in any order: a logistic regression that each corpus fits on neighbouring words.

Whole sentences about something else find more by chance than shuffled words do, for their words belong together: of everyday questions
(`shards.background`) 38 % had E <= 0.1 on cisi where E was fitted on shuffled words alone, and 6 % once it goes by this number, too
(`shards.nulls.FusedNull`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shards.answerability import MIN_EXAMPLES, fit_logistic
from shards.probes import MAX_WORDS
from shards.word_order import WordFacts

_DIGITS = 4  # kept of what is learnt: sums that differ in their last bits must not change it


@dataclass(frozen=True, slots=True)
class SentenceLikeness:
    """centre, scale: of each feature (`_features`). coefficients: of the standardised features; intercept: of the log odds."""

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    coefficients: tuple[float, ...]
    intercept: float

    @classmethod
    def fit(
        cls, sentences: Sequence[tuple[WordFacts, int]], shuffled: Sequence[tuple[WordFacts, int]]
    ) -> "SentenceLikeness | None":
        """From what was seen of sentences and of shuffled words, each with its number of words. None for too few of either."""
        if min(len(sentences), len(shuffled)) < MIN_EXAMPLES:
            return None
        positive, negative = (np.array([_features(*one) for one in kind]) for kind in (sentences, shuffled))
        both = np.concatenate([positive, negative])
        centre = np.round(both.mean(axis=0), _DIGITS)
        scale = np.maximum(np.round(both.std(axis=0), _DIGITS), 10.0**-_DIGITS)
        coefficients, intercept = fit_logistic((positive - centre) / scale, (negative - centre) / scale)
        kept = tuple(np.round(coefficients, _DIGITS).tolist())
        return cls(tuple(centre.tolist()), tuple(scale.tolist()), kept, round(intercept, _DIGITS))

    def of(self, words: WordFacts, n_words: int) -> float:
        """Between 0, like words in any order, and 1, like a sentence."""
        values = (np.array(_features(words, n_words)) - self.centre) / self.scale
        log_odds = float(values @ np.array(self.coefficients)) + self.intercept
        return 1.0 / (1.0 + math.exp(-min(max(log_odds, -30.0), 30.0)))

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "SentenceLikeness":
        """What `to_json` gave."""
        return cls(*(tuple(value[name]) for name in ("centre", "scale", "coefficients")), value["intercept"])


def _features(words: WordFacts, n_words: int) -> list[float]:
    length = math.log(max(min(n_words, MAX_WORDS), 1))
    return [length, words.class_mean, words.class_sum, words.pair_mean, words.pair_sum, words.pair_total]
