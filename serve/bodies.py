"""What comes in with a request: its body, read within limits, as JSON, and whether the client still waits."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import from_json

from serve.problems import BadRequest, TooLarge, TooSlow
from shards.errors import Cancelled

if TYPE_CHECKING:
    from fastapi import Request  # an engine in this process reads bodies, too, and has no use for the rest

logger = logging.getLogger(__name__)
T = TypeVar("T")

MAX_BODY_BYTES = 1 << 20  # a query has 8,192 characters; the rest is room for large filters
MAX_DRAINED_BYTES = 16 << 20  # read and thrown away before a 413, since many clients only listen when they have sent everything
BODY_TIMEOUT_S = 30.0  # a client that sends slower than 34 kB/s holds a connection, not work


async def read_body(
    request: "Request", most: int = MAX_BODY_BYTES, remedy: str = "Shorten the query or the filter.", timeout_s: float = BODY_TIMEOUT_S
) -> bytes:
    """The body, at most `most` bytes. remedy: told where it has more. Raises TooLarge, TooSlow."""
    declared = request.headers.get("content-length", "")
    limit = f"{most:,} bytes"
    if declared.isdecimal() and int(declared) > max(most, MAX_DRAINED_BYTES):
        raise TooLarge(f"The body has {int(declared):,} bytes; at most {limit} are read. {remedy}")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    parts.append(part)
                elif size > max(most, MAX_DRAINED_BYTES):
                    break
    except TimeoutError:
        raise TooSlow(f"The body did not arrive within {timeout_s:.0f} s; {size:,} bytes did. Send it again.") from None
    if size > most:
        raise TooLarge(f"The body is larger than {limit}. {remedy}")
    return b"".join(parts)


def decode(body: bytes, what: str = "body") -> Any:
    """JSON as values. Stricter than Python's own: no NaN, no lone surrogates, no deep nesting. Raises BadRequest with the place."""
    if not body.strip():
        raise BadRequest(f'The {what} is empty; expected JSON such as {{"corpus": "stdlib", "query": "parse a date"}}.')
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"The {what} is not JSON: {error}.") from None


async def until_gone(request: "Request", work: Coroutine[Any, Any, T]) -> T:
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


async def _hang_up(request: "Request") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
