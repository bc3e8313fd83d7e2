"""What can be said of an expression before any row is asked: whether entries alone decide it, whether it can be an error."""

from collections.abc import Callable

from shards.nlql import ir
from shards.nlql.context import Context
from shards.nlql.functions import is_built_in
from shards.nlql.rules import effective


def is_prunable(expr: ir.Expr, context: Context) -> bool:
    """Whether an expression depends on metadata only, and calls no functions of users, which may do more than give a value."""
    return _all_of(expr, context, _reads_metadata, {})


def may_raise(expr: ir.Expr, context: Context) -> bool:
    """Whether an expression can be an error for some row, as far as it tells: == and !=, and order of scores and lengths and numbers."""
    return not _all_of(expr, context, _never_raises, {})


def is_quick(expr: ir.Expr, context: Context) -> bool:
    """Whether an expression takes well below a microsecond a row: it reads no text of a row, and calls no functions of users."""
    return _all_of(expr, context, _reads_no_text, {})


def _all_of(expr: ir.Expr, context: Context, meets: Callable[[ir.Expr, Context], bool], known: dict[str, bool]) -> bool:
    """Whether all nodes of an expression meet a test, aliases replaced."""
    for node in ir.walk(expr):
        if isinstance(node, ir.Ref) and not node.name.startswith("#"):
            if node.name not in known:
                known[node.name] = _all_of(context.bound(node), context, meets, known)
            if not known[node.name]:
                return False
        elif not meets(node, context):
            return False
    return True


def _reads_metadata(node: ir.Expr, context: Context) -> bool:
    match node:
        case ir.Ref() | ir.Parameter():
            return False
        case ir.Path(root="content", segments=()):
            return False
        case ir.Call(name=name):
            return is_built_in(name, context.plugins)
    return True


def _reads_no_text(node: ir.Expr, context: Context) -> bool:
    match node:
        case ir.Path(root="content", segments=()):
            return False
        case ir.Call(name=name):
            return is_built_in(name, context.plugins)
    return True


def _never_raises(node: ir.Expr, context: Context) -> bool:
    match node:
        case ir.Parameter():
            return False
        case ir.Call(name=name):
            return is_built_in(name, context.plugins) and name.upper() not in ("MATCH", "GEO_DISTANCE", "GEO_WITHIN")
        case ir.Compare(op=op, left=left, right=right):
            hint = effective(context.hint(left, right), context.plugins)
            if hint not in (None, "text", "number", "date"):
                return False
            return op in ("==", "!=") or hint == "text" or (_is_number(left, context) and _is_number(right, context) and hint != "date")
        case ir.In(operand=operand, items=items):
            return all(effective(context.hint(operand, item), context.plugins) in (None, "text", "number", "date") for item in items)
    return True


def _is_number(expr: ir.Expr, context: Context) -> bool:
    """Whether an expression is a number or null on every row."""
    expr = context.resolved(expr)
    match expr:
        case ir.Ref():
            return True
        case ir.Literal(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ir.Call(name=name):
            return name.upper() in ("LENGTH", "COUNT") and is_built_in(name, context.plugins)
    return False
