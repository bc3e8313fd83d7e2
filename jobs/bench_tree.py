"""A tree of real text files for benches beside tools that walk folders, and an index over it: made once, kept in a temporary folder."""

import getpass
import hashlib
import os
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.progress import Progress
from shards.errors import BadSpec

if TYPE_CHECKING:
    from shards.documents import Documents, Entries
    from shards.generation import Generation
    from shards.layers.contract import Layer, Reader
    from shards.plan import SpaceQuery
    from shards.types import Found

FOLDERS = {"stdlib": sysconfig.get_path("stdlib"), "packages": sysconfig.get_path("purelib")}
SUFFIXES = frozenset("py pyi pyx pxd h hpp c cc cpp cu js ts css html json md rst txt toml yaml yml cfg ini xml csv".split())
LARGEST_FILE = 2 << 20  # bytes; above, generated tables
CORPUS = "tree"
_VERSION = 1  # of how the tree is made


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder of text files. how: what it was made of, for people."""

    root: Path
    n_files: int
    size_bytes: int
    how: str


def given_tree(root: Path) -> Tree:
    """A folder as it is. Raises BadSpec where there is none."""
    if not root.is_dir():
        raise BadSpec(f"--tree {root} is not a folder.")
    sizes = [os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(root) for name in names]
    return Tree(root.absolute(), len(sizes), sum(sizes), f"the folder {root.name}")


def made_tree(megabytes: int, progress: Progress) -> Tree:
    """Text files of the standard library, then of the installed packages, in order of path until they have that size; no content twice.

    Where that is not enough, once more the same files, each with its long words changed (`_varied`), and so on. The same installation
    gives the same tree.
    """
    made_of = [str(_VERSION), str(megabytes), *FOLDERS.values()]
    root = bench_folder() / f"tree-{megabytes}-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]}"
    if not root.is_dir():
        partial = Path(tempfile.mkdtemp(prefix=".tree-", dir=root.parent))
        size, copies = 0, 0
        for copy, path, text in texts():
            copies = copy
            target = partial / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)
            os.utime(target, (1e9, 1e9))  # not so young that the index job distrusts their times
            size += len(text)
            progress("tree", min(size, megabytes * 10**6), megabytes * 10**6, "bytes")
            if size >= megabytes * 10**6:
                break
        partial.rename(root)
        (root.parent / f"{root.name}.copies").write_text(str(copies))
    found = given_tree(root)
    n_copies = int((root.parent / f"{root.name}.copies").read_text())
    how = f"{found.n_files:,} text files of the standard library and of installed packages, {found.size_bytes / 1e6:.0f} MB"
    how += f", {n_copies} times more with long words changed" if n_copies else ", each content once"
    return Tree(root, found.n_files, found.size_bytes, how)


def bench_folder() -> Path:
    """Where trees and their indexes are kept between runs."""
    folder = Path(tempfile.gettempdir()) / f"sondage-bench-{getpass.getuser()}"
    folder.mkdir(exist_ok=True)
    return folder


def texts() -> Iterator[tuple[int, str, bytes]]:
    """(which copy, path in the tree, content): all files, then all files varied, for ever. Raises BadSpec where there are none."""
    seen: set[bytes] = set()
    copy = 0
    while copy == 0 or seen:
        for name, folder in FOLDERS.items():
            for path in _files(Path(folder), skipped="site-packages" if name == "stdlib" else ""):
                text = path.read_bytes()
                text = _varied(text, copy) if copy else text
                key = hashlib.sha1(text).digest()
                if b"\0" in text[:8192] or key in seen:
                    continue
                seen.add(key)
                inside = f"{name}/{path.relative_to(folder).as_posix()}"
                yield copy, f"copy{copy}/{inside}" if copy else inside, text
        copy += 1
    raise BadSpec(f"There are no text files below {', '.join(FOLDERS.values())} to make a tree of. Give --tree DIR.")


def _files(folder: Path, skipped: str) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in ("__pycache__", skipped) and not name.startswith("."))
        for name in sorted(names):
            path = Path(where, name)
            suffix = name.rpartition(".")[2].lower()
            if suffix in SUFFIXES and not name.startswith(".") and not path.is_symlink() and 0 < path.stat().st_size <= LARGEST_FILE:
                yield path


def _varied(text: bytes, copy: int) -> bytes:
    """The text with the vowels of its words of eight letters and more rotated: as much text, other rare words."""
    import re

    vowels = b"aeiou"
    table = bytes.maketrans(vowels, vowels[copy % 5 :] + vowels[: copy % 5])
    return re.sub(rb"[A-Za-z_]{8,}", lambda word: word[0].translate(table), text) + b"\n" * (copy // 5)


@dataclass
class Indexed:
    """An index over a tree, opened in this process: what a host holds of it. generation: the newest."""

    tree: Tree
    store_url: str
    generation: "Generation"
    seconds: Mapping[str, float]
    asked: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @cached_property
    def _shards(self) -> list[Any]:
        return [self.generation.shard(number) for number in range(len(self.generation.pages))]

    def layer(self, space: str) -> "Layer":
        return self.generation.spaces[space].layer

    def readers(self, space: str) -> "list[Reader]":
        """A space's readers, one for each segment. Raises BadSpec where a space could not be opened."""
        for shard in self._shards:
            if space in shard.unopened:
                raise BadSpec(f"Space {space!r} cannot be opened: {shard.unopened[space]}")
        key = self.generation.spaces[space].id
        return [view.readers[key] for shard in self._shards for view in shard.views if key in view.readers]

    @property
    def segments(self) -> "list[tuple[Documents, Entries]]":
        """What each segment holds."""
        return [(view.segment.documents, view.segment.entries) for shard in self._shards for view in shard.views]

    @property
    def documents(self) -> "list[Documents]":
        return [documents for documents, _ in self.segments]

    def arrays_bytes(self, space: str) -> int:
        """Bytes of a space's arrays in all segments."""
        role = f"layer/{self.generation.spaces[space].id}"
        return sum(ref.files[role].size for page in self.generation.pages for ref in page.segments if role in ref.files)

    @property
    def text_bytes(self) -> int:
        return sum(ref.text_bytes for page in self.generation.pages for ref in page.segments)

    def prepare(self, space: str, text: str = "", form: Mapping[str, Any] | None = None) -> "SpaceQuery":
        """A question to one space, as the coordinator prepares it. What is prepared is also asked over HTTP in the end."""
        from shards.layers.contract import Request

        query = self.layer(space).prepare(Request(text, form or {}, True), self.generation.statistics(space))
        if query is None:
            raise BadSpec(f"Space {space!r} has nothing to ask of {text or form!r}.")
        self.asked.setdefault(space, []).append({"query": text, "layers": [space], **({"forms": {space: dict(form)}} if form else {})})
        return query

    def search(self, space: str, query: "SpaceQuery", k: int = 100) -> "list[Found]":
        """The k best of each segment, one segment after the other, as a shard asks them."""
        from shards.types import Budget

        return [reader.search(query, None, k, Budget()) for reader in self.readers(space)]


def indexed(tree: Tree, specs: Sequence[str], progress: Progress) -> Indexed:
    """The tree with these spaces, by the index job in this process. An index that is there is only brought up to date: delete the folder
    after a change of a layer that did not raise its version."""
    import io

    from jobs import index
    from jobs.settings import Settings
    from shards.cache import FileCache
    from shards.generation import Generation
    from shards.store import open_store

    key = hashlib.sha256(repr((str(tree.root), tuple(specs))).encode()).hexdigest()[:12]
    url = str(bench_folder() / f"store-{key}")
    settings = Settings.load(store=url)
    options = ["--corpus", CORPUS, "--source", str(tree.root), "--store", url, "--local"]
    for spec in specs:
        options += ["--layer", spec]
    progress("index of the tree", 0, 1, "corpora")
    outcome = index.run(index.parser().parse_args(options), settings, Progress(io.StringIO()))
    progress("index of the tree", 1, 1, "corpora")
    store = open_store(settings.store_url(), **settings.store_options())
    cache = FileCache(settings.host_settings().cache_dir, settings.cache_bytes)
    return Indexed(tree, url, Generation.open(store, cache, CORPUS, None, settings.resources()), outcome.seconds)
