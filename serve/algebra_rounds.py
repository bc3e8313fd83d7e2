"""A combined request from tree to answer: what can be asked at once goes to the shards in one plan, bridges in further ones.

All sub-queries that wait for nothing ride in one plan, whatever operators join them: one call for each host. There every question scores
what the others bring, so operators need no call of their own. The second operand of `then` and `seed`, and what is negated, brings nothing
itself (`SpaceQuery.finds`): it is only asked of the documents that others bring. A bridge needs its keys first, so what it asks goes with
the next plan; sub-queries that it is to be combined with ride along once more and score what it brings, and their own documents are given
to it (`Plan.given`). All rounds share the request's budget: what there was no time for is left out, named, and asked if the request
goes on (`Rounds.resume`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from serve.algebra import Algebra, Crossed, Result, same
from serve.algebra_schema import Bridge, Cut, Operator, Place, Search, Seed, Text, Then, operands, places
from serve.algebra_tables import by_question, carried, columns_of
from serve.algebra_text import key_written, written
from serve.anytime.learned import gains
from serve.anytime.planning import could_change, is_enough
from serve.anytime.search import LATE, on_the_fly_s
from serve.bridges import Giver, Key, asked_with, keys_of_hits, keys_of_text
from serve.cascades import Stage, cuts, stage
from serve.certificate import trusted
from serve.couplings import Coupled, check, couple, located
from serve.evidence import Fused, SpaceFacts
from serve.filters import parse_paths, parse_where, scope
from serve.highlight import query_words
from serve.judging import evidence_of, facts_of
from serve.laps import Laps
from serve.questions import explicit, spaces_to_ask
from serve.questions_in_time import made_within
from serve.schema import SearchRequest
from serve.verdict import Verdict
from shards.candidates import merge, nothing
from shards.errors import BadQuery, SondageError
from shards.generation import Generation
from shards.plan import And, Everything, Plan, SpaceQuery, simplify
from shards.types import EXCERPT_BYTES, Array, Budget, Candidates, LayerStatus, LinesAround

if TYPE_CHECKING:
    from serve.coordinator import Coordinator

LEAST_S = 0.005  # of time left: with less a further round is not begun, since no shard could answer it
MAX_ASKED = 48  # sub-queries of one request with those of all its keys, each with a question to each of its spaces
WHOLE_LINES = LinesAround(0, 0)  # what keys are taken from


@dataclass(eq=False)
class Asked:
    """A sub-query as it is asked. at: where it stands in the request; finds: whether it brings documents; bridge: over which its key came;
    left_out: its spaces that are not asked for its goal, and why; late: spaces whose questions there was no time to make; round: in which
    it was asked first, from 1."""

    node: Search
    name: str
    request: SearchRequest
    names: list[str]
    prepared: list[SpaceQuery]
    reasons: dict[str, str]
    finds: bool
    at: str
    bridge: str
    left_out: Mapping[str, str]
    late: frozenset[str] = frozenset()
    round: int | None = None
    answer: "Answer | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a sub-query said of the documents of one table: its columns of the candidates, and what they come to.

    order: (m,) int64, the rows that it has, best first: its ranking, then what others brought and it has evidence of, too.
    """

    found: Candidates
    facts: list[SpaceFacts]
    fused: Fused | None
    coupled: Coupled | None
    order: Array
    verdict: Verdict
    why: str

    @property
    def seen(self) -> Array:
        """(n,) bool, the rows that it has."""
        rows = np.zeros(len(self.found.hashes), bool)
        rows[self.order] = True
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """What became of a bridge. told: every key, the name of the sub-query that was asked with it, None where none was, and why not."""

    bridge: Bridge
    crossed: Crossed
    told: Sequence[tuple[Key, str | None, str]] = ()


