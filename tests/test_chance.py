"""The chance of a match: by hand on small texts, against real counts on the standard library."""

import math
import re
import sysconfig
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from shards.chance import ChanceModel, add_statistics, count_texts, log_p_literal
from shards.regexes import log_p_pattern, required_literals


def statistics_of(*texts: bytes):
    """Statistics of texts packed with one byte between them, with "n_units", and lines per text."""
    ends = np.cumsum([len(text) + 1 for text in texts]) - 1
    starts = ends - [len(text) for text in texts]
    packed = np.frombuffer(b"".join(text + b"\n" for text in texts), np.uint8)
    counts, lines = count_texts(packed, starts.astype(np.int64), ends.astype(np.int64))
    return counts | {"n_units": np.array([lines.sum()])}, lines


def model_of(*texts: bytes) -> ChanceModel:
    return ChanceModel.collect([(1, statistics_of(*texts)[0])])


def trigrams(statistics) -> dict[bytes, int]:
    return {
        int(key).to_bytes(3, "big"): int(n) for key, n in zip(statistics["trigrams"], statistics["trigram_counts"], strict=True)
    }


def test_trigrams_are_folded_and_know_where_a_text_begins_and_ends():
    statistics, lines = statistics_of(b"aBa", b"", b"b\n")
    assert trigrams(statistics) == {b"\n\na": 1, b"\nab": 1, b"aba": 1, b"ba\n": 1, b"\n\nb": 1, b"\nb\n": 1, b"b\n\n": 1}
    assert statistics["n_bytes"].tolist() == [7]
    assert lines.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "n_lines"), [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"\n\n", 2), (b"a\r\nb\x0cc\n", 2)]
)
def test_a_last_line_needs_no_line_feed(text, n_lines):
    assert statistics_of(b"x", text, b"y")[1].tolist() == [1, n_lines, 1]


def test_statistics_add_up_over_texts_and_subtract_exactly():
    rng = np.random.default_rng(3)
    texts = [bytes(rng.choice(np.frombuffer(b"abAB _\n\xc3\xa9", np.uint8), size)) for size in rng.integers(0, 60, 40)]
    whole, some, rest = (statistics_of(*part)[0] for part in (texts, texts[:15], texts[15:]))
    for parts, expected in (([(1, some), (1, rest)], whole), ([(1, whole), (-1, some)], rest)):
        total = add_statistics(parts)
        for name in total:
            np.testing.assert_array_equal(total[name], expected[name])


def test_probabilities_are_witten_bell_and_sum_to_one():
    # "abab" and its line feed: 5 bytes, of the kinds a, b, "\n". Pairs: \na ab ba ab b\n. Trigrams: \n\na \nab aba bab ab\n.
    model = model_of(b"abab")
    unigram = {b"a": (2 + 3 / 256) / 8, b"b": (2 + 3 / 256) / 8, b"\n": (1 + 3 / 256) / 8, b"z": 3 / 256 / 8}
    after_b = {b"a": (1 + 2 * unigram[b"a"]) / 4, b"z": 2 * unigram[b"z"] / 4}
    after_ab = {b"a": (1 + 2 * after_b[b"a"]) / 4, b"z": 2 * after_b[b"z"] / 4}
    for context, expected in ((b"", unigram), (b"b", after_b), (b"zb", after_b), (b"ab", after_ab)):
        chance = model.next_byte(context)
        assert chance.sum() == pytest.approx(1)
        for byte, p in expected.items():
            assert chance[ord(byte)] == pytest.approx(p), (context, byte)
    expected = math.log(5 * unigram[b"a"] * model.next_byte(b"a")[ord("b")] * after_ab[b"z"])
    assert log_p_literal(model, b"ABZ") == pytest.approx(expected)


@cache
def library() -> tuple[ChanceModel, list[bytes]]:
    """A model of a few megabytes of Python, and its lines, folded."""
    texts, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        texts.append(path.read_bytes())
        size += len(texts[-1])
        if size > 3_000_000:
            break
    return model_of(*texts), b"\n".join(texts).lower().split(b"\n")


