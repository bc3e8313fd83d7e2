"""Answers of the engine as frames and items for a model: what it sees of hits, rows, corpora, and how that reads."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from serve.mcp.fitting import Frame, Item, Telling, as_json
from serve.mcp.tokens import count

if TYPE_CHECKING:
    from serve.feedback_schema import TermsAnswer
    from serve.nlql.schema import QueryAnswer
    from serve.schema import Hit, SearchAnswer

MAX_PATH_CHARS, MAX_REASON_CHARS = 160, 200
METADATA_TOKENS = 60  # of a hit: what fits, the fields that say most first
FIRST = ("title", "url", "date", "year", "author", "authors", "topic")
MAX_LAYERS, MAX_VALUES, MAX_NOTES = 4, 20, 3


def hits(answer: "SearchAnswer", telling: Telling) -> tuple[Frame, list[Item]]:
    """A search's answer."""
    notes = _notes(answer)
    fields = {
        "corpus": answer.corpus,
        "verdict": answer.verdict,
        "reason": cut(answer.verdict_reason, MAX_REASON_CHARS),
        "complete": answer.complete,
        "final": answer.certificate.final if answer.certificate is not None else answer.complete,
        "notes": notes,
    }
    head = f"{answer.verdict}: {fields['reason']}" + ("" if answer.complete else " (not everything was searched)")
    more = "raise max_tokens, or lower k"
    return Frame(fields, head, "hits", more, [f"[{note}]" for note in notes], telling), [_hit(hit) for hit in answer.hits]


def _hit(hit: "Hit") -> Item:
    entry = hit.entries[0] if hit.entries else None
    path = cut(entry.path, MAX_PATH_CHARS) if entry else "?"
    layers = [signal.layer for signal in hit.signals][:MAX_LAYERS]
    named = span_id(hit.hash, hit.start, hit.end)
    metadata = small(entry.metadata) if entry else {}
    fields: dict[str, Any] = {"id": named, "path": path, "line": hit.line, "evalue": rounded(hit.evalue), "layers": layers}
    fields |= {"place": hit.place} if hit.place else {}
    fields |= {"metadata": metadata} if metadata else {}
    fields |= {"entries": hit.n_entries} if hit.n_entries > 1 else {}
    where = f"{path}:{hit.line}" + (f" ({hit.place})" if hit.place else "")
    head = f"{where} E={rounded(hit.evalue):g} {'+'.join(layers)} id={named}" + (f" {as_json(metadata)}" if metadata else "")
    text, focus = "", 0
    if hit.excerpt is not None:
        text = hit.excerpt.text
        focus = hit.excerpt.marks[0][0] if hit.excerpt.marks else 0
    return Item(fields, head, text.rstrip(), focus)


def _notes(answer: "SearchAnswer") -> list[str]:
    """What of the answer a model should know before it believes it."""
    notes = []
    if answer.translation is not None:
        made = answer.translation
        notes.append(f"{made.model} wrote forms for {', '.join(made.forms)}" if made.forms else f"not translated: {made.reason}")
    if answer.feedback is not None and answer.feedback.terms:
        notes.append(f"words added by `like`: {' '.join(answer.feedback.terms[:12])}")
    if not answer.complete:
        short = {f"{c.layer} {c.state}" for c in answer.coverage if c.state not in ("ready", "scoped")}
        notes += [f"not fully searched: {', '.join(sorted(short))}{_may_change(answer)}"] if short else []
    return [cut(note, MAX_REASON_CHARS) for note in notes[:MAX_NOTES]]


def _may_change(answer: "SearchAnswer") -> str:
    """What that may mean for the hits."""
    if (kept := answer.certificate) is None:
        return ""
    return "; these hits stay" if kept.final else f"; about {100 * kept.could_change:.0f} % of the hits may be others: ask again"


def rows(answer: "QueryAnswer", telling: Telling) -> tuple[Frame, list[Item]]:
    """A query's answer."""
    facets = {
        cut(facet.expr, MAX_PATH_CHARS): [[cut(value.value, 80), value.count] for value in facet.values[:MAX_VALUES]]
        for facet in answer.facets
    }
    fields = {"corpus": answer.corpus, "complete": answer.complete, "facets": facets}
    head = f"{len(answer.rows)} rows" + ("" if answer.complete else " (not everything was searched)")
    tail = [f"{expr}: {', '.join(f'{value} {n}' for value, n in values)}" for expr, values in facets.items()]
    return Frame(fields, head, "rows", "raise max_tokens, or add LIMIT and OFFSET", tail, telling), [_row(row) for row in answer.rows]


