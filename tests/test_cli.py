"""The `sondage` command, the Python client and the settings, against a real server on loopback."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from rich.console import Console
from scripted_coordinator import HASH, KEY, Scripted, one_hit, running

import sondage
from jobs import cli, connecting, render, request_options
from jobs.settings import VARIABLES, Settings, read_keys
from serve.schema import Coverage, EntryOut, ExcerptOut, Rerank, RerankInfo, RerankSignal, SearchAnswer, SearchRequest
from serve.settings import FrontSettings
from shards.errors import BadQuery, BadSpec, NotFound, SondageError

LAYER = {
    "name": "lines", "layer": "text", "units": 12, "bytes": 3_400, "granularity": "line", "origin": "source",
    "query_format": "literal or regex", "cost": "1 ms per MB", "resident_bytes": 2_300, "private_bytes": 1_100,
}  # fmt: skip


RERANKER = {"model": "tiny", "endpoint": "default", "ready": True, "reason": "", "usage": {"requests": 1_200, "retries": 0, "cost": None}}


class Server(Scripted):
    """Remembers what it was asked; "nothing" finds nothing."""

    def __init__(self) -> None:
        super().__init__(self.respond)
        self.asked: list[SearchRequest] = []

    def respond(self, request: SearchRequest) -> SearchAnswer:
        self.asked.append(request)
        if request.query == "layer":
            raise BadQuery("Corpus 'stdlib' has no layer 'bm52'. Choose from: bm25, names.")
        answer = one_hit(request)
        if request.query == "reranked":
            hit = answer.hits[0].model_copy(update={"rerank": RerankSignal(model="owner/name", score=0.75, start=0, end=22)})
            info = RerankInfo(state="done", n=1, depth=20, model="owner/name", ms=12.3)
            return answer.model_copy(update={"hits": [hit], "rerank": info})
        if request.query == "not reranked":
            reason = "the time for it was over"
            info = RerankInfo(state="skipped", reason=reason, n=0, depth=20, model="owner/name", ms=0)
            return answer.model_copy(update={"rerank": info})
        if request.query == "nothing":
            missing = [Coverage(layer="bm25", shard=s, state="missing", covered=0, total=9, reason="host away") for s in (1, 2)]
            late = Coverage(layer="text", shard=0, state="late", covered=3, total=9)
            fields = {"hits": [], "verdict": "none", "verdict_reason": "chance", "complete": False}
            return answer.model_copy(update={**fields, "coverage": [*missing, late]})
        return answer

    async def status(self) -> dict:
        corpus = {
            "generation": 4, "docs": 1_200, "entries": 1_300, "text_bytes": 5_000_000, "shards": [{}], "segments": 2,
            "memory": {"text": {"mapped_bytes": 9_000, "resident_bytes": None, "private_bytes": 5_000}},
            "layers": [LAYER], "sources": {"here": {"url": "/nowhere"}},
            "debt": [{"merges": 1, "bytes": 2_000_000, "dead_documents": 3, "dead_bytes": 4_000}, {"merges": 1, "bytes": 500_000}],
        }  # fmt: skip
        host = {"node": "0123456789abcdef", "state": "ready", "reason": "", "searches": 3, "shards": [{}]}
        more = {"rerankers": [RERANKER], "problems": {"news": "unreadable"}}
        return {"store": "/index", "corpora": {"stdlib": corpus}, "hosts": [host], **more}


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    with running(server) as address:
        yield address


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No setting of the machine's own."""
    for names in VARIABLES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SONDAGE_CACHE", str(tmp_path))
    return monkeypatch


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


# --- searching ---------------------------------------------------------------------------------------------------------------


def test_hits_begin_with_path_and_line_and_end_with_code_0(capsys, url):
    code, out, err = run(capsys, "search", "hello world", "--url", url)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "email/caf\ufffd.py:3:  E=4e-6  [bm25 E=3e-7]",
        "     2 hello world",
        "",
        "strong: E is 4e-06  (1 hit; generation 4)",
    ]


