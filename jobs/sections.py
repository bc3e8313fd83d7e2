"""What was found about one question of an evaluation: a table for people, figures for programs, plots for the page, targets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """A number that should be reached. at_least: `measured` should not be below `wanted`; else not above it. goal: what would be
    better still, None where nothing is."""

    name: str
    measured: float
    wanted: float
    at_least: bool = True
    goal: float | None = None

    @property
    def met(self) -> bool:
        """Whether it is reached; a figure that could not be had (nan) is not."""
        return self.measured >= self.wanted if self.at_least else self.measured <= self.wanted

    @property
    def bound(self) -> str:
        """The target in words: ">= 0.95 (goal 0.98)"."""
        sign = ">=" if self.at_least else "<="
        return f"{sign} {self.wanted:g}" + ("" if self.goal is None else f" (goal {self.goal:g})")


@dataclass(frozen=True, slots=True)
class Section:
    """key: its name in JSON. heads, rows: the table, the first column being names. figures: JSON values. plots: SVG."""

    key: str
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Mapping[str, Any]
    note: str = ""
    plots: Sequence[str] = ()
    targets: Sequence[Target] = field(default_factory=tuple)


TARGET_HEADS = ("target", "wanted", "measured", "met")


def target_cells(target: Target) -> list[str]:
    """A row of the table of targets."""
    return [target.name, target.bound, f"{target.measured:.4f}", "yes" if target.met else "NO"]


def target_json(target: Target) -> dict[str, Any]:
    """What programs are told of a target."""
    return {
        "name": target.name,
        "measured": target.measured,
        "wanted": target.wanted,
        "goal": target.goal,
        "at_least": target.at_least,
        "met": target.met,
    }


def sections_json(sections: Sequence[Section]) -> dict[str, Any]:
    """What programs are told: figures of each section by its key, and all targets; nan, which JSON lacks, as null."""
    figures = {section.key: section.figures for section in sections}
    return _finite({"sections": figures, "targets": [target_json(t) for section in sections for t in section.targets]})


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
