"""Who may do what over HTTP: scopes, corpora that a key does not see, limits, what no request reaches, and what is told of it all."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
import uvicorn
from annotated_types import Le
from engine import Engine, write_files
from scripted_coordinator import HASH, KEY, Scripted, eventually, running
from self_signed import self_signed
from test_listener import ASKED, free_port, served

from cluster.settings import HostSettings
from serve import connections
from serve.audit import AuditLog, AuditSettings, Trail
from serve.connections import MAX_HEAD_BYTES, options
from serve.keys import Key, new_key
from serve.limits import Limits
from serve.local import local_coordinator, local_pushes
from serve.schema import SearchRequest
from shards.errors import BadSpec, NotFound

MADE = datetime.now(UTC)
DOCUMENTS = "/v1/corpora/seen/documents"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def problem(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    return response.json()["error"]


@contextmanager
def asked(coordinator=None, *keys: Key, **more) -> Iterator[httpx.Client]:
    with running(coordinator or Scripted(), keys, **more) as url, httpx.Client(base_url=url, timeout=20, trust_env=False) as http:
        yield http


@pytest.fixture(scope="module")
def keys() -> dict[str, tuple[str, Key]]:
    made = {scope: new_key(MADE, scopes=(scope,)) for scope in ("read", "write", "admin")}
    return made | {
        "all": new_key(MADE, scopes=("read", "write", "admin")),
        "restricted": new_key(MADE, scopes=("read", "write", "admin"), corpora=("seen", "team-*")),
        "restricted writer": new_key(MADE, scopes=("read", "write"), corpora=("seen", "team-*")),
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    """Two corpora, `seen` and `unseen`."""
    folder = tmp_path_factory.mktemp("access")
    for corpus, text in (("seen", "The pilot waits for high water."), ("unseen", "The treasure lies below the lighthouse.")):
        Engine(folder, ("bm25", "text")).index(write_files(folder / corpus, {f"{corpus}.txt": text}), corpus, calibrate=False)
    return folder


@pytest.fixture(scope="module")
def real(store, keys) -> Iterator[httpx.Client]:
    """The whole server over these, with all the keys."""
    settings = HostSettings(store_url=str(store / "store"), cache_dir=store / "cache", threads=1)
    coordinator = local_coordinator(settings, poll_s=0.05)
    with asked(coordinator, *(kept for _, kept in keys.values()), pushing=local_pushes) as http:
        eventually(lambda: http.get("/readyz").status_code == 200)
        yield http


# --- scopes ------------------------------------------------------------------------------------------------------------------

ROUTES = [
    ("GET", "/v1/search?corpus=seen&q=pilot", "read"),
    ("POST", "/v1/search", "read"),
    ("POST", "/v1/query", "read"),
    ("GET", "/v1/nlql/schema?corpus=seen", "read"),
    ("POST", "/v1/suggest_terms", "read"),
    ("GET", "/v1/status", "read"),
    ("GET", "/metrics", "read"),
    ("GET", f"/v1/documents/{HASH}?corpus=seen", "read"),
    ("GET", f"/v1/documents/{HASH}/media?corpus=seen", "read"),
    ("PUT", f"{DOCUMENTS}/a.txt", "write"),
    ("DELETE", f"{DOCUMENTS}/a.txt", "write"),
    ("POST", DOCUMENTS, "write"),
    ("POST", "/v1/corpora", "admin"),
    ("GET", "/v1/corpora/seen", "read"),
    ("POST", "/v1/corpora/seen/layers", "write"),
]


@pytest.mark.parametrize(("method", "path", "scope"), ROUTES)
def test_each_route_wants_its_scope(real, keys, method, path, scope):
    body = {"json": {"corpus": "seen", "query": "pilot"}} if path in ("/v1/search", "/v1/query", "/v1/suggest_terms") else {}
    assert problem(real.request(method, path, **body), 401)["kind"] == "unauthorized"
    for other in {"read", "write", "admin"} - {scope}:
        found = problem(real.request(method, path, headers=bearer(keys[other][0]), **body), 403)
        assert f"has the scope {other}; this wants {scope}" in found["message"]
    assert real.request(method, path, headers=bearer(keys[scope][0]), **body).status_code not in (401, 403)


def test_every_route_is_either_open_to_all_or_in_the_table_of_scopes(real):
    paths = real.get("/openapi.json").json()["paths"]
    described = {(method.upper(), path.replace("{corpus}", "seen")) for path, methods in paths.items() for method in methods}
    tabled = {(m, p.partition("?")[0].replace(HASH, "{hash}").replace("/a.txt", "/{path}")) for m, p, _ in ROUTES}
    assert described - tabled == {("GET", "/healthz"), ("GET", "/readyz")} and tabled <= described


def test_making_a_corpus_by_a_push_wants_admin(real, keys):
    for name, status in (("write", 403), ("restricted writer", 403), ("all", 200)):
        answer = real.put("/v1/corpora/team-new/documents/a.txt?create=true", content="x", headers=bearer(keys[name][0]))
        assert answer.status_code == status, answer.text
    assert "wants the scope admin" in problem(
        real.put("/v1/corpora/team-other/documents/a.txt?layers=bm25", content="x", headers=bearer(keys["write"][0])), 403
    )["message"]
    again = real.put("/v1/corpora/team-new/documents/b.txt?create=true", content="x", headers=bearer(keys["restricted writer"][0]))
    assert again.status_code == 200  # it is there, so nothing is made


# --- corpora that a key does not see -----------------------------------------------------------------------------------------

LOOKS = [
    ("GET", "/v1/search?corpus={}&q=treasure"),
    ("GET", "/v1/search?corpus={}&q=treasure&generation=1"),
    ("GET", "/v1/documents/" + HASH + "?corpus={}"),
    ("GET", "/v1/documents/" + HASH + "?corpus={}&generation=77"),
    ("GET", "/v1/documents/" + HASH + "/media?corpus={}"),
    ("PUT", "/v1/corpora/{}/documents/a.txt"),
    ("PUT", "/v1/corpora/{}/documents/a.txt?create=true"),
    ("DELETE", "/v1/corpora/{}/documents/a.txt"),
    ("POST", "/v1/corpora/{}/documents"),
]


@pytest.mark.parametrize(("method", "path"), LOOKS)
def test_a_corpus_that_a_key_does_not_see_answers_like_one_that_is_not_there(real, keys, method, path):
    headers = bearer(keys["restricted"][0]) | {"Content-Type": "application/x-ndjson"}
    there, nowhere = (real.request(method, path.format(name), headers=headers) for name in ("unseen", "nowhen"))
    assert problem(there, 404)["kind"] == "not_found"
    assert there.text.replace("unseen", "nowhen") == nowhere.text
    # the same for one that it might see, but for the name: no list of what others have, and not where the store is
    if "create" not in path:
        allowed = real.request(method, path.format("team-none"), headers=headers)
        assert problem(allowed, 404)["message"] == problem(nowhere, 404)["message"].replace("nowhen", "team-none")


def test_a_corpus_that_a_key_does_not_see_is_not_looked_for():
    """So it takes the same time whether it is there: nothing behind the guard is asked."""
    key, kept = new_key(MADE, scopes=("read",), corpora=("seen",))
    asked_for = []

    class Watched(Scripted):
        async def search(self, request):
            asked_for.append(request.corpus)
            raise NotFound("The store was asked.")

        async def document(self, corpus, *_):
            asked_for.append(corpus)
            raise NotFound("The store was asked.")

    with asked(Watched(), kept) as http:
        for corpus in ("unseen", "seen"):
            http.post("/v1/search", json={"corpus": corpus, "query": "x"}, headers=bearer(key))
            http.get(f"/v1/documents/{HASH}", params={"corpus": corpus}, headers=bearer(key))
    assert asked_for == ["seen", "seen"]


def test_a_key_finds_what_it_sees_and_status_tells_of_that_alone(real, keys):
    whole, part = (real.get("/v1/status", headers=bearer(keys[name][0])) for name in ("read", "restricted"))
    assert {"seen", "unseen"} <= set(whole.json()["corpora"])
    assert "unseen" not in part.text and "seen" in part.json()["corpora"]
    found = real.get("/v1/search?corpus=seen&q=pilot&layers=bm25", headers=bearer(keys["restricted"][0])).json()
    assert [hit["entries"][0]["path"] for hit in found["hits"]] == ["seen.txt"]
    assert "all of them together" in problem(real.get("/metrics", headers=bearer(keys["restricted"][0])), 403)["message"]


# --- limits ------------------------------------------------------------------------------------------------------------------


def test_requests_over_a_rate_are_told_when_to_come_back():
    key, kept = new_key(MADE, scopes=("read",), limits=Limits(requests_per_s=0.001, burst=2))
    other, kept_other = new_key(MADE, scopes=("read",))
    with asked(None, kept, kept_other) as http:
        assert [http.post("/v1/search", json=ASKED, headers=bearer(key)).status_code for _ in range(2)] == [200, 200]
        refused = http.post("/v1/search", json=ASKED, headers=bearer(key))
        assert problem(refused, 429)["kind"] == "limited" and 990 <= int(refused.headers["retry-after"]) <= 1000
        assert http.get("/v1/status", headers=bearer(key)).status_code == 429
        assert http.post("/v1/search", json=ASKED, headers=bearer(other)).status_code == 200


def test_who_is_refused_for_now_is_told_when_to_come_back_whatever_the_reason():
    import sondage
    from cluster.batching import Overloaded

    def busy(_request):
        refusal = Overloaded("All hosts are busy.")
        refusal.retry_after_s = 2.2
        raise refusal

    with asked(Scripted(busy)) as http, sondage.connect(str(http.base_url)) as client:
        assert http.post("/v1/search", json=ASKED).headers["retry-after"] == "3"
        with pytest.raises(Overloaded) as refused:
            client.search("x", corpus="a")
    assert refused.value.retry_after_s == 3.0


def test_requests_at_once_are_limited_and_one_that_is_given_up_makes_room():
    key, kept = new_key(MADE, scopes=("read",), limits=Limits(concurrent=1))
    coordinator = Scripted()
    with asked(coordinator, kept) as http:
        with httpx.Client(base_url=http.base_url, timeout=0.5, trust_env=False) as impatient, pytest.raises(httpx.ReadTimeout):
            impatient.post("/v1/search", json={**ASKED, "query": "wait for ever"}, headers=bearer(key))
        eventually(lambda: http.post("/v1/search", json=ASKED, headers=bearer(key)).status_code == 200)
    assert coordinator.events[1:3] == ["searching", "cancelled"]


def test_sub_queries_count_as_requests():
    key, kept = new_key(MADE, scopes=("read",), limits=Limits(requests_per_s=0.001, burst=4))
    union = {"union": [{"search": {"query": "a"}}, {"search": {"query": "b"}}, {"search": {"query": "c"}}]}
    with asked(None, kept) as http:
        answers = [http.post("/v1/search", json={"corpus": "stdlib", "combine": union}, headers=bearer(key)) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]  # three of four, then three of one: the next waits


def test_dear_requests_are_refused_with_the_place_and_open_ones_lowered():
    seen = []
    scripted = Scripted(lambda request: seen.append((request.k, request.budget_ms)) or Scripted().answer(request))
    with asked(scripted, limits=Limits(k=5, budget_ms=900)) as http:
        assert problem(http.post("/v1/search", json={**ASKED, "k": 6}), 422) == {
            "kind": "over_limit", "at": "k",
            "message": "k: 6 is over the limit, 5. Ask for less, or with a key that may have more.",
        }  # fmt: skip
        assert problem(http.get("/v1/search?corpus=a&q=x&budget_ms=901"), 422)["at"] == "budget_ms"
        assert http.post("/v1/search", json=ASKED).status_code == 200
        assert http.get("/v1/search?corpus=a&q=x").status_code == 200
    assert seen == [(5, 900), (5, 900)]


# --- files -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tempting(tmp_path, monkeypatch) -> Path:
    """The server's working folder, with a folder that looks like a model and one that looks like a corpus."""
    for folder in ("owner/model", "model"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text('{"architectures": ["SecretForSequenceClassification"]}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("model", ["/etc", "{here}/model", "./owner/model", "model", "~", "~root/x", "../x", "owner/../model", "a/b/c",
                                   "owner\\model", "file:///etc", "owner/model/", "owner/model\n"])  # fmt: skip
