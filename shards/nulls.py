"""How surprising a score is: null models of spaces and of fused evidence, built from sums that merge over any parts.

The null of a space is what queries about something score on the units of this corpus: probes (sentences of the corpus,
`shards.probes`) against all live units, each probe's source document left out. It is fitted in two passes over the parts of
a corpus (segments, shards; `scan` of a layer's reader gives canonical scores):

1. `ProbeScan.of` each part, `ProbeScan.merge` all: the moments of the probe's scores, and the score of its own document.
2. `ProbeRank.of` each part given the merged first pass, `ProbeRank.merge` all: histogram of z, rank of the own document.

`fit_space` then makes the small table that turns z into surprise. Formulas: EVIDENCE.md section 9, steps 1, 2, 4 and 8.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shards.probes import N_PROBES
from shards.types import Array, Moments, merge_moments

MIN_UNITS = 30  # below, a table of z would be a table of accidents: surprise comes from the normal tail instead
MIN_SD = 1e-6
MIN_BETA = 0.05  # nats, of fused evidence
TYPICAL_WORDS = 8  # how long a query is held to be that has no words
_DIGITS = 6  # kept of what is learnt of fused evidence
TAIL_P = 1e-3  # above this quantile the table gives way to an exponential
MIN_TAIL = 30  # … or above so many observations, so that a small corpus has a mean excess too
MIN_KNOWN_ITEMS = 8  # with fewer known items nothing was measured, and a space counts as good
N_NEAR = 64  # probes of similar length that a query is compared with: enough to see a p of 1 / 65

# Bins are even in asinh(z): even (1/64) around 0, logarithmic (1.6 %) far out, where a rare word stands 1,000 sd above the
# mean. 0 is the middle of a bin, so that constant scores do not fall to either side by rounding.
_PER_UNIT = 64
_OUTER = 768  # asinh(z) = ±12, |z| = 81,377: beyond, scores count in the outermost bin
_LOWER_EDGES = np.sinh((np.arange(2 * _OUTER + 1) - _OUTER - 0.5) / _PER_UNIT)
_FIXED = 2.0**20  # z is summed as an integer in units of 2^-20: exact, so parts can be added and subtracted in any order


def standardise(scores: Array, moments: Moments | None, sd_floor: float = MIN_SD) -> Array:
    """z of raw scores under this query's own moments; -inf stays -inf (no match), nan stays nan (not scored)."""
    if moments is None or not moments.n:
        return np.where(np.isnan(scores), np.nan, -np.inf)
    return (scores - moments.mean) / max(moments.sd, sd_floor, MIN_SD)


def soft_cap(surprise: Array, cap: float) -> Array:
    """Surprise kept below `cap` without making ties: from cap - 1 on, x nats more count x / (1 + x)."""
    knee = max(cap - 1.0, 0.0)
    excess = np.maximum(surprise - knee, 0.0)  # nan stays nan
    return np.minimum(surprise, knee) + (1.0 - 1.0 / (1.0 + excess))


def evidence_cap(n_units: int, n_probes: int = N_PROBES) -> float:
    """ln(N B) + 2: not much beyond what so many observations can show."""
    return math.log(max(n_units, 1) * max(n_probes, 1)) + 2.0


def normal_surprise(z: Array, n_units: int) -> Array:
    """Surprise without a table, from the normal tail: for a fresh corpus and for one of fewer than 30 units."""
    from scipy.special import log_ndtr  # 20 MB, which an engine that only filters need not have

    return soft_cap(np.where(np.isneginf(z), 0.0, -log_ndtr(-z)), evidence_cap(n_units))


def log_signal_evalue(surprises: Array, n_units: int) -> Array:
    """ln of p x n_units: how many units this good chance alone would give in one space. Conservative, as hits cluster."""
    return math.log(max(n_units, 1)) - surprises


