"""The work of an index job that can be done anywhere: read and hash files, build one segment.

A worker holds nothing that matters. It is given file lists and names, reads and writes storage itself, and its results are
named by their content or by their task, so doing a task twice is harmless.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shards import segment as segments
from shards.cache import FileCache
from shards.corpus import Listed, Opener, Source
from shards.documents import Documents, Entries
from shards.encodings import PackedEncodings
from shards.errors import Corrupt, ModelMissing, NotFound, SourceError
from shards.identity import find_rows
from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Layer, Resources
from shards.manifest import SegmentRef
from shards.plan import glob_regex
from shards.renditions import Skipped, render
from shards.segment import Segment, Tombstones, pack_entries, unpack_entry
from shards.store import Store
from shards.types import Array, Arrays, Entry

logger = logging.getLogger(__name__)

RACY_NS = 2_000_000_000  # the coarsest clock of a file system in use (FAT): two changes within it may bear the same time


@dataclass(frozen=True, slots=True)
class StageTask:
    """Files to read. name: where the result goes, a function of the files, so that a run that was cut finds it again."""

    name: str
    source: Source
    files: tuple[Listed, ...]
    max_file_bytes: int


@dataclass(frozen=True, slots=True)
class Staged:
    """What reading gave. hashes: path -> content hash of readable text; skipped: path -> reason; failed: path -> reason.

    racy: files that changed so shortly before they were read that they may change again without their time telling.
    pack: name of the staging file of the documents; "" if there are none. size_bytes: read from the source.
    kept: whether an earlier run had done the work.
    """

    hashes: dict[str, bytes] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    racy: frozenset[str] = frozenset()
    pack: str = ""
    size_bytes: int = 0
    kept: bool = False


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
        try:
            found = self.inner.get(hashes)
        except Corrupt as error:  # they only save work
            logger.warning("event=encodings_unreadable reason=%s", error)
            return {}
        self.reused += len(found)
        return found

    def put(self, encodings: Mapping[bytes, Array]) -> None:
        self.encoded += len(encodings)
        self.inner.put(encodings)


class Worker:
    """Reads files and builds segments of one corpus. Safe for several threads.

    store: the corpus's folder. specs: the spaces to build, with their ids. clock_ns: the time of day.
    """

    def __init__(
        self,
        store: Store,
        cache: FileCache,
        specs: Mapping[str, tuple[SpaceSpec, str]],
        resources: Resources,
        clock_ns: Callable[[], int] = time.time_ns,
    ):
        self.store, self.cache, self.clock_ns = store, cache, clock_ns
        self.layers: dict[str, tuple[Layer, str]] = {
            name: (create(spec, resources), space) for name, (spec, space) in specs.items()
        }
        for name, (layer, space) in self.layers.items():
            if space_id(specs[name][0], layer) != space:
                raise ModelMissing(
                    f"Layer {name!r}: this machine's model is not the one that the job was started with, so their vectors must "
                    "not be mixed. Put the same model folder on every node (SONDAGE_MODELS may be a shared folder)."
                )
        self._globs = {name: [glob_regex(glob) for glob in spec.scope] for name, (spec, _) in specs.items()}
        self._openers: dict[tuple[Source, int], Opener] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the sources that were read."""
        with self._lock:
            openers, self._openers = self._openers, {}
        for opener in openers.values():
            opener.close()

    # --- reading -----------------------------------------------------------------------------------------------------------

    def stage(self, task: StageTask) -> Staged:
        """Read, hash and render files; leave their documents in the store, in one pack."""
        if (kept := self._kept(task)) is not None:
            return kept
        opener = self._opener(task)
        begun_ns = self.clock_ns()
        hashes: dict[str, bytes] = {}
        skipped: dict[str, str] = {}
        failed: dict[str, str] = {}
        documents: dict[bytes, tuple[bytes, bytes, str]] = {}
        size = 0
        for path, data in opener.read_many([file.path for file in task.files]):
            if isinstance(data, (SourceError, NotFound)):
                failed[path] = str(data)
                continue
            size += len(data)
            rendition = render(data)
            if isinstance(rendition, Skipped):
                skipped[path] = rendition.reason
                continue
            key = rendition.hash  # of plain text the content's own; else it covers how the text was made, as spans depend on it
            hashes[path] = key
            documents[key] = (key, rendition.text, rendition.kind)
        pack = ""
        if documents:
            pack = f"{task.name}.pack"
            self.store.write(pack, segments.dump_pack(Documents.pack(documents.values())))
        racy = frozenset(f.path for f in task.files if not f.etag and f.mtime_ns > begun_ns - RACY_NS)
        staged = Staged(hashes, skipped, failed, racy, pack, size)
        if not failed:  # a file that failed is tried again by the next run
            self.store.write(f"{task.name}.json", _staged_json(staged))
        return staged

    def _opener(self, task: StageTask) -> Opener:
        with self._lock:  # opening an archive reads its directory, so each is opened once
            key = (task.source, task.max_file_bytes)
            if key not in self._openers:
                self._openers[key] = Opener(task.source, task.max_file_bytes)
            return self._openers[key]

    def _kept(self, task: StageTask) -> Staged | None:
        try:
            data = self.store.read(f"{task.name}.json")
        except NotFound:
            return None
        try:
            return _staged_of(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError):  # written by another version: read anew
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
            if parts and all(part.layer(space) is not None for part, _ in parts):
                pieces = [
                    (part.layer(space), (doc_maps if layer.over == "documents" else entry_maps)[i + 1])
                    for i, (part, _) in enumerate(parts)
                ]
                if len(fresh) or len(task.entries):
                    built = layer.build(fresh, task.entries, self._scope(name, fresh, task.entries, task), known, progress)
                    pieces.append((built, (doc_maps if layer.over == "documents" else entry_maps)[0]))
                layers[space] = layer.merge(pieces, documents, entries)
            else:
                layers[space] = layer.build(documents, entries, self._scope(name, documents, entries, task), known, progress)
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

    def _scope(self, name: str, documents: Documents, entries: Entries, task: SegmentTask) -> Array | None:
        """The rows that a space with a scope is built for: entries by their own path, documents by any of theirs; None: all."""
        if name not in task.in_scope:
            return None
        if self.layers[name][0].over == "documents":
            return find_rows(task.in_scope[name], documents.hashes) >= 0
        inside = [any(glob.fullmatch(entries.path(row)) for glob in self._globs[name]) for row in range(len(entries))]
        return np.array(inside, bool)

    def _documents(self, task: SegmentTask) -> Iterator[tuple[bytes, bytes, str]]:
        if not len(task.wanted):
            return
        with ThreadPoolExecutor(min(self.store.parallel, max(1, len(task.packs)))) as pool:
            for pack in pool.map(lambda name: self._pack(name, task.wanted), task.packs):
                for row in range(len(pack)):
                    yield pack.hashes[row].tobytes(), bytes(pack.content(row)), pack.kind_names[pack.kinds[row]]


    def _pack(self, name: str, wanted: Array) -> Documents:
        try:
            return segments.read_pack(self.store, name, wanted)
        except (Corrupt, NotFound) as error:
            # What was read can be read again; without its list nobody looks for the pack.
            self.store.delete(f"{name.removesuffix('.pack')}.json")
            raise NotFound(f"{error} Run the job again, it will read the files once more.") from None


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
        "racy": sorted(staged.racy),
        "pack": staged.pack,
        "size_bytes": staged.size_bytes,
    }
    return json.dumps(body).encode()


def _staged_of(body: dict[str, Any]) -> Staged:
    hashes = {path: bytes.fromhex(key) for path, key in body["hashes"].items()}
    return Staged(hashes, body["skipped"], {}, frozenset(body["racy"]), body["pack"], body["size_bytes"], kept=True)
