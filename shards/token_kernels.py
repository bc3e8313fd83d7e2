"""Text to token numbers: splits UTF-8 bytes into tokens and gives equal tokens equal numbers, in one compiled pass."""

import numpy as np

from shards.compiled import jit

WORD_BYTES = np.array([chr(b).isalnum() or b == ord("_") if b < 128 else True for b in range(256)], np.bool_)
WORD_BYTES.flags.writeable = False


@jit
def _grown(array, size):
    larger = np.empty(size, array.dtype)
    larger[: len(array)] = array
    return larger


@jit
def tokenise(text, starts, ends, groups, word_bytes):
    """The tokens of each unit, as numbers of distinct tokens; tokens of different groups are distinct.

    text: (bytes,) uint8; starts, ends: (n_units,) int64 places in it; groups: (n_units,) uint8; word_bytes: (256,) bool
    Returns tokens (n_tokens,) int32 in reading order; offsets (n_units + 1,) int64 into them; and of each distinct token, in
    order of first occurrence, its place in the text: type_starts int64, type_sizes int64, type_groups uint8.
    """
    n_units = len(starts)
    size = np.int64(0)
    for i in range(n_units):
        size += ends[i] - starts[i]
    tokens = np.empty(size // 5 + 16, np.int32)
    n_tokens = np.int64(0)
    offsets = np.zeros(n_units + 1, np.int64)

    capacity = 1 << 16  # a power of two, at most half full
    slots = np.full(capacity, np.int32(-1), np.int32)
    n_types = np.int64(0)
    type_hashes = np.empty(capacity, np.uint64)
    type_starts = np.empty(capacity, np.int64)
    type_sizes = np.empty(capacity, np.int64)
    type_groups = np.empty(capacity, np.uint8)

    for unit in range(n_units):
        place = starts[unit]
        end = ends[unit]
        group = groups[unit]
        while place < end:
            while place < end and not word_bytes[text[place]]:
                place += 1
            if place >= end:
                break
            first = place
            h = np.uint64(14695981039346656037) ^ np.uint64(group)  # FNV-1a
            while place < end and word_bytes[text[place]]:
                h = (h ^ np.uint64(text[place])) * np.uint64(1099511628211)
                place += 1
            length = place - first

            slot = np.int64((h ^ (h >> np.uint64(32))) & np.uint64(capacity - 1))
            while True:
                number = slots[slot]
                if number < 0:
                    break
                if type_hashes[number] == h and type_sizes[number] == length and type_groups[number] == group:
                    other = type_starts[number]
                    same = True
                    for j in range(length):
                        if text[other + j] != text[first + j]:
                            same = False
                            break
                    if same:
                        break
                slot = (slot + 1) & (capacity - 1)
            if number < 0:
                number = np.int32(n_types)
                slots[slot] = number
                type_hashes[n_types] = h
                type_starts[n_types] = first
                type_sizes[n_types] = length
                type_groups[n_types] = group
                n_types += 1
                if 2 * n_types > capacity:
                    capacity *= 2
                    type_hashes = _grown(type_hashes, capacity)
                    type_starts = _grown(type_starts, capacity)
                    type_sizes = _grown(type_sizes, capacity)
                    type_groups = _grown(type_groups, capacity)
                    slots = np.full(capacity, np.int32(-1), np.int32)
                    for t in range(n_types):
                        known = type_hashes[t]
                        free = np.int64((known ^ (known >> np.uint64(32))) & np.uint64(capacity - 1))
                        while slots[free] >= 0:
                            free = (free + 1) & (capacity - 1)
                        slots[free] = t
            if n_tokens == len(tokens):
                tokens = _grown(tokens, 2 * len(tokens))
            tokens[n_tokens] = number
            n_tokens += 1
        offsets[unit + 1] = n_tokens
    return (
        tokens[:n_tokens], offsets, type_starts[:n_types].copy(), type_sizes[:n_types].copy(), type_groups[:n_types].copy()
    )  # fmt: skip
