"""What a question for a name in code asks: which name, in what scope, defined as what; from a form or from text as people write it."""

import re
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from shards.errors import BadQuery
from shards.languages import KINDS

FORM = 'a name, a dotted path, `def name`, or {"name": …, "kind": …, "scope": …, "references": false}'
MAX_CHARS = 255
_FUNCTIONS, _TYPES = ("function", "method", "macro"), ("type", "struct", "interface", "enum", "class")
_WORDS = {  # what begins a definition, and the kinds it can be
    **dict.fromkeys("def fn func fun function sub defp".split(), _FUNCTIONS),
    **dict.fromkeys("class object record contract".split(), ("class",)),
    **dict.fromkeys("struct union".split(), ("struct",)),
    **dict.fromkeys("interface protocol trait".split(), ("interface", "trait")),
    **dict.fromkeys("type typedef typealias newtype".split(), _TYPES),
    **dict.fromkeys("module mod namespace package defmodule".split(), ("module",)),
    "enum": ("enum",),
    "defmacro": ("macro",),
    "macro_rules!": ("macro",),
}
_MODIFIERS = "|".join(
    "pub public private protected internal static async export default abstract final unsafe extern inline virtual override open data "
    "sealed".split()
)
_NAME = r"[^\W\d][\w$]*[?!]?|[$@#]+\w+"
_PATH = rf"(?:{_NAME})(?:(?:\.|::|#|\\)(?:{_NAME}))*"
_IDENTIFIER = re.compile(rf"\s*({_PATH})\s*(?:\(\s*\)?)?\s*")
_DEFINITION = re.compile(
    rf"\s*(?:(?:{_MODIFIERS})\s+)*(?P<word>{'|'.join(map(re.escape, sorted(_WORDS, key=len, reverse=True)))})\s+"
    rf"(?:\(\s*(?:\w+\s+)?\*?(?P<receiver>\w+)[^)]*\)\s*)?(?P<path>{_PATH})\s*(?:[(<{{:\[;=].*)?",
    re.DOTALL,
)
_SEPARATORS = re.compile(r"\.|::|#|\\")


class Form(BaseModel):
    """The form of the symbols space. scope: names that must enclose it, dotted; references: where it is used instead of defined."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    kind: str | None = None
    scope: str | None = None
    references: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A name of code to be found.

    prefix: names before it, the outermost first, which a definition may have as scope or path; strict: it must. kinds: of definition;
    () for any. references: uses are asked for.
    """

    name: str
    prefix: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    strict: bool = False
    references: bool = False


def wanted_by_form(given: dict) -> Wanted:
    """Raises BadQuery."""
    try:
        form = Form(**given)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise BadQuery(f"Symbols form: {problems}. Expected {FORM}.") from None
    if form.kind is not None and form.kind not in KINDS[1:]:
        raise BadQuery(f"Symbols form: kind {form.kind!r} is unknown. Choose from: {', '.join(KINDS[1:])}.")
    if form.kind is not None and form.references:
        raise BadQuery("Symbols form: uses of a name have no kind. Leave out kind, or references.")
    *prefix, name = split(form.name)
    scope = split(form.scope) if form.scope is not None else []
    return Wanted(name, (*scope, *prefix), (form.kind,) if form.kind else (), strict=bool(scope), references=form.references)


def wanted_by_text(text: str) -> Wanted | None:
    """What a common text asks: one identifier, a dotted path, or the beginning of a definition; None where it is none of these."""
    if len(text) > MAX_CHARS or not text.strip():
        return None
    if (match := _DEFINITION.fullmatch(text)) is not None:
        *prefix, name = split(match["path"])
        receiver = (match["receiver"],) if match["receiver"] else ()
        return Wanted(name, (*receiver, *prefix), _WORDS[match["word"]])
    if (match := _IDENTIFIER.fullmatch(text)) is not None:
        *prefix, name = split(match[1])
        return Wanted(name, tuple(prefix))
    return None


def split(path: str) -> list[str]:
    """The parts of a dotted path: `a.b`, `a::b`, `a#b`, `a\\b`. Raises BadQuery where nothing is left."""
    parts = [part for part in _SEPARATORS.split(path.strip()) if part] if re.search(r"\w", path) else [path.strip()]
    if not parts or not parts[-1]:
        raise BadQuery(f"Symbols: the name is empty. Expected {FORM}.")
    if len(path) > MAX_CHARS:
        raise BadQuery(f"Symbols: the name has {len(path)} characters; at most {MAX_CHARS} are allowed. Shorten it.")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise BadQuery(f"Symbols: the name has a lone surrogate at position {error.start}. Send valid Unicode.") from None
    return parts


def words_of(name: str) -> bytes:
    """A name folded and without what separates its words: `call_soon` and `callSoon` as callsoon; b"" for a single character."""
    body = "".join(c for c in name if c.isalnum()).encode()
    return body.lower() if len(name) > 1 else b""
