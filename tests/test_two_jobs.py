"""Index jobs that meet one another or die: whatever happens, the result is that of one run after the other, from scratch."""

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from engine import Engine, write_files
from faults import Crash, FaultyStore
from job_process import CONTEXT, start
from test_encoders import save_static, word_pieces
from test_update import FILES, WORDS, edit_at_random, random_files

from jobs.pool import LocalPool
from shards import manifest
from shards.corpus import Listed, Opener, Source
from shards.encodings import PackedEncodings
from shards.errors import NotFound, StoreError
from shards.layers.contract import Request
from shards.manifest import latest_generation
from shards.plan import Everything, Plan
from shards.segment import unpack_entry
from shards.staging import Staging
from shards.store import Store, open_store
from shards.types import Budget

QUERIES = [" ".join(pair) for pair in zip(WORDS[::2], WORDS[1::2], strict=True)] + ["a/x", "xyz/1"]
LAYERS = "names,text,bm25"


def command(tmp_path: Path, source: Path, *more: str) -> list[str]:
    return ["--corpus", "c", "--source", str(source), "--store", str(tmp_path / "store"), "--layers", LAYERS, "--allow-shrink", *more]


def contents(engine: Engine) -> tuple[dict, list]:
    """What an index holds, however it came about: raw scores and spans of every query in every space, and all entries.

    Raw scores, because null models are fitted only when much has changed.
    """
    generation = engine.generation()
    found = {}
    for text in QUERIES:
        asked = [
            replace(query, space=name)
            for name, space in sorted(generation.spaces.items())
            if (query := space.layer.prepare(Request(text), generation.statistics(name))) is not None
        ]
        for ref in generation.root.shards:
            hits = generation.shard(ref.shard).search(Plan(Everything(), tuple(asked), n_candidates=1000), Budget(60))
            assert {status.state for status in hits.status} <= {"ready", "scoped"}
            for row, key in enumerate(hits.hashes):
                scores = np.nan_to_num(hits.scores[row], nan=-1)  # not in the space's scope; nan differs from itself
                found[text, key.tobytes()] = (scores.tolist(), hits.starts[row].tolist(), hits.ends[row].tolist())
    views = [view for ref in generation.root.shards for view in generation.shard(ref.shard).views]
    entries = [unpack_entry(v.segment.entries, row) for v in views for row in np.flatnonzero(v.live_entries).tolist()]
    documents = [v.segment.documents.hashes[row].tobytes() for v in views for row in np.flatnonzero(v.live_docs).tolist()]
    assert sorted(documents) == sorted({entry.hash for entry in entries})  # each once
    assert (generation.root.n_docs, generation.root.n_entries) == (len(documents), len(entries))
    return found, sorted((e.source, e.path, e.hash, e.size_bytes, e.mtime_ns) for e in entries)


def from_scratch(folder: Path, *sources: tuple[str, Path], layers: Sequence[str] = tuple(LAYERS.split(","))) -> tuple[dict, list]:
    """What an index holds that was built by one run a source, one after the other."""
    engine = Engine(folder, layers)
    for name, source in sources:
        engine.index(source, source_name=name, calibrate=False, allow_shrink=True)
    return contents(engine)


def leftovers(store: Store) -> list[str]:
    return store.child("c").list("staging/")


# --- two at once -------------------------------------------------------------------------------------------------------------


def test_two_processes_on_one_source_end_well_and_leave_what_one_would(tmp_path):
    rng = random.Random(7)
    source = write_files(tmp_path / "src", random_files(rng, 40))
    engine = Engine(tmp_path)
    for round_ in range(4):
        barrier = CONTEXT.Barrier(2)
        jobs = [start(command(tmp_path, source), str(tmp_path / "cache"), barrier) for _ in range(2)]
        for job in jobs:
            job.join(60)
        assert [job.exitcode for job in jobs] == [0, 0]
        assert contents(engine) == from_scratch(tmp_path / f"scratch{round_}", ("main", source))
        assert leftovers(engine.store) == []
        edit_at_random(rng, source)


def test_two_processes_on_two_sources_both_get_in(tmp_path):
    rng = random.Random(8)
    sources = {name: write_files(tmp_path / name, random_files(rng, 30)) for name in ("one", "two")}
    engine = Engine(tmp_path)
    for round_ in range(3):
        barrier = CONTEXT.Barrier(2)
        jobs = [
            start(command(tmp_path, source, "--source-name", name), str(tmp_path / "cache"), barrier) for name, source in sources.items()
        ]
        for job in jobs:
            job.join(60)
        assert [job.exitcode for job in jobs] == [0, 0]
        assert contents(engine) == from_scratch(tmp_path / f"scratch{round_}", *sources.items())
        assert leftovers(engine.store) == []
        for source in sources.values():
            edit_at_random(rng, source)


