"""Hosts as real Ray actors on two nodes: killed, frozen, slow, broken, joined and gone."""

import asyncio
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from light_host import N_SHARDS, LightHost, shard_of
from ray_cluster import NODE, fresh_namespace, patience, until

from cluster import placing
from cluster.asking import Unavailable
from cluster.settings import ClusterSettings, HostSettings
from shards.errors import NotFound, SondageError
from shards.identity import content_hash
from shards.plan import Everything, Plan, SpaceQuery

pytestmark = pytest.mark.ray

TEXTS = [f"document {i} speaks of {'birds' if i % 3 else 'fish and fish'}" for i in range(60)]
FISH = {content_hash(text.encode()): float(text.count("fish")) for text in TEXTS if "fish" in text}
# Quick to see that something is wrong; start-up keeps its minute, for machines are busy.
QUICK = {"discovery_s": 0.25, "heartbeat_s": 0.5, "probe_s": 0.1, "ping_timeout_s": 1.0, "frozen_pings": 2}


@pytest.fixture(scope="module")
def host_settings(tmp_path_factory: pytest.TempPathFactory) -> HostSettings:
    folder = tmp_path_factory.mktemp("texts")
    for i, text in enumerate(TEXTS):
        (folder / f"{i}.txt").write_text(text)
    return HostSettings(store_url=str(folder), cache_dir=folder, memory_bytes=100 * 2**20)


@pytest.fixture(scope="module")
def shared_namespace(cluster: object) -> Iterator[str]:
    """The hosts of this module: what a test kills is back before the next begins."""
    with fresh_namespace("cluster") as name:
        yield name


@pytest.fixture
def hosts(shared_namespace: str, host_settings: HostSettings):
    """Opens a searcher whose two hosts are ready."""

    @asynccontextmanager
    async def opened(n_hosts: int = 2, **settings):
        from cluster.actors import remote_host
        from cluster.searcher import RaySearcher

        cluster = ClusterSettings(namespace=shared_namespace, **{**QUICK, **settings})
        async with RaySearcher(cluster, host_settings, remote_host(LightHost)) as searcher:
            await until(lambda: states(searcher) == ["ready"] * n_hosts)
            yield searcher

    return opened


def states(searcher) -> list[str]:
    membership = searcher.controller.membership
    return [membership.state(node) for node in membership.nodes]


def plan(word: str = "fish", budget_s: float = 5.0, **payload) -> Plan:
    return Plan(Everything(), (SpaceQuery("count", word, {"word": word, **payload}),), budget_s=budget_s)


async def ask(searcher, asked: Plan):
    """(hits, coverage by shard) of one query, checked for what must always hold."""
    begun = time.monotonic()
    answers = await searcher.search("texts", 1, N_SHARDS, asked)
    seconds = time.monotonic() - begun
    hits = {h.tobytes(): score for a in answers for h, (score,) in zip(a.hashes, a.scores.tolist(), strict=True)}
    coverage = [status for a in answers for status in a.status]
    assert sorted(s.shard for s in coverage) == list(range(N_SHARDS))  # each shard once, looked at or not
    covered = {s.shard for s in coverage if s.state == "ready"}
    assert hits == {h: n for h, n in FISH.items() if shard_of(h) in covered}  # nothing wrong, nothing lost without a word
    assert all(s.reason.startswith(("host ", "no host")) for s in coverage if s.state != "ready")
    assert seconds < asked.budget_s + 1.0
    return hits, {s.shard: s for s in coverage}


async def watch(searcher, done, asked: Plan, pause_s: float = 0.01):
    """Asks until `done(coverage states)`; returns [(seconds, set of coverage states, seconds of the query)], changes only."""
    begun, seen = time.monotonic(), []
    while True:
        at = time.monotonic() - begun
        assert at < 60, seen
        _, coverage = await ask(searcher, asked)
        kinds = {s.state for s in coverage.values()}
        if not seen or seen[-1][1] != kinds:
            seen.append((round(at, 2), kinds, round(time.monotonic() - begun - at, 2)))
        if done(seen):
            return seen
        await asyncio.sleep(pause_s)


