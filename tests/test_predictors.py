"""Query performance predictors, by hand-computed lists."""

import math

import numpy as np
import pytest

from jobs.predictors import Clarity, correlations, nqc, section, smv, wig

SCORES = np.array([4.0, 3.0, 1.0])


def test_wig_is_how_far_the_first_scores_are_above_the_collection():
    assert wig(SCORES, 1.0, n_words=4, k=2) == pytest.approx(((4 - 1) + (3 - 1)) / 2 / 2)
    assert wig(SCORES, 1.0, n_words=1) == pytest.approx((3 + 2 + 0) / 3)


def test_nqc_is_the_spread_over_the_collections_score():
    assert nqc(SCORES, -2.0, k=2) == pytest.approx(0.5 / 2)
    assert math.isnan(nqc(SCORES, 0.0))


def test_smv_weighs_scores_by_how_far_their_logarithms_are_from_that_of_the_mean():
    mean = 8 / 3
    expected = sum(x * abs(math.log(x / mean)) for x in SCORES) / 3 / 2.0
    assert smv(SCORES, 2.0) == pytest.approx(expected)
    assert math.isnan(smv(np.array([-1.0]), 2.0))


def test_clarity_is_the_divergence_of_the_lists_words_from_the_collections():
    """Two documents, "a a" and "b b": P(a) = P(b) = 1/2 in the collection. The first one's model has .6 + .4 / 2 = .8 of a, .2 of b. On a
    list of it alone clarity is .8 log2(.8 / .5) + .2 log2(.2 / .5)."""
    clarity = Clarity({"1": "a a", "2": "b b"}, str.split)
    assert clarity("a", ["1"]) == pytest.approx(0.8 * math.log2(1.6) + 0.2 * math.log2(0.4))
    # both on the list, asked for a: they bring it forth with .8 and .2, so the list's model has .8 x .8 + .2 x .2 = .68 of a
    assert clarity("a", ["1", "2"]) == pytest.approx(0.68 * math.log2(1.36) + 0.32 * math.log2(0.64))
    assert clarity("unknown", ["1"]) == 0.0


def test_a_predictor_that_orders_queries_as_they_do_correlates_fully_and_one_without_values_not_at_all():
    ndcg = np.array([0.1, 0.5, 0.3, 0.9])
    found = correlations(np.array([1.0, 3.0, 2.0, 100.0]), ndcg)
    assert found["Kendall"] == found["Spearman"] == pytest.approx(1.0) and 0 < found["Pearson"] < 1
    assert correlations(np.array([math.nan, 1.0, 2.0, math.nan]), ndcg) == pytest.approx(dict.fromkeys(found, math.nan), nan_ok=True)
    assert section({"p": -ndcg, "constant": np.ones(4)}, ndcg).rows == [["p", "-1.000", "-1.000", "-1.000"], ["constant", "?", "?", "?"]]
