"""Whether a search is begun at all: with too many under way it would only be late, and make the others late with it.

Queues that are bounded by number do not help: a hundred queries that wait two seconds each, of the two they have, keep all hosts busy
with work whose answers come too late. So the time is bounded. What searches take together is known from those that ended lately: the
time of one, by how many were under way with it; the median, for some call a model and take a hundred times as long.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cluster.batching import Overloaded

LATE_SHARE = 0.5  # of its time that a search may be expected to take: the other half is for what nobody expects
FEW = 16  # under way, so many are never too many: little can be said of them, and hosts refuse what is too much for them
N_LATEST = 64


class Admission:
    """Lets searches in. Belongs to one event loop. clock: seconds that only go forward. refused: since the beginning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._shares_s: deque[float] = deque(maxlen=N_LATEST)  # of those that ended: seconds, by the number under way
        self._each_s = 0.0  # their median
        self.under_way = 0
        self.refused = 0

    def expected_s(self) -> float:
        """How long a search would take that begins now; 0 where nothing speaks of it."""
        return (self.under_way + 1) * self._each_s if self.under_way >= FEW else 0.0

    def told(self) -> dict[str, float]:
        """What is under way, how long one more would take, and how many were refused."""
        return {"under_way": self.under_way, "expected_s": round(self.expected_s(), 4), "refused": self.refused}

    @contextmanager
    def search(self, budget_s: float) -> Iterator[None]:
        """A search with so much time. Raises Overloaded, at once, where it would need more than half of it."""
        expected_s = self.expected_s()
        if expected_s > LATE_SHARE * budget_s:
            self.refused += 1
            refusal = Overloaded(
                f"{self.under_way} searches are under way, and one more would take about {expected_s:.1f} s of its {budget_s:.3g} s. "
                "Try again in a moment, or allow it more time; add replicas (`sondage scale`) or nodes where this lasts."
            )
            refusal.retry_after_s = max(expected_s - LATE_SHARE * budget_s, 1.0)
            raise refusal
        self.under_way += 1
        begun, among = self._clock(), self.under_way
        try:
            yield
        finally:
            # The first of a crowd begins alone, and the last of it ends alone: neither had its time for itself.
            self._shares_s.append((self._clock() - begun) / max(among, self.under_way))
            self.under_way -= 1
            self._each_s = statistics.median(self._shares_s)
