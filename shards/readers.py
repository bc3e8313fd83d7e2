"""Who reads which generation: leases that keep `shards/collect.py` from taking files away under somebody's hands.

A lease is a file `readers/<id>-<UTC time>.json`, good until that time. Renewing writes one with a later time and then deletes the
old one, so names never get other content. Reader and collector cannot miss each other: a reader writes its lease and then looks
whether the root is still there; the collector removes the root and then looks for leases, and puts back what one holds.
"""

import contextlib
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shards.errors import NotFound, StoreError

if TYPE_CHECKING:
    from shards.store import Store

logger = logging.getLogger(__name__)

LEASE_S = 300.0  # how long a reader that was killed keeps files from being collected
RENEWALS = 3  # in that time: two may fail before the lease ends
SKEW_S = 60.0  # clocks of reader and collector may differ by so much; more is an error of the machines' set-up

_LOOKS = 10
_NAME = re.compile(r"readers/([0-9a-f]{32})-(\d{8}T\d{6})\.json")


@dataclass(frozen=True, slots=True)
class Reading:
    """One lease as found. generations: None where the file cannot be read, which holds them all. expires: seconds since 1970."""

    name: str
    holder: str
    generations: frozenset[int] | None
    expires: float

    def holds(self, generation: int) -> bool:
        """Whether this generation must stay."""
        return self.generations is None or generation in self.generations


def readings(store: "Store", now: float) -> list[Reading]:
    """The leases that hold, by name. store: the corpus's. now: seconds since 1970; a lease holds `SKEW_S` longer than it says."""
    for _ in range(_LOOKS):
        found, moved = [], False
        for name, expires in _named(store):
            if expires + SKEW_S < now:
                continue
            try:
                body = json.loads(store.read(name))
                found.append(Reading(name, str(body["holder"]), frozenset(map(int, body["generations"])), expires))
            except NotFound:  # renewed or given back since it was listed: look again, lest its new name be missed
                moved = True
            except (ValueError, KeyError, TypeError):
                found.append(Reading(name, "unknown", None, expires))
        if not moved:
            return found
    raise StoreError(f"Leases of readers in store {store.url} change faster than they can be read. Try again in a moment.")


def expired(store: "Store", now: float) -> list[str]:
    """Names of leases that hold nothing any more."""
    return [name for name, expires in _named(store) if expires + SKEW_S < now]


def _named(store: "Store") -> list[tuple[str, float]]:
    found = []
    for name in store.list("readers/"):
        if match := _NAME.fullmatch(name):
            found.append((name, datetime.strptime(match[2], "%Y%m%dT%H%M%S").replace(tzinfo=UTC).timestamp()))
    return found


class Reader:
    """One reader's lease on generations of one corpus; nothing is written before the first `hold`. Not for several threads at once.

    store: the corpus's. holder: for people, e.g. "coordinator on node-3". clock: seconds since 1970.
    problem: why the last lease could not be written, "" if it was. A store that may only be read is no error: then the reader is
    not protected, and what it misses is reported as any missing file is.
    """

    def __init__(self, store: "Store", holder: str, clock: Callable[[], float] = time.time, lease_s: float = LEASE_S):
        self.store, self.holder, self.clock, self.lease_s = store, holder, clock, lease_s
        self.id = uuid.uuid4().hex
        self.problem = ""
        self._generations: frozenset[int] = frozenset()
        self._name = ""
        self._due = 0.0

    @property
    def generations(self) -> frozenset[int]:
        """What is held."""
        return self._generations

    def hold(self, generations: Iterable[int]) -> bool:
        """Hold exactly these from now on; none gives the lease back. Returns whether it was written.

        Look whether the root is there after this, not before.
        """
        wanted = frozenset(generations)
        if wanted == self._generations and self._name and self.clock() < self._due:
            return True
        self._generations = wanted
        if not wanted:
            self.release()
            return True
        now = self.clock()
        expires = datetime.fromtimestamp(now + self.lease_s, UTC)
        name = f"readers/{self.id}-{expires:%Y%m%dT%H%M%S}.json"
        if name == self._name:  # the same second again: a name never gets other content
            self.id = uuid.uuid4().hex
            name = f"readers/{self.id}-{expires:%Y%m%dT%H%M%S}.json"
        body = {"holder": self.holder, "generations": sorted(wanted)}
        self._due = now + self.lease_s / RENEWALS  # also where it fails: not with every look at the clock
        try:
            self.store.write(name, json.dumps(body, sort_keys=True).encode())
            before, self._name = self._name, name
            if before:
                self.store.delete(before)
        except StoreError as error:
            if str(error) != self.problem:
                logger.warning("event=no_readers_lease store=%s reason=%s", self.store.url, error)
            self.problem = str(error)
            return False
        self.problem = ""
        return True

    def renew(self) -> bool:
        """Write the lease anew where a third of its time is over; call it often."""
        return self.hold(self._generations) if self._generations else True

    def release(self) -> None:
        """Give the lease back; it is no error if that cannot be done, since it ends by itself."""
        self._generations = frozenset()
        name, self._name = self._name, ""
        if name:
            with contextlib.suppress(StoreError):
                self.store.delete(name)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
