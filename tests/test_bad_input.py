"""What goes wrong in practice: every case ends with a message that names what, where and the remedy, and nothing is lost."""

import asyncio
import errno
import json
import os
import socket
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from engine import Engine, paths, write_files
from faults import FaultyStore
from scripted_coordinator import eventually
from uvicorn import Config, Server

from cluster.host import Host
from cluster.local import LocalSearcher
from cluster.settings import HostSettings
from jobs import cli
from jobs.index import run_index
from jobs.settings import VARIABLES
from serve.coordinator import Coordinator
from serve.http import create_app
from serve.local import local_coordinator
from serve.schema import SearchRequest
from shards import manifest, update
from shards.errors import Corrupt, NotFound, SondageError, SourceError, StoreError
from shards.layers import REGISTRY
from shards.manifest import FORMAT_VERSION, latest_generation, list_corpora
from shards.store import open_store

FILES = {
    "a.txt": "The amber room was lost in the war.\n",
    "sub/b.py": "def find_basalt(rocks):\n    return [r for r in rocks if r.kind == 'basalt']\n",
    "sub/c.txt": "Cobalt blue is a pigment.\n",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path) -> None:
    for names in VARIABLES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SONDAGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path) -> Path:
    return write_files(tmp_path / "src", FILES)


def job(tmp_path: Path, source: object, *more: str, layers: str = "names,text,bm25") -> int:
    arguments = ["--corpus", "c", "--source", str(source), "--store", str(tmp_path / "store"), "--layers", layers, "--local"]
    return run_index([*arguments, *more])


# --- the command -------------------------------------------------------------------------------------------------------------


def not_a_zip(folder: Path) -> str:
    (folder / "broken.zip").write_bytes(b"PK\3\4 but no more")
    return f"zip://{folder}/broken.zip"


def only_binary(folder: Path) -> str:
    return str(write_files(folder / "pictures", {"a.png": b"\x89PNG\r\n\x1a\n\0\0", "b.jpg": b"\xff\xd8\xff\0\0"}))


def only_ignored(folder: Path) -> str:
    return str(write_files(folder / "ignored", {".sondageignore": "*\n", "a.txt": "hush\n", "b/c.txt": "hush\n"}))


