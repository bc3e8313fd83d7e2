"""From a change to a generation, for a caller that is no index job: pushed documents, cheap spaces now and the others later."""

from pathlib import Path

import pytest
from engine import Engine, paths, write_files
from test_encoders import save_static, word_pieces

from jobs.pool import LocalPool, WorkerSettings
from shards.delta import Change
from shards.documents import Documents
from shards.drafts import Draft, SourceChange, Tally, buildable, replace_rows, specs_of
from shards.lease import Lease, hold
from shards.manifest import Root
from shards.renditions import render
from shards.tree import TreeRow
from shards.worker import Worker
from shards.writing import Writer


def writer_of(engine: Engine) -> Writer:
    def executor(store, specs):
        return LocalPool(WorkerSettings(store.url, {}, engine.folder / "cache", 1 << 30, specs, engine.resources))

    return Writer(engine.store, "c", engine.cache, engine.resources, executor)


def push(writer: Writer, texts: dict[str, str], deletes: tuple[str, ...] = (), applied: int = 1, build=None) -> tuple[Root, Tally]:
    """What applying some entries of a log comes to."""
    parent = writer.newest()
    before = parent.root.sources.get("pushed")
    documents, rows = {}, []
    for path, text in texts.items():
        rendition = render(text.encode())
        documents[rendition.hash] = (rendition.hash, rendition.text, rendition.kind)
        rows.append(TreeRow(path, rendition.hash.hex(), len(text), 0))
    pack = writer.staging.keep(Documents.pack(documents.values()))
    change = replace_rows(writer.store, "pushed", before.tree if before else None, rows, deletes)
    source = SourceChange("pushed", "push:", change, applied=applied)
    draft = Draft(specs_of(parent.root), (source,), dict.fromkeys(documents, pack), build=build)
    tally = Tally()
    root = writer.commit(parent, draft, tally)
    writer.tidy()
    return root, tally


@pytest.fixture
def source(tmp_path) -> Path:
    return write_files(tmp_path / "src", {"a.txt": "Amber and basalt.\n", "b.txt": "Cobalt is blue.\n"})


def test_pushed_documents_are_found_beside_listed_ones_and_an_index_job_leaves_them_alone(source, tmp_path):
    engine = Engine(tmp_path)
    engine.index(source)
    writer = writer_of(engine)
    root, tally = push(writer, {"notes/one": "Dolomite is grey.\n", "notes/two": "Cobalt is blue.\n"}, applied=7)
    assert (root.generation, root.sources["pushed"].applied, root.sources["pushed"].n_entries) == (2, 7, 2)
    assert tally.documents_added == 1  # the other text was there
    (hit,) = engine.search("cobalt", layers=["bm25"]).hits
    assert [(e.source, e.path) for e in hit.entries] == [("main", "b.txt"), ("pushed", "notes/two")]
    (source / "a.txt").unlink()
    engine.index(source)
    assert paths(engine.search("dolomite", layers=["bm25"])) == ["notes/one"]
    root, tally = push(writer, {"notes/one": "Ebony is black.\n"}, ("notes/two",), applied=9)
    assert (tally.documents_added, tally.documents_removed) == (1, 1)
    assert paths(engine.search("ebony", layers=["bm25"])) == ["notes/one"]
    assert engine.search("dolomite", layers=["bm25"]).hits == []
    assert paths(engine.search("cobalt", layers=["bm25"])) == ["b.txt"]
    assert root.sources["pushed"].n_entries == 1
    writer.close()


def test_a_push_builds_only_the_spaces_it_is_told_to_and_the_next_job_fills_the_others(source, tmp_path):
    static = f"static:model={save_static(tmp_path / 'model', word_pieces())}"
    engine = Engine(tmp_path, ("text", "bm25", static))
    engine.index(source)
    writer = writer_of(engine)
    before = engine.generation()
    (old,) = before.pages[0].segments
    _, tally = push(writer, {"p": "Dolomite is grey.\n"}, build=frozenset({"text", "bm25"}))
    assert tally.encoded == {"text": 0, "bm25": 0}
    kept, new = engine.generation().pages[0].segments
    assert kept == old and set(new.spaces) == {"text", "bm25"}
    assert paths(engine.search("dolomite", layers=["bm25"])) == ["p"]
    outcome = engine.index(source, layers=())
    assert outcome.changed and (outcome.added, outcome.removed, outcome.encoded["static"]) == (0, 0, 1)
    assert all(set(ref.spaces) == {"text", "bm25", "static"} for ref in engine.generation().pages[0].segments)
    assert old in engine.generation().pages[0].segments  # what had everything stays as it is
    assert not engine.index(source, layers=()).changed
    writer.close()


def before_the_lease(monkeypatch, act) -> None:
    """Do something once, when a writer has built everything and is about to take the lease."""
    done, real = [], Writer.lease

    def lease(self):
        if not done:
            done.append(True)
            act()
        return real(self)

    monkeypatch.setattr(Writer, "lease", lease)


