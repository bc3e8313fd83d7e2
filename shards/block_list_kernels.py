"""The compiled loops over lists of blocks as bits: writing them, finding those of some trigrams, intersecting, and reading all.

`codes` is one stream of bits, lowest bit of each word first, with an unused word behind it. It holds groups of trigrams, ascending; of
each trigram: by how much it exceeds the one before it in the group, in how many blocks it is, and these blocks. The two numbers are in
Elias' gamma code, whose leading part is unary (zeros up to a one). Blocks are gaps in Rice code (Rice & Plaunt 1971): the gap's quotient
by 2^k in unary, its rest in k bits; of a trigram that more than half of the blocks hold, those that do not. So a list takes about the
entropy of a random set of that size: no bitmaps are needed beside it, and a trigram that is everywhere takes nothing.

Compiled code checks no bounds: arrays come from files whose checksum was compared.
"""

import numpy as np

from shards.compiled import jit

GROUP_BITS = 2048  # a group is full with so many: finding a trigram passes over a microsecond's worth of others
# Reading a block of a list costs 6 ns, looking through a block's text 2 us, of which another trigram may spare a third: a list is worth
# reading while it has no more than so many blocks for each that is left.
_WORTH = 100
_ONE, _LOW6, _ALL = np.uint64(1), np.uint64(63), np.uint64(0xFFFFFFFFFFFFFFFF)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)  # Leiserson, Prokop & Randall 1998
_PLACES = np.zeros(64, np.int64)
for _place in range(64):
    _PLACES[(int(_DE_BRUIJN) << _place & 0xFFFFFFFFFFFFFFFF) >> 58] = _place


@jit
def longer(array, n):
    """The array with zeros behind it: (n,)."""
    grown = np.zeros(n, array.dtype)
    grown[: len(array)] = array
    return grown


@jit
def _shape(n, n_blocks):
    """Of a list of n blocks: how many gaps are written, the bits k of a gap's rest, and whether they tell the blocks that lack it."""
    lacking = n > n_blocks - n
    gaps = n_blocks - n if lacking else n
    k = 0
    if gaps:
        # k is best near log2(ln 2 times the mean gap) (Gallager & van Voorhis 1975); 11/16 is ln 2 in whole numbers
        rest = (n_blocks - gaps) * 11 // (gaps * 16)
        while rest > 1:
            rest >>= 1
            k += 1
    return gaps, k, lacking


@jit
def encode(keys, offsets, blocks, n_blocks):
    """Lists of blocks as codes (z,) uint64, with the first trigram of each group (g,) uint32 and its first bit (g + 1,) int64.

    keys: (t,) uint32, trigrams, ascending; list i is blocks[offsets[i] : offsets[i + 1]], int32, ascending, not empty
    """
    codes = np.zeros(1024, np.uint64)
    group_keys = np.empty(64, np.uint32)
    group_bits = np.empty(65, np.int64)
    n_groups, at, before = 0, 0, 0
    for i in range(len(keys)):
        n = offsets[i + 1] - offsets[i]
        gaps, k, lacking = _shape(n, n_blocks)
        most = at + 128 + gaps * (k + 1) + ((n_blocks - gaps) >> k)
        if most >> 6 >= len(codes) - 2:
            codes = longer(codes, 2 * ((most >> 6) + 2))
        key = np.int64(keys[i])
        if n_groups == 0 or at - group_bits[n_groups - 1] >= GROUP_BITS:
            if n_groups == len(group_keys):
                group_keys, group_bits = longer(group_keys, 2 * n_groups), longer(group_bits, 2 * n_groups + 1)
            group_keys[n_groups], group_bits[n_groups] = key, at
            n_groups += 1
            before = key - 1
        at = _write_gamma(codes, at, key - before)
        at = _write_gamma(codes, at, n)
        before = key
        expected = 0
        if not lacking:
            for j in range(offsets[i], offsets[i + 1]):
                at = _write_gap(codes, at, blocks[j] - expected, k)
                expected = blocks[j] + 1
        else:
            j = offsets[i]
            for block in range(n_blocks):
                if j < offsets[i + 1] and blocks[j] == block:
                    j += 1
                else:
                    at = _write_gap(codes, at, block - expected, k)
                    expected = block + 1
    group_bits[n_groups] = at
    return codes[: (at >> 6) + 2].copy(), group_keys[:n_groups].copy(), group_bits[: n_groups + 1].copy()


