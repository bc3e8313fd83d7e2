"""Names, files and servers that nobody asked for: each is read as it is, or left out and counted, and none stops a run or hangs it."""

import io
import json
import os
import resource
import sys
import tarfile
import threading
import unicodedata
import zipfile
from pathlib import Path

import pytest
from engine import Engine, paths, write_files
from job_process import CONTEXT, start
from source_kinds import InBucket
from test_update import WORDS

from jobs import cli
from jobs.index import run_index
from jobs.settings import VARIABLES
from shards import local_folder, opening, retries
from shards.corpus import Opener, Source, list_source
from shards.errors import NotFound, SourceError
from shards.listing import Found
from shards.retries import Retry, is_transient
from shards.store import open_store

LONG = "n" * 251 + ".txt"  # the longest name that common file systems take


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(retries, "WAITS_S", (0.0, 0.0, 0.0))
    for names in VARIABLES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SONDAGE_CACHE", str(tmp_path / "cache"))


def round_trip(source: Source) -> dict[str, bytes]:
    """Everything that is listed, read by the names that the listing gave."""
    with Opener(source) as opener:
        return dict(opener.read_many([file.path for file in list_source(source).files]))


# --- names -------------------------------------------------------------------------------------------------------------------


def test_odd_names_of_a_folder_are_indexed_and_found(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "caf\u00e9.txt") for form in ("NFC", "NFD"))
    names = [
        os.fsdecode(b"latin\xe9.txt"), "new\nline.txt", composed, decomposed, LONG, " spaces .txt", "-rf", "*?[x].txt", "\u202egpj.txt",
        "quote'\".txt", "\x01\x7f.txt",
    ]  # fmt: skip
    source = tmp_path / "src"
    source.mkdir()
    for i, name in enumerate(names):
        (source / name).write_text(f"amber {WORDS[i]}\n")
    found = round_trip(Source("s", str(source)))
    assert found == {name: f"amber {WORDS[i]}\n".encode() for i, name in enumerate(names)}
    engine = Engine(tmp_path)
    outcome = engine.index(source, calibrate=False)
    assert (outcome.added, outcome.failed) == (len(names), {})
    assert [paths(engine.search(WORDS[i], layers=["bm25"])) for i in (2, 3)] == [[composed], [decomposed]]  # two files, not one
    again = engine.index(source, calibrate=False)
    assert not again.changed


def test_odd_keys_of_a_bucket_are_taken_as_they_are(s3_server):
    """s3fs would read `?versionId=` as a version, and cut slashes."""
    kind = InBucket(s3_server.options, s3_server.bucket())
    keys = [
        "/lead", "a//b", "../up", "a/../b", "./here", "x?versionId=1", "x", "sp ace+&=%20%", "caf\u00e9", "cafe\u0301",
        "#frag?q=1", "n" * 1000, "empty",
    ]  # fmt: skip
    kind.set({key: b"" if key == "empty" else key.encode() for key in keys})
    kind.fs.call_s3("put_object", Bucket=kind.bucket, Key="p/folder/", Body=b"")  # as consoles mark folders
    assert round_trip(Source("s", kind.url, options=kind.options)) == kind.files


