"""Random histories of a cluster: whatever happens, queries see one generation, shards move little, and order returns.

`python -m tests.cluster_simulation --histories 5000 --seed 1` runs as many as one likes; these are few, and what they must catch.
"""

from collections import Counter

import pytest
from cluster_simulation import Broken, run

import cluster.placing
from cluster.placement import layout
from cluster.routing import Routing
from cluster.table import Table


def test_after_any_storm_all_coordinators_agree_and_every_shard_has_its_replicas_again():
    fates = sum((run(seed, "storm") for seed in range(20)), Counter())
    for fate in ("node dies", "process is killed", "process freezes", "clock jumps", "head is away", "reshard", "publish", "scale"):
        assert fates[fate] >= 3, (fate, fates)
    assert fates["whole"] > 1000


def test_one_change_at_a_time_loads_no_more_than_it_must_and_with_two_replicas_leaves_every_answer_whole():
    fates = sum((run(seed, "steps") for seed in range(12)), Counter())
    assert fates["buckets that had to be"] > 10_000
    assert fates["buckets fetched"] <= 1.2 * fates["buckets that had to be"], fates
    assert fates["whole"] > 1000


def test_a_frozen_host_that_has_no_shard_is_found_out_before_all_is_said_to_be_in_order():
    """Five hosts, three replicas of one shard; one of the others freezes as it becomes calm, and nobody asks it but by pings."""
    assert run(4498, "storm")["process freezes"] == 1


def test_a_history_is_the_same_each_time_it_is_played():
    assert run(7, "storm") == run(7, "storm")


# --- what the simulation must catch ----------------------------------------------------------------------------------------------


def broken(kind, says, seeds=range(30)):
    """One of these histories breaks, and says so."""
    for seed in seeds:
        try:
            run(seed, kind)
        except Broken as error:
            assert says in str(error) and f"--kind {kind} --seed {seed}" in str(error)
            return
    raise AssertionError(f"no history of {seeds} was broken")


def test_a_placement_that_forgets_what_hosts_hold_is_caught(monkeypatch):
    monkeypatch.setattr(cluster.placing, "layout", lambda corpus, n, nodes, replicas, held, sizes: layout(corpus, n, nodes, replicas))
    broken("steps", "buckets fetched")


def test_hosts_that_are_not_told_what_to_open_are_caught(monkeypatch):
    monkeypatch.setattr(Table, "due", lambda *_: iter(()))
    broken("steps", "is placed on")


@pytest.mark.parametrize("kind", ["storm", "steps"])
def test_a_route_that_asks_for_a_shard_twice_is_caught(monkeypatch, kind):
    choose = Routing.choose

    def twice(self, *given, **more):
        routes = choose(self, *given, **more)
        return {node: tuple(shards) + (shards[0],) for node, shards in routes.items()}

    monkeypatch.setattr(Routing, "choose", twice)
    broken(kind, "buckets answered or missed other than once")


def test_a_route_to_a_host_that_is_known_to_be_dead_is_caught(monkeypatch):
    def everyone(self, corpus, generation, placed, up, now, shards=None, full=(), avoid=(), doubted=()):
        routes = {}
        for shard in range(len(placed)) if shards is None else shards:
            routes.setdefault(next((node for node in placed[shard] if node not in avoid), ""), []).append(shard)
        return {node: tuple(given) for node, given in routes.items()}

    monkeypatch.setattr(Routing, "choose", everyone)
    broken("storm", "sent a query to")
