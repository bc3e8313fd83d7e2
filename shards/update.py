"""Bringing a corpus up to date with its source: list, compare, read what changed, build segments for that alone, publish.

The driver decides and moves names; workers read and write. Nothing is visible until `publish` creates the next root manifest,
and everything before it is named by content or by task, so a run that dies is taken up by the next one.
"""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np

from shards import manifest, tree
from shards.cache import FileCache
from shards.comparison import change_of, compare, n_moved
from shards.corpus import Listed, Listing, Source, list_source
from shards.delta import Change, ShardDelta, by_shard, choose_merges, segment_tasks
from shards.encodings import PackedEncodings
from shards.errors import AlreadyExists, BadSpec, NotFound, SourceError, StoreError
from shards.generation import Generation, spec_of
from shards.identity import N_BUCKETS, shard_ranges
from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Resources
from shards.manifest import FORMAT_VERSION, FileRef, Root, SegmentRef, ShardPage, SourceRef, SpaceRef
from shards.reshard import reshard
from shards.staging import Staging
from shards.store import Store
from shards.tree import TreeRow
from shards.worker import Built, SegmentTask, Staged

logger = logging.getLogger(__name__)

SHRINK = 0.5  # a listing that lost more than this share of its files deletes nothing unless told to
ATTEMPTS = 10  # each one but the last met another run's publication



class Executor(Protocol):
    """Runs worker methods somewhere. Results come as they finish."""

    def run(self, method: str, tasks: Sequence[Any]) -> Iterator[Any]: ...

    def close(self) -> None: ...


