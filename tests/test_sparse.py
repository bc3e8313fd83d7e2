"""The sparse layer: a model's weights in postings, equal to sentence-transformers and to the obvious way, on any split."""

import dataclasses
import math

import numpy as np
import pytest
import tiny_sparse
from engine import Engine, paths, write_files
from layer_contract import WORDS, LayerContract, pack, random_documents
from test_sparse_encoder import needs_splade, of_sentence_transformers

from shards.encodings import PackedEncodings
from shards.errors import BadQuery, BadSpec, ModelMissing
from shards.layers import SpaceSpec, create, postings_reader, sparse
from shards.layers.contract import Request, Resources
from shards.layers.sparse import Sparse
from shards.sparse_encoder import unpacked
from shards.store import open_store
from shards.types import Budget


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that knows the words of the contract's documents."""
    return tiny_sparse.splade(tmp_path_factory.mktemp("model"), words=[word.lower() for word in WORDS if word.isalpha()])


def make(model, **params) -> Sparse:
    return Sparse(Sparse.Params(model=str(model), **params), Resources())


@pytest.fixture
def layer(model):
    return make(model, unit_bytes=200)


@dataclasses.dataclass
class Corpus:
    """One segment: layer, documents, arrays, reader over all rows."""

    layer: Sparse
    segment: object
    arrays: dict
    reader: object

    def ask(self, text="", **form):
        return self.layer.prepare(Request(text, form, True), None)


def corpus(layer, items=None) -> Corpus:
    segment = pack(random_documents(np.random.default_rng(11), 60) if items is None else items, layer)
    arrays = layer.build(segment.documents, segment.entries)
    return Corpus(layer, segment, arrays, layer.open(arrays, segment.documents, segment.entries, np.ones(len(segment.keys), bool)))


def texts_of(layer, documents) -> tuple[list[str], list[int]]:
    """The passages as text, and the row of each."""
    from shards.units import passages

    units = passages(documents, layer.params.unit_bytes, layer.params.overlap_bytes, None)
    spans = zip(units.rows.tolist(), units.starts.tolist(), units.ends.tolist(), strict=True)
    return [bytes(documents.content(row)[a:b]).decode() for row, a, b in spans], units.rows.tolist()


class TestSparseContract(LayerContract):
    n_documents = 40

    @pytest.fixture(autouse=True)
    def _model(self, model):
        self.model = model

    def make_layer(self):
        return make(self.model, unit_bytes=400)

    def requests(self):
        return [
            Request("alpha river"),
            Request("where does the cloud sort a tree?"),
            Request("", {"weights": {"stone": 2.0, "##e": 0.7, "node": -0.4}}, True),
        ]


# --- scores ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny", "inference-free", pytest.param("splade-tiny", marks=needs_splade)])
def test_scores_are_sentence_transformers_own_dot_products(name, model, tmp_path):
    from shards import model_files

    folder = tiny_sparse.inference_free(tmp_path) if name == "inference-free" else model if name == "tiny" else name
    all_there = corpus(make(folder), [
        (text.encode(), "prose:english", (f"{i}.txt",))
        for i, text in enumerate([
            "The river carries stones over the hill.", "A tree is a graph without cycles; its nodes have edges.", "json",
            "Parse the file, then sort and merge what it holds.", "Clouds bring rain. Rain fills rivers. " * 20,
        ])
    ])  # fmt: skip
    texts, rows = texts_of(all_there.layer, all_there.segment.documents)
    folder = model_files.locate(str(folder), Resources())
    kept = of_sentence_transformers(folder, texts)
    for question in ("what fills a river?", "sorting a tree of nodes", "json parse"):
        expected = kept @ of_sentence_transformers(folder, [question], "query")[0]
        scores, units = all_there.reader.scan(all_there.ask(question))
        assert units.tolist() == rows
        np.testing.assert_allclose(scores, expected, atol=1e-4)
        assert (expected > 0.1).any()


