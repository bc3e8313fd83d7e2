"""Which generation of each corpus answers: watches the store, opens and warms a new one beside the old, then moves over.

New queries go to the new generation at once when it is ready; those under way end on theirs. Any other kept generation is opened
when it is asked for (by number, or by a cursor that pins it) and closed again when nobody has asked for `IDLE_S`, or when more than
`OLD_OPEN` others of its corpus were asked for since. What is open, and what a cursor was given for, is held by a lease in the store
(`shards/readers.py`), so that it is not collected meanwhile.
"""

import asyncio
import logging
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from shards.errors import BeingOpened, ModelMissing, NoCorpus, SondageError
from shards.generation import Generation
from shards.layers.contract import Request, Resources
from shards.manifest import corpus_store, latest_generation, list_corpora
from shards.open_order import look, under_way
from shards.readers import Reader
from shards.serving_record import ServingRecord, newest_number, read

if TYPE_CHECKING:
    from cluster.host import Opened
    from shards.cache import FileCache
    from shards.store import Store

logger = logging.getLogger(__name__)


OLD_OPEN = 3  # per corpus, beside the current one: an open generation holds the statistics of all its spaces in memory
IDLE_S = 600.0  # an old generation that nobody asked for is closed after so long, and a cursor is good for as long
SERVING_LOOK_S = 1.0  # between two looks for how a corpus is to be served: a listing, which S3 wants money for
CLAIM_S = 5.0  # between two looks at what the lease must say: a search that is over sooner, as of the command line, writes none


