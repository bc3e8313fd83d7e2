"""Sondage from Python: `connect` to a server, or open an `Engine` over a store in this process.

    import sondage

    with sondage.connect("http://127.0.0.1:8765") as client:
        for hit in client.search("parse an HTTP date", corpus="stdlib").hits:
            print(hit.entries[0].path, hit.line, hit.evalue)

Both answer the same calls with the same types (`serve.schema`) and raise the same errors (`shards.errors`).
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from serve.problems import validated
from serve.schema import DocumentAnswer, Hit, SearchAnswer, SearchRequest
from shards.errors import SondageError

if TYPE_CHECKING:
    from .engine import Engine
    from .http import Client

DEFAULT_URL = "http://127.0.0.1:8765"

__all__ = ["DEFAULT_URL", "Client", "DocumentAnswer", "Engine", "Hit", "SearchAnswer", "SearchRequest", "SondageError", "connect"]


def connect(url: str = DEFAULT_URL, api_key: str | None = None, ca_file: "str | os.PathLike[str] | None" = None) -> "Client":
    """A client of the server at `url`. ca_file: see `Client`. Nothing is sent before the first call."""
    from .http import Client

    return Client(url, api_key, ca_file)


def as_request(query: str | SearchRequest = "", corpus: str = "", fields: Mapping[str, Any] | None = None) -> SearchRequest:
    """The arguments of `search` as a request. Raises InvalidRequest with the place of what is wrong."""
    if not isinstance(query, SearchRequest):
        return validated({"query": query, "corpus": corpus, **(fields or {})})
    if corpus or fields:
        raise TypeError("search() takes a SearchRequest, or its fields, not both")
    return query


def __getattr__(name: str) -> Any:
    # The engine imports numba and more, the client httpx: each is loaded when first named.
    if name == "Engine":
        from .engine import Engine

        return Engine
    if name == "Client":
        from .http import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
