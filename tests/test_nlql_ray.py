"""A query of NLQL over two hosts and three shards, whose functions and embedder every host has from a plugin."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from ray_cluster import until

import sondage
from cluster.settings import ClusterSettings, HostSettings
from serve.coordinator import Coordinator
from serve.local import local_coordinator
from serve.nlql.schema import QueryRequest
from shards.cache import FileCache
from shards.errors import SondageError
from shards.layers.contract import Resources
from shards.nlql.errors import NLQLTypeError
from shards.plugins import PROCESS, load
from shards.store import open_store

pytestmark = pytest.mark.ray

PLUGIN = """
import sondage

class Letters:
    model_id, dim = "ray-letters", 26

    def embed(self, texts):
        return [[float(text.lower().count(chr(97 + i))) for i in range(26)] for text in texts]

sondage.embedder("ray-letters")(Letters)

@sondage.function("VOWELS")
def vowels(text):
    return sum(str(text).lower().count(letter) for letter in "aeiou")
"""
QUERIES = (
    "SELECT SENTENCE LET rel = SIMILARITY(content, 'birds sing'), v = VOWELS(content) WHERE v > 6 AND n < 50 ORDER BY rel DESC LIMIT 7",
    "SELECT DOCUMENT WHERE meta.n >= 10 ORDER BY meta.kind, meta.n DESC LIMIT 5 OFFSET 2 COUNT BY meta.kind",
    "SELECT SPAN(SENTENCE, 1) WHERE content CONTAINS 'number 17' AND BM25(content, 'birds') > 0",
    "SELECT DOCUMENT LET e = EVIDENCE(content, 'birds number') WHERE meta.kind == 'fish' ORDER BY e DESC LIMIT 3",
)


@pytest.fixture
def settings(tmp_path) -> HostSettings:
    plugin = tmp_path / "letters.py"
    plugin.write_text(PLUGIN)
    load(str(plugin))
    made = sondage.Engine(
        PROCESS.embedder_of("ray-letters"), store=tmp_path / "store", corpus="c", granularity="sentence", shards=3, layers=["bm25"],
        cache=tmp_path / "cache",
    )  # fmt: skip
    with made as engine:
        for n in range(60):
            kind = "fish" if n % 3 else "birds"
            text = f"This is number {n}. It speaks of {kind}. Some birds sing, and fish do not."
            engine.add_text(text, id=f"d{n}", metadata={"n": n, "kind": kind, "odd": "many" if n == 41 else n})
    return HostSettings(store_url=str(tmp_path / "store"), cache_dir=tmp_path / "files", plugins=(str(plugin),), memory_bytes=100 * 2**20)


@asynccontextmanager
async def on_ray(settings: HostSettings, namespace: str):
    from cluster.searcher import RaySearcher

    async with RaySearcher(ClusterSettings(namespace=namespace, discovery_s=0.25), settings) as searcher:
        membership = searcher.controller.membership
        await until(lambda: [membership.state(node) for node in membership.nodes] == ["ready", "ready"])
        cache = FileCache(settings.cache_dir, settings.cache_bytes)
        coordinator = Coordinator(open_store(settings.store_url), searcher, Resources(), cache)
        await coordinator.start()
        try:
            await coordinator.until_warm()
            yield coordinator
        finally:
            await coordinator.close()


async def told(coordinator: Coordinator) -> list:
    """Rows and facets of all queries, and the error of one that fails on a single row."""
    found = []
    for text in QUERIES:
        answer = await coordinator.query(QueryRequest(corpus="c", text=text, budget_ms=30_000))
        assert answer.complete, answer.coverage
        assert len({part.shard for part in answer.coverage}) == 3
        found.append((answer.rows, answer.facets))
    with pytest.raises(NLQLTypeError) as caught:
        await coordinator.query(QueryRequest(corpus="c", text="SELECT SENTENCE WHERE meta.odd > 5", budget_ms=30_000))
    return [*found, (type(caught.value), str(caught.value), caught.value.column)]


def test_a_query_over_two_hosts_and_three_shards_answers_as_one_process_does(cluster, namespace, settings):
    async def here():
        async with local_coordinator(settings) as coordinator:
            await coordinator.until_warm()
            return await told(coordinator)

    async def there():
        async with on_ray(settings, namespace) as coordinator:
            generation = (await coordinator.generations.get("c")).root.generation
            assert len(coordinator.searcher.routes("c", generation, 3)) == 2  # nodes that are asked
            return await told(coordinator)

    one = asyncio.run(here())
    assert [len(rows) for rows, *_ in one[:-1]] == [7, 5, 1, 3]
    assert asyncio.run(there()) == one


def test_a_host_whose_plugin_cannot_be_imported_says_so(tmp_path):
    from cluster.host import Host

    with pytest.raises(SondageError, match=r"nowhere\.py"):
        Host(str(tmp_path), modules=("nowhere.py",))
