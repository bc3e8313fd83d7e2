"""Questions made within a time, for who asks many at once: those that take long are made in a thread, and what is not there is late."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve.questions import Asking
from serve.schema import SearchRequest
from shards.generation import Generation
from shards.plan import SpaceQuery

if TYPE_CHECKING:
    from serve.coordinator import Coordinator

QUESTION_S = 0.002  # questions that take so long are made in a thread


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions that were made. reasons: why spaces have none; late: those of these that there was no time for."""

    prepared: list[SpaceQuery]
    reasons: dict[str, str]
    late: frozenset[str]


def takes_s(coordinator: "Coordinator", generation: Generation, name: str) -> tuple[float, float]:
    """What the question of a space may take, and what it takes when all goes well, by what was seen of it; of one that was never made
    infinity and 0."""
    corpus = generation.root.corpus
    opened_s, seen = coordinator.generations.prepare_s(corpus, [name]), coordinator.learned.of(corpus).of(name)
    if not seen.prepare_s.n and not generation.spaces[name].layer.warmed:
        return float("inf"), 0.0
    return max(opened_s, seen.prepare_s.mean), seen.doubt * (seen.prepare_s.lower or opened_s)


async def made_within(
    coordinator: "Coordinator", generation: Generation, request: SearchRequest, names: Sequence[str], left_s: float
) -> Questions:
    """Every space's question, and why some have none, after so many seconds at most. Where routing leaves none with anything to ask, all
    are asked. Raises BadQuery for a form that cannot be understood, and of spaces that were named what they raise.

    Of those that take long none is begun that is not expected to be there in time; the one that is being made when the time ends goes on
    by itself, for a thread cannot be ended.
    """
    asking, ends = Asking(generation, request, names), asyncio.get_running_loop().time() + left_s
    made, reasons, late = await _made(coordinator, generation, request, asking, asking.chosen, ends)
    if asking.left_out and not made and not late:
        made, told, late = await _made(coordinator, generation, request, asking, list(asking.left_out), ends)
        reasons |= told
    else:
        reasons |= asking.left_out
    prepared, narrowed = asking.narrowed([made[name] for name in names if name in made])
    return Questions(prepared, reasons | narrowed, frozenset(late))


async def _made(
    coordinator: "Coordinator", generation: Generation, request: SearchRequest, asking: Asking, names: Sequence[str], ends: float
) -> tuple[dict[str, SpaceQuery], dict[str, str], list[str]]:
    """The questions of these spaces, why some have none, and those of them that there was no time for."""
    loop, is_long = asyncio.get_running_loop(), coordinator.is_long(request)
    times = {name: takes_s(coordinator, generation, name) for name in names}
    dear = [name for name in names if is_long or times[name][0] >= QUESTION_S]
    asking.check_forms(dear)  # the others are made now
    quick = asking.begin([name for name in names if name not in dear])
    quick.run()
    done, left_s = quick.done(), ends - loop.time()
    questions, reasons, seconds = done.questions, done.reasons, done.seconds
    begun = []
    for name in sorted(dear, key=lambda name: times[name][1]):
        if is_long or times[name][1] <= left_s:
            begun.append(name)
            left_s -= times[name][1]
        else:
            coordinator.learned.of(generation.root.corpus).of(name).left_out += 1
    ended: frozenset[str] = frozenset()
    if begun:
        slow = asking.begin(begun)
        task = loop.run_in_executor(None, slow.run)
        _, pending = await asyncio.wait({task}, timeout=max(ends - loop.time(), 0.0))
        if pending:
            slow.rest()
            task.add_done_callback(_looked_at)
        else:
            task.result()
        done = slow.done()
        ended, questions, reasons, seconds = done.ended, questions | done.questions, reasons | done.reasons, seconds | done.seconds
    if not is_long:  # else it says nothing of what questions usually take
        for name, took_s in seconds.items():
            coordinator.learned.of(generation.root.corpus).of(name).prepare_s.add(took_s)
    late = [name for name in dear if name not in ended]
    return questions, reasons | dict.fromkeys(late, "not begun: its question was not made in time"), late


def _looked_at(task: "asyncio.Future[None]") -> None:
    """Nobody waits for it any more, whatever it raised."""
    if not task.cancelled():
        task.exception()
