"""Which spaces are asked next, by what they are expected to change for the time they take, and when it is enough. Pure.

A search asks all of its spaces in one round where they fit into its time, which costs least. Where they do not, those come first that
change most of the hits for a millisecond; what does not fit is not begun, and the answer says so. Where somebody watches the answer
grow (a stream), or `fast` is wanted, the cheapest come first, alone, and the others follow round by round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Goal = Literal["fast", "balanced", "precise", "wide"]

# Of the first hits, the share that what is left may be expected to change when a search that goes round by round stops; 0: never.
ENOUGH: Mapping[str, float] = {"fast": 0.2, "balanced": 0.05, "precise": 0.0, "wide": 0.0}
FIRST_S = 0.01  # what the first round of several may take beside its cheapest space: then somebody sees something
LEAST_S = 0.0005  # what any space costs: nothing is free, and what was never measured is not either


@dataclass(frozen=True, slots=True)
class Waiting:
    """A space that was not asked yet. prepare_s, search_s: what it is expected to take, 0 where nobody knows; gain: the share of the first
    hits that it may change; ready: whether its question is there."""

    name: str
    prepare_s: float
    search_s: float
    gain: float
    ready: bool = False

    @property
    def cost_s(self) -> float:
        return max((0.0 if self.ready else self.prepare_s) + self.search_s, LEAST_S)


@dataclass(frozen=True, slots=True)
class Step:
    """A round. names: the spaces that it asks, most gain for a second first; expected_s: what it is expected to take."""

    names: tuple[str, ...]
    expected_s: float


def next_step(waiting: Sequence[Waiting], left_s: float, round_s: float, by_rounds: bool, is_first: bool) -> Step:
    """The next round; none of its names where nothing more fits.

    left_s: seconds for this and further rounds. round_s: what a round takes beside its searches. by_rounds: whether the answer is to grow.
    is_first: nothing was asked yet: then the cheapest space is asked in any case, for a late answer is better than none.
    """
    order = sorted(waiting, key=lambda one: (-one.gain / one.cost_s, one.name))
    if by_rounds and is_first:
        cheapest = min(waiting, key=lambda one: (one.cost_s, one.name), default=None)
        order = sorted(waiting, key=lambda one: (one.cost_s, one.name)) if cheapest is not None else []
        limit_s = (cheapest.cost_s if cheapest is not None else 0.0) + FIRST_S
        chosen, spent = _fitting(order, min(left_s - round_s, limit_s))
    elif by_rounds:
        chosen, spent = _fitting(order, left_s - round_s)
        chosen = chosen[:1]
        spent = chosen[0].cost_s if chosen else 0.0
    else:
        chosen, spent = _fitting(order, left_s - round_s)
    if not chosen and is_first and waiting:
        chosen = [min(waiting, key=lambda one: (one.cost_s, one.name))]
        spent = chosen[0].cost_s
    return Step(tuple(one.name for one in chosen), round_s + spent if chosen else 0.0)


def _fitting(order: Sequence[Waiting], room_s: float) -> tuple[list[Waiting], float]:
    """Those that fit together, in order."""
    chosen, spent = [], 0.0
    for one in order:
        if spent + one.cost_s <= room_s:
            chosen.append(one)
            spent += one.cost_s
    return chosen, spent


def could_change(left: Sequence[tuple[float, float]]) -> float:
    """The share of the first hits that what was not looked at may be expected to change. left: of each space its gain, and the share of
    it that was not looked at. Spaces change the same hits as often as not, so what is left of these shrinks by each: 1 - prod(1 - gain)."""
    stays = 1.0
    for gain, unseen in left:
        stays *= 1.0 - min(max(gain * unseen, 0.0), 1.0)
    return 1.0 - stays


def is_enough(goal: str, change: float) -> bool:
    """Whether a search that goes round by round may stop."""
    return change < ENOUGH[goal]


def why_not_begun(one: Waiting, left_s: float) -> str:
    """For people."""
    return f"not begun: it takes about {1e3 * one.cost_s:.0f} ms, {1e3 * max(left_s, 0.0):.0f} were left"
