"""One shard of one generation: its segments' live rows, searched and scored as one.

Rows are numbered per segment by the layers; here they become document numbers of the shard (`View.base + row`). Layers over
entries speak of paths, which are resolved to documents here, in whatever segment those lie.
"""

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from shards.documents import Documents, Entries
from shards.errors import BadQuery, SondageError
from shards.excerpts import excerpt
from shards.hits import Columns, Hits, Part
from shards.identity import as_keys, find_rows
from shards.layers.contract import Describing, Layer, Placed
from shards.manifest import ShardPage
from shards.on_the_fly import FIRST, OnTheFly, by_promise, can_be
from shards.plan import And, Everything, Nothing, Plan, Predicate, SpaceQuery, simplify
from shards.scope import EntryFields
from shards.segment import Segment, Tombstones, unpack_entry
from shards.types import Array, Budget, Candidates, Derived, Detail, LayerStatus, LinesAround, Scored
from shards.view import View

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# Kept back for scoring the candidates when time is short: without it what a late answer has found would lack all other evidence.
SCORING_S, SCORING_SHARE = 0.005, 0.1


@dataclass(frozen=True, slots=True)
class Space:
    """A space as this generation has it.

    scope: globs of the entries it is built for; none means all. problem: why this build cannot read or ask it, "" if it can.
    built: "used" where only documents that pay have it, see `SpaceSpec`. sample: of these, the share of documents, by their hashes, that
    moments are taken of: what is built where it is used is no fair sample of a corpus.
    """

    name: str
    id: str
    layer: Layer
    scope: tuple[str, ...] = ()
    problem: str = ""
    built: str = "all"
    sample: float = 1.0


def _live(n: int, low: int, high: int, dead: Array) -> Array:
    mask = np.zeros(n, bool)
    mask[low:high] = True
    mask[dead] = False
    return mask


def _weakly(method: Callable[[View], Result], view: View) -> Callable[[], Result]:
    """A call of a shard's method by what belongs to the shard: no circle, so that a shard that is closed is gone with its files at once,
    and not when the garbage is collected, which takes no notice of what was there when a server began (`serve.pauses`)."""
    weak, weak_view = weakref.WeakMethod(method), weakref.ref(view)

    def call() -> Result:
        bound, known = weak(), weak_view()
        assert bound is not None and known is not None, "a view is used whose shard is closed"
        return bound(known)

    return call


