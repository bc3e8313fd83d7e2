"""The classic couplings: each formula by hand, then against a slow obvious version."""

import math
import statistics

import numpy as np
import pytest

from serve.classics import CLASSICS, Lists, combmnz, combsum, dbsf, lists_of, minmax, rrf, zscore
from shards.identity import content_hash

OFF = math.nan  # not on the list


def hashes_of(n: int) -> np.ndarray:
    """n hashes, ascending, as candidates have them."""
    return np.array(sorted(np.frombuffer(content_hash(str(i).encode()), np.uint8).tolist() for i in range(n)), np.uint8).reshape(n, 20)


def lists(*columns: list[float]) -> Lists:
    """A list of each column's scores; documents in rows."""
    scores = np.array(columns, np.float64).T
    return lists_of(hashes_of(len(scores)), scores, np.isfinite(scores))


# Four documents, a word list and a vector list: the first document is first on both, the last one on none but the second list.
WORDS, VECTORS = [12.0, 8.0, 4.0, OFF], [0.9, OFF, 0.5, 0.3]
BOTH = lists(WORDS, VECTORS)
EQUAL = np.ones(2)


def test_a_rank_is_the_place_on_the_list_from_1_and_0_means_not_on_it():
    assert BOTH.ranks.tolist() == [[1, 1], [2, 0], [3, 2], [0, 3]]


def test_documents_of_one_score_are_ranked_by_hash():
    assert lists([5.0, 7.0, 5.0, 7.0]).ranks[:, 0].tolist() == [3, 1, 4, 2]


def test_rrf_sums_reciprocal_ranks():
    assert rrf(BOTH, EQUAL, 60).tolist() == [1 / 61 + 1 / 61, 1 / 62, 1 / 63 + 1 / 62, 1 / 63]
    assert rrf(BOTH, EQUAL, 0).tolist() == [2, 1 / 2, 1 / 3 + 1 / 2, 1 / 3]


def test_combsum_sums_scores_as_they_are():
    assert combsum(BOTH, EQUAL).tolist() == [12.9, 8.0, 4.5, 0.3]


def test_minmax_brings_each_list_to_0_to_1():
    assert minmax(BOTH, EQUAL) == pytest.approx([1 + 1, 0.5, 0 + 1 / 3, 0])


def test_combmnz_multiplies_by_the_number_of_lists():
    assert combmnz(BOTH, EQUAL) == pytest.approx([(1 + 1) * 2, 0.5, (0 + 1 / 3) * 2, 0])


def test_zscore_counts_standard_deviations_from_the_end_of_the_list():
    sd = math.sqrt(32 / 3)  # of 12, 8, 4: squares of 4, 0, -4
    sd_2 = math.sqrt((0.9**2 + 0.5**2 + 0.3**2) / 3 - (1.7 / 3) ** 2)
    assert zscore(BOTH, EQUAL) == pytest.approx([8 / sd + 0.6 / sd_2, 4 / sd, 0.2 / sd_2, 0])


def test_dbsf_goes_from_three_standard_deviations_below_the_mean_to_three_above():
    # 12, 8, 4: mean 8, sd of a sample 4, so -4 is 0 and 20 is 1
    assert dbsf(lists(WORDS), np.ones(1)) == pytest.approx([16 / 24, 12 / 24, 8 / 24, 0])


def test_dbsf_does_not_cut_off_what_stands_out_most():
    """A hundred scores of which one is far from the others lie 9.9 of their deviations apart: cut at 3, the best two would tie."""
    found = dbsf(lists([100.0, 99.0] + [0.0] * 198), np.ones(1))
    assert found[0] > found[1] > 1


@pytest.mark.parametrize(("name", "expected"), [("combsum", 3.0), ("minmax", 1.0), ("combmnz", 1.0), ("zscore", 0.0), ("dbsf", 0.5)])
@pytest.mark.parametrize("scores", [[3.0], [3.0, 3.0, 3.0]])
def test_a_list_of_equal_scores_or_of_one(name, expected, scores):
    assert CLASSICS[name](lists(scores), np.ones(1)).tolist() == [expected] * len(scores)


