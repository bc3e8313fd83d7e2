"""Tools for agents, called by the SDK's own client: in memory, over stdio from a real process, and over streamable HTTP with keys."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import uvicorn
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_corpus import indexed
from mcp_types import CallToolResult

import sondage
from cluster.settings import HostSettings
from jobs.agents import address
from serve.anytime.learned import Usual
from serve.http import create_app
from serve.keys import KeyRing, new_key
from serve.limits import Limits
from serve.local import local_coordinator, local_pushes
from serve.mcp.fitting import as_json
from serve.mcp.server import http_application, mcp_server, rights_of_caller
from serve.mcp.tokens import count
from serve.mcp.tools import Options
from shards.errors import BadSpec

TOOLS = ["search", "query", "read_span", "suggest_terms", "list_corpora", "status", "add"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("mcp"))


@pytest.fixture(scope="module")
def engine(store: Path) -> Iterator[sondage.Engine]:
    with sondage.Engine(store, cache=store.parent / "engine") as engine:
        yield engine


def asked(engine: sondage.Engine, ask: Callable[[Client], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    """What comes of `ask` with a client of a server in this process."""

    async def run() -> Any:
        async with Client(mcp_server(engine, Options(**options))) as client:
            return await ask(client)

    return asyncio.run(run())


def called(engine: sondage.Engine, tool: str, options: dict[str, Any] | None = None, **arguments: Any) -> CallToolResult:
    return asked(engine, lambda client: client.call_tool(tool, arguments), **(options or {}))


def text(result: CallToolResult) -> str:
    (part,) = result.content
    assert part.type == "text"
    return part.text


def tokens(result: CallToolResult) -> int:
    return count(text(result)) + (count(as_json(result.structured_content)) if result.structured_content is not None else 0)


# --- what there is ---------------------------------------------------------------------------------------------------------------


def test_tools_say_when_to_use_them_and_what_they_give(engine: sondage.Engine) -> None:
    tools = asked(engine, lambda client: client.list_tools()).tools
    assert [tool.name for tool in tools] == TOOLS
    for tool in tools:
        assert len(tool.description) > 100 and tool.output_schema["type"] == "object"
        assert all("description" in p or "$ref" in p for p in tool.input_schema["properties"].values()), tool.name
        assert tool.annotations.read_only_hint == (tool.name != "add")
    assert count(" ".join(tool.description for tool in tools)) < 3_000


def test_a_read_only_server_has_no_tool_that_writes(engine: sondage.Engine) -> None:
    tools = asked(engine, lambda client: client.list_tools(), read_only=True).tools
    assert [tool.name for tool in tools] == TOOLS[:-1]
    assert called(engine, "add", {"read_only": True}, path="a", text="b").is_error


# --- answers ---------------------------------------------------------------------------------------------------------------------


def test_a_search_gives_hits_with_ids_that_can_be_read(engine: sondage.Engine) -> None:
    found = called(engine, "search", query="HTTP date header", k=3)
    first = found.structured_content["hits"][0]
    assert first["path"].startswith("code/dates") and "Parses an HTTP date header" in first["text"]
    assert first["id"] in text(found) and found.structured_content["verdict"] in text(found)
    read = called(engine, "read_span", id=first["id"], before=60, after=80)
    assert "def parse_date" in read.structured_content["text"] and "RFC 9110" in text(read)


def test_hits_that_may_still_change_are_said_to(engine: sondage.Engine) -> None:
    whole = called(engine, "search", query="wing flutter at mach 3", k=3)
    assert whole.structured_content["complete"] and whole.structured_content["final"]
    learned = engine._coordinator.learned.of("c").of("bm25")
    learned.search_s, before = Usual(mean=50.0, n=100), learned.search_s  # longer than the time of a search
    try:
        part = called(engine, "search", query="wing flutter at mach 3", k=3)
    finally:
        learned.search_s = before
    told = part.structured_content
    assert not told["complete"] and not told["final"]
    assert "not fully searched: bm25 late; about" in text(part) and "of the hits may be others: ask again" in "".join(told["notes"])


def test_a_document_is_read_piece_by_piece_without_gaps(engine: sondage.Engine) -> None:
    path = called(engine, "search", query="首都 第3号", k=1).structured_content["hits"][0]
    whole = engine.document(path["id"][:40], "c").text
    read, following = "", path["id"][:40]
    while following:
        piece = called(engine, "read_span", id=following, max_tokens=900)
        assert tokens(piece) <= 900
        read, following = read + piece.structured_content["text"], piece.structured_content["next"]
    assert read == whole


def test_more_like_these_does_not_show_these_again_and_terms_tell_them_apart(engine: sondage.Engine) -> None:
    hits = called(engine, "search", query="flutter", k=3).structured_content["hits"]
    ids = [hit["id"] for hit in hits]
    more = called(engine, "search", query="", like=ids, k=3).structured_content["hits"]
    assert not {hit["id"][:40] for hit in more} & {i[:40] for i in ids}
    assert all(hit["path"].startswith("wing/") for hit in more)
    terms = called(engine, "suggest_terms", ids=ids).structured_content["terms"]
    assert {"flutter", "panel"} <= {term["term"] for term in terms[:8]}


def test_a_query_gives_rows_and_its_errors_say_what_was_expected(engine: sondage.Engine) -> None:
    rows = called(engine, "query", nlql="SELECT DOCUMENT WHERE meta.year >= :y ORDER BY meta.year DESC LIMIT 2", params={"y": 1995})
    assert [row["metadata"]["year"] for row in rows.structured_content["rows"]] == [1999, 1998]
    wrong = called(engine, "query", nlql="SELECT DOCUMENT WHERE LIMIT 2")
    assert wrong.is_error and "WHERE" in text(wrong)
    plan = called(engine, "query", nlql="SELECT DOCUMENT WHERE meta.year >= 1995 LIMIT 2", explain=True, max_tokens=600)
    assert not plan.is_error and plan.structured_content["plan"] and tokens(plan) <= 600


def test_what_an_agent_adds_is_found_and_marked(engine: sondage.Engine) -> None:
    added = called(engine, "add", path="notes/zorp.md", text="# Zorp\n\nThe zorp protocol has nine bits.", metadata={"topic": "zorp"})
    assert added.structured_content["searchable"]
    (hit,) = called(engine, "search", query="zorp", where={"topic": "zorp"}).structured_content["hits"]
    assert hit["id"][:40] == added.structured_content["id"] and hit["metadata"] == {"added_by": "agent", "topic": "zorp"}
    engine.delete("notes/zorp.md", corpus="c", wait=True)


@pytest.mark.parametrize("telling", ["both", "text", "structured"])
def test_no_answer_costs_more_than_it_may(engine: sondage.Engine, telling: str) -> None:
    asking = [
        ("search", {"query": "HTTP date header", "k": 40}),
        ("search", {"query": "搜索引擎 边界层", "k": 40}),
        ("search", {"query": "wing flutter panel", "regex": "mach [0-9]", "k": 100}),
        ("search", {"query": "dates", "paths": ["*.py", "notes/*"], "k": 100}),
        ("query", {"nlql": "SELECT DOCUMENT LIMIT 40"}),
        ("query", {"nlql": "SELECT CHUNK WHERE CONTAINS(content, \"的\") LIMIT 100"}),
        ("suggest_terms", {"query": "wing flutter", "k": 100}),
        ("list_corpora", {}),
        ("status", {}),
    ]  # fmt: skip

    async def ask(client: Client) -> list[tuple[str, int, CallToolResult]]:
        return [
            (tool, most, await client.call_tool(tool, {**arguments, "max_tokens": most}))
            for tool, arguments in asking
            for most in ((300, 2_000) if telling == "both" else (700,))
        ]

    for tool, most, result in asked(engine, ask, telling=telling):
        assert not result.is_error, text(result)
        assert (result.structured_content is None) == (telling == "text")
        told = tokens(result) if telling != "structured" else count(as_json(result.structured_content))
        assert told <= most, (tool, most, told)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("search", {"query": "x", "corpus": "d"}, "list_corpora"),
        ("search", {"query": ""}, "Nothing was asked"),
        ("search", {"query": "x", "layers": ["dense"]}, "Choose from: bm25, names, text"),
        ("search", {"query": "x", "regex": "("}, "regex"),
        ("search", {"query": "x", "like": ["nonsense"]}, "like"),
        ("search", {"query": "x", "translate": True}, "SONDAGE_TRANSLATE"),
        ("read_span", {"id": "a" * 40}, "No document"),
        ("suggest_terms", {}, "give spans"),
        ("add", {"path": "../x", "text": "y"}, "path"),
    ],
)
def test_what_is_wrong_is_told_with_the_remedy(engine: sondage.Engine, tool: str, arguments: dict[str, Any], said: str) -> None:
    result = called(engine, tool, {"corpora": ("c",)}, **arguments)
    assert result.is_error and said in text(result)


# --- ways in ---------------------------------------------------------------------------------------------------------------------


async def each_tool(client: Client, document: str) -> dict[str, CallToolResult]:
    """Every tool that the server lists, called once."""
    arguments: dict[str, dict[str, Any]] = {
        "search": {"query": "wing flutter"},
        "query": {"nlql": "SELECT DOCUMENT LIMIT 2"},
        "read_span": {"id": document},
        "suggest_terms": {"query": "flutter"},
        "add": {"path": "notes/each.md", "text": "each tool is called"},
    }
    return {tool.name: await client.call_tool(tool.name, arguments.get(tool.name, {})) for tool in (await client.list_tools()).tools}


def test_a_real_process_lists_and_calls_each_tool_over_stdio_for_a_running_server(store: Path) -> None:
    folder = HostSettings(store_url=str(store), cache_dir=store.parent / "served")

    async def run(parameters: StdioServerParameters, document: str) -> dict[str, CallToolResult]:
        async with Client(stdio_client(parameters)) as client:
            return await each_tool(client, document)

    with served(create_app(local_coordinator(folder), pushing=local_pushes)) as url, sondage.connect(url) as client:
        hit = client.search("flutter", "c", layers=["bm25"], keep_all=True).hits[0]
        command = ["-m", "jobs.cli", "mcp", "--url", url, "--answers", "text"]
        environment = {"PYTHONWARNINGS": "error", "PATH": ""}
        parameters = StdioServerParameters(command=sys.executable, args=command, env=environment, cwd=Path(__file__).parent.parent)
        answers = asyncio.run(run(parameters, hit.hash))
        assert list(answers) == TOOLS
        for tool, answer in answers.items():
            assert not answer.is_error and answer.structured_content is None and tokens(answer) <= 2_000, (tool, text(answer))
        assert "wing/flutter" in text(answers["search"]) and "notes/each.md is in c" in text(answers["add"])
        client.delete("notes/each.md", corpus="c", wait=True)
        more = client.search("", "c", feedback=[f"{hit.hash}:{hit.start}-{hit.end}"], keep_all=True)
        assert more.feedback is not None and hit.hash not in {other.hash for other in more.hits}
        assert "flutter" in [term.term for term in client.suggest_terms([hit.hash], corpus="c", k=5).terms]


@contextmanager
def served(application: Any) -> Iterator[str]:
    """The address of an application in a thread of this process."""
    server = uvicorn.Server(uvicorn.Config(application, host="127.0.0.1", port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def listening(engine: sondage.Engine, keys: KeyRing) -> Iterator[str]:
    """The address of the tools over HTTP."""
    with served(http_application(mcp_server(engine, Options(rights=rights_of_caller)), keys)) as url:
        yield f"{url}/mcp"


def over_http(url: str, ask: Callable[[Client], Coroutine[Any, Any, Any]], key: str = "") -> Any:
    async def run() -> Any:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            return await ask(client)

    return asyncio.run(run())


def test_streamable_http_lists_and_calls_each_tool(engine: sondage.Engine) -> None:
    document = engine.search("flutter", "c").hits[0].hash
    with listening(engine, KeyRing((), Limits())) as url:
        answers = over_http(url, lambda client: each_tool(client, document))
        assert list(answers) == TOOLS
        for tool, answer in answers.items():
            assert not answer.is_error and tokens(answer) <= 2_000, (tool, text(answer))
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        taken = {"accept": "application/json, text/event-stream"}
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}, {"origin": "http://localhost:3000"}):
            refused = httpx.post(url, json=body, headers={**taken, **headers}, trust_env=False)
            assert refused.status_code == 403 and refused.json()["error"]["kind"] == "forbidden"
    engine.delete("notes/each.md", corpus="c", wait=True)


def test_a_key_sees_its_corpora_and_writes_only_if_it_may(engine: sondage.Engine) -> None:
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    reader, of_reader = new_key(now, scopes=("read",))
    stranger, of_stranger = new_key(now, scopes=("read", "write"), corpora=("other",))

    async def ask(client: Client) -> list[CallToolResult]:
        searched = await client.call_tool("search", {"query": "flutter", "corpus": "c"})
        written = await client.call_tool("add", {"path": "notes/no.md", "text": "no", "corpus": "c"})
        return [searched, written, await client.call_tool("list_corpora", {})]

    with listening(engine, KeyRing((of_reader, of_stranger), Limits())) as url:
        searched, written, listed = over_http(url, ask, reader)
        assert not searched.is_error and written.is_error and "scope write" in text(written)
        assert [c["corpus"] for c in listed.structured_content["corpora"]] == ["c"]
        searched, written, listed = over_http(url, ask, stranger)
        assert searched.is_error and written.is_error and listed.structured_content["corpora"] == []
        answer = httpx.post(url, content=json.dumps({}), headers={"content-type": "application/json"}, trust_env=False)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("spelt", "read"),
    [("127.0.0.1:9000", ("127.0.0.1", 9000)), (":0", ("127.0.0.1", 0)), ("[::1]:9", ("::1", 9)), ("localhost", ("localhost", 8766))],
)
def test_an_address_is_host_and_port(spelt: str, read: tuple[str, int]) -> None:
    assert address(spelt) == read


def test_other_machines_are_let_in_with_a_key_only() -> None:
    from jobs.settings import Settings

    with pytest.raises(BadSpec, match="no HOST:PORT"):
        address("0.0.0.0:http")
    host, port = address("0.0.0.0:0")
    with pytest.raises(BadSpec, match="no API key is set"):
        Settings.load({}, host=host, port=port).front_settings()
