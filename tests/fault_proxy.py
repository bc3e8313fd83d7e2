"""An HTTP proxy that harms: it forwards requests to a server on loopback, or fails them as networks and servers do."""

import http.client
import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal[
    "500",  # the server's own failure, nothing was done
    "503",  # throttling, as S3 words it
    "403",  # refused for good; not among those that clients try again
    "dropped",  # the connection breaks before the server hears of it: what a timeout looks like, without waiting for it
    "unanswered",  # the server does it, and the connection breaks before the answer
    "torn request",  # the connection breaks in the middle of what is sent; nothing is done
    "torn answer",  # the connection breaks in the middle of the answer's body
]
FAULTS: tuple[Fault, ...] = ("500", "503", "dropped", "unanswered", "torn request", "torn answer")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: method, path with query, and its number, counted from 1."""

    method: str
    path: str
    number: int


@dataclass(slots=True)
class FaultProxy:
    """Where the proxy listens, and what it does. decide: the fault of a request, None for none; rewrite: its path on the server."""

    url: str
    decide: Callable[[Asked], Fault | None] = lambda _asked: None
    rewrite: Callable[[str], str] = lambda path: path
    asked: list[Asked] = field(default_factory=list)
    faults: list[tuple[Asked, Fault]] = field(default_factory=list)


_XML = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"


@contextmanager
def fault_proxy(target: str) -> Iterator[FaultProxy]:
    """A proxy before the server at `target` (http://host:port), on a port of its own."""
    to = urlsplit(target)
    lock = threading.Lock()
    opened: list[http.client.HTTPConnection] = []
    own = threading.local()  # a connection a thread, as the client's: a new one for each request would use up the ports

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_args):
            pass

        def handle_any(self):
            with lock:
                asked = Asked(self.command, self.path, len(proxy.asked) + 1)
                proxy.asked.append(asked)
                fault = proxy.decide(asked)
                if fault:
                    proxy.faults.append((asked, fault))
            if fault == "torn request":
                self.rfile.read(int(self.headers.get("Content-Length", 0)) // 2)
            if fault in ("dropped", "torn request"):
                return self._break()
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if fault in ("500", "503", "403"):
                return self._fail(int(fault))
            answer, data = self._forwarded(body)
            if fault == "unanswered":
                return self._break()
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            has_body = self.command != "HEAD" and answer.status not in (204, 304)
            self.send_header("Content-Length", answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data)))
            self.end_headers()
            if has_body:
                self.wfile.write(data[: len(data) // 2] if fault == "torn answer" else data)
            return self._break() if fault == "torn answer" else None

        def _forwarded(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("connection", "expect")}
            for fresh in (False, True):
                if fresh or not hasattr(own, "to"):
                    own.to = http.client.HTTPConnection(to.hostname, to.port, timeout=60)
                    opened.append(own.to)
                try:
                    own.to.request(self.command, proxy.rewrite(self.path), body or None, headers)
                    answer = own.to.getresponse()
                    return answer, answer.read()
                except (http.client.BadStatusLine, ConnectionError, BrokenPipeError):  # the server had closed it meanwhile
                    own.to.close()
                    if fresh:
                        raise
            raise AssertionError

        def _fail(self, status: int) -> None:
            data = _XML.format(code={500: "InternalError", 503: "SlowDown", 403: "AccessDenied"}[status]).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _break(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, _request, _client):  # clients hang up, and so do we
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        proxy = FaultProxy(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield proxy
        server.shutdown()
        thread.join()
        for connection in opened:
            connection.close()
