"""What a source holds: the files that its globs and its ignore files let through, on disks and on anything fsspec can reach."""

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from shards.ignoring import IGNORE_FILES, Chain, IgnoreRules, ignored
from shards.opening import MAX_FILE_BYTES, Opener
from shards.plan import glob_regex
from shards.roots import Root, Source, decode_path, encode_path, said

__all__ = ["MAX_FILE_BYTES", "Listed", "Listing", "Opener", "Problem", "Source", "list_source"]


class Listed(NamedTuple):
    """One file. A tuple rather than a dataclass: a hundred thousand are made in a second.

    path: relative to the root, `/`-separated; bytes that are not UTF-8 as surrogate escapes.
    size_bytes: -1 where the server does not say. mtime_ns: 0 likewise. etag: the source's own mark of the content, else "".
    """

    path: str
    size_bytes: int
    mtime_ns: int
    etag: str = ""


class Problem(NamedTuple):
    """Something that could not be looked at, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source held when it was listed.

    files: in the order of their paths' UTF-8 bytes, each path once.
    counters: `ignored` (files and whole folders that ignore files name), `excluded` (by include and exclude),
        `skipped_symlink_loops` (links to folders that are listed anyway), `skipped_broken_links`, `skipped_special`
        (fifos, sockets, devices), `vanished` (gone while being listed).
    problems: folders and files that could not be looked at.
    incomplete_prefixes: paths that start with one of these may exist though they are not listed: their absence is no deletion.
        A folder's ends in "/"; "" means everything.
    """

    files: tuple[Listed, ...]
    counters: Mapping[str, int]
    problems: tuple[Problem, ...] = ()
    incomplete_prefixes: tuple[str, ...] = ()


def list_source(source: Source) -> Listing:
    """The files of a source that its globs and its ignore files let through.

    `.gitignore` and `.sondageignore` count in every folder from the root down; `.git` is never entered. Symbolic links are
    followed; a folder reached twice is listed once, under its own path if it has one.
    Raises SourceError (naming URL and remedy) where the root cannot be listed, BadQuery for a malformed glob.
    """
    with Opener(source) as opener:
        return _Walk(opener.root).run() if opener.root.fs is None else _list_remote(opener)


class _Chosen:
    """Whether include and exclude globs let a path through."""

    def __init__(self, source: Source):
        self._include = _any_of(source.include)
        self._exclude = _any_of(source.exclude)
        self._prune = _any_of(tuple(glob for glob in source.exclude if glob.endswith("/**")))

    def __call__(self, path: str) -> bool:
        return (not self._include or self._include(path) is not None) and not (self._exclude and self._exclude(path))

    def prunes(self, folder: str) -> bool:
        """Whether an exclude glob `…/**` covers everything in a folder (given with its slash)."""
        return bool(self._prune and self._prune(folder + "x"))


def _any_of(globs: tuple[str, ...]) -> Callable[[str], re.Match[str] | None] | None:
    if not globs:
        return None
    return re.compile("|".join(f"(?:{glob_regex(glob).pattern})" for glob in globs), re.DOTALL).fullmatch


