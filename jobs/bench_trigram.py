"""The trigram layer beside `rg -j1` and `rg -j2` on the tree: rare and common strings, regular expressions, and what no index helps."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jobs.bench_structure import Bench, Row
from shards.plan import SpaceQuery

RARE = ("zipimporter", "BadGzipFile", "quotetabs", "setrlimit", "frombytes_native", "IPv6Interface", "unicodedata.decomposition")
REGEX = {"regex": True, "case": "sensitive"}
FORMS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("ThreadPoolExecutor", {"case": "sensitive"}),
    ("raise NotImplementedError", {"case": "sensitive"}),
    ("not found", {"case": "ignore"}),
    ("license", {"case": "ignore", "word": True}),
    ("self.assertEqual(", {"case": "sensitive"}),
    ("import", {"case": "sensitive"}),
    ("def test_", {"case": "sensitive"}),
    ("==", {"case": "sensitive"}),
    ("xyzzy_nowhere", {"case": "sensitive"}),
    (r"class \w+Error\(", REGEX),
    (r"def (get|set)_\w+\(self", REGEX),
    (r"^import (os|sys|re)$", REGEX),
    (r"(?i)copyright \(c\) \d{4}", REGEX),
    (r"TODO|FIXME|XXX", REGEX),
    (r"[Tt]est[Cc]ase", REGEX),
    (r"\bawait\b.*\bsleep\(", REGEX),
    (r"https?://[^\s'>]+/releases", REGEX),
    (r"torch\.(float16|bfloat16|float32)", REGEX),
    (r"\d{4}-\d{2}-\d{2}", REGEX),
    (r"[A-Z]{12,}", REGEX),
    (r"\w+\s*=\s*lambda", REGEX),
    (r"\s+$", REGEX),
    (r"0x[0-9a-fA-F]{8}\b", REGEX),
)


def rows(bench: Bench) -> Iterator[Row]:
    """The rows of each pattern; then how fast the index is made of the same text."""
    for pattern in RARE:
        yield from _asked(bench, f"rare: {pattern}", pattern, {"case": "sensitive"})
    for pattern, form in FORMS:
        yield from _asked(bench, pattern, pattern, form)
    yield from _built(bench)


def _asked(bench: Bench, what: str, pattern: str, form: Mapping[str, Any]) -> Iterator[Row]:
    query = bench.index.prepare("trigram", form={"pattern": pattern, **form})
    options = ["-c", "-a", "--no-ignore", "--hidden", "--no-config", "--no-messages", "--no-unicode", "--crlf"]
    options += [] if form.get("regex") else ["-F"]
    options += ["-i"] if form["case"] == "ignore" else []
    options += ["-w"] if form.get("word") else []
    peers = {f"rg -j{n}": bench.program("rg", f"-j{n}", *options, "-e", pattern) for n in (1, 2)}
    ours = sum(found.n_matched for found in bench.index.search("trigram", query))
    note = f"{ours:,} lines"
    if run := peers["rg -j1"]:
        theirs = sum(int(line.rpartition(b":")[2]) for line in run().splitlines())
        note += "" if theirs == ours else f", rg {theirs:,}"
    yield from bench.rows(what, lambda: _search(bench, query), peers, note)


def _search(bench: Bench, query: SpaceQuery) -> None:
    bench.index.search("trigram", query)


def _built(bench: Bench) -> Iterator[Row]:
    """The index alone, and all of the space, with what `text` counts, too: ms of one thread's CPU, of all segments."""
    from shards.trigram_index import build_index

    layer, seconds = bench.index.layer("trigram"), np.zeros(2)
    for documents, entries in bench.index.segments:
        begun = time.thread_time()
        build_index(documents, np.arange(len(documents)))
        between = time.thread_time()
        layer.build(documents, entries)
        seconds += (between - begun, time.thread_time() - between)
    for what, took in zip(("index built, CPU", "whole space built, CPU"), seconds.tolist(), strict=True):
        yield Row(what, 1000 * took, "", None, f"{bench.index.text_bytes / 1e6 / took:.0f} MB/s")
