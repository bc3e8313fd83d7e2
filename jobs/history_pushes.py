"""Pushes in a random history: clients that ask again until they are answered, servers that die, appliers beside jobs.

The log is the truth: its states after each entry are the moments that a reader may see of the source `pushed`. What it must not do
is lose or move what it acknowledged, or hold an operation twice that was asked for twice.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jobs.history_checks import CORPUS, Bench, put
from jobs.history_model import PUSHED, Model, change
from jobs.unreliable_store import Died
from shards import pushlog
from shards.errors import StoreError
from shards.journal import Journal
from shards.manifest import corpus_store, latest_generation, read_root
from shards.pushlog import Operation
from shards.store import Store


@dataclass
class PushedLog:
    """What the log of a history's corpus says, followed entry by entry into the model. Safe for several threads."""

    store: Store
    model: Model
    n_read: int = 0
    n_drawn: int = 0
    places: dict[str, tuple[int, str]] = field(default_factory=dict)  # by id: its entry and digest
    acknowledged: dict[str, tuple[int, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def follow(self) -> None:
        """Read the entries that are new. Raises StoreError, and AssertionError for an id that is there twice."""
        with self._lock:
            while entry := pushlog.read(corpus_store(self.store, CORPUS), self.n_read + 1):
                files = dict(self.model.files[PUSHED])
                for operation in entry.operations:
                    assert operation.id not in self.places, f"operation {operation.id} is in the log twice"
                    self.places[operation.id] = entry.number, operation.digest()
                    if operation.hash:
                        files[operation.path] = operation.text
                    else:
                        files.pop(operation.path, None)
                self.model.set(PUSHED, files)
                self.n_read = entry.number

    def draw(self, rng: random.Random) -> list[Operation]:
        """Operations that make one to four changes of what is pushed, in any order, each with an id of its own."""
        self.follow()
        before = self.model.files[PUSHED]
        after = change(rng, before)
        paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        rng.shuffle(paths)
        self.n_drawn += len(paths)
        ids = [f"operation {self.n_drawn - n}" for n in range(len(paths))]
        return [put(p, after[p], i) if p in after else Operation(p, mtime_ns=5, id=i) for p, i in zip(paths, ids, strict=True)]

    def note(self, operation: Operation, position: int) -> None:
        """An operation was acknowledged."""
        told = self.acknowledged.setdefault(operation.id, (position, operation.digest()))
        assert told[0] == position, f"{operation.id} was acknowledged at {told[0]} and at {position}"

    def check(self) -> None:
        """What was acknowledged is where it was said to be. Raises AssertionError."""
        self.follow()
        for id, told in self.acknowledged.items():
            assert self.places.get(id) == told, f"{id} was acknowledged at {told[0]}; the log has it at {self.places.get(id)}"


def submit(store: Store, operations: Iterable[Operation], layers: Sequence[str]) -> dict[str, int | BaseException]:
    """What one server says to clients that push these at once: by id, the position or what went wrong."""

    def applied() -> int:
        number = latest_generation(store, CORPUS)
        return 0 if number is None else pushlog.applied_of(read_root(store, CORPUS, number))

    journal = Journal(corpus_store(store, CORPUS), applied)
    futures = [(operation.id, journal.submit(operation, layers)) for operation in operations]
    return {id: future.exception() or future.result().position for id, future in futures}


def push(bench: Bench, log: PushedLog, through: Store, operations: Sequence[Operation], rng: random.Random) -> Counter[str]:
    """Clients push at a server that works `through` a store; those that get no answer ask another server, or give up."""
    fates = Counter[str]()
    for server in (through, log.store, log.store):
        said = submit(server, operations, bench.layers)
        for operation in operations:
            told = said[operation.id]
            if isinstance(told, int):
                log.note(operation, told)
                fates["pushed"] += 1
            elif not isinstance(told, (StoreError, Died)):
                raise told
        operations = [o for o in operations if not isinstance(said[o.id], int)]
        if not operations or rng.random() < 0.2:
            break
        fates["pushed again"] += len(operations)
    return fates


def apply(bench: Bench, through: Store) -> None:
    """What a server does when the log has grown: publish, and join what is due. Raises Died, StoreError."""
    applier = bench.applier(through)
    while applier.apply() is not None:
        pass
    applier.settle()
