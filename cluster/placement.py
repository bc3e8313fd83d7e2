"""Which node serves which shard: even, within each node's memory, and loading as little as can be.

Nothing is written down about it. What keeps shards where they are is what hosts hold: every ping tells which shards a host has
open, and `layout` gives the most even placement that loads the fewest bytes beside those, exactly (`cluster/assignment.py`); ties go
by rendezvous hashing (Thaler & Ravishankar 1998). So coordinators that see the same hosts agree without talking to one another, and
stay agreed on the way: the result is the least of (bytes to load, sum of hashes); opening what it wants makes it cheaper by at least
as much as any other placement, and closing what it does not want makes only others dearer. (Exact while memory is no limit; where it
is, shards of unlike sizes are packed by a rule of thumb.)

Rejected: a function of names alone. It is stateless, but no such function moves little for every change: going from 4 shards on 4
nodes to 8 can move nothing, and for a fifth node one of the 8 has to move, where rendezvous hashing with quotas moved 2.6 (mean of 300
drawings; at most 5).
Also a table in the store, which coordinators that see different nodes would fight over, and which is lost to readers without write
access; a ring with virtual nodes (uneven); Maglev's table (Eisenbud et al. 2016; moves shards between nodes that neither came nor
went).
"""

import hashlib
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cluster.assignment import NEVER, assign
from shards.identity import N_BUCKETS, bucket_of, shard_ranges

ShardName = TypeVar("ShardName", bound=Hashable)
Placement = Mapping[ShardName, tuple[str, ...]]
Nodes = tuple[tuple[str, ...], ...]  # by shard number: the nodes of its copies, the preferred one first
Held = Mapping[str, Iterable[tuple[int, int]]]  # node -> (number of shards, shard) of what it has open

TASTE_BITS = 16  # of the hash that decides between placements that load the same
COST_LIMIT = 1 << 58  # of the sum of all costs


@dataclass(frozen=True, slots=True)
class Node:
    """A node as far as placement cares.

    weight: the share of shards it should serve, > 0. memory_bytes: what shards of this corpus may take of it; None: not known, not
    bounded. zone: what fails together with it (its machine, its rack), so that copies are spread over zones; "": nothing.
    """

    name: str
    weight: float = 1.0
    memory_bytes: int | None = None
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Short:
    """A shard with fewer copies than were asked for, and why."""

    shard: int
    wanted: int
    placed: int
    reason: str


@dataclass(frozen=True, slots=True)
class Layout:
    """on: the nodes of each shard; () where it fits nowhere. short: the shards that lack copies."""

    on: Nodes
    short: tuple[Short, ...] = ()


def layout(
    corpus: str,
    n_shards: int,
    nodes: Iterable[Node],
    replicas: int = 1,
    held: Held | None = None,
    size_bytes: Sequence[int] | None = None,
) -> Layout:
    """Where the shards of a corpus should be.

    n_shards: even ranges of buckets (`shards.identity.shard_ranges`). replicas: copies of each, on distinct nodes and as far as
    possible distinct zones. held: what hosts have open of this corpus, under any number of shards; a part of a shard counts as
    that part of its bytes. size_bytes: by shard; None: all alike, and memory is not looked at.

    Loads differ by at most one copy where weights are equal and memory and zones allow it. Raises ValueError for replicas < 1, a
    weight that is not positive, a node named twice, or sizes of another number of shards.
    """
    ranges = shard_ranges(n_shards)
    known = _checked(nodes, replicas)
    if size_bytes is not None and len(size_bytes) != n_shards:
        raise ValueError(f"{len(size_bytes)} sizes for {n_shards} shards; expected one for each")
    widths = np.array([high - low for low, high in ranges])
    # Sizes of 1 MiB a bucket leave room for a part that is smaller than a bucket.
    sizes = widths << 20 if size_bytes is None else np.maximum(np.array(size_bytes, np.int64), 1)
    if not known:
        return Layout(((),) * n_shards, tuple(Short(shard, replicas, 0, "no node is up") for shard in range(n_shards)))
    names = [node.name for node in known]
    to_load = np.empty((n_shards, len(known)), np.int64)
    for column, name in enumerate(names):
        here = set((held or {}).get(name, ()))
        covered = _covered(here, ranges)
        # What is there, but in other pieces, still has to be opened: dearer than what is open, cheaper than anything else.
        to_load[:, column] = np.maximum(np.ceil(sizes * (1 - covered / widths)).astype(np.int64), 1)
        to_load[[shard for of, shard in here if of == n_shards], column] = 0
    taste = np.array([[_preference(f"{corpus}/{low}-{high}", name) for name in names] for low, high in ranges])
    bounded = size_bytes is not None and any(node.memory_bytes is not None for node in known)
    room = np.array([math.inf if node.memory_bytes is None or not bounded else node.memory_bytes for node in known])
    on = _solve(to_load, taste, known, replicas, sizes, room)
    return Layout(_by_taste(on, taste, names), _short(on, replicas, known, sizes, room))


