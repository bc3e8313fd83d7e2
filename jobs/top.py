"""`sondage top`: a running server in one screen, drawn anew every other second. Rates and latencies are those of the time between looks.

Drawing is a pure function of two looks at a status; a server that is slow or dying costs nothing but a line that says so.
"""

import os
import select
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from jobs.options import Color, Colors, Url
from shards.errors import BadQuery, SondageError

WINDOW_S = 10.0  # rates and latencies are over so long, that a quiet server shows more than noise
QUANTILES = (0.5, 0.95, 0.99)
LEAST_S, MOST_S = 0.2, 3600.0  # of --interval

Ask = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Look:
    """A server's status. at: when it was there, of this machine's monotonic clock; took_s: how long that took."""

    at: float
    took_s: float
    state: Mapping[str, Any]


class Watching:
    """Looks at a server again and again, from a thread of its own: whoever draws never waits for an answer.

    ask: gives a status, raises SondageError. Of several coordinators behind one address any may answer; looks are compared with older
    ones of the same coordinator alone.
    """

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic):
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()
        self._looks: dict[str, deque[Look]] = {}
        self._newest: Look | None = None
        self._asked_at: float | None = None
        self._problem = ""

    def look(self) -> None:
        """One look, however long it takes."""
        with self._lock:
            self._asked_at = begun = self._clock()
        try:
            state, problem = self._ask(), ""
        except SondageError as error:
            state, problem = None, str(error)
        now = self._clock()
        with self._lock:
            self._asked_at, self._problem = None, problem
            if state is None:
                return
            self._newest = Look(now, now - begun, state)
            looks = self._looks.setdefault(state.get("service", {}).get("coordinator", ""), deque())
            looks.append(self._newest)
            while len(looks) > 2 and looks[1].at <= now - WINDOW_S:
                looks.popleft()
            for name in [name for name, seen in self._looks.items() if seen[-1].at < now - 6 * WINDOW_S]:
                del self._looks[name]

    def seen(self) -> tuple[Look | None, Look | None, str]:
        """The look to compare with, the newest, and what is wrong: "" while answers come in time."""
        with self._lock:
            new, now = self._newest, self._clock()
            old = self._looks[new.state.get("service", {}).get("coordinator", "")][0] if new else None
            problem = self._problem
            if not problem and self._asked_at is not None and now - self._asked_at > 1.0:
                problem = f"no answer for {now - self._asked_at:.0f} s"
            if problem and new is not None:
                problem += f"; what is shown is {now - new.at:.0f} s old"
            return old, new, problem


def add(app: typer.Typer) -> None:
    """Put the command into the `sondage` command."""
    app.command()(top)


def top(
    url: Url = None,
    interval: Annotated[float, typer.Option("--interval", "-n", help="Seconds between looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end; 1 where there was no answer.")] = False,
    color: Colors = Color.auto,
) -> None:
    """Watch a running server: requests, layers, replicas, hosts, what waits. Keys: q ends, space looks at once."""
    if not LEAST_S <= interval <= MOST_S:
        raise BadQuery(f"--interval is {interval:g}; expected {LEAST_S:g} to {MOST_S:g} seconds.")
    import sondage
    from jobs.settings import Settings
    from jobs.terminal import console

    settings = Settings.load(url=url)
    key = settings.api_key.get_secret_value() if settings.api_key else None
    address = settings.url or f"http://127.0.0.1:{settings.port}"
    with sondage.connect(address, key, settings.ca_file) as client:
        watching = Watching(client.status)
        out = console(color.value)
        if once or not out.is_terminal:
            watching.look()
            old, new, problem = watching.seen()
            out.print(screen(address, old, new, problem))
            raise typer.Exit(0 if new is not None else 1)
        _live(out, watching, address, interval)


