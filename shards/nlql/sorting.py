"""The order of rows: by several keys, each of values of any kinds, as section 8 of the language says, with null last in both directions.

Keys are arrays, so that millions of rows are ordered without a Python object each, and the same arrays travel from shards and are merged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shards.nlql import ir
from shards.nlql.columns import RowColumns, vector
from shards.nlql.context import Context
from shards.nlql.distinct import Distinct
from shards.nlql.parts import Part, Vector
from shards.nlql.values import DATE, NAN, NULL, NUMBER, TEXT, TYPED, sort_key, sorted_by
from shards.plugins import PROCESS, Plugins
from shards.types import Array

LEAST_BY_DIGITS = 2_000  # rows from which sorting by digits is faster


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One key of m rows.

    classes: (m,) uint8, in which class of `values.sort_key` each value is. numbers: (m,) float64, what numbers and dates sort by, 0 of
    others. ranks: (m,) int64, places in `words`, 0 of others; words: what texts (and, if `declared` is a registered type, values of it)
    sort by, in their order.
    """

    classes: Array
    numbers: Array
    ranks: Array
    words: tuple[Any, ...]
    desc: bool
    declared: str | None = None

    def levels(self) -> list[Array]:
        """What rows are sorted by, ascending, one after another; arrays that are the same for all rows left out."""
        if len(self.classes) == 0:
            return []
        sign = -1 if self.desc else 1
        levels = []
        if (self.classes != self.classes[0]).any():
            classes = self.classes.astype(np.int8)
            levels.append(np.where(classes == NULL, NULL, sign * classes))  # whatever the direction, null is last
        levels += [sign * values for values in (self.numbers, self.ranks) if (values != values[0]).any()]
        return levels

    def take(self, at: Array) -> "KeyColumn":
        """Of some rows; words that none of them has are left out."""
        classes, ranks, words = self.classes[at], self.ranks[at], self.words
        ranked = (classes == TEXT) | (classes == TYPED)
        used, places = np.unique(ranks[ranked], return_inverse=True)
        ranks = np.zeros(len(at), np.int64)
        ranks[ranked] = places
        return KeyColumn(classes, self.numbers[at], ranks, tuple(words[i] for i in used.tolist()), self.desc, self.declared)

    def at(self, i: int, plugins: Plugins) -> tuple[Any, ...]:
        kind = int(self.classes[i])
        if kind == NULL:
            return (NULL,)
        if kind in (TEXT, TYPED):
            inner = sort_key(self.words[self.ranks[i]], self.declared, plugins)[1] if kind == TYPED else self.words[self.ranks[i]]
        else:
            inner = float(self.numbers[i])
        return (-kind, _Descending(inner)) if self.desc else (kind, inner)


@dataclass(frozen=True, slots=True)
class SortKeys:
    """The keys of m rows, the first one first. Plain arrays and words: they travel."""

    n: int
    columns: tuple[KeyColumn, ...]

    def __len__(self) -> int:
        return self.n

    def take(self, at: Array) -> "SortKeys":
        """Those of some rows, in their order."""
        return SortKeys(len(at), tuple(column.take(at) for column in self.columns))

    @classmethod
    def join(cls, parts: Sequence["SortKeys"], plugins: Plugins = PROCESS) -> "SortKeys":
        """The keys of the rows of all parts, one part after another. There must be one, and all of the same keys."""
        if len(parts) == 1:
            return parts[0]
        columns = tuple(_joined([part.columns[i] for part in parts], plugins) for i in range(len(parts[0].columns)))
        return cls(sum(part.n for part in parts), columns)

    def order(self, k: int | None = None, ties: Array | None = None) -> Array:
        """(min(k, m),) int64: rows, the best first. ties: (m,) numbers that decide between rows of equal keys, the lesser first; None:
        rows stay in the order in which they are. k: how many are wanted; None: all."""
        levels = [level for column in self.columns for level in column.levels()]
        if ties is not None:
            levels.append(ties)
        chosen = None if k is None or k >= self.n else _best(levels, k, self.n)
        if chosen is not None:
            levels = [level[chosen] for level in levels]
        order = _sorted(levels, self.n if chosen is None else len(chosen))
        return order if chosen is None else chosen[order]

    def reaching(self, k: int) -> Array:
        """Rows that fewer than k others are before, ascending: the k best, whatever is to decide between equal ones."""
        return _reaching([level for column in self.columns for level in column.levels()], k, self.n)

    def at(self, i: int, plugins: Plugins = PROCESS) -> tuple[Any, ...]:
        """The keys of one row as a tuple: those of two rows compare as the rows do."""
        return tuple(column.at(i, plugins) for column in self.columns)


