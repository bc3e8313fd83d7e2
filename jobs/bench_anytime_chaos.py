"""What killed processes change of answers: nothing but their coverage. A corpus is opened and asked while its server, what reads for it,
and the builder of a layer that is built where it is used, are killed at random (SIGKILL).

What must hold is what an index of the same files says that was built in one go and never disturbed:

whole    an answer that says it looked at everything has the hits of that index, in its order
partial  an answer that says it did not has no hit of a layer that matches which that index has not, and every hit where it has it
end      when all that was ordered is built, every question is answered as by that index
orphans  what a killed server had started ends by itself

Hosts and coordinators of a cluster on Ray are killed by `jobs/chaos.py`.
"""

import json
import os
import random
import signal
import tempfile
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.bench_anytime_cold import CORPUS, PATIENCE_S, get, post
from jobs.bench_anytime_server import Served, served
from jobs.bench_anytime_session import DEAR, DEAR_DIALS, built
from jobs.bench_anytime_tree import many_files
from jobs.bench_anytime_wire import Wire
from jobs.progress import Progress
from shards.errors import BadSpec

LAYERS = ("names", "text", "bm25")
BUILT_FILES = (40, 60)  # that the folder has for which the dear layer is ordered: a quarter of a second each
KILL_EVERY_S = (0.3, 3.0)  # from, to
N_KILLS = 12
WORKERS = 0.6  # of the kills, where there is a worker
BUILDER_EVERY_S, N_BUILDER_KILLS = (3.0, 9.0), 4  # while what was ordered is built: a builder loads its model for some seconds
ROLES = {b"serve.building": "builder", b"cluster.host_process": "host"}  # what command lines say; others read
N_CLIENTS = 2
PAUSE_S = 0.02
ORPHANS_S = 15.0  # in which what a killed server had started must end
BUDGET_MS = 2_000
MOST = 1_000  # matches that a question may have, to be compared as a whole
SHOWN = 5  # wrong answers that are told
K = 20

Found = tuple[str, int, int]  # hash, start, end


def questions(folder: str) -> list[dict[str, Any]]:
    """One layer each; those that match have fewer than `MOST` matches in any corpus of libraries of this size, or are left out.

    folder: that the dear layer is built for, and asked about.
    """
    globs = ["**/json*/*", "**/argparse/0*", "**/random/*.py", "**/async*/001.py", "stdlib/http*/**"]
    patterns = [("frozenset", False), (r"def __(enter|exit)__", True), (r"raise \w+Error\(f?\"", True), ("OrderedDict", False)]
    words = ["parse a date header", "json decoder", "cookie policy", "thread pool executor", "quoted printable"]
    found: list[dict[str, Any]] = [{"forms": {"names": {"glob": glob}}, "layers": ["names"]} for glob in globs]
    found += [{"forms": {"text": {"pattern": p, "regex": is_regex}}, "layers": ["text"]} for p, is_regex in patterns]
    found += [{"query": text, "layers": ["bm25"], "keep_all": True} for text in words]
    return found + [{"query": text, "layers": [DEAR], "keep_all": True, "paths": [f"{folder}/**"]} for text in words]


