"""Which entries of a segment meet a predicate: a mask per segment, computed on whole columns and kept.

What a comparison means is said by `shards.plan.matches`, entry by entry; here the same is found by comparing ranges of typed columns
(`shards.conditions`), by passing over blocks whose bounds tell (`shards.zones`), and by the ends of globs (`shards.globs`).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shards.columns import Column
from shards.documents import Entries
from shards.globs import ends_with, matching_at, shape
from shards.plan import And, Compare, Everything, Glob, Not, Nothing, Or, Predicate, compare, glob_regex, lookup, simplify
from shards.types import Array

FACTS = ("path", "source", "size_bytes", "mtime", "ext")  # fields that every entry has, beside its metadata
CONTENT = ("kind", "language")  # what a document looks like (`shards/kinds.py`), where metadata does not say otherwise
N_KEPT = 8  # masks of the last predicates: a page, its details and the next page ask for the same one; a byte an entry each


class EntryFields:
    """Field access to the entries of one segment. Safe for many threads.

    kinds: gives the kind of each entry's document, (m,) int as an index into names, -1 where there is none; None: nobody knows.
    """

    def __init__(self, entries: Entries, kinds: Callable[[], tuple[Array, Sequence[str]]] | None = None):
        self.entries, self.kinds = entries, kinds
        self._kept: OrderedDict[str, Array | None] = OrderedDict()
        self._lock = threading.Lock()

    # --- one entry ---------------------------------------------------------------------------------------------------------

    @cached_property
    def paths(self) -> list[str]:
        """All paths, decoded."""
        blob, offsets = self.entries.path_blob.tobytes(), self.entries.path_offsets.tolist()
        return [blob[a:b].decode("utf-8", "surrogateescape") for a, b in zip(offsets[:-1], offsets[1:], strict=True)]

    def value(self, row: int, name: str) -> Any:
        """A field of one entry as `shards.plan.Compare` names it; None where it is missing."""
        entries = self.entries
        match name:
            case "path":
                return entries.path(row)
            case "source":
                return entries.source_names[entries.sources[row]]
            case "size_bytes":
                return int(entries.sizes[row])
            case "mtime":
                return int(entries.mtimes_ns[row]) / 1e9
            case "ext":
                return entries.ext_names[entries.exts[row]]
        found = lookup(entries.metadata.get(int(entries.places[row])), name)
        if found is None and name in CONTENT and self.kinds is not None:
            codes, names = self.kinds()
            return content_field(name, names[codes[row]]) if codes[row] >= 0 else None
        return found

    # --- all entries -------------------------------------------------------------------------------------------------------

    def decide(self, leaf: Predicate) -> bool | None:
        """What this segment knows of a leaf without looking at entries: sources and extensions there are, bounds of numbers and
        metadata."""
        entries = self.entries
        if not len(entries):
            return False
        match leaf:
            case Compare(field="source", op=op, value=value):
                return _agreed(compare(op, name, value) for name in entries.source_names)
            case Compare(field="size_bytes" | "mtime" as name, op="<" | "<=" | ">" | ">=" as op, value=int() | float() as value):
                return _agreed(compare(op, end, value) for end in (entries.size_ends if name == "size_bytes" else entries.mtime_ends))
            case Compare(field=name) if name in CONTENT and self.kinds is not None:
                return None
            case Compare(field=name, op=op, value=value) if name not in FACTS:
                return False if entries.metadata.is_empty else entries.metadata.zones.decide(name, op, value)
        return None

    def mask(self, where: Predicate) -> Array | None:
        """(entries,) bool of those that meet the predicate; None when all do. Not to be written to."""
        key = repr(where)  # 1 and true are equal in Python, but not here
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = self._mask(where)
        with self._lock:
            self._kept[key] = found
            if len(self._kept) > N_KEPT:
                self._kept.popitem(last=False)
        return found

    def forget(self) -> None:
        """Drop the masks that are kept: for who measures what they cost."""
        with self._lock:
            self._kept.clear()

    def _mask(self, where: Predicate) -> Array | None:
        where = simplify(where, self.decide)
        n = len(self.entries)
        match where:
            case Everything():
                return None
            case Nothing():
                return np.zeros(n, bool)
        places = np.flatnonzero(_Evaluation(self).mask(where, None))
        mask = np.zeros(n, bool)
        mask[self.entries.order[places]] = True
        return mask

    # --- paths, in the order of `Entries.order` ----------------------------------------------------------------------------

    def path_at(self, place: int) -> bytes:
        """The bytes of the path at a place."""
        entries = self.entries
        row = entries.order[place]
        return entries.path_blob[entries.path_offsets[row] : entries.path_offsets[row + 1]].tobytes()


class _Evaluation:
    """One predicate over one segment, in the order of `Entries.order`.

    A part is asked only for places where the others have not decided already (`within`); elsewhere its mask may say anything.
    """

    def __init__(self, fields: EntryFields):
        self.fields, self.entries, self.n = fields, fields.entries, len(fields.entries)

    def mask(self, node: Predicate, within: Array | None) -> Array:
        match node:
            case Everything():
                return np.ones(self.n, bool)
            case Nothing():
                return np.zeros(self.n, bool)
            case Not(of=inner):
                return ~self.mask(inner, within)
            case And(of=parts):
                for part in sorted(parts, key=_cost):
                    found = self.mask(part, within)
                    within = found if within is None else within & found
                    if not within.any():
                        break
                return within
            case Or(of=parts):
                found = np.zeros(self.n, bool)
                for part in sorted(parts, key=_cost):
                    found |= self.mask(part, ~found if within is None else within & ~found)
                return found
            case Glob(pattern=pattern):
                return self._globbed(pattern, within)
            case Compare(field="path", op=op, value=value):
                return self._path(op, value, within)
            case Compare(field=name, op=op, value=value) if name in FACTS:
                return self._fact(name, op, value)[self.entries.order]
            case Compare(field=name, op=op, value=value) if name in CONTENT and self.fields.kinds is not None:
                return self._content(name, op, value)[self.entries.order] | self._metadata(name, op, value, within)
            case Compare(field=name, op=op, value=value):
                return self._metadata(name, op, value, within)
        raise AssertionError(f"unknown predicate {node!r}")

    # --- facts -------------------------------------------------------------------------------------------------------------

    def _fact(self, name: str, op: str, value: Any) -> Array:
        """Whether each row meets a comparison of a fact other than its path."""
        entries = self.entries
        if name in ("source", "ext"):
            names, codes = (entries.source_names, entries.sources) if name == "source" else (entries.ext_names, entries.exts)
            return np.array([compare(op, one, value) for one in names], bool)[codes]
        from shards.conditions import condition

        if op == "exists":
            return np.ones(self.n, bool)
        kind, values = ("integer", entries.sizes) if name == "size_bytes" else ("float", entries.mtimes_ns / 1e9)
        return condition(Column(name, kind, None, values), op, value).holds(values)

    def _content(self, name: str, op: str, value: Any) -> Array:
        """Whether each row meets a comparison of what its document looks like; False for those whose metadata has the field."""
        codes, names = self.fields.kinds()
        meets = np.array([*(compare(op, content_field(name, kind), value) for kind in names), False], bool)  # last: of code -1
        found = meets[codes]
        found[self.entries.order[self._metadata(name, "exists", None, None)]] = False
        return found

    # --- paths -------------------------------------------------------------------------------------------------------------

    def _path(self, op: str, value: Any, within: Array | None) -> Array:
        match op:
            case "exists":
                return np.ones(self.n, bool)
            case "glob":
                return self._globbed(value, within)
            case "in":
                found = np.zeros(self.n, bool)
                for item in value:
                    found |= self._path("==", item, within)
                return found
        if not isinstance(value, str) or op == "has":
            return np.zeros(self.n, bool)
        try:
            raw = value.encode()
        except UnicodeEncodeError:
            return self._one_by_one(range(self.n), lambda path: compare(op, path, value))
        found = np.zeros(self.n, bool)
        for low, high in zip(self.entries.source_edges[:-1], self.entries.source_edges[1:], strict=True):
            first = self._bisect(low, high, lambda path: path < raw)
            after = self._bisect(first, high, lambda path: path <= raw)
            match op:
                case "==":
                    found[first:after] = True
                case "!=":
                    found[low:first] = found[after:high] = True
                case "<":
                    found[low:first] = True
                case "<=":
                    found[low:after] = True
                case ">":
                    found[after:high] = True
                case _:
                    found[first:high] = True
        return self._with_odd(found, lambda path: compare(op, path, value))

    def _globbed(self, pattern: str, within: Array | None) -> Array:
        entries, ends = self.entries, shape(pattern)
        found = np.zeros(self.n, bool)
        places: Array | None = None
        if ends.prefix:
            ranges = []
            for low, high in zip(entries.source_edges[:-1], entries.source_edges[1:], strict=True):
                first = self._bisect(low, high, lambda path: path[: len(ends.prefix)] < ends.prefix)
                ranges.append(np.arange(first, self._bisect(first, high, lambda path: path[: len(ends.prefix)] <= ends.prefix)))
            places = np.concatenate(ranges)
        if within is not None and (places is not None or ends.suffix or not ends.exact):
            places = np.flatnonzero(within) if places is None else places[within[places]]
        if ends.suffix:
            blob, offsets, order = entries.path_blob, entries.path_offsets, entries.order
            if places is None:  # in order of rows, which is that of the blob
                places = np.flatnonzero(ends_with(ends.suffix, blob, offsets, None)[order])
            else:
                places = places[ends_with(ends.suffix, blob, offsets, order[places].astype(np.int64))]
        if not ends.exact:
            places = np.arange(self.n) if places is None else places
            places = places[~np.isin(places, entries.odd)] if len(entries.odd) else places
            rows = entries.order[places].astype(np.int64)
            meets = matching_at(pattern, entries.path_blob, entries.path_offsets, rows, entries.path)
            places = places[meets]
        found[slice(None) if places is None else places] = True
        return self._with_odd(found, lambda path: glob_regex(pattern).fullmatch(path) is not None)

    def _bisect(self, low: int, high: int, is_before: Callable[[bytes], bool]) -> int:
        """The first place from `low` on whose path is not before something."""
        while low < high:
            middle = (low + high) // 2
            if is_before(self.fields.path_at(middle)):
                low = middle + 1
            else:
                high = middle
        return low

    def _with_odd(self, found: Array, meets: Callable[[str], bool]) -> Array:
        """Paths that are not UTF-8 stand in another order than their text, and RE2 does not read them."""
        if len(self.entries.odd):
            found[self.entries.odd] = self._one_by_one(self.entries.odd.tolist(), meets)
        return found

    def _one_by_one(self, places: Sequence[int], meets: Callable[[str], bool]) -> Array:
        paths = (self.fields.path_at(place).decode("utf-8", "surrogateescape") for place in places)
        return np.fromiter(map(meets, paths), bool, len(places))

    # --- metadata ----------------------------------------------------------------------------------------------------------

    def _metadata(self, name: str, op: str, value: Any, within: Array | None) -> Array:
        from shards.columns import LISTS
        from shards.conditions import condition

        metadata = self.entries.metadata
        if metadata.is_empty:
            return np.zeros(self.n, bool)
        zones = metadata.zones
        found = np.zeros(self.n, bool)
        names = [name, *zones.nested(name)] if op == "exists" else [name]
        for column in (column for each in names for column in metadata.columns.named(each)):
            if op == "exists":
                found |= True if column.filled is None else column.filled
            elif column.kind in LISTS:
                if op == "has":
                    found |= _with_item(column, value)
            else:
                where = condition(column, op, value)
                none, every = zones.of(column).blocks(where, zones.sizes)
                for low, high in runs(every, self.n):
                    found[low:high] = True
                open_ = ~(none | every)
                for low, high in runs(open_ if within is None else open_ & _any_in(within, len(none)), self.n):
                    part = where.holds(column.values[low:high])
                    found[low:high] |= part if column.filled is None else part & column.filled[low:high]
        if zones.in_rest(name):
            for place, values in metadata.columns.rest.items():
                if (within is None or within[place]) and compare(op, lookup(values, name), value):
                    found[place] = True
        return found


def runs(blocks: Array, n: int) -> list[tuple[int, int]]:
    """Entries [low, high) of the blocks that are marked, neighbours together. blocks: (b,) bool; n: entries there are."""
    from shards.zones import BLOCK

    edges = np.flatnonzero(np.diff(np.concatenate([[False], blocks, [False]]).astype(np.int8)))
    return [(int(a) * BLOCK, min(int(b) * BLOCK, n)) for a, b in edges.reshape(-1, 2)]


def _with_item(column: Column, value: Any) -> Array:
    """(n,) bool of lists that have an item equal to a value."""
    if column.kind == "strings":
        same = [i for i, item in enumerate(column.items[0 : len(column.items)]) if item == value]
    elif isinstance(value, bool) or not isinstance(value, int | float):
        same = []
    else:
        equal = [item for item in np.unique(column.items).tolist() if compare("==", item, value)]  # exact, as of integers and floats
        same = np.flatnonzero(np.isin(column.items, equal))
    found = np.zeros(len(column.offsets) - 1, bool)
    found[np.searchsorted(column.offsets, same, "right") - 1] = True
    return found


def content_field(name: str, kind: str) -> str | None:
    """A field of CONTENT of a document of this kind, e.g. `prose:german`: its kind is prose, its language German."""
    what, _, language = kind.partition(":")
    return what if name == "kind" else language or None


def _any_in(mask: Array, n_blocks: int) -> Array:
    """Whether any entry of each block is marked: (b,) bool."""
    from shards.zones import BLOCK

    return np.logical_or.reduceat(mask, np.arange(0, n_blocks * BLOCK, BLOCK))


def _cost(node: Predicate) -> int:
    """Parts that cost little or are near a range come first, so that the others have less to look at."""
    match node:
        case Compare(field="path", op=op) if op != "glob":
            return 0
        case Compare(field=name):
            return 3 if name == "path" else 2 if name in FACTS else 1
        case Glob(pattern=pattern):
            return 0 if shape(pattern).prefix and shape(pattern).exact else 3
        case Not(of=inner):
            return _cost(inner)
        case And(of=parts) | Or(of=parts):
            return max(map(_cost, parts), default=0)
    return 0


def _agreed(answers: Any) -> bool | None:
    """What all answers say; None where they differ."""
    found = set(answers)
    return found.pop() if len(found) == 1 else None
