"""The compiled loops over postings: inverting tokens into them, re-sorting them, and adding up BM25 scores.

Scores are float32 sums of `weight * (tf / (tf + norm))`, term by term in the order given. That order, and nothing else, decides
the bits: every loop here adds in it, so a unit scores the same in a window, alone, and in any segment.

Postings of one set: `offsets` (n_terms + 1,) int64 into `units` (n,) int32, ascending within a term, and `tfs` (n,) uint8.
"""

import numpy as np

from shards.compiled import jit

BLOCK = 1024  # units between two looks at how good a row must be
MAX_TF = 255  # counts are kept in one byte; tf/(tf + norm) has long saturated (Lucene keeps lengths as coarsely)


@jit
def document_frequencies(tokens, token_offsets, type_offsets, type_terms, n_terms):
    """In how many units each term occurs: (n_terms,) int64.

    tokens, token_offsets: as `tokenise` gives them. type_offsets, type_terms: the terms of each distinct token, int64 and int32.
    """
    frequencies = np.zeros(n_terms, np.int64)
    last = np.full(n_terms, np.int32(-1), np.int32)
    for unit in range(len(token_offsets) - 1):
        for i in range(token_offsets[unit], token_offsets[unit + 1]):
            for j in range(type_offsets[tokens[i]], type_offsets[tokens[i] + 1]):
                term = type_terms[j]
                if last[term] != unit:
                    last[term] = unit
                    frequencies[term] += 1
    return frequencies


@jit
def invert(tokens, token_offsets, type_offsets, type_terms, type_atoms, offsets):
    """Postings and the length of each unit: units int32, tfs uint8, lengths int32.

    type_atoms: (n_types,) int32, how many places of the text a token counts for. offsets: of the postings to be filled.
    """
    n_terms = len(offsets) - 1
    units = np.empty(offsets[n_terms], np.int32)
    tfs = np.empty(offsets[n_terms], np.uint8)
    lengths = np.zeros(len(token_offsets) - 1, np.int32)
    following = offsets[:-1].copy()
    for unit in range(len(token_offsets) - 1):
        for i in range(token_offsets[unit], token_offsets[unit + 1]):
            token = tokens[i]
            lengths[unit] += type_atoms[token]
            for j in range(type_offsets[token], type_offsets[token + 1]):
                term = type_terms[j]
                last = following[term] - 1
                if last >= offsets[term] and units[last] == unit:
                    if tfs[last] < MAX_TF:
                        tfs[last] += np.uint8(1)
                else:
                    units[last + 1] = unit
                    tfs[last + 1] = 1
                    following[term] = last + 2
    return units, tfs, lengths


@jit
def stable_order(keys, n_keys):
    """The stable sorting permutation of small integers (counting sort): (n,) int64. keys: (n,) int32 in [0, n_keys)."""
    following = np.zeros(n_keys + 1, np.int64)
    for key in keys:
        following[key + 1] += 1
    for key in range(n_keys):
        following[key + 1] += following[key]
    order = np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        order[following[keys[i]]] = i
        following[keys[i]] += 1
    return order


@jit
def _lower_bound(units, low, high, unit):
    """The first place in units[low:high] that is not below `unit`."""
    while low < high:
        middle = (low + high) >> 1
        if units[middle] < unit:
            low = middle + 1
        else:
            high = middle
    return low


@jit(error_model="numpy")
def _add_window(units, tfs, norms, weights, places, stops, first, end, window):
    """Adds every term's part to the scores of units [first, end), moving `places` on; how many postings that were.

    numpy's error model, for tf + norm is positive and a test for 0 before each division is a third of the time.
    """
    added = 0
    norm = norms[first:end]
    for t in range(len(weights)):
        weight = weights[t]
        stop = _lower_bound(units, places[t], stops[t], end)
        for place in range(places[t], stop):
            unit = np.uint64(units[place] - first)
            tf = np.float32(tfs[place])
            window[unit] += weight * (tf / (tf + norm[unit]))
        added += stop - places[t]
        places[t] = stop
    return added


