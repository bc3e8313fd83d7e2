"""A corpus that was just named, searchable while it is read: portions that grow, each a generation of the spaces that cost next to nothing.

Portions are ordinary runs that read some of the files (`Options.portion`). So whatever dies is taken up by the next run of any kind, and
what the corpus holds in the end is what one ordinary run makes of the same files. That run comes last: it lists anew, deletes, reads what
has changed meanwhile, builds the further spaces and merges.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from shards.attached import attach
from shards.corpus import Listed, Listing, list_source
from shards.layers import SpaceSpec
from shards.manifest import SourceRef, latest_generation, read_root
from shards.store import Store
from shards.types import Array
from shards.update import Options, Updater

logger = logging.getLogger(__name__)

CHEAP = ("names", "text")  # spaces of the growing generations: their arrays take a few milliseconds for a megabyte
# The first portion: a fifth of the files, if that is read within two seconds. Twenty thousand files of some kilobytes are, by one core.
FIRST_SHARE, FIRST_FILES, FIRST_BYTES = 0.2, 20_000, 48 << 20
GROWTH = 3  # each portion makes the corpus so many times larger: of n files log(n) generations, each a segment or two
SMALL_BYTES = 64 << 10  # files up to here are alike; of larger ones each fourfold size comes after all that are smaller
WORTH_FILES, WORTH_BYTES = 2_000, 16 << 20  # smaller sources are read at once, in about a second

Told = Callable[[str, int, int], None]  # stage ("listed", "published"); files that are held, files pending
GoOn = Callable[[], None]


def portions(files: Sequence[Listed]) -> Iterator[list[Listed]]:
    """Files in portions that grow, each in the order of `files`; together they are all files.

    Small files before large ones, and of these breadth over folders: the smallest of each folder, then the next, so that what is there
    first is of every part. What a portion holds depends on the listing alone, so that a run that was cut off finds what it had read.
    """
    if len(files) <= WORTH_FILES and sum(max(0, file.size_bytes) for file in files) <= WORTH_BYTES:
        yield list(files)
        return
    order = in_order(files)
    totals = np.cumsum([max(0, files[i].size_bytes) for i in order.tolist()])
    at, most_files, most_bytes = 0, min(FIRST_FILES, max(1, int(FIRST_SHARE * len(files)))), FIRST_BYTES
    while at < len(order):
        before = int(totals[at - 1]) if at else 0
        end = max(at + 1, min(at + most_files, int(np.searchsorted(totals, before + most_bytes, "right"))))
        if len(order) - end < (end - at) // 2:  # a rest that is not worth a generation of its own
            end = len(order)
        yield [files[i] for i in np.sort(order[at:end]).tolist()]
        most_files, most_bytes = (GROWTH - 1) * end, (GROWTH - 1) * int(totals[end - 1])
        at = end


def in_order(files: Sequence[Listed]) -> Array:
    """The places of files in the order in which they are worth reading; (n,) int64."""
    sizes = np.fromiter((max(0, file.size_bytes) for file in files), np.int64, len(files))
    numbers: dict[str, int] = {}
    folders = np.fromiter((numbers.setdefault(file.path.rpartition("/")[0], len(numbers)) for file in files), np.int64, len(files))
    large = np.zeros(len(files), np.int64)  # class of size: 0 up to `SMALL_BYTES`, then one more for each fourfold
    limit = SMALL_BYTES
    while (above := sizes > limit).any():
        large += above
        limit *= 4
    group = large * len(numbers) + folders
    by_size = np.lexsort((sizes, group))  # stable: of equals the first in the listing
    begins = np.flatnonzero(np.diff(group[by_size], prepend=-1))
    ranks = np.empty(len(files), np.int64)  # so many of the same folder and class are smaller
    ranks[by_size] = np.arange(len(files)) - np.repeat(begins, np.diff(begins, append=len(files)))
    return np.lexsort((ranks, large))


def grow(
    updater: Updater,
    options: Options,
    told: Told = lambda *_: None,
    go_on: GoOn = lambda: None,
    listed: Callable[[], Listing] | None = None,
) -> Listing:
    """Read a source in portions, and publish a generation after each; returns the listing, for `Updater.run` of `options` to follow.

    options: of the run that completes it; its own spaces are not built here, but for those of `CHEAP`. A source that was read to its end
    before is left to that run. told: after listing, and after each generation. go_on: called before each portion; may raise Cancelled.
    listed: gives the listing, where somebody else makes it. Raises as `Updater.run`.
    """
    listing = options.listing or (listed or partial(list_source, options.source))()
    told("listed", 0, len(listing.files))
    cheap = _cheap(options)
    before = source_of(updater.root_store, options.corpus, options.source.name)
    parts = list(portions(attach(listing, options.rows, {}, None, options.formats).listing.files))
    if options.choose is None and len(cheap) == len(options.specs):
        del parts[-1:]  # what the complete run does it does as fast
    if not cheap or (before is not None and not before.pending):
        return listing
    read: frozenset[str] = frozenset()
    for part in parts:
        go_on()
        paths = frozenset(file.path for file in part)
        updater.run(replace(options, specs=cheap, choose=None, listing=listing, portion=paths, read_before=read))
        read |= paths
        if (now := source_of(updater.root_store, options.corpus, options.source.name)) is not None and now != before:
            logger.info("corpus=%s event=grown entries=%d pending=%d", options.corpus, now.n_entries, now.pending)
            told("published", now.n_entries, now.pending)
            before = now
    return listing


def source_of(root_store: Store, corpus: str, source: str) -> SourceRef | None:
    """What the newest generation of a corpus says of a source; None where it is new."""
    number = latest_generation(root_store, corpus)
    return read_root(root_store, corpus, number).sources.get(source) if number is not None else None


def _cheap(options: Options) -> tuple[SpaceSpec, ...]:
    """The spaces of growing generations: those of `CHEAP` that are asked for, or both where the source is to decide."""
    asked = tuple(spec for spec in options.specs if spec.layer in CHEAP)
    return asked or (tuple(SpaceSpec(name, name) for name in CHEAP) if options.choose is not None else ())
