"""The compiled loops that add up the scores of postings, keep the best rows, and take the moments of all scores on the way.

A score is the float32 sum of one part per term: of BM25 `weight * (tf / (tf + norm))`, of impacts, which a model has already
saturated, `weight * impact`. Terms come in the order given. That order, and nothing else, decides the bits: every loop here adds
in it, so a unit scores the same in a window, alone, and in any segment. A term that a unit lacks adds nothing or 0.
"""

from typing import NamedTuple

import numpy as np

from shards.compiled import jit
from shards.types import Array

BLOCK = 1024  # units whose moments are taken together: 4 kB of scores, which stay in the first-level cache
GROUP = 128  # units between two looks at how good a row must be
MIN_NORM = 1e-30  # of a unit without words where b is 1: 0 / (0 + norm) must be 0


class Postings(NamedTuple):
    """Of one segment. Let t be its terms, u its units.

    units (p,) int32, ascending within a term; values (p,) uint8 tf or float32 impacts: as in `shards.postings`
    dense: (d, u) likewise, values of the d most frequent terms in every unit, 0 where the term is missing
    norms: (u,) float32, above 0, of tfs; (0,) with impacts
    """

    units: Array
    values: Array
    dense: Array
    norms: Array


class Lists(NamedTuple):
    """The question's terms that occur in the segment, in canonical order.

    weights: (t,) float32; starts, stops: (t,) int64, where in the postings each lies; dense: (t,) int32, its row there, or -1
    """

    weights: Array
    starts: Array
    stops: Array
    dense: Array


class Units(NamedTuple):
    """Of one segment: rows (u,) int32, ascending; live (u,) bool; all_live: whether they all are."""

    rows: Array
    live: Array
    all_live: bool


class Best(NamedTuple):
    """The candidates of a search: the best unit of each row that may be among the k best, in order of row.

    units: (capacity,) int32; scores: (capacity,) float32; counts: (2,) int64, candidates now, units that matched so far
    floor: (1,) float32, what a row must exceed, for k earlier ones have reached it; k: of which candidates are kept

    capacity: above k, or above the rows of the segment
    """

    units: Array
    scores: Array
    counts: Array
    floor: Array
    k: int


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
def _add_dense(tfs, norm, weight, scores):
    """Adds one term's part to the scores of successive units: no place to look up, so many units at a time.

    numpy's error model, for tf + norm is positive and a test for 0 before each division is a third of the time.
    """
    for i in range(len(scores)):
        tf = np.float32(tfs[i])
        scores[i] += weight * (tf / (tf + norm[i]))


@jit
def _add_dense_impacts(impacts, weight, scores):
    """`_add_dense` of impacts."""
    for i in range(len(scores)):
        scores[i] += weight * impacts[i]


@jit(error_model="numpy")
def _add_window(postings, lists, places, first, end, scores):
    """Adds every term's part to the scores of units [first, end), moving `places` on; whether there was anything to add."""
    added = False
    saturates = len(postings.norms) > 0
    norm = postings.norms[first:end]
    for t in range(len(lists.weights)):
        weight = lists.weights[t]
        if lists.dense[t] >= 0:
            values = postings.dense[lists.dense[t], first:end]
            if saturates:
                _add_dense(values, norm, weight, scores)
            else:
                _add_dense_impacts(values, weight, scores)
            added = True
            continue
        stop = _lower_bound(postings.units, places[t], lists.stops[t], end)
        if saturates:
            for place in range(places[t], stop):
                unit = np.uint64(postings.units[place] - first)
                tf = np.float32(postings.values[place])
                scores[unit] += weight * (tf / (tf + norm[unit]))
        else:
            for place in range(places[t], stop):
                scores[np.uint64(postings.units[place] - first)] += weight * np.float32(postings.values[place])
        added |= stop > places[t]
        places[t] = stop
    return added


@jit
def _n_above(scores, level):
    """How many are above a level. In 32 bits, which the compiler counts many at a time."""
    n = np.int32(0)
    for i in range(len(scores)):
        n += np.int32(scores[i] > level)
    return n


@jit
def _keep_best(best):
    """Throws out the candidates that are not among the k best, and raises the floor."""
    n = best.counts[0]
    floor = np.partition(best.scores[:n], n - best.k)[n - best.k]
    best.floor[0] = floor
    n_ties = best.k  # at equal score the earlier row stays
    for i in range(n):
        n_ties -= best.scores[i] > floor
    kept = 0
    for i in range(n):
        score = best.scores[i]
        if score == floor:
            n_ties -= 1
        if score > floor or (score == floor and n_ties >= 0):
            best.units[kept], best.scores[kept] = best.units[i], score
            kept += 1
    best.counts[0] = kept


@jit
def _collect(scores, first, rows, best):
    """Takes those of the units from `first` on, with these scores, that exceed the floor for candidates."""
    floor = best.floor[0]
    for i in range(len(scores)):
        score = scores[i]
        if score <= floor:
            continue
        row = rows[first + i]
        last = best.counts[0] - 1
        if last >= 0 and rows[best.units[last]] == row:  # a row's units follow one another
            if score > best.scores[last]:
                best.units[last], best.scores[last] = first + i, score
            continue
        if last + 1 == len(best.units):
            _keep_best(best)
            floor = best.floor[0]
            if score <= floor:
                continue
            last = best.counts[0] - 1
        best.units[last + 1], best.scores[last + 1] = first + i, score
        best.counts[0] = last + 2


