"""Waiting queries ride together in the next call: few calls in flight, each with its own deadline, a queue with an end.

A Ray actor call costs about 1 ms of CPU whatever it carries. With at most two calls in flight per host (one computes while the
other travels) and queued queries riding together, 64 clients got 3,607 queries/s instead of 411 (RAY.md section 1).
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from shards.errors import SondageError

Query = TypeVar("Query")
Answer = TypeVar("Answer")

# Time kept back for the answer's way home, from what the other side is given: an actor call's p99 on a busy machine is 10-20 ms.
RETURN_S = 0.02
# Queries ride together if none has more than twice the time of another: the call returns as a whole, so it is given the time of
# the least patient one, and nobody loses more than half of his own to company.
PATIENCE_RATIO = 2.0


def without_return(remaining_s: float) -> float:
    """What the other side may use of the time left: the answer must also come back."""
    return remaining_s - min(RETURN_S, remaining_s / 5)


class TryAgain(SondageError):
    """Nothing is wrong with the request, and nothing was done. retry_after_s: when it may be answered."""

    status = 503
    retry_after_s = 1.0


class Overloaded(TryAgain):
    """More queries are waiting than can be served; ask again later."""

    status = 429


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Query, Answer]):
    query: Query
    deadline: float
    answer: "asyncio.Future[Answer]"


class Batcher(Generic[Query, Answer]):
    """Turns single questions into batched calls.

    call: sends queries, returns their answers in order; it is cancelled as soon as nobody waits for it any more.
    limit: the query with a new time limit, seconds: what is left when it is sent. in_flight, batch, queue: see ClusterSettings.
    alone: whether an error of a call may be the fault of one of its queries; then each is sent again by itself, once, so that
        one bad query does not take the others with it.

    Belongs to one event loop, whose clock is the only one used.
    """

    def __init__(
        self,
        call: Callable[[list[Query]], Awaitable[Sequence[Answer]]],
        limit: Callable[[Query, float], Query],
        in_flight: int = 2,
        batch: int = 32,
        queue: int = 256,
        name: str = "host",
        alone: Callable[[Exception], bool] = lambda _error: False,
    ):
        self._call, self._limit, self._alone, self._name = call, limit, alone, name
        self._in_flight, self._batch, self._max_queue = in_flight, batch, queue
        self._waiting: deque[_Waiting[Query, Answer]] = deque()
        self._calls: dict[asyncio.Task[None], list[_Waiting[Query, Answer]]] = {}

    @property
    def n_waiting(self) -> int:
        """Queries that no call has taken yet."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether one more query would be refused."""
        self._drop_gone()
        return len(self._waiting) >= self._max_queue

    def overloaded(self) -> Overloaded:
        return Overloaded(
            f"{len(self._waiting)} queries are waiting for {self._name}, the limit. Try again in a moment, or add nodes."
        )

    async def ask(self, query: Query, budget_s: float) -> Answer:
        """The answer to one query. Raises Overloaded at once, TimeoutError after `budget_s`, or what the call raised."""
        if self.full:
            raise self.overloaded()
        waiting = _Waiting(query, _now() + budget_s, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._send()
        # wait_for cancels the future, which is how the queue and the call learn that nobody waits for it.
        return await asyncio.wait_for(waiting.answer, None if math.isinf(budget_s) else budget_s)

    def abandon(self, error: Exception) -> None:
        """Gives `error` to everyone who waits, on board or in the queue: the other side is known to be gone."""
        _fail([*self._waiting, *(rider for riders in self._calls.values() for rider in riders)], error)
        self._waiting.clear()

    def _drop_gone(self) -> None:
        """Queries that were cancelled or have no time left are not worth a place, much less a call."""
        now = _now()
        if any(w.answer.done() or w.deadline <= now for w in self._waiting):
            self._waiting = deque(w for w in self._waiting if not w.answer.done() and w.deadline > now)

    def _send(self) -> None:
        while len(self._calls) < self._in_flight:
            self._drop_gone()
            if not self._waiting:
                return
            riders = self._take()
            task = asyncio.get_running_loop().create_task(self._carry(riders))
            self._calls[task] = riders
            task.add_done_callback(self._landed)

    def _landed(self, task: "asyncio.Task[None]") -> None:
        del self._calls[task]
        if not task.cancelled():
            task.result()  # a bug in here must not pass silently; what the call raised is already in the answers
        self._send()

    def _take(self) -> list[_Waiting[Query, Answer]]:
        """The query that waits longest, and those behind it that are about as patient."""
        now = _now()
        taken, left = [self._waiting.popleft()], []
        low = high = taken[0].deadline - now
        for waiting in self._waiting:
            remaining = waiting.deadline - now
            lower, higher = min(low, remaining), max(high, remaining)
            if len(taken) < self._batch and (higher <= lower * PATIENCE_RATIO or lower == higher):
                taken.append(waiting)
                low, high = lower, higher
            else:
                left.append(waiting)
        self._waiting = deque(left)
        return taken

    async def _carry(self, riders: list[_Waiting[Query, Answer]]) -> None:
        """One call from departure to answers."""
        budget_s = without_return(min(rider.deadline for rider in riders) - _now())
        call = asyncio.ensure_future(self._call([self._limit(rider.query, budget_s) for rider in riders]))

        def somebody_left(_: object) -> None:
            if all(rider.answer.done() for rider in riders):
                call.cancel()

        for rider in riders:
            rider.answer.add_done_callback(somebody_left)
        try:
            answers = await call
            if len(answers) != len(riders):
                raise AssertionError(f"{self._name} gave {len(answers)} answers to {len(riders)} queries")
        except asyncio.CancelledError:
            if not call.cancelled():  # we are being cancelled, not the call
                call.cancel()
                raise
            return
        except Exception as error:
            if len(riders) > 1 and self._alone(error):
                for rider in riders:
                    if not rider.answer.done() and rider.deadline > _now():
                        await self._carry([rider])
            else:
                _fail(riders, error)
            return
        for rider, answer in zip(riders, answers, strict=True):
            if not rider.answer.done():
                rider.answer.set_result(answer)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _fail(riders: Iterable[_Waiting[Query, Answer]], error: Exception) -> None:
    for rider in riders:
        if not rider.answer.done():
            rider.answer.set_exception(error)
