"""Filters over entries of one segment beside plain Arrow: the same comparison by pyarrow.compute on the same columns in memory.

Arrow's figure is the limit that whole columns set; ours adds the mask in the order of entries, and takes away what zones pass over.
"""

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jobs.progress import Progress

YEARS = 35


def bench_filter(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Per number of entries: bytes on disk, and of each filter milliseconds, entries found, blocks compared, Arrow's milliseconds."""
    return {str(n): _of_size(n, options.rounds or 7, progress) for n in options.entries}


def _of_size(n: int, rounds: int, progress: Progress) -> dict[str, Any]:
    from shards.cache import FileCache
    from shards.documents import Documents
    from shards.plan import And, Compare, Glob, Predicate
    from shards.scope import EntryFields
    from shards.segment import Segment, pack_entries, serialise, write
    from shards.store import open_store
    from shards.types import Entry

    keys = np.random.default_rng(1).bytes(20 * n)
    progress("entries", 0, n, "entries")
    entries = [Entry("shop", _path(i), keys[20 * i : 20 * i + 20], 100 + i % 5_000, i * 10**9, metadata=_metadata(i, n)) for i in range(n)]
    begun = time.perf_counter()
    built = serialise(Documents.pack([]), pack_entries(entries), {}, {}, {})
    packed_s = time.perf_counter() - begun
    del entries
    filters: dict[str, Predicate] = {
        "price < 30": Compare("price", "<", 30.0),
        "year >= 2020 (rises with the path)": Compare("year", ">=", 2020),
        "brand == one of 311": Compare("brand", "==", "brand007"),
        "title == one of all": Compare("title", "==", f"title of {n // 2}"),
        "title < a text": Compare("title", "<", "title of 2"),
        "stock is true": Compare("stock", "==", True),
        "price and year and two brands": And(
            (Compare("price", "<", 30.0), Compare("year", ">=", 2020), Compare("brand", "in", ("brand007", "brand011")))
        ),
        "year >= 3000 (none)": Compare("year", ">=", 3000),
        "size_bytes < 300": Compare("size_bytes", "<", 300),
        "glob of a folder": Glob("shop/0001/**"),
        "glob of an extension": Glob("**/*7.md"),
        "glob within": Glob("shop/*/item*7.md"),
    }
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        store = open_store(f"{scratch}/store")
        ref = write(store, built)
        sizes = {role: len(built.files[role]) for role in ("entries", "meta", "zones")}
        del built
        segment = Segment(ref, store, FileCache(Path(scratch) / "cache", 1 << 40))
        fields = EntryFields(segment.entries)
        found: dict[str, Any] = {}
        for i, (name, where) in enumerate(filters.items()):
            take = lambda where=where: _fresh(fields, where)  # noqa: E731
            mask = take()
            figures = {"ms": _ms(take, rounds), "found": n if mask is None else int(mask.sum())}
            if isinstance(where, Compare) and where.field in segment.entries.metadata.zones.columns:
                figures["blocks compared"] = _blocks(segment.entries.metadata, where)
                figures["arrow_ms"] = _ms(_arrow(segment.entries.metadata, where), rounds)
            found[name] = figures
            progress("filters", i + 1, len(filters), "filters")
    return {"bytes": sizes, "pack_us_per_entry": round(1e6 * packed_s / n, 1), "filters": found}


def _path(i: int) -> str:
    return f"shop/{i // 1000:04}/item{i:07}.md"


def _metadata(i: int, n: int) -> dict[str, Any]:
    year = 1990 + i * YEARS // n
    return {"price": i % 977 / 4, "year": year, "brand": f"brand{i % 311:03}", "title": f"title of {i}", "stock": i % 7 == 0}


def _fresh(fields: Any, where: Any) -> Any:
    """The mask, computed; those that were kept are dropped first."""
    fields.forget()
    return fields.mask(where)


def _blocks(metadata: Any, where: Any) -> str:
    """How many of a column's blocks must be compared, of all."""
    from shards.conditions import condition

    zones = metadata.zones
    if metadata.zones.decide(where.field, where.op, where.value) is not None:
        return f"0 of {len(zones.sizes)}"
    column = metadata.columns.named(where.field)[0]
    none, every = zones.of(column).blocks(condition(column, where.op, where.value), zones.sizes)
    return f"{int((~(none | every)).sum())} of {len(none)}"


def _arrow(metadata: Any, where: Any) -> Callable[[], Any]:
    """The same comparison by Arrow over the whole column, as it lies in memory."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = metadata.columns.named(where.field)[0]
    array = pa.array(column.values)
    if column.kind == "string":
        array = pa.array([column.words[code] for code in column.values.tolist()]).dictionary_encode()
        array = array if len(column.words) < 10_000 else array.dictionary_decode()
    test = {"==": pc.equal, "<": pc.less, ">=": pc.greater_equal}[where.op]
    return lambda: test(array, pa.scalar(where.value)).to_numpy(zero_copy_only=False)


def _ms(call: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return round(1000 * statistics.median(times), 3)
