"""Every kind of source: first run, no change, one change, one deletion; and what a listing that cannot be trusted may not do."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from engine import Engine, paths
from fault_proxy import FAULTS, fault_proxy
from source_kinds import InBucket, InFolder, InGit, InMemory, InTar, InTarInZip, InZip, InZipInBucket, Kind, OnWeb, web_server

from shards import retries
from shards.corpus import Opener, Source, list_source
from shards.errors import SourceError

FILES = {
    "a.txt": b"The amber room was lost.\n",
    "sub/b c.txt": b"Basalt is a rock.\n",
    "sub/deep/\xc3\xa4 100% & [1]+#?.txt".encode("latin-1").decode(): b"Cobalt is blue.\n",
    "sub/d.txt": b"Dolomite.\n",
    "sub/e.txt": b"Ebony is a wood.\n",
    ".gitignore": b"*.log\n",
    "noise.log": b"amber amber amber\n",
}
N_VISIBLE = 6


@pytest.fixture(autouse=True)
def impatient(monkeypatch) -> None:
    """Tries again at once."""
    monkeypatch.setattr(retries, "WAITS_S", (0.0, 0.0, 0.0))


WEB = ["web, python", "web, nginx", "web, apache", "web, bare"]
KINDS = ["folder", "memory", "s3", "zip", "zip on s3", "tar", "tar.gz", "tar.bz2", "tar.xz in zip", "git", *WEB]


@pytest.fixture
def broken() -> set[str]:
    """Paths that the web server cannot deliver for now."""
    return set()


@pytest.fixture(params=KINDS)
def kind(request, tmp_path, broken) -> Iterator[Kind]:
    with ExitStack() as stack:
        yield make(request.param, tmp_path, request, stack, broken)


def make(name: str, tmp_path: Path, request: pytest.FixtureRequest, stack: ExitStack, broken: set[str]) -> Kind:
    if "s3" in name:
        server = request.getfixturevalue("s3_server")
        return (InZipInBucket if "zip" in name else InBucket)(server.options, server.bucket())
    if name.startswith("web"):
        folder = InFolder(tmp_path / "files")
        return OnWeb(folder, stack.enter_context(web_server(folder.folder, broken)), name.removeprefix("web, "))
    match name:
        case "folder":
            return InFolder(tmp_path / "files")
        case "memory":
            return InMemory(tmp_path.name)
        case "zip":
            return InZip(tmp_path / "x.zip")
        case "git":
            return InGit(tmp_path / "repository")
        case "tar.xz in zip":
            return InTarInZip(tmp_path / "x.zip")
        case _:
            return InTar(tmp_path / "x", "w:" + name.partition(".")[2])


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """The paths read so far, but for ignore files, which belong to the listing."""
    seen: list[str] = []
    real = Opener.read

    def counted(self: Opener, path: str) -> bytes:
        if not path.endswith(".gitignore"):
            seen.append(path)
        return real(self, path)

    monkeypatch.setattr(Opener, "read", counted)
    return seen


def index(engine: Engine, kind: Kind, **options):
    return engine.index(kind.url, source_options=kind.options, calibrate=False, **options)


def test_a_run_reads_what_changed_and_nothing_else(kind, tmp_path, read):
    kind.set(FILES)
    engine = Engine(tmp_path / "engine")
    first = index(engine, kind)
    assert (first.listed, first.added, first.failed, first.skipped) == (N_VISIBLE, N_VISIBLE, {}, {"ignored": 1})
    assert paths(engine.search("cobalt", layers=["bm25"])) == [next(path for path in FILES if "deep" in path)]

    read.clear()
    again = index(engine, kind)
    assert not again.changed
    assert len(read) == (0 if kind.marked else N_VISIBLE - 1)  # where nothing tells a change, everything is looked at

    read.clear()
    kind.set(FILES | {"sub/b c.txt": b"Basalt is a lava.\n"})  # of the same size
    edited = index(engine, kind)
    assert (edited.added, edited.removed) == (1, 1)
    assert read == ["sub/b c.txt"] if kind.marked else len(read) == N_VISIBLE - 1
    assert paths(engine.search("lava", layers=["bm25"])) == ["sub/b c.txt"]
    assert engine.search("rock", layers=["bm25"]).hits == []

    read.clear()
    kind.set({path: data for path, data in kind.files.items() if path != "a.txt"})
    deleted = index(engine, kind)
    assert (deleted.added, deleted.removed) == (0, 1)
    assert len(read) == (0 if kind.marked else N_VISIBLE - 2)
    assert engine.search("amber", layers=["bm25"]).hits == []


def test_a_source_that_lost_most_files_deletes_nothing_unless_told_to(kind, tmp_path):
    many = {f"{i:02}.txt": b"amber %d\n" % i for i in range(25)}
    kind.set(many)
    engine = Engine(tmp_path / "engine", ("names",))
    index(engine, kind)
    kind.set({"24.txt": many["24.txt"]})
    kept = index(engine, kind)
    assert not kept.changed and "24 of 25 files are gone from the listing" in kept.notes[0] and "--allow-shrink" in kept.notes[0]
    assert index(engine, kind, allow_shrink=True).removed == 24
    assert engine.generation().root.n_entries == 1


# --- listings that cannot be trusted -----------------------------------------------------------------------------------------


def cut(file: Path, n_bytes: int) -> None:
    file.write_bytes(file.read_bytes()[:n_bytes])


def test_a_bucket_whose_listing_fails_on_its_second_page_publishes_nothing(s3_server, tmp_path):
    with fault_proxy(s3_server.endpoint_url) as proxy:
        proxy.rewrite = lambda path: path + "&max-keys=2" if "list-type=2" in path else path
        kind = InBucket(s3_server.options | {"endpoint_url": proxy.url}, s3_server.bucket())
        kind.set(FILES)
        engine = Engine(tmp_path)
        assert index(engine, kind).listed == N_VISIBLE  # in four pages
        kind.set({path: data for path, data in FILES.items() if path != "a.txt"} | {"new.txt": b"Nickel.\n"})
        proxy.decide = lambda asked: "500" if "continuation-token" in asked.path else None
        with pytest.raises(SourceError, match=r"cannot be listed.*also when tried again.*nothing was published"):
            index(engine, kind)
        assert engine.generation().root.generation == 1
        proxy.decide = lambda _asked: None
        outcome = index(engine, kind)
        assert (outcome.added, outcome.removed) == (1, 1)


@pytest.mark.parametrize("style", ["python", "nginx", "apache"])
def test_a_web_folder_that_fails_loses_nothing_while_others_may(style, tmp_path, broken):
    folder = InFolder(tmp_path / "files")
    with web_server(folder.folder, broken) as server:
        kind = OnWeb(folder, server, style)
        kind.set(FILES)
        engine = Engine(tmp_path)
        index(engine, kind)
        kind.set({path: data for path, data in FILES.items() if path not in ("a.txt", "sub/d.txt", "sub/e.txt")})
        broken.add("sub/")
        outcome = index(engine, kind)
        assert (outcome.removed, outcome.unread) == (1, {"unreachable": 1}) and "500" in outcome.failed["sub/"]
        broken.clear()
        assert index(engine, kind).removed == 2


def test_a_web_file_of_which_nothing_can_be_learnt_stays_and_a_silent_server_fails_the_listing(tmp_path, broken):
    folder = InFolder(tmp_path / "files")
    with web_server(folder.folder, broken) as server:
        kind = OnWeb(folder, server, "nginx")
        kind.set(FILES | {f"{i}.txt": b"amber %d\n" % i for i in range(10)})
        engine = Engine(tmp_path)
        index(engine, kind)
        broken.add("a.txt")
        outcome = index(engine, kind)
        assert (outcome.changed, outcome.removed, outcome.unread) == (False, 0, {"unreachable": 1})
        broken |= {f"{i}.txt" for i in range(10)}
        with pytest.raises(SourceError, match=r"cannot be listed.*500.*nothing was published"):
            index(engine, kind)
        broken.clear()
        assert not index(engine, kind).changed


def test_a_page_that_leads_to_a_login_is_no_empty_folder(tmp_path):
    folder, guarded = InFolder(tmp_path / "files"), set()
    with web_server(folder.folder, set(), guarded) as server:
        kind = OnWeb(folder, server, "python")
        kind.set(FILES | {"login.html": b"<form><a href='sub/'>"})
        engine = Engine(tmp_path)
        index(engine, kind)
        guarded.add("sub/")
        outcome = index(engine, kind)
        assert (outcome.removed, outcome.changed) == (0, False)
        assert "instead of a page of links" in outcome.failed["sub/"]


@pytest.mark.parametrize("n_bytes", [20, 300, -30])
def test_a_zip_that_is_cut_off_publishes_nothing(n_bytes, tmp_path):
    kind = InZip(tmp_path / "x.zip")
    kind.set(FILES)
    engine = Engine(tmp_path)
    index(engine, kind)
    cut(kind.file, n_bytes)
    with pytest.raises(SourceError, match=r"x\.zip.*cannot be listed"):
        index(engine, kind)
    assert engine.generation().root.n_entries == N_VISIBLE


@pytest.mark.parametrize("n_bytes", [1024, 1024 + 512, 3 * 1024 + 100], ids=["between members", "after a header", "in a header"])
def test_a_tar_that_is_cut_off_deletes_nothing(n_bytes, tmp_path):
    """Most readers take a tar that ends between two members for whole."""
    kind = InTar(tmp_path / "x.tar")
    kind.set(FILES)
    engine = Engine(tmp_path)
    index(engine, kind)
    kind.set(FILES | {"a.txt": b"Amber again.\n"})
    cut(kind.file, n_bytes)
    outcome = index(engine, kind)
    assert (outcome.removed, outcome.unread) == (outcome.added, {"damaged": 1})
    assert engine.generation().root.n_entries == N_VISIBLE
    kind.set({"a.txt": b"Amber once more.\n", "sub/d.txt": FILES["sub/d.txt"]})
    assert index(engine, kind).removed == N_VISIBLE - 1


def test_a_compressed_tar_that_is_cut_off_publishes_nothing(tmp_path):
    kind = InTar(tmp_path / "x.tar.gz", "w:gz")
    kind.set(FILES)
    engine = Engine(tmp_path)
    index(engine, kind)
    cut(kind.file, 100)
    with pytest.raises(SourceError, match=r"x\.tar\.gz.*cannot be listed"):
        index(engine, kind)


def test_a_repository_without_one_of_its_trees_publishes_nothing_and_without_a_blob_all_the_rest(tmp_path):
    kind = InGit(tmp_path / "repository")
    kind.set(FILES)
    engine = Engine(tmp_path)
    index(engine, kind)
    kind.set(FILES | {"sub/d.txt": b"Dolomite again.\n", "a.txt": b"Amber again.\n"})

    def away(revision: str) -> Path:
        name = kind.git("rev-parse", revision)
        lost = kind.repository / ".git/objects" / name[:2] / name[2:]
        return lost.rename(tmp_path / "aside") and lost

    lost = away("main:sub")
    with pytest.raises(SourceError, match=r"git says.*git fsck.*Nothing was published"):
        index(engine, kind)
    (tmp_path / "aside").rename(lost)
    lost = away("main:sub/d.txt")
    outcome = index(engine, kind)
    assert (outcome.added, outcome.removed, outcome.unread) == (1, 1, {"damaged": 1})
    assert "missing from the repository" in outcome.failed["sub/d.txt"]
    (tmp_path / "aside").rename(lost)
    assert index(engine, kind).added == 1
    assert paths(engine.search("dolomite again", layers=["bm25"])) == ["sub/d.txt", "a.txt"]


def test_a_folder_of_any_file_system_that_fails_is_no_deletion(tmp_path):
    """fsspec's own walk leaves such a folder out as if it were empty."""
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem
    from fsspec.spec import AbstractFileSystem

    class Folders(MemoryFileSystem):
        protocol = "folders"
        find = AbstractFileSystem.find
        refuses = False

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(path.removeprefix("folders://"))

        def ls(self, path, detail=True, **kwargs):
            if self.refuses and path.rstrip("/").endswith("sub"):
                raise PermissionError(13, "Permission denied")
            return super().ls(path, detail, **kwargs)

    fsspec.register_implementation("folders", Folders, clobber=True)
    kind = InMemory(tmp_path.name)
    kind.url = kind.url.replace("memory", "folders")
    kind.set(FILES)
    engine = Engine(tmp_path)
    index(engine, kind)
    kind.set({path: FILES[path] for path in ("a.txt", "sub/e.txt")})
    Folders.refuses = True
    outcome = index(engine, kind)
    assert (outcome.removed, outcome.unread) == (1, {"forbidden": 1})  # the ignore file
    Folders.refuses = False
    assert index(engine, kind).removed == 3


