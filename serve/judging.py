"""What was found, as evidence with its verdict: from candidates and the corpus's null models to what fusion and people are told."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from serve.evidence import Fused, SpaceFacts, fuse
from serve.questions import explicit, silent
from serve.schema import SearchRequest
from serve.verdict import Verdict, answer_margins, judge
from shards.generation import Generation
from shards.plan import SpaceQuery
from shards.probes import count_words
from shards.shard import Space
from shards.types import Candidates, LayerStatus

PARTLY = frozenset(("building", "absent"))  # states of a space that has no index of some documents yet


def facts_of(generation: Generation, prepared: Sequence[SpaceQuery], found: Candidates) -> list[SpaceFacts]:
    """What fusion has to know of the spaces that were asked, in their order."""
    facts = []
    for j, query in enumerate(prepared):
        space = generation.spaces[query.space]
        exact = query.log_p is not None
        lacking = any(s.state in PARTLY for s in found.status if s.space == query.space)
        facts.append(
            SpaceFacts(
                name=query.space,
                null=space.layer.null,
                n_units=_units_in_scope(generation, space, found),
                origin=space.layer.origin,
                whole=all(s.state == "ready" for s in found.status if s.space == query.space),
                surprise=(lambda scores, layer=space.layer, query=query: layer.surprise(query, scores)) if exact else None,
                most=query.most,
                looked=_looked(generation, found.status, space),
                partly=lacking and (space.built == "used" or bool(np.isnan(found.scores[:, j]).any())),
                built=_built(found.status, query.space),
            )
        )
    return facts


def _units_in_scope(generation: Generation, space: Space, found: Candidates) -> int:
    """Units of a space in the scope asked, the multiplier of E: all units, in the proportion of rows that the filter left."""
    n_units = int(generation.statistics(space.name).n_units)
    rows = sum(s.total for s in found.status if s.space == space.name)
    all_rows = generation.root.n_docs if space.layer.over == "documents" else generation.root.n_entries
    return max(1, math.ceil(n_units * min(1.0, rows / all_rows))) if all_rows and rows else max(1, n_units)


def _built(status: Sequence[LayerStatus], space: str) -> float:
    """The share of the scope that a space has an index of."""
    total = sum(s.total for s in status if s.space == space)
    return sum(s.covered for s in status if s.space == space) / total if total else 1.0


def _looked(generation: Generation, status: Sequence[LayerStatus], space: Space) -> float:
    """The share of the rows that a space looked at, of those that it should have: shards count by the rows that they have, whatever the
    scope leaves of these, since moments are of all. What it was not built for is none of these."""
    over_documents = space.layer.over == "documents"
    rows = {ref.shard: ref.n_docs if over_documents else ref.n_entries for ref in generation.root.shards}
    looked = due = 0.0
    for s in status:
        if s.space == space.name and s.state not in ("scoped", "building", "absent"):
            share = s.covered / s.total if s.total else float(s.state == "ready")  # a host that is gone tells no total
            of_all = rows.get(s.shard, s.total)  # shards of an experiment are none of the corpus's
            looked, due = looked + share * of_all, due + of_all
    return looked / due if due else 1.0


def evidence_of(
    generation: Generation,
    request: SearchRequest,
    facts: Sequence[SpaceFacts],
    reasons: Mapping[str, str],
    found: Candidates | None,
    drawn: bool = False,
) -> tuple[Fused | None, Verdict, str]:
    """What was found as evidence, and the verdict with its reason. found: None where nothing was asked.

    drawn: the request's text is a bag of words that feedback brought: its length is that of what was asked, but it is no sentence.
    """
    if found is None:
        return None, "none", "nothing was asked of any space"
    n_words, nulls = count_words(request.query) or None, generation.nulls
    likeness = nulls.likeness_of(request.query) if nulls is not None and n_words else 0.0
    fused = fuse(found, facts, nulls, generation.root.n_docs, silent(generation, reasons), n_words, likeness)
    return fused, *judge(fused, facts, nulls, explicit=explicit(request), text=request.query, as_sentence=not drawn)


def answerable(generation: Generation, request: SearchRequest, facts: Sequence[SpaceFacts], fused: Fused) -> float | None:
    """The least of the margins that the verdict looks at; None where there are none."""
    return min(answer_margins(fused, facts, generation.nulls, request.query).values(), default=None)
