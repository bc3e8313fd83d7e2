"""Whether the files of a source are still what was indexed: compared with its tree, piece by piece, within a time.

A file is looked at by its size and time, a folder whose own time is unchanged has the names that it had. What was looked at longest ago
comes first, so that searches which have little time each look at everything between them. Nothing watches, and nothing scans by itself.
"""

import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from shards.identity import HASH_BYTES, as_keys
from shards.listing import Listed, Listing
from shards.local_folder import LocalFolder, visible
from shards.roots import encode_path
from shards.tree import TreeRow, table_of
from shards.types import Array, Budget

UNCHECKED, CURRENT, CHANGED, VANISHED = range(4)
STATES = ("unchecked", "current", "changed", "vanished")

MAX_FILES = 300_000  # of a source that is checked: about 150 bytes each are held
MAX_NEW = 10_000  # files of a source that are known to be new
SLICE = 64  # files between two looks at the clock: 0.2 ms
RACY_NS = 2_000_000_000  # a folder that changed so shortly ago may change again without its time telling
REST = 50.0  # times what a whole look takes, until it is worth another: 2 % of one core at most
LEAST_REST_S = 0.02
SHRINK, FEW = 0.5, 20  # as of a run: where more are gone, something is wrong with the source


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What was indexed of a source, by file, in the order of paths.

    paths: all, one after the other; ends: (n + 1,) int64, where each begins and the last ends. sizes, mtimes: (n,) int64. hashes: (n, 20)
    uint8, zeros of files that are no document. folders: those with files, and all above them, in order; each ends in "/", the root is b"".
    order: (n,) int32, rows by folder; edges: where each folder's begin. inner, inner_of: hashes of documents inside of files (rows of
    tables, members of archives), (m, 20), and the row of the file of each, (m,) int64.
    """

    paths: bytes
    ends: Array
    sizes: Array
    mtimes: Array
    hashes: Array
    folders: tuple[bytes, ...]
    order: Array
    edges: Array
    inner: Array
    inner_of: Array

    def __len__(self) -> int:
        return len(self.sizes)

    def path(self, row: int) -> bytes:
        return self.paths[self.ends[row] : self.ends[row + 1]]

    @classmethod
    def of(cls, rows: Iterable[TreeRow]) -> "Known":
        """What a source's tree says."""
        paths: list[bytes] = []
        numbers: list[tuple[int, int]] = []
        hashes, inner, inner_of = bytearray(), bytearray(), []
        tables: dict[str, int] = {}
        for row in rows:
            table = table_of(row)
            if table is not None:
                if table in tables and row.hash:
                    inner += bytes.fromhex(row.hash)
                    inner_of.append(tables[table])
                continue
            if not row.hash:
                tables[row.path] = len(paths)
            paths.append(encode_path(row.path))
            numbers.append((row.size_bytes, row.mtime_ns))
            hashes += bytes.fromhex(row.hash) or bytes(HASH_BYTES)
        own = [path[: path.rfind(b"/") + 1] for path in paths]
        folders = set(own) | {b""}
        for folder in list(folders):
            while folder and (folder := folder[: folder.rfind(b"/", 0, -1) + 1]) not in folders:
                folders.add(folder)
        ordered = tuple(sorted(folders))
        place = {folder: i for i, folder in enumerate(ordered)}
        of = np.array([place[folder] for folder in own], np.int64)
        return cls(
            paths=b"".join(paths),
            ends=np.cumsum([0, *map(len, paths)], dtype=np.int64),
            sizes=np.array([size for size, _ in numbers], np.int64),
            mtimes=np.array([mtime for _, mtime in numbers], np.int64),
            hashes=np.frombuffer(bytes(hashes), np.uint8).reshape(-1, HASH_BYTES),
            folders=ordered,
            order=np.argsort(of, kind="stable").astype(np.int32),
            edges=np.searchsorted(np.sort(of), np.arange(len(ordered) + 1)),
            inner=np.frombuffer(bytes(inner), np.uint8).reshape(-1, HASH_BYTES),
            inner_of=np.array(inner_of, np.int64),
        )


