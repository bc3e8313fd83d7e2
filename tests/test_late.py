"""Late interaction: PyLate's scores to the last digits, the same bits on any split, compact storage, candidates by a cut that holds
for the whole corpus. Models are tiny and random, saved in their real formats and loaded by the real code."""

import itertools
import math
from typing import ClassVar

import numpy as np
import pytest
from engine import Engine
from layer_contract import LayerContract, assert_same_arrays, pack, random_documents
from test_placement_invariance import STDLIB, essence, evalues
from test_vectors import Remembered
from tiny_bert import save_bert

from shards import late_candidates, late_encoder, late_models, late_projection
from shards.errors import BadQuery, BadSpec, ModelMissing
from shards.identity import content_hash
from shards.late_candidates import EncodingSpec, Sample
from shards.late_encoder import longest, pooled
from shards.late_tokens import Tokens
from shards.layers import SpaceSpec, create, late, late_reader, space_id
from shards.layers.contract import Request, Resources
from shards.layers.late import Late
from shards.layers.late_reader import LateQuestion, LateReader, query_table
from shards.plan import SpaceQuery
from shards.types import Budget, Moments

SMALL = {"fde_repetitions": 4, "fde_planes": 2, "fde_cell_dim": 4}  # of encodings


@pytest.fixture(scope="module")
def resources(tmp_path_factory) -> Resources:
    return Resources(models=tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> str:
    """A dense model, without a ColBERT head: 16 dimensions, 48 tokens."""
    return str(save_bert(tmp_path_factory.mktemp("plain")))


@pytest.fixture(scope="module")
def colbert(tmp_path_factory) -> str:
    """A ColBERT as PyLate saves it: 12 dimensions, questions filled up to 12 tokens, documents of 40."""
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("pylate.models")
    folder = tmp_path_factory.mktemp("colbert")
    save_bert(folder)
    torch.manual_seed(3)
    model = models.ColBERT(str(folder / "bert"), embedding_size=12, device="cpu", query_length=12, document_length=40)
    model.save_pretrained(str(folder / "late"), create_model_card=False)
    return str(folder / "late")


class OfLate(LayerContract):
    """The contract with few documents, as each is encoded many times."""

    n_documents = 24
    dials: ClassVar[dict] = {}

    @pytest.fixture(autouse=True)
    def _model(self, plain, colbert, resources):
        self.models = {"plain": plain, "colbert": colbert}
        self.resources = resources

    def make_layer(self):
        dials = SMALL | {"unit_bytes": 150} | self.dials
        return Late(Late.Params(**dials | {"model": self.models[dials.get("model", "plain")], "dim": dials.get("dim")}), self.resources)

    def requests(self):
        return [Request("alpha beta stone"), Request("parse_json")]

    def documents(self, rng):
        return [(body[:900], kind, paths) for body, kind, paths in random_documents(rng, self.n_documents)]


class TestLateContract(OfLate):
    dials: ClassVar[dict] = {"dim": 8}

    def requests(self):
        return [*super().requests(), Request("", form={"vectors": [[1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 0, -1, 0, 0, 0, 2]]})]


class TestPooledBytesContract(OfLate):
    """A ColBERT, pruned and pooled, a byte per number; in a corpus that counts as large."""

    dials: ClassVar[dict] = {"model": "colbert", "storage": "int8", "pool": 2, "prune": 0.2, "skip": "stopwords"}

    @pytest.fixture(autouse=True)
    def _large(self, monkeypatch):
        monkeypatch.setattr(late, "EXACT_UNITS", 0)


# --- scores ------------------------------------------------------------------------------------------------------------------


def units_of(rng: np.random.Generator, counts: list[int], dim: int) -> list[np.ndarray]:
    """Passages of so many token vectors of unit length each."""
    passages = [rng.standard_normal((n, dim)) for n in counts]
    return [(p / np.linalg.norm(p, axis=1, keepdims=True)).astype(np.float32) for p in passages]


def obvious(query: np.ndarray, vectors: np.ndarray) -> float:
    return float((vectors.astype(np.float64) @ query.astype(np.float64).T).max(axis=0).sum())


def scored(tokens: Tokens, query: np.ndarray, units: np.ndarray) -> np.ndarray:
    from shards.late_kernels import max_sims

    scores = np.empty(len(units))
    codes = late_candidates.kernel_codes(tokens.codes)
    max_sims(codes, tokens.scales, tokens.offsets, units, query_table(query), len(query), scores)
    return scores


@pytest.mark.parametrize("storage", ["fp16", "int8"])
@pytest.mark.parametrize(("dim", "n_query"), [(1, 1), (6, 16), (128, 33), (96, 5)])
def test_a_score_is_the_sum_of_each_query_tokens_best_match(storage, dim, n_query):
    rng = np.random.default_rng(dim)
    passages = units_of(rng, [1, 2, 3, 40, 7], dim)
    query = units_of(rng, [n_query], dim)[0].astype(np.float16)
    tokens = Tokens.of(passages, storage)
    stored = np.split(tokens.dequantised(), np.cumsum(tokens.counts)[:-1])
    scores = scored(tokens, query, np.arange(5))
    np.testing.assert_allclose(scores, [obvious(query, vectors) for vectors in stored], rtol=0, atol=1e-5)
    np.testing.assert_allclose(scores, [obvious(query, vectors) for vectors in passages], rtol=0, atol=n_query * 0.01)
    again = np.concatenate([scored(tokens, query, np.array([unit])) for unit in (4, 2, 0, 3, 1)])
    assert again[[2, 4, 1, 3, 0]].tobytes() == scores.tobytes()


def test_a_score_by_hand():
    """The query's tokens are best matched by the passage's first (1) and second (0.5) token: 1.5."""
    tokens = Tokens.of([np.array([[1, 0], [0, 0.5]], np.float32), np.array([[-1, 0]], np.float32)], "fp16")
    assert scored(tokens, np.array([[1, 0], [0, 1]], np.float16), np.array([0, 1])).tolist() == [1.5, -1.0]


@pytest.mark.parametrize("storage", ["fp16", "int8"])
def test_additions_follow_the_written_order(storage):
    """Component by component in float32, computed here with numpy scalars; maxima in float64."""
    rng = np.random.default_rng(7)
    passages, query = units_of(rng, [5, 4], 30), units_of(rng, [3], 30)[0].astype(np.float16)
    tokens = Tokens.of(passages, storage)
    sums = np.zeros((len(tokens.codes), 3), np.float32)
    for d in range(30):
        sums += tokens.codes[:, d].astype(np.float32)[:, None] * query[:, d].astype(np.float32)
    if storage == "int8":
        sums *= tokens.scales[:, None]
    maxima = [part.max(axis=0).astype(np.float64) for part in np.split(sums, [5])]
    expected = [(best[0] + best[1]) + best[2] for best in maxima]
    assert scored(tokens, query, np.arange(2)).tolist() == expected


@pytest.mark.parametrize("pool", [1, 3])
def test_scores_equal_pylates_rerank(colbert, resources, pool):
    from pylate import models, rank

    texts = ["a river and a stone, in the cloud.", "parse_json", "sort the tree; merge node and edge! " * 9, "42", "beta gamma delta"]
    questions = ["where is the stone", "merge a sorted tree, please, with all of its nodes and edges and more"]
    model = models.ColBERT(colbert, device="cpu")
    documents = model.encode(texts, is_query=False, batch_size=1, pool_factor=pool)
    asked = model.encode(questions, is_query=True, batch_size=1)
    reranked = rank.rerank([list(range(5))] * 2, asked, [documents] * 2)
    layer = Late(Late.Params(model=colbert, unit_bytes=1000, pool=pool), resources)
    segment = pack([(text.encode(), "prose:english", ("x",)) for text in texts], layer)
    arrays = layer.build(segment.documents, segment.entries)
    reader = layer.open(arrays, segment.documents, segment.entries, np.ones(5, bool))
    row = {key: i for i, (key, _) in enumerate(segment.keys)}
    for question, expected in zip(questions, reranked, strict=True):
        query = layer.prepare(Request(question), layer.collect([(1, layer.statistics(arrays, segment.documents, segment.entries))]))
        assert query.most == 12
        scores = reader.score(query, np.arange(5, dtype=np.int32), Budget()).scores
        for answer in expected:
            assert scores[row[content_hash(texts[answer["id"]].encode())]] == pytest.approx(answer["score"], abs=1e-3)


def test_the_marker_tokens_of_a_colbert_tell_questions_from_documents(colbert, resources):
    model = late_models.load(late_models.Path(colbert), "fp32", None)
    ((_, ((question, _),)),) = model.states(["alpha"], "query")
    ((_, ((document, _),)),) = model.states(["alpha"], "document")
    assert len(question) == 12  # filled up
    assert len(document) == 4  # [CLS] [D] alpha [SEP]
    assert question[1] != document[1]
    assert question[2] == document[2]


def test_a_model_without_a_head_compares_all_tokens_but_punctuation_in_fewer_dimensions(plain, resources):
    encoder = late_encoder.LateEncoder(plain, resources, dim=6)
    alpha, punctuated = encoder.encode_documents(["alpha beta", "alpha, beta!"])
    assert alpha.shape == (4, 6)  # [CLS] alpha beta [SEP]
    assert punctuated.shape == (4, 6)
    assert encoder.encode_queries(["alpha, beta!"])[0].shape == (6, 6)
    np.testing.assert_allclose(np.linalg.norm(alpha, axis=1), 1, atol=1e-6)
    assert late_encoder.LateEncoder(plain, resources, dim=6, skip="none").encode_documents(["alpha, beta!"])[0].shape == (6, 6)
    assert encoder.encode_documents(["?!"])[0].shape == (2, 6)


@pytest.mark.parametrize("model", ["plain", "colbert"])
def test_a_texts_vectors_have_the_same_bits_beside_any_others(model, request, resources):
    encoder = late_encoder.LateEncoder(request.getfixturevalue(model), resources, dim=8)
    rng = np.random.default_rng(0)
    texts = [body.decode()[:200] for body, _, _ in random_documents(rng, 20)]
    together = encoder.encode_documents(texts)
    for text, vectors in zip(texts[:8], together, strict=False):
        assert encoder.encode_documents([text])[0].tobytes() == vectors.tobytes()


def test_principal_axes_are_fitted_once_and_keep_inner_products(plain, resources, monkeypatch):
    layers = [Late(Late.Params(model=plain, dim=dim), resources) for dim in (16, 4, 4)]
    prints = [layer.fingerprint() for layer in layers]
    assert prints[1] == prints[2] != prints[0]
    model = late_models.load(late_models.Path(plain), "fp32", "cpu")
    axes = late_projection.fit(model, 16)
    np.testing.assert_allclose(axes @ axes.T, np.eye(16), atol=1e-5)
    assert np.array_equal(late_projection.fit(model, 4), axes[:4])
    monkeypatch.setattr(late_projection, "fit", lambda *_: pytest.fail("fitted twice"))
    assert late_encoder.LateEncoder(plain, resources, dim=16).dim == 16
    texts = late_projection.sample(model)
    assert len(texts) == len(set(texts)) > 100


# --- dials -------------------------------------------------------------------------------------------------------------------


def test_pruning_keeps_the_longest_vectors_and_the_first_in_the_order_of_the_text():
    assert longest(np.array([0.1, 5, 3, 4, 3]), 0.6).tolist() == [0, 1, 3]
    assert longest(np.array([2.0, 1, 1, 1]), 0.5).tolist() == [0, 1]
    assert longest(np.array([1.0]), 0.01).tolist() == [0]


def test_pooling_averages_like_tokens_and_leaves_the_first():
    vectors = np.array([[1, 0], [0, 1], [0.8, 0.6], [0, 1], [0.8, 0.6]], np.float32)
    assert pooled(vectors, 1) is vectors
    np.testing.assert_allclose(sorted(pooled(vectors, 2).tolist()), [[0, 1], [0.8, 0.6], [1, 0]], atol=1e-6)
    assert len(pooled(vectors, 16)) == 2


@pytest.mark.parametrize(
    ("dials", "at_most"),
    [({}, 1.0), ({"storage": "int8"}, 0.8), ({"pool": 2}, 0.6), ({"prune": 0.5}, 0.6), ({"pool": 3, "storage": "int8"}, 0.4)],
)
def test_dials_make_the_space_smaller_and_another_space(plain, resources, dials, at_most):
    layer, full = (Late(Late.Params(model=plain, dim=16, unit_bytes=150, **d), resources) for d in (dials, {}))
    segment = pack(random_documents(np.random.default_rng(1), 10), layer)
    arrays, whole = (one.build(segment.documents, segment.entries) for one in (layer, full))
    assert (arrays["tokens"].nbytes + arrays["scales"].nbytes) / whole["tokens"].nbytes <= at_most
    assert len(arrays["starts"]) == len(whole["starts"])
    ids = {space_id(SpaceSpec("late", "late", {"model": plain, "dim": 16, **d}), Late(Late.Params(model=plain, dim=16, **d), resources))
           for d in (dials, {})}  # fmt: skip
    assert len(ids) == (2 if dials else 1)


def test_a_colberts_window_says_how_long_a_passage_is(colbert, plain, resources):
    assert Late(Late.Params(model=colbert), resources).unit_bytes == 140  # 40 tokens
    assert Late(Late.Params(model=plain), resources).unit_bytes == 1000
    assert Late(Late.Params(model=colbert, unit_bytes=99), resources).unit_bytes == 99


@pytest.mark.parametrize(
    ("dials", "words"),
    [({"dim": 99}, "dim is 99"), ({"document_tokens": 5000}, "document_tokens is 5000"), ({"document_tokens": 2}, "document_tokens is 2")],
)
def test_a_dial_that_the_model_cannot_meet_is_refused(plain, resources, dials, words):
    with pytest.raises(BadSpec, match=words):
        layer = create(SpaceSpec("late", "late", {"model": plain, **dials}), resources)
        segment = pack([(b"alpha", "code", ("a",))], layer)
        layer.build(segment.documents, segment.entries)


def test_a_model_that_cannot_be_read_is_refused_by_name(tmp_path, resources):
    (tmp_path / "config_sentence_transformers.json").write_text('{"model_type": "ColBERT", "query_prefix": "[Q] "}')
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelMissing, match="no ColBERT model that can be loaded"):
        late_models.load(tmp_path, "fp32", None)


