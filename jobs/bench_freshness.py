"""What it costs to see whether files are still what was indexed, and what the check adds to searches of a corpus that nobody changes."""

import asyncio
import random
import statistics
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from jobs.progress import Progress

LAYERS = ("names", "text", "bm25")
N_SEARCHES = 300
WORDS = ("lantern", "granite", "river", "orchard", "harbour", "bridge", "rain", "heavy")
A_FOLDER = 100  # files


def bench_freshness(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Of as many small files as the largest of `--files`: seconds until all are known, of the first look at all and of a later one, in
    which no folder changed; and milliseconds of searches with and without a check, in turn."""
    from jobs.pool import LocalPool, WorkerSettings
    from serve.local import local_coordinator
    from shards.cache import FileCache
    from shards.corpus import Source
    from shards.layers import SpaceSpec
    from shards.layers.contract import Resources
    from shards.store import open_store
    from shards.update import Options, Updater

    n = max(options.files)
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        source, store_url, cache_dir = Path(scratch) / "source", str(Path(scratch) / "store"), Path(scratch) / "cache"
        _write(source, n)
        progress("freshness", 1, 4, "steps")
        store, cache, resources = open_store(store_url), FileCache(cache_dir, 64 << 30), Resources()

        def executor(inside: Any, specs: Any) -> LocalPool:
            return LocalPool(WorkerSettings(inside.url, {}, cache_dir, 64 << 30, specs, resources))

        asked = Options("files", Source("main", str(source)), tuple(map(SpaceSpec.parse, LAYERS)))
        Updater(store, cache, resources, executor).run(asked)
        progress("freshness", 2, 4, "steps")
        looks = _looks(store, cache, resources)
        progress("freshness", 3, 4, "steps")

        async def searched() -> dict[str, Any]:
            from cluster.settings import HostSettings

            async with local_coordinator(HostSettings(store_url=store_url, cache_dir=cache_dir)) as coordinator:
                await coordinator.until_warm()
                return await _searches(coordinator, n, options.seed)

        searches = asyncio.run(searched())
        progress("freshness", 4, 4, "steps")
    return {"files": n, **looks, "searches": searches}


def _write(source: Path, n: int) -> None:
    for i in range(n):
        folder = source / f"{i // A_FOLDER // A_FOLDER}/{i // A_FOLDER}"
        if i % A_FOLDER == 0:
            folder.mkdir(parents=True)
        (folder / f"{i}.txt").write_text(f"The {WORDS[i % 8]} of day {i} shines on {WORDS[i * 7 % 5]} {7 * i}.\n")


def _looks(store: Any, cache: Any, resources: Any) -> dict[str, Any]:
    from shards import tree
    from shards.freshness import RACY_NS, Known, LocalCheck
    from shards.generation import Generation
    from shards.local_folder import LocalFolder
    from shards.roots import Source
    from shards.types import Budget

    generation = Generation.open(store, cache, "files", None, resources)
    ref = generation.root.sources["main"]
    assert ref.tree is not None
    found = {}
    begun = time.perf_counter()
    known = Known.of(tree.rows(generation.store, ref.tree))
    found["known_s"] = round(time.perf_counter() - begun, 3)
    # As if the folders were older than that a change of them might hide in their time.
    check = LocalCheck(LocalFolder(Source("main", ref.url)), known, clock_ns=lambda: time.time_ns() + RACY_NS)
    for name in ("first_s", "later_s"):
        begun = time.perf_counter()
        check.sweep(Budget(), check.within(()), time.monotonic())
        found[name] = round(time.perf_counter() - begun, 3)
    return found


async def _searches(coordinator: Any, n: int, seed: int) -> dict[str, Any]:
    from serve.freshness_schema import Freshness
    from serve.schema import SearchRequest

    rng = random.Random(seed)
    times: dict[Freshness, list[float]] = {"trust": [], "check": []}
    for i in range(N_SEARCHES + 10):
        query = f"{rng.choice(WORDS)} {rng.choice(WORDS)} {rng.randrange(n)}"
        for freshness in rng.sample(list(times), 2):
            begun = time.perf_counter()
            await coordinator.search(SearchRequest(corpus="files", query=query, freshness=freshness, keep_all=True))
            if i >= 10:
                times[freshness].append(1e3 * (time.perf_counter() - begun))
    return {
        name: {"p50_ms": round(statistics.median(ms), 3), "p95_ms": round(statistics.quantiles(ms, n=20)[18], 3)}
        for name, ms in times.items()
    }
