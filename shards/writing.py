"""From what changed to a published generation: pages, trees, the root, null models where due, and the one act that shows it all.

Two callers say what they want in a `Draft`: the index job, whose changes come from a listing (`shards/update.py`), and whoever
applies the log of pushed documents. Nothing is visible before `publish`; everything written until then is named by content or by
task, so a run that dies is taken up by the next one.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np

from shards import lease, manifest, tree
from shards.cache import FileCache
from shards.delta import ShardDelta, Specs, by_shard, segment_tasks
from shards.drafts import Draft, SourceChange, Tally, timed
from shards.encodings import PackedEncodings
from shards.endpoint_settings import Usage
from shards.errors import AlreadyExists, NotFound
from shards.generation import Generation
from shards.given import OF_DOCUMENTS
from shards.identity import N_BUCKETS
from shards.layers import create
from shards.layers.contract import Resources
from shards.lease import Holding, Lease
from shards.manifest import FORMAT_VERSION, FileRef, Root, SegmentRef, ShardPage, ShardRef, SourceRef, SpaceRef
from shards.merging import in_portions
from shards.reshard import reshard
from shards.staging import Staging
from shards.store import Store
from shards.worker import Built, SegmentTask

logger = logging.getLogger(__name__)


class Executor(Protocol):
    """Runs worker methods somewhere. Results come as they finish."""

    def run(self, method: str, tasks: Sequence[Any]) -> Iterator[Any]: ...

    def close(self) -> None: ...


Report = Callable[[str, int, int, str], None]  # step, done, total, unit
Calibrate = Callable[[Generation], bytes | None]  # null models of an unpublished generation, as the bytes of their file
NULLS_SUFFIX = ".5.safetensors"  # 5: their format, `shards.corpus_nulls.FORMAT`


class Writer:
    """Writes generations of one corpus.

    root_store: the store's root. executor: where workers run that build the given spaces. calibrate: fits null models; None
    leaves those that there are. clock: the time of day, in seconds; sleep: as `time.sleep`. wait_s: how long to wait for another
    writer. purpose: what others are told that the corpus is being written for. Not for several threads.
    """

    def __init__(
        self,
        root_store: Store,
        corpus: str,
        cache: FileCache,
        resources: Resources,
        executor: Callable[[Store, Specs], Executor],
        calibrate: Calibrate | None = None,
        report: Report = lambda *_: None,
        clock: lease.Clock = time.time,
        sleep: lease.Sleep = time.sleep,
        wait_s: float = lease.WAIT_S,
        purpose: str = "an index job",
    ):
        self.root_store, self.corpus, self.cache, self.resources = root_store, corpus, cache, resources
        self.make_executor, self.calibrate, self.report = executor, calibrate, report
        self.clock, self.sleep, self.wait_s, self.purpose = clock, sleep, wait_s, purpose
        self.store = manifest.corpus_store(root_store, corpus)
        self.staging = Staging(self.store, clock())
        self._executor: tuple[Specs, Executor] | None = None
        self._encoded: set[str] = set()  # ids of spaces that something was encoded for since the last tidying
        self._made: dict[bytes, Built] = {}  # by task: what was built for a generation that is not published yet
        self._fitted: tuple[Specs, int, FileRef, int] | None = None  # likewise: spaces, version, null models, documents
        self._began: Holding | None = None  # who held the lease before the first of these was made

    def close(self) -> None:
        """End the workers."""
        if self._executor is not None:
            self._executor[1].close()
            self._executor = None

    def newest(self) -> Generation | None:
        """The newest generation; None before the first."""
        number = manifest.latest_generation(self.root_store, self.corpus)
        return None if number is None else Generation.open(self.root_store, self.cache, self.corpus, number, self.resources)

    def workers(self, specs: Specs) -> Executor:
        """Where workers run that build these spaces; kept for the next time, since starting actors takes seconds."""
        if self._executor is None or self._executor[0] != specs:
            self.close()
            self._executor = (specs, self.make_executor(self.store, specs))
        return self._executor[1]

    def due(self, parent: Generation | None, draft: Draft) -> bool:
        """Whether the draft says anything that its parent does not."""
        if parent is None or any(not source.change.empty or self._moved(parent, source) for source in draft.sources):
            return True
        if not _same_spaces(parent, draft) or _built(parent, draft) or draft.ranges not in (None, _ranges(parent.root)):
            return True
        if self.outdated(parent.root):
            return True
        return draft.build is None and any(_stale(ref, draft.specs) for page in parent.pages for ref in page.segments)

    def outdated(self, root: Root) -> bool:
        """Whether an older build fitted the null models, which cannot tell all that this one's can."""
        return self.calibrate is not None and root.nulls is not None and not root.nulls.name.endswith(NULLS_SUFFIX)

    def commit(self, parent: Generation | None, draft: Draft, tally: Tally) -> Root:
        """Write the next generation and publish it, under the writer's lease.

        Where somebody else published meanwhile, it is written once more on top of theirs, which takes only what they changed.
        Raises AlreadyExists where that cannot be, because they changed the same source, the spaces or the shards (or took the
        lease): start over on theirs. NotFound: a file was tidied away, start over. StoreError: somebody else is writing, and has
        been for `wait_s`.
        """
        try:
            root = self.write(parent, draft, tally)
            with timed(tally, "publish"), self.lease() as held:
                newest = self.newest()
                if newest is not None and (parent is None or newest.root.generation != parent.root.generation):
                    self._check_untouched(parent, newest, draft)
                    root = self.write(newest, draft, tally, held)
                root = self.publish(held, root, newest.root if newest else None)
        except NotFound:
            self.forget()
            raise
        self.forget()
        return root

    def _check_untouched(self, parent: Generation | None, newest: Generation, draft: Draft) -> None:
        """See that what was published after a draft's parent leaves the draft as true as it was. Raises AlreadyExists."""
        a, b = parent.root if parent else None, newest.root
        same = a is not None and a.spaces == b.spaces and _ranges(a) == _ranges(b)
        if not same or any(a.sources.get(source.name) != b.sources.get(source.name) for source in draft.sources):
            raise AlreadyExists(
                f"Corpus {self.corpus!r}: generation {b.generation} was published meanwhile, with other spaces, shards, or rows of the "
                "same source. Apply the changes to it."
            )
        logger.info("corpus=%s event=rebase generation=%d", self.corpus, b.generation)

    def lease(self) -> AbstractContextManager[Lease]:
        """The writer's lease, waited for and held."""
        return lease.hold(self.root_store, self.corpus, self.purpose, self.clock, self.sleep, self.wait_s)

    def publish(self, held: Lease, root: Root, newest: Root | None) -> Root:
        """Publish what was made of the newest generation, under the lease, if all of it is there still. Raises NotFound."""
        if self._began is None or not self._began.released or held.epoch != self._began.epoch + 1:
            # Others held the lease since files were first relied upon, and may have collected them.
            require(self.store, root, newest)
        held.check(newest)
        root = root.model_copy(update={"epoch": held.epoch})
        manifest.publish(self.root_store, root)
        return root

    def forget(self) -> None:
        """Nothing made so far is relied upon any more."""
        self._made.clear()
        self._fitted = self._began = None

    def write(self, parent: Generation | None, draft: Draft, tally: Tally, held: Lease | None = None) -> Root:
        """The root of the next generation and all it refers to; not yet published. held: renewed while building takes long."""
        self._began = self._began or lease.look(self.store)
        with timed(tally, "build"):
            pages = self._pages(parent, draft, tally, held)
        with timed(tally, "tree"):
            sources = {source.name: self._source(parent, source) for source in draft.sources}
        root = self.root(parent, draft, pages, sources)
        if self.calibrate is not None and self._refit_due(parent, draft, root):
            if parent is not None and self.outdated(parent.root):
                tally.notes.append("An older version fitted the null models; this run has fitted them anew.")
            with timed(tally, "null models"):
                root = self._fit(draft.specs, root, self.calibrate)
        return root

    def tidy(self) -> None:
        """Drop staging files that are done with; join small packs of encodings. Raises StoreError, NotFound."""
        self.staging.sweep()
        for space in sorted(self._encoded):
            PackedEncodings(self.store, f"encodings/{space}").compact()
        for name in filter(lambda name: name.startswith(OF_DOCUMENTS), self.store.folders("encodings")):
            PackedEncodings(self.store, f"encodings/{name}").compact()
        self._encoded.clear()

    # --- shards ------------------------------------------------------------------------------------------------------------

    def _pages(self, parent: Generation | None, draft: Draft, tally: Tally, held: Lease | None) -> list[ShardPage]:
        """The manifest page of every shard of the new generation; untouched ones are the parent's."""
        ranges = _ranges(parent.root) if draft.ranges is None and parent is not None else draft.ranges or ((0, N_BUCKETS),)
        pages = reshard(self.store, parent, ranges)
        edges = np.array([low for low, _ in ranges] + [N_BUCKETS])
        added = by_shard((entry for source in draft.sources for entry in source.change.added), edges)
        removed = by_shard((entry for source in draft.sources for entry in source.change.removed), edges)
        tally.documents_added = tally.documents_removed = 0
        tasks: list[SegmentTask] = []
        # Spaces that were built where they were used, and are to be built for all: no segment can be sure to have all of one.
        widened = {name for name in _built(parent, draft) if draft.specs[name][0].built == "all"}
        anew = frozenset(widened if draft.build is None else ())
        for number, page in enumerate(pages):
            stale = draft.build is None and any(_stale(ref, draft.specs) or anew & ref.spaces.keys() for ref in page.segments)
            if number not in added and number not in removed and not stale:
                continue
            plan = ShardDelta(self.store, page, draft.specs, parent, self.staging).decide(added.get(number, []), removed.get(number, []))
            tally.documents_added += len(plan.new_documents)
            tally.documents_removed += plan.n_dead_documents
            lacking = [ref for ref in plan.refs if draft.build is None and (_stale(ref, draft.specs) or anew & ref.spaces.keys())]
            kept = [ref for ref in plan.refs if ref not in lacking]
            tasks += segment_tasks(plan, page, draft.packs, in_portions(lacking), anew)
            pages[number] = ShardPage(shard=number, buckets=ranges[number], segments=tuple(kept))
        for number, refs in self.build(tasks, draft.building, tally, held).items():
            refs.sort(key=lambda ref: ref.id)
            pages[number] = pages[number].model_copy(update={"segments": pages[number].segments + tuple(refs)})
        return pages

    def build(self, tasks: Sequence[SegmentTask], specs: Specs, tally: Tally, held: Lease | None = None) -> dict[int, list[SegmentRef]]:
        """The segments of these tasks, by shard; what was built for an attempt before is not built again."""
        spaces = repr(sorted(specs.items())).encode()
        keys = {task.key: spaces + task.key for task in tasks}
        todo = [task for task in tasks if keys[task.key] not in self._made]
        self._began = self._began or lease.look(self.store)
        if todo:
            self.report("build", 0, len(todo), "segments")
            for done, result in enumerate(self.workers(specs).run("build", todo), 1):
                self._made[keys[result.task]] = result
                _count(tally, result)
                self._encoded |= {specs[name][1] for name, n in result.encoded.items() if n}
                self.report("build", done, len(todo), "segments")
                if held is not None:
                    held.renew()
        built: dict[int, list[SegmentRef]] = {}
        for made in (self._made[key] for key in keys.values()):
            if made.ref is not None:
                built.setdefault(made.shard, []).append(made.ref)
        return built

    # --- trees and root ----------------------------------------------------------------------------------------------------

    def _moved(self, parent: Generation, source: SourceChange) -> bool:
        """Whether a log was applied further, or files were read, though that changed no entry."""
        before = parent.root.sources.get(source.name)
        return (before.applied, before.pending) != (source.applied, source.pending) if before else source.applied != 0

    def _source(self, parent: Generation | None, source: SourceChange) -> SourceRef:
        before = parent.root.sources.get(source.name) if parent else None
        change = source.change
        if before is None or before.tree is None:
            new = tree.build(self.store, change.upserts)
        else:
            new = tree.edit(self.store, before.tree, change.upserts + change.settled, change.deletes)
        return SourceRef(
            url=source.url,
            include=source.include,
            exclude=source.exclude,
            tree=new,
            n_entries=(before.n_entries if before else 0) + len(change.added) - len(change.removed),
            applied=source.applied,
            last_run=source.last_run,
            pending=source.pending,
        )

    def root(self, parent: Generation | None, draft: Draft, pages: Sequence[ShardPage], sources: Mapping[str, SourceRef]) -> Root:
        """The root over these pages, which are written; its null models are the parent's. sources: those that differ."""
        shards = [_shard_ref(self.store, page, parent) for page in pages]
        before = parent.root if parent else None
        return Root(
            format=FORMAT_VERSION,
            corpus=self.corpus,
            generation=before.generation + 1 if before else 1,
            parent=before.generation if before else None,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            shards=tuple(shards),
            spaces=self._spaces(before, draft.specs),
            sources=(before.sources if before else {}) | dict(sources),
            nulls=before.nulls if before else None,
            null_version=before.null_version if before else 0,
            n_docs=sum(shard.n_docs for shard in shards),
            n_entries=sum(shard.n_entries for shard in shards),
            text_bytes=sum(ref.text_bytes for page in pages for ref in page.segments),
            counters={"docs_at_fit": before.counters.get("docs_at_fit", 0)} if before else {},
        )

    def _spaces(self, before: Root | None, specs: Specs) -> tuple[SpaceRef, ...]:
        known = {(ref.name, ref.space_id): ref for ref in before.spaces} if before else {}
        refs = []
        for name, (spec, space) in sorted(specs.items()):
            ref = known.get((name, space))
            if ref is None:
                layer = create(spec, self.resources)
                ref = SpaceRef(
                    name=name, layer=spec.layer, params=layer.params.model_dump(mode="json"), scope=spec.scope, space_id=space,
                    origin=layer.origin, granularity=layer.granularity, null=layer.null, version=layer.version,
                    fingerprint=layer.fingerprint(),
                )  # fmt: skip
            refs.append(ref if ref.built == spec.built else ref.model_copy(update={"built": spec.built}))
        return tuple(refs)

    # --- null models -------------------------------------------------------------------------------------------------------

    def _refit_due(self, parent: Generation | None, draft: Draft, root: Root) -> bool:
        if draft.build is not None:  # some space cannot be asked here
            return False
        if parent is None or root.nulls is None or not _same_spaces(parent, draft) or self.outdated(root):
            return True
        at_fit = root.counters.get("docs_at_fit", 0)
        return abs(root.n_docs - at_fit) > draft.refit * at_fit

    def _fit(self, specs: Specs, root: Root, calibrate: Calibrate) -> Root:
        """Fit null models on the generation about to be published, and name them in its root.

        Those that were fitted on an attempt before serve as well: little has changed since.
        """
        version = root.null_version + 1
        if self._fitted is None or self._fitted[:2] != (specs, version):
            data = calibrate(Generation.of_root(root, self.root_store, self.cache, self.resources))
            if data is None:
                return root
            self._fitted = (specs, version, keep_nulls(self.store, data), root.n_docs)
        _, _, file, n_docs = self._fitted
        counters = {**root.counters, "docs_at_fit": n_docs}
        return root.model_copy(update={"nulls": file, "null_version": version, "counters": counters})