class Shard:
    """An opened shard. Safe for many threads; it changes only in that a space that could not be opened may be later.

    spaces: those of the generation, by name, whether or not every segment has them. unopened: why a space could not be opened,
    by name; each search of it tries again, since a store may be back. kept: by `shards.nlql.rows.rows_of`. pending: files that this shard
    tells of, for all, as listed and not read yet (`SourceRef`).
    """

    def __init__(
        self,
        page: ShardPage,
        segments: Sequence[Segment],
        tombstones: Sequence[Tombstones],
        spaces: Mapping[str, Space],
        pending: int = 0,
    ):
        self.number = page.shard
        self.pending = pending
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
        self.kept: dict[Any, Any] = {}  # what is made of it once, when it is first asked for
        self.keeping = threading.RLock()  # held by who makes it
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
                        reader = space.layer.open(arrays, documents, entries, live)
                        if isinstance(reader, Placed):
                            reader.place(_weakly(self._places_of, view))
                        if space.built == "used" and (sampled := self._sampled(space, view)) is not None:
                            view.samples[space.id] = space.layer.open(arrays, documents, entries, sampled)
                        view.readers[space.id] = reader
            except Exception as error:  # one broken space must not take the others with it: searches of it say so
                reason = str(error) if isinstance(error, SondageError) else f"{type(error).__name__}: {error}"
                logger.warning("shard=%d space=%s event=open_failed reason=%s", self.number, space.name, reason)
                self.unopened[space.name] = reason
                return reason
            self.unopened.pop(space.name, None)
            return ""

    def _sampled(self, space: Space, view: View) -> Array | None:
        """The live documents of a view that moments are taken of: (n,) bool; None: of all that are built."""
        arrays = view.segment.layer(space.id)
        if space.layer.null != "moments" or arrays is None or "in_scope" not in arrays:
            return None
        built = np.asarray(arrays["in_scope"], bool)
        low = view.live_docs & (view.doc_prefixes <= np.uint64(min(int(space.sample * 2**64), 2**64 - 1)))
        # Where all is built it is its own sample; where it was forced for others before its sample was built there is no better one.
        return None if built[view.live_docs].all() or (low.any() and not (low & built).any()) else low

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
            view.fields.kinds = _weakly(self._kinds_of, view)

    def _places_of(self, view: View) -> Iterator[tuple[Entries, Array, Array]]:
        """The live entries of a view's live documents: of each segment, entries, their rows, and the rows of their documents."""
        for other in self.views:
            inside = (other.entry_docs >= view.base) & (other.entry_docs < view.base + len(view.live_docs))
            at = np.flatnonzero(inside)
            yield other.segment.entries, at, other.entry_docs[at] - view.base

    def _kinds_of(self, view: View) -> tuple[Array, list[str]]:
        """The kind of each entry's document: (m,) int64, index into the names, -1 where it has none."""
        names = sorted({name for owner in self.views for name in owner.segment.documents.kind_names})
        kinds = np.full(len(view.entry_docs), -1, np.int64)
        for owner in self.views:
            documents = owner.segment.documents
            inside = (view.entry_docs >= owner.base) & (view.entry_docs < owner.base + len(documents))
            number = np.array([names.index(name) for name in documents.kind_names], np.int64)
            kinds[inside] = number[documents.kinds[view.entry_docs[inside] - owner.base]]
        return kinds, names

    @staticmethod
    def built(space: Space, view: View) -> Array:
        """The rows of a view that a space whose layer is `in_part` is built for: (n,) bool."""
        arrays = view.segment.layer(space.id) if space.id in view.readers else None
        return np.zeros(len(view.live_docs), bool) if arrays is None else np.asarray(arrays["in_scope"], bool)

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

    def begin(self, plan: Plan, base: int) -> "Finding":
        """A search of this shard of which nothing was done yet, where this shard's document numbers begin at `base`."""
        return Finding(self, base, [], *self._scope(plan.where))

    def find_hits(self, plan: Plan, query: SpaceQuery, found: Hits, search: "Finding", budget: Budget) -> None:
        """Adds one space's best documents to its hits, and what was covered to the search."""
        begun = time.monotonic()
        covered, total = 0, self.n_docs
        try:
            if reason := self.reopened(query.space):
                state = "failed"
            else:
                # Moments are asked of all questions, and they do not follow the scope: an empty one costs no more than these.
                scope = plan.where if query.where is None else And((plan.where, query.where))
                here = (search.documents, search.entries)
                own = self._scope(Nothing()) if not query.finds else here if query.where is None else self._scope(scope)
                covered, total = self._search_space(query, *own, found, search.base, budget)
                state, reason = self.coverage(query, covered, total, budget)
        except BadQuery:
            raise
        except Exception as error:  # one broken space must not take the others with it: it is reported, and logged
            logger.exception("shard=%d space=%s event=search_failed", self.number, query.space)
            state, reason = "failed", f"{type(error).__name__}: {error}"
        state, total, reason = self.with_pending(state, total, reason)
        search.status.append(LayerStatus(query.space, self.number, state, covered, total, reason, time.monotonic() - begun))

    def reopened(self, space: str) -> str:
        """Tries again to open a space that could not be; returns why it cannot, or nothing."""
        return self._open(self.spaces[space]) if space in self.unopened else ""

    def coverage(self, query: SpaceQuery, covered: int, total: int, budget: Budget) -> tuple[str, str]:
        """In what state a space is that was looked at so far, and why not in all."""
        if covered >= total:
            return "ready", ""
        if query.space not in self.spaces:
            return "absent", "this generation has no such space"
        if problem := self.spaces[query.space].problem:
            return "failed", problem
        if budget.expired:
            return "late", "the time budget ended"
        if self.spaces[query.space].built == "used":
            return "building", f"built for {covered:,} of {total:,} documents"
        if scope := self.spaces[query.space].scope:
            return "scoped", f"built for {', '.join(scope)} only"
        if (limits := self.spaces[query.space].layer.limits) and all(self.spaces[query.space].id in view.readers for view in self.views):
            return "scoped", limits
        return "absent", "not built for all documents of the scope"

    def with_pending(self, state: str, total: int, reason: str) -> tuple[str, int, str]:
        """The same, with the files that are listed and not read yet: any of them may be what is looked for, whatever the scope."""
        if not self.pending:
            return state, total, reason
        unread = f"{self.pending:,} listed files are not read yet"
        told = "; ".join(filter(None, [reason, unread]))
        return ("building" if state in ("ready", "scoped") else state), total + self.pending, told

    def _search_space(
        self, query: SpaceQuery, docs: list[Array] | None, entries: list[Array] | None, hits: Hits, base: int, budget: Budget
    ) -> tuple[int, int]:
        """One space over all views: adds what it finds; returns how many rows of the scope were looked at, and how many there are."""
        space = self.spaces.get(query.space)
        over_entries = space is not None and space.layer.over == "entries"
        allowed = entries if over_entries else docs
        parts: list[Part] = []
        best = hits.best
        covered = total = 0
        for i, view in enumerate(self.views):
            reader = view.readers.get(space.id) if space else None
            if reader is None:
                mask = allowed[i] if allowed is not None else view.live_entries if over_entries else view.live_docs
                total += np.count_nonzero(mask)
                continue
            result = reader.search(query, None if allowed is None else allowed[i], hits.k, budget, hits.floor(best))
            if (sample := view.samples.get(space.id) if space else None) is not None:
                nothing = np.zeros(len(view.live_docs), bool)  # moments do not follow the scope: an empty one costs least
                result = replace(result, moments=sample.search(query, nothing, 1, budget).moments)
            if over_entries:
                numbers = view.entry_docs[result.rows]
                keys = self._keys(numbers)
                numbers = np.where(numbers >= 0, numbers + base, -1)
            else:
                numbers, keys = result.rows + np.int64(base + view.base), view.doc_prefixes[result.rows]
            parts.append(Part(numbers, keys, result))
            best = hits.with_these(best, result.scores)
            covered += result.rows_covered
            total += result.rows_total
        hits.add(parts, best)
        return covered, total

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

    def score(
        self, query: SpaceQuery, numbers: Array, where: Predicate, entries: list[Array] | None, budget: Budget
    ) -> Iterator[tuple[Array, Scored]]:
        """One space's scores of documents, ascending numbers, as (places in `numbers`, `Scored`); a document may occur more than
        once, with several entries. entries: those of each view that meet `where`, None: all live."""
        space = self.spaces[query.space]
        own_docs, own_entries = (None, None) if query.where is None else self._scope(And((where, query.where)))
        for v, view in enumerate(self.views):
            reader = view.readers.get(space.id)
            if reader is None:
                continue
            if space.layer.over == "entries":
                live = view.live_entries if entries is None else entries[v]
                live = live if own_entries is None else live & own_entries[v]
                rows = np.flatnonzero(live & np.isin(view.entry_docs, numbers)).astype(np.int32)
                at = np.searchsorted(numbers, view.entry_docs[rows])
            else:
                at = np.arange(*np.searchsorted(numbers, (view.base, view.base + len(view.live_docs))))
                rows = (numbers[at] - view.base).astype(np.int32)
            if own_docs is not None and space.layer.over == "documents":
                inside = own_docs[v][rows]
                nothing = np.zeros(np.count_nonzero(~inside), np.int64)
                yield at[~inside], Scored(np.full(len(nothing), -np.inf), nothing, nothing)
                at, rows = at[inside], rows[inside]
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
        self,
        document: bytes,
        spans: Sequence[tuple[int, int]],
        words: Sequence[str],
        excerpt_size: int | LinesAround,
        where: Predicate,
        queries: Sequence[SpaceQuery] = (),
    ) -> Detail | None:
        """What a result row shows of a live document; None where it is not here. Entries inside the scope come first.

        queries: of spaces that may have found it; of derived ones come the texts that did.
        """
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
        kind = documents.kind_names[documents.kinds[row]]
        return Detail(
            hash=document,
            entries=tuple(order[0] + order[1]),
            size_bytes=len(text),
            kind=kind,
            excerpts={span: excerpt(text, *span, words, excerpt_size, kind) for span in dict.fromkeys(spans)},
            derived=tuple(self._derived(view, row, queries)),
        )

    def _derived(self, view: View, row: int, queries: Sequence[SpaceQuery]) -> Iterator[Derived]:
        """What derived spaces found a document by."""
        for query in queries:
            space = self.spaces.get(query.space)
            reader = view.readers.get(space.id) if space is not None and space.layer.origin == "derived" else None
            if isinstance(reader, Describing) and (found := reader.describe(query, row)) is not None:
                yield found


