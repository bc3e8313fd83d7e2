"""Every error as an HTTP answer of one shape, and around the application what each answer has whatever happens inside.

Around: a number by which answer, log and audit line find one another; headers against misuse in browsers; 500 for what nobody foresaw.
"""

import logging
import math
import re
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.audit import Trail
from serve.problems import invalid, kind_of
from serve.push_schema import BulkParameters
from serve.schema import Problem, ProblemAnswer
from shards.errors import NoCorpus, SondageError
from shards.nlql.errors import NLQLError

if TYPE_CHECKING:
    from serve.audit import AuditLog

logger = logging.getLogger(__name__)

TRAIL = "sondage.trail"  # where an ASGI scope has the request's `Trail`
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")  # of a client that numbers its requests itself

# Answers hold what their reader may see, so nobody between keeps them; none is what a page may frame, or run as one of its own.
GUARDED = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]
NOTHING_RUNS = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox")
SECURE_ONLY = (b"strict-transport-security", b"max-age=31536000")  # a browser that was here by TLS comes back by TLS
UNTOLD = ("/healthz", "/readyz")  # asked by probes every few seconds; they say nothing of a corpus
PAGE = "/docs"  # which fetches its scripts and runs them


def problem(status: int, kind: str, message: str, at: str | None = None, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """An error as an HTTP response. more: further fields of `Problem`."""
    body = ProblemAnswer(error=Problem(kind=kind, message=message, at=at, **more))
    return Response(to_json(body, exclude_none=True), status, headers, media_type="application/json")


def problem_of(error: SondageError) -> Response:
    """A SondageError as an HTTP response, with its own status."""
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, NLQLError):
        return problem(error.status, error.kind, error.message, error.at, headers, **placed(error))
    return problem(error.status, kind_of(type(error)), str(error), error.at, headers)


def placed(error: NLQLError) -> dict[str, Any]:
    """What an answer says of an error in a query beside what it says of all."""
    shown = error.pretty(error.text).removeprefix(str(error)).strip("\n")
    return {
        "category": error.category,
        "line": error.line,
        "column": error.column,
        "expected": list(error.expected) or None,
        "caret": shown or None,
    }


def trail_of(request: Request) -> Trail:
    """What is noted of a request."""
    trail: Trail = request.scope[TRAIL]
    return trail


def answer_errors(app: FastAPI) -> None:
    """Every error, the framework's included, as `ProblemAnswer`."""

    async def known(request: Request, error: Exception) -> Response:
        assert isinstance(error, SondageError)
        if error.status >= 500:
            logger.warning("event=failed id=%s kind=%s reason=%s", trail_of(request).id, type(error).__name__, error)
        caller = trail_of(request).caller
        if isinstance(error, NoCorpus) and caller is not None and not caller.sees_all:
            return problem_of(caller.no_corpus(error.corpus))  # which others there are is not this key's to know
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


def _routes(app: FastAPI) -> dict[str, set[str]]:
    """The public paths with their methods, from the application itself."""
    found: dict[str, set[str]] = {}
    for path, methods in app.openapi()["paths"].items():
        found.setdefault(path, set()).update(method.upper() for method in methods)
    return found


class Envelope:
    """Around the application: numbers each request, lets its caller's place go, tells the audit log, and answers 500 to whatever nobody
    foresaw: logged in full under the number, of which alone the client learns.

    Around the application rather than as its handler for Exception, after which Starlette raises the error once more.
    """

    def __init__(self, app: ASGIApp, audit: "AuditLog | None" = None):
        self.app, self.audit = app, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        headers = dict(scope["headers"])
        sent = headers.get(b"x-request-id")
        number = secrets.token_hex(8) if sent is None or not REQUEST_ID.fullmatch(sent) else sent.decode()
        trail = scope[TRAIL] = Trail(number, headers)
        status = size = 0

        async def watched(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_headers(scope), (b"x-request-id", number.encode())]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception:
            if status:
                raise
            logger.exception("event=unexpected_error id=%s method=%s path=%r", number, scope["method"], scope["path"])
            message = f"This should not have happened. The server's log has the details under {number}; please report them."
            await problem(500, "internal", message)(scope, receive, watched)
        finally:
            if trail.caller is not None:
                trail.caller.end()
            if self.audit is not None and scope["path"] not in UNTOLD:
                self.audit.tell(trail, scope, status, time.perf_counter() - begun, size, time.time())


def _headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    headers = GUARDED if scope["path"].startswith(PAGE) else _STRICT
    return [*headers, SECURE_ONLY] if scope["scheme"] == "https" else headers


_STRICT = [*GUARDED, NOTHING_RUNS]
