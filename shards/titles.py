"""Where a document's title stands in its text.

The title depends on the content alone, never on a path or metadata: one content may lie at many paths, and a renamed file must cost
nothing. (`shards/view_sections.py` tells titles and headings as text for people, at hundreds of times the cost.)

A collection in BEIR's layout has its titles here, too: a first line that stands alone (`jobs/datasets.py`).
"""

import numpy as np

from shards.documents import Documents
from shards.kinds import PROSE_FAMILIES
from shards.types import Array

HEAD_BYTES = 2_048  # what begins later is no title
MAX_TITLE_BYTES = 320


def titles(documents: Documents, rows: Array) -> tuple[Array, Array]:
    """Where the titles of these rows stand in `Documents.text`: starts, ends, (n,) int64; equal where there is none.

    Prose: its front matter's title, a heading that it begins with (Markdown, AsciiDoc, reStructuredText), or a first line that stands
    alone. Code: the first line of its docstring, else of the comment that it begins with, unless that is a licence. Data has none.
    """
    from shards.title_kernels import CODE, LICENCES, NONE, PROSE, find_titles

    families = [name.partition(":")[0] for name in documents.kind_names]
    readings = np.array([PROSE if f in PROSE_FAMILIES else CODE if f == "code" else NONE for f in families], np.uint8)
    of_row = readings[documents.kinds[rows]] if len(rows) else np.zeros(0, np.uint8)
    text = documents.text.view()
    text.flags.writeable = False
    found: tuple[Array, Array] = find_titles(
        text, documents.starts[rows], documents.ends[rows], of_row, HEAD_BYTES, MAX_TITLE_BYTES, LICENCES
    )
    return found


def title_of(text: bytes, kind: str) -> tuple[int, int]:
    """Bytes [start, end) of the title of one text of a kind (`shards/kinds.py`); equal where it has none."""
    body = np.frombuffer(text, np.uint8)
    document = Documents(np.zeros((1, 20), np.uint8), body, np.zeros(1, np.int64), np.array([len(body)]), np.zeros(1, np.uint8), (kind,))
    starts, ends = titles(document, np.zeros(1, np.int64))
    return int(starts[0]), int(ends[0])