def empty(folder: Path) -> str:
    (folder / "empty").mkdir()
    return str(folder / "empty")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (lambda folder: str(folder / "nowhere"), ("nowhere' does not exist", "Check the spelling")),
        (lambda folder: "gopher://x/y", ("'gopher://x/y': unknown protocol", "Choose from: ", "s3")),
        (not_a_zip, ("broken.zip", "cannot be listed", "Check the URL")),
        (lambda folder: f"zip://{folder}/missing.zip", ("missing.zip", "does not exist")),
        (empty, ("empty' lists no file", "it is empty", "Check --source")),
        (only_ignored, ("lists no file", "ignored 3", "--include")),
        (only_binary, ("2 files", "none could be read as text", "binary 2", "Check --source")),
    ],
)
def test_a_source_without_text_is_refused_and_nothing_is_published(source, says, tmp_path, capsys):
    assert job(tmp_path, source(tmp_path)) == 2
    told = capsys.readouterr().err
    assert told.startswith("sondage index: ") and all(part in told for part in says), told
    assert list_corpora(open_store(tmp_path / "store")) == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--layer", "bm52"], f"Unknown layer 'bm52'. Choose from: {', '.join(sorted(REGISTRY))}."),
        (["--layer", "other=bm25:k1=much"], "k1"),
        (["--layer", "other="], "Choose from"),
        (["--layer", "bm25", "--layer", "bm25:k1=2"], "Two spaces are called 'bm25'"),
        (["--shards", "0"], "--shards: n_shards is 0; expected 1 to 4096."),
        (["--shards", "5000"], "--shards: n_shards is 5000; expected 1 to 4096."),
        (["--source-option", "anon"], "--source-option 'anon' has no value. Write KEY=JSON."),
        (["--corpus", "../c"], "Corpus name '../c' is not allowed."),
        (["--include", "[z-a"], "[z-a"),
        (["--store", "ftp://host/x"], "ftp://host/x' has the scheme 'ftp'; choose from"),
        (["--max-file-bytes", "3"], "larger than 3 bytes 3"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_published(more, says, source, tmp_path, capsys):
    assert job(tmp_path, source, *more) == 2
    assert says in capsys.readouterr().err
    assert list_corpora(open_store(tmp_path / "store")) == []


def test_a_store_that_is_a_file_is_named(source, tmp_path, capsys):
    (tmp_path / "store").write_text("not a folder")
    assert job(tmp_path, source) == 2
    told = capsys.readouterr().err
    assert str(tmp_path / "store") in told and "Check that the folder is a folder" in told
    assert (tmp_path / "store").read_text() == "not a folder"


def test_a_wrong_argument_leaves_a_published_corpus_as_it_was(source, tmp_path, capsys):
    assert job(tmp_path, source) == 0
    for more in (["--layer", "bm52"], ["--shards", "5000"], ["--source", str(tmp_path / "nowhere")]):
        assert job(tmp_path, source, *more) == 2
    assert paths(Engine(tmp_path).search("pigment")) == ["sub/c.txt"]


def test_paths_that_are_not_utf8_are_indexed_found_and_printed(tmp_path, capsys, monkeypatch):
    source = write_files(tmp_path / "src", FILES)
    (source / os.fsdecode(b"caf\xe9.txt")).write_text("Selenium glows.\n")
    (source / os.fsdecode(b"broken\xff.txt")).write_text("Tellurium does not.\n")
    refuse(monkeypatch, os.fsencode(source) + b"/broken\xff.txt")
    assert job(tmp_path, source) == 0
    out = capsys.readouterr().out
    assert "failed: broken\ufffd.txt: " in out and "may not be read" in out
    assert paths(Engine(tmp_path).search("selenium")) == ["caf\ufffd.txt"]
    assert job(tmp_path, source, "--json") == 0
    assert list(json.loads(capsys.readouterr().out)["failed"]) == ["broken\udcff.txt"]


# --- files that change under our hands ---------------------------------------------------------------------------------------


def refuse(monkeypatch: pytest.MonkeyPatch, path: bytes) -> None:
    """Make a file or folder unreadable, for root too, who may read everything."""
    real_open, real_scandir = os.open, os.scandir

    def is_it(name: object) -> bool:
        return isinstance(name, bytes | str | os.PathLike) and os.fsencode(name).rstrip(b"/") == path

    def refusing_open(name, *args, **kwargs):
        if is_it(name):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_open(name, *args, **kwargs)

    def refusing_scandir(name="."):
        if is_it(name):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_scandir(name)

    monkeypatch.setattr(os, "open", refusing_open)
    monkeypatch.setattr(os, "scandir", refusing_scandir)


@contextmanager
def after_listing(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Iterator[None]:
    """Do something between listing a source and reading it."""
    real = update.list_source

    def listed(source):
        listing = real(source)
        act()
        return listing

    with monkeypatch.context() as patch:
        patch.setattr(update, "list_source", listed)
        yield


def replace_by_folder(path: Path) -> None:
    path.unlink()
    write_files(path, {"inner.txt": "Iridium lies within.\n"})


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("act", "says", "left"),
    [
        (Path.unlink, "gone since it was listed", {"sub/c.txt"}),
        (replace_by_folder, "gone since it was listed|cannot be read", {"sub/c.txt", "a.txt/inner.txt"}),
        (replace_by_fifo, "gone since it was listed", {"sub/c.txt"}),
        (lambda path: path.write_text("amber " * 10_000), "larger than 1,000 bytes", {"sub/c.txt"}),
    ],
)
def test_a_file_that_changes_between_listing_and_reading_keeps_its_old_version(act, says, left, source, tmp_path, monkeypatch):
    (source / "sub/b.py").unlink()
    engine = Engine(tmp_path)
    engine.index(source, max_file_bytes=1000)
    (source / "a.txt").write_text("Amber was found again.\n")
    write_files(source, {"sub/c.txt": "Cobalt is a metal.\n"})
    with after_listing(monkeypatch, lambda: act(source / "a.txt")):
        outcome = engine.index(source, max_file_bytes=1000)
    assert list(outcome.failed) == ["a.txt"]
    assert any(part in outcome.failed["a.txt"] for part in says.split("|")), outcome.failed
    assert paths(engine.search("amber", layers=["bm25"])) == ["a.txt"]  # as it was
    assert paths(engine.search("war", layers=["bm25"])) == ["a.txt"]
    assert paths(engine.search("metal", layers=["bm25"])) == ["sub/c.txt"]  # and the others as they are
    finished = engine.index(source, max_file_bytes=1000)
    assert finished.failed == {}
    found = {path for query in ("amber", "metal", "iridium") for path in paths(engine.search(query, layers=["bm25"]))}
    assert found == left


def test_a_new_corpus_of_which_nothing_could_be_read_is_refused_with_the_reason(source, tmp_path, monkeypatch):
    def remove_all() -> None:
        for path in FILES:
            (source / path).unlink()

    with after_listing(monkeypatch, remove_all), pytest.raises(SourceError, match=r"none could be read.*gone since it was listed"):
        Engine(tmp_path).index(source)
    assert list_corpora(open_store(tmp_path / "store")) == []


def test_what_may_not_be_read_is_counted_and_stays_in_the_index(source, tmp_path, monkeypatch):
    engine = Engine(tmp_path)
    engine.index(source)
    (source / "a.txt").write_text("Amber was found again.\n")
    write_files(source / "sub", {"c.txt": "Cobalt is a metal.\n", "d.txt": "Dolomite.\n"})
    with monkeypatch.context() as patch:
        refuse(patch, os.fsencode(source / "a.txt"))
        refuse(patch, os.fsencode(source / "sub"))
        outcome = engine.index(source)
        assert sorted(outcome.failed) == ["a.txt", "sub/"]
        assert "may not be read" in outcome.failed["a.txt"] and "Permission denied" in outcome.failed["sub/"]
    assert paths(engine.search("pigment")) == ["sub/c.txt"]
    assert paths(engine.search("amber", layers=["bm25"])) == ["a.txt"]
    assert engine.index(source).failed == {}
    assert paths(engine.search("metal", layers=["bm25"])) == ["sub/c.txt"]
    assert engine.search("war", layers=["bm25"]).hits == []


def test_a_root_that_may_not_be_listed_deletes_nothing(source, tmp_path, monkeypatch, capsys):
    assert job(tmp_path, source) == 0
    refuse(monkeypatch, os.fsencode(source))
    assert job(tmp_path, source) == 2
    assert "may not be listed" in capsys.readouterr().err
    assert paths(Engine(tmp_path).search("pigment")) == ["sub/c.txt"]


def test_an_emptied_source_deletes_nothing_unless_told_to(source, tmp_path):
    """A disk that is not mounted is an empty folder."""
    engine = Engine(tmp_path)
    engine.index(source)
    source.rename(tmp_path / "elsewhere")
    source.mkdir()
    outcome = engine.index(source)
    assert not outcome.changed and "--allow-shrink" in outcome.notes[0]
    assert paths(engine.search("pigment")) == ["sub/c.txt"]
    engine.index(source, allow_shrink=True)
    answer = engine.search("pigment")
    assert (answer.hits, answer.verdict) == ([], "none")
    (tmp_path / "elsewhere/a.txt").rename(source / "a.txt")
    engine.index(source)
    assert paths(engine.search("amber")) == ["a.txt"]


def test_a_file_may_become_a_folder_and_a_folder_a_file(source, tmp_path):
    engine = Engine(tmp_path)
    engine.index(source)
    (source / "a.txt").unlink()
    write_files(source, {"a.txt/inner.txt": "Iridium lies within.\n"})
    for path in sorted((source / "sub").iterdir()):
        path.unlink()
    (source / "sub").rmdir()
    (source / "sub").write_text("Osmium is heavy.\n")
    engine.index(source, allow_shrink=True)
    assert paths(engine.search("iridium")) == ["a.txt/inner.txt"]
    assert paths(engine.search("osmium")) == ["sub"]
    assert engine.generation().root.n_entries == 2
    assert engine.search("pigment", layers=["bm25"]).hits == []


# --- odd content -------------------------------------------------------------------------------------------------------------


def test_huge_files_are_skipped_and_counted_until_they_are_allowed(source, tmp_path):
    write_files(source, {"huge.txt": "Huge rhodium.\n" * 1000})
    engine = Engine(tmp_path)
    outcome = engine.index(source, max_file_bytes=1000)
    assert outcome.skipped == {"larger than 1,000 bytes": 1} and outcome.hashed == 3
    assert engine.search("rhodium", layers=["bm25"]).hits == []
    os.utime(source / "huge.txt", (1, 1))
    engine.index(source, max_file_bytes=1000)
    assert not engine.index(source, max_file_bytes=2000).changed
    engine.index(source, max_file_bytes=100_000)
    assert paths(engine.search("rhodium", layers=["bm25"])) == ["huge.txt"]
    engine.index(source, max_file_bytes=1000)  # what is in the index stays until it changes
    assert paths(engine.search("rhodium", layers=["bm25"])) == ["huge.txt"]


def test_a_limit_above_the_default_is_kept(tmp_path):
    big = 65 << 20
    source = write_files(tmp_path / "src", {"a.txt": "amber\n", "big.bin": b"\0" * big})
    outcome = Engine(tmp_path, ("names",)).index(source, max_file_bytes=big)
    assert (outcome.skipped, outcome.failed) == ({"binary": 1}, {})


def test_invalid_utf8_empty_files_deep_folders_and_loops_are_all_indexed(tmp_path):
    deep = "/".join(["d"] * 300)
    source = write_files(
        tmp_path / "src",
        {
            "latin.txt": b"Beryllium caf\xe9 au lait.\n",
            "cut.txt": "Caesium naïve".encode()[:-3],
            "empty.txt": "",
            "newlines.txt": "\n\n\n",
            f"{deep}/deep.txt": "Down here is actinium.\n",
        },
    )
    (source / "loop").symlink_to(source)
    (source / "self").symlink_to(source / "self")
    (source / "dangling").symlink_to(source / "nothing")
    engine = Engine(tmp_path)
    outcome = engine.index(source)
    assert outcome.failed == {} and outcome.added == 5
    assert outcome.skipped == {"skipped_symlink_loops": 2, "skipped_broken_links": 1}
    assert "caf\u00e9" in engine.search("beryllium").hits[0].excerpt.text
    assert paths(engine.search("caesium", layers=["bm25"])) == ["cut.txt"]
    assert paths(engine.search("actinium")) == [f"{deep}/deep.txt"]
    assert paths(engine.search("deep.txt", layers=["names"])) == [f"{deep}/deep.txt"]
    assert paths(engine.search("", forms={"names": {"glob": "**/empty.txt"}})) == ["empty.txt"]
    assert not engine.index(source).changed


# --- the store ---------------------------------------------------------------------------------------------------------------


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[None]:
    """The `after`-th file from now on, and all that follow, find no room."""
    real, left = os.fsync, [after]

    def fsync(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


def test_a_full_disk_at_any_write_leaves_the_old_generation_and_no_debris_of_the_failed_write(source, tmp_path, monkeypatch, capsys):
    engine = Engine(tmp_path)
    assert job(tmp_path, source) == 0
    write_files(source, {"a.txt": "Amber was found again.\n", "new.txt": "Nickel.\n"})
    codes = []
    for after in range(0, 60, 4):
        with full_disk(monkeypatch, after):
            codes.append(job(tmp_path, source))
        told = capsys.readouterr()
        if codes[-1] == 0:
            break
        assert codes[-1] == 2 and "No space left on device. Free space there, or choose another store." in told.err
        assert str(tmp_path / "store") in told.err
        if latest_generation(open_store(tmp_path / "store"), "c") == 1:  # the last sync comes after the publication
            assert paths(engine.search("war", layers=["bm25"])) == ["a.txt"]
        assert not list((tmp_path / "store").rglob(".*"))
    assert codes[0] == 2 and codes[-1] == 0
    assert job(tmp_path, source) == 0
    assert paths(engine.search("nickel", layers=["bm25"])) == ["new.txt"]
    assert engine.search("war", layers=["bm25"]).hits == []


class ReadOnly(FaultyStore):
    """A store whose writes are all refused."""

    def write(self, name, data):
        raise StoreError(f"Cannot write {name!r} in store {self.url}: Permission denied. Check who may write there.")

    create = write

    def child(self, folder):
        return ReadOnly(self.inner.child(folder))


def test_a_store_that_may_not_be_written_still_tells_that_nothing_changed(source, tmp_path):
    for path in source.rglob("*"):
        os.utime(path, (1, 1))
    Engine(tmp_path).index(source)
    engine = Engine(tmp_path, store=ReadOnly(open_store(tmp_path / "store")))
    assert not engine.index(source).changed
    (source / "a.txt").write_text("Amber was found again.\n")
    with pytest.raises(StoreError, match="Check who may write there"):
        engine.index(source)
    assert paths(engine.search("war", layers=["bm25"])) == ["a.txt"]


@pytest.fixture
def halves(tmp_path) -> tuple[Engine, dict[int, set[str]]]:
    """A corpus on two shards, and the paths that lie on each."""
    source = write_files(tmp_path / "src", {f"{i}.txt": f"Argon number {i} of the argon lamps.\n" for i in range(12)})
    engine = Engine(tmp_path)
    engine.index(source, n_shards=2)
    generation = engine.generation()
    lies = {n: {v.fields.paths[i] for v in generation.shard(n).views for i in range(len(v.fields.paths))} for n in (0, 1)}
    assert all(lies.values())
    return engine, lies


def shard_file(engine: Engine, shard: int, role: str) -> Path:
    """A file of a shard's segment; role: "docs", or "layer/" and a space's name."""
    generation = engine.generation()
    (ref,) = generation.pages[shard].segments
    kind, _, name = role.partition("/")
    role = f"{kind}/{generation.spaces[name].id}" if name else role
    return engine.folder / "store" / "c" / ref.files[role].name


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 0x41
    path.write_bytes(data)


def scramble_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 40 + path.read_bytes()[40:])


@pytest.mark.parametrize(
    ("role", "harm", "lost"),
    [
        ("text", truncate, None),
        ("text", Path.unlink, None),
        ("docs", flip, None),
        ("docs", truncate, None),
        ("docs", scramble_header, None),
        ("entries", flip, None),
        ("entries", Path.unlink, None),
        ("layer/bm25", Path.unlink, "bm25"),
        ("layer/bm25", truncate, "bm25"),
        ("layer/bm25", flip, "bm25"),
        ("layer/bm25", scramble_header, "bm25"),
        ("layer/names", Path.unlink, "names"),
    ],
)
def test_a_broken_file_costs_its_shard_or_its_layer_there_and_the_answer_says_so(role, harm, lost, halves):
    """lost: the layer that fails on shard 0; None means all of them."""
    engine, lies = halves
    whole = set(paths(engine.search("argon", k=50)))
    assert whole == lies[0] | lies[1]
    path = shard_file(engine, 0, role)
    harm(path)
    answer = engine.search("argon", k=50)
    states = {(c.layer, c.shard): c for c in answer.coverage}
    for (layer, shard), coverage in states.items():
        if shard == 0 and lost in (None, layer):
            assert coverage.state == "failed" and coverage.covered == 0
            assert path.name in coverage.reason, coverage.reason
        else:
            assert coverage.state == "ready", coverage
    assert not answer.complete
    if lost is None:
        assert set(paths(answer)) == lies[1]
    else:
        assert lies[1] <= set(paths(answer)) <= whole
        assert set(paths(engine.search("argon", layers=["text"], k=50))) == whole


def test_a_file_that_is_back_is_used_again(halves, tmp_path):
    engine, _ = halves
    path = shard_file(engine, 0, "layer/bm25")
    path.rename(tmp_path / "aside")

    async def states() -> list[set[str]]:
        searcher = LocalSearcher(Host(engine.store.url, {}, str(tmp_path / "cache")))
        coordinator = Coordinator(engine.store, searcher, engine.resources, engine.cache)
        request = SearchRequest(corpus="c", query="argon", layers=["bm25"], budget_ms=30_000)
        broken = await coordinator.search(request)
        (tmp_path / "aside").rename(path)
        whole = await coordinator.search(request)
        searcher.close()
        return [{c.state for c in answer.coverage} for answer in (broken, whole)]

    assert asyncio.run(states()) == [{"failed", "ready"}, {"ready"}]


def page_file(engine: Engine) -> Path:
    return engine.folder / "store" / "c" / engine.generation().root.shards[0].page.name


def root_file(engine: Engine) -> Path:
    return engine.folder / "store" / "c" / "roots" / f"{1:016d}.json"


def newer(path: Path) -> None:
    body = json.loads(path.read_text())
    body["format"] = FORMAT_VERSION + 1
    path.write_text(json.dumps(body))


@pytest.mark.parametrize(
    ("which", "harm", "says", "remedy"),
    [
        (page_file, flip, "does not have the checksum", "rebuild the corpus"),
        (page_file, truncate, "the manifest says", "rebuild the corpus"),
        (page_file, Path.unlink, "No file 'pages/", "index again"),
        (root_file, truncate, "is no manifest", "Delete it to go back by one"),
        (root_file, newer, f"has format {FORMAT_VERSION + 1}; this build reads", "Upgrade"),
    ],
)
def test_a_broken_or_newer_manifest_is_refused_by_name(which, harm, says, remedy, halves, tmp_path, capsys):
    engine, _ = halves
    path = which(engine)
    harm(path)
    manifest._pages.clear()  # what another process would have
    with pytest.raises(SondageError) as caught:
        engine.search("argon")
    assert isinstance(caught.value, StoreError | Corrupt | NotFound)
    assert says in str(caught.value) and remedy in str(caught.value)
    assert str(engine.folder / "store") in str(caught.value)
    manifest._pages.clear()
    write_files(tmp_path / "src", {"new.txt": "Neon.\n"})
    assert job(tmp_path, tmp_path / "src") == 2
    assert says in capsys.readouterr().err


# --- the fronts --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    Engine(folder).index(write_files(folder / "src", FILES))
    settings = HostSettings(store_url=str(folder / "store"), cache_dir=folder / "cache")
    server = Server(Config(create_app(local_coordinator(settings)), port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"corpus": "nope"}, 404, "Known: c."),
        ({"corpus": "../c"}, 422, "not allowed"),
        ({"layers": ["bm52"]}, 422, "has no layer 'bm52'. Choose from: bm25, names, text."),
        ({"forms": {"text": {"pattern": "(", "regex": True}}}, 422, "Layer 'text'"),
        ({"forms": {"text": {"pattern": "(a*)*{1000}{1000}", "regex": True}}}, 422, "Layer 'text'"),
        ({"forms": {"names": {"glob": "[z-a"}}}, 422, "Layer 'names'"),
        ({"forms": {"bm25": {"nonsense": 1}}, "layers": ["bm25"]}, 422, "bm25"),
        ({"k": 0}, 422, "k: "),
        ({"k": 1_000_000}, 422, "k: "),
        ({"query": "amber " * 170_000}, 422, "query: "),
        ({"query": "amber " * 400_000}, 413, "Shorten the query"),
        ({"query": ""}, 422, "Nothing was asked"),
        ({"budget_ms": 0}, 422, "budget_ms: "),
        ({"where": {"size_bytes": {"<<": 3}}}, 422, "size_bytes"),
        ({"paths": ["[z-a"]}, 422, "[z-a"),
        ({"quary": "amber"}, 422, "did you mean 'query'?"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong_and_the_server_lives(fields, status, says, url):
    with httpx.Client(base_url=url, timeout=30) as client:
        answer = client.post("/v1/search", json={"corpus": "c", "query": "amber", **fields})
        assert answer.status_code == status, answer.text
        assert says in answer.json()["error"]["message"]
        assert client.post("/v1/search", json={"corpus": "c", "query": "amber"}).json()["hits"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"corpus": "c", "query": "\xff"}', b"[" * 100_000, b"\0" * 1000])
def test_what_is_no_json_request_is_refused_and_the_server_lives(body, url):
    with httpx.Client(base_url=url, timeout=30) as client:
        answer = client.post("/v1/search", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422) and answer.json()["error"]["message"]
        assert client.get("/healthz").status_code == 200


def test_odd_but_legal_queries_are_answered(url):
    with httpx.Client(base_url=url, timeout=30) as client:
        for query in ["\0", "\u200b\u202e", "*" * 8000, "(" * 500, '"' * 99, "a" * 8192, "\\", "🜚 " * 2000, "amber\n" * 1000, "%s{}$()`"]:
            answer = client.post("/v1/search", json={"corpus": "c", "query": query, "k": 1000, "budget_ms": 20_000})
            assert answer.status_code == 200, (query[:20], answer.text)
            assert all(c["state"] == "ready" for c in answer.json()["coverage"])


def test_clients_that_hang_up_cost_nothing(url):
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"corpus": "c", "query": "amber", "budget_ms": 60_000}).encode()
    head = f"POST /v1/search HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for i in range(30):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall((head + body)[: [len(head + body), len(head) + 5, 10][i % 3]])
    with httpx.Client(base_url=url, timeout=30) as client:
        assert client.post("/v1/search", json={"corpus": "c", "query": "amber"}).json()["hits"]
        eventually(lambda: client.get("/healthz").status_code == 200)


def test_the_search_command_says_what_is_wrong_with_code_2(source, tmp_path, capsys):
    assert job(tmp_path, source) == 0
    store = ["--store", str(tmp_path / "store")]
    capsys.readouterr()
    for arguments, says in [
        (["amber", "-c", "nope", *store], "There are: c."),
        (["amber", "-l", "bm52", *store], "Choose from: bm25, names, text."),
        (["-e", "(", *store], "("),
        (["amber", "-k", "0", *store], "k: "),
        (["amber", "--where", "{", *store], "JSON"),
        (["amber", "--store", "ftp://x"], "choose from"),
    ]:
        assert cli.main(["search", *arguments]) == 2, arguments
        assert says in capsys.readouterr().err
    zipped = tmp_path / "x.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("z.txt", "Zinc.\n")
    assert cli.main(["index", "--corpus", "z", "--source", f"zip://{zipped}", "--layers", "names,bm25", *store]) == 0
    assert cli.main(["search", "zinc", "-c", "z", *store]) == 0

