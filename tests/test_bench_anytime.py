"""What `bench.py anytime` makes of answers: lateness, curves, sessions and what is wrong with an answer, by hand."""

import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from jobs import bench_anytime_session
from jobs.bench_anytime_building import BUSY, QUIET
from jobs.bench_anytime_building import figures as build_figures
from jobs.bench_anytime_chaos import Reference, built_folder, is_whole, problem
from jobs.bench_anytime_cold import coverage
from jobs.bench_anytime_deadlines import Kinds, Question, Seen, allowance_ms, figures, is_late, without_work
from jobs.bench_anytime_quality import TARGETS
from jobs.bench_anytime_quality import figures as quality_figures
from jobs.bench_anytime_session import questions_of, targets
from jobs.bench_anytime_tree import LEAST_BYTES, MOST_BYTES, cut
from jobs.bench_anytime_wire import Wire
from shards.errors import BadSpec


def seen(budget_ms: int, ms: float, status: int = 200, kind: str = "words") -> Seen:
    return Seen(Question(kind, budget_ms, b"", ""), status, ms, True)


@pytest.mark.parametrize(("budget_ms", "allowed"), [(20, 15), (150, 15), (151, 15.1), (1_000, 100)])
def test_an_answer_may_take_a_tenth_more_or_fifteen_milliseconds(budget_ms, allowed):
    assert allowance_ms(budget_ms) == pytest.approx(allowed)
    assert not is_late(seen(budget_ms, budget_ms + allowed))
    assert is_late(seen(budget_ms, budget_ms + allowed + 0.01))


def test_what_was_refused_or_broke_is_late():
    assert is_late(seen(1_000, 3.0, 500)) and is_late(seen(1_000, 3.0, 0))


def test_late_answers_are_counted_without_those_that_asked_for_nothing_and_the_worst_stands_first():
    found = figures([seen(100, 10), seen(100, 114), seen(20, 60), seen(100, 116), seen(20, 500, kind="nothing")])
    assert found["searches"]["n"] == 4
    assert found["searches"]["late"] == 2
    assert found["searches"]["above twice"] == 1  # 60 of 20; 116 of 100 is late, but not so late
    assert [one["ms"] for one in found["worst"][:2]] == [60, 116]
    assert found["targets"]["above twice the budget, none"] == "missed: 1"


def test_requests_without_work_tell_what_the_machine_adds_beyond_their_median():
    found = without_work([seen(20, ms, kind="nothing") for ms in (1.0, 2.0, 2.0, 2.0, 22.0)])
    assert (found["p50"], found["most beyond it"], found["later than 15 ms"]) == (2.0, 20.0, 1)


def test_questions_with_deadlines_are_a_function_of_the_seed_and_their_budgets_lie_within_bounds():
    asked = [f"{word} words that people look for in the library number {i}" for i, word in enumerate(("seldom", "beautiful") * 30)]
    drawn, again = Kinds(7, [*asked, "parse_header"]), Kinds(7, [*asked, "parse_header"])
    url = "http://127.0.0.1:1"
    first = [drawn.draw(url, idle=not i % 10) for i in range(200)]
    assert first == [again.draw(url, idle=not i % 10) for i in range(200)]
    assert all(20 <= question.budget_ms <= 1_000 for question in first)
    assert {question.kind for question in first} == {"nothing", *(name.replace("_", " ") for name in drawn.makers)}


def test_a_curve_falls_only_where_luck_does_not_explain_it():
    base = np.linspace(0.2, 0.9, 40)
    wavering = base + np.where(np.arange(40) % 2, 0.1, -0.11)  # lower in the mean by .005, within its interval
    rising = quality_figures({100: base, 300: wavering, 60_000: base + 0.2})
    assert rising["targets"][TARGETS[1]] == "met within the intervals: lower 100 -> 300 by 0.0050"
    falling = quality_figures({100: base, 300: base - 0.05, 60_000: base})
    assert falling["targets"][TARGETS[1]] == "missed: 100 -> 300 by 0.0500"


def test_the_share_of_unlimited_is_that_at_a_tenth_of_a_second():
    reached = quality_figures({20: np.full(4, 0.1), 100: np.full(4, 0.76), 60_000: np.full(4, 0.8)})
    assert reached["targets"][TARGETS[0]] == "met: 95.0 %"
    missed = quality_figures({20: np.full(4, 0.1), 100: np.full(4, 0.74), 60_000: np.full(4, 0.8)})
    assert missed["targets"][TARGETS[0]] == "missed: 92.5 %"


def test_files_are_pieces_of_texts_that_end_at_blank_lines_and_nothing_is_lost():
    text = b"".join(b"def f%d():\n    return %d\n%s" % (i, i, b"\n" if i % 40 == 0 else b"") for i in range(600))
    pieces = list(cut(text))
    assert b"".join(pieces) == text
    assert all(len(piece) <= MOST_BYTES for piece in pieces) and all(len(piece) >= LEAST_BYTES for piece in pieces[:-1])
    assert all(piece.endswith(b"\n") for piece in pieces)


