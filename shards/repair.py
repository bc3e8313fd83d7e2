"""Mending what `shards/verify.py` found damaged, and nothing else.

First files are put back as they were (`shards/restoring.py`): that heals every generation at once. What cannot be put back is made
anew for the newest generation, which is published: a shard's damaged segments from the texts that are left (`shards/salvage.py`) and
what the trees say lay there, a tree from the segments, null models by fitting. Documents whose text is lost everywhere are taken
out and named. Older generations keep what cannot be put back damaged; `sondage gc` takes them away.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from shards import manifest, rewriting, tree
from shards.cache import FileCache
from shards.corpus import Source
from shards.delta import Living, ShardPlan, Specs, segment_tasks
from shards.documents import Documents
from shards.drafts import specs_of
from shards.errors import Corrupt, NotFound, StoreError
from shards.generation import Generation, open_spaces
from shards.identity import bucket_of
from shards.layers.contract import Resources
from shards.manifest import FileRef, Root, SegmentRef, ShardPage, SourceRef, corpus_store
from shards.plan import glob_regex
from shards.references import References, generations, manifest_files, root_name
from shards.restoring import Restorer
from shards.salvage import Salvage
from shards.segment import Segment, unpack_entry
from shards.staging import Staging
from shards.store import Store
from shards.tombstones import bury
from shards.tree import TreeRow
from shards.types import Entry
from shards.verify import Verified
from shards.worker import sorted_hashes
from shards.writing import Calibrate, Executor, Report

logger = logging.getLogger(__name__)

PACK_BYTES = 64 << 20  # of texts written to one staging file


@dataclass(frozen=True, slots=True)
class Lost:
    """A document that is nowhere any more, and where the index said it lay."""

    hash: str
    places: tuple[tuple[str, str], ...]  # (source, path)


@dataclass(slots=True)
class Repaired:
    """What was done. restored: files put back as they were. rebuilt: what was made anew, in words. reread: paths read from their
    source again. generation: that was published, None if none had to be. stepped_over: generations whose roots could not be read.
    """

    restored: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    reread: list[str] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    stepped_over: list[int] = field(default_factory=list)
    generation: int | None = None


@dataclass
class Tools:
    """What a repair works with. workers: where segments are built and sources read, given the spaces. calibrate: fits null models;
    None leaves the corpus without where they are damaged. source_of: how to read a source again. hold: takes the writer's lease.
    """

    cache: FileCache
    resources: Resources
    workers: Callable[[Store, Specs], Executor]
    clock: Callable[[], float]
    hold: rewriting.Hold
    calibrate: Calibrate | None = None
    source_of: Callable[[str, SourceRef], Source | None] = lambda _name, _ref: None
    report: Report = lambda *_: None


def repair(store: Store, corpus: str, verified: Verified, tools: Tools) -> Repaired:
    """Mend what was found. store: the store's root. Publishes at most one generation beside one for each unreadable newest root.

    Raises AlreadyExists where another generation was published meanwhile: verify again. StoreError where nothing is readable.
    """
    outcome = Repaired()
    inside = corpus_store(store, corpus)
    for damage in verified.damages:
        if damage.kind == "encodings":
            inside.delete(damage.name)
            outcome.removed.append(damage.name)
    _step_over(store, corpus, verified, outcome)
    work = _Repair(store, corpus, verified, tools, outcome)
    try:
        work.run()
    finally:
        work.close()
    return outcome


def _step_over(store: Store, corpus: str, verified: Verified, outcome: Repaired) -> None:
    """Take away roots that cannot be read; where it is the newest, publish the newest readable one after it first.

    Without a lease: whoever holds it would first have to read the newest root. The exclusive create decides.
    """
    inside = corpus_store(store, corpus)
    damaged = [number for damage in verified.damages if damage.kind == "root" for number in damage.generations]
    unreadable = [number for number in sorted(set(damaged)) if not _is_readable(store, corpus, number)]
    if not unreadable:
        return
    readable = [number for number in generations(store, corpus) if number not in unreadable]
    if not readable:
        raise StoreError(f"No root of corpus {corpus!r} in {store.url} can be read. Restore one from a copy, or index again.")
    newest = generations(store, corpus)[-1]
    if newest in unreadable:
        root = manifest.read_root(store, corpus, readable[-1])
        again = root.model_copy(update={"generation": newest + 1, "parent": root.generation})
        manifest.publish(store, again)
        outcome.generation = newest + 1
        outcome.rebuilt.append(
            f"generation {newest + 1} says what {root.generation} says; what {newest} changed is read by the next index run"
        )
    for number in unreadable:
        inside.delete(root_name(number))
        outcome.removed.append(root_name(number))
        outcome.stepped_over.append(number)


def _is_readable(store: Store, corpus: str, number: int) -> bool:
    try:
        manifest.read_root(store, corpus, number)
    except (Corrupt, NotFound):
        return False
    return True


class _Repair:
    def __init__(self, store: Store, corpus: str, verified: Verified, tools: Tools, outcome: Repaired):
        self.store, self.tools, self.outcome = store, tools, outcome
        self.inside = corpus_store(store, corpus)
        self.references = References(store, corpus)
        self.bad = {damage.name for damage in verified.damages if damage.kind not in ("root", "encodings") and not damage.whole}
        self.roots = [self.references.root(number) for number in generations(store, corpus)]
        self.root = self.roots[-1]
        # Files of the newest generation that are as they were written, but say what cannot be.
        self.mistaken = {d.name for d in verified.damages if d.whole and self.root.generation in d.generations}
        self.staging = Staging(self.inside, tools.clock())
        self._workers: Executor | None = None
        self.pages: dict[str, ShardPage] = {}  # readable ones, by file
        self.files: dict[str, FileRef] = {}
        self.uses: dict[str, list[tuple[SegmentRef, str]]] = {}
        for root in self.roots:
            self._note(root)
        segments = list({ref.model_dump_json(): ref for page in self.pages.values() for ref in page.segments}.values())
        sources = {name: ref for root in self.roots for name, ref in root.sources.items()}
        self.salvage = Salvage(self.inside, segments, self.bad, sources, tools.source_of, self.workers, self.staging)

    def _note(self, root: Root) -> None:
        for kind, file in manifest_files(root):
            self.files[file.name] = file
            if kind == "page" and file.name not in self.bad and file.name not in self.pages:
                page = self.pages[file.name] = manifest.read_page(self.inside, file, ShardPage)
                for ref in page.segments:
                    for role, part in manifest_files(ref):
                        self.files[part.name] = part
                        self.uses.setdefault(part.name, []).append((ref, role))
            elif kind == "tree":
                self.files |= {below.name: below for below in self._tree_pages(file)}

    def _tree_pages(self, ref: FileRef) -> Iterator[FileRef]:
        yield ref
        if ref.name not in self.bad:
            for below in tree.references(self.inside.read(ref.name), ref.name, self.inside):
                yield from self._tree_pages(below)

    def workers(self) -> Executor:
        """Where spaces of the newest generation are built."""
        if self._workers is None:
            self._workers = self.tools.workers(self.inside, specs_of(self.root))
        return self._workers

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()

    def run(self) -> None:
        spaces = {space.id: space for root in self.roots for space in open_spaces(root.spaces, self.tools.resources).values()}
        restorer = Restorer(
            self.inside, self.tools.cache, self.files, self.bad, self.uses, spaces, self.salvage.find, self._entries_of
        )  # fmt: skip
        self.outcome.restored = restorer.run()
        root = self._rebuilt()
        self.outcome.reread = sorted(set(self.salvage.reread))
        if root is not None:
            root = rewriting.publish(self.store, self.root, root, self.tools.hold, "repair", damaged=True)
            self.outcome.generation = root.generation
        self.staging.sweep()

    def _entries_of(self, keys: Iterable[bytes]) -> dict[bytes, list[Entry]]:
        """Where documents lie, as the trees of all kept generations say."""
        wanted, found = set(keys), {}
        for root in self.roots[::-1]:
            for name in root.sources:
                for row in self._rows(root, name):
                    if row.hash and (key := bytes.fromhex(row.hash)) in wanted:
                        found.setdefault(key, []).append(tree.entry_of(name, row))
            if len(found) == len(wanted):
                break
        return found

    def _rows(self, root: Root, source: str) -> Iterator[TreeRow]:
        """What is left of the rows of a source's tree."""
        top = root.sources[source].tree
        for ref in self._tree_pages(top) if top else ():
            if ref.name not in self.bad and not tree.references(self.inside.read(ref.name), ref.name, self.inside):
                yield from tree.rows(self.inside, ref)

    # --- the newest generation ---------------------------------------------------------------------------------------------

    def _rebuilt(self) -> Root | None:
        """The next root, where the newest generation is damaged still; not yet published."""
        root = self.root
        pages: list[ShardPage] = []
        changed = False
        lost: dict[bytes, list[Entry]] = {}
        for shard in root.shards:
            page = self.pages.get(shard.page.name)
            if page is None:
                page = ShardPage(shard=shard.shard, buckets=shard.buckets, segments=())
                broken: list[SegmentRef] | None = None  # whatever lay there
            else:
                broken = [ref for ref in page.segments if any(file.name in self.bad | self.mistaken for _, file in manifest_files(ref))]
                if shard.page.name in self.mistaken:  # whole, but its segments contradict one another
                    broken = None
                    page = page.model_copy(update={"segments": ()})
            if broken == []:
                pages.append(page)
                continue
            changed = True
            good = [ref for ref in page.segments if not broken or ref not in broken]
            pages.append(self._shard(page, good, broken, lost))
            what = "all of it" if broken is None else f"{len(broken)} of its segments"
            self.outcome.rebuilt.append(f"shard {shard.shard}, {what}")
        self.outcome.lost = [Lost(key.hex(), tuple((e.source, e.path) for e in entries)) for key, entries in sorted(lost.items())]
        sources = {}
        for name, ref in root.sources.items():
            sources[name] = self._source(name, ref, pages, [e.path for of in lost.values() for e in of if e.source == name])
            changed |= sources[name] != ref
        nulls_lost = root.nulls is not None and root.nulls.name in self.bad
        counts_wrong = root_name(root.generation) in self.mistaken
        if not changed and not nulls_lost and not counts_wrong:
            return None
        following = rewriting.successor(self.inside, root, pages, sources)
        if nulls_lost:
            following = rewriting.fitted(self.store, self.tools.cache, self.tools.resources, following, self.tools.calibrate)
            self.outcome.rebuilt.append("null models, fitted anew" if following.nulls else "no null models: run the index job to fit them")
        return following

    def _shard(self, page: ShardPage, good: list[SegmentRef], broken: list[SegmentRef] | None, lost: dict[bytes, list[Entry]]) -> ShardPage:
        """A shard with its damaged segments made anew. broken: None where even what they were is lost."""
        living = [Living(Segment(ref, self.inside, self.tools.cache), ref, self.inside) for ref in good]
        kept = [unpack_entry(view.segment.entries, row) for view in living for row in np.flatnonzero(view.live_entries).tolist()]
        entries = self._missing_entries(page, broken, kept)
        there = {key.tobytes() for view in living for key in view.segment.hashes[view.live_docs]}
        wanted: dict[bytes, list[Entry]] = {}
        for entry in [*kept, *entries]:
            if entry.hash not in there:
                wanted.setdefault(entry.hash, []).append(entry)
        texts = self.salvage.find(wanted)
        gone = {key: of_key for key, of_key in wanted.items() if key not in texts}
        lost |= gone
        refs = list(good)
        if gone:
            generation = Generation.of_root(self.root, self.store, self.tools.cache, self.tools.resources)
            refs = [self._without(generation, ref, view, gone) for ref, view in zip(good, living, strict=True)]
        entries = [entry for entry in entries if entry.hash not in gone]
        packs = self._packs(texts)
        scopes = {name: [glob_regex(glob) for glob in spec.scope] for name, (spec, _) in specs_of(self.root).items() if spec.scope}
        in_scope = {
            name: sorted_hashes([e.hash for e in [*kept, *entries] if any(glob.fullmatch(e.path) for glob in globs)])
            for name, globs in scopes.items()
        }
        plan = ShardPlan(refs, sorted(texts), entries, 0, in_scope)
        built = [result.ref for result in self.workers().run("build", segment_tasks(plan, page, packs, ())) if result.ref]
        return page.model_copy(update={"segments": (*refs, *sorted(built, key=lambda ref: ref.id))})

    def _missing_entries(self, page: ShardPage, broken: list[SegmentRef] | None, kept: list[Entry]) -> list[Entry]:
        """The live entries of damaged segments: from their own files where these are whole, else what the trees say lies there."""
        found: dict[tuple[str, str], Entry] = {}
        by_tree = broken is None
        for ref in broken or ():
            needed = [file for role, file in manifest_files(ref) if role in ("docs", "entries", "meta", "tombstones")]
            if any(file.name in self.bad | self.mistaken for file in needed if file.size):
                by_tree = True
                continue
            view = Living(Segment(ref, self.inside, self.tools.cache), ref, self.inside)
            for row in np.flatnonzero(view.live_entries).tolist():
                entry = unpack_entry(view.segment.entries, row)
                found[entry.source, entry.path] = entry
        if by_tree:
            known = {(entry.source, entry.path) for entry in kept} | set(found)
            low, high = page.buckets
            for name in self.root.sources:
                for row in self._rows(self.root, name):
                    if row.hash and (name, row.path) not in known and low <= bucket_of(bytes.fromhex(row.hash)) < high:
                        found[name, row.path] = tree.entry_of(name, row)
        return list(found.values())

    def _without(self, generation: Generation, ref: SegmentRef, view: Living, gone: dict[bytes, list[Entry]]) -> SegmentRef:
        """A whole segment without its entries of documents that are lost."""
        hashes = view.segment.entries.hashes
        rows = [row for row in np.flatnonzero(view.live_entries).tolist() if hashes[row].tobytes() in gone]
        return bury(self.inside, generation, ref, np.zeros(0, np.int32), np.array(rows, np.int32))

    def _packs(self, texts: dict[bytes, tuple[bytes, bytes, str]]) -> dict[bytes, str]:
        """Staging files of these documents: hash -> name."""
        packs: dict[bytes, str] = {}
        batch: list[tuple[bytes, bytes, str]] = []
        for i, item in enumerate(texts.values()):
            batch.append(item)
            if sum(len(text) for _, text, _ in batch) >= PACK_BYTES or i == len(texts) - 1:
                name = self.staging.keep(Documents.pack(batch))
                packs |= {key: name for key, _, _ in batch}
                batch = []
        return packs

    def _source(self, name: str, ref: SourceRef, pages: list[ShardPage], lost: list[str]) -> SourceRef:
        """A source with its tree made anew where that is damaged, and without the paths of lost documents."""
        if ref.tree is None:
            return ref
        pages_of_tree = {page.name for page in self._tree_pages(ref.tree)}
        if not pages_of_tree & self.bad and ref.tree.name not in self.mistaken:
            if not lost:
                return ref
            left = tree.edit(self.inside, ref.tree, deletes=lost)
            return ref.model_copy(update={"tree": left, "n_entries": ref.n_entries - len(set(lost))})
        entries: dict[str, Entry] = {}
        for page in pages:
            for part in page.segments:
                view = Living(Segment(part, self.inside, self.tools.cache), part, self.inside)
                for row in np.flatnonzero(view.live_entries).tolist():
                    entry = unpack_entry(view.segment.entries, row)
                    if entry.source == name:
                        entries[entry.path] = entry
        rows = {row.path: row for row in self._rows(self.root, name) if not row.hash or row.path in entries}
        for path, entry in entries.items():
            if path not in rows or rows[path].hash != entry.hash.hex():  # without an etag: the next run looks at such a file again
                rows[path] = TreeRow(path, entry.hash.hex(), entry.size_bytes, entry.mtime_ns, "", dict(entry.metadata))
        self.outcome.rebuilt.append(f"the tree of source {name!r}")
        return ref.model_copy(update={"tree": tree.build(self.inside, rows.values()), "n_entries": len(entries)})
