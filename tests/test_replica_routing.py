"""Whom a query is sent to: by what is open where, by load, past hosts that fail. No clock but the one that is passed."""

import pytest

from cluster.circuit import Breaker
from cluster.hedging import BURST, FLOOR_S, N_ENOUGH, Hedging
from cluster.routing import UNKNOWN_S, Routing
from cluster.settings import ClusterSettings

SETTINGS = ClusterSettings(circuit_failures=3, circuit_pause_s=1.0)
UP = {"a": "a1", "b": "b1", "c": "c1"}


@pytest.fixture
def routing() -> Routing:
    return Routing(SETTINGS)


def opened(routing: Routing, node: str, *shards: int, generation: int = 1, of: int = 4) -> None:
    routing.opened("k", generation, of, node, UP[node], shards, now=0.0)


def choose(routing: Routing, placed, generation: int = 1, now: float = 0.0, **limits) -> dict[str, tuple[int, ...]]:
    up = limits.pop("up", UP)
    return routing.choose("k", generation, placed, up, now, **limits)


def takes(routing: Routing, seconds: float) -> None:
    """What a shard's part of a query takes, as hosts told."""
    for n in range(1, 40):
        routing.reported("c", "c1", {"by_corpus": {"k": {"shards": n, "busy_s": n * seconds}}})


# --- where a shard is open ---------------------------------------------------------------------------------------------------


def test_each_shard_is_asked_of_one_host_that_has_it_open(routing):
    opened(routing, "a", 0, 1)
    opened(routing, "b", 2, 3)
    assert choose(routing, [("a",), ("a",), ("b",), ("b",)]) == {"a": (0, 1), "b": (2, 3)}


def test_an_old_owner_is_asked_until_the_new_one_has_opened_the_shard(routing):
    """A shard moves from a to b: never is it asked of a host that would first have to open it."""
    opened(routing, "a", 0)
    moved = [("b",)]
    assert choose(routing, moved) == {"a": (0,)}
    assert routing.to_open("k", 1, moved, UP) == {"b": (0,)}
    assert not routing.settled("k", 1, moved, UP)
    opened(routing, "b", 0)
    assert choose(routing, moved) == {"b": (0,)}
    assert routing.to_open("k", 1, moved, UP) == {} and routing.settled("k", 1, moved, UP)


def test_what_nobody_has_open_is_asked_of_whom_it_is_placed_on(routing):
    assert choose(routing, [("c", "b"), ("b",)]) == {"b": (0, 1)} or choose(routing, [("c",), ("b",)]) == {"c": (0,), "b": (1,)}


def test_what_no_living_host_has_or_gets_is_asked_of_nobody_and_the_rest_is_asked(routing):
    opened(routing, "b", 1)
    assert choose(routing, [("a",), ("b",)], up={"b": "b1"}) == {"": (0,), "b": (1,)}


def test_a_host_that_was_restarted_has_nothing_open(routing):
    opened(routing, "a", 0)
    opened(routing, "b", 0)
    assert choose(routing, [("a", "b")], up={"a": "a1", "b": "b1"}) == {"a": (0,)}
    assert choose(routing, [("a", "b")], up={"a": "a2", "b": "b1"}) == {"b": (0,)}


def test_generations_are_open_each_for_itself(routing):
    opened(routing, "a", 0, generation=1)
    opened(routing, "b", 0, generation=2)
    assert choose(routing, [("a", "b")], generation=1) == {"a": (0,)}
    assert choose(routing, [("a", "b")], generation=2) == {"b": (0,)}


def test_a_ping_tells_what_is_open_and_what_was_opened_since_it_was_sent_stays(routing):
    """b opens shard 1 while its answer to a ping of before is on the way, in which it has let go of shard 0."""
    opened(routing, "b", 0)
    routing.opened("k", 1, 4, "b", "b1", [1], now=2.0)
    routing.told("b", "b1", [{"corpus": "k", "generation": 1, "shard": 3, "of": 4}], asked=1.0)
    assert sorted(routing.has_open("b", "b1", "k", 1)) == [1, 3]
    assert routing.held("k") == {"b": ((4, 1), (4, 3))}
    routing.told("b", "b1", [], asked=3.0)
    assert routing.held("k") == {}


