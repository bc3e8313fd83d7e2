"""The algebra in which one request combines several searches: a tree of operators over results, as JSON.

    {"search": {"query": …, "layers": […], "paths": […], …}}      a sub-query: what a plain request says
    {"union": […]}, {"intersect": […]}                            by document; evidence adds
    {"then": [a, b]}                                              b, only within the documents of a
    {"seed": [a, b]}                                              the documents of a, in the order of b's evidence
    {"cut": {"of": a, "n": 20, "evalue": 0.1}}                    the best n, or those that chance hardly gives
    {"cut": {"of": a, "recall": 0.95}}                            as many as hold what is sought so often
    {"fuse": {"of": […], "weights": […], "coupling": "rrf"}}      several rankings as one
    {"select": […]}                                               those that have signal answer, the silent ones are named
    {"bridge": {"from": a, "key": "inchikey", "to": {"search": {…"$key"…}}, "n": 3}}
    {"and": […]}, {"or": […]}, {"not": a}, {"wsum": {"of": […], "weights": […]}}      beliefs

What they mean: `serve/algebra.py`, `serve/bridges.py`, `serve/beliefs.py`. Everything that asks compiles to this tree.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from serve.edge import MAX_QUERY_CHARS, Coupling, Edge, Weight, spelt

MAX_LEVELS = 8  # operators above one another; what people and programs write has two to four
MAX_SEARCHES = 16  # of one request: each asks all its spaces, in all shards
MAX_OPERANDS = 16
MAX_CUT = 1_000  # as many as a page may have
KEY = "$key"  # what stands for the key in what a bridge asks

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][\w\-]*$", max_length=64)]


def _some(of: tuple[Any, ...], least: int, most: int) -> tuple[Any, ...]:
    if not least <= len(of) <= most:
        counts = {"n": len(of), "least": least, "most": most}
        problem = "has {n} operands; expected {least}" if least == most else "has {n} operands; expected {least} to {most}"
        raise PydanticCustomError("operands", problem, counts)
    return of


class Operator(Edge):
    """One node: an object with one key, the operator's name. Names that Python reserves are aliases."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)


class SubQuery(Edge):
    """What one sub-query asks: the fields of a plain search. name: by which hits and explanations call it, else its number.

    paths and where narrow those of the request. coupling: how its spaces become one ranking.
    """

    query: Annotated[str, Field(max_length=MAX_QUERY_CHARS)] = ""
    forms: dict[str, dict[str, Any]] = {}
    layers: Literal["auto"] | Annotated[tuple[str, ...], Field(max_length=100)] = "auto"
    paths: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    where: dict[str, Any] | None = None
    coupling: Annotated[Coupling, BeforeValidator(spelt, json_schema_input_type=str | Coupling)] = Coupling(name="evidence")
    weights: Annotated[dict[str, Weight], Field(max_length=1_000)] = {}
    name: Name | None = None

    @model_validator(mode="after")
    def _asks(self) -> "SubQuery":
        if not self.query.strip() and not self.forms:
            raise PydanticCustomError("nothing_asked", "asks nothing: give query, or forms for single layers")
        return self


class Search(Operator):
    """A sub-query."""

    search: SubQuery


class Text(Operator):
    """The text itself, of which a bridge takes its keys: an error message, a line of a log. Nothing is searched for."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARS)]


class Union(Operator):
    """Documents of any of them."""

    union: "Operands"


class Intersect(Operator):
    """Documents that all of them have."""

    intersect: "Operands"


class Then(Operator):
    """The second, within the documents of the first, and so on."""

    then: "Operands"


class Seed(Operator):
    """The documents of the first, ordered by the evidence of the second."""

    seed: Annotated[tuple["Node", ...], AfterValidator(lambda of: _some(of, 2, 2))]


class Select(Operator):
    """Those that have signal, united."""

    select: "Operands"


class CutFields(Operator):
    """n: the best n; evalue: those with E up to this; verdict: those that a verdict would call so (`serve/verdict.py`); recall: as many as
    hold what is sought with this probability, by the corpus's probes (`serve/cascades.py`), of a search ranked by evidence."""

    of: "Node"
    n: Annotated[int | None, Field(ge=1, le=MAX_CUT)] = None
    evalue: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    verdict: Literal["strong", "weak"] | None = None
    recall: Annotated[float | None, Field(ge=0.5, le=0.99)] = None

    @model_validator(mode="after")
    def _cuts(self) -> "CutFields":
        if self.n is None and self.evalue is None and self.verdict is None and self.recall is None:
            raise PydanticCustomError("no_cut", "cuts nothing: give n, evalue, verdict or recall")
        if self.recall is None:
            return self
        if not isinstance(self.of, Search):
            raise PydanticCustomError("no_search", "recall is known of a search alone, not of what operators make: cut each search")
        if self.of.search.coupling.name != "evidence" or self.of.search.weights:
            raise PydanticCustomError("no_evidence", "recall is known of rankings by evidence: leave coupling and weights out, or give n")
        return self


