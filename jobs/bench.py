"""Speeds, each beside a peer or a bare limit measured in the same run: `python jobs/bench.py WHAT [--json FILE]`.

index    build, no-change run, one edited file, on a copy of the Python standard library, in this process with compiled code
         warm; beside reading and hashing the same files
query    BM25 with exact null moments beside tantivy and bm25s (made by infra/peers): queries, latency, builds
bm25s    how well bm25 ranks beside bm25s over the same terms, on every --dataset: nDCG@10, differences with p, what ties could do
http     searches over HTTP at 1, 8 and 64 clients, and where their time goes, of one process, through Ray Serve's proxy and at
         the coordinator's own listener on Ray; beside a request without work on the same path and a bare uvicorn
upsert   one edited file of many: seconds until the job is done and until it is found, bytes read and written; beside walking the folder
push     documents over HTTP: until durable, until found, how many a second, searches beside them; beside an append with fsync
paths    a change among a million paths, listing aside: seconds and memory; beside reading and parsing the tree
filter   filters on metadata, facts and paths over many entries: milliseconds and blocks compared; beside plain Arrow over whole columns
verdict  how often nonsense is told from the library's own docstrings (--foreign DIR: questions of another collection, too)
fusion   bringing 8 spaces of 16 shards together: milliseconds of each step beside reciprocal ranks in a dict; bytes of null models
feedback  what chosen spans gain for the documents not seen yet, on every --dataset: nDCG@10 of the rest, with p
joint    what lists of 100 documents a space miss of the ranking of all documents, on every --dataset: recall, nDCG@10, milliseconds
spaces   each similarity space alone on real text: times, recall, moments and bytes, beside faiss or brute force
structure  layers that match, on a tree of 300 MB beside rg, fd, ugrep and ast-grep: milliseconds, ratios, bytes, what HTTP adds
formats  files of formats in --folder: files and bytes a second of each, what becomes of --mutants mutilated ones, and --probes
context  dense passages read alone and in their documents (late chunking), on --dataset: nDCG@10 and seconds of encoding
late-recall  late interaction beside dense on --dataset: nDCG@10, and the recall of its own candidates
nlql     NLQL beside python-nlql in --peer DIR, over --units with given vectors: ingestion, queries, peak memory, and ratios beside goals
fuzz     random queries of NLQL, right and broken, asked of an engine: rows or a placed error, never another exception, the slowest
cluster  four nodes over --passages: 4 -> 8 -> 2 shards under load, --clients at once for --seconds, what a thousand shards would cost
anytime  what an answer is worth within a time, whether it comes by then, how soon a new corpus answers, and with processes killed
histories  random histories of changes, crashes, kills, failures and jobs at once, each checked against an index from scratch
freshness  what it costs to see whether files are what was indexed: seconds of a look at all, milliseconds that a check adds to searches
imports  time to import each package; beside an empty interpreter
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from jobs.arguments import Parser
from jobs.bench_anytime import PARTS as ANYTIME_PARTS
from jobs.bench_anytime import bench_anytime
from jobs.bench_bm25s import bench_bm25s
from jobs.bench_budgets import bench_budgets
from jobs.bench_cluster import STAGES, bench_cluster, stages
from jobs.bench_context import bench_context
from jobs.bench_feedback import bench_feedback
from jobs.bench_filter import bench_filter
from jobs.bench_formats import bench_formats
from jobs.bench_freshness import bench_freshness
from jobs.bench_fusion import bench_fusion
from jobs.bench_fuzz import bench_fuzz
from jobs.bench_http import SERVERS, bench_http
from jobs.bench_imports import bench_imports
from jobs.bench_index import bench_index
from jobs.bench_joint import bench_joint
from jobs.bench_late_recall import bench_late_recall
from jobs.bench_nlql import PEER, bench_nlql
from jobs.bench_paths import bench_paths
from jobs.bench_push import bench_push
from jobs.bench_query import bench_query
from jobs.bench_spaces import SPACES, bench_spaces, sized
from jobs.bench_structure import PARTS, bench_structure
from jobs.bench_upsert import bench_upsert
from jobs.bench_verdict import N_NONSENSE, bench_verdict
from jobs.failing import STOPPED, tell
from jobs.histories import bench_histories
from jobs.progress import Progress
from shards.errors import SondageError

BENCHES: dict[str, Callable[[Progress, argparse.Namespace], dict[str, Any]]] = {
    "index": bench_index,
    "query": bench_query,
    "bm25s": bench_bm25s,
    "http": bench_http,
    "upsert": bench_upsert,
    "push": bench_push,
    "paths": bench_paths,
    "filter": bench_filter,
    "verdict": bench_verdict,
    "fusion": bench_fusion,
    "feedback": bench_feedback,
    "joint": bench_joint,
    "spaces": bench_spaces,
    "structure": bench_structure,
    "formats": bench_formats,
    "context": bench_context,
    "late-recall": bench_late_recall,
    "nlql": bench_nlql,
    "fuzz": bench_fuzz,
    "cluster": bench_cluster,
    "anytime": bench_anytime,
    "budgets": bench_budgets,
    "histories": bench_histories,
    "freshness": bench_freshness,
    "imports": bench_imports,
}


def machine() -> dict[str, Any]:
    """What the figures were taken on, with its load: a busy machine makes them lower bounds."""
    return {"cores": len(os.sched_getaffinity(0)), "load": load(), "python": platform.python_version()}


def load() -> list[float]:
    """Processes that wanted a core in the last 1, 5 and 15 minutes; more than there are cores means that they waited."""
    return [round(x, 2) for x in os.getloadavg()]


def whole_numbers(text: str) -> list[int]:
    """Of "100000,500000". Raises ArgumentTypeError."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 100000,500000")
    return numbers


