"""Layer `views`: texts about documents, extracted or written by a chat model, as ways to find them."""

import json
import logging

import numpy as np
import pytest
from layer_contract import WORDS, LayerContract, assert_same_arrays, pack
from openai_server import Fault, OpenAIServer, words_of
from test_vectors import WordHashes

from shards.encoders import StaticEncoder
from shards.endpoint_settings import EndpointSettings, Price, Usage
from shards.errors import BadSpec, EndpointError
from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Request, Resources
from shards.layers.views import Views
from shards.types import Budget
from shards.view_texts import KINDS

TOPICS = "river stone cloud sort merge parse json weather bread oven engine wheel harbour sail".split()


def static_model(folder) -> str:
    """A Model2Vec folder in which each word of these tests has a random direction of its own."""
    from model2vec import StaticModel
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    known = sorted(
        {w for text in (*WORDS, *TOPICS) for w in words_of(text)} | set("what is the a of about to and how context summary".split())
    )
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["[UNK]", *known])}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    vectors = np.random.default_rng(3).standard_normal((len(known) + 1, 32), dtype=np.float32)
    StaticModel(vectors, tokenizer, normalize=True).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return static_model(tmp_path_factory.mktemp("views") / "static")


@pytest.fixture
def server():
    with OpenAIServer() as running:
        running.answer = describe
        yield running


def describe(body) -> str:
    """What a chat model might answer: about the first words of the text between the marks."""
    text = body["messages"][-1]["content"].split("<<<\n")[1].split("\n>>>")[0]
    words = words_of(text)
    about = words[0] if words else "nothing"
    questions = [f"what is the {about}", f"how to {about}", "one too many", "and another"]
    answer = {"context": f"context of {about}", "questions": questions, "summary": f"summary about the {about}"}
    return f"Here it is:\n```json\n{json.dumps(answer)}\n```"


def written(model, server, prices=None, questions=2, **params) -> Views:
    """A layer that asks the server, without waiting between attempts."""
    resources = Resources(endpoints={"default": EndpointSettings(server.url, "sk-secret", prices or {})})
    params = {"endpoint": "default", "model": "tiny", "questions": questions, "vector_model": model} | params
    layer = create(SpaceSpec("views", "views", params), resources)
    layer._endpoint._sleep = lambda seconds: None
    return layer


class Remembered(dict):
    """`Encodings` in memory. puts: how many documents each time."""

    def __init__(self):
        super().__init__()
        self.puts: list[int] = []
        self.usage = Usage()

    def get(self, hashes):
        return {key.tobytes(): self[key.tobytes()] for key in hashes if key.tobytes() in self}

    def put(self, encodings):
        self.puts.append(len(encodings))
        self.update(encodings)

    def spend(self, usage):
        self.usage += usage


def items_of(texts: list[str], kind: str = "prose:english"):
    return [(text.encode(), kind, (f"{i}.md",)) for i, text in enumerate(texts)]


def texts_of(arrays, row: int | None = None) -> list[tuple[str, str]]:
    """(kind, text) of all views, or of a row's."""
    blob, offsets = arrays["texts"].tobytes(), arrays["text_offsets"]
    units = range(len(offsets) - 1) if row is None else range(arrays["row_units"][row], arrays["row_units"][row + 1])
    return [(KINDS[arrays["kinds"][u]], blob[offsets[u] : offsets[u + 1]].decode()) for u in units]


class TestExtractedViewsContract(LayerContract):
    @pytest.fixture(autouse=True)
    def _model(self, model):
        self.model = model

    def make_layer(self):
        return create(SpaceSpec("views", "views", {"vector_model": self.model, "section_bytes": 600}), Resources())

    def requests(self):
        return [Request("alpha beta"), Request("river stone cloud"), Request("", form={"vector": list(range(1, 33))})]


class TestWrittenViewsContract(TestExtractedViewsContract):
    n_documents = 25

    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.server = server

    def make_layer(self):
        return written(self.model, self.server, section_bytes=2_000)


def test_sections_of_a_document_are_found_by_their_own_views(model):
    """A question's words stand nowhere in a summary, but in the heading trail of one section."""
    text = "# Handbook\n\n" + "## river\n\n" + "Stone and cloud again. " * 20 + "\n\n## oven\n\n" + "Bread and wheel again. " * 20
    layer = create(SpaceSpec("views", "views", {"vector_model": model, "section_bytes": 512}), Resources())
    segment = pack(items_of([text, "# Other\n\nweather and sail are here now."]), layer)
    arrays = layer.build(segment.documents, segment.entries)
    reader = layer.open(arrays, segment.documents, segment.entries, np.ones(2, bool))
    query = layer.prepare(Request("oven"), layer.collect([(1, layer.statistics(arrays, segment.documents, segment.entries))]))
    found = reader.search(query, None, 2, Budget())
    row = int(found.rows[0])
    derived = reader.describe(query, row)
    assert (derived.kind, derived.generator) == ("context", "extractive")
    assert derived.text == "Handbook › oven: Bread and wheel again."
    assert (derived.start, derived.end) == (int(found.starts[0]), int(found.ends[0]))
    content = bytes(segment.documents.content(row))
    assert content[derived.start :].startswith(b"Bread and")


