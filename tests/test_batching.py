"""The micro-batcher, on an event loop whose clock jumps: hours pass in milliseconds and nothing sleeps."""

import asyncio
import selectors

import pytest

from cluster.batching import Batcher, Overloaded


class VirtualClock(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time: when nothing is ready, its clock jumps to the next timer."""

    def __init__(self):
        self.now = 0.0
        super().__init__(self._Selector(self))

    class _Selector(selectors.DefaultSelector):
        def __init__(self, loop):
            super().__init__()
            self._loop = loop

        def select(self, timeout=None):
            if timeout is None:
                raise AssertionError("deadlock: everything waits and no timer is set")
            self._loop.now += timeout
            return super().select(0)

    def time(self):
        return self.now


def play(story):
    """Runs `story(host)` to its end on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        return runner.run(story())


class Line:
    """The other end of the line: records calls as (second, queries) and answers each query after `seconds` with its echo."""

    def __init__(self, seconds=1.0, fail=None):
        self.seconds, self.fail = seconds, fail
        self.calls, self.cancelled = [], 0

    async def __call__(self, queries):
        self.calls.append((asyncio.get_running_loop().time(), list(queries)))
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fail:
            self.fail(queries)
        return [f"{name}!" for name, _ in queries]

    @property
    def carried(self):
        return [[name for name, _ in queries] for _, queries in self.calls]


def batcher(line, **options):
    """Queries are (name, seconds left)."""
    return Batcher(line, lambda query, seconds: (query[0], round(seconds, 3)), **options)


def ask(to, *names, budget_s=100.0):
    return [asyncio.ensure_future(to.ask((name, None), budget_s)) for name in names]


async def outcomes(asked):
    return [
        type(answer).__name__ if isinstance(answer, BaseException) else answer
        for answer in await asyncio.gather(*asked, return_exceptions=True)
    ]


def test_two_calls_are_in_flight_and_what_waits_meanwhile_rides_together_in_the_next():
    async def story():
        line = Line()
        asked = ask(batcher(line), "a", "b", "c", "d", "e")
        assert await outcomes(asked) == ["a!", "b!", "c!", "d!", "e!"]
        assert line.carried == [["a"], ["b"], ["c", "d", "e"]]
        assert [second for second, _ in line.calls] == [0.0, 0.0, 1.0]

    play(story)


def test_a_call_carries_no_more_than_a_batch():
    async def story():
        line = Line()
        asked = ask(batcher(line, in_flight=1, batch=2), *"abcde")
        await outcomes(asked)
        assert line.carried == [["a"], ["b", "c"], ["d", "e"]]

    play(story)


def test_time_spent_waiting_is_taken_from_the_budget_that_is_sent():
    """b waits 1 s of its 10 s; 0.02 s are kept for the way back."""

    async def story():
        line = Line()
        await outcomes(ask(batcher(line, in_flight=1), "a", "b", budget_s=10.0))
        assert [queries for _, queries in line.calls] == [[("a", 9.98)], [("b", 8.98)]]

    play(story)


def test_of_a_very_short_budget_only_a_fifth_is_kept_for_the_way_back():
    async def story():
        line = Line(seconds=0.001)
        await outcomes(ask(batcher(line), "a", budget_s=0.01))
        assert line.calls == [(0.0, [("a", 0.008)])]

    play(story)


def test_a_query_that_gets_no_answer_in_time_raises_timeout_at_its_own_deadline():
    async def story():
        line = Line(seconds=5.0)
        to = batcher(line, in_flight=1)
        quick, patient = ask(to, "quick", budget_s=2.0) + ask(to, "patient", budget_s=50.0)
        assert await outcomes([quick]) == ["TimeoutError"]
        assert asyncio.get_running_loop().time() == 2.0
        assert await outcomes([patient]) == ["patient!"]

    play(story)


def test_a_call_is_cancelled_when_nobody_waits_for_it_and_its_place_is_free_again():
    """A frozen host must not hold the two places for ever."""

    async def story():
        line = Line(seconds=1e9)
        to = batcher(line, in_flight=1)
        assert await outcomes(ask(to, "a", budget_s=1.0)) == ["TimeoutError"]
        await asyncio.sleep(0)
        assert line.cancelled == 1
        line.seconds = 1.0
        assert await outcomes(ask(to, "b")) == ["b!"]

    play(story)


def test_a_call_goes_on_while_one_of_its_riders_still_waits():
    async def story():
        line = Line(seconds=3.0)
        to = batcher(line, in_flight=1)
        first, (gone, stays) = ask(to, "first"), ask(to, "gone", "stays")
        await outcomes(first)
        await asyncio.sleep(1.0)
        gone.cancel()
        assert await outcomes([gone, stays]) == ["CancelledError", "stays!"]
        assert line.cancelled == 0

    play(story)


def test_cancelled_and_expired_queries_are_never_sent():
    async def story():
        line = Line(seconds=5.0)
        to = batcher(line, in_flight=1)
        first = ask(to, "first")
        cancelled, expired, alive = ask(to, "cancelled") + ask(to, "expired", budget_s=2.0) + ask(to, "alive")
        await asyncio.sleep(1.0)
        cancelled.cancel()
        assert await outcomes([*first, cancelled, expired, alive]) == ["first!", "CancelledError", "TimeoutError", "alive!"]
        assert line.carried == [["first"], ["alive"]]

    play(story)


def test_an_impatient_query_does_not_ride_with_patient_ones_that_could_outstay_it():
    """Time left at departure: 9, 1.5, 8 s. b and c ride with at most twice another's time, and get that of the shortest."""

    async def story():
        line = Line()
        to = batcher(line, in_flight=1)
        first = ask(to, "first")
        asked = ask(to, "a", budget_s=10.0) + ask(to, "b", budget_s=2.5) + ask(to, "c", budget_s=9.0)
        assert await outcomes(first + asked) == ["first!", "a!", "TimeoutError", "c!"]
        assert line.calls[1] == (1.0, [("a", 7.98), ("c", 7.98)])

    play(story)


def test_a_full_queue_refuses_with_429_and_says_what_to_do():
    async def story():
        to = batcher(Line(), in_flight=1, queue=2, name="host 12ab")
        asked = ask(to, "under way", "waits", "waits too")
        await asyncio.sleep(0)
        assert to.full
        with pytest.raises(Overloaded, match=r"2 queries are waiting for host 12ab, the limit\. Try again") as refused:
            await to.ask(("one too many", None), 1.0)
        assert refused.value.status == 429
        asked[1].cancel()
        await asyncio.sleep(0)
        assert not to.full
        await outcomes(asked)

    play(story)


def test_what_a_call_raises_reaches_every_rider_and_later_queries_are_sent_as_ever():
    async def story():
        line = Line()
        to = batcher(line, in_flight=1)
        line.fail = _raise(ConnectionError("gone"))
        assert await outcomes(ask(to, "a", "b", "c")) == ["ConnectionError"] * 3
        line.fail = None
        assert await outcomes(ask(to, "d")) == ["d!"]

    play(story)


def _raise(error):
    def fail(_queries):
        raise error

    return fail


def test_one_bad_query_does_not_take_its_riders_with_it():
    async def story():
        def fail(queries):
            if any(name == "bad" for name, _ in queries):
                raise KeyError("bad")

        line = Line(fail=fail)
        to = batcher(line, in_flight=1, alone=lambda error: isinstance(error, KeyError))
        assert await outcomes(ask(to, "first", "good", "bad", "fine")) == ["first!", "good!", "KeyError", "fine!"]
        assert line.carried == [["first"], ["good", "bad", "fine"], ["good"], ["bad"], ["fine"]]

    play(story)


def test_abandoning_answers_those_on_board_and_those_in_the_queue_at_once():
    async def story():
        line = Line(seconds=1e6)
        to = batcher(line, in_flight=1)
        asked = ask(to, "on board", "waits")
        await asyncio.sleep(1.0)
        to.abandon(ConnectionError("host is gone"))
        assert await outcomes(asked) == ["ConnectionError", "ConnectionError"]
        assert asyncio.get_running_loop().time() == 1.0
        line.seconds = 1.0
        assert await outcomes(ask(to, "next")) == ["next!"]
        assert line.cancelled == 1

    play(story)


def test_a_caller_without_a_deadline_waits_as_long_as_it_takes():
    async def story():
        line = Line(seconds=1e7)
        assert await outcomes(ask(batcher(line), "a", budget_s=float("inf"))) == ["a!"]

    play(story)
