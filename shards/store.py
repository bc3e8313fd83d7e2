"""Where an index lives: named write-once files under one root URL, and the one atomic act that publishes them."""

import contextlib
import errno
import os
import re
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote, urlsplit

from shards.errors import AlreadyExists, BadSpec, Corrupt, NotFound, StoreError

Names = list[str]  # spelled out here because the classes below have a method `list`
A = TypeVar("A")
B = TypeVar("B")

# What every backend takes literally: no traversal, no escaping, no globs, no `?versionId=`. A leading dot is kept for our
# temporary files, which are thereby never listed and never asked for.
_PART = r"[A-Za-z0-9_@=+,~-][A-Za-z0-9._@=+,~-]*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX = re.compile(rf"(?:{_PART}/)*(?:{_PART})?")


class Store(ABC):
    """Files under one root, named by `/`-separated relative paths.

    Files are write-once: a name never gets other content, so reads may be cached for ever. Each method raises StoreError where
    the backend fails or a name is not allowed; each message says what, where and what to do.
    """

    url: str  # opens an equal store again, given the same options
    parallel: ClassVar[int] = 1  # requests worth having in flight at once

    @abstractmethod
    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """A file's bytes [start, end), cut at its end as a slice is (offsets are not negative). Raises NotFound."""

    @abstractmethod
    def write(self, name: str, data: bytes | memoryview) -> None:
        """A file, whole or not at all, durable on return. Writing the same again is harmless."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Like `write`, but of all who ever create this name, in any process, exactly one succeeds.

        Raises AlreadyExists in the others.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> Names:
        """All names that begin with `prefix`, sorted, folders descended into; always asked of the backend."""

    @abstractmethod
    def folders(self, folder: str = "") -> Names:
        """The names of the folders directly in `folder`, sorted."""

    @abstractmethod
    def size(self, name: str) -> int:
        """A file's length in bytes. Raises NotFound."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file; a missing one is no error."""

    @abstractmethod
    def child(self, folder: str) -> "Store":
        """The store rooted at a folder of this one."""

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        try:
            self.size(name)
        except NotFound:
            return False
        return True

    def local_path(self, name: str) -> Path | None:
        """Where a file (if it exists) can be memory-mapped on this machine; None where the store is elsewhere."""
        return None

    def read_many(self, names: Sequence[str]) -> Sequence[bytes]:
        """Whole files, in order, with `parallel` requests in flight. Raises NotFound."""
        return self._each(self.read, names)

    def write_many(self, files: Mapping[str, bytes | memoryview]) -> None:
        """Many writes, in no particular order, with `parallel` requests in flight."""
        self._each(lambda item: self.write(*item), list(files.items()))

    def delete_many(self, names: Sequence[str]) -> None:
        """Many deletes, in no particular order, with `parallel` requests in flight."""
        self._each(self.delete, names)

    def _each(self, act: Callable[[A], B], items: Sequence[A]) -> Sequence[B]:
        if self.parallel == 1 or len(items) < 2:
            return [act(item) for item in items]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(self.parallel, len(items))) as pool:
            return list(pool.map(act, items))

    def _missing(self, name: str) -> NotFound:
        return NotFound(
            f"No file {name!r} in store {self.url}. If its generation was collected, reopen the newest; else index again."
        )

    def _taken(self, name: str) -> AlreadyExists:
        return AlreadyExists(f"File {name!r} already exists in store {self.url}. Somebody else was first: read it.")

    def corrupt(self, name: str, found: str) -> Corrupt:
        """The error for a file that is not what a manifest says; found: the end of "File … in store … "."""
        return Corrupt(f"File {name!r} in store {self.url} {found}. Restore it, or rebuild the corpus from its source.")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


