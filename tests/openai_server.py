"""An OpenAI-compatible server on loopback, for tests: real HTTP, answers that are a function of the question, faults on demand.

    with OpenAIServer() as server:
        server.faults.append(Fault("status", 429, retry_after="2"))   # the next request meets it, then all is well again
        Endpoint(EndpointSettings(server.url, key="secret"), "tiny")…
        server.requests   # [(path, body), …] as they came

Embeddings: `vector_of(text)`. Chat: `answer(body)`, which a test may replace; by default the number of words and the first ones.
"""

import hashlib
import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import numpy as np

DIM = 16


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request.

    kind: status (answers `status`), slow (no answer until the server is closed or `release` is called), garbage (200, no JSON), cut
    (closes in the midst of the answer), hang_up (closes without one), unsupported (400: `param` is not taken),
    drip (a byte at a time, never all of it).
    when: whether it concerns a request, by its body.
    """

    kind: str
    status: int = 500
    retry_after: str = ""
    message: str = "told to fail"
    param: str = ""
    code: str = ""
    when: Callable[[dict[str, Any]], bool] = field(default=lambda body: True, repr=False)  # repr names tests: no address in it


def words_of(text: str) -> list[str]:
    return "".join(c.lower() if c.isalnum() else " " for c in text).split()


def vector_of(text: str, dim: int = DIM) -> list[float]:
    """The sum of a random direction per word, so that texts which share words are alike; a constant for texts without any."""
    total = np.full(dim, 0.01)
    for word in words_of(text):
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
        total += np.random.default_rng(seed).standard_normal(dim)
    return [round(float(x), 6) for x in total]


def default_answer(body: dict[str, Any]) -> str:
    words = words_of(body["messages"][-1]["content"])
    return f"{len(words)} words: {' '.join(words[:8])}"


class OpenAIServer:
    """Listens while it is entered. key: asked of every request, "" for none; models: known ones, () for any.

    with_usage: whether answers state tokens (counted as words). requests: what came, (path, body), in order of arrival; keys: the
    Authorization headers. faults: met by the next requests they concern, one each.
    """

    def __init__(self, key: str = "", models: tuple[str, ...] = (), dim: int = DIM, with_usage: bool = True):
        self.key, self.models, self.dim, self.with_usage = key, models, dim, with_usage
        self.answer: Callable[[dict[str, Any]], str] = default_answer
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.keys: list[str] = []
        self.faults: list[Fault] = []
        self.connections: set[socket.socket] = set()
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.most_at_once = self._at_once = 0
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = False
        self._http.block_on_close = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, name="openai-server")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def release(self) -> None:
        """Let slow requests go on."""
        self.released.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()
        self._http.shutdown()
        self._thread.join()
        with self.lock:
            connections = list(self.connections)
        for connection in connections:  # clients may keep theirs: nobody waits for them
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._http.server_close()

    # --- answering ---------------------------------------------------------------------------------------------------------

    def fault_of(self, body: dict[str, Any]) -> Fault | None:
        with self.lock:
            for i, fault in enumerate(self.faults):
                if fault.when(body):
                    return self.faults.pop(i)
        return None

    def begin(self, path: str, body: dict[str, Any], key: str) -> None:
        with self.lock:
            self.requests.append((path, body))
            self.keys.append(key)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)

    def end(self) -> None:
        with self.lock:
            self._at_once -= 1

    def answer_to(self, path: str, body: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
        if self.key and key != f"Bearer {self.key}":
            return 401, _error(f"Incorrect API key provided: {key.removeprefix('Bearer ')}.", code="invalid_api_key")
        if self.models and body.get("model") not in self.models:
            return 404, _error(f"The model {body.get('model')!r} does not exist.", code="model_not_found")
        if path == "/v1/embeddings":
            return self._embeddings(body)
        if path == "/v1/chat/completions":
            return self._chat(body)
        return 404, _error(f"Unknown path {path}.")

    def _embeddings(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        if not texts or not all(isinstance(t, str) and t for t in texts):
            return 400, _error("'input' must hold texts, none of them empty.", param="input")
        dim = body.get("dimensions", self.dim)
        # In reverse, because the protocol promises no order but `index`.
        data = [{"object": "embedding", "index": i, "embedding": vector_of(text, self.dim)[:dim]} for i, text in enumerate(texts)]
        n_tokens = sum(len(words_of(text)) for text in texts)
        answer = {"object": "list", "model": body["model"], "data": data[::-1]}
        return 200, answer | ({"usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens}} if self.with_usage else {})

    def _chat(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        text, reason = self.answer(body), "stop"
        limit = body.get("max_tokens", body.get("max_completion_tokens"))
        if limit is not None and len(text.split()) > limit:
            text, reason = " ".join(text.split()[:limit]), "length"
        n_in = sum(len(words_of(message["content"])) for message in body["messages"])
        n_out = len(text.split())
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
        answer = {"object": "chat.completion", "model": body["model"], "choices": [choice]}
        usage = {"prompt_tokens": n_in, "completion_tokens": n_out, "total_tokens": n_in + n_out}
        return 200, answer | ({"usage": usage} if self.with_usage else {})


def _error(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "test", "param": None, "code": None} | fields}


def _handler(server: OpenAIServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with server.lock:
                server.connections.add(self.connection)

        def finish(self) -> None:
            with server.lock:
                server.connections.discard(self.connection)
            super().finish()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            key = self.headers.get("Authorization", "")
            server.begin(self.path, body, key)
            try:
                self._answer(body, key)
            except (BrokenPipeError, ConnectionResetError):  # the client had enough
                self.close_connection = True
            finally:
                server.end()

        def _answer(self, body: dict[str, Any], key: str) -> None:
            fault = server.fault_of(body)
            status, answer = server.answer_to(self.path, body, key)
            data, headers = json.dumps(answer).encode(), {}
            match fault.kind if fault else "":
                case "status":
                    status, headers = fault.status, {"Retry-After": fault.retry_after} if fault.retry_after else {}
                    data = json.dumps(_error(fault.message, code=fault.code)).encode()
                case "unsupported":
                    if fault.param in body:
                        status = 400
                        data = json.dumps(_error(f"Unsupported parameter: {fault.param!r}.", param=fault.param)).encode()
                case "garbage":
                    data = b"<html>Bad gateway</html>"
                case "slow":
                    server.released.wait()
                case "hang_up":
                    self.close_connection = True
                    return
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if fault and fault.kind == "cut":
                data, self.close_connection = data[: len(data) // 2], True
            if fault and fault.kind == "drip":
                for i in range(len(data) - 1):
                    self.wfile.write(data[i : i + 1])
                    self.wfile.flush()
                    if server.released.wait(0.002):
                        break
                self.close_connection = True
                return
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