@dataclass(frozen=True, slots=True)
class Finding:
    """A shard that is searched. base: its first document number; status: coverage per query of the plan, as far as they were worked on;
    documents, entries: those in scope of each view, None: all live."""

    shard: Shard
    base: int
    status: list[LayerStatus]
    documents: list[Array] | None
    entries: list[Array] | None

    def failed(self, space: str) -> bool:
        """Whether the space could not be searched here."""
        return any(status.state == "failed" for status in self.status if status.space == space)


def search(shards: Sequence[Shard], plan: Plan, budget: Budget, on_the_fly: OnTheFly | None = None) -> Candidates:
    """Candidates of several shards as if they were one: each space's best documents, every one of them scored by every space.

    So no space's cut-off hides evidence. All shards are searched before any candidate is scored by the other spaces: only what is
    among the best of all needs that, a quarter of what four shards find. on_the_fly: encodes what a space has no index of, as far as the
    plan allows; None: nothing is.
    """
    hits = [Hits(plan.n_candidates, distinct=over(shards, query.space) == "documents") for query in plan.queries]
    found = find(shards, plan, hits, budget)
    listed = [h.columns() for h in hits]
    numbers = np.unique(np.concatenate([found.numbers_of(plan.given), *(columns.numbers for columns in listed)]))
    table = Table.of(numbers, listed)
    given = np.isin(numbers, found.numbers_of(plan.given)) if any(query.known for query in plan.queries) else np.zeros(len(numbers), bool)
    missed = []
    for s, query in enumerate(plan.queries):
        wanted = ~table.generated[:, s]
        missed.append(found.score(query, numbers, table, s, wanted & ~given if query.known else wanted, plan.where, budget))
    if budget.expired:
        found = found.with_late(plan, numbers, table, missed)
    elif on_the_fly is not None and plan.on_the_fly_s > 0:
        found = found.with_unbuilt(plan, numbers, table, given, on_the_fly, budget)
    return found.candidates(numbers, table, hits)


