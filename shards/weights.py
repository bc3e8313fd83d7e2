"""How much each space's surprise counts: fitted on the corpus's own cloze probes, without labels.

Each probe is a choice among documents, of which one is right; the weights make the right ones likeliest under a softmax of the
weighted sum of surprises (conditional logit: McFadden 1974). A space that does not surely help to tell them apart gets 0, and so does
one of two that say the same.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shards.cascades import Recall
from shards.types import Array

MIN_CHOICES = 16  # with fewer probes the weights stay equal
# Weights that are not surely above 0 are 0 (a test at 2.5 %): of 245 probes of cisi noise got a tenth of the best space's weight by luck.
MIN_CERTAINTY = 1.96
PRIOR = 1.0  # precision of a Gaussian around equal weights: as much as a probe or two, against wild fits of few probes
MOST_SPACES = 6  # of which every choice is fitted; of more, single ones, pairs, and all but one
GRID = 1_000  # weights are rounded to 1/1,000: sums that differ in their last bits must not move E-values


class _Differences(NamedTuple):
    """Surprises of competitors less those of the right document. values: (t, s) float64, choice by choice; begins: (c,) int64, where each
    choice begins; of: (t,) int64, the choice of each row."""

    values: Array
    begins: Array
    of: Array

    @classmethod
    def among(cls, choices: Sequence[tuple[Array, Array]]) -> "_Differences | None":
        parts = [others - right for right, others in choices if len(others)]
        if not parts:
            return None
        sizes = np.array([len(part) for part in parts])
        return cls(np.concatenate(parts), np.cumsum(sizes) - sizes, np.repeat(np.arange(len(parts)), sizes))


def selections(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The choices among these spaces that a query may name, or that others' failures leave: none of them all, in a fixed order."""
    ordered = sorted(names)
    sizes = range(1, len(ordered)) if len(ordered) <= MOST_SPACES else sorted({1, 2, len(ordered) - 1})
    for size in sizes:
        yield from itertools.combinations(ordered, size)


def fit_weights(choices: Sequence[tuple[Array, Array]]) -> Array | None:
    """Weights of spaces, the largest 1; None where there are too few choices or no space tells anything apart.

    choices: (surprises of the right document (s,), of its competitors (n, s)), float64 nats.
    """
    differences = _Differences.among(choices) if len(choices) >= MIN_CHOICES else None
    if differences is None:
        return None
    n_spaces = differences.values.shape[1]
    free = np.ones(n_spaces, bool)
    weights = np.full(n_spaces, 0.3)
    for _ in range(n_spaces):
        weights = _maximise(differences, weights, free)
        certainty = _wald(differences, weights, free)
        worst = int(np.argmin(np.where(free, certainty, np.inf)))
        if certainty[worst] >= MIN_CERTAINTY or free.sum() == 1:
            break
        # The likelihood is concave: the space that surely helps least is left out, and the rest fitted again.
        free[worst] = False
        weights = np.where(free, np.maximum(weights, 0.05), 0.0)
    weights = np.maximum(weights, 0.0)
    largest = float(weights.max())
    return np.round(weights / largest * GRID) / GRID if largest > 0 else None


class Choices:
    """What is to be chosen from, of which the right one is known, and what that teaches of any of the spaces.

    spaces: that were tried. choices: as for `fit_weights`, a column for each of them.
    """

    def __init__(self, spaces: tuple[str, ...], choices: Sequence[tuple[Array, Array]]):
        self.spaces, self.choices = spaces, choices
        self._fitted: dict[tuple[str, ...], dict[str, float]] = {}

    def weights(self, names: Sequence[str]) -> dict[str, float]:
        """What each of these spaces counts beside the others of them, of those that were tried; empty where nothing was learnt."""
        some = tuple(name for name in self.spaces if name in names)
        if some not in self._fitted:
            at = [self.spaces.index(name) for name in some]
            fitted = fit_weights([(right[at], rest[:, at]) for right, rest in self.choices]) if some else None
            self._fitted[some] = {} if fitted is None else dict(zip(some, fitted.tolist(), strict=True))
        return self._fitted[some]

    def recall(self, names: Sequence[str]) -> Recall | None:
        """How deep what these spaces say together, weighed as `weights` has it, puts the right documents; None where nothing was learnt.

        A right document of which they say nothing is not found. (The weights were fitted on these very choices: a few numbers of hundreds
        of choices, so what is told is hardly too much.)
        """
        counted = self.weights(names)
        if not counted:
            return None
        weights = np.array([counted.get(name, 0.0) for name in self.spaces])
        ranks = []
        for right, rest in self.choices:
            own, others = float(right @ weights), rest @ weights
            ranks.append(1.0 + (others > own).sum() + (others == own).sum() / 2 if own > 0 else np.inf)
        return Recall.of_ranks(ranks)

    def found(self) -> dict[str, float]:
        """The mean reciprocal rank of the right document in each space, ties at half."""
        ranks = [1.0 + (rest > right).sum(axis=0) + (rest == right).sum(axis=0) / 2 for right, rest in self.choices]
        return dict(zip(self.spaces, np.round((1.0 / np.array(ranks)).mean(axis=0), 6).tolist(), strict=True)) if ranks else {}


def _maximise(differences: _Differences, weights: Array, free: Array) -> Array:
    """Newton's method on the penalised log likelihood over the free weights; the others stay 0. Converges in a few steps."""
    weights = np.where(free, weights, 0.0)
    value, gradient, hessian = _penalised(differences, weights, free)
    for _ in range(50):
        step = np.zeros_like(weights)
        step[free] = np.linalg.solve(hessian[np.ix_(free, free)], gradient[free])
        scale = 1.0
        while scale > 1e-6:
            trial = weights + scale * step
            reached = _penalised(differences, trial, free)
            if reached[0] >= value:
                break
            scale /= 2
        else:
            break
        weights, (value, gradient, hessian) = trial, reached
        if float(np.abs(step).max()) < 1e-10:
            break
    return weights


def _wald(differences: _Differences, weights: Array, free: Array) -> Array:
    """How many standard errors each free weight is above 0 (Wald 1943), of the others 0."""
    _, _, information = _penalised(differences, weights, free)
    certainty = np.zeros(len(weights))
    certainty[free] = weights[free] / np.sqrt(np.diag(np.linalg.inv(information[np.ix_(free, free)])))
    return certainty


def _penalised(differences: _Differences, weights: Array, free: Array) -> tuple[float, Array, Array]:
    """Log likelihood less the prior, its gradient, and minus its Hessian."""
    n_free = int(free.sum())
    centre = np.where(free, weights - weights[free].mean(), 0.0)
    spread = np.where(np.outer(free, free), np.eye(len(weights)) - 1.0 / n_free, 0.0)
    values, begins, of = differences
    utility = values @ weights
    top = np.maximum(np.maximum.reduceat(utility, begins), 0.0)  # the right document's utility is 0
    share = np.exp(utility - top[of])
    total = np.add.reduceat(share, begins) + np.exp(-top)
    share /= total[of]
    weighted = share[:, None] * values
    expected = np.add.reduceat(weighted, begins)
    value = -PRIOR * float(centre @ centre) - float((top + np.log(total)).sum())
    gradient = -2 * PRIOR * centre - expected.sum(axis=0)
    information = 2 * PRIOR * spread + 1e-9 * np.eye(len(weights)) + values.T @ weighted - expected.T @ expected
    return value, gradient, information
