"""The answer to a combined request: the tree is carried out (`serve.algebra_rounds`), its result becomes hits, and all is told."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from serve.algebra import Algebra, Result, same
from serve.algebra_rounds import Asked, Crossing, Rounds
from serve.algebra_schema import Cut, Operator, operands
from serve.algebra_text import written
from serve.answers import evalue_of, highlighter_of, hits_out, layer_infos, layer_times
from serve.anytime.search import WIDE
from serve.cascades import told
from serve.combined_schema import BridgeKey, Combined, Part, SubAnswer
from serve.couplings import with_weights
from serve.explanation import explained
from serve.laps import Laps
from serve.paging import Cursor, identity
from serve.reranking import Pinned, Reranked, Stage, follow, with_scores
from serve.schema import Coverage, Hit, LayerInfo, SearchAnswer, SearchRequest
from shards.generation import Generation
from shards.types import N_CANDIDATES, Array, Budget, Detail, LayerStatus

if TYPE_CHECKING:
    from serve.coordinator import Coordinator


async def combine(
    coordinator: "Coordinator", request: SearchRequest, cursor: Cursor | None, budget: Budget, stage: Stage | None, answer_s: float
) -> SearchAnswer:
    """The answer to a request with `combine`. answer_s: seconds to be kept back for writing it. Raises as `Coordinator.search`."""
    laps = Laps()
    generation = await coordinator.generation(request, cursor)
    root, tree = generation.root, request.combine
    offset = cursor.offset if cursor else 0
    wide = WIDE if request.goal == "wide" else 1
    n_candidates = cursor.n_candidates if cursor else max(wide * N_CANDIDATES, request.k, *_wanted(tree))
    reserve_s = answer_s + (stage.share_s(budget.remaining_s) if stage else 0.0)
    n_details = 2 * min(request.k, 10) if offset == 0 else 0
    kept = coordinator.unfinished.take(request.continue_, identity(request)) if request.continue_ is not None else None
    if kept is None:
        rounds = Rounds(coordinator, generation, request, n_candidates, n_details, budget, laps)
    else:
        assert isinstance(kept, Rounds)  # of the same request
        rounds, generation, n_candidates = kept, kept.generation, kept.n_candidates
        root = generation.root
        rounds.resume(request, budget, laps)
    is_newest = request.generation is None and coordinator.generations.current.get(request.corpus) is generation
    fresh = coordinator.freshness.begin(generation, request, budget, is_newest)
    result, algebra = await rounds.run(tree, reserve_s)
    laps.end("combine")
    verdict, why = result.verdict, result.why
    ranking = result.order if verdict != "none" or request.keep_all else result.order[:0]
    reranked: Reranked | None = None
    pinned = cursor.reranked if cursor else None
    spans = [(rounds.table.hashes[row].tobytes(), *_span(rounds, result, row)) for row in ranking.tolist()] if stage or pinned else []
    if stage is not None:
        before = (pinned or Pinned()) if cursor else None
        reranked = await stage.run(spans, coordinator.details_of(generation, rounds.plan, budget), budget, offset, request.k, before)
        ranking, pinned = ranking[reranked.order], reranked.pinned
        laps.end("rerank")
    elif pinned is not None:
        ranking = ranking[follow(spans, pinned, offset, request.k)[0]]
    page, more = ranking[offset : offset + request.k].tolist(), len(ranking) > offset + request.k
    details = await _details(coordinator, generation, rounds, result, page, budget)
    if fresh is not None:
        await fresh.seen(budget.remaining_s - answer_s)
        spans_of = {rounds.table.hashes[row].tobytes(): _span(rounds, result, row) for row in page}
        gone = await fresh.look(details, spans_of, rounds.plan, budget)
        page = [row for row in page if rounds.table.hashes[row].tobytes() not in gone]
    hits = _hits(page, result, rounds, generation, request, details)
    if fresh is not None:
        hits = [hit.model_copy(update={"freshness": fresh.of(bytes.fromhex(hit.hash))}) for hit in hits]
    if reranked is not None:
        hits = with_scores(hits, spans, reranked)
    laps.end("excerpts")
    following = Cursor(root.generation, offset + request.k, n_candidates, identity(request), pinned).encode() if more else None
    if following:
        coordinator.generations.pin(root.corpus, root.generation)
    status = [(asked.name, one) for asked in rounds.asked.values() if asked.answer is not None for one in asked.answer.found.status]
    status += [(asked.name, one) for asked in rounds.asked.values() for one in _passed_over(generation, asked)]
    status += [("", one) for one in rounds.missed]
    return SearchAnswer(
        corpus=root.corpus,
        generation=root.generation,
        null_version=root.null_version,
        verdict=verdict,
        verdict_reason=why,
        # Where no key was found, no question was to be asked; where there was one, and no space took it, nothing was looked at.
        complete=(bool(status) or not rounds.asked)
        and all(one.state in ("ready", "scoped") for _, one in status)
        and len(hits) == len(page),
        hits=hits,
        cursor=following,
        layers=[info for asked in rounds.asked.values() for info in _layers(generation, asked)],
        coverage=[_coverage(name, one) for name, one in status],
        combined=_told(tree, rounds, algebra),
        rerank=reranked.info if reranked else None,
        continue_=coordinator.unfinished.keep(rounds, identity(request), rounds.size_bytes) if rounds.unfinished else None,
        resumed=None if request.continue_ is None else kept is not None,
        timings_ms=laps.ms | {"total": laps.total_ms} | layer_times(one for _, one in status),
        freshness=fresh.info() if fresh is not None else None,
    )


def _wanted(node: Operator) -> Iterable[int]:
    """How many documents the cuts of a tree want."""
    if isinstance(node, Cut) and node.cut.n is not None:
        yield node.cut.n
    for inner in operands(node):
        yield from _wanted(inner)


# --- hits ----------------------------------------------------------------------------------------------------------------------------


class _Spans(NamedTuple):
    """Of each document of a table, (n,) int64."""

    starts: Array
    ends: Array


def _span(rounds: Rounds, result: Result, row: int) -> tuple[int, int]:
    """Where the sub-query that shows a document best has seen it."""
    fused = rounds.shown[int(result.shown[row])].answer.fused
    return int(fused.starts[row]), int(fused.ends[row])


async def _details(
    coordinator: "Coordinator", generation: Generation, rounds: Rounds, result: Result, page: Sequence[int], budget: Budget
) -> dict[bytes, Detail]:
    """Entries and excerpts of a page's hits, those that came along and the others in one more call."""
    spans = _Spans(np.zeros(len(result.shown), np.int64), np.zeros(len(result.shown), np.int64))
    for row in page:
        spans.starts[row], spans.ends[row] = _span(rounds, result, row)
    return await coordinator.details(generation, rounds.plan, rounds.table, spans, list(page), budget)


