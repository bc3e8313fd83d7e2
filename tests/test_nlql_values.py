"""What values mean: LANGUAGE.md's coercion, null, truth and order, one line a rule."""

from datetime import timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.nlql.dates import any_date, iso_date, micros
from shards.nlql.errors import ExecutionError, NLQLTypeError
from shards.nlql.values import compare, number_of, sort_key, text_of, truth
from shards.plugins import Plugins

PLUGINS = Plugins()
PLUGINS.add_type("version", lambda text: tuple(int(part) for part in text.split(".")))
PLUGINS.add_type("broken", lambda text: text, lambda left, right, op: 1 / 0)


@pytest.mark.parametrize(
    ("left", "op", "right", "expected"),
    [
        # null
        (None, "==", None, True), (None, "!=", None, False), (None, "==", 0, False), (None, "!=", "published", True),
        ("", "==", None, False),
        (None, "<", 1, False), (None, "<=", None, False), (1, ">", None, False), (None, ">=", None, False),
        # texts that read as numbers
        ("2024", "==", 2024, True), ("007", "==", 7, True), ("-5", "==", -5, True), ("3.50", "==", "3.5", True), ("1e3", "==", 1000, True),
        ("1_000", "==", 1000, True), ("7 ", "==", 7, True), ("-inf", "<", -1e300, True), (".5", "==", 0.5, True), ("+7", "==", 7, True),
        (" 7", "==", 7, False), ("12A", "==", 12, False), ("0x10", "==", 16, False), ("inf", "==", float("inf"), False),
        ("", "==", 0, False),
        (12, ">=", "9", True), ("several", ">=", "9", True), ("Several", ">=", "9", True), (2**53 + 1, "==", 2**53, True),
        (10**400, ">", 1e308, True), ("nan", "==", "nan", True), ("-nan", "==", "-nan", False),
        # ISO dates
        ("2024-03-01", ">=", "20240229", True), ("2024-03-01", "==", "2024-W09-5", True),
        ("2024-03-01T12:30", "<", "2024-03-01T12:31:00", True),
        ("2024-05-01T10:00:00+00:00", "==", "2024-05-01T12:00:00+02:00", True),
        ("2024-05-01T10:00:00Z", "==", "2024-05-01T10:00:00", False),
        ("2024-05-01T10:00:00Z", "!=", "2024-05-01T10:00:00", True), ("20240515", "==", 20240515, True),
        ("20240515", "<", "20240516", True),
        ("2024-3-1", ">", "2024-03-02", True), ("15/05/2024", "<", "2024-01-01", True), ("2024-05", "==", "2024-05-01", False),
        # as they are
        (True, "==", 1, True), (True, ">", 0, True), (False, "<", True, True), (True, "==", "true", False), (["rag"], "==", "rag", False),
        (["a", "b"], "==", ["a", "b"], True), ([1], "<", [2], True), ({"a": 1}, "==", {"a": 1}, True), ("B", "<", "a", True),
        ("é", ">", "z", True),
        (["rag"], "!=", "rag", True), ("a", "!=", 1, True),
    ],
)  # fmt: skip
def test_values_compare_as_numbers_then_as_iso_dates_then_as_they_are(left: Any, op: str, right: Any, expected: bool) -> None:
    assert compare(op, left, right) is expected


@pytest.mark.parametrize(
    ("left", "op", "right", "hint", "expected"),
    [
        ("007", "==", 7, "text", False), (2024, "==", "2024", "text", True), (7.0, "==", "7.0", "text", True),
        (True, "==", "True", "text", True),
        ("10", "<", "9", "text", True), (["a"], "==", "['a']", "text", True), (None, "==", "None", "text", False),
        ("8.5", "==", 8.5, "number", True), ("10", ">", "8.5", "number", True), ("abc", ">", "8.5", "number", True),
        ("20240301", "==", "2024-03-01", "number", False), (True, "==", "1", "number", False), (True, "==", 1, "number", True),
        ("2024-3-1", "==", "2024-03-01", "date", True), ("2024/5/15", ">", "2024-05-14", "date", True),
        ("15/05/2024", ">", "2024-05-14", "date", False),
        ("March 2024", ">=", "2025-01-01", "timestamp", True),
        ("20240301", "==", "2024-03-01", "date", True), ("2024-3-1 9:30", "<", "2024-03-01T10:00", "timestamp", True),
        ("soon", ">", "2024-01-01", "date", True), ("2024-01-01", ">", "junk", "date", False),
        ("2024-03-01T01:00Z", "==", "2024-03-01T00:00-01:00", "date", True),
        ("1.10", ">", "1.9", "version", True), ("1.10", "==", "1.10.0", "version", False), ("beta", "<", "gamma", "version", True),
        ("1.10", "==", 1.1, "bool", True), ("1.10", "==", 1.1, "any", True), ("1.10", "==", 1.1, "vector", True),
        ("1.10", "==", 1.1, "unheard", True),
    ],
)  # fmt: skip
def test_a_type_word_says_how_values_are_read(left: Any, op: str, right: Any, hint: str, expected: bool) -> None:
    assert compare(op, left, right, hint, PLUGINS) is expected


