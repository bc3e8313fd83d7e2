"""The compiled loops that add up what words near the asked ones say of passages. Imports numba: import it inside functions.

Words near the asked ones: `slots` (e,) int32, ascending, the asked word that each stands for; `scores` (e,) float64, falling within a
slot. A passage has of each slot the best score of its words, and their sum in order of slots: the same bits by either loop.
"""

from shards.compiled import jit


@jit
def add_window(units, places, stops, slots, scores, low, high, best, total):
    """total[u - low] += the sum of unit u, for units [low, high).

    units: postings; places, stops: (e,) int64, what is left of each word's; places move on behind the window. best: scratch, zeros,
    as long as total, (high - low,) float64
    """
    e = 0
    while e < len(slots):
        end = e
        while end < len(slots) and slots[end] == slots[e]:
            for i in range(places[end], stops[end]):
                unit = units[i]
                if unit >= high:
                    break
                if best[unit - low] == 0.0:  # the first is the best
                    best[unit - low] = scores[end]
            end += 1
        for j in range(e, end):
            i = places[j]
            while i < stops[j] and units[i] < high:
                total[units[i] - low] += best[units[i] - low]
                best[units[i] - low] = 0.0
                i += 1
            places[j] = i
        e = end


@jit
def words_of_units(units, starts, stops, slots, scores, wanted, total, words):
    """The sum of each wanted unit, and which word gives it each slot.

    units: postings, those of word e at starts[e] : stops[e]. wanted: (m,) int32; total: (m,) float64, zeros; words: (m, s) int32, -1
    """
    for k in range(len(wanted)):
        unit = wanted[k]
        for e in range(len(slots)):
            if words[k, slots[e]] >= 0:
                continue
            low, high = starts[e], stops[e]
            while low < high:
                middle = (low + high) // 2
                if units[middle] < unit:
                    low = middle + 1
                else:
                    high = middle
            if low < stops[e] and units[low] == unit:
                words[k, slots[e]] = e
                total[k] += scores[e]
