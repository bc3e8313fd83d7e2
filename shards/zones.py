"""What blocks of metadata columns hold at most, so that blocks and whole segments are passed over without being read.

Entries lie in order of source and path here, not of hash: what lies together in a source is alike, and its values near one another.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shards import arrays as array_files
from shards.columns import LISTS, Column, Columns
from shards.conditions import Condition
from shards.plan import compare
from shards.types import Array

BLOCK = 4_096  # entries: 32 kB of a column, 5 us to compare; a million entries have 245 blocks
SMALL_SET = 64  # distinct strings, of which a block keeps the set it holds, as bits
SHOWN = 16  # distinct values of a segment that are listed
MAX_CHARS = 256  # of a bound; what begins like a longer one is looked at


@dataclass(frozen=True, slots=True)
class ColumnZones:
    """One column's blocks. filled: (b,) int32, entries that have it. least, greatest: (b,) of the column's values, where filled.

    sets: (b,) uint64 or None, bit c is set where code c occurs. bounds: of the whole segment: (least, greatest), as texts or numbers,
    None where not known. shown: all its distinct values, None where there are many.
    """

    name: str
    kind: str
    n_filled: int
    bounds: tuple[Any, Any] | None
    shown: tuple[Any, ...] | None
    filled: Array
    least: Array | None = None
    greatest: Array | None = None
    sets: Array | None = None

    def blocks(self, where: Condition, sizes: Array) -> tuple[Array, Array]:
        """(b,) bool each: blocks of which no entry can meet a condition, and those of which all do. sizes: (b,), entries in each."""
        none, every = where.blocks(self.least, self.greatest)
        if self.sets is not None:
            wanted = np.uint64(sum(1 << code for code in range(SMALL_SET) if _meets(where, code)))
            none, every = (self.sets & wanted) == 0, (self.sets & ~wanted) == 0
        return none | (self.filled == 0), every & (self.filled == sizes)

    def decide(self, op: str, value: Any, n: int) -> bool | None:
        """Whether all of n entries (True) or none (False) have a value here that compares so; None: some may."""
        some, every = self._bounded(op, value)
        if not some:
            return False
        return True if every and self.n_filled == n else None

    def _bounded(self, op: str, value: Any) -> tuple[bool, bool]:
        """(some values may, all values do) compare so."""
        if op == "exists":
            return True, True
        if self.kind in LISTS or op == "has":
            return self.kind in LISTS and op == "has", False
        if self.shown is not None:
            met = [compare(op, one, value) for one in self.shown]
            return any(met), all(met)
        if op == "in":
            found = [self._bounded("==", item) for item in value]
            return any(some for some, _ in found), any(every for _, every in found)
        if self.bounds is None:
            return True, False
        least, greatest = self.bounds
        if not compare("==", least, least) or isinstance(value, bool) or isinstance(value, str) != isinstance(least, str):
            return False, False
        match op:
            case "<" | "<=":
                return compare(op, least, value), greatest is not None and compare(op, greatest, value)
            case ">" | ">=":
                return greatest is None or compare(op, greatest, value), compare(op, least, value)
            case "==":
                return compare("<=", least, value) and (greatest is None or compare(">=", greatest, value)), False
            case "!=":
                return True, compare(">", least, value) or (greatest is not None and compare("<", greatest, value))
        return True, False


@dataclass(frozen=True, slots=True)
class Zones:
    """Those of a segment of n entries. rest: how many have something that no column holds; rest_keys: its outermost keys."""

    n: int
    columns: Mapping[str, tuple[ColumnZones, ...]]
    rest: int = 0
    rest_keys: frozenset[str] | None = frozenset()

    @property
    def sizes(self) -> Array:
        return np.diff(np.append(np.arange(0, self.n, BLOCK), self.n)).astype(np.int32)

    def of(self, column: Column) -> ColumnZones:
        return next(zone for zone in self.columns[column.name] if zone.kind == column.kind)

    def in_rest(self, name: str) -> bool:
        """Whether some entry may have the field outside of columns."""
        return self.rest > 0 and (self.rest_keys is None or name.partition(".")[0] in self.rest_keys)

    def nested(self, name: str) -> list[str]:
        """Fields below a field, which exists where one of these does."""
        return [other for other in self.columns if other.startswith(f"{name}.")]

    def decide(self, name: str, op: str, value: Any) -> bool | None:
        """Whether a comparison holds for every entry or for none; None where entries must be looked at."""
        if self.in_rest(name) or (op == "exists" and self.nested(name)):
            return None
        found = [zone.decide(op, value, self.n) for zone in self.columns.get(name, ())]
        return True if True in found else None if None in found else False


def zones_of(columns: Columns) -> Zones:
    """The zones of columns in memory."""
    found: dict[str, tuple[ColumnZones, ...]] = {}
    for column in columns.columns:
        found[column.name] = (*found.get(column.name, ()), _zones(column, columns.n))
    keys = frozenset(key for values in columns.rest.values() for key in values)
    return Zones(columns.n, found, len(columns.rest), keys if len(keys) <= 1_000 else None)


def dump(zones: Zones) -> bytes:
    """The bytes of their file: safetensors, the fields in its metadata."""
    arrays, fields = {}, []
    for i, zone in enumerate(one for name in sorted(zones.columns) for one in zones.columns[name]):
        fields.append({"name": zone.name, "kind": zone.kind, "n_filled": zone.n_filled, "bounds": zone.bounds, "shown": zone.shown})
        for part in ("filled", "least", "greatest", "sets"):
            if (array := getattr(zone, part)) is not None:
                arrays[f"{part}/{i}"] = array
    keys = None if zones.rest_keys is None else sorted(zones.rest_keys)
    about = {"n": zones.n, "fields": fields, "rest": zones.rest, "rest_keys": keys}
    return array_files.dump(arrays, {"zones": json.dumps(about, sort_keys=True, separators=(",", ":"))})


def load(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> Zones:
    """From what their file holds."""
    about = json.loads(metadata["zones"])
    found: dict[str, tuple[ColumnZones, ...]] = {}
    for i, each in enumerate(about["fields"]):
        parts = {part: arrays.get(f"{part}/{i}") for part in ("filled", "least", "greatest", "sets")}
        bounds, shown = each["bounds"], each["shown"]
        zone = ColumnZones(
            each["name"], each["kind"], each["n_filled"], bounds and tuple(bounds), None if shown is None else tuple(shown), **parts
        )
        found[zone.name] = (*found.get(zone.name, ()), zone)
    keys = about["rest_keys"]
    return Zones(about["n"], found, about["rest"], None if keys is None else frozenset(keys))


def _zones(column: Column, n: int) -> ColumnZones:
    starts = np.arange(0, n, BLOCK)
    has = np.ones(n, np.int32) if column.filled is None else column.filled.astype(np.int32)
    filled = np.add.reduceat(has, starts).astype(np.int32)
    if column.kind in LISTS:
        return ColumnZones(column.name, column.kind, column.n_filled, None, None, filled)
    values = column.values.astype(np.uint8) if column.kind == "boolean" else column.values
    low, high = (-math.inf, math.inf) if column.kind == "float" else (np.iinfo(values.dtype).min, np.iinfo(values.dtype).max)
    present = slice(None) if column.filled is None else column.filled
    # A block without values has the widest bounds the wrong way round; it is passed over by its count.
    least = np.minimum.reduceat(np.where(has, values, values.dtype.type(high)), starts)
    greatest = np.maximum.reduceat(np.where(has, values, values.dtype.type(low)), starts)
    least[filled == 0] = greatest[filled == 0] = 0
    sets = None
    if column.kind == "string" and len(column.words) <= SMALL_SET:
        bits = np.where(has, np.uint64(1) << values.astype(np.uint64), np.uint64(0))
        sets = np.bitwise_or.reduceat(bits, starts)
    distinct = np.unique(values[present][: SHOWN * BLOCK])
    shown = None
    if len(distinct) <= SHOWN and (n <= SHOWN * BLOCK or len(distinct := np.unique(values[present])) <= SHOWN):
        at = [int(np.flatnonzero((values == value) & (has > 0))[0]) for value in distinct]
        shown = tuple(column.value(place) for place in at)
        if any((isinstance(one, str) and len(one) > MAX_CHARS) or one in (math.inf, -math.inf) for one in shown):
            shown = None
    return ColumnZones(column.name, column.kind, column.n_filled, _bounds(column, has > 0), shown, filled, least, greatest, sets)


def _bounds(column: Column, has: Array) -> tuple[Any, Any] | None:
    if column.kind == "boolean":
        return None
    places = np.flatnonzero(has)
    values = column.values[places]
    least, greatest = (column.value(int(places[at])) for at in (values.argmin(), values.argmax()))
    if column.kind == "float" and not (math.isfinite(least) and math.isfinite(greatest)):
        return None  # JSON has no infinity
    if isinstance(least, str):
        return least[:MAX_CHARS], greatest if len(greatest) <= MAX_CHARS else None
    return least, greatest


def _meets(where: Condition, code: int) -> bool:
    if where.table is not None:
        return code < len(where.table) and bool(where.table[code])
    return any(low <= code <= high for low, high in where.ranges)
