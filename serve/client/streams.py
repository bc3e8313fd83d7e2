"""Answers as they come, one JSON object a line: rows, the last line being the answer without them; or answers to one search, each better
than the one before."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pydantic import ValidationError
from pydantic_core import from_json

from .calls import not_understood
from .refusals import Unreachable, of_problem

if TYPE_CHECKING:
    from serve.nlql.schema import QueryAnswer, Row
    from serve.schema import SearchAnswer


class Lines:
    """Pieces of a body as the rows that are complete. answer: the last line, once it has come. No I/O."""

    def __init__(self) -> None:
        self.answer: QueryAnswer | None = None
        self._held = b""

    def take(self, piece: bytes) -> "list[Row]":
        """The rows that end in this piece. Raises the error that the server met after it had begun to answer."""
        *complete, self._held = (self._held + piece).split(b"\n")
        return [row for line in complete if line.strip() and (row := self._row(line)) is not None]

    def end(self, url: str) -> "list[Row]":
        """What is left when nothing more comes. Raises Unreachable where the answer has no end."""
        rows = self.take(b"\n")
        if self.answer is None:
            raise Unreachable(f"The connection to {url} broke in the midst of an answer. The rows so far are some of it; ask again.")
        return rows

    def _row(self, line: bytes) -> "Row | None":
        from serve.nlql.schema import QueryAnswer, Row

        try:
            value = from_json(line)
            if "row" in value:
                return Row.model_validate(value["row"])
            if "error" in value:
                raise of_problem(value["error"], 500)
            self.answer = QueryAnswer.model_validate({"rows": [], **value["end"]})
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise not_understood(f"a line of rows: {error}") from error
        return None


class AnswerLines:
    """Pieces of a body as the answers to one search that are complete, the last of which knows all. No I/O."""

    def __init__(self) -> None:
        self._held, self._ended = b"", False

    def take(self, piece: bytes) -> "list[SearchAnswer]":
        """The answers that end in this piece. Raises the error that the server met after it had begun to answer."""
        *complete, self._held = (self._held + piece).split(b"\n")
        return [self._answer(line) for line in complete if line.strip()]

    def end(self, url: str) -> "list[SearchAnswer]":
        """What is left when nothing more comes. Raises Unreachable where the last answer is missing."""
        answers = self.take(b"\n")
        if not self._ended:
            raise Unreachable(f"The connection to {url} broke before the last answer. Those so far say what they lack; ask again.")
        return answers

    def _answer(self, line: bytes) -> "SearchAnswer":
        from serve.schema import SearchAnswer

        try:
            value = from_json(line)
            if "error" in value:
                raise of_problem(value["error"], 500)
            self._ended = "end" in value
            return SearchAnswer.model_validate(value["end" if self._ended else "answer"])
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise not_understood(f"a line of answers: {error}") from error


class RowStream:
    """The rows of a query, while they come. answer: what is said of all of them, once the last has come; None before. Iterating ends the
    connection's use; who stops before the end closes it, or uses `with`."""

    def __init__(self, rows: "Generator[Row, None, None]", lines: Lines):
        self._rows, self._lines = rows, lines

    @classmethod
    def of(cls, answer: "QueryAnswer") -> Self:
        """The rows of an answer that is there as a whole."""
        lines = Lines()

        def rows() -> "Generator[Row, None, None]":
            yield from answer.rows
            lines.answer = answer.model_copy(update={"rows": []})

        return cls(rows(), lines)

    @property
    def answer(self) -> "QueryAnswer | None":
        return self._lines.answer

    def __iter__(self) -> "Iterator[Row]":
        return self._rows

    def __next__(self) -> "Row":
        return next(self._rows)

    def close(self) -> None:
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class AsyncRowStream:
    """As `RowStream`, with `async for` and `async with`."""

    def __init__(self, rows: "AsyncGenerator[Row, None]", lines: Lines):
        self._rows, self._lines = rows, lines

    @property
    def answer(self) -> "QueryAnswer | None":
        return self._lines.answer

    def __aiter__(self) -> "AsyncIterator[Row]":
        return self._rows

    async def __anext__(self) -> "Row":
        return await anext(self._rows)

    async def aclose(self) -> None:
        await self._rows.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()
