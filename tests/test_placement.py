"""Shards on nodes: even, the same for everyone, and moving little."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.placement import moves, place, shard_of
from shards.identity import bucket_of, shard_ranges

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


@given(st.integers(0, 40), node_sets, st.integers(1, 4))
def test_every_shard_has_its_replicas_on_distinct_nodes_and_loads_differ_by_at_most_one(n, nodes, replicas):
    check(place(shard_names(n), nodes, replicas), shard_names(n), nodes, replicas)


@given(st.integers(0, 40), node_sets, node_sets, st.integers(1, 4))
def test_that_also_holds_when_copies_may_stay_where_they_are(n, before, after, replicas):
    shards = shard_names(n)
    check(place(shards, after, replicas, place(shards, before, replicas)), shards, after, replicas)


@given(st.integers(1, 40), node_sets, st.randoms(use_true_random=False))
def test_the_order_in_which_nodes_are_listed_does_not_matter(n, nodes, rng):
    listed = sorted(nodes)
    expected = place(shard_names(n), listed, 2)
    rng.shuffle(listed)
    assert place(shard_names(n), listed, 2) == expected


def test_placement_is_the_same_in_every_process_and_release():
    assert place(["a/0", "a/1", "a/2", "a/3"], ["x", "y"]) == PINNED


PINNED = {"a/0": ("y",), "a/1": ("x",), "a/2": ("x",), "a/3": ("y",)}


@given(st.integers(0, 40), node_sets, node_sets)
def test_with_a_previous_placement_no_fewer_moves_are_possible(n, before, after):
    shards = shard_names(n)
    old = place(shards, before)
    held = loads({s: [x for x in on if x in after] for s, on in old.items()}, after)
    # Evenness alone forces this many: sorted by what they hold, the fullest nodes get the larger quotas.
    base, extra = divmod(n, len(after))
    kept = sum(min(h, base + (i < extra)) for i, h in enumerate(sorted(held.values(), reverse=True)))
    assert len(moves(old, place(shards, after, 1, old))) == n - kept


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
    """64 shards on 4 nodes, 20 corpora: 16 must move; measured 18 on average, where modulo placement moves about 48."""
    total = 0
    for corpus in range(20):
        shards, nodes = [f"{corpus}/{i}" for i in range(64)], [f"{corpus}-{i}" for i in range(4)]
        total += len(moves(place(shards, nodes), place(shards, nodes[:-1])))
    assert 16 * 20 <= total <= 20 * 20


def test_heavier_nodes_serve_more_in_proportion():
    assert loads(place(shard_names(12), {"big": 2.0, "small": 1.0}), ["big", "small"]) == {"big": 8, "small": 4}


def test_a_node_never_holds_a_shard_twice_however_heavy_it_is():
    assert loads(place(shard_names(6), {"huge": 100.0, "a": 1.0, "b": 1.0}, 2), ["huge", "a", "b"]) == {"huge": 6, "a": 3, "b": 3}


@settings(max_examples=50)
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
    for _ in range(200):
        shards, before = shard_names(5), rng.sample("abcde", 2)
        after = sorted({*before, *rng.sample("abcde", 3)})
        check(place(shards, after, 3, place(shards, before, 2)), shards, after, 3)


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
