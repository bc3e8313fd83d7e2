"""The text layer against the obvious way: every line of every document, one after another."""

import re
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_contract import LayerContract

from shards.documents import Documents
from shards.errors import BadQuery
from shards.identity import content_hash
from shards.layers.contract import Request, Resources
from shards.layers.text import Text
from shards.types import Budget

FORMS = [
    {"pattern": "parse_json"},
    {"pattern": "ID1"},
    {"pattern": "HTTPServer", "case": "ignore"},
    {"pattern": "tree", "word": True},
    {"pattern": "naïve", "case": "ignore"},
    {"pattern": r"id\d+$", "regex": True},
    {"pattern": r"^(alpha|beta) \w+", "regex": True},
    {"pattern": r"(?i)loadfile.*stone", "regex": True},
]


class TestTextContract(LayerContract):
    def make_layer(self):
        return Text(Text.Params(), Resources())

    def requests(self):
        return [Request("beta"), Request("river stone"), *(Request("", form, True) for form in FORMS)]


def layer():
    return Text(Text.Params(), Resources())


def reader_of(*texts: bytes):
    """A reader over documents in the order of their hashes, and their texts in that order."""
    documents = Documents.pack((content_hash(text), text, "code") for text in texts)
    text_layer = layer()
    arrays = text_layer.build(documents, None)
    statistics = text_layer.collect([(1, text_layer.statistics(arrays, documents, None))])
    reader = text_layer.open(arrays, documents, None, np.ones(len(documents), bool))
    return reader, statistics, [documents.content(row).tobytes() for row in range(len(documents))]


def search(reader, statistics, form, budget=None):
    return reader.search(layer().prepare(Request("", form, True), statistics), None, 10_000, budget or Budget())


def lines_of(text: bytes) -> list[tuple[int, bytes]]:
    """(offset, content) of each line, without b"\\n" or b"\\r\\n"."""
    lines, offset = [], 0
    for raw in text.split(b"\n"):
        lines.append((offset, raw.removesuffix(b"\r")))
        offset += len(raw) + 1
    return lines[:-1] if text.endswith(b"\n") or not text else lines


def slow(texts: list[bytes], find) -> dict[int, tuple[int, int, int]]:
    """Row -> (matching lines, start and end of the first match); find(line) gives a span or None."""
    found = {}
    for row, text in enumerate(texts):
        hits = [(offset + span[0], offset + span[1]) for offset, line in lines_of(text) if (span := find(line))]
        if hits:
            found[row] = (len(hits), *hits[0])
    return found


def as_dict(found):
    columns = (found.rows, found.scores.astype(int), found.starts, found.ends)
    return {row: rest for row, *rest in (map(int, values) for values in zip(*columns, strict=True)) for rest in [tuple(rest)]}


TEXTS = st.lists(st.text(alphabet="abB \r\n.x1é", max_size=40).map(str.encode), min_size=1, max_size=6, unique=True)
PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "B", "x", "1", ".", "é", " ", r"\w", r"\s", r"\d", "[ab]", "[^a]", "^", "$", r"\b", r"\.", "ab", "(?i:b)"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=2).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "*?"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)


@settings(max_examples=150)
@given(TEXTS, PATTERNS)
def test_regular_expressions_match_the_lines_that_python_matches_line_by_line(texts, pattern):
    reader, statistics, texts = reader_of(*texts)
    compiled = re.compile(pattern, re.ASCII)

    def find(line):
        # As text, since `.` is a character; RE2's \s has no vertical tab and Python's `$` would also stand before "\n".
        match = compiled.search(line.decode())
        return match and (len(line.decode()[: match.start()].encode()), len(line.decode()[: match.end()].encode()))

    found = search(reader, statistics, {"pattern": pattern, "regex": True, "case": "sensitive"})
    # Where a match ends under nested stars is each engine's own affair: `(?:(?: )*|1)*` takes " 1" in RE2 and " " in Python.
    assert {row: hit[:2] for row, hit in as_dict(found).items()} == {row: hit[:2] for row, hit in slow(texts, find).items()}


@settings(max_examples=100)
@given(TEXTS, st.text(alphabet="abB .x1é", min_size=1, max_size=3), st.booleans())
def test_literals_match_the_lines_that_hold_them(texts, literal, sensitive):
    reader, statistics, texts = reader_of(*texts)
    compiled = re.compile(re.escape(literal), 0 if sensitive else re.IGNORECASE)

    def find(line):
        match = compiled.search(line.decode())
        return match and (len(line.decode()[: match.start()].encode()), len(line.decode()[: match.end()].encode()))

    found = search(reader, statistics, {"pattern": literal, "case": "sensitive" if sensitive else "ignore"})
    assert as_dict(found) == slow(texts, find)


