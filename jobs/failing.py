"""How a command ends that cannot do what it was asked: one message on stderr, as text or as JSON, and an exit code.

Codes are grep's: 0 found or done, 1 nothing found or something is wrong with what was looked at, 2 error; of shells: 130 after Ctrl-C,
141 where whoever read the output went away.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shards.errors import SondageError

OK, NOTHING, ERROR, STOPPED, UNREAD = 0, 1, 2, 130, 141


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, however wrong it is otherwise."""
    return "--json" in words[: words.index("--")] if "--" in words else "--json" in words


def tell(error: Exception, as_json: bool = False, program: str = "sondage", hint: str = "") -> int:
    """The error on stderr, a hint behind it. Returns the exit code."""
    if as_json:
        print(json.dumps(as_document(error, hint)), file=sys.stderr)
    else:
        print(printable(f"{program}: {in_words(error)} {hint}".rstrip()), file=sys.stderr)
    return ERROR


@contextmanager
def pointing(text: Any) -> Iterator[None]:
    """Errors of a query that was given as this text are told with a caret below the place."""
    from shards.nlql.errors import NLQLError

    try:
        yield
    except NLQLError as error:
        error.text = text  # type: ignore[attr-defined]: for in_words
        raise


def tell_usage(message: str, as_json: bool, usage: str = "", program: str = "sondage") -> int:
    """What is wrong with a command line that was not understood. Returns the exit code."""
    message = message.replace("Value error, ", "")  # pydantic's, by which typer reads values
    if as_json:
        print(json.dumps({"error": {"kind": "usage", "message": message, "at": None}}), file=sys.stderr)
    else:
        print(printable(f"{usage}{program}: {message}"), file=sys.stderr)
    return ERROR


def in_words(error: Exception) -> str:
    """The message; of an error in a query, with the line it stands in and a caret below the place."""
    text, pretty = getattr(error, "text", None), getattr(error, "pretty", None)
    if isinstance(text, str) and callable(pretty):
        return str(pretty(text))
    return str(error)


def as_document(error: Exception, hint: str = "") -> dict[str, Any]:
    """As the HTTP interface says it: kind, message, at; of an error in a query also category, line, column."""
    from serve.problems import kind_of

    kind = kind_of(type(error)) if isinstance(error, SondageError) else "os_error"
    message = f"{getattr(error, 'message', error)} {hint}".rstrip()
    told: dict[str, Any] = {"kind": kind, "message": message, "at": getattr(error, "at", None)}
    told |= {name: value for name in ("category", "line", "column") if (value := getattr(error, name, None)) is not None}
    if expected := getattr(error, "expected", ()):
        told["expected"] = list(expected)
    return {"error": told}


def printable(text: str) -> str:
    """Paths may hold bytes that are not UTF-8, which no terminal takes: shown as U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