def test_scores_are_sums_in_order_of_token_to_the_bit(layer):
    """Against the obvious way: every passage's weights in a dictionary, added in float32."""
    all_there = corpus(layer)
    texts, rows = texts_of(layer, all_there.segment.documents)
    weights = layer.encoder.encode_documents(texts)
    query = all_there.ask("alpha river stone 42")
    scores = []
    for a, b in zip(weights.offsets[:-1], weights.offsets[1:], strict=True):
        of_unit = dict(zip(weights.tokens[a:b].tolist(), weights.weights[a:b], strict=True))
        score = np.float32(0)
        for token, weight in zip(query.payload.terms.tolist(), query.payload.weights, strict=True):
            score += weight * of_unit.get(token, np.float32(0))
        scores.append(float(score))
    found, found_rows = all_there.reader.scan(query)
    assert (found.tolist(), found_rows.tolist()) == (scores, rows)
    best = {row: max(s for s, r in zip(scores, rows, strict=True) if r == row) for row in rows}
    order = sorted((row for row in best if best[row] > 0), key=lambda row: (-best[row], row))
    result = all_there.reader.search(query, None, 10, Budget())
    assert (result.rows.tolist(), result.scores.tolist()) == (order[:10], [best[row] for row in order[:10]])
    assert result.n_matched == sum(score > 0 for score in scores)
    mean = math.fsum(scores) / len(scores)
    assert result.moments.mean == pytest.approx(mean, rel=1e-12)
    assert result.moments.m2 == pytest.approx(math.fsum((s - mean) ** 2 for s in scores), rel=1e-9)


def test_dense_lists_change_no_bit_of_a_score(layer, monkeypatch):
    scores = []
    for share in (0, 1 / 8, 2):
        monkeypatch.setattr(sparse, "DENSE_SHARE", share)
        all_there = corpus(layer)
        n_dense = len(all_there.reader._dense_terms)
        assert (n_dense == 0) == (share == 2)
        scores.append(all_there.reader.scan(all_there.ask("alpha river where the clouds are"))[0].tobytes())
    assert scores[0] == scores[1] == scores[2]


def test_a_deadline_in_the_middle_leaves_whole_rows_only(layer, monkeypatch):
    monkeypatch.setattr(postings_reader, "WINDOW", 8)
    monkeypatch.setattr(postings_reader, "SLICE_POSTINGS", 1)
    all_there = corpus(layer)
    query = all_there.ask("alpha river")

    class ThreeLooks:
        looks = 0

        @property
        def expired(self):
            self.looks += 1
            return self.looks > 3

    cut, whole = all_there.reader.search(query, None, 100, ThreeLooks()), all_there.reader.search(query, None, 100, Budget())
    assert 0 < cut.rows_covered < whole.rows_covered == cut.rows_total
    assert cut.moments.n == 24
    scores = dict(zip(whole.rows.tolist(), whole.scores.tolist(), strict=True))
    assert cut.rows.tolist() == [row for row in whole.rows.tolist() if row < cut.rows_covered]
    assert cut.scores.tolist() == [scores[row] for row in cut.rows.tolist()]


def test_heaviest_terms_and_least_weights_are_dials(model):
    everything, few, heavy = (
        corpus(make(model, unit_bytes=200, **dials)).arrays for dials in ({}, {"document_terms": 4}, {"min_weight": 1.5})
    )  # fmt: skip
    n_units = len(everything["unit_rows"])
    assert len(everything["posting_units"]) > 5 * n_units
    assert np.bincount(few["posting_units"], minlength=n_units).max() == 4
    assert heavy["posting_impacts"].min() >= 1.5 > everything["posting_impacts"].min()
    assert len(make(model, query_terms=2).prepare(Request("alpha river stone"), None).payload.terms) == 2


# --- questions ---------------------------------------------------------------------------------------------------------------


