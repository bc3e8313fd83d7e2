"""One node's shards: a plain class that opens what a request names, searches it and keeps nothing that the store has not.

Every request carries (corpus, generation, shards). There is no assignment to lose: a host that was killed answers the next
request by opening the shards again, and two generations may be served at once while coordinators move over.
"""

import logging
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from cluster.load import Work
from cluster.standing_back import Precedence, StandingBack
from shards.cache import FileCache
from shards.candidates import leaders, merge, nothing
from shards.deepening import deepen
from shards.endpoint_settings import EndpointSettings
from shards.errors import NotFound, SondageError, StoreError
from shards.generation import Generation
from shards.handover import Handover
from shards.layers.contract import Resources
from shards.manifest import corpus_store
from shards.memory import mapped, private_bytes, process_bytes
from shards.nlql.answers import RowAnswer, unlooked
from shards.nlql.plan import RowPlan
from shards.on_the_fly import OnTheFly
from shards.plan import Everything, Plan, Predicate, SpaceQuery
from shards.plugins import PROCESS, Plugins, load
from shards.references import erased_files
from shards.segment import Segment
from shards.shard import Shard, search
from shards.store import Store, open_store
from shards.types import EXCERPT_BYTES, Array, Budget, Candidates, Detail, LayerStatus, LinesAround

logger = logging.getLogger(__name__)

Request, Answer = TypeVar("Request"), TypeVar("Answer")

# Per corpus: g and g - 1, so that queries begun on the old one end on it, and two older ones that somebody asks for.
GENERATIONS_KEPT = 4
# How long a search waits for the one before it. Most take a few milliseconds in hundreds of short compiled loops: two at once take
# the interpreter's lock from each other at every one of them, which cost 64 clients half of their answers. Long ones overlap.
TURN_S, TURN_SHARE = 0.01, 0.2
GIVEN_UP_KEPT = 1_024  # searches that were given up before they came, and those that had ended
# What is in memory is measured when other shards are open and every so often, but takes no more than this share of the time: hosts
# are asked every second, and it takes 1 to 4 ms for each GB and 0.1 ms for each reader.
MEMORY_S, MEMORY_SHARE = 5.0, 0.01
# A shard that no coordinator wants here any more, and that nobody has asked for in so long, is closed. Coordinators say what they want
# every `ClusterSettings.renew_s`, so each may miss some, and one that is restarted finds its hosts warm: while none is there, no time
# counts (at most ATTENDED_S between two that say something).
LET_GO_S, ATTENDED_S = 60.0, 30.0


@dataclass(frozen=True, slots=True)
class HostRequest:
    """One query for some of a host's shards. key: names it, to be cancelled by; 0: it cannot be."""

    corpus: str
    generation: int
    shards: tuple[int, ...]
    plan: Plan
    key: int = 0


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """One query for rows of some of a host's shards. key: as of `HostRequest`."""

    corpus: str
    generation: int
    shards: tuple[int, ...]
    plan: RowPlan
    key: int = 0


@dataclass(frozen=True, slots=True)
class DetailsRequest:
    """What result rows need of documents: content hash -> spans to show. queries: of derived spaces, whose texts are shown too.
    budget_s: documents that there is no time for are left out."""

    corpus: str
    generation: int
    shards: tuple[int, ...]
    spans: dict[bytes, tuple[tuple[int, int], ...]]
    words: tuple[str, ...] = ()
    excerpt_size: int | LinesAround = EXCERPT_BYTES
    where: Predicate = field(default_factory=Everything)
    queries: tuple[SpaceQuery, ...] = ()
    budget_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Opened:
    """Shards that are open. docs: documents of each. sample: the first words of one of them, to have something to ask."""

    docs: dict[int, int] = field(default_factory=dict)
    sample: str = ""


@dataclass(frozen=True, slots=True)
class DocumentText:
    """A piece of a rendition: bytes [start, end) as text, of size_bytes in all; its entries and the kind of content."""

    start: int
    end: int
    size_bytes: int
    text: str
    detail: Detail


def text_of(shard: Shard, document: bytes, start: int = 0, end: int | None = None) -> DocumentText | None:
    """A span of a rendition, cut outwards to whole characters; None where the shard has no such document."""
    place = shard.find(document)
    if place is None:
        return None
    view, row = place
    text = view.segment.documents.content(row)
    low, high = max(0, min(start, len(text))), len(text) if end is None else max(0, min(end, len(text)))
    while 0 < low < len(text) and text[low] & 0xC0 == 0x80:
        low -= 1
    while high < len(text) and text[high] & 0xC0 == 0x80:
        high += 1
    detail = shard.detail(document, (), (), 0, Everything())
    return DocumentText(low, high, len(text), bytes(text[low:high]).decode("utf-8", "replace"), detail)


