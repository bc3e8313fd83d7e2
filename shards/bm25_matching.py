"""Which documents of a segment a query's structure admits: sets of rows from postings, and texts read only where those do not decide.

Truth is a document's, not a passage's: `a AND b` is met by one that says a in its first chapter and b in its last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shards.phrases import Together
from shards.types import Array, Budget


@dataclass(frozen=True, slots=True, eq=False)
class Holds:
    """One of these terms occurs. terms: (t,) uint64"""

    terms: Array


@dataclass(frozen=True, slots=True, eq=False)
class OutsideTitle:
    """One of these terms occurs elsewhere than in the title. terms: (t,) uint64; in_title: (t,) uint64, of the same words in titles"""

    terms: Array
    in_title: Array


@dataclass(frozen=True, slots=True)
class Stands:
    """These words stand together. The text tells; postings only where they may."""

    together: Together


@dataclass(frozen=True, slots=True)
class AllOf:
    of: "tuple[Condition, ...]"


@dataclass(frozen=True, slots=True)
class AnyOf:
    of: "tuple[Condition, ...]"


@dataclass(frozen=True, slots=True)
class NotOf:
    of: "Condition"


Condition = Holds | OutsideTitle | Stands | AllOf | AnyOf | NotOf


class Index(Protocol):
    """What of a segment is looked at. Rows are (rows,) bool."""

    def rows_with(self, terms: Array) -> Array:
        """Rows that hold one of the terms."""

    def rows_outside_title(self, terms: Array, in_title: Array) -> Array:
        """Rows that hold one of the terms more often than their title does."""

    def rows_where_possible(self, together: Together, budget: Budget) -> Array:
        """Rows that hold all words of it; more of them, if time runs out."""

    def stands(self, together: Together, row: int) -> bool:
        """Whether a row's text has it."""


class OutOfTime(Exception):
    """The budget ended before the sets were known."""


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """A condition over a segment. possible, sure: (rows,) bool; between them lie rows whose text has to be read."""

    condition: Condition
    parts: "tuple[Matching, ...]"
    index: Index
    possible: Array
    sure: Array

    def holds(self, row: int) -> bool:
        """Whether it is true of a row; reads its text if need be."""
        if self.sure[row] or not self.possible[row]:
            return bool(self.sure[row])
        match self.condition:
            case AllOf():
                return all(part.holds(row) for part in self.parts)
            case AnyOf():
                return any(part.holds(row) for part in self.parts)
            case NotOf():
                return not self.parts[0].holds(row)
            case Stands(together=together):
                return self.index.stands(together, row)
        raise AssertionError(f"{self.condition!r} is known from postings")


def match_rows(condition: Condition, index: Index, budget: Budget) -> Matching:
    """The sets of a condition, bottom up. Raises OutOfTime."""
    if budget.expired:
        raise OutOfTime
    parts: Sequence[Matching] = ()
    match condition:
        case Holds(terms=terms):
            possible = sure = index.rows_with(terms)
        case OutsideTitle(terms=terms, in_title=in_title):
            possible = sure = index.rows_outside_title(terms, in_title)
        case Stands(together=together):
            possible = index.rows_where_possible(together, budget)
            sure = np.zeros_like(possible)
        case NotOf(of=inner):
            parts = [match_rows(inner, index, budget)]
            possible, sure = ~parts[0].sure, ~parts[0].possible
        case AllOf(of=conditions) | AnyOf(of=conditions):
            combine = np.logical_and if isinstance(condition, AllOf) else np.logical_or
            parts = [match_rows(each, index, budget) for each in conditions]
            possible = combine.reduce([part.possible for part in parts])
            sure = combine.reduce([part.sure for part in parts])
    return Matching(condition, tuple(parts), index, possible, sure)
