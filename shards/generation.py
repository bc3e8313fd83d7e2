"""One published generation of a corpus, opened: its manifest, spaces, statistics and null models.

Hosts open its shards; coordinators its statistics. Everything here is a cache over write-once files.
"""

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.errors import NotFound
from shards.identity import bucket_of
from shards.layers import SpaceSpec, create
from shards.layers.contract import Resources
from shards.manifest import Root, SegmentRef, ShardPage, SpaceRef, check, corpus_store, latest_generation, read_page, read_root
from shards.segment import Segment, Tombstones
from shards.shard import Shard, Space

if TYPE_CHECKING:
    from shards.cache import FileCache
    from shards.corpus_nulls import CorpusNulls
    from shards.store import Store

logger = logging.getLogger(__name__)

# Documents of which the builder encodes those of the lowest hashes first (`shards.building.SAMPLE`), and how many of them moments are taken
# of: a share of hash space holds some more or less than it should, three standard deviations below 128 are 96.
SAMPLED = 96


def spec_of(ref: SpaceRef) -> SpaceSpec:
    """The spec a manifest's space was built by."""
    return SpaceSpec(ref.name, ref.layer, dict(ref.params), tuple(ref.scope), ref.built)


def open_spaces(refs: tuple[SpaceRef, ...], resources: Resources, opened: Iterable[Space] = ()) -> dict[str, Space]:
    """The layers of a manifest, by space name; models are loaded only when one is asked to encode.

    opened: spaces of an earlier generation, whose layers (and loaded models) are taken over where the ids agree.
    """
    known = {space.id: space.layer for space in opened}
    spaces = {}
    for ref in refs:
        layer = known.get(ref.space_id) or create(spec_of(ref), resources)
        problem = ""
        if layer.version != ref.version:
            problem = f"built by version {ref.version} of layer {ref.layer!r}, this build has {layer.version}: run the index job again"
        spaces[ref.name] = Space(ref.name, ref.space_id, layer, tuple(ref.scope), problem, ref.built)
    return spaces


@dataclass(frozen=True, slots=True)
class Unread:
    """What is known of a space that another version of its layer has built: how many units it has."""

    n_units: int


def _size_bytes(ref: SegmentRef) -> int:
    files = sum(file.size for file in ref.files.values())
    text = ref.files["text"].size if "text" in ref.files else 0
    return files if not text else files * min(ref.text_bytes, text) // text


@dataclass
class Generation:
    """A generation of one corpus. store: the corpus's own folder. Immutable; safe for many threads."""

    root: Root
    store: "Store"
    cache: "FileCache"
    spaces: dict[str, Space]
    segments: dict[str, Segment] = field(default_factory=dict)  # by segment id; may be shared with other generations
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _statistics: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        store: "Store",
        cache: "FileCache",
        corpus: str,
        number: int | None,
        resources: Resources,
        segments: dict[str, Segment] | None = None,
        opened: Iterable[Space] = (),
    ) -> "Generation":
        """Generation `number` (None: the newest) of a corpus below `store`. Raises NotFound, naming the corpora there are.

        segments: opened ones to share, by id; opened: see `open_spaces`.
        """
        if number is None:
            number = latest_generation(store, corpus)
        if number is None:
            from shards.manifest import list_corpora

            known = ", ".join(list_corpora(store)) or "none yet"
            raise NotFound(f"No corpus {corpus!r} in {store.url}. Known: {known}. Build it with `sondage index`.")
        return cls.of_root(read_root(store, corpus, number), store, cache, resources, segments, opened)

    @classmethod
    def of_root(
        cls,
        root: Root,
        store: "Store",
        cache: "FileCache",
        resources: Resources,
        segments: dict[str, Segment] | None = None,
        opened: Iterable[Space] = (),
    ) -> "Generation":
        """The generation of a root manifest, published or about to be."""
        share = min(SAMPLED / max(root.n_docs, 1), 1.0)
        spaces = {name: replace(space, sample=share) for name, space in open_spaces(root.spaces, resources, opened).items()}
        return cls(root, corpus_store(store, root.corpus), cache, spaces, {} if segments is None else segments)

    @cached_property
    def pages(self) -> tuple[ShardPage, ...]:
        """The manifest page of every shard, in shard order."""
        return tuple(read_page(self.store, shard.page, ShardPage) for shard in self.root.shards)

    @cached_property
    def size_bytes(self) -> tuple[int, ...]:
        """By shard, the bytes of its segments' files; of a segment that was cut, the part of them that its text is of the whole."""
        return tuple(sum(map(_size_bytes, page.segments)) for page in self.pages)

    def segment(self, ref: SegmentRef) -> Segment:
        """A segment, opened once and shared."""
        with self._lock:
            if ref.id not in self.segments:
                self.segments[ref.id] = Segment(ref, self.store, self.cache)
            return self.segments[ref.id]

    def shard(self, number: int) -> Shard:
        """Open one shard: maps its files, nothing is copied."""
        page = self.pages[number]
        pending = 0 if number else sum(source.pending for source in self.root.sources.values())  # they are in no shard: the first one tells
        tombstones = [Tombstones.read(self.store, r) for r in page.segments]
        return Shard(page, [self.segment(r) for r in page.segments], tombstones, self.spaces, pending)

    def shard_of(self, document: bytes) -> int:
        """The shard that owns a content hash."""
        bucket = bucket_of(document)
        return next(s.shard for s in self.root.shards if s.buckets[0] <= bucket < s.buckets[1])

    def statistics(self, space: str) -> Any:
        """The corpus-wide statistics of a space: the sum over segments, less that of tombstones. Collected once."""
        with self._lock:
            if space not in self._statistics:
                self._statistics[space] = self._collect(self.spaces[space])
            return self._statistics[space]

    def _collect(self, space: Space) -> Any:
        parts: list[tuple[int, dict[str, np.ndarray]]] = []
        for page in self.pages:
            for ref in page.segments:
                arrays = self.segment(ref).statistics(space.id, ref)
                if arrays is not None:
                    parts.append((1, arrays))
                for dead in Tombstones.files(self.store, ref):
                    if space.id in dead.statistics:
                        parts.append((-1, dead.statistics[space.id]))
        if space.problem:  # its sums may be others than this version's
            return Unread(sum(sign * int(arrays["n_units"][0]) for sign, arrays in parts))
        return space.layer.collect(parts)

    @cached_property
    def nulls(self) -> "CorpusNulls | None":
        """The null models this generation is judged by; None before the first fit."""
        if self.root.nulls is None:
            return None
        from shards.corpus_nulls import CorpusNulls

        data = check(self.store.read(self.root.nulls.name), self.root.nulls, self.store)
        return CorpusNulls.from_bytes(data, f"File {self.root.nulls.name!r} in store {self.store.url}")
