"""One query from request to answer: prepare, scatter, merge, null models, fusion, verdict, excerpts. Pure asyncio.

The coordinator holds the corpus's statistics and null models, never documents. It watches the store: a new generation is
opened and warmed beside the old one, and new queries move over at once when it is ready; those under way end on theirs.
"""

import asyncio
import base64
import hashlib
import json
import logging
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from serve import filters
from serve.answers import describe, entry_out, highlighter_of, hit_out, layer_infos, layer_times
from serve.evidence import Fused, SpaceFacts, fuse
from serve.highlight import query_words
from serve.schema import (
    Coverage,
    Hit,
    SearchAnswer,
    SearchRequest,
)
from serve.verdict import judge
from shards.candidates import merge
from shards.errors import BadQuery, ModelMissing, NotFound, SondageError
from shards.generation import Generation
from shards.layers.contract import Request, Resources
from shards.manifest import latest_generation, list_corpora
from shards.plan import Plan, SpaceQuery
from shards.probes import count_words
from shards.shard import Space
from shards.types import N_CANDIDATES, Budget, Candidates, Detail

if TYPE_CHECKING:
    from cluster.protocol import Searcher
    from shards.cache import FileCache
    from shards.store import Store

logger = logging.getLogger(__name__)

ANSWER_S = 0.004  # kept back from the hosts' budget for fusing, details and writing the answer
NOTHING_TO_ASK = "nothing in the query for this layer"


@dataclass(frozen=True, slots=True)
class _Cursor:
    """Where the next page begins. n_candidates is kept: another number could change the order of what was already shown."""

    generation: int
    offset: int
    n_candidates: int
    request: str

    def encode(self) -> str:
        body = json.dumps([self.generation, self.offset, self.n_candidates, self.request])
        return base64.urlsafe_b64encode(body.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str, request: str) -> "_Cursor":
        try:
            body = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            cursor = cls(int(body[0]), int(body[1]), int(body[2]), str(body[3]))
        except (ValueError, LookupError, TypeError):
            raise BadQuery("The cursor is not one that a previous answer gave. Leave it out to start at the first page.") from None
        if cursor.request != request:
            raise BadQuery("The cursor belongs to another request. Send it with the same query, layers and filters.")
        return cursor


def _identity(request: SearchRequest) -> str:
    """What must not change between pages."""
    body = request.model_dump_json(include={"corpus", "query", "forms", "layers", "paths", "where"})
    return hashlib.sha256(body.encode()).hexdigest()[:12]


