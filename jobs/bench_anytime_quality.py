"""How good the first ten hits of judged collections are within each budget, beside what unlimited time gives: over HTTP, one client.

The server is `sondage serve` in a process of its own, over an index of each collection (that of `evaluate.py`, from `--store` or made
there), the last of which are the standard library's docstrings. Every query is asked with every budget, in an order drawn by lot, so
that what the machine does meanwhile and what the planner learns meanwhile fall on all budgets alike. Intervals are of the percentile
bootstrap over queries, of the difference from the next longer budget (Sakai 2006).
"""

import json
import random
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from jobs import datasets, docstrings
from jobs.asking import scores_of
from jobs.bench_anytime_server import Served, served
from jobs.bench_anytime_wire import Wire, made
from jobs.datasets import Judged
from jobs.metrics import METRICS, measure
from jobs.progress import Progress
from serve.schema import SearchAnswer
from shards.errors import BadSpec
from shards.types import Array

BUDGETS_MS = (20, 50, 100, 300, 1_000, 3_000, 60_000)
UNLIMITED_MS = BUDGETS_MS[-1]  # the longest there is: nothing that is measured here takes it
LAYERS = "bm25,static,dense:model=minilm"
N_QUERIES = 76  # of each collection where no --limit is given: all of cisi, and three collections in four minutes
WARMING = 30  # queries that do not count: files are mapped, code is compiled, the planner knows what layers take
AT_MS, SHARE = 100, 0.95  # of the unlimited value
N_DRAWS = 2_000
DEPTH = 10
NDCG = METRICS[0]


def bench_quality(progress: Progress, options: Namespace) -> dict[str, Any]:
    """nDCG@10 by collection and budget, with what the targets make of it."""
    folders = [*options.dataset, _docstrings()]
    collections: dict[str, Any] = {}
    for folder in folders:
        judged = datasets.read_beir(folder)
        kept = dict(list(judged.queries.items())[: options.limit or N_QUERIES])
        judged = Judged(judged.name, kept, {query: judged.qrels[query] for query in kept})
        store, corpus = _indexed(folder, options.store, progress)
        with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch, served(store, Path(scratch) / "log") as server:
            collections[judged.name] = _asked(server, corpus, judged, options.seed, progress)
    met = {name: sum(found["targets"][name].startswith("met") for found in collections.values()) for name in TARGETS}
    return {"budgets_ms": BUDGETS_MS, "met, of collections": met | {"of": len(collections)}, "collections": collections}


def _docstrings() -> Path:
    """The collection that is made of the standard library's code."""
    from jobs.bench_tree import bench_folder

    folder = bench_folder() / "stdlib-docstrings"
    docstrings.write_collection(docstrings.standard_library(), folder)
    return folder


def _indexed(folder: Path, stores: str | None, progress: Progress) -> tuple[str, str]:
    """Store and corpus of a collection: as `evaluate.py --suite --store` left it, else made with `LAYERS` and kept."""
    from jobs.indexed import indexed, specs_of
    from jobs.settings import Settings

    name = folder.resolve().name
    if stores and (Path(stores) / name / name / "roots").is_dir():
        return str(Path(stores) / name), name
    store = str(Path(stores) / name) if stores else None
    args = Namespace(dataset=folder, store=store, corpus=None, http=None, layers=None, layer=_specs(), shards=None, sweep=[])
    made_at, corpus = indexed(args, Settings.load(), specs_of(args), [], progress)
    assert made_at is not None
    return made_at, corpus


def _specs() -> list[str]:
    return LAYERS.split(",")


TARGETS = (f"at {AT_MS} ms, {SHARE:.0%} of unlimited", "the curve never falls")


