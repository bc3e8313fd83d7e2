"""Callers' own vectors: the layer `vectors`, what a document's hash covers, and the way into the index."""

import json

import numpy as np
import pytest
from layer_contract import LayerContract

from shards import given
from shards.documents import Documents
from shards.encodings import PackedEncodings
from shards.errors import BadQuery, BadSpec
from shards.identity import content_hash
from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Request, Resources
from shards.segment import dump_pack, pack_entries, read_given, read_pack
from shards.store import open_store
from shards.types import Budget

DIM = 12


def own_vectors(key: bytes) -> np.ndarray:
    """One to three vectors that depend on the hash alone; of various lengths."""
    rng = np.random.default_rng(list(key))
    return (rng.normal(size=(1 + key[0] % 3, DIM)) * (1 + key[1])).astype(np.float32)


class Own(dict):
    """Kept encodings that know every document."""

    def get(self, hashes):
        return {key.tobytes(): own_vectors(key.tobytes()) for key in hashes}


def bound(metric: str):
    layer = create(SpaceSpec("mine", "vectors", {"dim": DIM, "metric": metric}), Resources())
    build = layer.build
    layer.build = lambda documents, entries, scope=None, known=None, progress=None: build(documents, entries, scope, Own())
    return layer


class TestCosineContract(LayerContract):
    metric = "cosine"

    def make_layer(self):
        return bound(self.metric)

    def requests(self):
        return [Request("ignored", form={"vector": list(range(1, DIM + 1))}), Request("", form={"vector": [-1.0, *[0.5] * (DIM - 1)]})]

    def check_moments(self, moments, expected):
        assert moments.n == expected.n
        np.testing.assert_allclose([moments.mean, moments.m2], [expected.mean, expected.m2], rtol=1e-9)


class TestDotContract(TestCosineContract):
    metric = "dot"


def one(layer, vectors: dict[bytes, np.ndarray], texts: list[bytes], vector: list[float]):
    """What a question finds among documents of which some have vectors: text -> score."""
    documents = Documents.pack([(content_hash(text), text, "data") for text in texts])

    class Known(dict):
        def get(self, hashes):
            return {k.tobytes(): vectors[k.tobytes()] for k in hashes if k.tobytes() in vectors}

    arrays = layer.build(documents, pack_entries([]), None, Known())
    reader = layer.open(arrays, documents, pack_entries([]), np.ones(len(texts), bool))
    found = reader.search(layer.prepare(Request("", form={"vector": vector}), None), None, 10, Budget())
    spans = [bytes(documents.content(row))[a:b] for row, a, b in zip(found.rows, found.starts, found.ends, strict=True)]
    return dict(zip(spans, found.scores.tolist(), strict=True)), (found.rows_covered, found.rows_total)


def test_a_document_scores_by_its_best_vector_and_without_one_it_is_not_in_the_space():
    vectors = {content_hash(b"a"): np.array([[1, 0], [3, 4]], np.float32), content_hash(b"b"): np.array([[0, 2]], np.float32)}
    layer = create(SpaceSpec("mine", "vectors", {"dim": 2}), Resources())
    scores, coverage = one(layer, vectors, [b"a", b"b", b"c"], [0.0, 5.0])
    assert scores == {b"b": 1.0, b"a": pytest.approx(0.8)} and coverage == (2, 3)
    dot = create(SpaceSpec("mine", "vectors", {"dim": 2, "metric": "dot"}), Resources())
    assert one(dot, vectors, [b"a", b"b", b"c"], [0.0, 5.0])[0] == {b"a": 20.0, b"b": 10.0}


def test_words_ask_nothing_unless_the_space_was_asked_for_by_name():
    layer = create(SpaceSpec("mine", "vectors", {"dim": 2}), Resources())
    assert layer.prepare(Request("some words"), None) is None
    with pytest.raises(BadQuery, match="cannot be asked in words"):
        layer.prepare(Request("some words", explicit=True), None)
    with pytest.raises(BadQuery, match="has 3 numbers; this space has 2 dimensions"):
        layer.prepare(Request("", form={"vector": [1, 2, 3]}), None)
    with pytest.raises(BadSpec, match="dim: Field required"):
        create(SpaceSpec("mine", "vectors"), Resources())


