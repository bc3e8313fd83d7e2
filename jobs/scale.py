"""Change how many shards a corpus has and how many hosts serve each: `sondage scale CORPUS …`, or
`ray job submit --working-dir . -- python jobs/scale.py CORPUS …`.

Other shards are other bucket ranges over the same files: a generation of references, for which nothing is encoded or copied. Replicas,
and the bounds between which load may change their number, are a small record in the store. Coordinators find both there, have the new
owners open what they get, and move their queries when that is done; searches are answered throughout, with the same hits.
"""

import argparse
import getpass
import json
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the project's root is where the packages are
    sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from jobs.arguments import Parser
from jobs.failing import STOPPED, tell
from jobs.progress import Progress, Report, amount
from jobs.settings import Settings
from shards.errors import AlreadyExists, BadSpec, NotFound, SondageError, StoreError
from shards.identity import N_BUCKETS, shard_ranges

if TYPE_CHECKING:
    from shards.generation import Generation
    from shards.serving_record import ServingRecord
    from shards.store import Store

ATTEMPTS = 10  # each one but the last met another writer
WAIT_S = 120.0  # hosts open shards of a large corpus from S3 in a minute
LOOK_S = 0.2

Say = Callable[[str], None]
Status = Callable[[], Mapping[str, Any]]  # of whichever coordinator answers


class NotServed(SondageError):
    """What was asked for is in the store, but coordinators did not come to serve it in time."""

    status = 503


@dataclass(slots=True)
class Scaled:
    """What was done. generation: that has the new shards. record: number of the serving record that holds, 0 for none.

    moved_buckets, moved_bytes: copies of buckets that hosts had to open which had not; fewest: as few as any even placement needs. None
    where no server was asked. Bytes are those of the files, a part of a file counting as that part. seconds: by step.
    """

    corpus: str
    shards_before: int
    shards: int
    generation: int
    replicas_before: int | None
    replicas: int | None
    record: int = 0
    nodes: int | None = None
    coordinators: int | None = None
    moved_buckets: int | None = None
    fewest_buckets: int | None = None
    moved_bytes: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def scale(
    settings: Settings,
    corpus: str,
    shards: int | None = None,
    replicas: int | None = None,
    bounds: tuple[int, int] | None = None,
    status: Status | None = None,
    timeout_s: float = WAIT_S,
    say: Say = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
    report: Report = lambda *_: None,
) -> Scaled:
    """Write what is wanted and, where coordinators can be asked for their `status`, wait until all of them serve it.

    say: told what changes, a line each. report: told how many copies of shards are open. replicas, bounds: None leaves them; replicas alone
    end automatic scaling. Raises BadSpec, NotFound, StoreError, NotServed.
    """
    from shards.backup import choose_corpus
    from shards.cache import FileCache
    from shards.manifest import corpus_store
    from shards.serving_record import newest
    from shards.store import open_store

    if shards is not None and not 1 <= shards <= N_BUCKETS:
        raise BadSpec(f"--shards {shards}: a corpus has 1 to {N_BUCKETS} shards.")
    if replicas is not None and replicas < 1:
        raise BadSpec(f"--replicas {replicas}: somebody must serve each shard. Give 1 or more.")
    if bounds is not None and not 1 <= bounds[0] <= bounds[1]:
        raise BadSpec(f"--min-replicas {bounds[0]} --max-replicas {bounds[1]}: the first is 1 or more, and the second no less.")
    store = open_store(settings.store_url(), **settings.store_options())
    choose_corpus(store, corpus)  # names those there are, before anything is written
    host = settings.host_settings()
    cache = FileCache(host.cache_dir, host.cache_bytes)
    before = None if status is None else _served(status(), corpus)
    begun = time.monotonic()
    inside = corpus_store(store, corpus)
    old = newest(inside)
    record = _record(inside, replicas, bounds)
    old_generation, generation = _reshard(store, corpus, shards, cache, settings)
    wanted = record.replicas if record else None
    done = Scaled(
        corpus=corpus,
        shards_before=len(old_generation.root.shards),
        shards=len(generation.root.shards),
        generation=generation.root.generation,
        replicas_before=old.replicas if old else None,
        replicas=wanted,
        record=record.number if record else 0,
        seconds={"write": time.monotonic() - begun},
    )
    say(f"{corpus}: {_what(done)}; generation {done.generation}, {done.seconds['write']:.1f} s, nothing encoded")
    if status is not None and before is not None:
        after = _wait(status, done, begun + timeout_s, say, sleep, report)
        done.seconds["served"] = time.monotonic() - begun
        _count(done, before, after, sizes(generation))
    return done


def _what(done: Scaled) -> str:
    shards = f"{done.shards_before} to {done.shards} shards" if done.shards != done.shards_before else f"{done.shards} shards, as before"
    if done.replicas is None:
        return f"{shards}, replicas as the deployment has them"
    return f"{shards}, replicas {done.replicas_before or 'as deployed'} to {done.replicas}"


