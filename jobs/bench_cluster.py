"""A cluster of four nodes on this machine over one large corpus: scaled under load, flooded, and what that says of a thousand shards.

scale  4 -> 8 -> 2 shards while clients search: seconds, kilobytes written, buckets that moved beside the fewest that could, p99 before
       and during
flood  500 clients at once: answers, refusals (each must say when to come back), errors, memory over time
model  CPU of a call to a host, of merging a shard's answer, bytes of an answer and of statistics, measured; and by these the cost of a
       query over as many as 1,000 shards and 10 billion passages, through one coordinator and through a tree of them

The corpus (`jobs/passage_corpus.py`) is indexed once and kept; a run works on links to its files.
"""

import asyncio
import json
import os
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jobs.bench_corpus import queries_of_stdlib
from jobs.bench_http import answer, request
from jobs.chaos_load import Client, Unanswered
from jobs.chaos_report import percentile
from jobs.cpu_times import cpu_s
from jobs.local_cluster import ROOT, LocalCluster, free_port, local_cluster
from jobs.passage_corpus import CORPUS, LAYERS, corpus_of, linked, models_dir
from jobs.progress import Progress
from jobs.scaling_model import calls, extrapolated, model_here
from jobs.settings import Settings
from serve.links import parameters_of
from serve.schema import SearchRequest
from shards.errors import BadSpec

STAGES = ("scale", "flood", "model")
N_NODES = 4
STEPS = (8, 2)  # shards that it is scaled to, one after the other
CALM_S = 15.0  # of searches before the first step, and after each
SCALERS = 8  # clients beside which shards move
FLOOD_BUDGET_MS = 2_000
MEMORY_EVERY_S = 5.0
TARGETS = {"p99 during a move, in that of before, at most": 2.0, "moved, in the fewest, at most": 1.2, "errors but 429": 0}


def stages(text: str) -> list[str]:
    """Of "scale,flood". Raises ArgumentTypeError."""
    names = text.split(",")
    if unknown := set(names) - set(STAGES):
        raise ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(STAGES)}")
    return names


def bench_cluster(progress: Progress, options: Namespace) -> dict[str, Any]:
    """The figures of each stage."""
    n = max(options.passages)
    kept, how = corpus_of(n, progress)
    found: dict[str, Any] = {"corpus": how, "passages": n, "layers": LAYERS, "nodes": N_NODES, "targets": TARGETS}
    if "model" in options.stages:
        found["model"] = {"in one process": model_here(kept, progress)}
    with local_cluster(N_NODES, "bench") as cluster:
        from jobs.deploy import deploy

        settings = Settings.load({}, store=str(linked(kept, cluster.folder / "store")), cache=str(cluster.folder / "cache"),
                                 models=str(models_dir()), port=free_port(), namespace="bench")  # fmt: skip
        service = settings.service_settings()
        if "model" in options.stages:
            found["model"]["calls"] = asyncio.run(calls(service, progress))
            found["model"]["extrapolated"] = extrapolated(found["model"])
        if {"scale", "flood"} & set(options.stages):
            url = deploy(service)
            asked = [SearchRequest(corpus=CORPUS, query=query, layers=LAYERS, budget_ms=FLOOD_BUDGET_MS) for query in queries_of_stdlib()]
            links = [f"/v1/search?{urlencode(parameters_of(each) or ())}" for each in asked]
            if "scale" in options.stages:
                found["scale"] = asyncio.run(scaled(cluster, settings, url, links, progress))
            if "flood" in options.stages:
                found["flood"] = asyncio.run(flooded(cluster, url, links, max(options.clients), options.seconds, progress))
    return found