def just_before(monkeypatch: pytest.MonkeyPatch, moment: str, act: Callable[[], object]) -> None:
    """Do something once, just before a run stages, builds or publishes."""
    done = []

    def once() -> None:
        if not done:
            done.append(True)
            act()

    real_run, real_publish = LocalPool.run, manifest.publish

    def run(self, method, tasks):
        if method == moment:
            once()
        return real_run(self, method, tasks)

    def publish(store, root):
        if moment == "publish":
            once()
        real_publish(store, root)

    monkeypatch.setattr(LocalPool, "run", run)
    monkeypatch.setattr(manifest, "publish", publish)


@pytest.mark.parametrize("moment", ["stage", "build", "publish"])
@pytest.mark.parametrize("begun", [False, True], ids=["new", "known"])
def test_a_run_that_is_overtaken_by_another_of_its_source_finds_nothing_left_to_do(moment, begun, tmp_path, monkeypatch):
    """Both read the same files under the same names; the one that overtakes publishes and takes the staging files away."""
    source = write_files(tmp_path / "src", FILES)
    engine, other = Engine(tmp_path), Engine(tmp_path)
    if begun:
        engine.index(source)
        (source / "a.txt").write_text("Amber was found again.\n")
    just_before(monkeypatch, moment, lambda: other.index(source))
    outcome = engine.index(source)
    fenced = begun and moment == "publish"  # the other waits until the lease of the stalled one ends, and fences before it publishes
    assert (outcome.changed, outcome.generation) == (False, 1 + begun + fenced)
    assert contents(engine) == from_scratch(tmp_path / "scratch", ("main", source))
    assert leftovers(engine.store) == []


@pytest.mark.parametrize("moment", ["stage", "build", "publish"])
def test_a_run_that_is_overtaken_by_one_of_another_source_adds_its_own(moment, tmp_path, monkeypatch):
    one = write_files(tmp_path / "one", FILES)
    two = write_files(tmp_path / "two", {"d.txt": "Dolomite and amber.\n", "copy.txt": FILES["a.txt"]})
    engine, other = Engine(tmp_path), Engine(tmp_path)
    just_before(monkeypatch, moment, lambda: other.index(two, source_name="two"))
    outcome = engine.index(one, source_name="one")
    assert (outcome.changed, outcome.generation, outcome.added) == (True, 2, 4)
    assert outcome.hashed + outcome.resumed == 4
    assert contents(engine) == from_scratch(tmp_path / "scratch", ("one", one), ("two", two))


def test_a_run_that_finishes_leaves_the_staging_files_of_another_alone(tmp_path, monkeypatch):
    one, two = write_files(tmp_path / "one", FILES), write_files(tmp_path / "two", {"d.txt": "Dolomite.\n"})
    engine, other = Engine(tmp_path), Engine(tmp_path)
    kept = []

    def overtake() -> None:
        before = leftovers(engine.store)
        other.index(two, source_name="two")
        kept.append((before, leftovers(engine.store)))

    just_before(monkeypatch, "build", overtake)
    engine.index(one, source_name="one")
    ((before, after),) = kept
    assert len(before) == 2 and after == before
    assert leftovers(engine.store) == []


def test_leftovers_are_swept_after_a_day_and_not_before(tmp_path):
    store = open_store(tmp_path)
    begun = datetime(2026, 7, 30, 12, 0, 0, tzinfo=UTC).timestamp()
    file = (Listed("a.txt", 3, 1),)
    (task,) = Staging(store, begun).tasks(Source("main", "/src"), file, 100)
    assert task.name.startswith("staging/20260730T120000-")
    for ending in (".json", ".pack"):
        store.write(task.name + ending, b"{}")
    Staging(store, begun + 86_399).sweep()
    assert len(store.list("staging/")) == 2
    (again,) = Staging(store, begun + 60).tasks(Source("main", "/src"), file, 100)
    assert again.name == task.name  # found by a later run
    (changed,) = Staging(store, begun + 60).tasks(Source("main", "/src"), (Listed("a.txt", 3, 2),), 100)
    assert changed.name.startswith("staging/20260730T120100-")
    Staging(store, begun + 86_401).sweep()
    assert store.list("staging/") == []


