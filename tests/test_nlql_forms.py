"""Queries in their other forms: JSON, what Python builds, text again; and what is checked and filled in before planning."""

import datetime
import json
import pickle
from pathlib import Path as File
from typing import Any

import pytest

from serve.client.asking import as_query
from serve.nlql import builder as b
from serve.nlql.aliases import check_aliases
from serve.nlql.bounds import HALF_MESSAGE, MAX_DEPTH
from serve.nlql.canonical import canonical
from serve.nlql.function_schema import function_schema, function_tool
from serve.nlql.json_ir import node_from_dict, query_from_dict, query_to_dict
from serve.nlql.parameters import bind, parameters_of
from serve.nlql.parser import parse
from serve.nlql.unparse import unparse, unparse_expr, written
from shards.nlql.errors import EmbeddingError, ExecutionError, NLQLError, ParseError, PlanError, SchemaError, pointed
from shards.nlql.ir import Binding, Call, Compare, Literal, Not, Path, Query, Ref, Select, walk

CASES = File(__file__).parent.parent.parent / "shared" / "nlql"
S = "SELECT SENTENCE WHERE "


# --- JSON --------------------------------------------------------------------------------------------------------------------


def test_a_query_in_json_says_what_there_is_and_no_more() -> None:
    assert query_to_dict(parse("SELECT CHUNK")) == {"select": {"unit": "chunk"}}
    assert query_to_dict(
        parse("SELECT SPAN(CHUNK) LET a = f() WHERE NOT a ORDER BY meta.b DESC LIMIT 0 OFFSET 2 WITHIN 9 MS COUNT BY :c")
    ) == {
        "select": {"unit": "chunk", "window": 1},
        "let": [{"name": "a", "expr": {"node": "call", "name": "f", "args": []}}],
        "where": {"node": "not", "operand": {"node": "ref", "name": "a"}},
        "order_by": [{"expr": {"node": "path", "root": "meta", "segments": ["b"]}, "desc": True}],
        "limit": 0,
        "offset": 2,
        "within_ms": 9,
        "count_by": [{"node": "parameter", "name": "c"}],
    }


def test_what_may_be_left_out_may_be_null_and_has_its_default() -> None:
    least = query_from_dict({"select": {"unit": "chunk", "window": None}, "let": None, "where": None, "order_by": None, "limit": None})
    assert least == Query(Select("chunk"))
    assert node_from_dict({"node": "call", "name": "f"}) == Call("f")
    assert node_from_dict({"node": "literal", "value": "x", "type_hint": "DATE"}) == Literal("x", "date")


