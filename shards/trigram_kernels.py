"""The compiled loops that make the trigram index: cutting documents into blocks, which trigrams a block holds, and the reverse.

A trigram is three folded bytes a<<16|b<<8|c, none of them a line feed.
"""

import numpy as np

from shards.block_list_kernels import longer
from shards.chance_kernels import fold
from shards.compiled import jit

_NEWLINE = 10
_TABLE_BITS = 13  # of the table of a block's trigrams: 32 KB, one core's first cache
_LARGEST_IN_TABLE = 6144  # bytes of a block, so that a quarter of the table stays free
_ONE = np.uint64(1)


@jit
def cut_blocks(text, starts, ends, block_bytes):
    """Documents cut behind line feeds into blocks of about `block_bytes`: (m,) int64 document, begin and end in `text` of each.

    A block ends behind the last line feed that leaves it no larger, or, of a longer line, behind the next one; a rest of a quarter
    more stays whole. The cuts depend on the document's bytes alone. Empty documents have no block.
    """
    n, rows = 0, np.empty(1024, np.int64)
    begins, stops = np.empty(1024, np.int64), np.empty(1024, np.int64)
    for row in range(len(starts)):
        at, end = starts[row], ends[row]
        while at < end:
            stop = end
            if end - at > block_bytes + block_bytes // 4:
                stop = at + block_bytes
                while stop > at and text[stop - 1] != _NEWLINE:
                    stop -= 1
                if stop == at:
                    stop = at + block_bytes
                    while stop < end and text[stop - 1] != _NEWLINE:
                        stop += 1
            if n == len(rows):
                rows, begins, stops = longer(rows, 2 * n), longer(begins, 2 * n), longer(stops, 2 * n)
            rows[n], begins[n], stops[n] = row, at, stop
            n += 1
            at = stop
    return rows[:n].copy(), begins[:n].copy(), stops[:n].copy()


@jit
def collect(text, begins, ends, keys, counts, prefixes):
    """Every block's trigrams, each once, in `keys`; returns where each block's begin, (m + 1,) int64.

    text: (bytes,) uint8; begins, ends: (m,) int64; keys: (at least as many as trigrams,) uint32
    counts: (2^24,) uint32, to which each block adds one for each of its trigrams; prefixes: (2^16,) bool, which first two bytes occur
    """
    offsets = np.zeros(len(begins) + 1, np.int64)
    table = np.zeros(1 << _TABLE_BITS, np.uint32)  # trigram, and in the upper byte the stamp of the block that it is of
    seen = np.zeros(1 if _longest(begins, ends) <= _LARGEST_IN_TABLE else 1 << 18, np.uint64)
    stamp = 0
    n = 0
    for block in range(len(begins)):
        first = n
        key, fresh = np.int64(0), 0
        stamp += 1
        if stamp == 256:
            table[:] = 0
            stamp = 1
        mark = np.int64(stamp << 24)
        in_table = ends[block] - begins[block] <= _LARGEST_IN_TABLE
        for at in range(begins[block], ends[block]):
            byte = fold(np.int64(text[at]))
            if byte == _NEWLINE:
                fresh = 0
                continue
            key = (key << 8 | byte) & 0xFFFFFF
            fresh += 1
            if fresh < 3:
                continue
            if in_table:
                wanted = mark | key
                slot = ((key * 2654435761) & 0xFFFFFFFF) >> (32 - _TABLE_BITS)  # Knuth's multiplicative hashing
                while np.int64(table[slot]) != wanted:
                    if np.int64(table[slot]) & 0xFF000000 != mark:
                        table[slot] = wanted
                        keys[n] = key
                        n += 1
                        break
                    slot = (slot + 1) & ((1 << _TABLE_BITS) - 1)
            else:
                bit = _ONE << np.uint64(key & 63)
                if not seen[key >> 6] & bit:
                    seen[key >> 6] |= bit
                    keys[n] = key
                    n += 1
        for i in range(first, n):
            counts[keys[i]] += np.uint32(1)
            prefixes[keys[i] >> np.uint32(8)] = True
            if not in_table:
                seen[keys[i] >> np.uint32(6)] = np.uint64(0)
        offsets[block + 1] = n
    return offsets


@jit
def _longest(begins, ends):
    longest = 0
    for i in range(len(begins)):
        longest = max(longest, ends[i] - begins[i])
    return longest


@jit
def invert(keys, block_offsets, counts, prefixes):
    """What `collect` gave, by trigram: trigrams ascending (t,) uint32, (t + 1,) int64 offsets into blocks (p,) int32, ascending in each.

    counts is used up.
    """
    n = 0
    for prefix in range(len(prefixes)):
        if prefixes[prefix]:
            for key in range(prefix << 8, (prefix + 1) << 8):
                n += counts[key] > 0
    found = np.empty(n, np.uint32)
    offsets = np.zeros(n + 1, np.int64)
    n, total = 0, 0
    for prefix in range(len(prefixes)):
        if prefixes[prefix]:
            for key in range(prefix << 8, (prefix + 1) << 8):
                if counts[key]:
                    found[n] = key
                    here = counts[key]
                    counts[key] = total  # from now on where the next block goes
                    total += here
                    n += 1
                    offsets[n] = total
    blocks = np.empty(total, np.int32)
    for block in range(len(block_offsets) - 1):
        for i in range(block_offsets[block], block_offsets[block + 1]):
            blocks[counts[keys[i]]] = block
            counts[keys[i]] += np.uint32(1)
    return found, offsets, blocks


@jit
def append(places, offsets, blocks, ends, joined):
    """Add one part's lists to those of all: list i to place places[i]. ends: (t,) int64, where each joined list ends so far."""
    for i in range(len(places)):
        end = ends[places[i]]
        for j in range(offsets[i], offsets[i + 1]):
            joined[end] = blocks[j]
            end += 1
        ends[places[i]] = end


@jit
def sort_lists(offsets, blocks, n_blocks):
    """Sort each list: a long one by marking its blocks, a short one as it is."""
    marked = np.zeros(n_blocks, np.bool_)
    for i in range(len(offsets) - 1):
        first, end = offsets[i], offsets[i + 1]
        ordered = True
        for j in range(first + 1, end):
            ordered &= blocks[j - 1] < blocks[j]
        if ordered:
            continue
        if (end - first) * 32 < n_blocks:
            blocks[first:end].sort()
            continue
        for j in range(first, end):
            marked[blocks[j]] = True
        for block in range(n_blocks):
            if marked[block]:
                blocks[first] = block
                first += 1
                marked[block] = False
