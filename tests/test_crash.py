"""Publish, then retire: a run that dies at any store operation leaves the old generation searchable, and the next run finishes."""

from collections import Counter

import pytest
from engine import Engine, paths, write_files
from faults import Crash, FaultyStore
from test_update import FILES

from shards.store import open_store


def test_a_crash_at_any_store_operation_loses_nothing(tmp_path):
    source = write_files(tmp_path / "src", FILES)
    counting = FaultyStore(open_store("memory://count"))
    Engine(tmp_path, store=counting).index(source, n_shards=2)
    first = len(counting.operations)
    (source / "a.txt").write_text("Amber was found again.\n")
    (source / "copy.txt").unlink()
    Engine(tmp_path, store=counting).index(source)
    n_operations = len(counting.operations) - first
    creates = Counter(name.split("/")[1] for method, name in counting.operations if method == "create")
    assert creates == {"lease": 2, "roots": 2}

    for fail_at in range(1, n_operations + 1):
        for after in (False, True):
            (tmp_path / "copy").mkdir(exist_ok=True)
            inner = open_store(f"memory://crash-{fail_at}-{after}")
            before = write_files(tmp_path / f"before-{fail_at}-{after}", FILES)
            engine = Engine(tmp_path, store=inner)
            engine.index(before, n_shards=2)
            (before / "a.txt").write_text("Amber was found again.\n")
            (before / "copy.txt").unlink()
            faulty = FaultyStore(inner, fail_at, after)
            with pytest.raises(Crash):
                Engine(tmp_path, store=faulty).index(before)
            published = engine.generation().root.generation
            old = published == 1
            answer = engine.search("cobalt pigment", layers=["bm25"])
            assert [e.path for e in answer.hits[0].entries] == (["copy.txt", "sub/c.txt"] if old else ["sub/c.txt"])
            assert bool(engine.search("war", layers=["bm25"]).hits) is old
            engine.index(before)
            assert paths(engine.search("found again", layers=["bm25"])) == ["a.txt"]
            assert engine.search("war", layers=["bm25"]).hits == []
            assert engine.generation().root.n_entries == 3
