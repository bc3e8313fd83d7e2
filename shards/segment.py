"""An immutable piece of a shard: documents, entries and every space's arrays, as files and as opened.

The bytes are described in FORMAT.md. A segment is named by the hash of its files, so building the same piece twice, by a
retry or by two jobs, writes the same names.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from shards import arrays as array_files
from shards.documents import Documents, Entries
from shards.entry_metadata import Metadata
from shards.given import Given, pack_arrays, unpack_arrays
from shards.identity import HASH_BYTES, N_BUCKETS, buckets_of, find_rows, prefixes
from shards.manifest import FileRef, SegmentRef, check
from shards.media import KeptMedia, pack_media
from shards.plan import extension
from shards.types import Array, Arrays, Entry

if TYPE_CHECKING:
    from shards.cache import FileCache
    from shards.entry_metadata import ColumnSource
    from shards.store import Store
    from shards.zones import Zones


_PACK_COLUMNS = ("hashes", "starts", "ends", "kinds")
_PACK_HEAD_BYTES = 1 << 15  # holds the header and the columns of a staging file of 512 documents, at 37 bytes each


def pack_entries(entries: Iterable[Entry]) -> Entries:
    """Entries sorted by (content hash, source, path), as a segment keeps them."""
    rows = sorted(entries, key=lambda e: (e.hash, e.source, e.path))
    names = tuple(sorted({e.source for e in rows}))
    number = {name: i for i, name in enumerate(names)}
    paths = [e.path.encode("utf-8", "surrogateescape") for e in rows]
    path_blob, path_offsets = array_files.pack_strings(paths)
    order = sorted(range(len(rows)), key=lambda i: (rows[i].source, paths[i]))
    metadata = Metadata.none(len(rows))
    if any(e.metadata for e in rows):
        from shards.columns import Columns

        metadata = Metadata.of(Columns.of([rows[i].metadata for i in order]))
    return Entries(
        hashes=np.frombuffer(b"".join(e.hash for e in rows), np.uint8).reshape(-1, HASH_BYTES),
        path_blob=path_blob,
        path_offsets=path_offsets,
        sources=np.array([number[e.source] for e in rows], np.uint16),
        source_names=names,
        sizes=np.array([e.size_bytes for e in rows], np.int64),
        mtimes_ns=np.array([e.mtime_ns for e in rows], np.int64),
        order=np.array(order, np.uint32),
        metadata=metadata,
        **pack_extensions([extension(e.path) for e in rows]),
    )


def pack_extensions(extensions: Sequence[str]) -> Arrays:
    """Each entry's extension as `Entries` keeps them."""
    names = sorted(set(extensions))
    number = {name: i for i, name in enumerate(names)}
    blob, offsets = array_files.pack_strings([name.encode("utf-8", "surrogateescape") for name in names])
    return {"exts": np.array([number[e] for e in extensions], np.uint32), "ext_blob": blob, "ext_offsets": offsets}


def unpack_entry(entries: Entries, row: int) -> Entry:
    """One entry as a value."""
    return Entry(
        source=entries.source_names[entries.sources[row]],
        path=entries.path(row),
        hash=entries.hashes[row].tobytes(),
        size_bytes=int(entries.sizes[row]),
        mtime_ns=int(entries.mtimes_ns[row]),
        metadata=entries.metadata.get(int(entries.places[row])),
    )


def _document_arrays(documents: Documents) -> tuple[Arrays, dict[str, str]]:
    arrays = {"hashes": documents.hashes, "starts": documents.starts, "ends": documents.ends, "kinds": documents.kinds}
    return arrays, {"kind_names": json.dumps(documents.kind_names)}


_ENTRY_ARRAYS = ("hashes", "path_blob", "path_offsets", "sources", "sizes", "mtimes_ns", "order", "exts", "ext_blob", "ext_offsets")


def _entry_arrays(entries: Entries) -> tuple[Arrays, dict[str, str]]:
    return {name: getattr(entries, name) for name in _ENTRY_ARRAYS}, {"source_names": json.dumps(entries.source_names)}


