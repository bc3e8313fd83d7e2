"""What each space is asked: the request's text and forms made into the layers' own questions, once, by statistics of the whole corpus."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from serve.narrowing import without_narrowed
from serve.schema import SearchRequest
from shards import routing
from shards.errors import BadQuery, ModelMissing, SondageError
from shards.generation import Generation
from shards.layers.contract import Request
from shards.media import KeptMedia
from shards.plan import SpaceQuery

NOTHING_TO_ASK = "nothing in the query for this layer"


def spaces_to_ask(generation: Generation, request: SearchRequest, coming: Collection[str] = ()) -> list[str]:
    """The spaces to ask. coming: names of those that a corpus is yet to get, of which nothing is asked. Raises BadQuery that names those
    there are."""
    known = sorted(generation.spaces)
    asked = known if request.layers == "auto" else list(dict.fromkeys(request.layers))
    for name in [*asked, *request.forms]:
        if name not in generation.spaces and name not in coming:
            raise BadQuery(f"Corpus {request.corpus!r} has no layer {name!r}. Choose from: {', '.join(known)}.")
    if not request.query.strip() and not request.forms and not request.feedback:
        raise BadQuery("Nothing was asked: give `query`, or `forms` for single layers.")
    if not request.query.strip() and not request.feedback:
        asked = [name for name in asked if name in request.forms]
    return [name for name in asked if name in generation.spaces]


def explicit(request: SearchRequest) -> bool:
    """Whether the caller named spaces or gave one its own form."""
    return bool(request.forms) or request.layers != "auto"


@dataclass(frozen=True, slots=True)
class Done:
    """Questions that were made. reasons: why spaces have none; seconds: what each took; ended: the spaces that were worked on."""

    questions: dict[str, SpaceQuery]
    reasons: dict[str, str]
    seconds: dict[str, float]
    ended: frozenset[str]


class Making:
    """Questions of some spaces, made one after the other, in whatever thread `run` is called; `done` may be asked meanwhile."""

    def __init__(self, asking: "Asking", names: Sequence[str]):
        self._asking, self._names = asking, names
        self._made: list[tuple[str, SpaceQuery | str, float]] = []
        self._resting = False

    def rest(self) -> None:
        """Begin no further one: nobody waits for it."""
        self._resting = True

    def run(self) -> None:
        """Raises BadQuery for a form that cannot be understood, and of spaces that were named what they raise."""
        for name in self._names:
            if self._resting:
                break
            begun = time.monotonic()
            self._made.append((name, self._asking.question(name), time.monotonic() - begun))

    def done(self) -> Done:
        """What there is."""
        made = list(self._made)
        return Done(
            {name: made for name, made, _ in made if isinstance(made, SpaceQuery)},
            {name: why for name, why, _ in made if isinstance(why, str)},
            {name: seconds for name, _, seconds in made},
            frozenset(name for name, _, _ in made),
        )


class Asking:
    """What each space is asked of a request. chosen: the spaces to ask; left_out: why others are not, by what the query looks like.

    A space that nobody named is asked what its layer takes (`Layer.shapes`).
    """

    def __init__(self, generation: Generation, request: SearchRequest, names: Sequence[str]):
        self._generation, self._request = generation, request
        self._reading = routing.read(request.query)
        self._named = set(names if request.layers != "auto" else request.forms)
        spaces = generation.spaces
        wide = request.goal == "wide"
        out = [n for n in names if n not in self._named and not wide and not self._reading.asks(spaces[n].layer.shapes)]
        self.left_out = {name: self._reading.why_not(spaces[name].layer.shapes) for name in out}
        self.chosen = [name for name in names if name not in self.left_out]

    def begin(self, names: Sequence[str]) -> Making:
        """Questions to be made."""
        return Making(self, names)

    def check_forms(self, names: Sequence[str]) -> None:
        """Raises BadQuery for a form of these spaces that shows to be wrong without making a question of it."""
        for name in names:
            space, form = self._generation.spaces[name], self._request.forms.get(name)
            if not form or space.problem:
                continue
            try:
                space.layer.check_form(Request(self._request.query, form, explicit=True))
            except BadQuery as error:
                raise BadQuery(f"Layer {name!r}: {error}") from None

    def question(self, name: str) -> SpaceQuery | str:
        """The question of a space, or why it has none. A model that is missing silences its space, unless it was named."""
        space = self._generation.spaces[name]
        explicit = name in self._named
        if problem := space.problem:
            if explicit:
                raise ModelMissing(f"Layer {name!r} cannot be asked: {problem}.")
            return problem
        try:
            shapes = frozenset() if explicit else self._reading.shapes.keys()
            media = KeptMedia(self._generation.store).one
            wanted = Request(self._request.query, self._request.forms.get(name, {}), explicit, media, shapes)
            asked = space.layer.prepare(wanted, self._generation.statistics(name))
        except BadQuery as error:
            raise BadQuery(f"Layer {name!r}: {error}") from None
        except SondageError as error:
            if explicit:
                raise
            return str(error)
        return NOTHING_TO_ASK if asked is None else replace(asked, space=name)

    def narrowed(self, prepared: Sequence[SpaceQuery]) -> tuple[list[SpaceQuery], dict[str, str]]:
        """`serve.narrowing.without_narrowed`."""
        return without_narrowed(self._generation, prepared)


def prepare(generation: Generation, request: SearchRequest, names: list[str]) -> tuple[list[SpaceQuery], dict[str, str]]:
    """Every space's question, and why some have none. Where routing leaves none with anything to ask, all are asked."""
    asking = Asking(generation, request, names)
    made = asking.begin(asking.chosen)
    made.run()
    prepared, reasons = _of(asking, made.done())
    if asking.left_out and not prepared:
        others = asking.begin(list(asking.left_out))
        others.run()
        prepared, told = _of(asking, others.done())
        return prepared, reasons | told
    return prepared, reasons | asking.left_out


def _of(asking: Asking, done: Done) -> tuple[list[SpaceQuery], dict[str, str]]:
    prepared, narrowed = asking.narrowed(list(done.questions.values()))
    return prepared, done.reasons | narrowed


def silent(generation: Generation, reasons: Mapping[str, str]) -> list[str]:
    """Spaces that were to be asked but had nothing to ask, whose evidence is 0."""
    return [name for name, reason in reasons.items() if reason == NOTHING_TO_ASK and not generation.spaces[name].scope]
