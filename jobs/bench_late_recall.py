"""What late interaction finds that dense vectors do not, and what its own candidates miss, on a judged collection by one model.

Of a large collection only `--documents` are taken, judged ones first; figures of the whole need a number that is large enough.
"""

from argparse import Namespace
from typing import Any

import numpy as np

from jobs.bench_context import METRIC, some_of_collection
from jobs.metrics import measure, randomisation_p
from jobs.progress import Progress
from jobs.settings import Settings
from shards.layers import SpaceSpec, create
from shards.layers.contract import Layer, Reader, Request, Resources
from shards.plan import SpaceQuery
from shards.segment import pack_entries
from shards.types import Array, Budget

N_RERANKED = 100  # of dense's documents


def bench_late_recall(progress: Progress, options: Namespace) -> dict[str, Any]:
    """nDCG@10 of dense, of late over dense's best, over all passages, and of a search of late alone; that search's recall@10, @100."""
    documents, names, judged = some_of_collection(options)
    resources, entries = Resources(models=Settings.load().models_dir()), pack_entries(())
    readers: dict[str, tuple[Layer, Any, Reader]] = {}
    for name in ("dense", "late"):
        layer = create(SpaceSpec(name, name), resources)
        arrays = layer.build(
            documents, entries, progress=lambda step, n, total, name=name: progress(f"{step} {name}", n, total, "passages")
        )
        statistics = layer.collect([(1, layer.statistics(arrays, documents, entries))])
        readers[name] = layer, statistics, layer.open(arrays, documents, entries, np.ones(len(documents), bool))
    runs: dict[str, dict[str, dict[str, float]]] = {name: {} for name in ("dense", "late over dense", "late over all", "late")}
    recall: dict[int, list[float]] = {10: [], 100: []}
    for i, (query, text) in enumerate(judged.queries.items()):
        questions = {name: layer.prepare(Request(text), statistics) for name, (layer, statistics, _) in readers.items()}
        scores = {name: _of_documents(readers[name][2], question, len(names)) for name, question in questions.items()}
        near = np.argsort(-scores["dense"], kind="stable")[:N_RERANKED]
        found = readers["late"][2].search(questions["late"], None, 100, Budget())
        for name, rows, values in (
            ("dense", near, scores["dense"][near]),
            ("late over dense", near, scores["late"][near]),
            ("late over all", np.arange(len(names)), scores["late"]),
            ("late", found.rows, found.scores),
        ):
            runs[name][query] = {names[row]: float(score) for row, score in zip(rows.tolist(), values, strict=True)}
        for k, shares in recall.items():
            least = np.sort(scores["late"])[::-1][:k][-1]
            shares.append(min(float((found.scores[:k] >= least).sum()) / min(k, len(names)), 1.0))
        progress("late", i + 1, len(judged.queries), "queries")
    values = {name: measure(run, judged.qrels, list(judged.queries))[METRIC] for name, run in runs.items()}
    return {
        "collection": judged.name,
        "documents": len(names),
        "passages": readers["late"][2].n_units,
        METRIC: {name: round(float(found.mean()), 4) for name, found in values.items()},
        "p of late over dense": round(randomisation_p(values["late over dense"] - values["dense"]), 4),
        "recall of late": {f"@{k}": round(float(np.mean(shares)), 4) for k, shares in recall.items()},
    }


def _of_documents(reader: Reader, question: SpaceQuery, n: int) -> Array:
    """Every document's best score, (n,) float64; -inf for one of no passages."""
    scores, rows = reader.scan(question)
    best = np.full(n, -np.inf)
    np.maximum.at(best, rows, scores)
    return best
