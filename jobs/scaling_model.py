"""What a query costs over many shards, by what is measured over few: the figures of "At a thousand shards" in ARCHITECTURE.md.

Measured: CPU of a call to a host, of merging a part of an answer, of a shard and of a passage searched; bytes of an answer, of an index
and of the table of terms. `extrapolated` is arithmetic over these. `jobs/bench_cluster.py` runs it.
"""

import math
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.passage_corpus import CORPUS, N_SHARDS, indexed, linked, models_dir
from jobs.progress import Progress

if TYPE_CHECKING:
    from cluster.host import Host
    from serve.settings import ServiceSettings
    from shards.generation import Generation
    from shards.plan import Plan
    from shards.types import Candidates

MODEL_SHARDS = 64  # into which the corpus is cut for what a part of an answer costs: real ones, each a 64th
MODEL_HOSTS = (1, 2, 4)
MODEL_QUERIES = 200
QUESTION = "return the number of bytes that were read from the file"
SHARDS_OF_HOST = 8  # in the extrapolation
PASSAGES_OF_SHARD = 10_000_000


def _plan(generation: "Generation", query: str) -> "Plan":
    """As the coordinator makes it."""
    from shards.layers.contract import Request
    from shards.plan import Everything, Plan

    prepared = (space.layer.prepare(Request(query), generation.statistics(name)) for name, space in sorted(generation.spaces.items()))
    asked = [replace(each, space=name) for name, each in zip(sorted(generation.spaces), prepared, strict=True) if each is not None]
    return Plan(Everything(), tuple(asked), budget_s=60.0)


def _best_ms(work: Callable[[], object], rounds: int = 20) -> float:
    """CPU milliseconds of the quickest run: what others take of the machine only adds."""
    took = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        took.append(time.process_time() - begun)
    return 1000 * min(took)


def model_here(kept: Path, progress: Progress) -> dict[str, Any]:
    """What needs no cluster: the parts of an answer, what merging them costs, what statistics weigh. kept: `corpus_of`'s store."""
    from cluster.host import Host
    from shards.candidates import merge
    from shards.generation import Generation
    from shards.layers.contract import Resources

    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        store, cache = linked(kept, Path(scratch) / "store"), Path(scratch) / "cache"
        indexed(store, kept.parent / "source", cache, progress, MODEL_SHARDS)
        host = Host(str(store), {}, str(cache / "files"), models_dir=str(models_dir()))
        generation = Generation.open(host.store, host.cache, CORPUS, None, Resources(models=models_dir()))
        root = generation.root
        plan = _plan(generation, QUESTION)
        parts = [_search(host, root.generation, plan, (shard,)) for shard in range(MODEL_SHARDS)]
        sizes = [len(pickle.dumps(part, 5)) for part in parts]
        merging = {n: _best_ms(lambda n=n: merge(parts[:n], plan.n_candidates)) for n in (2, 8, 32, MODEL_SHARDS)}
        counts = sorted(merging)
        per_part, fixed = np.polyfit(counts, [merging[n] for n in counts], 1)
        # The same passages in few shards and in many: what differs is what a shard costs whatever it holds.
        whole = {N_SHARDS: root.generation - 1, MODEL_SHARDS: root.generation}
        searching = {
            n: _best_ms(lambda n=n, number=number: _search(host, number, plan, tuple(range(n))), 10) for n, number in whole.items()
        }
        per_shard = (searching[MODEL_SHARDS] - searching[N_SHARDS]) / (MODEL_SHARDS - N_SHARDS)
        per_passage = (searching[N_SHARDS] - N_SHARDS * per_shard) / root.n_docs
        terms = terms_by_passages(generation)
        index_bytes = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
        return {
            "shards": MODEL_SHARDS,
            "passages": root.n_docs,
            "answer_kb of a shard": round(statistics.median(sizes) / 1000, 1),
            "plan_kb": round(len(pickle.dumps(plan, 5)) / 1000, 1),
            "merge_ms": {str(n): round(ms, 3) for n, ms in merging.items()},
            "merge_ms of a part": round(float(per_part), 4),
            "merge_ms fixed": round(float(fixed), 3),
            "search_ms in so many shards": {str(n): round(ms, 2) for n, ms in searching.items()},
            "search_ms of a shard": round(per_shard, 3),
            "search_ms of a million passages": round(1e6 * per_passage, 2),
            "index_bytes of a passage": round(index_bytes / root.n_docs),
            "terms": terms,
        }


def _search(host: "Host", generation: int, plan: "Plan", shards: tuple[int, ...]) -> "Candidates":
    from cluster.host import HostRequest

    return host.search([HostRequest(CORPUS, generation, shards, replace(plan, n_details=0))])[0]


