"""Copies of a corpus: byte for byte, checked, resumed after a crash, never over another corpus."""

import pytest
from engine import Engine, paths
from faults import Crash, FaultyStore
from test_collect import NOW, three_generations, whole

from shards.backup import choose_corpus, export, restore
from shards.errors import AlreadyExists, Corrupt, NotFound
from shards.manifest import corpus_store
from shards.references import generations
from shards.store import open_store
from shards.store_tar import read_archive, write_archive


def now() -> float:
    return NOW


@pytest.mark.parametrize("as_tar", [False, True])
def test_what_is_exported_and_imported_answers_as_the_original(tmp_path, as_tar):
    engine = three_generations(tmp_path)
    if as_tar:
        target = write_archive(tmp_path / "copy.tar")
        done = export(engine.store, target, "c", [1, 3], now)
        target.archive.close()
        source = read_archive(tmp_path / "copy.tar")
    else:
        source = open_store(str(tmp_path / "copy"))
        done = export(engine.store, source, "c", [1, 3], now)
    assert done.generations == [1, 3] and done.copied_files == done.files > 5
    assert corpus_store(engine.store, "c").list("readers/") == [], "the lease is given back"
    assert choose_corpus(source, None) == "c"
    other = Engine(tmp_path / "other")
    restore(source, other.store, "c")
    assert whole(other.store) == [1, 3]
    for name in corpus_store(other.store, "c").list():
        assert corpus_store(other.store, "c").read(name) == corpus_store(engine.store, "c").read(name)
    assert paths(other.search("found again", layers=["bm25"])) == ["a.txt"]
    with pytest.raises(NotFound, match="no corpus 'x'"):
        choose_corpus(source, "x")
    if as_tar:
        source.archive.close()


def test_a_copy_that_was_cut_off_goes_on_where_it_was(tmp_path):
    engine = three_generations(tmp_path)
    target = open_store("memory://backup")
    fail_at = 8
    with pytest.raises(Crash):
        export(engine.store, FaultyStore(target, fail_at), "c", None, now)
    assert generations(target, "c") == []
    done = export(engine.store, target, "c", None, now)
    assert 0 < done.copied_files < done.files and whole(target) == [3]
    assert export(engine.store, target, "c", None, now).copied_files == 0


def test_a_tar_that_was_cut_off_at_any_block_goes_on(tmp_path):
    engine = three_generations(tmp_path)
    target = write_archive(tmp_path / "whole.tar")
    export(engine.store, target, "c", None, now)
    target.archive.close()
    data = (tmp_path / "whole.tar").read_bytes()
    for cut in range(0, len(data), max(len(data) // 12, 1)):
        (tmp_path / "cut.tar").write_bytes(data[: cut + 3])
        target = write_archive(tmp_path / "cut.tar")
        export(engine.store, target, "c", None, now)
        target.archive.close()
        again = read_archive(tmp_path / "cut.tar")
        assert whole(again) == [3]
        again.archive.close()


def test_nothing_is_copied_over_another_corpus_and_no_damage_is_copied(tmp_path):
    engine, another = three_generations(tmp_path / "a"), three_generations(tmp_path / "b")
    another.index(tmp_path / "b" / "src", layers=["names"], calibrate=False)
    with pytest.raises(AlreadyExists, match="another generation 1"):
        restore(engine.store, another.store, "c")
    name = next(name for name in corpus_store(engine.store, "c").list("segments/") if name.endswith("/docs"))
    (tmp_path / "a" / "store" / "c" / name).write_bytes(b"x")
    with pytest.raises(Corrupt, match="docs"):
        export(engine.store, open_store("memory://damaged-copy"), "c", [1, 2, 3], now)
    (tmp_path / "text").write_text("no archive " * 100)
    with pytest.raises(Corrupt, match="no tar archive"):
        read_archive(tmp_path / "text")
