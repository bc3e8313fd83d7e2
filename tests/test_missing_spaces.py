"""A space that is late, missing or broken: others count by a stated rule, nothing is invented, and the order of arrival changes no bit."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from engine import Engine, write_files
from test_evidence import N_DOCS, NULLS, candidates, exact, keys, similar, space_null

from serve.evidence import fuse
from shards.candidates import merge
from shards.corpus_nulls import Selection
from shards.nulls import FusedNull
from shards.shard import Shard
from shards.types import Moments

SPACES = ("bm25", "dense", "static")
LEARNT = {"bm25": 1.0, "dense": 0.6, "static": 0.2}
# What was learnt of two of them, where the third is away: dense is the better of dense and static. Of others nothing was learnt apart.
PAIR = Selection({"dense": 1.0, "static": 0.5}, FusedNull((0.0,), (0.0,), 6.0, 1.0, N_DOCS, ("dense", "static"), 1))
CORPUS = replace(
    NULLS,
    spaces={"bm25": space_null(1), "dense": space_null(2), "static": space_null(3)},
    weights=LEARNT,
    fused=FusedNull((0.0,), (0.0,), 8.0, 1.5, N_DOCS, SPACES, 1),
    selections={("dense", "static"): PAIR},
)
SUBSETS = [set(some) for n in range(len(SPACES)) for some in itertools.combinations(SPACES, n)]


def rule(present):
    """The stated rule: what was learnt of those that take part, the best of them fully."""
    learnt = PAIR.weights if set(present) == {"dense", "static"} else LEARNT
    best = max(learnt[name] for name in present)
    return {name: learnt[name] / best for name in present}


def found(seed=0, n=80):
    """Candidates of three similarity spaces and one of exact matches, each of which listed some."""
    rng = np.random.default_rng(seed)
    scores = np.column_stack([rng.normal(1, 1.2, (n, 3)), np.where(rng.random(n) < 0.1, 1.0, -np.inf)])
    scores[rng.random((n, 4)) < 0.1] = -np.inf
    generated = np.isfinite(scores) & (rng.random((n, 4)) < 0.6)
    generated[~generated.any(axis=1), 0] = True
    return candidates(scores, [Moments(N_DOCS, 0.0, float(N_DOCS))] * 3 + [None], keys(n, seed), generated)


def broken(whole, missing):
    """The same where some spaces failed on every shard: what only they had listed is not there, and they say nothing of the rest."""
    away = np.array([name in missing for name in SPACES] + [False])
    generated = whole.generated & ~away
    kept = generated.any(axis=1)
    scores = np.where(away, np.nan, whole.scores)
    moments = tuple(None if gone else m for gone, m in zip(away, whole.moments, strict=True))
    columns = {name: getattr(whole, name)[kept] for name in ("hashes", "starts", "ends")}
    return replace(whole, generated=generated[kept], scores=scores[kept], moments=moments, **columns), kept


def facts():
    return [*similar(*SPACES), exact("text", 20.0)]


@pytest.mark.parametrize("missing", SUBSETS, ids=lambda some: "+".join(sorted(some)) or "none")
def test_without_some_spaces_evidence_is_what_the_rule_gives_of_the_others(missing):
    whole = found()
    all_of_it = fuse(whole, facts(), CORPUS, N_DOCS)
    cut, kept = broken(whole, missing)
    fused = fuse(cut, facts(), CORPUS, N_DOCS)
    present = [name for name in SPACES if name not in missing]
    weights = rule(present)
    by_hand = np.zeros(len(cut.hashes))
    for name in sorted([*present, "text"]):
        j = [*SPACES, "text"].index(name)
        by_hand += weights.get(name, 1.0) * all_of_it.surprises[kept][:, j]
        # that another is away makes nothing that a space says more surprising
        assert fused.surprises[:, j].tobytes() == all_of_it.surprises[kept][:, j].tobytes()
    assert fused.fused.tolist() == by_hand.tolist()
    assert (fused.fused <= fused.surprises.sum(axis=1) + 1e-12).all()
    assert (fused.surprises[:, [name in missing for name in SPACES] + [False]] == 0).all()
    assert [w for w, name in zip(fused.weights, SPACES, strict=False) if name in present] == [weights[name] for name in present]


@pytest.mark.parametrize("missing", SUBSETS[1:], ids=lambda some: "+".join(sorted(some)))
def test_a_space_that_failed_everywhere_is_as_one_that_was_not_asked(missing):
    cut, _ = broken(found(1), missing)
    there = [j for j, name in enumerate([*SPACES, "text"]) if name not in missing]
    asked = replace(
        cut, scores=cut.scores[:, there], generated=cut.generated[:, there], starts=cut.starts[:, there], ends=cut.ends[:, there],
        moments=tuple(cut.moments[j] for j in there), n_matched=cut.n_matched[there],
    )  # fmt: skip
    failed, without = fuse(cut, facts(), CORPUS, N_DOCS), fuse(asked, [facts()[j] for j in there], CORPUS, N_DOCS)
    for name in ("fused", "of_sources", "order", "log_evalues", "log_evalues_of_sources", "starts", "ends"):
        assert getattr(failed, name).tobytes() == getattr(without, name).tobytes(), name
    assert failed.fused_null == without.fused_null


@pytest.mark.parametrize("seed", range(4))
def test_a_space_that_was_late_on_some_shards_adds_nothing_there_and_counts_as_before_elsewhere(seed):
    whole = found(seed)
    late = np.random.default_rng(100 + seed).random(len(whole.hashes)) < 0.5
    scores = whole.scores.copy()
    scores[late, 1] = np.nan
    cut = replace(whole, scores=scores, moments=(whole.moments[0], Moments(N_DOCS // 2, 0.0, N_DOCS / 2), *whole.moments[2:]))
    before, after = fuse(whole, facts(), CORPUS, N_DOCS), fuse(cut, facts(), CORPUS, N_DOCS)
    assert after.weights.tolist() == before.weights.tolist()
    assert (after.surprises[late, 1] == 0).all() and (after.fused <= before.fused).all()
    assert after.surprises[:, [0, 2, 3]].tobytes() == before.surprises[:, [0, 2, 3]].tobytes()
    assert after.fused[~late].tobytes() == before.fused[~late].tobytes()
    assert (after.log_evalues[late] >= before.log_evalues[late]).all()  # less evidence is never taken for more


@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_which_parts_arrive_does_not_change_a_bit(seed):
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    parts = []
    for shard in range(16):
        part = found(1_000 * seed + shard, 40)
        moments = tuple(None if m is None else Moments.of(rng.normal(0, 1, 25 + shard)) for m in part.moments)
        parts.append(replace(part, moments=moments))
    expected = fuse(merge(parts, 20), facts(), CORPUS, N_DOCS)
    for _ in range(10):
        again = fuse(merge([parts[i] for i in rng.permutation(16)], 20), facts(), CORPUS, N_DOCS)
        for name in ("hashes", "order", "scores", "z", "surprises", "fused", "log_evalues", "signal_log_evalues", "starts", "ends", "best"):
            assert getattr(again, name).tobytes() == getattr(expected, name).tobytes(), name


# --- whole engine ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("missing")
    words = "river stone cloud weather bread oven engine wheel harbour sail tower bridge".split()
    text = {f"{w}/{i}.md": f"A {w} and a {words[(5 * i + 1) % 12]}, number {i}.\n" for i in range(40) for w in [words[i % 12]]}
    made = Engine(folder, layers=("names", "text", "bm25"))
    made.index(write_files(folder / "src", text), n_shards=4, calibrate=False)
    return made


def essence(answer):
    return {h.hash: {s.layer: (s.score, s.surprise, s.start, s.end) for s in h.signals} for h in answer.hits}


ASK = {"query": "weather", "k": 40, "keep_all": True, "explain": True}
LAYERS = ("names", "text", "bm25")


@pytest.mark.parametrize("missing", [some for n in (1, 2, 3) for some in itertools.combinations(LAYERS, n)], ids="+".join)
def test_a_space_that_breaks_takes_its_own_signals_with_it_and_nothing_else(engine, monkeypatch, missing):
    whole = essence(engine.search(**ASK))
    search = Shard._search_space

    def breaks(self, query, *rest):
        if query.space in missing:
            raise OSError("the disk is gone")
        return search(self, query, *rest)

    monkeypatch.setattr(Shard, "_search_space", breaks)
    answer = engine.search(**ASK)
    left = essence(answer)
    assert not answer.complete and {c.layer for c in answer.coverage if c.state == "failed"} == set(missing)
    others = {key: {name: said for name, said in signals.items() if name not in missing} for key, signals in whole.items()}
    assert left == {key: signals for key, signals in others.items() if any(surprise > 0 for _, surprise, _, _ in signals.values())}


def test_another_replica_gives_the_same_answer_to_the_bit(engine):
    """Each search opens the shards anew, on a host of its own."""
    one, other = (engine.search(**ASK).model_dump_json(exclude={"timings_ms", "plan"}) for _ in range(2))
    assert one == other and '"hits":[{' in one


def test_a_space_that_breaks_on_one_shard_is_silent_about_its_documents_alone(engine, monkeypatch):
    whole, search, generation = engine.search(**ASK), Shard._search_space, engine.generation()
    before = essence(whole)
    gone = next(generation.shard_of(bytes.fromhex(key)) for key, signals in before.items() if "text" in signals)

    def breaks(self, query, *rest):
        if query.space == "text" and self.number == gone:
            raise OSError("the disk is gone")
        return search(self, query, *rest)

    monkeypatch.setattr(Shard, "_search_space", breaks)
    answer = engine.search(**ASK)
    states = {c.shard: c.state for c in answer.coverage if c.layer == "text"}
    assert states == {shard: "failed" if shard == gone else "ready" for shard in range(4)}
    for key, signals in essence(answer).items():
        there = generation.shard_of(bytes.fromhex(key)) != gone
        assert signals == {name: said for name, said in before[key].items() if there or name != "text"}
    fused = {h.hash: h.fused for h in whole.hits}
    assert all(h.fused <= fused[h.hash] for h in answer.hits)


def test_a_space_that_looked_at_a_part_of_the_scope_counts_in_proportion():
    whole = found()
    late = [replace(space, looked=0.25) if space.name == "dense" else space for space in facts()]
    full, part = fuse(whole, facts(), CORPUS, N_DOCS), fuse(whole, late, CORPUS, N_DOCS)
    j = [space.name for space in facts()].index("dense")
    assert part.weights[j] == full.weights[j] / 4
    assert (part.fused <= full.fused).all()
    assert part.weights[np.arange(4) != j].tolist() == full.weights[np.arange(4) != j].tolist()


@pytest.mark.parametrize("lost", [False, True], ids=["broken", "its host is gone"])
def test_a_space_without_one_shard_counts_by_the_documents_of_the_others(engine, monkeypatch, lost):
    generation, search = engine.generation(), Shard.find_hits

    def breaks(self, plan, query, found, finding, budget):
        search(self, plan, query, found, finding, budget)
        if self.number == 2:
            gone = {"state": "failed", "covered": 0} | ({"total": 0} if lost else {})
            finding.status[:] = [replace(s, **gone) if s.space == "bm25" else s for s in finding.status]

    monkeypatch.setattr(Shard, "find_hits", breaks)
    shards = {ref.shard: ref.n_docs for ref in generation.root.shards}
    weight = next(info.weight for info in engine.search(**ASK).layers if info.name == "bm25")
    assert weight == 1 - shards[2] / sum(shards.values()) < 1
