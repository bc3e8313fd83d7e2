"""The host, a plain class: it opens what requests name, forgets what nobody asks for, and warms up before anybody asks."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from engine import Engine, write_files
from ray_cluster import until

from cluster.host import Host, HostRequest
from cluster.local import LocalSearcher
from serve.coordinator import Coordinator
from shards.layers.contract import Request
from shards.plan import Everything, Plan

TEXTS = {f"{i}.txt": f"Number {i} speaks of weather, ships and the price of corn.\n" for i in range(8)}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """Corpus "c", two shards, generation 1."""
    made = Engine(tmp_path, layers=("names", "bm25"))
    made.index(write_files(tmp_path / "files", TEXTS), n_shards=2, calibrate=False)
    return made


def host_of(engine: Engine) -> Host:
    return Host(engine.store.url, {}, str(engine.folder / "cache"), 1 << 30)


def asked(engine: Engine, generation: int) -> HostRequest:
    """A query for all shards."""
    space = engine.generation(number=generation).spaces["bm25"]
    query = space.layer.prepare(Request("weather"), engine.generation(number=generation).statistics("bm25"))
    return HostRequest("c", generation, (0, 1), Plan(Everything(), (replace(query, space="bm25"),)))


def test_warming_opens_the_shards_and_gives_words_to_ask(engine):
    host = host_of(engine)
    opened = host.warm("c", 1, (0, 1))
    assert sum(opened.docs.values()) == len(TEXTS) and opened.sample.startswith("Number ")
    assert [shard["shard"] for shard in host.status()["shards"]] == [0, 1] and host.status()["searches"] == 0
    host.warm("c", 1, (0, 1), asked(engine, 1).plan)
    assert host.status()["searches"] == 1


def test_a_shard_that_cannot_be_opened_does_not_keep_the_others_cold(engine):
    host = host_of(engine)
    page = engine.generation().pages[0]
    for ref in page.segments:
        (engine.folder / "store" / "c" / ref.files["docs"].name).unlink()
    assert set(host.warm("c", 1, (0, 1)).docs) == {1}
    assert host.warm("nowhere", 1, (0, 1)).docs == {}


def test_of_generations_the_last_used_are_kept(engine, monkeypatch):
    """A cursor of generation 1 is still in use when 2 and 3 are published; nothing of what was left is held."""
    monkeypatch.setattr("cluster.host.GENERATIONS_KEPT", 2)
    host = host_of(engine)
    for i in (2, 3):
        write_files(engine.folder / "files", {f"new{i}.txt": f"News of weather number {i}.\n"})
        engine.index(engine.folder / "files", calibrate=False)
    for generation, found in ((1, 8), (2, 9), (1, 8), (3, 10), (1, 8)):
        (answer,) = host.search([asked(engine, generation)])
        assert len(answer.hashes) == found
    assert {shard["generation"] for shard in host.status()["shards"]} == {1, 3}
    host.search([asked(engine, 2)])
    host.search([asked(engine, 3)])
    assert {shard["generation"] for shard in host.status()["shards"]} == {2, 3}


class Gated(LocalSearcher):
    """Whose hosts are not up until the gate opens."""

    def __init__(self, host: Host):
        super().__init__(host)
        self.gate, self.waiting = asyncio.Event(), 0

    async def warm(self, *args):
        self.waiting += 1
        await self.gate.wait()
        return await super().warm(*args)


def test_readiness_waits_until_every_corpus_was_opened_and_asked(engine):
    engine.index(engine.folder / "files", corpus="d", calibrate=False)
    roots = engine.folder / "store" / "broken" / "roots"
    roots.mkdir(parents=True)
    (roots / "0000000000000001.json").write_text("no manifest")  # which must not keep the others from being ready

    async def story():
        host = host_of(engine)
        searcher = Gated(host)
        coordinator = Coordinator(engine.store, searcher, engine.resources, engine.cache, poll_s=0.01)
        await coordinator.start()
        try:
            await until(lambda: searcher.waiting == 1)
            assert await coordinator.ready() == (False, "hosts start and open what the store has")
            assert host.status()["searches"] == 0
            searcher.gate.set()
            await asyncio.wait_for(coordinator.until_warm(), 30)
            assert await coordinator.ready() == (True, "2 corpora")
            assert host.status()["searches"] == 4  # each twice: what the first takes is no measure, since it loads code
            assert "broken" in (await coordinator.status())["problems"]
        finally:
            await coordinator.close()
            searcher.close()

    asyncio.run(story())


# --- letting go --------------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def watched_host(engine: Engine) -> tuple[Host, Clock]:
    clock = Clock()
    return Host(engine.store.url, {}, str(engine.folder / "cache"), 1 << 30, clock=clock), clock


def shards_open(host: Host, corpus: str = "c") -> list[int]:
    return [row["shard"] for row in host.status()["shards"] if row["corpus"] == corpus]


def test_a_shard_that_moved_away_is_let_go_after_a_minute_and_one_that_is_wanted_stays(engine):
    """Coordinators say every 15 s that they want shard 1 here; shard 0 has another owner now."""
    host, clock = watched_host(engine)
    host.warm("c", 1, (0, 1))
    for clock.now in range(15, 75, 15):
        host.warm("c", 1, (1,))
        assert shards_open(host) == [0, 1]
    clock.now = 75
    host.warm("c", 1, (1,))
    assert shards_open(host) == [1]
    held = {ref.id for ref in engine.generation().pages[1].segments}
    assert set(host._segments["c"]) == held  # its files are no longer open
    assert [found.status[0].shard for found in host.search([asked(engine, 1)])] == [0]  # and are opened again for whoever asks


def test_a_shard_that_is_still_asked_for_is_not_let_go(engine):
    """An old owner, while the new one opens."""
    host, clock = watched_host(engine)
    host.warm("c", 1, (0, 1))
    for clock.now in range(15, 300, 15):
        host.search([replace(asked(engine, 1), shards=(0,))])
        host.warm("c", 1, (1,))
    assert shards_open(host) == [0, 1]


def test_a_host_without_coordinators_keeps_what_it_has(engine):
    """The coordinator is away for an hour; the next one finds shard 0 open, and a minute to want it."""
    host, clock = watched_host(engine)
    host.warm("c", 1, (0, 1))
    clock.now = 3600.0
    host.warm("c", 1, (1,))
    assert shards_open(host) == [0, 1]


def test_one_corpus_is_not_let_go_for_want_of_news_of_another(engine):
    engine.index(engine.folder / "files", corpus="d", n_shards=2, calibrate=False)
    host, clock = watched_host(engine)
    host.warm("c", 1, (0, 1))
    for clock.now in range(0, 600, 15):
        host.warm("d", 1, (0, 1))
    assert shards_open(host) == [0, 1]


def test_a_host_tells_what_it_did_and_of_how_many_shards(engine):
    host = host_of(engine)
    host.search([asked(engine, 1), asked(engine, 1)])
    load = host.status()["load"]
    assert (load["searches"], load["running"], load["waiting"], load["threads"]) == (2, 0, 0, 2)
    assert load["by_corpus"]["c"] == {"searches": 2, "shards": 4, "busy_s": load["busy_s"]} and load["busy_s"] > 0
    assert {row["of"] for row in host.status()["shards"]} == {2}


def test_a_search_that_nobody_waits_for_ends_and_others_go_on(engine):
    """Its budget is taken away while it waits for its turn behind another."""
    host = host_of(engine)
    request = asked(engine, 1)
    host.warm("c", 1, (0, 1))
    seen = []
    original = host._search_now

    def cancelled_first(request, budget):
        host.cancel([7, 99])  # 99: of a search that is long done
        seen.append(budget.expired)
        return original(request, budget)

    host._search_now = cancelled_first
    lost, found = host.search([replace(request, key=7), replace(request, key=8)])
    assert seen == [True, False]
    assert {status.state for status in lost.status} == {"late"} and {status.state for status in found.status} == {"ready"}
    assert host._budgets == {}
