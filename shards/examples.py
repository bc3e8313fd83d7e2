"""Texts that a caller chose as examples of what is meant, and the terms that set them apart from the corpus.

A term is told from the corpus's background by how many of the examples and how many of its units hold it, two binomials whose
likelihood ratio is compared (Dunning 1993, "Accurate methods for the statistics of surprise and coincidence"): unlike chi-square or
pointwise mutual information it does not overrate what is rare, and it needs no more than the document frequencies that are kept.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from shards.plan import SpaceQuery

# Of one example that are read. What is longer speaks of other things, too; what is shorter, a line or a word that matched, says what was
# asked and not what it is about.
MIN_EXAMPLE_BYTES, MAX_EXAMPLE_BYTES = 1_000, 4_096


@dataclass(frozen=True, slots=True)
class Example:
    """A text and what kind of text it is (`Detail.kind`), by which its words are analysed."""

    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Term:
    """A term of examples against its background.

    term: as the layer knows it (a stem); forms: the words of the examples that it stands for, most frequent first
    rate: the mean over examples of its share of their words; n_examples: how many hold it
    df: units of the corpus that hold it, of n_units
    ratio: `log_likelihood_ratio` of these, 0 where it is no commoner in the examples
    """

    term: str
    forms: tuple[str, ...]
    rate: float
    n_examples: int
    df: int
    n_units: int
    ratio: float


class Reformulated(NamedTuple):
    """A question that examples changed. words: what it asks beside what it asked before, heaviest first; none where it asks no words."""

    query: SpaceQuery
    words: tuple[str, ...] = ()


def log_likelihood_ratio(n_with: int, n_examples: int, df: int, n_units: int) -> float:
    """Dunning's -2 ln lambda of a term: n_with of n_examples texts hold it, df of n_units of the corpus.

    Examples are units of the corpus or pieces of them, so what they hold is not counted a second time in the background. 0 where the term
    is no commoner among the examples, or nothing is left beside them. Source: Dunning 1993, section 4.
    """
    rest_with = max(df - n_with, 0)
    rest = max(n_units - n_examples, rest_with)
    if n_with * rest <= rest_with * n_examples:
        return 0.0
    both = (n_with + rest_with) / (n_examples + rest)
    return 2.0 * (
        _log_likelihood(n_with, n_examples, n_with / n_examples)
        + _log_likelihood(rest_with, rest, rest_with / rest)
        - _log_likelihood(n_with, n_examples, both)
        - _log_likelihood(rest_with, rest, both)
    )


def _log_likelihood(k: int, n: int, p: float) -> float:
    """ln of the likelihood of k successes in n with probability p; 0 ln 0 is 0."""
    return (k * math.log(p) if k else 0.0) + ((n - k) * math.log1p(-p) if k < n else 0.0)
