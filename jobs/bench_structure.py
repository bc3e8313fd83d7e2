"""Layers that match (text, trigram, names, structure …) beside the tools that do the same to a folder: one table, one run.

Ours is the whole path inside a shard: `Reader.search` over all live rows of every segment, one after the other. The peers are
programs over the same files, their output thrown away, the page cache warm. Ours and the peers are asked in turns, and each one's
best of some rounds counts: other work on the machine slows whoever is just being asked. What HTTP adds is told apart.

A part of the table is a line in PARTS: the spaces that it needs, and a function that yields rows.
"""

import asyncio
import importlib
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from jobs.bench_tree import CORPUS, Indexed, Tree, given_tree, indexed, made_tree
from jobs.progress import Progress

N_OVER_HTTP = 20  # questions of each space


class Row(NamedTuple):
    """A line of the table. ours_ms, peer_ms: None where it was not measured. peer: "rg -j1". note: e.g. that both found the same."""

    what: str
    ours_ms: float | None
    peer: str
    peer_ms: float | None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the peer."""
        return self.peer_ms / self.ours_ms if self.ours_ms and self.peer_ms else None


@dataclass
class Bench:
    """What a part measures with. rounds: each time is the best of as many. index: the tree with the spaces of the part. scope: a glob,
    the files that its scoped spaces are built for; "": all."""

    index: Indexed
    rounds: int
    progress: Progress
    scope: str = ""

    def program(self, *command: str) -> Callable[[], bytes] | None:
        """A peer: runs a program in the tree's root and returns its output. None where it is not installed.

        Exit codes 0 and 1 are answers (found, not found); any other raises CalledProcessError.
        """
        if shutil.which(command[0]) is None:
            return None

        def run() -> bytes:
            done = subprocess.run(command, cwd=self.index.tree.root, stdin=subprocess.DEVNULL, capture_output=True)
            if done.returncode > 1:
                raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr[:2000])
            return done.stdout

        return run

    def best_ms(self, ways: Mapping[str, Callable[[], Any] | None]) -> dict[str, float | None]:
        """Milliseconds of each way, the best of all rounds, asked in turns; None for a way that is not there."""
        best: dict[str, float | None] = dict.fromkeys(ways)
        for _ in range(self.rounds):
            for name, way in ways.items():
                if way is None:
                    continue
                begun = time.perf_counter()
                way()
                ms = 1000 * (time.perf_counter() - begun)
                best[name] = min(best[name] or math.inf, ms)
        return best

    def rows(self, what: str, ours: Callable[[], Any], peers: Mapping[str, Callable[[], Any] | None], note: str = "") -> list[Row]:
        """A row for each peer, by the name it has in the table."""
        best = self.best_ms({"": ours, **peers})
        return [Row(what, best[""], name, best[name], note if peers[name] else "not installed") for name in peers]


Part = tuple[tuple[str, ...], str]
# name -> (layer specs of its spaces, "module:function"); the function takes a Bench and yields rows. A scope holds in the tree that is
# made, unless --scope gives another: parsing for a question costs the peer a second for 8 MB, so 40 of them are put to some megabytes.
PARTS: dict[str, Part] = {
    "names": (("names", "fuzzy"), "jobs.bench_names:rows"),
    "text": (("text",), "jobs.bench_text:rows"),
    "trigram": (("trigram",), "jobs.bench_trigram:rows"),
    "structure": (("structure@stdlib/[_a-d]*.py", "symbols@stdlib/[_a-d]*.py"), "jobs.bench_syntax:rows"),
}


def bench_structure(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Every part's rows, summed up by peer, and what HTTP adds; the table goes to stderr as it grows."""
    tree = given_tree(options.tree) if options.tree else made_tree(options.megabytes, progress)
    scope = options.scope or ("" if options.tree else None)
    _tell(f"{tree.how}\n{_line('what', 'ours ms', 'peer', 'peer ms', 'ratio', '')}")
    return {
        "tree": tree.how,
        "files": tree.n_files,
        "megabytes": round(tree.size_bytes / 1e6, 1),
        "parts": {name: _measured(name, tree, scope, options.rounds or 3, progress) for name in options.parts or PARTS},
    }


