"""Formulas as the kernels read them: a question's pairs, a segment's units; and what a question is made of."""

from typing import NamedTuple

import numpy as np

from shards.formula_trees import Trees
from shards.postings import sealed
from shards.types import Array


class Asked(NamedTuple):
    """One formula of a question.

    keys: (k,) uint64, ascending; counts, rarities, weights: (k,) int32, how often the formula has the pair, what it counts by how rare it
        is in the corpus, and in itself. totals: (2,) int64, of all by rarity, in the layout and in the operators
    pair_offsets: (k + 1,) into its pairs in order of key: ancestors, descendants (p,) int16, places among labels, (n,) uint64
    slots: (n,) int16, which of the variables, (v,) uint64, a node is
    """

    keys: Array
    counts: Array
    rarities: Array
    weights: Array
    totals: Array
    pair_offsets: Array
    ancestors: Array
    descendants: Array
    labels: Array
    slots: Array
    variables: Array


class Units(NamedTuple):
    """The formulas of a segment. row_units: (rows + 1,) int64; node_offsets: (u + 1,) int64; totals: (u, 2) int32; labels: (l,) uint64;
    of each node node_labels int32, parents uint16, edges uint8."""

    row_units: Array
    node_offsets: Array
    totals: Array
    labels: Array
    node_labels: Array
    parents: Array
    edges: Array


class Pairs(NamedTuple):
    """A formula's distinct pairs: keys (k,) uint64 ascending, counts and weights (k,) int32; and all of them in that order."""

    keys: Array
    counts: Array
    weights: Array
    ancestors: Array
    descendants: Array


def pairs(trees: Trees) -> Pairs:
    """The pairs of one formula."""
    from shards import formula_kernels as kernels

    keys = np.empty(kernels.MAX_PAIRS, np.uint64)
    ancestors, descendants = np.empty(kernels.MAX_PAIRS, np.int16), np.empty(kernels.MAX_PAIRS, np.int16)
    weights = np.empty(kernels.MAX_PAIRS, np.uint8)
    n = kernels.pairs_of(sealed(trees.labels), sealed(trees.parents), sealed(trees.edges), keys, ancestors, descendants, weights)
    order = np.argsort(keys[:n], kind="stable")
    distinct, first, counts = np.unique(keys[:n][order], return_index=True, return_counts=True)
    return Pairs(
        distinct, counts.astype(np.int32), weights[:n][order][first].astype(np.int32), ancestors[:n][order], descendants[:n][order]
    )


def asked(trees: Trees, rarities: Array) -> Asked:
    """A formula of a question, expanded. rarities: (k,) int32, of its distinct pairs in order of key."""
    from shards import formula_kernels as kernels

    found = pairs(trees)
    offsets = np.zeros(len(found.keys) + 1, np.int64)
    np.cumsum(found.counts, out=offsets[1:])
    slots, variables = np.empty(len(trees.labels), np.int16), np.empty(kernels.MAX_VARIABLES, np.uint64)
    n = kernels.variables_of(sealed(trees.labels), slots, variables)
    by_pair, of_operators = found.counts.astype(np.int64) * rarities, found.weights == kernels.OPERATOR_WEIGHT
    totals = np.array([by_pair[~of_operators].sum(), by_pair[of_operators].sum()], np.int64)
    return Asked(
        found.keys, found.counts, rarities.astype(np.int32), found.weights, totals, offsets, found.ancestors, found.descendants,
        sealed(trees.labels), slots, variables[:n].copy(),
    )  # fmt: skip
