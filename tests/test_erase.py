"""Erasing: no byte of a document is left in any file, whatever generation, encoding, staging file or log held it."""

import numpy as np
import pytest
from engine import Engine, paths, write_files
from faults import Crash, FaultyStore
from test_repair import FILES, NOW, tools

from jobs.history_checks import put
from shards.encodings import PackedEncodings
from shards.erase import erase, targets
from shards.errors import BadSpec, NotFound
from shards.identity import content_hash
from shards.manifest import corpus_store
from shards.push import Applier
from shards.pushlog import dump, entry_name
from shards.references import erased_files, generations
from shards.store import Store, open_store

SECRET = "The amber room was lost in the war.\n"


def built(tmp_path, store: Store | None = None, calibrate: bool = True) -> Engine:
    """1: the secret at a.txt; 2: another file edited beside it; 3: a.txt has other words."""
    engine = Engine(tmp_path, store=store)
    source = write_files(tmp_path / "src", FILES)
    engine.index(source, calibrate=calibrate, n_shards=2)
    (source / "b.py").write_text("def find_garnet(rocks):\n    return rocks\n")
    engine.index(source, calibrate=calibrate)
    (source / "a.txt").write_text("Nothing of interest is here.\n")
    engine.index(source, calibrate=calibrate)
    return engine


def left(engine: Engine, *needles: bytes) -> list[str]:
    inside = corpus_store(engine.store, "c")
    return [name for name in inside.list() if not name.startswith("erased/") and any(n in inside.read(name) for n in needles)]


def test_nothing_of_an_erased_document_is_left_and_the_rest_is_searched_as_before(tmp_path):
    engine = built(tmp_path)
    inside = corpus_store(engine.store, "c")
    key = content_hash(SECRET.encode())
    others = {content_hash(FILES["c.txt"].encode()): np.ones((1, 2), np.float32)}
    PackedEncodings(inside, "encodings/0123456789abcdef").put({key: np.ones((1, 2), np.float32)} | others)
    inside.write(f"staging/20260101T000000-{'0' * 24}.pack", b"..." + key + SECRET.encode())
    assert left(engine, SECRET.encode(), key, key.hex().encode())
    done = erase(engine.store, "c", targets(engine.store, "c", [key.hex()]), tools(engine))
    assert done.complete and done.traces == [] and (done.encodings, done.staging) == (1, 1)
    assert left(engine, SECRET.encode(), key, key.hex().encode(), b"lost in the war") == []
    assert done.proven_files > 10 and done.removed_generations[:2] == [1, 2]
    assert paths(engine.search("cobalt pigment", layers=["bm25"])) == ["c.txt"]
    assert paths(engine.search("find_garnet", layers=["bm25"])) == ["b.py"]
    assert erased_files(inside)
    # Again, by hash: nothing to do, and proven.
    assert erase(engine.store, "c", targets(engine.store, "c", [key.hex()]), tools(engine)).complete


def test_a_path_means_all_it_ever_held_and_refuses_what_lies_elsewhere_too(tmp_path):
    engine = built(tmp_path)
    assert len(targets(engine.store, "c", ["a.txt"])) == 2
    with pytest.raises(BadSpec, match=r"'copy.txt', too\. To erase it everywhere, name its hash"):
        targets(engine.store, "c", ["c.txt"])
    assert len(targets(engine.store, "c", ["c.txt", "copy.txt"])) == 1
    with pytest.raises(NotFound, match=r"anything at path 'nowhere.txt'"):
        targets(engine.store, "c", ["nowhere.txt"])


def test_what_the_newest_generation_holds_is_taken_out_of_its_segments_and_tree(tmp_path):
    engine = built(tmp_path)
    done = erase(engine.store, "c", targets(engine.store, "c", ["b.py"]), tools(engine))
    assert done.complete and done.generation is not None and done.segments >= 1
    assert engine.search("find_garnet", layers=["bm25"]).hits == []
    newest = engine.generation()
    assert (newest.root.n_docs, newest.root.n_entries, newest.root.sources["main"].n_entries) == (2, 3, 3)
    assert left(engine, b"find_garnet", b"find_basalt") == []


def test_an_erasure_that_crashed_anywhere_is_finished_by_the_next(tmp_path, request):
    base = built(tmp_path, open_store("memory://erase"), calibrate=False)
    inside = corpus_store(base.store, "c")
    key = content_hash(SECRET.encode())
    for number, data in enumerate((SECRET, FILES["c.txt"], SECRET), 1):  # the last is not in any generation yet
        inside.create(entry_name(number), dump([put(f"pushed/{number}", data.encode())], 0.0))
        if number == 2:
            Applier(base.store, "c", base.cache, base.resources).apply()
    n_crashes = 0
    for fail_at in range(1, 1000, 1 if request.config.getoption("--all-histories") else 7):
        engine = Engine(tmp_path, store=open_store(f"memory://erase-{fail_at}"))
        for name in base.store.list():
            engine.store.write(name, base.store.read(name))
        faulty = FaultyStore(engine.store, fail_at)
        given = tools(engine, store=faulty)
        given.calibrate = None
        try:
            erase(faulty, "c", targets(engine.store, "c", [key.hex()]), given)
            break
        except Crash:
            n_crashes += 1
        assert paths(engine.search("cobalt pigment", layers=["bm25"]))
        given = tools(engine)
        given.calibrate = None
        assert erase(engine.store, "c", targets(engine.store, "c", [key.hex()]), given).complete
        assert left(engine, SECRET.encode(), key, key.hex().encode()) == []
    assert n_crashes > 5 and NOW and generations(base.store, "c") == [1, 2, 3, 4]
