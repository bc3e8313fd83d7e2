"""What a generation refers to: every file of it, so that what is in use is kept, copied and checked, and nothing else.

Kinds: "page", "tree", "nulls", "tombstones", and of segments their roles: "docs", "text", "entries", "layer/…", "stats/…".
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shards import arrays as array_files
from shards import tree
from shards.identity import HASH_BYTES, buckets_of
from shards.manifest import FileRef, Model, Root, SegmentRef, ShardPage, corpus_store, read_page, read_root
from shards.segment import Tombstones
from shards.store import Store
from shards.types import Array

_HEAD_BYTES = 1 << 15  # holds the header of a segment's `docs` and `entries`
ROOT_NAME = re.compile(r"roots/(\d{16})\.json")


def generations(store: Store, corpus: str) -> list[int]:
    """The numbers of all kept generations, ascending. store: the store's root."""
    return numbers(corpus_store(store, corpus).list("roots/"))


def numbers(names: list[str]) -> list[int]:
    """The generations whose roots are among these names, in the order of the names."""
    return [int(match[1]) for name in names if (match := ROOT_NAME.fullmatch(name))]


def root_name(generation: int) -> str:
    """Where a generation's root lies in the corpus's folder."""
    return f"roots/{generation:016d}.json"


def erased_files(store: Store, known: Collection[str] = ()) -> dict[str, list[str]]:
    """Note -> checksums of files that held documents which were erased; copies must go. store: the corpus's. known: notes read before."""
    return {name: json.loads(store.read(name))["files"] for name in store.list("erased/") if name not in known}


def manifest_files(value: Any, role: str = "") -> Iterator[tuple[str, FileRef]]:
    """(field or key, reference) of every file that a manifest names, in whatever field: a new one must not be overlooked."""
    if isinstance(value, FileRef):
        yield role, value
    elif isinstance(value, Model):
        for name in type(value).model_fields:
            yield from manifest_files(getattr(value, name), name)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from manifest_files(item, key)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from manifest_files(item, role)


@dataclass
class References:
    """Reads what generations of one corpus refer to; pages that they share are read once.

    store: the store's root.
    """

    store: Store
    corpus: str
    _trees: dict[str, tuple[FileRef, ...]] = field(default_factory=dict)

    @property
    def inside(self) -> Store:
        """The corpus's own folder."""
        return corpus_store(self.store, self.corpus)

    def root(self, generation: int) -> Root:
        """As `manifest.read_root`."""
        return read_root(self.store, self.corpus, generation)

    def files(self, root: Root) -> dict[str, tuple[str, FileRef]]:
        """Every file of a generation: name -> (kind, reference). Files of no bytes, which are not written, are left out.

        Raises NotFound or Corrupt where a page that names others cannot be read.
        """
        found: dict[str, tuple[str, FileRef]] = {}
        for kind, ref in manifest_files(root):
            found[ref.name] = (kind, ref)
            if kind == "page":
                page = read_page(self.inside, ref, ShardPage)
                found |= {file.name: (role, file) for role, file in manifest_files(page)}
            elif kind == "tree":
                found |= {file.name: ("tree", file) for file in tree.pages(self.inside, ref, self._trees)}
        return {name: item for name, item in found.items() if item[1].size}

    def segments(self, root: Root) -> Iterator[SegmentRef]:
        """Every reference to a segment of a generation, shard by shard."""
        for shard in root.shards:
            yield from read_page(self.inside, shard.page, ShardPage).segments


def hashes_in(store: Store, ref: SegmentRef, role: str = "docs") -> Array:
    """The content hashes of all documents in a segment's files, dead ones and those outside the reference included: (n, 20) uint8.
    role: "entries" for those of its entries.

    Reads this column alone. Raises NotFound, Corrupt.
    """
    name = ref.files[role].name
    places, _ = array_files.layout(store.read(name, 0, _HEAD_BYTES), f"File {name!r} in store {store.url}")
    place = places["hashes"]
    data = store.read(name, place.start, place.end)
    if len(data) != place.end - place.start:
        raise store.corrupt(name, "is cut short")
    return np.frombuffer(data, np.uint8).reshape(-1, HASH_BYTES)


def live_hashes(store: Store, ref: SegmentRef) -> Array:
    """Those of the documents that live in what a reference covers, ascending: (n, 20) uint8."""
    hashes = hashes_in(store, ref)
    low, high = np.searchsorted(buckets_of(hashes), ref.buckets).tolist()
    live = np.zeros(len(hashes), np.bool_)
    live[low:high] = True
    live[Tombstones.read(store, ref).documents] = False
    return hashes[live]
