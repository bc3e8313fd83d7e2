"""Orders about spaces that are built where they are used, as they cross HTTP, and giving them."""

import time
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from serve.schema import Edge
from shards.errors import BadSpec, NotFound
from shards.layer_queue import Order, Queue, give, state
from shards.manifest import Root, corpus_store
from shards.usage import forget

if TYPE_CHECKING:
    from shards.store import Store

VERBS = ("build", "pin", "unpin", "evict", "cancel", "limit")

Space = Annotated[str | None, Field(min_length=1, max_length=128)]
Glob = Annotated[str, Field(min_length=1, max_length=1_024)]


class LayersRequest(Edge):
    """One order about one space, or whether answers are counted.

    build: encode all documents of `scope` before what use suggests. pin: keep and build them, whatever the limits. unpin, cancel: take
    pins, or builds and pins, back. evict: drop what is built, until it is used again. limit: set the limits of the space; those left out
    are none.
    """

    build: Space = None
    pin: Space = None
    unpin: Space = None
    evict: Space = None
    cancel: Space = None
    limit: Space = None
    scope: Annotated[tuple[Glob, ...], Field(max_length=100, description="globs of paths that are meant; none: all")] = ()
    bytes: Annotated[int | None, Field(ge=0, description="of limit: of the space's arrays")] = None
    encodings_per_day: Annotated[int | None, Field(ge=0, description="of limit: documents encoded anew in a day of UTC")] = None
    cost_per_day: Annotated[float | None, Field(ge=0, description="of limit: what endpoints may take in a day, by their prices")] = None
    usage: Annotated[bool | None, Field(description="whether answers of the corpus are counted; false forgets what was")] = None

    @model_validator(mode="after")
    def _one_order(self) -> Self:
        named = [verb for verb in VERBS if getattr(self, verb) is not None] + ["usage"] * (self.usage is not None)
        if len(named) != 1:
            raise ValueError(f"give one of {', '.join(VERBS)}, with the name of a space, or usage; not {' and '.join(named) or 'none'}")
        limits = (self.bytes, self.encodings_per_day, self.cost_per_day)
        if self.limit is None and any(one is not None for one in limits):
            raise ValueError("bytes, encodings_per_day and cost_per_day belong to limit")
        if self.scope and (self.limit is not None or self.usage is not None):
            raise ValueError("scope belongs to build, pin, unpin, evict and cancel")
        return self

    def order(self, root: Root) -> Order:
        """As an order about a space of this generation. Raises NotFound, BadSpec."""
        if self.usage is not None:
            return Order(kind="usage", on=self.usage, at=time.time())
        verb = next(verb for verb in VERBS if getattr(self, verb) is not None)
        name = getattr(self, verb)
        space = next((ref for ref in root.spaces if ref.name == name), None)
        partial = ", ".join(ref.name for ref in root.spaces if ref.built == "used") or "none"
        if space is None:
            raise NotFound(f"Corpus {root.corpus!r} has no space {name!r}. Those that are built where they are used: {partial}.")
        if space.built != "used":
            raise BadSpec(
                f"Space {name!r} of corpus {root.corpus!r} is built for all documents. Built where they are used: {partial}. "
                f"Index with --layer {name}=…:built=used to have it so."
            )
        limits = {"bytes": self.bytes, "encodings_per_day": self.encodings_per_day, "cost_per_day": self.cost_per_day}
        return Order(kind="limits" if verb == "limit" else verb, space=name, globs=self.scope, at=time.time(), **limits)  # type: ignore[arg-type]


class LayersAnswer(Edge):
    """The order's number, and what all orders come to: `shards.layer_queue.Queue`. It is kept when this is answered; the work goes on."""

    corpus: str
    number: int
    queue: Queue


def ordered(store: "Store", root: Root, asked: LayersRequest) -> LayersAnswer:
    """Give an order about a corpus of a store. Raises NotFound, BadSpec, BadQuery for a glob, StoreError."""
    inside = corpus_store(store, root.corpus)
    number = give(inside, asked.order(root))
    if asked.usage is False:
        forget(inside)
    return LayersAnswer(corpus=root.corpus, number=number, queue=state(inside))
