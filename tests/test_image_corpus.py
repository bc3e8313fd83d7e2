"""Images in a corpus, end to end: read when a space looks at them, kept by content, searched, pushed, merged, erased, copied."""

import base64
import math
import os
from pathlib import Path

import numpy as np
import pytest
from engine import Engine, age, paths, write_files
from PIL import PngImagePlugin
from test_collect import NOW, collect
from test_repair import tools
from tiny_clip import drawing, file_of, png, save_clip

from jobs import cli
from shards import images
from shards.backup import export
from shards.collect import Policy
from shards.encodings import PackedEncodings
from shards.erase import erase, prove, targets
from shards.identity import content_hash
from shards.image_encoder import ImageEncoder
from shards.images import identity
from shards.layers.contract import Resources
from shards.manifest import corpus_store
from shards.media import FOLDER, KeptMedia
from shards.repair import repair
from shards.store import open_store
from shards.verify import verify

TEXTS = {f"notes/{i}.md": f"Note {i}: the {word} lies in the third drawer of the cabinet.\n" for i, word in enumerate("abcdefgh")}


def photo(i: int) -> bytes:
    """A drawing; every third has words of its own."""
    if i % 3:
        return png(i)
    said = PngImagePlugin.PngInfo()
    said.add_text("Description", f"harbour number{i} seen from the old wooden pier")
    return file_of(drawing(i), pnginfo=said)


N = 32  # a null model wants 30
PHOTOS = {f"photos/{i}.png": photo(i) for i in range(N)}


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> str:
    return f"image:model={save_clip(tmp_path_factory.mktemp('clip'))}"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Resources:
    return Resources(models=tmp_path_factory.mktemp("models"))


class Images(Engine):
    """An engine whose models folder is its own."""

    def __init__(self, folder: Path, models: Resources, layers):
        super().__init__(folder, layers)
        self.resources = models


def built(folder: Path, models: Resources, clip: str, **options) -> tuple[Images, Path]:
    engine = Images(folder, models, ("names", "bm25", clip))
    source = write_files(folder / "src", TEXTS | PHOTOS)
    age(source)
    engine.index(source, **options)
    return engine, source


def as_form(data: bytes) -> dict:
    return {"image": {"image": base64.b64encode(data).decode()}}


def signals(answer) -> list:
    return [(h.hash, h.fused, h.evalue, [(s.layer, s.score, s.surprise, s.evalue) for s in h.signals]) for h in answer.hits]


def test_images_are_skipped_until_a_space_looks_at_them_and_then_they_alone_are_read(tmp_path, models, clip):
    engine = Images(tmp_path, models, ("names", "bm25"))
    source = write_files(tmp_path / "src", TEXTS | PHOTOS | {"photos/cut.png": png(7)[:80], "tool": b"\0\1\2"})
    age(source)
    first = engine.index(source)
    assert (first.documents_added, first.skipped) == (len(TEXTS), {"binary": len(PHOTOS) + 2})
    assert corpus_store(engine.store, "c").folders("encodings") == [], "files of other kinds cost nothing"
    second = engine.index(source, layers=("names", "bm25", clip))
    assert (second.hashed, second.documents_added) == (len(PHOTOS) + 1, len(PHOTOS))
    assert second.skipped == {"image that cannot be decoded": 1}
    assert second.encoded["image"] == len(PHOTOS)
    assert paths(engine.search("harbour number3", layers=["bm25"]))[0] == "photos/3.png", "its own words are text like any other"
    third = engine.index(source, layers=())
    assert (third.hashed, third.changed) == (0, False)
    assert paths(engine.search(forms=as_form(photo(5)), k=1)) == ["photos/5.png"]


