"""Documents that callers push: acknowledged by the log of their corpus, then applied, then searchable here.

A request waits for its log entry only. Applying goes on by itself (`cluster/applying.py`); what a process that died had not applied
is found by looking at the logs.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.applying import Applying
from cluster.batching import Overloaded
from shards import given, pushlog
from shards.errors import NoCorpus, SondageError
from shards.formats.process import Extractors
from shards.images import images_taken, images_taken_by
from shards.journal import Journal, Receipt
from shards.layers import SpaceSpec, create
from shards.layers.contract import Resources
from shards.manifest import Root, corpus_store, latest_generation, list_corpora, read_root
from shards.push import DEFAULT_LAYERS
from shards.pushlog import Operation, applied_of

if TYPE_CHECKING:
    from serve.generations import Generations
    from shards.store import Store

logger = logging.getLogger(__name__)

WAITING_BYTES = 256 << 20  # of documents that wait for their log entry; then callers are told to come back
LOOK_S = 5.0  # between looks for what others left in the logs: one listing, and two small reads a corpus
QUIET_S = 2.0  # without a push before dear layers are filled, so that a flood of pushes is filled once
PATIENCE_S = 30.0  # but a flood without an end is filled that often
WAITS_S = (0.5, 2.0, 10.0)  # after applying has failed: the store may be back
PAUSE_S = 0.5  # at most after applying, which is twice as long at rest as at work, so that searches do not feel a flood of pushes
TICK_S = 0.01  # between looks in memory whether a generation serves a push


class Pushes:
    """Takes documents for every corpus below a store. Belongs to one event loop; start it, close it.

    generations: what is served; moved on as soon as something was applied.
    """

    def __init__(self, store: "Store", resources: Resources, generations: "Generations", applying: Applying):
        self.store, self.resources, self.generations, self.applying = store, resources, generations, applying
        self.extractors = Extractors()  # of pushed files that are no text
        self._journals: dict[str, Journal] = {}
        self._news: dict[str, asyncio.Event] = {}  # by corpus: set when its log may have grown
        self._pushed_at: dict[str, float] = {}  # by corpus, of the event loop's clock
        self._settling: set[str] = set()  # corpora to be filled when it is quiet
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0
        self.problems: dict[str, str] = {}  # by corpus: why its log is not applied

    async def start(self) -> None:
        """Begin to look for what is to be applied."""
        self._tasks.add(asyncio.create_task(self._watch()))

    async def close(self) -> None:
        """Stop. What is acknowledged is in the log."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.extractors.close()

    async def __aenter__(self) -> "Pushes":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def status(self) -> dict[str, int]:
        """What waits here for the store."""
        return {"waiting_bytes": self._waiting_bytes}

    # --- taking documents --------------------------------------------------------------------------------------------------

    async def admit(self, corpus: str, layers: Sequence[str] | None) -> "Target":
        """The corpus that is pushed to, made by the first push if layers are given (none named: `DEFAULT_LAYERS`).

        Raises NotFound for one that is not there and not to be made, BadSpec for its name or layers, ModelMissing.
        """
        if corpus in self.generations.current:
            return self._target(corpus, self.generations.current[corpus].root)
        return await asyncio.to_thread(self._admit, corpus, layers)

    def _admit(self, corpus: str, layers: Sequence[str] | None) -> "Target":
        store = corpus_store(self.store, corpus)
        number = latest_generation(self.store, corpus)
        if number is not None:
            return self._target(corpus, read_root(self.store, corpus, number))
        first = pushlog.read(store, 1)  # of a corpus that is being made
        if layers is None and first is None:
            known = ", ".join(list_corpora(self.store)) or "none yet"
            raise NoCorpus(
                f"No corpus {corpus!r} in {self.store.url}. Known: {known}. To make it by this push, say so: over HTTP ?create=true, in "
                "Python create=True, on the command line --create.",
                corpus=corpus,
            )
        wanted = first.layers if first else tuple(layers or DEFAULT_LAYERS)
        specs = [SpaceSpec.parse(text) for text in wanted]
        made = [create(spec, self.resources) for spec in specs]
        for layer in made:
            layer.fingerprint()  # a model that is not here is told now, not when it is applied
            layer.check()
        is_image = images_taken((layer, spec.scope) for layer, spec in zip(made, specs, strict=True))
        return Target(corpus, self._journal(corpus), given.dims(made), self.extractors, wanted, is_image)

    def _target(self, corpus: str, root: Root) -> "Target":
        return Target(corpus, self._journal(corpus), given.dims_of(root), self.extractors, is_image=images_taken_by(root))

    def submit(self, target: "Target", operation: Operation) -> "Future[Receipt]":
        """An operation on its way into the log. Raises Overloaded where too many wait."""
        if self._waiting_bytes + operation.cost_bytes > WAITING_BYTES and self._waiting_bytes:
            raise Overloaded(f"{self._waiting_bytes:,} bytes of documents wait for the store, the limit. Try again in a moment.")
        loop = asyncio.get_running_loop()
        self._waiting_bytes += operation.cost_bytes
        future = target.journal.submit(operation, target.layers)

        def logged(_: "Future[Receipt]") -> None:
            with suppress(RuntimeError):  # the loop ended meanwhile: whoever looks at the log next applies it
                loop.call_soon_threadsafe(self._logged, target.corpus, operation.cost_bytes)

        future.add_done_callback(logged)
        return future

    def _logged(self, corpus: str, size: int) -> None:
        self._waiting_bytes -= size
        self.kick(corpus)

    def _journal(self, corpus: str) -> Journal:
        def applied() -> int:
            number = latest_generation(self.store, corpus)
            return 0 if number is None else applied_of(read_root(self.store, corpus, number))

        # Threads come here, too; of two that make one, the first is kept.
        return self._journals.get(corpus) or self._journals.setdefault(corpus, Journal(corpus_store(self.store, corpus), applied))

    # --- applying them -----------------------------------------------------------------------------------------------------

    def kick(self, corpus: str) -> None:
        """There is something in the log of a corpus."""
        if corpus not in self._news:
            self._news[corpus] = asyncio.Event()
            self._tasks.add(asyncio.create_task(self._apply(corpus)))
        self._pushed_at[corpus] = asyncio.get_running_loop().time()
        self._news[corpus].set()

    async def searchable(self, corpus: str, position: int, timeout_s: float) -> int | None:
        """Waits until a generation is served here that holds a log entry; its number, or None after `timeout_s` seconds."""
        end = asyncio.get_running_loop().time() + timeout_s
        while True:
            served = self.generations.current.get(corpus)
            if served is not None and applied_of(served.root) >= position:
                return served.root.generation
            if asyncio.get_running_loop().time() >= end:
                return None
            await asyncio.sleep(TICK_S)

    async def _watch(self) -> None:
        while True:
            try:
                for corpus in await self.applying.behind():
                    self.kick(corpus)
                self.problems.pop("store", None)
            except Exception as error:  # the store may be back the next time
                self._note("store", error)
            await asyncio.sleep(LOOK_S)

    async def _apply(self, corpus: str) -> None:
        """Apply what there is, whenever there is something."""
        n_failed = 0
        clock = asyncio.get_running_loop().time
        while True:
            await self._news[corpus].wait()
            self._news[corpus].clear()
            begun = clock()
            try:
                while await self.applying.apply(corpus) is not None:
                    await self.generations.move(corpus)
                await self.generations.move(corpus)  # another process may have been faster
                self.problems.pop(corpus, None)
                n_failed = 0
            except Exception as error:
                self._note(corpus, error)
                self._news[corpus].set()
                await asyncio.sleep(WAITS_S[min(n_failed, len(WAITS_S) - 1)])
                n_failed += 1
                continue
            if corpus not in self._settling:
                self._settling.add(corpus)
                self._tasks.add(asyncio.create_task(self._settle(corpus)))
            try:
                await self.applying.merge(corpus)
            except SondageError as error:  # somebody else is writing: there will be another time
                logger.info("corpus=%s event=not_merged reason=%s", corpus, error)
            await asyncio.sleep(min(2 * (clock() - begun), PAUSE_S))

    async def _settle(self, corpus: str) -> None:
        """Have filled what applying left out, when it is quiet or has not been for long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        try:
            while loop.time() < min(end, self._pushed_at[corpus] + QUIET_S):
                await asyncio.sleep(QUIET_S / 4)
            self._settling.discard(corpus)  # what is pushed from now on needs another round
            if await self.applying.settle(corpus) is not None:
                await self.generations.move(corpus)
        except Exception as error:  # the documents are there without it, and coverage says what is missing
            logger.warning("corpus=%s event=not_settled reason=%s", corpus, error)
        finally:
            self._settling.discard(corpus)
            self._tasks.discard(asyncio.current_task())

    def _note(self, what: str, error: Exception) -> None:
        if self.problems.get(what) != str(error):
            self.problems[what] = str(error)
            logger.warning("event=not_applied what=%s reason=%s", what, error)


@dataclass(frozen=True, slots=True)
class Target:
    """A corpus that is pushed to. dims: of the spaces that take callers' own vectors; extractors: who reads files that are no text;
    layers: it is to have, where it is new.
    is_image: whether what is pushed to a path is looked at as an image; None where no space looks at images."""

    corpus: str
    journal: Journal
    dims: Mapping[str, int]
    extractors: Extractors
    layers: tuple[str, ...] = ()
    is_image: Callable[[str], bool] | None = None
