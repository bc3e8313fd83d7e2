"""The keys that the coordinators of a cluster follow: a record in the store, of hashes alone, which an administrator publishes.

Why the store: all coordinators read it already, wherever they run, and it shows all of them the same; files on nodes go stale one by one.
Whoever may write there can change every answer, so he gains nothing by a key; whoever may read there learns names, scopes and salted hashes
of 256 random bits. Keys given in the clear are not published: their hashes could be guessed.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pydantic import AwareDatetime, PositiveInt, ValidationError

from serve.edge import Edge
from serve.keys import Key, KeyRing
from shards.errors import AlreadyExists, Corrupt, NotFound, SondageError, StoreError

if TYPE_CHECKING:
    from shards.store import Store

logger = logging.getLogger(__name__)

LOOK_S = 2.0  # between two looks, a listing of a few names: how long a revoked key still opens a cluster
KEPT_RECORDS = 16
RECORD_FORMAT = 1  # 1: first published format

_NAME = re.compile(r"_keys/(\d{8})\.json")  # no corpus is called _keys: a name begins with a letter or digit


class PublishedKeys(Edge):
    """What holds from this record on; the highest number holds."""

    format: Literal[1] = 1
    number: PositiveInt
    created: AwareDatetime
    keys: tuple[Key, ...]


def newest(store: "Store") -> PublishedKeys | None:
    """The record that holds; None before the first. store: its root. Raises Corrupt, StoreError."""
    while number := _number(store.list("_keys/")):
        try:
            data = store.read(_name(number))
        except NotFound:  # swept since it was listed: there are later ones
            continue
        try:
            return PublishedKeys.model_validate_json(data)
        except ValidationError as error:
            problem = error.errors(include_input=False)[0]["msg"]
            raise Corrupt(
                f"{_name(number)!r} in store {store.url} holds no keys that this build can read: {problem}. Publish them again: "
                "`sondage keys publish`."
            ) from None
    return None


def publish(store: "Store", keys: Iterable[Key], now: datetime | None = None) -> PublishedKeys:
    """Makes these the keys of all who follow the store. store: its root. A key that was revoked stays so, also where `keys`, perhaps from
    an older file, says nothing of it. Raises StoreError; AlreadyExists where somebody else has just published.
    """
    before = newest(store)
    number = before.number + 1 if before is not None else 1
    revoked = {key.id: key for key in before.keys if key.revoked is not None} if before is not None else {}
    merged = {key.id: key if key.revoked is not None or key.id not in revoked else revoked[key.id] for key in keys}
    record = PublishedKeys(number=number, created=now or datetime.now(UTC), keys=tuple((revoked | merged).values()))
    try:
        store.create(_name(number), record.model_dump_json(exclude_none=True).encode())
    except AlreadyExists:
        raise AlreadyExists(f"Somebody else has just published keys in store {store.url}. Look at these, and publish again.") from None
    for name in store.list("_keys/"):
        if (match := _NAME.fullmatch(name)) and int(match[1]) <= number - KEPT_RECORDS:
            store.delete(name)
    return record


@asynccontextmanager
async def following(store: "Store", ring: KeyRing, look_s: float = LOOK_S) -> AsyncIterator[None]:
    """Within it the ring has the keys that were published last, from before its body begins. As long as none could be read the ring has
    none, and nobody is let in: what a server was started with may have been revoked. Later on a record that cannot be read changes nothing.
    """
    ring.is_open = False
    known = await _look(store, ring, 0, first=True)
    watcher = asyncio.create_task(_follow(store, ring, known, look_s))
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def _follow(store: "Store", ring: KeyRing, known: int, look_s: float) -> None:
    while True:
        await asyncio.sleep(look_s)
        known = await _look(store, ring, known)


async def _look(store: "Store", ring: KeyRing, known: int, first: bool = False) -> int:
    """Takes over what was published since record `known`; returns the number of the one that holds."""
    try:
        number = _number(await asyncio.to_thread(store.list, "_keys/"))
        record = await asyncio.to_thread(newest, store) if number > known else None
        if record is None and first:
            raise StoreError(f"No keys are published in store {store.url}, so nobody is let in. Run `sondage keys publish`.")
    except (SondageError, OSError) as error:
        logger.warning("store=%s event=keys_not_read reason=%s", store.url, error)
        if first:
            ring.replace(())
        return known
    if record is None or record.number <= known:
        return known
    ring.replace(record.keys)
    logger.info("store=%s event=keys_read number=%d", store.url, record.number)
    return record.number


def _number(names: Iterable[str]) -> int:
    return max((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), default=0)


def _name(number: int) -> str:
    return f"_keys/{number:08d}.json"
