"""The compiled loops that make postings: inverting tokens into them and re-sorting them.

Postings of one set: `offsets` (n_terms + 1,) int64 into `units` (n,) int32, ascending within a term, and `tfs` (n,) uint8.
"""

import numpy as np

from shards.compiled import jit

MAX_TF = 255  # counts are kept in one byte; tf/(tf + norm) has long saturated (Lucene keeps lengths as coarsely)


@jit
def document_frequencies(tokens, token_offsets, type_offsets, type_terms, n_terms):
    """In how many units each term occurs: (n_terms,) int64.

    tokens, token_offsets: as `tokenise` gives them. type_offsets, type_terms: the terms of each distinct token, int64 and int32;
    the fewer terms that are far apart, the faster: numbers in order of first occurrence keep frequent ones together
    """
    counts = np.empty((n_terms, 2), np.int32)  # units, and the last of them: side by side in memory
    counts[:, 0] = 0
    counts[:, 1] = -1
    for unit in range(len(token_offsets) - 1):
        for i in range(token_offsets[unit], token_offsets[unit + 1]):
            for j in range(type_offsets[tokens[i]], type_offsets[tokens[i] + 1]):
                term = type_terms[j]
                counts[term, 0] += np.int32(counts[term, 1] != unit)  # no branch: nobody could guess it
                counts[term, 1] = unit
    return counts[:, 0].astype(np.int64)


@jit
def invert(tokens, token_offsets, type_offsets, type_terms, type_atoms, starts, n_postings):
    """Postings and the length of each unit: units int32, tfs uint8, lengths int32.

    type_atoms: (n_types,) int32, how many places of the text a token counts for. starts: (n_terms,) int64, where the postings of
    each term begin among all `n_postings`
    """
    units = np.empty(n_postings, np.int32)
    tfs = np.empty(n_postings, np.uint8)
    lengths = np.zeros(len(token_offsets) - 1, np.int32)
    ends = np.empty((len(starts), 2), np.int64)  # of the postings so far, and their last unit
    ends[:, 0] = starts
    ends[:, 1] = -1
    for unit in range(len(token_offsets) - 1):
        for i in range(token_offsets[unit], token_offsets[unit + 1]):
            token = tokens[i]
            lengths[unit] += type_atoms[token]
            for j in range(type_offsets[token], type_offsets[token + 1]):
                term = type_terms[j]
                end = ends[term, 0]
                if ends[term, 1] != unit:
                    units[end] = unit
                    tfs[end] = 1
                    ends[term, 0] = end + 1
                    ends[term, 1] = unit
                elif tfs[end - 1] < MAX_TF:
                    tfs[end - 1] += np.uint8(1)
    return units, tfs, lengths


@jit
def stable_order(keys, n_keys):
    """The stable sorting permutation of small integers (counting sort): (n,) int64. keys: (n,) int32 in [0, n_keys)."""
    following = np.zeros(n_keys + 1, np.int64)
    for key in keys:
        following[key + 1] += 1
    for key in range(n_keys):
        following[key + 1] += following[key]
    order = np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        order[following[keys[i]]] = i
        following[keys[i]] += 1
    return order
