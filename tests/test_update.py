"""Keeping a corpus up to date: work in proportion to change, and the same results as a corpus built from scratch."""

import os
import random
import shutil
from pathlib import Path

import pytest
from engine import Engine, paths, write_files

from shards.errors import BadSpec, SourceError
from shards.store import open_store

WORDS = ("amber basalt cobalt dolomite ebony feldspar garnet hematite indigo jasper kyanite lapis marble nickel onyx pyrite").split()
FILES = {
    "a.txt": "The amber room was lost in the war. Nobody has seen the amber since.\n",
    "sub/b.py": "def find_basalt(rocks):\n    return [r for r in rocks if r.kind == 'basalt']\n",
    "sub/c.txt": "Cobalt blue is a pigment. It is made of cobalt and alumina.\n",
    "copy.txt": "Cobalt blue is a pigment. It is made of cobalt and alumina.\n",
}


@pytest.fixture
def source(tmp_path) -> Path:
    return write_files(tmp_path / "src", FILES)


def seen(engine: Engine, queries: list[str], **request) -> list[list[tuple]]:
    """What a user sees of each answer, without what tells how the corpus came about."""
    answers = engine.search_many([{"query": q, "k": 50, "explain": True, **request} for q in queries])
    return [
        [
            (h.hash, h.start, h.end, [e.path for e in h.entries], [(s.layer, s.score, s.start, s.end) for s in h.signals])
            for h in answer.hits
        ]
        for answer in answers
    ]


def test_a_first_run_indexes_every_text_and_counts_the_rest(source, tmp_path):
    write_files(source, {"image.png": b"\x89PNG\r\n\x1a\n\0\0\0", ".gitignore": "secret*\n", "secret.txt": "hush"})
    outcome = Engine(tmp_path).index(source)
    assert outcome.changed and outcome.generation == 1
    assert (outcome.added, outcome.documents_added) == (5, 4)  # the ignore file is a text too; two files have one content
    assert outcome.skipped == {"binary": 1, "ignored": 1}


def test_a_run_without_changes_publishes_nothing(source, tmp_path):
    engine = Engine(tmp_path)
    engine.index(source)
    again = engine.index(source)
    assert not again.changed and again.generation == 1


def test_only_what_changed_is_worked_on(source, tmp_path):
    engine = Engine(tmp_path, ("names", "text", "bm25"))
    for path in source.rglob("*"):
        os.utime(path, (1, 1))  # old enough to be trusted by its clock
    engine.index(source)
    assert engine.index(source).hashed == 0
    (source / "a.txt").write_text("Amber was found again.\n")
    (source / "sub/c.txt").unlink()
    (source / "sub/b.py").rename(source / "sub/renamed.py")
    outcome = engine.index(source)
    assert (outcome.listed, outcome.hashed, outcome.added, outcome.removed) == (3, 2, 2, 3)
    assert (outcome.documents_added, outcome.documents_removed, outcome.renamed) == (1, 1, 1)
    assert paths(engine.search("find_basalt")) == ["sub/renamed.py"]
    assert paths(engine.search("pigment", layers=["bm25"])) == ["copy.txt"]
    assert paths(engine.search("war", layers=["bm25"])) == []


def test_equal_documents_are_one_hit_with_all_their_paths(source, tmp_path):
    engine = Engine(tmp_path)
    engine.index(source)
    (hit,) = engine.search("pigment", layers=["bm25"]).hits
    assert [e.path for e in hit.entries] == ["copy.txt", "sub/c.txt"]


def test_two_sources_share_a_corpus_and_do_not_touch_each_other(source, tmp_path):
    engine = Engine(tmp_path)
    engine.index(source)
    other = write_files(tmp_path / "other", {"d.txt": "Dolomite holds magnesium.\n"})
    engine.index(other, source_name="second")
    assert paths(engine.search("magnesium", layers=["bm25"])) == ["d.txt"]
    (other / "d.txt").unlink()
    write_files(other, {"e.txt": "Ebony is a dark wood.\n"})
    engine.index(other, source_name="second")
    assert paths(engine.search("pigment", layers=["bm25"])) == ["copy.txt"]
    assert engine.search("magnesium", layers=["bm25"]).hits == []


def test_a_listing_that_lost_most_files_deletes_nothing_unless_told_to(tmp_path):
    source = write_files(tmp_path / "src", {f"{i}.txt": f"{WORDS[i % 16]} number {i}\n" for i in range(60)})
    engine = Engine(tmp_path)
    engine.index(source)
    for i in range(40):
        (source / f"{i}.txt").unlink()
    kept = engine.index(source)
    assert kept.notes and "--allow-shrink" in kept.notes[0]
    assert engine.generation().root.n_entries == 60
    engine.index(source, allow_shrink=True)
    assert engine.generation().root.n_entries == 20


