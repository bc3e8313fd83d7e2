"""The log of pushed documents: what was acknowledged, in one order, until a generation holds it.

An entry is one file, `log/<number>.safetensors`, made with the store's exclusive create, so that all who push to a corpus agree on
one order without talking to one another. It holds texts as they will be indexed, which makes it a staging pack as well
(`shards.segment.read_pack`): whoever applies it reads the documents from where they were acknowledged.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shards import arrays as array_files
from shards.documents import Documents
from shards.errors import BadSpec, Corrupt, NotFound, StoreError
from shards.manifest import Root, corpus_store, latest_generation, read_root
from shards.media import pack_media, unpack_media
from shards.store import Store
from shards.types import Array, Arrays

logger = logging.getLogger(__name__)

SOURCE, URL = "pushed", "push:"  # the source that pushed documents are entries of, in every corpus
KEPT_S = 86_400.0  # no entry is collected before it is so old, see `collectable`

LOG_FORMAT = 1
_VECTORS = "vectors/"
_HEAD_BYTES = 4096


_told = threading.Lock()
_last_ns = 0


def now_ns() -> int:
    """The time, nanoseconds since 1970, later than whatever this told before: rows that nothing else orders stand as they were pushed."""
    global _last_ns
    with _told:
        _last_ns = max(time.time_ns(), _last_ns + 1)
        return _last_ns


@dataclass(frozen=True, slots=True)
class Operation:
    """One document put at a path, or a path that is emptied (hash b"").

    hash: of the document, which identifies `text`, its rendition. size_bytes: of what was pushed; mtime_ns: when it was.
    metadata: JSON values only. vectors: space name -> (n, dim) float32, the caller's own. media: what is kept of it beside its text, of
    an image the file (`shards/media.py`). id: given by the caller, so that a request that is repeated is not performed twice; "" for none.
    """

    path: str
    hash: bytes = b""
    text: bytes = field(default=b"", repr=False)
    kind: str = ""
    size_bytes: int = 0
    mtime_ns: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vectors: Mapping[str, Array] = field(default_factory=dict, compare=False)
    media: bytes = field(default=b"", repr=False)
    id: str = ""

    @property
    def cost_bytes(self) -> int:
        """About what it takes in the log."""
        own = sum(v.nbytes for v in self.vectors.values()) if self.vectors else 0
        return 200 + len(self.path) + len(self.text) + len(self.media) + own

    def digest(self) -> str:
        """What it does, whenever it was asked for: 16 hex digits."""
        digest = hashlib.sha256(_dumps([self.path, self.hash.hex(), dict(self.metadata)]).encode())
        for space, array in sorted(self.vectors.items()):
            digest.update(f"\0{space}\0{array.shape}\0".encode() + np.ascontiguousarray(array, np.float32).tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Operations in their order. created: seconds since 1970. layers: specs of the spaces that the corpus is to have if it is new."""

    number: int
    operations: tuple[Operation, ...]
    created: float
    layers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its file, also as a pack of its documents (`shards.segment.read_pack`)."""
        return entry_name(self.number)


def entry_name(number: int) -> str:
    """The file of an entry, in the corpus's store."""
    return f"log/{number:016d}.safetensors"


# --- bytes -------------------------------------------------------------------------------------------------------------------


