"""One query from request to answer: prepare, scatter, merge, null models, fusion, verdict, excerpts. Pure asyncio.

The coordinator holds the corpus's statistics and null models (`serve.generations`), never documents.
"""

import asyncio
import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from serve import filters
from serve.answers import entry_out, highlighter_of, hits_out, layer_infos, layer_times
from serve.evidence import Fused, SpaceFacts, fuse
from serve.generations import Generations
from serve.highlight import query_words
from serve.narrowing import without_narrowed
from serve.paging import Cursor
from serve.paging import identity as request_identity
from serve.passages import Details, Span
from serve.reranking import Pinned, Reranked, Reranking, follow, with_scores
from serve.schema import (
    Coverage,
    Hit,
    Rerank,
    SearchAnswer,
    SearchRequest,
)
from serve.status import corpus_status
from serve.verdict import Verdict, judge
from shards import routing
from shards.candidates import merge, nothing
from shards.errors import BadQuery, Gone, ModelMissing, NotFound, SondageError
from shards.generation import Generation
from shards.layers.contract import Request, Resources
from shards.media import KeptMedia
from shards.plan import Plan, SpaceQuery
from shards.probes import count_words
from shards.routing import Reading
from shards.shard import Space
from shards.types import EXCERPT_BYTES, N_CANDIDATES, Array, Budget, Candidates, Detail, LinesAround

if TYPE_CHECKING:
    from cluster.host import Opened
    from cluster.protocol import Searcher
    from shards.cache import FileCache
    from shards.store import Store

logger = logging.getLogger(__name__)

ANSWER_S = 0.004  # kept back from the hosts' budget for fusing, details and writing the answer
# Questions that are prepared in the event loop: short ones, of spaces that took so long at most when they were opened.
SHORT_CHARS, SHORT_S = 500, 0.002
NOTHING_TO_ASK = "nothing in the query for this layer"