@pytest.mark.parametrize(
    ("text", "pattern", "n_lines"),
    [
        (b"", "^", 0),
        (b"\n", "^$", 1),
        (b"a", "^", 1),
        (b"a\n", "^", 1),
        (b"a\n", "^$", 0),
        (b"a\n\n", "^$", 1),
        (b"a\r\n\r\nb\r\n", "^$", 1),
        (b"a\r\nb", "a$", 1),
        (b"a\n b", r"a\s", 0),
        (b"a\nb", "a[^x]b", 0),
        (b"a\nb", "(?s)a.b", 0),
        (b"x a\na", r"\Aa", 1),
        (b"a x\na", r"a\z", 1),
        (b"x a\na", r"(?-m)^a", 1),
        (b"aaa aaa\naaa", "a", 2),
        (b"a\r", "a$", 1),
        (b"a\rb\n", "a.b", 1),
    ],
)
def test_a_line_ends_before_its_line_feed_and_nothing_matches_across(text, pattern, n_lines):
    reader, statistics, _ = reader_of(text, b"zzz")
    assert search(reader, statistics, {"pattern": pattern, "regex": True}).scores.tolist() == ([n_lines] if n_lines else []) + (
        [1.0] if pattern == "^" else []
    )


def test_slices_never_cut_a_line_whatever_their_size(monkeypatch):
    text = b"".join(b"x" * (i * 37 % 211) + (b" needle" if i % 7 == 0 else b"") + b"\n" for i in range(400))
    reader, statistics, _ = reader_of(text, b"needle", b"")
    whole = search(reader, statistics, {"pattern": r"x needle$", "regex": True})
    for size in (1, 17, 100, 1000):
        monkeypatch.setattr("shards.text_pieces.PIECE_BYTES", size)
        assert as_dict(search(reader, statistics, {"pattern": r"x needle$", "regex": True})) == as_dict(whole)


def test_the_prefilter_changes_no_answer(monkeypatch):
    texts = [b"def parse(x):\r\n    return load(x)\n" * n + b"DEF PARSE(Y)\n" for n in range(1, 30)]
    reader, statistics, _ = reader_of(*texts)
    forms = [
        {"pattern": r"def \w+\(", "regex": True},
        {"pattern": r"return (load|save)\(x\)$", "regex": True},
        {"pattern": r"(?i)parse\(\w", "regex": True},
        {"pattern": r"pa(?i:R)se", "regex": True},
        {"pattern": r"DEF", "word": True},
    ]
    for sparse_log_p in (-1e9, 1e9):
        monkeypatch.setattr("shards.text_query.SPARSE_LOG_P", sparse_log_p)
        counts = [int(search(reader, statistics, form).scores.sum()) for form in forms]
        assert counts == [435 + 29, 435, 435 + 29, 435, 29]  # 435 = 1 + … + 29; smart case takes the shouting line too


class Ticks(Budget):
    """A budget of so many looks at the clock."""

    def __init__(self, looks):
        self.looks = looks

    @property
    def expired(self):
        self.looks -= 1
        return self.looks < 0


def test_at_the_deadline_only_documents_read_to_their_end_are_reported(monkeypatch):
    monkeypatch.setattr("shards.text_pieces.PIECE_BYTES", 64)
    reader, statistics, texts = reader_of(*(b"a\n" * n for n in range(1, 100)))
    whole = as_dict(search(reader, statistics, {"pattern": "a"}))
    covered = []
    for looks in (0, 1, 10, 50, 10_000):
        found = search(reader, statistics, {"pattern": "a"}, Ticks(looks))
        assert as_dict(found).items() <= whole.items()
        assert found.rows_covered == len(found.rows)
        assert found.rows_total == len(texts)
        covered.append(found.rows_covered)
    assert covered == sorted(covered)
    assert (covered[0], covered[-1]) == (0, 99)
    assert 0 < covered[2] < 99


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"pattern": "(abc", "regex": True}, r"position 0: missing \)"),
        ({"pattern": "x[z-a]", "regex": True}, r"position 2: invalid character class range: z-a"),
        ({"pattern": "(?=x)", "regex": True}, "no look-around"),
        ({"pattern": "((a{100}){100}){100}", "regex": True}, "too large"),
        ({"pattern": r"(\pL{500}\d{400}){2}", "regex": True}, "too large"),
        ({"pattern": ""}, "empty"),
        ({"pattern": "a\nb"}, "line feed at position 1"),
        ({"pattern": "\ud800"}, "surrogate"),
        ({"pattern": "a" * 5000}, "5000 bytes"),
        ({"pattern": 5}, "pattern: Input should be a valid string"),
        ({"patern": "a"}, "patern: Extra inputs"),
        ({"pattern": "a", "case": "smrt"}, "case: Input should be 'smart', 'sensitive' or 'ignore'"),
    ],
)
def test_a_form_that_cannot_be_understood_says_what_and_where(form, message):
    with pytest.raises(BadQuery, match=message):
        layer().prepare(Request("", form), reader_of(b"a")[1])


