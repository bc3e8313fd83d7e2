"""What each step of one search takes."""

import re
import time


class Laps:
    """Steps one after the other, ms."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._begun = self._mark = time.monotonic()

    def end(self, step: str) -> None:
        """The step is over and the next one begins. Of several of a name the times are added."""
        now = time.monotonic()
        self.ms[step], self._mark = round(self.ms.get(step, 0.0) + 1000 * (now - self._mark), 3), now

    @property
    def now_s(self) -> float:
        """Seconds since the first step began."""
        return time.monotonic() - self._begun

    @property
    def total_ms(self) -> float:
        return round(1000 * (time.monotonic() - self._begun), 3)


def server_timing(timings_ms: dict[str, float]) -> str:
    """A Server-Timing header (W3C Server Timing): names are tokens, durations milliseconds."""
    return ", ".join(f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)};dur={ms:.2f}" for name, ms in timings_ms.items())
