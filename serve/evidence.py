"""What all spaces together say of each document: raw scores made comparable, evidence summed.

Hosts never normalise (EVIDENCE.md section 6: it ruins the ranking as soon as shards differ in topic). They send raw scores
and moments; `shards.candidates` merges them, and here they become surprise, once.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shards.corpus_nulls import CorpusNulls
from shards.nulls import FusedNull, log_signal_evalue, normal_surprise, soft_cap, standardise
from shards.segment import hash_order
from shards.types import Array, Candidates, Moments

# The most that one rarity layer may say, in nats (p = 10^-28). Similarity spaces stay below ln(N B) + 2, 21 nats at a million
# units, so a certain match outweighs three of them at their loudest, and two certain matches still outweigh one.
CERTAINTY = 64.0


@dataclass(frozen=True, slots=True)
class SpaceFacts:
    """What fusion has to know of one space of the plan.

    n_units: its live units in the scope asked, the multiplier of E. surprise: `Layer.surprise` bound to a query that has a
    `log_p` (always in rarity spaces): raw scores to nats. whole: it has looked at the whole scope; False where it is built for
    some paths only, or was late: what it did not find says nothing then. most: `SpaceQuery.most`. looked: the share of the scope that
    it has looked at, of what it should have: below 1 where it was late, or a shard was away. partly: it is built for some documents of the
    scope so far, and what it has not looked at may have been scored on the fly, or not.
    """

    name: str
    null: Literal["moments", "rarity"]
    n_units: int
    origin: Literal["source", "derived"] = "source"
    surprise: Callable[[Array], Array] | None = None
    whole: bool = True
    most: float | None = None
    looked: float = 1.0
    partly: bool = False
    built: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Weighed:
    """The evidence of candidates. n documents in the order of `Candidates`, s spaces in the order of the plan.

    fused: (n,) nats, sum over spaces of weight x surprise; of_sources: (n,) the part of it that spaces of the source gave
    derived: (s,) bool, whether a space sees texts about documents instead of documents
    scores, z, surprises: (n, s). z is nan in rarity spaces; surprise is 0 where a space has no match or did not look, and where it is
        partly built and what it says is not to be compared (`_comparable`)
    gates: (s,) what the known-item probes say of a space. weights: (s,) what its surprise counts: as learnt from cloze probes, else
        its gate; raised where a space certifies itself
    certainties: (s,) how far a space certifies itself, 0 to 1: its best hit is one that chance hardly gives
    nulls: (s,) where surprise comes from: "probes" (a fitted table), "normal" (no table yet), "rarity"
    aside: (s,) bool, partly built spaces that nothing counts of: the others count as they do without them
    """

    fused: Array
    of_sources: Array
    derived: Array
    scores: Array
    z: Array
    surprises: Array
    gates: Array
    weights: Array
    certainties: Array
    nulls: tuple[str, ...]
    aside: Array


@dataclass(frozen=True, slots=True, eq=False)
class Fused(Weighed):
    """Candidates with their evidence and what is to be told of it.

    hashes: (n, 20) uint8. order: (n,) int64, by fused evidence descending, then hash
    log_evalues: (n,) ln E of fused evidence, see `fused_null`. signal_log_evalues: (n, s) ln E of each space's, nan where it has no
        match or did not look
    log_evalues_of_sources: (n,) the same of `of_sources` alone, which says what the documents themselves do
    fused_null: where `log_evalues` come from: "gumbel" (fitted on queries without an answer) or "bound" (too timid, see
        `log_combined_p`: no fit yet, or other spaces were asked than fitted)
    best: (n,) the space whose span shows the document best, -1 for none; starts, ends: (n,) int64, that span
    moments: per space, merged
    silent: spaces that had nothing to ask, none of the query's words being in the corpus, say
    """

    hashes: Array
    order: Array
    log_evalues: Array
    log_evalues_of_sources: Array
    signal_log_evalues: Array
    fused_null: str
    best: Array
    starts: Array
    ends: Array
    moments: tuple[Moments | None, ...]
    silent: frozenset[str]


def _self_certainty(surprises: Array, n_units: int) -> float:
    """0 where the best hit's E in its own space is 0.1 or more, 1 from 0.01 down (EVIDENCE.md section 9, step 6)."""
    return float(_certainty(surprises.max(keepdims=True), n_units)[0]) if len(surprises) else 0.0


def _certainty(surprises: Array, n_units: int) -> Array:
    """0 where a hit's E in its own space is 0.1 or more, 1 from 0.01 down (EVIDENCE.md section 9, step 6)."""
    return np.clip((surprises - math.log(max(n_units, 1)) - math.log(10.0)) / math.log(10.0), 0.0, 1.0)


