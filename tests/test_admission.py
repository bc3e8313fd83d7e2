"""What is let in: as many searches as can be answered in time, however many come."""

import pytest

from cluster.batching import Overloaded
from serve.admission import FEW, N_LATEST, Admission


class Busy:
    """A coordinator that does one second of work in a second, shared by all searches under way: each needs `work_s`."""

    def __init__(self, work_s: float):
        self.now, self.work_s = 0.0, work_s
        self.admission = Admission(lambda: self.now)

    def crowd(self, n: int, budget_s: float) -> tuple[int, int]:
        """So many begin at once and end together. Returns (answered in time, refused)."""
        entered, refused, begun = [], 0, self.now
        for _ in range(n):
            search = self.admission.search(budget_s)
            try:
                search.__enter__()
                entered.append(search)
            except Overloaded:
                refused += 1
        self.now += min(len(entered) * self.work_s, budget_s)
        for search in entered:
            search.__exit__(None, None, None)
        return len(entered) if self.now - begun < budget_s else 0, refused


def test_a_crowd_is_let_in_as_far_as_it_can_be_answered_in_time():
    """500 clients at 25 ms of work each, with 2 s: 80 would fill all of it, and 40 half; some 30 are let in."""
    busy = Busy(0.025)
    assert busy.crowd(500, 2.0) == (0, 0)  # nothing is known yet
    for _ in range(5):
        answered, refused = busy.crowd(500, 2.0)
    assert 25 <= answered <= 40 and answered + refused == 500


def test_a_few_are_always_let_in_however_long_they_take():
    busy = Busy(30.0)
    for _ in range(10):
        assert busy.crowd(FEW, 2.0)[1] == 0


def test_who_has_more_time_is_let_in_where_others_are_not():
    busy = Busy(0.025)
    busy.crowd(100, 60.0)
    assert busy.crowd(100, 1.0)[1] > 0
    assert busy.crowd(100, 60.0)[1] == 0


def test_some_that_take_very_long_do_not_keep_others_out():
    """A fifth of all searches call a model, which takes 20 s, alone; the others take 5 ms."""
    busy = Busy(0.005)
    for i in range(N_LATEST):
        busy.work_s = 20.0 if i % 5 == 0 else 0.005
        busy.crowd(1, 60.0)
    busy.work_s = 0.005
    assert busy.crowd(100, 2.0) == (100, 0)


def test_the_refusal_says_why_and_when_to_come_again():
    busy = Busy(0.05)
    for _ in range(N_LATEST):
        busy.crowd(1, 60.0)
    entered = [busy.admission.search(60.0) for _ in range(100)]
    for search in entered:
        search.__enter__()
    with pytest.raises(Overloaded) as refused:
        busy.admission.search(2.0).__enter__()
    says = "100 searches are under way, and one more would take about 5.0 s of its 2 s. Try again in a moment"
    assert str(refused.value).startswith(says)
    assert refused.value.status == 429 and busy.admission.refused == 1
    assert refused.value.retry_after_s == pytest.approx(4.05)  # 101 x 50 ms, less half of 2 s
    for search in entered:
        search.__exit__(None, None, None)
    assert busy.admission.under_way == 0
