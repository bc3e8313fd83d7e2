"""Any kept generation can be searched and read, and what it changed can be told; a collected one says so."""

import asyncio
import json

import pytest
from engine import Engine, paths, write_files
from test_collect import NOW, collect, three_generations

from cluster.host import Host
from cluster.local import LocalSearcher
from jobs.cli import main
from serve.coordinator import Coordinator
from serve.generations import IDLE_S, OLD_OPEN
from serve.schema import SearchRequest
from shards.changes import changes
from shards.collect import Policy
from shards.errors import Gone, NotFound
from shards.history import history
from shards.manifest import corpus_store, read_root
from shards.readers import readings


def test_each_generation_answers_as_it_did_when_it_was_the_newest(tmp_path):
    engine = three_generations(tmp_path)
    requests = [{"query": "amber room", "layers": ["bm25"], "generation": number} for number in (1, 2, 3)]
    requests += [{"query": "cobalt pigment", "layers": ["bm25"], "generation": number} for number in (1, 2, 3)]
    found = engine.search_many(requests)
    assert [a.generation for a in found] == [1, 2, 3, 1, 2, 3]
    assert found[0].hits[0].hash != found[1].hits[0].hash == found[2].hits[0].hash
    assert [paths(a) for a in found[3:]] == [["b.txt"], ["b.txt"], []]


def test_a_generation_that_is_not_kept_is_gone_and_names_those_that_are(tmp_path):
    engine = three_generations(tmp_path)
    collect(engine.store, "c", Policy(2), NOW)
    with pytest.raises(Gone, match="Kept are: 2, 3"):
        engine.search("amber", generation=1)
    with pytest.raises(NotFound, match="Kept are: 2, 3"):
        engine.search("amber", generation=7)


def test_old_generations_are_held_while_they_are_open_and_closed_when_nobody_asks(tmp_path):
    engine = three_generations(tmp_path)
    time = [0.0]

    async def run() -> None:
        host = Host(engine.store.url, {}, str(tmp_path / "cache"), 1 << 30)
        coordinator = Coordinator(engine.store, LocalSearcher(host), engine.resources, engine.cache)
        held = coordinator.generations
        held._clock, held._time_of_day = lambda: time[0], lambda: NOW
        await coordinator.search(SearchRequest(corpus="c", query="amber", budget_ms=30_000, generation=1))
        inside = corpus_store(engine.store, "c")
        assert [set(r.generations) for r in readings(inside, NOW)] == [{1, 3}]
        assert collect(engine.store, "c", Policy(1), NOW).removed == [2]
        time[0] += IDLE_S + 1
        await held.keep_up()
        assert [set(r.generations) for r in readings(inside, NOW)] == [{3}] and not held._old
        await coordinator.close()
        assert readings(inside, NOW) == [] and OLD_OPEN == 3

    asyncio.run(run())


def test_history_and_differences_come_from_the_trees(tmp_path):
    engine = three_generations(tmp_path)
    kept = history(engine.store, "c", NOW)
    assert [(one.generation, one.since, one.changed) for one in kept] == [
        (3, 2, {"main": {"removed": 1}}), (2, 1, {"main": {"changed": 1}}), (1, None, {"main": {"added": 3}}),
    ]  # fmt: skip
    assert all(one.size_bytes > one.own_bytes > 0 for one in kept[:1])
    (tmp_path / "src" / "c.txt").rename(tmp_path / "src" / "moved.txt")
    write_files(tmp_path / "src", {"new.txt": "News.\n"})
    engine.index(tmp_path / "src", calibrate=False)
    found = list(changes(corpus_store(engine.store, "c"), read_root(engine.store, "c", 3), read_root(engine.store, "c", 4)))
    assert [(c.kind, c.old_path, c.path) for c in found] == [("added", "", "new.txt"), ("renamed", "c.txt", "moved.txt")]


def test_the_commands_say_what_they_did_as_json(tmp_path, capsys, monkeypatch):
    engine = three_generations(tmp_path)
    monkeypatch.setenv("SONDAGE_CACHE", str(tmp_path / "cache"))
    store = ["--store", str(tmp_path / "store"), "-c", "c", "--json"]

    def run(*arguments: str) -> tuple[int, object]:
        code = main([*arguments, *store])
        return code, json.loads(capsys.readouterr().out)

    assert [one["generation"] for one in run("history")[1]] == [3, 2, 1]
    assert [c["kind"] for c in run("diff", "1", "3")[1]] == ["changed", "removed"]
    assert run("gc", "--keep", "2", "--dry-run")[1]["removed"] == [1]
    assert run("gc", "--keep", "2")[1]["kept"] == [2, 3]
    code, found = run("verify", "--deep")
    assert (code, found["damages"]) == (0, [])
    assert run("export", str(tmp_path / "out.tar"))[1]["generations"] == [3]
    assert run("erase", "c.txt", "--dry-run")[1][0]["places"] == [["main", "c.txt"]]
    other = ["--store", str(tmp_path / "elsewhere"), "--json"]
    assert main(["import", str(tmp_path / "out.tar"), *other]) == 0
    assert json.loads(capsys.readouterr().out)["generations"] == [3]
    assert main(["gc", "--keep", "0", *store]) == 2 and "--keep 0" in capsys.readouterr().err
    assert isinstance(engine, Engine)
