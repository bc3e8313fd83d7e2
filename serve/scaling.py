"""Load changes how many hosts serve a corpus, where its serving record gives bounds for that.

`cluster/scaling.py` decides, from what hosts say of themselves; here the looks are taken and the next record is written. Every
coordinator does both: records are made with exclusive create, so one of those who decide at once is first, and the others find that
the number is no longer what they decided by.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from cluster.scaling import Bounds, Look, Scaling
from shards.errors import AlreadyExists, SondageError
from shards.manifest import corpus_store
from shards.serving_record import ServingRecord, newest, succeed

if TYPE_CHECKING:
    from shards.store import Store

logger = logging.getLogger(__name__)

LOOK_S = 5.0  # between two looks: hosts say once a second what they do, and a decision takes several looks


class ReplicaScaling:
    """Watches the load of one coordinator's hosts. Belongs to one event loop.

    records: by corpus, the record that holds, as `Generations.serving`. status: of the searcher. by: who this is, for people. clock:
    seconds that only go forward.
    """

    def __init__(
        self,
        store: "Store",
        records: Mapping[str, ServingRecord],
        status: Callable[[], Awaitable[dict[str, Any]]],
        by: str,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._store, self._records, self._status, self._by, self._clock = store, records, status, by, clock
        self._scalings: dict[str, Scaling] = {}
        self._busy: dict[tuple[str, int], tuple[float, float]] = {}  # by node and process: when, seconds of search by then
        self._refused = 0

    async def run(self) -> None:
        """Look, decide and write, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except (SondageError, OSError) as error:
                logger.warning("event=not_scaled reason=%s", error)

    async def look(self) -> None:
        """One look at all corpora. Raises StoreError."""
        state = await self._status()
        busy, refused = self._utilisations(state), state["routing"]["refused"] - self._refused
        self._refused = state["routing"]["refused"]
        for corpus, record in list(self._records.items()):
            placed = state["placement"].get(corpus)
            if not record.automatic or placed is None:
                self._scalings.pop(corpus, None)
                continue
            bounds = Bounds(*record.bounds)
            scaling = self._scalings.setdefault(corpus, Scaling(bounds))
            scaling.bounds = bounds
            serving = {node for nodes in placed["shards"] for node in nodes} & busy.keys()
            if not serving:
                continue
            utilisation = sum(busy[node] for node in serving) / len(serving)
            waiting = sum(_waiting(host) for host in state["hosts"] if host["node"] in serving) / len(serving)
            wish = scaling.look(Look(utilisation, waiting, refused, record.replicas, len(state["hosts"])))
            if wish is not None and wish != record.replicas:
                reason = f"hosts search {utilisation:.0%} of the time, {waiting:.1f} queries wait for each, {refused} were refused"
                await asyncio.to_thread(self._write, corpus, record, wish, reason)

    def _write(self, corpus: str, record: ServingRecord, replicas: int, reason: str) -> None:
        store = corpus_store(self._store, corpus)
        known = newest(store)
        if known is None or known.number != record.number:  # decided by what holds no longer
            return
        try:
            written = succeed(store, record.number, replicas, record.bounds, self._by, reason)
        except AlreadyExists:
            return
        logger.info("corpus=%s event=scaled record=%d replicas=%d reason=%s", corpus, written.number, replicas, reason)

    def _utilisations(self, state: Mapping[str, Any]) -> dict[str, float]:
        """By node, the share of its threads' time since the last look in which it searched; not of a process that is new."""
        now, found, seen = self._clock(), {}, {}
        for host in state["hosts"]:
            if (load := host.get("load")) is None:
                continue
            process = host["node"], host["pid"]
            seen[process] = now, load["busy_s"]
            at, busy_s = self._busy.get(process, (now, 0.0))
            if now > at:
                found[host["node"]] = min((load["busy_s"] - busy_s) / ((now - at) * load["threads"]), 1.0)
        self._busy = seen
        return found


def _waiting(host: Mapping[str, Any]) -> float:
    """Queries for a host that are not being done: in this coordinator's queue, and in hand."""
    return host.get("queue", 0) + host.get("load", {}).get("waiting", 0)
