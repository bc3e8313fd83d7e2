"""Keeps one living host per node: carries out what cluster/membership.py decides, and tells it what happened.

Each coordinator runs its own. All of them act on the same named actors, every action may be repeated, and there is no state to
share: the nodes come from Ray, the hosts' health from pings.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import ray
from ray.actor import ActorClass, ActorHandle
from ray.exceptions import ActorDiedError, ActorUnschedulableError, RayError

from cluster.actors import CONTROL, HostActor, host_names, start_host, stop_hosts
from cluster.membership import (
    Abandon,
    Action,
    Answered,
    Event,
    Membership,
    NodesSeen,
    Ping,
    PingFailed,
    PingMissed,
    Restart,
    Start,
    Stop,
    Tick,
    Warm,
    Warmed,
)
from cluster.settings import ClusterSettings, HostSettings

logger = logging.getLogger(__name__)


class Controller:
    """One coordinator's view of the hosts. Belongs to one event loop.

    membership: what is known; read it, but report through `report`. warm(node): called when a host's process is new; opens what
    it will be asked for.
    abandon(node, reason): called when queries under way to a host will not be answered.
    told(node, incarnation, status, asked): called with what a host says of itself, and when it was asked.
    changed(gone): called when other hosts may be asked, or serve, than before; gone: those that may be asked no more.
    up: nodes whose hosts may be asked, with the incarnation of their process; doubted: likewise of hosts that have missed a ping.
    """

    def __init__(
        self,
        cluster: ClusterSettings,
        host: HostSettings,
        warm: Callable[[str], Coroutine[Any, Any, Any]],
        abandon: Callable[[str, str], None],
        told: Callable[[str, str, dict[str, Any], float], None],
        changed: Callable[[frozenset[str]], None],
        actor: ActorClass = HostActor,
    ):
        self.membership = Membership(cluster)
        self._cluster, self._host, self._actor = cluster, host, actor
        self._warm, self._abandon, self._told, self._changed = warm, abandon, told, changed
        self.up: dict[str, str] = {}
        self.doubted: dict[str, str] = {}
        self._serving: tuple[str, ...] = ()
        self._memory_bytes: dict[str, float] = {}  # by node, as Ray knows it
        self._starts: dict[str, asyncio.Task[ActorHandle]] = {}  # by node; done when the handle is there
        self._statuses: dict[str, dict[str, Any]] = {}  # by node: the last answer to a ping
        self._tasks: set[asyncio.Task[Any]] = set()
        self._news = asyncio.Event()  # set whenever something was reported

    def handle(self, node: str) -> ActorHandle:
        """The actor of a host that is ready."""
        return self._starts[node].result()

    def status(self, node: str) -> dict[str, Any]:
        """What the host said of itself in its last answer, at most a heartbeat ago; {} if it has not yet answered."""
        return self._statuses.get(node, {})

    async def run(self) -> None:
        """Watches nodes and hosts until cancelled."""
        loop = asyncio.get_running_loop()
        self._background(self._stop_others())
        discovery, next_discovery = self._background(self._discover()), loop.time() + self._cluster.discovery_s
        try:
            while True:
                if loop.time() >= next_discovery and discovery.done():  # with Ray's head away it takes long; pings must go on
                    discovery, next_discovery = self._background(self._discover()), loop.time() + self._cluster.discovery_s
                self.report(Tick())
                await asyncio.sleep(self._cluster.probe_s)
        finally:
            for task in self._tasks:
                task.cancel()

    def report(self, event: Event) -> None:
        """Takes an event in and starts what has to be done about it."""
        for action in self.membership.handle(event, asyncio.get_running_loop().time()):
            self._do(action)
        self._news.set()
        membership = self.membership
        up = {node: membership.incarnation(node) for node in membership.nodes if membership.ready(node)}
        self.doubted = {node: membership.incarnation(node) for node in membership.nodes if membership.state(node) == "suspect"}
        if (up, membership.serving) != (self.up, self._serving):
            gone, self.up, self._serving = frozenset(self.up.keys() - up.keys()), up, membership.serving
            self._changed(gone)

    def weights(self, nodes: Iterable[str]) -> dict[str, float]:
        """What share of the shards each node should serve: by its memory, in whole multiples of the smallest, so that nodes of one kind,
        of which Ray measures a little more or less, count alike.
        """
        sizes = {node: self._memory_bytes.get(node, 0.0) for node in nodes}
        least = min((size for size in sizes.values() if size), default=1.0)
        return {node: float(max(round(size / least), 1)) for node, size in sizes.items()}

    def memory(self, nodes: Iterable[str]) -> dict[str, int]:
        """The bytes that shards may take of each node; {} where they are not bounded."""
        if (share := self._cluster.shard_memory) is None:
            return {}
        return {node: int(share * size) for node in nodes if (size := self._memory_bytes.get(node))}

    async def all_ready(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Returns as soon as every host that shards are placed on may be asked, or there are enough. Where there is no host it waits for
        one.
        """
        while not enough() and not ((serving := self.membership.serving) and all(map(self.membership.ready, serving))):
            self._news.clear()
            await self._news.wait()

    async def _discover(self) -> None:
        try:
            listed = {node["NodeID"]: node for node in await asyncio.to_thread(ray.nodes) if self._can_host(node)}
        except Exception as error:  # Ray's head is away: hosts still answer, so nothing is changed until it is back
            logger.warning("event=nodes_not_listed reason=%s", error)
            return
        self._memory_bytes |= {name: node["Resources"].get("memory", 0.0) for name, node in listed.items()}
        if nodes := frozenset(listed):  # none at all is a head that has just started and has not yet heard of them
            self.report(NodesSeen(nodes))
        else:
            logger.warning("event=no_node_for_hosts (each needs a CPU and %d bytes of memory)", self._host.memory_bytes)

    def _can_host(self, node: dict[str, Any]) -> bool:
        """Whether a host fits on a node at all. Heads are often started with no CPU, to keep work away from them."""
        room = node["Resources"]
        return node["Alive"] and room.get("CPU", 0) > 0 and room.get("memory", 0) >= self._host.memory_bytes

    async def _stop_others(self) -> None:
        """Ends the hosts of the deployment before this one: not before ours can answer, nor while its coordinator may, which would
        start them once more. Only those that are there now: later ones are the next deployment's.
        """
        others = await asyncio.to_thread(host_names, self._cluster.namespace, self._host)
        if not others:
            return
        try:
            await asyncio.wait_for(self.all_ready(), self._cluster.start_timeout_s)
            await asyncio.sleep(self._cluster.handover_s)
        except TimeoutError:
            logger.warning("event=hosts_not_ready: perhaps for want of memory, which other hosts hold; these are stopped")
        n_stopped = await asyncio.to_thread(stop_hosts, self._cluster.namespace, others)
        logger.info("event=other_hosts_stopped n=%d (other settings or code)", n_stopped)

    def _do(self, action: Action) -> None:
        match action:
            case Ping(node=node):
                self._background(self._ping(node))
            case Start(node=node):
                logger.info("node=%s event=host_starting", node)
                self._starts[node] = self._background(
                    asyncio.to_thread(start_host, node, self._host, self._cluster.namespace, self._actor)
                )
            case Stop(node=node):
                logger.info("node=%s event=host_stopped", node)
                self._statuses.pop(node, None)
                self._background(self._stop(self._starts.pop(node)))
            case Restart(node=node):
                logger.warning("node=%s event=host_killed reason=%s", node, self.membership.reason(node))
                self._background(self._kill(self._starts[node], no_restart=False))
            case Abandon(node=node, reason=reason):
                logger.warning("node=%s event=host_away reason=%s", node, reason)
                self._abandon(node, reason)
            case Warm(node=node):
                logger.info("node=%s event=host_ready pid=%s", node, self.status(node).get("pid"))
                self._background(self._warm_up(node))

    def _background(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.warning("event=action_failed reason=%s: %s", type(error).__name__, error)

    async def _ping(self, node: str) -> None:
        asked = asyncio.get_running_loop().time()
        try:
            status = await asyncio.wait_for(self.ask_status(node), self._cluster.ping_timeout_s)
        except (ActorDiedError, ActorUnschedulableError) as error:
            self.report(PingFailed(node, first_line(error), for_good=True))
        except RayError as error:  # before TimeoutError: Ray gives the host's exceptions the type of their cause as well
            self.report(PingFailed(node, first_line(error)))
        except TimeoutError:
            self.report(PingMissed(node))
        except Exception as error:  # start_host failed, e.g. its node has just left; it is tried again with growing pauses
            self.report(PingFailed(node, first_line(error), for_good=True))
        else:
            incarnation = f"{status['pid']}@{status['started']}"
            self._statuses[node] = status
            self._told(node, incarnation, status, asked)
            self.report(Answered(node, incarnation))

    async def ask_status(self, node: str) -> dict[str, Any]:
        handle = await asyncio.shield(self._starts[node])
        return await call(handle.status.options(concurrency_group=CONTROL))

    async def _warm_up(self, node: str) -> None:
        try:
            await self._warm(node)
        finally:
            self.report(Warmed(node))

    async def _kill(self, start: "asyncio.Task[ActorHandle]", no_restart: bool) -> None:
        # A frozen process does not obey: Ray kills it after RAY_kill_worker_timeout_milliseconds (5 s).
        ray.kill(await asyncio.shield(start), no_restart=no_restart)

    async def _stop(self, start: "asyncio.Task[ActorHandle]") -> None:
        await self._kill(start, no_restart=True)


async def call(method: Any, *args: Any) -> Any:
    """An actor call that is cancelled with its caller. Threaded actors run a cancelled call to its end, so hosts check budgets."""
    ref = method.remote(*args)
    future = asyncio.wrap_future(ref.future())
    # Somebody must look at the outcome of a call that was given up, or asyncio reports it as never retrieved.
    future.add_done_callback(lambda f: f.cancelled() or f.exception())
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        ray.cancel(ref)
        raise


def first_line(error: BaseException) -> str:
    """An error in one line: Ray's exceptions carry whole reports."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"[:200]