def test_vectors_are_given_under_the_name_of_the_space_and_a_metric_does_not_lose_them():
    cosine, dot, other = (
        (spec, create(spec, Resources()))
        for spec in (
            SpaceSpec("mine", "vectors", {"dim": 2}),
            SpaceSpec("mine", "vectors", {"dim": 2, "metric": "dot"}),
            SpaceSpec("other", "vectors", {"dim": 2}),
        )
    )
    ids = [space_id(*each) for each in (cosine, dot, other)]
    assert len(set(ids)) == 3
    folders = [given.folder(layer, space) for (_, layer), space in zip((cosine, dot, other), ids, strict=True)]
    assert folders[0] == folders[1] != folders[2]
    assert given.dims([cosine[1], other[1]]) == {"mine": 2, "other": 2}
    renamed = create(SpaceSpec("new name", "vectors", {"dim": 2, "given": "mine"}), Resources())
    assert space_id(SpaceSpec("new name", "vectors"), renamed) == ids[0]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1, 2], "must be an object"),
        ({"theirs": [1, 2]}, "takes no vectors named 'theirs'. It takes: mine"),
        ({"mine": [1, 2, 3]}, "has 3 numbers, expected 2"),
        ({"mine": [[1, 2], [1]]}, "has 1 numbers, expected 2"),
        ({"mine": []}, "has 0 numbers"),
        ({"mine": "ab"}, "a list of numbers"),
        ({"mine": [1, "b"]}, "a list of numbers"),
        ({"mine": [True, 1]}, "a list of numbers"),
        ({"mine": [1, 1e39]}, "not finite in 32 bits"),
        ({"mine": [1, 10**400]}, "not finite in 32 bits"),
        ({"mine": [float("nan"), 1]}, "not finite"),
        ({"mine": [[1, 2], [0, 0]]}, "no direction"),
        ({"mine": [[1, 2]] * 1_025}, "at most 1,024"),
    ],
)
def test_vectors_that_cannot_be_used_are_refused(value, said):
    with pytest.raises(BadQuery) as caught:
        given.parse(value, {"mine": 2})
    assert said in str(caught.value)


def test_one_or_several_vectors_of_a_document_are_taken():
    assert given.parse({"mine": [1, 2.5]}, {"mine": 2})["mine"].tolist() == [[1, 2.5]]
    assert given.parse({"mine": [[1, 2], [3, 4]]}, {"mine": 2})["mine"].tolist() == [[1, 2], [3, 4]]


def test_a_hash_covers_the_vectors_a_document_comes_with():
    text = content_hash(b"text")
    a = {"mine": np.array([[1, 2]], np.float32)}
    assert given.identity(text, {}) == text
    assert given.identity(text, a) == given.identity(text, {"mine": np.array([[1.0, 2.0]])}) != text
    others = [
        {"mine": np.array([[1, 3]], np.float32)},
        {"theirs": a["mine"]},
        {"mine": np.array([[1], [2]], np.float32)},
        {"mine": a["mine"], "theirs": a["mine"]},
    ]
    assert len({given.identity(text, v) for v in (a, *others)}) == 5


def test_a_pack_carries_the_vectors_of_its_documents():
    store = open_store("memory://given-pack")
    keys = [bytes([i]) * 20 for i in range(4)]
    documents = Documents.pack([(key, bytes([65 + i]) * 50_000, "data") for i, key in enumerate(keys)])
    vectors = {
        keys[1]: {"mine": np.array([[1, 2]], np.float32)},
        keys[3]: {"mine": np.array([[3, 4], [5, 6]], np.float32), "b": np.ones((1, 3))},
    }
    store.write("with", dump_pack(documents, vectors))
    store.write("without", dump_pack(documents))
    wanted = documents.hashes[[1, 2, 3]]
    assert read_pack(store, "with", wanted).hashes.tolist() == wanted.tolist()
    found = read_given(store, "with", wanted[1:])
    assert {name: {k: v.tolist() for k, v in each.items()} for name, each in found.items()} == {
        "mine": {keys[3]: [[3, 4], [5, 6]]},
        "b": {keys[3]: [[1, 1, 1]]},
    }
    assert read_given(store, "without", wanted) == {}
    kept = PackedEncodings(store, "encodings/given-x-2")
    kept.put(found["mine"])
    assert kept.get(wanted)[keys[3]].tolist() == [[3, 4], [5, 6]]
    assert json.dumps(sorted(found)) == '["b", "mine"]'
