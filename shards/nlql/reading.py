"""From the places of rows that were chosen to what is returned of them: their entries, texts, scores and values."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shards.documents import Entries
from shards.identity import HASH_BYTES
from shards.nlql.answers import FAILED, InBlocks, RowAnswer, RowEntry
from shards.nlql.columns import values
from shards.nlql.context import Context
from shards.nlql.errors import NLQLError
from shards.nlql.ir import Ref
from shards.nlql.merging import check_size
from shards.nlql.plan import RowPlan
from shards.nlql.rows import ShardRows
from shards.types import Array

if TYPE_CHECKING:
    from shards.nlql.scan import Part, Selected


def read(chosen: "Selected", which: Array, plan: RowPlan, context: Context) -> RowAnswer:
    """Some of the rows that a shard has selected, in the order of `which`, whole; entries and texts as soon as they are looked at."""
    of, at = chosen.of[which], chosen.at[which]
    units, entries = np.zeros(len(which), np.int64), np.zeros(len(which), np.int64)
    scores = np.full((len(plan.scorers), len(which)), np.nan)
    let = {binding.name: np.empty(len(which), object) for binding in plan.let}
    for p in np.unique(of).tolist():
        part, rows = chosen.parts[p], np.flatnonzero(of == p)
        inside = at[rows]
        units[rows] = part.units[inside]
        entries[rows] = part.entries[inside] + np.int64(part.block.view << 32)
        scores[:, rows] = part.scores[:, inside]
        for name, column in let.items():
            column[rows] = _values(name, part, inside, context)
    distinct, of_entry = np.unique(entries, return_inverse=True)
    answer = RowAnswer(
        of=of_entry.astype(np.int32),
        names=tuple(scorer.name for scorer in plan.scorers),
        scores=scores,
        let={name: column.tolist() for name, column in let.items()},
        keys=None if chosen.keys is None else chosen.keys.take(which),
    )
    if not len(which):
        return answer
    rows = chosen.parts[0].rows
    held = [view.segment.entries for view in rows.shard.views]
    answer = replace(answer, entries=InBlocks(len(distinct), lambda low, high: _entries(held, distinct[low:high])))
    return _with_texts(answer, chosen, which, units, rows, plan)


def _entries(held: Sequence[Entries], numbers: Array) -> list[RowEntry]:
    """As `shards.segment.unpack_entry`, of many at once: a column is read once, not once for each row. numbers: view << 32 | row."""
    made: list[RowEntry] = []
    views, rows = numbers >> 32, numbers & 0xFFFFFFFF
    for v in np.unique(views).tolist():  # ascending, as the numbers are
        entries, own = held[v], rows[views == v]
        metadata = entries.metadata.get_many(entries.places[own].astype(np.int64))
        sources = map(entries.source_names.__getitem__, entries.sources[own].tolist())
        keys = entries.hashes[own].tobytes()
        hashes = [keys[i : i + HASH_BYTES] for i in range(0, len(keys), HASH_BYTES)]
        facts = (entries.sizes[own].tolist(), entries.mtimes_ns[own].tolist())
        made += map(RowEntry, sources, entries.paths(own), hashes, *facts, metadata)
    return made


def _values(name: str, part: "Part", at: Array, context: Context) -> Array:
    """An alias on rows, (m,) object; `FAILED` on those on which it fails."""
    found = np.empty(len(at), object)
    order = np.argsort(at, kind="stable")
    try:
        for i, value in zip(order.tolist(), values(Ref(name), part.columns, context, at[order]), strict=True):
            found[i] = value  # not all at once: lists would become dimensions
    except NLQLError:
        if len(at) == 1:
            found[0] = FAILED
        else:
            for i, row in enumerate(at):
                found[i : i + 1] = _values(name, part, np.array([row]), context)
    return found


def _with_texts(answer: RowAnswer, chosen: "Selected", which: Array, units: Array, rows: ShardRows, plan: RowPlan) -> RowAnswer:
    """The same rows, with where they lie, and their texts, which are read when they are looked at."""
    starts, ends = rows.spans(units)
    first, after = rows.siblings(units)
    ordinals, spans = (units - first).astype(np.int32), None
    if plan.window is not None:
        low, high = np.maximum(units - plan.window, first), np.minimum(units + plan.window + 1, after)
        starts, ends = rows.spans(low)[0], rows.spans(high - 1)[1]
        spans = np.stack([low - first, units - first, high - 1 - first], axis=1).astype(np.int32)
        texts = partial(_neighbours, rows, low, high)
    elif not plan.by_entry:
        texts = partial(_own, rows, units)
    elif plan.unit == "document":
        whole = rows.documents(units)
        starts, ends, ordinals = np.zeros(len(units), np.int64), np.array([len(text) for text in whole], np.int64), np.zeros_like(ordinals)
        texts = partial(_whole, whole)
    else:
        groups = [_units(chosen, *chosen.also[row]) for row in which.tolist()]
        starts = np.array([rows.spans(group)[0].min() for group in groups], np.int64)
        ends = np.array([rows.spans(group)[1].max() for group in groups], np.int64)
        ordinals, texts = np.zeros_like(ordinals), partial(_joined, rows, groups)
    check_size(int((ends - starts).sum()))
    contents = InBlocks(len(units), texts)
    return replace(answer, ordinals=ordinals, starts=starts, ends=ends, contents=contents, spans=spans)


def _units(chosen: "Selected", of: Array, at: Array) -> Array:
    """The units of rows at these places."""
    return np.array([chosen.parts[p].units[row] for p, row in zip(of.tolist(), at.tolist(), strict=True)], np.int64)


# The texts of rows `low` to before `high`, by what a row is.


def _own(rows: ShardRows, units: Array, low: int, high: int) -> list[str]:
    return rows.texts(units[low:high])


def _neighbours(rows: ShardRows, first: Array, after: Array, low: int, high: int) -> list[str]:
    return rows.joined([np.arange(a, b) for a, b in zip(first[low:high].tolist(), after[low:high].tolist(), strict=True)])


def _whole(documents: Sequence[memoryview], low: int, high: int) -> list[str]:
    return [bytes(text).decode("utf-8", "replace") for text in documents[low:high]]


def _joined(rows: ShardRows, groups: Sequence[Array], low: int, high: int) -> list[str]:
    return rows.joined(groups[low:high])
