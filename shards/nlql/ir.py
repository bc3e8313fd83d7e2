"""The query tree of NLQL: what text, builder and JSON compile to, and the only thing that is planned and run.

Plain NLQL has the nodes Literal, Path, Ref, Call, Compare, And, Or, Not. Sondage adds In, Parameter and the later clauses of `Query`;
what else it adds is written in these: BETWEEN as two comparisons, IS NULL as `== null`, HAS and geography as calls.
"""

# ruff: noqa: RUF009 (each class gets a field of its own)

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
UNITS = ("document", "chunk", "sentence")


class Position(NamedTuple):
    """Where something stands in the text of a query, both from 1."""

    line: int
    column: int


def _at() -> Any:
    return field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Literal:
    """A value. type_hint: the word before a typed literal, in lower case."""

    value: Any
    type_hint: str | None = None
    at: Position | None = _at()


@dataclass(frozen=True, slots=True)
class Path:
    """`content`, `meta.a.b`, `vec.name`, or a bare name, which reads metadata; `meta` alone is all of it."""

    root: str
    segments: tuple[str, ...] = ()
    at: Position | None = _at()


@dataclass(frozen=True, slots=True)
class Ref:
    """An alias that LET binds."""

    name: str
    at: Position | None = _at()


@dataclass(frozen=True, slots=True)
class Call:
    """A function, named as it was written; infix CONTAINS, MATCH, LIKE, HAS are calls, too."""

    name: str
    args: tuple["Expr", ...] = ()
    at: Position | None = _at()


@dataclass(frozen=True, slots=True)
class Compare:
    op: str
    left: "Expr"
    right: "Expr"
    at: Position | None = _at()


@dataclass(frozen=True, slots=True)
class And:
    operands: tuple["Expr", ...]
    at: Position | None = _at()


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple["Expr", ...]
    at: Position | None = _at()


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Expr"
    at: Position | None = _at()


@dataclass(frozen=True, slots=True)
class In:
    """Whether a value equals (`==`) any of these. An extension."""

    operand: "Expr"
    items: tuple["Expr", ...]
    at: Position | None = _at()


@dataclass(frozen=True, slots=True)
class Parameter:
    """`:name`, bound to a literal before planning. An extension."""

    name: str
    at: Position | None = _at()


Expr = Literal | Path | Ref | Call | Compare | And | Or | Not | In | Parameter


@dataclass(frozen=True, slots=True)
class Select:
    """What a row is. window: of SPAN, units on either side; None: no SPAN."""

    unit: str
    window: int | None = None
    at: Position | None = _at()


@dataclass(frozen=True, slots=True)
class Binding:
    name: str
    expr: Expr
    at: Position | None = _at()


@dataclass(frozen=True, slots=True)
class SortKey:
    expr: Expr
    desc: bool = False
    at: Position | None = _at()


@dataclass(frozen=True, slots=True)
class Query:
    """One query. After `limit` stand extensions.

    offset: rows left out at the top. within_ms: the time budget. count_by: facets, each counted over all rows that WHERE keeps.
    """

    select: Select
    let: tuple[Binding, ...] = ()
    where: Expr | None = None
    order_by: tuple[SortKey, ...] = ()
    limit: int | None = None
    offset: int = 0
    within_ms: int | None = None
    count_by: tuple[Expr, ...] = ()


def children(node: Expr) -> tuple[Expr, ...]:
    """The expressions right below one."""
    match node:
        case Call(args=parts) | And(operands=parts) | Or(operands=parts):
            return parts
        case Compare(left=left, right=right):
            return (left, right)
        case Not(operand=operand):
            return (operand,)
        case In(operand=operand, items=items):
            return (operand, *items)
    return ()


def walk(node: Expr) -> Iterator[Expr]:
    """An expression and all below it, in the order in which they are written."""
    stack = [node]
    while stack:
        yield (top := stack.pop())
        stack.extend(reversed(children(top)))


def rebuilt(node: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """An expression with every node passed through `change`, the ones below first. Nodes without a change are kept as they are."""
    before = children(node)
    after = tuple([rebuilt(child, change) for child in before])
    if any(new is not old for new, old in zip(after, before, strict=True)):
        match node:
            case Call():
                node = replace(node, args=after)
            case And() | Or():
                node = replace(node, operands=after)
            case Compare():
                node = replace(node, left=after[0], right=after[1])
            case Not():
                node = replace(node, operand=after[0])
            case In():
                node = replace(node, operand=after[0], items=after[1:])
    return change(node)