def test_names_in_archives_never_lead_out_and_are_counted(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in ("../../etc/passwd", "a/../../b", "/absolute.txt", "./dot.txt", "fine.txt", "folder/"):
            archive.writestr(name, name)
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("fine.txt", "newer")
        archive.writestr("caf__.txt", "au lait")
    # UTF-8 that no flag announces, as Info-ZIP writes it.
    (tmp_path / "x.zip").write_bytes((tmp_path / "x.zip").read_bytes().replace(b"caf__.txt", "caf\u00e9.txt".encode()))
    source = Source("s", f"zip://{tmp_path}/x.zip")
    assert list_source(source).counters == {"skipped_odd_names": 2, "skipped_links": 1, "skipped_older_versions": 1}
    assert round_trip(source) == {
        "absolute.txt": b"/absolute.txt", "dot.txt": b"./dot.txt", "fine.txt": b"newer", "caf\u00e9.txt": b"au lait",
    }  # fmt: skip


def test_a_tar_may_hold_anything_and_only_files_are_read(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        for name, kind, to in (
            ("../up", tarfile.REGTYPE, ""), ("/abs", tarfile.REGTYPE, ""), ("link", tarfile.SYMTYPE, "/etc/passwd"),
            ("fifo", tarfile.FIFOTYPE, ""), ("zero", tarfile.CHRTYPE, ""), ("hard", tarfile.LNKTYPE, "/abs"), ("dir", tarfile.DIRTYPE, ""),
            (os.fsdecode(b"latin\xe9"), tarfile.REGTYPE, ""), ("d/" * 300 + "deep", tarfile.REGTYPE, ""),
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, to, 3 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"abc"))
    source = Source("s", f"tar://{tmp_path}/x.tar")
    assert list_source(source).counters == {"skipped_odd_names": 1, "skipped_links": 1, "skipped_special": 2}
    assert round_trip(source) == {"abs": b"abc", "hard": b"abc", os.fsdecode(b"latin\xe9"): b"abc", "d/" * 300 + "deep": b"abc"}


def test_a_member_that_is_damaged_or_encrypted_fails_alone_and_says_why(tmp_path):
    file = tmp_path / "x.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("good", "good content")
        archive.writestr("bad", "bad content")
        archive.writestr("locked", "secret")
    data = bytearray(file.read_bytes())
    data[data.index(b"bad content")] ^= 1
    at = data.index(b"PK\1\2", data.rindex(b"PK\1\2") - 1)  # the directory's entry of the last member: its flags
    data[at + 8] |= 1
    file.write_bytes(data)
    outcome = Engine(tmp_path, ("names",)).index(f"zip://{file}", calibrate=False)
    assert (outcome.added, outcome.unread) == (1, {"damaged": 1, "forbidden": 1})
    assert "is damaged: Bad CRC-32" in outcome.failed["bad"] and "encrypted" in outcome.failed["locked"]


# --- files -------------------------------------------------------------------------------------------------------------------


def test_five_gigabytes_are_skipped_without_reading_a_byte(tmp_path, monkeypatch):
    source = write_files(tmp_path / "src", {"a.txt": "amber\n", "empty.txt": ""})
    with open(source / "huge.bin", "wb") as file:
        file.truncate(5 << 30)
    read = []
    real = Opener.read
    monkeypatch.setattr(Opener, "read", lambda self, path: read.append(path) or real(self, path))
    outcome = Engine(tmp_path, ("names",)).index(source, calibrate=False)
    assert sorted(read) == ["a.txt", "empty.txt"]
    assert (outcome.added, outcome.skipped) == (2, {"larger than 67,108,864 bytes": 1})


def test_devices_fifos_and_links_to_them_are_counted_and_block_nothing(tmp_path):
    source = write_files(tmp_path / "src", {"a.txt": "amber\n"})
    os.mkfifo(source / "fifo")
    (source / "zero").symlink_to("/dev/zero")
    (source / "to-fifo").symlink_to("fifo")
    outcome = Engine(tmp_path, ("names",)).index(source, calibrate=False)
    assert (outcome.added, outcome.skipped) == (1, {"skipped_special": 3})


def test_a_file_that_is_written_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    source = write_files(tmp_path / "src", {"log.txt": "one\n"})
    real, left = os.fstat, [1]

    def growing(descriptor: int) -> os.stat_result:
        status = real(descriptor)
        if left and os.readlink(f"/proc/self/fd/{descriptor}").endswith("log.txt"):
            left.pop()
            with open(source / "log.txt", "a") as file:  # between looking and reading
                file.write("two\n")
        return status

    monkeypatch.setattr(local_folder.os, "fstat", growing)
    with Opener(Source("s", str(source))) as opener:
        assert opener.read("log.txt") == b"one\ntwo\n"


def test_a_file_that_never_rests_is_read_three_times_at_most(tmp_path, monkeypatch):
    source = write_files(tmp_path / "src", {"log.txt": ""})
    real, n = os.fstat, [0]

    def growing(descriptor: int) -> os.stat_result:
        n[0] += 1
        with open(source / "log.txt", "a") as file:
            file.write("x")
        return real(descriptor)

    monkeypatch.setattr(local_folder.os, "fstat", growing)
    with Opener(Source("s", str(source))) as opener:
        assert len(opener.read("log.txt")) == 3
    assert n == [4]


def test_a_folder_whose_ignore_file_cannot_be_read_is_not_listed_and_nothing_there_is_deleted(tmp_path, monkeypatch):
    """Without its rules, what it hides would be shown to everybody who searches."""
    source = write_files(tmp_path / "src", {"a.txt": "amber\n", "sub/.gitignore": "secret.txt\n", "sub/secret.txt": "x", "sub/b.txt": "b"})
    engine = Engine(tmp_path, ("names",))
    engine.index(source, calibrate=False)
    real = open
    is_it = lambda name: isinstance(name, bytes) and name.endswith(b"sub/.gitignore")  # noqa: E731

    def refusing(name, *args, **kwargs):
        if is_it(name):
            raise PermissionError(13, "Permission denied")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(local_folder, "open", refusing, raising=False)
    outcome = engine.index(source, calibrate=False)
    assert (outcome.listed, outcome.changed, outcome.unread) == (1, False, {"forbidden": 1})


# --- what the run says -----------------------------------------------------------------------------------------------------------


def test_what_could_not_be_read_is_counted_by_reason_at_the_end_and_in_status(tmp_path, capsys, monkeypatch):
    source = write_files(tmp_path / "src", {f"{i}.txt": f"amber {i}\n" for i in range(6)})
    store = ["--store", str(tmp_path / "store")]
    real = local_folder.LocalFolder.read

    def failing(self, path, limit):
        if path in ("1.txt", "2.txt"):
            raise FileNotFoundError(path)
        if path == "3.txt":
            raise PermissionError(13, "Permission denied")
        return real(self, path, limit)

    with monkeypatch.context() as patch:
        patch.setattr(local_folder.LocalFolder, "read", failing)
        assert run_index(["--corpus", "c", "--source", str(source), *store, "--layers", "names", "--local"]) == 0
    told = capsys.readouterr().out
    assert "3 files could not be read: forbidden 1, vanished 2; they stay in the index as they were" in told
    assert "failed: 3.txt: " in told and "Grant access, or exclude it" in told
    assert cli.main(["status", *store]) == 0
    shown = capsys.readouterr().out
    assert "3 files could not be read: forbidden 1, vanished 2" in shown and "1.txt: " in shown
    assert cli.main(["status", *store, "--json"]) == 0
    run = json.loads(capsys.readouterr().out)["corpora"]["c"]["sources"]["main"]["last_run"]
    assert (run["listed"], run["unread"], len(run["examples"])) == (6, {"forbidden": 1, "vanished": 2}, 3)
    assert run_index(["--corpus", "c", "--source", str(source), *store, "--local"]) == 0
    assert cli.main(["status", *store]) == 0
    assert "could not be read" not in capsys.readouterr().out.partition("status")[2]


# --- full disks ------------------------------------------------------------------------------------------------------------------


def _limited(arguments: list[str], cache: str, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))  # no file may grow beyond it: as a disk or quota that is full
    os.environ["SONDAGE_CACHE"] = cache
    sys.stdout = sys.stderr = io.StringIO()  # pytest's are files, which are full as well
    raise SystemExit(run_index([*arguments, "--local"]))


