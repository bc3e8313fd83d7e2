"""One query from request to answer: prepare, scatter, merge, null models, fusion, verdict, excerpts. Pure asyncio.

The coordinator holds the corpus's statistics and null models (`serve.generations`), never documents.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from serve.admission import Admission
from serve.answers import entry_out
from serve.anytime.answering import answered
from serve.anytime.lag import Lag
from serve.anytime.learned import FEW_HITS, Learned, OfCorpus
from serve.anytime.search import ANSWER_S, Search
from serve.anytime.unfinished import Unfinished
from serve.couplings import RERANKED, check
from serve.evidence import Fused
from serve.feedback import Changed, read_examples, reformulate, suggested
from serve.feedback_schema import Span as ChosenSpan
from serve.feedback_schema import TermsAnswer, TermsRequest
from serve.freshness import Freshness
from serve.generations import Generations
from serve.laps import Laps
from serve.paging import Cursor
from serve.paging import identity as request_identity
from serve.passages import Details
from serve.questions import Asking, spaces_to_ask
from serve.reranking import Reranking
from serve.schema import Rerank, SearchAnswer, SearchRequest
from serve.status import CorpusStatuses
from serve.translation import Translating
from serve.translation_schema import Translate
from shards.errors import BadQuery, Gone, NotFound, SondageError
from shards.examples import Example
from shards.generation import Generation
from shards.layers.contract import Resources
from shards.media import KeptMedia
from shards.open_order import coming
from shards.plan import Plan, SpaceQuery
from shards.types import Budget, Candidates, Detail

if TYPE_CHECKING:
    from cluster.host import Opened
    from cluster.protocol import Searcher
    from serve.anytime.streaming import Growing
    from serve.nlql.facts import CorpusFacts
    from serve.nlql.schema import QueryAnswer, QueryRequest
    from shards.cache import FileCache
    from shards.plugins import Plugins
    from shards.store import Store
    from shards.usage import Recorder

logger = logging.getLogger(__name__)

SHORT_CHARS = 500  # of a query whose questions may be made in the event loop
LATE_S = 0.006  # for texts of hits, however late it is: without them there is no answer
TEXTS_SHARE, MANY_SHARE = 0.8, 0.5  # of the time left, for texts of a few hits, of many: the rest is for reading and writing them


class Coordinator:
    """Answers searches over every corpus below a store. cache: local files of statistics; poll_s: seconds between looks at
    the store for new generations; rerank: the last stage of searches that say nothing of one; of: how many coordinators the deployment
    wants, this one among them; translate: who writes forms for searches that want it and name nobody."""

    def __init__(
        self,
        store: "Store",
        searcher: "Searcher",
        resources: Resources,
        cache: "FileCache",
        poll_s: float = 0.5,
        rerank: Rerank | None = None,
        of: int = 1,
        translate: Translate | None = None,
    ):
        self.store, self.searcher = store, searcher
        self.name, self._of = f"{socket.gethostname()}-{os.getpid()}", of
        self.reranking = Reranking(resources, rerank)
        self.translating = Translating(resources, translate)
        self.generations = Generations(store, resources, cache, poll_s, self._warm, self._try_out)
        self.admission = Admission()
        self.lag = Lag(lambda: self.admission.under_way, time.monotonic)
        self._watching: asyncio.Task[None] | None = None
        self._tried: dict[str, int] = {}  # by corpus, the generation that was opened and asked something last
        self._trying = asyncio.Lock()
        self._statuses = CorpusStatuses(store)
        self.learned, self.unfinished = Learned(), Unfinished()
        self.freshness = Freshness()
        self.usage: Recorder | None = None  # told what answers show, where somebody builds spaces by it (`serve/building.py`)
        self.building: Callable[[], dict[str, dict[str, Any]]] | None = None  # how far such spaces are, by corpus
        self.facts: dict[tuple[str, int], CorpusFacts] = {}  # by corpus and generation, what queries of NLQL are planned by

    async def start(self) -> None:
        """Open what the store has and go on watching it."""
        self.generations.start()
        self._watching = asyncio.create_task(self.lag.watch())
        await self.reranking.warm()

    async def until_warm(self) -> None:
        """Wait until all corpora that the store has were opened and asked once."""
        await self.generations.until_warm()

    async def close(self) -> None:
        """Stop watching."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.generations.close()
        self.reranking.close()
        self.translating.close()
        self.freshness.close()

    async def _warm(self, generation: Generation) -> "Opened":
        root = generation.root
        replicas = self.generations.replicas(root.corpus)
        sizes = await asyncio.to_thread(lambda: generation.size_bytes)
        return await self.searcher.warm(root.corpus, root.generation, len(root.shards), replicas, sizes)

    async def _try_out(self, generation: Generation) -> None:
        """Open the shards on the hosts and ask one question in every space, so that nobody's query waits for code to be loaded."""
        corpus, number = generation.root.corpus, generation.root.generation
        async with self._trying:
            if self._tried.get(corpus) == number:
                return
            opened = await self._warm(generation)
            layers = {name: space.layer for name, space in generation.spaces.items()}
            asked = [name for name, layer in layers.items() if layer.warmed and layer.asked_in_words]
            if opened.sample and asked:
                chosen = {} if all(layer.warmed for layer in layers.values()) else {"layers": asked}
                trial = SearchRequest(corpus=corpus, query=opened.sample, k=1, budget_ms=60_000, generation=number, **chosen)
                try:
                    async for _ in self._answers(trial, is_stream=False, learned=OfCorpus()):
                        pass  # it loads code and opens files, so what it took is no measure
                    if not self.learned.knows(corpus):
                        await self._search(trial)
                except SondageError as error:  # no lasting problem: a query that meets it is told
                    logger.warning("corpus=%s event=trial_failed reason=%s", corpus, error)
            self._tried[corpus] = number

    # --- search ------------------------------------------------------------------------------------------------------------

    async def open(self, request: SearchRequest) -> None:
        """Open what a search will ask, for callers whose budget is for the answer alone. Raises as `search`."""
        await self._try_out(await self.generation(request, _cursor(request)))

    async def open_corpus(self, corpus: str, generation: int | None = None) -> None:
        """The same for a query."""
        await self._try_out(await self.generations.get(corpus, generation))

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """The answer to one search. Raises BadQuery, NotFound, StoreError, TryAgain."""
        with self.admission.search(request.budget_ms / 1000):
            answer = await self._search(request)
        self._was_shown(answer)
        return answer

    async def search_within(self, request: SearchRequest) -> SearchAnswer:
        """The same for a part of something that was let in already."""
        return await self._search(request)

    async def query(self, request: "QueryRequest", plugins: "Plugins | None" = None) -> "QueryAnswer":
        """The answer to one query of NLQL. plugins: an engine's own registries.

        Raises NLQLError with the place in the query, NotFound, StoreError, TryAgain.
        """
        from serve.nlql.execute import query

        return await query(self, request, plugins)

    async def _search(self, request: SearchRequest) -> SearchAnswer:
        async with aclosing(self._answers(request, is_stream=False)) as answers:
            return (await anext(answers))[0]

    async def search_stream(self, request: SearchRequest) -> AsyncGenerator["Growing", None]:
        """Answers to one search, each knowing more than the one before, from the cheapest layers on, and whether it is the last: that is
        what `search` gives with as much time. A combined search has one. Raises as `search`; closed, it asks nothing more."""
        with self.admission.search(request.budget_ms / 1000):
            async for answer, is_last in self._answers(request, is_stream=True):
                if is_last:
                    self._was_shown(answer)
                yield answer, is_last

    def _was_shown(self, answer: SearchAnswer) -> None:
        if self.usage is not None:
            shown = [(bytes.fromhex(hit.hash), hit.entries[0].path) for hit in answer.hits if hit.entries]
            self.usage.used(answer.corpus, answer.generation, shown)

    async def _answers(
        self, request: SearchRequest, is_stream: bool, learned: OfCorpus | None = None
    ) -> AsyncGenerator["Growing", None]:
        """learned: where to learn what things take; None: with what is known of the corpus."""
        laps = Laps()
        budget = self.budget(request.budget_ms)
        cursor = _cursor(request)
        stage = await self.reranking.begin(request) if request.coupling.name in RERANKED else None
        if request.combine is not None:
            from serve.combining import combine  # built on this class

            yield await combine(self, request, cursor, budget, stage, ANSWER_S), True
            return
        search = await self._begun(request, cursor, budget, laps, learned)
        n_details = 2 * min(request.k, 10) if cursor is None and not is_stream else 0
        by_rounds = is_stream or search.by_rounds
        while True:
            reserve_s = stage.share_s(budget.remaining_s) if stage else 0.0
            step = search.step(by_rounds, reserve_s)
            if not step.names:
                break
            n_rounds = search.n_rounds
            await search.ask(step, n_details)
            if search.n_rounds == n_rounds and search.left_s <= 0:  # the time went into questions
                break
            if search.stopped or search.enough() or not (search.ready or search.dear):
                break
            if is_stream and search.found is not None and search.has_time_to_tell():
                yield await answered(search, self, stage, last=False), False
        search.rest()
        yield await answered(search, self, stage), True

    async def _begun(
        self, request: SearchRequest, cursor: Cursor | None, budget: Budget, laps: Laps, learned: OfCorpus | None
    ) -> Search:
        """A search with its questions made, as far as they take no time; or one that goes on where it was cut off."""
        kept = self.unfinished.take(request.continue_, request_identity(request)) if request.continue_ is not None else None
        if kept is not None:
            assert isinstance(kept, Search)  # of the same request
            kept.resume(request, budget, laps)
            return kept
        generation = await self.generation(request, cursor)
        unbuilt = await self._coming(generation, request)
        check(request, {*generation.spaces, *unbuilt})
        names = spaces_to_ask(generation, request, unbuilt)
        asked, translation = request, None
        if request.translate:
            asked, translation = await self.translating.translate(request, generation, names, budget)
            laps.end("translate")
        known = frozenset(bytes.fromhex(span.hash) for span in request.feedback)
        asking = Asking(generation, asked, names)
        learned = self.learned.of(request.corpus) if learned is None else learned
        search = Search(self, request, generation, cursor, budget, laps, names, asking, asked, learned, known, translation)
        search.coming = unbuilt
        search.resumed = False if request.continue_ is not None else None
        is_newest = self.generations.current.get(request.corpus) is generation and request.generation is None
        search.fresh = self.freshness.begin(generation, request, budget, is_newest)
        await search.prepare()
        if request.feedback:
            questions = list(search.ready.values())
            search.changed = changed = await self._drawn(generation, asked, questions, search.reasons, budget)
            search.ready, search.reasons = {query.space: query for query in changed.prepared}, changed.reasons
        laps.end("prepare")
        return search

    async def _coming(self, generation: Generation, request: SearchRequest) -> dict[str, str]:
        """Of the spaces that a request names, those that its corpus is yet to get, and why they are not there."""
        named = {*(() if request.layers == "auto" else request.layers), *request.forms, *request.weights} - generation.spaces.keys()
        found = await asyncio.to_thread(coming, self.store, generation.root) if named else {}
        return {name: found[name] for name in sorted(named) if name in found}

    def budget(self, budget_ms: int) -> Budget:
        """The time of a search that begins now, without what goes by before it is heard and after it has answered."""
        return Budget(budget_ms / 1000 - self.lag.kept_back_s(budget_ms / 1000))

    def is_long(self, request: SearchRequest) -> bool:
        """Whether making its questions, even cheap ones, may take long."""
        return bool(request.forms) or len(request.query) > SHORT_CHARS

    async def generation(self, request: SearchRequest, cursor: Cursor | None) -> Generation:
        """The generation that a request names, or its cursor; else the newest."""
        try:
            return await self.generations.get(request.corpus, cursor.generation if cursor else request.generation)
        except Gone as error:
            at = "cursor" if cursor else "generation"
            raise Gone(f"{error} Start again without the cursor." if cursor else str(error), at=at) from None

    async def _drawn(
        self, generation: Generation, request: SearchRequest, prepared: list[SpaceQuery], reasons: dict[str, str], budget: Budget
    ) -> Changed:
        """The questions drawn towards the spans that the request gives as feedback. Raises NotFound, BadQuery."""
        examples = await read_examples(request.feedback, lambda span: self._example(generation, span), "feedback")
        return await reformulate(generation, request, prepared, reasons, examples, budget)

    async def _example(self, generation: Generation, span: ChosenSpan) -> Example:
        root = generation.root
        piece = await self.searcher.document(
            root.corpus, root.generation, len(root.shards), bytes.fromhex(span.hash), span.start, span.end
        )
        return Example(piece.text, piece.detail.kind)

    def details_of(self, generation: Generation, plan: Plan, budget: Budget) -> Details:
        """Texts for the last stage: entries and excerpts of spans, of so many bytes."""
        root = generation.root

        async def details(spans: Mapping[bytes, tuple[tuple[int, int], ...]], excerpt_bytes: int) -> dict[bytes, Detail]:
            remaining_s = max(budget.remaining_s, LATE_S)
            return await self.searcher.details(
                root.corpus, root.generation, len(root.shards), spans, plan.words, excerpt_bytes, plan.where, remaining_s
            )

        return details

    async def details(
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
            share = TEXTS_SHARE if len(wanted) <= FEW_HITS else MANY_SHARE
            details |= await self.searcher.details(
                generation.root.corpus,
                generation.root.generation,
                len(generation.root.shards),
                wanted,
                plan.words,
                plan.excerpt_size,
                plan.where,
                max(share * budget.remaining_s, LATE_S),
                [query for query in plan.queries if generation.spaces[query.space].layer.origin == "derived"],
            )
        return details

    # --- the rest ----------------------------------------------------------------------------------------------------------

    async def document(
        self, corpus: str, hash_hex: str, start: int | None = None, end: int | None = None, generation: int | None = None
    ) -> dict[str, Any]:
        """A span of a rendition by its hash, of the newest generation or another one; where none is named, also of files that were read
        since. Raises NotFound, BadQuery."""
        try:
            key = bytes.fromhex(hash_hex)
        except ValueError:
            key = b""
        if len(key) != 20:
            raise BadQuery(f"Document hash {hash_hex[:80]!r} is not 40 hexadecimal digits. Take it from a hit.")
        opened = await self.generations.get(corpus, generation)
        live = False
        try:
            piece = await self.searcher.document(corpus, opened.root.generation, len(opened.root.shards), key, start or 0, end)
        except NotFound:
            found = await asyncio.to_thread(self.freshness.document, opened, key, start or 0, end) if generation is None else None
            if found is None:
                raise
            piece, live = found, True
        return {
            "corpus": corpus,
            "generation": opened.root.generation,
            "hash": hash_hex,
            "start": piece.start,
            "end": piece.end,
            "size_bytes": piece.size_bytes,
            "kind": piece.detail.kind,
            "live": live,
            "text": piece.text,
            "entries": [entry_out(e).model_dump() for e in piece.detail.entries],
        }

    async def suggest_terms(self, request: TermsRequest) -> TermsAnswer:
        """The terms that set spans, or the first 10 hits of a query, apart from the corpus. Raises NotFound, BadQuery."""
        generation = await self.generations.get(request.corpus, request.generation)
        spans = request.spans
        if request.query:
            asked = {"corpus": request.corpus, "query": request.query, "generation": generation.root.generation}
            answer = await self.search(SearchRequest(**asked, budget_ms=request.budget_ms, highlight=False))
            hits = [hit for hit in answer.hits if hit.evalue < 1] or answer.hits
            spans = tuple(ChosenSpan(hash=hit.hash, start=hit.start, end=hit.end if hit.end > hit.start else None) for hit in hits)
        examples = await read_examples(spans, lambda span: self._example(generation, span), "spans")
        layer, terms = await asyncio.to_thread(suggested, generation, examples, request.k, request.query)
        return TermsAnswer(
            corpus=request.corpus, generation=generation.root.generation, layer=layer, read=len(examples), terms=tuple(terms)
        )

    async def media(self, corpus: str, hash_hex: str, generation: int | None = None) -> bytes:
        """What is kept of a document beside its text: the image that it is, as a file. Raises NotFound, BadQuery."""
        await self.document(corpus, hash_hex, 0, 0, generation)  # that the generation has it, which the store alone does not tell
        opened = await self.generations.get(corpus, generation)
        found = await asyncio.to_thread(KeptMedia(opened.store).one, bytes.fromhex(hash_hex))
        if found is None:
            raise NotFound(f"Of document {hash_hex} nothing but its text is kept: it is no image, or its kept copy was lost.")
        return found

    async def status(self) -> dict[str, Any]:
        """Corpora with their generations, replicas, spaces and sizes, on disk and in memory; hosts; what is wrong."""
        told = await self.told()
        for corpus, placed in told.get("placement", {}).items():
            record = self.generations.serving.get(corpus)
            low, high = (record.min_replicas, record.max_replicas) if record else (None, None)
            placed |= {"record": record.number if record else 0, "min": low, "max": high}
        told["coordinator"] = {"id": self.name, "of": self._of}
        told["admission"] = self.admission.told()
        corpora = await self._statuses.tell(self.generations.current, told)
        for corpus, spaces in (self.building() if self.building is not None else {}).items():
            if corpus in corpora:
                corpora[corpus]["building"] = spaces
        rerankers, problems = self.reranking.status(), dict(self.generations.problems)
        problems |= {f"reranker {model['model']}": model["reason"] for model in rerankers if model["reason"]}
        return {"store": self.store.url, "corpora": corpora, **told, "rerankers": rerankers, "problems": problems}

    async def told(self) -> dict[str, Any]:
        """What the searcher tells of hosts and calls, with the searches that were refused before they became calls."""
        told = await self.searcher.status()
        if "routing" in told:
            told["routing"]["refused"] += self.admission.refused
        return told

    async def ready(self) -> tuple[bool, str]:
        """Whether searches can be answered, and why not."""
        return self.generations.ready()


def _cursor(request: SearchRequest) -> Cursor | None:
    return Cursor.decode(request.cursor, request_identity(request)) if request.cursor else None
