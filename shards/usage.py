"""What answers showed, counted: which documents and folders of a corpus are used, so that dear spaces are built there first.

Counts are decayed, bounded, and private to the corpus: they lie below it as `usage/<writer>-<number>.json`, one file for each
coordinator, replaced by its next one. They name documents by content hash and folders by a hash of their path, never queries or who
asked. A document that is erased leaves them (`erase`), and an order `usage off` (`shards/layer_queue.py`) deletes them all.
"""

import hashlib
import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from shards.errors import NotFound, StoreError
from shards.store import Store

logger = logging.getLogger(__name__)

HALF_LIFE_S = 7 * 86_400.0  # what was shown a week ago counts half
MOST_DOCUMENTS, MOST_FOLDERS = 4_096, 1_024  # that are kept, those with the most weight; a file has 300 kB then
LEAST_WEIGHT = 0.01  # less is forgotten: something shown once, seven weeks ago
ORPHAN_S = 86_400.0  # a file that was not replaced for so long is taken over: its writer is gone, or shows nothing

_NAME = re.compile(r"usage/([0-9a-f]{32})-(\d{12})\.json")


@dataclass(frozen=True, slots=True)
class Used:
    """What was shown of one document or folder. weight: times, each decayed since; last: when it was, seconds since 1970."""

    weight: float
    last: float


NEVER = Used(0.0, 0.0)


def folder_key(path: str) -> str:
    """A folder as counts name it: 16 hex digits of a hash of its path, "" for the source's own."""
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def folder_of(path: str) -> str:
    """The folder that a path lies in; "" at the top."""
    return path.rpartition("/")[0]


@dataclass
class UsageCounts:
    """Decayed counts of one corpus. documents: by content hash in hex; folders: by `folder_key`. Not for several threads."""

    half_life_s: float = HALF_LIFE_S
    documents: dict[str, Used] = field(default_factory=dict)
    folders: dict[str, Used] = field(default_factory=dict)

    def used(self, shown: Iterable[tuple[bytes, str]], now: float) -> None:
        """Count hits of an answer: (content hash, path) of each."""
        for document, path in shown:
            self._add(self.documents, document.hex(), Used(1.0, now))
            self._add(self.folders, folder_key(folder_of(path)), Used(1.0, now))
        if len(self.documents) > 8 * MOST_DOCUMENTS or len(self.folders) > 8 * MOST_FOLDERS:  # nobody has written them for long
            self.prune(now)

    def _add(self, counts: dict[str, Used], key: str, more: Used) -> None:
        """Weights are kept as of their own last use, and decayed when they are added to or read."""
        before = counts.get(key)
        if before is None:
            counts[key] = more
            return
        last = max(before.last, more.last)
        counts[key] = Used(self._at(before, last) + self._at(more, last), last)

    def _at(self, used: Used, now: float) -> float:
        return used.weight * 0.5 ** (max(now - used.last, 0.0) / self.half_life_s)

    def document(self, document: bytes, now: float) -> Used:
        """What was shown of a document, decayed until now."""
        return self._read(self.documents, document.hex(), now)

    def folder(self, key: str, now: float) -> Used:
        """What was shown of a folder's own files, likewise. key: as `folder_key` gives it."""
        return self._read(self.folders, key, now)

    def _read(self, counts: dict[str, Used], key: str, now: float) -> Used:
        used = counts.get(key)
        return NEVER if used is None else Used(self._at(used, now), used.last)

    def add(self, other: "UsageCounts") -> None:
        """Count what somebody else counted, too."""
        for mine, theirs in ((self.documents, other.documents), (self.folders, other.folders)):
            for key, used in theirs.items():
                self._add(mine, key, used)

    def prune(self, now: float) -> None:
        """Forget what weighs least."""
        for counts, most in ((self.documents, MOST_DOCUMENTS), (self.folders, MOST_FOLDERS)):
            heavy = sorted(((self._at(used, now), key) for key, used in counts.items()), reverse=True)[:most]
            kept = {key: counts[key] for weight, key in heavy if weight >= LEAST_WEIGHT}
            counts.clear()
            counts.update(kept)

    def dump(self) -> bytes:
        body = {
            name: {key: [round(used.weight, 4), round(used.last, 1)] for key, used in sorted(counts.items())}
            for name, counts in (("documents", self.documents), ("folders", self.folders))
        }
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> "UsageCounts":
        """Raises ValueError."""
        try:
            body = json.loads(data)
            parts = [{str(key): Used(float(w), float(at)) for key, (w, at) in body[name].items()} for name in ("documents", "folders")]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no counts of usage: {error}") from None
        return cls(documents=parts[0], folders=parts[1])


def read(inside: Store) -> UsageCounts:
    """What all coordinators counted of a corpus. inside: its folder of the store. A file that cannot be read counts nothing."""
    counts = UsageCounts()
    for name in _names(inside):
        if (part := _read(inside, name)) is not None:
            counts.add(part)
    return counts


def forget(inside: Store) -> None:
    """Delete all counts of a corpus."""
    inside.delete_many(_names(inside))


