"""AND, OR and NOT of patterns, on a line or in a document, and patterns over lines: against the obvious way, ugrep and ripgrep."""

import random
import re
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_contract import LayerContract
from test_text_patterns import run
from text_corpus import Corpus, library, lines_of

from shards.errors import BadQuery
from shards.layers.contract import Request, Resources
from shards.layers.text import Text
from shards.text_automaton import over_lines
from shards.text_finders import compile_regex
from shards.text_kernels import may_begin
from shards.types import Budget

FORMS = [
    {"all": ["alpha", "beta"]},
    {"any": ["parse_json", {"pattern": r"id\d+$", "regex": True}], "none": ["stone"]},
    {"none": ["alpha"]},
    {"all": ["alpha", "tree"], "none": ["naïve"], "per": "document"},
    {"none": ["alpha"], "per": "document"},
    {"pattern": r"beta\s+alpha", "regex": True, "multiline": True},
    {"pattern": "aplha", "edits": 2},
    {"all": [{"pattern": "strone", "edits": 1}, {"pattern": "HTTPServer", "word": True}], "per": "document"},
]


class TestTextFormsContract(LayerContract):
    def make_layer(self):
        return Text(Text.Params(), Resources())

    def requests(self):
        return [Request("", form, True) for form in FORMS]


def holds(form, matches) -> bool:
    """The definition; matches(pattern) says whether a leaf matches."""
    if isinstance(form, str):
        return matches(form)
    if "pattern" in form:
        return matches(form["pattern"])
    some = [holds(part, matches) for part in form.get("any", [])]
    needed = [holds(part, matches) for part in form.get("all", [])]
    return all(needed) and (any(some) or not some) and not any(holds(part, matches) for part in form.get("none", []))


def positive(form) -> list[str]:
    if isinstance(form, str):
        return [form]
    if "pattern" in form:
        return [form["pattern"]]
    return [leaf for name in ("all", "any") for part in form.get(name, []) for leaf in positive(part)]


LEAVES = st.sampled_from(["a", "b", "ab", "c", "ba"])
NODES = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(st.sampled_from(["all", "any", "none"]), st.lists(inner, min_size=1, max_size=3), min_size=1),
    max_leaves=6,
).filter(lambda node: not isinstance(node, str))
TEXTS = st.lists(st.text(alphabet="abcx\n", max_size=20).map(str.encode), min_size=1, max_size=6, unique=True)


@settings(max_examples=50)
@given(TEXTS, NODES)
def test_formulas_hold_line_by_line(texts, form):
    corpus = Corpus.of(texts)
    assert corpus.lines(form) == corpus.slow(lambda line: holds(form, lambda leaf: leaf.encode() in line))


@settings(max_examples=50)
@given(TEXTS, NODES)
def test_formulas_hold_for_documents_and_count_the_lines_of_what_they_ask_for(texts, form):
    corpus = Corpus.of(texts)
    found = corpus.search(form | {"per": "document"})
    expected = {}
    for row, text in enumerate(corpus.texts):
        if holds(form, lambda leaf: leaf.encode() in text):  # noqa: B023 (called at once)
            asked = [leaf.encode() for leaf in positive(form)]
            expected[row] = max(sum(any(leaf in line for leaf in asked) for line in lines_of(text)), 1)
    assert dict(zip(found.rows.tolist(), found.scores.tolist(), strict=True)) == expected


def test_a_hit_shows_the_first_part_that_is_asked_for():
    corpus = Corpus.of([b"x\nzz b a\na b", b"a\nb"])
    row = corpus.texts.index(b"x\nzz b a\na b")
    found = corpus.search({"all": ["a", "b"]})
    assert (found.rows.tolist(), found.starts.tolist(), found.ends.tolist()) == ([row], [5], [6])
    found = corpus.search({"all": ["a", "b"], "per": "document"})
    assert dict(zip(found.rows.tolist(), found.starts.tolist(), strict=True)) == {row: 5, 1 - row: 0}
    found = corpus.search({"none": ["a", "b"]})
    assert (found.rows.tolist(), found.starts.tolist(), found.ends.tolist()) == ([row], [0], [1])


