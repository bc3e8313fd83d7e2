"""Metadata in typed columns: whatever entries have is kept, and filters find what the entry-by-entry definition finds."""

import functools
import json
import math
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shards import arrays as array_files
from shards import column_files, zones
from shards.cache import FileCache
from shards.columns import Columns, _Pieces
from shards.documents import Documents
from shards.entry_metadata import Metadata
from shards.errors import Corrupt
from shards.joining import Part, join_entries
from shards.plan import And, Compare, Everything, Glob, Not, Or, extension, glob_regex, lookup, matches
from shards.scope import EntryFields, runs
from shards.segment import Segment, pack_entries, serialise, unpack_entry, write
from shards.store import open_store
from shards.types import Entry

WORDS = ["", "a", "b", "ä", "aa", "\U0001f600", "2024-05-01", "2024-02-30", "2024-05-01T10:00:00Z", "2024-05-01T10:00:00.5Z", "0001-01-01",
         "\ud800", "x" * 300, "y.py"]  # fmt: skip
NUMBERS = [0, 1, 2, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, -(10**30), 0.0, -0.0, 1.0, 1.5, 2.0**53, math.inf, -math.inf, 1e308]
scalars = st.one_of(st.sampled_from(WORDS), st.sampled_from(NUMBERS), st.booleans())
values = st.one_of(
    scalars,
    st.none(),
    st.just(math.nan),
    st.lists(scalars, max_size=3),
    st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.lists(st.sampled_from([0.5, 1.0, -math.inf]), min_size=1, max_size=3),
    st.lists(st.just({"k": 1}), max_size=1),
)
KEYS = ["a", "b", "a.b", "", "ext", "\ud800", "c:string"]
metadata = st.dictionaries(
    st.sampled_from(KEYS), st.one_of(values, st.dictionaries(st.sampled_from(["b", "c", "x.y"]), values, max_size=2)), max_size=3
)
paths = st.lists(
    st.sampled_from(["src", "a", "x.py", ".x", "Ä.MD", "caf\udce9.py", "t.jsonl#a.b", "#", "x y"]), min_size=1, max_size=3
).map("/".join)
GLOBS = ["*.py", "**/*.py", "src/**", "src/**/*.py", "src/*/x.py", "/x.py", "x.py", "**", "*", "{src,a}/**", "[sa]*/x.py", "s?c/**"]
GLOBS += ["**/a/**", "caf?.py", "**.py", "src/**/x.py", "#", "src", "x y/*"]
entries = st.builds(
    lambda path, source, size, time, key, about: Entry(source, path, bytes([key]) * 20, size, time, metadata=about),
    paths,
    st.sampled_from(["main", "other"]),
    st.integers(0, 3),
    st.sampled_from([0, 10**9, 1_700_000_000_123_456_789]),
    st.integers(0, 5),
    metadata,
)
FIELDS = ["a", "b", "a.b", "a.c", "a.b.c", "", "c:string", "path", "source", "size_bytes", "mtime", "ext", "missing"]
operands = st.one_of(scalars, st.sampled_from(["src/x.py", "main", "py", "src", 10**400, 1.7e9]))
leaves = st.one_of(
    st.builds(Compare, st.sampled_from(FIELDS), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), operands),
    st.builds(Compare, st.sampled_from(FIELDS), st.just("in"), st.lists(operands, max_size=7).map(tuple)),
    st.builds(Compare, st.sampled_from(FIELDS), st.just("exists")),
    st.builds(Compare, st.sampled_from(FIELDS), st.just("has"), st.one_of(operands, st.sampled_from(["a", 1, 2]))),
    st.builds(Compare, st.sampled_from(FIELDS), st.just("glob"), st.sampled_from(GLOBS)),
    st.builds(Glob, st.sampled_from(GLOBS)),
)
predicates = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, max_size=3).map(lambda parts: And(tuple(parts))),
        st.lists(inner, max_size=3).map(lambda parts: Or(tuple(parts))),
    ),
    max_leaves=6,
)


def slow(where, entry: Entry) -> bool:
    """The definition: one entry, one predicate."""
    facts = {
        "path": entry.path, "source": entry.source, "size_bytes": entry.size_bytes, "mtime": entry.mtime_ns / 1e9,
        "ext": extension(entry.path),
    }  # fmt: skip
    return matches(where, entry.path, lambda name: facts[name] if name in facts else lookup(entry.metadata, name))