def place_shards(
    corpus: str,
    n_shards: int,
    nodes: Iterable[str] | Mapping[str, float] | Iterable[Node],
    replicas: int = 1,
    held: Held | None = None,
    size_bytes: Sequence[int] | None = None,
) -> Nodes:
    """`layout` without its reasons. nodes: also names, or name -> weight."""
    if isinstance(nodes, Mapping):
        nodes = [Node(name, weight) for name, weight in nodes.items()]
    known = [node if isinstance(node, Node) else Node(node) for node in nodes]
    return layout(corpus, n_shards, known, replicas, held, size_bytes).on


def place(
    shards: Sequence[ShardName],
    nodes: Iterable[str] | Mapping[str, float],
    replicas: int = 1,
    previous: Placement[ShardName] | None = None,
) -> dict[ShardName, tuple[str, ...]]:
    """The nodes of each of some named things, the preferred one first; for things that are not ranges of buckets.

    shards: distinct; their `str` is what is hashed. nodes: names, or name -> weight (> 0). replicas: copies of each on distinct
    nodes, as far as there are nodes. previous: copies stay where they are unless evenness forbids it: the fewest moves possible.
    Without it the result does not depend on history, and moves more when nodes change.

    No nodes: everything gets (). Raises ValueError as `layout` does, and for a name that is listed twice.
    """
    weights = dict(nodes) if isinstance(nodes, Mapping) else dict.fromkeys(nodes, 1.0)
    if len(set(shards)) != len(shards):
        raise ValueError("a shard is listed twice; each shard is placed once")
    known = _checked([Node(name, weight) for name, weight in weights.items()], replicas)
    if not known or not shards:
        return {shard: () for shard in shards}
    names = [node.name for node in known]
    stays = [set((previous or {}).get(shard, ())) for shard in shards]
    to_load = np.array([[name not in on for name in names] for on in stays], np.int64)
    taste = np.array([[_preference(str(shard), name) for name in names] for shard in shards])
    on = _solve(to_load, taste, known, replicas, np.ones(len(shards), np.int64), np.full(len(names), math.inf))
    return dict(zip(shards, _by_taste(on, taste, names)))


def shard_of(document: bytes, n_shards: int) -> int:
    """The shard of a content hash when shards are even ranges of buckets (`shards.identity.shard_ranges`)."""
    return ((bucket_of(document) + 1) * n_shards - 1) // N_BUCKETS


def moves(before: Placement[ShardName], after: Placement[ShardName]) -> list[tuple[ShardName, str]]:
    """The copies that `after` has and `before` has not: what somebody must load."""
    return [(shard, node) for shard, on in after.items() for node in on if node not in before.get(shard, ())]


def holdings(on: Nodes) -> dict[str, list[tuple[int, int]]]:
    """What hosts have open when they have all that a placement gives them, as `layout` takes it."""
    held: dict[str, list[tuple[int, int]]] = {}
    for shard, nodes in enumerate(on):
        for node in nodes:
            held.setdefault(node, []).append((len(on), shard))
    return held


def moved_buckets(before: Nodes, after: Nodes) -> int:
    """Copies of buckets that nodes must load to get from one placement to another; the numbers of shards may differ."""
    had, total = holdings(before), 0
    for node, pieces in holdings(after).items():
        there = _buckets(had.get(node, ()))
        total += sum(int((~there[low:high]).sum()) for low, high in (shard_ranges(of)[shard] for of, shard in pieces))
    return total


def moved_bytes(before: Nodes, after: Nodes, size_bytes: Sequence[int]) -> int:
    """The same in bytes. size_bytes: of the shards of `after`; a part of one counts as that part of its bytes."""
    had, total = holdings(before), 0
    for node, pieces in holdings(after).items():
        there = _buckets(had.get(node, ()))
        for of, shard in pieces:
            low, high = shard_ranges(of)[shard]
            total += math.ceil(size_bytes[shard] * int((~there[low:high]).sum()) / (high - low))
    return total


def minimum_moved_buckets(before: Nodes, n_shards: int, nodes: Iterable[str], replicas: int) -> int:
    """The fewest copies of buckets that must be loaded for any placement as even as `layout`'s."""
    return moved_buckets(before, place_shards("", n_shards, nodes, replicas, holdings(before)))


