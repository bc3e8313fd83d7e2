"""Parsing in processes of its own, which can be killed: a deadline that the parser itself does not know.

tree-sitter cannot be interrupted, takes quadratic time over some texts (10 kB of `<!--` read as C: minutes), and holds the
interpreter's lock meanwhile, so that a host would answer nobody. Here the kernel ends the process when one document has had its
seconds of CPU (not of the clock: a busy machine refuses no more than an idle one); the document is named, the next one gets a new
process. Documents of one hash go to the same process, which keeps the trees it made lately.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, NamedTuple

from shards.errors import ModelMissing
from shards.types import Budget

logger = logging.getLogger(__name__)

PARSE_S = 3.0  # of CPU for one document: the largest that is tried takes 0.3 s if it is what it says it is
TOO_LONG, BROKEN = 4, 5  # in `syntax_trees.REASONS`
_BUFFERED_BYTES = 1 << 15  # of two documents; a socket holds some 200 kB
_MEMORY_BYTES = 2 << 30  # address space beyond what the process begins with; a tree of 1 MiB takes up to 300 MB
NO_PARSER = "Parsing needs ast-grep-py, which is not installed here. `pip install ast-grep-py` brings it."
_START = "import sys; sys.path.insert(0, sys.argv[1]); from shards.syntax_process import main; main(int(sys.argv[2]), float(sys.argv[3]))"


class Task(NamedTuple):
    """One document to be looked at. number: the caller's; key: content hash.

    config: a rule, of which it is asked how many nodes match and which bytes the first one is, (n, start, end); None: `symbols_of`.
    """

    number: int
    key: bytes
    text: bytes
    language: str
    config: dict[str, Any] | None = None


class Answer(NamedTuple):
    """Of a task: its number, and what was found, or why not (a place in `syntax_trees.REASONS`); error: ast-grep's, of the rule."""

    number: int
    found: Any
    reason: int
    error: str = ""


