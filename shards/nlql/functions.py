"""The functions of the language, by name: what each does with values, and how many arguments it takes.

Null drops out: a test of null is false, what is made of null is null. All else is turned into text first where a function is about text,
so a list is searched as Python prints it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shards.nlql import ir
from shards.nlql.context import Context
from shards.nlql.errors import ExecutionError, NLQLError, PlanError
from shards.nlql.like import like
from shards.nlql.patterns import Patience, pattern
from shards.nlql.values import compare, shown, text_of
from shards.plugins import PROCESS, Function, Plugins

# What a function of x makes of many values of x, none of them null; its other arguments are the same for all.
Bulk = Callable[[Sequence[Any]], list[Any]]


def texts_of(values: Sequence[Any]) -> list[str]:
    return [value if type(value) is str else text_of(value) for value in values]


def contains(part: Any, _patience: Patience | None = None) -> Bulk:
    """Whether the text of x has a part in it, both lower-cased."""
    lowered = text_of(part).lower()
    return lambda values: [lowered in text.lower() for text in texts_of(values)]


def matches(text: Any, patience: Patience | None = None) -> Bulk:
    """Whether a pattern of Python's `re` is found in the text of x."""
    search = pattern(text_of(text)).search
    return lambda values: [search(text, patience) for text in texts_of(values)]


def is_like(text: Any, _patience: Patience | None = None) -> Bulk:
    """Whether the whole text of x is as a pattern of % and _ says."""
    test = like(text_of(text))
    return lambda values: [test(text) for text in texts_of(values)]


def has(item: Any, _patience: Patience | None = None) -> Bulk:
    """Whether x is a list and one of its items equals (`==`) another value."""
    return lambda values: [isinstance(value, list) and any(compare("==", one, item) for one in value) for value in values]


def count(part: Any, _patience: Patience | None = None) -> Bulk:
    """How often a part occurs in the text of x, both lower-cased, without overlap; 0 for an empty part."""
    lowered = text_of(part).lower()
    return lambda values: [text.lower().count(lowered) if lowered else 0 for text in texts_of(values)]


OF_ONE: Mapping[str, Bulk] = {
    "LENGTH": lambda values: [len(text) for text in texts_of(values)],
    "LOWER": lambda values: [text.lower() for text in texts_of(values)],
    "UPPER": lambda values: [text.upper() for text in texts_of(values)],
}
OF_TWO: Mapping[str, Callable[[Any, Patience | None], Bulk]] = {
    "CONTAINS": contains, "MATCH": matches, "LIKE": is_like, "HAS": has, "COUNT": count,
}  # fmt: skip
FALSE_OF_NULL = frozenset(("CONTAINS", "MATCH", "LIKE", "HAS", "GEO_WITHIN"))  # the others give null of null


def _of_one(name: str) -> Callable[[Any], Any]:
    return lambda x: None if x is None else OF_ONE[name]([x])[0]


def _of_two(name: str) -> Callable[[Any, Any], Any]:
    of_null = False if name in FALSE_OF_NULL else None
    return lambda x, y: of_null if x is None or y is None else OF_TWO[name](y, None)([x])[0]


def _geo_distance(place: Any, lat: Any, lon: Any) -> float | None:
    from shards.nlql.geo import geo_distance  # geo needs numpy, the planner does not

    return geo_distance(place, lat, lon)


def _geo_within(place: Any, south: Any, west: Any, north: Any, east: Any) -> bool:
    from shards.nlql.geo import geo_within

    return geo_within(place, south, west, north, east)


def _built_in(name: str, call: Callable[..., Any], arguments: str, returns: str, doc: str) -> Function:
    names = tuple(arguments.split())
    return Function(name, call, len(names), len(names), names, returns, doc=doc)


BUILT_IN: Mapping[str, Function] = {
    function.name: function
    for function in (
        _built_in("CONTAINS", _of_two("CONTAINS"), "any any", "bool", "Whether a text has another in it, whatever the case."),
        _built_in("MATCH", _of_two("MATCH"), "any text", "bool", "Whether a regular expression of Python's re is found in a text."),
        _built_in("LIKE", _of_two("LIKE"), "any text", "bool", "Whether a whole text is as a pattern says: % any run, _ one character."),
        _built_in("LENGTH", _of_one("LENGTH"), "any", "number", "How many code points a text has."),
        _built_in("COUNT", _of_two("COUNT"), "any any", "number", "How often a text occurs in another, whatever the case."),
        _built_in("LOWER", _of_one("LOWER"), "any", "text", "A text in lower case."),
        _built_in("UPPER", _of_one("UPPER"), "any", "text", "A text in upper case."),
        _built_in("HAS", _of_two("HAS"), "any any", "bool", "Whether a list has an item."),
        _built_in("GEO_DISTANCE", _geo_distance, "any number number", "number", "Metres from a place to a latitude and longitude."),
        _built_in(
            "GEO_WITHIN", _geo_within, "any number number number number", "bool", "Whether a place lies in a box: south, west, north, east."
        ),
    )
}
EXTENSIONS = frozenset(("HAS", "GEO_DISTANCE", "GEO_WITHIN"))  # beside all of SCORES but SIMILARITY: what strict mode refuses


