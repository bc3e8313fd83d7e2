"""How a corpus is to be served: so many replicas, and between which bounds that may change by itself.

Small files, write-once, numbered like generations; the highest number holds. There is nothing else to agree on: the number of shards
is the generation's, and which node serves which shard each coordinator works out of both and of the nodes it sees. FORMAT.md
describes the bytes.
"""

import json
import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, PositiveInt, ValidationError, model_validator

from shards.errors import AlreadyExists, Corrupt, NotFound, StoreError
from shards.manifest import Model, encode

if TYPE_CHECKING:
    from shards.store import Store

# 1: first published format.
RECORD_FORMAT = 1
KEPT_RECORDS = 64  # older ones are deleted, as automatic scaling writes one with every change; for people, who ask what happened

_NAME = re.compile(r"serving/(\d{8})\.json")


class ServingRecord(Model):
    """What holds from this record on.

    replicas: hosts that serve each shard, as far as there are hosts. min_replicas, max_replicas: bounds between which load changes that
    number; both or neither, and neither leaves it as it is. created: UTC, ISO 8601. by, reason: for people.
    """

    format: int = RECORD_FORMAT
    number: PositiveInt
    replicas: PositiveInt
    min_replicas: PositiveInt | None = None
    max_replicas: PositiveInt | None = None
    created: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    by: str = ""
    reason: str = ""

    @model_validator(mode="after")
    def _bounds_hold(self) -> Self:
        if (self.min_replicas is None) != (self.max_replicas is None):
            raise ValueError("min_replicas and max_replicas belong together; give both, or neither for a fixed number")
        low, high = self.bounds
        if not low <= self.replicas <= high:
            raise ValueError(f"replicas is {self.replicas}, which lies outside of {low} to {high}")
        return self

    @property
    def bounds(self) -> tuple[int, int]:
        """Fewest and most replicas that there may be."""
        return self.min_replicas or self.replicas, self.max_replicas or self.replicas

    @property
    def automatic(self) -> bool:
        """Whether load may change the number of replicas."""
        return self.min_replicas is not None


def newest_number(names: Iterable[str]) -> int:
    """The number of the record that holds, of those among these names; 0 before the first."""
    return max((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), default=0)


def newest(store: "Store") -> ServingRecord | None:
    """The record that holds; None before the first. store: the corpus's.

    Raises Corrupt, and StoreError for a format that this build cannot read.
    """
    while number := newest_number(store.list("serving/")):
        try:
            return read(store, number)
        except NotFound:  # swept since it was listed: there are later ones
            continue
    return None


def read(store: "Store", number: int) -> ServingRecord:
    """One record by its number. Raises NotFound, Corrupt, StoreError."""
    name = _name(number)
    data = store.read(name)
    try:
        version = json.loads(data)["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{name!r} in store {store.url} is no serving record ({error}). Write another with `sondage scale`.") from None
    if version != RECORD_FORMAT:
        raise StoreError(
            f"Serving record {name!r} in store {store.url} has format {version}; this build reads {RECORD_FORMAT}. Upgrade, or write "
            "another with `sondage scale`."
        )
    try:
        return ServingRecord.model_validate_json(data)
    except ValidationError as error:
        raise Corrupt(
            f"Serving record {name!r} in store {store.url} cannot be read: {error.errors()[0]['msg']}. Write another with `sondage scale`."
        ) from None


def succeed(
    store: "Store",
    before: int,
    replicas: int,
    bounds: tuple[int, int] | None = None,
    by: str = "",
    reason: str = "",
    clock: Callable[[], float] = time.time,
) -> ServingRecord:
    """Write the record that follows number `before` (0: the first). store: the corpus's. bounds: fewest and most replicas.

    Raises AlreadyExists when somebody else was first: read theirs and decide anew. ValidationError where replicas lie outside of bounds.
    """
    low, high = bounds or (None, None)
    created = datetime.fromtimestamp(clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    record = ServingRecord(
        number=before + 1, replicas=replicas, min_replicas=low, max_replicas=high, created=created, by=by, reason=reason
    )
    taken = AlreadyExists(f"Serving record {record.number} in store {store.url} was written by somebody else. Read theirs first.")
    try:
        store.create(_name(record.number), encode(record))
    except AlreadyExists:
        raise taken from None
    names = store.list("serving/")
    if newest_number(names) != record.number:  # the number had been swept: this record is nobody's
        store.delete(_name(record.number))
        raise taken
    for name in names:
        if (match := _NAME.fullmatch(name)) and int(match[1]) <= record.number - KEPT_RECORDS:
            store.delete(name)
    return record


def _name(number: int) -> str:
    return f"serving/{number:08d}.json"
