"""Fields of the metadata of one segment's entries, as values of rows; what of it takes time is made once and kept with the metadata."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from shards.columns import LISTS, Column, Columns
from shards.entry_metadata import ColumnSource, Metadata
from shards.nlql.distinct import Distinct
from shards.nlql.evaluate import walked
from shards.nlql.geo import point_of
from shards.nlql.parts import Part, Vector
from shards.nlql.rules import Outcome
from shards.nlql.values import number_of
from shards.scope import runs
from shards.types import Array
from shards.zones import ColumnZones, Zones

_known: WeakKeyDictionary[Metadata, "Fields"] = WeakKeyDictionary()
_lock = threading.Lock()

Steps = tuple[str, ...]

N_KEPT = 1_024  # things made once; who asks for names that nothing has shall not fill the memory


def fields_of(metadata: Metadata) -> "Fields":
    """The fields of a segment's entries."""
    with _lock:
        if (found := _known.get(metadata)) is None:
            found = _known[metadata] = Fields(metadata)
        return found


class Fields:
    """Metadata by path. Safe for many threads: what two of them make at the same time is equal."""

    def __init__(self, metadata: Metadata):
        self._metadata = ref(metadata)  # which this is kept with, and goes with
        self.n = metadata.columns.n
        self._made: OrderedDict[tuple[str, Any], Any] = OrderedDict()
        self._lock = threading.Lock()

    def _columns(self) -> ColumnSource | None:
        metadata = self._metadata()
        return None if metadata is None or metadata.is_empty else metadata.columns

    def _zones(self) -> Zones:
        metadata = self._metadata()
        assert metadata is not None
        return metadata.zones

    def vector(self, steps: Steps, places: Array | None) -> Vector:
        """A field of entries. places: (m,) which, in `Entries.order`; None: all."""
        n = self.n if places is None else len(places)
        if (columns := self._columns()) is None:
            return Vector(n) if steps else Vector(n, (Part("coded", np.zeros(n, np.int64), None, Distinct([{}])),))
        if not steps:
            return Vector.of(columns.get_many(np.arange(n) if places is None else places))
        parts = []
        for column in self.columns(steps):
            part = self._part(column)
            keep = None if column.filled is None else np.flatnonzero(column.filled if places is None else column.filled[places])
            taken = keep if places is None else places if keep is None else places[keep]
            part = part if taken is None else part.kept(taken, keep)
            if len(part.values):
                parts.append(part)
        if (part := self.rest(steps)) is not None:
            whole = Vector(self.n, (part,))
            parts += (whole if places is None else whole.take(places)).parts
        if (spread := self.spread(steps)) is not None and len(rows := np.flatnonzero(spread if places is None else spread[places])):
            found = [walked(values, steps) for values in columns.get_many(rows if places is None else places[rows])]
            parts.append(Part("coded", np.arange(len(rows)), rows, Distinct(found)))
        return Vector(n, tuple(parts))

    def columns(self, steps: Steps) -> list[Column]:
        """The columns of a field, one for each type."""
        columns = self._columns()
        return [] if columns is None or any("." in step for step in steps) else columns.named(".".join(steps))

    def zones(self, column: Column) -> ColumnZones:
        return self._zones().of(column)

    def decided(self, steps: Steps, outcome: Callable[[str, Distinct | None], Outcome | None], of_null: bool) -> tuple[Array, Array] | None:
        """(n,) bool each: entries for which a comparison with one value holds, and those for which it raises. None: ask values instead.

        outcome: the rule for columns of a kind; of_null: what holds where there is no value. Blocks of entries that are all alike by
        their zones are not looked at.
        """
        if isinstance(self._columns(), Columns) or self.rest(steps) is not None or self.spread(steps) is not None:
            return None  # columns in memory have no zones yet, and to make them is to look at all
        held, raised = np.full(self.n, of_null), np.zeros(self.n, bool)
        for column in self.columns(steps):
            part = self._part(column)
            rule = outcome(part.kind, part.table)
            if rule is None:
                return None
            self._apply(rule, column, part, held, raised)
        return held, raised

    def _apply(self, rule: Outcome, column: Column, part: Part, held: Array, raised: Array) -> None:
        sizes = self._zones().sizes
        zone = self.zones(column) if column.kind not in LISTS else None
        none, every = zone.blocks(rule.holds, sizes) if zone else (np.zeros(len(sizes), bool),) * 2
        for low, high in runs(every, self.n):
            held[low:high] = True
        for low, high in runs(none, self.n):
            held[low:high] &= False if column.filled is None else ~column.filled[low:high]
        for low, high in runs(~(none | every), self.n):
            meets = rule.holds.holds(part.values[low:high])
            held[low:high] = meets if column.filled is None else np.where(column.filled[low:high], meets, held[low:high])
        if rule.raises is not None:
            none = zone.blocks(rule.raises, sizes)[0] if zone else none
            for low, high in runs(~none, self.n):
                meets = rule.raises.holds(part.values[low:high])
                raised[low:high] |= meets if column.filled is None else meets & column.filled[low:high]

    # --- what is made once -------------------------------------------------------------------------------------------------

    def _once(self, what: str, key: Any, make: Callable[[], Any]) -> Any:
        with self._lock:
            if (what, key) in self._made:
                self._made.move_to_end((what, key))
                return self._made[what, key]
        made = make()
        with self._lock:
            self._made[what, key] = made
            while len(self._made) > N_KEPT:
                self._made.popitem(last=False)
        return made

    def _part(self, column: Column) -> Part:
        """A whole column, 0 where it is not filled."""
        if column.kind in LISTS:
            return self._once("lists", (column.name, column.kind), lambda: _lists(column))
        if column.kind == "string":
            table = self._once("words", column.name, lambda: Distinct(column.words, is_sorted=True))
            return Part("coded", column.values, None, table)
        return Part(column.kind, column.values)

    def rest(self, steps: Steps) -> Part | None:
        """What no column holds of a field; objects that are spread over columns left out."""
        return self._once("rest", steps, lambda: self._rest(steps))

    def _rest(self, steps: Steps) -> Part | None:
        columns = self._columns()
        if columns is None:
            return None
        if not isinstance(columns, Columns):  # of files the zones tell, and `rest` is JSON that need not be read
            keys = self._zones().rest_keys
            if keys is not None and steps[0] not in keys:
                return None
        spread = self.spread(steps)
        found = [(place, value) for place, values in columns.rest.items() if (value := walked(values, steps)) is not None]
        found = [(place, value) for place, value in found if spread is None or not spread[place]]
        return _listed(found)

    def spread(self, steps: Steps) -> Array | None:
        """(n,) bool: entries that have an object here of which columns hold inner fields; None: there are no such columns."""
        return self._once("spread", steps, lambda: self._spread(steps))

    def _spread(self, steps: Steps) -> Array | None:
        columns = self._columns()
        if columns is None or any("." in step for step in steps):
            return None
        start = ".".join((*steps, ""))
        below = [column for name in columns.names if name.startswith(start) for column in columns.named(name)]
        if not below:
            return None
        return np.logical_or.reduce([np.ones(self.n, bool) if column.filled is None else column.filled for column in below])

    def points(self, steps: Steps) -> tuple[Array, Array]:
        """(n,) float64 each: latitudes and longitudes of the places that a field holds, nan where it holds none."""
        return self._once("points", steps, lambda: self._points(steps))

    def _points(self, steps: Steps) -> tuple[Array, Array]:
        lat, lon = np.full(self.n, np.nan), np.full(self.n, np.nan)
        parts = []
        for column in self.columns(steps):
            if column.kind in ("floats", "integers"):
                rows = np.flatnonzero(np.diff(column.offsets) == 2)
                first = column.offsets[:-1][rows]
                lat[rows], lon[rows] = column.items[first], column.items[first + 1]
            elif column.kind in ("string", "strings"):
                part = self._part(column)
                parts.append(part if column.filled is None else part.kept(column.filled, np.flatnonzero(column.filled)))
        for part in (*parts, *([rest] if (rest := self.rest(steps)) is not None else [])):
            found = part.table.mapped(lambda values: list(map(point_of, values)), part.used())
            pairs = np.array([(np.nan, np.nan) if point is None else point for point in found], np.float64)
            lat[part.rows], lon[part.rows] = pairs[part.values].T
        if (spread := self.spread(steps)) is not None:
            lat[spread], lon[spread] = self._numbers((*steps, "lat"))[spread], self._numbers((*steps, "lon"))[spread]
        off = ~((np.abs(lat) <= 90) & (np.abs(lon) <= 180))
        lat[off] = lon[off] = np.nan
        return lat, lon

    def _numbers(self, steps: Steps) -> Array:
        """(n,) float64: a field where it reads as a number, nan elsewhere."""
        found = np.full(self.n, np.nan)
        for part in self.vector(steps, None).parts:
            if part.kind in ("integer", "float"):
                found[part.rows] = part.values
            elif part.kind == "coded":
                read = part.table.mapped(lambda values: list(map(number_of, values)), part.used())
                found[part.rows] = np.array([np.nan if number is None else number for number in read], np.float64)[part.values]
        return found


