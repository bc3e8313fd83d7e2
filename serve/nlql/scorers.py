"""Calls that are scores: what each asks of which space. Pure: a table, and the checks of one call against a corpus."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from serve.edge import MAX_QUERY_CHARS
from serve.nlql.facts import CorpusFacts, SpaceFact
from shards.nlql import ir
from shards.nlql.errors import PlanError

SIMILARITY, EVIDENCE, EVALUE = "SIMILARITY", "EVIDENCE", "EVALUE"
NO_VECTOR = -2.0  # of a row without the named vector: below any cosine
DEFAULT_VECTORS = ("content", "default")  # what SIMILARITY's first argument is called, and its synonym

# By name, the layers whose raw score it is, the first that the corpus has. REGEX, TEXT, …: how many lines, definitions, … match.
LAYERS: Mapping[str, tuple[str, ...]] = {
    "BM25": ("bm25",),
    "SPARSE": ("sparse",),
    "LATE": ("late",),
    "STATIC": ("static",),
    "DENSE": ("dense",),
    "REGEX": ("text", "trigram"),
    "TEXT": ("text", "trigram"),
    "SYMBOL": ("symbols",),
    "FORMULA": ("formula", "formula_ngrams"),
    "STRUCTURE": ("structure",),
    "FUZZY": ("fuzzy",),
    "NAMES": ("names",),
}
SCORES = (SIMILARITY, EVIDENCE, EVALUE, *LAYERS)

Kind = Literal["similarity", "layer", "evidence", "evalue"]


@dataclass(frozen=True, slots=True)
class Scorer:
    """One score, computed once a row however often it is written.

    key: its canonical form. text: the question. path: what is scored, as written: `content`, `vec.image`. spaces: which are asked; of
    EVIDENCE none: those that suit the question. alias: the first LET name that is this score and nothing else.
    """

    key: str
    call: ir.Call
    kind: Kind
    text: str
    path: str
    spaces: tuple[str, ...] = ()
    alias: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether it is of a named vector."""
        return self.path.startswith("vec.")

    @property
    def is_of_text(self) -> bool:
        """Whether it is of the vectors of the rows' own text."""
        return self.kind == "similarity" and not self.is_named

    @property
    def written(self) -> str:
        """As a query has it."""
        from serve.nlql.unparse import written

        return written(self.call)

    @property
    def form(self) -> dict[str, object]:
        """The own form of the space that is asked; empty where plain text says it."""
        match self.call.name.upper():
            case "REGEX":
                return {"pattern": self.text, "regex": True}
            case "TEXT":
                return {"pattern": self.text}
        return {}


def is_score(name: str, strict: bool = False) -> bool:
    """Whether a function is a score; plain NLQL knows one."""
    return name.upper() == SIMILARITY or (not strict and name.upper() in SCORES)


def scorer_of(call: ir.Call, key: str, facts: CorpusFacts) -> Scorer:
    """The score that a call is. Raises PlanError at what is wrong with it."""
    name = call.name.upper()
    most = 2 if name == SIMILARITY else 3 if name in LAYERS else None
    if len(call.args) < 2 or (most is not None and len(call.args) > most):
        expected = '(content, "question")' if most == 2 else '(content, "question", "layer")'
        takes = "2 arguments" if most == 2 else "2 or 3 arguments" if most else "2 arguments or more"
        raise PlanError(f"{call.name} takes {takes}, {call.name}{expected}; found {len(call.args)}.").placed(call.at)
    path, text, *named = call.args
    if not isinstance(text, ir.Literal) or not isinstance(text.value, str):
        raise PlanError(
            f"{call.name}'s second argument is the question, a text in quotes (or a :parameter); found {_what(text)}. "
            "Scores are computed once for all rows, so it cannot differ between them.",
        ).placed(_at(text, call))
    if len(text.value) > MAX_QUERY_CHARS:
        problem = f"{call.name}'s question has {len(text.value):,} characters; at most {MAX_QUERY_CHARS:,} are asked."
        raise PlanError(problem).placed(_at(text, call))
    if name in (EVIDENCE, EVALUE) and not text.value.strip():
        raise PlanError(f"{call.name}'s question is empty: there is nothing to search for.").placed(_at(text, call))
    if name == SIMILARITY:
        return _similarity(call, key, path, text.value, facts)
    if not (isinstance(path, ir.Path) and (path.root, path.segments) == ("content", ())):
        raise PlanError(f"{call.name}'s first argument is content; found {_what(path)}.").placed(_at(path, call))
    spaces = tuple(_named(one, call, facts) for one in named)
    if name in (EVIDENCE, EVALUE):
        return Scorer(key, call, "evidence" if name == EVIDENCE else "evalue", text.value, "content", spaces)
    layers = LAYERS[name]
    if spaces:
        space = facts.spaces[spaces[0]]
        if space.layer not in layers:
            own = ", ".join(found.name for layer in layers for found in facts.of_layer(layer)) or "none here"
            raise PlanError(
                f"{call.name} asks a layer {' or '.join(layers)}; {space.name!r} is {space.layer}. Of that kind are: {own}.",
            ).placed(_at(named[0], call))
    else:
        space = next((found for layer in layers for found in facts.of_layer(layer)), None)
        if space is None:
            have = ", ".join(facts.spaces) or "none"
            raise PlanError(
                f"Corpus {facts.corpus!r} has no layer {layers[0]} for {call.name} to ask. It has: {have}. Add it: sondage index "
                f"--layers …,{layers[0]}.",
            ).placed(call.at)
    _check(space, call)
    return Scorer(key, call, "layer", text.value, "content", (space.name,))


