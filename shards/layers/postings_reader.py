"""How one segment's postings answer a question: every live unit is scored, window by window, which yields the exact null as well.

Term-at-a-time within windows of units small enough for the cache, all terms of one window before the next: when time runs
out, the windows done are completely scored and the rest is honestly not covered.
"""

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shards.plan import SpaceQuery
from shards.postings import Layout, sealed
from shards.types import Array, Arrays, Budget, Found, Moments, Scored

if TYPE_CHECKING:  # imports numba
    from shards.score_kernels import Lists, Postings

WINDOW = 16_384  # units; 64 kB of scores and as much of norms stay in the second-level cache
MIN_CANDIDATES = 32  # rows held while the k best are sought
SLICE_POSTINGS = 500_000  # postings between two looks at the clock: about a millisecond
SLICE_ROWS = 256  # rows scored between two looks at the clock


@dataclass(frozen=True, slots=True)
class TermWeights:
    """What a segment is asked.

    terms: (t,), ascending (the canonical order of summation), uint64 hashes or uint32 tokens; weights: (t,) float32
    """

    terms: Array
    weights: Array


class Scope(NamedTuple):
    """Which rows may be hits: (rows,) bool, live ones only; how many they are; whether those are all that live."""

    rows: Array
    n_rows: int
    whole: bool


class Pass(NamedTuple):
    """The best rows of a pass: units (m,) int32 and scores (m,) float64, by score descending, then row; units that matched;
    moments of all; and how many rows, of the first, had all their units scored."""

    units: Array
    scores: Array
    n_matched: int
    moments: Moments
    n_rows: int


class _Scratch(threading.local):
    """The scores of one window, kept by a thread: zeros between searches."""

    def __init__(self) -> None:
        self._scores = np.zeros(0, np.float32)

    def of(self, n_units: int) -> Array:
        if len(self._scores) < n_units:
            self._scores = np.zeros(n_units, np.float32)
        return self._scores[:n_units]


_scratch = _Scratch()