# --- git -----------------------------------------------------------------------------------------------------------------------


def test_a_revision_is_a_branch_a_tag_or_a_commit_and_bare_repositories_will_do(tmp_path):
    kind = InGit(tmp_path / "re@po")
    kind.set({"a.txt": b"one"})
    kind.git("tag", "v1")
    (kind.repository / "link").symlink_to("a.txt")
    kind.set({"a.txt": b"two", "b.txt": b"b"})
    kind.git("clone", "-q", "--bare", ".", str(tmp_path / "bare.git"))
    for url, expected in {
        f"git+file://{kind.repository}@v1": {"a.txt": b"one"},
        f"git+file://{kind.repository}@{kind.git('rev-parse', 'v1')}": {"a.txt": b"one"},
        f"git+file://{kind.repository}@main": {"a.txt": b"two", "b.txt": b"b"},
        f"git+file://{kind.repository}": {"a.txt": b"two", "b.txt": b"b"},
        f"git+file://{tmp_path}/bare.git@main^": {"a.txt": b"one"},
    }.items():
        listing = list_source(Source("s", url))
        with Opener(Source("s", url)) as opener:
            assert dict(opener.read_many([file.path for file in listing.files])) == expected
    assert list_source(Source("s", kind.url)).counters == {"skipped_links": 1}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("git+file://{0}@nowhere", "git says .*Check repository and revision"),
        ("git+file://{0}/no", "does not exist"),
        ("git://example.org/x", "Clone it .*git\\+file:///path"),
        ("git+https://example.org/x", "Clone it .*git\\+file:///path"),
    ],
)
def test_a_wrong_git_url_is_an_error_that_says_what_to_do(url, says, tmp_path):
    kind = InGit(tmp_path / "repository")
    kind.set({"a.txt": b"one"})
    with pytest.raises(SourceError, match=says):
        list_source(Source("s", url.format(kind.repository)))


