"""What editing one file of many costs: seconds, files hashed, passages encoded, bytes that the store reads and writes.

The store counts and says of no file that it is local, as a bucket would: so whatever a job reads is counted, once a machine, since
what was read before is in the cache. Beside it, in the same run, the bare limits: walking the folder, and writing to
the same disk as many synced files of the same size in all as the job does.
"""

import asyncio
import os
import statistics
import tempfile
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

from jobs.bench_corpus import passages_of_stdlib
from jobs.progress import Progress
from shards.errors import BadSpec
from shards.store import Names, Store, open_store

LAYERS = ("names", "text", "bm25", "static")
FOLDER_FILES = 1000  # files in a folder
N_EDITS = 9


class CountingStore(Store):
    """A store that counts the bytes it reads and writes, by kind of file (the first part of its name below the corpus).

    files_written: their number, by kind. The stores of its folders count with it.
    """

    def __init__(self, inner: Store, counts: tuple[Counter[str], ...] = (), folder: str = ""):
        self.inner, self.url, self._folder = inner, inner.url, folder
        self._counts = counts or (Counter(), Counter(), Counter())
        self.bytes_read, self.bytes_written, self.files_written = self._counts
        self.parallel = inner.parallel  # type: ignore[misc]

    def _kind(self, name: str) -> str:
        return (self._folder + name).split("/")[1]

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        data = self.inner.read(name, start, end)
        self.bytes_read[self._kind(name)] += len(data)
        return data

    def write(self, name: str, data: bytes) -> None:
        self._note(name, data)
        self.inner.write(name, data)

    def create(self, name: str, data: bytes) -> None:
        self._note(name, data)
        self.inner.create(name, data)

    def _note(self, name: str, data: bytes) -> None:
        self.bytes_written[self._kind(name)] += len(data)
        self.files_written[self._kind(name)] += 1

    def list(self, prefix: str = "") -> Names:
        return self.inner.list(prefix)

    def folders(self, folder: str = "") -> Names:
        return self.inner.folders(folder)

    def size(self, name: str) -> int:
        return self.inner.size(name)

    def delete(self, name: str) -> None:
        self.inner.delete(name)

    def child(self, folder: str) -> "CountingStore":
        return CountingStore(self.inner.child(folder), self._counts, f"{self._folder}{folder}/")


def bench_upsert(progress: Progress, options: Namespace) -> dict[str, Any]:
    """By number of files: medians of an edit, and of an edit by a machine whose cache is empty."""
    found: dict[str, Any] = {"layers": LAYERS}
    for n in options.files:
        passages, found["corpus"] = passages_of_stdlib(n, progress)
        with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
            source = _write(Path(scratch) / "src", passages)
            found[f"{n} files"] = asyncio.run(_measured(progress, Path(scratch), source, options.rounds or N_EDITS))
    return found


def _write(folder: Path, passages: list[str]) -> Path:
    for i, passage in enumerate(passages):
        path = folder / f"{i // FOLDER_FILES:04}" / f"{i % FOLDER_FILES:03}.txt"
        if i % FOLDER_FILES == 0:
            path.parent.mkdir(parents=True)
        path.write_text(passage)
        os.utime(path, (1_700_000_000, 1_700_000_000))  # long ago: its time can be trusted
    return folder