A, ONE = {"node": "path", "root": "a"}, {"node": "literal", "value": 1}
NODES = "'literal', 'path', 'ref', 'call', 'compare', 'and', 'or', 'not', 'in' or 'parameter'"
CLAUSES = "'select', 'let', 'where', 'order_by', 'limit', 'offset', 'within_ms' and 'count_by'"
BAD = [
    (5, "Expected a query, an object, found 5."),
    ({}, "select: A query needs 'select', which is missing."),
    ({"select": "chunk"}, "select: Expected the selection, an object, found 'chunk'."),
    ({"select": {"granularity": "chunk"}}, "select.granularity: Unknown field. The selection has 'unit' and 'window'."),
    ({"select": {"unit": "CHUNK"}}, "select.unit: Expected 'document', 'chunk' or 'sentence', found 'CHUNK'."),
    ({"select": {"unit": "chunk", "window": -1}}, "select.window: Expected a whole number from 0 to 2,147,483,647, found -1."),
    ({"limit": True}, "limit: Expected a whole number from 0 to 2,147,483,647, found true."),
    ({"limit": 2.0}, "limit: Expected a whole number from 0 to 2,147,483,647, found 2.0."),
    ({"limit": 10**5000}, "limit: Expected a whole number from 0 to 2,147,483,647, found a number of more than 40 digits."),
    ({"within_ms": 0}, "within_ms: Expected a whole number from 1 to 2,147,483,647, found 0."),
    ({"limits": 1}, f"limits: Unknown field. Did you mean 'limit'? A query has {CLAUSES}."),
    ({"where": "x"}, "where: Expected an expression, an object with `node`, found 'x'."),
    ({"where": {"value": 1}}, f"where.node: Expected {NODES} as `node`, which is missing."),
    ({"where": {"node": ["x"]}}, f"where.node: Expected {NODES} as `node`, found a list."),
    ({"where": {"node": "literal"}}, "where.value: A node 'literal' needs 'value', which is missing."),
    ({"where": {"node": "literal", "value": "\ud800"}}, "where.value: " + HALF_MESSAGE),
    ({"\ud800\x1b": 1}, f"��: Unknown field. A query has {CLAUSES}."),
    ({"let": [{"name": "\ud800", "expr": ONE}]}, "let[0].name: " + HALF_MESSAGE),
    ({"where": {"node": "literal", "value": [1]}}, "where.value: Expected a text, a number, true, false or null, found a list."),
    ({"where": {"node": "literal", "value": float("nan")}}, "where.value: A number lies between -1.8e308 and 1.8e308."),
    ({"where": {"node": "call", "args": []}}, "where.name: A node 'call' needs 'name', which is missing."),
    ({"where": {"node": "path", "root": "a", "segments": ["b", 0]}}, "where.segments[1]: Expected a text that is not empty, found 0."),
    ({"where": {"node": "compare", "op": "=", "left": A, "right": A}}, "where.op: Expected '==', '!=', '<', '<=', '>' or '>=', found '='."),
    ({"where": {"node": "and", "operands": []}}, "where.operands: Expected at least one expression."),
    ({"where": {"node": "not", "operand": {"node": "or", "operands": [A, {"node": "compare", "op": "<", "left": A, "right": 7}]}}},
     "where.operand.operands[1].right: Expected an expression, an object with `node`, found 7."),
    ({"let": [{"name": "a", "expr": ONE}, {"name": "", "expr": ONE}]}, "let[1].name: Expected a text that is not empty, found ''."),
    ({"let": {"a": ONE}}, "let: Expected a list, found an object."),
    ({"order_by": [{"expr": A, "desc": "yes"}]}, "order_by[0].desc: Expected true or false, found 'yes'."),
    ({"order_by": [A]}, "order_by[0].node: Unknown field. An item of 'order_by' has 'expr' and 'desc'."),
    ({"order_by": [{"expr": A}] * 65}, "ORDER BY has 65 parts; at most 64 are taken."),
]  # fmt: skip


@pytest.mark.parametrize(("value", "message"), BAD)
def test_bad_json_is_an_error_that_names_its_place(value: Any, message: str) -> None:
    if isinstance(value, dict) and value and "select" not in value:
        value = {"select": {"unit": "chunk"}, **value}
    with pytest.raises(SchemaError) as error:
        query_from_dict(value)
    assert str(error.value) == message
    assert message.startswith((f"{error.value.at}: ", "Expected a query", "ORDER BY"))


def test_extensions_are_refused_in_strict_json() -> None:
    for value, at in (
        ({"select": {"unit": "chunk"}, "offset": 1}, "offset"),
        ({"select": {"unit": "chunk"}, "where": {"node": "in", "operand": A, "items": [ONE]}}, "where.node"),
        ({"select": {"unit": "chunk"}, "where": {"node": "parameter", "name": "x"}}, "where.node"),
    ):
        query_from_dict(value)
        with pytest.raises(SchemaError) as error:
            query_from_dict(value, strict=True)
        assert error.value.at == at


def test_json_nested_too_deep_is_an_error_before_the_stack_ends() -> None:
    def nested(levels: int) -> dict[str, Any]:
        node: dict[str, Any] = A
        for _ in range(levels - 1):
            node = {"node": "not", "operand": node}
        return {"select": {"unit": "chunk"}, "where": node}

    query_from_dict(nested(MAX_DEPTH))
    with pytest.raises(SchemaError, match="at most 100 levels"):
        query_from_dict(nested(50_000))


def test_canonical_forms_differ_only_where_trees_do() -> None:
    first, second, other, text, number = parse(S + "f(a,'x') OR f( a , \"x\") OR F(a, 'x') OR 1 == 1 OR 1.0 == TEXT 'x'").where.operands
    assert canonical(first) == canonical(second) == canonical(Call("f", (Path("a"), Literal("x"))))
    assert len({canonical(node) for node in (first, second, other, text, number)}) == 4
    assert canonical(Literal(1)) != canonical(Literal(True)) != canonical(Literal("True"))


