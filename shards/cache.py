"""A store's files as local files that can be memory-mapped: a folder on this machine's disk, kept below a limit."""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import threading
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shards.errors import StoreError
from shards.store import Store

logger = logging.getLogger(__name__)

_PART_BYTES = 16 * 2**20  # per request: large enough that 30 ms of latency do not show
_N_PARTS = 4  # in flight, hence at most 64 MiB in memory


class FileCache:
    """Downloads by content: `folder/ab/abcd…`, named by SHA-256, shared by any number of processes.

    The least recently used files make room (modification time is time of last use), except those pinned by this process.
    Another process may lose a file that it has mapped: on Linux its mapping stays good. A path that is neither pinned nor open
    can vanish at any time. The limit yields where pinned files alone exceed it, with a warning.
    """

    def __init__(self, folder: Path, limit_bytes: int):
        self.folder = Path(folder)
        self.limit_bytes = limit_bytes
        self._pins: Counter[Path] = Counter()
        self._verified: dict[Path, str] = {}  # checksums that this process has compared
        self._known_bytes: int | None = None  # in the folder, as of the last look plus our own downloads since
        self._fresh_bytes = 0  # our own downloads since the last look
        self._lock = threading.Lock()
        self._counts = Counter(hits=0, misses=0, fetched_bytes=0, evicted=0)

    def told(self) -> dict[str, int]:
        """Files asked for since this process began, that were here and that were not; bytes fetched; files that made room. Files of local
        stores, which lie where they are, do not count.
        """
        with self._lock:
            return dict(self._counts)

    def path(self, store: Store, name: str, size: int, sha256: str, *, verify: bool = False, pin: bool = False) -> Path:
        """A local file with the content of `name`; of a local store its own file, else a copy, downloaded if need be.

        size (bytes) is always checked, the checksum after a download and, with `verify`, once per process otherwise.
        pin: as `pin(path)`, without a moment in between. Raises NotFound, Corrupt, and StoreError (for a full disk, for one).
        """
        own = store.local_path(name)
        if own is not None:  # pinned or not, it is never evicted
            n_bytes = store.size(name)
            if n_bytes != size:
                raise store.corrupt(name, f"has {n_bytes} bytes, the manifest says {size}")
            with self._errors(store, name):
                if verify and not self._is_verified(own, sha256):
                    raise store.corrupt(name, f"does not have the checksum {sha256} that the manifest states")
            return own
        path = self.folder / sha256[:2] / sha256
        self.pin(path)  # at least until it is in place
        try:
            with self._errors(store, name):
                here = self._is_here(path, size, sha256, verify)
                if not here:
                    with _locked(path.parent):
                        if not self._is_here(path, size, sha256, verify):  # nobody else fetched it while we waited
                            self._make_room(size)
                            self._download(store, name, size, sha256, path)
                with self._lock:
                    self._counts["hits" if here else "misses"] += 1
        except BaseException:
            self.unpin(path)
            raise
        if not pin:
            self.unpin(path)
        return path

    def trust(self, store: Store, name: str, sha256: str) -> None:
        """This process has just written a file of a local store, with this checksum: it need not be read to be verified."""
        path = store.local_path(name)
        if path is not None:
            self._verified[path] = sha256

    def pin(self, path: Path) -> None:
        """Keep a file until as many `unpin` calls; files outside the cache's folder are not ours to remove anyway."""
        with self._lock:
            self._pins[path] += 1

    def unpin(self, path: Path) -> None:
        """Undo one `pin`."""
        with self._lock:
            self._pins[path] -= 1
            if self._pins[path] <= 0:
                del self._pins[path]

    def forget(self, checksums: Iterable[str]) -> int:
        """Delete the copies with these SHA-256s, in use or not (who has mapped one keeps it); returns how many there were."""
        n_files = 0
        for sha256 in checksums:
            path = self.folder / sha256[:2] / sha256
            self._verified.pop(path, None)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                n_files += 1
        return n_files

    def _is_here(self, path: Path, size: int, sha256: str, verify: bool) -> bool:
        try:
            if path.stat().st_size != size or (verify and not self._is_verified(path, sha256)):
                logger.warning("file=%s event=discarded reason=size or checksum differs", path)
                self._verified.pop(path, None)
                path.unlink(missing_ok=True)
                return False
            os.utime(path)
        except FileNotFoundError:  # never fetched, or evicted by another process just now
            return False
        return True

    def _is_verified(self, path: Path, sha256: str) -> bool:
        if self._verified.get(path) != sha256:
            with open(path, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    return False
            self._verified[path] = sha256
        return True

    def _download(self, store: Store, name: str, size: int, sha256: str, path: Path) -> None:
        temporary = path.with_name(f".{uuid.uuid4().hex}")
        digest, n_bytes = hashlib.sha256(), 0
        try:
            with open(temporary, "xb") as file:
                for part in _parts(store, name, size):
                    file.write(part)
                    digest.update(part)
                    n_bytes += len(part)
            if n_bytes != size:
                raise store.corrupt(name, f"has {n_bytes} bytes, the manifest says {size}")
            if digest.hexdigest() != sha256:
                raise store.corrupt(name, f"does not have the checksum {sha256} that the manifest states")
            os.replace(temporary, path)  # not synced: after a power cut the size tells, or `verify`
        finally:
            temporary.unlink(missing_ok=True)
        self._verified[path] = sha256
        with self._lock:
            self._fresh_bytes += size
            self._known_bytes = (self._known_bytes or 0) + size
            self._counts["fetched_bytes"] += size

    def _make_room(self, size: int) -> None:
        """Evict until `size` more bytes fit, if need be.

        Looking costs a stat per file, so it is done only when our own count says full, and now and then for what other
        processes added.
        """
        with self._lock:
            known = self._known_bytes
            if known is not None and known + size <= self.limit_bytes and self._fresh_bytes <= self.limit_bytes // 16:
                return
            files = sorted(_files(self.folder))
            total = sum(n_bytes for _, n_bytes, _ in files)
            n_evicted = 0
            if total + size > self.limit_bytes:
                target = min(self.limit_bytes - size, self.limit_bytes * 9 // 10)  # so as not to look again at once
                for used_ns, n_bytes, path in files:
                    if total <= target:
                        break
                    # Used since we looked, by another process: no longer the least recent.
                    if path not in self._pins and _last_used(path) == used_ns:
                        path.unlink(missing_ok=True)
                        self._verified.pop(path, None)
                        total -= n_bytes
                        n_evicted += 1
                self._counts["evicted"] += n_evicted
                if n_evicted:
                    logger.info("cache=%s event=evicted files=%d bytes_left=%d", self.folder, n_evicted, total)
                if total + size > self.limit_bytes:
                    logger.warning(
                        "cache=%s event=over-limit limit_bytes=%d in_use_bytes=%d", self.folder, self.limit_bytes, total + size
                    )
            self._known_bytes, self._fresh_bytes = total, 0

    @contextlib.contextmanager
    def _errors(self, store: Store, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            remedy = "Free space there, or lower the cache's limit." if full else "Check who may write there."
            raise StoreError(
                f"Cannot keep {name!r} of store {store.url} in the cache {self.folder}: {error.strerror or error}. {remedy}"
            ) from error


def _parts(store: Store, name: str, size: int) -> Iterator[bytes]:
    """The file in order, a few requests at a time."""
    starts = range(0, max(size, 1), _PART_BYTES)
    if len(starts) == 1:
        yield store.read(name)
        return
    ends = [*starts[1:], None]  # the last part goes on to the file's end, so that a file too long is noticed
    with ThreadPoolExecutor(_N_PARTS) as pool:
        for i in range(0, len(starts), _N_PARTS):
            batch = slice(i, i + _N_PARTS)
            yield from pool.map(store.read, [name] * _N_PARTS, starts[batch], ends[batch])


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One download at a time into this folder (one of 256), among all threads and processes; the lock dies with its holder."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with os.scandir(folder) as there:
            for entry in there:
                if entry.name.startswith("."):  # left by a holder that was killed
                    Path(entry.path).unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)


def _files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """(last use in ns, bytes, path) of each file in the cache."""
    for part in folder.glob("[0-9a-f][0-9a-f]"):
        for path in part.glob("[0-9a-f]*"):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                yield stat.st_mtime_ns, stat.st_size, path


def _last_used(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
