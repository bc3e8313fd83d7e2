"""What values mean: how two of them compare, which count as true, how they are written as text, how they sort."""

import operator
from collections.abc import Callable
from datetime import datetime
from functools import cmp_to_key
from typing import Any

from shards.nlql.dates import any_date, iso_date, micros
from shards.nlql.errors import ExecutionError, NLQLTypeError
from shards.plugins import PROCESS, Plugins, ValueType

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip

# The classes that values sort in, one after another; nulls are last whatever the direction.
TYPED, NUMBER, NAN, DATE, TEXT, NULL = range(6)

_NUMBER_STARTS = frozenset("+-.0123456789")
_LONGEST_SHOWN = 60


def number_of(value: Any) -> float | None:
    """A number, or a text that reads as one ("007", "-5", "1e3"; not " 7", "0x10"), as a float; None of anything else, and of bools."""
    if isinstance(value, str):
        if value[:1] not in _NUMBER_STARTS or not value:
            return None
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def date_of(value: Any, lax: bool = False) -> datetime | None:
    """A text that reads as a date; None of anything else."""
    if not isinstance(value, str):
        return None
    return any_date(value) if lax else iso_date(value)


def truth(value: Any) -> bool:
    """Whether a value counts as true: not null, 0, an empty text or an empty list."""
    return bool(value)


def text_of(value: Any) -> str:
    """A value as text, as Python prints it: `7`, `8.0`, `True`, `['ai', 'rag']`."""
    return value if isinstance(value, str) else str(value)


def compare(op: str, left: Any, right: Any, hint: str | None = None, plugins: Plugins = PROCESS) -> bool:
    """`left op right`. hint: the type word that applies, if one does (`Context.hint`).

    Null: equal to null only, and in no order with anything. Else both sides as the hint's type; without one as numbers if both read as
    numbers, as dates if both read as ISO dates; and where that fails as they are. Raises NLQLTypeError where they have no order.
    """
    if left is None or right is None:
        same = left is right
        return same if op == "==" else not same if op == "!=" else False
    match hint:
        case "text":
            return _ordered(op, text_of(left), text_of(right), left, right)
        case "number":
            return _compared_as(number_of, op, left, right)
        case "date" | "timestamp":
            return _compared_as(any_date_of, op, left, right)
    if hint is not None and hint not in ("bool", "vector", "any") and (kind := plugins.types.find(hint)) is not None:
        return _custom(kind, op, left, right)
    if (a := number_of(left)) is not None and (b := number_of(right)) is not None:
        return bool(OPERATORS[op](a, b))
    return _compared_as(date_of, op, left, right)


def any_date_of(value: Any) -> datetime | None:
    """A text that reads as a date, as people write them, too."""
    return date_of(value, lax=True)


def _compared_as(read: Callable[[Any], Any], op: str, left: Any, right: Any) -> bool:
    a = read(left)
    b = read(right) if a is not None else None
    return _ordered(op, left, right, left, right) if b is None else _ordered(op, a, b, left, right)


def _custom(kind: ValueType, op: str, left: Any, right: Any) -> bool:
    try:
        a, b = (kind.parse(value) if isinstance(value, str) else value for value in (left, right))
    except Exception:  # whatever a parser raises: the value is not of its type
        return _ordered(op, left, right, left, right)
    if kind.compare is None:
        return _ordered(op, a, b, left, right)
    try:
        return bool(kind.compare(a, b, op))
    except Exception as error:
        raise _of_type(kind, error, left, right) from error


def _ordered(op: str, a: Any, b: Any, left: Any, right: Any) -> bool:
    try:
        return bool(OPERATORS[op](a, b))
    except Exception as error:  # TypeError of unlike types; what parsed values of user types raise may be anything
        raise unordered(op, left, right) from error


def unordered(op: str, left: Any, right: Any) -> NLQLTypeError:
    """The error of two values that have no order."""
    a, b = date_of(left, lax=True), date_of(right, lax=True)
    if a is not None and b is not None and (a.tzinfo is None) != (b.tzinfo is None):
        remedy = "One has a time zone, the other has none: write `Z` or an offset with the literal, or leave it away, as the field does."
    else:
        remedy = (
            "Declare one type for the field (field_types), or leave such rows out by a condition before this one, joined with AND; "
            "== and != compare any values."
        )
    return NLQLTypeError(f"{shown(left)} and {shown(right)} have no order, so {op} cannot compare them. {remedy}")


def shown(value: Any) -> str:
    """A value in a message: what it is, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    text = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
    kind = {str: "text", int: "number", float: "number", list: "list", dict: "object"}.get(type(value), type(value).__name__)
    return f"{text} ({kind})"


def sort_key(value: Any, declared: str | None = None, plugins: Plugins = PROCESS) -> tuple[int, Any]:
    """(class, what sorts in it): numbers and bools, then dates, then other texts and printed forms, then null.

    declared: the type of the field: `number` sorts texts that read as numbers with the numbers, `text` everything as text, `date` texts
    that are dates in any form with the dates, a registered type the texts that its parser takes before all else.
    """
    if value is None:
        return NULL, 0
    if declared == "text":
        return TEXT, text_of(value)
    if isinstance(value, str) and (kind := sorted_by(declared, plugins)) is not None and (parsed := _parsed(kind, value)) is not None:
        return TYPED, parsed
    if isinstance(value, bool):
        return NUMBER, float(value)
    number = number_of(value) if declared == "number" or not isinstance(value, str) else None
    if number is not None:
        return (NUMBER, number) if number == number else (NAN, 0)
    if (day := date_of(value, lax=declared in ("date", "timestamp"))) is not None:
        return DATE, float(micros(day))  # a float, as columns of sort keys keep it: to the microsecond until the year 2255
    return TEXT, text_of(value)


def sorted_by(declared: str | None, plugins: Plugins) -> ValueType | None:
    """The registered type that a field's values sort as; None for built-in type words."""
    if declared is None or declared in ("text", "number", "date", "timestamp", "bool", "vector", "any"):
        return None
    return plugins.types.find(declared)


def _parsed(kind: ValueType, value: str) -> Any:
    try:
        parsed = kind.parse(value)
    except Exception:
        return None
    return cmp_to_key(lambda a, b: _sign(kind, a, b))(parsed)


def _sign(kind: ValueType, a: Any, b: Any) -> int:
    try:
        if kind.compare is None:
            return int(b < a) - int(a < b)
        return int(bool(kind.compare(a, b, ">"))) - int(bool(kind.compare(a, b, "<")))
    except Exception as error:
        raise _of_type(kind, error, a, b) from error


def _of_type(kind: ValueType, error: Exception, left: Any, right: Any) -> ExecutionError:
    return ExecutionError(
        f"The registered type {kind.name!r} failed to compare {shown(left)} with {shown(right)}: {type(error).__name__}: {error}. "
        "Its comparer must take all that its parser returns."
    )
