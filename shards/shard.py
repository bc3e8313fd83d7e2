"""One shard of one generation: its segments' live rows, searched and scored as one.

Rows are numbered per segment by the layers; here they become document numbers of the shard (`View.base + row`). Layers over
entries speak of paths, which are resolved to documents here, in whatever segment those lie.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shards.errors import BadQuery, SondageError
from shards.excerpts import excerpt
from shards.identity import as_keys, find_row, find_rows, prefixes
from shards.layers.contract import Layer, Reader
from shards.manifest import ShardPage
from shards.plan import Everything, Nothing, Plan, Predicate, SpaceQuery, simplify
from shards.scope import EntryFields
from shards.segment import Segment, Tombstones, hash_order, unpack_entry
from shards.types import Array, Budget, Candidates, Detail, LayerStatus, Moments, merge_moments

logger = logging.getLogger(__name__)


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


@dataclass
class View:
    """One segment as one generation sees it: its live rows and the readers over them."""

    segment: Segment
    live_docs: Array  # (documents of the segment,) bool
    live_entries: Array  # (entries of the segment,) bool
    base: int  # document number of row 0
    fields: EntryFields
    entry_docs: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # (entries,) document number of each, -1 where dead
    readers: dict[str, Reader] = field(default_factory=dict)  # space id -> reader; absent where the segment lacks the space

    def __post_init__(self) -> None:
        # Kept because every look-up by hash needs them; 8 bytes a row.
        self.doc_prefixes = prefixes(self.segment.documents.hashes)
        self.entry_prefixes = prefixes(self.segment.entries.hashes)

    def row_of(self, document: bytes) -> int:
        """The row of a live document, or -1."""
        row = find_row(self.segment.documents.hashes, document, self.doc_prefixes)
        return row if row >= 0 and self.live_docs[row] else -1

    def rows_of(self, documents: Array) -> Array:
        """The rows of live documents, (n, 20) uint8 content hashes, or -1: (n,) int64."""
        rows = find_rows(self.segment.documents.hashes, documents, self.doc_prefixes)
        rows[rows >= 0] = np.where(self.live_docs[rows[rows >= 0]], rows[rows >= 0], -1)
        return rows

    def entries_of_all(self, documents: Array) -> Iterator[tuple[bytes, int]]:
        """Yields (content hash, row) of all live entries here of these documents, (n, 20) uint8."""
        wanted = prefixes(documents)
        lows, highs = (np.searchsorted(self.entry_prefixes, wanted, side) for side in ("left", "right"))
        for i in np.flatnonzero(highs > lows).tolist():
            for row in range(lows[i], highs[i]):
                if self.live_entries[row] and (self.segment.entries.hashes[row] == documents[i]).all():
                    yield documents[i].tobytes(), row

    def entries_of(self, document: bytes) -> list[int]:
        """Rows of a document's live entries here."""
        prefix = np.uint64(int.from_bytes(document[:8], "big"))
        low, high = (int(self.entry_prefixes.searchsorted(prefix, side)) for side in ("left", "right"))
        hashes = self.segment.entries.hashes
        return [row for row in range(low, high) if self.live_entries[row] and hashes[row].tobytes() == document]


def _live(n: int, low: int, high: int, dead: Array) -> Array:
    mask = np.zeros(n, bool)
    mask[low:high] = True
    mask[dead] = False
    return mask


