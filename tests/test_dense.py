"""The dense layer: any SentenceTransformer as it is meant, late chunking, fp16 vectors, an endpoint, work that is never lost."""

import json

import numpy as np
import pytest
from engine import Engine
from layer_contract import LayerContract, pack, random_documents
from openai_server import Fault, OpenAIServer, vector_of
from test_vectors import Hashed, Remembered, random_units
from tiny_bert import save_bert, save_transformer

from shards import windows
from shards.encoders import DenseEncoder, unit_rows
from shards.endpoint_encoder import SILENCE_S, EndpointEncoder
from shards.endpoint_settings import EndpointSettings
from shards.errors import BadSpec, EndpointError, ModelMissing
from shards.layers import SpaceSpec, create, space_id, vectors
from shards.layers.contract import Request, Resources
from shards.layers.dense import Dense
from shards.layers.keeping import next_portion
from shards.layers.vectors import Static, VectorStatistics, vector_arrays
from shards.layers.vectors_reader import VectorReader
from shards.model_files import quiet_transformers
from shards.plan import SpaceQuery
from shards.types import Budget, Moments

TEXTS = ["", "alpha", "beta gamma alpha.", "Stone cloud river " * 5, "naïve café, tree sort", "merge node edge " * 40, "42 = x"]


def own(folder):
    """The model as sentence-transformers loads it."""
    from sentence_transformers import SentenceTransformer

    with quiet_transformers():
        return SentenceTransformer(str(folder), device="cpu")


def dense(folder, tmp_path, **dials) -> DenseEncoder:
    return DenseEncoder(str(folder), Resources(tmp_path / "models"), device="cpu", **dials)


# --- any SentenceTransformer -------------------------------------------------------------------------------------------------


def dense_part():
    import torch
    from sentence_transformers import models

    torch.manual_seed(2)
    return models.Dense(16, 24)


def more_parts(kind: str) -> list:
    from sentence_transformers import models

    return {"": [], "dense": [dense_part()], "dense, normalised": [dense_part(), models.Normalize()], "norm": [models.LayerNorm(16)]}[kind]


@pytest.mark.parametrize(
    ("pooling", "more", "padding_side"),
    [
        ("mean", "", "left"),
        ("mean", "dense, normalised", "right"),
        ("cls", "dense", "left"),
        ("max", "norm", "right"),
        ("lasttoken", "", "left"),
        ("weightedmean", "", "left"),
        ("cls+mean_sqrt_len_tokens", "", "right"),
    ],
)
def test_vectors_are_those_that_the_model_gives_a_text_alone_whatever_it_pools_by(pooling, more, padding_side, tmp_path):
    """Alone, because sentence-transformers itself pads texts of a batch, and on the left that moves positions."""
    folder = save_bert(tmp_path, pooling, padding_side=padding_side, more=more_parts(more))
    model, encoder = own(folder), dense(folder, tmp_path)
    expected = np.concatenate([model.encode([text], normalize_embeddings=True) for text in TEXTS])
    together = encoder.encode_documents(TEXTS * 3)
    np.testing.assert_allclose(together[: len(TEXTS)], expected, atol=2e-6)
    assert together.tobytes() == np.tile(together[: len(TEXTS)], (3, 1)).tobytes()
    assert encoder.encode_queries(TEXTS).tobytes() == together[: len(TEXTS)].tobytes()
    assert encoder._load()._in_passes


def test_prompts_are_the_models_own_and_left_out_of_pooling_where_it_says_so(tmp_path):
    folder = save_bert(tmp_path, include_prompt=False, prompts={"query": "stone: ", "passage": "tree: "})
    model, encoder = own(folder), dense(folder, tmp_path)
    for text in TEXTS[1:]:
        np.testing.assert_allclose(encoder.encode_queries([text]), model.encode_query([text], normalize_embeddings=True), atol=2e-6)
        expected = model.encode([text], prompt_name="passage", normalize_embeddings=True)
        np.testing.assert_allclose(encoder.encode_documents([text]), expected, atol=2e-6)