def _row(row: Any) -> Item:
    metadata, scores = small(row.metadata), {name: rounded(value) for name, value in row.scores.items()}
    named = span_id(row.hash, row.start, row.end)
    fields: dict[str, Any] = {"id": named, "doc_id": cut(row.doc_id, MAX_PATH_CHARS), "kind": row.kind}
    fields |= {"scores": scores} if scores else {}
    fields |= {"metadata": metadata} if metadata else {}
    told = [f"{fields['doc_id']} ({row.kind})", *(f"{name}={value:g}" for name, value in scores.items())]
    told += [as_json(metadata)] if metadata else []
    return Item(fields, " ".join([*told, f"id={named}"]), row.content)


def plan(answer: "QueryAnswer", telling: Telling) -> tuple[Frame, list[Item]]:
    """A query's plan."""
    frame = Frame({"corpus": answer.corpus, "complete": True, "rows": []}, "the query can be asked; its plan:", "plan", telling=telling)
    return frame, [Item({}, "plan", as_json(answer.plan))]


def corpora(state: Mapping[str, Any], sees: Any, telling: Telling) -> tuple[Frame, list[Item]]:
    """What there is to be searched. sees: whether a corpus may be told of."""
    items = []
    for name, facts in sorted(state.get("corpora", {}).items()):
        if not sees(name):
            continue
        layers = [layer["name"] for layer in facts.get("layers", ())]
        fields = {"corpus": name, "documents": facts.get("docs", 0), "generation": facts.get("generation", 0), "layers": layers}
        asked = "\n".join(f"{layer['name']}: {layer.get('query_format', '')}" for layer in facts.get("layers", ()))
        head = f"{name}: {fields['documents']:,} documents, layers {', '.join(layers)}"
        items.append(Item(fields, head, asked))
    return Frame({}, f"{len(items)} corpora", "corpora", "raise max_tokens", (), telling), items


def state(told: Mapping[str, Any], sees: Any, telling: Telling) -> tuple[Frame, list[Item]]:
    """Whether all is well. Of problems that belong to a corpus those of visible ones."""
    problems = [(what, str(why)) for what, why in told.get("problems", {}).items()]
    known = set(told.get("corpora", {}))
    shown = [(what, why) for what, why in problems if all(sees(name) or name not in what for name in known)]
    ready = bool(told.get("ready", not problems))
    hosts = len(told.get("hosts", ())) or 1
    fields = {"ready": ready, "hosts": hosts}
    head = f"{'ready' if ready else 'not ready'}, {hosts} hosts, {len(shown)} problems"
    items = [Item({"what": cut(what, MAX_PATH_CHARS)}, cut(what, MAX_PATH_CHARS), why) for what, why in shown]
    return Frame(fields, head, "problems", "raise max_tokens", (), telling), items


def terms(answer: "TermsAnswer", telling: Telling) -> tuple[Frame, list[Item]]:
    """Terms that set spans apart."""
    items = [
        Item(
            {"term": cut(t.term, 80), "ratio": rounded(t.ratio), "spans": t.spans, "df": t.df},
            f"{cut(t.term, 80)} ({t.spans} of {answer.read} spans, {t.df} of {t.n_units} passages)",
        )
        for t in answer.terms
    ]
    fields = {"corpus": answer.corpus, "read": answer.read}
    head = f"terms of {answer.read} spans, the most telling first"
    return Frame(fields, head, "terms", "raise max_tokens, or lower k", (), telling), items


def span_id(document: str, start: int, end: int) -> str:
    """What names a span; of a whole document, or a path, its hash alone."""
    return f"{document}:{start}-{end}" if end > start else document


def rounded(value: float) -> float:
    """To two digits: more are no information to a model, and cost tokens."""
    return float(f"{value:.2g}") if math.isfinite(value) else value


def cut(text: Any, most: int) -> str:
    """A text of at most so many characters, its middle left out: ends of paths and messages tell most."""
    text = str(text)
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most // 2) :]}"


def small(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of metadata that are short, as many as there is room for."""
    kept: dict[str, Any] = {}
    for name, value in sorted(metadata.items(), key=lambda field: FIRST.index(field[0]) if field[0] in FIRST else len(FIRST)):
        if count(as_json(kept | {name: value})) <= METADATA_TOKENS:
            kept[name] = value
    return kept
