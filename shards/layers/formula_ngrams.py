"""Formulas by what stands together in the corpus's formulas: near where no symbol pair is the same, in vectors the corpus itself teaches.

The score of a formula is the cosine of its vector and that of all formulas asked (`shards.formula_embedding`); of a document, the best
formula's. Beside the space `formula`, which sees what two formulas share, this one sees what usually goes with what. Every formula is
scored: a product of 64 numbers, 0.1 us.
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shards import formula_embedding as embedding
from shards import formula_finding, formula_index
from shards.documents import Documents, Entries
from shards.layers.contract import Encodings, Layer, Progress, Reader, Request
from shards.layers.formula import asked_formulas, form_of
from shards.plan import SpaceQuery
from shards.types import Array, Arrays, Budget, Found, Moments, Scored

_SLICE_UNITS = 16_384  # scored between two looks at the clock: 2 ms
_OF_UNITS = {"unit_rows": np.int32, "unit_starts": np.int64, "unit_ends": np.int64}


@dataclass(frozen=True, slots=True, eq=False)
class NgramQuestion:
    """model: (BUCKETS, DIM) int8, that of the generation; digest: its name. vector: (DIM,) float32, of the formulas asked."""

    model: Array
    digest: str
    vector: Array


class FormulaNgrams(Layer):
    """Formulas in vectors of their symbol pairs, learnt from the corpus."""

    name = "formula_ngrams"
    version = 2  # 1: the cells of a matrix in one line, and no sign that holds more than is read
    granularity = "formula"
    null = "moments"
    shapes = frozenset({"formula"})
    query_format = 'as formula: a text with $…$, or {"latex": …} | {"mathml": …}'
    cost = "10 ms for 100,000 formulas; 256 bytes of memory each"

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        """unit_rows int32, unit_starts, unit_ends int64, of each formula; bag_offsets (u + 1,) int64 into buckets uint16 and counts uint8;
        in_scope (rows,) bool."""
        in_scope = np.ones(len(documents), np.bool_) if scope is None else np.asarray(scope, np.bool_)
        rows = np.flatnonzero(in_scope)
        places: list[tuple[int, int, int]] = []
        bags: list[tuple[Array, Array]] = []
        for i, row in enumerate(rows.tolist()):
            if progress and not i % formula_index.ROWS_BETWEEN_STEPS:
                progress("formulas", i, len(rows))
            text = bytes(documents.content(row))
            is_code = documents.kind_names[documents.kinds[row]].partition(":")[0] == "code"
            for formula, trees in formula_index.read_all(text, formula_finding.find(text, is_code)):
                places.append((row, formula.start, formula.end))
                bags.append(embedding.bag(trees))
        columns = np.array(places, np.int64).reshape(-1, 3)
        return {
            **{name: columns[:, i].astype(dtype) for i, (name, dtype) in enumerate(_OF_UNITS.items())},
            "bag_offsets": np.cumsum([0, *(len(buckets) for buckets, _ in bags)], dtype=np.int64),
            "buckets": np.concatenate([np.zeros(0, np.uint16), *(buckets for buckets, _ in bags)]),
            "counts": np.concatenate([np.zeros(0, np.uint8), *(counts for _, counts in bags)]),
            "in_scope": in_scope,
        }

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        """Bags are carried over: they know nothing of the model."""
        in_scope = np.zeros(len(documents), np.bool_)
        columns: dict[str, list[Array]] = {name: [np.zeros(0, dtype)] for name, dtype in _OF_UNITS.items()}
        firsts, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        buckets, counts, n = [np.zeros(0, np.uint16)], [np.zeros(0, np.uint8)], 0
        for arrays, new_rows in parts:
            in_scope[new_rows[new_rows >= 0]] = arrays["in_scope"][new_rows >= 0]
            rows = new_rows[arrays["unit_rows"]]
            kept = np.flatnonzero(rows >= 0)
            columns["unit_rows"].append(rows[kept])
            for name in ("unit_starts", "unit_ends"):
                columns[name].append(arrays[name][kept])
            firsts.append(arrays["bag_offsets"][:-1][kept] + n)
            sizes.append(np.diff(arrays["bag_offsets"])[kept])
            buckets.append(arrays["buckets"])
            counts.append(arrays["counts"])
            n += len(arrays["buckets"])
        joined = {name: np.concatenate(column) for name, column in columns.items()}
        order = np.argsort(joined["unit_rows"], kind="stable")
        size, first = np.concatenate(sizes)[order], np.concatenate(firsts)[order]
        offsets = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
        taken = np.repeat(first - offsets[:-1], size) + np.arange(offsets[-1])
        return {
            **{name: column[order].astype(_OF_UNITS[name]) for name, column in joined.items()},
            "bag_offsets": offsets,
            "buckets": np.concatenate(buckets)[taken],
            "counts": np.concatenate(counts)[taken],
            "in_scope": in_scope,
        }

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        of_row = np.full(len(arrays["in_scope"]), rows is None)
        if rows is not None:
            of_row[rows] = True
        units = of_row[arrays["unit_rows"]]
        sums = embedding.together(arrays["buckets"], arrays["counts"], arrays["bag_offsets"], units)
        return {"n_units": np.array([np.count_nonzero(units)], np.int64), **sums}

    def recount(self, documents: Documents, entries: Entries) -> Arrays:
        return self.statistics(self.build(documents, entries), documents, entries)

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> Reader:
        return NgramReader(arrays, live)

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> embedding.FormulaStatistics:
        return embedding.FormulaStatistics.collect(parts)

    def check_form(self, request: Request) -> None:
        form_of(request)

    def prepare(self, request: Request, statistics: embedding.FormulaStatistics) -> SpaceQuery | None:
        asked = asked_formulas(request)
        if not asked or not statistics.n_units:
            return None
        model = statistics.model
        bags = [embedding.bag(trees) for _, trees in asked]
        offsets = np.cumsum([0, *(len(buckets) for buckets, _ in bags)], dtype=np.int64)
        buckets, counts = np.concatenate([b for b, _ in bags]), np.concatenate([c for _, c in bags])
        vector = embedding.vectors(buckets, counts, offsets, model).sum(axis=0)
        digest = hashlib.sha256(model.tobytes()).hexdigest()[:16]
        what = ", ".join(text if len(text) <= 80 else f"{text[:79]}…" for text, _ in asked)
        learnt = "vectors of symbol pairs, learnt from this corpus"
        return SpaceQuery("", f"formulas that go with {what}", NgramQuestion(model, digest, vector), model=learnt)


class NgramReader:
    """One segment's bags, and their vectors by the model that was last asked with: it changes with the generation alone."""

    def __init__(self, arrays: Arrays, live: Array):
        self._bags = arrays["buckets"], arrays["counts"], arrays["bag_offsets"]
        self._unit_rows, self._starts, self._ends = arrays["unit_rows"], arrays["unit_starts"], arrays["unit_ends"]
        self._live = np.asarray(live, np.bool_)
        self._covered = self._live & arrays["in_scope"]
        self._row_units = np.searchsorted(self._unit_rows, np.arange(len(live) + 1))
        self._live_units = np.flatnonzero(self._live[self._unit_rows])
        self.n_units = len(self._live_units)
        self._made = "", np.zeros((0, embedding.DIM), np.float32), np.zeros(0)  # model, vectors, their squared lengths
        self._making = threading.Lock()

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        wanted = self._live if allowed is None else self._live & allowed
        scores = self._scores(self._live_units, query.payload, budget)
        done = len(scores)
        # Where time ran out, the document of the next formula is not looked at as a whole.
        n_rows = len(wanted) if done == self.n_units else int(self._unit_rows[self._live_units[done]])
        units = self._live_units[:done]
        kept = np.flatnonzero(wanted[self._unit_rows[units]] & (self._unit_rows[units] < n_rows))
        best, of_best = _best_of_rows(self._unit_rows[units[kept]], scores[kept])
        if len(of_best) > k:  # sorting all costs more than scoring them
            leading = np.flatnonzero(of_best >= np.partition(of_best, len(of_best) - k)[len(of_best) - k])
            best, of_best = best[leading], of_best[leading]
        top = np.argsort(-of_best, kind="stable")[:k]
        chosen = units[kept][best[top]]
        return Found(
            rows=self._unit_rows[chosen],
            scores=of_best[top],
            starts=self._starts[chosen],
            ends=self._ends[chosen],
            n_matched=len(kept),
            moments=Moments.of(scores),
            rows_covered=int(np.count_nonzero((wanted & self._covered)[:n_rows])),
            rows_total=int(np.count_nonzero(wanted)),
        )

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        rows = np.asarray(rows, np.int32)
        scores, spans = np.full(len(rows), np.nan), np.zeros((2, len(rows)), np.int64)
        for i in np.flatnonzero(self._covered[rows]).tolist():
            if budget.expired:
                break
            first, end = self._row_units[rows[i]], self._row_units[rows[i] + 1]
            found = self._scores(np.arange(first, end), query.payload, Budget())
            scores[i] = found.max(initial=-np.inf)
            if len(found):
                unit = first + int(found.argmax())
                spans[:, i] = self._starts[unit], self._ends[unit]
        return Scored(scores, spans[0], spans[1])

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        return self._scores(self._live_units, query.payload, Budget()), self._unit_rows[self._live_units]

    def _scores(self, units: Array, question: NgramQuestion, budget: Budget) -> Array:
        """Cosines of units, (m,) float64; m is smaller than asked when the budget ends."""
        vectors, squares = self._vectors(question)
        scores = np.empty(len(units))
        for first in range(0, len(units), _SLICE_UNITS):
            if budget.expired:
                return scores[:first]
            part = slice(first, first + _SLICE_UNITS)
            scores[part] = embedding.cosines(vectors, squares, units[part], question.vector)
        return scores

    def _vectors(self, question: NgramQuestion) -> tuple[Array, Array]:
        with self._making:
            if self._made[0] != question.digest:
                vectors = embedding.vectors(*self._bags, question.model)
                self._made = question.digest, vectors, embedding.squared(vectors)
            return self._made[1:]


def _best_of_rows(rows: Array, scores: Array) -> tuple[Array, Array]:
    """Of each row its best unit's place, the first of equals, and score. rows: (u,) ascending."""
    if not len(rows):
        return np.zeros(0, np.int64), np.zeros(0)
    firsts = np.flatnonzero(np.diff(rows, prepend=-1))
    best = np.maximum.reduceat(scores, firsts)
    groups = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(rows)))
    places = np.flatnonzero(scores == best[groups])
    return places[np.flatnonzero(np.diff(groups[places], prepend=-1))], best