@dataclass(frozen=True, slots=True)
class Searched:
    """Shards that were searched as one. parts: those that there was time for; n_rows: their document numbers; status: coverage of all."""

    parts: list[Finding]
    n_rows: int
    status: list[LayerStatus]

    def _edges(self, numbers: Array) -> Iterator[tuple[Finding, int, int]]:
        """Each shard with its stretch of ascending document numbers."""
        edges = np.searchsorted(numbers, [*(part.base for part in self.parts), self.n_rows]).tolist()
        return zip(self.parts, edges, edges[1:], strict=False)

    def numbers_of(self, given: bytes) -> Array:
        """Document numbers of the content hashes that are live here, in no order: (m,) int64."""
        documents = np.frombuffer(given, np.uint8).reshape(-1, 20)
        found = [view.rows_of(documents) + np.int64(part.base + view.base) for part in self.parts for view in part.shard.views]
        bases = [part.base + view.base for part in self.parts for view in part.shard.views]
        return np.concatenate([np.zeros(0, np.int64), *(rows[rows >= base] for rows, base in zip(found, bases, strict=True))])

    def with_late(self, plan: Plan, numbers: Array, table: "Table", missed: Sequence[Sequence[int]]) -> "Searched":
        """The same, where the time ended: a question that did not score all that others found is late, however well it searched, and one
        that finds nothing by itself has looked at no more than it has scored. missed: by question and shard, `score`."""
        status = list(self.status)
        for s, query in enumerate(plan.queries):
            for i, (part, low, high) in enumerate(self._edges(numbers)):
                told = part.status[s]
                if told.state not in ("ready", "known", "scoped", "building"):
                    continue
                scored = int(np.count_nonzero(~np.isnan(table.scores[low:high, s])))
                if not query.finds and not query.known and scored < high - low:
                    late = replace(told, state="late", covered=scored, total=high - low, reason="the time budget ended")
                elif missed[s][i]:
                    late = replace(told, state="late", reason=f"the time budget ended before {missed[s][i]} candidates were scored")
                else:
                    continue
                status[next(at for at, one in enumerate(status) if one is told)] = late
        return replace(self, status=status)

    def score(
        self, query: SpaceQuery, numbers: Array, table: "Table", s: int, wanted: Array, where: Predicate, budget: Budget
    ) -> list[int]:
        """Puts into column s of the table what a space says of the documents that are wanted, (n,) bool. numbers: (n,), ascending.
        Returns, by shard, for how many the time did not suffice."""
        missed = [0] * len(self.parts)
        for i, (part, low, high) in enumerate(self._edges(numbers)):
            space = part.shard.spaces.get(query.space)
            if space is None or "refine" not in space.layer.roles or part.failed(query.space):
                continue
            missing = low + np.flatnonzero(wanted[low:high])
            if len(missing):
                begun = time.monotonic()
                for at, scored in part.shard.score(query, numbers[missing] - part.base, where, part.entries, budget):
                    table.put(s, missing[at], scored)
                    missed[i] += int(np.count_nonzero(np.isnan(scored.scores))) if budget.expired else 0
                self._took(part, query.space, time.monotonic() - begun)
        return missed

    def _took(self, part: Finding, space: str, seconds: float) -> None:
        """A question took so much longer on a shard: what scoring takes is a cost of its space, too, by which searches are planned. (A
        further round of a joint ranking tells nothing of the spaces that only score.)"""
        at = next((at for at, one in enumerate(part.status) if one.space == space), None)
        if at is not None:
            told = part.status[at]
            here = next(i for i, one in enumerate(self.status) if one is told)
            self.status[here] = part.status[at] = replace(told, seconds=told.seconds + seconds)

    def with_unbuilt(
        self, plan: Plan, numbers: Array, table: "Table", given: Array, on_the_fly: OnTheFly, budget: Budget
    ) -> "Searched":
        """The same, when documents that spaces are not built for were scored on the fly, those of most promise first, into the table.

        given: (n,) bool, what known questions scored in earlier rounds. Coverage stays that of the index; its reason tells how many.
        """
        left_s = budget.remaining_s
        ending = budget.sooner(max(left_s - plan.on_the_fly_s, SCORING_S)) if math.isfinite(left_s) else Budget(plan.on_the_fly_s)
        status = list(self.status)
        order: Array | None = None
        for s, query in enumerate(plan.queries):
            lacking = np.isnan(table.scores[:, s]) & ~(given if query.known else np.zeros(len(given), bool))
            if query.where is not None or ending.expired or not lacking.any():
                continue
            order = by_promise(table.scores, plan.promise) if order is None else order
            for space, wanted, places in self._unbuilt(query, numbers, order[lacking[order]]):
                begun = time.monotonic()
                scored, reason = on_the_fly.score(space, query, wanted, ending)
                table.put(s, places, scored)
                n_scored = int(np.count_nonzero(~np.isnan(scored.scores)))
                reason = f"{n_scored} candidates scored on the fly" + (f": {reason}" if reason else "")
                at = next((at for at, one in enumerate(status) if one.space == query.space and one.state in ("building", "absent")), None)
                if at is not None:  # told once: models and time are the host's, and no shard's
                    told = status[at]
                    seconds = time.monotonic() - begun
                    status[at] = replace(told, reason="; ".join(filter(None, [told.reason, reason])), on_the_fly_s=seconds)
        return replace(self, status=status)

    def _unbuilt(
        self, query: SpaceQuery, numbers: Array, order: Array
    ) -> Iterator[tuple[Space, list[tuple[Documents, int]], Array]]:
        """Of rows of the table, in an order, the first that a space may score on the fly: it, the documents, and the rows."""
        parts = [part for part in self.parts if query.space in part.shard.spaces and not part.failed(query.space)]
        space = parts[0].shard.spaces[query.space] if parts else None
        if space is None or not can_be(space):
            return
        # Without any index there are no moments to judge scores by, and these would say nothing.
        if not any(space.id in view.readers and part.shard.n_units(space.name) for part in parts for view in part.shard.views):
            return
        wanted: list[tuple[Documents, int]] = []
        places: list[int] = []
        edges = [part.base for part in self.parts]
        for at in order.tolist():
            part = self.parts[int(np.searchsorted(edges, numbers[at], "right")) - 1]
            number = int(numbers[at]) - part.base
            view = next(view for view in part.shard.views if view.base <= number < view.base + len(view.live_docs))
            if part in parts and (space.built == "used" or space.id not in view.readers):
                wanted.append((view.segment.documents, number - view.base))
                places.append(at)
            if len(wanted) == FIRST:
                break
        if wanted:
            yield space, wanted, np.array(places, np.int64)

    def candidates(self, numbers: Array, table: "Table", hits: Sequence[Hits]) -> Candidates:
        """The documents of a table as candidates, in the order of their hashes."""
        hashes = [part.shard.hashes(numbers[low:high] - part.base) for part, low, high in self._edges(numbers)]
        together = np.concatenate(hashes) if hashes else np.zeros((0, 20), np.uint8)
        order = np.argsort(as_keys(together), kind="stable") if len(together) else np.zeros(0, np.int64)
        return Candidates(
            hashes=together[order],
            generated=table.generated[order],
            scores=table.scores[order],
            starts=table.starts[order],
            ends=table.ends[order],
            moments=tuple(h.moments for h in hits),
            n_matched=np.array([h.n_matched for h in hits], np.int64),
            status=tuple(sorted(self.status, key=lambda s: (s.space, s.shard))),
        )


