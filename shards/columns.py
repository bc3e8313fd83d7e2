"""Metadata of many entries as typed columns: one for each field and type that occurs, whatever the entries have in common.

A field is a dotted path into nested metadata. Its values of each type form a column of their own (`year:integer`, `year:string`),
so that mixed types cost nothing and lose nothing. What no column can hold goes to `rest` as JSON, entry by entry: lists of mixed
types, nulls, NaN, integers beyond 64 bits, keys with dots, and fields that few entries of a large segment have.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from shards.types import Array

# What a kind's values are in memory and in files. Strings are codes of a sorted list of the distinct ones, so that every comparison
# of text is one of integers; a timestamp counts seconds, a date days, since 1970-01-01.
SCALARS = {
    "boolean": np.bool_, "integer": np.int64, "float": np.float64, "string": np.int32, "timestamp": np.int64, "date": np.int32,
}  # fmt: skip
LISTS = {"integers": np.int64, "floats": np.float64, "strings": np.object_}

SMALL = 4_096  # entries; in larger segments a column must be filled well enough to be worth its bytes
LEAST_SHARE = 64  # one entry in so many
MAX_COLUMNS = 512  # of a segment: keys that are data, such as ids, would make millions

_EPOCH = datetime(1970, 1, 1)


class Leaf(NamedTuple):
    """One value of one entry's metadata, as a column keeps it."""

    name: str
    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class Column:
    """One field of one type over n entries.

    filled: (n,) bool, which entries have it; None: all. values: (n,) of the dtype in SCALARS, 0 where not filled.
    words: of strings, the distinct ones in order of their code points.
    items, offsets: of lists instead of values: entry i has items[offsets[i] : offsets[i + 1]].
    """

    name: str
    kind: str
    filled: Array | None
    values: Array | None = None
    words: Sequence[str] = ()
    items: Sequence[Any] = ()
    offsets: Array | None = None

    @property
    def n_filled(self) -> int:
        if self.filled is not None:
            return int(np.count_nonzero(self.filled))
        return len(self.values) if self.values is not None else len(self.offsets) - 1

    def has(self, place: int) -> bool:
        return self.filled is None or bool(self.filled[place])

    def value(self, place: int) -> Any:
        """The value of an entry that has one, as it was given."""
        if self.kind in LISTS:
            return [_plain(item) for item in self.items[self.offsets[place] : self.offsets[place + 1]]]
        value = self.values[place]
        match self.kind:
            case "string":
                return str(self.words[int(value)])
            case "timestamp":
                return timestamp_text(int(value))
            case "date":
                return date_text(int(value))
        return value.item()

    def some(self, places: Array) -> list[Any]:
        """The values of entries that have one, as `value` gives each, in a fraction of the time. places: (m,) int64."""
        if self.kind in LISTS:
            starts, ends = self.offsets[places].tolist(), self.offsets[places + 1].tolist()
            if self.kind != "strings":
                return [self.items[a:b].tolist() for a, b in zip(starts, ends, strict=True)]
            items = iter(_texts(self.items, [i for a, b in zip(starts, ends, strict=True) for i in range(a, b)]))
            return [[next(items) for _ in range(b - a)] for a, b in zip(starts, ends, strict=True)]
        values = self.values[places]
        if self.kind in ("string", "timestamp", "date"):
            distinct, which = np.unique(values, return_inverse=True)
            numbers = distinct.tolist()
            match self.kind:
                case "string":
                    texts = _texts(self.words, numbers)
                case "timestamp":
                    texts = [timestamp_text(number) for number in numbers]
                case _:
                    texts = [date_text(number) for number in numbers]
            return [texts[i] for i in which.tolist()]
        return values.tolist()