def test_a_job_that_is_overtaken_by_a_push_keeps_what_it_built(source, tmp_path, monkeypatch):
    engine, other = Engine(tmp_path), writer_of(Engine(tmp_path))
    engine.index(source)
    write_files(source, {"c.txt": "Ebony and garnet.\n"})
    built = []
    real = Worker.build
    monkeypatch.setattr(Worker, "build", lambda self, task, *rest: built.append(task) or real(self, task, *rest))
    before_the_lease(monkeypatch, lambda: push(other, {"p": "Dolomite is grey.\n"}))
    outcome = engine.index(source)
    assert (outcome.generation, outcome.added, outcome.documents_added) == (3, 1, 1)
    assert len(built) == 2  # the job's segment and that of the push, each once
    assert paths(engine.search("ebony", layers=["bm25"])) == ["c.txt"]
    assert paths(engine.search("dolomite", layers=["bm25"])) == ["p"]
    other.close()


def test_a_job_that_is_overtaken_by_a_push_of_the_same_text_adds_an_entry_and_no_second_document(source, tmp_path, monkeypatch):
    engine, other = Engine(tmp_path), writer_of(Engine(tmp_path))
    engine.index(source)
    write_files(source, {"c.txt": "Ebony and garnet.\n"})
    before_the_lease(monkeypatch, lambda: push(other, {"p": "Ebony and garnet.\n"}))
    outcome = engine.index(source)
    assert (outcome.generation, outcome.added, outcome.documents_added) == (3, 1, 0)
    (hit,) = engine.search("ebony", layers=["bm25"]).hits
    assert [(e.source, e.path) for e in hit.entries] == [("main", "c.txt"), ("pushed", "p")]
    assert engine.generation().root.n_docs == 3
    other.close()


@pytest.mark.parametrize("kind", ["segments", "trees", "tombstones"])
def test_what_was_collected_between_building_and_publishing_is_made_again(kind, source, tmp_path, monkeypatch):
    """A collector takes the lease and deletes whatever no generation refers to, under the hands of a run."""
    engine = Engine(tmp_path)
    engine.index(source)
    (source / "a.txt").write_text("Ebony and garnet.\n")
    inside = engine.store.child("c")
    known = set(inside.list())

    def collect() -> None:
        with hold(engine.store, "c", "a collector") as held:
            held.renew()
            news = [name for name in inside.list(f"{kind}/") if name not in known]
            assert news
            for name in news:
                inside.delete(name)

    before_the_lease(monkeypatch, collect)
    outcome = engine.index(source)
    assert (outcome.generation, outcome.added, outcome.removed) == (2, 1, 1)
    assert paths(engine.search("ebony", layers=["bm25"])) == ["a.txt"]
    assert engine.index(source, layers=()).generation == 2


def test_a_writer_that_stalled_under_the_lease_publishes_nothing_and_starts_over(source, tmp_path, monkeypatch):
    """It holds the lease, sleeps past its end, and wakes up to create a number that the fence of another has taken."""
    engine, other = Engine(tmp_path), Engine(tmp_path)
    engine.index(source)
    write_files(source, {"c.txt": "Ebony and garnet.\n"})
    real, stalled = Lease.check, []

    def check(self, newest):
        real(self, newest)
        if not stalled:
            stalled.append(True)
            other.index(write_files(tmp_path / "two", {"d.txt": "Dolomite.\n"}), source_name="two")

    monkeypatch.setattr(Lease, "check", check)
    outcome = engine.index(source)
    assert outcome.generation == 4  # 2 the fence, 3 the other's
    roots = [engine.generation(number=n).root for n in (1, 2, 3, 4)]
    assert [sorted(root.sources) for root in roots] == [["main"], ["main"], ["main", "two"], ["main", "two"]]
    assert [root.epoch for root in roots] == sorted(root.epoch for root in roots)
    assert [root.n_docs for root in roots] == [2, 2, 3, 4]


def test_a_log_that_was_applied_further_is_worth_a_generation_even_if_nothing_else_changed(source, tmp_path):
    engine = Engine(tmp_path)
    engine.index(source)
    writer = writer_of(engine)
    push(writer, {"p": "Dolomite.\n"}, applied=1)
    parent = writer.newest()
    again = SourceChange("pushed", "push:", Change(), applied=2)
    assert writer.due(parent, Draft(specs_of(parent.root), (again,)))
    assert not writer.due(parent, Draft(specs_of(parent.root), (SourceChange("pushed", "push:", Change(), applied=1),)))
    writer.close()


def test_spaces_of_another_version_cannot_be_built_here(source, tmp_path, monkeypatch):
    from shards.layers.bm25 import BM25

    engine = Engine(tmp_path)
    engine.index(source)
    root = engine.generation().root
    assert buildable(root, engine.resources) == {"names", "text", "bm25"}
    monkeypatch.setattr(BM25, "version", BM25.version + 1)
    assert buildable(root, engine.resources) == {"names", "text"}


def test_rows_that_change_nothing_are_no_change(source, tmp_path):
    engine = Engine(tmp_path)
    engine.index(source)
    writer = writer_of(engine)
    root, _ = push(writer, {"p": "Dolomite.\n"})
    tree = root.sources["pushed"].tree
    row = TreeRow("p", render(b"Dolomite.\n").hash.hex(), 10, 0)
    assert replace_rows(writer.store, "pushed", tree, [row], ["nowhere"]).empty
    change = replace_rows(writer.store, "pushed", tree, [row._replace(size_bytes=11)], [])
    assert [len(part) for part in (change.added, change.removed, change.upserts)] == [1, 1, 1]
    writer.close()
