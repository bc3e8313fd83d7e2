"""Search in this process, without any server."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from cluster.settings import HostSettings
from serve.local import local_coordinator
from serve.schema import DocumentAnswer, SearchAnswer, SearchRequest

from . import as_request

T = TypeVar("T")


class Engine:
    """Searches the corpora of one store; the calls of `Client`. Safe for several threads. Close it, or use `with`.

    store: a folder, s3://bucket/prefix or memory://name, as `sondage index --store` wrote it. options: for S3, see
    `shards.store_s3.S3Options`. cache: folder for downloaded files and models. threads: searches at once.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        options: dict[str, Any] | None = None,
        cache: str | os.PathLike[str] = "~/.cache/sondage",
        cache_bytes: int = 20 * 2**30,
        threads: int = 2,
    ):
        """Raises BadSpec for a URL that names no store."""
        folder = Path(cache).expanduser()
        self._settings = HostSettings(
            store_url=os.fspath(store),
            store_options=options or {},
            cache_dir=folder / "files",
            cache_bytes=cache_bytes,
            models_dir=folder / "models",
            threads=threads,
        )
        self._stack = AsyncExitStack()
        # The coordinator is asyncio throughout; callers are not, so it lives in a loop of its own.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sondage-engine", daemon=True)
        self._thread.start()
        try:
            self._coordinator = self._wait(self._stack.enter_async_context(local_coordinator(self._settings)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stops the threads; searches under way end first."""
        if self._loop.is_closed():
            return
        self._wait(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def search(self, query: str | SearchRequest = "", corpus: str = "", **fields: Any) -> SearchAnswer:
        """As `Client.search`."""
        return self._wait(self._coordinator.search(as_request(query, corpus, fields)))

    def status(self) -> dict[str, Any]:
        """As `Client.status`; waits until the corpora there are have been opened."""
        return self._wait(self._opened_status())

    def document(self, hash: str, corpus: str, start: int | None = None, end: int | None = None) -> DocumentAnswer:
        """As `Client.document`."""
        return DocumentAnswer.model_validate(self._wait(self._coordinator.document(corpus, hash, start, end)))

    async def _opened_status(self) -> dict[str, Any]:
        while True:
            state = await self._coordinator.status()
            if (await self._coordinator.ready())[0] or state["problems"]:
                return state
            await asyncio.sleep(0.01)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # also Ctrl-C: nobody wants the answer any more
            future.cancel()
            raise
