"""Formulas by structure: what is written where, and what is done to what, whatever the variables are called.

The score of a formula is the overlap of its symbol pairs with the question's, rarer pairs counting more, under the one renaming of
variables that agrees best (`shards.formula_kernels`); that of a document is the best formula's; of several formulas asked, the mean, each
by how much it says. Tangent-3 (Zanibbi et al. 2016) ranks candidates by Dice's coefficient of such pairs, then by
the largest subtree that can be unified; Tangent-S (Davila & Zanibbi 2017) does both on layout and operator trees. Here it is one
measure: pairs unified by a one-to-one renaming. That needs no choice of a root, takes time linear in the pairs, and what it shares
without the renaming is a bound, so the best are found exactly.

Surprise: -ln of the chance that one of a document's formulas agrees with the question's in so much of it, from how often signs follow
one another in the corpus's formulas. It is what the commonest part of that size costs: the score does not say which part it was.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from shards import formula_finding, formula_index
from shards import formula_matching as matching
from shards.documents import Documents, Entries
from shards.errors import BadQuery
from shards.formula_trees import OPERATOR_ROOT, Trees
from shards.layers.contract import Encodings, Layer, Progress, Reader, Request
from shards.layers.formula_reader import AskedFormula, FormulaQuestion, FormulaReader
from shards.plan import SpaceQuery
from shards.postings import term_frequencies
from shards.types import Array, Arrays

MAX_FORMULAS = 8  # of a question; of more, those that say most
MAX_CHARS = 32_768  # of a question that are looked at
_LEAST_COST = 0.02  # nats of a sign that is no surprise at all: the surprise must grow with the score
_MOST_PER_ROW = 8.0  # formulas of a document that count as its chances


_SIGNS = re.compile(r"[\\^=_<>+]")  # without any of these words are words, even where a formula is wanted


class Form(BaseModel):
    """The form of the formula space: one of latex, mathml."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    latex: str | None = None
    mathml: str | None = None


@dataclass(frozen=True, slots=True)
class Statistics:
    """terms: (t,) uint64, pairs that occur, ascending; frequencies: (t,) int64, formulas that have each. n_rows: documents in scope."""

    terms: Array
    frequencies: Array
    n_units: int
    n_rows: int

    def frequencies_of(self, keys: Array) -> Array:
        """In how many formulas each pair occurs, (k,) int64. keys: (k,) uint64."""
        places = np.searchsorted(self.terms, keys)
        places[places == len(self.terms)] = 0
        if not len(self.terms):
            return np.zeros(len(keys), np.int64)
        return np.where(self.terms[places] == keys, self.frequencies[places], 0)


class Formula(Layer):
    """Formulas like those of the query."""

    name = "formula"
    version = 2  # 1: the cells of a matrix in one line, and no sign that holds more than is read
    granularity = "formula"
    null = "rarity"
    shapes = frozenset({"formula"})
    query_format = 'a text with $…$, \\(…\\), <math> or a formula alone, or {"latex": …} | {"mathml": …}'
    cost = "some ms for 100,000 formulas"
    written_form = '{"latex": "…"}: the formula that the question is about, in LaTeX without dollar signs'

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        """See `shards.formula_index`."""
        in_scope = np.ones(len(documents), np.bool_) if scope is None else np.asarray(scope, np.bool_)
        step = (lambda done, of: progress("formulas", done, of)) if progress else (lambda _done, _of: None)
        return formula_index.index_documents(documents, in_scope, step)

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        return formula_index.joined(parts, len(documents))

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        chosen, unit_rows, in_scope = None, arrays["unit_rows"], arrays["in_scope"]
        if rows is not None:
            of_row = np.zeros(len(in_scope), np.bool_)
            of_row[rows] = True
            chosen = of_row[unit_rows]
            unit_rows, in_scope = unit_rows[chosen], in_scope[rows]
        terms, frequencies = term_frequencies(arrays, chosen)
        return {
            "n_units": np.array([len(unit_rows)], np.int64),
            "n_rows": np.array([np.count_nonzero(in_scope)], np.int64),
            "terms": terms,
            "frequencies": frequencies,
        }

    def recount(self, documents: Documents, entries: Entries) -> Arrays:
        return self.statistics(self.build(documents, entries), documents, entries)

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> Reader:
        return FormulaReader(arrays, documents, live)

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> Statistics:
        terms, place = np.unique(np.concatenate([np.zeros(0, np.uint64), *(part["terms"] for _, part in parts)]), return_inverse=True)
        frequencies = np.zeros(len(terms), np.int64)
        np.add.at(
            frequencies,
            place,
            np.concatenate([np.zeros(0, np.int64), *(sign * part["frequencies"].astype(np.int64) for sign, part in parts)]),
        )
        n_units, n_rows = (sum(sign * int(part[name][0]) for sign, part in parts) for name in ("n_units", "n_rows"))
        used = frequencies > 0
        return Statistics(terms[used], frequencies[used], n_units, n_rows)

    def prepare(self, request: Request, statistics: Statistics) -> SpaceQuery | None:
        asked = asked_formulas(request)
        if not asked:
            return None
        weighed = [(*_weigh(trees, statistics), trees, text) for text, trees in asked]
        # Of a question with formulas the letters on their own say nothing.
        telling = [one for one in weighed if not _is_lone(one[2])] or weighed
        telling = sorted(telling, key=lambda one: -float(one[1].sum()))[:MAX_FORMULAS]
        says = [float(costs.sum()) for _, costs, _, _ in telling]
        total = math.fsum(says)
        formulas = tuple(
            AskedFormula(trees, rarities, weight / total) for (rarities, _, trees, _), weight in zip(telling, says, strict=True)
        )
        costs = np.sort(np.concatenate([costs for _, costs, _, _ in telling]))
        per_row = min(max(statistics.n_units / max(statistics.n_rows, 1), 1e-3), _MOST_PER_ROW)
        question = FormulaQuestion(formulas, costs, per_row)
        what = ", ".join(text if len(text) <= 80 else f"{text[:79]}…" for *_, text in telling)
        log_p = min(math.log(per_row) - total, 0.0)
        return SpaceQuery("", f"formulas like {what}", question, log_p)

    def check_form(self, request: Request) -> None:
        form_of(request)

    def surprise(self, query: SpaceQuery, scores: Array) -> Array:
        """-ln p that one of a document's formulas agrees as much: strictly increasing, by what the cheapest part of that size costs."""
        question: FormulaQuestion = query.payload
        found = np.isfinite(scores)
        shares = np.linspace(0.0, 1.0, len(question.costs) + 1)
        nats = np.interp(np.where(found, scores, 0.0), shares, np.concatenate([[0.0], np.cumsum(question.costs)]))
        expected = question.per_row * np.exp(-nats)
        return np.where(found, -np.log(-np.expm1(-expected)), 0.0)