@dataclass(frozen=True)
class Columns:
    """The metadata of n entries. columns: in order of name and kind. rest: by entry, ascending, what no column holds."""

    n: int
    columns: tuple[Column, ...] = ()
    rest: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: Sequence[Mapping[str, Any]]) -> "Columns":
        """Columns of entries' metadata, in their order."""
        pieces = _Pieces(len(metadata))
        pieces.add_all(metadata)
        return pieces.columns()

    @classmethod
    def join(cls, parts: Sequence[tuple["Columns", Array]], n: int) -> "Columns":
        """Equal to `of` the entries that parts bring together. parts: (columns, (n of the part,) new place of each entry or -1)."""
        pieces = _Pieces(n)
        for part, places in parts:
            for column in part.columns:
                pieces.take(column, places)
            for place, values in part.rest.items():
                if places[place] >= 0:
                    pieces.add(int(places[place]), values)
        return pieces.columns()

    @cached_property
    def _by_name(self) -> dict[str, list[Column]]:
        found: dict[str, list[Column]] = {}
        for column in self.columns:
            found.setdefault(column.name, []).append(column)
        return found

    @property
    def names(self) -> Iterable[str]:
        """The fields that some column holds."""
        return self._by_name

    def named(self, name: str) -> list[Column]:
        """The columns of one field, one for each type."""
        return self._by_name.get(name, [])

    @property
    def whole(self) -> "Columns":
        return self

    def get(self, place: int) -> dict[str, Any]:
        """The metadata of one entry, keys sorted."""
        found: dict[str, Any] = {}
        for column in self.columns:
            if column.has(place):
                _put(found, column.name.split("."), column.value(place))
        _merge(found, self.rest.get(place, {}))
        return _sorted(found)

    def get_many(self, places: Array) -> list[dict[str, Any]]:
        """The metadata of several entries, (m,) int64, as `get` gives that of each."""
        found: list[dict[str, Any]] = [{} for _ in range(len(places))]
        for column in sorted(self.columns, key=lambda column: column.name.split(".")):  # so that keys come sorted on every level
            steps = column.name.split(".")
            rows = range(len(places)) if column.filled is None else np.flatnonzero(column.filled[places])
            if not len(rows):
                continue
            values = column.some(places if column.filled is None else places[rows])
            numbers = rows if isinstance(rows, range) else rows.tolist()
            if len(steps) == 1:
                for row, value in zip(numbers, values, strict=True):
                    found[row][column.name] = value
            else:
                for row, value in zip(numbers, values, strict=True):
                    _put(found[row], steps, value)
        if self.rest:
            for row, place in enumerate(places.tolist()):
                if place in self.rest:
                    _merge(found[row], self.rest[place])
                    found[row] = _sorted(found[row])
        return found


