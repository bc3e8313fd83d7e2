"""How well bm25 ranks beside bm25s over the very terms of its analysis: nDCG@10 of both on judged collections.

bm25s is given every document as the terms that the layer counts in it, and every question as the terms that the language of most
passages makes of it, each as often as it is asked for; k1 and b are the same. Where the layer counts words of titles more than once,
both are measured with each title once, too, as bm25s would have it of a plain text. What is left to differ:

- Lengths: the layer counts an identifier by its parts, bm25s by all its terms.
- Languages: the layer asks for each word as all languages of the corpus have it, and its forms share one idf.
- Passages: the layer cuts a document of more than `unit_bytes`, and its best passage counts.
- A content that several documents share is one document to the layer, found under each of their names.

Documents of one score stand in no order: what counts is the mean over all their orders, and what an order could do is told.
"""

import json
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jobs import bench_query, datasets
from jobs.bench_engines import K1, B, as_numbers
from jobs.bench_query import EngineProcess
from jobs.metrics import compare
from jobs.progress import Progress
from shards.analysis import Analyser
from shards.bm25_question import tokens_of
from shards.bm25_statistics import Statistics
from shards.documents import Documents
from shards.errors import BadSpec
from shards.layers import SpaceSpec, create
from shards.layers.contract import Layer, Reader, Request, Resources
from shards.postings import term_hash
from shards.renditions import Skipped, render
from shards.segment import pack_entries
from shards.types import Array, Arrays, Budget

K = 10
QUESTIONS = 1_000  # in one request to the peer
ONCE = ", titles once"
_DISCOUNTS = 1 / np.log2(np.arange(2, K + 2))

Ranked = tuple[Array, Array]  # documents by number and their scores: at least the K best and all that score as the last of them


class Collection(NamedTuple):
    """numbers: of each document id; rows: (n_ids,) int64, the content of each in `documents`."""

    judged: datasets.Judged
    documents: Documents
    numbers: dict[str, int]
    rows: Array


class Space(NamedTuple):
    """The layer over a collection, in one segment."""

    layer: Layer
    arrays: Arrays
    statistics: Statistics
    reader: Reader


class Values(NamedTuple):
    """nDCG@10 of each question, (n_queries,) float64: the mean over the orders of ties, of the worst of them, and of the best."""

    mean: Array
    worst: Array
    best: Array


