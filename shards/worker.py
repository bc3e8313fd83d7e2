"""The work of an index job that can be done anywhere: read and hash files, build one segment.

A worker holds nothing that matters. It is given file lists and names, reads and writes storage itself, and its results are
named by their content or by their task, so doing a task twice is harmless.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shards import segment as segments
from shards.cache import FileCache
from shards.corpus import Listed, Opener, Source
from shards.documents import Documents, Entries
from shards.encodings import PackedEncodings
from shards.errors import NotFound, SourceError
from shards.identity import bucket_of, find_rows
from shards.layers import SpaceSpec, create
from shards.layers.contract import Layer, Resources
from shards.manifest import SegmentRef
from shards.renditions import Skipped, render
from shards.segment import Segment, Tombstones, pack_entries, unpack_entry
from shards.store import Store
from shards.types import Array, Arrays, Entry

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageTask:
    """Files to read. name: where the result goes, a function of the files, so that a run that was cut finds it again.

    edges: (n_shards + 1,) bucket edges; each shard's documents become one pack.
    """

    name: str
    source: Source
    files: tuple[Listed, ...]
    edges: tuple[int, ...]
    max_file_bytes: int


@dataclass(frozen=True, slots=True)
class Staged:
    """What reading gave. hashes: path -> content hash of readable text; skipped: path -> reason; failed: path -> reason.

    packs: shard -> name of the staging file. size_bytes: read from the source.
    """

    hashes: dict[str, bytes]
    skipped: dict[str, str]
    failed: dict[str, str]
    packs: dict[int, str]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment to build.

    packs: staging files to take documents from; wanted: (n, 20) uint8 ascending, those to take. entries: new ones.
    parts: segments to join with them, without their dead rows. in_scope: space name -> (m, 20) ascending hashes of documents
    that a scoped space is built for.
    """

    shard: int
    buckets: tuple[int, int]
    packs: tuple[str, ...]
    wanted: Array
    entries: Entries
    parts: tuple[SegmentRef, ...] = ()
    in_scope: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Built:
    """A segment that was built, and what it cost. encoded, reused: documents encoded anew, or taken from kept encodings."""

    shard: int
    ref: SegmentRef | None
    encoded: dict[str, int]
    reused: dict[str, int]
    seconds: dict[str, float]


class _Counted:
    """Kept encodings that count what was asked of them."""

    def __init__(self, inner: PackedEncodings):
        self.inner, self.encoded, self.reused = inner, 0, 0

    def get(self, hashes: Array) -> dict[bytes, Array]:
        found = self.inner.get(hashes)
        self.reused += len(found)
        return found

    def put(self, encodings: Mapping[bytes, Array]) -> None:
        self.encoded += len(encodings)
        self.inner.put(encodings)


