"""The client against real servers: the same sync and async, many calls at once, connections that break, callers that go away."""

import asyncio
import inspect
import re
from pathlib import Path

import httpx
import pytest
from fault_proxy import fault_proxy
from scripted_coordinator import Scripted, one_hit, running
from test_push_http import LAYERS, serving

import sondage
from cluster.batching import Overloaded
from serve.client.async_http import AsyncClient
from serve.client.http import Client
from serve.client.streams import AnswerLines, Lines
from shards import pushlog
from shards.errors import NotFound, SondageError
from shards.store import open_store

README = Path(__file__).resolve().parent.parent / "README.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("client")) as url, sondage.connect(url) as client:
        items = [(f"{n}.txt", f"basalt number {n}. Its colour is dark.", {"n": n}) for n in range(20)]
        assert client.put_many(items, corpus="rocks", layers=LAYERS.split(","), wait=True, timeout_s=60).searchable
        notes = [("backups.md", "We keep a backup of everything for a year."), ("logs.md", "We keep logs for a week.")]
        assert client.put_many(notes, corpus="notes", layers=LAYERS.split(","), wait=True, timeout_s=60).searchable
        yield url


# --- one description, two clients --------------------------------------------------------------------------------------------


def public(kind: type) -> dict[str, inspect.Signature]:
    return {name: inspect.signature(found) for name, found in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def test_both_clients_have_the_same_methods_with_the_same_arguments():
    sync, other = public(Client), public(AsyncClient)
    assert sync.keys() - other.keys() == {"close"} and other.keys() - sync.keys() == {"aclose"}
    for name in sync.keys() - {"close"}:
        mine, theirs = sync[name].parameters, other[name].parameters
        assert list(mine) == list(theirs), name
        for argument in mine:
            if (name, argument) in (("put_many", "items"), ("put_portions", "items")):
                continue  # an async iterator, too
            assert str(mine[argument]) == str(theirs[argument]), (name, argument)
    assert inspect.signature(sondage.connect).parameters == inspect.signature(sondage.connect_async).parameters


def test_the_engine_takes_what_the_client_takes():
    engine, client = public(sondage.Engine), public(Client)
    for name in ("put", "put_many", "delete", "document", "media", "status", "query", "query_rows", "explain_query", "nlql_schema"):
        assert [*engine[name].parameters] == [*client[name].parameters], name
    for name in ("search", "search_stream", "combine", "suggest_terms"):  # whose time is `budget_ms` alone, as nothing lies between
        assert [*engine[name].parameters] == [each for each in client[name].parameters if each != "timeout_s"], name


# --- retries against servers -------------------------------------------------------------------------------------------------


class Busy(Scripted):
    """Refuses so many searches before it answers."""

    def __init__(self, times: int, after_s: float = 1.0):
        super().__init__(self.answered)
        self.left, self.after_s = times, after_s
        self.budgets: list[int] = []

    def answered(self, request):
        self.budgets.append(request.budget_ms)
        self.left -= 1
        if self.left >= 0:
            refusal = Overloaded("All hosts are busy.")
            refusal.retry_after_s = self.after_s
            raise refusal
        return one_hit(request)


def test_a_busy_server_is_asked_again_when_it_says_and_a_call_that_may_take_longer_waits_longer(monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr("sondage.http.Client._sleep", waits.append)
    with running(busy := Busy(2)) as url:
        with sondage.connect(url) as client:
            assert client.search("x", "a", budget_ms=5_000).hits
        assert [round(wait, 1) for wait in waits] == [1.0, 1.1] or all(1.0 <= wait <= 1.2 for wait in waits)
        assert len(waits) == 2 and len(busy.budgets) == 3
        busy.left, busy.after_s = 1, 9.0
        with sondage.connect(url) as client, pytest.raises(SondageError, match="All hosts are busy") as caught:
            client.search("x", "a", budget_ms=5_000)
        assert caught.value.retry_after_s == 9.0 and re.fullmatch("[0-9a-f]{16}", caught.value.request_id)
        busy.left, waits[:] = 1, []
        with sondage.connect(url, retries=sondage.Retries(1, within_s=20.0)) as client:
            assert client.search("x", "a", budget_ms=5_000).hits and len(waits) == 1


def test_the_command_line_waits_for_a_busy_server(monkeypatch, capsys):
    from jobs import cli

    waits: list[float] = []
    monkeypatch.setattr("sondage.http.Client._sleep", waits.append)
    with running(Busy(1, 3.0)) as url:
        assert cli.main(["search", "x", "-c", "stdlib", "--url", url, "--json"]) == 0
    assert len(waits) == 1 and 3.0 <= waits[0] < 3.1
    assert '"verdict"' in capsys.readouterr().out


@pytest.mark.parametrize("fault", ["unanswered", "dropped", "torn answer", "torn request"])
def test_a_push_whose_connection_breaks_is_sent_again_and_performed_once(server, fault):
    """Of one that was not answered the server has done it, and the client cannot know."""
    corpus = fault.replace(" ", "-")
    with fault_proxy(server) as proxy, sondage.connect(proxy.url) as client:
        proxy.decide = lambda asked: fault if asked.number in (1, 3) else None
        answer = client.put("one.txt", "gneiss", corpus=corpus, layers=["bm25"])
        assert answer.repeated == (fault in ("unanswered", "torn answer")) and answer.position == 1
        many = client.put_many([(f"{n}", f"gneiss {n}") for n in range(5)], corpus=corpus)
        assert (many.accepted, many.failed) == (5, 0)
        assert [asked.method for asked in proxy.asked] == ["PUT", "PUT", "POST", "POST"]
        store = open_store(client.status()["store"]).child(corpus)
    entries = [pushlog.read(store, number + 1) for number in range(many.position)]
    assert sorted(made.path for entry in entries for made in entry.operations) == ["0", "1", "2", "3", "4", "one.txt"]


# --- streams -----------------------------------------------------------------------------------------------------------------

ROW = b'{"row": {"id": "1", "doc_id": "a", "kind": "chunk", "content": "\xc3\xa4"}}\n'
END = b'{"end": {"corpus": "c", "generation": 1, "rows": [], "complete": false}}\n'


def test_rows_are_read_from_pieces_however_these_are_cut():
    whole = ROW * 3 + END
    for size in (1, 2, 7, 64, len(whole)):
        lines, rows = Lines(), []
        for at in range(0, len(whole), size):
            rows += lines.take(whole[at : at + size])
        assert [row.content for row in rows + lines.end("http://x")] == ["ä"] * 3
        assert lines.answer is not None and not lines.answer.complete


def test_an_engines_rows_are_iterated_over_like_a_servers(tmp_path):
    with sondage.Engine(tmp_path / "store", cache=tmp_path / "cache") as engine:
        engine.put("a", "Granite is hard. Gneiss is banded.", corpus="c", layers=["bm25"], wait=True)
        with engine.query_rows("SELECT SENTENCE", "c") as rows:
            assert [row.content for row in rows] == ["Granite is hard.", "Gneiss is banded."]
            assert rows.answer.complete and rows.answer.rows == []


def test_rows_without_an_end_are_a_broken_answer_and_an_error_among_them_is_raised():
    lines = Lines()
    assert len(lines.take(ROW)) == 1
    with pytest.raises(sondage.SondageError, match="broke in the midst"):
        lines.end("http://x")
    with pytest.raises(NotFound, match="Gone"):
        Lines().take(b'{"error": {"kind": "not_found", "message": "Gone."}}\n')
    with pytest.raises(sondage.SondageError, match="does not understand"):
        Lines().take(b"{]\n")


def test_answers_grow_until_the_last_over_http_as_lines_and_as_events_and_in_process(server, tmp_path):
    asked = {"query": "colour", "corpus": "rocks", "budget_ms": 20_000}
    with sondage.connect(server) as client:
        answers = list(client.search_stream(**asked))
        whole = client.search(**asked)
        assert answers[-1].hits == whole.hits and answers[-1].certificate.final
        assert not any(answer.certificate.final for answer in answers[:-1])
        stopped = client.search_stream(**asked)
        assert next(stopped).corpus == "rocks"
        stopped.close()
        with pytest.raises(NotFound):
            next(client.search_stream("x", "nowhere"))
    events = httpx.post(f"{server}/v1/search", json=asked, headers={"accept": "text/event-stream"}).text
    names = [line.removeprefix("event: ") for line in events.splitlines() if line.startswith("event: ")]
    assert names == ["answer"] * (len(names) - 1) + ["end"] and events.endswith("}\n\n")
    with sondage.Engine(tmp_path / "store", cache=tmp_path / "cache") as engine:
        engine.put("a", "Granite is hard.", corpus="c", layers=["bm25"], wait=True)
        assert [hit.entries[0].path for hit in list(engine.search_stream("granite", "c", keep_all=True))[-1].hits] == ["a"]


def test_answers_without_a_last_one_are_a_broken_answer():
    lines = AnswerLines()
    with pytest.raises(sondage.SondageError, match="broke before the last answer"):
        lines.end("http://x")
    with pytest.raises(NotFound, match="Gone"):
        AnswerLines().take(b'{"error": {"kind": "not_found", "message": "Gone."}}\n')


def test_rows_come_one_by_one_and_then_what_is_said_of_all(server):
    text = 'SELECT SENTENCE WHERE content CONTAINS "colour" ORDER BY meta.n LIMIT 7'
    with sondage.connect(server) as client:
        whole = client.query(text, "rocks")
        with client.query_rows(text, "rocks") as stream:
            assert stream.answer is None
            rows = list(stream)
            assert rows == whole.rows and len(rows) == 7 and stream.answer.generation == whole.generation
        with client.query_rows(text, "rocks") as stream:
            assert next(stream) == whole.rows[0]
        with pytest.raises(sondage.SondageError) as caught:
            next(client.query_rows("SELECT SENTENCE WHERE", "rocks"))
        assert caught.value.line == 1 and caught.value.request_id
        assert client.explain_query(text, "rocks") == client.query(text, "rocks", explain=True).plan

    async def same():
        async with sondage.connect_async(server) as client, client.query_rows(text, "rocks") as stream:
            return [row async for row in stream], stream.answer

    assert asyncio.run(same())[0] == rows


def test_portions_are_acknowledged_as_they_become_durable(server, monkeypatch):
    monkeypatch.setattr("sondage.pushing.PORTION_LINES", 4)
    items = [{"path": "bad//path" if n == 9 else f"{n}", "text": f"garnet {n}"} for n in range(11)]
    taken: list[int] = []

    def one_by_one():
        for n, item in enumerate(items):
            taken.append(n)
            yield item

    with sondage.connect(server) as client:
        told = client.put_portions(one_by_one(), corpus="portions", layers=["bm25"])
        assert next(told).accepted == 4 and len(taken) == 5  # the item that did not fit any more
        rest = list(told)
        assert [answer.accepted for answer in rest] == [4, 2] and [e.line for e in rest[1].errors] == [10]

    async def from_afar():
        for item in items:
            yield item

    async def pushed():
        async with sondage.connect_async(server) as client:
            return await client.put_many(from_afar(), corpus="portions")

    answer = asyncio.run(pushed())
    assert (answer.accepted, answer.failed, [e.line for e in answer.errors]) == (10, 1, [10])


# --- many at once, and callers that go away ----------------------------------------------------------------------------------


def test_a_hundred_searches_at_once_share_the_connections_that_there_may_be(server):
    async def story():
        async with sondage.connect_async(server, connections=10) as client:
            answers = await asyncio.gather(
                *(client.search(f"basalt {n % 20}", "rocks", layers=["bm25"], budget_ms=30_000) for n in range(100))
            )
            pool = client._http._transport._pool
            assert len(pool.connections) <= 10
            return answers

    answers = asyncio.run(story())
    assert len(answers) == 100 and all(answer.hits and answer.complete for answer in answers)
    assert {answer.hits[0].entries[0].path for answer in answers} == {f"{n}.txt" for n in range(20)}


def test_a_call_that_is_cancelled_stops_its_search_and_the_client_goes_on():
    async def story(coordinator: Scripted, url: str):
        async with sondage.connect_async(url) as client:
            waiting = asyncio.ensure_future(client.search("wait for ever", "a", budget_ms=60_000))
            while "searching" not in coordinator.events:
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await client.search("x", "a")).hits
            while "cancelled" not in coordinator.events:
                await asyncio.sleep(0)

    coordinator = Scripted()
    with running(coordinator) as url:
        asyncio.run(asyncio.wait_for(story(coordinator, url), 30))


def test_time_that_is_over_ends_a_call_and_its_search():
    coordinator = Scripted()
    with running(coordinator) as url, sondage.connect(url) as client, pytest.raises(sondage.Unreachable, match="did not answer in time"):
        client.search("wait for ever", "a", timeout_s=0.2)


def test_health_is_told_as_it_is_and_not_ready_is_an_answer():
    coordinator = Scripted()
    with running(coordinator) as url:
        with sondage.connect(url) as client:
            assert client.alive() and client.ready().ready
            coordinator.state = (False, "no generation is open yet")
            assert (client.ready().ready, client.ready().reason) == (False, "no generation is open yet")
        with httpx.Client(base_url=url) as http:
            assert http.get("/readyz").status_code == 503


# --- the README --------------------------------------------------------------------------------------------------------------


def test_what_the_readme_shows_of_the_clients_runs(server, capsys):
    blocks = [b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "sondage.connect" in b]
    assert len(blocks) >= 2
    # This server's address, and layers that need no model.
    here = {"sondage.connect()": f"sondage.connect({server!r})", "http://127.0.0.1:8765": server, "create=True": 'layers=["names", "bm25"]'}
    for block in blocks:
        for written, meant in here.items():
            block = block.replace(written, meant)
        exec(block, {})
    shown = capsys.readouterr().out
    assert "src/app.py:12: def retry(n):" in shown and "backups.md We keep a backup of everything for a year." in shown
    assert "[1, 1]" in shown