def test_weights_multiply_what_a_list_gives():
    weights = np.array([1.0, 3.0])
    assert rrf(BOTH, weights, 60).tolist() == [1 / 61 + 3 / 61, 1 / 62, 1 / 63 + 3 / 62, 3 / 63]
    assert minmax(BOTH, weights) == pytest.approx([1 + 3, 0.5, 1, 0])
    assert combmnz(BOTH, weights) == pytest.approx([8, 0.5, 2, 0])


@pytest.mark.parametrize("name", CLASSICS)
def test_a_list_of_weight_0_is_as_if_it_were_not_there(name):
    assert CLASSICS[name](BOTH, np.array([1.0, 0.0])).tolist() == CLASSICS[name](lists(WORDS), np.ones(1)).tolist()


def test_no_list_and_no_document_give_nothing():
    for classic in CLASSICS.values():
        assert classic(Lists(np.zeros((0, 2)), np.zeros((0, 2), np.int64)), EQUAL).tolist() == []
        assert classic(Lists(np.zeros((3, 0)), np.zeros((3, 0), np.int64)), np.zeros(0)).tolist() == [0, 0, 0]


def slow(name: str, columns: list[dict[int, float]], weights: list[float], n: int) -> list[float]:
    """Each formula read off its paper, a document and a list at a time."""
    totals = [0.0] * n
    for column, weight in zip(columns, weights, strict=True):
        values = list(column.values())
        for document, score in column.items():
            least, greatest = min(values), max(values)
            unit = (score - least) / (greatest - least) if greatest > least else 1.0
            own = {
                "rrf": lambda score=score, values=values: 1 / (7 + 1 + sum(other > score for other in values)),
                "combsum": lambda score=score: score,
                "minmax": lambda unit=unit: unit,
                "combmnz": lambda unit=unit: unit,
                "zscore": lambda score=score, values=values, least=least: (score - least) / statistics.pstdev(values),
                "dbsf": lambda score=score, values=values: 0.5 + (score - statistics.mean(values)) / (6 * statistics.stdev(values)),
            }[name]
            totals[document] += weight * own()
    if name == "combmnz":
        totals = [total * sum(d in c and w > 0 for c, w in zip(columns, weights, strict=True)) for d, total in enumerate(totals)]
    return totals


@pytest.mark.parametrize("name", ["rrf", *CLASSICS])
def test_fast_and_slow_agree(name):
    rng = np.random.default_rng(5)
    for _ in range(20):
        n, s = int(rng.integers(5, 40)), int(rng.integers(1, 5))
        scores = rng.normal(size=(n, s)) * 10.0 ** rng.integers(-2, 3, s)
        listed = rng.random((n, s)) < 0.6
        listed[:3] = True  # a list of one has no sd, which the test above is about
        weights = rng.choice([0.0, 0.5, 1.0, 2.0], s)
        found = lists_of(hashes_of(n), scores, listed)
        fast = rrf(found, weights, 7) if name == "rrf" else CLASSICS[name](found, weights)
        columns = [{d: scores[d, j] for d in range(n) if listed[d, j]} for j in range(s)]
        assert fast == pytest.approx(slow(name, columns, weights.tolist(), n), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ["rrf", *CLASSICS])
def test_only_scores_of_the_list_count(name):
    """What a space said of documents that it did not list itself is no part of its list."""
    scores = np.array([[3.0, 0.2], [2.0, 0.9], [9.0, 0.5]])
    listed = np.array([[True, True], [True, True], [False, True]])
    other = scores.copy()
    other[2, 0] = -np.inf
    values = [
        (rrf(one, EQUAL) if name == "rrf" else CLASSICS[name](one, EQUAL)).tolist()
        for one in (lists_of(hashes_of(3), scores, listed), lists_of(hashes_of(3), other, listed))
    ]
    assert values[0] == values[1]