def test_the_version_changes_when_and_only_when_something_was_opened_or_closed(routing):
    rows = [{"corpus": "k", "generation": 1, "shard": 0, "of": 4}]
    routing.told("a", "a1", rows, asked=1.0)
    version = routing.version
    routing.told("a", "a1", rows, asked=2.0)
    opened(routing, "a", 0)
    assert routing.version == version
    routing.told("a", "a1", [], asked=3.0)
    assert routing.version > version


def test_a_host_that_has_missed_a_ping_is_asked_only_for_what_no_other_has_open(routing):
    """On a starved machine all pings may be late at once; then all are asked as ever."""
    opened(routing, "a", 0, 1)
    opened(routing, "b", 0)
    placed = [("a", "b"), ("a", "b")]
    assert choose(routing, placed, doubted={"a"}) == {"a": (1,), "b": (0,)}
    opened(routing, "c", 1)  # an old owner
    assert choose(routing, placed, doubted={"a"}) == {"b": (0,), "c": (1,)}
    assert choose(routing, placed, doubted={"a", "b", "c"}).keys() <= {"a", "b", "c"}


# --- load --------------------------------------------------------------------------------------------------------------------


def everywhere(routing: Routing, nodes: str = "ab", n_shards: int = 4) -> list[tuple[str, ...]]:
    for node in nodes:
        opened(routing, node, *range(n_shards), of=n_shards)
    return [tuple(nodes)] * n_shards


def test_small_shards_are_asked_of_few_hosts_and_large_ones_of_many(routing):
    placed = everywhere(routing)
    takes(routing, 0.0001)
    assert choose(routing, placed) == {"a": (0, 1, 2, 3)}
    takes(routing, 0.05)
    takes(routing, 0.05)
    assert choose(routing, placed) == {"a": (0, 2), "b": (1, 3)}


def test_the_host_with_less_in_hand_is_asked_and_the_preferred_one_where_they_are_equal(routing):
    placed = everywhere(routing, n_shards=1)
    assert choose(routing, placed) == {"a": (0,)}
    call = routing.began("a", "k", "search", 1, now=0.0)
    assert choose(routing, placed) == {"b": (0,)}
    routing.ended(call, "answered", now=0.1)
    assert choose(routing, placed) == {"a": (0,)}


def test_what_other_coordinators_ask_of_a_host_counts_too(routing):
    placed = everywhere(routing, n_shards=1)
    routing.reported("a", "a1", {"running": 2, "waiting": 3, "searches": 10, "busy_s": 1.0})
    assert choose(routing, placed) == {"b": (0,)}


def test_the_host_of_the_own_node_is_preferred_as_its_calls_cost_less():
    routing = Routing(SETTINGS, near="b")
    assert choose(routing, everywhere(routing, n_shards=1)) == {"b": (0,)}


def test_a_full_host_is_asked_only_where_all_are_full(routing):
    placed = everywhere(routing, n_shards=1)
    assert choose(routing, placed, full={"a"}) == {"b": (0,)}
    assert choose(routing, placed, full={"a", "b"}) == {"a": (0,)}


def test_load_is_spread_evenly_over_many_queries(routing):
    """100 queries under way at once on 3 hosts that have everything."""
    placed = everywhere(routing, "abc", n_shards=2)
    for _ in range(100):
        for node, shards in choose(routing, placed).items():
            routing.began(node, "k", "search", len(shards), now=0.0)
    outstanding = [routing.host(node).outstanding for node in "abc"]
    work_s = [routing.host(node).work_s for node in "abc"]
    assert max(work_s) - min(work_s) <= 2 * UNKNOWN_S + 1e-9, outstanding


# --- hosts that fail ---------------------------------------------------------------------------------------------------------


def lose(routing: Routing, node: str, now: float, outcome="failed") -> None:
    routing.ended(routing.began(node, "k", "search", 1, now), outcome, now)


