"""Clients of a cluster under chaos: searches of several kinds, documents pushed, files indexed, shards scaled, all at once.

A search or a push that found nobody, or whose connection broke before the answer, is sent once more, as HTTP allows for what may be
repeated (RFC 9110, 9.2.2); both are counted. Everything that comes back is kept with when and how long.
"""

import asyncio
import json
import os
import random
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from jobs.bench_http import answer, request
from jobs.local_cluster import ROOT
from serve.links import parameters_of
from serve.schema import SearchRequest

CORPUS = "chaos"
PACKAGES = ("json", "email", "http", "urllib", "logging", "concurrent")  # of the standard library: 70 files, 1.3 MB
PAUSE_S = 0.05  # of a client between two searches: what is measured is who fails, not how much fits into two cores
PUSH_EVERY_S = 1.0
JOB_EVERY_S = 4.0  # between the end of an index or scale job and the next
RETRY_S = 0.2  # before the second attempt; `sondage.Client` waits 0.1 and 0.3 s
MARGIN_S = 10.0  # beyond its budget, after which a client gives up
LOST = ("missing", "late", "failed")  # states of coverage that a fault makes; "absent" and "scoped" are no faults
LINES = "application/x-ndjson"
BROKEN = (ConnectionError, asyncio.IncompleteReadError)


def searches(spaces: Mapping[str, bool], budget_ms: int) -> list[SearchRequest]:
    """What clients ask: texts, patterns, filters, couplings, several searches as one. spaces: whether the corpus has "static"."""
    plain = [
        {"query": "parse a date header"},
        {"query": "json decoder", "k": 20},
        {"query": "http cookie policy", "layers": ["bm25"], "k": 20},
        {"query": "quoted printable message body", "explain": True},
        {"query": "thread pool that runs callables", "paths": ["**/*.py", "!**/__init__.py"]},
        {"query": "open a url with a proxy", "where": {"size_bytes": {"<": 40_000}}},
        {"query": "socket handler", "coupling": "rrf", "k": 5},
        {"query": "robots", "coupling": "joint", "k": 5},
        {"query": "wompel frizzlequat", "keep_all": True},
        {"query": "pushed basalt and cobalt", "k": 30, "keep_all": True},
        {"forms": {"text": {"pattern": r"def \w+_header\(", "regex": True}}, "layers": ["text"], "k": 20},
        {"forms": {"names": {"glob": "**/__init__.py"}}, "layers": ["names"], "k": 20},
        {"combine": {"union": [{"search": {"query": "address parser"}}, {"search": {"query": "charset", "layers": ["bm25"]}}]}},
        {"query": "json decoder", "context": {"before": 2, "after": 3}, "k": 3},
    ]
    if spaces.get("static"):
        plain.append({"query": "how are two byte strings of text encoded", "layers": ["static"], "k": 20})
    return [SearchRequest(corpus=CORPUS, budget_ms=budget_ms, freshness="trust", **asked) for asked in plain]


def some_files(folder: Path) -> Path:
    """The files that are indexed: some packages of the standard library, with their times."""
    root = Path(sysconfig.get_path("stdlib"))
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            target = folder / file.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)  # a file this fresh would be read again by the next run
    return folder


@dataclass(frozen=True, slots=True)
class Asked:
    """What became of one request. at: seconds since the run began; retried: why it was sent twice, else ""; partial: an answer with gaps
    that it tells; generation: that answered; failure: why there is no answer, else ""."""

    kind: str
    at: float
    seconds: float
    status: int = 0
    partial: bool = False
    generation: int = 0
    retried: str = ""
    failure: str = ""

    @property
    def bad(self) -> bool:
        """Whether it shows that something is away."""
        return self.partial or bool(self.failure) or bool(self.retried)


class Unanswered(Exception):
    """No answer, also to the second attempt."""


