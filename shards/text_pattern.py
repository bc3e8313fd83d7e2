"""What the text layer looks for, as the coordinator sends it to the shards: leaves, joined by AND, OR and NOT."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Exact:
    """A string as it stands.

    body: bytes without a line feed, ASCII-folded if `ignore_case` (then ASCII letters match either case, others themselves).
    rare: places of two bytes of it that are rare in this corpus, which are looked at first.
    """

    body: bytes
    ignore_case: bool = False
    rare: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression within a line, in RE2's syntax.

    probe: a string of every match that so few lines hold that only these are tried; None where there is none.
    """

    pattern: str
    ignore_case: bool = False
    probe: Exact | None = None


@dataclass(frozen=True, slots=True)
class Within:
    """A string but for up to `edits` characters left out, put in or exchanged (Levenshtein), at most 63 characters of it.

    word: an occurrence begins and ends at the border of a word. pieces: a regular expression that every line with an occurrence
    matches (one of `edits` + 1 pieces is there as it stands), "" where so many lines would that it saves nothing.
    """

    text: str
    edits: int
    ignore_case: bool = False
    word: bool = False
    pieces: str = ""


@dataclass(frozen=True, slots=True)
class MultiLine:
    """A regular expression over a whole document, in RE2's syntax: `^` and `$` stand at lines, `\\s` and `[^x]` take line feeds.

    needed: what must be in a document, as `Exact` leaves, or None. rare: of this, what few documents have.
    """

    pattern: str
    ignore_case: bool = False
    needed: "Formula | None" = None
    rare: "Formula | None" = None


@dataclass(frozen=True, slots=True)
class AllOf:
    """True where all parts are; as a formula they are sorted: the rarest first, negations last."""

    of: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    of: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NotOf:
    of: Any


Leaf = Exact | Regex | Within | MultiLine
Formula = Leaf | AllOf | AnyOf | NotOf
Requirement = bytes | AllOf | AnyOf | None


@dataclass(frozen=True, slots=True)
class TextQuery:
    """unit: "line", or "document" where the formula speaks of whole documents (each leaf: in some line of it).

    required: what every matching unit holds once it is ASCII-folded: bytes (folded), AllOf or AnyOf of such; None if nothing is
    known. An index may use it to leave units out.
    """

    formula: Formula
    unit: Literal["line", "document"] = "line"
    required: Requirement = None


def leaves(formula: Formula) -> Iterator[Leaf]:
    """The leaves that speak for a match: those not under a negation, in order."""
    if isinstance(formula, AllOf | AnyOf):
        for part in formula.of:
            yield from leaves(part)
    elif not isinstance(formula, NotOf):
        yield formula
