"""Other ways to fuse than the engine's, on what it really found: what was tried, and what it is worth.

The engine adds up surprise in nats, weighted as cloze probes teach. Here the same surprises of the same candidates are bent before they
are added (with weights taught anew), weights are drawn towards equal ones, documents pay for their length, spaces for disagreeing; and
it is looked at how far any of these numbers tells an answer that is there from the same question without its answers. Everything is
by the corpus's own probes but for the last row of that table, which is taught by the judgements themselves: more cannot be had
from evidence.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jobs import datasets, laboratory
from jobs.answered import auc, shown
from jobs.metrics import METRICS, measure
from jobs.sections import Section
from shards.types import Array
from shards.weights import Choices

if TYPE_CHECKING:
    from jobs.datasets import Judged
    from jobs.progress import Progress
    from jobs.settings import Settings

K_ALL = 1_000  # hits that are asked for: more than four lists of 100 have
PASSAGE_BYTES = 1_000  # a document of so much, or less, pays nothing for its length
N_FOLDS = 5

Bend = Callable[[Array], Array]  # surprises (n, s) of one query's candidates to other numbers, column by column

BENDS: Mapping[str, Bend] = {
    "surprise": lambda e: e,
    "surprise^0.7": lambda e: e**0.7,
    "square root": np.sqrt,
    "ln(1 + surprise)": np.log1p,
    "share of the query's best": lambda e: e / np.maximum(e.max(axis=0, initial=0.0), 1e-9),
}
TEMPERS = (0.0, 0.25, 0.5, 0.75)  # powers of the taught weights: 0 makes them equal, 1 leaves them
PENALTIES = (0.25, 0.5, 1.0)  # nats for each e-fold of length


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """One judged query. documents: (n,) of its candidates in the engine's order, each with all ids that have this content. surprises:
    (n, s). sizes: (n,) bytes of their files."""

    documents: tuple[tuple[str, ...], ...]
    surprises: Array
    sizes: Array


def run(args: argparse.Namespace, settings: "Settings", corpus: str, judged: "Judged", progress: "Progress") -> list[Section]:
    """Both tables, of the similarity spaces that cloze probes tried. Raises SondageError."""
    from serve.calibrate import Calibrator

    with laboratory.opened(settings, corpus) as (_, _, generation):
        choices = Calibrator(report=progress).cloze(generation)
        if not choices.spaces:
            return [Section("study", "Ways to fuse", ("way",), [], {}, "There are not two similarity spaces that cloze probes could try.")]
        engine = laboratory.Laboratory(generation, laboratory.shards_of(generation), settings.resources())
        seen: dict[str, Seen] = {}
        with closing(engine):
            for i, (query, text) in enumerate(judged.queries.items()):
                seen[query] = _look(engine, text, choices.spaces)
                progress("study", i + 1, len(judged.queries), "queries")
    return [_ranked(seen, choices, judged), _told(seen, choices, judged)]


def _look(engine: laboratory.Laboratory, text: str, spaces: Sequence[str]) -> Seen:
    answer = engine.search(text, layers=list(spaces), k=K_ALL, explain=True, keep_all=True, highlight=False, budget_ms=60_000)
    documents, sizes = [], []
    surprises = np.zeros((len(answer.hits), len(spaces)))
    for row, hit in enumerate(answer.hits):
        documents.append(tuple(datasets.document_id(entry.source, entry.path) for entry in hit.entries))
        sizes.append(hit.entries[0].size_bytes)
        for signal in hit.signals:
            surprises[row, spaces.index(signal.layer)] = signal.surprise
    return Seen(tuple(documents), surprises, np.array(sizes, np.float64))


def bent(choices: Choices, bend: Bend) -> Choices:
    """The choices with each query's surprises bent together, so that weights are taught of what is summed."""
    made = []
    for right, rest in choices.choices:
        both = bend(np.vstack([right[None, :], rest]))
        made.append((both[0], both[1:]))
    return Choices(choices.spaces, made)


# --- rankings -------------------------------------------------------------------------------------------------------------------


def _ranked(seen: Mapping[str, Seen], choices: Choices, judged: "Judged") -> Section:
    """nDCG@10 of each way."""
    figures: dict[str, float] = {}
    taught = weights_of(choices)
    for name, bend in BENDS.items():
        weights = taught if name == "surprise" else weights_of(bent(choices, bend))
        figures[f"sum of {name}"] = _ndcg(seen, judged, lambda q, b=bend, w=weights: b(q.surprises) @ w)
    for power in TEMPERS:
        tempered = np.where(taught > 0, np.maximum(taught, 1e-9) ** power, 1.0 if power == 0 else 0.0)
        figures[f"weights^{power:g}" if power else "equal weights"] = _ndcg(seen, judged, lambda q, w=tempered: q.surprises @ w)
    figures["times concordance"] = _ndcg(seen, judged, lambda q: q.surprises @ (taught * _concordance(q.surprises, taught)))
    for penalty in PENALTIES:
        figures[f"less {penalty:g} ln(length)"] = _ndcg(
            seen, judged, lambda q, g=penalty: q.surprises @ taught - g * np.log(np.maximum(q.sizes / PASSAGE_BYTES, 1.0))
        )
    engine = figures["sum of surprise"]
    rows = [[name, f"{value:.4f}", f"{value - engine:+.4f}" if value != engine else ""] for name, value in figures.items()]
    named = ", ".join(f"{name} {weight:g}" for name, weight in zip(choices.spaces, taught, strict=True))
    note = f"The first row is what the engine does; taught weights: {named}. Lengths: of files, {PASSAGE_BYTES:,} bytes free."
    return Section("study", "Ways to fuse", ("way", "ndcg@10", "against the engine's"), rows, figures, note)