def _score(name: str, most: int | None, doc: str) -> Function:
    def never(*_: Any) -> None:
        raise PlanError(f"{name} is a score, which is computed for all rows at once and cannot be called on one.")

    return Function(name, never, 2, most, ("content", "text"), "number", True, doc)


SCORES: Mapping[str, Function] = {
    score.name: score
    for score in (
        _score("SIMILARITY", 2, "How near in meaning a unit is to a text: the dot product of their vectors."),
        _score("BM25", 2, "The BM25 score of the row's document for a text."),
        _score("SPARSE", 2, "The learned sparse score of the row's document for a text."),
        _score("LATE", 2, "The late-interaction score of the row's document for a text."),
        _score("STATIC", 2, "The similarity of the row's document by static word vectors."),
        _score("DENSE", 2, "The similarity of the row's document by the dense encoder."),
        _score("REGEX", 2, "How many matches of a regular expression the row's document has."),
        _score("TEXT", 2, "How many places of the row's document meet a text query."),
        _score("SYMBOL", 2, "The score of the row's document for the name of a symbol of code."),
        _score("FORMULA", 2, "The score of the row's document for a formula."),
        _score("STRUCTURE", 2, "The score of the row's document for a molecule."),
        _score("FUZZY", 2, "The score of the row's document for words with errors."),
        _score("NAMES", 2, "The score of the row's path for words."),
        _score("EVIDENCE", None, "The evidence, in nats, of several layers for the row's document and a text."),
        _score("EVALUE", None, "How many documents as good chance alone would give."),
    )
}


def find(name: str, plugins: Plugins = PROCESS) -> Function | None:
    """What goes by a name, in any case: a score, a user's function (which shadows a built-in one), a built-in one."""
    folded = name.upper()
    return SCORES.get(folded) or plugins.functions.find(folded) or BUILT_IN.get(folded)


def names(plugins: Plugins = PROCESS) -> tuple[str, ...]:
    """All names, ascending."""
    return tuple(sorted({*SCORES, *BUILT_IN, *plugins.functions.names()}))


def is_built_in(name: str, plugins: Plugins = PROCESS) -> bool:
    """Whether a name means one of BUILT_IN, and no user's function."""
    return name.upper() in BUILT_IN and plugins.functions.find(name) is None


def arity(function: Function) -> str:
    """How many arguments a function takes, for messages: "2 arguments", "1 to 3 arguments", "2 arguments or more"."""
    if function.most is None:
        return f"{_arguments(function.least)} or more"
    return _arguments(function.least) if function.most == function.least else f"{function.least} to {_arguments(function.most)}"


def _arguments(n: int) -> str:
    return f"{n} argument" + "s" * (n != 1)


def check_pattern(text: str) -> None:
    """Raises ExecutionError for what is no pattern of MATCH."""
    pattern(text)


def found(call: ir.Call, plugins: Plugins) -> Function:
    """The function of a call, its number of arguments checked. Raises PlanError."""
    function = find(call.name, plugins)
    if function is None:
        raise PlanError(f"There is no function {call.name!r}. Known: {', '.join(names(plugins))}.").placed(call.at)
    if len(call.args) < function.least or (function.most is not None and len(call.args) > function.most):
        raise PlanError(f"{function.name} takes {arity(function)}, not {len(call.args)}.").placed(call.at)
    return function


def called(call: ir.Call, function: Function, values: list[Any], context: Context) -> Any:
    """What a function gives for values. Raises ExecutionError if it fails, whatever it raised."""
    try:
        if function is BUILT_IN["MATCH"]:
            return False if None in values else matches(values[1], context.patience)(values[:1])[0]
        return plain(function.call(*values), function.name)
    except NLQLError as error:
        error.placed(call.at)
        raise
    except Exception as error:
        given = ", ".join(shown(value) for value in values)
        raise ExecutionError(
            f"{function.name}({given}) failed: {type(error).__name__}: {error}. The function must take every value that rows have, "
            "null, too; or leave such rows out by a condition before it, joined with AND."
        ).placed(call.at) from error


def plain(value: Any, name: str) -> Any:
    """What a user's function returned, as a value of the language: text, number, bool, null, list or object. Raises ExecutionError."""
    if value is None or isinstance(value, str | bool | int | float | list | dict):
        return value
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise ExecutionError(f"{name} returned a {type(value).__name__}; expected text, a number, a bool, null, a list or an object.")