def test_nothing_found_ends_with_code_1_and_says_what_was_not_searched(capsys, url):
    code, out, err = run(capsys, "search", "nothing", "--url", url)
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "none: chance  (0 hits; generation 4)",
        "not fully searched: bm25 on shard 1, 2: missing, looked at 0 of 18 (host away)",
        "not fully searched: text on shard 0: late, looked at 3 of 9",
    ]


def test_options_become_fields_of_the_request(capsys, url, server):
    options = ["-c", "stdlib", "-l", "bm25", "-l", "names", "-p", "*.py", "-p", "!x", "-k", "3", "--budget-ms", "50", "--explain"]
    assert run(capsys, "search", "q", "--url", url, "--where", '{"a": [1]}', *options)[0] == 2  # a list: refused by the filter
    assert run(capsys, "search", "q", "--url", url, "--where", '{"a": {"in": [1]}}', *options)[0] == 0
    assert server.asked[-1] == SearchRequest(
        corpus="stdlib", query="q", layers=["bm25", "names"], paths=["*.py", "!x"], where={"a": {"in": [1]}}, k=3, budget_ms=50,
        explain=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "asked", "budget_ms"),
    [
        ([], None, 2_000),
        (["--rerank", "owner/name"], Rerank(model="owner/name"), 30_000),
        (["--rerank", "owner/name", "--depth", "50", "--budget-ms", "900"], Rerank(model="owner/name", depth=50), 900),
        (["--rerank", "tiny", "--judge", "default"], Rerank(model="tiny", endpoint="default"), 30_000),
        (["--no-rerank"], False, 2_000),
    ],
)
def test_the_last_stage_is_asked_for_by_options(capsys, url, server, options, asked, budget_ms):
    assert run(capsys, "search", "q", "-c", "stdlib", "--url", url, *options)[0] == 0
    assert (server.asked[-1].rerank, server.asked[-1].budget_ms) == (asked, budget_ms)


def test_what_became_of_reranking_is_printed(capsys, url):
    _, out, _ = run(capsys, "search", "reranked", "-c", "stdlib", "--url", url)
    assert "[bm25 E=3e-7, reranker 0.75]" in out and "reranked by owner/name: 1 hits, 12 ms\n" in out
    _, out, _ = run(capsys, "search", "not reranked", "-c", "stdlib", "--url", url)
    assert "reranking by owner/name skipped, 0 hits scored: the time for it was over\n" in out


def test_a_regex_and_a_glob_go_to_the_spaces_that_take_them_by_the_corpuss_names(capsys, url, server):
    assert run(capsys, "search", "--regex", r"def \w+", "--glob", "*.py", "--url", url)[0] == 0
    assert server.asked[-1].forms == {"lines": {"pattern": r"def \w+", "regex": True}, "names": {"glob": "*.py"}}
    assert server.asked[-1].query == ""


