"""Why each space was asked what it was, and what its word counted: what `explain` adds to an answer. Pure functions of what is known.

Between what somebody typed and what an index was asked lies a translation (a rule, a model, a bridge), and there things get lost without
anybody noticing unless it is told.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from serve.concordance import concordances
from serve.evidence import Fused, SpaceFacts
from serve.schema import LayerInfo, SearchRequest, SpaceEvidence
from serve.translation_schema import TranslationInfo
from shards import routing
from shards.corpus_nulls import CorpusNulls
from shards.generation import Generation
from shards.plan import SpaceQuery
from shards.types import Array, Candidates, Moments

AskedBy = Literal["caller", "rule", "model", "bridge", "feedback"]


def explained(
    infos: Sequence[LayerInfo],
    request: SearchRequest,
    generation: Generation,
    prepared: Sequence[SpaceQuery],
    facts: Sequence[SpaceFacts],
    found: Candidates,
    fused: Fused,
    translation: TranslationInfo | None = None,
) -> list[LayerInfo]:
    """The spaces of an answer, those that were asked with where their question came from and what their evidence rests on.

    prepared, facts: of the spaces that were asked, in the plan's order, which is that of the columns of found and fused.
    """
    agreed = concordances(fused, found.generated, [query.space for query in prepared], generation.root.n_docs)
    told: dict[str, LayerInfo] = {info.name: info for info in infos}
    for j, (query, space) in enumerate(zip(prepared, facts, strict=True)):
        if translation is not None and query.space in translation.forms and not query.feedback:
            by, because = "model", f"{translation.model} wrote the form {json.dumps(translation.forms[query.space], ensure_ascii=False)}"
        else:
            by, because = origin(request, query, generation.spaces[query.space].layer.shapes)
        evidence = space_evidence(space, generation.nulls, fused.moments[j], fused, j, agreed)
        told[query.space] = told[query.space].model_copy(update={"asked_by": by, "because": because, "evidence": evidence})
    return list(told.values())


def origin(request: SearchRequest, query: SpaceQuery, takes: frozenset[str] | None) -> tuple[AskedBy, str]:
    """Who made a space's question, and why it was asked this, for people.

    A bridge goes before a model, and that before who chose the space: each is one translation further from what the caller wrote.
    takes: the shapes of text that the layer is asked by itself (`Layer.shapes`).
    """
    if query.bridge:
        return "bridge", query.bridge
    if query.feedback:
        return "feedback", query.feedback
    by_form, named = query.space in request.forms, request.layers != "auto"
    if by_form:
        why = "its own form was given"
    elif named:
        why = "it was named"
    else:
        why = _rule(request.query, takes)
    if query.model:
        return "model", f"{query.model} read {'the form' if by_form else 'the text'}; {why}"
    return "caller" if by_form or named else "rule", why


def _rule(text: str, takes: frozenset[str] | None) -> str:
    """Why a space that takes these shapes was asked by itself."""
    reading = routing.read(text)
    if takes is None:
        return "asked whatever the query looks like"
    fitting = [shape for shape in reading.shapes if shape in takes]
    if not fitting:
        return "no layer takes what the query looks like, so all are asked"
    looks = (f"{shape} ({reason})" if (reason := reading.shapes[shape]) else shape for shape in fitting)
    return f"the query looks like {' and '.join(looks)}"


def space_evidence(
    space: SpaceFacts, nulls: CorpusNulls | None, moments: Moments | None, fused: Fused, j: int, agreed: Array
) -> SpaceEvidence:
    """What the evidence of the j-th space rests on. agreed: `concordances` of all."""
    learnt: Mapping[str, float] = nulls.weights if nulls is not None else {}
    cloze: Mapping[str, float] = nulls.cloze if nulls is not None else {}
    return SpaceEvidence(
        n_units=space.n_units,
        n=moments.n if moments is not None else None,
        mean=moments.mean if moments is not None else None,
        sd=moments.sd if moments is not None else None,
        gate=float(fused.gates[j]),
        learnt=learnt.get(space.name),
        cloze=cloze.get(space.name),
        certainty=float(fused.certainties[j]),
        weight=float(fused.weights[j]),
        concordance=None if np.isnan(agreed[j]) else float(agreed[j]),
    )
