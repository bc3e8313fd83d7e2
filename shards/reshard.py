"""Other bucket ranges over the same segments: references move, no document, posting or vector is rewritten."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shards.arrays import dump
from shards.generation import Generation
from shards.manifest import FileRef, SegmentRef, ShardPage
from shards.segment import Tombstones
from shards.store import Store
from shards.tombstones import bury


def reshard(store: Store, parent: Generation | None, ranges: Sequence[tuple[int, int]]) -> list[ShardPage]:
    """The parent's pages cut to the new ranges: references move, nothing is rewritten but tombstones of cut segments."""
    if parent is None:
        return [ShardPage(shard=i, buckets=r, segments=()) for i, r in enumerate(ranges)]
    if [s.buckets for s in parent.root.shards] == list(ranges):
        return list(parent.pages)
    pages = []
    for number, (low, high) in enumerate(ranges):
        refs = []
        for page in parent.pages:
            for ref in page.segments:
                cut = (max(low, ref.buckets[0]), min(high, ref.buckets[1]))
                if cut[0] < cut[1]:
                    refs.append(_cut(store, parent, ref, cut))
        pages.append(ShardPage(shard=number, buckets=(low, high), segments=tuple(r for r in refs if r is not None)))
    return pages


def _cut(store: Store, parent: Generation, ref: SegmentRef, buckets: tuple[int, int]) -> SegmentRef | None:
    """A reference to part of a segment, with the tombstones of that part; None where nothing lives in it."""
    opened = parent.segment(ref)
    dead = Tombstones.read(store, ref)
    docs = opened.rows_in(buckets, opened.documents.hashes)
    entries = opened.rows_in(buckets, opened.entries.hashes)
    part = replace(
        dead,
        documents=dead.documents[(dead.documents >= docs[0]) & (dead.documents < docs[1])],
        entries=dead.entries[(dead.entries >= entries[0]) & (dead.entries < entries[1])],
    )
    n_docs = docs[1] - docs[0]
    n_entries = entries[1] - entries[0]
    if n_docs == len(part.documents) and n_entries == len(part.entries):
        return None
    sizes = (opened.documents.ends - opened.documents.starts)[docs[0] : docs[1]]
    files = dict(ref.files)
    if (n_docs, n_entries) != (ref.n_docs, ref.n_entries):
        files |= _statistics(store, parent, ref, docs, entries)
    cut = ref.model_copy(
        update={
            "buckets": buckets, "n_docs": n_docs, "n_entries": n_entries, "text_bytes": int(sizes.sum()), "files": files,
            "tombstones": (), "n_dead_docs": 0, "n_dead_entries": 0,
        }
    )  # fmt: skip
    return bury(store, parent, cut, part.documents, part.entries)


def _statistics(store: Store, parent: Generation, ref: SegmentRef, docs: tuple[int, int], entries: tuple[int, int]) -> dict[str, FileRef]:
    """Statistics files of a row range of a segment, so that each reference states the sums of just the rows it covers."""
    opened = parent.segment(ref)
    files = {}
    for space in parent.spaces.values():
        arrays = opened.layer(space.id)
        if arrays is not None:
            rows = np.arange(*(docs if space.layer.over == "documents" else entries), dtype=np.int32)
            data = dump(space.layer.statistics(arrays, opened.documents, opened.entries, rows))
            role = f"stats/{space.id}"
            files[role] = FileRef.of(f"segments/{ref.id}/{role.replace('/', '.')}.{docs[0]}-{docs[1]}-{entries[0]}-{entries[1]}", data)
            store.write(files[role].name, data)
    return files
