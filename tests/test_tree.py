"""The Merkle tree of a source: equal rows, equal tree; work in proportion to the change."""

import os
import random
import uuid
from typing import Any

import pytest
from faults import FaultyStore
from hypothesis import given, settings
from hypothesis import strategies as st

from shards import tree
from shards.errors import Corrupt, SourceError
from shards.store import Store, open_store
from shards.tree import Rule, TreeRow, build, diff, edit, find, get, rows

HASH = "0123456789abcdef0123456789abcdef01234567"


def shrink_pages(patch: pytest.MonkeyPatch) -> None:
    """Pages of 4 rows and 3 references: a few dozen rows make a tree of several levels."""
    patch.setattr(tree, "LEAF", Rule(1, 4, 8))
    patch.setattr(tree, "NODE", Rule(2, 3, 6))
    patch.setattr(tree, "_WINDOW", 2)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_pages(monkeypatch)


def memory() -> Store:
    return open_store(f"memory://{uuid.uuid4().hex}")


def row(path: str, version: int = 0, **extra: Any) -> TreeRow:
    return TreeRow(path, HASH, version, 10**18 + version, **extra)


def numbered(n: int) -> list[TreeRow]:
    return [row(f"src/{i:06d}.py") for i in range(n)]


def in_order(some: dict[str, TreeRow]) -> list[TreeRow]:
    return sorted(some.values(), key=lambda r: r.path.encode("utf-8", "surrogateescape"))


def test_an_empty_tree_has_no_rows_and_differs_from_none() -> None:
    store = memory()
    empty = build(store, [])
    assert list(rows(store, empty)) == []
    assert get(store, empty, "a") is None
    assert list(diff(store, empty, build(store, []))) == []
    assert list(diff(store, empty, build(store, [row("a")]))) == [("a", None, row("a"))]


def test_many_paths_are_found_as_one_by_one_and_each_page_is_read_once(small_pages: None) -> None:
    store = FaultyStore(memory())
    root = build(store, numbered(200))
    asked = [f"src/{i:06d}.py" for i in range(0, 260, 3)] + ["", "src", "z", "src/000003.py"]
    read_before = len(store.reads())
    found = find(store, root, asked)
    assert len(store.reads()) - read_before == len(set(store.reads()[read_before:]))
    assert found == {path: there for path in asked if (there := get(store, root, path)) is not None}
    assert len(found) == 67
    assert find(store, root, []) == find(store, build(store, []), ["a"]) == {}


def test_rows_come_back_in_order_of_the_bytes_of_their_paths() -> None:
    """U+10000 sorts after U+FFFD in bytes as in code points, but an undecodable byte sorts by its byte, not by its escape."""
    store = memory()
    paths = ["b", "a/b", "a", "a.b", "é", "\ufffd", "\U00010000", os.fsdecode(b"x\x80"), "x中", os.fsdecode(b"x\xff")]
    root = build(store, [row(path) for path in paths])
    expected = ["a", "a.b", "a/b", "b", os.fsdecode(b"x\x80"), "x中", os.fsdecode(b"x\xff"), "é", "\ufffd", "\U00010000"]
    assert [r.path for r in rows(store, root)] == expected


def test_a_row_survives_with_all_its_fields() -> None:
    store = memory()
    all_kinds = [
        TreeRow("a", HASH, 1, -5),
        TreeRow("b", HASH, 2, 6, "etag"),
        TreeRow("c", HASH, 3, 7, "", {"k": [1, 2.5, None, True, "é\udc80"], "z": {"y": 1}}),
        TreeRow(os.fsdecode(b"d\xe9\xff"), HASH, 2**60, 2**62, "etag", {"x": 1}),
    ]
    root = build(store, all_kinds)
    assert list(rows(store, root)) == all_kinds
    assert [get(store, root, r.path) for r in all_kinds] == all_kinds
    assert get(store, root, "bb") is None


@pytest.mark.usefixtures("small_pages")
def test_the_tree_depends_only_on_its_rows() -> None:
    listed = numbered(200)
    expected = build(memory(), listed)
    shuffled = listed[:]
    random.Random(7).shuffle(shuffled)
    assert build(memory(), iter(shuffled)) == expected


@pytest.mark.usefixtures("small_pages")
def test_a_run_of_paths_without_a_boundary_is_cut_at_the_largest_page() -> None:
    """Paths are chosen so that none ends a page of itself; 20 rows are then cut into 8, 8 and 4."""

    def ends_page(path: str) -> bool:
        return len(tree._cut(0, [path.encode()], [row(path)], [])[0]) == 1

    store = memory()
    plain = [path for i in range(40) if not ends_page(path := f"{i:03d}")][:20]
    root = build(store, [row(path) for path in plain])
    top = tree._Pages(store)
    assert [child.n_rows for child in top.load(top.top(root)[0]).items] == [8, 8, 4]


@settings(max_examples=150)
@given(st.data())
def test_any_history_of_edits_gives_the_tree_that_building_gives(data: st.DataObject) -> None:
    """Also: the difference of two versions is what a comparison of their rows finds."""
    with pytest.MonkeyPatch.context() as patch:
        shrink_pages(patch)
        check_a_history(data)


