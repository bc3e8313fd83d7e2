"""Searches that stand back while the texts of hits are looked up: these come last, and somebody's time is all but over.

Both are hundreds of short compiled loops, and two threads that work so take the interpreter's lock from each other at each of them: ten
texts took 90 ms beside two searches, and 1 ms alone.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from shards.types import Budget

STANDS_S, STEP_S = 0.005, 0.0002  # how long a search stands between two looks at its time at most, and between two looks for whom


class Precedence:
    """What is looked up now. For many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.n = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Searches stand back meanwhile."""
        with self._lock:
            self.n += 1
        try:
            yield
        finally:
            with self._lock:
                self.n -= 1


class StandingBack(Budget):
    """The time of a search that stands back at each look at it, as long as there is any."""

    __slots__ = ("_precedence",)

    def __init__(self, seconds: float, precedence: Precedence):
        super().__init__(seconds)
        self._precedence = precedence

    @property
    def remaining_s(self) -> float:
        if self._precedence.n:
            self._stand()
        return self.deadline - time.monotonic()

    @property
    def expired(self) -> bool:
        return self.remaining_s <= 0

    def _stand(self) -> None:
        ends = min(time.monotonic() + STANDS_S, self.deadline)
        while self._precedence.n and time.monotonic() < ends:
            time.sleep(STEP_S)
