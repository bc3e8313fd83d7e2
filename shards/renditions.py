"""A document's text: UTF-8 made from a file's bytes by a function of these bytes alone, with the way back to them."""

from dataclasses import dataclass, field

import numpy as np

from shards.identity import content_hash
from shards.kinds import kind_of
from shards.types import Array

__all__ = ["Rendition", "Skipped", "is_unicode", "kind_of", "render", "source_range"]

SNIFF_BYTES = 8_192  # where a NUL byte makes a file binary, as for git (8,000) and ripgrep

# A renderer's version is raised whenever the same bytes would give another text.
_VERSIONS = {"utf-8": 1, "utf-8-sig": 1, "utf-16-le": 1, "utf-16-be": 1, "utf-32-le": 1, "utf-32-be": 1, "utf-8+windows-1252": 1}

_MARKS = (  # the longer first: UTF-32's begins with UTF-16's
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
)
_CONTROLS = bytes(b for b in range(32) if b not in b"\t\n\v\f\r\b\x1b") + b"\x7f"

# Byte 0x80 + i as windows-1252 in the WHATWG's reading (encoding.spec.whatwg.org): the five bytes that Microsoft left undefined
# are C1 controls, as in Latin-1, so that every byte has a character.
_WINDOWS_1252 = np.array([ord(bytes([b]).decode("cp1252", "ignore") or chr(b)) for b in range(128, 256)], np.uint32)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Content that has no text for us, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rendition:
    """The text of one content.

    text: UTF-8. hash: the document's identity: the content's own where text and content are the same bytes, else it covers
    content, renderer and version. kind: what it looks like (`shards.kinds.kind_of`). source: the content, for the way back.
    """

    text: bytes = field(repr=False)
    renderer: str
    hash: bytes
    kind: str
    source: bytes = field(repr=False)

    def source_range(self, start: int, end: int) -> tuple[int, int]:
        """The bytes of the content that the span [start, end) of the text was made from."""
        return source_range(self.source, self.renderer, start, end)


def render(data: bytes) -> Rendition | Skipped:
    """The rendition of a content.

    UTF-8, UTF-16 and UTF-32 are known by their byte order mark; without one, content is read as UTF-8, and bytes that are none
    as windows-1252, each for itself. (One encoding per file would be simpler, but a log cut off within a character, or one
    Latin-1 name in a UTF-8 list, would spoil every other line; and Western text in windows-1252 hardly ever forms UTF-8.)
    Skipped("binary"): a NUL in the first 8 KiB, or not UTF-8 and more than 1% control characters, or UTF-16 and UTF-32 with a NUL
    or more than 1% that cannot be decoded; and PDF.
    """
    encoding, size = _encoding(data)
    if encoding.startswith("utf-8"):
        # PDF is the one binary format that may be plain ASCII; compressed data has a NUL, or controls throughout.
        if data.startswith(b"%PDF-") or data.find(b"\0", 0, SNIFF_BYTES) >= 0:
            return Skipped("binary")
        if _is_utf8(data):
            if not size:
                return Rendition(data, encoding, content_hash(data), kind_of(data), data)
            return _rendition(data[size:], encoding, data)
        if len(data) - len(data.translate(None, _CONTROLS)) > 0.01 * len(data):
            return Skipped("binary")
        return _rendition(_points(data).tobytes().decode("utf-32-le").encode(), "utf-8+windows-1252", data)
    text = data[size:].decode(encoding, "replace")
    if "\0" in text or text.count("\ufffd") > 0.01 * len(text) + 1:
        return Skipped("binary")
    return _rendition(text.encode(), encoding, data)


def source_range(content: bytes, renderer: str, start: int, end: int) -> tuple[int, int]:
    """Where the span [start, end) of a rendition (UTF-8 bytes, at character boundaries) lies in its content.

    Computed anew from the content: a table of offsets would be as large as the text. Raises ValueError for an unknown
    renderer.
    """
    if renderer == "utf-8":
        return start, end
    if renderer == "utf-8-sig":
        return start + 3, end + 3
    if renderer == "utf-8+windows-1252":
        raw = _decoded(content)
        escaped = (raw >= 0xDC80) & (raw <= 0xDCFF)
        in_text, in_content = _utf8_sizes(_points(content)), np.where(escaped, 1, _utf8_sizes(raw))
        base = 0
    elif renderer in _VERSIONS:
        base = len(next(mark for mark, encoding in _MARKS if encoding == renderer))
        points = np.frombuffer(content[base:].decode(renderer, "replace").encode("utf-32-le"), np.uint32)
        in_text = _utf8_sizes(points)
        in_content = np.where(points >= 0x10000, 4, 2) if "16" in renderer else np.full(len(points), 4)
    else:
        raise ValueError(f"Unknown renderer {renderer!r}; choose from {', '.join(_VERSIONS)}.")
    ends = np.cumsum(in_text)
    places = np.concatenate([[0], np.cumsum(in_content)]) + base
    places[-1] = len(content)  # where content is cut off, the last character stands for what is left
    first = int(np.searchsorted(ends, start, "right"))
    last = int(np.searchsorted(ends, end, "left")) + 1 if end > start else first
    return int(places[first]), int(places[last])


def is_unicode(data: bytes) -> bool:
    """Whether content is UTF-8, or begins with a byte order mark: nothing is to be guessed of it."""
    return _encoding(data)[1] > 0 or _is_utf8(data)


def _encoding(data: bytes) -> tuple[str, int]:
    """The encoding that a byte order mark announces and the mark's size; UTF-8 and 0 where there is none."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return encoding, len(mark)
    return "utf-8", 0


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rendition(text: bytes, renderer: str, data: bytes) -> Rendition:
    identity = content_hash(f"{renderer}\0{_VERSIONS[renderer]}\0".encode() + content_hash(data))
    return Rendition(text, renderer, identity, kind_of(text), data)


def _decoded(data: bytes) -> Array:
    """Code points of UTF-8, with bytes that are none as surrogate escapes U+DC80 to U+DCFF; (n,) uint32."""
    return np.frombuffer(data.decode("utf-8", "surrogateescape").encode("utf-32-le", "surrogatepass"), np.uint32)


def _points(data: bytes) -> Array:
    """Code points of UTF-8, with bytes that are none read as windows-1252; (n,) uint32."""
    points = _decoded(data).copy()
    escaped = (points >= 0xDC80) & (points <= 0xDCFF)
    points[escaped] = _WINDOWS_1252[points[escaped] - 0xDC80]
    return points


def _utf8_sizes(points: Array) -> Array:
    """How many bytes UTF-8 takes for each code point; (n,) int64."""
    return 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
