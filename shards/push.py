"""From the log of pushed documents to a generation that holds them: what one process does for one corpus, without Ray or HTTP.

The log is the truth and an applier keeps nothing, so any number of them may work on one corpus, in any processes: of those that
apply the same entries one publishes, and the others find that all is done. Whoever is killed is missed by nobody.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shards import pushlog
from shards.cache import FileCache
from shards.compaction import merge_step
from shards.delta import Specs
from shards.documents import Documents
from shards.drafts import REFIT, Draft, Makers, SourceChange, Tally, replace_rows, specs_of
from shards.errors import AlreadyExists, Cancelled, NotFound, StoreError
from shards.generation import Generation
from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Resources
from shards.lease import Clock, Sleep
from shards.manifest import Root, corpus_store, latest_generation
from shards.pushlog import LogEntry, Operation
from shards.segment import Segment
from shards.shard import Space
from shards.store import Store
from shards.tree import TreeRow
from shards.worker import Worker
from shards.writing import Calibrate, Writer

logger = logging.getLogger(__name__)

DEFAULT_LAYERS = ("names", "text", "bm25", "static")  # of a corpus that a push creates: none takes more than milliseconds a document
APPLY_BYTES, APPLY_OPERATIONS = 64 << 20, 20_000  # at once: what a segment is built from in about a second
ATTEMPTS = 10  # each one but the last met another's publication


@dataclass(frozen=True, slots=True)
class Applied:
    """What a call of `Applier.apply` came to. position: the last log entry that the newest generation holds; n_operations: of this
    call."""

    generation: int
    position: int
    n_operations: int = 0


class Applier:
    """Brings one corpus up to date with its log. For one thread at a time.

    root_store: the store's root. calibrate: fits null models, see `settle`. clock, sleep: to wait for others by (`shards.lease`).
    """

    def __init__(
        self,
        root_store: Store,
        corpus: str,
        cache: FileCache,
        resources: Resources,
        calibrate: Calibrate | None = None,
        clock: Clock = time.time,
        sleep: Sleep = time.sleep,
    ):
        self.root_store, self.corpus, self.cache, self.resources = root_store, corpus, cache, resources
        self.store = corpus_store(root_store, corpus)
        self._calibrate, self._clock, self._sleep = calibrate, clock, sleep
        self._makers = Makers(corpus, resources)
        self._segments: dict[str, Segment] = {}  # opened, of the newest generation
        self._spaces: list[Space] = []
        self._worker: tuple[Specs, _Here] | None = None
        self._fitted_at = -1  # documents there were when null models were last fitted here, or could not be
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Have what another thread does here end soon, by Cancelled."""
        self._stopped.set()

    def apply(self) -> Applied | None:
        """Publish a generation that holds what the log holds beyond the newest, as far as one step goes (`APPLY_BYTES`).

        Builds the spaces that are cheap and that this machine can make; segments lack the others until `settle`, and coverage says so.
        None where the newest generation holds all there is, or there is neither corpus nor log. Raises Corrupt for a damaged entry, and
        StoreError.
        """
        for attempt in range(ATTEMPTS):
            parent = self._newest()
            entries = self._pending(parent)
            if not entries:
                return None
            try:
                return self._publish(parent, entries)
            except AlreadyExists:  # somebody else published: perhaps these very entries
                logger.debug("corpus=%s event=rebase", self.corpus)
            except NotFound:  # what the parent refers to was collected since it is no longer the newest
                if attempt == ATTEMPTS - 1:
                    raise
        raise StoreError(f"Corpus {self.corpus!r}: {ATTEMPTS} others published first. What was pushed is in the log; it is tried again.")

    def merge(self, max_bytes: int | None = None) -> int | None:
        """Join segments that are due for it, as long as none of the merges is larger than that: each push leaves a segment.

        Returns the newest generation published, None where nothing was due. Raises LeaseLost, StoreError: try again another time.
        """
        root = None
        writer = self._writer(None)
        while (merged := merge_step(writer, max_bytes=max_bytes)) is not None:
            root = merged
        return root.generation if root else None

    def settle(self) -> int | None:
        """Join segments, build what `apply` left out (dear spaces), fit null models where the corpus has changed by a tenth.

        Returns the newest generation published, None where there was nothing to do. Raises AlreadyExists where somebody published
        meanwhile: what was encoded is kept, so the next call takes little time.
        """
        merged = self.merge()
        parent = self._newest()
        if parent is None:
            return None
        specs = specs_of(parent.root)
        able = self._able(parent.root)
        fit = self._fit_due(parent.root)
        draft = Draft(specs, build=None if able else frozenset())
        writer = self._writer(self._calibrate if fit else None)
        if not fit and not writer.due(parent, draft):
            return merged
        tally = Tally()
        root = writer.commit(parent, draft, tally)
        if fit:
            self._fitted_at = root.n_docs
        self._tidy(writer)
        logger.info("corpus=%s generation=%d event=settled encoded=%s", self.corpus, root.generation, tally.encoded)
        return root.generation

    # --- what is to be done ------------------------------------------------------------------------------------------------

    def _newest(self) -> Generation | None:
        number = latest_generation(self.root_store, self.corpus)
        if number is None:
            return None
        opened = Generation.open(self.root_store, self.cache, self.corpus, number, self.resources, dict(self._segments), self._spaces)
        living = {ref.id for page in opened.pages for ref in page.segments}
        self._segments = {key: segment for key, segment in opened.segments.items() if key in living}
        opened.segments = self._segments  # what is opened from now on is kept for the next time
        self._spaces = list(opened.spaces.values())
        return opened

    def _pending(self, parent: Generation | None) -> list[LogEntry]:
        """The entries that follow on what the generation holds."""
        entries: list[LogEntry] = []
        at = pushlog.applied_of(parent.root if parent else None)
        n = size = 0
        while n < APPLY_OPERATIONS and size < APPLY_BYTES and (entry := pushlog.read(self.store, at + len(entries) + 1)):
            entries.append(entry)
            n += len(entry.operations)
            size += sum(o.cost_bytes for o in entry.operations)
        return entries

    def _publish(self, parent: Generation | None, entries: Sequence[LogEntry]) -> Applied:
        specs = specs_of(parent.root) if parent else self._specs(entries[0].layers or DEFAULT_LAYERS)
        newest: dict[str, tuple[Operation, LogEntry]] = {}
        for entry in entries:
            newest |= {operation.path: (operation, entry) for operation in entry.operations}
        writer = self._writer(None)
        before = parent.root.sources.get(pushlog.SOURCE) if parent else None
        rows = [TreeRow(o.path, o.hash.hex(), o.size_bytes, o.mtime_ns, "", dict(o.metadata)) for o, _ in newest.values() if o.hash]
        emptied = [path for path, (o, _) in newest.items() if not o.hash]
        change = replace_rows(self.store, pushlog.SOURCE, before.tree if before else None, rows, emptied)
        packs = {o.hash: entry.name for o, entry in newest.values() if o.hash and not o.vectors}
        packs |= self._with_vectors(writer, [o for o, _ in newest.values() if o.vectors])
        source = SourceChange(pushlog.SOURCE, pushlog.URL, change, applied=entries[-1].number)
        draft = Draft(specs, (source,), packs, build=frozenset(name for name, (_, space) in specs.items() if self._cheap(name, specs)))
        root = writer.commit(parent, draft, Tally())
        self._tidy(writer)
        n = sum(len(entry.operations) for entry in entries)
        logger.info("corpus=%s generation=%d event=applied entries=%d operations=%d", self.corpus, root.generation, len(entries), n)
        return Applied(root.generation, entries[-1].number, n)

    def _with_vectors(self, writer: Writer, operations: Sequence[Operation]) -> dict[bytes, str]:
        """Documents that bring vectors of their own, in a staging pack: the log keeps those under other names."""
        if not operations:
            return {}
        documents = Documents.pack((o.hash, o.text, o.kind) for o in operations)
        media = {o.hash: o.media for o in operations if o.media}
        name = writer.staging.keep(documents, given={o.hash: dict(o.vectors) for o in operations}, media=media)
        return {o.hash: name for o in operations}

    # --- spaces ------------------------------------------------------------------------------------------------------------

    def _specs(self, layers: Sequence[str]) -> dict[str, tuple[SpaceSpec, str]]:
        specs = [SpaceSpec.parse(text) for text in layers]
        return {spec.name: (spec, space_id(spec, create(spec, self.resources))) for spec in specs}

    def _cheap(self, name: str, specs: Specs) -> bool:
        layer = self._makers.maker(name, specs)  # of a space that is built where it is used, a push takes what is encoded already
        return layer is not None and (not layer.dear or specs[name][0].built == "used")

    def _able(self, root: Root) -> bool:
        """Whether this machine can make every space of a generation."""
        specs = specs_of(root)
        return all(self._makers.maker(name, specs) is not None for name in specs)

    def _fit_due(self, root: Root) -> bool:
        if self._calibrate is None or not root.n_docs or root.n_docs == self._fitted_at or not self._able(root):
            return False
        at_fit = root.counters.get("docs_at_fit", 0)
        return root.nulls is None or abs(root.n_docs - at_fit) > REFIT * at_fit

    # --- writing -----------------------------------------------------------------------------------------------------------

    def _writer(self, calibrate: Calibrate | None) -> Writer:
        return Writer(
            self.root_store,
            self.corpus,
            self.cache,
            self.resources,
            self._here,
            calibrate,
            clock=self._clock,
            sleep=self._sleep,
            purpose="pushes",
        )

    def _here(self, store: Store, specs: Specs) -> "_Here":
        """A worker in this thread, kept with its models."""
        if self._worker is None or self._worker[0] != specs:
            self._worker = (specs, _Here(Worker(store, self.cache, specs, self.resources), self._go_on))
        return self._worker[1]

    def _go_on(self, *_: object) -> None:
        if self._stopped.is_set():
            raise Cancelled("Stopped while documents were built. They are in the log, and built by whoever takes over.")

    def _tidy(self, writer: Writer) -> None:
        try:
            writer.tidy()
        except (StoreError, NotFound) as error:  # it only wastes space until the next time
            logger.info("corpus=%s event=tidying_failed reason=%s", self.corpus, error)


class _Here:
    """`shards.writing.Executor` in the calling thread. go_on: told now and then how far it is; may raise Cancelled."""

    def __init__(self, worker: Worker, go_on: Callable[[str, int, int], None]):
        self.worker, self.go_on = worker, go_on

    def run(self, method: str, tasks: Sequence[Any]) -> Iterator[Any]:
        """Results, one after the other. Only `build` is asked for here."""
        assert method == "build"
        return (self.worker.build(task, self.go_on) for task in tasks)

    def close(self) -> None:
        """Nothing: the worker serves the next writer."""