@pytest.mark.parametrize(
    "form",
    [{"vectors": []}, {"vectors": "x"}, {"vectors": [[1, 2]]}, {"vectors": [[0] * 8]}, {"vectors": [[True] * 8]}, {"vector": [1]}],
)
def test_vectors_that_cannot_be_asked_are_refused(plain, resources, form):
    layer = Late(Late.Params(model=plain, dim=8), resources)
    with pytest.raises(BadQuery, match="late"):
        layer.prepare(Request("", form=form, explicit=True), late.LateStatistics(10))


# --- kept encodings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["fp16", "int8"])
def test_rows_of_kept_encodings_give_back_the_passages(storage):
    tokens = Tokens.of(units_of(np.random.default_rng(0), [3, 1, 1, 5], 6), storage)
    again = Tokens.of_rows(tokens.rows(), storage)
    for name in ("codes", "scales", "counts"):
        assert np.array_equal(getattr(again, name), getattr(tokens, name))


def test_nothing_is_encoded_twice_and_a_merge_encodes_nothing(plain, resources, monkeypatch):
    layer = Late(Late.Params(model=plain, dim=8, unit_bytes=150, storage="int8", **SMALL), resources)
    items = random_documents(np.random.default_rng(2), 12)
    few, all_ = pack(items[:7], layer), pack(items, layer)
    kept = Remembered()
    layer.build(few.documents, few.entries, None, kept)
    told = []
    expected = layer.build(all_.documents, all_.entries, None, kept, lambda *step: told.append(step))
    n_new = sum(int(count) for count in np.diff(expected["row_units"])) - told[-1][2]
    assert n_new > 0 and told[-1][1] == told[-1][2]
    monkeypatch.setattr(layer.encoder, "encode_documents", lambda *_: pytest.fail("encoded twice"))
    assert_same_arrays(layer.build(all_.documents, all_.entries, None, kept), expected)


