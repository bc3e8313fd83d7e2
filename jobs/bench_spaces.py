"""Every space alone at a stated size, beside a peer or brute force in the same process.

Ours and the peers are asked in turns, query by query, and each query's best of some rounds counts: other work on the machine slows
whoever is just being asked. CPU times are of the asking thread. A space has its line in SPACES.
"""

import statistics
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from jobs.progress import Progress
from jobs.settings import Settings
from shards.layers.contract import Reader, Resources
from shards.plan import SpaceQuery
from shards.types import Array, Budget, Moments

KS = (10, 100)  # what a person looks at; what each space brings to the fusion
N_CHECKED = 40  # queries whose results are compared with brute force
BARS = {"recall@10": 0.99, "times the peer": 5.0, "moments_us": 200.0}


class Subject(NamedTuple):
    """What is measured.

    what: for people: model, passages, of which text. segments: readers of all passages, asked one after the other
    halves: readers of the same passages as two segments, each asked on a thread of its own; () is not measured
    exact: brute force, each document's best score, (rows,) float64, -inf where there is no match, in the rows of a single segment
    peers: name -> ask(query, k, n_threads), timed beside; the first is the one that ratios are of. It may return places of units
    units: brute force for those places, (units,) float64, for the recall of peers; None: not said
    moments: what the exact moments of a query cost alone; None: they come with the search
    index_bytes: of all arrays; sketch_bytes: of these, what only saves time. encode_per_s: passages, on one thread
    """

    what: str
    n_passages: int
    segments: Sequence[Reader]
    halves: Sequence[Reader]
    queries: Sequence[SpaceQuery]
    exact: Callable[[SpaceQuery], Array]
    peers: Mapping[str, Callable[[SpaceQuery, int, int], Any]]
    moments: Callable[[SpaceQuery], Moments] | None
    index_bytes: int
    encode_per_s: float | None
    units: Callable[[SpaceQuery], Array] | None = None
    sketch_bytes: int = 0


def static_384(n: int, resources: Resources, progress: Progress) -> Subject:
    from jobs.bench_vectors import static_subject

    return static_subject("minilm-384", n, resources, progress)


def static_256(n: int, resources: Resources, progress: Progress) -> Subject:
    from jobs.bench_vectors import static_subject

    return static_subject("minilm-256", n, resources, progress)


def late(n: int, resources: Resources, progress: Progress) -> Subject:
    from jobs.bench_late import late_subject

    return late_subject(n, resources, progress)


def sparse(n: int, resources: Resources, progress: Progress) -> Subject:
    from jobs.bench_sparse import sparse_subject

    return sparse_subject(n, resources, progress)


# name -> (passages, what makes the subject)
SPACES: dict[str, tuple[int, Callable[[int, Resources, Progress], Subject]]] = {
    "static-384": (300_000, static_384),
    "static-256": (1_000_000, static_256),
    "sparse": (100_000, sparse),
    "late": (2_000, late),
}


def sized(text: str) -> dict[str, int]:
    """Of "static-384,static-256=100000": passages by name of the space. Raises ArgumentTypeError."""
    found = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if name not in SPACES:
            raise ArgumentTypeError(f"{name!r} is none of the spaces {', '.join(SPACES)}")
        if size and (not size.isdecimal() or int(size) < 1):
            raise ArgumentTypeError(f"{part!r} does not say how many passages, as in {name}=100000")
        found[name] = int(size) if size else SPACES[name][0]
    return found


