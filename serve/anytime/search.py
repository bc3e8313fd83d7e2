"""One search, from its request to its answers, round by round: what was asked so far, what waits, and what is known.

A search that its time cuts off can be kept and taken up again (`serve.anytime.unfinished`): what has looked everywhere is not asked again.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cluster.batching import TryAgain
from serve import filters
from serve.anytime.learned import FEW_HITS, OfCorpus, changes, gains, searched
from serve.anytime.planning import TIGHT, Step, Waiting, could_change, is_enough, next_step, why_not_begun, worth_making
from serve.anytime.rounds import joined, only
from serve.certificate import trusted
from serve.evidence import SpaceFacts
from serve.highlight import query_words
from serve.judging import facts_of
from serve.laps import Laps
from serve.paging import Cursor
from serve.questions import Asking, Done, Making, silent
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
    from serve.freshness import Checking

ANSWER_S = 0.004  # kept back from the hosts' budget for fusing, details and writing the answer, where no more is known to be needed
ANSWER_SHARE, MANY_SHARE = 0.5, 0.6  # of what is left, that is kept back at most; for many hits, whose texts take most of the time
TELL_S = 0.03  # with less left, of an answer that grows only the last one is told
WIDE = 3  # times as many documents does each space list where a search is to be wide
QUESTION_S = 0.002  # questions that take so long are made in a thread, and not before they are wanted
# How long hosts may encode what they find and a space has no index of, by goal: a share of the time left, and most seconds.
ON_THE_FLY = {"fast": (0.0, 0.0), "balanced": (0.3, 0.25), "precise": (0.5, 5.0), "wide": (0.3, 5.0)}
DONE = frozenset(("ready", "scoped", "building", "absent"))  # states of coverage with which a space is not asked again
LATE = frozenset(("late",))  # those that more time changes: what is broken or gone stays so, however long one goes on
WAIT_S = 0.001  # for questions that take long, at least: they may be there


def on_the_fly_s(goal: str, left_s: float) -> float:
    """Most seconds in which hosts may encode what a search finds and a space has no index of."""
    share, most_s = ON_THE_FLY[goal]
    return max(min(share * left_s, most_s), 0.0)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A question that is being made in a thread. since: as `time.monotonic` gives it."""

    name: str
    made: Making
    task: "asyncio.Future[None]"
    since: float