# --- candidates --------------------------------------------------------------------------------------------------------------

SPEC = EncodingSpec(repetitions=16, planes=3, cell_dim=8, seed=1)


def test_an_encoding_by_its_definition():
    """Against sums and means written out; the cells and projections are the ones that are drawn."""
    spec = EncodingSpec(3, 2, 4, 5)
    rng = np.random.default_rng(0)
    tokens = Tokens.of(units_of(rng, [1, 6, 3], 10), "fp16")
    planes, projections = late_candidates._matrices(spec, 10)
    assert set(np.unique(planes)) == {-1, 1}
    vectors = tokens.codes.astype(np.float64)
    for is_query in (False, True):
        got = late_candidates._encodings(tokens, spec, is_query)
        for unit, (first, last) in enumerate(itertools.pairwise(tokens.offsets)):
            for r in range(3):
                sides = vectors[first:last] @ planes[:, 2 * r : 2 * r + 2] > 0
                projected = vectors[first:last] @ projections[:, 4 * r : 4 * r + 4]
                for cell, bits in enumerate(itertools.product([False, True], repeat=2)):
                    inside = (sides == bits).all(axis=1)
                    if is_query:
                        expected = projected[inside].sum(axis=0)
                    elif inside.any():
                        expected = projected[inside].mean(axis=0)
                    else:
                        expected = projected[(sides != bits).sum(axis=1).argmin()]
                    at = (r * 4 + cell) * 4
                    np.testing.assert_allclose(got[unit, at : at + 4], expected, atol=1e-5)