def terms_by_passages(generation: "Generation") -> dict[str, Any]:
    """How the coordinator's table of terms grows: terms of 1, 4, 16 and all shards together, and Heaps' law through them (V = K n^b)."""
    space = generation.spaces["bm25"]
    seen: dict[int, int] = {}
    held = np.zeros(0, np.uint64)
    passages = 0
    for number, page in enumerate(generation.pages, 1):
        for ref in page.segments:
            arrays = generation.segment(ref).statistics(space.id, ref)
            held = np.union1d(held, arrays["terms"])
            passages += ref.n_docs
        if number in (1, 4, 16, len(generation.pages)):
            seen[passages] = len(held)
    power, log_k = np.polyfit(np.log(list(seen)), np.log(list(seen.values())), 1)
    table = generation.statistics("bm25")
    bytes_of_term = (table.terms.nbytes + table.frequencies.nbytes + sum(w.blob.nbytes + w.offsets.nbytes for w in table.words)) / max(
        len(table.terms), 1
    )
    return {
        "by passages": {str(n): v for n, v in seen.items()},
        "heaps_k": round(float(math.exp(log_k)), 2),
        "heaps_b": round(float(power), 3),
        "bytes of a term": round(bytes_of_term, 1),
    }


async def calls(service: "ServiceSettings", progress: Progress) -> dict[str, Any]:
    """CPU of one query in whoever asks, by the number of hosts asked, over hosts that are real and a plan that is."""
    from cluster.searcher import RaySearcher
    from shards.cache import FileCache
    from shards.generation import Generation
    from shards.layers.contract import Resources
    from shards.store import open_store

    store = open_store(service.host.store_url)
    cache = FileCache(service.host.cache_dir, service.host.cache_bytes)
    generation = Generation.open(store, cache, CORPUS, None, Resources(models=models_dir()))
    plan = _plan(generation, QUESTION)
    root = generation.root
    asking: dict[str, float] = {}
    for n in MODEL_HOSTS:
        cluster = service.cluster.model_copy(update={"max_hosts": n})
        async with RaySearcher(cluster, service.host) as searcher:
            await searcher.warm(CORPUS, root.generation, len(root.shards))
            for _ in range(20):
                parts = await searcher.search(CORPUS, root.generation, len(root.shards), plan)
            begun = time.process_time()
            for _ in range(MODEL_QUERIES):
                parts = await searcher.search(CORPUS, root.generation, len(root.shards), plan)
            asking[str(n)] = 1000 * (time.process_time() - begun) / MODEL_QUERIES
            assert len(parts) == n, f"{len(parts)} hosts were asked, not {n}"
        progress("calls", MODEL_HOSTS.index(n) + 1, len(MODEL_HOSTS), "numbers of hosts")
    ns = [int(n) for n in asking]
    per_call, fixed = np.polyfit(ns, list(asking.values()), 1)
    return {
        "cpu_ms of a query by hosts": {n: round(ms, 3) for n, ms in asking.items()},
        "cpu_ms of a call": round(float(per_call), 3),
        "cpu_ms fixed": round(float(fixed), 3),
    }


def extrapolated(measured: dict[str, Any], shard_counts: Iterable[int] = (4, 32, 128, 512, 1000)) -> list[dict[str, Any]]:
    """What a query costs whoever coordinates it, by the number of shards of 10 million passages, 8 on a host.

    flat: one coordinator calls every host. tree: it calls as many that call the rest, the square root of the hosts each; the CPU is
    that of one node of the tree, `calls` those of all. From measured costs; nothing here was run at that size.
    """
    here, called = measured["in one process"], measured["calls"]
    call_ms, merge_ms = called["cpu_ms of a call"], here["merge_ms of a part"]
    kb, terms = here["answer_kb of a shard"], here["terms"]
    passages_ms = here["search_ms of a million passages"] * PASSAGES_OF_SHARD / 1e6
    search_ms = SHARDS_OF_HOST * (here["search_ms of a shard"] + passages_ms)
    rows = []
    for n in shard_counts:
        hosts = math.ceil(n / SHARDS_OF_HOST)
        fan = math.ceil(math.sqrt(hosts))
        passages = n * PASSAGES_OF_SHARD
        vocabulary = terms["heaps_k"] * passages ** terms["heaps_b"]
        flat_ms = hosts * (call_ms + merge_ms)
        rows.append(
            {
                "shards": n,
                "passages": passages,
                "hosts": hosts,
                "flat_ms": round(flat_ms, 1),
                "flat_per_s of a core": round(1000 / flat_ms),
                "answer_kb": round(hosts * kb),
                "tree_ms of a node": round(fan * (call_ms + merge_ms), 1),
                "tree_calls": hosts + fan if hosts > fan else hosts,
                "terms_gb": round(vocabulary * terms["bytes of a term"] / 1e9, 2),
                "search_cpu_ms of a host": round(search_ms),
                "index_tb": round(passages * here["index_bytes of a passage"] / 1e12, 2),
            }
        )
    return rows
