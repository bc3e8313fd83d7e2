"""Values of one expression on many rows, by kind: numbers as numbers, days as days, what many rows share once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shards.columns import date_text, timestamp_text
from shards.nlql.distinct import Distinct
from shards.types import Array

_DTYPES = {bool: ("boolean", np.bool_), int: ("integer", np.int64), float: ("float", np.float64)}


@dataclass(frozen=True, slots=True)
class Part:
    """Values of one kind of p rows of n.

    kind: boolean, integer, float, date (days since 1970), timestamp (seconds), or coded: places in `table`.
    at: (p,) which rows, ascending or in the order of the rows asked for; None: all n of them.
    """

    kind: str
    values: Array
    at: Array | None = None
    table: Distinct | None = None

    @property
    def rows(self) -> Array:
        return np.arange(len(self.values)) if self.at is None else self.at

    def value(self, i: int) -> Any:
        """The value of the i-th of the rows that have one here."""
        value = self.values[i].item()
        match self.kind:
            case "coded":
                return self.table.values[value]
            case "date":
                return date_text(value)
            case "timestamp":
                return timestamp_text(value)
        return value

    def listed(self) -> list[Any]:
        """All values."""
        if self.kind == "coded":
            items = self.table.items
            return [items[code] for code in self.values.tolist()]
        if self.kind in ("date", "timestamp"):
            return self.coded().listed()
        return self.values.tolist()

    def coded(self) -> "Part":
        """The same, with each distinct value once."""
        if self.kind == "coded":
            return self
        # Floats by their bits: 0.0 and -0.0 are equal, but not as text.
        values = np.ascontiguousarray(self.values).view(np.int64) if self.kind == "float" else self.values
        distinct, codes = np.unique(values, return_inverse=True)
        distinct = distinct.view(np.float64) if self.kind == "float" else distinct
        made = {"date": date_text, "timestamp": timestamp_text}.get(self.kind)
        items = distinct.tolist()
        is_text = made is not None
        return Part("coded", codes, self.at, Distinct([made(item) for item in items] if made else items, is_sorted=is_text))

    def kept(self, keep: Array | slice, at: Array | None) -> "Part":
        """Those of some rows. keep: (p,) bool, places or a slice; at: which rows these are now."""
        return Part(self.kind, self.values[keep], at, self.table)

    def used(self) -> Array | None:
        """(n of the table,) bool: values that some row has; None: the table is small enough to take all, or all are used."""
        used = np.zeros(len(self.table), bool)
        used[self.values] = True
        return None if used.all() else used


@dataclass(frozen=True, slots=True)
class Vector:
    """One value for each of n rows: null where no part has one. is_constant: it is `value` everywhere, and there are no parts."""

    n: int
    parts: tuple[Part, ...] = ()
    is_constant: bool = False
    value: Any = None

    @classmethod
    def constant(cls, value: Any, n: int) -> "Vector":
        return cls(n, is_constant=True, value=value)

    def constant_of(self, n: int) -> "Vector":
        """The value of the only row there is, for each of n."""
        return Vector.constant(self.at(0), n)

    @classmethod
    def of(cls, values: Sequence[Any]) -> "Vector":
        """Of Python values."""
        n = len(values)
        kinds = {type(value) for value in values}
        at = None
        if type(None) in kinds:
            kinds.discard(type(None))
            at = np.array([i for i, value in enumerate(values) if value is not None], np.int64)
            values = [value for value in values if value is not None]
        if not kinds:
            return cls(n)
        kind, dtype = _DTYPES.get(kinds.pop(), ("coded", None)) if len(kinds) == 1 else ("coded", None)
        if dtype is not None:
            try:
                return cls(n, (Part(kind, np.array(values, dtype), at),))
            except OverflowError:  # integers beyond 64 bits
                pass
        return cls(n, (Part("coded", np.arange(len(values)), at, Distinct(list(values))),))

    @classmethod
    def bools(cls, values: Array) -> "Vector":
        return cls(len(values), (Part("boolean", values),))

    def null(self) -> Array:
        """(n,) bool: rows without a value."""
        if self.is_constant:
            return np.full(self.n, self.value is None)
        null = np.ones(self.n, bool)
        for part in self.parts:
            null[slice(None) if part.at is None else part.at] = False
        return null

    def truth(self) -> Array:
        """(n,) bool: rows whose value counts as true."""
        if self.is_constant:
            return np.full(self.n, bool(self.value))
        found = np.zeros(self.n, bool)
        for part in self.parts:
            if part.kind == "coded":
                meets = np.array(part.table.mapped(lambda values: list(map(bool, values)), part.used()), object).astype(bool)[part.values]
            else:
                meets = np.ones(len(part.values), bool) if part.kind in ("date", "timestamp") else part.values != 0
            found[slice(None) if part.at is None else part.at] = meets
        return found

    def listed(self) -> list[Any]:
        """All values, None for null."""
        if self.is_constant:
            return [self.value] * self.n
        if len(self.parts) == 1 and self.parts[0].at is None:
            return self.parts[0].listed()
        found: list[Any] = [None] * self.n
        for part in self.parts:
            for i, value in zip(part.rows.tolist(), part.listed(), strict=True):
                found[i] = value
        return found

    def at(self, row: int) -> Any:
        """The value of one row."""
        if self.is_constant:
            return self.value
        for part in self.parts:
            if part.at is None:
                return part.value(row)
            if len(place := np.flatnonzero(part.at == row)):
                return part.value(int(place[0]))
        return None

    def take(self, rows: Array) -> "Vector":
        """The values of some rows, in their order."""
        if self.is_constant:
            return Vector.constant(self.value, len(rows))
        return Vector(len(rows), tuple(part for part in (_taken(part, rows, self.n) for part in self.parts) if len(part.values)))

    def placed(self, rows: Array, n: int) -> "Vector":
        """The same values as those of some of n rows."""
        if self.is_constant:
            return Vector.of([self.value] * self.n).placed(rows, n)  # a row of few, as aliases have them
        return Vector(n, tuple(Part(part.kind, part.values, rows if part.at is None else rows[part.at], part.table) for part in self.parts))

    def mapped(self, call: Callable[[Sequence[Any]], Sequence[Any]]) -> "Vector":
        """What a function makes of the values, null of null. It is given each distinct one that some row has, many at once."""
        parts = []
        for part in self.parts:
            part = part.coded()
            results = Vector.of(part.table.mapped(call, part.used())).take(part.values)
            parts += [result if part.at is None else result.kept(slice(None), part.rows[result.rows]) for result in results.parts]
        return Vector(self.n, tuple(parts))


def _taken(part: Part, rows: Array, n: int) -> Part:
    if part.at is None:
        return part.kept(rows, None)
    place = np.full(n, -1, np.int64)
    place[part.at] = np.arange(len(part.at))
    found = place[rows]
    has = np.flatnonzero(found >= 0)
    return part.kept(found[has], None if len(has) == len(rows) else has)
