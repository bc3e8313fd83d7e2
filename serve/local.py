"""A coordinator with its one host in the same process, or in one beside it: what a laptop needs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cluster.applying import Appliers, InThreads
from cluster.host import Host
from cluster.host_process import HostProcess
from cluster.local import LocalSearcher
from cluster.settings import HostSettings
from cluster.sockets import AVAILABLE
from serve.coordinator import Coordinator
from serve.pushing import Pushes
from serve.schema import Rerank
from serve.translation_schema import Translate
from shards.plugins import PROCESS, Plugins

# Searches at once for each thread of a host that is a process of its own: one with little time has a share of a core beside those that have
# much, instead of waiting until they end. Within this process they would take the interpreter's lock from its event loop.
AT_ONCE = 2


@asynccontextmanager
async def local_coordinator(
    settings: HostSettings,
    poll_s: float = 0.5,
    rerank: Rerank | None = None,
    plugins: Plugins = PROCESS,
    translate: Translate | None = None,
    apart: bool = False,
) -> AsyncIterator[Coordinator]:
    """A running coordinator over the store of `settings`, without Ray. rerank, translate: as `Coordinator`. plugins: its own registries.
    apart: the host is a process of its own, where the system has such sockets, so that no search keeps the event loop waiting.

    Raises BadSpec for a URL that names no store.
    """
    here = Host(
        settings.store_url,
        settings.store_options,
        str(settings.cache_dir),
        settings.cache_bytes,
        settings.threads,
        str(settings.models_dir) if settings.models_dir else None,
        settings.endpoints,
        plugins=plugins,
        modules=settings.plugins,
    )
    beside = await asyncio.to_thread(HostProcess, settings) if apart and AVAILABLE else None
    searcher = LocalSearcher(beside or here, settings.threads * (AT_ONCE if beside is not None else 1))
    coordinator = Coordinator(here.store, searcher, here.resources, here.cache, poll_s, rerank, translate=translate)
    try:
        await coordinator.start()
        yield coordinator
    finally:
        await coordinator.close()
        if beside is not None:
            await asyncio.to_thread(beside.close)
        await asyncio.to_thread(searcher.close)


@asynccontextmanager
async def local_pushes(coordinator: Coordinator) -> AsyncIterator[Pushes]:
    """Who takes documents for a coordinator's corpora, and applies them in threads of this process."""
    from serve.calibrate import Calibrator  # who only asks does not fit null models

    generations = coordinator.generations
    applying = InThreads(Appliers(coordinator.store, generations.cache, generations.resources, Calibrator(threads=1)))
    try:
        async with Pushes(coordinator.store, generations.resources, generations, applying) as pushes:
            yield pushes
    finally:
        await asyncio.to_thread(applying.close)
