"""What a query gave, before it is told to anybody: rows that are made when they are looked at."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, overload

from pydantic_core import PydanticSerializationError, to_json

from shards.nlql import ir

if TYPE_CHECKING:
    from serve.freshness_schema import FreshnessInfo
    from serve.nlql.schema import Facet, Looked, QueryAnswer, QueryRerank, Row
    from shards.nlql.answers import RowAnswer, RowEntry
    from shards.types import LayerStatus

Kind = Literal["document", "chunk", "sentence", "span"]
MANY_ROWS = 2_000  # from which on making them all is done in a thread: some ten milliseconds
HIDDEN = "\0"  # what names of values begin with that come with rows and are not shown; nobody can write it
LARGEST = sys.float_info.max  # beyond which a score is none: JSON has no infinity
WHOLE = frozenset(("ready", "scoped"))  # states of coverage in which nothing was left out


@dataclass(frozen=True, slots=True)
class ResultEntry:
    """Where a row's document lies. mtime: seconds since 1970."""

    source: str
    path: str
    size_bytes: int
    mtime: float


class ResultRow:
    """One row; the properties are the fields of `serve.nlql.schema.Row`. Whoever reranks may add to `scores`, which are this row's alone.

    A view of the answer's columns, which nothing changes: a query without LIMIT gives thousands of rows, of which most callers look at a
    text and a score. Equal to another with the same fields.
    """

    __slots__ = ("_metadata", "_of", "_place", "_scores")

    def __init__(self, of: "_Columns", place: int):
        self._of, self._place = of, place
        self._scores: dict[str, float] | None = None
        self._metadata: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        of = self._of
        if of.by_entry:
            return self._entry.path + of.before
        return f"{self._entry.path}{of.before}{of.ordinals[self._place]}{of.after}"

    @property
    def doc_id(self) -> str:
        return self._entry.path

    @property
    def kind(self) -> Kind:
        return self._of.kind

    @property
    def content(self) -> str:
        return self._of.found.contents[self._place]

    @property
    def metadata(self) -> dict[str, Any]:
        if self._metadata is None:
            self._metadata = dict(self._entry.metadata)
        return self._metadata

    @property
    def scores(self) -> dict[str, float]:
        if self._scores is None:
            found = ((alias, values[self._place]) for alias, values in self._of.let)
            self._scores = {alias: float(value) for alias, value in found if is_number(value)}
        return self._scores

    @property
    def ordinal(self) -> int:
        return 0 if self._of.by_entry else self._of.ordinals[self._place]

    @property
    def span(self) -> tuple[int, int, int] | None:
        spans = self._of.found.spans
        return None if spans is None else tuple(spans[self._place].tolist())

    @property
    def entry(self) -> ResultEntry:
        held = self._entry
        return ResultEntry(held.source, held.path, held.size_bytes, held.mtime_ns / 1e9)

    @property
    def hash(self) -> str:
        return self._entry.hash.hex()

    @property
    def start(self) -> int:
        return int(self._of.found.starts[self._place])

    @property
    def end(self) -> int:
        return int(self._of.found.ends[self._place])

    @property
    def _entry(self) -> "RowEntry":
        return self._of.found.entries[self._of.entries[self._place]]

    def fields(self) -> dict[str, Any]:
        """All of them, by name."""
        return {name: getattr(self, name) for name in FIELDS}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResultRow) and self.fields() == other.fields()

    __hash__ = None  # type: ignore[assignment]  # scores may grow

    def __repr__(self) -> str:
        return f"ResultRow({', '.join(f'{name}={value!r}' for name, value in self.fields().items())})"


FIELDS = ("id", "doc_id", "kind", "content", "metadata", "scores", "ordinal", "span", "entry", "hash", "start", "end")


class _Columns:
    """What the rows of one answer have in common.

    by_entry: whether a row stands for a whole entry, so that its id has no ordinal between `before` and `after`.
    entries, ordinals: of each row. let: aliases that may be shown, and their values.
    """

    def __init__(self, found: "RowAnswer", select: ir.Select, assembled: bool):
        unit, window = select.unit, select.window
        self.found = found
        self.kind: Kind = "span" if window is not None else unit  # type: ignore[assignment]
        self.by_entry = unit == "document" or assembled
        self.before, self.after = f"#{self.kind}:", "" if window is None else f"~{window}"
        if self.by_entry:
            self.before = "#chunk" if assembled else ""
        self.entries, self.ordinals = found.of.tolist(), found.ordinals.tolist()
        self.let = [(alias, values) for alias, values in found.let.items() if alias[:1] != HIDDEN]