class _Pieces:
    """Values on their way into columns: of each field and kind, the entries that have it and what they have."""

    def __init__(self, n: int):
        self.n = n
        self.lists: dict[tuple[str, str], tuple[list[int], list[Any]]] = {}  # as single values come
        self.taken: dict[tuple[str, str], list[tuple[Array, Column, Array]]] = {}  # (new places, column, old places)
        self.rest: dict[int, dict[str, Any]] = {}

    def add(self, place: int, metadata: Mapping[str, Any]) -> None:
        rest: dict[str, Any] = {}
        for leaf in leaves(metadata, rest):
            held = self.lists.get((leaf.name, leaf.kind))
            if held is None:
                held = self.lists[leaf.name, leaf.kind] = ([], [])
            held[0].append(place)
            held[1].append(leaf.value)
        if rest:
            _merge(self.rest.setdefault(place, {}), rest)

    def add_all(self, metadata: Sequence[Mapping[str, Any]]) -> None:
        """As `add` of each at its place, field by field: what most entries have in one kind is told at once, in a third of the time."""
        for key in set().union(*metadata):
            places = [place for place, values in enumerate(metadata) if key in values]
            found = [metadata[place][key] for place in places]
            if _is_nameable(key) and (kind := _kind_of_all(found)):
                into = self.lists.setdefault((key, kind), ([], []))
                into[0].extend(places)
                into[1].extend(found)
            else:
                for place, value in zip(places, found, strict=True):
                    self.add(place, {key: value})

    def take(self, column: Column, places: Array) -> None:
        kept = places >= 0 if column.filled is None else (places >= 0) & column.filled
        old = np.flatnonzero(kept)
        if len(old):
            self.taken.setdefault((column.name, column.kind), []).append((places[old], column, old))

    def columns(self) -> Columns:
        counts = {key: len(places) for key, (places, _) in self.lists.items()}
        for key, parts in self.taken.items():
            counts[key] = counts.get(key, 0) + sum(len(places) for places, _, _ in parts)
        least = 1 if self.n <= SMALL else -(-self.n // LEAST_SHARE)
        chosen = sorted((key for key, count in counts.items() if count >= least), key=lambda key: (-counts[key], key))[:MAX_COLUMNS]
        for key in set(counts) - set(chosen):
            for place, value in self._values(key):
                _put(self.rest.setdefault(place, {}), key[0].split("."), value)
        columns = tuple(self._column(key) for key in sorted(chosen))
        return Columns(self.n, columns, {place: _sorted(self.rest[place]) for place in sorted(self.rest)})

    def _values(self, key: tuple[str, str]) -> Iterator[tuple[int, Any]]:
        yield from zip(*self.lists.get(key, ((), ())), strict=True)
        for places, column, old in self.taken.get(key, ()):
            for place, before in zip(places.tolist(), old.tolist(), strict=True):
                yield place, column.value(before)

    def _column(self, key: tuple[str, str]) -> Column:
        name, kind = key
        if kind in LISTS:
            return self._list_column(key)
        places, given = self.lists.get(key, ((), ()))
        taken = self.taken.get(key, ())
        filled, values = np.zeros(self.n, bool), np.zeros(self.n, SCALARS[kind])
        words: Sequence[str] = ()
        if kind == "string":
            words = sorted({*given, *(word for _, column, _ in taken for word in _used_words(column))})
            code = {word: i for i, word in enumerate(words)}
            given = [code[word] for word in given]
        elif kind in ("timestamp", "date"):
            number = {text: timestamp_seconds(text) if kind == "timestamp" else date_days(text) for text in set(given)}
            given = [number[text] for text in given]
        at = np.array(places, np.int64)
        filled[at], values[at] = True, np.array(given, SCALARS[kind])
        for new, column, old in taken:
            filled[new] = True
            moved = column.values[old]
            values[new] = _recoded(column, code)[moved] if kind == "string" else moved
        if kind == "string":
            words, values = _without_unused(words, values, filled)
        return Column(name, kind, None if filled.all() else filled, values, words)

    def _list_column(self, key: tuple[str, str]) -> Column:
        name, kind = key
        found = dict(self._values(key))
        offsets = np.zeros(self.n + 1, np.int64)
        places = np.array(sorted(found), np.int64)
        offsets[places + 1] = [len(found[place]) for place in places.tolist()]
        np.cumsum(offsets, out=offsets)
        items: Sequence[Any] = [item for place in places.tolist() for item in found[place]]
        if kind != "strings":
            items = np.array(items, LISTS[kind])
        filled = np.zeros(self.n, bool)
        filled[places] = True
        return Column(name, kind, None if filled.all() else filled, items=items, offsets=offsets)


def leaves(metadata: Mapping[str, Any], rest: dict[str, Any]) -> Iterator[Leaf]:
    """The values that columns can hold; what they cannot is put into `rest`, nested as it was."""
    stack: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), metadata)]
    while stack:
        above, values = stack.pop()
        for key, value in values.items():
            nameable = _is_nameable(key)
            if nameable and (kind := kind_of_value(value)):
                yield Leaf(".".join((*above, key)) if above else key, kind, value)
            elif nameable and isinstance(value, Mapping) and value:
                stack.append(((*above, key), value))
            else:
                _put(rest, (*above, key), value)


def kind_of_value(value: Any) -> str:
    """The kind of column that keeps a value exactly; "" if none does."""
    known = _KINDS.get(type(value))
    return known(value) if known else ""


def _kind_of_all(values: Sequence[Any]) -> str:
    """The kind that `kind_of_value` gives each of several values; "" where it gives several, or that cannot be told at once."""
    types = set(map(type, values))
    if len(types) > 1:
        return ""
    of = types.pop()
    if of is str:
        kinds = set(map(_kind_of_text, set(values)))
    elif of is int:
        kinds = {kind_of_value(min(values)), kind_of_value(max(values))}
    elif of is float:
        kinds = {"float" if all(value == value for value in values) else ""}
    elif of is list and all(type(item) is str for value in values for item in value):
        kinds = {_kind_of_list(value) for value in set(map(tuple, values))}
    else:
        kinds = {"boolean" if of is bool else ""}
    return kinds.pop() if len(kinds) == 1 else ""


