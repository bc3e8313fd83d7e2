"""A corpus of one line, made and asked in memory: what it needs of code is loaded then, and whoever names a corpus does not wait for it.

Machine code, numba, pyarrow: a second's work in a process that has done nothing yet, milliseconds in any other.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from shards import segment
from shards.documents import Documents
from shards.identity import N_BUCKETS, content_hash
from shards.layers import SpaceSpec, create
from shards.layers.contract import Request, Resources
from shards.live import InMemory
from shards.manifest import ShardPage
from shards.plan import Everything, Plan
from shards.segment import Tombstones, pack_entries
from shards.shard import Shard, Space, search
from shards.types import Budget, Entry

_TEXT = b"def rehearsal(word):  # one line of a corpus that is nowhere\n    return word\n"


def make(names: Iterable[str], resources: Resources) -> Shard:
    """A shard of one document in these layers, with whose files it would be written."""
    key = content_hash(_TEXT)
    documents = Documents.pack([(key, _TEXT, "code")])
    entries = pack_entries([Entry("main", "folder/line.py", key, len(_TEXT), 1)])
    spaces = {name: Space(name, name, create(SpaceSpec(name, name), resources)) for name in names}
    arrays = {name: space.layer.build(documents, entries) for name, space in spaces.items()}
    statistics = {name: space.layer.statistics(arrays[name], documents, entries) for name, space in spaces.items()}
    segment.serialise(documents, entries, arrays, statistics, {name: name for name in spaces})
    made = InMemory(documents, entries, arrays)
    none = np.zeros(0, np.int32)
    return Shard(ShardPage(shard=0, buckets=(0, N_BUCKETS), segments=(made.ref,)), [made], [Tombstones(none, none, {})], spaces)


def ask(shard: Shard) -> int:
    """Put a question to each of its spaces; returns how many documents were found."""
    queries = []
    view = shard.views[0]
    for name, space in shard.spaces.items():
        statistics = space.layer.statistics(view.segment.layer(space.id), view.segment.documents, view.segment.entries)
        query = space.layer.prepare(Request("line"), space.layer.collect([(1, statistics)]))
        if query is not None:
            queries.append(replace(query, space=name))
    return len(search([shard], Plan(Everything(), tuple(queries)), Budget(60.0)).hashes)
