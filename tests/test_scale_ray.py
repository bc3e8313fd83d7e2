"""Scaling a corpus under queries, on real hosts: other shards and replicas, the same answers, and nobody notices."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from engine import Engine, write_files
from ray_cluster import until
from test_deploy import free_port

import sondage
from cluster.settings import ClusterSettings, HostSettings
from jobs.scale import Scaled, looks, scale
from jobs.settings import Settings
from serve.coordinator import Coordinator
from serve.schema import SearchAnswer, SearchRequest

# Ray's own code, when it is imported.
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")]

N = 80
SEA, SEEN = ("the harbour froze", *["calm sea"] * 6), ("gulls", "whales", "whales")
TEXTS = {f"{i}.txt": f"Entry {i} of the log: {SEA[i % 7]}, wind {i % 12}, {SEEN[i % 3]}.\n" for i in range(N)}
QUERIES = ("harbour froze", "whales", "wind 11", "7.txt", "calm gulls")
QUICK = {"discovery_s": 0.25, "heartbeat_s": 0.5, "probe_s": 0.1, "frozen_pings": 30}  # a busy machine must not kill hosts


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Corpus "c", 4 shards."""
    folder = tmp_path_factory.mktemp("scale")
    made = Engine(folder, layers=("names", "text", "bm25"))
    made.index(write_files(folder / "files", TEXTS), n_shards=4)
    return made


@asynccontextmanager
async def serving(engine: Engine, namespace: str) -> AsyncIterator[Coordinator]:
    """A coordinator over a host on each node."""
    from cluster.searcher import RaySearcher

    host = HostSettings(store_url=engine.store.url, cache_dir=engine.folder / "cache", memory_bytes=100 * 2**20)
    async with RaySearcher(ClusterSettings(namespace=namespace, **QUICK), host) as searcher:
        await until(lambda: len(searcher.controller.up) == 2, 60.0)
        coordinator = Coordinator(engine.store, searcher, engine.resources, engine.cache, poll_s=0.1)
        await coordinator.start()
        await coordinator.until_warm()
        try:
            yield coordinator
        finally:
            await coordinator.close()


def request(query: str) -> SearchRequest:
    return SearchRequest(corpus="c", query=query, budget_ms=20_000)


def essence(answer: SearchAnswer) -> list[tuple]:
    """What must not change: which hits, where, with which raw scores to the bit, and E but for the order of sums."""
    return [
        (h.hash, h.start, [(s.layer, s.score, s.start) for s in h.signals], pytest.approx(h.evalue, rel=1e-9)) for h in answer.hits
    ]


class Asking:
    """Asks one query after the other until told to stop; each answer must be whole, and what it was before."""

    def __init__(self, coordinator: Coordinator, expected: dict[str, list[tuple]]):
        self.coordinator, self.expected = coordinator, expected
        self.generations: list[int] = []
        self.done = False

    async def run(self) -> None:
        while not self.done:
            for query in QUERIES:
                answer = await self.coordinator.search(request(query))
                assert answer.complete, answer.coverage
                assert essence(answer) == self.expected[query], query
                # One query, one generation: shards of two would be missing buckets, or have them twice.
                assert len({c.shard for c in answer.coverage}) * len({c.layer for c in answer.coverage}) == len(answer.coverage)
                self.generations.append(answer.generation)


async def scaled(coordinator: Coordinator, engine: Engine, **wanted) -> Scaled:
    """`sondage scale` in a thread, which is what another process would be."""
    loop = asyncio.get_running_loop()

    def status():
        return asyncio.run_coroutine_threadsafe(coordinator.status(), loop).result(30)

    settings = Settings.load({}, store=engine.store.url, cache=str(engine.folder / "cache"))
    return await asyncio.to_thread(scale, settings, "c", status=status, timeout_s=60.0, **wanted)


