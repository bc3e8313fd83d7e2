"""How late the event loop is: looked at with a clock of the test's own."""

import asyncio

import pytest

from serve.anytime.lag import IDLE_S, LAST, LOOK_S, MOST_SHARE, Lag


def looked(lateness, n_under_way):
    """A watch over sleeps that end so much later than they should, and how long it slept each time."""
    now, slept, later = [100.0], [], iter(lateness)

    async def sleep(seconds):
        slept.append(seconds)
        late_s = next(later, None)
        if late_s is None:
            raise asyncio.CancelledError
        now[0] += seconds + late_s

    lag = Lag(lambda: n_under_way, lambda: now[0], sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(lag.watch())
    return lag, slept


def test_a_loop_that_is_woken_late_leaves_searches_less_time_and_never_less_than_a_share():
    lag, slept = looked([0.0] * 10 + [0.004] * 20, 4)
    assert set(slept) == {LOOK_S} and lag.upper_s == pytest.approx(0.004)
    assert lag.kept_back_s(1.0) == pytest.approx(0.008) and lag.kept_back_s(0.01) == pytest.approx(MOST_SHARE * 0.01)


def test_one_late_moment_and_those_long_ago_do_not_count():
    assert looked([0.0] * 20 + [0.2], 1)[0].upper_s == pytest.approx(0.0, abs=1e-9)
    assert looked([0.2] * 50 + [0.001] * LAST, 1)[0].upper_s == pytest.approx(0.001)


def test_nothing_is_kept_back_before_anything_was_seen_and_an_idle_loop_is_seldom_looked_at():
    lag, slept = looked([], 0)
    assert slept == [IDLE_S] and lag.kept_back_s(1.0) == 0.0
