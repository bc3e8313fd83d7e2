"""Searches that their time cut off, kept for a while so that they can be taken up where they ended."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from shards.errors import BadQuery

if TYPE_CHECKING:
    from serve.algebra_rounds import Rounds
    from serve.anytime.search import Search

KEPT_S = 60.0  # that a search is kept
MOST, MOST_BYTES = 256, 64 << 20  # that are kept, of some hundred kilobytes each as a rule; the oldest go first


class Unfinished:
    """Searches by token. clock: seconds. For one event loop."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, most: int = MOST, kept_s: float = KEPT_S, most_bytes: int = MOST_BYTES
    ):
        self._clock, self._most, self._kept_s, self._most_bytes = clock, most, kept_s, most_bytes
        self._kept: OrderedDict[str, tuple[float, str, Search | Rounds, int]] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, search: "Search | Rounds", request: str, size_bytes: int) -> str:
        """A token for a search. request: what must be the same of a request that goes on with it."""
        token = secrets.token_urlsafe(12)
        self._kept[token] = self._clock() + self._kept_s, request, search, size_bytes
        self.size_bytes += size_bytes
        while self._kept and (len(self._kept) > self._most or self.size_bytes > self._most_bytes or self._oldest_s < self._clock()):
            self._drop(next(iter(self._kept)))
        return token

    @property
    def _oldest_s(self) -> float:
        return next(iter(self._kept.values()))[0]

    def _drop(self, token: str) -> None:
        self.size_bytes -= self._kept.pop(token)[3]

    def take(self, token: str, request: str) -> "Search | Rounds | None":
        """The search of a token, which is then nobody else's; None where it is not here (any more): another process may have had it.

        A combined request gets what was combined. Raises BadQuery for a token of another request.
        """
        found = self._kept.get(token)
        if found is None or found[0] < self._clock():
            return None
        if found[1] != request:
            raise BadQuery("`continue` belongs to another request. Send it with the same corpus, query, layers, filters and coupling.")
        self._drop(token)
        return found[2]
