"""How fast a corpus is indexed, beside reading and hashing the same files, in this process with compiled code warm."""

import io
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs.bench_corpus import copy_of_stdlib
from jobs.progress import Progress


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = action()
    return time.perf_counter() - begun, result


def build(source: Path, store: str, layers: str, *options: str) -> Any:
    """One run of the index job in this process; its outcome."""
    from jobs import index
    from jobs.settings import Settings

    args = ["--corpus", "stdlib", "--source", str(source), "--store", store, "--layers", layers, "--local", *options]
    return index.run(index.parser().parse_args(args), Settings.load(store=store), Progress(io.StringIO()))


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


def bench_index(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Median seconds of a build, a run without change and a run with one edited file; MB/s; ratios to reading and hashing."""
    rounds = options.rounds or 3
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        source = copy_of_stdlib(Path(scratch) / "src")
        edited = source / "json" / "decoder.py"
        rows: dict[str, list[float]] = {}

        def note(name: str, seconds: float) -> None:
            rows.setdefault(name, []).append(seconds)

        build(source, str(Path(scratch) / "warm"), "names,text,bm25,static")  # compiled code and the static model are made once
        size = 0
        for i in range(rounds):
            seconds, size = timed(lambda: hash_all(source))
            note("read and hash", seconds)
            store = str(Path(scratch) / f"plain{i}")
            seconds, outcome = timed(lambda store=store: build(source, store, "names,text,bm25"))
            note("names,text,bm25", seconds)
            note("names,text,bm25 without null models", seconds - outcome.seconds.get("null models", 0.0))
            store = str(Path(scratch) / f"full{i}")
            seconds, _ = timed(lambda store=store: build(source, store, "names,text,bm25,static"))
            note("names,text,bm25,static", seconds)
            seconds, outcome = timed(lambda store=store: build(source, store, "names,text,bm25,static"))
            assert not outcome.changed
            note("no change", seconds)
            edited.write_text(edited.read_text() + f"# round {i}\n")
            seconds, outcome = timed(lambda store=store: build(source, store, "names,text,bm25,static"))
            assert outcome.hashed == 1 and outcome.changed
            note("one edited file", seconds)
            progress("index", i + 1, rounds, "rounds")
    seconds = {name: statistics.median(values) for name, values in rows.items()}
    builds = [name for name in seconds if name not in ("no change", "one edited file")]
    megabytes = size / 1e6
    return {
        "megabytes": round(megabytes, 2),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "mb_per_s": {name: round(megabytes / seconds[name], 1) for name in builds},
        "times read and hash": {name: round(value / seconds["read and hash"], 1) for name, value in seconds.items()},
    }
