"""Bringing a corpus up to date with its source: list, compare, read what changed, build segments for that alone, publish.

The driver decides and moves names; workers read and write. Nothing is visible until `publish` creates the next root manifest,
and everything before it is named by content or by task, so a run that dies is taken up by the next one.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np

from shards import manifest, tree
from shards.cache import FileCache
from shards.corpus import Listed, Source, list_source
from shards.delta import Change, ShardDelta, by_shard, choose_merges, segment_tasks
from shards.errors import AlreadyExists, BadSpec, SourceError, StoreError
from shards.generation import Generation, spec_of
from shards.identity import N_BUCKETS, shard_ranges
from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Resources
from shards.manifest import FORMAT_VERSION, FileRef, Root, SegmentRef, ShardPage, SourceRef, SpaceRef
from shards.reshard import reshard
from shards.store import Store
from shards.tree import TreeRow
from shards.types import Entry
from shards.worker import Built, SegmentTask, Staged, StageTask

logger = logging.getLogger(__name__)

CHUNK_FILES, CHUNK_BYTES = 512, 8 << 20  # a staging task: about a second of work, so progress is visible and a retry cheap
RACY_NS = 2_000_000_000  # a file changed this shortly before it was read may change again within its clock's tick
SHRINK = 0.5  # a listing that lost more than this share of its files deletes nothing unless told to


class Executor(Protocol):
    """Runs worker methods somewhere. Results come as they finish."""

    def run(self, method: str, tasks: Sequence[Any]) -> Iterator[Any]: ...


Report = Callable[[str, int, int, str], None]  # step, done, total, unit
Calibrate = Callable[[Generation], bytes | None]  # null models of an unpublished generation, as JSON bytes


@dataclass(frozen=True, slots=True)
class Options:
    """One run of the index job.

    specs: spaces wanted; empty keeps those of the corpus. n_shards: None keeps (1 for a new corpus).
    """

    corpus: str
    source: Source
    specs: tuple[SpaceSpec, ...] = ()
    n_shards: int | None = None
    max_file_bytes: int = 64 << 20
    allow_shrink: bool = False
    refit: float = 0.1  # null models are fitted anew when the number of documents has changed by this share


@dataclass(slots=True)
class Outcome:
    """What a run did. Counts are of files but for `encoded`, `reused` (documents per space)."""

    generation: int = 0
    changed: bool = False
    listed: int = 0
    hashed: int = 0
    added: int = 0
    removed: int = 0
    renamed: int = 0
    documents_added: int = 0
    documents_removed: int = 0
    encoded: dict[str, int] = field(default_factory=dict)
    reused: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Updater:
    """Runs one update. store: the store's root; executor: where workers run."""

    def __init__(
        self,
        store: Store,
        cache: FileCache,
        resources: Resources,
        executor: Callable[[Store, dict[str, tuple[SpaceSpec, str]]], Executor],
        calibrate: Calibrate | None = None,
        report: Report = lambda *_: None,
    ):
        self.root_store, self.cache, self.resources = store, cache, resources
        self.make_executor, self.calibrate, self.report = executor, calibrate, report

    def run(self, options: Options) -> Outcome:
        """Bring the corpus up to date. Raises SourceError, BadSpec, StoreError; nothing is published then."""
        self.store = manifest.corpus_store(self.root_store, options.corpus)
        for _ in range(10):
            outcome = Outcome()
            try:
                return self._attempt(options, outcome)
            except AlreadyExists:
                # Another run published first. What was read and built is in the store under the same names: start over on
                # the new generation, and only the part that it does not have yet is done.
                logger.info("corpus=%s event=rebase", options.corpus)
        raise StoreError(f"Corpus {options.corpus!r}: ten other runs published first. Run the job again when they are done.")

    # --- one attempt -------------------------------------------------------------------------------------------------------

    def _attempt(self, options: Options, outcome: Outcome) -> Outcome:
        with _timed(outcome, "list"):
            listing = list_source(options.source)
            outcome.listed = len(listing.files)
            outcome.skipped.update({k: v for k, v in listing.counters.items() if v})
            outcome.failed.update(dict(listing.problems))
        parent = self._parent(options.corpus)
        specs = self._specs(options, parent)
        old_source = parent.root.sources.get(options.source.name) if parent else None
        if parent is None and not listing.files:
            raise SourceError(
                f"Source {options.source.url} lists no file that may be indexed ({outcome.skipped or 'it is empty'}). "
                "Check --source, --include and --exclude."
            )
        with _timed(outcome, "compare"):
            old_tree = old_source.tree if old_source else None
            suspects, gone = self._compare(listing, old_tree)
        self._guard_shrink(options, outcome, old_source, gone)
        ranges = self._ranges(options, parent)
        executor = None
        staged: list[Staged] = []
        if suspects:
            executor = self.make_executor(self.store, specs)
            with _timed(outcome, "read"):
                staged = self._stage(executor, options, suspects, ranges, outcome)
        with _timed(outcome, "plan"):
            change = self._change(options, parent, old_tree, suspects, gone, staged, outcome)
        same_spaces = parent is not None and {n: i for n, (_, i) in specs.items()} == {
            s.name: s.space_id for s in parent.root.spaces
        }
        same_shards = parent is not None and tuple(s.buckets for s in parent.root.shards) == tuple(ranges)
        if parent is not None and change.empty and same_spaces and same_shards:
            outcome.generation = parent.root.generation
            return outcome
        with _timed(outcome, "build"):
            executor = executor or self.make_executor(self.store, specs)
            pages = self._pages(options, parent, specs, ranges, change, staged, executor, outcome)
        with _timed(outcome, "tree"):
            new_tree = self._tree(old_tree, change)
        root = self._root(options, parent, specs, pages, new_tree, change, old_source)
        if self.calibrate is not None and self._refit_due(options, parent, root, same_spaces):
            with _timed(outcome, "null models"):
                root = self._fit(root)
        with _timed(outcome, "publish"):
            manifest.publish(self.root_store, root)
            self._sweep()
        outcome.generation, outcome.changed = root.generation, True
        return outcome

    def _parent(self, corpus: str) -> Generation | None:
        number = manifest.latest_generation(self.root_store, corpus)
        return None if number is None else Generation.open(self.root_store, self.cache, corpus, number, self.resources)

    def _specs(self, options: Options, parent: Generation | None) -> dict[str, tuple[SpaceSpec, str]]:
        """Spaces to build, by name, with their ids. Asked-for ones are added to, or replace, those the corpus has."""
        if not options.specs and parent is None:
            raise BadSpec("A new corpus needs layers. Give --layers, e.g. names,text,bm25,static.")
        wanted = {spec_of(ref).name: spec_of(ref) for ref in parent.root.spaces} if parent else {}
        known = {ref.name: ref.space_id for ref in parent.root.spaces} if parent else {}
        result: dict[str, tuple[SpaceSpec, str]] = {}
        for spec in options.specs:
            if sum(other.name == spec.name for other in options.specs) > 1:
                raise BadSpec(f"Two spaces are called {spec.name!r}. Name one: other={spec.layer}:….")
            wanted[spec.name] = spec
        for name, spec in wanted.items():
            asked = any(spec is other for other in options.specs)
            result[name] = (spec, space_id(spec, create(spec, self.resources)) if asked else known[name])
        return result

    def _compare(self, listing: Any, old_tree: FileRef | None) -> tuple[list[Listed], list[TreeRow]]:
        """Files that are new or may have changed, and rows whose file is gone: one merge over two sorted lists."""
        suspects: list[Listed] = []
        old = {row.path: row for row in tree.rows(self.store, old_tree)} if old_tree else {}
        for file in listing.files:
            row = old.pop(file.path, None)
            if row is None or (row.size_bytes, row.mtime_ns, row.etag) != (file.size_bytes, file.mtime_ns, file.etag):
                suspects.append(file)
        # What could not be listed is not gone.
        return suspects, [row for row in old.values() if not row.path.startswith(listing.incomplete_prefixes)]

    def _guard_shrink(self, options: Options, outcome: Outcome, old: SourceRef | None, gone: list[TreeRow]) -> None:
        if old is None or options.allow_shrink or len(gone) < 20 or len(gone) <= SHRINK * old.n_entries:
            return
        outcome.notes.append(
            f"{len(gone)} of {old.n_entries} files are gone from the listing; nothing was deleted. "
            "If that is right, run again with --allow-shrink."
        )
        gone.clear()

    def _ranges(self, options: Options, parent: Generation | None) -> list[tuple[int, int]]:
        if options.n_shards is None and parent is not None:
            return [shard.buckets for shard in parent.root.shards]
        try:
            return shard_ranges(options.n_shards or 1)
        except ValueError as error:
            raise BadSpec(f"--shards: {error}.") from None

    # --- reading -----------------------------------------------------------------------------------------------------------

    def _stage(
        self, executor: Executor, options: Options, suspects: list[Listed], ranges: list[tuple[int, int]], outcome: Outcome
    ) -> list[Staged]:
        edges = tuple(low for low, _ in ranges) + (N_BUCKETS,)
        tasks = list(_stage_tasks(options, suspects, edges))
        total, done = sum(min(f.size_bytes, options.max_file_bytes) for f in suspects), 0
        staged = []
        self.report("read", 0, total, "bytes")
        for result in executor.run("stage", tasks):
            staged.append(result)
            done += result.size_bytes
            outcome.hashed += len(result.hashes)
            outcome.size_bytes += result.size_bytes
            outcome.failed.update(result.failed)
            for reason in result.skipped.values():
                outcome.skipped[reason] = outcome.skipped.get(reason, 0) + 1
            self.report("read", min(done, total), total, "bytes")
        return staged

    def _change(
        self,
        options: Options,
        parent: Generation | None,
        old_tree: FileRef | None,
        suspects: list[Listed],
        gone: list[TreeRow],
        staged: list[Staged],
        outcome: Outcome,
    ) -> Change:
        """What the run changes: entries to add and to remove, rows of the tree to write and to delete."""
        hashes = {path: key for result in staged for path, key in result.hashes.items()}
        skipped = {path for result in staged for path in result.skipped}
        failed = {path for result in staged for path in result.failed}
        change = Change()
        now = time.time_ns()
        name = options.source.name
        for row in gone:
            change.deletes.append(row.path)
            if row.hash:
                change.removed.append(Entry(name, row.path, bytes.fromhex(row.hash), row.size_bytes, row.mtime_ns))
        for file in suspects:
            if file.path in failed:
                continue  # keeps what was known of it; the next run tries again
            old = tree.get(self.store, old_tree, file.path) if old_tree else None
            key = hashes.get(file.path)
            racy = file.mtime_ns > now - RACY_NS and not file.etag
            etag = "racy" if racy else file.etag
            hash_hex = key.hex() if key is not None and file.path not in skipped else ""
            row = TreeRow(file.path, hash_hex, file.size_bytes, file.mtime_ns, etag, {})
            if old is not None and (old.hash, old.size_bytes, old.mtime_ns) == (row.hash, row.size_bytes, row.mtime_ns):
                continue  # looked at again only because of its clock: nothing changed
            change.upserts.append(row)
            if old is not None and old.hash:
                change.removed.append(Entry(name, file.path, bytes.fromhex(old.hash), old.size_bytes, old.mtime_ns))
            if hash_hex:
                change.added.append(Entry(name, file.path, key, file.size_bytes, file.mtime_ns, etag))
        gone_hashes = {entry.hash for entry in change.removed}
        outcome.renamed = sum(entry.hash in gone_hashes for entry in change.added)
        outcome.added, outcome.removed = len(change.added), len(change.removed)
        return change

    # --- building ----------------------------------------------------------------------------------------------------------

    def _pages(
        self,
        options: Options,
        parent: Generation | None,
        specs: dict[str, tuple[SpaceSpec, str]],
        ranges: list[tuple[int, int]],
        change: Change,
        staged: list[Staged],
        executor: Executor,
        outcome: Outcome,
    ) -> list[ShardPage]:
        """The manifest page of every shard of the new generation; untouched ones are the parent's."""
        pages = reshard(self.store, parent, ranges)
        wanted_ids = {space for _, space in specs.values()}
        packs: dict[int, list[str]] = {}
        for result in staged:
            for shard, pack in result.packs.items():
                packs.setdefault(shard, []).append(pack)
        edges = np.array([low for low, _ in ranges] + [N_BUCKETS])
        added, removed = by_shard(change.added, edges), by_shard(change.removed, edges)
        tasks: list[SegmentTask] = []
        for number, page in enumerate(pages):
            stale = [r for r in page.segments if set(r.spaces.values()) != wanted_ids]
            if number not in added and number not in removed and not stale:
                continue
            plan = ShardDelta(self.store, page, specs, parent).decide(added.get(number, []), removed.get(number, []))
            outcome.documents_added += len(plan.new_documents)
            outcome.documents_removed += plan.n_dead_documents
            kept, merged = choose_merges(plan.refs, bool(plan.new_documents or plan.new_entries), wanted_ids)
            if plan.new_documents or plan.new_entries or merged:
                tasks += segment_tasks(plan, page, tuple(packs.get(number, ())) + plan.packs, merged)
            pages[number] = ShardPage(shard=number, buckets=ranges[number], segments=tuple(kept))
        done, total = 0, max(1, len(tasks))
        self.report("build", 0, total, "segments")
        built: dict[int, list[SegmentRef]] = {}
        for result in executor.run("build", tasks):
            self._count(outcome, result)
            if result.ref is not None:
                built.setdefault(result.shard, []).append(result.ref)
            done += 1
            self.report("build", done, total, "segments")
        for number, refs in built.items():
            refs.sort(key=lambda ref: ref.id)
            pages[number] = pages[number].model_copy(update={"segments": pages[number].segments + tuple(refs)})
        return pages

    def _count(self, outcome: Outcome, result: Built) -> None:
        for name in result.encoded:
            outcome.encoded[name] = outcome.encoded.get(name, 0) + result.encoded[name]
            outcome.reused[name] = outcome.reused.get(name, 0) + result.reused[name]
        for step, seconds in result.seconds.items():
            key = f"build: {step}"
            outcome.seconds[key] = outcome.seconds.get(key, 0.0) + seconds

    # --- publishing --------------------------------------------------------------------------------------------------------

    def _tree(self, old: FileRef | None, change: Change) -> FileRef | None:
        if old is None:
            return tree.build(self.store, sorted(change.upserts, key=lambda row: row.path.encode("utf-8", "surrogateescape")))
        return tree.edit(self.store, old, change.upserts, change.deletes)

    def _root(
        self,
        options: Options,
        parent: Generation | None,
        specs: dict[str, tuple[SpaceSpec, str]],
        pages: list[ShardPage],
        new_tree: FileRef | None,
        change: Change,
        old_source: SourceRef | None,
    ) -> Root:
        shards = []
        for page in pages:
            n_docs = sum(r.n_docs - r.n_dead_docs for r in page.segments)
            n_entries = sum(r.n_entries - r.n_dead_entries for r in page.segments)
            ref = manifest.write_page(self.store, page)
            shards.append(manifest.ShardRef(shard=page.shard, buckets=page.buckets, page=ref, n_docs=n_docs, n_entries=n_entries))
        spaces = []
        for name, (spec, space) in sorted(specs.items()):
            layer = create(spec, self.resources)
            spaces.append(
                SpaceRef(
                    name=name, layer=spec.layer, params=layer.params.model_dump(mode="json"), scope=spec.scope, space_id=space,
                    origin=layer.origin, granularity=layer.granularity, null=layer.null,
                )  # fmt: skip
            )
        before = old_source.n_entries if old_source else 0
        sources = dict(parent.root.sources) if parent else {}
        sources[options.source.name] = SourceRef(
            url=options.source.url,
            include=options.source.include,
            exclude=options.source.exclude,
            tree=new_tree,
            n_entries=before + len(change.added) - len(change.removed),
        )
        return Root(
            format=FORMAT_VERSION,
            corpus=options.corpus,
            generation=parent.root.generation + 1 if parent else 1,
            parent=parent.root.generation if parent else None,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            shards=tuple(shards),
            spaces=tuple(spaces),
            sources=sources,
            nulls=parent.root.nulls if parent else None,
            null_version=parent.root.null_version if parent else 0,
            n_docs=sum(s.n_docs for s in shards),
            n_entries=sum(s.n_entries for s in shards),
            text_bytes=sum(r.text_bytes for p in pages for r in p.segments),
            counters={"docs_at_fit": parent.root.counters.get("docs_at_fit", 0)} if parent else {},
        )

    def _refit_due(self, options: Options, parent: Generation | None, root: Root, same_spaces: bool) -> bool:
        if parent is None or root.nulls is None or not same_spaces:
            return True
        at_fit = root.counters.get("docs_at_fit", 0)
        return abs(root.n_docs - at_fit) > options.refit * at_fit

    def _fit(self, root: Root) -> Root:
        """Fit null models on the generation about to be published, and name them in its root."""
        opened = Generation.of_root(root, self.root_store, self.cache, self.resources)
        data = self.calibrate(opened)
        if data is None:
            return root
        file = FileRef.of(f"nulls/{hashlib.sha256(data).hexdigest()[:24]}.json", data)
        self.store.write(file.name, data)
        return root.model_copy(
            update={
                "nulls": file,
                "null_version": root.null_version + 1,
                "counters": {**root.counters, "docs_at_fit": root.n_docs},
            }
        )

    def _sweep(self) -> None:
        """Drop staging files of finished work; a failure to do so only wastes space."""
        for name in self.store.list("staging/"):
            self.store.delete(name)


def _stage_tasks(options: Options, files: list[Listed], edges: tuple[int, ...]) -> Iterator[StageTask]:
    chunk: list[Listed] = []
    size = 0
    for i, file in enumerate(files):
        chunk.append(file)
        size += file.size_bytes
        if len(chunk) == CHUNK_FILES or size >= CHUNK_BYTES or i == len(files) - 1:
            identity = json.dumps([options.source.url, edges, options.max_file_bytes, [list(f) for f in chunk]])
            name = f"staging/{hashlib.sha256(identity.encode()).hexdigest()[:24]}"
            yield StageTask(name, options.source, tuple(chunk), edges, options.max_file_bytes)
            chunk, size = [], 0


class _timed:
    """Adds the seconds of a block to an outcome."""

    def __init__(self, outcome: Outcome, step: str):
        self.outcome, self.step = outcome, step

    def __enter__(self) -> None:
        self.begun = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.outcome.seconds[self.step] = self.outcome.seconds.get(self.step, 0.0) + time.monotonic() - self.begun