def _checked(nodes: Iterable[Node], replicas: int) -> list[Node]:
    known = sorted(nodes, key=lambda node: node.name)  # the order in which they are listed must not matter
    if replicas < 1:
        raise ValueError(f"replicas is {replicas}; expected at least 1")
    if len({node.name for node in known}) != len(known):
        raise ValueError("a node is listed twice; each is given its share once")
    for node in known:
        if not (node.weight > 0 and math.isfinite(node.weight)):
            raise ValueError(
                f"node {node.name!r} has weight {node.weight}; expected a positive number. Leave it out to give it nothing."
            )
    return known


def _preference(shard: str, node: str) -> int:
    """How much a node dislikes a shard, below 2**TASTE_BITS: a hash, the same in every process and release of Python."""
    return int.from_bytes(hashlib.blake2b(f"{shard}\0{node}".encode(), digest_size=TASTE_BITS // 8).digest())


def _buckets(pieces: Iterable[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which buckets lie in any of these (number of shards, shard): (N_BUCKETS,) bool."""
    there = np.zeros(N_BUCKETS, np.bool_)
    for of, shard in pieces:
        there[slice(*shard_ranges(of)[shard])] = True
    return there


def _covered(pieces: Iterable[tuple[int, int]], ranges: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Of each range, the number of its buckets that lie in any of the pieces: (n_ranges,) int64."""
    upto = np.concatenate([[0], np.cumsum(_buckets(pieces))])
    edges = np.array(ranges)
    return upto[edges[:, 1]] - upto[edges[:, 0]]


def _solve(
    to_load: NDArray[np.int64],
    taste: NDArray[np.int64],
    nodes: Sequence[Node],
    replicas: int,
    sizes: NDArray[np.int64],
    room: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """(n_shards, n_nodes) bool: least bytes to load, then least taste, in one integer a pair."""
    copies = len(sizes) * min(replicas, len(nodes))
    # All tastes of a placement together weigh less than one unit of bytes; units are bytes, or so many that sums stay exact.
    unit = copies * (1 << TASTE_BITS) + 1
    bytes_in_unit = -(-int(to_load.max()) * unit * copies // COST_LIMIT) or 1
    cost = -(-to_load // bytes_in_unit) * unit + taste
    cost[sizes[:, None] > room] = NEVER
    # However many of the largest shards fit into a node, so many of any do.
    fit = (np.cumsum(np.sort(sizes)[::-1])[:, None] <= room).sum(axis=0)
    names = sorted({node.zone or f"\0{node.name}" for node in nodes})
    zones = np.array([names.index(node.zone or f"\0{node.name}") for node in nodes])
    on = assign(cost, replicas, np.array([node.weight for node in nodes]), fit, zones)
    if np.isfinite(room).any():
        _fill(on, cost, min(replicas, len(nodes)), sizes, room)
    return on


def _fill(on: NDArray[np.bool_], cost: NDArray[np.int64], copies: int, sizes: NDArray[np.int64], room: NDArray[np.float64]) -> None:
    """Gives what found no place, as sizes differ, whatever room is really left; first copies first, large ones first."""
    left = room - sizes @ on
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    for have in range(copies):
        for shard in order[on[order].sum(axis=1) == have]:
            price = np.where(on[shard] | (left < sizes[shard]), NEVER, cost[shard])
            node = int(price.argmin())
            if price[node] < NEVER:
                on[shard, node] = True
                left[node] -= sizes[shard]


def _by_taste(on: NDArray[np.bool_], taste: NDArray[np.int64], names: Sequence[str]) -> Nodes:
    best_first = np.argsort(taste, axis=1, kind="stable")
    return tuple(tuple(names[column] for column in order if here[column]) for order, here in zip(best_first, on))


def _short(
    on: NDArray[np.bool_], replicas: int, nodes: Sequence[Node], sizes: NDArray[np.int64], room: NDArray[np.float64]
) -> tuple[Short, ...]:
    left = room - np.where(np.isinf(room), 0, sizes @ on)
    found = []
    for shard in np.flatnonzero(on.sum(axis=1) < replicas).tolist():
        placed = int(on[shard].sum())
        if placed == len(nodes):
            reason = f"there are {len(nodes)} nodes"
        else:
            most = int(np.where(on[shard], -np.inf, left).argmax())
            reason = f"it needs {sizes[shard]} bytes; node {nodes[most].name!r} has the most left, {int(left[most])}. Add a node, or memory"
        found.append(Short(shard, replicas, placed, reason))
    return tuple(found)
