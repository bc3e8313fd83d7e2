"""Random histories of a cluster, drawn from a seed, against what must hold whatever happens.

    python -m tests.cluster_simulation --histories 5000 --seed 1

Two kinds. A **storm** does everything at once: nodes die and join, processes are killed and freeze, coordinators come and go, clocks
jump, Ray's head is away, messages are lost, slow and out of order, generations are published, shards split and merge, replicas change
by hand or by load. Then it is calm. **Steps** do one thing at a time, with control messages lost and slow, and wait until it has been
dealt with.

Checked at each query: one generation on all shards, every bucket answered or missed once, no host asked that its coordinator knows is
dead. When it is calm: within `CALM_S` all coordinators agree, every shard is open in as many distinct live processes as there should
be replicas (or nodes), nothing changes any more, hosts close what is not wanted, and queries are whole. At each step also: buckets
fetched at most 1.2 times the fewest that any as even placement would need (by integer programming, `tests/exact_placement.py`), and
with two replicas no answer is partial. Of scaling: always within bounds, one way while the load stays, and then at rest.

A history that fails prints its seed and what happened; `--kind KIND --seed SEED --histories 1` plays it again.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a module of the checkout or as a file: tests import one another by bare names
    sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import numpy as np
from exact_placement import least_cost
from simulated_cluster import LET_GO_S, SETTINGS, Record, SimulatedNode, World
from simulated_coordinator import LOOK_S, SCALING, Answers, Coordinator
from test_batching import VirtualClock

from cluster.placement import Nodes, holdings
from shards.identity import N_BUCKETS, shard_ranges

CALM_S = 60.0  # in which everything is in order again: a process that does not answer is given 15 s to start before it is killed
QUERIES_END_S = 6.0  # after which no query of before is under way
REST_S = 5.0  # in which nothing may change then
MOVED_LIMIT = 1.2


class Broken(AssertionError):
    """An invariant did not hold."""


class History:
    """One world, its coordinators, and clients that ask all the time."""

    def __init__(self, seed: int, kind: str):
        self.rng = random.Random(f"{kind} {seed}")
        self.world, self.answers = World(self.rng), Answers()
        self.coordinators: list[Coordinator] = []
        self.fates: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self._n_nodes = self._n_coordinators = 0

    # --- what can happen ---------------------------------------------------------------------------------------------------

    def happens(self, what: str, more: str = "") -> None:
        self.fates[what] += 1
        self.world.note(f"{what} {more}".strip())

    def add_node(self) -> str:
        self._n_nodes += 1
        name = f"n{self._n_nodes}"
        self.world.nodes[name] = SimulatedNode(name)
        self.happens("node joins", name)
        return name

    def add_coordinator(self) -> None:
        self._n_coordinators += 1
        coordinator = Coordinator(self.world, f"c{self._n_coordinators}", self.answers)
        self.coordinators.append(coordinator)
        self.happens("coordinator starts", coordinator.name)
        coordinator.begin()

    def end_coordinator(self) -> None:
        if len(self.coordinators) > 1:
            gone = self.coordinators.pop(self.rng.randrange(len(self.coordinators)))
            gone.end()
            self.happens("coordinator dies", gone.name)

    def fail_node(self) -> None:
        if len(alive := self.world.alive()) > 2:
            name = self.rng.choice(alive)
            self.world.fail_node(self.world.nodes[name])
            self.happens("node dies", name)

    def kill(self) -> None:
        name = self.rng.choice(self.world.alive())
        self.world.kill(self.world.nodes[name])
        self.happens("process is killed", name)

    def freeze(self) -> None:
        """It thaws some time, or is found out and killed."""
        name = self.rng.choice(self.world.alive())
        if (process := self.world.nodes[name].process) is None:
            return
        process.thawed.clear()
        self.happens("process freezes", name)
        if self.rng.random() < 0.5:
            asyncio.get_running_loop().call_later(self.rng.uniform(0.2, 8.0), process.thawed.set)

    def jump(self) -> None:
        coordinator, seconds = self.rng.choice(self.coordinators), self.rng.uniform(1.0, 30.0)
        coordinator.skew_s += seconds
        self.happens("clock jumps", f"of {coordinator.name} by {seconds:.1f} s")

    def lose_head(self) -> None:
        self.world.listing = False
        self.happens("head is away")
        asyncio.get_running_loop().call_later(self.rng.uniform(1.0, 8.0), setattr, self.world, "listing", True)

    def publish(self, n_shards: int | None = None) -> None:
        """A generation, with the shards of the one before it or others."""
        corpus = self.rng.choice(sorted(self.world.generations))
        of = n_shards or self.world.generations[corpus][-1]
        self.world.generations[corpus].append(of)
        self.happens("reshard" if n_shards else "publish", f"{corpus}@{self.world.newest(corpus)} with {of} shards")

    def reshard(self) -> None:
        self.publish(self.rng.choice((1, 2, 3, 4, 6, 8, 12)))

    def scale(self) -> None:
        corpus = self.rng.choice(sorted(self.world.records))
        before = self.world.records[corpus]
        if before.bounds is None:
            self.world.records[corpus] = Record(before.number + 1, self.rng.randint(1, 3))
            self.happens("scale", f"{corpus} to {self.world.records[corpus].replicas} replicas")
        else:
            self.world.work[corpus] = self.rng.uniform(0.1, 3.0)
            self.happens("load changes", f"of {corpus} to {self.world.work[corpus]:.2f} replicas of work")

    # --- running -----------------------------------------------------------------------------------------------------------

    def set_up(self, corpora: int, replicas: tuple[int, int], automatic: float) -> None:
        for _ in range(self.rng.randint(2, 5)):
            self.add_node()
        for corpus in "ab"[:corpora]:
            self.world.generations[corpus] = [self.rng.choice((1, 2, 4, 5, 8))]
            self.world.work[corpus] = self.rng.uniform(0.1, 3.0)
            bounds = (1, self.rng.randint(1, 4)) if self.rng.random() < automatic else None
            self.world.records[corpus] = Record(1, 1 if bounds else self.rng.randint(*replicas), bounds)
            self.world.note(f"corpus {corpus}: {self.world.generations[corpus][0]} shards, {self.world.records[corpus]}")
        for _ in range(self.rng.randint(1, 3)):
            self.add_coordinator()
        self.world.background(self._clients())

    async def _clients(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(2.0))
            coordinator, corpus = self.rng.choice(self.coordinators), self.rng.choice(sorted(self.world.generations))
            self.world.background(coordinator.query(corpus))

    async def until_settled(self, limit_s: float = CALM_S) -> float:
        """Waits until all is as it should be; returns the seconds it took. Raises Broken after `limit_s`."""
        begun = self.world.now()
        while (wrong := self.unsettled()) is not None:
            if self.world.now() - begun > limit_s:
                raise Broken(f"after {limit_s} calm seconds: {wrong}")
            await asyncio.sleep(0.25)
        return self.world.now() - begun

    def unsettled(self) -> str | None:
        """What is not as it should be yet, if anything. Looks at processes themselves, not at what coordinators believe."""
        alive = self.world.alive()[: SETTINGS.max_hosts]
        for name in alive:  # one that has no shard may be frozen for seconds before anybody finds it out
            if (frozen := self.world.nodes[name].process) is not None and not frozen.thawed.is_set():
                return f"{frozen.incarnation} is frozen"
        for corpus in sorted(self.world.generations):
            newest, record = self.world.newest(corpus), self.world.records[corpus]
            placements = set()
            for c in self.coordinators:
                if c.current.get(corpus) != newest or c.known.get(corpus) != record:
                    return f"{c.name} serves {corpus}@{c.current.get(corpus)} with {c.known.get(corpus)}, not {newest} with {record}"
                processes = {name: process.incarnation for name in alive if (process := self.world.nodes[name].process)}
                if set(c.membership.serving) != set(alive) or c.up != processes or len(processes) < len(alive):
                    reasons = [c.membership.reason(node) for node in c.membership.nodes]
                    return f"{c.name} has {c.membership.serving} serving, {sorted(c.up)} up {reasons}, of {alive}"
                placements.add(c.table.placed(corpus, self.world.n_shards(corpus, newest), c.membership.serving))
            if len(placements) > 1:
                return f"{corpus} is placed differently: {placements}"
            for shard, on in enumerate(placements.pop()):
                opened = {node for node in alive if self._has_open(node, corpus, newest, shard)}
                if len(set(on)) != min(record.replicas, len(alive)) or not set(on) <= opened:
                    return f"shard {shard} of {corpus}@{newest} is placed on {on} and open on {sorted(opened)}, for {record}"
        return None

    def _has_open(self, name: str, corpus: str, generation: int, shard: int) -> bool:
        process = self.world.nodes[name].process
        return process is not None and process.thawed.is_set() and shard in process.open.get((corpus, generation), ())

    def placement(self, corpus: str) -> Nodes:
        c = self.coordinators[0]
        return c.table.placed(corpus, self.world.n_shards(corpus, self.world.newest(corpus)), c.membership.serving)

    async def rest(self) -> None:
        """Nothing changes any more, and every query is answered whole."""
        before, partial = {corpus: self.placement(corpus) for corpus in self.world.generations}, len(self.answers.partial)
        refused = self.answers.refused
        for _ in range(10):
            await asyncio.sleep(REST_S / 10)
            if (wrong := self.unsettled()) is not None:
                raise Broken(f"did not stay in order: {wrong}")
        if before != (after := {corpus: self.placement(corpus) for corpus in self.world.generations}):
            raise Broken(f"moved without a reason: {before} to {after}")
        self._whole(partial, refused)

    def _whole(self, partial: int, refused: int) -> None:
        if self.answers.partial[partial:] or self.answers.refused > refused:
            lines = "\n".join(self.answers.partial[partial:])
            raise Broken(f"{self.answers.refused - refused} queries refused; partial answers:\n{lines}")


def only_wanted(history: History) -> str | None:
    """What hosts hold open of the newest generations beside what is placed on them."""
    for corpus in history.world.generations:
        newest, placed = history.world.newest(corpus), history.placement(corpus)
        for name in history.world.alive():
            process = history.world.nodes[name].process
            for shard in process.open.get((corpus, newest), ()) if process else ():
                if name not in placed[shard]:
                    return f"{name} still holds shard {shard} of {corpus}@{newest}, which is placed on {placed[shard]}"
    return None


# --- storms ------------------------------------------------------------------------------------------------------------------


async def storm(history: History) -> None:
    """Everything at once, then calm."""
    rng, network = history.rng, history.world.network
    history.set_up(corpora=rng.randint(1, 2), replicas=(1, 3), automatic=0.4)
    for kind in ("ping", "open", "query", "head"):
        network.lost[kind], network.slow[kind] = (0.0 if kind == "head" else rng.choice((0.0, 0.02, 0.2))), rng.choice((0.0, 0.1, 0.3))
    history.world.note(f"messages lost {network.lost}, slow {network.slow}")
    acts: list[Callable[[], Any]] = [
        history.add_node, history.fail_node, history.kill, history.kill, history.freeze, history.jump, history.lose_head,
        history.publish, history.reshard, history.scale, history.add_coordinator, history.end_coordinator,
    ]  # fmt: skip
    for _ in range(rng.randint(4, 14)):
        await asyncio.sleep(rng.choice((0.0, 0.3, 2.0, 6.0)) * rng.random())
        act = rng.choice(acts)
        if not (act == history.add_node and len(history.world.alive()) >= SETTINGS.max_hosts):
            act()
    network.heal()
    history.happens("calm")
    automatic = any(record.bounds for record in history.world.records.values())
    if automatic:  # the number of replicas comes to rest first
        await scaling_rests(history)
    history.fates["seconds to order"] += round(await history.until_settled())
    await asyncio.sleep(QUERIES_END_S)  # queries of before have ended
    await history.rest()


async def scaling_rests(history: History) -> None:
    """While the load stays the number of replicas goes one way only, and then no further."""
    world, seen = history.world, {corpus: [record.replicas] for corpus, record in history.world.records.items()}
    for _ in range(round(SCALING.votes_down * 6 * LOOK_S)):
        await asyncio.sleep(1.0)
        for corpus, record in world.records.items():
            if record.replicas != seen[corpus][-1]:
                seen[corpus].append(record.replicas)
            if record.bounds and not record.bounds[0] <= record.replicas <= record.bounds[1]:
                raise Broken(f"{corpus} has {record.replicas} replicas, outside of {record.bounds}")
    for corpus, numbers in seen.items():
        ways = [after > before for before, after in zip(numbers, numbers[1:])]
        # Looks from before the calm may still be in the window: the first change may go the other way.
        if len(set(ways[1:])) > 1:
            raise Broken(f"replicas of {corpus} go to and fro under a load of {world.work[corpus]:.2f}: {numbers}")


# --- steps -------------------------------------------------------------------------------------------------------------------


async def steps(history: History) -> None:
    """One thing at a time, each dealt with before the next."""
    rng, network = history.rng, history.world.network
    history.set_up(corpora=1, replicas=(1, 2), automatic=0.0)
    await history.until_settled()
    # Pings in time, or with one replica their loss would make answers partial; queries arrive.
    network.lost, network.slow_s = {"open": rng.choice((0.0, 0.1))}, 0.4
    network.slow = dict.fromkeys(("ping", "open", "query", "head"), rng.choice((0.0, 0.1, 0.3)))
    history.world.note(f"messages lost {network.lost}, slow {network.slow}")
    acts = [history.add_node, history.fail_node, history.kill, history.publish, history.reshard, history.scale, history.jump]
    for _ in range(rng.randint(2, 4)):
        await asyncio.sleep(LET_GO_S + 2 * SETTINGS.renew_s + 1.0)  # what is not wanted any more is closed
        if not any(network.lost.values()) and (left := only_wanted(history)):
            raise Broken(f"was not let go: {left}")
        before, base = history.placement("a"), history.world.records["a"].replicas
        partial, refused, history.world.fetched = len(history.answers.partial), history.answers.refused, 0
        forget_disks(history)
        act = rng.choice(acts)
        if act == history.add_node and len(history.world.alive()) >= SETTINGS.max_hosts:
            continue
        act()
        await history.until_settled()
        fewest = fewest_buckets(before, history)
        history.fates["buckets fetched"] += history.world.fetched
        history.fates["buckets that had to be"] += fewest
        if history.world.fetched > MOVED_LIMIT * fewest:
            raise Broken(f"{history.world.fetched} buckets fetched, {fewest} would do: {before} to {history.placement('a')}")
        spare = min(base, history.world.records["a"].replicas, len(history.world.alive())) > 1
        await asyncio.sleep(QUERIES_END_S)
        if spare or act not in (history.fail_node, history.kill):
            history._whole(partial, refused)
        await history.rest()


def forget_disks(history: History) -> None:
    """Counts from what is open now: what lies on disks from earlier would make a placement look cheaper than it is."""
    for node in history.world.nodes.values():
        for disk in node.disk.values():
            disk[:] = False
        for corpus, generation in node.process.open if node.process else ():
            for shard in node.process.open[corpus, generation]:
                node.disk[corpus][slice(*shard_ranges(history.world.n_shards(corpus, generation))[shard])] = True


def fewest_buckets(before: Nodes, history: History) -> int:
    """The fewest copies of buckets that have to be fetched to get from `before` to any placement as even as can be."""
    nodes, of = history.world.alive(), history.world.generations["a"][-1]
    held = holdings(before)
    lacks = np.empty((of, len(nodes)))
    for column, node in enumerate(nodes):
        here = np.zeros(N_BUCKETS, np.bool_)
        for n, shard in held.get(node, ()):
            here[slice(*shard_ranges(n)[shard])] = True
        lacks[:, column] = [(~here[low:high]).sum() for low, high in shard_ranges(of)]
    fewest = least_cost(lacks, history.world.records["a"].replicas)
    assert fewest is not None
    return fewest


# --- running them ------------------------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[History], Awaitable[None]]] = {"storm": storm, "steps": steps}


def run(seed: int, kind: str) -> Counter[str]:
    """One history. Returns what happened, counted. Raises Broken with the seed and the events."""
    history: History | None = None

    async def story() -> None:
        nonlocal history
        history = History(seed, kind)
        loop = asyncio.get_running_loop()
        main = asyncio.current_task()
        assert main is not None

        def failed(_loop: Any, context: dict[str, Any]) -> None:
            history.failures.append(context.get("exception") or RuntimeError(context["message"]))

        loop.set_exception_handler(failed)
        telling = history.world.background

        def background(work: Awaitable[Any]) -> "asyncio.Task[Any]":
            """A task whose error, of an invariant above all, ends the history."""
            task = telling(work)

            def look(done: "asyncio.Task[Any]") -> None:
                if not done.cancelled() and (error := done.exception()) is not None:
                    history.failures.append(error)
                    main.cancel()

            task.add_done_callback(look)
            return task

        history.world.background = background  # type: ignore[method-assign]
        await KINDS[kind](history)

    try:
        with asyncio.Runner(loop_factory=VirtualClock) as runner:
            runner.run(story())
    except (Exception, asyncio.CancelledError) as error:
        reason = history.failures[0] if history and history.failures else error
        events = "\n".join(history.world.happened) if history else ""
        again = f"python -m tests.cluster_simulation --kind {kind} --seed {seed} --histories 1"
        raise Broken(f"{type(reason).__name__}: {reason}\n\nhistory {kind} {seed}:\n{events}\n\nagain: {again}") from reason
    assert history is not None
    if history.failures:
        raise Broken(f"history {kind} {seed}: {history.failures[0]}") from history.failures[0]
    history.fates += Counter(whole=history.answers.whole, partial=len(history.answers.partial), refused=history.answers.refused)
    return history.fates


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="of the first; the next have the next numbers")
    parser.add_argument("--kind", choices=sorted(KINDS), help="default: both, in turns")
    asked = parser.parse_args()
    begun, fates, broken = time.monotonic(), Counter[str](), 0
    for n in range(asked.histories):
        kind = asked.kind or sorted(KINDS)[n % 2]
        try:
            fates += run(asked.seed + n, kind)
        except Broken as error:
            broken += 1
            print(error, end="\n\n", flush=True)
        if n % 100 == 99:
            print(f"{n + 1} histories, {broken} broken", file=sys.stderr, flush=True)
    for what, count in sorted(fates.items()):
        print(f"{what:24} {count}")
    print(f"{asked.histories} histories in {time.monotonic() - begun:.1f} s, {broken} broken")
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
