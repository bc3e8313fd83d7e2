"""What a change of entries means for one shard: which rows die, which documents are new, what is to be built.

Deciding only: opened segments and entry lists in, references, tombstone files and tasks out.
"""

import hashlib
import marshal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.documents import Documents, Entries
from shards.generation import Generation
from shards.identity import N_BUCKETS, bucket_of, find_rows, prefixes
from shards.layers import SpaceSpec
from shards.manifest import SegmentRef, ShardPage
from shards.manifest import encode as manifest_bytes
from shards.merging import Group
from shards.plan import glob_regex
from shards.segment import Segment, Tombstones, pack_entries
from shards.store import Store
from shards.tombstones import bury
from shards.tree import TreeRow
from shards.types import Array, Entry
from shards.worker import SegmentTask, sorted_hashes

if TYPE_CHECKING:
    from shards.staging import Staging

SEGMENT_BYTES = 256 << 20  # text in one new segment: what a worker holds in memory a few times over

Specs = Mapping[str, tuple[SpaceSpec, str]]  # space name -> spec and space id

_fields = attrgetter(*(field.name for field in fields(Entry)))


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


class Living:
    """What lives of a segment, by hash: enough to decide what a change means, without opening any space or the text."""

    def __init__(self, segment: Segment, ref: SegmentRef, store: Store):
        dead = Tombstones.read(store, ref)
        self.segment = segment
        self.live_docs = _live(segment.hashes, ref, segment, dead.documents)
        self.live_entries = _live(segment.entries.hashes, ref, segment, dead.entries)

    def rows_of(self, documents: Array) -> Array:
        """The rows of live documents, (n, 20) uint8 content hashes, or -1: (n,) int64."""
        rows = find_rows(self.segment.hashes, documents)
        rows[rows >= 0] = np.where(self.live_docs[rows[rows >= 0]], rows[rows >= 0], -1)
        return rows

    def entries_of(self, documents: Array) -> Iterator[tuple[bytes, int]]:
        """Yields (content hash, row) of all live entries here of these documents, (n, 20) uint8, each once."""
        return ((key, row) for key, row in entries_of(self.segment.entries, documents) if self.live_entries[row])


def entries_of(entries: Entries, documents: Array) -> Iterator[tuple[bytes, int]]:
    """Yields (content hash, row) of all entries of these documents, (n, 20) uint8, each once."""
    if not len(documents):
        return
    have, wanted = prefixes(entries.hashes), prefixes(documents)
    lows, highs = (np.searchsorted(have, wanted, side) for side in ("left", "right"))
    for i in np.flatnonzero(highs > lows).tolist():
        for row in range(lows[i], highs[i]):
            if (entries.hashes[row] == documents[i]).all():
                yield documents[i].tobytes(), row