@dataclass
class Search:
    """A search under way. For one event loop.

    asked: the request, with forms that a model wrote; judged: the one whose text the verdict goes by. ready: questions that are made but
    not asked; dear: names of spaces whose questions take long to make, and are not there; queries: those that were asked, in the order
    of `found`. unasked: why spaces are not asked, for now. rounds: of each that was asked, the round. making: the question that is being
    made in a thread; beside: those to be made while hosts work. asked_now: whether there was a round since the search began, or was taken
    up again. coming: named spaces that the corpus is yet to get, and why they are not there.
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
    making: "UnderWay | None" = None
    beside: list[str] = field(default_factory=list)
    asked_now: bool = False
    fresh: "Checking | None" = None
    coming: Mapping[str, str] = field(default_factory=dict)

    # --- questions -------------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Make the questions that take no time; those that a request with feedback or a translation asks, all at once."""
        chosen = self.asking.chosen
        at_once = bool(self.request.feedback or self.request.translate)
        is_long = self.coordinator.is_long(self.asked)
        self.dear = [name for name in chosen if not at_once and (is_long or self._is_dear(name))]
        self.asking.check_forms(self.dear)  # the others are made now
        await self._questions([name for name in chosen if name not in self.dear], in_thread=at_once)
        self.reasons |= self.asking.left_out
        await self._last_resort(in_thread=at_once)
        self._narrow()

    async def _last_resort(self, in_thread: bool = True) -> None:
        """Where nothing else can be asked, all spaces are that were left out by what the query looks like."""
        if not (self.ready or self.dear or self.queries) and self.asking.left_out.items() <= self.reasons.items():
            names = list(self.asking.left_out)
            self.reasons = {name: why for name, why in self.reasons.items() if name not in names}
            await self._questions(names, in_thread)

    def _is_dear(self, name: str) -> bool:
        """Whether the question of a space may take long: as it did when the corpus was opened, or has since; or nobody has tried."""
        took_s = max(self.coordinator.generations.prepare_s(self.request.corpus, [name]), self.learned.of(name).prepare_s.mean)
        return took_s >= QUESTION_S or not self.generation.spaces[name].layer.warmed

    async def _questions(self, names: list[str], in_thread: bool) -> None:
        """Make the questions of these spaces, one after the other."""
        if in_thread:
            made = self.asking.begin(names)
            await asyncio.to_thread(made.run)
            self._take(made.done())
            return
        begun = time.monotonic()
        for name in names:
            made = self.asking.begin([name])
            made.run()
            self._take(made.done())
            if time.monotonic() - begun > QUESTION_S:  # each takes so long at most, and what others wait for comes between
                await asyncio.sleep(0)
                begun = time.monotonic()

    async def _dear(self, names: list[str], left_s: float) -> None:
        """The same for those that take long, one after the other, within a time. The one that is being made when that ends goes on by
        itself, is not asked now, and is there for a later round, or if the search is taken up again."""
        ends = time.monotonic() + max(left_s, WAIT_S)
        # Those that take no time first, and all of them before any that a later round may ask: they are made one after the other.
        names = sorted(names, key=lambda name: (name in self.request.forms, self._is_dear(name)))  # forms may take anything
        self.beside = [*names, *(name for name in self.beside if name not in names)]
        while wanted := [name for name in names if name in self.dear]:
            under_way = self.making or self._make(wanted[0])
            _, pending = await asyncio.wait({under_way.task}, timeout=max(ends - time.monotonic(), 0.0))
            if pending:
                self.unasked |= {name: "not begun: its question was not made in time" for name in names if name in self.dear}
                break
            if self.making is under_way:
                self.making = None
            self._take(under_way.made.done())
            under_way.task.result()
        await self._last_resort()
        self._narrow()

    def _make(self, name: str) -> "UnderWay":
        """Begin a question in a thread."""
        made = self.asking.begin([name])
        task = asyncio.get_running_loop().run_in_executor(None, made.run)
        self.making = UnderWay(name, made, task, time.monotonic())
        self.beside = [other for other in self.beside if other != name]
        task.add_done_callback(self._was_made)
        return self.making

    def rest(self) -> None:
        """Begin no further question: the answer leaves. The one that is being made goes on, for when the search is taken up again."""
        self.beside = []

    def _was_made(self, task: "asyncio.Future[None]") -> None:
        """Takes a question, whether or not anybody waits for it, and learns what it took; begins the next of those to be made beside."""
        if task.cancelled() or task.exception() is not None or self.making is None or self.making.task is not task:
            return  # it was taken; or what went wrong is told to whoever asks for it again
        done = self.making.made.done()
        self.making = None
        for name in done.ended & set(self.dear):
            self.learned.of(name).left_out = 0
        self._take(done)
        self._make_next()

    def _make_next(self) -> None:
        """Begin the next of the questions to be made, unless one is being made."""
        self.beside = [name for name in self.beside if name in self.dear]
        if self.beside and self.making is None:
            self._make(self.beside[0])

    def _take(self, done: Done) -> None:
        """Puts what was made in its place; what was taken before is left alone."""
        new = done.ended.difference(self.ready, self.rounds, self.reasons)
        self.ready |= {name: question for name, question in done.questions.items() if name in new}
        self.reasons |= {name: why for name, why in done.reasons.items() if name in new}
        self.dear = [name for name in self.dear if name not in done.ended]
        if not self.coordinator.is_long(self.asked):  # else it says nothing of what questions usually take
            for name in new:
                self.learned.of(name).prepare_s.add(done.seconds[name])

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
        gain = self.gains()
        found = []
        for name in names:
            seen = self.learned.of(name)
            opened_s = self.coordinator.generations.prepare_s(self.request.corpus, [name])
            done_s = time.monotonic() - self.making.since if self.making is not None and self.making.name == name else 0.0
            prepare_s = max((seen.prepare_s.upper or opened_s) - done_s, 0.0)
            least_s = max((seen.prepare_s.lower or opened_s) - done_s, 0.0) if name not in self.ready else 0.0
            costs = (seen.doubt * prepare_s, seen.doubt * seen.search_s.upper)
            least_s = seen.doubt * (least_s + seen.search_s.lower)
            found.append(Waiting(name, *costs, gain.get(name, 0.0), name in self.ready, least_s))
        return found

    def step(self, by_rounds: bool, reserve_s: float = 0.0) -> Step:
        """The next round; why others are not in it is remembered. reserve_s: kept back for what comes after the hosts."""
        self.kept_back_s = self._answer_s() + reserve_s
        waiting, left_s = self.waiting, self.left_s
        precise = self.request.goal == "precise"
        step = next_step(waiting, left_s, self.learned.round_s.upper, by_rounds, not self.asked_now, precise)
        left_s -= step.expected_s
        self.beside = worth_making(waiting, step, self.left_s) if step.names else []
        for one in waiting:
            self.expected_s[one.name] = one.cost_s
            if one.name not in step.names:
                self.unasked[one.name] = why_not_begun(one, left_s)
                if not step.names:  # no round follows
                    self.learned.of(one.name).left_out += 1
        return step

    @property
    def left_s(self) -> float:
        """What is left for rounds."""
        return self.budget.remaining_s - self.kept_back_s

    async def ask(self, step: Step, n_details: int = 0) -> None:
        """One round: all hosts, the spaces of this step, and what others say of what these find. Raises TryAgain before the first."""
        wanted = [name for name in step.names if name not in self.ready]
        if wanted:
            left_s, searches_s = self.left_s, sum(self.learned.of(name).search_s.upper for name in step.names)
            wait_s = left_s - self.learned.round_s.lower - min(searches_s, left_s / 2)
            await self._dear(wanted, min(wait_s, TIGHT * left_s) if len(step.names) > 1 else wait_s)
        new = [self.ready.pop(name) for name in step.names if name in self.ready]
        self.laps.end("prepare")
        if not new:
            return
        self.n_rounds, self.asked_now = self.n_rounds + 1, True
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
            budget_s=max(self.left_s, 0.001),
            promise=self._promise(asked),
        )
        begun = self.laps.now_s
        self._make_next()  # while the hosts work
        try:
            parts = await self._search(plan)
        except TryAgain:
            if before is None:
                raise
            self.stopped = "the hosts take no more calls now"  # what was found is an answer
            self.unasked |= {query.space: "not begun: the hosts take no more calls now" for query in new}
            self.ready |= {query.space: query for query in new}
            return
        if self.fresh is not None:
            parts = await self.fresh.parts(plan, parts, self.left_s)
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
        # A joint ranking says what no other document can reach: of those that nobody encoded, nobody knows.
        goal = "fast" if self.request.coupling.name == "joint" else self.request.goal
        return Plan(
            where=self._where,
            queries=self.queries,
            n_candidates=self.n_candidates,
            n_details=0,
            budget_s=max(self.left_s, 0.001),
            on_the_fly_s=on_the_fly_s(goal, self.left_s),
            words=self._words,
            excerpt_size=EXCERPT_BYTES if context is None else LinesAround(context.before, context.after),
        )

    def _promise(self, queries: Sequence[SpaceQuery]) -> tuple[float, ...]:
        """What these questions count in choosing what is scored on the fly: as in the ranking, but for the spaces that lack it."""
        spaces = self.generation.spaces
        whole = {query.space: spaces[query.space].layer for query in queries if spaces[query.space].built == "all"}
        if len(whole) == len(queries):
            return ()
        counts = trusted(whole, self.generation.nulls)
        return tuple(counts[query.space][0] if query.space in whole else 0.0 for query in queries)

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
        return bool(self.ready or self.dear or self._in_state(lambda state: state in LATE))

    def _in_state(self, wanted: Callable[[str], bool]) -> set[str]:
        """The spaces that were asked and are so on any shard."""
        status: tuple[LayerStatus, ...] = () if self.found is None else self.found.status
        return {s.space for s in status if wanted(s.state)}

    @property
    def size_bytes(self) -> int:
        """Of what is kept of it, about."""
        found = self.found
        if found is None:
            return 0
        return sum(column.nbytes for column in (found.hashes, found.generated, found.scores, found.starts, found.ends))

    def put_by(self) -> None:
        """Lets go of what is found again: texts of hits."""
        if self.found is not None:
            self.found = replace(self.found, details={})

    def resume(self, request: SearchRequest, budget: Budget, laps: Laps) -> None:
        """Go on with more time: what did not look everywhere is asked anew, what has is not asked again."""
        self.request, self.budget, self.laps, self.resumed, self.stopped, self.asked_now = request, budget, laps, True, "", False
        again = self._in_state(lambda state: state not in DONE)
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
        gain = self.gains()
        change = could_change([(gain.get(name, 0.0), 1.0) for name in (*self.ready, *self.dear)])
        if is_enough(self.request.goal, change):
            why = f"left out: all that is left would change about {100 * change:.0f} % of the first hits, and {self.request.goal} is wanted"
            self.unasked |= {name: why for name in (*self.ready, *self.dear)}
            self.stopped = f"what is left would change about {100 * change:.0f} % of the first hits"
            return True
        return False

    # --- what is known ----------------------------------------------------------------------------------------------------------

    def learn(self, fused: "Fused | None", found: Candidates | None) -> None:
        """Remember what each space changed, where all looked everywhere, and neither they nor what they count was the caller's choice."""
        request = self.request
        if fused is None or found is None or len(self.queries) < 2 or request.layers != "auto" or request.weights or request.forms:
            return
        if self.unfinished or self._in_state(lambda state: state not in DONE):
            return
        for query, change in zip(self.queries, changes(fused.surprises, fused.weights, found.generated).tolist(), strict=True):
            self.learned.of(query.space).change.add(change)

    @property
    def all_names(self) -> list[str]:
        """The spaces that were asked, in the order of `queries`, and those that wait."""
        return [*(query.space for query in self.queries), *self.ready, *self.dear]

    def has_time_to_tell(self) -> bool:
        """Whether an answer can be written before the last one, and that one still comes in time: three answers' time, for a further round
        is to lie between them, and what people would see."""
        answer_s = self.learned.answering_s(min(self.request.k, max(self.generation.root.n_docs, 1)))
        return self.budget.remaining_s > max(3 * answer_s, TELL_S)

    def counts(self) -> dict[str, tuple[float, float]]:
        """What each may count in the ranking: `serve.certificate.trusted`."""
        layers = {name: self.generation.spaces[name].layer for name in self.all_names}
        return trusted(layers, self.generation.nulls, silent(self.generation, self.reasons))

    def gains(self) -> Mapping[str, float]:
        """What each is expected to change: `serve.anytime.learned.gains`."""
        return gains(self.learned, self.all_names, {name: low for name, (low, _) in self.counts().items()})

    def _answer_s(self) -> float:
        share = ANSWER_SHARE if self.request.k <= FEW_HITS else MANY_SHARE
        n_hits = min(self.request.k, max(self.generation.root.n_docs, 1))
        return max(ANSWER_S, min(self.learned.answering_s(n_hits), share * max(self.budget.remaining_s, 0.0)))
