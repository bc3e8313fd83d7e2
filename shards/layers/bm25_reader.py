"""How one segment answers a BM25 question: every live unit is scored, window by window, which yields the exact null as well.

Term-at-a-time within windows of units small enough for the cache, all terms of one window before the next: when time runs
out, the windows done are completely scored and the rest is honestly not covered.
"""

import bisect
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shards.analysis import Analyser
from shards.documents import Documents
from shards.phrases import PhraseFinder
from shards.plan import SpaceQuery
from shards.postings import sealed, term_hash
from shards.types import Array, Arrays, Budget, Found, Moments, Scored

if TYPE_CHECKING:  # imports numba
    from shards.score_kernels import Lists, Postings

WINDOW = 16_384  # units; 64 kB of scores and as much of norms stay in the second-level cache
DENSE_SHARE = 1 / 8  # of the units: terms in more of them are kept in memory as a byte a unit, which is added many at a time
MIN_CANDIDATES = 32  # rows held while the k best are sought
SLICE_POSTINGS = 500_000  # postings between two looks at the clock: about a millisecond
SLICE_ROWS = 256  # rows scored between two looks at the clock

Phrase = dict[str, tuple[str, ...]]  # analyser's language -> terms that must stand one after the other


@dataclass(frozen=True, slots=True)
class Question:
    """What a segment is asked.

    terms: (t,) uint64 term hashes, ascending (the canonical order of summation); weights: (t,) float32, their idf
    average_length: words per unit over the corpus
    phrases: each must begin in the unit; phrase_bytes: how far beyond it they may reach
    """

    terms: Array
    weights: Array
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


class _Pass(NamedTuple):
    """The best rows by words alone: units (m,) int32 and scores (m,) float64, by score descending, then row; units that matched;
    moments of all; and how many rows, of the first, had all their units scored."""

    units: Array
    scores: Array
    n_matched: int
    moments: Moments
    n_rows: int


class _OutOfTime(Exception):
    """The budget ended in the middle of a row, which therefore has no score."""


class _Scratch(threading.local):
    """The scores of one window, kept by a thread: zeros between searches."""

    def __init__(self) -> None:
        self._scores = np.zeros(0, np.float32)

    def of(self, n_units: int) -> Array:
        if len(self._scores) < n_units:
            self._scores = np.zeros(n_units, np.float32)
        return self._scores[:n_units]


_scratch = _Scratch()


