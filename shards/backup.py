"""Copies of a corpus: chosen generations with every file they refer to, byte for byte, checked on the way.

Files first, each compared with its checksum, then the roots, oldest first: what is cut off is no corpus yet, and the next copy
goes on where it was. The copy is a store like any other, in a folder, on S3, or in one tar file.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shards import pushlog
from shards.errors import AlreadyExists, BadSpec, NotFound
from shards.given import OF_DOCUMENTS
from shards.manifest import FileRef, Root, check, corpus_store, list_corpora
from shards.readers import Reader
from shards.references import References, generations, numbers, root_name
from shards.store import Store

logger = logging.getLogger(__name__)

Report = Callable[[str, int, int, str], None]


@dataclass(slots=True)
class Copied:
    """What a copy holds. files, size_bytes: all it refers to; of these copied_files were written now, the others were there."""

    corpus: str
    generations: list[int] = field(default_factory=list)
    files: int = 0
    size_bytes: int = 0
    copied_files: int = 0
    copied_bytes: int = 0
    log_entries: int = 0


def choose_corpus(store: Store, corpus: str | None) -> str:
    """The corpus of a store that is meant. Raises NotFound, and BadSpec where one must be named."""
    known = list_corpora(store)
    if corpus is None and len(known) == 1:
        return known[0]
    if corpus is None and known:
        raise BadSpec(f"{store.url} holds several corpora: {', '.join(known)}. Name one with --corpus.")
    if corpus not in known:
        raise NotFound(f"There is no corpus {corpus or ''!r} in {store.url}. There are: {', '.join(known) or 'none'}.")
    return corpus


def export(
    source: Store,
    target: Store,
    corpus: str,
    wanted: Sequence[int] | None,
    clock: Callable[[], float],
    report: Report = lambda *_: None,
) -> Copied:
    """Copy generations (None: the newest) into another store, where earlier copies of the corpus may lie. Holds them by a lease.

    With the newest goes what was pushed and acknowledged but is in no generation yet. Raises NotFound (Gone), Corrupt where the
    source is damaged, AlreadyExists where the target has another corpus of this name, and StoreError.
    """
    there = generations(source, corpus)
    if not there:
        raise NotFound(f"There is no corpus {corpus!r} in {source.url}. Build it with `sondage index`.")
    chosen = sorted(set(wanted)) if wanted else there[-1:]
    with Reader(corpus_store(source, corpus), f"export to {target.url}", clock) as reader:
        reader.hold(chosen)
        references = References(source, corpus)
        roots = [references.root(number) for number in chosen]  # after the lease: what is there now stays
        _refuse_another(references.inside, corpus_store(target, corpus), roots, newer_only=True)

        def step(name: str, done: int, total: int, unit: str) -> None:
            reader.renew()
            report(name, done, total, unit)

        return _copy(references, target, roots, with_log=chosen[-1] == there[-1], report=step)


def restore(source: Store, target: Store, corpus: str, report: Report = lambda *_: None) -> Copied:
    """Bring a copy's generations into a store that does not have the corpus. Raises AlreadyExists where it does, Corrupt."""
    references = References(source, corpus)
    roots = [references.root(number) for number in generations(source, corpus)]
    _refuse_another(references.inside, corpus_store(target, corpus), roots, newer_only=False)
    return _copy(references, target, roots, with_log=True, report=report)


def _refuse_another(inside: Store, target: Store, roots: list[Root], newer_only: bool) -> None:
    """Raises AlreadyExists where the target has generations that are not those being copied.

    newer_only: older ones that are not being copied may be there, from earlier copies.
    """
    ours = {root.generation for root in roots}
    for number in numbers(target.list("roots/")):
        if number in ours:
            if target.read(root_name(number)) == inside.read(root_name(number)):
                continue
            raise AlreadyExists(f"{target.url} has another generation {number}. Copy into another place, or remove that corpus first.")
        if not newer_only or number > max(ours):
            raise AlreadyExists(f"{target.url} has generation {number} already. Copy into another place, or remove that corpus first.")


def _copy(references: References, target: Store, roots: list[Root], with_log: bool, report: Report) -> Copied:
    inside, to = references.inside, corpus_store(target, references.corpus)
    files: dict[str, FileRef] = {}
    for root in roots:
        files |= {name: ref for name, (_, ref) in references.files(root).items()}
    outcome = Copied(references.corpus, [root.generation for root in roots], len(files), sum(ref.size for ref in files.values()))
    there, done = set(to.list()), 0
    for name, ref in sorted(files.items()):
        if name not in there or not _is_whole(to, ref):
            to.write(name, check(inside.read(name), ref, inside))
            outcome.copied_files += 1
            outcome.copied_bytes += ref.size
        done += ref.size
        report("copy", done, outcome.size_bytes, "bytes")
    _copy_given(inside, to, there, outcome)
    if with_log:
        outcome.log_entries = _copy_log(inside, to, roots[-1])
    for root in roots:
        if root_name(root.generation) not in there:
            to.create(root_name(root.generation), inside.read(root_name(root.generation)))
    logger.info("corpus=%s event=copied generations=%d bytes=%d to=%s", references.corpus, len(roots), outcome.size_bytes, target.url)
    return outcome


def _is_whole(store: Store, ref: FileRef) -> bool:
    """Whether an earlier copy wrote this file right; where not, it makes room."""
    data = store.read(ref.name)
    if len(data) == ref.size and hashlib.sha256(data).hexdigest() == ref.sha256:
        return True
    store.delete(ref.name)
    return False


def _copy_given(inside: Store, to: Store, there: set[str], outcome: Copied) -> None:
    """Vectors that callers gave, and images: of kept encodings these alone cannot be made again. Packs are named by their content."""
    for name in [name for begin in OF_DOCUMENTS for name in inside.list(f"encodings/{begin}")]:
        if name not in there:
            data = inside.read(name)
            to.write(name, data)
            outcome.copied_files += 1
            outcome.copied_bytes += len(data)


def _copy_log(inside: Store, to: Store, newest: Root) -> int:
    """The entries of the log of pushed documents that no generation holds yet, in order."""
    applied = pushlog.applied_of(newest)
    last = pushlog.last(inside, applied)
    for number in range(applied + 1, last + 1):
        pushlog.read(inside, number)  # compares its checksum
        to.write(pushlog.entry_name(number), inside.read(pushlog.entry_name(number)))
    return last - applied
