"""That a corpus is to be opened from a source: said in the store until it is done, so that any process may begin it, die, and go on.

An order is `opening/<id of the source's name>.json` in the corpus's folder, written once; beside it `….progress.json` is written again and
again by whoever carries it out, and stays when that is done. Of two that carry out one order each publishes what the other has not:
the writer's lease and the order of generations see to that.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import Field, NonNegativeInt, ValidationError

from shards.errors import AlreadyExists, Conflict, NotFound
from shards.lease import process_of
from shards.manifest import Model, Root, check_corpus, corpus_store, encode
from shards.store import Store

SILENT_S = 10.0  # whoever carries out an order tells every second; after so long without a word another one begins
FOLDER = "opening/"
Stage = Literal["waiting", "listing", "reading", "layers", "done", "failed"]
M = TypeVar("M", bound=Model)


class OpenOrder(Model):
    """What is to be opened. url, source, include, exclude: as in `shards.roots.Source`; layers: specs as texts, none: by what there is."""

    url: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1, max_length=128)] = "main"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


class Opening(Model):
    """How far an order is.

    stage: "listing" the source; "reading" it, portion by portion; "layers", when all is read that was listed and further spaces are
    built. listed: files so far; held: of these, in `generation`; pending: in none yet. reason: why it failed. begun, at: seconds since
    1970; process: who tells, as in a lease.
    """

    stage: Stage
    listed: NonNegativeInt = 0
    held: NonNegativeInt = 0
    pending: NonNegativeInt = 0
    generation: NonNegativeInt = 0
    reason: str = ""
    begun: float = 0.0
    at: float = 0.0
    process: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.stage in ("done", "failed")

    def is_carried_out(self, now: float) -> bool:
        """Whether somebody is at it."""
        if self.is_over or self.stage == "waiting" or now - self.at > SILENT_S:
            return False
        ours = process_of(os.getpid())
        if len(self.process) != 4 or list(self.process[:2]) != ours[:2]:
            return True  # elsewhere: silence tells
        return process_of(int(self.process[2])) == list(self.process)


def place(root_store: Store, corpus: str, order: OpenOrder, clock: Callable[[], float] = time.time) -> bool:
    """Put an order into the store; whether it is a new one. Raises BadSpec for the corpus's name, Conflict where the source is being
    opened otherwise.
    """
    inside = corpus_store(root_store, check_corpus(corpus))
    try:
        inside.create(_name(order.source), encode(order))
    except AlreadyExists:
        if (there := find(root_store, corpus, order.source)) is not None and there != order:
            raise Conflict(
                f"Source {order.source!r} of corpus {corpus!r} is being opened from {there.url!r} with other layers or globs. Wait until "
                "that is done, or give another name of the source."
            ) from None
        return False
    tell(root_store, corpus, order.source, Opening(stage="waiting", begun=clock(), at=clock()))
    return True


def find(root_store: Store, corpus: str, source: str) -> OpenOrder | None:
    """The order of a source; None where there is none, or it is done."""
    return _read(corpus_store(root_store, corpus), _name(source), OpenOrder)


def tell(root_store: Store, corpus: str, source: str, opening: Opening) -> None:
    """Say how far an order is."""
    corpus_store(root_store, corpus).write(_name(source, ".progress"), encode(opening))


def end(root_store: Store, corpus: str, source: str) -> None:
    """The order is done, or cannot be."""
    corpus_store(root_store, corpus).delete(_name(source))


def look(root_store: Store, corpus: str, source: str = "main") -> Opening | None:
    """How far the opening of a source is, or was when it ended; None where it was never ordered."""
    return _read(corpus_store(root_store, corpus), _name(source, ".progress"), Opening)


def under_way(root_store: Store, corpus: str) -> Iterator[tuple[OpenOrder, Opening]]:
    """The orders of a corpus that are not done, and how far each is."""
    inside = corpus_store(root_store, corpus)
    for name in inside.list(FOLDER):
        if not name.endswith(".progress.json") and (order := _read(inside, name, OpenOrder)) is not None:
            yield order, look(root_store, corpus, order.source) or Opening(stage="waiting")


def coming(root_store: Store, root: Root) -> Mapping[str, str]:
    """The spaces that a corpus is to have and has in no generation yet, while it is being opened: by name, why they are not there. Of an
    order that names no layers, all that may yet be chosen by what the source holds."""
    from shards.layers import REGISTRY, SpaceSpec

    there = {space.name for space in root.spaces}
    found: dict[str, str] = {}
    for order, _ in under_way(root_store, root.corpus):
        for name in (SpaceSpec.parse(text).name for text in order.layers) if order.layers else REGISTRY:
            why = "is built when all files are read" if order.layers else "may be built when all files are read, by what they are"
            if name not in there:
                found.setdefault(name, f"the corpus is being opened, and this layer {why}")
    return found


def renewed(root_store: Store, root: Root, source: str) -> OpenOrder | None:
    """The order to bring a source up to date that was opened here before; None of others: what index jobs read, they alone know how."""
    from shards.progressive import CHEAP

    ref, opening = root.sources.get(source), look(root_store, root.corpus, source)
    if ref is None or opening is None or opening.stage != "done":
        return None
    # Without layers an order adds those that suit the source to a corpus that has none but these two.
    named = tuple(space.name for space in root.spaces) if {space.layer for space in root.spaces}.issubset(CHEAP) else ()
    return OpenOrder(url=ref.url, source=source, include=ref.include, exclude=ref.exclude, layers=named)


def _read(store: Store, name: str, kind: type[M]) -> M | None:
    try:
        return kind.model_validate_json(store.read(name))
    except NotFound:
        return None
    except ValidationError as error:
        raise store.corrupt(name, f"is no {kind.__name__} ({error.errors()[0]['msg']}). Delete it, and open the corpus again") from None


def _name(source: str, mark: str = "") -> str:
    """A source may bear any name, a file may not."""
    return f"{FOLDER}{hashlib.sha256(source.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}{mark}.json"
