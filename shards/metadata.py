"""What a file says about itself: front matter, a sidecar file, and what of any metadata can be stored.

Odd metadata never fails a run and never hides a document: it is left out, and named.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any

SIDECAR = ".meta.json"  # `report.pdf.meta.json` is about `report.pdf`, where both are listed
MAX_SIDECAR_BYTES = 1 << 20

MAX_CHARS = 32_768  # of one text; what is longer is content, not metadata
MAX_KEY_CHARS = 512
MAX_DEPTH = 8
MAX_VALUES = 4_096  # of one entry; YAML's references make millions of a few lines
MAX_FRONT_BYTES = 65_536  # within which front matter must end

_FRONT = re.compile(rb"\A(?:\xef\xbb\xbf)?(?:(---)|\+\+\+)[ \t]*\r?\n(.*?)^(?(1)(?:---|\.\.\.)|\+\+\+)[ \t]*\r?$", re.DOTALL | re.MULTILINE)
# In these the first lines are not about the text, they are the text.
_WITHOUT_FRONT = (".yaml", ".yml", ".toml")

Metadata = dict[str, Any]


def clean(value: Mapping[Any, Any]) -> tuple[Metadata, list[str]]:
    """Metadata as it is stored, and what was left out of it, by reason.

    Kept are text, integers, finite numbers, booleans, lists of these and objects of all of them. Times become ISO 8601 in UTC
    (`2024-05-01T10:00:00Z`; without a zone they are taken for UTC), dates `2024-05-01`; null means that a field is not there.
    """
    cleaner = _Cleaner()
    return cleaner.object(value, 1), sorted(cleaner.reasons)


def front_matter(text: bytes | memoryview, path: str) -> tuple[Metadata, list[str]]:
    """The front matter of a text: YAML between lines `---`, or TOML between lines `+++`, at its very beginning.

    What is between rules but no mapping is text. The reasons are those of `clean`, or that it cannot be read.
    """
    head = bytes(text[:MAX_FRONT_BYTES])
    if not head.startswith((b"---", b"+++", b"\xef\xbb\xbf---", b"\xef\xbb\xbf+++")) or path.lower().endswith(_WITHOUT_FRONT):
        return {}, []
    found = _FRONT.match(head)
    if found is None:
        return {}, []
    try:
        value = _yaml(found[2]) if found[1] else _toml(found[2])
    except ValueError:
        return {}, [f"front matter is not valid {'YAML' if found[1] else 'TOML'}"]
    return clean(value) if isinstance(value, Mapping) else ({}, [])


def sidecar(data: bytes) -> tuple[Metadata, list[str]]:
    """The metadata of a sidecar: one JSON object."""
    if len(data) > MAX_SIDECAR_BYTES:
        return {}, [f"sidecar is larger than {MAX_SIDECAR_BYTES:,} bytes"]
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return {}, ["sidecar is not valid JSON"]
    if not isinstance(value, Mapping):
        return {}, ["sidecar is not a JSON object"]
    return clean(value)


def _yaml(data: bytes) -> Any:
    """Raises ValueError."""
    import yaml

    try:
        return yaml.load(data.decode(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    # Hostile documents make the constructors of dates, keys and references raise whatever Python does.
    except (yaml.YAMLError, TypeError, AttributeError, RecursionError, OverflowError, ValueError) as error:
        raise ValueError(str(error)) from None


def _toml(data: bytes) -> Any:
    """Raises ValueError."""
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except RecursionError as error:
        raise ValueError(str(error)) from None


class _Cleaner:
    """One walk through one entry's metadata."""

    def __init__(self) -> None:
        self.reasons: set[str] = set()
        self.room = MAX_VALUES

    def object(self, value: Mapping[Any, Any], depth: int) -> Metadata:
        found: Metadata = {}
        for key, inner in value.items():
            name = key if type(key) is str and len(key) <= MAX_KEY_CHARS else self.key(key)
            if name is None or (kept := self.value(inner, depth)) is None:
                continue
            found[name] = kept
        return found

    def key(self, key: Any) -> str | None:
        if type(key) is str and len(key) <= MAX_KEY_CHARS:  # nearly all are
            return key
        if isinstance(key, bool) or not isinstance(key, str | int | float | date):
            return self.without("a key that is no text")
        text = _moment(key) if isinstance(key, date) else str(key)
        return text if len(text) <= MAX_KEY_CHARS else self.without(f"a key of more than {MAX_KEY_CHARS} characters")

    def value(self, value: Any, depth: int) -> Any:
        self.room -= 1
        if self.room < 0:
            return self.without(f"more than {MAX_VALUES:,} values")
        kind = type(value)  # exact types first, which nearly all are: a `match` asks each class in turn, four times as long
        if kind is str and len(value) <= MAX_CHARS:
            return value
        if (kind is int and -(2**63) <= value < 2**63) or (kind is float and math.isfinite(value)):
            return value
        if kind is list:
            return self.list(value, depth)
        match value:
            case None | bool():
                return value
            case str():
                return value if len(value) <= MAX_CHARS else self.without(f"a text of more than {MAX_CHARS:,} characters")
            case int():
                return value if -(2**63) <= value < 2**63 else self.without("an integer beyond 64 bits")
            case float():
                return value if math.isfinite(value) else self.without("a number that is not finite")
            case date() | time():
                return _moment(value)
            case Mapping():
                return self.object(value, depth + 1) if depth < MAX_DEPTH else self.without(f"nested deeper than {MAX_DEPTH}")
            case list() | tuple():
                return self.list(value, depth)
        return self.without(f"a value of type {type(value).__name__}")

    def list(self, value: Sequence[Any], depth: int) -> Any:
        if depth >= MAX_DEPTH:
            return self.without(f"nested deeper than {MAX_DEPTH}")
        if len(value) <= self.room and all(type(item) is str and len(item) <= MAX_CHARS for item in value):
            self.room -= len(value)
            return list(value)
        found = []
        for item in value:
            if self.room <= 0:
                self.without(f"more than {MAX_VALUES:,} values")
                break
            kept = self.value(item, depth + 1)
            if kept is not None:
                found.append(kept)
        return found

    def without(self, reason: str) -> None:
        self.reasons.add(f"metadata left out: {reason}")


def _moment(value: date | time) -> str:
    """A date, time or both in ISO 8601, in UTC; whole seconds have no fraction."""
    if not isinstance(value, datetime):
        return value.isoformat()
    try:
        utc = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    except OverflowError:  # the first or last hours of the calendar
        utc = value.replace(tzinfo=UTC)
    return utc.replace(tzinfo=None).isoformat() + "Z"
