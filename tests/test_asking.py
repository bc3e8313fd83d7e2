"""Work asked of replicas, as stories of failing, late and full hosts on an event loop whose clock jumps."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from test_batching import VirtualClock

from cluster.asking import Asking, HostAway, HostFailed, Part, Unavailable, Work
from cluster.batching import Overloaded
from cluster.hedging import N_ENOUGH
from cluster.routing import Routing
from cluster.settings import ClusterSettings

BUDGET_S = 2.0


@dataclass
class Hosts:
    """Hosts that have every shard open. seconds: what a call takes, by host. wrong: what a host raises when its time is over instead.

    asked: (second, host, shards), in order. cancelled: of these, those that nobody waited for.
    """

    up: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)
    wrong: dict[str, Exception] = field(default_factory=dict)
    doubted: dict[str, str] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)
    asked: list[tuple[float, str, tuple[int, ...]]] = field(default_factory=list)
    cancelled: list[tuple[float, str]] = field(default_factory=list)

    async def ask(self, node, _method, request, budget_s):
        now = asyncio.get_running_loop().time()
        self.asked.append((round(now, 3), node, request))
        async with asyncio.timeout(budget_s):
            await asyncio.sleep(self.seconds.get(node, 0.01))
        if node in self.wrong:
            raise self.wrong[node]
        return f"{node}:{request}"

    def cancel(self, node, _method, _key):
        self.cancelled.append((round(asyncio.get_running_loop().time(), 3), node))


def play(story, nodes="abc", n_shards=2, replicas=2, **settings):
    """Runs `story(hosts, asking, work)`; shard i is placed on the hosts from i on."""
    hosts = Hosts({node: f"{node}1" for node in nodes})
    routing = Routing(ClusterSettings(**settings))
    for node in nodes:
        routing.opened("k", 1, n_shards, node, f"{node}1", range(n_shards), 0.0)
    placed = tuple(tuple((nodes * 2)[shard : shard + replicas]) for shard in range(n_shards))
    work = Work("k", 1, placed, "search", lambda _node, shards, _key: shards)
    asking = Asking(routing, hosts.ask, lambda: hosts.up, lambda _method: hosts.full, hosts.cancel, lambda: hosts.doubted)
    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        return runner.run(story(hosts, asking, work))


def answers(parts: list[Part]) -> dict[int, str | None]:
    """By shard, who answered."""
    found = {}
    for part in parts:
        for shard in part.shards:
            assert shard not in found, "a shard was answered twice"
            found[shard] = part.node if part.error is None else None
    return dict(sorted(found.items()))


async def learn(asking: Asking, work: Work) -> None:
    """As many calls as it takes to know what is late: each took 10 ms."""
    for _ in range(2 * N_ENOUGH):
        await asking.parts(work, [0, 1], BUDGET_S)


def test_all_shards_are_asked_at_once_and_each_is_answered_once():
    async def story(hosts, asking, work):
        assert answers(await asking.parts(work, [0, 1], BUDGET_S)) == {0: "a", 1: "b"}
        assert [at for at, _, _ in hosts.asked] == [0.0, 0.0]

    play(story)


def test_what_a_dead_host_was_asked_is_asked_of_a_replica_at_once():
    """a dies 300 ms into its call."""

    async def story(hosts, asking, work):
        hosts.seconds["a"], hosts.wrong["a"] = 0.3, HostAway("its process ended")
        assert answers(await asking.parts(work, [0, 1], BUDGET_S)) == {0: "b", 1: "b"}
        assert hosts.asked == [(0.0, "a", (0,)), (0.0, "b", (1,)), (0.3, "b", (0,))]
        assert asking.counts.retries == 1

    play(story)


def test_without_a_replica_the_shards_of_a_dead_host_are_lost_with_its_reason_and_the_others_are_not():
    async def story(hosts, asking, work):
        hosts.wrong["a"] = HostAway("its process ended")
        del hosts.up["c"]
        for node in "bc":
            asking.routing.told(node, f"{node}1", [{"corpus": "k", "generation": 1, "shard": 1, "of": 2}], 1.0)
        parts = await asking.parts(work, [0, 1], BUDGET_S)
        assert answers(parts) == {0: None, 1: "b"}
        (lost,) = [part for part in parts if part.error]
        assert (lost.node, str(lost.error)) == ("a", "its process ended")

    play(story, replicas=1)


def test_while_a_replica_after_the_other_fails_the_next_is_asked_until_none_is_left():
    async def story(hosts, asking, work):
        hosts.wrong = {node: HostAway(f"{node} is gone") for node in "abc"}
        parts = await asking.parts(work, [0], BUDGET_S)
        assert answers(parts) == {0: None}
        assert [node for _, node, _ in hosts.asked] == ["a", "b", "c"]
        assert str(parts[0].error) == "c is gone"

    play(story, n_shards=1, replicas=3)


def test_a_query_that_its_host_cannot_answer_is_asked_of_a_replica_which_tells_whose_fault_it_is():
    """A damaged copy on a's disk makes it raise; b answers. Later the query itself is bad: nobody is blamed."""

    async def story(hosts, asking, work):
        hosts.wrong["a"] = HostFailed("damaged")
        assert answers(await asking.parts(work, [0], BUDGET_S)) == {0: "b"}
        assert asking.routing.host("a").failed == 1
        hosts.wrong["b"] = HostFailed("bad query")
        assert answers(await asking.parts(work, [0], BUDGET_S)) == {0: None}
        assert (asking.routing.host("a").failed, asking.routing.host("b").failed) == (1, 0)

    play(story, n_shards=1, replicas=2, nodes="ab")


