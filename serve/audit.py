"""Who asked what: one line of JSON for each request, written beside the event loop.

    {"time": "2026-11-30T17:36:38.120Z", "id": "9f0c…", "key": "3fa1b2c4", "method": "GET", "route": "/v1/search", "corpus": "docs",
     "status": 200, "ms": 4.21, "bytes": 18220, "from": "10.0.0.7"}

The key is told by its ID. What was searched for is told only where that was asked for (`queries`), and never what was pushed.
"""

import fcntl
import logging
import logging.handlers
import os
import queue
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_core import to_json

from serve.edge import Edge
from shards.errors import BadSpec

if TYPE_CHECKING:
    from serve.keys import Caller

logger = logging.getLogger(__name__)

GATHER_S = 0.05
AT_ONCE = 100  # lines in one write: files are set aside at their size, more or less one write
WAITING = 100_000  # lines that wait for a disk that hangs, some 30 MB; more are lost, and how many is told


class AuditSettings(Edge):
    """Where the lines go. target: "stderr", or a file, which is set aside when it is full: FILE.1 is the last one."""

    target: Annotated[str, Field(min_length=1)]
    queries: bool = False  # texts of searches are what people think about, so they are told only if somebody wants that
    file_bytes: Annotated[int, Field(ge=1_000)] = 64 << 20  # some 250,000 requests
    files: Annotated[int, Field(ge=1, le=1_000)] = 8  # set aside; the oldest goes


class Trail:
    """What is known of one request when it is over."""

    __slots__ = ("caller", "corpus", "headers", "id", "key", "query")

    def __init__(self, request_id: str, headers: Mapping[bytes, bytes]):
        self.id = request_id
        self.headers = headers  # names in lower case
        self.key: str | None = None  # its ID, once it was known for one of ours
        self.caller: Caller | None = None  # once it was let in
        self.corpus = ""
        self.query = ""


class AuditLog:
    """Writes the lines, in a thread of its own: a slow disk must not keep searches waiting. Close it, or use `with`.

    The thread takes all that came within `GATHER_S` at once: a write for each line would take more CPU than the request itself.
    """

    def __init__(self, settings: AuditSettings):
        """Raises BadSpec for a file that cannot be written."""
        self.settings = settings
        if settings.target == "stderr":
            self._handler: logging.Handler = logging.StreamHandler(sys.stderr)
        else:
            try:
                self._handler = _PrivateFiles(settings.target, maxBytes=settings.file_bytes, backupCount=settings.files, encoding="utf-8")
            except OSError as error:
                problem = f"The audit log {settings.target} cannot be written: {error.strerror}. Name another file, or stderr."
                raise BadSpec(problem) from None
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._handler.handleError = self._failed  # type: ignore[method-assign]
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._lost = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write, name="audit", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Writes what waits, and ends."""
        self._ends.set()
        self._waiting.put(None)
        self._thread.join()
        self._handler.close()

    def __enter__(self) -> "AuditLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tell(self, trail: Trail, scope: Any, status: int, seconds: float, size_bytes: int, now: float) -> None:
        """One request. scope: ASGI's. status: 0 where there was no answer. now: seconds since 1970."""
        if self._waiting.qsize() >= WAITING:
            self._lost += 1
            return
        client = scope.get("client")
        line: dict[str, Any] = {
            "time": now,
            "id": trail.id,
            "key": trail.key,
            "method": scope["method"],
            "route": route_of(scope),
            "corpus": trail.corpus or None,
            "status": status,
            "ms": round(1000 * seconds, 2),
            "bytes": size_bytes,
            "from": client[0] if client else None,
        }
        if self.settings.queries and trail.query:
            line["query"] = trail.query
        if self._lost:
            line["lost"], self._lost = self._lost, 0  # lines before this one
        self._waiting.put(line)

    def _failed(self, record: logging.LogRecord) -> None:
        """A write failed: the disk is full, or away."""
        if not self._lost:
            logger.warning("event=audit_log_not_written target=%s", self.settings.target, exc_info=True)
        self._lost += record.getMessage().count("\n") + 1

    def _write(self) -> None:
        over = False
        while not over:
            found = [self._waiting.get()]
            self._ends.wait(GATHER_S)
            while not self._waiting.empty():
                found.append(self._waiting.get())
            over = found[-1] is None
            lines = [_spelt(line) for line in found if line is not None]
            for first in range(0, len(lines), AT_ONCE):
                text = "\n".join(lines[first : first + AT_ONCE])
                self._handler.handle(logging.makeLogRecord({"name": "sondage.audit", "levelno": logging.INFO, "msg": text}))


def _spelt(line: dict[str, Any]) -> str:
    """JSON, which escapes line ends: a line is a request, whatever somebody puts into a path."""
    line["time"] = datetime.fromtimestamp(line["time"], UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if "lost" in line:
        logger.warning("event=audit_lines_lost lines=%d", line["lost"])
    return to_json(line, inf_nan_mode="null").decode()


def route_of(scope: Any) -> str:
    """The route that answered, without what stands in its place holders: paths of pushed documents are content. Else the path, cut."""
    route = scope.get("route")
    path = getattr(route, "path", None)
    return path if path is not None else scope["path"][:200]


class _PrivateFiles(logging.handlers.RotatingFileHandler):
    """Files that only their owner reads, since they say who asks for what; several processes may write to one."""

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        # Lines that are appended whole do not mix with those of others.
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return TextIOWrapper(FileIO(descriptor, "a"), encoding=self.encoding)

    def shouldRollover(self, record: logging.LogRecord) -> bool:
        self._follow()
        return super().shouldRollover(record)

    def doRollover(self) -> None:
        with open(f"{self.baseFilename}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._follow():  # nobody else set the file aside meanwhile
                super().doRollover()

    def _follow(self) -> bool:
        """Goes over to the file that bears the name now, and says whether that is another one."""
        try:
            there = os.stat(self.baseFilename)
        except FileNotFoundError:
            there = None
        if self.stream is None:  # whoever configures logging anew closes all handlers that there are; uvicorn does
            self.stream = self._open()
            return True
        here = os.fstat(self.stream.fileno())
        if there is not None and (there.st_ino, there.st_dev) == (here.st_ino, here.st_dev):
            return False
        with suppress(OSError):  # what could not be written before cannot be now
            self.stream.close()
        self.stream = self._open()
        return True
