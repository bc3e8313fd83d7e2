"""Repairing: whatever one file is damaged, all documents whose text is anywhere are searched as before, and no good file is touched."""

import hashlib
from contextlib import nullcontext
from pathlib import Path

import pytest
from engine import Engine, paths, write_files
from faults import Crash, FaultyStore

from jobs.pool import LocalPool, WorkerSettings
from serve.calibrate import Calibrator
from shards import lease
from shards.cache import FileCache
from shards.corpus import Source
from shards.encodings import PackedEncodings
from shards.manifest import corpus_store, latest_generation
from shards.references import References, root_name
from shards.repair import Repaired, Tools, repair
from shards.store import Store, open_store
from shards.verify import Verified, verify

FILES = {
    "a.txt": "The amber room was lost in the war.\n",
    "b.py": "def find_basalt(rocks):\n    return rocks\n",
    "c.txt": "Cobalt blue is a pigment. It is made of cobalt and alumina.\n",
    "copy.txt": "Cobalt blue is a pigment. It is made of cobalt and alumina.\n",
}
NOW = 1_900_000_000.0


def built(tmp_path: Path, store: Store | None = None, calibrate: bool = True) -> Engine:
    """Two generations over two shards; the second has tombstones, and a segment of its own for the edited a.txt."""
    engine = Engine(tmp_path, store=store)
    source = write_files(tmp_path / "src", FILES)
    engine.index(source, calibrate=calibrate, n_shards=2)
    (source / "a.txt").write_text("The amber room was found again.\n")
    (source / "copy.txt").unlink()
    engine.index(source, calibrate=calibrate)
    return engine


def tools(engine: Engine, with_source: bool = True, store: Store | None = None) -> Tools:
    seconds = [NOW]
    root = store or engine.store

    def workers(inside, specs):
        pool = LocalPool(WorkerSettings(inside.url, {}, engine.folder / "cache2", 1 << 30, specs, engine.resources))
        pool.worker.store = inside
        return pool

    def source_of(name, ref):
        return Source(name, ref.url, ref.include, ref.exclude) if with_source else None

    def hold(purpose):
        return lease.hold(root, "c", purpose, lambda: seconds[0], lambda s: seconds.append(seconds.pop() + s))

    return Tools(FileCache(engine.folder / "cache2", 1 << 30), engine.resources, workers, lambda: NOW, hold, Calibrator(), source_of)


def checked(engine: Engine) -> Verified:
    return verify(engine.store, "c", FileCache(engine.folder / "cache3", 1 << 30), engine.resources)


def mended(engine: Engine, with_source: bool = True) -> Repaired:
    found = checked(engine)
    assert found.damages
    return repair(engine.store, "c", found, tools(engine, with_source))


def seen(engine: Engine) -> list[list[tuple]]:
    fresh = Engine(engine.folder, store=engine.store)
    fresh.cache = FileCache(engine.folder / "cache4", 1 << 30)
    answers = fresh.search_many([{"query": q, "k": 50} for q in ("amber", "find_basalt", "cobalt pigment", "a.txt")])
    return [[(h.hash, [e.path for e in h.entries], [(s.layer, s.score) for s in h.signals]) for h in a.hits] for a in answers]


def files_of(engine: Engine) -> dict[str, str]:
    """name -> kind of every file of the newest generation."""
    references = References(engine.store, "c")
    root = references.root(latest_generation(engine.store, "c"))
    return {name: kind for name, (kind, _) in references.files(root).items()}


def test_whatever_file_is_damaged_everything_is_found_again(tmp_path):
    engine = built(tmp_path)
    before = seen(engine)
    folder = tmp_path / "store" / "c"
    kinds = {}
    for i, (name, kind) in enumerate(sorted(files_of(engine).items())):
        saved = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        path = folder / name
        if i % 2:
            good = saved[path]
            path.write_bytes(good[:-3] + bytes([good[-3] ^ 1]) + good[-2:])
        else:
            path.unlink()
        done = mended(engine)
        after = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        changed = [p for p, data in saved.items() if p != path and after.get(p) != data]
        assert not changed, f"{name}: touched good files {changed}"
        assert done.lost == [] and seen(engine) == before, f"{name}: {done}"
        newest = latest_generation(engine.store, "c")
        assert not [d for d in checked(engine).damages if newest in d.generations], name
        kinds.setdefault(kind.partition("/")[0], set()).add((name in done.restored, done.generation is not None))
        if name in done.restored:
            assert after[path] == saved[path] and newest == 2
        for p in after.keys() - saved.keys():  # back to before
            p.unlink()
        for p, data in saved.items():
            p.parent.mkdir(exist_ok=True, parents=True)
            p.write_bytes(data)
    # What is made of other files comes back bit for bit, the rest in a new generation; (False, True): that.
    for kind in ("layer", "stats"):
        assert kinds[kind] == {(True, False)}, kind
    assert kinds["text"] == {(True, False), (False, True)}, "one held a dead document, which nobody has any more and nobody needs"
    for kind in ("page", "tree", "tombstones", "docs", "entries", "nulls"):
        assert kinds[kind] == {(False, True)}, kind


def test_a_text_that_is_nowhere_else_comes_from_the_source_which_is_asked_for_it_alone(tmp_path):
    engine = built(tmp_path)
    generation = engine.generation()
    ref, row = next(
        (ref, row) for page in generation.pages for ref in page.segments
        for row in range(ref.n_docs) if b"basalt" in bytes(generation.segment(ref).documents.content(row))
    )  # fmt: skip
    path = tmp_path / "store" / "c" / ref.files["text"].name
    data = bytearray(path.read_bytes())
    data[int(generation.segment(ref).documents.starts[row])] ^= 1
    path.write_bytes(bytes(data))
    done = mended(engine)
    assert done.reread == ["b.py"] and done.restored == [ref.files["text"].name] and done.generation is None


