"""Concordance: what a space says of what all others find best, never what it says of its own favourites."""

import numpy as np
import pytest
from scipy.stats import norm

from serve.concordance import N_TOP, concordances
from serve.evidence import Weighed

N_DOCS = 1_000
NAMES = ("bm25", "dense", "late", "static")


def weighed(surprises, weights=None):
    """Evidence as fusion knows it, of which concordance reads surprises and weights."""
    surprises = np.array(surprises, np.float64)
    s = surprises.shape[1]
    weights = np.ones(s) if weights is None else np.array(weights)
    fused = surprises @ weights
    rest = {"derived": np.zeros(s, bool), "scores": surprises, "z": surprises, "gates": np.ones(s), "nulls": ("probes",) * s}
    known = {"fused": fused, "of_sources": fused, "surprises": surprises, "weights": weights} | rest
    return Weighed(**{name: known.get(name, np.zeros(s)) for name in Weighed.__slots__})


def agreed(surprises, generated=None, weights=None, n_docs=N_DOCS):
    made = weighed(surprises, weights)
    listed = made.surprises > 0 if generated is None else np.array(generated)
    return concordances(made, listed, NAMES[: made.surprises.shape[1]], n_docs)


def slowly(surprises, generated, weights, n_docs):
    """EVIDENCE.md section 9, step 5, word by word, with SciPy's normal distribution; without a space's own gate."""
    n, s = surprises.shape
    g = [[max(0.0, norm.isf(np.exp(-surprises[i, j]))) if generated[i, j] else 0.0 for j in range(s)] for i in range(n)]
    found = []
    for j in range(s):
        total = [sum(weights[t] * g[i][t] for t in range(s) if t != j) for i in range(n)]
        top = sorted((i for i in range(n) if total[i] > 0), key=lambda i: (-total[i], i))[:N_TOP]
        k = sum(generated[i, j] for i in range(n))
        by_lot = norm.pdf(norm.isf(min(k / n_docs, 0.5))) if k else 0.0
        found.append(max(np.mean([g[i][j] for i in top]) - by_lot, 0.0) if top else np.nan)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_published_formula(seed):
    rng = np.random.default_rng(seed)
    surprises = rng.exponential(2, (60, 4))
    generated = rng.random((60, 4)) < 0.4
    weights = rng.random(4)
    expected = slowly(surprises, generated, weights, 300)
    np.testing.assert_allclose(agreed(surprises, generated, weights, 300), expected, rtol=1e-9, atol=1e-12)


def test_two_that_agree_are_confirmed_and_one_with_favourites_of_its_own_is_not():
    """bm25 and dense find document 0 (p = .001 each), late shouts for document 1. Phi^-1(.999) = 3.09, less phi(Phi^-1(1 / 1000))."""
    nats = -np.log(0.001)
    found = agreed([[nats, nats, 0.0], [0.0, 0.0, 40.0]])
    by_lot = norm.pdf(norm.isf(1 / N_DOCS))
    # Of bm25's two "best of the others", document 0 and document 1, which late alone finds, it knows one.
    assert found == pytest.approx([3.0902 / 2 - by_lot, 3.0902 / 2 - by_lot, 0.0], abs=1e-4)


def test_being_louder_about_its_own_favourites_changes_nothing():
    quiet = [[5.0, 5.0, 0.0], [4.0, 3.0, 0.0], [0.0, 0.0, 3.0], [0.0, 0.0, 4.0]]
    loud = [[5.0, 5.0, 0.0], [4.0, 3.0, 0.0], [0.0, 0.0, 60.0], [0.0, 0.0, 64.0]]
    assert agreed(quiet)[2] == agreed(loud)[2] == 0.0


def test_a_space_of_noise_agrees_as_much_as_documents_drawn_by_lot_do():
    """Over 60 queries the others' best are, to it, any documents: what is left is chance that the cut at 0 lets through."""
    rng = np.random.default_rng(9)
    values = []
    for _ in range(60):
        z = rng.normal(0, 1, (N_DOCS, 2))
        z[:, 0] += np.where(np.arange(N_DOCS) < 12, 5.0, 0.0)
        surprises = -norm.logsf(z)
        generated = z >= np.sort(z, axis=0)[-100]
        values.append(agreed(surprises, generated)[1])
    by_lot = norm.pdf(norm.isf(0.1))
    assert np.mean(values) < by_lot
    # a space that sees what the other sees
    assert agreed(-norm.logsf(np.where(np.arange(N_DOCS) < 12, 4.0, -1.0)[:, None] * np.ones((1, 2))), None)[1] > 3.0


def test_alone_there_is_nobody_to_agree_with():
    assert np.isnan(agreed([[5.0], [3.0]])).all()
    assert np.isnan(agreed([[5.0, 0.0], [3.0, 0.0]])).tolist() == [True, False]  # dense has bm25's favourites to agree with, and does not
    assert np.isnan(agreed(np.zeros((0, 3)))).all()


def test_weights_of_others_decide_whose_favourites_count():
    surprises = np.zeros((20, 3))
    surprises[:10, 0] = surprises[:10, 2] = 8.0
    surprises[10:, 1] = 8.0
    trusted, doubted = agreed(surprises, weights=[1.0, 0.0, 1.0]), agreed(surprises, weights=[0.0, 1.0, 1.0])
    assert trusted[2] > 3.0 and doubted[2] == 0.0


def test_the_order_of_spaces_in_the_plan_does_not_change_a_bit():
    rng = np.random.default_rng(3)
    surprises, generated, weights = rng.exponential(2, (80, 4)), rng.random((80, 4)) < 0.5, rng.random(4)
    here = concordances(weighed(surprises, weights), generated, NAMES, N_DOCS)
    order = [2, 0, 3, 1]
    there = concordances(weighed(surprises[:, order], weights[order]), generated[:, order], [NAMES[j] for j in order], N_DOCS)
    assert here[order].tobytes() == there.tobytes()
