"""Pushing over real HTTP: acknowledged is durable, searchable soon after, and what is wrong is told without losing the rest."""

import asyncio
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from scripted_coordinator import KEY, Scripted, eventually

import sondage
from cluster.settings import HostSettings
from jobs import bench_push, cli, commands_push
from jobs.progress import Progress
from serve import intake
from serve.http import create_app
from serve.local import local_coordinator, local_pushes
from shards import pushlog
from shards.errors import BadQuery, Conflict, NotFound
from shards.store import open_store

ROOT = Path(__file__).resolve().parent.parent
LAYERS = "names,text,bm25"
DOCUMENT = "application/vnd.sondage.document+json"
LINES = {"content-type": "application/x-ndjson"}


@contextmanager
def serving(folder: Path, keys: tuple[str, ...] = (), **more: Any) -> Iterator[str]:
    """What `sondage serve` runs, in a thread of this process; gives its URL. folder: with the store, which may be shared. more: as of
    `create_app`."""
    settings = HostSettings(store_url=str(folder / "store"), cache_dir=folder / f"cache-{uuid.uuid4().hex}", models_dir=folder / "models")
    app = create_app(local_coordinator(settings, poll_s=0.05), keys, pushing=local_pushes, **more)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            eventually(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("push")) as url:
        yield url


@pytest.fixture
def session(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=30) as shared:
        yield shared


@pytest.fixture
def corpus(session) -> str:
    """A corpus of its own with one document."""
    name = f"c{uuid.uuid4().hex[:8]}"
    made = session.put(f"/v1/corpora/{name}/documents/first.txt?layers={LAYERS}&wait=searchable", content="The first document.")
    assert made.json()["searchable"], made.text
    return name


