"""BM25 with the exact mean and variance of all scores, beside tantivy and bm25s: built and asked in turns.

Each engine is a process of its own that answers a line protocol (`jobs.bench_engines`), on one thread. Ratios are of CPU time, of
one round each, then the median: other work on the machine slows all engines of a round alike and is not counted as theirs.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from jobs.bench_corpus import passages_of_stdlib, queries_of_stdlib
from jobs.progress import Progress
from shards.errors import BadSpec

ROOT = Path(__file__).resolve().parent.parent
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
BARS = {"tantivy": {"search": 1.5, "build": 1.3}, "bm25s": {"search": 0.65, "build": 5.0}}  # at least; KERNELS.md, "Bars"
PEERS = ("tantivy", "tantivy, counting", "bm25s")
K = 10
CHUNK = 50  # questions between two changes of engine
BUILD_ROUNDS = 3
STRUCTURES = {  # of two neighbouring words of a question; the first as it begins
    "both words": "{0} AND {1}", "one excluded": "{0} -{1}", "a phrase": '"{0} {1}"', "within five words": "{0} NEAR/5 {1}",
    "a prefix": "{2}*", "in the title": "title:{0} {1}",
}  # fmt: skip
PREFIX_CHARS = 4


class EngineProcess:
    """One engine in its process. Raises BadSpec where it does not start."""

    def __init__(self, name: str, python: Path):
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from jobs.bench_engines import serve; serve({name!r})"
        self.name = name
        self._process = subprocess.Popen([python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

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


def bench_query(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Per number of passages: QPS, p50 and p99, build MB/s of each engine, and ratios beside their bars."""
    if not PEERS_PYTHON.exists():
        raise BadSpec(f"There is no {PEERS_PYTHON.relative_to(ROOT)}. Make the peers' environment with: bash infra/peers")
    # Without quotation marks, for which ours would look the phrase up in the text, and the peers would not.
    queries = [query.replace('"', " ") for query in queries_of_stdlib()]
    return {str(n): compare(n, queries, options.rounds or 5, progress) for n in options.passages}


def compare(n: int, queries: list[str], rounds: int, progress: Progress) -> dict[str, Any]:
    """All engines over n passages."""
    passages, how = passages_of_stdlib(n, progress)
    engines = [EngineProcess("sondage", Path(sys.executable))]
    engines += [EngineProcess(name, PEERS_PYTHON) for name in PEERS]
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        path = Path(scratch) / "passages.jsonl"
        try:
            path.write_text("\n".join(map(json.dumps, passages)), "utf-8")
            for engine in engines:
                engine.ask(do="load", path=str(path))
            builds = _build(engines, min(rounds, BUILD_ROUNDS), progress)
            as_terms = engines[0].ask(do="terms", path=str(path), queries=queries)["queries"]
            for i, engine in enumerate(engines[1:]):
                engine.ask(do="load", path=str(path))
                engine.ask(do="build", analysed=True)
                progress("the same terms", i + 1, len(engines) - 1, "engines")
            asked = _query(engines, queries, as_terms, rounds, progress)
            structured = _structured(engines[0], queries)
        finally:
            for engine in engines:
                engine.close()
    megabytes = sum(len(text.encode()) for text in passages) / 1e6
    found = {name: _figures(builds[name], asked[name], megabytes, len(queries)) for name in builds}
    return {
        "corpus": how,
        "megabytes": round(megabytes, 1),
        "queries": f"{len(queries)}: first sentences of docstrings and identifiers; the {K} best; {rounds} rounds",
        "engines": found,
        "sondage, structured queries": structured,
        "sondage over": {peer: _ratios(peer, builds, asked) for peer in asked if peer != "sondage"},
    }


def _build(engines: list[EngineProcess], rounds: int, progress: Progress) -> dict[str, list[dict[str, Any]]]:
    builds: dict[str, list[dict[str, Any]]] = {engine.name: [] for engine in engines}
    for i in range(rounds + 1):  # one to warm up: compiled loops are loaded
        for j, engine in enumerate(engines):
            if i == 0 and engine.name.startswith("tantivy"):
                continue  # nothing to compile
            if i > 1 and engine.name == "tantivy, counting":
                continue  # the same index; it is only asked otherwise
            builds[engine.name].append(engine.ask(do="build", analysed=False))
            progress("builds", i * len(engines) + j + 1, (rounds + 1) * len(engines), "builds")
    return {name: found[1:] if len(found) > rounds else found for name, found in builds.items()}


