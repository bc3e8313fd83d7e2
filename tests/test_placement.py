"""Shards on nodes: even, the same for everyone, and moving little."""

import random

import numpy as np
import pytest
from exact_placement import least_cost
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.assignment import assign
from cluster.placement import (
    Node,
    holdings,
    layout,
    minimum_moved_buckets,
    moved_buckets,
    moved_bytes,
    moves,
    place,
    place_shards,
    shard_of,
)
from shards.identity import bucket_of, shard_ranges

few = settings(max_examples=25, deadline=None)  # of placements; each takes milliseconds
node_sets = st.sets(st.sampled_from([f"n{i}" for i in range(9)]), min_size=1)


def loads(placement, nodes):
    counts = dict.fromkeys(nodes, 0)
    for on in placement.values():
        for node in on:
            counts[node] += 1
    return counts


def shard_names(n):
    return [f"news/{i}" for i in range(n)]


def check(placement, shards, nodes, replicas):
    """What holds of every placement with equal weights."""
    assert list(placement) == shards
    for on in placement.values():
        assert len(on) == len(set(on)) == min(replicas, len(nodes))
        assert set(on) <= set(nodes)
    counts = loads(placement, nodes).values()
    assert max(counts) - min(counts) <= 1


@few
@given(st.integers(0, 40), node_sets, st.integers(1, 4))
def test_every_shard_has_its_replicas_on_distinct_nodes_and_loads_differ_by_at_most_one(n, nodes, replicas):
    check(place(shard_names(n), nodes, replicas), shard_names(n), nodes, replicas)


@few
@given(st.integers(0, 40), node_sets, node_sets, st.integers(1, 4))
def test_that_also_holds_when_copies_may_stay_where_they_are(n, before, after, replicas):
    shards = shard_names(n)
    check(place(shards, after, replicas, place(shards, before, replicas)), shards, after, replicas)


@few
@given(st.integers(1, 40), node_sets, st.randoms(use_true_random=False))
def test_the_order_in_which_nodes_are_listed_does_not_matter(n, nodes, rng):
    listed = sorted(nodes)
    expected = place(shard_names(n), listed, 2)
    rng.shuffle(listed)
    assert place(shard_names(n), listed, 2) == expected


def test_placement_is_the_same_in_every_process_and_release():
    assert place(["a/0", "a/1", "a/2", "a/3"], ["x", "y"]) == PINNED


PINNED = {"a/0": ("x",), "a/1": ("x",), "a/2": ("y",), "a/3": ("y",)}


@few
@given(st.integers(0, 40), node_sets, node_sets)
def test_with_a_previous_placement_no_fewer_moves_are_possible(n, before, after):
    shards = shard_names(n)
    old = place(shards, before)
    held = loads({s: [x for x in on if x in after] for s, on in old.items()}, after)
    # Evenness alone forces this many: sorted by what they hold, the fullest nodes get the larger quotas.
    base, extra = divmod(n, len(after))
    kept = sum(min(h, base + (i < extra)) for i, h in enumerate(sorted(held.values(), reverse=True)))
    assert len(moves(old, place(shards, after, 1, old))) == n - kept


@few
@given(st.integers(0, 40), node_sets, st.integers(1, 3))
def test_nothing_moves_when_no_node_came_or_went(n, nodes, replicas):
    old = place(shard_names(n), nodes, replicas)
    assert place(shard_names(n), nodes, replicas, old) == old


def test_a_node_that_comes_back_gets_its_own_shards_again():
    shards, nodes = shard_names(16), ["a", "b", "c", "d"]
    full = place(shards, nodes)
    without = place(shards, ["a", "b", "c"])
    assert place(shards, nodes) == full != without


def test_without_history_a_lost_node_moves_little_more_than_its_own_shards():
    """64 shards on 4 nodes, 10 corpora: 16 must move; measured 18 on average, where modulo placement moves about 48."""
    total = 0
    for corpus in range(10):
        shards, nodes = [f"{corpus}/{i}" for i in range(64)], [f"{corpus}-{i}" for i in range(4)]
        total += len(moves(place(shards, nodes), place(shards, nodes[:-1])))
    assert 16 * 10 <= total <= 20 * 10


