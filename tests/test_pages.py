"""PDF files as documents of pages: read, drawn, searched by what their pages show, where a space looks at them."""

import base64
import builtins

import numpy as np
import pytest
from engine import Engine, age, paths, write_files
from tiny_clip import file_of, pdf, png, save_clip

from shards import pages
from shards.documents import Documents
from shards.errors import ModelMissing
from shards.identity import content_hash
from shards.layers import SpaceSpec, create
from shards.layers.contract import Resources
from shards.pages import draw_page, is_pages, page_spans, read_pages
from shards.renditions import Skipped

WORDS = ["The harbour lies in the north.", "Ships come at dawn.", "The pier is old."]


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> str:
    return f"image:model={save_clip(tmp_path_factory.mktemp('clip'))},pages=true"


def test_a_pdf_is_the_text_of_its_pages_and_what_it_says_of_itself():
    data = pdf(WORDS, title="Harbours")
    found = read_pages(data)
    assert found.text == b"\n\f".join(words.encode() for words in WORDS)
    assert (found.kind, found.facts, found.media) == ("pages:english", {"pdf": {"pages": 3, "title": "Harbours"}}, data)
    assert found.hash == content_hash(b"pages\x001\x00" + content_hash(data))
    assert [found.text[a:b].decode() for a, b in page_spans(found.text)] == WORDS
    assert page_spans(b"") == [(0, 0)] and page_spans(b"a\n\f\n\fb") == [(0, 1), (3, 3), (5, 6)]


def test_a_page_is_drawn_the_same_every_time_at_one_size():
    data = pdf(WORDS)
    drawn = [draw_page(data, number) for number in range(3)]
    assert {image.size for image in drawn} == {(732, 1024)} and {image.mode for image in drawn} == {"RGB"}
    assert len({image.tobytes() for image in drawn}) == 3
    assert draw_page(data, 1).tobytes() == drawn[1].tobytes()
    with pytest.raises(ValueError, match="cannot be drawn"):
        draw_page(data, 3)


def test_what_is_no_pdf_is_none_and_what_cannot_be_opened_is_skipped():
    assert read_pages(b"A text about %PDF-1.4") is None
    assert read_pages(b"%PDF-1.4 and nothing else") == Skipped("PDF that cannot be opened")
    assert read_pages(pdf(WORDS)[:300]) == Skipped("PDF that cannot be opened")


def test_of_a_very_long_file_the_first_pages_are_read(monkeypatch):
    monkeypatch.setattr(pages, "MAX_PAGES", 2)
    found = read_pages(pdf(WORDS))
    assert len(page_spans(found.text)) == 2 and found.facts["pdf"]["pages"] == 3


def test_documents_of_pages_are_told_by_their_kind():
    documents = Documents.pack([(bytes([i]) * 20, b"", kind) for i, kind in enumerate(["pages", "prose:english", "pages:german", "image"])])
    assert is_pages(documents).tolist() == [True, False, True, False]
    assert is_pages(Documents.pack([])).tolist() == []


def test_without_pypdfium2_the_remedy_is_named(clip, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "pypdfium2":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    resources = Resources(models=tmp_path)
    with pytest.raises(ModelMissing, match=r"pip install 'sondage\[image\]'"):
        create(SpaceSpec.parse(clip), resources).fingerprint()
    assert create(SpaceSpec.parse(clip.removesuffix(",pages=true")), resources).fingerprint(), "needed for pages alone"


def test_pages_are_found_by_what_they_show_and_say_where_they_lie(tmp_path, clip):
    engine = Engine(tmp_path, ("bm25", clip.removesuffix(",pages=true")))
    engine.resources = Resources(models=tmp_path / "models")
    files = {"guide.pdf": pdf(WORDS), "other.pdf": pdf(["Lorem", "ipsum"]), "a.png": png(1), "b.txt": "Ships."}
    source = write_files(tmp_path / "src", files)
    age(source)
    first = engine.index(source, calibrate=False)
    assert (first.documents_added, first.skipped) == (4, {}), "their text is indexed whether a space looks at pages or not"
    outcome = engine.index(source, calibrate=False, layers=(clip,))
    assert (outcome.hashed, outcome.documents_added, outcome.encoded["image"]) == (2, 0, 3), "dials make another space"
    third = base64.b64encode(file_of(draw_page(pdf(WORDS), 2))).decode()
    by_page, by_words = engine.search_many([{"forms": {"image": {"image": third}}, "k": 9}, {"query": "ships at dawn", "layers": ["bm25"]}])
    assert paths(by_page)[0] == "guide.pdf" and len(by_page.hits) == 3
    hit = by_page.hits[0]
    assert hit.signals[0].score == pytest.approx(1.0, abs=1e-6)
    text = read_pages(pdf(WORDS)).text
    assert text[hit.start : hit.end].decode() == "The pier is old." and "The pier is old." in hit.excerpt.text
    assert hit.entries[0].metadata == {"pdf": {"pages": 3}}
    assert {layer.name: layer.n_units for layer in by_page.layers}["image"] == 6
    assert set(paths(by_words)) == {"guide.pdf", "b.txt"}, "the text of pages is text like any other"


def test_a_page_has_the_same_vector_whatever_it_is_encoded_with(tmp_path, clip):
    layer = create(SpaceSpec.parse(clip), Resources(models=tmp_path))
    data = pdf(WORDS)
    drawn = [lambda n=n: draw_page(data, n) for n in range(3)]
    together = np.stack(list(layer.encoder.encode_images(drawn)))
    alone = np.concatenate([np.stack(list(layer.encoder.encode_images([one]))) for one in drawn])
    assert together.tobytes() == alone.tobytes()
