"""The query tree: globs, comparisons, and what a shard can decide before it looks at anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import BadQuery
from shards.plan import And, Compare, Everything, Glob, Not, Nothing, Or, compare, fields_of, glob_regex, lookup, matches, simplify


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*.py", ["a.py", "x/y/a.py"], ["a.pyc", "a.py/b"]),
        ("/*.py", ["a.py"], ["x/a.pyc"]),
        ("src/*.py", ["src/a.py"], ["src/x/a.py", "other/src/a.py"]),
        ("src/**", ["src/a", "src/x/y"], ["src", "srcs/a"]),
        ("**/test_*", ["test_a", "x/y/test_b"], ["x/a_test"]),
        ("a?c", ["abc", "x/abc"], ["ac", "a/c"]),
        ("[ab]x", ["ax", "d/bx"], ["cx"]),
        ("[!ab]x", ["cx"], ["ax"]),
        ("*.{md,txt}", ["a.md", "d/b.txt"], ["a.rst"]),
        ("a+b(1).py", ["a+b(1).py"], ["aab1.py"]),
        ("file\n*", ["file\nx"], ["file"]),
    ],
)
def test_globs_match_paths_as_in_gitignore(pattern, inside, outside):
    regex = glob_regex(pattern)
    assert all(regex.fullmatch(path) for path in inside)
    assert not any(regex.fullmatch(path) for path in outside)


@pytest.mark.parametrize("pattern", ["[a", "{a,b", "*a" * 9, "[z-a]"])
def test_a_broken_glob_names_itself_and_the_remedy(pattern):
    with pytest.raises(BadQuery, match="Glob"):
        glob_regex(pattern)


@pytest.mark.parametrize(
    ("op", "left", "right", "expected"),
    [
        ("==", 3, 3.0, True),
        ("==", "3", 3, False),
        ("==", True, 1, False),
        ("!=", "a", "b", True),
        ("!=", None, "b", False),
        ("!=", "a", 3, False),
        ("<", 2, 3, True),
        ("<", "b", "a", False),
        ("<", "a", 3, False),
        ("in", "b", ("a", "b"), True),
        ("in", None, ("a",), False),
        ("exists", None, None, False),
        ("exists", 0, None, True),
        ("glob", "src/a.py", "*.py", True),
        ("glob", 7, "*", False),
    ],
)
def test_types_must_agree_and_missing_fields_are_false(op, left, right, expected):
    assert compare(op, left, right) is expected


def test_an_unknown_operator_names_the_known_ones():
    with pytest.raises(BadQuery, match="choose from =="):
        compare("~", 1, 1)


def test_dotted_fields_walk_nested_metadata():
    assert lookup({"a": {"b": 1}}, "a.b") == 1
    assert lookup({"a": 1}, "a.b") is None
    assert lookup({}, "a") is None


A, B = Compare("a", "==", 1), Glob("*.py")


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (And((A, Everything(), A)), A),
        (And((A, Nothing())), Nothing()),
        (Or((A, Nothing())), A),
        (Or((A, Everything())), Everything()),
        (And(()), Everything()),
        (Or(()), Nothing()),
        (Not(Not(A)), A),
        (Not(Everything()), Nothing()),
        (And((A, And((B, A)))), And((A, B))),
        (Or((Or((A, B)), B)), Or((A, B))),
    ],
)
def test_constants_fold_and_nests_flatten(node, expected):
    assert simplify(node) == expected


def test_what_a_shard_knows_of_a_leaf_decides_the_whole():
    assert simplify(And((A, B)), lambda leaf: False if leaf == A else None) == Nothing()
    assert simplify(Or((A, B)), lambda leaf: True if leaf == B else None) == Everything()


def test_fields_are_those_that_any_part_reads():
    assert fields_of(Or((A, Not(Compare("b.c", "exists")), B))) == {"a", "b.c"}


leaves = st.sampled_from(
    [Everything(), Nothing(), B, Glob("x/**"), A, Compare("a", "<", 2), Compare("b", "exists"), Compare("a", "!=", 1)]
)
predicates = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, max_size=3).map(lambda parts: And(tuple(parts))),
        st.lists(inner, max_size=3).map(lambda parts: Or(tuple(parts))),
    ),
    max_leaves=12,
)


@given(predicates, st.sampled_from(["x/a.py", "b.txt"]), st.sampled_from([{}, {"a": 1}, {"a": 0, "b": None}, {"b": "x"}]))
def test_simplifying_never_changes_what_matches(node, path, metadata):
    def value(name):
        return lookup(metadata, name)

    assert matches(simplify(node), path, value) == matches(node, path, value)
