"""What was ordered of spaces that are built where they are used: builds, pins, evictions, limits.

Orders are files below the corpus, `building/<number>.json`, made with `create` and numbered from 1, so any process may give one and
none is lost; what they come to is a fold over them. `building/<number>-all.json` stands for all orders up to its own, which are
deleted then. A builder takes a unit of work by a lease, `building/units/<key>-<until>.json`, likewise: one that dies is missed until
its lease ends, and what it had encoded is kept by content hash.
"""

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Collection, Sequence
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError, model_validator

from shards.errors import AlreadyExists, Corrupt, NotFound
from shards.lease import is_gone, process_of
from shards.manifest import Model
from shards.plan import glob_regex
from shards.store import Store

logger = logging.getLogger(__name__)

FOLDED = 64  # orders after which they are folded into one file
UNIT_S = 120.0  # for which a unit is leased; encoding one takes seconds

_NAME = re.compile(r"building/(\d{16})(-all)?\.json")
_UNIT = re.compile(r"building/units/([0-9a-f]{24})-(\d{16})\.json")

Kind = Literal["build", "pin", "unpin", "evict", "evicted", "cancel", "limits", "usage"]


class Order(Model):
    """One order. globs: paths that are meant; none means all. at: seconds since 1970.

    build: all these documents, before what use suggests. pin: keep them, whatever the limits, and build them. evict: drop them, until
    they are used again. evicted: that an eviction is done, the one of `order`. cancel: the builds and pins of a space. limits: what is
    None is no limit. usage: whether answers are counted.
    """

    kind: Kind
    space: str = ""
    globs: tuple[str, ...] = ()
    bytes: NonNegativeInt | None = None
    encodings_per_day: NonNegativeInt | None = None
    cost_per_day: NonNegativeFloat | None = None
    on: bool = True
    order: NonNegativeInt = 0
    at: float = 0.0

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if (self.kind == "usage") == bool(self.space):
            raise ValueError("an order is about a space, but for usage, which is about the corpus")
        for glob in self.globs:
            glob_regex(glob)
        return self


class Meant(Model):
    """Documents of a space that an order is about. number: of the order."""

    space: str
    globs: tuple[str, ...] = ()
    number: PositiveInt
    at: float = 0.0


class Limits(Model):
    """bytes: of a space's arrays; on one day of UTC encodings_per_day: documents that are encoded anew, and cost_per_day: what endpoints
    take for them, by the prices of their settings: what is under way when it is reached is finished. None: any number."""

    bytes: NonNegativeInt | None = None
    encodings_per_day: NonNegativeInt | None = None
    cost_per_day: NonNegativeFloat | None = None


class Queue(Model):
    """What all orders come to. number: of the last. builds, pins: in force; evictions: to be done; evicted: done, and in force for
    what was not used since; limits: by space."""

    number: NonNegativeInt = 0
    builds: tuple[Meant, ...] = ()
    pins: tuple[Meant, ...] = ()
    evictions: tuple[Meant, ...] = ()
    evicted: tuple[Meant, ...] = ()
    limits: dict[str, Limits] = Field(default_factory=dict)
    usage: bool = True

    def after(self, number: int, order: Order) -> "Queue":
        """The queue when one more order was given."""
        meant = Meant(space=order.space, globs=order.globs, number=number, at=order.at)

        def others(these: tuple[Meant, ...]) -> tuple[Meant, ...]:
            """Without those that the order takes back: of its space, and its globs if it names some."""
            return tuple(one for one in these if one.space != order.space or (order.globs and one.globs != order.globs))

        new: dict[str, object] = {"number": number}
        match order.kind:
            case "build":
                new |= {"builds": (*others_same(self.builds, meant), meant), "evicted": others(self.evicted)}
            case "pin":
                new |= {"pins": (*others_same(self.pins, meant), meant), "evicted": others(self.evicted)}
            case "unpin":
                new["pins"] = others(self.pins)
            case "evict":
                new |= {"builds": others(self.builds), "evictions": (*self.evictions, meant)}
            case "evicted":
                done = [one for one in self.evictions if one.number == order.order]
                new["evictions"] = tuple(one for one in self.evictions if one.number != order.order)
                new["evicted"] = (*(one for one in self.evicted if all(one.globs != d.globs or one.space != d.space for d in done)), *done)
            case "cancel":
                new |= {"builds": others(self.builds), "pins": others(self.pins), "evictions": others(self.evictions)}
            case "limits":
                new["limits"] = self.limits | {order.space: Limits(**order.model_dump(include=set(Limits.model_fields)))}
            case "usage":
                new["usage"] = order.on
        return self.model_copy(update=new)

    def without(self, paths: Collection[str]) -> "Queue":
        """The queue without orders that name one of these paths."""

        def kept(these: tuple[Meant, ...]) -> tuple[Meant, ...]:
            return tuple(one for one in these if not set(one.globs) & set(paths))

        parts = {name: kept(getattr(self, name)) for name in ("builds", "pins", "evictions", "evicted")}
        return self.model_copy(update=parts)


