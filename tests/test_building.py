"""Who builds spaces where they are used gives way to searches, takes orders over HTTP, and is told of in status and metrics."""

import asyncio
import itertools
import time
from types import SimpleNamespace

import pytest
from engine import Engine, write_files
from test_encoders import save_static, word_pieces

from cluster.building import SOON_S, BuilderWork, LocalBuilders
from cluster.settings import HostSettings
from jobs.layer_tables import building as line_of
from serve import building
from serve.building import Building
from serve.coordinator import Coordinator
from serve.exposition import exposition
from serve.gauges import families_of
from serve.layer_orders import LayersRequest, ordered
from serve.local import local_coordinator
from serve.schema import SearchRequest
from shards.errors import BadSpec, NotFound
from shards.layer_queue import state
from shards.manifest import corpus_store
from shards.usage import read


class Watched:
    """Builders that keep what they are told."""

    def __init__(self) -> None:
        self.holds: list[bool] = []
        self.started = self.closed = 0

    async def start(self) -> None:
        self.started += 1

    def hold(self, held: bool) -> None:
        self.holds.append(held)

    def told(self) -> dict:
        return {}

    async def close(self) -> None:
        self.closed += 1


def coordinator_of(built: str) -> SimpleNamespace:
    spaces = [SimpleNamespace(built=built)]
    generations = SimpleNamespace(current={"c": SimpleNamespace(root=SimpleNamespace(spaces=spaces))})
    return SimpleNamespace(store=None, generations=generations, admission=SimpleNamespace(under_way=0), usage=None, building=None)


def test_builders_hold_while_every_core_has_a_search_and_go_on_when_it_is_quiet(monkeypatch):
    for name in ("LOOK_S", "TICK_S", "REST_S"):
        monkeypatch.setattr(building, name, 0.001)

    async def run() -> list[bool]:
        watched, coordinator = Watched(), coordinator_of("used")
        one = Building(coordinator, watched, cores=2)
        await one.start()

        async def until(held: bool) -> None:
            async with asyncio.timeout(5):
                while one.held != held:
                    await asyncio.sleep(0.001)

        for under_way, held in ((2, True), (1, False), (3, True), (0, False)):
            coordinator.admission.under_way = under_way
            await until(held)
        await one.close()
        assert watched.started and watched.closed == 1 and coordinator.usage is None
        return watched.holds

    assert asyncio.run(run()) == [True, False, True, False]


def test_no_builder_is_started_for_corpora_whose_spaces_are_built_for_all(monkeypatch):
    monkeypatch.setattr(building, "LOOK_S", 0.001)

    async def run() -> int:
        watched = Watched()
        one = Building(coordinator_of("all"), watched)
        await one.start()
        for _ in range(20):
            await asyncio.sleep(0)
        await one.close()
        return watched.started

    assert asyncio.run(run()) == 0


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Engine:
    folder = tmp_path_factory.mktemp("building")
    source = write_files(folder / "src", {f"d{i % 2}/f{i}.txt": f"amber and basalt number {i}\n" for i in range(40)})
    engine = Engine(folder, ("text", "bm25", f"static:built=used,model={save_static(folder / 'model', word_pieces())}"))
    engine.index(source, calibrate=False)
    return engine


def settings_of(engine: Engine) -> HostSettings:
    return HostSettings(store_url=str(engine.folder / "store"), cache_dir=engine.folder / "cache")


def test_an_order_names_a_space_that_is_built_where_it_is_used(engine):
    root = engine.generation().root
    with pytest.raises(NotFound, match=r"no space 'dense'.*static"):
        ordered(engine.store, root, LayersRequest(build="dense"))
    with pytest.raises(BadSpec, match=r"'bm25'.*is built for all"):
        ordered(engine.store, root, LayersRequest(pin="bm25"))
    two = {"build": "a", "pin": "a"}
    for wrong in ({}, two, {"build": "a", "bytes": 3}, {"limit": "a", "scope": ["x"]}, {"usage": True, "scope": ["x"]}):
        with pytest.raises(ValueError):
            LayersRequest(**wrong)


