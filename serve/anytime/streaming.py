"""Answers that grow, over HTTP: as lines of JSON, or as server-sent events.

Each is a whole answer: `{"answer": …}`, and the last one `{"end": …}`; an error that comes after the first is `{"error": …}`. As events
these are the events' names, and what they hold is their data (HTML Living Standard, section 9.2).
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from pydantic import BaseModel

from serve.openapi import in_place
from serve.problem_answers import problem_of
from serve.schema import ProblemAnswer, SearchAnswer
from serve.writing import as_json
from shards.errors import SondageError

Growing = tuple[SearchAnswer, bool]  # an answer, and whether it is the last
LINES, EVENTS = "application/x-ndjson", "text/event-stream"


def wanted_form(accept: str) -> str | None:
    """The form of a stream that a client accepts; None where it wants one answer."""
    return next((form for form in (LINES, EVENTS) if form in accept), None)


def streamed(kind: type[BaseModel]) -> dict[str, Any]:
    """What OpenAPI says of it."""
    answer = in_place(kind.model_json_schema(by_alias=True))
    line = {"oneOf": [*(_line(name, answer) for name in ("answer", "end")), in_place(ProblemAnswer.model_json_schema())]}
    told = (
        "The answer. As a stream where Accept wants one, the first from the cheapest layers, each better than the one before: lines "
        '{"answer": …}, at last {"end": …}, or {"error": …}; or events of these names.'
    )
    return {"content": {LINES: {"schema": line}, EVENTS: {"schema": {"type": "string"}}}, "description": told}


def _line(name: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}


async def as_stream(
    first: Growing, others: AsyncGenerator[Growing, None], form: str, ended: Callable[[SearchAnswer], None]
) -> AsyncIterator[bytes]:
    """The bytes of a stream. first: the first answer, which is there; ended: told the last one. A client that goes ends the search."""
    try:
        answer, is_last = first
        while not is_last:
            yield _piece("answer", await as_json(answer), form)
            answer, is_last = await anext(others)
    except SondageError as error:  # the status has been sent
        yield _piece("error", bytes(problem_of(error).body).removeprefix(b'{"error":').removesuffix(b"}"), form)
        return
    finally:
        await others.aclose()
    ended(answer)
    yield _piece("end", await as_json(answer), form)


def _piece(name: str, data: bytes, form: str) -> bytes:
    if form == EVENTS:
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
    return b'{"' + name.encode() + b'":' + data + b"}\n"
