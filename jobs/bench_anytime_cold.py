"""How soon a corpus that was just named answers, and what a session costs whose dear layer builds itself where the session looks.

opening   an empty store is served, `POST /v1/corpora` names a folder of `--files` small files: seconds until the first answers of
          `names` and `text`, how much of the listing these had looked at, seconds until all files are covered, and all layers there
session   over `--session-files` files, 200 questions with a short thought between them, folders drawn by Zipf's law: one server
          has `dense` built, the other builds it where it is used (`built=used`). Then: the share that is built, the share of the
          documents shown that it covers, and how long the same questions take beside the other server, asked in turns
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

from jobs.bench_anytime_server import Served, served
from jobs.bench_anytime_tree import many_files
from jobs.bench_anytime_wire import Wire
from jobs.chaos_report import percentile
from jobs.progress import Progress
from shards.errors import BadSpec

CORPUS = "opened"
FIRST_S, FIRST_COVERAGE, ALL_S = 5.0, 0.2, 60.0  # the first answers, and what they cover; all files
PATIENCE_S = 900.0
LOOK_EVERY_S = 0.05
N_QUESTIONS = 200
THOUGHT_S = 0.3  # between two questions of the session: a reader's, cut short; the builder works meanwhile
SETTLE_S = 60.0  # in which the builder may finish what the session asked for
PLAIN = "names,text,bm25,static"
DEAR, DEAR_DIALS = "dense", "dense:model=minilm"
BUDGET_MS = 3_000
MOST_BUILT, MOST_P50 = 0.2, 1.3
FIRST_QUESTIONS: dict[str, dict[str, Any]] = {
    "names": {"forms": {"names": {"glob": "**/0*.*"}}, "layers": ["names"]},
    "text": {"forms": {"text": {"pattern": "return"}}, "layers": ["text"]},
}


def bench_cold(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Both parts."""
    return {"opening": opened(progress, max(options.files)), "session": session(progress, options.session_files, options.seed)}


def post(wire: Wire, path: str, fields: Mapping[str, Any]) -> tuple[int, dict[str, Any], float]:
    """Status, answer and seconds of a request with a JSON body; an answer that is none is {}."""
    answered = wire.ask("POST", path, json.dumps(fields).encode())
    return answered.status, _json(answered.body), answered.seconds


def get(wire: Wire, path: str) -> dict[str, Any]:
    """What a path says, {} where it says nothing."""
    answered = wire.ask("GET", path)
    return _json(answered.body) if answered.status == 200 else {}


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def coverage(answer: Mapping[str, Any], layer: str) -> float:
    """The share of the scope that a layer looked at, 0 where it says nothing."""
    rows = [row for row in answer.get("coverage", []) if row["layer"] == layer]
    total = sum(row["total"] for row in rows)
    return sum(row["covered"] for row in rows) / total if total else 0.0


# --- opening -----------------------------------------------------------------------------------------------------------------


def opened(progress: Progress, n: int) -> dict[str, Any]:
    """Seconds from the request that names the corpus."""
    root = many_files(n, progress)
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        server = Served(str(Path(scratch) / "store"), Path(scratch) / "log")
        try:
            server.start()
            return {"files": n} | _opened(server, root, n, progress)
        finally:
            server.stop()


