"""What a document is: the hash of its content, and the slice of hash space it falls in."""

import hashlib

import numpy as np
from numpy.typing import NDArray

HASH_BYTES = 20  # 160 bits of SHA-256: no accidental collision below 10^20 documents, 40 hex digits as in git
N_BUCKETS = 4096  # fixed for ever: a shard is a set of buckets, so shard counts may change without rehashing


def content_hash(data: bytes | memoryview) -> bytes:
    """The identity of a document: the first 20 bytes of the SHA-256 of its content."""
    return hashlib.sha256(data).digest()[:HASH_BYTES]


def bucket_of(document: bytes) -> int:
    """The bucket (0 to 4095) of a content hash: its first 12 bits, so hash order is bucket order."""
    return document[0] << 4 | document[1] >> 4


def buckets_of(hashes: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Buckets of many hashes; hashes: (n, 20) uint8. Returns (n,) int32."""
    return hashes[:, 0].astype(np.int32) << 4 | hashes[:, 1] >> 4


def shard_ranges(n_shards: int) -> list[tuple[int, int]]:
    """The bucket ranges [low, high) of `n_shards` shards: contiguous, as even as possible.

    Contiguous because a segment's documents are sorted by hash: a moved range is then one reference (segment, range).
    """
    if not 1 <= n_shards <= N_BUCKETS:
        raise ValueError(f"n_shards is {n_shards}; expected 1 to {N_BUCKETS}")
    edges = [i * N_BUCKETS // n_shards for i in range(n_shards + 1)]
    return list(zip(edges[:-1], edges[1:], strict=True))


def as_keys(hashes: NDArray[np.uint8]) -> NDArray[np.void]:
    """(n, 20) uint8 as n opaque 20-byte keys that sort and search bytewise, without a copy."""
    return np.ascontiguousarray(hashes).view(np.dtype((np.void, HASH_BYTES))).reshape(-1)


def prefixes(hashes: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The first 8 bytes of each hash as a big-endian number, so that numeric order is hash order: (n,) uint64."""
    return np.ascontiguousarray(hashes[:, :8]).view(">u8").reshape(-1).astype(np.uint64)


def find_rows(
    hashes: NDArray[np.uint8], wanted: NDArray[np.uint8], have: NDArray[np.uint64] | None = None
) -> NDArray[np.int64]:
    """Where each wanted hash stands among sorted hashes, or -1. hashes: (n, 20) ascending; wanted: (m, 20). Returns (m,) int64.

    have: `prefixes(hashes)`, when the caller keeps it.
    """
    rows = np.full(len(wanted), -1, np.int64)
    if not len(hashes) or not len(wanted):
        return rows
    have, want = prefixes(hashes) if have is None else have, prefixes(wanted)
    at = np.searchsorted(have, want)
    open_ = np.arange(len(wanted))
    while len(open_):  # more than one round only for hashes that share their first 8 bytes
        open_ = open_[at[open_] < len(have)]
        open_ = open_[have[at[open_]] == want[open_]]
        same = (hashes[at[open_]] == wanted[open_]).all(axis=1)
        rows[open_[same]] = at[open_[same]]
        open_ = open_[~same]
        at[open_] += 1
    return rows


def find_row(hashes: NDArray[np.uint8], wanted: bytes, have: NDArray[np.uint64]) -> int:
    """`find_rows` for one hash, without the cost of arrays of one: the row, or -1. have: `prefixes(hashes)`."""
    prefix = np.uint64(int.from_bytes(wanted[:8], "big"))
    row = int(have.searchsorted(prefix))
    while row < len(have) and have[row] == prefix:
        if hashes[row].tobytes() == wanted:
            return row
        row += 1
    return -1
