"""Matching a text against many paths, compiled. Imports numba: import this module inside functions.

Fuzzy scores are those of fzf's FuzzyMatchV2 (junegunn/fzf, src/algo/algo.go): a matched character earns MATCH, one at the start
of a segment, word or camel hump a bonus, a run keeps the bonus of its first character, a gap costs. Beside that each character in
the last segment earns BONUS_LAST, for people think of files by their names (VS Code: scoreItemFuzzy, src/vs/base/common/fuzzyScorer.ts).
"""

import numpy as np

from shards.compiled import jit

FUZZY, SUBSTRING, SUFFIX, STEM, BASENAME, PATH = 1, 2, 3, 4, 5, 6  # tiers: how a path matches; shards/layers/names.py

MATCH = 16
GAP_START, GAP_EXTENSION = -3, -1
BONUS_SEGMENT, BONUS_WORD, BONUS_HUMP, BONUS_RUN, BONUS_LAST = 9, 8, 7, 4, 3
FIRST_FACTOR = 2  # the first character's bonus counts twice: people type beginnings
PATHS_LENGTH = 1 / 1024  # of a fuzzy quality: less than a point of score is worth, so that only ties go by the length of the path

_SLASH, _DOT = 47, 46


@jit
def _fold(byte):
    return byte + 32 if 65 <= byte <= 90 else byte


@jit
def _is_word(byte):
    return 97 <= byte <= 122 or 65 <= byte <= 90 or 48 <= byte <= 57 or byte >= 128


@jit
def byte_masks(blob, offsets, masks):
    """Which folded bytes (modulo 64) each path holds, as bits; blob, offsets: packed paths; masks: (n,) uint64."""
    for i in range(len(masks)):
        bits = np.uint64(0)
        for position in range(offsets[i], offsets[i + 1]):
            bits |= np.uint64(1) << np.uint64(_fold(blob[position]) & 63)
        masks[i] = bits


@jit
def _same_at(path, at, text):
    for i in range(len(text)):  # noqa: SIM110 (numba has no all())
        if path[at + i] != text[i]:
            return False
    return True


def best_score(n_letters: int) -> int:
    """The most that `fuzzy_score` gives a word of so many letters."""
    return n_letters * (MATCH + BONUS_SEGMENT + BONUS_LAST) + BONUS_SEGMENT * (FIRST_FACTOR - 1)


@jit
def base_of(path):
    """Where the last segment begins."""
    base = len(path)
    while base > 0 and path[base - 1] != _SLASH:
        base -= 1
    return base


@jit
def literal_tier(path, text):
    """The best tier of a text in a path, both folded alike; 0 if it is not even a substring."""
    n, m = len(path), len(text)
    if m > n or m == 0:
        return 0
    if _same_at(path, n - m, text):
        if m == n:
            return PATH
        if path[n - m - 1] == _SLASH:
            for byte in text:
                if byte == _SLASH:
                    return SUFFIX
            return BASENAME
    base = base_of(path)
    dot = n - 1
    while dot > base and path[dot] != _DOT:
        dot -= 1
    if dot - base == m and _same_at(path, base, text):
        return STEM
    for at in range(n - m + 1):
        if path[at] == text[0] and _same_at(path, at, text):
            return SUBSTRING
    return 0


@jit
def substring_place(path, text, bonus):
    """The best place of a substring in (0, 1, 2, 3): 2 in the last segment, and 1 where a segment, word or hump begins."""
    base, best = base_of(path), 0
    for at in range(len(path) - len(text) + 1):
        place = 2 * (at >= base) + (bonus[at] >= BONUS_HUMP)
        if place > best and _same_at(path, at, text):
            best = place
    return best


@jit
def bonuses(raw, bonus):
    """What a match at each byte of a path as written earns beyond MATCH."""
    before = np.uint8(_SLASH)
    for j in range(len(raw)):
        byte = raw[j]
        if before == _SLASH:
            bonus[j] = BONUS_SEGMENT
        elif _is_word(byte) and not _is_word(before):
            bonus[j] = BONUS_WORD
        elif (65 <= byte <= 90 and 97 <= before <= 122) or (48 <= byte <= 57 and not 48 <= before <= 57):
            bonus[j] = BONUS_HUMP
        elif not _is_word(byte):
            bonus[j] = BONUS_WORD
        else:
            bonus[j] = 0
        before = byte


