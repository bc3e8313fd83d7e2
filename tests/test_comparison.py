"""A listing beside the tree of what was known, walked together, against the same by dictionaries."""

import os

from hypothesis import given
from hypothesis import strategies as st

from shards.comparison import change_of, compare
from shards.corpus import Listed, Listing
from shards.tree import TreeRow, sort_key
from shards.worker import Staged

PATHS = st.sampled_from(
    ["a", "a b", "a/b", "ab", "b", "é", "z", "\udc80", "\udcff/x", "𝄞", "c" * 300, *(f"d/{i}" for i in range(8))]
)  # by code points and by bytes they stand in different orders
FACTS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(["", "e"]))


def listing_of(files: dict[str, tuple], **more) -> Listing:
    return Listing(tuple(sorted((Listed(path, *facts) for path, facts in files.items()), key=sort_key)), {}, **more)


@given(st.dictionaries(PATHS, FACTS), st.dictionaries(PATHS, FACTS), st.sampled_from([(), ("d/",), ("a",), ("",)]))
def test_the_walk_finds_what_looking_each_path_up_finds(then, now, incomplete):
    rows = sorted((TreeRow(path, "00", *facts) for path, facts in then.items()), key=sort_key)
    compared = compare(listing_of(now, incomplete_prefixes=incomplete), iter(rows), 100)
    by_path = {row.path: row for row in rows}
    marked = {path for path, facts in now.items() if facts[1] or facts[2]}  # else nothing tells whether it changed
    assert {file.path for file in compared.suspects} == {p for p in now if then.get(p) != now[p] or p not in marked}
    assert compared.known == {file.path: by_path[file.path] for file in compared.suspects if file.path in then}
    gone = [row.path for row in rows if row.path not in now and not any(row.path.startswith(p) for p in incomplete)]
    assert [row.path for row in compared.gone] == gone


def test_a_file_that_was_too_large_is_looked_at_when_its_size_is_allowed():
    row = TreeRow("a", "", 50, 7, "", {"limit_bytes": 40})
    listing = listing_of({"a": (50, 7, "")})
    assert compare(listing, [row], 40).suspects == []
    assert [file.path for file in compare(listing, [row], 60).suspects] == ["a"]


def test_a_changed_file_is_one_removal_and_one_addition_and_one_that_failed_is_neither():
    rows = [TreeRow(path, "00" * 20, 1, 1, "") for path in "abc"]
    compared = compare(listing_of({"a": (2, 2, ""), "b": (2, 2, ""), "c": (1, 1, "")}), rows, 100)
    staged = Staged(hashes={"a": b"\1" * 20}, failed={"b": "no"})
    change = change_of("main", compared, [staged], 100)
    assert [(e.path, e.hash) for e in change.removed] == [("a", b"\0" * 20)]
    assert [(e.path, e.hash) for e in change.added] == [("a", b"\1" * 20)]
    assert [row.path for row in change.upserts] == ["a"] and change.deletes == []
    assert os.fsencode("a") == sort_key(change.upserts[0])