class Worker:
    """Reads files and builds segments of one corpus. Safe for several threads.

    store: the corpus's folder. specs: the spaces to build, with their ids.
    """

    def __init__(self, store: Store, cache: FileCache, specs: Mapping[str, tuple[SpaceSpec, str]], resources: Resources):
        self.store, self.cache = store, cache
        self.layers: dict[str, tuple[Layer, str]] = {
            name: (create(spec, resources), space_id) for name, (spec, space_id) in specs.items()
        }
        self._openers: dict[Source, Opener] = {}

    # --- reading -----------------------------------------------------------------------------------------------------------

    def stage(self, task: StageTask) -> Staged:
        """Read, hash and render files; leave their documents in the store, one pack a shard."""
        if (kept := self._kept(task)) is not None:
            return kept
        if task.source not in self._openers:
            self._openers[task.source] = Opener(task.source)
        opener = self._openers[task.source]
        result = Staged({}, {}, {}, {}, 0)
        documents: dict[bytes, tuple[bytes, str]] = {}
        size = 0
        small = [f.path for f in task.files if f.size_bytes <= task.max_file_bytes]
        for file in task.files:
            if file.size_bytes > task.max_file_bytes:
                result.skipped[file.path] = f"larger than {task.max_file_bytes} bytes"
        for path, data in opener.read_many(small):
            if isinstance(data, (SourceError, NotFound)):
                result.failed[path] = str(data)
                continue
            size += len(data)
            rendition = render(data)
            if isinstance(rendition, Skipped):
                result.skipped[path] = rendition.reason
                continue
            key = rendition.hash  # of plain text the content's own; else it covers how the text was made, as spans depend on it
            result.hashes[path] = key
            documents[key] = (rendition.text, rendition.kind)
        edges = np.asarray(task.edges)
        groups: dict[int, list[tuple[bytes, bytes, str]]] = {}
        for key, (text, kind) in documents.items():
            shard = int(np.searchsorted(edges, bucket_of(key), "right")) - 1
            groups.setdefault(shard, []).append((key, text, kind))
        for shard, items in groups.items():
            result.packs[shard] = f"{task.name}-{shard}.pack"
            self.store.write(result.packs[shard], segments.dump_pack(Documents.pack(items)))
        staged = Staged(result.hashes, result.skipped, result.failed, result.packs, size)
        if not staged.failed:  # a file that failed is tried again by the next run
            self.store.write(f"{task.name}.json", _staged_json(staged))
        return staged

    def _kept(self, task: StageTask) -> Staged | None:
        try:
            return _staged_of(json.loads(self.store.read(f"{task.name}.json")))
        except NotFound:
            return None

    # --- building ----------------------------------------------------------------------------------------------------------

    def build(self, task: SegmentTask, progress: Callable[[str, int, int], None] | None = None) -> Built:
        """Build a segment: new documents are built, joined ones are merged. ref is None where nothing is left to hold."""
        seconds: dict[str, float] = {}
        begun = time.monotonic()
        fresh = Documents.pack(self._documents(task))
        parts = [(Segment(ref, self.store, self.cache), ref) for ref in task.parts]
        documents, entries, doc_maps, entry_maps = _join(fresh, task.entries, parts, self.store)
        seconds["read"] = time.monotonic() - begun
        encoded: dict[str, int] = {}
        reused: dict[str, int] = {}
        layers: dict[str, Arrays] = {}
        statistics: dict[str, Arrays] = {}
        if not len(documents) and not len(entries):
            return Built(task.shard, None, encoded, reused, seconds)
        for name, (layer, space) in self.layers.items():
            begun = time.monotonic()
            known = _Counted(PackedEncodings(self.store, f"encodings/{space}"))
            scope = _scope_mask(documents if len(fresh) == len(documents) else fresh, task.in_scope.get(name))
            if parts and all(part.layer(space) is not None for part, _ in parts):
                pieces = [
                    (part.layer(space), (doc_maps if layer.over == "documents" else entry_maps)[i + 1])
                    for i, (part, _) in enumerate(parts)
                ]
                if len(fresh) or len(task.entries):
                    built = layer.build(fresh, task.entries, scope, known, progress)
                    pieces.append((built, (doc_maps if layer.over == "documents" else entry_maps)[0]))
                layers[space] = layer.merge(pieces, documents, entries)
            else:
                scope = _scope_mask(documents, task.in_scope.get(name))
                layers[space] = layer.build(documents, entries, scope, known, progress)
            statistics[space] = layer.statistics(layers[space], documents, entries)
            encoded[name], reused[name] = known.encoded, known.reused
            seconds[name] = time.monotonic() - begun
        begun = time.monotonic()
        spaces = {name: space for name, (_, space) in self.layers.items()}
        ref = segments.write(
            self.store, segments.serialise(documents, entries, layers, statistics, spaces, task.buckets)
        )
        seconds["write"] = time.monotonic() - begun
        return Built(task.shard, ref, encoded, reused, seconds)

    def _documents(self, task: SegmentTask) -> Iterator[tuple[bytes, bytes, str]]:
        wanted = {key.tobytes() for key in task.wanted}
        for name in task.packs:
            pack = segments.parse_pack(self.store.read(name), name)
            for row in range(len(pack)):
                key = pack.hashes[row].tobytes()
                if key in wanted:
                    yield key, bytes(pack.content(row)), pack.kind_names[pack.kinds[row]]