def _metadata_files(entries: Entries) -> dict[str, bytes]:
    """The two files of metadata; none where no entry has any."""
    if entries.metadata.is_empty:
        return {}
    from shards import column_files, zones

    return {"meta": column_files.dump(entries.metadata.columns.whole), "zones": zones.dump(entries.metadata.zones)}


@dataclass(frozen=True)
class SegmentBytes:
    """A segment ready to be written: the bytes of each role's file."""

    files: dict[str, bytes | memoryview]
    n_docs: int
    n_entries: int
    text_bytes: int
    spaces: dict[str, str]  # space name -> space id
    buckets: tuple[int, int]

    @cached_property
    def checksums(self) -> dict[str, bytes]:
        """The SHA-256 of each role's file."""
        return {role: hashlib.sha256(data).digest() for role, data in self.files.items()}

    @property
    def id(self) -> str:
        digest = hashlib.sha256()
        for role, checksum in sorted(self.checksums.items()):
            digest.update(role.encode() + b"\0" + checksum)
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
    files: dict[str, bytes | memoryview] = {
        "docs": array_files.dump(*_document_arrays(documents)),
        "text": documents.text.tobytes(),
        "entries": array_files.dump(*_entry_arrays(entries)),
        **_metadata_files(entries),
    }
    files |= {f"layer/{space}": array_files.assemble(arrays) for space, arrays in layers.items()}
    files |= {f"stats/{space}": array_files.dump(arrays) for space, arrays in statistics.items()}
    text_bytes = int((documents.ends - documents.starts).sum())
    return SegmentBytes(files, len(documents), len(entries), text_bytes, dict(spaces), buckets)