def test_json_on_stdout_is_the_answer(capsys, url):
    code, out, _ = run(capsys, "search", "hello", "--url", url, "--json", "-c", "stdlib")
    assert code == 0 and len(out.splitlines()) == 1
    assert SearchAnswer.model_validate_json(out).hits[0].hash == HASH
    code, out, _ = run(capsys, "search", "nothing", "--url", url, "--json", "-c", "stdlib")
    assert code == 1 and json.loads(out)["hits"] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["search", "q", "-k", "0"], "k: expected greater than or equal to 1; found 0."),
        (["search", "q", "-k", "1000000"], "less than or equal to 1000; found 1000000."),
        (["search", "x" * 9_000], "query: String should have at most 8192 characters"),
        (["search", "q", "--where", "{"], "--where is not JSON"),
        (["search", "q", "--depth", "5"], "--depth and --judge belong to --rerank MODEL"),
        (["search", "q", "--rerank", "m", "--no-rerank"], "--depth and --judge belong to --rerank MODEL, and --no-rerank to neither"),
        (["search", "q", "--rerank", "m", "--depth", "0"], "rerank.depth: expected greater than or equal to 1; found 0."),
        (["search", "q", "--where", "[1]"], "where: expected a valid dictionary; found [1]."),
        (["search", "q", "--path", "a[b"], "paths[0]: Glob 'a[b' has an unclosed '['"),
        (["search", "layer"], "Corpus 'stdlib' has no layer 'bm52'. Choose from: bm25, names."),
        (["search", "q", "--store", "/x"], "Both --url and --store are given."),
        (["document", "nohash"], "no content hash: expected 40 hex digits"),
        (["document", HASH, "-c", "nope"], "There is no corpus 'nope'. There are: stdlib."),
    ],
)
def test_bad_input_ends_with_code_2_and_one_message_on_stderr(capsys, url, arguments, says):
    code, out, err = run(capsys, *arguments, "--url", url)
    assert (code, out) == (2, "")
    assert err.startswith("sondage: ") and says in err and len(err) < 500 and "Traceback" not in err


def test_wrong_options_end_with_code_2(capsys):
    assert run(capsys, "search", "--nope")[0] == 2
    assert run(capsys, "serch")[0] == 2
    assert run(capsys, "search", "q", "-k", "many")[0] == 2


def test_a_server_that_is_not_there_is_named_with_the_ways_to_start_one(capsys, closed_port):
    code, _, err = run(capsys, "search", "q", "--url", f"http://127.0.0.1:{closed_port}")
    assert code == 2 and f"Nothing answers at http://127.0.0.1:{closed_port}" in err and "sondage serve" in err


def test_a_bug_is_never_mistaken_for_nothing_found(capsys, environment, url):
    def broken(*_: object) -> None:
        raise RuntimeError("bug")

    environment.setattr(render, "answer", broken)
    code, _, err = run(capsys, "search", "q", "--url", url)
    assert code == 2 and "RuntimeError: bug" in err and "please report" in err


def test_the_corpus_may_be_left_out_only_where_there_is_one(environment):
    assert connecting.only_corpus({"corpora": {"a": {}}}) == "a"
    with pytest.raises(BadQuery, match="several corpora: a, b"):
        connecting.only_corpus({"corpora": {"b": {}, "a": {}}})
    with pytest.raises(BadQuery, match="no corpus in /index yet"):
        connecting.only_corpus({"corpora": {}, "store": "/index"})
    environment.setenv("SONDAGE_CORPUS", "b")
    assert connecting.only_corpus({"corpora": {"b": {}, "a": {}}}) == "b"


# --- the rest of the command -------------------------------------------------------------------------------------------------


def test_status_is_shown_as_tables(capsys, url):
    code, out, _ = run(capsys, "status", "--url", url)
    assert code == 0
    for text in ("stdlib: generation 4, 1,200 documents of 1,300 entries, 5.0 MB of text", "source here: /nowhere", "lines (text)",
                 "3.4 kB  2.3 kB + 1.1 kB", "in memory: text ? + 5.0 kB", "0123456789ab  ready",
                 "reranker tiny of endpoint default: ready, requests 1,200\n",
                 "3 dead documents, 4.0 kB, 2 merges due, 2.5 MB",
                 "problem: news: unreadable"):  # fmt: skip
        assert text in out, out
    assert json.loads(run(capsys, "status", "--url", url, "--json")[1])["corpora"]["stdlib"]["docs"] == 1_200


def test_a_document_is_printed_as_it_is(capsys, url):
    assert run(capsys, "document", HASH, "--url", url) == (0, "hello", "")
    assert json.loads(run(capsys, "document", HASH, "--url", url, "--json")[1])["text"] == "hello"