def test_an_unreadable_or_empty_source_publishes_nothing(tmp_path):
    engine = Engine(tmp_path)
    with pytest.raises(SourceError, match="does not exist"):
        engine.index(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no file"):
        engine.index(tmp_path / "empty")
    with pytest.raises(BadSpec, match="Choose from"):
        engine.index(write_files(tmp_path / "s", FILES), layers=["bm52"])
    with pytest.raises(BadSpec, match="shards"):
        engine.index(tmp_path / "s", n_shards=5000)


def test_a_layer_added_later_covers_what_was_there(source, tmp_path):
    engine = Engine(tmp_path, ("names",))
    engine.index(source)
    assert engine.search("pigment").hits == []
    engine.index(source, layers=("bm25",))
    answer = engine.search("pigment")
    assert paths(answer) == ["copy.txt"] and answer.complete
    assert sorted(engine.generation().spaces) == ["bm25", "names"]


def random_files(rng: random.Random, n: int) -> dict[str, str]:
    return {f"{rng.choice('abc')}/{rng.choice('xyz')}/{i}.txt": text(rng) for i in range(n)}


def text(rng: random.Random) -> str:
    return "".join(" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) + ".\n" for _ in range(rng.randint(1, 6)))


def edit_at_random(rng: random.Random, folder: Path) -> None:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    for _ in range(rng.randint(1, 6)):
        kind = rng.choice(["edit", "delete", "rename", "copy", "new"])
        path = rng.choice(files)
        if not path.exists() or (kind == "delete" and sum(p.exists() for p in files) < 3):
            continue
        target = folder / rng.choice("abc") / rng.choice("xyz") / f"{rng.randint(0, 10**6)}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        match kind:
            case "edit":
                path.write_text(text(rng))
            case "delete":
                path.unlink()
            case "rename":
                path.rename(target)
            case "copy":
                shutil.copy(path, target)
            case "new":
                target.write_text(text(rng))


@pytest.mark.parametrize("seed", range(6))
def test_after_random_edits_results_equal_those_of_an_index_built_from_scratch(tmp_path, seed):
    print("seed", seed)
    rng = random.Random(seed)
    source = write_files(tmp_path / "src", random_files(rng, 20))
    engine = Engine(tmp_path / "upserted")
    n_shards = rng.choice([1, 3])
    engine.index(source, n_shards=n_shards, calibrate=False)
    for step in range(12):
        edit_at_random(rng, source)
        if step == 6:
            n_shards = rng.choice([1, 2, 5])
        engine.index(source, n_shards=n_shards, calibrate=False, allow_shrink=True)
        if step % 4 == 3:
            fresh = Engine(tmp_path / f"fresh{step}")
            fresh.index(source, n_shards=rng.choice([1, 2, 4]), calibrate=False)
            queries = [" ".join(rng.sample(WORDS, 2)) for _ in range(4)] + [rng.choice(WORDS), "xyz/1", "a/x"]
            assert seen(engine, queries) == seen(fresh, queries)
            assert seen(engine, queries, paths=["a/**", "!**/1*"]) == seen(fresh, queries, paths=["a/**", "!**/1*"])
            a, b = engine.generation().root, fresh.generation().root
            assert (a.n_docs, a.n_entries) == (b.n_docs, b.n_entries)


def test_a_cache_that_is_full_all_the_time_costs_downloads_and_nothing_else(tmp_path):
    roomy = Engine(tmp_path / "roomy", store=open_store(f"memory://roomy-{tmp_path.name}"))
    full = Engine(tmp_path / "full", store=open_store(f"memory://full-{tmp_path.name}"), cache_bytes=1)
    for engine in (roomy, full):
        source = write_files(engine.folder / "src", FILES)
        engine.index(source, n_shards=2)
        (source / "a.txt").write_text("Amber was found again.\n")
        (source / "sub/c.txt").unlink()
        engine.index(source)
    for query in ("amber", "garnet", "cobalt", "a.txt"):
        ours, theirs = full.search(query), roomy.search(query)
        assert [(h.hash, h.fused, h.evalue) for h in ours.hits] == [(h.hash, h.fused, h.evalue) for h in theirs.hits]
        assert ours.complete
    cached = [[path for path in (engine.folder / "cache").rglob("*") if path.is_file()] for engine in (roomy, full)]
    assert len(cached[0]) > len(cached[1])