class Checked:
    """What is known of a source's files so far. Changed by one thread at a time; read by any.

    state: (n,) uint8, of each file, `STATES`. changed: size and time of those that are others now, by row; new: files that were not
    indexed, by path. reason: why nothing can be said, "" if something can.
    """

    def __init__(self, known: Known):
        self.known = known
        self.state = np.zeros(len(known), np.uint8)
        self.changed: dict[int, Listed] = {}
        self._same: dict[int, tuple[int, int]] = {}  # files that were read since, and have the content that was indexed
        self.reason = ""

    @property
    def new(self) -> dict[str, Listed]:
        return {}

    def put(self, row: int, file: Listed | None) -> None:
        """What was seen of a file; None: it is gone."""
        self.changed.pop(row, None)
        if file is None:
            self.state[row] = VANISHED
        elif (file.size_bytes, file.mtime_ns) in ((self.known.sizes[row], self.known.mtimes[row]), self._same.get(row)):
            self.state[row] = CURRENT
        else:
            self.state[row] = CHANGED
            self.changed[row] = file

    def settle(self, row: int, file: Listed) -> None:
        """A file that looked changed has the content that was indexed."""
        self._same[row] = (file.size_bytes, file.mtime_ns)
        if self.changed.get(row) == file:
            self.put(row, file)

    @property
    def doubtful(self) -> bool:
        """Whether so many files are gone that this is more likely a fault of the source than a change: then none counts as gone."""
        n_gone = int(np.count_nonzero(self.state == VANISHED))
        return n_gone >= FEW and n_gone > SHRINK * len(self.known)

    def stale(self) -> tuple[Array, Array]:
        """Content hashes of entries that are not there any more, with multiplicity: (m, 20) uint8, and which of these are gone with their
        file rather than changed: (m,) bool."""
        bad = (self.state == CHANGED) | (self.state == VANISHED)
        rows = np.flatnonzero(bad & self.known.hashes.any(axis=1))
        inside = np.flatnonzero(bad[self.known.inner_of]) if len(self.known.inner_of) else np.zeros(0, np.int64)
        hashes = np.concatenate([self.known.hashes[rows], self.known.inner[inside]])
        return hashes, np.concatenate([self.state[rows], self.state[self.known.inner_of[inside]]]) == VANISHED

    def n_entries(self, hashes: Array) -> Array:
        """How many entries of this source have each of these contents: (m,) int64. hashes: (m, 20) uint8."""
        wanted = as_keys(hashes)
        counts = np.zeros(len(wanted), np.int64)
        order = np.argsort(wanted)
        for held in (self.known.hashes, self.known.inner):
            if len(held) and len(wanted):
                at = np.searchsorted(wanted[order], as_keys(held))
                at[at == len(wanted)] = 0
                hit = wanted[order[at]] == as_keys(held)
                np.add.at(counts, order[at[hit]], 1)
        return counts


class LocalCheck(Checked):
    """A folder of this machine. clock: monotonic, in seconds; clock_ns: the time of day, as files bear it."""

    def __init__(
        self, files: LocalFolder, known: Known, clock: Callable[[], float] = time.monotonic, clock_ns: Callable[[], int] = time.time_ns
    ):
        super().__init__(known)
        self.files, self._clock, self._clock_ns = files, clock, clock_ns
        n = len(known.folders)
        self.seen_s = np.full(n, -np.inf)  # when each folder was looked at, whole
        self._times = np.full(n, -1, np.int64)  # of folders, as they were when their names were read
        self._at = np.zeros(n, np.int64)  # files of it that were looked at, where the time ended within
        self._new: dict[int, dict[bytes, Listed]] = {}
        self._place = {folder: i for i, folder in enumerate(known.folders)}
        # What changed last changes next: where nothing was looked at yet, folders with the latest files come first.
        latest = np.zeros(n, np.int64)
        np.maximum.at(latest, np.repeat(np.arange(n), np.diff(known.edges)), known.mtimes[known.order])
        self._latest = -latest
        self.whole_s = 0.0  # what a look at everything takes, about
        self._worked_s, self._worked_rows = 0.0, 0

    @property
    def new(self) -> dict[str, Listed]:
        return {file.path: file for found in list(self._new.values()) for file in list(found.values())}

    def within(self, prefixes: Sequence[bytes]) -> Array:
        """The folders that may hold a path which begins so, and those above and below: (m,) int64."""
        folders = self.known.folders
        if not prefixes or b"" in prefixes:
            return np.arange(len(folders))
        return np.array([i for i, folder in enumerate(folders) if folder.startswith(tuple(prefixes)) or folder in prefixes], np.int64)

    def n_seen(self, folders: Array, since_s: float) -> tuple[int, int]:
        """Files of these folders that were looked at since then, and all."""
        sizes = np.diff(self.known.edges)[folders]
        return int(sizes[self.seen_s[folders] >= since_s].sum()), int(sizes.sum())

    @property
    def rest_s(self) -> float:
        """How old what is known may be until it is worth another look."""
        return max(REST * self.whole_s, LEAST_REST_S)

    @property
    def file_s(self) -> float:
        """What a look at one file takes, about."""
        return self.whole_s / max(len(self.known) + len(self.known.folders), 1)

    def is_due(self, folders: Array) -> bool:
        """Whether what is known of these folders is older than it is worth to keep."""
        return bool(len(folders)) and self._clock() - self.seen_s[folders].min() > self.rest_s

    def sweep(self, budget: Budget, folders: Array, since_s: float) -> bool:
        """Look at these folders, those first that were looked at longest ago, until none is older than `since_s` or the time ends.
        Returns whether all were looked at."""
        begun = self._clock()
        if not self._has_root():
            return True
        waiting = folders[self.seen_s[folders] < since_s]
        n_rows = 0
        for i in waiting[np.lexsort((self._latest[waiting], self.seen_s[waiting]))].tolist():
            if budget.expired:
                break
            at = self._clock()
            n_rows += int(self.known.edges[i + 1] - self.known.edges[i]) + 1
            if not self._folder(i, budget):
                break
            self.seen_s[i] = at
        self._worked_s, self._worked_rows = self._worked_s + self._clock() - begun, self._worked_rows + n_rows
        if self._worked_rows:
            self.whole_s = self._worked_s / self._worked_rows * (len(self.known) + len(self.known.folders))
        return bool((self.seen_s[folders] >= since_s).all())

    def _has_root(self) -> bool:
        """A source that is gone as a whole is not a deletion: nothing is known of it then."""
        try:
            with os.scandir(self.files.folder) as scan:
                self.reason = "" if next(scan, None) is not None or not len(self.known) else f"{self.files.source.url} is empty"
        except OSError as error:
            self.reason = f"{self.files.source.url} cannot be looked at here: {error.strerror or error}"
        if self.reason:
            self.state[:] = UNCHECKED
            self.seen_s[:] = -np.inf
            self._times[:] = -1
            self.changed.clear()
            self._new.clear()
        return not self.reason

    def _folder(self, i: int, budget: Budget) -> bool:
        """One folder; False where the time ended within it."""
        folder = self.known.folders[i]
        rows = self.known.order[self.known.edges[i] : self.known.edges[i + 1]]
        try:
            status = os.stat(self.files.folder + folder)
        except (FileNotFoundError, NotADirectoryError):
            self._new.pop(i, None)
            self._times[i] = -1
            for row in rows.tolist():
                self.put(row, None)
            return True
        except OSError:
            self.state[rows] = UNCHECKED
            return True
        if not self.files.only and self._at[i] == 0 and (status.st_mtime_ns != self._times[i] or self._new.get(i)):
            self._names(i, rows)
            self._times[i] = status.st_mtime_ns if status.st_mtime_ns < self._clock_ns() - RACY_NS else -1
            return True
        for at in range(int(self._at[i]), len(rows), SLICE):
            for row in rows[at : at + SLICE].tolist():
                self._file(row)
            if budget.expired and at + SLICE < len(rows):
                self._at[i] = at + SLICE
                return False
        self._at[i] = 0
        return True

    def _names(self, i: int, rows: Array) -> None:
        """All that a listing takes of a folder, and of folders in it of which nothing was indexed."""
        found = visible(self.files, self.known.folders[i], lambda folder: folder not in self._place, MAX_NEW)
        listed = {encode_path(file.path): file for file in found.files}
        for row in rows.tolist():
            file = listed.pop(self.known.path(row), None)
            if file is None:
                self._file(row)  # gone; or hidden since by a rule, which is a run's business
            else:
                self.put(row, file)
        if listed and sum(map(len, self._new.values())) < MAX_NEW:
            self._new[i] = listed
        else:
            self._new.pop(i, None)

    def _file(self, row: int) -> None:
        path = self.known.path(row)
        try:
            status = os.stat(self.files.folder + path)
        except (FileNotFoundError, NotADirectoryError):
            self.put(row, None)
            return
        except OSError:
            self.state[row] = UNCHECKED
            return
        is_file = stat.S_ISREG(status.st_mode)
        self.put(row, Listed(path.decode("utf-8", "surrogateescape"), status.st_size, status.st_mtime_ns) if is_file else None)


