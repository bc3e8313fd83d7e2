"""Opening a corpus: searchable while it is read, never other than what one run of the index job makes of the same files."""

import json
import random
from pathlib import Path

import httpx
import pytest
from engine import Engine, Patience, age, paths, write_files
from scripted_coordinator import eventually
from test_push_http import serving

from jobs import open_corpus
from jobs.commands_open import name_of
from jobs.listing_process import Lister
from jobs.pool import LocalPool, WorkerSettings
from jobs.settings import Settings
from serve.calibrate import Calibrator
from serve.corpora import Openings
from serve.problems import Forbidden
from shards import open_order, progressive, tree
from shards.corpus import Listed, Source, list_source
from shards.errors import BadQuery, BeingOpened, Cancelled, Conflict, NoCorpus, SourceError
from shards.layers import SpaceSpec
from shards.layers.contract import Resources
from shards.manifest import SourceRef, encode
from shards.open_order import Opening, OpenOrder
from shards.progressive import grow, portions
from shards.rehearsal import ask, make
from shards.update import Options, Updater

LAYERS = ("names", "text", "bm25")


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    """Forty files in four folders, of which the first portion holds eight."""
    for name, value in {"WORTH_FILES": 4, "FIRST_FILES": 8}.items():
        monkeypatch.setattr(progressive, name, value)
    files = {f"d{i % 4}/f{i}.txt": f"word{i} basalt {'amber ' * i}\n" for i in range(40)}
    write_files(tmp_path / "src", files | {"d0/copy.txt": "word1 basalt amber \n", ".gitignore": "*.log\n", "d1/a.log": "hidden"})
    age(tmp_path / "src")
    return tmp_path / "src"


def updater(engine: Engine) -> Updater:
    def pool(inside, specs) -> LocalPool:
        return LocalPool(WorkerSettings(inside.url, {}, engine.folder / "cache", engine.cache_bytes, dict(specs), engine.resources))

    clock = Patience()
    return Updater(engine.store, engine.cache, engine.resources, pool, Calibrator(), clock=clock, sleep=clock.sleep)


def options(source: Path, layers: tuple[str, ...] = LAYERS) -> Options:
    return Options("c", Source("main", str(source)), tuple(map(SpaceSpec.parse, layers)))


def opened(engine: Engine, source: Path, layers: tuple[str, ...] = LAYERS, go_on=lambda: None) -> list[tuple[int, int]]:
    """Opens the corpus; after each generation of a portion (files held, files pending)."""
    told: list[tuple[int, int]] = []
    work = updater(engine)
    listing = grow(work, options(source, layers), lambda stage, held, pending: told.append((held, pending)), go_on)
    assert told.pop(0) == (0, len(listing.files))
    work.run(options(source, layers))
    return told


def content(engine: Engine) -> dict[str, object]:
    """All that a generation says of its documents, whichever segments they lie in."""
    root = engine.generation().root
    main = root.sources["main"]
    rows = list(tree.rows(engine.store.child("c"), main.tree))
    counts = (root.n_docs, root.n_entries, main.n_entries, main.pending)
    return {"rows": rows, "counts": counts, "spaces": [(space.name, space.space_id) for space in root.spaces]}


def test_portions_hold_each_file_once_small_ones_of_every_folder_first(monkeypatch):
    monkeypatch.setattr(progressive, "WORTH_FILES", 10)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    files = [Listed(f"d{i % 9}/{i:03}", draw.choice([draw.randrange(5_000), draw.randrange(1 << 24)]), 1) for i in range(300)]
    files.sort()
    parts = list(portions(files))
    assert sorted(file for part in parts for file in part) == sorted(files)
    assert [part == sorted(part) for part in parts] == [True] * len(parts)  # each in the order of the listing
    assert {file.path[:2] for file in parts[0]} == {f"d{i}" for i in range(9)}
    small = [file for file in files if file.size_bytes <= progressive.SMALL_BYTES]
    assert len(parts[0]) == 60 and set(parts[0]) <= set(small)
    assert list(portions(small[:10])) == [small[:10]]  # not worth more than one generation


