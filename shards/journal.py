"""Appending to the log of pushed documents: one file acknowledges all that wait for it, whoever else appends beside us."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from shards.errors import AlreadyExists, Conflict, StoreError
from shards.pushlog import Operation, dump, entry_name, last, read_head
from shards.store import Store

ENTRY_BYTES, ENTRY_OPERATIONS = 16 << 20, 4096  # that ride together: more would make the first of them wait for the last
IDS_KEPT = 1024  # entries back to which a request's id is remembered: minutes of the busiest corpus, years of a quiet one
SURE_S = 600.0  # for so long a number that was free is taken to be free, see `shards.pushlog.collectable`
LOOK_S = 60.0  # after so long without an entry of its own, a writer looks where the log ends


@dataclass(frozen=True, slots=True)
class Receipt:
    """An acknowledgement. position: the log entry that holds the operation; repeated: an earlier request with this id brought it."""

    position: int
    repeated: bool = False


@dataclass(eq=False, slots=True)
class _Waiting:
    """An operation whose caller waits. digest: "" without an id."""

    operation: Operation
    layers: tuple[str, ...]
    digest: str
    future: "Future[Receipt]" = field(default_factory=Future)


class Journal:
    """Appends to the log of one corpus. Safe for several threads; several processes may append to one log.

    All that wait ride in the next entry, so that one sync of the disk, or one request to S3, acknowledges them together.
    store: the corpus's folder. applied: of the newest generation; asked for when the end of the log must be looked for. clock: the time
    of day, seconds since 1970.
    """

    def __init__(self, store: Store, applied: Callable[[], int], clock: Callable[[], float] = time.time):
        self.store, self._applied, self._clock = store, applied, clock
        self._lock = threading.Lock()  # guards the next two; all else belongs to the one thread that writes
        self._waiting: list[_Waiting] = []
        self._writing = False
        self._last = -1  # the newest entry known; -1: not looked yet
        self._seen_at = 0.0  # when there was none after it
        self._ids: dict[str, tuple[int, str]] = {}  # id -> entry and digest; entries ascending
        self._ids_read = False

    def submit(self, operation: Operation, layers: Sequence[str] = ()) -> "Future[Receipt]":
        """Appends an operation after those submitted before. Its receipt comes when it is durable.

        layers: of the corpus, should it be new. The future raises Conflict for an id that named another operation, and StoreError:
        then nothing is acknowledged, though it may be in the log; repeating it does no harm.
        """
        waiting = _Waiting(operation, tuple(layers), operation.digest() if operation.id else "")
        with self._lock:
            self._waiting.append(waiting)
            if self._writing:
                return waiting.future
            self._writing = True
        threading.Thread(target=self._write, name="push-log", daemon=True).start()
        return waiting.future

    def append(self, operation: Operation, layers: Sequence[str] = ()) -> Receipt:
        """`submit`, and wait."""
        return self.submit(operation, layers).result()

    def _write(self) -> None:
        """Entry after entry until nobody waits."""
        while True:
            with self._lock:
                batch = self._take()
                if not batch:
                    self._writing = False
                    return
            try:
                self._commit(batch)
            except BaseException as error:  # whatever it is, those who wait must learn of it
                self._last = -1  # what was being written may be there
                for waiting in batch:
                    if not waiting.future.done():
                        waiting.future.set_exception(error)

    def _take(self) -> list[_Waiting]:
        n = size = 0
        for waiting in self._waiting:
            size += waiting.operation.cost_bytes
            if n and (size > ENTRY_BYTES or n == ENTRY_OPERATIONS):
                break
            n += 1
        batch, self._waiting = self._waiting[:n], self._waiting[n:]
        return batch

    def _commit(self, batch: list[_Waiting]) -> None:
        self._look()
        if not self._ids_read and any(w.digest for w in batch):
            self._read_ids(max(0, self._last - IDS_KEPT))
            self._ids_read = True
        while fresh := self._unanswered(batch):
            number = self._last + 1
            operations = [w.operation for w in fresh]
            layers = next((w.layers for w in fresh if w.layers), ())
            try:
                self.store.create(entry_name(number), dump(operations, self._clock(), layers))
            except AlreadyExists:  # somebody else's; it may hold what is asked for here
                self._seen(number)
                if self._ids_read:
                    self._read_ids(number - 1)
                continue
            if self._clock() - self._seen_at > SURE_S:
                raise StoreError(
                    f"Store {self.store.url} took more than {SURE_S / 60:.0f} minutes to write an entry of the log of pushed documents, "
                    "so it is not certain that it counts. Push it again."
                )
            self._seen(number)
            self._note(number, {w.operation.id: w.digest for w in fresh if w.digest})
            for waiting in fresh:
                _answer(waiting, Receipt(number))

    def _look(self) -> None:
        """Find the end of the log, unless it was seen a moment ago."""
        now = self._clock()
        if self._last >= 0 and now - self._seen_at <= LOOK_S:
            return
        before, applied = self._last, self._applied()
        self._last, self._seen_at = last(self.store, max(applied, before, 0)), now
        while (newer := self._applied()) > self._last:  # applied, and perhaps collected, since it was asked for
            self._last = last(self.store, newer)
        if self._ids_read:
            noted = next(reversed(self._ids.values()), (0, ""))[0]
            self._read_ids(max(before, noted, self._last - IDS_KEPT))

    def _seen(self, number: int) -> None:
        self._last, self._seen_at = number, self._clock()

    def _read_ids(self, after: int) -> None:
        """The ids in all entries after this one."""
        numbers = range(after + 1, self._last + 1)
        if numbers:
            with ThreadPoolExecutor(min(max(1, self.store.parallel), len(numbers))) as pool:
                for number, head in zip(numbers, pool.map(lambda n: read_head(self.store, n), numbers), strict=True):
                    self._note(number, {r["id"]: r["digest"] for r in head[0] if "id" in r} if head else {})

    def _note(self, number: int, ids: dict[str, str]) -> None:
        self._ids |= {key: (number, digest) for key, digest in ids.items()}
        while self._ids and next(iter(self._ids.values()))[0] <= self._last - IDS_KEPT:
            del self._ids[next(iter(self._ids))]

    def _unanswered(self, batch: list[_Waiting]) -> list[_Waiting]:
        """Those that are to be written, after the others have got their receipt: their id was met before."""
        fresh: list[_Waiting] = []
        twins: list[tuple[_Waiting, _Waiting]] = []
        inside: dict[str, _Waiting] = {}
        for waiting in batch:
            key = waiting.operation.id
            if waiting.future.done():
                continue
            if not key:
                fresh.append(waiting)
            elif key in self._ids:
                number, digest = self._ids[key]
                _answer(waiting, Receipt(number, repeated=True) if digest == waiting.digest else _reused(key))
            elif key in inside:
                twins.append((waiting, inside[key]))
            else:
                inside[key] = waiting
                fresh.append(waiting)
        for waiting, first in twins:  # one entry may hold an id once
            if waiting.digest != first.digest:
                _answer(waiting, _reused(waiting.operation.id))
        return fresh


def _answer(waiting: _Waiting, answer: Receipt | Conflict) -> None:
    if isinstance(answer, Receipt):
        waiting.future.set_result(answer)
    else:
        waiting.future.set_exception(answer)


def _reused(key: str) -> Conflict:
    return Conflict(f"The id {key!r} was given to another operation before. Give each operation an id of its own.")
