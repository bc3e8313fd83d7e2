"""What status tells of corpora: size, layers with what they take, replicas, what waits to be done, what the store keeps."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from serve.answers import describe
from shards.errors import SondageError
from shards.generation import Generation
from shards.manifest import corpus_store
from shards.memory import private_bytes
from shards.merging import merge_debt
from shards.partial import n_built
from shards.pushlog import applied_of, last
from shards.references import generations as kept_generations
from shards.serving_record import newest

if TYPE_CHECKING:
    from shards.store import Store

logger = logging.getLogger(__name__)

LOOK_S = 5.0  # between looks at the store for one corpus, a listing and a look for a name: several may watch a coordinator
PATIENCE_S = 1.0  # a store that is slow or away must not hide what is known without it

NOTHING: dict[str, int | None] = {"mapped_bytes": 0, "resident_bytes": 0, "private_bytes": 0}


class CorpusStatuses:
    """What is told of the corpora below a store. Belongs to one event loop. What a generation alone decides is found out once.

    clock: seconds that only go forward; time_of_day: seconds since 1970, for ages.
    """

    def __init__(self, store: "Store", clock: Callable[[], float] = time.monotonic, time_of_day: Callable[[], float] = time.time):
        self._store, self._clock, self._time_of_day = store, clock, time_of_day
        self._fixed: dict[str, tuple[int, dict[str, Any]]] = {}  # by corpus: of which generation, and what
        self._stored: dict[str, dict[str, Any]] = {}
        self._looks: dict[str, tuple[int, float, asyncio.Task[None]]] = {}  # by corpus: generation, when, the look

    async def tell(self, current: Mapping[str, Generation], told: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """By corpus. told: as `Searcher.status` tells it: hosts, and where shards are placed."""
        await self._look(current)
        found = {}
        for corpus, generation in current.items():
            number, fixed = self._fixed.get(corpus, (0, {}))
            if number != generation.root.generation:
                fixed = await asyncio.to_thread(of_generation, generation)
                self._fixed[corpus] = generation.root.generation, fixed
            found[corpus] = (
                with_hosts(fixed, corpus, told)
                | {"age_s": round(self._time_of_day() - seconds_of(generation.root.created), 3)}
                | self._stored.get(corpus, {})
            )
        return found

    async def _look(self, current: Mapping[str, Generation]) -> None:
        """Ask the store, where the last answer is old or of another generation, and wait for it a little."""
        now = self._clock()
        for corpus, generation in current.items():
            number, at, task = self._looks.get(corpus, (0, 0.0, None))
            if (task is None or task.done()) and (number != generation.root.generation or now - at >= LOOK_S):
                task = asyncio.get_running_loop().create_task(self._ask(corpus, applied_of(generation.root)))
                self._looks[corpus] = generation.root.generation, now, task
        if waiting := [task for corpus in current if not (task := self._looks[corpus][2]).done()]:
            await asyncio.wait(waiting, timeout=PATIENCE_S)

    async def _ask(self, corpus: str, applied: int) -> None:
        try:
            self._stored[corpus] = await asyncio.to_thread(stored, self._store, corpus, applied)
        except (SondageError, OSError) as error:  # the watcher of generations makes a problem of it
            self._stored.pop(corpus, None)
            logger.debug("corpus=%s event=store_not_asked reason=%s", corpus, error)


def stored(store: "Store", corpus: str, applied: int) -> dict[str, Any]:
    """What the store alone tells: the generations it keeps, how far its log of pushed documents is ahead of `applied`, and how it is to be
    served. Raises StoreError.
    """
    inside = corpus_store(store, corpus)
    end, record = last(inside, applied), newest(inside)
    told = {"kept": kept_generations(store, corpus), "log": {"applied": applied, "end": end, "waiting": end - applied}}
    return told | {"serving": None if record is None else record.model_dump(exclude={"format"})}


def of_generation(generation: Generation) -> dict[str, Any]:
    """What a generation tells of itself, whoever serves it."""
    root = generation.root
    layer_bytes: dict[str, int] = {}
    # A segment that several shards cut ranges from lies in the store once.
    for role, _, size in {(r, f.name, f.size) for page in generation.pages for s in page.segments for r, f in s.files.items()}:
        layer_bytes[role] = layer_bytes.get(role, 0) + size
    return {
        "generation": root.generation,
        "created": root.created,
        "docs": root.n_docs,
        "entries": root.n_entries,
        "text_bytes": root.text_bytes,
        "shards": [{"shard": s.shard, "buckets": s.buckets, "docs": s.n_docs, "entries": s.n_entries} for s in root.shards],
        "segments": sum(len(page.segments) for page in generation.pages),
        "dead_docs": sum(r.n_dead_docs for page in generation.pages for r in page.segments),
        "debt": [asdict(debt) for debt in merge_debt(generation.pages)],
        "null_version": root.null_version,
        "sources": {name: ref.model_dump(exclude={"tree"}) for name, ref in root.sources.items()},
        "layers": [
            describe(space, generation, sum(layer_bytes.get(f"{kind}/{space.id}", 0) for kind in ("layer", "stats")))
            | {"docs": n_docs_with(generation, space.name, space.id)}
            | {"statistics_bytes": private_bytes([generation.statistics(space.name)])}
            for space in generation.spaces.values()
        ],
    }


def n_docs_with(generation: Generation, name: str, space_id: str) -> int:
    """Live documents of the segments that a space has been built for; of one that is built where it is used, those that it is built for."""
    segments = (ref for page in generation.pages for ref in page.segments)
    if generation.spaces[name].built == "used":
        return sum(n_built(generation.store, ref, space_id) for ref in segments)
    return sum(ref.n_docs - ref.n_dead_docs for ref in segments if ref.spaces.get(name) == space_id)


def with_hosts(fixed: Mapping[str, Any], corpus: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """The same with what hosts hold of it. told: as `Searcher.status` tells it."""
    memory = memory_of(corpus, told["hosts"])
    replicas, nodes = replicas_of(corpus, fixed["generation"], len(fixed["shards"]), told)
    return {
        **fixed,
        "shards": [shard | {"nodes": on} for shard, on in zip(fixed["shards"], nodes, strict=True)],
        "replicas": replicas,
        "layers": [layer | memory.get(layer["space"], NOTHING) for layer in fixed["layers"]],
        "memory": {what: memory.get(what, NOTHING) for what in ("text", "documents")},
    }


def replicas_of(corpus: str, generation: int, n_shards: int, told: Mapping[str, Any]) -> tuple[dict[str, Any], list[list[str]]]:
    """How many copies of shards there are, and by shard the nodes of ready hosts that have it open.

    per_shard: wanted of each shard; settled: all that are placed are open; wanted: copies, shards x per_shard, also where there are too
    few hosts for them; ready: of the placed copies those that are open; shards_ready: shards of which any copy is; short: shards that have
    no place for all their copies, and why. Where nobody places shards, there is one host for all.
    """
    placed = told.get("placement", {}).get(corpus)
    if placed is not None and len(placed["shards"]) == n_shards:
        target, nodes = placed["shards"], [list(on) for on in placed["open"]]
        per_shard, settled, short = placed["wanted"], placed["settled"], placed.get("short", [])
    else:
        nodes = [[] for _ in range(n_shards)]
        for host in told["hosts"]:
            for shard in host.get("shards", ()) if host["state"] == "ready" else ():
                if (shard["corpus"], shard["generation"]) == (corpus, generation) and shard["shard"] < n_shards:
                    nodes[shard["shard"]].append(host["node"])
        target, per_shard, settled, short = nodes, 1, all(nodes), []
    return {
        "per_shard": per_shard,
        "settled": settled,
        "wanted": n_shards * per_shard,
        "ready": sum(len({*wanted} & {*there}) for wanted, there in zip(target, nodes, strict=True)),
        "shards_ready": sum(map(bool, nodes)),
        "short": short,
    }, nodes


def memory_of(corpus: str, hosts: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int | None]]:
    """What all hosts hold of a corpus in memory, summed: by space id, and as "text" and "documents" (see `Host.memory`).

    A sum of which one host cannot tell its part is None.
    """
    total: dict[str, dict[str, int | None]] = {}
    for host in hosts:
        for what, parts in host.get("memory", {}).get(corpus, {}).items():
            sums = total.setdefault(what, dict(NOTHING))
            for name, size in parts.items():
                before = sums[f"{name}_bytes"]
                sums[f"{name}_bytes"] = None if before is None or size is None else before + size
    return total


def seconds_of(created: str) -> float:
    """A manifest's time of day, ISO 8601 in UTC, as seconds since 1970."""
    return datetime.fromisoformat(created).timestamp()


def with_latencies(state: Mapping[str, Any], lately: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A whole status with what each layer took lately, as `Metrics.lately` tells it, where it was asked."""
    corpora = {
        corpus: {**told, "layers": [_latency(layer, lately.get(corpus, {})) for layer in told["layers"]]} if "layers" in told else told
        for corpus, told in state.get("corpora", {}).items()
    }
    return {**state, "corpora": corpora}


def _latency(layer: Mapping[str, Any], lately: Mapping[str, Any]) -> dict[str, Any]:
    return {**layer, "latency_ms": lately[layer["name"]]} if layer["name"] in lately else dict(layer)