def test_help_needs_nothing_heavy():
    """Asks a fresh process which modules help has imported."""
    code = "import sys, jobs.cli; jobs.cli.main(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    for command in ("search", "status", "document", "index", "serve", "deploy"):
        assert re.search(rf"^  {command} ", done.stdout, re.MULTILINE)
    assert not {"numpy", "pydantic", "httpx", "ray", "fastapi", "uvicorn", "torch", "numba"} & set(eval(done.stderr))


def test_serve_answers_until_it_is_told_to_end(tmp_path):
    """An empty store, a free port, the environment's key; SIGTERM ends it."""
    environment = {**os.environ, "SONDAGE_STORE": str(tmp_path / "index"), "SONDAGE_API_KEYS": KEY, "SONDAGE_PORT": "0"}
    command = [sys.executable, "-m", "jobs.cli", "serve"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = re.search(r"at (http://\S+) ", process.stderr.readline()).group(1)
            assert httpx.get(f"{address}/healthz", timeout=20).status_code == 200
            assert httpx.get(f"{address}/v1/status", timeout=20).status_code == 401
            with sondage.connect(address, KEY) as client:
                assert client.status()["corpora"] == {}
                with pytest.raises(NotFound, match="No corpus 'a'"):
                    client.search("q", corpus="a")
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is taken and on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_taken_port_is_told(capsys, closed_port, tmp_path):
    code, _, err = run(capsys, "serve", "--store", str(tmp_path), "--port", str(closed_port))
    assert code == 2 and f"Cannot listen on 127.0.0.1 port {closed_port}" in err and "--port" in err


@pytest.mark.parametrize("command", ["serve", "deploy"])
def test_without_a_key_only_this_machine_is_served(capsys, tmp_path, command):
    code, _, err = run(capsys, command, "--store", str(tmp_path), "--host", "0.0.0.0")
    assert code == 2 and "'0.0.0.0' opens the index to other machines, and no API key is set" in err


# --- the client --------------------------------------------------------------------------------------------------------------


def test_the_client_gives_typed_answers_and_raises_our_errors(url):
    with sondage.connect(url) as client:
        assert client.search("hello", corpus="stdlib", k=2).hits[0].hash == HASH
        assert client.search(SearchRequest(corpus="stdlib", query="hello")).corpus == "stdlib"
        assert client.document(HASH, "stdlib", 0, 5).text == "hello"
        assert "stdlib" in client.status()["corpora"]
        with pytest.raises(NotFound, match="no corpus 'nope'"):
            client.document(HASH, "nope")
        with pytest.raises(BadQuery) as caught:
            client.search("q", corpus="stdlib", where={"a": {"~": 1}})
        assert caught.value.at == 'where.a["~"]'
        with pytest.raises(SondageError, match="did you mean 'budget_ms'"):
            client.search("q", corpus="stdlib", budget=5)
        with pytest.raises(TypeError, match="not both"):
            client.search(SearchRequest(corpus="stdlib"), k=5)
    with pytest.raises(BadSpec, match="Write http://host:port"):
        sondage.connect("localhost:8765")


def test_the_client_sends_its_key():
    with running(Scripted(), (KEY,)) as url:
        with sondage.connect(url, KEY) as client:
            assert client.search("q", corpus="a").hits
        with sondage.connect(url) as client, pytest.raises(SondageError, match="wants an API key") as caught:
            client.status()
        assert caught.value.status == 401


def test_the_client_survives_a_server_that_closed_the_idle_connection():
    server = Scripted()
    with running(server) as url:
        client = sondage.connect(url)
        assert client.search("q", corpus="a").hits
    with client, running(server, port=int(url.rpartition(":")[2])):
        assert client.search("q", corpus="a").hits


def test_a_server_that_is_no_sondage_is_told():
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        Thread(target=other.handle_request).start()
        client = sondage.connect(f"http://127.0.0.1:{other.server_port}")
        with client, pytest.raises(SondageError, match="Is it a Sondage server"):
            client.status()


# --- rendering ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(3e-7, "E=3e-7"), (1.26e-12, "E=1.3e-12"), (0.0, "E<1e-300"), (0.04, "E=0.04"), (0.0412, "E=0.041"), (2.5, "E=2.5"),
     (130.4, "E=130"), (2e9, "E=2e9"), (float("nan"), "E=?")],
)  # fmt: skip
def test_evalues_are_shown_with_the_digits_they_are_worth(value, text):
    assert render.evalue(value) == text


