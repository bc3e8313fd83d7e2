"""A source on this machine's disks: the walk of a folder with its ignore files, and reading files that may change meanwhile."""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from shards.choosing import Chosen
from shards.errors import SourceError
from shards.ignoring import IGNORE_FILES, Chain, IgnoreRules, ignored
from shards.listing import Found, Listed, Problem
from shards.roots import Source, decode_path, encode_path, kind_of_failure, said, unlisted

_ATTEMPTS = 3  # at reading a file that is being written; what is torn then is read anew by the next run


class LocalFolder:
    """A folder, or a single file. folder: ends in "/"; only: the file's name where the source is one, else ""."""

    parallel = 1  # from the page cache, threads only cost

    def __init__(self, source: Source):
        """Raises SourceError where there is no such folder or file."""
        self.source = source
        self.only = ""
        folder = os.fsencode(os.path.abspath(os.path.expanduser(source.url.split("://", 1)[-1])))
        try:
            mode = os.stat(folder).st_mode
        except (OSError, ValueError) as error:
            raise unlisted(source, error) from error
        if not stat.S_ISDIR(mode):
            if not stat.S_ISREG(mode):
                raise SourceError(f"Source {source.url!r} is neither a file nor a folder. Name one of these.")
            folder, name = os.path.split(folder)
            self.only = decode_path(name)
        self.folder = folder.rstrip(b"/") + b"/"

    def find(self) -> Found:
        """The files that the source's globs and the ignore files let through: what they hide is not even entered."""
        return _Walk(self).run()

    def read(self, path: str, limit: int) -> bytes:
        """A file's content, or the first limit + 1 bytes of a larger one. One that is being written is read again."""
        if ".." in path.split("/"):
            raise PermissionError(errno.EACCES, "the path leaves the source's root")
        # Non-blocking, because a fifo may have taken the file's place; reading one would wait for ever.
        handle = os.open(self.folder + encode_path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb", buffering=0) as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError(errno.ENOENT, "it is no regular file any more")
            for _ in range(_ATTEMPTS):
                data = file.readall() if status.st_size <= limit else file.read(limit + 1)
                before, status = status, os.fstat(handle)
                if (status.st_size, status.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
                    break
                file.seek(0)
            return data

    def close(self) -> None:
        """Nothing is held open."""


def visible(root: LocalFolder, folder: bytes, enters: Callable[[bytes], bool], most: int) -> Found:
    """What a listing takes of one folder of it, and of those below that `enters` lets through, by the rules from the root down; about
    `most` files. folder: relative to the root, with its slash. Links to folders are not followed. Raises SourceError where the root is
    gone.
    """
    walk = _Walk(root)
    chain: Chain = ()
    at = 0
    while at < len(folder):
        end = folder.index(b"/", at) + 1
        with suppress(OSError):
            chain = walk._extended(chain, folder[:at], set(map(bytes, IGNORE_FILES)))
        name = folder[at : end - 1]
        if name == b".git" or ignored(chain, folder[: end - 1], name, True):
            return walk.found
        at = end
    walk.folders = [(folder, chain)]
    while walk.folders and len(walk.files) < most:
        path, rules = walk.folders.pop()
        if path == folder or enters(path):
            walk._scan(path, rules)
    return walk.found


class _Walk:
    """The walk of a local folder. Iterative, so that depth is limited by the system's path length alone."""

    def __init__(self, root: LocalFolder):
        self.root = root
        self.chosen = Chosen(root.source)
        self.found = Found()
        self.files, self.counters = self.found.files, self.found.counters
        self.folders: list[tuple[bytes, Chain]] = [(b"", ())]  # to be scanned: path with its slash, rules from above
        self.links: list[tuple[bytes, Chain]] = []  # links to folders, kept until all real folders are known
        self.seen: set[tuple[int, int]] = set()  # (device, inode) of folders scanned
        self.below_link = False

    def run(self) -> Found:
        if self.root.only:
            self._single()
        while self.folders or self.links:
            while self.folders:
                self._scan(*self.folders.pop())
            if self.links:
                # Sorted, so that of two links to one folder the same one wins on every run.
                self.links.sort(reverse=True)
                self.below_link = True
                self.folders.append(self.links.pop())
        return self.found

    def _single(self) -> None:
        self.folders.clear()
        name = self.root.only
        status = os.stat(self.root.folder + encode_path(name))
        if self.chosen(name):
            self.files.append(Listed(name, status.st_size, status.st_mtime_ns))
        else:
            self.counters["excluded"] += 1

    def _scan(self, folder: bytes, chain: Chain) -> None:
        place = self.root.folder + folder
        try:
            status = os.stat(place)
            identity = (status.st_dev, status.st_ino)
            # Only below links: some network filesystems number all folders 0, and a real folder must never be lost.
            if self.below_link and identity in self.seen:
                self.counters["skipped_symlink_loops"] += 1
                return
            self.seen.add(identity)
            with os.scandir(place) as scan:
                entries = list(scan)
        except FileNotFoundError as error:
            if not folder:
                raise unlisted(self.root.source, error) from error
            self.counters["vanished"] += 1
            return
        except OSError as error:
            if not folder:
                raise unlisted(self.root.source, error) from error
            self._problem(decode_path(folder), error)
            return
        try:
            chain = self._extended(chain, folder, {entry.name for entry in entries})
        except OSError as error:
            # Without the ignore file nobody knows what its folder hides: nothing is listed, and nothing counts as deleted.
            self.found.problems.append(Problem(decode_path(folder), f"{said(error)}: its ignore file", kind_of_failure(error)))
            self.found.incomplete.append(decode_path(folder))
            return
        for entry in entries:
            self._visit(entry, folder, chain)

    def _extended(self, chain: Chain, folder: bytes, names: set[bytes]) -> Chain:
        """The rules that hold in a folder: its own ignore files, then those from above. Raises OSError."""
        texts = []
        for name in IGNORE_FILES:
            if name in names:
                with suppress(FileNotFoundError), open(self.root.folder + folder + name, "rb") as file:
                    texts.append(file.read())
        return ((len(folder), IgnoreRules(b"\n".join(texts))), *chain) if texts else chain

    def _visit(self, entry: os.DirEntry[bytes], folder: bytes, chain: Chain) -> None:
        name = entry.name
        path = folder + name
        try:
            is_folder = entry.is_dir()
            if name == b".git":
                return
            if chain and ignored(chain, path, name, is_folder):
                self.counters["ignored"] += 1
                return
            if is_folder:
                path += b"/"
                if self.chosen.prunes(decode_path(path)):
                    self.counters["excluded"] += 1
                elif entry.is_symlink():
                    self.links.append((path, chain))
                else:
                    self.folders.append((path, chain))
                return
            text = decode_path(path)
            if not self.chosen(text):
                self.counters["excluded"] += 1
                return
            status = entry.stat()
            if stat.S_ISREG(status.st_mode):
                self.files.append(Listed(text, status.st_size, status.st_mtime_ns))
            else:
                self.counters["skipped_special"] += 1
        except FileNotFoundError:
            self.counters["skipped_broken_links" if entry.is_symlink() else "vanished"] += 1
        except OSError as error:
            if entry.is_symlink() and error.errno == errno.ELOOP:
                self.counters["skipped_symlink_loops"] += 1
            else:
                self._problem(decode_path(path), error)

    def _problem(self, path: str, error: OSError) -> None:
        self.found.problems.append(Problem(path, error.strerror or str(error), kind_of_failure(error)))
        self.found.incomplete.append(path)
