"""Queries and the plans that they become, or the place where they are wrong."""

import json

import pytest

from serve.nlql.explain import explain
from serve.nlql.facts import CorpusFacts, SpaceFact
from serve.nlql.filters import search_filter
from serve.nlql.json_ir import query_from_dict
from serve.nlql.parser import parse
from serve.nlql.plan import MAX_SCORES, plan
from serve.nlql.unparse import written
from shards.nlql import ir
from shards.nlql.errors import PlanError, SchemaError
from shards.nlql.plan import Cut
from shards.plugins import Plugins


def facts(*spaces: SpaceFact, **types: str) -> CorpusFacts:
    return CorpusFacts("notes", 3, n_docs=40, n_entries=41, text_bytes=5_000, spaces={s.name: s for s in spaces}, field_types=types)


SENTENCES = SpaceFact("content", "embedded", "sentence", n_units=112)
CHUNKS = SpaceFact("content", "embedded", "chunk", n_units=41)
PASSAGES = SpaceFact("static", "static", "passage", n_units=60)
BM25 = SpaceFact("bm25", "bm25")
TEXT = SpaceFact("text", "text")
IMAGE = SpaceFact("image", "vectors", "document", n_units=5, dim=8, given=True)
CORPUS = facts(SENTENCES, BM25, TEXT, IMAGE)


def planned(text, corpus=CORPUS, **given):
    return plan(parse(text), corpus, **given)


@pytest.mark.parametrize(
    ("where", "pushed", "residual"),
    [
        ('meta.status == "a"', 'meta.status == "a"', None),
        ('status != "a" AND content CONTAINS "x"', 'status != "a"', 'content CONTAINS "x"'),
        ("2 < score AND year > '2020'", "2 < score", 'year > "2020"'),
        ("score == null", None, "score == null"),
        ("score == true AND score > 1.5", "score == true AND score > 1.5", None),
        ("d > DATE '2024-01-01'", None, 'd > DATE "2024-01-01"'),
        ("code == '007'", None, 'code == "007"'),  # declared as text below
        ("a == 1 OR b == 2", "a == 1 OR b == 2", None),
        ("NOT a == 1", "NOT a == 1", None),
        ('a == 1 OR content CONTAINS "x"', None, 'a == 1 OR content CONTAINS "x"'),
        ("a == b", None, "a == b"),
        ("content == 'x'", None, 'content == "x"'),
    ],
)
def test_where_is_cut_as_the_language_says(where, pushed, residual):
    found = planned(f"SELECT SENTENCE WHERE {where}", facts(SENTENCES, code="text"))
    assert [None if part is None else written(part) for part in (found.pushed, found.residual)] == [pushed, residual]


def test_shards_get_equality_of_metadata_first_and_all_else_in_its_order_with_names_resolved():
    found = planned('SELECT SENTENCE LET rel = SIMILARITY(content, "x") WHERE rel > 0 AND (year > 2 AND content.z == 1) AND meta.a.b == 1')
    assert found.filter == (
        ir.Compare("==", ir.Path("meta", ("a", "b")), ir.Literal(1)),
        ir.Compare(">", ir.Ref("rel"), ir.Literal(0)),
        ir.Compare(">", ir.Path("meta", ("year",)), ir.Literal(2)),
        ir.Compare("==", ir.Literal(None), ir.Literal(1)),
    )
    assert found.let == (ir.Binding("rel", ir.Ref("#0")),)
    assert found.order_by == (ir.SortKey(ir.Ref("#0"), desc=True),)


@pytest.mark.parametrize(
    ("where", "order"),
    [
        ("a > 1 AND b == 2", ["meta.b == 2", "meta.a > 1"]),
        ("a > 1 AND (b == 2 OR NOT c != 'x') AND d IN (1, 2)", ['meta.b == 2 OR NOT meta.c != "x"', "meta.d IN (1, 2)", "meta.a > 1"]),
        ("a > 1 AND b == null AND c == DATE '2024-01-01' AND typed == 1", None),  # of these the peer's store takes none either
        ("a > 1 AND (b == 2 AND c > 1)", None),
        ("a > 1 AND (b == 2 OR c > 1)", None),
        ("a > 1 AND b CONTAINS 'x'", None),
    ],
)
def test_only_what_can_raise_on_no_value_is_tested_before_its_turn(where, order):
    found = [written(node) for node in planned(f"SELECT SENTENCE WHERE {where}", facts(SENTENCES, typed="number")).filter]
    if order is not None:
        assert found == order
    else:
        assert found[0] == "meta.a > 1"


