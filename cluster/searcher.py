"""Asks all hosts at once, one call per host and query, and makes of whatever comes back an answer that says what it covers.

The host on the coordinator's own node is called over a socket (`cluster.sockets`), others through Ray.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import ray
from ray.actor import ActorClass
from ray.exceptions import RayError, RayTaskError

from cluster.actors import HostActor
from cluster.batching import Batcher
from cluster.controller import Controller, call, first_line
from cluster.host import DetailsRequest, DocumentText, HostRequest, Opened, unsearched
from cluster.membership import QueryFailed, QueryMissed
from cluster.placement import place, shard_of
from cluster.protocol import EVERYWHERE, Spans
from cluster.settings import ClusterSettings, HostSettings
from cluster.sockets import AVAILABLE, METHODS, CallFailed, SocketClient
from shards.errors import SondageError, StoreError
from shards.plan import Plan, Predicate, SpaceQuery
from shards.types import EXCERPT_BYTES, Candidates, Detail, LinesAround

logger = logging.getLogger(__name__)

# Queries in one call over a socket, which costs little: with more, host and coordinator wait for one another in turns (64 clients:
# a fifth of both cores idle).
NEAR_BATCH = 8
TRIAL_S = 10.0  # for the query that warms a new process: loading compiled code takes 0.6 s, compiling it 6 s


class HostAway(SondageError):
    """A host's process is gone; it is being started again."""

    status = 503


