"""Strings within some edits, and automata of regular expressions: against their definitions, ugrep and RE2."""

import random
import shutil

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_text_patterns import run
from text_corpus import Corpus, library

from shards.text_automaton import automaton
from shards.text_finders import _by_re2, finder, first_span
from shards.text_pattern import Regex, Within
from shards.types import Budget


def edits_between(pattern: str, text: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(text) + 1))
    for i, char in enumerate(pattern, start=1):
        above, row = row, [i]
        for j, other in enumerate(text):
            row.append(min(above[j] + (char != other), above[j + 1] + 1, row[j] + 1))
    return row[-1]


def fewest_edits(pattern: str, line: str) -> int:
    """Of all parts of a line the one nearest to a pattern."""
    row = [0] * (len(line) + 1)  # it may begin anywhere
    for i, char in enumerate(pattern, start=1):
        above, row = row, [i]
        for j, other in enumerate(line):
            row.append(min(above[j] + (char != other), above[j + 1] + 1, row[j] + 1))
    return min(row)


TEXTS = st.lists(st.text(alphabet="abcé_ \r\n", max_size=24).map(str.encode), min_size=1, max_size=4, unique=True)


@settings(max_examples=80)
@given(TEXTS, st.text(alphabet="abcé", min_size=2, max_size=6), st.integers(1, 3))
def test_a_line_matches_if_some_part_of_it_is_within_the_edits(texts, pattern, edits):
    edits = min(edits, len(pattern) - 1)
    corpus = Corpus.of(texts)
    found = corpus.lines({"pattern": pattern, "edits": edits, "case": "sensitive"})
    assert found == corpus.slow(lambda line: fewest_edits(pattern, line.decode()) <= edits)


@settings(max_examples=80)
@given(st.text(alphabet="abc ", max_size=16), st.text(alphabet="abc", min_size=2, max_size=5), st.integers(1, 2), st.booleans())
def test_the_span_is_the_nearest_match_the_first_to_end_with_each_end_as_far_as_it_goes(line, pattern, edits, word):
    edits = min(edits, len(pattern) - 1)

    def letter(at):
        return word and 0 <= at < len(line) and line[at].isalpha()

    distances = {
        (begin, end): edits_between(pattern, line[begin:end])
        for end in range(len(line) + 1)
        for begin in range(end + 1)
        if not letter(begin - 1) and not letter(end)
    }
    least = min(distances.values(), default=99)
    expected = None
    if least <= edits:
        end = min(end for (_, end), n in distances.items() if n == least)
        while further := [e for (_, e), n in distances.items() if n == least and end < e <= end + least]:
            end = min(further)
        begin = max(begin for (begin, e), n in distances.items() if e == end and n == least)
        while further := [b for (b, e), n in distances.items() if n == least and e == end and begin - least <= b < begin]:
            begin = max(further)
        expected = (begin, end)
    assert first_span(line.encode(), Within(pattern, edits, word=word)) == expected


def test_pieces_leave_out_nothing_that_is_within_the_edits(monkeypatch):
    rng = random.Random(1)
    lines = []
    for _ in range(300):
        typo = list("receive")
        for _ in range(rng.randrange(5)):
            at = rng.randrange(len(typo))
            typo[at : at + rng.randrange(2)] = rng.choice(["", "x", "E", "é"])
        lines.append("".join(typo))
    corpus = Corpus.of(["\n".join(lines).encode(), b"nothing like it"])
    for edits in (1, 2, 3):
        found = []
        for least in (-1e9, 1e9):
            monkeypatch.setattr("shards.text_query.PIECES_LOG_P", least)
            form = {"pattern": "receive", "edits": edits, "case": "ignore"}
            assert bool(corpus.prepare(form).payload.formula.pieces) == (least > 0)
            found.append(corpus.lines(form))
        assert found[0] == found[1] == corpus.slow(lambda line: fewest_edits("receive", line.decode().lower()) <= edits)  # noqa: B023
        assert 20 < len(found[0]) < 300


@pytest.mark.parametrize(
    ("text", "pattern", "edits", "span"),
    [
        ("I recieve it", "receive", 2, "recieve"),
        ("I rcve it", "receive", 2, None),
        ("naive", "naïve", 1, "naive"),  # a character is one edit, however many bytes it has
        ("NAÏVE", "naïve", 1, "NAÏVE"),
        ("Straße", "strasse", 2, "Straße"),
        ("xabcx abd", "abc", 1, "abc"),
        ("an abX", "abc", 1, "abX"),
        ("an Xbc", "abc", 1, "Xbc"),
        ("aXbc abc", "abc", 1, "abc"),
        ("日本語", "日木語", 1, "日本語"),
    ],
)
def test_edits_count_characters(text, pattern, edits, span):
    found = Corpus.of([text.encode(), b"zzz"]).search({"pattern": pattern, "edits": edits})
    assert len(found.rows) == (span is not None)
    if span is not None:
        assert text.encode()[found.starts[0] : found.ends[0]].decode() == span


