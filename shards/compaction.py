"""Doing one merge: the segments of a group become one, published as a generation that says the same as its parent.

The group is merged without the writer's lease, beside whoever else works on the corpus. Under the lease, what was deleted meanwhile
is deleted in the merged segment, too; where one of the segments is gone, somebody else merged it and the work is dropped.
"""

import hashlib
import logging
from collections.abc import Sequence

import numpy as np

from shards import manifest
from shards.delta import Specs, entries_of
from shards.drafts import Draft, Tally, buildable, specs_of
from shards.errors import NotFound
from shards.generation import Generation
from shards.identity import find_rows
from shards.manifest import Root, SegmentRef, ShardPage
from shards.merging import Group, due, live_bytes
from shards.segment import Segment, Tombstones, pack_entries, unpack_entry
from shards.tombstones import bury
from shards.types import Array
from shards.worker import SegmentTask, sorted_hashes
from shards.writing import Writer

logger = logging.getLogger(__name__)


def merge_step(writer: Writer, tally: Tally | None = None, max_bytes: int | None = None) -> Root | None:
    """Do the smallest merge that is due and publish it; returns the new root, None where there was nothing to do.

    max_bytes: leave larger ones (`merging.live_bytes`) for another time. None, too, where somebody else merged the same segments
    meanwhile. Raises StoreError: somebody else is writing, and has been for long; LeaseLost: nothing was published, try again.
    """
    parent = writer.newest()
    if parent is None:
        return None
    able = buildable(parent.root, writer.resources)
    specs = {name: spec for name, spec in specs_of(parent.root).items() if name in able}
    for page, group in _waiting(parent.pages, specs):
        if max_bytes is None or sum(map(live_bytes, group)) <= max_bytes:
            return _merge(writer, parent, page, group, specs, tally or Tally())
        break
    return None


def _waiting(pages: Sequence[ShardPage], specs: Specs) -> list[tuple[ShardPage, Group]]:
    """The groups that are due and can be merged here, those first that take least."""
    known = {(name, space) for name, (_, space) in specs.items()}
    found = [(page, group) for page in pages for group in due(page.segments) if set(group[0].spaces.items()) <= known]
    return sorted(found, key=lambda item: (sum(map(live_bytes, item[1])), item[0].shard))


def _merge(writer: Writer, parent: Generation, page: ShardPage, group: Group, specs: Specs, tally: Tally) -> Root | None:
    key = hashlib.sha256(b"".join(map(manifest.encode, group))).digest()
    task = SegmentTask(page.shard, page.buckets, (), sorted_hashes([]), pack_entries(()), group, {}, key)
    try:
        built = writer.build([task], {name: specs[name] for name in group[0].spaces}, tally).get(page.shard, [])
        with writer.lease() as held:
            newest = writer.newest()
            assert newest is not None
            pages = _replaced(newest, page, group, built)
            if pages is None:
                return None
            root = writer.publish(held, writer.root(newest, Draft(specs_of(newest.root)), pages, {}), newest.root)
    except NotFound as error:  # a segment was collected, since somebody else merged it
        logger.info("corpus=%s event=merge_dropped reason=%s", writer.corpus, error)
        return None
    finally:
        writer.forget()
    logger.info("corpus=%s generation=%d event=merged shard=%d segments=%d", writer.corpus, root.generation, page.shard, len(group))
    return root


def _replaced(newest: Generation, page: ShardPage, group: Group, built: Sequence[SegmentRef]) -> list[ShardPage] | None:
    """The newest pages with the merged segment, if anything lives in it, in place of the group; None where that is gone."""
    pages = list(newest.pages)
    at = next((i for i, other in enumerate(pages) if other.buckets == page.buckets), None)
    if at is None:
        return None
    now = {_place(ref): ref for ref in pages[at].segments}
    if any(_place(old) not in now for old in group):
        return None
    merged = [ref for ref in (_without(newest, group, [now[_place(old)] for old in group], ref) for ref in built) if ref is not None]
    first, places = _place(group[0]), set(map(_place, group))
    segments: list[SegmentRef] = []
    for ref in pages[at].segments:
        segments += merged if _place(ref) == first else [] if _place(ref) in places else [ref]
    pages[at] = pages[at].model_copy(update={"segments": tuple(segments)})
    return pages


def _place(ref: SegmentRef) -> tuple[str, tuple[int, int]]:
    """What tells a reference from all others of a page: once shards were split and joined again, several refer to one segment."""
    return ref.id, ref.buckets


def _without(newest: Generation, before: Group, after: Sequence[SegmentRef], merged: SegmentRef) -> SegmentRef | None:
    """The merged segment without what was deleted of its parts since they were merged; None where nothing is left."""
    store, segment = newest.store, newest.segment(merged)
    documents, entries = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for old, new in zip(before, after, strict=True):
        if old.tombstones == new.tombstones:
            continue
        part, was, now = newest.segment(old), Tombstones.read(store, old), Tombstones.read(store, new)
        documents.append(find_rows(segment.hashes, part.hashes[np.setdiff1d(now.documents, was.documents)]))
        entries.append(_entry_rows(segment, part, np.setdiff1d(now.entries, was.entries)))
    dead_documents, dead_entries = (np.concatenate(rows).astype(np.int32) for rows in (documents, entries))
    if (len(dead_documents), len(dead_entries)) == (merged.n_docs, merged.n_entries):
        return None
    return bury(store, newest, merged, dead_documents, dead_entries)


def _entry_rows(segment: Segment, part: Segment, rows: Array) -> Array:
    """Where entries of a part lie in the segment that it was merged into."""
    leaving = {(e.hash, e.source, e.path) for e in (unpack_entry(part.entries, row) for row in rows.tolist())}
    entries, found = segment.entries, []
    for key, row in entries_of(entries, sorted_hashes([key for key, _, _ in leaving])):
        if (key, entries.source_names[entries.sources[row]], entries.path(row)) in leaving:
            found.append(row)
    return np.array(found, np.int32)
