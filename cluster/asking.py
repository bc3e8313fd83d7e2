"""One piece of work asked of replicas: of another where the first fails or takes long, and the first answer counts.

Between deciding (`cluster.routing`) and calling (`cluster.searcher`): asyncio and nothing else, so that its races are tested on a
clock that jumps.
"""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.batching import Overloaded, TryAgain
from cluster.routing import Outcome, Placed, Routing
from shards.errors import SondageError

GIVEN_UP: Outcome = "given up"
MIN_LEFT_S = 0.002  # with less time left another replica could not answer either


class HostAway(SondageError):
    """A host's process is gone; it is being started again."""


class HostFailed(SondageError):
    """A host is well, and its code raised."""


class Unavailable(TryAgain):
    """No host is up at all."""

    retry_after_s = 2.0  # a host's process takes 1 to 2 s to start


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked of each shard. placed: by shard, its nodes. request(node, shards, key): what is sent to one host for these
    shards; key names it, to be cancelled by. failed(answer): the shards that an answer says could not be opened there.
    without(answer, shards): the answer without a word about these, which it has nothing of.
    """

    corpus: str
    generation: int
    placed: Placed
    method: str
    request: Callable[[str, tuple[int, ...], int], Any]
    failed: Callable[[Any], Collection[int]] = lambda _answer: ()
    without: Callable[[Any, Collection[int]], Any] = lambda answer, _shards: answer


@dataclass(frozen=True, slots=True)
class Part:
    """What became of some shards: a host's answer, or why there is none. node: "" where nobody could be asked."""

    node: str
    shards: tuple[int, ...]
    answer: Any = None
    error: Exception | None = None


@dataclass(slots=True)
class Counts:
    """Since the coordinator began. hedges_denied: calls that were late, but too many were."""

    calls: int = 0
    hedges: int = 0
    hedges_won: int = 0
    hedges_denied: int = 0
    retries: int = 0
    refused: int = 0


