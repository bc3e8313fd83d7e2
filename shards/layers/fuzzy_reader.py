"""How one segment's words and passages answer a fuzzy question. Work goes by the postings of words near the asked ones."""

from dataclasses import dataclass

import numpy as np

from shards.documents import Documents
from shards.fuzzy_places import smallest_window
from shards.plan import SpaceQuery
from shards.postings import sealed
from shards.types import Array, Arrays, Budget, Found, Scored

WINDOW = 65_536  # passages summed between two looks at the clock
SLICE_ROWS = 64  # rows scored between two looks at the clock


@dataclass(frozen=True, slots=True)
class Question:
    """What shards are asked.

    hashes: (e,) uint64, words near the asked ones; slots: (e,) int32, ascending, which of the asked words each stands for; scores:
    (e,) float64, falling within a slot; texts: the words. n_slots: words that may stand for any, of n_asked. generates: whether passages
    are to be found, or only those scored that others found.
    """

    hashes: Array
    slots: Array
    scores: Array
    texts: tuple[str, ...]
    n_slots: int
    n_asked: int
    generates: bool


class FuzzyReader:
    """One segment, opened. A row has the score of its best passage; without a word near any of the asked ones it has no match."""

    def __init__(self, arrays: Arrays, documents: Documents, live: Array):
        from shards import fuzzy_posting_kernels  # imports numba

        self._kernels = fuzzy_posting_kernels
        self._documents = documents
        self._hashes, self._term_offsets = arrays["term_hashes"], arrays["term_offsets"]
        self._postings = sealed(arrays["posting_units"])
        self._unit_rows = arrays["unit_rows"]
        self._unit_starts, self._unit_ends = arrays["unit_starts"], arrays["unit_ends"]
        self._live = live.astype(np.bool_)
        self._searchable = self._live & arrays["in_scope"]
        self._row_offsets = np.searchsorted(self._unit_rows, np.arange(len(live) + 1)).astype(np.int64)
        self.n_units = int(np.count_nonzero(self._live[self._unit_rows]))

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        """The k best rows; see `Reader`. Of a question that only refines: none, and all of them count as looked at."""
        question: Question = query.payload
        scope = self._live if allowed is None else self._live & allowed
        covered = self._searchable & scope
        units, scores, n_rows = self._summed(question, budget) if question.generates else _nothing(len(scope))
        kept = np.flatnonzero(covered[self._unit_rows[units]] & (self._unit_rows[units] < n_rows))
        units, scores = units[kept], scores[kept]
        best, best_scores = self._best_of_rows(units, scores, k)
        starts, ends = self._places(question, best)
        return Found(
            rows=self._unit_rows[best].astype(np.int32),
            scores=best_scores,
            starts=starts,
            ends=ends,
            n_matched=len(units),
            moments=None,
            rows_covered=int(np.count_nonzero(covered[:n_rows])),
            rows_total=int(np.count_nonzero(scope)),
        )

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        """Scores of the given rows; see `Reader`."""
        question: Question = query.payload
        scores = np.full(len(rows), np.nan)
        best = np.full(len(rows), -1, np.int64)
        for first in range(0, len(rows), SLICE_ROWS):
            if budget.expired:
                break
            at = first + np.flatnonzero(self._searchable[rows[first : first + SLICE_ROWS]])
            counts = self._row_offsets[rows[at] + 1] - self._row_offsets[rows[at]]
            ends = np.cumsum(counts)
            units = np.repeat(self._row_offsets[rows[at]] - (ends - counts), counts) + np.arange(counts.sum())
            sums, _ = self._words(question, units)
            owners = np.repeat(at, counts)
            scores[at] = -np.inf
            np.maximum.at(scores, owners[sums > 0], sums[sums > 0])
            is_best = np.flatnonzero((sums > 0) & (sums == scores[owners]))[::-1]  # the first one is written last
            best[owners[is_best]] = units[is_best]
        starts, ends = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        found = np.flatnonzero(best >= 0)
        starts[found], ends[found] = self._places(question, best[found])
        return Scored(scores, starts, ends)

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        raise TypeError("layer fuzzy has a null of rarity: there are no scores of passages without a match")

    def _lists(self, question: Question) -> tuple[Array, Array, Array]:
        """Of the words that this segment has: which of the question's, (e,) int64, and where their postings lie, (e,) int64 each."""
        at = np.searchsorted(self._hashes, question.hashes)
        at[at == len(self._hashes)] = 0
        known = np.flatnonzero(self._hashes[at] == question.hashes) if len(self._hashes) else np.zeros(0, np.int64)
        return known, self._term_offsets[at[known]], self._term_offsets[at[known] + 1]

    def _summed(self, question: Question, budget: Budget) -> tuple[Array, Array, int]:
        """Units with a match, ascending, their scores, and the number of rows, of the first, that were looked at to their end."""
        known, places, stops = self._lists(question)
        places = places.copy()
        n_units, done = len(self._unit_rows), 0
        size = min(WINDOW, n_units)
        best, total = np.zeros(size), np.zeros(size)
        found: list[Array] = []
        scores: list[Array] = []
        while done < n_units and not budget.expired:
            high = min(done + WINDOW, n_units)
            self._kernels.add_window(self._postings, places, stops, question.slots[known], question.scores[known], done, high, best, total)
            here = np.flatnonzero(total)
            found.append(here + done)
            scores.append(total[here])
            total[here] = 0.0
            done = high
        n_rows = len(self._live) if done == n_units else int(self._unit_rows[done])
        units, sums, _ = _nothing(0)
        return np.concatenate([units, *found]), np.concatenate([sums, *scores]), n_rows

    def _best_of_rows(self, units: Array, scores: Array, k: int) -> tuple[Array, Array]:
        """The best unit of each of the k best rows, and its score. units: ascending."""
        if not len(units):
            return units, scores
        rows = self._unit_rows[units]
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        of_row = np.maximum.reduceat(scores, first)
        chosen = np.arange(len(of_row))
        if len(of_row) > k:
            chosen = np.flatnonzero(of_row >= np.partition(of_row, -k)[-k])
        chosen = chosen[np.argsort(-of_row[chosen], kind="stable")[:k]]
        ends = np.append(first[1:], len(units))
        at = [int(first[i] + np.argmax(scores[first[i] : ends[i]])) for i in chosen.tolist()]
        return units[at], scores[at]

    def _words(self, question: Question, units: Array) -> tuple[Array, Array]:
        """Scores of units (0: no match), (m,) float64, and of each and each slot the number of the word that gives it, or -1: (m, s)."""
        known, starts, stops = self._lists(question)
        total = np.zeros(len(units))
        words = np.full((len(units), question.n_slots), -1, np.int32)
        self._kernels.words_of_units(
            self._postings, starts, stops, question.slots[known], question.scores[known], units.astype(np.int32), total, words
        )
        return total, np.where(words >= 0, known[words] if len(known) else -1, -1)

    def _places(self, question: Question, units: Array) -> tuple[Array, Array]:
        """Where in their documents the words that were found stand together in these units: starts, ends, (m,) int64."""
        starts, ends = self._unit_starts[units].copy(), self._unit_ends[units].copy()
        _, words = self._words(question, units)
        for i, unit in enumerate(units.tolist()):
            base = int(self._documents.starts[self._unit_rows[unit]])
            text = self._documents.text[base + starts[i] : base + ends[i]].tobytes()
            wanted = [question.texts[word].encode() for word in dict.fromkeys(words[i][words[i] >= 0].tolist())]
            if (window := smallest_window(text, wanted)) is not None:
                starts[i], ends[i] = starts[i] + window[0], starts[i] + window[1]
        return starts, ends


def _nothing(n_rows: int) -> tuple[Array, Array, int]:
    return np.zeros(0, np.int64), np.zeros(0), n_rows
