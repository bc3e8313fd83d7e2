"""Listing and reading sources: local folders against git itself, archives, web listings and S3."""

import http.server
import os
import random
import re
import socket
import subprocess
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from shards import retries
from shards.corpus import Listing, Opener, Source, list_source
from shards.errors import NotFound, SourceError
from shards.roots import encode_path


@pytest.fixture(autouse=True)
def impatient(monkeypatch) -> None:
    """Tries again at once."""
    monkeypatch.setattr(retries, "WAITS_S", (0.0, 0.0, 0.0))


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


def listed(url: object, **source: object) -> list[str]:
    return paths(list_source(Source("s", str(url), **source)))


def paths(listing: Listing) -> list[str]:
    return [file.path for file in listing.files]


# --- local folders ---------------------------------------------------------------------------------------------------------


def test_paths_are_relative_and_in_bytewise_order(tmp_path):
    """`-` sorts before `/`, and a surrogate escape by the byte it stands for, not by its code point."""
    write(tmp_path, {"a/b": "1", "a-b": "22", "ä": "333", "b": ""})
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xc3"))).write_text("odd")
    listing = list_source(Source("s", str(tmp_path)))
    assert paths(listing) == ["a-b", "a/b", "b", "\udcc3", "ä"]
    assert [file.size_bytes for file in listing.files] == [2, 1, 0, 3, 3]
    assert listing.files[0].mtime_ns == (tmp_path / "a-b").stat().st_mtime_ns
    with Opener(Source("s", str(tmp_path))) as opener:
        assert opener.read("\udcc3") == b"odd"


def test_file_url_home_and_single_file(tmp_path, monkeypatch):
    write(tmp_path, {"notes/a.md": "a"})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert listed(f"file://{tmp_path}") == ["notes/a.md"]
    assert listed("~/notes") == ["a.md"]
    assert listed(tmp_path / "notes" / "a.md") == ["a.md"]
    with Opener(Source("s", str(tmp_path / "notes" / "a.md"))) as opener:
        assert opener.read("a.md") == b"a"


def test_include_needs_one_match_and_exclude_wins(tmp_path):
    write(tmp_path, {"a.py": "", "b.md": "", "docs/c.md": "", "docs/build/d.md": "", "x.txt": ""})
    assert listed(tmp_path, include=("*.md", "a.*"), exclude=("docs/build/**",)) == ["a.py", "b.md", "docs/c.md"]
    counters = list_source(Source("s", str(tmp_path), exclude=("docs/**", "*.txt"))).counters
    assert counters == {"excluded": 2}  # the folder as a whole, and x.txt


def test_a_folder_excluded_as_a_whole_is_not_entered(tmp_path, monkeypatch):
    write(tmp_path, {"keep/a": "", "node_modules/x/b": "", ".git/config": "", "ignored/c": "", ".gitignore": "ignored/\n"})
    entered = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda place: entered.append(os.fsdecode(place)) or scandir(place))
    assert listed(tmp_path, exclude=("**/node_modules/**",)) == [".gitignore", "keep/a"]
    assert entered == [f"{tmp_path}/", f"{tmp_path}/keep/"]


def test_linked_files_and_folders_are_followed_but_no_folder_twice(tmp_path):
    write(tmp_path, {"root/a/x": "x", "elsewhere/y": "y"})
    (tmp_path / "root/file").symlink_to(tmp_path / "elsewhere/y")
    (tmp_path / "root/a/up").symlink_to("..")  # a loop
    (tmp_path / "root/again").symlink_to("a")  # a second way to a folder of the tree
    (tmp_path / "root/out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root/out2").symlink_to(tmp_path / "elsewhere")  # the same folder once more
    (tmp_path / "root/self").symlink_to("self")
    (tmp_path / "root/broken").symlink_to("nowhere")
    listing = list_source(Source("s", str(tmp_path / "root")))
    assert paths(listing) == ["a/x", "file", "out/y"]
    assert listing.counters == {"skipped_symlink_loops": 4, "skipped_broken_links": 1}


def test_special_files_are_counted_not_opened(tmp_path):
    write(tmp_path, {"a": ""})
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        listing = list_source(Source("s", str(tmp_path)))
    assert paths(listing) == ["a"]
    assert listing.counters == {"skipped_special": 2}
    with Opener(Source("s", str(tmp_path))) as opener, pytest.raises(NotFound):
        opener.read("pipe")


def test_three_hundred_levels_are_fine(tmp_path):
    (tmp_path / "/".join(["d"] * 300)).mkdir(parents=True)
    write(tmp_path, {"/".join(["d"] * 300) + "/leaf": "deep"})
    assert listed(tmp_path) == ["d/" * 300 + "leaf"]


