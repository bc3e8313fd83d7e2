"""Words of UTF-8 text as hashes, and counts of hashes, in compiled passes of a few nanoseconds a byte."""

import numpy as np

from shards.compiled import jit

# What a byte begins: 0 nothing, 1 a letter, 2 a digit, 3 a joiner inside words (' and -), 4 more bytes of a character beyond ASCII.
BYTE_KINDS = np.array(
    [4 if b >= 128 else 2 if chr(b).isdigit() else 1 if chr(b).isalpha() else 3 if chr(b) in "'-" else 0 for b in range(256)], np.uint8
)


@jit
def _alone(text, place, end):
    """Bytes of a character of a script written without spaces (kana, Han, Thai), which is a word of its own; else 0."""
    lead = text[place]
    if 0xE3 <= lead <= 0xE9 and place + 2 < end:
        return 0 if lead == 0xE3 and text[place + 1] == 0x80 else 3  # U+3000 to U+303F are punctuation
    if lead == 0xE0 and place + 2 < end and 0xB8 <= text[place + 1] <= 0xB9:
        return 3
    return 0


@jit
def _is_mark(text, place, end):
    """Whether punctuation beyond ASCII begins here: U+0080 to U+00BF, U+2000 to U+207F, U+3000 to U+303F."""
    lead = text[place]
    if lead == 0xC2:
        return True
    return place + 1 < end and ((lead == 0xE2 and text[place + 1] <= 0x81) or (lead == 0xE3 and text[place + 1] == 0x80))


@jit
def hash_words(text, starts, ends, kinds):
    """The words of each document as hashes, one document after the other, each followed by a separator (0).

    text: (bytes,) uint8; starts, ends: (n,) int64; kinds: (256,) uint8, `BYTE_KINDS`. ASCII letters are folded. A word is a run of
    letters and digits, also joined by an apostrophe or hyphen; a character of a script without spaces is one too.
    Returns (m,) uint32 and, for each, (m,) bool, whether it is of letters alone.
    """
    size = np.int64(0)
    for i in range(len(starts)):
        size += (ends[i] - starts[i]) // 2 + 2
    words = np.empty(size, np.uint32)
    plain = np.empty(size, np.bool_)
    n = 0
    for i in range(len(starts)):
        place, end = starts[i], ends[i]
        while place < end:
            kind = kinds[text[place]]
            if kind == 0 or kind == 3:
                place += 1
                continue
            if kind == 4 and _is_mark(text, place, end):
                place += 2 if text[place] == 0xC2 else 3
                continue
            h = np.uint64(14695981039346656037)  # FNV-1a
            letters = True
            width = _alone(text, place, end) if kind == 4 else 0
            if width:
                for j in range(width):
                    h = (h ^ np.uint64(text[place + j])) * np.uint64(1099511628211)
                place += width
            else:
                while place < end:
                    byte = text[place]
                    kind = kinds[byte]
                    if kind == 0:
                        break
                    if kind == 4:
                        quote = byte == 0xE2 and place + 3 < end and text[place + 1] == 0x80 and text[place + 2] == 0x99  # ’
                        if quote and kinds[text[place + 3]] in (1, 2):
                            h = (h ^ np.uint64(39)) * np.uint64(1099511628211)
                            letters = False
                            place += 3
                            continue
                        if _is_mark(text, place, end) or _alone(text, place, end):
                            break
                    if kind == 3:
                        if place + 1 >= end or not 1 <= kinds[text[place + 1]] <= 2:
                            break
                        letters = False
                    elif kind == 2:
                        letters = False
                    elif kind == 1:
                        byte |= 0x20
                    h = (h ^ np.uint64(byte)) * np.uint64(1099511628211)
                    place += 1
            h ^= h >> np.uint64(32)
            words[n] = max(np.uint32(h & np.uint64(0xFFFFFFFF)), np.uint32(1))
            plain[n] = letters
            n += 1
        words[n] = 0
        plain[n] = False
        n += 1
    return words[:n].copy(), plain[:n].copy()


