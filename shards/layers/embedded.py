"""Units of text by the vectors that a user's own embedder gives them (`shards.plugins`). Arrays: `shards.layers.vectors`."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from shards.encoders import Done, unit_rows
from shards.errors import SondageError
from shards.layers.vectors import EncodedLayer, VectorParams
from shards.nlql.errors import EmbeddingError, PlanError
from shards.plugins import Embedder, Plugins
from shards.types import Array

PORTION = 4_096  # texts that an embedder is given at once


class RegisteredEncoder:
    """A registered embedder as an encoder: looked up when it is first needed, its vectors checked and scaled to unit length.

    name: it goes by. dim: the numbers that are asked of a vector; None: as many as it says.
    """

    def __init__(self, name: str, plugins: Plugins, dim: int | None = None):
        self.name, self._plugins, self._dim = name, plugins, dim

    @cached_property
    def embedder(self) -> Embedder:
        found = self._plugins.embedder_of(self.name)
        if self._dim not in (None, found.dim):
            raise PlanError(f"Embedder {self.name!r} gives vectors of {found.dim} numbers; the space has {self._dim}. Set dim={found.dim}.")
        return found

    @property
    def dim(self) -> int:
        return self.embedder.dim if self._dim is None else self._dim

    def fingerprint(self) -> str:
        return f"{self.embedder.model_id}:{self.embedder.dim}"

    def reads(self, text: str) -> str:
        return text

    def encode_documents(self, texts: Sequence[str], done: Done | None = None) -> Array:
        distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        wanted, vectors = list(distinct), np.empty((len(distinct), self.embedder.dim), np.float32)
        for start in range(0, len(wanted), PORTION):
            portion = wanted[start : start + PORTION]
            vectors[start : start + PORTION] = self._embedded(self.embedder.embed, portion)
            if done is not None:
                done((start + len(portion)) * len(texts) // len(wanted))
        return vectors if len(distinct) == len(texts) else vectors[[distinct[text] for text in texts]]

    def encode_queries(self, texts: Sequence[str]) -> Array:
        return self._embedded(getattr(self.embedder, "embed_queries", self.embedder.embed), list(texts))

    def _embedded(self, embed: Callable[[Sequence[str]], Any], texts: list[str]) -> Array:
        shape = (len(texts), self.embedder.dim)
        try:
            vectors = np.asarray(embed(texts))
            vectors = vectors if vectors.dtype == np.float32 else vectors.astype(np.float64)
        except SondageError:
            raise
        except Exception as error:  # code of the user's: whoever asked must learn whose it is
            raise EmbeddingError(f"Embedder {self.name!r} failed on {len(texts)} texts: {type(error).__name__}: {error}.") from error
        if vectors.shape != shape:
            raise EmbeddingError(
                f"Embedder {self.name!r} returned an array of shape {vectors.shape} for {len(texts)} texts; expected {shape}."
            )
        if not np.isfinite(vectors).all():
            raise EmbeddingError(f"Embedder {self.name!r} returned vectors with infinity or NaN. Return finite numbers.")
        return unit_rows(vectors)


class Embedded(EncodedLayer):
    """Sentences, chunks or passages by the vectors of an embedder that is registered in this process.

    Only building and asking in words need the embedder; a process that has none serves questions by vector.
    """

    name = "embedded"
    cost = "as its embedder; 4 bytes a number; 12 ms for 100,000 units of 384 numbers"
    portion_units = 20_000
    warmed = False  # it may know no other texts than the corpus's, or want money for each

    class Params(VectorParams):
        embedder: Annotated[str, Field(min_length=1, description="the name that it is registered under")] = "default"
        dim: Annotated[int | None, Field(ge=1, description="numbers of a vector, compared with what the embedder says")] = None
        unit: Annotated[
            str, Field(min_length=1, description="sentence or chunk as NLQL cuts them, passage, or a registered splitter's name")
        ] = "sentence"

        _since: ClassVar[tuple[str, ...]] = ("storage",)

    params: Params

    @cached_property
    def encoder(self) -> RegisteredEncoder:
        return RegisteredEncoder(self.params.embedder, self.resources.plugins, self.params.dim)

    def check(self) -> None:
        super().check()
        self.encoder.embedder  # noqa: B018  raises where it is not registered, or has another dim

    @property
    def question_model(self) -> str:
        return self.params.embedder
