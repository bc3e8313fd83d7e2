"""Whether everything that the kept generations refer to is there, unchanged, and keeps what FORMAT.md promises.

Manifests first, each page compared with its checksum; then every other file, once, however many generations refer to it; then what
is in them. What is damaged is named with the generations that suffer, and how.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from shards import invariants, tree
from shards.cache import FileCache
from shards.errors import Corrupt, NotFound
from shards.generation import open_spaces
from shards.layers.contract import Resources
from shards.manifest import FileRef, Root, SegmentRef, ShardPage, check, corpus_store, parse_page
from shards.references import References, generations, manifest_files, root_name
from shards.segment import Segment, Tombstones
from shards.shard import Space
from shards.store import Store
from shards.types import Array

logger = logging.getLogger(__name__)

Report = Callable[[str, int, int, str], None]

_PART_BYTES = 16 << 20  # read at a time, so that no file has to fit into memory
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong. name: the file, or the first of several that do not agree. kind: see `shards.references`.

    found: what is wrong with it. consequence: what does not work in these generations. whole: the file has its checksum, so it was
    written with what is wrong in it.
    """

    name: str
    kind: str
    generations: tuple[int, ...]
    found: str
    consequence: str
    whole: bool = False


@dataclass(slots=True)
class Verified:
    """What was looked at, and what is wrong. notes: what could not be checked here, and why."""

    generations: list[int] = field(default_factory=list)
    files: int = 0
    size_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _File:
    ref: FileRef
    kind: str
    generations: list[int]


def verify(
    store: Store,
    corpus: str,
    cache: FileCache,
    resources: Resources,
    *,
    deep: bool = False,
    report: Report = lambda *_: None,
) -> Verified:
    """Check all kept generations of a corpus. store: the store's root.

    deep: recount statistics, make the arrays of layers without a model anew from the text, and hash every rendition.
    Raises NotFound where there is no such corpus, and StoreError where the store itself fails.
    """
    numbers = generations(store, corpus)
    if not numbers:
        raise NotFound(f"There is no corpus {corpus!r} in {store.url}. Build it with `sondage index`.")
    return _Check(store, corpus, cache, resources, deep, report).run(numbers)


