"""Whether E-values mean what they say: of senseless queries, 1 - exp(-E) of the best hit must be uniform between 0 and 1.

Held-out queries are words of the corpus in senseless order, other draws than those that null models are fitted on. Foreign ones are
what other collections ask. KS is the Kolmogorov-Smirnov statistic against the uniform distribution.
"""

from collections.abc import Sequence
from html import escape

import numpy as np

from jobs.metrics import Verdicts
from jobs.report import COLOURS
from jobs.sections import Section, Target
from jobs.verdicts import ALL_FOREIGN, SHUFFLED, distance_from_uniform, is_foreign
from shards.types import Array

LEVELS = (0.1, 0.01)  # of E
MAX_KS, GOAL_KS = 0.10, 0.06
MAX_FOREIGN = 0.2  # share of foreign queries with E <= 0.1, which by chance is 0.095


def section(told: Sequence[Verdicts]) -> Section:
    """Calibration of the kinds of queries that have no answer: shuffled words, and foreign ones one by one and together."""
    kinds = {found.kind: chances(found.evalues) for found in told if found.kind == SHUFFLED or is_foreign(found)}
    foreign = [p for kind, p in kinds.items() if kind != SHUFFLED]
    if len(foreign) > 1:
        kinds[ALL_FOREIGN] = np.concatenate(foreign)
    figures = {kind: calibration(p) for kind, p in kinds.items()}
    rows = [
        [kind, f"{found['queries']:,}", f"{found['ks']:.3f}", *(f"{found[f'E <= {level:g}']:.3f}" for level in LEVELS)]
        for kind, found in figures.items()
    ]
    targets = []
    if SHUFFLED in figures:
        targets.append(Target("E of held-out shuffled queries: KS", figures[SHUFFLED]["ks"], MAX_KS, at_least=False, goal=GOAL_KS))
    if foreign:
        pooled = calibration(np.concatenate(foreign))
        targets.append(Target("E of foreign queries: P(E <= 0.1)", pooled["E <= 0.1"], MAX_FOREIGN, at_least=False))
    return Section(
        "calibration",
        "Calibration of E",
        ("queries without an answer", "asked", "KS", *(f"P(E <= {level:g})" for level in LEVELS)),
        rows,
        figures,
        "By chance P(E <= 0.1) is 0.095 and P(E <= 0.01) is 0.010. In the plot a calibrated E lies on the diagonal; above it, queries look "
        "more surprising than they are.",
        plots=[pp_plot(kinds)] if kinds else (),
        targets=targets,
    )


def chances(evalues: Array) -> Array:
    """1 - exp(-E): the chance that a senseless query brings one document so good or better."""
    return -np.expm1(-evalues)


def calibration(p: Array) -> dict[str, float]:
    """Of (n,) values that should be uniform on [0, 1]: how far they are from that, and the share that is at or below each level of E."""
    shares = {f"E <= {level:g}": float((p <= -np.expm1(-level)).mean()) for level in LEVELS}
    return {"queries": len(p), "ks": distance_from_uniform(p), **shares}


def pp_plot(kinds: dict[str, Array], side: int = 340) -> str:
    """Observed share of queries at or below each value of 1 - exp(-E), against that value, a line for each kind, as SVG."""
    pad, width = 46, 300
    parts = [f'<svg viewBox="0 0 {side + pad + width} {side + 2 * pad}" width="{side + pad + width}" role="img">']
    parts.append(f'<rect x="{pad}" y="10" width="{side}" height="{side}" fill="none" stroke="#ccc"/>')
    parts.append(f'<line x1="{pad}" y1="{10 + side}" x2="{pad + side}" y2="10" stroke="#999" stroke-dasharray="4 3"/>')
    for tick in (0.0, 0.5, 1.0):
        parts.append(f'<text x="{pad + tick * side:.0f}" y="{side + 28}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{pad - 6}" y="{14 + (1 - tick) * side:.0f}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<text x="{pad + side / 2:.0f}" y="{side + 48}" text-anchor="middle">1 - exp(-E), by chance</text>')
    for i, (kind, p) in enumerate(kinds.items()):
        steps = np.linspace(0.0, 1.0, 101)
        shares = np.searchsorted(np.sort(p), steps, "right") / max(len(p), 1)
        points = " ".join(f"{pad + x * side:.1f},{10 + (1 - y) * side:.1f}" for x, y in zip(steps, shares, strict=True))
        colour = COLOURS[i % len(COLOURS)]
        dashes = "" if i < len(COLOURS) else ' stroke-dasharray="6 3"'
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"{dashes}/>')
        y = 19 + 18 * i
        parts.append(f'<line x1="{pad + side + 8}" x2="{pad + side + 26}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"{dashes}/>')
        parts.append(f'<text x="{pad + side + 30}" y="{23 + 18 * i}">{escape(kind)}</text>')
    return "".join(parts) + "</svg>"