def form_of(request: Request) -> tuple[str, str]:
    """The text of a form, and its notation. Raises BadQuery."""
    try:
        form = Form(**request.form)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise BadQuery(f"Formula form: {problems}. Expected {Formula.query_format}.") from None
    if (form.latex is None) == (form.mathml is None):
        raise BadQuery("Formula form needs one of latex, mathml. Give exactly one.")
    return (form.latex, "latex") if form.latex is not None else (form.mathml or "", "mathml")


def asked_formulas(request: Request) -> list[tuple[str, Trees]]:
    """The formulas asked, as written and as trees; none where the common text has none. Raises BadQuery."""
    if request.form:
        text, notation = form_of(request)
        found = _found(text, notation) if notation == "mathml" or "$" in text or "\\begin" in text else []
        found = found or _whole(text, notation)
        if not found:
            raise BadQuery(f"Formula: there is no formula in {text[:80]!r}. Write mathematics, as in x^2 + y^2 = z^2.")
        return found
    text = request.text[:MAX_CHARS]
    marked = _found(text, "latex")
    found = marked or _found(text, "typed")
    if found and not request.explicit and all(_is_lone(trees) for _, trees in found):
        return []
    wordy = formula_finding.has_words(text)
    if not marked and (((found or request.explicit) and not wordy) or (not found and request.explicit and _SIGNS.search(text))):
        notation = "mathml" if "<m" in text else "latex" if "\\" in text or "{" in text else "typed"
        found = _whole(text, notation) or found
    return found


def _found(text: str, notation: str) -> list[tuple[str, Trees]]:
    body = text.encode("utf-8", "replace")
    kept = {}
    for formula, trees in formula_index.read_all(body, formula_finding.find(body)):
        if notation == "typed" or formula.notation != "typed":
            kept.setdefault(body[formula.start : formula.end].decode("utf-8", "replace"), trees)
    return list(kept.items())


def _whole(text: str, notation: str) -> list[tuple[str, Trees]]:
    trees = formula_index.trees_of_text(text[:MAX_CHARS], notation)
    return [(text.strip(), trees)] if len(trees.labels) else []


def _is_lone(trees: Trees) -> bool:
    """Whether a formula is one sign, or one with an index."""
    n_signs = int(np.count_nonzero(trees.edges < OPERATOR_ROOT))
    return n_signs <= 1


def _weigh(trees: Trees, statistics: Statistics) -> tuple[Array, Array]:
    """Of a formula's distinct pairs what each counts by rarity, (k,) int32; and of each sign the nats for which it stands there by chance.

    A sign's chance is that of following the sign before it: in how many of the formulas that have the one both stand so.
    """
    pairs = matching.pairs(trees)
    frequencies = statistics.frequencies_of(pairs.keys)
    rarity = np.log((statistics.n_units + 1) / (frequencies + 1))
    rarities = (pairs.weights * (2 + np.clip(np.rint(rarity), 0, 10))).astype(np.int32)
    per_pair = np.repeat(frequencies, pairs.counts)
    own = np.zeros(len(trees.labels))
    alone = pairs.ancestors == pairs.descendants
    own[pairs.descendants[alone]] = per_pair[alone]
    adjacent = (trees.parents[pairs.descendants] == pairs.ancestors) & (trees.edges[pairs.descendants] < OPERATOR_ROOT) & ~alone
    costs = np.log((own[pairs.ancestors[adjacent]] + 1) / (per_pair[adjacent] + 0.5))
    first = math.log((statistics.n_units + 1) / (own[0] + 0.5))
    return rarities, np.maximum(np.concatenate([[first], costs]), _LEAST_COST)
