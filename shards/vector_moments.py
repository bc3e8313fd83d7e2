"""Mean and scatter of a set of vectors: from them, the exact moments of any query's scores without scoring (KERNELS.md, 3)."""

from dataclasses import dataclass

import numpy as np

from shards.types import Array, Moments

_BLOCK_ROWS = 4096  # 12 MB in float64 at 384 dimensions; fixed, as the blocks decide the last bits


@dataclass(frozen=True, slots=True)
class VectorMoments:
    """n vectors' mean, (dim,) float64, and scatter matrix, (dim, dim) float64: the sum of (x - mean)(x - mean)'.

    Centred, unlike a raw Gram matrix, because E5-like models put all cosines near 0.8, where q'Gq - n mean^2 cancels.
    """

    n: int
    mean: Array
    scatter: Array

    @classmethod
    def of(cls, vectors: Array, units: Array | None = None) -> "VectorMoments":
        """The moments of rows of vectors, (u, dim) float32 or float16; units: which rows, (n,) int; None: all. 4 us a row of 384."""
        dim = vectors.shape[1]
        total = cls(0, np.zeros(dim), np.zeros((dim, dim)))
        n = len(vectors) if units is None else len(units)
        for start in range(0, n, _BLOCK_ROWS):
            stop = start + _BLOCK_ROWS
            block = (vectors[start:stop] if units is None else vectors[units[start:stop]]).astype(np.float64)
            mean = block.mean(axis=0)
            block -= mean
            total = total + cls(len(block), mean, block.T @ block)
        return total

    def __add__(self, other: "VectorMoments") -> "VectorMoments":
        """Both sets together (Chan, Golub & LeVeque 1983, as for `Moments`)."""
        n = self.n + other.n
        if not n:
            return self
        delta = other.mean - self.mean
        between = np.outer(delta, delta) * (self.n * other.n / n)
        return VectorMoments(n, self.mean + delta * (other.n / n), self.scatter + other.scatter + between)

    def __sub__(self, other: "VectorMoments") -> "VectorMoments":
        """What is left of this set without a part of it, which must be smaller than the set."""
        n = self.n - other.n
        mean = self.mean + (self.mean - other.mean) * (other.n / n)
        delta = other.mean - mean
        return VectorMoments(n, mean, self.scatter - other.scatter - np.outer(delta, delta) * (n * other.n / self.n))

    def along(self, query: Array) -> Moments:
        """The moments of the inner products with a query, (dim,) float64."""
        return Moments(self.n, float(self.mean @ query), float(query @ self.scatter @ query))