class Coordinator:
    """Answers searches over every corpus below a store. cache: local files of statistics; poll_s: seconds between looks at
    the store for new generations; rerank: the last stage of searches that say nothing of one."""

    def __init__(
        self,
        store: "Store",
        searcher: "Searcher",
        resources: Resources,
        cache: "FileCache",
        poll_s: float = 0.5,
        rerank: Rerank | None = None,
    ):
        self.store, self.searcher = store, searcher
        self.reranking = Reranking(resources, rerank)
        self.generations = Generations(store, resources, cache, poll_s, self._warm, self._try_out)
        self._tried: dict[str, int] = {}  # by corpus, the generation that was opened and asked something last
        self._trying = asyncio.Lock()

    async def start(self) -> None:
        """Open what the store has and go on watching it."""
        self.generations.start()
        await self.reranking.warm()

    async def until_warm(self) -> None:
        """Wait until all corpora that the store has were opened and asked once."""
        await self.generations.until_warm()

    async def close(self) -> None:
        """Stop watching."""
        await self.generations.close()
        self.reranking.close()

    async def _warm(self, generation: Generation) -> "Opened":
        root = generation.root
        return await self.searcher.warm(root.corpus, root.generation, len(root.shards))

    async def _try_out(self, generation: Generation) -> None:
        """Open the shards on the hosts and ask one question in every space, so that nobody's query waits for code to be loaded."""
        corpus, number = generation.root.corpus, generation.root.generation
        async with self._trying:
            if self._tried.get(corpus) == number:
                return
            opened = await self._warm(generation)
            if opened.sample:
                trial = SearchRequest(corpus=corpus, query=opened.sample, k=1, budget_ms=60_000, generation=number)
                try:
                    await self.search(trial)
                except SondageError as error:  # no lasting problem: a query that meets it is told
                    logger.warning("corpus=%s event=trial_failed reason=%s", corpus, error)
            self._tried[corpus] = number

    # --- search ------------------------------------------------------------------------------------------------------------

    async def open(self, request: SearchRequest) -> None:
        """Open what a search will ask, for callers whose budget is for the answer alone. Raises as `search`."""
        await self._try_out(await self._generation(request, _cursor(request)))

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """The answer to one search. Raises BadQuery, NotFound, StoreError, Overloaded."""
        laps = _Laps()
        budget = Budget(request.budget_ms / 1000)
        cursor = _cursor(request)
        stage = await self.reranking.begin(request)
        generation = await self._generation(request, cursor)
        root = generation.root
        where = filters.scope(request.paths, request.where)
        names = self._spaces(generation, request)
        prepared, reasons = await self._prepare(generation, request, names)
        laps.end("prepare")
        offset = cursor.offset if cursor else 0
        n_candidates = cursor.n_candidates if cursor else max(N_CANDIDATES, request.k)
        plan = Plan(
            where=where,
            queries=tuple(prepared),
            n_candidates=n_candidates,
            n_details=2 * min(request.k, 10) if offset == 0 else 0,
            budget_s=max(budget.remaining_s - ANSWER_S - (stage.share_s(budget.remaining_s) if stage else 0.0), 0.001),
            words=tuple(query_words(request.query)),
            excerpt_size=EXCERPT_BYTES if request.context is None else LinesAround(request.context.before, request.context.after),
        )
        parts = await self.searcher.search(root.corpus, root.generation, len(root.shards), plan) if prepared else []
        laps.end("scatter")
        found = merge(parts, n_candidates) if parts else nothing(len(prepared))
        fused, verdict, why = self._evidence(generation, request, prepared, reasons, found if parts else None)
        laps.end("fuse")
        shown = fused if fused is not None and (verdict != "none" or request.keep_all) else None
        ranking = np.zeros(0, np.int64) if shown is None else _ranking(shown, request)
        reranked: Reranked | None = None
        pinned = cursor.reranked if cursor else None
        spans = [] if shown is None or (stage is None and pinned is None) else _spans(found, shown, ranking)
        if stage is not None:
            details_of = self._details_of(generation, plan, budget)
            before = (pinned or Pinned()) if cursor else None  # a first page without a last stage was in the order of evidence
            reranked = await stage.run(spans, details_of, budget, offset, request.k, before)
            ranking, pinned = ranking[reranked.order], reranked.pinned
            laps.end("rerank")
        elif pinned is not None:  # by settings that have changed since
            ranking = ranking[follow(spans, pinned, offset, request.k)[0]]
        hits: list[Hit] = []
        page, more = ranking[offset : offset + request.k].tolist(), len(ranking) > offset + request.k
        if shown is not None:
            details = await self._details(generation, plan, found, shown, page, budget)
            mark_up = highlighter_of(request, generation, prepared) if request.highlight else None
            hits = hits_out(page, shown, found, plan.queries, details, mark_up, request.explain)
            if reranked is not None:
                hits = with_scores(hits, spans, reranked)
        laps.end("excerpts")
        following = Cursor(root.generation, offset + request.k, n_candidates, request_identity(request), pinned).encode() if more else None
        if following:
            self.generations.pin(root.corpus, root.generation)
        return SearchAnswer(
            corpus=root.corpus,
            generation=root.generation,
            null_version=root.null_version,
            verdict=verdict,
            verdict_reason=why,
            # A host that dies between its scores and its texts takes hits with it.
            complete=bool(found.status) and all(s.state in ("ready", "scoped") for s in found.status) and len(hits) == len(page),
            hits=hits,
            cursor=following,
            layers=layer_infos(generation, names, prepared, reasons, found if parts else None, fused),
            coverage=[
                Coverage(layer=s.space, shard=s.shard, state=s.state, covered=s.covered, total=s.total, reason=s.reason)
                for s in found.status
            ],
            rerank=reranked.info if reranked else None,
            timings_ms=laps.ms | {"total": laps.total_ms} | layer_times(found.status),
            read_as=dict(routing.read(request.query).shapes) if request.layers == "auto" else {},
        )

    async def _generation(self, request: SearchRequest, cursor: Cursor | None) -> Generation:
        """The generation that a request names, or its cursor; else the newest."""
        try:
            return await self.generations.get(request.corpus, cursor.generation if cursor else request.generation)
        except Gone as error:
            at = "cursor" if cursor else "generation"
            raise Gone(f"{error} Start again without the cursor." if cursor else str(error), at=at) from None

    async def _prepare(
        self, generation: Generation, request: SearchRequest, names: list[str]
    ) -> tuple[list[SpaceQuery], dict[str, str]]:
        """`_prepare` here, where a change of thread would cost more than the work; else in a thread."""
        short = not request.forms and len(request.query) <= SHORT_CHARS
        if short and self.generations.prepare_s(request.corpus, names) < SHORT_S:
            return _prepare(generation, request, names)
        return await asyncio.to_thread(_prepare, generation, request, names)

    def _evidence(
        self,
        generation: Generation,
        request: SearchRequest,
        prepared: list[SpaceQuery],
        reasons: dict[str, str],
        found: Candidates | None,
    ) -> tuple[Fused | None, Verdict, str]:
        """What was found as evidence, and the verdict with its reason. found: None where nothing was asked."""
        if found is None:
            return None, "none", "nothing was asked of any space"
        facts = self._facts(generation, prepared, found)
        silent = [n for n, reason in reasons.items() if reason == NOTHING_TO_ASK and not generation.spaces[n].scope]
        n_words = count_words(request.query) or None
        fused = fuse(found, facts, generation.nulls, generation.root.n_docs, silent, n_words)
        return fused, *judge(fused, facts, generation.nulls, explicit=_explicit(request), text=request.query)

    def _spaces(self, generation: Generation, request: SearchRequest) -> list[str]:
        """The spaces to ask. Raises BadQuery that names those there are."""
        known = sorted(generation.spaces)
        asked = known if request.layers == "auto" else list(dict.fromkeys(request.layers))
        for name in [*asked, *request.forms]:
            if name not in generation.spaces:
                raise BadQuery(f"Corpus {request.corpus!r} has no layer {name!r}. Choose from: {', '.join(known)}.")
        if not request.query.strip() and not request.forms:
            raise BadQuery("Nothing was asked: give `query`, or `forms` for single layers.")
        if not request.query.strip():
            asked = [name for name in asked if name in request.forms]
        return asked

    def _facts(self, generation: Generation, prepared: list[SpaceQuery], found: Candidates) -> list[SpaceFacts]:
        facts = []
        for query in prepared:
            space = generation.spaces[query.space]
            exact = query.log_p is not None
            facts.append(
                SpaceFacts(
                    name=query.space,
                    null=space.layer.null,
                    n_units=self._units_in_scope(generation, space, found),
                    origin=space.layer.origin,
                    whole=all(s.state == "ready" for s in found.status if s.space == query.space),
                    surprise=(lambda scores, layer=space.layer, query=query: layer.surprise(query, scores)) if exact else None,
                    most=query.most,
                )
            )
        return facts

    def _units_in_scope(self, generation: Generation, space: Space, found: Candidates) -> int:
        """Units of a space in the scope asked, the multiplier of E: all units, in the proportion of rows that the filter left."""
        n_units = int(generation.statistics(space.name).n_units)
        rows = sum(s.total for s in found.status if s.space == space.name)
        all_rows = generation.root.n_docs if space.layer.over == "documents" else generation.root.n_entries
        return max(1, math.ceil(n_units * min(1.0, rows / all_rows))) if all_rows and rows else max(1, n_units)

    def _details_of(self, generation: Generation, plan: Plan, budget: Budget) -> Details:
        """Texts for the last stage: entries and excerpts of spans, of so many bytes."""
        root = generation.root

        async def details(spans: Mapping[bytes, tuple[tuple[int, int], ...]], excerpt_bytes: int) -> dict[bytes, Detail]:
            remaining_s = max(budget.remaining_s, 0.05)
            return await self.searcher.details(
                root.corpus, root.generation, len(root.shards), spans, plan.words, excerpt_bytes, plan.where, remaining_s
            )

        return details

    async def _details(
        self,
        generation: Generation,
        plan: Plan,
        found: Candidates,
        fused: Fused,
        page: list[int],
        budget: Budget,
    ) -> dict[bytes, Detail]:
        """Entries and excerpts of a page's hits: those that came along, and one more call for any that did not."""
        details = dict(found.details)
        wanted = {}
        for row in page:
            key, span = found.hashes[row].tobytes(), (int(fused.starts[row]), int(fused.ends[row]))
            if key not in details or span not in details[key].excerpts:
                wanted[key] = (span,)
        if wanted:
            details |= await self.searcher.details(
                generation.root.corpus,
                generation.root.generation,
                len(generation.root.shards),
                wanted,
                plan.words,
                plan.excerpt_size,
                plan.where,
                max(budget.remaining_s, 0.05),
                [query for query in plan.queries if generation.spaces[query.space].layer.origin == "derived"],
            )
        return details

    # --- the rest ----------------------------------------------------------------------------------------------------------

    async def document(
        self, corpus: str, hash_hex: str, start: int | None = None, end: int | None = None, generation: int | None = None
    ) -> dict[str, Any]:
        """A span of a rendition by its hash, of the newest generation or another one. Raises NotFound, BadQuery."""
        try:
            key = bytes.fromhex(hash_hex)
        except ValueError:
            key = b""
        if len(key) != 20:
            raise BadQuery(f"Document hash {hash_hex[:80]!r} is not 40 hexadecimal digits. Take it from a hit.")
        opened = await self.generations.get(corpus, generation)
        piece = await self.searcher.document(
            corpus, opened.root.generation, len(opened.root.shards), key, start or 0, end
        )
        return {
            "corpus": corpus,
            "generation": opened.root.generation,
            "hash": hash_hex,
            "start": piece.start,
            "end": piece.end,
            "size_bytes": piece.size_bytes,
            "kind": piece.detail.kind,
            "text": piece.text,
            "entries": [entry_out(e).model_dump() for e in piece.detail.entries],
        }

    async def media(self, corpus: str, hash_hex: str, generation: int | None = None) -> bytes:
        """What is kept of a document beside its text: the image that it is, as a file. Raises NotFound, BadQuery."""
        await self.document(corpus, hash_hex, 0, 0, generation)  # that the generation has it, which the store alone does not tell
        opened = await self.generations.get(corpus, generation)
        found = await asyncio.to_thread(KeptMedia(opened.store).one, bytes.fromhex(hash_hex))
        if found is None:
            raise NotFound(f"Of document {hash_hex} nothing but its text is kept: it is no image, or its kept copy was lost.")
        return found

    async def status(self) -> dict[str, Any]:
        """Corpora with their generations, spaces and sizes, on disk and in memory; hosts; what is wrong."""
        told = await self.searcher.status()
        corpora = {corpus: corpus_status(generation, told["hosts"]) for corpus, generation in self.generations.current.items()}
        rerankers, problems = self.reranking.status(), dict(self.generations.problems)
        problems |= {f"reranker {model['model']}": model["reason"] for model in rerankers if model["reason"]}
        return {"store": self.store.url, "corpora": corpora, **told, "rerankers": rerankers, "problems": problems}

    async def ready(self) -> tuple[bool, str]:
        """Whether searches can be answered, and why not."""
        return self.generations.ready()