def error(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    return response.json()["error"]


def hits(session: httpx.Client, corpus: str, query: str, **asked) -> list[dict]:
    body = {"corpus": corpus, "query": query, "layers": ["bm25"], "keep_all": True, **asked}
    return session.post("/v1/search", json=body).json()["hits"]


def paths(session: httpx.Client, corpus: str, query: str, **asked) -> list[str]:
    return [hit["entries"][0]["path"] for hit in hits(session, corpus, query, **asked)]


# --- one document ------------------------------------------------------------------------------------------------------------


def test_a_document_is_put_found_replaced_and_deleted(session, corpus):
    at = f"/v1/corpora/{corpus}/documents/tools/grep/1.txt?wait=searchable"
    answer = session.put(at, content=b"basalt in the quarry", headers={"Sondage-Metadata": '{"tool": "grep"}'}).json()
    assert answer["searchable"] and answer["position"] == 2 and len(answer["hash"]) == 40
    (hit,) = hits(session, corpus, "basalt")
    assert (hit["hash"], hit["entries"][0]["path"]) == (answer["hash"], "tools/grep/1.txt")
    assert (hit["entries"][0]["source"], hit["entries"][0]["metadata"]) == ("pushed", {"tool": "grep"})
    whole = session.get(f"/v1/documents/{answer['hash']}", params={"corpus": corpus}).json()
    assert whole["text"] == "basalt in the quarry"
    session.put(at, content="now cobalt")
    assert (paths(session, corpus, "basalt"), paths(session, corpus, "cobalt")) == ([], ["tools/grep/1.txt"])
    gone = session.delete(at).json()
    assert gone["hash"] is None and gone["searchable"]
    assert paths(session, corpus, "cobalt") == []


def test_a_document_as_json_bears_metadata_and_an_id(session, corpus):
    at = f"/v1/corpora/{corpus}/documents/j.txt?wait=searchable"
    body = {"text": "feldspar", "metadata": {"n": 1, "deep": {"a": [1, 2]}}, "id": "once"}
    first = session.put(at, content=json.dumps(body), headers={"content-type": DOCUMENT}).json()
    assert paths(session, corpus, "feldspar", where={"n": 1}) == ["j.txt"]
    again = session.put(at, content=json.dumps(body), headers={"content-type": DOCUMENT}).json()
    assert (again["position"], again["repeated"]) == (first["position"], True)


def test_json_that_is_not_marked_as_a_document_is_one_itself(session, corpus):
    session.put(f"/v1/corpora/{corpus}/documents/api.json?wait=searchable", json={"mineral": "garnet"})
    (hit,) = hits(session, corpus, "garnet")
    assert hit["excerpt"]["text"] == '{"mineral":"garnet"}'


def test_bytes_in_other_encodings_are_rendered(session, corpus):
    answer = session.put(f"/v1/corpora/{corpus}/documents/u16?wait=searchable", content="hematite für alle".encode("utf-16")).json()
    whole = session.get(f"/v1/documents/{answer['hash']}", params={"corpus": corpus}).json()
    assert whole["text"] == "hematite für alle"


def test_paths_are_percent_encoded_utf8(session, corpus):
    answer = session.put(f"/v1/corpora/{corpus}/documents/a%20b/%C3%BC%23%3F.txt", content="x").json()
    assert answer["path"] == "a b/ü#?.txt"
    assert session.put(f"/v1/corpora/{corpus}/documents/documents/x", content="x").json()["path"] == "documents/x"


def test_without_waiting_the_answer_comes_when_it_is_durable(session, corpus):
    answer = session.put(f"/v1/corpora/{corpus}/documents/d.txt", content="indigo").json()
    assert answer["position"] == 2
    eventually(lambda: paths(session, corpus, "indigo") == ["d.txt"])


def test_a_wait_that_ends_too_soon_says_so_and_the_document_comes_all_the_same(session, corpus):
    answer = session.put(f"/v1/corpora/{corpus}/documents/w.txt?wait=searchable&timeout_ms=1", content="jasper").json()
    assert answer["position"] == 2
    eventually(lambda: paths(session, corpus, "jasper") == ["w.txt"])


# --- creating a corpus -------------------------------------------------------------------------------------------------------


def test_a_corpus_is_made_only_when_asked_for_and_a_typo_makes_none(session, corpus):
    found = error(session.put("/v1/corpora/typo/documents/a", content="x"), 404)
    assert found["kind"] == "not_found" and corpus in found["message"] and "create=true" in found["message"]
    found = error(session.put("/v1/corpora/typo/documents/a?layers=names,bm26", content="x"), 422)
    assert "Unknown layer 'bm26'" in found["message"]
    found = error(session.put("/v1/corpora/-typo/documents/a?create=true", content="x"), 422)
    assert "Corpus name '-typo' is not allowed" in found["message"]
    assert error(session.put("/v1/corpora/typo/documents/a", content="x"), 404)


def test_a_second_push_need_not_wait_until_the_first_has_made_the_corpus(session):
    assert session.put(f"/v1/corpora/soon/documents/a?layers={LAYERS}", content="onyx one").status_code == 200
    assert session.put("/v1/corpora/soon/documents/b?wait=searchable", content="onyx two").json()["searchable"]
    assert sorted(paths(session, "soon", "onyx")) == ["a", "b"]


# --- many ---------------------------------------------------------------------------------------------------------------------


def test_lines_are_taken_one_by_one_and_what_is_wrong_with_one_concerns_no_other(session, corpus):
    lines = [
        b'{"path": "a.txt", "text": "kyanite one", "metadata": {"n": 1}}',
        b"",
        b'{"path": "../b", "text": "x"}',
        b"{nope",
        b'{"op": "delete", "path": "first.txt"}',
        b'{"path": "c", "base64": "!!"}',
        b'{"path": "d", "base64": "a3lhbml0ZSB0d28="}',
        b'{"path": "e"}',
        b'{"path": "f", "text": "x", "vectors": {"mine": [1, 2]}}',
        b'{"path": "g", "text": "x", "colour": "red"}',
        b'{"op": "delete", "path": "h", "text": "x"}',
        b'{"path": "i", "text": "kyanite three"}',
    ]
    response = session.post(f"/v1/corpora/{corpus}/documents?wait=searchable&each=true", content=b"\n".join(lines), headers=LINES)
    assert response.status_code == 207
    answer = response.json()
    assert (answer["accepted"], answer["failed"], answer["searchable"]) == (4, 7, True)
    assert [(line["line"], line["path"]) for line in answer["lines"]] == [(1, "a.txt"), (5, "first.txt"), (7, "d"), (12, "i")]
    told = {e["line"]: (e["kind"], e["message"]) for e in answer["errors"]}
    assert {number: kind for number, (kind, _) in told.items()} == {
        3: "invalid_request", 4: "bad_request", 6: "invalid_request", 8: "invalid_request", 9: "bad_query", 10: "invalid_request",
        11: "invalid_request",
    }  # fmt: skip
    assert "'mine'" in told[9][1] and "unknown field" in told[10][1] and "either `text` or `base64`" in told[8][1]
    assert sorted(paths(session, corpus, "kyanite")) == ["a.txt", "d", "i"]
    assert paths(session, corpus, "first document") == []


def test_a_line_may_come_in_pieces_and_the_last_need_not_end(session, corpus):
    body = b"\n".join(json.dumps({"path": f"{i}.txt", "text": f"lapis {i}"}).encode() for i in range(50))

    def pieces() -> Iterator[bytes]:
        for at in range(0, len(body), 7):
            yield body[at : at + 7]

    answer = session.post(f"/v1/corpora/{corpus}/documents?wait=searchable", content=pieces(), headers=LINES)
    assert (answer.status_code, answer.json()["accepted"]) == (200, 50)
    assert len(paths(session, corpus, "lapis", k=100)) == 50


def test_lines_of_a_client_that_hangs_up_are_kept_as_far_as_they_came(session, corpus):
    where = urlsplit(str(session.base_url))
    line = json.dumps({"path": "whole.txt", "text": "marble"}).encode() + b"\n"
    head = f"POST /v1/corpora/{corpus}/documents HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nContent-Length: 9999\r\n\r\n"
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(head.encode() + line + b'{"path": "torn.txt", "te')
        eventually(lambda: paths(session, corpus, "marble") == ["whole.txt"])
    assert session.put(f"/v1/corpora/{corpus}/documents/next?wait=searchable", content="nickel").json()["searchable"]
    assert paths(session, corpus, "nickel") == ["next"]


def test_a_line_that_is_too_long_is_told_and_the_next_one_taken(session, corpus, monkeypatch):
    monkeypatch.setattr("serve.documents.MAX_LINE_BYTES", 100)
    body = b'{"path": "long", "text": "' + b"x" * 500 + b'"}\n{"path": "short", "text": "pyrite"}'
    answer = session.post(f"/v1/corpora/{corpus}/documents?wait=searchable", content=body, headers=LINES).json()
    assert [(e["line"], e["kind"]) for e in answer["errors"]] == [(1, "too_large")]
    assert paths(session, corpus, "pyrite") == ["short"]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/json"])
def test_lines_of_another_type_are_refused_also_because_a_foreign_page_could_send_them(session, corpus, kind):
    response = session.post(f"/v1/corpora/{corpus}/documents", content=b'{"path": "a", "text": "b"}', headers={"content-type": kind})
    assert "application/x-ndjson" in error(response, 415)["message"]


# --- bad input ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("a//b", "empty part"),
        ("%2e%2e/b", "`..`"),
        ("a/%2E", "`.`"),
        ("a/", "empty part"),
        ("a%00b", "control character"),
        ("a%1Fb", "control character"),
        ("x" * 1025, "more than 1,024 bytes"),
        ("%FF", "not UTF-8"),
    ],
)
def test_bad_paths_are_refused_by_name(session, corpus, path, says):
    request = session.build_request("PUT", "/", content=b"x")
    request.url = request.url.copy_with(raw_path=f"/v1/corpora/{corpus}/documents/{path}".encode())
    response = session.send(request)
    assert response.status_code in (400, 422)
    assert says in response.json()["error"]["message"]
    assert response.json()["error"]["at"] == "path"


