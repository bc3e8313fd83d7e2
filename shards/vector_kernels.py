"""The compiled loops over vectors. Each result's bits depend on its own inputs alone: not on its place, batch, or machine.

Products of two float32 are exact in float64, so only the order of the additions matters (a fused multiply-add included), and
that is written down here: never leave it to BLAS, which chooses by shape and CPU.
"""

import numpy as np

from shards.compiled import jit

LANES = 32  # partial sums per inner product: four AVX-512 registers hide the latency of addition


@jit
def _inner_product(row, query, lanes):
    """<row, query>: lane l adds the products of components l, l + 32, …; lanes fold in halves.

    row: (dim,) float32; query: (dim,) float64 that holds float32 values; lanes: (LANES,) float64, overwritten.
    """
    whole = len(row) - len(row) % LANES
    for lane in range(LANES):
        lanes[lane] = 0.0
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += np.float64(row[start + lane]) * query[start + lane]
    for lane in range(len(row) - whole):
        lanes[lane] += np.float64(row[whole + lane]) * query[whole + lane]
    half = LANES // 2
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]


@jit
def inner_products(vectors, units, query, scores):
    """scores[i] = <vectors[units[i]], query>, see `_inner_product`.

    vectors: (u, dim) float32; units: (n,) int; query: (dim,) float64 that holds float32 values; scores: (n,) float64, written.
    Measured on one core, 100k x 384: 8 ms, faiss's flat index 5.8, numpy's float32 product 12.5; neither gives canonical bits.
    """
    lanes = np.zeros(LANES, np.float64)
    for i in range(len(units)):
        scores[i] = _inner_product(vectors[units[i]], query, lanes)


@jit
def best_of_rows(vectors, row_units, rows, asked, query, best, which):
    """Each row's best unit and its score, the first of equals; -1 and nan for a row not asked for, -1 and -inf for one of no units.

    vectors: (u, dim) float32; row_units: (r + 1,) int64, which units a row has; rows: (n,) int; asked: (r,) bool
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


@jit(fastmath=True)
def sketch_scores(codes, scales, units, query, scores):
    """scores[i] = <codes[units[i]], query> x scales[units[i]] in any order of addition: these scores only select.

    codes: (u, dim) int8; scales: (u,) float32; units: (n,) int; query: (dim,) float32; scores: (n,) float32, written.
    """
    for i in range(len(units)):
        row = codes[units[i]]
        total = np.float32(0.0)
        for d in range(len(query)):
            total += np.float32(row[d]) * query[d]
        scores[i] = total * scales[units[i]]


@jit
def best_by_sketch(vectors, sketch, units, offsets, query, k, floor):
    """The best unit of each row that can be among the k best and is not below `floor`: (units (m,) int64, scores (m,) float64), in
    order of row; all of those whose score is at least the k-th best's.

    vectors: (u, dim) float32; sketch: (codes, scales, errors) as in `Sketch`; units: (n,) int64 and offsets: (rows + 1,) int64, which
    of them belong to one row; query: (dim,) float64 of unit length that holds float32 values
    """
    codes, scales, errors = sketch
    scores = np.empty(len(units), np.float32)
    sketch_scores(codes, scales, units, query.astype(np.float32), scores)
    n_rows = len(offsets) - 1
    lower, upper = np.full(n_rows, -np.inf), np.full(n_rows, -np.inf)  # between what each row's best score can lie
    for row in range(n_rows):
        for i in range(offsets[row], offsets[row + 1]):
            score, error = np.float64(scores[i]), np.float64(errors[units[i]])
            lower[row] = max(lower[row], score - error)
            upper[row] = max(upper[row], score + error)
    if k < n_rows:  # the k-th best is no worse
        floor = max(floor, np.partition(lower, n_rows - k)[n_rows - k])
    found, best = np.empty(n_rows, np.int64), np.empty(n_rows, np.float64)
    lanes = np.zeros(LANES, np.float64)
    n = 0
    for row in range(n_rows):
        if upper[row] < floor:
            continue
        of_row = -np.inf
        for i in range(offsets[row], offsets[row + 1]):
            if np.float64(scores[i]) + np.float64(errors[units[i]]) >= lower[row]:
                score = _inner_product(vectors[units[i]], query, lanes)
                if score > of_row:
                    of_row, found[n] = score, units[i]
        if of_row >= floor:
            best[n] = of_row
            n += 1
    return found[:n], best[:n]


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