class Client:
    """One keep-alive connection; a new one when it breaks."""

    def __init__(self, url: str):
        self.url, self._where = url, urlsplit(url)
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, method: str, path: str, body: bytes = b"", patience_s: float = 30.0, kind: str = "application/json"
    ) -> tuple[int, bytes, str]:
        """Status, body, and why it was sent twice ("" if it was not). kind: of the body. Raises Unanswered."""
        sent = request(self.url, method, path, body).replace(b"application/json", kind.encode(), 1)
        first = ""
        for attempt in (1, 2):
            fresh = self._connection is None
            try:
                async with asyncio.timeout(patience_s):
                    status, said = await self._once(sent)
                return status, said, first
            except TimeoutError:
                self.close()
                raise Unanswered(f"no answer within {patience_s:.0f} s" + (f", after {first}" if first else "")) from None
            except BROKEN as error:
                self.close()
                now = "refused" if isinstance(error, ConnectionRefusedError) else "broken" if fresh else "closed"
                if attempt == 2:
                    raise Unanswered(f"connection {first}, then {now}") from None
                first = now
                # A process that is being killed closes its connections before its listener, to which a new one at once may go.
                await asyncio.sleep(RETRY_S)
        raise AssertionError("two attempts, each of which ends")

    async def _once(self, sent: bytes) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = await asyncio.open_connection(self._where.hostname, self._where.port)
        reader, writer = self._connection
        writer.write(sent)
        status, head, body = await answer(reader)
        if re.search(r"(?i)\r\nconnection: *close", head):
            self.close()
        return status, body

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None


@dataclass
class Pushed:
    """What was pushed: by path the contents that may stand there at the end (None: nothing). Of an acknowledged push that is one; one
    whose answer was lost may have been performed or not."""

    may_hold: dict[str, set[bytes | None]] = field(default_factory=dict)
    n_acknowledged: int = 0

    def sent(self, path: str, content: bytes | None) -> None:
        self.may_hold.setdefault(path, {None}).add(content)

    def acknowledged(self, path: str, content: bytes | None) -> None:
        self.may_hold[path] = {content}
        self.n_acknowledged += 1


@dataclass
class JobRun:
    """An index or scale job. outcome: "done", "killed" (by the harness), or how it failed; said: its last words."""

    kind: str
    at: float
    seconds: float
    outcome: str
    asked: str = ""
    said: str = ""