def test_what_was_asked_is_the_models_expansion_heaviest_first(layer):
    query = layer.prepare(Request("alpha river stone cloud"), None)
    assert len(query.payload.terms) == len(set(query.payload.terms.tolist())) > 3
    assert (np.diff(query.payload.terms.astype(np.int64)) > 0).all()
    order = np.argsort(-query.payload.weights, kind="stable")
    names = layer.encoder.names(query.payload.terms[order])
    shown = [f"{name} {weight:.2f}" for name, weight in zip(names, query.payload.weights[order].tolist(), strict=True)]
    rest = len(shown) - sparse.ASKED_TERMS
    expected = [*shown[: sparse.ASKED_TERMS], *([f"and {rest} lighter terms"] if rest > 0 else [])]
    assert query.asked == ", ".join(expected)


def test_a_long_expansion_is_cut_for_people_and_a_long_text_is_said_to_be(model, monkeypatch):
    monkeypatch.setattr(sparse, "ASKED_TERMS", 2)
    layer = make(model)
    query = layer.prepare(Request("river stone " * 400), None)
    n = len(query.payload.terms)
    assert n > 2
    assert f", and {n - 2} lighter terms, from the first " in query.asked
    assert query.asked.endswith("characters: the model reads no further")


def test_a_question_with_too_many_terms_keeps_the_heaviest(model, monkeypatch):
    monkeypatch.setattr(sparse, "MAX_TERMS", 3)
    layer = make(model)
    tokens, weights = layer.encoder.encode_query("alpha river stone cloud tree")
    query = layer.prepare(Request("alpha river stone cloud tree"), None)
    assert len(tokens) > 3
    assert query.payload.terms.tolist() == sorted(tokens[np.argsort(-weights, kind="stable")[:3]].tolist())
    assert "the 3 heaviest count" in query.asked


def test_weights_of_ones_own_are_asked_as_they_stand(layer):
    all_there = corpus(layer)
    query = all_there.ask(weights={"River": 2, "stone": 0.5, "cloud": -1})
    assert query.asked == "river 2.00, cloud -1.00, stone 0.50"
    assert all_there.ask(weights={"River": 1.5, "river": 0.5}).payload.weights.tolist() == [2.0]
    scores = [all_there.reader.scan(all_there.ask(weights={word: 1}))[0] for word in ("river", "stone", "cloud")]
    np.testing.assert_allclose(all_there.reader.scan(query)[0], 2 * scores[0] + 0.5 * scores[1] - scores[2], atol=1e-5)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"weights": {}}, "with at least one"),
        ({"weights": ["river"]}, "must be an object of vocabulary entries and numbers"),
        ({"weights": {"river": "heavy"}}, "the weight of 'river' is 'heavy'; expected a number"),
        ({"weights": {"river": True}}, "the weight of 'river' is True"),
        ({"weights": {"river": float("nan")}}, "the weight of 'river' is nan"),
        ({"weights": {"river": 1e7}}, "between -1e6 and 1e6"),
        ({"weights": {"river": 0}}, "not 0"),
        ({"weights": {"riverbed": 1}}, "'riverbed' is no entry in the vocabulary"),
        ({"weights": {str(i): 1 for i in range(5000)}}, "5,000 entries; at most 4,096"),
        ({"weights": {"river": 1}, "boost": 2}, "weights alone, without boost"),
        ({"pattern": "x"}, 'cannot use pattern. It takes text, or {"weights"'),
    ],
)
def test_forms_that_cannot_be_understood_are_refused(form, message, layer):
    with pytest.raises(BadQuery) as caught:
        layer.prepare(Request("river", form, True), None)
    assert message in str(caught.value)


def test_a_form_for_other_spaces_is_passed_over(layer):
    query = layer.prepare(Request("river", {"pattern": "x"}, False), None)
    assert query.payload.terms.tolist() == layer.prepare(Request("river"), None).payload.terms.tolist()
    assert layer.prepare(Request("  \n"), None) is None


