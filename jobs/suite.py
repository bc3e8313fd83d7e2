"""Several collections as one: means over collections, how sure they are, and which targets are met.

Every collection counts the same. Intervals are of the percentile bootstrap: queries are drawn anew within each collection, the same for
all runs (Efron & Tibshirani 1993; for rankings Sakai 2006). The targets are those that this system has set itself (README).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.metrics import METRICS, Evaluation
from jobs.sections import Section, Target
from shards.types import Array

NDCG = METRICS[0]
N_DRAWS = 2_000
OF = " of "  # what stands between a coupling and the layers that it was given, where these are not all
EVIDENCE = "evidence"
# (coupling, least lead of evidence over it, goal): of four spaces and more, and of two.
MANY: Sequence[tuple[str, float, float | None]] = (("rrf", 0.03, None), ("rrf:k=2", 0.015, None), ("minmax", 0.005, 0.012))
TWO: Sequence[tuple[str, float, float | None]] = (("rrf", 0.008, None), ("combmnz", -0.002, 0.005))
MOST_BELOW_RRF = 0.005  # on any collection


@dataclass(frozen=True, slots=True)
class Suite:
    """Evaluations of several collections with the same layers. sections: what they say together."""

    evaluations: Sequence[Evaluation]
    sections: Sequence[Section]


def together(evaluations: Sequence[Evaluation], seed: int = 0) -> Suite:
    """The suite of evaluations that were made one after the other."""
    values = {e.dataset: {run.name: run.values[NDCG] for run in e.runs} for e in evaluations}
    layers = {run.name for e in evaluations for run in e.runs if run.kind == "layer"}
    sections = [_rankings(values, layers, seed)]
    if any(section.targets for e in evaluations for section in e.sections):
        sections.append(_targets(evaluations))
    return Suite(evaluations, sections)


def macro_draws(values: Mapping[str, Mapping[str, Array]], names: Sequence[str], seed: int) -> dict[str, Array]:
    """The macro mean of each run over queries drawn anew, (N_DRAWS,) each, by the same draws."""
    rng = np.random.default_rng(seed)
    sums = {name: np.zeros(N_DRAWS) for name in names}
    for runs in values.values():
        n = len(runs[names[0]])
        counts = rng.multinomial(n, np.full(n, 1.0 / n), size=N_DRAWS)  # how often each query is drawn
        for name in names:
            sums[name] += counts @ runs[name] / n
    return {name: total / len(values) for name, total in sums.items()}


def _rankings(values: Mapping[str, Mapping[str, Array]], layers: set[str], seed: int) -> Section:
    first = next(iter(values.values()))
    names = [name for name in first if all(name in runs for runs in values.values())]
    draws = macro_draws(values, names, seed)
    means = {name: {dataset: float(runs[name].mean()) for dataset, runs in values.items()} for name in names}
    macro = {name: float(np.mean(list(by.values()))) for name, by in means.items()}
    figures: dict[str, Any] = {}
    rows, targets = [], []
    for name in names:
        evidence = EVIDENCE + "".join(name.partition(OF)[1:])
        low, high = np.quantile(draws[name], [0.025, 0.975]).tolist()
        figures[name] = {"macro": macro[name], "interval": [low, high], "collections": means[name]}
        lead = ""
        if evidence in names and name != evidence:
            below, above = np.quantile(draws[evidence] - draws[name], [0.025, 0.975]).tolist()
            figures[name]["lead of evidence"] = {"macro": macro[evidence] - macro[name], "interval": [below, above]}
            lead = f"{macro[evidence] - macro[name]:+.4f} [{below:+.4f}, {above:+.4f}]"
        rows.append([name, f"{macro[name]:.4f}", f"{low:.4f} to {high:.4f}", lead, *(f"{x:.4f}" for x in means[name].values())])
    for name in names:
        if name.partition(OF)[0] == EVIDENCE:
            targets += _of_evidence(name, means, macro, layers)
    return Section(
        "suite",
        f"nDCG@10 over {len(values)} collections",
        ("run", "macro", "95 % interval", "lead of evidence", *values),
        rows,
        figures,
        "Each collection counts the same. Intervals: bootstrap over queries within collections.",
        targets=targets,
    )


def _of_evidence(name: str, means: Mapping[str, Mapping[str, float]], macro: Mapping[str, float], layers: set[str]) -> list[Target]:
    """The targets of one coupling by evidence: of all layers, or of those that its name says."""
    suffix = "".join(name.partition(OF)[1:])
    among = set(suffix.removeprefix(OF).split("+")) if suffix else layers
    wanted = MANY if len(among) >= 4 else TWO if len(among) == 2 else ()
    targets = []
    for coupling, least, goal in wanted:
        if coupling + suffix in macro:
            targets.append(Target(f"{name}: lead over {coupling}, macro", macro[name] - macro[coupling + suffix], least, goal=goal))
    others = [run for run in macro if run in among or (run not in layers and "".join(run.partition(OF)[1:]) == suffix and run != name)]
    if wanted is TWO and others:
        best = max(others, key=lambda run: macro[run])
        targets.append(Target(f"{name}: lead over the best of all ({best}), macro", macro[name] - macro[best], 0.0, goal=0.005))
    rrf = "rrf" + suffix
    if rrf in means:
        worst = min(means[name][dataset] - means[rrf][dataset] for dataset in means[name])
        targets.append(Target(f"{name}: lead over rrf, worst collection", worst, -MOST_BELOW_RRF))
    singles = [layer for layer in among if layer in means]
    if singles:
        above = np.mean([means[name][d] > max(means[layer][d] for layer in singles) for d in means[name]])
        targets.append(Target(f"{name}: above the best single layer, share of collections", float(above), 0.5))
    return targets


def _targets(evaluations: Sequence[Evaluation]) -> Section:
    """Each target of the collections' own sections: on how many it is met, and where it is furthest away."""
    by_name: dict[str, list[tuple[str, Target]]] = {}
    for e in evaluations:
        for section in e.sections:
            for target in section.targets:
                by_name.setdefault(target.name, []).append((e.dataset, target))
    rows, figures, targets = [], {}, []
    for name, found in by_name.items():
        dataset, worst = min(found, key=lambda pair: _margin(pair[1]))
        met = sum(target.met for _, target in found)
        measured = {dataset: target.measured for dataset, target in found if target.measured == target.measured}
        figures[name] = {"wanted": worst.wanted, "met": met, "of": len(found), "collections": measured}
        rows.append([name, worst.bound, f"{met} of {len(found)}", f"{worst.measured:.4f} ({dataset})"])
        targets.append(Target(f"{name}: collections", met / len(found), 1.0))
    return Section("targets", "Targets on each collection", ("target", "wanted", "met", "worst"), rows, figures, targets=targets)


def _margin(target: Target) -> float:
    """How far it is on the right side; a figure that could not be had is furthest away."""
    if target.measured != target.measured:
        return -np.inf
    return target.measured - target.wanted if target.at_least else target.wanted - target.measured