@pytest.mark.parametrize(
    ("url", "package"), [("gs://b/p", "gcsfs"), ("gcs://b/p", "gcsfs"), ("abfs://c/p", "adlfs"), ("az://c/p", "adlfs")]
)
def test_a_cloud_whose_package_is_missing_is_refused_with_the_command_to_install_it(url, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # also where it is installed
    for given in (url, f"zip://::{url}/x.zip"):
        with pytest.raises(SourceError, match=f"pip install {package}"):
            list_source(Source("s", given))


# --- servers that fail now and then ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bucket_that_fails_now_and_then_is_read_as_if_it_did_not(fault, s3_server, tmp_path):
    with fault_proxy(s3_server.endpoint_url) as proxy:
        kind = InBucket(s3_server.options, s3_server.bucket())
        kind.set(FILES)
        kind.options = s3_server.options | {"endpoint_url": proxy.url}
        proxy.decide = lambda asked: fault if asked.number % 3 == 1 else None
        outcome = index(Engine(tmp_path, ("names",)), kind)
        assert (outcome.added, outcome.failed) == (N_VISIBLE, {})
        assert len(proxy.faults) >= 3


def test_what_is_refused_is_not_asked_for_again(s3_server, tmp_path):
    with fault_proxy(s3_server.endpoint_url) as proxy:
        kind = InBucket(s3_server.options, s3_server.bucket())
        kind.set(FILES)
        kind.options = s3_server.options | {"endpoint_url": proxy.url}
        proxy.decide = lambda asked: "403" if asked.path.endswith("/a.txt") else None
        outcome = index(Engine(tmp_path, ("names",)), kind)
        assert (outcome.added, outcome.unread) == (N_VISIBLE - 1, {"forbidden": 1})
        assert "Grant access, or exclude it" in outcome.failed["a.txt"]
        assert len(proxy.faults) == 1


def test_a_network_that_is_cut_in_the_middle_of_a_run_costs_time_and_nothing_else(s3_server, tmp_path):
    """The run publishes what it had read and names the rest; it does not wait for each of a thousand files."""
    many = {f"{i:03}.txt": b"amber %d\n" % i for i in range(100)}
    with fault_proxy(s3_server.endpoint_url) as proxy:
        kind = InBucket(s3_server.options, s3_server.bucket())
        kind.set(many)
        kind.options = s3_server.options | {"endpoint_url": proxy.url}
        engine = Engine(tmp_path)
        proxy.decide = lambda asked: "dropped" if asked.number > 40 else None
        outcome = index(engine, kind)
        n_read = outcome.added
        assert 0 < n_read < 40 and outcome.unread == {"unreachable": 100 - n_read}
        assert "Run again when its server answers" in next(iter(outcome.failed.values()))
        asked = Counter(asked.path.rpartition("/")[2] for asked in proxy.asked)
        tries = sorted(asked[path] for path in outcome.failed)
        assert tries[-1] >= 4 and tries[0] <= 2  # once it counts as down, one attempt each; aiohttp makes two of it
        assert len(paths(engine.search("amber", layers=["bm25"], k=200))) == n_read
        with pytest.raises(SourceError, match="cannot be listed"):
            index(engine, kind)
        proxy.decide = lambda _asked: None
        assert index(engine, kind).added == 100 - n_read
        assert engine.generation().root.n_entries == 100
