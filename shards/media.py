"""What is kept of documents beside their text: the image that one was made from, for layers that look at it.

They lie in the store once, by content hash, where callers' own vectors lie (`shards/given.py`), and not in segments: a merge would
write every image anew, up to seven times on its way, a host would fetch them with the segment, and every file role would have to
be known to tombstones, resharding and repair. Here what knows of kept encodings (gc, erase, backup, verify) knows of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shards.encodings import PackedEncodings
from shards.given import MEDIA
from shards.identity import find_rows
from shards.store import Store
from shards.types import Array, Arrays

FOLDER = f"encodings/{MEDIA}"


@dataclass(frozen=True, slots=True)
class KeptMedia:
    """The media of a corpus's documents. store: the corpus's folder. Nothing is read before it is asked for."""

    store: Store

    def get(self, hashes: Array) -> dict[bytes, bytes]:
        """Those that are kept, by content hash, as files. hashes: (n, 20) uint8. Raises Corrupt, StoreError."""
        return {key: values.tobytes() for key, values in PackedEncodings(self.store, FOLDER).get(hashes).items()}

    def one(self, key: bytes) -> bytes | None:
        """That of one document, None where nothing is kept of it."""
        return self.get(np.frombuffer(key, np.uint8).reshape(1, -1)).get(key)

    def lacking(self, hashes: Array) -> Array:
        """Those that nothing is kept of: (m, 20) uint8, in order."""
        return hashes[PackedEncodings(self.store, FOLDER).lacking(hashes)] if len(hashes) else hashes

    def put(self, media: Mapping[bytes, bytes]) -> None:
        """Keep those that are not kept yet; durable on return."""
        if media:
            keys = np.frombuffer(b"".join(media), np.uint8).reshape(-1, 20)
            new = [key.tobytes() for key in self.lacking(keys)]
            PackedEncodings(self.store, FOLDER).put({key: np.frombuffer(media[key], np.uint8) for key in new})


def pack_media(hashes: Array, media: Mapping[bytes, bytes]) -> Arrays:
    """What a staging file and an entry of the log keep of their documents' media. hashes: (n, 20), in the order of the pack."""
    pieces = [media.get(key.tobytes(), b"") for key in hashes]
    offsets = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    return {"media": np.frombuffer(b"".join(pieces), np.uint8), "media_offsets": offsets}


def unpack_media(arrays: Mapping[str, Array]) -> dict[bytes, bytes]:
    """The media in the arrays of a pack, by content hash; none where it has none."""
    if "media" not in arrays:
        return {}
    data, offsets = arrays["media"], arrays["media_offsets"]
    rows = np.flatnonzero(np.diff(offsets)).tolist()
    return {arrays["hashes"][row].tobytes(): data[offsets[row] : offsets[row + 1]].tobytes() for row in rows}


def read_media(store: Store, name: str, wanted: Array) -> dict[bytes, bytes]:
    """The media in a staging file or entry of the log, of documents whose hash is among `wanted`, (m, 20). Raises NotFound, Corrupt.

    Reads what lies between the first and the last of them.
    """
    from shards import arrays as array_files

    places, _ = array_files.layout(store.read(name, 0, _HEAD_BYTES), f"File {name!r} in store {store.url}")
    if "media" not in places:
        return {}
    columns = {}
    for key in ("hashes", "media_offsets"):
        place = places[key]
        data = store.read(name, place.start, place.end)
        if len(data) != place.end - place.start:
            raise store.corrupt(name, "is cut short")
        columns[key] = np.frombuffer(data, place.dtype).reshape(place.shape)
    hashes, offsets = columns["hashes"], columns["media_offsets"]
    rows = find_rows(hashes, wanted)
    rows = np.sort(rows[rows >= 0])
    rows = rows[offsets[rows + 1] > offsets[rows]]
    if not len(rows):
        return {}
    first, last, at = int(offsets[rows[0]]), int(offsets[rows[-1] + 1]), places["media"].start
    data = store.read(name, at + first, at + last)
    if len(data) != last - first:
        raise store.corrupt(name, "is cut short")
    return {hashes[row].tobytes(): data[offsets[row] - first : offsets[row + 1] - first] for row in rows.tolist()}


_HEAD_BYTES = 1 << 15  # holds the header of any pack