def test_a_cut_dimension_is_the_first_numbers_scaled_anew(tmp_path):
    folder = save_bert(tmp_path, more=more_parts("dense, normalised"))
    full, cut = (dense(folder, tmp_path, dim=dim).encode_documents(TEXTS) for dim in (None, 10))
    np.testing.assert_allclose(cut, unit_rows(full[:, :10]), atol=1e-6)
    with pytest.raises(BadSpec, match="gives 24 dimensions; dim is 25"):
        dense(folder, tmp_path, dim=25).encode_queries(["alpha"])


def router(tmp_path):
    from sentence_transformers import SentenceTransformer, models

    ways = [[save_transformer(tmp_path / name, seed=seed), models.Pooling(16)] for seed, name in enumerate(("question", "answer"))]
    return SentenceTransformer(modules=[models.Router.for_query_document(*ways)], device="cpu")


def convolution(tmp_path):
    from sentence_transformers import SentenceTransformer, models

    return SentenceTransformer(modules=[save_transformer(tmp_path / "bert"), models.CNN(16, 8), models.Pooling(24)], device="cpu")


@pytest.mark.parametrize("make", [router, convolution])
def test_a_model_that_cannot_be_taken_apart_encodes_text_by_text_as_it_does_itself(make, tmp_path):
    """Two ways for questions and documents; a convolution, whose words see the padding beside them."""
    with quiet_transformers():
        make(tmp_path).save(str(tmp_path / "model"), create_model_card=False)
    model, encoder = own(tmp_path / "model"), dense(tmp_path / "model", tmp_path)
    texts = TEXTS[1:]
    documents, queries = encoder.encode_documents(texts), encoder.encode_queries(texts)
    assert not encoder._load()._in_passes
    for i, text in enumerate(texts):
        np.testing.assert_allclose(documents[i], model.encode_document([text], normalize_embeddings=True)[0], atol=2e-6)
        np.testing.assert_allclose(queries[i], model.encode_query([text], normalize_embeddings=True)[0], atol=2e-6)
        assert encoder.encode_documents([text]).tobytes() == documents[i].tobytes()
    assert (np.abs(documents - queries).max() > 0.01) == (make is router)


def test_a_model_that_compares_by_dot_product_is_refused_until_somebody_says_how_to_compare(tmp_path):
    folder = save_bert(tmp_path, similarity_fn_name="dot")
    with pytest.raises(BadSpec, match=r"by dot, not by angle. Say metric=dot as it does, or metric=cosine"):
        dense(folder, tmp_path).encode_queries(["alpha"])
    as_is, angle = (dense(folder, tmp_path, metric=metric).encode_documents(["alpha beta"]) for metric in ("dot", "cosine"))
    np.testing.assert_allclose(as_is, own(folder).encode(["alpha beta"]), atol=1e-5)
    assert angle.tobytes() == unit_rows(as_is).tobytes()


def test_a_space_of_dot_products_finds_by_them(tmp_path):
    folder = save_bert(tmp_path, similarity_fn_name="dot")
    layer = Dense(Dense.Params(model=str(folder), metric="dot", unit_bytes=200), Resources(tmp_path / "models"))
    segment = pack(random_documents(np.random.default_rng(0), 20), layer)
    arrays = layer.build(segment.documents, segment.entries)
    reader = layer.open(arrays, segment.documents, segment.entries, np.ones(len(segment.documents), bool))
    query = layer.prepare(Request("stone river"), VectorStatistics(1))
    found = reader.search(query, None, 1, Budget())
    exact = arrays["vectors"].astype(np.float64) @ query.payload.astype(np.float64)
    assert found.scores[0] == pytest.approx(exact.max(), rel=1e-12)
    assert exact.max() > 1.5  # no cosine


