"""`sondage top` and the tables of `sondage status`: what two looks say of the time between them, and what a server that dies costs."""

import io
import os
import pty
import threading
from collections import deque
from typing import Any

import pytest
from rich.console import Console
from scripted_coordinator import KEY, Scripted, one_hit, running

from jobs import cli, status_tables, top
from jobs.settings import VARIABLES
from jobs.top import Look, Watching
from serve.metrics import Metrics
from serve.schema import Coverage, SearchRequest
from shards.errors import StoreError

NAMES = ("one", "other")


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in VARIABLES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)


def corpus(**fields: Any) -> dict[str, Any]:
    layer = {
        "name": "bm25", "layer": "bm25", "units": 12, "bytes": 3_400, "granularity": "passage", "origin": "source", "query_format": "words",
        "cost": "little", "resident_bytes": 2_300, "private_bytes": 0,
    }  # fmt: skip
    shards = [{"shard": i, "docs": 5, "entries": 6, "nodes": ["n0", "n1"][: 2 - i]} for i in range(2)]
    told = {
        "generation": 4, "age_s": 3_725.0, "docs": 10, "entries": 12, "text_bytes": 5_000, "segments": 2, "layers": [layer],
        "shards": shards, "kept": [2, 3, 4], "log": {"applied": 7, "end": 9, "waiting": 2}, "debt": [{"merges": 1, "bytes": 2_000_000}],
        "replicas": {"per_shard": 2, "settled": False, "wanted": 4, "ready": 3, "shards_ready": 2,
                     "short": [{"shard": 1, "wanted": 2, "placed": 1, "reason": "one host alone has room"}]},
        "serving": {"number": 3, "replicas": 2, "min_replicas": 1, "max_replicas": 4, "created": "2026-01-01T00:00:00Z", "by": "me",
                    "reason": "load"},
    }  # fmt: skip
    return told | fields


def state(metrics: Metrics, **fields: Any) -> dict[str, Any]:
    host = {
        "node": "0123456789abcdef", "state": "ready", "reason": "", "circuit": "half-open", "queue": 4, "in_flight": 2, "searches": 70,
        "load": {"running": 1, "threads": 2}, "shards": [{}], "rss_bytes": 9_000_000, "cache": {"hits": 3, "misses": 1},
    }  # fmt: skip
    routing = {"calls": 1_000, "hedges": 12, "hedges_won": 0}
    told = {"store": "/index", "corpora": {"c": corpus()}, "hosts": [host], "routing": routing, "coordinator": {"id": "a", "of": 2}}
    told["admission"] = {"under_way": 20, "expected_s": 0.31, "refused": 0}
    return told | {"service": metrics.status(), "problems": {"news": "unreadable"}} | fields


def text_of(*renderables: Any) -> str:
    out = Console(file=io.StringIO(), width=200, color_system=None)
    for one in renderables:
        out.print(one)
    return out.file.getvalue()


def ask(metrics: Metrics, ms: float, n: int = 1, complete: bool = True) -> None:
    answer = one_hit(SearchRequest(corpus="c", query="x"))
    if not complete:
        coverage = [Coverage(layer="bm25", shard=s, state=("ready", "missing")[s], covered=5, total=5 * (1 - s)) for s in range(2)]
        answer = answer.model_copy(update={"complete": False, "coverage": coverage})
    for _ in range(n):
        metrics.begun()
        metrics.answered(answer, {"layer bm25": ms})
        metrics.ended("/v1/search", 200, ms / 1000)


# --- what two looks say ------------------------------------------------------------------------------------------------------


def test_rates_and_latencies_are_those_between_two_looks():
    clock = Clock()
    metrics = Metrics("a", clock)
    ask(metrics, 900.0, 30)  # before the first look
    first = Look(0.0, 0.01, state(metrics))
    clock.now += 10
    ask(metrics, 1.5, 19)
    ask(metrics, 1.5, 1, complete=False)
    metrics.begun()
    metrics.ended("/v1/search", 429, 0.001)
    shown = text_of(top.screen("http://x", first, Look(10.0, 0.02, state(metrics)), ""))
    assert "2.1 requests/s in 10 s: 200 20, 429 1" in shown
    assert "answers: strong 20; 1 partial" in shown
    bm25 = next(line for line in shown.splitlines() if line.startswith("bm25"))
    assert bm25.split()[-6:] == ["2.0", "1.5", "1.9", "2", "97.5", "%"]
    assert "calls to hosts: calls 1,000, hedges 12" in shown and "status took 20 ms" in shown