@pytest.mark.parametrize(
    ("headers", "body", "status", "says"),
    [
        ({}, b"\x89PNG\r\n\x1a\n\0\0\0", 422, "can be read as text: binary"),
        ({"Sondage-Metadata": "[1]"}, b"x", 422, "no JSON object"),
        ({"Sondage-Metadata": "{"}, b"x", 400, "header Sondage-Metadata is not JSON"),
        ({"Idempotency-Key": "k" * 129}, b"x", 422, "at most 128"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"x", 415, "curl -T FILE"),
        ({"content-type": DOCUMENT}, b"text", 400, "not JSON"),
        ({"content-type": DOCUMENT}, b'{"text": "a", "base64": "YQ=="}', 422, "either `text` or `base64`"),
        ({"content-type": DOCUMENT}, b'{"text": "a", "metadata": 3}', 422, "metadata: expected a valid dictionary"),
        ({"content-type": DOCUMENT}, b'{"text": "a", "vectors": {"mine": [1, 2]}}', 422, "mine"),
    ],
)
def test_bad_documents_are_told_what_and_where(session, corpus, headers, body, status, says):
    at = f"/v1/corpora/{corpus}/documents/x"
    found = error(session.put(at, content=body, headers=headers), status)
    assert says in found["message"], found
    assert session.put(at + "?wait=searchable", content="quartz").json()["position"] == 2  # nothing was logged
    assert paths(session, corpus, "quartz") == ["x"]