def test_common_text_is_one_literal_unless_it_is_empty_or_long():
    _, statistics, _ = reader_of(b"hello (world")
    prepare = layer().prepare
    assert prepare(Request("  (world "), statistics).asked == "'(world', any case"
    assert prepare(Request("World"), statistics).asked == "'World'"
    assert prepare(Request("   "), statistics) is None
    assert prepare(Request("a\nb"), statistics) is None
    assert prepare(Request("é" * 101), statistics) is None
    assert prepare(Request("é" * 101, explicit=True), statistics) is not None
    with pytest.raises(BadQuery, match="empty"):
        prepare(Request("   ", explicit=True), statistics)


@pytest.mark.parametrize(
    ("pattern", "regex", "insensitive"),
    [
        ("self", False, True),
        ("Self", False, False),
        (r"\Wself\S\B", True, True),
        (r"(?P<Name>self)", True, True),
        (r"\p{Lu}x\x{AB}", True, True),
        (r"[A-Z]x", True, False),
    ],
)
def test_smart_case_looks_at_letters_not_at_escapes(pattern, regex, insensitive):
    query = layer().prepare(Request("", {"pattern": pattern, "regex": regex}), reader_of(b"a")[1])
    assert query.payload.formula.ignore_case == insensitive


@cache
def library() -> tuple[tuple[str, bytes], ...]:
    folder = Path(sysconfig.get_path("stdlib")) / "asyncio"
    return tuple((str(path), path.read_bytes()) for path in sorted(folder.glob("*.py")))


GREP = [
    "self", "def ", "import", "return", "TimeoutError", "^class", "^$", "^ *#", "pass$", "[0-9]+", "self[.]_[a-z]+ = ", "a.c",
    "raise [A-Z][a-z]+Error", "\\(\\)", "loop|task", "(await|yield) [a-z]", "[^a-z ]{6}", "\\bin\\b", "e{2}", "''", '"""', ":$",
    "return (None|True|False)", "__[a-z]+__", "import.*as", "[A-Z]{4,}", "not.*None", "fut(ure)?s?\\b", "nosuchstring",
]  # fmt: skip


@pytest.mark.skipif(shutil.which("grep") is None, reason="grep is not installed")
def test_the_same_lines_match_as_in_grep():
    reader, statistics, texts = reader_of(*(text for _, text in library()))
    path_of = {text: path for path, text in library()}
    for pattern in GREP:
        command = ["grep", "-E", "-c", "-H", "--", pattern, *path_of.values()]
        printed = subprocess.run(command, capture_output=True, text=True, env={"LC_ALL": "C"}, timeout=30).stdout
        expected = {path: int(n) for path, _, n in (line.rpartition(":") for line in printed.splitlines()) if n != "0"}
        found = search(reader, statistics, {"pattern": pattern, "regex": True, "case": "sensitive"})
        assert {path_of[texts[row]]: n for row, (n, _, _) in as_dict(found).items()} == expected, pattern


def test_a_unique_line_is_a_certainty_and_self_is_noise():
    _, statistics, _ = reader_of(*(text for _, text in library()))
    unique = "    qzvx = frobnicate(wumpus, 4711)"
    for text, low, high in (("self", 1.0, 3.0), (unique, 60.0, 300.0)):
        query = layer().prepare(Request(text), statistics)
        surprise = layer().surprise(query, np.array([1.0, 5.0, -np.inf]))
        assert low < surprise[0] < high
        assert surprise[1] == surprise[0]
        assert surprise[2] == 0
