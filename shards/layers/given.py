"""Documents by vectors that callers made themselves: `vectors`, one or several for each document that has any.

Arrays as in `shards.layers.vectors`; each vector stands for the whole document. A document without one is not in the space.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from shards.documents import Documents, Entries
from shards.errors import BadQuery
from shards.layers import contract
from shards.layers.contract import Encodings, Progress, Request
from shards.layers.keeping import LOOK_UP_ROWS
from shards.layers.vectors import VectorLayer, VectorStatistics, vector_arrays
from shards.layers.vectors_reader import VectorReader
from shards.plan import SpaceQuery
from shards.types import Array, Arrays


class Vectors(VectorLayer):
    """The callers' own vectors, searched by the callers' own questions."""

    name = "vectors"
    granularity = "document"
    query_format = '{"vector": [numbers]}'
    cost = "encodes nothing; as static"

    class Params(contract.Params):
        dim: Annotated[int, Field(ge=1, le=65_536, description="numbers in a vector")]
        metric: Annotated[Literal["cosine", "dot"], Field(description="cosine, or the inner product as it is")] = "cosine"
        given: Annotated[str, Field(min_length=1, max_length=128, description="name that vectors are given under")] = "vectors"

    params: Params

    @classmethod
    def dials(cls, space: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Vectors are given under the space's own name where no other is said."""
        return {"given": space, **params}

    @property
    def given(self) -> tuple[str, int]:
        return self.params.given, self.params.dim

    @property
    def dim(self) -> int:
        return self.params.dim

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        rows = np.arange(len(documents)) if scope is None else np.flatnonzero(scope)
        found: dict[int, Array] = {}
        for start in range(0, len(rows) if known is not None else 0, LOOK_UP_ROWS):
            portion = rows[start : start + LOOK_UP_ROWS]
            kept = known.get(documents.hashes[portion])
            for row in portion.tolist():
                vectors = kept.get(documents.hashes[row].tobytes())
                if vectors is not None:
                    found[row] = vectors
        counts = np.zeros(len(documents), np.int64)
        counts[list(found)] = [len(vectors) for vectors in found.values()]
        row_units = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        vectors = self.scaled(np.concatenate(list(found.values()))) if found else np.zeros((0, 0), np.float32)
        ends = np.repeat(documents.ends - documents.starts, counts).astype(np.int64)
        return vector_arrays(vectors, row_units, np.zeros(len(ends), np.int64), ends, counts > 0, self.hasty)

    def scaled(self, vectors: Array) -> Array:
        return super().scaled(vectors) if self.params.metric == "cosine" else np.ascontiguousarray(vectors)

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> VectorReader:
        return VectorReader(arrays, live)

    def prepare(self, request: Request, statistics: VectorStatistics) -> SpaceQuery | None:
        if request.explicit and not request.form:
            raise BadQuery(f"Layer {self.name!r} cannot be asked in words. It takes {self.query_format}.")
        return super().prepare(request, statistics)

    def asked(self, text: str) -> tuple[str, Array] | None:
        return None
