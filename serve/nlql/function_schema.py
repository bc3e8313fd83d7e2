"""What a query in JSON may look like, as JSON Schema: for language models that call it as a tool, and for editors."""

from collections.abc import Iterable
from typing import Any

from serve.nlql.bounds import MAX_ROWS
from shards.nlql.ir import COMPARISONS, UNITS

BUILT_IN_TYPES = ("date", "timestamp", "text", "number", "bool")

_EXPR = {"$ref": "#/$defs/expr"}
_ROWS = {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_ROWS}


def function_schema(functions: Iterable[str] = (), types: Iterable[str] = BUILT_IN_TYPES, strict: bool = False) -> dict[str, Any]:
    """The schema (draft 2020-12) of what `query_from_dict` reads.

    functions: the names that may be called; none: any. types: the words for `type_hint`. strict: without what Sondage adds.
    """
    name: dict[str, Any] = {"type": "string", "minLength": 1}
    called = sorted(functions)
    nodes: dict[str, Any] = {
        "literal": _node(
            "literal",
            "A value. type_hint says how to compare it, as in DATE '2024-01-01'.",
            {"value": {"type": ["string", "number", "boolean", "null"]}, "type_hint": {"enum": [*sorted(types), None]}},
            ["value"],
        ),
        "path": _node(
            "path",
            'What a row has: root "content" is its text; root "meta" with segments ["author", "team"] is the metadata author.team; '
            'root "vec" with one segment is a named vector, as SIMILARITY\'s first argument only.',
            {"root": name, "segments": {"type": "array", "items": name}},
            ["root"],
        ),
        "ref": _node("ref", "The value that `let` binds to this name.", {"name": name}, ["name"]),
        "call": _node(
            "call",
            "A function of its arguments. SIMILARITY takes the path content and a literal text; CONTAINS, MATCH, LIKE two values.",
            {"name": {"enum": called} if called else name, "args": {"type": "array", "items": _EXPR}},
            ["name"],
        ),
        "compare": _node(
            "compare",
            "Two values compared. A missing value is null: == is true of two nulls, orders are false.",
            {"op": {"enum": list(COMPARISONS)}, "left": _EXPR, "right": _EXPR},
            ["op", "left", "right"],
        ),
        "and": _node("and", "All of these.", {"operands": _some()}, ["operands"]),
        "or": _node("or", "Any of these.", {"operands": _some()}, ["operands"]),
        "not": _node("not", "Not this.", {"operand": _EXPR}, ["operand"]),
    }
    clauses: dict[str, Any] = {
        "select": {
            "type": "object",
            "additionalProperties": False,
            "required": ["unit"],
            "properties": {
                "unit": {"enum": list(UNITS), "description": "What a row is: a whole document, a passage, or a sentence."},
                "window": _ROWS | {"description": "Units to show on either side of each; leave out for the unit alone."},
            },
        },
        "let": {
            "type": ["array", "null"],
            "description": 'Values with names. Bind SIMILARITY(content, "question") to a name, and use it in where and order_by by a ref.',
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "expr"],
                "properties": {"name": name, "expr": _EXPR},
            },
        },
        "where": {"anyOf": [_EXPR, {"type": "null"}], "description": "Rows for which this does not hold are left out."},
        "order_by": {
            "type": ["array", "null"],
            "description": "First key first. Without it: the first similarity, best first; without one, the order in which documents came.",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["expr"],
                "properties": {"expr": _EXPR, "desc": {"type": "boolean", "description": "Largest first. Rows without a value come last."}},
            },
        },
        "limit": _ROWS | {"description": "Rows at most: 1 to 3 for one fact, 5 to 10 for an overview. Left out: all."},
    }
    if not strict:
        nodes["in"] = _node(
            "in",
            "Whether a value equals any of these.",
            {"operand": _EXPR, "items": {"type": "array", "items": _EXPR}},
            ["operand", "items"],
        )
        nodes["parameter"] = _node("parameter", "A value that is given beside the query.", {"name": name}, ["name"])
        clauses["offset"] = _ROWS | {"description": "Rows to leave out at the top."}
        clauses["within_ms"] = {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_ROWS, "description": "Milliseconds to answer in."}
        clauses["count_by"] = {
            "type": ["array", "null"],
            "items": _EXPR,
            "description": "Values by which all rows that `where` keeps are counted.",
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "NLQL query",
        "description": "A question to a corpus: what a row is, what must hold of it, and in which order rows come.",
        "type": "object",
        "additionalProperties": False,
        "required": ["select"],
        "properties": clauses,
        "$defs": {"expr": {"oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in nodes]}, **nodes},
    }


def function_tool(name: str = "nlql_query", functions: Iterable[str] = (), **fields: Any) -> dict[str, Any]:
    """The schema as a tool in OpenAI's form. fields: more of `function_schema`."""
    schema = function_schema(functions, **fields)
    return {
        "type": "function",
        "function": {"name": name, "description": "Searches a corpus by meaning, text and metadata.", "parameters": schema},
    }


def _node(kind: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "additionalProperties": False,
        "required": ["node", *required],
        "properties": {"node": {"const": kind}, **properties},
    }


def _some() -> dict[str, Any]:
    return {"type": "array", "items": _EXPR, "minItems": 1}
