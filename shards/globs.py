"""Globs over many texts at once: ends that every match must have leave few to look at, and those RE2 reads in one pass.

What is found is what `shards.plan.glob_regex` matches, text by text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from shards.plan import glob_regex
from shards.types import Array

if TYPE_CHECKING:
    import pyarrow as pa

_FOLDED = np.frombuffer(bytes(range(256)).lower(), np.uint8)
FEW = 2_000  # texts that are matched one by one, 0.7 us each: less than the first import of pyarrow costs
FEW_STARS = 2  # of which Python's matcher tries every way to share a name between them, where RE2 reads it once


@dataclass(frozen=True, slots=True)
class Shape:
    """Ends that every match of a glob has. exact: whether having them is all it takes, so that nothing else must be looked at."""

    prefix: bytes
    suffix: bytes
    exact: bool


@lru_cache(maxsize=1024)
def shape(pattern: str) -> Shape:
    """The literal ends of a glob. Raises BadQuery as `glob_regex` does."""
    glob_regex(pattern)
    text = pattern.lstrip("/") if "/" in pattern else f"**/{pattern}"
    try:
        text.encode()
    except UnicodeEncodeError:  # undecodable bytes: looked at one by one
        return Shape(b"", b"", False)
    special = [i for i, c in enumerate(text) if c in "*?[]{}"]
    if not special:
        return Shape(text.encode(), text.encode(), False)
    end = special[-1] + 1
    if text[:end].endswith("**") and text[end : end + 1] == "/":
        end += 1  # `**/` may stand for nothing, its slash included
    prefix, between, suffix = text[: special[0]], text[special[0] : end], text[end:]
    whole_folder = not prefix or prefix.endswith("/")
    exact = whole_folder and ((between == "**" and not suffix) or (between == "**/*" and "/" not in suffix))
    return Shape(prefix.encode(), suffix.encode(), exact)


def matching(pattern: str, texts: Sequence[str]) -> Array:
    """Which texts match a glob: (n,) bool."""
    from shards.column_files import Words

    if isinstance(texts, Words) and len(texts) > FEW and (found := _by_re2(pattern, texts.array)) is not None:
        return found
    test = glob_regex(pattern).fullmatch
    return np.fromiter((test(text) is not None for text in texts), bool, len(texts))


def matching_at(pattern: str, blob: Array, offsets: Array, rows: Array, text: Callable[[int], str], ignore_case: bool = False) -> Array:
    """Which rows of packed texts match: (m,) bool. rows: (m,) int64, of texts that are UTF-8; text: the text of one row;
    ignore_case: of ASCII letters."""
    if len(rows) > FEW or pattern.count("*") > FEW_STARS:
        import pyarrow as pa

        packed = pa.Array.from_buffers(
            pa.large_string(), len(offsets) - 1, [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(blob)]
        )
        if 2 * len(rows) > len(offsets):
            found = _by_re2(pattern, packed, ignore_case)
            if found is not None:
                return found[rows]
        elif (found := _by_re2(pattern, packed.take(pa.array(rows)), ignore_case)) is not None:
            return found
    test = glob_regex(pattern, ignore_case).fullmatch
    return np.fromiter((test(text(row)) is not None for row in rows.tolist()), bool, len(rows))


def has_ends(ends: Shape, blob: Array, offsets: Array, rows: Array, ignore_case: bool = False) -> Array:
    """Which packed texts have both ends: (m,) bool. rows: (m,) int64; ignore_case: of ASCII letters."""
    prefix, suffix = (end.lower() if ignore_case else end for end in (ends.prefix, ends.suffix))
    starts, stops = offsets[rows], offsets[rows + 1]
    found = stops - starts >= max(len(prefix), len(suffix))
    places = [(starts, ahead, byte) for ahead, byte in enumerate(prefix)]
    for origin, step, byte in places + [(stops, -back, byte) for back, byte in enumerate(reversed(suffix), 1)]:
        here = blob[origin[found] + step]
        found[found] = (_FOLDED[here] if ignore_case else here) == byte
        if not found.any():
            break
    return found


def ends_with(suffix: bytes, blob: Array, offsets: Array, rows: Array | None) -> Array:
    """Whether packed texts end so: (m,) bool. rows: (m,) int64, which of them; None: all, in their order."""
    starts, ends = (offsets[:-1], offsets[1:]) if rows is None else (offsets[rows], offsets[rows + 1])
    found = ends - starts >= len(suffix)
    for back, byte in enumerate(reversed(suffix), 1):
        found[found] = blob[ends[found] - back] == byte
        if not found.any():
            break
    return found


def _by_re2(pattern: str, texts: "pa.Array", ignore_case: bool = False) -> Array | None:
    """The same by RE2; None for a glob that is no UTF-8."""
    import pyarrow.compute as pc

    try:
        pattern.encode()
    except UnicodeEncodeError:
        return None
    expression = f"(?s)\\A(?:{glob_regex(pattern, ignore_case).pattern})\\z"
    return pc.match_substring_regex(texts, expression).to_numpy(zero_copy_only=False)
