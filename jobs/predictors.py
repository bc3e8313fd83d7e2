"""How well a query will do, told before judgements are looked at: classic predictors beside the engine's own numbers.

WIG (Zhou & Croft 2007), NQC and SMV (Shtok et al. 2012; Tao & Wu 2014) look at the scores of one space's list, clarity (Cronen-Townsend,
Zhou & Croft 2002) at the words of the documents on it. Correlated with per-query nDCG@10 of evidence. The mean score of the query over
the whole corpus, which the engine's moments have exactly, is what these papers call the score of the collection.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs import datasets
from jobs.asking import BUDGET_MS, scores_of
from jobs.metrics import METRICS, measure
from jobs.sections import Section
from shards.probes import count_words, words_of
from shards.types import Array

if TYPE_CHECKING:
    from jobs.asking import Asked
    from jobs.datasets import Judged
    from serve.schema import SearchAnswer
    from shards.analysis import Analyser

K_WIG = 5  # hits that WIG looks at, as its authors do
K_LIST = 100  # that NQC, SMV and clarity look at
JELINEK = 0.6  # of a document's own words in its language model, as in clarity's paper
MEASURES = ("Kendall", "Pearson", "Spearman")
LEXICAL = ("bm25", "sparse")  # the spaces whose lists classic predictors were made for, in the order of choice


def wig(scores: Array, collection: float, n_words: int, k: int = K_WIG) -> float:
    """Weighted information gain: how far the first k scores are above the collection's, by the root of the query's length.

    scores: (n,) descending, n >= 1. Source: Zhou & Croft 2007.
    """
    return float((scores[:k] - collection).mean() / math.sqrt(max(n_words, 1)))


def nqc(scores: Array, collection: float, k: int = K_LIST) -> float:
    """Normalised query commitment: the spread of the first k scores by the size of the collection's. Source: Shtok et al. 2012.
    nan where the collection has a score of 0."""
    return float(scores[:k].std() / abs(collection)) if collection else math.nan


def smv(scores: Array, collection: float, k: int = K_LIST) -> float:
    """Score magnitude and variance: scores by how far their logarithms are from that of the mean, over the collection's.

    Source: Tao & Wu 2014; scores must be positive, others are left out. nan where nothing is left.
    """
    top = scores[:k][scores[:k] > 0]
    if not len(top) or not collection:
        return math.nan
    return float((top * np.abs(np.log(top / top.mean()))).mean() / abs(collection))


class Clarity:
    """How far the words of a list are from those of the collection, in bits (Cronen-Townsend, Zhou & Croft 2002, section 3).

    documents: id -> text. A document's model is Jelinek-Mercer smoothed; the list's is the mean of its documents' models, weighted by
    how likely each is to bring forth the query. A query without known words is 0.
    """

    def __init__(self, documents: Mapping[str, str], words_of: Callable[[str], Sequence[str]]):
        from scipy.sparse import csr_matrix

        self._words_of = words_of
        self._vocabulary: dict[str, int] = {}
        self._row = {document: i for i, document in enumerate(documents)}
        columns, ends = [], [0]
        for text in documents.values():
            columns += [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in words_of(text)]
            ends.append(len(columns))
        shape = (len(documents), max(len(self._vocabulary), 1))
        counts = csr_matrix((np.ones(len(columns)), np.array(columns, np.int64), np.array(ends)), shape)
        counts.sum_duplicates()
        self._lengths = np.maximum(np.asarray(counts.sum(axis=1)).ravel(), 1.0)
        self._counts = counts
        self._collection = np.asarray(counts.sum(axis=0)).ravel() / max(len(columns), 1)

    def __call__(self, query: str, ranked: Sequence[str]) -> float:
        """ranked: the ids of the documents on the list."""
        words = [self._vocabulary[word] for word in self._words_of(query) if word in self._vocabulary]
        rows = [self._row[document] for document in ranked if document in self._row]
        if not words or not rows:
            return 0.0
        own = self._counts[rows].multiply(JELINEK / self._lengths[rows][:, None]).tocsr()
        likely = np.log(np.asarray(own[:, words].todense()) + (1 - JELINEK) * self._collection[words]).sum(axis=1)
        share = np.exp(likely - likely.max())
        share /= share.sum()
        model = own.T @ share + (1 - JELINEK) * self._collection
        return float((model * np.log2(model / np.where(self._collection > 0, self._collection, 1.0)))[self._collection > 0].sum())


def correlations(values: Array, ndcg: Array) -> dict[str, float]:
    """Kendall's tau-b, Pearson's r and Spearman's rho over queries where the predictor has a value; nan where all are the same."""
    from scipy.stats import kendalltau, pearsonr, spearmanr

    known = np.isfinite(values)
    x, y = values[known], ndcg[known]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return dict.fromkeys(MEASURES, math.nan)
    return {name: float(test(x, y).statistic) for name, test in zip(MEASURES, (kendalltau, pearsonr, spearmanr), strict=True)}


