"""One keep-alive connection over a bare socket: what a client costs beside the server that it measures is a `recv`."""

import re
import socket
import time
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from jobs.bench_http import request

PATIENCE_S = 120.0  # beyond any budget: what takes longer is no late answer but none
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding: *chunked")
_CLOSE = re.compile(rb"(?i)\r\nconnection: *close")
_ONE = b"\r\nContent-Length: 1\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


class Answered(NamedTuple):
    """status: 0 where no answer came; seconds: from sending the request to the last byte of the answer."""

    status: int
    seconds: float
    head: bytes
    body: bytes


class Wire:
    """A connection to a server, made when it is first needed and again after it broke. For one thread."""

    def __init__(self, url: str):
        where = urlsplit(url)
        self.url = url
        self._address = (where.hostname or "127.0.0.1", where.port or 80)
        self._socket: socket.socket | None = None
        self._left = b""

    def ask(self, method: str, path: str, body: bytes = b"", accept: str = "") -> Answered:
        """One request; a connection that broke gives status 0 and the reason as the body."""
        return self.send(made(self.url, method, path, body, accept))

    def send(self, sent: bytes) -> Answered:
        """The same of a request that was made before."""
        begun = time.perf_counter()
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, PATIENCE_S)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(sent)
            head = self._until(b"\r\n\r\n")
            matched = _STATUS.match(head)
            if matched is None:
                raise ConnectionError(f"no answer of HTTP: {head[:60]!r}")
            if length := _LENGTH.search(head):
                body = self._exactly(int(length[1]))
            elif _CHUNKED.search(head):
                body = self._chunks()
            else:
                body = b""
            seconds = time.perf_counter() - begun
            if _CLOSE.search(head):
                self.close()
            return Answered(int(matched[1]), seconds, head, body)
        except OSError as error:
            self.close()
            return Answered(0, time.perf_counter() - begun, b"", f"{type(error).__name__}: {error}".encode())

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._left = None, b""

    def _more(self) -> None:
        assert self._socket is not None
        received = self._socket.recv(1 << 18)
        if not received:
            raise ConnectionError("closed by the server")
        self._left += received

    def _until(self, end: bytes) -> bytes:
        while (at := self._left.find(end)) < 0:
            self._more()
        found, self._left = self._left[: at + len(end)], self._left[at + len(end) :]
        return found

    def _exactly(self, n: int) -> bytes:
        while len(self._left) < n:
            self._more()
        found, self._left = self._left[:n], self._left[n:]
        return found

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            body += self._exactly(size)
            self._exactly(2)
        self._until(b"\r\n")
        return body


def made(url: str, method: str, path: str, body: bytes = b"", accept: str = "") -> bytes:
    """A request as bytes, to be sent as often as wanted. accept: the form of the answer, where it is not JSON."""
    head = _head(url, method, path).replace(_ONE, b"\r\nContent-Length: %d\r\n" % len(body), 1)
    return (head.replace(b"\r\n\r\n", f"\r\nAccept: {accept}\r\n\r\n".encode(), 1) if accept else head) + body


@lru_cache(maxsize=256)  # it looks the settings up for a key
def _head(url: str, method: str, path: str) -> bytes:
    """Of a request with a body of one byte."""
    return request(url, method, path, b"x")[:-1]
