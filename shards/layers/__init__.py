"""The registry: every layer there is, one line each. A layer's module is imported when the layer is first used."""

import hashlib
import importlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from pydantic import ValidationError

from shards.errors import BadSpec

if TYPE_CHECKING:
    from shards.layers.contract import Layer, Resources

REGISTRY = {
    "names": "shards.layers.names:Names",
    "text": "shards.layers.text:Text",
    "trigram": "shards.layers.trigram:Trigram",
    "fuzzy": "shards.layers.fuzzy:Fuzzy",
    "symbols": "shards.layers.symbols:Symbols",
    "structure": "shards.layers.structure:Structure",
    "bm25": "shards.layers.bm25:BM25",
    "sparse": "shards.layers.sparse:Sparse",
    "static": "shards.layers.vectors:Static",
    "dense": "shards.layers.dense:Dense",
    "vectors": "shards.layers.given:Vectors",
    "embedded": "shards.layers.embedded:Embedded",
    "views": "shards.layers.views:Views",
    "late": "shards.layers.late:Late",
    "image": "shards.layers.image:Image",
    "image_late": "shards.layers.image_late:ImageLate",
    "fingerprint": "shards.layers.fingerprint:Fingerprint",
    "formula": "shards.layers.formula:Formula",
    "formula_ngrams": "shards.layers.formula_ngrams:FormulaNgrams",
}


Built = Literal["all", "used"]


@dataclass(frozen=True, slots=True)
class SpaceSpec:
    """A space as asked for: its name in the corpus, the layer, the dials. `scope`: globs of the entries it is built for.

    built: "used": only of those documents for which use shows that it pays, or that somebody asked for (`shards/building.py`); it says
    when arrays are made and not what is in them, so it is no dial of the layer's and no part of the space's id.
    """

    name: str
    layer: str
    params: dict[str, Any] = field(default_factory=dict)
    scope: tuple[str, ...] = ()
    built: Built = "all"

    @classmethod
    def parse(cls, text: str) -> "SpaceSpec":
        """A spec from the command line: `layer`, `name=layer`, with `:key=value,…` dials and `@glob` scope.

        Examples: `bm25`, `dense@asyncio/**`, `small=static:unit_bytes=500`, `dense:built=used`. Values are JSON, else text.
        """
        head, _, glob = text.partition("@")
        head, _, dials = head.partition(":")
        name, _, layer = head.partition("=")
        params: dict[str, Any] = {}
        for dial in filter(None, dials.split(",")):
            key, eq, value = dial.partition("=")
            if not eq:
                raise BadSpec(f"Layer spec {text!r}: dial {dial!r} has no value. Write key=value.")
            try:
                params[key] = json.loads(value)
            except json.JSONDecodeError:
                params[key] = value
        if not name:
            raise BadSpec(f"Layer spec {text!r} names no layer. Choose from: {', '.join(sorted(REGISTRY))}.")
        built = params.pop("built", "all")
        if built not in get_args(Built):
            raise BadSpec(f"Layer spec {text!r}: built is {built!r}. It is all, or used: of documents that answers show.")
        return cls(name, layer or name, params, (glob,) if glob else (), cast(Built, built))


def create(spec: SpaceSpec, resources: "Resources") -> "Layer":
    """The layer of a spec. Raises BadSpec naming the known layers or the wrong dial."""
    if spec.layer not in REGISTRY:
        raise BadSpec(f"Unknown layer {spec.layer!r}. Choose from: {', '.join(sorted(REGISTRY))}.")
    module, _, attribute = REGISTRY[spec.layer].partition(":")
    layer_class = getattr(importlib.import_module(module), attribute)
    try:
        params = layer_class.Params(**layer_class.dials(spec.name, spec.params))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        dials = ", ".join(layer_class.Params.model_fields) or "none"
        raise BadSpec(f"Layer {spec.layer!r}: {problems}. Its dials are: {dials}.") from None
    layer: Layer = layer_class(params, resources)
    if spec.built == "used" and not layer.in_part:
        raise BadSpec(f"Layer {spec.layer!r} keeps no encodings of documents, so it is built for all: leave out built=used.")
    return layer


def space_id(spec: SpaceSpec, layer: "Layer") -> str:
    """What a space's arrays and scores depend on, as 16 hex digits; spaces of different ids never mix.

    Resolved parameters, so that a changed default is a new space; never the name it goes by.
    """
    body = [layer.name, layer.version, layer.params.model_dump(mode="json"), layer.fingerprint(), list(spec.scope)]
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
