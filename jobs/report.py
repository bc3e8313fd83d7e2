"""What an evaluation found, for people (terminal, one HTML page) and for programs (JSON)."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from jobs.metrics import METRICS, Array, Comparison, Evaluation, Measured, Verdicts
from jobs.progress import amount
from jobs.sections import TARGET_HEADS, Section, sections_json, target_cells
from jobs.suite import Suite

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 200  # of a table that goes into a file or a pipe
COLOURS = ("#2f6db5", "#d9822b", "#3a9d5d", "#9b59b6", "#c0392b", "#7f8c8d", "#16a085", "#b7950b")  # one per run, in turn


def as_json(found: Evaluation | Suite) -> str:
    """{"dataset", "shards", "runs": {name: {metric: mean, …, "ms_p50"}}}, and beside: figures per query, tests, sweeps, and of further
    questions "sections" and "targets". Of a suite {"collections": {name: …}} of these, and its own sections and targets."""
    if isinstance(found, Suite):
        body = {**sections_json(found.sections), "collections": {e.dataset: _body(e) for e in found.evaluations}}
    else:
        body = _body(found)
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False)


def _body(found: Evaluation) -> dict[str, Any]:
    def figures(run: Measured) -> dict:
        return {
            **{metric: run.mean(metric) for metric in METRICS},
            "ms_p50": run.ms_p50,
            "kind": run.kind,
            "bytes": run.bytes,
            "verdicts": dict(run.verdicts),
            "per_query": {metric: dict(zip(found.queries, run.values[metric].tolist(), strict=True)) for metric in METRICS},
        }

    return {
        "dataset": found.dataset,
        "shards": found.shards,
        "runs": {run.name: figures(run) for run in found.runs},
        "queries": len(found.queries),
        "docs": found.docs,
        "text_bytes": found.text_bytes,
        "depth": found.depth,
        "tests": [asdict(comparison) for comparison in found.comparisons],
        "verdicts": [{"kind": v.kind, "counts": dict(v.counts), "ks": v.ks} for v in found.verdicts],
        "sweeps": [{"parameter": run.parameter, "value": run.value, **figures(run)} for run in found.variants],
        **sections_json(found.sections),
    }


# --- terminal -------------------------------------------------------------------------------------------------------------------

HEADS = (*METRICS, "ms p50", "bytes", "strong / weak / none")


def _cells(run: Measured) -> list[str]:
    ms = "" if run.ms_p50 is None else f"{run.ms_p50:.1f}"
    verdicts = " / ".join(str(run.verdicts.get(name, 0)) for name in ("strong", "weak", "none")) if run.verdicts else ""
    size = "" if run.bytes is None else amount(run.bytes, "bytes")
    return [*(f"{run.mean(metric):.4f}" for metric in METRICS), ms, size, verdicts]


VERDICT_HEADS = ("queries whose verdict is known", "asked", "strong / weak / none", "none", "KS of E")


def _verdict_cells(found: Verdicts) -> list[str]:
    n = sum(found.counts.values())
    counts = " / ".join(str(found.counts.get(name, 0)) for name in ("strong", "weak", "none"))
    none = f"{100 * found.counts.get('none', 0) / max(n, 1):.1f} %"
    return [found.kind, str(n), counts, none, "" if found.ks is None else f"{found.ks:.3f}"]


def _title(found: Evaluation) -> str:
    corpus = f", {found.docs:,} documents ({amount(found.text_bytes, 'bytes')}) in {found.shards} shards" if found.docs else ""
    return f"{found.dataset}: {len(found.queries):,} judged queries{corpus}"


def _p(comparison: Comparison) -> str:
    return f"{comparison.p:.4f}" if comparison.p >= 0.001 else f"{comparison.p:.1g}"


def print_tables(found: Evaluation | Suite, console: "Console | None" = None) -> None:
    """The figures, the tests and the sweeps, and what further questions found; of a suite, what collections say together comes last."""
    from rich.console import Console

    console = console or Console()
    # A pipe is not 80 columns wide: nothing may be cut off there.
    console = console if console.is_terminal else Console(file=console.file, width=WIDTH)
    for evaluation in found.evaluations if isinstance(found, Suite) else [found]:
        _print_evaluation(evaluation, console)
        _print_sections(evaluation.sections, console)
    if isinstance(found, Suite):
        _print_sections(found.sections, console)


def _print_sections(sections: Sequence[Section], console: "Console") -> None:
    from rich.table import Table

    def show(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for i, head in enumerate(heads):
            table.add_column(head, justify="right" if i else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(cell.replace("[", r"\[") for cell in row))
        console.print(table, highlight=False)

    for section in sections:
        console.print(f"\n{section.title}", style="bold", highlight=False, markup=False)
        show(section.heads, section.rows)
        if section.note:
            console.print(section.note, style="dim", highlight=False, markup=False)
    if targets := [target for section in sections for target in section.targets]:
        console.print()
        show(TARGET_HEADS, list(map(target_cells, targets)))
    if sections:
        console.print()


def _print_evaluation(found: Evaluation, console: "Console") -> None:
    from rich.table import Table

    console.print(_title(found), highlight=False, markup=False)
    best = {metric: max(run.mean(metric) for run in found.runs) for metric in METRICS}

    def table(first: Sequence[str], rows: Sequence[tuple[Sequence[str], Measured]], bold: bool) -> None:
        shown = Table(box=None, header_style="bold", pad_edge=False)
        for head in (*first, *HEADS):
            shown.add_column(head, justify="left" if head in first else "right", no_wrap=True)
        for names, run in rows:
            cells = _cells(run)
            for i, metric in enumerate(METRICS):
                if bold and run.mean(metric) == best[metric]:
                    cells[i] = f"[bold]{cells[i]}[/]"
            shown.add_row(*(name.replace("[", r"\[") for name in names), *cells)
        console.print(shown, highlight=False)

    table(["run"], [([run.name], run) for run in found.runs], True)
    if found.variants:
        console.print()
        table(["dial", "value"], [([run.parameter, run.value], run) for run in found.variants], False)
    if found.comparisons:
        console.print()
        tests = Table(box=None, header_style="bold", pad_edge=False)
        for head in ("paired randomisation", "against", "ndcg@10", "p", "wins", "losses", "ties"):
            tests.add_column(head, justify="left" if head in ("paired randomisation", "against") else "right", no_wrap=True)
        for c in found.comparisons:
            row = (c.a, c.b, f"{c.difference:+.4f}", _p(c), str(c.wins), str(c.losses), str(c.ties))
            tests.add_row(*(cell.replace("[", r"\[") for cell in row))
        console.print(tests, highlight=False)

    if found.verdicts:
        console.print()
        verdicts = Table(box=None, header_style="bold", pad_edge=False)
        for head in VERDICT_HEADS:
            verdicts.add_column(head, justify="left" if head == VERDICT_HEADS[0] else "right", no_wrap=True)
        for row in map(_verdict_cells, found.verdicts):
            verdicts.add_row(*(cell.replace("[", r"\[") for cell in row))
        console.print(verdicts, highlight=False)


# --- HTML -----------------------------------------------------------------------------------------------------------------------

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left } .best { font-weight: 700 } h2 { margin-top: 2.2rem; font-size: 1.15rem }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif } figure { margin: 1rem 0 } figcaption { color: #555 }
"""


