"""Schemas of models as /openapi.json wants them, where a route reads its body by hand."""

from typing import Any


def in_place(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema with its definitions where they are used: inside another document nothing finds them. What holds itself, as the nodes
    of `combine` do, is told once, and named where it comes again."""
    definitions = schema.get("$defs", {})

    def resolved(part: Any, inside: tuple[str, ...]) -> Any:
        if isinstance(part, list):
            return [resolved(item, inside) for item in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            if name in inside:
                return {"type": "object", "description": f"again a {name}, as above"}
            return resolved(definitions[name], (*inside, name))
        return {name: resolved(value, inside) for name, value in part.items() if name != "$defs"}

    return resolved(schema, ())