class BM25Reader:
    """One segment's postings, opened. `k1`, `b`: Robertson & Zaragoza 2009, section 3.4."""

    def __init__(self, arrays: Arrays, documents: Documents, live: Array, k1: float, b: float, analysers: list[Analyser]):
        from shards import score_kernels  # imports numba

        self._kernels = score_kernels
        self._documents = documents
        self._analysers = analysers  # of each kind
        self._k1, self._b = k1, b
        self._term_hashes = sealed(arrays["term_hashes"])
        self._term_offsets = sealed(arrays["term_offsets"])
        self._units = sealed(arrays["posting_units"])
        self._tfs = sealed(arrays["posting_tfs"])
        self._unit_rows = sealed(arrays["unit_rows"])
        self._unit_starts, self._unit_ends = sealed(arrays["unit_starts"]), sealed(arrays["unit_ends"])
        self._lengths = arrays["unit_lengths"]
        self._in_scope = arrays["in_scope"]
        self._live = sealed(live)
        self._unit_live = sealed(self._live[self._unit_rows])
        self._row_offsets = sealed(np.searchsorted(self._unit_rows, np.arange(len(live) + 1)).astype(np.int64))
        self.n_units = np.count_nonzero(self._unit_live)
        self._kernel_units = score_kernels.Units(self._unit_rows, self._unit_live, self.n_units == len(self._unit_rows))
        self._n_live_rows = np.count_nonzero(live)
        self._n_covered_rows = np.count_nonzero(self._live & self._in_scope)
        self._dense_terms = sealed(np.flatnonzero(np.diff(self._term_offsets) >= DENSE_SHARE * len(self._unit_rows)))
        self._asked_last: tuple[Question | None, Lists] = None, None
        self._opened: tuple[float, Postings] | None = None  # for one average length, made when first asked
        self._places: Array | None = None  # where each unit begins in the segment's text, computed when first asked

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        """The k best rows; see `Reader`. At the deadline moments and hits are those of the units scored so far.

        Phrases narrow the hits as a scope does: moments remain those of the words. Then n_matched counts the rows found to hold
        the phrases, which is a lower bound: reading stops when the k best are sure.
        """
        question: Question = query.payload
        asked, n_asked, n_covered = self._live, self._n_live_rows, self._n_covered_rows
        if allowed is not None:
            asked = sealed(self._live & allowed)
            n_asked, n_covered = np.count_nonzero(asked), np.count_nonzero(asked & self._in_scope)
        lists = self._lists(question)
        possible, wanted = None, asked
        if question.phrases:
            possible = self._phrase_units(question, budget)
            wanted = np.zeros_like(asked)
            wanted[self._unit_rows[possible]] = True
            wanted = sealed(wanted & asked)
        # One row more than asked, for the last may be cut by the deadline; with phrases all, for they are read in turn.
        n_best, floor = (k + 1, floor) if possible is None else (len(asked), -np.inf)
        pass_ = self._scored(question, lists, wanted, wanted is self._live, n_best, floor, budget)
        units, scores, n_matched = pass_.units, pass_.scores, pass_.n_matched
        if pass_.n_rows < len(asked):
            n_covered = np.count_nonzero((asked & self._in_scope)[: pass_.n_rows])
        if possible is None:
            units, scores = units[:k], scores[:k]
        else:
            verified = self._verified(question, lists, possible, self._unit_rows[units], scores, k, budget)
            units, scores, n_matched = verified.units, verified.scores, verified.n_matched
            n_covered -= verified.n_unverified
        return Found(
            rows=self._unit_rows[units],
            scores=scores,
            starts=self._unit_starts[units],
            ends=self._unit_ends[units],
            n_matched=n_matched,
            moments=pass_.moments,
            rows_covered=n_covered,
            rows_total=n_asked,
        )

    def _scored(self, question: Question, lists: "Lists", wanted: Array, whole: bool, n_best: int, floor: float, budget: Budget) -> _Pass:
        """All units scored, window by window until the deadline. whole: all live rows are wanted."""
        n_rows, n_units = len(wanted), len(self._unit_rows)
        n_best = min(n_best, n_rows)
        capacity = min(max(MIN_CANDIDATES, 2 * n_best), n_rows) + 1
        best = self._kernels.Best(
            np.empty(capacity, np.int32), np.empty(capacity, np.float32), np.zeros(2, np.int64), np.zeros(1, np.float32), n_best
        )
        if floor > 0:  # scores are float32, and what equals the floor stays
            best.floor[0] = np.nextafter(np.float32(floor), np.float32(0))
        postings, units = self._postings_for(question), self._kernel_units
        moments = np.zeros(3, np.float64)
        window = _scratch.of(min(WINDOW, n_units))
        n_windows = -(-n_units // WINDOW)
        n_postings = int((lists.stops - lists.starts).sum())
        per_slice = n_windows if n_postings <= SLICE_POSTINGS else max(1, SLICE_POSTINGS * n_windows // n_postings)
        done, places = 0, lists.starts.copy()
        while done < n_windows and not budget.expired:
            n = min(per_slice, n_windows - done)
            self._kernels.search_windows(postings, lists, places, units, wanted, whole, window, done, n, moments, best)
            done += n
        n_found, n_matched = best.counts.tolist()
        found, scores = best.units[:n_found], best.scores[:n_found]
        if done < n_windows:  # a row cut by the deadline is not covered
            n_rows = int(np.searchsorted(self._row_offsets, done * WINDOW, "right")) - 1
            n_found = int(np.searchsorted(self._unit_rows[found], n_rows))
        order = np.argsort(-scores[:n_found], kind="stable")[:n_best]
        n, mean, m2 = moments.tolist()
        return _Pass(found[order], scores[order].astype(np.float64), n_matched, Moments(int(n), mean, m2), n_rows)

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        """Scores of the given rows; see `Reader`. -inf where no word of the question occurs, or a phrase does not."""
        question: Question = query.payload
        lists = self._lists(question)
        scores = np.full(len(rows), np.nan, np.float64)
        units = np.zeros(len(rows), np.int32)
        postings = self._postings_for(question)
        rows = sealed(np.asarray(rows, np.int32))
        possible = self._phrase_units(question, budget) if question.phrases else None
        finders = [PhraseFinder(analyser) for analyser in self._analysers]
        size = 1 if question.phrases else SLICE_ROWS
        for first in range(0, len(rows), size):
            if budget.expired:
                break
            part = slice(first, first + size)
            if question.phrases:
                try:
                    score, units[first] = self._best_with_phrases(question, lists, possible, int(rows[first]), finders, budget)
                except _OutOfTime:
                    break
                scores[first] = score or -np.inf
                continue
            found = np.zeros(len(rows[part]), np.float32)
            self._kernels.row_scores(postings, lists, self._row_offsets, rows[part], found, units[part])
            scores[part] = np.where(found > 0, found.astype(np.float64), -np.inf)
        hit = np.isfinite(scores)
        spans = np.zeros((2, len(rows)), np.int64)
        spans[:, hit] = self._unit_starts[units[hit]], self._unit_ends[units[hit]]
        return Scored(scores, spans[0], spans[1])

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        """Scores (0 where nothing matches) and rows of all live units; phrases count as words only."""
        question: Question = query.payload
        scores = self._kernels.all_scores(self._postings_for(question), self._lists(question), WINDOW).astype(np.float64)
        if self.n_units == len(scores):
            return scores, self._unit_rows
        return scores[self._unit_live], self._unit_rows[self._unit_live]

    def _lists(self, question: Question) -> "Lists":
        last, lists = self._asked_last
        if last is not question:  # a search is followed by scores
            found = self._kernels.lists_of(self._term_hashes, self._term_offsets, self._dense_terms, question.terms, question.weights)
            lists = self._kernels.Lists(*found)
            self._asked_last = question, lists
        return lists

    def _postings_for(self, question: Question) -> "Postings":
        """The postings with the norm of each unit, k1 (1 - b + b length/average), kept: the average is fixed within a generation."""
        opened = self._opened
        if opened is None:
            dense = sealed(self._kernels.dense_lists(self._units, self._tfs, self._term_offsets, self._dense_terms, len(self._unit_rows)))
        else:
            average, postings = opened
            if average == question.average_length:
                return postings
            dense = postings.dense
        norms = self._k1 * (1 - self._b + self._b * self._lengths / question.average_length)
        norms = np.maximum(norms, self._kernels.MIN_NORM).astype(np.float32)
        postings = self._kernels.Postings(self._units, self._tfs, dense, sealed(norms))
        self._opened = (question.average_length, postings)
        return postings

    def _unit_scores(self, question: Question, lists: "Lists", first: int, end: int) -> Array:
        scores: Array = self._kernels.unit_scores(self._postings_for(question), lists, first, end)
        return scores

    # Phrases

    def _postings(self, term: str) -> Array:
        """The units of one term, ascending."""
        key = np.uint64(term_hash(term))
        number = int(np.searchsorted(self._term_hashes, key))
        if number == len(self._term_hashes) or self._term_hashes[number] != key:
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
