"""What runs leave for one another: files that were read but are in no generation yet, so that a run that dies is taken up.

Names say when their run began and what they hold: `staging/<UTC time>-<hash>.json` lists what was read, packs beside it hold the
documents. Two runs that read the same files share them, and whoever is done first takes them away: the other finds them missing and
starts over on what was published.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from shards.attached import Attached
from shards.corpus import Listed, Source
from shards.documents import Documents
from shards.given import Given
from shards.segment import dump_pack
from shards.store import Store
from shards.worker import StageTask

CHUNK_FILES, CHUNK_BYTES = 512, 8 << 20  # a task: about a second of work, so progress is visible and a retry cheap
KEPT = timedelta(days=1)  # what a run left that died; by then its source has changed, or nobody wants it

_LIST = re.compile(r"staging/(\d{8}T\d{6}-([0-9a-f]{24}))\.json")


class Staging:
    """The staging files of one run. now: when it began, in seconds since 1970; used: names it is concerned with, without ending."""

    def __init__(self, store: Store, now: float):
        self.store = store
        begun = datetime.fromtimestamp(now, UTC)
        self._stamp, self._oldest = _stamp(begun), _stamp(begun - KEPT)
        self.used: set[str] = set()

    def tasks(self, source: Source, files: Sequence[Listed], max_file_bytes: int, attached: Attached | None = None) -> list[StageTask]:
        """Files in portions to be read. Those that a run has read already bear the name of what it left.

        attached: the sidecars and rules of files that have one, which are images, and the formats to be read; the files' etags cover them.
        """
        kept = {match[2]: match[1] for name in self.store.list("staging/") if (match := _LIST.fullmatch(name))}
        tasks: list[StageTask] = []
        chunk: list[Listed] = []
        size = 0
        for i, file in enumerate(files):
            chunk.append(file)
            size += file.size_bytes
            if len(chunk) == CHUNK_FILES or size >= CHUNK_BYTES or i == len(files) - 1:
                formats = attached.formats if attached is not None else frozenset()
                identity = json.dumps([source.url, max_file_bytes, [list(f) for f in chunk], sorted(formats)])
                digest = hashlib.sha256(identity.encode()).hexdigest()[:24]
                name = f"staging/{kept.get(digest) or self._name(digest)}"
                sidecars, rules, images = (attached.sidecars, attached.rules, attached.images) if attached is not None else ({}, {}, ())
                tasks.append(
                    StageTask(
                        name,
                        source,
                        tuple(chunk),
                        max_file_bytes,
                        {f.path: sidecars[f.path] for f in chunk if f.path in sidecars},
                        {f.path: rules[f.path] for f in chunk if f.path in rules},
                        frozenset(f.path for f in chunk if f.path in images) if images else frozenset(),
                        formats,
                    )
                )
                chunk, size = [], 0
        self.used.update(task.name for task in tasks)
        return tasks

    def keep(
        self, documents: Documents, given: Mapping[bytes, Given] = MappingProxyType({}), media: Mapping[bytes, bytes] = MappingProxyType({})
    ) -> str:
        """Documents that no worker has read, with the callers' own vectors and the media of some; returns the name of their pack."""
        data = dump_pack(documents, given, media)
        name = f"staging/{self._name(hashlib.sha256(data).hexdigest()[:24])}"
        self.used.add(name)
        self.store.write(f"{name}.pack", data)
        return f"{name}.pack"

    def sweep(self) -> None:
        """Delete what this run used, and what runs left that died long ago; other files belong to runs that may be under way."""
        names = self.store.list("staging/")
        # Lists before packs: nobody looks for a pack without its list.
        for name in sorted(names, key=lambda name: (name.endswith(".pack"), name)):
            if name.split(".")[0] in self.used or name.removeprefix("staging/") < self._oldest:
                self.store.delete(name)

    def _name(self, digest: str) -> str:
        return f"{self._stamp}-{digest}"


def is_dead(name: str, now: float) -> bool:
    """Whether a staging file belongs to a run that began so long ago that nobody will take it up. now: seconds since 1970."""
    return name.startswith("staging/") and name.removeprefix("staging/") < _stamp(datetime.fromtimestamp(now, UTC) - KEPT)


def under_way_since(names: Iterable[str], now: float) -> str:
    """When the earliest run began that may be under way, as its staging files say; "" where there is none."""
    alive = [name for name in names if name.startswith("staging/") and not is_dead(name, now)]
    return min(alive).removeprefix("staging/").partition("-")[0] if alive else ""


def _stamp(time: datetime) -> str:
    return f"{time:%Y%m%dT%H%M%S}"