def bench_spaces(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Per space: times and ratios at 10 and 100 hits, recall, moments, bytes and encoding rate, beside the bars."""
    resources = Resources(models=Settings.load().models_dir())
    found: dict[str, Any] = {"bars": BARS}
    for name, n in options.spaces.items():
        found[name] = measure(SPACES[name][1](n, resources, progress), options.rounds or 5, progress)
    return found


def measure(subject: Subject, rounds: int, progress: Progress) -> dict[str, Any]:
    """All figures of one space."""
    found: dict[str, Any] = {
        "what": subject.what,
        "passages": subject.n_passages,
        "queries": len(subject.queries),
        "index bytes a passage": round(subject.index_bytes / subject.n_passages, 1),
        "encoded a second": subject.encode_per_s and round(subject.encode_per_s),
    }
    if subject.sketch_bytes:
        found["of these, to save time"] = round(subject.sketch_bytes / subject.n_passages, 1)
    for k in KS:
        found[f"{k} best"] = _timed(subject, k, rounds, progress)
    found |= _checked(subject)
    if subject.moments is not None:
        found["moments_us"] = round(1e6 * statistics.median(_seconds(subject.moments, q)[1] for q in subject.queries), 1)
    return found


def ask_one_after_the_other(readers: Sequence[Reader], query: SpaceQuery, k: int) -> list[float]:
    """The k best scores of all segments; each is told what those before it have found, as a shard does it."""
    best = np.zeros(0)
    for reader in readers:
        floor = float(best[-1]) if len(best) == k else -np.inf
        best = np.sort(np.concatenate([best, reader.search(query, None, k, Budget(), floor).scores]))[::-1][:k]
    return best.tolist()


def _seconds(ask: Callable[..., Any], *arguments: Any) -> tuple[float, float]:
    """(wall, CPU of this thread)"""
    begun, cpu = time.perf_counter(), time.thread_time()
    ask(*arguments)
    return time.perf_counter() - begun, time.thread_time() - cpu


def _timed(subject: Subject, k: int, rounds: int, progress: Progress) -> dict[str, Any]:
    ways: dict[str, Callable[[SpaceQuery], Any]] = {"ours": lambda query: ask_one_after_the_other(subject.segments, query, k)}
    ways |= {name: lambda query, ask=ask: ask(query, k, 1) for name, ask in subject.peers.items()}
    peer = next(iter(subject.peers))
    with ThreadPoolExecutor(2) as pool:
        if subject.halves:
            ways["ours, 2 threads"] = lambda query: list(pool.map(lambda half: half.search(query, None, k, Budget()), subject.halves))
            ways[f"{peer}, 2 threads"] = lambda query: subject.peers[peer](query, k, 2)
        best = {name: np.full((len(subject.queries), 2), np.inf) for name in ways}
        names = list(ways)
        for i, query in enumerate(subject.queries):
            for _ in range(rounds):
                for name in names:
                    best[name][i] = np.minimum(best[name][i], _seconds(ways[name], query))
            names = names[1:] + names[:1]  # nobody is always the first
            progress(f"{k} best", i + 1, len(subject.queries), "queries")
    return {name: _figures(name, seconds, best, peer) for name, seconds in best.items()}


def _figures(name: str, seconds: Array, best: Mapping[str, Array], peer: str) -> dict[str, float]:
    """Milliseconds, by the clock and of CPU where one thread does all, and how many times as fast as the peer on as many threads."""
    figures = {
        "p50_ms": round(1000 * float(np.median(seconds[:, 0])), 3),
        "p99_ms": round(1000 * float(np.quantile(seconds[:, 0], 0.99)), 3),
    }
    threads = ", 2 threads" if name.endswith(", 2 threads") else ""
    if not threads:
        figures["p50_cpu_ms"] = round(1000 * float(np.median(seconds[:, 1])), 3)
    if name.startswith("ours"):
        other = best[peer + threads]
        figures["times the peer"] = round(float(np.median(other[:, 0] / seconds[:, 0])), 2)
        if not threads:
            figures["times the peer, CPU"] = round(float(np.median(other[:, 1] / seconds[:, 1])), 2)
    return figures


def _checked(subject: Subject) -> dict[str, Any]:
    """Recall of the 10 best, ours and the peers', and in how many queries our scores are not those of brute force bit for bit."""
    recall: dict[str, list[float]] = {name: [] for name in ("ours", *subject.peers)}
    different = 0
    queries = subject.queries[:: max(len(subject.queries) // N_CHECKED, 1)]
    for query in queries:
        exact = np.sort(subject.exact(query))[::-1][:10]
        exact = exact[exact > -np.inf]
        ours = ask_one_after_the_other(subject.segments, query, 10)
        different += ours != exact.tolist()
        if not len(exact):
            continue
        recall["ours"].append(sum(score >= exact[-1] for score in ours) / len(exact))
        if subject.units is not None:
            units = subject.units(query)
            tenth = np.partition(units, -10)[-10]
            for name, ask in subject.peers.items():
                places = np.asarray(ask(query, 10, 1))
                found = int((units[places] >= tenth - 1e-6).sum())  # ties, and float32, count as found
                recall[name].append(min(found, 10) / 10)
    return {
        "recall@10": {name: round(statistics.mean(found), 4) for name, found in recall.items() if found},
        "other scores than brute force": f"{different} of {len(queries)} queries",
    }
