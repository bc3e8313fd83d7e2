"""When a second replica is asked the same: after a time that calls seldom take, and for a small share of calls only.

Both halves are needed (Dean and Barroso, The Tail at Scale, 2013: a hedge after the 95th percentile costs 5 % more calls and takes the
tail away). The percentile alone would double the load just when all hosts are slow, since it follows with a delay; the share alone
would hedge what was never late.
"""

from collections import deque

import numpy as np

N_TIMES = 512  # of the latest calls of a kind: some seconds of a busy coordinator
N_ENOUGH = 20  # below which a percentile means nothing, and nobody is hedged
N_RECOUNT = 16  # calls between two sortings, which take 20 us
FLOOR_S = 0.005  # sooner a hedge wins nothing: a call costs 1 ms, and timers of a busy loop are late by as much
BURST = 10.0  # hedges that may be saved up: one stalled host holds a few queries at once


class Hedging:
    """What calls took lately, by kind, and how many hedges may be made.

    quantile: of the times, after which a call is late. share: hedges allowed per call. A kind names calls that take about as long:
    the corpus, what is asked, and whether the host is near.
    """

    def __init__(self, quantile: float, share: float):
        self._quantile, self._share = quantile, share
        self._times: dict[object, deque[float]] = {}
        self._late: dict[object, tuple[int, float]] = {}  # by kind: calls since it was counted, seconds
        self._allowed = 0.0

    def took(self, kind: object, seconds: float) -> None:
        """A call ended. Of one that was given up, the time until then: it would have taken longer."""
        times = self._times.setdefault(kind, deque(maxlen=N_TIMES))
        times.append(seconds)
        since, late_s = self._late.get(kind, (N_RECOUNT, 0.0))
        if since + 1 >= N_RECOUNT and len(times) >= N_ENOUGH:
            self._late[kind] = 0, float(np.quantile(np.array(times), self._quantile))
        else:
            self._late[kind] = since + 1, late_s

    def began(self) -> None:
        """A call was made that is no hedge."""
        self._allowed = min(self._allowed + self._share, BURST)

    def after_s(self, kind: object) -> float | None:
        """Seconds after which a call of this kind is late; None while too little is known of it."""
        if len(self._times.get(kind, ())) < N_ENOUGH:
            return None
        return max(self._late[kind][1], FLOOR_S)

    def take(self) -> bool:
        """Whether one more hedge may be made; it is then counted."""
        if self._allowed < 1.0:
            return False
        self._allowed -= 1.0
        return True