@pytest.mark.parametrize("harm", [lambda pack: pack.write_bytes(pack.read_bytes()[:-20]), Path.unlink, lambda pack: pack.write_bytes(b"")])
def test_a_staging_file_that_is_spoilt_is_read_anew(harm, tmp_path):
    source = write_files(tmp_path / "src", FILES)
    with pytest.raises(Crash):
        Engine(tmp_path, store=Dying(open_store(tmp_path / "store"))).index(source)
    (pack,) = (tmp_path / "store/c/staging").glob("*.pack")
    harm(pack)
    outcome = Engine(tmp_path).index(source)
    assert (outcome.changed, outcome.hashed) == (True, 4)


# --- one that dies -----------------------------------------------------------------------------------------------------------


def test_a_job_killed_at_random_moments_loses_nothing_and_searches_go_on(tmp_path):
    seed = 11
    print("seed", seed)
    rng = random.Random(seed)
    source = write_files(tmp_path / "src", random_files(rng, 40))
    engine = Engine(tmp_path)
    arguments, cache = command(tmp_path, source, "--shards", "2"), str(tmp_path / "cache")

    def measured() -> float:
        begun = time.perf_counter()
        job = start([*arguments, "--corpus", "measured"], cache)
        job.join(60)
        assert job.exitcode == 0
        return time.perf_counter() - begun

    start(["--help"], cache).join()  # starts the fork server
    seconds_whole = measured()
    (source / "new.txt").write_text("Amber and onyx.\n")
    seconds_edit = measured()

    generation, before, fates = None, None, []
    for kill in range(15):
        job = start(arguments, cache)
        job.join(60 if kill == 4 else rng.uniform(0, seconds_whole if generation is None else 1.2 * seconds_edit))
        job.kill()
        job.join()
        fates.append("done" if job.exitcode == 0 else "killed")
        now = published(engine)
        if now is None:
            with pytest.raises(NotFound, match="No corpus 'c'"):
                engine.search("amber")
        elif now == generation:
            assert engine.search(WORDS[kill]).complete
            assert contents(engine) == before  # the last generation, whole
        else:
            generation, before = now, contents(engine)
            assert before == from_scratch(tmp_path / f"scratch{kill}", ("main", source))
            edit_at_random(rng, source)
    print(fates, "seconds", seconds_whole, seconds_edit)
    assert fates.count("killed") >= 3
    job = start(arguments, cache)
    job.join(60)
    assert job.exitcode == 0
    assert contents(engine) == from_scratch(tmp_path / "scratch", ("main", source))


def published(engine: Engine) -> manifest.Root | None:
    """What the newest generation says, but for its number: a fence says what the one before it says."""
    number = latest_generation(engine.store, "c")
    same = {"generation": 1, "parent": None, "created": "2026-01-01T00:00:00Z", "epoch": 0}
    return manifest.read_root(engine.store, "c", number).model_copy(update=same) if number else None


class Dying(FaultyStore):
    """A store whose user dies when about to publish."""

    def create(self, name, data):
        raise Crash(f"before {name}")

    def child(self, folder):
        return Dying(self.inner.child(folder))


class Flaky(FaultyStore):
    """A store of which some operations fail, before they are done or after. chance: of each; rng: shared by its folders."""

    chance, rng = 0.0, random.Random()

    def _perform(self, method, name, *arguments):
        fails, before = self.rng.random() < self.chance, self.rng.random() < 0.5
        if fails and before:
            raise StoreError(f"Cannot {method} {name!r}: it is one of those days.")
        result = super()._perform(method, name, *arguments)
        if fails:
            raise StoreError(f"Cannot tell whether {method} {name!r} was done.")
        return result

    def child(self, folder):
        child = super().child(folder)
        inner = Flaky(child.inner)
        inner.chance, inner.rng, inner.operations, inner._folder = self.chance, self.rng, child.operations, child._folder
        return inner


