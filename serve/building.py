"""Building spaces where they are used, as one server sees to it: counts what its answers show, has builders run, and hold for searches.

Builders are started when a corpus has a space that is built where it is used, and not before: others pay nothing.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from cluster import building as builder
from cluster.building import Builders
from shards.manifest import corpus_store
from shards.usage import Recorder

if TYPE_CHECKING:
    from serve.coordinator import Coordinator
    from shards.writing import Calibrate, Report

logger = logging.getLogger(__name__)

LOOK_S = 0.5  # between looks whether there is something to build
FLUSH_S = 5.0  # between two writes of what was counted
TICK_S = 0.01  # between looks how many searches are under way
REST_S = 0.1  # without a search that wants the core, before work goes on: searches come in turns
CORES = os.cpu_count() or 1


def calibrator(report: "Report") -> "Calibrate":
    """What fits null models in a builder's process, on one core."""
    from serve.calibrate import Calibrator  # torch and scipy, which a server does not need

    return Calibrator(1, report)


def main() -> None:
    """A builder's process that fits null models, too."""
    builder.main(calibrator)


class Building:
    """What a coordinator has built beside it. Belongs to one event loop.

    cores: searches under way from which on none is spare. clock: seconds that only go forward.
    """

    def __init__(self, coordinator: "Coordinator", builders: Builders | None, counted: bool = True, cores: int = CORES):
        self._coordinator, self._builders, self._cores = coordinator, builders, cores
        self.recorder = Recorder(lambda corpus: corpus_store(coordinator.store, corpus), counted)
        self.held, self.holds = False, 0
        self._tasks: list[asyncio.Task[None]] = []
        self._running = False

    async def start(self) -> None:
        """Begin to count, and to look for what is to be built."""
        self._coordinator.usage, self._coordinator.building = self.recorder, self.told
        self._tasks = [asyncio.create_task(self._flush())]
        if self._builders is not None:
            self._tasks += [asyncio.create_task(self._look()), asyncio.create_task(self._give_way())]

    async def close(self) -> None:
        """Stop, and write what was counted."""
        self._coordinator.usage = self._coordinator.building = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self.recorder.flush)
        if self._builders is not None:
            await self._builders.close()

    def told(self) -> dict[str, dict[str, Any]]:
        """By corpus and space, how far it is: as `LayerBuilder.status`, with `held`: whether work waits for searches."""
        if self._builders is None:
            return {}
        return {
            corpus: {name: {**space, "held": self.held} for name, space in spaces.items()}
            for corpus, spaces in self._builders.told().items()
        }

    def wanted(self) -> bool:
        """Whether some corpus has a space that is built where it is used."""
        return any(ref.built == "used" for one in self._coordinator.generations.current.values() for ref in one.root.spaces)

    async def _look(self) -> None:
        assert self._builders is not None
        while True:
            if self.wanted():
                try:
                    await self._builders.start()
                    self._running = True
                except Exception as error:  # searches do not depend on it
                    logger.warning("event=builders_not_started reason=%s", error)
            await asyncio.sleep(LOOK_S)

    async def _give_way(self) -> None:
        """Hold builders as long as every core has a search to work on."""
        assert self._builders is not None
        loop, free_at = asyncio.get_running_loop(), 0.0
        while True:
            if self._running:
                if self._coordinator.admission.under_way >= self._cores:
                    free_at = loop.time() + REST_S
                held = loop.time() < free_at
                if held != self.held:
                    self.held, self.holds = held, self.holds + held
                    self._builders.hold(held)
            await asyncio.sleep(TICK_S if self._running else LOOK_S)

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await asyncio.to_thread(self.recorder.flush)


@asynccontextmanager
async def building(
    coordinator: "Coordinator", builders: Callable[[], Builders] | None, counted: bool = True
) -> AsyncIterator[Building]:
    """Counting and building beside a coordinator, as long as the block lasts. builders: None where others build."""
    one = Building(coordinator, builders() if builders is not None else None, counted)
    await one.start()
    try:
        yield one
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await one.close()