def test_what_answers_show_is_counted_built_and_told(engine):
    """From a search to the space that it made grow: usage in the store, a builder's work, status, metrics."""

    async def search_and_tell(work: BuilderWork | None) -> dict:
        async with local_coordinator(settings_of(engine)) as coordinator:
            assert isinstance(coordinator, Coordinator)
            await coordinator.until_warm()
            watched = Watched()
            if work is not None:
                watched.told = work.told
            async with building.building(coordinator, lambda: watched):
                answer = await coordinator.search(SearchRequest(corpus="c", query="number 7", layers=["bm25"], budget_ms=30_000))
                assert answer.hits
                told = await coordinator.status()
                return {"shown": [hit.hash for hit in answer.hits], **told}

    inside = corpus_store(engine.store, "c")
    first = asyncio.run(search_and_tell(None))
    assert set(read(inside).documents) == set(first["shown"])
    assert first["corpora"]["c"]["layers"][1]["docs"] == 0
    ordered(engine.store, engine.generation().root, LayersRequest(build="static", scope=("d1/**",)))
    seconds = itertools.count(int(time.time()))  # one each time that it looks, so that publishing is soon due
    work = BuilderWork(settings_of(engine), background=False, clock=lambda: float(next(seconds)))
    for _ in range(40):
        work.step()
    then = asyncio.run(search_and_tell(work))
    far = then["corpora"]["c"]["building"]["static"]
    assert (far["built"], far["documents"], far["waiting"], far["held"]) == (40, 40, 0, False)  # the sample is all of so small a corpus
    (static,) = [one for one in then["corpora"]["c"]["layers"] if one["name"] == "static"]
    assert static["docs"] == 40
    assert 'sondage_layer_built_documents{corpus="c",layer="static"} 40' in exposition(families_of(then), {})
    assert [one.globs for one in state(inside).builds] == [("d1/**",)]


def test_a_builder_that_dies_at_once_is_started_less_and_less_often_and_one_that_lived_at_once(engine, caplog):
    now, started = [100.0], []

    async def run() -> None:
        builders = LocalBuilders(settings_of(engine), "tests.dying_builder", clock=lambda: now[0])

        async def pid_after(seconds: float) -> int | None:
            now[0] += seconds
            await builders.start()
            if (process := builders._process) is not None:
                await asyncio.to_thread(process.wait, 60)
            return builders.pid

        started.append(await pid_after(0.0))
        assert await pid_after(1.0) is None  # it is dead: rests for a second
        started.append(await pid_after(1.0))
        assert await pid_after(0.0) is None and await pid_after(2.9) is None  # for three now
        started.append(await pid_after(0.1))
        started.append(await pid_after(SOON_S))  # that one had lived for long
        await builders.close()

    asyncio.run(run())
    assert None not in started and len(set(started)) == 4
    assert [record.message.split()[0] for record in caplog.records] == ["event=builder_died"] * 3


def test_work_that_is_stopped_ends_and_one_that_is_held_waits(engine):
    work = BuilderWork(settings_of(engine), background=False)
    work.hold(True)
    work.stop()
    assert work.step() == []  # it neither waits for ever nor builds


def test_a_line_says_how_far_a_space_is_and_what_waits_of_what_was_asked_for_and_of_what_use_suggests():
    spent = {"documents": 256, "seconds": 12.0, "cost": 0.0}
    far = {"built": 256, "documents": 12_000, "bytes": 2_000_000, "waiting": 3, "due": 8, "remaining_s": 2.2, "running": 32, "held": True}
    told = line_of(far | {"spent": spent}).split("; ")
    assert (told[0], told[2:]) == (
        "built for 256 of 12,000",
        ["3 asked for wait, about 2 s", "5 more by use", "32 under way, held for searches", "256 encoded in 12.0 s"],
    )
    assert line_of(far | {"spent": spent, "waiting": 0, "due": 0, "running": 0}).count(";") == 2
