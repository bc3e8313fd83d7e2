"""NLQL in Python: `from sondage.nlql import F, Meta, content, select, similarity`, and the errors that a query causes."""

from serve.nlql.builder import (
    F,
    Meta,
    QueryBuilder,
    Term,
    call,
    contains,
    content,
    count,
    field,
    has,
    length,
    like,
    lit,
    lower,
    match,
    param,
    select,
    similarity,
    upper,
    vec,
)
from serve.nlql.function_schema import function_schema, function_tool
from serve.nlql.json_ir import query_from_dict, query_to_dict
from serve.nlql.parser import parse
from serve.nlql.unparse import unparse, written
from shards.nlql.errors import (
    EmbeddingError,
    ExecutionError,
    NLQLError,
    NLQLTypeError,
    ParseError,
    PlanError,
    RegistryError,
    SchemaError,
)
from shards.nlql.ir import Query

__all__ = [
    "EmbeddingError", "ExecutionError", "F", "Meta", "NLQLError", "NLQLTypeError", "ParseError", "PlanError", "Query", "QueryBuilder",
    "RegistryError", "SchemaError", "Term", "call", "contains", "content", "count", "field", "function_schema", "function_tool", "has",
    "length", "like", "lit", "lower", "match", "param", "parse", "query_from_dict", "query_to_dict", "select", "similarity", "unparse",
    "upper", "vec", "written",
]  # fmt: skip
