"""The layer `image`, with a tiny CLIP in its real format, loaded by the real code, over drawn image files."""

import base64
import builtins
import json
from dataclasses import replace

import numpy as np
import pytest
from layer_contract import Item, LayerContract, pack, random_documents
from tiny_clip import DIM, drawing, file_of, png, save_clip

from shards.errors import BadQuery, BadSpec, ModelMissing, NotFound
from shards.identity import content_hash
from shards.image_encoder import MAX_RATIO, ImageEncoder, load
from shards.images import KIND, pixels
from shards.layers import REGISTRY, SpaceSpec, create
from shards.layers.contract import Request, Resources
from shards.layers.image import Image
from shards.types import Budget

FILES = {f"drawing {i}".encode(): png(i) for i in range(24)}  # rendition -> image file


class Held:
    """Media of documents, in memory."""

    def __init__(self, files: dict[bytes, bytes]):
        self.files = files

    def get(self, hashes):
        return {key.tobytes(): self.files[key.tobytes()] for key in hashes if key.tobytes() in self.files}


class ImageWithMedia(Image):
    """The layer, over documents that come without a store: their media lie in memory."""

    held = Held({content_hash(text): data for text, data in FILES.items()})

    def build(self, documents, *more, **named):
        return super().build(replace(documents, media=self.held), *more, **named)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return str(save_clip(tmp_path_factory.mktemp("clip")))


