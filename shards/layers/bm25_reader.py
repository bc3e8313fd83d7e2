"""How one segment answers a BM25 question: as its postings do, narrowed to what the query's structure admits."""

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shards.analysis import Analyser
from shards.bm25_index import SegmentIndex
from shards.bm25_matching import Condition, Matching, OutOfTime, match_rows
from shards.documents import Documents
from shards.layers.postings_reader import PostingsReader, TermWeights
from shards.phrases import Together
from shards.plan import SpaceQuery
from shards.postings import WORDS, sealed
from shards.types import Array, Arrays, Budget, Found, Scored

if TYPE_CHECKING:  # imports numba
    from shards.score_kernels import Lists, Postings

DENSE_SHARE = 1 / 8  # of the units: a byte a unit for terms in more of them


@dataclass(frozen=True, slots=True)
class Question(TermWeights):
    """Terms are hashes, and their weights idf.

    average_length: words per unit over the corpus
    pinned: what must stand together; the hit is a unit in which its first word stands. condition: what else must hold of the document
    marks: what shows in an excerpt beside the words of the common text, see `Layer.highlights`
    """

    average_length: float
    pinned: Together | None = None
    condition: Condition | None = None
    marks: tuple[tuple[str, bool, bool], ...] = ()


class _Admitted(NamedTuple):
    """What may be found. rows: (rows,) bool, all that may, of which some may have to be read: by `matching`, and for what is pinned,
    which may begin in `units`, ascending."""

    index: SegmentIndex
    rows: Array
    matching: Matching | None
    units: Array | None

    @property
    def must_read(self) -> bool:
        return self.units is not None or (self.matching is not None and bool((self.matching.possible & ~self.matching.sure).any()))


class _Verified(NamedTuple):
    """Rows that are admitted, best first: scores and units (m,); how many there were in all that was read, and how many candidates the
    deadline left unread."""

    scores: Array
    units: Array
    n_matched: int
    n_unverified: int


