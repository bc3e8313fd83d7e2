"""Where an index job's work runs: threads of this process, or a pool of Ray actors.

The driver moves only names and counts; workers read and write storage themselves. A worker that dies is restarted by Ray and
its task repeated, which is harmless because results are named by task or content.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shards.cache import FileCache
from shards.errors import SondageError
from shards.layers import SpaceSpec
from shards.layers.contract import Resources
from shards.store import open_store
from shards.worker import Worker

logger = logging.getLogger(__name__)

IN_FLIGHT = 2  # tasks per actor: one runs while the next one's arguments travel
CPUS = 0.85  # of a core per actor: leaves room on a 2-core node for the hosts (0.01) and the coordinator (0.1)
LOCAL_TASKS = 2  # up to so many tasks run in the driver: an actor takes longer to start (1 to 2 s) than they take


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is started with, on any node. store_url: the corpus's folder."""

    store_url: str
    store_options: dict[str, Any]
    cache_dir: Path
    cache_bytes: int
    specs: dict[str, tuple[SpaceSpec, str]]
    resources: Resources

    def start(self) -> Worker:
        """The worker, in this process."""
        store = open_store(self.store_url, **self.store_options)
        return Worker(store, FileCache(self.cache_dir, self.cache_bytes), self.specs, self.resources)


class RemoteWorker:
    """A worker as an actor."""

    def __init__(self, settings: WorkerSettings):
        self.worker = settings.start()

    def run(self, method: str, task: Any) -> Any:
        return getattr(self.worker, method)(task)


class LocalPool:
    """Runs tasks in threads of this process; compiled loops and file reads release the interpreter's lock."""

    def __init__(self, settings: WorkerSettings, threads: int = 2):
        self.worker, self.threads = settings.start(), threads

    def run(self, method: str, tasks: Sequence[Any]) -> Iterator[Any]:
        """Results as they finish."""
        if len(tasks) == 1:
            yield getattr(self.worker, method)(tasks[0])
            return
        with ThreadPoolExecutor(self.threads) as pool:
            futures = [pool.submit(getattr(self.worker, method), task) for task in tasks]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                for future in futures:
                    future.cancel()

    def close(self) -> None:
        """Close the sources that were read."""
        self.worker.close()


class RayPool:
    """Runs tasks on actors over the cluster, as many as its cores; a handful of tasks stay in the driver."""

    def __init__(self, settings: WorkerSettings, threads: int = 2):
        self.settings, self.threads = settings, threads
        self._actors: list[Any] = []
        self._local: LocalPool | None = None

    def run(self, method: str, tasks: Sequence[Any]) -> Iterator[Any]:
        """Results as they finish."""
        if not self._actors and len(tasks) <= LOCAL_TASKS:
            self._local = self._local or LocalPool(self.settings, self.threads)
            yield from self._local.run(method, tasks)
            return
        import ray

        from cluster.actors import remote_worker

        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        missing = min(cores, len(tasks)) - len(self._actors)
        if missing > 0:
            actor = remote_worker(RemoteWorker, num_cpus=CPUS)
            self._actors += [actor.remote(self.settings) for _ in range(missing)]
            logger.info("event=workers_started n=%d", len(self._actors))
        waiting = list(reversed(tasks))
        running: dict[Any, Any] = {}
        for actor in self._actors * IN_FLIGHT:
            if waiting:
                running[actor.run.remote(method, waiting.pop())] = actor
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            actor = running.pop(done)
            if waiting:
                running[actor.run.remote(method, waiting.pop())] = actor
            try:
                result = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, SondageError):  # the caller's to read, without the actor's traceback
                    raise error.cause from None
                raise
            except ray.exceptions.RayActorError as error:
                raise SondageError(
                    f"A worker died again and again ({error}). If its node ran out of memory, use more --shards; what was read and "
                    "encoded is kept for the next run."
                ) from error
            yield result

    def close(self) -> None:
        """End the actors."""
        if self._local is not None:
            self._local.close()
        if self._actors:
            import ray

            for actor in self._actors:
                ray.kill(actor)
            self._actors = []


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))
