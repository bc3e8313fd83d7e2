"""Sondage from Python: `connect` to a server, open an `Engine` over a store in this process, or fill and ask one of its own.

    import sondage

    with sondage.connect("http://127.0.0.1:8765") as client:
        for hit in client.search("parse an HTTP date", corpus="stdlib").hits:
            print(hit.entries[0].path, hit.line, hit.evalue)

    async with sondage.connect_async("http://127.0.0.1:8765") as client:  # asyncio or trio
        answers = await asyncio.gather(*(client.search(question, corpus="stdlib") for question in questions))

    with sondage.Engine(embedder) as engine:  # an object with model_id, dim and embed(texts)
        engine.add_text("AI agents call tools.", id="a", metadata={"year": 2024})
        rows = engine.search('SELECT SENTENCE LET rel = SIMILARITY(content, "agents") WHERE meta.year > 2020 ORDER BY rel DESC LIMIT 5')

All answer with the same types (`serve.schema`, `serve.nlql.schema`) and raise the same errors (`shards.errors`). What queries call and
name is registered by decorators, for the process (`@sondage.function("WORDS")`) or for one engine (`@engine.register_function("WORDS")`).
"""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from serve.problems import validated
from serve.schema import DocumentAnswer, Hit, SearchAnswer, SearchRequest
from shards.errors import SondageError
from shards.plugins import embedder, function, normalizer, reranker, splitter, value_type

if TYPE_CHECKING:
    from .async_http import AsyncClient
    from .documents import Document
    from .engine import Engine
    from .http import Client
    from .refusals import Refused, Unreachable
    from .tries import Retries

DEFAULT_URL = "http://127.0.0.1:8765"

__all__ = [
    "DEFAULT_URL", "AsyncClient", "Client", "Document", "DocumentAnswer", "Engine", "Hit", "Refused", "Retries", "SearchAnswer",
    "SearchRequest", "SondageError", "Unreachable", "connect", "connect_async", "embedder", "function", "normalizer", "reranker",
    "splitter", "value_type",
]  # fmt: skip


def connect(
    url: str = DEFAULT_URL,
    api_key: str | None = None,
    ca_file: "str | os.PathLike[str] | None" = None,
    *,
    retries: "int | Retries" = 3,
    connections: int = 100,
) -> "Client":
    """A client of the server at `url`. Other arguments: see `Client`. Nothing is sent before the first call."""
    from .http import Client

    return Client(url, api_key, ca_file, retries=retries, connections=connections)


def connect_async(
    url: str = DEFAULT_URL,
    api_key: str | None = None,
    ca_file: "str | os.PathLike[str] | None" = None,
    *,
    retries: "int | Retries" = 3,
    connections: int = 100,
) -> "AsyncClient":
    """The same for asyncio or trio: `async with sondage.connect_async(url) as client: await client.search(…)`."""
    from .async_http import AsyncClient

    return AsyncClient(url, api_key, ca_file, retries=retries, connections=connections)


def as_request(query: str | SearchRequest = "", corpus: str = "", fields: Mapping[str, Any] | None = None) -> SearchRequest:
    """The arguments of `search` as a request. Raises InvalidRequest with the place of what is wrong."""
    if not isinstance(query, SearchRequest):
        return validated({"query": query, "corpus": corpus, **(fields or {})})
    if corpus or fields:
        raise TypeError("search() takes a SearchRequest, or its fields, not both")
    return query


_CLIENTS = {
    "AsyncClient": "async_http",
    "Document": "documents",
    "Client": "http",
    "Refused": "refusals",
    "Retries": "tries",
    "Unreachable": "refusals",
}


# What queries of NLQL are built of in Python (`serve/nlql/builder.py`).
BUILDING = (
    "F", "Meta", "call", "contains", "content", "count", "field", "has", "length", "like", "lit", "lower", "match", "param", "select",
    "similarity", "upper", "vec",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    # The engine imports numba and more, the client httpx: each is loaded when first named.
    if name == "Engine":
        from .engine import Engine

        return Engine
    if name in BUILDING:
        return getattr(import_module("serve.nlql.builder"), name)
    if name in _CLIENTS:
        return getattr(import_module(f".{_CLIENTS[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
