"""Applying the logs of pushed documents of a whole store: what stands between one corpus's applier and whoever asks for it.

`Appliers` is a plain class that works where it is called; `InThreads` calls it in threads of the coordinator's process, on Ray too,
where searches notice (ARCHITECTURE.md, "Measured"). Nobody needs to be elected: the log is the truth, and of two that apply the
same entries one publishes while the other finds that it is done.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from shards.cache import FileCache
from shards.errors import AlreadyExists
from shards.layers.contract import Resources
from shards.push import Applied, Applier
from shards.pushlog import corpora_behind
from shards.store import Store
from shards.writing import Calibrate

logger = logging.getLogger(__name__)
T = TypeVar("T")

SMALL_BYTES = 1 << 20  # of text, to be merged between pushes: some 30 ms; larger merges are done beside them


class Applying(Protocol):
    """Whoever brings corpora up to date with their logs."""

    async def apply(self, corpus: str) -> Applied | None:
        """As `Applier.apply`."""

    async def merge(self, corpus: str) -> int | None:
        """As `Applier.merge`, of `SMALL_BYTES`."""

    async def settle(self, corpus: str) -> int | None:
        """As `Applier.settle`; it may take minutes, in which `apply` goes on."""

    async def behind(self) -> list[str]:
        """The corpora whose log has entries that no generation holds."""


class Appliers:
    """An applier for each corpus, made when it is asked for. Safe for several threads."""

    def __init__(self, store: Store, cache: FileCache, resources: Resources, calibrate: Calibrate | None = None):
        self.store, self.cache, self.resources, self.calibrate = store, cache, resources, calibrate
        self._lock = threading.Lock()
        self._fast: dict[str, tuple[Applier, threading.Lock]] = {}
        self._slow: dict[str, tuple[Applier, threading.Lock]] = {}

    def apply(self, corpus: str) -> Applied | None:
        """As `Applier.apply`."""
        applier, lock = self._of(corpus, self._fast)
        with lock:
            return applier.apply()

    def merge(self, corpus: str) -> int | None:
        """As `Applier.merge`, of `SMALL_BYTES`."""
        applier, lock = self._of(corpus, self._fast)
        with lock:
            return applier.merge(SMALL_BYTES)

    def settle(self, corpus: str) -> int | None:
        """As `Applier.settle`, while others apply: where they keep publishing first, they wait for one round, which finds all encoded."""
        applier, lock = self._of(corpus, self._slow)
        with lock:
            try:
                return applier.settle()
            except AlreadyExists:
                logger.debug("corpus=%s event=settling_alone", corpus)
            with self._of(corpus, self._fast)[1]:
                return applier.settle()

    def behind(self) -> list[str]:
        """The corpora whose log has entries that no generation holds."""
        return corpora_behind(self.store)

    def stop(self) -> None:
        """Have what is under way end soon, for good: of what is dear, after the portion that is being encoded."""
        with self._lock:
            for applier, _ in (*self._fast.values(), *self._slow.values()):
                applier.stop()

    def _of(self, corpus: str, kept: dict[str, tuple[Applier, threading.Lock]]) -> tuple[Applier, threading.Lock]:
        with self._lock:
            if corpus not in kept:
                applier = Applier(self.store, corpus, self.cache, self.resources, self.calibrate)
                kept[corpus] = applier, threading.Lock()
            return kept[corpus]


class InThreads:
    """`Applying` in this process. Two threads: what is cheap never waits for what is dear. Close it."""

    def __init__(self, appliers: Appliers):
        self._appliers = appliers
        self._fast = ThreadPoolExecutor(1, thread_name_prefix="apply")
        self._slow = ThreadPoolExecutor(1, thread_name_prefix="settle")

    async def apply(self, corpus: str) -> Applied | None:
        return await self._run(self._fast, self._appliers.apply, corpus)

    async def merge(self, corpus: str) -> int | None:
        return await self._run(self._fast, self._appliers.merge, corpus)

    async def settle(self, corpus: str) -> int | None:
        return await self._run(self._slow, self._appliers.settle, corpus)

    async def behind(self) -> list[str]:
        return await self._run(self._fast, self._appliers.behind)

    def close(self) -> None:
        """Waits until what is under way has ended; the rest stays in the log."""
        self._appliers.stop()
        for pool in (self._fast, self._slow):
            pool.shutdown(cancel_futures=True)

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