def _scope_mask(documents: Documents, in_scope: Array | None) -> Array | None:
    return None if in_scope is None else find_rows(in_scope, documents.hashes) >= 0


def _join(
    fresh: Documents, new_entries: Entries, parts: list[tuple[Segment, SegmentRef]], store: Store
) -> tuple[Documents, Entries, list[Array], list[Array]]:
    """Documents and entries of fresh ones and parts together, and for each (fresh first) the new row of each old row or -1."""
    if not parts:
        return fresh, new_entries, [np.arange(len(fresh), dtype=np.int32)], [np.arange(len(new_entries), dtype=np.int32)]
    items: list[tuple[bytes, bytes, str]] = [
        (fresh.hashes[r].tobytes(), bytes(fresh.content(r)), fresh.kind_names[fresh.kinds[r]]) for r in range(len(fresh))
    ]
    rows: list[Entry] = [unpack_entry(new_entries, r) for r in range(len(new_entries))]
    keys = [[(e.hash, e.source, e.path) for e in rows]]
    live_docs: list[Array] = []
    live_entries: list[Array] = []
    for part, ref in parts:
        dead = Tombstones.read(store, ref)
        docs = np.zeros(len(part.documents), bool)
        docs[slice(*part.rows_in(ref.buckets, part.documents.hashes))] = True
        docs[dead.documents] = False
        kept = np.zeros(len(part.entries), bool)
        kept[slice(*part.rows_in(ref.buckets, part.entries.hashes))] = True
        kept[dead.entries] = False
        live_docs.append(docs)
        live_entries.append(kept)
        d = part.documents
        items += [(d.hashes[r].tobytes(), bytes(d.content(r)), d.kind_names[d.kinds[r]]) for r in np.flatnonzero(docs).tolist()]
        added = [unpack_entry(part.entries, r) for r in np.flatnonzero(kept).tolist()]
        keys.append([(e.hash, e.source, e.path) for e in added])
        rows += added
    documents, entries = Documents.pack(items), pack_entries(rows)
    number = {key: i for i, key in enumerate(sorted(key for group in keys for key in group))}
    doc_maps = [find_rows(documents.hashes, fresh.hashes).astype(np.int32)]
    entry_maps = [np.array([number[key] for key in keys[0]], np.int32)]
    for (part, _), docs, kept, group in zip(parts, live_docs, live_entries, keys[1:], strict=True):
        doc_map = find_rows(documents.hashes, part.documents.hashes).astype(np.int32)
        doc_map[~docs] = -1
        doc_maps.append(doc_map)
        entry_map = np.full(len(kept), -1, np.int32)
        entry_map[np.flatnonzero(kept)] = [number[key] for key in group]
        entry_maps.append(entry_map)
    return documents, entries, doc_maps, entry_maps


def sorted_hashes(hashes: list[bytes]) -> Array:
    """Hashes as (n, 20) uint8, ascending, each once."""
    return np.frombuffer(b"".join(sorted(set(hashes))), np.uint8).reshape(-1, 20)


def _staged_json(staged: Staged) -> bytes:
    body: dict[str, Any] = {
        "hashes": {path: key.hex() for path, key in staged.hashes.items()},
        "skipped": staged.skipped,
        "packs": {str(shard): name for shard, name in staged.packs.items()},
        "size_bytes": staged.size_bytes,
    }
    return json.dumps(body).encode()


def _staged_of(body: dict[str, Any]) -> Staged:
    return Staged(
        {path: bytes.fromhex(key) for path, key in body["hashes"].items()},
        body["skipped"],
        {},
        {int(shard): name for shard, name in body["packs"].items()},
        body["size_bytes"],
    )
