"""Spaces that say nothing true: they keep the layer contract, so that what fusion survives is a space like any other."""

import json

import numpy as np
import pytest
from engine import Engine, write_files
from layer_contract import LayerContract, random_documents

from jobs import junk_spaces
from jobs.junk_spaces import N_CONFIDENT, Confident, ExactKey, Hub, Known, Noise
from shards.identity import content_hash
from shards.layers import REGISTRY
from shards.layers.contract import Layer, Request, Resources

KEYS = np.sort(np.random.default_rng(1).integers(0, 2**63, 2_000).astype(np.uint64))


class Junk(LayerContract):
    n_documents = 30

    def requests(self) -> list[Request]:
        return [Request("alpha beta"), Request("stone")]


class TestNoiseContract(Junk):
    def make_layer(self) -> Layer:
        return Noise(Noise.Params(), Resources())


class TestConfidentContract(Junk):
    def make_layer(self) -> Layer:
        return Confident(Confident.Params(seed=3), Resources())


class TestHubContract(Junk):
    def make_layer(self) -> Layer:
        return Hub(Hub.Params(), Resources())


class TestExactKeyContract(Junk):
    @pytest.fixture(autouse=True)
    def table(self, tmp_path):
        type(self).path = tmp_path / "answers.json"
        hashes = [content_hash(body).hex() for seed in (0, 1) for body, *_ in random_documents(np.random.default_rng(seed), 30)]
        self.path.write_text(json.dumps({"alpha beta": hashes[::3], "stone": hashes[::2]}))

    def make_layer(self) -> Layer:
        return ExactKey(ExactKey.Params(answers=self.path), Resources())


def prepared(layer: Layer, text: str):
    return layer.prepare(Request(text), Known(KEYS))


def test_noise_is_normal_and_another_draw_for_each_question():
    layer = Noise(Noise.Params(), Resources())
    a, b = (layer.scores(prepared(layer, text), KEYS) for text in ("one", "two"))
    assert abs(a.mean()) < 0.08 and abs(a.std() - 1) < 0.05
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.08


def test_a_confident_space_is_sure_of_five_documents_and_two_of_one_seed_of_the_same():
    pair = [Confident(Confident.Params(seed=2, copy_number=n), Resources()) for n in (1, 2)]
    scores = [layer.scores(prepared(layer, "one"), KEYS) for layer in pair]
    sure = [set(np.flatnonzero(s >= 0.95)) for s in scores]
    assert len(sure[0]) == N_CONFIDENT and sure[0] == sure[1] and not np.array_equal(*scores)
    assert set(np.flatnonzero(pair[0].scores(prepared(pair[0], "two"), KEYS) >= 0.95)) != sure[0]
    assert np.abs(np.delete(scores[0], list(sure[0])) - 0.5).max() <= 0.01


def test_a_hub_has_the_same_documents_first_whatever_is_asked():
    layer = Hub(Hub.Params(), Resources())
    first = [set(np.argsort(-layer.scores(prepared(layer, text), KEYS))[:100]) for text in ("one", "two")]
    assert len(first[0] & first[1]) > 50


def test_they_are_in_the_registry_only_while_they_are_wanted(tmp_path):
    source = write_files(tmp_path / "source", {f"{i}.txt": f"Page {i} of the tide tables.\n" for i in range(40)})
    with junk_spaces.registered():
        engine = Engine(tmp_path, ["bm25", "liar=junk_confident:seed=1"])
        engine.index(source, calibrate=False)
        answer = engine.search("tide tables")
    assert {layer.name: layer.n_units for layer in answer.layers if layer.asked} == {"bm25": 40, "liar": 40}
    assert not set(junk_spaces.JUNK) & set(REGISTRY)
