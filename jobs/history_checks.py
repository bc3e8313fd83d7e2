"""Jobs and readers of a random history, and what must hold: each generation is one moment, the last one as if built from scratch."""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jobs.history_model import SOURCES, Model, write_to_memory
from jobs.pool import LocalPool, WorkerSettings
from shards import manifest
from shards.cache import FileCache
from shards.corpus import Source
from shards.generation import Generation
from shards.identity import content_hash
from shards.layers import SpaceSpec
from shards.layers.contract import Request, Resources
from shards.plan import Everything, Plan
from shards.segment import unpack_entry
from shards.store import Store, open_store
from shards.types import Budget
from shards.update import Options, Outcome, Updater

QUERIES = ("amber basalt", "cobalt dolomite", "ebony", "a/x", "garnet hematite")
LAYERS = ("names", "bm25")
CORPUS = "c"


class Patience:
    """A clock by which waiting takes no time: whoever waits for the lease of a job that died finds it expired."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        self.ahead_s += seconds


class Bench:
    """Where histories happen: a folder for caches, resources that are loaded once, jobs in this process."""

    def __init__(self, folder: Path, layers: tuple[str, ...] = LAYERS):
        self.folder, self.resources = folder, Resources()
        self.specs = tuple(SpaceSpec.parse(layer) for layer in layers)
        self.cache = FileCache(folder / "cache", 1 << 30)
        self.patience = Patience()

    def job(self, store: Store, source: str, url: str, options: Mapping[str, Any] | None = None, shards: int | None = None) -> Outcome:
        """One run of the index job over a source. Raises SondageError, and what the store raises."""

        def pool(corpus_store: Store, specs: dict[str, tuple[SpaceSpec, str]]) -> LocalPool:
            made = LocalPool(WorkerSettings("memory://unused", {}, self.folder / "cache", 1 << 30, specs, self.resources), threads=1)
            made.worker.store = corpus_store  # the very store, with its failures
            return made

        asked = Options(CORPUS, Source(source, url, options=options or {}), self.specs, shards, allow_shrink=True)
        return Updater(store, self.cache, self.resources, pool, clock=self.patience, sleep=self.patience.sleep).run(asked)

    def newest(self, store: Store) -> Generation | None:
        number = manifest.latest_generation(store, CORPUS)
        return None if number is None else Generation.open(store, self.cache, CORPUS, number, self.resources)

    def look(self, store: Store, model: Model) -> int:
        """What a reader does: open the newest generation; each source's entries are those of one moment. Returns its number, or 0."""
        generation = self.newest(store)
        if generation is None:
            return 0
        found: dict[str, set[tuple[str, bytes]]] = {name: set() for name in SOURCES}
        for entry in entries_of(generation):
            found[entry.source].add((entry.path, entry.hash))
        for name, held in found.items():
            assert frozenset(held) in model.seen[name], f"generation {generation.root.generation} mixes moments of source {name!r}"
        return generation.root.generation


def entries_of(generation: Generation) -> list[Any]:
    """All live entries; the root's counts must agree with them, and each document with an entry is there once."""
    views = [view for ref in generation.root.shards for view in generation.shard(ref.shard).views]
    found = [unpack_entry(v.segment.entries, row) for v in views for row in np.flatnonzero(v.live_entries).tolist()]
    documents = [v.segment.documents.hashes[row].tobytes() for v in views for row in np.flatnonzero(v.live_docs).tolist()]
    assert sorted(documents) == sorted({entry.hash for entry in found}), "documents and entries do not belong together"
    assert (generation.root.n_docs, generation.root.n_entries) == (len(documents), len(found)), "the root counts wrongly"
    return found


def contents(generation: Generation) -> tuple[dict[Any, Any], list[Any]]:
    """What an index holds, however it came about: raw scores and spans of every query in every space, and all entries."""
    found: dict[Any, Any] = {}
    for query in QUERIES:
        asked = [
            replace(prepared, space=name)
            for name, space in sorted(generation.spaces.items())
            if (prepared := space.layer.prepare(Request(query), generation.statistics(name))) is not None
        ]
        for ref in generation.root.shards:
            hits = generation.shard(ref.shard).search(Plan(Everything(), tuple(asked), n_candidates=1000), Budget(60))
            for row, key in enumerate(hits.hashes):
                scores = np.nan_to_num(hits.scores[row], nan=-1).tolist()  # a space that did not see it
                found[query, key.tobytes()] = (scores, hits.starts[row].tolist(), hits.ends[row].tolist())
    return found, sorted((e.source, e.path, e.hash, e.size_bytes) for e in entries_of(generation))


def check(bench: Bench, store: Store, model: Model) -> None:
    """The index holds the model's files, and finds what one finds that is built from scratch. Raises AssertionError."""
    name = f"scratch-{os.getpid()}-{threading.get_ident()}"
    scratch = open_store(f"memory://{name}")
    for old in scratch.list():
        scratch.delete(old)
    for source in SOURCES:
        if model.files[source]:
            write_to_memory(name, model, source)
            bench.job(scratch, source, f"memory://{name}")
    expected, generation = bench.newest(scratch), bench.newest(store)
    assert expected is not None and generation is not None, "nothing was published"
    held = {(e.source, e.path): e.hash for e in entries_of(generation)}
    assert held == {(s, p): content_hash(d) for s, files in model.files.items() for p, d in files.items()}, "other files than the source's"
    assert contents(generation) == contents(expected), "other hits than from scratch"
