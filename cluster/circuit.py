"""Whether a host that answers its pings should be asked: a circuit that opens after failures in a row and lets one try after a pause.

    closed --`failures` in a row--> open --pause over, one call as a trial--> half-open --it succeeds--> closed
                                      ^----------------- it fails, the pause doubles ------'

Membership tells whether a process lives; this tells whether it is of use: one whose disk is full, or whose machine swaps, answers
pings and loses every query (Nygard, Release It!, 2007, "Circuit Breaker").
"""

from typing import Literal

MAX_PAUSE_S = 30.0

Circuit = Literal["closed", "open", "half-open"]


class Breaker:
    """The circuit to one host. now: seconds of a monotonic clock.

    _failures: in a row since the last success. _until: when a trial may be made, None while closed. _pause_s: of the next opening.
    """

    __slots__ = ("_failures", "_first_pause_s", "_limit", "_pause_s", "_trial", "_until")

    def __init__(self, failures: int, pause_s: float):
        self._limit, self._first_pause_s = failures, pause_s
        self._failures, self._until, self._pause_s, self._trial = 0, None, pause_s, False

    def state(self, now: float) -> Circuit:
        """Where it stands."""
        if self._until is None:
            return "closed"
        return "half-open" if self._trial or now >= self._until else "open"

    def lets_through(self, now: float) -> bool:
        """Whether a call may be made: always while closed, one at a time while half-open."""
        return self._until is None or (now >= self._until and not self._trial)

    def began(self, now: float) -> None:
        """A call is made."""
        if self._until is not None and now >= self._until:
            self._trial = True

    def succeeded(self) -> None:
        """A call was answered."""
        self._failures, self._until, self._pause_s, self._trial = 0, None, self._first_pause_s, False

    def given_up(self) -> None:
        """A call was cancelled, which says nothing; a trial may be made again."""
        self._trial = False

    def failed(self, now: float) -> None:
        """A call was not answered, or not in a time in which others are."""
        self._failures += 1
        if self._until is not None:  # the trial, or calls that nobody else could take
            if now >= self._until:
                self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
                self._until, self._trial = now + self._pause_s, False
        elif self._failures >= self._limit:
            self._until = now + self._pause_s
