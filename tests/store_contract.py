"""What every store promises. A backend's test class inherits this and says how to open an empty store."""

import multiprocessing
from typing import Any

import pytest

from shards.errors import AlreadyExists, NotFound, StoreError
from shards.store import Store, open_store

N_RACES = 50


def _race(url: str, options: dict[str, Any], me: str, barrier: Any, answers: Any) -> None:
    """One contender: creates the same names as the other, each at the same instant, and reports which it won."""
    store = open_store(url, **options)
    won = []
    store.exists("warm-up")  # S3's client is made at the first call
    for i in range(N_RACES):
        barrier.wait(timeout=60)
        try:
            store.create(f"race/{i:04d}", me.encode())
            won.append(i)
        except AlreadyExists:
            pass
    answers.put((me, won))


class StoreContract:
    """`opened` is a fixture of the subclass: (empty store, its URL, its options)."""

    shared_by_processes = True

    @pytest.fixture
    def store(self, opened: tuple[Store, str, dict[str, Any]]) -> Store:
        return opened[0]

    def test_what_was_written_is_read_back_whole_or_in_part(self, store: Store) -> None:
        store.write("a/b.bin", b"0123456789")
        assert store.read("a/b.bin") == b"0123456789"
        assert store.read("a/b.bin", 2, 5) == b"234"
        assert store.read("a/b.bin", 7) == b"789"
        assert store.read("a/b.bin", None, 3) == b"012"
        assert store.read("a/b.bin", 8, 99) == b"89"
        assert store.read("a/b.bin", 10) == b""
        assert store.read("a/b.bin", 99, 100) == b""
        assert store.read("a/b.bin", 4, 4) == b""
        assert store.size("a/b.bin") == 10

    def test_an_empty_file_is_a_file(self, store: Store) -> None:
        store.write("empty", b"")
        assert store.read("empty") == b""
        assert store.read("empty", 0, 5) == b""
        assert store.size("empty") == 0
        assert store.exists("empty")

    def test_writing_the_same_again_is_harmless(self, store: Store) -> None:
        store.write("x", b"same")
        store.write("x", b"same")
        assert store.read("x") == b"same"
        assert store.list() == ["x"]

    def test_a_missing_file_is_not_found_and_the_error_names_file_and_store(self, store: Store) -> None:
        store.write("folder/file", b"x")
        for name in ("nothing", "folder"):
            for read in (store.read, store.size, lambda name: store.read(name, 1, 1)):
                with pytest.raises(NotFound, match=name) as caught:
                    read(name)
                assert store.url in str(caught.value)
            assert not store.exists(name)

    def test_create_refuses_a_name_that_exists_and_leaves_it_as_it_was(self, store: Store) -> None:
        store.create("roots/1", b"first")
        with pytest.raises(AlreadyExists, match="roots/1"):
            store.create("roots/1", b"second")
        assert store.read("roots/1") == b"first"

    def test_create_refuses_even_the_same_content(self, store: Store) -> None:
        store.create("lease", b"same")
        with pytest.raises(AlreadyExists):
            store.create("lease", b"same")

    def test_a_list_is_sorted_and_recursive_and_filtered_by_prefix(self, store: Store) -> None:
        for name in ("b/2", "b/10", "b/c/d", "a", "bb"):
            store.write(name, b"")
        assert store.list() == ["a", "b/10", "b/2", "b/c/d", "bb"]
        assert store.list("b") == ["b/10", "b/2", "b/c/d", "bb"]
        assert store.list("b/") == ["b/10", "b/2", "b/c/d"]
        assert store.list("b/1") == ["b/10"]
        assert store.list("z/") == []

    def test_a_list_shows_what_another_store_object_wrote_a_moment_ago(self, opened: tuple[Store, str, dict[str, Any]]) -> None:
        store, url, options = opened
        other = open_store(url, **options)
        assert store.list("roots/") == []
        other.create("roots/1", b"")
        assert store.list("roots/") == ["roots/1"]
        assert store.exists("roots/1")
        other.delete("roots/1")
        assert store.list("roots/") == []
        assert not store.exists("roots/1")

    def test_folders_are_the_first_parts_of_names(self, store: Store) -> None:
        for name in ("news/roots/1", "news/pages/2", "wiki/roots/1", "file"):
            store.write(name, b"x")
        assert store.folders() == ["news", "wiki"]
        assert store.folders("news") == ["pages", "roots"]
        assert store.folders("none") == []

    def test_deleting_twice_is_no_error(self, store: Store) -> None:
        store.write("x", b"x")
        store.delete("x")
        store.delete("x")
        assert not store.exists("x")

    def test_a_child_is_the_same_store_one_folder_down(self, store: Store) -> None:
        child = store.child("news").child("deep")
        child.write("roots/1", b"x")
        assert store.read("news/deep/roots/1") == b"x"
        assert child.list() == ["roots/1"]
        assert child.folders() == ["roots"]
        assert child.url == f"{store.url}/news/deep"

    def test_many_files_are_written_and_read_in_order(self, store: Store) -> None:
        files = {f"pages/{i}": str(i).encode() for i in range(40)}
        store.write_many(files)
        assert store.read_many(list(files)) == list(files.values())
        with pytest.raises(NotFound):
            store.read_many(["pages/1", "pages/none", "pages/2"])

    @pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../../x", "a//b", "a/", "./a", "a\\b", "a\n", "a\0", "é", ".x"])
    def test_names_that_could_leave_the_store_are_refused(self, store: Store, name: str) -> None:
        for act in (store.read, store.size, store.delete, store.exists, store.child, lambda n: store.write(n, b"")):
            with pytest.raises(StoreError, match="not allowed"):
                act(name)
        if name not in ("", "a/"):
            with pytest.raises(StoreError, match="not allowed"):
                store.list(name)

    def test_of_two_processes_that_create_a_name_exactly_one_wins(self, opened: tuple[Store, str, dict[str, Any]]) -> None:
        if not self.shared_by_processes:
            pytest.skip("this store lives in one process; see its thread race")
        store, url, options = opened
        context = multiprocessing.get_context("spawn")
        barrier, answers = context.Barrier(2), context.Queue()
        contenders = [context.Process(target=_race, args=(url, options, me, barrier, answers)) for me in ("first", "second")]
        for contender in contenders:
            contender.start()
        won = dict(answers.get(timeout=120) for _ in contenders)
        for contender in contenders:
            contender.join(timeout=60)
            assert contender.exitcode == 0
        assert sorted(won["first"] + won["second"]) == list(range(N_RACES))
        for me, names in won.items():
            assert all(store.read(f"race/{i:04d}") == me.encode() for i in names)