def written_since(folder: Path, before: set[str]) -> int:
    """Bytes of the files that were not there before."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and str(path) not in before)


def _files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


# --- scaled under load -------------------------------------------------------------------------------------------------------


class Stream:
    """Clients that search for as long as it goes on. asked: (begun, seconds, status, partial) of each request; status 0: no answer."""

    def __init__(self, url: str, links: Sequence[str], n_clients: int):
        self.url, self.links, self.n_clients = url, links, n_clients
        self.asked: list[tuple[float, float, int, bool]] = []
        self.ending = False

    async def __aenter__(self) -> "Stream":
        self._tasks = [asyncio.create_task(self._client(i)) for i in range(self.n_clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ending = True
        await asyncio.gather(*self._tasks)

    async def _client(self, number: int) -> None:
        client = Client(self.url)
        first = 7 * number % len(self.links)
        for link in cycle([*self.links[first:], *self.links[:first]]):
            if self.ending:
                break
            begun, status, partial = time.perf_counter(), 0, False
            with suppress(Unanswered):
                status, body, _ = await client.ask("GET", link)
                partial = status == 200 and not json.loads(body)["complete"]
            self.asked.append((begun, time.perf_counter() - begun, status, partial))
        client.close()

    def between(self, begun: float, ended: float) -> dict[str, Any]:
        """Figures of the requests that were sent in this time."""
        rows = [row for row in self.asked if begun <= row[0] < ended]
        took = [1000 * seconds for _, seconds, status, _ in rows if status == 200]
        return {
            "answers": len(took),
            "p50_ms": round(percentile(took, 0.5) or 0, 1),
            "p99_ms": round(percentile(took, 0.99) or 0, 1),
            "partial": sum(partial for *_, partial in rows),
            "others": dict(Counter(str(status) for _, _, status, _ in rows if status != 200)),
        }


async def status_of(url: str) -> dict[str, Any]:
    """What a coordinator says of itself."""
    client = Client(url)
    _, body, _ = await client.ask("GET", "/v1/status")
    client.close()
    return json.loads(body)


async def scaled(cluster: LocalCluster, settings: Settings, url: str, links: Sequence[str], progress: Progress) -> dict[str, Any]:
    """Each step of `STEPS`, under the load of `SCALERS` clients."""
    from cluster.placement import minimum_moved_buckets, moved_buckets
    from shards.identity import N_BUCKETS

    store = Path(settings.store_url())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SONDAGE_")}
    found: dict[str, Any] = {"clients": SCALERS}
    async with Stream(url, links, SCALERS) as stream:
        await asyncio.sleep(CALM_S)  # compiled code and files are warm before anything counts
        for step, shards in enumerate(STEPS):
            calm = time.perf_counter()
            await asyncio.sleep(CALM_S)
            before, files = (await status_of(url))["placement"][CORPUS], _files(store)
            begun = time.perf_counter()
            command = ["jobs/scale.py", CORPUS, "--shards", str(shards), "--store", str(store), "--url", url]
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, cwd=ROOT, env=environment | {"SONDAGE_CACHE": str(settings.cache)},
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            said, _ = await process.communicate()
            ended = time.perf_counter()
            if process.returncode:
                raise BadSpec(f"The scale job ended with {process.returncode}: {said.decode('utf-8', 'replace')[-500:]}")
            after = (await status_of(url))["placement"][CORPUS]
            nodes = sorted({node for on in before["shards"] for node in on} | {node for on in after["shards"] for node in on})
            old, new = ([tuple(on) for on in told["shards"]] for told in (before, after))
            moved, fewest = moved_buckets(tuple(old), tuple(new)), minimum_moved_buckets(tuple(old), shards, nodes, after["wanted"])
            calmly, during = stream.between(calm, begun), stream.between(begun, ended)
            found[f"{len(old)} -> {len(new)}"] = {
                "seconds": round(ended - begun, 2),
                "written_kb": round(written_since(store, files) / 1000, 1),
                "buckets moved": moved,
                "fewest": fewest,
                "of the corpus": round(moved / N_BUCKETS, 3),
                "before": calmly,
                "during": during,
                "p99 during in before's": round(during["p99_ms"] / max(calmly["p99_ms"], 0.1), 2),
            }
            progress("scale", step + 1, len(STEPS), "steps")
        calm = time.perf_counter()
        await asyncio.sleep(CALM_S)
        found["after"] = stream.between(calm, time.perf_counter())
    return found


# --- flooded -----------------------------------------------------------------------------------------------------------------


async def flooded(
    cluster: LocalCluster, url: str, links: Sequence[str], n_clients: int, seconds: float, progress: Progress
) -> dict[str, Any]:
    """n clients, each on its own connection; one that is refused waits as it was told to."""
    where = url.removeprefix("http://")
    sent = [request(url, "GET", link) for link in links]
    took: list[float] = []
    statuses: Counter[str] = Counter()
    without_wait = 0
    memory: list[dict[str, int]] = []
    begun, ends = time.perf_counter(), time.perf_counter() + seconds
    before = cpu_s()

    async def client(number: int) -> None:
        nonlocal without_wait
        host, _, port = where.partition(":")
        connection = None
        for asked in cycle(sent[7 * number % len(sent) :] + sent[: 7 * number % len(sent)]):
            at = time.perf_counter()
            if at >= ends:
                break
            try:
                connection = connection or await asyncio.open_connection(host, int(port))
                connection[1].write(asked)
                async with asyncio.timeout(30):
                    status, head, body = await answer(connection[0])
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                statuses[type(error).__name__] += 1
                if connection is not None:
                    connection[1].close()
                connection = None
                continue
            if status == 200:
                took.append(time.perf_counter() - at)
                statuses["200" if b'"complete":true' in body else "200, partial"] += 1
                continue
            statuses[str(status)] += 1
            wait = next((line.split(":")[1] for line in head.lower().split("\r\n") if line.startswith("retry-after:")), "")
            without_wait += not wait
            await asyncio.sleep(min(float(wait or 1), 5.0))
        if connection is not None:
            connection[1].close()

    async def watch() -> None:
        while True:
            memory.append(await asyncio.to_thread(cluster.memory))
            progress("flood", round(min(time.perf_counter() - begun, seconds)), round(seconds), "seconds")
            await asyncio.sleep(MEMORY_EVERY_S)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*map(client, range(n_clients)))
    watching.cancel()
    elapsed = time.perf_counter() - begun
    used = {name: total - before.get(name, 0.0) for name, total in cpu_s().items()}
    ordered = [1000 * each for each in took]
    sums = [sum(each.values()) / 1e6 for each in memory]
    third = max(len(sums) // 3, 1)
    return {
        "clients": n_clients,
        "seconds": round(elapsed, 1),
        "answers_per_s": round(len(took) / elapsed, 1),
        "statuses": dict(statuses.most_common()),
        "errors but 429": sum(n for status, n in statuses.items() if not status.startswith("200") and status != "429"),
        "refused without Retry-After": without_wait,
        "p50_ms": round(percentile(ordered, 0.5) or 0),
        "p99_ms": round(percentile(ordered, 0.99) or 0),
        "cpu_ms of an answer": {name: round(1000 * s / max(len(took), 1), 2) for name, s in sorted(used.items(), key=lambda i: -i[1])[:6]},
        "memory_mb": {"first": round(sums[0]), "after a third": round(sums[third - 1]), "last": round(sums[-1]), "most": round(max(sums))},
    }