def test_a_late_call_is_hedged_and_the_loser_cancelled():
    """Calls take 10 ms; once a takes 500."""

    async def story(hosts, asking, work):
        await learn(asking, work)
        hosts.asked.clear()
        hosts.seconds["a"] = 0.5
        begun = asyncio.get_running_loop().time()
        assert answers(await asking.parts(work, [0, 1], BUDGET_S)) == {0: "b", 1: "b"}
        now = asyncio.get_running_loop().time()
        assert now - begun < 0.03
        assert [(node, shards) for _, node, shards in hosts.asked] == [("a", (0,)), ("b", (1,)), ("b", (0,))]
        await asyncio.sleep(0)
        assert [node for _, node in hosts.cancelled] == ["a"]
        assert (asking.counts.hedges, asking.counts.hedges_won) == (1, 1)
        assert asking.routing.host("a").outstanding == asking.routing.host("b").outstanding == 0

    play(story)


def test_a_first_answer_that_comes_before_the_hedges_counts():
    async def story(hosts, asking, work):
        await learn(asking, work)
        hosts.seconds = {"a": 0.02, "b": 0.5}
        assert answers(await asking.parts(work, [0], BUDGET_S)) == {0: "a"}
        await asyncio.sleep(0)
        assert [node for _, node in hosts.cancelled] == ["b"]
        assert (asking.counts.hedges, asking.counts.hedges_won) == (1, 0)

    play(story, n_shards=2)


def test_when_all_hosts_are_slow_hedges_stay_a_small_share():
    """From one moment on every call takes ten times as long: 200 queries make 10 hedges, not 200."""

    async def story(hosts, asking, work):
        await learn(asking, work)
        hosts.seconds = dict.fromkeys("abc", 0.1)
        before = asking.counts.calls
        for _ in range(100):
            await asking.parts(work, [0, 1], BUDGET_S)
        calls = asking.counts.calls - before
        assert asking.counts.hedges <= 0.05 * calls + 4  # 4: saved up before
        assert answers(await asking.parts(work, [0, 1], BUDGET_S)).keys() == {0, 1}

    play(story)


def test_a_host_in_doubt_is_not_waited_for_whatever_the_share_of_hedges():
    """a misses a ping: everything it was asked is asked of b, without a percentile to go by."""

    async def story(hosts, asking, work):
        hosts.seconds["a"] = 60.0
        waiting = [asyncio.ensure_future(asking.parts(work, [0], BUDGET_S)) for _ in range(30)]
        await asyncio.sleep(0.5)
        assert not any(query.done() for query in waiting)
        del hosts.up["a"]
        asking.doubt("a")
        found = await asyncio.gather(*waiting)
        assert [answers(parts) for parts in found] == [{0: "b"}] * 30
        assert asyncio.get_running_loop().time() < 0.6

    play(story, n_shards=1, nodes="ab", replicas=2, hedge_share=0.0)


def test_a_hedge_that_fails_leaves_the_first_call_its_time():
    async def story(hosts, asking, work):
        await learn(asking, work)
        hosts.seconds, hosts.wrong = {"a": 0.5}, {"b": HostAway("gone"), "c": HostAway("gone")}
        assert answers(await asking.parts(work, [0], BUDGET_S)) == {0: "a"}

    play(story)