@pytest.mark.parametrize(
    ("left", "right", "hint"),
    [
        ("several", 8, None), (8, "several", None), (["ai"], 1, None), (["ai"], "ai", None), ("yes", False, None),
        ({"a": 1}, {"a": 2}, None),
        ("2024-05-01T10:00:00+00:00", "2024-01-01", None), ("2024-05-01T10:00Z", "2024-1-1", "date"), (2024, "2024-01-01", "date"),
        ("beta", 2, "version"), ([1, "a"], ["a", 1], None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("op", ["<", "<=", ">", ">="])
def test_unlike_values_have_no_order_and_the_error_names_both(left: Any, right: Any, hint: str | None, op: str) -> None:
    with pytest.raises(NLQLTypeError) as error:
        compare(op, left, right, hint, PLUGINS)
    assert error.value.category == "type"
    assert repr(left) in error.value.message and repr(right).replace("False", "false") in error.value.message
    assert f"so {op} cannot" in error.value.message
    assert compare("==", left, right, hint, PLUGINS) is False and compare("!=", left, right, hint, PLUGINS) is True


def test_a_type_whose_comparer_fails_is_named() -> None:
    with pytest.raises(ExecutionError, match=r"type 'broken' failed to compare .* ZeroDivisionError"):
        compare("<", "a", "b", "broken", PLUGINS)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, False), (0, False), (0.0, False), ("", False), ([], False), ({}, False), (False, False), ("0", True), (-1, True), ([0], True)],
)
def test_what_counts_as_true(value: Any, expected: bool) -> None:
    assert truth(value) is expected


def test_values_as_text_are_what_python_prints() -> None:
    assert [text_of(value) for value in ("a", 7, 8.0, True, ["ai", "rag"])] == ["a", "7", "8.0", "True", "['ai', 'rag']"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-3-1", "2024-03-01T00:00:00"), ("2024/03/01", "2024-03-01T00:00:00"), ("2024.3.1", "2024-03-01T00:00:00"),
        ("2024-3-1 9:05", "2024-03-01T09:05:00"), ("2024-3-1T09:05:07Z", "2024-03-01T09:05:07+00:00"),
        (" 2024-03-01 ", "2024-03-01T00:00:00"), ("20240301", "2024-03-01T00:00:00"), ("2024-02-31", None), ("2024-2-31", None),
        ("2024-3/1", None),
        ("2024", None), ("2024-03", None), ("15/05/2024", None), ("March 2024", None), ("junk", None), ("", None), ("2024-3-1 9:5", None),
    ],
)  # fmt: skip
def test_dates_are_read_as_people_write_them(text: str, expected: str | None) -> None:
    found = any_date(text)
    assert (None if found is None else found.isoformat()) == expected


@settings(max_examples=60, deadline=None)
@given(st.datetimes(timezones=st.one_of(st.none(), st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))))))
def test_microseconds_order_dates_as_python_does(instant: Any) -> None:
    read = iso_date(instant.isoformat())
    assert read == instant
    assert micros(read) == micros(instant)
    later = iso_date("2024-02-29T12:00:00" + ("" if instant.tzinfo is None else "Z"))
    assert (micros(read) < micros(later)) == (read < later)


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=8))
def test_any_text_reads_as_a_number_a_date_or_neither(text: str) -> None:
    assert number_of(text) is None or text[0] in "+-.0123456789"
    iso = iso_date(text)
    assert iso is None or any_date(text) == iso


@pytest.mark.parametrize(
    ("values", "declared"),
    [
        # numbers and bools, then ISO dates, then other texts and what things print as, then null
        ([-3.5, False, 0.5, True, 2, 10**30, "1999-05-05", "20240101", "2024-01-01T00:00Z", "10", "8.5", ["b"], "a", {"a": 1}, None], None),
        ([2, "8.5", 9, "10", "2024-01-01", "abc", None], "number"),
        ([10, "2024-01-01", 9, "a", None], "text"),
        (["2023-12-31", "2024-3-1", "2024/5/15", "15/05/2024", "2023", "June 2024", None], "date"),
        (["1.2", "1.9", "1.10", 7, "2024-01-01", "alpha", None], "version"),
        ([1, 2.5, "2024-01-01", "7"], "any"),
    ],
)  # fmt: skip
def test_values_sort_in_classes(values: list[Any], declared: str | None) -> None:
    keys = [sort_key(value, declared, PLUGINS) for value in values]
    assert all(not after < before for before, after in zip(keys, keys[1:], strict=False)), keys
    assert sorted(range(len(values)), key=keys.__getitem__) == list(range(len(values)))
