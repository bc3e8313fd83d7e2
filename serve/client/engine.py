"""Search in this process, without any server."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from cluster.settings import HostSettings
from serve.feedback_schema import Span, TermsAnswer, TermsRequest
from serve.intake import Bulk, acknowledge, check_path, model_of, operation
from serve.local import local_coordinator, local_pushes
from serve.push_schema import BulkAnswer, PushAnswer, PushParameters
from serve.pushing import Pushes
from serve.schema import DocumentAnswer, Rerank, SearchAnswer, SearchRequest
from serve.translation_schema import Translate
from shards.endpoint_settings import EndpointSettings
from shards.pushlog import Operation

from . import as_request
from .asking import as_query
from .pushing import Item, line_of, parameters
from .streams import RowStream

if TYPE_CHECKING:
    from serve.anytime.streaming import Growing
    from serve.layer_orders import LayersAnswer
    from serve.nlql.schema import QueryAnswer, QueryRequest
    from shards.nlql.ir import Query

T = TypeVar("T")


class Engine:
    """Searches the corpora of one store; the calls of `Client`. Safe for several threads. Close it, or use `with`.

    `Engine(embedder, …)`, with an object that embeds in place of a store, is a corpus of its own: see `CorpusEngine`.

    store: a folder, s3://bucket/prefix or memory://name, as `sondage index --store` wrote it. options: for S3, see
    `shards.store_s3.S3Options`. cache: folder for downloaded files and, unless `models` names another, models. threads: searches at once.
    endpoints: OpenAI-compatible servers, by the name that layers know them under; `{"url": …, "key": …}` will do for each.
    rerank: the last stage of searches that say nothing of one, as in a request: `{"model": …}`; translate: likewise, who writes forms.
    """

    def __new__(cls, first: Any = None, /, *_: Any, embedder: Any = None, **__: Any) -> "Engine":
        if cls is Engine and (embedder is not None or callable(getattr(first, "embed", None))):
            from .corpus import CorpusEngine

            return object.__new__(CorpusEngine)  # whose __init__ Python calls now
        return object.__new__(cls)

    def __init__(
        self,
        store: str | os.PathLike[str],
        options: dict[str, Any] | None = None,
        cache: str | os.PathLike[str] = "~/.cache/sondage",
        cache_bytes: int = 20 * 2**30,
        threads: int = 2,
        endpoints: Mapping[str, EndpointSettings] | None = None,
        rerank: Rerank | Mapping[str, Any] | None = None,
        models: str | os.PathLike[str] | None = None,
        translate: Translate | Mapping[str, Any] | None = None,
    ):
        """Raises BadSpec for a URL that names no store, InvalidRequest for a wrong `rerank` or `translate`."""
        folder = Path(cache).expanduser()
        last_stage = None if rerank is None else model_of(Rerank, rerank)
        translator = None if translate is None else model_of(Translate, translate)
        self._begin(
            HostSettings(
                store_url=os.fspath(store),
                store_options=options or {},
                cache_dir=folder / "files",
                cache_bytes=cache_bytes,
                models_dir=folder / "models" if models is None else Path(models).expanduser(),
                threads=threads,
                endpoints=endpoints or {},
            ),
            rerank=last_stage,
            translate=translator,
        )

    def _begin(self, settings: HostSettings, **coordinator: Any) -> None:
        """Start the coordinator. coordinator: as `local_coordinator` takes it."""
        self._settings = settings
        self._stack = AsyncExitStack()
        self._pushes: Pushes | None = None  # until the first push
        # The coordinator is asyncio throughout; callers are not, so it lives in a loop of its own.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sondage-engine", daemon=True)
        self._thread.start()
        try:
            self._coordinator = self._wait(self._stack.enter_async_context(local_coordinator(settings, **coordinator)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stops the threads; searches under way end first."""
        if self._loop.is_closed():
            return
        self._wait(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def search(self, query: str | SearchRequest = "", corpus: str = "", **fields: Any) -> SearchAnswer:
        """As `Client.search`. What the corpus's first search has to open, on disk and of models, is not taken from its budget."""
        return self._wait(self._search(as_request(query, corpus, fields)))

    def search_stream(self, query: str | SearchRequest = "", corpus: str = "", **fields: Any) -> "Generator[SearchAnswer, None, None]":
        """As `Client.search_stream`."""
        request = as_request(query, corpus, fields)
        self._wait(self._coordinator.open(request))
        answers = self._coordinator.search_stream(request)
        try:
            is_last = False
            while not is_last:
                answer, is_last = self._wait(_next(answers))
                yield answer
        finally:
            self._wait(answers.aclose())

    def combine(self, tree: Mapping[str, Any], corpus: str, **fields: Any) -> SearchAnswer:
        """As `Client.combine`."""
        return self.search("", corpus, combine=tree, **fields)

    def query(
        self,
        text: "str | Query | Mapping[str, Any] | QueryRequest",
        corpus: str = "",
        *,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> "QueryAnswer":
        """As `Client.query`. What the corpus's first query has to open is not taken from its budget."""
        return self._wait(self._query(as_query(text, corpus, _timed(fields, timeout_s))))

    def query_rows(
        self,
        text: "str | Query | Mapping[str, Any] | QueryRequest",
        corpus: str = "",
        *,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> RowStream:
        """As `Client.query_rows`; here all rows are known when the first comes."""
        return RowStream.of(self.query(text, corpus, timeout_s=timeout_s, **fields))

    def explain_query(
        self,
        text: "str | Query | Mapping[str, Any] | QueryRequest",
        corpus: str = "",
        *,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """As `Client.explain_query`."""
        request = as_query(text, corpus, _timed(fields, timeout_s))
        return self._wait(self._query(request.model_copy(update={"explain": True}))).plan or {}

    def nlql_schema(self, corpus: str | None = None, *, strict: bool = False) -> dict[str, Any]:
        """As `Client.nlql_schema`."""
        from serve.nlql.execute import schema_of

        return self._wait(schema_of(self._coordinator, corpus, strict))

    def suggest_terms(
        self,
        spans: "Sequence[str | Span | Mapping[str, Any]]" = (),
        query: str = "",
        *,
        corpus: str,
        k: int = 20,
        generation: int | None = None,
        budget_ms: int = 2_000,
    ) -> TermsAnswer:
        """As `Client.suggest_terms`."""
        asked = {"corpus": corpus, "spans": tuple(spans), "query": query, "k": k, "generation": generation, "budget_ms": budget_ms}
        return self._wait(self._coordinator.suggest_terms(model_of(TermsRequest, asked)))

    def status(self) -> dict[str, Any]:
        """As `Client.status`; waits until the corpora there are have been opened."""
        return self._wait(self._opened_status())

    def document(
        self, hash: str, corpus: str, start: int | None = None, end: int | None = None, generation: int | None = None
    ) -> DocumentAnswer:
        """As `Client.document`."""
        return DocumentAnswer.model_validate(self._wait(self._coordinator.document(corpus, hash, start, end, generation)))

    def media(self, hash: str, corpus: str, generation: int | None = None) -> bytes:
        """As `Client.media`."""
        return self._wait(self._coordinator.media(corpus, hash, generation))

    def put(
        self,
        path: str,
        content: str | bytes,
        metadata: Mapping[str, Any] | None = None,
        *,
        corpus: str,
        vectors: Mapping[str, Any] | None = None,
        id: str | None = None,
        wait: bool = False,
        create: bool = False,
        layers: Sequence[str] | None = None,
        timeout_s: float = 10.0,
    ) -> PushAnswer:
        """As `Client.put`. What was not applied when the engine is closed is by whoever opens the store next for pushes."""
        asked = parameters(wait, create, layers, timeout_s)
        return self._wait(self._put(path, content, dict(metadata or {}), corpus, dict(vectors or {}), id or "", asked))

    def delete(self, path: str, *, corpus: str, id: str | None = None, wait: bool = False, timeout_s: float = 10.0) -> PushAnswer:
        """As `Client.delete`."""
        return self._wait(self._put(path, None, {}, corpus, {}, id or "", parameters(wait, False, None, timeout_s)))

    def put_many(
        self,
        items: Iterable[Item],
        *,
        corpus: str,
        wait: bool = False,
        create: bool = False,
        layers: Sequence[str] | None = None,
        timeout_s: float = 10.0,
    ) -> BulkAnswer:
        """As `Client.put_many`."""
        return self._wait(self._put_many(items, corpus, parameters(wait, create, layers, timeout_s)))

    async def _put(
        self,
        path: str,
        content: str | bytes | None,
        metadata: dict[str, Any],
        corpus: str,
        vectors: dict[str, Any],
        key: str,
        asked: PushParameters,
    ) -> PushAnswer:
        pushes = await self._taking()
        target = await pushes.admit(corpus, asked.to_create())
        made, left_out = Operation(check_path(path), mtime_ns=time.time_ns(), id=key), list[str]()
        if content is not None:
            body = content.encode() if isinstance(content, str) else content
            made, left_out = await asyncio.to_thread(operation, target, path, body, metadata, vectors, key)
        return await acknowledge(pushes, target, asked, made, left_out)

    def order_layers(self, corpus: str, **order: Any) -> "LayersAnswer":
        """As `Client.order_layers`: kept in the store, and done by whoever serves it."""
        from serve.layer_orders import LayersRequest, ordered

        asked = model_of(LayersRequest, order)
        generation = self._wait(self._coordinator.generations.get(corpus))
        return ordered(self._coordinator.store, generation.root, asked)

    async def _put_many(self, items: Iterable[Item], corpus: str, asked: PushParameters) -> BulkAnswer:
        pushes = await self._taking()
        bulk = Bulk(pushes, await pushes.admit(corpus, asked.to_create()), each=False)
        for number, item in enumerate(items, 1):
            await bulk.take(number, line_of(item))
        return await bulk.answer(asked)

    async def _taking(self) -> Pushes:
        if self._pushes is None:
            self._pushes = await self._stack.enter_async_context(local_pushes(self._coordinator))
        return self._pushes

    async def _search(self, request: SearchRequest) -> SearchAnswer:
        await self._coordinator.open(request)
        return await self._coordinator.search(request)

    async def _query(self, request: "QueryRequest") -> "QueryAnswer":
        await self._coordinator.open_corpus(request.corpus, request.generation)
        return await self._coordinator.query(request)

    async def _opened_status(self) -> dict[str, Any]:
        while True:
            state = await self._coordinator.status()
            if (await self._coordinator.ready())[0] or state["problems"]:
                return state
            await asyncio.sleep(0.01)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # also Ctrl-C: nobody wants the answer any more
            future.cancel()
            raise


async def _next(answers: "AsyncGenerator[Growing, None]") -> "Growing":
    return await anext(answers)


def _timed(fields: Mapping[str, Any], timeout_s: float | None) -> dict[str, Any]:
    """A query's fields, with its time where it was told in seconds, as a client's calls take it."""
    return dict(fields) if timeout_s is None else {"budget_ms": max(1, int(1000 * timeout_s)), **fields}
