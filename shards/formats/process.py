"""Files read in a process of their own, which can be killed: whatever a damaged or hostile file makes its reader do ends there.

A process is started when the first file comes, serves one after the other, and is replaced when it dies, hangs or has served many. It
holds nothing. What it gives is a function of the file's bytes, but for the limits: those are wide, and one that was met is told.
"""

import contextlib
import json
import logging
import os
import selectors
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from shards.formats.registry import Format
from shards.kinds import kind_of
from shards.renditions import Skipped, render

logger = logging.getLogger(__name__)

FILES = 2_000  # read by one process: libraries in C lose a little memory now and then
_HEAD = struct.Struct("<II")  # bytes of the JSON that follows, and of the data after it
_PART = 1 << 16
_START = "import sys; sys.path.insert(0, sys.argv[1]); from shards.formats.reader import main; main()"


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one file. memory_bytes: address space beyond what the process has to begin with; text_bytes: of its rendition.

    The largest of the public files that this was tried with takes 2 s and 200 MB: what meets a limit was made to.
    """

    seconds: float = 60.0
    memory_bytes: int = 2 << 30
    unpacked_bytes: int = 1 << 30
    text_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Extracted:
    """One file as a document. text: its rendition, UTF-8; hash: identity; kind: as in `shards.kinds`; facts: metadata of its entries."""

    text: bytes = field(repr=False)
    hash: bytes
    kind: str
    facts: dict[str, Any]


class _Died(Exception):
    """The process ended while it read a file; reason: what is told of the file."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class Extractors:
    """Processes that read files, one for each file that is read at a time, up to one a core. For any number of threads; close it, or use
    `with`."""

    def __init__(self, limits: Limits = Limits()):
        self.limits = limits
        self._cores = threading.BoundedSemaphore(os.cpu_count() or 1)
        self._idle: list[_Process] = []
        self._lock = threading.Lock()
        self.started = 0  # processes, ever

    def __enter__(self) -> "Extractors":
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that wait. May be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def read(self, known: Format, data: bytes, with_pictures: bool = False) -> Extracted | Skipped | None:
        """A file of a format as a document; None where these bytes are of another: it is a file like any other then.

        with_pictures: whether one without a word is wanted all the same, for the sake of its pictures. Skipped, with the reason, for
        one that is damaged, wants a password, has no text, or meets a limit.
        """
        if not known.begins(data):
            return Skipped(f"{known.title} that is damaged") if known.magic and isinstance(render(data), Skipped) else None
        head, text = self._answer(known, data)
        if reason := head.get("skipped"):
            return Skipped(f"{known.title} {reason}")
        if head.get("plain"):
            return None
        if not text.strip() and not with_pictures:
            return Skipped(f"{known.title} without text" + (": its pages are pictures" if known.family == "pages" else ""))
        return Extracted(text, known.identity(data), _kind(known.family, text), {known.name: head["facts"]} if head["facts"] else {})

    def _answer(self, known: Format, data: bytes) -> tuple[dict[str, Any], bytes]:
        while True:
            with self._cores, self._taken() as process:
                n_before = process.n_files
                try:
                    return process.ask(known.name, data, self.limits)
                except _Died as death:
                    logger.info("event=reader_died format=%s bytes=%d reason=%s", known.name, len(data), death.reason)
                    if n_before and not process.late:  # what files before it left behind may be the cause
                        continue
                    return {"skipped": death.reason}, b""

    @contextlib.contextmanager
    def _taken(self) -> Iterator["_Process"]:
        with self._lock:
            process = self._idle.pop() if self._idle else None
            self.started += process is None
        process = process or _Process()
        try:
            yield process
        except BaseException:
            process.end()
            raise
        if process.alive and process.n_files < FILES:
            with self._lock:
                self._idle.append(process)
        else:
            process.end()


class _Process:
    """One process and its pipes. n_files: that it has served; late: whether it was killed for its time."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parent.parent.parent)
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _START, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._in, self._out = self._popen.stdin, self._popen.stdout
        for pipe in (self._in, self._out):
            os.set_blocking(pipe.fileno(), False)
        self._end = weakref.finalize(self, _kill, self._popen)
        self.n_files, self.alive, self.late = 0, True, False

    def end(self) -> None:
        """Kill it."""
        self.alive = False
        self._end()

    def ask(self, name: str, data: bytes, limits: Limits) -> tuple[dict[str, Any], bytes]:
        """What it answers. Raises _Died, and is dead then."""
        deadline = time.monotonic() + limits.seconds
        asked = {"format": name, "seconds": limits.seconds, "memory_bytes": limits.memory_bytes}
        asked |= {"unpacked_bytes": limits.unpacked_bytes, "text_bytes": limits.text_bytes}
        head = json.dumps(asked).encode()
        try:
            self._send(_HEAD.pack(len(head), len(data)) + head, deadline)
            self._send(data, deadline)
            head_bytes, text_bytes = _HEAD.unpack(self._receive(_HEAD.size, deadline))
            answer = json.loads(self._receive(head_bytes, deadline))
            text = self._receive(text_bytes, deadline)
        except TimeoutError:
            self.late = True
            self.end()
            raise _Died(f"that takes longer than {limits.seconds:g} s to read") from None
        except (OSError, EOFError):
            self.end()
            raise _Died("that breaks its reader, or needs too much memory") from None
        self.n_files += 1
        if answer.get("leave"):  # its memory is used up
            self.end()
        return answer, text

    def _send(self, data: bytes, deadline: float) -> None:
        view, at = memoryview(data), 0
        while at < len(view):
            _wait(self._in, selectors.EVENT_WRITE, deadline)
            at += os.write(self._in.fileno(), view[at : at + _PART])

    def _receive(self, size: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while size:
            _wait(self._out, selectors.EVENT_READ, deadline)
            part = os.read(self._out.fileno(), min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _wait(pipe: IO[bytes], event: int, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, event)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise TimeoutError


def _kill(popen: "subprocess.Popen[bytes]") -> None:
    popen.kill()
    for pipe in (popen.stdin, popen.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    popen.wait()


def _kind(family: str, text: bytes) -> str:
    """What a rendition looks like, with what it was made from."""
    looks = kind_of(text)
    if not family:
        return looks
    what, _, language = looks.partition(":")
    return f"{family}:{language}" if what == "prose" else family
