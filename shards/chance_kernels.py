"""Counting trigrams, words and lines of texts, compiled. Imports numba: import this module inside functions."""

import numpy as np

from shards.compiled import jit

SLOT_BITS = 20
N_WORD_SLOTS = 1 << SLOT_BITS  # frequent words are some thousands: 1 word in 300 shares a slot with one of them
_NEWLINE = 10
_FNV_OFFSET = 2166136261
_FNV_PRIME = 16777619


@jit
def fold(byte):
    """ASCII upper case to lower; other bytes as they are."""
    return byte + 32 if 65 <= byte <= 90 else byte


@jit
def is_word(byte):
    """Letters, digits, underscore and every byte of a non-ASCII character; byte: folded."""
    return 97 <= byte <= 122 or 48 <= byte <= 57 or byte == 95 or byte >= 128


@jit
def _slot(state):
    """FNV-1a's 32 bits xor-folded to SLOT_BITS, as its authors advise."""
    return (state >> np.uint32(SLOT_BITS)) ^ (state & np.uint32(N_WORD_SLOTS - 1))


@jit
def slot_of(word):
    """The slot of a folded word. word: (n,) uint8."""
    state = np.uint32(_FNV_OFFSET)
    for byte in word:
        state = np.uint32((state ^ np.uint32(byte)) * np.uint32(_FNV_PRIME))
    return _slot(state)


@jit
def tally(text, starts, ends, trigrams, pairs, words, slots, lines):
    """Add each text's folded trigrams and words, as if line feeds stood before and after it; set its number of lines.

    text: (bytes,) uint8; starts, ends: (n,) int64
    trigrams: (2^24,) uint32 by a<<16|b<<8|c; pairs: (2^16,) bool, which a<<8|b occur (so that few of the 64 MB are touched)
    words: (N_WORD_SLOTS,) uint32; slots: (N_WORD_SLOTS >> 8,) bool, likewise; lines: (n,) int64
    """
    for i in range(len(starts)):
        start, end = starts[i], ends[i]
        if start == end:
            lines[i] = 0
            continue
        n_lines = 0
        pair = np.int64(_NEWLINE << 8 | _NEWLINE)  # so that each byte is the last of one trigram
        state = np.uint32(_FNV_OFFSET)
        inside = False
        for position in range(start, end + 1):
            raw = text[position] if position < end else np.uint8(_NEWLINE)
            byte = np.int64(fold(np.int64(raw)))
            trigrams[pair << 8 | byte] += np.uint32(1)
            pairs[pair] = True
            pair = (pair & 255) << 8 | byte
            if is_word(byte):
                inside = True
                state = np.uint32((state ^ np.uint32(byte)) * np.uint32(_FNV_PRIME))
            elif inside:
                slot = _slot(state)
                words[slot] += np.uint32(1)
                slots[slot >> 8] = True
                state = np.uint32(_FNV_OFFSET)
                inside = False
            if raw == _NEWLINE and (position < end or text[end - 1] != _NEWLINE):
                n_lines += 1
        lines[i] = n_lines


@jit
def compact(table, groups):
    """The places of a table that are not 0: (places uint32 ascending, their values uint32). groups: which 256 places have any."""
    n = 0
    for group in range(len(groups)):
        if groups[group]:
            for key in range(group << 8, (group + 1) << 8):
                n += table[key] > 0
    keys, counts = np.empty(n, np.uint32), np.empty(n, np.uint32)
    n = 0
    for group in range(len(groups)):
        if groups[group]:
            for key in range(group << 8, (group + 1) << 8):
                if table[key]:
                    keys[n] = key
                    counts[n] = table[key]
                    n += 1
    return keys, counts