def test_no_request_names_a_model_by_a_folder(real, keys, tempting, model):
    named = {"corpus": "seen", "query": "pilot", "rerank": {"model": model.format(here=tempting)}}
    found = problem(real.post("/v1/search", json=named, headers=bearer(keys["all"][0])), 422)
    assert found["at"] == "rerank.model" and "is no name of a model" in found["message"] and "Secret" not in found["message"]
    layer = f"dense:model={model.format(here=tempting)}"
    where = "/v1/corpora/team-files/documents/a.txt"
    made = real.put(where, params={"layers": layer}, content="x", headers=bearer(keys["all"][0]))
    assert problem(made, 422)["at"] == "layers"
    assert "team-files" not in real.get("/v1/status", headers=bearer(keys["all"][0])).json()["corpora"]


def test_a_name_on_the_hub_is_no_folder_even_where_there_is_one(real, keys, tempting):
    named = {"corpus": "seen", "query": "pilot", "rerank": {"model": "owner/model"}}
    assert "Secret" not in problem(real.post("/v1/search", json=named, headers=bearer(keys["all"][0])), 424)["message"]


@pytest.mark.parametrize("corpus", ["..", ".", "../seen", "seen/..", "/etc", "seen/../unseen", "%2e%2e", "a\x00b", "seen%00", "~", "C:\\x"])
def test_no_name_of_a_corpus_is_a_path(real, keys, store, corpus):
    before = sorted(path.name for path in (store / "store").iterdir())
    for name in ("all", "restricted"):
        headers = bearer(keys[name][0])
        assert real.post("/v1/search", json={"corpus": corpus, "query": "x"}, headers=headers).status_code in (404, 422)
        assert real.get(f"/v1/documents/{HASH}", params={"corpus": corpus}, headers=headers).status_code in (404, 422)
        assert real.get(f"/v1/documents/{HASH}/media", params={"corpus": corpus}, headers=headers).status_code in (404, 422)
        quoted = "".join(f"%{byte:02x}" for byte in corpus.encode())
        put = real.put(f"/v1/corpora/{quoted}/documents/a.txt?create=true", content="x", headers=headers)
        assert put.status_code in (404, 422), put.text
    assert sorted(path.name for path in (store / "store").iterdir()) == before