def test_heavier_nodes_serve_more_in_proportion():
    assert loads(place(shard_names(12), {"big": 2.0, "small": 1.0}), ["big", "small"]) == {"big": 8, "small": 4}


def test_a_node_never_holds_a_shard_twice_however_heavy_it_is():
    assert loads(place(shard_names(6), {"huge": 100.0, "a": 1.0, "b": 1.0}, 2), ["huge", "a", "b"]) == {"huge": 6, "a": 3, "b": 3}


@few
@given(st.integers(1, 20), st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 10), min_size=1), st.integers(1, 3))
def test_weighted_quotas_always_leave_room_for_every_copy(n, weights, replicas):
    placement = place(shard_names(n), weights, replicas)
    assert all(len(set(on)) == min(replicas, len(weights)) for on in placement.values())


def test_replicas_beyond_the_nodes_are_not_invented():
    assert place(["s"], ["only"], 3) == {"s": ("only",)}


def test_without_nodes_every_shard_is_placed_nowhere():
    assert place(["s", "t"], []) == {"s": (), "t": ()}


def test_a_chain_of_moves_makes_room_when_the_free_node_holds_the_shard_already():
    """Raising the copies from 2 to 3 often leaves a shard whose only free node has it already; then others must trade places."""
    rng = random.Random(7)
    for _ in range(60):
        shards, before = shard_names(5), rng.sample("abcde", 2)
        after = sorted({*before, *rng.sample("abcde", 3)})
        check(place(shards, after, 3, place(shards, before, 2)), shards, after, 3)


# --- shards of a corpus: ranges of buckets, beside what hosts hold ---------------------------------------------------------------

shard_counts = st.sampled_from([1, 2, 3, 4, 6, 8, 12])


@few
@given(shard_counts, node_sets, st.integers(1, 3))
def test_opening_what_a_placement_wants_or_closing_what_it_does_not_never_changes_it(n, nodes, replicas):
    """So coordinators agree on the way, however far hosts have come, and whoever has told them to open what."""
    rng = random.Random(f"{n} {sorted(nodes)} {replicas}")
    held = {node: {(of, rng.randrange(of)) for of in rng.choices((n, 4, 8), k=rng.randint(0, 6))} for node in nodes}
    target = place_shards("c", n, nodes, replicas, held)
    for _ in range(10):
        wanted = holdings(target)
        node = rng.choice(sorted(nodes))
        if rng.random() < 0.5:
            held[node] |= set(rng.sample(wanted.get(node, []), k=min(1, len(wanted.get(node, [])))))
        else:
            here = {piece for piece in held[node] if piece not in wanted.get(node, []) and not _overlap(piece, wanted.get(node, []))}
            held[node] -= set(rng.sample(sorted(here), k=min(1, len(here))))
        assert place_shards("c", n, nodes, replicas, held) == target


def _overlap(piece, others):
    low, high = shard_ranges(piece[0])[piece[1]]
    return any(a < high and low < b for a, b in (shard_ranges(of)[shard] for of, shard in others))


@pytest.mark.parametrize("seed", range(12))
def test_no_placement_as_even_loads_less_by_integer_programming(seed):
    """From any placement to any number of shards, nodes and replicas."""
    rng = random.Random(seed)
    print("seed", seed)
    names = [f"n{i}" for i in range(rng.randint(1, 6))]
    before = place_shards("c", rng.choice((1, 2, 4, 8)), rng.sample(names, rng.randint(1, len(names))), rng.randint(1, 3))
    nodes, n, replicas = rng.sample(names, rng.randint(1, len(names))), rng.choice((1, 2, 3, 4, 8)), rng.randint(1, 3)
    after = place_shards("c", n, nodes, replicas, holdings(before))
    check({f"c/{i}": on for i, on in enumerate(after)}, [f"c/{i}" for i in range(n)], nodes, replicas)
    held = {node: np.zeros(4096, bool) for node in nodes}
    for node, pieces in holdings(before).items():
        for of, shard in pieces:
            if node in held:
                held[node][slice(*shard_ranges(of)[shard])] = True
    lacks = np.array([[(~held[node][low:high]).sum() for node in nodes] for low, high in shard_ranges(n)], float)
    assert moved_buckets(before, after) == least_cost(lacks, replicas)