def test_scores_are_collected_in_the_order_of_clauses_and_once_each():
    found = planned(
        "SELECT SENTENCE LET a = LENGTH(content), b = SIMILARITY(content, 'x') WHERE SIMILARITY(content, \"x\") > 0"
        " AND BM25(content, 'y') > 1 ORDER BY similarity(content, 'x') COUNT BY SIMILARITY(content, 'z') > 0"
    )
    assert [(s.call.name, s.text, s.alias, s.spaces) for s in found.scorers] == [
        ("SIMILARITY", "x", "b", ("content",)),
        ("BM25", "y", None, ("bm25",)),
        ("similarity", "x", None, ("content",)),  # the canonical form has the name as written
        ("SIMILARITY", "z", None, ("content",)),
    ]
    assert found.order_by == (ir.SortKey(ir.Ref("#2")),)
    assert found.facets == (ir.Compare(">", ir.Ref("#3"), ir.Literal(0)),)


def test_of_an_alias_that_is_bound_twice_the_last_counts_and_both_are_scored():
    found = planned("SELECT SENTENCE LET a = SIMILARITY(content, 'x'), a = SIMILARITY(content, 'y') WHERE a > 0")
    assert [s.text for s in found.scorers] == ["x", "y"]
    assert found.let == (ir.Binding("a", ir.Ref("#1")),)


@pytest.mark.parametrize(
    ("select", "spaces", "base", "space", "encode"),
    [
        ("SENTENCE", [PASSAGES, SENTENCES], Cut("sentence", "content"), "content", False),
        ("SENTENCE", [CHUNKS], Cut("sentence"), "content", True),
        ("SENTENCE", [PASSAGES], Cut("sentence"), "static", False),
        ("SPAN(SENTENCE, 1)", [CHUNKS], Cut("sentence"), "content", True),
        ("CHUNK", [CHUNKS], Cut("chunk", "content"), "content", False),
        ("CHUNK", [PASSAGES], Cut("passage", "static"), "static", False),
        ("CHUNK", [SENTENCES], Cut("sentence", "content"), "content", False),
        ("SPAN(CHUNK, 2)", [PASSAGES], Cut("passage", "static"), "static", False),
        ("DOCUMENT", [SENTENCES], Cut("sentence", "content"), "content", False),
        ("DOCUMENT", [PASSAGES], Cut("passage", "static"), "static", False),
    ],
)
def test_units_are_those_of_the_space_that_has_them_or_cut_from_what_there_is(select, spaces, base, space, encode):
    found = planned(f"SELECT {select} LET r = SIMILARITY(content, 'x')", facts(*spaces))
    assert (found.base, found.scorers[0].spaces, found.encode) == (base, (space,), encode)


