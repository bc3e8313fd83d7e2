"""What a change costs among a million paths, listing aside: comparing, the tree's new pages, and the difference of two trees.

Each step is a process of its own, so that its peak of memory is its own. Beside it, in the same run, the bare limit: reading and
parsing the tree's pages.
"""

import json
import multiprocessing
import resource
import tempfile
import time
from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from jobs.progress import Progress

N_CHANGES = 10


def bench_paths(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Seconds, bytes and peak resident memory of building a tree, of finding 10 changes, and of telling two trees apart."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        tree = old = None
        for i, step in enumerate((_build, _update, _diff, _parse)):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                found[step.__name__[1:]], tree, old = pool.submit(_measured, step, scratch, options.paths, tree, old).result()
            progress("paths", i + 1, 4, "steps")
    return {"paths": options.paths, "changes": N_CHANGES, **found}


def _measured(step: Any, scratch: str, n: int, tree: Any, old: Any) -> tuple[dict[str, Any], Any, Any]:
    figures, tree, old = step(Path(scratch), n, tree, old)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB
    return {**figures, "peak_rss_mb": round(peak / 1024)}, tree, old


def _store(scratch: Path) -> Any:
    from jobs.bench_upsert import CountingStore
    from shards.store import open_store

    return CountingStore(open_store(str(scratch))).child("paths")


def _path(i: int) -> str:
    return f"project-{i // 50_000:03}/src/module_{i // 500 % 100:02}/some_file_{i % 500:03}.py"


def _listed(n: int, changed: range) -> Any:
    """A listing of n files in order, some of which were modified."""
    from shards.corpus import Listed, Listing

    touched = set(changed)
    return Listing(tuple(Listed(_path(i), 4000 + i % 1000, 1_700_000_000_000_000_000 + i + (i in touched)) for i in range(n)), {})


def _build(scratch: Path, n: int, _tree: Any, _old: Any) -> tuple[dict[str, Any], Any, Any]:
    """The first tree."""
    from shards import tree
    from shards.tree import TreeRow

    store = _store(scratch)
    rows = (TreeRow(file.path, f"{i:040x}", *file[1:3]) for i, file in enumerate(_listed(n, range(0)).files))
    begun = time.perf_counter()
    root = tree.build(store, rows)
    return {"seconds": round(time.perf_counter() - begun, 2), "bytes_written": store.bytes_written.total()}, root, None


def _update(scratch: Path, n: int, root: Any, _old: Any) -> tuple[dict[str, Any], Any, Any]:
    """A run that finds 10 changes in a listing: what it knows, what may differ, the change, the new tree."""
    from shards import tree
    from shards.comparison import change_of, compare
    from shards.worker import Staged

    store = _store(scratch)
    listing = _listed(n, range(0, n, max(n // N_CHANGES, 1)))
    begun = time.perf_counter()
    compared = compare(listing, tree.rows(store, root), 1 << 30)
    compare_s = time.perf_counter() - begun
    staged = Staged(hashes={file.path: bytes(20) for file in compared.suspects})
    change = change_of("main", compared, [staged], 1 << 30)
    new = tree.edit(store, root, change.upserts, change.deletes)
    figures = {
        "seconds": round(time.perf_counter() - begun, 2),
        "of these comparing": round(compare_s, 2),
        "suspects": len(compared.suspects),
        "bytes_read": store.bytes_read.total(),
        "bytes_written": store.bytes_written.total(),
    }
    return figures, new, root


def _diff(scratch: Path, n: int, root: Any, old: Any) -> tuple[dict[str, Any], Any, Any]:
    """The two trees."""
    from shards import tree

    store = _store(scratch)
    begun = time.perf_counter()
    differing = len(list(tree.diff(store, old, root)))
    seconds = time.perf_counter() - begun
    return {"seconds": round(seconds, 3), "differing": differing, "bytes_read": store.bytes_read.total()}, root, old


def _parse(scratch: Path, n: int, root: Any, old: Any) -> tuple[dict[str, Any], Any, Any]:
    """The bare limit: all pages read and parsed."""
    store = _store(scratch)
    begun = time.perf_counter()
    n_rows = sum(len(json.loads(store.read(name)).get("rows", ())) for name in store.list("trees/"))
    return {"seconds": round(time.perf_counter() - begun, 2), "rows": n_rows}, root, old
