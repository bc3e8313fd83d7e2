"""What stands for a query of NLQL in Python, as the request that it becomes: one place for clients, engine and command line."""

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

from serve.nlql.schema import QueryRequest, query_request

if TYPE_CHECKING:
    from serve.nlql.builder import QueryBuilder
    from shards.nlql.ir import Query


def as_query(
    query: "str | Query | QueryBuilder | Mapping[str, Any] | QueryRequest", corpus: str = "", fields: Mapping[str, Any] | None = None
) -> QueryRequest:
    """A query as a request: a text, a tree (of classes, or as JSON), what a builder makes, or a whole request.

    corpus, fields: of the request, where it is not whole already. Raises InvalidRequest with the place of what is wrong, SchemaError for a
    tree that is none.
    """
    if isinstance(query, QueryRequest):
        if corpus or fields:
            raise TypeError("query() takes a QueryRequest, or its fields, not both")
        return query
    asked: dict[str, Any] = dict(fields or {})
    if corpus:
        asked["corpus"] = corpus
    if isinstance(query, str):
        asked["text"] = query
    elif isinstance(query, Mapping):
        asked["ir"] = dict(query)
    else:
        from serve.nlql.builder import as_query as tree_of
        from serve.nlql.json_ir import query_to_dict

        asked["ir"] = query_to_dict(tree_of(query))
    if asked.get("params"):
        asked["params"] = {name: _told(value) for name, value in asked["params"].items()}
    return query_request(asked)


def _told(value: Any) -> Any:
    """A parameter as JSON can carry it: dates and times as ISO 8601, which compares as a date with what reads as one."""
    if isinstance(value, list | tuple | set | frozenset):
        return [_told(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value
