"""Postings as they lie in a segment: built from units, joined, and counted. Plain arrays; the loops are compiled.

term_offsets    (t + 1,) int64 into the postings
posting_units   (p,) int32, ascending within a term
unit_rows       (u,) int32, ascending; unit_starts, unit_ends (u,) int64, bytes of the rendition
in_scope        (rows,) bool, the rows that this space is built for

of words (`WORDS`):
term_hashes     (t,) uint64, ascending: the vocabulary; two terms of one hash are one term (expected once in 10^9 segments of
                200,000 terms). Hashes, not strings: tables of many segments then merge as sorted arrays
posting_tfs     (p,) uint8, saturating
unit_lengths    (u,) int32, words
word_blob, word_offsets, word_terms   the terms' texts by their bytes, packed, and the number of each, (t,) int32: what begins alike
                stands together
A word of a document's title is a term of its own beside that of the text, `title_term`, in the document's first unit.

of what a model says (`IMPACTS`):
tokens          (t,) uint32, ascending: numbers in the model's vocabulary
posting_impacts (p,) float32, weights
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shards.analysis import REMEMBERED, Analyser
from shards.arrays import pack_strings, unpack_strings
from shards.documents import Documents
from shards.types import Array, Arrays


class Layout(NamedTuple):
    """What differs between kinds of postings: the names and dtypes of terms, values and what else there is of each unit; and whether
    there is a dictionary of terms."""

    terms: str
    term_dtype: type
    values: str
    value_dtype: type
    of_units: dict[str, type]
    dictionary: bool = False


WORDS = Layout("term_hashes", np.uint64, "posting_tfs", np.uint8, {"unit_lengths": np.int32}, dictionary=True)
TITLE = "title:"  # no word of a text has a colon
IMPACTS = Layout("tokens", np.uint32, "posting_impacts", np.float32, {})


@lru_cache(maxsize=REMEMBERED)
def term_hash(term: str) -> int:
    """What a term is called in arrays: 64 bits of BLAKE2b (not a quick hash: a document must not be able to pose as a word)."""
    return int(term_hashes([term])[0])


def title_term(term: str) -> str:
    """The term of a word that stands in a title."""
    return TITLE + term


def term_hashes(terms: Iterable[str]) -> Array:
    """`term_hash` of each: (t,) uint64."""
    return _hashes_of([term.encode() for term in terms])


def _hashes_of(terms: Sequence[bytes]) -> Array:
    digests = [hashlib.blake2b(term, digest_size=8).digest() for term in terms]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64, copy=False)


def build_postings(
    documents: Documents,
    rows: Array,
    starts: Array,
    ends: Array,
    in_scope: Array,
    analyser_of_kind: Callable[[str], Analyser],
    title_weight: int = 1,
    step: Callable[[str], None] = lambda _name: None,
) -> Arrays:
    """The postings of the units [starts, ends) of `rows`. `step` is told what comes next and may raise Cancelled.

    title_weight: how often each word of a title counts, in frequencies and lengths alike: BM25 over weighted fields as in
        Robertson, Zaragoza & Taylor 2004, section 3
    """
    from shards import posting_kernels as kernels
    from shards.titles import titles
    from shards.token_kernels import WORD_BYTES, tokenise

    of_kind = [analyser_of_kind(kind) for kind in documents.kind_names]
    analysers = sorted(set(of_kind))
    group_of_kind = np.array([analysers.index(analyser) for analyser in of_kind], np.uint8)
    groups = group_of_kind[documents.kinds[rows]] if len(rows) else np.zeros(0, np.uint8)
    base = documents.starts[rows]
    step("tokenise")
    text = sealed(documents.text)
    # A title is read as a piece of its own, in groups of its own, behind the document's first unit; then it is part of that.
    first_units = np.flatnonzero(np.diff(rows, prepend=-1))
    title_starts, title_ends = titles(documents, rows[first_units])
    behind = first_units + 1
    pieces = (np.insert(base + starts, behind, title_starts), np.insert(base + ends, behind, title_ends))
    tokens, piece_offsets, *types = tokenise(text, *pieces, np.insert(groups, behind, groups[first_units] + len(analysers)), WORD_BYTES)
    token_offsets = np.delete(piece_offsets, behind + np.arange(len(behind)))
    step("analyse")
    terms, hashes, type_offsets, type_terms, type_atoms = _analyse_types(text, *types, analysers, title_weight)
    step("invert")
    hashes_of_terms, order = np.unique(hashes, return_index=True)
    frequencies = kernels.document_frequencies(tokens, token_offsets, type_offsets, type_terms, len(hashes))
    term_offsets = _offsets(frequencies[order])
    first = np.zeros(len(hashes), np.int64)
    first[order] = term_offsets[:-1]
    units, tfs, lengths = kernels.invert(tokens, token_offsets, type_offsets, type_terms, type_atoms, first, term_offsets[-1])
    return {
        "term_hashes": hashes_of_terms,
        **_dictionary([terms[i] for i in order.tolist()]),
        "term_offsets": term_offsets,
        "posting_units": units,
        "posting_tfs": tfs,
        "unit_rows": rows.astype(np.int32),
        "unit_starts": starts.astype(np.int64),
        "unit_ends": ends.astype(np.int64),
        "unit_lengths": lengths,
        "in_scope": in_scope,
    }


def _analyse_types(
    text: Array, starts: Array, sizes: Array, groups: Array, analysers: Sequence[Analyser], title_weight: int
) -> tuple[list[bytes], Array, Array, Array, Array]:
    """The terms and their hashes, and each distinct token's terms: terms, hashes, type_offsets, type_terms, type_atoms.

    Terms are numbered by first occurrence; of several with one hash, only the first number is used. groups: the analyser of each
    token, counted on for those of titles
    """
    n_terms = np.zeros(len(starts), np.int64)
    n_atoms = np.zeros(len(starts), np.int32)
    numbers: dict[str, int] = {}
    pieces: list[Array] = []
    for group, analyser in enumerate((*analysers, *analysers)):
        members = np.flatnonzero(groups == group)
        flat = analyser.analyse_bytes(text, starts[members], sizes[members])
        number = np.array([numbers.setdefault(term, len(numbers)) for term in flat.terms], np.int64)[flat.numbers]
        n_terms[members], n_atoms[members] = flat.n_terms, flat.n_atoms
        if group >= len(analysers):
            in_title = np.array([numbers.setdefault(title_term(term), len(numbers)) for term in flat.terms], np.int64)[flat.numbers]
            number = np.column_stack([in_title, *[number] * (title_weight - 1)]).ravel()
            n_terms[members] *= title_weight
            n_atoms[members] *= title_weight - 1
        pieces.append(number)
    terms = [term.encode() for term in numbers]
    hashes = _hashes_of(terms)
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    used = first[inverse]
    type_terms = np.empty(n_terms.sum(), np.int32)
    for group, of_group in enumerate(pieces):
        type_terms[np.repeat(groups == group, n_terms)] = used[of_group]
    return terms, hashes, _offsets(n_terms), type_terms, n_atoms


def _dictionary(terms: Sequence[bytes]) -> Arrays:
    """Terms by their bytes. terms: in the order of their numbers.

    They are sorted by their first 16 bytes as two numbers, which leaves few to be compared as they are: a third of the time.
    """
    heads = np.array(terms, "S16").view(">u8").reshape(-1, 2)
    order = np.lexsort((heads[:, 1], heads[:, 0]))
    alike = np.flatnonzero((heads[order][1:] == heads[order][:-1]).all(axis=1))
    if len(alike):
        for run in np.split(alike, np.flatnonzero(np.diff(alike) > 1) + 1):
            part = order[run[0] : run[-1] + 2]
            part[:] = sorted(part.tolist(), key=terms.__getitem__)
    blob, offsets = pack_strings([terms[i] for i in order.tolist()])
    return {"word_blob": blob, "word_offsets": offsets.astype(np.int32), "word_terms": order.astype(np.int32)}


def build_impacts(
    tokens: Array, weights: Array, unit_offsets: Array, rows: Array, starts: Array, ends: Array, in_scope: Array
) -> Arrays:  # fmt: skip
    """The postings of units [starts, ends) of `rows`, unit i of which has the tokens and weights unit_offsets[i] : [i + 1].

    tokens: (p,) uint32; weights: (p,) float32; unit_offsets: (u + 1,) int64
    """
    from shards import posting_kernels as kernels

    vocabulary = np.flatnonzero(np.bincount(tokens)).astype(np.uint32) if len(tokens) else np.zeros(0, np.uint32)
    numbers = np.searchsorted(vocabulary, tokens).astype(np.int32)
    place = kernels.stable_order(numbers, len(vocabulary))
    units = np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(unit_offsets))
    return {
        "tokens": vocabulary,
        "term_offsets": _offsets(np.bincount(numbers, minlength=len(vocabulary))),
        "posting_units": units[place],
        "posting_impacts": weights[place],
        "unit_rows": rows.astype(np.int32),
        "unit_starts": starts.astype(np.int64),
        "unit_ends": ends.astype(np.int64),
        "in_scope": in_scope,
    }


def merge_postings(parts: Sequence[tuple[Arrays, Array]], n_rows: int, layout: Layout = WORDS) -> Arrays:
    """The postings of the joined segment, the same arrays as built from its documents.

    parts: (arrays, (rows,) int32 new row of each old one, -1 where dropped).
    """
    from shards import posting_kernels as kernels

    in_scope = np.zeros(n_rows, np.bool_)
    dtypes = {"unit_rows": np.int32, "unit_starts": np.int64, "unit_ends": np.int64, **layout.of_units}
    unit_parts: dict[str, list[Array]] = {name: [] for name in dtypes}
    kept_units: list[Array] = []
    for arrays, new_rows in parts:
        in_scope[new_rows[new_rows >= 0]] = arrays["in_scope"][new_rows >= 0]
        rows = new_rows[arrays["unit_rows"]]
        kept = np.flatnonzero(rows >= 0)
        kept_units.append(kept)
        unit_parts["unit_rows"].append(rows[kept].astype(np.int32))
        for name in ("unit_starts", "unit_ends", *layout.of_units):
            unit_parts[name].append(arrays[name][kept])
    joined = {name: _concatenate(pieces, dtypes[name]) for name, pieces in unit_parts.items()}
    order = kernels.stable_order(joined["unit_rows"], n_rows)
    new_numbers = np.empty(len(order), np.int32)
    new_numbers[order] = np.arange(len(order), dtype=np.int32)

    vocabulary = np.unique(_concatenate([arrays[layout.terms] for arrays, _ in parts], layout.term_dtype))
    terms: list[Array] = []
    units: list[Array] = []
    values: list[Array] = []
    first = 0
    for (arrays, _), kept in zip(parts, kept_units, strict=True):
        mapped = np.full(len(arrays["unit_rows"]), -1, np.int32)
        mapped[kept] = new_numbers[first : first + len(kept)]
        first += len(kept)
        unit_of = mapped[arrays["posting_units"]]
        numbers = np.searchsorted(vocabulary, arrays[layout.terms]).astype(np.int32)
        term_of = np.repeat(numbers, np.diff(arrays["term_offsets"]))
        live = unit_of >= 0
        terms.append(term_of[live])
        units.append(unit_of[live])
        values.append(arrays[layout.values][live])
    term, unit, value = _concatenate(terms, np.int32), _concatenate(units, np.int32), _concatenate(values, layout.value_dtype)
    by_unit = kernels.stable_order(unit, len(order))
    place = by_unit[kernels.stable_order(term[by_unit], len(vocabulary))]
    frequencies = np.bincount(term, minlength=len(vocabulary))
    used = frequencies > 0
    dictionary = {}
    if layout.dictionary:
        texts: dict[int, bytes] = {}
        for arrays, _ in parts:
            hashes = arrays[layout.terms][arrays["word_terms"]].tolist()
            texts.update(zip(hashes, unpack_strings(arrays["word_blob"], arrays["word_offsets"]), strict=True))
        dictionary = _dictionary([texts[key] for key in vocabulary[used].tolist()])
    return {
        layout.terms: vocabulary[used],
        **dictionary,
        "term_offsets": _offsets(frequencies[used]),
        "posting_units": unit[place],
        layout.values: value[place],
        **{name: array[order] for name, array in joined.items()},
        "in_scope": in_scope,
    }


def term_frequencies(arrays: Arrays, units: Array | None = None) -> tuple[Array, Array]:
    """(hashes uint64, number of units uint32) of the terms that occur. units: (u,) bool, count these only."""
    counts = _frequencies(arrays, units)
    return arrays["term_hashes"][counts > 0], counts[counts > 0].astype(np.uint32)


def words_of(arrays: Arrays, units: Array | None = None) -> Arrays:
    """The texts of the terms that occur, by their bytes: "word_blob", "word_offsets". units: (u,) bool, those in these only."""
    if "word_terms" not in arrays:  # of version 1
        return {"word_blob": np.zeros(0, np.uint8), "word_offsets": np.zeros(1, np.int32)}
    if units is None:
        return {name: arrays[name] for name in ("word_blob", "word_offsets")}
    used = np.flatnonzero(_frequencies(arrays, units)[arrays["word_terms"]])
    texts, edges = arrays["word_blob"].tobytes(), arrays["word_offsets"]
    blob, offsets = pack_strings([texts[a:b] for a, b in zip(edges[used].tolist(), edges[used + 1].tolist(), strict=True)])
    return {"word_blob": blob, "word_offsets": offsets.astype(np.int32)}


def _frequencies(arrays: Arrays, units: Array | None) -> Array:
    if units is None:
        return np.diff(arrays["term_offsets"])
    before = _offsets(units[arrays["posting_units"]])
    return before[arrays["term_offsets"][1:]] - before[arrays["term_offsets"][:-1]]


def sealed(array: Array) -> Array:
    """A read-only view: kernels are compiled once per writability, and files are mapped read-only."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _offsets(counts: Array | Sequence[int]) -> Array:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _concatenate(pieces: list[Array], dtype: type) -> Array:
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype)
