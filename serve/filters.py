"""Which entries a request is about: its `paths` and `where` as one predicate of the query tree.

    paths   ["src/**/*.py", "!**/tests/**"]      must match one of the plain globs and none of those after a leading `!`
    where   {"field": value}                     equality; null means that the field is missing
            {"field": {">=": 3, "<": 9}}         operators of `shards.plan.OPERATORS`, all of which must hold
            {"field": {"in": ["a", "b"]}}        any of these
            {"field": {"has": "a"}}              a list with this item
            {"and": […]}  {"or": […]}  {"not": {…}}
            {"a": 1, "or": […]}                  several keys of one object must all hold

A nested field is written with dots ("author.name"). A field that is itself called and, or, not, or that begins with a
backslash, takes one leading backslash. An empty "and" holds for every entry, an empty "or" and an empty "in" for none.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from shards.errors import BadQuery
from shards.plan import OPERATORS, And, Compare, Everything, Glob, Not, Or, Predicate, Scalar, glob_regex, simplify

MAX_DEPTH = 32  # nested and/or/not: deeper ones come from a broken program, and every shard recurses as deep
MAX_CONDITIONS = 2_000  # leaves and listed values of one filter: each is looked at for every entry
MAX_TEXT_CHARS = 4_096  # one glob, field or text value; paths end at 4,096 bytes on Linux
INT64 = 2**63
CHOICES = ", ".join(OPERATORS)

_LOGIC = ("and", "or", "not")
_ORDER = ("<", "<=", ">", ">=")


def scope(paths: Sequence[str] = (), where: Mapping[str, Any] | None = None) -> Predicate:
    """The predicate that an entry must meet, simplified. Raises BadQuery."""
    return simplify(And((parse_paths(paths), parse_where(where))))


def parse_paths(paths: Sequence[str], at: str = "paths") -> Predicate:
    """Globs as a predicate: any of the plain ones and none of those with a leading `!`. Raises BadQuery.

    Without plain globs every path is in, but for the excluded ones. `\\!name` is the glob for a name that begins with `!`.
    """
    wanted: list[Predicate] = []
    unwanted: list[Predicate] = []
    for i, text in enumerate(paths):
        here = f"{at}[{i}]"
        pattern = text.removeprefix("!")
        if text.startswith("\\!"):
            pattern = text[1:]
        (unwanted if text.startswith("!") else wanted).append(_glob(pattern, here))
    return simplify(And((Or(tuple(wanted)) if wanted else Everything(), *map(Not, unwanted))))


def parse_where(where: Mapping[str, Any] | None, at: str = "where") -> Predicate:
    """A metadata filter (decoded JSON) as a predicate. Raises BadQuery, which says where, what was found and what is allowed."""
    return Everything() if where is None else simplify(_Parser().node(where, at, MAX_DEPTH))


class _Parser:
    """One walk through a filter; counts what it has seen, so that size is limited as a whole and not only per list."""

    def __init__(self) -> None:
        self.room = MAX_CONDITIONS

    def node(self, value: Any, at: str, depth: int) -> Predicate:
        if depth <= 0:
            raise _bad(at, f"nested more than {MAX_DEPTH} levels deep. Flatten it: an and within an and is one list.")
        if not isinstance(value, Mapping):
            raise _bad(at, f'found {_kind(value)}; expected an object such as {{"language": "python"}} or {{"or": […]}}.')
        parts = []
        for key, inner in value.items():
            here = _step(at, key)
            if key in ("and", "or"):
                kind = And if key == "and" else Or
                parts.append(kind(tuple(self.node(x, f"{here}[{i}]", depth - 1) for i, x in enumerate(_list(inner, here, key)))))
            elif key == "not":
                parts.append(Not(self.node(inner, here, depth - 1)))
            else:
                parts.append(self.field(key[1:] if key.startswith("\\") else key, inner, here))
        return And(tuple(parts))

    def field(self, name: str, value: Any, at: str) -> Predicate:
        if not name or len(name) > MAX_TEXT_CHARS:
            raise _bad(at, f"a field's name has 1 to {MAX_TEXT_CHARS} characters, this one {len(name)}.")
        if isinstance(value, Mapping):
            if not value:
                raise _bad(at, f"an empty object compares with nothing; choose operators from {CHOICES}.")
            return And(tuple(self.compare(name, op, operand, _step(at, op)) for op, operand in value.items()))
        if isinstance(value, list):
            raise _bad(at, f'found a list; for any of several values write {{{json.dumps(name)}: {{"in": […]}}}}.')
        return self.compare(name, "==", value, at)

    def compare(self, name: str, op: str, value: Any, at: str) -> Predicate:
        self.spend(at)
        if op not in OPERATORS:
            raise _bad(
                at,
                f"unknown operator {op!r}; choose from {CHOICES}. "
                f"A field of nested metadata is written with dots: {json.dumps(f'{name}.{op}')}.",
            )
        if op == "exists":
            if not isinstance(value, bool):
                raise _bad(at, f"found {_kind(value)}; exists takes true or false.")
            return Compare(name, op) if value else Not(Compare(name, op))
        if op == "glob":
            if not isinstance(value, str):
                raise _bad(at, f"found {_kind(value)}; glob takes text such as \"src/**\".")
            return Compare(name, op, _glob(value, at).pattern)
        if op == "in":
            items = _list(value, at, op)
            for i, item in enumerate(items):
                self.spend(at)
                if item is None:
                    missing = json.dumps({name: None}, ensure_ascii=False)
                    raise _bad(f"{at}[{i}]", f'found null; for a missing field write {{"or": [{missing}, …]}}.')
            return Compare(name, op, tuple(_scalar(item, f"{at}[{i}]") for i, item in enumerate(items)))
        if value is None:
            # A missing field meets no comparison, `!=` included, so null can only ask whether the field is there.
            if op in ("==", "!="):
                return Not(Compare(name, "exists")) if op == "==" else Compare(name, "exists")
            raise _bad(at, f"found null; {op} takes a number or text.")
        if op in _ORDER and isinstance(value, bool):
            raise _bad(at, f"found a boolean; {op} takes a number or text.")
        return Compare(name, op, _scalar(value, at))

    def spend(self, at: str) -> None:
        self.room -= 1
        if self.room < 0:
            raise _bad(at, f"the filter has more than {MAX_CONDITIONS} conditions. Ask in several requests, or by a glob.")


def _glob(pattern: Any, at: str) -> Glob:
    if not isinstance(pattern, str):
        raise _bad(at, f"found {_kind(pattern)}; expected a glob such as \"src/**/*.py\".")
    if not pattern or len(pattern) > MAX_TEXT_CHARS:
        raise _bad(at, f"a glob has 1 to {MAX_TEXT_CHARS} characters, this one {len(pattern)}.")
    try:
        glob_regex(pattern)
    except BadQuery as error:
        raise _bad(at, str(error)) from None
    return Glob(pattern)


def _list(value: Any, at: str, key: str) -> list[Any]:
    if isinstance(value, list):
        return value
    hint = f' A field called {key} is written "\\\\{key}".' if key in _LOGIC else ""
    raise _bad(at, f"found {_kind(value)}; {key} takes a list.{hint}")


def _scalar(value: Any, at: str) -> Scalar:
    match value:
        case bool():
            return value
        case str() if len(value) <= MAX_TEXT_CHARS:
            return value
        case str():
            raise _bad(at, f"text of {len(value):,} characters; at most {MAX_TEXT_CHARS:,} are allowed.")
        case int() if -INT64 <= value < INT64:
            return value
        case float() if math.isfinite(value):
            return value
        case int() | float():
            raise _bad(at, "the number is out of range: integers have 64 bits, other numbers are finite.")
    raise _bad(at, f"found {_kind(value)}; expected text, a number, true or false.")


def _bad(at: str, message: str) -> BadQuery:
    return BadQuery(f"{at}: {message}", at=at)


def _step(at: str, key: str) -> str:
    """One step of a path into the request; keys that are no plain names are quoted, long ones cut."""
    key = key if len(key) <= 60 else key[:60] + "…"
    return f"{at}.{key}" if key.isidentifier() else f"{at}[{json.dumps(key, ensure_ascii=False)}]"


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
    return f"a {type(value).__name__}"
