"""NLQL beside python-nlql, each engine in its process, over the same documents with the same vectors: seconds, milliseconds, bytes.

Rows of both must be the same. Queries are asked in turns, so that other work on the machine slows both; ratios are of medians.
"""

import json
import os
import statistics
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from jobs.progress import Progress
from shards.errors import BadSpec

ROOT = Path(__file__).resolve().parent.parent
PEER = "python-nlql==0.3.3"
QUESTION = 'LET rel = SIMILARITY(content, "AI agents call tools")'
QUERIES = {  # and how many times as fast as the peer it is to be
    "Execution Flow": (f'SELECT SENTENCE {QUESTION} WHERE rel >= 0.3 AND meta.status == "published" ORDER BY rel DESC LIMIT 5', 20.0),
    "rel >= 0.1": (f"SELECT SENTENCE {QUESTION} WHERE rel >= 0.1 ORDER BY rel DESC LIMIT 10", 20.0),
    "rel >= 0.1, all rows": (f"SELECT SENTENCE {QUESTION} WHERE rel >= 0.1", 20.0),
    "two scores": (
        f'SELECT SENTENCE {QUESTION}, late = SIMILARITY(content, "slow shards answer late") WHERE rel >= 0.1 AND late < 0.1 '
        "ORDER BY rel DESC LIMIT 10",
        20.0,
    ),
    "two sort keys": (f"SELECT SENTENCE {QUESTION} WHERE meta.topic == 'topic0' ORDER BY meta.year DESC, rel DESC LIMIT 10", 20.0),
    "date range": (
        f"SELECT SENTENCE {QUESTION} WHERE meta.created_at >= '2022-01-01' AND meta.created_at < '2022-04-01' ORDER BY rel DESC LIMIT 10",
        20.0,
    ),
    "plain top-k": (f"SELECT SENTENCE {QUESTION} ORDER BY rel DESC LIMIT 10", 1.0),
}
INGESTION, MEMORY = 10.0, 0.5  # how many times as fast, and the share of the peak that it may take
TOLERANCE = 2e-5  # of a score: the last of five digits


class Side:
    """An engine in its process. Raises BadSpec where it does not start."""

    def __init__(self, name: str, n_units: int, peer: Path | None = None):
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from jobs.nlql_side import serve; serve({name!r}, {n_units})"
        environment = {**os.environ, **({"PYTHONPATH": str(peer)} if peer else {})}
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise BadSpec(f"The process of {self.name} ended with {self._process.wait()}; what it wrote stands above.")
        return json.loads(answer)

    def close(self) -> None:
        self._process.communicate()  # its stdin ends, so it does


def bench_nlql(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Of each engine seconds of ingestion, milliseconds of queries and peak memory; and ratios beside their goals."""
    peer: Path | None = options.peer
    if peer is None or not (peer / "nlql").is_dir():
        raise BadSpec(f"There is no {PEER} in {peer or 'a folder that --peer names'}. Put it there: pip install --target DIR {PEER}")
    n_units, rounds = options.units, options.rounds or 5
    warm = Side("sondage", 1_000)  # compiles what was never compiled here
    warm.ask(do="ingest")
    for text, _ in QUERIES.values():
        warm.ask(do="query", text=text, rounds=1)
    warm.close()
    sides: list[Side] = []
    try:
        found: dict[str, dict[str, Any]] = {}
        for number, (name, where) in enumerate((("sondage", None), ("sondage, embedding", None), ("peer", peer))):
            side = Side(name, n_units, where)
            sides.append(side)
            found[name] = {"ingestion": side.ask(do="ingest"), "queries": {}}
            progress("ingestion", number + 1, 3, "engines")
        ours, _, theirs = sides
        for number, (what, (text, _)) in enumerate(QUERIES.items()):
            answers: dict[str, list[dict[str, Any]]] = {}
            for turn in range(rounds + 1):
                for side in (ours, theirs):
                    answers.setdefault(side.name, []).append(side.ask(do="query", text=text, rounds=1))
                    progress(what, number * (rounds + 1) + turn + 1, len(QUERIES) * (rounds + 1), "rounds")
            _same(what, answers["sondage"][-1], answers["peer"][-1])
            for name, told in answers.items():  # the first round warms caches, and indexes of the peer
                times = {unit: round(statistics.median(answer[unit][0] for answer in told[1:]), 3) for unit in ("ms", "cpu_ms")}
                found[name]["queries"][what] = times | {"rows": told[-1]["n"]}
        for side in (ours, theirs):
            found[side.name]["peak_mb"] = round(side.ask(do="nothing")["peak_mb"])
    finally:
        for side in sides:
            side.close()
    return {"units": n_units, "rounds": rounds, "engines": found, "sondage over the peer": _ratios(found)}


def _same(what: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Raises BadSpec where the engines gave other rows."""
    a, b = ours["rows"], theirs["rows"]
    same = ours["n"] == theirs["n"] and len(a) == len(b)
    if same and sorted(row[0] for row in a) != sorted(row[0] for row in b):
        # Of a cut list the last rows may differ where scores are equal to the digits that both keep.
        same = all(abs(x[1] - y[1]) <= TOLERANCE for x, y in zip(a, b, strict=True))
    if not same or any(abs(x[1] - y[1]) > TOLERANCE for x, y in zip(a, b, strict=True)):
        raise BadSpec(f"Query {what!r}: rows differ: {ours['n']} and {theirs['n']}, first of them {a[:3]} and {b[:3]}.")


def _ratios(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    ours, theirs = found["sondage"], found["peer"]
    told = {"ingestion": _ratio(ours["ingestion"], theirs["ingestion"], "s", INGESTION)}
    told |= {what: _ratio(ours["queries"][what], theirs["queries"][what], "ms", goal) for what, (_, goal) in QUERIES.items()}
    share = ours["peak_mb"] / theirs["peak_mb"]
    return told | {"peak memory": {"share": round(share, 2), "goal": MEMORY, "reached": share <= MEMORY}}


def _ratio(ours: dict[str, Any], theirs: dict[str, Any], unit: str, goal: float) -> dict[str, Any]:
    """Of the time that passes, and of processors: what other work on the machine takes is in the first alone."""
    ratio, cpu = theirs[unit] / ours[unit], theirs[f"cpu_{unit}"] / max(ours[f"cpu_{unit}"], 1e-9)
    return {"times as fast": round(ratio, 1), "of processors": round(cpu, 1), "goal": goal, "reached": ratio >= goal}
