"""Rows of NLQL for people: each with its place, its scores and its text; then facets, and what was not looked at."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

from jobs.render import Places, shortfalls, visible
from jobs.tables import put, table
from jobs.terminal import Screen

if TYPE_CHECKING:
    from serve.nlql.schema import Facet, QueryAnswer, Row

MAX_CHARS = 400  # of a row's text; --whole shows all of it
MAX_VALUES = 20  # of a facet
MAX_READ_BYTES = 16 << 20  # of a file, to count its lines: a moment for any file that people read


def rows(out: Screen, answer: "QueryAnswer", places: Places | None = None, whole: bool = False) -> None:
    """A whole answer. places: where entries lie on this machine. whole: texts to their ends."""
    known = places or Places()
    for row in answer.rows:
        _row(out, row, known, whole)
        out.print()
    took = answer.timings_ms.get("total")
    tail = f"generation {answer.generation}" + (f", {took:.0f} ms" if took is not None else "")
    n = len(answer.rows)
    out.print(Text.assemble((f"{n:,} row{'s' if n != 1 else ''}", "bold green" if n else "bold red"), (f"  ({tail})", "dim")))
    if answer.rerank is not None:
        why = f": {answer.rerank.reason}" if answer.rerank.reason else ""
        out.print(Text(f"reranked by {answer.rerank.name}: {answer.rerank.state}, {answer.rerank.n:,} rows{why}", "dim"))
    for facet in answer.facets:
        facets(out, facet)
    if not answer.complete:
        for line in shortfalls(answer.coverage) or ["no layer told what it looked at"]:
            out.print(Text(f"not fully searched: {line}", "yellow"))


def _row(out: Screen, row: "Row", places: Places, whole: bool) -> None:
    head = _place(out, row, places)
    if row.scores:
        head.append("  " + ", ".join(f"{name} {score:.4g}" for name, score in row.scores.items()), "bold")
    head.append(f"  [{what(row)}]", "cyan")
    out.print(head)
    if row.metadata:
        out.print(Text("    " + ", ".join(f"{name} {_short(value)}" for name, value in row.metadata.items()), "dim"))
    text = visible(row.content)
    if not whole and len(text) > MAX_CHARS:
        text = text[:MAX_CHARS].rsplit(None, 1)[0] + " …"
    for line in text.splitlines():
        shown = Text(line)
        for part in shown.wrap(out, out.width - 4) if out.is_terminal and out.width > 20 else [shown]:
            out.print(Text.assemble("    ", part))


def _place(out: Screen, row: "Row", places: Places) -> Text:
    """`path:line:` of a file on this machine, so that editors open it; the path alone elsewhere."""
    if row.entry is None:
        return Text(visible(row.doc_id), "magenta")
    path = Text(visible(places.path(row.entry)), "magenta")
    if (file := places.file(row.entry)) is None:
        return path
    path = out.linked(path, file)
    return Text.assemble(path, ":", (f"{line}", "green"), ":") if (line := line_of(file, row)) else path


def line_of(file: Path, row: "Row") -> int:
    """The line of a file in which a row begins; 0 where the row's bytes are not the file's: it has changed, or is no plain text."""
    if row.end > MAX_READ_BYTES:
        return 0
    try:
        with file.open("rb") as opened:
            read = opened.read(row.end)
    except OSError:
        return 0
    same = read[row.start :].decode("utf-8", "replace").split() == row.content.split()
    return read.count(b"\n", 0, row.start) + 1 if same and row.content.split() else 0


def what(row: "Row") -> str:
    """What kind of row it is, and which of its document: "sentence 4", "span 3 to 5 around 4"."""
    if row.span is not None:
        first, centre, last = row.span
        return f"span {first} to {last} around {centre}"
    return row.kind if row.kind == "document" else f"{row.kind} {row.ordinal}"


def facets(out: Screen, facet: "Facet") -> None:
    """How often each value is there."""
    made = table("rows", "value")
    for told in facet.values[:MAX_VALUES]:
        made.add_row(f"{told.count:,}", escape(_short(told.value)))
    out.print()
    rest = facet.n_values - min(len(facet.values), MAX_VALUES)
    cut = f", the first {MAX_VALUES} of {facet.n_values:,} values" if rest > 0 else ""
    out.print(Text(f"count by {visible(facet.expr)}{cut}", "bold"))
    put(out, made)


def _short(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        import json

        value = json.dumps(value, ensure_ascii=False)
    text = visible(str(value)).replace("\n", " ")
    return text if len(text) <= 80 else f"{text[:79]}…"
