"""Real vectors in number: the text that this machine has anyway, cut to passages and encoded by a static model, once.

Random vectors would not do: how much a compressed scan can leave out depends on how real ones crowd around a question.
"""

import hashlib
import json
import os
import shutil
import sysconfig
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jobs.bench_corpus import queries_of_stdlib
from jobs.progress import Progress
from shards import model_files
from shards.documents import Documents
from shards.encoders import StaticEncoder
from shards.errors import BadSpec
from shards.layers.contract import Resources
from shards.types import Array
from shards.units import passages

FOLDERS = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "/usr/share/doc", "/usr/share/perl")
SUFFIXES = {".py", ".pyi", ".md", ".rst", ".txt", ".html", ".pm", ".pod"}
LARGEST_FILE = 1 << 21  # bytes; above, generated tables
UNIT_BYTES, CUT_STEP_BYTES = 1000, 150  # of the first cut; each further one is shorter by that much
_VERSION = 1  # of how the set is made


class RealVectors(NamedTuple):
    """vectors: (u, dim) float32, mapped; row_units: (r + 1,) int64, which passages a document has; queries: (q, dim) float32.

    how: what they were made of, for people.
    """

    vectors: Array
    row_units: Array
    queries: Array
    how: str


def real_vectors(n: int, model: str, resources: Resources, progress: Progress) -> RealVectors:
    """The first n passages of this machine's texts in order of content hash, as an index holds them, and 400 questions: first
    sentences of docstrings, and names.

    Where there are not so many passages, the texts are cut again, shorter: those of other cuts overlap. The same texts and model
    give the same bytes. They are kept in the models folder, and not made anew when texts of the machine change: a set is for
    comparing. Raises BadSpec where the machine has too little text.
    """
    encoder = StaticEncoder(model, resources)
    made_of = [_VERSION, n, encoder.fingerprint(), UNIT_BYTES, CUT_STEP_BYTES]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
    folder = resources.models / "bench" / f"passages-{n}-{key}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
        partial.mkdir()
        try:
            _make(partial, _texts(), n, encoder, progress)
            os.rename(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    how = json.loads((folder / "how.json").read_text())
    return RealVectors(
        np.load(folder / "vectors.npy", mmap_mode="r"),
        np.load(folder / "row_units.npy"),
        np.load(folder / "queries.npy"),
        f"{how} encoded by {model} ({model_files.fingerprint(model_files.locate(model, resources), resources)[:8]})",
    )


def _texts() -> dict[bytes, bytes]:
    """This machine's texts by content hash."""
    found: dict[bytes, bytes] = {}
    for folder in map(Path, FOLDERS):
        inside = "site-packages" if folder == Path(FOLDERS[0]) else None  # comes by itself
        for path in folder.rglob("*"):
            if path.suffix not in SUFFIXES or path.is_symlink() or not path.is_file() or (inside and inside in path.parts):
                continue
            if 0 < path.stat().st_size <= LARGEST_FILE:
                text = path.read_bytes()
                found[hashlib.sha256(text).digest()[:20]] = text
    return found


def _make(folder: Path, texts: dict[bytes, bytes], n: int, encoder: StaticEncoder, progress: Progress) -> None:
    from numpy.lib.format import open_memmap

    vectors = open_memmap(folder / "vectors.npy", mode="w+", dtype=np.float32, shape=(n, encoder.dim))
    rows, n_done, size_bytes, n_cuts = [np.zeros(1, np.int64)], 0, 0, 0
    for cut, counts, pieces in _portions(texts, n):
        vectors[n_done : n_done + len(pieces)] = encoder.encode_documents(pieces)
        rows.append(counts)
        n_done, n_cuts = n_done + len(pieces), cut + 1
        size_bytes += sum(len(piece.encode()) for piece in pieces)
        progress("encode", n_done, n, "passages")
    vectors.flush()
    np.save(folder / "row_units.npy", np.cumsum(np.concatenate(rows)))
    np.save(folder / "queries.npy", encoder.encode_queries(queries_of_stdlib()))
    how = f"{n:,} passages, {size_bytes / 1e6:.0f} MB, of the Python packages and documentation of this machine,"
    if n_cuts > 1:
        how += f" cut {n_cuts} times, to {UNIT_BYTES} bytes and {CUT_STEP_BYTES} less each time,"
    (folder / "how.json").write_text(json.dumps(how))


def passages_of_machine(n: int) -> tuple[Array, list[str]]:
    """The passages that `real_vectors` encodes: (r,) int64, how many each document has, and their texts in order. Raises BadSpec."""
    counts, pieces = [np.zeros(0, np.int64)], []
    for _, more, texts in _portions(_texts(), n):
        counts.append(more)
        pieces += texts
    return np.concatenate(counts), pieces


def _portions(texts: dict[bytes, bytes], n: int) -> Iterator[tuple[int, Array, list[str]]]:
    """Yields (number of the cut, passages of each document, the passages) until there are n, of the last document only what is wanted."""
    keys, n_left = sorted(texts), n
    for cut, unit_bytes in enumerate(range(UNIT_BYTES, CUT_STEP_BYTES, -CUT_STEP_BYTES)):
        for start in range(0, len(keys), 1024):
            documents = Documents.pack((key, texts[key], "") for key in keys[start : start + 1024])
            units = passages(documents, unit_bytes)
            counts = np.bincount(units.rows[:n_left], minlength=len(documents))
            pieces = [
                str(documents.content(row)[low:high], "utf-8", "replace")
                for row, low, high in zip(*(part[:n_left].tolist() for part in units), strict=True)
            ]
            n_left -= len(pieces)
            yield cut, counts[counts > 0].astype(np.int64), pieces
            if not n_left:
                return
    raise BadSpec(f"The texts of this machine give {n - n_left:,} passages; {n:,} are asked for. Ask for fewer.")
