"""What spans that somebody chose gain for the documents that he has not seen yet: relevance feedback on judged collections.

Each judged query of each `--dataset` is asked; the first three relevant ones of its ten best hits, as the judgements say, are given back
as feedback. Both rankings are then measured without any of these ten, which he has seen (a residual collection, Salton & Buckley 1990),
on the queries that found a relevant one and have another. "blind": the three best hits are given back, relevant or not. Of each layer
alone, and of all together.
"""

import io
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs import datasets
from jobs.asking import BUDGET_MS, scores_of
from jobs.metrics import measure, randomisation_p
from jobs.progress import Progress
from shards.errors import BadSpec

if TYPE_CHECKING:
    from serve.schema import Hit

LAYERS = ("bm25", "static")
CHOSEN, LOOKED_AT, DEPTH = 3, 10, 100
Run = dict[str, Mapping[str, float]]


def bench_feedback(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Per collection, layer and way of choosing: queries, nDCG@10 and MAP without and with feedback, p of the difference in nDCG."""
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
                there = [layer.name for layer in engine.search(first, judged.name, k=1, budget_ms=BUDGET_MS).layers]
                asked = {name: [name] for name in there} | {"all": there}
                figures[judged.name] = {
                    f"{name}, {'blind' if blind else 'judged'}": _gain(engine, judged, layers, blind, f"{judged.name}, {name}", progress)
                    for name, layers in asked.items()
                    for blind in (False, True)
                }
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


def _gain(engine: Any, judged: datasets.Judged, layers: Sequence[str], blind: bool, name: str, progress: Progress) -> dict[str, Any]:
    fields = {"k": DEPTH, "layers": list(layers), "budget_ms": BUDGET_MS, "highlight": False, "keep_all": True}
    before: Run = {}
    after: Run = {}
    left: dict[str, Mapping[str, int]] = {}
    verdicts = []
    for i, (query, text) in enumerate(judged.queries.items()):
        progress(f"feedback, {name}", i + 1, len(judged.queries), "queries")
        answer = engine.search(text, judged.name, **fields)
        chosen = _chosen(answer.hits, judged.qrels[query], blind)
        known = {document for hit in answer.hits[:LOOKED_AT] for document in _documents(hit)}
        rest = {document: grade for document, grade in judged.qrels[query].items() if document not in known}
        if not chosen or not any(grade > 0 for grade in rest.values()):
            continue
        spans = [f"{hit.hash}:{hit.start}-{hit.end}" for hit in chosen]
        again = engine.search(text, judged.name, feedback=spans, **fields)
        verdicts.append((answer.verdict, again.verdict))
        before[query] = {document: score for document, score in scores_of(answer, DEPTH).items() if document not in known}
        after[query] = {document: score for document, score in scores_of(again, DEPTH).items() if document not in known}
        left[query] = rest
    queries = list(left)
    one, two = measure(before, left, queries), measure(after, left, queries)
    return {
        "queries": len(queries),
        **{metric: [round(float(found[metric].mean()), 4) for found in (one, two)] for metric in ("ndcg@10", "map", "recall@100")},
        "p of nDCG": round(randomisation_p(two["ndcg@10"] - one["ndcg@10"]), 4),
        "better, worse": [int(np.sum(two["ndcg@10"] > one["ndcg@10"])), int(np.sum(two["ndcg@10"] < one["ndcg@10"]))],
        "verdict none": [sum(pair[i] == "none" for pair in verdicts) for i in (0, 1)],
    }


def _chosen(hits: "Sequence[Hit]", grades: Mapping[str, int], blind: bool) -> "list[Hit]":
    if blind:
        return list(hits[:CHOSEN])
    return [hit for hit in hits[:LOOKED_AT] if any(grades.get(document, 0) > 0 for document in _documents(hit))][:CHOSEN]


def _documents(hit: "Hit") -> list[str]:
    return [datasets.document_id(entry.source, entry.path) for entry in hit.entries]
