"""Documents of this process straight into a generation: no log, no file for each, vectors that are at hand taken as they are.

What `shards/push.py` does for entries of the log this does for operations in memory: the same source, the same rows, the same segments.
Nothing is durable before `publish` returns. Others may push to the corpus meanwhile; of two that publish, one writes once more on top.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shards import pushlog
from shards.cache import FileCache
from shards.compaction import merge_step
from shards.delta import Specs
from shards.drafts import Draft, SourceChange, Tally, replace_rows, specs_of
from shards.encodings import PackedEncodings
from shards.endpoint_settings import Usage
from shards.errors import AlreadyExists, BadQuery, NotFound, StoreError
from shards.given import folder
from shards.identity import content_hash, shard_ranges
from shards.kinds import kind_of
from shards.layers.contract import Encodings, Layer, Progress, Resources
from shards.layers.vectors import VectorLayer
from shards.lease import Clock, Sleep
from shards.manifest import Root
from shards.media import KeptMedia
from shards.push import ATTEMPTS
from shards.pushlog import Operation
from shards.store import Store
from shards.tree import TreeRow
from shards.types import Array
from shards.worker import Built, SegmentTask, Worker
from shards.writing import Calibrate, Writer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Batch:
    """What is to be published together, the last of a path counting.

    units: by space and content hash, (n_units, dim) float32 of unit length for the units that the space's layer cuts: taken for encodings
    of the text.
    """

    operations: dict[str, Operation] = field(default_factory=dict)
    units: dict[str, dict[bytes, Array]] = field(default_factory=dict)
    size_bytes: int = 0

    def __len__(self) -> int:
        return len(self.operations)

    def update(self, later: "Batch") -> None:
        """Add what another batch holds, which came later."""
        self.operations |= later.operations
        for space, values in later.units.items():
            self.units.setdefault(space, {}).update(values)
        self.size_bytes += later.size_bytes

    def add(self, operation: Operation, units: Mapping[str, Array] | None = None) -> None:
        """One operation. units: of a document that brings vectors of its units, by space."""
        self.operations[operation.path] = operation
        self.size_bytes += operation.cost_bytes
        for space, values in (units or {}).items():
            self.units.setdefault(space, {})[operation.hash] = values
            self.size_bytes += values.nbytes


def put(
    path: str, text: str, metadata: Mapping[str, Any], mtime_ns: int, vectors: Mapping[str, Array] | None = None, units: bytes = b""
) -> Operation:
    """The operation that puts a text at a path. units: of vectors given for its units, what tells them from other vectors of this text.

    Raises BadQuery for text that UTF-8 cannot say.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise BadQuery(f"Document {path!r}: character {error.start} of its text is half of one (a lone surrogate).") from None
    key = content_hash(data)
    if units:
        key = content_hash(key + units)
    if vectors:
        from shards.given import identity

        key = identity(key, vectors)
    return Operation(path, key, data, kind_of(data), len(data), mtime_ns, metadata, vectors or {})


class BulkWriter:
    """Publishes batches in one corpus, making it with these specs and so many shards if need be. For one thread at a time.

    clock, sleep: to wait for others by (`shards.lease`). calibrate: fits null models, see `settle`.
    """

    def __init__(
        self,
        root_store: Store,
        corpus: str,
        cache: FileCache,
        resources: Resources,
        specs: Specs,
        n_shards: int = 1,
        calibrate: Calibrate | None = None,
        clock: Clock = time.time,
        sleep: Sleep = time.sleep,
    ):
        self._specs, self._n_shards, self._batch = specs, n_shards, Batch()
        self._writer = Writer(root_store, corpus, cache, resources, self._here, clock=clock, sleep=sleep, purpose="an engine's documents")
        self._calibrate = calibrate

    def publish(self, batch: Batch) -> Root | None:
        """A generation with these documents; None where they say nothing new.

        Raises EmbeddingError and other errors of layers, StoreError: then nothing has changed.
        """
        self._batch = batch
        try:
            for attempt in range(ATTEMPTS):
                try:
                    return self._publish(batch)
                except AlreadyExists:  # somebody else changed the same source
                    logger.debug("corpus=%s event=rebase", self._writer.corpus)
                except NotFound:  # what the parent refers to was collected since it is no longer the newest
                    if attempt == ATTEMPTS - 1:
                        raise
            raise StoreError(f"Corpus {self._writer.corpus!r}: {ATTEMPTS} others published first. Try again.")
        finally:
            self._batch = Batch()

    def merge(self, max_bytes: int | None = None) -> Root | None:
        """Join segments that are due for it; as `shards.push.Applier.merge`."""
        root = None
        while (merged := merge_step(self._writer, max_bytes=max_bytes)) is not None:
            root = merged
        return root

    def settle(self) -> Root | None:
        """Join segments, and fit null models where there are none or the corpus has changed by a tenth. None: nothing was to be done."""
        merged = self.merge()
        parent = self._writer.newest()
        if parent is None or self._calibrate is None or not parent.root.n_docs:
            return merged
        at_fit = parent.root.counters.get("docs_at_fit", 0)
        if parent.root.nulls is not None and abs(parent.root.n_docs - at_fit) * 10 <= at_fit:
            return merged
        self._writer.calibrate = self._calibrate
        try:
            return self._writer.commit(parent, Draft(specs_of(parent.root)), Tally())
        finally:
            self._writer.calibrate = None

    def close(self) -> None:
        """End what was started."""
        self._writer.close()

    def _publish(self, batch: Batch) -> Root | None:
        parent = self._writer.newest()
        specs = specs_of(parent.root) if parent else self._specs
        before = parent.root.sources.get(pushlog.SOURCE) if parent else None
        made = batch.operations.values()
        rows = [TreeRow(o.path, o.hash.hex(), o.size_bytes, o.mtime_ns, "", dict(o.metadata)) for o in made if o.hash]
        emptied = [o.path for o in made if not o.hash]
        change = replace_rows(self._writer.store, pushlog.SOURCE, before.tree if before else None, rows, emptied)
        if change.empty and parent is not None:
            return None
        source = SourceChange(pushlog.SOURCE, pushlog.URL, change, applied=before.applied if before else 0)
        ranges = None if parent else tuple(shard_ranges(self._n_shards))
        root = self._writer.commit(parent, Draft(specs, (source,), ranges=ranges), Tally())
        logger.info("corpus=%s generation=%d event=published documents=%d", root.corpus, root.generation, len(batch))
        self._writer.tidy()
        return root

    def _here(self, store: Store, specs: Specs) -> "_AtHand":
        return _AtHand(store, specs, self._writer.cache, self._writer.resources, lambda: self._batch)