@pytest.mark.parametrize("limit", [0, 300, 2_000, 6_000])
def test_a_disk_that_is_full_stops_the_run_and_harms_nothing(limit, tmp_path):
    source = write_files(tmp_path / "src", {"a.txt": "The amber room was lost.\n"})
    engine = Engine(tmp_path)
    engine.index(source, calibrate=False)
    write_files(source, {f"{i}.txt": f"cobalt {i}\n" * 20 for i in range(40)})
    arguments = ["--corpus", "c", "--source", str(source), "--store", str(tmp_path / "store")]
    start(["--help"], str(tmp_path / "cache")).join()  # starts the fork server
    job = CONTEXT.Process(target=_limited, args=(arguments, str(tmp_path / "cache"), limit))
    job.start()
    job.join(60)
    assert job.exitcode == 2
    assert engine.generation().root.generation == 1
    assert paths(engine.search("amber", layers=["bm25"])) == ["a.txt"]
    outcome = engine.index(source, calibrate=False)
    assert (outcome.added, outcome.failed) == (40, {})


def test_a_temporary_folder_that_is_full_is_named(tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a"), io.BytesIO())
    monkeypatch.setattr("shards.archives._unpack", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(SourceError, match=r"does not fit into .*set TMPDIR"):
        list_source(Source("s", f"tar://{tmp_path}/x.tar.gz"))


# --- trying again ------------------------------------------------------------------------------------------------------------------


class Status(Exception):
    def __init__(self, status: int):
        self.status = status


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (Status(503), True),
        (Status(429), True),
        (Status(404), False),
        (PermissionError(13, "no"), False),
        (FileNotFoundError(), False),
        (ValueError("503"), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error, expected):
    assert is_transient(error) is expected
    wrapped = OSError("translated")
    wrapped.__cause__ = error
    assert is_transient(wrapped) is expected
    error.__cause__ = error
    assert is_transient(error) is expected  # and ends


def test_waits_grow_and_end():
    waited: list[float] = []
    calls: list[int] = []

    def act() -> None:
        calls.append(1)
        raise TimeoutError("silent")

    with pytest.raises(TimeoutError, match="silent"):
        Retry((1.0, 2.0, 4.0), waited.append)(act)
    assert len(calls) == 4
    assert all(0.5 * most <= wait <= most for wait, most in zip(waited, (1.0, 2.0, 4.0), strict=True))
    assert Retry((1.0,), waited.append)(lambda: 5) == 5 and len(waited) == 3


class Many:
    """A remote source of equal files that notices how many are fetched at once."""

    parallel, only = 16, ""

    def __init__(self, size: int):
        self.size, self.lock, self.now, self.most = size, threading.Lock(), 0, 0

    def find(self) -> Found:
        return Found()

    def read(self, path: str, limit: int) -> bytes:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        return b"x" * self.size

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("size", "most"), [(10, 16), (60, 1), (1_000, 1)])
def test_what_is_fetched_ahead_is_bounded_in_number_and_bytes(size, most, tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "_AHEAD_BYTES", 160 if size == 10 else 100)
    with Opener(Source("s", str(tmp_path))) as opener:
        many = opener.files = Many(size)
        names = [str(i) for i in range(40)]
        for n, (name, data) in enumerate(opener.read_many(names, dict.fromkeys(names, size))):
            assert (name, len(data)) == (str(n), size)
            with many.lock:
                many.now -= 1
        assert many.most <= most


def test_a_vanished_file_is_told_from_one_that_was_never_there(tmp_path):
    source = write_files(tmp_path / "src", {"a.txt": "amber\n"})
    with Opener(Source("s", str(source))) as opener, pytest.raises(NotFound, match="is gone since it was listed"):
        opener.read("b.txt")
    assert open_store(tmp_path / "store").list() == []
    assert Path(source, "a.txt").exists()
