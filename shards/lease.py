"""One writer per corpus: a lease in the store, with fencing, made of exclusive creates alone.

Lease number e, its epoch, is the file `lease/<e>.json`, created exclusively; renewals are `lease/<e>-<n>.json`, each with a later
expiry, and `lease/<e>-released.json` gives it back. The highest epoch holds. Who finds it released creates e + 1. Who finds it
expired does too, and then, before anything else, publishes a fence: the newest generation once more, under the next number and
the new epoch. A writer that stalled and wakes up creates a number that is taken, so it can never publish what it made. Likewise
after `lease/<e>-left.json`, of a holder whom the store failed: what it had asked for may still be done.

Clocks decide only who waits for whom, the fence what is published: clocks may differ by `SKEW_S` between machines; of two that
differ by more, one may lose its lease early and has to start over.

Who has waited for `TICKET_AFTER_S` draws a ticket, `lease/ticket-<since>-<until>-<id>.json`, which says since when it waits; a free lease
is taken by whoever has waited longest. Else one that takes it again and again, as pushes do, would always find it free sooner than one
that looks now and then. A ticket that is not renewed ends after `TICKET_S`, so a waiter that died holds others up no longer than that.
Tickets decide who is first, never who may write: whoever does not know of them takes the lease as ever.

Deleting files knows no fence: who deletes calls `renew` before
each batch, and must not be stopped for `TERM_S` + `SKEW_S` in the midst of one. A corpus without a generation has nothing to fence
with; its first generation is decided by the exclusive create of its root alone, and nobody deletes anything there.
"""

import json
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from shards import manifest
from shards.errors import AlreadyExists, LeaseLost, NotFound, StoreError
from shards.store import Names, Store

logger = logging.getLogger(__name__)

TERM_S = 20.0  # a holder that died without a trace keeps others waiting so long, and SKEW_S; publishing takes a second
SKEW_S = 10.0  # by which clocks of two machines may differ; with NTP they differ by milliseconds
WAIT_S = 120.0  # how long to wait for somebody else's lease: that of one that died ends sooner
TAKING_S = 0.2  # from the creation of a lease's file until its process knows that it holds it
PAUSES_S = (0.02, 1.0)  # between two looks, at first and at most
NEXT_PAUSE_S = 0.05  # of who is next: for so long, and no longer, nobody writes when it comes to its turn
TICKET_AFTER_S = 0.5  # of waiting: shorter waits, of pushes for one another, are not worth two more files
TICKET_S = 5.0  # for which a ticket holds, unless it is renewed
KEPT_FILES = 64  # of past leases, before they are swept

_NAME = re.compile(r"lease/(\d{16})(?:-(\d{6}|left|released))?\.json")

_TICKET = re.compile(r"lease/ticket-(\d{16})-(\d{16})-([0-9a-f]{16})\.json")  # milliseconds since 1970

_held: set[tuple[str, int]] = set()  # (store, epoch) of those that this process holds

Clock = Callable[[], float]  # seconds since 1970
Sleep = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Holding:
    """The highest lease as found. epoch: 0 before the first. released: given back; else the next holder has to fence.

    expires: seconds since 1970; 0.0 where it was left, or its file cannot be read. tickets: of who waits, by since when.
    """

    epoch: int = 0
    released: bool = True
    expires: float = 0.0
    holder: str = ""
    process: tuple[str, ...] = ()
    tickets: tuple["Ticket", ...] = ()


class Ticket(NamedTuple):
    """That somebody waits. since, until: milliseconds since 1970. id: of who waits."""

    since: int
    until: int
    id: str

    @property
    def name(self) -> str:
        return f"lease/ticket-{self.since:016d}-{self.until:016d}-{self.id}.json"


@dataclass
class Lease:
    """A lease that is held. Not for several threads. store: the corpus's; expires: by this machine's clock."""

    store: Store
    epoch: int
    holder: str
    expires: float
    clock: Clock = field(repr=False)
    _renewals: int = 0

    def renew(self) -> None:
        """Make sure that it is still held, for another half of its term at least. Raises LeaseLost."""
        now = self.clock()
        if now >= self.expires:
            raise self._lost(f"it ended {now - self.expires:.0f} s ago, before it was renewed")
        if now < self.expires - TERM_S / 2:
            return
        self._renewals += 1
        expires = now + TERM_S
        self.store.create(_name(self.epoch, f"{self._renewals:06d}"), _body(self.holder, expires))
        if (top := _top(self.store.list("lease/"))[0]) != self.epoch:
            raise self._lost(f"{top} was taken")
        self.expires = expires

    def check(self, newest: manifest.Root | None) -> None:
        """`renew`, and see that no later holder published the newest generation. Raises LeaseLost."""
        self.renew()
        if newest is not None and newest.epoch > self.epoch:
            raise self._lost(f"generation {newest.generation} was published under {newest.epoch}")

    def release(self) -> None:
        """Give it back, so that the next holder need not wait."""
        self.store.write(_name(self.epoch, "released"), b"{}")

    def leave(self) -> None:
        """Give it back though something may still be under way: the next holder need not wait, but has to fence."""
        with suppress(StoreError):  # then they wait
            self.store.write(_name(self.epoch, "left"), b"{}")

    def _lost(self, reason: str) -> LeaseLost:
        return LeaseLost(f"Writer's lease {self.epoch} in store {self.store.url} is lost: {reason}. Start over on the newest generation.")


