"""Applying the log of pushed documents: whatever happens on the way, the index is one that was built from scratch."""

import itertools
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from engine import Engine, Patience, paths, write_files
from faults import Crash, FaultyStore
from test_encoders import save_static, word_pieces
from test_two_jobs import contents
from test_update import FILES, WORDS

from cluster.applying import Appliers
from serve.calibrate import Calibrator
from shards import pushlog
from shards.cache import FileCache
from shards.errors import BadSpec, Cancelled, Corrupt, NotFound
from shards.identity import content_hash
from shards.journal import Journal
from shards.layers.contract import Resources
from shards.layers.vectors import Static
from shards.push import Applied, Applier
from shards.pushlog import Operation, corpora_behind, dump, entry_name
from shards.renditions import render
from shards.store import Store, open_store

LAYERS = ("names", "text", "bm25")


def put(path: str, text: str, mtime_ns: int = 5, **more) -> Operation:
    rendition = render(text.encode())
    return Operation(path, rendition.hash, rendition.text, rendition.kind, len(text), mtime_ns, **more)


class Corpus:
    """A corpus that lives of pushes alone, with its journal and an applier."""

    def __init__(self, folder: Path, store: Store | None = None, layers: Sequence[str] = LAYERS, calibrate: bool = False):
        self.engine = Engine(folder, layers, store)
        self.layers = layers
        self.journal = Journal(self.engine.store.child("c"), self._applied)
        self.applier = self.new_applier(calibrate=calibrate)

    def _applied(self) -> int:
        try:
            return pushlog.applied_of(self.engine.generation().root)
        except NotFound:
            return 0

    def new_applier(self, store: Store | None = None, calibrate: bool = False) -> Applier:
        clock = Patience()
        calibrator = Calibrator() if calibrate else None
        return Applier(store or self.engine.store, "c", self.engine.cache, self.engine.resources, calibrator, clock, clock.sleep)

    def push(self, *operations: Operation) -> list[int]:
        futures = [self.journal.submit(operation, self.layers) for operation in operations]
        return [future.result(20).position for future in futures]

    def found(self, query: str, **asked) -> list[str]:
        return paths(self.engine.search(query, layers=["bm25"], **asked))


def from_scratch(folder: Path, state: dict[str, Operation]) -> tuple[dict, list]:
    """What an index holds into which only the final documents were ever pushed."""
    corpus = Corpus(folder)
    corpus.engine.store.child("c").create(entry_name(1), dump([state[path] for path in sorted(state)], 0.0, LAYERS))
    corpus.applier.apply()
    return contents(corpus.engine)


# --- what an apply does ------------------------------------------------------------------------------------------------------


def test_the_first_push_makes_the_corpus_with_the_layers_it_names(tmp_path):
    corpus = Corpus(tmp_path)
    assert corpus.applier.apply() is None
    corpus.push(put("a.txt", FILES["a.txt"]))
    assert corpus.applier.apply() == Applied(1, 1, 1)
    assert [space.name for space in corpus.engine.generation().root.spaces] == sorted(LAYERS)
    assert corpus.found("amber") == ["a.txt"]
    source = corpus.engine.generation().root.sources["pushed"]
    assert (source.url, source.n_entries, source.applied) == ("push:", 1, 1)


def test_pushes_add_replace_and_delete(tmp_path):
    corpus = Corpus(tmp_path)
    corpus.push(put("a.txt", FILES["a.txt"], metadata={"tool": "grep"}), put("c.txt", FILES["sub/c.txt"]))
    corpus.applier.apply()
    corpus.push(put("a.txt", "Amber was found again."), Operation("c.txt"), Operation("never/there"), put("d.txt", FILES["sub/c.txt"]))
    assert corpus.applier.apply().n_operations == 4
    assert corpus.found("amber again") == ["a.txt"]
    assert corpus.found("war") == []
    assert corpus.found("pigment") == ["d.txt"]
    assert corpus.engine.generation().root.n_docs == 2


