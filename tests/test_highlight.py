"""Marks in excerpts, written with brackets: `[word]` is what must be marked."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve import highlight
from serve.highlight import MAX_MARKS, Highlighter, Pattern, fold, query_words
from shards.errors import BadQuery


def shown(text: str, words=(), patterns=(), kind="") -> str:
    for start, end in reversed(Highlighter(words, patterns).marks(text, kind)):
        text = text[:start] + "[" + text[start:end] + "]" + text[end:]
    return text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("header", "the [Header] of a message"),
        ("HEADER", "the [Header] of a message"),
        ("head", "the [Header] of a message"),  # two letters more
        ("eclair", "an [éclair], two [e\u0301clairs]"),
        ("Éclair", "an [eclair]"),
        ("strasse", "die [Straße]"),
        ("parsing", "[parse], [parsed], [parsing]"),  # equal stems
        ("auto", "[autos], but not automatically"),
        ("is", "[is] it an island"),  # short words only as they are
        ("parse header", "def [parseHeader](x): return [parse]_[header]"),
        ("server", "class HTTP[Server]Error"),
        ("http", "class [HTTP]ServerError"),
        ("utf", "[utf]8 and [UTF]-8"),
        ("検索", "全文[検索]エンジン"),
        ("don't panic", "[Don]'t [panic]"),
        ("зима", "[Зима] пришла"),
        ("absent", "nothing here"),
        ("", "nothing here"),
        ("!?", "nothing here!?"),
    ],
)
def test_words_are_marked_whatever_their_case_accent_or_inflection(query, expected):
    assert shown(expected.replace("[", "").replace("]", ""), query_words(query)) == expected


def test_the_stemmer_follows_the_documents_language():
    assert shown("zwei Häuser", ["haus"], kind="prose:german") == "zwei [Häuser]"
    assert shown("deux chevaux", ["cheval"], kind="prose:french") == "deux [chevaux]"
    assert shown("an unknown language", ["language"], kind="prose:klingon") == "an unknown [language]"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (Pattern("f(x"), "y = [f(x])"),
        (Pattern("F(X", ignore_case=True), "y = [f(x])"),
        (Pattern("F(X"), "y = f(x)"),
        (Pattern(r"def \w+", regex=True), "[def a]\n  [def b]"),
        (Pattern(r"^def", regex=True), "[def] a\n[def] b  def"),
        (Pattern(r"x*", regex=True), "a[xx]b"),  # empty matches mark nothing
        (Pattern("é"), "[é] at [é]"),
        (Pattern("b"), "aé😀[b]"),  # characters, not bytes
    ],
)
def test_patterns_are_marked_where_re2_finds_them(pattern, expected):
    assert shown(expected.replace("[", "").replace("]", ""), patterns=[pattern]) == expected


def test_overlapping_and_touching_marks_are_joined():
    assert shown("parseHeader", ["parse", "header"]) == "[parseHeader]"
    assert shown("a header b", ["header"], [Pattern("er b")]) == "a [header b]"


def test_a_broken_regex_names_itself_and_the_reason():
    with pytest.raises(BadQuery, match=r"\(oops.*missing \)"):
        Highlighter(patterns=[Pattern("(oops", regex=True)])
    with pytest.raises(BadQuery, match="no backreferences"):
        Highlighter(patterns=[Pattern(r"(a)\1", regex=True)])


def test_function_words_are_marked_only_when_there_are_no_others():
    assert query_words("How do I parse the Header?") == ("parse", "header")
    assert query_words("to be or not to be") == ("to", "be", "or", "not")


def test_marks_of_one_excerpt_are_limited():
    assert len(Highlighter(["a"]).marks("a b " * 10_000)) == MAX_MARKS


def test_a_pattern_that_ruins_backtracking_engines_is_quick():
    began = time.process_time()
    assert Highlighter(patterns=[Pattern("(a+)+b", regex=True)]).marks("a" * 100_000) == []
    assert time.process_time() - began < 5  # a backtracking engine would need 2^100000 steps


@given(st.text(max_size=80), st.lists(st.text(max_size=6), max_size=4))
def test_marks_are_sorted_disjoint_and_inside_the_text(text, words):
    marks = Highlighter(words, [Pattern(w) for w in words if w.isprintable()]).marks(text)
    edges = [edge for mark in marks for edge in mark]
    assert edges == sorted(set(edges)) and all(0 <= e <= len(text) for e in edges)


def test_every_whole_word_of_the_query_is_marked():
    """Against the obvious version: split at spaces, compare."""
    seed = 7
    rng = random.Random(seed)
    letters = ["ab", "cd", "ef", "gh"]
    for _ in range(100):
        tokens = rng.choices(letters, k=8)
        wanted = set(rng.sample(letters, 2))
        text = " ".join(tokens)
        expected = [(3 * i, 3 * i + 2) for i, token in enumerate(tokens) if token in wanted]
        assert Highlighter(wanted).marks(text) == expected, (seed, text, wanted)


def test_folding_twice_changes_nothing():
    for word in ("Éclair", "Straße", "ǅ", "ﬁn", "İstanbul", "ΣΊΣΥΦΟΣ"):
        assert fold(fold(word)) == fold(word)


def test_marks_do_not_depend_on_which_texts_were_marked_before(monkeypatch):
    """Tokens are remembered across queries, also when another query brings them between two texts of this one, or when the memory
    is full and all are forgotten."""
    monkeypatch.setattr(highlight._Tokens, "MOST", 8)
    highlight._tokens_of.cache_clear()
    first, second = Highlighter(["parser"]), Highlighter(["tides"])
    assert first.marks("one parser") == [(4, 10)]
    assert second.marks("Parsers and tide tables") == [(12, 16)]
    assert first.marks("Parsers and tide tables") == [(0, 7)]
    assert second.marks("a b c d e f g tide") == [(14, 18)]
    assert first.marks("parsing parsers h i j k l m") == [(8, 15)]
    highlight._tokens_of.cache_clear()
