"""Tables whose rows are documents: JSON Lines, CSV, Parquet and SDF, read by a rule that names the columns.

`*.jsonl:text=body,id=id,vector=emb->mine` makes of each row of a matching file an entry `file.jsonl#<id>`: its text is a document like
any other, all other columns are its metadata. What is odd about a row is counted by reason; it never costs the others.
"""

import csv
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from shards import metadata
from shards.errors import BadQuery, BadSpec
from shards.given import rows_of
from shards.plan import glob_regex, lookup
from shards.renditions import Skipped, render
from shards.types import Array

FORMATS = ("jsonl", "ndjson", "csv", "tsv", "parquet", "sdf")
MAX_ID_CHARS = 512
_PEEK_BYTES, _PEEK_ROWS = 1 << 18, 100  # of a table whose columns alone are asked for
SYNTAX = "Write GLOB:text=COLUMN,id=COLUMN,vector=COLUMN->NAME,meta=COLUMN+COLUMN, of which text is needed."

_INTEGER, _NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})"), re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class RowRule:
    """Which files are tables, and what their columns are.

    text: columns whose texts make the document, parted by a blank line. id: the column that names a row; "": its number, from 1.
    vectors: (column, name that the vector is given under). metadata: columns that are; None: all others.
    """

    glob: str
    text: tuple[str, ...]
    id: str = ""
    vectors: tuple[tuple[str, str], ...] = ()
    metadata: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, spelt: str) -> "RowRule":
        """A rule from the command line. Raises BadSpec."""
        glob, colon, columns = spelt.partition(":")
        found: dict[str, list[str]] = {}
        for part in filter(None, columns.split(",")):
            key, eq, value = part.partition("=")
            if not eq or not value or key not in ("text", "id", "vector", "meta"):
                raise BadSpec(f"--rows {spelt!r}: {part!r} is none of text=, id=, vector=, meta=. {SYNTAX}")
            found.setdefault(key, []).append(value)
        if not glob or not colon or "text" not in found:
            raise BadSpec(f"--rows {spelt!r} names no {'text column' if glob and colon else 'files'}. {SYNTAX}")
        if len(found.get("id", ())) > 1:
            raise BadSpec(f"--rows {spelt!r} has two columns of ids. {SYNTAX}")
        try:
            glob_regex(glob)
        except BadQuery as error:
            raise BadSpec(f"--rows {spelt!r}: {error}") from None
        vectors = []
        for value in found.get("vector", ()):
            column, arrow, name = value.partition("->")
            if not column or (arrow and not name):
                raise BadSpec(f"--rows {spelt!r}: vector={value} names no column and space. {SYNTAX}")
            vectors.append((column, name or column))
        split = lambda key: tuple(c for value in found[key] for c in value.split("+")) if key in found else None  # noqa: E731
        return cls(glob, split("text") or (), found.get("id", [""])[0], tuple(vectors), split("meta"))

    def matches(self, path: str) -> bool:
        return glob_regex(self.glob).fullmatch(path) is not None

    def keeps(self, column: str) -> bool:
        """Whether a column of this name, in any case, is metadata."""
        if self.metadata is not None:
            return column.casefold() in map(str.casefold, self.metadata)
        return column.casefold() not in map(str.casefold, self.text)

    def __str__(self) -> str:
        parts = ["text=" + "+".join(self.text)]
        parts += [f"id={self.id}"] * bool(self.id) + [f"vector={column}->{name}" for column, name in self.vectors]
        parts += [] if self.metadata is None else ["meta=" + "+".join(self.metadata)]
        return f"{self.glob}:{','.join(parts)}"


# What an SDF file is read by where no other rule matches it and RDKit is there: its molecules are what it is about.
MOLECULES = RowRule("**/*.[sS][dD][fF]", text=("text",), id="id")


class Row(NamedTuple):
    """One row as it is indexed. text: of its document, not rendered. vectors: (n, dim) float32, by name."""

    id: str
    text: str
    metadata: dict[str, Any]
    vectors: dict[str, Array]


@dataclass(slots=True)
class Table:
    """What a file gave. reason: why it is no table, else "". odd: reason -> (how often, the first row that had it)."""

    rows: list[Row] = field(default_factory=list)
    reason: str = ""
    odd: dict[str, tuple[int, str]] = field(default_factory=dict)

    def note(self, reason: str, where: str) -> None:
        n, first = self.odd.get(reason, (0, where))
        self.odd[reason] = (n + 1, first)