def test_no_answer_in_time_is_late_and_nobody_else_is_asked():
    async def story(hosts, asking, work):
        hosts.seconds["a"] = 60.0
        parts = await asking.parts(work, [0], BUDGET_S)
        assert answers(parts) == {0: None} and isinstance(parts[0].error, TimeoutError)
        assert [node for _, node, _ in hosts.asked] == ["a"]
        assert asyncio.get_running_loop().time() == BUDGET_S

    play(story, n_shards=1, nodes="ab")


def test_a_replica_has_only_the_time_that_is_left():
    async def story(hosts, asking, work):
        hosts.seconds, hosts.wrong["a"] = {"a": 1.5, "b": 60.0}, HostAway("gone")
        parts = await asking.parts(work, [0], BUDGET_S)
        assert answers(parts) == {0: None} and asyncio.get_running_loop().time() == BUDGET_S

    play(story, n_shards=1, nodes="ab")


def test_where_all_replicas_are_full_the_caller_is_refused_before_anybody_works():
    async def story(hosts, asking, work):
        hosts.full = {"a"}
        assert answers(await asking.parts(work, [0, 1], BUDGET_S)) == {0: "b", 1: "c"}
        hosts.full = {"a", "b", "c"}
        hosts.asked.clear()
        with pytest.raises(Overloaded, match="All replicas of 2 shards have as many queries waiting as they take") as refused:
            await asking.parts(work, [0, 1], BUDGET_S)
        assert refused.value.status == 429 and refused.value.retry_after_s >= 1
        assert hosts.asked == [] and asking.counts.refused == 1

    play(story)


def test_where_no_host_is_up_the_caller_is_told_when_to_come_again():
    async def story(hosts, asking, work):
        hosts.up.clear()
        with pytest.raises(Unavailable, match="No host is up") as refused:
            await asking.parts(work, [0, 1], BUDGET_S)
        assert refused.value.status == 503 and refused.value.retry_after_s >= 1

    play(story)


def test_hosts_that_all_missed_a_ping_at_once_are_asked_rather_than_nobody():
    async def story(hosts, asking, work):
        hosts.up, hosts.doubted = {}, hosts.up
        assert answers(await asking.parts(work, [0, 1], BUDGET_S)) == {0: "a", 1: "b"}
        hosts.doubted = {}
        with pytest.raises(Unavailable):
            await asking.parts(work, [0, 1], BUDGET_S)

    play(story)


def test_a_caller_who_leaves_takes_all_his_calls_with_him():
    async def story(hosts, asking, work):
        await learn(asking, work)
        hosts.seconds = dict.fromkeys("abc", 60.0)
        query = asyncio.ensure_future(asking.parts(work, [0, 1], BUDGET_S))
        await asyncio.sleep(1.0)  # each has been hedged
        query.cancel()
        with pytest.raises(asyncio.CancelledError):
            await query
        await asyncio.sleep(0)
        assert len(hosts.cancelled) == 2 + asking.counts.hedges
        assert all(asking.routing.host(node).outstanding == 0 for node in "abc")

    play(story)


def test_a_shard_that_one_host_cannot_open_is_asked_of_another_and_its_answer_for_the_rest_is_kept():
    """a's copy of shard 1 is damaged: its answer says so. c has it; later nobody has."""

    async def story(hosts, asking, work):
        broken = {"a"}

        async def ask(node, _method, shards, _budget_s):
            hosts.asked.append((0.0, node, shards))
            return {shard: "failed" if node in broken and shard == 1 else "ready" for shard in shards}

        asking.ask = ask
        work = replace(
            work,
            failed=lambda answer: [shard for shard, state in answer.items() if state == "failed"],
            without=lambda answer, gone: {shard: state for shard, state in answer.items() if shard not in gone},
        )
        busy = asking.routing.began("c", "k", "search", 50, 0.0)  # so that a is asked for both
        parts = await asking.parts(work, [0, 1], BUDGET_S)
        assert answers(parts) == {0: "a", 1: "c"}
        assert [part.answer for part in parts] == [{0: "ready"}, {1: "ready"}]
        assert asking.routing.host("a").failed == 1
        broken |= {"c"}
        parts = await asking.parts(work, [0, 1], BUDGET_S)
        said = [item for part in parts for item in part.answer.items()]
        assert sorted(said) == [(0, "ready"), (1, "failed")]  # once, by whoever it was
        assert asking.routing.host("c").failed == 0  # it is the shard's fault
        asking.routing.ended(busy, "answered", 0.0)

    play(story, nodes="ac", n_shards=2, replicas=2)
