"""What is taken from documents to find them by: titles, heading trails, context lines, central sentences."""

import numpy as np
import pytest

from shards.view_sections import Section, sections_of, sentences_of, statement_of, title_of
from shards.view_texts import centrality, context_line, extract, summary

MARKDOWN = """# Guide to rivers

Rivers always run downhill. This guide tells why.

## Springs ##

### Cold springs

Cold springs rise from deep rock.

```sh
# not a heading
```

## Mouths

A mouth is where a river ends.
"""

RST = """========
Handbook
========

What every beginner should know.

Setting up
----------

First of all, unpack everything.

Tools
~~~~~

A hammer is a tool for nails.
"""

PYTHON = '''#!/usr/bin/env python
"""Reads the weather. Slowly.

More of it.
"""

import os


class Station:
    """One place where it is measured."""

    def read(self, when: float) -> float:
        """The temperature at a time.

        Raises KeyError.
        """
        return self.table[when]

    async def close(self): ...


def main() -> None:
    pass
'''


def whole(text: str, kind: str) -> Section:
    data = text.encode()
    (section,) = sections_of(data, kind, [0], [len(data)])
    return section


def at(text: str, kind: str, place: str) -> Section:
    """The section that begins at a place."""
    data = text.encode()
    start = data.index(place.encode())
    (section,) = sections_of(data, kind, [start], [len(data)])
    return section


@pytest.mark.parametrize(
    ("text", "kind", "title"),
    [
        (MARKDOWN, "prose:english", "Guide to rivers"),
        (RST, "prose:english", "Handbook"),
        ("---\nauthor: me\ntitle: 'On rivers'\n---\n# Else\n", "prose:english", "On rivers"),
        ("A title that stands alone\n\nAnd then some text.", "prose:english", "A title that stands alone"),
        ("Two lines of\nrunning text without any title.", "prose:english", ""),
        ("Alone, but nothing follows", "prose:english", ""),
        ("Some words come first\nand go on.\n\n# Then the title\n\nText.", "prose:english", "Then the title"),
        ("= An AsciiDoc page\n\ntext", "prose:english", "An AsciiDoc page"),
        (PYTHON, "code", "Reads the weather"),
        ("// Copies files. Fast.\n// And safely.\nint main() {}\n", "code", "Copies files"),
        ("/*\n * A queue for one writer\n * and one reader.\n */\nstruct queue;\n", "code", "A queue for one writer and one reader"),
        ("# Copyright 2001 by many, all rights reserved.\n\nimport os\n", "code", ""),
        ('# ----\n# Licence: none.\n# ----\n\n"""Says when."""\n', "code", "Says when"),
        ("# ------\n# queue.c\n# ------\nint main() {}\n", "code", "queue.c"),
        ("import os\n", "code", ""),
        ("name,age\nAda,36\n", "data", "name,age"),
        ("", "data", ""),
    ],
)
def test_the_title_is_what_the_text_states(text, kind, title):
    assert title_of(text, kind) == title


@pytest.mark.parametrize(
    ("text", "kind", "place", "trail"),
    [
        (MARKDOWN, "prose:english", "Rivers always", ()),
        (MARKDOWN, "prose:english", "Cold springs rise", ("Springs", "Cold springs")),
        (MARKDOWN, "prose:english", "### Cold", ("Springs", "Cold springs")),
        (MARKDOWN, "prose:english", "# not a heading", ("Springs", "Cold springs")),
        (MARKDOWN, "prose:english", "A mouth", ("Mouths",)),
        (RST, "prose:english", "First of all", ("Setting up",)),
        (RST, "prose:english", "A hammer", ("Setting up", "Tools")),
        (PYTHON, "code", "        return", ("class Station", "def read(self, when: float) -> float")),
        (PYTHON, "code", "    async def", ("class Station", "async def close(self): ...")),
        (PYTHON, "code", "    pass", ("def main() -> None",)),
        ("pub struct Heap<T> {\n}\nimpl<T> Heap<T> {\n    pub fn push(&mut self) {\n        x\n", "code", "        x",
         ("impl<T> Heap<T>", "pub fn push(&mut self)")),
        ("# Grüße\n\n## Straße\n\nWörter zu zählen.", "prose:german", "Wörter", ("Straße",)),
    ],
)  # fmt: skip
def test_a_section_stands_under_the_headings_above_it(text, kind, place, trail):
    assert at(text, kind, place).trail == trail


