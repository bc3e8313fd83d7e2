"""Reading the files of a source, one or many."""

import errno
import os
import stat
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from shards.errors import NotFound, SourceError
from shards.roots import Root, Source, encode_path

MAX_FILE_BYTES = 64 << 20  # callers skip and count larger files: they are dumps and archives, and one must fit in memory
_CONCURRENT_READS = 32  # object stores answer one request in tens of milliseconds; bounded, because each holds a file


class Opener:
    """Reads the files of one source. One filesystem object, used by any number of threads; close it, or use `with`."""

    def __init__(self, source: Source, max_bytes: int = MAX_FILE_BYTES):
        """Raises SourceError where the URL itself is wrong (unknown protocol, missing archive)."""
        self.root = Root(source)
        self._max_bytes = max_bytes
        # Archives share one file position; asynchronous filesystems (s3, http, gcs, abfs) run their own event loop.
        self._lock = None if self.root.fs is None or self.root.fs.async_impl else threading.Lock()

    def __enter__(self) -> "Opener":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.root.close()

    def read(self, path: str) -> bytes:
        """The content of one file, by its path in the listing.

        Raises NotFound where it has vanished since, SourceError where it cannot be read or is larger than `max_bytes`.
        """
        try:
            data = self._read_local(path) if self.root.fs is None else self._read_remote(path)
        except Exception as error:  # backends raise what they like (botocore, aiohttp, zipfile); the caller gets two kinds
            raise self.root.unreadable(path, error) from error
        if len(data) > self._max_bytes:
            raise SourceError(f"{self.root.name(path)} is larger than {self._max_bytes:,} bytes. Exclude it, or split it.")
        return data

    def read_many(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes | SourceError | NotFound]]:
        """Each path with its content or the error that `read` would raise, in the given order.

        Remote files are fetched ahead, a few at a time; local ones one by one (the page cache is faster than threads).
        """
        if self.root.fs is None or self._lock is not None:
            for path in paths:
                yield path, self._attempt(path)
            return
        waiting: deque[tuple[str, Any]] = deque()
        with ThreadPoolExecutor(_CONCURRENT_READS, "sondage-read") as pool:
            try:
                for path in paths:
                    waiting.append((path, pool.submit(self._attempt, path)))
                    if len(waiting) >= _CONCURRENT_READS:
                        first, future = waiting.popleft()
                        yield first, future.result()
                while waiting:
                    first, future = waiting.popleft()
                    yield first, future.result()
            finally:
                for _, future in waiting:
                    future.cancel()

    def _attempt(self, path: str) -> bytes | SourceError | NotFound:
        try:
            return self.read(path)
        except (SourceError, NotFound) as error:
            return error

    def _read_local(self, path: str) -> bytes:
        if ".." in path.split("/"):
            raise PermissionError(errno.EACCES, "the path leaves the source's root")
        # Non-blocking, because a fifo may have taken the file's place; reading one would wait for ever.
        handle = os.open(self.root.folder + encode_path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise FileNotFoundError(errno.ENOENT, "it is no regular file any more")
            size = os.fstat(handle).st_size
            return file.readall() if size <= self._max_bytes else file.read(self._max_bytes + 1)

    def _read_remote(self, path: str) -> bytes:
        with self._lock or nullcontext():
            return self.root.fs.cat_file(self.root.prefix + path)
