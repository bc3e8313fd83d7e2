"""How long packages take to import, beside an empty interpreter."""

import statistics
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from jobs.bench_index import timed
from jobs.progress import Progress


def bench_imports(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Median milliseconds to import a package in a fresh interpreter, less that of an empty one."""
    rounds = options.rounds or 5
    root = Path(__file__).resolve().parent.parent

    def milliseconds(statement: str) -> float:
        command = [sys.executable, "-c", statement]
        return 1000 * statistics.median(timed(lambda: subprocess.run(command, cwd=root, check=True))[0] for _ in range(rounds))

    bare = milliseconds("pass")
    found = {"bare interpreter": round(bare, 1)}
    packages = ("shards", "shards.layers.contract", "cluster.host", "serve.coordinator", "jobs.cli")
    for i, package in enumerate(packages):
        found[package] = round(milliseconds(f"import {package}") - bare, 1)
        progress("imports", i + 1, len(packages), "packages")
    return {"milliseconds": found}