@contextmanager
def hold(
    root_store: Store, corpus: str, purpose: str, clock: Clock = time.time, sleep: Sleep = time.sleep, wait_s: float = WAIT_S
) -> Iterator[Lease]:
    """The writer's lease of a corpus, waited for and held. purpose: said to those who wait ("index", "gc").

    Raises StoreError when somebody else has held it for `wait_s`; LeaseLost where it was lost while it was being taken.
    """
    store = manifest.corpus_store(root_store, corpus)
    lease, fence = _take(store, corpus, purpose, clock, sleep, wait_s)
    try:
        _held.add((store.url, lease.epoch))
        if fence:
            _fence(root_store, corpus, lease)
        yield lease
    except BaseException as error:
        clean = isinstance(error, Exception) and (not isinstance(error, StoreError) or isinstance(error, AlreadyExists))
        lease.release() if clean else lease.leave()
        raise
    else:
        lease.release()
    finally:
        _held.discard((store.url, lease.epoch))


def look(store: Store) -> Holding:
    """Who holds the lease of a corpus, or held it last. store: the corpus's."""
    while True:
        names = store.list("lease/")
        epoch, mark, last = _top(names)
        tickets = tuple(sorted(Ticket(int(m[1]), int(m[2]), m[3]) for name in names if (m := _TICKET.fullmatch(name))))
        if mark in ("released", "left"):
            return Holding(epoch, mark == "released", tickets=tickets)
        try:
            body = json.loads(store.read(last))
            return Holding(epoch, False, float(body["expires"]), str(body["holder"]), tuple(map(str, body["process"])), tickets)
        except NotFound:  # swept since it was listed: there is a later one
            continue
        except (ValueError, KeyError, TypeError):
            logger.warning("file=%s event=unreadable", last)
            return Holding(epoch, False, tickets=tickets)


def holder_of(store: Store, epoch: int) -> str:
    """Who held the lease of this number: "index on HOST, process 71"; "" where its file was swept, or says nothing. store: the corpus's."""
    if epoch == 0:
        return ""
    try:
        return str(json.loads(store.read(_name(epoch)))["holder"])
    except (StoreError, NotFound, ValueError, KeyError, TypeError):
        return ""


class _Turn:
    """Whose turn it is, as one that waits sees it, and its own ticket."""

    def __init__(self, store: Store, holder: str, begun: float):
        self._store, self._holder = store, holder
        self._since, self._id = int(1e3 * begun), secrets.token_hex(8)
        self._ticket: Ticket | None = None

    def is_mine(self, tickets: Iterable[Ticket], now: float) -> bool:
        """Whether nobody else has waited longer."""
        mine = self._since, self._id
        return not any((ticket.since, ticket.id) < mine for ticket in tickets if ticket.until >= 1e3 * now and ticket.id != self._id)

    def wait(self, now: float) -> None:
        """Draw a ticket, or renew it, where it is time to."""
        if 1e3 * now < self._since + 1e3 * TICKET_AFTER_S or (self._ticket and 1e3 * now < self._ticket.until - 500 * TICKET_S):
            return
        before, self._ticket = self._ticket, Ticket(self._since, int(1e3 * (now + TICKET_S)), self._id)
        self._store.create(self._ticket.name, _body(self._holder, now + TICKET_S))
        if before is not None:
            self._store.delete(before.name)

    @property
    def has_ticket(self) -> bool:
        return self._ticket is not None

    def end(self) -> None:
        """Nobody waits here any more."""
        if self._ticket is not None:
            with suppress(StoreError):  # then it ends by itself
                self._store.delete(self._ticket.name)


def _take(store: Store, corpus: str, purpose: str, clock: Clock, sleep: Sleep, wait_s: float) -> tuple[Lease, bool]:
    """A new lease, and whether the one before was never given back."""
    begun = clock()
    holder = f"{purpose} on {socket.gethostname()}, process {os.getpid()}"
    turn = _Turn(store, holder, begun)
    try:
        return _take_in_turn(store, corpus, holder, clock, sleep, begun, wait_s, turn)
    finally:
        turn.end()


