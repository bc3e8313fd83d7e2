"""What one coordinator counts as it answers: requests, stages, layers, coverage. Each replica counts for itself, under its own name.

Counting is on the path of every query, so it is dictionaries and lists of numbers: an observation takes 0.2 us, where that of
prometheus_client took 1.7 (0.8 with the labels looked up before), some 20 a query. What is kept is bounded by routes, corpora and
layers, and by `MAX_SERIES`; nothing is kept of a single query. Belongs to one event loop.
"""

import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.exposition import BOUNDS_S, Family, Histogram
from serve.schema import Coverage, SearchAnswer

MAX_SERIES = 4_096  # layers of all corpora together; what comes later is counted together as "other"
OTHER = "other"
MARK_S = 60.0  # "lately" is since the last mark but one: the last one to two minutes
WHOLE = frozenset(("ready", "scoped"))  # states of coverage in which nothing is left to be searched
LAYER = "layer "  # how `serve.answers.layer_times` names layers among the stages
GONE = 499  # nginx's code for a client that went before its answer began

Counts = dict[str, dict[str, Any]]


class LayerCount:
    """One layer of one corpus. answers: in which it was asked; covered: each by the share of the scope that was looked at;
    short: answers by the state of a shard that was not fully searched."""

    __slots__ = ("answers", "covered", "seconds", "short")

    def __init__(self) -> None:
        self.answers, self.covered = 0, 0.0
        self.seconds = Histogram()
        self.short: Counter[str] = Counter()


class Metrics:
    """The counts of one application. name: of this process, the label `coordinator` of all it tells; none: host name and process."""

    def __init__(self, name: str | None = None, clock: Callable[[], float] = time.monotonic):
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._clock = clock
        self._begun = clock()
        self.in_flight = 0
        self.requests: Counter[tuple[str, int]] = Counter()  # by route and status
        self.routes: dict[str, Histogram] = {}
        self.answers: Counter[tuple[str, str, bool]] = Counter()  # by corpus, verdict and whether it is complete
        self.stages: dict[str, Histogram] = {}
        self.queries: Counter[tuple[str, bool]] = Counter()  # by corpus and whether the answer is complete
        self.query_steps: dict[str, Histogram] = {}
        self.layers: dict[tuple[str, str], LayerCount] = {}  # by corpus and layer
        self._marks: deque[dict[tuple[str, str], Histogram]] = deque([{}, {}], maxlen=2)
        self._next_mark = self._begun + MARK_S

    # --- counting ----------------------------------------------------------------------------------------------------------

    def answered(self, answer: SearchAnswer, timings_ms: Mapping[str, float]) -> None:
        """A search was answered. timings_ms: of its stages and layers."""
        corpus = answer.corpus
        ended = corpus, answer.verdict, answer.complete
        self.answers[ended if ended in self.answers or len(self.answers) < MAX_SERIES else (OTHER, *ended[1:])] += 1
        short = {} if answer.complete else _shortfalls(answer.coverage)
        for name, ms in timings_ms.items():
            if not name.startswith(LAYER):
                # Rounds of a combined request are numbered; together they are one stage.
                stage = name.partition(" ")[0]
                if (histogram := self.stages.get(stage)) is None:
                    histogram = self.stages[stage] = Histogram()
                histogram.observe(ms / 1000)
                continue
            key = corpus, name[len(LAYER) :]
            if (count := self.layers.get(key)) is None:
                count = self._layer(key)
            count.answers += 1
            if (missed := short.get(key[1])) is None:
                count.covered += 1.0
                count.seconds.observe(ms / 1000)
                continue
            share, states = missed
            count.covered += share
            count.short.update(states)
            if share or "late" in states:  # it has worked, so that its time means something
                count.seconds.observe(ms / 1000)
        if self._clock() >= self._next_mark:
            self._mark()

    def queried(self, corpus: str, complete: bool, timings_ms: Mapping[str, float]) -> None:
        """A query of NLQL was answered. timings_ms: of its steps, counted apart from those of searches."""
        ended = corpus, complete
        self.queries[ended if ended in self.queries or len(self.queries) < MAX_SERIES else (OTHER, complete)] += 1
        for name, ms in timings_ms.items():
            if (histogram := self.query_steps.get(name)) is None:
                histogram = self.query_steps[name] = Histogram()
            histogram.observe(ms / 1000)

    def begun(self) -> None:
        """A request has come in."""
        self.in_flight += 1

    def ended(self, route: str, status: int, seconds: float) -> None:
        """A request was answered, or its client has gone (`GONE`). route: as it is declared, with its parameters' names."""
        self.in_flight -= 1
        self.requests[route, status] += 1
        if (histogram := self.routes.get(route)) is None:
            histogram = self.routes[route] = Histogram()
        histogram.observe(seconds)

    def _layer(self, key: tuple[str, str]) -> LayerCount:
        if len(self.layers) >= MAX_SERIES:
            key = OTHER, OTHER
        return self.layers.setdefault(key, LayerCount())

    def _mark(self) -> None:
        self._marks.append({key: count.seconds.copy() for key, count in self.layers.items()})
        self._next_mark = self._clock() + MARK_S

    # --- telling -----------------------------------------------------------------------------------------------------------

    def lately(self) -> dict[str, dict[str, dict[str, float | int | None]]]:
        """Latencies of the last minute or two, ms: by corpus and layer n, p50, p95 and p99."""
        if self._clock() >= self._next_mark:  # nobody has asked anything since
            self._mark()
        before = self._marks[0]
        found: dict[str, dict[str, dict[str, float | int | None]]] = {}
        for (corpus, layer), count in list(self.layers.items()):
            found.setdefault(corpus, {})[layer] = latencies(count.seconds.since(before.get((corpus, layer))))
        return found

    def status(self) -> dict[str, Any]:
        """All counts since the start, as JSON values: what two looks apart give rates and latencies in between (`sondage top`)."""
        return {
            "coordinator": self.name,
            "uptime_s": round(self._clock() - self._begun, 3),
            "in_flight": self.in_flight,
            "bounds_s": list(BOUNDS_S),
            "requests": [{"route": route, "status": status, "n": n} for (route, status), n in sorted(self.requests.items())],
            "routes": {route: _told(histogram) for route, histogram in sorted(self.routes.items())},
            "stages": {stage: _told(histogram) for stage, histogram in sorted(self.stages.items())},
            "answers": [
                {"corpus": corpus, "verdict": verdict, "complete": complete, "n": n}
                for (corpus, verdict, complete), n in sorted(self.answers.items())
            ],
            "layers": [
                {"corpus": corpus, "layer": layer, "answers": count.answers, "covered": round(count.covered, 6)}
                | {"short": dict(count.short), "seconds": _told(count.seconds)}
                for (corpus, layer), count in sorted(self.layers.items())
            ],
        }

    def families(self) -> list[Family]:
        """The same as metrics."""
        by_layer = ("corpus", "layer")
        counts = dict(self.layers)
        return [
            Family("sondage_uptime_seconds", "gauge", "Since this coordinator started.", (), {(): self._clock() - self._begun}),
            Family("sondage_requests_in_flight", "gauge", "HTTP requests that are being answered.", (), {(): self.in_flight}),
            Family(
                "sondage_requests_total", "counter", "HTTP requests by route and status; 499: the client went first.",
                ("route", "status"), {(route, str(status)): n for (route, status), n in list(self.requests.items())},
            ),
            Family(
                "sondage_request_seconds", "histogram", "What requests took, from their first line to the end of the answer.",
                ("route",), {(route,): histogram for route, histogram in list(self.routes.items())},
            ),
            Family(
                "sondage_answers_total", "counter", "Searches answered, by verdict and by whether all of the scope was searched.",
                ("corpus", "verdict", "complete"),
                {(corpus, verdict, str(complete).lower()): n for (corpus, verdict, complete), n in list(self.answers.items())},
            ),
            Family(
                "sondage_stage_seconds", "histogram", "What the stages of searches took in the coordinator.",
                ("stage",), {(stage,): histogram for stage, histogram in list(self.stages.items())},
            ),
            Family(
                "sondage_queries_total", "counter", "Queries of NLQL answered, by whether all of the corpus was looked at.",
                ("corpus", "complete"), {(corpus, str(complete).lower()): n for (corpus, complete), n in list(self.queries.items())},
            ),
            Family(
                "sondage_query_step_seconds", "histogram", "What the steps of queries took in the coordinator.",
                ("step",), {(step,): histogram for step, histogram in list(self.query_steps.items())},
            ),
            Family(
                "sondage_layer_seconds", "histogram", "What a layer took in a search, on the slowest of its shards.",
                by_layer, {key: count.seconds for key, count in counts.items()},
            ),
            Family(
                "sondage_layer_answers_total", "counter", "Searches in which a layer was asked.",
                by_layer, {key: count.answers for key, count in counts.items()},
            ),
            Family(
                "sondage_layer_covered_answers_total", "counter",
                "The same, each counted by the share of the scope that the layer looked at: by the former it is the coverage.",
                by_layer, {key: count.covered for key, count in counts.items()},
            ),
            Family(
                "sondage_layer_shortfalls_total", "counter", "Searches in which a shard was not fully searched, by the state it was in.",
                (*by_layer, "state"),
                {(*key, state): n for key, count in counts.items() for state, n in list(count.short.items())},
            ),
        ]  # fmt: skip


