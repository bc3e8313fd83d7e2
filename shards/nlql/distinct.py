"""Distinct values that many rows share: what is asked of them is asked of each once; of the sorted texts of a column, of all at once."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from shards.nlql.dates import any_date, iso_date, micros
from shards.nlql.errors import NLQLError
from shards.nlql.values import OPERATORS, compare, number_of, text_of
from shards.plugins import Plugins
from shards.types import Array


class Numbers(NamedTuple):
    """What texts [start, start + k) read as. known: (k,) bool, which read as numbers; values: (k,) float64."""

    start: int
    known: Array
    values: Array


class Dates(NamedTuple):
    """What texts [start, start + k) read as. known, zoned: (k,) bool, which are dates, and have a zone; micros: (k,) int64."""

    start: int
    known: Array
    zoned: Array
    micros: Array


class Distinct:
    """Values, each once or at least seldom twice. is_sorted: texts in order of their code points. Safe for many threads."""

    def __init__(self, values: Sequence[Any], is_sorted: bool = False):
        self.values, self.is_sorted = values, is_sorted

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def items(self) -> list[Any]:
        """All values; those of a file are decoded now."""
        return self.values if isinstance(self.values, list) else list(self.values)

    # --- readings of sorted texts --------------------------------------------------------------------------------------------

    @cached_property
    def numbers(self) -> Numbers:
        low, high = bisect_left(self.values, "+"), bisect_left(self.values, ":")  # signs, the dot and digits lie in between
        read = [number_of(text) for text in self.items[low:high]]
        known = np.array([number is not None for number in read], bool)
        return Numbers(low, known, np.array([0.0 if number is None else number for number in read], np.float64))

    @cached_property
    def iso_dates(self) -> Dates:
        low, high = bisect_left(self.values, "0"), bisect_left(self.values, ":")
        return _dates(low, [iso_date(text) for text in self.items[low:high]])

    @cached_property
    def any_dates(self) -> Dates:
        return _dates(0, [any_date(text) for text in self.items])

    # --- comparing all with one value ----------------------------------------------------------------------------------------

    def compare(self, op: str, value: Any, hint: str | None, plugins: Plugins, swapped: bool = False) -> tuple[Array, Array | None]:
        """(n,) bool each: for which of them `x op value` holds, and for which it raises (None: for none). value: not null.

        hint: of built-in types, or a registered one. swapped: it is `value op x`.
        """
        if self.is_sorted and not swapped and hint in (None, "text", "number", "date"):
            return self._compare_sorted(op, value, hint)
        if hint is None and op in ("==", "!=") and isinstance(value, str) and number_of(value) is None and iso_date(value) is None:
            return np.fromiter(map(OPERATORS[op], self.items, repeat(value, len(self))), bool, len(self)), None
        held, raised = np.zeros(len(self), bool), np.zeros(len(self), bool)
        for i, item in enumerate(self.items):
            try:
                held[i] = compare(op, value, item, hint, plugins) if swapped else compare(op, item, value, hint, plugins)
            except NLQLError:
                raised[i] = True
        return held, raised if raised.any() else None

    def _compare_sorted(self, op: str, value: Any, hint: str | None) -> tuple[Array, Array | None]:
        n = len(self)
        held, raised = np.zeros(n, bool), np.zeros(n, bool)
        if hint == "text":
            value = text_of(value)
        if isinstance(value, str):
            low, high = _range(self.values, op, value)
            held[low:high] = True
            held = ~held if op == "!=" else held
        else:
            held[:] = op == "!="
            raised[:] = op not in ("==", "!=")
        number = number_of(value) if hint in (None, "number") else None
        date = None
        if hint in (None, "date") and isinstance(value, str):
            date = iso_date(value) if hint is None else any_date(value)
        if date is not None:
            self._overlay_dates(op, date, self.iso_dates if hint is None else self.any_dates, held, raised)
        if number is not None:  # after dates: texts that are both go by their number
            start, known, values = self.numbers
            at = start + np.flatnonzero(known)
            held[at], raised[at] = OPERATORS[op](values[known], number), False
        return held, raised if raised.any() else None

    def _overlay_dates(self, op: str, date: datetime, dates: Dates, held: Array, raised: Array) -> None:
        start, known, zoned, instants = dates
        alike = known & (zoned == (date.tzinfo is not None))
        at = start + np.flatnonzero(alike)
        held[at], raised[at] = OPERATORS[op](instants[alike], micros(date)), False
        unlike = start + np.flatnonzero(known & ~alike)
        held[unlike], raised[unlike] = op == "!=", op not in ("==", "!=")

    # --- anything else -------------------------------------------------------------------------------------------------------

    def mapped(self, call: Callable[[Sequence[Any]], Sequence[Any]], used: Array | None) -> list[Any]:
        """What a function makes of the values, given all that are used; None of the others. used: (n,) bool, None: all."""
        items = self.items
        if used is None:
            return list(call(items))
        places = np.flatnonzero(used).tolist()
        found: list[Any] = [None] * len(items)
        for i, result in zip(places, call([items[i] for i in places]), strict=True):
            found[i] = result
        return found


def _range(words: Sequence[str], op: str, value: str) -> tuple[int, int]:
    """The texts that compare so with a value; of `!=`, those that do not."""
    match op:
        case "<":
            return 0, bisect_left(words, value)
        case "<=":
            return 0, bisect_right(words, value)
        case ">":
            return bisect_right(words, value), len(words)
        case ">=":
            return bisect_left(words, value), len(words)
    return bisect_left(words, value), bisect_right(words, value)


def _dates(start: int, read: list[datetime | None]) -> Dates:
    known = np.array([date is not None for date in read], bool)
    zoned = np.array([date is not None and date.tzinfo is not None for date in read], bool)
    return Dates(start, known, zoned, np.array([0 if date is None else micros(date) for date in read], np.int64))
