"""Which documents of a segment a space is built for, and the segment with more or fewer of them.

A space that is built where it is used (`SpaceSpec.built`) has arrays for some rows of a segment, as one with a scope has. Others are
added later: the arrays of the old rows and of the new are joined as when segments are merged, so nothing is encoded that is kept, and
the files of documents, texts and other spaces stay what they are. What comes of it is another segment of the same documents.
"""

import hashlib

import numpy as np

from shards import arrays as array_files
from shards.identity import buckets_of
from shards.layers.contract import Encodings, Layer, Progress
from shards.manifest import FileRef, SegmentRef
from shards.references import hashes_in
from shards.segment import Segment, Tombstones
from shards.store import Store
from shards.types import Array

_HEAD_BYTES = 1 << 12  # holds the header of a space's arrays


def built_rows(store: Store, ref: SegmentRef, space_id: str) -> Array:
    """The rows of a segment that a space (whose layer is `in_part`) is built for, dead ones included: (n,) bool; empty where it has none.

    Reads this column alone. store: the corpus's. Raises NotFound, Corrupt.
    """
    file = ref.files.get(f"layer/{space_id}")
    if file is None:
        return np.zeros(0, np.bool_)
    places, _ = array_files.layout(store.read(file.name, 0, _HEAD_BYTES), f"File {file.name!r} in store {store.url}")
    place = places["in_scope"]
    data = store.read(file.name, place.start, place.end)
    if len(data) != place.end - place.start:
        raise store.corrupt(file.name, "is cut short")
    return np.frombuffer(data, np.bool_)


def n_built(store: Store, ref: SegmentRef, space_id: str) -> int:
    """How many documents that live in what a reference covers a space is built for."""
    built = built_rows(store, ref, space_id)
    if not built.any():
        return 0
    hashes = hashes_in(store, ref)
    live = np.zeros(len(built), np.bool_)
    live[slice(*np.searchsorted(buckets_of(hashes), ref.buckets).tolist())] = True
    live[Tombstones.read(store, ref).documents] = False
    return int(np.count_nonzero(built & live))


def with_rows(
    segment: Segment,
    ref: SegmentRef,
    name: str,
    space_id: str,
    layer: Layer,
    wanted: Array,
    known: Encodings,
    progress: Progress | None = None,
) -> SegmentRef:
    """The reference with a space built for just these rows; its files are written, and nothing refers to them yet.

    wanted: (n,) bool. Of rows that it is built for already nothing is read but its arrays; the others are looked up in `known`, and
    encoded where they are not kept. Dead rows should stay as they are: tombstones take away what they had.
    """
    documents, entries = segment.documents, segment.entries
    rows = np.arange(len(segment), dtype=np.int32)
    old = segment.layer(space_id)
    pieces = []
    has = np.zeros(len(segment), np.bool_)
    if old is not None:
        has = np.asarray(old["in_scope"], np.bool_)
        pieces.append((old, np.where(wanted & has, rows, np.int32(-1))))
    added = wanted & ~has
    if added.any() or old is None:
        built = layer.build(documents, entries, added, known, progress)
        pieces.append((built, np.where(added, rows, np.int32(-1))))
    arrays = layer.merge(pieces, documents, entries)
    low, high = segment.rows_in(ref.buckets, segment.hashes)
    covered = None if (low, high) == (0, len(segment)) else np.arange(low, high, dtype=np.int32)
    data = {
        f"layer/{space_id}": array_files.dump(arrays),
        f"stats/{space_id}": array_files.dump(layer.statistics(arrays, documents, entries, covered)),
    }
    digest = hashlib.sha256(ref.id.encode())
    for role, content in sorted(data.items()):
        digest.update(role.encode() + hashlib.sha256(content).digest())
    number = digest.hexdigest()[:24]
    files = {role: FileRef.of(f"segments/{number}/{role.replace('/', '.')}", content) for role, content in data.items()}
    segment.store.write_many({files[role].name: content for role, content in data.items()})
    return ref.model_copy(update={"id": number, "files": {**ref.files, **files}, "spaces": {**ref.spaces, name: space_id}})
