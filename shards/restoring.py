"""Putting damaged files back as they were, bit for bit, from what is whole: a file with the same content, or what it is made from.

Nothing is written that does not have the checksum that the manifests state, so nothing good can be spoiled.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from shards import arrays as array_files
from shards.cache import FileCache
from shards.encodings import PackedEncodings
from shards.errors import EndpointError, ModelMissing, NotFound, StoreError
from shards.given import folder
from shards.identity import content_hash
from shards.manifest import FileRef, SegmentRef, check
from shards.plan import glob_regex
from shards.salvage import Text, columns, piece
from shards.segment import Segment
from shards.shard import Space
from shards.store import Store
from shards.types import Array, Entry

logger = logging.getLogger(__name__)

FindTexts = Callable[[Mapping[bytes, list[Entry]]], Mapping[bytes, Text]]


@dataclass
class Restorer:
    """Restores files of one corpus. store: the corpus's. files: all that are referred to, by name. bad: those damaged, taken out as
    they are restored. uses: the references to segments that name a file, with its role there. spaces: by id.
    find: texts of documents, given entries to know them by; entries_of: the entries of documents, as far as known.
    """

    store: Store
    cache: FileCache
    files: Mapping[str, FileRef]
    bad: set[str]
    uses: Mapping[str, list[tuple[SegmentRef, str]]]
    spaces: Mapping[str, Space]
    find: FindTexts
    entries_of: Callable[[Iterable[bytes]], dict[bytes, list[Entry]]]
    restored: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """Restore what can be; returns the names. In rounds: a layer needs the text, statistics need the layer."""
        while True:
            before = len(self.restored)
            for name in sorted(self.bad & set(self.files)):
                ref = self.files[name]
                data = self._twin(ref) or self._made(ref)
                if data is not None and len(data) == ref.size and hashlib.sha256(data).hexdigest() == ref.sha256:
                    self.store.write(name, data)
                    self.bad.discard(name)
                    self.restored.append(name)
                    logger.info("file=%s event=restored", name)
            if len(self.restored) == before:
                return self.restored

    def _twin(self, ref: FileRef) -> bytes | None:
        """The content of another file that has the same."""
        for other in self.files.values():
            if other.sha256 == ref.sha256 and other.name not in self.bad:
                return check(self.store.read(other.name), other, self.store)
        return None

    def _made(self, ref: FileRef) -> bytes | None:
        """What the file would be if it were made again from the others of its segment; None where these do not suffice."""
        for part, role in self.uses.get(ref.name, ()):
            kind, _, space = role.partition("/")
            needed = {
                "text": ("docs",), "layer": ("docs", "text", "entries"), "stats": ("docs", "text", "entries", f"layer/{space}"),
                "zones": ("entries", "meta"),
            }.get(kind)  # fmt: skip
            if needed is None or any(part.files[other].name in self.bad for other in needed if other in part.files):
                continue
            try:
                if kind == "text":
                    return self._text(part)
                if kind == "zones":
                    return self._zones(part)
                if space in self.spaces and not self.spaces[space].problem:
                    return self._layer(part, self.spaces[space]) if kind == "layer" else self._statistics(part, self.spaces[space])
            except (EndpointError, ModelMissing, NotFound, StoreError) as error:
                logger.info("file=%s event=not_restored reason=%s", ref.name, error)
        return None

    def _text(self, part: SegmentRef) -> bytes | None:
        """The renditions, those that are damaged taken from elsewhere."""
        documents = columns(self.store, part)
        pieces: dict[bytes, bytes] = {}
        for row in range(len(documents)):
            try:
                key, text, _ = piece(self.store, part, documents, row)
            except (NotFound, StoreError):
                continue
            if content_hash(text) == key:
                pieces[key] = text
        keys = [documents.hashes[row].tobytes() for row in range(len(documents))]
        if missing := [key for key in keys if key not in pieces]:
            known = self.entries_of(missing)
            pieces |= {key: text for key, (_, text, _) in self.find({key: known.get(key, []) for key in missing}).items()}
        if any(key not in pieces for key in keys):
            return None
        return b"".join(part for key in keys for part in (pieces[key], b"\n"))

    def _layer(self, part: SegmentRef, space: Space) -> bytes | None:
        if space.built == "used":  # which rows it had, its own arrays alone could tell
            return None
        segment = Segment(part, self.store, self.cache)
        documents, entries = segment.documents, segment.entries
        scope = self._scope(segment, space)
        known = PackedEncodings(self.store, folder(space.layer, space.id))
        return array_files.dump(space.layer.build(documents, entries, scope, known))

    def _statistics(self, part: SegmentRef, space: Space) -> bytes | None:
        segment = Segment(part, self.store, self.cache)
        arrays = segment.layer(space.id)
        if arrays is None:
            return None
        hashes = segment.documents.hashes if space.layer.over == "documents" else segment.entries.hashes
        covered = segment.rows_in(part.buckets, hashes)
        rows = None if covered == (0, len(hashes)) else np.arange(*covered, dtype=np.int32)
        return array_files.dump(space.layer.statistics(arrays, segment.documents, segment.entries, rows))

    def _zones(self, part: SegmentRef) -> bytes:
        from shards import zones

        segment = Segment(part, self.store, self.cache)
        return zones.dump(zones.zones_of(segment.entries.metadata.columns.whole))

    def _scope(self, segment: Segment, space: Space) -> Array | None:
        """The rows that a space with a scope was built for, as far as this segment's own entries tell; its checksum will tell."""
        if not space.scope:
            return None
        globs = [glob_regex(glob) for glob in space.scope]
        entries = segment.entries
        inside = np.array([any(glob.fullmatch(entries.path(row)) for glob in globs) for row in range(len(entries))], np.bool_)
        if space.layer.over == "entries":
            return inside
        keys = {entries.hashes[row].tobytes() for row in np.flatnonzero(inside).tolist()}
        return np.array([segment.hashes[row].tobytes() in keys for row in range(len(segment))], np.bool_)
