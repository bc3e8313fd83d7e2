"""Scores of documents without an index: those that the index would give, within the time, and told as what they are."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from engine import Engine, write_files
from test_vectors import Hashed

from cluster.host import Host
from shards.documents import Documents
from shards.identity import N_BUCKETS, content_hash
from shards.layers.contract import Request
from shards.live import InMemory
from shards.manifest import ShardPage
from shards.on_the_fly import OnTheFly, by_promise
from shards.plan import Everything, Plan
from shards.segment import Tombstones, pack_entries
from shards.shard import Shard, Space, search
from shards.types import Budget, Moments

N_DOCS, SHARE = 200, 0.2


def documents() -> Documents:
    rng = np.random.default_rng(3)
    words = ["stone", "river", "cloud", "tree", "alpha", "beta"]
    texts = [f"{' '.join(rng.choice(words, 8))} number{i}".encode() for i in range(N_DOCS)]
    return Documents.pack((content_hash(text), text, "prose:english") for text in texts)


class Corpus:
    """One segment with a space that is built for a random sample and, as where use has it built, for what says `stone` twice."""

    def __init__(self, layer=None):
        self.layer = layer or Hashed()
        self.documents = documents()
        prefixes = self.documents.hashes[:, :8].copy().view(">u8")[:, 0].astype(np.uint64)
        self.sample = prefixes <= np.uint64(int(SHARE * 2**64))
        shown = np.array([bytes(self.documents.content(row)).count(b"stone") > 1 for row in range(N_DOCS)])
        self.built = self.sample | shown
        self.query = self.layer.prepare(Request("stone"), None)

    def shard(self, built, space_built: str = "used") -> Shard:
        entries = pack_entries(())
        arrays = self.layer.build(self.documents, entries, built)
        segment = InMemory(self.documents, entries, {"id": arrays})
        page = ShardPage(shard=0, buckets=(0, N_BUCKETS), segments=(segment.ref,))
        none = np.zeros(0, np.int32)
        spaces = {"s": Space("s", "id", self.layer, built=space_built, sample=SHARE)}
        return Shard(page, [segment], [Tombstones(none, none, {})], spaces)

    def plan(self, on_the_fly_s: float = 10.0, rows=()) -> Plan:
        """The question, and documents that others have found."""
        given = b"".join(self.documents.hashes[row].tobytes() for row in rows)
        return Plan(Everything(), (replace(self.query, space="s"),), n_candidates=5, given=given, on_the_fly_s=on_the_fly_s)

    def scores(self, found) -> dict[bytes, float]:
        return {key.tobytes(): score for key, score in zip(found.hashes, found.scores[:, 0].tolist(), strict=True)}


def loaded(corpus: Corpus) -> OnTheFly:
    on_the_fly = OnTheFly()
    assert on_the_fly.load(Space("s", "id", corpus.layer)).wait(60)
    return on_the_fly


def test_documents_without_an_index_are_scored_on_the_fly_and_coverage_stays_that_of_the_index():
    corpus = Corpus()
    rows = np.flatnonzero(~corpus.built)[:10]
    on_the_fly = loaded(corpus)
    found = search([corpus.shard(corpus.built)], corpus.plan(rows=rows), Budget(), on_the_fly)
    whole = corpus.scores(search([corpus.shard(None, "all")], corpus.plan(rows=rows), Budget()))
    here = corpus.scores(found)
    for row in rows:
        key = corpus.documents.hashes[row].tobytes()
        assert here[key] == whole[key]
    (status,) = found.status
    n_built = int(corpus.built.sum())
    assert (status.state, status.covered, status.total) == ("building", n_built, N_DOCS)
    assert status.reason == f"built for {n_built} of {N_DOCS} documents; 10 candidates scored on the fly"
    n_encoded = len(corpus.layer.encoder.texts)
    again = search([corpus.shard(corpus.built)], corpus.plan(rows=rows), Budget(), on_the_fly)
    assert corpus.scores(again) == here
    assert len(corpus.layer.encoder.texts) == n_encoded + n_built, "the shard was built again, and nothing was encoded for the search"


def test_nothing_is_scored_on_the_fly_where_a_plan_allows_no_time_for_it():
    corpus = Corpus()
    rows = np.flatnonzero(~corpus.built)[:3]
    scores = corpus.scores(search([corpus.shard(corpus.built)], corpus.plan(0.0, rows), Budget(), loaded(corpus)))
    assert all(np.isnan(scores[corpus.documents.hashes[row].tobytes()]) for row in rows)


def test_moments_of_a_space_built_where_it_is_used_are_those_of_its_random_sample():
    corpus = Corpus()
    found = search([corpus.shard(corpus.built)], corpus.plan(), Budget())
    scores = corpus.shard(None, "all").views[0].readers["id"].scan(corpus.query)[0]  # a document has one passage here
    sample, built, every = (Moments.of(scores[rows]) for rows in (corpus.sample, corpus.built, np.ones(N_DOCS, bool)))
    assert found.moments[0].n == sample.n
    assert found.moments[0].mean == pytest.approx(sample.mean)
    assert found.moments[0].sd == pytest.approx(sample.sd)
    assert abs(sample.mean - every.mean) < abs(built.mean - every.mean), "what use has built is no fair sample, or this test shows nothing"


def test_a_space_without_any_index_says_nothing_and_encodes_nothing():
    corpus = Corpus()
    on_the_fly = loaded(corpus)
    n_encoded = len(corpus.layer.encoder.texts)
    shard = corpus.shard(np.zeros(N_DOCS, bool))
    found = search([shard], corpus.plan(rows=[0, 1]), Budget(), on_the_fly)
    assert np.isnan(found.scores).all()
    assert len(corpus.layer.encoder.texts) == n_encoded


class Blocked(Hashed):
    """A model that is not there before the test says so."""

    gate = None

    def build(self, *args, **kwargs):
        if self.gate is not None:
            self.gate.wait(60)
        return super().build(*args, **kwargs)


def test_a_search_waits_for_no_model():
    corpus = Corpus(Blocked())
    rows = np.flatnonzero(~corpus.built)[:2]
    shard = corpus.shard(corpus.built)
    corpus.layer.gate = threading.Event()
    on_the_fly = OnTheFly()
    first = search([shard], corpus.plan(rows=rows), Budget(), on_the_fly)
    assert first.status[0].reason.endswith("; 0 candidates scored on the fly: its model is being loaded")
    corpus.layer.gate.set()
    assert on_the_fly.load(shard.spaces["s"]).wait(60)
    assert search([shard], corpus.plan(rows=rows), Budget(), on_the_fly).status[0].reason.endswith("; 2 candidates scored on the fly")


class Ending(Hashed):
    """An encoder during whose work the time ends: it tells what is done after each text."""

    budget: Budget | None = None

    def __init__(self):
        super().__init__()
        own = self.encoder.encode_documents

        def encode(texts, done=None):
            for i in range(len(texts)):
                if self.budget is not None:
                    self.budget.deadline = -np.inf
                done and done(i + 1)
            return own(texts)

        self.encoder.encode_documents = encode


def test_encoding_ends_with_the_time_in_the_middle_of_a_document():
    corpus = Corpus(Ending())
    on_the_fly = loaded(corpus)
    layer, space = corpus.layer, Space("s", "id", corpus.layer)
    long = b"stone river " * 100  # some passages
    held = Documents.pack([(content_hash(long), long, "prose:english")])
    layer.budget = budget = Budget()
    n_encoded = len(layer.encoder.texts)
    scored, why = on_the_fly.score(space, corpus.query, [(held, 0)], budget)
    assert np.isnan(scored.scores).all() and why == ""
    assert len(layer.encoder.texts) == n_encoded
    layer.budget = None
    assert np.isfinite(on_the_fly.score(space, corpus.query, [(held, 0)], Budget())[0].scores).all()


def test_documents_that_would_take_too_long_are_not_begun():
    corpus = Corpus()
    on_the_fly, space = loaded(corpus), Space("s", "id", corpus.layer)
    on_the_fly._models["id"].per_byte_s = 1e6
    n_encoded = len(corpus.layer.encoder.texts)
    scored, _ = on_the_fly.score(space, corpus.query, [(corpus.documents, 0), (corpus.documents, 1)], Budget(60.0))
    assert np.isnan(scored.scores).all()
    assert len(corpus.layer.encoder.texts) == n_encoded


def test_what_is_kept_of_encodings_is_bounded():
    corpus = Corpus()
    on_the_fly, space = OnTheFly(kept_bytes=3 * 12 * 4), Space("s", "id", corpus.layer)  # three passages of 12 numbers
    assert on_the_fly.load(space).wait(60)
    wanted = [(corpus.documents, row) for row in range(6)]
    on_the_fly.score(space, corpus.query, wanted, Budget())
    n_encoded = len(corpus.layer.encoder.texts)
    on_the_fly.score(space, corpus.query, wanted[3:], Budget())
    assert len(corpus.layer.encoder.texts) == n_encoded
    on_the_fly.score(space, corpus.query, wanted[:3], Budget())
    assert len(corpus.layer.encoder.texts) == n_encoded + 3


def test_goals_say_how_long_is_encoded_and_a_joint_ranking_uses_indices_alone(tmp_path, monkeypatch):
    engine = Engine(tmp_path, layers=["bm25"])
    engine.index(write_files(tmp_path / "source", {"a.md": "stone river\n", "b.md": "cloud tree\n"}), calibrate=False)
    plans = []
    real = Host.search
    monkeypatch.setattr(Host, "search", lambda self, requests: plans.extend(r.plan for r in requests) or real(self, requests))

    def asked(**request) -> tuple[float, float]:
        plans.clear()
        engine.search("stone", layers=["bm25"], budget_ms=10_000, **request)
        plan = plans[-1]  # the first ones are the coordinator's own, by which it learns
        return plan.on_the_fly_s, plan.budget_s

    assert asked(goal="fast")[0] == asked(coupling="joint")[0] == 0.0
    assert asked(goal="balanced")[0] == 0.25
    seconds, left_s = asked(goal="precise")
    assert seconds == pytest.approx(0.5 * left_s, rel=0.01)


def test_documents_come_in_the_order_in_which_all_columns_rank_them():
    nan = np.nan
    scores = np.array([[1.0, nan], [3.0, 0.1], [2.0, 5.0], [nan, nan]])
    assert by_promise(scores).tolist() == by_promise(scores, (0.0, 0.0)).tolist() == [1, 2, 0, 3]
    assert by_promise(scores, (0.0, 1.0)).tolist() == [2, 1, 0, 3]  # as evidence ranks them, in which the first column counts nothing
