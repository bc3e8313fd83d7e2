"""The index job's run: list a source, compare it with what was indexed of it, read what may have changed, publish the change.

The driver decides and moves names; workers read and write. What comes after reading is `shards/writing.py`.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from shards import pushlog, rdkit_molecules, tree
from shards.attached import Attached, attach
from shards.cache import FileCache
from shards.compaction import merge_step
from shards.comparison import change_of, compare, n_moved
from shards.corpus import Listed, Listing, Source, list_source
from shards.delta import Specs
from shards.drafts import REFIT, Draft, SourceChange, Tally, timed
from shards.errors import AlreadyExists, BadSpec, EndpointError, ModelMissing, NotFound, SourceError, StoreError
from shards.formats.registry import ALL
from shards.generation import Generation, spec_of
from shards.given import dims
from shards.identity import shard_ranges
from shards.images import images_taken
from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Resources
from shards.lease import Clock, Sleep
from shards.manifest import SourceRef, SourceRun
from shards.reading import Odd, add_odd
from shards.rows import MOLECULES, RowRule
from shards.store import Store
from shards.tree import TreeRow
from shards.worker import Staged
from shards.writing import Calibrate, Executor, Report, Writer

logger = logging.getLogger(__name__)

SHRINK = 0.5  # a listing that lost more than this share of its files deletes nothing unless told to
N_EXAMPLES = 5  # of files that could not be read, in status
MERGES = 64  # in one run at most; a shard is seldom due more than one
ATTEMPTS = 10  # each one but the last met another run's publication


@dataclass(frozen=True, slots=True)
class Options:
    """One run of the index job.

    specs: spaces wanted; empty keeps those of the corpus. n_shards: None keeps (1 for a new corpus). listing: what the source holds,
    where the caller has just looked. portion: paths; of what may have changed only these are read, nothing is deleted or merged, and the
    generation says how many files are `pending` (`shards/progressive.py`). read_before: paths of portions that this caller had read: what
    of them could not be read is not pending.
    """

    corpus: str
    source: Source
    specs: tuple[SpaceSpec, ...] = ()
    n_shards: int | None = None
    max_file_bytes: int = 64 << 20
    allow_shrink: bool = False
    rows: tuple[RowRule, ...] = ()  # files that are tables, whose rows are documents
    formats: frozenset[str] = ALL  # names of formats whose files are read as what they are; the others are text or skipped
    refit: float = REFIT
    choose: Callable[[Listing], Sequence[SpaceSpec]] | None = None  # further specs for a new corpus, by what the source holds
    listing: Listing | None = None
    portion: frozenset[str] | None = None
    read_before: frozenset[str] = frozenset()


@dataclass(slots=True)
class Outcome(Tally):
    """What a run did. Counts are of files but for those of documents.

    merged: merges of segments, each a generation of its own. hashed: read in this run; resumed: not read, because a run that was cut
    off had done so. failed: what could not be read, with the reason; it stays in the index as it was, and the next run tries again.
    unread: how many of these, by reason in one word. rows: of tables that were read. odd: what metadata and rows left out, by reason:
    how often, and where first.
    """

    generation: int = 0
    changed: bool = False
    merged: int = 0
    listed: int = 0
    hashed: int = 0
    resumed: int = 0
    added: int = 0
    removed: int = 0
    renamed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    rows: int = 0
    odd: Odd = field(default_factory=dict)


class Updater:
    """Runs one update. store: the store's root; executor: where workers run; clock: the time of day, in seconds; sleep: its own."""

    def __init__(
        self,
        store: Store,
        cache: FileCache,
        resources: Resources,
        executor: Callable[[Store, Specs], Executor],
        calibrate: Calibrate | None = None,
        report: Report = lambda *_: None,
        clock: Clock = time.time,
        sleep: Sleep = time.sleep,
    ):
        self.root_store, self.cache, self.resources = store, cache, resources
        self.make_executor, self.calibrate, self.report = executor, calibrate, report
        self.clock, self.sleep = clock, sleep

    def run(self, options: Options) -> Outcome:
        """Bring the corpus up to date. Raises SourceError, BadSpec, StoreError, NotFound; nothing is published then."""
        if options.source.name == pushlog.SOURCE:
            raise BadSpec(f"The source name {pushlog.SOURCE!r} is that of pushed documents. Give another with --source-name.")
        self.writer = Writer(
            self.root_store,
            options.corpus,
            self.cache,
            self.resources,
            self.make_executor,
            self.calibrate,
            self.report,
            self.clock,
            self.sleep,
        )
        try:
            n_missing = 0
            for _ in range(ATTEMPTS):
                outcome = Outcome()
                try:
                    self._attempt(options, outcome)
                except AlreadyExists:
                    # Another run published first. What was read and encoded is in the store under the same names: start over
                    # on the new generation, and only the part that it does not have yet is done.
                    logger.info("corpus=%s event=rebase", options.corpus)
                    continue
                except NotFound as error:
                    # Another run that shares our staging files, or joined packs of encodings, tidied up after it published:
                    # what it took away is read again, if it is still news at all. Thrice is no coincidence: it is lost.
                    n_missing += 1
                    if n_missing == 3:
                        raise
                    logger.info("corpus=%s event=retry reason=%s", options.corpus, error)
                    continue
                if options.portion is None:
                    self._merge(outcome)
                try:
                    self.writer.tidy()
                except (StoreError, NotFound) as error:  # the run is done: this only wastes space until the next
                    logger.info("event=tidying_failed reason=%s", error)
                return outcome
        finally:
            self.writer.close()
        raise StoreError(f"Corpus {options.corpus!r}: {ATTEMPTS} other runs published first. Run the job again when they are done.")

    def _merge(self, outcome: Outcome) -> None:
        """Do the merges that are due. The run is done: where one cannot be, the next run or a push does it."""
        with timed(outcome, "merge"):
            try:
                while outcome.merged < MERGES and (root := merge_step(self.writer, Tally())) is not None:
                    outcome.generation = root.generation
                    outcome.merged += 1
            except StoreError as error:
                logger.info("event=merging_failed reason=%s", error)

    # --- one attempt -------------------------------------------------------------------------------------------------------

    def _attempt(self, options: Options, outcome: Outcome) -> None:
        with timed(outcome, "list"):
            listing = options.listing or list_source(options.source)
            outcome.listed = len(listing.files)
            outcome.skipped.update({k: v for k, v in listing.counters.items() if v})
            for problem in listing.problems:
                outcome.unread[problem.kind] = outcome.unread.get(problem.kind, 0) + 1
                outcome.failed[problem.path] = problem.reason
        parent = self.writer.newest()
        specs, unable = self._specs(options, parent, listing)
        able = {name: spec for name, spec in specs.items() if name not in unable}
        for name, reason in unable.items():
            outcome.notes.append(
                f"Layer {name!r} cannot be built here: {reason} What changed is in the other layers, and searches say that this one lacks "
                "it. A run that can build it catches up."
            )
        old_source = parent.root.sources.get(options.source.name) if parent else None
        if parent is None and not listing.files:
            raise SourceError(
                f"Source {options.source.url!r} lists no file that may be indexed ({_counted(outcome) or 'it is empty'}). "
                "Check --source, --include and --exclude."
            )
        if old_source and old_source.url != options.source.url:
            outcome.notes.append(
                f"Source {options.source.name!r} was {old_source.url} and is {options.source.url} from now on. "
                "If both were meant, give the second its own --source-name."
            )
        with timed(outcome, "compare"):
            old_tree = old_source.tree if old_source else None
            molecules = any(file.path[-4:].lower() == ".sdf" for file in listing.files) and rdkit_molecules.available()
            rules = (*options.rows, MOLECULES) if molecules else options.rows
            attached = attach(listing, rules, self._dims(options, specs), self._images(specs), options.formats)
            listing = attached.listing
            compared = compare(listing, tree.rows(self.writer.store, old_tree) if old_tree else (), options.max_file_bytes)
        pending = 0
        if options.portion is not None:
            later = sum(file.path not in options.portion and file.path not in options.read_before for file in compared.suspects)
            compared, pending = replace(compared, suspects=[f for f in compared.suspects if f.path in options.portion], gone=[]), later
        self._guard_shrink(options, outcome, listing, old_source, compared.gone)
        ranges = self._ranges(options, parent)
        staged: list[Staged] = []
        readable = [file for file in compared.suspects if file.size_bytes <= options.max_file_bytes]
        if len(readable) < len(compared.suspects):
            outcome.skipped[f"larger than {options.max_file_bytes:,} bytes"] = len(compared.suspects) - len(readable)
        if readable:
            with timed(outcome, "read"):
                staged = self._stage(able, options, readable, attached, outcome)
        with timed(outcome, "plan"):
            change = change_of(options.source.name, compared, staged, options.max_file_bytes)
            outcome.added, outcome.removed, outcome.renamed = len(change.added), len(change.removed), n_moved(change)
        if parent is None and not change.added and options.portion is not None:
            return  # a first generation holds something; a later portion may
        if parent is None and not change.added:
            reasons = (_counted(outcome) or next(iter(outcome.failed.values()))).rstrip(".")
            raise SourceError(
                f"Source {options.source.url!r} lists {outcome.listed:,} files, of which none could be read as text: {reasons}. "
                "Check --source and --include."
            )
        packs = {key: result.pack for result in staged for key in result.hashes.values()}
        asked = options.source
        source = SourceChange(asked.name, asked.url, change, asked.include, asked.exclude, last_run=_last_run(outcome), pending=pending)
        draft = Draft(specs, (source,), packs, tuple(ranges), build=frozenset(able) if unable else None, refit=options.refit)
        if parent is not None and not self.writer.due(parent, draft):
            outcome.generation = parent.root.generation
            return
        outcome.generation = self.writer.commit(parent, draft, outcome).generation
        outcome.changed = True

    def _dims(self, options: Options, specs: Specs) -> dict[str, int]:
        """The vectors that the corpus takes from callers. Raises BadSpec where a table is to give others."""
        known = dims(create(spec, self.resources) for spec, _ in specs.values())
        for rule in options.rows:
            for column, name in rule.vectors:
                if name not in known:
                    choice = ", ".join(sorted(known)) or "none yet"
                    raise BadSpec(
                        f"--rows {rule}: the corpus takes no vectors named {name!r}. It takes: {choice}. "
                        f"Add a space, e.g. --layer {name}=vectors:dim=384, or name another: vector={column}->NAME."
                    )
        return known

    def _images(self, specs: Specs) -> Callable[[str], bool] | None:
        """Which paths are looked at as images, where a space does."""
        return images_taken((create(spec, self.resources), spec.scope) for spec, _ in specs.values())

    def _specs(self, options: Options, parent: Generation | None, listing: Listing) -> tuple[Specs, dict[str, str]]:
        """Spaces of the next generation, by name, with their ids; and those that cannot be built here, with the reason.

        Asked-for ones are added to, or replace, those the corpus has. Raises ModelMissing, EndpointError for one of these, and where
        none can be built.
        """
        asked = [*(options.choose(listing) if options.choose and parent is None and listing.files else ()), *options.specs]
        if not asked and parent is None and listing.files:
            raise BadSpec("A new corpus needs layers. Give --layers, e.g. names,text,bm25,static.")
        there = {ref.name: ref for ref in parent.root.spaces} if parent else {}
        wanted = {name: spec_of(ref) for name, ref in there.items()}
        for spec in asked:
            if sum(other.name == spec.name for other in asked) > 1:
                raise BadSpec(f"Two spaces are called {spec.name!r}. Name one: other={spec.layer}:….")
            wanted[spec.name] = spec
        named = {spec.name for spec in asked}
        specs: dict[str, tuple[SpaceSpec, str]] = {}
        unable: dict[str, str] = {}
        # Always anew: a layer or model that changed since is another space, and its arrays are made again.
        made = {name: create(spec, self.resources) for name, spec in wanted.items()}
        for name, layer in made.items():
            try:
                specs[name] = wanted[name], space_id(wanted[name], layer)
                layer.check()
            except (ModelMissing, EndpointError) as error:
                # Files that only a space of images looks at would pass for deleted without it.
                if name in named or layer.media or len(unable) + 1 == len(wanted):
                    raise
                specs[name], unable[name] = (wanted[name], there[name].space_id), str(error)
        return specs, unable

    def _guard_shrink(self, options: Options, outcome: Outcome, listing: Listing, old: SourceRef | None, gone: list[TreeRow]) -> None:
        """Forget what is gone where that is more likely a mistake: most files, or all, as of a disk that is not mounted."""
        n_lost = sum(bool(row.hash) for row in gone)
        if old is None or options.allow_shrink or not n_lost:
            return
        if listing.files and (n_lost < 20 or n_lost <= SHRINK * old.n_entries):
            return
        outcome.notes.append(
            f"{n_lost:,} of {old.n_entries:,} files are gone from the listing; nothing was deleted. "
            "If that is right, run again with --allow-shrink."
        )
        gone.clear()

    def _ranges(self, options: Options, parent: Generation | None) -> list[tuple[int, int]]:
        if options.n_shards is None and parent is not None:
            return [shard.buckets for shard in parent.root.shards]
        try:
            return shard_ranges(1 if options.n_shards is None else options.n_shards)
        except ValueError as error:
            raise BadSpec(f"--shards: {error}.") from None

    # --- reading -----------------------------------------------------------------------------------------------------------

    def _stage(self, specs: Specs, options: Options, files: list[Listed], attached: Attached, outcome: Outcome) -> list[Staged]:
        tasks = self.writer.staging.tasks(options.source, files, options.max_file_bytes, attached)
        total, done = sum(max(0, f.size_bytes) for f in files), 0
        staged = []
        self.report("read", 0, total, "bytes")
        for result in self.writer.workers(specs).run("stage", tasks):
            staged.append(result)
            done += result.size_bytes
            n_rows = sum(map(len, result.rows.values()))
            n_files = len(result.hashes) - n_rows + len(result.rows.keys() - result.skipped.keys()) + len(result.skipped)
            outcome.rows += n_rows
            add_odd(outcome.odd, result.odd)
            if result.kept:
                outcome.resumed += n_files
            else:
                outcome.hashed += n_files
                outcome.size_bytes += result.size_bytes
            outcome.failed.update(result.failed)
            for reason, n in result.unread.items():
                outcome.unread[reason] = outcome.unread.get(reason, 0) + n
            for reason, n in Counter(result.skipped.values()).items():
                outcome.skipped[reason] = outcome.skipped.get(reason, 0) + n
            self.report("read", min(done, total), total, "bytes")
        return staged


def _last_run(outcome: Outcome) -> SourceRun:
    examples = [f"{path}: {reason}" for path, reason in sorted(outcome.failed.items())[:N_EXAMPLES]]
    # Names that are not UTF-8 are shown as U+FFFD: a manifest is JSON for any language.
    shown = tuple(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in examples)
    odd = {reason: n for reason, (n, _) in outcome.odd.items()}
    return SourceRun(listed=outcome.listed, skipped=outcome.skipped, unread=outcome.unread, examples=shown, odd=odd)


def _counted(outcome: Outcome) -> str:
    return ", ".join(f"{reason} {n:,}" for reason, n in sorted(outcome.skipped.items()))
