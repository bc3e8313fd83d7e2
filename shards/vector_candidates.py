"""Which vectors can be among the best: a fast float32 search by faiss, with a proven bound on everything it leaves out.

faiss gives no canonical bits: its sums are float32, and their order follows the CPU and the row's place. So its scores only
select; whoever asks scores the candidates canonically, and compares with `ceiling` to know that nothing was missed.
"""

from typing import NamedTuple

import numpy as np

from shards.types import Array, Budget

_SLICE_COMPONENTS = 1 << 24  # between two looks at the clock: 64 MB, 3 ms from memory


class Candidates(NamedTuple):
    """units: (m,) int64 ascending.

    ceiling: no other unit among the first `n_looked` has a canonical score above it; -inf: there is no other.
    n_looked: units searched before the budget ended.
    """

    units: Array
    ceiling: float
    n_looked: int


def best_units(vectors: Array, query: Array, n: int, budget: Budget) -> Candidates:
    """At least the n best units by float32 score, where there are so many.

    vectors: (u, dim) float32, rows at most of unit length, searched where they lie (mapped or not; nothing is copied).
    query: (dim,) float32 of unit length.
    """
    import faiss

    n_units, dim = vectors.shape
    step = max(_SLICE_COMPONENTS // dim, 1)
    # Each slice gives its own best, a quarter more than its share of 3 n: rows lie in order of content hash, so the best ones
    # are spread evenly, and where they are not, the ceiling tells.
    wanted = n + 3 * n // -(-n_units // step)
    # With more than one thread to use, faiss 1.15 splits one query's rows among them and multiplies by BLAS: measured with two on
    # two cores, 2 to 30 times as slow as one, as each waits for the other; and hosts search on several threads of their own.
    before = faiss.omp_get_max_threads()  # OpenMP keeps it per thread, so this disturbs no other
    faiss.omp_set_num_threads(1)
    try:
        units, ceiling, start = [], -np.inf, 0
        while start < n_units and not budget.expired:
            part = vectors[start : start + step]
            scores, places = faiss.knn(query[None], part, min(wanted, len(part)), metric=faiss.METRIC_INNER_PRODUCT)
            units.append(places[0] + start)
            if wanted < len(part):
                ceiling = max(ceiling, float(scores[0, -1]))
            start += len(part)
    finally:
        faiss.omp_set_num_threads(before)
    found = np.sort(np.concatenate(units)) if units else np.zeros(0, np.int64)
    return Candidates(found, ceiling + float32_error(dim), start)


def float32_error(dim: int) -> float:
    """How far a float32 inner product of two unit vectors can be from the canonical one, whatever the order of its sum.

    Higham 2002 (Accuracy and Stability of Numerical Algorithms, section 3.1): |error| <= g |x|'|y| with g = n u / (1 - n u),
    u = 2^-24, and |x|'|y| <= 1 up to the rounding of the lengths. 2.3e-5 at 384 dimensions. The canonical score's own error
    and underflow lie below 1e-12.
    """
    nu = dim * 2.0**-24
    return 1.00001 * nu / (1.0 - nu) + 1e-12