def keep_nulls(store: Store, data: bytes) -> FileRef:
    """Null models as a file of a corpus, written, which nothing refers to yet."""
    file = FileRef.of(f"nulls/{hashlib.sha256(data).hexdigest()[:24]}{NULLS_SUFFIX}", data)
    store.write(file.name, data)
    return file


def require(store: Store, root: Root, newest: Root | None) -> None:
    """See that every file is there that a root refers to beyond those of the newest one. Raises NotFound.

    The caller holds the writer's lease, so the newest root's own files stay.
    """
    known = {shard.page for shard in newest.shards} if newest else set()
    refs = {shard.page for shard in root.shards} - known
    old = {file for page in known for file in _page_files(store, page)}
    refs |= {file for page in refs for file in _page_files(store, page)} - old
    below: dict[str, tuple[FileRef, ...]] = {}
    trees = {source.tree for source in root.sources.values() if source.tree is not None}
    old_trees = {source.tree for source in newest.sources.values() if source.tree is not None} if newest else set()
    pages = {page for top in trees - old_trees for page in tree.pages(store, top, below)}
    refs |= pages - {page for top in old_trees - trees for page in tree.pages(store, top, below)}
    if root.nulls is not None and (newest is None or root.nulls != newest.nulls):
        refs.add(root.nulls)
    names = sorted(ref.name for ref in refs if ref.size)
    with ThreadPoolExecutor(max(1, min(store.parallel, len(names)))) as pool:
        for _ in pool.map(store.size, names):
            pass