def _opened(server: Served, root: Path, n: int, progress: Progress) -> dict[str, Any]:
    wire = Wire(server.url)
    begun = time.perf_counter()
    status, said, _ = post(wire, "/v1/corpora", {"corpus": CORPUS, "source": {"root": str(root)}, "layers": PLAIN.split(",")})
    if status != 202:
        raise BadSpec(f"POST /v1/corpora was answered with {status}: {json.dumps(said)[:300]}\n{server.said()}")
    first: dict[str, Any] = {}
    curve: list[list[float]] = []
    files_s = layers_s = 0.0
    while not layers_s:
        now = time.perf_counter() - begun
        if now > PATIENCE_S:
            raise BadSpec(f"After {now:.0f} s not all is there: {json.dumps(get(wire, f'/v1/corpora/{CORPUS}'))}\n{server.said()}")
        covered = 0.0
        for layer, fields in FIRST_QUESTIONS.items():
            if layer in first and files_s:
                continue
            status, answer, _ = post(wire, "/v1/search", {"corpus": CORPUS, "budget_ms": BUDGET_MS, **fields})
            at = time.perf_counter() - begun
            covered = coverage(answer, layer)
            if layer not in first and status == 200 and answer["hits"]:
                told = get(wire, f"/v1/corpora/{CORPUS}")
                held = told.get("held", 0) / told["listed"] if told.get("listed") else 0.0
                first[layer] = {"seconds": round(at, 2), "coverage": round(covered, 3), "held": round(held, 3)}
        told = get(wire, f"/v1/corpora/{CORPUS}")
        if told.get("state") == "failed":
            raise BadSpec(f"The corpus could not be opened: {told.get('reason')}\n{server.said()}")
        at = time.perf_counter() - begun
        if not files_s and covered == 1.0 and told.get("listed") and not told.get("pending"):
            files_s = at
        if told.get("state") == "done":
            layers_s = at
        if covered < 1.0 and not files_s and (not curve or at - curve[-1][0] >= 1.0):
            curve.append([round(at, 1), round(covered, 3)])
        progress("opening", min(told.get("held", 0), n), n, "files")
        time.sleep(LOOK_EVERY_S if not files_s else 0.25)
    wire.close()
    worst_s, least = max(one["seconds"] for one in first.values()), min(one["coverage"] for one in first.values())
    return {
        "first answer": first,
        "all files covered, s": round(files_s, 1),
        "all layers, s": round(layers_s, 1),
        "coverage of text, by seconds": curve,
        "targets": {
            f"first answers within {FIRST_S:.0f} s": _met(worst_s <= FIRST_S, f"{worst_s:.1f} s"),
            f"coverage then at least {FIRST_COVERAGE:.0%}": _met(least >= FIRST_COVERAGE, f"{least:.0%}"),
            f"all files within {ALL_S:.0f} s": _met(0 < files_s <= ALL_S, f"{files_s:.1f} s"),
        },
    }


def _met(is_met: bool, figure: str) -> str:
    return f"{'met' if is_met else 'missed'}: {figure}"


# --- session -----------------------------------------------------------------------------------------------------------------


def questions_of(root: Path, n: int, seed: int) -> list[dict[str, Any]]:
    """A session: folders of the tree by Zipf's law, in each a line of one of its files as the question, every other time in that folder
    alone."""
    folders: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            folders.setdefault(path.parent.parent.relative_to(root).as_posix(), []).append(path)
    drawn = random.Random(seed)
    names = sorted(folders)
    drawn.shuffle(names)
    chosen = drawn.choices(names, [1 / (1 + rank) for rank in range(len(names))], k=n)
    found = []
    for i, folder in enumerate(chosen):
        lines = drawn.choice(folders[folder]).read_text("utf-8", "replace").splitlines()
        said = [line.strip(" #*\"'") for line in lines if len(line.split()) >= 4] or [folder]
        asked: dict[str, Any] = {"query": drawn.choice(said)[:300]}
        found.append(asked | ({"paths": [f"{folder}/**"]} if i % 2 and folder != "." else {}))
    return found


