"""Texts as one segment, searched by the text layer and, line by line, the obvious way."""

import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shards.documents import Documents
from shards.identity import content_hash
from shards.layers.contract import Reader, Request, Resources
from shards.layers.text import Text
from shards.linescan import finder_of
from shards.types import Array, Budget, Found

Lines = set[tuple[int, int]]  # (row, number of the line, from 1)


@dataclass(frozen=True)
class Corpus:
    """Texts in order of their hashes, and a reader over them."""

    documents: Documents
    texts: list[bytes]
    reader: Reader
    statistics: Any

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> "Corpus":
        documents = Documents.pack((content_hash(text), text, "code") for text in texts)
        layer = Text(Text.Params(), Resources())
        arrays = layer.build(documents, None)
        statistics = layer.collect([(1, layer.statistics(arrays, documents, None))])
        reader = layer.open(arrays, documents, None, np.ones(len(documents), bool))
        return cls(documents, [documents.content(row).tobytes() for row in range(len(documents))], reader, statistics)

    def prepare(self, form: dict[str, Any]):
        return Text(Text.Params(), Resources()).prepare(Request("", form, True), self.statistics)

    def search(self, form: dict[str, Any], budget: Budget | None = None) -> Found:
        return self.reader.search(self.prepare(form), None, 1_000_000, budget or Budget())

    def lines(self, form: dict[str, Any]) -> Lines:
        """Lines that match a form that speaks of lines; as many as the layer counts."""
        feeds = finder_of(self.prepare(form).payload.formula)(self.documents.text, Budget())
        found = self.lines_at(feeds)
        assert len(found) == self.search(form).n_matched
        return found

    def lines_at(self, feeds: Array) -> Lines:
        """The lines that end at some line feeds of the packed text."""
        rows = np.searchsorted(self.documents.ends, feeds)
        numbers = np.searchsorted(self.feeds, feeds) - np.searchsorted(self.feeds, self.documents.starts[rows]) + 1
        real = numbers <= self.n_lines[rows]
        return set(zip(rows[real].tolist(), numbers[real].tolist(), strict=True))

    @cached_property
    def feeds(self) -> Array:
        return np.flatnonzero(self.documents.text == 10)

    @cached_property
    def n_lines(self) -> Array:
        return np.array([len(lines_of(text)) for text in self.texts])

    def slow(self, holds: Callable[[bytes], Any]) -> Lines:
        return {(row, n) for row, text in enumerate(self.texts) for n, line in enumerate(lines_of(text), start=1) if holds(line)}

    def write(self, folder: Path) -> Path:
        """One file for each text, named by its row."""
        for row, text in enumerate(self.texts):
            (folder / f"{row:05}").write_bytes(text)
        return folder


def lines_of(text: bytes) -> list[bytes]:
    """The content of each line, without b"\\n" or b"\\r\\n"."""
    lines = [raw.removesuffix(b"\r") for raw in text.split(b"\n")]
    return lines[:-1] if text.endswith(b"\n") or not text else lines


@cache
def library(whole: bool = False) -> Corpus:
    """Python files of the standard library: some folders, or all of it."""
    root = Path(sysconfig.get_path("stdlib"))
    folders = [root] if whole else [root / name for name in ("asyncio", "json", "email", "encodings", "xml")]
    texts = []
    for path in sorted(path for folder in folders for path in folder.rglob("*.py") if "site-packages" not in path.parts):
        try:
            texts.append(path.read_bytes())
            texts[-1].decode()
        except UnicodeDecodeError:
            texts.pop()  # some test files are in other encodings on purpose
    return Corpus.of([text for text in texts if b"\0" not in text])
