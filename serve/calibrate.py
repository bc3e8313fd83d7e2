"""Fitting the null models of a generation: its probes through every similarity space, senseless queries through the fusion.

Two passes over all live units per probe and space (`shards.nulls`). The work is in numpy and compiled loops; segments are
scanned by a few threads.
"""

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from serve.answerable import feature_names, features
from serve.evidence import SpaceFacts, fuse
from shards.answerability import MIN_EXAMPLES, Answerability
from shards.candidates import merge
from shards.cloze import masked_documents
from shards.documents import Documents
from shards.errors import StoreError
from shards.generation import Generation
from shards.layers.contract import Reader, Request
from shards.nulls import CorpusNulls, FusedNull, ProbeRank, ProbeScan, SpaceNull, fit_space, median_sd
from shards.plan import Everything, Glob, Or, Plan, Predicate, SpaceQuery
from shards.probes import N_OFFERED, N_PROBES, Probe, choose_probes, random_strings, rank_hashes, shorten, shuffle_words, swap_words, window
from shards.segment import pack_entries
from shards.shard import Shard, Space
from shards.types import Array, Budget, Candidates, Moments
from shards.weights import fit_weights
from shards.word_order import WordOrder

logger = logging.getLogger(__name__)

EVERYTHING = Everything()
N_EXAMPLES = 2 * N_PROBES  # sentences that tell what is answered, and senseless queries for the null of fused evidence
MIN_SENSE = 4  # words; fewer make sense in any order


def sample(shards: list[Shard], where: Predicate = EVERYTHING, n: int = N_OFFERED) -> list[tuple[bytes, bytes]]:
    """The first `n` documents in scope in the order of `rank_hashes`, with their renditions; the same for any sharding."""
    offers: list[tuple[Array, Shard]] = []
    for shard in shards:
        for view, allowed in zip(shard.views, shard.documents_in(where), strict=True):
            hashes = view.segment.documents.hashes[allowed]
            offers.append((hashes[rank_hashes(hashes)[:n]], shard))
    if not offers:
        return []
    hashes = np.concatenate([h for h, _ in offers])
    owners = [shard for h, shard in offers for _ in range(len(h))]
    chosen = []
    for i in rank_hashes(hashes)[:n].tolist():
        view, row = owners[i].find(hashes[i].tobytes())
        chosen.append((hashes[i].tobytes(), bytes(view.segment.documents.content(row))))
    return chosen


def _readers(shards: list[Shard], space: Space) -> Iterator[tuple[Reader, Callable[[bytes], int]]]:
    """Every reader of a space, with the row of a document in it (-1 where it has none)."""
    for shard in shards:
        for view in shard.views:
            if space.id in view.readers:
                yield view.readers[space.id], view.row_of


