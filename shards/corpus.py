"""What a source holds: the files that its globs and its ignore files let through, on disks and on anything fsspec can reach."""

from shards.choosing import Chosen
from shards.ignoring import IGNORE_FILES, Chain, IgnoreRules, ignored
from shards.listing import Found, Listed, Listing, Problem
from shards.local_folder import LocalFolder
from shards.opening import MAX_FILE_BYTES, Opener, reason_of
from shards.roots import Source, encode_path, unlisted

__all__ = ["MAX_FILE_BYTES", "Listed", "Listing", "Opener", "Problem", "Source", "list_source"]


def list_source(source: Source) -> Listing:
    """The files of a source that its globs and its ignore files let through.

    `.gitignore` and `.sondageignore` count in every folder from the root down; `.git` is never entered. Symbolic links of a local
    folder are followed; a folder reached twice is listed once, under its own path if it has one.
    Raises SourceError (naming URL and remedy) where the root cannot be listed, BadQuery for a malformed glob.
    """
    chosen = Chosen(source)
    with Opener(source) as opener:
        try:
            found = opener.files.find()
        except Exception as error:  # backends raise what they like: botocore, aiohttp, zipfile errors
            raise unlisted(source, error) from error
        if not isinstance(opener.files, LocalFolder):  # whose walk leaves out what is hidden as it goes
            _filter(opener, found, chosen)
    found.files.sort(key=_bytewise)
    counters = {name: n for name, n in found.counters.items() if n}
    return Listing(tuple(found.files), counters, tuple(sorted(found.problems)), tuple(sorted(found.incomplete, key=encode_path)))


def _bytewise(file: Listed) -> bytes:
    return encode_path(file.path)


def _filter(opener: Opener, found: Found, chosen: Chosen) -> None:
    """Take out what ignore files and globs hide."""
    visible = _Visible(opener, found)
    kept = []
    for file in found.files:
        if not visible(file.path):
            found.counters["ignored"] += 1
        elif not chosen(file.path):
            found.counters["excluded"] += 1
        else:
            kept.append(file)
    found.files = kept


class _Visible:
    """Whether .git folders and ignore files let a path of a flat listing through."""

    def __init__(self, opener: Opener, found: Found):
        texts: dict[bytes, dict[bytes, bytes]] = {}
        paths = [file.path for file in found.files if encode_path(file.path.rpartition("/")[2]) in IGNORE_FILES]
        self._unknown: set[bytes] = set()  # folders whose ignore file cannot be read
        for path, content in opener.read_many([] if opener.files.only else paths):
            folder, slash, name = encode_path(path).rpartition(b"/")
            if isinstance(content, bytes):
                texts.setdefault(folder + slash, {})[name] = content
                continue
            # Nobody knows what its folder hides: nothing there is listed, and nothing counts as deleted.
            self._unknown.add(folder + slash)
            found.problems.append(Problem(path, str(content), reason_of(content)))
            found.incomplete.append(path[: len(path) - len(name)])
        self._rules = {
            folder: IgnoreRules(b"\n".join(files[name] for name in IGNORE_FILES if name in files)) for folder, files in texts.items()
        }
        self._chains: dict[bytes, Chain | None] = {}  # None: the folder is not visible
        self._chains[b""] = None if b"" in self._unknown else self._extended((), b"")

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
                hidden = name == b".git" or here in self._unknown or ignored(chain, here[:-1], name, True)
                self._chains[here] = None if hidden else self._extended(chain, here)
            chain, at = self._chains[here], end
        self._chains[folder] = chain
        return chain

    def _extended(self, chain: Chain, folder: bytes) -> Chain:
        return ((len(folder), self._rules[folder]), *chain) if folder in self._rules else chain
