"""The numbers that a query's scorers give to the rows of a shard."""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from shards.errors import BadQuery
from shards.layers.joined_units import ranges
from shards.layers.vectors import EncodedLayer
from shards.layers.vectors_reader import VectorReader, kernel_rows
from shards.nlql.errors import NLQLError
from shards.nlql.plan import Scorer
from shards.nlql.rows import ShardRows
from shards.plan import Everything, SpaceQuery
from shards.shard import Space
from shards.types import Array, Budget, LayerStatus

logger = logging.getLogger(__name__)

ENCODE_UNITS = 256  # encoded between two looks at the clock
FEW_SHARE = 16  # of units at most one in so many is few: their rows are visited one by one
KEPT_BYTES = 64 << 20  # of vectors of one shard that were made at query time


@dataclass
class Scores:
    """What rows are given. of: by block, (scorers, rows) float64, NaN where there is none or where nobody wanted to know.

    looked: by block, (rows,) bool, False where the time ended before all that was wanted of a row was known.
    """

    of: list[Array]
    looked: list[Array]
    status: list[LayerStatus] = field(default_factory=list)
    n_encoded: int = 0


def score(rows: ShardRows, scorers: Sequence[Scorer], within: Sequence[Array], budget: Budget) -> Scores:
    """The scores of rows. within: by block, (rows,) bool, those that are wanted.

    A space that is broken or absent gives none, and coverage says so. Raises NLQLError where a question cannot be asked at all.
    """
    scores = Scores([np.full((len(scorers), len(block)), np.nan) for block in rows.blocks], [np.ones(len(b), bool) for b in rows.blocks])
    for at in _asked_together(rows, scorers):
        group = [scorers[i] for i in at]
        begun, state, reason = time.monotonic(), "", ""
        try:
            if group[0].query is not None and (reason := rows.shard.reopened(group[0].query.space)):
                state = "failed"
            else:
                _score(rows, group, at, within, scores, budget)
        except (NLQLError, BadQuery):
            raise
        except Exception as error:  # one broken space must not take the others with it: it is reported, and logged
            logger.exception("shard=%d space=%s event=rows_failed", rows.shard.number, group[0].query.space if group[0].query else "")
            state, reason = "failed", f"{type(error).__name__}: {error}"
        if group[0].query is not None:
            scores.status.append(_status(rows, group[0].query, at[0], within, scores, budget, state, reason, time.monotonic() - begun))
    for i, scorer in enumerate(scorers):
        for found in scores.of:
            if scorer.kind == "document":
                found[i, np.isneginf(found[i])] = np.nan
            if scorer.missing is not None:
                found[i, np.isnan(found[i])] = scorer.missing
    return scores


def _asked_together(rows: ShardRows, scorers: Sequence[Scorer]) -> list[list[int]]:
    """Places of scorers, in groups that one pass over a space's vectors answers."""
    groups: dict[object, list[int]] = {}
    for i, scorer in enumerate(scorers):
        together = scorer.kind == "unit" and scorer.query is not None
        groups.setdefault((scorer.query.space, scorer.encode) if together else i, []).append(i)
    return list(groups.values())


def _score(rows: ShardRows, group: Sequence[Scorer], at: list[int], within: Sequence[Array], scores: Scores, budget: Budget) -> None:
    first = group[0]
    if first.kind == "given":
        _put_documents(rows, at[0], within, scores, _given(rows, first))
    elif first.query is None:
        for found in scores.of:
            found[at[0]] = 0.0
    elif (space := rows.shard.spaces.get(first.query.space)) is None or space.problem:
        return
    elif not first.encode and (first.kind == "document" or not _has_vectors(rows, space)):
        for scorer, i in zip(group, at, strict=True):
            _score_documents(rows, space, scorer.query, i, within, scores, budget)
    else:
        queries = [scorer.query for scorer in group]
        found, n_looked = np.full((len(group), rows.n_units), np.nan), np.ones(rows.n_units, bool)
        wanted = _units(rows, within)
        if first.encode:
            _encode(rows, space, queries, wanted, found, n_looked, scores, budget)
        elif first.query.space == rows.cut.space:
            _score_own(rows, space, queries, wanted, found, n_looked, budget)
        else:
            _score_overlapping(rows, space, queries, wanted, found, n_looked, budget)
        is_whole = n_looked.all()
        for block, mask, into, looked in zip(rows.blocks, within, scores.of, scores.looked, strict=True):
            few = np.flatnonzero(mask) if len(wanted) * FEW_SHARE < rows.n_units else None
            for q, i in enumerate(at):
                if few is None:
                    np.take(found[q], block.units, out=into[i])
                else:
                    into[i, few] = found[q, block.units[few]]
            if not is_whole:
                looked &= n_looked[block.units]


