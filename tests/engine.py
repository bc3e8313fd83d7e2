"""A whole small engine in this process for tests: the real store, job, host and coordinator, without Ray."""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.host import Host
from cluster.local import LocalSearcher
from jobs.pool import LocalPool, WorkerSettings
from serve.calibrate import Calibrator
from serve.coordinator import Coordinator
from serve.schema import SearchAnswer, SearchRequest
from shards.cache import FileCache
from shards.corpus import Source
from shards.generation import Generation
from shards.layers import SpaceSpec
from shards.layers.contract import Resources
from shards.store import Store, open_store
from shards.update import Options, Outcome, Updater


class Patience:
    """A clock by which waiting takes no time. Who waits for a writer that died, or that is this test itself, finds it expired."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        self.ahead_s += seconds


class Engine:
    """Corpora below one store. layers: specs as on the command line."""

    def __init__(
        self,
        folder: Path,
        layers: Sequence[str] = ("names", "text", "bm25"),
        store: Store | None = None,
        cache_bytes: int = 1 << 30,
    ):
        self.folder, self.cache_bytes = folder, cache_bytes
        self.store = store or open_store(str(folder / "store"))
        self.layers = layers
        self.cache = FileCache(folder / "cache", cache_bytes)
        self.resources = Resources()

    def index(self, source: Path | str, corpus: str = "c", calibrate: bool = True, **options: Any) -> Outcome:
        """One run of the index job."""
        layers = options.pop("layers", self.layers)
        name = options.pop("source_name", "main")
        globs = {key: tuple(options.pop(key, ())) for key in ("include", "exclude")}
        where = Source(name, str(source), **globs, options=options.pop("source_options", {}))
        asked = Options(corpus, where, tuple(SpaceSpec.parse(t) for t in layers), **options)

        def pool(corpus_store: Store, specs: dict[str, tuple[SpaceSpec, str]]) -> LocalPool:
            settings = WorkerSettings(corpus_store.url, {}, self.folder / "cache", self.cache_bytes, specs, self.resources)
            made = LocalPool(settings)
            made.worker.store = corpus_store  # the very store, which a test may have made faulty
            return made

        calibrator = Calibrator() if calibrate else None
        clock = Patience()
        return Updater(self.store, self.cache, self.resources, pool, calibrator, clock=clock, sleep=clock.sleep).run(asked)

    def generation(self, corpus: str = "c", number: int | None = None) -> Generation:
        return Generation.open(self.store, self.cache, corpus, number, self.resources)

    def search_many(self, requests: Sequence[Mapping[str, Any]], corpus: str = "c") -> list[SearchAnswer]:
        """Answers of a fresh coordinator over a fresh host, about what was indexed: sources are looked at where a request says so."""
        said = {"corpus": corpus, "budget_ms": 30_000, "freshness": "trust"}

        async def run() -> list[SearchAnswer]:
            host = Host(self.store.url, {}, str(self.folder / "cache"), self.cache_bytes)
            host.store = self.store
            coordinator = Coordinator(self.store, LocalSearcher(host), self.resources, self.cache)
            return [await coordinator.search(SearchRequest(**said | dict(r))) for r in requests]

        return asyncio.run(run())

    def search(self, query: str = "", corpus: str = "c", **request: Any) -> SearchAnswer:
        return self.search_many([{"query": query, **request}], corpus)[0]


def paths(answer: SearchAnswer) -> list[str]:
    """The first path of each hit."""
    return [hit.entries[0].path for hit in answer.hits]


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Files below a folder, by relative path."""
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body.encode() if isinstance(body, str) else body)
    return folder


def age(source: Path) -> None:
    """Files that were just written are read again by the next run; these were not."""
    for path in source.rglob("*"):
        os.utime(path, (1, 1))
