"""Whether an answer is right: beside what one process answers over the same generation of the same store, all shards or those that
the answer says it searched.

A whole answer must be the reference's, hit for hit and bit for bit; only what is summed over shards may differ in its last digits.
A partial one must name every space on every shard, be what the shards that it calls searched answer by themselves, and hold nothing
else. Where a shard was searched in part, each hit's raw signals must be those of the reference.
"""

import asyncio
import os
import signal
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.host import Host, HostRequest, unsearched
from cluster.local import LocalSearcher
from cluster.placement import shard_of
from cluster.settings import HostSettings
from serve.coordinator import Coordinator
from serve.paging import Cursor, identity
from serve.schema import DocumentAnswer, Hit, SearchAnswer, SearchRequest
from shards.plan import Plan
from shards.types import Candidates

# Sums over shards, and what is made of them: equal but for the order of addition. All else is equal to the bit.
ROUNDED = frozenset({"fused", "evalue", "surprise", "z", "weight", "share", "coupled", "mean", "sd", "gate", "learnt", "cloze",
                     "certainty", "concordance", "answerable"})  # fmt: skip
TOLERANCE = 1e-9
UNSEARCHED = frozenset({"missing", "late", "failed"})
KEPT = 600  # reference answers: some generations' worth
ALL_HITS = 1_000  # more than the corpus has documents, so every candidate is among them


class SomeShards(LocalSearcher):
    """One host in this process that may lack some of the shards, as a cluster does that has lost them. living: None for all."""

    def __init__(self, host: Host):
        super().__init__(host)
        self.host, self.living = host, frozenset[int]() or None

    async def search(self, corpus: str, generation: int, n_shards: int, plan: Plan) -> list[Candidates]:
        living = range(n_shards) if self.living is None else sorted(self.living)
        dead = sorted(set(range(n_shards)) - set(living))
        parts = self.host.search([HostRequest(corpus, generation, tuple(living), replace(plan, n_details=0))]) if living else []
        return [*parts, unsearched(plan, dead, "missing", "")] if dead else parts


class Reference:
    """What is right, over one store. Keeps the last answers. One thread."""

    def __init__(self, settings: HostSettings):
        models = str(settings.models_dir) if settings.models_dir else None
        cache = str(settings.cache_dir)
        self.host = Host(settings.store_url, settings.store_options, cache, settings.cache_bytes, models_dir=models)
        self._searcher = SomeShards(self.host)
        self._coordinator = Coordinator(self.host.store, self._searcher, self.host.resources, self.host.cache)
        self._loop = asyncio.new_event_loop()
        self._answers: OrderedDict[tuple[str, int, frozenset[int] | None], SearchAnswer] = OrderedDict()

    def answer(self, asked: SearchRequest, generation: int, living: frozenset[int] | None = None, all_hits: bool = False) -> SearchAnswer:
        """By one process at leisure. living: of the shards; all_hits: every candidate, also of a search that finds nothing."""
        told: dict[str, Any] = {"budget_ms": 60_000}
        if all_hits:
            told |= {"k": ALL_HITS, "keep_all": True, "cursor": None}
        if asked.cursor is None or all_hits:  # a cursor names its generation itself
            told["generation"] = generation
        asked = asked.model_copy(update=told)
        key = (asked.model_dump_json(), generation, living)
        if key not in self._answers:
            self._searcher.living = living
            self._answers[key] = self._loop.run_until_complete(self._coordinator.search(asked))
            if len(self._answers) > KEPT:
                self._answers.popitem(last=False)
        self._answers.move_to_end(key)
        return self._answers[key]

    def close(self) -> None:
        """Gives its leases back."""
        self._searcher.living = None
        self._loop.run_until_complete(self._coordinator.close())
        self._loop.close()
        self._searcher.close()


@dataclass(frozen=True, slots=True)
class Judged:
    """problems: what is wrong, none if nothing is. how: "whole", "partial" (recomputed) or "raw" (its signals looked up)."""

    problems: tuple[str, ...]
    how: str


