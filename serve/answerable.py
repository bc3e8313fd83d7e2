"""What the verdict looks at to tell a question that is answered here from nonsense, as numbers for `shards.answerability`.

Of each similarity space: how near its best documents come (the share of what the query asks for where that is known, else the raw
score: z hides it, EVIDENCE.md section 7) and how far the best stands out; whether spaces agree on documents (the idea of concordance,
section 9 step 5); the length of the query, which all of these depend on; how its words stand together and which the corpus knows.
"""

import math
from collections.abc import Sequence

import numpy as np

from serve.evidence import SpaceFacts, Weighed
from shards.probes import MAX_WORDS, count_words
from shards.types import Array
from shards.word_order import WordFacts

N_TOP = 10  # documents of one space that others are asked about
ORDER = ("class order mean", "class order sum", "pair order mean", "pair order sum", "pair order total")
UNKNOWN = ("unknown words", "unknown words by rarity")
# By kind of nonsense, what its test does not look at. Sentences with swapped words are in an order that questions about something
# else are not in. Shuffled words are all known: a test that saw that would hold an unknown word for a sign of sense.
UNUSED = {"order": frozenset(UNKNOWN), "topic": frozenset(ORDER)}


def feature_names(spaces: Sequence[str]) -> list[str]:
    """Of the features of these similarity spaces, in the order of `features`."""
    names = ["length", "length²", *ORDER, *UNKNOWN, "evidence"]
    for name in spaces:
        names += [f"{name} near", f"{name} near, log", f"{name} near by length", f"{name} surprise"]
        names += [f"{name} top {N_TOP} near", f"{name} top {N_TOP} near by length"]
        names += [f"{name} best in {other}" for other in spaces if other != name]
        names += [f"{name} top {N_TOP} in {other}" for other in spaces if other != name]
    return names


def features(fused: Weighed, facts: Sequence[SpaceFacts], spaces: Sequence[str], text: str, words: WordFacts) -> Array:
    """(f,) float64. spaces: similarity spaces, sorted; one that had nothing to ask found nothing. text: the query, `words`: of it."""
    column = {space.name: j for j, space in enumerate(facts)}
    # no example is longer, so that nothing was learnt of longer queries
    length = math.log(max(min(count_words(text), MAX_WORDS), 1))
    values = [length, length * length, words.class_mean, words.class_sum, words.pair_mean, words.pair_sum, words.pair_total]
    values += [words.unknown, words.unknown_weight]
    values.append(math.log1p(float(fused.surprises[:, [column[n] for n in spaces if n in column]].sum(axis=1).max(initial=0.0))))
    for name in spaces:
        others = [other for other in spaces if other != name]
        j = column.get(name)
        found = np.isfinite(fused.scores[:, j]) if j is not None else np.zeros(len(fused.fused), bool)
        if j is None or not found.any():
            values += [0.0, math.log(0.02), 0.0, 0.0, 0.0, 0.0] + [0.0] * (2 * len(others))
            continue
        scores = np.where(found, fused.scores[:, j], -np.inf)
        top = np.argsort(-scores, kind="stable")[: min(N_TOP, int(found.sum()))]
        shares = scores[top] / (facts[j].most or 1.0)
        near, around = float(shares[0]), float(shares.mean())
        values += [near, math.log(max(near, 0.0) + 0.02), near * length, float(fused.surprises[:, j].max()), around, around * length]
        told = [fused.surprises[top, column[other]] if other in column else np.zeros(len(top)) for other in others]
        values += [float(surprises[0]) for surprises in told] + [float(surprises.mean()) for surprises in told]
    return np.array(values)