def test_a_document_that_is_too_large_is_refused(session, corpus, monkeypatch):
    monkeypatch.setattr("serve.documents.MAX_DOCUMENT_BYTES", 1000)
    found = error(session.put(f"/v1/corpora/{corpus}/documents/x", content=b"x" * 1001), 413)
    assert "larger than 1,000 bytes" in found["message"]
    monkeypatch.setattr(intake, "MAX_DOCUMENT_BYTES", 1000)
    body = json.dumps({"text": "x" * 1001})
    found = error(session.put(f"/v1/corpora/{corpus}/documents/x", content=body, headers={"content-type": DOCUMENT}), 413)
    assert "1,001 bytes" in found["message"]


def test_unknown_parameters_are_refused_with_those_there_are(session, corpus):
    found = error(session.put(f"/v1/corpora/{corpus}/documents/x?wiat=searchable", content="x"), 422)
    assert "did you mean 'wait'" in found["message"]
    found = error(session.put(f"/v1/corpora/{corpus}/documents/x?wait=forever", content="x"), 422)
    assert "'searchable'" in found["message"]


def test_an_id_that_is_used_for_something_else_is_a_conflict(session, corpus):
    at = f"/v1/corpora/{corpus}/documents/x"
    session.put(at, content="one", headers={"Idempotency-Key": "k1"})
    assert error(session.put(at, content="two", headers={"Idempotency-Key": "k1"}), 409)["kind"] == "conflict"


def test_metadata_that_cannot_be_stored_is_left_out_and_named(session, corpus):
    body = {"text": "x", "metadata": {"good": 1, "long": "x" * 40_000}}
    answer = session.put(f"/v1/corpora/{corpus}/documents/m", content=json.dumps(body), headers={"content-type": DOCUMENT}).json()
    assert len(answer["left_out"]) == 1


def test_front_matter_is_metadata_too_and_what_is_said_with_the_push_wins(session, corpus):
    text = "---\ntitle: Minerals\nlevel: 1\n---\nlabradorite\n"
    said = {"Sondage-Metadata": '{"level": 2}'}
    session.put(f"/v1/corpora/{corpus}/documents/m.md?wait=searchable", content=text, headers=said)
    assert paths(session, corpus, "labradorite", where={"title": "Minerals", "level": 2}) == ["m.md"]