@pytest.mark.parametrize("layers", [LAYERS.split(","), ["names", "bm25", "second=bm25:k1=2@a/**", "third=names@**/x/**"]])
def test_after_failures_of_the_store_edits_and_other_shards_all_is_as_from_scratch(layers, tmp_path):
    seed = len(layers)
    print("seed", seed)
    rng = random.Random(seed)
    sources = {name: write_files(tmp_path / name, random_files(rng, 15)) for name in ("one", "two")}
    flaky = Flaky(open_store(tmp_path / "store"))
    flaky.rng = random.Random(seed)
    failures = 0
    for step in range(16):
        flaky.chance = rng.choice([0, 0, 0.04]) if step % 8 < 7 else 0
        for name in rng.sample(sorted(sources), 2):
            n_shards = rng.choice([None, 1, 3, 7])
            try:
                Engine(tmp_path, layers, flaky).index(
                    sources[name], source_name=name, n_shards=n_shards, calibrate=False, allow_shrink=True
                )
            except StoreError:
                failures += 1
        if step % 8 == 7:
            scratch = from_scratch(tmp_path / f"scratch{step}", *sources.items(), layers=layers)
            assert contents(Engine(tmp_path, layers)) == scratch
        edit_at_random(rng, sources[rng.choice(sorted(sources))])
    assert failures >= 1


@pytest.fixture
def static(tmp_path) -> str:
    """The spec of a static space with a tiny model."""
    return f"static:model={save_static(tmp_path / 'model', word_pieces())}"


def test_a_run_that_died_before_publishing_is_taken_up_without_reading_or_encoding_again(static, tmp_path, monkeypatch):
    source = write_files(tmp_path / "src", random_files(random.Random(3), 30))
    read: list[str] = []
    real = Opener.read
    monkeypatch.setattr(Opener, "read", lambda self, path: read.append(path) or real(self, path))
    layers = ("names", "text", static)
    with pytest.raises(Crash):
        Engine(tmp_path, layers, Dying(open_store(tmp_path / "store"))).index(source, n_shards=3)
    assert len(read) == 30
    outcome = Engine(tmp_path, layers).index(source, n_shards=2)  # another number of shards takes the same files
    assert len(read) == 30
    assert (outcome.hashed, outcome.resumed, outcome.size_bytes) == (0, 30, 0)
    assert (outcome.encoded["static"], outcome.reused["static"]) == (0, 30)


def test_only_what_changed_since_a_run_died_is_read(static, tmp_path):
    source = write_files(tmp_path / "src", {f"{i:04}.txt": f"{WORDS[i % 16]} {i}\n" for i in range(600)})
    layers = ("names", static)
    with pytest.raises(Crash):
        Engine(tmp_path, layers, Dying(open_store(tmp_path / "store"))).index(source)
    (source / "0599.txt").write_text("Amber was found again.\n")
    outcome = Engine(tmp_path, layers).index(source)
    assert (outcome.hashed, outcome.resumed) == (88, 512)  # its portion of files, and the other
    assert (outcome.encoded["static"], outcome.reused["static"]) == (1, 599)


def test_many_small_updates_do_not_leave_many_packs_of_encodings(static, tmp_path):
    source = write_files(tmp_path / "src", {f"{i}.txt": f"{WORDS[i % 16]} number {i}\n" for i in range(200)})
    engine = Engine(tmp_path, (static,))
    engine.index(source, n_shards=64, calibrate=False)  # one pack a shard
    corpus = engine.store.child("c")
    counts = [len(corpus.list("encodings/"))]
    assert 50 < counts[0] <= 64
    while len(counts) < 3 or counts[-1] > counts[-2]:
        write_files(source, {f"{200 + len(counts)}.txt": f"onyx {len(counts)}\n"})
        assert engine.index(source, n_shards=64, calibrate=False).encoded == {"static": 1}
        counts.append(len(corpus.list("encodings/")))
    assert max(counts) == 64 and counts[-1] == 32
    generation = engine.generation()
    views = [view for number in range(64) for view in generation.shard(number).views]
    hashes = np.concatenate([view.segment.documents.hashes for view in views])
    kept = PackedEncodings(corpus, f"encodings/{generation.spaces['static'].id}").get(hashes)
    assert len(kept) == len(hashes) == 200 + len(counts) - 1  # nothing was lost


def test_files_written_just_now_are_looked_at_again_until_their_clock_can_be_trusted(tmp_path):
    source = write_files(tmp_path / "src", FILES)
    engine = Engine(tmp_path)
    engine.index(source)
    again = engine.index(source)
    assert (again.hashed, again.changed) == (4, False)
    past = time.time() - 60
    for path in source.rglob("*.*"):
        os.utime(path, (past, past))
    engine.index(source)
    settled = engine.index(source)
    assert (settled.hashed, settled.changed) == (0, False)