def test_an_unreadable_folder_is_a_problem_and_not_a_deletion(tmp_path, monkeypatch):
    write(tmp_path, {"a": "", "locked/b": "", "locked/in/c": ""})
    scandir = os.scandir

    def refuse(place):  # the tests run as root, whom permissions do not stop
        if os.fsdecode(place).endswith("locked/"):
            raise PermissionError(13, "Permission denied")
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refuse)
    listing = list_source(Source("s", str(tmp_path)))
    assert paths(listing) == ["a"]
    assert listing.problems == (("locked/", "Permission denied", "forbidden"),)
    assert listing.incomplete_prefixes == ("locked/",)


def test_an_unreadable_root_is_an_error_that_names_it(tmp_path, monkeypatch):
    def refuse(_place):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceError, match=f"{tmp_path}.*may not be listed.*read access"):
        list_source(Source("s", str(tmp_path)))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("/no/such/folder", "does not exist"),
        ("zip:///no/such.zip", "does not exist"),
        ("memory://no/such/folder", "does not exist"),
        ("gopher://x/y", "unknown protocol. Choose from: .*, s3, .*zip"),
        ("/dev/null", "neither a file nor a folder"),
    ],
)
def test_a_wrong_url_is_an_error_that_says_what_to_do(url, says):
    with pytest.raises(SourceError, match=says) as caught:
        list_source(Source("s", url))
    assert url in str(caught.value)


def test_reading_tells_vanished_from_refused(tmp_path, monkeypatch):
    write(tmp_path, {"a": "text", "big": "x" * 100})
    with Opener(Source("s", str(tmp_path)), max_bytes=50) as opener:
        found = dict(opener.read_many(["a", "gone", "big", "../etc/passwd", "a/b"]))
        assert found["a"] == b"text"
        assert isinstance(found["gone"], NotFound) and "is gone" in str(found["gone"])
        assert isinstance(found["a/b"], NotFound)
        assert isinstance(found["big"], SourceError) and "larger than 50 bytes" in str(found["big"])
        assert isinstance(found["../etc/passwd"], SourceError) and "leaves the source" in str(found["../etc/passwd"])

        def refuse(*_args, **_kwargs):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(SourceError, match=r"'a' of source .* may not be read"):
            opener.read("a")


# --- ignore files ----------------------------------------------------------------------------------------------------------