def test_a_key_is_asked_for_where_the_server_has_one(tmp_path):
    with serving(tmp_path, (KEY,)) as url, httpx.Client(base_url=url, timeout=30) as session:
        at = f"/v1/corpora/c/documents/x?layers={LAYERS}"
        for response in (session.put(at, content="x"), session.delete(at), session.post("/v1/corpora/c/documents", headers=LINES)):
            assert error(response, 401)["kind"] == "unauthorized"
        assert session.put(at, content="x", headers={"x-api-key": KEY}).status_code == 200


def test_a_server_that_takes_no_documents_says_so():
    from scripted_coordinator import running

    with running(Scripted()) as url:
        assert "takes no documents" in error(httpx.put(f"{url}/v1/corpora/c/documents/x", content="x"), 503)["message"]


# --- callers' own vectors ----------------------------------------------------------------------------------------------------


def test_own_vectors_are_checked_and_searched(session):
    at = "/v1/corpora/vectors/documents/"
    session.put(f"{at}plain?layers=bm25,mine=vectors:dim=3", content="plain")
    for name, vector in (("a", [1, 0, 0]), ("b", [[0, 1, 0], [0, 0, 1]])):
        body = {"text": f"text of {name}", "vectors": {"mine": vector}}
        made = session.put(f"{at}{name}?wait=searchable", content=json.dumps(body), headers={"content-type": DOCUMENT})
        assert made.json()["searchable"], made.text
    asked = {"forms": {"mine": {"vector": [0, 0, 1]}}, "layers": ["mine"]}
    assert paths(session, "vectors", "", **asked)[0] == "b"
    wrong = {"text": "x", "vectors": {"mine": [1, 2]}}
    found = error(session.put(f"{at}x", content=json.dumps(wrong), headers={"content-type": DOCUMENT}), 422)
    assert "3" in found["message"] and "mine" in found["message"]


# --- several servers, and death ----------------------------------------------------------------------------------------------


def test_two_servers_on_one_store_take_pushes_at_once_and_both_find_all(tmp_path):
    with serving(tmp_path) as one, serving(tmp_path) as two:
        httpx.put(f"{one}/v1/corpora/c/documents/first?layers={LAYERS}&wait=searchable", content="amber", timeout=30)

        async def push(url: str, me: str) -> None:
            async with httpx.AsyncClient(base_url=url, timeout=60) as session:
                for i in range(15):
                    answer = await session.put(f"/v1/corpora/c/documents/{me}/{i}", content=f"ebony {me} {i}")
                    assert answer.status_code == 200, answer.text

        async def both() -> None:
            await asyncio.gather(*(push(url, me) for url, me in ((one, "a"), (two, "b"), (one, "c"), (two, "d"))))

        asyncio.run(both())
        expected = sorted(f"{me}/{i}" for me in "abcd" for i in range(15))
        for url in (one, two):
            with httpx.Client(base_url=url, timeout=30) as session:
                eventually(lambda session=session: sorted(paths(session, "c", "ebony", k=100)) == expected, 60)
    store, n = open_store(tmp_path / "store").child("c"), 0
    while (entry := pushlog.read(store, n + 1)) is not None:
        n += 1
        assert entry.operations
    assert n <= 61