# Sums may be reordered, that is vectorised: in float64 it is the last bits of the moments that then depend on the CPU, as they do
# on the segments whose moments are merged. A dict, for a set has no fixed order and is part of the key of compiled code.
@jit(fastmath={"reassoc": True, "nsz": True})
def _sums(scores, origin):
    """Sum and sum of squares of score - origin, float64."""
    total = squares = 0.0
    for i in range(len(scores)):
        d = scores[i] - origin
        total += d
        squares += d * d
    return total, squares


@jit
def _add_moments(scores, n, moments):
    """Moves (n, mean, m2) on by the n live scores among these, where those of dead units are 0.

    Squares are of distances from one of the scores: where all are nearly equal, their own squares would cancel.
    """
    if not n:
        return
    origin = np.float64(scores[0])
    total, squares = _sums(scores, origin)
    n_dead = len(scores) - n
    total += n_dead * origin
    squares -= n_dead * origin * origin
    mean = origin + total / n
    _merge_moments(n, mean, max(squares - total * (total / n), 0.0), moments)


@jit
def _merge_moments(n, mean, m2, moments):
    """Chan's update of (n, mean, m2) by those of other scores."""
    if not n:
        return
    delta = mean - moments[1]
    before = moments[0]
    moments[0] = before + n
    moments[1] += delta * n / moments[0]
    moments[2] += m2 + delta * delta * before * n / moments[0]


@jit
def search_windows(postings, lists, places, units, allowed, whole, scores, first_window, n_windows, moments, best):
    """Scores the units of some windows, one after the other.

    places: (t,) int64, where the search is in each list, at first its start; moves on. allowed: (rows,) bool; whole: every live row is
    scores: (window,) float32, zeros, and zeros again afterwards
    moments: (3,) float64 n, mean and m2 of all live units so far, zero scores included; best: `Best`; both move on
    """
    size = len(scores)
    for window in range(first_window, first_window + n_windows):
        first = window * size
        end = min(first + size, len(units.rows))
        added = _add_window(postings, lists, places, first, end, scores[: end - first])
        for start in range(first, end, BLOCK):
            stop = min(start + BLOCK, end)
            n_live = stop - start if units.all_live else _n_above(units.live[start:stop], 0)
            if not added:
                _merge_moments(n_live, 0.0, 0.0, moments)
                continue
            block = scores[start - first : stop - first]
            if n_live < len(block):
                for i in range(len(block)):
                    block[i] *= np.float32(units.live[start + i])
            _add_moments(block, n_live, moments)
            if not whole:
                for i in range(len(block)):
                    block[i] *= np.float32(allowed[np.uint64(units.rows[start + i])])  # a branch could not be guessed
            best.counts[1] += _n_above(block, np.float32(0))
            for at in range(0, len(block), GROUP):
                group = block[at : at + GROUP]
                if _n_above(group, best.floor[0]):  # seldom, once the floor has risen
                    _collect(group, start + at, units.rows, best)
        if added:
            scores[: end - first] = 0


@jit
def all_scores(postings, lists, n_units, size):
    """Scores of all units: (n_units,) float32. size: units to be done with before the next, so that they stay in the cache."""
    scores = np.zeros(n_units, np.float32)
    places = lists.starts.copy()
    for first in range(0, len(scores), size):
        end = min(first + size, len(scores))
        _add_window(postings, lists, places, first, end, scores[first:end])
    return scores


@jit
def unit_scores(postings, lists, first, end):
    """Scores of the units [first, end): (end - first,) float32."""
    scores = np.zeros(end - first, np.float32)
    places = lists.starts.copy()
    for t in range(len(places)):
        if lists.dense[t] < 0:
            places[t] = _lower_bound(postings.units, places[t], lists.stops[t], first)
    _add_window(postings, lists, places, first, end, scores)
    return scores


@jit
def row_scores(postings, lists, row_offsets, rows, scores, best_units):
    """The best unit of each row, as a search finds it; scores (m,) float32 and best_units (m,) int32 are filled in.

    A row without any query term keeps score 0.
    """
    for r in range(len(rows)):
        first = row_offsets[rows[r]]
        of_units = unit_scores(postings, lists, first, row_offsets[rows[r] + 1])
        best = np.float32(0)
        for i in range(len(of_units)):
            if of_units[i] > best:
                best = of_units[i]
                best_units[r] = first + i
        scores[r] = best


@jit
def dense_lists(units, values, offsets, terms, n_units):
    """The value of each of these terms in each unit: (d, n_units). terms: (d,) int64, numbers; offsets: of all terms."""
    dense = np.zeros((len(terms), n_units), values.dtype)
    for d in range(len(terms)):
        for place in range(offsets[terms[d]], offsets[terms[d] + 1]):
            dense[d, units[place]] = values[place]
    return dense


@jit
def lists_of(vocabulary, term_offsets, dense_terms, terms, weights):
    """Where the terms of a question lie, those that occur: the fields of `Lists`.

    vocabulary: (t,) ascending, terms: of the question, both uint64 hashes or both uint32 tokens
    dense_terms: (d,) int64, ascending numbers of dense terms
    """
    found = np.empty(len(terms), np.int64)
    kept = np.empty(len(terms), np.float32)
    n = 0
    for i in range(len(terms)):
        number = np.searchsorted(vocabulary, terms[i])
        if number < len(vocabulary) and vocabulary[number] == terms[i]:
            found[n], kept[n] = number, weights[i]
            n += 1
    starts, stops = np.empty(n, np.int64), np.empty(n, np.int64)
    dense = np.full(n, np.int32(-1))
    for i in range(n):
        starts[i], stops[i] = term_offsets[found[i]], term_offsets[found[i] + 1]
        row = np.searchsorted(dense_terms, found[i])
        if row < len(dense_terms) and dense_terms[row] == found[i]:
            dense[i] = row
    return kept[:n], starts, stops, dense
