"""Weights of spaces from judgements, and what they are worth on queries that were not learnt from.

Each relevant document is a choice among those found for its query, and the weights make the right choices likeliest, as those that a
corpus learns from its own cloze probes do (`shards.weights`: conditional logit, McFadden 1974). Climbing nDCG@10 itself, weight by weight
(Metzler & Croft 2007), fitted accidents: cross-validated on 400 questions of xquad-de with four spaces it fell .0006 and .0042 below the
corpus's own weights (two seeds), and .0031 and .0046 below these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jobs.metrics import randomisation_p
from shards.types import Array
from shards.weights import fit_weights

N_TOP = 10
_DISCOUNTS = np.log2(np.arange(2, N_TOP + 2))
N_BOOTSTRAP = 10_000
_BLOCK = 250  # of them at once: 24 MB of places at 12,000 queries


@dataclass(frozen=True, slots=True)
class Judgements:
    """q queries with the documents found for each, d at most, whose evidence s spaces gave. Rows beyond a query's documents are 0.

    surprises: (q, d, s) float64, nats, each query's documents in the order in which ties fall. own: (q, d), what they are ranked by as
    it is. gains: (q, d), grades of at least 0. ideal: (q,), DCG of the best ranking there could be; 0 where nothing is relevant.
    """

    surprises: Array
    own: Array
    gains: Array
    ideal: Array

    def of(self, queries: Array) -> "Judgements":
        """Some of the queries."""
        return Judgements(self.surprises[queries], self.own[queries], self.gains[queries], self.ideal[queries])


def ideal_dcg(grades: Sequence[int]) -> float:
    """DCG@10 of the best ranking of all judged documents."""
    best = np.sort(np.maximum(np.array(grades, np.float64), 0.0))[::-1][:N_TOP]
    return float((best / _DISCOUNTS[: len(best)]).sum())


def ndcg(scores: Array, gains: Array, ideal: Array) -> Array:
    """nDCG@10 of each query, (q,), as `jobs.metrics.measure` has it: by score descending, ties in the order of rows; what scores 0 is
    not shown. scores, gains: (q, d); ideal: (q,)."""
    shown = np.argsort(-scores, axis=1, kind="stable")[:, :N_TOP]
    counted = np.where(np.take_along_axis(scores, shown, 1) > 0, np.take_along_axis(gains, shown, 1), 0.0)
    dcg = (counted / _DISCOUNTS[: shown.shape[1]]).sum(axis=1)
    return np.divide(dcg, ideal, out=np.zeros(len(scores)), where=ideal > 0)


def with_weights(judged: Judgements, weights: Array) -> Array:
    """nDCG@10 of each query under these weights, (q,)."""
    return ndcg(judged.surprises @ weights, judged.gains, judged.ideal)


def learnt(judged: Judgements, own: Array) -> Array:
    """Weights by which relevant documents are likeliest, (s,), the largest 1; the corpus's own where there is too little to learn from.

    A grade plays no part but that it is above 0. Documents that nobody found cannot be chosen, and teach nothing.
    """
    choices = []
    for surprises, gains in zip(judged.surprises, judged.gains, strict=True):
        others = surprises[(gains == 0) & surprises.any(axis=1)]
        choices += [(right, others) for right in surprises[gains > 0]]
    found = fit_weights(choices) if choices else None
    return own if found is None else found


@dataclass(frozen=True, slots=True)
class Tuning:
    """What weights were found for q queries and s spaces, and what they are worth.

    own, best, cross_validated: (q,) nDCG@10 with the corpus's own weights, with those learnt from all queries (which flatters them), and
        of each query with those learnt from the other folds
    start, weights: (s,) the corpus's own, and those learnt from all; of_folds: (folds, s)
    interval: 95 % of the mean gain of cross-validated over own, by bootstrap over queries; p: of that gain, two-sided
    """

    own: Array
    best: Array
    cross_validated: Array
    start: Array
    weights: Array
    of_folds: Array
    interval: tuple[float, float]
    p: float

    @property
    def gain(self) -> float:
        """Mean difference in nDCG@10 of cross-validated weights from the corpus's own."""
        return float((self.cross_validated - self.own).mean())

    @property
    def helps(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.interval[0] > 0


def tune(judged: Judgements, own: Array, folds: int = 5, seed: int = 0) -> Tuning:
    """Weights for a collection, and what they would be worth on queries like these. own: (s,), the corpus's weights."""
    order = np.random.default_rng(seed).permutation(len(judged.ideal))
    cross_validated, of_folds = np.zeros(len(order)), []
    for held_out in np.array_split(order, folds):
        of_folds.append(learnt(judged.of(np.setdiff1d(order, held_out)), own))
        cross_validated[held_out] = with_weights(judged.of(held_out), of_folds[-1])
    weights = learnt(judged, own)
    as_it_is = ndcg(judged.own, judged.gains, judged.ideal)
    gain = cross_validated - as_it_is
    interval, p = bootstrap_interval(gain, seed), randomisation_p(gain, seed)
    return Tuning(as_it_is, with_weights(judged, weights), cross_validated, own, weights, np.array(of_folds), interval, p)


def bootstrap_interval(values: Array, seed: int = 0, n: int = N_BOOTSTRAP, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the mean (Efron & Tibshirani 1993, chapter 13) of (m,) values drawn with replacement."""
    rng = np.random.default_rng(seed)
    blocks = [min(_BLOCK, n - begin) for begin in range(0, n, _BLOCK)]
    means = np.concatenate([values[rng.integers(0, len(values), (size, len(values)))].mean(axis=1) for size in blocks])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