class _AtHand(Worker):
    """Builds segments of documents that a batch holds: `shards.writing.Executor` in the calling thread."""

    def __init__(self, store: Store, specs: Specs, cache: FileCache, resources: Resources, batch: Callable[[], Batch]):
        super().__init__(store, cache, specs, resources)
        self._batch = batch
        for layer, _ in self.layers.values():
            if isinstance(layer, VectorLayer):
                layer.hasty = True  # merging, which a large segment of a growing corpus never waits long for, makes up for it

    def run(self, method: str, tasks: Sequence[Any]) -> Iterator[Any]:
        """Results, one after the other. Only `build` is asked for here."""
        assert method == "build"
        return map(self.build, tasks)

    def build(self, task: SegmentTask, progress: Progress | None = None) -> Built:
        built = super().build(task, progress)
        for file in built.ref.files.values() if built.ref else ():
            self.cache.trust(self.store, file.name, file.sha256)
        return built

    def documents(self, task: SegmentTask, media: KeptMedia) -> Iterator[tuple[bytes, bytes, str]]:
        wanted = {key.tobytes() for key in task.wanted}
        found = {o.hash: o for o in self._batch().operations.values() if o.hash in wanted}
        if seen := {key: o.media for key, o in found.items() if o.media}:
            media.put(seen)
        for name, layer, space in ((name, *made) for name, made in self.layers.items()):
            self._keep_own(found, name, layer, space)
        for key, o in found.items():
            yield key, o.text, o.kind
        if len(found) < len(wanted):  # those that a space's scope moves are in a pack
            rest = np.array([key.tobytes() not in found for key in task.wanted], bool)
            yield from super().documents(replace(task, wanted=task.wanted[rest]), media)

    def encodings(self, name: str, layer: Layer, space: str) -> Encodings:
        kept = PackedEncodings(self.store, folder(layer, space))
        at_hand = self._batch().units.get(name)
        return _Known(at_hand, kept) if at_hand else kept

    def _keep_own(self, found: Mapping[bytes, Operation], name: str, layer: Layer, space: str) -> None:
        """Vectors that callers gave for whole documents cannot be made again, so they are kept as those of pushed documents are."""
        if layer.given is None:
            return
        own = {key: np.asarray(o.vectors[layer.given[0]], np.float32) for key, o in found.items() if layer.given[0] in o.vectors}
        PackedEncodings(self.store, folder(layer, space)).put(own)


class _Known:
    """Encodings at hand, which are written nowhere else, before those that are kept."""

    def __init__(self, at_hand: Mapping[bytes, Array], kept: Encodings):
        self._at_hand, self._kept = at_hand, kept

    def get(self, hashes: Array) -> dict[bytes, Array]:
        keys = [key.tobytes() for key in hashes]
        known = {key: self._at_hand[key] for key in keys if key in self._at_hand}
        rest = [i for i, key in enumerate(keys) if key not in known]
        return known | self._kept.get(hashes[rest]) if rest else known

    def put(self, encodings: Mapping[bytes, Array]) -> None:
        self._kept.put(encodings)

    def spend(self, usage: Usage) -> None:
        self._kept.spend(usage)