def dump(operations: Sequence[Operation], created: float, layers: Sequence[str] = ()) -> bytes:
    """An entry as bytes."""
    documents = Documents.pack((o.hash, o.text, o.kind) for o in operations if o.hash)
    records: list[dict[str, Any]] = []
    vectors: dict[str, list[Array]] = {}
    n_rows: dict[str, int] = {}
    for o in operations:
        record: dict[str, Any] = {"path": o.path, "mtime_ns": o.mtime_ns}
        if o.hash:
            record |= {"hash": o.hash.hex(), "size_bytes": o.size_bytes}
        if o.metadata:
            record["metadata"] = dict(o.metadata)
        if o.id:
            record |= {"id": o.id, "digest": o.digest()}
        for space, array in o.vectors.items():
            first = n_rows.get(space, 0)
            n_rows[space] = first + len(array)
            vectors.setdefault(space, []).append(array)
            record.setdefault("vectors", {})[space] = [first, n_rows[space]]
        records.append(record)
    arrays = {name: getattr(documents, name) for name in ("hashes", "starts", "ends", "kinds", "text")}
    arrays["operations"] = np.frombuffer(_dumps(records).encode(), np.uint8)
    if media := {o.hash: o.media for o in operations if o.media}:
        arrays |= pack_media(documents.hashes, media)
    arrays |= {f"{_VECTORS}{space}": np.concatenate(parts).astype(np.float32) for space, parts in vectors.items()}
    metadata = {
        "created": repr(float(created)),
        "kind_names": json.dumps(documents.kind_names),
        "layers": json.dumps(list(layers)),
        "log_format": str(LOG_FORMAT),
    }
    return array_files.dump(arrays, metadata | {"sha256": _checksum(arrays, metadata)})


