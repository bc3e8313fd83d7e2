"""Running a query for rows over opened shards: conditions, scores, order; the texts of what is returned come last.

What metadata alone decides comes first, then scores, in one pass over the vectors of each space, then what is left of the conditions, in
the order in which they were written. Whether a row raises an error follows that order alone, so it does on every placement or on none.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shards.documents import Documents
from shards.nlql.answers import ROWS, Failure, Insertion, RowAnswer, unlooked
from shards.nlql.checks import is_prunable, is_quick, may_raise
from shards.nlql.columns import RowColumns, mask, prune
from shards.nlql.context import Context
from shards.nlql.errors import NLQLError
from shards.nlql.facets import Counts
from shards.nlql.ir import And, Expr
from shards.nlql.merging import merge_selected
from shards.nlql.narrowing import narrowed
from shards.nlql.plan import RowPlan
from shards.nlql.rows import ShardRows, n_runs, rows_of
from shards.nlql.scoring import Scores, score
from shards.nlql.sorting import SortKeys, sort_keys
from shards.nlql.units import CHUNK, cut, texts
from shards.plan import Everything
from shards.plugins import PROCESS, Plugins
from shards.shard import Shard
from shards.types import Array, Budget, LayerStatus

PORTION = 1 << 17  # rows that quick conditions are asked of between two looks at the clock
# Of others, which read texts, first so many, then as many more as that long allows: a text takes 1 us or, of a pattern, a hundred.
FEW_ROWS, SLICE_S = 1 << 11, 0.004


def run_rows(shards: Sequence[Shard], plan: RowPlan, budget: Budget, plugins: Plugins = PROCESS) -> RowAnswer:
    """The rows of these shards, as if they were one. What a row raises is in the answer, not raised."""
    context = Context(dict(plan.field_types), {binding.name: binding.expr for binding in plan.let}, plugins, budget)
    selected: list[Selected] = []
    late: list[LayerStatus] = []
    for shard in shards:
        if selected and budget.expired:
            late += unlooked(plan, [shard.number], "late", "the time budget ended before this shard", shard.n_entries)
            continue
        try:
            selected.append(_Scan(shard, plan, context, budget).selected())
        except NLQLError as error:  # of the question, not of a row: it fails on each shard in the same way
            return RowAnswer(failure=Failure(error, -1))
    return merge_selected(selected, plan, context, tuple(late))


def load_kernels() -> None:
    """Has compiled code loaded, so that no query waits for it: 0.3 s in a new process, and seconds where it was never compiled."""
    from shards.vector_kernels import inner_products_of

    documents = Documents.pack([(bytes(20), b"One. Two.", "prose")])
    texts(documents, CHUNK, *cut(documents, CHUNK))
    vectors = np.zeros((0, 1), np.float32)
    vectors.setflags(write=False)  # as mapped ones are
    inner_products_of(vectors, np.zeros(0, np.int64), np.zeros((1, 1)), np.zeros((1, 0)))


class Part:
    """Rows `low` to `high` of a block, in order of insertion. within: (r,) bool, those that count so far."""

    def __init__(self, rows: ShardRows, b: int, low: int, high: int, names: Sequence[str], scores: Array, within: Array):
        self.rows, self.block, self.within = rows, rows.blocks[b], within
        self.entries, self.units, self.ranks = (of[low:high] for of in (self.block.entries, self.block.units, self.block.ranks))
        self.held = rows.shard.views[self.block.view].segment.entries
        self.scores = scores  # (scorers, r) float64
        self.columns = RowColumns(
            high - low,
            self.held.metadata,
            self.block.places[low:high],
            dict(zip(names, scores, strict=True)),
            lambda at: rows.texts(self.units[at]),
        )

    def places(self, at: Array) -> list[tuple[Insertion, int]]:
        """What orders rows among those of all shards: the place of each one's entry, and its ordinal."""
        held, units = self.held, self.units[at]
        ordinals = (units - self.rows.siblings(units)[0]).tolist()
        found = []
        for row, ordinal in zip(self.entries[at].tolist(), ordinals, strict=True):
            place = Insertion.of(int(held.mtimes_ns[row]), held.source_names[held.sources[row]], held.path(row))
            found.append((place, ordinal))
        return found


