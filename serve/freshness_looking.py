"""Looking at the sources of a corpus in a thread, within a time: what changed, and reading it."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shards import pushlog, tree
from shards.corpus import list_source
from shards.errors import SondageError
from shards.freshness import CHANGED, MAX_FILES, UNCHECKED, VANISHED, Checked, Known, ListedCheck, LocalCheck
from shards.generation import Generation
from shards.identity import as_keys
from shards.live import Live, LiveShard, Wanted
from shards.local_folder import LocalFolder
from shards.manifest import SourceRef
from shards.roots import Source
from shards.tree import table_of
from shards.types import Budget

logger = logging.getLogger(__name__)

READ_S = 0.01  # to read changed files in, at least, however long the look took
STORAGE_OPTIONS: Mapping[str, Any] = {}  # fsspec's: manifests hold none, so what the environment says is used


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What is known of a corpus's sources, at one moment.

    dead: content hashes all of whose files are gone or others now; of each, whether all are gone. replaced: of those of changed files, the
    content hashes of what was read instead. live: what was read. problems: why sources were not looked at, by their name.
    """

    dead: Mapping[bytes, bool] = field(default_factory=dict)
    replaced: Mapping[bytes, frozenset[bytes]] = field(default_factory=dict)
    live: LiveShard | None = None
    left_out: int = 0
    changed: int = 0
    vanished: int = 0
    new: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Watched:
    """A corpus that is looked at. checks: by source; trees: checksum of the tree that each was made of. work: what a thread does now."""

    generation: Generation
    live: Live
    checks: dict[str, Checked] = field(default_factory=dict)
    trees: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    is_loaded: bool = False
    is_pending: bool = False  # changed files wait to be read
    seen: Seen = field(default_factory=Seen)
    work: "Future[None] | None" = None
    lock: threading.Lock = field(default_factory=threading.Lock)


def is_source(name: str, ref: SourceRef) -> bool:
    """Whether entries of a source lie anywhere but in the store."""
    return name != pushlog.SOURCE and ref.n_entries > 0 and ref.tree is not None


def look_and_read(corpus: Watched, prefixes: Sequence[bytes], limit: Budget, since_s: float, strict: bool) -> None:
    """Look at a corpus's sources, and read what changed, within a time."""
    try:
        with corpus.lock:
            _load(corpus)
            for name, check in corpus.checks.items():
                if not strict and corpus.generation.root.sources[name].pending:
                    continue  # a run reads it just now: what is new is pending, and coverage says so
                if isinstance(check, LocalCheck):
                    folders = check.within(prefixes)
                    check.sweep(limit, folders, since_s if strict else time.monotonic() - check.rest_s)
                elif strict and isinstance(check, ListedCheck):
                    _list(corpus, name, check)
            _read(corpus, Budget(max(limit.remaining_s, READ_S)))
            corpus.is_pending = bool(limit.expired and corpus.live.left_out)
            corpus.seen = _seen(corpus)
    except Exception:  # a check that broke is no reason to answer nothing: the answer says that it was not checked
        logger.exception("corpus=%s event=check_failed", corpus.generation.root.corpus)
        raise


def _load(corpus: Watched) -> None:
    """Make the checks of sources of which there is none yet."""
    if corpus.is_loaded:
        return
    generation = corpus.generation
    for name, ref in generation.root.sources.items():
        if name in corpus.checks or not is_source(name, ref) or ref.tree is None:
            continue
        source = Source(name, ref.url, ref.include, ref.exclude)
        if ref.n_entries > MAX_FILES:
            corpus.problems[name] = f"it has more than {MAX_FILES:,} files: only those of hits are looked at"
            continue
        is_local = source.scheme in ("file", "local") and "::" not in source.url
        try:
            files = LocalFolder(source) if is_local else None
        except SondageError as error:
            corpus.problems[name] = f"it is not here: {error}"
            continue
        if files is not None:
            corpus.checks[name] = LocalCheck(files, Known.of(tree.rows(generation.store, ref.tree)))
        else:
            rows = [row for row in tree.rows(generation.store, ref.tree) if table_of(row) is None]
            check = ListedCheck(Known.of(tree.rows(generation.store, ref.tree)), [row.etag for row in rows])
            check.reason = "it is no folder of this machine: only strict checks list it"
            corpus.checks[name] = check
        corpus.trees[name] = ref.tree.sha256
    corpus.is_loaded = True


def _list(corpus: Watched, name: str, check: ListedCheck) -> None:
    """Look at a source that is no folder of this machine: it is listed, as by a run."""
    ref = corpus.generation.root.sources[name]
    try:
        check.take(list_source(Source(name, ref.url, ref.include, ref.exclude, STORAGE_OPTIONS)))
        check.reason = ""
    except SondageError as error:
        check.reason = str(error)
        check.state[:] = UNCHECKED


def _read(corpus: Watched, budget: Budget) -> None:
    """Read changed and new files; those that have the content that was indexed are no change."""
    wanted: list[Wanted] = []
    rows: dict[tuple[str, str], int] = {}
    for name, check in corpus.checks.items():
        if isinstance(check, LocalCheck) and not check.reason:
            wanted += [Wanted(name, check.files, file) for file in (*check.changed.values(), *check.new.values())]
            rows |= {(name, file.path): row for row, file in check.changed.items()}
    if not wanted and corpus.live.shard is None:
        corpus.live.left_out = 0
        return
    same = set()
    for key, (file, content) in corpus.live.update(wanted, budget).items():
        if content is not None and key in rows:
            check = corpus.checks[key[0]]
            if content == check.known.hashes[rows[key]].tobytes():
                check.settle(rows[key], file)
                same.add(key)
    if same:
        corpus.live.update([one for one in wanted if (one.source, one.file.path) not in same], budget)


def _seen(corpus: Watched) -> Seen:
    generation, live = corpus.generation, corpus.live.shard
    problems = dict(corpus.problems)
    problems |= {name: check.reason for name, check in corpus.checks.items() if check.reason}
    problems |= {name: "most of its files are gone, which is taken for a fault" for name, check in corpus.checks.items() if check.doubtful}
    told = [check for name, check in corpus.checks.items() if name not in problems]
    states = [np.bincount(check.state, minlength=4) for check in told]
    dead: dict[bytes, bool] = {}
    replaced: dict[bytes, set[bytes]] = {}
    # Whether a document lies nowhere else is known only where all sources are.
    if told and len(told) == sum(ref.n_entries > 0 for ref in generation.root.sources.values()):
        parts = [check.stale() for check in told]
        hashes, gone = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        if len(hashes):
            unique, first, n_stale = np.unique(as_keys(hashes), return_index=True, return_counts=True)
            n_all = sum((check.n_entries(hashes[first]) for check in told), np.zeros(len(first), np.int64))
            changed = set(as_keys(hashes)[~gone].tolist())
            dead = {key: key not in changed for key in unique[n_stale >= n_all].tolist()}
    paths = live.paths if live is not None else {}
    for name, check in corpus.checks.items() if paths else ():
        for row, file in check.changed.items():
            if (name, file.path) in paths:
                new = paths[name, file.path]
                replaced.setdefault(check.known.hashes[row].tobytes(), set()).update([] if new is None else [new])
    return Seen(
        dead=dead,
        replaced={key: frozenset(new) for key, new in replaced.items()},
        live=live,
        left_out=corpus.live.left_out,
        changed=sum(int(n[CHANGED]) for n in states),
        vanished=sum(int(n[VANISHED]) for n in states),
        new=sum(len(check.new) for check in told),
        problems=problems,
    )