def through_files(entries):
    """The same entries as they are opened from a segment's files."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store("memory://" + Path(folder).name)
        ref = write(store, serialise(Documents.pack([]), entries, {}, {}, {}))
        opened = Segment(ref, store, FileCache(Path(folder), 1 << 30)).entries
        opened.metadata.zones, opened.metadata.columns.whole  # noqa: B018  (mapped while the files are there)
        return opened


def unique(rows: list[Entry]) -> list[Entry]:
    return list({(e.source, e.path): e for e in rows}.values())


small_blocks = (mock.patch("shards.zones.BLOCK", 3), mock.patch("shards.columns.SMALL", 4), mock.patch("shards.globs.FEW", 1))


def same(a, b) -> bool:
    """Equal, where 1, 1.0 and true are not, and NaN is."""
    if isinstance(a, dict) and isinstance(b, dict):
        return sorted(a) == sorted(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(st.lists(entries, max_size=12).map(unique), st.lists(predicates, min_size=1, max_size=4), st.integers(1, 3), st.randoms())
@example([Entry("s", "p", b"h" * 20, 1, 1, metadata={"a": 1})], [And((Compare("a", "==", 1), Compare("a", "==", True)))], 1, None)
def test_masks_are_the_predicate_entry_by_entry_however_segments_are_split(rows, asked, n_parts, random):
    with small_blocks[0], small_blocks[1], small_blocks[2]:
        whole = pack_entries(rows)
        places = [random.randrange(n_parts) if random else 0 for _ in rows]
        parts = [pack_entries([row for row, place in zip(rows, places, strict=True) if place == part]) for part in range(n_parts)]
        joined, _ = join_entries([Part(Documents.pack([]), part, np.zeros(0, bool), np.ones(len(part), bool)) for part in parts])
        opened = through_files(whole)
        for entries in (whole, joined, opened, *parts):
            fields = EntryFields(entries)
            kept = [unpack_entry(entries, row) for row in range(len(entries))]
            said = [functools.partial(fields.value, row) for row in range(len(entries))]
            for where in asked:
                mask = fields.mask(where)
                found = np.ones(len(entries), bool) if mask is None else mask
                assert found.tolist() == [slow(where, entry) for entry in kept], where
                assert found.tolist() == [matches(where, e.path, value) for e, value in zip(kept, said, strict=True)]
        for other in (joined, opened):
            assert all(same(dict(unpack_entry(whole, r).metadata), dict(unpack_entry(other, r).metadata)) for r in range(len(rows)))


@settings(max_examples=100, deadline=None)
@given(st.lists(metadata, max_size=9), st.lists(st.integers(0, 2), min_size=9, max_size=9), st.lists(st.booleans(), min_size=9, max_size=9))
def test_joined_columns_are_those_of_the_entries_they_bring_together(rows, owners, dropped):
    with small_blocks[0], small_blocks[1]:
        kept = [i for i in range(len(rows)) if not dropped[i]]
        expected = Columns.of([rows[i] for i in kept])
        parts = []
        for part in range(3):
            mine = [i for i in range(len(rows)) if owners[i] == part]
            new = np.array([kept.index(i) if i in kept else -1 for i in mine], np.int64)
            parts.append((Columns.of([rows[i] for i in mine]), new))
        joined = Columns.join(parts, len(kept))
        assert column_files.dump(joined) == column_files.dump(expected)
        assert zones.dump(zones.zones_of(joined)) == zones.dump(zones.zones_of(expected))


@settings(max_examples=100, deadline=None)
@given(st.lists(metadata, max_size=9))
def test_fields_that_are_told_at_once_go_where_single_values_go(rows):
    with small_blocks[1]:
        one_by_one = _Pieces(len(rows))
        for place, each in enumerate(rows):
            one_by_one.add(place, each)
        assert column_files.dump(Columns.of(rows)) == column_files.dump(one_by_one.columns())


@settings(max_examples=150)
@given(metadata)
def test_metadata_is_kept_to_the_type(given_metadata):
    assert same(Columns.of([{}, given_metadata]).get(1), given_metadata)


def test_a_field_of_several_types_has_a_column_for_each():
    columns = Columns.of([{"year": 1999}, {"year": "1999"}, {"year": 1999.5}, {"year": "1999-12-31"}, {"year": [1999]}, {"year": None}])
    assert [column.kind for column in columns.named("year")] == ["date", "float", "integer", "integers", "string"]
    assert columns.rest == {5: {"year": None}}


def test_a_field_that_few_entries_of_a_large_segment_have_goes_to_the_rest():
    rows = [{"usual": i} for i in range(5_000)]
    rows[17]["odd"] = "x"
    columns = Columns.of(rows)
    assert list(columns.names) == ["usual"] and columns.rest == {17: {"odd": "x"}}
    fields = EntryFields(pack_entries([Entry("s", f"{i:05}", bytes(20), 1, 1, metadata=m) for i, m in enumerate(rows)]))
    assert np.flatnonzero(fields.mask(Compare("odd", "==", "x"))).tolist() == [17]


def test_keys_that_are_data_do_not_make_a_column_each():
    columns = Columns.of([{f"id{i}": i} for i in range(2_000)])
    assert len(columns.columns) == 512 and len(columns.rest) == 2_000 - 512
    assert columns.get(1_999) == {"id1999": 1_999}


class Untouchable:
    """Columns that must not be read."""

    names = ("n",)
    rest: dict = {}  # noqa: RUF012

    def named(self, name):
        raise AssertionError(f"{name} was read")


def test_a_segment_is_passed_over_by_its_zones_without_its_columns():
    columns = Columns.of([{"n": i, "kind": "ab"[i % 2], "t": f"word{i}", "day": "2024-05-01"} for i in range(100)])
    known = zones.zones_of(columns)
    entries = pack_entries([Entry("s", f"{i}", bytes(20), 1, 1) for i in range(100)])
    object.__setattr__(entries, "metadata", Metadata(Untouchable, lambda: known))
    fields = EntryFields(entries)
    for asked in (("n", ">", 99), ("n", "==", "5"), ("kind", "==", "c"), ("t", "<", "word"), ("t", ">", "x"), ("day", ">=", "2024-05-02"),
                  ("missing", "!=", 1), ("n", "in", (100, 200)), ("missing", "exists"), ("kind", "glob", "c*")):  # fmt: skip
        where = Compare(*asked)
        assert not fields.mask(where).any(), where
    for asked in (("n", ">=", 0), ("kind", "in", ("a", "b")), ("t", ">", "w"), ("t", "exists"), ("n", "!=", 100), ("day", "glob", "2024*")):
        where = Compare(*asked)
        assert fields.mask(where) is None, where
    with pytest.raises(AssertionError, match="was read"):
        fields.mask(Compare("n", ">", 50))


def test_only_blocks_that_may_hold_a_match_are_compared():
    with mock.patch("shards.zones.BLOCK", 10):
        columns = Columns.of([{"n": i, "word": "xyz"[i // 40]} for i in range(100)])
        known = zones.zones_of(columns)
        from shards.conditions import condition

        def looked_at(name, op, value):
            column = columns.named(name)[0]
            none, every = known.of(column).blocks(condition(column, op, value), known.sizes)
            return np.flatnonzero(~none).tolist(), np.flatnonzero(every).tolist()

        assert looked_at("n", "==", 55) == ([5], [])
        assert looked_at("n", "<", 25) == ([0, 1, 2], [0, 1])
        assert looked_at("n", "in", (3, 97)) == ([0, 9], [])
        assert looked_at("word", "==", "y") == ([4, 5, 6, 7], [4, 5, 6, 7])
        assert looked_at("word", "!=", "y") == ([0, 1, 2, 3, 8, 9], [0, 1, 2, 3, 8, 9])
        assert runs(np.array([True, True, False, True]), 37) == [(0, 20), (30, 37)]


def test_the_same_predicate_is_evaluated_once():
    fields = EntryFields(pack_entries([Entry("s", "a", bytes(20), 1, 1, metadata={"n": 1}), Entry("s", "b", bytes(20), 1, 1)]))
    assert fields.mask(Compare("n", "==", 1)) is fields.mask(Compare("n", "==", 1))
    assert fields.mask(Compare("n", "==", True)).tolist() == [False, False]
    assert fields.mask(Everything()) is None


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(GLOBS), st.lists(paths, max_size=6, unique=True))
def test_the_ends_of_a_glob_are_those_of_all_it_matches(pattern, found):
    from shards.globs import shape

    ends = shape(pattern)
    for path in found:
        if any("\udc80" <= c <= "\udcff" for c in path):
            continue
        matched = glob_regex(pattern).fullmatch(path) is not None
        has_ends = path.encode().startswith(ends.prefix) and path.encode().endswith(ends.suffix)
        assert has_ends or not matched
        if ends.exact:
            assert matched == has_ends


def test_a_row_of_a_table_has_the_extension_of_its_table():
    assert [extension(p) for p in ("a/x.jsonl#3.txt", "x.csv#a/b.c", "C#.md", "a#b", "x.jsonl", "x.parquet#")] == [
        "jsonl", "csv", "md", "", "jsonl", "parquet",
    ]  # fmt: skip


def test_metadata_of_format_1_is_filtered_by_and_carried_over():
    """There it was one JSON object an entry, and nothing was known of order or extensions."""
    rows = [
        Entry("main", "b/x.MD", b"1" * 20, 1, 10**9, metadata={"n": 1, "a": {"b": "ä"}}),
        Entry("main", "a.py", b"2" * 20, 2, 10**9),
        Entry("other", "caf\udce9", b"3" * 20, 3, 10**9, metadata={"n": 2.5, "list": ["x"]}),
    ]
    path_blob, path_offsets = array_files.pack_strings([row.path.encode("utf-8", "surrogateescape") for row in rows])
    texts = [json.dumps(row.metadata, sort_keys=True, ensure_ascii=False).encode() if row.metadata else b"" for row in rows]
    meta_blob, meta_offsets = array_files.pack_strings(texts)
    old = {
        "hashes": np.frombuffer(b"".join(row.hash for row in rows), np.uint8).reshape(-1, 20),
        "path_blob": path_blob,
        "path_offsets": path_offsets,
        "sources": np.array([0, 0, 1], np.uint16),
        "sizes": np.array([1, 2, 3]),
        "mtimes_ns": np.array([10**9] * 3),
        "meta_blob": meta_blob,
        "meta_offsets": meta_offsets,
    }
    with tempfile.TemporaryDirectory() as folder:
        store = open_store("memory://" + Path(folder).name)
        written = serialise(Documents.pack([]), pack_entries(rows), {}, {}, {})
        files = {"docs": written.files["docs"], "text": b"", "entries": array_files.dump(old, {"source_names": '["main", "other"]'})}
        ref = write(store, replace(written, files=files))
        opened = Segment(ref, store, FileCache(Path(folder), 1 << 30)).entries
        assert [unpack_entry(opened, i) for i in range(3)] == rows
        fields = EntryFields(opened)
        assert fields.mask(Compare("n", ">=", 1)).tolist() == [True, False, True]
        assert fields.mask(Compare("a.b", "==", "ä")).tolist() == fields.mask(Compare("ext", "==", "md")).tolist() == [True, False, False]
        joined, _ = join_entries([Part(Documents.pack([]), opened, np.zeros(0, bool), np.ones(3, bool)), new_part("z")])
        assert [unpack_entry(joined, i) for i in range(3)] == rows
        assert serialise(Documents.pack([]), joined, {}, {}, {}).files.keys() >= {"meta", "zones"}


def new_part(path: str) -> Part:
    entries = pack_entries([Entry("main", path, b"9" * 20, 1, 1)])
    return Part(Documents.pack([]), entries, np.zeros(0, bool), np.ones(1, bool))


def test_entries_without_metadata_have_no_file_of_it():
    files = serialise(Documents.pack([]), pack_entries([Entry("s", "a", bytes(20), 1, 1)]), {}, {}, {}).files
    assert set(files) == {"docs", "text", "entries"}


def test_a_damaged_file_of_columns_is_named(tmp_path):
    path = tmp_path / "meta"
    path.write_bytes(column_files.dump(Columns.of([{"a": 1}])))
    with pytest.raises(Corrupt, match="1 rows, the segment 2 entries"):
        column_files.ColumnFile(path, 2)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(Corrupt, match="not a readable file of metadata columns"):
        column_files.ColumnFile(path, 1)


def test_entries_travel_to_another_process_with_their_metadata():
    entries = pack_entries([Entry("s", "a", bytes(20), 1, 1, metadata={"n": 1, "odd": [1, "x"]}), Entry("s", "b", bytes(20), 1, 1)])
    there = pickle.loads(pickle.dumps(entries))
    assert [unpack_entry(there, i) for i in range(2)] == [unpack_entry(entries, i) for i in range(2)]


def test_many_entries_are_read_as_each_by_itself(tmp_path):
    metadata = [
        {"a": i, "when": "2024-05-01" + "T10:00:00Z" * (i % 2), "x": {"y": ["ü", f"w{i % 3}"], "b": {"c": i % 2 == 0}}, "f": 1.5}
        if i % 3
        else {"a": "text", "tags": [], "n": [1, 2], "mixed": [1, "x"], "r": [0.5], "dotted.name": i}
        for i in range(50)
    ]
    metadata[7] = {}
    held = Columns.of(metadata)
    (tmp_path / "meta").write_bytes(column_files.dump(held))
    places = np.array([3, 7, 49, 3, 0, 20, 21])
    for columns in (held, column_files.ColumnFile(tmp_path / "meta", 50)):
        one_by_one = [columns.get(place) for place in places.tolist()]
        assert columns.get_many(places) == one_by_one
        assert [json.dumps(found) for found in columns.get_many(places)] == [json.dumps(found) for found in one_by_one]  # in order, too
        assert columns.get_many(places[:0]) == []
