"""What a space that is built where it is used is worth while little of it is built: beside the same corpus without it, and with it whole.

A corpus that has the space whole is rewritten in a copy, as the builder would leave it: documents of the lowest hashes have it, the
others are scored on the fly. Null models are fitted anew each time, or are those of before anything was built.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs import verdicts
from jobs.asking import BUDGET_MS, scores_of
from jobs.calibration import chances
from jobs.datasets import Judged
from jobs.laboratory import Laboratory, copied, opened, refitted, shards_of, with_layers, with_spaces
from jobs.metrics import METRICS, measure
from jobs.sections import Section, Target
from shards.building import SAMPLE
from shards.encodings import PackedEncodings
from shards.errors import BadSpec
from shards.generation import Generation
from shards.given import folder
from shards.identity import prefixes
from shards.manifest import Root
from shards.on_the_fly import OnTheFly, can_be
from shards.partial import with_rows
from shards.rewriting import successor

if TYPE_CHECKING:
    from jobs.settings import Settings
    from shards.documents import Documents
    from shards.layers.contract import Layer
    from shards.types import Array, Arrays

SHARES = (0.05, 0.25)  # of the documents, but at least the builder's sample; beside none and all of them
BUDGETS_MS = (1_000, 300)
N_TIMED = 60  # queries that are asked within these: each may encode for a quarter of a second
N_SHUFFLED = 200  # queries without an answer: KS of true uniforms is then below 0.1 in 19 of 20 runs
MOST_LOST = 0.002  # nDCG@10 that a space may cost
DEPTH = 10
NDCG = METRICS[0]
INDEX, IN_TIME, FITTED_BEFORE = "index alone", "on the fly", "null models of before"

Report = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True)
class Row:
    """What one state of the space gives. weight: what it counts beside the best of the others; ks: of E of queries without an answer.
    ndcg: of each query, by how it was asked: `INDEX`, `IN_TIME` (all that is scored on the fly is, however long it takes), a budget."""

    name: str
    weight: float
    ks: float
    ndcg: Mapping[str, "Array"]


def measure_partly_built(
    settings: "Settings", corpus: str, judged: Judged, name: str, among: Sequence[str], documents: Path, report: Report
) -> Section:
    """All states of one space among some. documents: the collection's file. Raises NotFound; BadSpec for a space that is not scored on the
    fly."""
    shuffled = verdicts.shuffled_questions(judged, documents, N_SHUFFLED)[verdicts.SHUFFLED]
    with copied(settings, corpus) as there, opened(there, corpus) as (_, _, everything):
        whole = with_spaces(everything, among)
        space = whole.spaces.get(name)
        if space is None or not can_be(space) or space.layer.null != "moments":
            raise BadSpec(f"Layer {name!r} of corpus {corpus!r} is none whose documents are scored on the fly.")
        bench = _Bench(there, whole, name, judged, shuffled, report)
        n_docs = whole.root.n_docs
        rows = [bench.row("without it", whole, without=True), bench.row("whole", whole)]
        before = bench.refitted(bench.partly(0))
        rows.append(bench.row("nothing built", before))
        for n in dict.fromkeys(min(max(round(share * n_docs), SAMPLE), n_docs) for share in SHARES):
            built = bench.partly(n)
            told = f"{n:,} of {n_docs:,} built"
            rows.append(bench.row(f"{told}, {FITTED_BEFORE}", _with_nulls(built, before.root)))
            rows.append(bench.row(told, bench.refitted(built), timed=True))
    return section(name, [other for other in sorted(whole.spaces) if other != name], rows)


class _Bench:
    """Asks the same of every state."""

    def __init__(
        self, settings: "Settings", whole: Generation, name: str, judged: Judged, shuffled: Sequence[str], report: Report
    ):
        self._whole, self._name, self._judged, self._shuffled, self._report = whole, name, judged, shuffled, report
        self._settings, self._resources = settings, settings.resources()
        space = whole.spaces[name]
        self._hashes = np.concatenate([whole.segment(ref).documents.hashes for page in whole.pages for ref in page.segments])
        self._kept = _InMemory(PackedEncodings(whole.store, folder(space.layer, space.id)).get(self._hashes))

    def partly(self, n: int) -> Generation:
        """The generation with the space for the n documents of the lowest hashes alone, as one that is built where it is used."""
        whole, space = self._whole, self._whole.spaces[self._name]
        lowest = np.sort(prefixes(self._hashes))
        pages = []
        for page in whole.pages:
            refs = []
            for ref in page.segments:
                hashes = whole.segment(ref).documents.hashes
                wanted = prefixes(hashes) <= lowest[n - 1] if n else np.zeros(len(hashes), np.bool_)
                refs.append(with_rows(whole.segment(ref), ref, self._name, space.id, space.layer, wanted, self._kept))
            pages.append(page.model_copy(update={"segments": tuple(refs)}))
        root = successor(whole.store, whole.root, pages, whole.root.sources)
        spaces = tuple(ref.model_copy(update={"built": "used"}) if ref.name == self._name else ref for ref in root.spaces)
        return self._opened(root.model_copy(update={"spaces": spaces}))

    def _opened(self, root: Root) -> Generation:
        """With the layers of the whole generation, which have their models."""
        from shards.store import open_store

        store = open_store(self._settings.store_url(), **self._settings.store_options())
        return Generation.of_root(root, store, self._whole.cache, self._resources, opened=self._whole.spaces.values())

    def refitted(self, generation: Generation) -> Generation:
        """With null models of its own."""
        from shards.store import open_store

        store = open_store(self._settings.store_url(), **self._settings.store_options())
        return self._opened(refitted(store, generation, self._resources, self._report).root)

    def row(self, told: str, generation: Generation, without: bool = False, timed: bool = False) -> Row:
        """What this state gives. without: the space is not asked at all. timed: also within budgets."""
        fields: dict[str, Any] = {"layers": [name for name in sorted(generation.spaces) if not (without and name == self._name)]}
        queries = list(self._judged.queries)
        found = {}
        with Laboratory(generation, shards_of(generation), self._resources) as laboratory:
            found[INDEX] = self._ndcg(laboratory, told, queries, fields)
            if without:
                evalues = [self._best(laboratory, text, fields) for text in self._shuffled]
                return Row(told, 0.0, verdicts.distance_from_uniform(chances(np.array(evalues))), found)
        knowing = with_layers(generation, lambda space: _Knowing(space.layer, self._kept) if space.name == self._name else space.layer)
        with self._on_the_fly(knowing) as laboratory:
            found[IN_TIME] = self._ndcg(laboratory, told, queries, fields | {"goal": "precise"})
            evalues = [self._best(laboratory, text, fields | {"goal": "precise"}) for text in self._shuffled]
            ks = verdicts.distance_from_uniform(chances(np.array(evalues)))
        for budget_ms in BUDGETS_MS if timed else ():
            with self._on_the_fly(generation) as laboratory:
                found[f"{budget_ms} ms"] = self._ndcg(laboratory, told, queries[:N_TIMED], fields | {"budget_ms": budget_ms})
        nulls = generation.nulls
        among = {} if nulls is None else nulls.weights_among(fields["layers"])
        return Row(told, among.get(self._name, 0.0) / (max(among.values(), default=0.0) or 1.0), ks, found)

    def _on_the_fly(self, generation: Generation) -> Laboratory:
        """A laboratory whose shards score on the fly, the space's model being loaded."""
        on_the_fly = OnTheFly()
        on_the_fly.load(generation.spaces[self._name]).wait()
        return Laboratory(generation, shards_of(generation), self._resources, on_the_fly)

    def _ndcg(self, laboratory: Laboratory, told: str, queries: Sequence[str], fields: Mapping[str, Any]) -> "Array":
        plain = {"k": DEPTH, "budget_ms": BUDGET_MS, "highlight": False, "keep_all": True} | fields
        run = {}
        for i, query in enumerate(queries):
            run[query] = scores_of(laboratory.search(self._judged.queries[query], **plain), DEPTH)
            self._report(f"{self._name}, {told}", i + 1, len(queries), "queries")
        return measure(run, self._judged.qrels, list(queries))[NDCG]

    def _best(self, laboratory: Laboratory, text: str, fields: Mapping[str, Any]) -> float:
        """E of the best hit."""
        plain = {"k": DEPTH, "budget_ms": BUDGET_MS, "highlight": False, "keep_all": True} | fields
        hits = laboratory.search(text, **plain).hits
        return hits[0].evalue if hits else np.inf


