"""Who is killed or frozen when: a list drawn from a seed, and carrying it out on a local cluster.

The draw is made before anything runs and names kinds; which of the processes of that kind it is follows from a number that is drawn
with it, so a run can be repeated as far as processes can be.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from jobs.local_cluster import LocalCluster, Process

Way = Literal["kill", "freeze"]
# (kind, way) with how often it is drawn. "job" is the index run under way, "node" a raylet, with which its host dies: a pulled plug.
CHANCES: dict[tuple[str, Way], int] = {
    ("host", "kill"): 4,
    ("host", "freeze"): 2,
    ("coordinator", "kill"): 3,
    ("controller", "kill"): 1,
    ("proxy", "kill"): 1,
    ("node", "kill"): 2,
    ("node", "freeze"): 1,
    ("job", "kill"): 1,
}
# Only on demand. What Ray's head knows must be kept on disk for it; and who is connected to a frozen coordinator waits until Serve ends it.
ON_DEMAND: tuple[tuple[str, Way], ...] = (("gcs", "kill"), ("coordinator", "freeze"))
THAW_S = 8.0  # what is frozen goes on after so long, unless somebody has ended it: late words of the dead are part of the test
PLUG_S = 3.0  # until a lost node is plugged in again
HEAD_AWAY_S = 2.0


@dataclass(frozen=True, slots=True)
class Draw:
    """A strike to come. where: 0 to 1, which of the processes of that kind, by their ids."""

    kind: str
    way: Way
    where: float


@dataclass(frozen=True, slots=True)
class Strike:
    """One that has happened. at: seconds since the run began; pid: 0 where there was nobody to strike."""

    kind: str
    way: Way
    at: float
    pid: int
    title: str


def draw(seed: int, n: int, kinds: Sequence[tuple[str, Way]]) -> list[Draw]:
    """n strikes of these kinds. Each kind comes once before any comes a second time by chance, so that a short run misses little."""
    rng = random.Random(seed)
    first = [*kinds]
    rng.shuffle(first)
    weights = [CHANCES.get(kind, 1) for kind in kinds]
    chosen = (first + rng.choices(list(kinds), weights, k=max(0, n - len(first))))[:n]
    return [Draw(kind, way, random.Random(f"{seed} {i}").random()) for i, (kind, way) in enumerate(chosen)]


class Executioner:
    """Carries strikes out on a cluster. clock: seconds of the run. job_pid: of the job under way, or None."""

    def __init__(self, cluster: LocalCluster, clock: Callable[[], float] = time.monotonic):
        self.cluster, self.clock = cluster, clock
        self.job_pid: int | None = None
        self._threads: list[threading.Thread] = []
        self._mended = threading.Event()  # not set while a node, or the head, is away
        self._mended.set()
        self._stopped = threading.Event()
        self.problems: list[str] = []

    def candidates(self, kind: str) -> list[Process]:
        """The processes of a kind, by id."""
        processes = self.cluster.processes()
        if kind == "node":
            raylets = self.cluster.raylets()
            return [process for process in processes if process.pid in raylets]
        if kind == "job":
            return [process for process in processes if process.pid == self.job_pid]
        return [process for process in processes if process.kind == kind]

    def strike(self, drawn: Draw) -> Strike:
        """One strike. What it takes is given back by a thread in a while: a node is plugged in again, what was frozen goes on.

        A node, or the head, is not taken while another is away: plugging in is the harness's part, and may take it long.
        """
        is_machine = drawn.kind in ("node", "gcs")
        while is_machine and not self._mended.wait(0.2) and not self._stopped.is_set():
            pass
        found = self.candidates(drawn.kind)
        at = self.clock()
        if not found:
            return Strike(drawn.kind, drawn.way, at, 0, "nobody there")
        victim = found[int(drawn.where * len(found))]
        if drawn.kind == "gcs":
            self._mend(lambda: self.cluster.restart_head(HEAD_AWAY_S))
            return Strike(drawn.kind, drawn.way, at, victim.pid, victim.title)
        with suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL if drawn.way == "kill" else signal.SIGSTOP)
        if drawn.kind == "node":
            self._mend(lambda: self._replug(victim.pid, PLUG_S if drawn.way == "kill" else THAW_S))
        elif drawn.way == "freeze":
            self._later(lambda: self._thaw(victim))
        return Strike(drawn.kind, drawn.way, at, victim.pid, victim.title)

    def close(self) -> None:
        """Waits until everything is given back."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _mend(self, work: Callable[[], None]) -> None:
        """Work that ends the absence of a machine."""

        def mending() -> None:
            try:
                work()
            finally:
                self._mended.set()

        self._mended.clear()
        self._later(mending)

    def _later(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # of the harness, not of what is tested: told at the end
                self.problems.append(f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _thaw(self, victim: Process) -> None:
        self._stopped.wait(THAW_S)
        # The same process, not one that was given its id since.
        if any(p.pid == victim.pid and p.kind == victim.kind for p in self.cluster.processes()):
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGCONT)

    def _replug(self, pid: int, away_s: float) -> None:
        self._stopped.wait(away_s)
        node = self.cluster.raylets().get(pid)
        if node is None:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)  # it may find out that it was given up, and say so
        self._stopped.wait(1.0)
        self.cluster.replace(node)