def erase(inside: Store, documents: Collection[bytes]) -> int:
    """Write every file anew that names one of these documents, without it; returns how many did.

    Under other names: a coordinator that finds its file gone forgets what it holds in memory.
    """
    doomed = {document.hex() for document in documents}
    n = 0
    for name in _names(inside):
        part = _read(inside, name)
        if part is not None and doomed.isdisjoint(part.documents):
            continue
        n += 1
        if part is not None:
            part.documents = {key: used for key, used in part.documents.items() if key not in doomed}
            inside.write(f"usage/{uuid.uuid4().hex}-{1:012d}.json", part.dump())
        inside.delete(name)
    return n


def _names(inside: Store) -> list[str]:
    return [name for name in inside.list("usage/") if _NAME.fullmatch(name)]


def _read(inside: Store, name: str) -> UsageCounts | None:
    try:
        return UsageCounts.parse(inside.read(name))
    except NotFound:  # replaced by the next one since it was listed; the next look finds it
        return None
    except ValueError as error:
        logger.warning("file=%s event=usage_unreadable reason=%s", name, error)
        return None


class Recorder:
    """Counts what one coordinator shows, and writes it now and then. Safe for several threads.

    store_of: a corpus's folder of the store. enabled: False counts nothing. clock: the time of day in seconds.
    """

    def __init__(self, store_of: Callable[[str], Store], enabled: bool = True, clock: Callable[[], float] = time.time):
        self._store_of, self.enabled, self._clock = store_of, enabled, clock
        self._id, self._lock = uuid.uuid4().hex, threading.Lock()
        self._counts: dict[str, UsageCounts] = {}
        self._changed: set[str] = set()
        self._written: dict[str, int] = {}  # by corpus, the number of the file that stands for what is counted here
        self._off: set[str] = set()  # corpora that are not counted
        self._lasts: dict[tuple[str, str], float] = {}  # of others' files by corpus and name: when anything in them was shown last

    def used(self, corpus: str, generation: int, shown: Sequence[tuple[bytes, str]]) -> None:
        """Told of an answer's hits: some microseconds for ten. generation: that answered; counts are of content, so any will do."""
        if not self.enabled or not shown or corpus in self._off:
            return
        with self._lock:
            self._counts.setdefault(corpus, UsageCounts()).used(shown, self._clock())
            self._changed.add(corpus)

    def flush(self) -> None:
        """Write what has changed since the last time. For a thread of its own; a store that fails is tried again the next time."""
        with self._lock:
            changed = sorted(self._changed)
        for corpus in changed:
            try:
                self._write(corpus)
            except (StoreError, OSError) as error:
                logger.info("corpus=%s event=usage_not_written reason=%s", corpus, error)

    def _write(self, corpus: str) -> None:
        from shards.layer_queue import state

        inside, now = self._store_of(corpus), self._clock()
        if not state(inside).usage:
            forget(inside)
            with self._lock:
                self._counts.pop(corpus, None)
                self._changed.discard(corpus)
            return
        number = self._written.get(corpus, 0)
        mine = f"usage/{self._id}-{number:012d}.json"
        if number and not inside.exists(mine):  # erased from, or taken over by another: what is held here is in other files, or must go
            with self._lock:
                self._counts.pop(corpus, None)
                self._changed.discard(corpus)
            self._written.pop(corpus)
            self._id = uuid.uuid4().hex
            return
        orphans = self._orphans(corpus, inside, mine, now)
        with self._lock:  # for as short as can be: who shows answers waits for it
            counts = self._counts[corpus]
            for _, part in orphans:
                counts.add(part)
            kept = replace(counts, documents=dict(counts.documents), folders=dict(counts.folders))
            self._changed.discard(corpus)
        kept.prune(now)
        data = kept.dump()
        with self._lock:
            for held, still in ((counts.documents, kept.documents), (counts.folders, kept.folders)):
                for key in [key for key in held if key not in still and held[key].last <= now]:
                    del held[key]
        inside.write(f"usage/{self._id}-{number + 1:012d}.json", data)
        self._written[corpus] = number + 1
        inside.delete_many([name for name, _ in orphans] + ([mine] if number else []))


    def _orphans(self, corpus: str, inside: Store, mine: str, now: float) -> list[tuple[str, UsageCounts]]:
        """Others' files that were not replaced for long, with what they count. What is under a name never changes, so each is read once,
        and again to be taken over; of those that are new one at a time, for reading takes the interpreter's lock for some milliseconds."""
        names = [name for name in _names(inside) if name != mine]
        self._lasts = {key: last for key, last in self._lasts.items() if key[0] != corpus or key[1] in names}
        unknown = [name for name in names if (corpus, name) not in self._lasts]
        old = [name for name in names if self._lasts.get((corpus, name), now) < now - ORPHAN_S]
        found = []
        for name in (*unknown[:1], *old[:1]):
            if (part := _read(inside, name)) is None:
                continue
            last = max((used.last for used in part.documents.values()), default=0.0)
            self._lasts[corpus, name] = last
            if last < now - ORPHAN_S:
                found.append((name, part))
        return found
