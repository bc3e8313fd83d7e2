"""A `sondage serve` of its own process, whose words go to a file: a pipe that nobody reads would stop it once it is full."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from jobs.bench_anytime_wire import Wire
from jobs.bench_http import ROOT, START_S
from shards.errors import BadSpec


class Served:
    """A server over a store, which can be killed and started again on the same port. log: what it and its children say."""

    def __init__(self, store: str, log: Path, environment: Mapping[str, str] | None = None):
        self.store, self.log = store, log
        self._environment = os.environ | {"PYTHONPATH": str(ROOT)} | dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.port = 0

    @property
    def pid(self) -> int:
        """Of the process, 0 while there is none."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def start(self) -> str:
        """Its URL, once it listens. Raises BadSpec with its last words where it ends before."""
        command = [sys.executable, "-m", "jobs.cli", "serve", "--store", self.store, "--host", "127.0.0.1", "--port", str(self.port)]
        begun = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        ends = time.monotonic() + START_S
        while time.monotonic() < ends:
            said = self.log.read_bytes()[begun:].decode("utf-8", "replace")
            if url := re.search(r"http://[\d.:]+\d", said):
                self.url, self.port = url[0], int(url[0].rpartition(":")[2])
                return self.url
            if self._process.poll() is not None:
                raise BadSpec(f"The server ended with {self._process.returncode}: {said[-500:]}")
            time.sleep(0.02)
        raise BadSpec(f"The server did not listen within {START_S:.0f} s: {self.log.read_text()[-500:]}")

    def ready(self) -> None:
        """Wait until it answers searches. Raises BadSpec after `START_S`."""
        wire, ends = Wire(self.url), time.monotonic() + START_S
        while (answered := wire.ask("GET", "/readyz")).status != 200:
            if time.monotonic() > ends:
                raise BadSpec(f"{self.url} was not ready within {START_S:.0f} s: {answered.body[:300].decode('utf-8', 'replace')}")
            time.sleep(0.05)
        wire.close()

    def kill(self) -> None:
        """End it without a word (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it as an operator would; what does not end then is killed."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()

    def said(self, n_chars: int = 1_500) -> str:
        """Its last words."""
        return self.log.read_bytes()[-n_chars:].decode("utf-8", "replace")


@contextmanager
def served(store: str, log: Path, environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """A server that answers searches, ended afterwards."""
    server = Served(store, log, environment)
    try:
        server.start()
        server.ready()
        yield server
    finally:
        server.stop()