Report = Callable[[str, int, int, str], None]  # step, done, total, unit
Calibrate = Callable[[Generation], bytes | None]  # null models of an unpublished generation, as the bytes of their file
NULLS_SUFFIX = ".2.safetensors"  # 2: their format, `shards.nulls.FORMAT`


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
    """What a run did. Counts are of files but for `encoded`, `reused` (documents per space).

    hashed: read in this run; resumed: not read, because a run that was cut off had done so. failed: what could not be read, with
    the reason; it stays in the index as it was, and the next run tries again.
    """

    generation: int = 0
    changed: bool = False
    listed: int = 0
    hashed: int = 0
    resumed: int = 0
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
    """Runs one update. store: the store's root; executor: where workers run; clock: the time of day, in seconds."""

    def __init__(
        self,
        store: Store,
        cache: FileCache,
        resources: Resources,
        executor: Callable[[Store, dict[str, tuple[SpaceSpec, str]]], Executor],
        calibrate: Calibrate | None = None,
        report: Report = lambda *_: None,
        clock: Callable[[], float] = time.time,
    ):
        self.root_store, self.cache, self.resources = store, cache, resources
        self.make_executor, self.calibrate, self.report, self.clock = executor, calibrate, report, clock

    def run(self, options: Options) -> Outcome:
        """Bring the corpus up to date. Raises SourceError, BadSpec, StoreError, NotFound; nothing is published then."""
        self.store = manifest.corpus_store(self.root_store, options.corpus)
        self.staging = Staging(self.store, self.clock())
        self._executor: tuple[Any, Executor] | None = None
        try:
            n_missing = 0
            for _ in range(ATTEMPTS):
                outcome = Outcome()
                try:
                    self._attempt(options, outcome)
                except AlreadyExists:
                    # Another run published first. What was read and encoded is in the store under the same names: start over
                    # on the new generation, and only the part that it does not have yet is done.
                    logger.info("corpus=%s event=rebase", options.corpus)
                    continue
                except NotFound as error:
                    # Another run that shares our staging files, or joined packs of encodings, tidied up after it published:
                    # what it took away is read again, if it is still news at all. Thrice is no coincidence: it is lost.
                    n_missing += 1
                    if n_missing == 3:
                        raise
                    logger.info("corpus=%s event=retry reason=%s", options.corpus, error)
                    continue
                self._tidy(outcome)
                return outcome
        finally:
            if self._executor is not None:
                self._executor[1].close()
        raise StoreError(f"Corpus {options.corpus!r}: {ATTEMPTS} other runs published first. Run the job again when they are done.")

    # --- one attempt -------------------------------------------------------------------------------------------------------

    def _attempt(self, options: Options, outcome: Outcome) -> None:
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
                f"Source {options.source.url!r} lists no file that may be indexed ({_counted(outcome) or 'it is empty'}). "
                "Check --source, --include and --exclude."
            )
        if old_source and old_source.url != options.source.url:
            outcome.notes.append(
                f"Source {options.source.name!r} was {old_source.url} and is {options.source.url} from now on. "
                "If both were meant, give the second its own --source-name."
            )
        with _timed(outcome, "compare"):
            old_tree = old_source.tree if old_source else None
            old = {row.path: row for row in tree.rows(self.store, old_tree)} if old_tree else {}
            suspects, gone = compare(listing, old, options.max_file_bytes)
        self._guard_shrink(options, outcome, listing, old_source, gone)
        ranges = self._ranges(options, parent)
        staged: list[Staged] = []
        readable = [file for file in suspects if file.size_bytes <= options.max_file_bytes]
        if len(readable) < len(suspects):
            outcome.skipped[f"larger than {options.max_file_bytes:,} bytes"] = len(suspects) - len(readable)
        if readable:
            with _timed(outcome, "read"):
                staged = self._stage(self._workers(specs), options, readable, outcome)
        with _timed(outcome, "plan"):
            change = change_of(options.source.name, suspects, old, gone, staged, options.max_file_bytes)
            outcome.added, outcome.removed, outcome.renamed = len(change.added), len(change.removed), n_moved(change)
        if parent is None and not change.added:
            reasons = (_counted(outcome) or next(iter(outcome.failed.values()))).rstrip(".")
            raise SourceError(
                f"Source {options.source.url!r} lists {outcome.listed:,} files, of which none could be read as text: {reasons}. "
                "Check --source and --include."
            )
        same_spaces = parent is not None and {n: i for n, (_, i) in specs.items()} == {
            s.name: s.space_id for s in parent.root.spaces
        }
        same_shards = parent is not None and tuple(s.buckets for s in parent.root.shards) == tuple(ranges)
        if parent is not None and change.empty and same_spaces and same_shards and not self._outdated(parent.root):
            outcome.generation = parent.root.generation
            return
        with _timed(outcome, "build"):
            pages = self._pages(parent, specs, ranges, change, staged, outcome)
        with _timed(outcome, "tree"):
            new_tree = self._tree(old_tree, change)
        root = self._root(options, parent, specs, pages, new_tree, change, old_source)
        if self.calibrate is not None and self._refit_due(options, parent, root, same_spaces):
            if parent is not None and self._outdated(parent.root):
                outcome.notes.append("An older version fitted the null models; this run has fitted them anew.")
            with _timed(outcome, "null models"):
                root = self._fit(root)
        with _timed(outcome, "publish"):
            manifest.publish(self.root_store, root)
        outcome.generation, outcome.changed = root.generation, True

    def _workers(self, specs: dict[str, tuple[SpaceSpec, str]]) -> Executor:
        """Where workers run that build these spaces; kept for the next attempt, since starting actors takes seconds."""
        if self._executor is None or self._executor[0] != specs:
            if self._executor is not None:
                self._executor[1].close()
            self._executor = (specs, self.make_executor(self.store, specs))
        return self._executor[1]

    def _parent(self, corpus: str) -> Generation | None:
        number = manifest.latest_generation(self.root_store, corpus)
        return None if number is None else Generation.open(self.root_store, self.cache, corpus, number, self.resources)

    def _specs(self, options: Options, parent: Generation | None) -> dict[str, tuple[SpaceSpec, str]]:
        """Spaces to build, by name, with their ids. Asked-for ones are added to, or replace, those the corpus has."""
        if not options.specs and parent is None:
            raise BadSpec("A new corpus needs layers. Give --layers, e.g. names,text,bm25,static.")
        wanted = {spec_of(ref).name: spec_of(ref) for ref in parent.root.spaces} if parent else {}
        for spec in options.specs:
            if sum(other.name == spec.name for other in options.specs) > 1:
                raise BadSpec(f"Two spaces are called {spec.name!r}. Name one: other={spec.layer}:….")
            wanted[spec.name] = spec
        # Always anew: a layer or model that changed since is another space, and its arrays are made again.
        return {name: (spec, space_id(spec, create(spec, self.resources))) for name, spec in wanted.items()}

    def _guard_shrink(
        self, options: Options, outcome: Outcome, listing: Listing, old: SourceRef | None, gone: list[TreeRow]
    ) -> None:
        """Forget what is gone where that is more likely a mistake: most files, or all, as of a disk that is not mounted."""
        n_lost = sum(bool(row.hash) for row in gone)
        if old is None or options.allow_shrink or not n_lost:
            return
        if listing.files and (n_lost < 20 or n_lost <= SHRINK * old.n_entries):
            return
        outcome.notes.append(
            f"{n_lost:,} of {old.n_entries:,} files are gone from the listing; nothing was deleted. "
            "If that is right, run again with --allow-shrink."
        )
        gone.clear()

    def _ranges(self, options: Options, parent: Generation | None) -> list[tuple[int, int]]:
        if options.n_shards is None and parent is not None:
            return [shard.buckets for shard in parent.root.shards]
        try:
            return shard_ranges(1 if options.n_shards is None else options.n_shards)
        except ValueError as error:
            raise BadSpec(f"--shards: {error}.") from None

    # --- reading -----------------------------------------------------------------------------------------------------------

    def _stage(self, executor: Executor, options: Options, files: list[Listed], outcome: Outcome) -> list[Staged]:
        tasks = self.staging.tasks(options.source, files, options.max_file_bytes)
        total, done = sum(max(0, f.size_bytes) for f in files), 0
        staged = []
        self.report("read", 0, total, "bytes")
        for result in executor.run("stage", tasks):
            staged.append(result)
            done += result.size_bytes
            n_files = len(result.hashes) + len(result.skipped)
            if result.kept:
                outcome.resumed += n_files
            else:
                outcome.hashed += n_files
                outcome.size_bytes += result.size_bytes
            outcome.failed.update(result.failed)
            for reason, n in Counter(result.skipped.values()).items():
                outcome.skipped[reason] = outcome.skipped.get(reason, 0) + n
            self.report("read", min(done, total), total, "bytes")
        return staged

    # --- building ----------------------------------------------------------------------------------------------------------

    def _pages(
        self,
        parent: Generation | None,
        specs: dict[str, tuple[SpaceSpec, str]],
        ranges: list[tuple[int, int]],
        change: Change,
        staged: list[Staged],
        outcome: Outcome,
    ) -> list[ShardPage]:
        """The manifest page of every shard of the new generation; untouched ones are the parent's."""
        executor = self._workers(specs)
        pages = reshard(self.store, parent, ranges)
        wanted_ids = {space for _, space in specs.values()}
        packs = {key: result.pack for result in staged for key in result.hashes.values()}
        edges = np.array([low for low, _ in ranges] + [N_BUCKETS])
        added, removed = by_shard(change.added, edges), by_shard(change.removed, edges)
        tasks: list[SegmentTask] = []
        for number, page in enumerate(pages):
            stale = [r for r in page.segments if set(r.spaces.values()) != wanted_ids]
            if number not in added and number not in removed and not stale:
                continue
            delta = ShardDelta(self.store, page, specs, parent, self.staging)
            plan = delta.decide(added.get(number, []), removed.get(number, []))
            outcome.documents_added += len(plan.new_documents)
            outcome.documents_removed += plan.n_dead_documents
            kept, merged = choose_merges(plan.refs, bool(plan.new_documents or plan.new_entries), wanted_ids)
            if plan.new_documents or plan.new_entries or merged:
                tasks += segment_tasks(plan, page, packs, merged)
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
        return tree.edit(self.store, old, change.upserts + change.settled, change.deletes)

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
                    origin=layer.origin, granularity=layer.granularity, null=layer.null, version=layer.version,
                    fingerprint=layer.fingerprint(),
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
        if parent is None or root.nulls is None or not same_spaces or self._outdated(root):
            return True
        at_fit = root.counters.get("docs_at_fit", 0)
        return abs(root.n_docs - at_fit) > options.refit * at_fit

    def _outdated(self, root: Root) -> bool:
        """Whether an older build fitted the null models, which cannot tell all that this one's can."""
        return self.calibrate is not None and root.nulls is not None and not root.nulls.name.endswith(NULLS_SUFFIX)

    def _fit(self, root: Root) -> Root:
        """Fit null models on the generation about to be published, and name them in its root."""
        opened = Generation.of_root(root, self.root_store, self.cache, self.resources)
        data = self.calibrate(opened)
        if data is None:
            return root
        file = FileRef.of(f"nulls/{hashlib.sha256(data).hexdigest()[:24]}{NULLS_SUFFIX}", data)
        self.store.write(file.name, data)
        return root.model_copy(
            update={
                "nulls": file,
                "null_version": root.null_version + 1,
                "counters": {**root.counters, "docs_at_fit": root.n_docs},
            }
        )

    def _tidy(self, outcome: Outcome) -> None:
        """Drop staging files that are done with; join small packs of encodings.

        The run is done by now: where this fails, it only wastes space until the next run.
        """
        try:
            self.staging.sweep()
            for name, n_encoded in outcome.encoded.items():
                if n_encoded and self._executor is not None:
                    _, space = self._executor[0][name]
                    PackedEncodings(self.store, f"encodings/{space}").compact()
        except (StoreError, NotFound) as error:
            logger.info("event=tidying_failed reason=%s", error)


def _counted(outcome: Outcome) -> str:
    return ", ".join(f"{reason} {n:,}" for reason, n in sorted(outcome.skipped.items()))


class _timed:
    """Adds the seconds of a block to an outcome."""

    def __init__(self, outcome: Outcome, step: str):
        self.outcome, self.step = outcome, step

    def __enter__(self) -> None:
        self.begun = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.outcome.seconds[self.step] = self.outcome.seconds.get(self.step, 0.0) + time.monotonic() - self.begun

