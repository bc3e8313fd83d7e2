"""Image files as documents: what is told by one (its words, its format and size) and the pixels that are kept of it.

Pillow decodes; it is imported when the first image is read. Everything here is a function of the file's bytes, this module's
`VERSION` and Pillow's own (pinned): the hash covers the first two.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shards import pages
from shards.documents import Documents
from shards.errors import ModelMissing
from shards.identity import content_hash
from shards.renditions import Skipped
from shards.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image

    from shards.layers.contract import Layer
    from shards.manifest import Root

KIND = "image"  # of documents, as `shards.kinds` has others
VERSION = 1  # raised whenever the same bytes would give other words or other kept pixels

# Files that may be images; whether one is, its first bytes tell. Formats that Pillow would read by running a program (EPS) or that
# hold drawings rather than pixels (SVG) are not among them.
SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".avif")
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF")
_TYPES: tuple[tuple[Callable[[bytes], bool], str], ...] = (
    (lambda head: head.startswith(b"\x89PNG\r\n\x1a\n"), "image/png"),
    (lambda head: head.startswith(b"\xff\xd8\xff"), "image/jpeg"),
    (lambda head: head.startswith((b"GIF87a", b"GIF89a")), "image/gif"),
    (lambda head: head[:4] == b"RIFF" and head[8:12] == b"WEBP", "image/webp"),
    # "BM" begins texts, too: a bitmap's header goes on with its size, four zero bytes and where the pixels are, below 2^16
    (lambda head: head[:2] == b"BM" and head[6:10] == bytes(4) and head[12:14] == bytes(2) and len(head) > 14, "image/bmp"),
    (lambda head: head[:4] in (b"II*\0", b"MM\0*"), "image/tiff"),
    (lambda head: head[4:12] in (b"ftypavif", b"ftypavis"), "image/avif"),
)

MAX_PIXELS = 89_478_485  # of one image: 256 MiB decoded, and where Pillow begins to speak of decompression bombs
KEPT_BYTES = 4 << 20  # a file up to this size is kept as it is
KEPT_SIDE = 2_048  # pixels; of a larger file a JPEG is kept whose longer side has at most so many: models look at 224 to 1,024
KEPT_QUALITY = 90
QUESTION_BYTES = 700_000  # of an image in a question, whose body has 1 MiB at most and bears it as base64
MAX_TEXT_BYTES = 1 << 16  # of the words that one image brings along

_REMEDY = "pip install 'sondage[image]'"
# Where files keep a title, a description and keywords: text chunks of PNG; EXIF (JEITA CP-3451), its own tags and Windows' (UTF-16).
_CHUNKS = ("Title", "Description", "Comment", "comment")
_TITLE, _DESCRIPTION, _USER_COMMENT, _EXIF_IFD, _TAKEN = 0x9C9B, 0x010E, 0x9286, 0x8769, 0x9003
_WINDOWS = (_TITLE, 0x9C9F, 0x9C9C, 0x9C9E)  # title, subject, comment, keywords


@dataclass(frozen=True, slots=True)
class ImageDocument:
    """One image as a document.

    text: its rendition, UTF-8: the words that the file itself brings along (title, description, comment, keywords), a line each;
    empty where there are none. hash: identity. facts: metadata of every entry of it. media: the pixels that are kept, as a file.
    """

    text: bytes = field(repr=False)
    hash: bytes
    facts: dict[str, Any]
    media: bytes = field(repr=False)
    kind: str = KIND


def may_be_seen(path: str) -> bool:
    """Whether a file of this name may be looked at as an image or as pages."""
    return path.lower().endswith((*SUFFIXES, pages.SUFFIX))


def mark_of(path: str) -> str:
    """How a file that is looked at is read: what goes into its etag."""
    return f"{pages.KIND} {pages.VERSION}" if path.lower().endswith(pages.SUFFIX) else f"{KIND} {VERSION}"


def images_taken(spaces: "Iterable[tuple[Layer, Sequence[str]]]") -> Callable[[str], bool] | None:
    """Whether a file of a path is to be read as an image or as pages, if it is such; None for a corpus none of whose spaces looks.

    spaces: each layer with the globs of its space's scope, none for all paths.
    """
    found = [(layer.media, scope) for layer, scope in spaces if layer.media]
    if not found:
        return None
    from shards.plan import glob_regex

    takers = [
        (SUFFIXES * (KIND in kinds) + (pages.SUFFIX,) * (pages.KIND in kinds), [glob_regex(glob) for glob in scope])
        for kinds, scope in found
    ]

    def taken(path: str) -> bool:
        name = path.lower()
        return any(name.endswith(suffixes) and (not globs or any(g.fullmatch(path) for g in globs)) for suffixes, globs in takers)

    return taken


def images_taken_by(root: "Root") -> Callable[[str], bool] | None:
    """The same of a generation's spaces."""
    from shards.generation import spec_of
    from shards.layers import create
    from shards.layers.contract import Resources

    return images_taken((create(spec_of(ref), Resources()), ref.scope) for ref in root.spaces)


def media_type(data: bytes) -> str | None:
    """The media type of an image file by its first bytes, such as "image/png"; None for anything else."""
    head = bytes(data[:32])
    return next((name for matches, name in _TYPES if matches(head)), None)