def test_images_are_found_by_text_by_image_and_by_the_hash_of_a_hit_and_filtered_by_what_they_are(tmp_path, models, clip):
    engine, _ = built(tmp_path, models, clip)
    key = identity(photo(8)).hex()
    by_file, by_hash, by_text, wide = engine.search_many(
        [
            {"forms": as_form(photo(8)), "k": 5},
            {"forms": {"image": {"image": key}}, "k": 5},
            {"query": "a red boat", "layers": ["image"], "k": 50},
            {"query": "a red boat", "layers": ["image"], "where": {"image.width": {">": 100}}},
        ]
    )
    assert paths(by_file)[0] == paths(by_hash)[0] == "photos/8.png"
    assert signals(by_file) == signals(by_hash)
    assert {layer.name: layer.asked for layer in by_file.layers}["image"] == "an image of 48 x 40 pixels"
    assert len(by_text.hits) == len(PHOTOS), "texts are not in the space"
    assert {layer.name: layer.n_units for layer in by_text.layers}["image"] == len(PHOTOS)
    assert {c.state for c in by_text.coverage} == {"ready"}
    assert by_text.hits[0].entries[0].metadata["image"] == {"format": "png", "width": 48, "height": 40}
    assert wide.hits == []


def test_the_command_asks_by_a_file_or_a_hash_and_gives_the_file_back(tmp_path, models, clip, capfdbinary, monkeypatch):
    _, source = built(tmp_path, models, clip, calibrate=False)
    monkeypatch.setattr(images, "QUESTION_BYTES", 100)  # what is larger is reduced
    monkeypatch.setenv("SONDAGE_CACHE", str(tmp_path / "cache"))
    store = ["--store", str(tmp_path / "store")]
    key = identity(photo(5)).hex()
    for image in (str(source / "photos/5.png"), key):
        assert cli.main(["search", "--image", image, "-k", "1", "--json", *store]) == 0
        assert b'"photos/5.png"' in capfdbinary.readouterr().out
    assert cli.main(["document", key, "--media", *store]) == 0
    assert capfdbinary.readouterr().out == photo(5)
    assert cli.main(["search", "--image", str(source / "notes/0.md"), *store]) == 2
    assert b"no image of a known format" in capfdbinary.readouterr().err


def test_a_picture_moved_or_copied_is_encoded_once_and_a_merge_encodes_nothing(tmp_path, models, clip):
    engine, source = built(tmp_path, models, clip, calibrate=False)
    (source / "photos/1.png").rename(source / "moved.png")
    (source / "copy.jpg").write_bytes(photo(2))
    age(source)
    moved = engine.index(source, calibrate=False)
    assert not moved.encoded.get("image")
    n, merged = 0, 0
    while not merged and n < 8:  # as many segments as make a merge due
        (source / f"new{n}.png").write_bytes(png(100 + n))
        age(source)
        last = engine.index(source, calibrate=False)
        assert (last.hashed, last.encoded["image"]) == (1, 1)
        n, merged = n + 1, last.merged
    assert merged
    found = engine.search_many([{"forms": as_form(png(100 + i)), "k": 1} for i in range(n)] + [{"forms": as_form(photo(1)), "k": 1}])
    assert [paths(answer) for answer in found] == [*[[f"new{i}.png"] for i in range(n)], ["moved.png"]]


def test_another_space_of_images_is_built_from_what_is_kept_without_the_source(tmp_path, models, clip):
    engine, source = built(tmp_path, models, clip, calibrate=False)
    short = clip.replace("image:", "short=image:") + ",dim=5"
    outcome = engine.index(source, calibrate=False, layers=(short,))
    assert (outcome.hashed, outcome.encoded["short"], outcome.encoded.get("image", 0)) == (0, len(PHOTOS), 0)
    query = base64.b64encode(photo(4)).decode()
    assert paths(engine.search(forms={"short": {"image": query}}, k=1)) == ["photos/4.png"]


def test_scores_and_evalues_do_not_depend_on_the_number_of_shards(tmp_path, models, clip):
    asked = [
        {"query": "a red boat", "layers": ["image"], "k": 60},
        {"forms": as_form(png(900)), "k": 60},
        {"query": "third drawer", "k": 60},
    ]
    answers = []
    for n in (1, 4):
        engine, source = built(tmp_path / str(n), models, clip, n_shards=n)
        answers.append([signals(answer) for answer in engine.search_many(asked)])
        if n == 4:
            engine.index(source, n_shards=16)
            answers.append([signals(answer) for answer in engine.search_many(asked)])
    assert [len(answer) > 3 for answer in answers[0]] == [True] * 3
    for other in answers[1:]:
        for one, same in zip(answers[0], other, strict=True):
            assert [hit[0] for hit in one] == [hit[0] for hit in same]
            for left, right in zip(one, same, strict=True):
                assert [signal[:2] for signal in left[3]] == [signal[:2] for signal in right[3]], "raw scores, to the bit"
                np.testing.assert_allclose(left[1:3], right[1:3], rtol=1e-9)