def _has_vectors(rows: ShardRows, space: Space) -> bool:
    return any(isinstance(view.readers.get(space.id), VectorReader) for view in rows.shard.views)


def _units(rows: ShardRows, within: Sequence[Array]) -> Array:
    """The units of rows that are wanted, ascending: (m,) int64."""
    if sum(map(len, rows.blocks)) == rows.n_units and all(mask.all() for mask in within):
        return np.arange(rows.n_units)  # each has a row, or as many have several as have none, which costs no more
    wanted = np.zeros(rows.n_units, bool)
    for block, mask in zip(rows.blocks, within, strict=True):
        wanted[block.units if mask.all() else block.units[mask]] = True
    return np.flatnonzero(wanted)


# --- vectors of units --------------------------------------------------------------------------------------------------------------


def _of_views(rows: ShardRows, space: Space, wanted: Array) -> Iterator[tuple[int, VectorReader, Array]]:
    """Each view whose segment has the space, with the units of it that are wanted, as the segment numbers them."""
    edges = np.searchsorted(wanted, rows.bases)
    for v, view in enumerate(rows.shard.views):
        reader = view.readers.get(space.id)
        if isinstance(reader, VectorReader) and edges[v + 1] > edges[v]:
            yield v, reader, wanted[edges[v] : edges[v + 1]] - rows.bases[v]


def _score_own(
    rows: ShardRows, space: Space, queries: Sequence[SpaceQuery], wanted: Array, found: Array, looked: Array, budget: Budget
) -> None:
    for v, reader, local in _of_views(rows, space, wanted):
        vectors = rows.units[v].vectors
        stored = local if vectors is None else vectors[local]
        if vectors is not None:
            local, stored = local[stored >= 0], stored[stored >= 0]
        part = reader.scores_of(queries, stored, budget)
        if part.shape[1] == len(rows.units[v]):  # all, in this order
            found[:, rows.bases[v] : rows.bases[v + 1]] = part
            continue
        units = local + rows.bases[v]
        found[:, units[: part.shape[1]]] = part
        looked[units[part.shape[1] :]] = False


def _score_overlapping(
    rows: ShardRows, space: Space, queries: Sequence[SpaceQuery], wanted: Array, found: Array, looked: Array, budget: Budget
) -> None:
    for v, reader, local in _of_views(rows, space, wanted):
        held, texts, spans = rows.units[v], rows.shard.views[v].segment.documents.starts, reader.spans
        documents = np.unique(held.rows[local])
        counts = spans.row_units[documents + 1] - spans.row_units[documents]
        passages = ranges(spans.row_units[documents], spans.row_units[documents + 1])
        part = reader.scores_of(queries, passages, budget)
        units, at = local + rows.bases[v], texts[held.rows[local]]
        if part.shape[1] < len(passages):  # a document half looked at does not count
            n_whole = int(np.searchsorted(np.cumsum(counts), part.shape[1], "right"))
            looked[units[held.rows[local] >= documents[n_whole]]] = False
        base = np.repeat(texts[documents], counts)
        first = np.searchsorted(base + spans.ends[passages], at + held.starts[local], "right")
        after = np.searchsorted(base + spans.starts[passages], at + held.ends[local], "left")
        some = (after > first) & looked[units]
        edges = np.stack([first[some], after[some]], axis=1).ravel()
        for q in range(len(queries)):
            if len(edges):
                found[q, units[some]] = np.maximum.reduceat(np.append(part[q], -np.inf), np.minimum(edges, part.shape[1]))[::2]


