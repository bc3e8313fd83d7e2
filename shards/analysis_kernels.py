"""The rules of `shards.analysis` for ASCII tokens, compiled: 99 of 100 distinct tokens of code and English are of that kind."""

import numpy as np

from shards.compiled import jit

OTHER, LOWER, UPPER, DIGIT = 0, 1, 2, 3
CHAR_KINDS = np.zeros(128, np.uint8)
for _kind, _chars in ((LOWER, b"abcdefghijklmnopqrstuvwxyz"), (UPPER, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"), (DIGIT, b"0123456789")):
    CHAR_KINDS[list(_chars)] = _kind
CHAR_KINDS.flags.writeable = False


@jit
def split_words(text, starts, sizes, char_kinds, max_chars, max_parts):
    """Each token, case-folded, and its parts, as `shards.analysis._add_word` gives them; tokens with other bytes are left out.

    text: (bytes,) uint8; starts, sizes: (n,) int64, tokens of ASCII letters, digits, underscores, and any bytes above ASCII
    Returns folded (b,) uint8, the words one after the other; piece_starts, piece_ends (p,) int64, places in it; and of each token
    n_pieces (n,) int32: how many are its, the word first; 0 for one that is no word, -1 for one with bytes above ASCII.
    """
    n_bytes = n_found = np.int64(0)
    for size in sizes:
        if size <= max_chars:
            n_bytes += size
            n_found += 1 + min(size, max_parts)
    folded = np.empty(n_bytes, np.uint8)
    piece_starts, piece_ends = np.empty(n_found, np.int64), np.empty(n_found, np.int64)
    n_pieces = np.zeros(len(starts), np.int32)
    at = n_found = np.int64(0)
    for token in range(len(starts)):
        size = sizes[token]
        word = text[starts[token] : starts[token] + size]
        for char in word:
            if char >= 128:
                n_pieces[token] = -1
                break
        if size > max_chars or n_pieces[token] < 0:
            continue
        for i in range(size):
            folded[at + i] = word[i] | 32 if char_kinds[word[i]] == UPPER else word[i]
        n_parts = 0
        start = end = 0
        while end < size:
            start = end
            kind = char_kinds[word[start]]
            while end < size and char_kinds[word[end]] == kind:
                end += 1
            if kind == OTHER:
                continue
            if kind == UPPER and end < size and char_kinds[word[end]] == LOWER:
                if end - start > 1:  # the last of several capitals begins the next part
                    end -= 1
                else:
                    while end < size and char_kinds[word[end]] == LOWER:
                        end += 1
            if n_parts < max_parts:
                piece_starts[n_found + 1 + n_parts], piece_ends[n_found + 1 + n_parts] = at + start, at + end
            n_parts += 1
        if n_parts:
            piece_starts[n_found], piece_ends[n_found] = at, at + size
            alone = n_parts > max_parts or (n_parts == 1 and piece_ends[n_found + 1] - piece_starts[n_found + 1] == size)
            n_pieces[token] = 1 if alone else 1 + n_parts
            n_found += n_pieces[token]
            at += size
    return folded[:at], piece_starts[:n_found].copy(), piece_ends[:n_found].copy(), n_pieces
