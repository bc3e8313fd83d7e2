"""The same interface without Ray: one host, in this process or beside it, its searches in threads."""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from cluster.batching import Overloaded, without_return
from cluster.host import DetailsRequest, DocumentText, Host, HostRequest, Opened, RowsRequest, unsearched
from cluster.host_process import HostGone, HostProcess
from cluster.protocol import EVERYWHERE, Spans
from shards.errors import StoreError
from shards.nlql.answers import RowAnswer, unlooked
from shards.nlql.plan import RowPlan
from shards.plan import Plan, Predicate, SpaceQuery
from shards.types import EXCERPT_BYTES, Candidates, Detail, LinesAround

Result = TypeVar("Result")

PATIENT_S = 1.0  # what has no deadline waits behind searches that have less time than this, and before those that have more


class LocalSearcher:
    """`Searcher` over one host. Where it is a process of its own (`cluster.host_process`), threads wait for it.

    threads: calls that run at once; more wait, and those go first whose time ends first. queue: how many may wait before callers are
    refused (429). Details have a thread of their own: a search that has found its hits must not wait, at its deadline, for others that
    have only begun.
    """

    def __init__(self, host: Host | HostProcess, threads: int = 2, queue: int = 256):
        self._host, self._threads, self._max_queue = host, threads, queue
        self._searches = _Threads(threads, "local")
        self._details = _Threads(1, "details")
        self._under_way = 0  # calls that run or wait for a thread
        self._keys = itertools.count(1)

    async def search(self, corpus: str, generation: int, n_shards: int, plan: Plan) -> list[Candidates]:
        shards, key = tuple(range(n_shards)), next(self._keys)

        def work(remaining_s: float) -> list[Candidates]:
            # Details at once would spare a journey where there is one; here they are only asked for what is shown.
            asked = replace(plan, budget_s=without_return(remaining_s), n_details=0)
            return self._host.search([HostRequest(corpus, generation, shards, asked, key)])

        try:
            return await self._run(work, plan.budget_s, self._searches, key)
        except TimeoutError:
            return [unsearched(plan, shards, "late", f"this process: no answer within {plan.budget_s:.3g} s")]
        except HostGone as error:
            return [unsearched(plan, shards, "missing", str(error))]

    async def rows(self, corpus: str, generation: int, n_shards: int, plan: RowPlan) -> list[RowAnswer]:
        shards, key = tuple(range(n_shards)), next(self._keys)

        def work(remaining_s: float) -> list[RowAnswer]:
            return self._host.rows([RowsRequest(corpus, generation, shards, replace(plan, budget_s=without_return(remaining_s)), key)])

        try:
            return await self._run(work, plan.budget_s, self._searches, key)
        except TimeoutError:
            reason = f"this process: no answer within {plan.budget_s:.3g} s"
            return [RowAnswer(status=unlooked(plan, shards, "late", reason))]
        except HostGone as error:
            return [RowAnswer(status=unlooked(plan, shards, "missing", str(error)))]

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
        shards = tuple(range(n_shards))

        def work(remaining_s: float) -> list[dict[bytes, Detail]]:
            asked = DetailsRequest(corpus, generation, shards, dict(spans), words, excerpt_size, where, tuple(queries), remaining_s)
            return self._host.details([asked])

        try:
            return (await self._run(work, budget_s, self._details))[0]
        except (TimeoutError, HostGone):
            return {}

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
        try:
            return await self._run(lambda _s: self._host.document(corpus, generation, document, start, end), budget_s, self._searches)
        except TimeoutError:
            raise StoreError(
                f"Document {document.hex()} of corpus {corpus!r} could not be read within {budget_s:.3g} s. Allow it more time."
            ) from None

    async def warm(
        self, corpus: str, generation: int, n_shards: int, replicas: int | None = None, size_bytes: Sequence[int] | None = None
    ) -> Opened:
        return await self._run(lambda _s: self._host.warm(corpus, generation, range(n_shards)), None, self._searches)

    async def status(self) -> dict[str, Any]:
        calls = {"queue": max(0, self._under_way - self._threads), "in_flight": min(self._under_way, self._threads)}
        return {"hosts": [{"node": "local", "state": "ready", "reason": "", **await asyncio.to_thread(self._host.status), **calls}]}

    def close(self) -> None:
        """Waits for the threads."""
        self._searches.pool.shutdown()
        self._details.pool.shutdown()

    async def _run(self, work: Callable[[float], Result], budget_s: float | None, threads: "_Threads", key: int = 0) -> Result:
        """Work in a thread, told how many seconds are left when it gets one. Raises TimeoutError, Overloaded, or what it raised.

        A caller who gives up leaves the thread running, so its place is free only when the work has ended; the host is told that nobody
        waits for it. key: what it knows the work by, 0: it cannot be told.
        """
        if self._under_way >= self._threads + self._max_queue:
            raise Overloaded(f"{self._max_queue} calls are waiting for this process, the limit. Try again in a moment.")
        loop = asyncio.get_running_loop()
        self._under_way += 1
        begun, future = loop.time(), None
        try:
            async with asyncio.timeout(budget_s):
                await threads.take(begun + (PATIENT_S if budget_s is None else budget_s))
                remaining_s = math.inf if budget_s is None else budget_s - (loop.time() - begun)
                future = loop.run_in_executor(threads.pool, work, remaining_s)
                future.add_done_callback(threads.done)
                return await asyncio.shield(future)
        finally:
            self._under_way -= 1
            if key and future is not None and not future.done():
                self._host.cancel([key])


class _Threads:
    """So many threads of one name, for those first whose time ends first. For one event loop."""

    def __init__(self, n: int, name: str):
        self.pool = ThreadPoolExecutor(n, thread_name_prefix=name)
        self._free = n
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap: deadline, in which order they came
        self._came = itertools.count()

    async def take(self, deadline: float) -> None:
        """Wait for one."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (deadline, next(self._came), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given at the same moment
                self._give()
            raise

    def done(self, future: "asyncio.Future[Any]") -> None:
        """What was begun in one has ended."""
        self._give()
        if not future.cancelled():
            future.exception()  # looked at, in case nobody waits any more

    def _give(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
