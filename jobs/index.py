"""Build or update a corpus: `ray job submit --working-dir . -- python jobs/index.py …`, or `sondage index …` without Ray.

Lists the source, compares with what is indexed, reads and hashes what may have changed, encodes what is new, publishes one new
generation. Safe to run at any time, again after any crash, and beside another run.
"""

import argparse
import json
import logging
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the project's root is where the packages are
    sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from jobs.arguments import Parser
from jobs.auto_layers import AUTO, PEEK_BYTES, Choice, Holding, Machine, choose, holds_smiles, missing_on, told
from jobs.deploy import connect
from jobs.failing import printable, tell
from jobs.progress import Progress, amount
from jobs.settings import Settings
from jobs.suggesting import meant_path
from shards.errors import BadSpec, SondageError, SourceError
from shards.formats.registry import FORMATS, parse_formats
from shards.layers import REGISTRY, SpaceSpec

if TYPE_CHECKING:
    from shards.listing import Listing
    from shards.update import Outcome

IN_A_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray in the driver of a submitted job


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = Parser(
        prog="sondage index",
        description=__doc__.split("\n\n")[1],
        epilog=f"Layers: {', '.join(sorted(REGISTRY))}. A layer may bear a name, dials and a scope: "
        "'small=static:unit_bytes=500', 'dense@asyncio/**'. Exit code: 0 done or nothing to do, 2 error.",
    )
    p.add_argument("--corpus", required=True, help="name of the corpus; made if it does not exist")
    p.add_argument("--source", required=True, help="folder or fsspec URL: /path, s3://bucket/prefix, zip:///path/x.zip, …")
    p.add_argument("--source-name", default="main", help="a corpus may have several sources; a run touches only its own")
    p.add_argument("--store", help="where the index lies: folder or fsspec URL (default: SONDAGE_STORE)")
    p.add_argument("--layers", help="comma-separated layer specs; auto (of a new corpus the default): by what it holds and what is here")
    p.add_argument("--layer", action="append", default=[], metavar="SPEC", help="one more layer spec; may hold commas")
    p.add_argument("--shards", type=int, help="number of shards (default: as it is, 1 for a new corpus)")
    p.add_argument("--include", action="append", default=[], metavar="GLOB", help="index only paths that match (repeatable)")
    p.add_argument("--exclude", action="append", default=[], metavar="GLOB", help="leave out paths that match (repeatable)")
    p.add_argument(
        "--rows",
        action="append",
        default=[],
        metavar="GLOB:text=COLUMN[,…]",
        help="files whose rows are documents (jsonl, ndjson, csv, tsv, parquet), e.g. '*.jsonl:text=title+body,id=id,vector=emb->mine'; "
        "all other columns are metadata, or those of meta=a+b (repeatable; name them in every run)",
    )
    p.add_argument(
        "--formats",
        default="all",
        metavar="NAMES",
        help="files that are read as what they are, all others being text or skipped: all, none, or names with commas, all,-html for all "
        f"but one: {', '.join(known.name for known in FORMATS)} (name them in every run)",
    )
    p.add_argument("--plugin", action="append", metavar="MODULE", help="module that registers embedders, splitters and the like "
                   "(repeatable; default: SONDAGE_PLUGINS)")  # fmt: skip
    p.add_argument("--field-type", action="append", default=[], metavar="PATH=TYPE", help="what metadata is compared and sorted as in "
                   "queries: text, number, date, timestamp, any; holds until it is stated otherwise (repeatable)")  # fmt: skip
    p.add_argument("--source-option", action="append", default=[], metavar="KEY=JSON", help="fsspec option of the source")
    p.add_argument("--max-file-bytes", type=int, default=64 << 20, help="larger files are skipped and counted")
    p.add_argument("--allow-shrink", action="store_true", help="delete even if more than half of the files are gone")
    p.add_argument("--ray", action="store_true", help="spread the work over the running Ray cluster (a Ray job does so by itself)")
    p.add_argument("--local", action="store_true", help="work in this process, even in a Ray job")
    p.add_argument("--json", action="store_true", help="print the outcome as one JSON object on stdout")
    return p