def _checksum(arrays: Arrays, metadata: Mapping[str, str]) -> str:
    """Over all that an entry says, so that a flipped bit shows in the header as well as in the data."""
    digest = hashlib.sha256(_dumps({key: value for key, value in metadata.items() if key != "sha256"}).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\0{name}\0{array.dtype.str}\0{_dumps(list(array.shape))}\0".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def read(store: Store, number: int) -> LogEntry | None:
    """An entry, compared with its checksum; None where the log has no such entry. Raises Corrupt."""
    name = entry_name(number)
    try:
        data = store.read(name)
    except NotFound:
        return None
    try:
        arrays, metadata = array_files.parse(data, name)
        whole = metadata["sha256"] == _checksum(arrays, metadata)
    except (Corrupt, KeyError, ValueError):
        whole = False
    if not whole:
        raise Corrupt(
            f"File {name!r} in store {store.url} does not have the checksum that it states, so nothing that was pushed after entry "
            f"{number - 1} gets into the index. Restore it from a copy; where there is none, put an empty entry in its place "
            "(`shards.pushlog.take_out`) and push what it held again."
        )
    if metadata["log_format"] != str(LOG_FORMAT):
        raise StoreError(
            f"File {name!r} in store {store.url} has log format {metadata['log_format']}; this build reads {LOG_FORMAT}. Upgrade."
        )
    kinds, hashes = json.loads(metadata["kind_names"]), arrays["hashes"]
    rows = {hashes[row].tobytes(): row for row in range(len(hashes))}
    media = unpack_media(arrays)
    operations = []
    for record in json.loads(arrays["operations"].tobytes()):
        record.pop("digest", None)
        vectors = {space: arrays[_VECTORS + space][a:b] for space, (a, b) in record.pop("vectors", {}).items()}
        key = bytes.fromhex(record.pop("hash", ""))
        text, kind = b"", ""
        if key:
            row = rows[key]
            text = arrays["text"][arrays["starts"][row] : arrays["ends"][row]].tobytes()
            kind = kinds[arrays["kinds"][row]]
        operations.append(Operation(hash=key, text=text, kind=kind, vectors=vectors, media=media.get(key, b""), **record))
    return LogEntry(number, tuple(operations), float(metadata["created"]), tuple(json.loads(metadata["layers"])))


def read_head(store: Store, number: int) -> tuple[list[dict[str, Any]], dict[str, str]] | None:
    """An entry's operations as they stand in it and its metadata, without texts and vectors, unchecked; None where there is none."""
    name = entry_name(number)
    try:
        head = store.read(name, 0, _HEAD_BYTES)
        places, metadata = array_files.layout(head, f"File {name!r} in store {store.url}")
        place = places["operations"]
        data = head[place.start : place.end] if place.end <= len(head) else store.read(name, place.start, place.end)
        return json.loads(data), metadata
    except NotFound:
        return None
    except (KeyError, ValueError) as error:
        raise Corrupt(f"File {name!r} in store {store.url} is no readable entry of the log ({error}). Restore it from a copy.") from None


_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


# --- the log as a whole ------------------------------------------------------------------------------------------------------


def last(store: Store, applied: int) -> int:
    """The number of the newest entry; `applied` where there is none after it. applied: of the newest generation.

    Asks for a few names instead of listing them: entries above `applied` are never collected, so they follow without a gap.
    """
    step = 1
    known = applied
    while store.exists(entry_name(known + step)):
        known, step = known + step, 2 * step
    free = known + step  # in between lies the end
    while free - known > 1:
        middle = (known + free) // 2
        if store.exists(entry_name(middle)):
            known = middle
        else:
            free = middle
    return known


def applied_of(root: Root | None) -> int:
    """The number of the last entry that a generation holds."""
    source = root.sources.get(SOURCE) if root else None
    return source.applied if source else 0


def corpora_behind(root_store: Store) -> list[str]:
    """The corpora below a store whose log has entries that their newest generation does not hold, new corpora among them."""
    found = []
    for name in root_store.folders():
        try:
            number = latest_generation(root_store, name)
            root = None if number is None else read_root(root_store, name, number)
            if corpus_store(root_store, name).exists(entry_name(applied_of(root) + 1)):
                found.append(name)
        except BadSpec:  # a folder that is no corpus
            continue
        except StoreError as error:
            logger.warning("corpus=%s event=unreadable reason=%s", name, error)
    return found


def collectable(store: Store, kept: Iterable[Root], now: float) -> list[str]:
    """Entries that may be deleted, ascending. kept: the roots of all generations that stay; now: seconds since 1970.

    Those that every generation that stays holds, and that are a day old. The day is why a writer may trust what it knows of the log's
    end for ten minutes (`shards.journal.SURE_S`): an entry that was free then cannot have been made, applied and collected since, so
    whoever creates it now is the first.
    """
    floor = min((applied_of(root) for root in kept), default=0)
    numbers = [n for name in store.list("log/") if (n := _number(name)) is not None and n <= floor]
    low, high = 0, len(numbers)  # the first that is too young, as entries were made in the order of their numbers
    while low < high:
        middle = (low + high) // 2
        if _created(store, numbers[middle]) <= now - KEPT_S:
            low = middle + 1
        else:
            high = middle
    return [entry_name(n) for n in numbers[:low]]


def _created(store: Store, number: int) -> float:
    head = read_head(store, number)
    return float(head[1].get("created", 0.0)) if head else 0.0


def _number(name: str) -> int | None:
    digits = name.removeprefix("log/").removesuffix(".safetensors")
    return int(digits) if len(digits) == 16 and digits.isdecimal() else None


def erase(store: Store, document: bytes) -> list[str]:
    """Takes a document's text out of the log, with what callers said of it (metadata, vectors). Returns the names of changed entries.

    The one exception to write-once: such an entry is replaced by one that says the same of everything else, and that the path was
    emptied. Who reads meanwhile has the old bytes or the new.
    """
    changed = []
    for number in filter(None, map(_number, store.list("log/"))):
        head = read_head(store, number)
        if head is None or all(record.get("hash") != document.hex() for record in head[0]):
            continue
        entry = read(store, number)
        if entry is not None:
            kept = [Operation(o.path, mtime_ns=o.mtime_ns, id=o.id) if o.hash == document else o for o in entry.operations]
            store.write(entry.name, dump(kept, entry.created, entry.layers))
            changed.append(entry.name)
    return changed


def take_out(store: Store, number: int) -> None:
    """Put an empty entry in the place of a damaged one, so that what follows it is applied. What it held is lost."""
    store.write(entry_name(number), dump((), 0.0))
