"""An immutable piece of a shard: documents, entries and every space's arrays, as files and as opened.

The bytes are described in FORMAT.md. A segment is named by the hash of its files, so building the same piece twice, by a
retry or by two jobs, writes the same names.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shards import arrays as array_files
from shards.documents import Documents, Entries
from shards.identity import HASH_BYTES, N_BUCKETS, buckets_of, find_rows, prefixes
from shards.manifest import FileRef, SegmentRef, check
from shards.types import Array, Arrays, Entry

if TYPE_CHECKING:
    from shards.cache import FileCache
    from shards.store import Store


_PACK_HEAD_BYTES = 1 << 15  # holds the header and the columns of a staging file of 512 documents, at 37 bytes each


def pack_entries(entries: Iterable[Entry]) -> Entries:
    """Entries sorted by (content hash, source, path), as a segment keeps them."""
    rows = sorted(entries, key=lambda e: (e.hash, e.source, e.path))
    names = tuple(sorted({e.source for e in rows}))
    number = {name: i for i, name in enumerate(names)}
    path_blob, path_offsets = array_files.pack_strings([e.path.encode("utf-8", "surrogateescape") for e in rows])
    metadata = [json.dumps(dict(e.metadata), sort_keys=True, ensure_ascii=False).encode() if e.metadata else b"" for e in rows]
    meta_blob, meta_offsets = array_files.pack_strings(metadata)
    return Entries(
        hashes=np.frombuffer(b"".join(e.hash for e in rows), np.uint8).reshape(-1, HASH_BYTES),
        path_blob=path_blob,
        path_offsets=path_offsets,
        sources=np.array([number[e.source] for e in rows], np.uint16),
        source_names=names,
        sizes=np.array([e.size_bytes for e in rows], np.int64),
        mtimes_ns=np.array([e.mtime_ns for e in rows], np.int64),
        meta_blob=meta_blob,
        meta_offsets=meta_offsets,
    )


def unpack_entry(entries: Entries, row: int) -> Entry:
    """One entry as a value."""
    metadata = array_files.unpack_string(entries.meta_blob, entries.meta_offsets, row)
    return Entry(
        source=entries.source_names[entries.sources[row]],
        path=entries.path(row),
        hash=entries.hashes[row].tobytes(),
        size_bytes=int(entries.sizes[row]),
        mtime_ns=int(entries.mtimes_ns[row]),
        metadata=json.loads(metadata) if metadata else {},
    )


def _document_arrays(documents: Documents) -> tuple[Arrays, dict[str, str]]:
    arrays = {"hashes": documents.hashes, "starts": documents.starts, "ends": documents.ends, "kinds": documents.kinds}
    return arrays, {"kind_names": json.dumps(documents.kind_names)}


def _entry_arrays(entries: Entries) -> tuple[Arrays, dict[str, str]]:
    names = ("hashes", "path_blob", "path_offsets", "sources", "sizes", "mtimes_ns", "meta_blob", "meta_offsets")
    return {name: getattr(entries, name) for name in names}, {"source_names": json.dumps(entries.source_names)}


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """A segment ready to be written: the bytes of each role's file."""

    files: dict[str, bytes]
    n_docs: int
    n_entries: int
    text_bytes: int
    spaces: dict[str, str]  # space name -> space id
    buckets: tuple[int, int]

    @property
    def id(self) -> str:
        digest = hashlib.sha256()
        for role, data in sorted(self.files.items()):
            digest.update(role.encode() + b"\0" + hashlib.sha256(data).digest())
        return digest.hexdigest()[:24]


def serialise(
    documents: Documents,
    entries: Entries,
    layers: Mapping[str, Arrays],
    statistics: Mapping[str, Arrays],
    spaces: Mapping[str, str],
    buckets: tuple[int, int] = (0, N_BUCKETS),
) -> SegmentBytes:
    """A segment's files. layers, statistics: by space id; spaces: name -> id; buckets: the shard's range."""
    files = {
        "docs": array_files.dump(*_document_arrays(documents)),
        "text": documents.text.tobytes(),
        "entries": array_files.dump(*_entry_arrays(entries)),
    }
    files |= {f"layer/{space}": array_files.dump(arrays) for space, arrays in layers.items()}
    files |= {f"stats/{space}": array_files.dump(arrays) for space, arrays in statistics.items()}
    text_bytes = int((documents.ends - documents.starts).sum())
    return SegmentBytes(files, len(documents), len(entries), text_bytes, dict(spaces), buckets)


def write(store: "Store", segment: SegmentBytes) -> SegmentRef:
    """Write a segment's files (nothing refers to them yet) and return the reference for a manifest page."""
    names = {role: f"segments/{segment.id}/{role.replace('/', '.')}" for role in segment.files}
    store.write_many({names[role]: data for role, data in segment.files.items() if data})
    refs = {role: FileRef.of(names[role], data) for role, data in segment.files.items()}
    return SegmentRef(
        id=segment.id,
        buckets=segment.buckets,
        n_docs=segment.n_docs,
        n_entries=segment.n_entries,
        text_bytes=segment.text_bytes,
        files=refs,
        spaces=segment.spaces,
        tombstones=None,
        n_dead_docs=0,
        n_dead_entries=0,
    )