UGREP = [
    ("def self", {"all": ["def", "self"]}),
    ("import|from os|sys", {"all": [{"any": ["import", "from"]}, {"any": ["os", "sys"]}]}),
    ("return -None", {"all": ["return"], "none": ["None"]}),
    ("(raise ValueError)|(except Exception)", {"any": [{"all": ["raise", "ValueError"]}, {"all": ["except", "Exception"]}]}),
    ("class -object -Error", {"all": ["class"], "none": ["object", "Error"]}),
    ("self|cls -def", {"any": ["self", "cls"], "none": ["def"]}),
]
UGREP_DOCUMENTS = [
    ("StreamReader Lock", {"all": ["StreamReader", "Lock"]}),
    ("header -decode", {"all": ["header"], "none": ["decode"]}),
    ("expat|sax handler", {"all": [{"any": ["expat", "sax"]}, "handler"]}),
]


@pytest.mark.skipif(shutil.which("ugrep") is None, reason="ugrep is not installed")
def test_the_same_lines_and_files_match_as_in_ugrep(tmp_path):
    corpus = library()
    folder = corpus.write(tmp_path)
    command = ["ugrep", "-r", "-nH", "--no-heading", "--null", "-a", "-F", "--bool"]
    for asked, form in UGREP:
        assert corpus.lines({"case": "sensitive"} | form) == run([*command, asked, str(folder)]), asked
    for asked, form in UGREP_DOCUMENTS:
        found = corpus.search({"case": "sensitive", "per": "document"} | form)
        assert set(found.rows.tolist()) == {row for row, _ in run([*command, "--files", asked, str(folder)])}, asked


# --- Over lines --------------------------------------------------------------------------------------------------------------

OVER_LINES = [
    r"\)\n\n\n?def ",
    r"(?s)try:.{1,40}except",
    r"import \w+\n(?:import \w+\n)+",
    r"class \w+:\n\s+pass$",
    r'"""\n\n',
    r"return\s+None$",
    r"^\s*else:\n\s*raise \w+",
    r"[^a-z]{30}",
]


def test_patterns_over_lines_match_as_in_python():
    corpus = library()
    for pattern in OVER_LINES:
        compiled = re.compile(pattern, re.ASCII | re.MULTILINE)
        found = corpus.search({"pattern": pattern, "regex": True, "multiline": True, "case": "sensitive"})
        spans = {row: [match.span() for match in compiled.finditer(text.decode())] for row, text in enumerate(corpus.texts)}
        assert dict(zip(found.rows.tolist(), found.scores.tolist(), strict=True)) == {r: len(s) for r, s in spans.items() if s}
        for row, start, end in zip(found.rows.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True):
            assert corpus.texts[row][start:end].decode() == corpus.texts[row].decode()[slice(*spans[row][0])]


@pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed")
def test_patterns_over_lines_match_as_often_as_in_ripgrep(tmp_path):
    corpus = library()
    folder = corpus.write(tmp_path)
    for pattern in OVER_LINES:
        command = ["rg", "-U", "--count-matches", "--no-unicode", "-a", "-E", "none", "-H", "-e", pattern, str(folder)]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
        expected = {int(path[-5:]): int(n) for path, _, n in (line.rpartition(":") for line in printed.splitlines())}
        found = corpus.search({"pattern": pattern, "regex": True, "multiline": True, "case": "sensitive"})
        assert dict(zip(found.rows.tolist(), found.scores.astype(int).tolist(), strict=True)) == expected, pattern


def test_a_literal_may_span_lines():
    corpus = Corpus.of([b"one\ntwo\nthree", b"one two"])
    found = corpus.search({"pattern": "E\nTWO", "multiline": True, "case": "ignore"})
    assert (found.n_matched, corpus.texts[found.rows[0]], found.starts.tolist(), found.ends.tolist()) == (1, b"one\ntwo\nthree", [2], [7])
    found = corpus.search({"all": [{"pattern": "one\ntwo", "multiline": True}, "three"], "per": "document"})
    assert (found.n_matched, found.starts.tolist()) == (2, [0])