@pytest.mark.parametrize(
    "word",
    ["self", "def", "return", "import", "class", "None", "if", "for", "in", "raise", "isinstance", "append", "ValueError", "the"],
)
def test_a_common_word_is_as_surprising_as_it_is_rare(word):
    model, lines = library()
    observed = sum(word.lower().encode() in line for line in lines) / len(lines)
    assert -log_p_literal(model, word.encode()) == pytest.approx(-math.log(observed), abs=1.5)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bself\b",
        r".*self.*",
        r"^import",
        r"^\s*$",
        r"[0-9]{4}",
        r"\w+",
        r"TODO|FIXME|XXX",
        r"(?i)hello",
        r"return.*None",
        r"[^a]",
    ],
)
def test_a_common_pattern_is_about_as_surprising_as_it_is_rare(pattern):
    model, lines = library()
    compiled = re.compile(pattern.lower().encode())
    observed = sum(compiled.search(line) is not None for line in lines) / len(lines)
    assert -log_p_pattern(model, pattern) == pytest.approx(-math.log(observed), abs=2.5)


@pytest.mark.parametrize(
    "unique", ["zq8v kx0w jj4p_frobnicate!!vvw", "Donaudampfschifffahrtskapitänin", "4711-0815-2718-3141-5926-535897"]
)
def test_a_unique_string_is_a_certainty_even_where_it_stands(unique):
    model, lines = library()
    texts = model_of(b"\n".join(lines[:60_000]) + unique.encode())
    for known in (model, texts):
        assert -log_p_literal(known, unique.encode()) > math.log(known.n_units) + 20


def test_each_further_byte_of_a_unique_string_surprises_more():
    model, _ = library()
    unique = b"xk quuxly wibblefrotz 90125 %%"
    surprises = [-log_p_literal(model, unique[:n]) for n in range(1, len(unique) + 1)]
    assert all(longer > shorter for shorter, longer in zip(surprises, surprises[1:], strict=False))


def test_a_whole_word_is_never_more_likely_than_its_letters():
    model, _ = library()
    for word in (b"self", b"el", b"frobnicate", b"a.b"):
        assert log_p_literal(model, word, word=True) <= log_p_literal(model, word)


def test_alternatives_add_up_and_parts_multiply():
    model, _ = library()
    one, other = (log_p_pattern(model, text) for text in ("fixme", "quux"))
    assert log_p_pattern(model, "fixme|quux") == pytest.approx(np.logaddexp(one, other))
    assert log_p_pattern(model, "fixme") == pytest.approx(log_p_literal(model, b"fixme"))
    assert log_p_pattern(model, "fix.*me") > log_p_pattern(model, "fix.me")
    assert log_p_pattern(model, "quux(zzk)+") == pytest.approx(log_p_pattern(model, "quuxzzk"))
    assert log_p_pattern(model, "(?:quux)?") == 0


@pytest.mark.parametrize("pattern", [r"\pL+quux", r"[[:alpha:]]quux", r"\Qa.b\E", "(" * 2000 + ")" * 2000, r"(?P<x", r"a||b"])
def test_what_python_may_read_otherwise_than_re2_claims_no_surprise(pattern):
    assert log_p_pattern(library()[0], pattern) == 0
    assert required_literals(pattern, False) == []


def test_nothing_is_surprising_in_an_empty_corpus():
    for model in (ChanceModel.collect([]), model_of(b"")):
        assert log_p_literal(model, b"anything") == log_p_pattern(model, "any.*") == 0


@pytest.mark.parametrize(
    ("pattern", "ignore_case", "required"),
    [
        (r"def \w+\(", False, [b"def ", b"("]),
        (r"^Foo(bar)+baz$", False, [b"Foo", b"bar", b"baz"]),
        (r"a|b", False, []),
        (r"x(a|b)y*z{2}", False, [b"x", b"z"]),
        (r"(?:ab)*", False, []),
        (r"Clé", False, ["Clé".encode()]),
        (r"LONGÉR", True, [b"long", b"r"]),
        (r"tasks", True, [b"ta"]),  # RE2 folds K and S beyond ASCII
        (r"[a]b", False, [b"ab"]),
    ],
)
def test_required_strings_stand_in_every_match(pattern, ignore_case, required):
    assert sorted(required_literals(pattern, ignore_case)) == sorted(required)