def test_an_opened_corpus_holds_in_the_end_what_one_run_makes_of_its_files(source, tmp_path):
    growing, at_once = Engine(tmp_path / "a", LAYERS), Engine(tmp_path / "b", LAYERS)
    told = opened(growing, source)
    at_once.index(source)
    assert content(growing) == content(at_once)
    assert [held + pending for held, pending in told] == [42] * len(told) and told[0] == (8, 34) and told[-1] == (42, 0)
    for query in ({"query": "basalt amber"}, {"query": "word7", "layers": ["text"]}, {"query": "f12", "layers": ["names"]}):
        assert sorted(paths(growing.search(k=50, **query))) == sorted(paths(at_once.search(k=50, **query)))


def test_a_first_part_is_searchable_and_says_how_many_files_it_lacks(source, tmp_path):
    engine = Engine(tmp_path, LAYERS)
    stop = iter([False, True])
    with pytest.raises(Cancelled):
        opened(engine, source, go_on=lambda: _stop(next(stop)))
    root = engine.generation().root
    assert (root.n_entries, root.sources["main"].pending, [space.name for space in root.spaces]) == (8, 34, ["names", "text"])
    assert paths(engine.search("basalt", layers=["text"], k=50)) and root.nulls is not None


def test_no_answer_is_whole_while_listed_files_are_not_read(source, tmp_path):
    engine = Engine(tmp_path, LAYERS)
    stop = iter([False, True])
    with pytest.raises(Cancelled):
        opened(engine, source, go_on=lambda: _stop(next(stop)))
    plain, found_nothing, combined = engine.search_many(
        [
            {"query": "basalt", "layers": ["text"]},
            {"query": "quartz", "layers": ["text"], "paths": ["d1/**"]},  # as much as there is was searched: it may be in what is to come
            {"combine": {"union": [{"search": {"query": "basalt", "layers": ["text"]}}]}},
        ]
    )
    for answer in (plain, found_nothing, combined):
        (row,) = answer.coverage
        assert (row.state, row.total - row.covered) == ("building", 34) and "34 listed files are not read yet" in row.reason
        assert not answer.complete
    assert not plain.certificate.final and not found_nothing.certificate.final and plain.continue_ is None


@pytest.mark.parametrize("layers", [("names", "text", "bm25"), ()])
def test_a_layer_that_is_named_before_it_is_built_answers_with_its_coverage(layers, source, tmp_path):
    engine = Engine(tmp_path, LAYERS)
    stop = iter([False, True])
    with pytest.raises(Cancelled):
        opened(engine, source, go_on=lambda: _stop(next(stop)))
    open_order.place(engine.store, "c", OpenOrder(url=str(source), layers=layers))
    both, alone, own = engine.search_many(
        [
            {"query": "basalt", "layers": ["text", "bm25"]},
            {"query": "basalt", "layers": ["bm25"], "weights": {"bm25": 2}},
            {"forms": {"bm25": {"query": "basalt"}, "text": {"pattern": "basalt"}}},
        ]
    )
    for answer in (both, alone, own):
        (row,) = [row for row in answer.coverage if row.layer == "bm25"]
        assert (row.state, row.covered, row.total - engine.generation().root.n_docs) == ("building", 0, 34) and "being opened" in row.reason
        assert not answer.complete and not answer.certificate.final and "bm25" in answer.certificate.because
    assert alone.verdict_reason.startswith("nothing was looked at: the corpus is being opened")
    assert both.hits and own.hits and not alone.hits and alone.continue_ is None
    with pytest.raises(BadQuery, match="no layer 'quartz'"):
        engine.search("basalt", layers=["quartz"])
    open_order.end(engine.store, "c", "main")
    with pytest.raises(BadQuery, match="no layer 'bm25'"):
        engine.search("basalt", layers=["bm25"])


def test_files_that_are_still_to_be_read_are_no_news_to_a_check_unless_it_is_strict(source, tmp_path):
    engine = Engine(tmp_path, LAYERS)
    stop = iter([False, True])
    with pytest.raises(Cancelled):
        opened(engine, source, go_on=lambda: _stop(next(stop)))
    asked = {"query": "basalt", "layers": ["text"], "k": 50}
    (usual,) = engine.search_many([asked | {"freshness": "check"}])
    (strict,) = engine.search_many([asked | {"freshness": "strict"}])
    assert (usual.freshness.new, len(usual.hits)) == (0, 6) and {hit.freshness for hit in usual.hits} == {"current"}
    assert "still being read" in usual.freshness.reason
    assert strict.freshness.new == 34 and len(strict.hits) == 40