class RaySearcher:
    """`Searcher` over one host actor per node. Use as `async with`; belongs to one event loop.

    A host that is late, dead, frozen or not yet there costs its shards, never the query: they are in the coverage as late,
    missing or failed, with the host and the reason.
    """

    def __init__(self, cluster: ClusterSettings, host: HostSettings, actor: ActorClass = HostActor):
        self._settings = cluster
        self.controller = Controller(cluster, host, self._warm_host, self._abandon, actor)
        self._batchers: dict[tuple[str, str], Batcher[Any, Any]] = {}  # by node and method
        # corpus -> newest generation asked for, its number of shards, and of the plans asked lately one with most spaces
        self._recent: dict[str, tuple[int, int, Plan | None]] = {}
        self._hosts_awaited = False
        self._node = ray.get_runtime_context().get_node_id()
        self._near: SocketClient | None = None  # to the host of this node, once its address is known
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "RaySearcher":
        self._watch = asyncio.get_running_loop().create_task(self.controller.run())
        self._watch.add_done_callback(_say_why)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops watching. The hosts stay: other coordinators use them, and the next one finds them warm."""
        assert self._watch is not None
        self._watch.cancel()
        await asyncio.wait([self._watch])
        if self._near is not None:
            self._near.close()

    # --- asking ------------------------------------------------------------------------------------------------------------

    async def search(self, corpus: str, generation: int, n_shards: int, plan: Plan) -> list[Candidates]:
        self._remember(corpus, generation, n_shards, plan if plan.deeper is None else None)
        routes = self.routes(corpus, n_shards)
        self._refuse_if_full(routes, "search")
        requests = []
        for node, shards in routes.items():
            # Details at once spare a second journey. To this node's host that takes less than details of what is not shown.
            asked = replace(plan, n_details=0) if self._socket_to(node) else plan
            requests.append(self._search_host(node, HostRequest(corpus, generation, shards, asked)))
        return await asyncio.gather(*requests)

    async def _search_host(self, node: str, request: HostRequest) -> Candidates:
        try:
            return await self._ask(node, "search", request, request.plan.budget_s)
        except (RayTaskError, CallFailed) as error:  # before TimeoutError: Ray gives it the type of its cause as well
            state, reason = "failed", first_line(error.cause or error)
            logger.warning("node=%s corpus=%s event=search_failed reason=%s", node, request.corpus, reason)
        except TimeoutError:
            state, reason = "late", f"no answer within {request.plan.budget_s:.3g} s"
        except (HostAway, RayError) as error:
            state, reason = "missing", str(error) if isinstance(error, HostAway) else first_line(error)
        return unsearched(request.plan, request.shards, state, f"host {node[:12]}: {reason}" if node else reason)

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
        routes = self.routes(corpus, n_shards)
        owner = {shard: node for node, shards in routes.items() for shard in shards}
        wanted: dict[str, dict[bytes, tuple[tuple[int, int], ...]]] = {}
        for document, places in spans.items():
            wanted.setdefault(owner[shard_of(document, n_shards)], {})[document] = places
        self._refuse_if_full(wanted, "details")

        async def of_host(node: str, asked: dict[bytes, tuple[tuple[int, int], ...]]) -> dict[bytes, Detail]:
            request = DetailsRequest(corpus, generation, routes[node], asked, words, excerpt_size, where, tuple(queries))
            try:
                return await self._ask(node, "details", request, budget_s)
            except (RayError, CallFailed, TimeoutError, HostAway) as error:
                logger.warning("node=%s corpus=%s event=details_missing reason=%s", node, corpus, first_line(error))
                return {}

        found: dict[bytes, Detail] = {}
        for part in await asyncio.gather(*(of_host(node, asked) for node, asked in wanted.items())):
            found |= part
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
        membership = self.controller.membership
        shard = shard_of(document, n_shards)
        owner = next(node for node, shards in self.routes(corpus, n_shards).items() if shard in shards)
        # Any host can open any shard; the owner has it open.
        nodes = [n for n in sorted(membership.nodes, key=lambda n: (n != owner, n)) if membership.ready(n)]
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

    async def warm(self, corpus: str, generation: int, n_shards: int) -> Opened:
        self._remember(corpus, generation, n_shards)
        if not self._hosts_awaited:  # later on a host that is away must not delay a new generation
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.controller.all_ready(), self._settings.start_timeout_s)
            self._hosts_awaited = True
        ready = [(n, s) for n, s in self.routes(corpus, n_shards).items() if self.controller.membership.ready(n)]
        parts = await asyncio.gather(*(self._open(node, corpus, generation, shards) for node, shards in ready))
        docs = {number: n for part in parts for number, n in part.docs.items()}
        return Opened(docs, next((part.sample for part in parts if part.sample), ""))

    async def status(self) -> dict[str, Any]:
        membership = self.controller.membership
        return {
            "hosts": [
                {"node": node, "state": membership.state(node), "reason": membership.reason(node)}
                | {name: value for name, value in self.controller.status(node).items() if name != "socket"}
                for node in membership.nodes
            ]
        }

    # --- routing -----------------------------------------------------------------------------------------------------------

    def routes(self, corpus: str, n_shards: int) -> dict[str, tuple[int, ...]]:
        """Node -> shards, each shard once: on its first replica that is ready, else on its first. Node "": no host is up."""
        membership = self.controller.membership
        routes: dict[str, list[int]] = {}
        for shard, on in enumerate(_placement(corpus, n_shards, membership.serving, self._settings.replicas)):
            routes.setdefault(next((node for node in on if membership.ready(node)), on[0] if on else ""), []).append(shard)
        return {node: tuple(shards) for node, shards in sorted(routes.items())}

    def _refuse_if_full(self, nodes: Iterable[str], method: str) -> None:
        """One host's full queue refuses the query before the other hosts begin to work on it."""
        for node in nodes:
            if (batcher := self._batchers.get((node, method))) and batcher.full:
                raise batcher.overloaded()

    async def _ask(self, node: str, method: str, request: Any, budget_s: float) -> Any:
        if not self.controller.membership.ready(node):
            raise HostAway(self.controller.membership.reason(node) if node else "no host is up yet")
        try:
            return await self._batcher(node, method).ask(request, budget_s)
        except (RayTaskError, CallFailed):
            raise
        except TimeoutError:
            self.controller.report(QueryMissed(node))
            raise

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

    def _abandon(self, node: str, reason: str) -> None:
        for (name, _method), batcher in self._batchers.items():
            if name == node:
                batcher.abandon(HostAway(reason))
        if node not in self.controller.membership.nodes:
            self._batchers = {key: batcher for key, batcher in self._batchers.items() if key[0] != node}

    # --- warming -----------------------------------------------------------------------------------------------------------

    def _remember(self, corpus: str, generation: int, n_shards: int, plan: Plan | None = None) -> None:
        newest, _, tried = self._recent.get(corpus, (0, 0, None))
        if plan is None or (tried is not None and len(tried.queries) > len(plan.queries)):
            plan = tried
        if generation >= newest:
            self._recent[corpus] = generation, n_shards, plan

    async def _warm_host(self, node: str) -> None:
        """Opens on a new process its share of what queries asked for lately, and asks it one of them."""
        nodes = tuple(sorted({*self.controller.membership.serving, node}))
        for corpus, (generation, n_shards, plan) in list(self._recent.items()):
            placed = _placement(corpus, n_shards, nodes, self._settings.replicas)
            shards = tuple(shard for shard, on in enumerate(placed) if node in on)
            await self._open(node, corpus, generation, shards, plan and replace(plan, budget_s=TRIAL_S))

    async def _open(self, node: str, corpus: str, generation: int, shards: tuple[int, ...], plan: Plan | None = None) -> Opened:
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                return await self._call(node, "warm", corpus, generation, shards, plan)
        except (RayError, TimeoutError) as error:
            logger.warning("node=%s corpus=%s event=not_warmed reason=%s", node, corpus, first_line(error))
            return Opened()


def _say_why(watch: "asyncio.Task[None]") -> None:
    if not watch.cancelled() and (error := watch.exception()):
        logger.error("event=hosts_no_longer_watched", exc_info=error)


def _is_task_error(error: Exception) -> bool:
    return isinstance(error, (RayTaskError, CallFailed))


def _limit(request: Any, seconds: float) -> Any:
    """A search request with what is left of its time. Details have no budget of their own: they are one read per document."""
    return replace(request, plan=replace(request.plan, budget_s=seconds)) if isinstance(request, HostRequest) else request


@lru_cache(maxsize=256)
def _placement(corpus: str, n_shards: int, nodes: tuple[str, ...], replicas: int) -> tuple[tuple[str, ...], ...]:
    placed = place([f"{corpus}/{shard}" for shard in range(n_shards)], nodes, replicas)
    return tuple(placed.values())
