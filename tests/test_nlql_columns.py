"""Expressions on columns: what `evaluate.py` says row by row, errors included, whatever the metadata."""

import math
import pickle
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.column_files import ColumnFile, dump
from shards.columns import Columns
from shards.entry_metadata import Metadata
from shards.nlql import columns, ir
from shards.nlql.checks import is_prunable, may_raise
from shards.nlql.columns import RowColumns
from shards.nlql.context import Context
from shards.nlql.errors import NLQLError, NLQLTypeError
from shards.nlql.evaluate import evaluate, holds
from shards.nlql.fields import fields_of
from shards.nlql.rules import Outcome, Threshold
from shards.nlql.sorting import SortKeys, sort_keys
from shards.nlql.values import sort_key
from shards.plugins import Plugins

PLUGINS = Plugins()
PLUGINS.add_type("version", lambda text: tuple(int(part) for part in text.split(".")))
PLUGINS.add_type("shouted", str.upper, lambda a, b, op: {"==": a == b, "!=": a != b}.get(op, str(a) < str(b)))


@PLUGINS.function("INVERSE")
def inverse(x: Any) -> float:
    """Fails on 0, null and texts."""
    return 1 / x


@dataclass
class Row:
    content: str
    metadata: dict[str, Any]
    scores: dict[str, float | None] = field(default_factory=dict)


def rows_of(rows: list[Row]) -> RowColumns:
    """The rows as a shard has them: entries in another order than rows, scores as arrays."""
    places = np.arange(len(rows))[::-1].copy()
    metadata = Metadata.of(Columns.of([rows[place].metadata for place in places]))
    for row, place in zip(rows, places.tolist(), strict=True):
        row.metadata = metadata.get(place)  # the same with its keys in order, as any row shows it
    scores = np.array([math.nan if row.scores["#0"] is None else row.scores["#0"] for row in rows], np.float64)
    return RowColumns(len(rows), metadata, places, {"#0": scores}, lambda at: [rows[i].content for i in at.tolist()])


def outcome(ask: Any) -> Any:
    """What comes back, or the error as (class, message)."""
    try:
        return ask()
    except NLQLError as error:
        return type(error).__name__, str(error)


TEXTS = st.sampled_from([
    "", "a", "Rag", "rag ", "é", "ß", "İ", "7", "007", "7.0", "-0.0", "1e3", " 7", "-inf", "-nan", "1_0", "2024", "20240301", "2024-03-01",
    "2024-3-1", "2024-03-01T00:00:00Z", "2024-03-01T02:00:00+02:00", "2024-03-01T00:00", "March 2024", "15/05/2024", "1.10", "1.9", "50,10",
    "x_y%", "true",
])  # fmt: skip
NUMBERS = st.sampled_from([0, 1, 7, -3, 2024, 20240301, 2**53 + 1, 2**70, 0.5, 7.0, -0.0, 1e3, math.inf])
SCALARS = st.one_of(TEXTS, NUMBERS, st.booleans(), st.none(), st.text(max_size=4), st.just(math.nan))
LISTS = st.one_of(
    st.lists(TEXTS, max_size=3), st.lists(st.integers(-90, 90), max_size=2), st.lists(st.sampled_from([0.0, -0.0, 50.5]), max_size=2),
    st.lists(SCALARS, max_size=2),
)  # fmt: skip
PLACES = st.fixed_dictionaries({"lat": st.one_of(NUMBERS, st.just("50")), "lon": st.one_of(NUMBERS, st.none())})
VALUES = st.one_of(SCALARS, SCALARS, LISTS, st.dictionaries(st.sampled_from(["c", "d.e"]), SCALARS, max_size=2), PLACES)
METADATA = st.dictionaries(st.sampled_from(["a", "b", "x y", "a.b"]), VALUES, max_size=4)
ROWS = st.lists(
    st.builds(Row, TEXTS, METADATA, st.fixed_dictionaries({"#0": st.sampled_from([0.1, 0.5, -2.0, None])})), min_size=1, max_size=7
)  # fmt: skip

