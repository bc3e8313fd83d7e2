"""How deep the first stage of a cascade must go so that what is sought is still in it: recall at a depth, from the corpus's own probes.

A cloze probe (`shards/cloze.py`) is a known item: its source, seen without the sentence that is asked, has a rank among what a search finds
elsewhere. The share of probes whose item is among the first d estimates the recall of a cut at d; its interval is Wilson's.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Depths at which recall is told, in steps of about a quarter: 256 probes tell no finer ones apart. A probe's rank is exact as far as lists
# go (`N_CANDIDATES`), so no further.
DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100)
MIN_TRIED = 16  # probes; of fewer no recall is told
Z = 1.96  # of an interval that holds 95 %


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share with its 95 % interval."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Recall:
    """What some spaces together find again. within: of each of DEPTHS, probes whose item is among the first so many; n_probes: of all."""

    within: tuple[int, ...]
    n_probes: int

    @classmethod
    def of_ranks(cls, ranks: Iterable[float]) -> "Recall | None":
        """From the rank of each probe's item, from 1, ties at half, inf for one that was not found; None of too few."""
        found = list(ranks)
        return cls(tuple(int(sum(rank <= depth for rank in found)) for depth in DEPTHS), len(found)) if len(found) >= MIN_TRIED else None

    def at(self, depth: int) -> Estimate:
        """The recall of a cut at this depth: that of the next lesser one of DEPTHS, so rather too little than too much."""
        place = sum(known <= depth for known in DEPTHS)
        return wilson(self.within[place - 1] if place else 0, self.n_probes)

    def depth_for(self, share: float) -> int | None:
        """The least depth at which so large a share of the items is found for sure: by the lower end of the interval. None where it is not
        even at the last one.

        Near the top probes are easier than what people ask. Of scifact, all four spaces: a share of .82 was found among the first 2, and
        of judged documents .68; .91 and .87 among 15, where both come together. The lower end goes as much deeper.
        """
        return next((depth for depth, n in zip(DEPTHS, self.within, strict=True) if wilson(n, self.n_probes).low >= share), None)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {"within": self.within, "n_probes": self.n_probes}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Recall":
        """What `to_json` gave."""
        return cls(tuple(value["within"]), value["n_probes"])


def wilson(n: int, of: int) -> Estimate:
    """A share and its interval (Wilson 1927, equation 10): unlike share +- z sd it stays within [0, 1] and is no point at either end."""
    if not of:
        return Estimate(math.nan, 0.0, 1.0)
    share, z2 = n / of, Z * Z
    centre, scale = share + z2 / (2 * of), 1.0 + z2 / of
    half = Z * math.sqrt(share * (1.0 - share) / of + z2 / (4 * of * of))
    return Estimate(share, max((centre - half) / scale, 0.0), min((centre + half) / scale, 1.0))