def open_store(url: str | os.PathLike[str], **options: Any) -> Store:
    """The store at a URL: a folder (plain path or file://), s3://bucket/prefix, or memory://name (this process only).

    options: for s3 see `shards.store_s3.S3Options`; for a folder only sync=False, see `LocalStore`. Raises BadSpec for an unknown scheme,
    option or malformed URL.
    Other fsspec file systems are refused because they have no exclusive create that is atomic.
    """
    text = os.fspath(url)
    scheme, separator, _ = text.partition("://")
    if separator and scheme == "s3":
        from shards.store_s3 import open_s3

        return open_s3(text, options)
    sync = bool(options.pop("sync", True)) if not separator else True
    if options:
        raise BadSpec(f"Store {text!r} takes no options, got {', '.join(sorted(options))}. Options belong to s3:// stores.")
    if not text:
        raise BadSpec("The store's URL is empty. Give a folder, s3://bucket/prefix or memory://name.")
    if not separator:
        return LocalStore(Path(text), sync)
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise BadSpec(f"Store URL {text!r} names the host {parts.netloc!r}. Write file:///absolute/path, with three slashes.")
        return LocalStore(Path(unquote(parts.path)))
    if scheme == "memory":
        return MemoryStore(text)
    raise BadSpec(
        f"Store URL {text!r} has the scheme {scheme!r}; choose from: a folder, file://, s3://, memory://. "
        "Many other object stores also speak S3: give their endpoint_url."
    )


def check_name(name: str, url: str) -> None:
    """Refuse a name that could leave the root or mean different things to different backends. Raises StoreError."""
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"File name {name!r} is not allowed in store {url}. Use relative names of letters, digits and ._@=+,~- in parts "
            "separated by single slashes, no part beginning with a dot."
        )


def check_prefix(prefix: str, url: str) -> None:
    """Like `check_name`, for the beginning of a name. Raises StoreError."""
    if not _PREFIX.fullmatch(prefix):
        raise StoreError(f"Prefix {prefix!r} is not allowed in store {url}. Give the beginning of a file name, such as 'roots/'.")


