"""One segment as one generation sees it: its live rows, and where a document or its entries lie among them."""

from dataclasses import dataclass, field

import numpy as np

from shards.identity import find_row, find_rows, prefixes
from shards.layers.contract import Reader
from shards.scope import EntryFields
from shards.segment import Segment
from shards.types import Array


@dataclass
class View:
    """One segment as one generation sees it: its live rows and the readers over them."""

    segment: Segment
    live_docs: Array  # (documents of the segment,) bool
    live_entries: Array  # (entries of the segment,) bool
    base: int  # document number of row 0
    fields: EntryFields
    entry_docs: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # (entries,) document number of each, -1 where dead
    readers: dict[str, Reader] = field(default_factory=dict)  # space id -> reader; absent where the segment lacks the space
    samples: dict[str, Reader] = field(default_factory=dict)  # of spaces built where they are used: over what moments are taken of

    def __post_init__(self) -> None:
        # Kept because every look-up by hash needs them; 8 bytes a row.
        self.doc_prefixes = prefixes(self.segment.documents.hashes)
        self.entry_prefixes = prefixes(self.segment.entries.hashes)

    def row_of(self, document: bytes) -> int:
        """The row of a live document, or -1."""
        row = find_row(self.segment.documents.hashes, document, self.doc_prefixes)
        return row if row >= 0 and self.live_docs[row] else -1

    def rows_of(self, documents: Array) -> Array:
        """The rows of live documents, (n, 20) uint8 content hashes, or -1: (n,) int64."""
        rows = find_rows(self.segment.documents.hashes, documents, self.doc_prefixes)
        rows[rows >= 0] = np.where(self.live_docs[rows[rows >= 0]], rows[rows >= 0], -1)
        return rows

    def first_entry_of(self, document: bytes) -> int:
        """The row of a document's first live entry here, or -1."""
        return next(iter(self.entries_of(document)), -1)

    def entries_of(self, document: bytes) -> list[int]:
        """Rows of a document's live entries here."""
        prefix = np.uint64(int.from_bytes(document[:8], "big"))
        low, high = (int(self.entry_prefixes.searchsorted(prefix, side)) for side in ("left", "right"))
        hashes = self.segment.entries.hashes
        return [row for row in range(low, high) if self.live_entries[row] and hashes[row].tobytes() == document]
