"""Whether what a search finds is still there: sources are looked at beside the search, and what changed is read and searched live.

A check takes a tenth of the time at most. It goes on where earlier searches ended, and is left out where what is known is younger than it
is worth. The hits that are shown are looked at in any case. What changed is ordered to be indexed (`Freshness.orders`) where that can be.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cluster.host import DocumentText, text_of
from serve.freshness_joining import joined
from serve.freshness_looking import READ_S, Seen, Watched, is_source, look_and_read
from serve.freshness_schema import Freshness as Mode
from serve.freshness_schema import FreshnessInfo, HitFreshness
from serve.passages import Details
from shards import pushlog
from shards.freshness import CHANGED, CURRENT, UNCHECKED, VANISHED, LocalCheck, entry_state
from shards.generation import Generation
from shards.listing import Listed
from shards.live import Live, LiveShard
from shards.open_order import OpenOrder, renewed
from shards.plan import Plan
from shards.roots import decode_path, encode_path
from shards.types import Budget, Candidates, Detail, Entry

if TYPE_CHECKING:
    from serve.schema import SearchRequest
    from shards.store import Store

SHARE, LEAST_S = 0.1, 0.002  # of the budget, for a check; and what it may take of the smallest
WAIT_SHARE = 0.2  # of what is left when the hosts have answered, that a check may be waited for
INLINE = 20  # hits that are looked at without a thread: 50 us
ANSWER_S = 0.01  # left of the budget for the answer by a strict check
KEPT = 8  # corpora whose sources are remembered
ENTRIES = 20  # of a hit that are looked at; others are taken to be as they were
_WILD = "*?[{"


class Freshness:
    """The sources of a coordinator's corpora."""

    def __init__(self) -> None:
        self._corpora: OrderedDict[str, Watched] = OrderedDict()
        self._waited: dict[tuple[str, str], frozenset[tuple[str, Listed | None]]] = {}
        self._ordered: dict[tuple[str, str], frozenset[tuple[str, Listed | None]]] = {}
        self._pool = ThreadPoolExecutor(2, "sondage-freshness")

    def close(self) -> None:
        """Begins nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def begin(self, generation: Generation, request: "SearchRequest", budget: Budget, is_newest: bool) -> "Checking | None":
        """The check of one search, which goes on beside it; None where there is nothing to check."""
        joins = request.coupling.name != "joint" and request.combine is None
        return self._begin(generation, request.freshness, request.paths, budget, is_newest, joins)

    def aside(self, generation: Generation, budget: Budget, is_newest: bool) -> "Checking | None":
        """The check beside a query that is about what was indexed, and says what has changed since, as far as that is known."""
        return self._begin(generation, "check", (), budget, is_newest, joins=False)

    def _begin(
        self, generation: Generation, mode: Mode, paths: Sequence[str], budget: Budget, is_newest: bool, joins: bool
    ) -> "Checking | None":
        if mode == "trust" or not any(is_source(name, ref) for name, ref in generation.root.sources.items()):
            return None
        if not is_newest:
            return Checking(mode, reason="a kept generation was asked for, which is what it was")
        corpus = self._corpus(generation)
        prefixes = prefixes_of(paths)
        limit = Budget(max(SHARE * budget.remaining_s, LEAST_S) if mode == "check" else budget.remaining_s - ANSWER_S)
        strict = mode == "strict"
        begun_s = time.monotonic()
        work = None
        if strict or self._is_due(corpus, prefixes):
            if corpus.work is None or corpus.work.done() or strict:
                corpus.work = self._pool.submit(look_and_read, corpus, prefixes, limit, begun_s, strict)
            work = corpus.work
        return Checking(mode, corpus, prefixes, limit, begun_s, work, joins)

    def document(self, generation: Generation, key: bytes, start: int, end: int | None) -> DocumentText | None:
        """A span of a file that was read since this generation; None where no such document was."""
        corpus = self._corpora.get(generation.root.corpus)
        live = corpus.seen.live if corpus is not None and corpus.generation is generation else None
        return text_of(live.shard, key, start, end) if live is not None and key in live.hashes else None

    def waiting(self, corpus: str) -> dict[str, frozenset[tuple[str, Listed | None]]]:
        """By source, files that are known to have changed or come since the newest generation, as they are now, and paths of those that
        are gone; of a source that most of is gone, none."""
        found = self._corpora.get(corpus)
        told: dict[str, frozenset[tuple[str, Listed | None]]] = {}
        for name, check in list(found.checks.items()) if found is not None else ():
            if not check.reason and not check.doubtful:
                gone = ((decode_path(check.known.path(row)), None) for row in np.flatnonzero(check.state == VANISHED).tolist())
                others = ((file.path, file) for file in (*list(check.changed.values()), *check.new.values()))
                told[name] = frozenset((*gone, *others))
        return {name: files for name, files in told.items() if files}

    def orders(self, store: "Store") -> list[tuple[str, OpenOrder]]:
        """By corpus, sources to be brought up to date: those that were opened here, in which the same files wait as when this was asked
        last, so that nobody is at them. Each change is ordered once, since some files never can be read. May ask the store."""
        found = []
        for corpus, known in list(self._corpora.items()):
            for source, files in self.waiting(corpus).items():
                key, before = (corpus, source), self._waited.get((corpus, source))
                self._waited[key] = files
                if files == before and files != self._ordered.get(key):
                    if (order := renewed(store, known.generation.root, source)) is not None:
                        found.append((corpus, order))
                    self._ordered[key] = files
        return found

    def _corpus(self, generation: Generation) -> Watched:
        """What is known of a corpus; of its sources whose trees are what they were, from the generation before."""
        name = generation.root.corpus
        found = self._corpora.get(name)
        if found is None or found.generation is not generation:
            before = found
            found = self._corpora[name] = Watched(generation, Live(generation.spaces))
            if before is not None:
                trees = {source: ref.tree.sha256 for source, ref in generation.root.sources.items() if ref.tree is not None}
                kept = [source for source, sha256 in before.trees.items() if trees.get(source) == sha256]
                found.checks = {source: before.checks[source] for source in kept if source in before.checks}
                found.trees = {source: before.trees[source] for source in kept}
        self._corpora.move_to_end(name)
        while len(self._corpora) > KEPT:
            self._corpora.popitem(last=False)
        return found

    def _is_due(self, corpus: Watched, prefixes: Sequence[bytes]) -> bool:
        if not corpus.is_loaded or corpus.is_pending:
            return True
        return any(check.is_due(check.within(prefixes)) for check in list(corpus.checks.values()) if isinstance(check, LocalCheck))


def prefixes_of(globs: Sequence[str]) -> tuple[bytes, ...]:
    """Folders that paths in a search's scope lie below; none where they may lie anywhere."""
    found = []
    for glob in globs:
        if not glob.startswith("!"):
            plain = glob[: min((at for wild in _WILD if (at := glob.find(wild)) >= 0), default=len(glob))]
            found.append(encode_path(plain[: plain.rfind("/") + 1]))
    return () if b"" in found else tuple(found)