class Counted:
    """The application, whose requests are counted."""

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = GONE

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        begun = time.perf_counter()
        self.metrics.begun()
        try:
            await self.app(scope, receive, noted)
        finally:
            self.metrics.ended(_route_of(scope), status, time.perf_counter() - begun)


def latencies(histogram: Histogram) -> dict[str, float | int | None]:
    """n and about p50, p95 and p99 in ms."""
    found: dict[str, float | int | None] = {"n": histogram.n}
    for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        seconds = histogram.quantile(q)
        found[name] = None if seconds is None else round(1000 * seconds, 3)
    return found


def _shortfalls(coverage: Iterable[Coverage]) -> dict[str, tuple[float, set[str]]]:
    """Of layers that were not fully searched: the share of the scope that was, and the states of their shards.

    Shards count alike, as they hold about as many documents: of one whose host is away nobody tells how many it has.
    """
    n_shards: Counter[str] = Counter()
    lost: dict[str, float] = {}
    states: dict[str, set[str]] = {}
    for part in coverage:
        layer, state = part.layer, part.state
        n_shards[layer] += 1
        if state not in WHOLE:
            lost[layer] = lost.get(layer, 0.0) + 1.0 - (part.covered / part.total if part.total else 0.0)
            states.setdefault(layer, set()).add(state)
    return {layer: (1.0 - lost[layer] / n_shards[layer], found) for layer, found in states.items()}


def _route_of(scope: Scope) -> str:
    """The route as it is declared; OTHER for paths that are none, which clients may choose at will."""
    if (route := scope.get("route")) is not None:
        return getattr(route, "path", OTHER)
    # Starlette's own routes leave no more than their endpoint; those here have no parameters, so the path is the declared one.
    return scope["path"] if "endpoint" in scope and not scope.get("path_params") else OTHER


def _told(histogram: Histogram) -> dict[str, Any]:
    return {"counts": list(histogram.counts), "total": round(histogram.total, 6)}