def test_two_hosts_cover_every_shard_once_and_find_everything(hosts):
    async def story():
        async with hosts() as searcher:
            hits, coverage = await ask(searcher, plan())
            assert hits == FISH
            assert {s.state for s in coverage.values()} == {"ready"}
            routes = searcher.routes("texts", 1, N_SHARDS)
            assert sorted(map(len, routes.values())) == [4, 4]

    asyncio.run(story())


def test_placements_that_are_worked_out_aside_are_waited_for_where_nothing_was_placed_before(hosts, monkeypatch):
    """As if each took long: whoever comes first waits for the first one, and hosts open what it gives them."""
    monkeypatch.setattr(placing, "ASIDE_CELLS", 1)

    async def story():
        async with hosts() as searcher:
            assert not searcher.table.is_placed("texts", 1, searcher.controller.membership.serving)
            hits, coverage = await ask(searcher, plan())
            assert hits == FISH and {s.state for s in coverage.values()} == {"ready"}
            assert sorted(map(len, searcher.routes("texts", 1, N_SHARDS).values())) == [4, 4]
            await searcher.warm("texts", 2, N_SHARDS, replicas=2)
            assert all(len(on) == 2 for on in searcher.table.placed("texts", N_SHARDS, searcher.controller.membership.serving))

    asyncio.run(story())


def test_a_killed_host_is_missed_honestly_and_whole_again_within_5_seconds(hosts):
    """SIGKILL under a stream of queries: whole, then partial and marked, then whole again."""

    async def story():
        async with hosts() as searcher:
            await ask(searcher, plan())
            pid = (await searcher.status())["hosts"][0]["pid"]
            os.kill(pid, signal.SIGKILL)
            seen = await watch(searcher, lambda seen: len(seen) > 1 and seen[-1][1] == {"ready"}, plan())
            assert {frozenset(kinds) for _, kinds, _ in seen} <= {frozenset({"ready"}), frozenset({"ready", "missing"})}
            assert seen[-1][0] < patience(5.0)
            new = (await searcher.status())["hosts"][0]
            assert new["pid"] != pid
            shards = list(searcher.routes("texts", 1, N_SHARDS)[new["node"]])
            await until(lambda: searcher.controller.status(new["node"])["opened"] == shards)  # warmed before a query needs it
            print(f"SIGKILL: {seen}")

    asyncio.run(story())


def test_while_a_host_is_away_queries_do_not_wait_for_it(hosts):
    async def story():
        async with hosts() as searcher:
            await ask(searcher, plan())
            pid = (await searcher.status())["hosts"][0]["pid"]
            os.kill(pid, signal.SIGKILL)

            async def noticed() -> bool:  # a process that Ray had at hand may be there before the next ping
                return states(searcher).count("ready") == 1 or (await searcher.status())["hosts"][0].get("pid") not in (None, pid)

            await until(noticed)
            begun = time.monotonic()
            await ask(searcher, plan(budget_s=30.0))
            assert time.monotonic() - begun < 10.0  # of 30: the time was not spent on waiting for the host
            await until(lambda: states(searcher) == ["ready"] * 2)

    asyncio.run(story())