def read_table(path: str, data: bytes, rule: RowRule, dims: Mapping[str, int]) -> Table:
    """The rows of a file. dims: how many numbers the vectors of each name have."""
    table = Table()
    extension = path.rpartition(".")[2].lower()
    if extension not in FORMATS:
        table.reason = f"not a table: choose from {', '.join(FORMATS)}"
        return table
    read = {"csv": _csv, "tsv": _csv, "parquet": _parquet, "sdf": _sdf}.get(extension, _json_lines)
    seen: set[str] = set()
    for number, values in read(path, data, rule, table):
        where = f"row {number:,}"
        key = _id_of(values, rule, number)
        if not key:
            table.note("row without an id" if key is None else "row whose id is no text or integer", where)
        elif key in seen:
            table.note("row whose id occurs before", where)
        elif (text := _text_of(values, rule)) is None:
            table.note("row without text", where)
        else:
            seen.add(key)
            about, reasons = metadata.clean(_metadata_of(values, rule))
            for reason in reasons:
                table.note(reason, where)
            table.rows.append(Row(key, text, about, _vectors_of(values, rule, dims, table, where)))
    return table


def column_names(path: str, data: bytes) -> set[str]:
    """The columns of a table by its first rows; none where it has no rows or is no table."""
    extension = path.rpartition(".")[2].lower()
    read = {"csv": _csv, "tsv": _csv, "jsonl": _json_lines, "ndjson": _json_lines, "parquet": _parquet}.get(extension)
    if read is None:
        return set()
    if len(data) > _PEEK_BYTES and extension != "parquet":
        data = data[: data.rfind(b"\n", 0, _PEEK_BYTES) + 1]
    return {name for _, values in islice(read(path, data, RowRule(path, ()), Table()), _PEEK_ROWS) for name in values}


# --- columns -------------------------------------------------------------------------------------------------------------------


def _value(values: Mapping[str, Any], column: str) -> Any:
    """A column, by its name or, where none is called so, as a path into nested objects."""
    return values[column] if column in values else lookup(values, column)


def _id_of(values: Mapping[str, Any], rule: RowRule, number: int) -> str | None:
    """The row's name; None where it has none, "" where it is none."""
    if not rule.id:
        return str(number)
    value = _value(values, rule.id)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or (isinstance(value, int) and value.bit_length() > 1_000):
        return ""
    text = str(value)
    return text if len(text) <= MAX_ID_CHARS and not any("\ud800" <= c <= "\udfff" for c in text) else ""


def _text_of(values: Mapping[str, Any], rule: RowRule) -> str | None:
    parts = [value for column in rule.text if isinstance(value := _value(values, column), str) and value]
    return "\n\n".join(parts) if parts else None


def _metadata_of(values: Mapping[str, Any], rule: RowRule) -> Mapping[str, Any]:
    if rule.metadata is not None:
        found: dict[str, Any] = {}
        for column in rule.metadata:
            if (value := _value(values, column)) is not None:
                _put(found, column, value)
        return found
    taken = {*rule.text, *(column for column, _ in rule.vectors)}
    return {key: value for key, value in values.items() if key not in taken}


def _put(target: dict[str, Any], dotted: str, value: Any) -> None:
    *above, last = dotted.split(".")
    for step in above:
        inner = target.setdefault(step, {})
        if not isinstance(inner, dict):
            return
        target = inner
    target[last] = value


def _vectors_of(values: Mapping[str, Any], rule: RowRule, dims: Mapping[str, int], table: Table, where: str) -> dict[str, Array]:
    found = {}
    for column, name in rule.vectors:
        given = _value(values, column)
        if given is None:
            continue
        if isinstance(given, str):  # of CSV
            try:
                given = json.loads(given)
            except (ValueError, RecursionError):
                given = ""
        try:
            found[name] = rows_of(given, dims[name])
        except ValueError as error:
            table.note(f"vector left out: {error}", where)
    return found


# --- formats: each yields (number of the row, its columns) -----------------------------------------------------------------------


def _json_lines(path: str, data: bytes, rule: RowRule, table: Table) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 0
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16 or UTF-32
        rendition = render(data)
        data = b"" if isinstance(rendition, Skipped) else rendition.text
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if not line.strip():
            continue
        number += 1
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            table.note("line that is not JSON", f"row {number:,}")
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            table.note("line that is no JSON object", f"row {number:,}")


