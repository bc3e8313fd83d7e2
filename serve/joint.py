"""The coupling `joint`: the ranking of all documents by the sum of what every space says of them, though nobody scores all documents.

The first round is that of evidence: each space lists its best documents, and every space scores whatever is listed anywhere. What
is on no list scores at most what each list ends with, so adds up to no more than T, the sum of what these ends are worth (the
threshold of Fagin, Lotem & Naor 2003, section 4). Ranks with a larger sum than T are certain. If those that are wanted are not all
certain, one further round fetches whatever may still belong to them (`shards/deepening.py`): spaces are given lower ends, chosen so
that they add up to less than the last wanted document has and cost least, and what exceeds one of them is scored by all.

What spaces count is taken from the lists of the first round, which stay what they were (`Candidates.generated`): a document that is
added counts as one that no space lists. So the weights are those of evidence, however deep the search went; it is checked all the same.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster.batching import TryAgain
from serve.evidence import Weighed
from serve.schema import JointInfo
from shards.candidates import merge
from shards.identity import as_keys
from shards.layers.contract import Layer
from shards.plan import Deeper, Plan, Worth
from shards.types import Array, Budget, Candidates, LayerStatus

MOST_ROUNDS = 4  # two do where weights stay; a third is for weights that moved with what the second found
LEAST_S = 0.002  # a round that begins with less finds nothing in time
STEPS = 512  # scores of a space at which its worth is looked at: steps of some hundredths of its standard deviation
SLACK = 1e-9  # of a sum: what rounding may change
EVERY = 1 << 31  # more documents than a list can have


@dataclass(frozen=True, slots=True)
class Asked:
    """A space that is asked. whole: whether its search finds what it would rank best (`Layer.exhaustive` changes nothing)."""

    name: str
    layer: Layer
    whole: bool


async def complete(
    found: Candidates,
    plan: Plan,
    layers: Sequence[Layer],
    weigh: Callable[[Candidates], Weighed],
    ask: Callable[[Plan], Awaitable[Sequence[Candidates]]],
    budget: Budget,
    *,
    wanted: int,
    n_docs: int,
    weights: Mapping[str, float] | None = None,
) -> tuple[Candidates, JointInfo]:
    """The candidates with what further rounds add, and how far their ranking is known to be that of all documents.

    found: of the first round, merged; plan: that was asked; layers: of its queries. weigh: evidence of candidates that have these
    moments; of a space alone it must not fall where the score rises. ask: a further round, one call per host; budget: that of all rounds.
    wanted: ranks that are to be certain. n_docs: live documents of the corpus. weights: the caller's, by space, instead of the corpus's.
    """
    spaces = [Asked(query.space, layer, layer.exhaustive(query) is query) for query, layer in zip(plan.queries, layers, strict=True)]
    order = sorted(range(len(spaces)), key=lambda s: spaces[s].name)
    documents = _documents(found.status, spaces, n_docs)
    rounds, reason = 1, _unsearched(found.status)
    if not reason and budget.remaining_s <= 0:  # the hosts had no more: what they scored last may lack scores
        reason = "the time budget ended with the first round"
    ends = np.full(len(spaces), np.inf) if reason else _ends(found, plan.n_candidates, spaces)
    while True:
        weighed = weigh(found)
        counted = np.array([(weights or {}).get(space.name, weighed.weights[s]) for s, space in enumerate(spaces)], np.float64)
        if not reason and not np.allclose(weighed.fused, _sum(weighed.surprises, weighed.weights, order), rtol=SLACK, atol=SLACK):
            reason, ends = (
                "evidence is no sum over spaces, so nothing is known of documents that no space lists",
                np.full(len(spaces), np.inf),
            )
        ranked = np.sort(_sum(weighed.surprises, counted, order))[::-1]
        ranked = ranked[ranked > 0]
        threshold = float(_sum(_worth(found, weigh, ends[None, :], counted), np.ones(len(spaces)), order)[0])
        least = float(ranked[wanted - 1]) * (1 - SLACK) if len(ranked) >= wanted else 0.0
        if threshold < least or threshold == 0 or reason:
            break
        if rounds == MOST_ROUNDS:
            reason = f"what spaces count went on changing for {rounds} rounds"
        elif budget.remaining_s < LEAST_S:
            reason = f"the time budget ended after round {rounds}"
        else:
            deeper = _deeper(found, plan, spaces, weigh, counted, ends, least, documents)
            queries = (q if a is None else layer.exhaustive(q) for q, layer, a in zip(plan.queries, layers, deeper.above, strict=True))
            asked = replace(plan, queries=tuple(queries), n_candidates=EVERY, n_details=0, budget_s=budget.remaining_s, deeper=deeper)
            try:
                more = merge(await ask(asked), EVERY)
            except TryAgain as error:  # what the first round found is an answer
                reason = f"no further round: {error}"
                continue
            rounds, reason = rounds + 1, _unsearched(more.status)
            found = _joined(found, more)
            if not reason:
                ends = np.array([end if above is None else above for end, above in zip(ends, deeper.above, strict=True)])
    certain = int(np.count_nonzero(ranked * (1 - SLACK) > threshold))
    return found, JointInfo(exact_to=min(certain, wanted), rounds=rounds, candidates=len(found.hashes), documents=documents, reason=reason)


def _documents(status: Sequence[LayerStatus], spaces: Sequence[Asked], n_docs: int) -> int:
    """How many documents the scope has: as a space counted that looks at documents; where none does, those of the corpus."""
    of_documents = {space.name for space in spaces if space.layer.over == "documents"}
    totals: dict[str, int] = {}
    for s in status:
        if s.space in of_documents:
            totals[s.space] = totals.get(s.space, 0) + s.total
    return max(totals.values(), default=n_docs)


def _unsearched(status: Sequence[LayerStatus]) -> str:
    """Why not all was looked at that there is to be seen, "" if it was. A space that is not built for a document says nothing of it."""
    for s in status:
        if s.state not in ("ready", "scoped", "building", "absent"):
            return f"{s.space} on shard {s.shard} is {s.state}" + (f": {s.reason}" if s.reason else "")
    return ""


def _ends(found: Candidates, n_candidates: int, spaces: Sequence[Asked]) -> Array:
    """The score that no document exceeds which is on no list: (s,); -inf: all that match are candidates; inf: nobody knows."""
    ends = np.full(len(spaces), np.inf)
    for s, space in enumerate(spaces):
        listed = found.scores[found.generated[:, s], s]
        if not space.whole:
            continue
        if space.layer.over == "entries":  # the k best entries may be those of fewer documents
            if found.n_matched[s] < n_candidates:
                ends[s] = -np.inf
        elif len(listed) < n_candidates:
            ends[s] = -np.inf
        elif space.layer.monotone:  # else what scores less may be worth more
            ends[s] = listed.min()
    return ends


def _sum(surprises: Array, weights: Array, order: Sequence[int]) -> Array:
    """Over spaces, in the order of their names: (n,)."""
    total = np.zeros(len(surprises))
    for s in order:
        total += weights[s] * surprises[:, s]
    return total


def _worth(found: Candidates, weigh: Callable[[Candidates], Weighed], scores: Array, weights: Array) -> Array:
    """What spaces would add for these raw scores, each by itself: (m, s), of -inf 0, of inf inf."""
    n, nothing = len(scores), np.zeros(scores.shape, np.int64)
    imagined = replace(
        found,
        hashes=np.zeros((n, found.hashes.shape[1]), np.uint8),
        generated=np.zeros(scores.shape, np.bool_),
        scores=np.where(np.isposinf(scores), np.nan, scores),
        starts=nothing,
        ends=nothing,
        details={},
    )
    worth = weights * weigh(imagined).surprises
    return np.where(np.isposinf(scores) & (weights > 0), np.inf, worth)


def _deeper(
    found: Candidates,
    plan: Plan,
    spaces: Sequence[Asked],
    weigh: Callable[[Candidates], Weighed],
    weights: Array,
    ends: Array,
    least: float,
    documents: int,
) -> Deeper:
    """The cheapest new ends by which what is on no list adds up to less than `least`. See `Deeper`."""
    grids = np.full((STEPS, len(spaces)), -np.inf)
    for s, space in enumerate(spaces):
        moments, scores = found.moments[s], found.scores[:, s]
        if space.layer.null == "moments" and moments is not None and np.isfinite(scores).any():
            top = float(scores[np.isfinite(scores)].max())
            grids[:, s] = np.linspace(min(moments.mean - 4 * moments.sd, top), top, STEPS)
    worths = np.maximum.accumulate(_worth(found, weigh, grids, weights), axis=0)
    of_ends = _worth(found, weigh, ends[None, :], weights)[0]
    options = [
        _options(
            grids[:, s],
            worths[:, s],
            float(weights[s]),
            float(ends[s]),
            float(of_ends[s]),
            plan.n_candidates,
            min(int(found.n_matched[s]), documents),
        )
        for s in range(len(spaces))
    ]
    above, values = _cheapest(options, least * (1 - SLACK))
    told = []
    for s, space in enumerate(spaces):
        scaled = space.layer.null == "moments"
        told.append(Worth(*((grids[:, s], worths[:, s]) if scaled else (grids[:0, s], worths[:0, s])), float(weights[s]), values[s]))
    return Deeper(tuple(above), tuple(told), least * (1 - SLACK))


def _options(
    grid: Array, worths: Array, weight: float, end: float, of_end: float, n_listed: int, n_matched: int
) -> tuple[Array, Array, Array]:
    """Ends that a space may be given, what a document at each is worth, and how many documents would be listed: (m,) each; an end of nan
    leaves the list as it is.

    Surprise is -ln p, so as many documents as there are beyond an end of worth v are expected to be e^(dv / weight) times more beyond
    one that is worth dv less.
    """
    if end == -np.inf or not weight:
        return np.array([np.nan]), np.zeros(1), np.zeros(1)
    kept = grid < end
    kept &= np.isfinite(grid)
    anchor, at_end = (of_end, float(n_listed)) if np.isfinite(of_end) else (0.0, float(n_matched))
    expected = at_end * np.exp(np.minimum((anchor - worths[kept]) / weight, 700.0))
    scores = np.concatenate([[-np.inf], grid[kept]])
    values = np.concatenate([[0.0], worths[kept]])
    costs = np.minimum(np.concatenate([[n_matched], expected]), n_matched)
    if np.isfinite(of_end):
        scores, values, costs = np.append(scores, np.nan), np.append(values, of_end), np.append(costs, 0.0)
    return scores, values, costs


def _cheapest(options: Sequence[tuple[Array, Array, Array]], most: float) -> tuple[list[float | None], list[float]]:
    """Of each space one option, so that their values add up to `most` at most and their costs to little: by a price for value
    (Lagrange), bisected, which finds the best for convex costs. Returns ends, None for a list that stays, and values."""
    low, high = -20.0, 60.0  # ln of the price: of nothing, and of all that there is
    chosen = [int(np.argmin(values)) for _, values, _ in options]
    for _ in range(60):
        price = np.exp((low + high) / 2)
        tried = [int(np.argmin(costs + price * values)) for _, values, costs in options]
        if sum(float(values[i]) for i, (_, values, _) in zip(tried, options, strict=True)) <= most:
            chosen, high = tried, (low + high) / 2
        else:
            low = (low + high) / 2
    spare = most - sum(float(values[i]) for i, (_, values, _) in zip(chosen, options, strict=True))
    for s, (_, values, costs) in enumerate(options):  # what a price leaves over, between two steps
        affordable = np.flatnonzero(values <= values[chosen[s]] + spare)
        better = int(affordable[np.argmin(costs[affordable])])
        if costs[better] < costs[chosen[s]]:
            spare -= float(values[better] - values[chosen[s]])
            chosen[s] = better
    ends = [float(scores[i]) for i, (scores, _, _) in zip(chosen, options, strict=True)]
    return [None if np.isnan(end) else end for end in ends], [float(values[i]) for i, (_, values, _) in zip(chosen, options, strict=True)]


def _joined(found: Candidates, more: Candidates) -> Candidates:
    """The candidates with those that are new, which are on no list. Moments, counts and coverage stay those of the first round."""
    known = set(as_keys(found.hashes).tolist())
    new = np.array([i for i, key in enumerate(as_keys(more.hashes).tolist()) if key not in known], np.int64)
    hashes = np.concatenate([found.hashes, more.hashes[new]])
    order = np.argsort(as_keys(hashes), kind="stable")

    def both(name: str) -> Array:
        return np.concatenate([getattr(found, name), getattr(more, name)[new]])[order]

    generated = np.concatenate([found.generated, np.zeros((len(new), found.generated.shape[1]), np.bool_)])[order]
    return replace(found, hashes=hashes[order], generated=generated, scores=both("scores"), starts=both("starts"), ends=both("ends"))
