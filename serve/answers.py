"""From evidence to what is sent: hits with excerpts and signals, spaces with what they were asked. Pure functions."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from serve.constellations import constellations
from serve.evidence import Fused
from serve.freshness_schema import HitFreshness
from serve.highlight import Highlighter, Pattern, query_words
from serve.schema import EntryOut, ExcerptOut, Generated, Hit, LayerInfo, SearchRequest, Signal
from shards.generation import Generation
from shards.plan import SpaceQuery
from shards.shard import Space
from shards.types import Candidates, Derived, Detail, Excerpt

MAX_ENTRIES = 10  # places shown per hit; `n_entries` tells how many there are
SHOWN_SURPRISE = 1.0  # nats; a space that scored a hit but found it no more surprising than this is left out of its signals


def layer_times(status: Iterable[Any]) -> dict[str, float]:
    """The slowest shard's time in each space, ms."""
    times: dict[str, float] = {}
    for s in status:
        times[f"layer {s.space}"] = max(times.get(f"layer {s.space}", 0.0), round(1000 * s.seconds, 3))
    return times


def layer_infos(
    generation: Generation,
    names: list[str],
    prepared: list[SpaceQuery],
    reasons: dict[str, str],
    found: Candidates | None,
    fused: Fused | None,
) -> list[LayerInfo]:
    asked = {query.space: (s, query) for s, query in enumerate(prepared)}
    infos = []
    for name, space in sorted(generation.spaces.items()):
        s, query = asked.get(name, (None, None))
        reason = reasons.get(name, "" if name in names else "not asked for")
        infos.append(
            LayerInfo(
                name=name,
                layer=space.layer.name,
                origin=space.layer.origin,
                granularity=space.layer.granularity,
                asked=query.asked if query else None,
                reason=reason,
                n_units=int(generation.statistics(name).n_units),
                n_matched=int(found.n_matched[s]) if found is not None and s is not None else 0,
                weight=float(fused.weights[s]) if fused is not None and s is not None else 0.0,
                null=fused.nulls[s] if fused is not None and s is not None else "",
            )
        )
    return infos


def describe(space: Space, generation: Generation, size_bytes: int) -> dict[str, Any]:
    layer = space.layer
    return {
        "name": space.name,
        "layer": layer.name,
        "space": space.id,
        "params": layer.params.model_dump(mode="json"),
        "roles": list(layer.roles),
        "origin": layer.origin,
        "granularity": layer.granularity,
        "query_format": layer.query_format,
        "cost": layer.cost,
        "facts": {} if space.problem else dict(layer.facts(generation.statistics(space.name))),
        "units": int(generation.statistics(space.name).n_units),
        "bytes": size_bytes,
        "of_text": round(size_bytes / max(generation.root.text_bytes, 1), 4),
    }


def entry_out(entry: Any) -> EntryOut:
    return EntryOut(
        source=entry.source,
        path=entry.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        size_bytes=entry.size_bytes,
        mtime=entry.mtime_ns / 1e9,
        metadata=dict(entry.metadata),
    )


def highlighter_of(request: SearchRequest, generation: Generation, prepared: Iterable[SpaceQuery]) -> Highlighter:
    patterns = [Pattern(*p) for query in prepared for p in generation.spaces[query.space].layer.highlights(query)]
    return Highlighter(query_words(request.query), patterns)


def evalue_of(log_evalue: float) -> float:
    """E of ln E, without overflow: E-values above 10^300 say nothing more."""
    return math.exp(min(log_evalue, 690.0))