def test_a_chat_model_writes_a_context_line_questions_and_a_summary_of_each_section(model, server):
    layer = written(model, server, section_bytes=290)
    text = "# Handbook\n\n## river\n\n" + "stone and cloud. " * 15 + "\n\n## oven\n\n" + "bread and wheel. " * 14
    segment = pack(items_of([text]), layer)
    arrays = layer.build(segment.documents, segment.entries)
    assert texts_of(arrays) == [
        ("context", "context of handbook"), ("question", "what is the handbook"), ("question", "how to handbook"),
        ("summary", "summary about the handbook"),
        ("context", "context of bread"), ("question", "what is the bread"), ("question", "how to bread"),
        ("summary", "summary about the bread"),
    ]  # fmt: skip
    assert arrays["generators"].tolist() == [1] * 8
    asked = sorted(body["messages"][1]["content"] for _, body in server.requests)
    assert asked[0].startswith("Document: Handbook\n<<<\n# Handbook") and asked[1].startswith(
        "Document: Handbook\nSection: oven\n<<<\nbread and"
    )
    assert "[2 short questions" in server.requests[0][1]["messages"][0]["content"]
    reader = layer.open(arrays, segment.documents, segment.entries, np.ones(1, bool))
    found = reader.describe(layer.prepare(Request("how to bread"), None), 0)
    assert (found.kind, found.generator, found.text) == ("question", "tiny", "how to bread")


def test_without_questions_none_are_asked_for(model, server):
    layer = written(model, server, questions=0)
    segment = pack(items_of(["stone and cloud"]), layer)
    arrays = layer.build(segment.documents, segment.entries)
    assert [kind for kind, _ in texts_of(arrays)] == ["context", "summary"]
    assert "questions" not in server.requests[0][1]["messages"][0]["content"].split("{", 1)[1]


def test_a_run_that_failed_goes_on_where_it_stopped(model, server):
    """Of 40 documents the server serves some, then is down; the next run asks only for the rest."""
    texts = [f"{TOPICS[i % len(TOPICS)]} number {i}" for i in range(40)]
    layer, known = written(model, server), Remembered()
    layer._endpoint.concurrency = 1
    segment = pack(items_of(texts), layer)
    server.faults += [Fault("status", 503, when=lambda body: len(server.requests) > 20)] * 1000
    with pytest.raises(EndpointError, match="next run goes on from there"):
        layer.build(segment.documents, segment.entries, known=known)
    assert 16 <= len(known) == sum(known.puts) <= 20
    done = len(known)
    server.faults.clear()
    server.requests.clear()
    arrays = layer.build(segment.documents, segment.entries, known=known)
    assert len(server.requests) == 40 - done
    assert len(known) == 40
    server.requests.clear()
    assert_same_arrays(layer.build(segment.documents, segment.entries, known=known), arrays)
    assert server.requests == []
    assert known.usage.requests == 40


def test_what_was_written_serves_a_space_with_other_vectors(model, server, tmp_path):
    from test_encoders import save_static, word_pieces

    layer, known = written(model, server), Remembered()
    segment = pack(items_of(["stone and cloud", "bread"]), layer)
    arrays = layer.build(segment.documents, segment.entries, known=known)
    n_asked = len(server.requests)
    other = written(save_static(tmp_path / "other", word_pieces()).as_posix(), server)
    again = other.build(segment.documents, segment.entries, known=known)
    assert len(server.requests) == n_asked
    assert texts_of(again) == texts_of(arrays)
    assert again["vectors"].shape[1] != arrays["vectors"].shape[1]
    assert other.kept == layer.kept
    ids = [space_id(SpaceSpec("views", "views"), one) for one in (layer, other)]
    assert ids[0] != ids[1]


def test_vectors_of_a_transformer_are_kept_with_the_texts(model):
    """`WordHashes` stands for the transformer; what it encoded once it is not asked for again, by this space or a build after it."""
    layer, known = create(SpaceSpec("views", "views", {"vectors": "dense"}), Resources()), Remembered()
    layer.encoder, layer._sentence_encoder = WordHashes(12), StaticEncoder(model, Resources())
    assert layer.dear and layer.takes_gpu and layer.kept is None
    segment = pack(items_of(["# river\n\nA stone and a cloud are here.", "bread and oven are there", ""]), layer)
    arrays = layer.build(segment.documents, segment.entries, known=known)
    n_encoded = len(layer.encoder.texts)
    assert n_encoded == len(arrays["kinds"]) == 2
    assert_same_arrays(layer.build(segment.documents, segment.entries, known=known), arrays)
    assert len(layer.encoder.texts) == n_encoded
    np.testing.assert_array_equal(arrays["vectors"], WordHashes(12).encode_documents([text for _, text in texts_of(arrays)]))


