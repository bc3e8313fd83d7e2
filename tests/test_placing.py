"""Placements that take long are worked out aside: what holds meanwhile, which wish is met, and that nobody waits for the loop."""

import asyncio
import threading

from cluster import placing
from cluster.placing import Aside
from cluster.routing import Routing
from cluster.settings import ClusterSettings
from cluster.table import Table

SETTINGS = ClusterSettings(renew_s=15.0)
THREE = ("a", "b", "c")
UP = {"a": "a1", "b": "b1", "c": "c1"}


class Later:
    """Works when it is told to."""

    def __init__(self):
        self.works = []

    def __call__(self, work, done):
        self.works.append((work, done))

    def finish(self):
        (work, done), self.works = self.works[0], self.works[1:]
        done(work())


def table(monkeypatch):
    monkeypatch.setattr(placing, "ASIDE_CELLS", 8)
    routing, later = Routing(SETTINGS), Later()
    return routing, Table(SETTINGS, routing, aside=later), later


def at_once(routing):
    return Table(SETTINGS, routing)


def test_small_placements_are_worked_out_at_once(monkeypatch):
    _, t, later = table(monkeypatch)
    t.wants("c", 1, 2, 1)
    assert all(t.placed("c", 2, THREE)) and t.is_placed("c", 2, THREE) and not later.works


def test_until_the_first_is_there_nothing_is_placed_and_then_it_is_as_if_it_had_been_worked_out_at_once(monkeypatch):
    routing, t, later = table(monkeypatch)
    t.wants("c", 1, 4, 2)
    for _ in range(3):  # queries
        assert t.placed("c", 4, THREE) == ((),) * 4
    assert len(later.works) == 1 and not t.is_placed("c", 4, THREE)
    assert list(t.due(THREE, UP, 0.0)) == [] and not t.status(THREE, UP)["c"]["settled"]
    later.finish()
    expected = at_once(routing)
    expected.wants("c", 1, 4, 2)
    assert t.placed("c", 4, THREE) == expected.placed("c", 4, THREE)
    assert t.is_placed("c", 4, THREE) and not later.works
    assert {node for node, *_ in t.due(THREE, UP, 0.0)} == set(THREE)


def opens(routing, t, now=0.0):
    for node, corpus, generation, n_shards, shards in list(t.due(THREE, UP, now)):
        t.tell(node, UP[node], corpus, generation, shards, now)
        routing.opened(corpus, generation, n_shards, node, UP[node], shards, now)


def test_another_number_of_replicas_holds_when_it_is_worked_out_and_the_last_wish_is_met(monkeypatch):
    """From 1 replica to 2, and to 3 before that is worked out: what is placed goes from 1 to 3."""
    routing, t, later = table(monkeypatch)
    t.wants("c", 1, 4, 1)
    t.placed("c", 4, THREE)
    later.finish()
    opens(routing, t)
    assert t.status(THREE, UP)["c"]["settled"]
    t.wants("c", 1, 4, 2)
    before = t.placed("c", 4, THREE)
    assert [len(on) for on in before] == [1] * 4
    assert not t.status(THREE, UP)["c"]["settled"]  # as wished for, though all that is placed is open
    t.wants("c", 1, 4, 3)
    assert t.placed("c", 4, THREE) == before
    later.finish()  # that of 2, which nobody wants any more
    assert len(later.works) == 1 and not t.is_placed("c", 4, THREE)
    later.finish()
    assert [len(on) for on in t.placed("c", 4, THREE)] == [3] * 4 and t.is_placed("c", 4, THREE) and not later.works


def test_nodes_that_come_and_go_meanwhile_are_not_worked_out_one_by_one(monkeypatch):
    _, t, later = table(monkeypatch)
    t.wants("c", 1, 8, 1)
    t.placed("c", 8, THREE)
    for nodes in (("a", "b"), ("a", "b", "d"), ("a", "b", "d", "e")):
        assert t.placed("c", 8, nodes) == ((),) * 8
    later.finish()
    assert t.placed("c", 8, ("a", "b")) == t.placed("c", 8, THREE) != ((),) * 8  # the last one there is
    later.finish()
    assert t.is_placed("c", 8, ("a", "b", "d", "e")) or t.is_placed("c", 8, ("a", "b"))
    worked_out = 2
    while later.works:
        later.finish()
        worked_out += 1
    assert worked_out <= 3


def test_opening_what_is_placed_works_out_nothing_anew(monkeypatch):
    routing, t, later = table(monkeypatch)
    t.wants("c", 1, 4, 1)
    t.placed("c", 4, THREE)
    later.finish()
    opens(routing, t)
    assert t.is_placed("c", 4, THREE) and t.placed("c", 4, THREE) and not later.works


def test_one_that_failed_is_begun_again_when_it_is_asked_for(monkeypatch):
    _, t, later = table(monkeypatch)
    t.wants("c", 1, 4, 1)
    t.placed("c", 4, THREE)
    _, done = later.works.pop()
    done(None)
    assert not t.is_placed("c", 4, THREE)
    t.placed("c", 4, THREE)
    later.finish()
    assert all(t.placed("c", 4, THREE))


def test_the_loop_goes_on_while_a_placement_is_worked_out():
    """The work ends only when the loop lets it: were the loop to wait for it, neither would."""

    async def story():
        let, told, outcome = threading.Event(), asyncio.Event(), []
        aside = Aside(told.set)

        def slow():
            assert let.wait(30), "the loop is blocked"
            return "placed"

        aside(slow, outcome.append)
        await asyncio.sleep(0)
        assert not outcome
        let.set()
        await asyncio.wait_for(told.wait(), 30)
        aside(lambda: 1 // 0, outcome.append)
        told.clear()
        await asyncio.wait_for(told.wait(), 30)
        aside.close()
        return outcome

    assert asyncio.run(story()) == ["placed", None]
