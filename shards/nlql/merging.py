"""Several answers to a query for rows as one: of shards within a host, and of hosts."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from shards.nlql.answers import Failure, Insertion, RowAnswer
from shards.nlql.context import Context
from shards.nlql.errors import ExecutionError, NLQLError
from shards.nlql.facets import Counts
from shards.nlql.plan import MOST_BYTES, MOST_ROWS, RowPlan
from shards.plugins import PROCESS, Plugins
from shards.types import Array, LayerStatus

if TYPE_CHECKING:
    from shards.nlql.scan import Selected
    from shards.nlql.sorting import SortKeys


class Ordered(Protocol):
    """Rows in their order. keys: see `RowAnswer`."""

    keys: "SortKeys | None"

    def __len__(self) -> int: ...

    def places(self) -> list[tuple[Insertion, int]]:
        """What orders rows where keys do not: the place of each one's entry, and its ordinal."""


def merge_rows(answers: Sequence[RowAnswer], plan: RowPlan, plugins: Plugins = PROCESS) -> RowAnswer:
    """The rows of all answers, best first, at most as many as are wanted.

    Raises what the first row raised, of all shards, that raised anything; and ExecutionError for more than an answer can hold.
    """
    if failure := _first_failure(answers):
        raise failure.error
    joined = _taken(_joined(answers, plugins), _best(answers, plan.n_rows, plugins))
    check_size(int((joined.ends - joined.starts).sum()))
    return _counted(joined, answers)


def merge_selected(selected: "Sequence[Selected]", plan: RowPlan, context: Context, status: tuple[LayerStatus, ...]) -> RowAnswer:
    """What shards have selected as one answer. Texts are read here, of the rows that are returned alone."""
    from shards.nlql.reading import read

    told = tuple(sorted([*status, *(one for part in selected for one in part.status)], key=lambda one: (one.space, one.shard)))
    failure = _first_failure(selected)
    if failure is None:
        try:
            positions = _best(selected, plan.n_rows, context.plugins)
            bases = np.cumsum([0, *map(len, selected)])
            of = np.searchsorted(bases, positions, "right") - 1
            parts = [read(part, positions[of == p] - bases[p], plan, context) for p, part in enumerate(selected)]
            check_size(sum(int((part.ends - part.starts).sum()) for part in parts))
            order = np.empty(len(positions), np.int64)
            order[np.argsort(of, kind="stable")] = np.arange(len(positions))
            return replace(_counted(_taken(_joined(parts, context.plugins), order), selected), status=told)
        except NLQLError as error:
            failure = Failure(error, 3)
    return RowAnswer(status=told, failure=failure)


def check_size(n_bytes: int) -> None:
    """Raises ExecutionError where texts are more than an answer can hold."""
    if n_bytes > MOST_BYTES:
        raise ExecutionError(f"The rows of this answer have more than {MOST_BYTES >> 20} MB of text, the most. Set LIMIT, or narrow WHERE.")


def _first_failure(parts: "Sequence[RowAnswer | Selected]") -> Failure | None:
    return min((part.failure for part in parts if part.failure is not None), key=lambda one: one.order, default=None)


def _best(parts: Sequence[Ordered], n: int | None, plugins: Plugins) -> Array:
    """Where the best rows stand, best first, if all parts' rows are numbered one after the other."""
    sizes = [len(part) for part in parts]
    total, filled = sum(sizes), [part for part in parts if len(part)]
    if min(total, total if n is None else n) > MOST_ROWS:
        raise ExecutionError(f"This answer has more than {MOST_ROWS:,} rows, the most. Set LIMIT (and OFFSET for those that follow).")
    if len(filled) < 2:
        return np.arange(total)[:n]
    places = [place for part in filled for place in part.places()]
    by_place = sorted(range(total), key=places.__getitem__)
    if filled[0].keys is None:
        return np.array(by_place, np.int64)[:n]
    from shards.nlql.sorting import SortKeys

    ranks = np.empty(total, np.int64)
    ranks[by_place] = np.arange(total)
    return SortKeys.join([part.keys for part in filled], plugins).order(n, ties=ranks)


def _joined(parts: Sequence[RowAnswer], plugins: Plugins) -> RowAnswer:
    """The rows of all parts, one part after the other."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else RowAnswer()
    bases = np.cumsum([0, *(len(part.entries) for part in filled)])
    keys = None
    if filled[0].keys is not None:
        from shards.nlql.sorting import SortKeys

        keys = SortKeys.join([part.keys for part in filled], plugins)
    return RowAnswer(
        entries=tuple(entry for part in filled for entry in part.entries),
        of=np.concatenate([part.of + base for part, base in zip(filled, bases, strict=False)]).astype(np.int32),
        ordinals=np.concatenate([part.ordinals for part in filled]),
        starts=np.concatenate([part.starts for part in filled]),
        ends=np.concatenate([part.ends for part in filled]),
        contents=[text for part in filled for text in part.contents],
        spans=None if filled[0].spans is None else np.concatenate([part.spans for part in filled]),
        names=filled[0].names,
        scores=np.concatenate([part.scores for part in filled], axis=1),
        let={name: [value for part in filled for value in part.let[name]] for name in filled[0].let},
        keys=keys,
    )


def _taken(answer: RowAnswer, at: Array) -> RowAnswer:
    """Some of an answer's rows, in the order of `at`, with their entries."""
    if len(at) == len(answer) and (at == np.arange(len(at))).all():
        return answer
    used, of = np.unique(answer.of[at], return_inverse=True)
    rows = at.tolist()
    return replace(
        answer,
        entries=tuple(answer.entries[i] for i in used.tolist()),
        of=of.astype(np.int32),
        ordinals=answer.ordinals[at],
        starts=answer.starts[at],
        ends=answer.ends[at],
        contents=[answer.contents[i] for i in rows],
        spans=None if answer.spans is None else answer.spans[at],
        scores=answer.scores[:, at],
        let={name: [column[i] for i in rows] for name, column in answer.let.items()},
        keys=None if answer.keys is None else answer.keys.take(at),
    )


def _counted(answer: RowAnswer, parts: "Sequence[RowAnswer | Selected]") -> RowAnswer:
    """The same rows, with the sums of all parts."""
    n_matched = sum(part.n_matched for part in parts)
    return replace(
        answer,
        status=tuple(sorted((one for part in parts for one in part.status), key=lambda one: (one.space, one.shard))),
        n_matched=n_matched,
        truncated=n_matched > len(answer),
        facets=_facets(part.facets for part in parts if part.facets),
        n_scored=sum(part.n_scored for part in parts),
        n_encoded=sum(part.n_encoded for part in parts),
    )


def _facets(parts: Iterable[Sequence[tuple[tuple[object, int], ...]]]) -> tuple[tuple[tuple[object, int], ...], ...]:
    together: list[Counts] = []
    for facets in parts:
        together = together or [Counts() for _ in facets]
        for counts, facet in zip(together, facets, strict=True):
            counts.put(facet)
    return tuple(counts.sorted() for counts in together)