def find(shards: Sequence[Shard], plan: Plan, hits: Sequence[Hits], budget: Budget) -> Searched:
    """Each space's best documents of all shards, added to its hits; some time is kept for scoring them.

    One question after the other, in the order of the plan, each over all shards: what the time does not suffice for is the last question
    everywhere, and not all questions of the last shard.
    """
    finding = budget.sooner(min(SCORING_S, SCORING_SHARE * max(budget.remaining_s, 0.0)))
    found: list[Finding] = []
    status: list[LayerStatus] = []
    base = 0
    for shard in shards:
        if found and finding.expired:
            late = "the time budget ended before this shard"
            status += [LayerStatus(q.space, shard.number, "known" if q.known else "late", 0, shard.n_docs, late) for q in plan.queries]
        else:
            found.append(shard.begin(plan, base))
            base += shard.n_rows
    for n, (query, own) in enumerate(zip(plan.queries, hits, strict=True)):
        for i, part in enumerate(found):
            if query.known:
                part.status.append(LayerStatus(query.space, part.shard.number, "known", 0, 0))
            elif (n or i) and finding.expired:  # something was searched: the first question, of the first shard at least
                reason = "the time budget ended before this question" if not i else "the time budget ended before this shard"
                part.status.append(LayerStatus(query.space, part.shard.number, "late", 0, part.shard.n_docs, reason))
            else:
                part.shard.find_hits(plan, query, own, part, finding)
    return Searched(found, base, [*(one for part in found for one in part.status), *status])