@dataclass
class _Process:
    """One process and its socket. asked: tasks that it has not answered, oldest first; stale: how many of these nobody waits for;
    n_answered: what it has done before."""

    popen: "subprocess.Popen[bytes]"
    line: Connection
    asked: deque[Task] = field(default_factory=deque)
    stale: int = 0
    n_answered: int = 0

    @classmethod
    def start(cls, seconds: float) -> "_Process":
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parent.parent)
        with theirs:
            popen = subprocess.Popen(
                [sys.executable, "-c", _START, root, str(theirs.fileno()), str(seconds)],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        process = cls(popen, Connection(ours.detach()))
        weakref.finalize(process, _end, popen, process.line)
        return process

    def end(self) -> None:
        _end(self.popen, self.line)


def _has_room(process: _Process | None, task: Task) -> bool:
    """Whether a task can be sent now: to one that waits, or, so that it need not wait later, a small one beside another.

    What is sent to one that works must fit into the socket's buffer: it may be sending an answer that does not, and so not reading.
    """
    if process is None or not process.asked:
        return True
    return len(process.asked) < 2 and len(process.asked[0].text) + len(task.text) <= _BUFFERED_BYTES


def _end(popen: "subprocess.Popen[bytes]", line: Connection) -> None:
    with contextlib.suppress(OSError):
        line.close()
    popen.kill()
    popen.wait()


class Parsers:
    """Processes that parse, started when first asked; for one thread at a time, others wait. Close it, or let it be collected.

    seconds: of CPU for one document.
    """

    def __init__(self, n_processes: int, seconds: float = PARSE_S):
        self.seconds = seconds
        self._processes: list[_Process | None] = [None] * n_processes
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the processes. May be used again."""
        with self._lock:
            for at, process in enumerate(self._processes):
                if process is not None:
                    process.end()
                    self._processes[at] = None

    def each(self, tasks: Iterator[Task], budget: Budget) -> Iterator[Answer]:
        """Answers in any order, until all are there or the budget ends. Raises ModelMissing without ast-grep-py."""
        while not self._lock.acquire(timeout=min(max(budget.remaining_s, 0.0), 3600.0)):
            if budget.expired:
                return
        try:
            yield from self._each(tasks, budget)
        finally:
            for process in filter(None, self._processes):
                process.stale = len(process.asked)
            self._lock.release()

    def _each(self, tasks: Iterator[Task], budget: Budget) -> Iterator[Answer]:
        n = len(self._processes)
        waiting: list[deque[Task]] = [deque() for _ in range(n)]
        open_ = True
        while not budget.expired:
            while open_ and not all(waiting):
                if (task := next(tasks, None)) is None:
                    open_ = False
                else:
                    waiting[task.key[0] % n if task.key else 0].append(task)
                if max(map(len, waiting)) > 64:  # one has much to do: no sense in reading on for the others
                    break
            for at in range(n):
                while waiting[at] and _has_room(self._processes[at], waiting[at][0]):
                    yield from self._send(at, waiting[at].popleft())
            # One that has only old questions left to answer is listened to if a new one waits for it.
            busy = {p.line: at for at, p in enumerate(self._processes) if p is not None and (waiting[at] or len(p.asked) > p.stale)}
            if not busy:
                if not open_ and not any(waiting):
                    return
                continue
            for line in wait(list(busy), min(max(budget.remaining_s, 0.0), 3600.0)):
                yield from self._receive(busy[line])  # type: ignore[index]

    def _send(self, at: int, task: Task) -> Iterator[Answer]:
        process = self._processes[at]
        if process is None:
            process = self._processes[at] = _Process.start(self.seconds)
        process.asked.append(task)
        try:
            process.line.send(task)
        except OSError:
            yield from self._died(at)

    def _receive(self, at: int) -> Iterator[Answer]:
        process = self._processes[at]
        assert process is not None
        try:
            found, error = process.line.recv()
        except (EOFError, OSError):
            yield from self._died(at)
            return
        task = process.asked.popleft()
        process.n_answered += 1
        if process.stale:
            process.stale -= 1
        elif error == NO_PARSER:
            raise ModelMissing(error)
        else:
            yield Answer(task.number, found, 0, error)

    def _died(self, at: int) -> Iterator[Answer]:
        """Name the document that a process died of, and ask a new process for the others.

        One that had answered before may have died of something else: then that document is tried again.
        """
        process = self._processes[at]
        assert process is not None
        self._processes[at] = None
        process.line.close()
        status = process.popen.wait()
        tasks = list(process.asked)[process.stale :]
        if not process.stale and tasks and (status == -signal.SIGPROF or not process.n_answered):
            culprit = tasks.pop(0)
            logger.warning("event=parser_died language=%s bytes=%d status=%d", culprit.language, len(culprit.text), status)
            yield Answer(culprit.number, None, TOO_LONG if status == -signal.SIGPROF else BROKEN)
        for task in tasks:
            yield from self._send(at, task)


@cache
def shared_parsers(role: Literal["search", "build"]) -> Parsers:
    """This process's own. For searches as many as there are cores, four at most; one to build, for jobs have workers of their own."""
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Parsers(min(n_cores, 4) if role == "search" else 1)


# --- in the process ----------------------------------------------------------------------------------------------------------


def main(descriptor: int, seconds: float) -> None:
    """Answer tasks until the other side hangs up. seconds: of CPU for one."""
    import resource

    from shards.syntax_symbols import symbols_of
    from shards.syntax_trees import Trees, spans_of

    with open("/proc/self/statm") if os.path.exists("/proc/self/statm") else contextlib.nullcontext() as statm:
        began = int(statm.read().split()[0]) * resource.getpagesize() if statm else 0
    if began:
        resource.setrlimit(resource.RLIMIT_AS, (began + _MEMORY_BYTES, resource.RLIM_INFINITY))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trees = Trees()
    line = Connection(descriptor)
    while True:
        try:
            task: Task = line.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its default action ends the process, whatever native code it is in
        found, error = None, ""
        try:
            if task.config is None:
                found = symbols_of(task.text, task.language)
            else:
                spans = spans_of(trees.root(task.key, task.text, task.language), task.text, task.config)
                found = len(spans), *(spans[0] if spans else (0, 0))
        except ImportError:
            error = NO_PARSER
        except (RuntimeError, ValueError, TypeError) as failure:
            error = str(failure).partition("Stack backtrace")[0].strip()
        signal.setitimer(signal.ITIMER_PROF, 0)
        line.send((found, error))
