"""What hosts found, joined with what was found in files that were read for a search: candidates of disjoint documents."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from serve.freshness_looking import Seen
from shards.plan import Plan
from shards.types import Array, Candidates


def joined(plan: Plan, parts: Sequence[Candidates], live: Candidates | None, seen: Seen) -> list[Candidates]:
    """Hosts' candidates and those of files that were read, as candidates of disjoint documents.

    Of a document whose files all changed or are gone, layers that were asked live say what they say of what was read instead; what others
    say of it stays, for they know no better. One that nothing else brings is left out, and so is one whose successor is among those found.
    Documents that the plan gives are kept, for a former round has them.
    """
    spaces = seen.live.spaces if seen.live is not None else frozenset()
    hashes = seen.live.hashes if seen.live is not None else frozenset()
    speaks = np.array([query.space in spaces for query in plan.queries], np.bool_)
    given = {plan.given[at : at + 20] for at in range(0, len(plan.given), 20)}
    brought = set() if live is None else {row.tobytes() for row in live.hashes[live.generated.any(axis=1)]}
    cleaned = []
    for part in parts:
        keys = [row.tobytes() for row in part.hashes]
        stale = [i for i, key in enumerate(keys) if key in seen.dead]
        if stale:
            generated, scores = part.generated.copy(), part.scores.copy()
            keep = np.ones(len(keys), np.bool_)
            for i in stale:
                key = keys[i]
                successors = seen.replaced.get(key)
                if key in hashes or successors is not None:
                    generated[i, speaks], scores[i, speaks] = False, np.nan
                is_gone = seen.dead[key] and key not in hashes
                is_replaced = successors is not None and not successors.isdisjoint(brought)
                nothing_left = not generated[i].any() and key not in brought and (key in hashes or successors is not None)
                keep[i] = key in given or not (is_gone or is_replaced or nothing_left)
            part = _rows(replace(part, generated=generated, scores=scores), keep)
        cleaned.append(part)
    if live is None:
        return cleaned
    place = {row.tobytes(): (p, i) for p, part in enumerate(cleaned) for i, row in enumerate(part.hashes)}
    both = [(i, *place[key]) for i, key in enumerate(row.tobytes() for row in live.hashes) if key in place]
    touched = {p for _, p, _ in both}
    for p in touched:
        part = cleaned[p]
        columns = {name: getattr(part, name).copy() for name in ("generated", "scores", "starts", "ends")}
        cleaned[p] = replace(part, **columns)
    for i, p, row in both:
        part = cleaned[p]
        better = ~np.isnan(live.scores[i]) & ~(part.scores[row] >= live.scores[i])
        part.generated[row] |= live.generated[i]
        for column, new in ((part.scores, live.scores), (part.starts, live.starts), (part.ends, live.ends)):
            column[row, better] = new[i, better]
    alone = np.ones(len(live.hashes), np.bool_)
    alone[[i for i, _, _ in both]] = False
    return [*cleaned, _rows(live, alone)]


def _rows(part: Candidates, keep: Array) -> Candidates:
    """Some of a part's documents. keep: (n,) bool."""
    return replace(part, **{name: getattr(part, name)[keep] for name in ("hashes", "generated", "scores", "starts", "ends")})
