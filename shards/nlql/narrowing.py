"""The best rows without scoring all.

Where metadata comes first in the order, only rows that may be among the best by that need scores. Of the best by one score alone, where
its space has sketches, those of documents that its own search finds (`shards.vector_sketches`); else the best by all scores, which are
computed, but not made columns and sort keys of 100,000 rows: that took half as long again.
"""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import takewhile

import numpy as np

from shards.layers.vectors_reader import VectorReader
from shards.nlql.checks import is_prunable
from shards.nlql.columns import RowColumns
from shards.nlql.context import Context
from shards.nlql.errors import NLQLError
from shards.nlql.ir import Ref
from shards.nlql.plan import RowPlan, Scorer
from shards.nlql.rows import Block, ShardRows
from shards.nlql.sorting import SortKeys, sort_keys
from shards.plan import SpaceQuery
from shards.types import Array, Budget
from shards.vector_sketches import LEAST_UNITS

SPARE = 6  # documents more than rows are wanted, so that few equal scores at the cut do not undo it
SHARE = 8  # of the documents there are at most one in so many is worth a search
SHARED_UNITS = 50_000  # from which on two threads share segments: half a millisecond each
SCORED_SHARE = 4  # where at least one unit in so many is wanted, all are scored in the order in which they lie


def narrowed(rows: ShardRows, plan: RowPlan, context: Context, within: Sequence[Array], budget: Budget) -> list[Array] | None:
    """Fewer rows, among which are the best of those within, in the same form; None where that cannot be had for less than all scores."""
    if plan.n_rows is None:
        return None
    if (scorer := _ranking(rows, plan, context)) is None:
        return None if plan.by_entry else _by_metadata(rows, plan, context, within)
    if rows.n_units < LEAST_UNITS or plan.n_rows + SPARE > rows.shard.n_docs // SHARE:
        return None
    if any(held.vectors is not None for held in rows.units):  # some have no vector, and coverage is to count them
        return None
    if all(reader.sketched() for reader in _readers(rows, scorer.query) if reader.n_units >= LEAST_UNITS):
        return _by_sketches(rows, plan, scorer, within, budget)
    return None if plan.by_entry else _by_scores(rows, plan, scorer, within, budget)


def _by_metadata(rows: ShardRows, plan: RowPlan, context: Context, within: Sequence[Array]) -> list[Array] | None:
    """Rows that are among the best by the sort keys that come before the first score."""
    first = list(takewhile(lambda key: is_prunable(key.expr, context), plan.order_by))
    names = {scorer.name for scorer in plan.scorers}
    others = [context.resolved(key.expr) for key in plan.order_by[len(first) :]]
    if not first or not others or not all(isinstance(expr, Ref) and expr.name in names for expr in others):
        return None  # another expression may be an error for a row that would be left out
    chosen = [np.flatnonzero(mask) for mask in within]
    try:
        found = [sort_keys(first, _metadata(rows, block), context, at) for block, at in zip(rows.blocks, chosen, strict=True)]
    except NLQLError:  # told where rows are sorted
        return None
    best = SortKeys.join(found, context.plugins).reaching(plan.n_rows)
    edges = np.cumsum([len(at) for at in chosen])[:-1]
    fewer = [np.zeros(len(block), bool) for block in rows.blocks]
    for kept, at, own, base in zip(fewer, chosen, np.split(best, np.searchsorted(best, edges)), [0, *edges], strict=True):
        kept[at[own - base]] = True
    return fewer


def _metadata(rows: ShardRows, block: Block) -> RowColumns:
    """The rows of a block as columns, without scores."""
    entries = rows.shard.views[block.view].segment.entries
    return RowColumns(len(block), entries.metadata, block.places, {}, lambda at: rows.texts(block.units[at]))


def _by_scores(rows: ShardRows, plan: RowPlan, scorer: Scorer, within: Sequence[Array], budget: Budget) -> list[Array] | None:
    """The rows of the best scores, with all that are equal to the last of them."""
    if sum(map(np.count_nonzero, within)) * SCORED_SHARE < rows.n_units:
        return None
    scores = np.full(rows.n_units, np.nan)
    for v, view in enumerate(rows.shard.views):
        if isinstance(reader := view.readers.get(rows.shard.spaces[scorer.query.space].id), VectorReader):
            part = reader.scores_of([scorer.query], np.arange(len(rows.units[v])), budget)[0]
            scores[rows.bases[v] : rows.bases[v] + len(part)] = part
    own = [scores[block.units] for block in rows.blocks]
    of_all = np.concatenate([each if mask.all() else each[mask] for each, mask in zip(own, within, strict=True)])
    if budget.expired or not 0 < plan.n_rows < len(of_all):
        return None
    last = np.partition(of_all, len(of_all) - plan.n_rows)[len(of_all) - plan.n_rows]
    return [(each >= last) & mask for each, mask in zip(own, within, strict=True)]


