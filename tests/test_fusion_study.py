"""The study of other ways to fuse: its first row is the engine's, its numbers are by hand, and it runs on a real index."""

import numpy as np
import pytest
from test_evaluate import folder, run  # noqa: F401  fixtures

from jobs import fusion_study
from jobs.datasets import Judged
from jobs.fusion_study import BENDS, Seen, bent, presence
from shards.weights import Choices, fit_weights

CANDIDATES = (("right",), ("wrong",), ("other", "its twin"))
SEEN = {"q1": Seen(CANDIDATES, np.array([[5.0, 1.0], [4.0, 3.0], [0.0, 0.5]]), np.array([500.0, 9_000.0, 800.0]))}
JUDGED = Judged("made", {"q1": "what is right"}, {"q1": {"right": 1}})


def test_presence_says_how_far_the_best_document_leads():
    by_hand = [7.0, 1.0, 7.0 - 6.5 / 9, 4.0, 3.0, 5.0, 3.0]  # evidence 6, 7 and .5; of the best 4 and 3; most 5 and 3
    np.testing.assert_allclose(presence(SEEN["q1"].surprises, np.ones(2)), by_hand)
    assert presence(np.zeros((0, 2)), np.ones(2)).tolist() == [0.0] * 7


def test_surprises_are_bent_by_query_and_weights_taught_anew():
    rng = np.random.default_rng(3)
    made = Choices(("a", "b"), [(rng.exponential(1.0, 2) + [6.0, 3.0], rng.exponential(1.0, (20, 2))) for _ in range(40)])
    share = bent(made, BENDS["share of the query's best"])
    assert all(max(right.max(), rest.max()) == pytest.approx(1.0) for right, rest in share.choices)
    roots = bent(made, BENDS["square root"])
    by_hand = fit_weights([(np.sqrt(right), np.sqrt(rest)) for right, rest in made.choices])
    assert list(roots.weights(("a", "b")).values()) == by_hand.tolist()


def test_each_way_ranks_by_what_it_says():
    choices = Choices(("a", "b"), [])  # nothing taught: equal weights, by which the wrong document is best
    figures = fusion_study._ranked(SEEN, choices, JUDGED).figures
    second = 1 / np.log2(3)
    assert figures["sum of surprise"] == figures["equal weights"] == pytest.approx(second)
    assert figures["less 0.25 ln(length)"] == pytest.approx(second)  # 7 - .25 ln 9 is 6.45
    assert figures["less 0.5 ln(length)"] == 1.0  # 7 - .5 ln 9 is 5.9, below 6


def test_the_study_runs_on_a_real_index_and_its_first_row_is_what_the_engine_gives(folder, run):  # noqa: F811
    code, found, out, err = run("--dataset", folder, "--layers", "bm25,words=bm25:stem=false", "--study")
    assert code == 0, err
    assert "Ways to fuse" in out and "Is the answer there?" in out
    assert found["sections"]["study"]["sum of surprise"] == pytest.approx(found["runs"]["evidence"]["ndcg@10"])
