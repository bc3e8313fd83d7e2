"""Pushed documents over HTTP: how long until one is durable and until it is found, how many a second, and what searches feel of it.

A server of its own (`sondage serve`) with a corpus of as many passages as `--files` says at most, pushed in bulk. Beside it, in the
same run, the bare limit: an append to a file on the same disk with fsync.
"""

import asyncio
import itertools
import json
import os
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jobs.bench_corpus import passages_of_stdlib, queries_of_stdlib
from jobs.bench_http import Tally, answer, load, request, server, until_ready
from jobs.progress import Progress
from shards.errors import BadSpec

LAYERS = ("names", "text", "bm25")
N_SINGLE = 20  # pushes whose latency is taken
BULK_LINES = 5_000
CLIENTS = (1, 32)


def bench_push(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Seconds from PUT to acknowledged and to searchable, pushes a second, and searches beside pushes."""
    passages, how = passages_of_stdlib(max(options.files), progress)
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        with server("process", str(Path(scratch) / "store")) as url:
            found = asyncio.run(_measured(progress, url, passages, options.seconds))
        found["fsync'd append"] = _appends(Path(scratch) / "bare", passages, options.seconds)
    for n in CLIENTS:
        found[f"{n} clients"]["of a bare append's rate"] = round(found[f"{n} clients"]["per_s"] / found["fsync'd append"]["per_s"], 2)
    return {"corpus": how, "layers": LAYERS, **found}


async def _measured(progress: Progress, url: str, passages: list[str], seconds: float) -> dict[str, Any]:
    await until_ready(url)
    found: dict[str, Any] = {"bulk": await _bulk(progress, url, passages)}
    searches = [
        request(url, "POST", "/v1/search", json.dumps({"corpus": "pushed", "query": query, "k": 10}).encode())
        for query in queries_of_stdlib(60, 20)
    ]
    await load(url, searches, 1, seconds)  # compiled code is warm before anything counts
    fresh = (f"fresh/{i}.txt" for i in itertools.count())
    for what, asked in (("acknowledged", ""), ("searchable", "?wait=searchable&timeout_ms=60000")):
        took = []
        for i in range(N_SINGLE):
            begun = time.perf_counter()
            said = await _ask(url, "PUT", f"/v1/corpora/pushed/documents/{next(fresh)}{asked}", passages[i].encode() + b" %d" % len(took))
            took.append(time.perf_counter() - begun)
            if asked and not said["searchable"]:
                raise BadSpec("A pushed document was not searchable within a minute.")
            await asyncio.sleep(0.2)  # as an agent pushes: now and then
        found[f"PUT until {what}"] = _latencies(took)
    quiet = await load(url, searches, 1, seconds)
    for n in CLIENTS:
        found[f"{n} clients"] = (await _pushes(url, fresh, passages, n, seconds)).figures()
    ends = asyncio.create_task(_pushes(url, fresh, passages, 1, seconds, 0.1))
    beside = await load(url, searches, 1, seconds)
    await ends
    found["one client's searches"] = {"quiet": quiet.figures(), "beside ten pushes a second": beside.figures()}
    return found


async def _bulk(progress: Progress, url: str, passages: list[str]) -> dict[str, Any]:
    begun = time.perf_counter()
    said: dict[str, Any] = {}
    for at in range(0, len(passages), BULK_LINES):
        part = enumerate(passages[at : at + BULK_LINES], at)
        body = "\n".join(json.dumps({"path": f"{i % 997}/{i}.py", "text": text}) for i, text in part)
        said = await _ask(url, "POST", f"/v1/corpora/pushed/documents?layers={','.join(LAYERS)}", body.encode(), "application/x-ndjson")
        progress("push", min(at + BULK_LINES, len(passages)), len(passages), "documents")
    durable = time.perf_counter() - begun
    while not said["searchable"]:
        said = await _ask(url, "DELETE", "/v1/corpora/pushed/documents/nothing?wait=searchable&timeout_ms=60000")
    searchable = time.perf_counter() - begun
    per_s = [round(len(passages) / s) for s in (durable, searchable)]
    return {"documents": len(passages), "seconds": [round(durable, 1), round(searchable, 1)], "durable, searchable per_s": per_s}


async def _pushes(url: str, fresh: Iterator[str], passages: list[str], n_clients: int, seconds: float, pause_s: float = 0) -> Tally:
    """n clients push over and over again, each on its own connection."""
    where, tally, numbers = urlsplit(url), Tally(), itertools.count()
    ends = time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        while (begun := time.perf_counter()) < ends:
            i = next(numbers)
            body = passages[i % len(passages)].encode() + b" again %d" % i
            writer.write(request(url, "PUT", f"/v1/corpora/pushed/documents/{next(fresh)}", body))
            status, _, said = await answer(reader)
            if status != 200:
                raise BadSpec(f"A push was refused with {status}: {said.decode('utf-8', 'replace')[:300]}")
            tally.latencies_s.append(time.perf_counter() - begun)
            await asyncio.sleep(pause_s)
        writer.close()

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(n_clients)))
    tally.seconds = time.perf_counter() - begun
    return tally


async def _ask(url: str, method: str, path: str, body: bytes = b"", kind: str = "") -> dict[str, Any]:
    reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    sent = request(url, method, path, body)
    writer.write(sent.replace(b"application/json", kind.encode(), 1) if kind else sent)
    status, _, said = await answer(reader)
    writer.close()
    if status != 200:
        raise BadSpec(f"{method} {path} was refused with {status}: {said.decode('utf-8', 'replace')[:300]}")
    return json.loads(said)


def _appends(path: Path, passages: list[str], seconds: float) -> dict[str, Any]:
    """What the disk gives: a passage appended and synced, over and over again."""
    tally, ends = Tally(), time.perf_counter() + seconds
    begun = time.perf_counter()
    with open(path, "ab", buffering=0) as file:
        for text in itertools.cycle(passages):
            start = time.perf_counter()
            if start > ends:
                break
            file.write(text.encode())
            os.fsync(file.fileno())
            tally.latencies_s.append(time.perf_counter() - start)
    tally.seconds = time.perf_counter() - begun
    return tally.figures()


def _latencies(took: list[float]) -> dict[str, float]:
    return {"p50_s": round(statistics.median(took), 3), "worst_s": round(max(took), 3)}