def printed(lines) -> list[tuple[int, str]]:
    return [(number, line.plain) for number, line in lines]


def test_an_excerpt_is_shown_around_its_line_with_numbers():
    excerpt = ExcerptOut(start=0, end=0, first_line=40, text="\n".join("abcdefghij"), marks=[(0, 1)])
    assert printed(render.excerpt_lines(excerpt, 45, 3)) == [(44, "e"), (45, "f"), (46, "g")]
    assert printed(render.excerpt_lines(excerpt, 40, 3)) == [(40, "a"), (41, "b"), (42, "c")]
    assert printed(render.excerpt_lines(excerpt, 49, 3)) == [(47, "h"), (48, "i"), (49, "j")]
    blank = ExcerptOut(start=0, end=0, first_line=1, text="\n\nx\n\n")
    assert printed(render.excerpt_lines(blank, 3)) == [(3, "x")]


def test_marks_are_highlighted_and_control_characters_cannot_drive_the_terminal():
    excerpt = ExcerptOut(start=0, end=0, first_line=1, text="a \x1b[2J word\tb\r\x07", marks=[(7, 11)])
    [(_, line)] = render.excerpt_lines(excerpt, 1)
    assert line.plain == "a \ufffd[2J word b\ufffd\ufffd"
    console = Console(force_terminal=True, color_system="standard", width=80)
    with console.capture() as captured:
        console.print(line)
    assert "\x1b[1;31mword\x1b[0m" in captured.get()


def test_colours_are_only_for_terminals_unless_wanted(capsys, url, environment):
    environment.setenv("TERM", "xterm-256color")
    assert "\x1b[" not in run(capsys, "search", "hello", "--url", url)[1]
    assert "\x1b[" in run(capsys, "search", "hello", "--url", url, "--color", "always")[1]
    assert "\x1b[" not in run(capsys, "search", "hello", "--url", url, "--color", "never")[1]


def test_paths_are_shown_so_that_an_editor_on_this_machine_opens_them(tmp_path, environment):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "a.py").touch()
    entry = EntryOut(source="s", path="inside/a.py", size_bytes=0, mtime=0)
    places = render.Places({"s": str(tmp_path)})
    assert places.path(entry) == str(tmp_path / "inside/a.py")
    environment.chdir(tmp_path)
    assert places.path(entry) == "inside/a.py"
    gone = entry.model_copy(update={"path": "gone.py"})
    assert places.path(gone) == "gone.py"
    assert render.Places({"s": tmp_path.as_uri(), "t": "s3://b"}).path(gone) == "s/gone.py"


# --- settings ----------------------------------------------------------------------------------------------------------------


def test_the_command_line_goes_before_the_environment_and_that_before_the_defaults():
    assert Settings.load({}).port == 8765
    assert Settings.load({"SONDAGE_PORT": "9000"}).port == 9000
    assert Settings.load({"SONDAGE_PORT": "9000"}, port=1234).port == 1234
    assert Settings.load({"SONDAGE_PORT": ""}, port=None).port == 8765


def test_a_bad_setting_names_where_it_came_from_and_no_secret():
    with pytest.raises(BadSpec, match="SONDAGE_PORT: Input should be a valid integer"):
        Settings.load({"SONDAGE_PORT": "many"})
    with pytest.raises(BadSpec, match="--port: Input should be less than or equal to 65535"):
        Settings.load({}, port=70_000)
    assert "hunter2" not in repr(Settings.load({"AWS_SECRET_ACCESS_KEY": "hunter2", "SONDAGE_API_KEYS": "hunter2"}))


