"""Texts of documents that are lost where they should lie: from anywhere else in the store that has them, else from the source.

Every text is what its hash says, or comes from a file that has its checksum; a text of another encoding, whose hash covers how it
was rendered, is taken from whole files and from the source alone.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shards import arrays as array_files
from shards import pushlog
from shards.attached import Attached
from shards.corpus import Source
from shards.documents import Documents
from shards.errors import Corrupt, NotFound, SourceError, StoreError
from shards.formats.members import archive_of
from shards.formats.registry import ALL, format_of
from shards.identity import content_hash, find_rows
from shards.images import may_be_seen
from shards.listing import Listed, Listing
from shards.manifest import SegmentRef, SourceRef, check
from shards.segment import read_pack
from shards.staging import Staging
from shards.store import Store
from shards.types import Entry
from shards.worker import sorted_hashes
from shards.writing import Executor

logger = logging.getLogger(__name__)

Text = tuple[bytes, bytes, str]  # content hash, rendition, kind: what `Documents.pack` takes
MAX_FILE_BYTES = 1 << 40  # whatever was indexed may be read again


@dataclass
class Salvage:
    """Finds texts of one corpus. store: the corpus's. segments: every reference there is, to any generation. bad: damaged files.

    source_of: how to read a source that a generation names; None where that is not possible here. workers: where it is read.
    """

    store: Store
    segments: Sequence[SegmentRef]
    bad: Collection[str]
    sources: Mapping[str, SourceRef]
    source_of: Callable[[str, SourceRef], Source | None]
    workers: Callable[[], Executor]
    staging: Staging
    reread: list[str] = field(default_factory=list)  # paths that were read from their source again

    def find(self, wanted: Mapping[bytes, Sequence[Entry]]) -> dict[bytes, Text]:
        """Those that can be had, by hash. wanted: with the entries by which the source knows them."""
        found: dict[bytes, Text] = {}
        for look in (self._in_segments, self._in_log, self._in_sources):
            missing = {key: entries for key, entries in wanted.items() if key not in found}
            if missing:
                found |= look(missing)
        return found

    def _in_segments(self, wanted: Mapping[bytes, Sequence[Entry]]) -> dict[bytes, Text]:
        found: dict[bytes, Text] = {}
        keys = sorted_hashes(list(wanted))
        for ref in {ref.id: ref for ref in self.segments}.values():
            if ref.files["docs"].name in self.bad:
                continue
            documents = columns(self.store, ref)
            rows = find_rows(documents.hashes, keys)
            renditions = ref.files["text"].name
            whole = renditions not in self.bad
            for row in np.sort(rows[rows >= 0]).tolist():
                try:
                    key, text, kind = piece(self.store, ref, documents, row)
                except (NotFound, Corrupt):
                    continue
                if whole or content_hash(text) == key:
                    found.setdefault(key, (key, text, kind))
        return found

    def _in_log(self, wanted: Mapping[bytes, Sequence[Entry]]) -> dict[bytes, Text]:
        found: dict[bytes, Text] = {}
        for name in self.store.list("log/"):
            try:
                entry = pushlog.read(self.store, int(name.removeprefix("log/").partition(".")[0]))
            except (Corrupt, StoreError, ValueError):
                continue
            for o in entry.operations if entry else ():
                if o.hash in wanted:
                    found[o.hash] = (o.hash, o.text, o.kind)
        return found

    def _in_sources(self, wanted: Mapping[bytes, Sequence[Entry]]) -> dict[bytes, Text]:
        found: dict[bytes, Text] = {}
        for name, ref in self.sources.items():
            entries = [(key, e) for key, of_key in wanted.items() if key not in found for e in of_key if e.source == name]
            source = self.source_of(name, ref) if entries else None
            if source is None:
                continue
            inside = {archive_of(e.path) for _, e in entries if archive_of(e.path) != e.path}
            files = [Listed(e.path, e.size_bytes, e.mtime_ns) for _, e in entries if archive_of(e.path) == e.path]
            files += [Listed(path, -1, 0) for path in sorted(inside)]
            # Whether a space looked at it as an image, or a reader of formats at all, shows in the hash.
            listing, seen = Listing(tuple(files), {}), frozenset(file.path for file in files if may_be_seen(file.path))
            tasks = self.staging.tasks(source, files, MAX_FILE_BYTES, Attached(listing, images=seen, formats=ALL))
            if plain := [file for file in files if format_of(file.path) is not None and file.path not in inside]:
                tasks += self.staging.tasks(source, plain, MAX_FILE_BYTES, Attached(listing))
            try:
                for staged in self.workers().run("stage", tasks):
                    self.reread += sorted([*staged.hashes, *staged.skipped])
                    keys = sorted_hashes([key for key in staged.hashes.values() if key in wanted])
                    if staged.pack and len(keys):
                        documents = read_pack(self.store, staged.pack, keys)
                        for row in range(len(documents)):
                            key = documents.hashes[row].tobytes()
                            found[key] = (key, bytes(documents.content(row)), documents.kind_names[documents.kinds[row]])
            except (SourceError, NotFound) as error:  # what cannot be read is lost, and said to be
                logger.warning("source=%s event=not_read reason=%s", name, error)
        return found


def columns(store: Store, ref: SegmentRef) -> Documents:
    """What a segment's `docs` says, with an empty text. Raises NotFound, Corrupt."""
    file = ref.files["docs"]
    arrays, metadata = array_files.parse(check(store.read(file.name), file, store), file.name)
    return Documents(text=np.zeros(0, np.uint8), kind_names=tuple(json.loads(metadata["kind_names"])), **arrays)


def piece(store: Store, ref: SegmentRef, documents: Documents, row: int) -> Text:
    """One document of a segment whose text may be damaged: only its own bytes are read. Raises NotFound, Corrupt."""
    start, end = int(documents.starts[row]), int(documents.ends[row])
    name = ref.files["text"].name
    text = store.read(name, start, end) if end > start else b""
    if len(text) != end - start:
        raise store.corrupt(name, f"ends before byte {end}")
    return documents.hashes[row].tobytes(), text, documents.kind_names[documents.kinds[row]]