def test_the_first_look_shows_all_since_the_start():
    metrics = Metrics("a", clock := Clock())
    ask(metrics, 1.5, 8)
    clock.now += 4
    only = Look(0.0, 0.01, state(metrics))
    assert "2.0 requests/s since the start: 200 8" in text_of(top.screen("http://x", only, only, ""))


def test_a_coordinator_that_began_anew_counts_from_its_start():
    old_clock, new_clock = Clock(), Clock()
    before, after = Metrics("a", old_clock), Metrics("a", new_clock)
    ask(before, 1.5, 100)
    old_clock.now += 500
    new_clock.now += 2
    ask(after, 1.5, 6)
    since = top.between(Look(0.0, 0.0, state(before)), Look(5.0, 0.0, state(after)))
    assert (since.seconds, since.requests["/v1/search", 200], since.layers["c", "bm25"][1]) == (2.0, 6, 6)


def test_a_server_of_an_older_version_that_counts_nothing_is_shown_as_far_as_it_tells():
    bare = {"corpora": {"c": {k: v for k, v in corpus().items() if k not in ("replicas", "age_s", "log", "serving", "kept")}}, "hosts": []}
    shown = text_of(top.screen("http://x", None, Look(0.0, 0.0, bare), ""))
    assert "c: generation 4, 10 documents of 12 entries" in shown and "bm25" in shown


# --- looking again and again -------------------------------------------------------------------------------------------------


def test_looks_are_compared_with_older_ones_of_the_same_coordinator():
    clock = Clock()
    counts = {name: Metrics(name, clock) for name in NAMES}
    order = deque(["one", "other", "one", "other"])

    watching = Watching(lambda: state(counts[order.popleft()]), clock)
    for _ in range(4):
        watching.look()
        clock.now += 2
    old, new, problem = watching.seen()
    assert problem == ""
    assert (old.state["service"]["coordinator"], new.state["service"]["coordinator"]) == ("other", "other")
    assert new.at - old.at == 4


def test_what_is_kept_of_looks_is_a_window_and_coordinators_that_are_gone_are_forgotten():
    clock = Clock()
    names = iter(["gone", *["here"] * 200])
    watching = Watching(lambda: state(Metrics(next(names), clock)), clock)
    for _ in range(200):
        watching.look()
        clock.now += 0.5
    assert set(watching._looks) == {"here"}
    old, new, _ = watching.seen()
    assert top.WINDOW_S <= new.at - old.at <= top.WINDOW_S + 1 and len(watching._looks["here"]) < 30


def test_a_server_that_fails_leaves_the_last_look_and_says_how_old_it_is():
    clock = Clock()
    metrics = Metrics("a", clock)
    answers = iter([state(metrics)])

    def ask_once() -> dict[str, Any]:
        if (told := next(answers, None)) is None:
            raise StoreError("Nothing answers at http://x.")
        return told

    watching = Watching(ask_once, clock)
    watching.look()
    clock.now += 7
    watching.look()
    old, new, problem = watching.seen()
    assert problem == "Nothing answers at http://x.; what is shown is 7 s old"
    assert "Nothing answers" in (shown := text_of(top.screen("http://x", old, new, problem))) and "c: generation 4" in shown


def test_a_server_that_hangs_is_told_while_it_does():
    clock = Clock()
    asked, release = threading.Event(), threading.Event()

    def hang() -> dict[str, Any]:
        asked.set()
        assert release.wait(20)
        return state(Metrics("a", clock))

    watching = Watching(hang, clock)
    looking = threading.Thread(target=watching.look)
    looking.start()
    assert asked.wait(20)
    assert watching.seen()[2] == ""  # it has a second
    clock.now += 3
    assert watching.seen() == (None, None, "no answer for 3 s")
    assert "no answer for 3 s" in text_of(top.screen("http://x", *watching.seen()))
    release.set()
    looking.join(20)
    assert watching.seen()[2] == ""


@pytest.mark.parametrize("pressed", ["q", " q", "\x1b"])
def test_a_key_ends_it_and_the_terminal_is_as_before(monkeypatch, pressed):
    import termios

    leader, follower = pty.openpty()
    before = termios.tcgetattr(follower)
    looks = []
    metrics = Metrics("a", Clock())

    def answer() -> dict[str, Any]:
        looks.append(1)
        return state(metrics)

    with os.fdopen(follower, "r") as keyboard:
        monkeypatch.setattr("sys.stdin", keyboard)
        os.write(leader, pressed.encode())
        out = Console(file=io.StringIO(), force_terminal=True, width=120, height=60)
        top._live(out, Watching(answer), "http://x", 3600.0)
        assert termios.tcgetattr(follower) == before
    os.close(leader)
    assert "sondage top http://x" in out.file.getvalue() and looks