def _hits(
    page: Sequence[int], result: Result, rounds: Rounds, generation: Generation, request: SearchRequest, details: dict[bytes, Detail]
) -> list[Hit]:
    """Hits of these rows: shown as the best sub-query shows them, with the signals of all of them."""
    by_part: list[dict[str, Hit]] = []
    for asked in rounds.shown:
        answer = asked.answer
        rows = [row for row in page if answer.fused is not None and answer.seen[row]]
        mark_up = highlighter_of(asked.request, generation, asked.prepared) if request.highlight else None
        made = hits_out(rows, answer.fused, answer.found, tuple(asked.prepared), details, mark_up, request.explain) if rows else []
        by_part.append({hit.hash: hit for hit in made})
    hits = []
    for row in page:
        key = rounds.table.hashes[row].tobytes().hex()
        shown = by_part[int(result.shown[row])].get(key)
        if shown is None:  # whoever has its text is gone
            continue
        parts = [(asked, by_part[i][key]) for i, asked in enumerate(rounds.shown) if key in by_part[i]]
        signals = [signal.model_copy(update={"part": asked.name}) for asked, hit in parts for signal in hit.signals]
        own = {
            "fused": float(result.evidence[row]),
            "evalue": evalue_of(float(result.log_evalues[row])),
            "signals": signals,
            "constellation": _constellation(hit.constellation for _, hit in parts),
            "parts": [Part(name=asked.name, start=hit.start, end=hit.end, fused=hit.fused, evalue=hit.evalue) for asked, hit in parts],
            "coupled": None if result.values is None else float(result.values[row]),
        }
        hits.append(shown.model_copy(update=own))
    return hits