def _lists(column: Column) -> Part:
    """Lists by code, since many entries have the same; code 0 where there is none."""
    items = column.items[0 : len(column.items)]
    codes = np.zeros(len(column.offsets) - 1, np.int32)
    known: dict[Any, int] = {}
    values = []
    offsets = column.offsets.tolist()
    for place in range(len(codes)) if column.filled is None else np.flatnonzero(column.filled).tolist():
        found = items[offsets[place] : offsets[place + 1]]
        key = tuple(found) if isinstance(found, list) else found.tobytes()  # as bytes, -0.0 is not 0.0
        code = codes[place] = known.setdefault(key, len(known))
        if code == len(values):
            values.append(found if isinstance(found, list) else found.tolist())
    return Part("coded", codes, None, Distinct(values))


def _listed(found: list[tuple[int, Any]]) -> Part | None:
    """A part of values by place; equal texts once."""
    if not found:
        return None
    places, values = np.array([place for place, _ in found], np.int64), [value for _, value in found]
    if all(isinstance(value, str) for value in values):
        words = sorted(set(values))
        code = {word: i for i, word in enumerate(words)}
        return Part("coded", np.array([code[value] for value in values], np.int64), places, Distinct(words, is_sorted=True))
    return Part("coded", np.arange(len(values)), places, Distinct(values))
