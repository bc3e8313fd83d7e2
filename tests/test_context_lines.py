"""Lines around a hit, as grep's -B, -A and -C ask for them."""

import pytest
from engine import Engine, write_files

from jobs import cli
from jobs.request_options import lines_around
from serve.links import parameters_of
from serve.schema import SearchRequest
from shards.excerpts import MAX_CONTEXT_BYTES, excerpt
from shards.types import LinesAround

TEXT = b"one\ntwo\n\nfour needle\nfive\nsix\n"


@pytest.mark.parametrize(
    ("before", "after", "shown", "line"),
    [
        (0, 0, "four needle", 4),
        (1, 0, "\nfour needle", 3),
        (2, 1, "two\n\nfour needle\nfive", 2),
        (9, 9, "one\ntwo\n\nfour needle\nfive\nsix", 1),
        (0, 2, "four needle\nfive\nsix", 4),
    ],
)
def test_whole_lines_stand_around_the_span(before, after, shown, line):
    start = TEXT.index(b"needle")
    found = excerpt(memoryview(TEXT), start, start + 6, (), LinesAround(before, after))
    assert (found.text, found.line) == (shown, line)
    assert TEXT[found.start : found.end].decode() == shown


def test_a_span_of_several_lines_has_lines_before_its_first_and_after_its_last():
    found = excerpt(memoryview(TEXT), TEXT.index(b"two"), TEXT.index(b"five"), (), LinesAround(1, 1))
    assert found.text == "one\ntwo\n\nfour needle\nfive"


def test_lines_without_end_are_cut():
    text = b"x" * 10**6 + b" needle " + "é".encode() * 10**6
    found = excerpt(memoryview(text), 10**6 + 1, 10**6 + 7, (), LinesAround(3, 3))
    assert len(found.text.encode()) <= 2 * MAX_CONTEXT_BYTES + 8
    assert "needle" in found.text and "\ufffd" not in found.text


def test_grep_s_options_become_lines():
    assert lines_around(None, None, None) is None
    assert lines_around(None, None, 2) == {"before": 2, "after": 2}
    assert lines_around(1, None, 3) == {"before": 1, "after": 3}
    assert lines_around(None, 4, None) == {"before": 0, "after": 4}


def test_a_request_says_how_many_lines_and_the_page_and_the_terminal_show_them(tmp_path, capsys):
    lines = [f"line {i} of prose about ships" for i in range(1, 60)]
    lines[29] = "a needle in the haystack of line 30"
    files = {"hay.txt": "\n".join(lines) + "\n", **{f"{i}.txt": f"nothing here, {i}\n" for i in range(30)}}
    engine = Engine(tmp_path, layers=("text",))
    engine.index(write_files(tmp_path / "files", files))
    asked = {"corpus": "c", "query": "needle", "k": 1, "keep_all": True}
    for context, shown in (({"before": 12, "after": 3}, (18, 33)), ({}, (30, 30)), ({"after": 50}, (30, 59))):
        answer = engine.search(**asked, context=context)
        assert answer.hits[0].excerpt.text.split("\n") == lines[shown[0] - 1 : shown[1]]
        assert (answer.hits[0].excerpt.first_line, answer.hits[0].line) == (shown[0], 30)
    assert parameters_of(SearchRequest(**asked, context={})) is None  # a link has no room for it: it goes as a body
    arguments = ["search", "needle", "--corpus", "c", "--store", str(tmp_path / "store"), "-B", "12", "-A", "3", "--color", "never"]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert all(f"line {i} of prose" in printed for i in (*range(18, 30), *range(31, 34)))
    assert "line 17 of prose" not in printed and "line 34 of prose" not in printed
