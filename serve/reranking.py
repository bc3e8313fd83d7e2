"""The last stage of a search: a model reads the question with the passages of the best hits and orders these anew, if there is time.

What it says is a signal of its own (`Hit.rerank`); evidence, surprise and E-values stay what they were. Nothing here is an error but a
model that the caller names and this server lacks: else the answer keeps the order it had, and says why.

A page that follows must not show a hit twice because the clock was kinder or the cache was gone: so the first page's order goes along in
the cursor (`Pinned`), and only what a page shows is scored again.
"""

import asyncio
import hashlib
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from serve.passages import Details, Passage, Span, read_passages
from serve.schema import Hit, Rerank, RerankInfo, RerankSignal, SearchRequest
from shards.cross_encoder import CrossEncoder, Reranker
from shards.errors import BadQuery, EndpointError, ModelMissing, SondageError
from shards.judge import Judge
from shards.layers.contract import Resources
from shards.types import Budget

logger = logging.getLogger(__name__)

AFTER_S = 0.02  # kept back for the entries and excerpts of the page
KEPT_SCORES = 65_536  # pairs, some 10 MB
MAX_MODELS = 2  # loaded at once: a caller names them, and each takes from 90 MB to gigabytes
# Cross-encoders take all cores that torch may use, so one search after the other: side by side all would be late. Judges only wait.
N_SCORING, N_JUDGING = 1, 4
OVER = "the time for it was over"

State = Literal["done", "partial", "skipped", "failed"]


@dataclass(frozen=True, slots=True)
class Pinned:
    """What the first page did to the order, for the pages that follow.

    places: where each of the reranked hits stood before, best first; none where they were not reranked. mark: which hits these were.
    """

    places: tuple[int, ...] = ()
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Reranked:
    """An order of hits. order: their places before. scores, passages: by place before, of those that were scored."""

    order: list[int]
    info: RerankInfo
    pinned: Pinned
    scores: dict[int, float] = field(default_factory=dict)
    passages: dict[int, Passage] = field(default_factory=dict)


def reordered(n: int, scores: Mapping[int, float]) -> list[int]:
    """The places 0 to n - 1, those with a score sorted by it (descending, equals as they were) among themselves, the others kept.

    So a hit without text, an image say, neither gains nor loses by what could not be read of it.
    """
    order = list(range(n))
    free = sorted(scores)
    for place, hit in zip(free, sorted(free, key=lambda hit: -scores[hit]), strict=True):
        order[place] = hit
    return order


def with_scores(hits: Sequence[Hit], spans: Sequence[Span], reranked: Reranked) -> list[Hit]:
    """Hits with what the reranker says of them. spans: of all hits, by the places that `reranked` speaks of."""
    said = {}
    for place, score in reranked.scores.items():
        passage = reranked.passages[place]
        said[spans[place][0].hex()] = RerankSignal(model=reranked.info.model, score=score, start=passage.start, end=passage.end)
    return [hit.model_copy(update={"rerank": said[hit.hash]}) if hit.hash in said else hit for hit in hits]


def mark_of(hits: Sequence[Span]) -> str:
    """Tells whether hits are those of another search."""
    return hashlib.blake2b(b"".join(key for key, _, _ in hits), digest_size=4).hexdigest()


class KeptScores:
    """Scores by what they depend on, the last used ones. Safe for many threads."""

    def __init__(self, most: int = KEPT_SCORES):
        self._most = most
        self._scores: OrderedDict[bytes, float] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._scores)

    @staticmethod
    def key(fingerprint: str, query: str, passage: str) -> bytes:
        parts = (part.encode("utf-8", "surrogatepass") for part in (fingerprint, query, passage))
        return hashlib.blake2b(b"".join(hashlib.blake2b(part, digest_size=16).digest() for part in parts), digest_size=16).digest()

    def get(self, key: bytes) -> float | None:
        with self._lock:
            if key in self._scores:
                self._scores.move_to_end(key)
            return self._scores.get(key)

    def put(self, key: bytes, score: float) -> None:
        with self._lock:
            self._scores[key] = score
            self._scores.move_to_end(key)
            while len(self._scores) > self._most:
                self._scores.popitem(last=False)


