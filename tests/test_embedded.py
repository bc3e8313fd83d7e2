"""Units by a registered embedder: what it promises, what it may return, and the dial that says what a unit is."""

import numpy as np
import pytest
from layer_contract import LayerContract
from row_corpus import DIM, WordEmbedder
from test_nlql_units import pack

from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Request, Resources
from shards.layers.embedded import Embedded
from shards.nlql.errors import EmbeddingError, PlanError, RegistryError
from shards.nlql.units import normalise, sentences
from shards.plugins import Plugins


def resources(embedder: object = None) -> Resources:
    plugins = Plugins()
    plugins.add_embedder("words", embedder or WordEmbedder())
    return Resources(plugins=plugins)


def layer(embedder: object = None, **dials) -> Embedded:
    return create(SpaceSpec("content", "embedded", {"embedder": "words", **dials}), resources(embedder))


class TestEmbeddedContract(LayerContract):
    n_documents = 25

    def make_layer(self):
        return layer()

    def requests(self):
        return [Request("alpha beta"), Request("river stone"), Request("", {"vector": [1.0] * DIM}, True)]


def test_each_sentence_has_the_vector_of_its_normalised_text_of_unit_length():
    embedder = WordEmbedder()
    text = "Banana  bread.\nTomato\u00a0 soup! Banana bread."
    documents = pack(text)
    arrays = layer(embedder).build(documents, None)
    wanted = np.stack([embedder.vector(sentence) for sentence in sentences(normalise(text))])
    np.testing.assert_allclose(arrays["vectors"], wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=1e-7)
    raw = text.encode()
    assert [raw[a:b].decode() for a, b in zip(arrays["starts"], arrays["ends"], strict=True)] == [
        "Banana  bread.", "Tomato\u00a0 soup!", "Banana bread."
    ]  # fmt: skip


def test_equal_texts_are_embedded_once():
    embedder = WordEmbedder()
    layer(embedder).build(pack("Same here. Same here. Other."), None)
    assert embedder.n_asked == 2


@pytest.mark.parametrize(
    "returns, message",
    [
        (lambda texts: np.zeros((len(texts), 3)), r"shape \(2, 3\).*expected \(2, 48\)"),
        (lambda texts: np.full((len(texts), DIM), np.nan), "infinity or NaN"),
        (lambda texts: [["a"] * DIM] * len(texts), "ValueError"),
        (lambda texts: 1 / 0, "failed on 2 texts: ZeroDivisionError"),
    ],
)
def test_what_is_no_vector_of_its_dimension_is_refused(returns, message):
    embedder = WordEmbedder()
    embedder.embed = returns
    with pytest.raises(EmbeddingError, match=message):
        layer(embedder).build(pack("One. Two."), None)


def test_a_space_is_checked_before_work_begins():
    with pytest.raises(PlanError, match="48 numbers; the space has 3"):
        layer(dim=3).check()
    with pytest.raises(RegistryError, match="other"):
        create(SpaceSpec("content", "embedded", {"embedder": "other"}), resources()).check()
    with pytest.raises(RegistryError, match="paragraph"):
        layer(unit="paragraph").check()
    layer(dim=DIM).check()


def test_a_space_depends_on_the_embedders_model_and_on_the_unit():
    other = WordEmbedder()
    other.model_id = "words-2"
    ids = {
        space_id(SpaceSpec("content", "embedded", dials), create(SpaceSpec("content", "embedded", dials), resources(embedder)))
        for embedder in (WordEmbedder(), other)
        for dials in ({"embedder": "words"}, {"embedder": "words", "unit": "chunk"})
    }
    assert len(ids) == 4


def test_spaces_of_passages_keep_the_ids_that_they_had_before_there_was_a_choice():
    static = create(SpaceSpec("static", "static", {}), Resources())
    assert "unit" not in static.params.model_dump(mode="json") and static.granularity == "passage"
    fine = create(SpaceSpec("fine", "static", {"unit": "sentence"}), Resources())
    assert fine.params.model_dump(mode="json")["unit"] == fine.granularity == "sentence"


def test_statistics_count_the_units_that_are_built_without_encoding_again():
    for unit in ("sentence", "chunk", "passage", "document"):
        embedder = WordEmbedder()
        made, documents = layer(embedder, unit=unit), pack("One. Two. Three.", "", "Four!\nFive")
        arrays = made.build(documents, None)
        asked = embedder.n_asked
        assert made.recount(documents, None)["n_units"] == made.statistics(arrays, documents, None)["n_units"] == len(arrays["starts"])
        assert embedder.n_asked == asked
