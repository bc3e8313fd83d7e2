"""The compiled loop behind `shards.path_chance`: how many ways of meeting a word a random path is expected to hold, by score.

Imports numba: import this module inside functions.
"""

import numpy as np

from shards.compiled import jit
from shards.path_kernels import (
    BONUS_HUMP,
    BONUS_LAST,
    BONUS_RUN,
    BONUS_SEGMENT,
    BONUS_WORD,
    FIRST_FACTOR,
    GAP_START,
    MATCH,
)

BONUSES = np.array([0, BONUS_HUMP, BONUS_WORD, BONUS_SEGMENT])  # by class of the place where a run begins
_SLASH = 47


@jit
def expected_ways(word, joint, following, begins, n_folder, n_last, slash_is_last, bonuses, ways):
    """ways[s] += the expected number of alignments of a word with a random path that `fuzzy_score` gives s.

    word: (m,) uint8, folded. joint: (m, 4) float64, the chance that a byte is letter i and stands where a run of that class begins.
    following: (m,) float64, the chance that letter i follows the letter before it; begins: (m,) bool, whether a word then begins with
    it. n_folder, n_last: mean bytes of a path before its
    last segment and in it. slash_is_last: the chance that a slash is the last one. ways: (S,) float64, S above the highest score.
    """
    n_scores = len(ways)
    met = np.zeros((2, 4, n_scores))  # [in the last segment, class of the run's first letter, score]
    for f in range(2):
        for b in range(4):
            met[f, b, MATCH + bonuses[b] * FIRST_FACTOR + f * BONUS_LAST] += (n_last if f else n_folder) * joint[0, b]
    leave = 1.0 / max(n_folder, 1.0)  # a step in a folder's name leads to the last segment
    stay = 1.0 - 1.0 / max(n_last, 2.0)
    gap = np.zeros((2, n_scores + 1))
    for i in range(1, len(word)):
        gap[:] = 0.0
        for s in range(n_scores - 1, -1, -1):
            here = s - GAP_START
            for f in range(2):
                if here < n_scores:
                    for b in range(4):
                        gap[f, s] += met[f, b, here]
            folder = gap[0, s] + gap[0, s + 1]
            gap[0, s] = folder * (1.0 - leave)
            gap[1, s] += folder * leave + gap[1, s + 1] * stay
        for f in range(2):  # scores do not fall below 0, however long the gap
            short = 0.0
            for s in range(min(-GAP_START, n_scores)):
                for b in range(4):
                    short += met[f, b, s]
            gap[f, 0] = (gap[f, 0] + short) * (n_last if f else n_folder + n_last)
        after = np.zeros((2, 4, n_scores))
        new_segment = word[i - 1] == _SLASH
        for f in range(2):
            for b in range(4):
                head = 3 if new_segment else max(b, 2) if begins[i] else b
                earned = MATCH + max(BONUS_RUN, bonuses[head])
                for s in range(n_scores):
                    chance = met[f, b, s] * following[i]
                    if chance == 0.0:
                        continue
                    if new_segment and f == 0:
                        after[1, head, min(s + earned + BONUS_LAST, n_scores - 1)] += chance * slash_is_last
                        chance *= 1.0 - slash_is_last
                    after[f, head, min(s + earned + f * BONUS_LAST, n_scores - 1)] += chance
                earned = MATCH + bonuses[b] + f * BONUS_LAST
                for s in range(n_scores):
                    after[f, b, min(s + earned, n_scores - 1)] += gap[f, s] * joint[i, b]
        met = after
    for f in range(2):
        for b in range(4):
            for s in range(n_scores):
                ways[s] += met[f, b, s]