@pytest.mark.parametrize("seed", range(25))
def test_the_assignment_is_as_even_and_as_cheap_as_integer_programming_finds(seed):
    """With pairs that are not allowed, limits on columns, and zones."""
    rng = np.random.default_rng(seed)
    n_rows, n_columns, copies = int(rng.integers(1, 9)), int(rng.integers(1, 7)), int(rng.integers(1, 4))
    cost = np.where(rng.random((n_rows, n_columns)) < rng.choice([0, 0.2]), 1 << 60, rng.integers(0, 8, (n_rows, n_columns)))
    zones = np.unique(rng.integers(0, rng.integers(1, n_columns + 1), n_columns), return_inverse=True)[1]
    limits = rng.integers(1, n_rows + 1, n_columns)
    on = assign(cost, copies, np.ones(n_columns), limits, zones)
    per_zone = -(-min(copies, n_columns) // (int(zones.max()) + 1))
    least = least_cost(np.where(cost < 1 << 60, cost, np.inf), copies, limits, per_zone, zones)
    if least is None:  # then as much as can be is
        assert on.sum() < n_rows * min(copies, n_columns)
    else:
        assert (on.sum(axis=1) == min(copies, n_columns)).all() and cost[on].sum() == least
    assert (on.sum(axis=0) <= limits).all() and cost[on].max(initial=0) < 1 << 60


def test_splitting_shards_on_the_same_nodes_moves_nothing_and_merging_them_only_what_must_meet():
    nodes = ["a", "b", "c", "d"]
    four = place_shards("c", 4, nodes)
    eight = place_shards("c", 8, nodes, 1, holdings(four))
    two = place_shards("c", 2, nodes, 1, holdings(eight))
    assert moved_buckets(four, eight) == 0
    assert moved_buckets(eight, two) == 2048 == minimum_moved_buckets(eight, 2, nodes, 1)  # each half had half of it somewhere
    assert moved_bytes(eight, two, [1000, 600]) == 800
    assert moved_buckets(four, place_shards("c", 4, nodes, 2, holdings(four))) == 4096  # the second copies


def test_a_node_that_joins_takes_its_share_and_nothing_else_moves():
    nodes = ["a", "b", "c", "d"]
    before = place_shards("c", 8, nodes, 2)
    after = place_shards("c", 8, [*nodes, "e"], 2, holdings(before))
    assert moved_buckets(before, after) == 3 * 512  # 16 copies on 5 nodes are 4, 3, 3, 3, 3
    assert sum("e" in on for on in after) == 3


def test_the_placement_of_the_old_number_of_shards_stays_while_the_new_one_is_opened():
    """Queries under way end on it."""
    nodes = ["a", "b", "c"]
    four = place_shards("c", 4, nodes, 2)
    held = holdings(four)
    six = place_shards("c", 6, nodes, 2, held)
    both = {node: [*held.get(node, []), *holdings(six).get(node, [])] for node in nodes}
    assert place_shards("c", 4, nodes, 2, both) == four and place_shards("c", 6, nodes, 2, both) == six


def test_corpora_of_one_shard_do_not_all_lie_on_one_node():
    nodes = ["a", "b", "c", "d"]
    on = [place_shards(f"corpus {i}", 1, nodes)[0][0] for i in range(40)]
    assert min(map(on.count, nodes)) >= 4


def test_copies_are_spread_over_zones_as_far_as_there_are_zones():
    nodes = [Node("a1", zone="a"), Node("a2", zone="a"), Node("b1", zone="b"), Node("b2", zone="b"), Node("c1", zone="c")]
    zone = {node.name: node.zone for node in nodes}
    for replicas, most in ((2, 1), (3, 1), (4, 2)):
        placed = layout("c", 12, nodes, replicas)
        assert all(max(map([zone[name] for name in on].count, "abc")) <= most and len(on) == replicas for on in placed.on)
        assert placed.short == ()


# --- memory --------------------------------------------------------------------------------------------------------------------


def test_a_node_is_given_no_more_than_its_memory_holds():
    nodes = [Node("small", memory_bytes=250), Node("big", memory_bytes=10_000)]
    placed = layout("c", 8, nodes, 1, size_bytes=[100] * 8)
    assert sorted(name for on in placed.on for name in on) == ["big"] * 6 + ["small"] * 2
    assert placed.short == ()


def test_first_copies_come_before_second_ones_and_what_does_not_fit_is_said():
    nodes = [Node("a", memory_bytes=300), Node("b", memory_bytes=250)]
    placed = layout("c", 4, nodes, 2, size_bytes=[100] * 4)
    assert [len(on) for on in placed.on].count(0) == 0 and sum(map(len, placed.on)) == 5
    assert len(placed.short) == 3
    assert {(short.wanted, short.placed) for short in placed.short} == {(2, 1)}
    assert all("it needs 100 bytes; node" in short.reason and "Add a node, or memory" in short.reason for short in placed.short)


def test_a_shard_that_fits_nowhere_is_placed_nowhere_and_named():
    placed = layout("c", 2, [Node("a", memory_bytes=500)], 1, size_bytes=[100, 900])
    assert placed.on == (("a",), ())
    assert [(short.shard, short.placed) for short in placed.short] == [(1, 0)]
    assert placed.short[0].reason.startswith("it needs 900 bytes; node 'a' has the most left, 400.")


def test_more_replicas_than_nodes_are_said():
    assert {short.reason for short in layout("c", 2, [Node("a")], 2).short} == {"there are 1 nodes"}
    assert {short.reason for short in layout("c", 2, [], 1).short} == {"no node is up"}


@few
@given(st.integers(1, 8), st.integers(1, 3), st.lists(st.integers(0, 900), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_memory_holds_whatever_sizes_shards_have_and_shards_with_room_left_have_their_copies(n, replicas, memory, rng):
    nodes = [Node(f"n{i}", memory_bytes=bytes_) for i, bytes_ in enumerate(memory)]
    sizes = [rng.randint(1, 300) for _ in range(n)]
    placed = layout("c", n, nodes, replicas, size_bytes=sizes)
    left = {node.name: node.memory_bytes - sum(size for size, on in zip(sizes, placed.on) if node.name in on) for node in nodes}
    assert min(left.values()) >= 0
    for short in placed.short:
        assert short.placed == len(placed.on[short.shard]) < short.wanted == replicas
        assert all(name in placed.on[short.shard] or room < sizes[short.shard] for name, room in left.items())
    assert {s.shard for s in placed.short} == {shard for shard, on in enumerate(placed.on) if len(on) < replicas}


@given(st.binary(min_size=20, max_size=20), st.integers(1, 4096))
def test_the_shard_of_a_document_is_the_one_whose_buckets_hold_it(document, n_shards):
    low, high = shard_ranges(n_shards)[shard_of(document, n_shards)]
    assert low <= bucket_of(document) < high


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((["s"], ["a"], 0), "replicas is 0"),
        ((["s", "s"], ["a"]), "listed twice"),
        ((["s"], {"a": 0.0}), "node 'a' has weight 0.0"),
        ((["s"], {"a": float("nan")}), "node 'a' has weight nan"),
    ],
)
def test_arguments_without_meaning_are_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        place(*arguments)


def test_a_node_or_sizes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="a node is listed twice"):
        layout("c", 1, [Node("a"), Node("a")])
    with pytest.raises(ValueError, match="2 sizes for 3 shards"):
        layout("c", 3, [Node("a")], 1, size_bytes=[1, 2])
    with pytest.raises(ValueError, match="n_shards is 0"):
        place_shards("c", 0, ["a"])
