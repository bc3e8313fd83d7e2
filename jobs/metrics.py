"""How good a ranking is, judged by people, and whether one ranking is better than another by more than luck.

The conventions are trec_eval's, as `pytrec_eval` and BEIR use them, and tests compare every figure with `ir-measures`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jobs.sections import Section

Array = np.ndarray[Any, Any]
Run = Mapping[str, Mapping[str, float]]  # query id -> document id -> score
Qrels = Mapping[str, Mapping[str, int]]  # query id -> document id -> grade; above 0 is relevant

METRICS = ("ndcg@10", "recall@100", "map", "mrr")
N_PERMUTATIONS = 10_000
_BLOCK = 250  # permutations at once: 25 MB of signs at 12,000 queries


def ranking(scores: Mapping[str, float]) -> list[str]:
    """Document ids as trec_eval ranks them: score in float32 descending, ties by id in UTF-8 bytes descending.

    The order in which a run lists its documents plays no part, so whoever ranks must say so in scores.
    """
    return sorted(scores, key=lambda document: (float(np.float32(scores[document])), document.encode()), reverse=True)


def measure(run: Run, qrels: Qrels, queries: Sequence[str]) -> dict[str, Array]:
    """Each metric of `METRICS` for each query, (n_queries,) float64 in [0, 1].

    A query without hits or without a relevant document counts 0. nDCG's gain is the grade itself (grades below 0 count 0), its
    discount 1 / log2(rank + 1) (Järvelin & Kekäläinen 2002, as in trec_eval's ndcg_cut); the ideal ranking is that of all
    judged documents. map: mean precision at relevant documents, over all hits of the run. mrr: 1 / rank of the first relevant one.
    """
    rows = [_one(run.get(query, {}), qrels.get(query, {})) for query in queries]
    table = np.array(rows, np.float64).reshape(len(queries), len(METRICS))
    return {metric: table[:, i] for i, metric in enumerate(METRICS)}


def _one(scores: Mapping[str, float], grades: Mapping[str, int]) -> tuple[float, float, float, float]:
    gains = np.array([max(grades.get(document, 0), 0) for document in ranking(scores)], np.float64)
    ideal = np.sort(np.array([grade for grade in grades.values() if grade > 0], np.float64))[::-1]
    if not len(ideal) or not gains.any():
        return 0.0, 0.0, 0.0, 0.0
    ranks = 1 + np.flatnonzero(gains)  # of relevant documents
    precision = np.arange(1, len(ranks) + 1) / ranks
    return (
        _dcg(gains[:10]) / _dcg(ideal[:10]),
        np.count_nonzero(gains[:100]) / len(ideal),
        float(precision.sum()) / len(ideal),
        1.0 / float(ranks[0]),
    )


def _dcg(gains: Array) -> float:
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())


@dataclass(frozen=True, slots=True)
class Comparison:
    """Run a against run b, query by query, in one metric.

    difference: mean of a - b. p: two-sided, not corrected for other comparisons. wins, losses, ties: queries where a is better,
    worse, the same (within 1e-9).
    """

    a: str
    b: str
    metric: str
    difference: float
    p: float
    wins: int
    losses: int
    ties: int


def compare(a: str, b: str, metric: str, of_a: Array, of_b: Array, seed: int = 0) -> Comparison:
    """Two runs by a metric's values over the same queries, (n_queries,) each."""
    difference = of_a - of_b
    wins, losses = int((difference > 1e-9).sum()), int((difference < -1e-9).sum())
    mean = float(difference.mean()) if len(difference) else 0.0
    return Comparison(a, b, metric, mean, randomisation_p(difference, seed), wins, losses, len(difference) - wins - losses)


def randomisation_p(difference: Array, seed: int = 0, n_permutations: int = N_PERMUTATIONS) -> float:
    """Two-sided p of the paired randomisation test: how often a mean difference so large in size comes about where each query's
    sign is drawn by lot. difference: (n_queries,). In (0, 1]: the observed signs count as one of the draws.

    Source: Smucker, Allan & Carterette 2007; the added one: Phipson & Smyth 2010.
    """
    difference = difference[difference != 0]  # a query that is the same in both says nothing, whatever its sign
    if not len(difference):
        return 1.0
    rng = np.random.default_rng(seed)
    observed = abs(float(difference.sum())) * (1 - 1e-12)  # the same sum in another order is not smaller
    at_least = 0
    for begin in range(0, n_permutations, _BLOCK):
        n = min(_BLOCK, n_permutations - begin)
        signs = rng.integers(0, 2, (n, len(difference)), np.int8) * 2.0 - 1.0
        at_least += int((np.abs(signs @ difference) >= observed).sum())
    return (1 + at_least) / (1 + n_permutations)


@dataclass(frozen=True, slots=True)
class Measured:
    """One ranking of all queries, measured.

    kind: "layer", "coupling", "variant" (of a sweep) or "given" (read from a file). values: metric -> (n_queries,) float64, in
    the order of the evaluation's queries; a run given as a report has those metrics that it states. ms: wall time of each
    query's answer, empty if nothing was asked. verdicts: how many answers had which. bytes: what the space takes in the store.
    """

    name: str
    kind: str
    values: Mapping[str, Array]
    run: Run | None = None
    ms: Sequence[float] = ()
    verdicts: Mapping[str, int] = field(default_factory=dict)
    bytes: int | None = None
    parameter: str = ""  # of a variant: `bm25.k1`
    value: str = ""

    def mean(self, metric: str) -> float:
        return float(self.values[metric].mean()) if metric in self.values and len(self.values[metric]) else 0.0

    @property
    def ms_p50(self) -> float | None:
        """Median wall time of an answer."""
        return float(np.median(self.ms)) if len(self.ms) else None


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """What queries of one kind got, of which the right verdict is known: kind names it. counts: by verdict.

    ks: how far 1 - exp(-E) of the best hits is from uniform (Kolmogorov-Smirnov statistic); None where it need not be.
    evalues: (n,) float64, E of each query's best hit, inf without any. answerable: (n,) float64, how far each query is from what the
    corpus takes for nonsense (`SearchAnswer.answerable`), nan where the engine has no such number.
    """

    kind: str
    counts: Mapping[str, int]
    ks: float | None = None
    evalues: Array = field(default_factory=lambda: np.zeros(0))
    answerable: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def n(self) -> int:
        """How many were asked."""
        return sum(self.counts.values())

    def share(self, verdict: str) -> float:
        """Of all answers, those with this verdict."""
        return self.counts.get(verdict, 0) / max(self.n, 1)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything that was measured on one judged collection. shards, docs, text_bytes: of the corpus that was searched, 0 where
    only files were compared. depth: hits asked for, as far as recall and map look. verdicts: of queries that are not judged. sections:
    further questions that were asked of it."""

    dataset: str
    shards: int
    docs: int
    text_bytes: int
    depth: int
    queries: Sequence[str]
    runs: Sequence[Measured]
    variants: Sequence[Measured]
    comparisons: Sequence[Comparison]
    verdicts: Sequence[Verdicts] = ()
    sections: Sequence[Section] = ()
