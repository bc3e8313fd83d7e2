"""Which spaces have something to say about this query, told without labels: the coupling `select` listens to these alone.

Loudness does not tell: chosen by its own peak or E alone, a space of confident rubbish wins (EVIDENCE.md section 1). So three things
must come together. **Worth**: the corpus's own probes, or the caller, gave the space a weight. **Certainty**: the best hit of its own
list is one that chance hardly gives (E <= 0.1), by a null model fitted over many queries, in what the source itself says. Spaces that
have both stand out. **Agreement**: any other space is heard if its ten best hits are better than chance in the spaces that stand out.

Where none stands out, all that have worth and a fitted null model are taken for them: a quiet answer is better than none.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np

from serve.evidence import Fused, SpaceFacts
from shards.segment import hash_order
from shards.types import Array, Candidates

CERTAIN_EVALUE = 0.1  # where EVIDENCE.md section 9, step 6 begins to believe a space by itself
AGREEMENT_P = 0.05
N_BEST = 10  # hits of a space's list that others are asked about; EVIDENCE.md section 9, step 5 takes as many


def silent_spaces(
    spaces: Sequence[SpaceFacts], fused: Fused, found: Candidates, weights: Array, given: Collection[str] = ()
) -> dict[str, str]:
    """Why spaces are not heard, by name; those that are missing here are. weights: (s,), in the plan's order; given: names of those whose
    weight is the caller's."""
    order = sorted(range(len(spaces)), key=lambda s: spaces[s].name)
    best = [_best(found, s) for s in range(len(spaces))]
    evalues = [_evalue(fused, rows, s) for s, rows in enumerate(best)]
    worth = [s for s in order if weights[s] > 0 and len(best[s])]
    fitted = [s for s in worth if fused.nulls[s] != "normal"]
    anchors = [s for s in fitted if evalues[s] <= CERTAIN_EVALUE and spaces[s].origin == "source"] or fitted
    silent = {}
    for s in order:
        name = spaces[s].name
        if not weights[s] > 0:
            silent[name] = "silent: " + (
                "its weight is 0, as asked for" if name in given else "the corpus's own probes find nothing by it that others do not find"
            )
        elif not len(best[s]):
            silent[name] = "silent: it found nothing"
        elif anchors and s not in anchors:
            p = agreement_p(fused.surprises[best[s]], weights, anchors)
            if p > AGREEMENT_P:
                names = ", ".join(spaces[a].name for a in anchors)
                silent[name] = (
                    f"silent: {_quiet(evalues[s], fused.nulls[s])}, and its best hits are no better than any to {names} (p = {p:.2g})"
                )
    return silent


def agreement_p(surprises: Array, weights: Array, others: Sequence[int]) -> float:
    """p of "these documents are to other spaces as any documents are". surprises: (n, s) nats; weights: (s,); others: their columns.

    What the others say of a document is the mean of their surprises, by weight. By chance one surprise, -ln of a p-value, is
    exponential with mean 1, and a mean of several is no more spread out, however they depend on one another; so the sum over n documents
    is held to be from a Gamma(n) distribution (Fisher 1932, section 21.1), which if anything is too strict.
    """
    from scipy.special import gammaincc

    total, weight = np.zeros(len(surprises)), 0.0
    for s in others:
        total += weights[s] * surprises[:, s]
        weight += float(weights[s])
    return float(gammaincc(len(surprises), float(total.sum()) / weight)) if weight > 0 and len(surprises) else 1.0


def _quiet(evalue: float, null: str) -> str:
    """Why a space does not stand out."""
    if null == "normal":
        return "its null model is not fitted yet"
    if evalue > CERTAIN_EVALUE:
        return f"its best hit is one that chance gives, too (E = {evalue:.2g})"
    return "what it sees are texts about documents"


def _best(found: Candidates, s: int) -> Array:
    """Rows of the best of a space's own list."""
    rows = np.flatnonzero(found.generated[:, s])
    return rows[hash_order(found.hashes[rows], found.scores[rows, s])[:N_BEST]]


def _evalue(fused: Fused, rows: Array, s: int) -> float:
    """E of the best of these in their own space."""
    logs = fused.signal_log_evalues[rows, s]
    return math.exp(min(float(logs.min()), 690.0)) if len(logs) else math.inf