# --- what is wanted ----------------------------------------------------------------------------------------------------------


def _record(inside: "Store", replicas: int | None, bounds: tuple[int, int] | None) -> "ServingRecord | None":
    """The serving record that holds from now on. Raises BadSpec."""
    from pydantic import ValidationError

    from shards.serving_record import newest, succeed

    for _ in range(ATTEMPTS):
        known = newest(inside)
        if replicas is None and bounds is None:
            return known
        number = replicas or (known.replicas if known else 1)
        if bounds is not None and replicas is None:
            number = min(max(number, bounds[0]), bounds[1])
        by = f"sondage scale, {getpass.getuser()} on {socket.gethostname()}"
        try:
            return succeed(inside, known.number if known else 0, number, bounds, by, "asked for")
        except AlreadyExists:
            continue
        except ValidationError as error:
            raise BadSpec(error.errors()[0]["msg"].removeprefix("Value error, ") + ".") from None
    raise StoreError(f"{ATTEMPTS} others wrote serving records first in {inside.url}. Run this again.")


def _reshard(
    store: "Store", corpus: str, shards: int | None, cache: Any, settings: Settings
) -> "tuple[Generation, Generation]":
    """The generation before, and the one with so many shards (None: as it has), which is published where it is another."""
    from shards.drafts import Draft, Tally, specs_of
    from shards.writing import Writer

    writer = Writer(store, corpus, cache, settings.resources(), _builds_nothing, purpose="sondage scale")
    for _ in range(ATTEMPTS):
        parent = writer.newest()
        assert parent is not None
        ranges = tuple(shard_ranges(shards)) if shards else None
        if ranges is None or ranges == tuple(shard.buckets for shard in parent.root.shards):
            return parent, parent
        try:
            root = writer.commit(parent, Draft(specs_of(parent.root), ranges=ranges, build=frozenset()), Tally())
        except (AlreadyExists, NotFound):  # another writer was first; its generation is cut instead
            continue
        return parent, type(parent).of_root(root, store, cache, settings.resources(), parent.segments, parent.spaces.values())
    raise StoreError(f"Corpus {corpus!r}: {ATTEMPTS} other writers published first. Run this again when they are done.")


def _builds_nothing(*_: object) -> Any:
    raise AssertionError("resharding moves references, and builds nothing")


def sizes(generation: "Generation") -> list[int]:
    """Bytes of each shard's files. Of a segment that several shards have parts of, each has the share of its documents."""
    documents: dict[str, int] = {}
    for page in generation.pages:
        for ref in page.segments:
            documents[ref.id] = documents.get(ref.id, 0) + ref.n_docs
    return [
        sum(sum(file.size for file in ref.files.values()) * ref.n_docs // max(documents[ref.id], 1) for ref in page.segments)
        for page in generation.pages
    ]


# --- until it is served ------------------------------------------------------------------------------------------------------


def _served(state: Mapping[str, Any], corpus: str) -> Mapping[str, Any]:
    """Where a coordinator has a corpus placed. Raises NotServed for a server that has no hosts to place it on."""
    if "placement" not in state:
        raise NotServed("This server is one process with one host: it serves every shard itself. Only clusters have replicas and owners.")
    found = state["placement"].get(corpus, {})
    return {**found, "hosts": [host["node"] for host in state["hosts"]], "coordinator": state["coordinator"]}


def _wait(status: Status, done: Scaled, end: float, say: Say, sleep: Callable[[float], None], report: Report) -> Mapping[str, Any]:
    """Until every coordinator has said that it serves what is wanted: each look meets one of them. Raises NotServed."""
    serving: dict[str, Mapping[str, Any]] = {}
    told = ""
    while True:
        try:
            now = _served(status(), done.corpus)
        except NotServed:
            raise
        except SondageError as error:  # a coordinator that is just being started again
            line = f"waiting: {error}"
        else:
            name, of = now["coordinator"]["id"], now["coordinator"]["of"]
            report("open copies of shards", *_copies(now), "copies")
            if lacking := _lacking(now, done):
                serving.pop(name, None)
                line = f"coordinator {name}: {lacking}"
            else:
                serving[name] = now
                line = f"{len(serving)} of {of} coordinators serve it"
                if len(serving) >= of:
                    say(line)
                    done.coordinators = of
                    return now
        if line != told:
            say(line)
            told = line
        if time.monotonic() >= end:
            raise NotServed(f"It is in the store, but not yet served: {line}. Look again with `sondage status`; coordinators go on trying.")
        sleep(LOOK_S)


def _lacking(now: Mapping[str, Any], done: Scaled) -> str:
    """What a coordinator has not done yet; "" when it serves all that was asked for."""
    if now.get("generation", 0) < done.generation:
        return f"has generation {now.get('generation', 0)}, not yet {done.generation}"
    if now.get("record", 0) < done.record:
        return f"has serving record {now.get('record', 0)}, not yet {done.record}"
    opened, wanted = _copies(now)
    return "" if now["settled"] else f"{opened} of {wanted} copies of shards are open"


def _copies(now: Mapping[str, Any]) -> tuple[int, int]:
    """How many copies of shards are open where they are to be, and how many are to be."""
    opened = (len(set(there) & set(nodes)) for there, nodes in zip(now.get("open", ()), now.get("shards", ()), strict=True))
    return sum(opened), sum(map(len, now.get("shards", ())))


def _count(done: Scaled, before: Mapping[str, Any], after: Mapping[str, Any], size_bytes: list[int]) -> None:
    """How much moved between two looks at the placement, and how much had to."""
    from cluster.placement import minimum_moved_buckets, moved_buckets, moved_bytes

    old, new = (tuple(map(tuple, placed.get("shards", ()))) for placed in (before, after))
    done.nodes = len(after["hosts"])
    done.moved_buckets = moved_buckets(old, new)
    done.moved_bytes = moved_bytes(old, new, size_bytes) if len(new) == len(size_bytes) else None
    nodes = sorted({node for on in new for node in on} | set(after["hosts"]))
    done.fewest_buckets = minimum_moved_buckets(old, len(new), nodes, max(map(len, new), default=1))


# --- the command -------------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = Parser(
        prog="sondage scale",
        description="Give a corpus another number of shards, or another number of hosts that serve each, while it is being searched. "
        "Nothing is encoded. With a server (--url, SONDAGE_URL), waits until every coordinator serves it.",
        epilog="Exit code: 0 done, 2 error.",
    )
    p.add_argument("corpus", help="name of the corpus")
    p.add_argument("--shards", type=int, metavar="S", help="how many shards (default: as it is)")
    p.add_argument("--replicas", type=int, metavar="R", help="how many hosts serve each shard (default: as it is); alone, it stays so")
    p.add_argument("--min-replicas", type=int, metavar="A", help="with --max-replicas: load changes the number, but not below this")
    p.add_argument("--max-replicas", type=int, metavar="B", help="nor above this")
    p.add_argument("--store", help="where the index lies (default: SONDAGE_STORE)")
    p.add_argument("--url", help="server to wait for (default: SONDAGE_URL, none: do not wait)")
    p.add_argument("--timeout-s", type=float, default=WAIT_S, help=f"to wait for it (default: {WAIT_S:.0f})")
    p.add_argument("--json", action="store_true", help="print what was done as JSON")
    return p