def _comparable(scores: Array, surprises: Array, others: Array, n_units: int) -> Array:
    """What a partly built space says of documents, as far as that may be set beside what it would say of others: (n,) nats.

    Whoever happens to have an index must not pass by those that have none. So it counts of the documents that the others rank first, up
    to the first that it has not looked at: these stay before the rest, in its order. And wherever it is certain by itself, in a corpus
    where it would be built for all. scores: nan where it has not looked. others: (n,) nats, what the whole spaces say together; n_units:
    that it will have when all is built. (cisi, dense for 128 of 1,459 documents: nDCG@10 .277 where all it said counted, .372 without it.)
    """
    order = np.argsort(-others, kind="stable")
    unseen = np.isnan(scores[order])
    first = order[: int(np.argmax(unseen)) if unseen.any() else len(order)]
    counts = _certainty(surprises, n_units)
    counts[first] = 1.0
    return surprises * counts


def log_combined_p(fused: Array, total_weight: float, n_spaces: int) -> Array:
    """ln of an upper bound of P(weighted sum of surprises >= fused) by chance, however the spaces depend on one another.

    e times the weighted geometric mean of p-values is a p-value (Vovk & Wang 2020, theorem 2); one space needs no factor e.
    Independence (a Gamma tail) would be less timid, but dense, static and BM25 agree about chance hits too: on senseless queries
    it gave E <= 0.01 for 16 to 20 % of them.
    """
    if total_weight <= 0:
        return np.zeros_like(fused)
    return np.minimum((1.0 if n_spaces > 1 else 0.0) - fused / total_weight, 0.0)


def taking_part(
    spaces: Sequence[SpaceFacts], moments: Sequence[Moments | None], nulls: CorpusNulls | None, silent: Collection[str]
) -> list[str]:
    """The similarity spaces whose silence about a document says something: those that looked, and those that had nothing to ask although
    they are asked in words. One that failed on every shard says nothing."""
    looked = {space.name for space, seen in zip(spaces, moments, strict=True) if space.null == "moments" and seen is not None}
    worded = set() if nulls is None else set(nulls.fused.spaces if nulls.fused is not None else nulls.spaces)
    return sorted(looked | (worded & set(silent)))


def _trust(spaces: Sequence[SpaceFacts], similar: Array, nulls: CorpusNulls | None, together: Sequence[str]) -> Array:
    """What each space counts before the query is looked at: exact spaces fully, similarity spaces as the corpus taught of those that take
    part, the best of them fully. Where none of them is worth anything, none is better than another."""
    trust = np.ones(len(spaces))
    if nulls is None or not similar.any() or not together:
        return trust
    among = nulls.weights_among(together)
    learnt = np.array([among.get(space.name, 0.0) for space in spaces])
    best = max(among.values())
    if best > 0 and learnt[similar].any():
        trust[similar] = learnt[similar] / best
    return trust


def weigh(candidates: Candidates, spaces: Sequence[SpaceFacts], nulls: CorpusNulls | None, silent: Collection[str] = ()) -> Weighed:
    """Sums evidence over spaces: F = sum of weight x surprise, missing and unmatched counting 0.

    candidates: merged; spaces: in the plan's order; nulls: None for a corpus that has none yet; silent: similarity spaces that were
    to be asked but had nothing to ask (`Layer.prepare` gave None): their evidence is 0. A similarity space that is away, or failed on
    every shard, is as one that was not asked: the others count as they do without it (`CorpusNulls.weights_among`). One that looked at a
    part of the scope counts in proportion. One that is partly built counts where that is fair (`_comparable`), and not before a null model
    was fitted on its sample.
    Spaces are summed in the order of their names, so that the plan's order does not change a bit.
    """
    n, s = candidates.scores.shape
    z, surprises = np.full((n, s), np.nan), np.zeros((n, s))
    gates, certainty, kinds = np.ones(s), np.zeros(s), []
    for j, space in enumerate(spaces):
        scores, moments = candidates.scores[:, j], candidates.moments[j]
        if space.null == "rarity":
            assert space.surprise is not None, f"space {space.name} has neither moments nor a surprise of its own"
            evidence = soft_cap(space.surprise(np.where(np.isnan(scores), -np.inf, scores)), CERTAINTY)
            kinds.append("rarity")
        elif nulls is not None and space.name in nulls.spaces:
            null = nulls.spaces[space.name]
            z[:, j] = null.z(scores, moments)
            evidence = null.surprise(z[:, j])
            gates[j] = null.gate
            kinds.append("probes")
        else:
            z[:, j] = standardise(scores, moments)
            evidence = normal_surprise(z[:, j], moments.n if moments else 0)
            kinds.append("normal")
        if space.null == "moments" and space.surprise is not None:
            evidence = np.fmax(evidence, soft_cap(space.surprise(scores), CERTAINTY))
        surprises[:, j] = np.where(np.isfinite(scores), np.maximum(evidence, 0.0), 0.0)
        # What a space is worth even when it is loud was learnt, if it was: then it need not certify itself (scifact: +0.004 nDCG).
        if space.null == "moments" and space.origin == "source" and not space.partly and not (nulls and space.name in nulls.weights):
            n_units = moments.n if moments else space.n_units
            certainty[j] = _self_certainty(surprises[candidates.generated[:, j], j], n_units)
    similar = np.array([space.null == "moments" for space in spaces], bool)
    partly = np.array([space.null == "moments" and space.partly for space in spaces], bool)
    together = taking_part(spaces, candidates.moments, nulls, silent)
    aside = np.zeros(s, bool)
    if partly.any() and not partly[similar].all():  # else they are all there is
        others = np.maximum(_trust(spaces, similar & ~partly, nulls, _without(together, spaces, partly)), certainty)
        base = surprises @ np.where(partly, 0.0, others)
        fitted = [nulls is not None and space.name in nulls.spaces for space in spaces]
        for j in np.flatnonzero(partly).tolist():
            n_units = round(spaces[j].n_units / max(spaces[j].built, 1e-6))
            heard = fitted[j] or not any(fitted)
            surprises[:, j] = _comparable(candidates.scores[:, j], surprises[:, j], base, n_units) if heard else 0.0
            aside[j] = not (surprises[:, j] > 0).any()
    weights = np.maximum(_trust(spaces, similar & ~aside, nulls, _without(together, spaces, aside)), certainty)
    weights[aside] = 0.0
    # Moments of some shards are not those of all: where these differ in topic, z of a hit may be too large. It counts the less for it.
    weights = np.where(similar, weights * [space.looked for space in spaces], weights)
    derived = np.array([space.origin == "derived" for space in spaces], bool)
    fused, of_sources = np.zeros(n), np.zeros(n)
    for j in sorted(range(s), key=lambda j: spaces[j].name):
        fused += weights[j] * surprises[:, j]
        if not derived[j]:
            of_sources += weights[j] * surprises[:, j]
    return Weighed(fused, of_sources, derived, candidates.scores, z, surprises, gates, weights, certainty, tuple(kinds), aside)


