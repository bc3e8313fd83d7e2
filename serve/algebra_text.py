"""Trees of the algebra as one line for people: what an answer echoes, so that a misunderstanding shows."""

import json
from typing import Any

from serve.algebra_schema import Bridge, Cut, FieldKey, Fuse, Operator, Search, SubQuery, Text, Weighted, WeightedSum, operands, operator_of


def written(node: Operator) -> str:
    """A node as one line, for people: bridge(cut(search[bm25]("aspirin"), 3), inchikey, search[fingerprint]({"inchikey": "$key"}))."""
    match node:
        case Search(search=asked):
            return _search_written(asked)
        case Text(text=text):
            return _quoted(text)
        case Cut(cut=fields):
            limits = [str(fields.n)] if fields.n is not None else []
            limits += [f"E <= {fields.evalue:g}"] if fields.evalue is not None else []
            limits += [fields.verdict] if fields.verdict is not None else []
            limits += [f"recall {fields.recall:g}"] if fields.recall is not None else []
            return f"cut({', '.join([written(fields.of), *limits])})"
        case Fuse(fuse=fields):
            how = "" if fields.coupling.name == "evidence" else f"[{fields.coupling}]"
            return f"fuse{how}({_weighted_written(fields)})"
        case WeightedSum(wsum=fields):
            return f"wsum({_weighted_written(fields)})"
        case Bridge(bridge=fields):
            return f"bridge({written(fields.source)}, {key_written(fields.key)}, {written(fields.to)})"
    return f"{operator_of(node)}({', '.join(map(written, operands(node)))})"


def key_written(key: Any) -> str:
    """What of a hit is the key, for people."""
    return key if isinstance(key, str) else key.field if isinstance(key, FieldKey) else f"/{key.pattern}/"


def _search_written(asked: SubQuery) -> str:
    layers = "" if asked.layers == "auto" else f"[{', '.join(asked.layers)}]"
    said = [_quoted(asked.query)] if asked.query else []
    if asked.layers == "auto" and len(asked.forms) == 1 and not asked.query:
        layers = f"[{next(iter(asked.forms))}]"
        said += [json.dumps(form, ensure_ascii=False) for form in asked.forms.values()]
    else:
        said += [f"{space}={json.dumps(form, ensure_ascii=False)}" for space, form in asked.forms.items()]
    said += [f"paths={json.dumps(asked.paths, ensure_ascii=False)}"] if asked.paths else []
    said += [f"where={json.dumps(asked.where, ensure_ascii=False)}"] if asked.where is not None else []
    said += [str(asked.coupling)] if asked.coupling.name != "evidence" else []
    said += [f"weights={json.dumps(asked.weights, ensure_ascii=False)}"] if asked.weights else []
    return f"{asked.name + ': ' if asked.name else ''}search{layers}({', '.join(said)})"


def _weighted_written(fields: Weighted) -> str:
    if not fields.weights:
        return ", ".join(map(written, fields.of))
    return ", ".join(f"{weight:g} * {written(node)}" for weight, node in zip(fields.weights, fields.of, strict=True))


def _quoted(text: str) -> str:
    shown = text if len(text) <= 200 else f"{text[:199]}…"
    return json.dumps(shown, ensure_ascii=False)
