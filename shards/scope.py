"""Which entries of a segment meet a predicate: a mask per segment, computed once and kept."""

from typing import Any

import numpy as np

from shards.arrays import unpack_string
from shards.documents import Entries
from shards.plan import Compare, Everything, Glob, Nothing, Predicate, compare, fields_of, glob_regex, lookup, matches, simplify
from shards.types import Array

FACTS = ("path", "source", "size_bytes", "mtime", "ext")  # fields that every entry has, beside its metadata


class EntryFields:
    """Field access to the entries of one segment, decoded once: paths as strings, metadata as parsed objects when first read."""

    def __init__(self, entries: Entries):
        self.entries = entries
        self._paths: list[str] | None = None
        self._metadata: list[dict[str, Any]] | None = None

    @property
    def paths(self) -> list[str]:
        if self._paths is None:
            blob, offsets = self.entries.path_blob.tobytes(), self.entries.path_offsets.tolist()
            self._paths = [
                blob[a:b].decode("utf-8", "surrogateescape") for a, b in zip(offsets[:-1], offsets[1:], strict=True)
            ]
        return self._paths

    @property
    def metadata(self) -> list[dict[str, Any]]:
        if self._metadata is None:
            import json

            e = self.entries
            self._metadata = [
                json.loads(raw) if (raw := unpack_string(e.meta_blob, e.meta_offsets, i)) else {} for i in range(len(e))
            ]
        return self._metadata

    def value(self, row: int, name: str) -> Any:
        """A field of one entry as `shards.plan.Compare` names it; None where it is missing."""
        entries = self.entries
        match name:
            case "path":
                return self.paths[row]
            case "source":
                return entries.source_names[entries.sources[row]]
            case "size_bytes":
                return int(entries.sizes[row])
            case "mtime":
                return int(entries.mtimes_ns[row]) / 1e9
            case "ext":
                base = self.paths[row].rpartition("/")[2]
                return base.rpartition(".")[2].lower() if "." in base[1:] else ""
        return lookup(self.metadata[row], name)

    def decide(self, leaf: Predicate) -> bool | None:
        """What this segment knows of a leaf without looking at rows: ranges of sizes and times, the sources there are."""
        entries = self.entries
        if not len(entries):
            return False
        match leaf:
            case Compare(field="source", op="==", value=value):
                if value not in entries.source_names:
                    return False
                return True if len(entries.source_names) == 1 else None
            case Compare(field="size_bytes" | "mtime" as name, op="<" | "<=" | ">" | ">=" as op, value=int() | float() as value):
                column = entries.sizes if name == "size_bytes" else entries.mtimes_ns / 1e9
                ends = {compare(op, float(column.min()), value), compare(op, float(column.max()), value)}
                return ends.pop() if len(ends) == 1 else None
        return None

    def mask(self, where: Predicate) -> Array | None:
        """(entries,) bool of those that meet the predicate; None when all do."""
        where = simplify(where, self.decide)
        n = len(self.entries)
        match where:
            case Everything():
                return None
            case Nothing():
                return np.zeros(n, bool)
            case Glob(pattern=pattern):
                test = glob_regex(pattern).fullmatch
                return np.fromiter((test(path) is not None for path in self.paths), bool, n)
        reads_metadata = bool(fields_of(where) - set(FACTS))
        if reads_metadata:
            self.metadata  # noqa: B018  (decode all at once rather than row by row)
        return np.fromiter((matches(where, self.paths[row], lambda name: self.value(row, name)) for row in range(n)), bool, n)  # noqa: B023
