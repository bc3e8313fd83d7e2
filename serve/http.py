"""The HTTP interface over a coordinator: the same application under uvicorn alone and under Ray Serve."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from pydantic_core import to_json
from starlette.responses import StreamingResponse
from starlette.routing import Route

from serve.anytime.streaming import as_stream, streamed, wanted_form
from serve.audit import AuditLog, AuditSettings
from serve.bodies import decode, read_body, until_gone
from serve.corpora import Openings, add_opening_routes
from serve.documents import add_routes
from serve.exposition import CONTENT_TYPE, exposition
from serve.feedback_schema import TermsAnswer, TermsRequest
from serve.gauges import families_of
from serve.guard import Guard
from serve.intake import model_of
from serve.keys import Key, KeyRing, as_keys, visible_status
from serve.laps import server_timing
from serve.layer_routes import add_layer_routes
from serve.limits import Limits
from serve.links import SearchParameters, request_of
from serve.metrics import Counted, Metrics
from serve.models_named import check_models
from serve.nlql.routes import add_query_routes
from serve.openapi import in_place
from serve.problem_answers import Envelope, answer_errors, trail_of
from serve.problems import InvalidRequest, validated
from serve.schema import DocumentAnswer, ProblemAnswer, Ready, SearchAnswer, SearchRequest, StatusAnswer
from serve.status import with_latencies
from serve.writing import as_json
from shards.errors import StoreError
from shards.images import media_type

if TYPE_CHECKING:
    from serve.building import Building
    from serve.coordinator import Coordinator
    from serve.pushing import Pushes

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

TEXT, BYTES = {"type": "string"}, {"type": "string", "format": "binary"}  # answers that are no JSON


def create_app(
    running: "AbstractAsyncContextManager[Coordinator]",
    api_keys: "Sequence[str | Key] | KeyRing" = (),
    beside: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
    pushing: "Callable[[Coordinator], AbstractAsyncContextManager[Pushes]] | None" = None,
    *,
    opening: "Callable[[Coordinator], AbstractAsyncContextManager[Openings]] | None" = None,
    limits: Limits | None = None,
    audit: AuditSettings | None = None,
    reranker: str | None = None,
    building: "Callable[[Coordinator], AbstractAsyncContextManager[Building]] | None" = None,
) -> FastAPI:
    """The application.

    running: gives a started coordinator (such as `serve.local.local_coordinator`); entered when the application starts, left
    when it ends. beside: entered with the application once it can answer, left before the coordinator (`serve.listener`).
    pushing: gives who takes documents for the coordinator's corpora (`serve.pushing`); without it nothing can be pushed.
    opening: gives who opens corpora that requests name (`serve.corpora`); without it none are.
    api_keys: one of these is required of every request but for health and the interface's own description (/docs, /openapi.json), which
    hold nothing of a corpus; as `Authorization: Bearer KEY` or `X-API-Key: KEY`. A text is a key that may do everything. With none, the
    server answers only to names that no foreign web page can take (see `serve.guard.refuse_rebinding`); keep it on loopback then.
    limits: of each key, as far as it has none of its own. audit: where every request is told of. reranker: a model that requests may name
    although it is a folder here, since it is this server's own. building: counts what answers show, and has spaces built where they are
    used (`serve.building`); without it neither is done here.
    Raises BadSpec for a key in the clear that is empty or that no header can carry, for two of one ID, and for an audit log that cannot
    be written.
    """
    ring = api_keys if isinstance(api_keys, KeyRing) else KeyRing(as_keys(api_keys), limits or Limits())
    guard = Guard(ring)
    reading, measuring = ([Depends(guard.needs("read", all_corpora=every))] for every in (False, True))

    coordinator: Coordinator
    pushes: Pushes | None = None
    openings: Openings | None = None
    metrics = Metrics()
    audit_log = AuditLog(audit) if audit else None

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        nonlocal coordinator, pushes, openings
        with audit_log or nullcontext():
            async with (
                running as coordinator,
                pushing(coordinator) if pushing else nullcontext() as pushes,
                opening(coordinator) if opening else nullcontext() as openings,
                building(coordinator) if building else nullcontext(),
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
    failures: dict[int | str, Any] = {"default": {"model": ProblemAnswer, "description": "What is wrong, and the remedy."}}

    @app.post(
        "/v1/search",
        tags=["search"],
        dependencies=reading,
        responses={200: {"model": SearchAnswer, **streamed(SearchAnswer)}, **failures},
        # The body is read by hand, for its limit and for exact places of errors, so its schema is stated by hand.
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": in_place(SearchRequest.model_json_schema()), "examples": EXAMPLES}},
            }
        },
    )
    async def search(request: Request) -> Response:
        """Search one corpus in many layers. Every hit says where it is, which layers found it, and how surprising that is."""
        begun = time.perf_counter()
        asked = validated(decode(await read_body(request)))
        return await _search(request, asked, begun)  # as a stream, where Accept wants one

    async def search_at_once(request: Request) -> Response:
        guard.admit(request, "read")
        return await search(request)

    @app.get("/v1/search", tags=["search"], dependencies=reading, responses={200: {"model": SearchAnswer}, **failures})
    async def search_by_link(request: Request, parameters: Annotated[SearchParameters, Query()]) -> Response:
        """The same as POST for a search that fits into a link."""
        return await _search(request, parameters.request(), time.perf_counter())

    async def link_at_once(request: Request) -> Response:
        begun = time.perf_counter()
        guard.admit(request, "read")
        return await _search(request, request_of(request.query_params.multi_items()), begun)

    # FastAPI resolves a guard's dependencies anew for each request, which took as long as the rest of the way in. So what is asked most
    # goes straight to it; the routes above are what /openapi.json shows.
    app.router.routes.insert(0, Route("/v1/search", search_at_once, methods=["POST"]))
    app.router.routes.insert(0, Route("/v1/search", link_at_once, methods=["GET"]))

    async def _search(request: Request, asked: SearchRequest, begun: float) -> Response:
        asked = guard.weigh(request, asked)
        check_models(asked, reranker)
        parsed = time.perf_counter()
        if (form := wanted_form(request.headers.get("accept", ""))) is not None:
            answers = coordinator.search_stream(asked)
            first = await until_gone(request, anext(answers))  # what is wrong with the request is an error with its status
            return StreamingResponse(as_stream(first, answers, form, noted), media_type=form)
        answer = await until_gone(request, coordinator.search(asked))
        answered = time.perf_counter()
        content = await as_json(answer)
        now = time.perf_counter()
        steps = {"parse": parsed - begun, "write": now - answered, "http": now - begun}
        timings = answer.timings_ms | {name: 1e3 * seconds for name, seconds in steps.items()}
        metrics.answered(answer, timings)
        return Response(content, media_type="application/json", headers={"Server-Timing": server_timing(timings)})

    def noted(answer: SearchAnswer) -> None:
        metrics.answered(answer, answer.timings_ms)

    @app.get("/v1/status", tags=["search"], dependencies=reading, responses={200: {"model": StatusAnswer}, **failures})
    async def status(request: Request) -> Response:
        """Corpora with their generation, size, shards, replicas and layers; hosts with what they hold; what was counted here."""
        state = with_latencies(await until_gone(request, told()), metrics.lately()) | {"service": metrics.status()}
        if (caller := trail_of(request).caller) is not None:
            state = visible_status(state, caller)
        return Response(to_json(state, inf_nan_mode="null"), media_type="application/json")

    async def told() -> dict[str, Any]:
        state = await coordinator.status() | {"ready": (await coordinator.ready())[0]}
        if pushes is None:
            return state
        logs = {f"the log of {corpus}": reason for corpus, reason in pushes.problems.items()}
        return state | {"pushes": pushes.status(), "problems": state.get("problems", {}) | logs}

    @app.get(
        "/metrics",
        tags=["health"],
        dependencies=measuring,
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": TEXT}}, "description": "Prometheus text format 0.0.4."}, **failures},
    )
    async def measured(request: Request) -> Response:
        """The same, and latencies since the start, for Prometheus. Of several coordinators each tells of itself, labelled by its name."""
        state = await until_gone(request, told())
        families = [*metrics.families(), *families_of(state)]
        text = await asyncio.to_thread(exposition, families, {"coordinator": metrics.name})  # milliseconds where there are many layers
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    @app.get("/v1/documents/{hash}", tags=["search"], dependencies=reading, responses={200: {"model": DocumentAnswer}, **failures})
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
        guard.sees(request, corpus)
        found = await until_gone(request, coordinator.document(corpus, hash, start, end, generation))
        answer = DocumentAnswer.model_validate({"corpus": corpus, "hash": hash, **found})
        return Response(answer.model_dump_json().encode(), media_type="application/json")

    @app.get(
        "/v1/documents/{hash}/media",
        tags=["search"],
        dependencies=reading,
        response_class=Response,
        responses={200: {"content": {"image/*": {"schema": BYTES}}, "description": "The image, as a file."}, **failures},
    )
    async def media(
        request: Request,
        hash: Annotated[str, Path(pattern="^[0-9a-f]{40}$", description="content hash of a hit that is an image")],
        corpus: Annotated[str, Query(min_length=1, max_length=128)],
        generation: Annotated[int | None, Query(ge=1, lt=10**16, description="a kept generation; none: the newest")] = None,
    ) -> Response:
        """The image that a document is: the file itself, or of a large one a reduced JPEG."""
        guard.sees(request, corpus)
        data = await until_gone(request, coordinator.media(corpus, hash, generation))
        return Response(data, media_type=media_type(data) or "application/octet-stream")

    @app.post(
        "/v1/suggest_terms",
        tags=["search"],
        dependencies=reading,
        responses={200: {"model": TermsAnswer}, **failures},
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": in_place(TermsRequest.model_json_schema())}}}
        },
    )
    async def suggest_terms(request: Request) -> Response:
        """The terms that set spans, or what a query finds, apart from the corpus: its own words for what is meant."""
        asked = model_of(TermsRequest, decode(await read_body(request)))
        allowed = guard.weigh(request, SearchRequest(**asked.model_dump(include={"corpus", "query", "budget_ms"}, exclude_unset=True)))
        asked = asked.model_copy(update={"budget_ms": allowed.budget_ms})
        answer = await until_gone(request, coordinator.suggest_terms(asked))
        return Response(answer.model_dump_json(), media_type="application/json")

    def taking() -> "Pushes":
        if pushes is None:
            raise StoreError("This server takes no documents. Push them to one that was started by `sondage serve` or `sondage deploy`.")
        return pushes

    add_routes(app, taking, guard, tags=["push"], responses=failures)
    add_opening_routes(app, lambda: openings, guard, tags=["push"], responses=failures)
    add_query_routes(app, lambda: coordinator, guard, metrics, failures, reranker)
    add_layer_routes(app, lambda: coordinator, guard, tags=["layers"], responses=failures)

    @app.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """200 while the process answers."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["health"], responses={200: {"model": Ready}, 503: {"model": Ready, "description": "Not now."}})
    async def readyz(request: Request) -> Response:
        """200 when searches can be answered, else 503; with the reason for who has a key, or asks from this machine."""
        ready, reason = await coordinator.ready()
        reason = reason if guard.knows(request) else ""
        return Response(to_json({"ready": ready, "reason": reason}), 200 if ready else 503, media_type="application/json")

    answer_errors(app)
    app.add_middleware(Envelope, audit=audit_log)
    app.add_middleware(Counted, metrics=metrics)  # outside, for it counts the 500s of the other
    return app
