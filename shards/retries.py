"""Trying again what may go better the next time: a few times, with growing waits."""

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

# About six seconds in all: longer than a server's restart of a worker or a burst of throttling, shorter than a user's patience
# with one file of many.
WAITS_S = (0.25, 1.0, 5.0)
GIVE_UP = 8  # files in a row of which the server said nothing in spite of all attempts: it is down, or the network is

_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# By name, because the packages of most backends are not imported, or not installed. Timeouts and connections of the standard
# library are known by their classes.
_TRANSIENT_NAMES = frozenset(
    {
        "ClientConnectorError", "ClientOSError", "ClientPayloadError", "ServerDisconnectedError", "ServerTimeoutError",  # aiohttp
        "ConnectTimeoutError", "ConnectionClosedError", "EndpointConnectionError", "HTTPClientError", "IncompleteReadError",  # botocore
        "ReadTimeoutError", "ResponseParserError", "FSTimeoutError", "ServiceRequestError", "ServiceResponseError",  # fsspec, azure
        "IncompleteRead",
    }
)  # fmt: skip
_TRANSIENT_CODES = frozenset({"SlowDown", "Throttling", "ThrottlingException", "InternalError", "ServiceUnavailable", "RequestTimeout"})


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed in a moment: timeouts, broken connections, throttling, the server's own failures."""
    return any(_is_transient(link) for link in _chain(error))


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, (ConnectionError, TimeoutError)) or type(error).__name__ in _TRANSIENT_NAMES:
        return True
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        code = response.get("Error", {}).get("Code")
        return code in _TRANSIENT_CODES or response.get("ResponseMetadata", {}).get("HTTPStatusCode") in _TRANSIENT_STATUS
    status = getattr(error, "status", None) or getattr(error, "status_code", None) or getattr(error, "code", None)
    return status in _TRANSIENT_STATUS


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was made from: backends translate. Each once: one may be said to come from itself."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


class Retry:
    """Calls again where an error is transient. waits_s: before each further attempt, WAITS_S by default; sleep: how to wait."""

    def __init__(self, waits_s: tuple[float, ...] | None = None, sleep: Callable[[float], None] = time.sleep):
        self.waits_s, self.sleep = WAITS_S if waits_s is None else waits_s, sleep

    def __call__(self, act: Callable[[], T]) -> T:
        """What `act` gives. Raises its last error, or the first that is not transient."""
        for wait_s in self.waits_s:
            try:
                return act()
            except Exception as error:
                if not is_transient(error):
                    raise
            self.sleep(wait_s * random.uniform(0.5, 1.0))  # not all at once again, of those that were turned away together
        return act()
