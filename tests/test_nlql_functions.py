"""Functions of the language: what each gives, null, bad patterns, functions that users wrote, places on the earth."""

import re
from dataclasses import dataclass, field
from datetime import date
from fnmatch import translate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.nlql import ir
from shards.nlql.context import Context
from shards.nlql.errors import ExecutionError, NLQLTypeError, PlanError
from shards.nlql.evaluate import evaluate
from shards.nlql.functions import BUILT_IN, EXTENSIONS, SCORES, arity, find, is_built_in, names
from shards.nlql.geo import distance_m, in_box, point_of
from shards.nlql.like import like
from shards.nlql.patterns import Patience, Pattern, pattern
from shards.plugins import Plugins
from shards.types import Budget


@dataclass
class Row:
    content: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float | None] = field(default_factory=dict)


def call(name: str, *args: Any, plugins: Plugins | None = None) -> Any:
    """The value of a call of constants."""
    node = ir.Call(name, tuple(ir.Literal(arg) for arg in args), ir.Position(1, 23))
    return evaluate(node, Row(), Context(plugins=plugins or Plugins()))


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("CONTAINS", ("AI Index", "iNDEX"), True), ("contains", ("abc", ""), True), ("CONTAINS", (["ai", "rag"], "rag"), True),
        ("CONTAINS", (["ai", "rag"], "a', 'r"), False), ("CONTAINS", (["ai", "rag"], "i', 'r"), True), ("CONTAINS", (2024, 2), True),
        ("CONTAINS", (None, "on"), False), ("CONTAINS", ("None", None), False), ("CONTAINS", (None, ""), False),
        ("MATCH", ("A ship", "^A "), True), ("MATCH", ("a ship", "^A "), False), ("MATCH", ("a ship", "(?i)^A "), True),
        ("MATCH", (None, "N"), False),
        ("MATCH", ("one\ntwo", "one$"), False), ("MATCH", ("one\n", "one$"), True), ("MATCH", (2024, r"^\d{4}$"), True),
        ("MATCH", ("x", None), False),
        ("LIKE", ("an agent", "%agent%"), True), ("LIKE", ("agents", "agent"), False), ("LIKE", ("cat", "c_t"), True),
        ("LIKE", ("cart", "c_t"), False),
        ("LIKE", ("50%", "50\\%"), False), ("LIKE", ("a\nb", "a%b"), True), ("LIKE", ("a\nb", "a_b"), True),
        ("LIKE", ("Cat", "cat"), False),
        ("LIKE", ("", ""), True), ("LIKE", ("", "%"), True), ("LIKE", ("", "_"), False), ("LIKE", (None, "%"), False),
        ("LIKE", ("aXbXc", "a%X%c"), True),
        ("LENGTH", ("né",), 2), ("LENGTH", (None,), None), ("LENGTH", (8.5,), 3), ("length", ("",), 0),
        ("COUNT", ("The the theatre", "the"), 3), ("COUNT", ("aaa", "aa"), 1), ("COUNT", ("aaa", ""), 0), ("COUNT", (None, "a"), None),
        ("COUNT", ("aaa", None), None),
        ("LOWER", ("ÄB",), "äb"), ("UPPER", ("straße",), "STRASSE"), ("UPPER", (None,), None), ("LOWER", (None,), None),
        ("UPPER", (True,), "TRUE"),
        ("HAS", (["ai", "rag"], "rag"), True), ("HAS", (["ai", "rag"], "ra"), False), ("HAS", (["7", 8], 7), True),
        ("HAS", ("rag", "rag"), False),
        ("HAS", (None, "rag"), False), ("HAS", ([None], None), False), ("HAS", ([], "x"), False), ("HAS", ({"a": 1}, "a"), False),
        ("GEO_DISTANCE", ("48.137,11.575", 48.137, 11.575), 0.0), ("GEO_DISTANCE", (None, 1, 2), None), ("GEO_DISTANCE", ("x", 1, 2), None),
        ("GEO_DISTANCE", ([1, 2], None, 2), None), ("GEO_WITHIN", ([0, 179], -1, 170, 1, -170), True),
        ("GEO_WITHIN", ([0, 0], -1, 170, 1, -170), False),
        ("GEO_WITHIN", ({"lat": 1, "lon": "-180"}, -1, 170, 1, -170), True), ("GEO_WITHIN", (None, -1, -1, 1, 1), False),
        ("GEO_WITHIN", ([0, 0], None, -1, 1, 1), False),
    ],
)  # fmt: skip
def test_functions_of_values(name: str, args: tuple[Any, ...], expected: Any) -> None:
    found = call(name, *args)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize("bad", ["[", "(?P<n>a)(?P<n>b)", "a{99999999999}", "(" * 4_000 + ")" * 4_000, "*", "x" * 10_001])
