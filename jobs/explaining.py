"""Why a hit is where it is, as tables: for each hit a row for each space, then what the spaces were asked and what their word counts."""

from collections.abc import Collection, Mapping

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from jobs.tables import evalue, number, put, table
from serve.schema import Hit, LayerInfo, SearchAnswer

INDENT = 4  # of what belongs to a hit


def hit(out: Console, found: Hit, layers: Collection[LayerInfo], late: Collection[str] = ()) -> None:
    """What each space that was asked says of a hit, the loudest first, and what that adds up to. late: spaces that did not look at all of
    the scope: where they say nothing, that means nothing."""
    rows = table("layer", "score", "rank", "z", "surprise", "gate", "concordance", "weight", "share", "of fused", "E by chance")
    origins = {info.name: info.origin for info in layers}
    rests = {(info.part, info.name): info.evidence for info in layers}
    for signal in found.signals:
        known = rests.get((signal.part, signal.layer))
        trusted = ("", "") if known is None else (number(known.gate), number(known.concordance))
        part = f"{signal.share / found.fused:.0%}" if signal.share is not None and found.fused > 0 else ""
        rows.add_row(
            escape(_name(signal.layer, origins, signal.part)), f"{signal.score:.4g}", str(found.ranks.get(signal.layer, "")),
            number(signal.z, ".1f"), f"{signal.surprise:.1f}", *trusted, number(signal.weight), number(signal.share, ".1f"), part,
            evalue(signal.evalue).removeprefix("E="),
        )  # fmt: skip
    said = {(signal.part, signal.layer) for signal in found.signals}
    for info in layers:
        if info.asked is not None and (info.part, info.name) not in said:
            rows.add_row(escape(_name(info.name, origins, info.part)), "not looked at" if info.name in late else "no match")
    put(out, rows, INDENT)
    total = f"{found.hash} bytes {found.start}-{found.end}, fused {found.fused:.1f} nats, {evalue(found.evalue)}"
    ranked = "" if found.coupled is None else f", ranked by {found.coupled:.4g}"
    out.print(Text(f"{' ' * INDENT}{total}{ranked}", "dim"))


def _name(layer: str, origins: Mapping[str, str], part: str = "") -> str:
    """A space for people, with the sub-query that asked it where there are several."""
    name = f"{part} {layer}" if part else layer
    return f"{name} (derived)" if origins.get(layer) == "derived" else name


def spaces(out: Console, found: SearchAnswer) -> None:
    """What each space was asked, by whom, and what it took; then what its evidence rests on."""
    if found.read_as:
        read = ", ".join(f"{shape} ({why})" if why else shape for shape, why in found.read_as.items())
        out.print(Text(f"read as: {read}", "dim"))
    questions = table("layer", "asked by", "asked", "why", "matched", "of units", "weight", "null model", "ms")
    for info in found.layers:
        took = found.timings_ms.get(f"layer {info.name}")
        asked, why = info.asked or "", "; ".join(filter(None, (info.because, info.reason)))
        name = _name(info.name, {}, info.part)
        row = [name, info.asked_by or "", asked, why, f"{info.n_matched:,}", f"{info.n_units:,}", f"{info.weight:.2f}", info.null]
        questions.add_row(*map(escape, row), "" if took is None else f"{took:.1f}")
    put(out, questions)
    weighed = table("layer", "gate", "learnt", "cloze", "certain", "weight", "concordance", "scores", "mean", "sd", "E x units")
    for info in found.layers:
        if (known := info.evidence) is not None:
            moments = ("" if known.n is None else f"{known.n:,}", number(known.mean, ".4g"), number(known.sd, ".4g"))
            learnt = map(number, (known.gate, known.learnt, known.cloze, known.certainty, known.weight, known.concordance))
            weighed.add_row(escape(_name(info.name, {}, info.part)), *learnt, *moments, f"{known.n_units:,}")
    if weighed.row_count:
        put(out, weighed)
    if found.plan is not None:
        planned = table("layer", "round", "expected ms", "took ms", "may change", "why not")
        for space in found.plan.spaces:
            row = ("" if space.round is None else str(space.round), f"{space.expected_ms:.1f}", number(space.took_ms, ".1f"))
            planned.add_row(escape(space.layer), *row, f"{100 * space.change:.0f} %", escape(space.reason))
        put(out, planned)
        rounds = f"{found.plan.rounds} round{'s' if found.plan.rounds != 1 else ''}"
        out.print(Text(f"goal {found.plan.goal}: {rounds}; {found.plan.stopped}", "dim"))
    if found.certificate is not None and found.certificate.unseen:
        left = table("layer", "state", "looked at", "of", "may change", "reason")
        for one in found.certificate.unseen:
            counts = (f"{one.covered:,}", f"{one.total:,}") if one.total else ("", "")
            left.add_row(escape(one.layer), escape(one.state), *counts, f"{100 * one.change:.0f} %", escape(one.reason))
        put(out, left)
        told = found.certificate
        out.print(Text(f"certain: the first {told.exact_to}; what was not looked at may add {told.at_most:.3g} nats to a document", "dim"))
    steps = ", ".join(f"{step} {ms:.1f}" for step, ms in found.timings_ms.items() if not step.startswith("layer "))
    out.print(Text(f"ms: {steps}", "dim"))