def git_sees(root: Path) -> list[str]:
    """What git would add: `git ls-files -o --exclude-standard`, without the user's own settings."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    if not (root / ".git").exists():
        subprocess.run(["git", "init", "-q", root], check=True, env=environment, capture_output=True)
    command = ["git", "-C", root, "ls-files", "-o", "-z", "--exclude-standard"]
    out = subprocess.run(command, check=True, env=environment, capture_output=True).stdout
    return sorted((path.decode("utf-8", "surrogateescape") for path in out.split(b"\0") if path), key=encode_path)


TREE = {
    path: ""
    for path in (
        "a.py", "a.pyc", "keep.pyc", "build/x", "build/keep/y", "src/build/z", "src/a.log", "src/b[1].txt", "src/deep/er/a.log",
        "docs/_build/html/i.html", "docs/a b ", "docs/#x", "docs/!y", "foo/bar/baz", "x/foo/bar/baz", "étude", "back\\slash",
    )
}  # fmt: skip


@pytest.mark.parametrize(
    "rules",
    [
        "*.pyc\n!keep.pyc\n",
        "build/\n",
        "/build\n",
        "*\n!src/\n!src/**\n",
        "*\n!*/\n!*.log\n",
        "/*\n!/src\n",
        "build/*\n!build/keep\n",
        "build\n!build/keep/y\n",  # a child of an ignored folder cannot be had back
        "**/build\n",
        "src/**/a.log\n",
        "foo/**\n!foo/bar\n!foo/bar/baz\n",
        "**/foo/**/baz\n",
        "foo/bar\n",
        "/foo/bar/\n",
        "# comment\n\\#x\n\\!y\n",
        "docs/a\\ b\\ \n",
        "docs/a b \n",
        "*.log\r\nbuild/\r\n",
        "\ufeff*.log\n",
        "src/b\\[1].txt\n",
        "src/b[[]1].txt\n",
        "src/[a-b]*\n",
        "[!a]*.py*\n",
        "[[:alpha:]].py\n",
        "[[:nonsense:]]\n[\n\\\n",
        "[]-a]\n",
        "?tude\n??tude\n",  # git counts bytes
        "back\\\\slash\n",
        "/**/x\n",
        "s*c/*g\n",
        "/\n//\n!\n",
        "**\n!**/\n!*.py\n",
        "src/\n!src/\n",
    ],
)
def test_ignore_files_mean_what_they_mean_to_git(tmp_path, rules):
    write(tmp_path, TREE)
    (tmp_path / ".gitignore").write_bytes(rules.encode())
    assert listed(tmp_path) == git_sees(tmp_path)


def test_random_ignore_files_in_nested_folders_agree_with_git(tmp_path):
    seed = 20261129  # change it to look for more
    print("seed", seed)
    draw = random.Random(seed)
    names = ["a", "b", "ab", "a.x", "b.x", "aa", "[a]", "x-b"]
    atoms = ["a", "b", "*", "?", "[ab]", "[!a]", ".x", "a*", "*b", "x", "\\a", "[a-", "aa"]

    def segment() -> str:
        # Stars glued to other characters are left out: git before 2.42 compares unrelated pointers there, and decides by chance.
        return draw.choice(["**", "***", *[re.sub(r"\*+", "*", "".join(draw.choices(atoms, k=draw.randint(1, 2))))] * 9])

    def pattern() -> str:
        body = "/".join(segment() for _ in range(draw.randint(1, 3)))
        return draw.choice(["", "", "!"]) + draw.choice(["", "", "/", "**/"]) + body + draw.choice(["", "", "/", "/**", "/*"])

    for trial in range(25):
        root = tmp_path / str(trial)
        root.mkdir()
        for _ in range(40):
            place = root.joinpath(*draw.choices(names, k=draw.randint(1, 4)))
            if not any(parent.is_file() for parent in [place, *place.parents]) and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
        for folder in [root, *sorted(p for p in root.rglob("*") if p.is_dir() and draw.random() < 0.3)]:
            (folder / ".gitignore").write_text("".join(pattern() + "\n" for _ in range(draw.randint(1, 5))))
        assert listed(root) == git_sees(root), root


def test_sondageignore_has_the_last_word_in_its_folder(tmp_path):
    write(tmp_path, {"a.log": "", "b.log": "", "c.txt": "", ".gitignore": "*.log\n", ".sondageignore": "!a.log\n*.txt\n"})
    assert listed(tmp_path) == [".gitignore", ".sondageignore", "a.log"]


def test_a_hostile_ignore_file_takes_no_time(tmp_path):
    """`*a*a*a…b` and `**/a/**/a/…` would keep a backtracking matcher busy for years."""
    write(tmp_path, {"a" * 200: "", "a/" * 60 + "a": "", ".gitignore": "*a" * 40 + "*b\n" + "**/a/" * 30 + "b\n"})
    assert len(listed(tmp_path)) == 3


# --- everything else fsspec reaches ----------------------------------------------------------------------------------------

PROJECT = {
    "src/a.py": "A", "src/b.log": "B", "src/.gitignore": "!b.log\ngen/\n", "src/gen/c.py": "C", ".gitignore": "*.log\n",
    "x.log": "X", ".git/config": "", "docs/ü [1].md": "U",
}  # fmt: skip
VISIBLE = [".gitignore", "docs/ü [1].md", "src/.gitignore", "src/a.py", "src/b.log"]


@pytest.fixture(params=["folder", "zip", "zip chained", "zip relative", "tar.gz", "memory"])
def project(request, tmp_path, monkeypatch):
    write(tmp_path / "p", PROJECT)
    if request.param.startswith("zip"):
        with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
            for path in PROJECT:
                archive.write(tmp_path / "p" / path, path)
    monkeypatch.chdir(tmp_path)
    match request.param:
        case "folder":
            yield str(tmp_path / "p")
        case "zip":
            yield f"zip://{tmp_path}/p.zip"
        case "zip chained":
            yield f"zip://::file://{tmp_path}/p.zip"
        case "zip relative":
            yield "zip://p.zip"
        case "tar.gz":
            with tarfile.open(tmp_path / "p.tar.gz", "w:gz") as archive:
                archive.add(tmp_path / "p", "")
            yield f"tar://{tmp_path}/p.tar.gz"
        case "memory":
            import fsspec

            memory = fsspec.filesystem("memory")
            memory.put(str(tmp_path / "p") + "/", "/p", recursive=True)
            yield "memory://p"
            memory.rm("/p", recursive=True)


def test_every_kind_of_source_lists_and_reads_alike(project):
    source = Source("s", project)
    listing = list_source(source)
    assert paths(listing) == VISIBLE
    assert [file.size_bytes for file in listing.files] == [len(PROJECT[path].encode()) for path in VISIBLE]
    assert all(file.mtime_ns > 10**18 for file in listing.files)
    with Opener(source) as opener:
        assert list(opener.read_many(paths(listing))) == [(path, PROJECT[path].encode()) for path in VISIBLE]
        with pytest.raises(NotFound):
            opener.read("gone")


def test_an_archive_entry_has_its_checksum_as_etag_and_part_of_an_archive_is_a_source(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("in/a.txt", "hello")
        archive.writestr("b.txt", "")
    (file,) = list_source(Source("s", f"zip://in::file://{tmp_path}/x.zip")).files
    assert (file.path, file.size_bytes, file.etag) == ("a.txt", 5, "3610a686")  # CRC-32 of "hello"
    with Opener(Source("s", f"zip://in/a.txt::file://{tmp_path}/x.zip")) as opener:
        assert opener.read("a.txt") == b"hello"


def test_a_changed_archive_is_listed_anew(tmp_path):
    for names in (["a"], ["a", "b"]):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            for name in names:
                archive.writestr(name, name)
        assert listed(f"zip://{tmp_path}/x.zip") == names


def test_a_broken_archive_is_an_error_that_names_it(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"no archive at all")
    with pytest.raises(SourceError, match=r"x.zip.*cannot be listed: BadZipFile"):
        listed(f"zip://{tmp_path}/x.zip")


@pytest.fixture
def web(tmp_path):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *_args):
            pass

        def do_GET(self):
            code = {"/broken": 500, "/forgotten": 404}.get(self.path.rstrip("/"))
            self.send_error(code) if code else super().do_GET()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_web_listing_is_a_source_and_its_failing_folders_are_no_deletions(tmp_path, web):
    write(tmp_path, {"p/a.txt": "one", "p/sub/b.txt": "twotwo", "forgotten/c": "", "broken/c": "", "d": "d"})
    source = Source("s", f"{web}/p/")
    files = list_source(source).files
    assert [(file.path, file.size_bytes) for file in files] == [("a.txt", 3), ("sub/b.txt", 6)]
    assert files[0].mtime_ns // 10**9 == int((tmp_path / "p/a.txt").stat().st_mtime)
    with Opener(source) as opener:
        assert dict(opener.read_many(["a.txt", "sub/b.txt"])) == {"a.txt": b"one", "sub/b.txt": b"twotwo"}
        with pytest.raises(NotFound):
            opener.read("c.txt")
    assert listed(f"{web}/p/a.txt") == ["a.txt"]
    whole = list_source(Source("s", f"{web}/"))
    assert paths(whole) == ["d", "p/a.txt", "p/sub/b.txt"]
    assert whole.incomplete_prefixes == ("broken/", "forgotten/") and "500" in whole.problems[0].reason
    with pytest.raises(SourceError, match=r"broken.*500"):
        list_source(Source("s", f"{web}/broken/"))


@pytest.mark.s3
def test_s3_is_listed_in_one_go_with_etags_and_read_concurrently(s3_server):
    import s3fs

    bucket, options = s3_server.bucket(), s3_server.options
    s3 = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    for path, text in PROJECT.items():
        s3.pipe_file(f"{bucket}/p/{path}", text.encode())
    source = Source("s", f"s3://{bucket}/p", options=options)
    listing = list_source(source)
    assert paths(listing) == VISIBLE
    assert all(file.etag and file.mtime_ns > 10**18 for file in listing.files)
    with Opener(source) as opener:
        wanted = [*VISIBLE, "x.log"] * 10
        assert list(opener.read_many(wanted)) == [(path, PROJECT[path].encode()) for path in wanted]
        assert isinstance(next(opener.read_many(["gone"]))[1], NotFound)
    s3.pipe_file(f"{bucket}/p/new", b"n")
    assert "new" in listed(f"s3://{bucket}/p", options=options)
    assert listed(f"s3://{bucket}/p/src/a.py", options=options) == ["a.py"]
    with pytest.raises(SourceError, match=f"s3://{bucket}/nothing.*does not exist"):
        listed(f"s3://{bucket}/nothing", options=options)
    with pytest.raises(SourceError, match=r"s3://void-of-all.*does not exist"):
        listed("s3://void-of-all", options=options)


def test_missing_s3_credentials_are_named(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SourceError, match=r"s3://bucket/p.*AWS_ACCESS_KEY_ID"):
        listed("s3://bucket/p", options={"endpoint_url": "http://127.0.0.1:9"})
