"""A stand-in for the coordinator, for tests of what lies before it, and a real server on loopback around it."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from serve.filters import scope
from serve.http import create_app
from serve.schema import Coverage, EntryOut, ExcerptOut, Hit, LayerInfo, SearchAnswer, SearchRequest, Signal
from shards.errors import NotFound

HASH = "0123456789abcdef0123456789abcdef01234567"
KEY = "a-key-of-some-length"


def one_hit(request: SearchRequest) -> SearchAnswer:
    entry = EntryOut(source="here", path="email/caf\udce9.py", size_bytes=90, mtime=1.5, metadata={"language": "python"})
    signal = Signal(layer="bm25", score=14.2, surprise=21.5, evalue=3e-7, start=10, end=20)
    hit = Hit(
        hash=HASH, start=10, end=20, line=3, fused=21.5, evalue=4e-6, entries=[entry], n_entries=1,
        excerpt=ExcerptOut(start=0, end=22, first_line=2, text=request.query, marks=[(0, 5)]), signals=[signal],
    )  # fmt: skip
    layer = LayerInfo(name="bm25", layer="bm25", origin="source", granularity="passage", asked=request.query, n_units=7)
    return SearchAnswer(
        corpus=request.corpus, generation=4, null_version=1, verdict="strong", verdict_reason="E is 4e-06", complete=True,
        hits=[hit], layers=[layer], coverage=[Coverage(layer="bm25", shard=0, state="ready", covered=7, total=7)],
        timings_ms={"scatter": 3.25, "odd name": 1},
    )  # fmt: skip


class Scripted:
    """Stands where the coordinator stands: checks the filter as it does, and answers what the test says."""

    def __init__(self, search: Callable[[SearchRequest], SearchAnswer] = one_hit):
        self.answer = search
        self.events: list[str] = []
        self.state = (True, "")

    async def __aenter__(self) -> "Scripted":
        self.events.append("started")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.events.append("closed")

    async def search(self, request: SearchRequest) -> SearchAnswer:
        scope(request.paths, request.where)
        if request.query == "wait for ever":
            try:
                self.events.append("searching")
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.events.append("cancelled")
                raise
        return self.answer(request)

    async def status(self) -> dict:
        return {"corpora": {"stdlib": {"generation": 4, "rate": float("inf")}}}

    async def document(self, corpus: str, hash_hex: str, start: int | None, end: int | None, generation: int | None = None) -> dict:
        if corpus != "stdlib":
            raise NotFound(f"There is no corpus {corpus!r}. There are: stdlib.")
        entry = EntryOut(source="here", path="a.py", size_bytes=5, mtime=0)
        return {"generation": 4, "start": start or 0, "end": end or 5, "size_bytes": 5, "text": "hello", "entries": [entry]}

    async def ready(self) -> tuple[bool, str]:
        return self.state


@contextmanager
def running(coordinator: Scripted, keys: tuple[str, ...] = (), port: int = 0, **more: Any) -> Iterator[str]:
    """The application under uvicorn on a free port of loopback; gives its URL. more: as for `create_app`."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        config = uvicorn.Config(create_app(coordinator, keys, **more), log_config=None, access_log=False)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            eventually(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not reached within {seconds} s"
        time.sleep(0.01)
