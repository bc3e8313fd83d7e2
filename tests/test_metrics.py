"""The metrics, by hand, against ir-measures, and the randomisation test against all sign patterns."""

import itertools
import math

import ir_measures
import numpy as np
import pytest
from ir_measures import AP, RR, R, nDCG

from jobs.datasets import read_run, write_run
from jobs.metrics import METRICS, compare, measure, randomisation_p, ranking

THEIRS = dict(zip(METRICS, (nDCG @ 10, R @ 100, AP, RR), strict=True))


def assert_same_as_ir_measures(qrels, run, path):
    """Each query and each metric, ours from the run in memory and theirs from the run as written."""
    write_run(path, run, "ours")
    judged = [ir_measures.Qrel(q, d, grade) for q, grades in qrels.items() for d, grade in grades.items()]
    found = ir_measures.iter_calc(THEIRS.values(), judged, ir_measures.read_trec_run(str(path)))
    theirs = {(m.query_id, m.measure): m.value for m in found}
    queries = sorted(qrels)
    for given in (run, read_run(path)):
        ours = measure(given, qrels, queries)
        for metric, name in THEIRS.items():
            expected = [theirs[query, name] for query in queries]
            assert ours[metric] == pytest.approx(expected, abs=1e-12), metric


def test_metrics_are_those_computed_by_hand():
    """Ranked: b (grade 2), x (unjudged), a (grade 1), n (grade 0); c (grade 3) is missed."""
    qrels = {"q": {"a": 1, "b": 2, "c": 3, "n": 0}}
    run = {"q": {"n": 0.5, "a": 1.0, "b": 9.0, "x": 2.0}}
    found = measure(run, qrels, ["q"])
    gained = 2 / math.log2(2) + 1 / math.log2(4)
    ideal = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert found["ndcg@10"][0] == pytest.approx(gained / ideal)
    assert found["recall@100"][0] == pytest.approx(2 / 3)
    assert found["map"][0] == pytest.approx((1 / 1 + 2 / 3) / 3)
    assert found["mrr"][0] == 1.0


def test_a_query_without_hits_or_without_relevant_documents_counts_zero():
    qrels = {"silent": {"a": 1}, "hopeless": {"a": 0, "b": -1}, "fine": {"a": 1}}
    found = measure({"hopeless": {"a": 1.0, "b": 2.0}, "fine": {"a": 1.0}, "unjudged": {"a": 1.0}}, qrels, list(qrels))
    assert all(values.tolist() == [0.0, 0.0, 1.0] for values in found.values())


def test_ties_are_broken_by_id_descending_after_rounding_to_float32():
    assert ranking({"a": 1.0, "b": 1.0, "c": 2.0, "é": 1.0}) == ["c", "é", "b", "a"]
    assert ranking({"a": 1.0 + 1e-12, "b": 1.0}) == ["b", "a"]


@pytest.mark.parametrize("seed", range(6))
def test_every_query_is_measured_as_by_ir_measures(seed, tmp_path):
    """Random runs with ties, near ties, long and empty lists; grades from -1 to 3."""
    rng = np.random.default_rng(seed)
    documents = [f"d{i}" for i in range(160)] + ["Ü", "z-1", "10", "9"]
    qrels, run = {}, {}
    for q in range(25):
        judged = rng.choice(documents, int(rng.integers(1, 40)), replace=False)
        qrels[f"q{q}"] = {str(d): int(rng.integers(-1, 4)) for d in judged}
        hits = rng.choice(documents, int(rng.integers(0, 140)), replace=False)
        scores = rng.integers(0, 12, len(hits)) / 7 + rng.choice([0.0, 1e-9, 1e-7, 1e-6], len(hits))
        if len(hits):
            run[f"q{q}"] = dict(zip(map(str, hits), map(float, scores), strict=True))
    run["unjudged"] = {"d1": 1.0}
    assert_same_as_ir_measures(qrels, run, tmp_path / "run.trec")


@pytest.mark.parametrize("n", [1, 2, 6, 11])
def test_p_is_near_that_of_all_sign_patterns(n):
    difference = np.random.default_rng(n).normal(0.3, 1.0, n).round(1)
    signs = np.array(list(itertools.product((-1, 1), repeat=n)))
    exact = float((np.abs(signs @ difference) >= abs(difference.sum()) - 1e-9).mean())
    assert randomisation_p(difference, n_permutations=20_000) == pytest.approx(exact, abs=0.015)


def test_a_difference_that_luck_cannot_give_has_the_smallest_p_there_is():
    assert randomisation_p(np.full(60, 0.1)) == pytest.approx(1 / 10_001)
    assert randomisation_p(np.zeros(60)) == 1.0


def test_p_depends_on_the_seed_alone():
    difference = np.random.default_rng(0).normal(0.1, 1.0, 40)
    assert randomisation_p(difference, 7) == randomisation_p(difference, 7) == randomisation_p(-difference, 7)
    assert randomisation_p(difference, 7) != randomisation_p(difference, 8)


def test_a_comparison_counts_wins_losses_and_ties():
    found = compare("a", "b", "map", np.array([0.5, 0.2, 0.3, 1.0]), np.array([0.4, 0.3, 0.3, 0.2]))
    assert (found.wins, found.losses, found.ties) == (2, 1, 1)
    assert found.difference == pytest.approx(0.2)