def identity(data: bytes) -> bytes:
    """The content hash of an image file, 20 bytes; it covers how images are read (FORMAT.md)."""
    return content_hash(f"{KIND}\0{VERSION}\0".encode() + content_hash(data))


def is_image(documents: Documents) -> Array:
    """Which documents are images: (n,) bool."""
    return documents.kinds == (documents.kind_names.index(KIND) if KIND in documents.kind_names else -1)


def read_image(data: bytes) -> ImageDocument | Skipped | None:
    """An image file as a document; None where these bytes are none.

    Skipped, with the reason, for one that cannot be decoded to its end, or has more than `MAX_PIXELS` (found before anything is
    decoded). Of several frames the first counts. Raises ModelMissing without Pillow.
    """
    if media_type(data) is None:
        return None
    pillow = require_pillow()
    try:
        with pillow.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                return Skipped(f"image of more than {MAX_PIXELS:,} pixels")
            size, kept = image.size, data
            if len(data) > KEPT_BYTES:
                image.draft("RGB", (KEPT_SIDE, KEPT_SIDE))  # JPEG is decoded at a half, quarter or eighth of its size then
                kept = _jpeg(_as_seen(image), KEPT_SIDE)
            else:
                image.load()
            return ImageDocument(_words(image), identity(data), _facts(image, size, data), kept)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        return Skipped(f"image of more than {MAX_PIXELS:,} pixels")
    except Exception:  # decoders of damaged files raise whatever their code runs into
        return Skipped("image that cannot be decoded")


def pixels(data: bytes) -> "Image":
    """The first frame of an image file as people see it: 8 bits of red, green and blue, turned as its camera says, transparency
    on white.

    Raises ValueError, saying in a phrase what is wrong; ModelMissing without Pillow.
    """
    pillow = require_pillow()
    if media_type(data) is None:
        raise ValueError(f"no image of a known format ({', '.join(_FORMATS)})")
    try:
        with pillow.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"an image of {image.width:,} x {image.height:,} pixels; at most {MAX_PIXELS:,} are decoded")
            return _as_seen(image)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise ValueError(f"an image of too many pixels ({error})") from None
    except ValueError as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # as above
        raise ValueError(f"an image that cannot be decoded ({error})") from None


def for_a_question(data: bytes) -> bytes:
    """An image file as it fits into a question: itself, or a JPEG of at most 512 pixels a side. Raises as `pixels` does."""
    return data if len(data) <= QUESTION_BYTES else _jpeg(pixels(data), 512)


def require_pillow() -> Any:
    """Pillow's module `PIL.Image`. Raises ModelMissing with the remedy."""
    try:
        from PIL import Image
    except ImportError:
        raise ModelMissing(f"Images are decoded by Pillow, which is not installed. Run {_REMEDY}.") from None
    return Image


def _as_seen(image: "Image") -> "Image":
    from PIL import Image, ImageOps

    image.seek(0)
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):  # Pillow's own conversion would cut everything above 255 to white
        import numpy as np

        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        paper = Image.new("RGB", image.size, (255, 255, 255))
        paper.paste(image, mask=image.getchannel("A"))
        return paper
    return image.convert("RGB")


def _jpeg(image: "Image", side: int) -> bytes:
    from PIL import Image

    image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=None)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=KEPT_QUALITY)
    return out.getvalue()


def _facts(image: "Image", size: tuple[int, int], data: bytes) -> dict[str, Any]:
    exif = image.getexif()
    width, height = size
    if exif.get(0x0112, 1) in (5, 6, 7, 8):  # lies on its side
        width, height = height, width
    facts: dict[str, Any] = {"format": (media_type(data) or "").removeprefix("image/"), "width": width, "height": height}
    taken = exif.get_ifd(_EXIF_IFD).get(_TAKEN)
    if isinstance(taken, str) and len(taken) == 19 and taken[4] == taken[7] == ":":
        facts["taken"] = taken[:10].replace(":", "-") + "T" + taken[11:]
    return {"image": facts}


def _words(image: "Image") -> bytes:
    exif = image.getexif()
    found: list[Any] = [image.info.get(name) for name in _CHUNKS]
    found.append(exif.get(_DESCRIPTION))
    for tag in _WINDOWS:
        value = exif.get(tag)
        found.append(value.decode("utf-16-le", "replace") if isinstance(value, bytes) else value)
    found.append(_user_comment(exif.get_ifd(_EXIF_IFD).get(_USER_COMMENT)))
    lines: dict[str, None] = {}
    for value in found:
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, str):
            lines |= dict.fromkeys(line for raw in value.replace("\0", "").splitlines() if (line := raw.strip()))
    return "\n".join(lines).encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()


def _user_comment(value: Any) -> str | None:
    """EXIF's own comment: eight bytes name the encoding."""
    if not isinstance(value, bytes) or len(value) <= 8:
        return None
    encoding = {b"ASCII\0\0\0": "utf-8", b"UNICODE\0": "utf-16-le"}.get(value[:8])
    return value[8:].decode(encoding, "replace") if encoding else None
