"""The work of an index job that can be done anywhere: read and hash files, build one segment.

A worker holds nothing that matters. It is given file lists and names, reads and writes storage itself, and its results are
named by their content or by their task, so doing a task twice is harmless.
"""

import hashlib
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shards import images, pages
from shards import segment as segments
from shards.cache import FileCache
from shards.corpus import Listed, Opener, Source
from shards.documents import Documents, Entries
from shards.encodings import PackedEncodings
from shards.endpoint_settings import Usage
from shards.errors import Corrupt, ModelMissing, NotFound, SourceError
from shards.formats.process import Extractors
from shards.formats.registry import format_of
from shards.given import dims, folder
from shards.identity import find_rows
from shards.joining import Part, join
from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Encodings, Layer, Progress, Resources
from shards.manifest import SegmentRef
from shards.media import KeptMedia, read_media
from shards.opening import reason_of
from shards.plan import glob_regex
from shards.reading import Odd, Reading
from shards.rows import RowRule
from shards.segment import Segment, Tombstones
from shards.store import Store
from shards.types import Array, Arrays

logger = logging.getLogger(__name__)

RACY_NS = 2_000_000_000  # the coarsest clock of a file system in use (FAT): two changes within it may bear the same time


@dataclass(frozen=True, slots=True)
class StageTask:
    """Files to read. name: where the result goes, a function of the files, so that a run that was cut finds it again.

    sidecars, rules: of those of the files that have one, by path; images: those to be read as images; formats: names of formats to be
    read where a file has one (`shards/attached.py`).
    """

    name: str
    source: Source
    files: tuple[Listed, ...]
    max_file_bytes: int
    sidecars: Mapping[str, Listed] = field(default_factory=dict)
    rules: Mapping[str, RowRule] = field(default_factory=dict)
    images: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Staged:
    """What reading gave. hashes: path -> content hash of readable text; skipped: path -> reason; failed: path -> reason.

    racy: files that changed so shortly before they were read that they may change again without their time telling.
    pack: name of the staging file of the documents; "" if there are none. size_bytes: read from the source.
    kept: whether an earlier run had done the work. unread: how many failed, by the reason in one word.
    metadata, rows, sizes, odd: as in `shards.reading.Reading`; rows of tables are among the hashes.
    """

    hashes: dict[str, bytes] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    racy: frozenset[str] = frozenset()
    pack: str = ""
    size_bytes: int = 0
    kept: bool = False
    unread: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    odd: Odd = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment to build.

    packs: staging files to take documents from; wanted: (n, 20) uint8 ascending, those to take. entries: new ones.
    parts: segments to join with them, without their dead rows. in_scope: space name -> (m, 20) ascending hashes of documents
    that a scoped space is built for. key: equal for tasks that give the same segment, whatever packs the documents are taken from.
    anew: names of spaces that parts have for some of their documents, and that this segment is to have for all.
    """

    shard: int
    buckets: tuple[int, int]
    packs: tuple[str, ...]
    wanted: Array
    entries: Entries
    parts: tuple[SegmentRef, ...] = ()
    in_scope: dict[str, Array] = field(default_factory=dict)
    key: bytes = b""
    anew: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Built:
    """A segment that was built, and what it cost. encoded, reused: documents encoded anew, or taken from kept encodings.

    task: the key of the task that it was built for. spent: at endpoints, by space.
    """

    task: bytes
    shard: int
    ref: SegmentRef | None
    encoded: dict[str, int]
    reused: dict[str, int]
    seconds: dict[str, float]
    spent: dict[str, Usage] = field(default_factory=dict)


class _Counted:
    """Kept encodings that count what was asked of them."""

    def __init__(self, inner: Encodings):
        self.inner, self.encoded, self.reused, self.spent = inner, 0, 0, Usage()

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

    def spend(self, usage: Usage) -> None:
        self.spent += usage


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
        self._in_part = {name for name, (spec, _) in specs.items() if spec.built == "used"}
        self._globs = {name: [glob_regex(glob) for glob in spec.scope] for name, (spec, _) in specs.items()}
        self._openers: dict[tuple[Source, int], Opener] = {}
        self._extractors = Extractors()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the sources that were read, and end what read files of formats."""
        self._extractors.close()
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
        reading = Reading(dims(layer for layer, _ in self.layers.values()), self._extractors)
        failed: dict[str, str] = {}
        unread: Counter[str] = Counter()
        beside: dict[str, bytes] = {}
        subjects = {sidecar.path: path for path, sidecar in task.sidecars.items()}
        # Sidecars first, so that each file is read, used and let go.
        sizes = {file.path: file.size_bytes for file in (*task.sidecars.values(), *task.files)}
        size = 0
        for path, data in opener.read_many(sizes, sizes):
            subject = subjects.get(path, path)
            if isinstance(data, (SourceError, NotFound)):
                failed[subject] = str(data)
                unread[reason_of(data)] += 1
                continue
            size += len(data)
            if path in subjects:
                beside[subject] = data
            elif path in failed:
                pass  # without its sidecar it would lose its metadata: the next run tries again
            elif path in task.rules:
                reading.table(path, data, task.rules[path], beside.pop(path, None))
            elif path in task.images:
                reading.image(path, data, beside.pop(path, None))
            elif (known := format_of(path, task.formats)) is None or (known.is_archive and not known.begins(data)):
                reading.file(path, data, beside.pop(path, None))
            elif known.is_archive:
                reading.archive(path, data, known, task.formats, task.max_file_bytes, beside.pop(path, None))
            else:
                reading.formatted(path, data, known, beside.pop(path, None))
        pack = ""
        if (read := reading.pack()) is not None:
            # Also those of documents that the corpus has: where a kept copy was lost, reading the file again brings it back.
            KeptMedia(self.store).put(read[2])
            content = segments.dump_pack(*read)
            # By its content: of two runs with one listing, the second may read a file that was changed after the first had.
            pack = f"{task.name}.{hashlib.sha256(content).hexdigest()[:16]}.pack"
            self.store.write(pack, content)
        racy = frozenset(
            path
            for path, file in (*((f.path, f) for f in task.files), *task.sidecars.items())
            if file.may_hide_changes and file.mtime_ns > begun_ns - RACY_NS
        )
        staged = Staged(
            reading.hashes, reading.skipped, failed, racy, pack, size, unread=dict(unread),
            metadata=reading.metadata, rows=reading.rows, sizes=reading.sizes, odd=reading.odd,
        )  # fmt: skip
        # A file that failed is tried again by the next run; one without marks may be another by then.
        if not failed and all(file.is_marked for file in task.files):
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

    def build(self, task: SegmentTask, progress: Progress | None = None) -> Built:
        """Build a segment: new documents are built, joined ones are merged. ref is None where nothing is left to hold."""
        seconds: dict[str, float] = {}
        begun = time.monotonic()
        media = KeptMedia(self.store)
        fresh = replace(Documents.pack(self.documents(task, media)), media=media)
        self._keep_given(task)
        parts = [(Segment(ref, self.store, self.cache), ref) for ref in task.parts]
        live = [_live_part(part, ref, self.store) for part, ref in parts]
        documents, entries, doc_maps, entry_maps = join([Part.whole(fresh, task.entries), *live])
        documents = replace(documents, media=media)
        seconds["read"] = time.monotonic() - begun
        encoded: dict[str, int] = {}
        reused: dict[str, int] = {}
        spent: dict[str, Usage] = {}
        layers: dict[str, Arrays] = {}
        statistics: dict[str, Arrays] = {}
        if not len(documents) and not len(entries):
            return Built(task.key, task.shard, None, encoded, reused, seconds)
        for name, (layer, space) in self.layers.items():
            begun = time.monotonic()
            known = _Counted(self.encodings(name, layer, space))
            tell = _of_space(name, progress)
            if parts and name not in task.anew and all(part.layer(space) is not None for part, _ in parts):
                pieces = [
                    (part.layer(space), (doc_maps if layer.over == "documents" else entry_maps)[i + 1])
                    for i, (part, _) in enumerate(parts)
                ]
                held = _held(space, parts, self.store)
                if len(fresh) or len(task.entries):
                    built = layer.build(fresh, task.entries, self._scope(name, fresh, task.entries, task), known, tell)
                    pieces.append((built, (doc_maps if layer.over == "documents" else entry_maps)[0]))
                    held = [*held, (1, layer.statistics(built, fresh, task.entries))] if held else []
                layers[space] = layer.merge(pieces, documents, entries, held)
            else:
                layers[space] = layer.build(documents, entries, self._scope(name, documents, entries, task), known, tell)
            statistics[space] = layer.statistics(layers[space], documents, entries)
            encoded[name], reused[name] = known.encoded, known.reused
            if known.spent.requests:
                spent[name] = known.spent
            seconds[name] = time.monotonic() - begun
        begun = time.monotonic()
        spaces = {name: space for name, (_, space) in self.layers.items()}
        ref = segments.write(
            self.store, segments.serialise(documents, entries, layers, statistics, spaces, task.buckets)
        )
        seconds["write"] = time.monotonic() - begun
        return Built(task.key, task.shard, ref, encoded, reused, seconds, spent)

    def encodings(self, name: str, layer: Layer, space: str) -> Encodings:
        """What is known of documents for a space, by its name, layer and id."""
        return PackedEncodings(self.store, folder(layer, space))

    def _scope(self, name: str, documents: Documents, entries: Entries, task: SegmentTask) -> Array | None:
        """The rows that a space is built for here; None: all. Of one that is built where it is used, those that are encoded already."""
        scope = self._in_globs(name, documents, entries, task)
        if name not in self._in_part:
            return scope
        layer, space = self.layers[name]
        kept = ~PackedEncodings(self.store, folder(layer, space)).lacking(documents.hashes)
        return kept if scope is None else scope & kept

    def _in_globs(self, name: str, documents: Documents, entries: Entries, task: SegmentTask) -> Array | None:
        """The rows that a space with a scope is built for: entries by their own path, documents by any of theirs; None: all."""
        if name not in task.in_scope:
            return None
        if self.layers[name][0].over == "documents":
            return find_rows(task.in_scope[name], documents.hashes) >= 0
        inside = [any(glob.fullmatch(entries.path(row)) for glob in self._globs[name]) for row in range(len(entries))]
        return np.array(inside, bool)

    def documents(self, task: SegmentTask, media: KeptMedia) -> Iterator[tuple[bytes, bytes, str]]:
        """The documents wanted, as `Documents.pack` takes them; images that they are made from are kept on the way."""
        if not len(task.wanted):
            return
        found: set[bytes] = set()
        with ThreadPoolExecutor(min(self.store.parallel, max(1, len(task.packs)))) as pool:
            for name, pack in zip(task.packs, pool.map(lambda name: self._pack(name, task.wanted), task.packs), strict=True):
                if any(kind.partition(":")[0] in (images.KIND, pages.KIND) for kind in pack.kind_names):
                    # Here and not where spaces are built: pushed documents get dear spaces later, when their entry of the log is done with.
                    media.put(read_media(self.store, name, media.lacking(task.wanted)))
                for row in range(len(pack)):
                    key = pack.hashes[row].tobytes()
                    found.add(key)
                    yield key, bytes(pack.content(row)), pack.kind_names[pack.kinds[row]]
        if len(found) < len(task.wanted):
            raise NotFound(f"{len(task.wanted) - len(found):,} documents are in none of the staging files. Run the job again.")

    def _keep_given(self, task: SegmentTask) -> None:
        """Put the vectors that documents bring along among the kept encodings of their spaces."""
        takers = {layer.given[0]: folder(layer, space) for layer, space in self.layers.values() if layer.given is not None}
        for pack in task.packs if takers and len(task.wanted) else ():
            for name, vectors in segments.read_given(self.store, pack, task.wanted).items():
                if name in takers:
                    PackedEncodings(self.store, takers[name]).put(vectors)

    def _pack(self, name: str, wanted: Array) -> Documents:
        try:
            return segments.read_pack(self.store, name, wanted)
        except (Corrupt, NotFound) as error:
            # What was read can be read again; without its list nobody looks for the pack.
            self.store.delete(f"{name.split('.')[0]}.json")
            raise NotFound(f"{error} Run the job again, it will read the files once more.") from None


