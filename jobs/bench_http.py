"""Searches over HTTP with keep-alive clients: how long, how many, and where the time goes.

The servers are `--url`, or over a new index of the standard library (4 shards, bm25 and static) one after the other those of
`--servers`: `process` is `sondage serve`, `proxy` and `ray` are a Ray cluster of one node (jobs/bench_ray.py), asked through Ray
Serve's proxy and where the coordinator listens itself. Searches are links, as `sondage.Client` sends them. Beside each: the same
as POST, `/healthz` of the same server, which is the same path without work, and a bare uvicorn that sends back what it got. The four
are asked in turns. The clients are in this process and share its cores with the servers.
"""

import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from jobs.bench_corpus import copy_of_stdlib, queries_of_stdlib
from jobs.bench_index import build
from jobs.cpu_times import cpu_s
from jobs.progress import Progress
from serve.links import parameters_of
from serve.schema import SearchRequest
from shards.errors import BadSpec

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("bm25", "static")
BARS = {"one client, search p50_ms at most": 20.0, "64 clients, search per_s at least": 150.0}  # through Ray Serve's proxy
TARGETS = {"one client, search p50_ms at most": 8.0, "64 clients, search per_s at least": 600.0}  # by the fastest path
SERVERS = ("process", "proxy", "ray")
START_S = 120.0

_ECHO = """
import socket, uvicorn
async def application(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})
listener = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(application, log_level="warning", lifespan="off")).run(sockets=[listener])
"""


@dataclass
class Tally:
    """What the clients of one path saw. seconds: how long they asked; timings: ms of each step, as the server tells them; cpu_s: what all
    processes used, by name."""

    latencies_s: list[float] = field(default_factory=list)
    timings: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    seconds: float = 0.0

    def add(self, other: "Tally") -> None:
        self.latencies_s += other.latencies_s
        self.refused += other.refused
        self.seconds += other.seconds
        self.cpu_s.update(other.cpu_s)
        for name, values in other.timings.items():
            self.timings.setdefault(name, []).extend(values)

    def figures(self) -> dict[str, Any]:
        """Answers a second, p50 and p99 (ms), CPU of an answer (ms) by process, the rate at which that fills all cores, median ms of each
        step."""
        if not self.latencies_s:
            return {"answers": 0, "refused": self.refused}
        ordered = sorted(self.latencies_s)
        found: dict[str, Any] = {
            "answers": len(ordered),
            "per_s": round(len(ordered) / self.seconds, 1),
            "p50_ms": round(1000 * statistics.median(ordered), 2),
            "p99_ms": round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 2),
        }
        if self.refused:
            found["refused"] = self.refused
        if all_s := sum(self.cpu_s.values()):
            # What more clients, or better scheduling, could bring at most: all cores busy with nothing but this.
            n = len(ordered)
            found["cpu_ms"] = {name: round(1000 * s / n, 2) for name, s in self.cpu_s.most_common() if s > 0.01 * all_s}
            found["ceiling_per_s"] = round((os.cpu_count() or 1) * n / all_s, 1)
        if self.timings:
            found["p50_ms of"] = {name: round(statistics.median(values), 2) for name, values in self.timings.items()}
        return found


def request(url: str, method: str, path: str, body: bytes = b"") -> bytes:
    """An HTTP/1.1 request as bytes, to be sent over and over again; with the first API key of this environment, if any."""
    from jobs.settings import Settings

    where = urlsplit(url)
    keys = Settings.load().api_keys
    head = [f"{method} {where.path.rstrip('/')}{path} HTTP/1.1", f"Host: {where.netloc}", f"Content-Length: {len(body)}"]
    head += ["Content-Type: application/json"] if body else []
    head += [f"Authorization: Bearer {keys[0].get_secret_value()}"] if keys else []
    return "\r\n".join([*head, "", ""]).encode() + body


def searches(url: str, corpus: str, queries: list[str], method: str = "GET") -> list[bytes]:
    """Each query as a request for the 10 best, as `sondage.Client` sends it, or with a body (POST)."""
    asked = [SearchRequest(corpus=corpus, query=query, k=10, layers=LAYERS) for query in queries]
    if method == "POST":
        return [request(url, "POST", "/v1/search", each.model_dump_json(exclude_defaults=True).encode()) for each in asked]
    return [request(url, "GET", "/v1/search?" + urlencode(parameters_of(each) or ())) for each in asked]