class Rounds:
    """One combined request being carried out, round by round.

    generation: that answers. asked: sub-queries by `same`, in the order in which they were prepared; shown: those of the last table, to
    which `Result.shown` refers.
    n_candidates: documents that each space lists. plan, table: of the last round, and its candidates, as all its questions see them.
    missed: coverage of what there was no time to ask.
    cuts: of the tree; kept: by `same`, what they left (`Algebra.kept`).
    """

    def __init__(
        self,
        coordinator: "Coordinator",
        generation: Generation,
        request: SearchRequest,
        n_candidates: int,
        n_details: int,
        budget: Budget,
        laps: Laps,
    ):
        self._coordinator, self.generation, self._request, self._budget, self._laps = coordinator, generation, request, budget, laps
        self._places: dict[str, tuple[Place, str]] = {}  # by `same`, with the name of the sub-query
        self.n_candidates, self._n_details = n_candidates, n_details
        context = request.context
        size = EXCERPT_BYTES if context is None else LinesAround(context.before, context.after)
        self.plan = Plan(where=scope(request.paths, request.where), queries=(), excerpt_size=size)
        self.asked: dict[str, Asked] = {}
        self.shown: list[Asked] = []
        self.crossings: dict[str, Crossing] = {}
        self.table = nothing(0)
        self.missed: list[LayerStatus] = []
        self.notes: list[str] = []
        self.cuts: list[Cut] = []
        self.kept: dict[str, tuple[int, int]] = {}
        self.n_rounds = 0
        self._root: Operator | None = None
        self._again = b""  # content hashes of what sub-queries had found that are asked anew
        self._questions_end = time.monotonic()  # of those for the next round

    async def run(self, root: Operator, reserve_s: float) -> tuple[Result, Algebra]:
        """The result of a tree, over the documents of `table`. reserve_s: what is to be left of the budget for what follows. Called again
        after `resume`. Raises BadQuery, Overloaded."""
        self._questions_end = self._half_of(reserve_s)
        if self._root is None:
            await self._begin(root)
        else:
            for asked in [asked for asked in self.asked.values() if asked.late and asked.answer is None]:
                made = await self._prepare(asked.node, asked.name, asked.at, asked.finds, asked.bridge)
                made.round = asked.round
        self._root = root
        while True:
            left_s = self._budget.remaining_s - reserve_s
            await self._round(root, max(left_s / (1 + open_rounds(root, self.crossings)), 0.001))
            ready = list(ready_bridges(root, self.crossings))
            if not ready or not self._in_time(reserve_s):
                break
            self._questions_end = self._half_of(reserve_s)
            for bridge, firsts in ready:
                if same(bridge) not in self.crossings:
                    await self._cross(bridge, firsts)
            self._laps.end(f"keys {self.n_rounds}")
            if not self._in_time(reserve_s):
                break
        algebra = self._algebra()
        result = algebra.of(root)
        self.kept |= algebra.kept
        self.missed += [status for bridge in open_bridges(root, self.crossings) for status in self._late(bridge.bridge.to)]
        self.missed += [status for asked in self.asked.values() if asked.answer is None for status in self._late(asked.node)]
        unmade = [name for asked in self.asked.values() if asked.answer is not None for name in sorted(asked.late)]
        self.missed += self._late_spaces(unmade, "the question of this space was not made in time")
        return result, algebra

    async def _begin(self, root: Operator) -> None:
        """Make the questions of all that waits for no key."""
        self.cuts = list({same(cut): cut for cut in cuts(root)}.values())
        for number, place in enumerate(places(root), 1):
            known, name = self._places.get(same(place.search), (place, place.search.search.name or str(number)))
            finds, template = known.finds or place.finds, known.template and place.template
            self._places[same(place.search)] = replace(known, finds=finds, template=template), name
        for place, name in self._places.values():
            self._check(place)
            if not place.template:
                await self._prepare(place.search, name, place.at, place.finds)
        for bridge in open_bridges(root, self.crossings):
            if isinstance(bridge.bridge.source, Text):  # whose keys are known before anything is asked
                await self._cross(bridge, ())
        self._laps.end("prepare")

    @property
    def unfinished(self) -> bool:
        """Whether more time would bring more."""
        is_open = self._root is not None and any(True for _ in open_bridges(self._root, self.crossings))
        return is_open or any(asked.answer is None for asked in self.asked.values()) or any(map(_is_late, self.shown))

    @property
    def size_bytes(self) -> int:
        """About what is held of it."""
        columns = (array.nbytes for asked in self.asked.values() if asked.answer is not None for array in _arrays(asked.answer.found))
        return sum(columns) + sum(len(detail.entries) * 200 + 1_000 for detail in self.table.details.values())

    def resume(self, request: SearchRequest, budget: Budget, laps: Laps) -> None:
        """Go on with more time: sub-queries that were cut off are asked anew, those that looked everywhere only of what these bring, and
        bridges that were not crossed are. Keys that went over a bridge stay what they were."""
        self._request, self._budget, self._laps, self.missed = request, budget, laps, []
        again = [asked for asked in self.shown if _is_late(asked)]
        self._again = self._documents_of(again)
        for asked in again:
            asked.answer = None

    def _half_of(self, reserve_s: float) -> float:
        """When half of the time that is left will be over, for making questions at most: the other half is for asking them."""
        return time.monotonic() + max(self._budget.remaining_s - reserve_s, 0.0) / 2

    def _in_time(self, reserve_s: float) -> bool:
        return self._budget.remaining_s - reserve_s > LEAST_S

    # --- preparing -------------------------------------------------------------------------------------------------------------------

    def _check(self, place: Place) -> None:
        """Raises BadQuery for what no key could mend: an unknown layer, a broken filter."""
        asked, at = place.search.search, f"{place.at}.search"
        if asked.coupling.name in ("joint", "none"):
            problem = f"{asked.coupling.name} is a coupling of a whole request, not of a sub-query. Choose another, or leave it out."
            raise BadQuery(f"{at}.coupling: {problem}", at=f"{at}.coupling")
        parse_paths(asked.paths, f"{at}.paths")
        parse_where(asked.where, f"{at}.where")
        try:
            request = self._request_of(place.search)
            spaces_to_ask(self.generation, request)
            check(request, self.generation.spaces)
        except BadQuery as error:
            raise BadQuery(f"{at}: {error}", at=f"{at}.{error.at}" if error.at else at) from None

    def _request_of(self, search: Search) -> SearchRequest:
        asked = search.search
        own = {"query": asked.query, "forms": asked.forms, "layers": asked.layers if asked.layers == "auto" else list(asked.layers)}
        own |= {"coupling": asked.coupling, "weights": asked.weights, "combine": None}
        return self._request.model_copy(update=own)

    async def _prepare(self, search: Search, name: str, at: str, finds: bool, bridge: str = "") -> Asked:
        """Raises BadQuery for what is no question of a layer that was named."""
        request = self._request_of(search)
        names = spaces_to_ask(self.generation, request)
        left_out = self._left_out(request, names)
        names = [name for name in names if name not in left_out]
        left_s = self._questions_end - time.monotonic()
        try:
            made = await made_within(self._coordinator, self.generation, request, names, left_s)
        except BadQuery as error:
            raise BadQuery(f"{at}.search: {error}", at=f"{at}.search") from None
        own = scope(search.search.paths, search.search.where)
        queries = []
        for query in made.prepared:
            where = simplify(own if query.where is None else And((own, query.where)))
            queries.append(replace(query, where=None if where == Everything() else where, finds=finds, bridge=bridge))
        reasons = made.reasons | left_out
        asked = Asked(search, name, request, [*names, *left_out], queries, reasons, finds, at, bridge, left_out, made.late)
        self.asked[same(search)] = asked
        return asked

    def _left_out(self, request: SearchRequest, names: Sequence[str]) -> dict[str, str]:
        """Of a sub-query that is to be fast, the dearest spaces that together are expected to change next to nothing, and that they are."""
        spaces, learned = self.generation.spaces, self._coordinator.learned.of(request.corpus)
        counts = trusted({name: spaces[name].layer for name in names}, self.generation.nulls)
        gain = gains(learned, names, {name: low for name, (low, _) in counts.items()})
        found: list[str] = []
        for name in sorted(names, key=lambda name: (-learned.of(name).prepare_s.mean - learned.of(name).search_s.mean, name)):
            if len(found) + 1 < len(names) and is_enough(request.goal, could_change([(gain[one], 1.0) for one in (*found, name)])):
                found.append(name)
        why = "left out: it would hardly change the first hits, and fast is wanted"
        return dict.fromkeys(found, why)

    # --- rounds ------------------------------------------------------------------------------------------------------------------------

    async def _round(self, root: Operator, seconds: float) -> None:
        """Asks what was not asked yet, and once more, about what that brings, what it is to be combined with."""
        live = list(dict.fromkeys(self.asked[same(search)] for search in live_searches(root, self.crossings)))
        before = [asked for asked in live if asked.answer is not None]
        if len(before) == len(live):
            return
        self.n_rounds += 1
        queries = [replace(query, finds=query.finds and asked.answer is None) for asked in live for query in asked.prepared]
        given, self._again = self._documents_of(before) + self._again, b""
        corpus = self.generation.root
        plan = replace(
            self.plan,
            queries=tuple(queries),
            n_candidates=self.n_candidates,
            n_details=self._n_details,
            budget_s=seconds,
            on_the_fly_s=on_the_fly_s(self._request.goal, seconds),
            words=tuple(dict.fromkeys(word for asked in live for word in query_words(asked.request.query))),
            given=given,
        )
        parts = await self._coordinator.searcher.search(corpus.corpus, corpus.generation, len(corpus.shards), plan) if queries else []
        table = merge(parts, self.n_candidates, given) if parts else nothing(len(queries))
        statuses = by_question(queries, table.status)
        low = 0
        for asked in live:
            high = low + len(asked.prepared)
            columns = columns_of(table, low, high, statuses)
            if asked.answer is not None:
                columns = carried(asked.answer.found, columns)
            else:
                asked.round = asked.round or self.n_rounds
            asked.answer = self._answer(asked, columns)
            low = high
        self.plan, self.table, self.shown = plan, table, live
        self._laps.end(f"round {self.n_rounds}")

    def _answer(self, asked: Asked, found: Candidates) -> Answer:
        """What a sub-query's columns come to, as `Coordinator.search` finds it for a whole request."""
        if not asked.prepared:
            return Answer(found, [], None, None, np.zeros(0, np.int64), "none", "nothing was asked of any space")
        facts = facts_of(self.generation, asked.prepared, found)
        if not asked.finds:  # the best of some documents is no measure of what the corpus has
            facts = [replace(fact, whole=False) for fact in facts]
        fused, verdict, why = evidence_of(self.generation, asked.request, facts, asked.reasons, found)
        coupled = couple(asked.request, facts, fused, found, explicit=explicit(asked.request))
        beside = fused.fused > 0
        beside[coupled.ranking] = False
        order = np.concatenate([coupled.ranking, fused.order[beside[fused.order]]])
        return Answer(found, facts, located(fused, coupled, found, facts), coupled, order, verdict, why)

    def _documents_of(self, asked: Sequence[Asked]) -> bytes:
        """The content hashes of all that sub-queries have brought or seen, one after the other."""
        kept = np.zeros(len(self.table.hashes), bool)
        for one in asked:
            if one.answer.coupled is not None and one.finds:
                kept[one.answer.coupled.ranking] = True
        return self.table.hashes[kept].tobytes()

    def _algebra(self) -> Algebra:
        n = len(self.table.hashes)
        answered = {}
        for number, asked in enumerate(self.shown):
            answer = asked.answer
            shown = np.where(answer.seen, number, -1)
            evidence, log_evalues = (np.zeros(n), np.zeros(n)) if answer.fused is None else (answer.fused.fused, answer.fused.log_evalues)
            answered[same(asked.node)] = Result(answer.order, evidence, log_evalues, shown, answer.verdict, answer.why)
        crossed = {key: crossing.crossed for key, crossing in self.crossings.items()}
        depths = {same(cut): depth for cut in self.cuts if (depth := self.stage(cut).depth) is not None}
        return Algebra(self.table.hashes, self.generation.root.n_docs, answered, crossed, depths)

    def stage(self, cut: Cut) -> Stage:
        """How deep a cut goes, by what its search asks."""
        asked = self.asked.get(same(cut.cut.of))
        kinds = None if asked is None else {query.space: self.generation.spaces[query.space].layer.null for query in asked.prepared}
        return stage(cut, kinds, self.generation.nulls)

    # --- bridges -----------------------------------------------------------------------------------------------------------------------

    async def _cross(self, bridge: Bridge, firsts: Sequence[tuple[Operator, ...]]) -> None:
        """Takes the keys of a bridge and prepares what they ask. firsts: operands of `then` and `seed` in whose documents it is."""
        fields = bridge.bridge
        verdict, why = "strong", "the request's own text"
        if isinstance(fields.source, Text):
            keys, n_more = keys_of_text(fields.key, fields.source.text)
        else:
            algebra, within = self._algebra(), None
            for first in firsts:
                within = algebra.of(Then(then=first), within).members
            found = algebra.of(fields.source, within)
            self.kept |= algebra.kept
            verdict, why = found.verdict, found.why
            # What chance brought is no key: asking with it would cost a round and end in nothing.
            rows = found.order[: fields.n] if verdict != "none" or self._request.keep_all else found.order[:0]
            keys, n_more = keys_of_hits(fields.key, await self._givers(found, rows))
        room = max(MAX_ASKED - len(self.asked), 0)
        n_more, keys = n_more + max(len(keys) - room, 0), keys[:room]
        if n_more:
            self.notes.append(f"{written(bridge)}: {n_more} more keys were found; the first {len(keys)} were asked with.")
        place, name = self._places[same(fields.to)]
        went: list[tuple[Key, Search]] = []
        told: list[tuple[Key, str | None, str]] = []
        for key in keys:
            search = asked_with(fields.to, key.text)
            via = f"{key_written(fields.key)} {key.text!r} of {key.path or key.place}"
            try:
                if same(search) not in self.asked:
                    await self._prepare(search, f"{name}[{key.text}]", place.at, place.finds, via)
            except SondageError as error:  # a key that is no question of this layer: the others may be
                told.append((key, None, str(error)))
                continue
            went.append((key, search))
            told.append((key, self.asked[same(search)].name, ""))
        crossed = Crossed([key for key, _ in went], [search for _, search in went], verdict, why)
        self.crossings[same(bridge)] = Crossing(bridge, crossed, told)

    async def _givers(self, found: Result, rows: Array) -> list[Giver]:
        """The hits of these rows, with what hosts say of them."""
        corpus, spans = self.generation.root, {}
        for row in rows.tolist():
            fused = self.shown[int(found.shown[row])].answer.fused
            spans[self.table.hashes[row].tobytes()] = ((int(fused.starts[row]), int(fused.ends[row])),)
        details = {}
        if spans:
            seconds = max(self._budget.remaining_s, 0.05)
            details = await self._coordinator.searcher.details(
                corpus.corpus, corpus.generation, len(corpus.shards), spans, (), WHOLE_LINES, self.plan.where, seconds
            )
        return [
            Giver(key, float(found.evidence[row]), float(found.log_evalues[row]), details.get(key))
            for row, key in zip(rows.tolist(), spans, strict=True)
        ]

    def _late(self, search: Search) -> list[LayerStatus]:
        """The coverage of a sub-query that there was no time for."""
        names = spaces_to_ask(self.generation, self._request_of(search))
        return self._late_spaces(names, "the time budget ended before the round in which this is asked")

    def _late_spaces(self, names: Sequence[str], reason: str) -> list[LayerStatus]:
        corpus = self.generation.root
        return [LayerStatus(name, shard.shard, "late", 0, corpus.n_docs, reason) for name in names for shard in corpus.shards]