def _take_in_turn(
    store: Store, corpus: str, holder: str, clock: Clock, sleep: Sleep, begun: float, wait_s: float, turn: _Turn
) -> tuple[Lease, bool]:
    pause = PAUSES_S[0]
    while True:
        found = look(store)
        now = clock()
        is_free, is_mine = found.released or now > found.expires + SKEW_S or _died(found, store, now), turn.is_mine(found.tickets, now)
        if is_free and is_mine:
            expires = now + TERM_S
            try:
                store.create(_name(found.epoch + 1), _body(holder, expires))
            except AlreadyExists:
                continue
            names = store.list("lease/")
            # The number may have been swept: then a later one is there, and this is nobody's.
            if _top(names)[0] == found.epoch + 1:
                if not found.released:
                    logger.info("corpus=%s event=lease_taken_over epoch=%d from=%s", corpus, found.epoch, found.holder)
                _sweep(store, names, found.epoch + 1, now)
                return Lease(store, found.epoch + 1, holder, expires, clock), not found.released
            store.delete(_name(found.epoch + 1))
            continue
        if now - begun >= wait_s:
            if is_free:
                raise StoreError(
                    f"The writer's lease of corpus {corpus!r} in store {store.url} is free, but others have waited for it longer; waited "
                    f"{wait_s:.0f} s. Run again."
                )
            until = datetime.fromtimestamp(found.expires + SKEW_S, UTC).isoformat(timespec="seconds")
            raise StoreError(
                f"Corpus {corpus!r} in store {store.url} is being written by {found.holder}; waited {wait_s:.0f} s. Run again when it "
                f"is done. If it is not running any more, its lease ends by itself at {until}."
            )
        turn.wait(now)
        sleep(min(NEXT_PAUSE_S if is_mine and turn.has_ticket else pause, max(begun + wait_s - now, 0.001)))
        pause = min(2 * pause, PAUSES_S[1])


def _fence(root_store: Store, corpus: str, lease: Lease) -> None:
    """Take the next number of a generation from whoever held the lease before."""
    while (number := manifest.latest_generation(root_store, corpus)) is not None:
        root = manifest.read_root(root_store, corpus, number)
        lease.check(root)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        update = {"format": manifest.FORMAT_VERSION, "generation": number + 1, "parent": number, "created": created, "epoch": lease.epoch}
        try:
            manifest.publish(root_store, root.model_copy(update=update))
        except AlreadyExists:  # it was awake after all, and first: then the number after that
            continue
        return


def _sweep(store: Store, names: Names, epoch: int, now: float) -> None:
    """Delete what past leases left, once there is much of it, and tickets of waiters that died. The highest epoch always stays: numbers
    only grow."""
    past = [name for name in names if (match := _NAME.fullmatch(name)) and int(match[1]) < epoch]
    if len(past) < KEPT_FILES:
        past = []
    for name in past + [name for name in names if (match := _TICKET.fullmatch(name)) and int(match[2]) < 1e3 * (now - SKEW_S)]:
        store.delete(name)


def _top(names: Names) -> tuple[int, str, str]:
    """The highest epoch, the mark of its latest file, and the file."""
    found = [(int(match[1]), match[2] or "", name) for name in names if (match := _NAME.fullmatch(name))]
    return max(found, default=(0, "released", ""))  # the words sort after the numbers


def _name(epoch: int, mark: str = "") -> str:
    return f"lease/{epoch:016d}{'-' * bool(mark)}{mark}.json"


def _body(holder: str, expires: float) -> bytes:
    return json.dumps({"holder": holder, "process": process_of(os.getpid()), "expires": expires}, sort_keys=True).encode()


def process_of(pid: int) -> list[str]:
    """What tells a process of this machine from any other, ever: of Linux; elsewhere nothing."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        with open(f"/proc/{pid}/stat") as file:
            state, *fields = file.read().rpartition(")")[2].split()
        return [boot, os.readlink("/proc/self/ns/pid"), str(pid), "dead" if state in "ZX" else fields[18]]  # 18: when it started
    except OSError:
        return []


def _died(found: Holding, store: Store, now: float) -> bool:
    """Whether a holder was a process of this machine that is there no more, or this one, which holds it no more."""
    # Its disk was full when it should have been given back; or another thread is just taking it.
    if list(found.process) == process_of(os.getpid()) != []:
        return (store.url, found.epoch) not in _held and now > found.expires - TERM_S + TAKING_S
    return is_gone(found.process)


def is_gone(process: Sequence[str]) -> bool:
    """Whether a process, as `process_of` names it, was one of this machine that is there no more; False where nobody can tell."""
    if len(process) != 4 or list(process[:2]) != process_of(os.getpid())[:2]:
        return False
    try:
        os.kill(int(process[2]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # there, and somebody else's
    there = process_of(int(process[2]))
    return bool(there) and there != list(process)  # another process with its number
