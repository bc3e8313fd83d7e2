"""From what all spaces found to one ranking: the coupling that a request chose.

A coupling is a view. Whatever it is, a hit's signals, fused evidence and E-value and the answer's verdict are those of evidence
(`serve.evidence`), with the weights that the corpus taught: E-values are fitted to these and hold for no others.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from serve.classics import CLASSICS, Lists, lists_of, rrf
from serve.edge import RRF_K, Coupling, CouplingName
from serve.evidence import Fused, SpaceFacts
from serve.schema import Hit, LayerInfo, SearchRequest
from serve.selection import silent_spaces
from shards.errors import BadQuery
from shards.segment import hash_order
from shards.types import Array, Candidates

OF_EVIDENCE = ("evidence", "select", "joint")  # couplings that sum surprises; all others read lists
RERANKED = tuple(name for name in get_args(CouplingName) if name != "none")  # couplings that give one order of hits


@dataclass(frozen=True, slots=True, eq=False)
class Coupled:
    """A ranking of candidates: n documents in the order of `Candidates`, s spaces in the order of the plan.

    ranking: (m,) int64, rows best first. weights: (s,) what each space counts in it
    values: (n,) float64, by which rows are ranked; None where that is `Fused.fused`, or nothing but their places on lists
    silent: by name, why a space that was asked does not count
    lists: each space's own; None where nobody asks for them
    depths: (m,) int64, ascending, where a page is a depth of all lists and not a number of hits: the depth at which each row appears
    """

    ranking: Array
    weights: Array
    values: Array | None = None
    silent: Mapping[str, str] = field(default_factory=dict)
    lists: Lists | None = None
    depths: Array | None = None

    def page(self, ranking: Array, offset: int, k: int) -> tuple[list[int], bool]:
        """The rows of a page of `ranking`, which may be one in another order, and whether there are more behind it."""
        begin, end = offset, offset + k
        if self.depths is not None:
            begin, end = np.searchsorted(self.depths, [begin, end], side="right").tolist()
        return ranking[begin:end].tolist(), len(ranking) > end


NOTHING = Coupled(np.zeros(0, np.int64), np.zeros(0))


def check(request: SearchRequest, known: Collection[str]) -> None:
    """Raises BadQuery for what cannot be coupled. known: the corpus's spaces."""
    for name in request.weights:
        if name not in known:
            raise BadQuery(
                f"Corpus {request.corpus!r} has no layer {name!r} to be weighed. Choose from: {', '.join(sorted(known))}.", at="weights"
            )
    if request.rerank and request.coupling.name not in RERANKED:
        raise BadQuery(
            f"Coupling {request.coupling.name!r} leaves lists side by side, and a reranker orders one. "
            f"Leave `rerank` out, or choose a coupling from: {', '.join(RERANKED)}.",
            at="rerank",
        )


def couple(
    request: SearchRequest,
    spaces: Sequence[SpaceFacts],
    fused: Fused,
    found: Candidates,
    *,
    explicit: bool = False,
) -> Coupled:
    """The ranking that a request asks for: of the same candidates the same to the bit, in whatever order spaces were asked.

    spaces: in the plan's order; one that `request.weights` says nothing of counts 1, and in evidence what it counts there.
    explicit: the caller named spaces or gave a pattern.
    """
    coupling, weights = request.coupling, request.weights
    plain = coupling.name in ("evidence", "joint") and not weights
    lists = None if plain and not request.explain else lists_of(found.hashes, found.scores, found.generated)
    if coupling.name not in OF_EVIDENCE:
        counted = np.array([weights.get(space.name, 1.0) for space in spaces], np.float64)
        return _unfused(lists, counted, spaces) if coupling.name == "none" else _by_lists(coupling, lists, counted, spaces, found)
    counted = np.array([weights.get(space.name, fused.weights[s]) for s, space in enumerate(spaces)], np.float64)
    silent = silent_spaces(spaces, fused, found, counted, weights) if coupling.name == "select" else {}
    heard = np.array([space.name not in silent and weights.get(space.name, 1.0) > 0 for space in spaces], bool)
    counted = np.where(heard, counted, 0.0)
    same = np.array_equal(counted, fused.weights)  # then it is the ranking of evidence, however that came to its sum
    values = fused.fused if same else _summed(fused, counted, spaces)
    # A pattern that matches everywhere surprises nobody, yet who asks for it by name wants its matches.
    shown = (values > 0) | (np.isfinite(fused.scores[:, heard]).any(axis=1) if explicit else False)
    order = fused.order if same else hash_order(found.hashes, values)
    return Coupled(order[shown[order]], counted, None if plain else values, silent, lists)