# --- Forms and their chance --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"pattern": "a", "all": ["b"]}, 'has "pattern" or "all", not both'),
        ({"case": "ignore"}, "says nothing to look for"),
        ({"all": [{"case": "ignore"}]}, "says nothing to look for"),
        ({"all": ["a", ""]}, "empty"),
        ({"all": [{"pattern": "(", "regex": True}]}, "broken at position 0"),
        ({"all": [{"any": ["a"], "per": "document"}]}, "outermost"),
        ({"all": [{"pattern": "a\\nb", "regex": True, "multiline": True}, "c"]}, 'Set "per": "document"'),
        ({"pattern": "abc", "edits": 3}, "3 characters; with 3 edits"),
        ({"pattern": "a" * 64, "edits": 1}, "64 characters"),
        ({"pattern": "a.c", "edits": 1, "regex": True}, 'Leave out "regex"'),
        ({"pattern": "abc", "edits": 9}, "less than or equal to 8"),
        ({"all": "abc"}, "all: Input should be a valid list"),
        ({"all": [{"patern": "a"}]}, "patern"),
        ({"all": ["a"] * 65}, "65 patterns"),
    ],
)
def test_a_form_that_cannot_be_understood_says_what_and_where(form, message):
    with pytest.raises(BadQuery, match=message):
        Corpus.of([b"a"]).prepare(form)


def test_forms_nested_without_end_are_refused():
    form = {"all": ["a"]}
    for _ in range(3000):
        form = {"all": [form]}
    with pytest.raises(BadQuery, match="nested more than 16 deep"):
        Corpus.of([b"a"]).prepare(form)


def test_what_was_asked_is_said_in_words():
    corpus = Corpus.of([b"abc"])
    asked = corpus.prepare({"all": ["abc"], "any": ["D", {"pattern": "e+", "regex": True}], "none": ["x"], "per": "document"}).asked
    assert asked == "('D' or (/e+/, any case)) and ('abc', any case) and not ('x', any case), in one document"
    assert corpus.prepare({"pattern": "Recieve", "edits": 1}).asked == "'Recieve' but for 1 edit"


def test_flags_are_inherited_unless_a_part_says_otherwise():
    corpus = Corpus.of([b"AB ab", b"abc", b"ABx"])
    lines = corpus.lines({"all": ["ab", {"pattern": "AB", "case": "sensitive"}], "case": "ignore", "word": True})
    assert lines == {(corpus.texts.index(b"AB ab"), 1)}
    assert len(corpus.lines({"any": ["a.c", {"pattern": "B.", "regex": False}], "regex": True, "case": "sensitive"})) == 1


def test_the_chance_of_a_formula_is_near_its_share_of_the_lines():
    """Within a factor of ten where matches are common enough to count; what goes together (`raise` and `Error`) may go beyond."""
    corpus = library()
    n_lines = int(corpus.n_lines.sum())
    for form in (
        {"all": ["self", "return"]},
        {"any": ["self", "return", "import"]},
        {"all": ["self"], "none": ["return"]},
        {"none": ["self"]},
        {"any": [{"all": ["if", "not"]}, {"all": ["import", "from"]}]},
        {"pattern": "self", "edits": 1},
        {"pattern": "return", "edits": 1},
        {"pattern": "message", "edits": 2},
        {"pattern": "message", "edits": 1},
    ):
        log_p = corpus.prepare(form | {"case": "ignore"}).log_p
        share = corpus.search(form | {"case": "ignore"}).n_matched / n_lines
        above = np.log(100 if form.get("edits") == 2 else 10)  # one place counts for several variants: on the safe side
        assert -np.log(10) < log_p - np.log(share) < above, (form, log_p, np.log(share))


def test_documents_are_taken_to_match_by_chance_at_least_as_often_as_they_do():
    """Words cluster in documents, so the estimate is on the safe side: a formula never surprises more than it should."""
    corpus = library()
    n_lines = int(corpus.n_lines.sum())
    for form in (
        {"all": ["header", "decode"]},
        {"all": ["lock", "await"]},
        {"all": ["error"], "none": ["raise"]},
        {"all": ["sax", "expat"]},
    ):
        asked = form | {"per": "document", "case": "ignore"}
        n_expected, n_found = np.exp(corpus.prepare(asked).log_p) * n_lines, len(corpus.search(asked).rows)
        assert 0 < n_found <= n_expected * 2 <= 2 * len(corpus.texts) * 2, (form, n_expected, n_found)
    unique = corpus.prepare({"all": ["frobnicate", "xyzzy"], "per": "document"}).log_p
    assert unique + np.log(n_lines) < -5


