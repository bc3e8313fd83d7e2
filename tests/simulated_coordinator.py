"""One coordinator of a simulated cluster: the real `Membership`, `Table`, `Routing`, `Asking` and `Scaling`, on a simulated world.

It ties them together as `cluster/controller.py`, `cluster/searcher.py`, `serve/generations.py` and `serve/scaling.py` do over Ray, and
is as dumb as those: it carries out what the real parts decide, and checks each query on the way.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from simulated_cluster import NODE_NOTICED_S, SETTINGS, Record, Unreachable, World

from cluster.asking import Asking, HostAway, Part, Unavailable, Work
from cluster.membership import (
    Abandon,
    Answered,
    Membership,
    NodesSeen,
    Ping,
    PingFailed,
    PingMissed,
    QueryFailed,
    QueryMissed,
    Restart,
    Start,
    Stop,
    Tick,
    Warm,
    Warmed,
)
from cluster.routing import Routing
from cluster.scaling import Bounds, Look, Scaling, ScalingSettings
from cluster.table import Table
from shards.identity import N_BUCKETS, shard_ranges

SCALING = ScalingSettings(votes_up=2, votes_down=3)
BUDGET_S = 6.0  # of a query: longer than it takes to doubt a host that is frozen
LOOK_S = 3.0  # between two looks at the load


@dataclass
class Answers:
    """What queries got. partial: when, from whom, and why not whole."""

    whole: int = 0
    partial: list[str] = field(default_factory=list)
    refused: int = 0


class Coordinator:
    """One coordinator: the real decisions, carried out in the simulated world."""

    def __init__(self, world: World, name: str, answers: Answers):
        self.world, self.name, self.answers = world, name, answers
        self.membership = Membership(SETTINGS)
        self.routing = Routing(SETTINGS)
        self.table = Table(SETTINGS, self.routing)
        self.asking = Asking(self.routing, self._ask, lambda: self.up, lambda _method: (), lambda *_: None, lambda: self.doubted)
        self.up: dict[str, str] = {}
        self.doubted: dict[str, str] = {}
        self.current: dict[str, int] = {}  # by corpus: the generation that new queries are answered from
        self.known: dict[str, Record] = {}
        self.scalers: dict[str, Scaling] = {}
        self.skew_s = 0.0  # of its clock, which only goes forward but may jump
        self.dead: dict[str, str] = {}  # node -> the process that it was told has ended: not to be asked any more
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._opening: set[tuple[str, str, int]] = set()
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def now(self) -> float:
        return self.world.now() + self.skew_s

    def begin(self) -> None:
        for work in (self._tick(), self._discover(), self._keep_open(), self._watch_store(), self._look_at_load()):
            self._background(work)

    def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _background(self, work: Any) -> "asyncio.Task[Any]":
        task = self.world.background(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    # --- as cluster/controller.py ------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            self.report(Tick())
            await asyncio.sleep(SETTINGS.probe_s)

    async def _discover(self) -> None:
        while True:
            if self.world.listing:
                seen = frozenset(n.name for n in self.world.nodes.values() if n.alive or self.world.now() < n.died_at + NODE_NOTICED_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(5.0):
                        await self.world.network.carry("head")
                        self.report(NodesSeen(seen))
            await asyncio.sleep(SETTINGS.discovery_s)

    def report(self, event: Any) -> None:
        if isinstance(event, QueryFailed | PingFailed):
            self.dead[event.node] = getattr(event, "incarnation", None) or self.membership.incarnation(event.node)
        for action in self.membership.handle(event, self.now()):
            self._do(action)
        processes = {node: (self.membership.state(node), self.membership.incarnation(node)) for node in self.membership.nodes}
        up = {node: incarnation for node, (state, incarnation) in processes.items() if state == "ready"}
        self.doubted = {node: incarnation for node, (state, incarnation) in processes.items() if state == "suspect"}
        gone, self.up = self.up.keys() - up.keys(), up
        for node in sorted(gone):
            self.asking.doubt(node)

    def _do(self, action: Any) -> None:
        match action:
            case Ping(node=node):
                self._background(self._ping(node))
            case Start(node=node):
                self._starts[node] = self._background(self._start(node))
            case Stop(node=node):
                self._starts.pop(node, None)
            case Restart(node=node):
                self._background(self._kill(node))
            case Abandon(node=node):
                self.asking.doubt(node)
                if node not in self.membership.nodes:
                    self.routing.forget(node)
            case Warm(node=node):
                self._background(self._warm_host(node))

    async def _start(self, node: str) -> None:
        await self.world.network.carry("head")
        self.world.start(self.world.nodes[node])

    async def _kill(self, node: str) -> None:
        await self.world.network.carry("head")
        self.world.kill(self.world.nodes[node])

    async def _ping(self, node: str) -> None:
        asked = self.world.now()
        try:
            async with asyncio.timeout(SETTINGS.ping_timeout_s):
                await asyncio.shield(self._starts[node])
                told = await self.world.call(node, "ping", self.world.status)
        except Unreachable as error:
            self.report(PingFailed(node, str(error), for_good=error.for_good))
        except TimeoutError:
            self.report(PingMissed(node))
        else:
            if self.dead.get(node) != told["incarnation"]:
                self.dead.pop(node, None)
            self.routing.told(node, told["incarnation"], told["shards"], asked)
            self.routing.reported(node, told["incarnation"], {})
            self.report(Answered(node, told["incarnation"]))
            self.dead.pop(node, None)  # it answers after all: the connection had broken, not the process

    # --- as cluster/searcher.py --------------------------------------------------------------------------------------------

    async def _ask(self, node: str, _method: str, request: Any, budget_s: float) -> Any:
        incarnation = self.membership.incarnation(node)
        if self.membership.state(node) not in ("ready", "suspect") or self.dead.get(node) == incarnation:
            raise AssertionError(f"{self.name} sent a query to {node}, which it was told is dead ({self.membership.reason(node)})")
        try:
            async with asyncio.timeout(budget_s):
                return await self.world.call(node, "query", lambda process: self.world.search(node, process, *request))
        except TimeoutError:
            self.report(QueryMissed(node))
            raise
        except Unreachable as error:
            self.report(QueryFailed(node, incarnation, str(error)))
            raise HostAway(str(error)) from None

    async def query(self, corpus: str) -> None:
        """One query; whatever happens to hosts meanwhile, what it is told is of one generation, and every bucket once."""
        if (generation := self.current.get(corpus)) is None:
            return
        n_shards = self.world.n_shards(corpus, generation)
        self.table.asked(corpus, generation, n_shards, None)
        work = Work(
            corpus, generation, self.table.placed(corpus, n_shards, self.membership.serving), "search",
            lambda _node, shards, _key: (corpus, generation, shards),
        )  # fmt: skip
        try:
            parts = await self.asking.parts(work, range(n_shards), BUDGET_S)
        except Unavailable:
            self.answers.refused += 1
            return
        self._check(parts, generation, n_shards)
        if lost := [part for part in parts if part.error is not None]:
            reasons = ", ".join(sorted({f"{part.node}: {type(part.error).__name__} {part.error}" for part in lost}))
            self.answers.partial.append(f"{self.world.now():8.2f} {self.name} {corpus}@{generation}: {reasons}")
        else:
            self.answers.whole += 1

    def _check(self, parts: list[Part], generation: int, n_shards: int) -> None:
        covered = np.zeros(N_BUCKETS, np.int64)
        for part in parts:
            if part.error is not None:
                ranges = [shard_ranges(n_shards)[shard] for shard in part.shards]
            else:
                answered, ranges = part.answer
                assert answered == generation, f"a query of generation {generation} was answered by {answered}"
            for low, high in ranges:
                covered[low:high] += 1
        assert (covered == 1).all(), f"buckets answered or missed other than once: {np.flatnonzero(covered != 1)[:9]} in {parts}"

    async def _keep_open(self) -> None:
        while True:
            for node, corpus, generation, n_shards, shards in list(self.table.due(self.membership.serving, self.up, self.now())):
                if (node, corpus, generation) not in self._opening:
                    self._opening.add((node, corpus, generation))
                    task = self._background(self._open(node, corpus, generation, n_shards, shards))
                    task.add_done_callback(lambda _, key=(node, corpus, generation): self._opening.discard(key))
            await asyncio.sleep(1.0)

    async def _warm_host(self, node: str) -> None:
        nodes = tuple(sorted({*self.membership.serving, node}))
        for corpus, generation, n_shards, _ in self.table.recent():
            placed = self.table.placed(corpus, n_shards, nodes)
            await self._open(node, corpus, generation, n_shards, tuple(s for s, on in enumerate(placed) if node in on))
        self.report(Warmed(node))

    async def _open(self, node: str, corpus: str, generation: int, n_shards: int, shards: tuple[int, ...]) -> None:
        incarnation = self.membership.incarnation(node)
        self.table.tell(node, incarnation, corpus, generation, shards, self.now())
        try:
            async with asyncio.timeout(SETTINGS.start_timeout_s):
                opened = await self.world.call(
                    node, "open", lambda process: self.world.warm(node, process, corpus, generation, shards)
                )
        except TimeoutError:
            return
        except Unreachable as error:
            self.report(QueryFailed(node, incarnation, str(error)))
            return
        self.routing.opened(corpus, generation, n_shards, node, incarnation, opened, self.world.now())

    # --- as serve/generations.py -------------------------------------------------------------------------------------------

    async def _watch_store(self) -> None:
        while True:
            for corpus in sorted(self.world.generations):
                await self.world.network.carry("head")
                newest, record = self.world.newest(corpus), self.world.records[corpus]
                if newest != self.current.get(corpus) or record != self.known.get(corpus):
                    self.known[corpus] = record
                    await self._move(corpus, newest, record.replicas)
                    self.current[corpus] = newest
            await asyncio.sleep(0.5)

    async def _move(self, corpus: str, generation: int, replicas: int) -> None:
        """Opens a generation on the hosts before queries go to it."""
        n_shards = self.world.n_shards(corpus, generation)
        self.table.wants(corpus, generation, n_shards, replicas)
        placed = self.table.placed(corpus, n_shards, self.membership.serving)
        shares = {node: tuple(s for s, on in enumerate(placed) if node in on) for node in self.up}
        opening = {
            node: self._background(self._open(node, corpus, generation, n_shards, shards)) for node, shards in shares.items() if shards
        }
        await asyncio.gather(*(self.asking.until_doubt(task, node) for node, task in opening.items()))

    # --- scaling -----------------------------------------------------------------------------------------------------------

    async def _look_at_load(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for corpus, record in list(self.known.items()):
                if record.bounds is None:
                    self.scalers.pop(corpus, None)
                    continue
                scaler = self.scalers.setdefault(corpus, Scaling(Bounds(*record.bounds), SCALING))
                scaler.bounds = Bounds(*record.bounds)
                utilisation = min(self.world.work[corpus] / record.replicas * self.world.rng.uniform(0.95, 1.05), 1.0)
                wish = scaler.look(Look(utilisation, 0.0, 0, record.replicas, len(self.membership.serving)))
                if wish is not None and self.world.records[corpus].number == record.number:  # else somebody was first
                    assert record.bounds[0] <= wish <= record.bounds[1], f"{self.name} wishes for {wish} replicas of {record.bounds}"
                    self.world.records[corpus] = Record(record.number + 1, wish, record.bounds)
                    self.world.note(f"{self.name} scales {corpus} from {record.replicas} to {wish} replicas")