@jit
def _sift(best, heap, n, row):
    """Replaces the root of heap[:n] by `row` and restores the order."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= n:
            break
        if child + 1 < n and (
            best[heap[child + 1]] < best[heap[child]]
            or (best[heap[child + 1]] == best[heap[child]] and heap[child + 1] > heap[child])
        ):
            child += 1
        worse = heap[child]
        if best[worse] < best[row] or (best[worse] == best[row] and worse > row):
            heap[place] = worse
            place = child
        else:
            break
    if n:
        heap[place] = row


@jit
def _n_above(scores, level):
    """How many are above a level. In 32 bits, which the compiler counts many at a time."""
    n = np.int32(0)
    for i in range(len(scores)):
        n += np.int32(scores[i] > level)
    return n


@jit
def top_rows(best, n_rows, k):
    """The k best rows of positive score among the first n_rows: (m,) int64, by score descending, then row."""
    heap = np.empty(min(k, n_rows), np.int64)  # the worst row kept is at the root
    n = 0
    floor = np.float32(0)  # what a row must exceed: at equal score the earlier row stays
    for start in range(0, n_rows, BLOCK):
        stop = min(start + BLOCK, n_rows)
        if not _n_above(best[start:stop], floor):  # nearly always, once the heap is full
            continue
        for row in range(start, stop):
            score = best[row]
            if score <= floor:
                continue
            if n < len(heap):
                place = n
                n += 1
                while place > 0:
                    parent = (place - 1) >> 1
                    if best[heap[parent]] > score or (best[heap[parent]] == score and heap[parent] < row):
                        heap[place] = heap[parent]
                        place = parent
                    else:
                        break
                heap[place] = row
            elif n:
                _sift(best, heap, n, row)
            if n and n == len(heap):
                floor = best[heap[0]]
    order = np.empty(n, np.int64)
    for i in range(n - 1, -1, -1):
        order[i] = heap[0]
        last = heap[i]
        _sift(best, heap, i, last)
    return order


@jit
def _mean_and_m2(window, size, n):
    """Mean and sum of squared deviations of the n live scores among window[:size], where those of the others are 0: float64.

    In four sums each, which do not wait for one another.
    """
    a = b = c = d = 0.0
    whole = size - size % 4
    for i in range(0, whole, 4):
        a += window[i]
        b += window[i + 1]
        c += window[i + 2]
        d += window[i + 3]
    for i in range(whole, size):
        a += window[i]
    mean = (a + b + c + d) / n
    a = b = c = d = 0.0
    for i in range(0, whole, 4):
        a += (window[i] - mean) ** 2
        b += (window[i + 1] - mean) ** 2
        c += (window[i + 2] - mean) ** 2
        d += (window[i + 3] - mean) ** 2
    for i in range(whole, size):
        a += (window[i] - mean) ** 2
    return mean, a + b + c + d - (size - n) * mean * mean


@jit
def add_windows(
    units, tfs, norms, weights, places, stops, unit_rows, live, allowed, live_counts, window, first_window, n_windows, moments,
    best, best_units, k, whole,
):  # fmt: skip
    """Scores the units of some windows, one after the other; returns how many units of allowed rows matched.

    weights: (t,) float32; places, stops: (t,) int64, where in the postings each term is now and where it ends (places moves on)
    unit_rows: (n_units,) int32; live, allowed: (rows,) bool; live_counts: live units of each window; window: float32 scratch
    moments: (3,) float64 n, mean and m2 of all live units so far, zero scores included, moved on by Chan's update
    best, best_units: (rows,) float32 and int32, the best score of each allowed row so far and its first unit
    k: only the k best rows need be right in `best`: others may be too low, though not too high; 0: all are right
    whole: every live row is allowed, so that nobody need look which
    """
    matched = 0
    floor = np.float32(0)  # k rows have reached it; at equal score the earlier row stays
    size = len(window)
    for w in range(first_window, first_window + n_windows):
        first = w * size
        end = min(first + size, len(unit_rows))
        added = _add_window(units, tfs, norms, weights, places, stops, first, end, window)
        n = live_counts[w]
        if added:
            if n < end - first:
                for i in range(end - first):
                    if not live[unit_rows[first + i]]:
                        window[i] = 0
            for start in range(0, end - first, BLOCK):
                stop = min(start + BLOCK, end - first)
                if whole:
                    matched += _n_above(window[start:stop], np.float32(0))
                else:
                    for i in range(start, stop):
                        matched += (window[i] > 0) & allowed[np.uint64(unit_rows[first + i])]
                if not _n_above(window[start:stop], floor):  # nearly always, once the floor has risen
                    continue
                raised = 0
                for i in range(start, stop):
                    score = window[i]
                    if score > floor:
                        row = unit_rows[first + i]
                        if allowed[row] and score > best[row]:
                            best[row] = score
                            best_units[row] = first + i
                            raised += 1
                if 0 < k <= raised:
                    block = best[unit_rows[first + start] : unit_rows[first + stop - 1] + 1]
                    leaders = top_rows(block, len(block), k)
                    if len(leaders) == k:
                        floor = max(floor, block[leaders[k - 1]])
        if n:
            mean, m2 = _mean_and_m2(window, end - first, n) if added else (0.0, 0.0)
            delta = mean - moments[1]
            before = moments[0]
            moments[0] = before + n
            moments[1] += delta * n / moments[0]
            moments[2] += m2 + delta * delta * before * n / moments[0]
        if added:
            window[: end - first] = 0
    return matched


@jit
def unit_scores(units, tfs, norms, weights, starts, stops, first, end):
    """Scores of the units [first, end): (end - first,) float32; starts, stops: where in the postings each term lies."""
    scores = np.zeros(end - first, np.float32)
    for t in range(len(weights)):
        place = _lower_bound(units, starts[t], stops[t], first)
        while place < stops[t] and units[place] < end:
            unit = units[place]
            tf = np.float32(tfs[place])
            scores[unit - first] += weights[t] * (tf / (tf + norms[unit]))
            place += 1
    return scores


@jit
def row_scores(units, tfs, norms, weights, starts, stops, row_offsets, rows, scores, best_units):
    """The best unit of each row, as `add_windows` finds it; scores (m,) float32 and best_units (m,) int32 are filled in.

    A row without any query term keeps score 0.
    """
    for r in range(len(rows)):
        first = row_offsets[rows[r]]
        of_units = unit_scores(units, tfs, norms, weights, starts, stops, first, row_offsets[rows[r] + 1])
        best = np.float32(0)
        for i in range(len(of_units)):
            if of_units[i] > best:
                best = of_units[i]
                best_units[r] = first + i
        scores[r] = best