@jit
def fuzzy_score(path, bonus, word, first, scores, runs, above_scores, above_runs):
    """FuzzyMatchV2's score of a word in a path, both folded alike; -1 if it is no subsequence. The rest: int32 scratch."""
    n, m = len(path), len(word)
    base = base_of(path)
    i = 0
    last = -1
    for j in range(n):
        if i < m and path[j] == word[i]:
            first[i] = j
            i += 1
        if path[j] == word[m - 1]:
            last = j
    if i < m:
        return -1
    best = 0
    for i in range(m):
        in_gap = False
        left = 0
        for j in range(first[i], last + 1):
            gap = left + (GAP_EXTENSION if in_gap else GAP_START)
            score, run = 0, 0
            if path[j] == word[i]:
                here = MATCH + (BONUS_LAST if j >= base else 0)
                if i == 0:
                    score, run = here + bonus[j] * FIRST_FACTOR, 1
                else:
                    known = j - 1 >= first[i - 1]
                    score = (above_scores[j - 1] if known else 0) + here
                    run = (above_runs[j - 1] if known else 0) + 1
                    earned = bonus[j]
                    if run > 1:
                        head = bonus[j - run + 1]
                        if earned >= BONUS_WORD and earned > head:
                            run = 1
                        else:
                            earned = max(earned, BONUS_RUN, head)
                    if score + earned < gap:
                        score += bonus[j]
                        run = 0
                    else:
                        score += earned
            in_gap = score < gap
            left = max(score, gap, 0)
            scores[j], runs[j] = left, run
            if i == m - 1 and left > best:
                best = left
        scores, above_scores = above_scores, scores
        runs, above_runs = above_runs, runs
    return best


@jit
def match_paths(blob, offsets, masks, rows, text, words, word_offsets, fold, lowest, out):
    """Tier + quality of each path, -inf where it matches below tier `lowest`; see shards/layers/names.py.

    blob, offsets, masks: all paths; rows: (m,) int64 of them; text: (t,) uint8, words, word_offsets: its words packed, folded if
    `fold`; out: (m,) float64.
    """
    longest = 1
    for row in rows:
        longest = max(longest, offsets[row + 1] - offsets[row])
    size = max(longest, len(words)) + 1
    path = np.empty(size, np.uint8)
    bonus, first = np.empty(size, np.int32), np.empty(size, np.int32)
    scores, runs = np.empty(size, np.int32), np.empty(size, np.int32)
    above_scores, above_runs = np.empty(size, np.int32), np.empty(size, np.int32)
    needed = np.uint64(0)
    for byte in words:
        needed |= np.uint64(1) << np.uint64(_fold(byte) & 63)
    n_words = len(word_offsets) - 1
    for k in range(len(rows)):
        row = rows[k]
        out[k] = -np.inf
        if masks[row] & needed != needed:
            continue
        raw = blob[offsets[row] : offsets[row + 1]]
        n = len(raw)
        for j in range(n):
            path[j] = _fold(raw[j]) if fold else raw[j]
        tier = literal_tier(path[:n], text)
        if lowest > max(tier, FUZZY):
            continue
        if tier > SUBSTRING:
            out[k] = tier + len(text) / (n + 1)
            continue
        bonuses(raw, bonus)
        if tier == SUBSTRING:
            out[k] = tier + (substring_place(path[:n], text, bonus) + len(text) / (n + 1)) / 4
            continue
        total = 0.0
        for w in range(n_words):
            word = words[word_offsets[w] : word_offsets[w + 1]]
            score = fuzzy_score(path[:n], bonus, word, first, scores, runs, above_scores, above_runs)
            if score < 0:
                total = -1.0
                break
            m = len(word)
            most = m * (MATCH + BONUS_SEGMENT + BONUS_LAST) + BONUS_SEGMENT * (FIRST_FACTOR - 1)
            total += max(score, 1) / (most + 1)
        if total > 0:
            out[k] = FUZZY + (1 - PATHS_LENGTH) * total / n_words + PATHS_LENGTH * len(text) / (n + 1 + len(text))


@jit
def are_hidden(blob, offsets, rows, out):
    """Whether any segment of these paths begins with a dot. rows: (m,) int64; out: (m,) bool."""
    for k in range(len(rows)):
        before = np.uint8(_SLASH)
        for position in range(offsets[rows[k]], offsets[rows[k] + 1]):
            if blob[position] == _DOT and before == _SLASH:
                out[k] = True
                break
            before = blob[position]


@jit
def count_last_bytes(blob, starts, ends):
    """How many bytes the last segments of these paths have together. starts, ends: (m,) int64."""
    total = np.int64(0)
    for k in range(len(starts)):
        total += ends[k] - starts[k] - base_of(blob[starts[k] : ends[k]])
    return total


@jit
def waiting_times(chances, total):
    """total[n] *= the chance that n random bytes hold letters of these chances one after another. chances: (m,), total: float64."""
    m = len(chances)
    reached = np.zeros(m + 1)  # [i]: the chance that exactly the first i letters were met so far
    reached[0] = 1.0
    for n in range(len(total)):
        total[n] *= reached[m]
        for i in range(m - 1, -1, -1):
            moved = reached[i] * chances[i]
            reached[i] -= moved
            reached[i + 1] += moved