def session(progress: Progress, n: int, seed: int) -> dict[str, Any]:
    """The questions asked of a server that builds as it goes, and of one that has everything."""
    root = many_files(n, progress)
    asked = questions_of(root, N_QUESTIONS, seed)
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        folder = Path(scratch)
        build_s = {}
        for name, dials in (("whole", DEAR_DIALS), ("used", f"{DEAR_DIALS},built=used")):
            begun = time.perf_counter()
            _index(root, str(folder / name), dials, progress)
            build_s[name] = round(time.perf_counter() - begun, 1)
        with served(str(folder / "whole"), folder / "whole.log") as whole:
            calm = _walk(whole, asked, progress, "session, all built")
            with served(str(folder / "used"), folder / "used.log") as used:
                during = _walk(used, asked, progress, "session, building")
                then = _built(used)
                _settled(used, progress)
                now = _built(used)
                turns: dict[str, list[float]] = {"whole": [], "used": []}
                for i, fields in enumerate(asked):
                    for name, server in (("whole", whole), ("used", used)):
                        turns[name].append(_ask(Wire(server.url), fields)[1])
                    progress("session, again", i + 1, len(asked), "questions")
                touched = sorted({path for _, _, paths in during for path in paths})
                covers = _covers(used, touched[:: max(len(touched) // 200, 1)], progress)
    middle = {name: statistics.median(seconds) for name, seconds in turns.items()}
    ratio = middle["used"] / middle["whole"]
    share = now["built"] / max(now["documents"], 1)
    return {
        "files": n,
        "questions": len(asked),
        "thought_s": THOUGHT_S,
        "index_s": build_s,
        "built when the session ended": then,
        "built in the end": now,
        "documents shown": len(touched),
        f"of these covered by {DEAR}, %": round(100 * covers, 1),
        "p50_ms afterwards": {name: round(1_000 * seconds, 1) for name, seconds in middle.items()},
        "during the session, ms": {"all built": _marks([s for _, s, _ in calm]), "building": _marks([s for _, s, _ in during])},
        "targets": {
            f"{DEAR} covers what was shown": _met(covers >= 0.999, f"{covers:.1%}"),
            f"p50 at most {MOST_P50} times": _met(ratio <= MOST_P50, f"{ratio:.2f}"),
            f"built at most {MOST_BUILT:.0%}": _met(0 < share <= MOST_BUILT, f"{share:.1%}"),
        },
    }


def _index(root: Path, store: str, dear: str, progress: Progress) -> None:
    from jobs import index
    from jobs.settings import Settings

    line = ["--corpus", CORPUS, "--source", str(root), "--store", store, "--layers", PLAIN, "--layer", dear, "--local"]
    outcome = index.run(index.parser().parse_args(line), Settings.load(store=store), progress)
    if outcome.failed:
        raise BadSpec(f"{min(outcome.failed)} cannot be indexed: {outcome.failed[min(outcome.failed)]}")


def _ask(wire: Wire, fields: Mapping[str, Any]) -> tuple[int, float, list[str]]:
    """Status, seconds, and paths of the hits."""
    status, answer, seconds = post(wire, "/v1/search", {"corpus": CORPUS, "budget_ms": BUDGET_MS, "keep_all": True, **fields})
    return status, seconds, [hit["entries"][0]["path"] for hit in answer.get("hits", []) if hit["entries"]]


def _walk(server: Served, asked: Sequence[Mapping[str, Any]], progress: Progress, step: str) -> list[tuple[int, float, list[str]]]:
    """The session, with its thoughts."""
    wire = Wire(server.url)
    found = []
    for i, fields in enumerate(asked):
        found.append(_ask(wire, fields))
        if found[-1][0] != 200:
            raise BadSpec(f"A search of the session was answered with {found[-1][0]}: {json.dumps(fields)}\n{server.said()}")
        time.sleep(THOUGHT_S)
        progress(step, i + 1, len(asked), "questions")
    wire.close()
    return found


def _marks(seconds: Sequence[float]) -> dict[str, float]:
    return {f"p{round(100 * share)}": round(1_000 * (percentile(seconds, share) or 0.0), 1) for share in (0.5, 0.99)}


def _built(server: Served) -> dict[str, Any]:
    """What the builder says of the dear space."""
    corpora = get(Wire(server.url), "/v1/status").get("corpora", {})
    told = corpora.get(CORPUS, {}).get("building", {}).get(DEAR, {})
    return {"built": 0, "documents": 0, "queued": 0, "running": 0} | told


def _settled(server: Served, progress: Progress) -> None:
    """Wait until the builder has nothing to do any more, `SETTLE_S` at most."""
    begun = time.perf_counter()
    while (at := time.perf_counter() - begun) < SETTLE_S:
        told = _built(server)
        if at > 5.0 and not told["queued"] and not told["running"]:
            break
        progress("builder", round(at), round(SETTLE_S), "seconds")
        time.sleep(1.0)


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
