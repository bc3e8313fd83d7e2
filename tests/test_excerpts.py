"""Excerpts: the piece of a document that shows why it was found, at most so long, never inside a character."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.answers import _column
from shards.excerpts import excerpt, focus
from shards.types import Excerpt

TEXT = "first line\nsecond line with a needle in it\nthird line\n" + "filler words here\n" * 40 + "and a thimble at the end\n"


def test_a_short_span_is_widened_to_whole_lines():
    data = TEXT.encode()
    at = data.index(b"needle")
    found = excerpt(memoryview(data), at, at + 6, (), 60)
    assert found.text.startswith("second line with a needle") and found.line == 2
    assert data[found.start : found.end].decode() == found.text


def test_a_long_span_is_narrowed_to_where_the_words_are():
    data = TEXT.encode()
    found = excerpt(memoryview(data), 0, len(data), ("thimble",), 80)
    assert "thimble" in found.text and len(found.text) <= 2 * 80
    assert found.line == data[: found.start].count(b"\n") + 1


def test_a_line_without_end_is_cut():
    data = b"x" * 10_000 + b" needle " + b"y" * 10_000
    found = excerpt(memoryview(data), 10_001, 10_007, (), 100)
    assert "needle" in found.text and len(found.text) <= 200


def test_of_no_size_is_the_span_itself_in_whole_characters():
    data = "erst die Flut, dann die Ebbe: über Nacht".encode()
    found = excerpt(memoryview(data), 9, 30, ("Nacht",), 0)
    assert (found.start, found.end, found.text) == (9, 30, "Flut, dann die Ebbe: ")
    assert excerpt(memoryview(data), 9, 31, (), 0).text == "Flut, dann die Ebbe: "  # 31 lies inside the ü
    assert excerpt(memoryview(data), 31, 99, (), 0).text == "über Nacht"


@pytest.mark.parametrize("span", [(0, 0), (5, 5), (10**6, 10**6 + 1)])
def test_odd_spans_are_taken_to_the_text(span):
    assert excerpt(memoryview(b"hello\nworld\n"), *span, (), 50).text in ("hello\nworld", "hello\nworld\n", "world\n", "")


@given(st.text(max_size=300), st.integers(0, 400), st.integers(0, 400), st.integers(10, 80))
def test_excerpts_are_pieces_of_the_text_in_whole_characters(text, start, length, size):
    data = text.encode("utf-8", "replace")
    found = excerpt(memoryview(data), start, start + length, ("a", "é"), size)
    assert data[found.start : found.end].decode() == found.text
    assert len(found.text.encode()) <= 2 * size + 4


def slow_focus(text: bytes, words: list[str], window: int) -> int:
    """Every window that begins with an occurrence, the first that shows the most distinct words."""
    longest_first = sorted({word.encode() for word in words}, key=lambda w: (-len(w), w))
    found = list(re.finditer(b"|".join(map(re.escape, longest_first)), text.lower()))
    best, best_at = 0, 0
    for last in range(len(found)):
        inside = [m for m in found[: last + 1] if found[last].start() - m.start() <= window]
        if len({m[0] for m in inside}) > best:
            best, best_at = len({m[0] for m in inside}), inside[0].start()
    return best_at


@given(st.text("aAbBc é", max_size=120), st.lists(st.text("abcé", min_size=1, max_size=3), max_size=5, unique=True), st.integers(1, 60))
def test_the_window_with_the_most_words_is_the_one_that_a_slow_search_finds(text, words, window):
    data = text.encode()
    expected = slow_focus(data, words, window) if words and len(data) > window else 0
    assert focus(np.frombuffer(data, np.uint8), words, window) == expected


@pytest.mark.parametrize(
    ("text", "start", "column"),
    [
        ("one\ntwo three\n", 0, 1),
        ("one\ntwo three\n", 4, 1),
        ("one\ntwo three\n", 8, 5),
        ("höher\nüber alles", 12, 5),
        ("x" * 40_000, 39_000, 0),
    ],
)
def test_an_excerpt_tells_the_column_it_begins_in_as_characters(text, start, column):
    """A line that begins further away than is looked is not counted: 0."""
    shown = excerpt(memoryview(text.encode()), start, start + 1, (), 0)
    assert shown.column == column


def test_the_column_of_a_hit_is_that_of_the_first_mark_in_its_line():
    cut = Excerpt(4, 20, 2, "middle of a tide\nand its tide", column=8)
    assert [_column(cut, at) for at in (0, 12, 17, 25)] == [8, 20, 1, 9]
    unknown = Excerpt(4, 20, 2, "middle of a tide\nand its tide")
    assert [_column(unknown, at) for at in (12, 25)] == [0, 9]
