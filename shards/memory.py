"""How much memory something takes in this process, measured: pages of mapped files that are here, and arrays that were allocated.

Of a mapped file the kernel keeps in memory what was touched lately; which pages of a mapping this process has is what
`/proc/self/pagemap` says (Linux, Documentation/admin-guide/mm/pagemap.rst), 8 bytes a page: 1 to 4 ms for each GB mapped. `mincore` would
not do: it tells of the machine's page cache (measured: 512 MB of a file just written, of which 100 had been touched), and of files
of other users that all of it is there. `smaps` says the same as pagemap, 15 ms for a process with torch, by file and not by address.
Pages are counted where they are mapped; the kernel may have one copy for several processes.
"""

import gc
import mmap
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from shards.documents import Documents, Entries
from shards.layers.contract import Layer
from shards.types import Array

_PRESENT = np.uint64(1 << 63)
_PAGES = 1 << 18  # looked at in one read, 2 MB
_MAX_ITEMS = 10_000  # of one list or dictionary that are looked into; of larger ones the container alone is counted
# What readers refer to and others own: documents and entries are mapped, a layer may hold a model.
_OTHERS = (Documents, Entries, Layer, str, int, float, bool, complex, type, type(None))


class Mapped(NamedTuple):
    """Of files mapped: bytes, and bytes that are in memory; None where this system does not tell."""

    size: int = 0
    resident: int | None = 0


def mapped(arrays: Iterable[Array]) -> Mapped:
    """Of the files that these arrays are views of, each once; arrays that are no views of files count nothing."""
    places = {place for array in arrays if (place := _mapping_of(array)) is not None}
    resident = [resident_bytes(*place) for place in places]
    return Mapped(sum(size for _, size in places), None if None in resident else sum(r or 0 for r in resident))


def resident_bytes(address: int, size: int) -> int | None:
    """How many of these bytes of this process's address space are in memory, as whole pages; None where this system does not tell."""
    if not size:
        return 0
    first, last = address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)
    n_present = 0
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pages:
            for start in range(first, last, _PAGES):
                pages.seek(8 * start)
                entries = np.frombuffer(pages.read(8 * min(_PAGES, last - start)), np.uint64)
                if not len(entries):
                    return None
                n_present += int(np.count_nonzero(entries & _PRESENT))
    except OSError:
        return None
    return n_present * mmap.PAGESIZE


def _mapping_of(array: Array) -> tuple[int, int] | None:
    """Address and size of the file mapping that an array is a view of."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    source = base.obj if isinstance(base, memoryview) else base
    if not isinstance(source, mmap.mmap):
        return None
    whole = np.frombuffer(source, np.uint8)
    return whole.ctypes.data, len(whole)


def private_bytes(objects: Iterable[Any]) -> int:
    """Bytes of all arrays (and byte strings and containers) that objects allocated and refer to, each once; mapped ones count nothing.

    Objects of this project's classes are looked into, save documents, entries and layers. One whose memory lies elsewhere, in a
    library's index, tells it as `nbytes`.
    """
    total, seen, stack = 0, set(), list(objects)
    while stack:
        item = stack.pop()
        if isinstance(item, _OTHERS) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray):
            owner: Any = item
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            if owner.base is None:
                total += owner.nbytes if owner is item or id(owner) not in seen else 0
                seen.add(id(owner))
            else:
                stack.append(owner.base)  # bytes; a view of a mapping has no more to count
        elif isinstance(item, bytes | bytearray):
            total += len(item)
        elif isinstance(item, Mapping | list | tuple | set | frozenset):
            total += sys.getsizeof(item)
            if len(item) <= _MAX_ITEMS:
                stack.extend(item.values() if isinstance(item, Mapping) else item)
        elif type(item).__module__.startswith("shards."):
            if isinstance(told := getattr(item, "nbytes", None), int):
                total += told
            else:
                stack.extend(_attributes(item))
    return total


def _attributes(item: Any) -> list[Any]:
    slots = [name for kind in type(item).__mro__ for name in _names(kind.__dict__.get("__slots__", ()))]
    return [*getattr(item, "__dict__", {}).values(), *(getattr(item, name) for name in slots if hasattr(item, name))]


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def process_bytes() -> int | None:
    """All memory of this process that is resident; None where this system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return None


def give_back() -> None:
    """Have the C library return freed memory to the system, where it can: building a segment frees arrays of some MB, of which glibc
    keeps a third as much as the corpus's vectors for the next time, which for a process that only asks from now on never comes. 2 ms."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_uncollected = 0  # how many are within `uncollected`
_counting = threading.Lock()


@contextmanager
def uncollected() -> Iterator[None]:
    """Without cyclic garbage collections, for a bounded piece of work whose objects stay, or refer to nothing in a circle.

    The collector runs after so many new objects and looks at all there are, of which numba and pyarrow alone have 300,000: a fifth of the
    time that it takes to write 20,000 documents. Whoever had switched it off finds it so.
    """
    global _uncollected
    with _counting:
        was_on = gc.isenabled() or _uncollected > 0
        _uncollected += was_on
        gc.disable()
    try:
        yield
    finally:
        with _counting:
            _uncollected -= was_on
            if was_on and not _uncollected:
                gc.enable()
