"""Asks all hosts at once and makes of whatever comes back an answer that says what it covers.

Which host is asked for which shards `cluster.routing` says, and `cluster.asking` goes on to others where one fails or is late. The host
on the coordinator's own node is called over a socket (`cluster.sockets`), others through Ray.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

import ray
from ray.actor import ActorClass
from ray.exceptions import RayError, RayTaskError

from cluster.actors import CONTROL, HostActor
from cluster.asking import Asking, HostAway, HostFailed, Part, Unavailable, Work
from cluster.batching import Batcher
from cluster.controller import Controller, call, first_line
from cluster.host import DetailsRequest, DocumentText, HostRequest, Opened, RowsRequest, unsearched
from cluster.membership import QueryFailed, QueryMissed
from cluster.placement import shard_of
from cluster.placing import Aside
from cluster.protocol import EVERYWHERE, Spans
from cluster.routing import Routing
from cluster.settings import ClusterSettings, HostSettings
from cluster.sockets import AVAILABLE, METHODS, CallFailed, SocketClient
from cluster.table import Table
from shards.errors import SondageError, StoreError
from shards.nlql.answers import RowAnswer, unlooked
from shards.nlql.plan import RowPlan
from shards.plan import Plan, Predicate, SpaceQuery
from shards.types import EXCERPT_BYTES, Candidates, Detail, LinesAround

logger = logging.getLogger(__name__)

Found = TypeVar("Found", Candidates, RowAnswer)

# Queries in one call over a socket, which costs little: with more, host and coordinator wait for one another in turns (64 clients:
# a fifth of both cores idle).
NEAR_BATCH = 8
TRIAL_S = 10.0  # for the query that warms a new process: loading compiled code takes 0.6 s, compiling it 6 s


class RaySearcher:
    """`Searcher` over one host actor per node. Use as `async with`; belongs to one event loop.

    A host that is late, dead, frozen or not yet there costs nothing where others have its shards open. Where none has, it costs
    these, never the query: they are in the coverage as late, missing or failed, with the host and the reason.
    """

    def __init__(self, cluster: ClusterSettings, host: HostSettings, actor: ActorClass = HostActor):
        self._settings = cluster
        self._node = ray.get_runtime_context().get_node_id()
        self.controller = Controller(cluster, host, self._warm_host, self._abandon, self._told, self._changed, actor)
        self.routing = Routing(cluster, self._node)
        self._placed_anew = asyncio.Event()  # another one after each placement that was worked out aside
        self._aside = Aside(self._has_placed)
        self.table = Table(cluster, self.routing, self.controller.weights, self.controller.memory, self._aside)
        self.asking = Asking(
            self.routing, self._ask, lambda: self.controller.up, self._full, self._cancel, lambda: self.controller.doubted
        )
        self._batchers: dict[tuple[str, str], Batcher[Any, Any]] = {}  # by node and method
        self._near: SocketClient | None = None  # to the host of this node, once its address is known
        self._hosts_awaited = False
        self._news = asyncio.Event()  # set when something may have to be opened
        self._opening: dict[tuple[str, str, int], asyncio.Task[Opened]] = {}  # by node, corpus and generation
        self._tasks: set[asyncio.Future[Any]] = set()

    async def __aenter__(self) -> "RaySearcher":
        for watch in (self.controller.run(), self._keep_open()):
            task = asyncio.get_running_loop().create_task(watch)
            task.add_done_callback(_say_why)
            self._tasks.add(task)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops watching. The hosts stay: other coordinators use them, and the next one finds them warm."""
        for task in (*self._tasks, *self._opening.values()):
            task.cancel()
        await asyncio.wait([*self._tasks, *self._opening.values()])
        if self._near is not None:
            self._near.close()
        self._aside.close()

    # --- asking ------------------------------------------------------------------------------------------------------------

    async def search(self, corpus: str, generation: int, n_shards: int, plan: Plan) -> list[Candidates]:
        self.table.asked(corpus, generation, n_shards, plan if plan.deeper is None else None)

        def request(node: str, shards: tuple[int, ...], key: int) -> HostRequest:
            # Details at once spare a second journey. To this node's host that takes less than details of what is not shown.
            return HostRequest(corpus, generation, shards, replace(plan, n_details=0) if self._socket_to(node) else plan, key)

        return await self._answers(corpus, generation, n_shards, "search", request, plan.budget_s, partial(unsearched, plan))

    async def rows(self, corpus: str, generation: int, n_shards: int, plan: RowPlan) -> list[RowAnswer]:
        self.table.asked(corpus, generation, n_shards, None)

        def request(_node: str, shards: tuple[int, ...], key: int) -> RowsRequest:
            return RowsRequest(corpus, generation, shards, plan, key)

        def lost(shards: Sequence[int], state: str, reason: str) -> RowAnswer:
            return RowAnswer(status=unlooked(plan, shards, state, reason))

        return await self._answers(corpus, generation, n_shards, "rows", request, plan.budget_s, lost)

    async def _answers(
        self,
        corpus: str,
        generation: int,
        n_shards: int,
        method: str,
        request: Callable[[str, tuple[int, ...], int], Any],
        budget_s: float,
        lost: Callable[[Sequence[int], str, str], Found],
    ) -> list[Found]:
        """What hosts answer; and what `lost` says of shards of which there is no answer, in what state they are, and why."""
        work = self._work(corpus, generation, n_shards, method, request)
        if not any(work.placed):  # of so many shards that their first placement is still being worked out
            await self._placed(corpus, n_shards, self.controller.membership.serving, budget_s, any_will_do=True)
            work = self._work(corpus, generation, n_shards, method, request)
        work = replace(work, failed=_not_opened, without=_without)
        answers = []
        for part in await self.asking.parts(work, range(n_shards), budget_s):
            if part.error is None:
                self._has_opened(work, n_shards, part)
                answers.append(part.answer)
                continue
            for shards, state, reason in self._lost(work, part, budget_s):
                logger.warning("node=%s corpus=%s event=%s_%s reason=%s", part.node, corpus, method, state, reason)
                answers.append(lost(shards, state, reason))
        return answers

    def _work(
        self, corpus: str, generation: int, n_shards: int, method: str, request: Callable[[str, tuple[int, ...], int], Any]
    ) -> Work:
        return Work(corpus, generation, self.table.placed(corpus, n_shards, self.controller.membership.serving), method, request)

    def _has_opened(self, work: Work, n_shards: int, part: Part) -> None:
        """A host that had not opened a shard has done so to answer."""
        incarnation = self.controller.up.get(part.node, "")
        known = self.routing.has_open(part.node, incarnation, work.corpus, work.generation)
        if incarnation and any(shard not in known for shard in part.shards):
            failed = {status.shard for status in part.answer.status if status.state == "failed"}
            opened = set(part.shards) - failed
            self.routing.opened(work.corpus, work.generation, n_shards, part.node, incarnation, opened, _now())

    def _lost(self, work: Work, part: Part, budget_s: float) -> list[tuple[list[int], str, str]]:
        """Shards that were not searched, in what state, and why."""
        match part.error:
            case TimeoutError():
                state, reason = "late", f"no answer within {budget_s:.3g} s"
            case HostFailed():
                state, reason = "failed", str(part.error)
            case _:
                state, reason = "missing", str(part.error)
        if part.node:
            return [(list(part.shards), state, f"host {part.node[:12]}: {reason}")]
        away: dict[str, list[int]] = {}  # nobody could be asked: what is wrong with the first host of each
        for shard in part.shards:
            away.setdefault(next(iter(work.placed[shard]), ""), []).append(shard)
        membership = self.controller.membership
        return [(shards, state, f"host {node[:12]}: {membership.reason(node)}" if node else reason) for node, shards in away.items()]

    async def details(
        self,
        corpus: str,
        generation: int,
        n_shards: int,
        spans: Spans,
        words: tuple[str, ...] = (),
        excerpt_size: int | LinesAround = EXCERPT_BYTES,
        where: Predicate = EVERYWHERE,
        budget_s: float = 10.0,
        queries: Sequence[SpaceQuery] = (),
    ) -> dict[bytes, Detail]:
        wanted: dict[int, list[bytes]] = {}
        for document in spans:
            wanted.setdefault(shard_of(document, n_shards), []).append(document)

        def request(_node: str, shards: tuple[int, ...], _key: int) -> DetailsRequest:
            asked = {document: spans[document] for shard in shards for document in wanted[shard]}
            return DetailsRequest(corpus, generation, shards, asked, words, excerpt_size, where, tuple(queries))

        work = self._work(corpus, generation, n_shards, "details", request)
        found: dict[bytes, Detail] = {}
        try:
            parts = await self.asking.parts(work, sorted(wanted), budget_s)
        except Unavailable:
            return found
        for part in parts:
            if part.error is None:
                found |= part.answer
            else:
                logger.warning("node=%s corpus=%s event=details_missing reason=%s", part.node, corpus, first_line(part.error))
        return found

    async def document(
        self,
        corpus: str,
        generation: int,
        n_shards: int,
        document: bytes,
        start: int = 0,
        end: int | None = None,
        budget_s: float = 10.0,
    ) -> DocumentText:
        shard = shard_of(document, n_shards)
        work = self._work(corpus, generation, n_shards, "document", lambda *_: None)
        chosen = self.routing.choose(corpus, generation, work.placed, self.controller.up, _now(), [shard])
        # Any host can open any shard; the one that is chosen has it open.
        nodes = sorted(self.controller.up, key=lambda node: (node not in chosen, node)) + sorted(self.controller.doubted)
        reason = "no host is ready"
        try:
            async with asyncio.timeout(budget_s):
                for node in nodes:
                    try:
                        return await self._call(node, "document", corpus, generation, document, start, end)
                    except RayTaskError as error:
                        if isinstance(error.cause, SondageError):
                            raise error.cause from None
                        raise
                    except RayError as error:
                        reason = f"host {node[:12]}: {first_line(error)}"
        except TimeoutError:
            reason = f"no answer within {budget_s:.3g} s"
        raise StoreError(
            f"Document {document.hex()} of corpus {corpus!r} cannot be read now: {reason}. Try again in a few seconds."
        )

    def routes(self, corpus: str, generation: int, n_shards: int) -> dict[str, tuple[int, ...]]:
        """Node -> shards, as a query would be sent now; each shard once, under "" where nobody could be asked."""
        placed = self.table.placed(corpus, n_shards, self.controller.membership.serving)
        return self.routing.choose(corpus, generation, placed, self.controller.up, _now())

    async def status(self) -> dict[str, Any]:
        return {
            "hosts": [self._host_status(node) for node in self.controller.membership.nodes],
            "routing": asdict(self.asking.counts),
            "placement": self.table.status(self.controller.membership.serving, self.controller.up),
        }

    def _host_status(self, node: str) -> dict[str, Any]:
        membership, host = self.controller.membership, self.routing.host(node)
        told = {name: value for name, value in self.controller.status(node).items() if name != "socket"}
        batchers = [batcher for (name, _), batcher in self._batchers.items() if name == node]
        return {"node": node, "state": membership.state(node), "reason": membership.reason(node)} | told | {
            "circuit": self.routing.circuit(node, _now()),
            "queue": sum(batcher.n_waiting for batcher in batchers),
            "in_flight": host.outstanding,
            "calls": host.calls,
            "failed": host.failed,
            "call_seconds": host.usual_s,
        }

    # --- calls -------------------------------------------------------------------------------------------------------------

    def _full(self, method: str) -> set[str]:
        return {node for (node, name), batcher in self._batchers.items() if name == method and batcher.full}

    async def _ask(self, node: str, method: str, request: Any, budget_s: float) -> Any:
        """One question to one host, in the next call to it. Raises TimeoutError, HostAway, HostFailed, Overloaded."""
        if node not in self.controller.up and node not in self.controller.doubted:
            raise HostAway(self.controller.membership.reason(node))
        try:
            return await self._batcher(node, method).ask(request, budget_s)
        except (RayTaskError, CallFailed) as error:  # before TimeoutError: Ray gives it the type of its cause as well
            raise HostFailed(first_line(error.cause or error)) from None
        except TimeoutError:
            self.controller.report(QueryMissed(node))
            raise
        except RayError as error:
            raise HostAway(first_line(error)) from None

    def _batcher(self, node: str, method: str) -> Batcher[Any, Any]:
        if (node, method) not in self._batchers:
            s = self._settings
            batch = min(s.batch, NEAR_BATCH) if node == self._node and AVAILABLE else s.batch
            self._batchers[node, method] = Batcher(
                self._caller(node, method), _limit, s.in_flight, batch, s.queue, f"host {node[:12]}", alone=_is_task_error
            )
        return self._batchers[node, method]

    def _caller(self, node: str, method: str) -> Callable[[list[Any]], Awaitable[Any]]:
        return lambda requests: self._call(node, method, requests)

    async def _call(self, node: str, method: str, *args: Any) -> Any:
        incarnation = self.controller.membership.incarnation(node)
        try:
            if method in METHODS and (near := self._socket_to(node)):
                return await near.call(method, *args)
            return await call(getattr(self.controller.handle(node), method), *args)
        except RayTaskError:  # the host is well; its code raised
            raise
        except RayError as error:
            self.controller.report(QueryFailed(node, incarnation, first_line(error)))
            raise
        except ConnectionError as error:
            self.controller.report(QueryFailed(node, incarnation, first_line(error)))
            raise HostAway(first_line(error)) from None

    def _socket_to(self, node: str) -> SocketClient | None:
        """The way to a host past Ray; None where it is on another node or does not say where it listens."""
        if node != self._node or not AVAILABLE or not (address := self.controller.status(node).get("socket")):
            return None
        if self._near is None or self._near.address != address:  # its process is a new one
            if self._near is not None:
                self._near.close()
            self._near = SocketClient(address)
        return self._near

    def _cancel(self, node: str, method: str, key: int) -> None:
        """Tells a host that nobody waits for a search any more: threads cannot be stopped, but they look at their time."""
        if method in ("search", "rows") and node in self.controller.up:
            handle = self.controller.handle(node)
            ref = handle.cancel.options(concurrency_group=CONTROL).remote([key])
            ref.future().add_done_callback(lambda f: f.cancelled() or f.exception())

    # --- news of hosts -----------------------------------------------------------------------------------------------------

    def _abandon(self, node: str, reason: str) -> None:
        for (name, _method), batcher in self._batchers.items():
            if name == node:
                batcher.abandon(HostAway(reason))
        if node not in self.controller.membership.nodes:
            self._batchers = {key: batcher for key, batcher in self._batchers.items() if key[0] != node}
            self.routing.forget(node)

    def _told(self, node: str, incarnation: str, status: dict[str, Any], asked: float) -> None:
        self.routing.told(node, incarnation, status.get("shards", ()), asked)
        self.routing.reported(node, incarnation, status.get("load", {}))

    def _changed(self, gone: Iterable[str]) -> None:
        for node in gone:
            self.asking.doubt(node)
        self._news.set()

    # --- opening -----------------------------------------------------------------------------------------------------------

    async def _placed(
        self, corpus: str, n_shards: int, nodes: tuple[str, ...], patience_s: float, any_will_do: bool = False
    ) -> tuple[tuple[str, ...], ...]:
        """`Table.placed` once it is worked out from what is known, or the time is over. any_will_do: also one that held before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while True:
                    found, news = self.table.placed(corpus, n_shards, nodes), self._placed_anew
                    if (any_will_do and any(found)) or not nodes or self.table.is_placed(corpus, n_shards, nodes):
                        return found
                    await news.wait()
        return self.table.placed(corpus, n_shards, nodes)

    def _has_placed(self) -> None:
        self._placed_anew.set()
        self._placed_anew = asyncio.Event()
        self._news.set()

    async def warm(
        self, corpus: str, generation: int, n_shards: int, replicas: int | None = None, size_bytes: Sequence[int] | None = None
    ) -> Opened:
        self.table.wants(corpus, generation, n_shards, replicas, size_bytes)
        if not self._hosts_awaited:  # later on a host that is away must not delay a new generation
            with contextlib.suppress(TimeoutError):
                enough = partial(self._is_open, corpus, generation, n_shards)
                await asyncio.wait_for(self.controller.all_ready(enough), self._settings.start_timeout_s)
            self._hosts_awaited = True
        placed = await self._placed(corpus, n_shards, self.controller.membership.serving, self._settings.start_timeout_s)
        shares = {node: tuple(s for s, on in enumerate(placed) if node in on) for node in self.controller.up}
        opening = {node: self._start_opening(node, corpus, generation, n_shards, shards) for node, shards in shares.items() if shards}
        # A host that goes away meanwhile keeps nobody waiting: a new generation must be seen while a node is being lost.
        await asyncio.gather(*(self.asking.until_doubt(task, node) for node, task in opening.items()))
        parts = [task.result() for task in opening.values() if task.done()]
        docs = {number: n for part in parts for number, n in part.docs.items()}
        return Opened(docs, next((part.sample for part in parts if part.sample), ""))

    def _is_open(self, corpus: str, generation: int, n_shards: int) -> bool:
        """Whether all shards are open on hosts that are ready: those of another coordinator, of which some may be away."""
        opened = [self.routing.has_open(node, process, corpus, generation) for node, process in self.controller.up.items()]
        return all(any(shard in shards for shards in opened) for shard in range(n_shards))

    async def _keep_open(self) -> None:
        """Has hosts open what is placed on them, and tells them every `renew_s` that it is still wanted."""
        while True:
            due = self.table.due(self.controller.membership.serving, self.controller.up, _now())
            for node, corpus, generation, n_shards, shards in due:
                if (node, corpus, generation) not in self._opening:
                    self._start_opening(node, corpus, generation, n_shards, shards)
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), self._settings.probe_s * 5)

    def _start_opening(
        self, node: str, corpus: str, generation: int, n_shards: int, shards: tuple[int, ...]
    ) -> "asyncio.Task[Opened]":
        task = asyncio.get_running_loop().create_task(self._open(node, corpus, generation, n_shards, shards))
        key = node, corpus, generation
        self._opening[key] = task
        task.add_done_callback(lambda _: self._opening.pop(key) if self._opening.get(key) is task else None)
        return task

    async def _warm_host(self, node: str) -> None:
        """Opens on a new process its share of what queries asked for lately, and asks it one of them."""
        nodes = tuple(sorted({*self.controller.membership.serving, node}))
        for corpus, generation, n_shards, plan in self.table.recent():
            placed = await self._placed(corpus, n_shards, nodes, self._settings.start_timeout_s)
            shards = tuple(shard for shard, on in enumerate(placed) if node in on)
            await self._open(node, corpus, generation, n_shards, shards, plan and replace(plan, budget_s=TRIAL_S))

    async def _open(
        self, node: str, corpus: str, generation: int, n_shards: int, shards: tuple[int, ...], plan: Plan | None = None
    ) -> Opened:
        incarnation = self.controller.membership.incarnation(node)
        self.table.tell(node, incarnation, corpus, generation, shards, _now())
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                opened = await self._call(node, "warm", corpus, generation, shards, plan)
        except (RayError, TimeoutError) as error:
            logger.warning("node=%s corpus=%s event=not_warmed reason=%s", node, corpus, first_line(error))
            return Opened()
        self.routing.opened(corpus, generation, n_shards, node, incarnation, opened.docs, _now())
        return opened


def _now() -> float:
    return asyncio.get_running_loop().time()


def _say_why(watch: "asyncio.Task[None]") -> None:
    if not watch.cancelled() and (error := watch.exception()):
        logger.error("event=hosts_no_longer_watched", exc_info=error)


def _not_opened(found: Candidates | RowAnswer) -> set[int]:
    """The shards that failed in every space: a damaged copy or a full disk, which other hosts need not have."""
    failed = {status.shard for status in found.status if status.state == "failed"}
    return failed - {status.shard for status in found.status if status.state != "failed"} if failed else failed


def _without(found: Found, shards: Collection[int]) -> Found:
    return replace(found, status=tuple(status for status in found.status if status.shard not in shards))


def _is_task_error(error: Exception) -> bool:
    return isinstance(error, (RayTaskError, CallFailed))


def _limit(request: Any, seconds: float) -> Any:
    """What is asked, with what is left of its time."""
    if isinstance(request, DetailsRequest):
        return replace(request, budget_s=seconds)
    timed = isinstance(request, HostRequest | RowsRequest)
    return replace(request, plan=replace(request.plan, budget_s=seconds)) if timed else request
