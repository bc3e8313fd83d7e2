"""What happens to the sources of a random history: a dictionary of files for each, changed by draws, and written where jobs read it.

One source is not read by jobs but pushed: what it holds is what its log says (`jobs/history_pushes.py`).
"""

import os
import random
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from shards.identity import content_hash
from shards.pushlog import SOURCE as PUSHED

WORDS = "amber basalt cobalt dolomite ebony feldspar garnet hematite".split()
SOURCES = ("one", "two")  # that jobs read
EPOCH = 1_600_000_000  # seconds; when files of a history begin, long before their jobs run

Files = dict[str, bytes]


def text(rng: random.Random) -> bytes:
    """A small document; few words, so that equal ones come about."""
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 5))).encode() + b".\n"


def path(rng: random.Random) -> str:
    """Where a file may lie; few places, so that names are taken up again."""
    return f"{rng.choice('ab')}/{rng.choice('xyz')}{rng.randint(0, 9)}.txt"


def change(rng: random.Random, files: Files) -> Files:
    """The files after one to four of: add, edit, rename, copy, delete."""
    files = dict(files)
    for _ in range(rng.randint(1, 4)):
        act = rng.choice(("add", "add", "edit", "rename", "copy", "delete"))
        some = rng.choice(sorted(files)) if files else ""
        if act == "add" or not files:
            files[path(rng)] = text(rng)
        elif act == "edit":
            files[some] = text(rng)
        elif act == "copy":
            files[path(rng)] = files[some]
        elif act == "rename":
            files[path(rng)] = files.pop(some)
        elif len(files) > 1:  # a source without files is refused at first, and doubted later
            del files[some]
    return files


@dataclass
class Model:
    """What each source holds, and has held. seen: the states of each source as sets of (path, content hash); texts: by hash."""

    files: dict[str, Files] = field(default_factory=lambda: {name: {} for name in (*SOURCES, PUSHED)})
    times: dict[tuple[str, str], int] = field(default_factory=dict)
    seen: dict[str, set[frozenset[tuple[str, bytes]]]] = field(default_factory=lambda: {name: {frozenset()} for name in (*SOURCES, PUSHED)})
    texts: dict[bytes, bytes] = field(default_factory=dict)

    def set(self, source: str, files: Files) -> None:
        """Let a source hold these. What changes gets a later time, in seconds."""
        for name, data in files.items():
            if self.files[source].get(name) != data:
                self.times[source, name] = EPOCH + 10 * len(self.times) + 7 * (self.times.get((source, name), EPOCH) - EPOCH + 1)
        hashes = {name: content_hash(data) for name, data in files.items()}
        self.texts |= {hashes[name]: data for name, data in files.items()}
        self.files[source] = files
        self.seen[source].add(frozenset(hashes.items()))

    @property
    def held(self) -> dict[tuple[str, str], bytes]:
        """The content hash at each path of each source."""
        return {(source, path): content_hash(data) for source, files in self.files.items() for path, data in files.items()}


def write_to_memory(name: str, model: Model, source: str) -> None:
    """The model's files of a source as fsspec's `memory://name`."""
    import fsspec

    fs = fsspec.filesystem("memory")
    for old in [key for key in fs.store if key.startswith(f"/{name}/")]:
        del fs.store[old]
    for file, data in model.files[source].items():
        fs.pipe_file(f"/{name}/{file}", data)
        fs.store[f"/{name}/{file}"].created = datetime.fromtimestamp(model.times[source, file], UTC)


def write_to_folder(folder: Path, model: Model, source: str) -> None:
    """The model's files of a source as files of a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for file, data in model.files[source].items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(data)
        os.utime(folder / file, (model.times[source, file],) * 2)
