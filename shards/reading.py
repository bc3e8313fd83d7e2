"""What comes of reading a source's files: documents with their vectors, what is known of each path, and what was odd about it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shards import given, metadata
from shards.documents import Documents
from shards.images import read_image
from shards.pages import read_pages
from shards.renditions import Skipped, render
from shards.rows import RowRule, read_table
from shards.types import Array

Odd = dict[str, tuple[int, str]]  # reason -> (how often, the first place)


def add_odd(total: Odd, more: Mapping[str, tuple[int, str]]) -> None:
    """Add one count to another."""
    for reason, (n, where) in more.items():
        before, first = total.get(reason, (0, where))
        total[reason] = (before + n, first)


@dataclass(slots=True)
class Reading:
    """What files gave, one after the other.

    dims: how many numbers callers' vectors of each name have. hashes: path -> content hash of readable text; skipped: path -> reason;
    metadata: path -> metadata, of those that have some. rows: table -> its rows' paths; sizes: of rows, the bytes of their text.
    """

    dims: Mapping[str, int]
    hashes: dict[str, bytes] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    odd: Odd = field(default_factory=dict)
    _documents: dict[bytes, tuple[bytes, bytes, str]] = field(default_factory=dict)
    _given: dict[bytes, dict[str, Array]] = field(default_factory=dict)
    _media: dict[bytes, bytes] = field(default_factory=dict)

    def file(self, path: str, data: bytes, beside: bytes | None = None) -> None:
        """One file that is one document. beside: the content of its sidecar."""
        rendition = render(data)
        if isinstance(rendition, Skipped):
            self.skipped[path] = rendition.reason
            return
        about, reasons = metadata.front_matter(rendition.text, path)
        self._say(path, about | self._sidecar(path, beside), reasons)
        self.hashes[path] = rendition.hash  # of plain text the content's own; else it covers how the text was made
        self._documents[rendition.hash] = (rendition.hash, rendition.text, rendition.kind)

    def image(self, path: str, data: bytes, beside: bytes | None = None) -> None:
        """One file that is named like an image or a PDF; one that is none is like any other. What a sidecar says wins over the file."""
        found = read_image(data) or read_pages(data)
        if found is None:
            self.file(path, data, beside)
        elif isinstance(found, Skipped):
            self.skipped[path] = found.reason
        else:
            self._say(path, found.facts | self._sidecar(path, beside), [])
            self.hashes[path] = found.hash
            self._documents[found.hash] = (found.hash, found.text, found.kind)
            self._media[found.hash] = found.media

    def table(self, path: str, data: bytes, rule: RowRule, beside: bytes | None = None) -> None:
        """One file whose rows are documents. What a sidecar says is said of each."""
        table = read_table(path, data, rule, self.dims)
        if table.reason:
            self.skipped[path] = table.reason
        add_odd(self.odd, {reason: (n, f"{path}, {where}") for reason, (n, where) in table.odd.items()})
        common = self._sidecar(path, beside)
        paths = self.rows[path] = []
        skipped: Counter[str] = Counter()
        for row in table.rows:
            rendition = render(row.text.encode("utf-8", "replace"))
            if isinstance(rendition, Skipped):
                skipped[rendition.reason] += 1
                continue
            key = given.identity(rendition.hash, row.vectors)
            name = f"{path}#{row.id}"
            paths.append(name)
            self.hashes[name], self.sizes[name] = key, len(rendition.text)
            self._say(name, common | row.metadata, [])
            self._documents[key] = (key, rendition.text, rendition.kind)
            if row.vectors:
                self._given[key] = row.vectors
        add_odd(self.odd, {f"row that is {reason}": (n, path) for reason, n in skipped.items()})

    def pack(self) -> tuple[Documents, dict[bytes, dict[str, Array]], dict[bytes, bytes]] | None:
        """The documents that were read, the vectors they bring and the images they are; None where there are none."""
        return (Documents.pack(self._documents.values()), self._given, self._media) if self._documents else None

    def _sidecar(self, path: str, data: bytes | None) -> dict[str, Any]:
        if data is None:
            return {}
        about, reasons = metadata.sidecar(data)
        add_odd(self.odd, {reason: (1, path + metadata.SIDECAR) for reason in reasons})
        return about

    def _say(self, path: str, about: dict[str, Any], reasons: list[str]) -> None:
        add_odd(self.odd, {reason: (1, path) for reason in reasons})
        if about:
            self.metadata[path] = about
