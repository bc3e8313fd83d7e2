"""What a client of a server is opened with, sync or async."""

import os
import re
import ssl
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from shards.errors import BadSpec

from .calls import ANSWER_S, Call
from .tries import CONNECT_S, Retries, Tries

CONNECTIONS = 100  # at once: a coordinator has 256 searches waiting before it refuses some
KEPT_S = 4.0  # for which an idle connection is used again: uvicorn closes it after 5 s, and whoever writes just then has to send again

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opening:
    """url: `http://host:port` or `https://…`. retries: how often a call is made again, or how often and how long."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    ca_file: "str | os.PathLike[str] | None" = None
    retries: Retries = Retries()  # noqa: RUF009  # frozen
    connections: int = CONNECTIONS

    @classmethod
    def of(
        cls, url: str, api_key: str | None, ca_file: "str | os.PathLike[str] | None", retries: int | Retries, connections: int
    ) -> "Opening":
        """Raises BadSpec for what is no address, or numbers that are none."""
        if not re.match(r"https?://[^/]", url):
            raise BadSpec(f"The server's address {url!r} is no URL. Write http://host:port.")
        if isinstance(retries, int):
            retries = Retries(retries)
        if retries.most < 0 or connections < 1:
            raise BadSpec(f"retries is {retries.most} and connections {connections}. Give 0 or more, and 1 or more.")
        return cls(url.rstrip("/"), api_key, ca_file, retries, connections)

    def arguments(self) -> dict[str, Any]:
        """For `httpx.Client` and `httpx.AsyncClient` alike. Raises BadSpec for a file that is no certificate."""
        trust: ssl.SSLContext | bool = True
        if self.ca_file is not None:
            try:
                trust = ssl.create_default_context(cafile=self.ca_file)
            except OSError as error:
                raise BadSpec(f"{os.fspath(self.ca_file)} holds no certificate (PEM): {error.strerror or error}.") from None
        return {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {},
            "timeout": httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            "limits": httpx.Limits(max_connections=self.connections, max_keepalive_connections=self.connections, keepalive_expiry=KEPT_S),
            "trust_env": False,  # loopback is not asked through a proxy of the environment, nor given passwords of .netrc
            "verify": trust,
        }

    def tries(self, call: Call[T], timeout_s: float | None) -> Tries[T]:
        return Tries(call, self.url, self.retries, timeout_s)