def judge(reference: Reference, asked: SearchRequest, answer: SearchAnswer) -> Judged:
    """One answer to a search."""
    if asked.cursor is not None and Cursor.decode(asked.cursor, identity(asked)).generation != answer.generation:
        return Judged((f"a page of another generation than its cursor's: {answer.generation}",), "whole")
    whole = reference.answer(asked, answer.generation)
    problems = _grid(answer, whole)
    if problems:
        return Judged(tuple(problems), "partial")
    there = {(c.part, c.layer, c.shard): c for c in whole.coverage}
    gaps = {(c.part, c.layer, c.shard) for c in answer.coverage if c.state in UNSEARCHED}
    if answer.complete and gaps:
        return Judged((f"calls itself complete, and lacks {sorted(gaps)[:3]}",), "partial")
    if not gaps:
        expected = whole
        how = "whole"
    else:
        dead = {shard for _, _, shard in gaps}
        begun = [c for c in answer.coverage if c.shard in dead and (c.state not in UNSEARCHED or c.covered)]
        several_rounds = asked.combine is not None or asked.coupling.name == "joint"  # each of which may have found other hosts alive
        if begun or several_rounds or any(there[key].state in UNSEARCHED for key in gaps):
            return Judged(tuple(_raw(reference, asked, answer, frozenset(dead) if not begun else frozenset())), "raw")
        n_shards = len({c.shard for c in whole.coverage})
        expected = reference.answer(asked, answer.generation, frozenset(range(n_shards)) - dead)
        how = "partial"
    lost = len(answer.hits) < len(expected.hits) and not answer.complete
    if lost:  # a host died between its scores and its texts
        found = {hit.hash for hit in answer.hits}
        expected = expected.model_copy(update={"hits": [hit for hit in expected.hits if hit.hash in found]})
    return Judged(tuple(_differences(answer, expected, whole.complete and not gaps and not lost)), how)


def judge_document(reference: Reference, said: DocumentAnswer) -> Judged:
    """A document that was read, beside the store's."""
    text = reference.host.document(said.corpus, said.generation, bytes.fromhex(said.hash), said.start, said.end)
    same = (text.text, text.size_bytes) == (said.text, said.size_bytes)
    return Judged(() if same else (f"document {said.hash}: another text than the store's",), "whole")


def _grid(answer: SearchAnswer, whole: SearchAnswer) -> list[str]:
    """Coverage names each space that was asked on each shard exactly once, and calls nothing searched that was not."""
    told = [(c.part, c.layer, c.shard) for c in answer.coverage]
    expected = {(c.part, c.layer, c.shard): c for c in whole.coverage}
    problems = []
    if len(set(told)) != len(told):
        problems.append("coverage names a space on a shard twice")
    if set(told) != set(expected) and answer.coverage:
        problems.append(f"coverage differs in {sorted(set(told) ^ set(expected))[:3]}")
    if answer.complete and not answer.coverage and whole.coverage:
        problems.append("complete without coverage")
    if problems:
        return problems
    for c in answer.coverage:
        right = expected[c.part, c.layer, c.shard]
        if c.state not in UNSEARCHED and (c.state, c.covered, c.total) != (right.state, right.covered, right.total):
            told_as, is_as = (f"{each.state} {each.covered}/{each.total}" for each in (c, right))
            problems.append(f"{c.layer} on shard {c.shard}: {told_as}, is {is_as}")
    return problems


