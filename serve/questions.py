"""What each space is asked: the request's text and forms made into the layers' own questions, once, by statistics of the whole corpus."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from serve.narrowing import without_narrowed
from serve.schema import SearchRequest
from shards import routing
from shards.errors import BadQuery, ModelMissing, SondageError
from shards.generation import Generation
from shards.layers.contract import Request
from shards.media import KeptMedia
from shards.plan import SpaceQuery
from shards.routing import Reading

NOTHING_TO_ASK = "nothing in the query for this layer"


def spaces_to_ask(generation: Generation, request: SearchRequest) -> list[str]:
    """The spaces to ask. Raises BadQuery that names those there are."""
    known = sorted(generation.spaces)
    asked = known if request.layers == "auto" else list(dict.fromkeys(request.layers))
    for name in [*asked, *request.forms]:
        if name not in generation.spaces:
            raise BadQuery(f"Corpus {request.corpus!r} has no layer {name!r}. Choose from: {', '.join(known)}.")
    if not request.query.strip() and not request.forms and not request.feedback:
        raise BadQuery("Nothing was asked: give `query`, or `forms` for single layers.")
    if not request.query.strip() and not request.feedback:
        asked = [name for name in asked if name in request.forms]
    return asked


def explicit(request: SearchRequest) -> bool:
    """Whether the caller named spaces or gave one its own form."""
    return bool(request.forms) or request.layers != "auto"


def prepare(generation: Generation, request: SearchRequest, names: list[str]) -> tuple[list[SpaceQuery], dict[str, str]]:
    """Every space's question, and why some have none.

    A space that nobody named is asked what its layer takes (`Layer.shapes`). Where that leaves none with anything to ask, all are asked.
    """
    reading = routing.read(request.query)
    named = set(names if request.layers != "auto" else request.forms)
    left_out = [name for name in names if name not in named and not reading.asks(generation.spaces[name].layer.shapes)]
    prepared, reasons = _questions(generation, request, [name for name in names if name not in left_out], named, reading)
    if left_out and not prepared:
        prepared, others = _questions(generation, request, left_out, named, reading)
        return prepared, reasons | others
    return prepared, reasons | {name: reading.why_not(generation.spaces[name].layer.shapes) for name in left_out}


def _questions(
    generation: Generation, request: SearchRequest, names: Sequence[str], named: Collection[str], reading: Reading
) -> tuple[list[SpaceQuery], dict[str, str]]:
    """The questions of these spaces, and why some have none. A model that is missing silences its space, unless it was named."""
    prepared: list[SpaceQuery] = []
    reasons: dict[str, str] = {}
    for name in names:
        layer = generation.spaces[name].layer
        explicit = name in named
        if problem := generation.spaces[name].problem:
            if explicit:
                raise ModelMissing(f"Layer {name!r} cannot be asked: {problem}.")
            reasons[name] = problem
            continue
        try:
            shapes = frozenset() if explicit else reading.shapes.keys()
            wanted = Request(request.query, request.forms.get(name, {}), explicit, KeptMedia(generation.store).one, shapes)
            asked = layer.prepare(wanted, generation.statistics(name))
        except BadQuery as error:
            raise BadQuery(f"Layer {name!r}: {error}") from None
        except SondageError as error:
            if explicit:
                raise
            reasons[name] = str(error)
            continue
        if asked is None:
            reasons[name] = NOTHING_TO_ASK
        else:
            prepared.append(replace(asked, space=name))
    prepared, narrowed = without_narrowed(generation, prepared)
    return prepared, reasons | narrowed


def silent(generation: Generation, reasons: Mapping[str, str]) -> list[str]:
    """Spaces that were to be asked but had nothing to ask, whose evidence is 0."""
    return [name for name, reason in reasons.items() if reason == NOTHING_TO_ASK and not generation.spaces[name].scope]
