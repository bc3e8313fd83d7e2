"""A segment as a query's structure looks at it: which rows and units hold a term, and whether words stand together in a text."""

from dataclasses import dataclass, field

import numpy as np

from shards.analysis import Analyser
from shards.documents import Documents
from shards.phrases import Slot, Together, TogetherFinder
from shards.postings import term_hash, title_term
from shards.titles import titles
from shards.types import Array, Arrays, Budget


@dataclass(frozen=True)
class SegmentIndex:
    """One per query, for it remembers the tokens it has read (`bm25_matching.Index`).

    arrays: of the space (`shards.postings`); row_offsets: (rows + 1,) int64, the units of each row; analysers: of each kind;
    title_weight: as the arrays were built with
    """

    arrays: Arrays
    row_offsets: Array
    documents: Documents
    analysers: tuple[Analyser, ...]
    title_weight: int
    _finders: dict[Analyser, TogetherFinder] = field(default_factory=dict)

    def rows_of(self, units: Array) -> Array:
        """The rows that units are of: (rows,) bool."""
        rows = np.zeros(len(self.documents), np.bool_)
        rows[self.arrays["unit_rows"][units]] = True
        return rows

    def rows_with(self, terms: Array) -> Array:
        """Rows that hold one of the terms."""
        rows = np.zeros(len(self.documents), np.bool_)
        for term in terms:
            rows[self.arrays["unit_rows"][self.arrays["posting_units"][self._place(term)]]] = True
        return rows

    def rows_outside_title(self, terms: Array, in_title: Array) -> Array:
        """Rows that hold one of the terms more often than their title does.

        Counts end at 255: a word that a unit holds so often does stand outside, too.
        """
        rows = np.zeros(len(self.documents), np.bool_)
        units, tfs = self.arrays["posting_units"], self.arrays["posting_tfs"]
        for term, of_title in zip(terms, in_title, strict=True):
            at, titled = self._place(term), self._place(of_title)
            outside = tfs[at].astype(np.int64)
            outside[np.searchsorted(units[at], units[titled])] -= self.title_weight * tfs[titled].astype(np.int64)
            rows[self.arrays["unit_rows"][units[at][(outside > 0) | (tfs[at] == 255)]]] = True
        return rows

    def rows_where_possible(self, together: Together, budget: Budget) -> Array:
        """Rows in whose text it may stand; more of them, if time runs out."""
        if together.field != "title":
            return self.rows_of(self.units_where_possible(together, budget))
        rows = np.zeros(len(self.documents), np.bool_)
        for operands in together.operands.values():
            slots = [self.rows_with(_hashed(slot)) for operand in operands for slot in operand]
            rows |= np.logical_and.reduce(slots)
        return rows

    def units_where_possible(self, together: Together, budget: Budget) -> Array:
        """Units in which it may begin, ascending: (c,) int32 or int64.

        They hold its first word, and the units that it can reach hold all others. At the deadline it stays at the words looked at: a
        superset, verified like any other.
        """
        unit_rows = self.arrays["unit_rows"]
        possible = [self.arrays["posting_units"][:0]]
        for language, operands in together.operands.items():
            of_kind = np.array([analyser.language == language for analyser in self.analysers], np.bool_)
            begins = self._units_of(operands[0][0])
            begins = begins[of_kind[self.documents.kinds[unit_rows[begins]]]]
            first, end = self._within(begins, together.reach(language), bool(together.distances))
            others = {slot for operand in operands for slot in operand} - {operands[0][0]}
            for units in sorted(map(self._units_of, others), key=len):
                if budget.expired or not len(begins):
                    break
                following = np.searchsorted(units, first)
                holds = following < len(units)
                holds[holds] = units[following[holds]] < end[holds]
                begins, first, end = begins[holds], first[holds], end[holds]
            possible.append(begins)
        return possible[1] if len(possible) == 2 else np.unique(np.concatenate(possible))

    def _within(self, units: Array, n_words: int, both_sides: bool) -> tuple[Array, Array]:
        """The units [first, end) of the same row that so many words from some units on can reach, int64.

        A unit holds a word or more, or none at all: rules, base64.
        """
        with_words = np.flatnonzero(self.arrays["unit_lengths"])
        at = np.searchsorted(with_words, units)
        first = with_words[np.maximum(at - n_words, 0)] if both_sides else units.astype(np.int64)
        end = np.append(with_words, len(self.arrays["unit_rows"]))[np.minimum(at + n_words, len(with_words))]
        rows = self.arrays["unit_rows"][units]
        return np.maximum(first, self.row_offsets[rows]), np.minimum(end, self.row_offsets[rows + 1])

    def stands(self, together: Together, row: int) -> bool:
        """Whether a row's text has it."""
        operands = together.operands.get(self._analyser(row).language)
        if not operands:
            return False
        if together.field == "title":
            first, last = self._title(row)
            return self._finder(row).begins_in(together, self.documents.content(row)[first:last], 0, last - first)
        lists = np.unique(np.concatenate([self._of_row(term_hash(term), row) for term in operands[0][0]]))
        return any(self.begins_in(together, row, unit) for unit in lists.tolist())

    def begins_in(self, together: Together, row: int, unit: int) -> bool:
        """Whether it stands in a row's text so that its first word is in this unit."""
        start, end = int(self.arrays["unit_starts"][unit]), int(self.arrays["unit_ends"][unit])
        if together.field == "body":
            start = min(max(start, self._title(row)[1]), end)
        return self._finder(row).begins_in(together, self.documents.content(row), start, end)

    def _place(self, term: int) -> slice:
        """Where the postings of a term lie."""
        vocabulary, offsets = self.arrays["term_hashes"], self.arrays["term_offsets"]
        number = int(np.searchsorted(vocabulary, np.uint64(term)))
        if number == len(vocabulary) or vocabulary[number] != term:
            return slice(0, 0)
        return slice(int(offsets[number]), int(offsets[number + 1]))

    def _of_row(self, term: int, row: int) -> Array:
        """The units of a row that hold a term."""
        units = self.arrays["posting_units"][self._place(term)]
        return units[slice(*np.searchsorted(units, self.row_offsets[row : row + 2]))]

    def _units_of(self, slot: Slot) -> Array:
        """The units that hold one of some terms, ascending."""
        lists = [self.arrays["posting_units"][self._place(term_hash(term))] for term in slot]
        return lists[0] if len(lists) == 1 else np.unique(np.concatenate([self.arrays["posting_units"][:0], *lists]))

    def _title(self, row: int) -> tuple[int, int]:
        starts, ends = titles(self.documents, np.array([row]))
        begin = self.documents.starts[row]
        return int(starts[0] - begin), int(ends[0] - begin)

    def _analyser(self, row: int) -> Analyser:
        return self.analysers[self.documents.kinds[row]]

    def _finder(self, row: int) -> TogetherFinder:
        analyser = self._analyser(row)
        if analyser not in self._finders:
            self._finders[analyser] = TogetherFinder(analyser)
        return self._finders[analyser]


def _hashed(slot: Slot) -> Array:
    return np.array([term_hash(title_term(term)) for term in slot], np.uint64)