def test_the_last_of_several_operations_on_a_path_counts(tmp_path):
    corpus = Corpus(tmp_path)
    corpus.push(put("a", "basalt one"), put("a", "cobalt two"), Operation("b"), put("b", "dolomite"), put("c", "ebony"), Operation("c"))
    corpus.applier.apply()
    assert [corpus.found(word) for word in ("basalt", "cobalt", "dolomite", "ebony")] == [[], ["a"], ["b"], []]


def test_what_changes_no_entry_is_applied_all_the_same(tmp_path):
    """Whoever waits for its position must see it pass."""
    corpus = Corpus(tmp_path)
    corpus.push(put("a", "basalt"))
    corpus.applier.apply()
    corpus.push(Operation("nowhere"))
    corpus.push(put("a", "basalt"))
    assert corpus.applier.apply().position == 3
    assert corpus.applier.apply() is None
    assert corpus.engine.generation().root.sources["pushed"].applied == 3


def test_metadata_is_found_by_filters(tmp_path):
    corpus = Corpus(tmp_path)
    corpus.push(put("a", "basalt", metadata={"tool": "grep", "lines": 3}), put("b", "basalt too", metadata={"tool": "web"}))
    corpus.applier.apply()
    assert corpus.found("basalt", where={"tool": "grep"}) == ["a"]
    (hit,) = corpus.engine.search("basalt", layers=["bm25"], where={"lines": 3}).hits
    assert hit.entries[0].metadata == {"tool": "grep", "lines": 3}


def test_an_emptied_corpus_is_a_corpus_still(tmp_path):
    corpus = Corpus(tmp_path)
    corpus.push(put("a", "basalt"), Operation("a"))
    corpus.applier.apply()
    assert corpus.engine.generation().root.n_docs == 0
    assert corpus.found("basalt") == []
    corpus.push(put("a", "basalt"))
    corpus.applier.apply()
    assert corpus.found("basalt") == ["a"]


def test_much_is_applied_in_steps(tmp_path, monkeypatch):
    monkeypatch.setattr("shards.push.APPLY_OPERATIONS", 2)
    corpus = Corpus(tmp_path)
    for i in range(5):
        corpus.push(put(f"{i}", f"basalt {i}"))
    assert [corpus.applier.apply().position for _ in range(3)] == [2, 4, 5]
    assert len(corpus.found("basalt")) == 5


def test_pushes_and_an_index_job_do_not_touch_each_others_documents(tmp_path):
    corpus = Corpus(tmp_path)
    source = write_files(tmp_path / "src", FILES)
    corpus.engine.index(source)
    corpus.push(put("a.txt", "Amber of a push"), put("copied.txt", FILES["copy.txt"]))
    corpus.applier.apply()
    (source / "a.txt").write_text("Nothing of it any more.\n")
    (source / "copy.txt").unlink()
    corpus.engine.index(source)
    assert corpus.found("amber") == ["a.txt"]
    (hit,) = corpus.engine.search("pigment", layers=["bm25"]).hits
    assert [(e.source, e.path) for e in hit.entries] == [("main", "sub/c.txt"), ("pushed", "copied.txt")]
    corpus.push(Operation("a.txt"), Operation("copied.txt"))
    corpus.applier.apply()
    assert (corpus.found("amber"), corpus.found("pigment")) == ([], ["sub/c.txt"])
    assert corpus.engine.generation().root.sources["pushed"].n_entries == 0


def test_an_index_job_cannot_take_the_source_of_pushed_documents(tmp_path):
    with pytest.raises(BadSpec, match="Give another with --source-name"):
        Engine(tmp_path).index(write_files(tmp_path / "src", FILES), source_name="pushed")


