"""Answers for people: hits that editors open.

A hit begins with `path:line:column:`, as compilers and grep write it (the column where it is known), and with its page or cell where its
file has such.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rich.console import Console
from rich.text import Text

from jobs import explaining
from jobs.tables import evalue
from jobs.terminal import Screen
from serve.combined_schema import Combined, CutAnswer
from serve.schema import Coverage, EntryOut, ExcerptOut, Hit, RerankInfo, SearchAnswer, Signal

MAX_EXCERPT_LINES = 6
MAX_PLACES = 3  # further paths of the same content that are shown
VERDICT_STYLE = {"strong": "bold green", "weak": "bold yellow", "none": "bold red"}


class Places:
    """Entries as paths that an editor on this machine can open, where their source is a local folder.

    sources: name -> URL, as a corpus's status tells them.
    """

    def __init__(self, sources: Mapping[str, str] | None = None):
        self._roots = {name: root for name, url in (sources or {}).items() if (root := _local(url)) is not None}
        self._several = len(sources or {}) > 1

    def path(self, entry: EntryOut) -> str:
        """Relative to the working directory below it, absolute elsewhere on this machine, else as the corpus has it."""
        if (file := self.file(entry)) is not None:
            return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
        return f"{entry.source}/{entry.path}" if self._several else entry.path

    def file(self, entry: EntryOut) -> Path | None:
        """The file that an entry is, if it lies on this machine."""
        root = self._roots.get(entry.source)
        if root is None:
            return None
        if root.is_file() and root.name == entry.path:
            return root
        return file if (file := root / entry.path).exists() else None


def _local(url: str) -> Path | None:
    if "://" not in url:
        return Path(url).expanduser()
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def answer(out: Screen, found: SearchAnswer, places: Places, explain: bool = False, whole: bool = False) -> None:
    """A whole answer: hits, verdict, and what was not searched. whole: excerpts are what was asked for, and shown to their ends."""
    late = {part.layer for part in found.coverage if part.state not in ("ready", "scoped")}
    for hit in found.hits:
        _hit(out, hit, places, explain, whole)
        if explain:
            explaining.hit(out, hit, found.layers, late)
        out.print()
    total = found.timings_ms.get("total")
    tail = f"generation {found.generation}" + (f", {total:.0f} ms" if total is not None else "")
    count = f"{len(found.hits)} hit{'s' if len(found.hits) != 1 else ''}"
    verdict = (found.verdict, VERDICT_STYLE[found.verdict])
    out.print(Text.assemble(verdict, f": {found.verdict_reason}", (f"  ({count}; {tail})", "dim")))
    if found.combined is not None:
        for line in combined(found.combined):
            out.print(Text(line, "dim"))
    if found.coupling.name != "evidence":
        out.print(Text(coupled(found), "dim"))
    if found.rerank is not None:
        out.print(Text(last_stage(found.rerank), "dim" if found.rerank.state == "done" else "yellow"))
    if (kept := found.certificate) is not None and not kept.final:
        out.print(Text(f"not final: {kept.because}", "yellow"))
        if found.continue_:
            out.print(Text(f"go on: --continue {found.continue_}", "dim"))
    if found.resumed is False:
        out.print(Text("begun anew: what was to be continued is not kept any more", "yellow"))
    if found.cursor and found.hits:
        out.print(Text(f"more: --cursor {found.cursor}", "dim"))
    if explain:
        explaining.spaces(out, found)
    if not found.complete:
        for line in shortfalls(found.coverage):
            out.print(Text(f"not fully searched: {line}", "yellow"))
        if not found.coverage:
            out.print(Text("not fully searched: no layer was asked", "yellow"))


def combined(told: Combined) -> list[str]:
    """What a combined request was, and over which keys it went: "key 'run' of a.log (E=2e-05): asked as code[run]"."""
    lines = [f"combined: {told.expression}  ({told.rounds} round{'s' if told.rounds != 1 else ''})"]
    for key in told.keys:
        went = f"asked as {key.part}" if key.part is not None else f"not asked: {key.reason}"
        lines.append(f"key {key.key!r} of {key.path or key.place} ({evalue(key.evalue)}): {went}")
    lines += [cut(one) for one in told.cuts]
    return [*lines, *(f"silent: {node}: {why}" for node, why in told.silent.items()), *told.notes]


def cut(told: CutAnswer) -> str:
    """What a cut left, and how much of what is sought: "cut(…, 20): 20 of 100 documents; recall 0.93 (0.89 to 0.96, by 256 probes)"."""
    known = "" if told.recall is None else f"; recall {told.recall:.2f} ({told.low:.2f} to {told.high:.2f}, by {told.probes} probes)"
    return f"{told.cut}: {told.documents} of {told.of} documents{known}{f'; {told.reason}' if told.reason else ''}"


def coupled(found: SearchAnswer) -> str:
    """What ranks the hits: "ranked by select; names silent: it found nothing"."""
    quiet = [f"{info.name} {info.reason}" for info in found.layers if info.reason.startswith("silent: ")]
    how = f"ranked by {found.coupling}" if found.coupling.name != "none" else "lists side by side, not ranked"
    if found.joint is not None:
        why = f" ({found.joint.reason})" if found.joint.reason else ""
        how += f": certain to rank {found.joint.exact_to} among all {found.joint.documents:,} documents{why}"
    return "; ".join([how, *quiet])


def last_stage(info: RerankInfo) -> str:
    """What became of reranking: "reranked by MODEL: 20 hits, 412 ms", or why the order is that of the evidence."""
    if info.state == "done":
        return f"reranked by {info.model}: {info.n} hits, {info.ms:.0f} ms" + (f" ({info.reason})" if info.reason else "")
    return f"reranking by {info.model} {info.state}, {info.n} hits scored: {info.reason}"


def saying(signal: Signal) -> str:
    """Who says something of a hit: the layer, in a combined request with the sub-query that asked it."""
    return f"{signal.part} {signal.layer}" if signal.part else signal.layer


def _hit(out: Screen, hit: Hit, places: Places, explain: bool, whole: bool) -> None:
    shown = [visible(places.path(entry)) for entry in hit.entries[: 1 + MAX_PLACES]] or [hit.hash]
    head = Text(shown[0], "magenta")
    if hit.entries and (file := places.file(hit.entries[0])) is not None:
        head = out.linked(head, file)
    at = f"{hit.line}:{hit.column}" if hit.column else f"{hit.line}"
    head = Text.assemble(head, ":", (at, "green"), ":  ", (f"{hit.place}  " if hit.place else "", "green"))
    head.append(evalue(hit.evalue), "bold")
    if hit.constellation == "hypothesis":
        head.append("  hypothesis", "yellow")
    if hit.freshness == "changed":
        head.append("  changed since", "yellow")
    signals = [] if explain else [f"{saying(signal)} {evalue(signal.evalue)}" for signal in hit.signals]  # a table tells more
    if hit.ranks and not explain:
        signals.append("on lists " + ", ".join(f"{layer} #{rank}" for layer, rank in hit.ranks.items()))
    if hit.rerank is not None:
        signals.append(f"reranker {hit.rerank.score:.4g}")
    if signals:
        head.append("  [" + ", ".join(signals) + "]", "cyan")
    out.print(head)
    if len(shown) > 1:
        rest = hit.n_entries - len(shown)
        out.print(Text(f"    also {', '.join(shown[1:])}" + (f" and {rest} more" if rest > 0 else ""), "dim"))
    if hit.excerpt is not None:
        for number, line in excerpt_lines(hit.excerpt, hit.line, sys.maxsize if whole else MAX_EXCERPT_LINES):
            for row in wrapped(out, number, line):
                out.print(row)
    for text in generated(hit):
        out.print(Text(f"    {text}", "italic dim"))


def wrapped(out: Console, number: int, line: Text) -> list[Text]:
    """A numbered line as rows of the terminal, each as far in as the first; elsewhere one row, however long."""
    room = out.width - 7
    if not out.is_terminal or line.cell_len <= room or room < 10:
        return [Text.assemble((f"{number:>6} ", "dim"), line)]
    first, *more = line.wrap(out, room)
    return [Text.assemble((f"{number:>6} ", "dim"), first), *(Text.assemble(" " * 7, row) for row in more)]


def oneline(out: Console, found: SearchAnswer, places: Places) -> None:
    """A hit a line, `path:line:column: text`, as the lists of errors of editors read it."""
    for hit in found.hits:
        path = visible(places.path(hit.entries[0])) if hit.entries else hit.hash
        text = ""
        if hit.excerpt is not None:
            rows = hit.excerpt.text.split("\n")
            text = rows[hit.line - hit.excerpt.first_line] if 0 <= hit.line - hit.excerpt.first_line < len(rows) else rows[0]
        out.print(Text(f"{path}:{hit.line}:{hit.column or 1}: {visible(text).strip()}"))


def generated(hit: Hit) -> list[str]:
    """What derived spaces found a hit by, marked so that nobody takes it for the source's words."""
    lines = [
        f"generated {g.kind} ({g.generator}, about bytes {g.start}-{g.end}): {visible(g.text)}"
        for signal in hit.signals
        if (g := signal.generated) is not None
    ]
    if hit.constellation == "hypothesis":
        lines.append("hypothesis: only generated texts point here, the source itself was not found by this query")
    return lines