def _page_files(store: Store, page: FileRef) -> Iterator[FileRef]:
    for ref in manifest.read_page(store, page, ShardPage).segments:
        yield from ref.files.values()
        yield from ref.tombstones


def _ids(specs: Specs) -> set[str]:
    return {space for _, space in specs.values()}


def _stale(ref: SegmentRef, specs: Specs) -> bool:
    """Whether a segment has other spaces than these."""
    return set(ref.spaces.values()) != _ids(specs)


def _same_spaces(parent: Generation, draft: Draft) -> bool:
    return {name: space for name, (_, space) in draft.specs.items()} == {ref.name: ref.space_id for ref in parent.root.spaces}


def _built(parent: Generation | None, draft: Draft) -> list[str]:
    """The spaces of which the draft says otherwise than its parent for which documents they are built."""
    before = {(ref.name, ref.space_id): ref.built for ref in parent.root.spaces} if parent else {}
    return [name for name, (spec, space) in draft.specs.items() if before.get((name, space), spec.built) != spec.built]


def _ranges(root: Root) -> tuple[tuple[int, int], ...]:
    return tuple(shard.buckets for shard in root.shards)


def _shard_ref(store: Store, page: ShardPage, parent: Generation | None) -> ShardRef:
    if parent is not None and page.shard < len(parent.pages) and parent.pages[page.shard] == page:
        return parent.root.shards[page.shard]
    return ShardRef(
        shard=page.shard,
        buckets=page.buckets,
        page=manifest.write_page(store, page),
        n_docs=sum(ref.n_docs - ref.n_dead_docs for ref in page.segments),
        n_entries=sum(ref.n_entries - ref.n_dead_entries for ref in page.segments),
    )


def _count(tally: Tally, result: Built) -> None:
    for name in result.encoded:
        tally.encoded[name] = tally.encoded.get(name, 0) + result.encoded[name]
        tally.reused[name] = tally.reused.get(name, 0) + result.reused[name]
    for name, usage in result.spent.items():
        tally.spent[name] = tally.spent.get(name, Usage()) + usage
    for step, seconds in result.seconds.items():
        key = f"build: {step}"
        tally.seconds[key] = tally.seconds.get(key, 0.0) + seconds
