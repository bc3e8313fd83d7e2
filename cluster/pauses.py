"""How long a process that answers stands still at most: what its threads and its garbage collector may take in one piece.

For processes that do nothing else: it changes settings of the interpreter. In somebody's own process (an engine) they are his.
"""

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

# After so long a thread lets others run that wait. The interpreter's own 5 ms cost an event loop beside two searches 5 ms at each of the
# dozen times that it is woken for a query.
SWITCH_S = 0.0005
FRONT_SWITCH_S = 0.0001  # of a process whose searches are elsewhere: beside its event loop are threads that make questions, no more
# A full collection that takes longer looks at too much. Modules of models alone are 400,000 objects: 0.5 s in which nothing is answered.
LONGEST_S = 0.02
# Objects more than at the last collection of the youngest, of these, and of those after which there are others. A collection takes half a
# microsecond for each object, so 5,000 take 2 to 3 ms. A full one looks at all there is, hits of answers under way among it, for 20 to 200
# ms in which nothing is answered; and searches leave next to no circles (18 objects of three combined ones, none of others). So full ones
# come in calm moments, and by themselves only after 40 million objects.
THRESHOLDS = 1_000, 4, 10_000
DUE = 100  # collections of the middle ones after which a full one is worth it
CALM_S, CALM_SHARE = 1.0, 0.02  # how long a calm moment is, and what share of a core is no work


class _Pauses:
    """Called by the collector before and after each collection."""

    def __init__(self) -> None:
        self._begun = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begun = time.perf_counter()
        elif info["generation"] == 2 and (took_s := time.perf_counter() - self._begun) > LONGEST_S:
            settle()
            logger.info("event=collected seconds=%.3f", took_s)


_pauses = _Pauses()


def settle() -> None:
    """What is there now is not looked at again by the collector. Whatever of it is dropped later goes by its count of references, as
    shards do that are closed; only what refers to itself in a circle stays."""
    gc.freeze()


def keep_short(switch_s: float = SWITCH_S) -> None:
    """From now on; once for a process. switch_s: after which a thread lets others run that wait."""
    sys.setswitchinterval(switch_s)
    gc.set_threshold(*THRESHOLDS)
    if _pauses not in gc.callbacks:
        gc.callbacks.append(_pauses)
        threading.Thread(target=_collect_when_calm, name="collector", daemon=True).start()
    gc.collect()
    settle()


def is_calm(sleep: Callable[[float], None] = time.sleep, cpu: Callable[[], float] = time.process_time) -> bool:
    """Whether this process does next to nothing for a while, which it takes to find out."""
    begun_s = cpu()
    sleep(CALM_S)
    return cpu() - begun_s < CALM_SHARE * CALM_S


def _collect_when_calm() -> None:
    while True:
        if is_calm() and gc.get_count()[2] >= DUE:
            gc.collect()
