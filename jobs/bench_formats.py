"""Files of formats: how fast they are read, and whether mutilated ones are survived, as `python jobs/bench.py formats --folder DIR`."""

import io
import random
import re
import time
import zipfile
from argparse import Namespace
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from jobs.progress import Progress
from shards.errors import BadSpec
from shards.formats.members import Budget, Member, members
from shards.formats.process import Extracted, Extractors, Limits
from shards.formats.registry import Format, format_of
from shards.places import places_in

MAX_SECONDS = 20.0  # that a mutilated file may take before it counts as hanging


def bench_formats(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Per format: files and bytes a second, and of `options.mutants` mutilated files of each kind how many gave a text, how many a reason.

    Every process that died or hung is counted; one that did not answer within `MAX_SECONDS` fails the run by its reason.
    """
    if options.folder is None:
        raise BadSpec("formats: name a folder with files of formats: --folder DIR.")
    found: dict[str, dict[str, bytes]] = defaultdict(dict)
    for path in sorted(options.folder.rglob("*")):
        if path.is_file() and (known := format_of(path.name)) is not None and known.begins(data := path.read_bytes()):
            found[known.name][str(path.relative_to(options.folder))] = data
    if not found:
        raise BadSpec(f"formats: no file in {options.folder} is of a known format.")
    result: dict[str, Any] = {}
    for i, (name, files) in enumerate(sorted(found.items())):
        result[name] = _of_format(files, options.mutants, options.seed)
        progress("formats", i + 1, len(found), "formats")
    if options.probes:
        result["probes"] = probed(options.folder, options.probes)
    return result


def probed(folder: Path, probes: Path) -> dict[str, Any]:
    """Strings that files are known to hold: which are in their texts, and where. Raises BadSpec."""
    where: dict[str, str] = {}
    lacking: list[str] = []
    with Extractors() as extractors:
        for number, line in enumerate(probes.read_text("utf-8").splitlines(), 1):
            name, tab, sought = line.partition("\t")
            if not tab or (known := format_of(name)) is None or not (folder / name).is_file():
                raise BadSpec(f"{probes}:{number} is not a file of a known format in {folder}, a tab and a string: {line[:80]!r}.")
            found = extractors.read(known, (folder / name).read_bytes())
            text = found.text if isinstance(found, Extracted) else b""
            match = re.search(rb"\s+".join(map(re.escape, sought.encode().split())), text)  # lines may end within it
            if match is None or not isinstance(found, Extracted):
                lacking.append(line)
            else:
                where[line] = ", ".join(place for _, place in places_in(found.kind, text, *match.span()))
    return {"found": len(where), "lacking": lacking, "places": where}


def mutilated(data: bytes, seed: int) -> bytes:
    """A file as damage or malice leaves it, a function of the seed: cut off, bits flipped, pieces swapped, blanked, doubled; and of a zip
    one of its parts damaged so, in an archive that is whole again."""
    rng = random.Random(seed)
    if rng.random() < 0.4 and data.startswith(b"PK") and (inside := _damaged_within(data, rng)) is not None:
        return inside
    return _damaged(data, rng)


def _damaged(data: bytes, rng: random.Random) -> bytes:
    body = bytearray(data)
    if not body:
        return bytes(body)
    way = rng.choice(("cut", "flip", "swap", "blank", "double", "digits"))
    a, b = sorted((rng.randrange(len(body)), rng.randrange(len(body))))
    if way == "cut":
        del body[a:]
    elif way == "flip":
        for _ in range(rng.choice((1, 8, 64, max(1, len(body) // 50)))):
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    elif way == "swap":
        size = rng.randrange(1, max(2, len(body) // 8))
        body[a : a + size], body[b : b + size] = body[b : b + size], body[a : a + size]
    elif way == "blank":
        body[a : min(b, a + 512)] = bytes(len(body[a : min(b, a + 512)]))
    elif way == "double":
        body[b:b] = body[a:b] * rng.choice((1, 2, 50)) if b - a < 4096 else body[a:b]
    else:  # sizes, counts and references become absurd
        for at in [i for i, byte in enumerate(body) if 0x30 <= byte <= 0x39][:: rng.choice((1, 3, 17))]:
            body[at] = rng.choice(b"0123456789")
    return bytes(body)


def _damaged_within(data: bytes, rng: random.Random) -> bytes | None:
    target = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as whole, zipfile.ZipFile(target, "w") as written:
            names = sorted(name for name in whole.namelist() if not name.endswith("/"))
            chosen = rng.choice(names)
            for name in names:
                part = whole.read(name)
                written.writestr(zipfile.ZipInfo(name), _damaged(part, rng) if name == chosen else part)
    except (zipfile.BadZipFile, IndexError, ValueError, RuntimeError):
        return None
    return target.getvalue()


def _of_format(files: dict[str, bytes], n_mutants: int, seed: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"files": len(files), "bytes": sum(map(len, files.values()))}
    with Extractors() as extractors:
        for path, data in files.items():  # the process is started, its libraries are loaded
            _read(extractors, path, data)
            break
        begun, size = time.perf_counter(), 0
        outcomes: Counter[str] = Counter()
        while time.perf_counter() - begun < 1.0:
            for path, data in files.items():
                outcomes[_read(extractors, path, data)] += 1
                size += len(data)
        seconds = time.perf_counter() - begun
        figures |= {"files_per_s": round(outcomes.total() / seconds, 1), "megabytes_per_s": round(size / seconds / 1e6, 2)}
        figures["reasons"] = sorted(outcomes.keys() - {"text"})
    if n_mutants:
        figures["mutants"] = _survived(files, n_mutants, seed)
    return figures


def _survived(files: dict[str, bytes], n_mutants: int, seed: int) -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    paths = sorted(files)
    with Extractors(Limits(seconds=MAX_SECONDS)) as extractors:
        for i in range(n_mutants):
            path = paths[i % len(paths)]
            begun = time.perf_counter()
            outcomes[_read(extractors, path, mutilated(files[path], seed + i))] += 1
            slowest = max(slowest, time.perf_counter() - begun)
        started = extractors.started
    return {"outcomes": dict(outcomes.most_common()), "slowest_s": round(slowest, 2), "processes_started": started}


def _read(extractors: Extractors, path: str, data: bytes) -> str:
    """What became of a file: "text", "like any other file", or the reason for which it is skipped."""
    known = format_of(path)
    assert known is not None
    if known.is_archive:
        return _opened(path, data, known)
    found = extractors.read(known, data)
    if found is None:
        return "like any other file"
    return "text" if isinstance(found, Extracted) else found.reason


def _opened(path: str, data: bytes, known: Format) -> str:
    among = frozenset({"zip", "tar"})
    left = [member.reason for member in members(path, data, known, among, 64 << 20, Budget()) if not isinstance(member, Member)]
    return left[0] if left else "text"
