"""What FORMAT.md promises of a generation beyond checksums: order, bounds, counts, sums. Each function returns what is wrong, in words."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shards import arrays as array_files
from shards.documents import Documents, Entries
from shards.identity import HASH_BYTES, as_keys, buckets_of, content_hash
from shards.manifest import Root, SegmentRef
from shards.segment import Segment, Tombstones
from shards.types import Array, Arrays

if TYPE_CHECKING:
    from shards.shard import Space


def of_documents(documents: Documents) -> Iterator[str]:
    """Hashes ascend, each once; renditions follow one another in the text, each with its line feed; kinds are named."""
    n, size = len(documents.hashes), len(documents.text)
    lengths = {len(documents.starts), len(documents.ends), len(documents.kinds)}
    if lengths != {n}:
        yield f"columns of {sorted(lengths | {n})} rows"
        return
    if not _ascends(_ordered(documents.hashes)):
        yield "hashes that do not ascend"
    if n and not (documents.kinds < len(documents.kind_names)).all():
        yield "kinds without a name"
    starts, ends = documents.starts, documents.ends
    if n and (starts[0] < 0 or (ends < starts).any() or (starts[1:] != ends[:-1] + 1).any() or ends[-1] + 1 != size):
        yield "renditions that do not fill the text one after the other"
    elif n and (documents.text[ends] != ord("\n")).any():
        yield "renditions without a line feed after them"


def of_entries(entries: Entries) -> Iterator[str]:
    """Ascending by (hash, source, path); offsets within their blob; sources are named; `order` is a permutation."""
    n = len(entries.hashes)
    if {len(entries.sources), len(entries.sizes), len(entries.mtimes_ns)} != {n}:
        yield "columns of different lengths"
        return
    offsets = entries.path_offsets
    if len(offsets) != n + 1 or offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != len(entries.path_blob):
        yield "path offsets that do not fill their blob"
        return
    if not np.array_equal(np.sort(entries.order), np.arange(n)):
        yield "an order that does not name each row once"
    if n and not (entries.sources < len(entries.source_names)).all():
        yield "sources without a name"
        return
    keys = _ordered(entries.hashes)
    if (keys[1:] < keys[:-1]).any():
        yield "hashes that do not ascend"
    for row in (np.flatnonzero(keys[1:] == keys[:-1]) + 1).tolist():
        before, here = ((entries.source_names[entries.sources[r]], entries.path(r)) for r in (row - 1, row))
        if before >= here:
            yield f"entries of one document that do not ascend, at row {row}"
            return


def of_reference(ref: SegmentRef, segment: Segment, dead: Tombstones) -> Iterator[str]:
    """The counts that a page states of a segment are those of its arrays; tombstones lie in what the reference covers."""
    documents, entries = segment.documents, segment.entries
    docs, rows = segment.rows_in(ref.buckets, documents.hashes), segment.rows_in(ref.buckets, entries.hashes)
    size = int((documents.ends - documents.starts)[slice(*docs)].sum())
    for what, stated, found in (
        ("documents", ref.n_docs, docs[1] - docs[0]),
        ("entries", ref.n_entries, rows[1] - rows[0]),
        ("bytes of text", ref.text_bytes, size),
        ("dead documents", ref.n_dead_docs, len(dead.documents)),
        ("dead entries", ref.n_dead_entries, len(dead.entries)),
    ):
        if stated != found:
            yield f"{stated:,} {what} stated, {found:,} found"
    for what, numbers, (low, high) in (("documents", dead.documents, docs), ("entries", dead.entries, rows)):
        if len(numbers) and (not _ascends(numbers) or numbers[0] < low or numbers[-1] >= high):
            yield f"tombstones of {what} outside of rows [{low}, {high}), or not ascending"


def of_shard(live_docs: Sequence[Array], live_entries: Sequence[Array]) -> Iterator[str]:
    """Each hash is a live document once at most, and has a live entry exactly as long. Live hashes of each segment, (n, 20) uint8."""
    documents = as_keys(np.concatenate(live_docs)) if live_docs else np.zeros(0, "V20")
    entries = as_keys(np.concatenate(live_entries)) if live_entries else np.zeros(0, "V20")
    unique = np.unique(documents)
    if len(unique) < len(documents):
        yield f"{len(documents) - len(unique):,} documents that live more than once"
    with_entries = np.unique(entries)
    for what, n in (
        ("live documents without an entry", len(np.setdiff1d(unique, with_entries))),
        ("live entries without a document", len(np.setdiff1d(with_entries, unique))),
    ):
        if n:
            yield f"{n:,} {what}"


def of_counts(root: Root, counted: dict[int, tuple[int, int]], text_bytes: int) -> Iterator[str]:
    """A root's counts are the sums of its shards'. counted: (live documents, live entries) found of each shard."""
    for shard in root.shards:
        if shard.shard in counted and counted[shard.shard] != (shard.n_docs, shard.n_entries):
            found = counted[shard.shard]
            stated = f"{shard.n_docs:,} documents and {shard.n_entries:,} entries stated"
            yield f"shard {shard.shard}: {stated}, {found[0]:,} and {found[1]:,} live"
    if len(counted) == len(root.shards):
        sums = tuple(map(sum, zip(*counted.values(), strict=True))) if counted else (0, 0)
        if (root.n_docs, root.n_entries) != sums:
            yield f"{root.n_docs:,} documents and {root.n_entries:,} entries stated, {sums[0]:,} and {sums[1]:,} live"
        if root.text_bytes != text_bytes:
            yield f"{root.text_bytes:,} bytes of text stated, {text_bytes:,} in its segments"


def of_tree(in_tree: Iterable[bytes], in_segments: Iterable[bytes]) -> Iterator[str]:
    """A source's tree has a row for each live entry, and no other. Digests of (path, hash)."""
    rows, entries = set(in_tree), set(in_segments)
    if rows - entries:
        yield f"{len(rows - entries):,} rows of the tree without a live entry"
    if entries - rows:
        yield f"{len(entries - rows):,} live entries that the tree does not have"