@jit
def join_hashes(first, second):
    """The hash of an ordered pair of words, never 0."""
    h = (np.uint64(first) << np.uint64(32)) | np.uint64(second)
    h = (h ^ (h >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(29)
    return max(np.uint32(h & np.uint64(0xFFFFFFFF)), np.uint32(1))


@jit
def pair_hashes(words):
    """The hash of each word and the next. words: (m,) uint32 of one text without its separator. Returns (m - 1,) uint32."""
    pairs = np.empty(max(len(words) - 1, 0), np.uint32)
    for i in range(len(pairs)):
        pairs[i] = join_hashes(words[i], words[i + 1])
    return pairs


@jit
def number_words(words):
    """Distinct words numbered by first occurrence. words: (m,) uint32, `hash_words`.

    Returns numbers (m,) int32, -1 for separators; and of each distinct word its hash, (k,) uint32, and its count, (k,) int64.
    """
    capacity = 1 << 14  # a power of two, at most half full
    slots = np.full(capacity, np.int32(-1), np.int32)
    keys, counts = np.empty(capacity, np.uint32), np.empty(capacity, np.int64)
    numbers = np.full(len(words), np.int32(-1), np.int32)
    n = 0
    for i in range(len(words)):
        key = words[i]
        if key == 0:
            continue
        slot = np.int64(key) & (capacity - 1)
        while slots[slot] >= 0 and keys[slots[slot]] != key:
            slot = (slot + 1) & (capacity - 1)
        number = slots[slot]
        if number >= 0:
            counts[number] += 1
        else:
            number = np.int32(n)
            slots[slot] = number
            keys[n], counts[n] = key, 1
            n += 1
            if 2 * n > capacity:
                capacity *= 4
                new_keys, new_counts = np.empty(capacity, np.uint32), np.empty(capacity, np.int64)
                new_keys[:n], new_counts[:n] = keys[:n], counts[:n]
                keys, counts = new_keys, new_counts
                slots = np.full(capacity, np.int32(-1), np.int32)
                for j in range(n):
                    slot = np.int64(keys[j]) & (capacity - 1)
                    while slots[slot] >= 0:
                        slot = (slot + 1) & (capacity - 1)
                    slots[slot] = j
        numbers[i] = number
    return numbers, keys[:n].copy(), counts[:n].copy()


@jit
def count_pairs(words, numbers, n_words):
    """Distinct pairs of neighbouring words. numbers, n_words: of `number_words`.

    Returns their hashes (k,) uint32 and counts (k,) int64, in no order, and for each word the distinct words that follow it, int64.
    """
    capacity = 1 << 14
    table = np.zeros(capacity, np.uint64)  # hash and count in one: one cache line is touched per pair
    followers = np.zeros(n_words, np.int64)
    n = 0
    for i in range(len(words) - 1):
        if words[i] == 0 or words[i + 1] == 0:
            continue
        key = np.uint64(join_hashes(words[i], words[i + 1]))
        slot = np.int64(key) & (capacity - 1)
        while table[slot] and table[slot] >> np.uint64(32) != key:
            slot = (slot + 1) & (capacity - 1)
        if table[slot]:
            table[slot] += np.uint64(1)
            continue
        table[slot] = (key << np.uint64(32)) | np.uint64(1)
        followers[numbers[i]] += 1
        n += 1
        if 2 * n > capacity:
            capacity *= 4
            old = table
            table = np.zeros(capacity, np.uint64)
            for entry in old:
                if entry:
                    slot = np.int64(entry >> np.uint64(32)) & (capacity - 1)
                    while table[slot]:
                        slot = (slot + 1) & (capacity - 1)
                    table[slot] = entry
    found = table[table > np.uint64(0)]
    return (found >> np.uint64(32)).astype(np.uint32), (found & np.uint64(0xFFFFFFFF)).astype(np.int64), followers
