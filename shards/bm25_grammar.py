"""What a query says: which words are sought, and what must or must not stand where. Text becomes a tree; nothing is looked up.

    words rank              retrieval models            "a phrase" must stand, as must what an operator joins
    +must  -must_not        AND  OR  NOT  ( )           prefix*     one NEAR/5 "other words"
    title:word  body:word   title:(a OR b)              path:src/**/*.py  path:word

NEAR binds closest, then NOT, AND, OR. What merely stands side by side comes last: bare words and prefixes only rank where something
else is required, all else must hold (so `a OR b c` is: a or b; and c ranks). In a field the same holds.

A common text is read so only where it clearly is a query (`understood`): people quote, and write NOT, in sentences too. nDCG@10 of cacm
is .513 where quotations in its prose only rank, .462 where they are required.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from shards.errors import BadQuery
from shards.plan import glob_regex

MAX_CHARS = 4_000  # of a query with operators
MAX_DEPTH = 24  # of parentheses and operators before one another
MAX_NODES = 128
MAX_DISTANCE = 100  # words between two that are near
MAX_BARE_WORDS, MAX_BESIDE_QUOTES = 16, 8  # beside operators, or quotations alone; what says more is a sentence
MIN_PREFIX_CHARS = 2

FIELDS = ("title", "body", "path")


@dataclass(frozen=True, slots=True)
class Words:
    """Text without operators."""

    text: str


@dataclass(frozen=True, slots=True)
class Prefix:
    """All words that begin so."""

    text: str


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words that stand one after the other."""

    text: str


@dataclass(frozen=True, slots=True)
class Near:
    """Each operand stands within so many words of the one before it, on either side. distances: one fewer than operands."""

    of: "tuple[Leaf, ...]"
    distances: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """Its query, of the title or of what is not the title. name: "title" or "body"."""

    name: str
    of: "Node"


@dataclass(frozen=True, slots=True)
class Path:
    """The document lies at a path like this: a glob, or a word that occurs in the path."""

    pattern: str


@dataclass(frozen=True, slots=True)
class All:
    of: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Any:
    of: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Not:
    of: "Node"


@dataclass(frozen=True, slots=True)
class Clauses:
    """What stands side by side: all of `must` holds, or where that is empty one of `rank`; all of both rank."""

    must: "tuple[Node, ...]" = ()
    rank: "tuple[Node, ...]" = ()


