"""The metadata of a segment's entries, in whichever form it lies: columns in memory, files, or the JSON of format 1.

Nothing of it is read before it is asked for; and of files, the zones come first, which may say that the columns need not be read.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from shards.arrays import unpack_string
from shards.types import Array

if TYPE_CHECKING:
    from shards.columns import Column, Columns
    from shards.zones import Zones


class ColumnSource(Protocol):
    """Typed columns of n entries, in their order (`Entries.order`): `shards.columns.Columns` or `shards.column_files.ColumnFile`."""

    n: int

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def rest(self) -> "Mapping[int, Mapping[str, Any]]": ...

    @property
    def whole(self) -> "Columns": ...

    def named(self, name: str) -> "list[Column]": ...

    def get(self, place: int) -> dict[str, Any]: ...

    def get_many(self, places: Array) -> list[dict[str, Any]]: ...


class Metadata:
    """Columns and zones, read when first asked for. zones: None where they are made from the columns. n_absent: of how many entries
    none has any, where that is known."""

    def __init__(self, columns: "Callable[[], ColumnSource]", zones: "Callable[[], Zones] | None" = None, n_absent: int | None = None):
        self._columns, self._zones, self._n_absent = columns, zones, n_absent

    @classmethod
    def of(cls, columns: "ColumnSource") -> "Metadata":
        """Of columns in memory."""
        return cls(lambda: columns)

    @classmethod
    def none(cls, n: int) -> "Metadata":
        """Of n entries that have none."""
        return cls(lambda: _columns()(n), n_absent=n)

    @classmethod
    def of_json(cls, blob: Array, offsets: Array, order: Array) -> "Metadata":
        """Of one JSON object an entry, as format 1 keeps it."""

        def decoded() -> "Columns":
            texts = (unpack_string(blob, offsets, row) for row in order.tolist())
            return _columns().of([json.loads(text) if text else {} for text in texts])

        return cls(decoded)

    @cached_property
    def columns(self) -> "ColumnSource":
        return self._columns()

    @cached_property
    def zones(self) -> "Zones":
        if self._zones is not None:
            return self._zones()
        from shards.zones import zones_of

        return zones_of(self.columns.whole)

    @property
    def is_empty(self) -> bool:
        """Whether no entry has any."""
        return self._n_absent is not None or not (self.columns.names or self.columns.rest)

    def get(self, place: int) -> dict[str, Any]:
        """The metadata of the entry at a place of `Entries.order`."""
        return {} if self._n_absent is not None else self.columns.get(place)

    def get_many(self, places: Array) -> list[dict[str, Any]]:
        """The same of several, (m,) int64."""
        return [{} for _ in range(len(places))] if self._n_absent is not None else self.columns.get_many(places)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._n_absent is not None:
            return Metadata.none, (self._n_absent,)
        return Metadata.of, (self.columns.whole,)  # to another process: the columns themselves


def _columns() -> "type[Columns]":
    from shards.columns import Columns

    return Columns