def _live(out: Any, watching: Watching, address: str, interval: float) -> None:
    """Draws until a key ends it. A look that hangs is left to its thread, which ends with this process."""
    from rich.live import Live

    awake, ended = threading.Event(), threading.Event()

    def look_on() -> None:
        while not ended.is_set():
            watching.look()
            awake.wait(interval)
            awake.clear()

    threading.Thread(target=look_on, name="look", daemon=True).start()
    with _keys() as key, Live(console=out, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(screen(address, *watching.seen()), refresh=True)
                pressed = key(min(interval, 0.5))
                if pressed in ("q", "Q", "\x1b", "\x03", "\x04"):
                    break
                if pressed == " ":
                    awake.set()
        except KeyboardInterrupt:
            pass
        finally:
            ended.set()
            awake.set()


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Keys as they are pressed, without Enter: a function that waits at most so many seconds for one, "" for none."""
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(seconds) or ""
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def key(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1).decode("ascii", "replace") if ready else ""

    try:
        tty.setcbreak(descriptor, termios.TCSADRAIN)  # keys that were pressed while it started count
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


# --- what is drawn -----------------------------------------------------------------------------------------------------------


def screen(address: str, old: Look | None, new: Look | None, problem: str) -> Any:
    """One frame. old, new: the looks that are compared; with one alone, everything since the server started. problem: said on top."""
    from rich.console import Group
    from rich.text import Text

    from jobs import status_tables

    parts: list[Any] = [Text.assemble((f"sondage top {address}", "bold"), ("   q ends, space looks at once", "dim"))]
    if problem:
        parts.append(Text(problem, "bold red"))
    if new is None:
        return Group(*parts, Text("" if problem else "asking …"))
    state = new.state
    parts += [Text(line) for line in (*status_tables.coordinator(state), f"status took {1000 * new.took_s:.0f} ms")]
    since = between(old, new)
    parts += [Text(""), Text(requests_line(since)), routes(since)]
    for name, corpus in state.get("corpora", {}).items():
        parts += [Text(""), Text.assemble((name, "bold magenta"), f": {status_tables.size_of(corpus)}")]
        if "replicas" in corpus:
            lacking = corpus["replicas"]["ready"] < corpus["replicas"]["wanted"]
            for line in (status_tables.replicas(corpus), *status_tables.short(corpus)):
                parts.append(Text(f"  {line}", "yellow" if lacking else ""))
        waiting = [status_tables.debt(corpus.get("debt", ())), status_tables.backlog(corpus.get("log", {})), answers_line(since, name)]
        parts += [Text(f"  {said}") for said in waiting if said]
        parts.append(layers(since, name, corpus))
    parts += [Text(""), status_tables.hosts(state.get("hosts", []))]
    parts += [Text(f"problem: {what}: {reason}", "yellow") for what, reason in state.get("problems", {}).items()]
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class Since:
    """What happened between two looks at one coordinator, or since it started.

    seconds: how long that is. requests: by (route, status); routes: latencies; answers: by (corpus, verdict, complete);
    layers: by (corpus, layer) latencies, answers, and the sum of their covered shares.
    """

    seconds: float
    whole_life: bool
    requests: Counter[tuple[str, int]]
    routes: dict[str, Any]
    answers: Counter[tuple[str, str, bool]]
    layers: dict[tuple[str, str], tuple[Any, int, float]]


def between(old: Look | None, new: Look) -> Since:
    """What the counts of two looks say. old: of the same coordinator; none, the same look, or one before a restart count as nothing."""
    after, before = _Counts(new.state), _Counts(old.state if old else {})
    seconds = after.uptime_s - before.uptime_s
    whole_life = old is None or old is new or seconds <= 0
    if whole_life:
        before, seconds = _Counts({}), after.uptime_s
    return Since(
        seconds=max(seconds, 1e-9),
        whole_life=whole_life,
        requests=after.requests - before.requests,
        routes={route: histogram.since(before.routes.get(route)) for route, histogram in after.routes.items()},
        answers=after.answers - before.answers,
        layers={
            key: (
                histogram.since(before.seconds.get(key)),
                after.n[key] - before.n.get(key, 0),
                after.covered[key] - before.covered.get(key, 0.0),
            )
            for key, histogram in after.seconds.items()
        },
    )


class _Counts:
    """The counts of a status, by what they are of."""

    def __init__(self, state: Mapping[str, Any]):
        from serve.exposition import Histogram

        told = state.get("service", {})
        self.uptime_s: float = told.get("uptime_s", 0.0)
        self.requests = Counter({(r["route"], r["status"]): r["n"] for r in told.get("requests", ())})
        self.routes = {route: Histogram(**h) for route, h in told.get("routes", {}).items()}
        self.answers = Counter({(a["corpus"], a["verdict"], a["complete"]): a["n"] for a in told.get("answers", ())})
        layers = {(one["corpus"], one["layer"]): one for one in told.get("layers", ())}
        self.seconds = {key: Histogram(**one["seconds"]) for key, one in layers.items()}
        self.n: dict[tuple[str, str], int] = {key: one["answers"] for key, one in layers.items()}
        self.covered: dict[tuple[str, str], float] = {key: one["covered"] for key, one in layers.items()}


def requests_line(since: Since) -> str:
    """All requests: "12.5 requests/s in 10 s: 200 120, 429 5"."""
    by_status: Counter[int] = Counter()
    for (_, status), n in since.requests.items():
        by_status[status] += n
    when = "since the start" if since.whole_life else f"in {since.seconds:.0f} s"
    rate = sum(by_status.values()) / since.seconds
    return f"{rate:.1f} requests/s {when}" + (": " if by_status else "") + ", ".join(f"{s} {n:,}" for s, n in sorted(by_status.items()))


def answers_line(since: Since, corpus: str) -> str:
    """How the searches of a corpus ended: "answers: strong 12, none 3; 2 partial"; "" for none."""
    verdicts: Counter[str] = Counter()
    partial = 0
    for (name, verdict, complete), n in since.answers.items():
        if name == corpus:
            verdicts[verdict] += n
            partial += 0 if complete else n
    if not verdicts:
        return ""
    said = ", ".join(f"{verdict} {n:,}" for verdict, n in sorted(verdicts.items()))
    return f"answers: {said}" + (f"; {partial:,} partial" if partial else "; all complete")


def routes(since: Since) -> Any:
    """Rates and latencies by route, those that were asked, the busiest first."""
    from jobs.status_tables import milliseconds
    from jobs.tables import table

    made = table("asked", "/s", "p50 ms", "p95 ms", "p99 ms")
    for route, histogram in sorted(since.routes.items(), key=lambda item: (-item[1].n, item[0])):
        if histogram.n:
            latency = [milliseconds(_ms(histogram.quantile(q))) for q in QUANTILES]
            made.add_row(route, f"{histogram.n / since.seconds:.1f}", *latency)
    return made


def layers(since: Since, corpus: str, told: Mapping[str, Any]) -> Any:
    """Rates, latencies and coverage by layer, with what each takes in memory."""
    from rich.markup import escape

    from jobs.status_tables import in_memory, milliseconds
    from jobs.tables import table

    made = table("layer", "units", "in memory", "/s", "p50 ms", "p95 ms", "p99 ms", "coverage")
    for layer in told.get("layers", ()):
        row = [layer["name"], f"{layer['units']:,}", in_memory(layer)]
        histogram, n, covered = since.layers.get((corpus, layer["name"]), (None, 0, 0.0))
        if histogram is not None and n:
            row += [f"{n / since.seconds:.1f}", *(milliseconds(_ms(histogram.quantile(q))) for q in QUANTILES)]
            row.append(f"{100 * covered / n:.4g} %")
        made.add_row(*map(escape, row))
    return made


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
