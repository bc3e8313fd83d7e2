"""Sources that are archives: zip and tar (plain, gzip, bzip2, xz), on this machine or wherever fsspec reaches, also one in another.

Members are read where they lie; nothing is unpacked into folders, so no name can lead out of one. A zip is read in place, by its
directory. A tar has none: one that is compressed or elsewhere is first copied, unpacked, to a temporary file without a name.
"""

import contextlib
import io
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO, Any, cast

from shards.errors import SourceError
from shards.listing import Found, Listed, Problem, datetime_ns
from shards.retries import Retry
from shards.roots import Damaged, Source, said, unlisted

SCHEMES = ("zip", "tar")
_LINK, _REGULAR = 0xA, 0x8  # the file's type in the Unix mode that a zip keeps, as in stat(2)
_BLOCK = 1 << 20


class Archive:
    """The members of an archive below a prefix. prefix: empty or with its slash; only: the single member's name, else ""."""

    parallel = 1  # members share one file position

    def __init__(self, source: Source, retry: Retry):
        """Opens the archive and reads its directory. Raises SourceError."""
        self.source = source
        self._open = contextlib.ExitStack()
        scheme, inside, place = _split(source.url)
        try:
            opened = retry(lambda: self._members(scheme, place))
        except Exception as error:
            self.close()
            if isinstance(error, OSError) and error.errno == 28:
                raise SourceError(
                    f"Source {source.url!r} does not fit into {tempfile.gettempdir()!r} unpacked. Free space there, or set TMPDIR."
                ) from error
            raise unlisted(source, error) from error
        self._found, self._readers = opened
        self.only = inside.rpartition("/")[2] if inside and inside in self._readers else ""
        inside = inside.rpartition("/")[0] if self.only else inside
        self.prefix = inside + "/" if inside else ""

    def find(self) -> Found:
        found = self._found
        if self.only:
            files = [file for file in found.files if file.path == self.prefix + self.only]
        else:
            files = [file for file in found.files if file.path.startswith(self.prefix)]
        if self.prefix and not files and not found.problems:
            raise FileNotFoundError(self.source.url)
        relative = [file._replace(path=file.path[len(self.prefix) :]) for file in files]
        return Found(relative, found.counters, found.problems, found.incomplete)

    def read(self, path: str, limit: int) -> bytes:
        """A member's content. Raises KeyError for one that is not there, Damaged, or what zipfile and tarfile raise."""
        with self._readers[self.prefix + path]() as file:
            return file.read(limit + 1)

    def close(self) -> None:
        self._open.close()

    # --- opening -----------------------------------------------------------------------------------------------------------

    def _members(self, scheme: str, place: str) -> tuple[Found, dict[str, Callable[[], IO[bytes]]]]:
        self._open.close()  # of an attempt that failed
        file = self._open.enter_context(_opened(place, self.source))
        if scheme == "zip":
            return zip_members(self._open.enter_context(zipfile.ZipFile(file)))
        if not _is_plain_and_here(file):
            copy = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            _unpack(file, copy)
            file = copy
        return _tar_members(self._open.enter_context(tarfile.open(fileobj=file, mode="r:", errors="surrogateescape")), file)


def _split(url: str) -> tuple[str, str, str]:
    """Scheme, path inside, and URL of the archive itself: fsspec's `zip://inside::file:///x.zip`, or in short `zip:///x.zip`."""
    scheme, _, rest = url.partition("://")
    inside, chained, place = rest.partition("::")
    if not chained:
        inside, place = "", inside
    return scheme, inside.strip("/"), place if "://" in place else os.path.abspath(os.path.expanduser(place))


def _opened(place: str, source: Source) -> Any:
    """The archive as a file that can be read at any place."""
    if "://" not in place or (place.startswith(("file://", "local://")) and "::" not in place):
        return open(place.split("://", 1)[-1], "rb")
    if place.split("://", 1)[0] in SCHEMES:  # one in another
        path, _, rest = place.partition("::")
        if not rest:
            raise SourceError(f"Source {source.url!r}: write an archive in another as zip://::tar://inner.zip::file:///outer.tar.")
        scheme, _, member = path.partition("://")
        folder = member.strip("/").rpartition("/")[0]
        outer = Archive(Source(source.name, f"{scheme}://{folder}::{rest}", options=source.options), Retry(()))
        with contextlib.closing(outer):
            copy = tempfile.TemporaryFile()  # noqa: SIM115  (closed by the caller)
            with outer._readers[member.strip("/")]() as inner:
                shutil.copyfileobj(inner, copy, _BLOCK)
            copy.seek(0)
            return copy
    from shards.remote import open_file_system

    scheme = place.split("://", 1)[0]
    plain = {key: value for key, value in source.options.items() if not isinstance(value, dict) or key.endswith("_kwargs")}
    fs, path = open_file_system(place, plain | source.options.get(scheme, {}))
    return fs.open(path, "rb", block_size=_BLOCK)


# --- zip -------------------------------------------------------------------------------------------------------------------