def _query(
    engines: list[EngineProcess], queries: list[str], as_terms: list[str], rounds: int, progress: Progress
) -> dict[str, list[dict[str, Any]]]:
    """Each round's answers of each engine, joined over its chunks. Ours is asked in words, the peers for the same terms."""
    asked: dict[str, list[dict[str, Any]]] = {engine.name: [] for engine in engines}
    for i in range(rounds + 1):
        whole = {engine.name: {"parse_s": [], "search_s": [], "ids": [], "cpu_s": 0.0} for engine in engines}
        for at in range(0, len(queries), CHUNK):
            turn = (i + at // CHUNK) % len(engines)  # nobody is always the first
            for engine in engines[turn:] + engines[:turn]:
                form = queries if engine is engines[0] else as_terms
                answer = engine.ask(do="query", queries=form[at : at + CHUNK], k=K)
                for part, value in answer.items():
                    whole[engine.name][part] += value
        if i:  # the first round warms caches and compiled loops
            for name, answer in whole.items():
                asked[name].append(answer)
        progress("queries", i + 1, rounds + 1, "rounds")
    return asked


def _structured(engine: EngineProcess, queries: list[str]) -> dict[str, dict[str, float]]:
    """What the structure of a query costs: preparing and searching, of which some reads texts, once warm."""
    pairs = [pair for query in queries if len(pair := [word for word in query.split() if word.isalpha()][:2]) == 2]
    found = {}
    for name, form in {"two words": "{0} {1}", **STRUCTURES}.items():
        asked = [form.format(first, second, first[:PREFIX_CHARS]) for first, second in pairs]
        engine.ask(do="query", queries=asked, k=K)
        answer = engine.ask(do="query", queries=asked, k=K)
        ms = [1000 * statistics.quantiles(answer[part], n=100)[at] for at in (49, 98) for part in ("parse_s", "search_s")]
        found[name] = dict(zip(("prepare_p50_ms", "p50_ms", "prepare_p99_ms", "p99_ms"), (round(x, 4) for x in ms), strict=True))
    return found


def _figures(builds: list[dict[str, Any]], asked: list[dict[str, Any]], megabytes: float, n_queries: int) -> dict[str, Any]:
    searches = sorted(statistics.median(times) for times in zip(*(a["search_s"] for a in asked), strict=True))
    return {
        "qps": round(statistics.median(n_queries / a["cpu_s"] for a in asked), 1),
        "qps_wall": round(statistics.median(n_queries / sum(a["search_s"]) for a in asked), 1),
        "p50_ms": round(1000 * statistics.median(searches), 4),
        "p99_ms": round(1000 * searches[int(0.99 * (len(searches) - 1))], 4),
        "parse_p50_ms": round(1000 * statistics.median(s for a in asked for s in a["parse_s"]), 4),
        "build_mb_per_s": round(statistics.median(megabytes / b["cpu_s"] for b in builds), 1),
        "build_mb_per_s_wall": round(statistics.median(megabytes / b["seconds"] for b in builds), 1),
        "n_postings": builds[-1]["n_postings"],
    }


def _ratios(peer: str, builds: dict[str, list[dict[str, Any]]], asked: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """How many times as fast as the peer, each with its bar; and how much of the peer's lists ours share."""

    def times(ours: list[float], theirs: list[float]) -> float:
        return round(statistics.median(b / a for a, b in zip(ours, theirs, strict=False)), 2)

    bars = BARS.get(peer, {})
    lists = zip(asked["sondage"][0]["ids"], asked[peer][0]["ids"], strict=True)
    shared = [len(set(a) & set(b)) / len(b) for a, b in lists if b]
    found: dict[str, Any] = {}
    for what, ours, theirs in (
        ("search", *([a["cpu_s"] for a in asked[name]] for name in ("sondage", peer))),
        ("build", *([b["cpu_s"] for b in builds[name]] for name in ("sondage", peer))),
    ):
        found[what] = times(ours, theirs)
        if what in bars:
            found[f"{what}_bar"], found[f"{what}_met"] = bars[what], found[what] >= bars[what]
    found["shared of the 10 best"] = round(statistics.mean(shared), 3) if shared else 0.0
    return found
