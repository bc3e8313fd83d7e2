"""The values that travel between our own processes: frozen, slotted, without behaviour beyond their own arithmetic."""

import math
import operator
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]  # what a layer keeps of one segment: named arrays, mapped from one file

N_CANDIDATES = 100  # documents that each space contributes to a query; EVIDENCE: nDCG is flat from 50 to 200
EXCERPT_BYTES = 320  # of an excerpt, about: some lines


Made = TypeVar("Made", bound=type)


def pickled_as_made(cls: Made) -> Made:
    """A dataclass whose objects are pickled as the arguments that they are made of. Texts of a thousand hits take 3 ms to write and 4 to
    read, in which no other thread runs; as dataclasses with slots do it, 22 and 11."""
    values = operator.attrgetter(*(one.name for one in fields(cls)))
    setattr(cls, "__reduce__", lambda self: (cls, values(self)))  # noqa: B010
    return cls


@pickled_as_made
@dataclass(frozen=True, slots=True)
class Entry:
    """One place where a document was found: what filters and result rows see.

    source: name of the corpus's source; path: relative to its root, `/`-separated.
    hash: content hash of the document. size_bytes, mtime_ns, etag: as listed (etag "" where the source has none).
    metadata: JSON values only.
    """

    source: str
    path: str
    hash: bytes
    size_bytes: int
    mtime_ns: int
    etag: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Budget:
    """Time left for one piece of work; checked inside every loop, never relied on from outside.

    A deadline is an instant of this process's monotonic clock; between processes send `remaining_s`.
    """

    __slots__ = ("deadline",)

    def __init__(self, seconds: float = math.inf):
        self.deadline = time.monotonic() + seconds

    @property
    def remaining_s(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self.deadline

    def sooner(self, seconds: float) -> "Budget":
        """One that ends so many seconds before this one does, whenever that is: also if it is ended early."""
        return _Sooner(self, seconds)


class _Sooner(Budget):
    """See `Budget.sooner`. Asks the one it is part of: a copy of its deadline would go on when that is called off."""

    __slots__ = ("_of", "_seconds")

    def __init__(self, of: Budget, seconds: float):
        self._of, self._seconds = of, seconds

    @property
    def remaining_s(self) -> float:
        return self._of.remaining_s - self._seconds

    @property
    def expired(self) -> bool:
        return self._of.remaining_s <= self._seconds


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of scores: a mergeable sum, in float64.

    Merged by Chan, Golub & LeVeque 1983 (as in EVIDENCE.md step 1); never by raw sums of squares.
    """

    n: int = 0
    mean: float = 0.0
    m2: float = 0.0

    def __add__(self, other: "Moments") -> "Moments":
        if not other.n:
            return self
        if not self.n:
            return other
        n = self.n + other.n
        delta = other.mean - self.mean
        return Moments(n, self.mean + delta * other.n / n, self.m2 + other.m2 + delta * delta * self.n * other.n / n)

    @classmethod
    def of(cls, scores: Array) -> "Moments":
        """The moments of a one-dimensional array of scores."""
        if not len(scores):
            return cls()
        values = scores.astype(np.float64)
        mean = float(values.mean())
        return cls(len(values), mean, float(np.square(values - mean).sum()))

    @property
    def sd(self) -> float:
        return math.sqrt(max(self.m2, 0.0) / self.n) if self.n else 0.0


def merge_moments(parts: Iterable[Moments | None]) -> Moments | None:
    """All parts' moments as one; the same bits for any order of the parts, and None if none has any.

    Sums are exactly rounded (Shewchuk's `math.fsum`), because Chan's pairwise update depends on the order of arrival.
    """
    filled = [part for part in parts if part is not None and part.n]
    if not filled:
        return None
    n = sum(part.n for part in filled)
    mean = math.fsum(part.n * part.mean for part in filled) / n
    m2 = math.fsum(part.m2 for part in filled) + math.fsum(part.n * (part.mean - mean) ** 2 for part in filled)
    return Moments(n, mean, m2)


@dataclass(frozen=True, slots=True)
class Found:
    """What one reader found in one segment, rows in order of score (descending), then row.

    rows: (m,) int32, documents or entries of the segment (the layer's `over`), each at most once, m <= k
    scores: (m,) float64, the layer's raw score of the row's best unit, computed in canonical order (the same bits on any
        shard count)
    starts, ends: (m,) int64, the best unit's span in the document's rendition, bytes; both 0 for a whole path
    n_matched: units above the layer's own notion of no match, counted over `allowed` rows (text: matching lines)
    moments: of the scores of all live units of the segment, whatever the filter; None for rarity layers
    rows_covered, rows_total: how many of the allowed rows were really looked at
    """

    rows: Array
    scores: Array
    starts: Array
    ends: Array
    n_matched: int
    moments: Moments | None
    rows_covered: int
    rows_total: int


@dataclass(frozen=True, slots=True)
class Scored:
    """A reader's scores for given rows, in their order: the best unit of each.

    scores: (m,) float64, nan where the row was not scored (budget ended) and -inf where the layer says "no match at all"
        (a word that does not occur, a pattern that does not match); starts, ends as in `Found`.
    """

    scores: Array
    starts: Array
    ends: Array


@pickled_as_made
@dataclass(frozen=True, slots=True)
class LayerStatus:
    """Coverage of one space on one shard: never let "nothing found" be mistaken for "not looked".

    state: ready | scoped (built for some paths only, as its spec says) | late (budget ended) | failed | missing (shard or host
        gone) | absent (not built here) | known (of a question that was not searched for, since an earlier round was).
    covered, total: documents (or entries) of the scope looked at, of those there are; reason: why not all, else "".
    seconds: of searching, and of scoring what others found; on_the_fly_s: what scoring documents without an index took beside.
    """

    space: str
    shard: int
    state: str
    covered: int
    total: int
    reason: str = ""
    seconds: float = 0.0
    on_the_fly_s: float = 0.0


@pickled_as_made
@dataclass(frozen=True, slots=True)
class Excerpt:
    """A piece of a rendition around a span: text from byte `start` to `end`, `line` the 1-based line of `start`.

    column: of the piece's first character in that line, from 1; 0 where the line began too far away to be counted.
    places: the pages, cells and so on that it goes through (`shards/places.py`), with the byte of the piece where each begins.
    """

    start: int
    end: int
    line: int
    text: str
    places: tuple[tuple[int, str], ...] = ()
    column: int = 0


class LinesAround(NamedTuple):
    """How much of a document is shown of a hit, as grep's -B and -A say it: so many whole lines before and after those of the span."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Derived:
    """A text about bytes [start, end) of a document that is not in it: what a derived space found it by.

    kind: context, question, summary; generator: who made it, "extractive" or the name of a model.
    """

    space: str
    kind: str
    generator: str
    text: str
    start: int
    end: int


@pickled_as_made
@dataclass(frozen=True, slots=True)
class Detail:
    """What a result row shows of a document beside its scores.

    entries: all live ones, those inside the scope first; excerpts: by span asked, in that order. size_bytes: of the rendition.
    derived: of each derived space that was asked, the text that gave the document its score.
    """

    hash: bytes
    entries: tuple[Entry, ...]
    size_bytes: int
    kind: str
    excerpts: dict[tuple[int, int], Excerpt]
    derived: tuple[Derived, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidates:
    """One host's answer to one plan: its best documents, each scored by every space of the plan.

    Let n be the number of candidates and s that of the plan's queries, in the plan's order.
    hashes: (n, 20) uint8, distinct, ascending
    generated: (n, s) bool, whether the space's own search brought the document among its best `n_candidates`
    scores: (n, s) float64 raw scores of the document's best unit; -inf where the space says "no match at all", nan where it
        was not scored. starts, ends: (n, s) int64, that unit's span
    moments: per space, over all live units of the shards asked; None for rarity layers
    n_matched: (s,) int64, units matched in the scope
    status: coverage per space and shard, of several questions to one space in the plan's order; details: for the best documents of
        each space only
    """

    hashes: Array
    generated: Array
    scores: Array
    starts: Array
    ends: Array
    moments: tuple[Moments | None, ...]
    n_matched: Array
    status: tuple[LayerStatus, ...]
    details: dict[bytes, Detail] = field(default_factory=dict)
