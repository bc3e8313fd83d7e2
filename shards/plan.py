"""One query tree for everything that asks: parsers and HTTP only produce it, shards evaluate and simplify it.

A plan has a scope (a predicate over entries) and one prepared query per space. A shard first simplifies the predicate
against what it holds (`simplify`): a part that no entry can meet becomes `Nothing`, and the search is over before it began.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from shards.errors import BadQuery
from shards.types import EXCERPT_BYTES, N_CANDIDATES, Array, LinesAround

Scalar = str | int | float | bool | None

# Python's matcher tries every way to share a segment among its stars, and holds the interpreter's lock meanwhile: 9 stars on a
# name of 40 characters took 4.4 s, 5 stars 10 ms. RE2 would be linear, but costs 10 us for any path, 13 times as much.
MAX_STARS = 5  # in one segment of a glob, and `**` in the whole glob

_SEGMENT_STARTS, _SEGMENT_ENDS = ("", "/", "{", ","), ("", "/", "}", ",")  # what `**` that spans segments stands between

_TABLE = re.compile(r".+?\.(?:jsonl|ndjson|csv|tsv|parquet|sdf)(?=#)", re.DOTALL | re.IGNORECASE)  # of `data/x.jsonl#17`, which is a row

OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "in", "has", "exists", "glob")


@dataclass(frozen=True, slots=True)
class Everything:
    """True of each entry."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """True of no entry."""


@dataclass(frozen=True, slots=True)
class Glob:
    """The entry's path matches a glob: `*` within a segment, `**` as a whole segment across segments, `?`, `[…]`, `{a,b}`.

    A pattern without a slash is matched against the last segment, as in .gitignore and fd. Case counts.
    """

    pattern: str


@dataclass(frozen=True, slots=True)
class Compare:
    """A metadata field against a value. Dotted names walk nested metadata.

    Fields of every entry: `path`, `source`, `size_bytes`, `mtime` (seconds), `ext`; and, where its metadata has none of that name,
    `kind` (code, data, prose) and of prose `language`, as its document looks. Types must agree: a number compares with numbers
    only, text with text; otherwise, and where the field is missing, the comparison is false (`!=` included), except that
    `exists` asks just that. Of lists, `has` asks for an item that equals the value.
    """

    field: str
    op: str
    value: Scalar | tuple[Scalar, ...] = None


@dataclass(frozen=True, slots=True)
class Not:
    of: "Predicate"


@dataclass(frozen=True, slots=True)
class And:
    of: tuple["Predicate", ...]


@dataclass(frozen=True, slots=True)
class Or:
    of: tuple["Predicate", ...]


Predicate = Everything | Nothing | Glob | Compare | Not | And | Or


@dataclass(frozen=True, slots=True)
class SpaceQuery:
    """One space's question, prepared once by the coordinator with global statistics.

    asked: what the space was really asked, for people. payload: the layer's own picklable value, small (kilobytes).
    log_p: natural log of the chance that a random live unit matches: rarity layers, and phrases elsewhere.
    most: the score of a unit that would hold all that was asked, what the corpus lacks included; None where that is not known.
    where: what of the scope this question is about, beside the plan's own; None: all of it.
    finds: whether it brings documents; if not, it only scores those that other questions of the plan bring, and the plan's `given`.
    model: what turned the text into this question where a model did; bridge: for people, over which other spaces it came; feedback: for
    people, what texts that the caller chose made of it. All are translations, in which something may be lost: `explain` tells them.
    known: whether an earlier round of the search has its list, moments and coverage, and its scores of the plan's `given`: then it is
    not searched for, and only scores documents that other questions bring.
    """

    space: str
    asked: str
    payload: Any
    log_p: float | None = None
    most: float | None = None
    where: "Predicate | None" = None
    finds: bool = True
    model: str = ""
    bridge: str = ""
    feedback: str = ""
    known: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Worth:
    """The most that a space adds to the sum by which documents are ranked, by their raw scores in it.

    scores, values: (m,) float64, ascending: up to scores[i] and above scores[i - 1] it adds values[i] at most; above the last, nobody
        knows. Both empty: `factor` times `Layer.surprise` (rarity layers, whose scores have no scale in between). factor: the space's
        weight.
    unlisted: what it adds at most to a document that is not listed.
    """

    scores: Array
    values: Array
    factor: float
    unlisted: float


@dataclass(frozen=True, slots=True)
class Deeper:
    """What a further round of a search asks for: all documents that may add up to more than `least`, where the sum is the coordinator's.

    above: for each query of the plan, the score beyond which every document is to be listed (-inf: all that match); None: no list is
    wanted, for it is known. worths: likewise.
    """

    above: tuple[float | None, ...]
    worths: tuple[Worth, ...]
    least: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What a host is asked: the same for every shard.

    n_candidates: documents wanted from each space; n_details: how many documents, of all, come with entries and
    excerpt at once. budget_s: seconds left when the plan was sent. words: lower-case words that excerpts should show.
    given: content hashes, one after the other: documents that every question scores beside those that are found.
    on_the_fly_s: most seconds for scoring documents that a space has no index of (`shards/on_the_fly.py`); 0: none are. promise: what each
    question's ranks count in choosing these; empty: all alike.
    excerpt_size: about so many bytes, or lines. deeper: of a further round, which documents are wanted instead (`shards/deepening.py`).
    """

    where: Predicate
    queries: tuple[SpaceQuery, ...]
    n_candidates: int = N_CANDIDATES
    n_details: int = 10
    budget_s: float = 10.0
    excerpt_size: int | LinesAround = EXCERPT_BYTES
    words: tuple[str, ...] = ()
    given: bytes = b""
    deeper: Deeper | None = None
    on_the_fly_s: float = 0.0
    promise: tuple[float, ...] = ()


