"""PDF files as documents of pages: their text, page by page, and what each page looks like, drawn by PDFium (pypdfium2).

pypdfium2 is imported when the first PDF is read. Everything here is a function of the file's bytes, this module's `VERSION` and
PDFium's own (pinned): the hash covers the first two. PDFium is no library for threads, so all calls take turns.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.documents import Documents
from shards.errors import ModelMissing
from shards.identity import content_hash
from shards.kinds import kind_of
from shards.renditions import Skipped
from shards.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image

KIND = "pages"  # of documents, with the language of their text: "pages:german"
VERSION = 1  # raised whenever the same bytes would give another text
SUFFIX = ".pdf"
MEDIA_TYPE = "application/pdf"

MAX_PAGES = 5_000  # read of one file; what follows is left out
PAGE_BREAK = b"\n\f"  # between two pages of the rendition; there is no other form feed in it
SIDE = 1_024  # pixels of a drawn page's longer side: models look at 224 to 1,024

_REMEDY = "pip install 'sondage[image]'"
_FIELDS = {"Title": "title", "Author": "author", "Subject": "subject", "Keywords": "keywords"}
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_pdfium = threading.Lock()


@dataclass(frozen=True, slots=True)
class PagesDocument:
    """One PDF file as a document.

    text: its rendition, UTF-8: the text of its pages with `PAGE_BREAK` between them; a page that is a picture is empty. hash: identity.
    facts: metadata of every entry of it. media: the file.
    """

    text: bytes = field(repr=False)
    hash: bytes
    facts: dict[str, Any]
    media: bytes = field(repr=False)
    kind: str


def identity(data: bytes) -> bytes:
    """The content hash of a PDF file read as pages, 20 bytes (FORMAT.md)."""
    return content_hash(f"{KIND}\0{VERSION}\0".encode() + content_hash(data))


def read_pages(data: bytes) -> PagesDocument | Skipped | None:
    """A PDF file as a document of pages; None where these bytes are none. Skipped, with the reason, for one that cannot be opened.

    Raises ModelMissing without pypdfium2.
    """
    if not data.startswith(b"%PDF-"):
        return None
    pdfium = require_pdfium()
    try:
        with _opened(pdfium, data) as file:
            texts = [_text(file, number) for number in range(min(len(file), MAX_PAGES))]
            facts: dict[str, Any] = {"pages": len(file)}
            facts |= {_FIELDS[name]: value for name, value in file.get_metadata_dict().items() if name in _FIELDS and value.strip()}
    except pdfium.PdfiumError as error:
        return Skipped("PDF that wants a password" if "password" in str(error).lower() else "PDF that cannot be opened")
    if not texts:
        return Skipped("PDF without pages")
    text = PAGE_BREAK.join(texts)
    language = kind_of(text).partition(":")[2]
    return PagesDocument(text, identity(data), {"pdf": facts}, data, f"{KIND}:{language}" if language else KIND)


def is_pages(documents: Documents) -> Array:
    """Which documents are made of pages: (n,) bool."""
    ours = [i for i, name in enumerate(documents.kind_names) if name.partition(":")[0] == KIND]
    return np.isin(documents.kinds, ours)


def page_spans(text: bytes | memoryview) -> list[tuple[int, int]]:
    """Where each page lies in a rendition, in bytes."""
    spans, start = [], 0
    for page in bytes(text).split(PAGE_BREAK):
        spans.append((start, start + len(page)))
        start += len(page) + len(PAGE_BREAK)
    return spans


def draw_page(data: bytes, number: int) -> "Image":
    """One page, counted from 0, as an image in RGB whose longer side has `SIDE` pixels.

    Raises ValueError, saying in a phrase what is wrong; ModelMissing without pypdfium2.
    """
    pdfium = require_pdfium()
    try:
        with _opened(pdfium, data) as file:
            page = file[number]
            try:
                bitmap = page.render(scale=SIDE / max(*page.get_size(), 1.0))
                try:
                    return bitmap.to_pil().convert("RGB")
                finally:
                    bitmap.close()
            finally:
                page.close()
    except (pdfium.PdfiumError, IndexError) as error:
        raise ValueError(f"a page that cannot be drawn ({error})") from None


def require_pdfium() -> Any:
    """The module pypdfium2. Raises ModelMissing with the remedy."""
    try:
        import pypdfium2
    except ImportError:
        raise ModelMissing(f"Pages of PDF files are drawn by pypdfium2, which is not installed. Run {_REMEDY}.") from None
    return pypdfium2


@contextmanager
def _opened(pdfium: Any, data: bytes) -> Iterator[Any]:
    with _pdfium:
        file = pdfium.PdfDocument(data)
        try:
            yield file
        finally:
            file.close()


def _text(file: Any, number: int) -> bytes:
    page = file[number]
    try:
        words = page.get_textpage()
        try:
            text = words.get_text_bounded()
        finally:
            words.close()
    finally:
        page.close()
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).rstrip().encode()
