"""The words of a segment and the passages that hold them: what the layer `fuzzy` keeps.

term_hashes     (t,) uint64, ascending: `shards.postings.term_hash` of each word
word_blob, word_offsets   the words, packed in this order
term_offsets    (t + 1,) int64 into posting_units, (p,) int32, ascending within a word
unit_rows       (u,) int32, ascending; unit_starts, unit_ends (u,) int64, bytes of the rendition
in_scope        (rows,) bool, the rows that this space is built for

Words are what `shards.analysis` makes of a token without a stemmer: identifiers whole and their parts, case-folded, without accents.
"""

from collections.abc import Callable, Sequence

import numpy as np

from shards.analysis import Analyser
from shards.arrays import pack_strings
from shards.documents import Documents
from shards.postings import Layout, merge_postings, sealed, term_hashes
from shards.types import Array, Arrays
from shards.units import Units

MIN_CHARS, MAX_CHARS = 3, 40  # shorter ones have no room for a mistake, longer ones are no words

PORTION = 1 << 14  # words that are copied at once, 1 ms: `np.repeat` keeps the interpreter's lock, and a million took 170 ms

_NO_VALUES = "posting_tfs"  # that a word occurs says all: made up for `merge_postings`, and not kept
_LAYOUT = Layout("term_hashes", np.uint64, _NO_VALUES, np.uint8, {})


def is_word(term: str) -> bool:
    """Whether a term is one that people misspell: mostly letters, neither very short nor very long."""
    if not MIN_CHARS <= len(term) <= MAX_CHARS:
        return False
    n_letters = len(term) if term.isalpha() else sum(map(str.isalpha, term))
    return n_letters >= 2 and 2 * n_letters >= len(term)


def build_words(documents: Documents, units: Units, in_scope: Array, step: Callable[[str], None] = lambda _name: None) -> Arrays:
    """The arrays of one segment. `step` is told what comes next and may raise Cancelled."""
    from shards import posting_kernels as kernels
    from shards.token_kernels import WORD_BYTES, tokenise

    text, base = sealed(documents.text), documents.starts[units.rows]
    step("tokenise")
    tokens, token_offsets, type_starts, type_sizes, _ = tokenise(
        text, base + units.starts, base + units.ends, np.zeros(len(base), np.uint8), WORD_BYTES
    )
    step("analyse")
    found = Analyser("").analyse_bytes(text, type_starts, type_sizes)
    numbers: dict[str, int] = {}
    number_of = np.array([numbers.setdefault(term, len(numbers)) if is_word(term) else -1 for term in found.terms], np.int64)
    type_terms = number_of[found.numbers]
    owners = np.repeat(np.arange(len(type_starts)), found.n_terms)[type_terms >= 0]
    type_offsets = _offsets(np.bincount(owners, minlength=len(type_starts)))
    type_terms = type_terms[type_terms >= 0].astype(np.int32)
    step("invert")
    hashes = term_hashes(numbers)
    order = np.argsort(hashes)
    frequencies = kernels.document_frequencies(tokens, token_offsets, type_offsets, type_terms, len(hashes))
    term_offsets = _offsets(frequencies[order])
    first = np.zeros(len(hashes), np.int64)
    first[order] = term_offsets[:-1]
    atoms = np.zeros(len(type_starts), np.int32)
    posting_units, _, _ = kernels.invert(tokens, token_offsets, type_offsets, type_terms, atoms, first, term_offsets[-1])
    words = list(numbers)
    blob, offsets = pack_strings([words[i].encode() for i in order.tolist()])
    return {
        "term_hashes": hashes[order],
        "word_blob": blob,
        "word_offsets": offsets,
        "term_offsets": term_offsets,
        "posting_units": posting_units,
        "unit_rows": units.rows.astype(np.int32),
        "unit_starts": units.starts.astype(np.int64),
        "unit_ends": units.ends.astype(np.int64),
        "in_scope": in_scope,
    }


def merge_words(parts: Sequence[tuple[Arrays, Array]], n_rows: int) -> Arrays:
    """The arrays of the joined segment. parts: (arrays, (rows,) int32 new row of each old one, -1 where dropped)."""
    valued = [({**arrays, _NO_VALUES: np.zeros(len(arrays["posting_units"]), np.uint8)}, rows) for arrays, rows in parts]
    joined = merge_postings(valued, n_rows, _LAYOUT)
    del joined[_NO_VALUES]
    return {**joined, **texts_of(joined["term_hashes"], [arrays for arrays, _ in parts])}


def frequencies_of(arrays: Arrays, chosen: Array | None) -> Arrays:
    """How many units hold each word: "term_hashes", "word_blob", "word_offsets" and "frequencies" (uint32) of those that any does.

    chosen: (u,) bool, count these units only.
    """
    if chosen is None:
        counts = np.diff(arrays["term_offsets"])
    else:
        before = _offsets(chosen[arrays["posting_units"]])
        counts = before[arrays["term_offsets"][1:]] - before[arrays["term_offsets"][:-1]]
    hashes = arrays["term_hashes"][counts > 0]
    return {"term_hashes": hashes, "frequencies": counts[counts > 0].astype(np.uint32), **texts_of(hashes, [arrays])}


def texts_of(hashes: Array, parts: Sequence[Arrays]) -> Arrays:
    """ "word_blob" and "word_offsets" of these words, each of which is in one of the parts at least. hashes: (t,) uint64, ascending."""
    known = np.concatenate([part["term_hashes"] for part in parts] or [np.zeros(0, np.uint64)])
    unique, at = np.unique(known, return_index=True)
    at = at[np.searchsorted(unique, hashes)]
    blob = np.concatenate([part["word_blob"] for part in parts] or [np.zeros(0, np.uint8)])
    bases = np.cumsum([0, *(len(part["word_blob"]) for part in parts)])
    starts = np.concatenate([part["word_offsets"][:-1] + base for part, base in zip(parts, bases)] or [np.zeros(0, np.int64)])[at]
    sizes = np.concatenate([np.diff(part["word_offsets"]) for part in parts] or [np.zeros(0, np.int64)])[at]
    offsets = _offsets(sizes)
    packed = np.empty(offsets[-1], np.uint8)
    for low in range(0, len(sizes), PORTION):
        within = slice(low, low + PORTION)
        begins, after = offsets[low], offsets[min(low + PORTION, len(sizes))]
        places = np.repeat(starts[within] - offsets[:-1][within], sizes[within]) + np.arange(begins, after)
        packed[begins:after] = blob[places]
    return {"word_blob": packed, "word_offsets": offsets}


def _offsets(counts: Array) -> Array:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