def visible(text: str) -> str:
    """Without control characters: a document's must not drive the terminal (escape sequences in the content could)."""
    return "".join(c if c.isprintable() or c == "\n" else " " if c == "\t" else "�" for c in text)


def excerpt_lines(excerpt: ExcerptOut, line: int, n_lines: int = MAX_EXCERPT_LINES) -> list[tuple[int, Text]]:
    """At most n_lines numbered lines of an excerpt around line number `line`, marks in bold, blank ends left out."""
    styled = Text(visible(excerpt.text))
    for start, end in excerpt.marks:
        styled.stylize("bold red", start, end)
    lines = list(enumerate(styled.split("\n", allow_blank=True), excerpt.first_line))
    first = max(0, min(line - excerpt.first_line - 1, len(lines) - n_lines))
    lines = lines[first : first + n_lines]
    while lines and not lines[-1][1].plain.strip():
        lines.pop()
    while lines and not lines[0][1].plain.strip():
        lines.pop(0)
    return lines


def shortfalls(coverage: Sequence[Coverage]) -> list[str]:
    """What was not fully searched, a line for each layer, state and reason, with its shards."""
    groups: dict[tuple[str, str, str], list[Coverage]] = {}
    for part in coverage:
        if part.state not in ("ready", "scoped"):  # a space built for some paths only is as its owner wants it
            groups.setdefault((part.layer, part.state, part.reason), []).append(part)
    lines = []
    for (layer, state, reason), parts in groups.items():
        shards = ", ".join(str(part.shard) for part in parts[:8]) + (f" and {len(parts) - 8} more" if len(parts) > 8 else "")
        looked = f"{sum(p.covered for p in parts):,} of {sum(p.total for p in parts):,}"
        lines.append(f"{layer} on shard {shards}: {state}, looked at {looked}" + (f" ({reason})" if reason else ""))
    return lines