@pytest.mark.parametrize("path", ["%2e%2e/x", "a/%2e%2e/%2e%2e/b", "%2Fetc%2Fpasswd", "a//b", "a%00b", "%2e", "a/%2e/b"])
def test_no_path_that_is_pushed_leads_anywhere(real, keys, path):
    put = real.put(f"{DOCUMENTS}/{path}", content="x", headers=bearer(keys["all"][0]))
    assert problem(put, 422)["at"] == "path"
    line = json.dumps({"path": unquote(path), "text": "x"})
    many = real.post(DOCUMENTS, content=line, headers=bearer(keys["all"][0]) | {"Content-Type": "application/x-ndjson"})
    assert (many.status_code, many.json()["failed"], many.json()["accepted"]) == (207, 1, 0)


@pytest.mark.parametrize("value", ["../../../etc/passwd", "/etc/passwd", "..%2f..%2fetc%2fpasswd", "0" * 39, "0" * 39 + "/", "0" * 41])
def test_no_hash_is_a_path(real, keys, value):
    for tail in ("", "/media"):
        answer = real.get(f"/v1/documents/{value}{tail}", params={"corpus": "seen"}, headers=bearer(keys["all"][0]))
        assert answer.status_code in (307, 404, 422), answer.text  # 307: the same without the last slash
        assert "root:" not in answer.text