def built_folder(root: Path) -> str:
    """The folder for which the dear layer is ordered: the first one of a middling size. Raises BadSpec where there is none."""
    n_files = Counter(path.parent.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    low, high = BUILT_FILES
    found = sorted(folder for folder, n in n_files.items() if low <= n <= high)
    if not found:
        raise BadSpec(f"No folder of the corpus has {low} to {high} files: give more --session-files.")
    return found[0]


@dataclass
class Seen:
    """What clients saw. wrong: answers that should not be, with why; statuses: how often which."""

    wrong: list[dict[str, Any]] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    n_whole: int = 0
    n_partial: int = 0


def found_of(answer: Mapping[str, Any]) -> list[Found]:
    """The hits of an answer, in order."""
    return [(hit["hash"], hit["start"], hit["end"]) for hit in answer["hits"]]


def is_whole(answer: Mapping[str, Any]) -> bool:
    """Whether an answer says that all layers it asked looked at all of the scope; an error says no such thing."""
    rows = answer.get("coverage", ())
    return bool(answer.get("complete")) and bool(rows) and all(row["state"] == "ready" and row["covered"] >= row["total"] for row in rows)


@dataclass(frozen=True, slots=True)
class Reference:
    """What the undisturbed index says: its first hits, in order, and all that it has. matches: of a layer whose hits do not depend on what
    else there is."""

    first: Sequence[Found]
    hits: frozenset[Found]
    matches: bool


def problem(answer: Mapping[str, Any], reference: Reference) -> str:
    """Why an answer is wrong beside those of the undisturbed index, "" if it is not."""
    hits = found_of(answer)
    if is_whole(answer):
        return "" if hits == list(reference.first) else "whole, but other hits"
    if reference.matches and (others := set(hits) - reference.hits):
        return f"partial, with a hit that is none: {min(others)}"
    return ""


def workers(store: str, server: int) -> list[int]:
    """Processes that work on a store for its server, which may have been started by a server that was killed: those that are told to, and
    all below the server. By Linux's /proc; elsewhere none are known."""
    parents: dict[int, int] = {}
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if store.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.add(int(folder.name))
        except OSError:  # ended meanwhile
            continue
    while below := {pid for pid, parent in parents.items() if parent in found | {server}} - found:
        found |= below
    return sorted(found - {server})


def role(pid: int) -> str:
    """What a process does for its server."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # ended meanwhile
        return "reader"
    return next((what for said, what in ROLES.items() if said in line), "reader")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def bench_chaos(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Kills, answers, and what was wrong with them."""
    root = many_files(options.session_files, progress)
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        folder = Path(scratch)
        built_for = built_folder(root)
        references = _references(root, folder, built_for, progress)
        kept = [i for i, found in enumerate(references) if len(found.hits) < MOST or not found.matches]
        asked, references = [questions(built_for)[i] for i in kept], [references[i] for i in kept]
        server = Served(str(folder / "store"), folder / "log")
        try:
            server.start()
            return _disturbed(server, root, built_for, asked, references, random.Random(options.seed), progress)
        finally:
            server.stop()


def _references(root: Path, folder: Path, built_for: str, progress: Progress) -> list[Reference]:
    """Of each question, by an index that was built in one go."""
    from jobs import index
    from jobs.settings import Settings

    store = str(folder / "undisturbed")
    dear = f"{DEAR_DIALS}@{built_for}/**"
    line = ["--corpus", CORPUS, "--source", str(root), "--store", store, "--layers", ",".join(LAYERS), "--layer", dear, "--local"]
    index.run(index.parser().parse_args(line), Settings.load(store=store), progress)
    found = []
    with served(store, folder / "undisturbed.log") as server:
        wire = Wire(server.url)
        for fields in questions(built_for):
            by_k = {}
            for k in (K, MOST):
                status, by_k[k], _ = post(wire, "/v1/search", {"corpus": CORPUS, "k": k, "budget_ms": 60_000, **fields})
                if status != 200 or not is_whole(by_k[k]):
                    raise BadSpec(f"The undisturbed index answered {status} to {json.dumps(fields)}: {json.dumps(by_k[k])[:300]}")
            found.append(Reference(found_of(by_k[K]), frozenset(found_of(by_k[MOST])), "forms" in fields))
    return found


def _disturbed(
    server: Served,
    root: Path,
    built_for: str,
    asked: Sequence[Mapping[str, Any]],
    references: Sequence[Reference],
    drawn: random.Random,
    progress: Progress,
) -> dict[str, Any]:
    """Open, ask and kill; then let it end and ask all once more."""
    seen, ending, lock = Seen(), threading.Event(), threading.Lock()
    killed: Counter[str] = Counter()
    left: set[int] = set()

    def ask(wire: Wire, i: int) -> tuple[int, dict[str, Any]]:
        status, answer, _ = post(wire, "/v1/search", {"corpus": CORPUS, "k": K, "budget_ms": BUDGET_MS, **asked[i]})
        with lock:
            seen.statuses[str(status)] += 1
            if status == 200:
                seen.n_whole += is_whole(answer)
                seen.n_partial += not is_whole(answer)
                if why := problem(answer, references[i]):
                    told = {"asked": asked[i], "why": why, "generation": answer["generation"], "coverage": answer["coverage"][:4]}
                    seen.wrong.append(told | {"hits": found_of(answer)[:3], "should": list(references[i].first[:3])})
            elif status in (404, 500):  # 503: nothing is there yet; 422: the layer is not
                seen.wrong.append({"asked": asked[i], "why": f"status {status}", "said": answer})
        return status, answer

    def client(number: int) -> None:
        wire, own = Wire(server.url), random.Random(number)
        while not ending.is_set():
            ask(wire, own.randrange(len(asked)))
            time.sleep(PAUSE_S)
        wire.close()

    wire = Wire(server.url)
    layers = [*LAYERS, f"{DEAR_DIALS},built=used"]
    status, said, _ = post(wire, "/v1/corpora", {"corpus": CORPUS, "source": {"root": str(root)}, "layers": layers})
    if status != 202:
        raise BadSpec(f"POST /v1/corpora was answered with {status}: {json.dumps(said)[:300]}\n{server.said()}")
    threads = [threading.Thread(target=client, args=(i,)) for i in range(N_CLIENTS)]
    for thread in threads:
        thread.start()
    ordered = False

    def order() -> bool:
        """Whether the dear layer of the folder was ordered: not before there is a generation."""
        wanted = {"build": DEAR, "scope": [f"{built_for}/**"]}
        return post(wire, f"/v1/corpora/{CORPUS}/layers", wanted)[0] == 200

    try:
        for n in range(N_KILLS):
            time.sleep(drawn.uniform(*KILL_EVERY_S))
            ordered = ordered or order()
            below = workers(server.store, server.pid)
            if below and drawn.random() < WORKERS:
                hit = drawn.choice(below)
                what = role(hit)
                with suppress(ProcessLookupError):
                    os.kill(hit, signal.SIGKILL)
                    killed[what] += 1
            else:
                server.kill()
                left.update(below)
                killed["server"] += 1
                server.start()
            progress("chaos", n + 1, N_KILLS, "kills")
        begun = time.monotonic()
        while (told := get(wire, f"/v1/corpora/{CORPUS}")).get("state") != "done":
            if time.monotonic() - begun > PATIENCE_S or told.get("state") == "failed":
                raise BadSpec(f"The corpus was not opened after the kills: {json.dumps(told)}\n{server.said()}")
            time.sleep(0.5)
        opened_s = time.monotonic() - begun
        begun, strike_at = time.monotonic(), time.monotonic() + drawn.uniform(*BUILDER_EVERY_S)
        # What is encoded answers once it is published, some seconds later.
        while not (ordered := ordered or order()) or (far := built(server))["waiting"] or not is_whole(ask(wire, len(asked) - 1)[1]):
            if time.monotonic() - begun > PATIENCE_S:
                raise BadSpec(f"What was ordered was not built after the kills: {json.dumps(built(server))}\n{server.said()}")
            progress("builder", far["built"] if ordered else 0, far["documents"] if ordered else 0, "documents")
            if killed["builder"] < N_BUILDER_KILLS and time.monotonic() > strike_at:
                for pid in (pid for pid in workers(server.store, server.pid) if role(pid) == "builder"):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed["builder"] += 1
                    strike_at = time.monotonic() + drawn.uniform(*BUILDER_EVERY_S)
            time.sleep(0.5)
        built_s = time.monotonic() - begun
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    ends = time.monotonic() + ORPHANS_S
    while any(map(_alive, left)) and time.monotonic() < ends:
        time.sleep(0.2)
    orphans = [pid for pid in left if _alive(pid)]
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)
    at_the_end, before = 0, len(seen.wrong)
    for i in range(len(asked)):
        status, answer = ask(wire, i)
        at_the_end += status == 200 and is_whole(answer) and not problem(answer, references[i])
    return {
        "killed": dict(killed),
        "statuses (0: no connection, 422: the layer is not there yet)": dict(seen.statuses),
        "whole answers": seen.n_whole,
        "partial answers": seen.n_partial,
        "opened after the last kill, s": round(opened_s, 1),
        "what was ordered built after that, s": round(built_s, 1),
        "wrong": len(seen.wrong),
        "first wrong ones": seen.wrong[:SHOWN],
        "wrong in the end": seen.wrong[before:],
        "targets": {
            "no answer changed but by its coverage": "met" if not seen.wrong else f"missed: {len(seen.wrong)}",
            "all as undisturbed in the end": "met" if at_the_end == len(asked) else f"missed: {at_the_end} of {len(asked)}",
            "no orphans": "met" if not orphans else f"missed: {len(orphans)}",
        },
    }