class _Laps:
    """What each step of one search took, ms."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._begun = self._mark = time.monotonic()

    def end(self, step: str) -> None:
        """The step is over and the next one begins."""
        now = time.monotonic()
        self.ms[step], self._mark = round(1000 * (now - self._mark), 3), now

    @property
    def total_ms(self) -> float:
        return round(1000 * (time.monotonic() - self._begun), 3)


def _cursor(request: SearchRequest) -> Cursor | None:
    return Cursor.decode(request.cursor, request_identity(request)) if request.cursor else None


def _explicit(request: SearchRequest) -> bool:
    """Whether the caller named spaces or gave one its own form."""
    return bool(request.forms) or request.layers != "auto"


def _ranking(fused: Fused, request: SearchRequest) -> Array:
    """The rows to be shown, best first."""
    # A pattern that matches everywhere surprises nobody, yet who asks for it by name wants its matches.
    shown = (fused.fused > 0) | (np.isfinite(fused.scores).any(axis=1) if _explicit(request) else False)
    return fused.order[shown[fused.order]]


def _spans(found: Candidates, fused: Fused, ranking: Array) -> list[Span]:
    """The hits of these rows: where the strongest signal of each lies."""
    columns = (fused.starts[ranking].tolist(), fused.ends[ranking].tolist())
    return [(key.tobytes(), start, end) for key, start, end in zip(found.hashes[ranking], *columns, strict=True)]


def _prepare(generation: Generation, request: SearchRequest, names: list[str]) -> tuple[list[SpaceQuery], dict[str, str]]:
    """Every space's question, and why some have none.

    A space that nobody named is asked what its layer takes (`Layer.shapes`). Where that leaves none with anything to ask, all are asked.
    """
    reading = routing.read(request.query)
    named = set(names if request.layers != "auto" else request.forms)
    left_out = [name for name in names if name not in named and not reading.asks(generation.spaces[name].layer.shapes)]
    prepared, reasons = _questions(generation, request, [name for name in names if name not in left_out], named, reading)
    if left_out and not prepared:
        prepared, others = _questions(generation, request, left_out, named, reading)
        return prepared, reasons | others
    return prepared, reasons | {name: reading.why_not(generation.spaces[name].layer.shapes) for name in left_out}


def _questions(
    generation: Generation, request: SearchRequest, names: Sequence[str], named: Collection[str], reading: Reading
) -> tuple[list[SpaceQuery], dict[str, str]]:
    """The questions of these spaces, and why some have none. A model that is missing silences its space, unless it was named."""
    prepared: list[SpaceQuery] = []
    reasons: dict[str, str] = {}
    for name in names:
        layer = generation.spaces[name].layer
        explicit = name in named
        if problem := generation.spaces[name].problem:
            if explicit:
                raise ModelMissing(f"Layer {name!r} cannot be asked: {problem}.")
            reasons[name] = problem
            continue
        try:
            shapes = frozenset() if explicit else reading.shapes.keys()
            wanted = Request(request.query, request.forms.get(name, {}), explicit, KeptMedia(generation.store).one, shapes)
            asked = layer.prepare(wanted, generation.statistics(name))
        except BadQuery as error:
            raise BadQuery(f"Layer {name!r}: {error}") from None
        except SondageError as error:
            if explicit:
                raise
            reasons[name] = str(error)
            continue
        if asked is None:
            reasons[name] = NOTHING_TO_ASK
        else:
            prepared.append(replace(asked, space=name))
    prepared, narrowed = without_narrowed(generation, prepared)
    return prepared, reasons | narrowed
