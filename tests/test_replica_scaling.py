"""Load changes the number of replicas: looks at hosts become the next serving record, once, whoever of several looks first."""

import asyncio
import uuid
from typing import Any

import pytest

from cluster.scaling import ScalingSettings
from serve.scaling import ReplicaScaling
from shards.manifest import corpus_store
from shards.serving_record import ServingRecord, newest, succeed
from shards.store import Store, open_store

NODES = ("a", "b", "c")


class Cluster:
    """Hosts whose threads search for a given share of the time, as coordinators see them."""

    def __init__(self):
        self.now, self.busy_s, self.refused, self.queue = 0.0, 0.0, 0, 0

    def pass_time(self, seconds: float, utilisation: float) -> None:
        self.now += seconds
        self.busy_s += seconds * utilisation * 2

    async def status(self) -> dict[str, Any]:
        load = {"busy_s": self.busy_s, "threads": 2, "waiting": 0}
        return {
            "hosts": [{"node": node, "pid": 1, "load": load, "queue": self.queue} for node in NODES],
            "routing": {"refused": self.refused},
            "placement": {"k": {"shards": [["a"], ["b"]]}},
        }


@pytest.fixture
def store() -> Store:
    return open_store(f"memory://{uuid.uuid4().hex}")


def record_of(store: Store) -> ServingRecord | None:
    return newest(corpus_store(store, "k"))


def play(store: Store, cluster: Cluster, looks: int, utilisation: float, *scalings: ReplicaScaling) -> None:
    async def run() -> None:
        for _ in range(looks):
            cluster.pass_time(5.0, utilisation)
            for scaling in scalings:
                await scaling.look()

    asyncio.run(run())


def scaling_of(store: Store, cluster: Cluster, records: dict[str, ServingRecord], name: str = "one") -> ReplicaScaling:
    return ReplicaScaling(store, records, cluster.status, name, clock=lambda: cluster.now)


def test_busy_hosts_get_a_replica_after_several_looks_and_the_record_says_why(store):
    cluster, records = Cluster(), {"k": succeed(corpus_store(store, "k"), 0, 1, (1, 3))}
    scaling = scaling_of(store, cluster, records)
    votes = ScalingSettings().votes_up
    play(store, cluster, votes, 0.9, scaling)  # the first look has nothing to compare with
    assert record_of(store).number == 1
    play(store, cluster, 1, 0.9, scaling)
    wanted = record_of(store)
    assert (wanted.number, wanted.replicas, wanted.bounds, wanted.by) == (2, 2, (1, 3), "one")
    assert wanted.reason.startswith("hosts search 90% of the time")


def test_of_two_coordinators_that_see_the_same_one_writes(store):
    cluster, records = Cluster(), {"k": succeed(corpus_store(store, "k"), 0, 1, (1, 3))}
    one, two = (scaling_of(store, cluster, records, name) for name in ("one", "two"))
    play(store, cluster, 10, 0.9, one, two)  # neither rereads the record meanwhile
    assert record_of(store).number == 2


def test_refused_queries_are_a_reason_however_idle_hosts_say_they_are(store):
    cluster, records = Cluster(), {"k": succeed(corpus_store(store, "k"), 0, 1, (1, 3))}
    scaling = scaling_of(store, cluster, records)
    for _ in range(ScalingSettings().votes_up + 1):
        cluster.refused += 3
        play(store, cluster, 1, 0.1, scaling)
    assert record_of(store).replicas == 2 and "3 were refused" in record_of(store).reason


@pytest.mark.parametrize("bounds", [None, (2, 2)])
def test_a_fixed_number_of_replicas_stays(store, bounds):
    cluster, records = Cluster(), {"k": succeed(corpus_store(store, "k"), 0, 2, bounds)}
    play(store, cluster, 40, 0.99, scaling_of(store, cluster, records))
    assert record_of(store).number == 1


def test_a_host_that_was_restarted_is_not_taken_for_idle(store):
    """Its count of seconds begins at nothing again: that is no negative load."""
    cluster, records = Cluster(), {"k": succeed(corpus_store(store, "k"), 0, 2, (1, 3))}
    scaling = scaling_of(store, cluster, records)
    play(store, cluster, 5, 0.65, scaling)
    cluster.busy_s = 0.0
    play(store, cluster, 30, 0.65, scaling)
    assert record_of(store).number == 1
