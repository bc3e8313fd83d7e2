"""A store that dies on demand, and that remembers what it was asked."""

from pathlib import Path
from typing import Any

from shards.store import Names, Store


class Crash(BaseException):
    """The process died. Not an Exception, so that no handler takes it for an error to be dealt with."""


class FaultyStore(Store):
    """A store that crashes at operation `fail_at` (counted from 1), before performing it or after.

    Every later operation crashes too: the dead do not clean up. Without `fail_at` it only records.
    operations: (method, name) of all operations so far, shared with the stores of its folders, whose names are prefixed.
    """

    def __init__(self, inner: Store, fail_at: int | None = None, after: bool = False):
        self.inner = inner
        self.url = inner.url
        self.fail_at = fail_at
        self.after = after
        self.operations: list[tuple[str, str]] = []
        self._folder = ""

    def reads(self) -> Names:
        """The names read so far, in order."""
        return [name for method, name in self.operations if method == "read"]

    def writes(self) -> Names:
        """The names written so far, in order."""
        return [name for method, name in self.operations if method in ("write", "create")]

    def _perform(self, method: str, name: str, *arguments: Any) -> Any:
        self.operations.append((method, self._folder + name))
        n = len(self.operations)
        if self.fail_at is not None and (n > self.fail_at or (n == self.fail_at and not self.after)):
            raise Crash(f"before operation {n}: {method} {name}")
        result = getattr(self.inner, method)(name, *arguments)
        if n == self.fail_at:
            raise Crash(f"after operation {n}: {method} {name}")
        return result

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._perform("read", name, start, end)

    def write(self, name: str, data: bytes) -> None:
        self._perform("write", name, data)

    def create(self, name: str, data: bytes) -> None:
        self._perform("create", name, data)

    def list(self, prefix: str = "") -> Names:
        return self._perform("list", prefix)

    def folders(self, folder: str = "") -> Names:
        return self._perform("folders", folder)

    def size(self, name: str) -> int:
        return self._perform("size", name)

    def delete(self, name: str) -> None:
        self._perform("delete", name)

    def local_path(self, name: str) -> Path | None:
        return self.inner.local_path(name)

    def child(self, folder: str) -> "FaultyStore":
        child = FaultyStore(self.inner.child(folder), self.fail_at, self.after)
        child.operations = self.operations
        child._folder = f"{self._folder}{folder}/"
        return child
