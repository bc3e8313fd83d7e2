"""How late this process's event loop is woken, and what of a caller's time that costs before a search begins and after it has ended.

A request lies in the socket until the loop comes to it, and so does its answer until it is sent; deadlines are noticed as late. With one
search under way all of this is nothing. With many each waits for steps of the others, of some milliseconds each.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

LOOK_S, IDLE_S = 0.02, 0.25  # between two looks: while searches are under way, and else
LAST, UPPER = 32, 0.9  # looks that count, and what so large a share of them does not exceed
WAITS = 2  # on the way in and on the way out
MOST_SHARE = 0.4  # of a search's time, that is kept back for it


class Lag:
    """Belongs to one event loop. under_way: how many searches there are. clock: seconds that only go forward."""

    def __init__(self, under_way: Callable[[], int], clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep):
        self._under_way, self._clock, self._sleep = under_way, clock, sleep
        self._last: deque[float] = deque(maxlen=LAST)

    async def watch(self) -> None:
        """Look again and again; ends when it is cancelled."""
        while True:
            wanted_s, begun_s = LOOK_S if self._under_way() else IDLE_S, self._clock()
            await self._sleep(wanted_s)
            self._last.append(max(self._clock() - begun_s - wanted_s, 0.0))

    @property
    def upper_s(self) -> float:
        """What the loop is hardly ever later, lately."""
        return sorted(self._last)[int(UPPER * (len(self._last) - 1))] if self._last else 0.0

    def kept_back_s(self, budget_s: float) -> float:
        """What of a search's time goes by where it can do nothing about it."""
        return min(WAITS * self.upper_s, MOST_SHARE * budget_s)