def _stop(now: bool) -> None:
    if now:
        raise Cancelled("stopped")


@pytest.mark.parametrize("after", [0, 1, 2])
def test_what_dies_between_generations_is_taken_up_and_reads_nothing_twice(after, source, tmp_path):
    engine, at_once = Engine(tmp_path / "a", LAYERS), Engine(tmp_path / "b", LAYERS)
    at_once.index(source)
    stop = iter([False] * after + [True])
    with pytest.raises(Cancelled):
        opened(engine, source, go_on=lambda: _stop(next(stop)))
    held = engine.generation().root.n_entries if after else 0
    told = opened(engine, source)
    assert content(engine) == content(at_once)
    assert all(now > held for now, _ in told)


def test_an_ordinary_run_completes_what_opening_left_and_only_it_deletes(source, tmp_path):
    engine = Engine(tmp_path, ("names", "text"))
    stop = iter([False, True])
    with pytest.raises(Cancelled):
        opened(engine, source, ("names", "text"), lambda: _stop(next(stop)))
    gone = next(tree.rows(engine.store.child("c"), engine.generation().root.sources["main"].tree)).path
    (source / gone).unlink()
    stop = iter([False, True])
    with pytest.raises(Cancelled):  # a portion more
        opened(engine, source, ("names", "text"), lambda: _stop(next(stop)))
    assert gone in [row.path for row in tree.rows(engine.store.child("c"), engine.generation().root.sources["main"].tree)]
    outcome = engine.index(source)
    assert outcome.removed == 1 and engine.generation().root.sources["main"].pending == 0


def test_a_source_is_listed_in_a_process_of_its_own_as_it_is_here(source):
    lister = Lister(Source("main", str(source)))
    try:
        assert lister.listing() == list_source(Source("main", str(source)))
    finally:
        lister.close()
    nowhere = Lister(Source("main", str(source / "nowhere")))
    try:
        with pytest.raises(SourceError, match="nowhere"):
            nowhere.listing()
    finally:
        nowhere.close()


def test_a_lister_that_is_killed_is_done_without(source):
    dead = Lister(Source("main", str(source)))
    dead._process.kill()
    assert dead.listing() == list_source(Source("main", str(source)))
    dead.close()


def test_a_rehearsal_finds_its_own_line_in_every_layer_that_grows():
    assert [ask(make([name], Resources())) for name in progressive.CHEAP] == [1, 1]


def test_roots_without_pending_files_are_those_of_older_builds():
    assert b"pending" not in encode(SourceRef(url="/data"))
    assert json.loads(encode(SourceRef(url="/data", pending=3)))["pending"] == 3


def test_an_order_is_one_however_often_it_is_given_and_ends_when_it_is_done(tmp_path):
    store = Engine(tmp_path).store
    order = OpenOrder(url="/data", layers=("names",))
    assert open_order.place(store, "c", order) and not open_order.place(store, "c", order)
    with pytest.raises(Conflict, match="being opened from '/data'"):
        open_order.place(store, "c", OpenOrder(url="/other"))
    open_order.place(store, "c", OpenOrder(url="/other", source="second/ä"))
    assert sorted(order.source for order, _ in open_order.under_way(store, "c")) == ["main", "second/ä"]
    open_order.end(store, "c", "main")
    assert open_order.find(store, "c", "main") is None and open_order.look(store, "c").stage == "waiting"


def test_an_order_is_taken_up_when_its_process_died_or_fell_silent():
    import os

    from shards.lease import process_of

    ours = tuple(process_of(os.getpid()))
    assert Opening(stage="reading", at=100.0, process=ours).is_carried_out(105.0)
    assert not Opening(stage="reading", at=100.0, process=ours).is_carried_out(111.0)
    assert not Opening(stage="reading", at=100.0, process=(*ours[:2], "1", "0")).is_carried_out(100.1)  # another has its number
    assert Opening(stage="reading", at=100.0, process=("elsewhere", "", "1", "0")).is_carried_out(105.0)
    assert not Opening(stage="done", at=100.0, process=ours).is_carried_out(100.1)


