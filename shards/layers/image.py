"""Images by the angle between their vector and the question's, which is a text, an image, or a vector: models of CLIP's kind.

Arrays as in `shards.layers.vectors`; a unit is one image, its span the whole rendition, or one page of a PDF, its span the page's
text. Other documents have no units. One whose file is not kept, or cannot be decoded here, is not in the space (`in_scope` is false),
and coverage says so.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from shards import images, pages
from shards.documents import Documents, Entries
from shards.errors import BadQuery, NotFound
from shards.image_encoder import ImageEncoder
from shards.layers import contract
from shards.layers.contract import Encodings, Progress, Request
from shards.layers.keeping import LOOK_UP_ROWS
from shards.layers.vectors import VectorLayer, VectorStatistics, vector_arrays
from shards.plan import SpaceQuery
from shards.seen import Drawings, kinds_seen, units_seen
from shards.types import Array, Arrays

_HASH = re.compile(r"[0-9a-f]{40}")


class Image(VectorLayer):
    """Image files, and pages of PDF files, by what they show."""

    name = "image"
    granularity = "image"
    query_format = 'text, or {"image": base64 of a file, or content hash of an image here}, or {"vector": [numbers]}'
    cost = "encodes an image in 0.18 s of a core with ViT-B/32; 2 kB an image; as dense"
    dear = True

    class Params(contract.Params):
        model: Annotated[str, Field(description="a folder, or a name on the Hugging Face hub")] = "sentence-transformers/clip-ViT-B-32"
        dim: Annotated[int | None, Field(ge=1, description="first components kept of each vector; for Matryoshka models")] = None
        pages: Annotated[bool, Field(description="whether pages of PDF files are images, too")] = False

    params: Params
    portion_images = 64  # between two writes of encodings, which is what a crash can cost: some seconds; at most 256 MiB of files

    @cached_property
    def encoder(self) -> ImageEncoder:
        """What turns images and texts into vectors; loads nothing before it is asked to encode."""
        return ImageEncoder(self.params.model, self.resources, self.params.dim)

    @property
    def takes_gpu(self) -> bool:
        return True

    @property
    def media(self) -> tuple[str, ...]:
        return kinds_seen(self.params.pages)

    def fingerprint(self) -> str:
        if self.params.pages:
            pages.require_pdfium()
        return self.encoder.fingerprint()

    @property
    def dim(self) -> int:
        return self.encoder.dim

    @property
    def question_model(self) -> str:
        return self.params.model

    # --- building ------------------------------------------------------------------------------------------------------------

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        in_scope = np.ones(len(documents), bool) if scope is None else np.array(scope, bool)
        units = units_seen(documents, in_scope, self.params.pages)
        firsts = units.of_rows(len(documents))  # units of each row, before what cannot be seen is left out
        counts = np.diff(firsts)
        rows = np.flatnonzero(counts)
        vectors: dict[int, Array] = {}
        for start in range(0, len(rows) if known is not None else 0, LOOK_UP_ROWS):
            portion = rows[start : start + LOOK_UP_ROWS]
            kept = known.get(documents.hashes[portion])
            for row in portion.tolist():
                values = kept.get(documents.hashes[row].tobytes())
                if values is not None and len(values) == counts[row]:
                    vectors[row] = values
        todo = np.array([row for row in rows.tolist() if row not in vectors], np.int64)
        total, n_done = int(counts[todo].sum()), 0
        cuts = np.searchsorted(np.cumsum(counts[todo]), np.arange(self.portion_images, total, self.portion_images), "right")
        for portion in filter(len, np.split(todo, np.unique(cuts))):
            tell = (lambda n, before=n_done: progress("encode", before + n, total)) if progress else lambda _: None
            new = self._encoded(documents, {row: int(counts[row]) for row in portion.tolist()}, tell)
            if known is not None and new:
                known.put({documents.hashes[row].tobytes(): values for row, values in new.items()})
            vectors |= new
            n_done += int(counts[portion].sum())
        unseen = [row for row in rows.tolist() if row not in vectors]
        in_scope[unseen] = False
        counts[unseen] = 0
        row_units = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        there = in_scope[units.rows]
        stacked = np.concatenate([vectors[row] for row in sorted(vectors)]) if vectors else np.zeros((0, 0), np.float32)
        return vector_arrays(stacked, row_units, units.starts[there], units.ends[there], in_scope)

    def _encoded(self, documents: Documents, counts: Mapping[int, int], done: Callable[[int], object]) -> dict[int, Array]:
        """The vectors, (images, dim) float32, of documents with so many images each; without those that cannot be seen here."""
        drawings = Drawings(documents, list(counts))
        wanted = [(row, number) for row, n in counts.items() if drawings.has(row) for number in range(n)]
        damaged: set[int] = set()

        def drawn(row: int, number: int) -> Any:
            try:
                return drawings.draw(row, number)
            except ValueError as error:
                drawings.note(row, error)
                damaged.add(row)
                return images.require_pillow().new("RGB", (8, 8))  # keeps its place among the others

        vectors = self.encoder.encode_images([lambda what=what: drawn(*what) for what in wanted])
        found: dict[int, list[Array]] = {}
        for n, ((row, _), vector) in enumerate(zip(wanted, vectors, strict=True)):
            found.setdefault(row, []).append(vector)
            done(n + 1)
        return {row: np.stack(each) for row, each in found.items() if row not in damaged}

    # --- asking --------------------------------------------------------------------------------------------------------------

    def check_form(self, request: Request) -> None:
        if "image" not in request.form:
            super().check_form(request)

    def prepare(self, request: Request, statistics: VectorStatistics) -> SpaceQuery | None:
        if "image" not in request.form:
            return super().prepare(request, statistics)
        if len(request.form) > 1:
            raise BadQuery(f"Layer {self.name!r} takes an image alone, without {', '.join(sorted(set(request.form) - {'image'}))}.")
        try:
            image = images.pixels(_image_of(request.form, request.media))
        except ValueError as error:
            raise BadQuery(f"Layer {self.name!r}: image is {error}.") from None
        (vector,) = self.encoder.encode_images([lambda: image])
        return SpaceQuery("", f"an image of {image.width:,} x {image.height:,} pixels", vector, model=self.params.model)

    def asked(self, text: str) -> tuple[str, Array] | None:
        return self._asked(text)

    @cached_property
    def _asked(self) -> Callable[[str], tuple[str, Array]]:
        """A text as it was read, for people, and its vector."""

        @lru_cache(maxsize=1024)  # questions come in pairs: pages, refined filters
        def encode(text: str) -> tuple[str, Array]:
            read = self.encoder.reads(text)
            return text if read == text else f"{read} […: the model reads no further]", self.encoder.encode_query(read)

        return encode


def _image_of(form: Mapping[str, object], media: Callable[[bytes], bytes | None] | None) -> bytes:
    """The file that a question means. Raises NotFound for a hash of no image, ValueError with what is wrong."""
    value = form["image"]
    if not isinstance(value, str):
        raise ValueError("neither base64 of a file nor a content hash, but no text at all")
    if _HASH.fullmatch(value):
        found = media(bytes.fromhex(value)) if media is not None else None
        if found is None:
            raise NotFound(f"This corpus keeps no image of the document {value}. Take the hash of a hit whose kind is {images.KIND!r}.")
        return found
    try:
        return base64.b64decode(value.partition(",")[2] if value.startswith("data:") else value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("neither base64 of a file nor a content hash of 40 hex digits") from None
