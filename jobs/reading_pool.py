"""An index job's work on this machine, listing and reading in processes: both are Python's own work, of which threads do one at a time.

The processes are forked, so they start in milliseconds with everything imported: whoever makes them has no other threads yet.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.util import Finalize
from typing import Any

from jobs.pool import LocalPool, WorkerSettings
from shards.errors import StoreError
from shards.worker import Staged, StageTask, Worker

READ = "stage"  # the task that reads files
LOOK_S = 0.5  # between looks of a reader whether there is somebody to read for
_workers: dict[str, Worker] = {}  # of a forked process, by the spaces that it knows


class Readers:
    """Forked processes that read files. Close it."""

    def __init__(self, n: int):
        self._pool = ProcessPoolExecutor(n, multiprocessing.get_context("fork"), initializer=_end_with, initargs=(os.getpid(),))
        for started in [self._pool.submit(int) for _ in range(n)]:  # now, not when there are threads
            started.result()

    def run(self, settings: WorkerSettings, tasks: Sequence[StageTask]) -> Iterator[Staged]:
        """Results as they finish. Raises as `Worker.stage`, and StoreError where a process died; what was read is kept."""
        futures = [self._pool.submit(_staged, settings, task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise StoreError(f"A process that read files died ({error}). If memory ran out, exclude what is large. Run again.") from error
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class ReadingPool:
    """`shards.writing.Executor`: reads in these processes, builds in threads of this one."""

    def __init__(self, readers: Readers, settings: WorkerSettings, threads: int):
        self._readers, self._settings, self._local = readers, settings, LocalPool(settings, threads)

    def run(self, method: str, tasks: Sequence[Any]) -> Iterator[Any]:
        return self._readers.run(self._settings, tasks) if method == READ else self._local.run(method, tasks)

    def close(self) -> None:
        self._local.close()


def _end_with(parent: int) -> None:
    """Have this process end when the one that forked it has. Its pipe does not tell: siblings hold the other end, too."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _staged(settings: WorkerSettings, task: StageTask) -> Staged:
    key = repr((settings.store_url, sorted(settings.specs.items())))
    if key not in _workers:
        _workers[key] = settings.start()
        Finalize(None, _workers[key].close, exitpriority=0)
    return _workers[key].stage(task)
