"""Text whose encoding is not UTF-8 and not announced by a byte order mark: CSV in legacy encodings, XML and HTML that say theirs."""

import codecs
import re

from shards.formats.reader import Plain, Read
from shards.renditions import is_unicode

# What charset-normalizer takes Western text for. Such files stay what they are without a format (`shards/renditions.py`), which reads
# windows-1252 and keeps what is UTF-8 among it.
_WESTERN = re.compile(r"(cp125[02]|latin_1|iso8859_(1|2|3|4|9|10|13|14|15|16)|mac_\w+|cp(437|850|858|1254|1257)|hp_roman8|ascii|utf_8)")
_WINDOWS_1252 = frozenset({"iso8859-1", "cp1252", "ascii"})  # by the names of Python's codecs; what pages say who mean windows-1252
_XML_SAYS = re.compile(rb"""<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
_HTML_SAYS = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9._-]{1,40})""", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_TOGETHER, _BEYOND_ASCII = re.compile(rb"[\x80-\xff]{2,}"), bytes(range(128, 256))
# Encodings of two bytes a character, each with the first bytes of its common ideographs (level 1 of JIS X 0208, GB 2312, Big5) or Hangul
# syllables (KS X 1001), and whether kana are common. charset-normalizer takes a few lines of one for another, or for UTF-16.
_EAST_ASIAN = {"cp932": (0x88, 0x97, True), "euc_jp": (0xB0, 0xCF, True), "gb18030": (0xB0, 0xD7, False), "cp949": (0xB0, 0xC8, False),
               "big5": (0xA4, 0xC6, False)}  # fmt: skip
_IDEOGRAPH, _SURE = (
    0.8,
    0.7,
)  # what a common ideograph counts, since every second character may pass for one; mean from which on it is clear
_LOOK_BYTES = 1 << 16  # of a table, in which its encoding is sought


def load() -> None:
    """Import what is needed. Raises ImportError."""
    import charset_normalizer  # noqa: F401


def read(name: str, data: bytes, _unpacked_bytes: int) -> Read:
    """A table or an XML document as UTF-8, character by character as it is. Raises Plain for Western text, and where nothing is known.

    It is not UTF-8, and bears no mark (`Format.is_legacy`).
    """
    encoding = _said(data, _XML_SAYS) if name == "xml" else _guessed(data)
    if encoding is None or encoding in _WINDOWS_1252:
        raise Plain
    try:
        return Read(data.decode(encoding), {"encoding": encoding})
    except UnicodeDecodeError:
        raise Plain from None


def decoded_markup(data: bytes) -> str:
    """HTML or XHTML as text: by its mark, what it says, UTF-8, windows-1252; never fails."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    if is_unicode(data):
        return data.decode()
    said = _said(data, _XML_SAYS) or _said(data[:2048], _HTML_SAYS) or "cp1252"
    return data.decode("cp1252" if said in _WINDOWS_1252 else said, "replace")


def _east_asian(data: bytes) -> str | None:
    """The East Asian encoding in which the text consists of common characters; None where it does so in none."""
    scores = {}
    for encoding, (first, last, kana) in _EAST_ASIAN.items():
        try:
            beyond = [c for c in data.decode(encoding)[:4096] if c >= "\u3040"]
        except UnicodeDecodeError:
            continue
        points = 0.0
        for c in beyond:
            raw = c.encode(encoding)
            if "\u3040" <= c <= "\u30ff":
                points += kana
            elif first <= raw[0] <= last and (raw[-1] >= 0xA1 or encoding != "cp949"):
                points += 1.0 if "\uac00" <= c <= "\ud7a3" else _IDEOGRAPH
        scores[encoding] = points / len(beyond) if beyond else 0.0
    best = max(scores, key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] >= _SURE else None


def _said(data: bytes, pattern: re.Pattern[bytes]) -> str | None:
    """The encoding that a document says it is in, if there is such a codec for text."""
    found = pattern.search(data[:1024]) if pattern is _XML_SAYS else pattern.search(data)
    if found is None:
        return None
    try:
        known = codecs.lookup(found[1].decode())
    except LookupError:
        return None
    return known.name if known._is_text_encoding else None


def _guessed(data: bytes) -> str | None:
    """The encoding of a table without any mark, None where it looks Western or like nothing known."""
    import charset_normalizer

    # Letters with accents stand alone between others; bytes of scripts that are not Latin stand together, and guesses about a few of the
    # former go anywhere.
    if 2 * sum(map(len, _TOGETHER.findall(data))) < len(data) - len(data.translate(None, _BEYOND_ASCII)):
        return None
    head = data if len(data) <= _LOOK_BYTES else data[: data.rfind(b"\n", 0, _LOOK_BYTES) + 1 or _LOOK_BYTES]
    if (asian := _east_asian(head)) is not None:
        return asian
    best = charset_normalizer.from_bytes(head).best()
    return None if best is None or _WESTERN.fullmatch(best.encoding) or best.encoding.startswith("utf_") else best.encoding
