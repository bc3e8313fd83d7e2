"""What the next generation of a corpus is to hold: said by an index job or a push, written by `shards/writing.py`."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from shards import tree
from shards.delta import Change, Specs
from shards.endpoint_settings import Usage
from shards.errors import EndpointError, ModelMissing, SondageError
from shards.generation import spec_of
from shards.layers import create, space_id
from shards.layers.contract import Layer, Resources
from shards.manifest import FileRef, Root, SourceRun
from shards.store import Store
from shards.tree import TreeRow

logger = logging.getLogger(__name__)

REFIT = 0.1  # null models are fitted anew when the number of documents has changed by this share


@dataclass(frozen=True, slots=True)
class SourceChange:
    """What one source has to say in the next generation. applied, last_run, pending: see `SourceRef`."""

    name: str
    url: str
    change: Change
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    applied: int = 0
    last_run: SourceRun | None = None
    pending: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """What the next generation is to hold beyond its parent.

    specs: every space of the corpus, with its id. sources: those with changes; others stay as they are. packs: the staging file
    of each document that may be new. ranges: bucket ranges of the shards; None keeps them. build: names of the spaces that new
    segments get; None: all, and then segments that lack one, or have one of another id, are filled. With fewer, such segments
    stay as they are, for a later job to fill: a document is found by the spaces that its segment has. refit: see `REFIT`.
    """

    specs: Specs
    sources: tuple[SourceChange, ...] = ()
    packs: Mapping[bytes, str] = field(default_factory=dict)
    ranges: tuple[tuple[int, int], ...] | None = None
    build: frozenset[str] | None = None
    refit: float = REFIT

    @property
    def building(self) -> Specs:
        """The spaces that new segments get."""
        return self.specs if self.build is None else {name: self.specs[name] for name in sorted(self.build & set(self.specs))}


@dataclass(slots=True)
class Tally:
    """What writing a generation took. encoded, reused: documents, by space; spent: at endpoints, by space."""

    documents_added: int = 0
    documents_removed: int = 0
    encoded: dict[str, int] = field(default_factory=dict)
    reused: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    spent: dict[str, Usage] = field(default_factory=dict)


class timed:
    """Adds the seconds of a block to a tally."""

    def __init__(self, tally: Tally, step: str):
        self.tally, self.step = tally, step

    def __enter__(self) -> None:
        self.begun = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.tally.seconds[self.step] = self.tally.seconds.get(self.step, 0.0) + time.monotonic() - self.begun


def specs_of(root: Root) -> Specs:
    """The spaces of a generation as it has them, whether or not this build could make them: what a `Draft` keeps."""
    return {ref.name: (spec_of(ref), ref.space_id) for ref in root.spaces}


def buildable(root: Root, resources: Resources) -> frozenset[str]:
    """The names of those spaces of a generation that this machine makes with the same arrays: same version, same model."""
    names = set()
    for ref in root.spaces:
        with suppress(ModelMissing, EndpointError):
            if space_id(spec_of(ref), create(spec_of(ref), resources)) == ref.space_id:
                names.add(ref.name)
    return frozenset(names)


class Makers:
    """The layers that make a corpus's spaces on this machine, with their models, kept from one generation to the next."""

    def __init__(self, corpus: str, resources: Resources):
        self._corpus, self._resources = corpus, resources
        self._layers: dict[tuple[str, str], Layer | None] = {}  # by space's name and id

    def maker(self, name: str, specs: Specs) -> Layer | None:
        """The layer that makes a space's arrays here; None where another version or model made them, or none can: told once."""
        spec, space = specs[name]
        if (name, space) not in self._layers:
            layer: Layer | None = None
            try:
                layer = create(spec, self._resources)
                layer.check()
                if space_id(spec, layer) != space:
                    layer = None
            except SondageError as error:
                layer = None
                logger.warning("corpus=%s space=%s event=not_built_here reason=%s", self._corpus, name, error)
            self._layers[name, space] = layer
        return self._layers[name, space]


def replace_rows(store: Store, source: str, before: FileRef | None, upserts: Sequence[TreeRow], deletes: Sequence[str] = ()) -> Change:
    """The change that puts rows in place of what a source's tree says of their paths, and takes paths away.

    before: the source's tree; None where there is none yet. A row whose hash is "" is remembered but not indexed. Each path at
    most once; deletes of paths that are not there, and rows that say what the tree says, change nothing.
    """
    change = Change()
    known = tree.find(store, before, [*(row.path for row in upserts), *deletes]) if before else {}
    for row in upserts:
        old = known.get(row.path)
        if old == row:
            continue
        change.upserts.append(row)
        if old is not None and old.hash:
            change.removed.append(tree.entry_of(source, old))
        if row.hash:
            change.added.append(tree.entry_of(source, row))
    for path in deletes:
        old = known.get(path)
        if old is not None:
            change.deletes.append(path)
            if old.hash:
                change.removed.append(tree.entry_of(source, old))
    return change