class _Descending:
    """Something that sorts the other way round."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __lt__(self, other: "_Descending") -> bool:
        return other.value < self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and not (self.value < other.value or other.value < self.value)


def sort_keys(keys: Sequence[ir.SortKey], rows: RowColumns, context: Context, at: Array | None) -> SortKeys:
    """The keys of some rows, in their order; None: of all. Raises as `columns.mask` does."""
    columns = []
    for key in keys:
        values = vector(key.expr, rows, context, at)
        columns.append(key_column(values, key.desc, context.declared(key.expr), context.plugins))
    return SortKeys(rows.n if at is None else len(at), tuple(columns))


def key_column(values: Vector, desc: bool, declared: str | None, plugins: Plugins) -> KeyColumn:
    """One key. declared: the type of its field, if it has one."""
    n = values.n
    if values.is_constant:  # no matter which
        return KeyColumn(np.full(n, NULL, np.uint8), np.zeros(n), np.zeros(n, np.int64), (), desc)
    own = declared if sorted_by(declared, plugins) is not None else None
    made = _Making(n, declared, plugins)
    for part in values.parts:
        made.add(part)
    words, ranks = made.ranked(own)
    return KeyColumn(made.classes, made.numbers, ranks, words, desc, own)


class _Making:
    """One key on its way, part by part."""

    def __init__(self, n: int, declared: str | None, plugins: Plugins):
        self.declared, self.plugins = declared, plugins
        self.classes, self.numbers = np.full(n, NULL, np.uint8), np.zeros(n)
        self.texts: list[tuple[Array, Array, Distinct]] = []  # rows, codes, what they are codes of

    def add(self, part: Part) -> None:
        rows = slice(None) if part.at is None else part.at
        is_own = sorted_by(self.declared, self.plugins) is not None
        if is_own or self.declared == "text":
            return self.coded(part.coded(), rows)
        match part.kind:
            case "coded":
                self.coded(part, rows)
            case "date" | "timestamp":
                self.classes[rows] = DATE
                self.numbers[rows] = part.values * (86_400e6 if part.kind == "date" else 1e6)
            case _:
                numbers = part.values.astype(np.float64)
                odd = np.isnan(numbers)
                self.classes[rows] = np.where(odd, NAN, NUMBER)
                self.numbers[rows] = np.where(odd, 0.0, numbers)

    def coded(self, part: Part, rows: Array | slice) -> None:
        classes, numbers, words = self.of_table(part.table, part.used())
        self.classes[rows], self.numbers[rows] = classes[part.values], numbers[part.values]
        ranked = np.flatnonzero(np.isin(self.classes[rows], (TEXT, TYPED)))
        if len(ranked):
            places = ranked if isinstance(rows, slice) else rows[ranked]
            self.texts.append((places, part.values[ranked], words))

    def of_table(self, table: Distinct, used: Array | None) -> tuple[Array, Array, Distinct]:
        """Of distinct values: their classes, numbers, and what those that are texts sort by."""
        if table.is_sorted and self.declared in (None, "text", "number", "date", "timestamp", "bool", "vector", "any"):
            return self.of_sorted(table)
        keys = table.mapped(lambda items: [sort_key(item, self.declared, self.plugins) for item in items], used)
        classes = np.array([NULL if key is None else key[0] for key in keys], np.uint8)
        numbers = np.array([key[1] if key is not None and key[0] in (NUMBER, DATE) else 0.0 for key in keys], np.float64)
        words = [item if key is None or key[0] == TYPED else key[1] for item, key in zip(table.items, keys, strict=True)]
        return classes, numbers, Distinct(words)

    def of_sorted(self, table: Distinct) -> tuple[Array, Array, Distinct]:
        classes, numbers = np.full(len(table), TEXT, np.uint8), np.zeros(len(table))
        if self.declared != "text":
            dates = table.any_dates if self.declared in ("date", "timestamp") else table.iso_dates
            at = dates.start + np.flatnonzero(dates.known)
            classes[at], numbers[at] = DATE, dates.micros[dates.known]
        if self.declared == "number":
            read = table.numbers
            at = read.start + np.flatnonzero(read.known)
            odd = np.isnan(read.values[read.known])
            classes[at], numbers[at] = np.where(odd, NAN, NUMBER), np.where(odd, 0.0, read.values[read.known])
        return classes, numbers, table

    def ranked(self, own: str | None) -> tuple[tuple[Any, ...], Array]:
        """The words of all parts in order, and each row's place among them."""
        ranks = np.zeros(len(self.classes), np.int64)
        if own is None and len(self.texts) == 1 and self.texts[0][2].is_sorted:
            rows, codes, table = self.texts[0]
            ranks[rows] = codes
            return tuple(table.items), ranks
        tables = [(rows, codes, table.items) for rows, codes, table in self.texts]
        words = [items[code] for _, codes, items in tables for code in np.unique(codes).tolist()]
        words, places = _in_order(words, own, self.plugins)
        done = 0
        for rows, codes, items in tables:
            used = np.unique(codes)
            place = np.zeros(len(items), np.int64)
            place[used] = places[done : done + len(used)]
            ranks[rows] = place[codes]
            done += len(used)
        return words, ranks


