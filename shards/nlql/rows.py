"""The rows of an opened shard: every entry with every unit of its document, in order of insertion.

Made once for a shard and a way to cut, and kept with the shard: 24 bytes a row, and the spans of units where no space has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from shards.documents import Documents
from shards.layers.joined_units import ranges
from shards.layers.vectors import EncodedLayer
from shards.layers.vectors_reader import Spans, VectorReader
from shards.nlql.answers import Insertion
from shards.nlql.plan import Cut
from shards.nlql.units import cut, texts
from shards.plugins import Plugins
from shards.segment import Segment
from shards.shard import Shard
from shards.types import Array
from shards.units import Units
from shards.view import View


@dataclass(frozen=True)
class SegmentUnits:
    """The units of a segment's documents.

    row_units: (n + 1,) int64, document i has the units row_units[i] : row_units[i + 1]; starts, ends: (u,) int64, their spans
    vectors: (u,) int64, where the space's reader has the vector of each, -1 where it has none; None: all stand there in this order
    """

    row_units: Array
    starts: Array
    ends: Array
    vectors: Array | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def rows(self) -> Array:
        """The document of each unit: (u,) int32."""
        return np.repeat(np.arange(len(self.row_units) - 1, dtype=np.int32), np.diff(self.row_units))


@dataclass(frozen=True)
class Block:
    """The rows of the entries of one segment, in order of insertion; those of an entry stand together.

    view: its number in the shard; entries: (r,) int32, rows of its `Entries`, and places: (r,) uint32, the same as places in
    `Entries.order`; units: (r,) int64, numbers of units in the shard; ranks: (r,) int64, where each row stands among all of the shard
    """

    view: int
    entries: Array
    places: Array
    units: Array
    ranks: Array

    def __len__(self) -> int:
        return len(self.units)

    def n_entries(self, mask: Array) -> int:
        """Of how many entries a row is marked."""
        return self._n_entries if mask.all() else n_runs(self.entries[mask])

    @cached_property
    def _n_entries(self) -> int:
        return n_runs(self.entries)


def n_runs(numbers: Array) -> int:
    """How many stretches of equal numbers there are."""
    return int(np.count_nonzero(numbers[1:] != numbers[:-1])) + 1 if len(numbers) else 0


class ShardRows:
    """The rows of a shard for one way to cut. Immutable, but for what it works out when it is first asked.

    units: by view. bases: (views + 1,) int64, the number in the shard of each view's first unit. blocks: one for each view.
    """

    def __init__(self, shard: Shard, cut_: Cut, units: Sequence[SegmentUnits]):
        self.shard, self.cut, self.units = shard, cut_, list(units)
        self.bases = np.concatenate([[0], np.cumsum([len(each) for each in units])]).astype(np.int64)
        self.blocks = _blocks(shard, self.units, self.bases)
        self.n_units = int(self.bases[-1])
        self.encoded: dict[str, dict[int, Array]] = {}  # by space, vectors of units that were encoded at query time

    @property
    def nbytes(self) -> int:
        """What it holds beside the arrays of spaces: bytes."""
        blocks = sum(array.nbytes for block in self.blocks for array in (block.entries, block.places, block.units, block.ranks))
        spans = sum(each.starts.nbytes + each.ends.nbytes for each in self.units if each.starts.base is None)
        return blocks + spans + sum(vector.nbytes for held in list(self.encoded.values()) for vector in list(held.values()))

    def view_of(self, units: Array) -> Array:
        """The view of each unit: (m,) int64."""
        return np.searchsorted(self.bases, units, "right") - 1

    def split(self, units: Array) -> list[tuple[int, Array]]:
        """Units by the view that they are of, as (view, places in `units`); views without any are left out."""
        if len(self.units) == 1:
            return [(0, np.arange(len(units)))] if len(units) else []
        views = self.view_of(units)
        return [(v, at) for v in range(len(self.units)) if len(at := np.flatnonzero(views == v))]

    def texts(self, units: Array) -> list[str]:
        """The text of each unit."""
        found = [""] * len(units)
        for v, at in self.split(units):
            held, local = self.units[v], units[at] - self.bases[v]
            documents = self.shard.views[v].segment.documents
            pieces = texts(documents, self.cut.unit, held.rows[local], held.starts[local], held.ends[local])
            if len(at) == len(units):
                return pieces
            for i, text in zip(at.tolist(), pieces, strict=True):
                found[i] = text
        return found

    def joined(self, groups: Sequence[Array]) -> list[str]:
        """The texts of several units each, joined by one blank."""
        every = self.texts(np.concatenate([*groups, np.zeros(0, np.int64)]))
        edges = np.cumsum([0, *map(len, groups)]).tolist()
        return [" ".join(every[a:b]) for a, b in pairwise(edges)]

    def siblings(self, units: Array) -> tuple[Array, Array]:
        """The units [first, after) of the document that each unit is of: (m,) int64 each."""
        first, after = np.zeros(len(units), np.int64), np.zeros(len(units), np.int64)
        for v, at in self.split(units):
            held, base = self.units[v], self.bases[v]
            rows = held.rows[units[at] - base]
            first[at], after[at] = base + held.row_units[rows], base + held.row_units[rows + 1]
        return first, after

    def documents(self, units: Array) -> list[memoryview]:
        """The whole rendition of each unit's document, UTF-8, without a copy."""
        found: list[memoryview] = [memoryview(b"")] * len(units)
        for v, at in self.split(units):
            documents = self.shard.views[v].segment.documents
            for i, row in zip(at.tolist(), self.units[v].rows[units[at] - self.bases[v]].tolist(), strict=True):
                found[i] = documents.content(row)
        return found

    def spans(self, units: Array) -> tuple[Array, Array]:
        """Where units lie in the renditions: starts, ends (m,) int64."""
        starts, ends = np.zeros(len(units), np.int64), np.zeros(len(units), np.int64)
        for v, at in self.split(units):
            local = units[at] - self.bases[v]
            starts[at], ends[at] = self.units[v].starts[local], self.units[v].ends[local]
        return starts, ends


