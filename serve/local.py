"""A coordinator with its one host in the same process: what a laptop needs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cluster.host import Host
from cluster.local import LocalSearcher
from cluster.settings import HostSettings
from serve.coordinator import Coordinator


@asynccontextmanager
async def local_coordinator(settings: HostSettings, poll_s: float = 0.5) -> AsyncIterator[Coordinator]:
    """A running coordinator over the store of `settings`, without Ray. Raises BadSpec for a URL that names no store."""
    host = Host(
        settings.store_url,
        settings.store_options,
        str(settings.cache_dir),
        settings.cache_bytes,
        settings.threads,
        str(settings.models_dir) if settings.models_dir else None,
    )
    searcher = LocalSearcher(host, settings.threads)
    coordinator = Coordinator(host.store, searcher, host.resources, host.cache, poll_s)
    try:
        await coordinator.start()
        yield coordinator
    finally:
        await coordinator.close()
        await asyncio.to_thread(searcher.close)
