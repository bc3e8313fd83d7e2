"""Whether words stand in an order that this corpus's writing has: a bigram model of its frequent words.

Words drawn at random from a corpus are its words, but "the the of" does not stand in it. The score is the pointwise mutual
information of neighbours (Church & Hanks 1990), smoothed towards independence: pairs that were never seen and are not expected,
such as two rare words, speak neither for nor against a query, so that a list of keywords is no nonsense.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shards.probes import words_of
from shards.types import Array

N_FREQUENT = 384  # words that are told apart, the rest is one class; AUC of questions against shuffled words grows up to 512
MIN_WORDS = 20_000  # a smaller sample shows too few pairs
SMOOTHING = 5.0  # pairs as independence would give them, added to those seen
STEP = 1 / 16  # nats: the table is int8


@dataclass(frozen=True, eq=False)
class WordOrder:
    """words: the frequent ones, lower case, most frequent first.

    table: (c, c) int8, PMI of a word and the next in 1/16 nat; c = len(words) + 2: other words, and what is not letters alone.
    """

    words: tuple[str, ...]
    table: Array

    @classmethod
    def fit(cls, texts: Iterable[str]) -> "WordOrder | None":
        """From a sample of the corpus; None where it is too small. Counts are integers: the same on every machine."""
        documents = [[word.lower() for word in words_of(text)] for text in texts]
        counts = Counter(word for words in documents for word in words)
        if counts.total() < MIN_WORDS:
            return None
        ranked = sorted((word for word in counts if word.isalpha()), key=lambda word: (-counts[word], word))
        words = tuple(ranked[:N_FREQUENT])
        order = cls(words, np.zeros((len(words) + 2, len(words) + 2), np.int8))
        pairs = np.zeros(order.table.shape, np.int64)
        for document in documents:
            classes = order._classes(document)
            np.add.at(pairs, (classes[:-1], classes[1:]), 1)
        expected = pairs.sum(axis=1)[:, None] * (pairs.sum(axis=0) / pairs.sum())
        pmi = np.log((pairs + SMOOTHING) / (expected + SMOOTHING))
        return cls(words, np.clip(np.rint(pmi / STEP), -127, 127).astype(np.int8))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def _classes(self, words: Iterable[str]) -> Array:
        other = len(self.words)
        return np.array([self._places.get(w, other if w.isalpha() else other + 1) for w in words], np.int64)

    def score(self, text: str) -> tuple[float, float]:
        """Mean PMI of neighbouring words in nats, and their sum over the root of their number; (0, 0) for a single word."""
        classes = self._classes(word.lower() for word in words_of(text))
        if len(classes) < 2:
            return 0.0, 0.0
        total = int(self.table[classes[:-1], classes[1:]].sum(dtype=np.int64)) * STEP
        n_pairs = len(classes) - 1
        return total / n_pairs, total / n_pairs**0.5

    def to_json(self) -> dict[str, Any]:
        """JSON values; the table as base64."""
        return {"words": list(self.words), "table": base64.b64encode(self.table.tobytes()).decode()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "WordOrder":
        """What `to_json` gave."""
        n_classes = len(value["words"]) + 2
        table = np.frombuffer(base64.b64decode(value["table"]), np.int8).reshape(n_classes, n_classes)
        return cls(tuple(value["words"]), table)
