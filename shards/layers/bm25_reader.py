"""How one segment answers a BM25 question: as its postings do, and by reading where phrases are asked for."""

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shards.analysis import Analyser
from shards.documents import Documents
from shards.layers.postings_reader import PostingsReader, TermWeights
from shards.phrases import PhraseFinder
from shards.plan import SpaceQuery
from shards.postings import WORDS, sealed, term_hash
from shards.types import Array, Arrays, Budget, Found, Scored

if TYPE_CHECKING:  # imports numba
    from shards.score_kernels import Lists, Postings

DENSE_SHARE = 1 / 8  # of the units: a byte a unit for terms in more of them

Phrase = dict[str, tuple[str, ...]]  # analyser's language -> terms that must stand one after the other


@dataclass(frozen=True, slots=True)
class Question(TermWeights):
    """Terms are hashes, and their weights idf.

    average_length: words per unit over the corpus
    phrases: each must begin in the unit; phrase_bytes: how far beyond it they may reach
    """

    average_length: float
    phrases: tuple[Phrase, ...] = ()
    phrase_bytes: int = 0


class _Verified(NamedTuple):
    """Rows that hold the phrases, best first: scores and units (m,); how many there were in all that was read, and how many
    candidates the deadline left unread."""

    scores: Array
    units: Array
    n_matched: int
    n_unverified: int


class _OutOfTime(Exception):
    """The budget ended in the middle of a row, which therefore has no score."""


