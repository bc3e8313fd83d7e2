"""What a coordinator counts, and what it tells of a corpus: by hand, and through the real application with a real corpus."""

import asyncio
import hashlib
import random
import threading
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from engine import Engine
from scraped import Samples, application, harbours, samples
from scripted_coordinator import KEY, Scripted, one_hit, running

from cluster.host import Host
from cluster.local import LocalSearcher
from serve.coordinator import Coordinator
from serve.exposition import exposition
from serve.gauges import families_of
from serve.keys import Caller, new_key, visible_status
from serve.limits import Limits
from serve.metrics import MAX_SERIES, Metrics
from serve.schema import Coverage, SearchAnswer, SearchRequest
from serve.status import CorpusStatuses, memory_of, replicas_of, stored
from shards import serving_record
from shards.cache import FileCache
from shards.errors import StoreError
from shards.manifest import corpus_store
from shards.store import MemoryStore


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def answer(corpus: str = "c", coverage: list[Coverage] | None = None, **fields: Any) -> SearchAnswer:
    base = one_hit(SearchRequest(corpus=corpus, query="x"))
    return base.model_copy(update={"corpus": corpus, **({} if coverage is None else {"coverage": coverage, "complete": False}), **fields})


def shown(metrics: Metrics) -> Samples:
    return samples(exposition(metrics.families(), {"coordinator": metrics.name}))


# --- counting ----------------------------------------------------------------------------------------------------------------


def test_an_answer_counts_its_verdict_its_stages_and_its_layers():
    metrics = Metrics("a", Clock())
    metrics.answered(answer(), {"scatter": 3.0, "round 1": 1.0, "round 2": 1.0, "layer bm25": 1.5, "layer text": 40.0})
    found = shown(metrics)
    assert found["sondage_answers_total"] == {(("complete", "true"), ("corpus", "c"), ("verdict", "strong")): 1}
    stages = {labels[0][1]: n for labels, n in found["sondage_stage_seconds_count"].items()}
    assert stages == {"scatter": 1, "round": 2}  # numbered rounds are one stage, however many a request has
    assert found["sondage_layer_seconds_sum"][("corpus", "c"), ("layer", "text")] == 0.04
    assert found["sondage_layer_covered_answers_total"][("corpus", "c"), ("layer", "text")] == 1


def test_coverage_is_the_mean_over_shards_and_the_shortfall_says_why():
    """bm25: one shard whole, one half at the deadline, one whose host is away and tells no total, one of four documents untouched."""
    states = [("ready", 9, 9), ("late", 5, 10), ("missing", 0, 0), ("failed", 0, 4)]
    coverage = [Coverage(layer="bm25", shard=i, state=s, covered=c, total=t) for i, (s, c, t) in enumerate(states)]
    coverage += [Coverage(layer="names", shard=i, state="ready", covered=9, total=9) for i in range(4)]
    metrics = Metrics("a", Clock())
    metrics.answered(answer(coverage=coverage), {"layer bm25": 2.0, "layer names": 1.0})
    found = shown(metrics)
    bm25, names = (("corpus", "c"), ("layer", "bm25")), (("corpus", "c"), ("layer", "names"))
    assert found["sondage_layer_answers_total"] == {bm25: 1, names: 1}
    assert found["sondage_layer_covered_answers_total"] == {bm25: pytest.approx(1.5 / 4), names: 1}
    short = {dict(labels)["state"]: n for labels, n in found["sondage_layer_shortfalls_total"].items()}
    assert short == {"late": 1, "missing": 1, "failed": 1}


def test_a_layer_that_nobody_could_ask_has_no_latency():
    coverage = [Coverage(layer="bm25", shard=0, state="missing", covered=0, total=0)]
    metrics = Metrics("a", Clock())
    metrics.answered(answer(coverage=coverage), {"layer bm25": 0.0})
    assert metrics.layers["c", "bm25"].answers == 1 and metrics.layers["c", "bm25"].seconds.n == 0


def test_latencies_told_are_those_of_the_last_two_minutes():
    clock = Clock()
    metrics = Metrics("a", clock)
    metrics.answered(answer(), {"layer bm25": 900.0})
    assert metrics.lately()["c"]["bm25"]["n"] == 1
    for _ in range(3):
        clock.now += 61
        metrics.answered(answer(), {"layer bm25": 1.5})
    lately = metrics.lately()["c"]["bm25"]
    assert lately["n"] < 4 and lately["p99"] < 2.0
    clock.now += 200
    metrics.lately()
    clock.now += 200
    assert metrics.lately()["c"]["bm25"] == {"n": 0, "p50": None, "p95": None, "p99": None}
    assert metrics.layers["c", "bm25"].seconds.n == 4  # what Prometheus reads never goes back


