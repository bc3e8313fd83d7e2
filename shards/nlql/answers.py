"""What shards answer to a query for rows: columns, from which rows are made when they are read."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from shards.nlql.errors import NLQLError
from shards.nlql.plan import RowPlan
from shards.types import Array, LayerStatus

if TYPE_CHECKING:
    from shards.nlql.sorting import SortKeys

ROWS = "rows"  # stands for a space in the coverage of the rows themselves

BLOCK = 512  # rows whose texts and entries are read together

T = TypeVar("T")

_NUMBERED = re.compile(r"(.*)#(\d+)", re.DOTALL)  # `data/x.jsonl#17`, a row of a table


class Insertion(NamedTuple):
    """What entries are ordered by where nothing else does: when they were changed, then source, then path, numbers of rows as numbers."""

    mtime_ns: int
    source: str
    table: str
    row: int
    path: str

    @classmethod
    def of(cls, mtime_ns: int, source: str, path: str) -> "Insertion":
        numbered = _NUMBERED.fullmatch(path)
        return cls(mtime_ns, source, numbered[1] if numbered else path, int(numbered[2]) if numbered else -1, path)


NOWHERE = Insertion(0, "", "", 0, "")


class RowEntry(NamedTuple):
    """The entry that rows are of. path: for pushed documents the id they were pushed under; hash: of the content, 20 bytes."""

    source: str
    path: str
    hash: bytes
    size_bytes: int
    mtime_ns: int
    metadata: Mapping[str, Any]

    @property
    def place(self) -> Insertion:
        return Insertion.of(self.mtime_ns, self.source, self.path)


class InBlocks(Sequence[T]):
    """Things that are made when they are first looked at, `BLOCK` at a time; in another process they arrive made.

    make(low, high): gives those from `low` to before `high` of `n`.
    """

    def __init__(self, n: int, make: Callable[[int, int], Sequence[T]]):
        self._n, self._make = n, make
        self._blocks: dict[int, Sequence[T]] = {}

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, at: int) -> T:  # type: ignore[override]  # no slices: nobody needs them
        if not 0 <= at < self._n:
            raise IndexError(at)
        low = at - at % BLOCK
        if low not in self._blocks:
            self._blocks[low] = self._make(low, min(low + BLOCK, self._n))
        return self._blocks[low][at - low]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class Row(NamedTuple):
    """One row.

    ordinal: of its unit in the document, from 0; of a row that stands for an entry 0. start, end: its span of the rendition, bytes.
    content: its text. span: of SPAN, (first, found, last) ordinals. scores: by the scorer's name, None where it has none.
    let: by alias, the values that the unit has which was found; an alias whose expression fails on it is left out.
    """

    entry: RowEntry
    ordinal: int
    start: int
    end: int
    content: str
    span: tuple[int, int, int] | None
    scores: Mapping[str, float | None]
    let: Mapping[str, Any]


class Failed:
    """Stands for the value of an alias whose expression fails on a row."""

    def __reduce__(self) -> str:
        return "FAILED"


FAILED = Failed()


@dataclass(frozen=True, slots=True)
class Failure:
    """What a row raised. Of several, the one counts that the obvious order of things meets first.

    phase: -1 before any row, 0 in a condition, 1 in a sort key, 2 in a facet, 3 where there are too many. place, ordinal: of the row.
    """

    error: NLQLError
    phase: int
    place: Insertion = NOWHERE
    ordinal: int = 0

    @property
    def order(self) -> tuple[int, Insertion, int]:
        return (self.phase, self.place, self.ordinal)


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """Rows of some shards, best first, as columns of n rows.

    entries: each once; of: (n,) int32, the entry of each row; ordinals: (n,) int32; starts, ends: (n,) int64; contents: n texts
    spans: (n, 3) int32, of SPAN. scores: (scorers, n) float64, NaN where there is none. let: by alias n values, `FAILED` where it fails
    keys: what rows are sorted by; None: order of insertion.
    status: coverage, of the rows themselves under `ROWS` and of each space that is asked, once for each shard: covered, total in entries
    n_matched: rows there are, wanted or not; truncated: whether there are more than are here
    facets: for each of the plan, (value, number of rows), most first, then by value; a list counts once for each of its distinct items
    failure: what a row raised; there are no rows then. n_scored, n_encoded: rows that were scored, and encoded to be scored.
    """

    entries: Sequence[RowEntry] = ()
    of: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    ordinals: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    starts: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    ends: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    contents: Sequence[str] = ()
    spans: Array | None = None
    names: tuple[str, ...] = ()  # of scorers
    scores: Array = field(default_factory=lambda: np.zeros((0, 0)))
    let: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    keys: "SortKeys | None" = None
    status: tuple[LayerStatus, ...] = ()
    n_matched: int = 0
    truncated: bool = False
    facets: tuple[tuple[tuple[Any, int], ...], ...] = ()
    failure: Failure | None = None
    n_scored: int = 0
    n_encoded: int = 0

    def __len__(self) -> int:
        return len(self.of)

    @property
    def error(self) -> NLQLError | None:
        return self.failure.error if self.failure is not None else None

    def places(self) -> list[tuple[Insertion, int]]:
        """What orders rows where keys do not: the place of each one's entry, and its ordinal."""
        return [(self.entries[of].place, ordinal) for of, ordinal in zip(self.of.tolist(), self.ordinals.tolist(), strict=True)]

    def row(self, i: int) -> Row:
        values = self.scores[:, i].tolist()
        return Row(
            entry=self.entries[self.of[i]],
            ordinal=int(self.ordinals[i]),
            start=int(self.starts[i]),
            end=int(self.ends[i]),
            content=self.contents[i],
            span=None if self.spans is None else tuple(self.spans[i].tolist()),
            scores={name: None if value != value else value for name, value in zip(self.names, values, strict=True)},
            let={name: value for name, values in self.let.items() if (value := values[i]) is not FAILED},
        )

    def rows(self) -> Iterator[Row]:
        """The rows, in order."""
        return map(self.row, range(len(self)))


def unlooked(plan: RowPlan, shards: Sequence[int], state: str, reason: str, total: int = 0) -> tuple[LayerStatus, ...]:
    """Coverage that says of everything on these shards that it was not looked at."""
    spaces = dict.fromkeys(scorer.query.space for scorer in plan.scorers if scorer.query is not None)
    return tuple(LayerStatus(name, shard, state, 0, total, reason) for shard in shards for name in (ROWS, *spaces))
