"""What can be wrong with a query of NLQL: one family, with the place in the text and a line that points at it."""

import unicodedata
from collections.abc import Sequence
from typing import ClassVar, Self

from shards.errors import SondageError
from shards.nlql.ir import Position

_SHOWN = 100  # characters of a line that are shown around a place; a line of a megabyte is nobody's help


class NLQLError(SondageError):
    """Base of every error that a query causes.

    category: in one word, for programs; kind: the same beside other errors' (`nlql_syntax`).
    message: what was wrong, without its place; `str()` has both.
    line, column: of the text of the query, from 1; None if the query was not text, or the fault is of no one place.
    expected: what could have stood there. at: of a query in JSON, the place (`where.left.node`).
    """

    status = 422
    category: ClassVar[str] = "execution"
    kind: ClassVar[str] = "nlql_execution"

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.kind = f"nlql_{cls.category}"

    def __init__(
        self,
        message: str = "",
        *,
        line: int | None = None,
        column: int | None = None,
        expected: Sequence[str] = (),
        at: str | None = None,
    ):
        super().__init__(message, at=at)
        self.message = message
        self.line = line
        self.column = column
        self.expected = tuple(expected)

    def __str__(self) -> str:
        if self.line is not None:
            return f"Line {self.line}, column {self.column}: {self.message}"
        return f"{self.at}: {self.message}" if self.at else self.message

    def placed(self, position: Position | None) -> Self:
        """This error, at a place if it had none: whoever knows the node adds it."""
        if position is not None and self.line is None:
            self.line, self.column = position
        return self

    def pretty(self, text: str | None) -> str:
        """The message and, below it, the line of `text` with a caret under the column."""
        if text is None or self.line is None or self.column is None:
            return str(self)
        lines = text.split("\n")  # as the lexer counts them
        if self.line > len(lines):
            return str(self)
        return f"{self}\n{pointed(lines[self.line - 1].removesuffix(chr(13)), self.column)}"


class ParseError(NLQLError):
    """The text is no query."""

    status = 400
    category = "syntax"


class SchemaError(NLQLError):
    """A tree, from JSON or the builder, is no query; or a number is out of its range."""

    category = "schema"


class PlanError(NLQLError):
    """A query that can be read and means nothing: an unknown function or alias, a wrong number of arguments, …"""

    category = "plan"


class NLQLTypeError(NLQLError):
    """Two values were compared that have no order."""

    category = "type"


class ExecutionError(NLQLError):
    """A function failed on a row, or a row gave a pattern that is none."""

    category = "execution"


class RegistryError(NLQLError):
    """Nothing is registered under that name, or something is already."""

    category = "registry"


class EmbeddingError(NLQLError):
    """The embedder failed, or what it returned are no vectors of its dimension."""

    status = 424
    category = "embedding"


TypeError_ = NLQLTypeError  # its short name; `TypeError` is Python's


def pointed(line: str, column: int) -> str:
    """One line of text, and below it a caret under a column (from 1); long lines are cut around it."""
    start = max(0, column - 1 - _SHOWN // 2) if len(line) > _SHOWN else 0
    end = start + _SHOWN
    before, after = ("…" if start else ""), ("…" if len(line) > end else "")
    # Tabs, control characters and halves of characters: what a terminal would obey, or could not be written.
    shown = "".join(c if c.isprintable() else " " for c in line[start:end])
    return f"  {before}{shown}{after}\n  {' ' * (len(before) + _width(line[start : column - 1]))}^"


def _width(text: str) -> int:
    """Columns that a terminal gives a text: two for wide characters, none for marks that stand on others."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