@jit
def _write_gap(codes, at, gap, k):
    at += gap >> k
    codes[at >> 6] |= _ONE << np.uint64(at & 63)
    return _write_bits(codes, at + 1, gap & ((1 << k) - 1), k)


@jit
def _write_gamma(codes, at, value):
    """value: at least 1."""
    k = 0
    while value >> (k + 1):
        k += 1
    at += k
    codes[at >> 6] |= _ONE << np.uint64(at & 63)
    return _write_bits(codes, at + 1, value - (1 << k), k)


@jit
def _write_bits(codes, at, value, k):
    if k:
        shift = at & 63
        codes[at >> 6] |= np.uint64(value) << np.uint64(shift)
        if shift + k > 64:
            codes[(at >> 6) + 1] |= np.uint64(value) >> np.uint64(64 - shift)
    return at + k


@jit
def _bits(codes, at):
    """The 64 bits from bit `at` on."""
    word, shift = at >> 6, np.uint64(at & 63)
    return codes[word] >> shift | (codes[word + 1] << _ONE) << (_LOW6 - shift)  # in two steps: nothing may be shifted by 64


@jit
def _read(codes, at, k):
    """A unary number, and k bits behind it: (number, bits, the next bit's place)."""
    ones = _bits(codes, at)
    number = 0
    while ones == 0:
        number += 64
        ones = _bits(codes, at + number)
    zeros = _PLACES[((ones & (~ones + _ONE)) * _DE_BRUIJN) >> np.uint64(58)]
    number += zeros
    at += number + 1
    rest = (ones >> np.uint64(zeros)) >> _ONE if zeros + 1 + k <= 64 else _bits(codes, at)
    return number, np.int64(rest & ((_ONE << np.uint64(k)) - _ONE)), at + k


@jit
def _read_gamma(codes, at):
    k, _, behind = _read(codes, at, 0)
    return (1 << k) + np.int64(_bits(codes, behind) & ((_ONE << np.uint64(k)) - _ONE)), behind + k


@jit
def _read_gaps(codes, at, gaps, k, blocks):
    """Writes the blocks that gaps tell, as far as `blocks` is long enough (nothing for an empty one); returns the next bit's place."""
    block = np.int64(-1)
    for i in range(gaps):
        quotient, rest, at = _read(codes, at, k)
        block += (quotient << k) + rest + 1
        if i < len(blocks):
            blocks[i] = block
    return at


@jit
def find(codes, group_keys, group_bits, n_blocks, key):
    """In how many blocks a trigram is, and where its list begins in `codes`; (0, 0) if in none."""
    group = np.searchsorted(group_keys, np.uint32(key), "right") - 1
    if group < 0:
        return 0, 0
    nothing = np.empty(0, np.int32)
    at, end, current = group_bits[group], group_bits[group + 1], np.int64(group_keys[group]) - 1
    while at < end:
        more, at = _read_gamma(codes, at)
        n, at = _read_gamma(codes, at)
        current += more
        if current == key:
            return n, at
        if current > key:
            return 0, 0
        gaps, k, _ = _shape(n, n_blocks)
        at = _read_gaps(codes, at, gaps, k, nothing)
    return 0, 0


@jit
def holding(codes, group_keys, group_bits, n_blocks, keys):
    """Blocks that hold all of these trigrams, or as many of them as are worth reading, as bits: ((n_blocks + 63) // 64,) uint64."""
    words = (n_blocks + 63) >> 6
    sizes, places = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        sizes[i], places[i] = find(codes, group_keys, group_bits, n_blocks, keys[i])
    kept = np.zeros(words, np.uint64)
    if sizes.min() == 0:
        return kept
    kept[:] = _ALL
    if n_blocks & 63:
        kept[words - 1] = (_ONE << np.uint64(n_blocks & 63)) - _ONE
    left = n_blocks
    for i in np.argsort(sizes):
        gaps, k, lacking = _shape(sizes[i], n_blocks)
        if (gaps if k else words) > left * _WORTH:
            break
        if k:
            _keep_listed(codes, places[i], gaps, k, lacking, kept)
        else:
            _keep_marked(codes, places[i], gaps, lacking, kept)
        left = 0
        for word in kept:
            left += _count(word)
    return kept