# --- null models -------------------------------------------------------------------------------------------------------------


def test_sentences_of_the_corpus_are_the_probes_of_a_space_of_images_and_no_measure_of_it(tmp_path, models, clip):
    engine, _ = built(tmp_path, models, clip)
    nulls = engine.generation().nulls
    space = nulls.spaces["image"]
    assert (space.n_units, space.n_docs, len(space.home_maxima)) == (len(PHOTOS), len(PHOTOS), 0)
    assert space.n_probes == len(TEXTS) + len([i for i in range(N) if i % 3 == 0])
    assert not math.isnan(space.known_item), "images that bring a sentence along are known items"
    assert "image" in nulls.fused.spaces, "senseless queries were put to it, so that fused E-values hold"
    assert "image" not in nulls.weights and "image" not in nulls.cloze


def test_a_sentence_that_all_images_bring_along_does_not_tell_how_good_their_space_is(tmp_path, models, clip):
    said = PngImagePlugin.PngInfo()
    said.add_text("Description", "All rights in this picture are reserved by the agency")
    engine = Images(tmp_path, models, (clip, "bm25"))
    photos = {f"{i}.png": file_of(drawing(i), pnginfo=said) for i in range(N)}
    engine.index(write_files(tmp_path / "src", TEXTS | photos))
    space = engine.generation().nulls.spaces["image"]
    assert (space.n_probes, space.gate) == (len(TEXTS) + 1, 1.0) and math.isnan(space.known_item)


def test_a_corpus_of_images_without_words_is_probed_with_its_own_images(tmp_path, models, clip):
    engine = Images(tmp_path, models, (clip,))
    engine.index(write_files(tmp_path / "src", {f"{i}.png": png(i) for i in range(N)}))
    nulls = engine.generation().nulls
    space = nulls.spaces["image"]
    assert (space.n_units, space.n_probes, space.gate) == (N, N, 1.0)
    assert math.isnan(space.known_item), "that an image finds itself says nothing"
    one, text = engine.search_many([{"forms": as_form(png(11)), "k": 3}, {"query": "red", "k": 3}])
    assert paths(one)[0] == "11.png" and len(text.hits) == 3
    assert one.hits[0].signals[0].surprise > one.hits[1].signals[0].surprise > 0


# --- keeping -----------------------------------------------------------------------------------------------------------------


def kept(engine: Engine) -> set[bytes]:
    inside = corpus_store(engine.store, "c")
    hashes = np.frombuffer(b"".join(sorted(identity(photo(i)) for i in range(N))), np.uint8).reshape(-1, 20)
    return set(KeptMedia(inside).get(hashes))


def test_images_go_with_the_last_generation_that_has_them(tmp_path, models, clip):
    engine, source = built(tmp_path, models, clip, calibrate=False)
    for i in range(24):
        (source / f"photos/{i}.png").unlink()
    engine.index(source, calibrate=False, allow_shrink=True)
    collect(engine.store, "c", Policy(keep=2), NOW)
    assert len(kept(engine)) == N, "the older generation still shows them"
    collect(engine.store, "c", Policy(keep=1), NOW)
    assert kept(engine) == {identity(photo(i)) for i in range(24, N)}


def test_an_erased_image_is_in_no_file_any_more(tmp_path, models, clip):
    engine, _ = built(tmp_path, models, clip)
    key, pixels = identity(photo(3)), photo(3)
    doomed = targets(engine.store, "c", ["photos/3.png"])
    assert [target.media for target in doomed] == [pixels]
    done = erase(engine.store, "c", doomed, tools(engine))
    assert done.complete and done.documents == [key.hex()]
    inside = corpus_store(engine.store, "c")
    for name in inside.list():
        data = inside.read(name)
        assert name.startswith("erased/") or (pixels not in data and key not in data and key.hex().encode() not in data), name
    assert kept(engine) == {identity(photo(i)) for i in range(N) if i != 3}
    inside.write("encodings/0123456789abcdef/stray.bin", b"..." + pixels)
    prove(inside, doomed, done, lambda *_: None)
    left = [f"the {what} of {key.hex()}" for what in ("image or file", "whole text")]
    assert [trace.what for trace in done.traces] == left and not done.complete


