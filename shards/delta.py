"""What a change of entries means for one shard: which rows die, which documents are new, what is to be built.

Deciding only: opened segments and entry lists in, references, tombstone files and tasks out.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shards.documents import Documents
from shards.generation import Generation
from shards.identity import bucket_of
from shards.layers import SpaceSpec
from shards.manifest import FileRef, SegmentRef, ShardPage
from shards.plan import glob_regex
from shards.segment import Tombstones, pack_entries
from shards.shard import Shard, View
from shards.store import Store
from shards.tree import TreeRow
from shards.types import Array, Entry
from shards.worker import SegmentTask, sorted_hashes

if TYPE_CHECKING:
    from shards.staging import Staging

SEGMENT_BYTES = 256 << 20  # text in one new segment: what a worker holds in memory a few times over
MAX_SEGMENTS = 8  # per shard; above it the smallest are merged with what is being written

Specs = Mapping[str, tuple[SpaceSpec, str]]  # space name -> spec and space id


@dataclass(slots=True)
class Change:
    """Differences between the source and the tree.

    settled: rows that say the same as before, but of which the next run need not be in doubt. Not worth a generation of their
    own; written with the next one.
    """

    added: list[Entry] = field(default_factory=list)
    removed: list[Entry] = field(default_factory=list)
    upserts: list[TreeRow] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)
    settled: list[TreeRow] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.upserts or self.deletes)


@dataclass(slots=True)
class ShardPlan:
    """What one shard has to do. refs: its segments with new tombstones, empty ones dropped; packs: extra staging files."""

    refs: list[SegmentRef]
    new_documents: list[bytes]
    new_entries: list[Entry]
    n_dead_documents: int
    in_scope: dict[str, Array]
    packs: tuple[str, ...] = ()


class ShardDelta:
    """Decides what entry changes mean for one shard: which rows die, which documents are new.

    staging: where it leaves documents that must be built anew.
    """

    def __init__(self, store: Store, page: ShardPage, specs: Specs, parent: Generation | None, staging: "Staging"):
        self.store, self.page, self.specs, self.parent, self.staging = store, page, specs, parent, staging
        if parent is None:
            self.views: list[View] = []
            return
        opened = [parent.segment(ref) for ref in page.segments]
        self.dead = [Tombstones.read(store, ref) for ref in page.segments]
        self.views = Shard(page, opened, self.dead, {}).views

    def decide(self, added: list[Entry], removed: list[Entry]) -> ShardPlan:
        dead_entries = [set(d.entries.tolist()) for d in self.dead] if self.views else []
        dead_docs = [set(d.documents.tolist()) for d in self.dead] if self.views else []
        leaving: dict[bytes, set[tuple[str, str]]] = {}
        for entry in removed:
            leaving.setdefault(entry.hash, set()).add((entry.source, entry.path))
        still_there: set[bytes] = {entry.hash for entry in added}
        for v, view in enumerate(self.views):
            e = view.segment.entries
            for key, row in view.entries_of_all(sorted_hashes(list(leaving))):
                if (e.source_names[e.sources[row]], e.path(row)) in leaving[key]:
                    dead_entries[v].add(row)
                else:
                    still_there.add(key)
        n_dead = 0
        unused = sorted_hashes([key for key in leaving if key not in still_there])
        for v, view in enumerate(self.views):
            rows = view.rows_of(unused)
            rows = rows[rows >= 0].tolist()
            dead_docs[v].update(rows)
            n_dead += len(rows)
        wanted = sorted_hashes([entry.hash for entry in added])
        new_rows = np.ones(len(wanted), bool)
        for view in self.views:
            new_rows &= view.rows_of(wanted) < 0
        new = [key.tobytes() for key in wanted[new_rows]]
        rewritten, in_scope, packs = self._scopes(added, removed, dead_entries, dead_docs, new)
        refs = []
        for v, ref in enumerate(self.page.segments):
            docs, entries = np.array(sorted(dead_docs[v]), np.int32), np.array(sorted(dead_entries[v]), np.int32)
            if len(docs) == ref.n_docs and len(entries) == ref.n_entries:
                continue  # nothing of it lives: dropped, and with it its statistics
            if (len(docs), len(entries)) != (ref.n_dead_docs, ref.n_dead_entries):
                ref = bury(self.store, self.parent, ref, docs, entries)
            refs.append(ref)
        return ShardPlan(refs, sorted(set(new) | set(rewritten)), added, n_dead, in_scope, packs)

    def _scopes(
        self,
        added: list[Entry],
        removed: list[Entry],
        dead_entries: list[set[int]],
        dead_docs: list[set[int]],
        new: list[bytes],
    ) -> tuple[list[bytes], dict[str, Array], tuple[str, ...]]:
        """For spaces with a scope: the documents inside, and live documents that changes of their paths moved in or out.

        The latter are rewritten: deleted where they are and built anew, from their own text and kept encodings.
        """
        scoped = {name: [glob_regex(g) for g in spec.scope] for name, (spec, _) in self.specs.items() if spec.scope}
        if not scoped:
            return [], {}, ()
        in_scope: dict[str, set[bytes]] = {name: set() for name in scoped}
        before: dict[str, set[bytes]] = {name: set() for name in scoped}
        for v, view in enumerate(self.views):
            entries = view.segment.entries
            for row in np.flatnonzero(view.live_entries).tolist():
                path, key = view.fields.paths[row], entries.hashes[row].tobytes()
                for name, globs in scoped.items():
                    if any(g.fullmatch(path) for g in globs):
                        before[name].add(key)
                        if row not in dead_entries[v]:
                            in_scope[name].add(key)
        for entry in added:
            for name, globs in scoped.items():
                if any(g.fullmatch(entry.path) for g in globs):
                    in_scope[name].add(entry.hash)
        touched = {entry.hash for entry in added} | {entry.hash for entry in removed}
        moved = {key for name in scoped for key in before[name] ^ in_scope[name] if key in touched} - set(new)
        items = []
        for v, view in enumerate(self.views):
            documents = view.segment.documents
            for key in sorted(moved):
                row = view.row_of(key)
                if row >= 0 and row not in dead_docs[v]:
                    dead_docs[v].add(row)
                    items.append((key, bytes(documents.content(row)), documents.kind_names[documents.kinds[row]]))
        packs: tuple[str, ...] = ()
        if items:
            packs = (self.staging.keep(Documents.pack(items)),)
        return [item[0] for item in items], {name: sorted_hashes(list(keys)) for name, keys in in_scope.items()}, packs


def by_shard(entries: Iterable[Entry], edges: Array) -> dict[int, list[Entry]]:
    groups: dict[int, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(int(np.searchsorted(edges, bucket_of(entry.hash), "right")) - 1, []).append(entry)
    return groups


def choose_merges(
    refs: Sequence[SegmentRef], adding: bool, wanted_ids: set[str]
) -> tuple[list[SegmentRef], tuple[SegmentRef, ...]]:
    """Which segments stay and which are rewritten: those built for other spaces, and the smallest when there are too many.

    Merging the smallest half whenever the limit is passed rewrites a document O(log n) times over the life of a shard.
    """
    merge = [r for r in refs if set(r.spaces.values()) != wanted_ids]
    if len(refs) + adding - max(0, len(merge) - 1) > MAX_SEGMENTS:
        by_size = sorted((r for r in refs if r not in merge), key=lambda r: r.text_bytes)
        merge += by_size[: MAX_SEGMENTS // 2]
    return [r for r in refs if r not in merge], tuple(merge)


def segment_tasks(
    plan: ShardPlan, page: ShardPage, packs: Mapping[bytes, str], merged: tuple[SegmentRef, ...]
) -> list[SegmentTask]:
    """The tasks of one shard: one segment, or several slices of hash space where there is much to write.

    packs: the staging file of each document that was read.
    """
    by_size = {e.hash: e.size_bytes for e in plan.new_entries}
    total = sum(by_size.values())
    n_slices = max(1, -(-total // SEGMENT_BYTES))
    low, high = page.buckets
    edges = sorted({low + i * (high - low) // n_slices for i in range(n_slices)}) + [high]
    tasks = []
    for i, (a, b) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        inside = lambda key, a=a, b=b: a <= bucket_of(key) < b  # noqa: E731
        documents = [key for key in plan.new_documents if inside(key)]
        wanted = sorted_hashes(documents)
        sources = tuple(sorted({packs[key] for key in documents if key in packs})) + plan.packs
        entries = pack_entries(e for e in plan.new_entries if inside(e.hash))
        parts = merged if i == 0 else ()
        if len(wanted) or len(entries) or parts:
            tasks.append(SegmentTask(page.shard, page.buckets, sources, wanted, entries, parts, plan.in_scope))
    return tasks


def bury(store: Store, parent: Generation, ref: SegmentRef, documents: Array, entries: Array) -> SegmentRef:
    """The reference with exactly these rows deleted: writes the tombstone file with the statistics they take away."""
    if not len(documents) and not len(entries):
        return ref
    opened = parent.segment(ref)
    documents, entries = np.sort(documents).astype(np.int32), np.sort(entries).astype(np.int32)
    statistics = {}
    for space in parent.spaces.values():
        arrays = opened.layer(space.id)
        if arrays is not None:
            rows = documents if space.layer.over == "documents" else entries
            statistics[space.id] = space.layer.statistics(arrays, opened.documents, opened.entries, rows)
    data = Tombstones(documents, entries, statistics).dump()
    file = FileRef.of(f"tombstones/{hashlib.sha256(data).hexdigest()[:24]}.st", data)
    store.write(file.name, data)
    return ref.model_copy(update={"tombstones": file, "n_dead_docs": len(documents), "n_dead_entries": len(entries)})