def _with_nulls(generation: Generation, before: Root) -> Generation:
    """With the null models of an earlier generation."""
    counters = {name: n for name, n in before.counters.items() if name == "docs_at_fit"}
    update = {"nulls": before.nulls, "null_version": before.null_version, "counters": generation.root.counters | counters}
    return replace(generation, root=generation.root.model_copy(update=update))


@dataclass(frozen=True, slots=True)
class _InMemory:
    """All encodings of a space, as `shards.layers.contract.Encodings`; what is put is let go."""

    known: Mapping[bytes, "Array"]

    def get(self, hashes: "Array") -> "dict[bytes, Array]":
        return {key: self.known[key] for row in hashes if (key := row.tobytes()) in self.known}

    def put(self, encodings: "Mapping[bytes, Array]") -> None: ...

    def spend(self, usage: Any) -> None: ...


class _Knowing:
    """A layer that has no need to encode what is kept, so that nothing it scores on the fly takes time."""

    def __init__(self, layer: "Layer", kept: _InMemory):
        self._layer, self._kept = layer, kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def build(self, documents: "Documents", entries: Any, scope: Any = None, known: Any = None, progress: Any = None) -> "Arrays":
        return self._layer.build(documents, entries, scope, self._kept, progress)


def section(name: str, others: Sequence[str], rows: Sequence[Row]) -> Section:
    """The table. rows: the first without the space."""
    ways = [INDEX, IN_TIME, *(f"{budget} ms" for budget in BUDGETS_MS)]
    without = rows[0].ndcg[INDEX]
    cells, figures, targets = [], [], []
    for row in rows:
        gains = {way: float((values - without[: len(values)]).mean()) for way, values in row.ndcg.items()}
        shown = [f"{values.mean():.4f} ({gains[way]:+.4f})" if (values := row.ndcg.get(way)) is not None else "" for way in ways]
        cells.append([row.name, *shown, f"{row.weight:.3f}", f"{row.ks:.3f}"])
        figures.append({"state": row.name, "weight": row.weight, "ks": row.ks, "gained": gains})
        if row is not rows[0]:
            lost = -min(gains.values())
            targets.append(Target(f"{name}, {row.name}: nDCG@10 lost", lost, MOST_LOST, at_least=False))
    return Section(
        f"partly built {name}",
        f"Evidence of {', '.join(others)} and {name}, of which some documents have an index",
        ("documents", *ways, "weight", "KS of E"),
        cells,
        {"rows": figures},
        f"nDCG@10, and in brackets what is gained over the others without {name}. {IN_TIME.capitalize()}: the best candidates of the "
        f"others were scored, however long that takes; within budgets the first {N_TIMED} queries were asked. Weight: what {name} counts "
        "beside the best of the layers. KS: distance of E from what it should be, of queries that have no answer.",
        targets=targets,
    )