def over(shards: Sequence[Shard], space: str) -> str:
    """What the rows of a space are."""
    return next((shard.spaces[space].layer.over for shard in shards if space in shard.spaces), "documents")


class Table(NamedTuple):
    """Documents by spaces: the columns of `shards.types.Candidates` of these names."""

    generated: Array
    scores: Array
    starts: Array
    ends: Array

    @classmethod
    def of(cls, numbers: Array, listed: Sequence[Columns]) -> "Table":
        """With what each space has listed. numbers: (n,) int64, ascending: the documents."""
        shape = (len(numbers), len(listed))
        table = cls(np.zeros(shape, bool), np.full(shape, np.nan), np.zeros(shape, np.int64), np.zeros(shape, np.int64))
        for s, columns in enumerate(listed):
            at = np.searchsorted(numbers, columns.numbers)
            table.generated[at, s] = True
            table.scores[at, s], table.starts[at, s], table.ends[at, s] = columns.scores, columns.starts, columns.ends
        return table

    def put(self, s: int, at: Array, scored: Scored) -> None:
        """What space s says of the documents in rows `at`; of a document's several scores the best counts; nan is none."""
        order = np.argsort(scored.scores, kind="stable")  # ascending, so the best is written last; nan sorts behind all
        order = order[: np.count_nonzero(~np.isnan(scored.scores))]
        order = order[~(self.scores[at[order], s] >= scored.scores[order])]
        at = at[order]
        self.scores[at, s], self.starts[at, s], self.ends[at, s] = (
            scored.scores[order], scored.starts[order], scored.ends[order]
        )  # fmt: skip