def test_what_is_kept_is_bounded_however_many_layers_are_met():
    metrics = Metrics("a", Clock())
    for i in range(MAX_SERIES + 50):
        metrics.answered(answer(corpus="c"), {f"layer {i}": 1.0})
        metrics.answered(answer(corpus=f"c{i}"), {})
    assert len(metrics.layers) == MAX_SERIES + 1 and len(metrics.answers) == MAX_SERIES + 1
    assert metrics.layers["other", "other"].answers == 50


@pytest.mark.parametrize("seed", range(3))
def test_status_tells_the_same_counts_as_metrics(seed):
    chance = random.Random(seed)
    metrics = Metrics("a", Clock())
    for _ in range(40):
        metrics.begun()
        metrics.ended(chance.choice(["/v1/search", "/metrics"]), chance.choice([200, 429]), chance.random())
        states = [chance.choice(["ready", "late", "missing"]) for _ in range(3)]
        coverage = [Coverage(layer="text", shard=i, state=s, covered=1, total=2) for i, s in enumerate(states)]
        metrics.answered(answer(chance.choice("ab"), coverage), {"layer text": 10 * chance.random(), "fuse": 1.0})
    told, found = metrics.status(), shown(metrics)
    assert sum(r["n"] for r in told["requests"]) == sum(found["sondage_requests_total"].values()) == 40
    assert sum(a["n"] for a in told["answers"]) == sum(found["sondage_answers_total"].values()) == 40
    for layer in told["layers"]:
        labels = (("corpus", layer["corpus"]), ("layer", layer["layer"]))
        assert layer["answers"] == found["sondage_layer_answers_total"][labels], f"seed {seed}"
        assert sum(layer["seconds"]["counts"]) == found["sondage_layer_seconds_count"][labels]
        assert layer["covered"] == pytest.approx(found["sondage_layer_covered_answers_total"][labels])


# --- requests over HTTP ------------------------------------------------------------------------------------------------------


def test_requests_count_by_declared_route_and_status_and_made_up_paths_as_one():
    with running(Scripted()) as url, httpx.Client(base_url=url, trust_env=False, timeout=20) as session:
        for path in ("/v1/search?corpus=c&q=x", "/healthz", "/made/up/1", "/made/up/2", "/v1/documents/" + 40 * "0" + "?corpus=no"):
            session.get(path)
        session.post("/v1/search", content=b"{")
        session.delete("/v1/search")
        found = {
            (dict(labels)["route"], dict(labels)["status"]): n
            for labels, n in samples(session.get("/metrics").text)["sondage_requests_total"].items()
        }
    assert found == {
        ("/v1/search", "200"): 1, ("/v1/search", "400"): 1, ("/v1/search", "405"): 1, ("/healthz", "200"): 1, ("other", "404"): 2,
        ("/v1/documents/{hash}", "404"): 1,
    }  # fmt: skip


def test_a_request_that_breaks_counts_as_500_and_one_under_way_as_in_flight():
    def broken(_: SearchRequest) -> SearchAnswer:
        raise RuntimeError("bug")

    with running(Scripted(broken)) as url, httpx.Client(base_url=url, trust_env=False, timeout=20) as session:
        assert session.get("/v1/search?corpus=c&q=x").status_code == 500
        found = samples(session.get("/metrics").text)
    assert found["sondage_requests_total"] == {(("route", "/v1/search"), ("status", "500")): 1}
    assert found["sondage_requests_in_flight"] == {(): 1}  # the one that asks


def test_metrics_want_a_key_where_the_server_has_one():
    with running(Scripted(), (KEY,)) as url, httpx.Client(base_url=url, trust_env=False, timeout=20) as session:
        assert session.get("/metrics").status_code == 401
        answered = session.get("/metrics", headers={"Authorization": f"Bearer {KEY}"})
        assert answered.status_code == 200 and answered.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_metrics_are_not_for_a_key_that_sees_some_corpora_alone():
    text, kept = new_key(datetime(2026, 1, 1, tzinfo=UTC), scopes=("read",), corpora=("c",))
    with running(Scripted(), (kept,)) as url, httpx.Client(base_url=url, trust_env=False, timeout=20) as session:
        assert session.get("/metrics", headers={"Authorization": f"Bearer {text}"}).status_code == 403