class Rows(Sequence[ResultRow]):
    """The rows of an answer, in order, each made when it is first asked for.

    select: what was asked for; assembled: whether a chunk is put together of a document's units.
    """

    def __init__(self, found: "RowAnswer | None", select: ir.Select, assembled: bool):
        self._columns = None if found is None else _Columns(found, select, assembled)
        self._order: Sequence[int] = range(0 if found is None else len(found))
        self._made: dict[int, ResultRow] = {}

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, at: int) -> ResultRow: ...
    @overload
    def __getitem__(self, at: slice) -> "Rows": ...
    def __getitem__(self, at: int | slice) -> "ResultRow | Rows":
        if isinstance(at, slice):
            return self._part(self._order[at])
        place = self._order[at]
        row = self._made.get(place)
        if row is None:
            assert self._columns is not None
            row = self._made.setdefault(place, ResultRow(self._columns, place))
        return row

    def __iter__(self) -> Iterator[ResultRow]:
        return map(self.__getitem__, range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"

    def reordered(self, places: Sequence[int]) -> "Rows":
        """Those of these rows that stand at the given places, in that order."""
        return self._part([self._order[place] for place in places])

    def value(self, at: int, name: str) -> Any:
        """What an expression of the plan's `let` is of a row."""
        assert self._columns is not None
        return self._columns.found.row(self._order[at]).let.get(name)

    def _part(self, order: Sequence[int]) -> "Rows":
        """Some of these rows, which are the same objects in both."""
        part = copy(self)
        part._order = order
        return part


def is_number(value: Any) -> bool:
    """Whether a value of LET is shown among a row's scores."""
    if type(value) is float:  # nearly all are
        return -LARGEST <= value <= LARGEST
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


@dataclass(slots=True)
class Outcome:
    """An answer: as `serve.nlql.schema.QueryAnswer`, with rows that are not made yet. n_searches: that were made for it."""

    corpus: str
    generation: int
    rows: Rows
    facets: "list[Facet]" = field(default_factory=list)
    status: "tuple[LayerStatus, ...]" = ()
    rerank: "QueryRerank | None" = None
    looked_at: "list[Looked]" = field(default_factory=list)
    plan: dict[str, Any] | None = None
    timings_ms: dict[str, float] = field(default_factory=dict)
    n_searches: int = 0
    freshness: "FreshnessInfo | None" = None

    @property
    def complete(self) -> bool:
        """Whether everything was looked at in full."""
        return all(status.state in WHOLE for status in self.status) and all(looked.complete for looked in self.looked_at)

    def answer(self, with_rows: bool = True) -> "QueryAnswer":
        """For who wants it as it crosses HTTP."""
        from serve.nlql.schema import QueryAnswer
        from serve.schema import Coverage

        return QueryAnswer(
            corpus=self.corpus,
            generation=self.generation,
            rows=list(map(row_out, self.rows)) if with_rows else [],
            facets=self.facets,
            complete=self.complete,
            coverage=[
                Coverage(layer=s.space, shard=s.shard, state=s.state, covered=s.covered, total=s.total, reason=s.reason)
                for s in self.status
            ],
            rerank=self.rerank,
            looked_at=self.looked_at,
            plan=self.plan,
            timings_ms=self.timings_ms,
            freshness=self.freshness,
        )

    def json(self) -> bytes:
        """The same as JSON: rows go there straight, for models of 100,000 would take seconds."""
        told = self.answer(with_rows=False).model_dump(mode="json", exclude={"rows"})
        rows = rows_json(self.rows, b",")
        return b'{"rows":[' + rows + b"]," + to_json(told, inf_nan_mode="null")[1:]


def rows_json(rows: Iterable[ResultRow], between: bytes, before: bytes = b"", after: bytes = b"") -> bytes:
    """Rows as JSON objects, each between `before` and `after`."""
    return between.join(before + _row_json(row) + after for row in rows)


def _row_json(row: ResultRow) -> bytes:
    try:
        return to_json(row.fields(), inf_nan_mode="null")
    except PydanticSerializationError:  # a path that is not UTF-8, which is shown with U+FFFD
        return row_out(row).model_dump_json().encode()


def row_out(row: ResultRow) -> "Row":
    """A row as it crosses HTTP."""
    from serve.nlql.schema import Row, RowEntry

    entry = RowEntry(source=row.entry.source, path=row.entry.path, size_bytes=row.entry.size_bytes, mtime=row.entry.mtime)
    return Row(
        id=row.id, doc_id=row.doc_id, kind=row.kind, content=row.content, metadata=row.metadata, scores=row.scores,
        ordinal=row.ordinal, span=row.span, entry=entry, hash=row.hash, start=row.start, end=row.end,
    )  # fmt: skip
