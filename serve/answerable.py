"""What the verdict looks at to tell a question that is answered here from nonsense, as numbers for `shards.answerability`.

Of each similarity space: how near its best document comes (the share of what the query asks for where that is known, else the raw
score: z hides it, EVIDENCE.md section 7) and how far that stands out; whether spaces agree on documents (the idea of concordance,
section 9 step 5); the length of the query, which all of these depend on; and the order of its words.
"""

import math
from collections.abc import Sequence

import numpy as np

from serve.evidence import Fused, SpaceFacts
from shards.probes import MAX_WORDS, count_words
from shards.types import Array
from shards.word_order import WordOrder

N_TOP = 10  # documents of one space that others are asked about


def feature_names(spaces: Sequence[str]) -> list[str]:
    """Of the features of these similarity spaces, in the order of `features`."""
    names = ["length", "length²", "order mean", "order sum", "evidence"]
    for name in spaces:
        names += [f"{name} near", f"{name} near, log", f"{name} near by length", f"{name} surprise"]
        names += [f"{name} best in {other}" for other in spaces if other != name]
        names += [f"{name} top {N_TOP} in {other}" for other in spaces if other != name]
    return names


def features(fused: Fused, facts: Sequence[SpaceFacts], spaces: Sequence[str], text: str, order: WordOrder | None) -> Array:
    """(f,) float64. spaces: similarity spaces, sorted; one that had nothing to ask found nothing. text: the query."""
    column = {space.name: j for j, space in enumerate(facts)}
    # no example is longer, so that nothing was learnt of longer queries
    length = math.log(max(min(count_words(text), MAX_WORDS), 1))
    values = [length, length * length, *(order.score(text) if order is not None else (0.0, 0.0))]
    values.append(math.log1p(float(fused.surprises[:, [column[n] for n in spaces if n in column]].sum(axis=1).max(initial=0.0))))
    for name in spaces:
        others = [other for other in spaces if other != name]
        j = column.get(name)
        found = np.isfinite(fused.scores[:, j]) if j is not None else np.zeros(len(fused.fused), bool)
        if j is None or not found.any():
            values += [0.0, math.log(0.02), 0.0, 0.0] + [0.0] * (2 * len(others))
            continue
        scores = np.where(found, fused.scores[:, j], -np.inf)
        top = np.argsort(-scores, kind="stable")[: min(N_TOP, int(found.sum()))]
        near = float(scores[top[0]]) / (facts[j].most or 1.0)
        values += [near, math.log(max(near, 0.0) + 0.02), near * length, float(fused.surprises[:, j].max())]
        told = [fused.surprises[top, column[other]] if other in column else np.zeros(len(top)) for other in others]
        values += [float(surprises[0]) for surprises in told] + [float(surprises.mean()) for surprises in told]
    return np.array(values)
