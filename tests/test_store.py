"""Every backend keeps the store's contract; then what is particular to each."""

import errno
import logging
import os
import pickle
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import Crash, FaultyStore
from store_contract import StoreContract

from shards.errors import AlreadyExists, BadSpec, StoreError
from shards.store import LocalStore, Store, open_store

Opened = tuple[Store, str, dict[str, Any]]


class TestLocalStore(StoreContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Opened:
        url = str(tmp_path / "store")
        return open_store(url), url, {}


class TestMemoryStore(StoreContract):
    shared_by_processes = False

    @pytest.fixture
    def opened(self) -> Opened:
        url = f"memory://{uuid.uuid4().hex}"
        return open_store(url), url, {}


@pytest.mark.s3
class TestS3Store(StoreContract):
    @pytest.fixture
    def opened(self, s3_server: Any) -> Opened:
        url = f"s3://{s3_server.bucket()}/some/prefix"
        return open_store(url, **s3_server.options), url, s3_server.options


class TestFaultyStore(StoreContract):
    """The wrapper that crash tests use changes nothing as long as nothing fails."""

    shared_by_processes = False

    @pytest.fixture
    def opened(self) -> Opened:
        url = f"memory://{uuid.uuid4().hex}"
        return FaultyStore(open_store(url)), url, {}


def test_a_faulty_store_crashes_at_the_nth_operation_and_stays_dead(tmp_path: Path) -> None:
    for after, kept in ((False, ["a"]), (True, ["a", "b"])):
        inner = LocalStore(tmp_path / str(after))
        store = FaultyStore(inner, fail_at=2, after=after)
        store.write("a", b"")
        with pytest.raises(Crash):
            store.write("b", b"")
        with pytest.raises(Crash):
            store.child("x").write("c", b"")
        assert inner.list() == kept
        assert store.operations == [("write", "a"), ("write", "b"), ("write", "x/c")]


def test_a_url_opens_the_same_store_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("a b%20c")
    store.write("x", b"1")
    assert store.url == str(tmp_path / "a b%20c")
    for url in (store.url, Path(store.url), f"file://{tmp_path}/a%20b%2520c", f"file://localhost{tmp_path}/a b%2520c"):
        assert open_store(url).read("x") == b"1"
    open_store("memory://same/sub").write("x", b"2")
    assert open_store("memory://same").read("sub/x") == b"2"


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("gs://bucket/x", {}, "scheme 'gs'.*choose from"),
        ("file://host/x", {}, "three slashes"),
        ("", {}, "empty"),
        ("/tmp/x", {"key": "k"}, "takes no options, got key"),
        ("s3://", {}, "bucket"),
        ("s3://UPPER/x", {}, "bucket"),
        ("s3://bucket/x", {"secrets": "hush"}, "secrets.*options are: endpoint_url, key, secret"),
    ],
)
def test_a_wrong_store_url_or_option_is_refused_with_the_remedy(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSpec, match=message) as caught:
        open_store(url, **options)
    assert "hush" not in str(caught.value)


def test_of_many_threads_that_create_a_name_in_memory_exactly_one_wins() -> None:
    store, won, barrier = open_store(f"memory://{uuid.uuid4().hex}"), [], threading.Barrier(4)

    def contend() -> None:
        for i in range(50):
            barrier.wait(timeout=60)
            try:
                store.create(str(i), b"")
                won.append(i)
            except AlreadyExists:
                pass

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(50))


def test_a_memory_store_cannot_be_sent_to_another_process() -> None:
    with pytest.raises(StoreError, match="one process"):
        pickle.dumps(open_store("memory://x"))


