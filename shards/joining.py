"""What segments hold, as one: their documents and entries together, and where each came to lie."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shards.arrays import pack_strings
from shards.documents import Documents, Entries
from shards.entry_metadata import Metadata
from shards.identity import as_keys, find_rows
from shards.types import Array


@dataclass(frozen=True, slots=True)
class Part:
    """What is kept of a segment, or of what is new. documents_kept, entries_kept: (n,) and (m,) bool."""

    documents: Documents
    entries: Entries
    documents_kept: Array
    entries_kept: Array

    @classmethod
    def whole(cls, documents: Documents, entries: Entries) -> "Part":
        return cls(documents, entries, np.ones(len(documents), bool), np.ones(len(entries), bool))


def join(parts: Sequence[Part]) -> tuple[Documents, Entries, list[Array], list[Array]]:
    """All parts as one segment, and for each part the new row of each of its documents and entries, (n,) int32, -1 where dropped."""
    documents, doc_maps = join_documents(parts)
    entries, entry_maps = join_entries(parts)
    return documents, entries, doc_maps, entry_maps


def join_documents(parts: Sequence[Part]) -> tuple[Documents, list[Array]]:
    """Documents of all parts, each hash once."""
    if len(parts) == 1 and parts[0].documents_kept.all():
        return parts[0].documents, [np.arange(len(parts[0].documents), dtype=np.int32)]
    items = [
        (d.hashes[row].tobytes(), bytes(d.content(row)), d.kind_names[d.kinds[row]])
        for d, kept in ((part.documents, part.documents_kept) for part in parts)
        for row in np.flatnonzero(kept).tolist()
    ]
    documents = Documents.pack(items)
    maps = []
    for part in parts:
        rows = find_rows(documents.hashes, part.documents.hashes).astype(np.int32)
        rows[~part.documents_kept] = -1
        maps.append(rows)
    return documents, maps


def join_entries(parts: Sequence[Part]) -> tuple[Entries, list[Array]]:
    """Entries of all parts, in their order."""
    if len(parts) == 1 and parts[0].entries_kept.all():
        return parts[0].entries, [np.arange(len(parts[0].entries), dtype=np.int32)]
    kept = [np.flatnonzero(part.entries_kept) for part in parts]
    chosen = [(part.entries, rows) for part, rows in zip(parts, kept, strict=True)]
    names = tuple(sorted({e.source_names[i] for e, rows in chosen for i in np.unique(e.sources[rows]).tolist()}))
    paths: list[bytes] = []
    for e, rows in chosen:
        blob = e.path_blob.tobytes()
        paths += [blob[a:b] for a, b in zip(e.path_offsets[rows].tolist(), e.path_offsets[rows + 1].tolist(), strict=True)]

    def column(name: str) -> Array:
        return np.concatenate([getattr(e, name)[rows] for e, rows in chosen])

    hashes = column("hashes").reshape(-1, 20)
    sources = np.concatenate([_renumbered(e.source_names, names, np.uint16)[e.sources[rows]] for e, rows in chosen])
    by_hash = _by_hash(hashes, sources, paths)
    rank = np.empty(len(by_hash), np.int64)
    rank[by_hash] = np.arange(len(by_hash))
    bounds = np.cumsum([0, *map(len, kept)])
    maps = []
    for part, rows, low, high in zip(parts, kept, bounds[:-1], bounds[1:], strict=True):
        places = np.full(len(part.entries), -1, np.int32)
        places[rows] = rank[low:high]
        maps.append(places)
    packed, offsets = pack_strings([paths[i] for i in by_hash.tolist()])
    order = rank[np.array(sorted(range(len(paths)), key=lambda i: (sources[i], paths[i])), np.int64)].astype(np.uint32)
    exts = sorted({e.ext_names[i] for e, rows in chosen for i in np.unique(e.exts[rows]).tolist()})
    ext_blob, ext_offsets = pack_strings([name.encode("utf-8", "surrogateescape") for name in exts])
    codes = np.concatenate([_renumbered(e.ext_names, exts, np.uint32)[e.exts[rows]] for e, rows in chosen])
    entries = Entries(
        hashes=hashes[by_hash],
        path_blob=packed,
        path_offsets=offsets,
        sources=sources[by_hash],
        source_names=names,
        sizes=column("sizes")[by_hash],
        mtimes_ns=column("mtimes_ns")[by_hash],
        order=order,
        exts=codes[by_hash],
        ext_blob=ext_blob,
        ext_offsets=ext_offsets,
        metadata=_metadata(parts, maps, order),
    )
    return entries, maps


def _by_hash(hashes: Array, sources: Array, paths: Sequence[bytes]) -> Array:
    """Rows in order of (hash, source, path as text): (m,) int64."""
    if not len(hashes):
        return np.zeros(0, np.int64)
    order = np.argsort(as_keys(hashes), kind="stable")
    same = (hashes[order][1:] == hashes[order][:-1]).all(axis=1)
    starts = np.flatnonzero(np.concatenate([[True], ~same]))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        if stop - start > 1:  # one document at several paths
            group = order[start:stop].tolist()
            order[start:stop] = sorted(group, key=lambda i: (sources[i], paths[i].decode("utf-8", "surrogateescape")))
    return order


def _renumbered(old: Sequence[str], new: Sequence[str], dtype: type) -> Array:
    """The number of each old name among the new ones; 0 for those that are not used any more."""
    number = {name: i for i, name in enumerate(new)}
    return np.array([number.get(name, 0) for name in old], dtype)


def _metadata(parts: Sequence[Part], maps: Sequence[Array], order: Array) -> Metadata:
    if all(part.entries.metadata.is_empty for part in parts):
        return Metadata.none(len(order))
    from shards.columns import Columns

    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    moved = []
    for part, rows in zip(parts, maps, strict=True):
        new = rows[part.entries.order]
        moved.append((part.entries.metadata.columns.whole, np.where(new >= 0, places[new], -1)))
    return Metadata.of(Columns.join(moved, len(order)))
