"""What a listing says of a source: its files with the marks that tell a change, and what could not be looked at."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Protocol

WEAK = "W/"  # an etag that begins so is made of size and time, and proves no more than these


class Listed(NamedTuple):
    """One file. A tuple rather than a dataclass: a hundred thousand are made in a second.

    path: relative to the root, `/`-separated; bytes that are not UTF-8 as surrogate escapes.
    size_bytes: -1 where the server does not say. mtime_ns: 0 likewise. etag: the source's own mark of the content, else "".
    A file with neither time nor etag is read by every run, because nothing else tells whether it changed.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    etag: str = ""

    @property
    def is_marked(self) -> bool:
        """Whether a change of the content would show here."""
        return self.mtime_ns != 0 or self.own_etag != ""

    @property
    def may_hide_changes(self) -> bool:
        """Whether only its time tells a change, so that two within one tick of the clock look like one."""
        return not self.own_etag or self.own_etag.startswith(WEAK)

    @property
    def own_etag(self) -> str:
        """The etag without what `shards/attached.py` adds to it, after a tab."""
        return self.etag.partition("\t")[0]


class Problem(NamedTuple):
    """Something that could not be looked at: why, and the kind of failure in one word (forbidden, unreachable, …)."""

    path: str
    reason: str
    kind: str = "unreadable"


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source held when it was listed.

    files: in the order of their paths' UTF-8 bytes, each path once.
    counters: `ignored` (files and whole folders that ignore files name), `excluded` (by include and exclude),
        `skipped_symlink_loops` (links to folders that are listed anyway), `skipped_broken_links`, `skipped_special`
        (fifos, sockets, devices), `skipped_links` (in archives and git trees), `skipped_submodules`, `skipped_odd_names` (with
        `..` in an archive or a web listing), `skipped_older_versions` (of a name that an archive holds twice), `vanished`
        (gone while being listed).
    problems: folders and files that could not be looked at.
    incomplete_prefixes: paths that start with one of these may exist though they are not listed: their absence is no deletion.
        A folder's ends in "/"; "" means everything.
    """

    files: tuple[Listed, ...]
    counters: Mapping[str, int]
    problems: tuple[Problem, ...] = ()
    incomplete_prefixes: tuple[str, ...] = ()


@dataclass(slots=True)
class Found:
    """Everything that a source holds, before globs and ignore files; the fields are those of `Listing`."""

    files: list[Listed] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)


class Files(Protocol):
    """One kind of source, opened.

    parallel: reads worth having in flight at once; with 1, calls come one after the other. only: the file's name where the source is
    a single file, else "". Transient failures of reads are the caller's to try again.
    """

    parallel: int
    only: str

    def find(self) -> Found:
        """All files below the root. Raises what its backend raises where the root cannot be listed."""

    def read(self, path: str, limit: int) -> bytes:
        """A file's content, of a larger one at least limit + 1 bytes. Raises what its backend raises."""

    def close(self) -> None: ...


def size_of(info: Mapping[str, Any]) -> int:
    """A file's bytes by what fsspec says of it; -1 where it does not say."""
    size = info.get("size")
    return -1 if size is None else int(size)


def mtime_ns_of(info: Mapping[str, Any]) -> int:
    """When a file was changed, in nanoseconds of UTC, from whichever field the backend has; 0 if none."""
    for key in ("LastModified", "last_modified", "updated", "mtime", "modify", "Last-Modified", "created"):
        value = info.get(key)
        if isinstance(value, str):
            with suppress(ValueError, TypeError):
                value = parsedate_to_datetime(value) if key == "Last-Modified" else datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return datetime_ns(value)
        if isinstance(value, (int, float)):
            return int(value * 10**9)
    return 0


def datetime_ns(value: datetime) -> int:
    """Nanoseconds since 1970; of UTC where the time names no zone."""
    return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()) * 10**9 + value.microsecond * 1000


def etag_of(info: Mapping[str, Any]) -> str:
    """The backend's mark of a content, best first; "" where there is none."""
    for key in ("ETag", "etag", "md5Hash", "md5", "content_md5", "crc32c", "checksum", "Content-MD5"):
        value = info.get(key)
        if value:
            return bytes(value).hex() if isinstance(value, (bytes, bytearray)) else str(value).strip('"')
    return ""
