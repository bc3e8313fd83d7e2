"""When a call is made again: refused or closed connections, 429 and 503, never after its time. Deciding only; clients send and wait."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import httpx

from shards.errors import SondageError

from .calls import Call
from .refusals import refusal, unreachable

FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 5.0  # a restarted proxy is back within the first; each further pause may be twice as long
CONNECT_S = 5.0  # a server on this planet accepts within 1 s; the rest is for one that is busy

# Nothing came of these, or nobody knows what: every call may be sent twice (`Call`). Without time-outs of answers: their time is over.
BROKEN = (httpx.ConnectError, httpx.ConnectTimeout, httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
FOR_NOW = (429, 503)  # "not now", of which Retry-After may say when; other refusals stay as they are

T = TypeVar("T")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Retries:
    """most: further tries. within_s: how long after its beginning a call may go on trying before its budget begins; None: its budget
    bounds tries and pauses, too."""

    most: int = 3
    within_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. headers: by lower-case name."""

    status: int
    headers: httpx.Headers
    body: bytes


class Tries(Generic[T]):
    """One call until its answer.

    call: as it is to be sent now. timeout_s: from now until the end, whatever happens; None: what the call's own budget and `retries` say.
    clock: seconds that only go forward; time_of_day: seconds since 1970; draw: numbers in [0, 1).
    """

    def __init__(
        self,
        call: Call[T],
        url: str,
        retries: Retries = Retries(),  # frozen
        timeout_s: float | None = None,
        clock: Clock = time.monotonic,
        draw: Callable[[], float] = random.random,
        time_of_day: Clock = time.time,
    ):
        self.call: Call[T] = call
        self._url, self._retries = url, retries
        self._clock, self._draw, self._time_of_day = clock, draw, time_of_day
        self._budget_s, self._timeout_s = call.budget_s, timeout_s
        self._n = 0
        # Until then a further try may begin; and until then the answer of this one is waited for.
        self._until = clock() + ((retries.within_s or 0.0) + call.budget_s if timeout_s is None else timeout_s)
        self._fit()
        self._end = self._end_of_try()

    def timeout(self) -> httpx.Timeout:
        """Of the try that begins now."""
        self._end = self._end_of_try()
        left_s = max(self._end - self._clock(), 0.001)
        return httpx.Timeout(left_s, connect=min(CONNECT_S, left_s))

    def check(self) -> None:
        """To be called with each piece of an answer: httpx bounds the time of single reads only. Raises Unreachable."""
        if self._clock() > self._end:
            raise unreachable(self._url, httpx.ReadTimeout("the answer did not end in time"))

    def is_answer(self, status: int) -> bool:
        return 200 <= status < 300 or status in self.call.answers

    def read(self, answer: Answer) -> T:
        """The answer that the caller is given. Raises Refused for what cannot be read."""
        try:
            return self.call.read(answer.body)
        except SondageError as error:
            error.request_id = answer.headers.get("x-request-id")
            raise

    def broken(self, error: httpx.HTTPError) -> float:
        """Seconds to wait before the next try, after a connection failed. Raises Unreachable where there is none."""
        pause_s = self._pause(None) if isinstance(error, BROKEN) else None
        if pause_s is None:
            raise unreachable(self._url, error) from error
        return pause_s

    def refused(self, answer: Answer) -> float:
        """Likewise after an answer that is an error; which is raised where there is no further try."""
        error = refusal(self._url, answer.status, answer.headers, answer.body, self._time_of_day())
        pause_s = self._pause(error.retry_after_s) if answer.status in FOR_NOW else None
        if pause_s is None:
            raise error
        return pause_s

    def again(self) -> None:
        """The pause is over: what is sent now is to be done in the time that is left."""
        self._fit()

    def _pause(self, after_s: float | None) -> float | None:
        """How long to wait; None where tries or time are used up. A server's word is kept to, and callers that it told the same come
        spread out."""
        if self._n == self._retries.most:
            return None
        most_s = min(FIRST_PAUSE_S * 2.0**self._n, MOST_PAUSE_S)
        pause_s = (most_s / 2 if after_s is None else after_s) + most_s / 2 * self._draw()
        if self._clock() + pause_s >= self._until:
            return None
        self._n += 1
        return pause_s

    def _end_of_try(self) -> float:
        return self._until if self._timeout_s is not None else self._clock() + self.call.budget_s + self.call.slack_s

    def _fit(self) -> None:
        left_s = self._until - self._clock()
        if self.call.shorter is not None and left_s < self._budget_s:
            self.call = self.call.shorter(left_s)
