"""A request's `paths` and `where` as predicates: a table of texts and trees, errors included."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.filters import MAX_CONDITIONS, MAX_DEPTH, parse_paths, parse_where, scope
from shards.errors import BadQuery
from shards.plan import OPERATORS, And, Compare, Everything, Glob, Not, Nothing, Or, lookup, matches

A, B, C = Compare("a", "==", 1), Compare("b", "==", "x"), Compare("c", "==", True)


@pytest.mark.parametrize(
    ("where", "tree"),
    [
        ("null", Everything()),
        ("{}", Everything()),
        ('{"a": 1}', A),
        ('{"a": 1, "b": "x"}', And((A, B))),
        ('{"and": [{"a": 1}, {"b": "x"}]}', And((A, B))),
        ('{"or": [{"a": 1}, {"b": "x"}]}', Or((A, B))),
        ('{"not": {"a": 1}}', Not(A)),
        ('{"not": {"not": {"a": 1}}}', A),
        ('{"a": 1, "or": [{"b": "x"}, {"c": true}]}', And((A, Or((B, C))))),
        ('{"and": [{"and": [{"a": 1}, {"b": "x"}]}, {"a": 1}]}', And((A, B))),
        ('{"and": []}', Everything()),
        ('{"or": []}', Nothing()),
        ('{"a": {">=": 1, "<": 2.5}}', And((Compare("a", ">=", 1), Compare("a", "<", 2.5)))),
        ('{"a": {"in": ["x", 2]}}', Compare("a", "in", ("x", 2))),
        ('{"a": {"glob": "*.py"}}', Compare("a", "glob", "*.py")),
        ('{"tags": {"has": "sea"}}', Compare("tags", "has", "sea")),
        ('{"a": {"exists": true}}', Compare("a", "exists")),
        ('{"a": {"exists": false}}', Not(Compare("a", "exists"))),
        ('{"a": null}', Not(Compare("a", "exists"))),
        ('{"a": {"!=": null}}', Compare("a", "exists")),
        ('{"author.name": "x"}', Compare("author.name", "==", "x")),
        (r'{"\\and": 1}', Compare("and", "==", 1)),
        (r'{"\\\\x": 1}', Compare("\\x", "==", 1)),
        ('{"in": 1}', Compare("in", "==", 1)),
    ],
)
def test_where_becomes_a_predicate(where, tree):
    assert parse_where(json.loads(where)) == tree


@pytest.mark.parametrize(
    ("paths", "tree"),
    [
        ([], Everything()),
        (["*.py"], Glob("*.py")),
        (["*.py", "*.md"], Or((Glob("*.py"), Glob("*.md")))),
        (["!tests/**"], Not(Glob("tests/**"))),
        (["*.py", "!tests/**", "!x"], And((Glob("*.py"), Not(Glob("tests/**")), Not(Glob("x"))))),
        ([r"\!odd"], Glob("!odd")),
    ],
)
def test_paths_become_globs_of_which_one_must_match_and_no_excluded_one(paths, tree):
    assert parse_paths(paths) == tree


def test_paths_and_where_must_both_hold():
    assert scope(["*.py"], {"a": 1}) == And((Glob("*.py"), A))
    assert scope() == Everything()
    assert scope(["*.py"], {"or": []}) == Nothing()


@pytest.mark.parametrize(
    ("where", "at", "says"),
    [
        ("[1]", "where", "found a list; expected an object"),
        ('"a"', "where", "found text; expected an object"),
        ('{"and": {"a": 1}}', "where.and", r'found an object; and takes a list. A field called and is written "\\and"'),
        ('{"or": [{"a": 1}, 3]}', "where.or[1]", "found a number; expected an object"),
        ('{"not": [{"a": 1}]}', "where.not", "found a list; expected an object"),
        ('{"a": {"=>": 1}}', 'where.a["=>"]', "unknown operator '=>'; choose from " + ", ".join(OPERATORS)),
        ('{"author": {"name": "x"}}', "where.author.name", 'written with dots: "author.name"'),
        ('{"a": {}}', "where.a", "choose operators from"),
        ('{"a": [1, 2]}', "where.a", '{"a": {"in": […]}}'),
        ('{"a": {"in": "x"}}', "where.a.in", "found text; in takes a list"),
        ('{"a": {"in": [1, null]}}', "where.a.in[1]", "found null"),
        ('{"a": {"in": [[1]]}}', "where.a.in[0]", "found a list; expected text, a number, true or false"),
        ('{"a": {"<": true}}', 'where.a["<"]', "found a boolean; < takes a number or text"),
        ('{"a": {"<": null}}', 'where.a["<"]', "found null"),
        ('{"a": {"==": {"b": 1}}}', 'where.a["=="]', "found an object"),
        ('{"a": {"exists": 1}}', "where.a.exists", "found a number; exists takes true or false"),
        ('{"a": {"glob": 3}}', "where.a.glob", "found a number; glob takes text"),
        ('{"a": {"glob": "x[y"}}', "where.a.glob", "unclosed '['"),
        ('{"": 1}', 'where[""]', "a field's name has 1 to"),
        ('{"a": 1e999}', "where.a", "out of range"),
        ('{"a": 9223372036854775808}', "where.a", "out of range"),
        (json.dumps({"a": "x" * 5000}), "where.a", "text of 5,000 characters"),
    ],
)
def test_a_bad_filter_is_refused_with_its_place_and_what_is_allowed(where, at, says):
    with pytest.raises(BadQuery) as caught:
        parse_where(json.loads(where))
    assert caught.value.at == at
    assert str(caught.value).startswith(f"{at}: ") and says in str(caught.value)


@pytest.mark.parametrize(
    ("paths", "at"),
    [
        (["ok", ""], "paths[1]"),
        (["!"], "paths[0]"),
        (["a{b"], "paths[0]"),
        (["x" * 5000], "paths[0]"),
        (["*a*a*a*a*a*b"], "paths[0]"),  # would take a backtracking matcher for ever
        (["**/a/" * 6], "paths[0]"),
    ],
)
def test_a_bad_glob_is_refused_with_its_place(paths, at):
    with pytest.raises(BadQuery) as caught:
        parse_paths(paths)
    assert caught.value.at == at


def test_a_recursion_bomb_is_refused():
    bomb: dict = {"a": 1}
    for _ in range(100_000):
        bomb = {"not": bomb}
    with pytest.raises(BadQuery, match=f"more than {MAX_DEPTH} levels"):
        parse_where(bomb)
    while "not" in bomb:  # taken apart by hand: freeing so deep a tree at once would recurse in C
        bomb = bomb["not"]


def test_size_is_limited_as_a_whole():
    parse_where({"and": [{"a": {"in": list(range(900))}}, {"b": {"in": list(range(900))}}]})
    with pytest.raises(BadQuery, match=f"more than {MAX_CONDITIONS:} conditions"):
        parse_where({"and": [{"a": {"in": list(range(900))}}, {"b": {"in": list(range(1200))}}]})


SCALARS = st.one_of(st.integers(-3, 3), st.sampled_from(["x", "y"]), st.booleans())
LEAVES = st.one_of(
    st.builds(lambda f, v: {f: v}, st.sampled_from("abc"), st.one_of(SCALARS, st.none())),
    st.builds(lambda f, op, v: {f: {op: v}}, st.sampled_from("abc"), st.sampled_from(["<", ">=", "!="]), st.integers(-3, 3)),
    st.builds(lambda f, v: {f: {"in": v}}, st.sampled_from("abc"), st.lists(SCALARS, max_size=3)),
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda x: {"and": x}, st.lists(inner, max_size=3)),
        st.builds(lambda x: {"or": x}, st.lists(inner, max_size=3)),
        st.builds(lambda x: {"not": x}, inner),
    ),
    max_leaves=8,
)


def obviously(where, entry) -> bool:
    """What a filter means, said as directly as possible."""
    (key, value), *rest = where.items()
    assert not rest
    if key == "and":
        return all(obviously(x, entry) for x in value)
    if key == "or":
        return any(obviously(x, entry) for x in value)
    if key == "not":
        return not obviously(value, entry)
    have = entry.get(key)
    if value is None:
        return have is None
    if have is None:
        return False

    def same(x):
        return have == x and isinstance(have, bool) == isinstance(x, bool)

    if not isinstance(value, dict):
        return same(value)
    ((op, operand),) = value.items()
    if op == "in":
        return any(same(x) for x in operand)
    if isinstance(have, (bool, str)):
        return False  # compared with a number here
    return {"<": have < operand, ">=": have >= operand, "!=": have != operand}[op]


@given(FILTERS, st.dictionaries(st.sampled_from("abc"), SCALARS))
def test_a_parsed_filter_means_what_it_says(where, entry):
    assert matches(parse_where(where), "p", lambda name: lookup(entry, name)) == obviously(where, entry)


ANY_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(["and", "or", "not", *OPERATORS]), st.text(max_size=3)), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(ANY_JSON)
def test_any_json_gives_a_predicate_or_a_clear_error(value):
    try:
        parse_where(value)
    except BadQuery as error:
        assert str(error).startswith("where")