def _differences(answer: SearchAnswer, expected: SearchAnswer, complete: bool) -> list[str]:
    """What differs between two answers that should be one."""
    problems = []
    if complete != answer.complete:
        problems.append(f"complete is {answer.complete}")
    if (answer.verdict, answer.read_as) != (expected.verdict, expected.read_as):
        problems.append(f"verdict {answer.verdict}, is {expected.verdict}")
    mine, right = [hit.hash for hit in answer.hits], [hit.hash for hit in expected.hits]
    if mine != right:
        at = next((i for i, (a, b) in enumerate(zip(mine, right)) if a != b), min(len(mine), len(right)))
        problems.append(f"{len(mine)} hits, are {len(right)}; they part at {at}")
        return problems
    for i, (hit, other) in enumerate(zip(answer.hits, expected.hits, strict=True)):
        if differ := _unlike(hit.model_dump(), other.model_dump(), f"hit {i}"):
            problems.append(differ)
            break
    for info, other_info in zip(answer.layers, expected.layers, strict=True):
        if differ := _unlike(info.model_dump(exclude={"reason"}), other_info.model_dump(exclude={"reason"}), f"layer {info.name}"):
            problems.append(differ)
            break
    return problems


def _raw(reference: Reference, asked: SearchRequest, answer: SearchAnswer, dead: frozenset[int]) -> list[str]:
    """Every hit is a document of the generation, of a shard that was searched, with the raw signals that it has there."""
    n_shards = len({c.shard for c in answer.coverage})
    known = {hit.hash: hit for hit in reference.answer(asked, answer.generation, all_hits=True).hits}
    problems = []
    for hit in answer.hits:
        if shard_of(bytes.fromhex(hit.hash), n_shards) in dead and asked.combine is None:
            problems.append(f"hit {hit.hash} lies in a shard that was not searched")
        if hit.hash not in known:
            problems.append(f"hit {hit.hash} is none of this generation's candidates")
            continue
        problems += _invented(hit, known[hit.hash])
    return problems[:3]


def _invented(hit: Hit, known: Hit) -> list[str]:
    right = {(s.part, s.layer): (s.score, s.start, s.end) for s in known.signals}
    return [
        f"hit {hit.hash}: {s.layer} scores {s.score}, is {right[s.part, s.layer][0]}"
        for s in hit.signals
        # What a space says too little of is left out, by its surprise, which is not that of all shards.
        if right.get((s.part, s.layer), (s.score, s.start, s.end)) != (s.score, s.start, s.end)
    ]


def _unlike(mine: Any, right: Any, at: str, name: str = "") -> str:
    """Where two values part, "" where they do not."""
    if isinstance(mine, dict) and isinstance(right, dict):
        if mine.keys() != right.keys():
            return f"{at}: fields {sorted(mine.keys() ^ right.keys())}"
        return next(filter(None, (_unlike(mine[key], right[key], f"{at}.{key}", key) for key in mine)), "")
    if isinstance(mine, Sequence) and isinstance(right, Sequence) and not isinstance(mine, str):
        if len(mine) != len(right):
            return f"{at}: {len(mine)} items, are {len(right)}"
        return next(filter(None, (_unlike(a, b, f"{at}[{i}]", name) for i, (a, b) in enumerate(zip(mine, right)))), "")
    if name in ROUNDED and isinstance(mine, float) and isinstance(right, float):
        near = mine == right or abs(mine - right) <= TOLERANCE * max(abs(mine), abs(right), 1.0)
        return "" if near else f"{at}: {mine!r}, is {right!r}"
    return "" if mine == right else f"{at}: {mine!r}, is {right!r}"


# --- in a process of its own ---------------------------------------------------------------------------------------------------

_reference: Reference | None = None


def begin(settings: str) -> None:
    """Prepares this process to check answers. settings: `HostSettings` as JSON."""
    global _reference
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this one
    os.nice(10)  # behind those who answer
    _reference = Reference(HostSettings.model_validate_json(settings))


def check(asked: str, body: bytes) -> Judged:
    """One answer as it came, beside the reference's. asked: the request as JSON, "" for a document that was read."""
    assert _reference is not None
    try:
        if not asked:
            return judge_document(_reference, DocumentAnswer.model_validate_json(body))
        return judge(_reference, SearchRequest.model_validate_json(asked), SearchAnswer.model_validate_json(body))
    except Exception as error:  # an answer that cannot be checked is not right
        return Judged((f"cannot be checked: {type(error).__name__}: {error}",), "whole")


def finish() -> None:
    """Gives the reference's leases back."""
    if _reference is not None:
        _reference.close()
