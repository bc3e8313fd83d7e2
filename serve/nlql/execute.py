"""One query from text to rows: read, plan, prepare each question once, ask every shard once, merge, rerank, cut. Pure asyncio.

What shards do is `shards/nlql`; what a query means is `serve/nlql/plan.py`. Searched for beside are only EVIDENCE and EVALUE, which no
shard knows: they are what an ordinary search says of the documents that it finds.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from serve.laps import Laps
from serve.limits import Limits, check_query
from serve.nlql.asking import Questions, prepare
from serve.nlql.explain import explain
from serve.nlql.facts import CorpusFacts, facts_of
from serve.nlql.filters import search_filter
from serve.nlql.json_ir import query_from_dict
from serve.nlql.outcome import MANY_ROWS, WHOLE, Outcome, Rows
from serve.nlql.parser import parse, parse_statement
from serve.nlql.plan import ENCODED_FACTOR, Planned, plan
from serve.nlql.schema import RERANK_FACTOR, Facet, FacetValue, Looked, QueryAnswer, QueryRequest
from serve.nlql.scorers import LAYERS, SIMILARITY
from serve.nlql.second_stage import Stage, stage_of
from shards.candidates import merge
from shards.errors import BadQuery
from shards.nlql import functions, ir
from shards.nlql import plan as row_plan
from shards.nlql.errors import NLQLError, PlanError
from shards.nlql.field_types import newest
from shards.nlql.merging import merge_rows
from shards.nlql.plan import MOST_ROWS, RowPlan
from shards.plan import Everything, Plan

if TYPE_CHECKING:
    from serve.coordinator import Coordinator
    from serve.freshness import Checking
    from shards.generation import Generation
    from shards.plugins import Plugins

T = TypeVar("T")

ANSWER_S = 0.004  # kept back from the shards' budget for merging and writing the answer
SEARCH_SHARE = 0.5  # of the time that is left, for the searches behind EVIDENCE
SEARCH_K = 1_000  # documents that such a search may bring: the most that a search does
SHORT_CHARS = 2_000  # of a query that is read and planned in the event loop: a millisecond
SHORT_S = 0.002  # of questions that are prepared there, see `serve.coordinator`
MAX_FACET_VALUES = 1_000  # of one expression of COUNT BY
FACTS_KEPT = 64  # generations
TYPES_S = 10.0  # between two looks for what types metadata was said to have: a listing, which S3 wants money for


async def query(coordinator: "Coordinator", request: QueryRequest, plugins: "Plugins | None" = None) -> QueryAnswer:
    """The answer to a query, as it crosses HTTP. Raises as `run`."""
    outcome = await run(coordinator, request, plugins)
    if len(outcome.rows) > MANY_ROWS:
        return await asyncio.to_thread(outcome.answer)
    return outcome.answer()


async def run(coordinator: "Coordinator", request: QueryRequest, plugins: "Plugins | None" = None, limits: Limits | None = None) -> Outcome:
    """What a query gives. plugins: an engine's own registries; None: those of the coordinator. limits: of the caller.

    Raises NLQLError (with the query's text as `text`), OverLimit, NotFound, TryAgain, StoreError.
    """
    with coordinator.admission.search(request.budget_ms / 1000):
        try:
            plugins = plugins or coordinator.generations.resources.plugins
            return await _Run(coordinator, request, plugins, limits or Limits()).outcome()
        except NLQLError as error:
            error.text = request.text
            raise


async def facts_for(coordinator: "Coordinator", generation: "Generation") -> CorpusFacts:
    """What planning needs to know of a generation, worked out once; what types its metadata has is looked up again every so often."""
    kept, key = coordinator.facts, (generation.root.corpus, generation.root.generation)
    now = time.monotonic()
    if key not in kept or kept[key].read_at < now - TYPES_S:
        record = await asyncio.to_thread(newest, generation.store)
        types = record.types if record else {}
        known = kept.pop(key, None) or await asyncio.to_thread(facts_of, generation)
        while len(kept) >= FACTS_KEPT:
            del kept[next(iter(kept))]
        kept[key] = replace(known, field_types=types, read_at=now)
    return kept[key]


async def functions_of(coordinator: "Coordinator", corpus: str | None = None, strict: bool = False) -> list[str]:
    """Names that a query may call; of a corpus without the scores that it has no layer for. Raises NotFound."""
    known = set(functions.names(coordinator.generations.resources.plugins))
    if strict:
        known -= {*functions.EXTENSIONS, *functions.SCORES} - {SIMILARITY}
    if corpus is not None:
        facts = await facts_for(coordinator, await coordinator.generations.get(corpus))
        known -= {name for name, layers in LAYERS.items() if not any(map(facts.of_layer, layers))}
        if not any(space.unit for space in facts.spaces.values()):
            known.discard(SIMILARITY)
    return sorted(known)


async def schema_of(coordinator: "Coordinator", corpus: str | None = None, strict: bool = False) -> dict[str, Any]:
    """What a query as a tree may look like, for who writes some: {"functions", "schema", "tool"}. Raises NotFound."""
    from serve.nlql.function_schema import function_schema, function_tool

    names = await functions_of(coordinator, corpus, strict)
    return {"functions": names, "schema": function_schema(names, strict=strict), "tool": function_tool(functions=names)}


class _Run:
    """One query under way."""

    def __init__(self, coordinator: "Coordinator", request: QueryRequest, plugins: "Plugins", limits: Limits):
        self.coordinator, self.request, self.plugins, self.limits = coordinator, request, plugins, limits
        self.laps = Laps()
        self.budget = coordinator.budget(request.budget_ms)
        self.looked_at: list[Looked] = []
        self.fresh: Checking | None = None

    async def outcome(self) -> Outcome:
        request, laps = self.request, self.laps
        short = len(request.text if request.text is not None else str(request.ir)) <= SHORT_CHARS
        read, only_plan = await _here_or_aside(self._read, short)
        if read.within_ms is not None and read.within_ms < request.budget_ms:
            self.budget.deadline -= (request.budget_ms - read.within_ms) / 1000
        laps.end("parse")
        generation = await self.coordinator.generations.get(request.corpus, request.generation)
        facts = await facts_for(self.coordinator, generation)
        is_newest = request.generation is None and self.coordinator.generations.current.get(request.corpus) is generation
        self.fresh = self.coordinator.freshness.aside(generation, self.budget, is_newest)
        laps.end("open")
        planned = await _here_or_aside(lambda: self._plan(read, facts), short)
        stage = stage_of(request, planned, self.plugins, self.coordinator.reranking, self.budget)
        if not only_plan:
            self._check_limits(planned, stage)
        laps.end("plan")
        questions = await self._prepare(planned, generation)
        laps.end("prepare")
        if only_plan:
            factor = request.rerank_factor or RERANK_FACTOR
            told = explain(planned, questions.asked, stage.name if stage else None, factor)
            rows = Rows(None, planned.query.select, False)
            return self._outcome(generation, rows, plan=told)
        scorers = await self._searched(planned, questions, generation)
        row_plan_ = self._row_plan(planned, scorers, stage)
        if planned.encodes_best:
            row_plan_ = await self._among(planned, questions, generation, row_plan_)
        if scorers:
            laps.end("search")
        root = generation.root
        left_s = self.budget.remaining_s * (1.0 - (stage.share if stage else 0.0))
        asked = replace(row_plan_, budget_s=max(left_s - ANSWER_S, 0.001))
        answers = await self.coordinator.searcher.rows(root.corpus, root.generation, len(root.shards), asked)
        laps.end("scatter")
        found = await _here_or_aside(lambda: merge_rows(answers, asked, self.plugins), sum(map(len, answers)) <= MANY_ROWS)
        laps.end("merge")
        rows = Rows(found, planned.query.select, asked.unit == "chunk" and asked.by_entry)
        reranked = None
        if stage is not None:
            rows, reranked = await asyncio.get_running_loop().run_in_executor(stage.pool, stage.reorder, rows)
            laps.end("rerank")
        first = planned.query.offset
        last = None if planned.query.limit is None else first + planned.query.limit
        facets = [_facet(expr, counts) for expr, counts in zip(planned.query.count_by, found.facets, strict=False)]
        made = {"facets": facets, "status": found.status, "rerank": reranked, "n_searches": len(_searches(planned))}
        return self._outcome(generation, rows[first:last], **made)

    def _outcome(self, generation: "Generation", rows: Rows, **fields: Any) -> Outcome:
        root = generation.root
        timings = self.laps.ms | {"total": self.laps.total_ms}
        fresh = self.fresh.known() if self.fresh is not None else None
        return Outcome(root.corpus, root.generation, rows, looked_at=self.looked_at, timings_ms=timings, freshness=fresh, **fields)

    # --- before anything is asked ------------------------------------------------------------------------------------------

    def _read(self) -> tuple[ir.Query, bool]:
        """The query's tree, and whether its plan alone is wanted."""
        request = self.request
        if request.ir is not None:
            return query_from_dict(request.ir, request.strict), request.explain
        assert request.text is not None
        if request.strict:
            return parse(request.text, strict=True), request.explain
        statement = parse_statement(request.text)
        return statement.query, request.explain or statement.explain

    def _plan(self, read: ir.Query, facts: CorpusFacts) -> Planned:
        request = self.request
        return plan(
            read,
            facts,
            self.plugins,
            field_types=request.field_types,
            params=request.params,
            limit=request.limit,
            strict=request.strict,
        )

    def _check_limits(self, planned: Planned, stage: "Stage | None") -> None:
        query = planned.query
        wanted = None if query.limit is None else query.offset + query.limit
        reranked = 0 if stage is None else None if wanted is None else wanted * stage.factor
        check_query(wanted, reranked, len(_searches(planned)), self.limits)

    async def _prepare(self, planned: Planned, generation: "Generation") -> Questions:
        spaces = {space for scorer in planned.scorers for space in scorer.spaces}
        quick = self.coordinator.generations.prepare_s(generation.root.corpus, spaces) < SHORT_S
        short = sum(len(scorer.text) for scorer in planned.scorers) <= SHORT_CHARS
        of_callers = any(planned.facts.spaces[space].given or planned.facts.spaces[space].layer == "embedded" for space in spaces)
        return await _here_or_aside(lambda: prepare(planned, generation, self.plugins), quick and short and not of_callers)

    # --- what is searched for beside -----------------------------------------------------------------------------------------

    async def _searched(self, planned: Planned, questions: Questions, generation: "Generation") -> tuple[row_plan.Scorer, ...]:
        """The scores as shards are asked for them, with those that searches answer."""
        keys = _searches(planned)
        answers = await asyncio.gather(*(self._search(planned, generation, *key) for key in keys))
        by_key = dict(zip(keys, answers, strict=True))
        scorers: list[row_plan.Scorer] = []
        for number, (scorer, made) in enumerate(zip(planned.scorers, questions.scorers, strict=True)):
            if made is not None:
                scorers.append(made)
                continue
            evidence, evalues, complete = by_key[scorer.text, scorer.spaces]
            numbers = evidence if scorer.kind == "evidence" else evalues
            scorers.append(row_plan.Scorer(f"#{number}", "given", given=row_plan.Given.of(numbers)))
            self.looked_at.append(Looked(expr=scorer.written, documents=len(numbers), complete=complete))
        return tuple(scorers)

    async def _search(
        self, planned: Planned, generation: "Generation", text: str, spaces: tuple[str, ...]
    ) -> tuple[dict[bytes, float], dict[bytes, float], bool]:
        """By document, fused evidence and E-value; whether all of the scope was searched."""
        from serve.schema import SearchRequest

        root = generation.root
        where = search_filter(planned.conjuncts, planned.field_types)
        asked = SearchRequest(
            corpus=root.corpus,
            query=text,
            layers=list(spaces) if spaces else "auto",
            where=where,
            k=min(SEARCH_K, max(root.n_docs, 1)),
            budget_ms=max(1, int(1000 * SEARCH_SHARE * self.budget.remaining_s)),
            generation=root.generation,
            highlight=False,
            rerank=False,
            keep_all=True,
        )
        try:
            answer = await self.coordinator.search_within(asked)
        except BadQuery as error:
            call = next(scorer.call for scorer in planned.scorers if (scorer.text, scorer.spaces) == (text, spaces))
            raise PlanError(f"{call.name}: {error}").placed(call.at) from None
        evidence = {bytes.fromhex(hit.hash): hit.fused for hit in answer.hits}
        evalues = {bytes.fromhex(hit.hash): hit.evalue for hit in answer.hits}
        return evidence, evalues, answer.complete

    # --- what shards are asked ------------------------------------------------------------------------------------------------

    def _row_plan(self, planned: Planned, scorers: tuple[row_plan.Scorer, ...], stage: "Stage | None") -> RowPlan:
        query = planned.query
        wanted = None if query.limit is None else query.offset + query.limit
        let, order_by = planned.let, planned.order_by
        if stage is not None:
            wanted = None if wanted is None else max(wanted, min(wanted * stage.factor, MOST_ROWS))
            let, order_by = (*let, *stage.keys), stage.order_by
        return RowPlan(
            unit=query.select.unit,  # type: ignore[arg-type]
            base=planned.base,
            window=query.select.window,
            scorers=scorers,
            filter=planned.filter,
            let=let,
            order_by=order_by,
            n_rows=wanted,
            facets=planned.facets,
            field_types=tuple(sorted(planned.field_types.items())),
        )

    async def _among(self, planned: Planned, questions: Questions, generation: "Generation", asked: RowPlan) -> RowPlan:
        """The plan for the documents alone whose chunks suit the first score of the text best: encoding all would take minutes."""
        number = next(n for n, scorer in enumerate(planned.scorers) if scorer.is_of_text)
        question, n_rows = questions.asked[number], asked.n_rows
        if question is None or not n_rows:
            return asked
        root, most = generation.root, ENCODED_FACTOR * n_rows
        budget_s = max(SEARCH_SHARE * self.budget.remaining_s, 0.001)
        searching = Plan(Everything(), (question,), n_candidates=most, n_details=0, budget_s=budget_s)
        parts = await self.coordinator.searcher.search(root.corpus, root.generation, len(root.shards), searching)
        found = merge(parts, most)
        among = found.hashes[found.generated[:, 0]]
        complete = all(status.state in WHOLE for status in found.status)
        self.looked_at.append(Looked(expr=planned.scorers[number].written, documents=len(among), complete=complete))
        return replace(asked, among=among.tobytes())


def _searches(planned: Planned) -> list[tuple[str, tuple[str, ...]]]:
    """The searches behind EVIDENCE and EVALUE, each once: what is asked, and of which spaces."""
    return sorted({(scorer.text, scorer.spaces) for scorer in planned.scorers if scorer.kind in ("evidence", "evalue")})


def _facet(expr: ir.Expr, counts: Sequence[tuple[Any, int]]) -> Facet:
    from serve.nlql.unparse import written

    values = [FacetValue(value=value, count=count) for value, count in counts[:MAX_FACET_VALUES]]
    return Facet(expr=written(expr), values=values, n_values=len(counts))


async def _here_or_aside(work: Callable[[], T], here: bool) -> T:
    """Work that is done at once where it is short, in a thread where it would keep others waiting."""
    return work() if here else await asyncio.to_thread(work)
