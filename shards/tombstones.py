"""Deleting rows of a segment: which files say so, with the statistics they take away.

A reference names several tombstone files, oldest first, each of other rows. New deletions write a new file, into which the last
ones are folded as long as they are no larger than it: so there are O(log n) files, and of n deletions each is written O(log n)
times, where one file of them all would be written n times.
"""

import hashlib

import numpy as np

from shards.generation import Generation
from shards.manifest import FileRef, SegmentRef
from shards.segment import Tombstones, pack_entries, unpack_entry
from shards.store import Store
from shards.types import Array, Arrays

FOLDED_BYTES = 8 << 10  # smaller files are always folded: what they hold costs less than a request
FEW = 8  # where fewer than 1 / FEW of the rows are dead, counting what they hold anew costs less than going through all arrays


def bury(store: Store, parent: Generation, ref: SegmentRef, documents: Array, entries: Array) -> SegmentRef:
    """The reference with these rows deleted, too. documents, entries: int32 rows, none of them deleted before."""
    if not len(documents) and not len(entries):
        return ref
    documents, entries = np.sort(documents).astype(np.int32), np.sort(entries).astype(np.int32)
    dead = {"n_dead_docs": ref.n_dead_docs + len(documents), "n_dead_entries": ref.n_dead_entries + len(entries)}
    files = list(ref.tombstones)
    data = _dump(parent, ref, documents, entries)
    while files and files[-1].size <= max(len(data), FOLDED_BYTES):
        before = Tombstones.of_file(store, files.pop())
        documents = np.union1d(documents, before.documents)
        entries = np.union1d(entries, before.entries)
        data = _dump(parent, ref, documents, entries)
    file = FileRef.of(f"tombstones/{hashlib.sha256(data).hexdigest()[:24]}.st", data)
    store.write(file.name, data)
    return ref.model_copy(update={"tombstones": (*files, file), **dead})


def _dump(parent: Generation, ref: SegmentRef, documents: Array, entries: Array) -> bytes:
    """The file of these rows."""
    segment = parent.segment(ref)
    gone = segment.some(documents) if len(documents) * FEW < len(segment) else None
    few_entries = len(entries) * FEW < len(segment.entries)
    paths = pack_entries(unpack_entry(segment.entries, row) for row in entries.tolist()) if few_entries else None
    statistics: dict[str, Arrays] = {}
    for space in parent.spaces.values():
        if not segment.has(space.id):
            continue
        over_documents = space.layer.over == "documents"
        everywhere = not space.scope and space.built == "all"
        found = None
        if everywhere and over_documents and gone is not None:
            found = space.layer.recount(gone, pack_entries(()))
        elif everywhere and not over_documents and paths is not None:
            found = space.layer.recount(segment.some(documents[:0]), paths)
        if found is None:
            arrays = segment.layer(space.id)
            assert arrays is not None
            found = space.layer.statistics(arrays, segment.documents, segment.entries, documents if over_documents else entries)
        statistics[space.id] = found
    return Tombstones(documents, entries, statistics).dump()
