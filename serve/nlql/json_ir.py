"""Queries as JSON values, there and back: the form that programs and language models write.

A query is {"select": {"unit", "window"?}, "let"?: [{"name", "expr"}], "where"?, "order_by"?: [{"expr", "desc"?}], "limit"?} and,
of Sondage's own, "offset"?, "within_ms"?, "count_by"?: [expr]. An expression is an object whose "node" says what it is:

    literal {value, type_hint?}   path {root, segments?}   ref {name}   call {name, args?}   compare {op, left, right}
    and, or {operands}   not {operand}   and of Sondage's own   in {operand, items}   parameter {name}

`null` stands for an optional field that is not there. Unknown fields are refused, so that a misspelt one is not silently ignored.
"""

import difflib
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from serve.nlql.bounds import HALF, HALF_MESSAGE, MAX_DEPTH, MAX_ROWS, check_lists, too_deep
from shards.nlql.errors import SchemaError
from shards.nlql.ir import (
    COMPARISONS,
    UNITS,
    And,
    Binding,
    Call,
    Compare,
    Expr,
    In,
    Literal,
    Not,
    Or,
    Parameter,
    Path,
    Query,
    Ref,
    Select,
    SortKey,
)

MAX_NODES = 20_000  # of one query: as many as a text can have

_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # of each node: what it must have, what it may have
    "literal": (("value",), ("type_hint",)),
    "path": (("root",), ("segments",)),
    "ref": (("name",), ()),
    "call": (("name",), ("args",)),
    "compare": (("op", "left", "right"), ()),
    "and": (("operands",), ()),
    "or": (("operands",), ()),
    "not": (("operand",), ()),
    "in": (("operand", "items"), ()),
    "parameter": (("name",), ()),
}
_EXTENSIONS = ("in", "parameter")
_QUERY = ("select", "let", "where", "order_by", "limit")
_QUERY_EXTENSIONS = ("offset", "within_ms", "count_by")


def query_to_dict(query: Query) -> dict[str, Any]:
    """A query as a JSON value; what it does not have is left out."""
    select: dict[str, Any] = {"unit": query.select.unit}
    if query.select.window is not None:
        select["window"] = query.select.window
    out: dict[str, Any] = {"select": select}
    if query.let:
        out["let"] = [{"name": binding.name, "expr": node_to_dict(binding.expr)} for binding in query.let]
    if query.where is not None:
        out["where"] = node_to_dict(query.where)
    if query.order_by:
        out["order_by"] = [{"expr": node_to_dict(key.expr), "desc": key.desc} for key in query.order_by]
    if query.limit is not None:
        out["limit"] = query.limit
    if query.offset:
        out["offset"] = query.offset
    if query.within_ms is not None:
        out["within_ms"] = query.within_ms
    if query.count_by:
        out["count_by"] = [node_to_dict(expr) for expr in query.count_by]
    return out


def node_to_dict(node: Expr) -> dict[str, Any]:
    """An expression as a JSON value."""
    match node:
        case Literal(value=value, type_hint=hint):
            return {"node": "literal", "value": value} | ({} if hint is None else {"type_hint": hint})
        case Path(root=root, segments=segments):
            return {"node": "path", "root": root, "segments": list(segments)}
        case Ref(name=name):
            return {"node": "ref", "name": name}
        case Call(name=name, args=args):
            return {"node": "call", "name": name, "args": [node_to_dict(arg) for arg in args]}
        case Compare(op=op, left=left, right=right):
            return {"node": "compare", "op": op, "left": node_to_dict(left), "right": node_to_dict(right)}
        case And(operands=operands):
            return {"node": "and", "operands": [node_to_dict(operand) for operand in operands]}
        case Or(operands=operands):
            return {"node": "or", "operands": [node_to_dict(operand) for operand in operands]}
        case Not(operand=operand):
            return {"node": "not", "operand": node_to_dict(operand)}
        case In(operand=operand, items=items):
            return {"node": "in", "operand": node_to_dict(operand), "items": [node_to_dict(item) for item in items]}
        case Parameter(name=name):
            return {"node": "parameter", "name": name}
    raise SchemaError(f"{type(node).__name__} is no node of a query.")


def query_from_dict(value: Any, strict: bool = False) -> Query:
    """The tree of a query in JSON. strict: without what Sondage adds.

    Raises SchemaError, whose `at` is the place (`where.operands[1].left.node`).
    """
    return _Reader(strict).query(value)


