"""Which spaces need not be asked, since another one gives the same matches by reading less: nothing may count as evidence twice."""

from collections.abc import Sequence

from shards.generation import Generation
from shards.plan import SpaceQuery


def without_narrowed(generation: Generation, prepared: Sequence[SpaceQuery]) -> tuple[list[SpaceQuery], dict[str, str]]:
    """The questions that are left, and of each space that is left out the reason.

    A space is left out where one whose layer narrows its own (`Layer.narrows`) is asked the same, was built for the same paths, and
    has all its units: where an index job has not filled the one yet, the other is still asked.
    """
    reasons: dict[str, str] = {}
    for query in prepared:
        for other in prepared:
            if other is not query and other.space not in reasons and _narrows(generation, other, query):
                reasons[query.space] = f"{other.space!r} gives the same matches by reading less, and is asked instead"
                break
    return [query for query in prepared if query.space not in reasons], reasons


def _narrows(generation: Generation, other: SpaceQuery, query: SpaceQuery) -> bool:
    mine, its = generation.spaces[query.space], generation.spaces[other.space]
    return (
        its.layer.narrows == mine.layer.name
        and its.scope == mine.scope
        and other.payload == query.payload
        and int(generation.statistics(its.name).n_units) >= int(generation.statistics(mine.name).n_units)
    )