def as_html(found: Evaluation | Suite) -> str:
    """One page that needs nothing else: tables, bars of each metric, differences per query, sweeps, further questions; of a suite, what
    collections say together comes first."""
    if isinstance(found, Suite):
        title = f"{len(found.evaluations)} collections"
        parts = [f"<h1>{title}</h1>", *_html_sections(found.sections), *(part for e in found.evaluations for part in _html_body(e))]
    else:
        title, parts = found.dataset, _html_body(found)
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"
    return "\n".join([head, *parts]) + "</html>\n"


def _html_sections(sections: Sequence[Section]) -> list[str]:
    parts = []
    for section in sections:
        parts += [f"<h2>{escape(section.title)}</h2>", _html_table(section.heads, section.rows)]
        parts += [f"<figure>{plot}</figure>" for plot in section.plots]
        parts.append(f"<p>{escape(section.note)}</p>")
    if targets := [target for section in sections for target in section.targets]:
        parts += ["<h2>Targets</h2>", _html_table(TARGET_HEADS, list(map(target_cells, targets)))]
    return parts


def _html_body(found: Evaluation) -> list[str]:
    best = {metric: max(run.mean(metric) for run in found.runs) for metric in METRICS}
    rows = [[run.name, *_cells(run)] for run in found.runs]
    marked = [[False, *(run.mean(m) == best[m] for m in METRICS), False, False, False] for run in found.runs]
    parts = [
        f"<h1>{escape(found.dataset)}</h1><p>{escape(_title(found))}; {found.depth} hits each. trec_eval's conventions: linear "
        "gain, judged queries only. Times are of whole answers, in this process or over HTTP.</p>",
        _html_table(["run", *HEADS], rows, marked),
        "<figure>" + bars(found.runs) + "</figure>",
    ]
    values = {run.name: run.values[METRICS[0]] for run in (*found.runs, *found.variants)}
    if found.variants:
        parts.append("<h2>Sweeps</h2>")
        parts.append(_html_table(["dial", "value", *HEADS], [[run.parameter, run.value, *_cells(run)] for run in found.variants]))
        for parameter in dict.fromkeys(run.parameter for run in found.variants):
            parts.append(f"<figure>{sweep([run for run in found.variants if run.parameter == parameter])}</figure>")
    if found.comparisons:
        parts.append("<h2>Paired randomisation tests, nDCG@10</h2>")
        heads = ["run", "against", "difference", "p", "wins", "losses", "ties"]
        cells = [[c.a, c.b, f"{c.difference:+.4f}", _p(c), str(c.wins), str(c.losses), str(c.ties)] for c in found.comparisons]
        parts.append(_html_table(heads, cells))
        parts.append("<p>Two-sided, 10,000 draws; not corrected for the number of comparisons.</p><h2>Query by query</h2>")
        for c in found.comparisons:
            caption = f"{c.a} less {c.b}: {c.wins} better, {c.losses} worse, {c.ties} the same. Point at a bar for its query."
            plot = differences(found.queries, values[c.a] - values[c.b])
            parts.append(f"<figure><figcaption>{escape(caption)}</figcaption>{plot}</figure>")
    if found.verdicts:
        parts.append("<h2>Verdicts</h2>")
        parts.append(_html_table(VERDICT_HEADS, [_verdict_cells(verdicts) for verdicts in found.verdicts]))
        parts.append("<p>Nonsense should be none, known items should not. KS: of 1 - exp(-E) against uniform, for senseless queries.</p>")
    return parts + _html_sections(found.sections)


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[Sequence[bool]] = ()) -> str:
    def cell(i: int, j: int, text: str) -> str:
        return f"<td class=best>{escape(text)}</td>" if marked and marked[i][j] else f"<td>{escape(text)}</td>"

    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(cell(i, j, text) for j, text in enumerate(row)) + "</tr>" for i, row in enumerate(rows))
    return f"<table><tr>{head}</tr>{body}</table>"


