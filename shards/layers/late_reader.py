"""Searching one segment's token vectors: canonical scores of every passage, or in a large corpus of those that an approximate score
brings above the corpus's cut (`shards.late_candidates`). What the segment holds beside them changes neither."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shards import late_candidates
from shards.plan import SpaceQuery
from shards.types import Array, Arrays, Budget, Found, Moments, Scored

_SLICE_PRODUCTS = 1 << 25  # between two looks at the clock: 2 ms
_SLICE_BYTES = 1 << 25  # of codes of candidates, between two looks: 2 ms, some more from a cold disk


@dataclass(frozen=True, slots=True, eq=False)
class LateQuestion:
    """vectors: (n, dim) float16, of a question's tokens. Of a corpus so small that every passage is scored nothing else is set.

    encoding: (fde_dim,) int16; cut, filtered_cut: approximate scores from which on a passage is looked at, without and with a filter;
    level: moments come from a share of 2^-level of all passages
    """

    vectors: Array
    encoding: Array | None = None
    cut: float = -np.inf
    filtered_cut: float = -np.inf
    level: int = 0


class LateReader:
    """See `shards.layers.contract.Reader`. arrays: as in `shards.layers.late`. hashes: (n, 20) uint8, the documents'."""

    def __init__(self, arrays: Arrays, hashes: Array, live: Array):
        self._codes, self._scales = late_candidates.kernel_codes(arrays["tokens"]), arrays["scales"]
        self._offsets, self._row_units = arrays["unit_tokens"], arrays["row_units"]
        self._starts, self._ends = arrays["starts"], arrays["ends"]
        self._fde, self._fde_scales = arrays["fde"], arrays["fde_scales"]
        self._live = np.asarray(live, bool)
        self._covered = self._live & arrays["in_scope"]
        counts = np.diff(self._row_units)
        self._unit_rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self._live_units = np.flatnonzero(self._live[self._unit_rows])
        self._keys = late_candidates.unit_keys(hashes, self._row_units)[self._live_units]
        self.n_units = len(self._live_units)

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        question: LateQuestion = query.payload
        wanted = self._live if allowed is None else self._live & allowed
        if question.encoding is None:  # moments are of all passages whatever the filter, so all are scored
            scores = self._scores(self._live_units, question, budget)
            moments = Moments.of(scores)
            kept = np.flatnonzero(wanted[self._unit_rows[self._live_units[: len(scores)]]])
            units, scores, n_scored = self._live_units[kept], scores[kept], len(scores)
            stop = self._live_units[n_scored] if n_scored < self.n_units else None
        else:
            sample = self._live_units[late_candidates.in_sample(self._keys, question.level)]
            moments = Moments.of(self._scores(sample, question, budget))
            units, beyond = self._candidates(question, wanted, allowed is not None, budget)
            scores = self._scores(units, question, budget)
            stop = units[len(scores)] if len(scores) < len(units) else beyond
            units = units[: len(scores)]
        # Where time ran out, the document of the next passage is not looked at as a whole, so neither it nor what follows counts.
        n_rows = len(wanted) if stop is None else int(self._unit_rows[stop])
        units = units[: np.searchsorted(units, self._row_units[n_rows])]
        best, scores = _best_of_rows(self._unit_rows[units], scores[: len(units)])
        top = np.argsort(-scores, kind="stable")[:k]  # rows ascend, so ties are in order of row
        chosen = units[best[top]]
        return Found(
            rows=self._unit_rows[chosen],
            scores=scores[top],
            starts=self._starts[chosen],
            ends=self._ends[chosen],
            n_matched=int(np.diff(self._row_units)[:n_rows][wanted[:n_rows]].sum()),
            moments=moments,
            rows_covered=int(np.count_nonzero((wanted & self._covered)[:n_rows])),
            rows_total=int(np.count_nonzero(wanted)),
        )

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        question: LateQuestion = query.payload
        scores, starts, ends = np.full(len(rows), np.nan), np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        asked = np.flatnonzero(self._covered[rows])
        counts = np.diff(self._row_units)[rows[asked]]
        scores[asked[counts == 0]] = -np.inf
        asked, counts = asked[counts > 0], counts[counts > 0]
        firsts = np.cumsum(counts) - counts
        units = np.repeat(self._row_units[rows[asked]] - firsts, counts) + np.arange(counts.sum())
        found = self._scores(units, question, budget)
        whole = np.searchsorted(firsts + counts, len(found), "right")  # rows of which all passages were scored
        n = int(counts[:whole].sum())
        best, values = _best_of_rows(np.repeat(np.arange(whole), counts[:whole]), found[:n])
        places = asked[:whole]
        scores[places], starts[places], ends[places] = values, self._starts[units[best]], self._ends[units[best]]
        return Scored(scores, starts, ends)

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        """Of all live units even where a search samples: null models rank a document among all."""
        return self._scores(self._live_units, query.payload, Budget()), self._unit_rows[self._live_units]

    def _candidates(self, question: LateQuestion, wanted: Array, filtered: bool, budget: Budget) -> tuple[Array, int | None]:
        """Units to be scored, ascending, and the first that was not looked at when the budget ended; None: all were."""
        units = self._live_units[wanted[self._unit_rows[self._live_units]]]
        cut = question.filtered_cut if filtered else question.cut
        if cut == -np.inf or not len(units):
            return units, None
        assert question.encoding is not None
        kept, step = [], max(_SLICE_BYTES // self._fde.shape[1], 1)
        for start in range(0, len(units), step):
            part = units[start : start + step]
            if budget.expired:
                return np.concatenate([units[:0], *kept]), int(part[0])
            kept.append(part[late_candidates.scores(self._fde, self._fde_scales, part, question.encoding) >= cut])
        return np.concatenate(kept), None

    def _scores(self, units: Array, question: LateQuestion, budget: Budget) -> Array:
        """Canonical scores of units, (m,) float64; m is smaller than asked when the budget ends."""
        from shards.late_kernels import max_sims

        scores = np.empty(len(units))
        if not len(units):
            return scores
        n_query, dim = question.vectors.shape
        assert dim == self._codes.shape[1], "a query of another space"
        table = query_table(question.vectors)
        for part in self._slices(units, table.size):
            if budget.expired:
                return scores[: part.start]
            max_sims(self._codes, self._scales, self._offsets, units[part], table, n_query, scores[part])
        return scores

    def _slices(self, units: Array, products: int) -> Iterator[slice]:
        """Units in portions to be scored between two looks at the clock. products: per token."""
        before = np.cumsum(self._offsets[units + 1] - self._offsets[units]) * products
        start = 0
        while start < len(units):
            done = before[start - 1] if start else 0
            stop = max(int(before.searchsorted(done + _SLICE_PRODUCTS, "right")), start + 1)
            yield slice(start, stop)
            start = stop


def query_table(vectors: Array) -> Array:
    """A question's vectors as `max_sims` takes them: one column each, filled up with zeros. vectors: (n, dim) float16."""
    from shards.late_kernels import STEP

    n, dim = vectors.shape
    table = np.zeros((-(-dim // STEP) * STEP, -(-n // 8) * 8), np.float32)
    table[:dim, :n] = vectors.T
    return table


def _best_of_rows(rows: Array, scores: Array) -> tuple[Array, Array]:
    """Of each row its best unit's place, the first of equals, and score. rows: (u,) ascending; scores: (u,) float64."""
    if not len(rows):
        return np.zeros(0, np.int64), np.zeros(0)
    firsts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 1))
    best = np.maximum.reduceat(scores, firsts)
    groups = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(rows)))
    places = np.flatnonzero(scores == best[groups])
    _, first = np.unique(groups[places], return_index=True)
    return places[first], best
