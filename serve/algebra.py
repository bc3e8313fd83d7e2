"""What the operators of the algebra mean: results over one table of documents, combined. Pure functions of arrays.

A result is some of the documents, in an order, each with its evidence (nats), its E-value and the sub-query whose span shows it best. All
results of a request are over the same n documents: whatever any sub-query found, which every other has scored as well, so a document that
two of them see has the evidence of both, and no list's end hides it.

| operator | documents | evidence | E |
|---|---|---|---|
| union, fuse | of any | the sum; the weighted sum | the least, times the number of questions (Bonferroni) |
| intersect | of all | the sum | the greatest: that all hold is not shown before the weakest is (intersection-union test, Berger 1982) |
| then | of the second among those of the first | the second's | the second's |
| seed | of the first, ordered by the second | the second's, 0 where it sees nothing | the second's |
| cut | the best | as it was | as it was |
| select | of those that have signal | as union | as union, times all that were asked |
| bridge | of any key | `serve.bridges.chained`, the best key's | likewise, times the number of keys |
| and, or, not, wsum | of any that is not negated | -ln(E / n) of the combined belief | (1 - b) / b (`serve/beliefs.py`) |

Within `then` and `seed` E stays that of a search through everything: the documents of the first are no random part of the corpus, so a
smaller multiplier would make chance hits look rare. Evidence orders, E tells chance from more; where a sum has two parts, the one with the
larger sum need not have the lower E.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from serve.algebra_schema import (
    And,
    Bridge,
    Cut,
    CutFields,
    Fuse,
    FuseFields,
    Intersect,
    Not,
    Operator,
    Or,
    Search,
    Seed,
    Select,
    Then,
    Union,
    WeightedSum,
)
from serve.algebra_text import written
from serve.beliefs import Beliefs, all_hold, any_holds, weighted_mean
from serve.bridges import Key, chained
from serve.classics import CLASSICS, Lists, rrf
from serve.edge import RRF_K
from serve.verdict import CHANCE_EVALUE, STRONG_EVALUE, Verdict
from shards.identity import prefixes
from shards.segment import hash_order
from shards.types import Array

_LEVELS: dict[str, float] = {"strong": STRONG_EVALUE, "weak": CHANCE_EVALUE}
# What different questions say of different documents is often equal but for rounding, in which moments of several shards differ: nothing
# may hang on that. Evidence that is closer, in nats, is equal, and ties are broken by hash as everywhere.
EQUAL_DIGITS, EQUAL = 9, 1e-9
_RANKS: tuple[Verdict, ...] = ("none", "weak", "strong")


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Some of n documents.

    order: (m,) int64, rows, best first. evidence: (n,) float64 nats; log_evalues: (n,) float64; both of the rows in `order` only
    shown: (n,) int64, the sub-query whose span shows the document, -1 elsewhere. values: (n,) by which a classic ranks, else None
    """

    order: Array
    evidence: Array
    log_evalues: Array
    shown: Array
    verdict: Verdict
    why: str
    values: Array | None = None

    @property
    def members(self) -> Array:
        """(n,) bool, which documents it has."""
        found = np.zeros(len(self.evidence), bool)
        found[self.order] = True
        return found

    def within(self, documents: Array) -> "Result":
        """The same of fewer documents, (n,) bool."""
        return replace(self, order=self.order[documents[self.order]])


@dataclass(frozen=True, slots=True, eq=False)
class Crossed:
    """A bridge that was crossed. keys: what was asked with; searches: what each of them asked. verdict, why: of what gave them."""

    keys: Sequence[Key]
    searches: Sequence[Search]
    verdict: Verdict
    why: str


def same(node: Operator) -> str:
    """What tells nodes apart: two that say the same are asked once."""
    return f"{type(node).__name__} {node.model_dump_json()}"


