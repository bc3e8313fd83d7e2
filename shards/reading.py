"""What comes of reading a source's files: documents with their vectors, what is known of each path, and what was odd about it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shards import given, metadata
from shards.documents import Documents
from shards.formats.members import Budget, Member, members
from shards.formats.process import Extracted, Extractors
from shards.formats.registry import Format, format_named, format_of
from shards.images import ImageDocument, read_image
from shards.renditions import Rendition, Skipped, render
from shards.rows import MOLECULES, RowRule, read_table
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
    metadata: path -> metadata, of those that have some. rows: table -> its rows' paths, archive -> its members' paths; sizes: of these,
    in bytes. extractors: who reads files of formats; whoever gives one closes it.
    """

    dims: Mapping[str, int]
    extractors: Extractors = field(default_factory=Extractors)
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
        self._take(path, render(data), self._sidecar(path, beside))

    def formatted(self, path: str, data: bytes, known: Format, beside: bytes | None = None) -> None:
        """One file whose name says that it is of a format. What a sidecar says wins over the file."""
        self._take(path, self.extractors.read(known, data) or render(data), self._sidecar(path, beside))

    def image(self, path: str, data: bytes, beside: bytes | None = None) -> None:
        """One file that is named like an image or a PDF; one that is none is like any other. What a sidecar says wins over the file."""
        found = read_image(data) or read_pdf(self.extractors, data) or render(data)
        self._take(path, found, self._sidecar(path, beside))
        if not isinstance(found, Skipped):
            if isinstance(found, ImageDocument):
                self._media[found.hash] = found.media
            elif isinstance(found, Extracted):
                self._media[found.hash] = data

    def archive(
        self, path: str, data: bytes, known: Format, among: frozenset[str], max_file_bytes: int, beside: bytes | None = None
    ) -> None:
        """One file whose members are documents, at `path!/member`. among: the formats to be read in it."""
        common = self._sidecar(path, beside)
        self.rows[path] = []
        skipped: dict[str, tuple[int, str]] = {}
        for member in members(path, data, known, among, max_file_bytes, Budget()):
            if not isinstance(member, Member):
                add_odd(skipped, {member.reason: (1, member.path)})
                continue
            inner = format_of(member.path, among)
            made = (self.extractors.read(inner, member.data) if inner is not None else None) or render(member.data)
            if isinstance(made, Skipped):
                add_odd(skipped, {made.reason: (1, member.path)})
                continue
            self.rows[path].append(member.path)
            self.sizes[member.path] = len(member.data)
            self._take(member.path, made, common)
        if path in {where for _, where in skipped.values()}:  # what is wrong with the archive itself
            reason = next(reason for reason, (_, where) in skipped.items() if where == path)
            self.skipped[path] = reason
            del skipped[reason]
        add_odd(self.odd, {f"member of an archive: {reason}": found for reason, found in skipped.items()})

    def table(self, path: str, data: bytes, rule: RowRule, beside: bytes | None = None) -> None:
        """One file whose rows are documents. What a sidecar says is said of each."""
        if rule == MOLECULES and b"M  END" not in data:  # .sdf is also the ending of worlds for robots, and of more
            self.file(path, data, beside)
            return
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

    def _take(self, path: str, found: Rendition | Extracted | ImageDocument | Skipped, besides: dict[str, Any]) -> None:
        """A document at a path, or that there is none. besides: what is said of it from outside, which wins."""
        if isinstance(found, Skipped):
            self.skipped[path] = found.reason
            return
        about, reasons = metadata.front_matter(found.text, path) if isinstance(found, Rendition) else (found.facts, [])
        self._say(path, about | besides, reasons)
        self.hashes[path] = found.hash  # of plain text the content's own; else it covers how the text was made
        self._documents[found.hash] = (found.hash, found.text, found.kind)

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


def read_pdf(extractors: Extractors, data: bytes) -> Extracted | Skipped | None:
    """A PDF file as a document of pages, whether they have text or are pictures; None where these bytes are none."""
    return extractors.read(_PDF, data, with_pictures=True) if _PDF.begins(data) else None


_PDF = format_named("pdf")