def test_every_setting_has_a_variable_and_every_variable_a_setting():
    assert set(VARIABLES) == set(Settings.model_fields)


def test_options_of_s3_are_stated_only_for_stores_on_s3():
    variables = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "SONDAGE_S3_ENDPOINT": "http://x", "AWS_REGION": "eu"}
    settings = Settings.load(variables, store="s3://bucket/index")
    assert settings.store_options() == {"endpoint_url": "http://x", "key": "k", "secret": "s", "region": "eu"}
    assert Settings.load(variables, store="/index").store_options() == {}
    with pytest.raises(BadSpec, match="SONDAGE_STORE"):
        Settings.load({}).store_url()


def test_a_folder_becomes_an_absolute_path(environment, tmp_path):
    environment.chdir(tmp_path)
    assert Settings.load({}, store="index").store_url() == str(tmp_path / "index")
    assert Settings.load({}, store="s3://b/index").store_url() == "s3://b/index"


def test_the_last_stage_of_every_search_comes_from_the_environment():
    assert Settings.load({}).front_settings().rerank is None
    assert Settings.load({"SONDAGE_RERANK": "owner/name"}).front_settings().rerank == Rerank(model="owner/name", depth=20)
    judge = Settings.load({"SONDAGE_RERANK": "tiny", "SONDAGE_RERANK_ENDPOINT": "default", "SONDAGE_RERANK_DEPTH": "5"})
    assert judge.front_settings().rerank == Rerank(model="tiny", endpoint="default", depth=5)
    with pytest.raises(BadSpec, match="SONDAGE_RERANK_DEPTH: Input should be less than or equal to 200"):
        Settings.load({"SONDAGE_RERANK_DEPTH": "201"})
    with pytest.raises(BadSpec, match="not which of its models judges"):
        Settings.load({"SONDAGE_RERANK_ENDPOINT": "default"}).last_stage()


def test_keys_come_from_a_file_or_the_environment(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst\n\n second \n")
    assert read_keys(file) == ("first", "second")
    for settings in (Settings.load({"SONDAGE_API_KEYS": "first, second,"}), Settings.load({"SONDAGE_API_KEY_FILE": str(file)})):
        for place, key in enumerate(settings.front_settings().api_keys):
            assert (key.scopes, key.corpora) == (("read", "write", "admin"), None)
            assert [key.opens_with(text) for text in ("first", "second", "third")] == [place == 0, place == 1, False]
    named = Settings.load({"SONDAGE_API_KEYS": "third"}, api_key_file=file)  # on the command line, which goes before the environment
    assert [key.opens_with("third") for key in named.front_settings().api_keys] == [False, False]
    file.write_text("# none\n")
    with pytest.raises(BadSpec, match="holds none"):
        read_keys(file)
    with pytest.raises(BadSpec, match="cannot be read"):
        read_keys(tmp_path / "absent")


def test_other_machines_are_let_in_only_with_a_key():
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        FrontSettings(host=host)
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        with pytest.raises(ValueError, match="no API key is set"):
            FrontSettings(host=host)
        FrontSettings(host=host, api_keys=(SecretStr(KEY),))


def test_the_url_of_a_front_is_one_that_this_machine_reaches():
    keys = (SecretStr(KEY),)
    assert FrontSettings().url == "http://127.0.0.1:8765"
    assert FrontSettings(host="0.0.0.0", api_keys=keys).url == "http://127.0.0.1:8765"
    assert FrontSettings(host="::", port=80, api_keys=keys).url == "http://[::1]:80"


def test_own_forms_are_given_to_spaces_by_name():
    assert request_options.own_forms(['text={"pattern": "a=b"}', "mine={}"]) == {"text": {"pattern": "a=b"}, "mine": {}}
    for wrong in ("text", '={"a": 1}', "text=[1]", "text={"):
        with pytest.raises(BadQuery, match="--form"):
            request_options.own_forms([wrong])