def identities(documents: Documents) -> tuple[int, Array]:
    """How many renditions are what their hash says; and the rows of those where only their renderer could tell (see FORMAT.md)."""
    others = [r for r in range(len(documents)) if content_hash(documents.content(r)) != documents.hashes[r].tobytes()]
    return len(documents) - len(others), np.array(others, np.int64)


def of_statistics(space: "Space", segment: Segment, ref: SegmentRef, dead: Sequence[Tombstones]) -> Iterator[str]:
    """Statistics, of the reference and of each file of its tombstones, equal a recount of the rows."""
    arrays, stated = segment.layer(space.id), segment.statistics(space.id, ref)
    if arrays is None or stated is None:
        return
    over_documents = space.layer.over == "documents"
    hashes = segment.documents.hashes if over_documents else segment.entries.hashes
    covered = np.arange(*segment.rows_in(ref.buckets, hashes), dtype=np.int32)
    if not _equal(space.layer.statistics(arrays, segment.documents, segment.entries, covered), stated):
        yield f"statistics of space {space.name!r} that differ from a recount"
    for file in dead:
        rows = file.documents if over_documents else file.entries
        if not len(rows):
            continue
        subtracted, recount = file.statistics.get(space.id), space.layer.statistics(arrays, segment.documents, segment.entries, rows)
        if subtracted is None or not _equal(recount, subtracted):
            yield f"statistics of space {space.name!r} in the tombstones that differ from a recount"


def of_layer(space: "Space", segment: Segment) -> Iterator[str]:
    """A layer's arrays equal what building it from the text gives; of spaces for all paths whose layer needs no model."""
    arrays = segment.layer(space.id)
    if arrays is None or space.scope or space.layer.fingerprint() or space.layer.given is not None:
        return
    if array_files.dump(space.layer.build(segment.documents, segment.entries)) != array_files.dump(arrays):
        yield f"arrays of space {space.name!r} that are not what its text gives"


def _equal(a: Arrays, b: Arrays) -> bool:
    return set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)


def _ascends(values: Array) -> bool:
    return bool((values[1:] > values[:-1]).all())


def _ordered(hashes: Array) -> Array:
    """Hashes as values that compare bytewise (opaque ones do not compare): equal lengths make the zeros that numpy strips harmless."""
    return np.ascontiguousarray(hashes).view(f"S{HASH_BYTES}").reshape(-1)


def live_rows(segment: Segment, ref: SegmentRef, dead: Tombstones) -> tuple[Array, Array]:
    """Which documents and which entries of a segment live in what a reference covers: two masks over its rows."""
    out = []
    for hashes, gone in ((segment.documents.hashes, dead.documents), (segment.entries.hashes, dead.entries)):
        live = np.zeros(len(hashes), np.bool_)
        live[slice(*np.searchsorted(buckets_of(hashes), ref.buckets).tolist())] = True
        live[gone] = False
        out.append(live)
    return out[0], out[1]
