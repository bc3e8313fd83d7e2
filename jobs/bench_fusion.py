"""What bringing spaces together costs the coordinator: parts of shards merged, made evidence, ranked; beside reciprocal ranks in a dict.

The parts are made up, in the sizes of real ones: each shard's 100 best documents of each space, all scored by all spaces. Null models
are fitted on made-up probes. With `--store` the bytes of that store's null models are told, too.
"""

import json
import math
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.progress import Progress

if TYPE_CHECKING:
    from serve.evidence import SpaceFacts
    from shards.corpus_nulls import CorpusNulls
    from shards.generation import Generation
    from shards.nulls import SpaceNull
    from shards.types import Array, Candidates

SIMILARITY, RARITY = ("bm25", "dense", "late", "sparse", "static"), ("names", "symbols", "text")
N_SHARDS, N_LISTED, N_DETAILS = 16, 100, 20
UNITS = 5_000  # of a shard
# Documents that the lists of a shard are drawn from: of 800 places, 160 to 800 different documents. Spaces that agree list few.
POOLS = {"spaces that share half of what they list": 160, "spaces that share nothing": 800}
BARS = {"whole ms at most": 2.0, "null bytes per space and shard at most": 64 << 10}
RRF_K = 60  # Cormack, Clarke & Buettcher 2009
BINS = 64  # of a table of z, per unit of asinh(z) (`shards.nulls`)