@pytest.mark.parametrize(("select", "base"), [("SENTENCE", "sentence"), ("CHUNK", "chunk"), ("DOCUMENT", "sentence")])
def test_a_corpus_without_vectors_is_cut_when_it_is_asked(select, base):
    assert planned(f"SELECT {select} WHERE content CONTAINS 'x'", facts(BM25)).base == Cut(base)


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("SELECT SENTENCE WHERE NOPE(content)", "Unknown function NOPE", 23),
        ("SELECT SENTENCE WHERE LENGHT(content) > 2", "Did you mean LENGTH", 23),
        ("SELECT SENTENCE WHERE LENGTH(content, 1) > 2", "LENGTH takes 1 argument; found 2", 23),
        ("SELECT SENTENCE WHERE a == 1 AND COUNT(content) > 2", "COUNT takes 2 arguments; found 1", 34),
        ("SELECT SENTENCE LET r = SIMILARITY(content)", "SIMILARITY takes 2 arguments", 25),
        ("SELECT SENTENCE LET r = SIMILARITY(content, 5)", "a text in quotes .* found a number", 45),
        ("SELECT SENTENCE LET q = 'x', r = SIMILARITY(content, q)", "found the alias q", 54),
        ("SELECT SENTENCE LET r = SIMILARITY('x','y')", "found a text", 36),
        ("SELECT SENTENCE LET r = SIMILARITY(meta.title,'y')", "found meta.title", 36),
        ("SELECT SENTENCE LET r = SIMILARITY(LOWER(content),'y')", r"found LOWER\(…\)", 36),
        ("SELECT SENTENCE LET r = SIMILARITY(content.x,'y')", "found content.x", 36),
        ("SELECT SENTENCE WHERE BM25(title, 'y') > 0", "BM25's first argument is content", 28),
        ("SELECT SENTENCE WHERE BM25(content, 'y', 'nope') > 0", "no layer 'nope'. Choose from: content, bm25, text, image", 42),
        ("SELECT SENTENCE WHERE BM25(content, 'y', 'text') > 0", "'text' is text. Of that kind are: bm25", 42),
        ("SELECT SENTENCE WHERE LATE(content, 'y') > 0", "no layer late for LATE to ask. It has: content, bm25", 23),
        ("SELECT SENTENCE WHERE EVIDENCE(content, 'y', 'bm25', 3) > 0", "names of layers in quotes; found a number", 54),
        ("SELECT SENTENCE WHERE EVALUE(content, ' ') > 0", "nothing to search for", 39),
        (f"SELECT SENTENCE WHERE SIMILARITY(content, '{'x' * 8193}') > 0", "8,193 characters; at most 8,192", 43),
        ("SELECT SENTENCE LET r = SIMILARITY(vec.bm25, 'y')", "layer 'bm25' .* has no vectors", 36),
        ("SELECT SPAN(DOCUMENT, 1)", "has no neighbours", 8),
        ("SELECT SPAN(CHUNK, 1)", "cut into sentences", 8),
        ("SELECT SENTENCE LET a = b, b = a WHERE a > 1", "a -> b -> a", 32),
        ("SELECT SENTENCE LET content = LENGTH(content) WHERE content > 5", "content -> content", 38),
        ("SELECT SENTENCE WHERE content MATCH '['", "pattern", 37),
        ("SELECT SENTENCE WHERE year == :since", ":since", 31),
    ],
)
def test_what_means_nothing_is_refused_at_its_place(text, message, column):
    with pytest.raises(PlanError, match=message) as caught:
        planned(text)
    assert (caught.value.line, caught.value.column) == (1, column)


def test_similarity_wants_vectors_and_says_how_to_get_some():
    with pytest.raises(PlanError, match=r"no vectors of its text .* Ask vec\.image, or add a layer"):
        planned("SELECT SENTENCE LET r = SIMILARITY(content, 'x')", facts(IMAGE))


def test_a_named_vector_that_nobody_has_is_no_error():
    assert planned("SELECT SENTENCE LET r = SIMILARITY(vec.nope, 'x')").scorers[0].spaces == ()
    assert planned("SELECT SENTENCE LET r = SIMILARITY(vec.image, 'x')").scorers[0].spaces == ("image",)


def test_an_unknown_alias_of_a_tree_is_refused_and_a_path_of_its_name_is_metadata():
    tree = {"select": {"unit": "sentence"}, "order_by": [{"expr": {"node": "ref", "name": "ghost"}}]}
    with pytest.raises(PlanError, match="ghost"):
        plan(query_from_dict(tree), CORPUS)
    tree["let"] = [{"name": "a", "expr": {"node": "literal", "value": 1}}]
    tree["order_by"] = [{"expr": {"node": "path", "root": "a"}}]
    assert plan(query_from_dict(tree), CORPUS).order_by == (ir.SortKey(ir.Path("meta", ("a",))),)


def test_a_limit_of_the_call_leaves_the_query_alone_and_parameters_become_literals():
    query = parse("SELECT SENTENCE WHERE x IN (:ids) AND SIMILARITY(content, :q) > 0 LIMIT 5")
    found = plan(query, CORPUS, limit=2, params={"ids": ["a", "b"], "q": "tools"})
    assert (found.query.limit, query.limit) == (2, 5)
    assert found.scorers[0].text == "tools"
    assert written(found.filter[0]) == 'meta.x IN ("a", "b")'
    with pytest.raises(PlanError, match="other"):
        plan(query, CORPUS, params={"ids": [1], "q": "x", "other": 1})


def test_a_limit_below_zero_is_no_limit():
    with pytest.raises(SchemaError, match="LIMIT is -1"):
        plan(parse("SELECT SENTENCE"), CORPUS, limit=-1)


def test_strictly_only_what_plain_nlql_has_is_known():
    for call in ("BM25(content, 'x')", "HAS(tags, 'x')", "EVIDENCE(content, 'x')"):
        planned(f"SELECT SENTENCE WHERE {call}")
        with pytest.raises(PlanError, match="Unknown function"):
            planned(f"SELECT SENTENCE WHERE {call}", strict=True)


