"""Sentences and chunks: the compiled cut against the rules of NLQL as they are written, and the texts that spans stand for."""

import random
import re
import unicodedata

import numpy as np
import pytest

from shards.documents import Documents
from shards.identity import content_hash
from shards.nlql.errors import ExecutionError, RegistryError
from shards.nlql.units import chunks, cut, normalise, sentences, text_of, texts
from shards.plugins import Plugins


def pack(*found: str) -> Documents:
    return Documents.pack((content_hash(text.encode()), text.encode(), "prose:english") for text in found)


def units_of(text: str, unit: str, plugins: Plugins | None = None) -> list[str]:
    documents = pack(text)
    units = cut(documents, unit, None, plugins or Plugins())
    return texts(documents, unit, units.rows, units.starts, units.ends)


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("", []),
        (" \n\t\u3000 ", []),
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Version 3.50 is out.", ["Version 3.50 is out."]),
        ("Dr. Who", ["Dr.", "Who"]),
        ('He said "no." Then left.', ['He said "no." Then left.']),
        ("Wait... what?! Yes.", ["Wait...", "what?!", "Yes."]),
        ("Title\nText  here\t now\r\n\r\nEnd", ["Title", "Text here now", "End"]),
        ("你好。再见！真的？…好", ["你好。", "再见！", "真的？", "…", "好"]),
        ("。。", ["。", "。"]),
        ("a.\u00a0b.\u2003c.\x1fd", ["a.", "b.", "c.", "d"]),
        ("wide\u00a0\u3000 blank\u2003kept", ["wide blank\u2003kept"]),
        ("cafe\u0301 noir. The\u0301", ["caf\u00e9 noir.", "Th\u00e9"]),
        ("a\x0bb\rc", ["a\x0bb\rc"]),
        (".", ["."]),
        ("end.\n", ["end."]),
    ],
)
def test_a_text_has_these_sentences(text, wanted):
    assert units_of(text, "sentence") == wanted == sentences(normalise(text))


def test_a_chunk_holds_as_many_whole_sentences_as_a_thousand_characters():
    first, second, third = "a" * 499 + ".", "b" * 498 + ".", "c."
    assert units_of(f"{first}\n{second}  {third}", "chunk") == [f"{first} {second}", third]
    assert units_of(f"{'x' * 1500}. y.", "chunk") == ["x" * 1500 + ".", "y."]
    assert units_of("。".join("甲乙"), "chunk") == ["甲。 乙"]


def test_a_chunk_is_measured_in_the_characters_of_its_normal_form():
    letter = "e\u0301" * 499 + "."  # 500 characters once they are composed
    assert [len(each) for each in units_of(f"{letter} {letter[:-3]}. z.", "chunk")] == [1000, 2]


PIECES = [
    "word",
    "Zürich",
    "e\u0301",
    "가\u11a8",
    "3.5",
    ".",
    "!",
    "?",
    "。",
    "…",
    "？",
    " ",
    "  ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\u00a0",
    "\u3000",
]
PIECES += ["\u2003", "\u2028", "\x85", "\x1e", "\u0301", "x" * 300, "漢字", "。」"]


@pytest.mark.parametrize("seed", range(4))
def test_the_compiled_cut_is_that_of_the_rules(seed):
    rng = random.Random(seed)
    found = ["".join(rng.choices(PIECES, k=rng.randrange(120))) for _ in range(150)]
    documents = pack(*found)
    for unit, rule in (("sentence", sentences), ("chunk", chunks)):
        units = cut(documents, unit)
        pieces = texts(documents, unit, units.rows, units.starts, units.ends)
        for row in range(len(documents)):
            text = bytes(documents.content(row)).decode()
            own = [piece for piece, of in zip(pieces, units.rows.tolist(), strict=True) if of == row]
            assert own == rule(normalise(text)), repr(text)


def test_units_of_a_scope_are_those_of_its_documents_alone():
    documents = pack("One. Two.", "Three.", "Four. Five. Six.")
    scope = np.array([True, False, True])
    every, some = cut(documents, "sentence"), cut(documents, "sentence", scope)
    kept = scope[every.rows]
    for left, right in zip(some, every, strict=True):
        np.testing.assert_array_equal(left, right[kept])


def paragraphs(text: str) -> list[str]:
    return text.split("\n")


def halves(text: str) -> list[tuple[int, int]]:
    return [(0, len(text) // 2), (len(text) // 2, len(text))]


def test_a_registered_splitter_cuts_the_normalised_text_and_its_pieces_lie_in_the_original():
    plugins = Plugins()
    plugins.splitters.add("paragraph", paragraphs)
    plugins.splitters.add("half", halves)
    text = "  Cafe\u0301   au lait\u00a0 \n\n\n \tNext \u3000line. And more\n"
    assert normalise(text) == "Caf\u00e9 au lait\nNext line. And more"
    assert units_of(text, "paragraph", plugins) == ["Caf\u00e9 au lait", "Next line. And more"]
    documents = pack(text)
    units = cut(documents, "paragraph", None, plugins)
    raw = text.encode()
    assert [raw[a:b].decode() for a, b in zip(units.starts, units.ends, strict=True)] == [
        "Cafe\u0301   au lait",
        "Next \u3000line. And more",
    ]
    assert "".join(units_of(text, "half", plugins)).replace(" ", "") == normalise(text).replace(" ", "")
    plugins.splitters.add("sentence", paragraphs)
    assert units_of("One. Two.\nThree", "sentence", plugins) == ["One. Two.", "Three"]


@pytest.mark.parametrize("seed", range(3))
def test_characters_of_a_normalised_text_are_found_in_the_original(seed):
    rng = random.Random(seed)
    plugins = Plugins()
    plugins.splitters.add("word", lambda text: [m.span() for m in re.finditer(r"\S+", text)])
    for _ in range(60):
        text = "".join(rng.choices(PIECES, k=rng.randrange(1, 60)))
        assert [each for each in units_of(text, "word", plugins)] == normalise(text).split(), repr(text)


@pytest.mark.parametrize("pieces", [["not there"], [(0, 999)], [(3, 4), (0, 1)], [7]])
def test_a_splitter_that_returns_what_is_no_piece_is_named(pieces):
    plugins = Plugins()
    plugins.splitters.add("odd", lambda text: pieces)
    with pytest.raises(ExecutionError, match="Splitter 'odd' returned"):
        units_of("some text", "odd", plugins)


def test_a_splitter_that_fails_or_is_not_there_is_named():
    plugins = Plugins()
    plugins.splitters.add("broken", lambda text: 1 / 0)
    with pytest.raises(ExecutionError, match="'broken' failed: ZeroDivisionError"):
        units_of("some text", "broken", plugins)
    with pytest.raises(RegistryError, match="paragraph"):
        units_of("some text", "paragraph", plugins)


def test_texts_of_spans_are_in_normal_form():
    assert text_of("e\u0301 \t x".encode(), "sentence", 0, 7) == unicodedata.normalize("NFC", "e\u0301 x")
