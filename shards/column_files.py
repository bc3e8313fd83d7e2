"""Metadata columns as an Arrow IPC file, mapped and never copied: any tool that reads Arrow reads them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.arrays import pack_strings
from shards.columns import LISTS, SCALARS, Column, Columns, rest_json
from shards.errors import Corrupt
from shards.types import Array

if TYPE_CHECKING:
    import pyarrow as pa

REST = "rest"  # the field of what no column holds; those of columns have a colon and their kind


class Words(Sequence[str]):
    """The distinct strings of a mapped column; only those that are asked for are decoded."""

    def __init__(self, array: "pa.Array"):
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, i: int) -> str:  # type: ignore[override]
        return self.array[i].as_py()

    def __iter__(self) -> Iterator[str]:
        return iter(self.array.to_pylist())

    def many(self, numbers: Sequence[int]) -> list[str]:
        """Some of them."""
        return _decoded(self.array, numbers)


class _Lists(Sequence[Any]):
    """The items of a mapped column of lists of strings."""

    def __init__(self, array: "pa.Array"):
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, at: slice) -> list[str]:  # type: ignore[override]
        return self.array[at].to_pylist()

    def many(self, numbers: Sequence[int]) -> list[str]:
        """Some of them."""
        return _decoded(self.array, numbers)


def dump(columns: Columns) -> bytes:
    """The bytes of the file: one record batch. The same columns give the same bytes."""
    import pyarrow as pa

    arrays = [_array(column, columns.n) for column in columns.columns]
    fields = [pa.field(f"{c.name}:{c.kind}", array.type) for c, array in zip(columns.columns, arrays, strict=True)]
    if columns.rest:
        texts = [rest_json(columns.rest[place]) if place in columns.rest else None for place in range(columns.n)]
        arrays.append(_strings(texts))
        fields.append(pa.field(REST, pa.large_string()))
    schema = pa.schema(fields)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue().to_pybytes()


class ColumnFile:
    """The columns of a file of n entries, mapped; each is looked at when it is first asked for. Raises Corrupt."""

    def __init__(self, path: Path, n: int):
        import pyarrow as pa

        self.n = n
        try:
            with pa.memory_map(str(path)) as source:
                batch = pa.ipc.open_file(source).get_batch(0)
            if batch.num_rows != n:
                raise pa.ArrowInvalid(f"it has {batch.num_rows:,} rows, the segment {n:,} entries")
        except (pa.ArrowException, ValueError) as error:
            raise Corrupt(f"{str(path)!r} is not a readable file of metadata columns ({error}). Build the index anew.") from error
        self._arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        self._rest_array = self._arrays.pop(REST, None)
        self._fields: dict[str, list[str]] = {}
        for field in self._arrays:
            self._fields.setdefault(field.rpartition(":")[0], []).append(field)
        self._columns: dict[str, Column] = {}

    @property
    def names(self) -> Iterable[str]:
        return self._fields

    def named(self, name: str) -> list[Column]:
        return [self._column(field) for field in self._fields.get(name, ())]

    @cached_property
    def rest(self) -> Mapping[int, Mapping[str, Any]]:
        array = self._rest_array
        if array is None:
            return {}
        places = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist()
        return {place: json.loads(array[place].as_py()) for place in places}

    @property
    def whole(self) -> Columns:
        """All columns, for joining with others."""
        return Columns(self.n, tuple(self._column(field) for field in self._arrays), self.rest)

    def get(self, place: int) -> dict[str, Any]:
        columns = tuple(self._column(field) for field, array in self._arrays.items() if array[place].is_valid)
        array = self._rest_array
        rest = json.loads(array[place].as_py()) if array is not None and array[place].is_valid else {}
        return Columns(self.n, columns, {place: rest}).get(place)

    def get_many(self, places: Array) -> list[dict[str, Any]]:
        return self.whole.get_many(places)

    def _column(self, field: str) -> Column:
        if field not in self._columns:
            self._columns[field] = _column(field, self._arrays[field])
        return self._columns[field]


def _array(column: Column, n: int) -> "pa.Array":
    import pyarrow as pa

    valid = None if column.filled is None else _buffer(np.packbits(column.filled, bitorder="little"))
    if column.kind in LISTS:
        if column.kind == "strings":
            items = _strings(list(column.items))
        else:
            kind, numbers = (pa.int64(), np.int64) if column.kind == "integers" else (pa.float64(), np.float64)
            items = pa.Array.from_buffers(kind, len(column.items), [None, _buffer(np.asarray(column.items, numbers))])
        return pa.LargeListArray.from_buffers(pa.large_list(items.type), n, [valid, _buffer(column.offsets)], children=[items])
    values = np.ascontiguousarray(column.values)
    if column.kind == "boolean":
        return pa.Array.from_buffers(pa.bool_(), n, [valid, _buffer(np.packbits(values, bitorder="little"))])
    if column.kind == "string":
        words = _strings(list(column.words))
        codes = pa.Array.from_buffers(pa.int32(), n, [valid, _buffer(values)])
        return pa.DictionaryArray.from_arrays(codes, words, ordered=True, safe=False)
    types = {"integer": pa.int64(), "float": pa.float64(), "timestamp": pa.timestamp("s", "UTC"), "date": pa.date32()}
    return pa.Array.from_buffers(types[column.kind], n, [valid, _buffer(values)])


def _strings(texts: Sequence[str | None]) -> "pa.Array":
    """As `pa.array`, which would import pandas where that is installed: a second, and 60 MB."""
    import pyarrow as pa

    encoded = [b"" if text is None else text.encode() for text in texts]
    blob, offsets = pack_strings(encoded)
    given = np.array([text is not None for text in texts], bool)
    valid = None if given.all() else _buffer(np.packbits(given, bitorder="little"))
    return pa.Array.from_buffers(pa.large_string(), len(texts), [valid, _buffer(offsets), _buffer(blob)])


def _decoded(array: "pa.Array", numbers: Sequence[int]) -> list[str]:
    """Some texts of a large_string array without nulls: a value of Arrow's own for each takes four times as long."""
    if not len(array):
        return []
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    at = np.asarray(numbers, np.int64)
    text = memoryview(data) if data is not None else memoryview(b"")
    return [str(text[a:b], "utf-8") for a, b in zip(ends[at].tolist(), ends[at + 1].tolist(), strict=True)]


def _buffer(values: Array) -> "pa.Buffer":
    import pyarrow as pa

    return pa.py_buffer(np.ascontiguousarray(values))


def _column(field: str, array: "pa.Array") -> Column:
    name, _, kind = field.rpartition(":")
    n = len(array)
    valid = array.buffers()[0] if array.null_count else None
    filled = None if valid is None else _bits(valid, n)
    if kind in LISTS:
        offsets = np.frombuffer(array.buffers()[1], np.int64)[: n + 1]
        items = _Lists(array.values) if kind == "strings" else array.values.to_numpy()
        return Column(name, kind, filled, items=items, offsets=offsets)
    if kind == "string":
        codes = np.frombuffer(array.indices.buffers()[1], np.int32)[:n] if n else np.zeros(0, np.int32)
        return Column(name, kind, filled, codes, Words(array.dictionary))
    if kind == "boolean":
        return Column(name, kind, filled, _bits(array.buffers()[1], n))
    dtype = SCALARS[kind]
    return Column(name, kind, filled, np.frombuffer(array.buffers()[1], dtype)[:n] if n else np.zeros(0, dtype))


def _bits(buffer: "pa.Buffer", n: int) -> Array:
    return np.unpackbits(np.frombuffer(buffer, np.uint8), count=n, bitorder="little").view(bool)
