"""Which spaces are asked next, by what they are expected to change for the time they take, and when it is enough. Pure.

A search asks all of its spaces in one round where they fit into its time, which costs least. Where they do not, those come first that
change most of the hits for a millisecond; what does not fit is not begun, and the answer says so. Where somebody watches the answer
grow (a stream), or `fast` is wanted, the cheapest come first, alone, and the others follow round by round. Where `precise` is wanted,
what is not expected to fit is tried all the same, after the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Goal = Literal["fast", "balanced", "precise", "wide"]

ENOUGH = 0.2  # of the first hits, the share that what is left may be expected to change when a `fast` search stops
FIRST_S = 0.01  # what the first round of several may take beside its cheapest space: then somebody sees something
TIGHT = 0.5  # of the time: where spaces are expected to take more, those whose questions are there do not wait for the others
LEAST_S = 0.0005  # what any space costs: nothing is free, and what was never measured is not either


@dataclass(frozen=True, slots=True)
class Waiting:
    """A space that was not asked yet. prepare_s, search_s: what it hardly exceeds, 0 where nobody knows; gain: the share of the first hits
    that it may change; ready: whether its question is there; least_s: what it takes when all goes well, None: the same."""

    name: str
    prepare_s: float
    search_s: float
    gain: float
    ready: bool = False
    least_s: float | None = None

    @property
    def cost_s(self) -> float:
        return max((0.0 if self.ready else self.prepare_s) + self.search_s, LEAST_S)

    @property
    def hope_s(self) -> float:
        return self.cost_s if self.least_s is None else max(min(self.least_s, self.cost_s), LEAST_S)

    @property
    def worth(self) -> tuple[float, str]:
        """What spaces are ordered by: gain for a second, then names."""
        return -self.gain / self.cost_s, self.name


@dataclass(frozen=True, slots=True)
class Step:
    """A round. names: the spaces that it asks, most gain for a second first; expected_s: what it is expected to take."""

    names: tuple[str, ...]
    expected_s: float


def next_step(
    waiting: Sequence[Waiting], left_s: float, round_s: float, by_rounds: bool, is_first: bool, try_all: bool = False
) -> Step:
    """The next round; none of its names where nothing more fits.

    left_s: seconds for this and further rounds. round_s: what a round takes beside its searches. by_rounds: whether the answer is to grow.
    is_first: nothing was asked yet: then the cheapest space is asked in any case, for a late answer is better than none.
    try_all: what is not expected to fit at all is begun, too, after the others, as long as there is time.

    Spaces are asked together as long as they are sure to fit, with those behind them that fit if all goes well. What fits so but waits
    for its question is tried in a round of its own, when the others have answered: then it costs nobody anything. Likewise what is sure
    to fit but waits for its question, where that is a good part of the time.
    """
    order = sorted(waiting, key=lambda one: one.worth)
    room_s = left_s - round_s
    if by_rounds and is_first:
        order = sorted(waiting, key=lambda one: (one.cost_s, one.name))
        chosen = _fitting(order, min(room_s, (order[0].cost_s if order else 0.0) + FIRST_S))
    else:
        chosen = _fitting(order, room_s)
        hoped_s = room_s - sum(one.hope_s for one in chosen)
        # At the end of a plan a question that is there costs no other anything: hosts work in its order.
        chosen += _fitting([one for one in order if one not in chosen and (one.ready or not chosen)], hoped_s, hoping=True)
        if not chosen and try_all and room_s > 0 and not is_first:
            chosen = order
        ready = [one for one in chosen if one.ready]
        if ready and sum(one.cost_s for one in chosen) > TIGHT * room_s:
            chosen = ready
        chosen = chosen[:1] if by_rounds else chosen
    if not chosen and is_first and waiting:
        chosen = [min(waiting, key=lambda one: (one.cost_s, one.name))]
    return Step(tuple(one.name for one in chosen), round_s + sum(one.cost_s for one in chosen) if chosen else 0.0)


def _fitting(order: Sequence[Waiting], room_s: float, hoping: bool = False) -> list[Waiting]:
    """Those that fit together, in order. hoping: if all goes well."""
    chosen, spent = [], 0.0
    for one in order:
        cost_s = one.hope_s if hoping else one.cost_s
        if spent + cost_s <= room_s:
            chosen.append(one)
            spent += cost_s
    return chosen


def worth_making(waiting: Sequence[Waiting], step: Step, left_s: float) -> list[str]:
    """Spaces of later rounds whose questions are made while hosts work on this one: those that may still fit, the best first."""
    order = sorted(waiting, key=lambda one: one.worth)
    return [one.name for one in order if not one.ready and one.name not in step.names and one.hope_s <= left_s]


def could_change(left: Sequence[tuple[float, float]]) -> float:
    """The share of the first hits that what was not looked at may be expected to change. left: of each space its gain, and the share of
    it that was not looked at. Spaces change the same hits as often as not, so what is left of these shrinks by each: 1 - prod(1 - gain)."""
    stays = 1.0
    for gain, unseen in left:
        stays *= 1.0 - min(max(gain * unseen, 0.0), 1.0)
    return 1.0 - stays


def is_enough(goal: str, change: float) -> bool:
    """Whether a search may stop before its time ends."""
    return goal == "fast" and change < ENOUGH


def why_not_begun(one: Waiting, left_s: float) -> str:
    """For people."""
    return f"not begun: it takes about {1e3 * one.hope_s:.0f} ms, {1e3 * max(left_s, 0.0):.0f} were left"
