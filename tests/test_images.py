"""Image files as documents: what is told by one, what is kept of it, and what is refused."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin
from tiny_clip import drawing, file_of, png

from shards import images
from shards.attached import attach
from shards.corpus import Listed
from shards.documents import Documents
from shards.identity import content_hash
from shards.images import ImageDocument, identity, images_taken, may_be_seen, media_type, pixels, read_image
from shards.layers import SpaceSpec, create
from shards.layers.contract import Resources
from shards.listing import Listing
from shards.media import KeptMedia, read_media
from shards.reading import Reading
from shards.renditions import Skipped
from shards.segment import dump_pack, read_given, read_pack
from shards.store import open_store


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
def test_every_format_is_known_by_its_first_bytes_and_read(kind):
    data = file_of(drawing(1), kind)
    found = read_image(data)
    assert media_type(data) == f"image/{kind.lower()}"
    assert found == ImageDocument(b"", identity(data), {"image": {"format": kind.lower(), "width": 48, "height": 40}}, data)
    assert pixels(data).size == (48, 40) and pixels(data).mode == "RGB"


@pytest.mark.parametrize("data", [b"", b"plain text", b"BM is how this text begins, and it goes on", b"%PDF-1.7", b"<svg/>", bytes(40)])
def test_what_is_no_image_is_none_whatever_its_name(data):
    assert read_image(data) is None
    with pytest.raises(ValueError, match="no image of a known format"):
        pixels(data)


def test_the_hash_covers_the_bytes_and_how_they_are_read(monkeypatch):
    one, other = png(1), png(2)
    assert identity(one) == content_hash(b"image\x001\x00" + content_hash(one)) != identity(other)
    before = identity(one)
    monkeypatch.setattr(images, "VERSION", 2)
    assert identity(one) != before


def test_the_words_of_an_image_are_its_title_description_comment_and_keywords():
    chunks = PngImagePlugin.PngInfo()
    chunks.add_text("Title", "The harbour")
    chunks.add_itxt("Description", "Ships\nat dawn, Übersee")
    chunks.add_text("Software", "not about the picture")
    assert read_image(file_of(drawing(1), pnginfo=chunks)).text.decode() == "The harbour\nShips\nat dawn, Übersee"
    exif = Image.Exif()
    exif[0x010E] = "A red boat"
    exif[0x9C9B] = "Boats".encode("utf-16-le") + b"\0\0"
    exif[0x9C9E] = "sea;harbour".encode("utf-16-le") + b"\0\0"
    exif.get_ifd(0x8769)[0x9286] = b"ASCII\0\0\0seen from the pier"
    exif.get_ifd(0x8769)[0x9003] = "2024:05:01 10:20:30"
    found = read_image(file_of(drawing(1), "JPEG", exif=exif, comment=b"A red boat"))
    assert found.text.decode() == "A red boat\nBoats\nsea;harbour\nseen from the pier"
    assert found.facts["image"]["taken"] == "2024-05-01T10:20:30"


def test_an_image_is_seen_as_its_camera_was_held():
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right to look at it
    data = file_of(drawing(1), "PNG", exif=exif)
    assert read_image(data).facts["image"] == {"format": "png", "width": 40, "height": 48}
    np.testing.assert_array_equal(np.asarray(pixels(data)), np.rot90(np.asarray(drawing(1)), -1))


def test_what_is_transparent_lies_on_white_and_sixteen_bits_become_eight():
    clear = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    clear.putpixel((1, 0), (0, 0, 0, 0))
    assert [pixels(file_of(clear)).getpixel((x, 0)) for x in (0, 1)] == [(255, 0, 0), (255, 255, 255)]
    deep = Image.fromarray(np.array([[0, 0x8000, 0xFFFF]], np.uint16))
    assert [pixels(file_of(deep)).getpixel((x, 0)) for x in range(3)] == [(0, 0, 0), (128, 128, 128), (255, 255, 255)]


def test_the_first_of_several_frames_counts():
    frames = [drawing(i).quantize() for i in (1, 2)]
    data = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    alone = file_of(frames[0], "GIF")
    np.testing.assert_array_equal(np.asarray(pixels(data)), np.asarray(pixels(alone)))


def bomb(side: int) -> bytes:
    """A PNG of some hundred bytes that says it has side x side pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [9_460, 20_000, 60_000])  # just above the limit; where Pillow warns; where it refuses
def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(side):
    assert read_image(bomb(side)) == Skipped("image of more than 89,478,485 pixels")
    with pytest.raises(ValueError, match="pixels"):
        pixels(bomb(side))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