def _encode(
    rows: ShardRows,
    space: Space,
    queries: Sequence[SpaceQuery],
    wanted: Array,
    found: Array,
    looked: Array,
    scores: Scores,
    budget: Budget,
) -> None:
    """Scores of units that no space holds, by the encoder of one that has others; what was encoded is kept as far as it is small."""
    from shards.vector_kernels import inner_products_of

    layer = space.layer
    assert isinstance(layer, EncodedLayer), "a space that encodes nothing has no vectors for texts"
    asked = np.stack([np.asarray(query.payload, np.float64) for query in queries])
    keeps = rows.n_units * asked.shape[1] * layer.stored.itemsize <= KEPT_BYTES
    kept = rows.encoded.setdefault(space.id, {}) if keeps else {}
    for start in range(0, len(wanted), ENCODE_UNITS):
        units = wanted[start : start + ENCODE_UNITS]
        new = [unit for unit in units.tolist() if unit not in kept]
        if new:
            if budget.expired:
                looked[wanted[start:]] = False
                return
            vectors = layer.encoder.encode_documents(rows.texts(np.array(new))).astype(layer.stored, copy=False)
            kept.update(zip(new, vectors, strict=True))
            scores.n_encoded += len(new)
        vectors = np.stack([kept[unit] for unit in units.tolist()])
        vectors.setflags(write=False)  # as those of segments are: the kernel is compiled once
        part = np.empty((len(queries), len(units)))
        inner_products_of(kernel_rows(vectors), np.arange(len(units)), asked, part)
        found[:, units] = part
        if not keeps:
            kept.clear()


# --- documents ---------------------------------------------------------------------------------------------------------------------


def _score_documents(
    rows: ShardRows, space: Space, query: SpaceQuery, i: int, within: Sequence[Array], scores: Scores, budget: Budget
) -> None:
    shard = rows.shard
    if space.layer.over == "entries":
        for block, mask, found, looked in zip(rows.blocks, within, scores.of, scores.looked, strict=True):
            view = shard.views[block.view]
            if (reader := view.readers.get(space.id)) is None:
                continue
            asked = np.zeros(len(view.live_entries), bool)
            asked[block.entries[mask]] = True
            if query.where is not None and (allowed := view.fields.mask(query.where)) is not None:
                asked &= allowed
            own = np.full(len(asked), np.nan)
            entries = np.flatnonzero(asked).astype(np.int32)
            own[entries] = reader.score(query, entries, budget).scores
            found[i] = own[block.entries]
            if budget.expired:
                looked &= ~np.isnan(found[i])
        return
    wanted = np.zeros(shard.n_rows, bool)
    for block, mask in zip(rows.blocks, within, strict=True):
        wanted[shard.views[block.view].entry_docs[block.entries[mask]]] = True
    by_document = np.full(shard.n_rows, np.nan)
    inside = None if query.where in (None, Everything()) else shard.documents_in(query.where)
    for v, view in enumerate(shard.views):
        if (reader := view.readers.get(space.id)) is None:
            continue
        asked = wanted[view.base : view.base + len(view.live_docs)]
        if inside is not None:
            by_document[view.base + np.flatnonzero(asked & ~inside[v])] = -np.inf
            asked = asked & inside[v]
        documents = np.flatnonzero(asked).astype(np.int32)
        by_document[view.base + documents] = reader.score(query, documents, budget).scores
    _put_documents(rows, i, within, scores, by_document)
    if budget.expired:
        for looked, found in zip(scores.looked, scores.of, strict=True):
            looked &= ~np.isnan(found[i])


def _given(rows: ShardRows, scorer: Scorer) -> Array:
    hashes, numbers = scorer.given.arrays()
    by_document = np.full(rows.shard.n_rows, np.nan)
    for view in rows.shard.views:
        own = view.rows_of(hashes)
        by_document[view.base + own[own >= 0]] = numbers[own >= 0]
    return by_document


def _put_documents(rows: ShardRows, i: int, within: Sequence[Array], scores: Scores, by_document: Array) -> None:
    for block, found in zip(rows.blocks, scores.of, strict=True):
        found[i] = by_document[rows.shard.views[block.view].entry_docs[block.entries]]


# --- coverage ----------------------------------------------------------------------------------------------------------------------


def _status(
    rows: ShardRows,
    query: SpaceQuery,
    i: int,
    within: Sequence[Array],
    scores: Scores,
    budget: Budget,
    state: str,
    reason: str,
    seconds: float,
) -> LayerStatus:
    total = covered = 0
    for block, mask, found in zip(rows.blocks, within, scores.of, strict=True):
        n = block.n_entries(mask)
        unknown = np.isnan(found[i])
        total, covered = total + n, covered + (block.n_entries(mask & ~unknown) if unknown.any() else n)
    if not state:
        state, reason = rows.shard.coverage(query, covered, total, budget)
    return LayerStatus(query.space, rows.shard.number, state, covered, total, reason, seconds)