def test_many_pushes_leave_few_segments(tmp_path):
    corpus = Corpus(tmp_path)
    state = {}
    for i in range(40):
        operation = put(f"{i % 30}.txt", f"{WORDS[i % len(WORDS)]} {WORDS[i % 7]} number {i}")
        state[operation.path] = operation
        corpus.push(operation)
        corpus.applier.apply()
        corpus.applier.merge(1 << 20)
    assert len(corpus.engine.generation().pages[0].segments) < 8
    assert contents(corpus.engine) == from_scratch(tmp_path / "scratch", state)


# --- dear spaces -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def dear(tmp_path, monkeypatch) -> str:
    """A vector space that is taken to be dear, so that no transformer is needed here."""
    monkeypatch.setattr(Static, "dear", True)
    return f"dense=static:model={save_static(tmp_path / 'model', word_pieces())}"


def test_a_dear_space_is_filled_afterwards_and_coverage_says_so_until_then(tmp_path, dear):
    corpus = Corpus(tmp_path, layers=("bm25", dear), calibrate=True)
    corpus.push(put("a.txt", FILES["a.txt"]), put("c.txt", FILES["sub/c.txt"]))
    corpus.applier.apply()
    answer = corpus.engine.search("amber room")
    assert paths(answer) == ["a.txt"] and not answer.complete
    assert [(c.layer, c.state, c.covered, c.total) for c in answer.coverage] == [("bm25", "ready", 2, 2), ("dense", "absent", 0, 2)]
    assert corpus.applier.settle() == 2
    answer = corpus.engine.search("amber room")
    assert answer.complete
    assert [(c.layer, c.state, c.covered) for c in answer.coverage] == [("bm25", "ready", 2), ("dense", "ready", 2)]
    assert corpus.engine.generation().nulls is not None
    assert corpus.applier.settle() is None


def test_a_space_that_this_machine_cannot_make_is_left_to_others(tmp_path, dear, monkeypatch):
    corpus = Corpus(tmp_path, layers=("bm25", dear))
    corpus.push(put("a.txt", FILES["a.txt"]))
    corpus.applier.apply()
    monkeypatch.setattr(Static, "fingerprint", lambda self: "another model's")
    poor = corpus.new_applier()
    corpus.push(put("b.txt", "basalt"))
    assert poor.apply().position == 2
    assert poor.settle() is None
    assert corpus.found("basalt") == ["b.txt"]


def test_an_applier_that_is_stopped_ends_and_another_finishes_its_work(tmp_path, dear):
    corpus = Corpus(tmp_path, layers=("bm25", dear))
    corpus.push(put("a.txt", FILES["a.txt"]))
    corpus.applier.apply()
    corpus.applier.stop()
    with pytest.raises(Cancelled):
        corpus.applier.settle()
    assert corpus.new_applier().settle() == 2


def test_settling_beside_pushes_ends_and_loses_none_of_them(tmp_path, dear):
    corpus = Corpus(tmp_path, layers=("bm25", dear))
    appliers = Appliers(corpus.engine.store, corpus.engine.cache, corpus.engine.resources, Calibrator())
    corpus.push(*(put(f"{i}", f"{WORDS[i % 16]} {i}") for i in range(30)))
    appliers.apply("c")
    done = threading.Event()
    errors: list[BaseException] = []

    def settle() -> None:
        try:
            appliers.settle("c")
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=settle)
    thread.start()
    n = 0
    while not done.is_set() or n < 5:
        corpus.push(put(f"beside/{n}", f"garnet beside {n}"))
        appliers.apply("c")
        n += 1
    thread.join(60)
    assert not errors
    appliers.settle("c")
    answer = corpus.engine.search("garnet beside", k=1000, layers=["bm25", "dense"])
    assert answer.complete
    assert {h.entries[0].path for h in answer.hits if h.entries[0].path.startswith("beside")} == {f"beside/{i}" for i in range(n)}


# --- death -------------------------------------------------------------------------------------------------------------------

BEFORE = [put("a.txt", FILES["a.txt"]), put("c.txt", FILES["sub/c.txt"]), put("copy.txt", FILES["copy.txt"])]
AFTER = [put("a.txt", "Amber was found again."), Operation("copy.txt"), put("new.txt", "garnet and onyx")]
STATE = {o.path: o for o in (AFTER[0], BEFORE[1], AFTER[2])}