class Coordinator:
    """Answers searches over every corpus below a store. cache: local files of statistics; poll_s: seconds between looks at
    the store for new generations."""

    def __init__(self, store: "Store", searcher: "Searcher", resources: Resources, cache: "FileCache", poll_s: float = 0.5):
        self.store, self.searcher, self.resources, self.cache, self.poll_s = store, searcher, resources, cache, poll_s
        self._current: dict[str, Generation] = {}
        self._pinned: dict[tuple[str, int], Generation] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._problems: dict[str, str] = {}
        self._tried: set[str] = set()  # corpora whose shards were opened and asked something
        self._looked = asyncio.Event()  # set when that was done with all corpora of the first look

    # --- generations -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
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
                self._problems.pop("store", None)
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
            if "store" not in self._problems:
                self._looked.set()
            await asyncio.sleep(self.poll_s)

    def _note(self, what: str, error: Exception) -> None:
        if self._problems.get(what) != str(error):
            self._problems[what] = str(error)
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
                    await self.searcher.warm(corpus, newest, len(opened.root.shards))
            except (SondageError, OSError) as error:
                self._note(corpus, error)
                if current is None:
                    raise
                return  # the old generation goes on answering; the watcher tries again
            self._problems.pop(corpus, None)
            if current is not None:
                self._pinned = {key: g for key, g in self._pinned.items() if key[0] != corpus}
                self._pinned[corpus, current.root.generation] = current
            self._current[corpus] = opened
            logger.info("corpus=%s generation=%d event=serving docs=%d", corpus, newest, opened.root.n_docs)

    async def _try_out(self, generation: Generation) -> None:
        """Open the shards on the hosts and ask one question in every space, so that nobody's query waits for code to be loaded."""
        root = generation.root
        opened = await self.searcher.warm(root.corpus, root.generation, len(root.shards))
        if opened.sample:
            try:
                await self.search(SearchRequest(corpus=root.corpus, query=opened.sample, k=1, budget_ms=60_000))
            except SondageError as error:  # no lasting problem: a query that meets it is told
                logger.warning("corpus=%s event=trial_failed reason=%s", root.corpus, error)

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
            except SondageError as error:  # one space less, and it says why; the others answer
                opened.spaces[name] = replace(space, problem=str(error))
                self._note(f"{corpus}/{name}", error)
        return opened

    async def _generation(self, corpus: str, number: int | None = None) -> Generation:
        """The generation that answers: the current one, or the one that a cursor pins."""
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

    # --- search ------------------------------------------------------------------------------------------------------------

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """The answer to one search. Raises BadQuery, NotFound, StoreError, Overloaded."""
        begun = time.monotonic()
        budget = Budget(request.budget_ms / 1000)
        timings: dict[str, float] = {}
        identity = _identity(request)
        cursor = _Cursor.decode(request.cursor, identity) if request.cursor else None
        generation = await self._generation(request.corpus, cursor.generation if cursor else None)
        where = filters.scope(request.paths, request.where)
        names = self._spaces(generation, request)
        prepared, reasons = await asyncio.to_thread(_prepare, generation, request, names)
        _lap(timings, "prepare", begun)
        words = tuple(query_words(request.query))
        offset = cursor.offset if cursor else 0
        n_candidates = cursor.n_candidates if cursor else max(N_CANDIDATES, request.k)
        plan = Plan(
            where=where,
            queries=tuple(prepared),
            n_candidates=n_candidates,
            n_details=2 * min(request.k, 10) if offset == 0 else 0,
            budget_s=max(budget.remaining_s - ANSWER_S, 0.001),
            words=words,
        )
        n_shards = len(generation.root.shards)
        mark = time.monotonic()
        parts = await self.searcher.search(request.corpus, generation.root.generation, n_shards, plan) if prepared else []
        _lap(timings, "scatter", mark)
        mark = time.monotonic()
        found = merge(parts, n_candidates) if parts else None
        fused, facts = None, []
        verdict, why = "none", "nothing was asked of any space"
        if found is not None:
            facts = self._facts(generation, prepared, found)
            silent = [n for n, reason in reasons.items() if reason == NOTHING_TO_ASK and not generation.spaces[n].scope]
            n_words = count_words(request.query) or None
            fused = fuse(found, facts, generation.nulls, generation.root.n_docs, silent, n_words)
            explicit = bool(request.forms) or request.layers != "auto"
            verdict, why = judge(fused, facts, generation.nulls, explicit=explicit, text=request.query)
        _lap(timings, "fuse", mark)
        mark = time.monotonic()
        hits: list[Hit] = []
        page: list[int] = []
        more = False
        if fused is not None and (verdict != "none" or request.keep_all):
            # A pattern that matches everywhere surprises nobody, yet who asks for it by name wants its matches.
            shown = (fused.fused > 0) | (np.isfinite(fused.scores).any(axis=1) if explicit else False)
            speaking = [row for row in fused.order.tolist() if shown[row]]
            page = speaking[offset : offset + request.k]
            more = len(speaking) > offset + request.k
            details = await self._details(generation, request, plan, found, fused, page, budget)
            mark_up = highlighter_of(request, generation, prepared) if request.highlight else None
            hits = [
                hit_out(row, fused, found, plan.queries, details[found.hashes[row].tobytes()], mark_up, request.explain)
                for row in page
                if found.hashes[row].tobytes() in details
            ]
        _lap(timings, "excerpts", mark)
        timings["total"] = round(1000 * (time.monotonic() - begun), 3)
        status = found.status if found is not None else ()
        following = _Cursor(generation.root.generation, offset + request.k, n_candidates, identity).encode() if more else None
        return SearchAnswer(
            corpus=request.corpus,
            generation=generation.root.generation,
            null_version=generation.root.null_version,
            verdict=verdict,
            verdict_reason=why,
            # A host that dies between its scores and its texts takes hits with it.
            complete=bool(status) and all(s.state in ("ready", "scoped") for s in status) and len(hits) == len(page),
            hits=hits,
            cursor=following,
            layers=layer_infos(generation, names, prepared, reasons, found, fused),
            coverage=[
                Coverage(layer=s.space, shard=s.shard, state=s.state, covered=s.covered, total=s.total, reason=s.reason)
                for s in status
            ],
            timings_ms=timings | layer_times(status),
        )

    def _spaces(self, generation: Generation, request: SearchRequest) -> list[str]:
        """The spaces to ask. Raises BadQuery that names those there are."""
        known = sorted(generation.spaces)
        asked = known if request.layers == "auto" else list(dict.fromkeys(request.layers))
        for name in [*asked, *request.forms]:
            if name not in generation.spaces:
                raise BadQuery(f"Corpus {request.corpus!r} has no layer {name!r}. Choose from: {', '.join(known)}.")
        if not request.query.strip() and not request.forms:
            raise BadQuery("Nothing was asked: give `query`, or `forms` for single layers.")
        if not request.query.strip():
            asked = [name for name in asked if name in request.forms]
        return asked

    def _facts(self, generation: Generation, prepared: list[SpaceQuery], found: Candidates) -> list[SpaceFacts]:
        facts = []
        for query in prepared:
            space = generation.spaces[query.space]
            exact = query.log_p is not None
            facts.append(
                SpaceFacts(
                    name=query.space,
                    null=space.layer.null,
                    n_units=self._units_in_scope(generation, space, found),
                    origin=space.layer.origin,
                    whole=all(s.state == "ready" for s in found.status if s.space == query.space),
                    surprise=(lambda scores, layer=space.layer, query=query: layer.surprise(query, scores)) if exact else None,
                    most=query.most,
                )
            )
        return facts

    def _units_in_scope(self, generation: Generation, space: Space, found: Candidates) -> int:
        """Units of a space in the scope asked, the multiplier of E: all units, in the proportion of rows that the filter left."""
        n_units = int(generation.statistics(space.name).n_units)
        rows = sum(s.total for s in found.status if s.space == space.name)
        all_rows = generation.root.n_docs if space.layer.over == "documents" else generation.root.n_entries
        return max(1, math.ceil(n_units * min(1.0, rows / all_rows))) if all_rows and rows else max(1, n_units)

    async def _details(
        self,
        generation: Generation,
        request: SearchRequest,
        plan: Plan,
        found: Candidates,
        fused: Fused,
        page: list[int],
        budget: Budget,
    ) -> dict[bytes, Detail]:
        """Entries and excerpts of a page's hits: those that came along, and one more call for any that did not."""
        details = dict(found.details)
        wanted = {}
        for row in page:
            key, span = found.hashes[row].tobytes(), (int(fused.starts[row]), int(fused.ends[row]))
            if key not in details or span not in details[key].excerpts:
                wanted[key] = (span,)
        if wanted:
            details |= await self.searcher.details(
                request.corpus,
                generation.root.generation,
                len(generation.root.shards),
                wanted,
                plan.words,
                plan.excerpt_bytes,
                plan.where,
                max(budget.remaining_s, 0.05),
            )
        return details

    # --- the rest ----------------------------------------------------------------------------------------------------------

    async def document(
        self, corpus: str, hash_hex: str, start: int | None = None, end: int | None = None, generation: int | None = None
    ) -> dict[str, Any]:
        """A span of a rendition by its hash. Raises NotFound, BadQuery."""
        try:
            key = bytes.fromhex(hash_hex)
        except ValueError:
            key = b""
        if len(key) != 20:
            raise BadQuery(f"Document hash {hash_hex[:80]!r} is not 40 hexadecimal digits. Take it from a hit.")
        opened = await self._generation(corpus, generation)
        piece = await self.searcher.document(
            corpus, opened.root.generation, len(opened.root.shards), key, start or 0, end
        )
        return {
            "corpus": corpus,
            "generation": opened.root.generation,
            "hash": hash_hex,
            "start": piece.start,
            "end": piece.end,
            "size_bytes": piece.size_bytes,
            "kind": piece.detail.kind,
            "text": piece.text,
            "entries": [entry_out(e).model_dump() for e in piece.detail.entries],
        }

    async def status(self) -> dict[str, Any]:
        """Corpora with their generations, spaces and sizes; hosts; what is wrong."""
        corpora = {}
        for corpus, generation in sorted(self._current.items()):
            root = generation.root
            layer_bytes: dict[str, int] = {}
            # A segment that several shards cut ranges from lies in the store once.
            for role, _, size in {(r, f.name, f.size) for page in generation.pages for s in page.segments for r, f in s.files.items()}:
                layer_bytes[role] = layer_bytes.get(role, 0) + size
            corpora[corpus] = {
                "generation": root.generation,
                "created": root.created,
                "docs": root.n_docs,
                "entries": root.n_entries,
                "text_bytes": root.text_bytes,
                "shards": [{"shard": s.shard, "buckets": s.buckets, "docs": s.n_docs, "entries": s.n_entries} for s in root.shards],
                "segments": sum(len(page.segments) for page in generation.pages),
                "dead_docs": sum(r.n_dead_docs for page in generation.pages for r in page.segments),
                "null_version": root.null_version,
                "sources": {name: ref.model_dump(exclude={"tree"}) for name, ref in root.sources.items()},
                "layers": [describe(s, generation, layer_bytes.get(f"layer/{s.id}", 0)) for s in generation.spaces.values()],
            }
        return {"store": self.store.url, "corpora": corpora, **await self.searcher.status(), "problems": dict(self._problems)}

    async def ready(self) -> tuple[bool, str]:
        """Whether searches can be answered, and why not."""
        if not self._looked.is_set():
            return False, self._problems.get("store", "hosts start and open what the store has")
        if "store" in self._problems:
            return False, self._problems["store"]
        return True, f"{len(self._current)} corpora"


def _lap(timings: dict[str, float], step: str, since: float) -> None:
    timings[step] = round(1000 * (time.monotonic() - since), 3)


def _prepare(generation: Generation, request: SearchRequest, names: list[str]) -> tuple[list[SpaceQuery], dict[str, str]]:
    """Every space's question, and why some have none. A model that is missing silences its space, unless it was asked for."""
    prepared: list[SpaceQuery] = []
    reasons: dict[str, str] = {}
    for name in names:
        layer = generation.spaces[name].layer
        explicit = name in request.forms or request.layers != "auto"
        if problem := generation.spaces[name].problem:
            if explicit:
                raise ModelMissing(f"Layer {name!r} cannot be asked: {problem}.")
            reasons[name] = problem
            continue
        try:
            asked = layer.prepare(Request(request.query, request.forms.get(name, {}), explicit), generation.statistics(name))
        except BadQuery as error:
            raise BadQuery(f"Layer {name!r}: {error}") from None
        except SondageError as error:
            if explicit:
                raise
            reasons[name] = str(error)
            continue
        if asked is None:
            reasons[name] = NOTHING_TO_ASK
        else:
            prepared.append(replace(asked, space=name))
    return prepared, reasons
