"""Carrying out the order to open a corpus: what `sondage open` starts on this machine, and a server for each `POST /v1/corpora`.

A process of its own, so that searches beside it do not share its interpreter. It is no job of anybody's: whoever has files to index runs
`sondage open` or `sondage index`.
"""

import argparse
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobs.settings import Settings
from shards.errors import BadSpec, EndpointError, ModelMissing, SondageError, SourceError, StoreError
from shards.layers import SpaceSpec

if TYPE_CHECKING:
    from jobs.listing_process import Lister
    from jobs.reading_pool import Readers
    from shards.corpus import Source
    from shards.delta import Specs
    from shards.layers.contract import Resources
    from shards.listing import Listing
    from shards.open_order import OpenOrder
    from shards.store import Store
    from shards.update import Outcome
    from shards.writing import Executor

logger = logging.getLogger(__name__)

TELL_S = 0.5  # between two words about how far it is
NICE = 10  # once all is read: further spaces take the cores that searches leave
WHERE_USED = ("dense", "sparse")  # layers that are worth having where they are used, if a model is here but not the time to build all


def start(store_url: str, corpus: str, source: str, plugins: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    """A process that carries out the order of this source. It ends by itself, and is not ended with the caller."""
    words = [sys.executable, "-c", "from jobs.open_corpus import main; raise SystemExit(main())"]
    words += ["--store", store_url, "--corpus", corpus, "--source-name", source]
    words += [word for module in plugins for word in ("--plugin", module)]
    places = os.pathsep.join(path or os.getcwd() for path in sys.path)  # as this process found our packages, and a user's modules
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True, env=os.environ | {"PYTHONPATH": places}
    )


def layers_of(listing: "Listing", resources: "Resources", cores: int, named: Sequence[SpaceSpec] = ()) -> list[SpaceSpec]:
    """The spaces of a corpus that is opened without naming any: those of `sondage index --layers auto`, and where there is a model but not
    the time to encode everything by it, a space that is built where it is used."""
    from jobs.auto_layers import Holding, Machine, choose, missing_on

    missing = missing_on(resources)
    holding = Holding.of(listing.files, MAX_FILE_BYTES)
    choices = choose(holding, Machine.this(cores), missing, [spec.name for spec in named])
    found = [SpaceSpec(choice.layer, choice.layer) for choice in choices if choice.chosen]
    # What speaks against these is the time they would take: with all the time there is, they are chosen or cannot be.
    willing = {c.layer for c in choose(holding, Machine.this(cores), missing, [spec.name for spec in named], float("inf")) if c.chosen}
    there = {spec.layer for spec in found}
    return found + [SpaceSpec.parse(f"{layer}:built=used") for layer in WHERE_USED if layer in willing - there]


MAX_FILE_BYTES = 64 << 20  # as of `sondage index`


class Teller:
    """Says in the store how far an order is, at once where something was published and else every `TELL_S`. Close it."""

    def __init__(self, store: "Store", corpus: str, source: str, clock: Callable[[], float] = time.time, every_s: float = TELL_S):
        from shards.lease import process_of

        self._store, self._corpus, self._source, self._clock = store, corpus, source, clock
        self._said: dict[str, Any] = {"stage": "listing", "begun": clock(), "process": tuple(process_of(os.getpid()))}
        self._lock, self._ended = threading.Lock(), threading.Event()
        self.say()
        self._thread = threading.Thread(target=self._go_on, args=(every_s,), name="opening", daemon=True)
        self._thread.start()

    def say(self, **said: Any) -> None:
        """What has changed; None of it: that somebody is at it."""
        from shards.open_order import Opening, tell

        with self._lock:
            self._said |= said
            try:
                tell(self._store, self._corpus, self._source, Opening(**self._said, at=self._clock()))
            except StoreError as error:  # what matters is published, not told
                logger.info("corpus=%s event=not_told reason=%s", self._corpus, error)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _go_on(self, every_s: float) -> None:
        while not self._ended.wait(every_s):
            self.say()