def _without(together: Sequence[str], spaces: Sequence[SpaceFacts], left: Array) -> list[str]:
    """The spaces that take part, but for some: (s,) bool."""
    out = {space.name for space, gone in zip(spaces, left, strict=True) if gone}
    return [name for name in together if name not in out]


def fuse(
    candidates: Candidates,
    spaces: Sequence[SpaceFacts],
    nulls: CorpusNulls | None,
    n_docs: int,
    silent: Collection[str] = (),
    n_words: int | None = None,
    likeness: float = 0.0,
) -> Fused:
    """Evidence (`weigh`), ranked and with its E-values. n_docs: live documents; n_words: length of the query, None where it has no words,
    and likeness: to a sentence (`CorpusNulls.likeness_of`), by which the E of fused evidence goes."""
    weighed = weigh(candidates, spaces, nulls, silent)
    n, s = candidates.scores.shape
    surprises, weights, fused = weighed.surprises, weighed.weights, weighed.fused
    best, loudest = np.full(n, -1), np.zeros(n)
    # A derived text (a summary) points to a document but is not in it: its span serves only where no source space has one.
    for j in sorted(range(s), key=lambda j: (spaces[j].origin == "derived", spaces[j].name)):
        share = weights[j] * surprises[:, j]
        better = (share > loudest) & ((best < 0) | (spaces[j].origin == "source"))
        best[better], loudest[better] = j, share[better]
    log_signal = np.column_stack(
        [log_signal_evalue(surprises[:, j], space.n_units) for j, space in enumerate(spaces)] or [np.zeros((n, 0))]
    )
    together = _without(taking_part(spaces, candidates.moments, nulls, silent), spaces, weighed.aside)
    # What a partly built space adds where it was asked on the fly is no sum that any null was fitted on.
    mixed = any(space.null == "moments" and space.partly and not out for space, out in zip(spaces, weighed.aside.tolist(), strict=True))
    fitted = nulls.fused_among(together) if nulls is not None and not mixed else None
    of_sources_null = nulls.fused_of_sources if nulls is not None and fitted is nulls.fused else None

    def evalues(evidence: Array, null: FusedNull | None, counted: Array) -> Array:
        if null is not None:
            return null.log_evalue(evidence, n_docs, n_words, likeness)
        # an exact space is silent on most queries: it takes part where it has a match
        similar = np.array([space.null == "moments" for space in spaces], bool)
        part = weights * counted * (similar | (surprises > 0).any(axis=0))
        return math.log(max(n_docs, 1)) + log_combined_p(evidence, float(part.sum()), int(np.count_nonzero(part)))

    log_evalues = of_sources = evalues(fused, fitted, np.ones(s))
    if weighed.derived.any():
        of_sources = evalues(weighed.of_sources, of_sources_null, ~weighed.derived)
    rows, at = np.arange(n), np.maximum(best, 0)
    return Fused(
        *(getattr(weighed, name) for name in Weighed.__slots__),
        hashes=candidates.hashes,
        order=hash_order(candidates.hashes, fused),
        log_evalues=log_evalues,
        log_evalues_of_sources=of_sources,
        signal_log_evalues=np.where(np.isfinite(candidates.scores), log_signal, np.nan),
        fused_null="gumbel" if fitted is not None else "bound",
        best=best,
        starts=np.where(best >= 0, candidates.starts[rows, at], 0) if s else np.zeros(n, np.int64),
        ends=np.where(best >= 0, candidates.ends[rows, at], 0) if s else np.zeros(n, np.int64),
        moments=candidates.moments,
        silent=frozenset(silent),
    )
