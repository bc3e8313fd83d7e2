"""How far each space agrees with what the others together say of this query: leave-one-out concordance.

A space's own loudness is no reason to believe it; that it is loud where others are, too, is one (EVIDENCE.md section 9, step 5).
"""

import math
from collections.abc import Sequence

import numpy as np

from serve.evidence import Weighed
from shards.types import Array

N_TOP = 10  # documents that the others find best; EVIDENCE.md section 8: 3 to 20 make no difference


def concordances(weighed: Weighed, generated: Array, names: Sequence[str], n_docs: int) -> Array:
    """Of each space, how much more it says of the 10 best documents of all others than it would by chance: (s,) float64, in standard
    deviations, >= 0; nan where no other space says anything.

    generated: (n, s) bool, the lists of the spaces (`Candidates.generated`); names: of the spaces; n_docs: live documents.

    A document in a space's list counts there max(0, z), the normal deviate of its surprise, others 0 (G). The others' best documents are
    those of the largest weighted sum of all other spaces' G. From their mean G here is taken that of documents drawn by lot, of which
    K of N are listed: phi(Phi^-1(1 - K / N)), K / N being at most 1/2. A space's own weight and gate play no part. Others are summed
    in the order of their names.
    """
    from scipy.special import ndtri_exp

    n, s = weighed.surprises.shape
    agreed = np.full(s, np.nan)
    # Phi^-1(1 - e^-x) = -Phi^-1(e^-x), in logarithms, since e^-64 is no p that a double can tell from 0 by subtraction
    deviates = np.where(generated, np.maximum(-ndtri_exp(-weighed.surprises), 0.0), 0.0)
    shares = deviates * weighed.weights
    by_name = sorted(range(s), key=lambda j: names[j])
    for j in range(s):
        others = np.zeros(n)
        for other in by_name:
            if other != j:
                others += shares[:, other]
        best = np.argsort(-others, kind="stable")[:N_TOP]  # rows ascend by hash, so ties fall as everywhere
        best = best[others[best] > 0]
        if len(best):
            listed = np.count_nonzero(generated[:, j]) / max(n_docs, 1)
            agreed[j] = max(float(deviates[best, j].mean()) - _by_lot(listed), 0.0)
    return agreed


def _by_lot(listed: float) -> float:
    """The mean of G over all documents of a space without any signal that lists this share: E[z; z > Phi^-1(1 - listed)], of z > 0."""
    if listed <= 0.0:
        return 0.0
    from scipy.special import ndtri

    cut = float(ndtri(min(listed, 0.5)))
    return math.exp(-cut * cut / 2) / math.sqrt(2 * math.pi)
