"""The harness that proves the cluster: it finds what is wrong, and a run of a minute finds nothing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from engine import Engine, write_files
from ray_cluster import ROOT, patience

from cluster.settings import HostSettings
from jobs import chaos
from jobs.chaos_checks import Reference, judge
from jobs.chaos_load import Asked, JobRun, Pushed
from jobs.chaos_report import figures, recovery_s
from jobs.chaos_victims import CHANCES, Strike, draw
from jobs.local_cluster import KINDS, PRODUCTION
from serve.schema import SearchAnswer, SearchRequest

QUERY = SearchRequest(corpus="c", query="harbour ships", k=20)
WORDS = ("basalt", "cobalt", "dolomite", "ebony", "flint")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chaos")
    texts = {f"{i}.txt": f"The harbour {WORDS[i % 5]} of village {i} is open to {'ships' if i % 3 else 'boats'}.\n" for i in range(24)}
    Engine(folder, ("names", "bm25")).index(write_files(folder / "source", texts), n_shards=4)
    made = Reference(HostSettings(store_url=str(folder / "store"), cache_dir=folder / "cache"))
    yield made
    made.close()


def changed(answer: SearchAnswer, *place: str | int, to) -> SearchAnswer:
    """The answer with one value replaced. to: the value, or what makes it of the old one."""
    body = answer.model_dump()
    at = body
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = to(at[place[-1]]) if callable(to) else to
    return SearchAnswer.model_validate(body)


def problems(reference: Reference, answer: SearchAnswer) -> str:
    return "; ".join(judge(reference, QUERY, answer).problems)


def test_a_whole_answer_and_a_partial_one_that_says_so_are_right(reference):
    whole = reference.answer(QUERY, 1)
    assert whole.complete and len(whole.hits) > 8
    assert (judge(reference, QUERY, whole).problems, judge(reference, QUERY, whole).how) == ((), "whole")
    partial = reference.answer(QUERY, 1, frozenset({0, 2}))
    assert not partial.complete and 0 < len(partial.hits) < len(whole.hits)
    assert (judge(reference, QUERY, partial).problems, judge(reference, QUERY, partial).how) == ((), "partial")
    textless = partial.model_copy(update={"hits": partial.hits[1:]})  # its host died before its text was read
    assert not judge(reference, QUERY, textless).problems


def test_the_last_digits_of_sums_may_differ_and_nothing_else(reference):
    whole = reference.answer(QUERY, 1)
    assert not problems(reference, changed(whole, "hits", 0, "evalue", to=lambda e: e * (1 + 1e-12)))
    assert "hits" not in problems(reference, changed(whole, "timings_ms", to={}))
    assert "score" in problems(reference, changed(whole, "hits", 0, "signals", 0, "score", to=lambda s: s * (1 + 1e-12)))


@pytest.mark.parametrize(
    ("place", "to", "says"),
    [
        (("hits",), lambda hits: [hits[1], hits[0], *hits[2:]], "part at 0"),
        (("hits",), lambda hits: hits[:-1], "hits, are"),
        (("hits", 2, "evalue"), lambda e: e * (1 + 1e-6), "evalue"),
        (("hits", 0, "entries", 0, "path"), "another.txt", "path"),
        (("hits", 0, "excerpt", "text"), "another text", "excerpt"),
        (("verdict",), "none", "verdict"),
        (("complete",), False, "complete"),
        (("coverage", 0, "state"), "missing", "calls itself complete"),
        (("coverage",), lambda rows: rows[1:], "coverage differs"),
        (("coverage",), lambda rows: [*rows, rows[0]], "twice"),
        (("coverage", 0, "covered"), lambda n: n + 1, "ready"),
    ],
)
def test_every_way_of_being_wrong_is_found(reference, place, to, says):
    assert says in problems(reference, changed(reference.answer(QUERY, 1), *place, to=to))


def test_a_partial_answer_with_too_much_or_too_little_is_found(reference):
    whole, partial = reference.answer(QUERY, 1), reference.answer(QUERY, 1, frozenset({0, 2}))
    known = {hit.hash for hit in partial.hits}
    beyond = next(hit for hit in whole.hits if hit.hash not in known)
    assert problems(reference, partial.model_copy(update={"hits": [*partial.hits, beyond]}))
    assert problems(reference, changed(partial, "complete", to=True))
    # What it calls searched was not: the hits of shard 2 are missing without a word.
    fewer = reference.answer(QUERY, 1, frozenset({0}))
    assert problems(reference, partial.model_copy(update={"hits": fewer.hits, "complete": True}))


def test_of_a_shard_that_was_searched_in_part_the_raw_signals_must_be_right(reference):
    whole = reference.answer(QUERY, 1)
    begun = changed(whole, "complete", to=False)
    begun = changed(begun, "coverage", 0, to=lambda row: row | {"state": "late", "covered": 1})
    assert (judge(reference, QUERY, begun).problems, judge(reference, QUERY, begun).how) == ((), "raw")
    assert "scores" in problems(reference, changed(begun, "hits", 0, "signals", 0, "score", to=lambda s: s + 1))
    assert "candidates" in problems(reference, changed(begun, "hits", 0, "hash", to="0" * 40))


def test_what_is_struck_is_a_function_of_the_seed_and_misses_no_kind():
    drawn = draw(7, 20, list(CHANCES))
    assert drawn == draw(7, 20, list(CHANCES)) != draw(8, 20, list(CHANCES))
    assert {(d.kind, d.way) for d in drawn[: len(CHANCES)]} == set(CHANCES)
    assert draw(7, 5, list(CHANCES)) == [*drawn[:5]]


def test_processes_are_known_by_their_titles():
    titles = {
        "host": "ray::Host.search",
        "coordinator": "ray::ServeReplica:sondage:Service",
        "controller": "ray::ServeController.listen",
        "proxy": "ray::ProxyActor",
        "raylet": "/x/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/y",
        "gcs": "/x/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/y",
    }
    for kind, title in titles.items():
        assert [k for k, form in KINDS.items() if re.match(form, title)] == [kind]


STRIKE = Strike("host", "kill", 10.0, 1, "")


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ([Asked("search", 11.0, 1.0)], 0.0),
        ([Asked("search", 11.0, 1.0, partial=True)], 2.0),
        ([Asked("search", 9.0, 1.5, partial=True)], 0.5),  # under way when it was struck
        ([Asked("search", 5.0, 1.0, partial=True)], 0.0),  # before
        ([Asked("search", 11.0, 1.0, retried="broken"), Asked("push", 12.0, 0.5, failure="refused")], 2.5),
        ([Asked("search", 19.5, 1.0, partial=True)], 0.0),  # the next strike's
    ],
)
def test_recovery_lasts_until_the_last_request_that_showed_the_strike(asked, seconds):
    assert recovery_s(asked, STRIKE, until=20.0) == pytest.approx(seconds)


def test_the_figures_count_by_victim_what_came_after_it():
    records = [
        Asked("search", 1.0, 0.1, 200, generation=1),
        Asked("search", 11.0, 2.0, 200, partial=True, generation=1),
        Asked("push", 12.0, 0.2, 200, retried="refused"),
        Asked("search", 21.0, 0.3, failure="no answer", generation=0),
    ]
    strikes = [STRIKE, Strike("proxy", "kill", 15.0, 0, "nobody there"), Strike("node", "kill", 20.0, 3, "")]
    found = figures(records, strikes, [JobRun("index", 0, 4.0, "done"), JobRun("index", 5, 2.0, "exit 2: no")], 30.0)
    assert (found["failed"], found["partial"], found["retried"], found["strikes"]) == (1, 1, {"refused": 1}, 2)
    assert found["by_victim"]["kill host"] | {"recovery_s": 0} == {
        "n": 1, "recovery_s": 0, "requests": 2, "partial": 1, "retried": 1, "failed": 0,
    }  # fmt: skip
    assert found["by_victim"]["kill node"]["failed"] == 1 and found["recovery_s"]["max"] == 3.0
    assert found["jobs"]["index"]["failed"] == 1 and found["search"]["n"] == 2


GOOD = {"wrong": 0, "problems": [], "whole_again_s": 1.0, "failed": 0, "asked": {"replicas": 2}}


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ({}, 0),
        ({"wrong": 1}, 1),
        ({"failed": 1}, 1),
        ({"failed": 1, "asked": {"replicas": 1}}, 0),
        ({"problems": ["a file is lost"]}, 1),
        ({"whole_again_s": None}, 1),
    ],
)
def test_the_exit_code_says_whether_it_held(found, code):
    assert chaos.verdict(GOOD | found) == code


def test_a_push_whose_answer_was_lost_may_have_been_performed_or_not():
    pushed = Pushed()
    pushed.sent("a", b"1")
    pushed.acknowledged("a", b"1")
    assert pushed.may_hold == {"a": {b"1"}}
    pushed.sent("a", b"2")
    assert pushed.may_hold == {"a": {b"1", b"2"}}
    pushed.sent("b", b"1")
    assert pushed.may_hold["b"] == {None, b"1"} and pushed.n_acknowledged == 1


def test_chaos_runs_with_the_settings_that_production_has():
    exported = " ".join(re.findall(r"^export (.*)$", (ROOT / "infra" / "setup").read_text(), re.MULTILINE))
    pairs = {name: value for name, value in re.findall(r"\b(RAY_\w+)=(\S+)", exported) if "TOKEN" not in name}
    assert pairs == PRODUCTION


def test_an_unknown_victim_is_refused_before_anything_starts(capsys):
    assert chaos.main(["--victims", "kill-moon"]) == 2
    assert "choose from kill-host" in capsys.readouterr().err


@pytest.mark.ray
def test_a_minute_of_kills_under_load_brings_no_wrong_answer_and_no_failure(tmp_path: Path):
    """A cluster of its own in a process of its own: what dies here must not be what other tests use."""
    report = tmp_path / "chaos.json"
    command = [sys.executable, "jobs/chaos.py", "--minutes", "1", "--seed", "1", "--nodes", "3", "--replicas", "2", "--json", str(report)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SONDAGE_"))}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=patience(400))
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    found = json.loads(report.read_text())
    assert found["wrong"] == found["failed"] == 0 and found["problems"] == []
    assert found["strikes"] >= 4 and found["checked"]["whole"] > 50 and found["generations"] > 3
    assert found["pushes_acknowledged"] > 10 and found["jobs"]["scale"]["done"] > 0
    assert not [path for path in Path("/tmp").glob("sc-*") if str(path) in ended.stderr]
