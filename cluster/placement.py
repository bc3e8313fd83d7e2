"""Which node serves which shard: even, deterministic, and moving as little as it can.

The choice is a function of names alone, so coordinators that see the same nodes agree without talking to one another, and a node
that goes and comes back gets its own shards again, whose files its disk still holds.

Rendezvous hashing (Thaler & Ravishankar 1998) gives each (shard, node) pair a preference. Alone it is uneven (16 shards on 4
nodes: often 7 and 2), so every node gets a quota and pairs are accepted from the strongest preference downwards (the stable
matching of Gale & Shapley 1962, here unique because both sides read one number). Rejected: a ring with virtual nodes (uneven
likewise); Maglev's table (Eisenbud et al. 2016; even, but moves shards between nodes that neither came nor went).
"""

import hashlib
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from shards.identity import N_BUCKETS, bucket_of

ShardName = TypeVar("ShardName", bound=Hashable)
Placement = Mapping[ShardName, tuple[str, ...]]


def place(
    shards: Sequence[ShardName],
    nodes: Iterable[str] | Mapping[str, float],
    replicas: int = 1,
    previous: Placement[ShardName] | None = None,
) -> dict[ShardName, tuple[str, ...]]:
    """The nodes of each shard, the preferred one first.

    shards: distinct; their `str` is what is hashed, so it should name corpus and shard. nodes: names, or name -> weight (> 0),
    the share of shards it should serve. replicas: copies of each shard on distinct nodes, as far as there are nodes.
    previous: with it, copies stay where they are unless a quota forbids it; with one replica that is the fewest moves possible.
        Without it the result does not depend on history, and moves a little more when nodes change (tests/test_placement.py).

    A node's number of copies is its exact share rounded down or up (equal weights: they differ by at most 1).
    No nodes: every shard gets (). Raises ValueError for replicas < 1, a weight that is not positive, or a shard named twice.
    """
    weights = dict(nodes) if isinstance(nodes, Mapping) else dict.fromkeys(nodes, 1.0)
    if replicas < 1:
        raise ValueError(f"replicas is {replicas}; expected at least 1")
    if len(set(shards)) != len(shards):
        raise ValueError("a shard is listed twice; each shard is placed once")
    for node, weight in weights.items():
        if not (weight > 0 and math.isfinite(weight)):
            raise ValueError(f"node {node!r} has weight {weight}; expected a positive number. Leave it out to give it nothing.")
    if not weights:
        return {shard: () for shard in shards}

    taste = {(shard, node): _preference(str(shard), node) for shard in shards for node in weights}
    held = {shard: [n for n in (previous or {}).get(shard, ()) if n in weights] for shard in shards}
    copies = min(replicas, len(weights))
    quotas = _quotas(len(shards), copies, weights, _loads(held))
    # Copies that exist already come first; among equals the stronger preference, then names, so that ties cannot differ.
    ranked = sorted(taste, key=lambda pair: (pair[1] not in held[pair[0]], -taste[pair], str(pair[0]), pair[1]))
    placed: dict[ShardName, set[str]] = {shard: set() for shard in shards}
    room = dict(quotas)
    for shard, node in ranked:
        if room[node] and len(placed[shard]) < copies:
            placed[shard].add(node)
            room[node] -= 1
    for shard in shards:
        while len(placed[shard]) < copies:
            _make_room(shard, placed, room, taste)
    return {shard: tuple(sorted(on, key=lambda node: (-taste[shard, node], node))) for shard, on in placed.items()}


def shard_of(document: bytes, n_shards: int) -> int:
    """The shard of a content hash when shards are even ranges of buckets (`shards.identity.shard_ranges`)."""
    return ((bucket_of(document) + 1) * n_shards - 1) // N_BUCKETS


def moves(before: Placement[ShardName], after: Placement[ShardName]) -> list[tuple[ShardName, str]]:
    """The copies that `after` has and `before` has not: what somebody must load."""
    return [(shard, node) for shard, on in after.items() for node in on if node not in before.get(shard, ())]


def _preference(shard: str, node: str) -> int:
    """How much a node wants a shard: 64 bits of a hash, the same in every process and release of Python."""
    return int.from_bytes(hashlib.blake2b(f"{shard}\0{node}".encode(), digest_size=8).digest())


def _loads(held: Mapping[ShardName, Iterable[str]]) -> dict[str, int]:
    loads: dict[str, int] = {}
    for on in held.values():
        for node in on:
            loads[node] = loads.get(node, 0) + 1
    return loads


def _quotas(n_shards: int, copies: int, weights: Mapping[str, float], loads: Mapping[str, int]) -> dict[str, int]:
    """Copies per node, summing to n_shards * copies: exact shares by weight, rounded.

    No node can take more than n_shards, since copies lie on distinct nodes; what it cannot take is shared among the others.
    """
    left, open_nodes, shares = n_shards * copies, dict(weights), {}
    while True:
        total = sum(open_nodes.values())
        full = [node for node, weight in open_nodes.items() if left * weight / total >= n_shards]
        if not full:
            break
        for node in full:
            shares[node] = float(n_shards)
            del open_nodes[node]
        left -= n_shards * len(full)
        if not open_nodes:
            break
    for node, weight in open_nodes.items():
        shares[node] = left * weight / total
    quotas = {node: math.floor(share + 1e-9) for node, share in shares.items()}
    # The odd copies go to those that hold more than their floor (nothing moves), then to the largest remainder.
    order = sorted(
        shares, key=lambda node: (loads.get(node, 0) <= quotas[node], quotas[node] - shares[node], _preference("", node), node)
    )
    for node in order[: n_shards * copies - sum(quotas.values())]:
        quotas[node] += 1
    return quotas


def _make_room(
    shard: ShardName, placed: dict[ShardName, set[str]], room: dict[str, int], taste: Mapping[tuple[ShardName, str], int]
) -> None:
    """Gives `shard` one more copy when all nodes with room hold it already: a shortest chain of moves that ends at free room.

    Such a chain exists whenever the quotas can be met at all (augmenting paths, Berge 1957).
    """
    start = sorted((n for n in room if n not in placed[shard]), key=lambda n: (-taste[shard, n], n))
    came_from: dict[str, tuple[str, ShardName] | None] = dict.fromkeys(start)
    queue = list(start)
    for node in queue:
        if room[node]:
            break
        for other in sorted((s for s in placed if node in placed[s]), key=lambda s: (taste[s, node], str(s))):
            for target in room:
                if target not in came_from and target not in placed[other]:
                    came_from[target] = (node, other)
                    queue.append(target)
    else:
        raise AssertionError("quotas sum to the number of copies, so a free place must be reachable")
    room[node] -= 1
    while (step := came_from[node]) is not None:
        previous_node, moved = step
        placed[moved].remove(previous_node)
        placed[moved].add(node)
        node = previous_node
    placed[shard].add(node)
