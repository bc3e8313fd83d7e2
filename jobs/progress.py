"""How far long steps are, with their rates and the time left, on stderr: bars that are redrawn in a terminal, a line a second elsewhere."""

import atexit
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

if TYPE_CHECKING:
    from rich.table import Table

Report = Callable[[str, int, int, str], None]  # step, done, total, unit

REDRAW_S = 0.1
WONDER_S = 0.5  # what is over sooner is not mentioned: nobody wondered yet
BAR_COLUMNS = 60  # terminals narrower than this get the numbers alone


def amount(value: float, unit: str) -> str:
    """A quantity for people: 12.3 MB, 1,234 files."""
    if unit != "bytes":
        return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
    for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:,.1f} {name}"
    return f"{value:.0f} B"


class Step(NamedTuple):
    """A step under way. base: how far it was when it was first heard of, at time `begun`."""

    begun: float
    base: int
    done: int
    total: int
    unit: str

    def rate(self, now: float) -> float:
        """Units a second, since it was first heard of."""
        return (self.done - self.base) / max(now - self.begun, 1e-6)

    def left_s(self, now: float) -> float | None:
        """Seconds that are left at this rate; None where it is done, or there is no rate."""
        rate = self.rate(now)
        return (self.total - self.done) / rate if rate > 0 and self.done < self.total else None

    def counted(self) -> str:
        """How far it is: "400 B of 1.0 kB", "20 of 100 passages"."""
        return f"{amount(self.done, self.unit)} of {amount(self.total, self.unit)}{self.noun}"

    def speed(self, now: float) -> str:
        return f"{amount(self.rate(now), self.unit)}{self.noun}/s"

    @property
    def noun(self) -> str:
        return "" if self.unit == "bytes" or not self.unit else f" {self.unit}"

    def line(self, name: str, now: float) -> str:
        """All of it in a line."""
        left = self.left_s(now)
        return f"  {name}: {self.counted()}, {self.speed(now)}" + (f", {left:,.0f} s left" if left is not None else "")


class Progress:
    """Told (step, done, total, unit) as often as one likes. Without a terminal it prints a line at most every `every_s` seconds and at the
    end of a step; on one it draws a bar for each step under way, and leaves a line of each that took long.

    Steps may go on side by side, told from several threads: each has its own clock, and all share the line. Used with `with`, or closed,
    it leaves no bar behind when something goes wrong; at the latest when the process ends.
    """

    def __init__(self, out: TextIO | None = None, every_s: float = 1.0, clock: Callable[[], float] = time.monotonic):
        self.out, self.every_s, self.clock = out or sys.stderr, every_s, clock
        self._steps: dict[str, Step] = {}  # under way
        self._printed = 0.0  # when the last line or bar was, or the first step of those under way began
        self._shown: set[str] = set()  # steps that were mentioned
        self._lock = threading.Lock()
        self._live: Any = None  # rich's, while there are bars
        self.redraws = self.out.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the bars away."""
        with self._lock:
            self._clear()

    def __call__(self, step: str, done: int, total: int, unit: str = "") -> None:
        with self._lock:
            self._tell(step, done, total, unit)

    def _tell(self, name: str, done: int, total: int, unit: str) -> None:
        now = self.clock()
        if total <= 0:
            return
        if not self._steps:
            self._printed = now
        before = self._steps.get(name)
        step = Step(before.begun if before else now, before.base if before else done, done, total, unit)
        self._steps[name] = step
        if done < total:
            every_s = REDRAW_S if self.redraws else self.every_s
            if now - max(self._printed, step.begun) < (every_s if self._live or not self.redraws else WONDER_S):
                return
            self._shown.add(name)
            self._printed = now
            if self.redraws:
                self._draw(now)
            else:
                print(step.line(name, now), file=self.out, flush=True)
            return
        del self._steps[name]
        if now - step.begun < WONDER_S and name not in self._shown:
            return
        self._shown.discard(name)
        self._printed = now
        if not self._steps:
            self._clear()
        elif self._live:
            self._draw(now)
        if self._live:  # above the bars
            self._live.console.print(step.line(name, now), markup=False)
        else:
            print(step.line(name, now), file=self.out, flush=True)

    def _draw(self, now: float) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            out = Console(file=self.out, highlight=False)
            if out.is_dumb_terminal:
                self.redraws = False
                return
            # Without rich's own thread: reports come all the time, and a step that hangs must not look as if it went on.
            self._live = Live(console=out, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()
            atexit.register(self.close)
        self._live.update(bars(self._steps, now, self._live.console.width), refresh=True)

    def _clear(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
            atexit.unregister(self.close)


def bars(steps: "dict[str, Step]", now: float, width: int) -> "Table":
    """A row for each step: its name, a bar, how far, how fast, how long still."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from jobs.status_tables import age

    made = Table.grid(padding=(0, 1))
    for name, step in steps.items():
        left = step.left_s(now)
        still = "" if left is None else f"{age(left)} left"
        cells = [Text(name), Text(step.counted(), "green"), Text(step.speed(now), "cyan"), Text(still)]
        if width >= BAR_COLUMNS:
            cells[1:1] = [ProgressBar(step.total, step.done, width=max(10, min(30, width - 70)))]
        made.add_row(*cells)
    for column in made.columns:
        column.no_wrap = True
    return made


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
