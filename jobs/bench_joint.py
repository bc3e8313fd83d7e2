"""What lists of 100 documents a space miss of the ranking by all that every space says of all documents, and what it costs to know it.

Each judged collection of `--dataset` is asked twice at each depth: by evidence, which ranks what any space lists, and jointly, whose
ranking is certain. What joint has among its k best and evidence has not is on no list: both rank by the same sums. Collections are
indexed for this by bm25 and static, or lie in `--store` with the layers that they have there.
"""

import io
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs import datasets
from jobs.asking import scores_of
from jobs.metrics import measure, randomisation_p
from jobs.progress import Progress
from shards.errors import BadSpec

if TYPE_CHECKING:
    from serve.schema import SearchAnswer

LAYERS = ("bm25", "static")
DEPTHS = (10, 100)
COUPLINGS = ("evidence", "joint")
BUDGET_MS = 60_000


def bench_joint(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Per collection and depth: how far joint rankings are certain, rounds and candidates; recall of the lists; nDCG@10; milliseconds."""
    import sondage

    if not options.dataset:
        raise BadSpec("Give --dataset DIR, judged collections in BEIR layout.")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        for folder in options.dataset:
            judged = datasets.read_beir(folder)
            store = options.store or _indexed(folder, judged.name, Path(scratch) / judged.name)
            with sondage.Engine(store) as engine:
                first = next(iter(judged.queries.values()))
                layers = engine.search(first, judged.name, k=1, budget_ms=BUDGET_MS).layers
                rows = {f"k={k}": _at_depth(engine, judged, k, progress) for k in DEPTHS}
            figures[judged.name] = {"layers": [layer.name for layer in layers], "queries": len(judged.queries), **rows}
    return figures


def _indexed(folder: Path, corpus: str, scratch: Path) -> str:
    """The collection's documents as a corpus, in a store of its own."""
    from jobs import index
    from jobs.settings import Settings

    scratch.mkdir()
    datasets.write_archive(datasets.find(folder, "corpus.jsonl"), scratch / "documents.zip")
    store = str(scratch / "store")
    args = ["--corpus", corpus, "--source", f"zip://{scratch / 'documents.zip'}", "--source-name", datasets.SOURCE_NAME]
    args += ["--store", store, "--layers", ",".join(LAYERS), "--local"]
    index.run(index.parser().parse_args(args), Settings.load(store=store), Progress(io.StringIO()))
    return store


def _at_depth(engine: Any, judged: datasets.Judged, k: int, progress: Progress) -> dict[str, Any]:
    fields = {"k": k, "budget_ms": BUDGET_MS, "highlight": False, "keep_all": True}
    seconds: dict[str, list[tuple[float, float]]] = {coupling: [] for coupling in COUPLINGS}  # by the clock, of CPU
    runs: dict[str, dict[str, Mapping[str, float]]] = {coupling: {} for coupling in COUPLINGS}
    recalls, infos = [], []
    for i, (name, text) in enumerate(judged.queries.items()):
        answers: dict[str, SearchAnswer] = {}
        for coupling in COUPLINGS if i % 2 else COUPLINGS[::-1]:  # what comes second finds files in memory
            begun, cpu = time.perf_counter(), time.process_time()
            answers[coupling] = engine.search(text, judged.name, coupling=coupling, **fields)
            seconds[coupling].append((time.perf_counter() - begun, time.process_time() - cpu))
            runs[coupling][name] = scores_of(answers[coupling], k)
        info, wanted = answers["joint"].joint, {hit.hash for hit in answers["joint"].hits}
        if info is not None:  # something was asked
            infos.append(info)
            missed = wanted - {hit.hash for hit in answers["evidence"].hits}
            recalls.append(1 - len(missed) / len(wanted) if wanted else 1.0)
        progress(f"joint, {k} best of {judged.name}", i + 1, len(judged.queries), "queries")
    values = {coupling: measure(run, judged.qrels, list(judged.queries)) for coupling, run in runs.items()}
    metric = "ndcg@10" if k == 10 else f"recall@{k}"
    medians = {coupling: 1000 * np.median(np.array(taken), axis=0) for coupling, taken in seconds.items()}
    certain = [info.exact_to == k or not info.reason for info in infos]
    return {
        "certain, % of queries": round(100 * float(np.mean(certain)), 2),
        "in one round, %": round(100 * float(np.mean([info.rounds == 1 for info in infos])), 1),
        "candidates, median": statistics.median(info.candidates for info in infos),
        "of documents": max(info.documents for info in infos),
        "why not certain": sorted({info.reason for info in infos if info.reason}),
        "recall of the lists": round(float(np.mean(recalls)), 5),
        "least": round(min(recalls), 3),
        "lists that missed some, %": round(100 * float(np.mean(np.array(recalls) < 1)), 1),
        metric: {coupling: round(float(found[metric].mean()), 4) for coupling, found in values.items()},
        "p": round(randomisation_p(values["joint"][metric] - values["evidence"][metric]), 3),
        "ms p50": {coupling: round(float(found[0]), 2) for coupling, found in medians.items()},
        "ms of CPU p50": {coupling: round(float(found[1]), 2) for coupling, found in medians.items()},
    }
