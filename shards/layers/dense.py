"""Passages by the vector that a transformer gives them, here or at an endpoint. Arrays: `shards.layers.vectors`."""

from collections.abc import Callable
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from shards.documents import Documents
from shards.encoders import DenseEncoder, unit_rows
from shards.endpoint_encoder import EndpointEncoder
from shards.endpoint_settings import Usage
from shards.layers.vectors import EncodedLayer, VectorParams
from shards.types import Array


class Dense(EncodedLayer):
    """Passages by the vector that a transformer gives them.

    context=late: late chunking, see `shards.transformer.Transformer.pooled`. Not the default, because it need not be better: MiniLM in
    bf16, 300 queries of scifact over 600 of its documents, nDCG@10 (p of the difference), at 256 tokens and at all 512 positions:

        unit_bytes    isolated    late          window_tokens=512
        300           .8478       .8435 (.6)    .8440 (.7)
        600           .8470       .8435 (.6)    .8379 (.2)

    `python jobs/bench.py context --dataset scifact --unit-bytes 300,600`
    """

    name = "dense"
    version = 2  # 1: passes of padded lengths, whose vectors differ by 1e-7
    cost = "encodes 5,500 tokens/s on 2 cores; 2 kB a passage, 1.2 in fp16; 1 ms for 100,000 passages"
    dear = True
    portion_units = 64  # some seconds of work on two cores

    class Params(VectorParams):
        model: Annotated[str, Field(description="minilm, a folder, a name on the Hugging Face hub, or the endpoint's name of it")] = (
            "minilm"
        )
        endpoint: Annotated[str | None, Field(description="OpenAI-compatible endpoint of the settings that encodes, such as default")] = (
            None
        )
        document_prompt: Annotated[str | None, Field(description="put before each passage; null: the model's own")] = None
        query_prompt: Annotated[str | None, Field(description="put before each question; null: the model's own")] = None
        dtype: Annotated[Literal["fp32", "bf16"], Field(description="number format of the model while encoding")] = "fp32"
        context: Annotated[Literal["isolated", "late"], Field(description="late: passages are read in their document")] = "isolated"
        window_tokens: Annotated[int | None, Field(ge=8, description="read at once with context=late; null: the model's limit")] = None
        metric: Annotated[Literal["cosine", "dot"] | None, Field(description="null: cosine, if the model asks for nothing else")] = None

        _since: ClassVar[tuple[str, ...]] = ("storage", "unit", "endpoint", "context", "window_tokens", "metric")

        @model_validator(mode="after")
        def _go_together(self) -> "Dense.Params":
            if self.window_tokens is not None and self.context == "isolated":
                raise ValueError("window_tokens is for context=late")
            if self.endpoint is not None and "model" not in self.model_fields_set:
                raise ValueError("an endpoint has no default model: say which, e.g. model=text-embedding-3-small")
            if self.endpoint is not None and (self.context == "late" or self.dtype != "fp32"):
                raise ValueError("an endpoint gives vectors of whole texts in its own number format: leave out context and dtype")
            return self

    params: Params

    @property
    def takes_gpu(self) -> bool:
        return self.params.endpoint is None

    @cached_property
    def encoder(self) -> DenseEncoder | EndpointEncoder:
        p = self.params
        common = {"document_prompt": p.document_prompt, "query_prompt": p.query_prompt, "dim": p.dim, "metric": p.metric}
        if p.endpoint is not None:
            return EndpointEncoder(p.endpoint, p.model, self.resources, **common)
        return DenseEncoder(p.model, self.resources, dtype=p.dtype, **common)

    @property
    def question_model(self) -> str:
        return self.params.model

    def encoded(
        self, documents: Documents, rows: Array, starts: Array, ends: Array, row_units: Array, tell: Callable[[int], None] | None
    ) -> Array:
        if self.params.context == "isolated" or isinstance(self.encoder, EndpointEncoder):
            return super().encoded(documents, rows, starts, ends, row_units, tell)
        units = [slice(row_units[row], row_units[row + 1]) for row in rows.tolist()]
        located = [_in_characters(documents.content(row), starts[of], ends[of]) for row, of in zip(rows.tolist(), units, strict=True)]
        texts, spans = zip(*located, strict=True)
        return self.encoder.encode_passages(texts, spans, self.params.window_tokens, tell)

    def spent(self) -> Usage | None:
        return self.encoder.spent() if isinstance(self.encoder, EndpointEncoder) else None

    def scaled(self, vectors: Array) -> Array:
        return np.ascontiguousarray(vectors, np.float32) if self.params.metric == "dot" else unit_rows(vectors)


def _in_characters(content: Array, starts: Array, ends: Array) -> tuple[str, Array]:
    """A document's text from its first passage to its last, and their spans in its characters, (p, 2) int64.

    content: (n,) uint8; starts, ends: (p,) int64 bytes, starts ascending.
    """
    cuts = np.unique(np.concatenate([starts, ends]))
    pieces = [bytes(content[a:b]).decode("utf-8", "replace") for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    places = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
    spans = np.stack([places[np.searchsorted(cuts, starts)], places[np.searchsorted(cuts, ends)]], axis=1)
    return "".join(pieces), spans