def test_a_gpu_that_is_not_there_is_named(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    encoder = DenseEncoder(str(save_bert(tmp_path)), Resources(tmp_path / "models"), device="cuda")
    with pytest.raises(ModelMissing, match="no GPU that torch can use"):
        encoder.encode_queries(["alpha"])


# --- late chunking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_tokens", "spans", "size", "expected"),
    [
        (10, [(0, 4), (4, 10)], 12, [(0, 10, [0, 1])]),  # one window
        (12, [(0, 4), (4, 10)], 12, [(0, 12, [0, 1])]),
        (20, [(0, 4), (4, 8), (8, 12), (12, 16), (16, 20)], 8, [(0, 8, [0, 1]), (6, 14, [2]), (10, 18, [3]), (14, 20, [4])]),
        (18, [(0, 3), (3, 6), (6, 9), (9, 12), (12, 15), (15, 18)], 12, [(0, 12, [0, 1, 2, 3]), (9, 18, [4, 5])]),
        (20, [(0, 7), (7, 14), (14, 20)], 8, [(0, 8, [0]), (6, 14, [1]), (12, 20, [2])]),  # a quarter before, as far as it fits
        (30, [(0, 2), (2, 22), (22, 30)], 8, [(0, 8, [0]), (2, 10, [1]), (22, 30, [2])]),  # too long: its beginning
        (9, [(0, 3), (3, 3), (3, 9)], 6, [(0, 6, [0]), (3, 9, [2])]),  # no tokens: no window
        (5, [(2, 2)], 6, []),
    ],
)
def test_each_passage_lies_whole_in_one_window(n_tokens, spans, size, expected):
    firsts, ends = np.array(spans).T
    found = [(w.start, w.end, w.passages.tolist()) for w in windows.cut(n_tokens, firsts, ends, size)]
    assert found == expected


