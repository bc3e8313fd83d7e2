"""The members of an archive that lies in a source, as `archive!/member`; of one in another, `outer.zip!/inner.tar!/member`.

Read in memory, never unpacked into a folder, and no more than a budget allows: of a bomb the beginning is read, and it is said so.
"""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from shards.archives import member_path, zip_members
from shards.formats.registry import Format, format_of
from shards.roots import Damaged

SEPARATOR = "!/"
DEPTH = 3  # archives in one another
_DAMAGE = (OSError, EOFError, ValueError, KeyError, NotImplementedError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, zlib.error,
           lzma.LZMAError, Damaged)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Member:
    """One file in an archive. path: with that of the archive."""

    path: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Left:
    """A member that is not read, or (path: the archive's) what is wrong with an archive, whose members before are read."""

    path: str
    reason: str


@dataclass(slots=True)
class Budget:
    """What one file of a source may come to with all that is in it: bytes unpacked, members."""

    unpacked_bytes: int = 256 << 20  # as much as a segment holds: a worker has them in memory
    members: int = 100_000


class _Spent(Exception):
    """The budget is used up."""


def members(path: str, data: bytes, known: Format, among: frozenset[str], max_file_bytes: int, budget: Budget) -> Iterator[Member | Left]:
    """Its members in the archive's order, archives among them opened (up to `DEPTH`, if their format is `among` those to be read)."""
    yield from _members(path, path, data, known, among, max_file_bytes, budget, 1)


def archive_of(path: str) -> str:
    """The file of the source that an entry lies in: itself, or the outermost archive."""
    return path.partition(SEPARATOR)[0]


def _members(
    outer: str, path: str, data: bytes, known: Format, among: frozenset[str], max_bytes: int, budget: Budget, depth: int
) -> Iterator[Member | Left]:
    total_bytes = Budget().unpacked_bytes
    try:
        for name, size_bytes, open_member in _zip(data) if known.name == "zip" else _tar(data, budget):
            inner = f"{path}{SEPARATOR}{name}"
            if name.startswith("__MACOSX/"):  # what Finder adds for its own use
                continue
            budget.members -= 1
            if budget.members < 0:
                raise _Spent
            if size_bytes > max_bytes:
                yield Left(inner, f"larger than {max_bytes:,} bytes")
                continue
            if size_bytes > budget.unpacked_bytes:
                raise _Spent
            try:
                content = open_member().read(max_bytes + 1)
            except PermissionError:
                yield Left(inner, "wants a password")
                continue
            except _DAMAGE:
                if known.name == "tar":
                    raise
                yield Left(inner, "damaged")
                continue
            budget.unpacked_bytes -= len(content)
            nested = format_of(inner, among)
            if nested is None or not nested.is_archive or not nested.begins(content):
                yield Member(inner, content)
            elif depth == DEPTH:
                yield Left(inner, f"more than {DEPTH} archives in one another")
            else:
                yield from _members(outer, inner, content, nested, among, max_bytes, budget, depth + 1)
    except _Spent:
        if depth > 1:
            raise
        yield Left(outer, f"{known.title} that unpacks to more than {total_bytes >> 20:,} MiB or {Budget().members:,} members")
    except _DAMAGE:
        yield Left(path, f"{known.title} that is damaged")


def _zip(data: bytes) -> Iterator[tuple[str, int, Any]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        found, readers = zip_members(archive)
        for file in found.files:
            yield file.path, file.size_bytes, readers[file.path]


def _tar(data: bytes, budget: Budget) -> Iterator[tuple[str, int, Any]]:
    """Members in one pass, since compressed ones have no directory. Links are left out."""
    with tarfile.open(fileobj=_Bounded(_decompressed(data), 2 * budget.unpacked_bytes), mode="r|", errors="surrogateescape") as archive:  # type: ignore[call-overload]
        for info in archive:
            name = member_path(info.name)
            if info.isreg() and name is not None:
                yield name, info.size, lambda info=info: archive.extractfile(info)


def _decompressed(data: bytes) -> IO[bytes]:
    source = io.BytesIO(data)
    if data.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=source)
    if data.startswith(b"BZh"):
        return bz2.BZ2File(source)
    return lzma.LZMAFile(source) if data.startswith(b"\xfd7zXZ\0") else source


class _Bounded:
    """A stream that gives so many bytes and no more, whatever is asked of it at once."""

    def __init__(self, inner: IO[bytes], size_bytes: int):
        self._inner, self._left = inner, size_bytes

    def read(self, size: int) -> bytes:
        if self._left <= 0:
            raise _Spent
        data = self._inner.read(min(size, self._left))
        self._left -= len(data)
        return data