def _asked(server: Served, corpus: str, judged: Judged, seed: int, progress: Progress) -> dict[str, Any]:
    """One collection."""
    wire, queries = Wire(server.url), list(judged.queries)
    order = [(query, budget) for query in queries for budget in BUDGETS_MS]
    random.Random(seed).shuffle(order)
    runs: dict[int, dict[str, dict[str, float]]] = {budget: {} for budget in BUDGETS_MS}
    took: dict[int, list[float]] = {budget: [] for budget in BUDGETS_MS}
    whole: dict[int, int] = dict.fromkeys(BUDGETS_MS, 0)
    asked: dict[int, dict[str, int]] = {budget: {} for budget in BUDGETS_MS}
    for text in list(judged.queries.values())[:WARMING]:
        _answer(wire, server, corpus, text, UNLIMITED_MS)
    for i, (query, budget) in enumerate(order):
        # Spaces behind a question change nothing but that it is no question whose encoding the server has kept: each pays for its own.
        text = judged.queries[query] + " " * (1 + BUDGETS_MS.index(budget))
        answer, seconds = _answer(wire, server, corpus, text, budget)
        runs[budget][query] = scores_of(answer, DEPTH)
        took[budget].append(1_000 * seconds)
        whole[budget] += answer.complete
        for space in {c.layer for c in answer.coverage if c.covered}:
            asked[budget][space] = asked[budget].get(space, 0) + 1
        progress(f"quality on {judged.name}", i + 1, len(order), "queries")
    wire.close()
    values = {budget: measure(runs[budget], judged.qrels, queries)[NDCG] for budget in BUDGETS_MS}
    return figures(values, seed) | {
        "queries": len(queries),
        "p50_ms": {str(budget): round(float(np.median(took[budget])), 1) for budget in BUDGETS_MS},
        "p99_ms": {str(budget): round(float(np.percentile(took[budget], 99)), 1) for budget in BUDGETS_MS},
        "complete, %": {str(budget): round(100 * whole[budget] / len(queries), 1) for budget in BUDGETS_MS},
        "layers that looked, % of queries": {
            str(budget): {space: round(100 * n / len(queries), 1) for space, n in sorted(asked[budget].items())} for budget in BUDGETS_MS
        },
    }


def _answer(wire: Wire, server: Served, corpus: str, text: str, budget_ms: int) -> tuple[SearchAnswer, float]:
    """What the server answers, and in how many seconds. Raises BadSpec with the server's words."""
    body = json.dumps({"corpus": corpus, "query": text, "k": DEPTH, "budget_ms": budget_ms, "keep_all": True, "highlight": False}).encode()
    found = wire.send(made(server.url, "POST", "/v1/search", body))
    if found.status != 200:
        said = found.body[:300].decode("utf-8", "replace")
        raise BadSpec(f"The server answered {found.status} to {text[:60]!r} of {corpus}: {said}\n{server.said()}")
    return SearchAnswer.model_validate_json(found.body), found.seconds


# --- what it comes to -----------------------------------------------------------------------------------------------------------


def interval(difference: Array, seed: int) -> tuple[float, float]:
    """95 % of the mean difference over queries drawn anew. difference: (n_queries,)."""
    rng = np.random.default_rng(seed)
    means = difference[rng.integers(0, len(difference), size=(N_DRAWS, len(difference)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def figures(values: Mapping[int, Array], seed: int = 0) -> dict[str, Any]:
    """Of one collection: the curve, what each longer budget gains, and both targets.

    values: by budget in ms, ascending, nDCG@10 of each query, (n_queries,). A fall is a loss that luck does not explain: the interval
    of its difference lies below 0 as a whole; a mean that is lower within its interval is told, too.
    """
    budgets = sorted(values)
    means = {budget: float(values[budget].mean()) for budget in budgets}
    unlimited = means[budgets[-1]]
    steps, falls, lower = {}, [], []
    for shorter, longer in pairwise(budgets):
        difference = values[longer] - values[shorter]
        low, high = interval(difference, seed)
        steps[f"{shorter} -> {longer}"] = [round(float(difference.mean()), 4), round(low, 4), round(high, 4)]
        if high < 0:
            falls.append(f"{shorter} -> {longer} by {-float(difference.mean()):.4f}")
        elif difference.mean() < 0:
            lower.append(f"{shorter} -> {longer} by {-float(difference.mean()):.4f}")
    share = means[AT_MS] / unlimited if AT_MS in means and unlimited else float("nan")
    targets = {
        TARGETS[0]: f"{'met' if share >= SHARE else 'missed'}: {100 * share:.1f} %",
        TARGETS[1]: _curve(falls, lower),
    }
    return {
        "ndcg@10": {str(budget): round(mean, 4) for budget, mean in means.items()},
        "of unlimited, %": {str(budget): round(100 * mean / unlimited, 1) if unlimited else None for budget, mean in means.items()},
        "gained: mean, 95 % interval": steps,
        "targets": targets,
    }


def _curve(falls: Sequence[str], lower: Sequence[str]) -> str:
    if falls:
        return f"missed: {', '.join(falls)}"
    return "met" if not lower else f"met within the intervals: lower {', '.join(lower)}"