class Generations:
    """The generations of every corpus below a store.

    warm(generation): opens its shards on the hosts. try_out(generation): asks a corpus that was just found its first question.
    cache: local files of statistics. poll_s: seconds between looks at the store. clock: seconds that only go forward; time_of_day:
    seconds since 1970, for leases.
    """

    def __init__(
        self,
        store: "Store",
        resources: Resources,
        cache: "FileCache",
        poll_s: float,
        warm: Callable[[Generation], "Awaitable[Opened]"],
        try_out: Callable[[Generation], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], float] = time.time,
    ):
        self.store, self.resources, self.cache, self.poll_s = store, resources, cache, poll_s
        self._warm, self._try_out = warm, try_out
        self._current: dict[str, Generation] = {}
        self._serving_looks: dict[str, float] = {}
        self.serving: dict[str, ServingRecord] = {}  # by corpus, how it is to be served; absent where no record says
        self._old: OrderedDict[tuple[str, int], Generation] = OrderedDict()  # open ones, the last used at the end
        self._used: dict[tuple[str, int], float] = {}  # when an old one was last asked for, or a cursor given for one; also of closed ones
        self._readers: dict[str, Reader] = {}  # by corpus
        self._clock, self._time_of_day = clock, time_of_day
        self._claimed_at = clock()
        self._opening: dict[str, asyncio.Lock] = {}
        self._watcher: asyncio.Task[None] | None = None
        self.problems: dict[str, str] = {}  # what is wrong, by corpus, corpus/space, or "store"
        self._prepare_s: dict[tuple[str, str], float] = {}  # by corpus and space, what preparing a short question took
        self._tried: set[str] = set()  # corpora whose shards were opened and asked something
        self._looked = asyncio.Event()  # set when that was done with all corpora of the first look

    @property
    def current(self) -> dict[str, Generation]:
        """By corpus, what new queries are answered from."""
        return dict(sorted(self._current.items()))

    def replicas(self, corpus: str) -> int | None:
        """How many hosts are to serve each shard of a corpus; None where the deployment's settings say."""
        record = self.serving.get(corpus)
        return record.replicas if record else None

    def prepare_s(self, corpus: str, spaces: Iterable[str]) -> float:
        """About how long it takes to prepare a short question for these spaces: a fraction of a millisecond without a transformer."""
        return sum(self._prepare_s.get((corpus, name), 0.0) for name in spaces)

    def start(self) -> None:
        """Open what the store has and go on watching it."""
        self._watcher = asyncio.create_task(self._watch())

    async def until_warm(self) -> None:
        """Wait until all corpora that the store has were opened and asked once."""
        await self._looked.wait()

    async def close(self) -> None:
        """Stop watching."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        for reader in self._readers.values():
            await asyncio.to_thread(reader.release)

    async def _watch(self) -> None:
        while True:
            try:
                corpora = await asyncio.to_thread(list_corpora, self.store)
                self.problems.pop("store", None)
            except (SondageError, OSError) as error:
                self._note("store", error)
                corpora = []
            for corpus in corpora:
                try:
                    await self._refresh(corpus)
                    await self._look_how_to_serve(corpus)
                    if corpus in self._current and corpus not in self._tried:
                        self._tried.add(corpus)
                        await self._try_out(self._current[corpus])
                except Exception as error:  # one corpus that cannot be read must not keep the others waiting
                    self._note(corpus, error)
            if "store" not in self.problems:
                self._looked.set()
            if self._clock() - self._claimed_at >= CLAIM_S:
                await self.keep_up()
            await asyncio.sleep(self.poll_s)

    def _note(self, what: str, error: Exception) -> None:
        if self.problems.get(what) != str(error):
            self.problems[what] = str(error)
            logger.warning("event=watch_failed what=%s reason=%s", what, error)

    async def _refresh(self, corpus: str) -> None:
        """Move to the newest generation of a corpus, once it is open here and, where an older one answers, warm on the hosts."""
        async with self._lock(corpus):
            newest = await asyncio.to_thread(latest_generation, self.store, corpus)
            current = self._current.get(corpus)
            if newest is None or (current is not None and current.root.generation >= newest):
                return
            try:
                opened = await asyncio.to_thread(self._open, corpus, newest, current)
                if current is not None:  # which answers meanwhile
                    await self._warm(opened)
            except (SondageError, OSError) as error:
                self._note(corpus, error)
                if current is None:
                    raise
                return  # the old generation goes on answering; the watcher tries again
            self.problems.pop(corpus, None)
            if current is not None:
                self._remember(current)
            self._current[corpus] = opened
            logger.info("corpus=%s generation=%d event=serving docs=%d", corpus, newest, opened.root.n_docs)

    async def _look_how_to_serve(self, corpus: str) -> None:
        """Read the newest serving record, if it is new, and have as many hosts open the corpus as it says."""
        now = self._clock()
        if now - self._serving_looks.get(corpus, -SERVING_LOOK_S) < SERVING_LOOK_S:
            return
        self._serving_looks[corpus] = now
        store, known = corpus_store(self.store, corpus), self.serving.get(corpus)
        try:
            number = newest_number(await asyncio.to_thread(store.list, "serving/"))
            if number <= (known.number if known else 0):
                return
            self.serving[corpus] = record = await asyncio.to_thread(read, store, number)
        except (SondageError, OSError) as error:  # it is served as before
            self._note(f"{corpus}: how it is to be served", error)
            return
        self.problems.pop(f"{corpus}: how it is to be served", None)
        logger.info("corpus=%s event=serving_record number=%d replicas=%d by=%s", corpus, number, record.replicas, record.by)
        if (current := self._current.get(corpus)) is not None and corpus in self._tried:
            await self._warm(current)

    # --- old ones ----------------------------------------------------------------------------------------------------------

    def pin(self, corpus: str, number: int) -> None:
        """A cursor was given for this generation: it stays for `IDLE_S`."""
        self._used[corpus, number] = self._clock()

    def _remember(self, generation: Generation) -> None:
        """Keep an old generation open for those who ask for it; the one that was not asked for longest makes room."""
        corpus, number = generation.root.corpus, generation.root.generation
        self._old[corpus, number] = generation
        self._old.move_to_end((corpus, number))
        self._used[corpus, number] = self._clock()
        for key in [key for key in self._old if key[0] == corpus][:-OLD_OPEN]:
            del self._old[key]

    async def keep_up(self) -> None:
        """Close what nobody asks for any more, and bring the leases up to date."""
        self._claimed_at = now = self._clock()
        for key in [key for key, used in self._used.items() if now - used > IDLE_S]:
            del self._used[key]
            self._old.pop(key, None)
        for corpus in list(self._current):
            async with self._lock(corpus):
                await self._claim(corpus)

    async def _claim(self, corpus: str, *more: int) -> None:
        """Hold by a lease what is open or promised of a corpus, and `more`. The caller has the corpus's lock."""
        if corpus not in self._readers:
            holder = f"coordinator on {socket.gethostname()}, process {os.getpid()}"
            self._readers[corpus] = Reader(corpus_store(self.store, corpus), holder, self._time_of_day)
        numbers = {number for c, number in (*self._old, *self._used) if c == corpus} | set(more)
        if corpus in self._current:
            numbers.add(self._current[corpus].root.generation)
        await asyncio.to_thread(self._readers[corpus].hold, numbers)

    def _lock(self, corpus: str) -> asyncio.Lock:
        return self._opening.setdefault(corpus, asyncio.Lock())

    def _open(self, corpus: str, number: int, current: Generation | None) -> Generation:
        segments = dict(current.segments) if current else {}
        spaces = list(current.spaces.values()) if current else []
        opened = Generation.open(self.store, self.cache, corpus, number, self.resources, segments, spaces)
        opened.nulls  # noqa: B018  (read now, not in the first query)
        fingerprints = {ref.name: ref.fingerprint for ref in opened.root.spaces}
        for name, space in list(opened.spaces.items()):
            statistics = opened.statistics(name)
            if space.problem:
                continue
            try:
                if fingerprints[name] != space.layer.fingerprint():
                    raise ModelMissing("the model on this machine is not the one that the index was built with")
                if not space.layer.warmed:
                    continue
                space.layer.prepare(Request("warm up"), statistics)  # loads the model
                begun = time.monotonic()
                space.layer.prepare(Request("how long does it take"), statistics)
                self._prepare_s[corpus, name] = time.monotonic() - begun
            except SondageError as error:  # one space less, and it says why; the others answer
                opened.spaces[name] = replace(space, problem=str(error))
                self._note(f"{corpus}/{name}", error)
        for unused in set(segments) - {ref.id for page in opened.pages for ref in page.segments}:
            del segments[unused]
        return opened

    async def move(self, corpus: str) -> None:
        """Look for a newer generation of a corpus now, rather than at the next turn. Raises as reading it does for a new corpus."""
        await self._refresh(corpus)

    async def get(self, corpus: str, number: int | None = None) -> Generation:
        """The generation that answers: the current one, or the one that is asked for. Raises NotFound (Gone where it was collected),
        StoreError.
        """
        current = self._current.get(corpus)
        if current is None:
            await self._refresh(corpus)
            current = self._current.get(corpus)
        if current is None:
            await asyncio.to_thread(self._refuse_until_opened, corpus)
            await asyncio.to_thread(self._say_why_not_opened, corpus)
            known = ", ".join(await asyncio.to_thread(list_corpora, self.store)) or "none yet"
            raise NoCorpus(f"No corpus {corpus!r} in {self.store.url}. Known: {known}. Build it with `sondage index`.", corpus=corpus)
        if number is None or number == current.root.generation:
            return current
        if (corpus, number) not in self._old:
            async with self._lock(corpus):
                if (corpus, number) not in self._old:  # nobody else opened it while we waited
                    await self._claim(corpus, number)  # before it is looked for, so that it cannot go in between
                    opened = await asyncio.to_thread(self._open, corpus, number, current)
                    self._remember(opened)
                    return opened
        self._remember(self._old[corpus, number])
        return self._old[corpus, number]

    def _refuse_until_opened(self, corpus: str) -> None:
        """Raises BeingOpened for a corpus without a generation that somebody is reading, or has been told to."""
        for order, opening in under_way(self.store, corpus):
            what = f"{opening.listed:,} files listed so far" if opening.listed else "its source is being listed"
            raise BeingOpened(f"Corpus {corpus!r} is being opened from {order.url!r}: {what}. Ask again in a second.")

    def _say_why_not_opened(self, corpus: str) -> None:
        """Raises NoCorpus for one that was to be opened, and could not be."""
        if (opening := look(self.store, corpus)) is not None and opening.stage == "failed":
            raise NoCorpus(f"Corpus {corpus!r} was to be opened, which failed: {opening.reason} Open it again.", corpus=corpus)

    def ready(self) -> tuple[bool, str]:
        """Whether searches can be answered, and why not."""
        if not self._looked.is_set():
            return False, self.problems.get("store", "hosts start and open what the store has")
        if "store" in self.problems:
            return False, self.problems["store"]
        return True, f"{len(self._current)} corpora"