@dataclass
class _Model:
    """A reranker, where it runs, and, once it is ready, its fingerprint."""

    reranker: Reranker
    pool: Executor
    ready: "asyncio.Future[str] | None" = None
    checked: bool = False
    missing: str = ""  # why it is not here

    @property
    def problem(self) -> str:
        """Why it cannot be asked, "" as far as is known."""
        failed = self.ready is not None and self.ready.done() and (self.ready.cancelled() or self.ready.exception())
        return self.missing or (str(failed) if failed else "")

    def opened(self) -> "asyncio.Future[str]":
        """Its fingerprint when it is loaded. Loading that failed is tried again by the next search."""
        if self.ready is None or (self.ready.done() and (self.ready.cancelled() or self.ready.exception())):
            self.ready = asyncio.get_running_loop().run_in_executor(self.pool, self._load)
            self.ready.add_done_callback(_looked_at)
        return self.ready

    def _load(self) -> str:
        self.reranker.load()
        return self.reranker.fingerprint()


class Reranking:
    """The rerankers of one coordinator. default: what is done where a request says nothing; None: nothing."""

    def __init__(self, resources: Resources, default: Rerank | None = None):
        self.resources, self.default = resources, default
        self.kept = KeptScores()
        self._models: OrderedDict[tuple[str | None, str], _Model] = OrderedDict()
        self._scoring = ThreadPoolExecutor(N_SCORING, "rerank")
        self._judging = ThreadPoolExecutor(N_JUDGING, "judge")

    def close(self) -> None:
        """Ends its threads, as soon as what they are at is done."""
        for pool in (self._scoring, self._judging):
            pool.shutdown(wait=False, cancel_futures=True)

    def status(self) -> list[dict[str, Any]]:
        """The models asked so far, the last one first: whether they are ready, why not, and what an endpoint's has been asked for."""
        told = []
        for (endpoint, name), model in reversed(self._models.items()):
            ready = model.ready is not None and model.ready.done() and not model.problem
            usage = asdict(model.reranker.usage) if isinstance(model.reranker, Judge) else None
            told.append({"model": name, "endpoint": endpoint, "ready": ready, "reason": model.problem, "usage": usage})
        return told

    def cross_encoder(self, model: str) -> tuple[Reranker, Executor]:
        """One for who has texts already (queries of NLQL), and the thread that it is to run in. Raises ModelMissing with the remedy."""
        held = self._model(Rerank(model=model))
        held.reranker.check()
        return held.reranker, held.pool

    async def warm(self) -> None:
        """Begin to load the default model."""
        if self.default is not None:
            await self._stage(self.default, "warm up", named=False)

    async def begin(self, request: SearchRequest) -> "Stage | None":
        """The stage that a search is to end with, its model being loaded meanwhile; None for none.

        Raises ModelMissing or EndpointError for a model that the request names and that is not here, BadQuery where there is no text.
        """
        wanted = self.default if request.rerank is None else request.rerank
        if not wanted:
            return None
        text = request.query if wanted.query is None else wanted.query
        return await self._stage(wanted, text, named=request.rerank is not None)

    async def _stage(self, wanted: Rerank, text: str, named: bool) -> "Stage":
        if not text.strip():
            problem = "there is no text to judge passages by: give `query`, or `rerank.query`"
            if named:
                raise BadQuery(f"Nothing to rerank by: {problem}.", at="rerank.query")
            return Stage(wanted, text, self.kept, problem=problem)
        model = self._model(wanted)
        try:
            if not model.checked:
                await asyncio.to_thread(model.reranker.check)
                model.checked, model.missing = True, ""
        except (ModelMissing, EndpointError) as error:
            model.missing = str(error)
            if named:
                error.at = "rerank.model"
                raise
            return Stage(wanted, text, self.kept, problem=str(error))
        model.opened()
        return Stage(wanted, text, self.kept, model, named)

    def _model(self, wanted: Rerank) -> _Model:
        key = (wanted.endpoint, wanted.model)
        if key not in self._models:
            if wanted.endpoint is None:
                self._models[key] = _Model(CrossEncoder(wanted.model, self.resources), self._scoring)
            else:
                self._models[key] = _Model(Judge(wanted.endpoint, wanted.model, self.resources), self._judging)
        self._models.move_to_end(key)
        while len(self._models) > MAX_MODELS:
            self._models.popitem(last=False)
        return self._models[key]


