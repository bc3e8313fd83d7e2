"""The local cache of a store's files: right bytes or an error, below its limit, shared by processes."""

import errno
import hashlib
import multiprocessing
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from faults import FaultyStore

from shards import cache as cache_module
from shards.cache import FileCache
from shards.errors import Corrupt, NotFound, StoreError
from shards.store import Store, open_store


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(open_store(f"memory://{uuid.uuid4().hex}"))


def put(store: Store, name: str, data: bytes) -> tuple[str, int, str]:
    store.write(name, data)
    return name, len(data), sha(data)


def test_a_file_is_downloaded_once_and_then_found(store: FaultyStore, tmp_path: Path) -> None:
    file = put(store, "a", b"content")
    for cache in (FileCache(tmp_path, 1000), FileCache(tmp_path, 1000)):
        assert cache.path(store, *file).read_bytes() == b"content"
        assert cache.path(store, *file, verify=True).read_bytes() == b"content"
    assert store.reads() == ["a"]


def test_equal_content_is_kept_once_whatever_its_name(store: FaultyStore, tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 1000)
    assert cache.path(store, *put(store, "a", b"same")) == cache.path(store, *put(store, "b", b"same"))
    assert store.reads() == ["a"]


def test_a_local_stores_file_is_used_where_it_is(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    file = put(store, "a/b", b"content")
    cache = FileCache(tmp_path / "cache", 1000)
    assert cache.path(store, *file, verify=True, pin=True) == tmp_path / "store" / "a" / "b"
    assert not (tmp_path / "cache").exists()


def test_a_large_file_is_fetched_in_parts(store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_PART_BYTES", 10)
    for n in (0, 9, 10, 11, 95, 100):
        data = bytes(range(n))
        assert FileCache(tmp_path, 1000).path(store, *put(store, str(n), data)).read_bytes() == data
    assert store.reads().count("95") == 10


@pytest.mark.parametrize("part_bytes", [4, 100])
def test_bytes_that_are_not_what_the_manifest_says_are_corrupt(
    store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(cache_module, "_PART_BYTES", part_bytes)
    good = b"0123456789"
    for stored, found in ((good[:-1], "has 9 bytes.*says 10"), (good + b"x", "has 11 bytes.*says 10"), (good[::-1], "checksum")):
        store.write("a", stored)
        with pytest.raises(Corrupt, match=f"'a'.*{found}"):
            FileCache(tmp_path, 1000).path(store, "a", 10, sha(good))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_local_stores_damage_is_noticed_by_size_always_and_by_checksum_on_request(tmp_path: Path) -> None:
    store, cache = open_store(tmp_path / "store"), FileCache(tmp_path / "cache", 1000)
    name, size, _ = put(store, "a", b"content")
    with pytest.raises(Corrupt, match="says 8"):
        cache.path(store, name, 8, sha(b"content"))
    cache.path(store, name, size, sha(b"another"))
    with pytest.raises(Corrupt, match="checksum"):
        cache.path(store, name, size, sha(b"another"), verify=True)


def test_a_damaged_cached_file_is_fetched_again(store: FaultyStore, tmp_path: Path) -> None:
    file = put(store, "a", b"content")
    FileCache(tmp_path, 1000).path(store, *file).write_bytes(b"cut")
    assert FileCache(tmp_path, 1000).path(store, *file).read_bytes() == b"content"
    FileCache(tmp_path, 1000).path(store, *file).write_bytes(b"CONTENT")
    assert FileCache(tmp_path, 1000).path(store, *file, verify=True).read_bytes() == b"content"


def test_a_missing_file_is_not_found_and_leaves_no_pin(store: FaultyStore, tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 1000)
    with pytest.raises(NotFound):
        cache.path(store, "none", 1, sha(b"x"), pin=True)
    assert not cache._pins


def aged(path: Path, seconds: int) -> Path:
    """The path, last used so long ago."""
    now = path.stat().st_mtime_ns
    os.utime(path, ns=(now, now - seconds * 10**9))
    return path


def test_the_least_recently_used_files_make_room(store: FaultyStore, tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 100)
    files = [put(store, str(i), bytes([i]) * 30) for i in range(4)]
    first, second, third = (aged(cache.path(store, *file), 10 - i) for i, file in enumerate(files[:3]))
    assert cache.path(store, *files[0]) == first  # now the most recent
    fourth = cache.path(store, *files[3])
    assert [path.exists() for path in (first, second, third, fourth)] == [True, False, True, True]


def test_a_pinned_file_is_never_evicted_even_above_the_limit(store: FaultyStore, tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 50)
    files = [put(store, str(i), bytes([i]) * 30) for i in range(4)]
    pinned = aged(cache.path(store, *files[0], pin=True), 100)
    cache.pin(pinned)
    cache.unpin(pinned)
    paths = [aged(cache.path(store, *file), 10 - i) for i, file in enumerate(files[1:])]
    assert pinned.exists()
    assert [path.exists() for path in paths] == [False, False, True]
    cache.unpin(pinned)
    cache.path(store, *files[1])
    assert not pinned.exists()


def test_what_other_processes_cached_counts_towards_the_limit(store: FaultyStore, tmp_path: Path) -> None:
    files = [put(store, str(i), bytes([i]) * 30) for i in range(6)]
    ours, theirs = FileCache(tmp_path, 100), FileCache(tmp_path, 100)
    for i, file in enumerate(files):
        aged((ours if i % 2 else theirs).path(store, *file), 10 - i)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 100


def test_a_mapped_file_stays_readable_after_it_was_evicted(store: FaultyStore, tmp_path: Path) -> None:
    import numpy as np

    cache = FileCache(tmp_path, 40)
    path = cache.path(store, *put(store, "a", b"a" * 30))
    mapped = np.memmap(path, np.uint8, "r")
    cache.path(store, *put(store, "b", b"b" * 30))
    assert not path.exists()
    assert bytes(mapped) == b"a" * 30


def test_a_full_disk_is_an_error_and_leaves_nothing(store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = put(store, "a", b"content")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StoreError, match=r"No space left.*lower the cache's limit"):
            FileCache(tmp_path, 1000).path(store, *file)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_a_killed_download_left_is_swept_by_the_next(store: FaultyStore, tmp_path: Path) -> None:
    file = put(store, "a", b"content")
    left = tmp_path / file[2][:2] / ".left"
    left.parent.mkdir()
    left.write_bytes(b"half")
    FileCache(tmp_path, 1000).path(store, *file)
    assert not left.exists()


def _fetch_all(url: str, options: dict[str, Any], folder: Path, files: list[tuple[str, int, str]], answers: Any) -> None:
    store = FaultyStore(open_store(url, **options))
    cache = FileCache(folder, 10**6)
    for file in files:
        assert sha(cache.path(store, *file).read_bytes()) == file[2]
    answers.put(len(store.reads()))


@pytest.mark.s3
def test_two_processes_download_each_file_once_between_them(s3_server: Any, tmp_path: Path) -> None:
    url = f"s3://{s3_server.bucket()}"
    store = open_store(url, **s3_server.options)
    files = [put(store, str(i), os.urandom(1000)) for i in range(20)]
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    both = [context.Process(target=_fetch_all, args=(url, s3_server.options, tmp_path, files, answers)) for _ in range(2)]
    for process in both:
        process.start()
    n_downloads = sum(answers.get(timeout=60) for _ in both)
    for process in both:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert n_downloads == 20
