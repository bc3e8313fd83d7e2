"""The HTTP interface over a coordinator: the same application under uvicorn alone and under Ray Serve."""

import asyncio
import hmac
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from pydantic import Field
from pydantic_core import from_json, to_json
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.problems import BadRequest, Forbidden, InvalidRequest, TooLarge, TooSlow, Unauthorized, invalid, kind_of, validated
from serve.schema import MAX_K, MAX_QUERY_CHARS, DocumentAnswer, Edge, Problem, ProblemAnswer, SearchAnswer, SearchRequest
from shards.errors import BadSpec, Cancelled, SondageError

if TYPE_CHECKING:
    from serve.coordinator import Coordinator

logger = logging.getLogger(__name__)
T = TypeVar("T")

MAX_BODY_BYTES = 1 << 20  # a query has 8,192 characters; the rest is room for large filters
MAX_DRAINED_BYTES = 16 << 20  # read and thrown away before a 413, since many clients only listen when they have sent everything
BODY_TIMEOUT_S = 30.0  # a client that sends slower than 34 kB/s holds a connection, not work

EXAMPLES = {
    "a question": {"value": {"corpus": "stdlib", "query": "parse an HTTP date header", "k": 5}},
    "a regular expression in some files": {
        "value": {
            "corpus": "stdlib",
            "forms": {"text": {"pattern": "def \\w+_header\\(", "regex": True}},
            "layers": ["text"],
            "paths": ["email/**/*.py", "!**/__init__.py"],
        }
    },
    "a filter on metadata": {
        "value": {"corpus": "stdlib", "query": "event loop", "where": {"size_bytes": {"<": 100000}, "not": {"ext": "pyi"}}}
    },
}


class SearchParameters(Edge):
    """GET /v1/search: a search that fits into a link."""

    corpus: Annotated[str, Field(min_length=1, max_length=128)]
    q: Annotated[str, Field(max_length=MAX_QUERY_CHARS, description="what is looked for, as plain text")] = ""
    k: Annotated[int, Field(ge=1, le=MAX_K)] = 10
    layers: Annotated[tuple[str, ...], Field(description="names of spaces, repeated or separated by commas; none: auto")] = ()
    path: Annotated[tuple[str, ...], Field(max_length=100, description="globs, repeated; a leading ! excludes")] = ()
    where: Annotated[str | None, Field(description="metadata filter as JSON")] = None
    budget_ms: Annotated[int, Field(ge=1, le=60_000)] = 2_000
    cursor: str | None = None
    highlight: bool = True
    explain: bool = False

    def request(self) -> SearchRequest:
        """The same search as a request body. Raises BadRequest, InvalidRequest."""
        layers = [name for part in self.layers for name in part.split(",") if name]
        where = None if self.where is None else decode(self.where.encode("utf-8", "replace"), "where")
        fields = self.model_dump(include={"corpus", "k", "budget_ms", "cursor", "highlight", "explain"})
        return validated({**fields, "query": self.q, "layers": layers or "auto", "paths": list(self.path), "where": where})


