"""How far a long step is, with its rate and the time left: one line that is redrawn in a terminal, a line a second elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TextIO

Report = Callable[[str, int, int, str], None]  # step, done, total, unit


def amount(value: float, unit: str) -> str:
    """A quantity for people: 12.3 MB, 1,234 files."""
    if unit != "bytes":
        return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
    for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:,.1f} {name}"
    return f"{value:.0f} B"


class Progress:
    """Told (step, done, total, unit) as often as one likes; prints at most every `every_s` seconds and at the end of a step.

    Steps may go on side by side, told from several threads: each has its own clock, and all share the line.
    """

    def __init__(self, out: TextIO | None = None, every_s: float = 1.0, clock=time.monotonic):
        self.out, self.every_s, self.clock = out or sys.stderr, every_s, clock
        self._begun: dict[str, tuple[float, int]] = {}  # of each step under way: when, and how far it was
        self._printed = 0.0  # when the last line was, or the first step of those under way began
        self._shown: set[str] = set()  # steps that were mentioned
        self._lock = threading.Lock()
        self.redraws = self.out.isatty()

    def __call__(self, step: str, done: int, total: int, unit: str = "") -> None:
        with self._lock:
            self._tell(step, done, total, unit)

    def _tell(self, step: str, done: int, total: int, unit: str) -> None:
        now = self.clock()
        if total <= 0:
            return
        if not self._begun:
            self._printed = now
        begun, base = self._begun.setdefault(step, (now, done))
        if done < total and now - max(self._printed, begun) < self.every_s:
            return
        if done >= total:
            del self._begun[step]
            if now - begun < 0.5 and step not in self._shown:
                return  # over before anybody wondered
        self._printed = now
        self._shown = self._shown | {step} if done < total else self._shown - {step}
        rate = (done - base) / max(now - begun, 1e-6)
        left = f", {(total - done) / rate:,.0f} s left" if rate > 0 and done < total else ""
        noun = "" if unit == "bytes" else f" {unit}"
        line = f"  {step}: {amount(done, unit)} of {amount(total, unit)}{noun}, {amount(rate, unit)}{noun}/s{left}"
        end = "\n" if not self.redraws or done >= total else "\r"
        print(f"{line:<78}" if self.redraws else line, end=end, file=self.out, flush=True)


class Shared:
    """Progress of tasks that run side by side, as one: what they do in steps of one name is added up.

    weights: of each task, e.g. its documents. How much tasks will have to do that said nothing yet is taken from those that did,
    by weight; what is done already (kept encodings) makes the rest come sooner than was said.
    """

    def __init__(self, report: Report, weights: Sequence[int], unit: str = "passages"):
        self._report, self._weights, self._unit = report, weights, unit
        self._steps: dict[str, dict[int, tuple[int, int]]] = {}  # step -> task -> (done, total)
        self._ended: set[int] = set()
        self._lock = threading.Lock()

    def tell(self, task: int, step: str, done: int, total: int) -> None:
        """A task is so far in a step."""
        with self._lock:
            self._steps.setdefault(step, {})[task] = (done, total)
            self._tell(step)

    def ended(self, task: int) -> None:
        """A task is over; where it never spoke of a step it had nothing to do in it."""
        with self._lock:
            self._ended.add(task)
            for step, told in self._steps.items():
                if task in told:
                    told[task] = (told[task][1],) * 2
                self._tell(step)

    def _tell(self, step: str) -> None:
        told = self._steps[step]
        known = self._ended | set(told)
        done, total = (sum(column) for column in zip(*told.values(), strict=True))
        share = sum(self._weights[task] for task in known) / max(sum(self._weights), 1)
        unit = self._unit if step.startswith("encode") else "parts"  # what else layers do is told in a few large ones
        self._report(step, done, round(total / share) if share > 0 else total, unit)
