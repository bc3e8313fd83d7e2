"""The collection made of Python code: what is asked, what is to be found, and that the docstring is not in it."""

import json
import textwrap

import pytest

from jobs import datasets, docstrings
from jobs.datasets import BadDataset
from jobs.docstrings import Documented, documented, first_sentence, write_collection

MODULE = textwrap.dedent('''\
    """Of the module: what it says is never asked."""
    import functools


    class Dock:
        """A class's own docstring is not asked either."""

        @property
        def gate(self):
            """Whether the gate is open at
            low water.  It closes by itself.

            :rtype: bool
            """
            return self._gate  # comments stay

        @gate.setter
        def gate(self, value):
            """Open or close the gate by hand."""
            self._gate = value

        def short(self):
            """Four words at most."""


    if True:
        @functools.cache
        async def tide(é, at="noon"): "How high é stands at that hour"; return f"{é}"

    def outer():
        \'\'\'Outer function with one inside it.\'\'\'
        def inner():
            """Inner functions belong to the outer one."""
            return 1
        return inner
''')


def test_functions_are_found_without_any_docstring_and_with_their_first_sentence():
    assert list(documented(MODULE, "a/dock.py")) == [
        Documented("a/dock.py:Dock.gate", "@property\ndef gate(self):\n    return self._gate  # comments stay",
                   "Whether the gate is open at low water."),
        Documented("a/dock.py:Dock.gate#2", "@gate.setter\ndef gate(self, value):\n    self._gate = value",
                   "Open or close the gate by hand."),
        Documented("a/dock.py:tide", '@functools.cache\nasync def tide(é, at="noon"): return f"{é}"', "How high é stands at that hour"),
        Documented("a/dock.py:outer", "def outer():\n    def inner():\n        return 1\n    return inner",
                   "Outer function with one inside it."),
    ]  # fmt: skip


@pytest.mark.parametrize(("docstring", "sentence"), [
    ("Give it. Then more.", "Give it."),
    ("\n  Give\n  it\n\n  Then more.", "Give it"),
    ("Is it open? Yes.", "Is it open?"),
    ("Read a .txt file, e.g. this", "Read a .txt file, e.g."),
    ("", ""),
])  # fmt: skip
def test_a_sentence_ends_at_its_mark_or_at_a_blank_line(docstring, sentence):
    assert first_sentence(docstring) == sentence


def function(name: str, sentence: str, body: str = "pass") -> str:
    return f'def {name}():\n    """{sentence}"""\n    {body}\n'


def test_same_texts_are_one_document_and_same_sentences_one_query(tmp_path):
    root = tmp_path / "code"
    (root / "sub" / "tests").mkdir(parents=True)
    (root / "a.py").write_text(function("one", "The sentence of both these files.") + function("two", "Said of two functions at once."))
    (root / "b.py").write_text(function("one", "What the second copy says instead.") + function("three", "Said of two functions at once."))
    (root / "sub" / "tests" / "c.py").write_text(function("four", "Tests are not part of it."))
    (root / "sub" / "broken.py").write_text("print 'no longer Python'")
    (root / "sub" / "latin.py").write_bytes(b"# coding: latin-1\n" + function("five", "Fünf Wörter stehen hier drin.").encode("latin-1"))
    (root / "empty.py").write_bytes(b"\0")
    assert write_collection(root, tmp_path / "out") == 4
    found = datasets.read_beir(tmp_path / "out")
    assert {found.queries[query]: set(documents) for query, documents in found.qrels.items()} == {
        "The sentence of both these files.": {"a.py:one"},
        "What the second copy says instead.": {"a.py:one"},
        "Said of two functions at once.": {"a.py:two", "b.py:three"},
        "Fünf Wörter stehen hier drin.": {"sub/latin.py:five"},
    }
    corpus = [json.loads(line) for line in (tmp_path / "out" / "corpus.jsonl").read_text("utf-8").splitlines()]
    assert corpus[0] == {"_id": "a.py:one", "title": "", "text": "def one():\n    pass"}


def test_a_sample_keeps_its_members_when_code_is_added(tmp_path, monkeypatch):
    monkeypatch.setattr(docstrings, "MAX_DOCUMENTS", 8)
    monkeypatch.setattr(docstrings, "MAX_QUERIES", 5)
    root = tmp_path / "code"
    root.mkdir()
    sampled = []
    for n in (20, 21):
        (root / "a.py").write_text("".join(function(f"f{i}", f"This sentence is about number {i}.", f"return {i}") for i in range(n)))
        assert write_collection(root, tmp_path / str(n)) == 8
        found = datasets.read_beir(tmp_path / str(n))
        assert len(found.queries) == 5
        corpus = (tmp_path / str(n) / "corpus.jsonl").read_text().splitlines()
        sampled.append({json.loads(line)["_id"] for line in corpus})
    assert len(sampled[0] & sampled[1]) >= 7


def test_a_folder_without_documented_functions_is_refused(tmp_path):
    (tmp_path / "a.py").write_text("def f():\n    pass\n")
    with pytest.raises(BadDataset, match="holds no Python function whose docstring begins with a sentence of 5 words or more"):
        write_collection(tmp_path, tmp_path / "out")