def test_a_document_that_is_lost_everywhere_is_taken_out_and_named(tmp_path):
    engine = built(tmp_path)
    hit = engine.search("find_basalt", layers=["bm25"]).hits[0]
    for path in (tmp_path / "store" / "c").glob("segments/*/text"):
        path.write_bytes(path.read_bytes().replace(b"basalt", b"BASALT"))
    done = mended(engine, with_source=False)
    (lost,) = done.lost
    assert (lost.hash, lost.places) == (hit.hash, (("main", "b.py"),)) and done.generation == 3
    assert engine.search("find_basalt", layers=["bm25"]).hits == []
    assert paths(engine.search("cobalt pigment", layers=["bm25"])) == ["c.txt"]
    newest = engine.generation()
    assert (newest.root.n_docs, newest.root.sources["main"].n_entries) == (2, 2)
    assert not [d for d in checked(engine).damages if 3 in d.generations]
    # The source still has it, and the tree no longer says so: the next run reads it.
    engine.index(tmp_path / "src")
    assert paths(engine.search("find_basalt", layers=["bm25"])) == ["b.py"]


def test_a_newest_root_that_cannot_be_read_is_stepped_over(tmp_path):
    engine = built(tmp_path)
    corpus_store(engine.store, "c").write(root_name(2), b"{")
    done = mended(engine)
    assert (done.stepped_over, done.generation) == ([2], 3)
    assert paths(engine.search("war", layers=["bm25"])) == ["a.txt"], "what generation 1 says"
    assert checked(engine).damages == []
    engine.index(tmp_path / "src")
    assert paths(engine.search("found again", layers=["bm25"])) == ["a.txt"]


def test_older_generations_are_healed_with_files_that_can_be_put_back(tmp_path):
    engine = built(tmp_path)
    references = References(engine.store, "c")
    only_old = set(references.files(references.root(1))) - set(references.files(references.root(2)))
    name = next(name for name in sorted(only_old) if name.startswith("pages/"))
    stats = next(name for name, kind in files_of(engine).items() if kind.startswith("stats/"))
    folder = tmp_path / "store" / "c"
    (folder / name).unlink()
    (folder / stats).unlink()
    done = mended(engine)
    assert done.restored == [stats] and done.generation is None
    (damage,) = checked(engine).damages
    assert (damage.name, damage.generations) == (name, (1,))


def test_wrong_sums_with_right_checksums_are_counted_anew(tmp_path):
    """A root whose counts are not those of its segments, as a builder with a bug would leave it."""
    engine = built(tmp_path)
    inside = corpus_store(engine.store, "c")
    data = inside.read(root_name(2))
    inside.write(root_name(2), data.replace(b'"n_docs":3,"n_entries":3,"null_version"', b'"n_docs":4,"n_entries":3,"null_version"'))
    done = mended(engine)
    assert done.generation == 3 and engine.generation().root.n_docs == 3
    assert {g for d in checked(engine).damages for g in d.generations} == {2}


def test_damaged_encodings_are_deleted(tmp_path):
    engine = built(tmp_path)
    inside = corpus_store(engine.store, "c")
    import numpy as np

    PackedEncodings(inside, "encodings/0123456789abcdef").put({bytes(20): np.ones((1, 2), np.float32)})
    (name,) = inside.list("encodings/")
    inside.write(name, inside.read(name)[:-1])
    done = mended(engine)
    assert done.removed == [name] and not inside.list("encodings/") and done.generation is None


def test_a_crash_at_any_operation_of_a_repair_leaves_what_the_next_repair_mends(tmp_path):
    base = built(tmp_path, open_store("memory://repair"), calibrate=False)
    before = paths(base.search("cobalt pigment", layers=["bm25"])), paths(base.search("found again", layers=["bm25"]))
    corpus_store(base.store, "c").delete(next(name for name, kind in files_of(base).items() if kind == "docs"))
    found = checked(base)
    for fail_at in range(1, 400):
        engine = Engine(tmp_path, store=open_store(f"memory://repair-{fail_at}"))
        for name in base.store.list():
            engine.store.write(name, base.store.read(name))
        faulty = FaultyStore(engine.store, fail_at)
        try:
            repair(faulty, "c", found, tools(engine, store=faulty))
            break
        except Crash:
            pass
        again = checked(engine)
        if any(latest_generation(engine.store, "c") in d.generations for d in again.damages):
            repair(engine.store, "c", again, tools(engine))
        assert (paths(engine.search("cobalt pigment", layers=["bm25"])), paths(engine.search("found again", layers=["bm25"]))) == before
    assert 20 < fail_at < 399


def test_a_repair_starts_over_when_somebody_published_meanwhile(tmp_path):
    from shards.errors import AlreadyExists

    engine = built(tmp_path)
    name = next(name for name, kind in files_of(engine).items() if kind == "nulls")
    found_before = checked(engine)
    corpus_store(engine.store, "c").delete(name)
    found = checked(engine)
    assert not found_before.damages
    given = tools(engine)

    def published_first(purpose):
        write_files(tmp_path / "src", {"new.txt": "Meanwhile.\n"})
        root = References(engine.store, "c").root(2)
        from shards.manifest import publish

        publish(engine.store, root.model_copy(update={"generation": 3, "parent": 2, "n_docs": root.n_docs + 1}))
        return nullcontext(None)

    given.hold = published_first
    with pytest.raises(AlreadyExists, match="Run the command again"):
        repair(engine.store, "c", found, given)
    assert hashlib.sha256(corpus_store(engine.store, "c").read(root_name(2))).hexdigest()