@pytest.mark.parametrize(
    ("section", "line"),
    [
        (whole(MARKDOWN, "prose:english"), "Guide to rivers: Rivers always run downhill."),
        (at(MARKDOWN, "prose:english", "### Cold"), "Guide to rivers › Springs › Cold springs: Cold springs rise from deep rock."),
        (at(RST, "prose:english", "A hammer"), "Handbook › Setting up › Tools: A hammer is a tool for nails."),
        (at(PYTHON, "code", "    def read"), "Reads the weather › class Station › def read(self, when: float) -> float: "
         "The temperature at a time."),
        (at(PYTHON, "code", "class Station"), "Reads the weather › class Station: One place where it is measured."),
        (whole("name,age\nAda,36\n", "data"), "name,age"),
        (whole("just three words", "prose:english"), ""),
    ],
)  # fmt: skip
def test_a_context_line_says_where_a_section_stands_and_what_it_says_first(section, line):
    assert context_line(section) == line


def test_long_titles_and_sentences_are_cut_at_a_word():
    text = "word " * 60
    line = context_line(whole(f"# {text}\n\nShort one here now.", "prose:english"))
    assert line.startswith("word word") and line.endswith("word …: Short one here now.")
    assert len(line) < 200


def test_sentences_are_whole_and_code_gives_what_is_written_between_it():
    assert sentences_of("One two three four. Five\nsix seven eight! No.\n\n- a list of things\n") == [
        "One two three four.", "Five six seven eight!", "a list of things",
    ]  # fmt: skip
    assert sentences_of("川は海に流れる。山は高い。") == ["川は海に流れる。"]
    assert sentences_of("It is said once. Then it rains today. Then it rains today.") == ["It is said once.", "Then it rains today."]


def test_of_code_counts_what_is_written_between_it_even_where_a_section_begins_in_a_docstring():
    code = 'def f():\n    """Gives back what it got.\n\n    >>> f(1) is not shown\n    Never fails on numbers.\n    """\n'
    code += "    # nothing is\n    # done with it\n    return x\n"
    assert sentences_of(whole(code, "code").prose) == ["Gives back what it got.", "Never fails on numbers.", "nothing is done with it"]
    assert sentences_of(at(code, "code", "    Never").prose) == ["Never fails on numbers.", "nothing is done with it"]
    assert sentences_of(whole("1,2,3,4\n", "data").prose) == []


def test_a_definition_without_a_docstring_states_itself():
    assert statement_of(whole("x = 1\n\ndef f(x):\n    return x\n", "code")) == "def f(x)"


def test_centrality_is_the_stationary_distribution_of_lexranks_walk():
    """Three sentences on a line of directions; the middle one is like both, and the walk is solved as linear equations."""
    vectors = np.array([[1, 0], [np.sqrt(0.5), np.sqrt(0.5)], [0, 1]], np.float32)
    alike = np.array([[1, np.sqrt(0.5), 0], [np.sqrt(0.5), 1, np.sqrt(0.5)], [0, np.sqrt(0.5), 1]])
    steps = alike / alike.sum(axis=1, keepdims=True)
    google = 0.15 / 3 + 0.85 * steps
    expected = np.linalg.solve(np.vstack([(google.T - np.eye(3))[:2], np.ones(3)]), [0, 0, 1])
    np.testing.assert_allclose(centrality(vectors), expected, atol=2e-6)
    assert centrality(vectors).argmax() == 1


def test_a_sentence_without_a_vector_is_like_no_other():
    share = centrality(np.array([[0, 0], [1, 0], [1, 0]], np.float32))
    assert share[0] < share[1] == share[2]


def test_a_summary_is_the_central_sentences_in_the_order_of_the_text():
    sentences = ["Off topic entirely here.", "Cats chase small mice.", "Cats and mice again.", "Mice fear all cats."]
    vectors = np.array([[0, 1], [1, 0], [1, 0.01], [1, 0]], np.float32)
    assert summary(sentences, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)) == " ".join(sentences[1:])


def test_sections_of_few_sentences_are_their_own_summary_and_all_sentences_are_encoded_at_once():
    calls = []

    def vectors(sentences):
        calls.append(len(sentences))
        return np.eye(len(sentences), dtype=np.float32)

    short = whole("# Rivers\n\nRivers run downhill. They end in seas.", "prose:english")
    long = whole("# Seas\n\n" + " ".join(f"Sea number {i} is wide." for i in range(6)), "prose:english")
    empty = whole("x", "data")._replace(title="")
    found = extract([short, long, empty], vectors)
    assert calls == [6]
    assert [[view.kind for view in views] for views in found] == [["context"], ["context", "summary"], []]
    assert found[1][1].text == "Sea number 0 is wide. Sea number 1 is wide. Sea number 2 is wide."
    assert {(view.start, view.end) for view in found[1]} == {(long.start, long.end)}