def test_shards_and_replicas_change_under_queries_and_a_killed_host_is_not_missed(indexed, namespace):
    """4 shards on 2 hosts; 8 shards, 2 replicas each; a host dies under queries; 2 shards, 1 replica."""
    encodings = {name: indexed.store.read(name) for name in indexed.store.list("c/encodings/")}
    segments = set(indexed.store.list("c/segments/"))

    async def story():
        async with serving(indexed, namespace) as coordinator:
            expected = {query: essence(await coordinator.search(request(query))) for query in QUERIES}
            assert all(expected.values())
            asking = Asking(coordinator, expected)
            clients = [asyncio.create_task(asking.run()) for _ in range(2)]

            up = await scaled(coordinator, indexed, shards=8, replicas=2)
            assert (up.shards_before, up.shards, up.replicas, up.coordinators) == (4, 8, 2, 1)
            assert up.moved_buckets == up.fewest_buckets == 4096  # the second copy of each
            state = await coordinator.status()
            assert state["placement"]["c"]["record"] == 1
            assert all(len(nodes) == 2 for nodes in state["placement"]["c"]["open"]) and len(state["placement"]["c"]["open"]) == 8

            victim = state["hosts"][0]
            os.kill(victim["pid"], signal.SIGKILL)
            await until(lambda: victim["node"] not in coordinator.searcher.controller.up)
            answered = len(asking.generations)
            await until(lambda: victim["node"] in coordinator.searcher.controller.up)
            await until(lambda: len(asking.generations) > answered or any(client.done() for client in clients))

            down = await scaled(coordinator, indexed, shards=2, replicas=1)
            assert (down.shards_before, down.shards, down.replicas) == (8, 2, 1)
            assert down.moved_buckets == down.fewest_buckets
            asking.done = True
            await asyncio.gather(*clients)
            assert sorted(set(asking.generations)) == [1, 2, 3]
            print(f"up {up.seconds}, down {down.seconds}, {len(asking.generations)} queries, {coordinator.searcher.asking.counts}")

    asyncio.run(story())
    assert {name: indexed.store.read(name) for name in indexed.store.list("c/encodings/")} == encodings
    assert all("/stats." in name for name in set(indexed.store.list("c/segments/")) - segments)  # nothing was written but sums


def test_a_command_without_a_server_writes_what_is_wanted_and_says_so(indexed, capsys, tmp_path: Path):
    from jobs.scale import run_scale

    assert run_scale(["c", "--store", indexed.store.url, "--min-replicas", "1", "--max-replicas", "3"]) == 0
    assert "none was asked" in capsys.readouterr().out


def test_with_two_coordinators_one_that_is_killed_loses_no_request_and_scaling_waits_for_both(indexed, namespace):
    """They share a port; a client whose connection breaks asks again, and meets the other."""
    from jobs.deploy import deploy, stop

    given = {"store": indexed.store.url, "cache": str(indexed.folder / "cache"), "namespace": namespace}
    settings = Settings.load({}, **given, port=free_port())
    settings = settings.model_copy(update={"url": settings.front_settings().url})
    service = settings.service_settings()
    service = service.model_copy(update={"front": service.front.model_copy(update={"coordinators": 2})})
    try:
        deploy(service)
        look = looks(settings)
        names = {look()["coordinator"]["id"] for _ in range(64)}
        assert len(names) == 2
        with sondage.connect(settings.url) as client:
            expected = {query: essence(client.search(request(query))) for query in QUERIES}
        done, answers, errors = threading.Event(), [], []

        def ask() -> None:
            with sondage.connect(settings.url) as client:
                while not done.is_set():
                    for query in QUERIES:
                        try:
                            answer = client.search(request(query))
                            answers.append(answer.complete and essence(answer) == expected[query])
                        except Exception as error:
                            errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            os.kill(int(names.pop().rpartition("-")[2]), signal.SIGKILL)
            scaled = scale(settings, "c", shards=3, status=look, timeout_s=60.0)  # the killed one's successor must be there, too
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert errors == [] and all(answers) and len(answers) > 20
        assert scaled.coordinators == 2
        print(f"{len(answers)} answers, {scaled.seconds}")
    finally:
        stop(namespace)
