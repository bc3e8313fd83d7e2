"""What becomes of a ranking when spaces say nothing, lie, or are asked wrong; and when one alone knows.

Junk spaces (`jobs.junk_spaces`) are built into a copy of the corpus and null models are fitted anew with each set of them, as for any
space. Wrong lists come about where spaces are asked another question of the collection in place of the one given: their scores, moments
and tables are all real, for something else. Kinds and goals: EVIDENCE.md sections 4 and 10.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import datasets, junk_spaces
from jobs.asking import BUDGET_MS, scores_of
from jobs.datasets import Judged
from jobs.laboratory import AskedOther, Laboratory, copied, opened, refitted, shards_of, with_layers, with_spaces
from jobs.metrics import METRICS, measure
from jobs.rebuilding import with_more_spaces
from jobs.sections import Section, Target
from shards.generation import Generation
from shards.layers import SpaceSpec
from shards.layers.contract import Resources
from shards.shard import Shard
from shards.types import Array

if TYPE_CHECKING:
    from jobs.settings import Settings

WRONG = 0.3  # of the lists of flaky spaces
KEYED = 0.2  # of the questions that the exact key knows
DEPTH = 10  # hits that nDCG@10 looks at
NDCG = METRICS[0]
KEY = "exact_key"
JUNK = {
    "noise": SpaceSpec("junk_noise", "junk_noise"),
    "confident": SpaceSpec("junk_confident", "junk_confident", {"seed": 1}),
    "hub": SpaceSpec("junk_hub", "junk_hub"),
    "first liar": SpaceSpec("junk_liar_1", "junk_confident", {"seed": 2, "copy_number": 1}),
    "second liar": SpaceSpec("junk_liar_2", "junk_confident", {"seed": 2, "copy_number": 2}),
}
SETS: Mapping[str, tuple[str, ...]] = {
    "noise": ("noise",),
    "confident": ("confident",),
    "hub": ("hub",),
    "all three": ("noise", "confident", "hub"),
    "two colluding": ("first liar", "second liar"),
}
MOST_LOST = 0.002  # of nDCG@10 by junk, on every collection
FLAKY_GAIN = 0.05  # over RRF(60) under the same faults
KEY_KEPT = 0.99

Progress = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True)
class Bench:
    """What all stress tests of a corpus share. shards: with all spaces, real and junk; couplings: what each adds to a request."""

    judged: Judged
    shards: Sequence[Shard]
    resources: Resources
    couplings: Mapping[str, Mapping[str, Any]]
    progress: Progress

    def ndcg(self, generation: Generation, what: str, queries: Sequence[str] | None = None, **fields: Any) -> dict[str, Array]:
        """nDCG@10 of each query by coupling, (n_queries,) each. queries: ids, None for all judged ones."""
        asked = list(self.judged.queries) if queries is None else list(queries)
        runs: dict[str, dict[str, dict[str, float]]] = {name: {} for name in self.couplings}
        plain = {"k": DEPTH, "budget_ms": BUDGET_MS, "highlight": False, "keep_all": True, **fields}
        with Laboratory(generation, self.shards, self.resources) as laboratory:
            for i, query in enumerate(asked):
                for name, coupling in self.couplings.items():
                    runs[name][query] = scores_of(laboratory.search(self.judged.queries[query], **plain, **coupling), DEPTH)
                self.progress(f"stress, {what}", i + 1, len(asked), "queries")
        return {name: measure(run, self.judged.qrels, asked)[NDCG] for name, run in runs.items()}


def measure_stress(
    settings: "Settings", corpus: str, judged: Judged, couplings: Mapping[str, Mapping[str, Any]], progress: Progress
) -> Section:
    """All stress tests of one corpus. couplings: what each adds to a request; `evidence` is what has to hold. Raises BadSpec, NotFound."""
    with junk_spaces.registered(), copied(settings, corpus) as mine, opened(mine, corpus) as (store, _, generation):
        resources, real = mine.resources(), sorted(generation.spaces)
        keyed = [query for query in judged.queries if _draw("key", query) < KEYED]
        answers = Path(mine.store_url()) / "answers.json"
        answers.write_text(json.dumps(_answers(generation, judged, keyed)), "utf-8")
        key = SpaceSpec(KEY, "exact_key", {"answers": str(answers)})
        everything = with_more_spaces(generation, [*JUNK.values(), key], resources)
        bench = Bench(judged, shards_of(everything), resources, couplings, progress)
        clean = bench.ndcg(with_spaces(everything, real), "as it is")
        junk = {}
        for name, kinds in SETS.items():
            chosen = with_spaces(everything, [*real, *(JUNK[kind].name for kind in kinds)])
            junk[name] = bench.ndcg(refitted(store, chosen, resources, progress), f"with {name}")
        flaky = bench.ndcg(asked_wrong(with_spaces(everything, real), judged, WRONG), f"{WRONG:.0%} of lists wrong")
        alone, kept = lone_expert(bench, everything, real, keyed)
    return section(clean, junk, flaky, alone, kept)


def asked_wrong(generation: Generation, judged: Judged, rate: float, but: Sequence[str] = ()) -> Generation:
    """The generation with each space, `but` those named, asked another query of the collection for this share of the questions: which,
    and what instead, a hash of question and space says."""
    texts = sorted(set(judged.queries.values()))

    def wrap(space: Any) -> Any:
        def other(text: str) -> str:
            if len(texts) < 2 or _draw(space.name, text) >= rate:
                return text
            at = int(_draw(f"instead {space.name}", text) * (len(texts) - 1))
            others = [asked for asked in (texts[at], texts[at + 1]) if asked != text]
            return others[0]

        return space.layer if space.name in but else AskedOther(space.layer, other)

    return with_layers(generation, wrap)


def lone_expert(
    bench: Bench, everything: Generation, real: Sequence[str], keyed: Sequence[str]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """nDCG@10 on the questions that a key knows: of the key alone, and of it among spaces that are all asked something else."""
    if not keyed:
        return {}, {}
    chosen = with_spaces(everything, [*real, KEY])
    alone = bench.ndcg(chosen, "the key alone", keyed, layers=[KEY])
    return alone, bench.ndcg(asked_wrong(chosen, bench.judged, 1.0, but=[KEY]), "the key among others", keyed)


def _answers(generation: Generation, judged: Judged, keyed: Sequence[str]) -> dict[str, list[str]]:
    """Content hashes of the documents that are relevant to each of these questions, by its text."""
    relevant = {query: {d for d, grade in judged.qrels[query].items() if grade > 0} for query in keyed}
    wanted = set().union(*relevant.values())
    hashes: dict[str, str] = {}
    for page in generation.pages:
        for ref in page.segments:
            entries = generation.segment(ref).entries
            for row in range(len(entries)):
                document = datasets.document_id(entries.source_names[entries.sources[row]], entries.path(row))
                if document in wanted:
                    hashes[document] = entries.hashes[row].tobytes().hex()
    return {judged.queries[query]: sorted(hashes[d] for d in documents if d in hashes) for query, documents in relevant.items()}


def _draw(*parts: str) -> float:
    """A uniform number in [0, 1) that depends on its arguments alone."""
    return int.from_bytes(blake2b("\0".join(parts).encode(), digest_size=8).digest(), "big") / 2.0**64


def section(
    clean: Mapping[str, Array],
    junk: Mapping[str, Mapping[str, Array]],
    flaky: Mapping[str, Array],
    alone: Mapping[str, Array],
    kept: Mapping[str, Array],
) -> Section:
    """What was found, of (n_queries,) nDCG@10 by coupling."""
    names = list(clean)
    rows = [["as it is", *(f"{clean[name].mean():.4f}" for name in names)]]
    figures: dict[str, Any] = {"clean": {name: float(clean[name].mean()) for name in names}, "junk": {}}
    targets = []
    for kind, found in junk.items():
        changes = {name: float((found[name] - clean[name]).mean()) for name in names}
        figures["junk"][kind] = changes
        rows.append([f"and {kind}", *(f"{changes[name]:+.4f}" for name in names)])
        targets.append(Target(f"junk, {kind}: nDCG@10 lost", -changes["evidence"], MOST_LOST, at_least=False))
    figures["flaky"] = {name: float(flaky[name].mean()) for name in names}
    rows.append([f"{WRONG:.0%} of lists wrong", *(f"{flaky[name].mean():.4f}" for name in names)])
    if "rrf" in flaky:
        gain = float((flaky["evidence"] - flaky["rrf"]).mean())
        targets.append(Target(f"{WRONG:.0%} of lists wrong: over RRF(60)", gain, FLAKY_GAIN))
    if alone:
        known = float(alone["evidence"].mean())
        shares = {name: float(kept[name].mean()) / max(known, 1e-9) for name in names}
        figures["lone expert"] = {"queries": len(alone["evidence"]), "alone": known, "kept": shares}
        rows.append([f"a key alone right ({len(alone['evidence'])} queries): kept", *(f"{shares[name]:.1%}" for name in names)])
        targets.append(Target("a key alone right: share of its nDCG@10", shares["evidence"], KEY_KEPT))
    return Section(
        "stress",
        "Spaces that say nothing, lie, or are asked wrong",
        ("nDCG@10", *names),
        rows,
        figures,
        "Junk: change of the mean when spaces are added and null models fitted anew. Wrong lists: each space is asked another query of the "
        "collection. A key alone right: all other spaces are asked something else; the share of what the key alone has.",
        targets=targets,
    )
