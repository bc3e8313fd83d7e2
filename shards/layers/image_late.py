"""Images, and pages of PDF files, by late interaction: for each token of a question the patch that is nearest to it, summed.

As `late` over passages, with its arrays, candidates and moments; a unit is an image or a page, its tokens are patches. Models are of
ColPali's kind (`shards.page_encoder`). Which documents have units, and which of these are not covered, is as in `image`.
"""

import threading
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from shards.documents import Documents, Entries
from shards.layers import contract
from shards.layers.contract import Encodings, Progress
from shards.layers.late import Late
from shards.page_encoder import PageEncoder
from shards.pages import require_pdfium
from shards.seen import Drawings, kinds_seen, units_seen
from shards.types import Array, Arrays
from shards.units import Units

_LOOK_UP_ROWS = 16  # documents whose encodings and files are read at once: a page's encoding has 260 kB, its file up to some MB


class ImageLate(Late):
    """Images and pages by the nearest of their patches to each token of the question."""

    name = "image_late"
    in_part = False  # whether a row is in the space depends on its image, too
    granularity = "image"
    query_format = 'text, or {"vectors": [[numbers], …]}, one list for each token'
    cost = "wants a GPU; 264 kB a page of 1,030 patches (int8: 136), and its encoding; 22 ms for 100 pages"

    class Params(contract.Params):
        model: Annotated[str, Field(description="a folder, or a name on the Hugging Face hub")] = "vidore/colpali-v1.3-hf"
        pages: Annotated[bool, Field(description="whether pages of PDF files are images, too")] = True
        storage: Annotated[Literal["fp16", "int8"], Field(description="of a vector: 16 bits a number, or 8 and a scale")] = "fp16"
        fde_repetitions: Annotated[int, Field(ge=1, le=64, description="partitions of space in a fixed-dimensional encoding")] = 16
        fde_planes: Annotated[int, Field(ge=0, le=8, description="planes that cut each of them into 2^n cells")] = 4
        fde_cell_dim: Annotated[int, Field(ge=1, le=128, description="numbers for each cell")] = 8
        fde_seed: Annotated[int, Field(ge=0, le=1 << 31, description="of planes and projections")] = 0

    params: "ImageLate.Params"

    @property
    def media(self) -> tuple[str, ...]:
        return kinds_seen(self.params.pages)

    @cached_property
    def encoder(self) -> PageEncoder:
        return PageEncoder(self.params.model, self.resources)

    def fingerprint(self) -> str:
        if self.params.pages:
            require_pdfium()
        return super().fingerprint()

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        in_scope = np.ones(len(documents), bool) if scope is None else np.array(scope, bool)
        rows = np.unique(units_seen(documents, in_scope, self.params.pages).rows)
        in_scope[self._unseen(documents, rows, known)] = False
        return super().build(documents, entries, in_scope, known, progress)

    def _unseen(self, documents: Documents, rows: Array, known: Encodings | None) -> Array:
        """Documents that are to be encoded and cannot be seen here: (n,) int64."""
        unseen: list[int] = []
        for start in range(0, len(rows), _LOOK_UP_ROWS):
            portion = rows[start : start + _LOOK_UP_ROWS]
            kept = known.get(documents.hashes[portion]) if known is not None else {}
            todo = [row for row in portion.tolist() if documents.hashes[row].tobytes() not in kept]
            unseen += Drawings(documents, todo).unseen() if todo else []
        return np.array(unseen, np.int64)

    def _passages(self, documents: Documents, scope: Array | None) -> Units:
        return units_seen(documents, scope, self.params.pages)

    def _pieces(self, documents: Documents, units: Units, row_units: Array, rows: Array) -> list[Any]:
        held: dict[int, Drawings] = {}  # the files of a few documents, for they are asked for nearly in order, by several threads
        lock = threading.Lock()

        def drawn(place: int, number: int) -> Any:
            group = place // _LOOK_UP_ROWS * _LOOK_UP_ROWS
            with lock:
                if group not in held:
                    for old in sorted(held)[:-1]:
                        del held[old]
                    held[group] = Drawings(documents, rows[group : group + _LOOK_UP_ROWS].tolist())
                drawings = held[group]
            return drawings.drawn(int(rows[place]), number)

        return [
            lambda place=place, number=number: drawn(place, number)
            for place, row in enumerate(rows.tolist())
            for number in range(row_units[row + 1] - row_units[row])
        ]
