"""What is told of a search beside its hits: coverage of all that was or could be asked, the certificate, and the plan for `explain`."""

from typing import TYPE_CHECKING

from serve.anytime.schema import Certificate, PlannedSpace, SearchPlan
from serve.certificate import Judged, certificate
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
    return certificate(
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
    return sorted(found, key=lambda s: (s.space, s.shard))