def test_a_session_asks_lines_of_files_and_every_other_question_in_its_folder_and_some_again(tmp_path: Path, monkeypatch):
    for folder in ("a/x", "b/y"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "0.py").write_text(f"one two three four of {folder}\nshort\n")
    assert questions_of(tmp_path, 10, seed=3) == questions_of(tmp_path, 10, seed=3) != questions_of(tmp_path, 10, seed=3, number=1)
    monkeypatch.setattr(bench_anytime_session, "AGAIN", 1.0)
    assert len({one["query"] for one in questions_of(tmp_path, 10, seed=3)}) == 1
    monkeypatch.setattr(bench_anytime_session, "AGAIN", 0.0)
    asked = questions_of(tmp_path, 10, seed=3)
    assert all(one["query"] in ("one two three four of a/x", "one two three four of b/y") for one in asked)
    assert [("paths" in one) for one in asked] == [False, True] * 5
    assert all(one["paths"] == [f"{one['query'][-3:]}/**"] for one in asked if "paths" in one)


def test_a_session_meets_its_targets_only_where_all_that_was_shown_is_covered_at_the_price_of_a_fifth():
    far = {"built": 20, "documents": 100}
    assert [told.partition(":")[0] for told in targets(1.0, 1.3, far).values()] == ["met", "met", "met"]
    assert [told.partition(":")[0] for told in targets(0.99, 1.31, far | {"built": 21}).values()] == ["missed"] * 3
    assert targets(1.0, 1.0, far | {"built": 0})["built at most 20%"] == "missed: 0.0%", "nothing built is no layer that builds itself"


def test_what_searches_pay_for_a_build_is_told_over_all_turns_of_each_kind():
    quiet, busy = [[0.010] * 99 + [0.020]] * 2, [[0.010] * 98 + [0.025, 0.030]] * 2
    found = build_figures({QUIET: quiet, BUSY: busy})
    assert found["ms"][QUIET]["p99"] == 20.0 and found["ms"][BUSY]["p99"] == 30.0
    assert found["times as long"] == {"p50": 1.0, "p90": 1.0, "p99": 1.5}
    assert found["targets"] == {"p99 at most 1.3 times": "missed: 1.50"}


def test_the_folder_that_chaos_has_built_is_one_of_a_middling_size(tmp_path: Path):
    for folder, n in (("a/small", 3), ("b/right", 50), ("c/large", 70), ("d/right", 50)):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(n):
            (tmp_path / folder / f"{i}.py").touch()
    assert built_folder(tmp_path) == "b/right"
    with pytest.raises(BadSpec, match="--session-files"):
        built_folder(tmp_path / "a")


def test_coverage_is_that_of_all_shards_of_a_layer_together():
    rows = [{"layer": "text", "covered": n, "total": 4} for n in (3, 0)] + [{"layer": "names", "covered": 1, "total": 1}]
    assert coverage({"coverage": rows}, "text") == 3 / 8
    assert coverage({}, "text") == 0.0


def answer(hits: str, covered: int = 5, state: str = "ready", complete: bool = True) -> dict:
    found = [{"hash": name, "start": 0, "end": 1} for name in hits]
    return {"hits": found, "complete": complete, "coverage": [{"layer": "text", "state": state, "covered": covered, "total": 5}]}


FOUND = [(name, 0, 1) for name in "abcd"]


@pytest.mark.parametrize(
    ("said", "matches", "wrong"),
    [
        (answer("abc"), True, ""),
        (answer("ab"), True, "whole, but other hits"),
        (answer("acb"), True, "whole, but other hits"),
        (answer("dc", covered=2, state="late", complete=False), True, ""),
        (answer("cx", covered=2, state="late", complete=False), True, "partial, with a hit that is none: ('x', 0, 1)"),
        (answer("cx", covered=2, state="late", complete=False), False, ""),
        (answer("cx", covered=2), False, ""),
    ],
)
def test_an_answer_may_differ_from_the_undisturbed_one_only_by_what_its_coverage_says(said, matches, wrong):
    assert problem(said, Reference(FOUND[:3], frozenset(FOUND), matches)) == wrong


def test_an_answer_without_coverage_is_not_whole():
    assert is_whole(answer("abc")) and not is_whole({"hits": [], "complete": True, "coverage": []})


def test_a_connection_reads_whole_answers_of_both_forms_and_tells_of_one_that_breaks():
    answers = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\ntorn",
    ]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                for said in answers:
                    connection.recv(1 << 16)
                    connection.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        wire = Wire(f"http://127.0.0.1:{listener.getsockname()[1]}")
        found = [wire.ask("GET", "/") for _ in answers]
        thread.join()
        wire.close()
    assert [(one.status, one.body) for one in found[:3]] == [(200, b"hello"), (200, b"abcde"), (503, b"")]
    assert found[3].status == 0 and b"closed by the server" in found[3].body
