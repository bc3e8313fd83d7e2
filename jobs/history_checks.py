"""Jobs and readers of a random history, and what must hold: each generation is one moment, the last one as if built from scratch."""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.history_model import PUSHED, SOURCES, Model, write_to_memory
from jobs.pool import LocalPool, WorkerSettings
from shards import manifest, pushlog
from shards.cache import FileCache
from shards.corpus import Source
from shards.generation import Generation
from shards.layers import SpaceSpec
from shards.layers.contract import Request, Resources
from shards.plan import Everything, Plan
from shards.push import Applier
from shards.renditions import Skipped, render
from shards.segment import unpack_entry
from shards.store import Store, open_store
from shards.types import Budget
from shards.update import Options, Outcome, Updater

if TYPE_CHECKING:
    from jobs.history_pushes import PushedLog

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

    def __init__(self, folder: Path, layers: tuple[str, ...] = LAYERS, patience: Patience | None = None):
        self.folder, self.resources, self.layers = folder, Resources(), layers
        self.specs = tuple(SpaceSpec.parse(layer) for layer in layers)
        self.cache = FileCache(folder / "cache", 1 << 30)
        self.patience = patience or Patience()

    @cached_property
    def elsewhere(self) -> "Bench":
        """Another machine, under the same clock. Whoever works within an operation of somebody here needs one: files of a cache are
        locked while they are fetched."""
        return Bench(self.folder / "elsewhere", self.layers, self.patience)

    def job(self, store: Store, source: str, url: str, options: Mapping[str, Any] | None = None, shards: int | None = None) -> Outcome:
        """One run of the index job over a source. Raises SondageError, and what the store raises."""

        def pool(corpus_store: Store, specs: dict[str, tuple[SpaceSpec, str]]) -> LocalPool:
            made = LocalPool(WorkerSettings("memory://unused", {}, self.folder / "cache", 1 << 30, specs, self.resources), threads=1)
            made.worker.store = corpus_store  # the very store, with its failures
            return made

        asked = Options(CORPUS, Source(source, url, options=options or {}), self.specs, shards, allow_shrink=True)
        return Updater(store, self.cache, self.resources, pool, clock=self.patience, sleep=self.patience.sleep).run(asked)

    def applier(self, store: Store) -> Applier:
        """Who applies the log of what was pushed."""
        return Applier(store, CORPUS, self.cache, self.resources, clock=self.patience, sleep=self.patience.sleep)

    def opened(self, store: Store, number: int) -> Generation:
        return Generation.open(store, self.cache, CORPUS, number, self.resources)

    def newest(self, store: Store) -> Generation | None:
        number = manifest.latest_generation(store, CORPUS)
        return None if number is None else self.opened(store, number)

    def look(self, log: "PushedLog") -> int:
        """What a reader does: open the newest generation; each source's entries are those of one moment. Returns its number, or 0."""
        generation, model = self.newest(log.store), log.model
        log.follow()
        if generation is None:
            return 0
        found: dict[str, set[tuple[str, bytes]]] = {name: set() for name in model.seen}
        for entry in entries_of(generation):
            found[entry.source].add((entry.path, entry.hash))
        for name, held in found.items():
            assert frozenset(held) in model.seen[name], f"generation {generation.root.generation} mixes moments of source {name!r}"
        return generation.root.generation


def put(path: str, data: bytes, id: str = "") -> pushlog.Operation:
    """A text put at a path."""
    rendition = render(data)
    assert not isinstance(rendition, Skipped)
    return pushlog.Operation(path, rendition.hash, rendition.text, rendition.kind, len(data), mtime_ns=5, id=id)


def entries_of(generation: Generation | None) -> list[Any]:
    """All live entries; the root's counts must agree with them, and each document with an entry is there once."""
    if generation is None:
        return []
    views = [view for ref in generation.root.shards for view in generation.shard(ref.shard).views]
    found = [unpack_entry(v.segment.entries, row) for v in views for row in np.flatnonzero(v.live_entries).tolist()]
    documents = [v.segment.documents.hashes[row].tobytes() for v in views for row in np.flatnonzero(v.live_docs).tolist()]
    entered = {entry.hash for entry in found}
    twice = {key.hex() for key in documents if documents.count(key) > 1} if len(documents) != len(set(documents)) else set()
    alone = {key.hex() for key in set(documents) - entered}, {entry.path for entry in found if entry.hash not in set(documents)}
    assert not twice and alone == (set(), set()), f"there twice: {twice}; documents without an entry, paths without a document: {alone}"
    assert (generation.root.n_docs, generation.root.n_entries) == (len(documents), len(found)), "the root counts wrongly"
    return found


def contents(generation: Generation | None) -> tuple[dict[Any, Any], list[Any]]:
    """What an index holds, however it came about: raw scores and spans of every query in every space, and all entries."""
    found: dict[Any, Any] = {}
    if generation is None:
        return found, []
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
    if model.files[PUSHED]:
        puts = [put(path, data) for path, data in sorted(model.files[PUSHED].items())]
        manifest.corpus_store(scratch, CORPUS).create(pushlog.entry_name(1), pushlog.dump(puts, 0.0, bench.layers))
        bench.applier(scratch).apply()
    generation = bench.newest(store)
    assert {(e.source, e.path): e.hash for e in entries_of(generation)} == model.held, "other files than the sources'"
    assert contents(generation) == contents(bench.newest(scratch)), "other hits than from scratch"
