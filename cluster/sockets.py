"""Calls between processes of one machine and user over sockets of our own: 0.2 ms of CPU, where a Ray actor call takes 1.0 to 1.3.

A host listens under a random name among Linux's abstract sockets (no file is left behind by a killed process), tells it in
answers to pings, and speaks to processes of its own user only. Frames are a length and a pickle, as Ray's calls are; that is
safe since either side asks the kernel who is at the other end. Hosts on other machines, and on systems without such sockets,
are called through Ray.
"""

import asyncio
import logging
import os
import pickle
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Collection
from typing import Any

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("!Q")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: `struct ucred`
AVAILABLE = hasattr(socket, "SO_PEERCRED")
METHODS = ("search", "rows", "details")  # what is called for each query


class CallFailed(Exception):
    """The other side's code raised. cause: what."""

    def __init__(self, cause: BaseException):
        super().__init__(str(cause))
        self.cause = cause


class SocketServer:
    """Answers calls of `target`'s methods, one thread per connection. `address` is what a `SocketClient` needs.

    Ends with its process.
    """

    def __init__(self, target: Any, methods: Collection[str]):
        self._target, self._methods = target, frozenset(methods)
        self.address = f"sondage-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.address}")
        self._listener.listen()
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if _is_same_user(connection):
                threading.Thread(target=self._serve, args=(connection,), name="calls", daemon=True).start()
            else:
                logger.warning("event=connection_refused reason=another user")
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as requests:
            while len(head := requests.read(_LENGTH.size)) == _LENGTH.size:
                try:
                    method, arguments = pickle.loads(requests.read(*_LENGTH.unpack(head)))
                    answer = self._answer(method, arguments)
                    connection.sendall(_LENGTH.pack(len(answer)) + answer)
                except (OSError, EOFError, pickle.UnpicklingError):  # whoever asked has given up or is gone
                    return

    def _answer(self, method: str, arguments: tuple[Any, ...]) -> bytes:
        try:
            if method not in self._methods:
                raise AttributeError(f"no method {method!r} to call; there are {', '.join(sorted(self._methods))}")
            return pickle.dumps((True, getattr(self._target, method)(*arguments)), 5)
        except Exception as error:  # the caller's to judge, as with Ray
            try:
                return pickle.dumps((False, error), 5)
            except Exception:  # an exception may hold anything
                return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")), 5)


class SocketClient:
    """Calls one `SocketServer`. Belongs to one event loop. A connection carries one call at a time; idle ones are kept."""

    def __init__(self, address: str):
        self.address = address
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, method: str, *arguments: Any) -> Any:
        """What the method returns. Raises CallFailed with what it raised, ConnectionError when the other side is gone.

        Cancelled, it closes its connection: the other side ends its work, and its answer goes nowhere.
        """
        reader, writer = self._idle.pop() if self._idle else await self._connect()
        try:
            body = pickle.dumps((method, arguments), 5)
            writer.write(_LENGTH.pack(len(body)) + body)
            (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            well, value = pickle.loads(await reader.readexactly(size))
        except asyncio.IncompleteReadError:
            writer.close()
            raise ConnectionResetError("its process ended") from None
        except BaseException:
            writer.close()
            raise
        self._idle.append((reader, writer))
        if not well:
            raise CallFailed(value)
        return value

    def close(self) -> None:
        """Closes idle connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, f"\0{self.address}")
            if not _is_same_user(connection):
                raise ConnectionRefusedError("another user listens there")
        except BaseException:
            connection.close()
            raise
        return await asyncio.open_unix_connection(sock=connection, limit=1 << 20)


class BlockingClient:
    """The same for threads, each of which waits for its own calls. Idle connections are kept."""

    def __init__(self, address: str):
        self.address = address
        self._idle: list[socket.socket] = []

    def call(self, method: str, *arguments: Any) -> Any:
        """As `SocketClient.call`."""
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            body = pickle.dumps((method, arguments), 5)
            connection.sendall(_LENGTH.pack(len(body)) + body)
            (size,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
            well, value = pickle.loads(_exactly(connection, size))
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if not well:
            raise CallFailed(value)
        return value

    def close(self) -> None:
        """Closes idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(f"\0{self.address}")
            if not _is_same_user(connection):
                raise ConnectionRefusedError("another user listens there")
        except BaseException:
            connection.close()
            raise
        return connection


def _exactly(connection: socket.socket, n: int) -> bytearray:
    """So many bytes. Raises ConnectionResetError where fewer come."""
    found = bytearray(n)
    view = memoryview(found)
    while view:
        if not (got := connection.recv_into(view)):
            raise ConnectionResetError("its process ended")
        view = view[got:]
    return found


def _is_same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end runs as this one's user: what the kernel noted when it connected or listened."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)[1] == os.geteuid()


def listening(cls: type, begin: Callable[[], None] = lambda: None) -> type:
    """A host class whose processes may also be asked over a socket; where they listen is part of their status. begin: called in each of
    them once its host is made."""

    class Listening(cls):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self._server = SocketServer(self, METHODS) if AVAILABLE else None
            begin()

        def status(self) -> dict[str, Any]:
            return super().status() | ({"socket": self._server.address} if self._server else {})

    Listening.__name__ = cls.__name__
    return Listening