def test_hits_are_marked_where_heavy_words_stand(layer):
    query = layer.prepare(Request("", {"weights": {"river": 3, "stone": 1.2, "tree": 0.5, "##e": 3}}), None)
    assert layer.highlights(query) == [(r"\b(?:river|stone)\b", True, True)]
    assert layer.highlights(layer.prepare(Request("", {"weights": {"##e": 1}}), None)) == []
    assert layer.highlights(layer.prepare(Request("", {"weights": {"river": -1}}), None)) == []


# --- specs and models --------------------------------------------------------------------------------------------------------


def test_bad_dials_are_refused_by_name():
    for text, message in [
        ("sparse:document_terms=0", "document_terms"),
        ("sparse:min_weight=-1", "min_weight"),
        ("sparse:dtype=fp8", "dtype"),
        ("sparse:top_k=3", "Its dials are: model, unit_bytes"),
    ]:
        with pytest.raises(BadSpec, match=message):
            create(SpaceSpec.parse(text), Resources())
    layer = create(SpaceSpec.parse("sparse:overlap_bytes=900"), Resources())
    with pytest.raises(BadSpec, match="overlap_bytes"):
        layer.recount(pack([], layer).documents, pack([], layer).entries)


def test_a_missing_model_breaks_this_space_and_says_how_to_get_it(tmp_path):
    layer = create(SpaceSpec.parse(f"sparse:model={tmp_path}/none"), Resources(tmp_path))
    with pytest.raises(ModelMissing, match="There is no model"):
        layer.fingerprint()


# --- nothing is encoded twice ------------------------------------------------------------------------------------------------


def test_kept_encodings_give_the_same_arrays_and_encode_nothing(layer, tmp_path, monkeypatch):
    store = PackedEncodings(open_store(str(tmp_path / "store")), "encodings/x")
    items = random_documents(np.random.default_rng(3), 30)
    first, all_of_them = pack(items[:20], layer), pack(items, layer)
    asked: list[str] = []
    encode = layer.encoder.encode_documents
    monkeypatch.setattr(layer.encoder, "encode_documents", lambda texts, done=None: (asked.extend(texts), encode(texts, done))[1])
    monkeypatch.setattr(Sparse, "portion_units", 5)
    told = []
    layer.build(first.documents, first.entries, known=store, progress=lambda *step: told.append(step))
    n_first = len(asked)
    assert told[-1] == ("encode", n_first, n_first) and len(store._names()) > 1
    kept = store.get(first.documents.hashes)
    assert {(rows.dtype, rows.shape[1]) for rows in kept.values()} == {(np.dtype(np.uint32), 2)}
    assert sum(len(unpacked(rows).offsets) - 1 for rows in kept.values()) == n_first

    arrays = layer.build(all_of_them.documents, all_of_them.entries, known=store)
    assert sorted(asked) == sorted(texts_of(layer, all_of_them.documents)[0])
    again = layer.build(all_of_them.documents, all_of_them.entries, known=store)
    fresh = layer.build(all_of_them.documents, all_of_them.entries)
    for name, array in fresh.items():
        assert arrays[name].tobytes() == again[name].tobytes() == array.tobytes()


def test_kept_encodings_that_are_not_of_these_passages_are_made_anew(layer):
    segment = pack(random_documents(np.random.default_rng(3), 6), layer)

    class Odd:
        def __init__(self):
            self.kept = {}

        def get(self, hashes):
            return {key.tobytes(): np.zeros((7, 2), np.uint32) for key in hashes}

        def put(self, encodings):
            self.kept |= encodings

    odd = Odd()
    arrays = layer.build(segment.documents, segment.entries, known=odd)
    assert arrays["posting_impacts"].tobytes() == layer.build(segment.documents, segment.entries)["posting_impacts"].tobytes()
    assert len(odd.kept) == sum(end > start for start, end in zip(segment.documents.starts, segment.documents.ends, strict=True))


