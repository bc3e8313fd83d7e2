"""A search as a link: `GET /v1/search?corpus=…&q=…`, for what fits into one.

Ray Serve's proxy hands a request's body to the replica in a call of its own, 2.5 ms of CPU. So clients send a link where they can.
"""

import json
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field, ValidationError

from serve.anytime.planning import Goal
from serve.freshness_schema import Freshness
from serve.problems import InvalidRequest, invalid, validated
from serve.schema import MAX_DEPTH, MAX_K, MAX_QUERY_CHARS, Edge, SearchRequest

MAX_LINK_CHARS = 2_000  # of the whole query string: what proxies and logs on the way take without cutting it
LISTS = ("layers", "path")  # parameters that may be repeated
BODY_ONLY = {"forms", "context", "keep_all", "combine", "feedback", "translate", "continue_", "continue"}  # fields that no link says
NAMES = {"query": "q", "paths": "path"}  # fields of a request that a link calls otherwise


class SearchParameters(Edge):
    """GET /v1/search: a search that fits into a link."""

    corpus: Annotated[str, Field(min_length=1, max_length=128)]
    q: Annotated[str, Field(max_length=MAX_QUERY_CHARS, description="what is looked for, as plain text")] = ""
    k: Annotated[int, Field(ge=1, le=MAX_K)] = 10
    layers: Annotated[tuple[str, ...], Field(description="names of spaces, repeated or separated by commas; none: auto")] = ()
    path: Annotated[tuple[str, ...], Field(max_length=100, description="globs, repeated; a leading ! excludes")] = ()
    where: Annotated[str | None, Field(description="metadata filter as JSON")] = None
    budget_ms: Annotated[int, Field(ge=1, le=60_000)] = 2_000
    goal: Annotated[Goal, Field(description="fast, balanced, precise or wide")] = "balanced"
    freshness: Annotated[Freshness, Field(description="trust, check or strict")] = "check"
    cursor: str | None = None
    generation: Annotated[int | None, Field(ge=1, lt=10**16, description="a kept generation; none: the newest")] = None
    highlight: bool = True
    explain: bool = False
    coupling: Annotated[str, Field(max_length=100, description="how lists become one ranking: a name, or rrf:k=2")] = "evidence"
    weights: Annotated[str | None, Field(description='what layers count in it, as JSON: {"bm25": 1, "dense": 2}')] = None
    rerank: Annotated[str | None, Field(min_length=1, max_length=500, description="cross-encoder that orders the best hits anew")] = None
    depth: Annotated[int | None, Field(ge=1, le=MAX_DEPTH, description="hits that it reads; none: 20")] = None

    def request(self) -> SearchRequest:
        """The same search as a request body. Raises BadRequest, InvalidRequest."""
        from serve.bodies import decode  # imports fastapi, which clients need not have loaded

        layers = [name for part in self.layers for name in part.split(",") if name]
        where = None if self.where is None else decode(self.where.encode("utf-8", "replace"), "where")
        said = {"corpus", "k", "budget_ms", "goal", "freshness", "cursor", "generation", "highlight", "explain", "coupling"}
        fields = self.model_dump(include=said, exclude_unset=True)  # what it leaves open the server may choose (`serve.limits`)
        if self.weights is not None:
            fields["weights"] = decode(self.weights.encode("utf-8", "replace"), "weights")
        if self.depth is not None and self.rerank is None:
            raise InvalidRequest("depth: nothing is reranked. Name the model: rerank=MODEL.", at="depth")
        if self.rerank is not None:
            fields["rerank"] = {"model": self.rerank} | ({} if self.depth is None else {"depth": self.depth})
        return validated({**fields, "query": self.q, "layers": layers or "auto", "paths": list(self.path), "where": where})


def request_of(parameters: Iterable[tuple[str, str]]) -> SearchRequest:
    """The search that a link's decoded parameters ask for. Raises BadRequest, InvalidRequest."""
    given: dict[str, str | list[str]] = {}
    for name, value in parameters:
        if name in LISTS:
            given.setdefault(name, []).append(value)  # type: ignore[union-attr]
        else:
            given[name] = value
    try:
        return SearchParameters.model_validate(given).request()
    except ValidationError as error:
        raise invalid(error.errors(), SearchParameters) from None


def parameters_of(request: SearchRequest) -> list[tuple[str, str]] | None:
    """A search as a link's parameters; None where it says what no link says, or more than fits into one."""
    stated = request.model_dump(exclude_defaults=True)
    layers = stated.get("layers", ["auto"])
    if not BODY_ONLY.isdisjoint(stated) or not layers or not all(layers) or any("," in name for name in layers):
        return None
    rerank = stated.pop("rerank", {})
    if rerank is False or not set(rerank) <= {"model", "depth"}:
        return None
    stated |= {"rerank" if name == "model" else name: value for name, value in rerank.items()}
    if "coupling" in stated:
        stated["coupling"] = str(request.coupling)
    found = []
    for field, value in stated.items():
        for each in value if isinstance(value, list) else [value]:
            found.append((NAMES.get(field, field), each if isinstance(each, str) else json.dumps(each)))
    size = sum(len(name) + 2 + 3 * len(value.encode()) for name, value in found)  # a byte is escaped as three characters
    return found if size <= MAX_LINK_CHARS else None