class Algebra:
    """Evaluates trees over one table. hashes: (n, 20) uint8, ascending. n_docs: documents of the corpus. answered: by `same`, the results
    of sub-queries; crossed: by `same`, bridges. What is in neither was not asked, and is nothing. depths: by `same`, of cuts to a recall.

    silent: after evaluating, the operands that `select` has left out, as text, and why; kept: by `same`, how many documents
    each cut left, and of how many.
    """

    def __init__(
        self,
        hashes: Array,
        n_docs: int,
        answered: Mapping[str, Result],
        crossed: Mapping[str, Crossed],
        depths: Mapping[str, int] | None = None,
    ):
        self._hashes, self._log_n = hashes, math.log(max(n_docs, 1))
        self._answered, self._crossed, self._depths = answered, crossed, depths or {}
        self.silent: dict[str, str] = {}
        self.kept: dict[str, tuple[int, int]] = {}

    def of(self, node: Operator, within: Array | None = None) -> Result:
        """The result of a node. within: (n,) bool, documents that may be in it, None for all."""
        match node:
            case Search():
                found = self._answered.get(same(node), self._nothing("it was not asked: the time budget ended"))
                return found if within is None else found.within(within)
            case Union(union=of):
                return self._sum([self.of(inner, within) for inner in of], [1.0] * len(of))
            case Intersect(intersect=of):
                return self._intersect([self.of(inner, within) for inner in of])
            case Then(then=of):
                return self._then(of, within)
            case Seed(seed=(first, second)):
                return self._seed(first, second, within)
            case Cut(cut=fields):
                found = self.of(fields.of, within)
                cut = self._cut(found, fields, self._depths.get(same(node)))
                self.kept[same(node)] = len(cut.order), len(found.order)
                return cut
            case Fuse(fuse=fields):
                return self._fuse([self.of(inner, within) for inner in fields.of], fields)
            case Select(select=of):
                return self._select(of, within)
            case Bridge():
                return self._bridge(node, within)
            case And() | Or() | WeightedSum():
                return self._believed(node, within)
        raise AssertionError(f"{node!r} has no result")

    # --- sets --------------------------------------------------------------------------------------------------------------------

    def _nothing(self, why: str) -> Result:
        n = len(self._hashes)
        return Result(np.zeros(0, np.int64), np.zeros(n), np.full(n, self._log_n), np.full(n, -1), "none", why)

    def _ranked(self, members: Array, values: Array) -> Array:
        """The rows of members, (n,) bool, by values descending, then hash."""
        order = hash_order(self._hashes, np.round(values, EQUAL_DIGITS))
        return order[members[order]]

    def _sum(self, results: Sequence[Result], weights: Sequence[float], n_asked: int | None = None) -> Result:
        """Documents of any that counts. n_asked: questions that there were, for E."""
        counted = [(result, weight) for result, weight in zip(results, weights, strict=True) if weight > 0]
        evidence, shown, loudest = np.zeros(len(self._hashes)), np.full(len(self._hashes), -1), np.zeros(len(self._hashes))
        log_evalues, members = np.full(len(self._hashes), np.inf), np.zeros(len(self._hashes), bool)
        for result, weight in counted:
            inside = result.members
            share = np.where(inside, weight * result.evidence, 0.0)
            evidence += share
            louder = inside & ((share > loudest + EQUAL) | (shown < 0))
            shown[louder], loudest[louder] = result.shown[louder], share[louder]
            log_evalues = np.where(inside, np.minimum(log_evalues, result.log_evalues), log_evalues)
            members |= inside
        log_evalues = np.minimum(log_evalues + math.log(max(n_asked or len(counted), 1)), self._log_n)
        verdict, why = _strongest([result for result, _ in counted])
        return Result(self._ranked(members, evidence), evidence, log_evalues, shown, verdict, why)

    def _intersect(self, results: Sequence[Result]) -> Result:
        united = self._sum(results, [1.0] * len(results))
        members = np.all([result.members for result in results], axis=0)
        log_evalues = np.max([result.log_evalues for result in results], axis=0)
        verdict, why = _weakest(results)
        if verdict != "none" and not members.any():
            verdict, why = "none", "no document is found by all sub-queries"
        return replace(united.within(members), log_evalues=log_evalues, verdict=verdict, why=why)

    def _then(self, of: Sequence[Operator], within: Array | None) -> Result:
        found = self.of(of[0], within)
        for node in of[1:]:
            narrower = self.of(node, found.members)
            found = narrower if found.verdict != "none" else replace(narrower, verdict="none", why=found.why)
        return found

    def _seed(self, first: Operator, second: Operator, within: Array | None) -> Result:
        seeds = self.of(first, within)
        inside = seeds.members
        judged = self.of(second, inside)
        seen = judged.members
        rest = seeds.order[~seen[seeds.order]]
        return Result(
            order=np.concatenate([judged.order, rest]),
            evidence=np.where(seen, judged.evidence, 0.0),
            log_evalues=np.where(seen, judged.log_evalues, self._log_n),
            shown=np.where(seen, judged.shown, np.where(inside, seeds.shown, -1)),
            verdict=judged.verdict if seeds.verdict != "none" else "none",
            why=judged.why if seeds.verdict != "none" else seeds.why,
        )

    def _cut(self, result: Result, fields: CutFields, depth: int | None) -> Result:
        order = result.order
        for evalue in (fields.evalue, _LEVELS.get(fields.verdict or "")):
            if evalue is not None:
                order = order[result.log_evalues[order] <= math.log(evalue)]
        order = order[: fields.n][:depth]
        if len(order) or result.verdict == "none":
            return replace(result, order=order)
        return replace(result, order=order, verdict="none", why="nothing is as good as the cut asks")

    def _fuse(self, results: Sequence[Result], fields: FuseFields) -> Result:
        weights = fields.weights or (1.0,) * len(results)
        fused = self._sum(results, weights)
        if fields.coupling.name == "evidence":
            return fused
        ranks = np.zeros((len(self._hashes), len(results)), np.int64)
        for s, result in enumerate(results):
            ranks[result.order, s] = np.arange(1, len(result.order) + 1)
        lists = Lists(np.column_stack([result.evidence for result in results]), ranks)
        if fields.coupling.name == "rrf":
            values = rrf(lists, np.array(weights), RRF_K if fields.coupling.k is None else fields.coupling.k)
        else:
            values = CLASSICS[fields.coupling.name](lists, np.array(weights))
        return replace(fused, order=self._ranked(fused.members, values), values=values)

    def _select(self, of: Sequence[Operator], within: Array | None) -> Result:
        heard = []
        for node in of:
            result = self.of(node, within)
            if result.verdict == "none" or not len(result.order):
                self.silent[written(node)] = result.why
            else:
                heard.append(result)
        return self._sum(heard, [1.0] * len(heard), len(of)) if heard else self._nothing("no sub-query has signal")

    def _bridge(self, node: Bridge, within: Array | None) -> Result:
        crossed = self._crossed.get(same(node))
        if crossed is None:
            return self._nothing("the bridge was not crossed: the time budget ended")
        if not crossed.keys:
            return self._nothing("no key was found" if crossed.verdict != "none" else crossed.why)
        found = [self.of(search, within) for search in crossed.searches]
        results = []
        for key, one in zip(crossed.keys, found, strict=True):
            evidence, log_evalues = chained(key, one.evidence, one.log_evalues)
            results.append(replace(one, evidence=evidence, log_evalues=log_evalues))
        united = self._sum(results, [1.0] * len(results))
        evidence, own = (np.max([np.where(one.members, one.evidence, 0.0) for one in each], axis=0) for each in (results, found))
        # Far above a key's evidence a document's own is rounded away in the chain's; it still orders what is equal in that.
        order = np.lexsort((prefixes(self._hashes), -np.round(own, EQUAL_DIGITS), -np.round(evidence, EQUAL_DIGITS)))
        order = order[united.members[order]]
        weakest = _weakest([united, replace(united, verdict=crossed.verdict, why=crossed.why)])
        return replace(united, order=order, evidence=evidence, verdict=weakest[0], why=weakest[1])

    # --- beliefs -------------------------------------------------------------------------------------------------------------------

    def _believed(self, node: And | Or | WeightedSum, within: Array | None) -> Result:
        operands = node.all_of if isinstance(node, And) else node.any_of if isinstance(node, Or) else node.wsum.of
        results = [self.of(inner.none_of if isinstance(inner, Not) else inner, within) for inner in operands]
        beliefs = [self._belief(result) for result in results]
        beliefs = [~belief if isinstance(inner, Not) else belief for belief, inner in zip(beliefs, operands, strict=True)]
        sought = [result for result, inner in zip(results, operands, strict=True) if not isinstance(inner, Not)]
        if isinstance(node, And):
            together, (verdict, why) = all_hold(beliefs), _weakest(sought)
        else:
            weights = (isinstance(node, WeightedSum) and node.wsum.weights) or (1.0,) * len(beliefs)
            together = any_holds(beliefs) if isinstance(node, Or) else weighted_mean(beliefs, weights)
            verdict, why = _strongest(sought)
        log_evalues = together.log_evalues
        united = self._sum(sought, [1.0] * len(sought))
        members = united.members & (
            log_evalues < self._log_n - EQUAL
        )  # what is believed no more than a document nothing is known of, is not found
        if verdict != "none" and not members.any():
            verdict, why = "none", "no document is believed in more than any other"
        evidence = np.maximum(self._log_n - log_evalues, 0.0)
        order = self._ranked(members, -log_evalues)
        return replace(united, order=order, evidence=evidence, log_evalues=log_evalues, verdict=verdict, why=why)

    def _belief(self, result: Result) -> Beliefs:
        log_evalues = np.full(len(self._hashes), self._log_n)
        log_evalues[result.order] = np.minimum(result.log_evalues[result.order], self._log_n)
        return Beliefs.of_evalues(log_evalues)


def _strongest(results: Sequence[Result]) -> tuple[Verdict, str]:
    best = max(results, key=lambda result: _RANKS.index(result.verdict))  # the first of equals
    return best.verdict, best.why


def _weakest(results: Sequence[Result]) -> tuple[Verdict, str]:
    worst = min(results, key=lambda result: _RANKS.index(result.verdict))
    return worst.verdict, worst.why
