"""Text to token numbers: splits UTF-8 bytes into tokens and gives equal tokens equal numbers, in one compiled pass."""

import numpy as np

from shards.compiled import jit

WORD_BYTES = np.array([chr(b).isalnum() or b == ord("_") if b < 128 else True for b in range(256)], np.bool_)
WORD_BYTES.flags.writeable = False


@jit
def _slot(head, tail, group, bits):
    """Where in a table of 2**bits slots the search for a token begins."""
    h = (head ^ (tail * np.uint64(0xD6E8FEB86659FD93)) ^ np.uint64(group)) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(((h ^ (h >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)) >> (np.uint64(64) - np.uint64(bits)))


@jit
def _number_tokens(text, starts, ends, groups, word_bytes, tokens, offsets, slots, types, type_groups, progress):
    """Goes on numbering tokens until all are, or until the table is half full; whether all are.

    A kernel of its own because arrays that may be replaced by larger ones are slow to reach: it took twice the time.
    slots: (2**bits,) int32, number of the token found there, or -1
    types: (len(slots)/2, 4) int64: the two numbers that a token is known by (see `tokenise`), its place in the text, its length
    progress: (4,) int64 unit, place in the text, tokens and types so far; moves on
    """
    unit, place, n_tokens, n_types = progress
    bits = np.int64(np.log2(len(slots)))
    while unit < len(starts):
        end = ends[unit]
        group = groups[unit]
        while True:
            while place < end and not word_bytes[text[place]]:
                place += 1
            if place >= end:
                break
            first = place
            head = tail = np.uint64(0)
            stop = min(first + 8, end)
            while place < stop and word_bytes[text[place]]:
                head = (head << np.uint64(8)) | np.uint64(text[place])
                place += 1
            if place == first + 8:
                stop = min(first + 16, end)
                while place < stop and word_bytes[text[place]]:
                    tail = (tail << np.uint64(8)) | np.uint64(text[place])
                    place += 1
                if place == first + 16 and place < end and word_bytes[text[place]]:
                    while place < end and word_bytes[text[place]]:
                        tail = (tail ^ np.uint64(text[place])) * np.uint64(1099511628211)  # FNV-1a's
                        place += 1
                    tail = (tail >> np.uint64(8)) | np.uint64(1 << 56)  # its first byte is 1, which is in no token
            length = place - first

            slot = _slot(head, tail, group, bits)
            while True:
                number = slots[slot]
                if number < 0:
                    break
                if types[number, 0] == np.int64(head) and types[number, 1] == np.int64(tail) and type_groups[number] == group:
                    same = length <= 16 or types[number, 3] == length
                    if same and length > 16:
                        other = types[number, 2]
                        for j in range(8, length):
                            if text[other + j] != text[first + j]:
                                same = False
                                break
                    if same:
                        break
                slot = (slot + 1) & (len(slots) - 1)
            if number < 0:
                if n_types == len(types):
                    progress[:] = unit, first, n_tokens, n_types
                    return False
                number = np.int32(n_types)
                slots[slot] = number
                types[number, 0] = np.int64(head)
                types[number, 1] = np.int64(tail)
                types[number, 2] = first
                types[number, 3] = length
                type_groups[number] = group
                n_types += 1
            tokens[n_tokens] = number
            n_tokens += 1
        offsets[unit + 1] = n_tokens
        unit += 1
        if unit < len(starts):
            place = starts[unit]
    progress[:] = unit, place, n_tokens, n_types
    return True


@jit
def tokenise(text, starts, ends, groups, word_bytes):
    """The tokens of each unit, as numbers of distinct tokens; tokens of different groups are distinct.

    text: (bytes,) uint8; starts, ends: (n_units,) int64 places in it; groups: (n_units,) uint8; word_bytes: (256,) bool, False
        for the bytes 0 and 1
    Returns tokens (n_tokens,) int32 in reading order; offsets (n_units + 1,) int64 into them; and of each distinct token, in
    order of first occurrence, its place in the text: type_starts int64, type_sizes int64, type_groups uint8.

    A token is known by two numbers: its first 8 bytes, and the next 8 or, where there are more than 16 in all, a hash of all but
    the first 8. So the text need be looked at for long tokens only: looking each token up where it first occurred, far away in
    memory, took two thirds of the time.
    """
    size = np.int64(0)
    for i in range(len(starts)):
        size += ends[i] - starts[i]
    tokens = np.empty((size + len(starts)) // 2 + 1, np.int32)  # at most; the system gives memory only for what is written
    offsets = np.zeros(len(starts) + 1, np.int64)
    slots = np.full(1 << 17, np.int32(-1), np.int32)
    types = np.empty((1 << 16, 4), np.int64)
    type_groups = np.empty(1 << 16, np.uint8)
    progress = np.zeros(4, np.int64)
    if len(starts):
        progress[1] = starts[0]
    while not _number_tokens(text, starts, ends, groups, word_bytes, tokens, offsets, slots, types, type_groups, progress):
        n_types = len(types)
        larger, larger_groups = np.empty((2 * n_types, 4), np.int64), np.empty(2 * n_types, np.uint8)
        larger[:n_types], larger_groups[:n_types] = types, type_groups
        types, type_groups = larger, larger_groups
        slots = np.full(4 * n_types, np.int32(-1), np.int32)
        bits = np.int64(np.log2(len(slots)))
        for t in range(n_types):
            slot = _slot(np.uint64(types[t, 0]), np.uint64(types[t, 1]), type_groups[t], bits)
            while slots[slot] >= 0:
                slot = (slot + 1) & (len(slots) - 1)
            slots[slot] = t
    n_tokens, n_types = progress[2:]
    types = types[:n_types]
    return tokens[:n_tokens], offsets, types[:, 2].copy(), types[:, 3].copy(), type_groups[:n_types].copy()
