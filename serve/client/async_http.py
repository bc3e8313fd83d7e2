"""The same client for programs that wait for many things at once, on asyncio or trio. Only sending differs from `Client`."""

import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio  # which httpx itself waits by
import httpx

from serve.corpora_schema import OpeningAnswer
from serve.push_schema import BulkAnswer, PushAnswer
from serve.schema import DocumentAnswer, Ready, SearchAnswer, SearchRequest

from . import as_request, calls
from .calls import Call
from .opening import CONNECTIONS, Opening
from .pushing import Item, Joined, joined, parameters, portions_async
from .refusals import unreachable
from .streams import AnswerLines, AsyncRowStream, Lines
from .tries import Answer, Retries

if TYPE_CHECKING:
    from serve.feedback_schema import Span, TermsAnswer
    from serve.layer_orders import LayersAnswer
    from serve.nlql.schema import QueryAnswer

    from .calls import Asked

T = TypeVar("T")


class AsyncClient:
    """As `Client`, for one event loop. Close it, or use `async with`. A call that is cancelled closes its connection, so the server
    stops, too."""

    _sleep = staticmethod(anyio.sleep)  # replaced by tests

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        ca_file: "str | os.PathLike[str] | None" = None,
        *,
        retries: int | Retries = Retries(),  # noqa: B008  # frozen
        connections: int = CONNECTIONS,
    ):
        """As `Client`."""
        self._opening = Opening.of(url, api_key, ca_file, retries, connections)
        self.url = self._opening.url
        self._http = httpx.AsyncClient(**self._opening.arguments())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    # --- searching -----------------------------------------------------------------------------------------------------------

    async def search(
        self, query: str | SearchRequest = "", corpus: str = "", *, timeout_s: float | None = None, **fields: Any
    ) -> SearchAnswer:
        """As `Client.search`."""
        return await self._call(calls.search(as_request(query, corpus, fields)), timeout_s)

    def search_stream(
        self, query: str | SearchRequest = "", corpus: str = "", *, timeout_s: float | None = None, **fields: Any
    ) -> "AsyncGenerator[SearchAnswer, None]":
        """As `Client.search_stream`: not awaited, but iterated over."""
        return self._rows(calls.search_stream(as_request(query, corpus, fields)), AnswerLines(), timeout_s)

    async def combine(self, tree: Mapping[str, Any], corpus: str, *, timeout_s: float | None = None, **fields: Any) -> SearchAnswer:
        """As `Client.combine`."""
        return await self.search("", corpus, timeout_s=timeout_s, combine=tree, **fields)

    async def query(
        self,
        text: "Asked",
        corpus: str = "",
        *,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> "QueryAnswer":
        """As `Client.query`."""
        return await self._call(calls.query(calls.query_of(text, corpus, fields)), timeout_s)

    def query_rows(
        self,
        text: "Asked",
        corpus: str = "",
        *,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> AsyncRowStream:
        """As `Client.query_rows`: not awaited, but iterated over."""
        lines = Lines()
        return AsyncRowStream(self._rows(calls.query_rows(calls.query_of(text, corpus, fields)), lines, timeout_s), lines)

    async def explain_query(
        self,
        text: "Asked",
        corpus: str = "",
        *,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """As `Client.explain_query`."""
        request = calls.query_of(text, corpus, fields)
        return (await self._call(calls.query(request.model_copy(update={"explain": True})), timeout_s)).plan or {}

    async def nlql_schema(self, corpus: str | None = None, *, strict: bool = False) -> dict[str, Any]:
        """As `Client.nlql_schema`."""
        return await self._call(calls.nlql_schema(corpus, strict))

    async def suggest_terms(
        self,
        spans: "Sequence[str | Span | Mapping[str, Any]]" = (),
        query: str = "",
        *,
        corpus: str,
        k: int = 20,
        generation: int | None = None,
        budget_ms: int = 2_000,
        timeout_s: float | None = None,
    ) -> "TermsAnswer":
        """As `Client.suggest_terms`."""
        asked = {"corpus": corpus, "spans": spans, "query": query, "k": k, "generation": generation, "budget_ms": budget_ms}
        return await self._call(calls.suggest_terms(**asked), timeout_s)

    async def document(
        self, hash: str, corpus: str, start: int | None = None, end: int | None = None, generation: int | None = None
    ) -> DocumentAnswer:
        """As `Client.document`."""
        return await self._call(calls.document(hash, corpus, start, end, generation))

    async def media(self, hash: str, corpus: str, generation: int | None = None) -> bytes:
        """As `Client.media`."""
        return await self._call(calls.media(hash, corpus, generation))

    # --- pushing -------------------------------------------------------------------------------------------------------------

    async def put(
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
        """As `Client.put`."""
        return await self._call(calls.put(path, content, metadata, corpus, vectors, id, parameters(wait, create, layers, timeout_s)))

    async def delete(self, path: str, *, corpus: str, id: str | None = None, wait: bool = False, timeout_s: float = 10.0) -> PushAnswer:
        """As `Client.delete`."""
        return await self._call(calls.delete(path, corpus, id, parameters(wait, False, None, timeout_s)))

    async def put_many(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        *,
        corpus: str,
        wait: bool = False,
        create: bool = False,
        layers: Sequence[str] | None = None,
        timeout_s: float = 10.0,
    ) -> BulkAnswer:
        """As `Client.put_many`; items may also come from an async iterator."""
        told = self.put_portions(items, corpus=corpus, wait=wait, create=create, layers=layers, timeout_s=timeout_s)
        return joined(corpus, [answer async for answer in told])

    async def put_portions(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        *,
        corpus: str,
        wait: bool = False,
        create: bool = False,
        layers: Sequence[str] | None = None,
        timeout_s: float = 10.0,
    ) -> AsyncIterator[BulkAnswer]:
        """As `Client.put_portions`: not awaited, but iterated over."""
        asked, total = parameters(wait, create, layers, timeout_s), Joined()
        async for lines in portions_async(items):
            yield total.placed(len(lines), await self._call(calls.put_lines(lines, corpus, asked)))

    # --- the server ----------------------------------------------------------------------------------------------------------

    async def order_layers(self, corpus: str, **order: Any) -> "LayersAnswer":
        """As `Client.order_layers`."""
        return await self._call(calls.layers(corpus, order))

    async def open_corpus(
        self,
        corpus: str,
        root: str,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        source: str = "main",
        layers: Sequence[str] | None = None,
    ) -> OpeningAnswer:
        """As `Client.open_corpus`."""
        return await self._call(calls.open_corpus(corpus, root, include, exclude, source, layers))

    async def opening(self, corpus: str, source: str = "main") -> OpeningAnswer:
        """As `Client.opening`."""
        return await self._call(calls.opening(corpus, source))

    async def status(self) -> dict[str, Any]:
        """As `Client.status`."""
        return await self._call(calls.status())

    async def metrics(self) -> str:
        """As `Client.metrics`."""
        return await self._call(calls.metrics())

    async def alive(self) -> bool:
        """As `Client.alive`."""
        return await self._call(calls.alive())

    async def ready(self) -> Ready:
        """As `Client.ready`."""
        return await self._call(calls.ready())

    # --- sending -------------------------------------------------------------------------------------------------------------

    async def _call(self, call: Call[T], timeout_s: float | None = None) -> T:
        tries = self._opening.tries(call, timeout_s)
        while True:
            try:
                async with self._send(tries.call, tries.timeout()) as response:
                    pieces = []
                    async for piece in response.aiter_bytes():
                        tries.check()
                        pieces.append(piece)
                answer = Answer(response.status_code, response.headers, b"".join(pieces))
            except httpx.HTTPError as error:
                pause_s = tries.broken(error)
            else:
                if tries.is_answer(answer.status):
                    return tries.read(answer)
                pause_s = tries.refused(answer)
            await self._sleep(pause_s)
            tries.again()

    async def _rows(self, call: Call[bytes], lines: "Lines | AnswerLines", timeout_s: float | None) -> "AsyncGenerator[Any, None]":
        tries, begun = self._opening.tries(call, timeout_s), False
        while True:
            try:
                async with self._send(tries.call, tries.timeout()) as response:
                    if tries.is_answer(response.status_code):
                        async for piece in response.aiter_bytes():
                            tries.check()
                            begun = True
                            for row in lines.take(piece):
                                yield row
                        for row in lines.end(self.url):
                            yield row
                        return
                    pause_s = tries.refused(Answer(response.status_code, response.headers, await response.aread()))
            except httpx.HTTPError as error:
                if begun:  # the caller has rows already, which another answer need not repeat
                    raise unreachable(self.url, error) from error
                pause_s = tries.broken(error)
            await self._sleep(pause_s)
            tries.again()

    def _send(self, call: Call[T], timeout: httpx.Timeout) -> AbstractAsyncContextManager[httpx.Response]:
        return self._http.stream(
            call.method, call.path, params=list(call.parameters), headers=dict(call.headers), content=call.content, timeout=timeout
        )