def test_a_damaged_image_is_skipped_with_the_reason_and_never_an_accident(kind):
    data = file_of(drawing(3), kind)
    rng = np.random.default_rng(0)
    cut = read_image(data[: len(data) // 2])
    assert cut is None or cut == Skipped("image that cannot be decoded") or kind == "BMP"
    for _ in range(60):  # some flips are not noticed: then it is another image
        flipped = np.frombuffer(data, np.uint8).copy()
        flipped[rng.integers(8, len(data), 4)] = rng.integers(256, size=4)
        found = read_image(flipped.tobytes())
        assert found is None or isinstance(found, Skipped | ImageDocument)
        if isinstance(found, Skipped):
            assert found.reason.startswith("image ")


def test_of_a_large_file_a_reduced_jpeg_is_kept_the_same_every_time(monkeypatch):
    monkeypatch.setattr(images, "KEPT_BYTES", 20_000)
    monkeypatch.setattr(images, "KEPT_SIDE", 100)
    noise = Image.fromarray(np.random.default_rng(0).integers(256, size=(200, 400, 3), dtype=np.uint8))
    for kind in ("PNG", "JPEG"):
        data = file_of(noise, kind)
        found = read_image(data)
        assert len(data) > 20_000 and found.hash == identity(data)
        assert found.facts["image"] == {"format": kind.lower(), "width": 400, "height": 200}
        kept = opened(found.media)
        assert (kept.format, kept.size) == ("JPEG", (100, 50))
        assert read_image(data).media == found.media
    small = png(1)
    assert read_image(small).media == small


# --- which files -------------------------------------------------------------------------------------------------------------


def taken(*specs: str):
    made = [SpaceSpec.parse(text) for text in specs]
    return images_taken((create(spec, Resources()), spec.scope) for spec in made)


def test_files_named_like_images_are_read_where_a_space_looks_at_them():
    assert taken("names", "bm25") is None
    everywhere = taken("bm25", "image")
    assert everywhere("a/b.PNG") and everywhere("c.jpeg") and not everywhere("c.svg") and not everywhere("png")
    some = taken("image@photos/**", "other=image@scans/*.tif", "text")
    assert some("photos/a/b.jpg") and some("scans/1.tif") and not some("scans/1.jpg") and not some("a.png")
    assert taken("image@photos/**", "all=image")("a.png")
    assert may_be_seen("X.JFIF") and may_be_seen("x.PDF") and not may_be_seen("x.svg")


def test_only_images_change_their_marks_when_they_begin_to_be_read():
    files = (Listed("a.png", 5, 1, "e1"), Listed("b.txt", 5, 1, "e2"), Listed("c.png", 5, 1, ""))
    plain = attach(Listing(files, {})).listing.files
    assert plain == files
    found = attach(Listing(files, {}), is_image=may_be_seen)
    marked = {file.path: file.etag for file in found.listing.files}
    assert found.images == {"a.png", "c.png"} and marked["b.txt"] == "e2"
    assert marked["a.png"].startswith("e1\t") and marked["c.png"].startswith("\t")


# --- on the way --------------------------------------------------------------------------------------------------------------


def test_reading_takes_images_texts_and_what_is_neither():
    reading = Reading({})
    reading.image("a.png", png(1), b'{"image": {"width": 7}, "by": "Ada"}')
    reading.image("b.png", png(1))
    reading.image("text.png", b"This is no image at all.")
    reading.image("cut.png", png(2)[:100])
    reading.file("plain", png(3))
    assert reading.skipped == {"cut.png": "image that cannot be decoded", "plain": "binary"}
    assert reading.hashes["a.png"] == reading.hashes["b.png"] == identity(png(1))
    assert reading.metadata["a.png"] == {"image": {"width": 7}, "by": "Ada"}, "what a sidecar says wins"
    assert reading.metadata["b.png"] == {"image": {"format": "png", "width": 48, "height": 40}}
    documents, _, media = reading.pack()
    assert media == {identity(png(1)): png(1)}
    assert {documents.kind_names[kind] for kind in documents.kinds} == {"image", "prose:english"}


def test_media_travel_with_a_pack_and_the_wanted_ones_are_taken_out():
    store = open_store("memory://media-pack")
    keys = sorted(identity(png(i)) for i in range(5))
    media = dict(zip(keys[:4], (png(i) for i in range(4)), strict=True))
    documents = Documents.pack([(key, b"words", "image") for key in keys])
    vectors = {keys[0]: {"mine": np.ones((2, 3), np.float32)}}
    store.write("staging/x.pack", dump_pack(documents, vectors, media))
    wanted = np.frombuffer(b"".join([keys[1], keys[3], keys[4]]), np.uint8).reshape(-1, 20)
    assert read_media(store, "staging/x.pack", wanted) == {key: media[key] for key in (keys[1], keys[3])}
    assert len(read_pack(store, "staging/x.pack", wanted)) == 3
    assert list(read_given(store, "staging/x.pack", documents.hashes)["mine"]) == [keys[0]]
    store.write("staging/y.pack", dump_pack(documents))
    assert read_media(store, "staging/y.pack", wanted) == {}


def test_media_are_kept_by_content():
    kept = KeptMedia(open_store("memory://media-kept"))
    media = {identity(png(i)): png(i) for i in range(4)}
    kept.put(media)
    kept.put({})
    hashes = np.frombuffer(b"".join(media), np.uint8).reshape(-1, 20)
    assert kept.get(hashes) == media
    assert kept.one(identity(png(2))) == png(2)
    assert kept.one(identity(png(9))) is None
