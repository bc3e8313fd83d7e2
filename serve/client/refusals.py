"""Answers that are errors, and connections that fail, as the errors of `shards.errors`: the very classes that are raised in process."""

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic_core import from_json

from serve.problems import error_of
from shards.errors import SondageError

REQUEST_ID = "x-request-id"  # of the answer: under which the server's log and audit have the request


class Unreachable(SondageError):
    """Nobody answers at the server's address, or not in time."""

    status = 503


class Refused(SondageError):
    """The server refused, for a reason that has no class of its own here. kind, at: as it said; status: its HTTP code."""

    def __init__(self, message: str, status: int, kind: str = "", at: str | None = None):
        super().__init__(message, at=at)
        self.status, self.kind = status, kind


def refusal(url: str, status: int, headers: Mapping[str, str], body: bytes, time_of_day: float) -> SondageError:
    """An error answer as the error it stands for. time_of_day: seconds since 1970, for a Retry-After that is a date."""
    try:
        problem = from_json(body)["error"]
        error = of_problem(problem, status)
    except (ValueError, KeyError, TypeError):
        error = Refused(f"{url} answered {status} without a reason. Is it a Sondage server?", status)
    error.request_id = headers.get(REQUEST_ID)
    if (wait_s := retry_after_s(headers.get("retry-after", ""), time_of_day)) is not None:
        error.retry_after_s = wait_s
    return error


def of_problem(problem: Mapping[str, Any], status: int) -> SondageError:
    """`serve.schema.Problem` as JSON; of a newer server, too, which may say more. Raises KeyError, TypeError for what is none."""
    kind, message, at = str(problem["kind"]), str(problem["message"]), problem.get("at")
    return error_of(kind, message, at, problem) or Refused(message, status, kind, at)


def retry_after_s(header: str, time_of_day: float) -> float | None:
    """Seconds to wait (RFC 9110, section 10.2.3: a number or a date); None where it says neither."""
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time_of_day)


def unreachable(url: str, error: Exception) -> Unreachable:
    """What a failed connection means, and what to do."""
    import httpx  # loads rich and click, 7 MB, which an engine in process never needs

    if isinstance(error, httpx.ConnectError):
        return Unreachable(
            f"Nothing answers at {url} ({error}). Start a server with `sondage serve --store URL`, or on a Ray cluster "
            "with `sondage deploy --store URL`; or search without one: `sondage search --store URL`, in Python "
            "`sondage.Engine(store=URL)`."
        )
    if isinstance(error, httpx.PoolTimeout):
        return Unreachable(f"All connections to {url} are in use. Give `sondage.connect` more with `connections`, or ask for less at once.")
    if isinstance(error, httpx.TimeoutException):
        return Unreachable(f"{url} did not answer in time ({type(error).__name__}). It may be opening shards: see `sondage status`.")
    return Unreachable(f"The connection to {url} broke ({error or type(error).__name__}). Try again; its log may say why.")