def test_a_frozen_host_is_late_then_missing_then_killed_and_replaced(hosts):
    async def story():
        async with hosts() as searcher:
            await ask(searcher, plan())
            pid = (await searcher.status())["hosts"][0]["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                seen = await watch(searcher, lambda seen: len(seen) > 1 and seen[-1][1] == {"ready"}, plan(budget_s=0.3))
            except BaseException:
                os.kill(pid, signal.SIGKILL)
                raise
            kinds = [kinds for _, kinds, _ in seen]
            assert {"ready", "late"} in kinds and {"ready", "missing"} in kinds
            assert (await searcher.status())["hosts"][0]["pid"] != pid
            print(f"SIGSTOP: {seen}")

    asyncio.run(story())


def test_a_slow_query_is_late_at_its_deadline_and_its_host_stays_in_use(hosts):
    async def story():
        async with hosts() as searcher:
            _, coverage = await ask(searcher, plan(budget_s=0.2, sleep_s=1.0))
            assert {s.state for s in coverage.values()} == {"late"}
            assert "no answer within 0.2 s" in coverage[0].reason
            assert states(searcher) == ["ready"] * 2
            assert (await ask(searcher, plan()))[0] == FISH

    asyncio.run(story())


def test_an_exception_in_a_host_fails_its_shards_for_that_query_alone(hosts):
    """The bad query rides with good ones, which must be answered."""

    async def story():
        async with hosts() as searcher:
            bad = searcher.search("texts", 1, N_SHARDS, plan(**{"raise": "divided by a cucumber"}))
            outcome, *good = await asyncio.gather(bad, *(ask(searcher, plan()) for _ in range(10)))
            statuses = [status for answer in outcome for status in answer.status]
            assert {s.state for s in statuses} == {"failed"} and len(statuses) == N_SHARDS
            assert "ArithmeticError: divided by a cucumber" in statuses[0].reason
            assert all(hits == FISH for hits, _ in good)
            assert states(searcher) == ["ready"] * 2

    asyncio.run(story())


def test_with_two_replicas_a_killed_host_costs_no_partial_answer(hosts):
    """SIGKILL of the host that is being asked, under 20 queries at a time."""

    async def story():
        async with hosts(replicas=2, frozen_pings=30) as searcher:  # a busy machine must not kill the other
            await ask(searcher, plan())
            await until(lambda: all(len(nodes) == 2 for nodes in placement(searcher)["open"]))
            asked = next(iter(searcher.routes("texts", 1, N_SHARDS)))
            done, answered = asyncio.Event(), 0

            async def client() -> None:
                nonlocal answered
                while not done.is_set():
                    hits, coverage = await ask(searcher, plan(sleep_s=0.02))
                    assert hits == FISH and {s.state for s in coverage.values()} == {"ready"}
                    answered += 1

            clients = [asyncio.create_task(client()) for _ in range(20)]
            await until(lambda: answered > 20)
            os.kill(searcher.controller.status(asked)["pid"], signal.SIGKILL)
            await until(lambda: asked not in searcher.controller.up)
            await until(lambda: asked in searcher.controller.up)
            done.set()
            await asyncio.gather(*clients)
            assert searcher.asking.counts.retries > 0
            print(f"SIGKILL with 2 replicas: {answered} whole answers, {searcher.asking.counts}")

    asyncio.run(story())


def test_a_slow_replica_is_hedged_and_told_that_nobody_waits(hosts):
    async def story():
        async with hosts(replicas=2, frozen_pings=30, hedge_share=1.0) as searcher:
            await ask(searcher, plan())
            await until(lambda: all(len(nodes) == 2 for nodes in placement(searcher)["open"]))
            for _ in range(40):
                await ask(searcher, plan())
            slow = next(iter(searcher.routes("texts", 1, N_SHARDS)))
            begun = time.monotonic()
            hits, coverage = await ask(searcher, plan(budget_s=30.0, sleep_s=10.0, only=searcher.controller.status(slow)["pid"]))
            assert hits == FISH and {s.state for s in coverage.values()} == {"ready"}
            assert time.monotonic() - begun < 9.0 and searcher.asking.counts.hedges_won >= 1

            async def told() -> bool:
                return len((await searcher.controller.ask_status(slow))["cancelled"]) >= 1

            await until(told)

    asyncio.run(story())


def placement(searcher) -> dict:
    return searcher.table.status(searcher.controller.membership.serving, searcher.controller.up)["texts"]


def test_queries_that_wait_ride_together(hosts):
    from cluster.searcher import NEAR_BATCH

    async def story():
        async with hosts() as searcher:
            node = searcher.controller.membership.nodes[0]

            async def calls() -> int:
                return (await searcher.controller.ask_status(node))["calls"]

            before = await calls()
            answers = await asyncio.gather(*(ask(searcher, plan(budget_s=20.0)) for _ in range(64)))
            assert all(hits == FISH for hits, _ in answers)
            batch = NEAR_BATCH if node == searcher._node else 32
            assert await calls() - before <= 2 + math.ceil(62 / batch) + 1

    asyncio.run(story())


def test_details_documents_and_warming_go_to_the_hosts_that_own_them(hosts):
    async def story():
        async with hosts() as searcher:
            found = await searcher.details("texts", 1, N_SHARDS, {h: () for h in FISH})
            assert {h: d.size_bytes for h, d in found.items()} == {content_hash(t.encode()): len(t) for t in TEXTS if "fish" in t}
            some = next(iter(FISH))
            assert (await searcher.document("texts", 1, N_SHARDS, some, 0, 8)).text == "document"
            with pytest.raises(NotFound, match="No document 0000"):
                await searcher.document("texts", 1, N_SHARDS, bytes(20))
            docs = (await searcher.warm("texts", 1, N_SHARDS)).docs
            assert sorted(docs) == list(range(N_SHARDS)) and sum(docs.values()) == len(TEXTS)

    asyncio.run(story())


def test_before_any_host_is_up_callers_are_told_to_come_again(host_settings, namespace):
    async def story():
        from cluster.actors import remote_host
        from cluster.searcher import RaySearcher

        async with RaySearcher(ClusterSettings(namespace=namespace), host_settings, remote_host(LightHost)) as searcher:
            with pytest.raises(Unavailable, match="No host is up"):
                await ask(searcher, plan())
            with pytest.raises(SondageError, match="cannot be read now: no host is ready"):
                await searcher.document("texts", 1, N_SHARDS, bytes(20))

    asyncio.run(story())


def test_a_node_that_joins_takes_its_share_and_one_that_leaves_gives_it_back(hosts, cluster):
    async def story():
        async with hosts() as searcher:
            node = cluster.add_node(**NODE)  # Ray insists on the main thread
            try:
                # Partial for no moment: the others keep the new host's share until it is warm.
                while len(searcher.controller.membership.serving) < 3:
                    assert (await ask(searcher, plan()))[0] == FISH
                await until(lambda: len(searcher.controller.membership.serving) == 3)
                await until(lambda: sorted(map(len, searcher.routes("texts", 1, N_SHARDS).values())) == [2, 3, 3])
                assert (await ask(searcher, plan()))[0] == FISH
            finally:
                cluster.remove_node(node)
            await until(lambda: len(searcher.controller.membership.serving) == 2)
            await until(lambda: sorted(map(len, searcher.routes("texts", 1, N_SHARDS).values())) == [4, 4])
            assert (await ask(searcher, plan()))[0] == FISH

    asyncio.run(story())


def test_a_new_deployment_has_hosts_of_its_own_and_in_the_end_the_only_ones(host_settings, namespace, tmp_path):
    """Another store in the same namespace: while the old coordinator drains, it answers whole and from its own hosts."""
    import ray

    (tmp_path / "only.txt").write_text("one fish")

    def hosts() -> int:
        return sum(a["namespace"] == namespace for a in ray.util.list_named_actors(all_namespaces=True))

    async def story():
        from cluster.actors import remote_host
        from cluster.searcher import RaySearcher

        actor = remote_host(LightHost)
        old_cluster = ClusterSettings(namespace=namespace, max_hosts=1, **QUICK)
        new_cluster = old_cluster.model_copy(update={"handover_s": 1.0})
        other_store = host_settings.model_copy(update={"store_url": str(tmp_path)})
        async with AsyncExitStack() as stack:
            old = RaySearcher(old_cluster, host_settings, actor)
            async with old:
                await until(lambda: states(old) == ["ready"])
                new = await stack.enter_async_context(RaySearcher(new_cluster, other_store, actor))
                await new.controller.all_ready()
                assert sum(len(a.hashes) for a in await new.search("texts", 1, N_SHARDS, plan())) == 1
                assert (await ask(old, plan()))[0] == FISH and hosts() == 2
            await until(lambda: hosts() == 1)
            assert sum(len(a.hashes) for a in await new.search("texts", 1, N_SHARDS, plan())) == 1

    asyncio.run(story())


def test_the_real_host_says_as_coverage_that_it_cannot_open_a_corpus(cluster, namespace, tmp_path):
    async def story():
        from cluster.searcher import RaySearcher

        settings = HostSettings(store_url=str(tmp_path / "store"), cache_dir=tmp_path / "cache", memory_bytes=100 * 2**20)
        async with RaySearcher(ClusterSettings(namespace=namespace, **QUICK), settings) as searcher:
            await until(lambda: states(searcher) == ["ready"] * 2, seconds=60.0)
            answers = await searcher.search("nowhere", 7, N_SHARDS, plan())
            coverage = [status for answer in answers for status in answer.status]
            assert sorted(s.shard for s in coverage) == list(range(N_SHARDS))
            assert {s.state for s in coverage} == {"failed"}
            assert "nowhere" in coverage[0].reason
            assert (await searcher.warm("nowhere", 7, N_SHARDS)).docs == {}

    asyncio.run(story())