def test_a_source_that_cannot_be_listed_ends_its_order_with_the_reason(tmp_path):
    engine = Engine(tmp_path)
    settings = Settings.load({}, store=engine.store.url, cache=tmp_path / "cache")
    order = OpenOrder(url=str(tmp_path / "nowhere"), layers=("names", "text"))
    open_order.place(engine.store, "c", order)
    with pytest.raises(SourceError):
        open_corpus.carry_out(settings, "c", order)
    assert open_order.find(engine.store, "c", "main") is None
    failed = open_order.look(engine.store, "c")
    assert failed.stage == "failed" and "nowhere" in failed.reason
    with pytest.raises(NoCorpus, match=r"which failed: .*nowhere"):
        engine.search("basalt")


def test_a_search_of_a_corpus_without_a_generation_is_told_to_come_back(tmp_path):
    engine = Engine(tmp_path)
    open_order.place(engine.store, "c", OpenOrder(url="/data"))
    open_order.tell(engine.store, "c", "main", Opening(stage="listing", listed=34_000))
    with pytest.raises(BeingOpened, match="34,000 files listed so far") as caught:
        engine.search("basalt")
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1.0)


def test_a_request_names_only_what_lies_below_the_roots_that_are_let_in(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    write_files(inside, {"a/x.txt": "x"}), write_files(outside, {"y.txt": "y"})
    (inside / "link").symlink_to(outside)
    openings = Openings(None, None, None, (str(inside), "s3://bucket/open"))
    assert openings.allowed(str(inside / "a")) == str(inside / "a") and openings.allowed("s3://bucket/open/x") == "s3://bucket/open/x"
    for root in (outside, inside / "link", inside / ".." / "out", f"{inside}x", "s3://bucket/opened", "s3://bucket/open/../x",
                 "s3://bucket/open/x.zip::file:///etc", f"file://{inside}"):  # fmt: skip
        with pytest.raises(Forbidden):
            openings.allowed(str(root))
    with pytest.raises(Forbidden):
        Openings(None, None, None).allowed(str(inside))
    assert Openings(None, None, None, anywhere=lambda: True).allowed(str(outside)) == str(outside)


def test_a_folder_names_its_corpus():
    assert [name_of(root) for root in ("/a/my project/", "s3://bucket/pre fix", "/.config")] == ["my-project", "pre-fix", "config"]
    with pytest.raises(BadQuery):
        name_of("/")


def test_a_server_opens_a_corpus_in_a_process_of_its_own(source, tmp_path, monkeypatch):
    monkeypatch.setenv("SONDAGE_CACHE", str(tmp_path / "cache"))

    def opening(coordinator) -> Openings:
        start = lambda corpus, name: open_corpus.start(coordinator.store.url, corpus, name)  # noqa: E731
        return Openings(coordinator.store, coordinator.generations, start, (str(source),))

    order = {"corpus": "c", "source": {"root": str(source)}, "layers": list(LAYERS)}
    with serving(tmp_path, opening=opening) as url, httpx.Client(base_url=url, timeout=30) as session:
        assert session.get("/v1/corpora/c").status_code == 404
        assert session.post("/v1/corpora", content=json.dumps(order)).status_code == 415
        assert session.post("/v1/corpora", json=order | {"source": {"root": str(tmp_path)}}).status_code == 403
        assert session.post("/v1/corpora", json=order | {"more": 1}).json()["error"]["at"] == "more"
        assert session.post("/v1/corpora", json=order).status_code == 202
        eventually(lambda: session.get("/v1/corpora/c").json()["state"] == "done")
        told = session.get("/v1/corpora/c").json()
        assert (told["held"], told["pending"], told["coverage"]) == (42, 0, 1.0)
        found = session.post("/v1/search", json={"corpus": "c", "query": "word7", "budget_ms": 20_000}).json()
        assert found["hits"][0]["entries"][0]["path"] == "d3/f7.txt"
