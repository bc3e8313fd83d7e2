"""Who builds spaces where they are used: processes of the lowest priority beside a server, or actors on Ray, that give way to searches.

What there is to do lies in the store (`shards/layer_builder.py`), so whoever runs here may die at any time. `BuilderWork` is what such
a process does, a plain class; `LocalBuilders` keeps one process beside this one, `ActorBuilders` a pool of actors that
`cluster/actors.py` has started. Both are told to hold while searches need the cores; work is looked at between batches of passages.
"""

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from cluster.settings import HostSettings
from shards.errors import Cancelled, SondageError
from shards.layer_builder import LayerBuilder, Step
from shards.layers.contract import Resources
from shards.manifest import latest_generation, list_corpora, read_root
from shards.plugins import load
from shards.store import open_store
from shards.writing import Calibrate, Report

logger = logging.getLogger(__name__)

IDLE_S = 0.5  # between two looks at the store when there was nothing to do
HELD_S = 0.02  # between two looks whether work may go on
QUEUE_LOOK_S = 2.0  # how often an idle builder's status is told anew
WORK_S = 2.0  # of one call of an actor: a coordinator that is gone leaves no work behind that runs on for longer
CALL_S = 120.0  # after which an actor's call is given up: one batch of passages takes seconds
# A builder that dies within so long of its start rests before the next one is started: at first, and at most.
SOON_S, FIRST_REST_S, MOST_REST_S = 30.0, 1.0, 60.0
CONTROL = "control"  # concurrency group of pings: answered within milliseconds however much work there is
NICE = 19
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMBA", "RAYON")}

Told = dict[str, dict[str, Any]]  # by corpus and space, as `LayerBuilder.status`