@dataclass
class Selected:
    """The best rows of a shard, best first, as places: part `of` [i], its row `at` [i]. The texts are not read yet.

    keys: what they are sorted by; None: order of insertion. also: where a row is made of several units, these: (part, row), best first.
    """

    parts: Sequence[Part]
    of: Array
    at: Array
    keys: SortKeys | None
    also: Sequence[tuple[Array, Array]] | None = None
    n_matched: int = 0
    facets: Sequence[tuple[tuple[Any, int], ...]] = ()
    status: Sequence[LayerStatus] = ()
    failure: Failure | None = None
    n_scored: int = 0
    n_encoded: int = 0

    def __len__(self) -> int:
        return len(self.of)

    def places(self) -> list[tuple[Insertion, int]]:
        """As `RowAnswer.places`."""
        found: list[tuple[Insertion, int]] = [(Insertion(0, "", "", 0, ""), 0)] * len(self)
        for p in np.unique(self.of).tolist():
            rows = np.flatnonzero(self.of == p)
            for i, place in zip(rows.tolist(), self.parts[p].places(self.at[rows]), strict=True):
                found[i] = place
        return found


@dataclass
class _Scan:
    """One query over one shard."""

    shard: Shard
    plan: RowPlan
    context: Context
    budget: Budget
    failures: list[Failure] = field(default_factory=list)
    n_missed: int = 0  # entries of which a row was not looked at, since the time ended

    def selected(self) -> Selected:
        plan = self.plan
        self.rows = rows_of(self.shard, plan.base, self.context.plugins)
        within, conditions = self._pruned()
        n_entries = sum(block.n_entries(each) for block, each in zip(self.rows.blocks, within, strict=True))
        fewer = None
        if not plan.facets and not any(conditions):
            fewer = narrowed(self.rows, plan, self.context, within, self.budget)
        scored = within if fewer is None else fewer
        scores = score(self.rows, plan.scorers, scored, self.budget)
        parts = self._parts(scored, scores, conditions)
        chosen = [np.flatnonzero(part.within) for part in parts]
        keys = self._keys(parts, chosen) if not self.failures else None
        found = self._best(parts, chosen, keys) if not self.failures else Selected(parts, *(np.zeros(0, np.int64),) * 2, None)
        found.failure = min(self.failures, key=lambda one: one.order, default=None)
        if fewer is None:
            found.n_matched = found.n_matched if plan.by_entry else sum(map(len, chosen))
        else:
            found.n_matched = n_entries if plan.by_entry else sum(int(np.count_nonzero(each)) for each in within)
        found.status = self._status(n_entries, scores)
        found.n_scored, found.n_encoded = sum(int(np.count_nonzero(each)) for each in scored), scores.n_encoded
        return found

    # --- conditions ------------------------------------------------------------------------------------------------------------

    def _pruned(self) -> tuple[list[Array], list[list[Expr]]]:
        """Rows that count by what entries alone say, and the conditions that are left to be tested, by block.

        A condition on metadata is tested here if no entry of the segment raises on it, and if nothing that was written before it might
        have raised on rows that it takes away.
        """
        masks, left = [], []
        among = self._among()
        for block in self.rows.blocks:
            view = self.shard.views[block.view]
            entries = view.segment.entries
            allowed = np.ones(len(entries), bool) if among is None else among[view.entry_docs]
            if self.plan.where != Everything() and (scope := view.fields.mask(self.plan.where)) is not None:
                allowed = allowed & scope
            conditions, is_clean = [], True
            for condition in self.plan.filter:
                found = None
                if is_clean and is_prunable(condition, self.context):
                    asked = (allowed & view.live_entries)[entries.order]
                    found = prune(condition, entries.metadata, len(entries), self.context, asked)
                if found is None:
                    conditions.append(condition)
                    is_clean = is_clean and not may_raise(condition, self.context)
                else:
                    allowed = found[entries.places]
            masks.append(np.ones(len(block), bool) if allowed.all() else allowed[block.entries])
            left.append(conditions)
        return masks, left

    def _among(self) -> Array | None:
        """Whether each document is one of those that count: (document numbers,) bool."""
        if self.plan.among is None:
            return None
        found = np.zeros(self.shard.n_rows + 1, bool)  # the last: of entries without a document
        hashes = np.frombuffer(self.plan.among, np.uint8).reshape(-1, 20)
        for view in self.shard.views:
            rows = view.rows_of(hashes)
            found[view.base + rows[rows >= 0]] = True
        return found

    def _parts(self, within: Sequence[Array], scores: Scores, conditions: Sequence[Sequence[Expr]]) -> list[Part]:
        names = [scorer.name for scorer in self.plan.scorers]
        parts = []
        for b, block in enumerate(self.rows.blocks):
            counts = within[b] & scores.looked[b]
            missed = within[b] & ~scores.looked[b]
            wanted = And(tuple(conditions[b])) if len(conditions[b]) > 1 else conditions[b][0] if conditions[b] else None
            for low in range(0, len(block), PORTION):
                high = min(low + PORTION, len(block))
                part = Part(self.rows, b, low, high, names, scores.of[b][:, low:high], counts[low:high])
                if wanted is not None and part.within.any():
                    part.within, unseen = self._tested(part, wanted)
                    missed[low:high] |= unseen
                parts.append(part)
            self.n_missed += block.n_entries(missed)
        return parts

    def _tested(self, part: Part, wanted: Expr) -> tuple[Array, Array]:
        """The rows of a part for which a condition holds, and those that there was no time to ask: (r,) bool each."""
        held, unseen = np.zeros(len(part.within), bool), part.within.copy()
        if self.budget.expired:
            return held, unseen
        at = np.flatnonzero(part.within)
        for low, high in self._slices(len(at), is_quick(wanted, self.context)):
            asked = part.within if high - low == len(at) else np.zeros(len(part.within), bool)
            asked[at[low:high]] = True
            unseen[at[low:high]] = False
            try:
                held |= mask(wanted, part.columns, self.context, asked)
            except NLQLError as error:
                self._failed(error, 0, part)
                return np.zeros(len(part.within), bool), np.zeros(len(part.within), bool)
        return held, unseen

    def _slices(self, n: int, quick: bool) -> Iterator[tuple[int, int]]:
        """Stretches of n rows that are worked on between two looks at the clock, as far as there is time. quick: all at once, and in any
        case."""
        low, size = 0, n if quick else FEW_ROWS
        while low < n and (quick or not self.budget.expired):
            begun = time.monotonic()
            yield low, min(low + size, n)
            low += size
            took_s = time.monotonic() - begun
            size = max(FEW_ROWS // 8, min(2 * size, int(size * SLICE_S / max(took_s, 1e-6))))

    def _failed(self, error: NLQLError, phase: int, part: Part) -> None:
        row = getattr(error, "row", None)
        self.failures.append(Failure(error, phase, *(part.places(np.array([row]))[0] if row is not None else ())))

    # --- order -----------------------------------------------------------------------------------------------------------------

    def _keys(self, parts: Sequence[Part], chosen: list[Array]) -> SortKeys | None:
        """What rows are sorted by. chosen: by part; rows that there was no time to ask are taken out of it."""
        if not self.plan.order_by:
            return None
        found, quick = [], all(is_quick(key.expr, self.context) for key in self.plan.order_by)
        for p, part in enumerate(parts):
            at, n_keyed = chosen[p], 0
            try:
                for low, high in self._slices(len(at), quick):
                    rows = None if high - low == len(part.within) else at[low:high]  # all of them without a copy
                    found.append(sort_keys(self.plan.order_by, part.columns, self.context, rows))
                    n_keyed = high
            except NLQLError as error:
                self._failed(error, 1, part)
                continue
            if n_keyed < len(at):
                missed = np.zeros(len(part.within), bool)
                missed[at[n_keyed:]] = True
                chosen[p] = at[:n_keyed]
                self.n_missed += n_runs(part.entries[missed])
        if not found and not self.failures:
            found = [sort_keys(self.plan.order_by, parts[0].columns, self.context, np.zeros(0, np.int64))] if parts else []
        return SortKeys.join(found, self.context.plugins) if found and not self.failures else None

    def _best(self, parts: Sequence[Part], chosen: Sequence[Array], keys: SortKeys | None) -> Selected:
        """The best of the rows that were chosen, at most as many as are wanted."""
        plan = self.plan
        of = np.repeat(np.arange(len(parts)), [len(at) for at in chosen])
        at = np.concatenate([*chosen, np.zeros(0, np.int64)])
        ranks = np.concatenate([*(part.ranks[rows] for part, rows in zip(parts, chosen, strict=True)), np.zeros(0, np.int64)])
        k = None if plan.by_entry or plan.facets else plan.n_rows
        order = _first(ranks, k) if keys is None else keys.order(k, ties=ranks)
        also = None
        if plan.by_entry:
            entries = self._entry_numbers(parts, chosen)[order]
            every, order = order, order[(first := _firsts(entries))]
            if plan.unit == "chunk":
                also = _gathered(entries, every, entries[first][: plan.n_rows], of, at)
        n_matched, facets = len(order), []
        for expr in plan.facets:
            facets.append(self._counted(expr, parts, of[order], at[order]).sorted())
        order = order[: plan.n_rows]
        return Selected(parts, of[order], at[order], None if keys is None else keys.take(order), also, n_matched, facets)

    def _entry_numbers(self, parts: Sequence[Part], chosen: Sequence[Array]) -> Array:
        """The entry of each chosen row, numbered in the shard."""
        sizes = [len(view.live_entries) for view in self.shard.views]
        bases = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        numbers = [bases[part.block.view] + part.entries[at] for part, at in zip(parts, chosen, strict=True)]
        return np.concatenate([*numbers, np.zeros(0, np.int64)])

    def _counted(self, expr: Expr, parts: Sequence[Part], of: Array, at: Array) -> Counts:
        """How many rows have each value of an expression."""
        counts = Counts()
        for p in np.unique(of).tolist():
            rows = np.sort(at[of == p])
            try:
                counts.add(expr, parts[p].columns, self.context, rows)
            except NLQLError as error:
                self._failed(error, 2, parts[p])
        return counts

    # --- coverage --------------------------------------------------------------------------------------------------------------

    def _status(self, total: int, scores: Scores) -> list[LayerStatus]:
        """total: entries in scope."""
        worst: dict[str, LayerStatus] = {}
        for status in scores.status:
            known = worst.get(status.space)
            if known is None or (known.state == "ready" and status.state != "ready"):
                worst[status.space] = status
        state, reason = ("late", "the time budget ended") if self.n_missed else ("ready", "")
        state, of, reason = self.shard.with_pending(state, total, reason)
        # Of fewer rows scored by intent the whole was looked at: the others are known to score less.
        spaces = [replace(one, covered=total, total=total) if one.state == "ready" else one for one in worst.values()]
        return [LayerStatus(ROWS, self.shard.number, state, total - self.n_missed, of, reason), *spaces]


def _first(ranks: Array, k: int | None) -> Array:
    """The k places of the least ranks, ascending."""
    if k is not None and k < len(ranks):
        places = np.argpartition(ranks, k)[:k] if k else np.zeros(0, np.int64)
        return places[np.argsort(ranks[places])]
    return np.argsort(ranks, kind="stable")


def _firsts(numbers: Array) -> Array:
    """Where each number stands first, ascending: (distinct,) int64."""
    if not len(numbers):
        return np.zeros(0, np.int64)
    first = np.full(int(numbers.max()) + 1, -1, np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return np.sort(first[first >= 0])


def _gathered(numbers: Array, order: Array, wanted: Array, of: Array, at: Array) -> list[tuple[Array, Array]]:
    """Of each entry that is wanted, all of its rows in their order. numbers: the entry of each row of `order`."""
    which = np.full(int(numbers.max(initial=-1)) + 1, -1, np.int64)
    which[wanted] = np.arange(len(wanted))
    groups = which[numbers]
    by_group = np.argsort(groups, kind="stable")
    by_group = by_group[groups[by_group] >= 0]
    cuts = np.flatnonzero(np.diff(groups[by_group])) + 1
    return [(of[order[rows]], at[order[rows]]) for rows in np.split(by_group, cuts)] if len(by_group) else []
