"""Where an index job's work runs: threads of this process, or a pool of Ray actors.

The driver moves only names and counts; workers read and write storage themselves. A worker that dies is restarted by Ray and
its task repeated, which is harmless because results are named by task or content.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jobs import sizing
from jobs.progress import Report, Shared
from shards.cache import FileCache
from shards.errors import SondageError
from shards.layers import SpaceSpec, create
from shards.layers.contract import Resources
from shards.plugins import load
from shards.store import open_store
from shards.worker import Worker

logger = logging.getLogger(__name__)

IN_FLIGHT = 2  # tasks per actor: one runs while the next one's arguments travel
LOOK_S = 1.0  # between two looks at how far actors are: an actor's answer costs 1 ms
Steps = dict[str, tuple[int, int]]  # of a task: step -> (done, total)
TELLING = "telling"  # concurrency group of these, so that they are answered while a task runs
BUILD = "build"  # the task that encodes, and tells how far it is


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is started with, on any node. store_url: the corpus's folder."""

    store_url: str
    store_options: dict[str, Any]
    cache_dir: Path
    cache_bytes: int
    specs: dict[str, tuple[SpaceSpec, str]]
    resources: Resources
    plugins: tuple[str, ...] = ()  # modules that register what layers name

    def start(self) -> Worker:
        """The worker, in this process. Raises BadSpec for a plugin that cannot be imported here."""
        for module in self.plugins:
            load(module)
        store = open_store(self.store_url, **self.store_options)
        return Worker(store, FileCache(self.cache_dir, self.cache_bytes), self.specs, self.resources)

    @property
    def takes_gpu(self) -> bool:
        """Whether one of the spaces is built faster on a GPU."""
        return any(create(spec, self.resources).takes_gpu for spec, _ in self.specs.values())


class RemoteWorker:
    """A worker as an actor."""

    def __init__(self, settings: WorkerSettings):
        self.worker = settings.start()
        self._told: tuple[int, Steps] = (-1, {})

    def run(self, method: str, place: int, task: Any) -> tuple[Any, Steps]:
        """The result of a task, and the steps that it told of. place: among those that the driver has."""
        steps: Steps = {}
        if method != BUILD:
            return getattr(self.worker, method)(task), steps
        self._told = (place, steps)
        return self.worker.build(task, lambda step, done, total: steps.__setitem__(step, (done, total))), steps

    def told(self) -> tuple[int, Steps]:
        """The place of the task that is under way or was last, and how far its steps are."""
        place, steps = self._told
        return place, dict(steps)


class LocalPool:
    """Runs tasks in threads of this process; compiled loops and file reads release the interpreter's lock.

    report: told how far encoding is.
    """

    def __init__(self, settings: WorkerSettings, threads: int = 2, report: Report | None = None):
        self.worker, self.threads, self.report = settings.start(), threads, report

    def run(self, method: str, tasks: Sequence[Any]) -> Iterator[Any]:
        """Results as they finish."""
        shared = _shared(method, tasks, self.report)
        if len(tasks) == 1:
            yield self._do(method, tasks[0], 0, shared)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            futures = [pool.submit(self._do, method, task, place, shared) for place, task in enumerate(tasks)]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                for future in futures:
                    future.cancel()

    def _do(self, method: str, task: Any, place: int, shared: Shared | None) -> Any:
        if shared is None:
            return getattr(self.worker, method)(task)
        result = self.worker.build(task, lambda step, done, total: shared.tell(place, step, done, total))
        shared.ended(place)
        return result

    def close(self) -> None:
        """Close the sources that were read."""
        self.worker.close()


