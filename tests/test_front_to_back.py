"""From files to answers through every front: a real index, asked from the terminal, from Python, and over HTTP without Ray."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from engine import Engine, write_files
from scripted_coordinator import eventually

import sondage
from cluster.settings import HostSettings
from jobs import cli
from jobs.settings import VARIABLES
from serve.http import create_app
from serve.local import local_coordinator
from serve.schema import SearchAnswer
from shards.errors import BadQuery, BadSpec, NotFound

FILES = {
    "mail/dates.py": 'def parse_date(header):\n    """The instant that a Date header tells."""\n    return header\n',
    "mail/copy_of_dates.py": 'def parse_date(header):\n    """The instant that a Date header tells."""\n    return header\n',
    "mail/café.txt": "Un café, s'il vous plaît. Les éclairs sont au chocolat.\n",
    "heap.md": "# Heaps\n\nA heap is a tree whose root is the smallest of all.\n",
    **{f"noise/{i}.txt": f"Number {i} speaks of weather, ships and the price of corn in year {1800 + i}.\n" for i in range(40)},
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `files` and, indexed as corpus "c", `store`."""
    folder = tmp_path_factory.mktemp("built")
    Engine(folder).index(write_files(folder / "files", FILES))
    return folder


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for names in VARIABLES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SONDAGE_CACHE", str(tmp_path))
    return monkeypatch


@pytest.fixture(scope="module")
def url(built: Path) -> Iterator[str]:
    settings = HostSettings(store_url=str(built / "store"), cache_dir=built / "cache")
    config = uvicorn.Config(create_app(local_coordinator(settings)), port=0, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


def without_times(answer: SearchAnswer) -> dict:
    return answer.model_dump(exclude={"timings_ms", "freshness", "plan"})


def test_the_terminal_prints_a_line_that_an_editor_opens(built, capsys, environment):
    environment.chdir(built / "files")
    assert cli.main(["search", "parse_date", "--store", str(built / "store")]) == 0
    out = capsys.readouterr().out.splitlines()
    path, line, rest = out[0].split(":", 2)
    assert sorted([path, out[1].removeprefix("    also ")]) == ["mail/copy_of_dates.py", "mail/dates.py"]
    assert "parse_date" in Path(path).read_text().splitlines()[int(line) - 1]
    assert "E=" in rest and any("def parse_date(header):" in shown for shown in out)


def test_nothing_to_find_is_code_1(built, capsys):
    assert cli.main(["search", "xqzvw blorptang", "--store", str(built / "store")]) == 1
    assert capsys.readouterr().out.startswith("none: ")


def test_all_fronts_give_the_same_answer(built, url, capsys):
    with sondage.Engine(built / "store", cache=built / "cache") as engine, sondage.connect(url) as client:
        for fields in ({"k": 3}, {"paths": ["*.py"]}, {"where": {"size_bytes": {"<": 60}}}, {"explain": True, "layers": ["bm25"]}):
            here, there = engine.search("date header", "c", **fields), client.search("date header", "c", **fields)
            assert without_times(here) == without_times(there)
        assert cli.main(["search", "date header", "-c", "c", "--url", url, "--json", "-k", "3"]) == 0
        printed = SearchAnswer.model_validate(json.loads(capsys.readouterr().out))
        assert without_times(printed) == without_times(engine.search("date header", "c", k=3))


def test_excerpts_mark_the_words_of_the_query_in_any_form(url):
    with sondage.connect(url) as client:
        hit = client.search("ECLAIR café", "c").hits[0]
        assert hit.entries[0].path == "mail/café.txt"
        assert {hit.excerpt.text[a:b] for a, b in hit.excerpt.marks} == {"café", "éclairs"}
        plain = client.search("ECLAIR café", "c", highlight=False).hits[0]
        assert plain.excerpt.marks == []


def test_a_regex_is_marked_where_it_matches(url):
    with sondage.connect(url) as client:
        hit = client.search(corpus="c", forms={"text": {"pattern": r"def \w+", "regex": True}}).hits[0]
        assert [hit.excerpt.text[a:b] for a, b in hit.excerpt.marks] == ["def parse_date"]


def test_a_hits_document_can_be_read_by_its_hash(url, capsys):
    with sondage.connect(url) as client:
        hit = client.search("heap tree root", "c").hits[0]
        document = client.document(hit.hash, "c")
        assert document.text == FILES["heap.md"] and [entry.path for entry in document.entries] == ["heap.md"]
        assert client.document(hit.hash, "c", 2, 7).text == "Heaps"
        with pytest.raises(NotFound, match="No document 0000"):
            client.document("0" * 40, "c")
    assert cli.main(["document", hit.hash, "--url", url, "--start", "2", "--end", "7"]) == 0
    assert capsys.readouterr().out == "Heaps"


def test_status_names_the_corpus_and_its_layers(url, capsys):
    assert cli.main(["status", "--url", url]) == 0
    out = capsys.readouterr().out
    assert "c: generation 1, 43 documents of 44 entries" in out
    assert all(layer in out for layer in ("names", "text", "bm25"))


@pytest.mark.parametrize(
    ("fields", "kind", "says"),
    [
        ({"corpus": "nope"}, NotFound, "Known: c"),
        ({"corpus": "c", "layers": ["bm52"]}, BadQuery, "has no layer 'bm52'. Choose from: bm25, names, text."),
        ({"corpus": "c", "forms": {"text": {"pattern": "(oops", "regex": True}}}, BadQuery, "(oops"),
        ({"corpus": "c", "cursor": "nonsense"}, BadQuery, "cursor"),
        ({"corpus": "c", "query": " "}, BadQuery, "Nothing was asked"),
        ({"corpus": "../c"}, BadSpec, "Corpus name '../c' is not allowed."),
    ],
)
def test_bad_input_is_told_by_the_layer_that_knows(url, fields, kind, says):
    with sondage.connect(url) as client:
        with pytest.raises(kind) as caught:
            client.search(**{"query": "q", **fields})
        assert says in str(caught.value)
        assert client.search("heap", "c").hits  # and the process is alive


def test_pages_follow_one_another_without_gaps(url):
    with sondage.connect(url) as client:
        everything = [hit.hash for hit in client.search("weather ships corn", "c", k=30).hits]
        first = client.search("weather ships corn", "c", k=10)
        second = client.search("weather ships corn", "c", k=10, cursor=first.cursor)
        assert [hit.hash for hit in first.hits + second.hits] == everything[:20]


def test_an_engine_over_no_index_says_so(tmp_path):
    with sondage.Engine(tmp_path / "absent", cache=tmp_path) as engine:
        assert engine.status()["corpora"] == {}
        with pytest.raises(NotFound, match="Build it with"):
            engine.search("q", corpus="c")


def test_an_engine_can_be_closed_twice_and_inside_a_running_loop(tmp_path):
    async def inside() -> None:
        engine = sondage.Engine(tmp_path / "absent", cache=tmp_path)
        engine.close()
        engine.close()

    asyncio.run(inside())