def bars(runs: Sequence[Measured]) -> str:
    """Each metric's bar for each run, as SVG."""
    row, gap, left, width = 16, 14, 170, 560
    height = len(METRICS) * (len(runs) * row + gap + 18)
    parts = [f'<svg viewBox="0 0 {left + width + 70} {height}" width="{left + width + 70}" role="img">']
    y = 0
    for metric in METRICS:
        parts.append(f'<text x="0" y="{y + 12}" font-weight="700">{metric}</text>')
        y += 18
        for i, run in enumerate(runs):
            length = width * run.mean(metric)
            parts.append(
                f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(_short(run.name))}</text>'
                f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="{row - 4}" fill="{COLOURS[i % len(COLOURS)]}"/>'
                f'<text x="{left + length + 6:.1f}" y="{y + 12}">{run.mean(metric):.4f}</text>'
            )
            y += row
        y += gap
    return "".join(parts) + "</svg>"


def differences(queries: Sequence[str], difference: Array) -> str:
    """One bar for each query, best first, as SVG; equal queries are a gap in the middle."""
    width, half = 900, 90
    order = sorted(range(len(queries)), key=lambda i: (-difference[i], queries[i]))
    step = width / max(len(order), 1)
    parts = [f'<svg viewBox="0 0 {width + 40} {2 * half + 10}" width="{width + 40}" role="img">']
    for mark in (1.0, 0.0, -1.0):
        y = 5 + half * (1 - mark)
        parts.append(f'<line x1="0" x2="{width}" y1="{y}" y2="{y}" stroke="#ccc"/>')
        parts.append(f'<text x="{width + 5}" y="{y + 4}">{mark:+.0f}</text>')
    for x, i in enumerate(order):
        d = float(difference[i])
        if abs(d) > 1e-9:
            top = 5 + half * (1 - max(d, 0.0))
            colour = COLOURS[2] if d > 0 else COLOURS[4]
            parts.append(
                f'<rect x="{x * step:.2f}" y="{top:.1f}" width="{max(step - 0.3, 0.3):.2f}" height="{half * abs(d):.1f}" '
                f'fill="{colour}"><title>{escape(queries[i])}: {d:+.4f}</title></rect>'
            )
    return "".join(parts) + "</svg>"


