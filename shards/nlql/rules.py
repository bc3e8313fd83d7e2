"""One comparison of a column's values with one value, as a rule about the numbers that the column stores.

What `values.compare` says of each value, found without making the values: so that a rule can also tell from the least and greatest value
of a block whether all in it meet it, or none.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np

from shards.columns import Column
from shards.conditions import ALWAYS, NEVER, Condition, condition, integers
from shards.nlql.dates import any_date, iso_date, micros
from shards.nlql.distinct import Distinct
from shards.nlql.values import OPERATORS, number_of, text_of
from shards.plugins import Plugins
from shards.types import Array

MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
UNITS_MICROS = {"date": 86_400_000_000, "timestamp": 1_000_000}  # what a column of these counts


class Rule(Protocol):
    """`shards.conditions.Condition`, or the like of it."""

    def holds(self, values: Array) -> Array: ...

    def blocks(self, least: Array, greatest: Array) -> tuple[Array, Array]: ...


@dataclass(frozen=True, slots=True)
class Threshold:
    """Numbers that, as floats, compare so with one."""

    op: str
    bound: float

    def holds(self, values: Array) -> Array:
        return OPERATORS[self.op](values.astype(np.float64, copy=False), self.bound)

    def blocks(self, least: Array, greatest: Array) -> tuple[Array, Array]:
        """Of blocks by their least and greatest value: (none of its values can meet it, all of them do)."""
        low, high = least.astype(np.float64), greatest.astype(np.float64)  # rounding keeps the order
        match self.op:
            case "<" | "<=":
                return ~self.holds(low), self.holds(high)
            case ">" | ">=":
                return ~self.holds(high), self.holds(low)
        apart, same = (low > self.bound) | (high < self.bound), (low == self.bound) & (high == self.bound)
        return (apart, same) if self.op == "==" else (same, apart)


class Outcome(NamedTuple):
    """holds: which values meet the comparison; raises: for which it is an error, None: for none."""

    holds: Rule
    raises: Rule | None = None


def effective(hint: str | None, plugins: Plugins) -> str | None:
    """A type word, `timestamp` as `date`; None of one without effect."""
    if hint in ("text", "number", "date"):
        return hint
    if hint == "timestamp":
        return "date"
    if hint is None or hint in ("bool", "vector", "any") or plugins.types.find(hint) is None:
        return None
    return hint


def outcome(kind: str, table: Distinct | None, op: str, value: Any, hint: str | None, plugins: Plugins) -> Outcome | None:
    """The rule for `x op value` with x of a column of one kind. hint: `effective`. value: not null.

    table: of kind "coded", the distinct values. None: there is no rule; then values are compared one by one.
    """
    match kind:
        case "coded":
            assert table is not None
            held, raised = table.compare(op, value, hint, plugins)
            return Outcome(Condition(table=held), None if raised is None else Condition(table=raised))
        case "integer" | "float":
            return _numbers(op, value, hint)
        case "date" | "timestamp":
            return _days(kind, op, value, hint)
    return None


def _numbers(op: str, value: Any, hint: str | None) -> Outcome | None:
    if hint in (None, "number"):
        number = float(value) if isinstance(value, bool) else number_of(value)
        return _unlike(op) if number is None else Outcome(Threshold(op, number))
    if hint == "date" and not isinstance(value, int | float):
        return _unlike(op)
    return None


def _days(kind: str, op: str, value: Any, hint: str | None) -> Outcome | None:
    """All texts of such a column are dates, none of them reads as a number, and they sort as what they stand for."""
    if hint not in (None, "text", "number", "date"):
        return None
    if hint == "text":
        value = text_of(value)
    if not isinstance(value, str):
        return _unlike(op)
    date = {None: iso_date, "date": any_date}.get(hint, lambda _: None)(value)
    if date is None:
        return Outcome(condition(Column("", kind, None), op, value))
    if (date.tzinfo is not None) != (kind == "timestamp"):
        return _unlike(op)
    return Outcome(Condition(integers(op, Fraction(micros(date), UNITS_MICROS[kind]))))


def _unlike(op: str) -> Outcome:
    """Of values of which none is of the other's type."""
    return Outcome(ALWAYS if op == "!=" else NEVER, ALWAYS if op not in ("==", "!=") else None)
