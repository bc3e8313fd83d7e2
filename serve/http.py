"""The HTTP interface over a coordinator: the same application under uvicorn alone and under Ray Serve."""

import hmac
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.bodies import decode, read_body, until_gone
from serve.documents import add_routes
from serve.links import SearchParameters, request_of
from serve.problems import Forbidden, InvalidRequest, Unauthorized, invalid, kind_of, validated
from serve.push_schema import BulkParameters
from serve.schema import DocumentAnswer, Problem, ProblemAnswer, SearchAnswer, SearchRequest
from shards.errors import BadSpec, SondageError, StoreError
from shards.images import media_type

if TYPE_CHECKING:
    from serve.coordinator import Coordinator
    from serve.pushing import Pushes

logger = logging.getLogger(__name__)

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
    "lists fused by reciprocal ranks": {
        "value": {"corpus": "stdlib", "query": "parse an HTTP date header", "coupling": {"name": "rrf", "k": 60}, "weights": {"bm25": 2}}
    },
    "an error message, and where its symbol is used": {
        "value": {
            "corpus": "stdlib",
            "combine": {
                "bridge": {
                    "from": {"text": "json.decoder.JSONDecodeError: Expecting value"},
                    "key": "symbol",
                    "to": {"search": {"forms": {"symbols": {"name": "$key", "references": True}}}},
                }
            },
        }
    },
    "a filter on metadata": {
        "value": {"corpus": "stdlib", "query": "event loop", "where": {"size_bytes": {"<": 100000}, "not": {"ext": "pyi"}}}
    },
}


def create_app(
    running: "AbstractAsyncContextManager[Coordinator]",
    api_keys: Sequence[str] = (),
    beside: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
    pushing: "Callable[[Coordinator], AbstractAsyncContextManager[Pushes]] | None" = None,
) -> FastAPI:
    """The application.

    running: gives a started coordinator (such as `serve.local.local_coordinator`); entered when the application starts, left
    when it ends. beside: entered with the application once it can answer, left before the coordinator (`serve.listener`).
    pushing: gives who takes documents for the coordinator's corpora (`serve.pushing`); without it nothing can be pushed.
    api_keys: any of these is required of every /v1 request, as `Authorization: Bearer KEY` or `X-API-Key: KEY`. With none, the
    server answers only to names that no foreign web page can take (see `refuse_rebinding`); keep it on loopback then. Health,
    /docs and /openapi.json hold nothing of a corpus and are open to all.
    Raises BadSpec for an empty key or one that no header can carry.
    """
    for key in api_keys:
        if not key or not key.isascii() or not key.isprintable() or key != key.strip():
            raise BadSpec("An API key is empty or has characters that no HTTP header carries. Use printable ASCII without spaces.")

    coordinator: Coordinator
    pushes: Pushes | None = None

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        nonlocal coordinator, pushes
        async with (
            running as coordinator,
            pushing(coordinator) if pushing else nullcontext() as pushes,
            beside(app) if beside else nullcontext(),
        ):
            yield

    app = FastAPI(
        title="Sondage",
        summary="Distributed, multi-layer retrieval whose scores mean something.",
        version="1",
        lifespan=lifespan,
        openapi_tags=[{"name": "search"}, {"name": "push"}, {"name": "health"}],
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
                "content": {"application/json": {"schema": _in_place(SearchRequest.model_json_schema()), "examples": EXAMPLES}},
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

    @app.get("/v1/search", tags=["search"], dependencies=[guard], responses={200: {"model": SearchAnswer}, **failures})
    async def search_by_link(request: Request, parameters: Annotated[SearchParameters, Query()]) -> Response:
        """The same as POST for a search that fits into a link."""
        return await _search(request, parameters.request(), time.perf_counter())

    async def link_at_once(request: Request) -> Response:
        begun = time.perf_counter()
        admit(keys, request, key_given(request))
        return await _search(request, request_of(request.query_params.multi_items()), begun)

    # FastAPI resolves a guard's dependencies anew for each request, which took as long as the rest of the way in. So what is asked most
    # goes straight to it; the routes above are what /openapi.json shows.
    app.router.routes.insert(0, Route("/v1/search", search_at_once, methods=["POST"]))
    app.router.routes.insert(0, Route("/v1/search", link_at_once, methods=["GET"]))

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
        state = await until_gone(request, coordinator.status())
        if pushes is not None and pushes.problems:
            logs = {f"the log of {corpus}": reason for corpus, reason in pushes.problems.items()}
            state = state | {"problems": state.get("problems", {}) | logs}
        return Response(to_json(state, inf_nan_mode="null"), media_type="application/json")

    @app.get("/v1/documents/{hash}", tags=["search"], dependencies=[guard], responses={200: {"model": DocumentAnswer}, **failures})
    async def document(
        request: Request,
        hash: Annotated[str, Path(pattern="^[0-9a-f]{40}$", description="content hash of a hit, 40 hex digits")],
        corpus: Annotated[str, Query(min_length=1, max_length=128)],
        start: Annotated[int | None, Query(ge=0, lt=2**63, description="first byte of the rendition")] = None,
        end: Annotated[int | None, Query(ge=0, lt=2**63, description="byte after the last")] = None,
        generation: Annotated[int | None, Query(ge=1, lt=10**16, description="a kept generation; none: the newest")] = None,
    ) -> Response:
        """A document's text, or the piece [start, end) of it, with all entries where it lies."""
        if start is not None and end is not None and end < start:
            raise InvalidRequest(f"end: {end} lies before start, {start}.", at="end")
        found = await until_gone(request, coordinator.document(corpus, hash, start, end, generation))
        answer = DocumentAnswer.model_validate({"corpus": corpus, "hash": hash, **found})
        return Response(answer.model_dump_json().encode(), media_type="application/json")

    @app.get(
        "/v1/documents/{hash}/media",
        tags=["search"],
        dependencies=[guard],
        response_class=Response,
        responses={200: {"content": {"image/*": {}}, "description": "The image, as a file."}, **failures},
    )
    async def media(
        request: Request,
        hash: Annotated[str, Path(pattern="^[0-9a-f]{40}$", description="content hash of a hit that is an image")],
        corpus: Annotated[str, Query(min_length=1, max_length=128)],
        generation: Annotated[int | None, Query(ge=1, lt=10**16, description="a kept generation; none: the newest")] = None,
    ) -> Response:
        """The image that a document is: the file itself, or of a large one a reduced JPEG."""
        data = await until_gone(request, coordinator.media(corpus, hash, generation))
        # What is not what it says must not run as a page of this server.
        return Response(data, media_type=media_type(data) or "application/octet-stream", headers={"X-Content-Type-Options": "nosniff"})

    def taking() -> "Pushes":
        if pushes is None:
            raise StoreError("This server takes no documents. Push them to one that was started by `sondage serve` or `sondage deploy`.")
        return pushes

    add_routes(app, taking, tags=["push"], dependencies=[guard], responses=failures)

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


def _in_place(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema with its definitions where they are used: inside another document nothing finds them. What holds itself, as the nodes
    of `combine` do, is told once, and named where it comes again."""
    definitions = schema.get("$defs", {})

    def resolved(part: Any, inside: tuple[str, ...]) -> Any:
        if isinstance(part, list):
            return [resolved(item, inside) for item in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            if name in inside:
                return {"type": "object", "description": f"again a {name}, as above"}
            return resolved(definitions[name], (*inside, name))
        return {name: resolved(value, inside) for name, value in part.items() if name != "$defs"}

    return resolved(schema, ())


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
        return problem_of(invalid(errors, BulkParameters))

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
