"""The questions of a query: each distinct text is put to a space once, whoever of the scores asks it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from serve.nlql.facts import WHOLE
from serve.nlql.plan import Planned
from serve.nlql.scorers import NO_VECTOR, Scorer
from shards.layers.contract import Request
from shards.media import KeptMedia
from shards.nlql import plan as row_plan
from shards.nlql.errors import EmbeddingError, NLQLError, PlanError
from shards.plan import SpaceQuery

if TYPE_CHECKING:
    from shards.generation import Generation
    from shards.plugins import Plugins

NOTHING = row_plan.Given(b"", b"")


@dataclass(frozen=True, slots=True)
class Questions:
    """What shards are asked for each score, by its place among them. asked: the prepared questions, None where there is nothing to ask."""

    scorers: tuple[row_plan.Scorer | None, ...]
    asked: tuple[SpaceQuery | None, ...] = ()
    made: Mapping[tuple[str, str, str], SpaceQuery | None] = field(default_factory=dict)


def prepare(planned: Planned, generation: "Generation", plugins: "Plugins") -> Questions:
    """The questions of all scores but those that a search answers (EVIDENCE, EVALUE), which have None.

    Raises PlanError where a layer cannot read its question, EmbeddingError where an embedder fails, both at the call.
    """
    made: dict[tuple[str, str, str], SpaceQuery | None] = {}
    scorers: list[row_plan.Scorer | None] = []
    asked: list[SpaceQuery | None] = []
    for number, scorer in enumerate(planned.scorers):
        name = f"#{number}"
        if scorer.kind in ("evidence", "evalue"):
            scorers.append(None)
            asked.append(None)
            continue
        missing = NO_VECTOR if scorer.is_named else None
        if not scorer.spaces:
            scorers.append(row_plan.Scorer(name, "given", missing=missing, given=NOTHING))
            asked.append(None)
            continue
        key = (scorer.spaces[0], scorer.text, repr(scorer.form))
        if key not in made:
            try:
                made[key] = _question(scorer, generation, plugins)
            except NLQLError as error:
                raise error.placed(scorer.call.at) from None
        question = made[key]
        asked.append(question)
        if question is None:  # a text in which a model sees nothing has the product 0 with every other
            nothing = 0.0 if scorer.kind == "similarity" else None
            scorers.append(row_plan.Scorer(name, "given", missing=nothing, given=NOTHING))
            continue
        of_unit = scorer.kind == "similarity" and planned.facts.spaces[scorer.spaces[0]].unit != WHOLE
        encode = planned.encode and scorer.is_of_text
        scorers.append(row_plan.Scorer(name, "unit" if of_unit else "document", question, missing, encode=encode))
    return Questions(tuple(scorers), tuple(asked), made)


def _question(scorer: Scorer, generation: "Generation", plugins: "Plugins") -> SpaceQuery | None:
    """What a space is asked; None where it has nothing to ask."""
    from shards.errors import BadQuery

    name = scorer.spaces[0]
    layer, statistics = generation.spaces[name].layer, generation.statistics(name)
    form: dict[str, Any] = dict(scorer.form)
    if layer.given is not None:
        form = {"vector": _embedded(scorer, name, layer.given[1], plugins)}
        if not any(form["vector"]):
            return None
    try:
        question = layer.prepare(Request(scorer.text, form, True, KeptMedia(generation.store).one), statistics)
    except BadQuery as error:
        raise PlanError(f"{scorer.call.name}: layer {name!r} cannot be asked {_shown(scorer.text)}: {error}") from None
    return None if question is None else replace(question, space=name)


def _embedded(scorer: Scorer, space: str, dim: int, plugins: "Plugins") -> Sequence[float]:
    """The question's vector for a space of callers' own vectors, by the embedder that is registered under its name."""
    if space not in plugins.embedder_names():
        known = ", ".join(plugins.embedder_names()) or "none"
        raise PlanError(
            f"{scorer.path}: the vectors of {space!r} are callers' own, and nothing here turns a text into one. Register an embedder named "
            f"{space!r} (with a server: --plugin MODULE). Registered are: {known}."
        )
    embedder = plugins.embedder_of(space)
    try:
        (found,) = getattr(embedder, "embed_queries", embedder.embed)([scorer.text])
        vector = [float(number) for number in found]
    except Exception as error:  # somebody else's code
        raise EmbeddingError(f"Embedder {space!r} failed on {_shown(scorer.text)}: {type(error).__name__}: {error}.") from error
    if len(vector) != dim:
        raise EmbeddingError(f"Embedder {space!r} gave {len(vector)} numbers for {_shown(scorer.text)}; vectors of {space!r} have {dim}.")
    return vector


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:59]}…")