@dataclass
class Stage:
    """One search's last stage. problem: why it will not be done, "" if it can be."""

    wanted: Rerank
    text: str
    kept: KeptScores
    model: _Model | None = None
    named: bool = False
    problem: str = ""

    def share_s(self, remaining_s: float) -> float:
        """What the search itself has to leave of the seconds that remain."""
        return 0.0 if self.problem else self.wanted.share * max(remaining_s, 0.0)

    async def run(
        self, hits: Sequence[Span], details: Details, budget: Budget, offset: int = 0, k: int = 10, pinned: Pinned | None = None
    ) -> Reranked:
        """Hits, best first, in the order of this stage.

        pinned: what the first page did, for one that follows. Raises ModelMissing where a model that was named cannot be loaded.
        """
        begun = time.monotonic()
        own = Budget(budget.remaining_s - AFTER_S)

        def outcome(order: list[int], state: State, reason: str, found: "_Scores", pin: Pinned) -> Reranked:
            ms = round(1000 * (time.monotonic() - begun), 3)
            wanted = self.wanted
            info = RerankInfo(state=state, reason=reason, n=len(found.scores), depth=wanted.depth, model=wanted.model, ms=ms)
            return Reranked(order, info, pin, found.scores, found.passages)

        if pinned is not None:
            order, reason, shown = follow(hits, pinned, offset, k)
            if reason or self.problem:
                return outcome(order, "skipped", reason or self.problem, _Scores(), pinned)
            found = await self._score({place: hits[place] for place in shown}, details, own)
            return outcome(order, found.state, found.reason, found, pinned)
        top = hits[: self.wanted.depth]
        found = _Scores(reason=self.problem or "nothing was found")
        if top and not self.problem:
            found = await self._score(dict(enumerate(top)), details, own)
        fused = list(range(len(hits)))
        if found.state != "done":
            return outcome(fused, found.state, found.reason, found, Pinned())
        places = reordered(len(top), found.scores)
        return outcome(places + fused[len(top) :], "done", found.reason, found, Pinned(tuple(places), mark_of(top)))

    async def _score(self, hits: Mapping[int, Span], details: Details, budget: Budget) -> "_Scores":
        """Scores of some hits, by their place: as many as the time allows."""
        assert self.model is not None
        found = _Scores()
        try:
            if budget.expired:
                raise TimeoutError
            passages = await read_passages(hits, details)
            found.expect(hits, passages)
            await self._fill(found, passages, budget)
        except TimeoutError:
            loading = self.model.ready is not None and not self.model.ready.done()
            found.late = "the model was still being loaded when the time was over" if loading else OVER
        except ModelMissing as error:
            if self.named:
                raise
            found.failed = str(error)
        except SondageError as error:
            found.failed = str(error)
        except Exception as error:  # a model that breaks costs its order, not the answer
            logger.exception("model=%s event=rerank_failed", self.wanted.model)
            found.failed = f"{type(error).__name__}: {error}"
        found.settle()
        return found

    async def _fill(self, found: "_Scores", passages: Mapping[int, Passage], budget: Budget) -> None:
        """Adds scores: those kept, then the model's as they come. Raises TimeoutError when the budget ends, and what the model raises."""
        assert self.model is not None
        reranker = self.model.reranker
        fingerprint = await _within(self.model.opened(), budget)
        keys = {place: self.kept.key(fingerprint, self.text, passages[place].text) for place in found.wanted}
        found.scores.update({place: score for place, key in keys.items() if (score := self.kept.get(key)) is not None})
        missing = [place for place in found.wanted if place not in found.scores]
        if not missing:
            return
        scores = found.scores

        def work() -> None:
            if budget.expired:  # while it waited for its turn
                return
            for i, score in reranker.scores(self.text, [passages[place].text for place in missing], budget):
                if not math.isfinite(score):
                    raise ModelMissing(f"Model {reranker.name!r} gave {score} for a passage, which is no score. Is its checkpoint whole?")
                self.kept.put(keys[missing[i]], score)
                scores[missing[i]] = score

        try:
            await _within(asyncio.get_running_loop().run_in_executor(self.model.pool, work), budget)
        finally:
            budget.deadline = -math.inf  # nobody waits any more: what still runs ends at its next look at the clock
            found.scores = dict(scores)  # and does not change this one


