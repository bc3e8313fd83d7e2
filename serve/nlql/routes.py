"""Queries of NLQL over HTTP: POST /v1/query, and GET /v1/nlql/schema for who writes trees (language models among them)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from starlette.responses import StreamingResponse

from serve.bodies import decode, read_body, until_gone
from serve.edge import Edge
from serve.laps import server_timing
from serve.models_named import check_reranker
from serve.nlql.outcome import MANY_ROWS, Outcome, rows_json
from serve.nlql.schema import QueryAnswer, QueryRequest, Row, query_request
from serve.openapi import in_place
from serve.problem_answers import problem_of
from serve.schema import ProblemAnswer
from shards.errors import SondageError

if TYPE_CHECKING:
    from serve.coordinator import Coordinator
    from serve.guard import Guard
    from serve.metrics import Metrics

LINES = "application/x-ndjson"
PORTION = 128  # rows that are written at once: a millisecond, and some ten kilobytes

EXAMPLES = {
    "the best sentences": {
        "value": {
            "corpus": "notes",
            "text": 'SELECT SENTENCE LET rel = SIMILARITY(content, "AI agents") WHERE rel >= 0.3 AND meta.status == "published" LIMIT 5',
        }
    },
    "with a parameter, and facets": {
        "value": {
            "corpus": "notes",
            "text": "SELECT DOCUMENT WHERE meta.year >= :since ORDER BY meta.year DESC LIMIT 10 COUNT BY meta.topic",
            "params": {"since": 2024},
        }
    },
    "a tree, and its plan alone": {
        "value": {
            "corpus": "notes",
            "ir": {
                "select": {"unit": "document"},
                "where": {
                    "node": "compare",
                    "op": "==",
                    "left": {"node": "path", "root": "meta", "segments": ["status"]},
                    "right": {"node": "literal", "value": "published"},
                },
            },
            "explain": True,
        }
    },
}


def add_query_routes(
    app: FastAPI,
    coordinator_of: "Callable[[], Coordinator]",
    guard: "Guard",
    metrics: "Metrics",
    failures: dict[int | str, Any],
    own: str | None = None,
) -> None:
    """The routes, on an application. coordinator_of: who answers, once the application has started. failures: what errors look like. own:
    a reranking model that may be a folder."""
    reading = [Depends(guard.needs("read"))]
    line = {"oneOf": [_line("row", Row), _line("end", QueryAnswer), in_place(ProblemAnswer.model_json_schema())]}

    @app.post(
        "/v1/query",
        tags=["search"],
        dependencies=reading,
        responses={
            200: {
                "model": QueryAnswer,
                "content": {LINES: {"schema": line}},
                "description": 'Rows in order. As lines where Accept wants them: {"row": …} each, and at last {"end": …}, or {"error": …}.',
            },
            **failures,
        },
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": in_place(QueryRequest.model_json_schema()), "examples": EXAMPLES}},
            }
        },
    )
    async def query(request: Request) -> Response:
        """Ask one corpus in NLQL, by text or tree. EXPLAIN before the text, or `explain`, gives the plan; errors say where in the text."""
        from serve.nlql.execute import run

        begun = time.perf_counter()
        asked, limits = guard.weigh_query(request, query_request(decode(await read_body(request))))
        check_reranker(asked.reranker, own)
        parsed = time.perf_counter()
        outcome = await until_gone(request, run(coordinator_of(), asked, limits=limits))
        guard.owe(request, outcome.n_searches)
        answered = time.perf_counter()
        as_lines = LINES in request.headers.get("accept", "")
        content = b"" if as_lines else await _written(outcome)
        now = time.perf_counter()
        steps = {"read": parsed - begun, "write": now - answered, "http": now - begun}
        timings = outcome.timings_ms | {name: 1e3 * seconds for name, seconds in steps.items()}
        metrics.queried(outcome.corpus, outcome.complete, timings)
        headers = {"Server-Timing": server_timing(timings)}
        if as_lines:
            return StreamingResponse(_lines(outcome), headers=headers, media_type=LINES)
        return Response(content, headers=headers, media_type="application/json")

    @app.get("/v1/nlql/schema", tags=["search"], dependencies=reading, responses=failures)
    async def schema(
        request: Request,
        corpus: Annotated[str | None, Query(min_length=1, max_length=128, description="whose layers say which scores there are")] = None,
        strict: Annotated[bool, Query(description="plain NLQL alone")] = False,
    ) -> dict[str, Any]:
        """What a query as a tree may look like: `schema` (JSON Schema), the same as a `tool` for language models, and the `functions`."""
        from serve.nlql.execute import schema_of

        if corpus is not None:
            guard.sees(request, corpus)
        return await schema_of(coordinator_of(), corpus, strict)


def _line(name: str, kind: type[Edge]) -> dict[str, Any]:
    """What a line may be: an object of one field."""
    fields = {name: in_place(kind.model_json_schema())}
    return {"type": "object", "properties": fields, "required": [name], "additionalProperties": False}


async def _written(outcome: Outcome) -> bytes:
    return await asyncio.to_thread(outcome.json) if len(outcome.rows) > MANY_ROWS else outcome.json()


async def _lines(outcome: Outcome) -> AsyncIterator[bytes]:
    rows = iter(outcome.rows)
    try:
        while portion := list(islice(rows, PORTION)):
            yield rows_json(portion, b"", b'{"row":', b"}\n")
    except SondageError as error:  # a text that cannot be read any more; the status has been sent
        yield bytes(problem_of(error).body) + b"\n"
        return
    yield b'{"end":' + outcome.answer(with_rows=False).model_dump_json().encode() + b"}\n"