def rows_of(shard: Shard, cut_: Cut, plugins: Plugins) -> ShardRows:
    """The rows of a shard; made by whoever asks first, while others wait, and anew when a space could be opened that could not before."""
    space = shard.spaces.get(cut_.space)
    if space is not None:
        shard.reopened(space.name)
    with shard.keeping:
        key = (cut_, *(space is not None and space.id in view.readers for view in shard.views))
        if (kept := shard.kept.get(key)) is None:
            kept = shard.kept[key] = ShardRows(shard, cut_, [_units(shard, view, cut_, plugins) for view in shard.views])
        return kept


def _units(shard: Shard, view: View, cut_: Cut, plugins: Plugins) -> SegmentUnits:
    space = shard.spaces.get(cut_.space)
    reader = view.readers.get(space.id) if space is not None else None
    documents = view.segment.documents
    if not isinstance(reader, VectorReader):
        units = _kept_units(view.segment, cut_, documents, space.layer if space is not None else None, plugins)
        return SegmentUnits(units.of_rows(len(documents)), units.starts, units.ends, np.full(len(units.starts), -1) if space else None)
    spans = reader.spans
    missing = view.live_docs & ~spans.in_scope
    if not missing.any():
        return SegmentUnits(spans.row_units, spans.starts, spans.ends)
    return _completed(spans, _cut(documents, cut_, space.layer, missing, plugins))


def _completed(spans: Spans, more: Units) -> SegmentUnits:
    """The units that a space has, and those of documents that it lacks."""
    n = len(spans.row_units) - 1
    counts = np.where(spans.in_scope, np.diff(spans.row_units), np.bincount(more.rows, minlength=n))
    row_units = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    starts, ends, vectors = (np.full(row_units[-1], -1, np.int64) for _ in range(3))
    held = np.flatnonzero(spans.in_scope)
    sources, targets = ranges(spans.row_units[held], spans.row_units[held + 1]), ranges(row_units[held], row_units[held + 1])
    starts[targets], ends[targets], vectors[targets] = spans.starts[sources], spans.ends[sources], sources
    others = np.flatnonzero(~spans.in_scope)
    targets = ranges(row_units[others], row_units[others + 1])
    starts[targets], ends[targets] = more.starts, more.ends
    return SegmentUnits(row_units, starts, ends, vectors)


def _kept_units(segment: Segment, cut_: Cut, documents: Documents, layer: object, plugins: Plugins) -> Units:
    """Units that no space has, kept with the segment, which outlives generations; not those of splitters, which may be registered anew."""
    if plugins.splitters.find(cut_.unit) is not None:
        return _cut(documents, cut_, layer, None, plugins)
    key = (cut_.unit, repr(layer.params) if isinstance(layer, EncodedLayer) else "")
    if key not in segment.kept:
        segment.kept[key] = _cut(documents, cut_, layer, None, plugins)
    return segment.kept[key]