def _kind_of_list(value: Sequence[Any]) -> str:
    kinds = {"string" if isinstance(item, str) and _is_utf8(item) else kind_of_value(item) for item in value}
    return {"string": "strings", "integer": "integers", "float": "floats"}.get(kinds.pop(), "") if len(kinds) == 1 else ""


def _kind_of_text(text: str) -> str:
    if len(text) in (10, 20) and text[4] == text[7] == "-" and text.isascii():
        try:
            if len(text) == 10 and date_text(date_days(text)) == text:
                return "date"
            if len(text) == 20 and timestamp_text(timestamp_seconds(text)) == text:
                return "timestamp"
        except (ValueError, OverflowError):
            pass
    return "string" if _is_utf8(text) else ""


_KINDS: dict[type, Callable[[Any], str]] = {
    bool: lambda _: "boolean",
    int: lambda value: "integer" if -(2**63) <= value < 2**63 else "",
    float: lambda value: "float" if value == value else "",  # NaN goes to the rest
    str: _kind_of_text,
    list: _kind_of_list,
    tuple: _kind_of_list,
}


@lru_cache(maxsize=8192)  # days come again: as a kind, as a number, in the next segment
def date_days(text: str) -> int:
    """Days since 1970 of `2024-05-01`. Raises ValueError."""
    return date.fromisoformat(text).toordinal() - _EPOCH.toordinal()


def date_text(days: int) -> str:
    return date.fromordinal(days + _EPOCH.toordinal()).isoformat()


def timestamp_seconds(text: str) -> int:
    """Seconds since 1970 of `2024-05-01T10:00:00Z`. Raises ValueError."""
    if text[19:] != "Z":
        raise ValueError(text)
    return int((datetime.fromisoformat(text[:19]).replace(tzinfo=UTC) - _EPOCH.replace(tzinfo=UTC)) // timedelta(seconds=1))


def timestamp_text(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat() + "Z"


def _used_words(column: Column) -> Iterable[str]:
    return (str(word) for word in column.words)


def _recoded(column: Column, code: Mapping[str, int]) -> Array:
    """The new code of each of a column's words."""
    return np.array([code[word] for word in _used_words(column)], np.int32)


def _without_unused(words: Sequence[str], codes: Array, filled: Array) -> tuple[Sequence[str], Array]:
    """Words that some entry has, and codes of these; 0 where there is none."""
    used = np.zeros(len(words), bool)
    used[codes[filled]] = True
    if used.all():
        return words, codes
    moved = np.where(filled, (np.cumsum(used) - 1)[codes], 0).astype(np.int32)
    return [word for word, kept in zip(words, used.tolist(), strict=True) if kept], moved


@lru_cache(maxsize=4_096)
def _is_nameable(key: str) -> bool:
    """Whether a column can be named by a key."""
    return "." not in key and _is_utf8(key)


def _is_utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _plain(item: Any) -> Any:
    if isinstance(item, str | int | float):
        return item.item() if isinstance(item, np.generic) else item
    return item.item() if hasattr(item, "item") else item.as_py()


def _texts(texts: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Some of many texts; those of a file decode just these."""
    many = getattr(texts, "many", None)
    return [str(texts[i]) for i in numbers] if many is None else many(numbers)


def _put(target: dict[str, Any], steps: Sequence[str], value: Any) -> None:
    for step in steps[:-1]:
        target = target.setdefault(step, {})
    target[steps[-1]] = value


def _merge(target: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = _copied(value)


def _copied(value: Any) -> Any:
    return {key: _copied(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def _sorted(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _sorted(inner) if isinstance(inner, Mapping) else inner for key, inner in sorted(value.items())}


def rest_json(values: Mapping[str, Any]) -> str:
    """One entry's `rest` as ASCII JSON: escapes keep what UTF-8 cannot."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))
