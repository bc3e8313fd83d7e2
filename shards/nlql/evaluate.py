"""What an expression is on one row: the obvious definition, which `columns.py` must agree with and tests compare it to."""

from collections.abc import Mapping
from typing import Any, Protocol

from shards.nlql import ir
from shards.nlql.context import Context, metadata_steps
from shards.nlql.errors import NLQLError, PlanError
from shards.nlql.functions import called, found
from shards.nlql.values import compare, truth


class Row(Protocol):
    """One row of a query. scores: by `#0`, `#1`, …; None where the row has none."""

    @property
    def content(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def scores(self) -> Mapping[str, float | None]: ...


def evaluate(expr: ir.Expr, row: Row, context: Context) -> Any:
    """The value of an expression on a row. AND and OR go from left to right and no further than they must. Raises NLQLErrors."""
    return _Evaluation(row, context).value(expr)


def holds(expr: ir.Expr, row: Row, context: Context) -> bool:
    """Whether an expression counts as true on a row."""
    return truth(evaluate(expr, row, context))


class _Evaluation:
    """One row. An alias is evaluated once: aliases of aliases could otherwise double the work with each of them."""

    def __init__(self, row: Row, context: Context):
        self.row, self.context = row, context
        self.aliases: dict[str, Any] = {}

    def value(self, expr: ir.Expr) -> Any:
        match expr:
            case ir.Literal(value=value):
                return value
            case ir.Path():
                return self.looked_up(expr)
            case ir.Ref(name=name):
                return self.row.scores[name] if name.startswith("#") else self.alias(expr)
            case ir.And(operands=operands):
                return all(truth(self.value(operand)) for operand in operands)
            case ir.Or(operands=operands):
                return any(truth(self.value(operand)) for operand in operands)
            case ir.Not(operand=operand):
                return not truth(self.value(operand))
            case ir.Compare(op=op, left=left, right=right):
                a, b = self.value(left), self.value(right)
                return self.compared(expr, op, a, b, self.context.hint(left, right))
            case ir.In(operand=operand, items=items):
                value = self.value(operand)
                return any(self.compared(expr, "==", value, self.value(item), self.context.hint(operand, item)) for item in items)
            case ir.Call(args=args):
                function = found(expr, self.context.plugins)
                return called(expr, function, [self.value(arg) for arg in args], self.context)
            case ir.Parameter(name=name):
                raise PlanError(f"The parameter :{name} has no value. Give it one (params) with the query.").placed(expr.at)

    def looked_up(self, path: ir.Path) -> Any:
        """What a path reads: the row's text, or its metadata step by step."""
        steps = metadata_steps(path)
        if steps is None:
            return self.row.content if path.root == "content" and not path.segments else None
        return walked(self.row.metadata, steps)

    def alias(self, ref: ir.Ref) -> Any:
        if ref.name not in self.aliases:
            self.aliases[ref.name] = self.value(self.context.bound(ref))
        return self.aliases[ref.name]

    def compared(self, node: ir.Compare | ir.In, op: str, left: Any, right: Any, hint: str | None) -> bool:
        try:
            return compare(op, left, right, hint, self.context.plugins)
        except NLQLError as error:
            error.placed(node.at)
            raise


def walked(value: Any, steps: tuple[str, ...]) -> Any:
    """A value below nested keys; None where one is missing or not into an object."""
    for step in steps:
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value