def _options(pairs: list[str]) -> dict[str, Any]:
    options = {}
    for pair in pairs:
        key, eq, value = pair.partition("=")
        if not eq:
            raise BadSpec(f"--source-option {pair!r} has no value. Write KEY=JSON.")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return options


def s3_storage_options(options: dict[str, str]) -> dict[str, Any]:
    """Our S3 settings in s3fs's words, for a source."""
    region = options.get("region")
    plain = {key: value for key, value in options.items() if key != "region"}
    return plain | ({"client_kwargs": {"region_name": region}} if region else {})


def run(args: argparse.Namespace, settings: Settings, progress: Progress) -> "Outcome":
    """One run of the job. Raises SondageError."""
    from jobs.pool import LocalPool, RayPool, WorkerSettings, cores
    from serve.calibrate import Calibrator
    from shards.cache import FileCache
    from shards.corpus import Source
    from shards.manifest import corpus_store
    from shards.nlql import field_types
    from shards.opening import Opener
    from shards.rows import RowRule
    from shards.store import open_store
    from shards.update import Options, Updater

    store = open_store(settings.store_url(), **settings.store_options())
    cache_dir = settings.host_settings().cache_dir
    cache = FileCache(cache_dir, settings.cache_bytes)
    resources = settings.resources()
    texts = list(args.layer) + [t for t in (args.layers or "").split(",") if t]
    specs = tuple(SpaceSpec.parse(t) for t in texts if t != AUTO)
    choices: list[Choice] = []
    formats = parse_formats(args.formats)

    def by_what_there_is(listing: "Listing") -> list[SpaceSpec]:
        holding = Holding.of(listing.files, args.max_file_bytes, formats)
        if options.rows and not holding.molecules:
            with Opener(options.source, PEEK_BYTES) as opener:
                holding = replace(holding, molecules=holds_smiles(listing.files, options.rows, opener.read))
        machine = of_cluster(settings.namespace) if on_ray else Machine.this(cores())
        choices[:] = choose(holding, machine, missing_on(resources), [spec.name for spec in specs])
        return [SpaceSpec(choice.layer, choice.layer) for choice in choices if choice.chosen]

    source_options = _options(args.source_option)
    if "s3://" in args.source:
        source_options = s3_storage_options(settings.s3_options()) | source_options
    options = Options(
        corpus=args.corpus,
        source=Source(args.source_name, args.source, tuple(args.include), tuple(args.exclude), source_options),
        specs=specs,
        choose=by_what_there_is if AUTO in texts or not texts else None,
        n_shards=args.shards,
        max_file_bytes=args.max_file_bytes,
        allow_shrink=args.allow_shrink,
        rows=tuple(map(RowRule.parse, args.rows)),
        formats=formats,
    )
    on_ray = (args.ray or IN_A_JOB in os.environ) and not args.local

    def executor(corpus_store: Any, specs: dict[str, tuple[SpaceSpec, str]]) -> Any:
        worker = WorkerSettings(
            corpus_store.url, settings.store_options(), cache_dir, settings.cache_bytes, specs, resources, settings.plugins
        )
        if on_ray:
            connect(None, settings.namespace)
        return (RayPool if on_ray else LocalPool)(worker, cores(), progress)

    types = field_types.parse(args.field_type)
    field_types.check(types, resources.plugins)
    begun = time.monotonic()
    outcome = Updater(store, cache, resources, executor, Calibrator(cores(), progress), progress).run(options)
    if types:
        field_types.state(corpus_store(store, args.corpus), types, resources.plugins)
    outcome.notes += told(choices) or (["the corpus keeps its layers; name others to add them"] if AUTO in texts else [])
    outcome.seconds["total"] = time.monotonic() - begun
    return outcome


def of_cluster(namespace: str) -> Machine:
    """What all nodes of the running Ray cluster have together."""
    import ray

    connect(None, namespace)
    there = ray.cluster_resources()
    return Machine(max(1, int(there.get("CPU", 1))), int(there.get("GPU", 0)))


