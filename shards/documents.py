"""The documents of one segment, as they are built from and searched in: renditions packed in one buffer."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shards.types import Array


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents sorted by content hash (hence by bucket), each at most once.

    hashes: (n, 20) uint8, ascending bytewise
    text: (bytes,) uint8, all renditions, UTF-8, each followed by one b"\\n" that belongs to no document, so that no match can
        span two documents; usually a memory map
    starts, ends: (n,) int64, where each rendition lies in `text` (without that b"\\n")
    kinds: (n,) uint8, index into kind_names: what the content looks like ("code", "prose:english", …), a function of the
        content alone, since one document may have many paths
    """

    hashes: Array
    text: Array
    starts: Array
    ends: Array
    kinds: Array
    kind_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.starts)

    def content(self, row: int) -> memoryview:
        """The rendition of one document, UTF-8, without a copy."""
        return memoryview(self.text)[self.starts[row] : self.ends[row]]

    @classmethod
    def pack(cls, items: Iterable[tuple[bytes, bytes, str]]) -> "Documents":
        """Documents from (content hash, rendition, kind), in any order; equal hashes are kept once."""
        unique = {key: (body, kind) for key, body, kind in items}
        order = sorted(unique)
        names = tuple(sorted({kind for _, kind in unique.values()}))
        bodies = [unique[key][0] for key in order]
        sizes = np.array([len(body) for body in bodies], np.int64)
        starts = np.zeros(len(order), np.int64)
        np.cumsum(sizes[:-1] + 1, out=starts[1:]) if len(order) else None
        text = np.frombuffer(b"".join(part for body in bodies for part in (body, b"\n")), np.uint8)
        hashes = np.frombuffer(b"".join(order), np.uint8).reshape(-1, 20)
        kinds = np.array([names.index(unique[key][1]) for key in order], np.uint8)
        return cls(hashes, text, starts, starts + sizes, kinds, names)


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries that one segment adds, sorted by (content hash, source, path).

    Their documents may lie in another segment of the same shard (a rename writes an entry and no document).

    hashes: (m, 20) uint8
    path_blob, path_offsets: packed UTF-8 paths (`shards.arrays.pack_strings`)
    sources: (m,) uint16, index into source_names
    sizes, mtimes_ns: (m,) int64
    metadata: one JSON object per entry, packed like the paths
    """

    hashes: Array
    path_blob: Array
    path_offsets: Array
    sources: Array
    source_names: tuple[str, ...]
    sizes: Array
    mtimes_ns: Array
    meta_blob: Array
    meta_offsets: Array

    def __len__(self) -> int:
        return len(self.sizes)

    def path(self, row: int) -> str:
        """The path of one entry."""
        return self.path_blob[self.path_offsets[row] : self.path_offsets[row + 1]].tobytes().decode("utf-8", "surrogateescape")