def carry_out(
    settings: Settings, corpus: str, order: "OpenOrder", readers: "Readers | None" = None, lister: "Lister | None" = None
) -> "Outcome":
    """Open a corpus as ordered: growing generations of its cheap spaces, then the run that completes it. Returns what that run did.

    readers: who reads, where this process does nothing else; then it makes way for others once all is read. None: threads. lister: who
    lists the order's source; None: this process. The order stays where another try may help. Raises SondageError.
    """
    from jobs.pool import LocalPool, WorkerSettings, cores
    from jobs.reading_pool import ReadingPool
    from serve.calibrate import Calibrator
    from shards.cache import FileCache
    from shards.manifest import latest_generation
    from shards.open_order import end
    from shards.progressive import CHEAP, grow, source_of
    from shards.rehearsal import make
    from shards.store import open_store
    from shards.update import Options, Updater

    store = open_store(settings.store_url(), **settings.store_options())
    host = settings.host_settings()
    resources = settings.resources()
    cache = FileCache(host.cache_dir, host.cache_bytes)
    specs = tuple(map(SpaceSpec.parse, order.layers))
    options = Options(
        corpus=corpus,
        source=source_to_open(settings, order),
        specs=specs,
        choose=None if specs else lambda listing: layers_of(listing, resources, cores()),
        max_file_bytes=MAX_FILE_BYTES,
    )

    def executor(inside: "Store", spaces: "Specs") -> "Executor":
        worker = WorkerSettings(
            inside.url, settings.store_options(), host.cache_dir, host.cache_bytes, dict(spaces), resources, host.plugins
        )
        return ReadingPool(readers, worker, cores()) if readers is not None else LocalPool(worker, cores())

    teller = Teller(store, corpus, order.source)

    def told(stage: str, held: int, pending: int) -> None:
        generation = latest_generation(store, corpus) or 0
        if stage == "listed":
            there = source_of(store, corpus, order.source)
            n_held = there.n_entries if there else 0
            teller.say(stage="reading", listed=pending, held=n_held, pending=max(0, pending - n_held), generation=generation)
        else:
            teller.say(held=held, pending=pending, generation=generation)

    updater = Updater(store, cache, resources, executor, Calibrator(cores()))
    try:
        if lister is not None:
            make(CHEAP, resources)  # meanwhile
        listing = grow(updater, options, told, listed=lister.listing if lister is not None else None)
        teller.say(stage="layers" if latest_generation(store, corpus) else "reading")
        if options.choose is not None:  # of a corpus that there is by now `Updater` chooses none
            options = replace(options, specs=further(store, corpus, options.choose, listing), choose=None)
        os.nice(NICE if readers is not None else 0)
        outcome = updater.run(options)
    except SondageError as error:
        hopeless = isinstance(error, SourceError | BadSpec | ModelMissing | EndpointError)
        teller.say(stage="failed" if hopeless else "waiting", reason=str(error))
        if hopeless:
            end(store, corpus, order.source)
        raise
    finally:
        teller.close()
    end(store, corpus, order.source)
    held = source_of(store, corpus, order.source)
    teller.say(stage="done", listed=outcome.listed, held=held.n_entries if held else 0, pending=0, generation=outcome.generation)
    return outcome


def further(store: "Store", corpus: str, choose: "Callable[[Listing], Sequence[SpaceSpec]]", listing: "Listing") -> tuple[SpaceSpec, ...]:
    """The spaces that a corpus gets beyond those it has; none where it has others than those it grew with."""
    from shards.manifest import latest_generation, read_root
    from shards.progressive import CHEAP

    number = latest_generation(store, corpus)
    there = {ref.name: ref.layer for ref in read_root(store, corpus, number).spaces} if number is not None else {}
    if not set(there.values()) <= set(CHEAP):
        return ()
    return tuple(spec for spec in choose(listing) if spec.name not in there)


def source_to_open(settings: Settings, order: "OpenOrder") -> "Source":
    """The source that an order names, with what this machine's settings say of reaching it."""
    from shards.corpus import Source

    options: dict[str, Any] = {}
    if "s3://" in order.url:
        from jobs.index import s3_storage_options

        options = s3_storage_options(settings.s3_options())
    return Source(order.source, order.url, order.include, order.exclude, options)


def main(argv: Sequence[str] | None = None) -> int:
    """The process. Returns the exit code."""
    p = argparse.ArgumentParser(prog="sondage open", description="Carry out the order to open a corpus.")
    p.add_argument("--store", required=True)
    p.add_argument("--corpus", required=True)
    p.add_argument("--source-name", default="main")
    p.add_argument("--plugin", action="append")
    args = p.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    settings = Settings.load(store=args.store, plugins=args.plugin)
    try:
        from shards.open_order import find
        from shards.store import open_store

        order = find(open_store(settings.store_url(), **settings.store_options()), args.corpus, args.source_name)
        if order is not None:
            _carry_out_in_processes(settings, args.corpus, order)
    except SondageError as error:
        logger.warning("corpus=%s event=not_opened reason=%s", args.corpus, error)
        return 2
    return 0


def _carry_out_in_processes(settings: Settings, corpus: str, order: "OpenOrder") -> None:
    """Listing begins at once; what takes a second to load is loaded meanwhile."""
    from jobs.listing_process import Lister

    lister = Lister(source_to_open(settings, order))
    try:
        import serve.calibrate  # noqa: F401
        import shards.update  # noqa: F401  # both for the readers to have: they are forked
        from jobs.pool import cores
        from jobs.reading_pool import Readers

        readers = Readers(cores())
        try:
            carry_out(settings, corpus, order, readers, lister)
        finally:
            readers.close()
    finally:
        lister.close()