async def answer(reader: asyncio.StreamReader) -> tuple[int, str, bytes]:
    """Status, head and body of the next answer on a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    if length := re.search(r"(?i)\r\ncontent-length: *(\d+)", head):
        body = await reader.readexactly(int(length[1]))
    elif re.search(r"(?i)\r\ntransfer-encoding: *chunked", head):
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        raise BadSpec(f"The server does not say how long its answer is: {head.splitlines()[0]}. Give --url of a Sondage server.")
    return int(head.split(" ", 2)[1]), head, body


async def load(url: str, requests: list[bytes], n_clients: int, seconds: float) -> Tally:
    """n clients ask over and over again, each on its own connection, one request at a time."""
    where = urlsplit(url)
    ends = time.perf_counter() + seconds
    tally = Tally()

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            for sent in cycle(requests[number % len(requests) :] + requests[: number % len(requests)]):
                begun = time.perf_counter()
                if begun >= ends:
                    return
                writer.write(sent)
                status, head, _ = await answer(reader)
                took = time.perf_counter() - begun
                if status != 200:
                    tally.refused += 1
                    continue
                tally.latencies_s.append(took)
                steps = {name: float(ms) for name, ms in re.findall(r"([\w.-]+);dur=([\d.]+)", head)}
                if "http" in steps:
                    steps["server, network, waiting"] = 1000 * took - steps["http"]
                for name, ms in steps.items():
                    tally.timings.setdefault(name, []).append(ms)
        finally:
            writer.close()

    begun, before = time.perf_counter(), cpu_s()
    await asyncio.gather(*(client(7 * i) for i in range(n_clients)))  # 7: they do not ask the same at the same time
    tally.seconds = time.perf_counter() - begun
    tally.cpu_s = Counter({name: s - before.get(name, 0.0) for name, s in cpu_s().items()})
    return tally


@contextlib.contextmanager
def process(command: list[str], stream: str, ends_with_input: bool = False) -> Iterator[str]:
    """A server's URL, which it prints on a stream when it listens; ended by the end of its input or by a signal.

    Raises BadSpec if it ends before it listens.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    started = subprocess.Popen(command, cwd=ROOT, text=True, env=environment, stdin=subprocess.PIPE, **{stream: subprocess.PIPE})
    try:
        said = ""
        for line in getattr(started, stream):
            said += line
            if url := re.search(r"http://[\d.:]+\d", line):
                yield url[0]
                return
        raise BadSpec(f"The server ended with {started.wait()}: {said[-500:]}")
    finally:
        started.stdin.close()
        if not ends_with_input:
            started.terminate()
        started.wait(60)
        getattr(started, stream).close()


def server(name: str, store: str) -> contextlib.AbstractContextManager[str]:
    """A server of that kind over a store; gives its URL."""
    if name == "process":
        options = ["--store", store, "--host", "127.0.0.1", "--port", "0"]
        return process([sys.executable, "-m", "jobs.cli", "serve", *options], "stderr")
    program = "import sys; from jobs.bench_ray import main; sys.exit(main())"
    return process([sys.executable, "-c", program, store, *(["--proxy"] if name == "proxy" else [])], "stdout", True)


async def until_ready(url: str) -> None:
    """Wait until searches are answered. Raises BadSpec after START_S."""
    where = urlsplit(url)
    ends = time.monotonic() + START_S
    while True:
        try:
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write(request(url, "GET", "/readyz"))
            status, _, body = await answer(reader)
            writer.close()
        except OSError as error:
            status, body = 0, str(error).encode()
        if status == 200:
            return
        if time.monotonic() > ends:
            raise BadSpec(f"{url} was not ready within {START_S:.0f} s: {body.decode('utf-8', 'replace')[:300]}")
        await asyncio.sleep(0.2)


def bench_http(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Per server and number of clients: answers a second, p50, p99 and steps of searches, beside the two bare paths."""
    found: dict[str, Any] = {"layers": LAYERS, "bars": BARS, "targets": TARGETS}
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        if options.url:
            return found | {"servers": {options.url: asyncio.run(_asked(progress, options, options.url, options.corpus))}}
        source, store = copy_of_stdlib(Path(scratch) / "src"), str(Path(scratch) / "store")
        progress("index for http", 0, 1, "corpora")
        build(source, store, ",".join(LAYERS), "--shards", "4")
        progress("index for http", 1, 1, "corpora")
        servers = {}
        for name in options.servers:
            with server(name, store) as url:
                servers[name] = asyncio.run(_asked(progress, options, url, "stdlib"))
        return found | {"servers": servers}


async def _asked(progress: Progress, options: Namespace, url: str, corpus: str) -> dict[str, Any]:
    """One server's figures by number of clients."""
    rounds = options.rounds or 3
    tallies: dict[tuple[int, str], Tally] = {}
    with process([sys.executable, "-c", _ECHO], "stdout") as echo:
        await until_ready(url)
        asked = searches(url, corpus, queries_of_stdlib())
        with_body = searches(url, corpus, queries_of_stdlib(), "POST")
        await _first(url, asked[0])
        await load(url, asked, 8, options.seconds)  # caches and compiled code are warm before anything counts
        paths = {
            "search": (url, asked),
            "search, as POST": (url, with_body),
            "healthz": (url, [request(url, "GET", "/healthz")]),
            "bare uvicorn echo": (echo, [request(echo, "POST", "/", with_body[0].partition(b"\r\n\r\n")[2])]),
        }
        for i in range(rounds):
            for j, n_clients in enumerate(options.clients):
                for name, (at, requests) in paths.items():
                    tally = tallies.setdefault((n_clients, name), Tally())
                    tally.add(await load(at, requests, n_clients, options.seconds))
                progress("http", i * len(options.clients) + j + 1, rounds * len(options.clients), "loads")
    clients: dict[str, dict[str, Any]] = {}
    for (n_clients, name), tally in tallies.items():
        clients.setdefault(str(n_clients), {})[name] = tally.figures()
    for found in clients.values():
        for name in ("healthz", "bare uvicorn echo"):
            found[f"search p50 in {name}s"] = round(found["search"]["p50_ms"] / found[name]["p50_ms"], 1)
    return clients


async def _first(url: str, asked: bytes) -> None:
    """One search. Raises BadSpec with the server's words if it is refused."""
    reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    writer.write(asked)
    status, _, body = await answer(reader)
    writer.close()
    if status != 200:
        raise BadSpec(f"{url} refused a search with {status}: {body.decode('utf-8', 'replace')[:300]}")