class PostingsReader(ABC):
    """One segment's postings, opened. Rows without any term of the question have no match.

    dense_share: terms in at least this share of the units are kept in memory as one value a unit, which are added many at a time
    """

    def __init__(self, arrays: Arrays, live: Array, layout: Layout, dense_share: float):
        from shards import score_kernels  # imports numba

        self._kernels = score_kernels
        self._vocabulary = sealed(arrays[layout.terms])
        self._term_offsets = sealed(arrays["term_offsets"])
        self._units = sealed(arrays["posting_units"])
        self._values = sealed(arrays[layout.values])
        self._unit_rows = sealed(arrays["unit_rows"])
        self._unit_starts, self._unit_ends = sealed(arrays["unit_starts"]), sealed(arrays["unit_ends"])
        self._in_scope = arrays["in_scope"]
        self._live = sealed(live)
        self._unit_live = sealed(self._live[self._unit_rows])
        self._row_offsets = sealed(np.searchsorted(self._unit_rows, np.arange(len(live) + 1)).astype(np.int64))
        self.n_units = np.count_nonzero(self._unit_live)
        self._kernel_units = score_kernels.Units(self._unit_rows, self._unit_live, self.n_units == len(self._unit_rows))
        self._all_live = Scope(self._live, np.count_nonzero(live), True)
        self._n_covered_rows = np.count_nonzero(self._live & self._in_scope)
        self._dense_terms = sealed(np.flatnonzero(np.diff(self._term_offsets) >= dense_share * len(self._unit_rows)))
        self._asked_last: tuple[TermWeights | None, Lists] = None, None

    @abstractmethod
    def _postings_for(self, question: TermWeights) -> "Postings":
        """The postings as the kernels read them for this question."""

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        """The k best rows; see `Reader`. At the deadline moments and hits are those of the units scored so far."""
        scope = self._scope(allowed)
        # One row more than asked, for the last may be cut by the deadline.
        pass_ = self._scored(query.payload, scope, k + 1, floor, budget)
        return self._found(scope, pass_, pass_.units[:k], pass_.scores[:k])

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        """Scores of the given rows; see `Reader`. -inf where no term of the question occurs."""
        question: TermWeights = query.payload
        lists, postings = self._lists(question), self._postings_for(question)
        scores = np.full(len(rows), np.nan, np.float64)
        units = np.zeros(len(rows), np.int32)
        rows = sealed(np.asarray(rows, np.int32))
        for first in range(0, len(rows), SLICE_ROWS):
            if budget.expired:
                break
            part = slice(first, first + SLICE_ROWS)
            found = np.zeros(len(rows[part]), np.float32)
            self._kernels.row_scores(postings, lists, self._row_offsets, rows[part], found, units[part])
            scores[part] = np.where(found > 0, found.astype(np.float64), -np.inf)
        return self._spans(scores, units)

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        """Scores (0 where nothing matches) and rows of all live units."""
        question: TermWeights = query.payload
        postings, lists = self._postings_for(question), self._lists(question)
        scores = self._kernels.all_scores(postings, lists, len(self._unit_rows), WINDOW).astype(np.float64)
        if self.n_units == len(scores):
            return scores, self._unit_rows
        return scores[self._unit_live], self._unit_rows[self._unit_live]

    def _scope(self, allowed: Array | None) -> Scope:
        if allowed is None:
            return self._all_live
        rows = sealed(self._live & allowed)
        return Scope(rows, np.count_nonzero(rows), False)

    def _found(self, scope: Scope, pass_: Pass, units: Array, scores: Array, n_matched: int | None = None, n_unread: int = 0) -> Found:
        """What is told of a search. n_matched: where not those of the pass; n_unread: rows scored that yet were not looked at."""
        if pass_.n_rows < len(scope.rows):
            n_covered = np.count_nonzero((scope.rows & self._in_scope)[: pass_.n_rows])
        else:
            n_covered = self._n_covered_rows if scope.whole else np.count_nonzero(scope.rows & self._in_scope)
        return Found(
            rows=self._unit_rows[units],
            scores=scores,
            starts=self._unit_starts[units],
            ends=self._unit_ends[units],
            n_matched=pass_.n_matched if n_matched is None else n_matched,
            moments=pass_.moments,
            rows_covered=n_covered - n_unread,
            rows_total=scope.n_rows,
        )

    def _scored(self, question: TermWeights, scope: Scope, n_best: int, floor: float, budget: Budget) -> Pass:
        """All units scored, window by window until the deadline; hits are rows of the scope."""
        lists = self._lists(question)
        n_rows, n_units = len(scope.rows), len(self._unit_rows)
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
            self._kernels.search_windows(
                postings, lists, places, units, scope.rows, scope.whole, window, done, n, moments, best
            )  # fmt: skip
            done += n
        n_found, n_matched = best.counts.tolist()
        found, scores = best.units[:n_found], best.scores[:n_found]
        if done < n_windows:  # a row cut by the deadline is not covered
            n_rows = int(np.searchsorted(self._row_offsets, done * WINDOW, "right")) - 1
            n_found = int(np.searchsorted(self._unit_rows[found], n_rows))
        order = np.argsort(-scores[:n_found], kind="stable")[:n_best]
        n, mean, m2 = moments.tolist()
        return Pass(found[order], scores[order].astype(np.float64), n_matched, Moments(int(n), mean, m2), n_rows)

    def _spans(self, scores: Array, units: Array) -> Scored:
        """Scores of rows with the spans of the best unit of each that has one."""
        hit = np.isfinite(scores)
        spans = np.zeros((2, len(scores)), np.int64)
        spans[:, hit] = self._unit_starts[units[hit]], self._unit_ends[units[hit]]
        return Scored(scores, spans[0], spans[1])

    def _lists(self, question: TermWeights) -> "Lists":
        last, lists = self._asked_last
        if last is not question:  # a search is followed by scores
            found = self._kernels.lists_of(self._vocabulary, self._term_offsets, self._dense_terms, question.terms, question.weights)
            lists = self._kernels.Lists(*found)
            self._asked_last = question, lists
        return lists

    def _dense_lists(self) -> Array:
        return sealed(self._kernels.dense_lists(self._units, self._values, self._term_offsets, self._dense_terms, len(self._unit_rows)))
