"""What each step of one search takes."""

import time


class Laps:
    """Steps one after the other, ms."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._begun = self._mark = time.monotonic()

    def end(self, step: str) -> None:
        """The step is over and the next one begins."""
        now = time.monotonic()
        self.ms[step], self._mark = round(1000 * (now - self._mark), 3), now

    @property
    def total_ms(self) -> float:
        return round(1000 * (time.monotonic() - self._begun), 3)
