"""A corpus of many small files of real text: what `sondage open` is pointed at, made once and kept."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jobs.bench_tree import bench_folder, texts
from jobs.progress import Progress

LEAST_BYTES, MOST_BYTES = 1_500, 4_000  # of a file, but for the last piece of a text
_VERSION = 1  # of how the files are made


def many_files(n: int, progress: Progress, least: int = LEAST_BYTES, most: int = MOST_BYTES) -> Path:
    """A folder of n files: the text files of `jobs.bench_tree`, cut at blank lines into files of `least` to `most` bytes, each text a
    folder below its own; code and prose as they stand in libraries. No two are the same. The same installation gives the same files."""
    name = hashlib.sha256(repr((_VERSION, n, least, most)).encode()).hexdigest()[:12]
    root = bench_folder() / f"files-{n}-{name}"
    if root.is_dir():
        return root
    partial = Path(tempfile.mkdtemp(prefix=".files-", dir=root.parent))
    seen: set[bytes] = set()
    for path, text in _pieces(least, most):
        if (key := hashlib.sha1(text).digest()) in seen:
            continue
        seen.add(key)
        target = partial / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)
        os.utime(target, (1e9, 1e9))  # not so young that their times are distrusted
        if len(seen) % 1_000 == 0:
            progress("files", len(seen), n, "files")
        if len(seen) == n:
            break
    partial.rename(root)
    return root


def _pieces(least: int, most: int) -> Iterator[tuple[str, bytes]]:
    for copy, path, text in texts():
        folder, _, suffix = path.rpartition(".")
        for i, piece in enumerate(cut(text, least, most)):
            yield f"{f'copy{copy}/' if copy and not path.startswith('copy') else ''}{folder}/{i:03}.{suffix}", piece


def cut(text: bytes, least: int = LEAST_BYTES, most: int = MOST_BYTES) -> Iterator[bytes]:
    """Pieces of a text that end at a blank line where one lies between `least` and `most` bytes, else at a line."""
    at = 0
    while at < len(text):
        end = text.find(b"\n\n", at + least, at + most)
        if end < 0:
            end = text.rfind(b"\n", at, at + most)
        end = min(at + most, len(text)) if end < 0 or at + most >= len(text) else end + 1
        yield text[at:end]
        at = end