class Host:
    """Shards of any corpora below one store, opened on demand. Safe for many threads.

    threads: searches that run at once; the compiled loops release the interpreter's lock. plugins: of an engine in this process its own.
    modules: that register what queries and layers name, loaded before anything is opened. Raises BadSpec for one that cannot be.
    """

    def __init__(
        self,
        store_url: str,
        store_options: dict[str, Any] | None = None,
        cache_dir: str = "~/.cache/sondage/files",
        cache_bytes: int = 20 << 30,
        threads: int = 2,
        models_dir: str | None = None,
        endpoints: Mapping[str, EndpointSettings] | None = None,
        clock: Callable[[], float] = time.monotonic,
        plugins: Plugins = PROCESS,
        modules: Sequence[str] = (),
    ):
        for module in modules:
            load(module)
        self.store = open_store(store_url, **(store_options or {}))
        self.cache = FileCache(Path(cache_dir).expanduser(), cache_bytes)
        self.resources = Resources(endpoints=endpoints or {}, plugins=plugins)
        if models_dir:
            self.resources = replace(self.resources, models=Path(models_dir))
        self._generations: OrderedDict[tuple[str, int], Generation] = OrderedDict()
        self._shards: dict[tuple[str, int, int], Shard] = {}
        self._segments: dict[str, dict[str, Segment]] = {}
        self._opening: dict[tuple[str, int, int], threading.Lock] = {}
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._precedence = Precedence()
        self._usual_s = 0.0  # what a search has taken lately
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="search")
        self._started = time.time()
        self._work = Work(threads)
        self._budgets: dict[int, Budget] = {}  # of searches in hand, by key
        self._given_up: OrderedDict[int, None] = OrderedDict()  # keys that nobody waits for, and that were not in hand then
        self._clock = clock
        self._attended: dict[str, tuple[float, float]] = {}  # by corpus: when a coordinator last said what it wants; the time that counts
        self._wanted: dict[tuple[str, int, int], float] = {}  # when a shard was last wanted or asked for, in the time that counts
        self._memory: dict[str, dict[str, dict[str, int | None]]] = {}
        self._measured: tuple[tuple[str, int, int], ...] = ()  # the shards that were open then
        self._measured_at, self._measuring_s = -math.inf, 0.0
        self._on_the_fly = OnTheFly()
        self._handover = Handover(lambda corpus: corpus_store(self.store, corpus), self._on_the_fly)
        self._erased: set[str] = set()  # notes of erasures that this process has acted on

    # --- opening -----------------------------------------------------------------------------------------------------------

    def _generation(self, corpus: str, number: int) -> Generation:
        key = (corpus, number)
        with self._lock:
            if key in self._generations:
                self._generations.move_to_end(key)
                return self._generations[key]
            segments = self._segments.setdefault(corpus, {})
        opened = Generation.open(self.store, self.cache, corpus, number, self.resources, segments)
        kept = 1 if self._forget_erased(opened.store) else GENERATIONS_KEPT
        with self._lock:
            opened = self._generations.setdefault(key, opened)
            self._retire(corpus, kept)
            return opened

    def _forget_erased(self, store: Store) -> bool:
        """Delete copies of files that held documents which were erased since; whether there were any."""
        try:
            notes = erased_files(store, self._erased)
        except StoreError:  # the next generation that is opened looks again
            return False
        for name, checksums in notes.items():
            self._erased.add(name)
            self.cache.forget(checksums)
        return bool(notes)

    def _retire(self, corpus: str, kept: int = GENERATIONS_KEPT) -> None:
        """Forget all but the last used generations of a corpus (a cursor may ask for an old one), and the segments that only
        they used."""
        numbers = [n for c, n in self._generations if c == corpus]
        for number in numbers[:-kept]:
            del self._generations[corpus, number]
            self._close([k for k in self._shards if k[:2] == (corpus, number)])
        if len(numbers) > kept:
            left = [self._generations[corpus, n] for n in numbers[-kept:]]
            used = {ref.id for generation in left for page in generation.pages for ref in page.segments}
            for unused in set(self._segments[corpus]) - used:
                del self._segments[corpus][unused]

    def _close(self, keys: Iterable[tuple[str, int, int]]) -> None:
        for key in keys:
            self._shards.pop(key, None)
            self._opening.pop(key, None)
            self._wanted.pop(key, None)

    def _let_go(self, corpus: str) -> None:
        """Close the shards of a corpus that nobody has wanted for `LET_GO_S`, and their segments, unless other shards have them."""
        now, (last, counted_s) = self._clock(), self._attended.get(corpus, (self._clock(), 0.0))
        counted_s += min(now - last, ATTENDED_S)
        self._attended[corpus] = now, counted_s
        with self._lock:
            old = [key for key in self._shards if key[0] == corpus and counted_s - self._wanted.get(key, counted_s) > LET_GO_S]
            if not old:
                return
            self._close(old)
            used = {ref.id for c, g, n in self._shards if c == corpus for ref in self._generations[c, g].pages[n].segments}
            for unused in set(self._segments[corpus]) - used:
                del self._segments[corpus][unused]
        logger.info("corpus=%s event=let_go shards=%s", corpus, [key[1:] for key in old])

    def shard(self, corpus: str, generation: int, number: int) -> Shard:
        """An opened shard, opening it now if needed; concurrent callers wait for one opening."""
        key, counted_s = (corpus, generation, number), self._attended.get(corpus, (0.0, 0.0))[1]
        if (shard := self._shards.get(key)) is not None:
            self._wanted[key] = counted_s
            return shard
        opened = self._generation(corpus, generation)
        with self._lock:
            lock = self._opening.setdefault(key, threading.Lock())
        with lock:
            if (shard := self._shards.get(key)) is None:
                begun = time.monotonic()
                shard = opened.shard(number)
                with self._lock:
                    if key[:2] in self._generations:  # else it was retired meanwhile, and nothing would ever remove the shard
                        self._shards[key], self._wanted[key] = shard, counted_s
                logger.info(
                    "corpus=%s generation=%d shard=%d event=opened docs=%d seconds=%.3f",
                    corpus, generation, number, shard.n_docs, time.monotonic() - begun,
                )  # fmt: skip
            return shard

    def warm(self, corpus: str, generation: int, shards: Sequence[int], plan: Plan | None = None) -> Opened:
        """Open shards before queries need them, as far as they can be opened, and keep them open; those of the corpus that nobody has
        wanted for `LET_GO_S` are closed.

        plan: asked of them, its answer thrown away, so that compiled code is loaded (0.6 s in a new process) and files are mapped.
        """
        opened: dict[int, Shard] = {}
        for number in shards:
            try:
                opened[number] = self.shard(corpus, generation, number)
            except (SondageError, OSError) as error:  # queries will say so of this shard; the others must not stay cold for it
                logger.warning("corpus=%s generation=%d shard=%d event=open_failed reason=%s", corpus, generation, number, error)
        if plan is not None and opened:
            from shards.nlql.scan import load_kernels

            load_kernels()
            self._search(HostRequest(corpus, generation, tuple(opened), plan), Budget(plan.budget_s))
        self._let_go(corpus)
        sample = next(filter(None, map(_first_words, opened.values())), "")
        return Opened({number: shard.n_docs for number, shard in opened.items()}, sample)

    # --- asking ------------------------------------------------------------------------------------------------------------

    def search(self, requests: Sequence[HostRequest]) -> list[Candidates]:
        """Answers to a batch of queries, in order; a request that fails as a whole answers with its failure as coverage."""
        return self._answers(requests, self._search)

    def rows(self, requests: Sequence[RowsRequest]) -> list[RowAnswer]:
        """Answers to a batch of queries for rows, in order; what a row raises is in the answer."""
        return self._answers(requests, self._rows)

    def _answers(self, requests: Sequence[Request], answer: Callable[[Request, Budget], Answer]) -> list[Answer]:
        budgets: list[Budget] = [StandingBack(request.plan.budget_s, self._precedence) for request in requests]
        keys = {request.key: budget for request, budget in zip(requests, budgets, strict=True) if request.key}
        self._budgets |= keys
        for key, budget in keys.items():  # after they are in hand: whoever gives one up sees either that, or is seen here
            if key in self._given_up:
                self._end(key, budget)
        try:
            with self._work.in_hand(len(requests)):
                if len(requests) == 1 or self._usual_s < TURN_S:
                    return list(map(answer, requests, budgets))
                return list(self._pool.map(answer, requests, budgets))
        finally:
            for key in keys:
                self._budgets.pop(key, None)

    def cancel(self, keys: Iterable[int]) -> None:
        """Nobody waits for these searches any more: their time is over, also of those that only come (calls overtake one another)."""
        for key in keys:
            with self._lock:
                self._given_up[key] = None
                while len(self._given_up) > GIVEN_UP_KEPT:
                    self._given_up.popitem(last=False)
            if (budget := self._budgets.get(key)) is not None:
                self._end(key, budget)

    def _end(self, key: int, budget: Budget) -> None:
        budget.deadline = -math.inf
        with self._lock:
            self._given_up.pop(key, None)

    @contextmanager
    def _in_turn(self, budget: Budget) -> Iterator[None]:
        """Alone, or beside others that have taken long; the wait costs no more than a share of the time there is."""
        alone = self._turn.acquire(timeout=max(min(TURN_S, TURN_SHARE * budget.remaining_s), 0.0))
        try:
            yield
        finally:
            if alone:
                self._turn.release()

    def _search(self, request: HostRequest, budget: Budget) -> Candidates:
        return self._timed(self._search_now, request, budget)

    def _rows(self, request: RowsRequest, budget: Budget) -> RowAnswer:
        return self._timed(self._rows_now, request, budget)

    def _timed(self, answer: Callable[[Request, Budget], Answer], request: Request, budget: Budget) -> Answer:
        with self._in_turn(budget):
            begun = time.monotonic()
            with self._work.running():
                found = answer(request, budget)
            took_s = time.monotonic() - begun
            self._usual_s += 0.1 * (took_s - self._usual_s)
            self._work.did(request.corpus, len(request.shards), took_s)
            return found

    def _opened(self, request: HostRequest | RowsRequest) -> tuple[list[Shard], dict[int, str]]:
        """The shards that a request names, and why others of them cannot be opened, by number."""
        opened, failed = [], {}
        for number in request.shards:
            try:
                opened.append(self.shard(request.corpus, request.generation, number))
            except (SondageError, OSError) as error:
                logger.warning("corpus=%s shard=%d event=open_failed reason=%s", request.corpus, number, error)
                failed[number] = str(error)
        return opened, failed

    def _rows_now(self, request: RowsRequest, budget: Budget) -> RowAnswer:
        from shards.nlql.scan import run_rows  # with it comes what only queries need

        opened, failed = self._opened(request)
        found = run_rows(opened, request.plan, budget, self.resources.plugins)
        lost = [status for number, reason in failed.items() for status in unlooked(request.plan, [number], "failed", reason)]
        return replace(found, status=(*found.status, *lost))

    def _search_now(self, request: HostRequest, budget: Budget) -> Candidates:
        plan = request.plan
        opened, reasons = self._opened(request)
        failed = [unsearched(plan, [number], "failed", reason) for number, reason in reasons.items()]
        found = nothing(len(plan.queries))
        if opened:
            found = search(opened, plan, budget, self._on_the_fly) if plan.deeper is None else deepen(opened, plan, budget)
            if plan.on_the_fly_s > 0:
                asked = [opened[0].spaces[query.space] for query in plan.queries if query.space in opened[0].spaces]
                self._handover.soon(request.corpus, asked)
        if failed:
            found = merge([found, *failed], plan.n_candidates, plan.given)
        details: dict[bytes, Detail] = {}
        for row in leaders(found, plan.n_details):
            if budget.expired:  # the coordinator asks for what is missing, if it has the time
                break
            document = found.hashes[row].tobytes()
            matched = found.scores[row] > float("-inf")
            spans = list(zip(found.starts[row][matched].tolist(), found.ends[row][matched].tolist(), strict=True))
            detail = self._detail(request, document, spans, plan)
            if detail is not None:
                details[document] = detail
        return replace(found, details=details)

    def _detail(self, request: HostRequest | DetailsRequest, document: bytes, spans: Any, wanted: Plan | DetailsRequest) -> Detail | None:
        number = self._generation(request.corpus, request.generation).shard_of(document)
        shard = self.shard(request.corpus, request.generation, number)
        return shard.detail(document, spans, wanted.words, wanted.excerpt_size, wanted.where, wanted.queries)

    def details(self, requests: Sequence[DetailsRequest]) -> list[dict[bytes, Detail]]:
        """Entries and excerpts of documents, per request; documents that are not here, or that the time ends before, are left out.

        They wait for no search, and searches stand back: they come last, and take 0.1 ms each.
        """
        answers = []
        with self._precedence.taken():
            for request, budget in zip(requests, [Budget(request.budget_s) for request in requests], strict=True):
                found: dict[bytes, Detail] = {}
                for document, spans in request.spans.items():
                    if budget.expired:
                        break
                    if (detail := self._detail(request, document, spans, request)) is not None:
                        found[document] = detail
                answers.append(found)
        return answers

    def document(self, corpus: str, generation: int, document: bytes, start: int = 0, end: int | None = None) -> DocumentText:
        """A span of a rendition, cut outwards to whole characters. Raises NotFound."""
        number = self._generation(corpus, generation).shard_of(document)
        shard = self.shard(corpus, generation, number)
        found = text_of(shard, document, start, end)
        if found is None:
            raise NotFound(f"No document {document.hex()} in generation {generation} of corpus {corpus!r}.")
        return found

    def status(self) -> dict[str, Any]:
        """What this process holds."""
        with self._lock:
            of = {key: len(generation.root.shards) for key, generation in self._generations.items()}
            opened = [
                {"corpus": c, "generation": g, "shard": n, "of": of[c, g], "docs": s.n_docs, "entries": s.n_entries}
                for (c, g, n), s in sorted(self._shards.items())
            ]
            held = tuple(self._shards)
        now = time.monotonic()
        if now - self._measured_at >= max(MEMORY_S if held == self._measured else 0.0, self._measuring_s / MEMORY_SHARE):
            self._measured, self._measured_at, self._memory = held, now, self.memory()
            self._measuring_s = time.monotonic() - now
        load = self._work.told()
        state = {"pid": os.getpid(), "started": self._started, "searches": load["searches"], "shards": opened, "load": load}
        return state | {"memory": self._memory, "rss_bytes": process_bytes(), "cache": self.cache.told()}

    def memory(self) -> dict[str, dict[str, dict[str, int | None]]]:
        """What is held of each corpus in this process's memory, measured now: by space id, and as "text" and "documents".

        mapped: bytes of its files that are open; resident: of these in memory, None where the system does not tell; private: bytes
        that readers allocated beside. What several generations share counts once.
        """
        with self._lock:
            segments = {corpus: list(held.values()) for corpus, held in self._segments.items()}
            views = [(key[0], view) for key, shard in self._shards.items() for view in shard.views]
            rows = [(key[0], kept) for key, shard in self._shards.items() for kept in list(shard.kept.values())]
        arrays: dict[tuple[str, str], list[Array]] = {}
        readers: dict[tuple[str, str], list[Any]] = {}
        for corpus, held in segments.items():
            for segment in held:
                for what, parts in segment.opened.items():
                    arrays.setdefault((corpus, what), []).extend(parts)
        for corpus, view in views:
            for space, reader in list(view.readers.items()):
                readers.setdefault((corpus, space), []).append(reader)
            own = [view.live_docs, view.live_entries, view.entry_docs, view.doc_prefixes, view.entry_prefixes]
            readers.setdefault((corpus, "documents"), []).extend(own)
        for corpus, kept in rows:
            readers.setdefault((corpus, "documents"), []).append(kept)
        found: dict[str, dict[str, dict[str, int | None]]] = {}
        for corpus, what in sorted(arrays.keys() | readers.keys()):
            files, private = mapped(arrays.get((corpus, what), ())), private_bytes(readers.get((corpus, what), ()))
            if files.size or private:
                found.setdefault(corpus, {})[what] = {"mapped": files.size, "resident": files.resident, "private": private}
        return found


def _first_words(shard: Shard) -> str:
    """Three words, for more look like a question to the names layer; "" for a shard whose first documents have none."""
    for view in shard.views:
        for row in view.live_docs.nonzero()[0][:10].tolist():
            text = bytes(view.segment.documents.content(row)[:300]).decode("utf-8", "ignore")
            if words := text.split()[:3]:
                return " ".join(words)[:100]
    return ""


def unsearched(plan: Plan, shards: Sequence[int], state: str, reason: str, total: int = 0) -> Candidates:
    """The honest answer for shards that were not looked at: no documents, and coverage that says so for every space."""
    status = [
        LayerStatus(query.space, number, "known" if query.known else state, 0, total, reason) for query in plan.queries for number in shards
    ]
    return nothing(len(plan.queries), status)
