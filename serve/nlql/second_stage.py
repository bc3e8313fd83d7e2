"""Reranking of rows: after granularity, before LIMIT, of LIMIT x factor rows at most, which the primary score has chosen."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serve.models_named import CROSS_ENCODER
from serve.nlql.filters import dotted
from serve.nlql.outcome import HIDDEN, ResultRow, Rows
from serve.nlql.plan import Planned
from serve.nlql.schema import RERANK_FACTOR, QueryRequest, QueryRerank
from serve.reranking import reordered
from shards.errors import SondageError
from shards.nlql import ir
from shards.nlql.errors import ExecutionError
from shards.plugins import PROCESS
from shards.types import Budget

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from serve.reranking import Reranking
    from shards.cross_encoder import Reranker
    from shards.plugins import Plugins

DEFAULT = "default"  # the name of a reranker that queries get which say nothing of one
MODEL_SHARE = 0.5  # of the time, kept back for a cross-encoder, as searches do by themselves


class Model:
    """A cross-encoder as a reranker of one query's rows. n: how many it has scored, of those that it was given, when the time was over."""

    def __init__(self, encoder: "Reranker", budget: Budget):
        self._encoder, self._budget = encoder, budget
        self.n = 0

    def rerank(self, question: str, rows: Sequence[ResultRow]) -> list[ResultRow]:
        """Rows that were scored change places among themselves. Raises ModelMissing."""
        scores = dict(self._encoder.scores(question, [row.content for row in rows], self._budget))
        self.n = len(scores)
        for place, score in scores.items():
            rows[place].scores["rerank"] = score
        return [rows[place] for place in reordered(len(rows), scores)]


@dataclass(frozen=True, slots=True)
class Stage:
    """A reranker for one query.

    keys: ORDER BY as bindings whose values come with the rows: by these they are handed over, as without a reranker they would be returned.
    order_by: by which they are chosen. share: of the time that is left before rows are looked for, kept back for it. pool: where it runs;
    None: in any thread.
    """

    name: str
    reranker: Any
    question: str
    factor: int
    keys: tuple[ir.Binding, ...] = ()
    descending: tuple[bool, ...] = ()
    types: tuple[str | None, ...] = ()
    order_by: tuple[ir.SortKey, ...] = ()
    plugins: "Plugins" = PROCESS
    share: float = 0.0
    pool: "Executor | None" = None

    def reorder(self, rows: Rows) -> tuple[Rows, QueryRerank]:
        """The rows in the reranker's order. Raises ExecutionError where it fails, or returns something else than its rows."""
        from shards.plugins import rerank

        begun = time.monotonic()
        rows = self._as_ordered(rows)
        handed = list(rows)
        places = {id(row): place for place, row in enumerate(handed)}
        try:
            given = rerank(self.reranker, self.question, handed)
        except SondageError:
            raise
        except Exception as error:  # somebody else's code
            raise ExecutionError(f"Reranker {self.name!r} failed: {type(error).__name__}: {error}.") from error
        order = [places.get(id(row), -1) for row in given]
        if -1 in order:
            raise ExecutionError(f"Reranker {self.name!r} returned rows that it was not given. It orders rows, and makes none.")
        if len(set(order)) < len(order):
            raise ExecutionError(f"Reranker {self.name!r} returned a row twice.")
        n = self.reranker.n if isinstance(self.reranker, Model) else len(handed)
        told: dict[str, Any] = {"name": self.name, "query": self.question, "n": n, "ms": round(1000 * (time.monotonic() - begun), 3)}
        late = n < len(handed)
        reason = f"the time was over when {n} of {len(handed)} rows were scored" if late else ""
        return rows.reordered(order), QueryRerank(state="partial" if late else "done", reason=reason, **told)

    def _as_ordered(self, rows: Rows) -> Rows:
        if not self.keys:
            return rows
        from shards.nlql.values import sort_key

        order = list(range(len(rows)))
        for binding, descending, declared in reversed(list(zip(self.keys, self.descending, self.types, strict=True))):
            keys = [sort_key(rows.value(place, binding.name), declared, self.plugins) for place in range(len(rows))]
            order = _sorted(order, keys, descending)
        return rows.reordered(order)


def _sorted(order: list[int], keys: list[Any], descending: bool) -> list[int]:
    """A stable sort in which null stays last in both directions."""
    from shards.nlql.values import NULL

    filled = [place for place in order if keys[place][0] != NULL]
    empty = [place for place in order if keys[place][0] == NULL]
    return sorted(filled, key=keys.__getitem__, reverse=descending) + empty


def stage_of(request: QueryRequest, planned: Planned, plugins: "Plugins", models: "Reranking", budget: Budget) -> Stage | None:
    """Who reranks a query: whom the request names, else whoever is registered as the default; nobody where the query has no score.

    models: who holds cross-encoders. Raises RegistryError for a name that nothing goes by, ModelMissing for a model that is not here.
    """
    if request.reranker is False:
        return None
    name, pool, share = request.reranker or DEFAULT, None, 0.0
    if request.reranker is None:
        reranker = plugins.rerankers.find(DEFAULT)
    elif name.startswith(CROSS_ENCODER):
        encoder, pool = models.cross_encoder(name.removeprefix(CROSS_ENCODER))
        reranker, share = Model(encoder, budget), MODEL_SHARE
    else:
        reranker = plugins.rerankers.get(name)
    if reranker is None or not planned.scorers:
        return None
    question = request.rerank_query if request.rerank_query is not None else planned.scorers[0].text
    factor = request.rerank_factor or RERANK_FACTOR
    primary = ir.SortKey(ir.Ref("#0"), desc=True)
    if not planned.query.order_by:
        return Stage(name, reranker, question, factor, order_by=(primary,), pool=pool, share=share)
    return Stage(
        name,
        reranker,
        question,
        factor,
        keys=tuple(ir.Binding(f"{HIDDEN}{number}", key.expr) for number, key in enumerate(planned.order_by)),
        descending=tuple(key.desc for key in planned.order_by),
        types=tuple(planned.field_types.get(dotted(key.expr)) if isinstance(key.expr, ir.Path) else None for key in planned.order_by),
        # Of rows that score alike those go first that ORDER BY has first.
        order_by=(primary, *planned.order_by),
        plugins=plugins,
        share=share,
        pool=pool,
    )