def _summed(fused: Fused, weights: Array, spaces: Sequence[SpaceFacts]) -> Array:
    """What all spaces say of each document, by these weights."""
    total = np.zeros(len(fused.fused))
    for s in _by_name(spaces):
        total += weights[s] * fused.surprises[:, s]
    return total


def _by_lists(coupling: Coupling, lists: Lists, weights: Array, spaces: Sequence[SpaceFacts], found: Candidates) -> Coupled:
    """By a classic: whatever is on a list that counts."""
    by_name = _by_name(spaces)
    own = Lists(lists.scores[:, by_name], lists.ranks[:, by_name])
    if coupling.name == "rrf":
        values = rrf(own, weights[by_name], RRF_K if coupling.k is None else coupling.k)
    else:
        values = CLASSICS[coupling.name](own, weights[by_name])
    order = hash_order(found.hashes, values)
    return Coupled(order[lists.listed[:, weights > 0].any(axis=1)[order]], weights, values, lists=lists)


def _unfused(lists: Lists, weights: Array, spaces: Sequence[SpaceFacts]) -> Coupled:
    """All lists side by side: first whatever is first on one, in the order of names, then what is second, and so on."""
    nowhere = np.iinfo(np.int64).max
    depth, first = np.full(len(lists.ranks), nowhere), np.zeros(len(lists.ranks), np.int64)
    for place, s in enumerate(_by_name(spaces)):
        nearer = (weights[s] > 0) & lists.listed[:, s] & (lists.ranks[:, s] < depth)
        depth[nearer], first[nearer] = lists.ranks[nearer, s], place
    order = np.lexsort((first, depth))  # no two documents have the same place on the same list
    order = order[depth[order] < nowhere]
    return Coupled(order, weights, lists=lists, depths=depth[order])


def _by_name(spaces: Sequence[SpaceFacts]) -> list[int]:
    """Columns in the order of their spaces' names: sums must not depend on the plan's order."""
    return sorted(range(len(spaces)), key=lambda s: spaces[s].name)


# --- what is told of it ---------------------------------------------------------------------------------------------------------


def located(fused: Fused, coupled: Coupled, found: Candidates, spaces: Sequence[SpaceFacts]) -> Fused:
    """Evidence, with a span also for what surprises nobody and is shown for its place on a list: where the best of its lists has it."""
    if coupled.lists is None or (coupled.values is None and coupled.depths is None):
        return fused  # plain evidence shows nothing for its place on a list
    unseen = np.flatnonzero((fused.best < 0) & coupled.lists.listed.any(axis=1))
    by_name = _by_name(spaces)
    ranks = coupled.lists.ranks[unseen][:, by_name]
    first = np.array(by_name)[np.where(ranks > 0, ranks, np.iinfo(np.int64).max).argmin(axis=1)]
    starts, ends = fused.starts.copy(), fused.ends.copy()
    starts[unseen], ends[unseen] = found.starts[unseen, first], found.ends[unseen, first]
    return replace(fused, starts=starts, ends=ends)


def with_places(hits: Sequence[Hit], page: Sequence[int], found: Candidates, spaces: Sequence[SpaceFacts], coupled: Coupled) -> list[Hit]:
    """Hits with the number that ranks them and their places on the lists. page: rows of the hits, those whose host is gone included."""
    if coupled.values is None and coupled.lists is None:
        return list(hits)
    rows, by_name = {found.hashes[row].tobytes().hex(): row for row in page}, _by_name(spaces)
    told = []
    for hit in hits:
        row = rows[hit.hash]
        ranks = {} if coupled.lists is None else {spaces[s].name: int(rank) for s in by_name if (rank := coupled.lists.ranks[row, s])}
        value = None if coupled.values is None else float(coupled.values[row])
        told.append(hit.model_copy(update={"coupled": value, "ranks": ranks}))
    return told


def with_weights(infos: Sequence[LayerInfo], spaces: Sequence[SpaceFacts], coupled: Coupled) -> list[LayerInfo]:
    """Spaces with what they count in the ranking, and why some do not."""
    counted = {space.name: float(coupled.weights[s]) for s, space in enumerate(spaces)}
    return [
        info.model_copy(update={"weight": counted[info.name], "reason": coupled.silent.get(info.name, info.reason)})
        if info.name in counted
        else info
        for info in infos
    ]