@contextmanager
def process(folder: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """`sondage serve` as a process of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SONDAGE_")}
    environment |= {"PYTHONPATH": str(ROOT), "SONDAGE_CACHE": str(folder / "cache"), "SONDAGE_PORT": "0"}
    command = [sys.executable, "-m", "jobs.cli", "serve", "--store", str(folder / "store")]
    started = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        said = started.stderr.readline()
        yield re.search(r"http://\S+", said)[0], started
    finally:
        started.kill()
        started.wait(30)
        started.stderr.close()


def test_what_was_acknowledged_survives_kill_9_right_after(tmp_path):
    with process(tmp_path) as (url, server), httpx.Client(base_url=url, timeout=60) as session:
        session.put(f"/v1/corpora/c/documents/old?layers={LAYERS}&wait=searchable&timeout_ms=60000", content="amber")
        acknowledged = [session.put(f"/v1/corpora/c/documents/new/{i}", content=f"ebony {i}").json()["position"] for i in range(5)]
        server.send_signal(signal.SIGKILL)
        server.wait(30)
    assert acknowledged == [2, 3, 4, 5, 6]
    with process(tmp_path) as (url, _), httpx.Client(base_url=url, timeout=60) as session:
        eventually(lambda: session.get("/readyz").status_code == 200, 60)
        eventually(lambda: len(paths(session, "c", "ebony")) == 5, 60)
        assert paths(session, "c", "amber") == ["old"]


def test_status_names_a_damaged_entry_of_the_log_and_what_was_before_it_is_found(tmp_path):
    with serving(tmp_path) as url, httpx.Client(base_url=url, timeout=30) as session:
        session.put(f"/v1/corpora/c/documents/a?layers={LAYERS}&wait=searchable", content="amber")
        open_store(tmp_path / "store").child("c").create(pushlog.entry_name(2), b"rubbish")
        assert session.put("/v1/corpora/c/documents/b", content="basalt").json()["position"] == 3
        eventually(lambda: "the log of c" in session.get("/v1/status").json()["problems"])
        assert "0000000000000002" in session.get("/v1/status").json()["problems"]["the log of c"]
        assert (paths(session, "c", "amber"), paths(session, "c", "basalt")) == (["a"], [])
        pushlog.take_out(open_store(tmp_path / "store").child("c"), 2)
        eventually(lambda: paths(session, "c", "basalt") == ["b"])


# --- from Python and the command line ----------------------------------------------------------------------------------------


def test_the_client_puts_deletes_and_puts_many(server):
    with sondage.connect(server) as client:
        made = client.put("tools/ls.txt", "basalt", {"tool": "ls"}, corpus="py", layers=LAYERS.split(","), wait=True)
        assert made.searchable and made.position == 1
        (hit,) = client.search("basalt", "py", layers=["bm25"], keep_all=True).hits
        assert client.document(hit.hash, "py").text == "basalt"
        items = [("a", "cobalt one"), ("b", b"cobalt two", {"n": 2}), {"path": "c", "content": "cobalt three"}, {"path": "..", "text": "x"}]
        many = client.put_many(items, corpus="py", wait=True)
        assert (many.accepted, many.failed, [e.line for e in many.errors]) == (3, 1, [4])
        assert client.delete("a", corpus="py", wait=True).hash is None
        found = client.search("cobalt", "py", layers=["bm25"], keep_all=True).hits
        assert sorted(hit.entries[0].path for hit in found) == ["b", "c"]
        again = client.put("d", "dolomite", corpus="py", id="same")
        assert client.put("d", "dolomite", corpus="py", id="same").position == again.position
        with pytest.raises(Conflict):
            client.put("d", "another", corpus="py", id="same")
        with pytest.raises(NotFound, match="create"):
            client.put("d", "x", corpus="nowhere")
        with pytest.raises(BadQuery, match=r"`\.\.`"):
            client.put("a/../b", "x", corpus="py")


def test_put_many_sends_portions_and_counts_lines_over_all(server, monkeypatch):
    monkeypatch.setattr("sondage.pushing.PORTION_LINES", 4)
    with sondage.connect(server) as client:
        items = [{"path": "bad//path" if i == 9 else f"{i}", "text": f"garnet {i}"} for i in range(11)]
        answer = client.put_many(items, corpus="portions", layers=["bm25"], wait=True)
        assert (answer.accepted, answer.failed, [e.line for e in answer.errors]) == (10, 1, [10])
        assert len(client.search("garnet", "portions", k=50, keep_all=True).hits) == 10


def test_an_engine_takes_documents_without_a_server(tmp_path):
    with sondage.Engine(tmp_path / "store", cache=tmp_path / "cache") as engine:
        assert engine.put("a", "hematite", corpus="e", layers=["bm25"], wait=True).searchable
        assert engine.put_many([("b", "hematite too"), ("c/", "x")], corpus="e", wait=True).failed == 1
        assert len(engine.search("hematite", "e", keep_all=True).hits) == 2
        assert engine.delete("a", corpus="e", wait=True).searchable
        assert [hit.entries[0].path for hit in engine.search("hematite", "e", keep_all=True).hits] == ["b"]


def test_files_are_pushed_and_taken_away_from_the_command_line(server, tmp_path, monkeypatch, capsys):
    for name in list(os.environ):
        if name.startswith("SONDAGE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("notes").mkdir()
    Path("notes/a.md").write_text("onyx in the notes")
    Path("image").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main([*arguments, "--url", server, "-c", "shell"])
        said = capsys.readouterr()
        return code, said.out, said.err

    code, out, err = run("put", "notes/a.md")
    assert code == 2 and "--create" in err
    code, out, _ = run("put", "./notes/a.md", "--layers", LAYERS, "--metadata", '{"kind": "note"}')
    assert code == 0 and re.fullmatch(r"1 pushed to shell, searchable in generation \d+\n", out)
    code, out, _ = run("search", "onyx", "--where", '{"kind": "note"}', "--layer", "bm25")
    assert code == 0 and out.startswith("notes/a.md:1:")
    code, out, err = run("put", "image", "notes/a.md")
    assert code == 2 and "sondage: image: Nothing in this document can be read as text: binary." in err
    assert out.startswith("1 pushed to shell")
    for wrong, says in (
        (("put", "notes"), "notes is a folder. Index it"),
        (("put", "nowhere"), "Cannot read nowhere: No such file"),
        (("put", "-"), "Give it one with --as PATH"),
        (("put", "image", "notes/a.md", "--as", "x"), "--as names one path, but 2 files are given"),
        (("put", "notes/a.md", "--metadata", "{"), "--metadata is not JSON"),
    ):
        code, _, err = run(*wrong)
        assert code == 2 and says in err, err
    code, out, _ = run("put", "notes/a.md", "--as", "b.md", "--no-wait", "--json")
    assert code == 0 and json.loads(out)["accepted"] == 1
    code, out, _ = run("rm", "notes/a.md", "b.md")
    assert code == 0 and re.fullmatch(r"2 taken out of shell, gone in generation \d+\n", out)
    assert run("search", "onyx")[0] == 1


@pytest.mark.parametrize(
    ("given", "path"),
    [("a.txt", "a.txt"), ("./x//y.txt", "x/y.txt"), ("x/../y", "y"), ("/etc/hosts", "etc/hosts")],
)
def test_a_file_is_pushed_to_its_own_path(given, path):
    assert commands_push.path_in_corpus(given) == path


def test_pushes_are_measured_beside_a_bare_append(monkeypatch):
    monkeypatch.setattr(bench_push, "N_SINGLE", 2)
    monkeypatch.setattr(bench_push, "queries_of_stdlib", lambda *_: ["parse a date", "HTMLParser"])  # else they are parsed for seconds
    figures = bench_push.bench_push(Progress(io.StringIO()), Namespace(files=[50, 300], seconds=0.3))
    assert figures["bulk"]["documents"] == 300
    for what in ("acknowledged", "searchable"):
        assert 0 < figures[f"PUT until {what}"]["p50_s"] <= figures[f"PUT until {what}"]["worst_s"]
    for path in ("1 clients", "32 clients", "fsync'd append"):
        assert figures[path]["answers"] > 0 and figures[path]["p50_ms"] <= figures[path]["p99_ms"]
    assert set(figures["one client's searches"]) == {"quiet", "beside ten pushes a second"}