def test_what_is_drawn_never_changes():
    planes, projections = late_candidates._matrices(EncodingSpec(2, 2, 1, 0), 3)
    assert planes.tolist() == [[1, -1, -1, 1], [-1, 1, -1, 1], [1, 1, 1, 1]]
    assert (projections * 64).tolist() == [[-1, -1], [-1, 1], [-1, 1]]
    keys = late_candidates.unit_keys(np.arange(40, dtype=np.uint8).reshape(2, 20), np.array([0, 2, 3]))
    assert keys.tolist() == [5718878847818126402, 12691481072527148942, 250823980542783763]


def corpus_of(rng: np.random.Generator, n: int, dim: int = 16):
    """n one-passage documents of 4 to 9 tokens around random topics: hashes, tokens, and a question near one of them."""
    topics = rng.standard_normal((60, dim))
    passages = [topics[rng.integers(60)] + 0.7 * rng.standard_normal((rng.integers(4, 10), dim)) for _ in range(n)]
    passages = [(p / np.linalg.norm(p, axis=1, keepdims=True)).astype(np.float32) for p in passages]
    hashes = np.frombuffer(b"".join(sorted(content_hash(str(i).encode()) for i in range(n))), np.uint8).reshape(n, 20)
    asked = passages[rng.integers(n)][:4] + 0.2 * rng.standard_normal((4, dim))
    return hashes, passages, (asked / np.linalg.norm(asked, axis=1, keepdims=True)).astype(np.float16)