def _csv(path: str, data: bytes, rule: RowRule, table: Table) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rendition = render(data)
    if isinstance(rendition, Skipped):
        table.reason = rendition.reason
        return
    text = rendition.text.decode()
    first = text.partition("\n")[0]
    delimiter = "\t" if path.lower().endswith("tsv") else ";" if first.count(";") > first.count(",") else ","
    csv.field_size_limit(sys.maxsize)  # 131,072 characters is its default
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    lines: list[tuple[int, list[str]]] = []
    number = -1
    while True:
        number += 1
        try:
            line = next(reader, None)
        except csv.Error:
            table.note("line that is not CSV", f"row {number:,}")
            continue
        if line is None:
            break
        if line:
            lines.append((number, line))
        else:
            number -= 1  # an empty line
    if not lines:
        return
    header = [name.strip() for name in lines[0][1]]
    whole = []
    for number, line in lines[1:]:
        if len(line) == len(header):
            whole.append((number, line))
        else:
            table.note("row with another number of fields than the header", f"row {number:,}")
    taken = {*rule.text, rule.id, *(column for column, _ in rule.vectors)}
    kinds = [str if name in taken else _kind_of_column([line[i] for _, line in whole]) for i, name in enumerate(header)]
    for number, line in whole:
        values: dict[str, Any] = {}
        for name, kind, field_ in zip(header, kinds, line, strict=True):
            if name and field_ != "":
                _put(values, name, field_ if kind is str else kind(field_))
        yield number, values


def _kind_of_column(fields: Sequence[str]) -> Any:
    """What the fields of a column are, the empty ones aside: all integers, all numbers, all true or false, or text."""
    given = [one for one in fields if one != ""]
    if all(map(_INTEGER.fullmatch, given)):
        return int
    if all(map(_NUMBER.fullmatch, given)):
        return float
    if all(one.lower() in ("true", "false") for one in given):
        return lambda one: one.lower() == "true"
    return str


def _parquet(path: str, data: bytes, rule: RowRule, table: Table) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    vectors = {column for column, _ in rule.vectors}
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        for batch in file.iter_batches(4_096):
            columns: dict[str, Sequence[Any]] = {}
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                columns[name] = _vectors_in(array) if name in vectors else _values_in(name, array, table)
            for i in range(batch.num_rows):
                number += 1
                values: dict[str, Any] = {}
                for name, given in columns.items():
                    if given[i] is not None:
                        _put(values, name, given[i])
                yield number, values
    except (pa.ArrowException, OSError, ValueError) as error:
        if not number:
            table.reason = "not readable as Parquet"
        else:
            table.note("rest of a damaged Parquet file", f"after row {number:,}: {error}")


def _sdf(path: str, data: bytes, rule: RowRule, table: Table) -> Iterator[tuple[int, Mapping[str, Any]]]:
    from shards import rdkit_molecules, sdf

    if not rdkit_molecules.available():
        table.reason = f"an SDF file, and RDKit is not installed: {rdkit_molecules.REMEDY}"
        return
    rendition = render(data)
    if isinstance(rendition, Skipped):
        table.reason = rendition.reason
        return
    made = list(sdf.rows(rendition.text.decode()))
    names = dict.fromkeys(name for values, _ in made for name in values)
    taken = {*rule.text, rule.id, "id", "name", "smiles", "inchikey"}
    kinds = {name: str if name in taken else _kind_of_column([values.get(name, "") for values, _ in made]) for name in names}
    for number, (values, odd) in enumerate(made, 1):
        if odd:
            table.note(odd, f"row {number:,}")
        columns: dict[str, Any] = {}
        for name, value in values.items():
            _put(columns, name, value if kinds[name] is str else kinds[name](value))
        yield number, columns


def _values_in(name: str, array: Any, table: Table) -> Sequence[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
        array = array.cast(pa.timestamp("us", array.type.tz), safe=False)
    try:
        return array.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError, NotImplementedError):  # the last: pyarrow's, of types it has no value for
        table.note(f"column left out: its type {array.type} cannot be read", name)
        return [None] * len(array)


def _vectors_in(array: Any) -> Sequence[Any]:
    """The rows of a column of lists, those of numbers as arrays, without a Python object for each number."""
    import pyarrow as pa

    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return array.to_pylist()
    if not pa.types.is_floating(kind.value_type):
        return array.to_pylist()
    return [None if not one.is_valid else one.values.to_numpy(zero_copy_only=False) for one in array]