class ListedCheck(Checked):
    """Any other source, by its listing: what a run of the index job does first."""

    def __init__(self, known: Known, etags: Sequence[str]):
        """etags: of each file, as it was indexed."""
        super().__init__(known)
        self._etags = etags
        self._new: dict[str, Listed] = {}
        self._row = {known.path(row): row for row in range(len(known))}

    @property
    def new(self) -> dict[str, Listed]:
        return self._new

    def take(self, listing: Listing) -> None:
        """What the source holds now. What could not be listed is not gone."""
        left = dict(self._row)
        new: dict[str, Listed] = {}
        for file in listing.files:
            row = left.pop(encode_path(file.path), None)
            if row is None:
                if len(new) < MAX_NEW:
                    new[file.path] = file
            elif file.own_etag and file.own_etag == self._etags[row].partition("\t")[0]:
                self.changed.pop(row, None)
                self.state[row] = CURRENT
            elif file.own_etag or file.is_marked:
                self.put(row, file)
        incomplete = tuple(map(encode_path, listing.incomplete_prefixes))
        for path, row in left.items():
            if path.startswith(incomplete):
                self.state[row] = UNCHECKED
            else:
                self.put(row, None)
        self._new = new


def entry_state(root: bytes, path: str, size_bytes: int, mtime_ns: int) -> int:
    """Whether one file is what was indexed, now. root: its source's folder, with its slash."""
    with suppress(OSError, ValueError):
        try:
            status = os.stat(root + encode_path(path))
        except (FileNotFoundError, NotADirectoryError):
            with os.scandir(root) as scan:  # a root that is gone or empty is no deletion
                return VANISHED if next(scan, None) is not None else UNCHECKED
        if not stat.S_ISREG(status.st_mode):
            return VANISHED
        return CURRENT if (status.st_size, status.st_mtime_ns) == (size_bytes, mtime_ns) else CHANGED
    return UNCHECKED
