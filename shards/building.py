"""What is built next of a space that is built where it is used: a decision, from what is there, what was ordered and what was shown.

First what somebody asked for (builds and pins); then a sample, the documents of the lowest hashes, which are random ones, so that the
space has a null model; then documents that answers showed, those first that weigh most for their size; then their neighbours, in the
same folder and in folders beside it, as long as the space covers no more than `NEIGHBOURS` of the corpus. Where a limit of bytes is
reached, what was not shown lately makes room for what was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from shards.globs import matching
from shards.identity import HASH_BYTES, find_rows
from shards.layer_queue import Limits, Meant, Queue
from shards.types import Array
from shards.usage import UsageCounts, folder_key, folder_of

SAMPLE = 128  # documents; moments of a null model from so many passages at least are within 10 %
UNIT = 32  # documents that are leased and encoded at once: some seconds of a transformer on a core
UNIT_BYTES = 128 << 10  # of their text, at most, unless the first alone has more
# Of the corpus's documents, beside those that were asked for: more is built only of what is shown itself. A session that touches a tenth of
# a corpus has a fifth of it built at most.
NEIGHBOURS = 0.15
BESIDE = 0.25  # what a document of a folder beside counts, of one in the same folder
ROOM = 0.9  # of a limit of bytes that is left after eviction

Reason = Literal["asked for", "sample", "shown", "neighbours"]


@dataclass(frozen=True)
class Catalogue:
    """The live documents of a generation, in the order of their hashes.

    hashes: (n, 20) uint8, ascending; sizes: (n,) int64, bytes of text; paths: the first path of each.
    """

    hashes: Array
    sizes: Array
    paths: Sequence[str]

    def __len__(self) -> int:
        return len(self.hashes)

    @cached_property
    def folders(self) -> tuple[Array, list[str]]:
        """The folder of each document, (n,) int64, and the folders' paths."""
        number: dict[str, int] = {}
        of = np.array([number.setdefault(folder_of(path), len(number)) for path in self.paths], np.int64)
        return of, list(number)

    def meant(self, orders: Sequence[Meant], space: str) -> Array:
        """The documents that orders of a space are about: (n,) bool."""
        found = np.zeros(len(self), np.bool_)
        for one in orders:
            if one.space == space:
                found |= self.in_globs(one.globs)
        return found

    def in_globs(self, globs: Sequence[str]) -> Array:
        """The documents whose first path one of these globs matches, all where there is none: (n,) bool."""
        if not globs:
            return np.ones(len(self), np.bool_)
        return np.logical_or.reduce([matching(glob, self.paths) for glob in globs])


@dataclass(frozen=True)
class Building:
    """How far a space is. scope, built, kept, taken: (n,) bool, of the catalogue's documents: what it may be built for; what it is; what is
    encoded; what other builders are at, or what cannot be encoded. bytes: of its arrays; encoded_today: documents; cost_today: what
    endpoints took for them."""

    space: str
    scope: Array
    built: Array
    kept: Array
    taken: Array
    bytes: int = 0
    encoded_today: int = 0
    cost_today: float = 0.0


@dataclass(frozen=True)
class Weights:
    """What use says of a catalogue's documents: (n,) float64 each, decayed. own: shown themselves; near: in folders of what was."""

    own: Array
    near: Array

    @classmethod
    def of(cls, catalogue: Catalogue, counts: UsageCounts, queue: Queue, space: str, now: float) -> "Weights":
        """What was evicted from a space counts only if it was shown since."""
        since = np.zeros(len(catalogue))
        for one in queue.evicted:
            if one.space == space:
                since[catalogue.in_globs(one.globs)] = one.at
        own, last = np.zeros(len(catalogue)), np.zeros(len(catalogue))
        shown_rows = find_rows(catalogue.hashes, np.frombuffer(bytes.fromhex("".join(counts.documents)), np.uint8).reshape(-1, HASH_BYTES))
        for row in shown_rows[shown_rows >= 0].tolist():
            used = counts.document(catalogue.hashes[row].tobytes(), now)
            own[row], last[row] = used.weight, used.last
        of, names = catalogue.folders
        same = [counts.folder(folder_key(name), now) for name in names]
        above: dict[str, list[int]] = {}
        for i, name in enumerate(names):
            above.setdefault(folder_of(name) if name else "/", []).append(i)
        beside = np.zeros(len(names))
        for group in above.values():
            total = sum(same[i].weight for i in group)
            for i in group:
                beside[i] = total - same[i].weight
        near = (np.array([one.weight for one in same]) + BESIDE * beside)[of] if len(names) else np.zeros(0)
        shown = np.array([one.last for one in same])[of] if len(names) else np.zeros(0)
        return cls(np.where(last >= since, own, 0.0), np.where(shown >= since, near, 0.0))