def _in_order(words: Sequence[Any], own: str | None, plugins: Plugins) -> tuple[tuple[Any, ...], Array]:
    """Words in their order, equal ones once; and the place of each of those given: (m,) int64."""
    if own is None:
        ordered = sorted(set(words))
        place = {word: i for i, word in enumerate(ordered)}
        return tuple(ordered), np.fromiter((place[word] for word in words), np.int64, len(words))
    keys = [sort_key(word, own, plugins) for word in words]
    order = sorted(range(len(words)), key=keys.__getitem__)
    places, distinct = np.zeros(len(words), np.int64), []
    for before, i in zip([None, *order], order, strict=False):
        if before is None or keys[before] < keys[i]:
            distinct.append(words[i])
        places[i] = len(distinct) - 1
    return tuple(distinct), places


def _joined(columns: Sequence[KeyColumn], plugins: Plugins) -> KeyColumn:
    first = columns[0]
    own = next((column.declared for column in columns if column.declared), None)
    words, places = _in_order([word for column in columns for word in column.words], own, plugins)
    classes = np.concatenate([column.classes for column in columns])
    ranks, done = [], 0
    for column in columns:
        has = (column.classes == TEXT) | (column.classes == TYPED)
        of = places[done : done + len(column.words)]
        ranks.append(np.where(has, of[np.where(has, column.ranks, 0)], 0) if len(of) else column.ranks)
        done += len(column.words)
    numbers = np.concatenate([column.numbers for column in columns])
    return KeyColumn(classes, numbers, np.concatenate(ranks), words, first.desc, own)


def _best(levels: Sequence[Array], k: int, n: int) -> Array:
    """k rows that no other is before, in the order in which they are."""
    sure, open_ = _split(levels, k, n)
    return np.sort(np.concatenate([sure, open_[: k - len(sure)]]))


def _reaching(levels: Sequence[Array], k: int, n: int) -> Array:
    """The same with all that are equal to the last of these."""
    return np.sort(np.concatenate(_split(levels, k, n)))


def _split(levels: Sequence[Array], k: int, n: int) -> tuple[Array, Array]:
    """Rows that are among the k best, and those that are equal to one another and the next: with all of them there are k or more."""
    sure: list[Array] = []
    open_ = np.arange(n)
    for level in levels:
        if k <= 0 or len(open_) <= k:
            break
        values = level[open_]
        last = np.partition(values, k - 1)[k - 1]
        before = values < last
        sure.append(open_[before])
        k -= int(np.count_nonzero(before))
        open_ = open_[values == last]
    return np.concatenate([np.zeros(0, np.int64), *sure]), open_ if k > 0 else open_[:0]


def _sorted(levels: Sequence[Array], n: int) -> Array:
    """(n,) int64: rows by levels, equal ones in the order in which they are.

    By digits of 16 bits from the last to the first, each of which numpy sorts by counting: 100,000 scores take 4 ms, by merging 10.
    """
    order = np.arange(n)
    if n < LEAST_BY_DIGITS:
        return np.lexsort(tuple(reversed(levels))) if levels else order
    for i, level in enumerate(reversed(levels)):
        if i == 0 and bool((level[1:] >= level[:-1]).all()):
            continue
        rising, shift = _unsigned(level), 0
        while int(rising.max()) >> shift:
            digit = (rising >> np.uint64(shift)).astype(np.uint16)
            if digit.min() != digit.max():
                order = order[np.argsort(digit[order], kind="stable")]
            shift += 16
    return order


def _unsigned(level: Array) -> Array:
    """(n,) uint64 in the same order, the least 0. level: integers, or floats without nan."""
    if level.dtype.kind == "f":
        bits = (level.astype(np.float64) + 0.0).view(np.int64)  # -0.0 becomes 0.0
        bits = np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)
    else:
        bits = level.astype(np.int64)
    return bits.view(np.uint64) - bits.min().view(np.uint64)  # modulo 2**64: right, however far apart
