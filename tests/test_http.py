"""The HTTP interface: what it accepts, what it answers, and what it says when something is wrong."""

import json
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from scripted_coordinator import HASH, KEY, Scripted, eventually, one_hit, running

from serve.bodies import MAX_BODY_BYTES, MAX_DRAINED_BYTES
from serve.filters import scope
from serve.guard import refuse_rebinding
from serve.http import create_app
from serve.links import BODY_ONLY, SearchParameters
from serve.schema import DocumentAnswer, SearchAnswer, SearchRequest
from shards.errors import BadQuery, BadSpec, NotFound, StoreError


@contextmanager
def client(coordinator: Scripted | None = None, keys: tuple[str, ...] = ()) -> Iterator[httpx.Client]:
    with running(coordinator or Scripted(), keys) as url, httpx.Client(base_url=url, timeout=20) as session:
        yield session


@pytest.fixture(scope="module")
def session() -> Iterator[httpx.Client]:
    """For tests that change nothing of the server."""
    with client() as shared:
        yield shared


def ask(session: httpx.Client, **fields) -> httpx.Response:
    return session.post("/v1/search", json={"corpus": "stdlib", **fields})


def error(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) <= {"kind", "message", "at"}
    return body["error"]


# --- answers -----------------------------------------------------------------------------------------------------------------


def test_a_search_answers_the_schema_and_says_where_time_went(session):
    response = ask(session, query="hello world")
    assert response.status_code == 200
    answer = SearchAnswer.model_validate_json(response.content)
    assert (answer.hits[0].hash, answer.hits[0].excerpt.text, answer.hits[0].signals[0].evalue) == (HASH, "hello world", 3e-7)
    timing = response.headers["server-timing"]
    assert re.fullmatch(r"scatter;dur=3\.25, odd_name;dur=1\.00, parse;dur=[\d.]+, write;dur=[\d.]+, http;dur=[\d.]+", timing)


def test_a_path_that_is_not_utf8_is_shown_with_replacement_characters(session):
    assert ask(session).json()["hits"][0]["entries"][0]["path"] == "email/caf\ufffd.py"


def test_a_search_in_a_link_asks_the_same_as_one_in_a_body():
    seen: list[SearchRequest] = []

    def remember(request: SearchRequest) -> SearchAnswer:
        seen.append(request)
        return one_hit(request)

    with client(Scripted(remember)) as session:
        body = {"query": "a & b", "k": 3, "layers": ["bm25", "text"], "paths": ["*.py", "!x"], "where": {"a": 1}, "explain": True}
        assert ask(session, **body).status_code == 200
        link = {"corpus": "stdlib", "q": "a & b", "k": 3, "layers": "bm25,text", "path": ["*.py", "!x"], "where": '{"a": 1}'}
        assert session.get("/v1/search", params={**link, "explain": "true"}).status_code == 200
        assert session.get("/v1/search", params={"corpus": "stdlib"}).status_code == 200
    assert seen[0] == seen[1]
    assert seen[2] == SearchRequest(corpus="stdlib")


def test_status_is_json_even_where_numbers_are_infinite(session):
    assert session.get("/v1/status").json()["corpora"] == {"stdlib": {"generation": 4, "rate": None}}


def test_a_document_is_given_by_hash_and_range(session):
    response = session.get(f"/v1/documents/{HASH}", params={"corpus": "stdlib", "start": 0, "end": 5})
    answer = DocumentAnswer.model_validate_json(response.content)
    assert (answer.text, answer.hash, answer.entries[0].path) == ("hello", HASH, "a.py")


def test_health_and_readiness_are_two_questions():
    coordinator = Scripted()
    with client(coordinator, (KEY,)) as session:
        assert session.get("/healthz").status_code == 200
        assert session.get("/readyz").json() == {"ready": True, "reason": ""}
        coordinator.state = (False, "no generation is open yet")
        assert session.get("/healthz").status_code == 200
        response = session.get("/readyz")
        assert (response.status_code, response.json()["reason"]) == (503, "no generation is open yet")


def test_the_coordinator_lives_as_long_as_the_application():
    coordinator = Scripted()
    with client(coordinator):
        assert coordinator.events == ["started"]
    assert coordinator.events == ["started", "closed"]


def test_every_field_of_a_request_is_sent_by_link_or_known_to_need_a_body():
    """A field that is forgotten in links is refused by every server."""
    by_body = {name.removesuffix("_") for name in BODY_ONLY}
    linked = {"q": "query", "path": "paths", "depth": "rerank"}
    said = {linked.get(name, name) for name in SearchParameters.model_fields}
    assert {name.removesuffix("_") for name in SearchRequest.model_fields} == said | by_body


