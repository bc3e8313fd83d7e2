"""Files that changed since a generation, read as they are now, and searched as a shard of their own that lies in memory.

Only in layers that cost next to nothing to build: statistics and null models are those of the generation, so what a layer says of these
documents compares with what it says of all others. Layers that encode know them after the next run of the index job.
"""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from shards.documents import Documents, Entries
from shards.endpoint_settings import Usage
from shards.errors import SondageError
from shards.formats.registry import format_of
from shards.identity import N_BUCKETS
from shards.layers.contract import Layer
from shards.listing import Listed
from shards.local_folder import LocalFolder
from shards.manifest import SegmentRef, ShardPage
from shards.metadata import SIDECAR
from shards.plan import Plan, extension, glob_regex
from shards.reading import Reading
from shards.rows import FORMATS
from shards.segment import Segment, Tombstones, pack_entries
from shards.shard import Shard, Space, search
from shards.types import Array, Arrays, Budget, Candidates, Detail, Entry, LinesAround

logger = logging.getLogger(__name__)

MAX_FILES = 256  # that are read for searches: more than that is a case for the index job
MAX_FILE_BYTES, MAX_BYTES = 1 << 20, 4 << 20  # of one file, and of all
_FIRST = ("path", "line")  # units of layers that need no arrays to speak of: these are built first


def is_plain(path: str) -> bool:
    """Whether a file is read as text, by its name: what is of a format, or may be a table, is left to the index job, which knows how."""
    return extension(path) not in FORMATS and format_of(path) is None and not path.endswith(SIDECAR)


class Wanted(NamedTuple):
    """A file to be read: its source, where that lies, and how it looked when it was found to be another."""

    source: str
    files: LocalFolder
    file: Listed


@dataclass(frozen=True, slots=True)
class _Read:
    """What reading a file gave; entry: None where it is no document. file: as it looked then."""

    file: Listed
    entry: Entry | None = None
    document: tuple[bytes, bytes, str] | None = None


class _Kept:
    """Encodings of one space, in memory."""

    def __init__(self) -> None:
        self._known: dict[bytes, Array] = {}

    def get(self, hashes: Array) -> dict[bytes, Array]:
        return {key: self._known[key] for key in (row.tobytes() for row in hashes) if key in self._known}

    def put(self, encodings: Mapping[bytes, Array]) -> None:
        self._known |= encodings

    def spend(self, usage: Usage) -> None:
        raise AssertionError("layers that are built for a search ask no endpoint")


class InMemory(Segment):
    """A segment of which there are no files."""

    def __init__(self, documents: Documents, entries: Entries, layers: dict[str, Arrays]):
        n_docs, n_entries, size = len(documents), len(entries), len(documents.text)
        ref = SegmentRef(
            id="live", buckets=(0, N_BUCKETS), n_docs=n_docs, n_entries=n_entries, text_bytes=size, files={}, spaces={}
        )
        super().__init__(ref, None, None, _layers=layers)  # type: ignore[arg-type]  # neither store nor cache: all is here
        self.__dict__ |= {"documents": documents, "entries": entries}  # as these would be kept once they were mapped


@dataclass(frozen=True, slots=True)
class LiveShard:
    """The documents that were read, searched as one shard. hashes: theirs; spaces: names of those that it answers for; paths: what was
    read, by source and path, with the content hash, None of files that are no document now."""

    shard: Shard
    hashes: Set[bytes]
    spaces: frozenset[str]
    paths: Mapping[tuple[str, str], bytes | None]

    def search(self, plan: Plan, budget: Budget) -> Candidates:
        """Candidates as of a host, without coverage and moments: both are the generation's."""
        found = search([self.shard], plan, budget)
        return replace(found, moments=(None,) * len(plan.queries), status=())

    def detail(self, key: bytes, spans: Sequence[tuple[int, int]], plan: Plan, size: int | LinesAround) -> Detail | None:
        """What a result row shows of a document; None where it is not here."""
        return self.shard.detail(key, spans, plan.words, size, plan.where)