class Cut(Operator):
    """The best of a result."""

    cut: CutFields


class Weighted(Operator):
    """weights: one for each of `of`, 1 where there are none."""

    of: "Operands"
    weights: Annotated[tuple[Weight, ...], Field(max_length=MAX_OPERANDS)] = ()

    @model_validator(mode="after")
    def _one_each(self) -> "Weighted":
        if self.weights and len(self.weights) != len(self.of):
            counts = {"weights": len(self.weights), "of": len(self.of)}
            raise PydanticCustomError("weights", "has {weights} weights for {of} operands; give one for each", counts)
        if self.weights and not any(self.weights):
            raise PydanticCustomError("weights", "has no weight above 0")
        return self


class FuseFields(Weighted):
    """coupling: evidence (the weighted sum), or a classic over the rankings."""

    coupling: Annotated[Coupling, BeforeValidator(spelt, json_schema_input_type=str | Coupling)] = Coupling(name="evidence")

    @model_validator(mode="after")
    def _of_results(self) -> "FuseFields":
        if self.coupling.name in ("select", "joint", "none"):
            problem = '{name} is a coupling of spaces, not of results; write {{"select": […]}}, or a coupling such as rrf'
            raise PydanticCustomError("coupling", problem, {"name": self.coupling.name})
        return self


class Fuse(Operator):
    """Several rankings as one."""

    fuse: FuseFields


class FieldKey(Edge):
    """A metadata field of the entry, or its path: "meta.author.name", "smiles", "path"."""

    field: Annotated[str, Field(min_length=1, max_length=512)]


class PatternKey(Edge):
    """The group of a regular expression (RE2), searched for in the hit's lines."""

    pattern: Annotated[str, Field(min_length=1, max_length=1_000)]

    @model_validator(mode="after")
    def _one_group(self) -> "PatternKey":
        import re2

        options = re2.Options()
        options.log_errors = False
        try:
            n_groups = re2.compile(self.pattern, options=options).groups
        except re2.error as error:
            reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
            raise PydanticCustomError("pattern", "is no regular expression of RE2: {reason}", {"reason": reason}) from None
        if n_groups != 1:
            raise PydanticCustomError("pattern", "has {n} groups; the key is the one in ( )", {"n": n_groups})
        return self


KeyKind = Literal["inchikey", "symbol", "identifier"]


def _key_tag(value: Any) -> str:
    if isinstance(value, str):
        return "[kind]"
    return "[pattern]" if isinstance(value, PatternKey) or (isinstance(value, Mapping) and "pattern" in value) else "[field]"


Key = Annotated[
    Annotated[KeyKind, Tag("[kind]")] | Annotated[FieldKey, Tag("[field]")] | Annotated[PatternKey, Tag("[pattern]")],
    Discriminator(_key_tag),
]


class BridgeFields(Operator):
    """from: whose best n hits give the keys, or a text. key: what of a hit is one. to: asked once for each key, which stands where it
    says "$key"."""

    source: Annotated["Source", Field(alias="from")]
    key: Key
    to: Search
    n: Annotated[int, Field(ge=1, le=20)] = 3

    @model_validator(mode="after")
    def _has_a_place(self) -> "BridgeFields":
        if KEY not in json.dumps([self.to.search.query, self.to.search.forms]):
            raise PydanticCustomError("no_key", 'to says nowhere where the key goes; write "$key" in its query or forms')
        return self


class Bridge(Operator):
    """Over a key from what one search finds to what another is asked."""

    bridge: BridgeFields


class And(Operator):
    """Belief that all hold: the product."""

    all_of: Annotated["Operands", Field(alias="and")]


class Or(Operator):
    """Belief that one of them holds: the complement of the product of complements."""

    any_of: Annotated["Operands", Field(alias="or")]


class Not(Operator):
    """The complement of a belief. Only beside others, in and, or, wsum: alone it would be the whole corpus."""

    none_of: Annotated["Node", Field(alias="not")]


class WeightedSum(Operator):
    """The weighted mean of beliefs."""

    wsum: Weighted


_OPERATORS: dict[str, type[Operator]] = {
    "search": Search, "union": Union, "intersect": Intersect, "then": Then, "seed": Seed, "cut": Cut, "fuse": Fuse, "select": Select,
    "bridge": Bridge, "and": And, "or": Or, "not": Not, "wsum": WeightedSum,
}  # fmt: skip
OPERATORS = tuple(_OPERATORS)


def _tag(value: Any) -> str | None:
    if isinstance(value, Operator):
        return f"[{operator_of(value)}]"
    if isinstance(value, Mapping) and len(value) == 1:
        return f"[{next(iter(value))}]"
    return None