class _Walk:
    """The walk of a local folder. Iterative, so that depth is limited by the system's path length alone."""

    def __init__(self, root: Root):
        self.root = root
        self.chosen = _Chosen(root.source)
        self.files: list[Listed] = []
        self.counters: Counter[str] = Counter()
        self.problems: list[Problem] = []
        self.incomplete: list[str] = []
        self.folders: list[tuple[bytes, Chain]] = [(b"", ())]  # to be scanned: path with its slash, rules from above
        self.links: list[tuple[bytes, Chain]] = []  # links to folders, kept until all real folders are known
        self.seen: set[tuple[int, int]] = set()  # (device, inode) of folders scanned
        self.below_link = False

    def run(self) -> Listing:
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
        return _listing(self.files, self.counters, self.problems, self.incomplete)

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
                raise self.root.unlisted(error) from error
            self.counters["vanished"] += 1
            return
        except OSError as error:
            if not folder:
                raise self.root.unlisted(error) from error
            self._problem(decode_path(folder), error, is_folder=True)
            return
        chain = self._extended(chain, folder, {entry.name for entry in entries})
        for entry in entries:
            self._visit(entry, folder, chain)

    def _extended(self, chain: Chain, folder: bytes, names: set[bytes]) -> Chain:
        """The rules that hold in a folder: its own ignore files, then those from above."""
        texts = []
        for name in IGNORE_FILES:
            if name in names:
                try:
                    with open(self.root.folder + folder + name, "rb") as file:
                        texts.append(file.read())
                except OSError as error:
                    self._problem(decode_path(folder + name), error, is_folder=False)
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
                self._problem(decode_path(path), error, is_folder=False)

    def _problem(self, path: str, error: OSError, *, is_folder: bool) -> None:
        self.problems.append(Problem(path, error.strerror or str(error)))
        self.incomplete.append(path)


def _listing(files: list[Listed], counters: Counter[str], problems: list[Problem], incomplete: list[str]) -> Listing:
    files.sort(key=lambda file: encode_path(file.path))
    return Listing(tuple(files), dict(counters), tuple(sorted(problems)), tuple(sorted(incomplete, key=encode_path)))


def _list_remote(opener: Opener) -> Listing:
    """One listing of everything below the prefix, filtered afterwards."""
    root = opener.root
    problems: list[Problem] = []
    try:
        found = _find(root, problems)
    except Exception as error:  # backends raise what they like: botocore, aiohttp, zipfile errors
        raise root.unlisted(error) from error
    chosen = _Chosen(root.source)
    visible = _Visible(opener, found, problems)
    counters: Counter[str] = Counter()
    kept: dict[str, Mapping[str, Any]] = {}
    for path, info in found.items():
        if not visible(path):
            counters["ignored"] += 1
        elif not chosen(path):
            counters["excluded"] += 1
        else:
            kept[path] = info
    files = [Listed(path, _size_of(info), _mtime_ns_of(info), _etag_of(info)) for path, info in _completed(root, kept)]
    return _listing(files, counters, problems, [problem.path for problem in problems])


def _find(root: Root, problems: list[Problem]) -> dict[str, Mapping[str, Any]]:
    """What fsspec says of every file, by path relative to the root."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    if root.only:
        return {root.only: root.fs.info(root.prefix + root.only)}
    kind = type(root.fs)
    if kind.find is AbstractFileSystem.find or (root.fs.async_impl and kind._find is AsyncFileSystem._find):
        found = _walk_remote(root, problems)
    else:
        found = root.fs.find(root.prefix.rstrip("/"), withdirs=False, detail=True)  # s3, gcs, archives: one flat listing
    files = {}
    for name, info in found.items():
        path = name.removeprefix(root.prefix)
        # Object stores have empty keys "folder/"; web servers link to sorted views of the same page.
        if path and info["type"] != "directory" and not path.endswith("/") and not (root.is_web and re.search("[?#]", path)):
            files[path] = info
    return files


def _walk_remote(root: Root, problems: list[Problem]) -> dict[str, Mapping[str, Any]]:
    """Folder by folder, because fsspec's own walk leaves failing folders out, and their files would pass for deleted."""
    found: dict[str, Mapping[str, Any]] = {}
    folders = [root.prefix]
    seen = set(folders)
    while folders:
        folder = folders.pop()
        try:
            rows = root.fs.ls(folder, detail=True)
        except Exception as error:  # backends raise what they like
            if folder == root.prefix:
                raise
            problems.append(Problem(folder.removeprefix(root.prefix), said(error)))
            continue
        for info in rows:
            below = info["name"].rstrip("/") + "/"
            if info["type"] != "directory":
                found[info["name"]] = info
            elif below not in seen and below.startswith(root.prefix):
                seen.add(below)
                folders.append(below)
    return found