@pytest.mark.skipif(shutil.which("ugrep") is None, reason="ugrep is not installed")
def test_the_same_lines_match_as_in_ugrep(tmp_path):
    """ugrep leaves the first character alone: what it edits there is asked of it as the rest of the pattern with one edit less."""
    corpus = library()
    folder = corpus.write(tmp_path)
    command = ["ugrep", "-r", "-nH", "--no-heading", "--null", "-a", "-F"]
    for pattern, edits in (("recieve", 1), ("exeption", 1), ("asynchronus", 2), ("mesage", 2)):
        expected = set()
        for left_out in range(edits + 1):
            fuzzy = [f"-Z{edits - left_out}"] if edits > left_out else []
            expected |= run([*command, *fuzzy, pattern[left_out:], str(folder)])
        assert corpus.lines({"pattern": pattern, "edits": edits, "case": "sensitive"}) == expected, pattern


# --- Automata ----------------------------------------------------------------------------------------------------------------

ATOMS = ["a", "b", "B", ".", "é", "—", " ", r"\w", r"\W", r"\s", r"\S", r"\d", "[ab]", "[^a]", "[^é]", "[à-ü]", "[x—\U0001f600]", r"[\W_]"]
ATOMS += ["^", "$", r"\b", r"\B", r"\A", "ab", "(?i:b)", "(?i:k)", "(?:)", r"\x0d", r"\.", "(?s:.)", "[^\\s]"]
PATTERNS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?", "{2,}"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=7,
)
LINES = st.lists(st.text(alphabet="abBkK\u212aé—\U0001f600 \r.x_1\t", max_size=10), max_size=30).map(lambda lines: "\n".join([*lines, ""]))


@settings(max_examples=200)
@example(r"\S(?:)\W", "1\u212a\n", True)
@given(PATTERNS, LINES, st.booleans())
def test_automata_take_the_lines_that_re2_matches(pattern, text, ignore_case):
    leaf = Regex(pattern, ignore_case)
    packed = np.frombuffer(text.encode(), np.uint8)
    if automaton(pattern, ignore_case) is not None:
        assert finder(leaf)(packed, Budget()).tolist() == _by_re2(leaf)(packed, Budget()).tolist()


@pytest.mark.parametrize(
    ("pattern", "ignore_case", "known"),
    [
        (r"\w+\s*=\s*\w+\[\w+\]$", False, True),
        (r"(?i)straße", False, False),  # what else ß folds to is RE2's affair
        ("naïve", False, True),
        (r"\S\W", False, True),
        (r"\S\W", True, False),  # the Kelvin sign is no \W to RE2 where case is ignored
        (r"\pL+", False, False),
        (r"[[:alpha:]]", False, False),
        (r"x{,3}", False, False),  # three characters to RE2, a repeat to Python
        (r"[ab].{20}c", False, False),  # a million states
        (r"a\zb|c", False, False),
        ("(?i)" + "|".join(f"word{i}" for i in range(60)), False, True),
    ],
)
def test_what_is_too_large_or_may_be_read_otherwise_is_left_to_re2(pattern, ignore_case, known):
    assert (automaton(pattern, ignore_case) is not None) == known
    text = "a word7 naïve STRASSE straße x{,3} b01234567890123456789c q = b[c]\n".encode()
    leaf = Regex(pattern, ignore_case)
    assert finder(leaf)(np.frombuffer(text, np.uint8), Budget()).tolist() == [len(text) - 1]


class Looks(Budget):
    """A budget of so many looks at the clock."""

    def __init__(self, left):
        self.left = left

    @property
    def expired(self):
        self.left -= 1
        return self.left < 0


SLOW = r"[ab].{200}[cd]"  # RE2 reads 0.4 MB/s of what is all a and b


@pytest.mark.parametrize("text", [b"ab\n" * 100_000, b"ab" * 100_000])
def test_slow_patterns_look_at_the_clock_every_few_kilobytes(text):
    corpus = Corpus.of([text])
    for form in ({"pattern": SLOW, "regex": True}, {"pattern": f"(?s){SLOW}", "regex": True, "multiline": True}):
        budget = Looks(3)
        found = corpus.search(form, budget)
        assert (found.rows_covered, len(found.rows)) == (0, 0)
        assert budget.left > -5


def test_slow_patterns_find_what_is_shorter_than_half_a_window_in_lines_of_any_length():
    lines = [b"x" * 3 + b"a" + b"y" * 200 + b"c", b"z" * 50_000 + b"a" + b"y" * 200 + b"cz", b"a" + b"z" * 60_000 + b"c"]
    corpus = Corpus.of([b"\n".join(lines * 3)])
    assert corpus.lines({"pattern": SLOW, "regex": True}) == {(0, n) for n in (1, 2, 4, 5, 7, 8)}
    found = corpus.search({"pattern": f"(?s){SLOW}$|{SLOW}z", "regex": True, "multiline": True})
    assert (found.n_matched, found.starts.tolist(), found.ends.tolist()) == (6, [3], [205])