def _of_space(name: str, progress: Progress | None) -> Progress | None:
    """A progress that says which space is meant."""
    return None if progress is None else lambda step, done, total: progress(f"{step} {name}", done, total)


def _live_part(segment: Segment, ref: SegmentRef, store: Store) -> Part:
    """What a reference to a segment covers and does not bury."""
    dead = Tombstones.read(store, ref)
    documents, entries = np.zeros(len(segment.documents), bool), np.zeros(len(segment.entries), bool)
    documents[slice(*segment.rows_in(ref.buckets, segment.documents.hashes))] = True
    entries[slice(*segment.rows_in(ref.buckets, segment.entries.hashes))] = True
    documents[dead.documents] = False
    entries[dead.entries] = False
    return Part(segment.documents, segment.entries, documents, entries)


def _held(space: str, parts: list[tuple[Segment, SegmentRef]], store: Store) -> list[tuple[int, Arrays]]:
    """Statistics that add up to what lives in parts of a space; none where one of them does not state its own."""
    held: list[tuple[int, Arrays]] = []
    for part, ref in parts:
        stated = part.statistics(space, ref)
        if stated is None:
            return []
        held.append((1, stated))
        for dead in Tombstones.files(store, ref):
            if space not in dead.statistics:
                return []
            held.append((-1, dead.statistics[space]))
    return held


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
        "metadata": staged.metadata,
        "rows": staged.rows,
        "sizes": staged.sizes,
        "odd": staged.odd,
    }
    return json.dumps(body).encode()


def _staged_of(body: dict[str, Any]) -> Staged:
    hashes = {path: bytes.fromhex(key) for path, key in body["hashes"].items()}
    odd = {reason: (n, where) for reason, (n, where) in body["odd"].items()}
    return Staged(
        hashes, body["skipped"], {}, frozenset(body["racy"]), body["pack"], body["size_bytes"], kept=True,
        metadata=body["metadata"], rows=body["rows"], sizes=body["sizes"], odd=odd,
    )  # fmt: skip