def write(store: "Store", segment: SegmentBytes) -> SegmentRef:
    """Write a segment's files (nothing refers to them yet) and return the reference for a manifest page."""
    names = {role: f"segments/{segment.id}/{role.replace('/', '.')}" for role in segment.files}
    store.write_many({names[role]: data for role, data in segment.files.items() if data})
    sums = segment.checksums
    refs = {role: FileRef(name=names[role], size=len(data), sha256=sums[role].hex()) for role, data in segment.files.items()}
    return SegmentRef(
        id=segment.id,
        buckets=segment.buckets,
        n_docs=segment.n_docs,
        n_entries=segment.n_entries,
        text_bytes=segment.text_bytes,
        files=refs,
        spaces=segment.spaces,
        tombstones=(),
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
    kept: dict[Any, Any] = field(default_factory=dict)  # what is made of its texts once, when it is first asked for

    def _load(self, file: FileRef, verify: bool = False) -> tuple[Arrays, dict[str, str]]:
        path = self.cache.path(self.store, file.name, file.size, file.sha256, verify=verify, pin=True)
        try:
            return array_files.load(path)
        finally:
            self.cache.unpin(path)  # mapped: unlinking it now would only free the name

    def __len__(self) -> int:
        """Documents in its files, whatever a reference covers of them."""
        return len(self._columns[0]["starts"])

    def has(self, space_id: str) -> bool:
        """Whether it was built for this space."""
        return f"layer/{space_id}" in self.ref.files

    @cached_property
    def _columns(self) -> tuple[Arrays, dict[str, str]]:
        # What says where everything lies is always compared with its checksum: a few dozen bytes a document. Text is not, once
        # it is here: a wrong byte in it is a wrong byte in an excerpt.
        return self._load(self.ref.files["docs"], verify=True)

    @property
    def hashes(self) -> Array:
        """Of all documents, ascending: (n, 20) uint8; for this the text is not fetched."""
        return self._columns[0]["hashes"]

    def some(self, rows: Array) -> Documents:
        """The documents of these ascending rows alone; of a text that is not here, only their pieces are read."""
        arrays, metadata = self._columns
        file, kinds = self.ref.files["text"], tuple(json.loads(metadata["kind_names"]))
        local = self.store.local_path(file.name) is not None or "documents" in self.__dict__
        text = memoryview(self.documents.text) if local and len(rows) else None
        items = []
        for row in rows.tolist():
            start, end = int(arrays["starts"][row]), int(arrays["ends"][row])
            body = bytes(text[start:end]) if text is not None else self.store.read(file.name, start, end) if end > start else b""
            if len(body) != end - start:
                raise self.store.corrupt(file.name, f"ends before byte {end}")
            items.append((arrays["hashes"][row].tobytes(), body, kinds[arrays["kinds"][row]]))
        return Documents.pack(items)

    @cached_property
    def documents(self) -> Documents:
        arrays, metadata = self._columns
        file = self.ref.files["text"]
        text = np.zeros(0, np.uint8)
        if file.size:
            path = self.cache.path(self.store, file.name, file.size, file.sha256, pin=True)
            text = np.memmap(path, np.uint8, "r").view(np.ndarray)
            self.cache.unpin(path)
        return Documents(text=text, kind_names=tuple(json.loads(metadata["kind_names"])), media=KeptMedia(self.store), **arrays)

    @cached_property
    def entries(self) -> Entries:
        arrays, about = self._load(self.ref.files["entries"], verify=True)
        names = tuple(json.loads(about["source_names"]))
        if "order" not in arrays:
            return _entries_of_format_1(arrays, names)
        return Entries(source_names=names, metadata=self._metadata(len(arrays["sizes"])), **arrays)

    def _metadata(self, n: int) -> Metadata:
        if "meta" not in self.ref.files:
            return Metadata.none(n)

        def columns() -> "ColumnSource":
            from shards.column_files import ColumnFile

            file = self.ref.files["meta"]
            path = self.cache.path(self.store, file.name, file.size, file.sha256, pin=True)
            try:
                return ColumnFile(path, n)
            finally:
                self.cache.unpin(path)

        def zones() -> "Zones":
            from shards.zones import load

            return load(*self._load(self.ref.files["zones"], verify=True))

        return Metadata(columns, zones)

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

    @property
    def opened(self) -> dict[str, list[Array]]:
        """What is mapped so far: arrays of spaces by their id, and those of "text" and "documents" (with their entries)."""
        held = {space: list(arrays.values()) for space, arrays in list(self._layers.items())}
        documents, entries = self.__dict__.get("documents"), self.__dict__.get("entries")
        held["text"] = [] if documents is None else [documents.text]
        held["documents"] = list(self._columns[0].values()) if "_columns" in self.__dict__ else []
        if entries is not None:
            held["documents"] += [getattr(entries, name) for name in _ENTRY_ARRAYS]
        return held

    def statistics(self, space_id: str, ref: SegmentRef) -> Arrays | None:
        """A space's statistics over all rows that a reference to this segment covers."""
        file = ref.files.get(f"stats/{space_id}")
        return None if file is None else self._load(file, verify=True)[0]

    def rows_in(self, buckets: tuple[int, int], hashes: Array) -> tuple[int, int]:
        """The row range [low, high) of sorted hashes that falls into a bucket range."""
        return tuple(np.searchsorted(buckets_of(hashes), buckets).tolist())


def _entries_of_format_1(arrays: Arrays, source_names: tuple[str, ...]) -> Entries:
    """Format 1 has neither order nor extensions, and its metadata is JSON: they are made here."""
    blob, offsets = arrays["path_blob"].tobytes(), arrays["path_offsets"].tolist()
    paths = [blob[a:b] for a, b in pairwise(offsets)]
    sources = arrays["sources"].tolist()
    order = np.array(sorted(range(len(paths)), key=lambda i: (source_names[sources[i]], paths[i])), np.uint32)
    metadata = Metadata.none(len(paths))
    if len(arrays["meta_blob"]):
        metadata = Metadata.of_json(arrays["meta_blob"], arrays["meta_offsets"], order)
    kept = {name: array for name, array in arrays.items() if not name.startswith("meta_")}
    extensions = pack_extensions([extension(path.decode("utf-8", "surrogateescape")) for path in paths])
    return Entries(source_names=source_names, order=order, metadata=metadata, **kept, **extensions)


@dataclass(frozen=True, slots=True)
class Tombstones:
    """What is deleted of a segment, within the bucket range of the reference that names the file.

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
    def of_file(cls, store: "Store", file: FileRef) -> "Tombstones":
        """Those of one file."""
        return cls.load(check(store.read(file.name), file, store), file.name)

    @classmethod
    def files(cls, store: "Store", ref: SegmentRef) -> list["Tombstones"]:
        """Those of a reference, by file: disjoint rows, whose statistics add up."""
        data = store.read_many([file.name for file in ref.tombstones])
        return [cls.load(check(part, file, store), file.name) for part, file in zip(data, ref.tombstones, strict=True)]

    @classmethod
    def read(cls, store: "Store", ref: SegmentRef) -> "Tombstones":
        """All rows that a reference buries, without statistics: adding these up is the layers' business."""
        files = cls.files(store, ref)
        none = np.zeros(0, np.int32)
        documents = np.sort(np.concatenate([none, *(file.documents for file in files)]))
        return cls(documents, np.sort(np.concatenate([none, *(file.entries for file in files)])), {})


def hash_order(hashes: Array, scores: Array) -> Array:
    """Ranking order: score descending, then hash ascending (its first 8 bytes decide). Returns (n,) int64."""
    return np.lexsort((prefixes(hashes), -scores))


def dump_pack(
    documents: Documents, given: Mapping[bytes, Given] = MappingProxyType({}), media: Mapping[bytes, bytes] = MappingProxyType({})
) -> bytes:
    """Documents as one staging file: what a worker that read them leaves for the one that builds.

    given: the callers' own vectors of those that have some, by hash. media: what is kept of them beside their text, likewise.
    """
    arrays, metadata = _document_arrays(documents)
    if given:
        vectors, names = pack_arrays(documents.hashes, given)
        arrays |= vectors
        metadata["vector_names"] = json.dumps(names)
    if media:
        arrays |= pack_media(documents.hashes, media)
    return array_files.dump(arrays | {"text": documents.text}, metadata)


def read_given(store: "Store", name: str, wanted: Array) -> dict[str, dict[bytes, Array]]:
    """The callers' own vectors in a staging file, of documents whose hash is among `wanted`: by name and hash. Raises NotFound, Corrupt."""
    head = store.read(name, 0, _PACK_HEAD_BYTES)
    places, metadata = array_files.layout(head, f"File {name!r} in store {store.url}")
    if "vector_names" not in metadata:
        return {}
    parts = {key for key in places if key.startswith("vector")} | {"hashes"}
    head = store.read(name, 0, max(places[key].end for key in parts))
    if len(head) < max(places[key].end for key in parts):
        raise store.corrupt(name, "is cut short")
    arrays = {key: np.frombuffer(head[places[key].start : places[key].end], places[key].dtype).reshape(places[key].shape) for key in parts}
    found = unpack_arrays(arrays["hashes"], arrays, json.loads(metadata["vector_names"]))
    asked = {key.tobytes() for key in wanted}
    return {name: {key: values for key, values in each.items() if key in asked} for name, each in found.items()}


def read_pack(store: "Store", name: str, wanted: Array) -> Documents:
    """Those of a staging file's documents whose hash is among `wanted`, (m, 20) ascending.

    Reads the file's columns and the text between the first and the last of them, so that the many shards that take their part of
    a pack read it once between them. Raises NotFound, Corrupt.
    """
    head = store.read(name, 0, _PACK_HEAD_BYTES)
    places, metadata = array_files.layout(head, f"File {name!r} in store {store.url}")
    end = max((place.end for key, place in places.items() if key in _PACK_COLUMNS), default=0)
    if end > len(head):
        head = store.read(name, 0, end)
    if end > len(head) or not {"hashes", "starts", "ends", "kinds", "text"} <= set(places):
        raise store.corrupt(name, "is cut short")
    columns = {
        key: np.frombuffer(head[place.start : place.end], place.dtype).reshape(place.shape)
        for key, place in places.items()
        if key in _PACK_COLUMNS
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
