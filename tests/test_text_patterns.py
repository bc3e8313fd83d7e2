"""The text layer's matches line by line: against ripgrep's and Python's on the standard library, and what narrowing may leave out."""

import random
import re
import shutil
import subprocess

import numpy as np
import pytest
from text_corpus import Corpus, Lines, library
from text_patterns import forms, ripgrep

from shards.linescan import scan
from shards.text_pattern import AllOf, AnyOf
from shards.types import Budget

SEED = 6


@pytest.fixture(scope="module")
def patterns(request):
    """All 300 forms over the whole library with --all-patterns, else 40 of them over some folders."""
    if request.config.getoption("--all-patterns"):
        return forms(), library(whole=True)
    return random.Random(SEED).sample(forms(), 40), library()


def run(command: list[str]) -> Lines:
    """The (row, line) of a tool that prints `path NUL line:text`; 1 is its exit status for no match."""
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    return {(int(row), int(line)) for row, line in re.findall(rb"^[^\0\n]*?(\d+)\0(\d+):", done.stdout, re.MULTILINE)}


@pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed")
def test_the_same_lines_match_as_in_ripgrep(patterns, tmp_path):
    table, corpus = patterns
    folder = corpus.write(tmp_path)
    for form in table:
        # Renditions are text in UTF-8: -a and -E none keep ripgrep from looking for itself. Lines may end with b"\r\n".
        command = ["rg", "-j2", "-nH", "--no-heading", "--null", "--crlf", "-a", "-E", "none", "--no-ignore"]
        assert corpus.lines(form) == run([*command, *ripgrep(form), str(folder)]), form


def python(form):
    """A function that says whether a line matches a form, by Python's `re`."""
    pattern = form["pattern"]
    if not form.get("regex"):
        pattern = re.escape(pattern)
    ignore_case = form.get("case") == "ignore" or (form.get("case", "smart") == "smart" and not re.search(r"(?<!\\)[A-Z]", pattern))
    compiled = re.compile(rf"\b(?:{pattern})\b" if form.get("word") else pattern, re.ASCII | (re.IGNORECASE if ignore_case else 0))
    return lambda line: compiled.search(line.decode())


def test_the_same_lines_match_as_in_python():
    corpus = library()
    small = Corpus.of([text for text in corpus.texts if b"\x0b" not in text and len(text) < 20_000][:60])  # `\s` is no \v in RE2
    for form in random.Random(SEED).sample(forms(), 100):
        holds = python(form)
        assert small.lines(form) == small.slow(holds), form


def is_met(requirement, folded: bytes) -> bool:
    match requirement:
        case None:
            return True
        case AllOf(of=parts):
            return all(is_met(part, folded) for part in parts)
        case AnyOf(of=parts):
            return any(is_met(part, folded) for part in parts)
    return requirement in folded


MORE_FORMS = [
    {"all": ["def", "self"], "none": ["async"]},
    {"any": [{"all": ["import", "os"]}, {"pattern": r"Error\b", "regex": True}]},
    {"pattern": "recieve", "edits": 2},
    {"pattern": "Éncoding", "edits": 1, "case": "ignore"},
    {"none": ["e"]},
]


def test_every_matching_line_meets_what_the_query_requires_and_scanning_those_alone_finds_the_same():
    corpus = Corpus.of([text for text in library().texts if len(text) < 20_000])
    lines = [line.lower() for text in corpus.texts for line in text.split(b"\n")]
    feeds = corpus.feeds
    starts = np.r_[0, feeds[:-1] + 1]
    wanted = np.ones(len(corpus.texts), bool)
    narrowed = 0
    for form in random.Random(SEED).sample(forms(), 25) + MORE_FORMS:
        query = corpus.prepare(form).payload
        possible = np.array([is_met(query.required, line) for line in lines])
        whole = scan(corpus.documents, wanted, query, Budget())
        # A range need not begin or end with the line, nor hold more than a byte of it.
        ranges = np.stack([(starts + feeds)[possible] // 2, (starts + feeds)[possible] // 2 + 1], axis=1)
        some = scan(corpus.documents, wanted, query, Budget(), ranges)
        for name in ("counts", "firsts", "complete"):
            np.testing.assert_array_equal(getattr(some, name), getattr(whole, name), err_msg=f"{name} of {form}")
        narrowed += int(possible.sum()) < len(lines) / 2
    assert narrowed > 10


def test_ranges_of_any_size_give_whole_lines_once():
    texts = [b"ab\nab", b"ab", b"", b"x ab\n\nab\n", b"ab ab\r\nab"]
    corpus = Corpus.of(texts)
    query = corpus.prepare({"pattern": "ab"}).payload
    size = len(corpus.documents.text)
    whole = scan(corpus.documents, np.ones(5, bool), query, Budget())
    for step in range(1, size + 1):
        ranges = np.array([[a, min(a + step, size)] for a in range(0, size, step)], np.int64)
        some = scan(corpus.documents, np.ones(5, bool), query, Budget(), ranges)
        assert (some.counts.tolist(), some.complete.all()) == (whole.counts.tolist(), True)
        odd = np.arange(5) % 2 == 1
        some = scan(corpus.documents, odd, query, Budget(), ranges)
        assert (some.counts[odd].tolist(), some.complete.tolist()) == (whole.counts[odd].tolist(), odd.tolist())


@pytest.mark.parametrize("n_pieces", [1, 3])
def test_a_row_is_complete_once_its_last_range_was_read(monkeypatch, n_pieces):
    monkeypatch.setattr("shards.text_pieces.PIECE_BYTES", 100)
    corpus = Corpus.of([b"needle %d\n" % i * 10 for i in range(20)])
    query = corpus.prepare({"pattern": "needle"}).payload

    class Looks(Budget):
        left = n_pieces

        @property
        def expired(self):
            self.left -= 1
            return self.left < 0

    everything = np.array([[0, len(corpus.documents.text)]], np.int64)
    every_line = np.stack([corpus.documents.starts, corpus.documents.ends], axis=1)
    for ranges in (None, everything, every_line):
        found = scan(corpus.documents, np.ones(20, bool), query, Looks(), ranges)
        assert set(found.counts[found.complete].tolist()) <= {10}
        assert found.complete.sum() < 20
        assert (ranges is everything) or found.complete.sum() >= n_pieces - 1