# --- what is told ------------------------------------------------------------------------------------------------------------


def audited(tmp_path: Path, queries: bool) -> list[dict]:
    key, kept = new_key(MADE, scopes=("read",))
    target = tmp_path / "log" / "audit.jsonl"

    def fail(request):
        if request.query == "break":
            raise RuntimeError("x")
        return Scripted().answer(request)

    with asked(Scripted(fail), kept, audit=AuditSettings(target=str(target), queries=queries)) as http:
        http.post("/v1/search", json=ASKED, headers=bearer(key) | {"X-Request-Id": "from-the-client.1"})
        http.get("/v1/search?corpus=stdlib&q=hello", headers={"X-Api-Key": "wrong-secret"})
        http.put("/v1/corpora/c/documents/private/path.txt", content="pushed", headers=bearer(key))
        http.post("/v1/search", json={**ASKED, "query": "break"}, headers=bearer(key))
        http.get("/healthz")
        http.get("/nowhere%0a{}", headers={"X-Request-Id": "not good\n"[:8]})
    text = target.read_text()
    assert key not in text and key.split("_", 2)[2] not in text and "wrong-secret" not in text and "pushed" not in text
    assert target.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["key"] for line in lines] == [kept.id, None, kept.id, kept.id, None]
    return lines


def test_each_request_is_told_of_once_and_no_key_is(tmp_path):
    lines = audited(tmp_path, queries=False)
    assert [(line["method"], line["route"], line["corpus"], line["status"]) for line in lines] == [
        ("POST", "/v1/search", "stdlib", 200),
        ("GET", "/v1/search", None, 401),
        ("PUT", "/v1/corpora/{corpus}/documents/{path:path}", None, 403),
        ("POST", "/v1/search", "stdlib", 500),
        ("GET", "/nowhere\n{}", None, 404),
    ]
    assert lines[0]["id"] == "from-the-client.1" and lines[0]["bytes"] > 100 and lines[0]["ms"] > 0 and lines[0]["from"] == "127.0.0.1"
    assert all("query" not in line for line in lines) and len({line["id"] for line in lines}) == 5


