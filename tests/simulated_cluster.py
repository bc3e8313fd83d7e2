"""A cluster that is simulated: nodes, host processes, messages between them and a store, on a clock that only the simulation moves.

Made up is what decisions are about: processes that take time to start and to open shards, freeze and die, disks, and messages that are
late or lost. What decides is real: `tests/simulated_coordinator.py`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from cluster.settings import ClusterSettings
from shards.identity import N_BUCKETS, shard_ranges

# Fewer pings and shorter waits than in life, so that histories take less time.
SETTINGS = ClusterSettings(
    heartbeat_s=2.0, probe_s=1.0, ping_timeout_s=1.5, frozen_pings=4, start_timeout_s=15.0, discovery_s=2.0, renew_s=4.0, max_hosts=6
)
LET_GO_S = 14.0  # a host closes what nobody wanted for so long
PROCESS_START_S = 0.7  # measured over Ray
NODE_NOTICED_S = 0.8  # until calls to a node that died fail


class Unreachable(ConnectionError):
    """The process that was called is not there. for_good: nobody will start it again by himself."""

    def __init__(self, reason: str, for_good: bool = False):
        super().__init__(reason)
        self.for_good = for_good


@dataclass(eq=False)
class Process:
    """One life of a host. open: (corpus, generation) -> shard -> when it was last wanted."""

    incarnation: str
    open: dict[tuple[str, int], dict[int, float]] = field(default_factory=dict)
    thawed: asyncio.Event = field(default_factory=asyncio.Event)
    calls: dict["asyncio.Future[Any]", None] = field(default_factory=dict)  # under way, in order: a set's would differ each time
    ended: bool = False


@dataclass(eq=False)
class SimulatedNode:
    """A machine. disk: by corpus, the buckets whose files it has fetched. wanted: an actor was created, so Ray restarts its process."""

    name: str
    alive: bool = True
    died_at: float = 0.0
    process: Process | None = None
    wanted: bool = False
    lives: int = 0
    disk: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """How a corpus is to be served. bounds: replicas at least and at most, where they are chosen by load."""

    number: int
    replicas: int
    bounds: tuple[int, int] | None = None


Kind = Literal["ping", "open", "query", "head"]  # what a message is about; what goes through Ray's head or the store is never lost


class Network:
    """Delays and losses, by kind: lost, the share that never arrive; slow, the share delayed by up to `slow_s` more."""

    def __init__(self, rng: random.Random):
        self.rng, self.slow_s = rng, 2.5
        self.lost: dict[Kind, float] = {}
        self.slow: dict[Kind, float] = {}

    def heal(self) -> None:
        self.lost, self.slow = {}, {}

    async def carry(self, kind: Kind) -> None:
        """Arrives, late or never. Messages overtake one another, as each has a delay of its own."""
        delay_s = self.rng.expovariate(200.0)
        if self.rng.random() < self.lost.get(kind, 0.0):
            await asyncio.get_running_loop().create_future()  # whoever waits for it has a deadline
        if self.rng.random() < self.slow.get(kind, 0.0):
            delay_s += self.rng.uniform(0.0, self.slow_s)
        await asyncio.sleep(delay_s)


class World:
    """Nodes and store. happened: what the history did, with times, to be printed when an invariant breaks."""

    def __init__(self, rng: random.Random):
        self.rng, self.network = rng, Network(rng)
        self.nodes: dict[str, SimulatedNode] = {}
        self.generations: dict[str, list[int]] = {}  # by corpus: the number of shards of each generation, the first is 1
        self.records: dict[str, Record] = {}
        self.work: dict[str, float] = {}  # by corpus: in units of what one replica can do
        self.listing = True  # whether Ray's head answers
        self.happened: list[str] = []
        self.fetched = 0  # buckets that hosts fetched since it was last set to 0
        self.tasks: set[asyncio.Task[Any]] = set()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def note(self, what: str) -> None:
        self.happened.append(f"{self.now():8.2f} {what}")

    def background(self, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def n_shards(self, corpus: str, generation: int) -> int:
        return self.generations[corpus][generation - 1]

    def newest(self, corpus: str) -> int:
        return len(self.generations[corpus])

    def alive(self) -> list[str]:
        return sorted(name for name, node in self.nodes.items() if node.alive)

    # --- processes ---------------------------------------------------------------------------------------------------------

    def start(self, node: SimulatedNode) -> None:
        """Creates the host actor unless it is there."""
        if node.alive and not node.wanted:
            node.wanted = True
            self.background(self._begin(node))

    async def _begin(self, node: SimulatedNode) -> None:
        await asyncio.sleep(PROCESS_START_S * self.rng.uniform(0.8, 1.5))
        if node.alive and node.wanted and node.process is None:
            node.lives += 1
            node.process = Process(f"{node.name}#{node.lives}")
            node.process.thawed.set()

    def kill(self, node: SimulatedNode, for_good: bool = False) -> None:
        """Ends the process; Ray starts another one on the same node, unless that is not wanted."""
        process, node.process = node.process, None
        if process is not None:
            process.ended = True
            process.thawed.set()
            for call in list(process.calls):
                call.cancel()
        if for_good:
            node.wanted = False
        elif process is not None and node.alive and node.wanted:
            self.background(self._begin(node))

    def fail_node(self, node: SimulatedNode) -> None:
        node.alive, node.died_at = False, self.now()
        self.kill(node, for_good=True)

    async def call(self, name: str, kind: Kind, work: Callable[[Process], Awaitable[Any]]) -> Any:
        """One call to a host's process, there and back. Raises Unreachable; may take for ever."""
        node = self.nodes[name]
        await self.network.carry(kind)
        if not node.alive:
            await asyncio.sleep(max(node.died_at + NODE_NOTICED_S - self.now(), 0.0))
            raise Unreachable("its node is gone", for_good=True)
        if not node.wanted:
            raise Unreachable("no such actor", for_good=True)
        if (process := node.process) is None:
            raise Unreachable("the process is being started")
        await process.thawed.wait()
        if process.ended:
            raise await self._broken(node)
        working = asyncio.ensure_future(work(process))
        process.calls[working] = None
        try:
            result = await working
        except asyncio.CancelledError:
            if not process.ended:  # it is the caller who gave up
                raise
            raise await self._broken(node) from None
        finally:
            process.calls.pop(working, None)
        if not process.thawed.is_set():
            await process.thawed.wait()
            if process.ended:
                raise await self._broken(node)
        await self.network.carry(kind)
        return result

    async def _broken(self, node: SimulatedNode) -> Unreachable:
        await asyncio.sleep(0.1 if node.alive else NODE_NOTICED_S)
        return Unreachable("the process died", for_good=not node.alive)

    # --- what a host does --------------------------------------------------------------------------------------------------

    async def open(self, name: str, process: Process, corpus: str, generation: int, shards: Iterable[int]) -> None:
        """Has shards open, opening what is not: fetches what this node's disk lacks."""
        of = self.n_shards(corpus, generation)
        disk = self.nodes[name].disk.setdefault(corpus, np.zeros(N_BUCKETS, np.bool_))
        for shard in shards:
            if shard not in process.open.get((corpus, generation), {}):
                await asyncio.sleep(self.rng.uniform(0.02, 0.3))
                here = disk[slice(*shard_ranges(of)[shard])]
                self.fetched += int((~here).sum())
                here[:] = True
            process.open.setdefault((corpus, generation), {})[shard] = self.now()

    async def warm(self, name: str, process: Process, corpus: str, generation: int, shards: tuple[int, ...]) -> tuple[int, ...]:
        await self.open(name, process, corpus, generation, shards)
        for (named, number), opened in list(process.open.items()):
            if named == corpus:
                for shard in [shard for shard, wanted in opened.items() if self.now() - wanted > LET_GO_S]:
                    del opened[shard]
                if not opened:
                    del process.open[named, number]
        return shards

    async def search(self, name: str, process: Process, corpus: str, generation: int, shards: tuple[int, ...]) -> Any:
        """The buckets that were searched, and of which generation."""
        await self.open(name, process, corpus, generation, shards)
        await asyncio.sleep(0.004 * len(shards) * self.rng.uniform(0.5, 2.0))
        ranges = shard_ranges(self.n_shards(corpus, generation))
        return generation, [ranges[shard] for shard in shards]

    async def status(self, process: Process) -> dict[str, Any]:
        rows = [
            {"corpus": corpus, "generation": generation, "shard": shard, "of": self.n_shards(corpus, generation)}
            for (corpus, generation), opened in process.open.items()
            for shard in opened
        ]
        return {"incarnation": process.incarnation, "shards": rows}