def test_a_crash_at_any_store_operation_loses_nothing(tmp_path):
    def begin(folder: Path, store: Store | None = None) -> Corpus:
        corpus = Corpus(folder, store)
        corpus.push(*BEFORE)
        corpus.applier.apply()
        corpus.push(*AFTER)
        return corpus

    expected = from_scratch(tmp_path / "scratch", STATE)
    for fail_at in itertools.count(1):
        crashed = 0
        for after in (False, True):
            corpus = begin(tmp_path / "one", open_store(f"memory://push-{fail_at}-{after}-{tmp_path.name}"))
            try:
                corpus.new_applier(FaultyStore(corpus.engine.store, fail_at, after)).apply()
            except Crash:
                crashed += 1
                corpus.new_applier().apply()
            assert contents(corpus.engine) == expected, (fail_at, after)
        if not crashed:  # it takes no more operations than that
            break
    assert fail_at > 20


def test_two_appliers_on_one_log_end_well(tmp_path):
    """As two servers over one store do."""
    rng = random.Random(3)
    corpus = Corpus(tmp_path)
    state: dict[str, Operation] = {}
    stop = threading.Event()
    errors: list[BaseException] = []

    def apply() -> None:
        applier = Applier(corpus.engine.store, "c", corpus.engine.cache, corpus.engine.resources)
        try:
            while True:
                last_look = stop.is_set()
                while applier.apply() is not None:
                    applier.merge(1 << 20)
                if last_look:
                    return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=apply) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(40):
        operation = random_operation(rng, i)
        corpus.push(operation)
        state[operation.path] = operation
    stop.set()
    for thread in threads:
        thread.join(120)
    assert not errors
    assert corpus.engine.generation().root.sources["pushed"].applied == 40
    assert contents(corpus.engine) == from_scratch(tmp_path / "scratch", {p: o for p, o in state.items() if o.hash})


def random_operation(rng: random.Random, i: int) -> Operation:
    path = f"{rng.choice('abc')}/{rng.randrange(6)}.txt"
    if rng.random() < 0.25:
        return Operation(path, mtime_ns=i)
    return put(path, " ".join(rng.choices(WORDS, k=rng.randrange(1, 12))), i, metadata={"n": i % 3} if rng.random() < 0.5 else {})


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_of_pushes_equal_an_index_from_scratch(tmp_path, seed):
    """Puts, deletes, copies, applies, merges, crashes at any operation, in any order; several journals; print the seed, it says all."""
    rng = random.Random(seed)
    corpus = Corpus(tmp_path, open_store(f"memory://push-history-{seed}-{tmp_path.name}"))
    state: dict[str, Operation] = {}
    for i in range(30):
        step = rng.random()
        if step < 0.6:
            operation = random_operation(rng, i)
            state[operation.path] = operation
            corpus.push(operation)
        elif step < 0.65:
            corpus.journal = Journal(corpus.engine.store.child("c"), corpus._applied)
        elif step < 0.75:
            dying = corpus.new_applier(FaultyStore(corpus.engine.store, rng.randrange(1, 40), rng.random() < 0.5))
            try:
                dying.apply()
                dying.merge()
            except Crash:
                corpus.applier = corpus.new_applier()
        elif step < 0.85:
            corpus.applier.merge()
        else:
            corpus.applier.apply()
    corpus.push(put("last", "pyrite", 99))
    state["last"] = put("last", "pyrite", 99)
    corpus.new_applier().apply()
    assert contents(corpus.engine) == from_scratch(tmp_path / "scratch", {p: o for p, o in state.items() if o.hash})


# --- what is wrong -----------------------------------------------------------------------------------------------------------


