"""Definitions and uses of documents as arrays of a segment: made from what was parsed, or joined from those of other segments.

languages: (n,) uint8, place in LANGUAGES + 1, 0 for none, OUTSIDE where the space is not built; reasons: (n,) uint8, in REASONS
row_units: (n + 1,) int64, row i has the definitions row_units[i] : row_units[i + 1], in order of the text
names: (u,) uint32; kinds: (u,) uint8, in KINDS; backs: (u,) uint32, how far before it the one that encloses it is, 0: none;
    starts, ends: (u,) uint32, bytes of the document
name_blob, name_offsets: bytes of the distinct names, ascending, and (m + 1,) uint32
use_offsets: (m + 1,) uint32; name i is used in use_rows[use_offsets[i] : use_offsets[i + 1]], (v,) uint32, ascending; use_firsts:
    (v,) uint32, where first; use_counts: (v,) uint16, how often, at most 65,535
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shards.arrays import pack_strings
from shards.layers.joined_units import JoinedUnits
from shards.syntax_symbols import DocumentSymbols
from shards.types import Array, Arrays

OUTSIDE = 255
_MAX_COUNT = (1 << 16) - 1


def assemble(found: Mapping[int, DocumentSymbols], languages: Array, reasons: Array) -> Arrays:
    """Arrays of a segment. found: by row."""
    rows = sorted(found)
    distinct = sorted({d.name for row in rows for d in found[row].definitions} | {name for row in rows for name in found[row].uses})
    number = {name: i for i, name in enumerate(distinct)}
    counts = np.zeros(len(languages) + 1, np.int64)
    counts[[row + 1 for row in rows]] = [len(found[row].definitions) for row in rows]
    units = [(number[d.name], d.kind, d.back, d.start, d.end) for row in rows for d in found[row].definitions]
    uses = [(number[name], row, use.first, min(use.count, _MAX_COUNT)) for row in rows for name, use in found[row].uses.items()]
    names, kinds, backs, starts, ends = np.array(units, np.int64).reshape(-1, 5).T
    return {
        "languages": languages.astype(np.uint8),
        "reasons": reasons.astype(np.uint8),
        "row_units": np.cumsum(counts),
        "names": names.astype(np.uint32),
        "kinds": kinds.astype(np.uint8),
        "backs": backs.astype(np.uint32),
        "starts": starts.astype(np.uint32),
        "ends": ends.astype(np.uint32),
        **_dictionary(distinct),
        **_postings(np.array(uses, np.int64).reshape(-1, 4).T, len(distinct)),
    }


def join(parts: Sequence[tuple[Arrays, Array]], languages: Array) -> Arrays:
    """Arrays of the segment that joins parts: as `Layer.merge` has them. languages: of the joined rows."""
    n_rows = len(languages)
    # Names that a kept row defines or uses, and in each part the number that each of its names has then.
    kept_names: list[list[bytes]] = []
    kept_at: list[Array] = []
    for arrays, new_rows in parts:
        kept = new_rows >= 0
        used = np.zeros(len(arrays["name_offsets"]) - 1, bool)
        used[arrays["names"][np.repeat(kept, np.diff(arrays["row_units"]))]] = True
        used[_names_of_uses(arrays)[kept[arrays["use_rows"]]]] = True
        at = np.flatnonzero(used)
        blob, offsets = arrays["name_blob"].tobytes(), arrays["name_offsets"].tolist()
        kept_names.append([blob[offsets[i] : offsets[i + 1]] for i in at.tolist()])
        kept_at.append(at)
    distinct = sorted(set().union(*kept_names))
    number = {name: i for i, name in enumerate(distinct)}
    numbered = []
    for (arrays, new_rows), at, names in zip(parts, kept_at, kept_names, strict=True):
        renamed = np.zeros(len(arrays["name_offsets"]) - 1, np.int64)
        renamed[at] = [number[name] for name in names]
        numbered.append(({**arrays, "renamed": renamed, "in_scope": arrays["languages"] != OUTSIDE}, new_rows))
    joined = JoinedUnits(numbered, n_rows)
    reasons = np.zeros(n_rows, np.uint8)
    names, kinds, backs = (np.zeros(joined.n_units, dtype) for dtype in (np.uint32, np.uint8, np.uint32))
    for move in joined.moves:
        names[move.targets] = move.arrays["renamed"][move.arrays["names"][move.sources]]
        kinds[move.targets], backs[move.targets] = move.arrays["kinds"][move.sources], move.arrays["backs"][move.sources]
    uses = [np.zeros((4, 0), np.int64)]
    for arrays, new_rows in numbered:
        reasons[new_rows[new_rows >= 0]] = arrays["reasons"][new_rows >= 0]
        rows = new_rows[arrays["use_rows"]].astype(np.int64)
        columns = (arrays["renamed"][_names_of_uses(arrays)], rows, arrays["use_firsts"], arrays["use_counts"])
        uses.append(np.stack([column.astype(np.int64) for column in columns])[:, rows >= 0])
    return {
        "languages": languages.astype(np.uint8),
        "reasons": reasons,
        "row_units": joined.row_units,
        "names": names,
        "kinds": kinds,
        "backs": backs,
        "starts": joined.starts.astype(np.uint32),
        "ends": joined.ends.astype(np.uint32),
        **_dictionary(distinct),
        **_postings(np.concatenate(uses, axis=1), len(distinct)),
    }


def _names_of_uses(arrays: Arrays) -> Array:
    """The name of each posting: (v,) int64."""
    return np.repeat(np.arange(len(arrays["use_offsets"]) - 1), np.diff(arrays["use_offsets"].astype(np.int64)))


def _dictionary(names: list[bytes]) -> Arrays:
    blob, offsets = pack_strings(names)
    return {"name_blob": blob, "name_offsets": offsets.astype(np.uint32)}


def _postings(uses: Array, n_names: int) -> Arrays:
    """uses: (4, v) int64, name, row, first byte and count of each."""
    names, rows, firsts, counts = uses[:, np.lexsort((uses[1], uses[0]))]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(names, minlength=n_names))])
    return {
        "use_offsets": offsets.astype(np.uint32),
        "use_rows": rows.astype(np.uint32),
        "use_firsts": firsts.astype(np.uint32),
        "use_counts": counts.astype(np.uint16),
    }


def occurrences(arrays: Arrays, rows: Array) -> Array:
    """How often each name of a segment stands in some rows, as definition or use: (m,) int64. rows: (n,) bool."""
    n_names = len(arrays["name_offsets"]) - 1
    counts = np.bincount(arrays["names"][np.repeat(rows, np.diff(arrays["row_units"]))], minlength=n_names)
    of, inside = _names_of_uses(arrays), rows[arrays["use_rows"]]
    return counts + np.bincount(of[inside], arrays["use_counts"][inside], n_names).astype(np.int64)
