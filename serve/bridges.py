"""Bridges: what one search finds gives the keys that another is asked with.

    name -> InChIKey -> fingerprint; error message -> symbol -> references; identifier in a line of a log -> definition

A key is taken from a hit's metadata and from the lines of its span, never guessed. What is asked with it is asked once for each key, and a
document takes the best of its keys.

**A chain is as weak as its links together.** That a document answers the request supposes that the key is right and that the document
answers the key, so the chance that one of both is an accident is at most the sum of the two (Boole's inequality):

    E = E_key + E_document,     fused = -ln(e^-fused_key + e^-fused_document)

A weak hit's key therefore brings nothing that is worth more than that hit, and behind one key the order is the second search's. Several
keys are several questions: the best of m has E times m (Bonferroni). A key from the caller's own text is certain: E_key = 0.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serve.algebra_schema import KEY, FieldKey, PatternKey, Search
from shards.plan import lookup
from shards.types import Array, Detail, Entry

MAX_KEYS = 8  # of one bridge; each is a question of its own
MAX_KEY_CHARS = 500

_INCHIKEY = re.compile(r"(?<![A-Z0-9-])[A-Z]{14}-[A-Z]{8}[SN][A-Z]-[A-Z](?![A-Z0-9-])")
_NAME = r"[^\W\d][\w$]*"
_DOTTED = rf"{_NAME}(?:(?:\.|::){_NAME})*"
# What names a symbol in an error message or a line of code, the most telling first.
_SYMBOLS = (
    re.compile(rf"^\s*File \"[^\"\n]+\", line \d+, in ({_NAME})\s*$", re.MULTILINE),  # Python's frames, the innermost last
    re.compile(
        rf"^\s*at (?:async |new )?({_DOTTED})\s*\([^()\n]*:\d+[^()\n]*\)", re.MULTILINE
    ),  # Java's and JavaScript's, the innermost first
    re.compile(rf"^\s*({_DOTTED}(?:Error|Exception|Warning|Interrupt|Exit))(?=:|\s*$)", re.MULTILINE),
    re.compile(rf"\b(?:raise|throw(?:\s+new)?|panic!?|except|catch)[\s(]+({_DOTTED})"),
    re.compile(rf"\b(?:def|class|fn|func|function|struct|enum|trait|interface)\s+({_NAME})"),
    re.compile(rf"(?<![\w.$])({_DOTTED})\s*\((?!\s*[a-z]+ )"),  # a call
)
_PYTHON_FRAMES = 0
_KEYWORDS = frozenset(
    "if elif else for while switch match case return yield await with in is not and or assert del print catch except lambda sizeof typeof "
    "new throw raise function def class from import None True False self this super".split()
)
# Names written as in code: an underscore or hump inside, parts joined by dots or colons, or brackets behind. Not paths, hosts or versions.
_CODE_NAME = re.compile(rf"(?<![\w./\\@$-])({_NAME}(?:(?:\.|::|->|#){_NAME})*)(\(\))?(?![\w/\\@]|\.\d|-\w)")
_WRITTEN_AS_CODE = re.compile(r"\w_\w|^_+\w|[a-z0-9][A-Z]|::|->|#|\w\w\.\w\w")
_FILE_END = re.compile(
    r"\.(?:py|pyi|js|ts|tsx|jsx|go|rs|c|h|cc|cpp|hpp|java|kt|rb|php|cs|sh|md|rst|txt|log|json|ya?ml|toml|xml|html?|csv|com|org|net|io)$"
)


@dataclass(frozen=True, slots=True)
class Key:
    """A key. fused, log_evalue: the evidence of the hit that gave it, inf and -inf where the caller did. document: that hit, b"" for the
    caller's text; path: where it lies; place: the metadata field it stands in, "text" for the hit's lines."""

    text: str
    fused: float
    log_evalue: float
    document: bytes = b""
    path: str = ""
    place: str = "text"


@dataclass(frozen=True, slots=True)
class Giver:
    """A hit that may give keys: its evidence, and what a host said of it; None where it could not be read."""

    document: bytes
    fused: float
    log_evalue: float
    detail: Detail | None


def keys_of_hits(kind: Any, hits: Sequence[Giver]) -> tuple[list[Key], int]:
    """The distinct keys of hits, best hit first, at most MAX_KEYS; and how many more there were."""
    found: dict[str, Key] = {}
    for hit in hits:
        if hit.detail is None:
            continue
        path = hit.detail.entries[0].path if hit.detail.entries else ""
        for text, place in _in_detail(kind, hit.detail):
            found.setdefault(text, Key(text, hit.fused, hit.log_evalue, hit.document, path, place))
    return list(found.values())[:MAX_KEYS], max(0, len(found) - MAX_KEYS)


def keys_of_text(kind: Any, text: str) -> tuple[list[Key], int]:
    """The distinct keys of the caller's own text."""
    found = list(dict.fromkeys(_in_text(kind, text)))
    return [Key(key, np.inf, -np.inf, place="the request") for key in found[:MAX_KEYS]], max(0, len(found) - MAX_KEYS)