@dataclass(frozen=True, slots=True, eq=False)
class ZHistogram:
    """Counts of z in fixed bins, with the sum of z in each: exact integers, so adding and subtracting parts commute.

    counts: (1537,) int64. sums: (1537,) int64, of z in units of 2^-20.
    """

    counts: Array
    sums: Array

    @classmethod
    def empty(cls) -> "ZHistogram":
        return cls(np.zeros(len(_LOWER_EDGES), np.int64), np.zeros(len(_LOWER_EDGES), np.int64))

    @classmethod
    def of(cls, z: Array) -> "ZHistogram":
        """The histogram of finite z's, (n,) float64."""
        z = np.clip(z, _LOWER_EDGES[0], -_LOWER_EDGES[0])
        index = np.rint(np.arcsinh(z) * _PER_UNIT).astype(np.int64) + _OUTER
        index = np.clip(index, 0, 2 * _OUTER)
        counts = np.bincount(index, minlength=len(_LOWER_EDGES))
        # float64 holds these integer sums exactly: |z| summed over n units is at most n (its mean square is 1)
        sums = np.bincount(index, weights=np.rint(z * _FIXED), minlength=len(_LOWER_EDGES))
        return cls(counts.astype(np.int64), sums.astype(np.int64))

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    def __add__(self, other: "ZHistogram") -> "ZHistogram":
        return ZHistogram(self.counts + other.counts, self.sums + other.sums)

    def __sub__(self, other: "ZHistogram") -> "ZHistogram":
        return ZHistogram(self.counts - other.counts, self.sums - other.sums)


def _check_scan(scores: Array, rows: Array) -> None:
    if len(scores) != len(rows):
        raise ValueError(f"A scan has {len(scores)} scores but {len(rows)} rows; `Reader.scan` must give one row per unit.")
    if not np.isfinite(scores).all():
        raise ValueError("A scan has scores that are not finite; `Reader.scan` must give every live unit a number (0: no match).")


@dataclass(frozen=True, slots=True)
class ProbeScan:
    """First pass: what one query scores on a part of the corpus.

    moments: over all units of the part. own: best score of the probe's source document, nan where the part has none of it.
    best: best score of any other document, -inf where there is none. n_docs: documents with units.
    """

    moments: Moments
    own: float
    best: float
    n_docs: int

    @classmethod
    def of(cls, scores: Array, rows: Array, source: int | None) -> "ProbeScan":
        """One part. scores: (u,) float64, of all live units; rows: (u,) int32; source: the row of the probe's document.

        Raises ValueError where a score is not finite.
        """
        _check_scan(scores, rows)
        mine = rows == source if source is not None else np.zeros(len(rows), bool)
        own = float(scores[mine].max()) if mine.any() else math.nan
        best = float(scores[~mine].max()) if not mine.all() else -math.inf
        return cls(Moments.of(scores), own, best, len(np.unique(rows)))

    @classmethod
    def merge(cls, parts: Sequence["ProbeScan"]) -> "ProbeScan":
        """All parts (disjoint documents) as one, independent of their order."""
        owns = [part.own for part in parts if not math.isnan(part.own)]
        return cls(
            merge_moments(part.moments for part in parts) or Moments(),
            max(owns, default=math.nan),
            max((part.best for part in parts), default=-math.inf),
            sum(part.n_docs for part in parts),
        )


def median_sd(scans: Sequence[ProbeScan]) -> float:
    """The usual spread of a query's scores in a space: the median over probes. Given merged first passes."""
    return float(np.median([scan.moments.sd for scan in scans])) if scans else 0.0


def sd_floor(median: float) -> float:
    """The least sd that a query's z is computed with: a query that scores everything alike has no peaks."""
    return max(0.25 * median, MIN_SD)


@dataclass(frozen=True, slots=True)
class ProbeRank:
    """Second pass: where a part's other documents stand against the probe's own.

    histogram: z of all units but the source's. above, tied: documents whose best unit scores more than, or as much as, the
    source's.
    """

    histogram: ZHistogram
    above: int
    tied: int

    @classmethod
    def of(cls, scores: Array, rows: Array, source: int | None, whole: ProbeScan, median: float) -> "ProbeRank":
        """One part. whole: the probe's merged first pass; median: `median_sd` of all probes' merged first passes."""
        _check_scan(scores, rows)
        others = rows != source if source is not None else np.ones(len(rows), bool)
        scores, rows = scores[others], rows[others]
        histogram = ZHistogram.of(standardise(scores, whole.moments, sd_floor(median)))
        # a document scores what its best unit does: the counts of rows with a unit above, and of the rest with a unit tied
        above = np.unique(rows[scores > whole.own])
        tied = np.setdiff1d(rows[scores == whole.own], above)
        return cls(histogram, len(above), len(tied))

    @classmethod
    def merge(cls, parts: Iterable["ProbeRank"]) -> "ProbeRank":
        """All parts as one: integers, so order and grouping do not matter."""
        histogram, above, tied = ZHistogram.empty(), 0, 0
        for part in parts:
            histogram, above, tied = histogram + part.histogram, above + part.above, tied + part.tied
        return cls(histogram, above, tied)


