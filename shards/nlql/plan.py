"""What shards are asked for rows: a query of NLQL as data, planned, with every question prepared once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from shards.identity import HASH_BYTES
from shards.nlql.ir import Binding, Expr, SortKey
from shards.plan import Everything, Predicate, SpaceQuery
from shards.types import Array

MOST_ROWS, MOST_BYTES = 100_000, 64 << 20  # of an answer, counted over all shards: it is held in memory by everybody on its way


@dataclass(frozen=True, slots=True)
class Cut:
    """What documents are cut into.

    unit: sentence, chunk, document, passage, or the name of a registered splitter. space: of vectors, whose units these are; documents
    that it lacks are cut by its dials at query time. "": all are cut at query time; then `unit` is not passage.
    """

    unit: str
    space: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """A number for each of some documents. hashes: their content hashes, ascending, one after the other; numbers: float64 of each."""

    hashes: bytes
    numbers: bytes

    @classmethod
    def of(cls, numbers: Mapping[bytes, float]) -> "Given":
        """Of numbers by content hash."""
        hashes = sorted(numbers)
        return cls(b"".join(hashes), np.array([numbers[key] for key in hashes], np.float64).tobytes())

    def arrays(self) -> tuple[Array, Array]:
        """(n, 20) uint8, ascending; (n,) float64."""
        return np.frombuffer(self.hashes, np.uint8).reshape(-1, HASH_BYTES), np.frombuffer(self.numbers, np.float64)


@dataclass(frozen=True, slots=True)
class Scorer:
    """A number for each row, which expressions read as `Ref(name)`.

    name: "#0", "#1", …, which nobody can write. missing: what a row has that the score says nothing of; None: null.
    unit: how the row's own text lies to the question: its vector's product with the question's where the units of `query.space` are
        the rows', else the best of those that overlap the row. encode: rows are finer than that space's units, and are encoded with
        the space's encoder when they are asked for.
    document: the layer's raw score of the row's document; of its entry in layers over entries.
    given: as it was given, by document.
    """

    name: str
    kind: Literal["unit", "document", "given"]
    query: SpaceQuery | None = None
    missing: float | None = None
    given: Given | None = None
    encode: bool = False


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A query for rows: (entry, unit), the same for every shard.

    unit: what is returned: document, chunk or sentence. base: what `filter`, `order_by` and scores look at. Where the two differ, a row
        stands for an entry: a document with its best unit's scores, or a chunk made of all its units that pass, best first.
    window: of SPAN, units of the same document on either side that are shown with the one that was found.
    where: the scope that was asked for beside the query. among: content hashes, one after the other, of the documents that count;
        None: all. filter: what must hold, in this order; later ones are not asked of rows that an earlier one refuses.
    let: expressions by name, without cycles; their values come with the rows. order_by: empty: in order of insertion, as are ties.
    n_rows: how many are wanted, best first; None: all. facets: expressions whose values are counted over all rows there are.
    field_types: declared types by dotted path of metadata.
    """

    unit: Literal["document", "chunk", "sentence"]
    base: Cut
    window: int | None = None
    scorers: tuple[Scorer, ...] = ()
    where: Predicate = field(default_factory=Everything)
    among: bytes | None = None
    filter: tuple[Expr, ...] = ()
    let: tuple[Binding, ...] = ()
    order_by: tuple[SortKey, ...] = ()
    n_rows: int | None = None
    facets: tuple[Expr, ...] = ()
    field_types: tuple[tuple[str, str], ...] = ()
    budget_s: float = 10.0

    @property
    def by_entry(self) -> bool:
        """Whether a row stands for a whole entry, not for one unit of the base."""
        same = self.unit == self.base.unit or (self.unit == "chunk" and self.base.unit == "passage")
        return self.unit == "document" or not same
