"""Progress of long steps: how far, how fast, how long still; never more than a line a second."""

import io
import re

import pytest

from jobs.progress import Progress, Shared, amount


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "bytes", "0 B"),
        (999, "bytes", "999 B"),
        (12_300, "bytes", "12.3 kB"),
        (4_560_000, "bytes", "4.6 MB"),
        (7_890_000_000_000, "bytes", "7,890.0 GB"),
        (1234, "files", "1,234"),
        (3, "files", "3"),
        (0.25, "files", "0.2"),
    ],
)
def test_amounts_are_short(value, unit, text):
    assert amount(value, unit) == text


def told(out: io.StringIO, steps: list[tuple], every_s: float = 1.0) -> str:
    """What is printed when each (second, step, done, total, unit) is reported."""
    clock = Clock()
    progress = Progress(out, every_s, clock)
    for second, *report in steps:
        clock.now = 100.0 + second
        progress(*report)
    return out.getvalue()


def test_a_line_a_second_with_rate_and_time_left_and_the_last_one():
    steps = [(0, "read", 0, 1000, "bytes")]
    steps += [(0.25 * i, "read", 100 * i, 1000, "bytes") for i in range(1, 11)]
    assert told(io.StringIO(), steps).splitlines() == [
        "  read: 400 B of 1.0 kB, 400 B/s, 2 s left",
        "  read: 800 B of 1.0 kB, 400 B/s, 0 s left",
        "  read: 1.0 kB of 1.0 kB, 400 B/s",
    ]


def test_what_is_over_in_half_a_second_is_not_mentioned():
    assert told(io.StringIO(), [(0, "build", 0, 2, "segments"), (0.2, "build", 1, 2, "segments"), (0.4, "build", 2, 2, "segments")]) == ""


def test_the_rate_counts_from_where_the_step_began():
    steps = [(0, "encode", 500, 1000, "passages"), (2, "encode", 600, 1000, "passages")]
    assert told(io.StringIO(), steps) == "  encode: 600 of 1,000 passages, 50 passages/s, 8 s left\n"


def test_steps_follow_one_another_each_with_its_own_clock():
    steps = [(0, "read", 0, 10, "files"), (5, "read", 10, 10, "files"), (5, "build", 0, 4, "segments"), (9, "build", 4, 4, "segments")]
    assert told(io.StringIO(), steps).splitlines() == [
        "  read: 10 of 10 files, 2 files/s",
        "  build: 4 of 4 segments, 1 segments/s",
    ]


def test_nothing_to_do_prints_nothing_and_divides_by_nothing():
    assert told(io.StringIO(), [(0, "read", 0, 0, "bytes"), (0, "read", 5, 0, "bytes"), (3, "read", 0, 0, "bytes")]) == ""
    assert told(io.StringIO(), [(0, "read", 0, 9, "bytes"), (2, "read", 0, 9, "bytes")]) == "  read: 0 B of 9 B, 0 B/s\n"


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text)


def test_a_terminal_sees_a_bar_that_is_redrawn_and_then_a_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    steps = [(0, "read", 0, 4, "files"), (0.4, "read", 1, 4, "files"), (1, "read", 2, 4, "files"), (1.05, "read", 3, 4, "files")]
    out = told(Terminal(), [*steps, (2, "read", 4, 4, "files")])
    assert "read ━━━━━╺━━━━ 2 of 4 files 2 files/s 1 s left" in plain(out) and "3 of 4" not in out  # that was sooner than it is redrawn
    assert plain(out).endswith("  read: 4 of 4 files, 2 files/s\n")
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h") == 1  # the cursor is back


def test_bars_of_steps_side_by_side_and_lines_above_them(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "50")  # too narrow for bars
    steps = [(0, "a", 0, 9, "files"), (0, "b", 0, 9, "files"), (1, "a", 3, 9, "files"), (2, "b", 4, 9, "files"), (3, "a", 9, 9, "files")]
    out = " ".join(plain(told(Terminal(), steps)).split())
    assert "━" not in out and "a 3 of 9 files 3 files/s 2 s left b 0 of 9 files" in out and "b 4 of 9 files 2 files/s 2 s left" in out
    assert "a: 9 of 9 files, 3 files/s" in out


def test_a_bar_is_taken_away_when_something_goes_wrong(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    clock, out = Clock(), Terminal()
    with pytest.raises(OSError), Progress(out, 1.0, clock) as progress:
        progress("read", 0, 9, "files")
        clock.now += 5
        progress("read", 1, 9, "files")
        raise OSError
    assert out.getvalue().rstrip().endswith("\x1b[2K") and "\x1b[?25h" in out.getvalue()


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    steps = [(0, "read", 0, 4, "files"), (1, "read", 2, 4, "files"), (3, "read", 3, 4, "files"), (4, "read", 4, 4, "files")]
    assert told(Terminal(), steps) == "  read: 3 of 4 files, 1 files/s, 1 s left\n  read: 4 of 4 files, 1 files/s\n"


def test_steps_that_go_on_side_by_side_keep_their_own_clocks():
    steps = [(0, "encode static", 0, 100, "passages"), (1, "encode dense", 0, 40, "passages"), (2, "encode static", 20, 100, "passages")]
    steps += [(4, "encode dense", 6, 40, "passages"), (5, "encode static", 100, 100, "passages"), (11, "encode dense", 40, 40, "passages")]
    assert told(io.StringIO(), steps).splitlines() == [
        "  encode static: 20 of 100 passages, 10 passages/s, 8 s left",
        "  encode dense: 6 of 40 passages, 2 passages/s, 17 s left",
        "  encode static: 100 of 100 passages, 20 passages/s",
        "  encode dense: 40 of 40 passages, 4 passages/s",
    ]


def test_tasks_side_by_side_are_one_step_whose_end_is_estimated_by_those_that_began():
    """Three tasks of 10, 10 and 20 documents: the first says 30 passages, so there may be 120 in all; the last has all vectors already."""
    heard: list[tuple] = []
    shared = Shared(lambda *report: heard.append(report), [10, 10, 20])
    shared.tell(0, "encode dense", 0, 30)
    shared.tell(0, "encode dense", 15, 30)
    shared.tell(1, "encode dense", 1, 50)
    shared.ended(2)
    shared.ended(0)
    shared.ended(1)
    assert heard == [
        ("encode dense", 0, 120, "passages"),
        ("encode dense", 15, 120, "passages"),
        ("encode dense", 16, 160, "passages"),
        ("encode dense", 16, 80, "passages"),
        ("encode dense", 31, 80, "passages"),
        ("encode dense", 80, 80, "passages"),
    ]