class _Check:
    def __init__(self, store: Store, corpus: str, cache: FileCache, resources: Resources, deep: bool, report: Report):
        self.references = References(store, corpus)
        self.inside = corpus_store(store, corpus)
        self.cache, self.resources, self.deep, self.report = cache, resources, deep, report
        self.found = Verified()
        self.files: dict[str, _File] = {}
        self.bad: set[str] = set()  # files that are damaged or missing
        self.roots: list[Root] = []
        self.pages: dict[str, ShardPage] = {}  # readable ones, by file
        self.trees: dict[str, list[FileRef]] = {}  # what readable pages of trees refer to, by file
        self.segments: dict[str, Segment] = {}

    def run(self, numbers: list[int]) -> Verified:
        self.found.generations = numbers
        for number in numbers:
            try:
                self.roots.append(self.references.root(number))
            except (Corrupt, NotFound) as error:
                self._damage(root_name(number), "root", [number], str(error), whole=False)
        for i, root in enumerate(self.roots):
            self._manifests(root)
            self.report("read manifests", i + 1, len(self.roots), "generations")
        self._hash()
        self._encodings()
        self._contents()
        self.found.files, self.found.size_bytes = len(self.files), sum(file.ref.size for file in self.files.values())
        self.found.damages.sort(key=lambda damage: (damage.name, damage.found))
        return self.found

    # --- checksums ---------------------------------------------------------------------------------------------------------

    def _manifests(self, root: Root) -> None:
        for kind, ref in manifest_files(root):
            self._manifest(kind, ref, root.generation)

    def _manifest(self, kind: str, ref: FileRef, generation: int) -> None:
        """Note a file and what it refers to; manifests are read and compared here, others by `_hash`."""
        if not ref.size:
            return
        known = self.files.setdefault(ref.name, _File(ref, kind, []))
        if known.generations[-1:] == [generation]:
            return
        known.generations.append(generation)
        if kind == "page":
            page = self._page(ref)
            for role, file in manifest_files(page) if page else ():
                self._manifest(role, file, generation)
        elif kind == "tree":
            for below in self._below(ref):
                self._manifest("tree", below, generation)

    def _page(self, ref: FileRef) -> ShardPage | None:
        if ref.name not in self.pages and ref.name not in self.bad:
            try:
                self.pages[ref.name] = parse_page(check(self.inside.read(ref.name), ref, self.inside), ref.name, self.inside)
            except (NotFound, Corrupt) as error:
                self.bad.add(ref.name)
                logger.info("file=%s event=damaged reason=%s", ref.name, error)
        return self.pages.get(ref.name)

    def _below(self, ref: FileRef) -> list[FileRef]:
        if ref.name not in self.trees and ref.name not in self.bad:
            try:
                self.trees[ref.name] = tree.references(check(self.inside.read(ref.name), ref, self.inside), ref.name, self.inside)
            except (NotFound, Corrupt) as error:
                self.bad.add(ref.name)
                logger.info("file=%s event=damaged reason=%s", ref.name, error)
        return self.trees.get(ref.name, [])

    def _hash(self) -> None:
        total, done = sum(file.ref.size for file in self.files.values()), 0
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for file, wrong in zip(self.files.values(), pool.map(self._wrong, self.files.values()), strict=True):
                if wrong:
                    self.bad.add(file.ref.name)
                    self._damage(file.ref.name, file.kind, file.generations, wrong, whole=False)
                done += file.ref.size
                self.report("compare checksums", done, total, "bytes")

    def _wrong(self, file: _File) -> str:
        """What is wrong with a file; "" if nothing is."""
        digest, at = hashlib.sha256(), 0
        try:
            while part := self.inside.read(file.ref.name, at, at + _PART_BYTES):
                digest.update(part)
                at += len(part)
        except NotFound:
            return "is missing"
        if at != file.ref.size:
            return f"has {at:,} bytes instead of {file.ref.size:,}"
        return "" if digest.hexdigest() == file.ref.sha256 else "does not have its checksum"

    def _encodings(self) -> None:
        """Packs are named by what they hold."""
        names = [name for name in self.inside.list("encodings/") if name.endswith(".safetensors")]
        for i, name in enumerate(names):
            try:
                data = self.inside.read(name)
            except NotFound:  # joined with others meanwhile
                continue
            if hashlib.sha256(data).hexdigest()[:32] != name.rpartition("/")[2].removesuffix(".safetensors"):
                self._damage(name, "encodings", [], "does not have the checksum that is its name", whole=False)
            self.report("compare encodings", i + 1, len(names), "packs")

    # --- contents ----------------------------------------------------------------------------------------------------------

    def _contents(self) -> None:
        done: dict[str, tuple[Array, Array] | None] = {}
        units = sum(len(page.segments) for page in self.pages.values())
        for root in self.roots:
            spaces = open_spaces(root.spaces, self.resources)
            counted: dict[int, tuple[int, int]] = {}
            text_bytes = 0
            whole = True
            digests: dict[str, list[bytes]] = {}
            for shard in root.shards:
                page = self.pages.get(shard.page.name)
                if page is None:
                    whole = False
                    continue
                live_docs, live_entries = [], []
                for ref in page.segments:
                    key = ref.model_dump_json()
                    if key not in done:
                        done[key] = self._segment(ref, root, spaces)
                        self.report("check segments", min(len(done), units), units, "segments")
                    text_bytes += ref.text_bytes
                    if (masks := done[key]) is None:
                        continue
                    segment = self._open(ref)
                    live_docs.append(segment.documents.hashes[masks[0]])
                    live_entries.append(segment.entries.hashes[masks[1]])
                    self._digest(segment, masks[1], digests)
                if len(live_docs) < len(page.segments):
                    whole = False
                    continue
                for wrong in invariants.of_shard(live_docs, live_entries):
                    self._damage(shard.page.name, "page", [root.generation], f"refers to {wrong}")
                counted[shard.shard] = (sum(map(len, live_docs)), sum(map(len, live_entries)))
            if whole:
                for wrong in invariants.of_counts(root, counted, text_bytes):
                    self._damage(root_name(root.generation), "root", [root.generation], wrong)
                self._sources(root, digests)

    def _open(self, ref: SegmentRef) -> Segment:
        if ref.id not in self.segments:
            self.segments[ref.id] = Segment(ref, self.inside, self.cache)
        return self.segments[ref.id]

    def _segment(self, ref: SegmentRef, root: Root, spaces: dict[str, Space]) -> tuple[Array, Array] | None:
        """Check one reference; masks of its live documents and entries, None where it cannot be opened."""
        needed = [ref.files[role] for role in ("docs", "text", "entries")] + [*ref.tombstones]
        if any(file.name in self.bad for file in needed):
            return None
        segment = self._open(ref)
        try:
            documents, entries, dead = segment.documents, segment.entries, Tombstones.read(self.inside, ref)
            checks = [
                ("docs", invariants.of_documents(documents)),
                ("entries", invariants.of_entries(entries)),
                ("docs", invariants.of_reference(ref, segment, dead)),
            ]
            checks += self._deep(ref, segment, root, spaces) if self.deep else []
            for role, wrongs in checks:
                for wrong in wrongs:
                    name = ref.files[role].name
                    self._damage(name, role, self.files[name].generations, f"has {wrong}")
            return invariants.live_rows(segment, ref, dead)
        except (ValueError, IndexError, KeyError, TypeError) as error:  # what its writer never wrote
            self._damage(
                ref.files["docs"].name,
                "docs",
                self.files[ref.files["docs"].name].generations,
                f"cannot be read as FORMAT.md says ({error})",
            )
            return None

    def _deep(self, ref: SegmentRef, segment: Segment, root: Root, spaces: dict[str, Space]) -> list[tuple[str, Iterator[str]]]:
        dead = Tombstones.files(self.inside, ref)
        checks: list[tuple[str, Iterator[str]]] = []
        _, others = invariants.identities(segment.documents)
        if len(others):
            self._note(f"{len(others):,} documents of segment {ref.id} are renditions of other encodings, or not what their hash says")
        for space in spaces.values():
            roles = [role for role in (f"layer/{space.id}", f"stats/{space.id}") if role in ref.files]
            if len(roles) < 2 or any(ref.files[role].name in self.bad for role in roles):
                continue
            if space.problem:
                self._note(f"Space {space.name!r} of generation {root.generation} was not recounted: {space.problem}.")
                continue
            checks.append((roles[0], invariants.of_layer(space, segment)))
            checks.append((roles[1], invariants.of_statistics(space, segment, ref, dead)))
        return checks

    def _digest(self, segment: Segment, live: Array, digests: dict[str, list[bytes]]) -> None:
        entries = segment.entries
        for row in np.flatnonzero(live).tolist():
            source = entries.source_names[entries.sources[row]]
            digests.setdefault(source, []).append(_digest(entries.path(row), entries.hashes[row].tobytes()))

    def _sources(self, root: Root, digests: dict[str, list[bytes]]) -> None:
        for name, source in root.sources.items():
            if source.tree is None or any(file.name in self.bad for file in self._tree_of(source.tree)):
                continue
            rows = (_digest(row.path, bytes.fromhex(row.hash)) for row in tree.rows(self.inside, source.tree) if row.hash)
            for wrong in invariants.of_tree(rows, digests.get(name, [])):
                self._damage(source.tree.name, "tree", [root.generation], f"of source {name!r} disagrees with the segments: {wrong}")

    def _tree_of(self, ref: FileRef) -> Iterator[FileRef]:
        yield ref
        for below in self.trees.get(ref.name, []):
            yield from self._tree_of(below)

    # --- saying so ---------------------------------------------------------------------------------------------------------

    def _damage(self, name: str, kind: str, where: list[int], found: str, whole: bool = True) -> None:
        self.found.damages.append(Damage(name, kind, tuple(where), found, consequence_of(kind), whole))

    def _note(self, note: str) -> None:
        if note not in self.found.notes:
            self.found.notes.append(note)


def _digest(path: str, document: bytes) -> bytes:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape") + b"\0" + document, digest_size=16).digest()


def consequence_of(kind: str) -> str:
    """What does not work without a file of this kind."""
    role, _, space = kind.partition("/")
    return {
        "root": "the generation cannot be opened; if it is the newest, the corpus cannot",
        "page": "the shard cannot be opened",
        "docs": "the shard cannot be opened",
        "entries": "the shard cannot be opened",
        "text": "documents of the shard are shown wrong, or it cannot be opened",
        "tombstones": "the shard cannot be opened",
        "meta": "metadata of the segment's entries is neither shown nor filtered by",
        "zones": "the segment cannot be filtered by metadata",
        "layer": f"space {space} is not searched on the shard",
        "stats": f"space {space} is not asked in the generation",
        "tree": "the source cannot be compared: the next index run fails, history is incomplete",
        "encodings": "what it held is encoded again when it is needed; images are kept anew when their files are read again",
        "nulls": "the generation cannot be opened: scores mean nothing without null models",
    }.get(role, "unknown")
