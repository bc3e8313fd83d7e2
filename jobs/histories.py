"""Random histories of a corpus: files come, change, move and go; jobs run, run at once, fail and die; readers look all the time.

A history is drawn from a seed. Whatever happened, every reader saw one generation whole, and at the end the index holds, and finds,
what one holds that was built from scratch (`jobs/history_checks.py`). `python jobs/bench.py histories` runs as many as one likes.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs.history_checks import Bench, check
from jobs.history_model import SOURCES, Model, change, write_to_folder, write_to_memory
from jobs.progress import Progress
from jobs.unreliable_store import Died, Unreliable
from shards.errors import BadSpec, SondageError, SourceError, StoreError
from shards.store import Store, open_store

Where = Callable[[str], tuple[str, Mapping[str, Any]]]  # of a source's name: its URL and options


def in_memory(bench: Bench, seed: int) -> Counter[str]:
    """A history in memory: jobs fail, die at any operation of the store, and overtake one another. Returns what happened, counted."""
    rng = random.Random(seed)
    place = f"history-{os.getpid()}-{threading.get_ident()}"
    store = open_store(f"memory://{place}")
    for old in store.list():
        store.delete(old)
    model, fates = Model(), Counter[str]()

    def run(source: str, through: Store) -> None:
        try:
            bench.job(through, source, f"memory://{place}-{source}", shards=rng.choice((None, None, None, 1, 3)))
            fates["done"] += 1
        except Died:
            fates["died"] += 1
        except StoreError:
            fates["failed"] += 1

    for _ in range(rng.randint(2, 4)):
        for source in rng.sample(SOURCES, rng.randint(1, 2)):
            model.set(source, change(rng, model.files[source]))
            write_to_memory(f"{place}-{source}", model, source)
        source, fate = rng.choice(SOURCES), rng.choice(("done", "dies", "fails", "overtaken", "looked at"))
        if not model.files[source]:
            continue
        through: Store = store
        if fate == "dies":
            through = Unreliable(store, rng, dies_at=rng.randint(1, 60), after=rng.random() < 0.5)
        elif fate == "fails":
            through = Unreliable(store, rng, chance=0.03)
        elif fate == "overtaken":
            other = rng.choice([name for name in SOURCES if model.files[name]])
            moment = rng.randint(1, 60)

            def meanwhile(n: int, moment: int = moment, other: str = other) -> None:
                if n == moment:
                    run(other, store)
                    fates["overtaken"] += 1

            through = Unreliable(store, rng, meanwhile=meanwhile)
        elif fate == "looked at":
            every = rng.randint(3, 9)
            through = Unreliable(store, rng, meanwhile=lambda n, every=every: n % every or bench.look(store, model))
        run(source, through)
        bench.look(store, model)
    _finish(bench, store, model, lambda source: (f"memory://{place}-{source}", {}))
    return fates


def _finish(bench: Bench, store: Store, model: Model, where: Where) -> None:
    """One undisturbed run a source, and the check."""
    for source in SOURCES:
        if model.files[source]:
            url, options = where(source)
            bench.job(store, source, url, options)
    check(bench, store, model)


def with_kills(bench: Bench, seed: int, folder: Path, context: Any) -> Counter[str]:
    """A history on a disk: jobs are processes, sometimes two at once; many are killed (SIGKILL) at some operation of the store.

    A reader looks all the while. context: of multiprocessing, where processes start. Returns what happened, counted.
    """
    rng = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    store, model, fates = open_store(str(folder / "store")), Model(), Counter[str]()
    for _ in range(rng.randint(1, 3)):
        for source in SOURCES:
            model.set(source, change(rng, model.files[source]))
            write_to_folder(folder / source, model, source)
        jobs = []
        for source in rng.sample(SOURCES, rng.randint(1, 2)):
            dies_at = rng.choice((0, rng.randint(1, 60)))
            arguments = (str(folder), source, rng.randint(0, 2**30), dies_at, rng.random() < 0.5, bench.patience.ahead_s)
            jobs.append(context.Process(target=_job_that_may_be_killed, args=arguments))
            jobs[-1].start()
        while any(job.is_alive() for job in jobs):
            fates["looks"] += 1
            bench.look(store, model)
        for job in jobs:
            job.join()
            fates[{0: "done", -signal.SIGKILL: "killed"}.get(job.exitcode or 0, "failed")] += 1
        # A job that waits for a dead one's lease must not wait in earnest.
        bench.patience.ahead_s += 60
    _finish(bench, store, model, lambda source: (str(folder / source), {}))
    return fates


def _job_that_may_be_killed(folder: str, source: str, seed: int, dies_at: int, after: bool, ahead_s: float) -> None:
    bench = Bench(Path(folder))
    bench.patience.ahead_s = ahead_s
    store = Unreliable(
        open_store(f"{folder}/store"), random.Random(seed), dies_at, after, die=lambda: os.kill(os.getpid(), signal.SIGKILL)
    )  # fmt: skip
    try:
        bench.job(store, source, f"{folder}/{source}")
    except SourceError:
        raise SystemExit(3) from None
    except SondageError:
        raise SystemExit(2) from None


def through_failures(bench: Bench, seed: int, store: Store, where: Where, write: Callable[[Model, str], None]) -> Counter[str]:
    """A history whose store and sources fail by themselves (a server behind a proxy that harms); jobs run one by one, and two at once.

    write: lets the source hold the model's files.
    """
    rng = random.Random(seed)
    model, fates = Model(), Counter[str]()

    def run(source: str) -> None:
        try:
            url, options = where(source)
            bench.job(store, source, url, options)
            fates["done"] += 1
        except SondageError:
            fates["failed"] += 1

    for _ in range(2):
        for source in SOURCES:
            model.set(source, change(rng, model.files[source]))
            write(model, source)
        with watching(bench, store, model) as looks:
            threads = [threading.Thread(target=run, args=(source,)) for source in rng.sample(SOURCES, rng.randint(1, 2))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        fates["looks"] += len(looks)
    for source in SOURCES:
        for _ in range(10):
            done = fates["done"]
            run(source)
            if fates["done"] > done:
                break
    check(bench, store, model)
    return fates


@contextmanager
def watching(bench: Bench, store: Store, model: Model) -> Iterator[list[int]]:
    """A reader that looks all the time, in a thread. Gives the generations it saw; raises what it found wrong."""
    seen: list[int] = []
    wrong: list[BaseException] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set() and not wrong:
            try:
                seen.append(bench.look(store, model))
            except StoreError:  # it, too, meets the failing server
                continue
            except BaseException as error:
                wrong.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
    if wrong:
        raise wrong[0]
    assert seen == sorted(seen), "the newest generation went back"


def bench_histories(progress: Progress, args: argparse.Namespace) -> dict[str, Any]:
    """`--n` histories in memory from `--seed` on, and a hundredth as many with kills. Raises BadSpec naming the first seed that fails."""
    fates: dict[str, Counter[str]] = {"memory": Counter(), "kills": Counter()}
    seconds: dict[str, float] = {}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jobs.histories"])  # forked from one that has everything loaded, a process starts at once
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        kinds: dict[str, tuple[int, Callable[[int], Counter[str]]]] = {
            "memory": (args.n, lambda seed: in_memory(bench, seed)),
            "kills": (max(1, args.n // 100), lambda seed: with_kills(bench, seed, Path(folder) / "killed", context)),
        }
        for kind, (n, history) in kinds.items():
            begun = time.monotonic()
            for i in range(n):
                try:
                    fates[kind] += history(args.seed + i)
                except AssertionError as error:
                    message = f"History ({kind}) of seed {args.seed + i} ends wrongly: {error}. Run it alone, with --n 1."
                    raise BadSpec(message) from error
                progress(f"histories ({kind})", i + 1, n, "histories")
            seconds[kind] = time.monotonic() - begun
    return {"seed": args.seed, **{kind: {"n": kinds[kind][0], "seconds": seconds[kind], **fates[kind]} for kind in kinds}}