class RayPool:
    """Runs tasks on actors over the cluster, sized by `jobs/sizing.py`; a handful of tasks stay in the driver.

    Where the cluster has GPUs and a space can use one, segments are built by actors that have a share of one, all else by others.
    """

    def __init__(self, settings: WorkerSettings, threads: int = 2, report: Report | None = None):
        self.settings, self.threads, self.report = settings, threads, report
        self._actors: dict[bool, list[Any]] = {}  # by whether they have a GPU
        self._local: LocalPool | None = None

    def run(self, method: str, tasks: Sequence[Any]) -> Iterator[Any]:
        """Results as they finish."""
        on_gpu = method == BUILD and self._has_gpus and self.settings.takes_gpu
        n_documents = sum(len(task.wanted) for task in tasks) if method == BUILD else 0
        if not self._actors.get(on_gpu) and sizing.in_driver(len(tasks), n_documents, on_gpu):
            self._local = self._local or LocalPool(self.settings, self.threads, self.report)
            yield from self._local.run(method, tasks)
            return
        import ray

        actors = self._started(len(tasks), on_gpu)
        shared = _shared(method, tasks, self.report)
        waiting = list(reversed(list(enumerate(tasks))))
        running: dict[Any, tuple[Any, int]] = {}

        def hand_on(actor: Any) -> None:
            place, task = waiting.pop()
            running[actor.run.remote(method, place, task)] = (actor, place)

        for actor in actors * IN_FLIGHT:
            if waiting:
                hand_on(actor)
        while running:
            finished, _ = ray.wait(list(running), num_returns=1, timeout=LOOK_S if shared else None)
            if not finished:
                _look(shared, actors)
                continue
            done = finished[0]
            actor, place = running.pop(done)
            if waiting:
                hand_on(actor)
            try:
                result, steps = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, SondageError):  # the caller's to read, without the actor's traceback
                    raise error.cause from None
                raise
            except ray.exceptions.RayActorError as error:
                raise SondageError(
                    f"A worker died again and again ({error}). If its node ran out of memory, use more --shards; what was read and "
                    "encoded is kept for the next run."
                ) from error
            if shared:
                _told(shared, place, steps)
                shared.ended(place)
            yield result

    def close(self) -> None:
        """End the actors."""
        if self._local is not None:
            self._local.close()
        if self._actors:
            import ray

            for actors in self._actors.values():
                for actor in actors:
                    ray.kill(actor)
            self._actors = {}

    @cached_property
    def _has_gpus(self) -> bool:
        import ray

        return ray.cluster_resources().get("GPU", 0) >= 1

    def _started(self, n_tasks: int, on_gpu: bool) -> list[Any]:
        """The actors for so many tasks; those that there are, and what is missing."""
        import ray

        from cluster.actors import remote_worker

        there = self._actors.setdefault(on_gpu, [])
        plan = sizing.actors(n_tasks, [_node(node["Resources"]) for node in ray.nodes() if node["Alive"]], on_gpu)
        if plan.n > len(there):
            options: dict[str, Any] = {"num_cpus": plan.num_cpus, "num_gpus": plan.gpu_share}
            if plan.threads > 1:  # Ray itself would round the cores down
                options["runtime_env"] = {"env_vars": {"OMP_NUM_THREADS": str(plan.threads)}}
            actor = remote_worker(RemoteWorker, concurrency_groups={TELLING: 1}, **options)
            there += [actor.remote(self.settings) for _ in range(plan.n - len(there))]
            logger.info("event=workers_started n=%d threads=%d gpu_share=%.1f", len(there), plan.threads, plan.gpu_share)
        return there


def _node(resources: dict[str, float]) -> sizing.Node:
    return sizing.Node(int(resources.get("CPU", 0)), int(resources.get("GPU", 0)), int(resources.get("memory", 0)))


def _shared(method: str, tasks: Sequence[Any], report: Report | None) -> Shared | None:
    """The progress that tasks have in common; None where they tell none."""
    return Shared(report, [len(task.wanted) for task in tasks]) if report is not None and method == BUILD else None


def _look(shared: Shared | None, actors: Sequence[Any]) -> None:
    """Ask actors how far they are; one that does not say is asked again at the next look."""
    import ray

    if shared is None:
        return
    asked = [actor.told.options(concurrency_group=TELLING).remote() for actor in actors]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=LOOK_S)
    for answer in answered:
        try:
            _told(shared, *ray.get(answer))
        except ray.exceptions.RayError:  # it died: the task itself will say so
            continue


def _told(shared: Shared, place: int, steps: Steps) -> None:
    for step, (done, total) in steps.items():
        shared.tell(place, step, done, total)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))