@pytest.mark.parametrize("seed", range(5))
def test_windows_hold_every_passage_with_a_quarter_before_it_and_read_little_twice(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, rng.integers(2, 40), 300)
    ends = np.cumsum(lengths)
    firsts, size = ends - lengths, 60
    found = windows.cut(int(ends[-1]), firsts, ends, size)
    assert np.concatenate([w.passages for w in found]).tolist() == np.flatnonzero(lengths).tolist()
    for w in found:
        assert w.end - w.start <= size
        assert (firsts[w.passages] >= w.start).all()
        assert (ends[w.passages] <= w.end).all()
        first, end = firsts[w.passages[0]], ends[w.passages[0]]
        assert first - w.start == max(min(size // 4, first, size - (end - first)), 0)
    assert sum(w.end - w.start for w in found) <= 2 * ends[-1]


def test_long_texts_are_tokenised_in_stretches_of_whole_passages():
    starts = np.array([0, 40_000, 70_000, 90_000, 300_000, 310_000])
    assert windows.stretches(starts, 320_000) == [(0, 70_000), (70_000, 300_000), (300_000, 320_000)]
    assert windows.stretches(starts[:1], 5) == [(0, 5)]


def late(folder, tmp_path, **dials) -> Dense:
    dials = {"context": "late", "unit_bytes": 64} | dials
    return Dense(Dense.Params(model=str(folder), **dials), Resources(tmp_path / "models"))


def build(layer: Dense, *texts: str, **options):
    segment = pack([(text.encode(), "prose:english", (f"{i}.md",)) for i, text in enumerate(texts)], layer)
    return segment, layer.build(segment.documents, segment.entries, **options)


def plainly(folder, text: str, spans, prompt: str, n_window: int, more=lambda vector: vector) -> np.ndarray:
    """Late chunking with transformers alone: tokens of the whole text, a window around each passage, the mean of its states."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    with quiet_transformers():
        words, bert = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    whole = words(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids, offsets = whole["input_ids"], whole["offset_mapping"]
    asked = words(prompt, add_special_tokens=False)["input_ids"]
    size = n_window - 2 - len(asked)
    belongs = [[i for i, (a, b) in enumerate(offsets) if a < end and b > start] for start, end in spans]
    rows: dict[int, np.ndarray] = {}
    at = 0
    while at < len(spans):
        first, end = belongs[at][0], belongs[at][-1] + 1
        begin = 0 if len(ids) <= size else min(first, max(first - size // 4, end - size, 0))
        window = [words.cls_token_id, *asked, *ids[begin : begin + size], words.sep_token_id]
        with torch.inference_mode():
            states = bert(torch.tensor([window])).last_hidden_state[0]
        while at < len(spans) and (belongs[at][-1] < begin + size or belongs[at][0] == first):
            places = [i - begin + 1 + len(asked) for i in belongs[at] if i < begin + size]
            rows[at] = more(states[places].mean(dim=0)).numpy()
            at += 1
    return unit_rows(np.array([rows[i] for i in range(len(spans))]))


LONG = "Tree sort, naïve café.\n\n" + "alpha beta gamma delta river stone cloud. \n" * 9 + "\nmerge node\tedge 42; “odd” quotes… end"


@pytest.mark.parametrize(
    ("text", "dials", "prompt"),
    [
        (LONG, {}, ""),
        (LONG, {"window_tokens": 96}, ""),
        (LONG, {"window_tokens": 24, "overlap_bytes": 16}, ""),
        (LONG, {"document_prompt": "stone: "}, "stone: "),
        ("\n  alpha beta " + "river " * 8 + "\n\n" + "stone " * 9 + "\n", {}, ""),  # one window
        ("alpha", {}, ""),
        ("x" * 300 + " tree " * 20, {"unit_bytes": 128}, ""),  # a passage that is longer than a window
    ],
)
def test_late_chunking_equals_pooling_the_windows_token_states_with_plain_transformers(text, dials, prompt, tmp_path):
    folder = save_bert(tmp_path)
    layer = late(folder, tmp_path, **dials)
    _, arrays = build(layer, text)
    body = text.encode()
    spans = [(len(body[:a].decode()), len(body[:b].decode())) for a, b in zip(arrays["starts"], arrays["ends"], strict=True)]
    shift, stop = spans[0][0], spans[-1][1]
    expected = plainly(folder, text[shift:stop], [(a - shift, b - shift) for a, b in spans], prompt, dials.get("window_tokens", 48))
    np.testing.assert_allclose(arrays["vectors"], expected, atol=2e-6)


def test_parts_after_pooling_work_on_each_passage(tmp_path):
    import torch

    folder = save_bert(tmp_path, more=more_parts("dense, normalised"))
    _, arrays = build(late(folder, tmp_path), LONG)
    weights = own(folder)[2].linear
    body = LONG.encode()
    spans = [(len(body[:a].decode()), len(body[:b].decode())) for a, b in zip(arrays["starts"], arrays["ends"], strict=True)]
    expected = plainly(folder, LONG[: spans[-1][1]], spans, "", 48, lambda vector: torch.tanh(weights(vector)).detach())
    np.testing.assert_allclose(arrays["vectors"], expected, atol=2e-6)


def test_passages_of_one_window_know_one_another(tmp_path):
    """The same passage beside other ones has another vector; isolated it has the same."""
    folder = save_bert(tmp_path)
    passage = "alpha beta gamma delta river stone cloud tree sort alpha.\n\n"
    texts = passage + "merge node edge", passage + "river river river 42"
    for context, same in (("late", False), ("isolated", True)):
        layer = late(folder, tmp_path, context=context)
        rows = [build(layer, text)[1]["vectors"] for text in texts]
        assert [len(r) for r in rows] == [2, 2]
        assert (rows[0][0].tobytes() == rows[1][0].tobytes()) == same


def test_a_documents_late_vectors_do_not_depend_on_what_else_is_encoded(tmp_path):
    layer = late(save_bert(tmp_path), tmp_path)
    bodies = [LONG, "alpha beta", LONG[40:] * 3, "stone " * 50, "river", LONG + "tail"]
    segment, together = build(layer, *bodies)
    alone = {}
    for body in bodies:
        one, arrays = build(layer, body)
        alone[one.documents.hashes[0].tobytes()] = arrays["vectors"].tobytes()
    for row, key in enumerate(segment.documents.hashes):
        units = slice(*together["row_units"][row : row + 2])
        assert together["vectors"][units].tobytes() == alone[key.tobytes()]


@pytest.mark.parametrize(
    ("pooling", "dials", "message"),
    [
        ("cls", {}, "makes its vectors cls; context=late needs one that pools tokens"),
        ("cls+mean", {}, r"cls\+mean"),
        ("mean", {"window_tokens": 97}, "has positions for 96 tokens; window_tokens is 97"),
        ("mean", {"window_tokens": 8, "document_prompt": "stone cloud river tree sort merge "}, "no room beside the prompt"),
    ],
)
def test_late_chunking_that_is_impossible_is_refused(pooling, dials, message, tmp_path):
    with pytest.raises(BadSpec, match=message):
        build(late(save_bert(tmp_path, pooling), tmp_path, **dials), LONG)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"), max_tokens=96)


class TestLateContract(LayerContract):
    n_documents = 16

    @pytest.fixture(autouse=True)
    def model(self, bert, tmp_path):
        self.folder, self.tmp_path = bert, tmp_path

    def make_layer(self):
        return late(self.folder, self.tmp_path, unit_bytes=200)

    def requests(self):
        return [Request("alpha beta"), Request("a stone")]


class TestLateHalvesContract(TestLateContract):
    def make_layer(self):
        return late(self.folder, self.tmp_path, unit_bytes=200, storage="fp16", dim=8)


# --- fp16 --------------------------------------------------------------------------------------------------------------------


def halves() -> Hashed:
    return Hashed(Hashed.Params(storage="fp16"))


class TestHalvesContract(LayerContract):
    def make_layer(self):
        return halves()

    def requests(self):
        return [Request("alpha beta"), Request("stone"), Request("", form={"vector": list(range(1, 13))})]

    def check_moments(self, moments, expected):
        assert moments.n == expected.n
        np.testing.assert_allclose([moments.mean, moments.m2], [expected.mean, expected.m2], rtol=1e-12, atol=1e-14)


def test_fp16_halves_vectors_and_kept_encodings():
    known, layer = Remembered(), halves()
    segment, arrays = build(layer, "alpha beta " * 50, "stone", known=known)
    full = Hashed().build(segment.documents, segment.entries)
    assert arrays["vectors"].nbytes * 2 == full["vectors"].nbytes
    assert arrays["vectors"].tobytes() == full["vectors"].astype(np.float16).tobytes()
    assert {values.dtype for values in known.values()} == {np.dtype(np.float16)}
    empty, arrays = build(layer, "  ")
    assert arrays["vectors"].dtype == layer.merge([(arrays, np.array([0], np.int32))], empty.documents, empty.entries)["vectors"].dtype
    assert arrays["vectors"].dtype == np.float16


@pytest.mark.parametrize("dim", [1, 31, 64, 100, 384])
def test_scores_of_fp16_vectors_are_those_of_their_values_to_the_bit(dim):
    """All that float16 can hold among unit vectors: zeros, both signs, numbers below 6e-5, which have another form."""
    stored = random_units(0, 40, dim).astype(np.float16)
    stored[0], stored[1], stored[2] = 6e-8, -3e-5, 0
    query = random_units(1, 1, dim)[0]
    row_units, spans = np.arange(41), np.zeros(40, np.int64)
    readers = [
        VectorReader(vector_arrays(array, row_units, spans, spans, np.ones(40, bool)), np.ones(40, bool))
        for array in (stored, stored.astype(np.float32))
    ]
    ask = SpaceQuery("", "a vector", query)
    scores = [reader.scan(ask)[0] for reader in readers]
    assert scores[0].tobytes() == scores[1].tobytes()
    np.testing.assert_allclose(scores[0], stored.astype(np.float64) @ query.astype(np.float64), atol=1e-15)
    moments = readers[0].search(ask, None, 1, Budget()).moments
    expected = Moments.of(scores[0])
    np.testing.assert_allclose([moments.mean, moments.m2], [expected.mean, expected.m2], rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize("n", [300, 3000, 20_000])
def test_every_way_of_searching_fp16_vectors_finds_the_same(n):
    """With sketches and without: against float32 arrays of the same values."""
    rng = np.random.default_rng(n)
    stored = unit_rows(random_units(0, 8, 32)[rng.integers(8, size=n)] + rng.standard_normal((n, 32)) * 0.3).astype(np.float16)
    counts = rng.multinomial(n, np.full(n // 3, 3 / n))
    row_units, spans = np.concatenate([[0], np.cumsum(counts)]), np.zeros(n, np.int64)
    live = rng.random(n // 3) < 0.9
    narrow, wide = (
        VectorReader(vector_arrays(array, row_units, spans, spans, np.ones(n // 3, bool)), live)
        for array in (stored, stored.astype(np.float32))
    )
    for query in (*random_units(1, 3, 32), unit_rows(stored[:1])[0]):
        for k in (1, 20):
            left, right = (reader.search(SpaceQuery("", "v", query), None, k, Budget()) for reader in (narrow, wide))
            assert left.rows.tolist() == right.rows.tolist()
            assert left.scores.tobytes() == right.scores.tobytes()


# --- an endpoint -------------------------------------------------------------------------------------------------------------


def remote(server: OpenAIServer | None, **options) -> EndpointEncoder:
    endpoints = {"default": EndpointSettings(server.url, server.key)} if server else {}
    return EndpointEncoder("default", "tiny", Resources(endpoints=endpoints), waits_s=(), **options)


def test_an_endpoints_vectors_are_scaled_cut_and_prompted():
    with OpenAIServer(key="secret", models=("tiny",), dim=16) as server:
        texts = ["alpha beta", "stone", "Tree sort"]
        encoder = remote(server, document_prompt="doc: ", query_prompt="ask: ", dim=8)
        found = encoder.encode_documents(texts)
        expected = unit_rows(np.array([vector_of(f"doc: {text}", 16)[:8] for text in texts]))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_allclose(encoder.encode_queries(["stone"]), unit_rows(np.array([vector_of("ask: stone", 16)[:8]])), atol=1e-6)
        assert encoder.dim == 8
        with pytest.raises(BadSpec, match="gives 16 dimensions; dim is 17"):
            remote(server, dim=17).encode_queries(["x"])
        fingerprints = {e.fingerprint() for e in (encoder, remote(server), remote(server, dim=8), remote(None))}
        assert len(fingerprints) == 3
        as_is = remote(server, metric="dot").encode_documents(["stone"])
        np.testing.assert_allclose(as_is[0], vector_of("stone", 16), rtol=1e-6)


def test_a_question_in_vain_is_not_repeated_by_every_search():
    """The server is away: the first question says so, the next ones at once; after ten seconds it is asked again."""
    now = [100.0]
    with OpenAIServer(dim=4) as server:
        encoder = remote(server, clock=lambda: now[0])
        server.faults.append(Fault("status", 500))
        for _ in range(3):
            with pytest.raises(EndpointError, match="500"):
                encoder.encode_queries(["stone"])
        assert len(server.requests) == 1
        now[0] += SILENCE_S
        assert encoder.encode_queries(["stone"]).shape == (1, 4)
        assert len(server.requests) == 2


def endpoint_spec(**params) -> SpaceSpec:
    return SpaceSpec("far", "dense", {"endpoint": "default", "model": "tiny", "unit_bytes": 200} | params)


def test_what_an_endpoint_encoded_is_kept_and_a_failure_costs_one_portion():
    with OpenAIServer(dim=4) as server:
        layer = create(endpoint_spec(), Resources(endpoints={"default": EndpointSettings(server.url)}))
        layer.encoder._options = {"waits_s": (), "concurrency": 1}
        layer.portion_units, layer.clock = 4, lambda: 0.0
        texts = [f"alpha {i}" for i in range(70)]
        known = Remembered()
        server.faults.append(Fault("status", 400, when=lambda body: len(body["input"]) > 4))
        with pytest.raises(EndpointError):
            build(layer, *texts, known=known)
        assert len(known) == 4
        n_asked = len(server.requests)
        _, arrays = build(layer, *texts, known=known)
        assert sum(len(body["input"]) for _, body in server.requests[n_asked:]) == 66
        assert len(known) == len(arrays["vectors"]) == 70
        assert known.spent.tokens_in == 2 * 70  # two words each, and none counted twice


def test_while_an_endpoint_is_away_its_space_is_silent_and_others_answer(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("river", "stone", "cloud"):
        (source / f"{name}.txt").write_text(f"alpha {name} beta")
    engine = Engine(tmp_path, ("bm25", "far=dense:endpoint=default,model=tiny"))
    asked = [{"query": "a stone", "explain": True}]
    with OpenAIServer(dim=16, key="secret") as server:
        engine.resources = Resources(endpoints={"default": EndpointSettings(server.url, "secret")})
        outcome = engine.index(source)
        (there,) = engine.search_many(asked)
    assert outcome.encoded["far"] == 3
    (away,) = engine.search_many(asked)
    for answer, layers in ((there, {"bm25", "far"}), (away, {"bm25"})):
        assert {signal.layer for hit in answer.hits for signal in hit.signals} == layers
        assert "secret" not in answer.model_dump_json()
    assert server.url in away.model_dump_json()  # what was not reached
    for path in engine.store.list("c/"):
        assert b"secret" not in engine.store.read(path)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"context": "late"}, "an endpoint gives vectors of whole texts"),
        ({"dtype": "bf16"}, "in its own number format"),
        ({"context": "isolated", "window_tokens": 20}, "window_tokens is for context=late"),
    ],
)
def test_dials_that_contradict_one_another_are_refused(params, message):
    with pytest.raises(BadSpec, match=message):
        create(endpoint_spec(**params), Resources())
    with pytest.raises(BadSpec, match="an endpoint has no default model"):
        create(SpaceSpec("far", "dense", {"endpoint": "default"}), Resources())


# --- portions and spaces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_units", "seconds", "expected"),
    [(64, 2.0, 640), (640, 20.0, 640), (640, 40.0, 320), (64, 300.0, 64), (20_000, 1.0, 65_536), (10, 0.0, 65_536)],
)
def test_a_portion_takes_twenty_seconds_at_the_rate_of_the_last(n_units, seconds, expected):
    assert next_portion(n_units, seconds) == expected


def test_portions_follow_the_clock():
    """Half a second a passage: 50 at first, then 40, that is 20 seconds' worth; a document is never cut."""
    layer, known = Hashed(), Remembered()
    layer.clock = lambda: len(layer.encoder.texts) * 0.5
    vectors_of = [" ".join(f"word{i}x{j}" for j in range(10)) for i in range(150)]
    build(layer, *vectors_of, known=known)
    assert known.puts == [50, 64, 36]  # never under 64 after the first


def test_later_dials_leave_the_ids_of_older_spaces_as_they_were():
    """What a space's id was made of before there were these dials: its kept encodings must go on counting."""
    assert sorted(Static.Params().model_dump()) == ["dim", "document_prompt", "model", "overlap_bytes", "query_prompt", "unit_bytes"]
    before = ["dim", "document_prompt", "dtype", "model", "overlap_bytes", "query_prompt", "unit_bytes"]
    assert sorted(Dense.Params().model_dump()) == before
    dials = {"storage": "fp16", "context": "late", "metric": "cosine", "window_tokens": 64}
    assert sorted(set(Dense.Params(**dials).model_dump()) - set(before)) == sorted(dials)
    assert json.loads(Dense.Params(storage="fp16").model_dump_json())["storage"] == "fp16"
    assert vectors.VectorParams(**vectors.VectorParams(storage="fp16").model_dump()).storage == "fp16"


def test_every_dial_that_changes_vectors_changes_the_space(bert, tmp_path):
    dials = [{}, {"storage": "fp16"}, {"context": "late"}, {"context": "late", "window_tokens": 64}, {"metric": "dot"}, {"dim": 8}]
    dials += [{"document_prompt": ""}, {"document_prompt": "a"}]
    specs = [SpaceSpec("dense", "dense", {"model": str(bert), **d}) for d in dials]
    assert len({space_id(spec, create(spec, Resources(tmp_path))) for spec in specs}) == len(specs)


# --- placement ---------------------------------------------------------------------------------------------------------------


def test_hits_and_scores_of_late_halves_do_not_depend_on_the_number_of_shards(bert, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for i, (body, _, _) in enumerate(random_documents(np.random.default_rng(3), 80)):
        (source / f"{i}.txt").write_bytes(body)
    spec = f"dense:model={bert},context=late,storage=fp16,unit_bytes=200"
    answers = {}
    for n in (1, 2, 4, 16):
        engine = Engine(tmp_path / str(n), (spec,))
        engine.index(source, n_shards=n)
        asked = [{"query": q, "k": 10, "explain": True} for q in ("alpha beta", "a stone", "naïve tree", "HTTPServer 42", "zzz")]
        answers[n] = [
            [(h.hash, h.start, h.end, h.fused, h.evalue, [(s.score, s.evalue) for s in h.signals]) for h in answer.hits]
            for answer in engine.search_many(asked)
        ]
    assert all(answers[1])
    for n in (2, 4, 16):
        for left, right in zip(answers[n], answers[1], strict=True):
            assert [(h[:3], [s for s, _ in h[5]]) for h in left] == [(h[:3], [s for s, _ in h[5]]) for h in right]
            np.testing.assert_allclose([h[3:5] for h in left], [h[3:5] for h in right], rtol=1e-9)