def parts(text: str) -> list[str]:
    """Of "text,names" of `structure`, or "quality,cold" of `anytime`. Raises ArgumentTypeError."""
    names = text.split(",")
    for known in (PARTS, ANYTIME_PARTS):
        if set(names) <= set(known):
            return names
    raise argparse.ArgumentTypeError(f"{text}: choose from {', '.join(PARTS)} of structure, or from {', '.join(ANYTIME_PARTS)} of anytime")


def servers(text: str) -> list[str]:
    """Of "process,ray". Raises ArgumentTypeError."""
    names = text.split(",")
    if unknown := set(names) - set(SERVERS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(SERVERS)}")
    return names


def parser() -> argparse.ArgumentParser:
    """The command line."""
    plain = argparse.RawDescriptionHelpFormatter
    p = Parser(prog="sondage bench", description=__doc__, epilog="Exit code: 0 done, 2 error.", formatter_class=plain)
    p.add_argument("what", choices=[*BENCHES, "all"])
    p.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    p.add_argument("--seed", type=int, default=0,
                   help="histories: of the first, each being a function of its seed; bm25s: of p; anytime, budgets: of draws")  # fmt: skip
    p.add_argument("--n", type=int, default=2_000, help="histories: how many in memory, and a hundredth as many with kills")
    p.add_argument("--store", help="fusion: whose null models are weighed, too. joint, anytime, budgets: with the collections")
    p.add_argument("--rounds", type=int, help="how often each figure is taken (its median counts)")
    p.add_argument("--passages", type=whole_numbers, default=[100_000], metavar="N,…",
                   help="query: sizes of the corpus; cluster: the largest")  # fmt: skip
    p.add_argument("--files", type=whole_numbers, default=[100_000], metavar="N,…",
                   help="upsert; push, anytime, freshness (the largest): sizes of the corpus")  # fmt: skip
    p.add_argument("--session-files", type=int, default=4_000, help="anytime: of the corpus whose dear layer builds itself")
    p.add_argument("--requests", type=int, default=10_000, help="anytime: searches with a deadline")
    p.add_argument("--limit", type=int, metavar="N", help="anytime: only the first N judged queries (default: 76)")
    p.add_argument("--paths", type=int, default=1_000_000, help="paths: how many")
    p.add_argument("--entries", type=whole_numbers, default=[100_000], metavar="N,…", help="filter: entries of the segment")
    p.add_argument("--clients", type=whole_numbers, default=[1, 8, 64], metavar="N,…", help="http: clients at a time; cluster: the most")
    p.add_argument("--seconds", type=float, default=3.0, help="http: how long each number of clients asks, in each round; cluster: all")
    p.add_argument("--servers", type=servers, default=SERVERS, metavar="NAME,…", help=f"http: of {', '.join(SERVERS)} (default: all)")
    p.add_argument("--nonsense", type=int, default=N_NONSENSE, help="verdict: queries of each kind of nonsense")
    p.add_argument("--foreign", action="append", default=[], type=Path, metavar="DIR", help="verdict: a folder in BEIR layout (repeatable)")
    p.add_argument("--spaces", type=sized, default=sized(",".join(SPACES)), metavar="NAME[=N],…", help=f"spaces: of {', '.join(SPACES)}")
    p.add_argument("--parts", type=parts, metavar="NAME,…",
                   help=f"structure: of {', '.join(PARTS)}; anytime: of {', '.join(ANYTIME_PARTS)} (default: all)")  # fmt: skip
    p.add_argument("--stages", type=stages, default=list(STAGES), metavar="NAME,…", help=f"cluster: of {', '.join(STAGES)} (default: all)")
    p.add_argument("--tree", type=Path, metavar="DIR", help="structure: this folder rather than one made of installed text")
    p.add_argument("--scope", metavar="GLOB", help="structure: files that its syntax is read of (default: some of the standard library)")
    p.add_argument("--megabytes", type=int, default=300, help="structure, anytime, budgets: size of the tree that is made, once, and kept")
    p.add_argument("--dataset", action="extend", nargs="+", default=[], type=Path, metavar="DIR",
                   help="bm25s, joint, anytime, budgets: judged collections in BEIR layout; context, late-recall: one")  # fmt: skip
    p.add_argument("--documents", type=int, default=600, help="context, late-recall: of the collection, judged ones first")
    p.add_argument("--unit-bytes", type=whole_numbers, default=[250, 500], metavar="N,…", help="context: sizes of passages")
    p.add_argument("--peer", type=Path, metavar="DIR", help=f"nlql: a folder made by pip install --target DIR {PEER}")
    p.add_argument("--units", type=int, default=100_000, help="nlql: sentences")
    p.add_argument("--count", type=int, default=1_000_000, help="fuzz: queries; each is a function of --seed and its number")
    p.add_argument("--folder", type=Path, metavar="DIR", help="formats: a folder with files of formats")
    p.add_argument("--probes", type=Path, metavar="FILE", help="formats: lines of a file in --folder, a tab and a string that is in it")
    p.add_argument("--mutants", type=int, default=0, help="formats: mutilated files of each format to be survived, from --seed on")
    p.add_argument("--url", help="http: ask this server, which has a corpus, rather than one that is started for it")
    p.add_argument("--corpus", default="stdlib", help="http, with --url: the corpus to ask")
    return p


def main(argv: list[str] | None = None) -> int:
    """The command. Returns the exit code: 0 done, 2 error."""
    args = parser().parse_args(argv)
    own = ANYTIME_PARTS if args.what == "anytime" else PARTS
    if args.parts and not set(args.parts) <= set(own):
        parser().error(f"argument --parts: {args.what} has {', '.join(own)}")
    needs = {"bm25s": args.dataset, "joint": args.dataset, "context": args.dataset, "late-recall": args.dataset, "formats": args.folder}
    needs["nlql"] = args.peer
    lacking = {name for name, given in needs.items() if not given}
    names = [name for name in BENCHES if name not in lacking] if args.what == "all" else [args.what]
    before = machine()
    try:
        with Progress() as progress:
            figures = {name: BENCHES[name](progress, args) for name in names}
    except SondageError as error:
        return tell(error, program="sondage bench")
    except KeyboardInterrupt:
        print("sondage bench: stopped.", file=sys.stderr)
        return STOPPED
    result = {"machine": before | {"load_after": load()}, **figures}
    print(json.dumps(result, indent=2, ensure_ascii=False))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