def test_a_copy_of_a_corpus_has_its_images_and_nothing_is_found_wrong(tmp_path, models, clip):
    engine, _ = built(tmp_path, models, clip, calibrate=False)
    assert verify(engine.store, "c", engine.cache, engine.resources, deep=True).damages == []
    other = Images(tmp_path / "other", models, ())
    export(engine.store, other.store, "c", [1], lambda: NOW)
    assert len(kept(other)) == N
    assert paths(other.search(forms={"image": {"image": identity(photo(9)).hex()}}, k=1)) == ["photos/9.png"]


def test_a_damaged_file_of_the_space_is_made_again_from_what_is_kept(tmp_path, models, clip, monkeypatch):
    engine, _ = built(tmp_path, models, clip, calibrate=False)
    inside = corpus_store(engine.store, "c")
    space = engine.generation().spaces["image"].id
    (name,) = [name for name in inside.list("segments/") if name.endswith(f"layer.{space}")]
    whole = inside.read(name)
    inside.write(name, whole[:100] + bytes(50) + whole[150:])
    for pack in inside.list(f"encodings/{space}/"):
        inside.delete(pack)
    found = verify(engine.store, "c", engine.cache, engine.resources)
    assert [damage.name for damage in found.damages] == [name]
    repair(engine.store, "c", found, tools(engine))
    assert inside.read(name) == whole, "encoded again, to the bit"


def test_a_kept_image_that_was_lost_comes_back_when_its_file_is_read_again(tmp_path, models, clip):
    engine, source = built(tmp_path, models, clip, calibrate=False)
    inside = corpus_store(engine.store, "c")
    for pack in inside.list(f"{FOLDER}/"):
        inside.delete(pack)
    assert kept(engine) == set()
    for i in range(3):
        os.utime(source / f"photos/{i}.png", (2, 2))
    assert not engine.index(source, calibrate=False).encoded.get("image")
    assert kept(engine) == {identity(photo(i)) for i in range(3)}


def test_a_text_that_is_damaged_is_read_again_from_the_images_that_bring_it(tmp_path, models, clip):
    engine, _ = built(tmp_path, models, clip, calibrate=False)
    inside = corpus_store(engine.store, "c")
    (name,) = [name for name in inside.list("segments/") if name.endswith("/text")]
    whole = inside.read(name)
    at = whole.index(b"harbour number")
    inside.write(name, whole[:at] + b"?" * 7 + whole[at + 7 :])
    repair(engine.store, "c", verify(engine.store, "c", engine.cache, engine.resources), tools(engine))
    assert inside.read(name) == whole


def test_packs_of_images_are_joined(tmp_path):
    store = open_store(str(tmp_path / "store"))
    for i in range(70):
        KeptMedia(store).put({content_hash(bytes([i])): bytes([i]) * (i + 1)})
    assert PackedEncodings(store, FOLDER).compact() <= 64
    assert KeptMedia(store).one(content_hash(bytes([69]))) == bytes([69]) * 70


def test_images_of_one_file_are_encoded_in_portions(tmp_path, models, clip, monkeypatch):
    """A run that is cut off has encoded what it has: encodings are kept after each portion."""
    from shards.layers.image import Image

    monkeypatch.setattr(Image, "portion_images", 8)
    engine = Images(tmp_path, models, (clip,))
    source = write_files(tmp_path / "src", PHOTOS)
    real, n = ImageEncoder.encode_images, 0

    def cut(self, images):
        nonlocal n
        n += 1
        if n == 4:
            raise KeyboardInterrupt
        return real(self, images)

    monkeypatch.setattr(ImageEncoder, "encode_images", cut)
    with pytest.raises(KeyboardInterrupt):
        engine.index(source, calibrate=False)
    monkeypatch.setattr(ImageEncoder, "encode_images", real)
    again = engine.index(source, calibrate=False)
    assert (again.encoded["image"], again.reused["image"]) == (8, 24)