def _is_late(asked: Asked) -> bool:
    """Whether a sub-query was asked, and its time ended before it had looked everywhere, or all its questions were made."""
    return asked.answer is not None and (bool(asked.late) or any(one.state in LATE for one in asked.answer.found.status))


def _arrays(found: Candidates) -> Iterator[Array]:
    yield from (found.hashes, found.generated, found.scores, found.starts, found.ends)


# --- trees ---------------------------------------------------------------------------------------------------------------------------


def live_searches(node: Operator, crossings: Mapping[str, Crossing]) -> Iterator[Search]:
    """The sub-queries whose results are still to be combined: of a bridge what gives its keys, once it is crossed what these ask."""
    if isinstance(node, Search):
        yield node
    elif isinstance(node, Bridge):
        crossing = crossings.get(same(node))
        yield from live_searches(node.bridge.source, crossings) if crossing is None else crossing.crossed.searches
    else:
        for inner in operands(node):
            yield from live_searches(inner, crossings)


def open_bridges(node: Operator, crossings: Mapping[str, Crossing]) -> Iterator[Bridge]:
    """All bridges that are not crossed yet."""
    if isinstance(node, Bridge):
        if same(node) not in crossings:
            yield node
            yield from open_bridges(node.bridge.source, crossings)
        return
    for inner in operands(node):
        yield from open_bridges(inner, crossings)


