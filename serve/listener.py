"""A socket of our own in the process that runs the application, in its event loop: nothing between client and coordinator.

Ray Serve's proxy costs 1.5 to 3 ms of CPU a request (its Python, and the way to the replica), more than most answers. The application
itself has all that a proxy must not let through: API keys, foreign names, limits of body and time.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.connections import options
from shards.errors import StoreError

logger = logging.getLogger(__name__)

DRAIN_S = 1.0  # a client that asks again within this time is told to close its connection, rather than finding it closed


class CannotListen(StoreError):
    """The address is taken, or is not this machine's."""


class _Front:
    """The application, each of whose requests is told of; once it drains, every answer asks its client for a new connection."""

    def __init__(self, app: ASGIApp, tell: Callable[[str], None]):
        self.app, self.tell = app, tell
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, status = time.perf_counter(), "CANCELLED"

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.draining:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            self.tell(f"{scope['method']} {scope['path']} {status} {1000 * (time.perf_counter() - begun):.1f}ms")


class _Server(uvicorn.Server):
    def capture_signals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # type: ignore[return-value]  # the process belongs to Ray


def shared_socket(host: str, port: int) -> socket.socket:
    """A bound TCP socket that lets a successor bind to the same address before this one is closed. Raises CannotListen."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CannotListen(f"Cannot listen on {host}:{port}: {error.strerror}. Choose another with --host and --port.") from None
    return listener


@asynccontextmanager
async def listening(
    app: ASGIApp, host: str, port: int, tell: Callable[[str], None] = logger.debug, tls: tuple[Path, Path] | None = None
) -> AsyncIterator[None]:
    """`app`, whose lifespan is somebody else's business, answers at the address. tell: given a line for each request, as in Serve's
    access log: method, path, status, time. tls: certificate and key. Raises CannotListen, BadSpec for files that are no such.

    At the end new connections go to whoever else listens there (with SO_REUSEPORT the kernel shares them out), and those there are
    go on for DRAIN_S, so that replacing one process by another costs no request.
    """
    front = _Front(app, tell)
    config = uvicorn.Config(
        front, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=8, **options(tls)
    )
    server = _Server(config)
    serving = asyncio.get_running_loop().create_task(server.serve([shared_socket(host, port)]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if serving.done():
        serving.result()
    logger.info("host=%s port=%d event=listening", host, port)
    try:
        yield
    finally:
        front.draining = True
        for listener in server.servers:
            listener.close()
        ends = asyncio.get_running_loop().time() + DRAIN_S
        while server.server_state.connections and asyncio.get_running_loop().time() < ends:
            await asyncio.sleep(0.02)
        server.should_exit = True
        await asyncio.wait([serving])