@dataclass(frozen=True, slots=True)
class Unit:
    """Documents to encode, rows of the catalogue, and why."""

    rows: Array
    reason: Reason


@dataclass(frozen=True, slots=True)
class Want:
    """Documents that a space lacks and is to have, and why. rows: of the catalogue, (n,) int64, those first that are due first."""

    rows: Array
    reason: Reason


def wants(catalogue: Catalogue, building: Building, queue: Queue, weights: Weights) -> list[Want]:
    """All that is to be encoded of a space, the most urgent first; a document may stand under several reasons.

    Limits of a day are no concern of it; where that of bytes is reached only what was ordered or shown itself is wanted.
    """
    limits = queue.limits.get(building.space, Limits())
    open_ = building.scope & ~building.built & ~building.kept & ~building.taken
    asked = catalogue.meant((*queue.builds, *queue.pins), building.space)
    full = limits.bytes is not None and building.bytes >= limits.bytes
    if full and not (building.built & ~asked & (weights.own == 0)).any():
        return []
    sampled = np.zeros(len(catalogue), np.bool_)
    sampled[np.flatnonzero(building.scope)[:SAMPLE]] = True
    evicted = np.zeros(len(catalogue), np.bool_)
    for one in queue.evicted:
        if one.space == building.space:
            evicted |= catalogue.in_globs(one.globs)
    n_scope = int(np.count_nonzero(building.scope))
    covered = int(np.count_nonzero((building.built | building.kept | building.taken) & building.scope & ~asked))
    near = np.flatnonzero(open_ & (weights.near > 0)) if not full else np.zeros(0, np.int64)
    room = max(int(NEIGHBOURS * n_scope) - covered, 0)
    found = [
        Want(np.flatnonzero(open_ & asked), "asked for"),
        Want(np.flatnonzero(open_ & sampled & ~evicted & (not full)), "sample"),
        Want(_heaviest(np.flatnonzero(open_ & (weights.own > 0)), weights.own, catalogue.sizes), "shown"),
        Want(_heaviest(near, weights.near, catalogue.sizes)[:room], "neighbours"),
    ]
    return [want for want in found if len(want.rows)]


def _heaviest(rows: Array, weights: Array, sizes: Array) -> Array:
    """Rows, those first that weigh most for their size: a long document takes as long as many short ones."""
    return rows[np.argsort(-weights[rows] / np.sqrt(sizes[rows] + 1_000.0), kind="stable")]


def choose(catalogue: Catalogue, building: Building, queue: Queue, weights: Weights) -> Unit | None:
    """The next documents of a space to encode; None where nothing is to be done, or a limit is reached."""
    limits = queue.limits.get(building.space, Limits())
    room = UNIT
    if limits.encodings_per_day is not None:
        room = min(room, limits.encodings_per_day - building.encoded_today)
    if room <= 0 or (limits.cost_per_day is not None and building.cost_today >= limits.cost_per_day):
        return None
    for want in wants(catalogue, building, queue, weights):
        rows = want.rows[:room]
        fits = np.cumsum(catalogue.sizes[rows]) <= UNIT_BYTES
        fits[0] = True
        return Unit(np.sort(rows[fits]), want.reason)
    return None


def to_evict(catalogue: Catalogue, building: Building, queue: Queue, weights: Weights) -> Array:
    """The documents that a space is to be without: (n,) bool: what evictions name, and what a limit of bytes has no room for.

    Never what is pinned; of a limit never what somebody ordered to be built; those first that were shown least.
    """
    pinned = catalogue.meant(queue.pins, building.space)
    gone = building.built & catalogue.meant(queue.evictions, building.space) & ~pinned
    limit = queue.limits.get(building.space, Limits()).bytes
    n_built = np.count_nonzero(building.built)
    if limit is None or building.bytes <= limit or not n_built:
        return gone
    weighs = building.bytes / max(int(catalogue.sizes[building.built].sum()), 1)  # bytes of arrays for one of text
    excess = building.bytes - ROOM * limit - weighs * int(catalogue.sizes[gone].sum())
    rows = np.flatnonzero(building.built & ~gone & ~pinned & ~catalogue.meant(queue.builds, building.space))
    rows = rows[np.lexsort((rows, weights.near[rows], weights.own[rows]))]
    sizes = np.cumsum(catalogue.sizes[rows]) * weighs
    n_gone = int(np.searchsorted(sizes, excess)) + 1 if excess > 0 else 0
    gone[rows[:n_gone]] = True
    return gone