def zip_members(archive: zipfile.ZipFile) -> tuple[Found, dict[str, Callable[[], IO[bytes]]]]:
    found = Found()
    newest: dict[str, tuple[Listed, zipfile.ZipInfo]] = {}
    for info in archive.infolist():
        if info.is_dir():
            continue
        path = member_path(_zip_name(info))
        kind = info.external_attr >> 28 if info.create_system == 3 else _REGULAR
        if path is None:
            found.counters["skipped_odd_names"] += 1
        elif kind == _LINK:
            found.counters["skipped_links"] += 1
        elif kind not in (0, _REGULAR):
            found.counters["skipped_special"] += 1
        else:
            found.counters["skipped_older_versions"] += path in newest
            newest[path] = Listed(path, info.file_size, _zip_time_ns(info), f"{info.CRC:08x}"), info
    found.files = [file for file, _ in newest.values()]
    return found, {path: lambda info=info: _checked(archive.open, info) for path, (_, info) in newest.items()}


def _checked(open_member: Callable[[zipfile.ZipInfo], IO[bytes]], info: zipfile.ZipInfo) -> IO[bytes]:
    """A member, opened. Raises PermissionError for one that asks for a password."""
    if info.flag_bits & 1:
        raise PermissionError(13, "it is encrypted")
    try:
        return open_member(info)
    except (NotImplementedError, EOFError, zlib.error) as error:  # the first: a way of packing that zipfile does not know
        raise Damaged(said(error)) from error


def _zip_name(info: zipfile.ZipInfo) -> str:
    """A member's name. Without the flag for UTF-8 the format says code page 437, but most archives made on Unix hold UTF-8."""
    if info.flag_bits & 0x800:
        return info.filename
    with contextlib.suppress(UnicodeError):
        return info.filename.encode("cp437").decode()
    return info.filename


def _zip_time_ns(info: zipfile.ZipInfo) -> int:
    """Wall-clock time of no zone, taken as UTC; 0 where it is none."""
    try:
        return datetime_ns(datetime(*info.date_time, tzinfo=UTC))
    except ValueError:
        return 0


def member_path(name: str) -> str | None:
    """A member's name as a path below the root, as unpackers take it: without `/` before and `.` within; None with `..`."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return "/".join(parts) if parts and ".." not in parts and not name.endswith("/") else None


# --- tar -------------------------------------------------------------------------------------------------------------------


def _is_plain_and_here(file: Any) -> bool:
    """Whether a file on this machine is a tar that is not compressed."""
    head = file.read(512)
    file.seek(0)
    return isinstance(file, io.BufferedReader) and head[257:262] == b"ustar"


def _unpack(file: Any, copy: IO[bytes]) -> None:
    """The content of a tar, decompressed by what its first bytes say."""
    import bz2
    import gzip
    import lzma

    head = file.read(6)
    file.seek(0)
    opener: Callable[..., Any] = next(
        (kind for magic, kind in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)) if head.startswith(magic)),
        lambda plain, _mode: contextlib.nullcontext(plain),
    )
    with opener(file, "rb") as unpacked:
        shutil.copyfileobj(unpacked, copy, _BLOCK)
    copy.seek(0)


def _tar_members(archive: tarfile.TarFile, file: IO[bytes]) -> tuple[Found, dict[str, Callable[[], IO[bytes]]]]:
    """Members with a checksum of their content as etag: times alone do not do, since many tars are made with one and the same."""
    found = Found()
    newest: dict[str, tuple[Listed, tarfile.TarInfo]] = {}
    try:
        for info in archive:
            path = member_path(info.name)
            if info.isdir():
                continue
            if info.issym():
                found.counters["skipped_links"] += 1
            elif not (info.isreg() or info.islnk()):
                found.counters["skipped_special"] += 1
            elif path is None:
                found.counters["skipped_odd_names"] += 1
            else:
                content = cast(IO[bytes], archive.extractfile(info))  # of a hard link, the file's that it leads to
                size, crc = _checksum(content)
                found.counters["skipped_older_versions"] += path in newest
                newest[path] = Listed(path, size, int(info.mtime * 10**9), f"{crc:08x}"), info
        cut = not _ends_properly(archive, file)
        reason = "it breaks off: a tar ends with a block of zeros"
    except (tarfile.TarError, KeyError, OSError) as error:
        if not newest:
            raise
        cut, reason = True, said(error)
    if cut:  # a tar that is cut off between two members looks whole to most readers
        found.problems.append(Problem("(the archive)", f"{reason}. Nothing that it does not list was deleted", "damaged"))
        found.incomplete.append("")
    found.files = [listed for listed, _ in newest.values()]
    return found, {path: lambda info=info: cast(IO[bytes], archive.extractfile(info)) for path, (_, info) in newest.items()}


def _ends_properly(archive: tarfile.TarFile, file: IO[bytes]) -> bool:
    file.seek(archive.offset)
    block = file.read(tarfile.BLOCKSIZE)
    return len(block) == tarfile.BLOCKSIZE and not any(block)


def _checksum(content: IO[bytes]) -> tuple[int, int]:
    size = crc = 0
    while part := content.read(_BLOCK):
        size, crc = size + len(part), zlib.crc32(part, crc)
    return size, crc
