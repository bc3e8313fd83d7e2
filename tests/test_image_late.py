"""The layer `image_late`: a tiny ColPali in its real format, loaded by the real code, its pages compared by late interaction."""

from dataclasses import replace

import numpy as np
import pytest
from engine import Engine, paths, write_files
from layer_contract import Item, LayerContract, pack, random_documents
from tiny_clip import DIM, drawing, pdf, png, save_clip, save_colpali

from shards.errors import BadQuery, ModelMissing
from shards.identity import content_hash
from shards.images import KIND, pixels
from shards.layers import SpaceSpec, create
from shards.layers.contract import Request, Resources
from shards.layers.image_late import ImageLate
from shards.page_encoder import PageEncoder, load
from shards.pages import draw_page, read_pages
from shards.types import Budget

FILES = {f"drawing {i}".encode(): png(i) for i in range(6)}  # rendition -> file
PDF = pdf(["The harbour.", "Ships at dawn.", "The old pier."])


class Held:
    """Media of documents, in memory."""

    def __init__(self, files):
        self.files = files

    def get(self, hashes):
        return {key.tobytes(): self.files[key.tobytes()] for key in hashes if key.tobytes() in self.files}


class Kept(dict):
    """Encodings in memory."""

    def get(self, hashes):
        return {key.tobytes(): self[key.tobytes()] for key in hashes if key.tobytes() in self}

    put = dict.update


class WithMedia(ImageLate):
    """The layer, over documents that come without a store: their media lie in memory. known: what builds share."""

    known = None
    held = Held({content_hash(text): data for text, data in (FILES | {read_pages(PDF).text: PDF}).items()})

    def build(self, documents, entries, scope=None, known=None, progress=None):
        return super().build(replace(documents, media=self.held), entries, scope, known or self.known, progress)


@pytest.fixture(scope="module")
def colpali(tmp_path_factory):
    return str(save_colpali(tmp_path_factory.mktemp("colpali")))


