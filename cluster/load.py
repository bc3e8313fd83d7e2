"""What a host has to do and has done, counted: by its load replicas are chosen and their number is decided."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Work:
    """One host's. threads: searches that it runs at once. Safe for many threads."""

    def __init__(self, threads: int):
        self._threads, self._lock = threads, threading.Lock()
        self._in_hand = self._running = 0
        self._done: dict[str, tuple[int, int, float]] = {}  # by corpus: searches, shards searched, seconds

    @contextmanager
    def in_hand(self, n_searches: int) -> Iterator[None]:
        """So many have arrived, and are done at the end."""
        with self._lock:
            self._in_hand += n_searches
        try:
            yield
        finally:
            with self._lock:
                self._in_hand -= n_searches

    @contextmanager
    def running(self) -> Iterator[None]:
        """One is being done."""
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    def did(self, corpus: str, n_shards: int, seconds: float) -> None:
        """One search of so many shards is done."""
        with self._lock:
            searches, shards, busy_s = self._done.get(corpus, (0, 0, 0.0))
            self._done[corpus] = searches + 1, shards + n_shards, busy_s + seconds

    def told(self) -> dict[str, Any]:
        """For status. running, waiting: now; the others since the process began. busy_s: seconds, of all threads together."""
        with self._lock:
            done, in_hand, running = dict(self._done), self._in_hand, self._running
        return {
            "running": running,
            "waiting": max(in_hand - running, 0),
            "threads": self._threads,
            "searches": sum(searches for searches, _, _ in done.values()),
            "busy_s": sum(busy_s for _, _, busy_s in done.values()),
            "by_corpus": {c: {"searches": n, "shards": shards, "busy_s": busy_s} for c, (n, shards, busy_s) in sorted(done.items())},
        }