# --- in the engine -----------------------------------------------------------------------------------------------------------


def essence(answers) -> list:
    return [[(h.hash, h.start, h.end, [(s.layer, s.score) for s in h.signals]) for h in a.hits] for a in answers]


def test_answers_do_not_depend_on_the_number_of_shards(model, tmp_path):
    items = random_documents(np.random.default_rng(8), 80)
    source = write_files(tmp_path / "source", {paths[0]: body for body, _, paths in items})
    layers = ("names", "text", "bm25", f"sparse:model={model}")
    asked = [{"query": q, "k": 20, "explain": True} for q in ("alpha river", "load a stone", "sort merge tree", "HTTPServer", "naïve")]
    asked += [{"forms": {"sparse": {"weights": {"cloud": 1.0}}}, "k": 20, "explain": True}]
    answers, chances = {}, {}
    for n in (1, 4):
        engine = Engine(tmp_path / str(n), layers)
        engine.index(source, n_shards=n)
        found = engine.search_many(asked)
        answers[n] = essence(found)
        chances[n] = [math.log(h.evalue) for a in found for h in a.hits]
    assert answers[1] == answers[4]
    assert any(signal[0] == "sparse" for hits in answers[1] for *_, signals in hits for signal in signals)
    np.testing.assert_allclose(chances[1], chances[4], atol=1e-9)


SENTENCES = """
Rivers carry sand and gravel from the mountains to the sea.|The heart pumps blood through arteries and veins.
Bees collect nectar from flowers and turn it into honey.|Volcanoes throw ash and lava into the air.
A violin has four strings and is played with a bow.|The senate passed the budget after a long debate.
Photosynthesis turns sunlight into sugar in green leaves.|Penguins swim well but cannot fly.
The court ruled that the contract was void.|Glaciers shrink as summers become warmer.
Bread rises because yeast makes gas.|Sailors once found their way by the stars.
The vaccine protects children against measles.|Steel is an alloy of iron and carbon.
Chess players study openings for years.|The orchestra tuned before the concert.
Earthquakes happen where plates slide past each other.|Olive oil is pressed from ripe fruit.
A telescope gathers light from distant galaxies.|The engine burns petrol to move the car.
""".strip().replace("\n", "|").split("|")  # fmt: skip


@needs_splade[0]
@needs_splade[1]
def test_the_job_builds_probes_and_calibrates_the_space_and_verdicts_use_it(tmp_path):
    rng = np.random.default_rng(5)
    files = {f"{i:03}.txt": " ".join(rng.permutation(SENTENCES)[:3].tolist()) + f" Number {i}." for i in range(60)}
    files |= {f"one/{i:02}.txt": sentence for i, sentence in enumerate(SENTENCES)}
    engine = Engine(tmp_path, ("names", "text", "bm25", "sparse"))
    engine.index(write_files(tmp_path / "source", files), n_shards=2)
    nulls = engine.generation().nulls
    assert nulls.spaces["sparse"].n_units == len(files) == nulls.spaces["sparse"].n_probes
    assert nulls.fused.spaces == ("bm25", "sparse")
    known, nonsense = engine.search_many([
        {"query": "cardiac muscle pumps blood", "layers": ["sparse"], "k": 3},
        {"query": "xqzvw kkjhq", "layers": ["names", "text", "bm25", "sparse"]},
    ])  # fmt: skip
    assert known.verdict != "none" and all("heart" in files[path] for path in paths(known))
    (asked,) = [space.asked for space in known.layers if space.name == "sparse"]
    assert asked.startswith("blood ") or ", blood " in asked
    assert nonsense.verdict == "none"

    engine.index(write_files(tmp_path / "source", {"one/01.txt": "Kidneys filter waste out of the blood."}))
    again = engine.search("kidneys filter waste", layers=["sparse"], k=1)
    assert paths(again) == ["one/01.txt"]