def create_app(
    running: "AbstractAsyncContextManager[Coordinator]",
    api_keys: Sequence[str] = (),
    beside: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """The application.

    running: gives a started coordinator (such as `serve.local.local_coordinator`); entered when the application starts, left
    when it ends. beside: entered with the application once it can answer, left before the coordinator (`serve.listener`).
    api_keys: any of these is required of every /v1 request, as `Authorization: Bearer KEY` or `X-API-Key: KEY`. With none, the
    server answers only to names that no foreign web page can take (see `refuse_rebinding`); keep it on loopback then. Health,
    /docs and /openapi.json hold nothing of a corpus and are open to all.
    Raises BadSpec for an empty key or one that no header can carry.
    """
    for key in api_keys:
        if not key or not key.isascii() or not key.isprintable() or key != key.strip():
            raise BadSpec("An API key is empty or has characters that no HTTP header carries. Use printable ASCII without spaces.")

    coordinator: Coordinator

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        nonlocal coordinator
        async with running as coordinator, beside(app) if beside else nullcontext():
            yield

    app = FastAPI(
        title="Sondage",
        summary="Distributed, multi-layer retrieval whose scores mean something.",
        version="1",
        lifespan=lifespan,
        openapi_tags=[{"name": "search"}, {"name": "health"}],
        redoc_url=None,
    )
    keys = tuple(key.encode() for key in api_keys)
    guard = Depends(_guard(keys))
    failures: dict[int | str, Any] = {"default": {"model": ProblemAnswer, "description": "What is wrong, and the remedy."}}

    @app.post(
        "/v1/search",
        tags=["search"],
        dependencies=[guard],
        responses={200: {"model": SearchAnswer}, **failures},
        # The body is read by hand, for its limit and for exact places of errors, so its schema is stated by hand.
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": SearchRequest.model_json_schema(), "examples": EXAMPLES}},
            }
        },
    )
    async def search(request: Request) -> Response:
        """Search one corpus in many layers. Every hit says where it is, which layers found it, and how surprising that is."""
        begun = time.perf_counter()
        asked = validated(decode(await read_body(request)))
        return await _search(request, asked, begun)

    async def search_at_once(request: Request) -> Response:
        admit(keys, request, key_given(request))
        return await search(request)

    # FastAPI resolves a guard's dependencies anew for each request, which took as long as the rest of the way in. This path has no
    # parameters, so what is asked most goes straight to it; the route above is what /openapi.json shows.
    app.router.routes.insert(0, Route("/v1/search", search_at_once, methods=["POST"]))

    @app.get("/v1/search", tags=["search"], dependencies=[guard], responses={200: {"model": SearchAnswer}, **failures})
    async def search_by_link(request: Request, parameters: Annotated[SearchParameters, Query()]) -> Response:
        """The same as POST for a search that fits into a link."""
        return await _search(request, parameters.request(), time.perf_counter())

    async def _search(request: Request, asked: SearchRequest, begun: float) -> Response:
        parsed = time.perf_counter()
        answer = await until_gone(request, coordinator.search(asked))
        answered = time.perf_counter()
        content = answer.model_dump_json().encode()
        now = time.perf_counter()
        steps = {"parse": parsed - begun, "write": now - answered, "http": now - begun}
        timings = answer.timings_ms | {name: 1e3 * seconds for name, seconds in steps.items()}
        return Response(content, media_type="application/json", headers={"Server-Timing": server_timing(timings)})

    @app.get("/v1/status", tags=["search"], dependencies=[guard], responses=failures)
    async def status(request: Request) -> Response:
        """Corpora with their generation, size, shards and layers; hosts with what they hold."""
        content = to_json(await until_gone(request, coordinator.status()), inf_nan_mode="null")
        return Response(content, media_type="application/json")

    @app.get("/v1/documents/{hash}", tags=["search"], dependencies=[guard], responses={200: {"model": DocumentAnswer}, **failures})
    async def document(
        request: Request,
        hash: Annotated[str, Path(pattern="^[0-9a-f]{40}$", description="content hash of a hit, 40 hex digits")],
        corpus: Annotated[str, Query(min_length=1, max_length=128)],
        start: Annotated[int | None, Query(ge=0, lt=2**63, description="first byte of the rendition")] = None,
        end: Annotated[int | None, Query(ge=0, lt=2**63, description="byte after the last")] = None,
    ) -> Response:
        """A document's text, or the piece [start, end) of it, with all entries where it lies."""
        if start is not None and end is not None and end < start:
            raise InvalidRequest(f"end: {end} lies before start, {start}.", at="end")
        found = await until_gone(request, coordinator.document(corpus, hash, start, end))
        answer = DocumentAnswer.model_validate({"corpus": corpus, "hash": hash, **found})
        return Response(answer.model_dump_json().encode(), media_type="application/json")

    @app.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """200 while the process answers."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["health"])
    async def readyz() -> Response:
        """200 when searches can be answered, else 503 with the reason."""
        ready, reason = await coordinator.ready()
        return Response(to_json({"ready": ready, "reason": reason}), 200 if ready else 503, media_type="application/json")

    _answer_errors(app)
    return app


# --- requests ----------------------------------------------------------------------------------------------------------------


async def read_body(request: Request) -> bytes:
    """The body, at most MAX_BODY_BYTES. Raises TooLarge, TooSlow."""
    declared = request.headers.get("content-length", "")
    limit = f"{MAX_BODY_BYTES:,} bytes"
    if declared.isdecimal() and int(declared) > MAX_DRAINED_BYTES:
        raise TooLarge(f"The body has {int(declared):,} bytes; at most {limit} are read. Shorten the query or the filter.")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size <= MAX_BODY_BYTES:
                    parts.append(part)
                elif size > MAX_DRAINED_BYTES:
                    break
    except TimeoutError:
        raise TooSlow(f"The body did not arrive within {BODY_TIMEOUT_S:.0f} s; {size:,} bytes did. Send it again.") from None
    if size > MAX_BODY_BYTES:
        raise TooLarge(f"The body is larger than {limit}. Shorten the query or the filter.")
    return b"".join(parts)


def decode(body: bytes, what: str = "body") -> Any:
    """JSON as values. Stricter than Python's own: no NaN, no lone surrogates, no deep nesting. Raises BadRequest with the place."""
    if not body.strip():
        raise BadRequest(f'The {what} is empty; expected JSON such as {{"corpus": "stdlib", "query": "parse a date"}}.')
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"The {what} is not JSON: {error}.") from None


async def until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of `work`, which is cancelled as soon as nobody waits for it: the client hung up, or this task was cancelled.

    Raises Cancelled when the client is gone.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        await _hang_up(request)
        gone = True
        task.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        logger.info("path=%s event=client_gone", request.url.path)
        raise Cancelled("The client closed the connection before the answer.") from None
    finally:
        watcher.cancel()


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- who may ask -------------------------------------------------------------------------------------------------------------


