"""How far a long step is, with its rate and the time left: one line that is redrawn in a terminal, a line a second elsewhere."""

import sys
import time
from typing import TextIO


def amount(value: float, unit: str) -> str:
    """A quantity for people: 12.3 MB, 1,234 files."""
    if unit != "bytes":
        return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
    for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:,.1f} {name}"
    return f"{value:.0f} B"


class Progress:
    """Told (step, done, total, unit) as often as one likes; prints at most every `every_s` seconds and at the end of a step."""

    def __init__(self, out: TextIO | None = None, every_s: float = 1.0, clock=time.monotonic):
        self.out, self.every_s, self.clock = out or sys.stderr, every_s, clock
        self.step, self.begun, self.printed, self.base = "", 0.0, 0.0, 0
        self.redraws = self.out.isatty()

    def __call__(self, step: str, done: int, total: int, unit: str = "") -> None:
        now = self.clock()
        if step != self.step:
            self.step, self.begun, self.printed, self.base = step, now, now, done
        if total <= 0 or (done < total and now - self.printed < self.every_s):
            return
        if done >= total and now - self.begun < 0.5 and self.printed == self.begun:
            return  # over before anybody wondered
        self.printed = now
        seconds = max(now - self.begun, 1e-6)
        rate = (done - self.base) / seconds
        left = f", {(total - done) / rate:,.0f} s left" if rate > 0 and done < total else ""
        noun = "" if unit == "bytes" else f" {unit}"
        line = f"  {step}: {amount(done, unit)} of {amount(total, unit)}{noun}, {amount(rate, unit)}{noun}/s{left}"
        end = "\n" if not self.redraws or done >= total else "\r"
        print(f"{line:<78}" if self.redraws else line, end=end, file=self.out, flush=True)