def test_parts_add_surprise_alternatives_take_it_and_edits_cost():
    corpus = library()

    def surprise(form):
        return -corpus.prepare(form).log_p

    one, other = surprise({"pattern": "frobnicate"}), surprise({"pattern": "wumpus"})
    assert surprise({"all": ["frobnicate", "wumpus"]}) == pytest.approx(one + other)
    assert surprise({"any": ["frobnicate", "wumpus"]}) == pytest.approx(-np.logaddexp(-one, -other))
    assert surprise({"all": ["wumpus"], "none": ["frobnicate"]}) == pytest.approx(other, abs=1e-6)
    assert 0 <= surprise({"none": ["self"]}) < 0.7
    for_each_edit = [surprise({"pattern": "frobnicate", "edits": k}) for k in range(5)]
    assert all(more < fewer for fewer, more in zip(for_each_edit, for_each_edit[1:], strict=False))
    assert for_each_edit[1] > 10
    assert for_each_edit[4] < 10
    assert surprise({"pattern": "self\n\n\ndef frobnicate", "multiline": True}) > one


def test_the_deadline_holds_in_every_kind_of_query():
    corpus = library()
    for form in [*FORMS, {"pattern": r"(?s)a.*?zzz|a", "regex": True, "multiline": True}]:
        found = corpus.search(form, Budget(-1))
        assert (found.rows_covered, len(found.rows)) == (0, 0), form


STARTS = [  # where a match begins is told without RE2: from the first line of a match, and from the lines behind it
    r"a\nb", r"a\s+b", r"(?s)a.*b", r"(?s)a.*?b", r"(?s:a.)b", r"a.b|b\n\na", r"[^b]a[^b]", r"^\s*$\n^b", r"a$\n\n?b$", r"\W{2,3}a",
    r"\ba\n", r"a\r\n", r"a\r?\n+b", r"\Aa\n", r"b\n?$", r"\na", r"a+", r"(?i)A\nB", r"é\s", r"(?:ab|\n){3}", r"\n\n", r"a\B\w\n",
    r"^b|\s\s",
]  # fmt: skip


@pytest.mark.parametrize("near", [0, 1 << 10])
def test_patterns_over_lines_are_found_where_they_may_begin_as_re2_finds_them_in_all_text(near, monkeypatch):
    monkeypatch.setattr("shards.text_starts.NEAR_BYTES", near)  # RE2 begins anew for each match, or nearly never
    rng = random.Random(7)
    parts = ["a", "b", "A", "é", "_", " ", "\n", "\n", "\r\n", "\r", "\n\n"]
    corpus = Corpus.of([*{"".join(rng.choices(parts, k=rng.randint(0, 40))).encode() for _ in range(80)}])
    for pattern in STARTS:
        assert over_lines(pattern, False), pattern
        regex = compile_regex(pattern, False, multiline=True)
        spans = {row: [match.span() for match in regex.finditer(text)] for row, text in enumerate(corpus.texts)}
        found = corpus.search({"pattern": pattern, "regex": True, "multiline": True, "case": "sensitive"})
        got = zip(found.rows.tolist(), found.scores.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
        assert {row: rest for row, *rest in got} == {row: [len(s), *s[0]] for row, s in spans.items() if s}, pattern


def test_a_pattern_that_every_line_may_begin_and_none_ends_is_not_followed_from_each(monkeypatch):
    """Followed from each of 2,000 lines to the end of the text it would be 8 million steps: then RE2 reads it, once."""
    text = b"ab\n" * 2000
    known = over_lines(r"(?s)a.*z", False)
    feeds = np.arange(2, len(text), 3)
    table, matched = known.begins.table, np.uint64(known.begins.matched)
    body, stops = np.frombuffer(text, np.uint8), np.full(len(feeds), len(text) + 1)
    assert may_begin(body, feeds, stops, table, matched, np.uint64(30), np.uint64(100)).all()  # nothing is sure, and nothing left out
    assert not may_begin(body, feeds[-9:], stops[-9:] - 1, table, matched, np.uint64(30), np.uint64(1000)).any()
    found = Corpus.of([text, text + b"z"]).search({"pattern": r"(?s)a.*z", "regex": True, "multiline": True})
    assert (found.n_matched, found.starts.tolist(), found.ends.tolist()) == (1, [0], [len(text) + 1])
