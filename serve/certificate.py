"""What was not looked at, and what that could still change: the coverage certificate of an answer. Pure functions.

Two numbers of different kinds. A bound: a space that has not looked at a document adds at most its weight times the cap of its null
model, and a space that did look adds to a document on none of its lists no more than the list's end (the threshold of Fagin, Lotem & Naor
2003, section 4). Ranks that lie further above all others than these sums are certain. An estimate: how many of the first hits would be
expected to be others, from what each space has changed in this corpus's searches (`serve.anytime.learned`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serve.anytime.planning import could_change
from serve.anytime.schema import Certificate, Unseen
from serve.evidence import CERTAINTY, Fused
from shards.corpus_nulls import CorpusNulls
from shards.layers.contract import Layer
from shards.nulls import evidence_cap
from shards.plan import SpaceQuery
from shards.types import Array, Candidates, LayerStatus

# From the most harmless to the worst: of several shards' states that of the worst is told.
STATES = ("ready", "scoped", "building", "absent", "late", "missing", "failed")
SEEN = frozenset(("ready", "scoped"))  # "scoped": a space says nothing of what its spec leaves out, however long one waits
UNASKED = "unasked"


@dataclass(frozen=True, slots=True)
class Judged:
    """A space that takes part in the search. layer: its own; n_units: all that it has; low, high: the least and the most that its surprise
    may count when all have looked everywhere; gain: see `serve.anytime.learned.gains`."""

    name: str
    layer: Layer
    n_units: int
    low: float
    high: float
    gain: float


def trusted(
    layers: Mapping[str, Layer], nulls: CorpusNulls | None, silent: Collection[str] = ()
) -> dict[str, tuple[float, float]]:
    """The least and the most that each space may count beside the others of them: spaces of matches 1, others as the corpus taught
    (`CorpusNulls.weights_among`, the best of them fully); where it taught nothing of one, it may certify itself and count fully.

    layers: of the spaces that are or will be asked. silent: spaces that had nothing to ask.
    """
    similar = [name for name, layer in layers.items() if layer.null == "moments"]
    found = {name: (1.0, 1.0) for name in layers}
    if nulls is None or not similar:
        return found
    among = nulls.weights_among(sorted({*similar, *(set(silent) & set(nulls.spaces))}))
    best = max(among.values(), default=0.0)
    for name in similar:
        weight = among.get(name, 0.0) / best if best > 0 else 1.0
        found[name] = (weight, weight if name in nulls.weights else 1.0)
    return found


def cap_of(space: Judged, query: SpaceQuery | None, nulls: CorpusNulls | None) -> float:
    """The most nats that a space says of one document, before weights. query: None where it was not prepared: it may then turn out to hold
    a phrase, say, which a layer that has a surprise of its own judges by its rarity."""
    own = getattr(space.layer.surprise, "__func__", None) is not Layer.surprise if query is None else query.log_p is not None
    if space.layer.null == "rarity" or own:
        return CERTAINTY
    null = nulls.spaces.get(space.name) if nulls is not None else None
    return null.cap if null is not None else evidence_cap(space.n_units)


def unscored(queries: Sequence[SpaceQuery], found: Candidates | None) -> dict[str, float]:
    """Of each space, the share of the candidates that it has not scored."""
    if found is None or not len(found.hashes):
        return {}
    return {query.space: float(np.isnan(found.scores[:, j]).mean()) for j, query in enumerate(queries)}


def unseen(
    spaces: Sequence[Judged], status: Sequence[LayerStatus], unasked: Mapping[str, str], lacking: Mapping[str, float] | None = None
) -> list[Unseen]:
    """The spaces that did not look at all of the scope, those first that may change most. unasked: why spaces were not asked. lacking: of
    spaces that looked everywhere, the share of what others found that they did not score in time (all of it where that is not known)."""
    found = []
    for space in spaces:
        own = [s for s in status if s.space == space.name]
        if space.name in unasked:
            found.append(Unseen(layer=space.name, state=UNASKED, covered=0, total=0, reason=unasked[space.name], change=space.gain))
            continue
        worst = max(own, key=lambda s: STATES.index(s.state) if s.state in STATES else len(STATES), default=None)
        if worst is None or worst.state in SEEN:
            continue
        covered, total = sum(s.covered for s in own), sum(s.total for s in own)
        share = covered / total if total else 0.0
        if total and covered == total and worst.state == "late":  # its own list is whole
            share = 1.0 - (lacking or {}).get(space.name, 1.0)
        found.append(
            Unseen(
                layer=space.name, state=worst.state, covered=covered, total=total, reason=worst.reason, change=space.gain * (1.0 - share)
            )
        )
    return sorted(found, key=lambda one: (-one.change, one.layer))


def certificate(
    spaces: Sequence[Judged],
    queries: Sequence[SpaceQuery],
    found: Candidates | None,
    fused: Fused | None,
    nulls: CorpusNulls | None,
    unasked: Mapping[str, str],
    *,
    wanted: int,
    n_candidates: int,
    by_evidence: bool,
    prepared: Mapping[str, SpaceQuery] | None = None,
) -> Certificate:
    """What may be said of the first `wanted` ranks. spaces: all that were or could be asked; queries: those that were, as `found` has them;
    prepared: by space, those that are made and were not asked.

    by_evidence: whether evidence ranks; of other couplings nothing is certain before all have looked.
    """
    missing = unseen(spaces, found.status if found is not None else (), unasked, unscored(queries, found))
    if not missing:
        return Certificate(final=True, exact_to=wanted, could_change=0.0, at_most=0.0, because="all that was asked looked everywhere")
    left = {one.layer for one in missing}
    asked = {query.space: j for j, query in enumerate(queries)}
    known = dict(prepared or {}) | {query.space: query for query in queries}
    caps = {s.name: s.high * cap_of(s, known.get(s.name), nulls) for s in spaces if s.name in left}
    at_most, exact_to = sum(caps.values()), 0
    if by_evidence and fused is not None and found is not None and len(found.hashes):
        exact_to = _certain(spaces, asked, left, at_most, found, fused, nulls, queries, n_candidates)
    # Where nothing was found, all that is found yet is new.
    change = could_change([(one.change, 1.0) for one in missing]) if found is not None and len(found.hashes) else 1.0
    final = exact_to >= wanted
    names = ", ".join(f"{one.layer} ({one.state})" for one in missing)
    if final:
        because = f"what is left cannot reach the first {wanted}: {names} may add {at_most:.3g} nats to a document at most"
    else:
        because = f"not all was looked at: {names}; about {100 * change:.0f} % of the first hits may be others"
    return Certificate(
        final=final, exact_to=min(exact_to, wanted), could_change=change, at_most=at_most, unseen=missing, because=because
    )


def _certain(
    spaces: Sequence[Judged],
    asked: Mapping[str, int],
    left: Collection[str],
    at_most: float,
    found: Candidates,
    fused: Fused,
    nulls: CorpusNulls | None,
    queries: Sequence[SpaceQuery],
    n_candidates: int,
) -> int:
    """The first so many documents of the ranking that no other can overtake."""
    low, high = np.zeros(len(found.hashes)), np.full(len(found.hashes), at_most)
    beyond = at_most  # what a document may have that no list has
    for space in spaces:
        if space.name in left or (j := asked.get(space.name)) is None:
            continue
        surprises = fused.surprises[:, j]
        low += space.low * surprises
        high += space.high * surprises
        beyond += space.high * _end(space, queries[j], found, surprises, j, n_candidates, nulls)
    order: Array = fused.order
    others = np.maximum.accumulate(np.append(high[order], beyond)[::-1])[::-1]  # from each rank on, the most that one may have
    behind = np.append(low[order] > others[1:], False)
    return int(np.argmin(behind))


def _end(
    space: Judged, query: SpaceQuery, found: Candidates, surprises: Array, j: int, n_candidates: int, nulls: CorpusNulls | None
) -> float:
    """The most nats of a document that is not on the list of a space which looked everywhere."""
    listed = found.generated[:, j]
    whole = space.layer.exhaustive(query) is query
    if space.layer.over == "entries":  # the best entries may be those of fewer documents
        return 0.0 if whole and found.n_matched[j] < n_candidates else cap_of(space, query, nulls)
    if whole and np.count_nonzero(listed) < n_candidates:
        return 0.0
    if not whole or not space.layer.monotone:
        return cap_of(space, query, nulls)
    return float(surprises[listed].min())