def others_same(these: tuple[Meant, ...], meant: Meant) -> tuple[Meant, ...]:
    """Without those that say the same."""
    return tuple(one for one in these if (one.space, one.globs) != (meant.space, meant.globs))


def give(inside: Store, order: Order) -> int:
    """Give an order; returns its number. inside: the corpus's folder of the store. One without a time gets that of now.

    Raises StoreError.
    """
    order = order if order.at else order.model_copy(update={"at": time.time()})
    while True:
        number = max((n for n, _ in _numbers(inside)), default=0) + 1
        try:
            inside.create(_name(number), order.model_dump_json(exclude_defaults=True).encode())
        except AlreadyExists:
            continue
        if number % FOLDED == 0:
            fold(inside)
        return number


def state(inside: Store) -> Queue:
    """What all orders come to. Raises StoreError; an order that cannot be read is passed over, and logged."""
    for _ in range(10):
        try:
            return _state(inside)
        except NotFound:  # folded since they were listed
            continue
    return _state(inside)


def fold(inside: Store, queue: Queue | None = None) -> None:
    """Let one file stand for all orders up to now. queue: to stand in their place."""
    queue = queue or state(inside)
    if not queue.number:
        return
    inside.write(_name(queue.number, all_=True), queue.model_dump_json().encode())
    # The last order stays, so that its number is not given again.
    inside.delete_many([_name(n, all_) for n, all_ in _numbers(inside) if n < queue.number])


def erase(inside: Store, paths: Collection[str]) -> bool:
    """Take back orders that name one of these paths, and let no file say so; returns whether one did."""
    queue = state(inside)
    inside.delete_many([name for name in inside.list("building/units/")])
    if not queue.number or (kept := queue.without(paths)) == queue:
        return False
    number = give(inside, Order(kind="usage", on=queue.usage))  # a number of its own, after which the fold stands for all before
    inside.write(_name(number, all_=True), kept.model_copy(update={"number": number}).model_dump_json().encode())
    inside.delete_many([_name(n, all_) for n, all_ in _numbers(inside) if n < number])
    return True


def _state(inside: Store) -> Queue:
    found = sorted(_numbers(inside))
    folded = max((n for n, all_ in found if all_), default=0)
    queue = Queue()
    if folded:
        try:
            queue = Queue.model_validate_json(inside.read(_name(folded, all_=True)))
        except ValidationError as error:
            raise Corrupt(f"File {_name(folded, all_=True)!r} in store {inside.url} is no queue ({error}). Delete it.") from None
    for number, all_ in found:
        if all_ or number <= folded:
            continue
        try:
            queue = queue.after(number, Order.model_validate_json(inside.read(_name(number))))
        except ValidationError as error:
            logger.warning("file=%s event=order_unreadable reason=%s", _name(number), error)
            queue = queue.model_copy(update={"number": number})
    return queue


def _numbers(inside: Store) -> list[tuple[int, bool]]:
    return [(int(match[1]), match[2] is not None) for name in inside.list("building/") if (match := _NAME.fullmatch(name))]


def _name(number: int, all_: bool = False) -> str:
    return f"building/{number:016d}{'-all' if all_ else ''}.json"


# --- units of work -----------------------------------------------------------------------------------------------------------


def unit_key(space_id: str, document: bytes) -> str:
    """Names the unit that begins with a document: 24 hex digits."""
    return hashlib.sha256(space_id.encode() + document).hexdigest()[:24]


def taken(inside: Store, now: float) -> dict[str, set[bytes]]:
    """By space id, the documents that builders have leased. now: seconds since 1970. Leases are deleted that have ended, or whose process
    was one of this machine and is gone."""
    found: dict[str, set[bytes]] = {}
    for name in inside.list("building/units/"):
        match = _UNIT.fullmatch(name)
        if match is None or int(match[2]) / 1000 < now:
            inside.delete(name)
            continue
        try:
            body = json.loads(inside.read(name))
            if is_gone(body.get("process", ())):
                inside.delete(name)
                continue
            found.setdefault(body["space"], set()).update(bytes.fromhex(key) for key in body["documents"])
        except (NotFound, ValueError, KeyError, TypeError):  # given back since it was listed
            continue
    return found


def take(inside: Store, space_id: str, documents: Sequence[bytes], now: float) -> str | None:
    """Lease a unit; returns the lease's name, None where another builder has one that begins with the same document.

    Two that overlap otherwise are harmless: what both encode is the same, and kept once.
    """
    key = unit_key(space_id, documents[0])
    if any(name.startswith(f"building/units/{key}-") for name in inside.list("building/units/")):
        return None
    unit = {"space": space_id, "documents": [one.hex() for one in documents], "process": process_of(os.getpid())}
    name = f"building/units/{key}-{int((now + UNIT_S) * 1000):016d}.json"
    try:
        inside.create(name, json.dumps(unit).encode())
    except AlreadyExists:
        return None
    return name
