"""Which generation of each corpus answers: watches the store, opens and warms a new one beside the old, then moves over.

New queries go to the new generation at once when it is ready; those under way end on theirs, and cursors hold the last two.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from shards.errors import ModelMissing, NotFound, SondageError
from shards.generation import Generation
from shards.layers.contract import Request, Resources
from shards.manifest import latest_generation, list_corpora

if TYPE_CHECKING:
    from cluster.host import Opened
    from shards.cache import FileCache
    from shards.store import Store

logger = logging.getLogger(__name__)


class Generations:
    """The generations of every corpus below a store.

    warm(generation): opens its shards on the hosts. try_out(generation): asks a corpus that was just found its first question.
    cache: local files of statistics. poll_s: seconds between looks at the store.
    """

    def __init__(
        self,
        store: "Store",
        resources: Resources,
        cache: "FileCache",
        poll_s: float,
        warm: Callable[[Generation], "Awaitable[Opened]"],
        try_out: Callable[[Generation], Awaitable[None]],
    ):
        self.store, self.resources, self.cache, self.poll_s = store, resources, cache, poll_s
        self._warm, self._try_out = warm, try_out
        self._current: dict[str, Generation] = {}
        self._pinned: dict[tuple[str, int], Generation] = {}
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
                    if corpus in self._current and corpus not in self._tried:
                        self._tried.add(corpus)
                        await self._try_out(self._current[corpus])
                except Exception as error:  # one corpus that cannot be read must not keep the others waiting
                    self._note(corpus, error)
            if "store" not in self.problems:
                self._looked.set()
            await asyncio.sleep(self.poll_s)

    def _note(self, what: str, error: Exception) -> None:
        if self.problems.get(what) != str(error):
            self.problems[what] = str(error)
            logger.warning("event=watch_failed what=%s reason=%s", what, error)

    async def _refresh(self, corpus: str) -> None:
        """Move to the newest generation of a corpus, once it is open here and, where an older one answers, warm on the hosts."""
        async with self._opening.setdefault(corpus, asyncio.Lock()):
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
                self._pinned = {key: g for key, g in self._pinned.items() if key[0] != corpus}
                self._pinned[corpus, current.root.generation] = current
            self._current[corpus] = opened
            logger.info("corpus=%s generation=%d event=serving docs=%d", corpus, newest, opened.root.n_docs)

    def _open(self, corpus: str, number: int, current: Generation | None) -> Generation:
        segments = current.segments if current else None
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
                space.layer.prepare(Request("warm up"), statistics)  # loads the model
                begun = time.monotonic()
                space.layer.prepare(Request("how long does it take"), statistics)
                self._prepare_s[corpus, name] = time.monotonic() - begun
            except SondageError as error:  # one space less, and it says why; the others answer
                opened.spaces[name] = replace(space, problem=str(error))
                self._note(f"{corpus}/{name}", error)
        return opened

    async def get(self, corpus: str, number: int | None = None) -> Generation:
        """The generation that answers: the current one, or the one that a cursor pins. Raises NotFound, StoreError."""
        current = self._current.get(corpus)
        if current is None:
            await self._refresh(corpus)
            current = self._current.get(corpus)
        if current is None:
            known = ", ".join(await asyncio.to_thread(list_corpora, self.store)) or "none yet"
            raise NotFound(f"No corpus {corpus!r} in {self.store.url}. Known: {known}. Build it with `sondage index`.")
        if number is None or number == current.root.generation:
            return current
        if (corpus, number) in self._pinned:
            return self._pinned[corpus, number]
        try:
            self._pinned[corpus, number] = await asyncio.to_thread(self._open, corpus, number, current)
        except NotFound:
            raise NotFound(f"Generation {number} of corpus {corpus!r} is no longer kept. Start again without the cursor.") from None
        return self._pinned[corpus, number]

    def ready(self) -> tuple[bool, str]:
        """Whether searches can be answered, and why not."""
        if not self._looked.is_set():
            return False, self.problems.get("store", "hosts start and open what the store has")
        if "store" in self.problems:
            return False, self.problems["store"]
        return True, f"{len(self._current)} corpora"
