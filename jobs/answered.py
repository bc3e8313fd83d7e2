"""Whether the engine knows when a question is answered here: its own numbers, on questions that are and on questions that are not.

Not answered are foreign questions, those of other collections, and, which is harder, questions near the topic: judged ones with all their
relevant documents filtered away when they are asked. Of a judged collection there may be other documents that answer them, which nobody
has judged, so that of removed documents no perfect figure can be had.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from jobs.metrics import Verdicts
from jobs.sections import Section, Target
from jobs.verdicts import ALL_FOREIGN, JUDGED, REMOVED, is_foreign
from shards.types import Array

if TYPE_CHECKING:
    from jobs.datasets import Judged
    from serve.schema import SearchAnswer

LEAST_AUC, GOAL_AUC = 0.95, 0.98
MOST_REFUSED = 0.05
NEAR_GOAL = 0.80  # AUC where the relevant documents are gone


NUMBERS: Mapping[str, Callable[[Verdicts], Array]] = {  # of the engine; the more, the likelier is an answer
    "margin": lambda found: found.answerable,
    "-ln E": lambda found: -np.log(np.maximum(found.evalues, np.finfo(float).tiny)),
}


def section(told: Sequence[Verdicts]) -> Section:
    """AUC of each kind of unanswered question against the judged ones, by the engine's numbers; and what was refused."""
    by_kind = {found.kind: found for found in told}
    judged = by_kind[JUDGED]
    foreign = [found for found in told if is_foreign(found)]
    aucs = {found.kind: separated(judged, [found]) for found in told if found.kind == REMOVED or is_foreign(found)}
    if len(foreign) > 1:
        aucs[ALL_FOREIGN] = separated(judged, foreign)
    refused = judged.share("none")
    rows = [[JUDGED, f"{judged.n:,}", *[""] * len(NUMBERS), f"{refused:.1%}"]]
    for kind, found in aucs.items():
        asked = [by_kind[kind]] if kind in by_kind else foreign
        n = sum(one.n for one in asked)
        none = sum(one.counts.get("none", 0) for one in asked) / max(n, 1)
        rows.append([kind, f"{n:,}", *(shown(found[name]) for name in NUMBERS), f"{none:.1%}"])
    targets = []
    if foreign:
        # where nothing was learnt of nonsense, E is all that the engine has
        number = "-ln E" if np.isnan(judged.answerable).all() else "margin"
        together = separated(judged, foreign)[number]
        nearest = min(aucs[found.kind][number] for found in foreign)
        targets.append(Target("answerable against foreign queries: AUC", together, LEAST_AUC, goal=GOAL_AUC))
        targets.append(Target("answerable against the nearest collection's queries: AUC", nearest, NEAR_GOAL))
    targets.append(Target("judged queries refused (verdict none)", refused, MOST_REFUSED, at_least=False))
    if REMOVED in aucs:
        targets.append(Target("answerable against relevant documents removed: AUC", aucs[REMOVED]["-ln E"], NEAR_GOAL))
    return Section(
        "answerability",
        "Is it answered here?",
        ("queries", "asked", *(f"AUC of {name}" for name in NUMBERS), "verdict none"),
        rows,
        {"queries": judged.n, "false rejects": refused, "auc": aucs},
        "AUC: how often a judged query has more of it than one of this kind, ties by half. Margin: what the engine says (`answerable`): "
        "it tells what is foreign; of what is near the topic E tells more. Of judged queries, verdict none is a false reject.",
        targets=targets,
    )


def separated(judged: Verdicts, others: Sequence[Verdicts]) -> dict[str, float]:
    """AUC of each of the engine's numbers."""
    return {name: auc(of(judged), np.concatenate([of(found) for found in others])) for name, of in NUMBERS.items()}


def auc(positive: Array, negative: Array) -> float:
    """The chance that a positive value is above a negative one, ties by half (Mann & Whitney 1947); nan where either has none.

    Values that are nan (the engine had no number) are left out.
    """
    from scipy.stats import rankdata

    positive, negative = positive[~np.isnan(positive)], negative[~np.isnan(negative)]
    n, m = len(positive), len(negative)
    if not n or not m:
        return float("nan")
    ranks = rankdata(np.concatenate([positive, negative]))
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def shown(figure: float) -> str:
    return "?" if np.isnan(figure) else f"{figure:.3f}"


def ask_without_answers(ask: Callable[..., "SearchAnswer"], judged: "Judged", progress: Callable[[str, int, int, str], None]) -> Verdicts:
    """Each judged query with its relevant documents filtered away: what moments and tables are stays that of the whole corpus.

    ask: a plain search with all hits kept; takes further fields of the request.
    """
    from jobs.verdicts import collect

    def answers() -> Any:
        for i, (query, text) in enumerate(judged.queries.items()):
            gone = sorted(document for document, grade in judged.qrels[query].items() if grade > 0)
            paths = [path for document in gone for path in dict.fromkeys((document, f"{quote(document, safe='')}.txt"))]
            yield ask(text, where={"not": {"path": {"in": paths}}})
            progress(f"verdicts, {REMOVED}", i + 1, len(judged.queries), "queries")

    return collect(REMOVED, answers())
