"""Measurements as Prometheus reads them: families of samples, in the text format 0.0.4.

Source: Prometheus documentation, "Exposition formats". Histograms are cumulative there, and here only when they are written.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper bounds of latencies, seconds: 1, 2 and 5 of each power of ten, so that a quantile is known to a factor of two at worst.
BOUNDS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

Labels = tuple[str, ...]  # values, in the order of the family's label names


class Histogram:
    """How often values fell between bounds. counts: of values up to each of BOUNDS_S, the last of larger ones; total: their sum."""

    __slots__ = ("counts", "total")

    def __init__(self, counts: Iterable[int] = (0,) * (len(BOUNDS_S) + 1), total: float = 0.0):
        self.counts, self.total = list(counts), total

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total += seconds

    @property
    def n(self) -> int:
        return sum(self.counts)

    def copy(self) -> "Histogram":
        return Histogram(self.counts, self.total)

    def since(self, before: "Histogram | None") -> "Histogram":
        """What came after `before` was copied; all of it if the counts went back, because whoever counts began anew."""
        if before is None or any(b > a for a, b in zip(self.counts, before.counts, strict=True)):
            return self.copy()
        return Histogram((a - b for a, b in zip(self.counts, before.counts, strict=True)), self.total - before.total)

    def quantile(self, q: float) -> float | None:
        """About the value that a share `q` of all lie below, seconds: straight between bounds, as PromQL's histogram_quantile does it.
        None of nothing; of values above the last bound, that bound.
        """
        rank, seen = q * self.n, 0
        if not self.n:
            return None
        for i, count in enumerate(self.counts[:-1]):
            if count and seen + count >= rank:
                low = BOUNDS_S[i - 1] if i else 0.0
                return low + (BOUNDS_S[i] - low) * max(rank - seen, 0.0) / count
            seen += count
        return BOUNDS_S[-1]


@dataclass(slots=True)
class Family:
    """One metric. labels: names of its labels; samples: by their values. What has no sample is written all the same, as name and help."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    samples: dict[Labels, float | Histogram] = field(default_factory=dict)


def exposition(families: Iterable[Family], common: Mapping[str, str]) -> str:
    """The families as text. common: labels that every sample bears."""
    lines: list[str] = []
    constant = [_pair(name, value) for name, value in common.items()]
    for family in families:
        lines += [f"# HELP {family.name} {_in_one_line(family.help)}", f"# TYPE {family.name} {family.kind}"]
        for values, sample in sorted(family.samples.items()):
            pairs = [*constant, *(_pair(name, value) for name, value in zip(family.labels, values, strict=True))]
            if isinstance(sample, Histogram):
                lines += _histogram(family.name, pairs, sample)
            else:
                lines.append(f"{family.name}{_braces(pairs)} {_number(sample)}")
    return "\n".join(lines) + "\n"


def _histogram(name: str, pairs: list[str], histogram: Histogram) -> list[str]:
    lines, below = [], 0
    counts = list(histogram.counts)  # once: others may be counting
    for bound, count in zip((*map(_number, BOUNDS_S), "+Inf"), counts, strict=True):
        below += count
        lines.append(f"{name}_bucket{_braces([*pairs, _pair('le', bound)])} {below}")
    return [*lines, f"{name}_sum{_braces(pairs)} {_number(histogram.total)}", f"{name}_count{_braces(pairs)} {below}"]


def _braces(pairs: list[str]) -> str:
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _pair(name: str, value: str) -> str:
    """A label; of its value the format escapes backslash, quote and line feed."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{escaped}"'


def _in_one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