def test_the_schema_describes_what_is_read() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = function_schema(["LENGTH", "SIMILARITY"])
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$defs"]["call"]["properties"]["name"] == {"enum": ["LENGTH", "SIMILARITY"]}
    valid = jsonschema.Draft202012Validator(schema).is_valid
    query = (
        "SELECT SPAN(CHUNK) LET r = SIMILARITY(content, 'x') WHERE r > 0.5 AND a IN (1, DATE '2024-01-01') OR NOT b == :c "
        "ORDER BY r DESC LIMIT 3 OFFSET 1 WITHIN 5 MS COUNT BY a"
    )
    assert valid(query_to_dict(parse(query)))
    assert not valid(query_to_dict(parse("SELECT CHUNK WHERE NOPE(a)")))
    assert not valid(query_to_dict(parse("SELECT CHUNK WHERE LENGTH(a) IN (1)")) | {"offsets": 1})
    for value, message in BAD[1:-1]:  # the schema says all but how many keys there may be
        if not message.endswith(("found 2.0.", "1.8e308.", "40 digits.", "other half).")):  # of numbers, JSON Schema knows one kind
            assert not valid({"select": {"unit": "chunk"}, **value} if value else value), value
    strict = jsonschema.Draft202012Validator(function_schema(strict=True)).is_valid
    assert not strict(query_to_dict(parse(query))) and strict(query_to_dict(parse("SELECT CHUNK WHERE NOPE(a)")))


def test_a_tool_for_language_models_carries_the_schema() -> None:
    tool = function_tool("search", ["LENGTH"])
    assert (tool["type"], tool["function"]["name"], tool["function"]["parameters"]) == ("function", "search", function_schema(["LENGTH"]))
    json.dumps(tool)


@pytest.mark.skipif(not CASES.exists(), reason="without the conformance set")
@pytest.mark.parametrize("name", ["cases_dev.json", "cases_extra.json"])
def test_the_conformance_set_parses_as_it_should(name: str) -> None:
    """Trees, and what is no query; what can only be told of a plan or of rows is for other tests."""
    read = json.loads((CASES / name).read_text())
    n = 0
    for case in read if isinstance(read, list) else read["cases"]:
        expected = case["expect"]
        try:
            if case.get("ir") is not None:
                query = query_from_dict(case["ir"], strict=True)
            else:
                query = parse(case["query"] or "", strict=True)
        except NLQLError as error:
            wanted = [expected.get("error", {}).get("category"), *(case.get("doc_expected") or {}).get("error_any", [])]
            assert error.category in wanted, case["id"]
            n += 1
        else:
            assert expected.get("error", {}).get("category") not in ("syntax", "schema") or case.get("peer_bug"), case["id"]
            if case["op"] == "parse":
                assert query_to_dict(query) == expected["ir"], case["id"]
            if case.get("ir") is None:
                assert parse(unparse(query), strict=True) == query, case["id"]
    assert n > 10


# --- Text again --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "SELECT SPAN(CHUNK, window => 2) LET r = SIMILARITY(content, \"x\"), n = 5 WHERE r > 1 ORDER BY r DESC, a LIMIT 7",
        "SELECT CHUNK LIMIT 7 OFFSET 3 WITHIN 300 MS COUNT BY a, LENGTH(b)",
        S + "a OR b AND NOT c == d CONTAINS \"e\"",
        S + "(a OR b) AND (NOT c) == (d == e) AND NOT NOT f",
        S + "a AND (b AND c) AND (d OR e)",
        S + "(a CONTAINS \"b\") LIKE (c == d)",
        S + "NOT a IN (1, -2.5, :x, null) AND x HAS (a AND b)",
        S + 'd >= DATE "2024-01-01" AND a == \'say "no"\' AND s == "\n\\"',
        S + "a == NOT AND b LIKE NOT(c) AND d != NOT HAS (NOT e)",
        S + "n == 0.00000000000000000001 OR n == 100000000000000000000000.0 OR n == 5",
    ],
)  # fmt: skip
def test_what_is_read_is_written_as_it_was(text: str) -> None:
    assert unparse(parse(text)) == text