class Checking:
    """The check of one search. For one event loop. What it goes by is what was known when its first hosts had answered."""

    def __init__(
        self,
        mode: Mode,
        corpus: Watched | None = None,
        prefixes: Sequence[bytes] = (),
        limit: Budget | None = None,
        begun_s: float = 0.0,
        work: "Future[None] | None" = None,
        joins: bool = True,
        reason: str = "",
    ):
        self.mode, self._corpus, self._prefixes = mode, corpus, tuple(prefixes)
        self._limit, self._begun_s, self._work, self._joins, self._reason = limit or Budget(0.0), begun_s, work, joins, reason
        self._seen: Seen | None = None if corpus is not None else Seen()
        self._states: dict[bytes, HitFreshness] = {}
        self._dropped: set[bytes] = set()

    async def seen(self, left_s: float) -> Seen:
        """What is known, once there was time to look."""
        if self._seen is None and self._corpus is not None:
            if self._work is not None:
                wait_s = max(self._limit.remaining_s, 0.0) + (READ_S if self.mode == "check" else 0.0)
                wait_s = min(wait_s, left_s if self.mode == "strict" else WAIT_SHARE * left_s)
                if wait_s > 0 and not self._work.done():
                    await asyncio.wait([asyncio.wrap_future(self._work)], timeout=wait_s)
                if self._work.done() and self._work.exception() is not None:
                    self._reason = f"the check failed: {self._work.exception()}"
            self._seen = self._corpus.seen
        return self._seen or Seen()

    def known(self) -> FreshnessInfo:
        """What is known now, without waiting for a look that is under way."""
        if self._seen is None and self._corpus is not None:
            self._seen = self._corpus.seen
        return self.info()

    async def parts(self, plan: Plan, parts: Sequence[Candidates], left_s: float) -> list[Candidates]:
        """What hosts found, as it is now: without documents that are gone, and with those that were read."""
        seen = await self.seen(left_s)
        if not self._joins or (not seen.dead and seen.live is None):
            return list(parts)
        live = None
        if seen.live is not None:
            live = await asyncio.to_thread(seen.live.search, plan, Budget(max(left_s, 0.001)))
        return joined(plan, parts, live, seen)

    def details_of(self, inner: Details, plan: Plan) -> Details:
        """Texts for the last stage, of files that were read among them."""

        async def details(spans: Mapping[bytes, tuple[tuple[int, int], ...]], excerpt_bytes: int) -> dict[bytes, Detail]:
            live = self._live
            here = {} if live is None else {key: live.detail(key, spans[key], plan, excerpt_bytes) for key in spans if key in live.hashes}
            rest = {key: span for key, span in spans.items() if here.get(key) is None}
            found = await inner(rest, excerpt_bytes) if rest else {}
            return found | {key: detail for key, detail in here.items() if detail is not None}

        return details

    async def look(
        self, details: dict[bytes, Detail], spans: Mapping[bytes, tuple[int, int]], plan: Plan, budget: Budget
    ) -> set[bytes]:
        """The documents of a page all of whose files are gone; `details` get what is true of the others. spans: of the page, by hash.
        Those that there is no time for stay unchecked."""
        live = self._live
        if self._corpus is None:
            return set()
        if live is not None and (read := [key for key in spans if key in live.hashes]):
            await asyncio.to_thread(self._take_live, live, read, details, spans, plan)
        roots = self._roots()
        asked = {key: details[key] for key in spans if key in details and key not in self._states}
        # A stat of a local disk takes 2 us; of one over a network it may take anything.
        is_fast = all(check.file_s < 5e-5 for check in self._corpus.checks.values() if isinstance(check, LocalCheck))
        looked: dict[bytes, tuple[HitFreshness | None, tuple[Entry, ...]]] = {}
        if is_fast and len(asked) <= INLINE:
            looked = _look(asked, roots, budget)
        elif asked and not budget.expired:
            task = asyncio.get_running_loop().run_in_executor(None, _look, asked, roots, budget)
            done, _ = await asyncio.wait({task}, timeout=max(budget.remaining_s, 0.0))
            looked = task.result() if done else {}
        gone = set()
        for key, (state, entries) in looked.items():
            if state is None:
                gone.add(key)
            else:
                self._states[key] = state
                details[key] = replace(details[key], entries=entries)
        self._dropped |= gone
        return gone

    def _take_live(
        self, live: LiveShard, keys: Sequence[bytes], details: dict[bytes, Detail], spans: Mapping[bytes, tuple[int, int]], plan: Plan
    ) -> None:
        for key in keys:
            found = live.detail(key, [spans[key]], plan, plan.excerpt_size)
            if found is None:
                continue
            if key in details:  # what was indexed lies at a further place now: both are its
                now = {(entry.source, entry.path) for entry in found.entries}
                others = tuple(entry for entry in details[key].entries if (entry.source, entry.path) not in now)
                states = _look({key: replace(details[key], entries=others)}, self._roots(), Budget()) if others else {}
                kept = states[key][1] if key in states and states[key][0] is not None else ()
                found = replace(found, entries=(*found.entries, *kept), derived=details[key].derived)
            details[key] = found
            self._states[key] = "live"

    def _roots(self) -> dict[str, bytes]:
        checks = self._corpus.checks if self._corpus is not None else {}
        return {name: check.files.folder for name, check in checks.items() if isinstance(check, LocalCheck) and not check.reason}

    @property
    def _live(self) -> LiveShard | None:
        return None if self._seen is None or not self._joins else self._seen.live

    def of(self, key: bytes) -> HitFreshness:
        """How a hit stands."""
        return self._states.get(key, "unchecked")

    def doubt(self, asked: Iterable[str]) -> str:
        """Why an answer of these spaces is not the last word, by its sources; "" if it is."""
        seen, live = self._seen or Seen(), self._live
        n_other = seen.changed + seen.new
        if n_other and (live is None or n_other > len(live.paths) or not live.spaces.issuperset(asked)):
            return f"{n_other:,} files changed or came since this generation, which not all layers know"
        return f"not all files were checked: {why}" if self.mode == "strict" and (why := self.info().reason) else ""

    def info(self) -> FreshnessInfo:
        """What the answer says."""
        if self._corpus is None:
            return FreshnessInfo(mode=self.mode, reason=self._reason)
        seen = self._seen or Seen()
        now_s = time.monotonic()
        checked = total = 0
        oldest_s = now_s
        for check in list(self._corpus.checks.values()):
            if isinstance(check, LocalCheck):
                folders = check.within(self._prefixes)
                done, of = check.n_seen(folders, self._begun_s if self.mode == "strict" else -1e300)
                oldest_s = min(oldest_s, float(check.seen_s[folders].min(initial=now_s)))
            else:
                done, of = int(np.count_nonzero(check.state)), len(check.known)
            checked, total = checked + done, total + of
        known = {*self._corpus.checks, pushlog.SOURCE}
        total += sum(ref.n_entries for name, ref in self._corpus.generation.root.sources.items() if name not in known)
        problems = [f"{name}: {why}" for name, why in sorted(seen.problems.items())]
        if not problems and checked < total:
            is_read = any(ref.pending for ref in self._corpus.generation.root.sources.values())
            why = "a source is still being read: only the files of hits are looked at" if is_read else "there was no time for all"
            problems = [self._reason or why]
        live = seen.live
        return FreshnessInfo(
            mode=self.mode,
            checked=checked,
            of=total,
            changed=seen.changed,
            vanished=seen.vanished,
            new=seen.new,
            live=len(live.paths) if live is not None and self._joins else 0,
            layers=sorted(live.spaces) if live is not None and self._joins else [],
            dropped=len(self._dropped),
            age_ms=round(1e3 * (now_s - oldest_s), 1) if total and checked == total else None,
            reason="; ".join(problems),
        )


def _look(
    details: Mapping[bytes, Detail], roots: Mapping[str, bytes], budget: Budget
) -> dict[bytes, tuple[HitFreshness | None, tuple[Entry, ...]]]:
    """How documents stand by their files, and their entries without those that are gone; None: all are. roots: folders of sources."""
    found: dict[bytes, tuple[HitFreshness | None, tuple[Entry, ...]]] = {}
    for key, detail in details.items():
        if budget.expired:
            break
        states = []
        for i, entry in enumerate(detail.entries):
            if entry.source == pushlog.SOURCE:
                states.append(CURRENT)
            elif i >= ENTRIES or not entry.mtime_ns or entry.source not in roots:  # rows of tables bear no time
                states.append(UNCHECKED)
            else:
                states.append(entry_state(roots[entry.source], entry.path, entry.size_bytes, entry.mtime_ns))
        kept = tuple(entry for entry, state in zip(detail.entries, states, strict=True) if state != VANISHED)
        how: HitFreshness | None = "unchecked"
        if detail.entries and not kept:
            how = None
        elif CURRENT in states:
            how = "current"
        elif CHANGED in states:
            how = "changed"
        found[key] = how, kept
    return found