@jit
def _keep_listed(codes, at, gaps, k, lacking, kept):
    """Leaves only the blocks of a list in `kept`; with `lacking` only the others."""
    listed = np.zeros(0 if lacking else len(kept), np.uint64)
    block = np.int64(-1)
    for _ in range(gaps):
        quotient, rest, at = _read(codes, at, k)
        block += (quotient << k) + rest + 1
        bit = _ONE << np.uint64(block & 63)
        if lacking:
            kept[block >> 6] &= ~bit
        else:
            listed[block >> 6] |= kept[block >> 6] & bit
    if not lacking:
        kept[:] = listed


@jit
def _keep_marked(codes, at, gaps, lacking, kept):
    """The same where gaps have no rest: then their ones lie where a bitmap would have them, and are taken 64 at a time."""
    for i in range(len(kept)):
        listed = _bits(codes, at + (i << 6)) if gaps else np.uint64(0)
        n = _count(listed)
        while n > gaps:  # these are of the next trigram
            listed &= ~(_ONE << np.uint64(_highest(listed)))
            n -= 1
        gaps -= n
        kept[i] &= ~listed if lacking else listed


@jit
def _count(word):
    """How many bits are set (Warren, Hacker's Delight, 5-1)."""
    word -= (word >> _ONE) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@jit
def _highest(word):
    place = 0
    while word >> _ONE:
        word >>= _ONE
        place += 1
    return place


@jit
def expand(codes, group_keys, group_bits, n_blocks, numbers):
    """Every list again, as `encode` was given it: keys (t,) uint32, offsets (t + 1,) int64, blocks (p,) int32 by other numbers.

    numbers: (n_blocks,) int32, ascending where not -1: such blocks are left out, and trigrams that only they have.
    """
    n_keys, n_postings = _measure(codes, group_keys, group_bits, n_blocks)
    keys, offsets = np.empty(n_keys, np.uint32), np.zeros(n_keys + 1, np.int64)
    blocks = np.empty(n_postings, np.int32)
    read = np.empty(n_blocks, np.int32)
    t, p = 0, 0
    for group in range(len(group_keys)):
        at, current = group_bits[group], np.int64(group_keys[group]) - 1
        while at < group_bits[group + 1]:
            more, at = _read_gamma(codes, at)
            n, at = _read_gamma(codes, at)
            current += more
            gaps, k, lacking = _shape(n, n_blocks)
            at = _read_gaps(codes, at, gaps, k, read)
            if lacking:
                i = 0
                for block in range(n_blocks):
                    if i < gaps and read[i] == block:
                        i += 1
                    elif numbers[block] >= 0:
                        blocks[p] = numbers[block]
                        p += 1
            else:
                for i in range(gaps):
                    if numbers[read[i]] >= 0:
                        blocks[p] = numbers[read[i]]
                        p += 1
            if p > offsets[t]:
                keys[t] = current
                t += 1
                offsets[t] = p
    return keys[:t].copy(), offsets[: t + 1].copy(), blocks[:p].copy()


@jit
def _measure(codes, group_keys, group_bits, n_blocks):
    """How many trigrams there are, and how many blocks in all their lists."""
    nothing = np.empty(0, np.int32)
    n_keys, n_postings = 0, 0
    for group in range(len(group_keys)):
        at = group_bits[group]
        while at < group_bits[group + 1]:
            _, at = _read_gamma(codes, at)
            n, at = _read_gamma(codes, at)
            gaps, k, _ = _shape(n, n_blocks)
            at = _read_gaps(codes, at, gaps, k, nothing)
            n_keys += 1
            n_postings += n
    return n_keys, n_postings
