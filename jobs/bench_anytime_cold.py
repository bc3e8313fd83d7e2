"""How soon a corpus that was just named answers.

An empty store is served, `POST /v1/corpora` names a folder of `--files` small files: seconds until the first answers of `names` and
`text`, how much of the listing these had looked at, seconds until all files are covered, and all layers there.
"""

import json
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.bench_anytime_server import Served
from jobs.bench_anytime_tree import many_files
from jobs.bench_anytime_wire import Wire
from jobs.progress import Progress
from shards.errors import BadSpec

CORPUS = "opened"
FIRST_S, FIRST_COVERAGE, ALL_S = 5.0, 0.2, 60.0  # the first answers, and what they cover; all files
PATIENCE_S = 900.0
LOOK_EVERY_S = 0.05
PLAIN = "names,text,bm25,static"
BUDGET_MS = 3_000
FIRST_QUESTIONS: dict[str, dict[str, Any]] = {
    "names": {"forms": {"names": {"glob": "**/0*.*"}}, "layers": ["names"]},
    "text": {"forms": {"text": {"pattern": "return"}}, "layers": ["text"]},
}


def bench_cold(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Over the largest of `--files`."""
    return opened(progress, max(options.files))


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
            f"first answers within {FIRST_S:.0f} s": met(worst_s <= FIRST_S, f"{worst_s:.1f} s"),
            f"coverage then at least {FIRST_COVERAGE:.0%}": met(least >= FIRST_COVERAGE, f"{least:.0%}"),
            f"all files within {ALL_S:.0f} s": met(0 < files_s <= ALL_S, f"{files_s:.1f} s"),
        },
    }


def met(is_met: bool, figure: str) -> str:
    """As targets are told."""
    return f"{'met' if is_met else 'missed'}: {figure}"
