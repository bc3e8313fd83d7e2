"""Hits of one space in several segments, joined and cut: the best documents, each once, whatever they are numbered by."""

import numpy as np

from shards.hits import Hits, Part
from shards.types import Found, Moments


def part(numbers, scores, keys=None, moments=None, n_matched=0) -> Part:
    """Spans begin at ten times the number."""
    numbers = np.array(numbers, np.int64)
    keys = numbers if keys is None else np.array(keys)
    found = Found(numbers.astype(np.int32), np.array(scores, float), numbers * 10, numbers * 10 + 5, n_matched, moments, 0, 0)
    return Part(numbers, keys.astype(np.uint64), found)


def hits_of(k, *parts, distinct=True) -> Hits:
    hits = Hits(k, distinct)
    for each in parts:
        hits.add([each], hits.with_these(hits.best, each.found.scores))
    return hits


def test_a_document_counts_once_by_its_best_entry_and_entries_without_one_not_at_all():
    entries = part([4, -1, 4, 2], [1.0, 9.0, 3.0, 2.0])
    found = hits_of(10, entries, distinct=False).columns()
    assert found.numbers.tolist() == [4, 2] and found.scores.tolist() == [3.0, 2.0]
    assert hits_of(1, entries, distinct=False).columns().starts.tolist() == [40]


def test_equal_scores_are_ordered_by_hash_and_not_by_number():
    tied = part([1, 2, 3], [5.0, 5.0, 5.0], keys=[30, 10, 20])
    assert sorted(hits_of(2, tied).columns().numbers.tolist()) == [2, 3]
    assert sorted(hits_of(3, tied).columns().numbers.tolist()) == [1, 2, 3]


def test_hits_of_several_segments_are_joined_and_their_sums_added():
    joined = hits_of(
        10,
        part([0, 1], [1.0, 2.0], moments=Moments(2, 1.5, 0.5), n_matched=2),
        part([6], [3.0], moments=Moments(1, 3.0, 0.0), n_matched=1),
    )
    columns = joined.columns()
    assert columns.numbers.tolist() == [0, 1, 6] and columns.scores.tolist() == [1.0, 2.0, 3.0]
    assert (joined.moments, joined.n_matched) == (Moments(3, 2.0, 2.0), 3)
    assert not len(hits_of(10).columns().numbers)


def test_the_floor_is_the_score_of_the_kth_best_as_soon_as_there_are_k():
    hits = hits_of(3, part([0, 1], [1.0, 2.0]))
    assert hits.floor(hits.best) == -np.inf
    best = hits.with_these(hits.best, np.array([5.0, 0.5]))
    assert sorted(best.tolist()) == [1.0, 2.0, 5.0] and hits.floor(best) == 1.0
    assert hits.floor(hits.best) == -np.inf, "nothing was added yet"


def test_where_a_document_may_come_twice_there_is_no_floor():
    hits = hits_of(2, part([7, 7], [4.0, 3.0]), distinct=False)
    assert hits.floor(hits.best) == -np.inf  # the second best document may score less than 3
