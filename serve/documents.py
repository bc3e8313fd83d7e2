"""Pushing documents over HTTP: PUT and DELETE of one path, POST of many as lines of JSON.

An answer comes when the operation is durable. Bulk requests are read as they come and never held whole.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote_to_bytes

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from starlette.requests import ClientDisconnect

from serve.bodies import BODY_TIMEOUT_S, decode, read_body, until_gone
from serve.intake import MAX_DOCUMENT_BYTES, Bulk, acknowledge, check_path, content_of, model_of, off_loop, operation
from serve.models_named import check_layers
from serve.problems import BadRequest, Forbidden, InvalidRequest, TooLarge, TooSlow, Unsupported
from serve.push_schema import MAX_ID_CHARS, BulkAnswer, BulkParameters, PushAnswer, PushedDocument, PushLine, PushParameters
from shards.errors import Cancelled, NoCorpus, SondageError
from shards.pushlog import Operation

if TYPE_CHECKING:
    from serve.guard import Guard
    from serve.pushing import Pushes, Target

MAX_LINE_BYTES = MAX_DOCUMENT_BYTES + (1 << 20)  # a document as JSON, which may take more than its bytes, with what is said of it
DOCUMENT_TIMEOUT_S = 300.0  # 64 MiB at 220 kB/s

DOCUMENT_TYPE = "application/vnd.sondage.document+json"
LINES_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
FORM_TYPE = "multipart/form-data"

Corpus = Annotated[str, Path(min_length=1, max_length=128, description="the corpus that is pushed to")]


def add_routes(app: FastAPI, pushes: "Callable[[], Pushes]", guard: "Guard", **common: Any) -> None:
    """The routes, on an application. pushes: who takes documents, once the application has started; common: as for `app.put`."""
    at = "/v1/corpora/{corpus}/documents"
    answers = {"response_model": None, "dependencies": [Depends(guard.needs("write"))], **common}

    async def target_of(request: Request, corpus: str, asked: PushParameters) -> "Target":
        """The corpus that is pushed to. To make one, with layers that cost time and money for ever after, is to administer."""
        caller = guard.sees(request, corpus)
        layers = asked.to_create()
        if layers is None or "admin" in caller.scopes:
            check_layers(layers or ())
            return await pushes().admit(corpus, layers)
        try:
            return await pushes().admit(corpus, None)
        except NoCorpus:
            raise Forbidden(
                f"There is no corpus {corpus!r}, and the API key {caller.id} may make none: this wants the scope admin. Use another, or "
                "have one made: `sondage keys add --scopes write,admin`."
            ) from None

    @app.put(
        at + "/{path:path}",
        **answers | {"responses": {200: {"model": PushAnswer}, **common.get("responses", {})}},
        openapi_extra={
            "parameters": [_header("Sondage-Metadata", "JSON object, ASCII"), _header("Idempotency-Key", "see `id`")],
            "requestBody": {
                "required": True,
                "content": {
                    DOCUMENT_TYPE: {"schema": PushedDocument.model_json_schema()},
                    "*/*": {"schema": {"type": "string", "format": "binary"}},
                },
            },
        },
    )
    async def put(request: Request, corpus: Corpus, asked: Annotated[PushParameters, Query()]) -> Response:
        """Put a document at a path. The body is its text or bytes, whatever its content type says; only
        application/vnd.sondage.document+json is the document as JSON, which may bear metadata and vectors."""
        guard.sees(request, corpus)  # before the body is read
        path = path_of(request)
        kind = _media_type(request)
        if kind == FORM_TYPE:
            raise Unsupported(f"A body of {kind} is a form, not a document. Send the file itself: curl -T FILE, or --data-binary @FILE.")
        remedy = "Split the document."
        if kind == DOCUMENT_TYPE:
            body = await read_body(request, MAX_LINE_BYTES, remedy, DOCUMENT_TIMEOUT_S)
            document = model_of(PushedDocument, await off_loop(body, lambda: decode(body)))
        else:
            body = await read_body(request, MAX_DOCUMENT_BYTES, remedy, DOCUMENT_TIMEOUT_S)
            document = PushedDocument.model_construct(metadata=_metadata_header(request), vectors={}, id="")
        target = await target_of(request, corpus, asked)
        key = _id(request) or document.id

        def made() -> tuple[Operation, list[str]]:
            content = content_of(document) if kind == DOCUMENT_TYPE else body
            is_text = kind == DOCUMENT_TYPE and document.text is not None
            return operation(target, path, content, document.metadata, document.vectors, key, is_text)

        answer = await until_gone(request, acknowledge(pushes(), target, asked, *await off_loop(body, made, path)))
        return Response(answer.model_dump_json(), media_type="application/json")

    @app.delete(at + "/{path:path}", **answers | {"responses": {200: {"model": PushAnswer}, **common.get("responses", {})}})
    async def delete(request: Request, corpus: Corpus, asked: Annotated[PushParameters, Query()]) -> Response:
        """Take away what was pushed to a path. That nothing is there is no error; what other sources brought stays."""
        path = path_of(request)
        target = await target_of(request, corpus, asked)
        emptied = Operation(path, mtime_ns=time.time_ns(), id=_id(request))
        answer = await until_gone(request, acknowledge(pushes(), target, asked, emptied, []))
        return Response(answer.model_dump_json(), media_type="application/json")

    @app.post(
        at,
        **answers | {"responses": {200: {"model": BulkAnswer}, 207: {"model": BulkAnswer}, **common.get("responses", {})}},
        openapi_extra={"requestBody": {"required": True, "content": {LINES_TYPES[0]: {"schema": PushLine.model_json_schema()}}}},
    )
    async def post(request: Request, corpus: Corpus, asked: Annotated[BulkParameters, Query()]) -> Response:
        """Put and delete many documents, one JSON object a line. 200 if all lines were accepted, 207 if some were not."""
        # Also what keeps a foreign web page from pushing to a server on this machine: a browser sends this type to another origin only
        # after asking, and nobody here says yes.
        if (kind := _media_type(request)) not in LINES_TYPES:
            raise Unsupported(f"Content-Type is {kind or 'missing'}; many documents come as {LINES_TYPES[0]}, one JSON object a line.")
        target = await target_of(request, corpus, asked)
        bulk = Bulk(pushes(), target, asked.each)
        try:
            async for number, line in lines(request):
                await bulk.take(number, line)
        except ClientDisconnect:
            raise Cancelled("The client closed the connection before the end.") from None
        finally:
            await bulk.end()  # also where the rest did not come: what is taken is taken
        answer = await until_gone(request, bulk.answer(asked))
        return Response(answer.model_dump_json(), 207 if answer.failed else 200, media_type="application/json")


def path_of(request: Request) -> str:
    """The path in the address, from its own bytes: a framework would turn invalid UTF-8 into other characters. Raises BadRequest."""
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    inside = re.search(rb"/corpora/[^/]+/documents/(.*)", raw, re.DOTALL)
    try:
        return check_path(unquote_to_bytes(inside[1] if inside else b"").decode())
    except UnicodeDecodeError:
        raise BadRequest("The path in the address is not UTF-8. Percent-encode its UTF-8 bytes.", at="path") from None


async def lines(request: Request) -> AsyncIterator[tuple[int, bytes | SondageError]]:
    """The lines of a body with their numbers from 1, as they come; empty ones are left out. For one that is too long, the error.

    Raises TooSlow, ClientDisconnect.
    """
    number, held, size, over = 1, [], 0, False
    parts = aiter(request.stream())
    while True:
        try:
            part = await asyncio.wait_for(anext(parts), BODY_TIMEOUT_S)
        except StopAsyncIteration:
            break
        except TimeoutError:
            raise TooSlow(f"No byte came for {BODY_TIMEOUT_S:.0f} s, in line {number}. Those before are taken; send the rest.") from None
        *complete, rest = part.split(b"\n")
        for piece in complete:
            line = b"".join((*held, piece))
            if over or len(line) > MAX_LINE_BYTES:
                yield number, _too_long()
            elif line.strip():
                yield number, line
            number, held, size, over = number + 1, [], 0, False
        size += len(rest)
        over = over or size > MAX_LINE_BYTES
        held = [] if over else [*held, rest]
    if over:
        yield number, _too_long()
    elif (line := b"".join(held)).strip():
        yield number, line


def _too_long() -> TooLarge:
    return TooLarge(f"The line is longer than {MAX_LINE_BYTES:,} bytes. Split the document.")


def _metadata_header(request: Request) -> dict[str, Any]:
    text = request.headers.get("sondage-metadata")
    if text is None:
        return {}
    value = decode(text.encode("utf-8", "replace"), "header Sondage-Metadata")
    if not isinstance(value, dict):
        raise InvalidRequest('The header Sondage-Metadata is no JSON object. Write {"tool": "grep"}.', at="Sondage-Metadata")
    return value


def _id(request: Request) -> str:
    key = request.headers.get("idempotency-key", "")
    if len(key) > MAX_ID_CHARS:
        raise InvalidRequest(f"The Idempotency-Key has {len(key)} characters; at most {MAX_ID_CHARS} are kept.", at="Idempotency-Key")
    return key


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _header(name: str, what: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": what, "schema": {"type": "string"}}
