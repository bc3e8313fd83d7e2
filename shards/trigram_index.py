"""Which blocks of the renditions hold which trigrams: made from text, joined without it, and asked.

A block is some lines of one document, so what matches in a line matches in a block, and a document's blocks are a function of its bytes.

first_blocks   (rows + 1,) int32, row i has the blocks first_blocks[i] : first_blocks[i + 1]; none where it is empty or out of scope
block_ends     (b,) uint32, where each block ends in its document; it begins where the one before it ends, or with the document
codes          (z,) uint64, group_keys (g,) uint32, group_bits (g + 1,) int64: see `shards/block_list_kernels.py`

Source of the idea: Cox 2012, "Regular Expression Matching with a Trigram Index"; of lists of blocks rather than places, plocate.
"""

from collections.abc import Sequence

import numpy as np

from shards.documents import Documents
from shards.types import Array, Arrays

# Of 300 MB of code and documentation the lists of 2, 4, 8, 16, 64 KB blocks take 0.18, 0.14, 0.10, 0.08, 0.06 of the text: smaller
# ones would be read faster, but documents of a few KB set an end to that.
BLOCK_BYTES = 4096
NAMES = ("first_blocks", "block_ends", "codes", "group_keys", "group_bits")


def build_index(documents: Documents, rows: Array) -> Arrays:
    """The index of these rows, (m,) int64 ascending."""
    from shards import trigram_kernels as kernels

    starts, ends = documents.starts[rows], documents.ends[rows]
    places, begins, stops = kernels.cut_blocks(documents.text, starts, ends, BLOCK_BYTES)
    counts = np.zeros(1 << 24, np.uint32)  # 64 MB of address space; only pages of trigrams that occur are ever touched
    prefixes = np.zeros(1 << 16, np.bool_)
    keys = np.empty(int((stops - begins).sum()), np.uint32)  # likewise
    offsets = kernels.collect(documents.text, begins, stops, keys, counts, prefixes)
    lists = kernels.invert(keys, offsets, counts, prefixes)
    n_blocks = np.zeros(len(documents), np.int64)
    n_blocks[rows] = np.bincount(places, minlength=len(rows))
    return _packed(n_blocks, stops - starts[places], *lists)


def join_index(parts: Sequence[tuple[Arrays, Array]], n_rows: int) -> Arrays:
    """The index of joined segments, from (its arrays, (rows,) int32 new row of each old row or -1); equal to `build_index` of the whole."""
    from shards.block_list_kernels import expand

    n_blocks = np.zeros(n_rows, np.int64)
    for arrays, new_rows in parts:
        n_blocks[new_rows[new_rows >= 0]] = np.diff(arrays["first_blocks"])[new_rows >= 0]
    first = np.concatenate([[0], np.cumsum(n_blocks)])
    block_ends = np.zeros(first[-1], np.uint32)
    lists = []
    for arrays, new_rows in parts:
        numbers = _new_numbers(arrays["first_blocks"].astype(np.int64), new_rows, first)
        block_ends[numbers[numbers >= 0]] = arrays["block_ends"][numbers >= 0]
        lists.append(expand(arrays["codes"], arrays["group_keys"], arrays["group_bits"], len(numbers), numbers))
    return _packed(n_blocks, block_ends, *_joined(lists, len(block_ends)))


def _new_numbers(old_first: Array, new_rows: Array, first: Array) -> Array:
    """The new number of each block of a part, (b,) int32, -1 where its document is dropped; first: as `first_blocks` of the whole."""
    per_row = np.diff(old_first)
    shift = np.where(new_rows >= 0, first[new_rows], 0) - old_first[:-1]
    kept = np.repeat(new_rows >= 0, per_row)
    return np.where(kept, np.arange(len(kept)) + np.repeat(shift, per_row), -1).astype(np.int32)


def _joined(parts: Sequence[tuple[Array, Array, Array]], n_blocks: int) -> tuple[Array, Array, Array]:
    """Lists of all parts, (trigrams, offsets, blocks) each, as one such triple, every list ascending."""
    from shards.trigram_kernels import append, sort_lists

    keys, places = np.unique(np.concatenate([np.zeros(0, np.uint32), *(keys for keys, _, _ in parts)]), return_inverse=True)
    lengths = np.zeros(len(keys), np.int64)
    np.add.at(lengths, places, np.concatenate([np.zeros(0, np.int64), *(np.diff(offsets) for _, offsets, _ in parts)]))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    blocks, ends, at = np.empty(offsets[-1], np.int32), offsets[:-1].copy(), 0
    for part_keys, part_offsets, part_blocks in parts:
        append(places[at : at + len(part_keys)], part_offsets, part_blocks, ends, blocks)
        at += len(part_keys)
    sort_lists(offsets, blocks, n_blocks)
    return keys, offsets, blocks


def _packed(n_blocks: Array, block_ends: Array, keys: Array, offsets: Array, blocks: Array) -> Arrays:
    from shards.block_list_kernels import encode

    codes, group_keys, group_bits = encode(keys, offsets, blocks, len(block_ends))
    return {
        "first_blocks": np.concatenate([[0], np.cumsum(n_blocks)]).astype(np.int32),
        "block_ends": block_ends.astype(np.uint32),
        "codes": codes,
        "group_keys": group_keys,
        "group_bits": group_bits,
    }