def weights_of(choices: Choices) -> Array:
    """(s,) what each space counts; 1 where nothing could be learnt."""
    learnt = choices.weights(choices.spaces)
    return np.array([learnt.get(name, 1.0) for name in choices.spaces])


def _ndcg(seen: Mapping[str, Seen], judged: "Judged", score: Callable[[Seen], Array]) -> float:
    run = {}
    for query, q in seen.items():
        order = np.argsort(-score(q), kind="stable").tolist()  # of equals the engine's order
        ranked = dict.fromkeys(document for row in order for document in q.documents[row])
        run[query] = {document: float(-rank) for rank, document in enumerate(ranked)}
    return float(measure(run, judged.qrels, list(judged.queries))[METRICS[0]].mean())


def _concordance(surprises: Array, weights: Array) -> Array:
    """(s,) in [0, 1]: what a space says on the ten best documents of all others, over what it says on its own ten best."""
    shares = surprises * weights
    found = np.ones(len(weights))
    for s in range(len(weights)):
        others = shares.sum(axis=1) - shares[:, s]
        own = float(np.sort(surprises[:, s])[-10:].sum())
        if own > 0 and others.any():
            found[s] = float(surprises[np.argsort(-others, kind="stable")[:10], s].sum()) / own
    return found


# --- is the answer there? ---------------------------------------------------------------------------------------------------------


def _told(seen: Mapping[str, Seen], choices: Choices, judged: "Judged") -> Section:
    """AUC of a query against itself without its relevant documents, by numbers that evidence gives."""
    weights = weights_of(choices)
    present, absent = [], []
    for query, q in seen.items():
        relevant = np.array([any(judged.qrels[query].get(one, 0) > 0 for one in documents) for documents in q.documents], bool)
        present.append(presence(q.surprises, weights))
        absent.append(presence(q.surprises[~relevant], weights))
    there, gone = np.array(present), np.array(absent)
    figures = {
        "evidence of the best": auc(there[:, 0], gone[:, 0]),
        "its lead over the next": auc(there[:, 1], gone[:, 1]),
        "its lead over the next nine": auc(there[:, 2], gone[:, 2]),
        "all of these and each space's, taught by cloze probes": _by_probes(choices, weights, there, gone),
        "the same, taught by the judgements": _by_judgements(there, gone),
    }
    note = "Each judged query against itself without its relevant documents. The last row is cross-validated over queries."
    rows = [[name, shown(value)] for name, value in figures.items()]
    return Section("presence", "Is the answer there?", ("number", "AUC"), rows, figures, note)


def presence(surprises: Array, weights: Array) -> Array:
    """What might tell: (3 + 2 s,), the best document's evidence, its lead over the next and over the next nine; what each space says of
    it, and of the document that it likes best."""
    evidence = surprises @ weights
    order = np.argsort(-evidence, kind="stable")[:10]
    top = np.zeros(10)
    top[: len(order)] = evidence[order]
    of_best = surprises[order[0]] if len(order) else np.zeros(len(weights))
    return np.concatenate([[top[0], top[0] - top[1], top[0] - top[1:].mean()], of_best, surprises.max(axis=0, initial=0.0)])


def _by_probes(choices: Choices, weights: Array, there: Array, gone: Array) -> float:
    with_right = np.array([presence(np.vstack([right[None, :], rest]), weights) for right, rest in choices.choices])
    without = np.array([presence(rest, weights) for _, rest in choices.choices])
    if len(with_right) < N_FOLDS:
        return float("nan")
    model = regression().fit(np.vstack([with_right, without]), np.repeat([1, 0], len(with_right)))
    return auc(model.decision_function(there), model.decision_function(gone))


def _by_judgements(there: Array, gone: Array) -> float:
    from sklearn.model_selection import GroupKFold, cross_val_predict

    n = len(there)
    if n < N_FOLDS:
        return float("nan")
    queries = np.tile(np.arange(n), 2)
    told = cross_val_predict(
        regression(),
        np.vstack([there, gone]),
        np.repeat([1, 0], n),
        groups=queries,
        cv=GroupKFold(N_FOLDS),
        method="decision_function",
    )
    return auc(told[:n], told[n:])


def regression():  # type: ignore[no-untyped-def]
    """A logistic regression of standardised numbers, held back by a prior as strong as some dozens of queries."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1))