def simplify(node: Predicate, decide: Callable[[Predicate], bool | None] = lambda _leaf: None) -> Predicate:
    """The same predicate with constants folded, nested And/Or flattened and duplicates dropped.

    decide: what a shard knows of a leaf: True (every entry meets it), False (none does), None (must be looked at).
    """
    match node:
        case Not(of=inner):
            inner = simplify(inner, decide)
            match inner:
                case Everything():
                    return Nothing()
                case Nothing():
                    return Everything()
                case Not(of=core):
                    return core
            return Not(inner)
        case And(of=parts) | Or(of=parts):
            kind = type(node)
            absorbing, neutral = (Nothing(), Everything()) if kind is And else (Everything(), Nothing())
            kept: dict[str, Predicate] = {}  # by what they say: 1 and true are equal in Python, but not here
            for part in parts:
                part = simplify(part, decide)
                if part == absorbing:
                    return absorbing
                for piece in part.of if isinstance(part, kind) else (part,):
                    if piece != neutral:
                        kept.setdefault(repr(piece), piece)
            if not kept:
                return neutral
            return next(iter(kept.values())) if len(kept) == 1 else kind(tuple(kept.values()))
        case Everything() | Nothing():
            return node
    known = decide(node)
    return node if known is None else Everything() if known else Nothing()


def fields_of(node: Predicate) -> frozenset[str]:
    """The metadata fields a predicate reads."""
    match node:
        case Compare(field=name):
            return frozenset([name])
        case Not(of=inner):
            return fields_of(inner)
        case And(of=parts) | Or(of=parts):
            return frozenset().union(*map(fields_of, parts))
    return frozenset()