def test_a_local_file_can_be_mapped_and_a_remote_one_cannot(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.write("a/b", b"x")
    assert store.local_path("a/b") == tmp_path / "a" / "b"
    assert open_store("memory://x").local_path("a/b") is None
    with pytest.raises(StoreError, match="not allowed"):
        store.local_path("../b")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Make the next os call of the given name fail with an errno."""
    faults: dict[str, int] = {}
    for name in ("fsync", "link", "replace"):
        real = getattr(os, name)

        def call(*args: Any, name: str = name, real: Any = real, **kwargs: Any) -> Any:
            if name in faults:
                raise OSError(faults[name], os.strerror(faults[name]))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)
    yield faults


def test_a_full_disk_leaves_no_file_behind_and_says_what_to_do(tmp_path: Path, broken: dict[str, int]) -> None:
    store = open_store(tmp_path)
    store.write("old", b"old")
    broken["fsync"] = errno.ENOSPC
    for act in (store.write, store.create):
        with pytest.raises(StoreError, match=r"'new'.*No space left.*Free space"):
            act("new", b"x")
    with pytest.raises(StoreError, match="Free space"):
        store.write_many({"new/1": b"", "new/2": b""})
    assert store.list() == ["old"]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["old"]


def test_a_file_system_without_hard_links_is_refused_not_raced(tmp_path: Path, broken: dict[str, int]) -> None:
    broken["link"] = errno.EPERM
    with pytest.raises(StoreError, match="hard links"):
        open_store(tmp_path).create("x", b"")
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_was_done_but_reported_as_failed_counts_as_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a request whose answer was lost; the repetition finds the name taken, by us."""
    real = os.link

    def lost_answer(source: Any, target: Any) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", lost_answer)
    open_store(tmp_path).create("x", b"mine")
    assert open_store(tmp_path).read("x") == b"mine"


def test_a_process_killed_while_writing_leaves_nothing_that_is_listed(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from shards.store import open_store
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
open_store(sys.argv[1]).write("x", b"half")
"""
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=Path(__file__).parents[1], timeout=60)
    assert killed.returncode == -9
    store = open_store(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1  # its temporary file
    assert store.list() == [] and store.folders() == []


def test_a_store_that_is_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file"):
        open_store(tmp_path / "file").write("x", b"")
    with pytest.raises(StoreError, match="file"):
        open_store(tmp_path / "file").list()


@pytest.mark.s3
def test_a_missing_bucket_is_not_an_empty_store(s3_server: Any) -> None:
    store = open_store("s3://no-such-bucket", **s3_server.options)
    named = (lambda: store.read("x"), lambda: store.write("x", b""), lambda: store.create("x", b""))
    for act in (store.list, store.folders, *named):
        with pytest.raises(StoreError, match="Create the bucket 'no-such-bucket'"):
            act()


@pytest.mark.s3
def test_a_large_object_is_created_exclusively_too(s3_server: Any) -> None:
    """From 100 MiB on s3fs uploads in parts and puts the condition on the last request."""
    store = open_store(f"s3://{s3_server.bucket()}", **s3_server.options)
    data = bytes(100 * 2**20 + 1)
    store.create("large", data)
    assert store.size("large") == len(data)
    with pytest.raises(AlreadyExists):
        store.create("large", data)


@pytest.mark.s3
def test_a_create_whose_answer_was_lost_counts_as_won_when_repeated(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"s3://{s3_server.bucket()}", **s3_server.options)
    real = store._fs.pipe_file

    def lost_answer(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        real(*args, **kwargs)  # what botocore does when the first answer does not arrive

    monkeypatch.setattr(store._fs, "pipe_file", lost_answer)
    store.create("x", b"mine")
    with pytest.raises(AlreadyExists):
        store.create("x", b"theirs")
    assert store.read("x") == b"mine"


@pytest.mark.s3
def test_a_write_that_collides_with_another_in_flight_is_sent_again(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error

    store = open_store(f"s3://{s3_server.bucket()}", **s3_server.options)
    real, n_calls = store._fs.pipe_file, []

    def collides_once(*args: Any, **kwargs: Any) -> None:
        n_calls.append(1)
        if len(n_calls) == 1:
            raise translate_boto_error(ClientError({"Error": {"Code": "ConditionalRequestConflict"}}, "PutObject"))
        real(*args, **kwargs)

    monkeypatch.setattr(store._fs, "pipe_file", collides_once)
    store.create("x", b"x")
    assert store.read("x") == b"x" and len(n_calls) == 2


@pytest.mark.s3
def test_an_s3_list_of_more_than_one_page_is_complete(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"s3://{s3_server.bucket()}/p", **s3_server.options)
    names = [f"{i}/roots/0" for i in range(8)]
    store.write_many(dict.fromkeys(names, b""))
    real, pages = store._fs.call_s3, []

    def small_pages(*args: Any, **kwargs: Any) -> Any:
        pages.append(real(*args, **kwargs, MaxKeys=3))
        return pages[-1]

    monkeypatch.setattr(store._fs, "call_s3", small_pages)
    assert store.list() == names
    assert len(pages) == 3
    assert store.folders() == [str(i) for i in range(8)]
    assert len(pages) == 6


@pytest.mark.s3
def test_an_s3_store_can_be_sent_to_another_process(s3_server: Any) -> None:
    store = open_store(f"s3://{s3_server.bucket()}/p", **s3_server.options).child("q")
    store.write("x", b"1")
    assert pickle.loads(pickle.dumps(store)).read("x") == b"1"


@pytest.mark.s3
def test_a_server_that_is_away_is_an_error_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    store = open_store("s3://bucket", endpoint_url="http://127.0.0.1:9", key="k", secret="s")
    store._fs.config_kwargs["retries"] = {"max_attempts": 0}
    with pytest.raises(StoreError, match=r"http://127.0.0.1:9 is reachable"):
        store.read("x")
