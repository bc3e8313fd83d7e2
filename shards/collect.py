"""Taking away what no kept generation needs: roots beyond the newest, then every file that no remaining root refers to.

All under the writer's lease, so no root appears meanwhile. Order: old roots are copied to `collected/` and deleted; leases
of readers are looked at once more, and a root that one holds by now is put back; the others are given up for good
(`collected/<generation>.gone.json`); then their files go; the copies go last. After a crash at any point every root that is there
is whole, and the next run finds from the copies what the last one was about.

A run of the index job needs no lease to write segments, so files that never were in a generation may be those of a run under way.
Such a run leaves staging files, whose names say when it began: while there is one that is less than a day old, files that never
were in a generation stay. (Where they are taken from a run after all, it notices when it publishes and makes them again.)
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import numpy as np

from shards import lease, pushlog
from shards.encodings import PackedEncodings
from shards.errors import BadSpec, Corrupt, NotFound
from shards.given import OF_DOCUMENTS
from shards.identity import HASH_BYTES
from shards.manifest import Root, corpus_store
from shards.readers import expired, readings
from shards.references import References, live_hashes, numbers, root_name
from shards.staging import is_dead, under_way_since
from shards.store import Store
from shards.types import Array

logger = logging.getLogger(__name__)

Report = Callable[[str, int, int, str], None]

# Files named by content that only manifests refer to; whatever else lies in a corpus's folder has another owner.
MANIFESTED = ("pages/", "segments/", "tombstones/", "trees/", "nulls/")
MOSTLY_DEAD = 0.5  # a pack of encodings is written anew when so much of it belongs to no document any more
BATCH = 256  # deletes between two looks at the writer's lease
_COPY = re.compile(r"collected/(\d{16})(\.gone)?\.json")


class Held(Protocol):
    """The writer's lease. renew: prolongs it where need be, raises LeaseLost when somebody else has it."""

    def renew(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """What may go. keep: the newest so many generations stay. older_than_s: only those published longer ago than this go.

    young: whether files that may belong to a run under way are taken, too. condemned: generations that go whatever their number and
    whoever reads them.
    """

    keep: int
    older_than_s: float = 0.0
    young: bool = False
    condemned: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise BadSpec(f"--keep {self.keep} would leave nothing to search. Keep 1 or more; to remove a corpus, delete its folder.")


@dataclass(slots=True)
class Collected:
    """What was freed, or with a dry run what would be. removed, files: by kind of file, the first part of its name.

    held: generations that stay for readers alone, with these. young: files left because a run that began then may need them.
    """

    dry_run: bool
    kept: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    held: dict[int, list[str]] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    size_bytes: dict[str, int] = field(default_factory=dict)
    young_files: int = 0
    young_since: str = ""

    def count(self, name: str, size: int, n_files: int = 1) -> None:
        """Count a file as freed."""
        kind = name.partition("/")[0]
        self.files[kind] = self.files.get(kind, 0) + n_files
        self.size_bytes[kind] = self.size_bytes.get(kind, 0) + size


def collect(
    store: Store,
    corpus: str,
    policy: Policy,
    now: float,
    *,
    dry_run: bool = False,
    hold: Callable[[], AbstractContextManager[Held]] | None = None,
    report: Report = lambda *_: None,
) -> Collected:
    """Collect one corpus. store: the store's root. now: seconds since 1970. hold: takes the writer's lease; None: `shards.lease.hold`.

    Raises NotFound where there is no such corpus; Corrupt where a generation that stays cannot be read, for without knowing what it
    refers to nothing may go (`sondage verify --repair`, or collect it); LeaseLost and StoreError as the lease does.
    """
    inside = corpus_store(store, corpus)
    if not inside.list("roots/"):
        raise NotFound(f"There is no corpus {corpus!r} in {store.url}. Build it with `sondage index`.")
    # Listing may take longer than a lease lasts. What is referred to by the time the lease is held stays, listed or not.
    names = inside.list()
    outcome = Collected(dry_run)
    if dry_run:
        _Run(store, corpus, policy, now, report, outcome).collect(names, lambda: None)
    else:
        with hold() if hold else lease.hold(store, corpus, "gc") as held:
            _Run(store, corpus, policy, now, report, outcome).collect(names, held.renew)
    logger.info(
        "corpus=%s event=collected generations=%d files=%d bytes=%d",
        corpus, len(outcome.removed), sum(outcome.files.values()), sum(outcome.size_bytes.values()),
    )  # fmt: skip
    return outcome


@dataclass
class _Run:
    store: Store
    corpus: str
    policy: Policy
    now: float
    report: Report
    outcome: Collected

    def __post_init__(self) -> None:
        self.inside = corpus_store(self.store, self.corpus)
        self.references = References(self.store, self.corpus)

    def collect(self, names: Collection[str], still_mine: Callable[[], None]) -> None:
        """names: all files, as of shortly before. still_mine: raises when the writer's lease is lost, else prolongs it."""
        inside, outcome, now = self.inside, self.outcome, self.now
        there = sorted(numbers(inside.list("roots/")))
        leaving = self._leaving(there)
        outcome.kept = [number for number in there if number not in leaving]
        # Before anything goes: what stays must be readable, and what it refers to known.
        roots: list[Root] = []
        used: set[str] = set()
        for i, number in enumerate(outcome.kept):
            roots.append(self.references.root(number))
            used |= self.references.files(roots[-1]).keys()
            still_mine()
            self.report("read what is kept", i + 1, len(outcome.kept), "generations")
        if outcome.dry_run:
            outcome.removed = leaving
            for number in leaving:
                outcome.count(root_name(number), inside.size(root_name(number)))
        else:
            outcome.removed = self._remove_roots(leaving, still_mine)
            for number in sorted(set(outcome.held) - set(outcome.kept)):
                roots.append(self.references.root(number))
                used |= self.references.files(roots[-1]).keys()
            outcome.kept = sorted(root.generation for root in roots)
        sizes = self._files_of_removed(outcome.removed)
        unused = [name for name in names if name in sizes and name not in used]
        orphans = [name for name in names if name.startswith(MANIFESTED) and name not in used and name not in sizes]
        since = "" if self.policy.young else under_way_since(names, now)
        if since:
            outcome.young_files, outcome.young_since = len(orphans), since
        else:
            unused += orphans
        unused += [name for name in names if is_dead(name, now)] + expired(inside, now) + pushlog.collectable(inside, roots, now)
        self._delete(unused, sizes, still_mine)
        if not since:
            self._collect_encodings(roots, still_mine)
        if not outcome.dry_run:
            still_mine()
            inside.delete_many([name for name in inside.list("collected/") if _COPY.fullmatch(name)])

    def _leaving(self, there: list[int]) -> list[int]:
        """The generations that may go, oldest first; those that only readers keep are noted."""
        held = readings(self.inside, self.now)
        policy, leaving = self.policy, []
        for number in there[:-1]:
            if number in policy.condemned:
                leaving.append(number)
                continue
            if number in there[-policy.keep :]:
                continue
            if policy.older_than_s:
                try:
                    created = datetime.fromisoformat(self.references.root(number).created).timestamp()
                except Corrupt:  # how old it is cannot be told
                    continue
                if created > self.now - policy.older_than_s:
                    continue
            who = sorted(reading.holder for reading in held if reading.holds(number))
            if who:
                self.outcome.held[number] = who
            else:
                leaving.append(number)
        return leaving

    def _remove_roots(self, leaving: Iterable[int], still_mine: Callable[[], None]) -> list[int]:
        """Delete these roots; put back those that a reader has taken meanwhile. Returns what is gone, also by runs that died."""
        inside = self.inside
        copies = [match for name in inside.list("collected/") if (match := _COPY.fullmatch(name))]
        given_up = {int(match[1]) for match in copies if match[2]}
        copied = {int(match[1]) for match in copies} - given_up
        for number in leaving:
            still_mine()
            inside.write(_copy_name(number), inside.read(root_name(number)))
            inside.delete(root_name(number))
            copied.add(number)
        copied -= set(numbers(inside.list("roots/")))  # a run that died between the copy and the deletion
        held = readings(inside, self.now)
        for number in sorted(copied):
            still_mine()
            data = inside.read(_copy_name(number))
            who = sorted(reading.holder for reading in held if reading.holds(number))
            if who and number not in self.policy.condemned:
                inside.create(root_name(number), data)
                self.outcome.held[number] = who
            else:
                # From here on it must not be put back: its files are going.
                inside.write(_copy_name(number, given_up=True), data)
                self.outcome.count(root_name(number), len(data))
                given_up.add(number)
            inside.delete(_copy_name(number))
        return sorted(given_up)

    def _files_of_removed(self, removed: Iterable[int]) -> dict[str, int]:
        """What generations referred to that are gone: name -> bytes. What cannot be read any more is left out."""
        found: dict[str, int] = {}
        for number in removed:
            try:
                data = self.inside.read(root_name(number) if self.outcome.dry_run else _copy_name(number, given_up=True))
                found |= {name: ref.size for name, (_, ref) in self.references.files(Root.model_validate_json(data)).items()}
            except (ValueError, NotFound, Corrupt) as error:
                logger.info("corpus=%s generation=%d event=partly_unreadable reason=%s", self.corpus, number, error)
        return found

    def _delete(self, unused: Collection[str], sizes: dict[str, int], still_mine: Callable[[], None]) -> None:
        # Pages last: from them the next run knows what a run that died here was about.
        ordered = sorted(unused, key=lambda name: (name.startswith(("pages/", "trees/")), name))
        for first in range(0, len(ordered), BATCH):
            batch = ordered[first : first + BATCH]
            for name in batch:
                self.outcome.count(name, sizes[name] if name in sizes else self._size(name))
            if not self.outcome.dry_run:
                still_mine()
                self.inside.delete_many(batch)
            self.report("delete", first + len(batch), len(ordered), "files")

    def _size(self, name: str) -> int:
        try:
            return self.inside.size(name)
        except NotFound:  # deleted by its owner since it was listed
            return 0

    def _collect_encodings(self, roots: list[Root], still_mine: Callable[[], None]) -> None:
        """Drop encodings of spaces that no kept generation has, and of documents that live in none."""
        folders = self.inside.folders("encodings")
        if not folders:
            return
        segments = {ref.model_dump_json(): ref for root in roots for ref in self.references.segments(root)}
        live: dict[str, list[Array]] = {space: [] for space in folders}
        for i, ref in enumerate(segments.values()):
            # Vectors that callers gave, and images, lie under names of their own, and may belong to any document.
            spaces = [space for space in live if space in ref.spaces.values() or space.startswith(OF_DOCUMENTS)]
            if spaces:
                hashes = live_hashes(self.inside, ref)
                for space in spaces:
                    live[space].append(hashes)
            still_mine()
            self.report("read hashes", i + 1, len(segments), "segments")
        for space, parts in live.items():
            still_mine()
            wanted = np.unique(np.concatenate(parts), axis=0) if parts else np.zeros((0, HASH_BYTES), np.uint8)
            n_packs, n_bytes = PackedEncodings(self.inside, f"encodings/{space}").retain(wanted, MOSTLY_DEAD, self.outcome.dry_run)
            if n_packs:
                self.outcome.count("encodings/", n_bytes, n_packs)


def _copy_name(number: int, given_up: bool = False) -> str:
    return f"collected/{number:016d}{'.gone' if given_up else ''}.json"
