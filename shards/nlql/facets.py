"""How many rows have each value of an expression: sums that add up over shards."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from shards.nlql.columns import RowColumns, vector
from shards.nlql.context import Context
from shards.nlql.errors import ExecutionError
from shards.nlql.ir import Expr
from shards.nlql.values import sort_key
from shards.types import Array

MOST_VALUES = 100_000  # distinct ones of one facet


class Counts:
    """Values and how many rows have each. A list counts once for each of its distinct items; 1 and 1.0 are one value, true is another."""

    def __init__(self) -> None:
        self._counts: dict[object, list[Any]] = {}  # value, number

    def add(self, expr: Expr, rows: RowColumns, context: Context, at: Array) -> None:
        """Counts rows. Raises NLQLError: what the expression raises, and for more than `MOST_VALUES` distinct values."""
        values = vector(expr, rows, context, at)
        if values.is_constant:
            self._count(values.value, values.n)
            return
        n_null = int(np.count_nonzero(values.null()))
        self._count(None, n_null)
        for part in values.parts:
            part = part.coded()
            numbers = np.bincount(part.values, minlength=len(part.table))
            for code in np.flatnonzero(numbers).tolist():
                self._count(part.table.items[code], int(numbers[code]))

    def _count(self, value: Any, n: int) -> None:
        for item in {_key(item): item for item in value}.values() if isinstance(value, list) else (value,):
            if n:
                self._put(item, n)

    def put(self, counted: Iterable[tuple[Any, int]]) -> None:
        """Adds what another counted."""
        for value, n in counted:
            self._put(value, n)

    def _put(self, value: Any, n: int) -> None:
        counted = self._counts.setdefault(_key(value), [value, 0])
        counted[1] += n
        if len(self._counts) > MOST_VALUES:
            raise ExecutionError(f"COUNT BY met more than {MOST_VALUES:,} distinct values. Count by something with fewer, or narrow WHERE.")

    def sorted(self) -> tuple[tuple[Any, int], ...]:
        """(value, number of rows), most first, then in order of values."""
        return tuple((value, n) for value, n in sorted(self._counts.values(), key=lambda one: (-one[1], sort_key(one[0]))))


def _key(value: Any) -> object:
    """What two values have in common if they are one to whoever counts."""
    if value is None or isinstance(value, bool | str):
        return type(value), value
    return ("number", value) if isinstance(value, int | float) else ("other", repr(value))