def sweep(variants: Sequence[Measured]) -> str:
    """nDCG@10 of one dial's values against bytes, and against time, as SVG."""
    side, pad = 300, 60
    parts = [f'<svg viewBox="0 0 {2 * (side + 2 * pad)} {side + 2 * pad}" width="{2 * (side + 2 * pad)}" role="img">']
    ndcg = [run.mean(METRICS[0]) for run in variants]
    low, high = min(ndcg), max(ndcg)
    for panel, (label, xs) in enumerate(
        (("bytes", [float(run.bytes or 0) for run in variants]), ("ms p50", [run.ms_p50 or 0.0 for run in variants]))
    ):
        x0, most = panel * (side + 2 * pad) + pad, max(xs) or 1.0
        parts.append(
            f'<rect x="{x0}" y="{pad / 2}" width="{side}" height="{side}" fill="none" stroke="#ccc"/>'
            f'<text x="{x0 + side / 2}" y="{pad / 2 + side + 34}" text-anchor="middle">{label} (0 to {_most(label, most)})</text>'
            f'<text x="{x0 - 6}" y="{pad / 2 + 14}" text-anchor="end">{high:.4f}</text>'
            f'<text x="{x0 - 6}" y="{pad / 2 + side}" text-anchor="end">{low:.4f}</text>'
        )
        for run, value, x in zip(variants, ndcg, xs, strict=True):
            cx = x0 + (side - 60) * x / most
            cy = pad / 2 + 12 + (side - 24) * (0.5 if high == low else (high - value) / (high - low))
            parts.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" fill="{COLOURS[0]}"/>')
            parts.append(f'<text x="{cx + 8:.1f}" y="{cy + 4:.1f}">{escape(run.value)}</text>')
    title = f'<text x="0" y="14" font-weight="700">{escape(variants[0].parameter)}, nDCG@10</text>'
    return "".join(parts) + title + "</svg>"


def _most(label: str, most: float) -> str:
    return amount(most, "bytes") if label == "bytes" else f"{most:.1f}"


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"