def check_a_history(data: st.DataObject) -> None:
    letters = "ab/é\udc80中"
    path = st.one_of(st.text(letters, min_size=1, max_size=4), st.integers(0, 120).map("n{:03d}".format))
    path = path.filter(lambda p: p.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") == p)
    batch = st.dictionaries(path, st.integers(0, 3), max_size=60)
    store = memory()
    held = {p: row(p, v) for p, v in data.draw(batch).items()}
    root = build(store, held.values())
    for _ in range(data.draw(st.integers(1, 4))):
        before, old_root = dict(held), root
        upserts = {p: row(p, v) for p, v in data.draw(st.one_of(batch, st.dictionaries(path, st.just(9), max_size=2))).items()}
        known = st.sampled_from(sorted(held)) if held else path
        deletes = data.draw(st.one_of(st.sets(st.one_of(known, path), max_size=60), st.just(set(held))))
        root = edit(store, root, upserts.values(), deletes)
        held = {p: r for p, r in held.items() if p not in deletes} | upserts
        assert root == build(memory(), held.values())
        assert list(rows(store, root)) == in_order(held)
        changed = {p for p in before.keys() | held.keys() if before.get(p) != held.get(p)}
        paths = [r.path for r in in_order({p: held.get(p) or before[p] for p in changed})]
        expected = [(p, before.get(p), held.get(p)) for p in paths]
        assert list(diff(store, old_root, root)) == expected
    for prefix in ("", "n", "n0", "n01", "a", "é", "\udc80", "zz"):
        assert list(rows(store, root, prefix)) == [r for r in in_order(held) if r.path.startswith(prefix)]
    for p in ("a", "n050", *held):
        assert get(store, root, p) == held.get(p)


def test_an_edit_reads_and_writes_a_page_per_level_and_no_more_than_its_neighbours() -> None:
    store = FaultyStore(memory())
    root = build(store, numbered(20_000))
    assert 25 < len(store.writes()) < 80  # about 40 pages of about 512 rows, and few above them
    n_levels = tree._Pages(store).top(root)[1] + 1
    store.operations.clear()
    changed = edit(store, root, [row("src/010000.py", 1)])
    assert len(store.reads()) == len(store.writes()) == n_levels
    store.operations.clear()
    assert edit(store, changed, [row("src/010000.py")]) == root


def test_an_edit_that_changes_nothing_writes_nothing() -> None:
    for n in (0, 10, 2000):
        store = FaultyStore(memory())
        root = build(store, numbered(n))
        store.operations.clear()
        assert edit(store, root) == root
        assert edit(store, root, numbered(n)[:3], ["unknown"]) == root
        assert store.writes() == []


@pytest.mark.usefixtures("small_pages")
def test_a_difference_is_found_by_reading_only_pages_that_differ() -> None:
    store = FaultyStore(memory())
    listed = numbered(3000)
    a = build(store, listed)
    pages_of_a = set(store.writes())
    store.operations.clear()
    b = edit(store, a, [row("src/001000.py", 1), row("src/000000.pyx")], ["src/002999.py"])
    pages_of_b = set(store.writes())
    store.operations.clear()
    assert [path for path, _, _ in diff(store, a, b)] == ["src/000000.pyx", "src/001000.py", "src/002999.py"]
    read = store.reads()
    assert len(read) == len(set(read))
    # What b wrote is all that a does not have; of a, at most as much is opened, give or take pages split or joined.
    assert len(pages_of_a) > 900
    assert set(read) - pages_of_a == pages_of_b
    assert len(set(read) & pages_of_a) <= len(pages_of_b) + 3


@pytest.mark.usefixtures("small_pages")
def test_trees_of_different_heights_share_their_common_pages() -> None:
    store = FaultyStore(memory())
    a, b = build(store, numbered(12)), build(store, numbered(2000))
    store.operations.clear()
    assert [path for path, old, _ in diff(store, a, b) if old is None] == [r.path for r in numbered(2000)[12:]]
    assert [path for path, _, new in diff(store, b, a) if new is None] == [r.path for r in numbered(2000)[12:]]


@pytest.mark.usefixtures("small_pages")
def test_a_prefix_reads_only_pages_that_may_hold_it() -> None:
    store = FaultyStore(memory())
    root = build(store, [row(f"{c}/{i:03d}") for c in "abcdefgh" for i in range(100)])
    store.operations.clear()
    assert len(list(rows(store, root, "c/"))) == 100
    assert len(store.reads()) < 60 and len(store.inner.list()) > 250


def test_a_path_listed_twice_is_refused() -> None:
    with pytest.raises(SourceError, match="'a' is listed twice"):
        build(memory(), [row("b"), row("a"), row("a", 1)])


def test_values_that_are_equal_in_python_but_not_in_json_are_different() -> None:
    store = memory()
    a, b = (build(store, [row("x", metadata={"n": value})]) for value in (1, True))
    assert [path for path, _, _ in diff(store, a, b)] == ["x"]


@pytest.mark.parametrize("value", [float("nan"), object(), {1: 1, "a": 2}])
def test_metadata_that_is_not_json_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(SourceError, match="'bad'"):
        build(memory(), [row("good"), row("bad", metadata={"v": value})])


def test_a_path_that_is_neither_text_nor_escaped_bytes_is_refused() -> None:
    with pytest.raises(SourceError, match="surrogates"):
        build(memory(), [row("\ud800")])


def test_a_damaged_page_is_reported_with_its_name() -> None:
    store = memory()
    root = build(store, numbered(10))
    store.write(root.name, store.read(root.name).replace(b"src", b"scr"))
    with pytest.raises(Corrupt, match=root.name):
        list(rows(store, root))
