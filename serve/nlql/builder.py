"""Queries written in Python: `select("sentence").let("rel", similarity(content, "tea")).where(F("rel") > 0.3).limit(5)`.

Operators make expressions: == != < <= > >= compare, & | ~ are AND, OR, NOT (in brackets: Python binds them tighter than comparisons).
Unlike in text, an alias is always F(name), a field Meta(name) or field("a.b"); segments may hold any characters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from serve.nlql.bounds import check_height
from serve.nlql.json_ir import query_from_dict, query_to_dict
from shards.nlql.errors import SchemaError
from shards.nlql.ir import And, Binding, Call, Compare, Expr, In, Literal, Not, Or, Parameter, Path, Query, Ref, Select, SortKey


@dataclass(frozen=True, eq=False, slots=True)
class Term:
    """An expression with operators. node: the tree."""

    node: Expr

    def __eq__(self, other: object) -> "Term":  # type: ignore[override]
        return _compare("==", self, other)

    def __ne__(self, other: object) -> "Term":  # type: ignore[override]
        return _compare("!=", self, other)

    def __lt__(self, other: object) -> "Term":
        return _compare("<", self, other)

    def __le__(self, other: object) -> "Term":
        return _compare("<=", self, other)

    def __gt__(self, other: object) -> "Term":
        return _compare(">", self, other)

    def __ge__(self, other: object) -> "Term":
        return _compare(">=", self, other)

    def __and__(self, other: object) -> "Term":
        return Term(_chain(And, self.node, node_of(other)))

    def __rand__(self, other: object) -> "Term":
        return Term(_chain(And, node_of(other), self.node))

    def __or__(self, other: object) -> "Term":
        return Term(_chain(Or, self.node, node_of(other)))

    def __ror__(self, other: object) -> "Term":
        return Term(_chain(Or, node_of(other), self.node))

    def __invert__(self) -> "Term":
        return Term(Not(self.node))

    def __bool__(self) -> NoReturn:
        raise SchemaError("An expression is neither true nor false: join expressions by & and |, negate by ~, and write a < x < b as two.")

    def __hash__(self) -> int:
        return hash(self.node)

    def contains(self, text: object) -> "Term":
        return call("CONTAINS", self, text)

    def match(self, pattern: object) -> "Term":
        return call("MATCH", self, pattern)

    def like(self, pattern: object) -> "Term":
        return call("LIKE", self, pattern)

    def has(self, item: object) -> "Term":
        """Whether a list of the metadata has this item."""
        return call("HAS", self, item)

    def in_(self, *items: object) -> "Term":
        """Whether it equals any of these; a list counts as its items."""
        spread = [each for item in items for each in (item if isinstance(item, list | tuple | set | frozenset) else (item,))]
        return Term(In(self.node, tuple(map(node_of, spread))))

    def between(self, least: object, most: object) -> "Term":
        return Term(And((Compare(">=", self.node, node_of(least)), Compare("<=", self.node, node_of(most)))))

    def is_null(self) -> "Term":
        return _compare("==", self, None)

    def is_not_null(self) -> "Term":
        return _compare("!=", self, None)


content = Term(Path("content"))  # the text of a row


def F(alias: str) -> Term:
    """What LET binds to this name."""
    return Term(Ref(alias))


def Meta(*segments: str) -> Term:
    """A field of the metadata: Meta("author", "team") is author.team. Names may hold blanks and dots."""
    return Term(Path("meta", segments))


def field(path: str) -> Term:
    """A path with dots as in text: "content", "meta.author.team", or "author.team" for the same field."""
    root, *segments = path.split(".")
    if "" in (root, *segments):
        raise SchemaError(f"{path!r} is no path: a name is missing beside a dot.")
    return Term(Path(root, tuple(segments)))


def vec(name: str) -> Term:
    """A named vector, for `similarity`."""
    return Term(Path("vec", (name,)))


def lit(value: Any, type_hint: str | None = None) -> Term:
    """A value, if need be with its type: lit("2024-01-01", "date"). Raises SchemaError for what is no value of NLQL."""
    return Term(Literal(node_of(value).value, type_hint.lower() if type_hint else None))  # type: ignore[union-attr]


def param(name: str) -> Term:
    """A value that is given beside the query."""
    return Term(Parameter(name))


def call(name: str, *args: object) -> Term:
    """Any function."""
    return Term(Call(name, tuple(map(node_of, args))))


def similarity(vector: Term, text: object) -> Term:
    """How close the row, `content` or `vec(name)`, is to a text."""
    return call("SIMILARITY", vector, text)


def contains(value: object, text: object) -> Term:
    return call("CONTAINS", value, text)


def match(value: object, pattern: object) -> Term:
    return call("MATCH", value, pattern)


def like(value: object, pattern: object) -> Term:
    return call("LIKE", value, pattern)


def has(value: object, item: object) -> Term:
    return call("HAS", value, item)


def length(value: object) -> Term:
    return call("LENGTH", value)


def count(value: object, text: object) -> Term:
    return call("COUNT", value, text)


def lower(value: object) -> Term:
    return call("LOWER", value)


def upper(value: object) -> Term:
    return call("UPPER", value)


@dataclass(frozen=True, slots=True)
class QueryBuilder:
    """A query in the making. Every method gives a new one, so that one may be the beginning of several."""

    query: Query

    def let(self, name: str, value: object) -> "QueryBuilder":
        return QueryBuilder(replace(self.query, let=(*self.query.let, Binding(name, node_of(value)))))

    def where(self, *conditions: object) -> "QueryBuilder":
        """Rows for which all of these hold, and what was asked before."""
        nodes = [node_of(condition) for condition in conditions]
        if self.query.where is not None:
            nodes.insert(0, self.query.where)
        return QueryBuilder(replace(self.query, where=_chain(And, *nodes) if nodes else None))

    def order_by(self, key: object, desc: bool = False) -> "QueryBuilder":
        """One more key. A text is an alias of LET, or, if there is none, a path."""
        if isinstance(key, str):
            key = F(key) if any(binding.name == key for binding in self.query.let) else field(key)
        return QueryBuilder(replace(self.query, order_by=(*self.query.order_by, SortKey(node_of(key), desc))))

    def limit(self, n: int | None) -> "QueryBuilder":
        return QueryBuilder(replace(self.query, limit=n))

    def offset(self, n: int) -> "QueryBuilder":
        return QueryBuilder(replace(self.query, offset=n))

    def within_ms(self, n: int | None) -> "QueryBuilder":
        """The time to answer in."""
        return QueryBuilder(replace(self.query, within_ms=n))

    def count_by(self, *values: object) -> "QueryBuilder":
        """Values by which all rows that `where` keeps are counted."""
        return QueryBuilder(replace(self.query, count_by=(*self.query.count_by, *map(node_of, values))))

    def build(self) -> Query:
        """The query. Raises SchemaError with the place of what is wrong."""
        for root in (*(b.expr for b in self.query.let), self.query.where, *(k.expr for k in self.query.order_by), *self.query.count_by):
            if root is not None:
                check_height(root, SchemaError)
        return query_from_dict(query_to_dict(self.query))  # the same checks for whatever a tree is made of

    def text(self) -> str:
        """The query as NLQL. Raises SchemaError where NLQL cannot say it."""
        from serve.nlql.unparse import unparse

        return unparse(self.build())


def select(unit: str, window: int | None = None) -> QueryBuilder:
    """Begins a query: "document", "chunk" or "sentence", with `window` units on either side."""
    return QueryBuilder(Query(Select(unit.lower(), window)))


def node_of(value: object) -> Expr:
    """A term's tree; of anything else, a literal. Raises SchemaError for what is no value of NLQL."""
    if isinstance(value, Term):
        return value.node
    if isinstance(value, Literal | Path | Ref | Call | Compare | And | Or | Not | In | Parameter):
        return value
    if value is None or isinstance(value, str | bool | int | float):
        return Literal(value)
    raise SchemaError(f"A {type(value).__name__} is no value of NLQL: expected a text, a number, True, False, None or an expression.")


def as_query(value: object, strict: bool = False) -> Query:
    """The tree of whatever may stand for a query: a text, a builder, JSON, or the tree. Raises ParseError, SchemaError."""
    if isinstance(value, Query):
        return value
    if isinstance(value, QueryBuilder):
        return value.build()
    if isinstance(value, Mapping):
        return query_from_dict(value, strict)
    if isinstance(value, str):
        from serve.nlql.parser import parse

        return parse(value, strict)
    raise SchemaError(f"A {type(value).__name__} is no query: expected NLQL, JSON, or what select(…) builds.")


def _compare(op: str, left: Term, right: object) -> Term:
    return Term(Compare(op, left.node, node_of(right)))


def _chain(kind: type[And] | type[Or], *nodes: Expr) -> Expr:
    """Nodes in one; chains of the same kind become part of it, however Python nested them."""
    parts = [part for node in nodes for part in (node.operands if isinstance(node, kind) else (node,))]
    return parts[0] if len(parts) == 1 else kind(tuple(parts))
