"""How one segment answers a BM25 question: every live unit is scored, window by window, which yields the exact null as well.

Term-at-a-time within windows of units small enough for the cache, all terms of one window before the next: when time runs
out, the windows done are completely scored and the rest is honestly not covered.
"""

import bisect
import threading
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shards.analysis import Analyser
from shards.documents import Documents
from shards.phrases import PhraseFinder
from shards.plan import SpaceQuery
from shards.postings import sealed, term_hash
from shards.types import Array, Arrays, Budget, Found, Moments, Scored

WINDOW = 16_384  # units; 64 kB of scores, half of a small L1/L2 share
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


@dataclass(frozen=True, slots=True)
class _Lists:
    """The question's terms that occur in this segment: where their postings lie, and their weights, in canonical order."""

    weights: Array  # (t,) float32
    starts: Array  # (t,) int64
    stops: Array  # (t,) int64


class _Verified(NamedTuple):
    """Rows that hold the phrases, best first: rows, scores, units (m,); how many there were in all that was read, and how many
    candidates the deadline left unread."""

    rows: Array
    scores: Array
    units: Array
    n_matched: int
    n_unverified: int


class _OutOfTime(Exception):
    """The budget ended in the middle of a row, which therefore has no score."""


class _Scratch(threading.local):
    """Each row's best score and unit of one search, kept by a thread: new memory costs as much as the scoring, page by page."""

    def __init__(self) -> None:
        self._best, self._units = np.zeros(0, np.float32), np.zeros(0, np.int32)

    def of(self, n_rows: int) -> tuple[Array, Array]:
        """Scores (n_rows,) float32, all 0, and units (n_rows,) int32, whatever they are: read where a score is above 0."""
        if len(self._best) < n_rows:
            self._best, self._units = np.empty(n_rows, np.float32), np.empty(n_rows, np.int32)
        best = self._best[:n_rows]
        best.fill(0)
        return best, self._units[:n_rows]


_scratch = _Scratch()


