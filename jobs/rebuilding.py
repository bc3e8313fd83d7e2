"""A corpus's segments built anew for an experiment, by the worker that builds all: with further spaces, or dealt out to other shards.

Nothing is read or encoded again: arrays of spaces that there are already are joined from those of the segments. What is written lies in
the corpus's folder, unreferred to, so it has to be a copy's.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from jobs.laboratory import Remembering
from shards.generation import Generation, open_spaces, spec_of
from shards.identity import N_BUCKETS
from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Resources
from shards.manifest import SegmentRef, ShardPage, SpaceRef
from shards.rewriting import successor
from shards.segment import Segment, Tombstones, pack_entries
from shards.shard import Shard
from shards.tombstones import bury
from shards.types import Array
from shards.worker import SegmentTask, Worker, sorted_hashes


def with_more_spaces(generation: Generation, specs: Sequence[SpaceSpec], resources: Resources) -> Generation:
    """The generation with further spaces, every shard being one segment. It has no null model of them; those of the others stay."""
    refs = tuple(_space_ref(spec, resources) for spec in specs)
    wanted = sorted((*generation.root.spaces, *refs), key=lambda ref: ref.name)
    pages = []
    with closing(_worker(generation, wanted, resources)) as worker:
        for page in generation.pages:
            built = _built(worker, page.shard, page.buckets, page.segments)
            pages.append(ShardPage(shard=page.shard, buckets=page.buckets, segments=() if built is None else (built,)))
    root = successor(generation.store, generation.root, pages, generation.root.sources).model_copy(update={"spaces": tuple(wanted)})
    spaces = open_spaces(refs, resources)
    spaces = {name: replace(space, layer=Remembering(space.layer)) for name, space in spaces.items()}  # type: ignore[arg-type]
    return Generation(root, generation.store, generation.cache, {**generation.spaces, **spaces})


def dealt_out(generation: Generation, shard_of: Callable[[Array], Array], n_shards: int, resources: Resources) -> list[Shard]:
    """The documents in other shards: real segments, each with the documents that one shard is given. Shards without any are left out.

    shard_of: of content hashes, (n, 20) uint8: (n,) int64, the number of each one's shard.
    """
    shards = []
    with closing(_worker(generation, generation.root.spaces, resources)) as worker:
        for number in range(n_shards):
            parts = [_only(generation, ref, shard_of, number) for page in generation.pages for ref in page.segments]
            ref = _built(worker, number, (0, N_BUCKETS), parts)
            if ref is not None:
                page = ShardPage(shard=number, buckets=(0, N_BUCKETS), segments=(ref,))
                segment = Segment(ref, generation.store, generation.cache)
                shards.append(Shard(page, [segment], [Tombstones.read(generation.store, ref)], generation.spaces))
    return shards


def _space_ref(spec: SpaceSpec, resources: Resources) -> SpaceRef:
    layer = create(spec, resources)
    return SpaceRef(
        name=spec.name,
        layer=spec.layer,
        params=layer.params.model_dump(mode="json"),
        scope=spec.scope,
        space_id=space_id(spec, layer),
        origin=layer.origin,
        granularity=layer.granularity,
        null=layer.null,
        version=layer.version,
        fingerprint=layer.fingerprint(),
    )


def _worker(generation: Generation, refs: Sequence[SpaceRef], resources: Resources) -> Worker:
    specs: Mapping[str, tuple[SpaceSpec, str]] = {ref.name: (spec_of(ref), ref.space_id) for ref in refs}
    return Worker(generation.store, generation.cache, specs, resources)


def _built(worker: Worker, shard: int, buckets: tuple[int, int], parts: Sequence[SegmentRef]) -> SegmentRef | None:
    """One segment of what lives in several; None where nothing does."""
    return worker.build(SegmentTask(shard, buckets, (), sorted_hashes([]), pack_entries(()), tuple(parts))).ref


def _only(generation: Generation, ref: SegmentRef, shard_of: Callable[[Array], Array], number: int) -> SegmentRef:
    """The reference with all rows buried that are not of documents of this shard."""
    segment, dead = generation.segment(ref), Tombstones.read(generation.store, ref)
    rows = []
    for hashes, gone in ((segment.documents.hashes, dead.documents), (segment.entries.hashes, dead.entries)):
        low, high = segment.rows_in(ref.buckets, hashes)
        elsewhere = np.zeros(len(hashes), bool)
        elsewhere[low:high] = shard_of(hashes[low:high]) != number
        elsewhere[gone] = False
        rows.append(np.flatnonzero(elsewhere).astype(np.int32))
    return bury(generation.store, generation, ref, *rows)