@dataclass(frozen=True, slots=True, eq=False)
class SpaceNull:
    """The null model of one space, a few kilobytes.

    n_units, n_docs, n_probes: what it was fitted on
    knots, surprises: (m,) float64 ascending, the table from z to -ln p; linear between, 0 below the first knot
    tail_scale: mean excess of z above the last knot: there surprise grows by 1 nat per `tail_scale`
    median_sd: of the probes' scores, see `sd_floor`
    known_item: mean reciprocal rank of a probe's own document among all (ties at half), nan if not measured
    gate: in [0, 1], how far that is above chance
    home_maxima: (H,) float64, best raw scores of queries that are at home here (probes and parts of them), source excluded; as a share
        of `SpaceQuery.most` where the layer tells it: words that nothing knows must not raise what is asked for alone
    home_words: (H,) int64, how many words each of these has
    """

    n_units: int
    n_docs: int
    n_probes: int
    knots: Array
    surprises: Array
    tail_scale: float
    median_sd: float
    known_item: float
    gate: float
    home_maxima: Array
    home_words: Array

    @property
    def cap(self) -> float:
        return evidence_cap(self.n_units, self.n_probes)

    def z(self, scores: Array, moments: Moments | None) -> Array:
        """z of raw scores under the query's merged moments, with this space's floor under sd."""
        return standardise(scores, moments, sd_floor(self.median_sd))

    def surprise(self, z: Array) -> Array:
        """-ln p of z in nats, >= 0, strictly increasing above the first knot; -inf gives 0, nan gives nan."""
        last = self.knots[-1]
        inside = np.interp(np.minimum(z, last), self.knots, self.surprises)
        return soft_cap(inside + np.maximum(z - last, 0.0) / self.tail_scale, self.cap)

    def conformal_p(self, best: float, n_words: int) -> float:
        """The p of "this query is as much at home here as the corpus's own sentences are", from its best raw score (share).

        Rank among the 64 probes nearest in length, because raw scores grow with it: (1 + those with best <= this) / (1 + 64).
        Small where the query finds less than almost any of them. 1 where no probe was asked. Never from z: a query's own
        moments hide how close it comes (EVIDENCE.md section 7).
        """
        ratio = np.abs(np.log(np.maximum(self.home_words, 1) / max(n_words, 1)))
        near = self.home_maxima[np.argsort(ratio, kind="stable")[:N_NEAR]]
        return (1 + int((near <= best).sum())) / (1 + len(near))

    def to_json(self) -> dict[str, Any]:
        """JSON values; floats survive exactly (shortest repr), and -inf is null."""
        arrays = [name for name in self.__slots__ if isinstance(getattr(self, name), np.ndarray)]
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in arrays}
        plain["known_item"] = None if math.isnan(self.known_item) else self.known_item
        return plain | {name: [x if math.isfinite(x) else None for x in getattr(self, name).tolist()] for name in arrays}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "SpaceNull":
        """What `to_json` gave, to the bit. Raises KeyError or TypeError for anything else."""
        fields = {name: value[name] for name in cls.__slots__}
        fields["known_item"] = math.nan if fields["known_item"] is None else fields["known_item"]
        for name in ("knots", "surprises", "home_maxima"):
            fields[name] = np.array([-math.inf if x is None else x for x in fields[name]], np.float64)
        fields["home_words"] = np.array(fields["home_words"], np.int64)
        return cls(**fields)


