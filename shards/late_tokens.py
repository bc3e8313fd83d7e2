"""How vectors of tokens are stored: 16 bit floats, or a byte per component with a scale for each token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shards.types import Array

Storage = Literal["fp16", "int8"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The token vectors of many passages, one after the other.

    codes: (t, dim) float16, or int8 that stand for codes x scale. scales: (t,) float32; empty with float16.
    counts: (u,) int64, tokens of each passage, at least one
    """

    codes: Array
    scales: Array
    counts: Array

    @property
    def offsets(self) -> Array:
        """Passage i has the tokens offsets[i] : offsets[i + 1]: (u + 1,) int64."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    @classmethod
    def of(cls, passages: Sequence[Array], storage: Storage) -> "Tokens":
        """Of each passage's vectors, (n, dim) float32, components at most 1 in size."""
        counts = np.array([len(vectors) for vectors in passages], np.int64)
        together = np.concatenate(passages) if len(passages) else np.zeros((0, 0), np.float32)
        if storage == "fp16":
            return cls(together.astype(np.float16), np.zeros(0, np.float32), counts)
        scales = np.abs(together).max(axis=1, initial=0.0).astype(np.float32) / np.float32(127)
        codes = np.rint(together / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
        return cls(codes, scales, counts)

    @classmethod
    def joined(cls, parts: Sequence["Tokens"]) -> "Tokens":
        """Several as one, in their order; there is at least one."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("codes", "scales", "counts")))

    # Kept encodings are rows of one width, any number for a document: so a row is one token's bytes, and its first byte tells where a
    # passage begins.

    def rows(self) -> Array:
        """One row of bytes for each token, (t, 1 + width) uint8: 1 where it is the first of its passage, scale if any, codes."""
        first = np.zeros((len(self.codes), 1), np.uint8)
        first[self.offsets[:-1]] = 1
        scales = np.ascontiguousarray(self.scales)[:, None].view(np.uint8) if len(self.scales) else np.zeros((len(first), 0), np.uint8)
        return np.concatenate([first, scales, np.ascontiguousarray(self.codes).view(np.uint8)], axis=1)

    @staticmethod
    def n_passages(rows: Array) -> int:
        """Of how many passages `rows` is."""
        return int(np.count_nonzero(rows[:, 0]))

    @classmethod
    def of_rows(cls, rows: Array, storage: Storage) -> "Tokens":
        """What `rows` gave."""
        firsts = np.flatnonzero(rows[:, 0])
        counts = np.diff(firsts, append=len(rows)).astype(np.int64)
        if storage == "fp16":
            return cls(np.ascontiguousarray(rows[:, 1:]).view(np.float16), np.zeros(0, np.float32), counts)
        scales = np.ascontiguousarray(rows[:, 1:5]).view(np.float32)[:, 0]
        return cls(np.ascontiguousarray(rows[:, 5:]).view(np.int8), scales, counts)

    def dequantised(self) -> Array:
        """The vectors that are stored: (t, dim) float32."""
        values = self.codes.astype(np.float32)
        return values * self.scales[:, None] if len(self.scales) else values
