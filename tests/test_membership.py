"""Races are lists of events: what the membership machine decides, second by second, without clock, network or Ray."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.membership import (
    Abandon,
    Answered,
    Membership,
    NodesSeen,
    Ping,
    PingFailed,
    PingMissed,
    QueryFailed,
    QueryMissed,
    Restart,
    Start,
    Stop,
    Tick,
    Warm,
    Warmed,
)
from cluster.settings import ClusterSettings

# Seconds in this file are multiples of 1/8, so that sums are exact.
SETTINGS = ClusterSettings(heartbeat_s=1.0, probe_s=0.25, frozen_pings=3, start_timeout_s=60.0, max_hosts=2)


def nodes(*names):
    return NodesSeen(frozenset(names))


@pytest.fixture
def told():
    """A membership with one ready host "a" whose process is "a1", at second 0."""
    return running()


def running():
    told = Membership(SETTINGS)
    assert told.handle(nodes("a"), 0.0) == [Start("a")]
    assert told.handle(Tick(), 0.0) == [Ping("a")]
    assert not told.ready("a")
    assert told.handle(Answered("a", "a1"), 0.0) == [Warm("a")]
    assert told.handle(Warmed("a"), 0.0) == []
    assert told.ready("a")
    return told


def play(told, story):
    """Plays (second, event, actions expected)."""
    for now, event, expected in story:
        assert told.handle(event, now) == expected, (now, event)


def test_a_healthy_host_is_pinged_once_per_heartbeat_and_warmed_only_once(told):
    play(
        told,
        [
            (0.875, Tick(), []),
            (1.0, Tick(), [Ping("a")]),
            (1.125, Tick(), []),  # one ping at a time
            (1.25, Answered("a", "a1"), []),
            (2.25, Tick(), [Ping("a")]),
        ],
    )


def test_a_killed_process_stops_getting_queries_with_the_first_failed_one_and_returns_with_the_first_ping(told):
    """SIGKILL at 0.5 s; Ray has the process back at 1.25 s."""
    play(told, [(0.5, QueryFailed("a", "a1", "unavailable"), [Abandon("a", "unavailable"), Ping("a")])])
    assert not told.ready("a")
    assert told.reason("a") == "restarting: unavailable"
    play(
        told,
        [
            (0.625, PingFailed("a", "unavailable"), []),
            (0.75, Tick(), []),
            (0.875, Tick(), [Ping("a")]),
            (1.25, Answered("a", "a2"), [Warm("a")]),
        ],
    )
    assert told.ready("a") and told.reason("a") == ""


def test_a_second_query_that_failed_with_the_same_process_changes_nothing(told):
    play(
        told,
        [
            (0.5, QueryFailed("a", "a1", "x"), [Abandon("a", "x"), Ping("a")]),
            (0.5, QueryFailed("a", "a1", "x"), []),
        ],
    )


def test_late_news_of_the_old_process_does_not_condemn_the_new_one(told):
    """Two queries were under way; the failure of one arrives after the new process has answered."""
    play(
        told,
        [
            (0.5, QueryFailed("a", "a1", "x"), [Abandon("a", "x"), Ping("a")]),
            (1.25, Answered("a", "a2"), [Warm("a")]),
            (1.375, QueryFailed("a", "a1", "x"), []),
        ],
    )
    assert told.ready("a")


def test_a_slow_query_only_brings_the_next_ping_forward(told):
    """It may have had 1 ms; the host goes on getting queries."""
    play(told, [(0.25, QueryMissed("a"), [Ping("a")]), (0.25, QueryMissed("a"), [])])
    assert told.ready("a")


def test_a_frozen_process_is_killed_after_three_unanswered_pings(told):
    """SIGSTOP: nothing fails, nothing answers."""
    play(told, [(1.0, Tick(), [Ping("a")]), (2.0, PingMissed("a"), [])])
    assert not told.ready("a")
    assert told.reason("a") == "suspect: 1 pings without answer"
    reason = "killed after 3 pings without answer"
    play(
        told,
        [
            (2.25, Tick(), [Ping("a")]),
            (3.25, PingMissed("a"), []),
            (3.5, Tick(), [Ping("a")]),
            (4.5, PingMissed("a"), [Abandon("a", reason), Restart("a")]),
        ],
    )
    assert told.reason("a") == f"restarting: {reason}"


def test_a_suspect_host_of_which_a_query_says_that_it_is_gone_is_suspected_no_longer(told):
    """It had missed a ping and was still asked, for nobody else had its shards; then its process died."""
    play(
        told,
        [
            (1.0, Tick(), [Ping("a")]),
            (2.0, PingMissed("a"), []),
            (2.125, QueryFailed("a", "a1", "unavailable"), [Abandon("a", "unavailable"), Ping("a")]),
        ],
    )
    assert told.reason("a") == "restarting: unavailable"


def test_a_host_that_only_hung_for_a_moment_is_used_again_without_a_restart(told):
    play(
        told,
        [
            (1.0, Tick(), [Ping("a")]),
            (2.0, PingMissed("a"), []),
            (2.25, Tick(), [Ping("a")]),
            (2.375, Answered("a", "a1"), []),
        ],
    )
    assert told.ready("a")


def test_the_last_words_of_a_process_that_was_told_to_die_do_not_count(told):
    play(told, freeze(told))
    play(told, [(4.75, Tick(), [Ping("a")]), (4.875, Answered("a", "a1"), [])])  # thawed before the kill arrived
    assert not told.ready("a")
    play(told, [(5.125, Tick(), [Ping("a")]), (5.5, Answered("a", "a2"), [Warm("a")])])
    assert told.ready("a")


def freeze(told):
    reason = "killed after 3 pings without answer"
    return [
        (1.0, Tick(), [Ping("a")]),
        (2.0, PingMissed("a"), []),
        (2.25, Tick(), [Ping("a")]),
        (3.25, PingMissed("a"), []),
        (3.5, Tick(), [Ping("a")]),
        (4.5, PingMissed("a"), [Abandon("a", reason), Restart("a")]),
    ]


def test_a_process_that_is_starting_may_miss_pings_for_a_minute():
    told = Membership(SETTINGS)
    told.handle(nodes("a"), 0.0)
    now = 0.0
    while now < 58.0:
        assert told.handle(Tick(), now) == [Ping("a")]
        assert told.handle(PingMissed("a"), now + 1.0) == []
        now += 1.25
    told.handle(Tick(), 59.0)
    assert told.handle(PingMissed("a"), 60.0)[-1] == Restart("a")


def test_an_actor_that_died_for_good_is_started_again_with_growing_pauses(told):
    play(told, [(1.0, Tick(), [Ping("a")]), (1.125, PingFailed("a", "died", for_good=True), [Abandon("a", "died"), Start("a")])])
    assert told.reason("a") == "starting: died"
    now, pauses = 1.125, []
    for _ in range(8):
        begun = now
        while told.handle(Tick(), now) == []:
            now += 0.125
        pauses.append(now - begun)
        assert Start("a") in told.handle(PingFailed("a", "no room", for_good=True), now)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_node_that_left_takes_its_host_with_it_and_news_of_it_is_ignored(told):
    play(
        told,
        [
            (3.0, nodes(), [Abandon("a", "its node left the cluster"), Stop("a")]),
            (3.125, Answered("a", "a1"), []),
            (3.125, QueryFailed("a", "a1", "x"), []),
        ],
    )
    assert told.nodes == () and not told.ready("a") and told.reason("a") == "no host on this node"


def test_nodes_beyond_the_limit_wait_until_there_is_a_place(told):
    play(told, [(1.0, nodes("a", "b", "c"), [Start("b")])])
    assert told.nodes == ("a", "b")
    play(told, [(2.0, nodes("b", "c"), [Abandon("a", "its node left the cluster"), Stop("a"), Start("c")])])
    assert told.nodes == ("b", "c")


def test_the_first_hosts_have_their_shards_from_the_start_for_nobody_else_could_serve_them():
    told = Membership(SETTINGS)
    told.handle(nodes("a", "b"), 0.0)
    assert told.serving == ("a", "b") and not told.ready("a")


def test_a_new_host_gets_shards_only_when_it_is_warm(told):
    """Until then the others keep its share: adding a node makes no answer partial."""
    play(told, [(1.0, nodes("a", "b"), [Start("b")]), (1.0, Tick(), [Ping("a"), Ping("b")])])
    assert told.serving == ("a",)
    play(told, [(2.0, Answered("b", "b1"), [Warm("b")])])
    assert told.serving == ("a",)
    play(told, [(9.0, Warmed("b"), [])])
    assert told.serving == ("a", "b")


def test_a_restart_moves_no_shards(told):
    told.handle(QueryFailed("a", "a1", "x"), 0.5)
    assert told.serving == ("a",)


def test_a_host_that_stays_away_for_a_minute_is_given_up_until_it_answers_again(told):
    now = 0.5
    told.handle(QueryFailed("a", "a1", "x"), now)
    while now < 59.0:
        told.handle(PingFailed("a", "x"), now)
        now += 1.0
        told.handle(Tick(), now)
        assert told.serving == ("a",)
    told.handle(PingFailed("a", "x"), 60.0)
    told.handle(Tick(), 60.0)
    assert told.serving == () and told.nodes == ("a",)
    play(told, [(70.0, Answered("a", "a2"), [Warm("a")]), (71.0, Warmed("a"), [])])
    assert told.serving == ("a",)


def test_a_coordinator_that_was_suspended_gives_no_host_up(told):
    """Its machine slept for an hour. Nobody has listened, so silence is no sign; the ping that is due goes out."""
    play(told, [(1.0, Tick(), [Ping("a")]), (1.125, Answered("a", "a1"), []), (3601.0, Tick(), [Ping("a")])])
    assert told.serving == ("a",) and told.ready("a")
    play(told, [(3602.0, PingMissed("a"), [])])
    assert told.serving == ("a",) and told.reason("a") == "suspect: 1 pings without answer"
    play(told, [(3602.25, Tick(), [Ping("a")]), (3602.375, Answered("a", "a1"), [])])
    assert told.ready("a")


def test_a_coordinator_that_was_suspended_kills_no_process_that_is_starting():
    told = Membership(SETTINGS)
    told.handle(nodes("a"), 0.0)
    told.handle(Tick(), 0.0)
    assert told.handle(PingMissed("a"), 1.0) == []
    assert told.handle(Tick(), 101.0) == [Ping("a")]
    assert told.handle(PingMissed("a"), 102.0) == []
    assert told.serving == ("a",)


def test_a_process_that_is_killed_again_and_again_says_why_in_one_line():
    told = Membership(SETTINGS)
    told.handle(nodes("a"), 0.0)
    for begun in (0.0, 60.0, 120.0):
        for second in range(1, 60):
            assert told.handle(Tick(), begun + second) == [Ping("a")]
            assert told.handle(PingMissed("a"), begun + second) == []
        told.handle(Tick(), begun + 60.0)
        assert told.handle(PingMissed("a"), begun + 60.0) == [Abandon("a", "killed after 60 s without an answer"), Restart("a")]
    assert told.reason("a") == "restarting: killed after 60 s without an answer"


event = st.one_of(
    st.builds(lambda names: NodesSeen(frozenset(names)), st.sets(st.sampled_from("abc"))),
    st.builds(QueryMissed, st.sampled_from("abc")),
    st.builds(QueryFailed, st.sampled_from("abc"), st.sampled_from(["1", "2"]), st.just("x")),
    st.builds(Warmed, st.sampled_from("abc")),
    st.just(Tick()),
)
outcome = st.one_of(
    st.builds(lambda i: lambda node: Answered(node, i), st.sampled_from(["1", "2", "3"])),
    st.just(PingMissed),
    st.builds(lambda good: lambda node: PingFailed(node, "x", good), st.booleans()),
)


@given(st.lists(st.tuples(st.floats(0, 5), event | outcome), max_size=60))
def test_whatever_happens_there_is_one_ping_at_a_time_and_a_fresh_process_is_always_taken_in(story):
    told, now, pinging, started = Membership(SETTINGS), 0.0, set(), set()
    for pause, step in story:
        now += pause
        if callable(step):  # the outcome of a ping that is under way
            if not pinging:
                continue
            step = step(sorted(pinging)[0])
            pinging.discard(step.node)
        for action in told.handle(step, now):
            if isinstance(action, Ping):
                assert action.node not in pinging
                pinging.add(action.node)
            elif isinstance(action, Start):
                started.add(action.node)
            elif isinstance(action, Stop):
                pinging.discard(action.node)
                started.discard(action.node)
            else:
                assert action.node in started
        assert set(told.serving) <= set(told.nodes) == started and len(started) <= SETTINGS.max_hosts
        assert all(told.ready(node) == (told.reason(node) == "") for node in "abc")
    now += 11.0  # longer than any pause
    pinging |= {action.node for action in told.handle(Tick(), now) if isinstance(action, Ping)}
    assert pinging >= set(told.nodes)
    for node in told.nodes:
        told.handle(Answered(node, "fresh"), now)
        assert told.ready(node)
