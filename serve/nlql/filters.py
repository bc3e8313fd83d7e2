"""How WHERE is cut for people: into what a store of the peer would take and the rest; and what of it a search can be told."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serve.filters import MAX_TEXT_CHARS, parse_where
from shards.errors import BadQuery
from shards.nlql import ir

_TAKEN = ("path", "source", "size_bytes", "mtime", "ext", "kind", "language", "and", "or", "not")  # names that mean more in a search


def conjuncts(where: ir.Expr | None, nested: bool = False) -> Iterator[ir.Expr]:
    """What WHERE's top AND joins, in the order in which it is written. nested: also what an AND within it joins."""
    if isinstance(where, ir.And):
        for part in where.operands:
            yield from conjuncts(part, nested=True) if nested else (part,)
    elif where is not None:
        yield where


def joined(nodes: Sequence[ir.Expr]) -> ir.Expr | None:
    """Conjuncts as one expression; None of none."""
    return None if not nodes else nodes[0] if len(nodes) == 1 else ir.And(tuple(nodes))


def is_pushed(node: ir.Expr, types: Mapping[str, str]) -> bool:
    """Whether a conjunct is one that the peer's store takes (LANGUAGE.md section 11): comparisons of one metadata path with one literal."""
    match node:
        case ir.And(operands=parts) | ir.Or(operands=parts):
            return all(is_pushed(part, types) for part in parts)
        case ir.Not(operand=operand):
            return is_pushed(operand, types)
        case ir.Compare(op=op, left=left, right=right):
            path, literal = (left, right) if isinstance(left, ir.Path) else (right, left)
            if not (_is_metadata(path) and isinstance(literal, ir.Literal)):
                return False
            if literal.value is None or literal.type_hint is not None or dotted(path) in types:
                return False
            return op in ("==", "!=") or (isinstance(literal.value, int | float) and not isinstance(literal.value, bool))
    return False


def comes_first(node: ir.Expr, types: Mapping[str, str]) -> bool:
    """Whether a conjunct is tested before those that are not like it: of these pushed ones what has an answer for every value.

    A comparison of order raises on an odd value, so which rows reach it is what the written order says (B7); equality never does.
    """
    match node:
        case ir.And(operands=parts) | ir.Or(operands=parts):
            return all(comes_first(part, types) for part in parts)
        case ir.Not(operand=operand):
            return comes_first(operand, types)
        case ir.Compare(op=op):
            return op in ("==", "!=") and is_pushed(node, types)
        case ir.In(operand=operand, items=items):
            return all(is_pushed(ir.Compare("==", operand, item), types) for item in items)
    return False


def _is_metadata(node: ir.Expr) -> bool:
    return isinstance(node, ir.Path) and node.root != "content"


def dotted(path: ir.Expr) -> str:
    """A metadata path as field types name it: without `meta`."""
    assert isinstance(path, ir.Path)
    return ".".join(path.segments if path.root == "meta" else (path.root, *path.segments))


def search_filter(parts: Sequence[ir.Expr], types: Mapping[str, str]) -> dict[str, Any] | None:
    """What of these conjuncts a search's `where` can say without losing a document (`serve/filters.py`); None: nothing.

    A search compares text with text and numbers with numbers, a query also "007" with 7. So only comparisons with text that reads as
    neither number nor date go over, in which both agree; and nothing where that is more than a search takes.
    """
    found = _joined_told(parts, types)
    try:
        parse_where(found)
    except BadQuery:  # nested too deep, or too many values
        return None
    return found


def _joined_told(parts: Sequence[ir.Expr], types: Mapping[str, str]) -> dict[str, Any] | None:
    found = [told for part in parts if (told := _told(part, types)) is not None]
    return {"and": found} if found else None


def _told(node: ir.Expr, types: Mapping[str, str]) -> dict[str, Any] | None:
    match node:
        case ir.And(operands=parts):
            return _joined_told(parts, types)
        case ir.Or(operands=parts):
            either = [_told(part, types) for part in parts]
            return {"or": either} if None not in either else None
        case ir.Compare(op="==" | "!=" as op, left=left, right=right):
            path, literal = (left, right) if isinstance(left, ir.Path) else (right, left)
            if not (_is_plain_field(path, types) and _is_plain_text(literal)):
                return None
            assert isinstance(literal, ir.Literal)
            same = {dotted(path): literal.value}
            return same if op == "==" else {"not": same}
        case ir.In(operand=path, items=items) if _is_plain_field(path, types) and all(map(_is_plain_text, items)):
            return {dotted(path): {"in": [item.value for item in items if isinstance(item, ir.Literal)]}}
    return None


def _is_plain_field(node: ir.Expr, types: Mapping[str, str]) -> bool:
    """Whether both mean the same by a path: not what a search calls something else, nor a name that dots would take apart."""
    if not isinstance(node, ir.Path) or not _is_metadata(node):
        return False
    name = dotted(node)
    steps = node.segments if node.root == "meta" else (node.root, *node.segments)
    return bool(steps) and name not in types and steps[0] not in _TAKEN and all(step and "." not in step for step in steps)


def _is_plain_text(node: ir.Expr) -> bool:
    from shards.nlql.values import any_date_of, number_of

    match node:
        case ir.Literal(value=str() as text, type_hint=None):
            return len(text) <= MAX_TEXT_CHARS and number_of(text) is None and any_date_of(text) is None
    return False
