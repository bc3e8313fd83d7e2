"""A scope as masks over entries equals the predicate evaluated entry by entry."""

import numpy as np
from hypothesis import given
from test_plan import predicates

from shards.plan import And, Compare, Everything, Glob, Not, Nothing, matches
from shards.scope import EntryFields
from shards.segment import pack_entries
from shards.types import Entry


def entry(path: str, source: str = "s", size: int = 10, mtime_s: int = 100, **metadata) -> Entry:
    return Entry(source, path, bytes([len(path)]) * 20, size, mtime_s * 10**9, metadata=metadata)


ENTRIES = [
    entry("x/a.py", a=1),
    entry("b.txt", size=2000, b="x"),
    entry("x/y/Makefile", source="t", a=0),
    entry("c.PY", mtime_s=500),
    entry(".hidden", a="1"),
]


def fields() -> EntryFields:
    return EntryFields(pack_entries(ENTRIES))


def in_scope(where) -> set[str]:
    found = fields()
    mask = found.mask(where)
    return {path for row, path in enumerate(found.paths) if mask is None or mask[row]}


@given(predicates)
def test_a_mask_is_the_predicate_row_by_row(where):
    found = fields()
    slow = {p for row, p in enumerate(found.paths) if matches(where, p, lambda name, row=row: found.value(row, name))}
    assert in_scope(where) == slow


def test_every_entry_has_facts_to_filter_by():
    assert in_scope(Compare("ext", "==", "py")) == {"x/a.py", "c.PY"}
    assert in_scope(Compare("size_bytes", ">", 100)) == {"b.txt"}
    assert in_scope(Compare("mtime", ">=", 500)) == {"c.PY"}
    assert in_scope(Compare("source", "==", "t")) == {"x/y/Makefile"}
    assert in_scope(Compare("path", "glob", "x/**")) == {"x/a.py", "x/y/Makefile"}
    assert in_scope(And((Glob("*.py"), Not(Compare("a", "==", 1))))) == set()


def test_nothing_is_looked_at_where_a_segment_knows_the_answer():
    found = fields()
    assert found.decide(Compare("source", "==", "elsewhere")) is False
    assert found.decide(Compare("size_bytes", "<", 5)) is False
    assert found.decide(Compare("size_bytes", "<=", 2000)) is True
    assert found.decide(Compare("size_bytes", "<", 100)) is None
    assert found.decide(Compare("a", "==", 1)) is None
    assert found.mask(Everything()) is None
    assert not np.any(found.mask(Nothing()))


def test_paths_that_are_not_utf8_can_be_matched():
    odd = EntryFields(pack_entries([entry("caf\udce9.txt")]))
    assert odd.paths == ["caf\udce9.txt"]
    assert odd.mask(Glob("caf?.txt")).tolist() == [True]
