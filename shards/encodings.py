"""Encodings kept by content in a store, so that moving, renaming or resharding a document encodes nothing.

A pack is a safetensors file named by its own hash: `hashes` (n, 20) uint8 ascending, `offsets` (n + 1,) int64, and `values`,
rows offsets[i] : offsets[i + 1] of which belong to hashes[i]. One `put` writes one pack; several processes may at once.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shards import arrays as array_files
from shards.errors import Corrupt, NotFound
from shards.identity import find_rows, prefixes
from shards.store import Store
from shards.types import Array

if TYPE_CHECKING:
    from shards.endpoint_settings import Usage

logger = logging.getLogger(__name__)

_GAP_BYTES = 1 << 16  # nearer pieces of a remote pack are read in one request: 64 KiB take less time than a round trip
_READ_BYTES = 64 << 20  # most in one request
_HEAD_BYTES = 4096  # holds the header of a pack, which takes some 250
_PACK_BYTES = 128 << 20  # compaction makes no larger packs


@dataclass(frozen=True, slots=True)
class _Pack:
    """What is known of a pack without its values."""

    name: str
    hashes: Array
    prefixes: Array
    offsets: Array
    place: array_files.Place

    @property
    def size(self) -> int:
        return self.place.end - self.place.start

    @property
    def row_bytes(self) -> int:
        return self.place.dtype.itemsize * int(np.prod(self.place.shape[1:]))


# Packs never change, so what was read of one is good for the life of the process: store URL and name -> pack.
_opened: dict[tuple[str, str], _Pack] = {}
_MAX_OPENED = 4096


class PackedEncodings:
    """The `Encodings` (`shards.layers.contract`) of one space. prefix: the space's folder in the store."""

    def __init__(self, store: Store, prefix: str):
        self._store, self._prefix = store, prefix.rstrip("/")

    def get(self, hashes: Array) -> dict[bytes, Array]:
        """Those known, by content hash. Reads the hashes of packs that it has not met, then only the rows wanted."""
        try:
            return self._get(hashes)
        except NotFound:  # a pack was compacted away since it was listed; what it held is in another
            return self._get(hashes)

    def lacking(self, hashes: Array) -> Array:
        """Which of these documents nothing is kept of: (n,) bool. Reads hashes, never values."""
        try:
            packs = self._packs()
        except NotFound:  # as above
            packs = self._packs()
        lacking = np.ones(len(hashes), bool)
        for pack in packs:
            lacking &= find_rows(pack.hashes, hashes, pack.prefixes) < 0
        return lacking

    def put(self, encodings: Mapping[bytes, Array]) -> None:
        """Keep new ones, in one pack, durable on return. All have the same dtype and row shape."""
        if encodings:
            self._write(encodings)

    def spend(self, usage: "Usage") -> None:
        """Not kept: what a document's encodings cost, its layer keeps with them."""

    def compact(self, max_packs: int = 64) -> int:
        """Where there are more than `max_packs`, join the smallest to half as many; returns how many there are then.

        No pack of more than 128 MiB is made, so more may remain. Safe beside readers and writers: packs are deleted only when
        the one that holds their content is durable, and a reader that misses one looks again.
        """
        packs = self._packs()[::-1]  # smallest first
        if len(packs) <= max_packs:
            return len(packs)
        full: list[_Pack] = []
        while len(packs) > 1 and len(packs) + len(full) > max(max_packs // 2, 1):
            group, size = [packs.pop(0)], 0
            while packs and len(packs) + len(full) >= max(max_packs // 2, 1) and size + packs[0].size <= _PACK_BYTES:
                size += packs[0].size
                group.append(packs.pop(0))
            full.append(self._join(group) if len(group) > 1 else group[0])
        return len(self._packs())

    def retain(self, live: Array, dead_share: float = 0.5, dry_run: bool = False) -> tuple[int, int]:
        """Drop what belongs to no document of `live`, (n, 20) uint8 ascending; returns (packs deleted, bytes freed).

        Packs without any are deleted. Those of which more than `dead_share` is dead are written anew without it, and deleted when
        the new one is durable, so a reader that misses one looks again.
        """
        n_packs = n_bytes = 0
        alive = prefixes(live)
        for name in self._names():
            try:
                pack = self._open(name)
                kept = np.flatnonzero(find_rows(live, pack.hashes, alive) >= 0)
                if len(kept) > len(pack.hashes) * (1 - dead_share) or len(kept) == len(pack.hashes) > 0:
                    continue
                n_bytes += self._store.size(name)
                n_packs += 1
                if len(kept):
                    n_bytes -= int((pack.offsets[kept + 1] - pack.offsets[kept]).sum()) * pack.row_bytes
                if dry_run:
                    continue
                if len(kept):
                    self._write({pack.hashes[row].tobytes(): values for row, values in self._values(pack, kept)})
                self._store.delete(name)
            except NotFound:  # joined with others meanwhile
                continue
            except Corrupt as error:
                logger.warning("event=encodings_unreadable reason=%s", error)
        return n_packs, n_bytes

    def forget(self, dead: Array) -> int:
        """Write every pack anew that holds one of these documents, (n, 20) uint8 ascending, without them; returns how many did."""
        n_packs = 0
        for name in self._names():
            pack = self._open(name)
            kept = np.flatnonzero(find_rows(dead, pack.hashes) < 0)
            if len(kept) == len(pack.hashes):
                continue
            n_packs += 1
            if len(kept):
                self._write({pack.hashes[row].tobytes(): values for row, values in self._values(pack, kept)})
            self._store.delete(name)
        return n_packs

    def _names(self) -> list[str]:
        return [name for name in self._store.list(f"{self._prefix}/") if name.endswith(".safetensors")]

    def _get(self, hashes: Array) -> dict[bytes, Array]:
        found: dict[bytes, Array] = {}
        open_ = np.arange(len(hashes))
        for pack in self._packs():
            rows = find_rows(pack.hashes, hashes[open_], pack.prefixes)
            for row, values in self._values(pack, np.unique(rows[rows >= 0])):
                found[pack.hashes[row].tobytes()] = values
            open_ = open_[rows < 0]
            if not len(open_):
                break
        return found

    def _packs(self) -> list[_Pack]:
        """All packs of now, largest first: most of what is wanted lies there."""
        return sorted((self._open(name) for name in self._names()), key=lambda pack: (-pack.size, pack.name))

    def _open(self, name: str) -> _Pack:
        if (known := _opened.get((self._store.url, name))) is not None:
            return known
        places, _ = array_files.layout(self._store.read(name, 0, _HEAD_BYTES), f"Pack {name!r} in store {self._store.url}")
        if set(places) != {"hashes", "offsets", "values"}:
            raise self._store.corrupt(name, f"holds {sorted(places)}, not a pack of encodings")
        columns = [self._store.read(name, places[key].start, places[key].end) for key in ("hashes", "offsets")]
        if [len(column) for column in columns] != [places[key].end - places[key].start for key in ("hashes", "offsets")]:
            raise self._store.corrupt(name, "is cut short")
        hashes = np.frombuffer(columns[0], np.uint8).reshape(-1, 20)
        pack = _Pack(name, hashes, prefixes(hashes), np.frombuffer(columns[1], np.int64), places["values"])
        if len(_opened) >= _MAX_OPENED:
            _opened.clear()
        _opened[self._store.url, name] = pack
        return pack

    def _values(self, pack: _Pack, rows: Array) -> Iterator[tuple[int, Array]]:
        """Yields (row, its values) of the given rows, ascending; rows that lie near one another are read together."""
        begins = pack.place.start + pack.offsets[rows] * pack.row_bytes
        ends = pack.place.start + pack.offsets[rows + 1] * pack.row_bytes
        first = 0
        while first < len(rows):
            last = first
            while (
                last + 1 < len(rows)
                and begins[last + 1] - ends[last] <= _GAP_BYTES
                and ends[last + 1] - begins[first] <= _READ_BYTES
            ):  # fmt: skip
                last += 1
            data = memoryview(self._store.read(pack.name, int(begins[first]), int(ends[last])))
            if len(data) != ends[last] - begins[first]:
                raise self._store.corrupt(pack.name, f"ends before byte {ends[last]}")
            for i in range(first, last + 1):
                piece = data[begins[i] - begins[first] : ends[i] - begins[first]]
                yield int(rows[i]), np.frombuffer(piece, pack.place.dtype).reshape(-1, *pack.place.shape[1:])
            first = last + 1

    def _join(self, packs: list[_Pack]) -> _Pack:
        """One pack with the content of several, in their place."""
        values: dict[bytes, Array] = {}
        for pack in packs:
            for row, piece in self._values(pack, np.arange(len(pack.hashes))):
                values.setdefault(pack.hashes[row].tobytes(), piece)
        joined = self._write(values)
        for pack in packs:
            if pack.name != joined.name:
                self._store.delete(pack.name)
        return joined

    def _write(self, encodings: Mapping[bytes, Array]) -> _Pack:
        order = sorted(encodings)
        values = [np.asarray(encodings[key]) for key in order]
        offsets = np.zeros(len(order) + 1, np.int64)
        np.cumsum([len(v) for v in values], out=offsets[1:])
        hashes = np.frombuffer(b"".join(order), np.uint8).reshape(-1, 20)
        data = array_files.dump({"hashes": hashes, "offsets": offsets, "values": np.concatenate(values)})
        name = f"{self._prefix}/{hashlib.sha256(data).hexdigest()[:32]}.safetensors"
        self._store.write(name, data)
        logger.debug("event=encodings-kept pack=%s documents=%d bytes=%d", name, len(order), len(data))
        return self._open(name)
