"""Which passages can be among the best of a large corpus: one vector for all of a passage's tokens, whose product with a question's
comes near the sum of maxima (MUVERA: Dhulipala et al. 2024, arXiv 2405.19504).

A score of these is a whole number times a scale, so the same bits anywhere; and what counts as a candidate is decided by a cut that
the coordinator derives from a sample of the corpus, never by the best of a segment. So candidates do not depend on placement.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shards.late_tokens import Tokens
from shards.types import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SAMPLE = 1024  # passages of one segment that statistics hold, at most
_CANDIDATES = 2000  # of an unfiltered search, about
_FILTERED = 4  # times as many under a filter, which lets only some of them through
_TAIL = 0.1  # share of the sample from which the tail is drawn on


@dataclass(frozen=True, slots=True)
class EncodingSpec:
    """repetitions: partitions of the space; planes: that cut each into 2^planes cells; cell_dim: numbers for each cell; seed: of all that
    is drawn."""

    repetitions: int
    planes: int
    cell_dim: int
    seed: int

    @property
    def dim(self) -> int:
        return self.repetitions * self.cell_dim << self.planes


def mixed(values: Array) -> Array:
    """Numbers that look random, each a function of its own input: (n,) uint64 (splitmix64's finaliser: Steele, Lea & Flood 2014)."""
    with np.errstate(over="ignore"):
        values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


@lru_cache(maxsize=8)
def _matrices(spec: EncodingSpec, dim: int) -> tuple[Array, Array]:
    """The planes' normals (dim, repetitions x planes) and the projections (dim, repetitions x cell_dim), float32, entries +-1 (scaled):
    drawn from a hash, so that they are the same with any version of numpy."""
    widths = (spec.repetitions * spec.planes, spec.repetitions * spec.cell_dim)
    with np.errstate(over="ignore"):
        counter = np.arange(1, dim * sum(widths) + 1, dtype=np.uint64) * _GOLDEN + np.uint64(spec.seed) * np.uint64(0xD1B54A32D192ED03)
    drawn = np.where(mixed(counter) >> np.uint64(63), np.float32(1), np.float32(-1)).reshape(dim, sum(widths))
    # By 2^-k and not 1 / sqrt(cell_dim): one factor for all, and a power of two rounds nothing.
    return np.ascontiguousarray(drawn[:, : widths[0]]), np.ascontiguousarray(drawn[:, widths[0] :] * np.float32(2.0**-6))


def _encodings(tokens: Tokens, spec: EncodingSpec, is_query: bool) -> Array:
    """(u, spec.dim) float32."""
    from shards.late_kernels import encodings, products

    planes, projections = _matrices(spec, tokens.codes.shape[1])
    codes = kernel_codes(tokens.codes)
    signs = np.empty((len(codes), planes.shape[1]), np.float32)
    projected = np.empty((len(codes), projections.shape[1]), np.float32)
    products(codes, tokens.scales, planes, signs)
    products(codes, tokens.scales, projections, projected)
    out = np.empty((len(tokens.counts), spec.dim), np.float32)
    encodings(signs, projected, tokens.offsets, spec.planes, out, is_query)
    return out


def kernel_codes(codes: Array) -> Array:
    """What to hand to a kernel: float16 as its bits, for which compiled code has no type."""
    return codes.view(np.uint16) if codes.dtype == np.float16 else codes


def of_passages(tokens: Tokens, spec: EncodingSpec) -> tuple[Array, Array]:
    """One byte per component, (u, spec.dim) int8, and each passage's scale, (u,) float32."""
    values = _encodings(tokens, spec, is_query=False)
    scales = np.abs(values).max(axis=1, initial=0.0) / np.float32(127)
    return np.rint(values / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8), scales.astype(np.float32)


def of_question(vectors: Array, spec: EncodingSpec) -> Array:
    """A question's, as whole numbers of at most 255: (spec.dim,) int16. vectors: (n, dim) float16."""
    tokens = Tokens(np.ascontiguousarray(vectors), np.zeros(0, np.float32), np.array([len(vectors)], np.int64))
    values = _encodings(tokens, spec, is_query=True)[0].astype(np.float64)
    most = np.abs(values).max(initial=0.0)
    return np.rint(values * (255.0 / most if most > 0 else 0.0)).astype(np.int16)


def scores(codes: Array, scales: Array, units: Array, question: Array) -> Array:
    """Of units, (n,) float64: in a unit that depends on the question, so they compare within it."""
    from shards.late_kernels import code_products

    sums = np.empty(len(units), np.int64)
    code_products(codes, units, question, sums)
    return sums * scales[units].astype(np.float64)


# --- samples that depend on content alone ------------------------------------------------------------------------------------------


def unit_keys(hashes: Array, row_units: Array) -> Array:
    """A number for each unit that looks random and depends on its document and its place in it alone: (u,) uint64.

    From bytes of the content hash that say nothing of its bucket.
    """
    counts = np.diff(row_units)
    prefix = np.ascontiguousarray(hashes[:, 8:16]).view(">u8").reshape(-1).astype(np.uint64)
    ordinal = (np.arange(row_units[-1]) - np.repeat(row_units[:-1], counts)).astype(np.uint64)
    with np.errstate(over="ignore"):
        return mixed(np.repeat(prefix, counts) + (ordinal + np.uint64(1)) * _GOLDEN)


def level(n: int, wanted: int) -> int:
    """The least j such that a share of 2^-j of n units is about `wanted` at most. A power of two, so that samples nest and change little
    when the corpus does."""
    return max(int(np.ceil(np.log2(max(n, 1) / wanted))), 0)


def in_sample(keys: Array, level: int) -> Array:
    """Which units belong to the share of 2^-level: (u,) bool."""
    return keys >> np.uint64(64 - level) == 0 if level else np.ones(len(keys), bool)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Encodings of about 256 to 512 of a corpus's passages. codes: (m, dim) int8; scales: (m,) float32.

    is_complete: whether every segment could tell all that belong to it. One more than half dead, which merging rewrites, may not.
    """

    codes: Array
    scales: Array
    is_complete: bool

    @staticmethod
    def stated(keys: Array, codes: Array, scales: Array, n_units: int, kept: Array | None = None) -> dict[str, Array]:
        """A segment's part, for its statistics: of its sampled units, or of those that are kept, (u,) bool."""
        own = level(n_units, _SAMPLE)
        chosen = np.flatnonzero(in_sample(keys, own) & (True if kept is None else kept))
        return {
            "sample_keys": keys[chosen],
            "sample_codes": codes[chosen],
            "sample_scales": scales[chosen],
            "sample_level": np.array([own], np.int64),
        }

    @classmethod
    def collected(cls, parts: list[tuple[int, dict[str, Array]]], n_units: int) -> "Sample":
        """Of all segments (+1) and what died in them (-1). n_units: of the corpus."""
        wanted = level(n_units, _SAMPLE) + 1  # one more than a segment of that size keeps: so a segment may be half dead
        parts = [(sign, part) for sign, part in parts if len(part["sample_keys"])]
        is_complete = all(int(part["sample_level"][0]) <= wanted for _, part in parts)
        if not parts:
            return cls(np.zeros((0, 0), np.int8), np.zeros(0, np.float32), is_complete)
        chosen = [(sign, part, np.flatnonzero(in_sample(part["sample_keys"], wanted))) for sign, part in parts]
        keys = np.concatenate([part["sample_keys"][at] for _, part, at in chosen])
        signs = np.concatenate([np.full(len(at), sign) for sign, _, at in chosen])
        codes = np.concatenate([part["sample_codes"][at] for _, part, at in chosen])
        scales = np.concatenate([part["sample_scales"][at] for _, part, at in chosen])
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        alive = np.bincount(inverse, weights=signs, minlength=len(first)) > 0
        return cls(codes[first[alive]], scales[first[alive]], is_complete)

    def cuts(self, question: Array, n_units: int) -> tuple[float, float]:
        """Scores that about 2,000 of the corpus's passages reach, and 8,000 (for searches with a filter); -inf for all of them.

        Above its tenth best tenth the sample's scores are taken to fall off exponentially (the tail of most distributions that are
        sums: Pickands 1975), as 500 scores do not show what one passage in a thousand has. Where they fall off more slowly, there
        are more candidates.
        """
        if not self.is_complete or not len(self.codes):
            return -np.inf, -np.inf
        found = np.sort(scores(self.codes, self.scales, np.arange(len(self.codes)), question))
        knee = found[int((1.0 - _TAIL) * len(found))]
        excess = float((found[found >= knee] - knee).mean())

        def reached_by(wanted: float) -> float:
            share = wanted / n_units
            if share >= 1.0:
                return -np.inf
            if share >= _TAIL:
                return float(found[int((1.0 - share) * len(found))])
            return float(knee + excess * np.log(_TAIL / share))

        return reached_by(_CANDIDATES), reached_by(_CANDIDATES * _FILTERED)