def _by_sketches(rows: ShardRows, plan: RowPlan, scorer: Scorer, within: Sequence[Array], budget: Budget) -> list[Array] | None:
    """Rows of documents that a search finds.

    The n best rows are of at most n documents, each of which is among the n best by its best unit. So the documents that the search
    finds hold them all, unless a row of these scores no more than a document may that was not found.
    """
    best, numbers, bound = _search(rows, scorer.query, within, plan.n_rows + SPARE, budget)
    if budget.expired:
        return None
    found = np.zeros(rows.shard.n_rows, bool)
    found[numbers[best >= bound]] = True
    fewer, scores = [], []
    for block, mask in zip(rows.blocks, within, strict=True):
        kept = found[rows.shard.views[block.view].entry_docs][block.entries]  # there are fewer entries than rows
        kept &= mask
        fewer.append(kept)
        scores.append(_scores(rows, scorer.query, block.units[kept], budget))
    n_sure = np.count_nonzero(best > bound) if plan.by_entry else np.count_nonzero(np.concatenate(scores) > bound)
    return fewer if n_sure >= plan.n_rows and (scorer.missing is None or scorer.missing < bound) else None


def _readers(rows: ShardRows, query: SpaceQuery) -> list[VectorReader]:
    found = (view.readers.get(rows.shard.spaces[query.space].id) for view in rows.shard.views)
    return [reader for reader in found if isinstance(reader, VectorReader)]


def _ranking(rows: ShardRows, plan: RowPlan, context: Context) -> Scorer | None:
    """The scorer by which alone rows are ranked, best first, if its space has a vector for each of their units."""
    if len(plan.order_by) != 1 or not plan.order_by[0].desc:
        return None
    by = context.resolved(plan.order_by[0].expr)
    scorer = next((one for one in plan.scorers if isinstance(by, Ref) and one.name == by.name), None)
    if scorer is None or scorer.kind != "unit" or scorer.encode or scorer.query is None:
        return None
    return scorer if scorer.query.space == rows.cut.space and scorer.query.space in rows.shard.spaces else None


def _search(rows: ShardRows, query: SpaceQuery, within: Sequence[Array], k: int, budget: Budget) -> tuple[Array, Array, float]:
    """Documents that the search finds: their best scores, their numbers, and what no other one scores more than."""
    shard = rows.shard
    allowed = None
    if not all(mask.all() for mask in within):
        allowed = np.zeros(shard.n_rows, bool)
        for block, mask in zip(rows.blocks, within, strict=True):
            allowed[shard.views[block.view].entry_docs[block.entries[mask]]] = True
    held = _Best(k)
    of_views = ((view, view.readers.get(shard.spaces[query.space].id)) for view in shard.views)
    todo = deque((view, reader) for view, reader in of_views if isinstance(reader, VectorReader))

    def work() -> None:
        while todo:
            try:
                view, reader = todo.popleft()
            except IndexError:  # the other took the last
                return
            own = None if allowed is None else allowed[view.base : view.base + len(view.live_docs)]
            found, scores = reader.best(query, own, k, budget, held.bound)
            held.add(scores, found + np.int64(view.base))

    helping = _helper().submit(work) if len(todo) > 1 and rows.n_units >= SHARED_UNITS else None
    work()
    if helping is not None and not helping.cancel():  # cancelled: it had not yet begun
        helping.result()
    return held.scores, held.numbers, held.bound


class _Best:
    """The best documents of segments so far, from two threads. bound: what the k-th of them scores; -inf for fewer."""

    def __init__(self, k: int):
        self._k, self._lock = k, threading.Lock()
        self.scores, self.numbers, self.bound = np.zeros(0), np.zeros(0, np.int64), -np.inf

    def add(self, scores: Array, numbers: Array) -> None:
        with self._lock:
            self.scores, self.numbers = np.concatenate([self.scores, scores]), np.concatenate([self.numbers, numbers])
            if len(self.scores) >= self._k:
                self.bound = float(np.partition(self.scores, len(self.scores) - self._k)[len(self.scores) - self._k])


@lru_cache(maxsize=1)
def _helper() -> ThreadPoolExecutor:
    """One thread more, for segments that a query has not come to: kernels hold no lock, and what waits for a core to wake costs nothing."""
    return ThreadPoolExecutor(1, "sondage-segments")


def _scores(rows: ShardRows, query: SpaceQuery, units: Array, budget: Budget) -> Array:
    """The scores of units, NaN where the time ended before."""
    scores = np.full(len(units), np.nan)
    for v, at in rows.split(units):
        reader = rows.shard.views[v].readers.get(rows.shard.spaces[query.space].id)
        if not isinstance(reader, VectorReader):
            continue
        part = reader.scores_of([query], units[at] - rows.bases[v], budget)[0]
        scores[at[: len(part)]] = part
    return scores
