"""One comparison as ranges of a column's values: decided for a block by its least and greatest, for rows by two comparisons each.

Exactly what `shards.plan.compare` says of each value, also where integers meet floats that cannot hold them.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from shards.columns import Column, date_text, timestamp_text
from shards.globs import matching
from shards.plan import compare
from shards.types import Array

# The first and last instants that are written with four digits of a year.
_SECONDS, _DAYS = (-62_135_596_800, 253_402_300_799), (-719_162, 2_932_896)
_INT64 = (-(2**63), 2**63 - 1)
_ORDER = ("==", "!=", "<", "<=", ">", ">=")

Range = tuple[Any, Any]  # both ends included


@dataclass(frozen=True, slots=True)
class Condition:
    """Values that meet a comparison: those in one of the ranges, or, where `table` is given, those it says (of strings, by code).

    ranges: ascending and apart.
    """

    ranges: tuple[Range, ...] = ()
    table: Array | None = None

    def holds(self, values: Array) -> Array:
        """(n,) bool, of values."""
        if self.table is not None:
            return self.table[values]
        if len(self.ranges) > 4 and all(low == high for low, high in self.ranges):
            return np.isin(values, np.array([low for low, _ in self.ranges], values.dtype))
        found = np.zeros(len(values), bool)
        for low, high in self.ranges:
            found |= values == low if low == high else (values >= low) & (values <= high)
        return found

    def blocks(self, least: Array, greatest: Array) -> tuple[Array, Array]:
        """Of blocks by their least and greatest value: (none of its values can meet it, all of them do)."""
        if self.table is not None:
            counts = np.concatenate([[0], np.cumsum(self.table)])
            inside = counts[greatest.astype(np.int64) + 1] - counts[least]
            return inside == 0, inside == greatest.astype(np.int64) - least + 1
        none, every = np.ones(len(least), bool), np.zeros(len(least), bool)
        for low, high in self.ranges:
            none &= (greatest < low) | (least > high)
            every |= (least >= low) & (greatest <= high)
        return none, every


NEVER = Condition()
ALWAYS = Condition(((-math.inf, math.inf),))


def condition(column: Column, op: str, value: Any) -> Condition:
    """The values of a column (strings: their codes) that meet a comparison. `exists` is not for here. Column of lists: none."""
    if op == "in":
        return _together([condition(column, "==", item) for item in value])
    match column.kind:
        case "boolean":
            known = [flag for flag in (False, True) if compare(op, flag, value)]
            return Condition(tuple((flag, flag) for flag in known))
        case "integer" | "float":
            if isinstance(value, bool) or not isinstance(value, int | float) or op not in _ORDER:
                return NEVER
            if isinstance(value, float) and math.isnan(value):
                return Condition((_whole(column.kind),)) if op == "!=" else NEVER
            return Condition(integers(op, value) if column.kind == "integer" else _floats(op, value))
        case "string" | "timestamp" | "date":
            if not isinstance(value, str):
                return NEVER
            if op == "glob":
                return _globbed(column, value)
            if op in _ORDER:
                return Condition(_texts(column, op, value))
    return NEVER


def _whole(kind: str) -> Range:
    return _INT64 if kind == "integer" else (-math.inf, math.inf)


def integers(op: str, value: int | float | Fraction) -> tuple[Range, ...]:
    """Integers of 64 bits that compare so with a number."""
    low, high = _INT64
    if isinstance(value, float) and math.isinf(value):
        below, above = (high, high + 1) if value > 0 else (low - 1, low)
    else:
        below, above = math.ceil(value) - 1, math.floor(value) + 1  # the last integer below, the first above
    return _cut(op, low, below, above, high, is_equal=(below + 1, above - 1))


def _floats(op: str, value: int | float) -> tuple[Range, ...]:
    """Floats that compare so with a number, which may be an integer that no float equals."""
    try:
        near = float(value)
    except OverflowError:
        near = math.inf if value > 0 else -math.inf
    # Python compares integers and floats exactly.
    below = near if near < value else math.nextafter(near, -math.inf)
    above = near if near > value else math.nextafter(near, math.inf)
    if near == value and math.isinf(near):
        below, above = (below, None) if near > 0 else (None, above)
    return _cut(op, -math.inf, below, above, math.inf, is_equal=(near, near) if near == value else None)


def _texts(column: Column, op: str, value: str) -> tuple[Range, ...]:
    """Codes, seconds or days whose text compares so. Texts are ordered by code points, and these all ascend with their text."""
    if column.kind == "string":
        low, high = 0, len(column.words) - 1
        first, after = bisect_left(column.words, value), bisect_right(column.words, value)
    else:
        texts = _Texts(timestamp_text, *_SECONDS) if column.kind == "timestamp" else _Texts(date_text, *_DAYS)
        low, high = texts.low, texts.high
        first, after = low + bisect_left(texts, value), low + bisect_right(texts, value)
    return _cut(op, low, first - 1, after, high, is_equal=(first, after - 1))


class _Texts(Sequence[str]):
    """The texts of all instants from one to another, none of which is made before it is asked for."""

    def __init__(self, text: Callable[[int], str], low: int, high: int):
        self.text, self.low, self.high = text, low, high

    def __len__(self) -> int:
        return self.high - self.low + 1

    def __getitem__(self, i: int) -> str:  # type: ignore[override]
        return self.text(self.low + i)


def _cut(op: str, low: Any, below: Any, above: Any, high: Any, is_equal: Range | None) -> tuple[Range, ...]:
    """Ranges between two ends. below, above: the nearest values smaller and greater than what is compared with; None: there are none."""
    smaller = [] if below is None else _kept(low, min(below, high))
    greater = [] if above is None else _kept(max(above, low), high)
    equal = [] if is_equal is None else _kept(max(is_equal[0], low), min(is_equal[1], high))
    match op:
        case "==":
            return tuple(equal)
        case "!=":
            return (*smaller, *greater)
        case "<":
            return tuple(smaller)
        case "<=":
            return ((low, equal[0][1]),) if equal else tuple(smaller)
        case ">":
            return tuple(greater)
        case _:
            return ((equal[0][0], high),) if equal else tuple(greater)


def _kept(low: Any, high: Any) -> list[Range]:
    return [(low, high)] if low <= high else []


def _globbed(column: Column, pattern: str) -> Condition:
    """Looks at each distinct text once."""
    if column.kind == "string":
        return Condition(table=matching(pattern, column.words))
    text = timestamp_text if column.kind == "timestamp" else date_text
    values = np.unique(column.values if column.filled is None else column.values[column.filled])
    meets = matching(pattern, [text(value) for value in values.tolist()])
    return Condition(tuple((value, value) for value in values[meets].tolist()))


def _together(conditions: Sequence[Condition]) -> Condition:
    ranges = sorted({item for one in conditions for item in one.ranges})
    return Condition(tuple(ranges))