def test_what_was_searched_for_is_told_if_that_is_wanted(tmp_path):
    assert [line.get("query") for line in audited(tmp_path, queries=True)] == ["hello world", None, None, "break", None]


def test_full_audit_files_are_set_aside_and_two_processes_share_one(tmp_path):
    target = tmp_path / "audit"
    settings = AuditSettings(target=str(target), file_bytes=1_000, files=2)
    with AuditLog(settings) as one, AuditLog(settings) as two:
        for log in (one, two):
            log.tell(Trail("before", {}), {"method": "GET", "path": "/"}, 200, 0.0, 0, 0.0)
    for round_ in range(6):
        with AuditLog(settings) as one, AuditLog(settings) as two:
            for i in range(4):
                (one, two)[i % 2].tell(Trail(f"{round_}.{i}", {}), {"method": "GET", "path": "/"}, 200, 0.0, 0, 0.0)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit", "audit.1", "audit.2", "audit.lock"]
    told = [json.loads(line)["id"] for name in ("audit.2", "audit.1", "audit") for line in (tmp_path / name).read_text().splitlines()]
    assert told[-1].startswith("5.") and len(told) == len(set(told)) >= 8


def test_lines_that_a_full_disk_took_are_counted(tmp_path, caplog):
    target, spare = tmp_path / "audit", tmp_path / "spare"
    target.symlink_to("/dev/full")
    with AuditLog(AuditSettings(target=str(target))) as log:
        for name in ("lost", "lost, too"):
            log.tell(Trail(name, {}), {"method": "GET", "path": "/"}, 200, 0.0, 0, 0.0)
        eventually(lambda: log._lost == 2)
        (tmp_path / "link").symlink_to(spare)
        spare.touch()
        (tmp_path / "link").rename(target)
        log.tell(Trail("again", {}), {"method": "GET", "path": "/"}, 200, 0.0, 0, 0.0)
    told = [json.loads(line) for line in spare.read_text().splitlines()]
    assert [(line["id"], line["lost"]) for line in told] == [("again", 2)]
    assert "No space left on device" in caplog.text


def test_an_audit_log_goes_on_after_logging_was_configured_anew(tmp_path, caplog):
    """As uvicorn does when it starts: all handlers that there are are closed."""
    with AuditLog(AuditSettings(target=str(tmp_path / "audit"))) as log:
        log._handler.close()
        log.tell(Trail("here", {}), {"method": "GET", "path": "/"}, 200, 0.0, 0, 0.0)
    assert json.loads((tmp_path / "audit").read_text())["id"] == "here" and not caplog.records


def test_an_audit_log_that_cannot_be_written_is_told_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSpec, match=r"The audit log .*/file/audit cannot be written"):
        AuditLog(AuditSettings(target=str(tmp_path / "file" / "audit")))