@dataclass
class _Scores:
    """What became of scoring: by place, with the passages that were read."""

    scores: dict[int, float] = field(default_factory=dict)
    passages: dict[int, Passage] = field(default_factory=dict)
    wanted: list[int] = field(default_factory=list)  # places that have text
    unread: int = 0
    late: str = ""
    failed: str = ""
    state: State = "skipped"
    reason: str = ""

    def expect(self, hits: Mapping[int, Span], passages: Mapping[int, Passage]) -> None:
        self.passages = dict(passages)
        self.wanted = [place for place, passage in passages.items() if passage.text.strip()]
        self.unread = len(hits) - len(passages)

    def settle(self) -> None:
        """Say how it ended."""
        n_missing = len(self.wanted) - len(self.scores)
        if self.failed:
            self.state, self.reason = "failed", self.failed
        elif self.late and not self.passages:
            self.state, self.reason = "skipped", self.late
        elif self.unread:
            self.state = "partial" if self.scores else "skipped"
            self.reason = f"the passages of {self.unread} hits could not be read in time"
        elif not self.wanted:
            self.state, self.reason = "skipped", "none of the hits has text"
        elif n_missing:
            self.state = "partial" if self.scores else "skipped"
            self.reason = self.late or OVER
        else:
            without = len(self.passages) - len(self.wanted)
            self.state, self.reason = "done", f"{without} hits without text keep their places" if without else ""


def follow(hits: Sequence[Span], pinned: Pinned, offset: int, k: int) -> tuple[list[int], str, list[int]]:
    """For a page that is not the first: the order, why nothing of it is scored ("" if it is), and the places that it shows of those
    reranked."""
    fused = list(range(len(hits)))
    n = len(pinned.places)
    if not n:
        return fused, "the first page was not reranked; its order is kept", []
    if mark_of(hits[:n]) != pinned.mark:
        return fused, "the hits are not those of the first page (a host is late or away): their order could not be kept", []
    order = [*pinned.places, *fused[n:]]
    shown = [place for place in order[offset : offset + k] if place < n]
    return order, "" if shown else f"this page lies behind the {n} hits that were reranked", shown


async def _within(future: "asyncio.Future[str] | asyncio.Future[None]", budget: Budget) -> str:
    """A future's result, if it comes in time; it goes on without us else. Raises TimeoutError."""
    future.add_done_callback(_looked_at)
    return await asyncio.wait_for(asyncio.shield(future), max(budget.remaining_s, 0.0))


def _looked_at(future: "asyncio.Future[str] | asyncio.Future[None]") -> None:
    if not future.cancelled():
        future.exception()  # in case nobody waits any more