class BM25Reader(PostingsReader):
    """One segment's postings, opened. `k1`, `b`: Robertson & Zaragoza 2009, section 3.4. title_weight: as it was built with."""

    def __init__(
        self, arrays: Arrays, documents: Documents, live: Array, k1: float, b: float, title_weight: int, analysers: list[Analyser]
    ):
        super().__init__(arrays, live, WORDS, DENSE_SHARE)
        self._arrays, self._documents = arrays, documents
        self._analysers = tuple(analysers)  # of each kind
        self._k1, self._b, self._title_weight = k1, b, title_weight
        self._lengths = arrays["unit_lengths"]
        self._opened: tuple[float, Postings] | None = None  # for one average length, made when first asked
        self._admitted_last: tuple[Question | None, _Admitted | None] = None, None

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        """The k best rows; see `Reader`.

        What must hold narrows the hits as a scope does: moments remain those of the words. Where texts have to be read, n_matched counts
        the rows found to be right, which is a lower bound: reading stops when the k best are sure.
        """
        question: Question = query.payload
        if question.pinned is None and question.condition is None:
            return super().search(query, allowed, k, budget, floor)
        scope = self._scope(allowed)
        admitted = self._admitted(question, budget)
        narrowed = scope._replace(rows=sealed(scope.rows & admitted.rows), whole=False)
        if not admitted.must_read:
            pass_ = self._scored(question, narrowed, k + 1, floor, budget)
            return self._found(scope, pass_, pass_.units[:k], pass_.scores[:k])
        pass_ = self._scored(question, narrowed, len(scope.rows), -np.inf, budget)  # all rows, for they are read in turn
        verified = self._verified(question, admitted, self._unit_rows[pass_.units], pass_.scores, k, budget)
        return self._found(scope, pass_, verified.units, verified.scores, verified.n_matched, verified.n_unverified)

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        """Scores of the given rows; see `Reader`. -inf where no word of the question occurs, or what must hold does not."""
        question: Question = query.payload
        if question.pinned is None and question.condition is None:
            return super().score(query, rows, budget)
        admitted = self._admitted(question, budget)
        if not admitted.must_read:
            scored = super().score(query, rows, budget)
            right = admitted.rows[rows]
            scores = np.where(right | np.isnan(scored.scores), scored.scores, -np.inf)
            return Scored(scores, np.where(right, scored.starts, 0), np.where(right, scored.ends, 0))
        lists = self._lists(question)
        scores, units = np.full(len(rows), np.nan, np.float64), np.zeros(len(rows), np.int32)
        for i, row in enumerate(np.asarray(rows).tolist()):
            if budget.expired:
                break
            try:
                score, units[i] = self._best_unit(question, lists, admitted, row, budget)
            except OutOfTime:
                break
            scores[i] = score or -np.inf
        return self._spans(scores, units)

    def _postings_for(self, question: Question) -> "Postings":
        """The postings with the norm of each unit, k1 (1 - b + b length/average), kept: the average is fixed within a generation."""
        opened = self._opened
        if opened is None:
            dense = self._dense_lists()
        else:
            average, postings = opened
            if average == question.average_length:
                return postings
            dense = postings.dense
        norms = self._k1 * (1 - self._b + self._b * self._lengths / question.average_length)
        norms = np.maximum(norms, self._kernels.MIN_NORM).astype(np.float32)
        postings = self._kernels.Postings(self._units, self._values, dense, sealed(norms))
        self._opened = (question.average_length, postings)
        return postings

    # What must hold

    def _admitted(self, question: Question, budget: Budget) -> _Admitted:
        """What may be found. Where the deadline leaves it open, all rows may: none is looked at any more."""
        last, admitted = self._admitted_last
        if last is question and admitted is not None:  # a search is followed by scores
            return admitted
        index = SegmentIndex(self._arrays, self._row_offsets, self._documents, self._analysers, self._title_weight)
        rows, matching, units = np.ones(len(self._live), np.bool_), None, None
        try:
            if question.condition is not None:
                matching = match_rows(question.condition, index, budget)
                rows = matching.possible
            if question.pinned is not None:
                units = index.units_where_possible(question.pinned, budget)
                rows = rows & index.rows_of(units)
        except OutOfTime:
            return _Admitted(index, np.ones(len(self._live), np.bool_), None, self._units[:0])
        admitted = _Admitted(index, rows, matching, units)
        if not budget.expired:  # else it may be more than there is
            self._admitted_last = question, admitted
        return admitted

    def _verified(self, question: Question, admitted: _Admitted, rows: Array, bounds: Array, k: int, budget: Budget) -> _Verified:
        """The k best of some rows that are admitted.

        Rows are read in the order given, that of their best unit by words alone, an upper bound (`bounds`), until k are sure.
        """
        found: list[tuple[float, int, int]] = []  # (-score, row, unit), best first
        lists = self._lists(question)
        n_matched = n_unverified = 0
        for i, (row, bound) in enumerate(zip(rows.tolist(), bounds.tolist(), strict=True)):
            if len(found) >= k and -found[k - 1][0] > bound:
                break
            try:
                score, unit = self._best_unit(question, lists, admitted, row, budget)
            except OutOfTime:
                n_unverified = len(rows) - i
                break
            if score:
                n_matched += 1
                bisect.insort(found, (-score, row, unit))
        units = np.array([unit for _, _, unit in found[:k]], np.int64)
        return _Verified(np.array([-score for score, _, _ in found[:k]], np.float64), units, n_matched, n_unverified)

    def _best_unit(self, question: Question, lists: "Lists", admitted: _Admitted, row: int, budget: Budget) -> tuple[float, int]:
        """Score and number of a row's best unit, of those in which stands what is pinned; (0, 0) if there is none, or the row is not
        admitted. Raises OutOfTime."""
        if not admitted.rows[row]:
            return 0.0, 0
        if budget.expired:
            raise OutOfTime
        if admitted.matching is not None and not admitted.matching.holds(row):
            return 0.0, 0
        first, end = int(self._row_offsets[row]), int(self._row_offsets[row + 1])
        units = np.arange(end - first)
        if admitted.units is not None:
            units = admitted.units[slice(*np.searchsorted(admitted.units, (first, end)))] - first
        if not len(units):
            return 0.0, 0
        scores: Array = self._kernels.unit_scores(self._postings_for(question), lists, first, end)
        order = units[np.lexsort((units, -scores[units]))].tolist()
        if question.pinned is None:
            return float(scores[order[0]]), first + order[0]
        for unit in order:
            if budget.expired:
                raise OutOfTime
            if admitted.index.begins_in(question.pinned, row, first + unit):
                return float(scores[unit]), first + unit
        return 0.0, 0