class Calibrator:
    """Fits null models. threads: segments scanned at once; report: told (step, done, total, unit)."""

    def __init__(self, threads: int = 2, report: Callable[[str, int, int, str], None] = lambda *_: None):
        self.threads, self.report = threads, report

    def __call__(self, generation: Generation) -> bytes | None:
        """The null models of an opened generation, as the JSON bytes that its root names; None for an empty corpus."""
        shards = [generation.shard(ref.shard) for ref in generation.root.shards]
        for name, reason in (item for shard in shards for item in shard.unopened.items()):
            raise StoreError(f"Layer {name!r} cannot be calibrated: {reason}")
        documents = sample(shards)
        if not documents:
            return None
        probes = choose_probes(documents)
        shuffled = shuffle_words(documents, probes, n_queries=N_EXAMPLES)  # a KS of 0.09 with 128 is 0.06 with these
        spaces: dict[str, SpaceNull] = {}
        for name, space in sorted(generation.spaces.items()):
            if space.layer.null != "moments":
                continue
            # A space that was built for some paths only is probed with sentences of these: others are strangers to it.
            own = choose_probes(sample(shards, Or(tuple(map(Glob, space.scope))))) if space.scope else probes
            fitted = self._space(generation, shards, space, own)
            if fitted is not None:
                spaces[name] = fitted
        n_docs = generation.root.n_docs
        version = generation.root.null_version + 1
        nulls = CorpusNulls(version, spaces, None, n_docs)
        weights, cloze = self._weights(generation, shards, nulls, probes, dict(documents))
        nulls = replace(nulls, weights=weights, cloze=cloze)
        nulls = replace(nulls, answerability=self._answerability(generation, shards, nulls, documents))
        nulls = replace(nulls, fused=self._fused(generation, shards, nulls, shuffled))
        return json.dumps(nulls.to_json(), sort_keys=True).encode()

    def _prepare(self, generation: Generation, space: Space, text: str) -> SpaceQuery | None:
        query = space.layer.prepare(Request(text), generation.statistics(space.name))
        return None if query is None else replace(query, space=space.name)

    def _space(
        self, generation: Generation, shards: list[Shard], space: Space, probes: tuple[Probe, ...]
    ) -> SpaceNull | None:
        readers = list(_readers(shards, space))
        asked = [(q, p) for p in probes if (q := self._prepare(generation, space, p.text)) is not None]
        parts = [(q, p) for p in shorten(probes) if (q := self._prepare(generation, space, p.text)) is not None]
        step, total = f"null model of {space.name}", 2 * len(asked) + len(parts)
        with ThreadPoolExecutor(self.threads) as pool:

            def first(query: SpaceQuery, source: bytes) -> ProbeScan:
                scanned = pool.map(lambda r: ProbeScan.of(*r[0].scan(query), _row(r[1], source)), readers)
                return ProbeScan.merge(list(scanned))

            def second(query: SpaceQuery, source: bytes, whole: ProbeScan, median: float) -> ProbeRank:
                ranked = pool.map(lambda r: ProbeRank.of(*r[0].scan(query), _row(r[1], source), whole, median), readers)
                return ProbeRank.merge(list(ranked))

            scans = []
            for i, (query, probe) in enumerate(asked):
                scans.append(first(query, probe.source))
                self.report(step, i + 1, total, "queries")
            median = median_sd(scans)
            ranks = []
            for i, ((query, probe), scan) in enumerate(zip(asked, scans, strict=True)):
                ranks.append(second(query, probe.source, scan, median))
                self.report(step, len(asked) + i + 1, total, "queries")
            home = [(probe.n_words, scan) for (_, probe), scan in zip(asked, scans, strict=True)]
            for i, (query, probe) in enumerate(parts):
                home.append((probe.n_words, first(query, probe.source)))
                self.report(step, 2 * len(asked) + i + 1, total, "queries")
        return fit_space(scans, ranks, home)

    def _weights(
        self,
        generation: Generation,
        shards: list[Shard],
        nulls: CorpusNulls,
        probes: tuple[Probe, ...],
        renditions: dict[bytes, bytes],
    ) -> tuple[dict[str, float], dict[str, float]]:
        """What each similarity space counts, and its mean reciprocal rank, from cloze probes: each source without its sentence
        competes with what a search finds for the sentence elsewhere."""
        spaces = [s for _, s in sorted(generation.spaces.items()) if s.name in nulls.spaces]
        kept, masked = masked_documents(probes, renditions)
        if len(spaces) < 2 or not kept:
            return {}, {}
        row = {masked.hashes[i].tobytes(): i for i in range(len(masked))}
        readers = [_masked_reader(space, masked, shards) for space in spaces]
        choices: list[tuple[Array, Array]] = []
        reciprocal = np.zeros(len(spaces))
        for i, probe in enumerate(kept):
            queries = [self._prepare(generation, space, probe.text) for space in spaces]
            asked = [q for q in queries if q is not None]
            plan = Plan(Everything(), tuple(asked), n_details=0, budget_s=60.0)
            found = merge([shard.search(plan, Budget(plan.budget_s)) for shard in shards], plan.n_candidates)
            others = (found.hashes != np.frombuffer(probe.source, np.uint8)).any(axis=1)
            right, rest = np.zeros(len(spaces)), np.zeros((int(others.sum()), len(spaces)))
            for j, query in enumerate(queries):
                if query is None:
                    continue
                at, null = asked.index(query), nulls.spaces[query.space]
                scores, rows = readers[j].scan(query)
                mine = scores[rows == row[probe.source]]
                right[j] = _evidence(null, mine, found.moments[at]).max(initial=0.0)
                rest[:, j] = _evidence(null, found.scores[others, at], found.moments[at])
                reciprocal[j] += 1.0 / (1.0 + (rest[:, j] > right[j]).sum() + (rest[:, j] == right[j]).sum() / 2)
            choices.append((right, rest))
            self.report("weights of spaces", i + 1, len(kept), "queries")
        weights = fit_weights(choices)
        if weights is None:
            return {}, {}
        names = [space.name for space in spaces]
        return (
            dict(zip(names, weights.tolist(), strict=True)),
            dict(zip(names, np.round(reciprocal / len(kept), 6).tolist(), strict=True)),
        )

    def _search(
        self, generation: Generation, shards: list[Shard], spaces: list[Space], text: str
    ) -> tuple[list[SpaceQuery], Candidates | None]:
        """What searches of these spaces alone find over the whole corpus, and what they were asked."""
        queries = [q for space in spaces if (q := self._prepare(generation, space, text)) is not None]
        if not queries:
            return [], None
        plan = Plan(Everything(), tuple(queries), n_details=0, budget_s=60.0)
        return queries, merge([shard.search(plan, Budget(plan.budget_s)) for shard in shards], plan.n_candidates)

    def _answerability(
        self, generation: Generation, shards: list[Shard], nulls: CorpusNulls, documents: list[tuple[bytes, bytes]]
    ) -> Answerability | None:
        """What tells the corpus's own sentences and their parts, seen without their words in the source, from senseless ones."""
        spaces = [s for _, s in sorted(generation.spaces.items()) if s.name in nulls.spaces and not s.scope]
        kept, masked = masked_documents(choose_probes(documents, n_probes=N_EXAMPLES), dict(documents))
        if not spaces or len(kept) < MIN_EXAMPLES:
            return None
        row = {masked.hashes[i].tobytes(): i for i in range(len(masked))}
        around = [bytes(masked.content(i)).decode("utf-8", "replace") for i in range(len(masked))]
        order = WordOrder.fit([*around, *(window(key, body) for key, body in documents if key not in row)])
        parts = shorten(kept)
        short = [part for part in parts if part.n_words >= MIN_SENSE]
        common = set(order.words) if order is not None else set()
        mixed = [*kept[::2], *short]  # in length like sentences and like what people ask
        senseless = {
            "order": shuffle_words(documents, mixed, b"sense", len(mixed)),
            "topic": swap_words(mixed, common) + random_strings(len(mixed) // 4),
        }
        readers = {space.name: _masked_reader(space, masked, shards) for space in spaces}
        names = [space.name for space in spaces]
        asked = [("", probe.text, probe.source) for probe in (*kept, *parts)]
        asked += [(kind, text, None) for kind, texts in senseless.items() for text in texts]
        examples: dict[str, list[Array]] = {kind: [] for kind in ("", *senseless)}
        for i, (kind, text, source) in enumerate(asked):
            queries, found = self._search(generation, shards, spaces, text)
            if found is not None:
                if source is not None:
                    # What the source says without the sentence stands in for it. No layer scores a unit 0 that matches.
                    own = (found.hashes == np.frombuffer(source, np.uint8)).all(axis=1)
                    scores = found.scores.copy()
                    for j, query in enumerate(queries):
                        hidden, rows = readers[query.space].scan(query)
                        best = hidden[rows == row[source]].max(initial=-np.inf)
                        scores[own, j] = best if best != 0.0 else -np.inf
                    found = replace(found, scores=scores)
                facts = [_fact(generation, query) for query in queries]
                fused = fuse(found, facts, nulls, generation.root.n_docs)
                examples[kind].append(features(fused, facts, names, text, order))
            self.report("what is answered", i + 1, len(asked), "queries")
        answered = np.array(examples.pop(""))
        return Answerability.fit(feature_names(names), names, answered, {k: np.array(v) for k, v in examples.items()}, order)

    def _fused(
        self, generation: Generation, shards: list[Shard], nulls: CorpusNulls, shuffled: tuple[str, ...]
    ) -> FusedNull | None:
        """The null of fused evidence: the best hit of each senseless query, over the similarity spaces, by the fusion of searches."""
        spaces = [s for _, s in sorted(generation.spaces.items()) if s.layer.null == "moments"]
        if not spaces:
            return None
        best = []
        for i, text in enumerate(shuffled):
            queries, found = self._search(generation, shards, spaces, text)
            if found is not None:
                fused = fuse(found, [_fact(generation, query) for query in queries], nulls, generation.root.n_docs)
                best.append(float(fused.fused.max()) if len(fused.fused) else 0.0)
            self.report("null model of fused evidence", i + 1, len(shuffled), "queries")
        return FusedNull.fit(best, generation.root.n_docs, [space.name for space in spaces])


def _fact(generation: Generation, query: SpaceQuery) -> SpaceFacts:
    return SpaceFacts(query.space, "moments", int(generation.statistics(query.space).n_units), most=query.most)


def _masked_reader(space: Space, masked: Documents, shards: list[Shard]) -> Reader:
    """A reader over documents that are in no segment. A space built for some paths only sees those whose sources lie there."""
    entries = pack_entries([])
    scope = None
    if space.scope:
        inside = Or(tuple(map(Glob, space.scope)))
        kept = {
            key.tobytes()
            for shard in shards
            for view, allowed in zip(shard.views, shard.documents_in(inside), strict=True)
            for key in view.segment.documents.hashes[allowed]
        }
        scope = np.array([key.tobytes() in kept for key in masked.hashes], bool)
    arrays = space.layer.build(masked, entries, scope)
    return space.layer.open(arrays, masked, entries, np.ones(len(masked), bool))


def _evidence(null: SpaceNull, scores: Array, moments: Moments | None) -> Array:
    """Surprise as fusion counts it: none where there is no match or no score."""
    return np.where(np.isfinite(scores), np.nan_to_num(null.surprise(null.z(scores, moments))), 0.0)


def _row(row_of: Callable[[bytes], int], source: bytes) -> int | None:
    row = row_of(source)
    return row if row >= 0 else None
