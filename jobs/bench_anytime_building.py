"""What searches pay for a layer that is being built beside them.

One server over a corpus of `--session-files` small files whose `dense` is built where it is used. In turns nothing is to be built, and all
of it was ordered and is being encoded: `N_TURNS` times each for `TURN_S`, in one run, the same questions at the same pace by `N_CLIENTS`
clients. Words of the cheap layers and questions that are encoded themselves alternate; nothing is scored on the fly, and nothing that is
shown is counted, so that both turns do the same work. The builder has to have encoded something in each of its turns.
"""

import itertools
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.bench_anytime_cold import CORPUS, met, post
from jobs.bench_anytime_server import Served, served
from jobs.bench_anytime_session import DEAR, DEAR_DIALS, built, index, questions_of, session_files
from jobs.bench_anytime_wire import Wire
from jobs.chaos_report import percentile
from jobs.progress import Progress
from shards.errors import BadSpec

N_TURNS, TURN_S = 4, 12.0  # of each kind; how long one lasts
N_CLIENTS, PACE_S = 2, 0.08  # at once; from one question of a client to its next
WARM_S = 12.0  # of questions before the first turn: as long as one, since what is first asked loads and compiles
PATIENCE_S = 120.0  # for the sample and its null models; for an order to be begun or done
BUDGET_MS = 3_000
MOST_P99 = 1.3
QUIET, BUSY = "nothing to build", "building"


def bench_building(progress: Progress, options: Namespace) -> dict[str, Any]:
    """p50 and p99 of both kinds of turns."""
    root = session_files(options.session_files, progress)
    texts = [fields["query"] for fields in questions_of(root, 500, options.seed)]
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        folder = Path(scratch)
        index(root, str(folder / "store"), f"{DEAR_DIALS},built=used", progress)
        with served(str(folder / "store"), folder / "log") as server:
            _order(server, {"usage": False})
            _until(server, lambda told: told["built"] > 0 and not told["due"] and not told["running"], "its sample was built", progress)
            asked = itertools.cycle(_questions(texts))
            _turn(server, asked, WARM_S)
            seconds: dict[str, list[list[float]]] = {QUIET: [], BUSY: []}
            encoded = []
            for turn in range(N_TURNS):
                _order(server, {"cancel": DEAR})
                _until(server, lambda told: not told["due"] and not told["running"], "the builder was at rest", progress)
                seconds[QUIET].append(_turn(server, asked, TURN_S))
                before = built(server)["encoded_today"]
                _order(server, {"build": DEAR})
                _until(server, lambda told: told["running"] > 0, "the builder began", progress)
                seconds[BUSY].append(_turn(server, asked, TURN_S))
                encoded.append(built(server)["encoded_today"] - before)
                progress("building", turn + 1, N_TURNS, "turns")
            left = built(server)["due"]
    if not min(encoded):
        raise BadSpec(f"In a turn of building nothing was encoded: {encoded}. Searches leave no time for it.")
    if not left:
        raise BadSpec("All was built before the last turn ended: give more --session-files.")
    return figures(seconds) | {"documents encoded in each turn": encoded}


def figures(seconds: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Of each kind's turns, what searches took in seconds: marks in ms, and how many times as long they took beside a build."""
    pooled = {kind: list(itertools.chain(*turns)) for kind, turns in seconds.items()}
    marks = {
        kind: {f"p{round(100 * share)}": round(1_000 * (percentile(took, share) or 0.0), 2) for share in (0.5, 0.9, 0.99)}
        for kind, took in pooled.items()
    }
    ratios = {name: marks[BUSY][name] / max(marks[QUIET][name], 1e-9) for name in ("p50", "p90", "p99")}
    each = {kind: [round(1_000 * (percentile(took, 0.99) or 0.0), 2) for took in turns] for kind, turns in seconds.items()}
    return {
        "searches": {kind: len(took) for kind, took in pooled.items()},
        "ms": marks,
        "times as long": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "p99 of each turn, ms": each,
        "targets": {f"p99 at most {MOST_P99} times": met(ratios["p99"] <= MOST_P99, f"{ratios['p99']:.2f}")},
    }


def _questions(texts: Sequence[str]) -> list[dict[str, Any]]:
    """In turns of words, and of what a transformer encodes."""
    layers = (["bm25", "static"], [DEAR])
    return [{"query": text, "layers": layers[i % 2], "goal": "fast"} for i, text in enumerate(texts)]


def _turn(server: Served, asked: Iterator[dict[str, Any]], seconds: float) -> list[float]:
    """Seconds of each question, as many as that time gives room for."""
    found: list[float] = []
    failed: list[str] = []
    lock, ends = threading.Lock(), time.perf_counter() + seconds

    def client(number: int) -> None:
        wire, due = Wire(server.url), time.perf_counter() + number * PACE_S / N_CLIENTS
        while due < ends and not failed:
            time.sleep(max(due - time.perf_counter(), 0.0))
            with lock:
                fields = next(asked)
            status, answer, took = post(wire, "/v1/search", {"corpus": CORPUS, "budget_ms": BUDGET_MS, **fields})
            with lock:
                found.append(took)
                if status != 200:
                    failed.append(f"{status}: {answer}"[:300])
            due = max(due + PACE_S, time.perf_counter())
        wire.close()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(N_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise BadSpec(f"A search was answered with {failed[0]}\n{server.said()}")
    return found


def _order(server: Served, order: Mapping[str, Any]) -> None:
    status, answer, _ = post(Wire(server.url), f"/v1/corpora/{CORPUS}/layers", order)
    if status != 200:
        raise BadSpec(f"The order {dict(order)} was answered with {status}: {answer}\n{server.said()}")


def _until(server: Served, wanted: Any, what: str, progress: Progress) -> None:
    begun = time.perf_counter()
    while (at := time.perf_counter() - begun) < PATIENCE_S:
        told = built(server)
        if told["documents"] and wanted(told):
            return
        progress("builder", round(at), round(PATIENCE_S), "seconds")
        time.sleep(0.2)
    raise BadSpec(f"After {PATIENCE_S:.0f} s the server does not say that {what}: {built(server)}\n{server.said()}")
