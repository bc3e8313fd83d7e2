"""What a session costs whose dear layer builds itself where the session looks.

A corpus of `--session-files` small files; 200 questions that stay in a few folders, two in five asked again later, one every
`PACE_S`. One server builds `dense` where it is used (`built=used`), beginning with nothing, while it answers them. Then: the share of
the corpus that is built, the share of the documents shown that it covers, and how long the same questions take beside a server that
has `dense` of everything, both asked in turns in one run; and what other questions in the same folders take, of which nobody has seen
the candidates yet.
"""

import json
import random
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.bench_anytime_cold import CORPUS, PLAIN, coverage, get, met, post
from jobs.bench_anytime_server import Served, served
from jobs.bench_anytime_tree import many_files
from jobs.bench_anytime_wire import Wire
from jobs.chaos_report import percentile
from jobs.progress import Progress
from shards.errors import BadSpec

# Of a file: a function, a paragraph. A transformer reads 3,000 tokens a second on a core, and the other server has to have all of them.
LEAST_BYTES, MOST_BYTES = 300, 900
N_QUESTIONS = 200
PACE_S = 0.4  # from one question to the next, at least: a quick reader's; the builder works meanwhile
N_FOLDERS, FOLDER_FILES = 6, (20, 150)  # that a session stays in, and how large they are
# Of a year's queries to a search engine two in five sought what had been found before (Teevan et al. 2007, SIGIR).
AGAIN = 0.4
SETTLE_S = 60.0  # in which the builder may finish what the session asked for
DEAR, DEAR_DIALS = "dense", "dense:model=minilm"
BUDGET_MS = 3_000
MOST_BUILT, MOST_P50 = 0.2, 1.3
N_OTHERS = 40  # questions that the session did not ask
N_LOOKED_UP = 200  # documents shown of which coverage is asked

Asked = dict[str, Any]