async def _measured(progress: Progress, scratch: Path, source: Path, rounds: int) -> dict[str, Any]:
    from cluster.settings import HostSettings
    from serve.local import local_coordinator

    files = sorted(source.rglob("*.txt"))
    begun = time.perf_counter()
    _job(scratch / "cache", scratch, source)
    found: dict[str, Any] = {"first build_s": round(time.perf_counter() - begun, 1)}
    rows: dict[str, list[float]] = {}
    settings = HostSettings(store_url=str(scratch / "store"), cache_dir=scratch / "hosts")
    async with local_coordinator(settings, poll_s=0.1) as coordinator:
        await coordinator.generations.until_warm()
        for i in range(rounds):
            word = f"zyxwv{i}qq"  # nowhere else
            edited = files[(i * 7919) % len(files)]
            edited.write_text(f"{edited.read_text()} {word}")
            os.utime(edited, (1_700_000_001 + i, 1_700_000_001 + i))
            begun = time.perf_counter()
            outcome, store = await asyncio.to_thread(_job, scratch / "cache", scratch, source)
            took = {"job_s": time.perf_counter() - begun, **{f"{step}_s": s for step, s in outcome.seconds.items()}}
            await _until_found(coordinator, word)
            took["searchable_s"] = time.perf_counter() - begun
            took |= {"files_hashed": outcome.hashed, "passages_encoded": outcome.encoded.get("static", 0), "merges": outcome.merged}
            took |= {"bytes_written": store.bytes_written.total(), "bytes_read": store.bytes_read.total()}
            took["files_written"] = store.files_written.total()
            took |= {f"written {kind}": n for kind, n in store.bytes_written.items()}
            for name, value in took.items():
                rows.setdefault(name, []).append(value)
            progress("upsert", i + 1, rounds, "edits")
    files[0].write_text(files[0].read_text() + " once more")
    outcome, store = _job(scratch / "empty", scratch, source)
    found["edit"] = {name: round(statistics.median(values), 4) for name, values in rows.items()}
    found["edit, most"] = {name: round(max(rows[name]), 4) for name in ("job_s", "searchable_s", "bytes_written", "bytes_read")}
    found["edit with an empty cache"] = {"job_s": round(sum(outcome.seconds.values()), 3), "bytes_read": store.bytes_read.total()}
    walked_s = statistics.median(_walked(source) for _ in range(3))
    found["walking the folder_s"] = round(walked_s, 4)
    written_s = statistics.median(_written(scratch / f"bare{i}", found["edit"]) for i in range(3))
    found["writing as many synced files_s"] = round(written_s, 4)
    found["job times walking the folder"] = round(found["edit"]["job_s"] / walked_s, 2)
    return found


def _job(cache_dir: Path, scratch: Path, source: Path) -> tuple[Any, CountingStore]:
    """One run of the index job in this process, over a store that counts."""
    from jobs.pool import LocalPool, WorkerSettings
    from serve.calibrate import Calibrator
    from shards.cache import FileCache
    from shards.corpus import Source
    from shards.layers import SpaceSpec
    from shards.layers.contract import Resources
    from shards.update import Options, Updater

    store, resources = CountingStore(open_store(str(scratch / "store"))), Resources()

    def executor(corpus_store: Store, specs: Any) -> LocalPool:
        pool = LocalPool(WorkerSettings(corpus_store.url, {}, cache_dir, 64 << 30, specs, resources))
        pool.worker.store = corpus_store
        return pool

    options = Options("files", Source("main", str(source)), tuple(map(SpaceSpec.parse, LAYERS)))
    return Updater(store, FileCache(cache_dir, 64 << 30), resources, executor, Calibrator()).run(options), store


async def _until_found(coordinator: Any, word: str) -> None:
    from serve.schema import SearchRequest

    request = SearchRequest(
        corpus="files", query=word, layers=["text"]
    )  # exact strings: the verdict takes words of no language for nonsense
    deadline = time.perf_counter() + 60
    while not (await coordinator.search(request)).hits:
        if time.perf_counter() > deadline:
            raise BadSpec(f"What was edited was not found within a minute ({word}).")
        await asyncio.sleep(0.01)


def _written(folder: Path, edit: dict[str, float]) -> float:
    """Seconds to write as much as an edit does, in as many files."""
    store, n = open_store(str(folder)), int(edit["files_written"])
    body = bytes(int(edit["bytes_written"]) // n)
    begun = time.perf_counter()
    for i in range(n):
        store.write(f"{i}", body)
    return time.perf_counter() - begun


def _walked(folder: Path) -> float:
    """Seconds to list the folder and ask the size and time of each file."""
    begun = time.perf_counter()
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    entry.stat()
    return time.perf_counter() - begun