def test_a_bad_pattern_is_an_execution_error_at_its_place(bad: str) -> None:
    with pytest.raises(ExecutionError, match="MATCH cannot read the pattern") as error:
        call("MATCH", "text", bad)
    assert (error.value.line, error.value.column) == (1, 23)


@pytest.mark.parametrize("name", ["NOPE", "LENGTH", "GEO_WITHIN"])
def test_unknown_functions_and_wrong_counts_are_plan_errors(name: str) -> None:
    with pytest.raises(PlanError, match=r"Known: BM25.* UPPER\.|takes 1 argument, not 2|takes 5 arguments, not 2"):
        call(name, "a", "b")


def test_users_functions_shadow_built_in_ones_but_not_scores() -> None:
    plugins = Plugins()
    plugins.add_function("length", lambda x: -1)
    plugins.add_function("bm25", lambda x, y: 0)
    assert call("LENGTH", "abc", plugins=plugins) == -1
    assert find("Length", plugins) is plugins.functions.find("LENGTH") and not is_built_in("length", plugins)
    assert find("bm25", plugins) is SCORES["BM25"]
    with pytest.raises(PlanError, match="BM25 is a score"):
        call("BM25", "a", "b", plugins=plugins)
    assert {"LENGTH", "HAS", "SIMILARITY", "EVIDENCE"} <= set(names(plugins)) and set(BUILT_IN) >= EXTENSIONS
    assert arity(find("EVIDENCE", plugins)) == "2 arguments or more" and arity(BUILT_IN["LENGTH"]) == "1 argument"


class Unprintable:
    def __repr__(self) -> str:
        return "Unprintable()"


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (np.float32(0.5), 0.5), (np.int64(3), 3), (np.bool_(True), True), (np.array([1, 2]), [1, 2]), ((1, "a"), [1, "a"]), ({3}, [3]),
        (date(2024, 3, 1), "2024-03-01"), (None, None), ({"a": 1}, {"a": 1}),
    ],
)  # fmt: skip
def test_what_a_users_function_returns_becomes_a_value(returned: Any, expected: Any) -> None:
    plugins = Plugins()
    plugins.add_function("F", lambda: returned)
    found = call("F", plugins=plugins)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: 1 / 0, r"F\('a' \(text\)\) failed: ZeroDivisionError: division by zero"),
        (lambda x: {}[x], r"F\('a' \(text\)\) failed: KeyError: 'a'"),
        (lambda x: Unprintable(), "F returned a Unprintable; expected text"),
        (lambda x: call("F", x), "F.* failed: PlanError|There is no function 'F'"),
    ],
)  # fmt: skip
def test_whatever_a_users_function_raises_is_an_error_of_the_family(function: Any, message: str) -> None:
    plugins = Plugins()
    plugins.add_function("F", function)
    with pytest.raises((ExecutionError, PlanError), match=message) as error:
        call("F", "a", plugins=plugins)
    assert (error.value.line, error.value.column) == (1, 23)


def test_comparisons_show_where_they_stand() -> None:
    with pytest.raises(NLQLTypeError) as error:
        evaluate(ir.Compare(">", ir.Literal("a"), ir.Literal(1), ir.Position(2, 7)), Row(), Context())
    assert str(error.value).startswith("Line 2, column 7: 'a' (text) and 1 (number) have no order, so > cannot compare them.")


# --- MATCH -------------------------------------------------------------------------------------------------------------------------

PIECES = st.sampled_from([
    "a", "b", "ß", ".", r"\d", r"\W", r"\s", r"\w+", "[a-c]", "[^a]", r"[^\d\W]", r"[\D_]",
    "(a|bc)*", "(?:ab)+?", "a{2,3}", "^", "$", r"\b", r"\B", r"\Z",
    "(b)", r"\1", "(?=a)", "(?<!b)", "(?i:A)", "x*", "b?", "[[a]", "{e<=1}", "|", "(?>a*)", "a*+", "k", "S", "i", "[i-k]+",
    "[^s]", "ǆ", "(?(1)a|b)", "\n",
])  # fmt: skip
SUBJECTS = st.text(st.sampled_from("aAbBcß1_ \n.x[{éÉKkſsSıİiI\x1c٣²ǅ"), max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(PIECES, min_size=1, max_size=5),
    st.sampled_from(["", "", "(?i)", "(?s)", "(?m)", "(?a)", "(?x)"]),
    st.lists(SUBJECTS, max_size=4),
)
@pytest.mark.filterwarnings("ignore:Possible nested set")
def test_every_engine_finds_what_re_finds(pieces: list[str], flags: str, texts: list[str]) -> None:
    written = flags + "".join(pieces)
    try:
        expected = re.compile(written)
    except re.error:
        return
    made = Pattern(written)
    for text in texts:
        found = expected.search(text) is not None
        assert made.search(text) is found
        if (fast := made._re2) is not None and fast.takes(text):
            assert (fast.compiled.search(text.encode()) is not None) is found, ("re2", text)
        if made._regex is not None:
            assert (made._regex.search(text) is not None) is found, ("regex", text)


