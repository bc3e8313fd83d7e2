"""What a connection may do before its request is known: TLS, and heads of requests that never end.

uvicorn's parser keeps a head of any length in memory, for as long as it takes; keys are in the head, so anybody could do that.
"""

import asyncio
import ssl
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from serve.schema import Problem, ProblemAnswer
from shards.errors import BadSpec

MAX_HEAD_BYTES = 64 << 10  # as h11's; a link has 2,000 characters, a browser's head some 2 kB
# Between two requests of a connection: longer than any usual Retry-After. uvicorn's 5 s are just when clients come back that were told
# to wait so long: of 53,000 requests of 500 clients 47 met a connection that was being closed.
KEEP_ALIVE_S = 75
HEAD_TIMEOUT_S = 15.0  # from the first byte of a head to its last; a connection without any byte is not waited for longer either

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError:  # then uvicorn takes h11, which has such a limit of its own
    HttpToolsProtocol = None  # type: ignore[assignment,misc]


def options(tls: tuple[Path, Path] | None) -> dict[str, Any]:
    """Arguments for `uvicorn.Config`. tls: certificate (with its chain) and key, PEM. Raises BadSpec for files that are no such."""
    found: dict[str, Any] = {"server_header": False, "timeout_keep_alive": KEEP_ALIVE_S}
    if HttpToolsProtocol is not None:
        found["http"] = Patient
    if tls is not None:
        certificate, key = tls
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            reason = getattr(error, "strerror", None) or str(error)
            raise BadSpec(
                f"TLS by certificate {certificate} and key {key} is not possible: {reason}. Both are PEM files, the key without a password."
            ) from None
        found |= {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    return found


if HttpToolsProtocol is not None:

    class Patient(HttpToolsProtocol):
        """uvicorn's protocol, with an end to its patience with heads."""

        def __init__(self, *args: Any, **named: Any):
            super().__init__(*args, **named)
            self._head_bytes = 0
            self._in_head = True  # before the first byte, too
            self._waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._waiting = self.loop.call_later(HEAD_TIMEOUT_S, self._give_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            self._in_head = True
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_head, self._head_bytes = False, 0
            self._stop_waiting()
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            was_in_head = self._in_head
            super().data_received(data)
            if not self._in_head or self.transport.is_closing():
                return
            if was_in_head:  # else most of it may be the body before
                self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                problem = f"The head of the request has more than {MAX_HEAD_BYTES:,} bytes. Send what is long as a body."
                self._refuse(431, "too_large", problem)
            elif self._waiting is None:
                self._waiting = self.loop.call_later(HEAD_TIMEOUT_S, self._give_up)

        def _give_up(self) -> None:
            self._waiting = None
            if self._in_head and self._head_bytes:
                self._refuse(408, "too_slow", f"The head of the request did not arrive within {HEAD_TIMEOUT_S:.0f} s.")
            elif not self.transport.is_closing():
                self.transport.close()

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _refuse(self, status: int, kind: str, message: str) -> None:
            if self.transport.is_closing():
                return
            body = to_json(ProblemAnswer(error=Problem(kind=kind, message=message)), exclude_none=True)
            head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
            self.transport.close()
