"""Placements as they were worked out last. Those that take seconds are worked out aside: the last one holds until the next is there, and of
several that are wished for meanwhile the last wish is met.

A placement of 1,000 shards on 125 nodes takes 2.6 s, during which a coordinator's loop waits for 8 ms at most: numpy's steps are short.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from cluster.placement import Layout, Node, layout
from cluster.routing import Routing

logger = logging.getLogger(__name__)

ASIDE_CELLS = 500  # shards x nodes: fewer take 20 ms at most, more up to seconds (1,000 x 125: 2.5 s)
KEPT = 256  # placements

Held = Mapping[str, tuple[tuple[int, int], ...]]
Key = tuple[str, int, tuple[str, ...]]
Work = Callable[[], Layout]
Done = Callable[[Layout | None], None]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a placement is worked out from, beside what hosts have open. key: corpus, number of shards, names of the nodes. replicas,
    size_bytes: as of `layout`."""

    key: Key
    nodes: tuple[Node, ...]
    replicas: int
    size_bytes: tuple[int, ...] | None

    def met(self, held: Held) -> Layout:
        corpus, n_shards, _ = self.key
        return layout(corpus, n_shards, self.nodes, self.replicas, held, self.size_bytes)


@dataclass(slots=True)
class _Placed:
    """A placement and what it was worked out from. version: of what is open, which is `held`."""

    wish: Wish
    version: int
    held: Held
    layout: Layout

    def stays(self, held: Held) -> bool:
        """Whether nothing but what this placement wants was opened since: that changes no placement, which would take up to seconds to
        work out anew, at each of the many openings of a large corpus.
        """
        for node in self.held.keys() | held.keys():
            before, now = set(self.held.get(node, ())), set(held.get(node, ()))
            if before - now or any(of != self.wish.key[1] or node not in self.layout.on[shard] for of, shard in now - before):
                return False
        return True


class Placing:
    """Belongs to one thread. aside: does its first argument elsewhere, and then, in this thread, tells the second what came of it (None: it
    failed); without it all is worked out at once.
    """

    def __init__(self, routing: Routing, aside: Callable[[Work, Done], None] | None = None):
        self._routing, self._aside = routing, aside
        self._placed: dict[Key, _Placed] = {}
        self._last: dict[tuple[str, int], Layout] = {}  # by corpus and number of shards, whatever the nodes
        self._wishes: dict[Key, Wish] = {}  # that wait, the last one last
        self._busy: Key | None = None  # with what is being worked out

    def layout(self, wish: Wish) -> Layout:
        """The placement that is wished for; while it is worked out aside, the last one, of other nodes if need be. () for each shard
        before the first.
        """
        key = wish.key
        if key == self._busy or key in self._wishes:
            self._wishes[key] = wish
        elif (found := self._current(wish)) is not None:
            return found
        elif self._aside is None or key[1] * len(wish.nodes) < ASIDE_CELLS:
            held = self._routing.held(key[0])
            return self._keep(wish, self._routing.version, held, wish.met(held))
        else:
            self._wishes[key] = wish
            self._begin()
        known = self._placed.get(key)
        return known.layout if known is not None else self._last.get(key[:2]) or Layout(((),) * key[1])

    def is_current(self, wish: Wish) -> bool:
        """Whether `layout` gives what is wished for, and not what was there before."""
        return wish.key != self._busy and wish.key not in self._wishes and self._current(wish) is not None

    def _current(self, wish: Wish) -> Layout | None:
        known = self._placed.get(wish.key)
        if known is None or (known.wish is not wish and known.wish != wish):
            return None
        if known.version != self._routing.version:
            held = self._routing.held(wish.key[0])
            if not known.stays(held):
                return None
            known.version, known.held = self._routing.version, held
        return known.layout

    def _keep(self, wish: Wish, version: int, held: Held, found: Layout) -> Layout:
        if len(self._placed) > KEPT:
            self._placed.clear()
        self._placed[wish.key] = _Placed(wish, version, held, found)
        self._last[wish.key[:2]] = found
        return found

    def _begin(self) -> None:
        """Has the last wish worked out. Those before it for the same corpus are dropped: who still wants one asks again."""
        while self._wishes and self._busy is None:
            key, wish = self._wishes.popitem()
            self._wishes = {other: waits for other, waits in self._wishes.items() if other[:2] != key[:2]}
            if self._current(wish) is None:
                assert self._aside is not None
                self._busy = key
                held = self._routing.held(key[0])
                self._aside(partial(wish.met, held), partial(self._done, wish, self._routing.version, held))

    def _done(self, wish: Wish, version: int, held: Held, found: Layout | None) -> None:
        self._busy = None
        if found is not None:
            self._keep(wish, version, held, found)
        self._begin()


class Aside:
    """Works in a thread of its own, one thing after the other, for one event loop. told: called there after each."""

    def __init__(self, told: Callable[[], None]):
        self._told = told
        self._pool = ThreadPoolExecutor(1, "placement")

    def __call__(self, work: Work, done: Done) -> None:
        def ended(task: "asyncio.Future[Layout]") -> None:
            if task.cancelled():  # the loop ends
                return
            if error := task.exception():
                logger.error("event=not_placed", exc_info=error)
            done(None if error else task.result())
            self._told()

        asyncio.get_running_loop().run_in_executor(self._pool, work).add_done_callback(ended)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