def test_a_damaged_entry_stops_the_log_until_it_is_taken_out(tmp_path):
    corpus = Corpus(tmp_path)
    corpus.push(put("a", "basalt"))
    corpus.applier.apply()
    store = corpus.engine.store.child("c")
    corpus.push(put("b", "cobalt"))
    corpus.push(put("c", "dolomite"))
    store.write(entry_name(2), store.read(entry_name(2))[:-1])
    with pytest.raises(Corrupt, match="after entry 1 gets into the index"):
        corpus.applier.apply()
    assert corpus.found("basalt") == ["a"]
    pushlog.take_out(store, 2)
    assert corpus.applier.apply().position == 3
    assert [corpus.found(word) for word in ("cobalt", "dolomite")] == [[], ["c"]]


def test_layers_that_do_not_exist_are_named(tmp_path):
    corpus = Corpus(tmp_path, layers=("bm26",))
    corpus.push(put("a", "basalt"))
    with pytest.raises(BadSpec, match="Unknown layer 'bm26'"):
        corpus.applier.apply()


def test_corpora_whose_log_is_ahead_are_found_new_ones_among_them(tmp_path):
    store = open_store(tmp_path / "store")
    engine = Engine(tmp_path, LAYERS, store)
    store.write("~no-corpus/x", b"")
    engine.index(write_files(tmp_path / "src", FILES), "indexed")
    assert corpora_behind(store) == []
    Journal(store.child("fresh"), lambda: 0).append(put("a", "basalt"), LAYERS)
    Journal(store.child("indexed"), lambda: 0).append(put("a", "basalt"))
    assert corpora_behind(store) == ["fresh", "indexed"]
    for name in ("fresh", "indexed"):
        Applier(store, name, FileCache(tmp_path / "cache", 1 << 30), Resources()).apply()
    assert corpora_behind(store) == []


# --- callers' own vectors ----------------------------------------------------------------------------------------------------


def test_callers_own_vectors_come_through_the_log(tmp_path):
    from shards.given import identity

    corpus = Corpus(tmp_path, layers=("bm25", "mine=vectors:dim=3"))

    def own(path: str, text: str, *rows: tuple[float, ...]) -> Operation:
        vectors = {"mine": np.array(rows, np.float32)}
        return put(path, text, vectors=vectors) if not rows else _with_vectors(path, text, vectors)

    def _with_vectors(path: str, text: str, vectors: dict) -> Operation:
        key = identity(content_hash(text.encode()), vectors)
        return Operation(path, key, text.encode(), "prose:english", len(text), 5, vectors=vectors)

    corpus.push(own("a", "basalt", (1, 0, 0)), own("b", "cobalt", (0, 1, 0), (0, 0, 1)), put("c", "no vector"))
    corpus.applier.apply()
    form = {"mine": {"vector": [0, 0, 1]}}
    (hit, *_) = corpus.engine.search(forms=form, keep_all=True).hits
    assert hit.entries[0].path == "b"
    corpus.push(own("b", "cobalt", (1, 0, 0)))
    corpus.applier.apply()
    scores = {h.entries[0].path: h.signals[0].score for h in corpus.engine.search(forms=form, keep_all=True).hits}
    assert scores.get("b", 0.0) <= 1e-6


# --- on S3 -------------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_a_log_on_s3_is_one_order_for_all_and_is_applied(s3_server, tmp_path):
    store = open_store(f"s3://{s3_server.bucket()}/index", **s3_server.options)
    corpus = Corpus(tmp_path, store)
    other = Journal(store.child("c"), lambda: 0)
    futures = [journal.submit(put(f"{i}", f"garnet {i}", id=f"{i}"), LAYERS) for i in range(6) for journal in (corpus.journal, other)]
    receipts = [future.result(60) for future in futures]
    assert sum(not receipt.repeated for receipt in receipts) == 6
    while corpus.applier.apply() is not None:
        pass
    assert len(corpus.found("garnet")) == 6
    corpus.push(Operation("0"))
    assert corpus.applier.apply().n_operations == 1
    assert len(corpus.found("garnet")) == 5
