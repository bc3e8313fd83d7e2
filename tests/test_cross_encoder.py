"""Cross-encoders: the same pair gives the same bits in any company, scores are sentence-transformers' own, others are refused."""

import json

import numpy as np
import pytest
from tiny_cross_encoder import cross_encoder

from shards import model_files
from shards.cross_encoder import CrossEncoder
from shards.errors import ModelMissing
from shards.layers.contract import Resources
from shards.types import Budget

PASSAGES = [
    "the tide comes in",
    "the tide comes on",  # as long as the one before
    "",
    "ships leave the harbour at high water, and not before",
    "a " * 300,  # longer than the model reads
    "naïve 深い!",
    "x",
]
QUERY = "when do ships leave?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


@pytest.fixture
def resources(tmp_path):
    return Resources(models=tmp_path)


def scores(model, query, passages, budget=None):
    return dict(model.scores(query, passages, budget or Budget()))


def test_scores_are_those_of_sentence_transformers(folder, resources):
    from sentence_transformers import CrossEncoder as Peer

    own = scores(CrossEncoder(str(folder), resources), QUERY, PASSAGES)
    peer = Peer(str(folder), device="cpu", local_files_only=True).predict([(QUERY, p) for p in PASSAGES])
    assert [own[i] for i in range(len(PASSAGES))] == pytest.approx(peer.tolist(), abs=1e-6)
    assert len({round(float(s), 6) for s in peer}) > 3  # or the comparison would say little


def test_a_pair_has_the_same_bits_in_any_company(folder, resources):
    model = CrossEncoder(str(folder), resources)
    together = scores(model, QUERY, PASSAGES)
    for i, passage in enumerate(PASSAGES):
        assert scores(model, QUERY, [passage]) == {0: together[i]}
    backwards = scores(model, QUERY, PASSAGES[::-1] + PASSAGES)
    assert [backwards[i] for i in range(len(PASSAGES))] == [together[len(PASSAGES) - 1 - i] for i in range(len(PASSAGES))]


def test_passes_as_on_gpus_give_a_pair_the_same_bits_in_any_company(folder, resources, monkeypatch):
    from sentence_transformers import CrossEncoder as Model

    from shards import cross_encoder as module

    monkeypatch.setattr(module, "_GPU_PASS", 256)  # 4 rows of 64 tokens, 2 of 128
    passages = [f"{'the tide ' * (i % 7)}{i}" for i in range(30)] + PASSAGES
    pairs = module._Pairs(Model(str(folder), device="cpu", local_files_only=True).eval(), "cpu", alone=False)
    together = dict(pairs.scores(QUERY, passages, Budget()))
    assert [together[i] for i in range(len(passages))] == pytest.approx(
        [score for _, score in sorted(scores(CrossEncoder(str(folder), resources), QUERY, passages).items())], abs=1e-6
    )
    for i in (0, 5, 33, len(passages) - 1):
        assert dict(pairs.scores(QUERY, [passages[i]], Budget())) == {0: together[i]}
    backwards = dict(pairs.scores(QUERY, passages[::-1], Budget()))
    assert [backwards[len(passages) - 1 - i] for i in range(len(passages))] == [together[i] for i in range(len(passages))]


def test_without_time_nothing_is_scored(folder, resources):
    assert scores(CrossEncoder(str(folder), resources), QUERY, PASSAGES, Budget(0)) == {}


def test_no_passages_have_no_scores(folder, resources):
    assert scores(CrossEncoder(str(folder), resources), QUERY, []) == {}


def test_logits_that_a_float32_sigmoid_cannot_tell_apart_are_told_apart(tmp_path, resources):
    import torch
    from transformers import BertForSequenceClassification

    folder = cross_encoder(tmp_path / "model")
    model = BertForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.bias.fill_(20.0)
    model.save_pretrained(folder)
    found = scores(CrossEncoder(str(folder), resources), QUERY, PASSAGES)
    assert len(set(found.values())) > 3 and all(np.float32(score) == 1.0 for score in found.values())


def test_the_fingerprint_is_that_of_the_files(folder, resources, tmp_path):
    same = CrossEncoder(str(folder), resources).fingerprint()
    assert same == model_files.fingerprint(folder.resolve(), resources)
    assert CrossEncoder(str(cross_encoder(tmp_path / "other", seed=1)), resources).fingerprint() != same


def test_a_model_that_is_not_here_is_refused_with_the_remedy(resources):
    with pytest.raises(ModelMissing, match="hf download nobody/no-such-model"):
        CrossEncoder("nobody/no-such-model", resources).check()


def test_a_model_of_another_kind_is_refused_before_it_is_loaded(tmp_path, resources):
    folder = cross_encoder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    with pytest.raises(ModelMissing, match=r"no cross-encoder but BertModel\. Name one whose architecture ends in ForSequenceClass"):
        CrossEncoder(str(folder), resources).check()


def test_a_classifier_of_several_labels_is_no_reranker(tmp_path, resources):
    model = CrossEncoder(str(cross_encoder(tmp_path / "model", labels=3)), resources)
    model.check()  # its files do not say so
    with pytest.raises(ModelMissing, match="gives 3 numbers for a pair"):
        model.load()


def test_damaged_weights_are_a_missing_model(tmp_path, resources):
    folder = cross_encoder(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelMissing, match="no cross-encoder that can be loaded"):
        CrossEncoder(str(folder), resources).load()


def test_a_folder_without_a_model_is_refused(tmp_path, resources):
    with pytest.raises(ModelMissing, match=r"config\.json cannot be read"):
        CrossEncoder(str(tmp_path), resources).check()
