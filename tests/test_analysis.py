"""Which tokens become which terms."""

from itertools import islice

import numpy as np
import pytest

from shards.analysis import analyser_of, atoms, identifier_parts

IDENTIFIERS = [
    ("parse", ["parse"]),
    ("getUserName", ["get", "user", "name"]),
    ("GetUserName", ["get", "user", "name"]),
    ("get_user_name", ["get", "user", "name"]),
    ("__init__", ["init"]),
    ("MAX_RETRIES", ["max", "retries"]),
    ("HTTPServer", ["http", "server"]),
    ("parseHTTPResponse2", ["parse", "http", "response", "2"]),
    ("utf8", ["utf", "8"]),
    ("sha256sum", ["sha", "256", "sum"]),
    ("x86_64", ["x", "86", "64"]),
    ("A", ["a"]),
    ("aB", ["a", "b"]),
    ("ABc", ["a", "bc"]),
    ("___", []),
    ("größeÄndern", ["grösse", "ändern"]),
    ("ÜBERGang", ["über", "gang"]),
]


@pytest.mark.parametrize(("identifier", "parts"), IDENTIFIERS)
def test_identifiers_fall_into_parts(identifier, parts):
    assert identifier_parts(identifier) == parts


def test_identifiers_of_any_script_are_split_by_the_same_rules():
    """The ASCII fast path against the general one: a Cyrillic letter appended takes the general path."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        word = "".join(rng.choice(list("abXYZ0_9"), int(rng.integers(1, 9))))
        general = identifier_parts(word + "_ж")
        assert general == [*identifier_parts(word), "ж"], word


WORDS = [
    ("prose:english", "Running", [("run",)]),
    ("prose:english", "naïve", [("naiv",)]),
    ("prose:english", "ﬁles", [("file",)]),
    ("prose:english", "_", []),
    ("prose:english", "IL6", [("il6", "il", "6")]),
    ("prose:english", "“quoted”—dash", [("quot",), ("dash",)]),
    ("prose:german", "Häuser", [("haus",)]),
    ("prose:german", "getHäuser", [("gethaus", "get", "haus")]),
    ("prose:german", "Straße", [("strass",)]),
    ("prose:french", "continuellement", [("continuel",)]),
    ("prose:klingon", "running", [("running",)]),
    ("prose:cjk", "使用中文", [("使用",), ("用中",), ("中文",)]),
    ("prose:cjk", "字", [("字",)]),
    ("prose:cjk", "用Python编程", [("用",), ("python",), ("编程",)]),
    ("prose:cjk", "한국어", [("한국",), ("국어",)]),
    ("prose:english", "ที่นี่", [("ที่นี่",)]),  # Thai: two characters as readers see them, of three code points each
    ("prose:english", "ภาษาไทย", [("ภา",), ("าษ",), ("ษา",), ("าไ",), ("ไท",), ("ทย",)]),
    ("prose:hindi", "किताबों", [("किताब",)]),  # vowel signs are part of a word
    ("prose:hindi", "।किताब।", [("किताब",)]),
    ("prose:arabic", "كِتَابٌ", [("كتاب",)]),  # vowel points are not
    ("prose:tamil", "வீடுகள்", [("வீடு",)]),
    ("code", "parse", [("pars",)]),
    ("code", "getUserNames", [("getusernam", "get", "user", "name")]),
    ("code", "__init__", [("__init__", "init")]),
    ("code", "Parse", [("pars",)]),
    ("data", "user_id", [("user_id", "user", "id")]),
    ("code", "字", [("字",)]),
    ("code", "x" * 129, []),
    ("code", "0a1b2c3d4e5f6a7b8c9d", [("0a1b2c3d4e5f6a7b8c9d",)]),
]


@pytest.mark.parametrize(("kind", "token", "words"), WORDS)
def test_tokens_become_terms_by_the_kind_of_document(kind, token, words):
    assert analyser_of(kind).analyse([token]) == [words]


def test_analysis_is_a_function_of_the_token_alone():
    tokens = [token for _, token, _ in WORDS] + [token for token, _ in IDENTIFIERS]
    for kind in ("code", "prose:english", "prose:german"):
        analyser = analyser_of(kind)
        assert analyser.analyse(tokens) == [analyser.analyse([token])[0] for token in tokens]
        assert [list(words) for words in analyser.recall(tokens)] == analyser.analyse(tokens)


def test_bytes_give_the_terms_that_strings_give():
    """The compiled way of vocabularies against the other, on random tokens of all kinds."""
    rng = np.random.default_rng(1)
    tokens = [token for _, token, _ in WORDS] + [token for token, _ in IDENTIFIERS]
    tokens += ["".join(rng.choice(list("abcXYZ019__"), int(rng.integers(1, 40)))) for _ in range(3000)]
    tokens += ["".join(rng.choice(list("abXZ09_éÄж字—"), int(rng.integers(1, 9)))) for _ in range(500)]
    encoded = [token.encode() for token in tokens]
    sizes = np.array([len(token) for token in encoded])
    starts = np.cumsum(sizes) - sizes
    for kind in ("code", "prose:german", "prose:klingon"):
        flat = analyser_of(kind).analyse_bytes(np.frombuffer(b"".join(encoded), np.uint8), starts, sizes)
        terms = iter([flat.terms[number] for number in flat.numbers])
        for token, n_terms, n_atoms, words in zip(tokens, flat.n_terms, flat.n_atoms, analyser_of(kind).analyse(tokens), strict=True):
            assert list(islice(terms, n_terms)) == [term for word in words for term in word], token
            assert n_atoms == sum(len(atoms(word)) for word in words), token


def test_the_places_of_an_identifier_are_its_parts():
    assert atoms(("getusernam", "get", "user", "name")) == ("get", "user", "name")
    assert atoms(("pars",)) == ("pars",)


def test_without_stemming_words_are_only_folded():
    assert analyser_of("prose:english", stem=False).analyse(["Running"]) == [[("running",)]]


def test_a_fixed_language_holds_for_prose_and_leaves_code_english():
    assert analyser_of("prose:english", language="german").language == "german"
    assert analyser_of("code", language="german").language == "english"
