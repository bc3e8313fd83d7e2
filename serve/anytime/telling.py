"""What is told of a search beside its hits: coverage of all that was or could be asked, the certificate, and the plan for `explain`."""

from typing import TYPE_CHECKING

from serve.anytime.schema import Certificate, PlannedSpace, SearchPlan, Unseen
from serve.certificate import CERTAINTY, Judged, certificate
from shards.types import LayerStatus

if TYPE_CHECKING:
    from serve.anytime.search import Search
    from serve.evidence import Fused

NOT_BEGUN = "not begun"


def certified(search: "Search", fused: "Fused | None", wanted: int, by_evidence: bool) -> Certificate:
    """What was not looked at, and what that could still change of the first `wanted` hits. by_evidence: whether evidence ranks them."""
    generation = search.generation
    counts, gain = search.counts(), search.gains()
    spaces = [
        Judged(name, generation.spaces[name].layer, int(generation.statistics(name).n_units), *counts[name], gain.get(name, 0.0))
        for name in search.all_names
    ]
    unasked = {name: search.unasked.get(name, NOT_BEGUN) for name in (*search.ready, *search.dear)}
    said = certificate(
        spaces,
        search.queries,
        search.found,
        fused,
        generation.nulls,
        unasked,
        wanted=wanted,
        n_candidates=search.n_candidates,
        by_evidence=by_evidence,
        prepared=search.ready,
    )
    return _without_coming(said, search)


def _without_coming(said: Certificate, search: "Search") -> Certificate:
    """A certificate that knows of named spaces which the corpus is yet to get: what they will say of any document nothing bounds."""
    if not search.coming:
        return said
    n_docs = search.generation.root.n_docs
    unseen = [Unseen(layer=name, state="building", covered=0, total=n_docs, reason=why, change=1.0) for name, why in search.coming.items()]
    names = ", ".join(search.coming)
    why = f"{names} {'is' if len(unseen) == 1 else 'are'} still to be built, and may change any of the hits"
    told = {"final": False, "exact_to": 0, "could_change": 1.0, "unseen": [*said.unseen, *unseen], "because": why}
    return said.model_copy(update=told | {"at_most": said.at_most + len(unseen) * CERTAINTY})


def planned(search: "Search") -> SearchPlan:
    """How the search went. A space's time is that of all its shards together."""
    took: dict[str, float] = {}
    for s in search.found.status if search.found is not None else ():
        took[s.space] = took.get(s.space, 0.0) + s.seconds
    gain = search.gains()
    spaces = [
        PlannedSpace(
            layer=name,
            round=search.rounds.get(name),
            expected_ms=round(1e3 * search.expected_s.get(name, 0.0), 3),
            took_ms=round(1e3 * took[name], 3) if name in took else None,
            change=round(gain.get(name, 0.0), 4),
            reason=search.unasked.get(name, ""),
        )
        for name in search.all_names
    ]
    return SearchPlan(goal=search.request.goal, rounds=search.n_rounds, spaces=spaces, stopped=search.stopped or _stopped(search))


def _stopped(search: "Search") -> str:
    return "all were asked" if not (search.ready or search.dear) else "nothing more fits into the time"


def coverage(search: "Search") -> list[LayerStatus]:
    """Coverage of all that was asked, and of what was not begun."""
    found = list(search.found.status) if search.found is not None else []
    for name in (*search.ready, *search.dear):
        why = search.unasked.get(name, NOT_BEGUN)
        over_entries = search.generation.spaces[name].layer.over == "entries"
        for ref in search.generation.root.shards:
            total = ref.n_entries if over_entries else ref.n_docs
            found.append(LayerStatus(name, ref.shard, "late", 0, total, why))
    pending = sum(source.pending for source in search.generation.root.sources.values())
    for name, why in search.coming.items():
        for ref in search.generation.root.shards:
            found.append(LayerStatus(name, ref.shard, "building", 0, ref.n_docs + (pending if ref.shard == 0 else 0), why))
    return sorted(found, key=lambda s: (s.space, s.shard))