@pytest.fixture(scope="module")
def resources(tmp_path_factory):
    return Resources(models=tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def encoder(clip, resources):
    return ImageEncoder(clip, resources)


class TestImageContract(LayerContract):
    @pytest.fixture(autouse=True)
    def _model(self, clip, resources):
        self.layer = ImageWithMedia(Image.Params(model=clip), resources)

    def make_layer(self):
        return ImageWithMedia(self.layer.params, self.layer.resources)

    def requests(self):
        return [
            Request("a red circle"),
            Request("", {"image": base64.b64encode(png(100)).decode()}),
            Request("", {"vector": np.linspace(-1, 1, DIM).tolist()}),
        ]

    def documents(self, rng) -> list[Item]:
        texts = random_documents(rng, 30)
        return texts + [(text, KIND, (f"photos/{i}.png",)) for i, text in enumerate(FILES)]


# --- vectors -----------------------------------------------------------------------------------------------------------------


def images(numbers):
    return [lambda n=n: pixels(png(n)) for n in numbers]


def test_vectors_are_those_of_sentence_transformers(encoder, clip):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(clip, device="cpu", local_files_only=True)
    ours = np.stack(list(encoder.encode_images(images(range(5)))))
    expected = theirs.encode([drawing(n) for n in range(5)], normalize_embeddings=True)
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    texts = ["a red circle", "two blue squares"]
    expected = theirs.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose([encoder.encode_query(text) for text in texts], expected, atol=1e-5)


def test_an_image_has_the_same_vector_whatever_is_encoded_beside_it(encoder):
    together = [vector.tobytes() for vector in encoder.encode_images(images(range(12)))]
    backwards = [vector.tobytes() for vector in encoder.encode_images(images(range(11, -1, -1)))][::-1]
    alone = [next(encoder.encode_images(images([n]))).tobytes() for n in range(12)]
    assert together == backwards == alone


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (200, 3), (1, 9000), (9000, 1)])
def test_a_strip_or_a_dot_is_an_image_like_any_other(encoder, size):
    strip, middle = drawing(5, (max(size[0], 9), max(size[1], 9))).resize(size), min(size) * MAX_RATIO
    cut = strip.crop(tuple(max(side - middle, 0) // 2 for side in size) + tuple((side + min(side, middle)) // 2 for side in size))
    seen, same = encoder.encode_images([lambda: strip, lambda: cut])
    assert seen.tobytes() == same.tobytes()
    assert np.linalg.norm(seen) == pytest.approx(1.0, abs=1e-6)


def test_an_image_finds_itself_by_its_file_by_its_hash_and_by_a_copy_in_another_format(clip, resources):
    layer = ImageWithMedia(Image.Params(model=clip), resources)
    segment = pack([(text, KIND, (f"{i}.png",)) for i, text in enumerate(FILES)], layer)
    arrays = layer.build(segment.documents, segment.entries)
    reader = layer.open(arrays, segment.documents, segment.entries, np.ones(len(segment.keys), bool))
    statistics = layer.collect([(1, layer.statistics(arrays, segment.documents, segment.entries))])
    kept = layer.held.files
    wanted = content_hash(b"drawing 7")
    copy = file_of(drawing(7), "BMP")
    for form in (base64.b64encode(FILES[b"drawing 7"]).decode(), wanted.hex(), "data:image/bmp;base64," + base64.b64encode(copy).decode()):
        query = layer.prepare(Request("", {"image": form}, True, kept.get), statistics)
        assert query.asked == "an image of 48 x 40 pixels"
        found = reader.search(query, None, 3, Budget())
        assert segment.documents.hashes[found.rows[0]].tobytes() == wanted
        assert found.scores[0] == pytest.approx(1.0, abs=1e-6)
        assert found.scores[1] < 0.9999
        assert (found.starts[0], found.ends[0]) == (0, len(b"drawing 7"))


def test_fewer_dimensions_are_the_first_of_them_at_unit_length(encoder, clip, resources):
    whole = next(encoder.encode_images(images([3])))[:5]
    cut = ImageEncoder(clip, resources, dim=5)
    np.testing.assert_allclose(next(cut.encode_images(images([3]))), whole / np.linalg.norm(whole), atol=1e-6)
    assert cut.fingerprint() != encoder.fingerprint()
    with pytest.raises(BadSpec, match="16 dimensions; dim is 17"):
        _ = ImageEncoder(clip, resources, dim=17).dim


def test_a_question_is_read_as_far_as_the_model_reads(clip, resources):
    layer = Image(Image.Params(model=clip), resources)
    text, _ = layer.asked("abc " * 20)
    assert text == "abc abc abc abc abc abc abc a […: the model reads no further]"  # 22 letters, and the tokens that begin and end


# --- building ----------------------------------------------------------------------------------------------------------------


class Kept:
    """Encodings in memory."""

    def __init__(self):
        self.values, self.asked = {}, 0

    def get(self, hashes):
        self.asked += 1
        return {key.tobytes(): self.values[key.tobytes()] for key in hashes if key.tobytes() in self.values}

    def put(self, encodings):
        self.values |= encodings


def test_what_is_known_is_not_encoded_again(clip, resources, monkeypatch):
    layer = ImageWithMedia(Image.Params(model=clip), resources)
    segment = pack([(text, KIND, (f"{i}.png",)) for i, text in enumerate(FILES)], layer)
    known = Kept()
    first = layer.build(segment.documents, segment.entries, None, known)
    assert len(known.values) == len(FILES)
    monkeypatch.setattr(ImageEncoder, "encode_images", lambda *_: pytest.fail("nothing is new"))
    again = layer.build(segment.documents, segment.entries, None, known)
    assert {name: array.tobytes() for name, array in first.items()} == {name: array.tobytes() for name, array in again.items()}


def test_an_image_that_is_not_kept_or_cannot_be_decoded_is_not_covered(clip, resources):
    files = dict(list(FILES.items())[:4])
    held = {content_hash(text): data for text, data in files.items()}
    gone, damaged = content_hash(b"drawing 1"), content_hash(b"drawing 2")
    del held[gone]
    held[damaged] = held[damaged][:60]
    layer = ImageWithMedia(Image.Params(model=clip), resources)
    layer.held = Held(held)
    segment = pack([(text, KIND, (f"{i}.png",)) for i, text in enumerate(files)], layer)
    arrays = layer.build(segment.documents, segment.entries)
    reader = layer.open(arrays, segment.documents, segment.entries, np.ones(4, bool))
    query = layer.prepare(Request("red"), layer.collect([(1, layer.statistics(arrays, segment.documents, segment.entries))]))
    found = reader.search(query, None, 10, Budget())
    assert (reader.n_units, found.rows_covered, found.rows_total) == (2, 2, 4)
    assert {segment.documents.hashes[row].tobytes() for row in found.rows} == set(held) - {damaged}


def test_progress_counts_images_and_can_stop_the_work(clip, resources):
    layer = ImageWithMedia(Image.Params(model=clip), resources)
    segment = pack([(text, KIND, (f"{i}.png",)) for i, text in enumerate(FILES)], layer)
    told = []
    layer.build(segment.documents, segment.entries, progress=lambda *step: told.append(step))
    assert told == [("encode", n + 1, len(FILES)) for n in range(len(FILES))]

    class Stopped(Exception):
        pass

    def stop(_step, done, _total):
        if done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        layer.build(segment.documents, segment.entries, progress=stop)


# --- what is wrong is said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "what"),
    [
        ({"image": 7}, "no text at all"),
        ({"image": "no base64!"}, "neither base64 of a file nor a content hash"),
        ({"image": base64.b64encode(b"a text").decode()}, "no image of a known format"),
        ({"image": base64.b64encode(png(1)[:80]).decode()}, "cannot be decoded"),
        ({"image": base64.b64encode(png(1)).decode(), "vector": [1.0]}, "an image alone, without vector"),
        ({"pattern": "x"}, "cannot use pattern. It takes text, or"),
        ({"vector": [1.0] * 3}, "this space has 16 dimensions"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(clip, resources, form, what):
    layer = Image(Image.Params(model=clip), resources)
    with pytest.raises(BadQuery, match=what):
        layer.prepare(Request("", form, True), layer.collect([]))


def test_a_hash_of_no_image_is_not_found(clip, resources):
    layer = Image(Image.Params(model=clip), resources)
    with pytest.raises(NotFound, match=f"keeps no image of the document {'ab' * 20}"):
        layer.prepare(Request("", {"image": "ab" * 20}, True, lambda key: None), layer.collect([]))


def test_without_pillow_the_remedy_is_named(clip, resources, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "PIL":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModelMissing, match=r"pip install 'sondage\[image\]'"):
        create(SpaceSpec.parse(f"image:model={clip}"), resources).fingerprint()


def test_a_model_that_is_not_here_is_named_with_the_remedy(resources):
    layer = create(SpaceSpec.parse("image"), resources)
    with pytest.raises(ModelMissing, match=r"clip-ViT-B-32.*Fetch it once"):
        layer.fingerprint()


def test_a_model_of_texts_alone_is_refused(tmp_path):
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import BoW

    torch.manual_seed(0)
    SentenceTransformer(modules=[BoW(["red", "blue"])], device="cpu").save(str(tmp_path / "bow"))
    with pytest.raises(ModelMissing, match="no sentence-transformers model of images and texts"):
        load(tmp_path / "bow", "cpu")


def test_a_folder_without_a_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(ModelMissing, match="holds no sentence-transformers model"):
        load(tmp_path, "cpu")


def test_the_layer_is_registered_and_dear_and_looks_at_images():
    assert REGISTRY["image"] == "shards.layers.image:Image"
    assert Image.dear
