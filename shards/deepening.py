"""A further round of a search: every document that may still belong to a ranking, though no list of the first round held it.

The first round lists each space's best documents. A document below every list's end may yet have the larger sum. The coordinator,
who knows the sum that the k-th document has (theta), gives each space a score such that a document which exceeds none of them adds up
to less: whatever exceeds one is listed here and scored by the other spaces, and that is all there can be. This is the threshold
algorithm with both kinds of access (Fagin, Lotem & Naor 2003, section 4), in the two round trips of TPUT (Cao & Wang 2004), with scores
chosen by what they cost instead of theta / m for each list.

Shards never normalise: they bound the coordinator's sum by its tables (`shards.plan.Worth`), leave out what cannot reach theta, and
send raw scores of the rest.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shards.hits import Columns, Hits
from shards.plan import Plan, SpaceQuery, Worth
from shards.shard import Shard, Table, find, over
from shards.types import Array, Budget, Candidates, LayerStatus


class Above(Hits):
    """The hits of one space that score more than a limit, however many these are. n_rows: rows that there are at most."""

    def __init__(self, limit: float, n_rows: int, distinct: bool):
        super().__init__(n_rows + 1, distinct)  # one more than there can be: readers then seek no k-th best
        self._limit = limit

    def floor(self, best: Array) -> float:
        return self._limit

    def with_these(self, best: Array, scores: Array) -> Array:
        return best

    def columns(self) -> Columns:
        columns = super().columns()
        kept = columns.scores > self._limit
        return Columns(*(column[kept] for column in columns))


def most(worth: Worth, shards: Sequence[Shard], query: SpaceQuery, scores: Array) -> Array:
    """The most that a space adds for these raw scores, nan and -inf being none: (n,) float64."""
    found = np.isfinite(scores)
    if not worth.factor:
        return np.zeros(len(scores))
    if len(worth.scores):
        values = np.append(worth.values, np.inf)[np.searchsorted(worth.scores, scores)]
    else:
        layer = next((shard.spaces[query.space].layer for shard in shards if query.space in shard.spaces), None)
        values = worth.factor * layer.surprise(query, np.where(found, scores, -np.inf)) if layer is not None else np.zeros(len(scores))
    return np.where(found, values, 0.0)


def deepen(shards: Sequence[Shard], plan: Plan, budget: Budget) -> Candidates:
    """The documents that `plan.deeper` asks for, of all shards, each scored by every space; those of the first round among them.

    status: of the spaces that were to list something, and of all on every shard if the time was over before all was scored: then
    documents may be missing, and what came last unscored.
    """
    deeper = plan.deeper
    assert deeper is not None, "a plan of a first round"
    n_rows = sum(max(shard.n_rows, sum(len(view.live_entries) for view in shard.views)) for shard in shards)
    hits = [
        Above(np.inf if above is None else above, n_rows, distinct=over(shards, query.space) == "documents")
        for query, above in zip(plan.queries, deeper.above, strict=True)
    ]
    asked = [s for s, above in enumerate(deeper.above) if above is not None]
    found = find(shards, _of(plan, asked), [hits[s] for s in asked], budget)
    listed = [h.columns() for h in hits]
    numbers = np.unique(np.concatenate([columns.numbers for columns in listed]))
    table = Table.of(numbers, listed)
    sums = np.empty(table.scores.shape)
    for s, (query, worth) in enumerate(zip(plan.queries, deeper.worths, strict=True)):
        own = most(worth, shards, query, table.scores[:, s])
        sums[:, s] = np.where(table.generated[:, s], own, worth.unlisted)
    # What could add most is scored first: that rules out most.
    for s in sorted(range(len(plan.queries)), key=lambda s: (-deeper.worths[s].unlisted, s)):
        wanted = (sums.sum(axis=1) > deeper.least) & ~table.generated[:, s]
        found.score(plan.queries[s], numbers, table, s, wanted, plan.where, budget)
        sums[wanted, s] = most(deeper.worths[s], shards, plan.queries[s], table.scores[wanted, s])
    if budget.expired:
        reason = "the time budget ended before all was scored"
        found.status.extend(LayerStatus(q.space, shard.number, "late", 0, shard.n_docs, reason) for q in plan.queries for shard in shards)
    kept = np.flatnonzero(sums.sum(axis=1) > deeper.least)
    return found.candidates(numbers[kept], Table(*(column[kept] for column in table)), hits)


def _of(plan: Plan, chosen: Sequence[int]) -> Plan:
    """The plan with these of its queries alone."""
    return replace(plan, queries=tuple(plan.queries[s] for s in chosen), deeper=None)