def _constellation(seen: Iterable[str]) -> str:
    kinds = set(seen)
    return kinds.pop() if len(kinds) == 1 else "both"


# --- what was done -------------------------------------------------------------------------------------------------------------------


def _layers(generation: Generation, asked: Asked) -> list[LayerInfo]:
    """The spaces of one sub-query, those that it asked or left out."""
    answer = asked.answer
    found = answer.found if answer is not None else None
    infos = layer_infos(generation, asked.names, asked.prepared, asked.reasons, found, answer.fused if answer is not None else None)
    infos = [info for info in infos if info.name in asked.names]
    if answer is not None and answer.fused is not None:
        infos = with_weights(infos, answer.facts, answer.coupled)
        if asked.request.explain:
            infos = explained(infos, asked.request, generation, asked.prepared, answer.facts, answer.found, answer.fused)
    return [info.model_copy(update={"part": asked.name}) for info in infos]


def _passed_over(generation: Generation, asked: Asked) -> list[LayerStatus]:
    """Coverage of the spaces of a sub-query that were left out because it was to be fast."""
    root = generation.root
    return [LayerStatus(name, ref.shard, "late", 0, root.n_docs, why) for name, why in asked.left_out.items() for ref in root.shards]


def _coverage(name: str, one: LayerStatus) -> Coverage:
    return Coverage(layer=one.space, shard=one.shard, state=one.state, covered=one.covered, total=one.total, reason=one.reason, part=name)


def _told(tree: Operator, rounds: Rounds, algebra: Algebra) -> Combined:
    return Combined(
        expression=written(tree),
        rounds=rounds.n_rounds,
        parts=[_sub_answer(asked) for asked in rounds.asked.values()],
        keys=[key for crossing in rounds.crossings.values() for key in _keys(crossing)],
        silent=algebra.silent,
        notes=rounds.notes,
        cuts=[told(cut, rounds.stage(cut), rounds.kept.get(same(cut))) for cut in rounds.cuts],
    )


def _sub_answer(asked: Asked) -> SubAnswer:
    answer = asked.answer
    verdict, why, documents, evalue = "none", "it was not asked: the time budget ended", 0, None
    if answer is not None:
        verdict, why = answer.verdict, answer.why
    if answer is not None and answer.fused is not None:
        rows = np.flatnonzero(answer.seen)
        documents = len(rows)
        evalue = evalue_of(float(answer.fused.log_evalues[rows].min())) if len(rows) else None
    return SubAnswer(
        name=asked.name,
        asked=written(asked.node),
        round=asked.round,
        verdict=verdict,
        verdict_reason=why,
        documents=documents,
        evalue=evalue,
    )


def _keys(crossing: Crossing) -> list[BridgeKey]:
    bridge = written(crossing.bridge)
    return [
        BridgeKey(
            bridge=bridge,
            key=key.text,
            hash=key.document.hex() if key.document else None,
            path=key.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
            place=key.place,
            fused=key.fused if math.isfinite(key.fused) else None,
            evalue=evalue_of(key.log_evalue),
            part=part,
            reason=reason,
        )
        for key, part, reason in crossing.told
    ]
