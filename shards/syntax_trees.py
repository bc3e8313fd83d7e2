"""Syntax trees of documents: which are parsed at all, and what is asked of them. Runs in a process of its own (`shards.syntax_process`)."""

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.languages import BY_NAME, Language
from shards.types import Array

if TYPE_CHECKING:
    from ast_grep_py import SgNode

MAX_BYTES = 1 << 20
MAX_LINE_BYTES = 20_000  # ast-grep counts a node's column from the line's start each time it is asked for: quadratic in a minified file
TREE_BYTES = 30  # memory of a tree for each byte of text: measured over the standard library, 22 on average

# Why a document has no tree; kept as numbers: append only. 0: it has one, or no language.
REASONS = (
    "", "larger than 1 MiB", "a line of more than 20,000 bytes", "not UTF-8", "takes too long to parse", "breaks the parser",
    "renamed before the space was built",  # so that its path lies in another segment; parsed when they are joined
)  # fmt: skip


def refusal(text: bytes) -> int:
    """Why this document is not even tried, as a place in REASONS; 0 if it is. 1 GB/s."""
    if len(text) > MAX_BYTES:
        return 1
    breaks = np.flatnonzero(np.frombuffer(text, np.uint8) == 0x0A)
    if np.diff(breaks, prepend=-1, append=len(text)).max() > MAX_LINE_BYTES:
        return 2
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return 3
    return 0


def parse(source: str, language: Language) -> "SgNode":
    """The root of the tree of a document that `refusal` lets through."""
    from ast_grep_py import SgRoot

    return SgRoot(source, language.name).root()


def byte_offsets(text: bytes) -> Array | None:
    """Where each character begins, and the end: (characters + 1,) int64; None where characters are bytes."""
    if text.isascii():
        return None
    codes = np.frombuffer(text, np.uint8)
    return np.append(np.flatnonzero((codes & 0xC0) != 0x80), len(codes))


def spans_of(root: "SgNode", text: bytes, config: dict[str, Any]) -> list[tuple[int, int]]:
    """Where a rule matches, as bytes [start, end) in order of the text. config: as `SgNode.find_all` takes it."""
    found = [(at.start.index, at.end.index) for node in root.find_all(config) for at in (node.range(),)]
    offsets = byte_offsets(text)
    return found if offsets is None else [(int(offsets[start]), int(offsets[end])) for start, end in found]


class Trees:
    """Trees that were parsed lately, by content hash and language; a bounded number of bytes, the least recently used go first."""

    def __init__(self, max_bytes: int = 128 << 20):
        self.max_bytes, self.n_bytes = max_bytes, 0
        self._kept: OrderedDict[tuple[bytes, str], tuple[SgNode, int]] = OrderedDict()

    def root(self, key: bytes, text: bytes, language: str) -> "SgNode":
        """The root of a document's tree."""
        if (kept := self._kept.get((key, language))) is not None:
            self._kept.move_to_end((key, language))
            return kept[0]
        root = parse(text.decode(), BY_NAME[language])
        size = TREE_BYTES * len(text)
        if size <= self.max_bytes:
            self._kept[key, language] = root, size
            self.n_bytes += size
        while self.n_bytes > self.max_bytes:
            self.n_bytes -= self._kept.popitem(last=False)[1][1]
        return root