class LocalStore(Store):
    """A folder. Files appear by rename or link of a synced temporary file, and the folder is synced after.

    sync: False for a folder that nobody wants after this process: then nothing waits for the disk.
    """

    parallel = 8  # for writes: syncs of several files share the journal's commits

    def __init__(self, root: Path, sync: bool = True):
        self.root = Path(os.path.abspath(root))
        self._sync = sync
        self.url = str(self.root)

    def _path(self, name: str) -> Path:
        check_name(name, self.url)
        return self.root / name

    def local_path(self, name: str) -> Path:
        return self._path(name)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        path = self._path(name)
        with self._errors("read", name), open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            at, stop = start or 0, size if end is None else min(end, size)
            if stop <= at:
                return b""
            file.seek(at)
            # One read() returns at most 2 GiB on Linux; a short one elsewhere is a file cut under our hands.
            parts = []
            while at < stop and (part := file.read(stop - at)):
                parts.append(part)
                at += len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_many(self, names: Sequence[str]) -> Sequence[bytes]:
        return [self.read(name) for name in names]  # from the page cache, threads only cost

    def write(self, name: str, data: bytes | memoryview) -> None:
        with self._errors("write", name):
            self._sync_folder(self._place(name, data))

    def write_many(self, files: Mapping[str, bytes | memoryview]) -> None:
        folders = self._each(self._place_named, list(files.items()))
        for folder in set(folders):
            with self._errors("write", str(folder)):
                self._sync_folder(folder)

    def _place_named(self, item: tuple[str, bytes | memoryview]) -> Path:
        with self._errors("write", item[0]):
            return self._place(*item)

    def _place(self, name: str, data: bytes | memoryview) -> Path:
        path = self._path(name)
        with _temporary(path.parent, data, self._sync) as temporary:
            os.replace(temporary, path)
        return path.parent

    def _sync_folder(self, folder: Path) -> None:
        if self._sync:
            _sync_folder(folder)

    def create(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with self._errors("create", name), _temporary(path.parent, data, self._sync) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                # NFS may repeat a link whose answer was lost and then call our own success a failure: open(2) says to
                # trust the link count.
                if os.stat(temporary).st_nlink != 2:
                    raise self._taken(name) from None
            self._sync_folder(path.parent)

    def list(self, prefix: str = "") -> Names:
        check_prefix(prefix, self.url)
        folder = prefix.rpartition("/")[0]
        with self._errors("list", prefix):
            return sorted(name for name in _walk(self.root / folder, f"{folder}/" if folder else "") if name.startswith(prefix))

    def folders(self, folder: str = "") -> Names:
        where = self._path(folder) if folder else self.root
        with self._errors("list", folder):
            return sorted(entry.name for entry in _scan(where) if entry.is_dir())

    def size(self, name: str) -> int:
        path = self._path(name)
        with self._errors("read", name):
            if path.is_dir():
                raise self._missing(name)
            return path.stat().st_size

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._errors("delete", name):
            path.unlink(missing_ok=True)
            if path.parent != self.root:
                with contextlib.suppress(OSError):  # not empty, for one: a folder for each segment that ever was makes listing slow
                    path.parent.rmdir()

    def child(self, folder: str) -> "LocalStore":
        return LocalStore(self._path(folder), self._sync)

    @contextlib.contextmanager
    def _errors(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if action == "read" and isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
                raise self._missing(name) from None
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                remedy = "Free space there, or choose another store."
            elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                remedy = "Check who may write there; the file system must also allow hard links."
            else:
                remedy = "Check that the folder is a folder and its disk is healthy."
            raise StoreError(f"Cannot {action} {name!r} in store {self.url}: {error.strerror or error}. {remedy}") from error


class MemoryStore(Store):
    """Files in this process's memory, shared by all stores of the same URL; for tests and throw-away corpora."""

    _files: ClassVar[dict[str, bytes]] = {}  # by full URL
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, url: str):
        self.url = url.rstrip("/")

    def _key(self, name: str) -> str:
        check_name(name, self.url)
        return f"{self.url}/{name}"

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        key = self._key(name)
        try:
            return self._files[key][start:end]
        except KeyError:
            raise self._missing(name) from None

    def write(self, name: str, data: bytes | memoryview) -> None:
        key = self._key(name)
        with self._lock:
            self._files[key] = bytes(data)

    def create(self, name: str, data: bytes) -> None:
        key = self._key(name)
        with self._lock:
            if key in self._files:
                raise self._taken(name)
            self._files[key] = bytes(data)

    def list(self, prefix: str = "") -> Names:
        check_prefix(prefix, self.url)
        root = f"{self.url}/"
        with self._lock:
            return sorted(key[len(root) :] for key in self._files if key.startswith(root + prefix))

    def folders(self, folder: str = "") -> Names:
        inside = f"{folder}/" if folder else ""
        rests = (name[len(inside) :].partition("/") for name in self.list(inside))
        return sorted({first for first, slash, _ in rests if slash})

    def size(self, name: str) -> int:
        return len(self.read(name))

    def delete(self, name: str) -> None:
        key = self._key(name)
        with self._lock:
            self._files.pop(key, None)

    def child(self, folder: str) -> "MemoryStore":
        return MemoryStore(self._key(folder))

    def __reduce__(self) -> Any:
        raise StoreError(f"Store {self.url} lives in one process and cannot be sent to another. Use a folder or s3:// instead.")


@contextlib.contextmanager
def _temporary(folder: Path, data: bytes | memoryview, sync: bool) -> Iterator[Path]:
    """A file with this content in the folder (made if need be), synced unless told not to; gone afterwards unless it was renamed."""
    path = folder / f".{uuid.uuid4().hex}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        try:
            descriptor = os.open(path, flags, 0o666)
            break
        except FileNotFoundError:  # not made yet, or removed by a `delete` that found it empty
            _make_folder(folder, sync)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            if sync:
                os.fsync(file.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)


def _make_folder(folder: Path, sync: bool) -> None:
    """The folder and its parents, each entry durable before anything is put inside."""
    if not folder.is_dir():
        _make_folder(folder.parent, sync)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        if sync:
            _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # what was put there was deleted at once, and the folder with it
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _scan(folder: Path) -> Iterable[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:  # not made yet, or removed while we were walking
        return []


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    for entry in _scan(folder):
        if entry.is_dir():
            yield from _walk(folder / entry.name, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name