def node_from_dict(value: Any, at: str = "", strict: bool = False) -> Expr:
    """An expression in JSON. at: where it stands, for messages. Raises SchemaError."""
    return _Reader(strict).node(value, at, 1)


class _Reader:
    def __init__(self, strict: bool):
        self.strict = strict
        self.n_nodes = 0

    def query(self, value: Any) -> Query:
        known = _QUERY if self.strict else (*_QUERY, *_QUERY_EXTENSIONS)
        fields = _object(value, "", "a query", ("select",), known)
        select = _object(fields["select"], "select", "the selection", ("unit",), ("window",))
        unit = select["unit"]
        if unit not in UNITS:
            raise SchemaError(f"Expected {_choice(UNITS)}, found {_shown(unit)}.", at="select.unit", expected=UNITS)
        bindings = []
        for binding, at in _objects(fields.get("let"), "let", ("name", "expr"), ()):
            bindings.append(Binding(_name(binding["name"], f"{at}.name"), self.node(binding["expr"], f"{at}.expr", 1)))
        keys = []
        for key, at in _objects(fields.get("order_by"), "order_by", ("expr",), ("desc",)):
            desc = key.get("desc", False)
            if not isinstance(desc, bool):
                raise SchemaError(f"Expected true or false, found {_shown(desc)}.", at=f"{at}.desc")
            keys.append(SortKey(self.node(key["expr"], f"{at}.expr", 1), desc))
        query = Query(
            select=Select(unit, _count(select, "window", "select.window")),
            let=tuple(bindings),
            where=None if fields.get("where") is None else self.node(fields["where"], "where", 1),
            order_by=tuple(keys),
            limit=_count(fields, "limit", "limit"),
            offset=_count(fields, "offset", "offset") or 0,
            within_ms=_count(fields, "within_ms", "within_ms", least=1),
            count_by=() if fields.get("count_by") is None else self._nodes(fields["count_by"], "count_by", 0),
        )
        check_lists(query, SchemaError)
        return query

    def node(self, value: Any, at: str, depth: int) -> Expr:
        if depth > MAX_DEPTH:
            error = too_deep(SchemaError)
            error.at = at
            raise error
        self.n_nodes += 1
        if self.n_nodes > MAX_NODES:
            raise SchemaError(f"A query has at most {MAX_NODES:,} nodes.", at=at)
        kinds = tuple(kind for kind in _FIELDS if not (self.strict and kind in _EXTENSIONS))
        if not isinstance(value, Mapping):
            raise SchemaError(f"Expected an expression, an object with `node`, found {_shown(value)}.", at=at)
        kind = value.get("node")
        if not isinstance(kind, str) or kind not in kinds:
            found = f"found {_shown(kind)}" if "node" in value else "which is missing"
            raise SchemaError(f"Expected {_choice(kinds)} as `node`, {found}.", at=_below(at, "node"), expected=kinds)
        must, may = _FIELDS[kind]
        fields = _object(value, at, f"a node {kind!r}", must, ("node", *may))
        return self._parts[kind](self, fields, at, depth)

    def _literal(self, fields: Mapping[str, Any], at: str, depth: int) -> Expr:
        value, hint = fields["value"], fields.get("type_hint")
        if not (value is None or isinstance(value, str | bool | int | float)):
            raise SchemaError(f"Expected a text, a number, true, false or null, found {_shown(value)}.", at=f"{at}.value")
        if isinstance(value, int | float) and not (math.isfinite(value) if isinstance(value, float) else abs(value) <= sys.float_info.max):
            raise SchemaError("A number lies between -1.8e308 and 1.8e308.", at=f"{at}.value")
        if isinstance(value, str) and HALF.search(value):
            raise SchemaError(HALF_MESSAGE, at=f"{at}.value")
        return Literal(value, None if hint is None else _name(hint, f"{at}.type_hint").lower())

    def _path(self, fields: Mapping[str, Any], at: str, depth: int) -> Expr:
        segments = _list(fields.get("segments"), f"{at}.segments")
        return Path(_name(fields["root"], f"{at}.root"), tuple(_name(s, f"{at}.segments[{i}]") for i, s in enumerate(segments)))

    def _call(self, fields: Mapping[str, Any], at: str, depth: int) -> Expr:
        return Call(_name(fields["name"], f"{at}.name"), self._nodes(fields.get("args"), f"{at}.args", depth))

    def _compare(self, fields: Mapping[str, Any], at: str, depth: int) -> Expr:
        op = fields["op"]
        if op not in COMPARISONS:
            raise SchemaError(f"Expected {_choice(COMPARISONS)}, found {_shown(op)}.", at=f"{at}.op", expected=COMPARISONS)
        return Compare(op, self.node(fields["left"], f"{at}.left", depth + 1), self.node(fields["right"], f"{at}.right", depth + 1))

    def _in(self, fields: Mapping[str, Any], at: str, depth: int) -> Expr:
        operand = self.node(fields["operand"], f"{at}.operand", depth + 1)
        return In(operand, self._nodes(fields["items"], f"{at}.items", depth))

    def _nodes(self, value: Any, at: str, depth: int) -> tuple[Expr, ...]:
        return tuple([self.node(item, f"{at}[{i}]", depth + 1) for i, item in enumerate(_list(value, at))])

    def _some(self, value: Any, at: str, depth: int) -> tuple[Expr, ...]:
        if not (nodes := self._nodes(value, at, depth)):
            raise SchemaError("Expected at least one expression.", at=at)
        return nodes

    _parts: Mapping[str, Callable[["_Reader", Mapping[str, Any], str, int], Expr]] = {
        "literal": _literal,
        "path": _path,
        "call": _call,
        "compare": _compare,
        "in": _in,
        "ref": lambda self, fields, at, depth: Ref(_name(fields["name"], f"{at}.name")),
        "parameter": lambda self, fields, at, depth: Parameter(_name(fields["name"], f"{at}.name")),
        "and": lambda self, fields, at, depth: And(self._some(fields["operands"], f"{at}.operands", depth)),
        "or": lambda self, fields, at, depth: Or(self._some(fields["operands"], f"{at}.operands", depth)),
        "not": lambda self, fields, at, depth: Not(self.node(fields["operand"], f"{at}.operand", depth + 1)),
    }