def test_a_key_of_some_corpora_learns_no_host_from_where_their_shards_are():
    caller = Caller(new_key(datetime(2026, 1, 1, tzinfo=UTC), scopes=("read",), corpora=("c",))[1], Limits())
    replicas = {"wanted": 2, "short": [{"shard": 0, "reason": "node n0 has the most left"}]}
    told = visible_status({"corpora": {"c": {"shards": [{"shard": 0, "nodes": ["n0"]}], "replicas": replicas}, "d": {}}}, caller)
    assert told["corpora"] == {"c": {"shards": [{"shard": 0}], "replicas": {"wanted": 2}}}


# --- what status tells -------------------------------------------------------------------------------------------------------


def opened(generation: int, shard: int) -> dict[str, Any]:
    return {"corpus": "c", "generation": generation, "shard": shard}


HOSTS = [
    {"node": "n0", "state": "ready", "shards": [opened(3, 0), opened(2, 1)]},
    {"node": "n1", "state": "suspect", "shards": [opened(3, 1)]},
]


def test_a_copy_is_ready_where_it_should_be_and_a_shard_wherever_it_is_open():
    """Shard 0 is open on both of its nodes; shard 1 on an old owner alone, who answers until the new one has opened it."""
    placed = {"c": {"wanted": 2, "shards": [["n0", "n1"], ["n1", "n2"]], "open": [["n0", "n1"], ["n0"]], "settled": False}}
    told, nodes = replicas_of("c", 3, 2, {"hosts": HOSTS, "placement": placed})
    assert told == {"per_shard": 2, "settled": False, "wanted": 4, "ready": 2, "shards_ready": 2, "short": []}
    assert nodes == [["n0", "n1"], ["n0"]]


def test_without_placement_a_shard_is_ready_where_a_ready_host_has_it_open_in_this_generation():
    told, nodes = replicas_of("c", 3, 2, {"hosts": HOSTS})
    assert nodes == [["n0"], []] and (told["wanted"], told["ready"], told["shards_ready"]) == (2, 1, 1)


def test_a_placement_of_another_number_of_shards_is_not_this_generations():
    placed = {"c": {"wanted": 1, "shards": [["n0"]], "open": [["n0"]], "settled": True}}
    assert replicas_of("c", 3, 2, {"hosts": HOSTS, "placement": placed})[1] == [["n0"], []]


def test_a_host_that_tells_nothing_has_no_sample_rather_than_a_zero():
    silent = {"node": 14 * "a", "state": "starting", "reason": ""}
    hosts = [silent, {"node": "b", "state": "ready", "reason": "", "rss_bytes": 7}]
    found = samples(exposition(families_of({"hosts": hosts}), {}))
    assert found["sondage_host_memory_bytes"] == {(("host", "b"),): 7}
    assert found["sondage_host_ready"] == {(("host", 12 * "a"),): 0, (("host", "b"),): 1}
    assert found["sondage_hosts"][("state", "starting"),] == 1


def test_memory_that_one_host_cannot_tell_is_unknown_in_sum():
    hosts = [{"memory": {"c": {"s": {"mapped": 5, "resident": r, "private": 1}}}} for r in (3, None)]
    assert memory_of("c", hosts)["s"] == {"mapped_bytes": 10, "resident_bytes": None, "private_bytes": 2}


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return harbours(tmp_path_factory.mktemp("measured"))


def test_a_store_that_does_not_answer_hides_nothing_of_what_is_known_without_it(indexed, monkeypatch):
    """The first look succeeds; then the store hangs, then fails. Status still comes, with the corpus, and no later than its patience."""
    entered, hanging = threading.Event(), threading.Event()

    def hang(*_: object) -> dict[str, Any]:
        entered.set()
        assert hanging.wait(20)
        raise StoreError("away")

    async def story() -> None:
        clock = Clock()
        statuses = CorpusStatuses(indexed.store, clock, lambda: 2e9)
        current = {"c": indexed.generation()}
        first = (await statuses.tell(current, {"hosts": []}))["c"]
        assert first["kept"] == [1] and first["log"] == {"applied": 0, "end": 0, "waiting": 0} and first["serving"] is None
        assert first["age_s"] > 1e6
        monkeypatch.setattr("serve.status.stored", hang)
        monkeypatch.setattr("serve.status.PATIENCE_S", 0.01)
        clock.now += 60
        assert (await statuses.tell(current, {"hosts": []}))["c"]["kept"] == [1]  # as it was told before
        assert entered.wait(20)
        hanging.set()
        monkeypatch.setattr("serve.status.PATIENCE_S", 20)
        later = (await statuses.tell(current, {"hosts": []}))["c"]
        assert later["docs"] == 12 and "kept" not in later

    asyncio.run(story())


