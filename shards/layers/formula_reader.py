"""How one segment answers a question of formulas: bounds for all from the postings, scores for those that can be among the best.

What formulas share when every variable may be any other is never less than what they share under one renaming of them: the overlap by
postings is an upper bound of the score. So scoring in order of the bound until the k best are sure finds exactly those, whatever else
the segment holds.
"""

from dataclasses import dataclass

import numpy as np

from shards import formula_matching as matching
from shards.documents import Documents
from shards.formula_trees import Trees
from shards.plan import SpaceQuery
from shards.postings import sealed
from shards.types import Array, Arrays, Budget, Found, Scored

CUT = 0.25  # overlap from which on two formulas have something in common that is worth saying
SLICE_ROWS = 64  # scored between two looks at the clock: a millisecond
_MARGIN = 1e-9  # rounding of a bound against a score


@dataclass(frozen=True, slots=True)
class AskedFormula:
    """One formula of a question. rarities: (k,) int32, of its distinct pairs in order of key; weight: its part of the score."""

    trees: Trees
    rarities: Array
    weight: float


@dataclass(frozen=True, slots=True)
class FormulaQuestion:
    """formulas: at least one, weights sum to 1. costs: (n,) float64, nats for which each of their signs stands there by chance, ascending.
    per_row: formulas of a document, on average."""

    formulas: tuple[AskedFormula, ...]
    costs: Array
    per_row: float


class FormulaReader:
    """See `shards.layers.contract.Reader`. arrays: as in `shards.formula_index`."""

    def __init__(self, arrays: Arrays, documents: Documents, live: Array):
        self._live = np.asarray(live, np.bool_)
        self._covered = self._live & arrays["in_scope"]
        self._unit_rows, self._totals = sealed(arrays["unit_rows"]), sealed(arrays["unit_totals"])
        self._starts, self._ends = arrays["unit_starts"], arrays["unit_ends"]
        self._hashes, self._offsets = arrays["term_hashes"], arrays["term_offsets"]
        self._posting_units, self._posting_tfs = sealed(arrays["posting_units"]), sealed(arrays["posting_tfs"])
        row_units = np.searchsorted(self._unit_rows, np.arange(len(live) + 1)).astype(np.int64)
        names = ("node_offsets", "unit_totals", "labels", "node_labels", "node_parents", "node_edges")
        self._units = matching.Units(sealed(row_units), *(sealed(arrays[name]) for name in names))
        self.n_units = int(np.count_nonzero(self._live[self._unit_rows]))

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        question: FormulaQuestion = query.payload
        scope = self._live if allowed is None else self._live & allowed
        n_rows = int(np.count_nonzero(scope))
        asked = [matching.asked(formula.trees, formula.rarities) for formula in question.formulas]
        bounds, n_matched = self._bounds(question, asked, scope, budget)
        rows = np.flatnonzero(bounds >= max(floor - _MARGIN, np.finfo(float).tiny)).astype(np.int32)
        rows = rows[np.argsort(-bounds[rows], kind="stable")]
        scores, units = np.full(len(rows), -np.inf), np.zeros(len(rows), np.int32)
        done, worst = 0, -np.inf  # the k-th best score so far
        while done < len(rows) and bounds[rows[done]] >= worst - _MARGIN:
            if budget.expired:
                break
            part = slice(done, done + SLICE_ROWS)
            scores[part], units[part] = self._score(question, asked, rows[part])
            done = min(done + SLICE_ROWS, len(rows))
            if done >= k:
                worst = np.partition(scores[:done], done - k)[done - k]
        unknown = len(rows) - done if budget.expired else 0
        order = np.lexsort((rows[:done], -scores[:done]))[:k]
        order = order[scores[order] > -np.inf]
        best = units[order]
        return Found(
            rows=rows[order],
            scores=scores[order],
            starts=self._starts[best].astype(np.int64),
            ends=self._ends[best].astype(np.int64),
            n_matched=n_matched,
            moments=None,
            rows_covered=max(int(np.count_nonzero(scope & self._covered)) - unknown, 0),
            rows_total=n_rows,
        )

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        question: FormulaQuestion = query.payload
        asked = [matching.asked(formula.trees, formula.rarities) for formula in question.formulas]
        rows = np.asarray(rows, np.int32)
        scores, units = np.full(len(rows), np.nan), np.zeros(len(rows), np.int32)
        for first in range(0, len(rows), SLICE_ROWS):
            if budget.expired:
                break
            part = slice(first, first + SLICE_ROWS)
            scores[part], units[part] = self._score(question, asked, rows[part])
        scores[~self._covered[rows]] = np.nan
        hit = np.isfinite(scores)
        spans = np.zeros((2, len(rows)), np.int64)
        spans[:, hit] = self._starts[units[hit]], self._ends[units[hit]]
        return Scored(scores, spans[0], spans[1])

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        raise TypeError("layer formula has a null of rarity: there are no scores of formulas without a match")

    def _bounds(self, question: FormulaQuestion, asked: list[matching.Asked], scope: Array, budget: Budget) -> tuple[Array, int]:
        """The most that each row can score, 0 where nothing reaches the cut, (rows,) float64; and how many formulas do in all."""
        from shards import formula_kernels as kernels

        total, n_matched = np.zeros(len(scope)), 0
        n_units = len(self._unit_rows)
        for formula, one in zip(question.formulas, asked, strict=True):
            if budget.expired:
                break
            places = np.searchsorted(self._hashes, one.keys)
            places[places == len(self._hashes)] = 0
            known = self._hashes[places] == one.keys if len(self._hashes) else np.zeros(len(places), np.bool_)
            places = places[known]
            shared_rarity, shared_weight = np.zeros((n_units, 2), np.int32), np.zeros((n_units, 2), np.int32)
            kernels.add_shared(
                self._offsets[places], self._offsets[places + 1], self._posting_units, self._posting_tfs, one.counts[known],
                one.rarities[known], one.weights[known], shared_rarity, shared_weight,
            )  # fmt: skip
            bounds = np.zeros(len(scope))
            n_matched += kernels.row_bounds(
                self._unit_rows, shared_rarity, shared_weight, self._totals, one.totals, CUT, sealed(scope), bounds
            )
            total += formula.weight * bounds
        return total, int(n_matched)

    def _score(self, question: FormulaQuestion, asked: list[matching.Asked], rows: Array) -> tuple[Array, Array]:
        """Of each row the score, -inf where no formula matches, and the unit that gives most of it."""
        from shards import formula_kernels as kernels

        total, parts = np.zeros(len(rows)), np.zeros(len(rows))
        units = np.zeros(len(rows), np.int32)
        for formula, one in zip(question.formulas, asked, strict=True):
            scores, best = np.empty(len(rows)), np.empty(len(rows), np.int32)
            kernels.row_scores(one, self._units, sealed(rows), CUT, scores, best)
            part = np.where(scores > 0, formula.weight * scores, 0.0)
            total += part
            units = np.where(part > parts, best, units)
            parts = np.maximum(parts, part)
        return np.where(total > 0, total, -np.inf), units.astype(np.int32)
