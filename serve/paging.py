"""Cursors: where the next page of an answer begins, on the generation and with the request that the first one had."""

import base64
import hashlib
import json
from dataclasses import dataclass

from serve.reranking import Pinned
from serve.schema import MAX_DEPTH, SearchRequest
from shards.errors import BadQuery

# What of a request decides which hits stand in which order.
ORDERING = {
    "corpus", "query", "forms", "layers", "paths", "where", "generation", "coupling", "weights", "rerank", "combine", "feedback",
    "translate",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the next page begins. n_candidates is kept: another number could change the order of what was already shown. So is what
    the last stage did to the order of the first page; None where there was none.
    """

    generation: int
    offset: int
    n_candidates: int
    request: str
    reranked: Pinned | None = None

    def encode(self) -> str:
        body: list[int | str] = [self.generation, self.offset, self.n_candidates, self.request]
        if self.reranked is not None:
            body += [base64.b64encode(bytes(self.reranked.places)).decode(), self.reranked.mark]  # a place fits into a byte
        return base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str, request: str) -> "Cursor":
        try:
            body = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            reranked = None
            if len(body) > 4:
                reranked = Pinned(tuple(base64.b64decode(body[4], validate=True)), str(body[5]))
                if len(reranked.places) > MAX_DEPTH or sorted(reranked.places) != list(range(len(reranked.places))):
                    raise ValueError("no order of hits")
            cursor = cls(int(body[0]), int(body[1]), int(body[2]), str(body[3]), reranked)
        except (ValueError, LookupError, TypeError):
            raise BadQuery("The cursor is not one that a previous answer gave. Leave it out to start at the first page.") from None
        if cursor.request != request:
            raise BadQuery("The cursor belongs to another request. Send it with the same query, layers, filters, coupling and weights.")
        return cursor


def identity(request: SearchRequest) -> str:
    """What must not change between pages."""
    body = request.model_dump_json(include=ORDERING)
    return hashlib.sha256(body.encode()).hexdigest()[:12]