@dataclass(slots=True)
class Asking:
    """Asks hosts. Belongs to one event loop, whose clock is the one that `routing` is given.

    ask(node, method, request, budget_s): one call; raises TimeoutError, HostAway, HostFailed, Overloaded. up: nodes that may be asked,
    with the incarnation of their host; doubted: likewise those that have missed a ping. full(method): those that take no more.
    cancel(node, method, key): nobody waits for this any more.
    """

    routing: Routing
    ask: Callable[[str, str, Any, float], Awaitable[Any]]
    up: Callable[[], Mapping[str, str]]
    full: Callable[[str], Collection[str]]
    cancel: Callable[[str, str, int], None]
    doubted: Callable[[], Mapping[str, str]] = dict
    counts: Counts = field(default_factory=Counts)
    # By node, of calls that would go elsewhere, in the order in which they were made (a set's order is another in each process).
    _alarms: dict[str, dict["asyncio.Future[None]", None]] = field(default_factory=dict)
    # Keys of several coordinators must differ, as their calls meet on a host.
    _keys: "itertools.count[int]" = field(default_factory=lambda: itertools.count(secrets.randbits(40) << 20))

    async def parts(self, work: Work, shards: Collection[int], budget_s: float) -> list[Part]:
        """What became of each of these shards, within the time. Raises, before any work is done, Overloaded where all replicas of a
        shard are full, and Unavailable where no host is up.
        """
        if not self.up() and not self.doubted():
            raise Unavailable("No host is up. They start by themselves; try again in a few seconds, or see `sondage status`.")
        full = self.full(work.method)
        routes = self._choose(work, shards, full=full)
        if busy := [node for node in routes if node in full]:
            self.counts.refused += 1
            raise Overloaded(
                f"All replicas of {sum(len(routes[node]) for node in busy)} shards have as many queries waiting as they take. Try again "
                "in a moment; add replicas (`sondage scale`) or nodes where this lasts."
            )
        return await self._spread(work, routes, _now() + budget_s)

    async def until_doubt(self, call: "asyncio.Task[Any]", node: str) -> None:
        """Until it is done, or its host goes away; it goes on then."""
        await self._until_late(call, node, None)

    def doubt(self, node: str) -> None:
        """A host does not answer as it should: what it was asked is asked of others as well."""
        for alarm in self._alarms.pop(node, ()):
            _ring(alarm)

    def _choose(self, work: Work, shards: Collection[int], **limits: Collection[str]) -> dict[str, tuple[int, ...]]:
        doubted = self.doubted()
        up = {**doubted, **self.up()}
        return self.routing.choose(work.corpus, work.generation, work.placed, up, _now(), shards, doubted=doubted, **limits)

    async def _spread(
        self, work: Work, routes: Mapping[str, tuple[int, ...]], deadline: float, tried: frozenset[str] = frozenset(), hedge: bool = False
    ) -> list[Part]:
        """Several hosts at once, each for its shards."""
        lost = [Part("", routes[""], error=HostAway("nobody else has a place for it"))] if "" in routes else []
        asked = [self._of(work, node, given, deadline, tried | {node}, hedge) for node, given in routes.items() if node]
        if len(asked) == 1:
            return await asked[0] + lost
        return [part for parts in await asyncio.gather(*asked) for part in parts] + lost

    async def _of(
        self, work: Work, node: str, shards: tuple[int, ...], deadline: float, tried: frozenset[str], hedge: bool
    ) -> list[Part]:
        """What became of shards that one host is asked for, and then others. tried: hosts that are asked for them, this one too."""
        if hedge or all(len(work.placed[shard]) < 2 for shard in shards):
            part = await self._call(work, node, shards, deadline, hedge)
            return await self._whole(work, part, deadline, tried, hedge)
        loop = asyncio.get_running_loop()
        first = loop.create_task(self._call(work, node, shards, deadline, hedge=False))
        second: asyncio.Task[list[Part]] | None = None
        try:
            await self._until_late(first, node, self.routing.hedge_after_s(work.corpus, work.method, node))
            if not first.done() and (others := self._others(work, node, shards, tried)):
                second = loop.create_task(self._spread(work, others, deadline, tried, hedge=True))
                await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
                if not first.done() and all(part.error is None for part in second.result()):
                    self.counts.hedges_won += 1
                    return second.result()
            part = await first
            return await second if part.error is not None and second is not None else await self._whole(work, part, deadline, tried, hedge)
        finally:
            for task in (first, second):
                if task is not None and not task.done():
                    task.cancel()

    def _others(self, work: Work, node: str, shards: tuple[int, ...], tried: frozenset[str]) -> dict[str, tuple[int, ...]]:
        """Whom to ask beside a host that is late, if anybody: all of its shards must be had elsewhere, and hedges be few, unless the
        host is known to be in trouble.
        """
        full = self.full(work.method)
        others = self._choose(work, shards, avoid=tried, full=full)
        if "" in others or any(other in full for other in others):
            return {}
        if node in self.up() and not self.routing.may_hedge():
            self.counts.hedges_denied += 1
            return {}
        self.counts.hedges += 1
        return others

    async def _whole(self, work: Work, part: Part, deadline: float, tried: frozenset[str], hedge: bool) -> list[Part]:
        """A call's outcome, with what it lacks from hosts that were not tried, as far as they have it."""
        if part.error is not None:
            return await self._elsewhere(work, part, deadline, tried, hedge)
        if not (failed := tuple(sorted(work.failed(part.answer)))):
            return [part]
        others = await self._elsewhere(work, Part(part.node, failed, error=HostAway("not opened")), deadline, tried, hedge)
        others = [other for other in others if other.error is None]
        if others and not any(work.failed(other.answer) for other in others):
            self.routing.blame(part.node, _now())
        had = {shard for other in others for shard in other.shards}
        left = tuple(shard for shard in part.shards if shard not in had)
        return [Part(part.node, left, work.without(part.answer, had)), *others]

    async def _elsewhere(self, work: Work, failed: Part, deadline: float, tried: frozenset[str], hedge: bool) -> list[Part]:
        """The shards of a failed call, asked of hosts that were not tried; those that none of them can have stay failed."""
        assert failed.error is not None
        if isinstance(failed.error, TimeoutError) or deadline - _now() < MIN_LEFT_S:
            return [failed]
        others = self._choose(work, failed.shards, avoid=tried, full=self.full(work.method))
        lost = others.pop("", ())
        parts = [Part(failed.node, lost, error=failed.error)] if lost else []
        if others:
            self.counts.retries += 1
            found = await self._spread(work, others, deadline, tried, hedge)
            if isinstance(failed.error, HostFailed) and all(part.error is None for part in found):
                self.routing.blame(failed.node, _now())  # another could
            # Of two reasons the first tells more: what came after is a consequence.
            parts += [part if part.error is None or part.node else Part(failed.node, part.shards, error=failed.error) for part in found]
        return parts

    async def _call(self, work: Work, node: str, shards: tuple[int, ...], deadline: float, hedge: bool) -> Part:
        """One call to one host. Raises nothing but CancelledError."""
        key, outcome = next(self._keys), GIVEN_UP
        call = self.routing.began(node, work.corpus, work.method, len(shards), _now(), hedge)
        self.counts.calls += 1
        try:
            answer = await self.ask(node, work.method, work.request(node, shards, key), deadline - _now())
            outcome = "answered"
            return Part(node, shards, answer)
        except TimeoutError as error:
            outcome = "late"
            self.cancel(node, work.method, key)
            return Part(node, shards, error=error)
        except HostAway as error:
            outcome = "failed"
            return Part(node, shards, error=error)
        except (HostFailed, Overloaded) as error:  # perhaps the query's fault, and none of the host's
            return Part(node, shards, error=error)
        except asyncio.CancelledError:
            self.cancel(node, work.method, key)
            raise
        finally:
            self.routing.ended(call, outcome, _now())

    async def _until_late(self, call: "asyncio.Task[Any]", node: str, after_s: float | None) -> None:
        """Until it is done, or late, or its host is in doubt. after_s: None where nobody knows what late is."""
        loop = asyncio.get_running_loop()
        alarm: asyncio.Future[None] = loop.create_future()
        timer = None if after_s is None else loop.call_later(after_s, _ring, alarm)
        self._alarms.setdefault(node, {})[alarm] = None
        try:
            await asyncio.wait({call, alarm}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._alarms.get(node, {}).pop(alarm, None)
            if timer is not None:
                timer.cancel()


def _ring(alarm: "asyncio.Future[None]") -> None:
    if not alarm.done():
        alarm.set_result(None)


def _now() -> float:
    return asyncio.get_running_loop().time()