def bench_fusion(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Milliseconds of each step and beside, by how much spaces agree; bytes of null models."""
    rounds = options.rounds or 200
    made: dict[str, Any] = {}
    for i, (name, pool) in enumerate(POOLS.items()):
        progress("fusion", i, len(POOLS), "workloads")
        made[name] = _of_parts(parts(pool, seed=options.seed), rounds)
    progress("fusion", len(POOLS), len(POOLS), "workloads")
    sizes: dict[str, Any] = {"the most of a billion units of 1,024 dimensions": most_bytes(10**9, 1_024)}
    if options.store:
        sizes |= _of_store(options.store)
    return {"shards": N_SHARDS, "spaces": len(SIMILARITY + RARITY), "listed": N_LISTED, "bars": BARS, "ms": made, "null bytes": sizes}


# --- time -----------------------------------------------------------------------------------------------------------------------


def _of_parts(made: "list[Candidates]", rounds: int) -> dict[str, Any]:
    from serve.evidence import fuse, weigh
    from shards.candidates import merge

    corpus, facts = nulls(), spaces()
    n_docs = N_SHARDS * UNITS
    found = merge(made, N_LISTED)
    plain = [_as_lists(part) for part in made]
    lists = merged_lists(plain)
    steps: dict[str, Callable[[], Any]] = {
        "merge": lambda: merge(made, N_LISTED),
        "weigh": lambda: weigh(found, facts, corpus),
        "fuse (weigh, rank, E-values)": lambda: fuse(found, facts, corpus, n_docs, n_words=6),
        "whole": lambda: fuse(merge(made, N_LISTED), facts, corpus, n_docs, n_words=6).order,
        "RRF by dict, lists merged": lambda: reciprocal_ranks(merged_lists(plain)),
        "RRF by dict of merged lists": lambda: reciprocal_ranks(lists),
    }
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):  # in turns, so that what else the machine does falls on all alike
        for name, step in steps.items():
            begun = time.thread_time()  # other work on the machine must not count
            step()
            taken[name].append(1000 * (time.thread_time() - begun))
    rows = {"rows": sum(len(part.hashes) for part in made), "documents": len(found.hashes)}
    figures = {name: {"p50": round(statistics.median(ms), 3), "least": round(min(ms), 3)} for name, ms in taken.items()}
    return rows | figures


def parts(pool: int, seed: int = 0, n_shards: int = N_SHARDS, n_listed: int = N_LISTED) -> "list[Candidates]":
    """What shards would send: of a pool of documents each space lists its best; every similarity space has scored all, a rarity space
    those that match."""
    from shards.types import Candidates, Detail, LayerStatus, Moments

    rng = np.random.default_rng(seed)
    names = sorted(SIMILARITY + RARITY)
    exact = np.array([name in RARITY for name in names])
    made = []
    for shard in range(n_shards):
        hashes = rng.integers(0, 256, (pool, 20), dtype=np.uint8)
        hashes = hashes[np.lexsort(hashes.T[::-1])]
        scores = 2.0 + rng.normal(0, 1, (pool, len(names))) + rng.normal(0, 1, (pool, 1))
        scores[:, exact] = np.where(rng.random((pool, exact.sum())) < max(n_listed / pool, 0.125), 1.0, -np.inf)
        generated = np.zeros(scores.shape, bool)
        ranked = np.argsort(-scores, axis=0, kind="stable")
        for s in range(len(names)):
            # where spaces share nothing, each lists a stretch of its own
            best = ranked[:n_listed, s] if pool < len(names) * n_listed else np.arange(s * n_listed, (s + 1) * n_listed)
            generated[best, s] = np.isfinite(scores[best, s])
        listed = np.flatnonzero(generated.any(axis=1))
        starts = rng.integers(0, 10_000, scores.shape)
        moments = tuple(None if rare else Moments(UNITS, 0.0, float(UNITS)) for rare in exact)
        status = tuple(LayerStatus(name, shard, "ready", UNITS, UNITS) for name in names)
        some = {key.tobytes(): Detail(key.tobytes(), (), 100, "prose", {}) for key in hashes[listed[:N_DETAILS]]}
        rows = (hashes, generated, scores, starts, starts + 300)
        made.append(Candidates(*(column[listed] for column in rows), moments, generated.sum(axis=0), status, some))
    return made


def spaces() -> "list[SpaceFacts]":
    """What fusion is told of the spaces of `parts`."""
    from serve.evidence import SpaceFacts

    def of_match(scores: "Array") -> "Array":
        return np.where(scores > 0, 9.0, 0.0)

    n_units = N_SHARDS * UNITS
    facts = [SpaceFacts(name, "moments", n_units) for name in SIMILARITY]
    facts += [SpaceFacts(name, "rarity", n_units, surprise=of_match) for name in RARITY]
    return sorted(facts, key=lambda space: space.name)


def nulls(n_probes: int = 128, n_units: int = 1_000) -> "CorpusNulls":
    """Null models of the similarity spaces, fitted as real ones are, on normal scores with known items."""
    from shards.corpus_nulls import CorpusNulls
    from shards.nulls import FusedNull

    fitted = {name: _null(seed, n_probes, n_units) for seed, name in enumerate(SIMILARITY)}
    fused = FusedNull((0.0,), (0.0,), 8.0, 1.5, N_SHARDS * UNITS, SIMILARITY, 1)
    return CorpusNulls(1, fitted, fused, N_SHARDS * UNITS, {name: 1.0 / (1 + i) for i, name in enumerate(SIMILARITY)})


def _null(seed: int, n_probes: int, n_units: int) -> "SpaceNull":
    from shards.nulls import ProbeRank, ProbeScan, fit_space, median_sd

    rng = np.random.default_rng(seed)
    rows = np.arange(n_units, dtype=np.int32)
    scores = rng.gamma(2.0, 1.0, (n_probes, n_units))
    scores[np.arange(n_probes), np.arange(n_probes)] += 12.0
    scans = [ProbeScan.of(scores[i], rows, i) for i in range(n_probes)]
    middle = median_sd(scans)
    ranks = [ProbeRank.of(scores[i], rows, i, scans[i], middle) for i in range(n_probes)]
    null = fit_space(scans, ranks, [(6 + i % 20, scan.best) for i, scan in enumerate(scans)])
    assert null is not None
    return null


# --- the peer -------------------------------------------------------------------------------------------------------------------


def _as_lists(part: "Candidates") -> list[list[tuple[float, bytes]]]:
    """What a shard sends to whoever fuses by ranks: of each space (minus score, hash), best first."""
    lists = []
    for s in range(part.generated.shape[1]):
        rows = np.flatnonzero(part.generated[:, s])
        lists.append(sorted((-float(part.scores[row, s]), part.hashes[row].tobytes()) for row in rows))
    return lists


def merged_lists(made: Sequence[list[list[tuple[float, bytes]]]], n: int = N_LISTED) -> list[list[bytes]]:
    """Of each space the best documents of all shards."""
    return [[key for _, key in sorted(item for part in made for item in part[s])[:n]] for s in range(len(made[0]))]


def reciprocal_ranks(lists: Sequence[Sequence[bytes]], k: int = RRF_K) -> list[tuple[float, bytes]]:
    """Reciprocal rank fusion as everybody writes it: (minus score, hash), best first."""
    total: dict[bytes, float] = {}
    for ranked in lists:
        for rank, key in enumerate(ranked, 1):
            total[key] = total.get(key, 0.0) + 1.0 / (k + rank)
    return sorted((-score, key) for key, score in total.items())


# --- bytes ----------------------------------------------------------------------------------------------------------------------


def null_bytes(corpus: "CorpusNulls", shard_bytes: Mapping[str, int] = MappingProxyType({})) -> dict[str, Any]:
    """Of each similarity space, what its null model takes as stored, and with it what a shard keeps.

    A shard keeps no null model (vector spaces a mean, `shard_bytes`, beside the scatter matrix; spaces of postings nothing, since a search
    yields its moments), so the space's own is counted as if every shard had one.
    """
    own = {name: len(json.dumps(null.to_json(), allow_nan=False).encode()) for name, null in corpus.spaces.items()}
    return {
        "of spaces": own,
        "most per space and shard": max((size + shard_bytes.get(name, 0) for name, size in own.items()), default=0),
        "of the corpus, words and all": len(corpus.to_bytes()),
    }


def most_bytes(n_units: int, dim: int) -> int:
    """The most that a space of so many units takes per shard, whatever its scores are like.

    A table has a knot for each bin at most, from the least z to where the tail begins. No unit of n is further below their mean than
    sqrt(n - 1) sd, and a share p of them at most sqrt(1 / p) above (Cantelli's inequality), so the bins are those between.
    """
    from shards.nulls import TAIL_P, SpaceNull
    from shards.probes import N_PROBES

    edges = np.arcsinh([-math.sqrt(n_units), math.sqrt(1 / TAIL_P)]) * BINS
    knots = np.sinh(np.arange(math.floor(edges[0]), math.ceil(edges[1]) + 1) / BINS + 1e-9)
    long = -np.log(np.linspace(1 - 1e-9, TAIL_P, len(knots)))
    home = np.full(2 * N_PROBES, 100 * math.pi)  # probes, and as many parts of them
    worst = SpaceNull(n_units, n_units, N_PROBES, knots, long, math.pi, math.pi, 1 / 3, 1 / 3, home, np.full(len(home), 10_000))
    return len(json.dumps(worst.to_json())) + 8 * dim


def _of_store(url: str) -> dict[str, Any]:
    """The same of every corpus of a store."""
    from jobs.settings import Settings
    from shards.cache import FileCache
    from shards.generation import Generation
    from shards.manifest import list_corpora
    from shards.store import open_store

    settings = Settings.load(store=url)
    store = open_store(settings.store_url(), **settings.store_options())
    cache = FileCache(settings.host_settings().cache_dir, settings.cache_bytes)
    found: dict[str, Any] = {}
    for corpus in list_corpora(store):
        generation = Generation.open(store, cache, corpus, None, settings.resources())
        if generation.nulls is not None:
            found[corpus] = null_bytes(generation.nulls, _shard_bytes(generation))
    return found


def _shard_bytes(generation: "Generation") -> dict[str, int]:
    """Of each space, what any shard's segments keep for moments, scatter matrices aside."""
    most: dict[str, int] = {}
    for page in generation.pages:
        for name, space in generation.spaces.items():
            arrays = [a for ref in page.segments if (a := generation.segment(ref).layer(space.id)) is not None]
            most[name] = max(most.get(name, 0), sum(a["mean"].nbytes for a in arrays if "scatter" in a))
    return most