def test_an_engines_own_functions_are_known_with_their_arguments():
    plugins = Plugins()
    plugins.add_function("in_range", lambda x, low, high: low <= x <= high)
    planned("SELECT SENTENCE WHERE In_Range(meta.score, 8, 9)", plugins=plugins)
    with pytest.raises(PlanError, match="IN_RANGE takes 3 arguments; found 2"):
        planned("SELECT SENTENCE WHERE IN_RANGE(meta.score, 8)", plugins=plugins)


def test_aliases_that_double_and_too_many_scores_are_refused():
    doubling = ", ".join(f"a{n} = LENGTH(a{n - 1}) == LENGTH(a{n - 1})" for n in range(1, 30))
    with pytest.raises(PlanError, match="aliases written out"):
        planned(f"SELECT SENTENCE LET a0 = LENGTH(content), {doubling} WHERE a29")
    many = " OR ".join(f"SIMILARITY(content, 'x{n}') > 0" for n in range(MAX_SCORES + 1))
    with pytest.raises(PlanError, match="more than 64 different scores"):
        planned(f"SELECT SENTENCE WHERE {many}")


def test_a_plan_is_told_in_both_spellings_with_its_tree_its_text_and_what_it_costs():
    text = 'SELECT SENTENCE LET rel = SIMILARITY(content, "AI") WHERE rel >= 0.3 AND meta.status == "published" ORDER BY rel DESC LIMIT 5'
    told = explain(planned(text), reranker="overlap", factor=2)
    json.dumps(told)
    pushed = {
        "node": "compare",
        "op": "==",
        "left": {"node": "path", "root": "meta", "segments": ["status"]},
        "right": {"node": "literal", "value": "published"},
    }
    assert told["filter"]["pushed"] == told["pushed_filter"] == pushed
    assert told["filter"]["residual"] == told["residual_filter"]
    assert told["select"] == {"unit": "sentence", "window": None}
    assert (told["granularity"], told["recall"], told["limit"], told["bindings"]) == ("sentence", "exact-flat", 5, ["rel"])
    assert told["scores"][0] | {"score": "", "spaces": ""} == {
        "key_alias": "rel", "query": "AI", "path": "content", "score": "", "spaces": "",
    }  # fmt: skip
    assert told["order_by"] == [{"expr": {"node": "ref", "name": "rel"}, "desc": True}]
    assert (told["rerank"], told["rerank_rows"]) == ("overlap", 10)
    assert parse(told["text"]) == parse(text)
    assert query_from_dict(told["ir"]) == parse(text)
    assert told["cost"] == {"rows": 112, "vectors": 112, "encoded": 0, "bytes": 0}
    scan = explain(planned("SELECT SPAN(SENTENCE, 2) WHERE content CONTAINS 'x'"))
    assert (scan["recall"], scan["select"]["window"], scan["cost"]["bytes"]) == ("scan", 2, 5_000)
    assert "rerank" not in scan


def test_sentences_of_chunks_are_said_to_be_encoded():
    told = explain(planned("SELECT SENTENCE LET r = SIMILARITY(content, 'x')", facts(CHUNKS)))
    assert told["cost"]["encoded"] == 50
    assert told["notes"] == ["SENTENCE: cut from the chunks of content, and encoded at query time"]


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("status == 'a'", {"and": [{"status": "a"}]}),
        ("status != 'a' AND content CONTAINS 'x'", {"and": [{"not": {"status": "a"}}]}),
        ("status IN ('a', 'b') OR a.b == 'c'", {"and": [{"or": [{"status": {"in": ["a", "b"]}}, {"a.b": "c"}]}]}),
        ("code == '007'", None),  # 7 is equal, too
        ("day == '2024-01-01'", None),  # 20240101 is equal, too
        ("year == 2024", None),  # "2024" is equal, too
        ("path == 'a'", None),  # a search means the entry's path
        ("status == 'a' OR year == 2024", None),
        (f"status IN ({', '.join(repr(f'v{n}') for n in range(2_001))})", None),  # more than a search takes
    ],
)
def test_a_search_is_told_of_the_filter_what_it_means_alike(where, told):
    assert search_filter(planned(f"SELECT SENTENCE WHERE {where}").conjuncts, {}) == told
