"""The grammar of queries: text and expected tree on one line, errors with their place, and which common texts are no queries."""

import re

import pytest

from shards.bm25_grammar import (
    MAX_DEPTH,
    MAX_NODES,
    All,
    Any,
    Clauses,
    Field,
    Near,
    Not,
    Path,
    Phrase,
    Prefix,
    Words,
    describe,
    parse,
    split_paths,
    understood,
    wanted,
)
from shards.errors import BadQuery

A, B, C, D = map(Words, "abcd")


def must(*nodes, rank=()):
    return Clauses(tuple(nodes), tuple(rank))


TREES = [
    ("a b", Clauses((), (A, B))),
    ("a AND b", must(A, B)),
    ("a OR b", must(Any((A, B)))),
    ("NOT a b", must(Not(A), rank=[B])),
    ("a NOT b", must(A, Not(B))),
    ("a AND NOT b", must(A, Not(B))),
    ("a AND b OR c AND d", must(Any((All((A, B)), All((C, D)))))),
    ("a AND (b OR c)", must(A, Any((B, C)))),
    ("a OR NOT (b AND c)", must(Any((A, Not(All((B, C))))))),
    ("a AND (b c)", must(A, Clauses((), (B, C)))),
    ("((a)) AND ((b))", must(A, B)),
    ("a OR b c", must(Any((A, B)), rank=[C])),
    ("+a b -c", must(A, Not(C), rank=[B])),
    ('+"a b" -"c d"', must(Phrase("a b"), Not(Phrase("c d")))),
    ("-(a b) c", must(Not(Clauses((), (A, B))), rank=[C])),
    ("a AND -b", must(A, Not(B))),
    ("well-known e-mail", Clauses((), (Words("well-known"), Words("e-mail")))),
    ("a path:", Clauses((), (A, Words("path:")))),
    ("a - b", Clauses((), (A, B))),
    ("C++ a", Clauses((), (Words("C++"), A))),
    ("retriev* a", Clauses((), (Prefix("retriev"), A))),
    ("+retriev*", must(Prefix("retriev"))),
    ("中* a", Clauses((), (Prefix("中"), A))),
    ("a NEAR/3 b", must(Near((A, B), (3,)))),
    ('aa* NEAR/3 "b c" NEAR/10 d', must(Near((Prefix("aa"), Phrase("b c"), D), (3, 10)))),
    ("NOT a NEAR/2 b c", must(Not(Near((A, B), (2,))), rank=[C])),
    ("“a b” c", must(Phrase("a b"), rank=[C])),
    ("„a b“ c", must(Phrase("a b"), rank=[C])),
    ("title:a b", must(Field("title", A), rank=[B])),
    ('title:"a b"', must(Field("title", Phrase("a b")))),
    ("title:(a OR b) c", must(Field("title", Any((A, B))), rank=[C])),
    ("-title:a b", must(Not(Field("title", A)), rank=[B])),
    ("body:aa* b", must(Field("body", Prefix("aa")), rank=[B])),
    ("a path:src/**/*.py", must(Path("src/**/*.py"), rank=[A])),
    ('a -path:"old files"', must(Not(Path("old files")), rank=[A])),
    ("a (path:x OR path:y)", must(Any((Path("x"), Path("y"))), rank=[A])),
    ("and or not near", Clauses((), (Words("and"), Words("or"), Words("not"), Words("near")))),
    ("ANDROID a", Clauses((), (Words("ANDROID"), A))),
]


@pytest.mark.parametrize(("text", "tree"), TREES)
def test_a_query_says(text, tree):
    assert parse(text) == tree


ERRORS = [
    ("a AND", 2, "AND has no word on one side"),
    ("OR a", 0, "OR has no word on one side"),
    ("a AND OR b", 2, "AND has no word on one side"),
    ("a NOT", 2, "NOT has no word"),
    ("(a AND b", 0, "never closed|not closed"),
    ("a) b", 1, "never opened"),
    ('a "b c', 2, "quotation is not closed"),
    ("a NEAR/0 b", 2, "distance of 0 words"),
    ("a NEAR/500 b", 2, "distance of 500 words"),
    ("a NEAR/3 (b OR c)", 2, "NEAR stands between"),
    ("NEAR/3 b", 0, "NEAR stands between"),
    ("re*ev a", 0, "end of a word only"),
    ("a *b", 2, "end of a word only"),
    ("r* a", 0, "too many words"),
    ("title:(a AND body:b)", 0, "a field within a field"),
    ("a path:src/[ab", 7, "unclosed"),
    ("a OR path:src", 5, "path: narrows the whole query"),
    ("(" * (MAX_DEPTH + 1) + "a", MAX_DEPTH, "nested more than"),
    (" ".join(["a"] * (MAX_NODES + 1)), None, f"more than {MAX_NODES} parts"),
    ("-a", None, "seeks nothing"),
    ("NOT a AND NOT b", None, "seeks nothing"),
    ("path:src", None, "seeks nothing"),
    ("  ", None, "seeks nothing"),
    ("a" * 5000, None, "5000 characters"),
]


@pytest.mark.parametrize(("text", "at", "what"), ERRORS)
def test_what_is_not_understood_says_where_and_why(text, at, what):
    with pytest.raises(BadQuery, match=what) as error:
        parse(text)
    if at is not None:
        assert f"at character {at}," in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "cats AND dogs",
        "cats NOT dogs",
        "retriev* models",
        "fast +ranking",
        "ranking -neural",
        "index NEAR/3 merge",
        "title:ranking",
        "ranking path:docs/**",
        'dog "big red"',
        "“thirty days” notice",
        '"THIRTY DAYS"',
        "中文 AND 分词",
        "TITLE NEAR/2 CAPITALS",
        '"what is this?"',
    ],
)
def test_a_common_text_that_clearly_is_a_query_is_read_as_one(text):
    query, why = understood(text)
    assert query == parse(text) and why == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("how do cats and dogs get along", ""),
        ("a well-known problem of C++ - solved", ""),
        ('Systems, including "what you see" systems. Examples: scribe, bravo.', "sentence"),
        ('What does the term "type compatibility" mean?', "sentence"),
        ('Who wrote "On the road?"', "sentence"),
        ('Who discovered that electric and magnetic fields could be "self-aware"', "sentence"),
        ("Do NOT use this; it is broken.", "sentence"),
        ("他说“你好”吗？", "sentence"),
        ("one " * 17 + "AND two", "sentence"),
        ("SHALL NOT EXCEED", "capitals"),
        ("READ AND WRITE", "capitals"),
        ("SELECT * FROM t WHERE a AND b", "end of a word only"),
        ("say (a AND b", "not closed"),
        ('an unclosed "quotation', ""),
        ("-O2", "seeks nothing"),
        ("x = -1", ""),
        ("http://host/path:80/x", ""),
        ("a OR path:src", "narrows the whole query"),
        ("-v", "seeks nothing"),
    ],
)
def test_a_common_text_that_may_be_none_is_plain_words_and_says_why_where_it_looked_like_one(text, why):
    query, reason = understood(text)
    assert query is None
    assert bool(why) == bool(reason) and re.search(why, reason)


def test_a_query_is_described_for_people_and_without_operators():
    query = parse('+"big  red" (cat OR dog*) -title:bird wolf NEAR/3 fox path:src/** owl')
    assert describe(query) == '"big red" and (cat or dog*) and not title: bird and wolf within 3 of fox and path: src/**'
    assert wanted(query) == "big  red cat dog wolf fox owl"
    rest, paths = split_paths(query)
    assert paths == (Path("src/**"),) and len(rest.must) == len(query.must) - 1
