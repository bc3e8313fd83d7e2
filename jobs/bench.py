"""Speeds, each beside a bare limit measured in the same run: `python jobs/bench.py WHAT [--json FILE]`.

index    build, no-change run, one edited file, on a copy of the Python standard library, in this process with compiled code
         warm; beside reading and hashing the same files
imports  time to import each package
"""

import argparse
import io
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from jobs.progress import Progress

STDLIB_EXCLUDE = ("**/site-packages/**", "**/__pycache__/**", "**/config-3*/**", "**/lib-dynload/**", "**/test/**", "**/tests/**",
                  "**/idle_test/**")  # fmt: skip


def machine() -> dict[str, Any]:
    """What the figures were taken on, with its load: a busy machine makes them lower bounds."""
    return {"cores": len(os.sched_getaffinity(0)), "load": [round(x, 2) for x in os.getloadavg()], "python": platform.python_version()}


def copy_of_stdlib(folder: Path) -> Path:
    """The standard library without its tests, as plain files."""
    from shards.corpus import Source, list_source

    root = Path(sysconfig.get_path("stdlib"))
    listing = list_source(Source("stdlib", str(root), exclude=STDLIB_EXCLUDE))
    for file in listing.files:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / file.path, target)
        os.utime(target, ns=(file.mtime_ns, file.mtime_ns))
    return folder


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = action()
    return time.perf_counter() - begun, result


def hash_all(folder: Path) -> int:
    """The bare limit of an index run: read and hash every file."""
    from shards.identity import content_hash

    size = 0
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            content_hash(data)
            size += len(data)
    return size


def bench_index(progress: Progress, rounds: int = 3) -> dict[str, Any]:
    """Median seconds of a build, a run without change and a run with one edited file; MB/s; ratios to reading and hashing."""
    from jobs import index
    from jobs.settings import Settings

    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        source = copy_of_stdlib(Path(scratch) / "src")
        edited = source / "json" / "decoder.py"
        silent = Progress(io.StringIO())

        def run(store: str, layers: str) -> Any:
            args = index.parser().parse_args(
                ["--corpus", "stdlib", "--source", str(source), "--store", store, "--layers", layers, "--local"]
            )
            return index.run(args, Settings.load(store=store), silent)

        rows: dict[str, list[float]] = {}

        def note(name: str, seconds: float) -> None:
            rows.setdefault(name, []).append(seconds)

        run(str(Path(scratch) / "warm"), "names,text,bm25,static")  # compiled code and the static model are made once
        size = 0
        for i in range(rounds):
            seconds, size = timed(lambda: hash_all(source))
            note("read and hash", seconds)
            store = str(Path(scratch) / f"plain{i}")
            seconds, outcome = timed(lambda store=store: run(store, "names,text,bm25"))
            note("names,text,bm25", seconds)
            note("names,text,bm25 without null models", seconds - outcome.seconds.get("null models", 0.0))
            store = str(Path(scratch) / f"full{i}")
            seconds, _ = timed(lambda store=store: run(store, "names,text,bm25,static"))
            note("names,text,bm25,static", seconds)
            seconds, outcome = timed(lambda store=store: run(store, "names,text,bm25,static"))
            assert not outcome.changed
            note("no change", seconds)
            edited.write_text(edited.read_text() + f"# round {i}\n")
            seconds, outcome = timed(lambda store=store: run(store, "names,text,bm25,static"))
            assert outcome.hashed == 1 and outcome.changed
            note("one edited file", seconds)
            progress("index", i + 1, rounds, "rounds")
    seconds = {name: statistics.median(values) for name, values in rows.items()}
    megabytes = size / 1e6
    return {
        "megabytes": round(megabytes, 2),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "mb_per_s": {name: round(megabytes / value, 1) for name, value in seconds.items() if name not in ("no change", "one edited file")},
        "times read and hash": {name: round(value / seconds["read and hash"], 1) for name, value in seconds.items()},
    }


def bench_imports(progress: Progress, rounds: int = 5) -> dict[str, Any]:
    """Median milliseconds to import a package in a fresh interpreter, less that of an empty one."""
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


BENCHES: dict[str, Callable[[Progress], dict[str, Any]]] = {"index": bench_index, "imports": bench_imports}


def main(argv: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="sondage bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*BENCHES, "all"])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args(argv)
    names = list(BENCHES) if args.what == "all" else [args.what]
    before = machine()
    figures = {name: BENCHES[name](Progress()) for name in names}
    result = {"machine": before | {"load_after": [round(x, 2) for x in os.getloadavg()]}, **figures}
    print(json.dumps(result, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