@lru_cache(maxsize=1024)
def glob_regex(pattern: str, ignore_case: bool = False) -> re.Pattern[str]:
    """A glob as a compiled regular expression over whole paths (see `Glob`).

    ignore_case: ASCII letters match either case, others never do.
    Raises BadQuery for an unclosed `[` or `{`, and for more than MAX_STARS stars in a segment or `**` in all.
    """
    if len(re.findall(r"\*\*+", pattern)) > MAX_STARS or any(len(re.findall(r"\*+", s)) > MAX_STARS for s in pattern.split("/")):
        raise BadQuery(f"Glob {pattern!r} has more than {MAX_STARS} stars in one segment, or more than {MAX_STARS} **. Use fewer.")
    anchored = pattern.lstrip("/")
    prefix = "" if "/" in pattern else "(?:.*/)?"
    out, i, braces = [], 0, 0
    while i < len(anchored):
        c = anchored[i]
        if c == "*":
            end = i + len(anchored[i:]) - len(anchored[i:].lstrip("*"))
            whole = end - i > 1 and anchored[i - 1 : i] in _SEGMENT_STARTS and anchored[end : end + 1] in _SEGMENT_ENDS
            if whole and anchored.startswith("/", end):
                out.append("(?:.*/)?")
                end += 1
            else:
                out.append(".*" if whole else "[^/]*")
            i = end
            continue
        if c == "?":
            out.append("[^/]")
        elif c == "[":
            negated = anchored[i + 1 : i + 2] in ("!", "^")
            end = anchored.find("]", i + 2 + negated)
            if end < 0:
                raise BadQuery(f"Glob {pattern!r} has an unclosed '[' at position {i}. Close it, or write [[] for the character.")
            # What stands for itself in a glob's class is escaped, as is `--`, which Python takes for a set operator to come.
            body = re.sub(r"(^-|[\\\[\]&~|^])|--", lambda m: f"\\{m[1]}" if m[1] else r"-\-", anchored[i + 1 + negated : end])
            body = (_other_case(anchored[i + 1 + negated : end]) if ignore_case else "") + body
            out.append(f"[^/{body}]" if negated else f"[{body}]")
            i = end
        elif c == "{":
            out.append("(?:")
            braces += 1
        elif c == "}" and braces:
            out.append(")")
            braces -= 1
        elif c == "," and braces:
            out.append("|")
        elif ignore_case and c.isascii() and c.isalpha():
            out.append(f"[{c.lower()}{c.upper()}]")
        else:
            out.append(c if c.isspace() else re.escape(c))  # a space that is escaped RE2 may not read
        i += 1
    if braces:
        raise BadQuery(f"Glob {pattern!r} has an unclosed '{{'. Close it, or write [{{] for the character.")
    try:
        return re.compile(prefix + "".join(out), re.DOTALL | re.ASCII)
    except re.error as error:
        raise BadQuery(f"Glob {pattern!r} is not valid: {error}. Check the character range in [...].") from None


def _other_case(body: str) -> str:
    """What a class of a glob must have beside, so that it matches ASCII letters in either case."""
    ranges = [(m[1] or m[3], m[2] or m[3]) for m in re.finditer(r"(.)-(.)|(.)", body, re.DOTALL)]
    found = []
    for letters, others in ((ascii_lowercase, ascii_uppercase), (ascii_uppercase, ascii_lowercase)):
        for first, last in ranges:
            both = "".join(other for letter, other in zip(letters, others, strict=True) if first <= letter <= last)
            found.append(f"{both[0]}-{both[-1]}" if both else "")
    return "".join(found)


def compare(op: str, left: Any, right: Any) -> bool:
    """One comparison as `Compare` defines it, on plain values."""
    if op == "exists":
        return left is not None
    if left is None:
        return False
    if op == "in":
        return any(compare("==", left, item) for item in right)
    if op == "has":
        return isinstance(left, list | tuple) and any(compare("==", item, right) for item in left)
    if op == "glob":
        return isinstance(left, str) and glob_regex(right).fullmatch(left) is not None
    if isinstance(left, bool) or isinstance(right, bool):
        if type(left) is not type(right):
            return False
    elif isinstance(left, (int, float)) != isinstance(right, (int, float)) or isinstance(left, str) != isinstance(right, str):
        return False
    match op:
        case "==":
            return left == right
        case "!=":
            return left != right
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case ">=":
            return left >= right
    raise BadQuery(f"Unknown operator {op!r}; choose from {', '.join(OPERATORS)}.")


def matches(node: Predicate, path: str, fields: Callable[[str], Any]) -> bool:
    """Whether one entry meets the predicate; `fields` looks a field up (None when missing). The obvious, slow definition."""
    match node:
        case Everything():
            return True
        case Nothing():
            return False
        case Glob(pattern=pattern):
            return glob_regex(pattern).fullmatch(path) is not None
        case Compare(field=name, op=op, value=value):
            return compare(op, fields(name), value)
        case Not(of=inner):
            return not matches(inner, path, fields)
        case And(of=parts):
            return all(matches(part, path, fields) for part in parts)
        case Or(of=parts):
            return any(matches(part, path, fields) for part in parts)


def extension(path: str) -> str:
    """The field `ext`: what follows the last dot of a path's last part, in lower case; "" without one. Of a row, that of its table."""
    if "#" in path and (table := _TABLE.match(path)):
        path = table[0]
    base = path.rpartition("/")[2]
    return base.rpartition(".")[2].lower() if "." in base[1:] else ""


def lookup(metadata: Mapping[str, Any], dotted: str) -> Any:
    """A dotted field of nested metadata; None when a step is missing or not a mapping."""
    value: Any = metadata
    for step in dotted.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value