def segment_of(hashes: np.ndarray, passages: list[np.ndarray]):
    tokens = Tokens.of(passages, "fp16")
    n = len(passages)
    fde, scales = late_candidates.of_passages(tokens, SPEC)
    arrays = {
        "tokens": tokens.codes, "scales": tokens.scales, "unit_tokens": tokens.offsets, "row_units": np.arange(n + 1), "fde": fde,
        "fde_scales": scales, "starts": np.zeros(n, np.int64), "ends": np.ones(n, np.int64), "in_scope": np.ones(n, bool),
    }  # fmt: skip
    keys = late_candidates.unit_keys(hashes, arrays["row_units"])
    return arrays, Sample.stated(keys, fde, scales, n), keys


@pytest.mark.parametrize("seed", range(3))
def test_candidates_moments_and_hits_do_not_depend_on_placement(seed, monkeypatch):
    """5,000 passages in one segment, in three, and with dead ones beside: the same cut, candidates, moments and best ten."""
    monkeypatch.setattr(late_candidates, "_CANDIDATES", 200)
    rng = np.random.default_rng(seed)
    hashes, passages, asked = corpus_of(rng, 5000)
    dead = rng.random(5000) < 0.3
    encoding = late_candidates.of_question(asked, SPEC)
    results = []
    for split in ("one", "three", "with dead"):
        live = ~dead
        groups = [np.flatnonzero(live)]
        if split == "three":
            groups = [np.flatnonzero(live & (part == np.arange(5000) % 7 // 3)) for part in range(3)]
        elif split == "with dead":
            groups = [np.arange(5000)]
        n_units = int(live.sum())
        segments = [segment_of(hashes[g], [passages[i] for i in g]) for g in groups]
        parts = [(1, stated) for _, stated, _ in segments]
        if split == "with dead":
            arrays, _, keys = segments[0]
            parts.append((-1, Sample.stated(keys, arrays["fde"], arrays["fde_scales"], 5000, dead)))
        sample = Sample.collected(parts, n_units)
        assert sample.is_complete
        cuts = sample.cuts(encoding, n_units)
        query = SpaceQuery("", "", LateQuestion(asked, encoding, *cuts, level=2))
        found, moments, n_candidates = [], Moments(), 0
        for g, (arrays, _, _) in zip(groups, segments, strict=True):
            reader = LateReader(arrays, hashes[g], live[g])
            n_candidates += len(reader._candidates(query.payload, live[g], False, Budget())[0])
            hits = reader.search(query, None, 10, Budget())
            found += list(zip(hits.scores.tolist(), g[hits.rows].tolist(), strict=True))
            moments = moments + hits.moments
            assert hits.n_matched == hits.rows_covered == live[g].sum()
            filtered = reader.search(query, np.ones(len(g), bool), 10, Budget())
            assert filtered.scores.tolist() == hits.scores.tolist() or filtered.scores.min() >= hits.scores.min()
        results.append((cuts, sorted(found, key=lambda hit: (-hit[0], hit[1]))[:10], moments.n, n_candidates))
        np.testing.assert_allclose(moments.mean, exact_mean(hashes, passages, asked, live), atol=0.03)
    assert results[0] == results[1] == results[2]
    assert 60 < results[0][3] < 600
    exact = sorted((-obvious(asked, passages[i].astype(np.float16)), i) for i in np.flatnonzero(~dead))[:10]
    assert len({i for _, i in exact} & {i for _, i in results[0][1]}) >= 8


def test_the_exhaustive_question_finds_the_best_of_all_where_candidates_miss_some():
    hashes, passages, asked = corpus_of(np.random.default_rng(0), 2000)
    arrays, _, _ = segment_of(hashes, passages)
    reader, layer = LateReader(arrays, hashes, np.ones(2000, bool)), Late(Late.Params(), Resources())
    query = SpaceQuery("late", "", LateQuestion(asked, late_candidates.of_question(asked, SPEC), cut=math.inf, filtered_cut=math.inf))
    assert len(reader.search(query, None, 10, Budget()).rows) == 0
    everything = layer.exhaustive(query)
    assert layer.exhaustive(everything) is everything
    expected = sorted((-obvious(asked, passages[i].astype(np.float16)), i) for i in range(2000))[:10]
    assert reader.search(everything, None, 10, Budget()).rows.tolist() == [i for _, i in expected]
    rows = np.arange(2000, dtype=np.int32)
    assert reader.score(everything, rows, Budget()).scores.tobytes() == reader.score(query, rows, Budget()).scores.tobytes()


def exact_mean(hashes, passages, asked, live) -> float:
    return float(np.mean([obvious(asked, passages[i]) for i in np.flatnonzero(live)]))


def test_a_sample_that_a_segment_cannot_complete_leaves_nothing_out():
    hashes, passages, asked = corpus_of(np.random.default_rng(0), 4200)
    _, stated, _ = segment_of(hashes, passages)
    assert stated["sample_level"].tolist() == [3]
    sample = Sample.collected([(1, stated)], 300)  # all others are dead, and it was not written anew
    assert not sample.is_complete
    assert sample.cuts(late_candidates.of_question(asked, SPEC), 300) == (-math.inf, -math.inf)


def test_a_level_is_a_power_of_two_that_grows_with_the_corpus():
    assert [late_candidates.level(n, 1024) for n in (0, 1, 1024, 1025, 2048, 2049, 10**6)] == [0, 0, 0, 1, 1, 2, 10]


def test_the_cut_lets_about_as_many_through_as_wanted():
    rng = np.random.default_rng(3)
    hashes, passages, asked = corpus_of(rng, 20_000)
    arrays, stated, _ = segment_of(hashes, passages)
    encoding = late_candidates.of_question(asked, SPEC)
    cut, filtered_cut = Sample.collected([(1, stated)], 20_000).cuts(encoding, 20_000)
    scores = late_candidates.scores(arrays["fde"], arrays["fde_scales"], np.arange(20_000), encoding)
    assert 1000 < np.count_nonzero(scores >= cut) < 4000
    assert 5000 < np.count_nonzero(scores >= filtered_cut) < 12_000


class EndsAfter(Budget):
    """Is over when it was asked so often."""

    __slots__ = ("left",)

    def __init__(self, n: int):
        super().__init__()
        self.left = n

    @property
    def expired(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("n_looks", [1, 7, 60])
def test_at_the_deadline_whole_documents_are_found_and_the_rest_is_not_covered(large, n_looks, monkeypatch):
    """20 documents of 3 passages, the clock read before each passage; of a large corpus a moment's sample comes first."""
    monkeypatch.setattr(late_reader, "_SLICE_PRODUCTS", 1)
    hashes, passages, asked = corpus_of(np.random.default_rng(1), 60)
    arrays, *_ = segment_of(hashes, passages)
    arrays |= {"row_units": np.arange(0, 61, 3), "in_scope": np.ones(20, bool)}
    reader = LateReader(arrays, hashes[:20], np.ones(20, bool))
    encoding = late_candidates.of_question(asked, SPEC) if large else None
    query = SpaceQuery("", "", LateQuestion(asked, encoding, level=6 if large else 0))
    n_sampled = int(late_candidates.in_sample(reader._keys, 6).sum()) if large else 0
    n_scored = max(n_looks - n_sampled, 0)
    found = reader.search(query, None, 100, EndsAfter(n_looks))
    assert sorted(found.rows.tolist()) == list(range(min(n_scored // 3, 20)))
    assert (found.rows_covered, found.rows_total, found.n_matched) == (len(found.rows), 20, 3 * len(found.rows))
    everything = reader.score(query, np.arange(20, dtype=np.int32), Budget()).scores
    assert found.scores.tolist() == everything[found.rows].tolist()
    scores = reader.score(query, np.arange(20, dtype=np.int32), EndsAfter(n_looks)).scores
    np.testing.assert_array_equal(scores, [*everything[: n_looks // 3], *[np.nan] * (20 - n_looks // 3)])


@pytest.mark.parametrize("n_looks", [0, 1, 5, 40, 70, 200])
def test_at_the_deadline_passages_that_were_no_candidates_yet_are_not_covered(n_looks, monkeypatch):
    """60 documents of a passage, the clock read before each, of moments, of candidates, then of what is scored."""
    monkeypatch.setattr(late_reader, "_SLICE_PRODUCTS", 1)
    monkeypatch.setattr(late_reader, "_SLICE_BYTES", 1)
    hashes, passages, asked = corpus_of(np.random.default_rng(1), 60)
    arrays, *_ = segment_of(hashes, passages)
    reader = LateReader(arrays, hashes, np.ones(60, bool))
    encoding = late_candidates.of_question(asked, SPEC)
    every = late_candidates.scores(arrays["fde"], arrays["fde_scales"], np.arange(60), encoding)
    query = SpaceQuery("", "", LateQuestion(asked, encoding, level=6, cut=float(np.median(every))))
    candidates = np.flatnonzero(every >= np.median(every))
    left = n_looks - int(late_candidates.in_sample(reader._keys, 6).sum())
    if left < 60:  # no time is left for scores: what comes before the first candidate is known to be none
        before = max(left, 0)
        expected = min([*candidates[candidates < before].tolist(), before])
    else:
        expected = candidates[left - 60] if left - 60 < len(candidates) else 60
    found = reader.search(query, None, 100, EndsAfter(n_looks))
    assert found.rows_covered == expected
    assert sorted(found.rows.tolist()) == [row for row in candidates.tolist() if row < expected]


# --- in a whole engine -------------------------------------------------------------------------------------------------------


def test_answers_do_not_depend_on_the_number_of_shards_even_where_candidates_are_approximate(tmp_path, plain, monkeypatch):
    """The real job, null models and verdict: hits, raw scores and spans equal, E-values to 1e-9; a re-run encodes nothing."""
    monkeypatch.setattr(late, "EXACT_UNITS", 50)
    monkeypatch.setattr(late, "_MOMENTS_UNITS", 64)
    monkeypatch.setattr(late_candidates, "_CANDIDATES", 30)
    answers = {}
    asked = ["cookie jar policy", "log record formatter", "decode a string with escapes", "qzx vwp", "send an http response header"]
    for n in (1, 4):
        engine = Engine(tmp_path / str(n), ("bm25", f"late:model={plain},dim=8,storage=int8,fde_repetitions=8"))
        outcome = engine.index(STDLIB, n_shards=n, include=["json/**", "logging/**", "http/**"], exclude=["**/__pycache__/**"])
        assert outcome.encoded["late"] == outcome.documents_added > 5
        nulls = engine.generation().nulls
        assert nulls.spaces["late"].n_probes > 5
        assert engine.generation().statistics("late").sample is not None
        answers[n] = engine.search_many([{"query": q, "k": 20, "explain": True} for q in asked])
    assert essence(answers[1]) == essence(answers[4])
    assert [a.verdict for a in answers[1]] == [a.verdict for a in answers[4]]
    np.testing.assert_allclose(evalues(answers[1]), evalues(answers[4]), rtol=0, atol=1e-9)
    assert any(signal.layer == "late" for answer in answers[1] for hit in answer.hits for signal in hit.signals)
    again = engine.index(STDLIB, n_shards=2, include=["json/**", "logging/**", "http/**"], exclude=["**/__pycache__/**"])
    assert not any(again.encoded.values())
