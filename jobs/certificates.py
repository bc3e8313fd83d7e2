"""Is a certificate true: does an answer that is called final change when more is asked, and is as much of others new as was expected?
And does a cut have the recall that it states?

Each judged query is asked in full, and again with some layers, drawn by lot, withheld as by a planner to whom they are too dear.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs import datasets
from jobs.asking import BUDGET_MS
from jobs.laboratory import Laboratory, opened, shards_of
from jobs.sections import Section, Target
from shards.cascades import DEPTHS, wilson

if TYPE_CHECKING:
    from jobs.datasets import Judged
    from jobs.settings import Settings
    from serve.anytime.learned import OfCorpus
    from serve.schema import SearchAnswer
    from shards.weights import Choices

K = 10
N_BINS = 5  # of answers by what was expected of them
RECALLS = (0.8, 0.9, 0.95)
WITHHELD_S = 1e4  # that a layer is said to take: longer than any budget
WARMING = 8  # queries that do not count: after so many, what a layer changes is known rather than supposed

Report = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True)
class Cut:
    """One answer with layers withheld. final, exact_to, expected: of its certificate; changed: the share of the first K that are others
    in full; same_to: the first so many hits that are those of the full answer."""

    final: bool
    exact_to: int
    expected: float
    changed: float
    same_to: int


def measure_certificates(settings: "Settings", corpus: str, judged: "Judged", seed: int, report: Report) -> list[Section]:
    """Both tables. Raises NotFound."""
    from serve.calibrate import Calibrator

    with (
        opened(settings, corpus) as (_, _, generation),
        Laboratory(generation, shards_of(generation), settings.resources()) as laboratory,
    ):
        cut = list(_cut_short(laboratory, list(judged.queries.values()), seed, report))
        choices = Calibrator(report=report).cloze(generation)
        ranks = {some: _ranks(laboratory, some, judged, report) for some in _sets(choices.spaces)}
    return [of_certificates(cut), of_cuts(choices, ranks)]


# --- certificates -------------------------------------------------------------------------------------------------------------------


def _cut_short(laboratory: Laboratory, texts: Sequence[str], seed: int, report: Report) -> Iterator[Cut]:
    rng = random.Random(seed)
    fields: dict[str, Any] = {"k": K, "budget_ms": BUDGET_MS, "highlight": False, "keep_all": True}
    for i, text in enumerate(texts):
        full = laboratory.search(text, **fields)
        asked = sorted({one.layer for one in full.coverage})
        report("certificates", i + 1, len(texts), "queries")
        if len(asked) < 2 or i < WARMING:
            continue
        with withheld(laboratory.learned, rng.sample(asked, rng.randint(1, len(asked) - 1))):
            part = laboratory.search(text, **fields)
        yield compared(part, full)


def compared(part: "SearchAnswer", full: "SearchAnswer") -> Cut:
    """What a certificate says beside what was missing."""
    told = part.certificate
    assert told is not None, "every plain search bears one"
    some, all_of = ([hit.hash for hit in answer.hits] for answer in (part, full))
    new = len(set(all_of) - set(some)) / max(len(all_of), 1)
    same_to = next((i for i, (a, b) in enumerate(zip(some, all_of, strict=False)) if a != b), min(len(some), len(all_of)))
    return Cut(told.final, told.exact_to, told.could_change, new, K if some == all_of else same_to)


@contextmanager
def withheld(learned: "OfCorpus", names: Sequence[str]) -> Iterator[None]:
    """Layers that no search has the time for, as far as the planner knows; what it knew is put back."""
    from serve.anytime.learned import Usual

    known = {name: learned.of(name).search_s for name in names}
    for name in names:
        learned.of(name).search_s = Usual(mean=WITHHELD_S, n=1)
        learned.of(name).left_out = 0
    try:
        yield
    finally:
        for name, usual in known.items():
            learned.of(name).search_s = usual
            learned.of(name).left_out = 0


def of_certificates(cut: Sequence[Cut]) -> Section:
    """Bins of as many answers each, by what was expected to change."""
    ordered = sorted(cut, key=lambda one: one.expected)
    bins = [[ordered[i] for i in part] for part in np.array_split(np.arange(len(ordered)), N_BINS) if len(part)]
    rows, figures = [], []
    for some in bins:
        expected, changed = (float(np.mean([getattr(one, name) for one in some])) for name in ("expected", "changed"))
        rows.append([f"{some[0].expected:.2f} to {some[-1].expected:.2f}", str(len(some)), f"{expected:.3f}", f"{changed:.3f}"])
        figures.append({"answers": len(some), "expected": expected, "changed": changed})
    final = [one for one in cut if one.final]
    wrong = sum(one.same_to < one.exact_to for one in cut)
    broken = sum(one.same_to < K for one in final)
    off = max((abs(one["expected"] - one["changed"]) for one in figures), default=0.0)
    some_ranks = sum(one.exact_to > 0 for one in cut)
    return Section(
        "certificates",
        "Answers with layers withheld: what was expected to change, and what did",
        ("could_change", "answers", "expected", "changed"),
        rows,
        {"answers": len(cut), "final": len(final), "final and changed": broken, "exact_to > 0": some_ranks, "exact_to wrong": wrong}
        | {"bins": figures},
        f"Of {len(cut)} answers {len(final)} were called final, and {some_ranks} certain of their first ranks.",
        targets=[
            Target("final answers that changed", float(broken), 0, at_least=False),
            Target("certain ranks that changed", float(wrong), 0, at_least=False),
            Target("expected and observed change of a fifth of the answers, difference", off, 0.1, at_least=False),
        ],
    )


# --- cuts ---------------------------------------------------------------------------------------------------------------------------


def _sets(spaces: Sequence[str]) -> list[tuple[str, ...]]:
    """Each space alone, and all together."""
    return [*((name,) for name in spaces), tuple(spaces)] if spaces else []


def _ranks(laboratory: Laboratory, spaces: Sequence[str], judged: "Judged", report: Report) -> list[list[float]]:
    """Of each query the ranks of its relevant documents among what these spaces find, inf where it is not found."""
    ranks = []
    for i, (query, text) in enumerate(judged.queries.items()):
        answer = laboratory.search(text, layers=list(spaces), k=DEPTHS[-1], budget_ms=BUDGET_MS, highlight=False, keep_all=True)
        place: dict[str, int] = {}
        for rank, hit in enumerate(answer.hits, 1):
            for entry in hit.entries:
                place.setdefault(datasets.document_id(entry.source, entry.path), rank)
        ranks.append([place.get(document, np.inf) for document, grade in judged.qrels[query].items() if grade > 0])
        report(f"ranks of judged documents in {'+'.join(spaces)}", i + 1, len(judged.queries), "queries")
    return ranks


def of_cuts(choices: "Choices", ranks: Mapping[tuple[str, ...], Sequence[Sequence[float]]]) -> Section:
    """Stated recall beside that of judged documents, and the share of queries with any of these within, each with its 95 % interval.

    ranks: by spaces, of each query those of its relevant documents.
    """
    rows, figures = [], []
    for some, found in ranks.items():
        known = choices.recall(some)
        if known is None:
            continue
        for wanted in RECALLS:
            depth = known.depth_for(wanted)
            last = depth or DEPTHS[-1]
            of_query = [sum(rank <= last for rank in one) for one in found]
            told = (known.at(last), wilson(sum(of_query), sum(map(len, found))), wilson(sum(n > 0 for n in of_query), len(found)))
            shown = (f"{one.share:.3f} ({one.low:.2f} to {one.high:.2f})" for one in told)
            rows.append(["+".join(some), f"{wanted:g}", str(depth or f"none, {last}"), *shown])
            shares = dict(zip(("stated", "judged", "queries"), (one.share for one in told), strict=True))
            figures.append({"spaces": some, "wanted": wanted, "depth": depth, **shares})
    return Section(
        "cuts",
        "Cuts to a recall: what probes state, and how many of the relevant documents are within",
        ("spaces", "recall", "depth", "stated", "of judged documents", "queries with one within"),
        rows,
        {"cuts": figures},
        "Depth none: probes reach that recall at no depth that they tell of; what stands there is that of the last one. A probe seeks one "
        "document, which its sentence was taken from: where queries have many relevant ones, a cut at such a depth cannot hold them all.",
    )