@pytest.fixture(scope="module")
def resources(tmp_path_factory):
    return Resources(models=tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def encoder(colpali, resources):
    return PageEncoder(colpali, resources)


class TestImageLateContract(LayerContract):
    @pytest.fixture(autouse=True)
    def _model(self, colpali, resources):
        self.made = lambda: WithMedia(ImageLate.Params(model=colpali), resources)

    known = Kept()  # that vectors depend on nothing but the image is tested below; here it would be encoded a thousand times

    def make_layer(self):
        layer = self.made()
        layer.known = self.known
        return layer

    def requests(self):
        return [Request("a red boat"), Request("", {"vectors": [np.linspace(-1, 1, DIM).tolist(), np.linspace(1, 0.5, DIM).tolist()]})]

    def documents(self, rng) -> list[Item]:
        photos = [(text, KIND, (f"photos/{i}.png",)) for i, text in enumerate(FILES)]
        return random_documents(rng, 12) + photos + [(read_pages(PDF).text, "pages:english", ("guide.pdf",))]


def test_scores_are_those_of_transformers(colpali, encoder, resources):
    import torch
    from transformers import ColPaliForRetrieval, ColPaliProcessor

    model, processor = ColPaliForRetrieval.from_pretrained(colpali).eval(), ColPaliProcessor.from_pretrained(colpali)
    with torch.inference_mode():
        pages = [model(**_without_labels(processor.process_images([drawing(i)], return_tensors="pt"))).embeddings[0] for i in range(6)]
        question = model(**processor.process_queries(["a red boat"], return_tensors="pt")).embeddings[0]
    expected = processor.score_retrieval([question], pages)[0].numpy()
    layer = WithMedia(ImageLate.Params(model=colpali), resources)
    segment = pack([(text, KIND, (f"{i}.png",)) for i, text in enumerate(FILES)], layer)
    arrays = layer.build(segment.documents, segment.entries)
    reader = layer.open(arrays, segment.documents, segment.entries, np.ones(len(FILES), bool))
    query = layer.prepare(Request("a red boat"), layer.collect([(1, layer.statistics(arrays, segment.documents, segment.entries))]))
    assert query.most == len(question)
    scores = reader.score(query, np.arange(len(FILES), dtype=np.int32), Budget()).scores
    row = {key[0]: i for i, key in enumerate(segment.keys)}
    np.testing.assert_allclose([scores[row[content_hash(text)]] for text in FILES], expected, atol=0.02)  # 16 bits a number


def _without_labels(inputs):
    return {name: value for name, value in inputs.items() if name != "labels"}


def test_an_image_has_the_same_vectors_whatever_is_encoded_beside_it(encoder):
    images = [lambda i=i: pixels(png(i)) for i in range(4)]
    together = [vectors.tobytes() for vectors in encoder.encode_documents(images)]
    alone = [encoder.encode_documents([image])[0].tobytes() for image in images[::-1]]
    assert together == alone[::-1]
    np.testing.assert_allclose(np.linalg.norm(encoder.encode_documents(images[:1])[0], axis=1), 1.0, atol=1e-6)


def test_pages_are_found_and_say_where_their_text_lies(tmp_path, colpali, encoder):
    engine = Engine(tmp_path, ("bm25", f"image_late:model={colpali}"))
    engine.resources = Resources(models=tmp_path / "models")
    source = write_files(tmp_path / "src", {"guide.pdf": PDF, "a.png": png(1), "b.txt": "Nothing to see."})
    outcome = engine.index(source, calibrate=False)
    assert (outcome.documents_added, outcome.encoded["image_late"]) == (3, 2)
    page = encoder.encode_documents([lambda: draw_page(PDF, 1)])[0]
    found = engine.search(forms={"image_late": {"vectors": page.astype(float).tolist()}})
    assert paths(found) == ["guide.pdf", "a.png"]
    hit = found.hits[0]
    assert read_pages(PDF).text[hit.start : hit.end] == b"Ships at dawn."
    assert hit.signals[0].score == pytest.approx(len(page), rel=1e-2)
    text = engine.search("boats", layers=["image_late"])
    assert len(text.hits) == 2 and {c.state for c in text.coverage} == {"ready"}
    assert engine.index(source, calibrate=False).changed is False


def test_a_corpus_of_images_alone_goes_without_a_table_of_surprise(tmp_path, colpali):
    engine = Engine(tmp_path, (f"image_late:model={colpali}",))
    engine.resources = Resources(models=tmp_path / "models")
    engine.index(write_files(tmp_path / "src", {f"{i}.png": png(i) for i in range(32)}))
    assert "image_late" not in engine.generation().nulls.spaces
    assert len(engine.search("boats", k=32, layers=["image_late"]).hits) == 32


def test_an_image_that_is_not_kept_or_cannot_be_drawn_is_not_covered(colpali, resources):
    held = {content_hash(text): data for text, data in list(FILES.items())[:3]}
    held[content_hash(b"drawing 1")] = png(1)[:70]
    del held[content_hash(b"drawing 2")]
    layer = WithMedia(ImageLate.Params(model=colpali), resources)
    layer.held = Held(held)
    segment = pack([(text, KIND, (f"{i}.png",)) for i, text in enumerate(list(FILES)[:3])] + [(b"words", "prose:english", ("a",))], layer)
    arrays = layer.build(segment.documents, segment.entries)
    covered = dict(zip((key for key, _ in segment.keys), arrays["in_scope"].tolist(), strict=True))
    assert [covered[content_hash(text)] for text in (b"drawing 0", b"drawing 1", b"drawing 2", b"words")] == [True, False, False, True]


def test_a_question_is_read_as_far_as_it_may_travel(encoder):
    long = "ab " * 400
    read = encoder.reads(long)
    assert long.startswith(read) and 150 < len(read) < 250
    assert encoder.reads("ab cd") == "ab cd"


def test_what_is_no_page_model_is_refused(tmp_path, resources):
    clip = save_clip(tmp_path)
    with pytest.raises(ModelMissing, match=r"holds CLIPModel of transformers; .* such as vidore/colpali"):
        load(clip, "cpu")
    with pytest.raises(ModelMissing, match=r"vidore/colpali-v1.3-hf.*Fetch it once"):
        create(SpaceSpec.parse("image_late"), resources).fingerprint()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelMissing, match="no page model that can be loaded"):
        load(tmp_path / "empty", "cpu")


def test_a_form_of_another_layer_is_refused(colpali, resources):
    layer = ImageLate(ImageLate.Params(model=colpali), resources)
    with pytest.raises(BadQuery, match="cannot use image"):
        layer.prepare(Request("", {"image": "x"}, True), layer.collect([]))