def asked_with(template: Search, key: str) -> Search:
    """The search that a key asks: it stands where the template says "$key", in the query and in the texts of forms."""
    asked = template.search
    return Search(search=asked.model_copy(update={"query": asked.query.replace(KEY, key), "forms": _filled(asked.forms, key)}))


def chained(key: Key, fused: Array, log_evalues: Array) -> tuple[Array, Array]:
    """Evidence, at least 0, and ln E of documents found with a key. fused, log_evalues: (n,) what the second search says of them."""
    return np.maximum(-np.logaddexp(-key.fused, -fused), 0.0), np.logaddexp(key.log_evalue, log_evalues)


# --- keys --------------------------------------------------------------------------------------------------------------------------


def _in_detail(kind: Any, detail: Detail) -> Iterator[tuple[str, str]]:
    """Keys of one hit, each with where it stands: metadata of its entries first, then the lines of its span."""
    if isinstance(kind, FieldKey):
        for entry in detail.entries:
            for text in _texts(_value(entry, kind.field)):
                yield text, kind.field
        return
    if kind == "inchikey":  # the other keys are of code, whose metadata are no code
        for entry in detail.entries:
            for field, text in _fields(entry.metadata):
                for key in _in_text(kind, text):
                    yield key, field
    for shown in detail.excerpts.values():
        for key in _in_text(kind, shown.text):
            yield key, "text"


def _value(entry: Entry, field: str) -> Any:
    """A field as filters name it, or with `meta.` before it; columns may be spelt in another case, as tables of one kind do."""
    if field in ("path", "source"):
        return getattr(entry, field)
    name = field.removeprefix("meta.")
    found = lookup(entry.metadata, name)
    if found is None:
        found = next((value for key, value in sorted(entry.metadata.items()) if key.casefold() == name.casefold()), None)
    return found


def _in_text(kind: Any, text: str) -> Iterator[str]:
    match kind:
        case "inchikey":
            found: Iterator[str] = (match[0] for match in _INCHIKEY.finditer(text))
        case "symbol":
            found = _symbols(text)
        case "identifier":
            found = _identifiers(text)
        case PatternKey(pattern=pattern):
            found = _grouped(pattern, text)
        case _:
            found = iter(())
    return (key for key in found if key.strip() and len(key) <= MAX_KEY_CHARS)


def _grouped(pattern: str, text: str) -> Iterator[str]:
    import re2  # linear in the text, whatever the caller wrote

    return (match.group(1) for match in re2.compile(pattern).finditer(text) if match.group(1) is not None)


def _symbols(text: str) -> Iterator[str]:
    for number, sign in enumerate(_SYMBOLS):
        names = [match[1] for match in sign.finditer(text)]
        for name in reversed(names) if number == _PYTHON_FRAMES else names:
            last = re.split(r"\.|::", name)[-1]
            if last not in _KEYWORDS:
                yield last


def _identifiers(text: str) -> Iterator[str]:
    for match in _CODE_NAME.finditer(text):
        name, called = match[1], match[2]
        if (called or _WRITTEN_AS_CODE.search(name)) and not _FILE_END.search(name) and name not in _KEYWORDS:
            yield name


def _texts(value: Any) -> Iterator[str]:
    """A metadata value as keys: text, numbers, or each item of a list."""
    if isinstance(value, str) and value.strip():
        yield value.strip()[: MAX_KEY_CHARS + 1]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield f"{value}"
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _fields(metadata: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """All texts of nested metadata, with their dotted names."""
    for name, value in metadata.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{before}{name}.")
        elif isinstance(value, str):
            yield f"{before}{name}", value


def _filled(value: Any, key: str) -> Any:
    if isinstance(value, str):
        return value.replace(KEY, key)
    if isinstance(value, Mapping):
        return {name: _filled(inner, key) for name, inner in value.items()}
    return [_filled(inner, key) for inner in value] if isinstance(value, list | tuple) else value