def test_the_store_is_not_asked_again_within_seconds_unless_the_generation_moved(indexed, monkeypatch):
    asked = []
    monkeypatch.setattr("serve.status.stored", lambda store, corpus, applied: asked.append(corpus) or stored(store, corpus, applied))

    async def story() -> None:
        clock = Clock()
        statuses = CorpusStatuses(indexed.store, clock)
        current = {"c": indexed.generation()}
        for _ in range(3):
            await statuses.tell(current, {"hosts": []})
        assert asked == ["c"]
        clock.now += 5
        await statuses.tell(current, {"hosts": []})
        assert asked == ["c", "c"]

    asyncio.run(story())


def test_the_newest_serving_record_is_told():
    store = MemoryStore("memory://records")
    inside = corpus_store(store, "c")
    serving_record.succeed(inside, 0, 2, (1, 4), by="me", reason="a test", clock=lambda: 0.0)
    told = stored(store, "c", 0)["serving"]
    assert (told["number"], told["replicas"], told["min_replicas"], told["max_replicas"], told["by"]) == (1, 2, 1, 4, "me")


def test_the_real_application_tells_of_its_corpus_its_layers_and_its_host(indexed):
    with application(indexed) as session:
        assert session.get("/v1/search", params={"corpus": "c", "q": "boats"}).json()["complete"]
        assert session.get("/v1/search", params={"corpus": "nope", "q": "boats"}).status_code == 404
        found, state = samples(session.get("/metrics").text), session.get("/v1/status").json()
    corpus = (("corpus", "c"),)
    told = {name: found[f"sondage_{name}"][corpus] for name in
            ("documents", "shards", "shards_ready", "replicas_wanted", "replicas_ready", "generation_number", "generations_kept",
             "push_backlog_entries", "segments", "merge_debt_bytes")}  # fmt: skip
    assert told == {
        "documents": 12, "shards": 2, "shards_ready": 2, "replicas_wanted": 2, "replicas_ready": 2, "generation_number": 1,
        "generations_kept": 1, "push_backlog_entries": 0, "segments": 2, "merge_debt_bytes": 0,
    }  # fmt: skip
    layers = {dict(labels)["layer"] for labels in found["sondage_layer_seconds_count"]}
    assert layers == {"names", "text", "bm25"}
    assert {dict(labels)["corpus"] for labels in found["sondage_answers_total"]} == {"c"}  # a corpus that is not there is no label
    assert found["sondage_layer_units"][("corpus", "c"), ("layer", "bm25")] >= 12
    assert found["sondage_host_shards_open"][("host", "local"),] == 2
    assert found["sondage_host_searches_total"][("host", "local"),] >= 1
    bm25 = next(layer for layer in state["corpora"]["c"]["layers"] if layer["name"] == "bm25")
    assert bm25["latency_ms"]["n"] == 1 and 0 < bm25["latency_ms"]["p99"] < 30_000
    assert [shard["nodes"] for shard in state["corpora"]["c"]["shards"]] == [["local"], ["local"]]


def test_a_coordinator_without_http_tells_its_status_as_well(indexed):
    async def status() -> dict[str, Any]:
        host = Host(indexed.store.url, {}, str(indexed.folder / "cache"), 1 << 30)
        coordinator = Coordinator(indexed.store, LocalSearcher(host), indexed.resources, indexed.cache)
        await coordinator.search(SearchRequest(corpus="c", query="boats"))
        return await coordinator.status()

    state = asyncio.run(status())
    assert state["corpora"]["c"]["replicas"]["shards_ready"] == 2
    assert (state["hosts"][0]["queue"], state["hosts"][0]["in_flight"]) == (0, 0)
    assert set(state["hosts"][0]["cache"]) == {"hits", "misses", "fetched_bytes", "evicted"}


def test_the_file_cache_counts_what_it_had_to_fetch_and_what_it_found(tmp_path):
    store = MemoryStore("memory://counted")
    cache = FileCache(tmp_path / "cache", 1_000)
    bodies = {name: name.encode() * 400 for name in "abc"}  # two fit
    for name, body in bodies.items():
        store.write(name, body)
    for name in "aabc":
        cache.path(store, name, 400, hashlib.sha256(bodies[name]).hexdigest())
    assert cache.told() == {"hits": 1, "misses": 3, "fetched_bytes": 1_200, "evicted": 1}