def test_tokens_are_kept_with_what_was_written_and_priced_for_status(model, server):
    layer, known = written(model, server, {"tiny": Price(2.0, 10.0)}), Remembered()
    segment = pack(items_of(["stone and cloud", "bread"]), layer)
    arrays = layer.build(segment.documents, segment.entries, known=known)
    n_in = sum(len(words_of(m["content"])) for _, body in server.requests for m in body["messages"])
    n_out = sum(len(describe(body).split()) for _, body in server.requests)
    assert arrays["tokens"].sum(axis=0).tolist() == [n_in, n_out]
    assert (known.usage.tokens_in, known.usage.tokens_out, known.usage.requests) == (n_in, n_out, 2)
    assert known.usage.cost == pytest.approx((2.0 * n_in + 10.0 * n_out) / 1e6)
    statistics = layer.statistics(arrays, segment.documents, segment.entries)
    dead = layer.statistics(arrays, segment.documents, segment.entries, np.array([0], np.int32))
    facts = layer.facts(layer.collect([(1, statistics)]))
    assert facts == {"generator": "tiny", "tokens_in": n_in, "tokens_out": n_out, "cost": round((2.0 * n_in + 10.0 * n_out) / 1e6, 6)}
    left = layer.facts(layer.collect([(1, statistics), (-1, dead)]))
    assert left["tokens_in"] == arrays["tokens"][1, 0]


@pytest.mark.parametrize(
    "answer", ["I cannot help with that.", "{broken", '{"context": 3, "questions": "none", "summary": null}', "[]", "{}"], ids=str
)
def test_an_answer_that_is_not_what_was_asked_for_is_replaced_by_what_can_be_extracted(model, server, answer, caplog):
    caplog.set_level(logging.WARNING)
    server.answer = lambda body: answer
    layer = written(model, server)
    segment = pack(items_of(["# river\n\nstone and cloud again."]), layer)
    arrays = layer.build(segment.documents, segment.entries)
    assert texts_of(arrays) == [("context", "river: stone and cloud again.")]
    assert arrays["generators"].tolist() == [0]
    assert arrays["tokens"][0, 0] > 0  # it was paid for
    assert "event=extracted_instead sections=1 of=1" in caplog.text


def test_a_document_that_the_model_refuses_is_extracted_and_spoils_no_other(model, server):
    server.faults += [Fault("status", 400, message="content policy", when=lambda body: "cloud" in body["messages"][1]["content"])]
    layer = written(model, server)
    segment = pack(items_of(["# river\n\nstone and cloud again.", "bread"]), layer)
    arrays = layer.build(segment.documents, segment.entries)
    assert sorted(arrays["generators"].tolist()) == [0, 1, 1, 1, 1]


def test_texts_of_a_model_are_cut_made_plain_and_never_doubled(model, server):
    server.answer = lambda body: json.dumps(
        {"context": "a\n b\tc", "questions": ["a b c", "", 7, "x" * 900, "half \ud800 of one"], "summary": "s" * 5000}
    )
    layer = written(model, server, questions=9)
    segment = pack(items_of(["bread"]), layer)
    arrays = layer.build(segment.documents, segment.entries)
    assert [(kind, len(text)) for kind, text in texts_of(arrays)] == [
        ("context", 5),
        ("question", 300),
        ("question", 13),
        ("summary", 1000),
    ]
    assert texts_of(arrays)[2] == ("question", "half ? of one")


def test_the_key_and_the_url_are_no_part_of_a_space(model, server):
    layer = written(model, server)
    moved = create(
        SpaceSpec("views", "views", layer.params.model_dump()),
        Resources(endpoints={"default": EndpointSettings("http://else/v1", "other")}),
    )
    bare = create(SpaceSpec("views", "views", layer.params.model_dump()), Resources())
    ids = {space_id(SpaceSpec("v", "views"), one) for one in (layer, moved, bare)}
    assert len(ids) == 1
    assert layer.dear and not layer.maskable and bare.facts(layer.collect([]))["generator"] == "tiny"
    segment = pack(items_of(["bread"]), layer)
    with pytest.raises(EndpointError, match="Set SONDAGE_ENDPOINT_URL"):
        bare.build(segment.documents, segment.entries)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"endpoint": "default"}, "name both"),
        ({"model": "gpt"}, "name both"),
        ({"questions": 11}, "questions"),
        ({"vectors": "sparse"}, "vectors"),
        ({"kinds": "all"}, "kinds"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(params, problem):
    with pytest.raises(BadSpec, match=problem):
        create(SpaceSpec("views", "views", params), Resources())


def test_extracted_views_are_cheap_and_say_who_made_them(model):
    layer = create(SpaceSpec("views", "views", {"vector_model": model}), Resources())
    assert not layer.dear and layer.maskable and layer.kept is None
    assert layer.facts(layer.collect([])) == {"generator": "extractive"}