def _similarity(call: ir.Call, key: str, path: ir.Expr, text: str, facts: CorpusFacts) -> Scorer:
    expected = "content, or vec.NAME for a named vector"
    if not isinstance(path, ir.Path):
        raise PlanError(
            f"{call.name}'s first argument is {expected}; found {_what(path)}. Vectors are made when documents are indexed, so what is "
            "computed of a text has none.",
        ).placed(_at(path, call))
    spelt = ".".join((path.root, *path.segments))
    if path.root == "vec" and path.segments:
        space = facts.spaces.get(".".join(path.segments))
        if space is None:  # as of a row that lacks the vector: each does
            return Scorer(key, call, "similarity", text, spelt)
        if not space.unit:
            raise PlanError(f"{spelt}: layer {space.name!r} ({space.layer}) has no vectors that {call.name} could compare.").placed(path.at)
        _check(space, call)
        return Scorer(key, call, "similarity", text, spelt, (space.name,))
    if path.root not in DEFAULT_VECTORS or path.segments:
        raise PlanError(f"{call.name}'s first argument is {expected}; found {spelt}.").placed(_at(path, call))
    if not facts.readable:
        vectors = ", ".join(f"vec.{name}" for name, space in facts.spaces.items() if space.unit)
        remedy = f"Ask {vectors}, or add" if vectors else "Add"
        raise PlanError(
            f"Corpus {facts.corpus!r} has no vectors of its text for {call.name} to compare. {remedy} a layer that makes some: sondage "
            "index --layers …,static.",
        ).placed(call.at)
    return Scorer(key, call, "similarity", text, spelt)


def _named(node: ir.Expr, call: ir.Call, facts: CorpusFacts) -> str:
    known = ", ".join(facts.spaces) or "none"
    if not isinstance(node, ir.Literal) or not isinstance(node.value, str):
        raise PlanError(f"{call.name} takes names of layers in quotes; found {_what(node)}.").placed(_at(node, call))
    if node.value not in facts.spaces:
        raise PlanError(f"Corpus {facts.corpus!r} has no layer {node.value!r}. Choose from: {known}.").placed(_at(node, call))
    return node.value


def _check(space: SpaceFact, call: ir.Call) -> None:
    if space.problem:
        raise PlanError(f"Layer {space.name!r} cannot be asked: {space.problem}.").placed(call.at)


def _at(node: ir.Expr, call: ir.Call) -> ir.Position | None:
    return node.at or call.at


def _what(node: ir.Expr) -> str:
    match node:
        case ir.Literal(value=str()):
            return "a text"
        case ir.Literal(value=bool()):
            return "a truth value"
        case ir.Literal(value=None):
            return "null"
        case ir.Literal():
            return "a number"
        case ir.Path(root=root, segments=segments):
            return f"the field {'.'.join((root, *segments))}"
        case ir.Ref(name=name):
            return f"the alias {name}"
        case ir.Call(name=name):
            return f"{name}(…)"
    return "an expression"