def stand_back() -> None:
    """Lowest priority for this process: it runs when a core has nothing else to do, where the system knows such a class."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class BuilderWork:
    """Builds for all corpora below a store that have spaces which are built where they are used. `work` is for one thread, `hold` and
    `stop` for any. background: at the lowest priority, for good. clock: the time of day in seconds. calibrator: makes what fits null
    models, given whom to tell how far it is. tell: told how far spaces are, during a step, too."""

    def __init__(
        self,
        settings: HostSettings,
        background: bool = True,
        clock: Callable[[], float] = time.time,
        calibrator: Callable[[Report], Calibrate] | None = None,
        tell: Callable[[Told], None] = lambda _: None,
    ):
        self._clock, self._calibrator, self._tell = clock, calibrator, tell
        if background:
            stand_back()
        for module in settings.plugins:
            load(module)
        from shards.cache import FileCache

        self._store = open_store(settings.store_url, **settings.store_options)
        self._cache = FileCache(settings.cache_dir.expanduser(), settings.cache_bytes)
        resources = Resources(endpoints=settings.endpoints)
        self._resources = replace(resources, models=settings.models_dir) if settings.models_dir else resources
        self._builders: dict[str, LayerBuilder] = {}
        self._held, self._stopped = threading.Event(), threading.Event()
        self._told: Told = {}
        self._told_at, self._changed = 0.0, True

    def pid(self) -> int:
        """Of the process that works."""
        return os.getpid()

    def hold(self, held: bool) -> None:
        """Have work wait, or go on."""
        (self._held.set if held else self._held.clear)()

    def stop(self) -> None:
        """Have `work` end soon. What a batch had not finished is encoded again by whoever is next."""
        self._stopped.set()

    def work(self, seconds: float = WORK_S) -> Told:
        """Build for about so long; returns how far spaces are. With nothing to do it returns at once."""
        end = time.monotonic() + seconds
        while not self._stopped.is_set() and time.monotonic() < end:
            steps = self.step()
            if all(step.kind == "idle" for step in steps):
                break
        return self.told()

    def step(self) -> list[Step]:
        """One step for each corpus. A corpus that fails is logged, and tried again the next time."""
        steps = []
        for corpus in self.corpora():
            builder = self._builders.get(corpus)
            if builder is None:
                builder = self._builders[corpus] = LayerBuilder(
                    self._store, corpus, self._cache, self._resources, self._clock, calibrator=self._calibrator
                )
            try:
                self._go_on()
                steps.append(builder.step(self._go_on))
                self._changed |= steps[-1].kind != "idle"
            except Cancelled:
                break
            except (SondageError, OSError) as error:
                logger.warning("corpus=%s event=not_built reason=%s", corpus, error)
        return steps

    def corpora(self) -> list[str]:
        """Those with a space that is built where it is used. None while the store is away."""
        found = []
        try:
            for corpus in list_corpora(self._store):
                number = latest_generation(self._store, corpus)
                if number is not None and any(ref.built == "used" for ref in read_root(self._store, corpus, number).spaces):
                    found.append(corpus)
        except (SondageError, OSError) as error:
            logger.warning("event=store_not_asked reason=%s", error)
        return found

    def told(self) -> Told:
        """How far spaces are, not older than `QUEUE_LOOK_S`, nor than the last step that did anything."""
        self._look(self._changed)
        return self._told

    def _look(self, anew: bool) -> None:
        if anew or time.monotonic() - self._told_at >= QUEUE_LOOK_S:
            for corpus, builder in self._builders.items():
                with contextlib.suppress(SondageError, OSError):
                    self._told[corpus] = builder.status()
            self._told_at, self._changed = time.monotonic(), False
            self._tell(self._told)

    def _go_on(self, step: str = "", done: int = 0, total: int = 0) -> None:
        self._look(False)  # a step may take long, and what is under way is only seen while it is
        while self._held.is_set() and not self._stopped.is_set():
            time.sleep(HELD_S)
        if self._stopped.is_set():
            raise Cancelled("Stopped while a space was built. What is encoded is kept.")


def main(calibrator: Callable[[Report], Calibrate] | None = None) -> None:
    """A builder's process: its settings are the first line of standard input; then `hold` and `go` come, and the end is the end.

    Writes how far spaces are to standard output, as lines of JSON. calibrator: as `BuilderWork`.
    """
    said = ""

    def tell(told: Told) -> None:
        nonlocal said
        if (line := json.dumps(told)) != said:
            print(line, flush=True)
            said = line

    work = BuilderWork(HostSettings.model_validate_json(sys.stdin.readline()), calibrator=calibrator, tell=tell)

    def listen() -> None:
        for line in sys.stdin:
            work.hold(line.strip() == "hold")
        work.stop()
        woken.set()
        # A batch under way may take seconds, and nobody is left to wait for it.
        threading.Timer(5.0, os._exit, (0,)).start()

    woken = threading.Event()
    threading.Thread(target=listen, daemon=True).start()
    while not woken.is_set():
        work.work()
        woken.wait(IDLE_S)
    os._exit(0)  # without waiting for what libraries have begun


class Builders(Protocol):
    """Whoever builds. Belongs to one event loop."""

    async def start(self) -> None:
        """Begin, where that has not been done."""

    def hold(self, held: bool) -> None:
        """Have work wait, or go on; returns at once."""

    def told(self) -> Told:
        """How far spaces are, as it was told last."""

    async def close(self) -> None:
        """End."""


_START = "import sys; sys.path.insert(0, sys.argv[1]); from importlib import import_module; import_module(sys.argv[2]).main()"


class LocalBuilders:
    """One process on this machine, started anew when it dies. module: whose `main` it is, which calls the one of here.

    One that dies soon after it was started, again and again, is waited for longer and longer, `MOST_REST_S` at most: it loads a model each
    time. clock: seconds that only go forward.
    """

    def __init__(self, settings: HostSettings, module: str = "cluster.building", clock: Callable[[], float] = time.monotonic):
        self._settings, self._module, self._clock = settings, module, clock
        self._started_at, self._rest_s, self._due_at = 0.0, 0.0, 0.0
        self._process: subprocess.Popen[str] | None = None
        self._told: Told = {}
        self._held = False

    async def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        now = self._clock()
        if self._process is not None:
            self._rest_s = min(2 * self._rest_s + FIRST_REST_S, MOST_REST_S) if now - self._started_at < SOON_S else 0.0
            logger.warning("event=builder_died code=%s started_again_in_s=%.1f", self._process.returncode, self._rest_s)
            await asyncio.to_thread(_end, self._process)
            self._process, self._due_at = None, now + self._rest_s
        if now < self._due_at:
            return
        self._process = await asyncio.to_thread(self._started)
        self._started_at = now
        self.hold(self._held)

    def _started(self) -> "subprocess.Popen[str]":
        root = str(Path(__file__).resolve().parent.parent)
        process = subprocess.Popen(
            [sys.executable, "-c", _START, root, self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )
        assert process.stdin is not None
        process.stdin.write(self._settings.model_dump_json() + "\n")
        process.stdin.flush()
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                self._told = json.loads(line)

    def hold(self, held: bool) -> None:
        self._held = held
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(OSError, ValueError):  # it died: `start` sees to it
            self._process.stdin.write("hold\n" if held else "go\n")
            self._process.stdin.flush()

    def told(self) -> Told:
        return self._told

    @property
    def pid(self) -> int | None:
        """Of the process, where there is one."""
        return None if self._process is None else self._process.pid

    async def close(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        await asyncio.to_thread(_end, process)


def _end(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(OSError, ValueError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


class ActorBuilders:
    """A pool of actors. begin: starts them and returns their handles; end: ends one. An actor that was killed comes back by itself, and
    others take over its units when its leases end."""

    def __init__(self, begin: Callable[[], Sequence[Any]], end: Callable[[Any], None], idle_s: float = IDLE_S):
        self._begin, self._end, self._idle_s = begin, end, idle_s
        self._actors: Sequence[Any] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self._told: Told = {}

    async def start(self) -> None:
        if self._actors:
            return
        self._actors = await asyncio.to_thread(self._begin)
        self._tasks = [asyncio.create_task(self._drive(actor)) for actor in self._actors]

    async def _drive(self, actor: Any) -> None:
        while True:
            try:
                self._told = dict(await asyncio.wait_for(_answer(actor.work.remote(WORK_S)), CALL_S))
            except Exception as error:  # killed, frozen or unreachable: it is restarted where that is possible
                logger.warning("event=builder_lost reason=%s", str(error).partition("\n")[0])
            await asyncio.sleep(self._idle_s)

    def hold(self, held: bool) -> None:
        for actor in self._actors:
            actor.hold.options(concurrency_group=CONTROL).remote(held)

    def told(self) -> Told:
        return self._told

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        actors, self._actors, self._tasks = self._actors, (), []
        for actor in actors:
            await asyncio.to_thread(self._end, actor)


async def _answer(reference: Any) -> Mapping[str, Any]:
    told: Mapping[str, Any] = await reference
    return told