def looks(settings: Settings) -> Status | None:
    """A way to ask coordinators for their status; None where no server is named."""
    if not settings.url:
        return None
    import sondage

    key = settings.api_key.get_secret_value() if settings.api_key else None

    def look() -> Mapping[str, Any]:
        # A connection each: coordinators that share a port are met by chance of the connection.
        with sondage.connect(settings.url or "", key, settings.ca_file) as client:
            return client.status()

    return look


def run_scale(argv: Iterable[str] | None = None) -> int:
    """The job as a command. Returns the exit code."""
    args = parser().parse_args(None if argv is None else list(argv))
    try:
        if (args.min_replicas is None) != (args.max_replicas is None):
            raise BadSpec("--min-replicas and --max-replicas belong together. Give both, or --replicas for a fixed number.")
        bounds = None if args.min_replicas is None else (args.min_replicas, args.max_replicas)
        if args.shards is None and args.replicas is None and bounds is None:
            raise BadSpec("Nothing to change is named. Give --shards, --replicas, or --min-replicas with --max-replicas.")
        settings = Settings.load(store=args.store, url=args.url)
        say = (lambda _: None) if args.json else lambda line: print(f"  {line}", file=sys.stderr, flush=True)
        with Progress() as progress:
            done = scale(settings, args.corpus, args.shards, args.replicas, bounds, looks(settings), args.timeout_s, say, report=progress)
    except SondageError as error:
        return tell(error, args.json, "sondage scale")
    except KeyboardInterrupt:
        print("sondage scale: stopped; what was written holds, and coordinators go on to serve it.", file=sys.stderr)
        return STOPPED
    print(json.dumps(asdict(done)) if args.json else in_words(done))
    return 0


def in_words(done: Scaled) -> str:
    """The outcome, for people."""
    if done.moved_buckets is None:
        return f"{done.corpus}: {_what(done)}. Coordinators find it in the store within a second; none was asked."
    moved = f"{done.moved_buckets:,} of {N_BUCKETS:,} buckets moved, the fewest that could: {done.fewest_buckets:,}"
    if done.moved_bytes is not None:
        moved += f" ({amount(done.moved_bytes, 'bytes')})"
    return f"{done.corpus}: {_what(done)}, served by all {done.coordinators} coordinators after {done.seconds['served']:.1f} s; {moved}."


if __name__ == "__main__":
    sys.exit(run_scale())