def summary(outcome: "Outcome", corpus: str) -> str:
    """The outcome for people."""
    from jobs.status_tables import unread

    seconds = outcome.seconds.get("total", 0.0)
    lines = []
    if not outcome.changed:
        what = f"segments were merged in generation {outcome.generation}" if outcome.merged else f"generation {outcome.generation} stays"
        lines.append(f"{corpus}: no change; {what}. {outcome.listed:,} files listed, ")
        lines[-1] += f"{outcome.hashed:,} hashed, in {seconds:.2f} s."
    else:
        rate = f", {amount(outcome.size_bytes / seconds, 'bytes')}/s" if seconds and outcome.size_bytes else ""
        lines.append(f"{corpus}: generation {outcome.generation} published in {seconds:.2f} s{rate}.")
        encoded = ", ".join(f"{name} {n:,}" for name, n in sorted(outcome.encoded.items()) if n) or "none"
        reused = ", ".join(f"{name} {n:,}" for name, n in sorted(outcome.reused.items()) if n) or "none"
        lines.append(
            f"  listed {outcome.listed:,}, hashed {outcome.hashed:,} ({amount(outcome.size_bytes, 'bytes')}), "
            + (f"read by an earlier run {outcome.resumed:,}, " if outcome.resumed else "")
            + f"entries added {outcome.added:,}, removed {outcome.removed:,}, of these moved {outcome.renamed:,}"
        )
        lines.append(f"  documents added {outcome.documents_added:,}, removed {outcome.documents_removed:,}")
        lines.append(f"  encoded: {encoded}; reused: {reused}")
        lines += [f"  {name} asked its endpoint: {usage}" for name, usage in sorted(outcome.spent.items())]
        if outcome.merged:
            lines.append(f"  merges of segments: {outcome.merged:,}, each a generation of its own")
    if outcome.skipped:
        lines.append("  skipped: " + ", ".join(f"{reason} {n:,}" for reason, n in sorted(outcome.skipped.items())))
    if outcome.unread:
        lines.append(f"  {unread(outcome.unread)}; they stay in the index as they were, the next run tries them again")
    if outcome.rows:
        lines.append(f"  rows of tables and members of archives read: {outcome.rows:,}")
    for reason, (n, where) in sorted(outcome.odd.items()):
        lines.append(f"  {reason}: {n:,}, first in {where}")
    for path, reason in sorted(outcome.failed.items())[:10]:
        lines.append(f"  failed: {path}: {reason}")
    if len(outcome.failed) > 10:
        lines.append(f"  … and {len(outcome.failed) - 10:,} more that failed")
    lines += [f"  note: {note}" for note in outcome.notes]
    steps = ", ".join(f"{step} {s:.2f}" for step, s in outcome.seconds.items() if step != "total" and s >= 0.005)
    lines.append(f"  seconds: {steps}")
    return "\n".join(lines)


def run_index(argv: list[str] | None = None) -> int:
    """The job as a command. Returns the exit code."""
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("shards.model_files").setLevel(logging.INFO)  # a model that is made, once, takes a minute: say so
    try:
        with Progress() as progress:
            outcome = run(args, Settings.load(store=args.store, plugins=args.plugin), progress)
    except SondageError as error:
        return tell(error, args.json, "sondage index", hint=where_it_may_be(args.source) if isinstance(error, SourceError) else "")
    except KeyboardInterrupt:
        print("sondage index: stopped; nothing was published, the next run goes on from here.", file=sys.stderr)
        return 130
    print(json.dumps(asdict(outcome)) if args.json else printable(summary(outcome, args.corpus)))
    return 0


def where_it_may_be(source: str) -> str:
    """What a misspelt folder may have meant; "" for what is there, or elsewhere."""
    return "" if "://" in source or os.path.exists(source) else meant_path(source)


if __name__ == "__main__":
    sys.exit(run_index())
