"""What of a text is its title: a table, and that hostile beginnings cost no time."""

import numpy as np
import pytest

from shards.documents import Documents
from shards.titles import MAX_TITLE_BYTES, title_of, titles

TITLES = [
    ("prose:english", "# Hello world\n\ntext", "Hello world"),
    ("prose:english", "= Hello world\ntext", "Hello world"),
    ("prose:english", "\ufeff\n\n  ## Hello world  \r\ntext", "Hello world"),
    ("prose:english", "Hello world\n===========\ntext", "Hello world"),
    ("prose:english", "===========\nHello world\n===========\ntext", "Hello world"),
    ("prose:english", "---\ndate: 3\ntitle: A day\n---\n\n# Other", "A day"),
    ("prose:english", "---\ndate: 3\n---\n\n# A day\ntext", "A day"),
    ("prose:english", "---\ndate: 3\n", ""),
    ("prose:german", "Eine Zeile für sich\n \nund Text", "Eine Zeile für sich"),
    ("prose:english", "A first line\nthat goes on\n\nand on", ""),
    ("prose:english", "One line only", ""),
    ("prose:english", "One line only\n\n\n", ""),
    ("prose:english", "*****\n\ntext", ""),
    ("prose:english", "x" * (MAX_TITLE_BYTES + 1) + "\n\ntext", ""),
    ("prose:cjk", "标题\n\n内容", "标题"),
    ("pages:english", "A Paper\n\nby somebody", "A Paper"),
    ("code", '#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n\n"""Do this.\n\nmore"""\nimport x', "Do this."),
    ("code", "r'''\n  Do that.'''\n", "Do that."),
    ("code", "// Package foo does bar.\n// more\nint x;", "Package foo does bar."),
    ("code", "/*\n * Turn the knob.\n */\nint x;", "Turn the knob."),
    ("code", "/** Turn it. */ int x;", "Turn it."),
    ("code", "<!-- A page -->\n<p>", "A page"),
    ("code", "-- Tables of ships\nselect 1", "Tables of ships"),
    ("code", "/*\n * Copyright 2020\n */\nint x;", ""),
    ("code", "# Licensed under the Apache License", ""),
    ("code", "#!/bin/sh\necho", ""),
    ("code", "import x\n'''no title'''\n", ""),
    ("data", "time,height\n\n1,2", ""),
    ("prose:english", "", ""),
    ("code", "#", ""),
]


@pytest.mark.parametrize(("kind", "text", "title"), TITLES)
def test_the_title_of(kind, text, title):
    start, end = title_of(text.encode(), kind)
    assert text.encode()[start:end].decode() == title


def test_titles_of_packed_documents_are_those_of_each_alone():
    documents = Documents.pack((bytes([i]) * 20, text.encode(), kind) for i, (kind, text, _) in enumerate(TITLES))
    starts, ends = titles(documents, np.arange(len(documents)))
    found = [documents.text[a:b].tobytes().decode() for a, b in zip(starts, ends, strict=True)]
    assert found == [title for _, _, title in TITLES]


@pytest.mark.parametrize("kind", ["prose:english", "code"])
@pytest.mark.parametrize(
    "cut", ["# x\n", "=====\n", "- ", "\n", "a\n", "#", " ", "_", "#\n \t", "--", "/*", "*", "'''", '"', "---\n", "title:"]
)
def test_any_beginning_of_any_text_is_read_without_harm(kind, cut):
    for size in (1, 2, 3, 7, 2047, 2048, 5000):
        for text in (cut * size)[:size], "---\n" + (cut * size)[:size], "/*" + (cut * size)[:size]:
            start, end = title_of(text.encode(), kind)
            assert 0 <= start <= end <= min(len(text), 2048)
            assert "\n" not in text[start:end]
