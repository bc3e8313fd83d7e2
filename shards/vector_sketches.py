"""Which units can be the best of the best rows: a scan of one byte per component, with a proven bound on what it is wrong by.

Exact scores read four bytes per component from memory, which is what a scan of a segment costs. A sketch is read four times as
fast, and leaves a few units per row to be scored exactly.
"""

import numpy as np

from shards.types import Array
from shards.vector_candidates import float32_error

_BLOCK_ROWS = 4096


class Sketch:
    """Vectors rounded to 8 bits: row x is near codes x scale. codes: (u, dim) int8; scales: (u,) float32.

    errors: (u,) float32; no score of a unit query is further than this from the canonical one: by Cauchy-Schwarz at most the
    row's rounding error, |x - scale codes|, and what float32 sums may lose, whatever their order.
    """

    def __init__(self, vectors: Array):
        self.codes = np.empty(vectors.shape, np.int8)
        self.scales = np.empty(len(vectors), np.float32)
        self.errors = np.empty(len(vectors), np.float32)
        for start in range(0, len(vectors), _BLOCK_ROWS):
            block = np.asarray(vectors[start : start + _BLOCK_ROWS])
            rows = slice(start, start + len(block))
            scales = np.abs(block).max(axis=1, initial=0.0) / np.float32(127)
            codes = np.rint(block / np.where(scales > 0, scales, 1)[:, None])
            rounding = np.sqrt(np.square(block - codes.astype(np.float64) * scales[:, None]).sum(axis=1))
            # The approximation is longer than a unit vector by as much, and its sum is rounded twice more.
            errors = rounding + 2.0 * float32_error(vectors.shape[1]) * (1.0 + rounding)
            self.codes[rows], self.scales[rows] = codes, scales
            self.errors[rows] = np.nextafter(errors.astype(np.float32), np.float32(np.inf))

    def search(self, vectors: Array, units: Array, offsets: Array, query: Array, k: int, floor: float) -> tuple[Array, Array]:
        """`shards.vector_kernels.best_by_sketch` with this sketch, which is one of `vectors`."""
        from shards.vector_kernels import best_by_sketch

        return best_by_sketch(vectors, (self.codes, self.scales, self.errors), units, offsets, query, k, floor)