def _live(hashes: Array, ref: SegmentRef, segment: Segment, dead: Array) -> Array:
    mask = np.zeros(len(hashes), bool)
    mask[slice(*segment.rows_in(ref.buckets, hashes))] = True
    mask[dead] = False
    return mask


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
        self.views = [Living(parent.segment(ref), ref, store) for ref in page.segments] if parent else []

    def decide(self, added: list[Entry], removed: list[Entry]) -> ShardPlan:
        dying_entries: list[set[int]] = [set() for _ in self.views]
        dying_docs: list[set[int]] = [set() for _ in self.views]
        leaving: dict[bytes, set[tuple[str, str]]] = {}
        for entry in removed:
            leaving.setdefault(entry.hash, set()).add((entry.source, entry.path))
        still_there: set[bytes] = {entry.hash for entry in added}
        for v, view in enumerate(self.views):
            e = view.segment.entries
            for key, row in view.entries_of(sorted_hashes(list(leaving))):
                if (e.source_names[e.sources[row]], e.path(row)) in leaving[key]:
                    dying_entries[v].add(row)
                else:
                    still_there.add(key)
        n_dead = 0
        unused = sorted_hashes([key for key in leaving if key not in still_there])
        for v, view in enumerate(self.views):
            rows = view.rows_of(unused)
            rows = rows[rows >= 0].tolist()
            dying_docs[v].update(rows)
            n_dead += len(rows)
        wanted = sorted_hashes([entry.hash for entry in added])
        new_rows = np.ones(len(wanted), bool)
        for view in self.views:
            new_rows &= view.rows_of(wanted) < 0
        new = [key.tobytes() for key in wanted[new_rows]]
        rewritten, in_scope, packs = self._scopes(added, removed, dying_entries, dying_docs, new)
        refs = []
        for v, ref in enumerate(self.page.segments):
            docs, entries = (np.array(sorted(rows), np.int32) for rows in (dying_docs[v], dying_entries[v]))
            if ref.n_dead_docs + len(docs) == ref.n_docs and ref.n_dead_entries + len(entries) == ref.n_entries:
                continue  # nothing of it lives: dropped, and with it its statistics
            refs.append(bury(self.store, self.parent, ref, docs, entries) if self.parent else ref)
        return ShardPlan(refs, sorted(set(new) | set(rewritten)), added, n_dead, in_scope, packs)

    def _scopes(
        self,
        added: list[Entry],
        removed: list[Entry],
        dying_entries: list[set[int]],
        dying_docs: list[set[int]],
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
                path, key = entries.path(row), entries.hashes[row].tobytes()
                for name, globs in scoped.items():
                    if any(g.fullmatch(path) for g in globs):
                        before[name].add(key)
                        if row not in dying_entries[v]:
                            in_scope[name].add(key)
        for entry in added:
            for name, globs in scoped.items():
                if any(g.fullmatch(entry.path) for g in globs):
                    in_scope[name].add(entry.hash)
        touched = {entry.hash for entry in added} | {entry.hash for entry in removed}
        moved = {key for name in scoped for key in before[name] ^ in_scope[name] if key in touched} - set(new)
        items = []
        for v, view in enumerate(self.views):
            rows = view.rows_of(sorted_hashes(list(moved)))
            rows = np.array([row for row in rows[rows >= 0].tolist() if row not in dying_docs[v]], np.int32)
            documents = view.segment.some(rows)
            dying_docs[v].update(rows.tolist())
            for row in range(len(documents)):
                key, kind = documents.hashes[row].tobytes(), documents.kind_names[documents.kinds[row]]
                items.append((key, bytes(documents.content(row)), kind))
        packs: tuple[str, ...] = ()
        if items:
            packs = (self.staging.keep(Documents.pack(items)),)
        return [item[0] for item in items], {name: sorted_hashes(list(keys)) for name, keys in in_scope.items()}, packs


def by_shard(entries: Iterable[Entry], edges: Array) -> dict[int, list[Entry]]:
    groups: dict[int, list[Entry]] = {}
    number = (np.searchsorted(edges, np.arange(N_BUCKETS), "right") - 1).tolist()  # of each bucket's shard
    for entry in entries:
        groups.setdefault(number[bucket_of(entry.hash)], []).append(entry)
    return groups


def segment_tasks(
    plan: ShardPlan, page: ShardPage, packs: Mapping[bytes, str], rewritten: Sequence[Group] = (), anew: frozenset[str] = frozenset()
) -> list[SegmentTask]:
    """The tasks of one shard: one segment of what is new, or several slices of hash space where there is much to write; and one
    for each group of segments that are rewritten.

    packs: the staging file of each document that was read. anew: as in `SegmentTask`, of segments that are rewritten.
    """
    by_size = {e.hash: e.size_bytes for e in plan.new_entries}
    total = sum(by_size.values())
    n_slices = max(1, -(-total // SEGMENT_BYTES))
    low, high = page.buckets
    edges = sorted({low + i * (high - low) // n_slices for i in range(n_slices)}) + [high]
    tasks = []
    for a, b in zip(edges[:-1], edges[1:], strict=True):
        documents = [key for key in plan.new_documents if a <= bucket_of(key) < b]
        wanted = sorted_hashes(documents)
        sources = tuple(sorted({packs[key] for key in documents if key in packs})) + plan.packs
        entries = [e for e in plan.new_entries if a <= bucket_of(e.hash) < b]
        if len(wanted) or entries:
            key = _key(page, documents, entries, (), plan.in_scope)
            tasks.append(SegmentTask(page.shard, page.buckets, sources, wanted, pack_entries(entries), (), plan.in_scope, key))
    for parts in rewritten:
        key = _key(page, [], [], parts, plan.in_scope) + b"".join(sorted(name.encode() for name in anew))
        tasks.append(SegmentTask(page.shard, page.buckets, (), sorted_hashes([]), pack_entries(()), parts, plan.in_scope, key, anew))
    return tasks


def _key(page: ShardPage, documents: list[bytes], entries: list[Entry], parts: tuple[SegmentRef, ...], in_scope: dict[str, Array]) -> bytes:
    """A hash of all that a segment is made of."""
    digest = hashlib.sha256(_bytes_of((page.shard, page.buckets, documents, list(map(_fields, entries)))))
    for part in parts:
        digest.update(manifest_bytes(part))
    for name, hashes in sorted(in_scope.items()):
        digest.update(name.encode() + hashes.tobytes())
    return digest.digest()


def _bytes_of(values: Any) -> bytes:
    """Of values without cycles: equal ones have equal bytes."""
    try:
        # The last version without references, which tell equal objects from one object; it takes a sixth of repr's time.
        return marshal.dumps(values, 2)
    except ValueError:  # a subclass of a type of JSON's
        return repr(values).encode("utf-8", "backslashreplace")