def _object(value: Any, at: str, what: str, must: tuple[str, ...], may: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SchemaError(f"Expected {what}, an object, found {_shown(value)}.", at=at or None)
    known = dict.fromkeys((*must, *may))
    for name in value:
        if name not in known:
            close = difflib.get_close_matches(str(name)[:40], known, 1)
            guess = f"Did you mean {close[0]!r}? " if close else ""
            raise SchemaError(f"Unknown field. {guess}{what[0].upper()}{what[1:]} has {_choice(known, 'and')}.", at=_below(at, _key(name)))
    for name in must:
        if name not in value:
            raise SchemaError(f"{what[0].upper()}{what[1:]} needs {name!r}, which is missing.", at=_below(at, name), expected=(name,))
    return value


def _objects(value: Any, at: str, must: tuple[str, ...], may: tuple[str, ...]) -> Iterable[tuple[Mapping[str, Any], str]]:
    for i, item in enumerate(_list(value, at)):
        yield _object(item, f"{at}[{i}]", f"an item of {at!r}", must, may), f"{at}[{i}]"


def _list(value: Any, at: str) -> list[Any] | tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise SchemaError(f"Expected a list, found {_shown(value)}.", at=at)
    return value


def _name(value: Any, at: str) -> str:
    if not isinstance(value, str) or not value:
        raise SchemaError(f"Expected a text that is not empty, found {_shown(value)}.", at=at)
    if HALF.search(value):
        raise SchemaError(HALF_MESSAGE, at=at)
    return value


def _count(fields: Mapping[str, Any], name: str, at: str, least: int = 0) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_ROWS:
        raise SchemaError(f"Expected a whole number from {least} to {MAX_ROWS:,}, found {_shown(value)}.", at=at)
    return value


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _key(name: Any) -> str:
    text = "".join(c if c.isprintable() else "�" for c in str(name)[:40])
    return text if len(text) < 40 else f"{text[:39]}…"


def _choice(names: Iterable[str], word: str = "or") -> str:
    quoted = [repr(name) for name in names]
    return f" {word} ".join([part for part in (", ".join(quoted[:-1]), quoted[-1]) if part])


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than 40 digits"
    text = repr(value)  # which writes half characters as escapes
    return text if len(text) <= 60 else f"{text[:59]}…"