def _cut(documents: Documents, cut_: Cut, layer: object, scope: Array | None, plugins: Plugins) -> Units:
    if isinstance(layer, EncodedLayer):
        return layer.units(documents, scope)
    return cut(documents, cut_.unit, scope, plugins)


def _blocks(shard: Shard, units: Sequence[SegmentUnits], bases: Array) -> list[Block]:
    firsts = np.concatenate([each.row_units[:-1] + base for each, base in zip(units, bases, strict=False)] or [np.zeros(0, np.int64)])
    counts = np.concatenate([np.diff(each.row_units) for each in units] or [np.zeros(0, np.int64)])  # both by document number
    entries = [np.flatnonzero(view.live_entries & (view.entry_docs >= 0)) for view in shard.views]
    blocks, before = [], _before(shard, entries, counts)
    for v, (view, rows) in enumerate(zip(shard.views, entries, strict=True)):
        order = np.argsort(before[v], kind="stable")
        rows, documents = rows[order], view.entry_docs[rows[order]]
        n = counts[documents]
        own = ranges(firsts[documents], firsts[documents] + n)
        ranks = ranges(before[v][order], before[v][order] + n)
        entries_of_rows = np.repeat(rows, n).astype(np.int32)
        blocks.append(Block(v, entries_of_rows, view.segment.entries.places[entries_of_rows], own, ranks))
    return blocks


def _before(shard: Shard, entries: Sequence[Array], counts: Array) -> list[Array]:
    """How many rows of the shard come before the first of each entry, by view: (m,) int64 each. counts: units by document number."""
    names = sorted({name for view in shard.views for name in view.segment.entries.source_names})
    owners = np.repeat(np.arange(len(entries)), [len(rows) for rows in entries])
    rows = np.concatenate([*entries, np.zeros(0, np.int64)])
    mtimes, sources, n, own_ranks = (np.zeros(len(rows), np.int64) for _ in range(4))
    for v, view in enumerate(shard.views):
        held, own = view.segment.entries, owners == v
        codes = np.array([names.index(name) for name in held.source_names] or [0], np.int64)
        mtimes[own], sources[own] = held.mtimes_ns[rows[own]], codes[held.sources[rows[own]]]
        n[own], own_ranks[own] = counts[view.entry_docs[rows[own]]], _ranks(view.segment)[rows[own]]
    order = np.lexsort((own_ranks, owners, sources, mtimes))
    for low, high in _ties(mtimes[order], sources[order]):
        group = order[low:high]
        if (owners[group] != owners[group[0]]).any():  # of several segments
            paths = {at: shard.views[owners[at]].segment.entries.path(int(rows[at])) for at in group.tolist()}
            order[low:high] = sorted(paths, key=lambda at, paths=paths: Insertion.of(0, "", paths[at]))
    before = np.empty(len(rows), np.int64)
    before[order] = np.cumsum(n[order]) - n[order]
    return [before[owners == v] for v in range(len(entries))]


def _ranks(segment: Segment) -> Array:
    """Where each entry stands among all of its segment in order of insertion: (m,) int64; kept with the segment.

    Entries of one time and source stand in order of their paths' bytes already, but for rows of tables, whose numbers count.
    """
    if "insertion" not in segment.kept:
        entries = segment.entries
        names = sorted(entries.source_names)
        codes = np.array([names.index(name) for name in entries.source_names] or [0], np.int64)[entries.sources]
        order = np.lexsort((entries.places, codes, entries.mtimes_ns))
        if len(entries.odd) or (entries.path_blob == ord("#")).any():
            for low, high in _ties(entries.mtimes_ns[order], codes[order]):
                keys = [Insertion.of(0, "", path) for path in entries.paths(order[low:high])]
                order[low:high] = order[low:high][sorted(range(len(keys)), key=keys.__getitem__)]
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        segment.kept["insertion"] = ranks
    return segment.kept["insertion"]


def _ties(mtimes: Array, sources: Array) -> list[list[int]]:
    """Stretches [low, high) of two and more entries of one time and source."""
    same = (np.diff(mtimes) == 0) & (np.diff(sources) == 0)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    return (edges.reshape(-1, 2) + [0, 1]).tolist()
