"""Values given beside a query, put into its tree where it says `:name`."""

import datetime
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from serve.nlql.bounds import HALF, HALF_MESSAGE
from shards.nlql.errors import PlanError
from shards.nlql.ir import Expr, In, Literal, Parameter, Position, Query, children, rebuilt, walk

MAX_ITEMS = 10_000  # of a list of values


def parameters_of(query: Query) -> tuple[str, ...]:
    """The names of a query's parameters, in the order in which they are written."""
    return tuple(dict.fromkeys(node.name for root in _roots(query) for node in walk(root) if isinstance(node, Parameter)))


def bind(query: Query, values: Mapping[str, Any]) -> Query:
    """The query with a literal for every parameter.

    values: texts, numbers, booleans, None; a `date` becomes DATE '…', a `datetime` TIMESTAMP '…'; a list becomes items of IN.
    Raises PlanError for a parameter without a value, a value without a parameter, and a value that cannot stand there.
    """
    named = parameters_of(query)
    if unknown := [name for name in values if name not in named]:
        has = f"The query has {', '.join(f':{name}' for name in named)}." if named else "The query has no parameters."
        raise PlanError(f"No parameter :{unknown[0]} in the query. {has}", at=f"params.{unknown[0]}")
    if not named:
        return query

    def change(node: Expr) -> Expr:
        if isinstance(node, Parameter):
            if node.name not in values:
                raise PlanError(f"No value is given for parameter :{node.name}.").placed(node.at)
            return _literal(node.name, values[node.name], node.at)
        for child in (node.operand,) if isinstance(node, In) else children(node):
            _refuse_list(child)
        return replace(node, items=tuple(item for each in node.items for item in _spread(each))) if isinstance(node, In) else node

    def bound(root: Expr) -> Expr:
        return _refuse_list(rebuilt(root, change))

    return replace(
        query,
        let=tuple(replace(binding, expr=bound(binding.expr)) for binding in query.let),
        where=None if query.where is None else bound(query.where),
        order_by=tuple(replace(key, expr=bound(key.expr)) for key in query.order_by),
        count_by=tuple(map(bound, query.count_by)),
    )


def _roots(query: Query) -> Iterator[Expr]:
    yield from (binding.expr for binding in query.let)
    if query.where is not None:
        yield query.where
    yield from (key.expr for key in query.order_by)
    yield from query.count_by


def _literal(name: str, value: Any, at: Position | None) -> Literal:
    """A value as a literal; of a list, for the moment, as one of a tuple of literals."""
    if isinstance(value, list | tuple):
        if len(value) > MAX_ITEMS:
            raise PlanError(f"Parameter :{name} has {len(value):,} values; at most {MAX_ITEMS:,} are taken.").placed(at)
        if any(isinstance(item, list | tuple) for item in value):
            raise PlanError(f"Parameter :{name} is a list of lists; a list of values is taken.").placed(at)
        return Literal(tuple([_literal(name, item, at) for item in value]), at=at)
    if isinstance(value, datetime.datetime):
        return Literal(value.isoformat(), "timestamp", at)
    if isinstance(value, datetime.date):
        return Literal(value.isoformat(), "date", at)
    if isinstance(value, str) and HALF.search(value):
        raise PlanError(HALF_MESSAGE, at=f"params.{name}").placed(at)
    if value is None or isinstance(value, str | bool):
        return Literal(value, at=at)
    if (isinstance(value, float) and math.isfinite(value)) or (isinstance(value, int) and abs(value) <= sys.float_info.max):
        return Literal(value, at=at)
    shown = value if isinstance(value, float) else f"a {type(value).__name__}" if not isinstance(value, int) else "beyond 1.8e308"
    raise PlanError(f"Parameter :{name} is {shown}; expected a text, a number, true, false, null, a date, or a list of these.").placed(at)


def _spread(item: Expr) -> tuple[Expr, ...]:
    return item.value if isinstance(item, Literal) and isinstance(item.value, tuple) else (item,)


def _refuse_list(node: Expr) -> Expr:
    if isinstance(node, Literal) and isinstance(node.value, tuple):
        raise PlanError("A list of values can only stand in IN: x IN :names.").placed(node.at)
    return node
