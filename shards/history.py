"""The kept generations of a corpus, each with what it changed, what it takes, and who reads it."""

import logging
from collections import Counter
from dataclasses import dataclass, field

from shards.changes import changes, counts
from shards.errors import NotFound, StoreError
from shards.lease import holder_of
from shards.manifest import Root, corpus_store
from shards.readers import readings
from shards.references import References, generations
from shards.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """One generation. created: UTC, ISO 8601. by: who published it, "" where that is no longer known (leases are swept). since: the kept
    generation that `changed` compares with, None for the oldest kept.

    changed: {source: {kind: n}}, see `shards.changes`; of the oldest kept generation all that it has counts as added.
    size_bytes: of all its files; own_bytes: of those that no other kept generation has, which collecting it alone would free.
    readers: who holds a lease on it. problem: why it cannot be read, "" if it can; then all else is unknown.
    """

    generation: int
    created: str = ""
    by: str = ""
    parent: int | None = None
    documents: int = 0
    entries: int = 0
    text_bytes: int = 0
    since: int | None = None
    changed: dict[str, dict[str, int]] = field(default_factory=dict)
    spaces: dict[str, str] = field(default_factory=dict)  # name -> layer
    size_bytes: int = 0
    own_bytes: int = 0
    readers: tuple[str, ...] = ()
    problem: str = ""


def history(store: Store, corpus: str, now: float) -> list[Kept]:
    """Every kept generation, newest first. now: seconds since 1970, for leases. Raises NotFound where there is no such corpus.

    Reads roots, the pages that differ from one generation to the next, and pages of references of trees; no segment.
    """
    inside = corpus_store(store, corpus)
    references = References(store, corpus)
    roots: dict[int, Root] = {}
    files: dict[int, dict[str, int]] = {}
    problems: dict[int, str] = {}
    there = generations(store, corpus)
    if not there:
        raise NotFound(f"There is no corpus {corpus!r} in {store.url}. Build it with `sondage index`.")
    for number in there:
        try:
            roots[number] = references.root(number)
            files[number] = {name: ref.size for name, (_, ref) in references.files(roots[number]).items()}
        except (StoreError, NotFound) as error:
            roots.pop(number, None)
            problems[number] = str(error)
    uses = Counter(name for of_one in files.values() for name in of_one)
    held = readings(inside, now)
    found: list[Kept] = []
    before: Root | None = None
    for number in there:
        who = tuple(sorted(reading.holder for reading in held if reading.holds(number)))
        if number in problems:
            found.append(Kept(number, readers=who, problem=problems[number]))
            continue
        root = roots[number]
        problem = ""
        try:
            changed = counts(changes(inside, before, root))
        except (StoreError, NotFound) as error:
            changed, problem = {}, str(error)
        found.append(
            Kept(
                generation=number,
                created=root.created,
                by=holder_of(inside, root.epoch),
                parent=root.parent,
                documents=root.n_docs,
                entries=root.n_entries,
                text_bytes=root.text_bytes,
                since=before.generation if before else None,
                changed=changed,
                spaces={space.name: space.layer for space in root.spaces},
                size_bytes=sum(files[number].values()),
                own_bytes=sum(size for name, size in files[number].items() if uses[name] == 1),
                readers=who,
                problem=problem,
            )
        )
        before = root
    return found[::-1]
