"""A host in a process of its own beside a server that has no cluster: what it works at never keeps the server's event loop waiting.

In one process both want the interpreter's lock. Compiled loops let go of it, but much of what a search does between them does not, for 10
to 30 ms at a time, and then nothing is answered, whatever its deadline. The process runs at a lower priority than the server, is started
again when it ends, and ends with the server, however that ends.
"""

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cluster.host import DetailsRequest, DocumentText, Host, HostRequest, Opened, RowsRequest
from cluster.pauses import keep_short
from cluster.settings import HostSettings
from cluster.sockets import METHODS, BlockingClient, CallFailed, SocketServer
from shards.errors import BadSpec, StoreError
from shards.nlql.answers import RowAnswer
from shards.plan import Plan
from shards.types import Candidates, Detail

logger = logging.getLogger(__name__)

CALLED = (*METHODS, "cancel", "document", "status", "warm")
NICE = 5  # its searches stand back behind whoever writes their answers: with as much to do, it gets a third of the time
ROOT = Path(__file__).resolve().parent.parent


class HostGone(StoreError):
    """The process ended in a call, or could not be reached."""


class HostProcess:
    """`cluster.host.Host` there, with its methods: they block, and are for any thread. Raises BadSpec where it cannot be started."""

    def __init__(self, settings: HostSettings):
        self._settings = settings
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._client: BlockingClient | None = None
        self._closed = False
        self._cancelling = ThreadPoolExecutor(1, thread_name_prefix="cancel")
        self._connected()

    @property
    def pid(self) -> int:
        """Of the process, 0 while there is none."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def close(self) -> None:
        """End it."""
        self._cancelling.shutdown(cancel_futures=True)
        with self._lock:
            self._closed = True
            self._end()

    def search(self, requests: Sequence[HostRequest]) -> list[Candidates]:
        return self._call("search", requests)

    def rows(self, requests: Sequence[RowsRequest]) -> list[RowAnswer]:
        return self._call("rows", requests)

    def details(self, requests: Sequence[DetailsRequest]) -> list[dict[bytes, Detail]]:
        return self._call("details", requests)

    def document(self, corpus: str, generation: int, document: bytes, start: int = 0, end: int | None = None) -> DocumentText:
        return self._call("document", corpus, generation, document, start, end)

    def warm(self, corpus: str, generation: int, shards: Sequence[int], plan: Plan | None = None) -> Opened:
        return self._call("warm", corpus, generation, tuple(shards), plan)

    def status(self) -> dict[str, Any]:
        return self._call("status")

    def cancel(self, keys: Iterable[int]) -> None:
        """As of `Host`, without waiting for it."""
        self._cancelling.submit(self._cancel, tuple(keys))

    def _cancel(self, keys: tuple[int, ...]) -> None:
        with contextlib.suppress(HostGone):
            self._call("cancel", keys)

    def _call(self, method: str, *arguments: Any) -> Any:
        """What the host's method returns. Raises what it raised, and HostGone where the process ended: the next call starts another."""
        try:
            return self._connected().call(method, *arguments)
        except CallFailed as failed:
            raise failed.cause from None
        except OSError as error:
            raise HostGone(f"The process of the host ended during a call ({error}). It is started again.") from None

    def _connected(self) -> BlockingClient:
        with self._lock:
            if self._closed:
                raise HostGone("The host was closed.")
            if self._process is None or self._process.poll() is not None:
                if self._process is not None:
                    logger.warning("event=host_ended pid=%d code=%d", self._process.pid, self._process.returncode)
                self._end()
                self._start()
            assert self._client is not None
            return self._client

    def _start(self) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-c", "from cluster.host_process import main; main()"]
        self._process = process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
        )
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(pickle.dumps(self._settings, 5))
            process.stdin.flush()
        said = process.stdout.readline().decode("utf-8", "replace").strip()
        kind, _, what = said.partition(" ")
        if kind != "listening":
            self._end()
            raise BadSpec(what or "The process of the host ended before it listened; what it said is above.")
        self._client = BlockingClient(what)

    def _end(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            self._process.kill()  # it writes nothing but copies of files, each under its name when it is whole
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        self._client = self._process = None


def main() -> None:
    """The process: settings come from standard input, where it listens goes to standard output; it ends when its standard input does."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal, or a service manager, tells all: the server answers what it has begun
        signal.signal(number, signal.SIG_IGN)
    settings: HostSettings = pickle.load(sys.stdin.buffer)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    try:
        server = SocketServer(host_of(settings), CALLED)
    except BadSpec as error:
        print("refused", str(error).replace("\n", " "), flush=True)
        return
    keep_short()
    print("listening", server.address, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # whoever asked is gone, and threads in the middle of a search would keep the process


def host_of(settings: HostSettings) -> Host:
    """A host of these settings in this process. Raises BadSpec."""
    return Host(
        settings.store_url,
        settings.store_options,
        str(settings.cache_dir),
        settings.cache_bytes,
        settings.threads,
        str(settings.models_dir) if settings.models_dir else None,
        settings.endpoints,
        modules=settings.plugins,
    )