def bench_session(progress: Progress, options: Namespace) -> dict[str, Any]:
    """The questions asked of a server that builds as it goes, and of one that has everything."""
    root = session_files(options.session_files, progress)
    asked = questions_of(root, N_QUESTIONS, options.seed)
    others = [fields for fields in questions_of(root, N_QUESTIONS, options.seed, 1) if fields not in asked][:N_OTHERS]
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        folder = Path(scratch)
        index_s = {}
        for name, dials in (("used", f"{DEAR_DIALS},built=used"), ("whole", DEAR_DIALS)):
            begun = time.perf_counter()
            index(root, str(folder / name), dials, progress)
            index_s[name] = round(time.perf_counter() - begun, 1)
        with served(str(folder / "used"), folder / "used.log") as used:
            during = _walk(used, asked, progress)
            then = built(used)
            settled_s = _settled(used, progress)
            now = built(used)
            with served(str(folder / "whole"), folder / "whole.log") as whole:
                turns = _in_turns({"whole": whole, "used": used}, asked, progress)
                new = _in_turns({"whole": whole, "used": used}, others, progress)
            touched = sorted({path for _, _, paths in during for path in paths})
            covers = _covers(used, touched[:: max(len(touched) // N_LOOKED_UP, 1)], progress)
    return {
        "files": options.session_files,
        "questions": f"{len(asked)}, {len({json.dumps(fields) for fields in asked})} of them distinct, one every {PACE_S} s at most",
        "index_s": index_s,
        "during the session, ms": {
            f"questions {low + 1} to {low + 50}": _marks([s for _, s, _ in during[low : low + 50]]) for low in range(0, len(asked), 50)
        },
        "built when the session ended": _far(then),
        "built in the end": _far(now) | {"after, s": round(settled_s, 1)},
        "documents shown": len(touched),
        "afterwards, in turns, ms": {name: _marks(seconds) for name, seconds in turns.items()},
        f"then {len(others)} other questions in the same folders, ms": {name: _marks(seconds) for name, seconds in new.items()},
        "targets": targets(covers, statistics.median(turns["used"]) / statistics.median(turns["whole"]), now),
    }


def targets(covers: float, ratio: float, now: Mapping[str, Any]) -> dict[str, str]:
    """covers: the share of the documents shown that the dear space covers; ratio: of p50 to that beside a whole index."""
    share = now["built"] / max(now["documents"], 1)
    return {
        f"{DEAR} covers what was shown": met(covers >= 0.999, f"{covers:.1%}"),
        f"p50 at most {MOST_P50} times": met(ratio <= MOST_P50, f"{ratio:.2f}"),
        f"built at most {MOST_BUILT:.0%}": met(0 < share <= MOST_BUILT, f"{share:.1%}"),
    }


def session_files(n: int, progress: Progress) -> Path:
    """A folder of n files that are small enough to encode all of them."""
    return many_files(n, progress, LEAST_BYTES, MOST_BYTES)


def questions_of(root: Path, n: int, seed: int, number: int = 0) -> list[Asked]:
    """A session: folders of the tree by Zipf's law, in each a line of one of its files as the question, every other time in that folder
    alone; and what was asked before. The seed says which folders; number: of the session in these."""
    folders: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            folders.setdefault(path.parent.relative_to(root).as_posix(), []).append(path)
    low, high = FOLDER_FILES
    names = sorted(name for name, files in folders.items() if low <= len(files) <= high) or sorted(folders)
    drawn = random.Random(seed)
    drawn.shuffle(names)
    names = names[:N_FOLDERS]
    drawn = random.Random(f"{seed} {number}")
    found: list[Asked] = []
    for i in range(n):
        if found and drawn.random() < AGAIN:
            found.append(drawn.choice(found))
            continue
        folder = drawn.choices(names, [1 / (1 + rank) for rank in range(len(names))])[0]
        lines = drawn.choice(folders[folder]).read_text("utf-8", "replace").splitlines()
        said = [line.strip(" #*\"'") for line in lines if len(line.split()) >= 4] or [folder]
        asked: Asked = {"query": drawn.choice(said)[:300]}
        found.append(asked | ({"paths": [f"{folder}/**"]} if i % 2 and folder != "." else {}))
    return found


def index(root: Path, store: str, dear: str, progress: Progress) -> None:
    """An index of the cheap layers and a dear one. Raises BadSpec where it fails."""
    from jobs import index as job
    from jobs.settings import Settings

    line = ["--corpus", CORPUS, "--source", str(root), "--store", store, "--layers", PLAIN, "--layer", dear, "--local"]
    outcome = job.run(job.parser().parse_args(line), Settings.load(store=store), progress)
    if outcome.failed:
        raise BadSpec(f"{min(outcome.failed)} cannot be indexed: {outcome.failed[min(outcome.failed)]}")


def ask(wire: Wire, fields: Mapping[str, Any]) -> tuple[int, float, list[str]]:
    """Status, seconds, and paths of the hits."""
    status, answer, seconds = post(wire, "/v1/search", {"corpus": CORPUS, "budget_ms": BUDGET_MS, "keep_all": True, **fields})
    return status, seconds, [hit["entries"][0]["path"] for hit in answer.get("hits", []) if hit["entries"]]


def _walk(server: Served, asked: Sequence[Asked], progress: Progress) -> list[tuple[int, float, list[str]]]:
    """The session at its pace."""
    wire, found, begun = Wire(server.url), [], time.perf_counter()
    for i, fields in enumerate(asked):
        found.append(ask(wire, fields))
        if found[-1][0] != 200:
            raise BadSpec(f"A search of the session was answered with {found[-1][0]}: {json.dumps(fields)}\n{server.said()}")
        time.sleep(max(begun + (i + 1) * PACE_S - time.perf_counter(), 0.0))
        progress("session", i + 1, len(asked), "questions")
    wire.close()
    return found


def _in_turns(servers: Mapping[str, Served], asked: Sequence[Asked], progress: Progress) -> dict[str, list[float]]:
    """Seconds of the questions, each asked of all servers one after the other; after a first pass in which all load what they need."""
    wires = {name: Wire(server.url) for name, server in servers.items()}
    for name in servers:
        for fields in asked[:10]:
            ask(wires[name], fields)
    turns: dict[str, list[float]] = {name: [] for name in servers}
    for i, fields in enumerate(asked):
        for name in sorted(servers, reverse=bool(i % 2)):
            turns[name].append(ask(wires[name], fields)[1])
        progress("session, again", i + 1, len(asked), "questions")
    for wire in wires.values():
        wire.close()
    return turns


def _marks(seconds: Sequence[float]) -> dict[str, float]:
    return {f"p{round(100 * share)}": round(1_000 * (percentile(seconds, share) or 0.0), 1) for share in (0.5, 0.99)}


def built(server: Served) -> dict[str, Any]:
    """What the builder says of the dear space."""
    corpora = get(Wire(server.url), "/v1/status").get("corpora", {})
    told = corpora.get(CORPUS, {}).get("building", {}).get(DEAR, {})
    return {"built": 0, "documents": 0, "waiting": 0, "due": 0, "running": 0} | told


def _far(told: Mapping[str, Any]) -> dict[str, Any]:
    share = told["built"] / max(told["documents"], 1)
    seconds = round(told.get("spent", {}).get("seconds", 0.0), 1)
    return {"built": told["built"], "share": round(share, 3), "due": told["due"], "encoding took, s": seconds}


def _settled(server: Served, progress: Progress) -> float:
    """Wait until the builder has nothing to do any more, `SETTLE_S` at most; the seconds that took."""
    begun = time.perf_counter()
    while (at := time.perf_counter() - begun) < SETTLE_S:
        told = built(server)
        if told["documents"] and not told["due"] and not told["running"] and at > 6.0:  # what was shown is written down within 5 s
            break
        progress("builder", round(at), round(SETTLE_S), "seconds")
        time.sleep(0.5)
    return at


def _covers(server: Served, paths: Sequence[str], progress: Progress) -> float:
    """The share of these files that the dear space has looked at by itself."""
    wire, covered = Wire(server.url), 0.0
    for i, path in enumerate(paths):
        fields = {"corpus": CORPUS, "query": "what is it", "layers": [DEAR], "paths": [path], "keep_all": True}
        _, answer, _ = post(wire, "/v1/search", fields)
        covered += coverage(answer, DEAR)
        progress("what is covered", i + 1, len(paths), "files")
    wire.close()
    return covered / max(len(paths), 1)