def scores_and_mean(answer: "SearchAnswer", space: str) -> tuple[Array, float]:
    """Raw scores of a space's list, descending, and the query's mean over the corpus, from a search of that space with `explain`: two
    scores with their z say what is 0. nan where the list has no two different scores."""
    pairs = [(s.score, s.z) for hit in answer.hits for s in hit.signals if s.layer == space and s.z is not None]
    if not pairs:
        return np.zeros(0), math.nan
    (high, z_high), (low, z_low) = max(pairs), min(pairs)
    scores = np.sort(np.array([score for score, _ in pairs]))[::-1]
    return scores, low - z_low * (high - low) / (z_high - z_low) if z_high > z_low else math.nan


def measure_predictors(
    asked: "Asked",
    corpus: str,
    judged: "Judged",
    spaces: Sequence[str],
    documents: Path | None,
    progress: Callable[[str, int, int, str], None],
) -> Section:
    """Each predictor against nDCG@10 of evidence. spaces: those of the corpus; documents: its BEIR file, None: no clarity."""
    lexical = next((name for name in LEXICAL if name in spaces), spaces[0])
    clarity = None if documents is None else _clarity(documents)
    values: dict[str, list[float]] = {}
    run = {}
    common = {"budget_ms": BUDGET_MS, "highlight": False, "keep_all": True, "explain": True}
    for i, (query, text) in enumerate(judged.queries.items()):
        together = asked.search(text, corpus, k=K_LIST, **common)
        alone = asked.search(text, corpus, k=K_LIST, layers=[lexical], **common)
        run[query] = scores_of(together, K_LIST)
        scores, collection = scores_and_mean(alone, lexical)
        known = len(scores) > 0 and not math.isnan(collection)
        row = {
            f"WIG of {lexical}": wig(scores, collection, count_words(text)) if known else math.nan,
            f"NQC of {lexical}": nqc(scores, collection) if known else math.nan,
            f"SMV of {lexical}": smv(scores, collection) if known else math.nan,
            f"clarity of {lexical}": clarity(text, list(scores_of(alone, K_LIST))) if clarity else math.nan,
            "-ln E of the best hit": -math.log(max(together.hits[0].evalue, 1e-300)) if together.hits else 0.0,
            "evidence of the best hit": together.hits[0].fused if together.hits else 0.0,
            "margin (answerable)": math.nan if together.answerable is None else together.answerable,
        }
        for name, value in row.items():
            values.setdefault(name, []).append(value)
        progress("predictors", i + 1, len(judged.queries), "queries")
    ndcg = measure(run, judged.qrels, list(judged.queries))[METRICS[0]]
    return section({name: np.array(found) for name, found in values.items()}, ndcg)


def section(values: Mapping[str, Array], ndcg: Array) -> Section:
    """The table of correlations. values: of each predictor, (n_queries,); ndcg: of evidence."""
    found = {name: correlations(value, ndcg) for name, value in values.items()}
    rows = [[name, *(_shown(tests[measure]) for measure in MEASURES)] for name, tests in found.items()]
    figures: dict[str, Any] = {name: {m: None if math.isnan(x) else x for m, x in tests.items()} for name, tests in found.items()}
    return Section(
        "predictors",
        "Can it be told how a query will do?",
        ("predictor", *MEASURES),
        rows,
        figures,
        f"Correlation with nDCG@10 of evidence over {len(ndcg):,} queries.",
    )


def _shown(value: float) -> str:
    return "?" if math.isnan(value) else f"{value:+.3f}"


def _texts(corpus: Path) -> dict[str, str]:
    return {
        datasets.as_word(str(record["_id"])): f"{record.get('title') or ''}\n{record.get('text') or ''}"
        for record in datasets.read_documents(corpus)
    }


def _analysed(analyser: "Analyser") -> Callable[[str], list[str]]:
    """Terms as bm25 counts them: stemmed, without case and accents."""
    return lambda text: [term for words in analyser.recall(words_of(text)) for word in words for term in word]


def _clarity(corpus: Path) -> Clarity:
    """Over the documents of a BEIR file, in the language that most of them look like."""
    from shards.analysis import analyser_of
    from shards.kinds import kind_of

    documents = _texts(corpus)
    kinds = Counter(kind_of(text.encode("utf-8", "replace")) for text in itertools.islice(documents.values(), 200))
    return Clarity(documents, _analysed(analyser_of(kinds.most_common(1)[0][0] if kinds else "prose:english")))
