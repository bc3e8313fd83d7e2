"""Hits of one space, joined and cut: the best documents, each once, whatever they are numbered by."""

import numpy as np

from shards.hits import Hits
from shards.types import Moments


def hits(numbers, scores, keys=None, **fields) -> Hits:
    """Spans begin at ten times the number."""
    numbers = np.array(numbers, np.int64)
    keys = numbers if keys is None else np.array(keys)
    known = {"moments": None, "n_matched": 0, "covered": 0, "total": 0} | fields
    return Hits(numbers, keys.astype(np.uint64), np.array(scores, float), numbers * 10, numbers * 10 + 5, **known)


def test_a_document_counts_once_by_its_best_entry_and_entries_without_one_not_at_all():
    found = hits([4, -1, 4, 2], [1.0, 9.0, 3.0, 2.0]).best(10)
    assert found.numbers.tolist() == [4, 2] and found.scores.tolist() == [3.0, 2.0]
    assert hits([4, -1, 4, 2], [1.0, 9.0, 3.0, 2.0]).best(1).starts.tolist() == [40]


def test_equal_scores_are_ordered_by_hash_and_not_by_number():
    tied = hits([1, 2, 3], [5.0, 5.0, 5.0], keys=[30, 10, 20])
    assert tied.best(2).numbers.tolist() == [2, 3]
    assert sorted(tied.top(2).tolist()) == [2, 3]
    assert sorted(tied.top(3).tolist()) == [1, 2, 3]


def test_joined_hits_are_numbered_one_after_the_other_and_their_sums_are_added():
    parts = [
        hits([0, 1], [1.0, 2.0], moments=Moments(2, 1.5, 0.5), n_matched=2, covered=5, total=6),
        hits([0], [3.0], moments=Moments(1, 3.0, 0.0), n_matched=1, covered=4, total=4),
    ]
    joined = Hits.concatenate(parts, (0, 6))
    assert joined.numbers.tolist() == [0, 1, 6] and joined.scores.tolist() == [1.0, 2.0, 3.0]
    assert (joined.moments, joined.n_matched, joined.covered, joined.total) == (Moments(3, 2.0, 2.0), 3, 9, 10)
    assert Hits.concatenate([]).total == 0 and Hits.concatenate(parts[:1]) is parts[0]
