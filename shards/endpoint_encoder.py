"""Texts to vectors by an OpenAI-compatible embeddings endpoint (`shards/endpoints.py`)."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from shards.encoders import Done, cut_dim, digest, unit_rows
from shards.endpoint_settings import Usage
from shards.endpoints import Endpoint, endpoint_of
from shards.errors import EndpointError
from shards.layers.contract import Resources
from shards.types import Array

QUERY_S = 3.0  # a question waits no longer for its vector: whoever searches has other spaces
QUERY_WAITS_S = (0.1, 0.5)  # before asking again, within it
SILENCE_S = 10.0  # after a question in vain nobody asks again for so long, but is told at once
_QUERY_CHARS = 8_000  # read of a question: OpenAI's models take 8,192 tokens and refuse more


class EndpointEncoder:
    """A model of an endpoint, as an `Encoder` (`shards.encoders`).

    endpoint: its name in the settings; its URL and key are part of no file and of no fingerprint, so a server may move. dim: the first
    numbers kept, scaled anew, which is what `dimensions` of OpenAI's protocol gives and needs no server that has it. clock: seconds.
    options: of the client, for tests.

    A server may give a text other last bits at another time. Each document is encoded once and its vectors are kept, so all shards
    agree; a question's vector is the same in one process only. Every method that needs the endpoint raises EndpointError.
    """

    def __init__(
        self,
        endpoint: str,
        model: str,
        resources: Resources,
        *,
        document_prompt: str | None = None,
        query_prompt: str | None = None,
        dim: int | None = None,
        metric: Literal["cosine", "dot"] | None = None,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ):
        self.endpoint, self.model, self.resources = endpoint, model, resources
        self._document_prompt, self._query_prompt = document_prompt or "", query_prompt or ""
        self._wanted_dim, self._metric, self._clock, self._options = dim, metric, clock, options
        self._dim: int | None = None
        self._lock = threading.Lock()
        self._spent = Usage()  # told so far
        self._failed: tuple[float, EndpointError] | None = None  # when a question was asked in vain, and why

    @property
    def dim(self) -> int:
        if self._dim is None:
            self.encode_queries(["dimension"])
        assert self._dim is not None
        return self._dim

    def fingerprint(self) -> str:
        return digest("endpoint", self.endpoint, self.model, self._document_prompt, self._query_prompt, self._wanted_dim)

    def encode_documents(self, texts: Sequence[str], done: Done | None = None) -> Array:
        """As `Encoder` says; tried again for a minute where that may help."""
        return self._scaled(self._client.embed([self._document_prompt + text for text in texts], done=done))

    def encode_queries(self, texts: Sequence[str]) -> Array:
        """As `Encoder` says, within `QUERY_S`; refused at once for `SILENCE_S` after that was not enough."""
        with self._lock:
            failed = self._failed
        if failed is not None and self._clock() < failed[0] + SILENCE_S:
            raise failed[1]
        try:
            vectors = self._asker.embed([self._query_prompt + text for text in texts], budget_s=QUERY_S)
        except EndpointError as error:
            with self._lock:
                self._failed = (self._clock(), error)
            raise
        with self._lock:
            self._failed = None
        return self._scaled(vectors)

    def spent(self) -> Usage:
        """What documents have cost since this was asked last."""
        with self._lock:
            before, self._spent = self._spent, self._client.usage
            return self._spent - before

    def reads(self, text: str) -> str:
        return text[:_QUERY_CHARS]

    @cached_property
    def _client(self) -> Endpoint:
        return endpoint_of(self.resources.endpoints, self.endpoint, self.model, **self._options)

    @cached_property
    def _asker(self) -> Endpoint:
        quick = {"concurrency": 1, "timeout_s": QUERY_S, "waits_s": QUERY_WAITS_S}
        return endpoint_of(self.resources.endpoints, self.endpoint, self.model, **quick | self._options)

    def _scaled(self, vectors: Array) -> Array:
        """Vectors as they are compared, (n, dim) float32."""
        dim = cut_dim(self.model, vectors.shape[1], self._wanted_dim)
        if self._dim is not None and dim != self._dim:
            raise EndpointError(
                f"Model {self.model!r} of endpoint {self.endpoint!r} gave vectors of {dim} numbers; before it gave {self._dim}. "
                "Another model bears its name now: build the space anew under another `model`.",
                reason="garbage",
            )
        self._dim = dim
        cut = np.ascontiguousarray(vectors[:, :dim])
        return cut if self._metric == "dot" else unit_rows(cut)
