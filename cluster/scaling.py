"""How many replicas of a corpus are wanted: from how busy its hosts are, slowly, and never out of its bounds.

Work is what replicas have in hand together: utilisation x replicas. As many are wanted as bring each to `target`. It is not done at
the first look: `votes_up` looks in a row must want more (then the least that any of them wanted is given), `votes_down` many more
must want fewer (then the most), and fewer only if what is left stays well below what would ask for more again (hysteresis: between
`target` and `low` nothing is done). A change throws all looks away: those of before were measured with other replicas. This is the
rule of Kubernetes' Horizontal Pod Autoscaler (target utilisation, a window of which the mildest wish counts) with votes for time.

Pure and without a clock: a look is taken at regular intervals by whoever calls. Every coordinator may run one; the wish is written
as the next serving record by exclusive create, and who comes second finds other replicas at the next look and begins anew.
"""

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Replicas: at least, at most. Raises ValueError unless 1 <= least <= most."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"bounds are {self.least} to {self.most} replicas; expected at least 1, and the second no less")


@dataclass(frozen=True, slots=True)
class Look:
    """What hosts said since the last look.

    utilisation: of the threads of the hosts that serve the corpus, the share of time in which they searched, 0 to 1.
    waiting: queries that wait for them now, per host. refused: queries turned away since the last look, for full queues.
    replicas: that are wanted now. nodes: that there are now.
    """

    utilisation: float
    waiting: float
    refused: int
    replicas: int
    nodes: int


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """target: utilisation that is aimed at; at twice that of a lone query, queues are still short. low: fewer replicas only if
    each would then be less busy than this. waiting: queries per host beyond which hosts count as full, however busy they say they
    are. votes_up, votes_down: looks in a row; of 5 s each, 15 s and 2 minutes.
    """

    target: float = 0.7
    low: float = 0.5
    waiting: float = 8.0
    votes_up: int = 3
    votes_down: int = 24

    def __post_init__(self) -> None:
        if not 0 < self.low < self.target <= 1:
            raise ValueError(f"target is {self.target}, low {self.low}; expected 0 < low < target <= 1")
        if self.votes_up < 1 or self.votes_down < 1:
            raise ValueError(f"votes are {self.votes_up} up, {self.votes_down} down; expected at least 1 look each")


class Scaling:
    """The wish for one corpus. Feed it with `look` at regular intervals. bounds: may be replaced at any time.

    _wishes: of the looks since the last change of replicas, the newest at the end.
    """

    def __init__(self, bounds: Bounds, settings: ScalingSettings | None = None):
        self.bounds = bounds
        self._settings = settings or ScalingSettings()
        self._replicas: int | None = None
        self._wishes: deque[int] = deque(maxlen=max(self._settings.votes_up, self._settings.votes_down))

    def look(self, look: Look) -> int | None:
        """The replicas that are wanted instead of `look.replicas`; None to leave them as they are.

        Always within the bounds; replicas out of them are corrected at once. No more are wished for than there are nodes, for copies
        lie on distinct ones; but nodes that go away take no wish back, so that what was there is there again when they return.
        """
        if look.replicas != self._replicas:
            self._replicas = look.replicas
            self._wishes.clear()
        if (within := self._within(look.replicas)) != look.replicas:
            return within
        self._wishes.append(self._wish(look))
        up, down = self._last(self._settings.votes_up), self._last(self._settings.votes_down)
        if up and min(up) > look.replicas:
            return min(up)
        if down and max(down) < look.replicas:
            return max(down)
        return None

    def _last(self, n: int) -> list[int]:
        return list(self._wishes)[-n:] if len(self._wishes) >= n else []

    def _within(self, replicas: int) -> int:
        return max(self.bounds.least, min(replicas, self.bounds.most))

    def _wish(self, look: Look) -> int:
        """Replicas by this look alone."""
        work = min(max(look.utilisation, 0.0), 1.0) * look.replicas
        wish = math.ceil(work / self._settings.target - 1e-9)  # what is exactly on target is not above it
        if look.refused or look.waiting > self._settings.waiting:
            wish = max(wish, look.replicas + 1)  # a full host says 1.0 however much more there is to do
        if wish > look.replicas:
            return self._within(max(min(wish, look.nodes), look.replicas))
        fewer = math.ceil(work / self._settings.low - 1e-9)
        return self._within(min(max(fewer, 1), look.replicas))
