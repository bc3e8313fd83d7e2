"""How far what the verdict looks at tells judged questions from foreign ones: by the engine, by each number alone, and at best.

The engine's tests know no question of either kind: they are taught by the corpus's own sentences, and by strangers and random strings
(`shards.answerability`). The last rows are taught by these very questions, cross-validated: more cannot be had from these numbers, so
where they miss a target no other way of learning from the corpus alone would reach it.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jobs import laboratory
from jobs.answered import MOST_REFUSED, auc, shown
from jobs.sections import Section
from jobs.verdicts import foreign_questions
from shards.types import Array

if TYPE_CHECKING:
    from jobs.datasets import Judged
    from jobs.progress import Progress
    from jobs.settings import Settings
    from shards.generation import Generation
    from shards.shard import Shard

N_FOLDS = 5
N_FOREIGN = 500
N_BEST = 6  # numbers that are shown alone


def run(args: argparse.Namespace, settings: "Settings", corpus: str, judged: "Judged", progress: "Progress") -> list[Section]:
    """The table; none without foreign questions, or where nothing was learnt of what is answered. Raises SondageError."""
    kinds = foreign_questions(judged, args.foreign or [], N_FOREIGN)
    if not kinds:
        return []
    with laboratory.opened(settings, corpus) as (_, _, generation):
        if generation.nulls is None or generation.nulls.answerability is None:
            return []
        shards = laboratory.shards_of(generation)
        asked = [(text, "") for text in judged.queries.values()] + [(text, kind) for kind, texts in kinds.items() for text in texts]
        seen = []
        for i, (text, kind) in enumerate(asked):
            if (found := look(generation, shards, text)) is not None:
                seen.append((found, kind))
            progress("study of answerability", i + 1, len(asked), "queries")
    own, others = (np.array([found for found, kind in seen if bool(kind) == foreign]) for foreign in (False, True))
    names, margins = generation.nulls.answerability.names, generation.nulls.answerability.margins
    lines = {found.tobytes(): min(margins(found).values()) for found, _ in seen}
    groups = [kind for _, kind in seen if kind]
    return [told(own, others, names, np.array([lines[f.tobytes()] for f in own]), np.array([lines[f.tobytes()] for f in others]), groups)]


def look(generation: "Generation", shards: "Sequence[Shard]", text: str) -> Array | None:
    """(f,) what the verdict looks at (`serve.answerable`) of one text over the whole corpus; None where nothing is asked."""
    from serve.answerable import features
    from serve.evidence import weigh
    from serve.judging import facts_of
    from shards.candidates import merge
    from shards.layers.contract import Request
    from shards.plan import Everything, Plan
    from shards.types import Budget

    learnt = generation.nulls.answerability
    queries, quiet = [], []
    for name in learnt.spaces:
        query = generation.spaces[name].layer.prepare(Request(text), generation.statistics(name))
        if query is None:
            quiet.append(name)
        else:
            queries.append(replace(query, space=name))
    if not queries:
        return None
    plan = Plan(Everything(), tuple(queries), n_details=0, budget_s=60.0)
    found = merge([shard.search(plan, Budget(plan.budget_s)) for shard in shards], plan.n_candidates)
    facts = facts_of(generation, queries, found)
    return features(weigh(found, facts, generation.nulls, quiet), facts, learnt.spaces, text, learnt.words.look(text))


def told(own: Array, others: Array, names: Sequence[str], own_margins: Array, other_margins: Array, groups: Sequence[str]) -> Section:
    """AUC of judged against foreign questions, and the share of foreign ones refused where as many judged ones are as may be.

    own, others: (n, f), (m, f) features; margins: (n,), (m,) of the engine; groups: the collection of each foreign one.
    """
    alone = {name: max(auc(own[:, j], others[:, j]), auc(-own[:, j], -others[:, j])) for j, name in enumerate(names)}
    best = sorted(alone, key=lambda name: (-alone[name], name))[:N_BEST]
    values: Mapping[str, tuple[Array, Array]] = {
        "the engine's margin": (own_margins, other_margins),
        **{f"{name}, alone": _turned(own[:, names.index(name)], others[:, names.index(name)]) for name in best},
        "all, taught by these judgements, other foreign collections held out": _taught(own, others, groups),
        "all, taught by these judgements": _taught(own, others, None),
    }
    rows, figures = [], {}
    for name, (mine, theirs) in values.items():
        figures[name] = {"auc": auc(mine, theirs), "refused": _refused(mine, theirs)}
        rows.append([name, shown(figures[name]["auc"]), f"{figures[name]['refused']:.1%}"])
    figures["false rejects"] = float((own_margins < 0).mean())
    note = (
        f"{len(own):,} judged and {len(others):,} foreign questions. Refused: of foreign ones where {MOST_REFUSED:.0%} of the judged are; "
        f"the engine refuses {figures['false rejects']:.1%} of these by its margin. The last two rows are cross-validated over queries."
    )
    return Section("answered", "Is it answered here? At best", ("number", "AUC", "foreign refused"), rows, figures, note)


def _turned(mine: Array, theirs: Array) -> tuple[Array, Array]:
    """So that more means answered."""
    return (mine, theirs) if auc(mine, theirs) >= 0.5 else (-mine, -theirs)


def _refused(mine: Array, theirs: Array) -> float:
    return float((theirs < np.quantile(mine, MOST_REFUSED)).mean()) if len(mine) and len(theirs) else float("nan")


def _taught(own: Array, others: Array, groups: Sequence[str] | None) -> tuple[Array, Array]:
    """Log odds of questions by what the others teach. groups: of the foreign ones, each of which is told by what the other groups teach."""
    from jobs.fusion_study import regression

    values, truth = np.vstack([own, others]), np.repeat([1, 0], [len(own), len(others)])
    folds = np.concatenate([np.arange(len(own)) % N_FOLDS, np.arange(len(others)) % N_FOLDS])
    if groups is not None and len(set(groups)) > 1:
        numbers = {group: i for i, group in enumerate(sorted(set(groups)))}
        folds[: len(own)] = np.arange(len(own)) % len(numbers)
        folds[len(own) :] = [numbers[group] for group in groups]
    told = np.full(len(values), np.nan)
    for fold in np.unique(folds):
        inside = folds == fold
        if len(set(truth[~inside])) == 2:
            told[inside] = regression().fit(values[~inside], truth[~inside]).decision_function(values[inside])
    return told[: len(own)], told[len(own) :]
