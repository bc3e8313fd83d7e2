"""The documents and entries of one segment, as they are built from and searched in: texts packed in one buffer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np

from shards.entry_metadata import Metadata
from shards.types import Array


class Media(Protocol):
    """What is kept of documents beside their text (`shards.media`)."""

    def get(self, hashes: Array) -> Mapping[bytes, bytes]:
        """The files kept of those that have one, by content hash. hashes: (n, 20) uint8."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents sorted by content hash (hence by bucket), each at most once.

    hashes: (n, 20) uint8, ascending bytewise
    text: (bytes,) uint8, all renditions, UTF-8, each followed by one b"\\n" that belongs to no document, so that no match can
        span two documents; usually a memory map
    starts, ends: (n,) int64, where each rendition lies in `text` (without that b"\\n")
    kinds: (n,) uint8, index into kind_names: what the content looks like ("code", "prose:english", …), a function of the
        content alone, since one document may have many paths
    media: what is kept of them beside their text, None where nobody can tell
    """

    hashes: Array
    text: Array
    starts: Array
    ends: Array
    kinds: Array
    kind_names: tuple[str, ...]
    media: Media | None = field(default=None, compare=False, repr=False)

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


@dataclass(frozen=True)
class Entries:
    """The entries that one segment adds, sorted by (content hash, source, path).

    Their documents may lie in another segment of the same shard (a rename writes an entry and no document).

    hashes: (m, 20) uint8
    path_blob, path_offsets: packed UTF-8 paths (`shards.arrays.pack_strings`)
    sources: (m,) uint16, index into source_names
    sizes, mtimes_ns: (m,) int64
    order: (m,) uint32, rows in order of (source, bytes of the path): what lies together in a source stands together, so that this
        is the order of metadata, and folders are ranges of it
    exts: (m,) uint32, index into the packed names ext_blob, ext_offsets: the field `ext` of each
    metadata: see `Metadata`
    """

    hashes: Array
    path_blob: Array
    path_offsets: Array
    sources: Array
    source_names: tuple[str, ...]
    sizes: Array
    mtimes_ns: Array
    order: Array
    exts: Array
    ext_blob: Array
    ext_offsets: Array
    metadata: Metadata

    def __len__(self) -> int:
        return len(self.sizes)

    def path(self, row: int) -> str:
        """The path of one entry."""
        return self.path_blob[self.path_offsets[row] : self.path_offsets[row + 1]].tobytes().decode("utf-8", "surrogateescape")

    def paths(self, rows: Array) -> list[str]:
        """The paths of several entries. rows: (m,) int."""
        starts, ends = self.path_offsets[rows].astype(np.int64), self.path_offsets[rows + 1].astype(np.int64)
        edges = np.concatenate([[0], np.cumsum(ends - starts)])
        together = self.path_blob[np.arange(edges[-1]) + np.repeat(starts - edges[:-1], ends - starts)].tobytes()
        cuts = edges.tolist()
        if together.isascii():
            text = together.decode("ascii")
            return [text[a:b] for a, b in pairwise(cuts)]
        return [together[a:b].decode("utf-8", "surrogateescape") for a, b in pairwise(cuts)]

    @cached_property
    def ext_names(self) -> tuple[str, ...]:
        """The distinct values of `ext`."""
        blob, offsets = self.ext_blob.tobytes(), self.ext_offsets.tolist()
        return tuple(blob[a:b].decode("utf-8", "surrogateescape") for a, b in pairwise(offsets))

    @cached_property
    def places(self) -> Array:
        """Where each row stands in `order`: (m,) uint32."""
        found = np.empty(len(self.order), np.uint32)
        found[self.order] = np.arange(len(self.order), dtype=np.uint32)
        return found

    # What follows is about all entries, and costs milliseconds for a million: kept with the segment, which outlives generations.

    @cached_property
    def size_ends(self) -> tuple[float, float]:
        """The least and greatest size. There must be entries."""
        return float(self.sizes.min()), float(self.sizes.max())

    @cached_property
    def mtime_ends(self) -> tuple[float, float]:
        """The earliest and latest modification, in seconds. There must be entries."""
        return int(self.mtimes_ns.min()) / 1e9, int(self.mtimes_ns.max()) / 1e9

    @cached_property
    def source_edges(self) -> list[int]:
        """Places in `order` at which each source's entries begin, and the end."""
        return [0, *np.cumsum(np.bincount(self.sources, minlength=len(self.source_names))).tolist()]

    @cached_property
    def odd(self) -> Array:
        """Places in `order` of paths that are not UTF-8."""
        rows = np.unique(np.searchsorted(self.path_offsets, np.flatnonzero(self.path_blob >= 0x80), "right") - 1)
        return np.array([self.places[row] for row in rows.tolist() if any("\udc80" <= c <= "\udcff" for c in self.path(row))], np.int64)
