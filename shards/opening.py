"""Opening a source of any kind, and reading its files, one or many."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from shards import archives, git_tree
from shards.archives import Archive
from shards.errors import NotFound, SourceError
from shards.git_tree import GitTree
from shards.listing import Files
from shards.local_folder import LocalFolder
from shards.retries import GIVE_UP, Retry, is_transient
from shards.roots import Source, named, unreadable

MAX_FILE_BYTES = 64 << 20  # callers skip and count larger files: they are dumps and archives, and one must fit in memory
_AHEAD_BYTES = 128 << 20  # fetched but not yet taken, of one caller; one file may be larger


def open_files(source: Source, retry: Retry | None = None) -> Files:
    """The source, opened as the kind that its URL names. Raises SourceError where the URL is wrong (unknown protocol, no such archive)."""
    retry = retry or Retry()
    scheme = source.scheme
    if scheme in ("file", "local") and "::" not in source.url:
        return LocalFolder(source)
    if scheme in archives.SCHEMES:
        return Archive(source, retry)
    if scheme == git_tree.SCHEME:
        return GitTree(source)
    if scheme == "git" or scheme.startswith("git+"):
        raise SourceError(
            f"Source {source.url!r}: of git, repositories on this machine are read. Clone it (`git clone --bare` will do), then write "
            "git+file:///path/to/repository@revision."
        )
    from shards.remote import Bucket, RemoteFiles
    from shards.web_folder import WebFolder

    if scheme in ("http", "https"):
        return WebFolder(source, retry)
    return Bucket(source, retry) if scheme in ("s3", "s3a") else RemoteFiles(source, retry)


class Opener:
    """Reads the files of one source. Used by any number of threads; close it, or use `with`.

    retry: how often transient failures are tried again. When 8 files in a row could not be read in spite of it, the source counts as
    down, and each further file fails at its first attempt, until one succeeds.
    """

    def __init__(self, source: Source, max_bytes: int = MAX_FILE_BYTES, retry: Retry | None = None):
        """Raises SourceError where the URL itself is wrong (unknown protocol, missing archive)."""
        self.source = source
        self.retry = retry or Retry()
        self.files = open_files(source, self.retry)
        self._max_bytes = max_bytes
        self._one_at_a_time = threading.Lock() if self.files.parallel == 1 and not isinstance(self.files, LocalFolder) else None
        self._n_unreachable = 0

    def __enter__(self) -> "Opener":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.files.close()

    def read(self, path: str) -> bytes:
        """The content of one file, by its path in the listing.

        Raises NotFound where it has vanished since, SourceError (with its `reason`) where it cannot be read or is larger than
        `max_bytes`.
        """
        try:
            data = self._read(path)
        except Exception as error:  # backends raise what they like (botocore, aiohttp, zipfile); the caller gets two kinds
            if is_transient(error):
                self._n_unreachable += 1
            raise unreadable(self.source, path, error) from error
        self._n_unreachable = 0
        if len(data) > self._max_bytes:
            raise SourceError(
                f"{named(self.source, path)} is larger than {self._max_bytes:,} bytes. Exclude it, or split it.", reason="too large"
            )
        return data

    def _read(self, path: str) -> bytes:
        with self._one_at_a_time or nullcontext():
            if self._n_unreachable >= GIVE_UP:
                return self.files.read(path, self._max_bytes)
            return self.retry(lambda: self.files.read(path, self._max_bytes))

    def read_many(
        self, paths: Iterable[str], sizes: Mapping[str, int] | None = None
    ) -> Iterator[tuple[str, bytes | SourceError | NotFound]]:
        """Each path with its content or the error that `read` would raise, in the given order.

        Remote files are fetched ahead, a few at a time and, by their listed sizes (bytes), at most 128 MiB or one file; local ones one
        by one (the page cache is faster than threads).
        """
        if self.files.parallel == 1:
            for path in paths:
                yield path, self._attempt(path)
            return
        waiting: deque[tuple[str, int, Any]] = deque()
        ahead = 0
        with ThreadPoolExecutor(self.files.parallel, "sondage-read") as pool:
            try:
                for path in paths:
                    size = max(0, sizes.get(path, 0)) if sizes else 0
                    while waiting and (len(waiting) >= self.files.parallel or ahead + size > _AHEAD_BYTES):
                        first, its_size, future = waiting.popleft()
                        yield first, future.result()
                        ahead -= its_size
                    waiting.append((path, size, pool.submit(self._attempt, path)))
                    ahead += size
                while waiting:
                    first, _, future = waiting.popleft()
                    yield first, future.result()
            finally:
                for _, _, future in waiting:
                    future.cancel()

    def _attempt(self, path: str) -> bytes | SourceError | NotFound:
        try:
            return self.read(path)
        except (SourceError, NotFound) as error:
            return error


def reason_of(error: SourceError | NotFound) -> str:
    """Why a file could not be read, in one word."""
    return error.reason if isinstance(error, SourceError) else "vanished"