class BM25Reader(PostingsReader):
    """One segment's postings, opened. `k1`, `b`: Robertson & Zaragoza 2009, section 3.4."""

    def __init__(self, arrays: Arrays, documents: Documents, live: Array, k1: float, b: float, analysers: list[Analyser]):
        super().__init__(arrays, live, WORDS, DENSE_SHARE)
        self._documents = documents
        self._analysers = analysers  # of each kind
        self._k1, self._b = k1, b
        self._lengths = arrays["unit_lengths"]
        self._opened: tuple[float, Postings] | None = None  # for one average length, made when first asked
        self._places: Array | None = None  # where each unit begins in the segment's text, computed when first asked

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        """The k best rows; see `Reader`.

        Phrases narrow the hits as a scope does: moments remain those of the words. Then n_matched counts the rows found to hold
        the phrases, which is a lower bound: reading stops when the k best are sure.
        """
        question: Question = query.payload
        if not question.phrases:
            return super().search(query, allowed, k, budget, floor)
        scope = self._scope(allowed)
        possible = self._phrase_units(question, budget)
        wanted = np.zeros_like(scope.rows)
        wanted[self._unit_rows[possible]] = True
        # All rows, for they are read in turn.
        pass_ = self._scored(question, scope._replace(rows=sealed(wanted & scope.rows), whole=False), len(wanted), -np.inf, budget)
        lists = self._lists(question)
        verified = self._verified(question, lists, possible, self._unit_rows[pass_.units], pass_.scores, k, budget)
        return self._found(scope, pass_, verified.units, verified.scores, verified.n_matched, verified.n_unverified)

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        """Scores of the given rows; see `Reader`. -inf where no word of the question occurs, or a phrase does not."""
        question: Question = query.payload
        if not question.phrases:
            return super().score(query, rows, budget)
        lists, possible = self._lists(question), self._phrase_units(question, budget)
        finders = [PhraseFinder(analyser) for analyser in self._analysers]
        scores, units = np.full(len(rows), np.nan, np.float64), np.zeros(len(rows), np.int32)
        for i, row in enumerate(np.asarray(rows).tolist()):
            if budget.expired:
                break
            try:
                score, units[i] = self._best_with_phrases(question, lists, possible, row, finders, budget)
            except _OutOfTime:
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

    def _unit_scores(self, question: Question, lists: "Lists", first: int, end: int) -> Array:
        scores: Array = self._kernels.unit_scores(self._postings_for(question), lists, first, end)
        return scores

    # Phrases

    def _postings(self, term: str) -> Array:
        """The units of one term, ascending."""
        key = np.uint64(term_hash(term))
        number = int(np.searchsorted(self._vocabulary, key))
        if number == len(self._vocabulary) or self._vocabulary[number] != key:
            return self._units[:0]
        return self._units[self._term_offsets[number] : self._term_offsets[number + 1]]

    def _phrase_units(self, question: Question, budget: Budget) -> Array:
        """Units in which every phrase may begin, ascending: (c,) int32 or int64; there must be a phrase.

        They hold its first word, and the units that it can reach hold all others. At the deadline it stays at the words looked
        at: a superset, verified like any other.
        """
        units: Array | None = None
        if self._places is None:
            self._places = self._documents.starts[self._unit_rows] + self._unit_starts
        for phrase in question.phrases:
            possible = []
            for language, terms in phrase.items():
                of_kind = np.array([analyser.language == language for analyser in self._analysers], np.bool_)
                begins = self._postings(terms[0])
                if units is not None:
                    begins = begins[_among(begins, units)]
                begins = begins[of_kind[self._documents.kinds[self._unit_rows[begins]]]]
                rows = self._unit_rows[begins]
                reach = self._documents.starts[rows] + self._unit_ends[begins] + question.phrase_bytes
                last = np.minimum(np.searchsorted(self._places, reach), self._row_offsets[rows + 1])  # exclusive
                for postings in sorted(map(self._postings, set(terms[1:])), key=len):
                    if budget.expired or not len(begins):
                        break
                    following = np.searchsorted(postings, begins)
                    holds = following < len(postings)
                    holds[holds] = postings[following[holds]] < last[holds]
                    begins, last = begins[holds], last[holds]
                possible.append(begins)
            units = possible[0] if len(possible) == 1 else np.unique(np.concatenate([self._units[:0], *possible]))
        assert units is not None
        return units

    def _verified(
        self, question: Question, lists: "Lists", possible: Array, rows: Array, bounds: Array, k: int, budget: Budget
    ) -> _Verified:
        """The k best of some rows whose text holds the phrases.

        Rows are read in the order given, that of their best unit by words alone, an upper bound (`bounds`), until k are sure.
        """
        found: list[tuple[float, int, int]] = []  # (-score, row, unit), best first
        finders = [PhraseFinder(analyser) for analyser in self._analysers]
        n_matched = n_unverified = 0
        for i, (row, bound) in enumerate(zip(rows.tolist(), bounds.tolist(), strict=True)):
            if len(found) >= k and -found[k - 1][0] > bound:
                break
            try:
                score, unit = self._best_with_phrases(question, lists, possible, row, finders, budget)
            except _OutOfTime:
                n_unverified = len(rows) - i
                break
            if score:
                n_matched += 1
                bisect.insort(found, (-score, row, unit))
        units = np.array([unit for _, _, unit in found[:k]], np.int64)
        return _Verified(np.array([-score for score, _, _ in found[:k]], np.float64), units, n_matched, n_unverified)

    def _best_with_phrases(
        self, question: Question, lists: "Lists", possible: Array, row: int, finders: list[PhraseFinder], budget: Budget
    ) -> tuple[float, int]:
        """Score and number of a row's best unit in which every phrase begins; (0, 0) if there is none. Raises _OutOfTime."""
        kind = self._documents.kinds[row]
        first, end = int(self._row_offsets[row]), int(self._row_offsets[row + 1])
        units = possible[slice(*np.searchsorted(possible, (first, end)))] - first
        if not len(units):
            return 0.0, 0
        phrases = [phrase[self._analysers[kind].language] for phrase in question.phrases]
        scores = self._unit_scores(question, lists, first, end)
        content = self._documents.content(row)
        for unit in units[np.lexsort((units, -scores[units]))].tolist():
            if budget.expired:
                raise _OutOfTime
            start, stop = int(self._unit_starts[first + unit]), int(self._unit_ends[first + unit])
            text = bytes(content[start : stop + question.phrase_bytes])
            if all(finders[kind].begins_in(phrase, text, stop - start) for phrase in phrases):
                return float(scores[unit]), first + unit
        return 0.0, 0


def _among(values: Array, others: Array) -> Array:
    """Which of the values are among the others, ascending and distinct: (n,) bool."""
    places = np.searchsorted(others, values)
    known = places < len(others)
    known[known] = others[places[known]] == values[known]
    return known