def surprise(null: SpaceNull | None, scores: Array, moments: Moments | None) -> Array:
    """Surprise in nats of raw scores in a space of the `moments` kind; -inf scores give 0, nan gives nan.

    null: None where the space has no table yet (see `normal_surprise`). moments: the query's, merged over all shards.
    """
    if null is None:
        return normal_surprise(standardise(scores, moments), moments.n if moments else 0)
    return null.surprise(null.z(scores, moments))


def known_item_gate(known_item: float, n_docs: int) -> float:
    """How far the known-item rank is above chance: 0 up to twice chance, 1 from five times (EVIDENCE.md step 4).

    Chance is ln N / N. With fewer than 18 documents even perfection is below five times chance; there perfection gives 1.
    """
    if n_docs < 2 or math.isnan(known_item):
        return 1.0
    best = n_docs / math.log(n_docs)
    return min(max((known_item * best - 2.0) / min(3.0, best - 2.0), 0.0), 1.0)


def fit_space(scans: Sequence[ProbeScan], ranks: Sequence[ProbeRank], home: Sequence[tuple[int, float]] = ()) -> SpaceNull | None:
    """The null model of a space from the merged passes of its probes, one each, in the same order.

    home: (number of words, `home_maxima`) of the probes and of parts of them (`shards.probes.shorten`). None where the space
    has fewer than 30 units or no probe was asked: then `normal_surprise` serves.
    """
    if not scans or scans[0].moments.n < MIN_UNITS:
        return None
    pooled = ProbeRank.merge(ranks).histogram
    n_units, n_docs = scans[0].moments.n, scans[0].n_docs
    if not pooled.n:
        return None
    # units at or above each bin's lower edge, and where the exponential takes over
    above = np.cumsum(pooled.counts[::-1])[::-1]
    first, last = np.flatnonzero(pooled.counts)[[0, -1]]
    rare = np.flatnonzero((above > 0) & (above <= max(TAIL_P * pooled.n, MIN_TAIL)))
    tail = int(rare[0]) if len(rare) else int(last)
    mean_excess = pooled.sums[tail:].sum() / _FIXED / above[tail] - _LOWER_EDGES[tail]
    bins = np.arange(first, tail + 1)
    # of a run of empty bins both ends are kept: surprise is level between them
    bins = bins[(pooled.counts[bins] > 0) | (pooled.counts[np.maximum(bins - 1, 0)] > 0) | (bins == tail)]
    known = [1.0 / (1.0 + rank.above + rank.tied / 2) for scan, rank in zip(scans, ranks, strict=True) if not math.isnan(scan.own)]
    known_item = math.fsum(known) / len(known) if len(known) >= MIN_KNOWN_ITEMS else math.nan
    return SpaceNull(
        n_units=n_units,
        n_docs=n_docs,
        n_probes=len(scans),
        knots=_LOWER_EDGES[bins],
        surprises=-np.log(above[bins] / pooled.n) + 0.0,  # + 0.0: no negative zero
        tail_scale=float(max(mean_excess, 0.5 * (_LOWER_EDGES[min(tail + 1, 2 * _OUTER)] - _LOWER_EDGES[tail]), MIN_SD)),
        median_sd=median_sd(scans),
        known_item=known_item,
        gate=known_item_gate(known_item, n_docs),
        home_maxima=np.array([best for _, best in home], np.float64),
        home_words=np.array([n_words for n_words, _ in home], np.int64),
    )