def _guard(keys: tuple[bytes, ...]) -> Callable[..., Coroutine[Any, Any, None]]:
    """A dependency that lets requests with one of the keys through, or with no keys those from this machine or network."""
    bearer = HTTPBearer(auto_error=False, description="an API key, where the server has one")
    header = APIKeyHeader(name="X-API-Key", auto_error=False)

    async def guard(
        request: Request,
        authorization: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
        key: Annotated[str | None, Depends(header)],
    ) -> None:
        admit(keys, request, key or (authorization.credentials if authorization else ""))

    return guard


def admit(keys: tuple[bytes, ...], request: Request, given: str) -> None:
    """Lets a request with one of the keys through, or with no keys one from this machine or network. Raises Unauthorized, Forbidden."""
    if not keys:
        refuse_rebinding(request.headers.get("host", ""))
        return
    if not given:
        raise Unauthorized("This server wants an API key: send it as `Authorization: Bearer KEY` or as `X-API-Key: KEY`.")
    # Every key is compared, each in constant time, so that timing tells neither which one nor how much of it was right.
    if not any([hmac.compare_digest(given.encode("utf-8", "replace"), k) for k in keys]):
        raise Unauthorized("The API key is not one of this server's. Check it for cut or added characters.")


def key_given(request: Request) -> str:
    """The API key of a request, "" without one; as FastAPI's HTTPBearer and APIKeyHeader find it."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    return request.headers.get("x-api-key") or (credentials.strip() if scheme.lower() == "bearer" else "")


def refuse_rebinding(host: str) -> None:
    """Without API keys, only addresses and names without a dot may stand in the Host header. Raises Forbidden.

    A web page elsewhere can let its own domain point to 127.0.0.1 and then read what a browser on this machine may read (DNS
    rebinding). Its requests bear that domain, which has a dot and is no address.
    """
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    name = name.strip("[]").rstrip(".")
    if "." not in name or name.endswith(".localhost"):
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise Forbidden(
            f"Without an API key this server does not answer to the name {name!r}, which a foreign web page could have chosen. "
            "Ask it by its address, or start it with an API key."
        ) from None


# --- answers -----------------------------------------------------------------------------------------------------------------


def problem(status: int, kind: str, message: str, at: str | None = None, headers: Mapping[str, str] | None = None) -> Response:
    """An error as an HTTP response."""
    body = ProblemAnswer(error=Problem(kind=kind, message=message, at=at))
    return Response(to_json(body, exclude_none=True), status, headers, media_type="application/json")


def problem_of(error: SondageError) -> Response:
    """A SondageError as an HTTP response, with its own status."""
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return problem(error.status, kind_of(type(error)), str(error), error.at, headers)


def server_timing(timings_ms: dict[str, float]) -> str:
    """A Server-Timing header (W3C Server Timing): names are tokens, durations milliseconds."""
    return ", ".join(f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)};dur={ms:.2f}" for name, ms in timings_ms.items())


def _answer_errors(app: FastAPI) -> None:
    """Every error, the framework's included, as `ProblemAnswer`."""

    async def known(_request: Request, error: Exception) -> Response:
        assert isinstance(error, SondageError)
        if error.status >= 500:
            logger.warning("event=failed kind=%s reason=%s", type(error).__name__, error)
        return problem_of(error)

    async def invalid_parameters(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        # FastAPI says where a parameter comes from first ("query", "path"): the name alone is clearer.
        errors = [{**e, "loc": e["loc"][1:]} for e in error.errors()]
        return problem_of(invalid(errors, SearchParameters))

    async def not_routed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known_paths = ", ".join(f"{' '.join(sorted(m))} {path}" for path, m in _routes(app).items())
        message = {
            404: f"There is nothing at {request.url.path}. There are: {known_paths}.",
            405: f"{request.url.path} does not take {request.method}. There are: {known_paths}.",
        }.get(error.status_code, str(error.detail))
        return problem(error.status_code, "not_found" if error.status_code == 404 else "bad_request", message, None, error.headers)

    app.add_exception_handler(SondageError, known)
    app.add_exception_handler(RequestValidationError, invalid_parameters)
    app.add_exception_handler(HTTPException, not_routed)
    app.add_middleware(LastResort)


def _routes(app: FastAPI) -> dict[str, set[str]]:
    """The public paths with their methods, from the application itself."""
    found: dict[str, set[str]] = {}
    for path, methods in app.openapi()["paths"].items():
        found.setdefault(path, set()).update(method.upper() for method in methods)
    return found


class LastResort:
    """Answers 500 to whatever nobody foresaw: logged in full under an id, of which the client learns only the id.

    Around the application rather than as its handler for Exception, after which Starlette raises the error once more.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception:
            if scope["type"] != "http" or started:
                raise
            number = secrets.token_hex(6)
            logger.exception("event=unexpected_error id=%s method=%s path=%s", number, scope["method"], scope["path"])
            message = f"This should not have happened. The server's log has the details under {number}; please report them."
            await problem(500, "internal", message)(scope, receive, send)