@pytest.mark.parametrize("bad", [r"(a+)+$", r"(a|aa)+$", r"(.*a){12}b", r"^(\w+\s?)*$", r"a*a*a*a*a*b"])
def test_patterns_that_explode_in_re_run_in_linear_time(bad: str) -> None:
    assert pattern(bad)._re2 is not None
    assert pattern(bad).search("a" * 5_000 + "!") is False


def test_what_only_regex_runs_is_stopped() -> None:
    endless = pattern(r"^(?:(a|aa)+)\1*c?d$")
    assert endless._re2 is None
    assert endless.search("aaad") is True
    with pytest.raises(ExecutionError, match=r"MATCH gave up on the pattern .* Avoid back-references"):
        endless.search("a" * 60 + "b", Patience(Budget(0.0)))


@pytest.mark.parametrize("huge", ["a{2000000000}", "(?:(?:(?:a{1000}){1000}){1000})", r"(?:(a){500}){500}\1"])
def test_repeats_that_an_engine_would_write_out_are_refused(huge: str) -> None:
    with pytest.raises(ExecutionError, match="no engine runs it in bounded time"):
        pattern(huge).search("a")


# --- LIKE --------------------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.text("ab%_", max_size=7), st.text("ab\n", max_size=8))
def test_like_is_a_glob_of_percent_and_underscore(text: str, subject: str) -> None:
    glob = re.compile(translate(text.replace("%", "*").replace("_", "?")))
    assert like(text)(subject) is (glob.fullmatch(subject) is not None)


def test_like_does_not_explode() -> None:
    assert like("%a" * 200 + "%b")("a" * 20_000) is False


# --- places on the earth -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "km"),
    [
        ((48.8566, 2.3522), (51.5074, -0.1278), 343.6),  # Paris, London
        ((0, 179.5), (0, -179.5), 111.2),  # over the antimeridian: a degree
        ((90, 0), (-90, 0), 20_015.1),  # half the circumference
        ((0, 0), (0, 180), 20_015.1),
    ],
)
def test_distances_are_those_of_the_great_circle(one: tuple[float, float], other: tuple[float, float], km: float) -> None:
    metres = distance_m(np.array([one[0]], float), np.array([one[1]], float), *other)
    assert metres[0] / 1000 == pytest.approx(km, abs=0.1)
    assert call("GEO_DISTANCE", list(one), *other) == metres[0]


def test_a_box_may_go_over_the_antimeridian_and_has_its_edges() -> None:
    lat, lon = np.array([0, 0, 0, 10, np.nan]), np.array([170, -170, 0, 180, np.nan])
    assert in_box(lat, lon, -5, 170, 10, -170).tolist() == [True, True, False, True, False]
    assert in_box(lat, lon, -5, -170, 5, 170).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ({"lat": 1, "lon": 2, "name": "x"}, (1, 2)), ([1, 2.5], (1, 2.5)), ("1, 2", (1, 2)), ({"lat": "1", "lon": "2"}, (1, 2)),
        ([1], None),
        ([1, 2, 3], None), ({"lat": 1}, None), ("1;2", None), ([91, 0], None), ([0, -181], None), ([True, 0], None), (5, None),
        (None, None),
        (["a", "b"], None),
    ],
)  # fmt: skip
def test_places_come_in_three_forms(place: Any, expected: tuple[float, float] | None) -> None:
    assert point_of(place) == expected


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("GEO_DISTANCE", ([0, 0], 91, 0), "its latitude is 91 .number.; expected degrees from -90 to 90"),
        ("GEO_DISTANCE", ([0, 0], "x", 0), "its latitude is 'x' .text.; expected degrees"),
        ("GEO_WITHIN", ([0, 0], 0, 0, 0, 181), "its east is 181"),
        ("GEO_WITHIN", ([0, 0], 50, 0, 40, 1), "south edge 50.0 lies north of its north edge 40.0"),
    ],
)
def test_a_box_or_point_that_is_none_is_an_error(name: str, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        call(name, *args)
