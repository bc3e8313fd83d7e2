"""Shards by topic instead of by hash: the worst that placement could do, and what it may change.

Documents are grouped by k-means over the vectors of a space (Lloyd 1982, seeds as of Arthur & Vassilvitskii 2007). Each group becomes a
shard of real segments that is searched for itself; the coordinator merges what they send, as it does with hosts.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jobs.asking import BUDGET_MS, scores_of
from jobs.datasets import Judged
from jobs.laboratory import Laboratory, copied, opened, shards_of
from jobs.metrics import METRICS, measure
from jobs.rebuilding import dealt_out
from jobs.sections import Section, Target
from shards.errors import BadSpec
from shards.generation import Generation
from shards.identity import find_rows
from shards.types import Array

if TYPE_CHECKING:
    from jobs.settings import Settings
    from serve.schema import SearchAnswer

DEPTH = 100
N_QUERIES = 100  # of the judged ones, spread over all: each asks every shard
PERSISTENCE = 0.9  # of RBO: the first ten places weigh 86 %


def rbo(a: Sequence[object], b: Sequence[object], p: float = PERSISTENCE) -> float:
    """Rank-biased overlap of two lists of the same length, extrapolated: in [0, 1], 1 for the same order.

    Source: Webber, Moffat & Zobel 2010, RBO_ext. Two empty lists are the same.
    """
    depth = min(len(a), len(b))
    if not depth:
        return float(len(a) == len(b))
    seen_a: set[object] = set()
    seen_b: set[object] = set()
    overlap, weighted = 0, 0.0
    for d, (x, y) in enumerate(zip(a, b, strict=False), 1):
        overlap += (x == y) + (x != y) * ((x in seen_b) + (y in seen_a))
        seen_a.add(x)
        seen_b.add(y)
        weighted += overlap / d * p**d
    return overlap / depth * p**depth + (1 - p) / p * weighted


def measure_splits(
    settings: "Settings", corpus: str, judged: Judged, counts: Sequence[int], progress: Callable[[str, int, int, str], None]
) -> Section:
    """Rankings of evidence over 1 and more shards of topics, against the shards there are. Raises BadSpec, NotFound."""
    fields = {"k": DEPTH, "budget_ms": BUDGET_MS, "highlight": False, "keep_all": True}
    chosen = list(judged.queries)[:: max(len(judged.queries) // N_QUERIES, 1)][:N_QUERIES]
    judged = Judged(judged.name, {query: judged.queries[query] for query in chosen}, judged.qrels)
    rows, figures, targets = [], {}, []
    with copied(settings, corpus) as mine, opened(mine, corpus) as (_, _, generation):
        resources = mine.resources()

        def ask(shards: list, what: str) -> list["SearchAnswer"]:
            answers = []
            with Laboratory(generation, shards, resources) as asked:
                for i, text in enumerate(judged.queries.values()):
                    answers.append(asked.search(text, **fields))
                    progress(f"asking {what}", i + 1, len(judged.queries), "queries")
            return answers

        hashes, vectors = document_vectors(generation)
        expected = ask(shards_of(generation), "the shards there are")
        for n_shards in counts:
            groups = topics(vectors, n_shards)
            shards = dealt_out(generation, lambda wanted, groups=groups: groups[find_rows(hashes, wanted)], n_shards, resources)
            found = ask(shards, f"{len(shards)} shards of topics")
            got = compared(expected, found, judged)
            sizes = sorted((shard.n_docs for shard in shards), reverse=True)
            figures[str(n_shards)] = got | {"documents": sizes}
            rows.append(
                [str(len(shards)), f"{sizes[0]:,} to {sizes[-1]:,}", f"{got['identical']} of {got['queries']}", f"{got['rbo']:.6f}"]
                + [f"{got['ndcg_difference']:+.6f}", f"{got['log_e_difference']:.1e}"]
            )
            same = got["identical"] / max(got["queries"], 1)
            targets.append(Target(f"{n_shards} shards of topics: answers with the same first {DEPTH}", same, 1.0))
    return Section(
        "splits",
        "Shards by topic",
        ("shards", "documents each", f"same first {DEPTH}", "RBO(0.9)", "nDCG@10, difference", "|ln E|, most"),
        rows,
        figures,
        "Groups of k-means over document vectors, each a shard of its own, against the shards that the index has. Rankings of evidence.",
        targets=targets,
    )


def compared(expected: Sequence["SearchAnswer"], found: Sequence["SearchAnswer"], judged: Judged) -> dict[str, float]:
    """How far two sets of answers to the same queries differ. identical: answers with the same hits in the same order."""
    queries = list(judged.queries)
    orders = [([h.hash for h in a.hits], [h.hash for h in b.hits]) for a, b in zip(expected, found, strict=True)]
    ndcg = [
        measure({q: scores_of(answer, DEPTH) for q, answer in zip(queries, answers, strict=True)}, judged.qrels, queries)[METRICS[0]]
        for answers in (expected, found)
    ]
    moved = [
        abs(float(np.log(x.evalue) - np.log(y.evalue)))
        for a, b in zip(expected, found, strict=True)
        for x, y in zip(a.hits, b.hits, strict=False)
        if x.hash == y.hash and x.evalue > 0 and y.evalue > 0
    ]
    return {
        "queries": len(queries),
        "identical": sum(a == b for a, b in orders),
        "rbo": float(np.mean([rbo(a, b) for a, b in orders])),
        "ndcg_difference": float((ndcg[1] - ndcg[0]).mean()),
        "log_e_difference": max(moved, default=0.0),
    }


def document_vectors(generation: Generation) -> tuple[Array, Array]:
    """Hashes of all documents, (n, 20) uint8 ascending, and the mean vector of each, (n, dim) float64: of `static`, or of the first space
    by name that keeps vectors. Raises BadSpec where none does."""
    for name in sorted(generation.spaces, key=lambda name: (name != "static", name)):
        segments = [generation.segment(ref) for page in generation.pages for ref in page.segments]
        arrays = [segment.layer(generation.spaces[name].id) for segment in segments]
        if arrays and all(part is not None and {"vectors", "row_units"} <= set(part) for part in arrays):
            hashes = np.concatenate([segment.documents.hashes for segment in segments])
            vectors = np.concatenate([_means(np.asarray(part["vectors"], np.float64), part["row_units"]) for part in arrays if part])
            order = np.lexsort(hashes.T[::-1])
            return hashes[order], vectors[order]
    raise BadSpec("--splits groups documents by their vectors: index a space that has such, with --layers bm25,static, say.")


def _means(vectors: Array, row_units: Array) -> Array:
    """The mean of each row's units; 0 for a row without any."""
    sums = np.zeros((len(row_units) - 1, vectors.shape[1]))
    counts = np.diff(row_units)
    np.add.at(sums, np.repeat(np.arange(len(counts)), counts), vectors)
    return sums / np.maximum(counts, 1)[:, None]


def topics(vectors: Array, n: int, n_rounds: int = 25) -> Array:
    """The group of each of (m, dim) vectors by k-means, the same in every run: (m,) int64 in [0, n)."""
    rng = np.random.default_rng(0)
    chosen = [int(rng.integers(len(vectors)))]
    far = ((vectors - vectors[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < n and far.max() > 0:
        chosen.append(int(rng.choice(len(vectors), p=far / far.sum())))
        far = np.minimum(far, ((vectors - vectors[chosen[-1]]) ** 2).sum(axis=1))
    centres, groups = vectors[chosen], np.full(len(vectors), -1)
    for _ in range(n_rounds):
        nearest = np.argmin((centres**2).sum(axis=1) - 2.0 * vectors @ centres.T, axis=1)
        if (nearest == groups).all():
            break
        groups = nearest
        for group in np.unique(groups):
            centres[group] = vectors[groups == group].mean(axis=0)
    return groups