def test_the_openapi_page_shows_requests_that_are_valid():
    with client(keys=(KEY,)) as session:
        assert session.get("/docs").status_code == 200
        spec = session.get("/openapi.json").json()
    content = spec["paths"]["/v1/search"]["post"]["requestBody"]["content"]["application/json"]
    for example in content["examples"].values():
        request = SearchRequest.model_validate(example["value"])
        scope(request.paths, request.where)
    assert set(content["schema"]["properties"]) == {field.alias or name for name, field in SearchRequest.model_fields.items()}
    assert "$ref" not in str(content["schema"])  # to what the page does not hold
    assert set(spec["components"]["securitySchemes"]) == {"HTTPBearer", "APIKeyHeader"}


# --- bad input ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "kind", "at", "says"),
    [
        (b"", 400, "bad_request", None, "The body is empty"),
        (b'{"corpus": "a",}', 400, "bad_request", None, "line 1 column 16"),
        (b'{"corpus":\n  nope}', 400, "bad_request", None, "line 2 column"),
        (b'{"corpus": "\xff"}', 400, "bad_request", None, "unicode"),
        (b'{"corpus": "a", "query": "\\ud800"}', 400, "bad_request", None, "hex escape"),
        (b'{"corpus": "a", "where": {"x": NaN}}', 400, "bad_request", None, "expected value at line 1"),
        (b'{"where":' + b"[" * 100_000, 400, "bad_request", None, "recursion limit"),
        (b"[]", 422, "invalid_request", "the request", "valid dictionary"),
        (b"{}", 422, "invalid_request", "corpus", "corpus: missing."),
        (b'{"corpus": ""}', 422, "invalid_request", "corpus", "at least 1 character"),
        (b'{"corpus": "a", "k": 0}', 422, "invalid_request", "k", "k: expected greater than or equal to 1; found 0."),
        (b'{"corpus": "a", "k": 1000000}', 422, "invalid_request", "k", "less than or equal to 1000; found 1000000."),
        (b'{"corpus": "a", "k": "many"}', 422, "invalid_request", "k", "found 'many'"),
        (b'{"corpus": "a", "budget_ms": 0}', 422, "invalid_request", "budget_ms", "found 0"),
        (b'{"corpus": "a", "quary": "x"}', 422, "invalid_request", "quary", "did you mean 'query'? Known are: corpus, query,"),
        (b'{"corpus": "a", "layers": "bm25"}', 422, "invalid_request", "layers", "expected 'auto' or a valid list; found 'bm25'."),
        (b'{"corpus": "a", "layers": [1]}', 422, "invalid_request", "layers", "valid string"),
        (b'{"corpus": "a", "paths": ["x", 3]}', 422, "invalid_request", "paths[1]", "valid string; found 3."),
        (b'{"corpus": "a", "where": {"x": {"~": 1}}}', 422, "bad_query", 'where.x["~"]', "choose from =="),
        (b'{"corpus": "a", "rerank": true}', 422, "invalid_request", "rerank", "expected a valid dictionary"),
        (b'{"corpus": "a", "rerank": {}}', 422, "invalid_request", "rerank.model", "rerank.model: missing."),
        (b'{"corpus": "a", "rerank": {"model": "m", "depth": 201}}', 422, "invalid_request", "rerank.depth", "less than or equal to 200"),
        (b'{"corpus": "a", "rerank": {"model": "m", "depht": 9}}', 422, "invalid_request", "rerank.depht", "did you mean 'depth'?"),
        (b'{"corpus": "a", "paths": ["a[b"]}', 422, "bad_query", "paths[0]", "unclosed '['"),
    ],
)
def test_bad_input_is_told_what_where_and_what_is_allowed(body, status, kind, at, says, session):
    found = error(session.post("/v1/search", content=body), status)
    assert (found["kind"], found.get("at")) == (kind, at)
    assert says in found["message"], found["message"]
    assert len(found["message"]) < 1000
    assert ask(session).status_code == 200  # and the process is alive


def test_a_query_that_is_too_long_is_refused_without_being_repeated(session):
    found = error(ask(session, query="x" * 500_000), 422)
    assert found["at"] == "query" and "at most 8192 characters" in found["message"] and len(found["message"]) < 300


@pytest.mark.parametrize(
    ("link", "at", "says"),
    [
        ("/v1/search?q=x", "corpus", "missing"),
        ("/v1/search?corpus=a&k=0", "k", "found '0'"),
        ("/v1/search?corpus=a&query=x", "query", "unknown field"),
        ("/v1/search?corpus=a&depth=5", "depth", "nothing is reranked. Name the model: rerank=MODEL."),
        ("/v1/search?corpus=a&rerank=m&depth=0", "depth", "found '0'"),
        ("/v1/search?corpus=a&where=%7B", None, "The where is not JSON"),
        ("/v1/documents/nohash?corpus=a", "hash", "pattern"),
        (f"/v1/documents/{HASH}", "corpus", "missing"),
        (f"/v1/documents/{HASH}?corpus=a&start=-1", "start", "greater than or equal to 0"),
        (f"/v1/documents/{HASH}?corpus=a&start=5&end=3", "end", "lies before start"),
        (f"/v1/documents/{HASH}?corpus=a&start={10**30}", "start", "expected"),
    ],
)
def test_bad_parameters_of_a_link_are_told_like_those_of_a_body(link, at, says, session):
    response = session.get(link)
    found = error(response, 400 if at is None else 422)
    assert found.get("at") == at and says in found["message"], found