@dataclass(frozen=True, slots=True)
class FusedNull:
    """What fused evidence the best hit of a query has that is not answered here: a Gumbel distribution that depends on the query.

    x is the ln of the query's words, at most `max_words`; s, from 0 to 1, how much like a sentence they stand
    (`shards.sentence_likeness`). mean: of evidence, mean[0] + mean[1] x + mean[2] x^2 + mean[3] x^3 + sentence[0] s; log_scale: of its
    spread, exp(log_scale[0] + log_scale[1] x + sentence[1] s), both in nats; mu, beta: mode and scale of what is left,
    (evidence - mean) / spread. (One spread for all lengths would be three times too small for two words and twice too large for forty.)
    n_docs: documents of the corpus when it was fitted. spaces: the similarity spaces that were asked, in order of name; the sum
    over others has another distribution. max_words: of the longest query of the fit.
    """

    mean: tuple[float, ...]
    log_scale: tuple[float, ...]
    mu: float
    beta: float
    n_docs: int
    spaces: tuple[str, ...]
    max_words: int
    sentence: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def fit(
        cls,
        best: Sequence[float] | Array,
        n_words: Sequence[int] | Array,
        n_docs: int,
        spaces: Iterable[str],
        likeness: Array | None = None,
        shares: Array | None = None,
    ) -> "FusedNull | None":
        """From the best fused evidence of each query that is not answered here, and its length; None for fewer than 8.

        likeness: (n,) float64 of each, None where that is not known; shares: (n,) float64 what each weighs, None for all the same.
        The mean by least squares, the spread from the logarithms of what that leaves, the mean again with weights, and the Gumbel by
        L-moments (Hosking 1990). Of fewer than four lengths less is learnt. (Evidence rises to some five words, falls, and stays
        from some fifty on: a square puts queries of 100 words a nat too low.)
        """
        values, lengths = np.asarray(best, np.float64), np.maximum(np.asarray(n_words, np.int64), 1)
        n = len(values)
        if n < MIN_KNOWN_ITEMS:
            return None
        share = np.full(n, 1.0 / n) if shares is None else shares / shares.sum()
        terms = min(len(np.unique(lengths)), 4)
        design = np.log(lengths)[:, None] ** np.arange(terms)
        told = np.zeros((n, 0)) if likeness is None else likeness[:, None]
        of_mean, of_scale = np.hstack([design, told]), np.hstack([design[:, :2], told])
        mean = _least_squares(of_mean, values, share)
        left = np.log(np.maximum(np.abs(values - of_mean @ mean), MIN_BETA))
        log_scale = _least_squares(of_scale, left, share)
        weight = np.exp(-(of_scale @ log_scale))
        mean = _least_squares(of_mean, values, share * weight**2)
        rest = (values - of_mean @ mean) * weight
        order = np.argsort(rest, kind="stable")
        b0 = float((share * rest).sum())
        # The share of the others that lies below each: (i - 1) / (n - 1) where all weigh the same.
        below = (np.cumsum(share[order]) - share[order]) / (1.0 - share[order])
        b1 = float((share[order] * below * rest[order]).sum())
        beta = max((2.0 * b1 - b0) / math.log(2.0), MIN_BETA)
        sentence = (0.0, 0.0) if likeness is None else (float(mean[-1]), float(log_scale[-1]))
        mean, log_scale = tuple(mean[:terms].tolist()), tuple(log_scale[: min(terms, 2)].tolist())
        mu = b0 - np.euler_gamma * beta
        return cls(mean, log_scale, mu, beta, n_docs, tuple(sorted(spaces)), int(lengths.max()), sentence)

    def log_evalue(self, fused: Array, n_docs: int, n_words: int | None = None, likeness: float = 0.0) -> Array:
        """ln E of fused evidence: the documents with so much that a query of this kind would bring by chance, at most all of them.

        n_docs: documents now; a corpus that grew since the fit moves the mode by scale x ln(N2 / N1), as for maxima of more draws.
        n_words: None where the query has no words to count. likeness: to a sentence, 0 to 1.
        """
        x = math.log(max(min(n_words or TYPICAL_WORDS, self.max_words), 1))
        mean, log_scale = (sum(c * x**k for k, c in enumerate(cs)) for cs in (self.mean, self.log_scale))
        mean, scale = mean + self.sentence[0] * likeness, math.exp(log_scale + self.sentence[1] * likeness)
        # Where no space says anything about senseless words, one nat must not be a miracle of e^-1000.
        log_e = (mean + scale * self.mu - fused) / max(scale * self.beta, MIN_BETA)
        grown = math.log(max(n_docs, 1) / max(self.n_docs, 1))
        return np.minimum(log_e + grown, math.log(max(n_docs, 1)))


def _least_squares(design: Array, values: Array, shares: Array) -> Array:
    """Weighted; rounded, so that the last bits of a solver change nothing."""
    root = np.sqrt(shares)
    return np.round(np.linalg.lstsq(design * root[:, None], values * root, rcond=None)[0], _DIGITS)
