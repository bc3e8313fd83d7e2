"""What spaces that look at documents look at: images and pages as units, and their pixels."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from shards import images, pages
from shards.documents import Documents
from shards.types import Array
from shards.units import Units

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)


def kinds_seen(with_pages: bool) -> tuple[str, ...]:
    """Kinds of documents whose files are looked at (`Layer.media`)."""
    return (images.KIND, pages.KIND) if with_pages else (images.KIND,)


def units_seen(documents: Documents, scope: Array | None, with_pages: bool) -> Units:
    """A unit for each image, its span the whole rendition, and for each page, its span that page's text. scope: (rows,) bool."""
    seen = images.is_image(documents)
    paged = pages.is_pages(documents) if with_pages else np.zeros(len(documents), bool)
    rows: list[int] = []
    spans: list[tuple[int, int]] = []
    for row in np.flatnonzero((seen | paged) & (True if scope is None else scope)).tolist():
        text = documents.content(row)
        own = pages.page_spans(text) if paged[row] else [(0, len(text))]
        rows += [row] * len(own)
        spans += own
    edges = np.array(spans, np.int64).reshape(-1, 2)
    return Units(np.array(rows, np.int32), np.ascontiguousarray(edges[:, 0]), np.ascontiguousarray(edges[:, 1]))


class Drawings:
    """The images and pages of some documents. rows: of these, whose files are read at once."""

    def __init__(self, documents: Documents, rows: Sequence[int]):
        keys = {row: documents.hashes[row].tobytes() for row in rows}
        files = documents.media.get(documents.hashes[np.array(rows, np.int64)]) if documents.media is not None else {}
        self._keys = keys
        self._files = {row: files[key] for row, key in keys.items() if key in files}

    def has(self, row: int) -> bool:
        """Whether the document's file is kept; logged where it is not."""
        if row not in self._files:
            logger.warning("document=%s event=image_not_kept remedy='touch its file, or push it again'", self._keys[row].hex())
        return row in self._files

    def draw(self, row: int, number: int) -> "Image":
        """One image or page. Raises ValueError, saying in a phrase what is wrong."""
        data = self._files[row]
        return pages.draw_page(data, number) if images.media_type(data) is None else images.pixels(data)

    def drawn(self, row: int, number: int) -> "Image":
        """The same, but blank and logged where it cannot be drawn."""
        try:
            return self.draw(row, number)
        except ValueError as error:
            self.note(row, error)
            return images.require_pillow().new("RGB", (8, 8), (255, 255, 255))

    def unseen(self) -> list[int]:
        """Rows of documents whose file is not kept, or whose first image cannot be drawn."""
        return [row for row in self._keys if not self.has(row) or not self._can_draw(row)]

    def _can_draw(self, row: int) -> bool:
        try:
            self.draw(row, 0)
        except ValueError as error:  # it could be when it was read: by another version of Pillow or PDFium
            self.note(row, error)
            return False
        return True

    def note(self, row: int, error: ValueError) -> None:
        """Log that an image could not be drawn."""
        logger.warning("document=%s event=image_not_decoded reason=%s", self._keys[row].hex(), error)
