"""What can be wrong with a request before it is a search, told so that the caller can mend it.

Over HTTP every error has one shape, {"error": {"kind": "bad_query", "message": "…", "at": "where.size_bytes"}}
(`serve.schema.ProblemAnswer`): kind is the name of the error's class, stable, for programs.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from pydantic import BaseModel, ValidationError

from serve.algebra_schema import BridgeFields, CutFields, FuseFields, SubQuery, Weighted
from serve.feedback_schema import Span
from serve.schema import Coupling, Rerank, SearchRequest
from serve.translation_schema import Translate
from shards.errors import SondageError

NESTED: dict[str, type[BaseModel]] = {  # fields of a request that have fields of their own
    "rerank": Rerank, "coupling": Coupling, "translate": Translate, "feedback": Span,
    "search": SubQuery, "cut": CutFields, "fuse": FuseFields, "bridge": BridgeFields, "wsum": Weighted,
}  # fmt: skip
RAISING = ("cluster.batching", "shards.nlql.errors")  # have errors of their own, and may not have been loaded by who only asks
MAX_PROBLEMS = 5  # reported of one request; the first is usually the cause of the others


class BadRequest(SondageError):
    """The bytes are no request: not JSON, or not UTF-8."""

    status = 400


class InvalidRequest(SondageError):
    """Well-formed JSON that is no request: an unknown field, a value out of range. `at`: the first place that is wrong."""

    status = 422


class Unauthorized(SondageError):
    """No API key, or a wrong one."""

    status = 401


class Forbidden(SondageError):
    """A request that this server answers to nobody as it is set up, or not to this key."""

    status = 403


class Limited(SondageError):
    """A key sends requests faster, or more of them at once, than it may. retry_after_s: when the next one is taken."""

    status = 429

    def __init__(self, message: str = "", *, retry_after_s: float = 1.0, at: str | None = None):
        super().__init__(message, at=at)
        self.retry_after_s = retry_after_s


class OverLimit(SondageError):
    """A request that asks for more than its key may: time, hits, sub-queries, … `at`: what of it."""

    status = 422


class TooLarge(SondageError):
    """The request's body is larger than any real request."""

    status = 413


class TooSlow(SondageError):
    """The request's body does not arrive."""

    status = 408


class Unsupported(SondageError):
    """The request's body is of a kind that is not taken here."""

    status = 415


def kind_of(error: type[SondageError]) -> str:
    """The stable name of an error class in answers: `BadQuery` is "bad_query", unless it states another."""
    return getattr(error, "kind", "") or re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__).lower()


def validated(value: Any) -> SearchRequest:
    """Decoded JSON as a request. Raises InvalidRequest with the places of what is wrong."""
    try:
        return SearchRequest.model_validate(value)
    except ValidationError as error:
        raise invalid(error.errors(), SearchRequest) from None


def invalid(errors: Iterable[Mapping[str, Any]], model: type[BaseModel]) -> InvalidRequest:
    """pydantic's errors of one request in one message: each with its place, what was found and, for typing errors, a guess.

    errors: as `ValidationError.errors()` gives them. model: what the request should have been.
    """
    found: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for error in errors:
        at = place(error["loc"])
        message = error["msg"].removeprefix("Input should be ")
        if error["type"] == "extra_forbidden":
            known = next((NESTED[step] for step in reversed(error["loc"][:-1]) if step in NESTED), model)
            names = tuple(field.alias or name for name, field in known.model_fields.items())
            message = f"unknown field; {_guess(str(error['loc'][-1]), names)}"
        elif error["type"] == "missing":
            message = "missing"
        else:
            if message != error["msg"]:
                message = f"expected {message}"
            values[at] = error.get("input")
        found.setdefault(at, []).append(message)
    lines = []
    for at, messages in list(found.items())[:MAX_PROBLEMS]:
        text = " or ".join(dict.fromkeys(m if i == 0 else m.removeprefix("expected ") for i, m in enumerate(messages)))
        lines.append(f"{at}: {text}" + (f"; found {_short(values[at])}" if at in values else "") + ".")
    if len(found) > MAX_PROBLEMS:
        lines.append(f"And {len(found) - MAX_PROBLEMS} more.")
    return InvalidRequest(" ".join(lines), at=next(iter(found), None))


def place(loc: Iterable[str | int]) -> str:
    """A pydantic location as a path into the request; names of union members, which are no places, are left out."""
    out = ""
    for step in loc:
        if isinstance(step, int):
            out += f"[{step}]"
        elif "[" not in step or not out:
            out += f".{step}" if out else step
    return out or "the request"


def _guess(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"Known are: {', '.join(known)}"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:  # nested without end
        text = f"{type(value).__name__}…"
    return text if len(text) <= 60 else f"{text[:60]}… ({len(text):,} characters)"


def error_of(kind: str, message: str, at: str | None, told: Mapping[str, Any] | None = None) -> SondageError | None:
    """The error that an answer's kind stands for, to be raised again on the client's side; None for a kind not known here. told: what
    else the answer says of it (`serve.schema.Problem`)."""
    for module in RAISING:
        import_module(module)
    classes = [SondageError]
    for known in classes:  # grows as it goes: subclasses of subclasses
        classes += known.__subclasses__()
        if kind_of(known) == kind:
            error = known(message, at=at)
            for name in ("line", "column", "expected"):  # as `shards.nlql.errors` has them
                if hasattr(error, name) and (value := (told or {}).get(name)) is not None:
                    setattr(error, name, tuple(value) if isinstance(value, list) else value)
            return error
    return None
