"""Queries of known kind, what they found, and the null of evidence that those give which the corpus does not answer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shards.nulls import FusedNull
from shards.sentence_likeness import SentenceLikeness
from shards.types import Array
from shards.word_order import WordFacts


@dataclass(frozen=True, slots=True)
class Example:
    """A query of known kind: "shuffled" words, foreign to the "topic", "random" strings, or "" for the corpus's own, taken from the
    document `source`."""

    kind: str
    text: str
    source: bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What one example found. words: of its text. best, of_sources: the best evidence, and that of the source alone; of_selections: of one
    that all similarity spaces were asked, the best that each of `CorpusNulls.selections` gives. features: where they are wanted and
    something was asked."""

    n_words: int
    words: WordFacts
    best: float = 0.0
    of_sources: float = 0.0
    of_selections: Array | None = None
    features: Array | None = None


def fused_nulls(
    shuffled: Sequence[Seen], strangers: Sequence[Seen], likeness: SentenceLikeness | None, n_docs: int
) -> Callable[[Callable[[Seen], float], Iterable[str]], FusedNull | None]:
    """What fits the null of some evidence of queries that are not answered here: (what is taken of each, the spaces that give it) -> null.

    Shuffled words and strangers weigh the same together, however many there are of either."""
    seen = [*shuffled, *strangers]
    shares = np.concatenate([np.full(len(kind), 1.0 / max(len(kind), 1)) for kind in (shuffled, strangers)])
    likes = None if likeness is None else np.array([likeness.of(s.words, s.n_words) for s in seen], np.float64)
    lengths = [s.n_words for s in seen]
    return lambda taken, spaces: FusedNull.fit([float(taken(s)) for s in seen], lengths, n_docs, spaces, likes, shares)
