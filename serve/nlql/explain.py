"""A plan as people and programs read it: what is asked, what WHERE becomes, what it will cost. Of both spellings that the peer's pages
promise, both are there: `filter.pushed` and `pushed_filter`."""

from collections.abc import Sequence
from typing import Any

from serve.nlql.json_ir import node_to_dict, query_to_dict
from serve.nlql.plan import ENCODED_FACTOR, Planned
from serve.nlql.unparse import written
from shards.nlql import ir
from shards.plan import SpaceQuery

STORE = "sondage"
SENTENCE_BYTES = 100  # of a corpus that is cut when it is asked: English has 90 to 120


def explain(
    planned: Planned, questions: Sequence[SpaceQuery | None] = (), reranker: str | None = None, factor: int | None = None
) -> dict[str, Any]:
    """JSON values. questions: what was prepared for each score, None where there was nothing to ask. reranker: who is to order rows anew.

    cost: rows, those that WHERE looks at if nothing is left out before; vectors: that are multiplied with a question; encoded: texts that
    are encoded when they are asked for; bytes: of vectors and text that are read.
    """
    query = planned.query
    pushed, residual = _node(planned.pushed), _node(planned.residual)
    plan: dict[str, Any] = {
        "select": {"unit": query.select.unit, "window": query.select.window},
        "granularity": planned.base.unit,
        "store": STORE,
        "scores": [
            {"key_alias": scorer.alias, "query": scorer.text, "path": scorer.path, "score": scorer.kind, "spaces": list(scorer.spaces)}
            for scorer in planned.scorers
        ],
        "bindings": [binding.name for binding in planned.let],
        "filter": {"pushed": pushed, "residual": residual},
        "pushed_filter": pushed,
        "residual_filter": residual,
        "run": [written(expr) for expr in planned.filter],
        "order_by": [{"expr": node_to_dict(key.expr), "desc": key.desc} for key in query.order_by],
        "limit": query.limit,
        "offset": query.offset,
        "count_by": [node_to_dict(expr) for expr in query.count_by],
        "recall": "exact-flat" if planned.scorers else "scan",
        "ir": query_to_dict(query),
        "text": written(query),
        "field_types": dict(planned.field_types),
        "asked": [
            {"space": space, "asked": question.asked if question is not None else None, "text": scorer.text}
            for scorer, question in zip(planned.scorers, questions, strict=False)
            for space in scorer.spaces
        ],
        "notes": _notes(planned),
        "cost": cost(planned, questions),
    }
    if query.within_ms is not None:
        plan["within_ms"] = query.within_ms
    if reranker is not None:
        plan["rerank"] = reranker
        plan["rerank_rows"] = None if query.limit is None or factor is None else (query.offset + query.limit) * factor
    return plan


def _notes(planned: Planned) -> list[str]:
    if not planned.encodes_best:
        return list(planned.notes)
    assert planned.text_space is not None
    best = f"{ENCODED_FACTOR} x as many documents as rows are wanted, the best by their {planned.text_space.unit}s"
    return [*planned.notes, f"SENTENCE: of {best}; of others no sentence is seen"]


def cost(planned: Planned, questions: Sequence[SpaceQuery | None] = ()) -> dict[str, int]:
    """What running a plan takes at most, by the sizes of the corpus."""
    facts = planned.facts
    rows = facts.n_entries
    if planned.base.unit != "document":
        own = facts.spaces.get(planned.base.space)
        rows = own.n_units if own else max(facts.n_docs, facts.text_bytes // SENTENCE_BYTES)
    vectors = bytes_read = encoded = 0
    for number, scorer in enumerate(planned.scorers):
        question = questions[number] if number < len(questions) else None
        dim = len(question.payload) if question is not None and hasattr(question.payload, "__len__") else 0
        if scorer.kind != "similarity":
            continue
        for name in scorer.spaces:
            n = facts.spaces[name].n_units
            vectors += n
            bytes_read += 4 * dim * n
        if scorer.is_of_text and planned.encode:
            encoded = max(encoded, rows)
    if any(_reads_text(expr) for expr in (*planned.filter, *(key.expr for key in planned.order_by), *planned.facets)):
        bytes_read += facts.text_bytes
    return {"rows": int(rows), "vectors": int(vectors), "encoded": int(encoded), "bytes": int(bytes_read)}


def _reads_text(expr: ir.Expr) -> bool:
    return any(isinstance(node, ir.Path) and node.root == "content" for node in ir.walk(expr))


def _node(expr: ir.Expr | None) -> dict[str, Any] | None:
    return None if expr is None else node_to_dict(expr)