def test_sugar_is_written_as_what_it_stands_for() -> None:
    text = S + "a BETWEEN 1 AND 2 AND b IS NOT NULL OR c NOT LIKE 'x'"
    assert unparse(parse(text)) == S + 'a >= 1 AND a <= 2 AND b != null OR NOT c LIKE "x"'


def test_what_no_text_can_say_is_refused_and_still_shown_to_people() -> None:
    for node, shown in (
        (Literal("'\""), '"\'"""'),
        (Literal(5, "text"), "5"),
        (Path("meta", ("a b", "ö")), "meta.`a b`.`ö`"),
        (Call("NOT", (Path("a"),)), "`NOT`(a)"),
        (Literal("x", "a b"), '`A B` "x"'),
    ):
        with pytest.raises(SchemaError, match="cannot be written"):
            unparse_expr(node)
        assert written(node) == shown
    with pytest.raises(SchemaError, match="cannot be written"):
        unparse(Query(Select("chunk"), where=Ref("a")))
    with pytest.raises(SchemaError, match="LET binds 'content'"):
        unparse(Query(Select("chunk"), let=(Binding("content", Literal(1)),), where=Path("content")))


def test_a_field_that_an_alias_hides_is_written_with_its_meta() -> None:
    query = Query(Select("chunk"), let=(Binding("a", Literal(1)),), where=Compare("==", Path("a"), Ref("a")))
    assert unparse(query) == "SELECT CHUNK LET a = 1 WHERE meta.a == a"
    assert unparse_expr(Compare("==", Path("true"), Path("NOT", ("x",)))) == "meta.true == NOT.x"
    assert unparse_expr(Compare("==", Path("NOT"), Literal("x", "not"))) == 'meta.NOT == NOT "x"'
    assert unparse_expr(Compare("==", Literal("x", "not"), Literal(1))) == 'not "x" == 1'


# --- Python ------------------------------------------------------------------------------------------------------------------


def test_python_builds_what_text_says() -> None:
    built = (
        b.select("sentence", 1)
        .let("rel", b.similarity(b.content, "tea"))
        .where((b.F("rel") >= 0.3) & (b.Meta("status") != "draft"))
        .where(b.field("author.team").in_("a", ["b", None]) | ~b.content.contains("x"), b.length(b.content).between(1, b.param("most")))
        .order_by("rel", desc=True)
        .order_by("meta.year")
        .limit(5).offset(2).within_ms(300).count_by(b.Meta("status"))
        .build()
    )  # fmt: skip
    assert built == parse(
        'SELECT SPAN(SENTENCE) LET rel = SIMILARITY(content, "tea") WHERE rel >= 0.3 AND meta.status != "draft" '
        'AND (author.team IN ("a", "b", null) OR NOT content CONTAINS "x") AND LENGTH(content) >= 1 AND LENGTH(content) <= :most '
        "ORDER BY rel DESC, meta.year LIMIT 5 OFFSET 2 WITHIN 300 MS COUNT BY meta.status"
    )


def test_the_rest_of_the_builder() -> None:
    conditions = [
        (b.Meta("a b", "c").is_null(), Compare("==", Path("meta", ("a b", "c")), Literal(None))),
        (b.vec("title").is_not_null(), Compare("!=", Path("vec", ("title",)), Literal(None))),
        (b.lit("2024-01-01", "DATE") < b.Meta("d"), Compare("<", Literal("2024-01-01", "date"), Path("meta", ("d",)))),
        (b.upper(b.lower("x")), Call("UPPER", (Call("LOWER", (Literal("x"),)),))),
        (b.count(b.content, "x") < 5, Compare("<", Call("COUNT", (Path("content"), Literal("x"))), Literal(5))),
        (b.contains(b.content, "x"), b.content.contains("x").node),
        (b.like(b.content, "x"), b.content.like("x").node),
        (b.match(b.content, "x"), b.content.match("x").node),
        (b.has(b.Meta("tags"), "x"), b.Meta("tags").has("x").node),
        (~b.call("BM25", b.content, "x"), Not(Call("BM25", (Path("content"), Literal("x"))))),
        (True & b.F("a") | False, b.node_of((b.lit(True) & b.F("a")) | b.lit(False))),
    ]  # fmt: skip
    for term, node in conditions:
        assert term.node == node