class Live:
    """What was read of one generation's changed files. spaces: of the generation. For one thread at a time, but for `shard`."""

    def __init__(self, spaces: Mapping[str, Space]):
        self.spaces = {name: space for name, space in spaces.items() if _is_cheap(space)}
        self.shard: LiveShard | None = None
        self.left_out = 0  # files that are wanted and not in the shard: not read yet, too large, too many, or not plain
        self._read: dict[tuple[str, str], _Read] = {}
        self._kept: dict[str, _Kept] = {name: _Kept() for name in self.spaces}
        self._built_of: frozenset[tuple[str, str, bytes | None]] = frozenset()
        self._packed: tuple[Documents, Entries] = Documents.pack(()), pack_entries(())
        self._arrays: dict[str, Arrays] = {}
        self._failed: set[str] = set()
        self._lock = threading.Lock()

    def update(self, wanted: Iterable[Wanted], budget: Budget) -> dict[tuple[str, str], tuple[Listed, bytes | None]]:
        """Read what is wanted and was not yet, and make it a shard, as far as the time goes. Returns of each file that was read, by source
        and path, how it looked then, and the content hash; None of files that are no document."""
        with self._lock:
            return self._update(list(wanted), budget)

    def _update(self, wanted: list[Wanted], budget: Budget) -> dict[tuple[str, str], tuple[Listed, bytes | None]]:
        keys = {(one.source, one.file.path) for one in wanted}
        self._read = {key: read for key, read in self._read.items() if key in keys}
        chosen: list[Wanted] = []
        size = 0
        for one in sorted(wanted, key=lambda one: (-one.file.mtime_ns, one.source, one.file.path)):
            fits = one.file.size_bytes <= MAX_FILE_BYTES and size + one.file.size_bytes <= MAX_BYTES and len(chosen) < MAX_FILES
            if fits and is_plain(one.file.path):
                size += one.file.size_bytes
                chosen.append(one)
        told = {}
        missing = len(wanted) - len(chosen)
        held = []
        for one in chosen:
            key = (one.source, one.file.path)
            read = self._read.get(key)
            if read is None or read.file != one.file:
                if budget.expired:
                    missing += 1
                    continue
                read = self._read[key] = _read(one)
            told[key] = read.file, read.entry.hash if read.entry else None
            held.append((key, read))
        self.left_out = missing
        self._build(held, budget)
        return told

    def _build(self, held: list[tuple[tuple[str, str], _Read]], budget: Budget) -> None:
        content = frozenset((*key, read.entry.hash if read.entry else None) for key, read in held)
        is_new = content != self._built_of
        if is_new:
            documents = Documents.pack(read.document for _, read in held if read.document is not None)
            entries = pack_entries(read.entry for _, read in held if read.entry is not None)
            self._packed, self._arrays, self._failed, self._built_of = (documents, entries), {}, set(), content
        documents, entries = self._packed
        grown = False
        for name, space in sorted(self.spaces.items(), key=lambda item: (item[1].layer.granularity not in _FIRST, item[0])):
            if name in self._arrays or name in self._failed:
                continue
            if budget.expired and self._arrays:
                break
            try:
                self._arrays[name] = space.layer.build(documents, entries, _scope(space, documents, entries), self._kept[name])
                grown = True
            except SondageError as error:  # a model that is not here: then this space knows nothing of these files
                logger.warning("space=%s event=not_live reason=%s", name, error)
                self._failed.add(name)
        if not content:
            self.shard = None
        elif is_new or grown:
            self.shard = self._opened(documents, entries, {key: read.entry.hash if read.entry else None for key, read in held})

    def _opened(self, documents: Documents, entries: Entries, paths: dict[tuple[str, str], bytes | None]) -> LiveShard:
        built = {name: self.spaces[name] for name in self._arrays}
        segment = InMemory(documents, entries, {space.id: self._arrays[name] for name, space in built.items()})
        page = ShardPage(shard=0, buckets=(0, N_BUCKETS), segments=(segment.ref,))
        none = np.zeros(0, np.int32)
        shard = Shard(page, [segment], [Tombstones(none, none, {})], built)
        spaces = frozenset(name for name in built if name not in shard.unopened)
        return LiveShard(shard, frozenset(row.tobytes() for row in documents.hashes), spaces, paths)


def _is_cheap(space: Space) -> bool:
    layer: Layer = space.layer
    return not (layer.dear or layer.given or layer.media or space.problem or layer.origin == "derived")


def _scope(space: Space, documents: Documents, entries: Entries) -> Array | None:
    """The rows that a space is built for; None: all."""
    if not space.scope:
        return None
    globs = [glob_regex(glob) for glob in space.scope]
    inside = np.array([any(glob.fullmatch(entries.path(row)) for glob in globs) for row in range(len(entries))], np.bool_)
    if space.layer.over == "entries":
        return inside
    taken = {entries.hashes[row].tobytes() for row in np.flatnonzero(inside)}
    return np.array([row.tobytes() in taken for row in documents.hashes], np.bool_)


def _read(wanted: Wanted) -> _Read:
    """One file, as a run of the index job reads it."""
    file = wanted.file
    try:
        data = wanted.files.read(file.path, MAX_FILE_BYTES)
    except OSError:
        return _Read(file)
    if len(data) > MAX_FILE_BYTES:
        return _Read(file)
    reading = Reading({})
    reading.file(file.path, data, _beside(wanted))
    pack = reading.pack()
    if pack is None:
        return _Read(file)
    documents = pack[0]
    key = documents.hashes[0].tobytes()
    about: dict[str, Any] = reading.metadata.get(file.path, {})
    entry = Entry(wanted.source, file.path, key, file.size_bytes, file.mtime_ns, metadata=about)
    return _Read(file, entry, (key, bytes(documents.content(0)), documents.kind_names[documents.kinds[0]]))


def _beside(wanted: Wanted) -> bytes | None:
    """Its sidecar."""
    try:
        return wanted.files.read(wanted.file.path + SIDECAR, MAX_FILE_BYTES)
    except OSError:
        return None
