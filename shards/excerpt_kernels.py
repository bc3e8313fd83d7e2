"""The compiled loop that finds the best part of a long text to show."""

import numpy as np

from shards.compiled import jit


@jit
def densest_window(text, words, offsets, window, max_marks):
    """Where a window of that many bytes begins that shows the most distinct words, the first of equals; 0 when none occurs.

    Occurrences are found from left to right, without overlap, ASCII letters of the text taken as small.
    text: (n,) uint8; words, offsets: the words one after the other, longest first so that none hides a longer one.
    max_marks: how many occurrences are looked at.
    """
    n_words = len(offsets) - 1
    begins = np.zeros(256, np.bool_)
    for w in range(n_words):
        begins[words[offsets[w]]] = True
    places, which = np.empty(max_marks, np.int64), np.empty(max_marks, np.int64)
    counts = np.zeros(n_words, np.int64)
    n_marks = left = distinct = best = best_at = at = 0
    while at < len(text) and n_marks < max_marks:
        byte = text[at]
        if 65 <= byte <= 90:
            byte += np.uint8(32)
        found = -1
        if begins[byte]:
            for w in range(n_words):
                size = offsets[w + 1] - offsets[w]
                if at + size > len(text):
                    continue
                same = True
                for i in range(size):
                    byte = text[at + i]
                    if 65 <= byte <= 90:
                        byte += np.uint8(32)
                    if byte != words[offsets[w] + i]:
                        same = False
                        break
                if same:
                    found = w
                    break
        if found < 0:
            at += 1
            continue
        places[n_marks], which[n_marks] = at, found
        n_marks += 1
        distinct += counts[found] == 0
        counts[found] += 1
        while at - places[left] > window:
            counts[which[left]] -= 1
            distinct -= counts[which[left]] == 0
            left += 1
        if distinct > best:
            best, best_at = distinct, places[left]
            if best == n_words:  # no window shows more
                break
        at += offsets[found + 1] - offsets[found]
    return best_at
