"""Vectors that callers bring along with a document, under names that spaces of layer `vectors` take.

They are part of what the document is: its hash covers them, so another vector makes another document, and old generations keep
theirs. Between reading and building they travel in the pack of their documents; then they lie among the kept encodings.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.errors import BadQuery
from shards.identity import content_hash
from shards.types import Array

if TYPE_CHECKING:
    from shards.layers.contract import Layer
    from shards.manifest import Root

Given = Mapping[str, Array]  # name -> (n_vectors, dim) float32, of one document

GIVEN = "given-"  # what folders of kept encodings begin with that hold them
MEDIA = "media"  # the folder of kept encodings that holds what documents were made from (`shards/media.py`)
WRITTEN = "written-"  # what folders of kept encodings begin with that hold what a model wrote about documents (`Layer.kept`)
# Folders that begin so hold parts of documents of any space, which cannot be made again from their text, or not for the same money.
OF_DOCUMENTS = (GIVEN, MEDIA, WRITTEN)
MAX_VECTORS = 1_024  # of one document in one space
_VERSION = 1  # of what a hash covers


def dims(layers: "Iterable[Layer]") -> dict[str, int]:
    """The names that spaces take vectors under, and how many numbers each has."""
    return dict(taken for layer in layers if (taken := layer.given) is not None)


def dims_of(root: "Root") -> dict[str, int]:
    """The same of a generation's spaces."""
    from shards.generation import spec_of
    from shards.layers import create
    from shards.layers.contract import Resources

    return dims(create(spec_of(ref), Resources()) for ref in root.spaces)


def identity(text_hash: bytes, vectors: Given) -> bytes:
    """The document's hash: that of its text where no vectors are given, else one that covers both. 20 bytes."""
    if not vectors:
        return text_hash
    parts = [f"vectors\0{_VERSION}\0".encode(), text_hash]
    for name, values in sorted(vectors.items()):
        rows = np.ascontiguousarray(values, "<f4")
        parts += [struct.pack("<QQQ", len(name.encode()), *rows.shape), name.encode(), hashlib.sha256(rows.tobytes()).digest()]
    return content_hash(b"".join(parts))


def parse(value: Any, dims: Mapping[str, int]) -> dict[str, Array]:
    """Decoded JSON `{"name": [numbers]}` or `{"name": [[numbers], …]}` as vectors. Raises BadQuery, saying what was found."""
    if not isinstance(value, Mapping):
        raise BadQuery("vectors must be an object of names and vectors.", at="vectors")
    found = {}
    for name, given in value.items():
        if name not in dims:
            choice = ", ".join(sorted(dims)) or "none, it has no layer that takes them"
            raise BadQuery(f"vectors: this corpus takes no vectors named {name!r}. It takes: {choice}.", at="vectors")
        try:
            found[name] = rows_of(given, dims[name])
        except ValueError as error:
            raise BadQuery(f"vectors: {name!r}: {error}.", at="vectors") from None
    return found


def rows_of(value: Any, dim: int) -> Array:
    """One vector or a list of them as (n, dim) float32. Raises ValueError that says in one phrase what is wrong."""
    if isinstance(value, np.ndarray):
        rows = value
    else:
        several = isinstance(value, Sequence) and len(value) > 0 and isinstance(value[0], Sequence) and not isinstance(value[0], str)
        items = value if several else [value]
        for item in items:
            if not isinstance(item, Sequence) or isinstance(item, str) or any(type(x) not in (int, float) for x in item):
                raise ValueError("expected a list of numbers, or a list of such lists")
            if len(item) != dim:
                raise ValueError(f"a vector has {len(item):,} numbers, expected {dim:,}")
        try:
            rows = np.array(items, np.float64)
        except OverflowError:
            raise ValueError("a number is not finite in 32 bits") from None
    rows = np.atleast_2d(rows)
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise ValueError(f"a vector has {rows.shape[-1]:,} numbers, expected {dim:,}")
    if len(rows) > MAX_VECTORS:
        raise ValueError(f"{len(rows):,} vectors, at most {MAX_VECTORS:,} are allowed")
    with np.errstate(over="ignore"):
        rows = rows.astype(np.float32)
    if not np.isfinite(rows).all():
        raise ValueError("a number is not finite in 32 bits")
    if not rows.any(axis=1).all():
        raise ValueError("a vector has no direction, since all its numbers are 0")
    return rows


def folder(layer: "Layer", space_id: str) -> str:
    """Where a space's kept encodings lie in the corpus's store.

    Those that callers gave lie under their name, whatever else the space's id says: another metric or scope must not lose what cannot
    be computed again. So do texts that a model wrote: they are paid for.
    """
    if layer.kept is not None:
        return f"encodings/{WRITTEN}{layer.kept}"
    if layer.given is None:
        return f"encodings/{space_id}"
    name, dim = layer.given
    return f"encodings/{GIVEN}{hashlib.sha256(name.encode()).hexdigest()[:16]}-{dim}"


def pack_arrays(hashes: Array, given: Mapping[bytes, Given]) -> tuple[dict[str, Array], list[str]]:
    """What a pack keeps of its documents' vectors: arrays, and the names they are numbered by. hashes: (n, 20), of the pack."""
    keys = [key.tobytes() for key in hashes]
    names = sorted({name for key in keys for name in given.get(key, {})})
    arrays: dict[str, Array] = {}
    for i, name in enumerate(names):
        pieces = [given.get(key, {}).get(name) for key in keys]
        offsets = np.zeros(len(keys) + 1, np.int64)
        np.cumsum([0 if piece is None else len(piece) for piece in pieces], out=offsets[1:])
        arrays[f"vectors/{i}"] = np.concatenate([piece for piece in pieces if piece is not None]).astype(np.float32)
        arrays[f"vector_offsets/{i}"] = offsets
    return arrays, names


def unpack_arrays(hashes: Array, arrays: Mapping[str, Array], names: Sequence[str]) -> dict[str, dict[bytes, Array]]:
    """By name and document: the vectors of a pack."""
    found: dict[str, dict[bytes, Array]] = {}
    for i, name in enumerate(names):
        values, offsets = arrays[f"vectors/{i}"], arrays[f"vector_offsets/{i}"]
        rows = np.flatnonzero(np.diff(offsets)).tolist()
        found[name] = {hashes[row].tobytes(): values[offsets[row] : offsets[row + 1]] for row in rows}
    return found