def hits_out(
    page: list[int],
    fused: Fused,
    found: Candidates,
    queries: tuple[SpaceQuery, ...],
    details: Mapping[bytes, Detail],
    highlighter: Highlighter | None,
    explain: bool,
    freshness: Callable[[bytes], HitFreshness] = lambda _: "unchecked",
) -> list[Hit]:
    """The hits of these rows, in their order. Left out are those without details, whose host is gone. freshness: how each stands."""
    rows = np.array(page, np.int64)
    # Lists at once: reading single numbers from arrays would cost more than all else that is done for a hit.
    by_name = np.argsort([query.space for query in queries], kind="stable")  # the plan's order depends on what spaces take
    loudest = by_name[np.argsort(-(fused.surprises[rows] * fused.weights)[:, by_name], axis=1, kind="stable")].tolist()
    spans = list(zip(fused.starts[rows].tolist(), fused.ends[rows].tolist(), strict=True))
    evidence, log_evalues = fused.fused[rows].tolist(), fused.log_evalues[rows].tolist()
    per_space = [c[rows].tolist() for c in (fused.scores, fused.surprises, fused.signal_log_evalues, fused.z, found.starts, found.ends)]
    names, weights = [query.space for query in queries], fused.weights.tolist()
    seen_by = constellations(fused.surprises[rows], fused.weights, fused.derived)
    hits = []
    for i, row in enumerate(page):
        key = found.hashes[row].tobytes()
        if (detail := details.get(key)) is None:
            continue
        scores, surprises, log_signals, z, starts, ends = (column[i] for column in per_space)
        texts = {derived.space: _generated(derived) for derived in detail.derived}
        signals = [
            Signal(
                layer=names[s],
                score=scores[s],
                surprise=surprises[s],
                evalue=evalue_of(log_signals[s]),  # finite where the score is
                start=starts[s],
                end=ends[s],
                z=z[s] if explain and math.isfinite(z[s]) else None,
                weight=weights[s] if explain else None,
                share=weights[s] * surprises[s] if explain else None,
                generated=texts.get(names[s]),
            )
            for s in loudest[i]
            if math.isfinite(scores[s]) and (surprises[s] >= SHOWN_SURPRISE or explain or len(queries) == 1)
        ]
        excerpt, line, column, place = _excerpt_out(detail, spans[i], highlighter)
        hits.append(
            Hit(
                hash=key.hex(),
                start=spans[i][0],
                end=spans[i][1],
                line=line,
                column=column,
                place=place,
                fused=evidence[i],
                evalue=evalue_of(log_evalues[i]),
                entries=[entry_out(e) for e in detail.entries[:MAX_ENTRIES]],
                n_entries=len(detail.entries),
                excerpt=excerpt,
                signals=signals,
                constellation=seen_by[i],
                freshness=freshness(key),
            )
        )
    return hits


def _generated(derived: Derived) -> Generated:
    return Generated(text=derived.text, kind=derived.kind, generator=derived.generator, start=derived.start, end=derived.end)


def _excerpt_out(detail: Detail, span: tuple[int, int], highlighter: Highlighter | None) -> tuple[ExcerptOut | None, int, int, str]:
    """What shows the span, if it was asked for, and the line, the column in it and the place that the hit is about."""
    shown = detail.excerpts.get(span)
    if shown is None:
        return None, 1, 0, ""
    text = shown.text
    marks = highlighter.marks(text, detail.kind) if highlighter else []
    focus = _focus(shown, span, marks)
    line = shown.line + text.count("\n", 0, focus)
    excerpt = ExcerptOut(start=shown.start, end=shown.end, first_line=shown.line, text=text, marks=marks)
    return excerpt, line, _column(shown, focus), _place(shown, focus)


def _column(shown: Excerpt, focus: int) -> int:
    """The 1-based character of its line that an excerpt's character is; 0 where that is not known."""
    if (newline := shown.text.rfind("\n", 0, focus)) >= 0:
        return focus - newline
    return shown.column + focus if shown.column else 0


def _place(shown: Excerpt, focus: int) -> str:
    """The page, cell or the like of a character of an excerpt; "" in files that have none."""
    if not shown.places:
        return ""
    at = len(shown.text[:focus].encode())
    return [place for begins, place in shown.places if begins <= at][-1]


def _focus(shown: Excerpt, span: tuple[int, int], marks: list[tuple[int, int]]) -> int:
    """The character of the excerpt that the hit is about: where its span begins, or for a long span the first mark after."""
    begin = len(shown.text.encode()[: max(0, span[0] - shown.start)].decode("utf-8", "ignore"))
    inside = [a for a, _ in marks if a >= begin]
    return inside[0] if inside else begin
