"""The types that a corpus's metadata was said to have: `released` is a date, `zip` is text, whatever their values look like.

Small files, write-once, numbered; the highest number holds, and older ones stay for people who ask what was said before. FORMAT.md
describes the bytes. Queries compare and sort by them; a request may say otherwise for itself.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PositiveInt, ValidationError

from shards.errors import BadSpec, Corrupt, StoreError
from shards.manifest import Model, encode

if TYPE_CHECKING:
    from shards.plugins import Plugins
    from shards.store import Store

# 1: first published format.
RECORD_FORMAT = 1
KNOWN = ("text", "number", "date", "timestamp", "bool", "any")  # and those that somebody registers
NONE = "any"  # said of a field, takes back what was said before

_NAME = re.compile(r"types/(\d{8})\.json")


class FieldTypes(Model):
    """What holds from this record on. types: by dotted path of metadata. created: UTC, ISO 8601."""

    format: int = RECORD_FORMAT
    number: PositiveInt
    types: dict[str, str]
    created: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


def newest(store: "Store") -> FieldTypes | None:
    """The record that holds; None before the first. store: the corpus's. Raises Corrupt, StoreError."""
    number = max((int(match[1]) for name in store.list("types/") if (match := _NAME.fullmatch(name))), default=0)
    if not number:
        return None
    name = f"types/{number:08d}.json"
    data = store.read(name)
    try:
        version = json.loads(data)["format"]
        if version == RECORD_FORMAT:
            return FieldTypes.model_validate_json(data)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise Corrupt(f"{name!r} in store {store.url} is no record of field types ({error}). State them again: sondage index.") from None
    raise StoreError(f"Record {name!r} in store {store.url} has format {version}; this build reads {RECORD_FORMAT}. Upgrade.")


def state(store: "Store", stated: Mapping[str, str], plugins: "Plugins", clock: Callable[[], float] = time.time) -> FieldTypes | None:
    """Write what is stated over what holds; nothing where that changes nothing. Returns the record that holds then.

    Raises BadSpec for a type that is not known, AlreadyExists when somebody else states something at the same moment.
    """
    check(stated, plugins)
    before = newest(store)
    types = {**(before.types if before else {}), **stated}
    types = {path: kind.lower() for path, kind in sorted(types.items()) if kind.lower() != NONE}
    if types == (before.types if before else {}):
        return before
    created = datetime.fromtimestamp(clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    record = FieldTypes(number=(before.number if before else 0) + 1, types=types, created=created)
    store.create(f"types/{record.number:08d}.json", encode(record))
    return record


def check(stated: Mapping[str, str], plugins: "Plugins") -> None:
    """Raises BadSpec for a type that is neither known nor registered."""
    for path, kind in stated.items():
        if kind.lower() not in KNOWN and plugins.types.find(kind) is None:
            known = ", ".join([*KNOWN, *plugins.types.names()])
            raise BadSpec(f"Field {path!r}: there is no type {kind!r}. Choose from: {known}; or load a module that registers it: --plugin.")


def parse(texts: Iterable[str]) -> dict[str, str]:
    """PATH=TYPE as a command line has them. Raises BadSpec."""
    found = {}
    for text in texts:
        path, equals, kind = text.partition("=")
        if not path or not equals or not kind:
            raise BadSpec(f"Field type {text!r} is not PATH=TYPE, such as released.on=date. Types: {', '.join(KNOWN)}.")
        found[path.removeprefix("meta.")] = kind
    return found
