"""A client of Sondage's HTTP interface. What it sends and how it reads answers stands in `calls`, when it tries again in `tries`."""

import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx

from serve.corpora_schema import OpeningAnswer
from serve.push_schema import BulkAnswer, PushAnswer
from serve.schema import DocumentAnswer, Ready, SearchAnswer, SearchRequest

from . import as_request, calls
from .calls import Call
from .opening import CONNECTIONS, Opening
from .pushing import Item, Joined, joined, parameters, portions
from .refusals import Refused, Unreachable, unreachable
from .streams import AnswerLines, Lines, RowStream
from .tries import Answer, Retries

if TYPE_CHECKING:
    from serve.feedback_schema import Span, TermsAnswer
    from serve.layer_orders import LayersAnswer
    from serve.nlql.schema import QueryAnswer, Row

    from .calls import Asked

__all__ = ["Client", "Refused", "Unreachable"]

T = TypeVar("T")


class Client:
    """Calls one server; safe for several threads. Close it, or use `with`.

    url: `http://host:port` or `https://…`. api_key: sent as a bearer token where given. ca_file: PEM file of who vouches for the server;
    none: the public authorities. retries: further tries of a call whose connection is refused or breaks, or that is told to come back
    later; every call may be sent twice. connections: at once.

    Every call raises the errors of `shards.errors` that the server reports, with its `request_id`, and Unreachable.
    """

    _sleep = staticmethod(time.sleep)  # replaced by tests

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        ca_file: "str | os.PathLike[str] | None" = None,
        *,
        retries: int | Retries = Retries(),  # noqa: B008  # frozen
        connections: int = CONNECTIONS,
    ):
        """Raises BadSpec for an address that is no HTTP URL, or a file that is no certificate."""
        self._opening = Opening.of(url, api_key, ca_file, retries, connections)
        self.url = self._opening.url
        self._http = httpx.Client(**self._opening.arguments())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    # --- searching -----------------------------------------------------------------------------------------------------------

    def search(self, query: str | SearchRequest = "", corpus: str = "", *, timeout_s: float | None = None, **fields: Any) -> SearchAnswer:
        """One search: a whole SearchRequest, or its query, corpus and other fields (`k=5, layers=["bm25"], paths=["*.py"]`).

        timeout_s: for all tries and the pauses between them; none: `budget_ms`, beside 10 s for the network.
        """
        return self._call(calls.search(as_request(query, corpus, fields)), timeout_s)

    def search_stream(
        self, query: str | SearchRequest = "", corpus: str = "", *, timeout_s: float | None = None, **fields: Any
    ) -> "Generator[SearchAnswer, None, None]":
        """The same, answered as soon as the cheapest layers have something, and again whenever others have added to it. The last answer is
        that of `search`. Who stops before closes the generator: then nothing more is searched for."""
        return self._stream(calls.search_stream(as_request(query, corpus, fields)), AnswerLines(), timeout_s)

    def combine(self, tree: Mapping[str, Any], corpus: str, *, timeout_s: float | None = None, **fields: Any) -> SearchAnswer:
        """Several searches as one: `{"union": [{"search": {…}}, …]}`. Other arguments as of `search`."""
        return self.search("", corpus, timeout_s=timeout_s, combine=tree, **fields)

    def query(
        self,
        text: "Asked",
        corpus: str = "",
        *,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> "QueryAnswer":
        """One query of NLQL: as text, a built query, or its JSON; or a whole QueryRequest. fields: others of it (`params`, `limit`, …).
        timeout_s: as of `search`."""
        return self._call(calls.query(calls.query_of(text, corpus, fields)), timeout_s)

    def query_rows(
        self,
        text: "Asked",
        corpus: str = "",
        *,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> RowStream:
        """The same, row by row as they come: nothing holds all of them. Errors come where the first row would."""
        lines = Lines()
        return RowStream(self._rows(calls.query_rows(calls.query_of(text, corpus, fields)), lines, timeout_s), lines)

    def explain_query(
        self,
        text: "Asked",
        corpus: str = "",
        *,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """The plan of a query, which is not run."""
        request = calls.query_of(text, corpus, fields)
        return self._call(calls.query(request.model_copy(update={"explain": True})), timeout_s).plan or {}

    def nlql_schema(self, corpus: str | None = None, *, strict: bool = False) -> dict[str, Any]:
        """What a query may be, as a JSON schema and as a tool of models; of a corpus, with its spaces. strict: plain NLQL alone."""
        return self._call(calls.nlql_schema(corpus, strict))

    def suggest_terms(
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
        """Terms that set these spans of hits ("HASH:START-END"), or those of the query's best hits, apart from the corpus. timeout_s: as of
        `search`."""
        asked = {"corpus": corpus, "spans": spans, "query": query, "k": k, "generation": generation, "budget_ms": budget_ms}
        return self._call(calls.suggest_terms(**asked), timeout_s)

    def document(
        self, hash: str, corpus: str, start: int | None = None, end: int | None = None, generation: int | None = None
    ) -> DocumentAnswer:
        """A document's text by its content hash (40 hex digits), or the bytes [start, end) of it; of any kept generation."""
        return self._call(calls.document(hash, corpus, start, end, generation))

    def media(self, hash: str, corpus: str, generation: int | None = None) -> bytes:
        """The image that a document is, as a file, by its content hash; of a large one a reduced JPEG."""
        return self._call(calls.media(hash, corpus, generation))

    # --- pushing -------------------------------------------------------------------------------------------------------------

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
        """Put a document at a path; returns when it is durable. Text, or bytes of any kind that can be rendered.

        metadata: JSON values, shown with hits and filtered by. vectors: own ones, by space. id: of this operation, which is performed
        once however often it is sent; one is made if none is given. wait: until it is searchable here, for at most `timeout_s`; the
        answer says whether it is. create: make the corpus if there is none, with these layers.
        """
        return self._call(calls.put(path, content, metadata, corpus, vectors, id, parameters(wait, create, layers, timeout_s)))

    def delete(self, path: str, *, corpus: str, id: str | None = None, wait: bool = False, timeout_s: float = 10.0) -> PushAnswer:
        """Take away what was put at a path; as `put`."""
        return self._call(calls.delete(path, corpus, id, parameters(wait, False, None, timeout_s)))

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
        """Put (and delete) many documents: (path, content), (path, content, metadata), or mappings with the fields of a line:
        `path`, `content` (or `text`, `base64`), `metadata`, `vectors`, `id`, `op` ("put" or "delete").

        Items are taken as they are sent, in portions of some megabytes. What is wrong with single ones stands in `errors` of the answer;
        the others are durable.
        """
        return joined(corpus, self.put_portions(items, corpus=corpus, wait=wait, create=create, layers=layers, timeout_s=timeout_s))

    def put_portions(
        self,
        items: Iterable[Item],
        *,
        corpus: str,
        wait: bool = False,
        create: bool = False,
        layers: Sequence[str] | None = None,
        timeout_s: float = 10.0,
    ) -> Iterator[BulkAnswer]:
        """As `put_many`, with an answer for each portion as soon as it is durable; lines are counted over all."""
        asked, total = parameters(wait, create, layers, timeout_s), Joined()
        for lines in portions(items):
            yield total.placed(len(lines), self._call(calls.put_lines(lines, corpus, asked)))

    def order_layers(self, corpus: str, **order: Any) -> "LayersAnswer":
        """Order what is built of a space that is built where it is used: `build="dense", scope=["docs/**"]`, or pin, unpin, evict,
        cancel, limit (with bytes, encodings_per_day, cost_per_day), or usage=False. Returns when the order is kept; `status` tells how far
        the work is."""
        return self._call(calls.layers(corpus, order))

    # --- the server ----------------------------------------------------------------------------------------------------------

    def open_corpus(
        self,
        corpus: str,
        root: str,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        source: str = "main",
        layers: Sequence[str] | None = None,
    ) -> OpeningAnswer:
        """Have the server read a folder or URL that it can reach, and search it while it is read: a first part within seconds. layers:
        none: by what there is. The same order twice is one; `opening` says how far it is."""
        return self._call(calls.open_corpus(corpus, root, include, exclude, source, layers))

    def opening(self, corpus: str, source: str = "main") -> OpeningAnswer:
        """How far the opening of a corpus is: its `state`, what is `held` and `pending`."""
        return self._call(calls.opening(corpus, source))

    def status(self) -> dict[str, Any]:
        """The corpora with their layers, and the hosts."""
        return self._call(calls.status())

    def metrics(self) -> str:
        """What the server counts, as Prometheus reads it."""
        return self._call(calls.metrics())

    def alive(self) -> bool:
        """Whether its process answers; raises Unreachable where nobody does."""
        return self._call(calls.alive())

    def ready(self) -> Ready:
        """Whether it can answer searches, and why not."""
        return self._call(calls.ready())

    # --- sending -------------------------------------------------------------------------------------------------------------

    def _call(self, call: Call[T], timeout_s: float | None = None) -> T:
        tries = self._opening.tries(call, timeout_s)
        while True:
            try:
                with self._send(tries.call, tries.timeout()) as response:
                    pieces = []
                    for piece in response.iter_bytes():
                        tries.check()
                        pieces.append(piece)
                answer = Answer(response.status_code, response.headers, b"".join(pieces))
            except httpx.HTTPError as error:
                pause_s = tries.broken(error)
            else:
                if tries.is_answer(answer.status):
                    return tries.read(answer)
                pause_s = tries.refused(answer)
            self._sleep(pause_s)
            tries.again()

    def _rows(self, call: Call[bytes], lines: Lines, timeout_s: float | None) -> "Generator[Row, None, None]":
        yield from self._stream(call, lines, timeout_s)

    def _stream(self, call: Call[bytes], lines: "Lines | AnswerLines", timeout_s: float | None) -> "Generator[Any, None, None]":
        tries, begun = self._opening.tries(call, timeout_s), False
        while True:
            try:
                with self._send(tries.call, tries.timeout()) as response:
                    if tries.is_answer(response.status_code):
                        for piece in response.iter_bytes():
                            tries.check()
                            begun = True
                            yield from lines.take(piece)
                        yield from lines.end(self.url)
                        return
                    pause_s = tries.refused(Answer(response.status_code, response.headers, response.read()))
            except httpx.HTTPError as error:
                if begun:  # the caller has rows already, which another answer need not repeat
                    raise unreachable(self.url, error) from error
                pause_s = tries.broken(error)
            self._sleep(pause_s)
            tries.again()

    def _send(self, call: Call[T], timeout: httpx.Timeout) -> AbstractContextManager[httpx.Response]:
        return self._http.stream(
            call.method, call.path, params=list(call.parameters), headers=dict(call.headers), content=call.content, timeout=timeout
        )