@dataclass(frozen=True, slots=True)
class _Hits:
    """`shards.types.Found` in document numbers of the shard."""

    numbers: Array
    scores: Array
    starts: Array
    ends: Array
    moments: Moments | None
    n_matched: int
    covered: int
    total: int

    @classmethod
    def none(cls, total: int) -> "_Hits":
        return cls(*(np.zeros(0, t) for t in (np.int64, float, np.int64, np.int64)), None, 0, 0, total)

    @classmethod
    def concatenate(cls, parts: Sequence["_Hits"]) -> "_Hits":
        if not parts:
            return cls.none(0)
        columns = [np.concatenate([getattr(p, name) for p in parts]) for name in ("numbers", "scores", "starts", "ends")]
        return cls(
            *columns,
            merge_moments(p.moments for p in parts),
            sum(p.n_matched for p in parts),
            sum(p.covered for p in parts),
            sum(p.total for p in parts),
        )

    def take(self, order: Array) -> "_Hits":
        columns = [getattr(self, name)[order] for name in ("numbers", "scores", "starts", "ends")]
        return _Hits(*columns, self.moments, self.n_matched, self.covered, self.total)


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
        """This shard's candidates for a plan: each space's best documents, then every candidate scored by every space."""
        docs, entries = self._scope(plan.where)
        found: list[_Hits] = []
        status: list[LayerStatus] = []
        for query in plan.queries:
            begun = time.monotonic()
            try:
                if query.space in self.unopened and (reason := self._open(self.spaces[query.space])):
                    hits, state = _Hits.none(self.n_docs), "failed"
                else:
                    hits = self._search_space(query, docs, entries, plan.n_candidates, budget)
                    state, reason = self._coverage(query, hits, budget)
            except BadQuery:
                raise
            except Exception as error:  # one broken space must not take the others with it: it is reported, and logged
                logger.exception("shard=%d space=%s event=search_failed", self.number, query.space)
                hits, state, reason = _Hits.none(self.n_docs), "failed", f"{type(error).__name__}: {error}"
            found.append(hits)
            status.append(
                LayerStatus(query.space, self.number, state, hits.covered, hits.total, reason, time.monotonic() - begun)
            )
        numbers = np.unique(np.concatenate([hits.numbers for hits in found])) if found else np.zeros(0, np.int64)
        hashes = self._hashes(numbers)
        order = np.argsort(as_keys(hashes), kind="stable") if len(numbers) else np.zeros(0, np.int64)
        generated, scores, starts, ends = self._table(plan, numbers, found, status, entries, budget)
        return Candidates(
            hashes=hashes[order],
            generated=generated[order],
            scores=scores[order],
            starts=starts[order],
            ends=ends[order],
            moments=tuple(hits.moments for hits in found),
            n_matched=np.array([hits.n_matched for hits in found], np.int64),
            status=tuple(status),
        )

    def _coverage(self, query: SpaceQuery, hits: "_Hits", budget: Budget) -> tuple[str, str]:
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
    ) -> "_Hits":
        """One space over all views: its best k documents, moments, matches and coverage."""
        space = self.spaces.get(query.space)
        over_entries = space is not None and space.layer.over == "entries"
        allowed = entries if over_entries else docs
        parts: list[_Hits] = []
        for i, view in enumerate(self.views):
            reader = view.readers.get(space.id) if space else None
            if reader is None:
                mask = allowed[i] if allowed is not None else view.live_entries if over_entries else view.live_docs
                parts.append(_Hits.none(int(mask.sum())))
                continue
            result = reader.search(query, None if allowed is None else allowed[i], k, budget)
            numbers = view.entry_docs[result.rows] if over_entries else result.rows.astype(np.int64) + view.base
            parts.append(
                _Hits(
                    numbers, result.scores, result.starts, result.ends, result.moments, result.n_matched, result.rows_covered,
                    result.rows_total,
                )  # fmt: skip
            )
        return self._best(_Hits.concatenate(parts), k)

    def _best(self, hits: "_Hits", k: int) -> "_Hits":
        """The k best distinct documents in ranking order; of a document's several entries the best."""
        known = np.flatnonzero(hits.numbers >= 0)
        order = known[hash_order(self._hashes(hits.numbers[known]), hits.scores[known])]
        _, first = np.unique(hits.numbers[order], return_index=True)
        return hits.take(order[np.sort(first)[:k]])

    def _hashes(self, numbers: Array) -> Array:
        """Content hashes of document numbers: (n, 20) uint8."""
        out = np.zeros((len(numbers), 20), np.uint8)
        for view in self.views:
            inside = (numbers >= view.base) & (numbers < view.base + len(view.live_docs))
            out[inside] = view.segment.documents.hashes[numbers[inside] - view.base]
        return out

    def _table(
        self,
        plan: Plan,
        numbers: Array,
        found: list["_Hits"],
        status: list[LayerStatus],
        entries: list[Array] | None,
        budget: Budget,
    ) -> tuple[Array, Array, Array, Array]:
        """Every candidate scored by every space, so that no space's cut-off hides evidence: generated, scores, starts, ends.

        numbers: ascending document numbers; each result is (n, spaces).
        """
        shape = (len(numbers), len(plan.queries))
        generated, scores = np.zeros(shape, bool), np.full(shape, np.nan)
        starts, ends = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for s, query in enumerate(plan.queries):
            hits, space = found[s], self.spaces.get(query.space)
            at = np.searchsorted(numbers, hits.numbers)
            generated[at, s] = True
            scores[at, s], starts[at, s], ends[at, s] = hits.scores, hits.starts, hits.ends
            missing = numbers[~generated[:, s]]
            if space is None or "refine" not in space.layer.roles or status[s].state == "failed" or not len(missing):
                continue
            for v, view in enumerate(self.views):
                reader = view.readers.get(space.id)
                if reader is None:
                    continue
                if space.layer.over == "entries":
                    live = view.live_entries if entries is None else entries[v]
                    rows = np.flatnonzero(live & np.isin(view.entry_docs, missing)).astype(np.int32)
                    owners = view.entry_docs[rows]
                else:
                    owners = missing[(missing >= view.base) & (missing < view.base + len(view.live_docs))]
                    rows = (owners - view.base).astype(np.int32)
                if not len(rows):
                    continue
                scored = reader.score(query, rows, budget)
                at = np.searchsorted(numbers, owners)
                order = np.argsort(scored.scores, kind="stable")  # ascending: a document's best entry is written last
                order = order[~np.isnan(scored.scores[order])]
                order = order[~(scores[at[order], s] >= scored.scores[order])]
                at = at[order]
                scores[at, s], starts[at, s], ends[at, s] = scored.scores[order], scored.starts[order], scored.ends[order]
        return generated, scores, starts, ends

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


