"""NLQL against twenty thousand queries, right and broken: a tree or a placed error, and nothing else."""

import json

from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from jobs.random_queries import RandomQueries
from serve.nlql.aliases import check_aliases
from serve.nlql.json_ir import query_from_dict, query_to_dict
from serve.nlql.parser import parse, parse_statement
from serve.nlql.unparse import unparse, written
from shards.nlql.errors import NLQLError, ParseError, PlanError, SchemaError
from shards.nlql.ir import And, Call, Compare, Expr, In, Literal, Not, Or, Parameter, Path, Query, Select, rebuilt

QUERIES_A_SEED = 100


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_twenty_thousand_queries_give_a_tree_or_a_placed_error(seed: int) -> None:
    queries = RandomQueries(seed)
    for i in range(QUERIES_A_SEED):
        check(queries.either(), thoroughly=i % 5 == 0)


def check(text: str, thoroughly: bool) -> None:
    """That a text is read or refused as it should be. Errors of other kinds are the test's failures. thoroughly: and there and back."""
    try:
        query = parse_statement(text).query
    except (ParseError, SchemaError) as error:
        lines = text.split("\n")
        assert error.line is not None and error.column is not None, text
        assert 1 <= error.line <= len(lines) and 1 <= error.column <= len(lines[error.line - 1]) + 1, text
        assert str(error) in error.pretty(text) and "^" in error.pretty(text), text
        return
    if not thoroughly:
        return
    assert query_from_dict(query_to_dict(query)) == query, text
    assert written(query), text
    try:
        check_aliases(query)
    except PlanError as error:
        assert error.line is not None, text
    assert parse(unparse(query)) == query, text
    try:
        strict = parse(text, strict=True)
    except NLQLError:
        return
    assert strict == query, text


def test_three_thousand_broken_trees_give_a_query_or_an_error_with_its_place() -> None:
    queries, n_refused = RandomQueries(11), 0
    while n_refused < 3_000:
        try:
            tree = query_to_dict(parse(queries.query()))
        except NLQLError:
            continue
        for _ in range(4):
            tree = queries.broken_tree(tree)
            try:
                assert isinstance(query_from_dict(tree), Query)
            except SchemaError as error:
                assert error.at is not None or tree is None or not isinstance(tree, dict), tree
                str(error).encode()  # nothing of the value that cannot be sent back
                n_refused += 1
            if not isinstance(tree, dict):
                break


def test_most_queries_made_by_the_grammar_can_be_read_and_most_broken_ones_cannot() -> None:
    """Or the fuzz would show little."""
    queries = RandomQueries(7)

    def share(texts: list[str]) -> float:
        n_read = 0
        for text in texts:
            try:
                parse_statement(text)
                n_read += 1
            except NLQLError:
                pass
        return n_read / len(texts)

    assert share([queries.query() for _ in range(500)]) > 0.6
    assert 0.05 < share([queries.broken() for _ in range(500)]) < 0.5


NAMES = st.from_regex(r"\A[a-zA-Z_][a-zA-Z0-9_]{0,5}\Z")
LITERALS = st.builds(
    Literal,
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
) | st.builds(Literal, st.text(max_size=5), NAMES.map(str.lower))
PATHS = st.builds(Path, NAMES, st.lists(NAMES, max_size=2).map(tuple))


def above(below: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    """Nodes over nodes."""
    operands = st.lists(below, min_size=2, max_size=3).map(tuple)
    return (
        st.builds(Call, NAMES, st.lists(below, max_size=3).map(tuple))
        | st.builds(Call, st.sampled_from(("CONTAINS", "MATCH", "LIKE", "HAS")), st.tuples(below, below))
        | st.builds(Compare, st.sampled_from(("==", "!=", "<", "<=", ">", ">=")), below, below)
        | st.builds(And, operands)
        | st.builds(Or, operands)
        | st.builds(Not, below)
        | st.builds(In, below, st.lists(below, max_size=3).map(tuple))
    )


EXPRESSIONS = st.recursive(LITERALS | PATHS | st.builds(Parameter, NAMES), above, max_leaves=8)


@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS)
@example(And((And((Path("a"), Path("b"))), Path("c"))))
@example(Not(Compare("==", Not(Path("a")), Path("NOT"))))
@example(Literal(5e-324))
@example(Literal(-1.7976931348623157e308))
def test_a_tree_is_the_same_after_writing_and_reading_or_cannot_be_written(tree: Expr) -> None:
    query = Query(Select("chunk"), where=tree)
    assert query_from_dict(json.loads(json.dumps(query_to_dict(query)))) == query
    note(written(query))
    try:
        text = unparse(query)
    except SchemaError:
        return
    again = parse(text)
    assert unparse(again) == text
    assert again == query or flat(again.where) == flat(tree)


def flat(node: Expr) -> str:
    """What a tree means, whatever the brackets of chains and however a field is called."""

    def change(node: Expr) -> Expr:
        match node:
            case And(operands=operands) | Or(operands=operands):
                kind = type(node)
                return kind(tuple(part for each in operands for part in (each.operands if isinstance(each, kind) else (each,))))
            case Path(root="meta", segments=(root, *segments)):
                return Path(root, tuple(segments))
        return node

    return repr(rebuilt(node, change))
