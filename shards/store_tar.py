"""A whole store as one tar file: written from end to end, read anywhere, by any tool that knows tar.

Only what backups need: files are appended, never replaced or removed, and the archive may be cut off at any byte (what is whole
before that stays good, the rest is written again).
"""

import os
import tarfile
import threading
from pathlib import Path

from shards.errors import Corrupt, StoreError
from shards.store import Names, Store, check_name, check_prefix

_BLOCK = 512


class Archive:
    """The tar file itself: where each member's bytes lie. writable: whether members may be appended; then a torn end is cut off."""

    def __init__(self, path: Path, writable: bool):
        self.path, self.writable = path, writable
        self.members: dict[str, tuple[int, int]] = {}  # name -> (offset of its bytes, how many)
        self.lock = threading.Lock()
        self._end = 0  # where the next header goes
        try:
            self._file = open(path, "r+b" if writable and path.exists() else "w+b" if writable else "rb")  # noqa: SIM115  closed by `close`
        except OSError as error:
            raise StoreError(f"Cannot open the archive {path}: {error.strerror or error}. Check the path and who may read it.") from None
        try:
            self._scan()
        except BaseException:
            self._file.close()
            raise

    def _scan(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as archive:
                for member in archive:
                    end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
                    if end > size:
                        break
                    self._end = end
                    if member.isfile():
                        self.members[member.name] = (member.offset_data, member.size)
        except tarfile.ReadError as error:
            torn = self.writable and size < _BLOCK  # cut off in its first header
            if size and not torn and not self.members:
                raise Corrupt(f"{self.path} is no tar archive ({error}). Give one that `sondage export` wrote.") from None
        if self.writable:
            self._file.truncate(self._end)

    def read(self, name: str) -> tuple[int, int] | None:
        """(offset, size) of a member's bytes; None where there is none."""
        return self.members.get(name)

    def bytes_at(self, start: int, end: int) -> bytes:
        """Bytes [start, end) of the file."""
        with self.lock:
            self._file.seek(start)
            return self._file.read(max(0, end - start))

    def append(self, name: str, data: bytes) -> None:
        """One more member."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o644
        try:
            with self.lock:
                self._file.seek(self._end)
                header = info.tobuf(tarfile.PAX_FORMAT)
                self._file.write(header)
                self._file.write(data)
                self._file.write(bytes(-len(data) % _BLOCK))
                self._file.flush()
                self.members[name] = (self._end + len(header), len(data))
                self._end += len(header) + len(data) + -len(data) % _BLOCK
        except OSError as error:
            raise StoreError(f"Cannot write {name!r} to the archive {self.path}: {error.strerror or error}. Free space there.") from error

    def cut(self, name: str) -> None:
        """Cut the archive off before a member: what comes from there on is written again."""
        with self.lock:
            start = self.members[name][0]
            self.members = {n: place for n, place in self.members.items() if place[0] < start}
            # Headers of long names take several blocks: what precedes this member ends where its bytes do.
            self._end = max((offset + -(-size // _BLOCK) * _BLOCK for offset, size in self.members.values()), default=0)
            self._file.truncate(self._end)

    def close(self) -> None:
        """End the archive as tar wants it: two empty blocks, synced."""
        if self.writable:
            with self.lock:
                self._file.seek(self._end)
                self._file.write(bytes(2 * _BLOCK))
                self._file.flush()
                os.fsync(self._file.fileno())
        self._file.close()


class TarStore(Store):
    """The store in an archive, or a folder of it."""

    def __init__(self, archive: Archive, folder: str = ""):
        self.archive, self._folder = archive, folder
        self.url = f"{archive.path}" + (f"/{folder}".rstrip("/") if folder else "")

    def _key(self, name: str) -> str:
        check_name(name, self.url)
        return self._folder + name

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        place = self.archive.read(self._key(name))
        if place is None:
            raise self._missing(name)
        offset, size = place
        low, high = min(start or 0, size), size if end is None else min(end, size)
        return self.archive.bytes_at(offset + low, offset + high)

    def write(self, name: str, data: bytes | memoryview) -> None:
        if self.exists(name):
            if self.read(name) != data:
                raise self._taken(name)
            return
        self._append(name, data)

    def create(self, name: str, data: bytes) -> None:
        if self.exists(name):
            raise self._taken(name)
        self._append(name, data)

    def _append(self, name: str, data: bytes) -> None:
        if not self.archive.writable:
            raise StoreError(f"Archive {self.url} is only read. Export into another file.")
        self.archive.append(self._key(name), data)

    def list(self, prefix: str = "") -> Names:
        check_prefix(prefix, self.url)
        full = self._folder + prefix
        return sorted(name[len(self._folder) :] for name in self.archive.members if name.startswith(full))

    def folders(self, folder: str = "") -> Names:
        inside = f"{folder}/" if folder else ""
        rests = (name[len(inside) :].partition("/") for name in self.list(inside))
        return sorted({first for first, slash, _ in rests if slash})

    def size(self, name: str) -> int:
        place = self.archive.read(self._key(name))
        if place is None:
            raise self._missing(name)
        return place[1]

    def delete(self, name: str) -> None:
        """Cuts the archive off there: nothing can be taken out of the middle of one."""
        key = self._key(name)
        if self.archive.writable and key in self.archive.members:
            self.archive.cut(key)

    def child(self, folder: str) -> "TarStore":
        return TarStore(self.archive, f"{self._key(folder)}/")


def read_archive(path: Path) -> TarStore:
    """The store in a finished archive. Raises StoreError where it cannot be opened, Corrupt where it is no tar file."""
    return TarStore(Archive(path, writable=False))


def write_archive(path: Path) -> TarStore:
    """A store whose files become members of a tar file, which may be there already, cut off. Close its archive at the end."""
    return TarStore(Archive(path, writable=True))
