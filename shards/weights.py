"""How much each space's surprise counts: fitted on the corpus's own cloze probes, without labels.

Each probe is a choice among documents, of which one is right; the weights make the right ones likeliest under a softmax of the
weighted sum of surprises (conditional logit: McFadden 1974). A space that does not help to tell them apart gets 0, two spaces
that say the same share one weight.
"""

from collections.abc import Sequence

import numpy as np

from shards.types import Array

MIN_CHOICES = 16  # with fewer probes the weights stay equal
PRIOR = 1.0  # precision of a Gaussian around equal weights: as much as a probe or two, against wild fits of few probes
GRID = 1_000  # weights are rounded to 1/1,000: sums that differ in their last bits must not move E-values


def fit_weights(choices: Sequence[tuple[Array, Array]]) -> Array | None:
    """Weights of spaces, the largest 1; None where there are too few choices or no space tells anything apart.

    choices: (surprises of the right document (s,), of its competitors (n, s)), float64 nats.
    """
    if len(choices) < MIN_CHOICES:
        return None
    n_spaces = len(choices[0][0])
    differences = [others - right for right, others in choices if len(others)]
    if not differences:
        return None
    free = np.ones(n_spaces, bool)
    weights = np.full(n_spaces, 0.3)
    for _ in range(n_spaces + 1):
        weights = _maximise(differences, weights, free)
        negative = free & (weights <= 0)
        if not negative.any():
            break
        # The likelihood is concave: the space that would count most against itself is left out, and the rest fitted again.
        worst = int(np.argmin(np.where(free, weights, np.inf)))
        free[worst] = False
        if not free.any():
            return None
        weights = np.where(free, np.maximum(weights, 0.05), 0.0)
    largest = float(weights.max())
    return np.round(weights / largest * GRID) / GRID if largest > 0 else None


def _maximise(differences: Sequence[Array], weights: Array, free: Array) -> Array:
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


def _penalised(differences: Sequence[Array], weights: Array, free: Array) -> tuple[float, Array, Array]:
    """Log likelihood less the prior, its gradient, and minus its Hessian."""
    n_free = int(free.sum())
    centre = np.where(free, weights - weights[free].mean(), 0.0)
    spread = np.where(np.outer(free, free), np.eye(len(weights)) - 1.0 / n_free, 0.0)
    value = -PRIOR * float(centre @ centre)
    gradient = -2 * PRIOR * centre
    information = 2 * PRIOR * spread + 1e-9 * np.eye(len(weights))
    for difference in differences:  # surprises of competitors less that of the right document: (n, s)
        utility = difference @ weights
        top = max(float(utility.max()), 0.0)
        share = np.exp(utility - top)
        total = float(share.sum()) + np.exp(-top)
        share /= total
        value -= top + np.log(total)
        expected = share @ difference
        gradient = gradient - expected
        information = information + (difference * share[:, None]).T @ difference - np.outer(expected, expected)
    return value, gradient, information