@pytest.mark.parametrize(
    ("raised", "status", "kind"),
    [
        (BadQuery("Unknown layer 'bm52'. Choose from: bm25, names."), 422, "bad_query"),
        (NotFound("There is no corpus 'a'. There are: stdlib."), 404, "not_found"),
        (StoreError("The store s3://x cannot be read: timed out."), 503, "store_error"),
    ],
)
def test_errors_of_the_search_keep_their_message_and_status(raised, status, kind):
    def fail(_request):
        raise raised

    with client(Scripted(fail)) as session:
        assert error(ask(session), status) == {"kind": kind, "message": str(raised)}


def test_an_unforeseen_error_is_logged_with_an_id_and_not_shown(caplog):
    def fail(_request):
        raise RuntimeError("secret path /home/x")

    with client(Scripted(fail)) as session, caplog.at_level(logging.ERROR):
        found = error(ask(session), 500)
    assert found["kind"] == "internal" and "secret" not in found["message"]
    [record] = [r for r in caplog.records if "event=unexpected_error" in r.getMessage()]
    number = record.args[0]
    assert number in found["message"] and record.exc_info[1].args == ("secret path /home/x",)


def test_unknown_paths_and_methods_name_the_known_ones(session):
    assert "GET POST /v1/search" in error(session.get("/v1/serch"), 404)["message"]
    response = session.delete("/v1/search")
    assert "does not take DELETE" in error(response, 405)["message"]


# --- keys --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/search?corpus=stdlib", "/v1/status", f"/v1/documents/{HASH}?corpus=stdlib"])
def test_with_keys_every_v1_path_wants_one(path):
    with client(keys=("other", KEY)) as session:
        response = session.get(path)
        assert error(response, 401)["kind"] == "unauthorized" and response.headers["www-authenticate"] == "Bearer"
        for headers in ({"X-API-Key": "wrong"}, {"Authorization": "Bearer wrong"}, {"X-API-Key": "clé".encode("latin-1")}):
            assert "not one of this server's" in error(session.get(path, headers=headers), 401)["message"]
        assert error(session.get(path, headers={"Authorization": f"Basic {KEY}"}), 401)
        for headers in ({"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}, {"X-API-Key": "other"}):
            assert session.get(path, headers=headers).status_code == 200


def test_a_body_is_not_read_without_a_key():
    with client(keys=(KEY,)) as session:
        assert error(session.post("/v1/search", content=b"not json"), 401)


@pytest.mark.parametrize("key", ["", " ", "a b\n", "clé"])
def test_keys_that_no_header_can_carry_are_refused_at_start(key):
    with pytest.raises(BadSpec, match="API key"):
        create_app(Scripted(), (key,))


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1:8765", "[::1]:8765", "10.0.0.7", "sondage:8765", "a.localhost", ""])
def test_without_keys_addresses_and_local_names_are_answered(host):
    refuse_rebinding(host)


def test_without_keys_a_name_that_a_web_page_could_have_chosen_is_refused(session):
    found = error(session.get("/v1/status", headers={"Host": "evil.example:8765"}), 403)
    assert "evil.example" in found["message"]
    with client(keys=(KEY,)) as session:
        assert session.get("/v1/status", headers={"Host": "sondage.example", "X-API-Key": KEY}).status_code == 200


# --- clients that misbehave --------------------------------------------------------------------------------------------------


def test_a_client_that_hangs_up_ends_its_search():
    coordinator = Scripted()
    with client(coordinator) as session:
        with pytest.raises(httpx.ReadTimeout):
            session.post("/v1/search", json={"corpus": "stdlib", "query": "wait for ever"}, timeout=0.5)
        eventually(lambda: coordinator.events[-1] == "cancelled")
        assert ask(session).status_code == 200


def test_a_body_over_the_limit_is_refused_in_a_way_that_clients_can_read(session):
    found = error(ask(session, query="x" * (MAX_BODY_BYTES + 1)), 413)
    assert found["kind"] == "too_large" and "1,048,576 bytes" in found["message"]
    undeclared = (b" " * 50_000 for _ in range(40))
    assert error(session.post("/v1/search", content=undeclared), 413)
    assert ask(session).status_code == 200


def test_a_body_that_declares_an_absurd_length_is_refused_at_once(session):
    url = session.base_url
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        head = f"POST /v1/search HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: {MAX_DRAINED_BYTES + 1}\r\n\r\n"
        connection.sendall(head.encode())
        received = connection.recv(65536).decode()
    assert received.startswith("HTTP/1.1 413 ")
    assert json.loads(received.partition("\r\n\r\n")[2] or connection.recv(65536))["error"]["kind"] == "too_large"