def test_a_host_that_loses_calls_in_a_row_is_asked_no_more_until_a_trial_succeeds(routing):
    placed = everywhere(routing, n_shards=1)
    for _ in range(3):
        lose(routing, "a", now=0.0)
    assert (routing.circuit("a", 0.5), choose(routing, placed, now=0.5)) == ("open", {"b": (0,)})
    assert (routing.circuit("a", 1.0), choose(routing, placed, now=1.0)) == ("half-open", {"a": (0,)})
    trial = routing.began("a", "k", "search", 1, now=1.0)
    assert choose(routing, placed, now=1.0) == {"b": (0,)}  # one trial at a time
    routing.ended(trial, "answered", now=1.1)
    assert (routing.circuit("a", 1.1), choose(routing, placed, now=1.1)) == ("closed", {"a": (0,)})


def test_a_host_that_alone_has_a_shard_is_asked_however_often_it_failed(routing):
    opened(routing, "a", 0)
    for _ in range(9):
        lose(routing, "a", now=0.0)
    assert choose(routing, [("a",)]) == {"a": (0,)}


def test_a_new_process_does_not_inherit_the_failures_of_the_last(routing):
    for _ in range(3):
        lose(routing, "a", now=0.0)
    routing.reported("a", "a2", {})
    assert routing.circuit("a", 0.1) == "closed"


def test_a_query_that_was_given_too_little_time_is_not_its_hosts_fault(routing):
    for _ in range(N_ENOUGH + 5):
        routing.ended(routing.began("a", "k", "search", 1, 0.0), "answered", 0.1)
    for _ in range(9):
        routing.ended(routing.began("a", "k", "search", 1, 1.0), "late", 1.02)
    assert routing.circuit("a", 1.1) == "closed"
    for _ in range(9):
        routing.ended(routing.began("a", "k", "search", 1, 2.0), "late", 4.0)
    assert routing.circuit("a", 4.0) == "open"


def test_a_breakers_pause_doubles_with_every_trial_that_fails_and_starts_anew_after_success():
    breaker = Breaker(failures=2, pause_s=1.0)
    breaker.failed(0.0)
    assert breaker.state(0.0) == "closed"
    breaker.failed(0.0)
    states = []
    for now in (0.9, 1.0, 2.9, 3.0, 6.9, 7.0):
        states.append((now, breaker.state(now)))
        if breaker.lets_through(now):
            breaker.began(now)
            breaker.failed(now)
    assert states == [(0.9, "open"), (1.0, "half-open"), (2.9, "open"), (3.0, "half-open"), (6.9, "open"), (7.0, "half-open")]
    breaker.succeeded()
    assert breaker.state(7.0) == "closed"


def test_a_trial_that_was_given_up_is_made_again():
    breaker = Breaker(failures=1, pause_s=1.0)
    breaker.failed(0.0)
    breaker.began(1.0)
    assert not breaker.lets_through(1.0)
    breaker.given_up()
    assert breaker.lets_through(1.0)


# --- hedging -----------------------------------------------------------------------------------------------------------------


def test_a_call_is_late_after_the_quantile_of_its_kinds_latest_times():
    hedging = Hedging(quantile=0.95, share=0.05)
    for milliseconds in range(1, N_ENOUGH):
        hedging.took("near", milliseconds / 1000)
    assert hedging.after_s("near") is None  # too little is known
    for milliseconds in range(N_ENOUGH, 101):
        hedging.took("near", milliseconds / 1000)
    assert hedging.after_s("near") == pytest.approx(0.09, abs=0.01)
    assert hedging.after_s("far") is None


def test_a_hedge_is_never_made_sooner_than_it_could_win():
    hedging = Hedging(quantile=0.95, share=0.05)
    for _ in range(100):
        hedging.took("near", 0.0001)
    assert hedging.after_s("near") == FLOOR_S


def test_hedges_are_a_small_share_of_calls_whatever_happens():
    hedging = Hedging(quantile=0.95, share=0.05)
    made = 0
    for _ in range(1_000):
        hedging.began()
        made += hedging.take()
    assert 49 <= made <= 50
    for _ in range(10_000):
        hedging.began()
    burst = 0
    while hedging.take():
        burst += 1
    assert burst == BURST