PATHS = st.sampled_from([
    ir.Path("meta", ("a",)), ir.Path("a"), ir.Path("b"), ir.Path("meta", ("a", "c")), ir.Path("a", ("d.e",)), ir.Path("meta", ("x y",)),
    ir.Path("meta", ("a.b",)), ir.Path("meta"), ir.Path("content"), ir.Path("content", ("x",)), ir.Path("vec", ("x",)), ir.Path("nothing"),
])  # fmt: skip
LITERALS = st.builds(ir.Literal, SCALARS, st.sampled_from([None, None, None, "text", "number", "date", "version", "shouted", "odd"]))
LEAVES = st.one_of(PATHS, PATHS, LITERALS, st.sampled_from([ir.Ref("#0"), ir.Ref("one"), ir.Ref("two")]))
OPERATORS = st.sampled_from(ir.COMPARISONS)


def _deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.tuples(inner, inner)
    box = st.lists(st.builds(ir.Literal, st.sampled_from([-10, 0, 10, 100, None, "7"])), min_size=4, max_size=4)
    return st.one_of(
        st.builds(ir.Compare, OPERATORS, inner, inner),
        st.builds(ir.Compare, OPERATORS, PATHS, LITERALS),
        st.builds(ir.And, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(ir.Or, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(ir.Not, inner),
        st.builds(ir.In, inner, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(ir.In, PATHS, st.lists(LITERALS, min_size=1, max_size=3).map(tuple)),
        st.builds(ir.Call, st.sampled_from(["LENGTH", "lower", "UPPER", "INVERSE"]), st.tuples(inner)),
        st.builds(ir.Call, st.sampled_from(["CONTAINS", "LIKE", "HAS", "COUNT", "MATCH"]), pairs),
        st.builds(ir.Call, st.sampled_from(["CONTAINS", "LIKE", "HAS", "COUNT", "MATCH"]), st.tuples(PATHS, LITERALS)),
        st.builds(lambda place, edges: ir.Call("GEO_WITHIN", (place, *edges)), PATHS, box),
        st.builds(lambda place, edges: ir.Call("GEO_DISTANCE", (place, *edges[:2])), PATHS, box),
    )


EXPRESSIONS = st.recursive(LEAVES, _deeper, max_leaves=8)
CONTEXTS = st.builds(
    lambda types, one, two: Context(types, {"one": one, "two": ir.And((ir.Ref("one"), two, ir.Ref("one")))}, PLUGINS),
    st.dictionaries(
        st.sampled_from(["a", "b", "a.c"]), st.sampled_from(["text", "number", "date", "any", "version", "shouted"]), max_size=2
    ),
    st.recursive(st.one_of(PATHS, LITERALS), _deeper, max_leaves=4),
    LEAVES.filter(lambda leaf: not isinstance(leaf, ir.Ref)),
)


@settings(max_examples=150, deadline=None)
@given(ROWS, EXPRESSIONS, CONTEXTS)
def test_columns_say_what_rows_say_one_after_another(rows: list[Row], expr: ir.Expr, context: Context) -> None:
    table = rows_of(rows)
    alone = outcome(lambda: [holds(expr, row, context) for row in rows])
    assert outcome(lambda: columns.mask(expr, table, context).tolist()) == alone
    alone = outcome(lambda: [repr(evaluate(expr, row, context)) for row in rows])
    assert outcome(lambda: [repr(value) for value in columns.values(expr, table, context, np.arange(len(rows)))]) == alone


@settings(max_examples=60, deadline=None)
@given(ROWS, EXPRESSIONS, CONTEXTS, st.data())
def test_a_conjunct_is_asked_of_the_rows_that_the_ones_before_it_left(
    rows: list[Row], expr: ir.Expr, context: Context, data: st.DataObject
) -> None:
    within = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    table = rows_of(rows)
    alone = outcome(lambda: [bool(kept) and holds(expr, row, context) for row, kept in zip(rows, within, strict=True)])
    assert outcome(lambda: columns.mask(expr, table, context, within).tolist()) == alone


@settings(max_examples=80, deadline=None)
@given(ROWS, EXPRESSIONS, CONTEXTS)
def test_a_condition_moves_forward_only_where_no_entry_raises_on_it(rows: list[Row], expr: ir.Expr, context: Context) -> None:
    """With blocks of two entries, so that zones decide some of them."""
    table = rows_of(rows)
    if not is_prunable(expr, context):
        return
    alone = outcome(lambda: [holds(expr, row, context) for row in rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shards.zones.BLOCK", 2)
        patch.setattr("shards.nlql.columns.BY_ZONES", 0)
        found = columns.prune(expr, _on_disk(table.metadata), len(rows), context)
    assert found is None if isinstance(alone, tuple) else found[table.places].tolist() == alone
    if not may_raise(expr, context):
        assert found is not None


def _on_disk(metadata: Metadata) -> Metadata:
    """The same metadata as a file's, which has zones. Segments without any have no file."""
    if metadata.is_empty:
        return metadata
    path = Path(tempfile.mkdtemp()) / "metadata.arrow"
    try:
        path.write_bytes(dump(metadata.columns.whole))
        return Metadata.of(ColumnFile(path, metadata.columns.n))
    finally:
        shutil.rmtree(path.parent)  # mapped already


KEYS = st.lists(st.builds(ir.SortKey, st.one_of(PATHS, st.just(ir.Ref("#0")), EXPRESSIONS), st.booleans()), min_size=1, max_size=3)


@settings(max_examples=100, deadline=None)
@given(ROWS, KEYS, CONTEXTS, st.data())
def test_rows_are_ordered_by_classes_of_values_whatever_the_shards(
    rows: list[Row], keys: list[ir.SortKey], context: Context, data: st.DataObject
) -> None:
    """Against a stable sort of Python's for each key, from the last to the first; null last in both directions."""
    cut = data.draw(st.integers(0, len(rows)))
    tables = [rows_of(part) for part in (rows[:cut], rows[cut:])]
    columns_of = [outcome(lambda key=key: [evaluate(key.expr, row, context) for row in rows]) for key in keys]
    found = outcome(lambda: SortKeys.join([sort_keys(keys, table, context, None) for table in tables], PLUGINS))
    if any(isinstance(column, tuple) for column in columns_of):
        assert isinstance(found, tuple)
        return
    order = list(range(len(rows)))
    for key, column in reversed(list(zip(keys, columns_of, strict=True))):
        declared = context.declared(key.expr)
        sorted_by = [sort_key(value, declared, PLUGINS) for value in column]
        filled = [i for i in order if column[i] is not None]
        order = sorted(filled, key=sorted_by.__getitem__, reverse=key.desc) + [i for i in order if column[i] is None]
    assert isinstance(found, SortKeys)
    assert found.order().tolist() == order
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shards.nlql.sorting.LEAST_BY_DIGITS", 0)
        assert found.order().tolist() == order
    k = data.draw(st.integers(0, len(rows)))
    assert found.order(k).tolist() == order[:k]
    shuffled = np.array(data.draw(st.permutations(range(len(rows)))))
    assert shuffled[found.take(shuffled).order(ties=shuffled)].tolist() == order  # who has a row makes no difference
    assert sorted(order, key=lambda i: (found.at(i, PLUGINS), i)) == order


def test_blocks_that_zones_decide_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shards.zones.BLOCK", 2)
    years = [2019, 2020, 2021, 2024, 2025, 2026]
    metadata = _on_disk(Metadata.of(Columns.of([{"year": year} for year in years])))
    looked: list[list[int]] = []

    class Watched(Threshold):
        def holds(self, values: Any) -> Any:
            looked.append(values.tolist())
            return super().holds(values)

        def blocks(self, least: Any, greatest: Any) -> Any:
            return Threshold(self.op, self.bound).blocks(least, greatest)

    found = fields_of(metadata).decided(("year",), lambda kind, table: Outcome(Watched(">=", 2023.0)), False)
    assert found is not None and found[0].tolist() == [year >= 2023 for year in years]
    assert looked == [[2021, 2024]]


def test_texts_are_asked_only_for_rows_that_are_left_and_once() -> None:
    asked: list[list[int]] = []

    def texts(at: Any) -> list[str]:
        asked.append(at.tolist())
        return [f"text {i}" for i in at.tolist()]

    metadata = Metadata.of(Columns.of([{"year": year} for year in (2019, 2024, 2025)]))
    rows = RowColumns(3, metadata, None, {}, texts)
    ends = ir.Call("LIKE", (ir.Path("content"), ir.Literal("%2")))
    where = ir.And((ir.Compare(">", ir.Path("year"), ir.Literal(2020)), ends, ir.Not(ir.Not(ends))))
    assert columns.mask(where, rows, Context()).tolist() == [False, False, True]
    assert asked == [[1, 2]]


def test_aliases_of_aliases_do_not_double_the_work() -> None:
    """LET a0 = WORK(1), a1 = a0 AND a0, … : once for each row, in both evaluators."""
    calls = []
    plugins = Plugins()
    plugins.add_function("WORK", lambda x: calls.append(x) or True)
    let: dict[str, ir.Expr] = {"a0": ir.Call("WORK", (ir.Literal(1),))}
    for i in range(1, 60):
        again = ir.Ref(f"a{i - 1}")
        let[f"a{i}"] = ir.And((again, ir.Compare("==", again, again)))
    context = Context(let=let, plugins=plugins)
    rows = [Row("", {}, {"#0": None})] * 2
    assert columns.mask(ir.Ref("a59"), rows_of(rows), context).tolist() == [True, True]
    assert len(calls) == 2
    assert [holds(ir.Ref("a59"), row, context) for row in rows] == [True, True]
    assert len(calls) == 4
    assert not is_prunable(ir.Ref("a59"), context) and may_raise(ir.Ref("a59"), context)


def test_the_first_row_that_has_an_error_is_named_whichever_step_fails_first() -> None:
    """Row 1 fails at the second condition, row 2 at the first, which is asked of both before the second."""
    rows = rows_of([Row("", meta, {"#0": None}) for meta in ({"a": 1, "b": 2}, {"a": 1, "b": "x"}, {"a": "x", "b": 2})])
    first = ir.Compare(">", ir.Path("a"), ir.Literal(0), ir.Position(1, 9))
    second = ir.Compare(">", ir.Path("b"), ir.Literal(0), ir.Position(1, 30))
    with pytest.raises(NLQLTypeError) as error:
        columns.mask(ir.And((first, second)), rows, Context())
    assert (error.value.row, error.value.column) == (1, 30)
    with pytest.raises(NLQLTypeError) as error:
        columns.mask(ir.And((first, second)), rows, Context(), np.array([True, False, True]))
    assert (error.value.row, error.value.column) == (2, 9)
    assert columns.mask(ir.And((first, second)), rows, Context(), np.array([True, False, False])).tolist() == [True, False, False]


def test_keys_travel_without_words_that_no_row_has() -> None:
    rows = rows_of([Row(text, {}, {"#0": score}) for text, score in (("b", 0.5), ("a", None), ("c", 0.5))])
    keys = sort_keys([ir.SortKey(ir.Ref("#0"), True), ir.SortKey(ir.Path("content"), True)], rows, Context(), None)
    assert keys.order().tolist() == [2, 0, 1]
    sent = pickle.loads(pickle.dumps(keys.take(np.array([0, 1]))))
    assert sent.columns[1].words == ("a", "b") and sent.order().tolist() == [0, 1]
