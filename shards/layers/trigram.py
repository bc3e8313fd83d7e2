"""Trigram: the matches of `text`, found by reading only the blocks that hold the trigrams that a pattern needs.

It is the same question with the same score and surprise, bit for bit: where a pattern needs no trigram (`\\w+`, `==`), or most blocks
have them, the text is read as `text` reads it. So where both are asked the same, `text` is left out (`narrows`).
"""

from collections.abc import Sequence

import numpy as np

from shards.documents import Documents, Entries
from shards.layers.contract import Encodings, Progress, Reader
from shards.layers.text import Text, TextReader
from shards.text_pattern import TextQuery
from shards.trigram_index import NAMES, build_index, join_index
from shards.trigram_search import TrigramSearch
from shards.types import Array, Arrays

FEW = 64  # blocks of a scope; they are read sooner than lists
MOST = 0.25  # of the blocks; of more, picking and copying them takes longer than reading all text in one go


class Trigram(Text):
    """Lines that hold a string or match a regular expression, by an index of trigrams."""

    name = "trigram"
    narrows = "text"
    cost = "reads the blocks that may match, 4 KB each; of a pattern without three letters in a row all text, as text does"

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        """The arrays of `Text.build` and of `shards.trigram_index`."""
        counted = Text.build(self, documents, entries, scope, known, progress)
        return counted | build_index(documents, np.flatnonzero(counted["lines"] >= 0))

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        """As in `Text`; the index is joined without the text."""
        return Text.merge(self, parts, documents, entries, held) | join_index(parts, len(documents))

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> Reader:
        return TrigramReader(arrays, documents, live)


class TrigramReader(TextReader):
    """Scans what the index leaves of one segment."""

    def __init__(self, arrays: Arrays, documents: Documents, live: Array):
        super().__init__(arrays["lines"], documents, live)
        self._index = TrigramSearch({name: arrays[name] for name in NAMES}, documents.starts)

    def narrow(self, query: TextQuery, wanted: Array) -> tuple[Array, Array | None]:
        """Rows that may match; where the query speaks of lines, the blocks that may, unless these are most of the text."""
        if query.unit == "document":
            rows = self._index.documents(query.required)
            return (wanted if rows is None else wanted & rows), None
        if np.array_equal(wanted, self._searchable):
            n_blocks, blocks = self._index.n_blocks, self._index.blocks(query.required)
        else:
            among = self._index.blocks_of(wanted)
            n_blocks = np.count_nonzero(among)
            blocks = self._index.blocks(query.required) if n_blocks > FEW else None
            blocks = None if blocks is None else blocks & among
        if blocks is None or np.count_nonzero(blocks) > MOST * n_blocks:
            return wanted, None
        return wanted, self._index.ranges(blocks)
