"""What late chunking gains and costs: dense passages read alone, and in their documents, on a judged collection.

Of a large collection only some documents are taken: those that are judged relevant, then the first others. So figures compare the
ways with one another, not with those of the whole collection.
"""

import time
from argparse import Namespace
from typing import Any

import numpy as np

from jobs import datasets
from jobs.metrics import measure, randomisation_p
from jobs.progress import Progress
from shards.documents import Documents
from shards.errors import BadSpec
from shards.identity import content_hash
from shards.layers import SpaceSpec, create
from shards.layers.contract import Request, Resources
from shards.segment import pack_entries
from shards.types import Array, Budget

METRIC = "ndcg@10"


def bench_context(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Per size of passage, isolated and late: nDCG@10 (late: its difference, with p), passages, seconds of encoding."""
    documents, names, judged = some_of_collection(options)
    figures: dict[str, Any] = {"collection": judged.name, "documents": len(names), "queries": len(judged.queries)}
    for unit_bytes in options.unit_bytes:
        alone: Array | None = None
        for dials in ({}, {"context": "late"}, {"context": "late", "window_tokens": 512}):
            row, values = _measured(documents, names, judged, {"unit_bytes": unit_bytes, "dtype": "bf16"} | dials, progress)
            if alone is None:
                alone = values
            else:
                row |= {"difference": round(float((values - alone).mean()), 4), "p": round(randomisation_p(values - alone), 3)}
            figures[" ".join(map(str, [unit_bytes, *dials.values()])) if dials else f"{unit_bytes} isolated"] = row
    return figures


def some_of_collection(options: Namespace) -> tuple[Documents, list[str], datasets.Judged]:
    """Documents of `--dataset`, `--documents` at most, judged ones first; their names; queries and judgements. Raises BadSpec without."""
    if len(options.dataset) != 1:
        raise BadSpec("Give --dataset DIR, one judged collection in BEIR layout.")
    (folder,) = options.dataset
    judged = datasets.read_beir(folder)
    wanted = {document for grades in judged.qrels.values() for document, grade in grades.items() if grade > 0}
    records = list(datasets.read_documents(datasets.find(folder, "corpus.jsonl")))
    records.sort(key=lambda record: datasets.as_word(str(record["_id"])) not in wanted)
    texts = {}
    for record in records[: options.documents]:
        body = "\n\n".join(part for part in (record.get("title"), record.get("text")) if part).encode()
        texts[content_hash(body)] = (datasets.as_word(str(record["_id"])), body)
    documents = Documents.pack((key, body, "prose:english") for key, (_, body) in texts.items())
    names = [texts[key.tobytes()][0] for key in documents.hashes]
    return documents, names, judged


def _measured(
    documents: Documents, names: list[str], judged: datasets.Judged, dials: dict[str, Any], progress: Progress
) -> tuple[dict[str, Any], Array]:
    """The figures of one space, and the metric's value for each query."""
    layer = create(SpaceSpec("dense", "dense", dials), Resources())
    entries = pack_entries(())
    layer.prepare(Request("loads the model"), layer.collect([]))
    begun = time.monotonic()
    arrays = layer.build(documents, entries, progress=lambda step, done, total: progress(f"{step} {dials}", done, total, "passages"))
    seconds = time.monotonic() - begun
    reader = layer.open(arrays, documents, entries, np.ones(len(documents), bool))
    run = {}
    for query, text in judged.queries.items():
        found = reader.search(layer.prepare(Request(text), layer.collect([])), None, 100, Budget())
        run[query] = {names[row]: float(score) for row, score in zip(found.rows, found.scores, strict=True)}
    values = measure(run, judged.qrels, list(judged.queries))[METRIC]
    row = {METRIC: round(float(values.mean()), 4), "passages": len(arrays["vectors"]), "seconds": round(seconds, 1)}
    return row, values
