"""One shard of one generation: its segments' live rows, searched and scored as one.

Rows are numbered per segment by the layers; here they become document numbers of the shard (`View.base + row`). Layers over
entries speak of paths, which are resolved to documents here, in whatever segment those lie.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from shards.errors import BadQuery, SondageError
from shards.excerpts import excerpt
from shards.hits import Hits
from shards.identity import as_keys, find_rows
from shards.layers.contract import Layer
from shards.manifest import ShardPage
from shards.plan import Everything, Nothing, Plan, Predicate, SpaceQuery, simplify
from shards.scope import EntryFields
from shards.segment import Segment, Tombstones, unpack_entry
from shards.types import Array, Budget, Candidates, Detail, LayerStatus, Scored
from shards.view import View

logger = logging.getLogger(__name__)

# Kept back for scoring the candidates when time is short: without it what a late answer has found would lack all other evidence.
SCORING_S, SCORING_SHARE = 0.005, 0.1


@dataclass(frozen=True, slots=True)
class Space:
    """A space as this generation has it.

    scope: globs of the entries it is built for; none means all. problem: why this build cannot read or ask it, "" if it can.
    """

    name: str
    id: str
    layer: Layer
    scope: tuple[str, ...] = ()
    problem: str = ""


def _live(n: int, low: int, high: int, dead: Array) -> Array:
    mask = np.zeros(n, bool)
    mask[low:high] = True
    mask[dead] = False
    return mask


class Shard:
    """An opened shard. Safe for many threads; it changes only in that a space that could not be opened may be later.

    spaces: those of the generation, by name, whether or not every segment has them. unopened: why a space could not be opened,
    by name; each search of it tries again, since a store may be back.
    """

    def __init__(self, page: ShardPage, segments: Sequence[Segment], tombstones: Sequence[Tombstones], spaces: Mapping[str, Space]):
        self.number = page.shard
        self.spaces = dict(spaces)
        self.views: list[View] = []
        base = 0
        for ref, segment, dead in zip(page.segments, segments, tombstones, strict=True):
            documents, entries = segment.documents, segment.entries
            view = View(
                segment=segment,
                live_docs=_live(len(documents), *segment.rows_in(ref.buckets, documents.hashes), dead.documents),
                live_entries=_live(len(entries), *segment.rows_in(ref.buckets, entries.hashes), dead.entries),
                base=base,
                fields=EntryFields(entries),
            )
            base += len(documents)
            self.views.append(view)
        self.unopened: dict[str, str] = {}
        self._opening = threading.Lock()
        for space in self.spaces.values():
            self._open(space)
        self.n_rows = base  # document numbers there are
        self.n_docs = sum(int(v.live_docs.sum()) for v in self.views)
        self.n_entries = sum(int(v.live_entries.sum()) for v in self.views)
        self._resolve_entries()

    def _open(self, space: Space) -> str:
        """Map a space's arrays in all segments; returns why that could not be done, or nothing."""
        with self._opening:
            try:
                for view in self.views:
                    arrays = None if space.problem or space.id in view.readers else view.segment.layer(space.id)
                    if arrays is not None:
                        live = view.live_docs if space.layer.over == "documents" else view.live_entries
                        documents, entries = view.segment.documents, view.segment.entries
                        view.readers[space.id] = space.layer.open(arrays, documents, entries, live)
            except Exception as error:  # one broken space must not take the others with it: searches of it say so
                reason = str(error) if isinstance(error, SondageError) else f"{type(error).__name__}: {error}"
                logger.warning("shard=%d space=%s event=open_failed reason=%s", self.number, space.name, reason)
                self.unopened[space.name] = reason
                return reason
            self.unopened.pop(space.name, None)
            return ""

    def _resolve_entries(self) -> None:
        """Give every live entry the number of its live document."""
        for view in self.views:
            view.entry_docs = np.full(len(view.live_entries), -1, np.int64)
            entries = view.segment.entries
            for owner in self.views:
                open_ = np.flatnonzero(view.live_entries & (view.entry_docs < 0))
                rows = find_rows(owner.segment.documents.hashes, entries.hashes[open_], owner.doc_prefixes)
                found = rows >= 0
                found[found] = owner.live_docs[rows[found]]
                view.entry_docs[open_[found]] = owner.base + rows[found]

    def n_units(self, space: str) -> int:
        """Live units of a space on this shard."""
        return sum(v.readers[self.spaces[space].id].n_units for v in self.views if self.spaces[space].id in v.readers)

    # --- scope -------------------------------------------------------------------------------------------------------------

    def documents_in(self, where: Predicate) -> list[Array]:
        """Live documents that meet a predicate, a mask for each view."""
        docs, _ = self._scope(where)
        return [view.live_docs for view in self.views] if docs is None else docs

    def _scope(self, where: Predicate) -> tuple[list[Array] | None, list[Array] | None]:
        """Allowed documents and entries of each view; None where all live ones are."""
        where = simplify(where)
        if where == Everything():
            return None, None
        allowed_docs = [np.zeros(len(v.live_docs), bool) for v in self.views]
        allowed_entries = []
        for view in self.views:
            mask = view.fields.mask(where) if where != Nothing() else np.zeros(len(view.live_entries), bool)
            entries = view.live_entries if mask is None else view.live_entries & mask
            allowed_entries.append(entries)
            numbers = view.entry_docs[entries & (view.entry_docs >= 0)]
            for owner, docs in zip(self.views, allowed_docs, strict=True):
                inside = (numbers >= owner.base) & (numbers < owner.base + len(docs))
                docs[numbers[inside] - owner.base] = True
        return allowed_docs, allowed_entries

    # --- search ------------------------------------------------------------------------------------------------------------

    def search(self, plan: Plan, budget: Budget) -> Candidates:
        """This shard's candidates for a plan, see `search`."""
        return search([self], plan, budget)

    def find_hits(self, plan: Plan, budget: Budget) -> "Finding":
        """Each space's best documents."""
        docs, entries = self._scope(plan.where)
        found: list[Hits] = []
        status: list[LayerStatus] = []
        for query in plan.queries:
            begun = time.monotonic()
            try:
                if query.space in self.unopened and (reason := self._open(self.spaces[query.space])):
                    hits, state = Hits.none(self.n_docs), "failed"
                else:
                    hits = self._search_space(query, docs, entries, plan.n_candidates, budget)
                    state, reason = self._coverage(query, hits, budget)
            except BadQuery:
                raise
            except Exception as error:  # one broken space must not take the others with it: it is reported, and logged
                logger.exception("shard=%d space=%s event=search_failed", self.number, query.space)
                hits, state, reason = Hits.none(self.n_docs), "failed", f"{type(error).__name__}: {error}"
            found.append(hits)
            status.append(
                LayerStatus(query.space, self.number, state, hits.covered, hits.total, reason, time.monotonic() - begun)
            )
        return Finding(self, found, status, entries)

    def _coverage(self, query: SpaceQuery, hits: Hits, budget: Budget) -> tuple[str, str]:
        if hits.covered >= hits.total:
            return "ready", ""
        if query.space not in self.spaces:
            return "absent", "this generation has no such space"
        if problem := self.spaces[query.space].problem:
            return "failed", problem
        if budget.expired:
            return "late", "the time budget ended"
        if scope := self.spaces[query.space].scope:
            return "scoped", f"built for {', '.join(scope)} only"
        return "absent", "not built for all documents of the scope"

    def _search_space(
        self, query: SpaceQuery, docs: list[Array] | None, entries: list[Array] | None, k: int, budget: Budget
    ) -> Hits:
        """One space over all views: its best k documents, moments, matches and coverage."""
        space = self.spaces.get(query.space)
        over_entries = space is not None and space.layer.over == "entries"
        allowed = entries if over_entries else docs
        parts: list[Hits] = []
        for i, view in enumerate(self.views):
            reader = view.readers.get(space.id) if space else None
            if reader is None:
                mask = allowed[i] if allowed is not None else view.live_entries if over_entries else view.live_docs
                parts.append(Hits.none(int(mask.sum())))
                continue
            result = reader.search(query, None if allowed is None else allowed[i], k, budget)
            if over_entries:
                numbers = view.entry_docs[result.rows]
                keys = self._keys(numbers)
            else:
                numbers, keys = result.rows.astype(np.int64) + view.base, view.doc_prefixes[result.rows]
            parts.append(
                Hits(
                    numbers, keys, result.scores, result.starts, result.ends, result.moments, result.n_matched,
                    result.rows_covered, result.rows_total,
                )  # fmt: skip
            )
        hits = Hits.concatenate(parts)
        # One segment's documents are distinct and in ranking order as they come, since rows lie in order of hash.
        return hits.best(k) if over_entries or len(parts) > 1 else hits

    def _keys(self, numbers: Array) -> Array:
        """The first 8 bytes of the content hashes of document numbers: (n,) uint64, 0 where there is no document."""
        keys = np.zeros(len(numbers), np.uint64)
        for view in self.views:
            inside = (numbers >= view.base) & (numbers < view.base + len(view.live_docs))
            keys[inside] = view.doc_prefixes[numbers[inside] - view.base]
        return keys

    def hashes(self, numbers: Array) -> Array:
        """Content hashes of ascending document numbers: (n, 20) uint8."""
        edges = np.searchsorted(numbers, [view.base for view in self.views[1:]])
        parts = np.split(numbers, edges)
        rows = [view.segment.documents.hashes[part - view.base] for view, part in zip(self.views, parts, strict=False)]
        return np.concatenate(rows) if rows else np.zeros((0, 20), np.uint8)

    def score(self, query: SpaceQuery, numbers: Array, entries: list[Array] | None, budget: Budget) -> Iterator[tuple[Array, Scored]]:
        """One space's scores of documents, ascending numbers, as (places in `numbers`, `Scored`); a document may occur more than
        once, with several entries."""
        space = self.spaces[query.space]
        for v, view in enumerate(self.views):
            reader = view.readers.get(space.id)
            if reader is None:
                continue
            if space.layer.over == "entries":
                live = view.live_entries if entries is None else entries[v]
                rows = np.flatnonzero(live & np.isin(view.entry_docs, numbers)).astype(np.int32)
                at = np.searchsorted(numbers, view.entry_docs[rows])
            else:
                at = np.arange(*np.searchsorted(numbers, (view.base, view.base + len(view.live_docs))))
                rows = (numbers[at] - view.base).astype(np.int32)
            if len(rows):
                yield at, reader.score(query, rows, budget)

    # --- documents -----------------------------------------------------------------------------------------------------------

    def find(self, document: bytes) -> tuple[View, int] | None:
        """Where a live document lies: its view and row."""
        for view in self.views:
            if (row := view.row_of(document)) >= 0:
                return view, row
        return None

    def detail(
        self, document: bytes, spans: Sequence[tuple[int, int]], words: Sequence[str], excerpt_bytes: int, where: Predicate
    ) -> Detail | None:
        """What a result row shows of a live document; None where it is not here. Entries inside the scope come first."""
        place = self.find(document)
        if place is None:
            return None
        view, row = place
        documents = view.segment.documents
        text = documents.content(row)
        inside, outside = [], []
        everything = where == Everything()
        for other in self.views:
            rows = other.entries_of(document)
            if not rows:
                continue
            mask = None if everything else other.fields.mask(where)
            for entry in rows:
                (inside if mask is None or mask[entry] else outside).append(unpack_entry(other.segment.entries, entry))
        order = [sorted(group, key=lambda e: (e.source, e.path)) for group in (inside, outside)]
        return Detail(
            hash=document,
            entries=tuple(order[0] + order[1]),
            size_bytes=len(text),
            kind=documents.kind_names[documents.kinds[row]],
            excerpts={span: excerpt(text, *span, words, excerpt_bytes) for span in dict.fromkeys(spans)},
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """What one shard found: per query of the plan its hits and coverage. entries: those in scope of each view; None: all live."""

    shard: Shard
    hits: list[Hits]
    status: list[LayerStatus]
    entries: list[Array] | None


def search(shards: Sequence[Shard], plan: Plan, budget: Budget) -> Candidates:
    """Candidates of several shards as if they were one: each space's best documents, every one of them scored by every space.

    So no space's cut-off hides evidence. All shards are searched before any candidate is scored by the other spaces: only what is
    among the best of all needs that, a quarter of what four shards find.
    """
    finding = Budget(budget.remaining_s - min(SCORING_S, SCORING_SHARE * max(budget.remaining_s, 0.0)))
    found: list[Finding] = []
    status: list[LayerStatus] = []
    for shard in shards:
        if found and finding.expired:
            reason = "the time budget ended before this shard"
            status += [LayerStatus(q.space, shard.number, "late", 0, shard.n_docs, reason) for q in plan.queries]
        else:
            found.append(shard.find_hits(plan, finding))
            status += found[-1].status
    offsets = [0, *accumulate(f.shard.n_rows for f in found)]
    hits = [Hits.concatenate([f.hits[s] for f in found], offsets[:-1]) for s in range(len(plan.queries))]
    listed = [h.top(plan.n_candidates) for h in hits]
    numbers = np.unique(np.concatenate(listed)) if listed else np.zeros(0, np.int64)
    edges = np.searchsorted(numbers, offsets).tolist()
    shape = (len(numbers), len(plan.queries))
    generated, scores = np.zeros(shape, bool), np.full(shape, np.nan)
    starts, ends = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for s, query in enumerate(plan.queries):
        generated[np.searchsorted(numbers, listed[s]), s] = True
        table = (scores[:, s], starts[:, s], ends[:, s])
        _place(numbers, hits[s], table)
        for f, offset, low, high in zip(found, offsets, edges, edges[1:], strict=False):
            space = f.shard.spaces.get(query.space)
            if space is None or "refine" not in space.layer.roles or f.status[s].state == "failed":
                continue
            missing = low + np.flatnonzero(np.isnan(table[0][low:high]))
            if len(missing):
                for at, scored in f.shard.score(query, numbers[missing] - offset, f.entries, budget):
                    _take_better(missing[at], scored, table)
    hashes = [f.shard.hashes(numbers[low:high] - o) for f, o, low, high in zip(found, offsets, edges, edges[1:], strict=False)]
    together = np.concatenate(hashes) if hashes else np.zeros((0, 20), np.uint8)
    order = np.argsort(as_keys(together), kind="stable") if len(together) else np.zeros(0, np.int64)
    return Candidates(
        hashes=together[order],
        generated=generated[order],
        scores=scores[order],
        starts=starts[order],
        ends=ends[order],
        moments=tuple(h.moments for h in hits),
        n_matched=np.array([h.n_matched for h in hits], np.int64),
        status=tuple(sorted(status, key=lambda s: (s.space, s.shard))),
    )


def _place(numbers: Array, hits: Hits, table: tuple[Array, Array, Array]) -> None:
    """Writes the scores and spans of those hits that are among the ascending numbers into their rows of the table."""
    if len(numbers):
        at = np.minimum(np.searchsorted(numbers, hits.numbers), len(numbers) - 1)
        known = numbers[at] == hits.numbers
        for column, values in zip(table, (hits.scores, hits.starts, hits.ends), strict=True):
            column[at[known]] = values[known]


def _take_better(at: Array, scored: Scored, table: tuple[Array, Array, Array]) -> None:
    """Writes scores and spans into rows `at` of the table, of a row's several scores the best; nan is none."""
    order = np.argsort(scored.scores, kind="stable")  # ascending: the best is written last
    order = order[~(np.isnan(scored.scores[order]) | (table[0][at[order]] >= scored.scores[order]))]
    for column, values in zip(table, (scored.scores, scored.starts, scored.ends), strict=True):
        column[at[order]] = values[order]
