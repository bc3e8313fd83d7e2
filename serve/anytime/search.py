"""One search, from its request to its answers, round by round: what was asked so far, what waits, and what is known.

A search that its time cuts off can be kept and taken up again (`serve.anytime.unfinished`): what has looked everywhere is not asked again.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cluster.batching import TryAgain
from serve import filters
from serve.anytime.learned import OfCorpus, changes, gains, searched
from serve.anytime.planning import Step, Waiting, could_change, is_enough, next_step, why_not_begun
from serve.anytime.rounds import joined, only
from serve.anytime.schema import Certificate, PlannedSpace, SearchPlan
from serve.certificate import Judged, certificate, trusted
from serve.evidence import SpaceFacts
from serve.highlight import query_words
from serve.judging import facts_of
from serve.laps import Laps
from serve.paging import Cursor
from serve.questions import Asking, Done, silent
from serve.schema import SearchRequest
from serve.translation_schema import TranslationInfo
from shards.candidates import merge
from shards.generation import Generation
from shards.plan import Plan, SpaceQuery
from shards.types import EXCERPT_BYTES, N_CANDIDATES, Budget, Candidates, LayerStatus, LinesAround

if TYPE_CHECKING:
    from serve.coordinator import Coordinator
    from serve.evidence import Fused
    from serve.feedback import Changed

ANSWER_S = 0.004  # kept back from the hosts' budget for fusing, details and writing the answer, where no more is known to be needed
ANSWER_SHARE = 0.3  # of what is left, that is kept back at most
WIDE = 3  # times as many documents does each space list where a search is to be wide
QUESTION_S = 0.002  # questions that take so long are made in a thread, and not before they are wanted
DONE = frozenset(("ready", "scoped", "absent"))  # states of coverage that more time does not change


@dataclass
class Search:
    """A search under way. For one event loop.

    asked: the request, with forms that a model wrote; judged: the one whose text the verdict goes by. ready: questions that are made but
    not asked; dear: names of spaces whose questions take long to make, and are not there; queries: those that were asked, in the order
    of `found`. unasked: why spaces are not asked, for now. rounds: of each that was asked, the round.
    """

    coordinator: "Coordinator"
    request: SearchRequest
    generation: Generation
    cursor: Cursor | None
    budget: Budget
    laps: Laps
    names: list[str]
    asking: Asking
    asked: SearchRequest
    learned: OfCorpus
    known: frozenset[bytes] = frozenset()
    translation: TranslationInfo | None = None
    changed: "Changed | None" = None
    reasons: dict[str, str] = field(default_factory=dict)
    ready: dict[str, SpaceQuery] = field(default_factory=dict)
    dear: list[str] = field(default_factory=list)
    queries: tuple[SpaceQuery, ...] = ()
    found: Candidates | None = None
    unasked: dict[str, str] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    expected_s: dict[str, float] = field(default_factory=dict)
    n_rounds: int = 0
    stopped: str = ""
    resumed: bool | None = None
    kept_back_s: float = 0.0

    # --- questions -------------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Make the questions that take no time; those that a request with feedback or a translation asks, all at once."""
        prepare_s = self.coordinator.generations.prepare_s
        corpus, chosen = self.request.corpus, self.asking.chosen
        at_once = bool(self.request.feedback or self.request.translate)
        self.dear = [name for name in chosen if not at_once and prepare_s(corpus, [name]) >= QUESTION_S]
        await self._questions([name for name in chosen if name not in self.dear], in_thread=at_once)
        if self.asking.left_out and not self.ready and not self.dear:
            await self._questions(list(self.asking.left_out), in_thread=at_once)  # nothing else can be asked: all are
        else:
            self.reasons |= self.asking.left_out
        self._narrow()

    async def _questions(self, names: list[str], in_thread: bool) -> None:
        """Make the questions of these spaces. In a thread they are made one after the other, and taken as far as the time goes."""
        made = self.asking.begin(names)
        if in_thread or self.coordinator.is_long(self.asked):
            await asyncio.to_thread(made.run)
        else:
            made.run()
        self._take(made.done())

    async def _dear(self, names: list[str], left_s: float) -> None:
        """The same for those that take long, within a time: what is not ready then goes on by itself, and is not asked for now."""
        made = self.asking.begin(names)
        task = asyncio.get_running_loop().run_in_executor(None, made.run)
        _, pending = await asyncio.wait({task}, timeout=max(left_s, 0.001))
        if pending:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            made.stop()
        else:
            task.result()
        done = made.done()
        self._take(done)
        self.dear = [name for name in self.dear if name not in done.ended]
        self.unasked |= {name: "not begun: its question was not made in time" for name in names if name not in done.ended}
        self._narrow()

    def _take(self, done: Done) -> None:
        self.ready |= done.questions
        self.reasons |= done.reasons
        for name, seconds in done.seconds.items():
            self.learned.of(name).prepare_s.add(seconds)

    def _narrow(self) -> None:
        """Of two spaces with the same matches ask one."""
        kept, narrowed = self.asking.narrowed([*self.queries, *self.ready.values()])
        names = {query.space for query in kept}
        self.ready = {name: query for name, query in self.ready.items() if name in names}
        self.reasons |= {name: why for name, why in narrowed.items() if name not in self.rounds}

    # --- rounds ----------------------------------------------------------------------------------------------------------------

    @property
    def by_rounds(self) -> bool:
        """Whether the cheapest spaces are asked first, alone, since it may be enough."""
        return self.request.goal == "fast"

    @property
    def waiting(self) -> list[Waiting]:
        """The spaces that could still be asked."""
        names = [*self.ready, *self.dear]
        gain = self._gains()
        found = []
        for name in names:
            seen = self.learned.of(name)
            prepare_s = seen.prepare_s.upper or self.coordinator.generations.prepare_s(self.request.corpus, [name])
            found.append(Waiting(name, prepare_s, seen.search_s.upper, gain.get(name, 0.0), name in self.ready))
        return found

    def step(self, by_rounds: bool, reserve_s: float = 0.0) -> Step:
        """The next round; why others are not in it is remembered. reserve_s: kept back for what comes after the hosts."""
        self.kept_back_s = self._answer_s() + reserve_s
        waiting, left_s = self.waiting, self.budget.remaining_s - self.kept_back_s
        step = next_step(waiting, left_s, self.learned.round_s.upper, by_rounds, self.found is None)
        left_s -= step.expected_s
        for one in waiting:
            self.expected_s[one.name] = one.cost_s
            if one.name not in step.names:
                self.unasked[one.name] = why_not_begun(one, left_s)
        return step

    async def ask(self, step: Step, n_details: int = 0) -> None:
        """One round: all hosts, the spaces of this step, and what others say of what these find. Raises TryAgain before the first."""
        wanted = [name for name in step.names if name not in self.ready]
        if wanted:
            searches_s = sum(self.learned.of(name).search_s.upper for name in step.names if name in self.ready)
            await self._dear(wanted, self.budget.remaining_s - self.kept_back_s - self.learned.round_s.upper - searches_s)
        new = [self.ready.pop(name) for name in step.names if name in self.ready]
        self.laps.end("prepare")
        if not new:
            return
        self.n_rounds += 1
        for query in new:
            self.unasked.pop(query.space, None)
            self.rounds[query.space] = self.n_rounds
        before = self.found
        queries = (*self.queries, *new)
        asked = (*(replace(query, known=True) for query in self.queries), *new)
        plan = replace(
            self.plan,
            queries=asked,
            given=b"" if before is None else before.hashes.tobytes(),
            n_details=n_details if before is None else 0,
            budget_s=max(self.budget.remaining_s - self.kept_back_s, 0.001),
        )
        begun = self.laps.now_s
        try:
            parts = await self._search(plan)
        except TryAgain:
            if before is None:
                raise
            self.stopped = "the hosts take no more calls now"  # what was found is an answer
            self.unasked |= {query.space: "not begun: the hosts take no more calls now" for query in new}
            self.ready |= {query.space: query for query in new}
            return
        self.laps.end("scatter")
        more = merge(parts, plan.n_candidates, plan.given)
        searched(self.learned, [query.space for query in new], more.status, self.laps.now_s - begun, len(parts))
        places = [*range(len(self.queries)), *(None for _ in new)]
        self.found = more if before is None else joined(before, more, [query.space for query in queries], places)
        self.queries = queries

    async def _search(self, plan: Plan) -> list[Candidates]:
        root = self.generation.root
        return await self.coordinator.searcher.search(root.corpus, root.generation, len(root.shards), plan)

    @property
    def n_candidates(self) -> int:
        """Documents that each space lists."""
        if self.cursor is not None:
            return self.cursor.n_candidates
        wide = WIDE if self.request.goal == "wide" else 1
        return max(wide * N_CANDIDATES, self.request.k) + len(self.known)

    @property
    def plan(self) -> Plan:
        """What hosts are asked, with the questions so far."""
        context = self.request.context
        return Plan(
            where=self._where,
            queries=self.queries,
            n_candidates=self.n_candidates,
            n_details=0,
            budget_s=max(self.budget.remaining_s - self.kept_back_s, 0.001),
            words=self._words,
            excerpt_size=EXCERPT_BYTES if context is None else LinesAround(context.before, context.after),
        )

    def __post_init__(self) -> None:
        self._where = filters.scope(self.request.paths, self.request.where)
        self._words = tuple(query_words(self.request.query))

    def facts(self) -> list[SpaceFacts]:
        """What fusion has to know of the spaces that were asked."""
        return [] if self.found is None else facts_of(self.generation, self.queries, self.found)

    # --- going on --------------------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        """Whether more time would bring more."""
        return bool(self.ready or self.dear or self._cut_off())

    def _cut_off(self) -> set[str]:
        status: tuple[LayerStatus, ...] = () if self.found is None else self.found.status
        return {s.space for s in status if s.state not in DONE}

    def resume(self, request: SearchRequest, budget: Budget, laps: Laps) -> None:
        """Go on with more time: what did not look everywhere is asked anew, what has is not asked again."""
        self.request, self.budget, self.laps, self.resumed, self.stopped = request, budget, laps, True, ""
        again = self._cut_off()
        if self.found is not None and again:
            kept = [j for j, query in enumerate(self.queries) if query.space not in again]
            self.ready |= {query.space: query for query in self.queries if query.space in again}
            self.found = only(self.found, [query.space for query in self.queries], kept) if kept else None
            self.queries = tuple(self.queries[j] for j in kept)

    def enough(self) -> bool:
        """Whether what waits may be left out, by the goal; the reason is remembered."""
        if not (self.ready or self.dear):
            self.stopped = self.stopped or "all were asked"
            return True
        gain = self._gains()
        change = could_change([(gain.get(name, 0.0), 1.0) for name in (*self.ready, *self.dear)])
        if is_enough(self.request.goal, change):
            why = f"left out: all that is left would change about {100 * change:.0f} % of the first hits, and {self.request.goal} is wanted"
            self.unasked |= {name: why for name in (*self.ready, *self.dear)}
            self.stopped = f"what is left would change about {100 * change:.0f} % of the first hits"
            return True
        return False

    # --- what is told ----------------------------------------------------------------------------------------------------------

    def learn(self, fused: "Fused | None", found: Candidates | None) -> None:
        """Remember what each space changed, where all looked everywhere."""
        if fused is None or found is None or self.unfinished or len(self.queries) < 2:
            return
        for query, change in zip(self.queries, changes(fused.surprises, fused.weights, found.generated).tolist(), strict=True):
            self.learned.of(query.space).change.add(change)

    def certificate(self, fused: "Fused | None", wanted: int, by_evidence: bool) -> Certificate:
        """What was not looked at, and what that could still change."""
        names = [query.space for query in self.queries] + [*self.ready, *self.dear]
        layers = {name: self.generation.spaces[name].layer for name in names}
        counts = trusted(layers, self.generation.nulls, silent(self.generation, self.reasons))
        gain = self._gains()
        spaces = [
            Judged(name, layers[name], int(self.generation.statistics(name).n_units), *counts[name], gain.get(name, 0.0)) for name in names
        ]
        unasked = {name: self.unasked.get(name, "not begun") for name in (*self.ready, *self.dear)}
        return certificate(
            spaces,
            self.queries,
            self.found,
            fused,
            self.generation.nulls,
            unasked,
            wanted=wanted,
            n_candidates=self.n_candidates,
            by_evidence=by_evidence,
        )

    def told(self) -> SearchPlan:
        """How the search went, for `explain`."""
        took = {} if self.found is None else _seconds(self.found.status)
        gain = self._gains()
        spaces = [
            PlannedSpace(
                layer=name,
                round=self.rounds.get(name),
                expected_ms=round(1e3 * self.expected_s.get(name, 0.0), 3),
                took_ms=round(1e3 * took[name], 3) if name in took else None,
                change=round(gain.get(name, 0.0), 4),
                reason=self.unasked.get(name, ""),
            )
            for name in [*(query.space for query in self.queries), *self.ready, *self.dear]
        ]
        return SearchPlan(goal=self.request.goal, rounds=self.n_rounds, spaces=spaces, stopped=self.stopped or "all were asked")

    def statuses(self) -> list[LayerStatus]:
        """Coverage of all that was asked, and of what was not begun."""
        found = list(self.found.status) if self.found is not None else []
        for name in (*self.ready, *self.dear):
            why = self.unasked.get(name, "not begun")
            over_entries = self.generation.spaces[name].layer.over == "entries"
            for ref in self.generation.root.shards:
                total = ref.n_entries if over_entries else ref.n_docs
                found.append(LayerStatus(name, ref.shard, "late", 0, total, why))
        return sorted(found, key=lambda s: (s.space, s.shard))

    def _gains(self) -> Mapping[str, float]:
        names = [query.space for query in self.queries] + [*self.ready, *self.dear]
        layers = {name: self.generation.spaces[name].layer for name in names}
        counts = trusted(layers, self.generation.nulls, silent(self.generation, self.reasons))
        return gains(self.learned, names, {name: low for name, (low, _) in counts.items()})

    def _answer_s(self) -> float:
        return max(ANSWER_S, min(self.learned.answer_s.upper, ANSWER_SHARE * max(self.budget.remaining_s, 0.0)))


def _seconds(status: tuple[LayerStatus, ...]) -> dict[str, float]:
    """By space, over its shards."""
    found: dict[str, float] = {}
    for s in status:
        found[s.space] = found.get(s.space, 0.0) + s.seconds
    return found