class BM25Reader:
    """One segment's postings, opened. `k1`, `b`: Robertson & Zaragoza 2009, section 3.4."""

    def __init__(self, arrays: Arrays, documents: Documents, live: Array, k1: float, b: float, analysers: list[Analyser]):
        self._documents = documents
        self._analysers = analysers  # of each kind
        self._k1, self._b = k1, b
        self._term_hashes = arrays["term_hashes"]
        self._term_offsets = arrays["term_offsets"]
        self._units = sealed(arrays["posting_units"])
        self._tfs = sealed(arrays["posting_tfs"])
        self._unit_rows = sealed(arrays["unit_rows"])
        self._unit_starts, self._unit_ends = arrays["unit_starts"], arrays["unit_ends"]
        self._lengths = arrays["unit_lengths"]
        self._in_scope = arrays["in_scope"]
        self._live = sealed(live)
        self._row_offsets = sealed(np.searchsorted(self._unit_rows, np.arange(len(live) + 1)).astype(np.int64))
        unit_live = self._live[self._unit_rows]
        edges = np.arange(0, len(unit_live), WINDOW)
        self._live_counts = np.add.reduceat(unit_live, edges, dtype=np.int64) if len(edges) else np.zeros(0, np.int64)
        self.n_units = int(unit_live.sum())
        self._norms: tuple[float, Array] = (np.nan, np.zeros(0, np.float32))  # of one average length, computed when first asked
        self._places: Array | None = None  # where each unit begins in the segment's text, computed when first asked

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget) -> Found:
        """The k best rows; see `Reader`. At the deadline moments and hits are those of the units scored so far.

        Phrases narrow the hits as a scope does: moments remain those of the words. Then n_matched counts the rows found to hold
        the phrases, which is a lower bound: reading stops when the k best are sure.
        """
        from shards.posting_kernels import add_windows, top_rows

        question: Question = query.payload
        asked = self._live if allowed is None else self._live & allowed
        possible = self._phrase_units(question, budget)
        wanted = asked
        if question.phrases:
            wanted = np.zeros_like(asked)
            wanted[self._unit_rows[possible]] = True
            wanted &= asked
        wanted = sealed(wanted)
        lists = self._lists(question)
        best, best_units = _scratch.of(len(wanted))
        moments = np.zeros(3, np.float64)
        window = np.zeros(min(WINDOW, len(self._unit_rows)), np.float32)
        places = lists.starts.copy()
        norms = self._norms_for(question)
        n_windows = len(self._live_counts)
        per_slice = max(1, int(SLICE_POSTINGS * n_windows // max(1, (lists.stops - lists.starts).sum())))
        keep = 0 if question.phrases else k + 1  # one more: the last row may be cut by the deadline
        whole = allowed is None and not question.phrases
        done, n_matched = 0, 0
        while done < n_windows and not budget.expired:
            n = min(per_slice, n_windows - done)
            n_matched += add_windows(
                self._units, self._tfs, norms, lists.weights, places, lists.stops, self._unit_rows, self._live, wanted,
                self._live_counts, window, done, n, moments, best, best_units, keep, whole,
            )  # fmt: skip
            done += n
        # Rows whose last unit is scored; a row cut by the deadline is not covered.
        n_rows = int(np.searchsorted(self._row_offsets, done * WINDOW, "right")) - 1 if done < n_windows else len(wanted)
        n_covered = np.count_nonzero((asked & self._in_scope)[:n_rows])
        if question.phrases:
            verified = self._verified(question, lists, possible, best[:n_rows], k, budget)
            rows, scores, units, n_matched = verified.rows, verified.scores, verified.units, verified.n_matched
            n_covered -= verified.n_unverified
        else:
            rows = top_rows(best, n_rows, k)
            scores, units = best[rows], best_units[rows]
        return Found(
            rows=rows.astype(np.int32),
            scores=scores.astype(np.float64),
            starts=self._unit_starts[units],
            ends=self._unit_ends[units],
            n_matched=int(n_matched),
            moments=Moments(int(moments[0]), float(moments[1]), float(moments[2])),
            rows_covered=n_covered,
            rows_total=np.count_nonzero(asked),
        )

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        """Scores of the given rows; see `Reader`. -inf where no word of the question occurs, or a phrase does not."""
        from shards.posting_kernels import row_scores

        question: Question = query.payload
        lists = self._lists(question)
        scores = np.full(len(rows), np.nan, np.float64)
        units = np.zeros(len(rows), np.int32)
        norms = self._norms_for(question)
        rows = sealed(np.asarray(rows, np.int32))
        possible = self._phrase_units(question, budget)
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
            row_scores(
                self._units, self._tfs, norms, lists.weights, lists.starts, lists.stops, self._row_offsets, rows[part], found,
                units[part],
            )  # fmt: skip
            scores[part] = np.where(found > 0, found.astype(np.float64), -np.inf)
        hit = np.isfinite(scores)
        spans = np.zeros((2, len(rows)), np.int64)
        spans[:, hit] = self._unit_starts[units[hit]], self._unit_ends[units[hit]]
        return Scored(scores, spans[0], spans[1])

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        """Scores (0 where nothing matches) and rows of all live units; phrases count as words only."""
        question: Question = query.payload
        live = self._live[self._unit_rows]
        scores = self._unit_scores(question, self._lists(question), 0, len(self._unit_rows))
        return scores[live].astype(np.float64), self._unit_rows[live]

    def _lists(self, question: Question) -> _Lists:
        known, numbers = self._numbers(question.terms)
        return _Lists(question.weights[known], self._term_offsets[numbers], self._term_offsets[numbers + 1])

    def _numbers(self, hashes: Array) -> tuple[Array, Array]:
        """Which of the terms occur here, (t,) bool, and the numbers of those."""
        if not len(self._term_hashes):
            return np.zeros(len(hashes), np.bool_), np.zeros(0, np.int64)
        numbers = np.minimum(np.searchsorted(self._term_hashes, hashes), len(self._term_hashes) - 1)
        known = self._term_hashes[numbers] == hashes
        return known, numbers[known]

    def _norms_for(self, question: Question) -> Array:
        """k1 (1 - b + b length/average) of each unit, float32; kept, because the average is fixed within a generation."""
        average, norms = self._norms
        if average != question.average_length:
            exact = self._k1 * (1 - self._b + self._b * self._lengths / question.average_length)
            norms = sealed(exact.astype(np.float32))
            self._norms = (question.average_length, norms)
        return norms

    def _unit_scores(self, question: Question, lists: _Lists, first: int, end: int) -> Array:
        from shards.posting_kernels import unit_scores

        norms = self._norms_for(question)
        return unit_scores(self._units, self._tfs, norms, lists.weights, lists.starts, lists.stops, first, end)

    # Phrases

    def _postings(self, term: str) -> Array:
        """The units of one term, ascending."""
        _, numbers = self._numbers(np.array([term_hash(term)], np.uint64))
        if not len(numbers):
            return self._units[:0]
        return self._units[self._term_offsets[numbers[0]] : self._term_offsets[numbers[0] + 1]]

    def _phrase_units(self, question: Question, budget: Budget) -> Array:
        """Units in which every phrase may begin, ascending: (c,) int64; empty without phrases.

        They hold its first word, and the units that it can reach hold all others. At the deadline it stays at the words looked
        at: a superset, verified like any other.
        """
        if not question.phrases:
            return np.zeros(0, np.int64)
        units = np.arange(len(self._unit_rows))
        if self._places is None:
            self._places = self._documents.starts[self._unit_rows] + self._unit_starts
        for phrase in question.phrases:
            possible = []
            for language, terms in phrase.items():
                of_kind = np.array([analyser.language == language for analyser in self._analysers], np.bool_)
                begins = np.intersect1d(self._postings(terms[0]), units, assume_unique=True)
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
            units = np.unique(np.concatenate(possible)) if possible else units[:0]
        return units

    def _verified(self, question: Question, lists: _Lists, possible: Array, best: Array, k: int, budget: Budget) -> _Verified:
        """The k best rows whose text holds the phrases.

        Rows are read in order of their best unit by words alone, an upper bound, until k are sure.
        """
        candidates = np.flatnonzero(best > 0)
        candidates = candidates[np.lexsort((candidates, -best[candidates]))]
        found: list[tuple[float, int, int]] = []  # (-score, row, unit), best first
        finders = [PhraseFinder(analyser) for analyser in self._analysers]
        n_matched = n_unverified = 0
        for i, row in enumerate(candidates.tolist()):
            if len(found) >= k and -found[k - 1][0] > best[row]:
                break
            try:
                score, unit = self._best_with_phrases(question, lists, possible, row, finders, budget)
            except _OutOfTime:
                n_unverified = len(candidates) - i
                break
            if score:
                n_matched += 1
                bisect.insort(found, (-score, row, unit))
        rows, units = (np.array([hit[column] for hit in found[:k]], np.int64) for column in (1, 2))
        return _Verified(rows, np.array([-hit[0] for hit in found[:k]], np.float64), units, n_matched, n_unverified)

    def _best_with_phrases(
        self, question: Question, lists: _Lists, possible: Array, row: int, finders: list[PhraseFinder], budget: Budget
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
