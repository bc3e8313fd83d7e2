"""Searches that nobody waits for any more end at their next look at the time; and what a serving process stands still for."""

import asyncio
import gc
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from engine import Engine, write_files

from cluster import pauses
from cluster.host import DetailsRequest, Host, HostRequest
from cluster.local import LocalSearcher
from jobs.bench_budgets import Watched
from shards.identity import content_hash
from shards.layers.contract import Request
from shards.plan import Everything, Plan
from shards.shard import Shard
from shards.types import Budget

TEXTS = {f"{i}.txt": f"Number {i} speaks of weather, ships and the price of corn.\n" for i in range(8)}
KEY = 7


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Corpus "c", two shards, generation 1."""
    made = Engine(tmp_path_factory.mktemp("called_off"), layers=("names", "text", "bm25"))
    made.index(write_files(made.folder / "files", TEXTS), n_shards=2, calibrate=False)
    return made


def host_of(engine: Engine) -> Host:
    return Host(engine.store.url, {}, str(engine.folder / "cache"), 1 << 30)


def request(engine: Engine, key: int = KEY) -> HostRequest:
    """One word, asked of three spaces in both shards."""
    generation = engine.generation()
    asked = [(name, generation.spaces[name].layer, generation.statistics(name)) for name in ("text", "bm25", "names")]
    queries = tuple(replace(layer.prepare(Request("weather", {}, True), statistics), space=name) for name, layer, statistics in asked)
    return HostRequest("c", 1, (0, 1), Plan(Everything(), queries, budget_s=600.0), key)


def states(answer) -> list[tuple[str, int, str]]:
    return [(status.space, status.shard, status.state) for status in answer.status]


def test_a_budget_that_ends_sooner_ends_with_the_one_it_is_part_of():
    whole = Budget(100.0)
    part = whole.sooner(90.0)
    assert 9.0 < part.remaining_s <= 10.0 and not part.expired
    whole.deadline = float("-inf")
    assert part.expired and part.sooner(1.0).expired and part.remaining_s < 0
    assert whole.sooner(0.0).expired and not Budget().sooner(1e9).expired


def test_a_search_that_is_called_off_looks_for_nothing_more(engine, monkeypatch):
    """While the first question is worked on in the first shard, its client hangs up: ten minutes of time are left, and none is used."""
    host = host_of(engine)
    find_hits = Shard.find_hits
    worked_on = []

    def noted(shard, plan, query, *rest):
        find_hits(shard, plan, query, *rest)
        worked_on.append((query.space, shard.number))
        host.cancel([KEY])

    monkeypatch.setattr(Shard, "find_hits", noted)
    (answer,) = host.search([request(engine)])
    assert worked_on == [("text", 0)]
    assert sorted(state for *_, state in states(answer)) == ["late"] * 5 + ["ready"]
    assert len(answer.hashes) < len(TEXTS)


def test_a_search_that_was_called_off_before_it_came_is_hardly_begun(engine, monkeypatch):
    """The message that calls it off overtakes it; it holds for that search alone, and once."""
    host = host_of(engine)
    host.cancel([KEY])
    (answer,) = host.search([request(engine)])
    assert [state for *_, state in states(answer)].count("late") == 6 and not len(answer.hashes)
    for key in (KEY, KEY + 1):
        (answer,) = host.search([request(engine, key)])
        assert {state for *_, state in states(answer)} == {"ready"} and len(answer.hashes) == len(TEXTS)
    monkeypatch.setattr("cluster.host.GIVEN_UP_KEPT", 3)
    host.cancel(range(100, 200))
    assert len(host._given_up) <= 3


def test_details_that_there_is_no_time_for_are_left_out(engine):
    host = host_of(engine)
    spans = {content_hash(text.encode()): () for text in TEXTS.values()}
    asked = DetailsRequest("c", 1, (0, 1), spans)
    in_time, too_late = host.details([asked, replace(asked, budget_s=-1.0)])
    assert set(in_time) == set(spans) and too_late == {}


def test_details_do_not_wait_for_searches_that_hold_all_threads(engine, monkeypatch):
    """Two searches have both threads and the turn, for as long as the test likes; a third has found its hits and shows them."""
    host = host_of(engine)
    gate, inside = threading.Event(), threading.Semaphore(0)
    search_now = host._search_now

    def held(asked, budget):
        inside.release()
        assert gate.wait(30)
        return search_now(asked, budget)

    monkeypatch.setattr(host, "_search_now", held)

    async def story() -> None:
        searcher = LocalSearcher(host, threads=2)
        plan = request(engine).plan
        searches = [asyncio.ensure_future(searcher.search("c", 1, 2, plan)) for _ in range(2)]
        for _ in searches:
            assert await asyncio.to_thread(inside.acquire, timeout=30)
        found = await searcher.details("c", 1, 2, {content_hash(TEXTS["3.txt"].encode()): ()}, budget_s=30)
        assert [entry.path for detail in found.values() for entry in detail.entries] == ["3.txt"]
        searches[0].cancel()  # its client is gone: its thread ends as soon as it looks
        await asyncio.gather(searches[0], return_exceptions=True)
        gate.set()
        ((whole,),) = await asyncio.gather(searches[1])
        assert len(whole.hashes) == len(TEXTS)
        searcher.close()

    called_off = []
    cancel = host.cancel
    monkeypatch.setattr(host, "cancel", lambda keys: (called_off.extend(keys), cancel(keys)))
    asyncio.run(story())
    assert len(called_off) == 1


def test_a_closed_shard_is_gone_at_once_with_its_readers(engine):
    """Without the garbage collector, which does not look at what a server began with."""
    host = host_of(engine)
    host.search([request(engine)])
    shard = host.shard("c", 1, 0)
    held = [weakref.ref(one) for one in (shard, *shard.views, *shard.views[0].readers.values())]
    assert len(held) >= 5
    gc.collect()
    gc.disable()
    try:
        host._close(list(host._shards))
        host._generations.clear()
        host._segments.clear()
        del shard
        assert [one() for one in held] == [None] * len(held)
    finally:
        gc.enable()


def test_a_serving_process_sets_aside_what_takes_long_to_collect(monkeypatch):
    """What is there when it begins, and again what a full collection has looked at for too long."""
    switch_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    try:
        pauses.keep_short()
        assert sys.getswitchinterval() == pytest.approx(pauses.SWITCH_S)
        at_first = gc.get_freeze_count()
        assert at_first > 10_000
        kept = [[i] for i in range(1_000)]
        gc.collect()
        assert gc.get_freeze_count() <= at_first + 500  # it took no time
        monkeypatch.setattr(pauses, "LONGEST_S", -1.0)
        gc.collect()
        assert gc.get_freeze_count() >= at_first + len(kept)
    finally:
        gc.callbacks.remove(pauses._pauses)
        gc.unfreeze()
        sys.setswitchinterval(switch_s)
        gc.set_threshold(*thresholds)


def test_the_longest_work_between_two_looks_is_told_with_its_place():
    budget = Watched(60.0)
    assert not budget.expired
    until = time.thread_time() + 0.003
    while time.thread_time() < until:
        pass
    assert budget.remaining_s > 0 and not budget.sooner(1.0).expired
    assert 0.003 <= budget.longest_s < 0.2 and budget.n_looks == 3
    assert all(place.startswith(Path(__file__).name) for place in budget.between)