def _completed(root: Root, found: dict[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Web listings give names alone: sizes and marks are asked for, several at a time."""
    bare = [path for path, info in found.items() if info.get("size") is None]
    if bare:
        with ThreadPoolExecutor(32, "sondage-list") as pool:
            asked = dict(zip(bare, pool.map(lambda path: _info(root, path), bare), strict=True))
        found = {path: asked.get(path) or info for path, info in found.items()}
    return iter(found.items())


def _info(root: Root, path: str) -> Mapping[str, Any] | None:
    try:
        return root.fs.info(root.prefix + path)
    except FileNotFoundError:  # a dead link, or a server without HEAD: reading will tell
        return None


class _Visible:
    """Whether .git folders and ignore files let a path of a flat listing through."""

    def __init__(self, opener: Opener, found: Iterable[str], problems: list[Problem]):
        texts: dict[bytes, dict[bytes, bytes]] = {}
        paths = [path for path in found if encode_path(path.rpartition("/")[2]) in IGNORE_FILES]
        for path, content in opener.read_many([] if opener.root.only else paths):
            if not isinstance(content, bytes):
                problems.append(Problem(path, str(content)))
                continue
            folder, _, name = encode_path(path).rpartition(b"/")
            texts.setdefault(folder + b"/" if folder else b"", {})[name] = content
        self._rules = {
            folder: IgnoreRules(b"\n".join(files[name] for name in IGNORE_FILES if name in files))
            for folder, files in texts.items()
        }
        self._chains: dict[bytes, Chain | None] = {b"": self._extended((), b"")}  # None: the folder is not visible

    def __call__(self, path: str) -> bool:
        raw = encode_path(path)
        folder, slash, name = raw.rpartition(b"/")
        chain = self._chain(folder + slash)
        return chain is not None and name != b".git" and not ignored(chain, raw, name, False)

    def _chain(self, folder: bytes) -> Chain | None:
        known = self._chains.get(folder, False)
        if known is not False:
            return known
        at = 0
        chain: Chain | None = self._chains[b""]
        while chain is not None and at < len(folder):
            end = folder.index(b"/", at) + 1
            here, name = folder[:end], folder[at : end - 1]
            if here not in self._chains:
                hidden = name == b".git" or ignored(chain, here[:-1], name, True)
                self._chains[here] = None if hidden else self._extended(chain, here)
            chain, at = self._chains[here], end
        self._chains[folder] = chain
        return chain

    def _extended(self, chain: Chain, folder: bytes) -> Chain:
        return ((len(folder), self._rules[folder]), *chain) if folder in self._rules else chain


def _size_of(info: Mapping[str, Any]) -> int:
    size = info.get("size")
    return -1 if size is None else int(size)


def _mtime_ns_of(info: Mapping[str, Any]) -> int:
    """When a file was changed, in nanoseconds of UTC, from whichever field the backend has; 0 if none."""
    for key in ("LastModified", "last_modified", "updated", "mtime", "date_time", "Last-Modified", "created"):
        value = info.get(key)
        if isinstance(value, str):
            with suppress(ValueError, TypeError):
                value = parsedate_to_datetime(value) if key == "Last-Modified" else datetime.fromisoformat(value)
        if isinstance(value, tuple):  # zip: wall-clock time of no zone
            with suppress(ValueError):
                value = datetime(*value[:6], tzinfo=UTC)
        if isinstance(value, datetime):
            return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()) * 10**9 + value.microsecond * 1000
        if isinstance(value, (int, float)):
            return int(value * 10**9)
    return 0


def _etag_of(info: Mapping[str, Any]) -> str:
    """The backend's mark of a content, best first; "" where there is none but the time of change."""
    for key in ("ETag", "etag", "md5Hash", "md5", "crc32c", "CRC", "checksum", "Content-MD5", "LastModified", "Last-Modified"):
        value = info.get(key)
        if value:
            return f"{value:08x}" if isinstance(value, int) else str(value).strip('"')
    return ""