class Load:
    """All clients of one run. heard(request, body): given every answer to a search, heard_document(...) every document read."""

    def __init__(
        self,
        url: str,
        asked: list[SearchRequest],
        source: Path,
        environment: Mapping[str, str],
        seed: int,
        replicas: tuple[int, ...],
        clock: Callable[[], float],
        heard: Callable[[str, bytes], None],
    ):
        self.url, self.asked, self.source, self.environment = url, asked, source, dict(environment)
        self.rng, self.replicas, self.clock, self.heard = random.Random(seed), replicas, clock, heard
        self.records: list[Asked] = []
        self.pushed, self.jobs = Pushed(), list[JobRun]()
        self.job_pid: int | None = None
        self.struck_jobs: set[int] = set()  # pids of jobs that the harness killed
        self.ending = False

    async def run(self, seconds: float, n_clients: int) -> None:
        """Everything at once for so long; what is under way then is waited for."""
        end = self.clock() + seconds
        jobs = asyncio.create_task(self._jobs(end))
        await asyncio.gather(*(self._searching(n, end) for n in range(n_clients)), self._pushing(end))
        self.ending = True
        await jobs

    # --- searches ----------------------------------------------------------------------------------------------------------

    async def _searching(self, number: int, end: float) -> None:
        rng, client = random.Random(f"{number} {self.rng.random()}"), Client(self.url)
        while self.clock() < end:
            asked = rng.choice(self.asked)
            said = await self._search(client, asked)
            if said and said.get("cursor") and rng.random() < 0.2:
                said = await self._search(client, asked.model_copy(update={"cursor": said["cursor"]})) or said
            if said and said["hits"] and rng.random() < 0.1:
                await self._read(client, said["hits"][0]["hash"], said["generation"])
            await asyncio.sleep(PAUSE_S)
        client.close()

    async def _search(self, client: Client, asked: SearchRequest) -> dict[str, Any] | None:
        """The answer as JSON; None where there was none."""
        link = parameters_of(asked)
        if link is None:
            how = ("POST", "/v1/search", asked.model_dump_json(exclude_defaults=True).encode())
        else:
            how = ("GET", f"/v1/search?{urlencode(link)}", b"")
        body = await self._request("search", client, *how, patience_s=asked.budget_ms / 1000 + MARGIN_S)
        if body is None:
            return None
        self.heard(asked.model_dump_json(exclude_defaults=True), body)
        return json.loads(body)

    async def _read(self, client: Client, document: str, generation: int) -> None:
        at = f"/v1/documents/{document}?corpus={CORPUS}&generation={generation}"
        body = await self._request("document", client, "GET", at)
        if body is not None:
            self.heard("", body)

    async def _request(
        self, kind: str, client: Client, method: str, path: str, sent: bytes = b"", patience_s: float = 30.0
    ) -> bytes | None:
        """The body of a 200; everything else is a failure, and noted as one."""
        at = self.clock()
        try:
            content = LINES if kind == "push" else "application/json"
            status, body, retried = await client.ask(method, path, sent, patience_s, content)
        except Unanswered as error:
            self.records.append(Asked(kind, at, self.clock() - at, failure=str(error)))
            return None
        took = self.clock() - at
        if status != 200:
            said = body.decode("utf-8", "replace")[:300]
            self.records.append(Asked(kind, at, took, status, retried=retried, failure=f"{status}: {said}"))
            return None
        told = json.loads(body) if kind == "search" else {}
        states = {c["state"] for c in told.get("coverage", ())}
        partial = bool(states.intersection(LOST)) or (not told.get("complete", True) and "absent" not in states)
        self.records.append(Asked(kind, at, took, status, partial, told.get("generation", 0), retried))
        return body

    # --- pushes ------------------------------------------------------------------------------------------------------------

    async def _pushing(self, end: float) -> None:
        rng, client, n = random.Random(self.rng.random()), Client(self.url), 0
        while self.clock() < end:
            n += 1
            path = f"note-{rng.randrange(40)}.txt"
            words = rng.choices(("basalt", "cobalt", "dolomite", "ebony", "header", "cookie", "decoder"), k=12)
            delete = rng.random() < 0.15
            content = None if delete else f"Pushed note {n}: {' '.join(words)}.\n".encode()
            wait = "&wait=searchable&timeout_ms=20000" if rng.random() < 0.2 else ""
            self.pushed.sent(path, content)
            # The id makes it one operation however often it is sent; JSON, for a DELETE has no body to bear it.
            if delete:
                line = {"op": "delete", "path": path, "id": f"push {n}"}
            else:
                line = {"path": path, "text": content.decode(), "id": f"push {n}", "metadata": {"n": n}}
            at = f"/v1/corpora/{CORPUS}/documents?each=true{wait}"
            body = await self._request("push", client, "POST", at, json.dumps(line).encode())
            if body is not None:
                told = json.loads(body)
                if told["accepted"] == 1:
                    self.pushed.acknowledged(path, content)
                else:
                    self.records.append(Asked("push", self.clock(), 0.0, 200, failure=f"refused: {told['errors']}"))
            await asyncio.sleep(PUSH_EVERY_S)
        client.close()

    # --- jobs --------------------------------------------------------------------------------------------------------------

    async def _jobs(self, end: float) -> None:
        """Index and scale jobs in turns, one at a time, each a process as from the command line."""
        rng, number = random.Random(self.rng.random()), 0
        scaled = 4
        while self.clock() < end:
            number += 1
            if number % 2:
                self._edit(rng, number)
                await self._job("index", ["jobs/index.py", "--corpus", CORPUS, "--source", str(self.source), "--local"])
            else:
                scaled = rng.choice([n for n in (2, 3, 4, 6, 8) if n != scaled])
                replicas = rng.choice(self.replicas)
                command = ["jobs/scale.py", CORPUS, "--shards", str(scaled), "--replicas", str(replicas)]
                await self._job("scale", command)
            await asyncio.sleep(min(JOB_EVERY_S, max(end - self.clock(), 0)))

    def _edit(self, rng: random.Random, number: int) -> None:
        """Some files changed, one new, perhaps one gone."""
        files = sorted(self.source.rglob("*.py"))
        for file in rng.sample(files, 3):
            file.write_text(f"{file.read_text('utf-8', 'replace')}\n# edited {number}: date header decoder\n")
        (self.source / f"new_{number}.py").write_text(f"def new_header_{number}():\n    '''A cookie of run {number}.'''\n")
        if rng.random() < 0.5:
            rng.choice(files).unlink()

    async def _job(self, kind: str, command: list[str]) -> None:
        at = self.clock()
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, env=self.environment, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, preexec_fn=lambda: os.nice(5),
        )  # fmt: skip
        self.job_pid = process.pid
        try:
            said, _ = await process.communicate()
        finally:
            self.job_pid = None
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        words = said.decode("utf-8", "replace").strip()[-500:]
        if not process.returncode:
            outcome = "done"
        elif process.pid in self.struck_jobs:
            outcome = "killed"
        else:
            outcome = f"exit {process.returncode}: {words.splitlines()[-1][:300] if words else 'nothing said'}"
        self.jobs.append(JobRun(kind, at, self.clock() - at, outcome, " ".join(command[1:]), words))


def now() -> float:
    """Seconds of a clock that only goes forward."""
    return time.monotonic()