def test_a_builder_can_begin_several_queries() -> None:
    begun = b.select("chunk").where(b.Meta("a") == 1)
    assert begun.limit(1).text() == "SELECT CHUNK WHERE meta.a == 1 LIMIT 1"
    assert begun.where(b.Meta("b") == 2).text() == "SELECT CHUNK WHERE meta.a == 1 AND meta.b == 2"
    assert begun.text() == "SELECT CHUNK WHERE meta.a == 1"


def test_long_chains_are_one_node() -> None:
    term = b.Meta("a") == 0
    for i in range(1, 500):
        term = term | (b.Meta("a") == i)
    assert len(b.select("chunk").where(term).build().where.operands) == 500


def test_mistakes_in_python_are_told() -> None:
    for wrong, message in (
        (lambda: b.select("paragraph").build(), r"select\.unit: Expected 'document', 'chunk' or 'sentence'"),
        (lambda: b.select("chunk").limit(-1).build(), "limit: Expected a whole number"),
        (lambda: b.Meta("a") == [1], "A list is no value of NLQL"),
        (lambda: 1 if b.Meta("a") == 1 else 2, "neither true nor false"),
        (lambda: b.field("a..b"), "a name is missing beside a dot"),
        (lambda: b.as_query(7), "A int is no query"),
    ):
        with pytest.raises(SchemaError, match=message):
            wrong()
    deep = b.Meta("a")
    for _ in range(5_000):
        deep = ~deep
    with pytest.raises(SchemaError, match="at most 100 levels"):
        b.select("chunk").where(deep).build()


def test_all_of_it_can_be_had_from_sondage() -> None:
    import sondage.nlql

    assert all(getattr(sondage.nlql, name) is not None for name in sondage.nlql.__all__)
    assert sondage.nlql.select is b.select and sondage.nlql.parse is parse


def test_whatever_may_stand_for_a_query_becomes_one() -> None:
    query = Query(Select("chunk"), limit=3)
    for form in ("SELECT CHUNK LIMIT 3", b.select("chunk").limit(3), {"select": {"unit": "chunk"}, "limit": 3}, query):
        assert b.as_query(form) == query


# --- Aliases and parameters --------------------------------------------------------------------------------------------------


ALIASES = [
    ("SELECT CHUNK LET |a = b, b = a", "LET goes round in a circle: a -> b -> a."),
    ("SELECT CHUNK LET content = LENGTH(|content)", "LET goes round in a circle: content -> content."),
    ("SELECT CHUNK LET x = a, a = b, b = c, c = 1 + a".replace("1 + a", "f(|b)"), "LET goes round in a circle: b -> c -> b."),
]


@pytest.mark.parametrize(("marked", "message"), ALIASES)
def test_aliases_that_stand_for_themselves_are_errors(marked: str, message: str) -> None:
    with pytest.raises(PlanError) as error:
        check_aliases(parse(marked.replace("|", "")))
    assert error.value.message == message
    assert error.value.column == (marked.index("|") + 1 if "= b, b = a" not in marked else 29)


def test_an_unknown_alias_is_an_error_and_the_last_of_two_bindings_counts() -> None:
    with pytest.raises(PlanError, match=r"Unknown alias 'ghost'\. LET binds a\."):
        check_aliases(Query(Select("chunk"), let=(Binding("a", Literal(1)),), where=Ref("ghost")))
    check_aliases(parse("SELECT CHUNK LET a = a, a = 1 WHERE a"))


def test_aliases_are_followed_without_recursion_and_each_once() -> None:
    chain = ", ".join(f"a{i} = f(a{i + 1}, a{i + 1})" for i in range(48))
    check_aliases(parse(f"SELECT CHUNK LET {chain} WHERE a0"))  # written out, it would have 2**48 nodes
    with pytest.raises(PlanError, match="at most 100 levels"):
        check_aliases(parse("SELECT CHUNK LET " + ", ".join(f"a{i} = NOT a{i + 1}" for i in range(900))))