Leaf = Words | Prefix | Phrase
Node = Words | Prefix | Phrase | Near | Field | Path | All | Any | Not | Clauses

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<quote>"(?P<straight>[^"]*)"|\u201c(?P<english>[^\u201d]*)\u201d|\u201e(?P<german>[^\u201c\u201d]*)[\u201c\u201d])
    | (?P<open>\() | (?P<close>\))
    | (?P<operator>AND|OR|NOT|NEAR/\d+)(?=[\s()"\u201c\u201e]|$)
    | (?P<sign>[+-])(?=[\w"\u201c\u201e(])
    | (?P<name>title|body|path):(?=[^\s])
    | (?P<word>[^\s()"\u201c\u201e]+)""",
    re.VERBOSE,
)
_PATH = re.compile(r'"([^"]*)"|(\S+?)(?=\)*(?:\s|$))')
# What shows a query: cheap to look for in any text.
_SHOWS = re.compile(
    r"""(?:^|[\s(])(?:AND|OR|NOT|NEAR/\d+)(?=[\s("\u201c\u201e])
    | (?:^|[\s(])[+-](?=[^\W\d_]|["\u201c\u201e(])
    | \w\w\*(?=[\s)]|$)
    | (?:^|[\s(+-])(?:title|body|path):(?=[\w"(*./])
    | "[^"]*\w[^"]*" | \u201c[^\u201d]*\w[^\u201d]*\u201d | \u201e[^\u201c\u201d]*\w[^\u201c\u201d]*[\u201c\u201d]""",
    re.VERBOSE,
)
_QUOTED = re.compile('"[^"]*"|\u201c[^\u201d]*\u201d|\u201e[^\u201c\u201d]*[\u201c\u201d]')
_SENTENCE = re.compile(r"[.?!;:](?:\s|$)|[。？！；：]")
_QUOTED_END = re.compile('[.?!]["\u201c\u201d]\\s*$')  # `Who wrote "On the road?"`
_OPERATORS = re.compile(r"\b(?:AND|OR|NOT|NEAR/\d+)\b|\b(?:title|body|path):\S*")
_UNMISTAKABLE = re.compile(r"\b(?:NEAR/\d+|(?:title|body|path):)")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")


@dataclass(slots=True)
class _Token:
    kind: str
    text: str
    at: int


def understood(text: str) -> tuple[Clauses | None, str]:
    """The query that a common text clearly is, else None; and why one that looked like a query is read as plain words, else ""."""
    if len(text) > MAX_CHARS or not _SHOWS.search(text):
        return None, ""
    outside = _QUOTED.sub(" ", text)
    bare = _OPERATORS.sub(" ", outside)
    most = MAX_BARE_WORDS if _SHOWS.search(outside) else MAX_BESIDE_QUOTES
    if _SENTENCE.search(bare) or (bare.strip() and _QUOTED_END.search(text)) or len(bare.split()) > most:
        return None, "it reads as a sentence"
    letters = [c for c in bare + "".join(_QUOTED.findall(text)) if c.isalpha()]
    if bare != outside and all(c.isupper() for c in letters) and not _UNMISTAKABLE.search(outside):
        return None, "it is all in capitals"  # SHALL NOT EXCEED
    try:
        return parse(text), ""
    except BadQuery as error:
        return None, str(error)


@lru_cache(maxsize=256)
def parse(text: str) -> Clauses:
    """The query that a text says. Raises BadQuery with the place, counted from 0, and the remedy."""
    if len(text) > MAX_CHARS:
        raise BadQuery(f"The query has {len(text)} characters; at most {MAX_CHARS} are allowed. Shorten it.")
    return _Parser(text).query()


def leaves(node: Node, positive: bool = True) -> Iterator[tuple[Node, bool]]:
    """Words, prefixes, phrases, near ones, paths of a query in their order, and whether each is sought rather than excluded."""
    match node:
        case Clauses(must=must, rank=rank):
            for child in (*must, *rank):
                yield from leaves(child, positive)
        case All(of=children) | Any(of=children):
            for child in children:
                yield from leaves(child, positive)
        case Not(of=child):
            yield from leaves(child, not positive)
        case Field(of=child):
            yield from leaves(child, positive)
        case _:
            yield node, positive


def split_paths(query: Clauses) -> tuple[Clauses, tuple[Node, ...]]:
    """The query without its paths, and what it says of paths: nodes of nothing else."""
    of_paths = tuple(node for node in query.must if all(isinstance(leaf, Path) for leaf, _ in leaves(node)))
    return Clauses(tuple(node for node in query.must if node not in of_paths), query.rank), of_paths


def describe(node: Node) -> str:
    """A query for people, with parentheses where they are needed."""
    match node:
        case Words(text=text):
            return text
        case Prefix(text=text):
            return f"{text}*"
        case Phrase(text=text):
            return f'"{" ".join(text.split())}"'
        case Near(of=parts, distances=distances):
            pieces = [f"within {n} of {describe(part)}" for part, n in zip(parts[1:], distances, strict=True)]
            return " ".join([describe(parts[0]), *pieces])
        case Field(name=name, of=inner):
            return f"{name}: {_nested(inner)}"
        case Path(pattern=pattern):
            return f"path: {pattern}"
        case Not(of=inner):
            return f"not {_nested(inner)}"
        case All(of=parts):
            return " and ".join(map(_nested, parts))
        case Any(of=parts):
            return " or ".join(map(_nested, parts))
        case Clauses(must=must, rank=rank):
            return " and ".join(map(_nested, must)) if must else " or ".join(map(_nested, rank))
    raise AssertionError(node)


def _nested(node: Node) -> str:
    single = not isinstance(node, All | Any | Clauses) or (isinstance(node, Clauses) and len(node.must or node.rank) == 1)
    return describe(node) if single else f"({describe(node)})"


def wanted(query: Clauses) -> str:
    """The words that are sought, without operators, fields, paths and what is excluded."""
    found: list[str] = []
    for leaf, positive in leaves(query):
        if positive and not isinstance(leaf, Path):
            found += [part.text for part in leaf.of] if isinstance(leaf, Near) else [leaf.text]
    return " ".join(found)


@dataclass(slots=True)
class _Parser:
    """Recursive descent over tokens. n_nodes: how many the tree has so far."""

    text: str
    tokens: list[_Token] = field(default_factory=list)
    place: int = 0
    n_nodes: int = 0
    depth: int = 0

    def __post_init__(self) -> None:
        at = 0
        while at < len(self.text):
            found = _TOKEN.match(self.text, at)
            if found is None:
                raise self._error("the quotation is not closed", "Close it, or leave the mark out", at)
            kind = str(found.lastgroup)
            if kind in ("straight", "english", "german"):
                kind = "quote"
            if kind != "space":
                self.tokens.append(_Token(kind, found.group(), at))
            at = found.end()
            if kind == "name" and found.group() == "path:":
                pattern = _PATH.match(self.text, at)
                if pattern is None:
                    raise self._error("path: has no pattern", "Write path:word or path:src/**/*.py", at)
                self.tokens.append(_Token("pattern", pattern[1] if pattern[1] is not None else pattern[2], at))
                at = pattern.end()

    def query(self) -> Clauses:
        found = self._clauses()
        if (token := self._next()) is not None:
            raise self._error("this parenthesis was never opened", "Leave it out, or quote it", token.at)
        if not any(positive and not isinstance(leaf, Path) for leaf, positive in leaves(found)):
            raise BadQuery("The query seeks nothing: it has no word but what it excludes and paths. Add a word.")
        must = tuple(part for node in found.must for part in (node.of if isinstance(node, All) else (node,)))
        for node in (*must, *found.rank):
            kinds = {isinstance(leaf, Path) for leaf, _ in leaves(node)}
            if len(kinds) > 1:
                pattern = next(leaf.pattern for leaf, _ in leaves(node) if isinstance(leaf, Path))
                at = max(self.text.find(f"path:{pattern}"), 0)
                raise self._error("path: narrows the whole query", "Take it out of the OR, the parentheses or NOT", at)
        return Clauses(must, found.rank)

    # --- what tokens there are ---------------------------------------------------------------------------------------------

    def _next(self) -> _Token | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def _takes(self, kind: str, text: str = "") -> _Token | None:
        """The next token, if it is of this kind and begins so."""
        token = self._next()
        if token is None or token.kind != kind or not token.text.startswith(text):
            return None
        self.place += 1
        return token

    def _error(self, what: str, remedy: str, at: int) -> BadQuery:
        return BadQuery(f"The query is not understood at character {at}, {self.text[at : at + 20]!r}: {what}. {remedy}.")

    def _counted(self, node: Node, at: int) -> Node:
        self.n_nodes += 1
        if self.n_nodes > MAX_NODES:
            raise self._error(f"it has more than {MAX_NODES} parts", "Ask for less at once", at)
        return node

    # --- the grammar -------------------------------------------------------------------------------------------------------

    def _clauses(self) -> Clauses:
        must: list[Node] = []
        rank: list[Node] = []
        while (token := self._next()) is not None and token.kind != "close":
            signed = token.kind == "sign"
            node = self._any()
            if node is not None:
                (rank if isinstance(node, Words | Prefix) and not signed else must).append(node)
        return Clauses(tuple(must), tuple(rank))

    def _any(self) -> Node | None:
        return self._joined(self._all, "OR", Any)

    def _all(self) -> Node | None:
        return self._joined(self._not, "AND", All)

    def _joined(self, operand, word: str, of_all) -> Node | None:  # type: ignore[no-untyped-def]
        begin = self._next()
        parts = [operand()]
        operators = []
        while (token := self._next()) is not None and token.kind == "operator":
            if token.text == word:
                self.place += 1
            elif not (word == "AND" and token.text == "NOT"):  # `a NOT b` is `a AND NOT b`
                break
            operators.append(token)
            parts.append(operand())
        if not operators:
            return parts[0]
        for token, before, after in zip(operators, parts, parts[1:], strict=False):
            if before is None or after is None:
                raise self._error(f"{token.text} has no word on one side", "Write a word on both, or quote it", token.at)
        assert begin is not None
        return self._counted(of_all(tuple(part for part in parts if part is not None)), begin.at)

    def _not(self) -> Node | None:
        token = self._takes("operator", "NOT") or self._takes("sign")
        if token is None:
            return self._near()
        self._deeper(token.at)
        inner = self._not()
        self.depth -= 1
        if inner is None:
            raise self._error(f"{token.text} has no word after it", "Write one, or quote it", token.at)
        return inner if token.text == "+" else self._counted(Not(inner), token.at)

    def _near(self) -> Node | None:
        begin = self._next()
        parts, distances = [self._primary()], []
        while (token := self._takes("operator", "NEAR/")) is not None:
            distance = int(token.text[5:])
            if not 1 <= distance <= MAX_DISTANCE:
                raise self._error(f"a distance of {distance} words", f"Give 1 to {MAX_DISTANCE}", token.at)
            distances.append(distance)
            parts.append(self._primary())
            if any(not isinstance(part, Words | Prefix | Phrase) for part in parts[-2:]):
                raise self._error("NEAR stands between words, prefixes and phrases only", "Write one on each side", token.at)
        if not distances:
            return parts[0]
        assert begin is not None
        return self._counted(Near(tuple(p for p in parts if isinstance(p, Words | Prefix | Phrase)), tuple(distances)), begin.at)

    def _primary(self) -> Node | None:
        """A word, a phrase, a field or what parentheses hold; None where no such thing begins, or one without letters and digits."""
        if (token := self._takes("open")) is not None:
            self._deeper(token.at)
            inner = self._clauses()
            self.depth -= 1
            if self._takes("close") is None:
                raise self._error("this parenthesis is not closed", "Close it", token.at)
            if len(inner.must) + len(inner.rank) == 1:
                return (inner.must or inner.rank)[0]
            return inner if inner.must or inner.rank else None
        if (token := self._takes("name")) is not None:
            return self._field(token)
        if (token := self._takes("quote")) is not None:
            return self._counted(Phrase(token.text[1:-1]), token.at) if _LETTER_OR_DIGIT.search(token.text) else None
        if (token := self._takes("word")) is None:
            return None
        if "*" not in token.text:
            return self._counted(Words(token.text), token.at) if _LETTER_OR_DIGIT.search(token.text) else None
        begin = token.text[:-1]
        if "*" in begin or not _LETTER_OR_DIGIT.search(begin[-1:]):
            raise self._error("* stands at the end of a word only", "Write the beginning of a word and *, or quote it", token.at)
        if len(begin) < MIN_PREFIX_CHARS and begin.isascii():
            raise self._error("too many words begin so", f"Give at least {MIN_PREFIX_CHARS} letters before *", token.at)
        return self._counted(Prefix(begin), token.at)

    def _field(self, token: _Token) -> Node:
        if (pattern := self._takes("pattern")) is not None:
            try:
                glob_regex(pattern.text)
            except BadQuery as error:
                raise self._error(str(error).rstrip("."), "Mend the glob", pattern.at) from None
            return self._counted(Path(pattern.text), token.at)
        inner = self._primary()
        if inner is None:
            raise self._error(f"{token.text} has no word", f"Write {token.text}word", token.at)
        if any(isinstance(leaf, Path) for leaf, _ in leaves(inner)) or _has_field(inner):
            raise self._error("a field within a field", "Write each by itself", token.at)
        return self._counted(Field(token.text[:-1], inner), token.at)

    def _deeper(self, at: int) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._error(f"it is nested more than {MAX_DEPTH} deep", "Write it flatter", at)


def _has_field(node: Node) -> bool:
    match node:
        case Field():
            return True
        case Clauses(must=must, rank=rank):
            return any(map(_has_field, (*must, *rank)))
        case All(of=children) | Any(of=children):
            return any(map(_has_field, children))
        case Not(of=child):
            return _has_field(child)
    return False
