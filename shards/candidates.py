"""Joining what several shards found: the same candidates however the documents were spread."""

from collections.abc import Sequence

import numpy as np

from shards.identity import as_keys
from shards.segment import hash_order
from shards.types import Candidates, LayerStatus, merge_moments

RARE_MATCH = 6.0  # what a match in a rarity layer counts for `leaders`, in units of z


def nothing(n_spaces: int, status: Sequence[LayerStatus] = ()) -> Candidates:
    """No candidates: what a shard that is empty, late or gone contributes."""
    return Candidates(
        hashes=np.zeros((0, 20), np.uint8),
        generated=np.zeros((0, n_spaces), bool),
        scores=np.zeros((0, n_spaces)),
        starts=np.zeros((0, n_spaces), np.int64),
        ends=np.zeros((0, n_spaces), np.int64),
        moments=(None,) * n_spaces,
        n_matched=np.zeros(n_spaces, np.int64),
        status=tuple(status),
    )


def merge(parts: Sequence[Candidates], n_candidates: int) -> Candidates:
    """Candidates of disjoint sets of documents as if they had been one set.

    A space's list is its best `n_candidates` among the documents that it generated (score descending, then hash); documents in no
    space's list are dropped. Every candidate already carries the scores of all spaces, so nothing is asked again.
    """
    if len(parts) == 1 and parts[0].generated.sum(axis=0).max(initial=0) <= n_candidates and parts[0].generated.any(axis=1).all():
        return parts[0]  # nothing to cut or to drop
    hashes = np.concatenate([p.hashes for p in parts])
    scores = np.concatenate([p.scores for p in parts])
    generated = np.concatenate([p.generated for p in parts])
    listed = np.zeros_like(generated)
    for s in range(generated.shape[1]):
        rows = np.flatnonzero(generated[:, s])
        best = rows[hash_order(hashes[rows], scores[rows, s])[:n_candidates]]
        listed[best, s] = True
    keep = np.flatnonzero(listed.any(axis=1))
    order = keep[np.argsort(as_keys(hashes[keep]), kind="stable")] if len(keep) else keep
    wanted = {hashes[row].tobytes() for row in order} if any(p.details for p in parts) else set()
    return Candidates(
        hashes=hashes[order],
        generated=listed[order],
        scores=scores[order],
        starts=np.concatenate([p.starts for p in parts])[order],
        ends=np.concatenate([p.ends for p in parts])[order],
        moments=tuple(merge_moments(p.moments[s] for p in parts) for s in range(generated.shape[1])),
        n_matched=np.sum([p.n_matched for p in parts], axis=0),
        status=tuple(sorted((s for p in parts for s in p.status), key=lambda s: (s.space, s.shard))),
        details={key: d for p in parts for key, d in p.details.items() if key in wanted},
    )


def leaders(candidates: Candidates, n_details: int) -> list[int]:
    """Rows worth details at once: the `n_details` most likely to be shown, in row order.

    A guess at the fused ranking by summed z, which a host can make alone; what it misses costs a second call (for 1 in 8 queries
    with 20 details for 10 hits, where the best of each space's list missed in half).
    """
    total = np.zeros(len(candidates.hashes))
    for s, moments in enumerate(candidates.moments):
        scores = candidates.scores[:, s]
        matched = np.isfinite(scores)
        if moments is None:
            total += np.where(matched, RARE_MATCH, 0.0)
        elif moments.sd:
            total += np.where(matched, np.maximum((np.where(matched, scores, 0.0) - moments.mean) / moments.sd, 0.0), 0.0)
    return sorted(hash_order(candidates.hashes, total)[:n_details].tolist())