@dataclass
class Segment:
    """An opened segment: everything is mapped on first use from local files that the cache provides."""

    ref: SegmentRef
    store: "Store"
    cache: "FileCache"
    _layers: dict[str, Arrays] = field(default_factory=dict)

    def _load(self, file: FileRef, verify: bool = False) -> tuple[Arrays, dict[str, str]]:
        path = self.cache.path(self.store, file.name, file.size, file.sha256, verify=verify, pin=True)
        try:
            return array_files.load(path)
        finally:
            self.cache.unpin(path)  # mapped: unlinking it now would only free the name

    @cached_property
    def documents(self) -> Documents:
        # What says where everything lies is always compared with its checksum: a few dozen bytes a document. Text is not, once
        # it is here: a wrong byte in it is a wrong byte in an excerpt.
        arrays, metadata = self._load(self.ref.files["docs"], verify=True)
        file = self.ref.files["text"]
        text = np.zeros(0, np.uint8)
        if file.size:
            path = self.cache.path(self.store, file.name, file.size, file.sha256, pin=True)
            text = np.memmap(path, np.uint8, "r").view(np.ndarray)
            self.cache.unpin(path)
        return Documents(text=text, kind_names=tuple(json.loads(metadata["kind_names"])), **arrays)

    @cached_property
    def entries(self) -> Entries:
        arrays, metadata = self._load(self.ref.files["entries"], verify=True)
        return Entries(source_names=tuple(json.loads(metadata["source_names"])), **arrays)

    def layer(self, space_id: str) -> Arrays | None:
        """A space's arrays; None where this segment was built without it."""
        if space_id not in self._layers:
            if f"layer/{space_id}" not in self.ref.files:
                return None
            file = self.ref.files[f"layer/{space_id}"]
            # Compiled loops check no bounds, so a flipped byte could end the process. A download was compared when it came; of a
            # local store's own files nobody has looked at one yet: 0.6 s a GB, once per process.
            self._layers[space_id] = self._load(file, verify=self.store.local_path(file.name) is not None)[0]
        return self._layers[space_id]

    def statistics(self, space_id: str, ref: SegmentRef) -> Arrays | None:
        """A space's statistics over all rows that a reference to this segment covers."""
        file = ref.files.get(f"stats/{space_id}")
        return None if file is None else self._load(file, verify=True)[0]

    def rows_in(self, buckets: tuple[int, int], hashes: Array) -> tuple[int, int]:
        """The row range [low, high) of sorted hashes that falls into a bucket range."""
        return tuple(np.searchsorted(buckets_of(hashes), buckets).tolist())


@dataclass(frozen=True, slots=True)
class Tombstones:
    """What is deleted of a segment, within the bucket range of the reference that names this file.

    documents, entries: ascending int32 rows. statistics: per space id, the deleted rows' statistics, to be subtracted.
    """

    documents: Array
    entries: Array
    statistics: dict[str, Arrays]

    def dump(self) -> bytes:
        flat: Arrays = {"documents": self.documents.astype(np.int32), "entries": self.entries.astype(np.int32)}
        for space, arrays in self.statistics.items():
            flat |= {f"stats/{space}/{name}": array for name, array in arrays.items()}
        return array_files.dump(flat)

    @classmethod
    def load(cls, data: bytes, what: str) -> "Tombstones":
        flat, _ = array_files.parse(data, what)
        statistics: dict[str, Arrays] = {}
        for name, array in flat.items():
            if name.startswith("stats/"):
                _, space, key = name.split("/", 2)
                statistics.setdefault(space, {})[key] = array
        return cls(flat["documents"], flat["entries"], statistics)

    @classmethod
    def read(cls, store: "Store", ref: SegmentRef) -> "Tombstones":
        """Those of a reference; empty where it has none."""
        if ref.tombstones is None:
            none = np.zeros(0, np.int32)
            return cls(none, none, {})
        return cls.load(check(store.read(ref.tombstones.name), ref.tombstones, store), ref.tombstones.name)


def hash_order(hashes: Array, scores: Array) -> Array:
    """Ranking order: score descending, then hash ascending (its first 8 bytes decide). Returns (n,) int64."""
    return np.lexsort((prefixes(hashes), -scores))


def dump_pack(documents: Documents) -> bytes:
    """Documents as one staging file: what a worker that read them leaves for the one that builds."""
    arrays, metadata = _document_arrays(documents)
    return array_files.dump(arrays | {"text": documents.text}, metadata)


def read_pack(store: "Store", name: str, wanted: Array) -> Documents:
    """Those of a staging file's documents whose hash is among `wanted`, (m, 20) ascending.

    Reads the file's columns and the text between the first and the last of them, so that the many shards that take their part of
    a pack read it once between them. Raises NotFound, Corrupt.
    """
    head = store.read(name, 0, _PACK_HEAD_BYTES)
    places, metadata = array_files.layout(head, f"File {name!r} in store {store.url}")
    end = max((place.end for key, place in places.items() if key != "text"), default=0)
    if end > len(head):
        head = store.read(name, 0, end)
    if end > len(head) or not {"hashes", "starts", "ends", "kinds", "text"} <= set(places):
        raise store.corrupt(name, "is cut short")
    columns = {
        key: np.frombuffer(head[place.start : place.end], place.dtype).reshape(place.shape)
        for key, place in places.items()
        if key != "text"
    }
    rows = find_rows(columns["hashes"], wanted)
    rows = rows[rows >= 0]
    starts, ends = columns["starts"][rows], columns["ends"][rows]
    first, last = (int(starts[0]), int(ends[-1])) if len(rows) else (0, 0)
    at = places["text"].start
    text = head[at + first : at + last] if at + last <= len(head) else store.read(name, at + first, at + last)
    if len(text) != last - first:
        raise store.corrupt(name, "is cut short")
    kinds = tuple(json.loads(metadata["kind_names"]))
    text_array = np.frombuffer(text, np.uint8)
    return Documents(columns["hashes"][rows], text_array, starts - first, ends - first, columns["kinds"][rows], kinds)
