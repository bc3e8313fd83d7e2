"""The compiled loops over vectors. Each result's bits depend on its own inputs alone: not on its place, batch, or machine.

Products of two float32 are exact in float64, so only the order of the additions matters (a fused multiply-add included), and
that is written down here: never leave it to BLAS, which chooses by shape and CPU.

Stored vectors are float32, or the bits of float16 as uint16.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from shards.compiled import jit

LANES = 32  # partial sums per inner product: four AVX-512 registers hide the latency of addition
_HALF_BIAS = 2.0**112  # a half's exponent and fraction, moved to a float's place, stand for a number so much too small


def component(value: Any) -> Any:
    """A stored component as float64, exactly: a float32, or the bits of a float16 (not of an infinity or NaN). In kernels only."""
    raise TypeError("for kernels")


@overload(component, inline="always")
def _component(value):
    if not isinstance(value, types.Integer):
        return lambda value: np.float64(value)

    def of_half(value):
        sign = np.uint32(value & np.uint16(0x8000)) << np.uint32(16)
        rest = np.uint32(value & np.uint16(0x7FFF)) << np.uint32(13)
        return np.float64(np.uint32(sign | rest).view(np.float32)) * _HALF_BIAS

    return of_half


@jit
def _inner_product(row, query, lanes):
    """<row, query>: lane l adds the products of components l, l + 32, …; lanes fold in halves.

    row: (dim,) stored; query: (dim,) float64 that holds float32 values; lanes: (LANES,) float64, overwritten.
    """
    whole = len(row) - len(row) % LANES
    for lane in range(LANES):
        lanes[lane] = 0.0
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += component(row[start + lane]) * query[start + lane]
    for lane in range(len(row) - whole):
        lanes[lane] += component(row[whole + lane]) * query[whole + lane]
    half = LANES // 2
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]


@jit
def inner_products(vectors, units, query, scores):
    """scores[i] = <vectors[units[i]], query>, see `_inner_product`.

    vectors: (u, dim) stored; units: (n,) int; query: (dim,) float64 that holds float32 values; scores: (n,) float64, written.
    Measured on one core, 100k x 384: 8 ms, faiss's flat index 5.8, numpy's float32 product 12.5; neither gives canonical bits.
    """
    lanes = np.zeros(LANES, np.float64)
    for i in range(len(units)):
        scores[i] = _inner_product(vectors[units[i]], query, lanes)


@jit
def inner_products_of(vectors, units, queries, scores):
    """scores[q, i] = <vectors[units[i]], queries[q]>, as `inner_products`, in one pass over the vectors: memory is what takes the time.

    queries: (m, dim) float64 that holds float32 values; scores: (m, n) float64, written.
    """
    lanes = np.zeros(LANES, np.float64)
    for i in range(len(units)):
        row = vectors[units[i]]
        for q in range(len(queries)):
            scores[q, i] = _inner_product(row, queries[q], lanes)


@jit
def best_of_rows(vectors, row_units, rows, asked, query, best, which):
    """Each row's best unit and its score, the first of equals; -1 and nan for a row not asked for, -1 and -inf for one of no units.

    vectors: (u, dim) stored; row_units: (r + 1,) int64, which units a row has; rows: (n,) int; asked: (r,) bool
    best: (n,) float64 and which: (n,) int64, written
    """
    lanes = np.zeros(LANES, np.float64)
    for i in range(len(rows)):
        best[i], which[i] = np.nan, -1
        if not asked[rows[i]]:
            continue
        best[i] = -np.inf
        for unit in range(row_units[rows[i]], row_units[rows[i] + 1]):
            score = _inner_product(vectors[unit], query, lanes)
            if score > best[i]:
                best[i], which[i] = score, unit


@jit
def best_units(scores, offsets, best, which):
    """The best score of each group and where it stands, the first of equals; groups of no scores get -inf and -1.

    scores: (n,) float64; offsets: (g + 1,) int64 into it; best: (g,) float64 and which: (g,) int64, written.
    """
    for group in range(len(offsets) - 1):
        best[group], which[group] = -np.inf, -1
        for i in range(offsets[group], offsets[group + 1]):
            if scores[i] > best[group]:
                best[group], which[group] = scores[i], i


@jit
def sum_tokens(table, rows, weights, tokens, word_offsets, words, text_offsets, sums):
    """sums[t] = the weighted vectors of all tokens of text t, added in reading order.

    table: (r, dim) float32; rows: (v,) int64 and weights: (v,) float32, each token's row of the table and its weight
    tokens, word_offsets: the tokens of each distinct word; words, text_offsets: the words of each text; sums: (n, dim) float64
    """
    for text in range(len(text_offsets) - 1):
        total = sums[text]
        total[:] = 0.0
        for w in range(text_offsets[text], text_offsets[text + 1]):
            for t in range(word_offsets[words[w]], word_offsets[words[w] + 1]):
                vector = table[rows[tokens[t]]]
                weight = np.float64(weights[tokens[t]])
                for i in range(len(total)):
                    total[i] += np.float64(vector[i]) * weight


@jit
def to_unit_length(sums, units):
    """units[i] = sums[i] scaled to length 1; a zero row stays zero. sums: (n, dim) float64; units: (n, dim) float32, written."""
    for i in range(len(sums)):
        square = 0.0
        for value in sums[i]:
            square += value * value
        scale = 1.0 / np.sqrt(square) if square > 0.0 else 0.0
        for j in range(sums.shape[1]):
            units[i, j] = sums[i, j] * scale
