"""The compiled loops of late interaction. Each result's bits depend on its own inputs alone: not on its place, batch, or machine.

Stored components have at most 11 significant bits (float16, int8), and so do a question's, which are rounded to float16. A product
of two such is exact in float32 whether or not it is fused with the addition, so only the order of additions matters: component by
component, written down here. Loops run over a question's tokens inside, which takes vector registers without changing that order.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from shards.compiled import jit

STEP = 4  # components at once; questions and rows are filled up with zeros to a multiple, which changes no sum
_HALF_BIAS = np.float32(2.0**112)  # a half's exponent and fraction, moved to a float's place, stand for a number so much too small


def component(value: Any) -> Any:
    """A stored component as float32, exactly: a float32, an int8, or the bits of a float16 (not of an infinity or NaN). In kernels only."""
    raise TypeError("for kernels")


@overload(component, inline="always")
def _component(value):
    if value is not types.uint16:
        return lambda value: np.float32(value)

    def of_half(value):
        sign = np.uint32(value & np.uint16(0x8000)) << np.uint32(16)
        rest = np.uint32(value & np.uint16(0x7FFF)) << np.uint32(13)
        return np.uint32(sign | rest).view(np.float32) * _HALF_BIAS

    return of_half


@jit(fastmath={"contract"})
def max_sims(codes, scales, offsets, units, query, n_query, scores):
    """scores[i] = the sum over a question's tokens of their largest inner product with a token of unit i (Khattab & Zaharia 2020, 3.3).

    codes: (t, dim) int8, or the bits of float16 as uint16; scales: (t,) float32 of each token, or empty; offsets: (u + 1,) int64 into
    both; units: (n,) int; query: (dim', w) float32 that holds float16 values, its token j in column j < n_query, zeros beyond dim
    and n_query, dim' a multiple of 4; scores: (n,) float64, written; -inf for a unit of no tokens.
    Products are added in float32 in order of component, maxima in float64 in order of token.
    """
    dim, width = codes.shape[1], query.shape[1]
    best = np.empty(width, np.float32)
    row_a, row_b = np.zeros(len(query), np.float32), np.zeros(len(query), np.float32)
    sum_a, sum_b = np.empty(width, np.float32), np.empty(width, np.float32)
    for i in range(len(units)):
        first, last = offsets[units[i]], offsets[units[i] + 1]
        best[:] = -np.inf
        for a in range(first, last, 2):  # two tokens at once keep the adders busy; of an odd number the last one is read twice
            b = min(a + 1, last - 1)
            for d in range(dim):
                row_a[d] = component(codes[a, d])
            for d in range(dim):
                row_b[d] = component(codes[b, d])
            sum_a[:] = 0.0
            sum_b[:] = 0.0
            for d in range(0, len(query), STEP):
                a0, a1, a2, a3 = row_a[d], row_a[d + 1], row_a[d + 2], row_a[d + 3]
                b0, b1, b2, b3 = row_b[d], row_b[d + 1], row_b[d + 2], row_b[d + 3]
                for q in range(width):
                    x, y = sum_a[q], sum_b[q]
                    p = query[d, q]
                    x += a0 * p
                    y += b0 * p
                    p = query[d + 1, q]
                    x += a1 * p
                    y += b1 * p
                    p = query[d + 2, q]
                    x += a2 * p
                    y += b2 * p
                    p = query[d + 3, q]
                    x += a3 * p
                    y += b3 * p
                    sum_a[q], sum_b[q] = x, y
            if len(scales):
                scale_a, scale_b = scales[a], scales[b]
                for q in range(width):
                    best[q] = max(best[q], max(sum_a[q] * scale_a, sum_b[q] * scale_b))
            else:
                for q in range(width):
                    best[q] = max(best[q], max(sum_a[q], sum_b[q]))
        total = 0.0
        for q in range(n_query):
            total += np.float64(best[q])
        scores[i] = total


@jit
def products(codes, scales, matrix, out):
    """out = the stored vectors times a matrix, added in order of component. codes, scales: as above; matrix: (dim, m) float32; out: (t, m)
    float32, written. No fused operations, so that the bits are the same on each CPU."""
    for t in range(len(codes)):
        row = out[t]
        row[:] = 0.0
        for d in range(codes.shape[1]):
            value = component(codes[t, d])
            for j in range(matrix.shape[1]):
                row[j] += value * matrix[d, j]
        if len(scales):
            for j in range(matrix.shape[1]):
                row[j] *= scales[t]


@jit
def encodings(signs, projected, offsets, n_planes, out, is_query):
    """Fixed-dimensional encodings of passages (Dhulipala et al. 2024, section 2): out[i] = those of each repetition, one after another.

    signs: (t, r * n_planes) float32, each token's side of each plane; projected: (t, r * p) float32; offsets: (u + 1,) int64
    out: (u, r * 2^n_planes * p) float32, written. A cell holds the sum of a question's tokens in it, or the mean of a passage's; a cell
    that holds none of a passage's takes the token that differs on the fewest planes, the first of equals. A question's stays zero.
    """
    n_repetitions = signs.shape[1] // n_planes
    n_cells, width = 1 << n_planes, projected.shape[1] // n_repetitions
    counts = np.empty(n_cells, np.int64)
    for i in range(len(offsets) - 1):
        first, last = offsets[i], offsets[i + 1]
        out[i] = 0.0
        cells = np.empty(last - first, np.int64)
        for r in range(n_repetitions):
            base = r * n_cells * width
            counts[:] = 0
            for t in range(first, last):
                cell = 0
                for plane in range(n_planes):
                    cell = 2 * cell + (signs[t, r * n_planes + plane] > 0.0)
                cells[t - first] = cell
                counts[cell] += 1
                for j in range(width):
                    out[i, base + cell * width + j] += projected[t, r * width + j]
            if is_query:
                continue
            for cell in range(n_cells):
                at = base + cell * width
                if counts[cell] > 0:
                    for j in range(width):
                        out[i, at + j] /= np.float32(counts[cell])
                    continue
                nearest, fewest = -1, n_planes + 1
                for t in range(last - first):
                    differing = 0
                    bits = cells[t] ^ cell
                    while bits:
                        differing += bits & 1
                        bits >>= 1
                    if differing < fewest:
                        nearest, fewest = t, differing
                if nearest >= 0:
                    for j in range(width):
                        out[i, at + j] = projected[first + nearest, r * width + j]


@jit(fastmath=True)
def code_products(codes, units, query, sums):
    """sums[i] = <codes[units[i]], query>, an exact integer whatever the order of addition.

    codes: (u, dim) int8; units: (n,) int; query: (dim,) int16 of at most 255 in size; sums: (n,) int64, written; dim < 65,536
    """
    for i in range(len(units)):
        row = codes[units[i]]
        total = np.int32(0)
        for d in range(len(query)):
            total += np.int32(row[d]) * np.int32(query[d])
        sums[i] = total
