"""Beliefs from E-values and their operators, computed by hand."""

import math

import numpy as np
import pytest

from serve.algebra import Algebra, Result, same
from serve.algebra_schema import And, Not, Or, Search, SubQuery, WeightedSum
from serve.beliefs import Beliefs, all_hold, any_holds, weighted_mean

N_DOCS = 99  # so that the prior, 1 / (1 + n), is 0.01


def beliefs(*evalues: float) -> Beliefs:
    with np.errstate(divide="ignore"):
        return Beliefs.of_evalues(np.log(np.array(evalues)))


def shares(found: Beliefs) -> list[float]:
    return np.exp(found.log_yes).tolist()


def test_even_odds_are_an_evalue_of_one_and_certainty_one_of_nought():
    assert shares(beliefs(1, 1 / 3, 3, 0, 99)) == pytest.approx([1 / 2, 3 / 4, 1 / 4, 1, 1 / 100])


@pytest.mark.parametrize(
    ("together", "expected"),
    [
        (all_hold, 3 / 8),  # 3/4 x 1/2
        (any_holds, 7 / 8),  # 1 - 1/4 x 1/2
        (lambda operands: ~operands[0], 1 / 4),
        (lambda operands: all_hold([operands[0], ~operands[1]]), 3 / 8),
        (lambda operands: weighted_mean(operands, [2, 1]), 2 / 3),  # (2 x 3/4 + 1/2) / 3
        (lambda operands: weighted_mean(operands, [0, 5]), 1 / 2),
        (lambda operands: any_holds([all_hold(operands), ~operands[0]]), 1 - (5 / 8) * (3 / 4)),
    ],
)
def test_operators_are_the_link_matrices_of_inference_networks(together, expected):
    found = together([beliefs(1 / 3), beliefs(1)])  # 3/4 and 1/2
    assert shares(found) == pytest.approx([expected])
    assert np.exp(found.log_evalues) == pytest.approx([(1 - expected) / expected])


def test_evalues_far_below_what_one_minus_belief_can_show_are_kept():
    tiny = Beliefs.of_evalues(np.array([-600.0]))
    assert 1 - shares(tiny)[0] == 0.0
    assert tiny.log_evalues == pytest.approx([-600.0])
    assert all_hold([tiny, tiny]).log_evalues == pytest.approx([-600.0 + math.log(2)])  # either may be wrong
    assert any_holds([tiny, tiny]).log_evalues == pytest.approx([-1200.0])  # both must be
    assert weighted_mean([tiny, beliefs(1)], [1, 1]).log_evalues == pytest.approx([math.log(1 / 3)])  # 3/4


def test_operators_agree_with_plain_arithmetic_over_random_beliefs():
    rng = np.random.default_rng(5)
    b = rng.uniform(0.01, 0.99, (4, 50))
    operands = [Beliefs.of_evalues(np.log((1 - row) / row)) for row in b]
    weights = rng.uniform(0, 3, 4)
    np.testing.assert_allclose(shares(all_hold(operands)), b.prod(axis=0))
    np.testing.assert_allclose(shares(any_holds(operands)), 1 - (1 - b).prod(axis=0))
    np.testing.assert_allclose(shares(weighted_mean(operands, weights)), weights @ b / weights.sum())


# --- as nodes of a request --------------------------------------------------------------------------------------------------------

A, B = (Search(search=SubQuery(query=word)) for word in ("a", "b"))


def algebra(**evalues: dict[int, float]) -> Algebra:
    """Four documents of a corpus of 99. a=, b=: by row, E of what a sub-query has found; what is not named it has not found."""
    hashes = np.arange(4, dtype=np.uint8)[:, None].repeat(20, axis=1)
    answered = {}
    for node, name in ((A, "a"), (B, "b")):
        found = evalues.get(name, {})
        log_evalues = np.zeros(4)
        log_evalues[list(found)] = np.log(list(found.values()))
        order = np.array(sorted(found, key=found.get), np.int64)
        answered[same(node)] = Result(order, -log_evalues, log_evalues, np.zeros(4, np.int64), "strong", "")
    return Algebra(hashes, N_DOCS, answered, {})


def evalues_of(found: Result) -> dict[int, float]:
    return {row: math.exp(found.log_evalues[row]) for row in found.order.tolist()}


def test_and_of_a_not_finds_what_the_one_has_and_the_other_has_not():
    found = algebra(a={0: 1 / 3, 1: 1 / 3}, b={1: 1 / 3, 2: 1 / 3}).of(And(all_of=(A, Not(none_of=B))))
    # 0: 3/4 x 99/100; 1: 3/4 x 1/4; 2 is only negated, so it is not found
    assert evalues_of(found) == pytest.approx({0: (1 - 0.7425) / 0.7425, 1: (1 - 0.1875) / 0.1875})
    assert found.order.tolist() == [0, 1]
    assert found.evidence[0] == pytest.approx(math.log(99 * 0.7425 / (1 - 0.7425)))  # -ln of E's share of all documents


def test_or_believes_what_either_has_and_more_what_both_have():
    found = algebra(a={0: 1 / 3, 1: 1}, b={0: 1, 2: 3}).of(Or(any_of=(A, B)))
    b = {0: 7 / 8, 1: 1 - 1 / 2 * 99 / 100, 2: 1 - 3 / 4 * 99 / 100}
    assert evalues_of(found) == pytest.approx({row: (1 - x) / x for row, x in b.items()})
    assert found.order.tolist() == [0, 1, 2]


def test_a_weighted_sum_takes_what_one_has_not_found_for_the_prior():
    found = algebra(a={0: 1 / 3}, b={0: 3, 1: 1}).of(WeightedSum.model_validate({"wsum": {"of": [A, B], "weights": [2, 1]}}))
    b = {0: (2 * 3 / 4 + 1 / 4) / 3, 1: (2 / 100 + 1 / 2) / 3}
    assert evalues_of(found) == pytest.approx({row: (1 - x) / x for row, x in b.items()})


def test_and_drops_what_is_believed_no_more_than_a_document_nothing_is_known_of():
    found = algebra(a={0: 1, 1: 0.001}, b={1: 0.001}).of(And(all_of=(A, B)))
    assert found.order.tolist() == [1]  # 0 has 1/2 x 1/100