def bench_bm25s(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Per collection: nDCG@10 of bm25 and bm25s, what ties could do, and the differences with p. Raises BadSpec."""
    if not options.dataset:
        raise BadSpec("Give --dataset DIR …, judged collections in BEIR layout.")
    if not bench_query.PEERS_PYTHON.exists():
        raise BadSpec(f"There is no {bench_query.PEERS_PYTHON}. Make the peers' environment with: bash infra/peers")
    collections = [read_collection(folder) for folder in options.dataset]  # first: a file that cannot be read is told at once
    return {collection.judged.name: measured(collection, progress, options.seed) for collection in collections}


def measured(collection: Collection, progress: Progress, seed: int = 0) -> dict[str, Any]:
    """The figures of one collection."""
    queries = collection.judged.queries
    values: dict[str, Values] = {}
    for suffix, dials in (("", {}), (ONCE, {"title_weight": 1})):
        ours, theirs = f"bm25{suffix}", f"bm25s{suffix}"
        space = opened(collection.documents, dials)
        values[ours] = judge(ranked_by_bm25(collection, space), collection)
        progress(f"{collection.judged.name}: {ours}", 1, 1, "rankings")
        values[theirs] = judge(ranked_by_bm25s(collection, space), collection)
        progress(f"{collection.judged.name}: {theirs}", 1, 1, "rankings")
    pairs = [("bm25", f"bm25s{ONCE}"), ("bm25", "bm25s"), (f"bm25{ONCE}", f"bm25s{ONCE}"), ("bm25", f"bm25{ONCE}")]
    compared = [compare(a, b, "ndcg@10", values[a].mean, values[b].mean, seed) for a, b in pairs]
    return {
        "documents": len(collection.rows),
        "contents": len(collection.documents),
        "queries": len(queries),
        "ndcg@10": {name: round(float(found.mean.mean()), 5) for name, found in values.items()},
        "queries whose value ties leave open": {name: _open(found) for name, found in values.items()},
        "differences": {
            f"{c.a} over {c.b}": {"ndcg@10": round(c.difference, 5), "p": round(c.p, 4), "better": c.wins, "worse": c.losses}
            for c in compared
        },
    }


def _open(found: Values) -> dict[str, Any]:
    n = int((found.best - found.worst > 1e-9).sum())
    return {"n": n} | ({"worst": round(float(found.worst.mean()), 5), "best": round(float(found.best.mean()), 5)} if n else {})


def read_collection(folder: Path) -> Collection:
    """A folder in BEIR layout, its documents as they are indexed. Raises BadDataset."""
    judged = datasets.read_beir(folder)
    path = datasets.find(folder, "corpus.jsonl")
    contents: dict[str, bytes] = {}
    texts: dict[bytes, tuple[bytes, str]] = {}
    for record in datasets.read_documents(path):
        name, rendition = datasets.as_word(str(record["_id"])), render(datasets.content_of(record))
        if isinstance(rendition, Skipped):
            raise datasets.BadDataset(f"{path}: document {name!r} cannot be indexed: {rendition.reason}.")
        contents[name] = rendition.hash
        texts[rendition.hash] = rendition.text, rendition.kind
    documents = Documents.pack((key, text, kind) for key, (text, kind) in texts.items())
    row_of = {key.tobytes(): row for row, key in enumerate(documents.hashes)}
    rows = np.array([row_of[key] for key in contents.values()], np.int64)
    return Collection(judged, documents, {name: i for i, name in enumerate(contents)}, rows)


def opened(documents: Documents, dials: Mapping[str, Any]) -> Space:
    """The layer with these dials and the peer's k1 and b."""
    layer, entries = create(SpaceSpec("bm25", "bm25", {"k1": K1, "b": B, **dials}), Resources()), pack_entries(())
    arrays = layer.build(documents, entries)
    statistics = layer.collect([(1, layer.statistics(arrays, documents, entries))])
    return Space(layer, arrays, statistics, layer.open(arrays, documents, entries, np.ones(len(documents), np.bool_)))


def ranked_by_bm25(collection: Collection, space: Space) -> list[Ranked]:
    """All that the layer finds for each question."""
    ranked: list[Ranked] = []
    for text in collection.judged.queries.values():
        asked = space.layer.prepare(Request(text), space.statistics)
        of_row = np.full(len(collection.documents), -np.inf)
        if asked is not None:
            found = space.reader.search(asked, None, len(collection.documents), Budget())
            of_row[found.rows] = found.scores
        scores = of_row[collection.rows]
        numbers = np.flatnonzero(scores > -np.inf)
        ranked.append((numbers, scores[numbers]))
    return ranked


def ranked_by_bm25s(collection: Collection, space: Space) -> list[Ranked]:
    """What bm25s finds for each question. space: whose terms it is given. Raises BadSpec where it does not start."""
    texts = as_numbers(space.arrays, len(collection.documents))
    questions = [" ".join(map(str, asked_terms(text, space))) for text in collection.judged.queries.values()]
    peer = EngineProcess("bm25s", bench_query.PEERS_PYTHON)
    try:
        with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
            path = Path(scratch) / "documents.jsonl"
            path.write_text("".join(json.dumps(texts[row]) + "\n" for row in collection.rows.tolist()))
            peer.ask(do="load", path=str(path))
        peer.ask(do="build", analysed=True)
        chunks = [questions[at : at + QUESTIONS] for at in range(0, len(questions), QUESTIONS)]
        found = [pair for chunk in chunks for pair in peer.ask(do="ranked", queries=chunk, k=K)["ranked"]]
    finally:
        peer.close()
    return [(np.array(numbers, np.int64), np.array(scores)) for numbers, scores in found]


def asked_terms(text: str, space: Space) -> list[int]:
    """The numbers of a question's terms that the corpus has, in the question's order, repeated where it repeats them."""
    statistics, known = space.statistics, space.arrays["term_hashes"]
    _, language = max(zip(statistics.units_of, statistics.languages, strict=True), default=(0, ""))
    words = [word for of_token in Analyser(language).recall(tokens_of(text)) for word in of_token]
    hashes = np.array([term_hash(term) for word in words for term in word], np.uint64)
    places = np.searchsorted(known, hashes)
    return [place for place, key in zip(places.tolist(), hashes, strict=True) if place < len(known) and known[place] == key]


def judge(ranked: Sequence[Ranked], collection: Collection) -> Values:
    """The values of the collection's questions, in their order."""
    judged = collection.judged
    rows = []
    for query, (numbers, scores) in zip(judged.queries, ranked, strict=True):
        gains = np.zeros(len(collection.rows))
        for document, grade in judged.qrels[query].items():
            if document in collection.numbers:
                gains[collection.numbers[document]] = max(grade, 0)
        rows.append(ndcg_of_ties(scores, gains[numbers], np.array(list(judged.qrels[query].values()), np.float64)))
    return Values(*np.array(rows, np.float64).reshape(-1, 3).T)


def ndcg_of_ties(scores: Array, gains: Array, grades: Array) -> tuple[float, float, float]:
    """nDCG@10 where documents of one score may stand in any order: the mean over all orders, the worst, and the best.

    scores, gains: (n,) of what was found, in any order: all that score as the tenth are there. grades: (g,) of all that is judged.
    0 where nothing is relevant. Each rank that ties share gets their mean gain: McSherry & Najork 2008; the rest
    is as in `jobs.metrics.measure`.
    """
    ideal = _dcg(np.sort(np.maximum(grades, 0))[::-1])
    if not ideal or not len(scores):
        return 0.0, 0.0, 0.0
    worst_first = np.lexsort((gains, -scores))
    worst, best = gains[worst_first], gains[np.lexsort((-gains, -scores))]
    begins = np.flatnonzero(np.diff(scores[worst_first], prepend=np.inf))
    sizes = np.diff([*begins, len(scores)])
    mean = np.repeat(np.add.reduceat(worst, begins) / sizes, sizes)
    return _dcg(mean) / ideal, _dcg(worst) / ideal, _dcg(best) / ideal


def _dcg(gains: Array) -> float:
    return float(gains[:K] @ _DISCOUNTS[: len(gains)])