# --- the commands ------------------------------------------------------------------------------------------------------------


class Server(Scripted):
    def __init__(self) -> None:
        super().__init__()
        self.metrics = Metrics("scripted", Clock())

    async def status(self) -> dict[str, Any]:
        told = state(self.metrics)
        del told["service"]  # the application's
        return told


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_once_prints_one_look_for_scripts(capsys):
    with running(Server()) as url:
        code, out, err = run(capsys, "top", "--once", "--url", url)
    assert (code, err) == (0, "")
    for text in (f"sondage top {url}", "one of 2, up", "20 searches under way; one more would take 0.31 s", "c: generation 4",
                 "(moving), 3 of 4 copies ready", "1 merges due, 2.0 MB", "2 entries of the log", "0123456789ab  ready  half-open", "1/2",
                 "problem: news: unreadable"):  # fmt: skip
        assert text in out, out


def test_once_without_an_answer_says_so_and_ends_with_1(capsys):
    with running(Server()) as url:
        pass
    code, out, _ = run(capsys, "top", "--once", "--url", url)
    assert code == 1 and "Nothing answers at" in out


def test_a_server_that_wants_a_key_says_so(capsys, monkeypatch):
    with running(Server(), (KEY,)) as url:
        code, out, _ = run(capsys, "top", "--once", "--url", url)
        assert code == 1 and "wants an API key" in out
        monkeypatch.setenv("SONDAGE_API_KEY", KEY)
        assert run(capsys, "top", "--once", "--url", url)[0] == 0


@pytest.mark.parametrize("option", [("--interval", "0"), ("--interval", "nan"), ("--color", "blue")])
def test_options_that_make_no_sense_are_refused(capsys, option):
    code, _, err = run(capsys, "top", "--once", *option)
    assert code == 2 and option[0] in err and ("expected" in err or "is not one of 'auto', 'always', 'never'" in err)


def test_status_shows_replicas_generations_records_and_what_waits(capsys):
    with running(Server()) as url:
        code, out, err = run(capsys, "status", "--url", url, "--color", "never")
    assert (code, err) == (0, "")
    for text in ("1 shard lacks a place for a copy: one host alone has room",
                 "2 shards, 2 segments, published 1 h 2 min ago", "replicas: 2 of each shard (moving), 3 of 4 copies ready",
                 "3 generations kept: 2, 3, 4", "2 entries of the log of pushed documents to be applied", "1 merges due, 2.0 MB",
                 "serving record 3: 2 replicas wanted, 1 to 4 by load, written 2026-01-01T00:00:00Z by me because of load",
                 "    0          5        6  n0, n1", "    1          5        6  n0", "75%"):  # fmt: skip
        assert text in out, out


# --- words -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (7_500, "2 h 5 min"), (273_600, "3 d 4 h"), (86_400, "1 d")],
)
def test_spans_of_time_are_told_in_two_units(seconds, said):
    assert status_tables.age(seconds) == said


def test_of_many_shards_those_are_shown_that_lack_a_copy():
    shards = [{"shard": i, "docs": 1, "entries": 1, "nodes": ["a", "b"] if i != 70 else ["a"]} for i in range(100)]
    told = corpus(shards=shards)
    shown = text_of(status_tables.shards(told))
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ["70"]
    assert status_tables.shards(corpus(shards=[{**shard, "nodes": ["a", "b"]} for shard in shards])) is None
    lost = corpus(replicas={"per_shard": 2, "settled": True, "wanted": 4, "ready": 2, "shards_ready": 1})
    assert status_tables.replicas(lost).endswith("2 of 4 copies ready, 1 of 2 shards without any")


def test_reasons_are_told_once_and_not_all_of_very_many():
    def told(*reasons: str) -> list[str]:
        lacking = [{"shard": i, "wanted": 2, "placed": 1, "reason": reason} for i, reason in enumerate(reasons)]
        return status_tables.short({"replicas": {"short": lacking}})

    assert told() == [] and told("full", "full") == ["2 shards lack a place for a copy: full"]
    assert told(*(f"it needs {size} bytes" for size in range(100)))[-1] == "97 shards more, for other reasons"


def test_many_generations_are_told_by_their_ends():
    assert status_tables.kept(list(range(1, 101))) == "100 generations kept: 1, …, 95, 96, 97, 98, 99, 100"
    assert status_tables.kept([4]) == ""
