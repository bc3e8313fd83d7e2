"""The classic ways to make one ranking of several ranked lists, as other systems offer them: from the lists alone.

A list is what one space's own search brought. Nothing else is known here: no null model, no scores of documents that are not on the
list, which count 0. Each function gives every document one number, higher is better: the weighted sum over lists of

    rrf       1 / (k + rank), ranks from 1                   Cormack, Clarke & Buettcher 2009
    combsum   the score as it is                             CombSUM of Fox & Shaw 1994; with weights Vogt & Cottrell 1999
    minmax    (score - least) / (greatest - least)           CombSUM of normalised scores, Lee 1997
    combmnz   the same, times the number of its lists        CombMNZ of Fox & Shaw 1994, of normalised scores as in Lee 1997
    zscore    z - least z, where z = (score - mean) / sd     CombSUM of "ZMUV" scores, Montague & Aslam 2001
    dbsf      (score - (mean - 3 sd)) / 6 sd                 Qdrant, lib/segment/src/common/score_fusion.rs

`combsum` is for scores of one scale, or for weights that bring them to one: else whoever has the largest numbers decides. The others
bring each list to one scale by itself, so a list without an answer weighs as much as one with it; and what their statistics are of
is a list, which ends somewhere. That is what evidence is for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from shards.segment import hash_order
from shards.types import Array


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Ranked lists of documents. n documents, s lists; sums go over lists in their order.

    scores: (n, s) float64, only read where a document is on the list
    ranks: (n, s) int64, the document's place on the list, from 1 for the best; 0 where it is not on it
    """

    scores: Array
    ranks: Array

    @property
    def listed(self) -> Array:
        """(n, s) bool, whether the document is on the list."""
        return self.ranks > 0


def lists_of(hashes: Array, scores: Array, listed: Array) -> Lists:
    """Lists by score, ties by hash as everywhere. hashes: (n, 20) uint8; scores: (n, s) float64; listed: (n, s) bool."""
    ranks = np.zeros(listed.shape, np.int64)
    for s in range(listed.shape[1]):
        rows = np.flatnonzero(listed[:, s])
        ranks[rows[hash_order(hashes[rows], scores[rows, s])], s] = np.arange(1, len(rows) + 1)
    return Lists(scores, ranks)


def rrf(lists: Lists, weights: Array, k: float = 60) -> Array:
    """Reciprocal rank fusion. weights: (s,); k >= 0: large, and to be on many lists counts more than to be first on one. Where ranks
    are counted from 0 (Qdrant), the same k is larger by 1. Returns (n,) float64."""
    return _summed(lists, weights, lambda s, rows: 1.0 / (k + lists.ranks[rows, s]))


def combsum(lists: Lists, weights: Array) -> Array:
    """Sum of raw scores. weights: (s,). Returns (n,) float64."""
    return _summed(lists, weights, lambda s, rows: lists.scores[rows, s])


def minmax(lists: Lists, weights: Array) -> Array:
    """Sum of scores that go from 0 to 1 on each list; where all are equal, 1. weights: (s,). Returns (n,) float64."""
    return _summed(lists, weights, lambda s, rows: _unit(lists.scores[rows, s]))


def combmnz(lists: Lists, weights: Array) -> Array:
    """`minmax` times the number of lists with a weight that the document is on. weights: (s,). Returns (n,) float64."""
    return minmax(lists, weights) * np.count_nonzero(lists.listed & (weights > 0), axis=1)


def zscore(lists: Lists, weights: Array) -> Array:
    """Sum of z, counted from the list's last, so that nobody is worse off for being on it. weights: (s,). Returns (n,) float64.

    sd is the list's own (of all its scores, not of a sample); where all are equal, 0.
    """
    return _summed(lists, weights, lambda s, rows: _above_last(lists.scores[rows, s]))


def dbsf(lists: Lists, weights: Array) -> Array:
    """Distribution-based score fusion: from 0 at 3 sd below the list's mean to 1 at 3 sd above. weights: (s,). Returns (n,) float64.

    As Qdrant has it: sd of a sample (n - 1), 0.5 for a list of equal scores or of one, and no cut at 0 and 1, which would
    make ties of what stands out most.
    """
    return _summed(lists, weights, lambda s, rows: _three_sd(lists.scores[rows, s]))


CLASSICS: Mapping[str, Callable[[Lists, Array], Array]] = {
    "combsum": combsum,
    "minmax": minmax,
    "combmnz": combmnz,
    "zscore": zscore,
    "dbsf": dbsf,
}


def _summed(lists: Lists, weights: Array, part: Callable[[int, Array], Array]) -> Array:
    """Sum over lists, one after the other. part: what list s gives the documents of these rows, which are on it."""
    total = np.zeros(len(lists.ranks))
    for s in range(lists.ranks.shape[1]):
        rows = np.flatnonzero(lists.ranks[:, s])
        if weights[s] and len(rows):
            total[rows] += weights[s] * part(s, rows)
    return total


def _unit(scores: Array) -> Array:
    least, greatest = scores.min(), scores.max()
    return (scores - least) / (greatest - least) if greatest > least else np.ones(len(scores))


def _above_last(scores: Array) -> Array:
    # z - least z: the mean cancels out, and with it the rounding that would depend on it
    sd = scores.std() if scores.max() > scores.min() else 0.0
    return (scores - scores.min()) / sd if sd > 0 else np.zeros(len(scores))


def _three_sd(scores: Array) -> Array:
    sd = scores.std(ddof=1) if len(scores) > 1 and scores.max() > scores.min() else 0.0
    return (scores - (scores.mean() - 3 * sd)) / (6 * sd) if sd > 0 else np.full(len(scores), 0.5)
