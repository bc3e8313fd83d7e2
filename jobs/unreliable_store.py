"""A store that fails, and whose user dies, by chance."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shards.errors import StoreError
from shards.store import Names, Store


class Died(BaseException):
    """The job's process died. Not an Exception, so that no handler takes it for an error to be dealt with."""


class Unreliable(Store):
    """A store that fails, and whose user dies, by chance.

    dies_at: the operation, counted from 1, at which `die` is called, before it is done or `after`; every later one dies too.
    chance: of any operation to fail, before it is done or after. meanwhile: called before each operation.
    """

    def __init__(
        self,
        inner: Store,
        rng: random.Random,
        dies_at: int = 0,
        after: bool = False,
        chance: float = 0.0,
        die: Callable[[], None] | None = None,
        meanwhile: Callable[[int], None] = lambda _n: None,
    ):
        self.inner, self.url, self.rng = inner, inner.url, rng
        self.dies_at, self.after, self.chance, self.die, self.meanwhile = dies_at, after, chance, die, meanwhile
        self.count = [0]  # shared with the stores of folders

    def _do(self, method: str, name: str, *rest: Any) -> Any:
        self.count[0] += 1
        n = self.count[0]
        self.meanwhile(n)
        due = bool(self.dies_at) and n >= self.dies_at
        if due and not (self.after and n == self.dies_at):
            self._die()
        fails = self.rng.random() < self.chance
        if fails and self.rng.random() < 0.5:
            raise StoreError(f"Cannot {method} {name!r}: drawn to fail.")
        result = getattr(self.inner, method)(name, *rest)
        if due:
            self._die()
        if fails:
            raise StoreError(f"Cannot tell whether {method} {name!r} was done: drawn to fail.")
        return result

    def _die(self) -> None:
        if self.die is not None:
            self.die()
        raise Died

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._do("read", name, start, end)

    def write(self, name: str, data: bytes) -> None:
        self._do("write", name, data)

    def create(self, name: str, data: bytes) -> None:
        self._do("create", name, data)

    def list(self, prefix: str = "") -> Names:
        return self._do("list", prefix)

    def folders(self, folder: str = "") -> Names:
        return self._do("folders", folder)

    def size(self, name: str) -> int:
        return self._do("size", name)

    def delete(self, name: str) -> None:
        self._do("delete", name)

    def local_path(self, name: str) -> Path | None:
        return self.inner.local_path(name)

    def child(self, folder: str) -> "Unreliable":
        made = Unreliable(
            self.inner.child(folder), self.rng, self.dies_at, self.after, self.chance, self.die, self.meanwhile
        )  # fmt: skip
        made.count = self.count
        return made