def test_answers_bear_their_number_and_headers_against_misuse(real):
    answers = [real.get(path) for path in ("/healthz", "/v1/status", "/nothing", "/docs")]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 4
    for answer in answers:
        assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-store")
        assert answer.headers["x-frame-options"] == "DENY" and "strict-transport-security" not in answer.headers
    assert ["content-security-policy" in answer.headers for answer in answers] == [True, True, True, False]


def test_why_a_server_is_not_ready_is_told_to_its_own_machine_and_to_who_has_a_key():
    key, kept = new_key(MADE, scopes=("write",))
    coordinator = Scripted()
    coordinator.state = (False, "The store s3://firm/index cannot be read.")
    with asked(coordinator, kept) as http:
        assert "s3://firm" in http.get("/readyz").json()["reason"]
        proxied = {"X-Forwarded-For": "203.0.113.9"}
        answer = http.get("/readyz", headers=proxied)
        assert (answer.status_code, answer.json()) == (503, {"ready": False, "reason": ""})
        assert "s3://firm" in http.get("/readyz", headers=proxied | bearer(key)).json()["reason"]


# --- connections -------------------------------------------------------------------------------------------------------------


def test_a_connection_stays_open_for_longer_than_clients_are_told_to_wait():
    """A refusal asks for a wait of up to the budget of a search, and the client comes back on the connection it has."""
    longest_s = max(limit.le for limit in SearchRequest.model_fields["budget_ms"].metadata if isinstance(limit, Le)) / 1000
    assert uvicorn.Config("application:none", **options(None)).timeout_keep_alive > longest_s


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))


def test_with_a_certificate_it_speaks_tls_and_its_client_can_tell(certificate, tmp_path):
    import sondage
    from jobs.deploy import await_ready

    async def story():
        async with served(free_port(), (KEY,), tls=certificate) as url:
            await asyncio.to_thread(ask, url.replace("http:", "https:"))

    def ask(url: str) -> None:
        with sondage.connect(url, KEY, certificate[0]) as client:
            assert client.search("hello world", corpus="stdlib").hits
            assert client._http.get("/healthz").headers["strict-transport-security"]
        with sondage.connect(url, KEY) as client, pytest.raises(sondage.SondageError, match="CERTIFICATE_VERIFY_FAILED"):
            client.status()
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            httpx.get(url.replace("https:", "http:") + "/healthz", trust_env=False)
        await_ready(url, 1e12, certificate[0])
        with pytest.raises(BadSpec, match="holds no certificate"):
            sondage.connect(url, KEY, tmp_path / "absent")

    asyncio.run(story())


def test_files_that_are_no_certificate_are_told_at_the_start(certificate, tmp_path):
    assert set(options(certificate)) >= {"ssl_certfile", "ssl_keyfile"} and "ssl_certfile" not in options(None)
    for files in ((certificate[1], certificate[0]), (tmp_path / "absent", certificate[1])):
        with pytest.raises(BadSpec, match="TLS by certificate"):
            options(files)


def said(address: tuple[str, int], *parts: bytes, hold: bool = False) -> bytes:
    with socket.create_connection(address, timeout=20) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except (BrokenPipeError, ConnectionResetError):
                break
        received = b""
        try:
            while more := connection.recv(65536):
                received += more
        except ConnectionResetError:  # it had more to read
            pass
        return received


def test_a_head_without_end_is_refused_and_one_that_does_not_come_is_not_waited_for(monkeypatch):
    async def story() -> tuple[bytes, ...]:
        port = free_port()
        async with served(port):
            at = ("127.0.0.1", port)
            start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
            endless = await asyncio.to_thread(said, at, start + b"X-A: ", *[b"a" * 1024] * (MAX_HEAD_BYTES // 1024 + 64))
            monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.05)
            slow = await asyncio.to_thread(said, at, start)
            silent = await asyncio.to_thread(said, at)
            large = start + b"X-A: " + b"a" * (MAX_HEAD_BYTES // 2) + b"\r\nConnection: close\r\n\r\n"
            return endless, slow, silent, await asyncio.to_thread(said, at, large)

    endless, slow, silent, large = asyncio.run(story())
    assert endless.startswith(b"HTTP/1.1 431 ") or endless == b""  # reset while it was still sending
    assert slow.startswith(b"HTTP/1.1 408 ") and b'"kind":"too_slow"' in slow
    assert silent == b"" and large.startswith(b"HTTP/1.1 200 ")
