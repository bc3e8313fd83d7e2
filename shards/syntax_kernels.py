"""Names of code that look like another one, compiled. Imports numba: import this module inside functions."""

import numpy as np

from shards.chance_kernels import fold, is_word
from shards.compiled import jit

EXACT, OTHER_CASE, SAME_WORDS, PART = 4, 3, 2, 1  # how well a name matches; 0: not


@jit
def _is_upper(byte):
    return 65 <= byte <= 90


@jit
def _is_separator(byte):
    return byte == 95 or not is_word(fold(byte))


@jit
def begins_word(blob, start, end, at):
    """Whether a word of a name in camel or snake case begins, or the name ends, at a byte: before S in HTTPServer and http_Server."""
    if at in (start, end) or _is_separator(blob[at - 1]) or _is_separator(blob[at]):
        return True
    if not _is_upper(blob[at]):
        return False
    return not _is_upper(blob[at - 1]) or (at + 1 < end and 97 <= blob[at + 1] <= 122)


@jit
def name_tiers(blob, offsets, exact, words, tiers):
    """Set the tier of each name: EXACT, OTHER_CASE, SAME_WORDS (`callSoon` for `call_soon`), PART (`call_soon_threadsafe`), 0.

    blob: (bytes,) uint8; offsets: (n + 1,) unsigned; exact: (m,) uint8; words: (k,) uint8, folded and without separators, k = 0 asks for
    the first two tiers only; tiers: (n,) uint8
    """
    for i in range(len(tiers)):
        start, end = np.int64(offsets[i]), np.int64(offsets[i + 1])
        tiers[i] = 0
        if end - start == len(exact):
            same = folds = True
            for j in range(len(exact)):
                byte = blob[start + j]
                same &= byte == exact[j]
                if fold(byte) != fold(exact[j]):
                    folds = False
                    break
            if folds:
                tiers[i] = EXACT if same else OTHER_CASE
                continue
        if len(words) == 0 or end - start < len(words):
            continue
        leading = True
        for at in range(start, end):
            if _is_separator(blob[at]):
                continue
            if fold(blob[at]) == words[0] and begins_word(blob, start, end, at):
                position, matched = at, 0
                while position < end and matched < len(words):
                    if not _is_separator(blob[position]):
                        if fold(blob[position]) != words[matched]:
                            break
                        matched += 1
                    position += 1
                if matched == len(words) and begins_word(blob, start, end, position):
                    while position < end and _is_separator(blob[position]):
                        position += 1
                    tiers[i] = SAME_WORDS if leading and position == end else PART
                    break
            leading = False


@jit
def depths(backs, at, found):
    """Set how many definitions enclose each of some. backs: (u,) uint32, how far before each the enclosing one is, 0: none; at: (k,)."""
    for i in range(len(at)):
        unit, depth = np.int64(at[i]), 0
        while backs[unit] > 0:
            unit -= np.int64(backs[unit])
            depth += 1
        found[i] = depth
