"""`sondage scale`, without a cluster: what it writes, what it refuses, and whom it waits for."""

import json
from pathlib import Path
from typing import Any

import pytest
from engine import Engine, write_files

from jobs.scale import NotServed, run_scale, scale, sizes
from jobs.settings import Settings
from shards.identity import shard_ranges
from shards.manifest import corpus_store, latest_generation
from shards.serving_record import newest, read, succeed

TEXTS = {f"{i}.txt": f"Note {i} on tides and {'ferries' if i % 2 else 'lighthouses'}.\n" for i in range(40)}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """Corpus "c", 2 shards, generation 1."""
    made = Engine(tmp_path, layers=("names", "bm25"))
    made.index(write_files(tmp_path / "files", TEXTS), n_shards=2, calibrate=False)
    return made


def settings(engine: Engine) -> Settings:
    return Settings.load({}, store=engine.store.url, cache=str(engine.folder / "cache"))


def record(engine: Engine):
    return newest(corpus_store(engine.store, "c"))


def test_other_shards_are_a_generation_of_the_same_files_and_answers_stay(engine):
    before, files = engine.search("ferries", k=20), set(engine.store.list("c/segments/"))
    done = scale(settings(engine), "c", shards=5)
    assert (done.shards_before, done.shards, done.generation, done.record) == (2, 5, 2, 0)
    assert [shard.buckets for shard in engine.generation().root.shards] == shard_ranges(5)
    after = engine.search("ferries", k=20)
    assert [(h.hash, h.signals[0].score, h.evalue) for h in after.hits] == [(h.hash, h.signals[0].score, h.evalue) for h in before.hits]
    assert all("/stats." in name for name in set(engine.store.list("c/segments/")) - files)
    assert scale(settings(engine), "c", shards=5).generation == 2  # which it has: nothing is published


def test_replicas_are_a_record_and_alone_they_end_automatic_scaling(engine):
    assert scale(settings(engine), "c", bounds=(2, 4)).replicas == 2  # one is below the bounds
    assert (record(engine).number, record(engine).replicas, record(engine).bounds) == (1, 2, (2, 4))
    done = scale(settings(engine), "c", shards=3)  # says nothing of replicas
    assert done.record == 1 and record(engine).automatic
    done = scale(settings(engine), "c", replicas=3)
    assert (done.replicas_before, done.replicas, done.record) == (2, 3, 2) and not record(engine).automatic
    assert record(engine).by.startswith("sondage scale, ") and latest_generation(engine.store, "c") == 2


def test_a_record_that_somebody_else_writes_meanwhile_is_followed_by_ours(engine, monkeypatch):
    inside = corpus_store(engine.store, "c")
    original, first = type(inside).create, [True]

    def create(self, name, data):
        if name == "serving/00000001.json" and first:
            first.clear()
            succeed(inside, 0, 4, by="automatic")
        original(self, name, data)

    monkeypatch.setattr(type(inside), "create", create)
    assert scale(settings(engine), "c", replicas=2).record == 2
    assert (read(inside, 1).by, record(engine).replicas) == ("automatic", 2)


def test_sizes_of_shards_add_up_to_the_files_that_there_are(engine):
    whole = sum(sizes(engine.generation()))
    scale(settings(engine), "c", shards=7)
    parts = sizes(engine.generation())
    assert len(parts) == 7 and whole == pytest.approx(sum(parts), rel=0.2)  # sums of cut rows are files of their own


def state(name: str, generation: int, number: int, open_on: list[list[str]], of: int = 2) -> dict[str, Any]:
    """What one coordinator tells: shards 0 and 1 are to be on a and b."""
    shards = [["a"], ["b"]]
    placed = {"generation": generation, "record": number, "shards": shards, "open": open_on, "settled": open_on == shards}
    return {"placement": {"c": placed}, "hosts": [{"node": "a"}, {"node": "b"}], "coordinator": {"id": name, "of": of}}


def test_it_waits_until_each_coordinator_has_said_that_it_serves_what_is_wanted(engine):
    """y hears of the record late; x is ready, and is asked again and again, which does not make it two."""
    told = [
        state("x", 1, 0, [["a"], ["b"]]),
        state("x", 1, 0, [["a"], ["b"]]),
        state("x", 1, 1, [["a"], []]),
        state("x", 1, 1, [["a"], ["b"]]),
        state("x", 1, 1, [["a"], ["b"]]),
        state("y", 1, 0, [["a"], ["b"]]),
        state("y", 1, 1, [["a"], ["b"]]),
    ]
    said: list[str] = []
    done = scale(settings(engine), "c", replicas=1, status=lambda: told.pop(0), say=said.append, sleep=lambda _: None)
    assert told == [] and (done.coordinators, done.nodes, done.moved_buckets, done.moved_bytes) == (2, 2, 0, 0)
    assert said[1:] == [
        "coordinator x: has serving record 0, not yet 1",
        "coordinator x: 1 of 2 copies of shards are open",
        "1 of 2 coordinators serve it",
        "coordinator y: has serving record 0, not yet 1",
        "2 of 2 coordinators serve it",
    ]


def test_what_is_not_served_in_time_is_said_to_be_in_the_store_all_the_same(engine):
    with pytest.raises(NotServed, match="It is in the store, but not yet served: coordinator x: has serving record 0, not yet 1"):
        scale(settings(engine), "c", replicas=1, status=lambda: state("x", 1, 0, [["a"], ["b"]]), timeout_s=0.0, sleep=lambda _: None)
    assert record(engine).replicas == 1


def test_a_server_in_one_process_has_nothing_to_place_and_nothing_is_written(engine):
    with pytest.raises(NotServed, match="This server is one process with one host"):
        scale(settings(engine), "c", replicas=2, status=lambda: {"hosts": [{"node": "local"}]})
    assert record(engine) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "Nothing to change is named. Give --shards, --replicas, or --min-replicas with --max-replicas."),
        (["--min-replicas", "2"], "--min-replicas and --max-replicas belong together."),
        (["--shards", "0"], "--shards 0: a corpus has 1 to 4096 shards."),
        (["--shards", "5000"], "--shards 5000: a corpus has 1 to 4096 shards."),
        (["--replicas", "0"], "--replicas 0: somebody must serve each shard. Give 1 or more."),
        (["--replicas", "5", "--min-replicas", "1", "--max-replicas", "3"], "replicas is 5, which lies outside of 1 to 3"),
        (["--min-replicas", "3", "--max-replicas", "1"], "--min-replicas 3 --max-replicas 1: the first is 1 or more"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_the_remedy_and_nothing_is_written(engine, capsys, options, says):
    assert run_scale(["c", "--store", engine.store.url, *options]) == 2
    assert says in capsys.readouterr().err
    assert record(engine) is None and latest_generation(engine.store, "c") == 1


def test_an_unknown_corpus_is_answered_with_those_there_are(engine, capsys):
    assert run_scale(["d", "--store", engine.store.url, "--shards", "2"]) == 2
    assert "There is no corpus 'd'" in capsys.readouterr().err
    assert run_scale(["d", "--store", engine.store.url, "--replicas", "2"]) == 2
    assert engine.store.list("d/") == []


def test_the_outcome_is_told_in_words_or_as_json(engine, capsys, monkeypatch):
    monkeypatch.delenv("SONDAGE_URL", raising=False)
    assert run_scale(["c", "--store", engine.store.url, "--shards", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shards"] == 3
    assert run_scale(["c", "--store", engine.store.url, "--shards", "2", "--replicas", "2"]) == 0
    told = capsys.readouterr().out
    assert "c: 3 to 2 shards, replicas as deployed to 2" in told and "none was asked" in told