def _one_of(*kinds: tuple[str, type[Operator]]) -> Any:
    members = [Annotated[kind, Tag(f"[{name}]")] for name, kind in kinds]
    known = ", ".join(name for name, _ in kinds)
    wrong = Discriminator(
        _tag, custom_error_type="no_operator", custom_error_message=f"expected an object with one key, the operator: one of {known}"
    )
    choice = members[0]
    for member in members[1:]:
        choice = choice | member
    return Annotated[choice, wrong]


Node = TypeAliasType("Node", _one_of(*_OPERATORS.items()))
Source = TypeAliasType("Source", _one_of(*_OPERATORS.items(), ("text", Text)))
Operands = TypeAliasType("Operands", Annotated[tuple[Node, ...], AfterValidator(lambda of: _some(of, 1, MAX_OPERANDS))])

for _kind in (*_OPERATORS.values(), CutFields, Weighted, FuseFields, BridgeFields):
    _kind.model_rebuild()


# --- the tree as a whole ---------------------------------------------------------------------------------------------------------


def _not_endless(value: Any) -> Any:
    """Before anything recurses into it: a tree that is too deep. Filters and forms of sub-queries have limits of their own."""
    open_ = [(value, 0)]
    while open_:
        found, level = open_.pop()
        if level > 2 * MAX_LEVELS + 2:  # an operator with fields is two objects
            raise PydanticCustomError("too_deep", "has operators more than {n} levels deep; split the request", {"n": MAX_LEVELS})
        if isinstance(found, Mapping):
            open_ += [(inner, level + 1) for name, inner in found.items() if name not in ("search", "key", "text")]
        elif isinstance(found, list | tuple):
            open_ += [(inner, level) for inner in found]
    return value


def _sound(root: Any) -> Any:
    """A whole tree: not too large, names that tell sub-queries apart, not where it says something."""
    named: dict[str, SubQuery] = {}
    n = 0

    def walk(node: Operator, level: int, beside: bool) -> None:
        nonlocal n
        if level > MAX_LEVELS:
            raise PydanticCustomError("too_deep", "has operators more than {n} levels deep; split the request", {"n": MAX_LEVELS})
        if isinstance(node, Search):
            n += 1
            name = node.search.name
            if name is not None and named.setdefault(name, node.search) != node.search:
                raise PydanticCustomError("same_name", "two different sub-queries are named {name}; rename one", {"name": name})
        if isinstance(node, Not) and not beside:
            problem = "not stands alone: it would be the whole corpus. Put it beside what is to be found, in and, or, wsum"
            raise PydanticCustomError("not_alone", problem)
        below = operands(node)
        beliefs = isinstance(node, And | Or | WeightedSum)
        if beliefs and all(isinstance(other, Not) for other in below):
            raise PydanticCustomError("not_alone", "nothing but not: give at least one operand that is to be found")
        for other in below:
            walk(other, level + 1, beliefs)

    walk(root, 1, False)
    if n > MAX_SEARCHES:
        raise PydanticCustomError("too_many", "has {n} sub-queries; at most {most} are asked at once", {"n": n, "most": MAX_SEARCHES})
    return root


Tree = Annotated[Node, BeforeValidator(_not_endless), AfterValidator(_sound)]


def operator_of(node: Operator) -> str:
    """The operator's name, the one key of the node's object."""
    return next(name for name, kind in (*_OPERATORS.items(), ("text", Text)) if type(node) is kind)


def operands(node: Operator) -> tuple[Any, ...]:
    """The nodes that an operator works on, in order."""
    match node:
        case Union(union=of) | Intersect(intersect=of) | Then(then=of) | Seed(seed=of) | Select(select=of) | And(all_of=of) | Or(any_of=of):
            return of
        case Cut(cut=fields):
            return (fields.of,)
        case Fuse(fuse=fields) | WeightedSum(wsum=fields):
            return fields.of
        case Not(none_of=inner):
            return (inner,)
        case Bridge(bridge=fields):
            return (fields.source, fields.to)
    return ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sub-query stands. at: in the request ("combine.union[0]"). finds: whether it brings documents; not as what `then` and `seed`
    have behind the first, nor where it is negated. template: it waits for the keys of a bridge."""

    search: Search
    at: str
    finds: bool = True
    template: bool = False


def places(node: Operator, at: str = "combine", finds: bool = True) -> Iterator[Place]:
    """All sub-queries of a tree, also what bridges ask, from left to right."""
    if isinstance(node, Search):
        yield Place(node, at, finds)
        return
    inside = f"{at}.{operator_of(node)}"
    for i, inner in enumerate(operands(node)):
        match node:
            case Bridge():
                below = list(places(inner, f"{inside}.{('from', 'to')[i]}", finds))
                yield from (replace(place, template=True) for place in below) if i else below
            case Cut():
                yield from places(inner, f"{inside}.of", finds)
            case Not():
                yield from places(inner, inside, False)
            case Fuse() | WeightedSum():
                yield from places(inner, f"{inside}.of[{i}]", finds)
            case _:
                yield from places(inner, f"{inside}[{i}]", finds and not (i and isinstance(node, Then | Seed)))