def _measured(name: str, tree: Tree, scope: str | None, rounds: int, progress: Progress) -> dict[str, Any]:
    """One part's figures. scope: what its scoped spaces are built for, "" all of the tree, None as their specs say."""
    specs, function = PARTS[name]
    if scope is not None:
        specs = tuple(spec.partition("@")[0] + (f"@{scope}" if scope and "@" in spec else "") for spec in specs)
    scopes = [glob for spec in specs if (glob := spec.partition("@")[2])]
    module, _, attribute = function.partition(":")
    index = indexed(tree, specs, progress)
    rows: list[Row] = []
    for row in getattr(importlib.import_module(module), attribute)(Bench(index, rounds, progress, *scopes[:1])):
        rows.append(row)
        _tell(_line(f"{name}: {row.what}", _ms(row.ours_ms), row.peer, _ms(row.peer_ms), _times(row.ratio), row.note))
    peers = dict(_summed(rows))
    for peer, of in peers.items():
        _tell(f"{name}: {of['rows']} rows beside {peer}: mean {of['mean ratio']} x, least {of['least ratio']} x ({of['least of']})")
    http = over_http(index)
    for space, of in http.items():
        _tell(f"{name}: over HTTP {space} takes p50 {of['p50_ms']} ms, of which in its layer {of['layer_p50_ms']} ms")
    return {
        "rows": [row._asdict() | {"ratio": _rounded(row.ratio)} for row in rows],
        "peers": peers,
        "index": {space: _sizes(index, space) for space in index.generation.spaces},
        "over HTTP": http,
    }


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _summed(rows: Sequence[Row]) -> Iterator[tuple[str, dict[str, Any]]]:
    """By peer: geometric mean of the ratios, and the least."""
    for peer in dict.fromkeys(row.peer for row in rows if row.ratio):
        compared = [row for row in rows if row.peer == peer and row.ratio]
        least = min(compared, key=lambda row: row.ratio or 0.0)
        mean = round(statistics.geometric_mean(row.ratio or 0.0 for row in compared), 2)
        yield peer, {"rows": len(compared), "mean ratio": mean, "least ratio": _rounded(least.ratio), "least of": least.what}


def _sizes(index: Indexed, space: str) -> dict[str, Any]:
    size = index.arrays_bytes(space)
    return {"bytes": size, "times the text": round(size / max(index.text_bytes, 1), 3)}


def over_http(index: Indexed) -> dict[str, Any]:
    """The same questions to a server of its own, 10 hits with excerpts: p50 of the whole, of the layer alone, and of
    what HTTP, fusion and excerpts add, by space."""
    from jobs.bench_http import server

    if not index.asked:
        return {}
    with server("process", index.store_url) as url:
        return asyncio.run(_asked(url, index.asked))


async def _asked(url: str, asked: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    from jobs.bench_http import answer, request, until_ready

    await until_ready(url)
    reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    found = {}
    for space, questions in asked.items():
        spread = questions[:: max(1, len(questions) // N_OVER_HTTP)][:N_OVER_HTTP]
        whole, layer = [], []
        for question in spread:
            body = json.dumps({"corpus": CORPUS, "k": 10, **question}).encode()
            times = []
            for _ in range(3):
                begun = time.perf_counter()
                writer.write(request(url, "POST", "/v1/search", body))
                status, _, said = await answer(reader)
                if status == 200:
                    times.append((1000 * (time.perf_counter() - begun), json.loads(said)["timings_ms"].get(f"layer {space}", 0.0)))
            if times:
                whole.append(min(times)[0])
                layer.append(min(times)[1])
        if whole:
            found[space] = {
                "questions": len(whole),
                "p50_ms": round(statistics.median(whole), 2),
                "layer_p50_ms": round(statistics.median(layer), 2),
                "added_p50_ms": round(statistics.median(a - b for a, b in zip(whole, layer, strict=True)), 2),
            }
    writer.close()
    return found


def _line(what: str, ours: str, peer: str, theirs: str, ratio: str, note: str) -> str:
    return f"{what[:64]:64} {ours:>10} {peer:>16} {theirs:>10} {ratio:>8}  {note}".rstrip()


def _ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.2f}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f} x"


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 2)