def ready_bridges(
    node: Operator, crossings: Mapping[str, Crossing], firsts: tuple[tuple[Operator, ...], ...] = ()
) -> Iterator[tuple[Bridge, tuple[tuple[Operator, ...], ...]]]:
    """Bridges that can be crossed now, their keys being known, with the operands of `then` and `seed` in whose documents they are."""
    if isinstance(node, Bridge):
        if same(node) not in crossings:
            inner = list(ready_bridges(node.bridge.source, crossings, firsts))
            yield from inner or [(node, firsts)]
        return
    of = operands(node)
    for i, inner in enumerate(of):
        if i and isinstance(node, Then | Seed):
            if any(list(open_bridges(first, crossings)) for first in of[:i]):
                return  # whose documents are not known yet
            yield from ready_bridges(inner, crossings, (*firsts, of[:i]))
        else:
            yield from ready_bridges(inner, crossings, firsts)


def open_rounds(node: Operator, crossings: Mapping[str, Crossing]) -> int:
    """How many further rounds the bridges of a tree may need."""
    if isinstance(node, Bridge):
        return 0 if same(node) in crossings else 1 + open_rounds(node.bridge.source, crossings)
    below = [open_rounds(inner, crossings) for inner in operands(node)]
    return sum(below) if isinstance(node, Then | Seed) else max(below, default=0)