def test_parameters_become_literals() -> None:
    query = parse(
        "SELECT CHUNK LET r = SIMILARITY(content, :q) WHERE r > :least AND a IN (0, :items, :q) AND d < :day AND t < :time "
        "ORDER BY :x COUNT BY :x"
    )
    assert parameters_of(query) == ("q", "least", "items", "day", "time", "x")
    values = {"q": "tea", "least": 0.5, "items": [1, None, True], "x": None}
    values |= {"day": datetime.date(2024, 1, 2), "time": datetime.datetime(2024, 1, 2, 3)}
    assert unparse(bind(query, values)) == (
        'SELECT CHUNK LET r = SIMILARITY(content, "tea") WHERE r > 0.5 AND a IN (0, 1, null, true, "tea") AND d < DATE "2024-01-02" '
        'AND t < TIMESTAMP "2024-01-02T03:00:00" ORDER BY null COUNT BY null'
    )
    assert bind(parse("SELECT CHUNK WHERE a IN :x"), {"x": []}) == parse("SELECT CHUNK WHERE a IN ()")
    literal = next(node for node in walk(bind(query, values).where) if node == Literal(0.5))
    assert literal.at == (1, 56)


def test_parameters_of_a_request_may_be_dates_and_tuples() -> None:
    asked = as_query(
        "SELECT CHUNK WHERE d < :day AND a IN :names", "notes", {"params": {"day": datetime.date(2024, 1, 2), "names": ("x", 1)}}
    )
    assert asked.params == {"day": "2024-01-02", "names": ["x", 1]}


FITS = "expected a text, a number, true, false, null, a date, or a list of these"


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        (S + "a == :x", {}, "Line 1, column 28: No value is given for parameter :x."),
        (S + "a == :x", {"x": 1, "y": 2}, "params.y: No parameter :y in the query. The query has :x."),
        (S + "a", {"y": 2}, "params.y: No parameter :y in the query. The query has no parameters."),
        (S + "a == :x", {"x": [1]}, "Line 1, column 28: A list of values can only stand in IN: x IN :names."),
        (S + ":x IN (1)", {"x": [1]}, "Line 1, column 23: A list of values can only stand in IN: x IN :names."),
        (S + ":x", {"x": [1]}, "Line 1, column 23: A list of values can only stand in IN: x IN :names."),
        (S + "a IN :x", {"x": [[1]]}, "Line 1, column 28: Parameter :x is a list of lists; a list of values is taken."),
        (S + "a IN :x", {"x": list(range(10_001))}, "Line 1, column 28: Parameter :x has 10,001 values; at most 10,000 are taken."),
        (S + "a == :x", {"x": {}}, f"Line 1, column 28: Parameter :x is a dict; {FITS}."),
        (S + "a == :x", {"x": float("inf")}, f"Line 1, column 28: Parameter :x is inf; {FITS}."),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_told(text: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as error:
        bind(parse(text), values)
    assert str(error.value) == message


# --- Errors ------------------------------------------------------------------------------------------------------------------


def test_an_error_points_at_its_place() -> None:
    text = "SELECT SENTENCE\r\nWHERE 'größer' == 日本 AND x\r\nLIMIT 3"
    with pytest.raises(ParseError) as error:
        parse(text)
    assert error.value.pretty(text).splitlines() == [
        "Line 2, column 19: Expected a value, found `日本`.",
        "  WHERE 'größer' == 日本 AND x",
        "                    ^",
    ]
    assert str(ParseError("x").pretty(text)) == "x"


def test_a_caret_stands_under_its_column_whatever_the_letters_are() -> None:
    assert pointed("a\t日本e\u0301x", 7) == "  a 日本e\u0301x\n         ^"
    line = "x" * 300
    shown, caret = pointed(line, 200).splitlines()
    assert (len(shown), shown[:3], shown[-1], caret.index("^")) == (104, "  …", "…", 53)
    assert pointed("ab", 3) == "  ab\n    ^"
    assert pointed("\x1b[31m\ud800", 6) == "   [31m \n       ^"


def test_errors_say_what_they_are_to_programs_and_travel() -> None:
    error = PlanError("no", expected=("x",)).placed(Position := parse("SELECT CHUNK").select.at)
    again = pickle.loads(pickle.dumps(error))
    assert (again.message, again.line, again.column, again.expected, again.category, again.kind, again.status) == (
        "no", *Position, ("x",), "plan", "nlql_plan", 422,
    )  # fmt: skip
    assert str(again) == "Line 1, column 8: no"
    assert again.placed((9, 9)) is again and again.line == 1
    assert (EmbeddingError.kind, EmbeddingError.status, ParseError.status, ExecutionError.category) == (
        "nlql_embedding",
        424,
        400,
        "execution",
    )
