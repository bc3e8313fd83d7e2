"""From what a search has found so far to an answer: evidence, verdict, ranking, the last stage, hits, and what was not looked at."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from serve.answers import highlighter_of, hits_out, layer_infos, layer_times
from serve.anytime.learned import FEW_HITS
from serve.anytime.telling import certified, coverage, planned
from serve.couplings import NOTHING, couple, located, with_places, with_weights
from serve.evidence import Fused, weigh
from serve.explanation import explained
from serve.joint import complete
from serve.judging import answerable, evidence_of
from serve.paging import Cursor
from serve.paging import identity as request_identity
from serve.passages import Span
from serve.questions import explicit, silent
from serve.reranking import Pinned, Reranked, Stage, follow, with_scores
from serve.schema import Coverage, Hit, JointInfo, SearchAnswer
from shards import routing
from shards.candidates import without
from shards.types import Array, Budget, Candidates

if TYPE_CHECKING:
    from serve.anytime.search import Search
    from serve.coordinator import Coordinator

PIECE = 5  # hits that are written at once: 1 to 2 ms, and each answer under way waits for such a piece at each of its steps
HIT_S = 4e-5  # of the time, kept back for sending each: where there is no more none is begun, but for the first few
NOT_YET = "further layers are being asked"  # of an answer that another one follows


async def answered(search: "Search", coordinator: "Coordinator", stage: Stage | None, last: bool = True) -> SearchAnswer:
    """The answer so far. stage: the last one, which orders the best hits anew; last: whether none follows that knows more."""
    request, generation, laps, budget = search.request, search.generation, search.laps, search.budget
    root, cursor, changed = generation.root, search.cursor, search.changed
    begun = laps.now_s
    offset = cursor.offset if cursor else 0
    prepared, reasons, known = list(search.queries), search.reasons, set(search.known)
    plan, facts = search.plan, search.facts()
    found = search.found
    judged = request if changed is None else request.model_copy(update={"query": changed.asked_text})
    joint: JointInfo | None = None
    if request.coupling.name == "joint" and found is not None and last:
        wanted = offset + max(request.k, stage.wanted.depth if stage else 0) + len(known)
        quiet = silent(generation, reasons)
        found, joint = await complete(
            found,
            plan,
            [generation.spaces[query.space].layer for query in plan.queries],
            lambda candidates: weigh(candidates, facts, generation.nulls, quiet),
            lambda further: coordinator.searcher.search(root.corpus, root.generation, len(root.shards), further),
            Budget(plan.budget_s),
            wanted=wanted,
            n_docs=root.n_docs,
            weights=request.weights,
        )
        if joint.exact_to and search.unfinished:  # spaces that were not begun may say of any document what nobody knows
            joint = joint.model_copy(update={"exact_to": 0, "reason": "not all layers were asked in time"})
        if known:  # any of them may have stood among the first
            joint = joint.model_copy(update={"exact_to": max(0, joint.exact_to - len(known))})
        laps.end("joint")
    found = without(found, known) if known and found is not None else found
    fused, verdict, why = evidence_of(generation, judged, facts, reasons, found, drawn=changed is not None)
    coupled = NOTHING if fused is None else couple(request, facts, fused, found, explicit=explicit(request))
    if last:
        search.learn(fused if not known else None, found)
    laps.end("fuse")
    shown = located(fused, coupled, found, facts) if fused is not None and (verdict != "none" or request.keep_all) else None
    ranking = NOTHING.ranking if shown is None else coupled.ranking
    reranked: Reranked | None = None
    pinned = cursor.reranked if cursor else None
    spans = [] if shown is None or (stage is None and pinned is None) else _spans(found, shown, ranking)
    if stage is not None and last:
        details_of = coordinator.details_of(generation, plan, budget)
        details_of = details_of if search.fresh is None else search.fresh.details_of(details_of, plan)
        before = (pinned or Pinned()) if cursor else None  # a first page without a last stage was in the order of evidence
        reranked = await stage.run(spans, details_of, budget, offset, request.k, before)
        ranking, pinned = ranking[reranked.order], reranked.pinned
        laps.end("rerank")
    elif pinned is not None:  # by settings that have changed since
        ranking = ranking[follow(spans, pinned, offset, request.k)[0]]
    hits: list[Hit] = []
    written = request.k
    page, more = coupled.page(ranking, offset, request.k)
    if shown is not None:
        details = await coordinator.details(generation, plan, found, shown, page, budget)
        if search.fresh is not None and (gone := await search.fresh.look(details, _shown(found, shown, page), plan, budget)):
            is_left = np.array([key.tobytes() not in gone for key in found.hashes], np.bool_)
            page, more = coupled.page(ranking[is_left[ranking]], offset, request.k)  # others take their places
            page = [row for row in page if is_left[row]]
            if budget.remaining_s > 0:
                details = await coordinator.details(generation, plan, replace(found, details=details), shown, page, budget)
                gone = await search.fresh.look(details, _shown(found, shown, page), plan, budget)
                page = [row for row in page if found.hashes[row].tobytes() not in gone]
        mark_up = highlighter_of(request, generation, prepared) if request.highlight else None
        standing = {} if search.fresh is None else {"freshness": search.fresh.of}
        for at in range(0, len(page), PIECE):
            if at:
                await asyncio.sleep(0)  # a thousand hits take long, and nobody else's answer is to wait for them
            if at >= FEW_HITS and budget.remaining_s < at * HIT_S:
                written, more = at, True  # the rest is the next page
                break
            marked = mark_up if not at or budget.remaining_s > 0 else None  # what is there goes before how it looks
            hits += hits_out(page[at : at + PIECE], shown, found, plan.queries, details, marked, request.explain, **standing)
        hits = with_places(hits, page, found, facts, coupled)
        if reranked is not None:
            hits = with_scores(hits, spans, reranked)
    laps.end("excerpts")
    following = Cursor(root.generation, offset + written, plan.n_candidates, request_identity(request), pinned).encode() if more else None
    if following:
        coordinator.generations.pin(root.corpus, root.generation)
    infos = with_weights(layer_infos(generation, search.names, prepared, reasons | search.unasked, found, fused), facts, coupled)
    if request.explain and fused is not None:
        infos = explained(infos, request, generation, prepared, facts, found, fused, search.translation)
    status = coverage(search)
    if verdict == "none" and status and not any(s.covered for s in status):
        why = f"nothing was looked at: {status[0].reason}"  # which is no word about the corpus
    certificate = certified(search, fused, offset + request.k, request.coupling.name == "evidence" and reranked is None)
    if not last and certificate.final:
        certificate = certificate.model_copy(update={"final": False, "because": NOT_YET})
    if search.fresh is not None and certificate.final and (doubt := search.fresh.doubt(query.space for query in prepared)):
        certificate = certificate.model_copy(update={"final": False, "because": doubt})
    search.learned.answered(laps.now_s - begun - (laps.ms.get("rerank", 0.0) + laps.ms.get("joint", 0.0)) / 1e3, len(page))
    return SearchAnswer(
        corpus=root.corpus,
        generation=root.generation,
        null_version=root.null_version,
        verdict=verdict,
        verdict_reason=why,
        # A host that dies between its scores and its texts takes hits with it.
        complete=bool(status) and all(s.state in ("ready", "scoped") for s in status) and len(hits) == len(page),
        hits=hits,
        cursor=following,
        layers=infos,
        coverage=[
            Coverage(layer=s.space, shard=s.shard, state=s.state, covered=s.covered, total=s.total, reason=s.reason) for s in status
        ],
        coupling=request.coupling,
        joint=joint,
        rerank=reranked.info if reranked else None,
        timings_ms=laps.ms | {"total": laps.total_ms} | layer_times(status),
        read_as=dict(routing.read(request.query).shapes) if request.layers == "auto" else {},
        answerable=answerable(generation, request, facts, fused) if request.explain and fused is not None and not changed else None,
        feedback=changed.info if changed else None,
        translation=search.translation,
        certificate=certificate,
        continue_=_token(search, coordinator) if last and search.unfinished else None,
        resumed=search.resumed,
        plan=planned(search) if request.explain else None,
        freshness=search.fresh.info() if search.fresh is not None else None,
    )


def _shown(found: Candidates, shown: Fused, page: list[int]) -> dict[bytes, tuple[int, int]]:
    """The spans that a page shows, by content hash."""
    return {found.hashes[row].tobytes(): (int(shown.starts[row]), int(shown.ends[row])) for row in page}


def _token(search: "Search", coordinator: "Coordinator") -> str:
    """What a search is kept under that its time cut off."""
    search.put_by()
    return coordinator.unfinished.keep(search, request_identity(search.request), search.size_bytes)


def _spans(found: Candidates, shown: Fused, ranking: Array) -> list[Span]:
    """The hits of these rows: where the strongest signal of each lies."""
    columns = (shown.starts[ranking].tolist(), shown.ends[ranking].tolist())
    return [(key.tobytes(), start, end) for key, start, end in zip(found.hashes[ranking], *columns, strict=True)]


