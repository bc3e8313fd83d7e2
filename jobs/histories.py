"""Random histories of a corpus: files come, change, move and go, documents are pushed; jobs and servers run at once, fail and die.

Readers look all the time. A history is drawn from a seed. Whatever happened, every reader saw one generation whole, what was
acknowledged is there once, and at the end the index holds, and finds, what one holds that was built from scratch
(`jobs/history_checks.py`). `python jobs/bench.py histories` runs as many as one likes.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from jobs.history_checks import Bench, check
from jobs.history_model import SOURCES, Model, change, write_to_folder, write_to_memory
from jobs.history_pushes import PushedLog, apply, push, submit
from jobs.history_readers import watching
from jobs.progress import Progress
from jobs.unreliable_store import Died, Unreliable
from shards.errors import BadSpec, SondageError, SourceError, StoreError
from shards.pushlog import Operation
from shards.store import Store, open_store

Where = Callable[[str], tuple[str, Mapping[str, Any]]]  # of a source's name: its URL and options
Fates = Counter[str]


def _finish(bench: Bench, log: PushedLog, where: Where) -> None:
    """One undisturbed run a source, what was pushed applied, and the check."""
    for source in SOURCES:
        if log.model.files[source]:
            url, options = where(source)
            bench.job(log.store, source, url, options)
    apply(bench, log.store)
    log.check()
    check(bench, log.store, log.model)


# --- in memory ---------------------------------------------------------------------------------------------------------------


def in_memory(bench: Bench, seed: int) -> Fates:
    """A history in memory: whoever works fails, dies at any operation of the store, and is overtaken. Returns what happened, counted."""
    rng = random.Random(seed)
    place = f"history-{os.getpid()}-{threading.get_ident()}"
    store = open_store(f"memory://{place}")
    for old in store.list():
        store.delete(old)
    model, fates = Model(), Fates()
    log = PushedLog(store, model)

    def some_act(bench: Bench) -> Callable[[Store], None] | None:
        """What somebody on a machine does next; None where there is nothing to do it with."""
        kind = rng.choice(("job", "job", "push", "apply"))
        if kind == "push":
            return lambda through: fates.update(push(bench, log, through, log.draw(rng), rng))
        if kind == "apply":
            return lambda through: apply(bench, through)
        source, shards = rng.choice(SOURCES), rng.choice((None, None, None, 1, 3))
        if not model.files[source]:
            return None
        return lambda through: bench.job(through, source, f"memory://{place}-{source}", shards=shards) and None

    def perform(act: Callable[[Store], None], through: Store) -> None:
        try:
            act(through)
            fates["done"] += 1
        except Died:
            fates["died"] += 1
        except StoreError:
            fates["failed"] += 1

    for _ in range(rng.randint(3, 6)):
        for source in rng.sample(SOURCES, rng.randint(0, 2)):
            model.set(source, change(rng, model.files[source]))
            write_to_memory(f"{place}-{source}", model, source)
        act, fate = some_act(bench), rng.choice(("done", "dies", "fails", "overtaken", "looked at"))
        if act is None:
            continue
        through: Store = store
        if fate == "dies":
            through = Unreliable(store, rng, dies_at=rng.randint(1, 60), after=rng.random() < 0.5)
        elif fate == "fails":
            through = Unreliable(store, rng, chance=0.03)
        elif fate == "overtaken":
            moment = rng.randint(1, 60)

            def meanwhile(n: int, moment: int = moment) -> None:
                if n == moment and (other := some_act(bench.elsewhere)) is not None:
                    perform(other, store)
                    fates["overtaken"] += 1

            through = Unreliable(store, rng, meanwhile=meanwhile)
        elif fate == "looked at":
            every = rng.randint(3, 9)
            through = Unreliable(store, rng, meanwhile=lambda n, every=every: n % every or bench.elsewhere.look(log))
        perform(act, through)
        bench.look(log)
    _finish(bench, log, lambda source: (f"memory://{place}-{source}", {}))
    return fates


# --- on a disk, with kills ---------------------------------------------------------------------------------------------------


def with_kills(bench: Bench, seed: int, folder: Path, context: Any) -> Fates:
    """A history on a disk: jobs and servers are processes, two or three at once; many are killed (SIGKILL) at some operation.

    A reader looks and a coordinator is asked all the while. context: of multiprocessing, where processes start. Returns what happened,
    counted.
    """
    rng = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    store, model, fates = open_store(str(folder / "store")), Model(), Fates()
    log = PushedLog(store, model)
    with watching(bench, log, {}) as seen:
        for turn in range(rng.randint(1, 3)):
            for source in SOURCES:
                model.set(source, change(rng, model.files[source]))
                write_to_folder(folder / source, model, source)
            pushed = log.draw(rng)
            said = folder / f"said-{turn}"
            works: list[tuple[Any, ...]] = [("job", source) for source in rng.sample(SOURCES, rng.randint(1, 2))]
            works.append(("push", pushed, str(said)))
            if rng.random() < 0.5:
                works.append(("apply",))
            running = []
            for work in works:
                dies_at = rng.choice((0, rng.randint(1, 20 if work[0] == "push" else 60)))
                arguments = (str(folder), work, rng.randint(0, 2**30), dies_at, rng.random() < 0.5, bench.patience.ahead_s)
                running.append(context.Process(target=_work_that_may_be_killed, args=arguments))
                running[-1].start()
            for process in running:
                process.join()
                fates[{0: "done", -signal.SIGKILL: "killed"}.get(process.exitcode or 0, "failed")] += 1
            fates.update(_ask_again(bench, log, pushed, said, rng))
            # A job that waits for a dead one's lease must not wait in earnest.
            bench.patience.ahead_s += 60
        _finish(bench, log, lambda source: (str(folder / source), {}))
    return fates + seen


def _ask_again(bench: Bench, log: PushedLog, pushed: Sequence[Operation], said: Path, rng: random.Random) -> Fates:
    """What clients do whose server was killed: those that it had not answered push to another."""
    answers = (line.split("\t") for line in said.read_text().splitlines()) if said.exists() else ()
    answered = {id: int(position) for id, position in answers}
    for operation in pushed:
        if operation.id in answered:
            log.note(operation, answered[operation.id])
    left = [operation for operation in pushed if operation.id not in answered]
    return push(bench, log, log.store, left, rng) if left else Fates()


def _work_that_may_be_killed(folder: str, work: tuple[Any, ...], seed: int, dies_at: int, after: bool, ahead_s: float) -> None:
    bench = Bench(Path(folder))
    bench.patience.ahead_s = ahead_s
    store = Unreliable(
        open_store(f"{folder}/store"), random.Random(seed), dies_at, after, die=lambda: os.kill(os.getpid(), signal.SIGKILL)
    )  # fmt: skip
    try:
        match work:
            case "job", source:
                bench.job(store, source, f"{folder}/{source}")
            case "push", operations, said:
                with open(said, "a") as file:
                    for operation in operations:  # one by one, so that a kill leaves some answered
                        for id, position in submit(store, [operation], bench.layers).items():
                            if isinstance(position, BaseException):
                                raise position
                            print(id, position, sep="\t", file=file, flush=True)
                apply(bench, store)
            case _:
                apply(bench, store)
    except SourceError:
        raise SystemExit(3) from None
    except SondageError:
        raise SystemExit(2) from None


# --- over a server that fails ------------------------------------------------------------------------------------------------


def through_failures(bench: Bench, seed: int, store: Store, where: Where, write: Callable[[Model, str], None]) -> Fates:
    """A history whose store and sources fail by themselves (a server behind a proxy that harms); jobs and pushes run at once.

    where: of the store, with source "", and of the sources. write: lets the source hold the model's files.
    """
    rng = random.Random(seed)
    model, fates = Model(), Fates()
    log = PushedLog(store, model)

    def perform(act: Callable[[], Any]) -> bool:
        try:
            act()
            fates["done"] += 1
        except SondageError:
            fates["failed"] += 1
            return False
        return True

    def run(source: str) -> None:
        url, options = where(source)
        bench.job(store, source, url, options)

    def push_and_apply(own: random.Random) -> None:
        fates.update(push(bench, log, store, log.draw(own), own))
        apply(bench, store)

    with watching(bench, log, where("")[1]) as seen:
        for _ in range(2):
            for source in SOURCES:
                model.set(source, change(rng, model.files[source]))
                write(model, source)
            acts: list[Callable[[], Any]] = [lambda s=s: run(s) for s in rng.sample(SOURCES, rng.randint(1, 2))]
            pusher = random.Random(rng.random())
            acts.append(lambda pusher=pusher: push_and_apply(pusher))
            threads = [threading.Thread(target=perform, args=(act,)) for act in acts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    for act in (*(lambda s=s: run(s) for s in SOURCES), lambda: apply(bench, store)):
        assert any(perform(act) for _ in range(20)), "no end of failures"
    log.check()
    check(bench, store, model)
    return fates + seen


# --- many --------------------------------------------------------------------------------------------------------------------


def bench_histories(progress: Progress, args: argparse.Namespace) -> dict[str, Any]:
    """`--n` histories in memory from `--seed` on, and a hundredth as many with kills, on all cores. Raises BadSpec naming a seed that
    fails."""
    kinds = {"memory": args.n, "kills": max(1, args.n // 100)}
    report: dict[str, Any] = {"seed": args.seed}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(mp_context=_forkserver()) as pool:
        for kind, n in kinds.items():
            begun, fates, done = time.monotonic(), Fates(), 0
            size = min(50, max(1, n // 16))
            parts = [range(start, min(start + size, args.seed + n)) for start in range(args.seed, args.seed + n, size)]
            for part in as_completed([pool.submit(_some, kind, seeds, folder) for seeds in parts]):
                happened, wrong = part.result()
                if wrong:
                    pool.shutdown(cancel_futures=True)
                    raise BadSpec(f"History ({kind}) of seed {wrong[0]} ends wrongly: {wrong[1]}. Run it alone: --seed {wrong[0]} --n 1.")
                fates += happened
                done += size
                progress(f"histories ({kind})", min(done, n), n, "histories")
            report[kind] = {"n": n, "seconds": time.monotonic() - begun, **fates}
    return report


def _forkserver() -> Any:
    """Where processes are forked from one that has everything loaded and no threads: they start at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jobs.histories"])
    return context


def _some(kind: str, seeds: Sequence[int], folder: str) -> tuple[Fates, tuple[int, str] | None]:
    """What happened in some histories, counted; and the first that ends wrongly, with the reason."""
    own = Path(folder) / str(os.getpid())
    shutil.rmtree(own, ignore_errors=True)  # a cache of many histories is slow to look through
    own.mkdir()
    bench, fates = Bench(own), Fates()
    for seed in seeds:
        try:
            fates += in_memory(bench, seed) if kind == "memory" else with_kills(bench, seed, own / "killed", _forkserver())
        except AssertionError as error:
            return fates, (seed, str(error))
    return fates, None
