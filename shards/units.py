"""How documents are cut: passages for layers that rank text, lines for layers that match it."""

from typing import NamedTuple

import numpy as np

from shards.documents import Documents
from shards.errors import BadSpec
from shards.types import Array

MIN_UNIT_BYTES = 32  # below, a window may hold no place to cut at all
_BLOCK = 1 << 24  # lines are sought in blocks of 16 MiB, so that no temporary is as large as the text


class Units(NamedTuple):
    """Pieces of documents, in order of row, then start.

    rows: (u,) int32, the document; starts, ends: (u,) int64, bytes [start, end) of its rendition.
    """

    rows: Array
    starts: Array
    ends: Array

    def of_rows(self, n_rows: int) -> Array:
        """Row i has the units of_rows[i] : of_rows[i + 1]; (n_rows + 1,) int64."""
        return np.searchsorted(self.rows, np.arange(n_rows + 1)).astype(np.int64)


def passages(documents: Documents, unit_bytes: int, overlap_bytes: int = 0, scope: Array | None = None) -> Units:
    """Passages of about `unit_bytes`: filled up, then cut at the best place in the second half of the window.

    The best place is, in this order (the last one of its kind):
    a blank line before an unindented line; any blank line; the start of an unindented line that begins something (it follows
    the end of a sentence or statement, or starts with one of # @ \\ = <); the end of a line; the end of a sentence; white
    space or a Chinese or Japanese comma; and only where there is none of these, between two characters. An unindented closing
    bracket counts as indented: it belongs to what is above it.

    Passages bear no ASCII white space at their ends, and a document of nothing else has none. A rest under a fifth of
    `unit_bytes` joins the passage before it where both together stay within 1.25 `unit_bytes`; no passage is larger.
    overlap_bytes: how much of a passage the next one repeats, up to a quarter of `unit_bytes`; it then starts at the first
    line start, else word, in that stretch. scope: (rows,) bool, the documents to cut; None means all.
    The passages of a document depend on its bytes alone. Raises BadSpec for sizes out of range.
    """
    if not unit_bytes >= MIN_UNIT_BYTES:
        raise BadSpec(f"unit_bytes is {unit_bytes}; expected at least {MIN_UNIT_BYTES}.")
    if not 0 <= overlap_bytes <= unit_bytes // 4:
        raise BadSpec(f"overlap_bytes is {overlap_bytes}; expected 0 to {unit_bytes // 4}, a quarter of unit_bytes.")
    from shards.unit_kernels import cut_passages  # imports numba

    rows = np.arange(len(documents), dtype=np.int32) if scope is None else np.flatnonzero(scope).astype(np.int32)
    return Units(*cut_passages(documents.text, documents.starts[rows], documents.ends[rows], rows, unit_bytes, overlap_bytes))


def lines(documents: Documents) -> Units:
    """Every line, blank ones too, without its line break (b"\\n" or b"\\r\\n"); an empty document has none.

    Numbering as editors and grep do: a final line break ends the last line and starts no further one.
    """
    text = documents.text
    breaks = [np.flatnonzero(text[at : at + _BLOCK] == 0x0A) + at for at in range(0, len(text), _BLOCK)]
    ends = np.concatenate(breaks) if breaks else np.zeros(0, np.int64)  # each document is followed by one that is not its own
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1] + 1
    last = np.searchsorted(ends, documents.ends, "right")  # documents are contiguous: each one's lines follow the last one's
    rows = np.repeat(np.arange(len(documents), dtype=np.int32), np.diff(last, prepend=0))
    real = starts < documents.ends[rows]
    rows, starts, ends = rows[real], starts[real], ends[real].copy()
    ends -= (ends > starts) & (text[ends - 1] == 0x0D)
    base = documents.starts[rows]
    return Units(rows, starts - base, ends - base)
