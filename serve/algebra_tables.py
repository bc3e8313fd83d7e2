"""Candidates of a plan in which several sub-queries ride: which columns and which coverage are whose, from round to round."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shards.identity import find_rows
from shards.plan import SpaceQuery
from shards.types import Candidates, LayerStatus


def by_question(queries: Sequence[SpaceQuery], status: Sequence[LayerStatus]) -> list[tuple[LayerStatus, ...]]:
    """The coverage of each question. Of several to one space a shard tells in the order of the plan (`Candidates.status`)."""
    columns: dict[str, list[int]] = {}
    for s, query in enumerate(queries):
        columns.setdefault(query.space, []).append(s)
    told: list[list[LayerStatus]] = [[] for _ in queries]
    seen: dict[tuple[str, int], int] = {}
    for one in status:
        i = seen[one.space, one.shard] = seen.get((one.space, one.shard), -1) + 1
        told[columns[one.space][i]].append(one)
    return [tuple(statuses) for statuses in told]


def columns_of(table: Candidates, low: int, high: int, statuses: Sequence[tuple[LayerStatus, ...]]) -> Candidates:
    """The columns [low, high) of a table, of all its documents."""
    return replace(
        table,
        generated=table.generated[:, low:high],
        scores=table.scores[:, low:high],
        starts=table.starts[:, low:high],
        ends=table.ends[:, low:high],
        moments=table.moments[low:high],
        n_matched=table.n_matched[low:high],
        status=tuple(one for column in statuses[low:high] for one in column),
    )


def carried(before: Candidates, now: Candidates) -> Candidates:
    """A sub-query's columns of a further round, in which it brought nothing, with what it had brought before: lists, moments, coverage."""
    generated = np.zeros_like(now.generated)
    rows = find_rows(now.hashes, before.hashes)
    generated[rows[rows >= 0]] = before.generated[rows >= 0]
    late = tuple(one for one in now.status if one.state not in ("ready", "scoped"))
    return replace(now, generated=generated, moments=before.moments, n_matched=before.n_matched, status=(*before.status, *late))
