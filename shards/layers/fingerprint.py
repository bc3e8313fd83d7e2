"""Molecules by what their atoms are surrounded with: Morgan fingerprints of SMILES in entries' metadata, compared by Tanimoto.

A unit is the molecule of one entry: of a table's row with a column of SMILES, or of an SDF file (`shards/sdf.py`). Raw score:
- of neighbours, the Tanimoto similarity of Morgan bits; of a substructure alone that of pattern bits, which is the share of a
  molecule's pattern that the fragment explains; 0 is no match;
- of an InChIKey 1 for the same key, 1/2 for the same skeleton (its first block, without stereo and isotopes).
A substructure is a filter: what does not hold it does not match, however similar. Like a scope it leaves the moments alone.

A substructure's surprise is at least -ln of the share of molecules that have its rarest pattern bit, an InChIKey's that of guessing
fourteen letters; else it is what the similarity's null model says.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from shards import rdkit_molecules
from shards.arrays import pack_strings, unpack_string
from shards.documents import Documents, Entries
from shards.errors import BadQuery
from shards.layers import contract
from shards.layers.contract import Encodings, Layer, Progress, Request
from shards.molecules import parse_smiles
from shards.plan import SpaceQuery
from shards.rdkit_molecules import KEY_BYTES, PATTERN_BITS, SKELETON_BYTES
from shards.types import Array, Arrays

if TYPE_CHECKING:
    from rdkit.Chem import Mol

    from shards.layers.fingerprint_reader import FingerprintReader

# What an entry is to a space: no text in the column, a molecule, a text that is none, not one of the space's.
EMPTY, MOLECULE, UNREADABLE, OUTSIDE = range(4)
KEY_LOG_P = -SKELETON_BYTES * math.log(26)
_INCHIKEY = re.compile(r"[A-Z]{14}(?:-[A-Z]{8}[SN][A-Z]-[A-Z])?")


class Form(BaseModel):
    """The form of a fingerprint space. smiles: neighbours of this molecule; inchikey: that molecule; substructure, smarts: only
    molecules that hold this fragment."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    smiles: str | None = None
    inchikey: str | None = None
    substructure: str | None = None
    smarts: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class MoleculeQuestion:
    """bits: (words,) uint64, Morgan bits of the molecule whose neighbours are wanted, or pattern bits of a fragment alone, or None.
    fragment: SMILES or (smarts) SMARTS that matches must hold, with its pattern bits `screen`, (32,) uint64. key: an InChIKey or its
    first block."""

    bits: Array | None = None
    fragment: str = ""
    smarts: bool = False
    screen: Array | None = None
    key: bytes = b""

    @property
    def by_pattern(self) -> bool:
        """Whether molecules are compared by their pattern bits."""
        return self.bits is None and self.screen is not None


@dataclass(frozen=True, slots=True, eq=False)
class MoleculeStatistics:
    """n_units: molecules; n_unreadable: texts that are none; pattern_counts: (2048,) int64, molecules that have each pattern bit."""

    n_units: int
    n_unreadable: int = 0
    pattern_counts: Array = field(default_factory=lambda: np.zeros(PATTERN_BITS, np.int64))

    def log_p_screen(self, screen: Array) -> float:
        """ln of a bound of the chance that a molecule has all these bits: the share of those that have the rarest one, counting one
        more molecule that has it."""
        wanted = np.unpackbits(screen.view(np.uint8), bitorder="little").astype(bool)
        if self.n_units <= 0 or not wanted.any():
            return 0.0
        return min(math.log((int(self.pattern_counts[wanted].min()) + 1) / (self.n_units + 1)), 0.0)


class Fingerprint(Layer):
    """Molecules like a molecule, with a substructure, or with an InChIKey."""

    name = "fingerprint"
    granularity = "molecule"
    over = "entries"
    null = "moments"
    shapes = frozenset({"molecule"})
    written_form = '{"smiles": "…"}: of a question about a chemical compound that you know, its structure as SMILES'
    query_format = 'SMILES, InChI or InChIKey, or {"smiles": …, "substructure": SMILES | "smarts": SMARTS} | {"inchikey": …}'
    cost = "10 ms a core for a million molecules; a substructure 0.3 ms for each one that its pattern bits let through"

    class Params(contract.Params):
        column: Annotated[str, Field(min_length=1, max_length=512, description="metadata field of SMILES or InChI, in any case")] = "smiles"
        radius: Annotated[int, Field(ge=0, le=6, description="bonds around an atom that a bit may stand for")] = 2
        bits: Annotated[int, Field(ge=64, le=16_384, description="bits of a fingerprint, a multiple of 64")] = 2048
        chirality: Annotated[bool, Field(description="tell mirror images apart")] = False

        @field_validator("bits")
        @classmethod
        def _whole_words(cls, bits: int) -> int:
            if bits % 64:
                raise ValueError(f"{bits} is not a multiple of 64")
            return bits

    params: Params

    def fingerprint(self) -> str:
        """What this version of RDKit makes of some molecules. Raises ModelMissing without RDKit."""
        return rdkit_molecules.algorithms()

    def facts(self, statistics: MoleculeStatistics) -> dict[str, Any]:
        return {"unreadable": statistics.n_unreadable}

    # --- building ------------------------------------------------------------------------------------------------------------

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        """1 ms a molecule, half of it for the InChIKey. See `shards/FORMAT.md`."""
        states = np.full(len(entries), EMPTY, np.uint8)
        if scope is not None:
            states[~np.asarray(scope, bool)] = OUTSIDE
        made: dict[str, _Made | None] = {}  # the same molecule in several entries is made once
        units: list[_Made] = []
        for row, text in sorted(_texts(entries, self.params.column).items()):
            if states[row] == OUTSIDE:
                continue
            if text not in made:
                found = rdkit_molecules.molecule(text)
                made[text] = None if found is None else self._made(found, text)
            unit = made[text]
            states[row] = UNREADABLE if unit is None else MOLECULE
            if unit is not None:
                units.append(unit)
        return _arrays(
            states,
            np.array([unit.morgan for unit in units], np.uint64).reshape(len(units), self.params.bits // 64),
            np.array([unit.pattern for unit in units], np.uint64).reshape(len(units), PATTERN_BITS // 64),
            np.frombuffer(b"".join(unit.key for unit in units), np.uint8).reshape(len(units), KEY_BYTES),
            *pack_strings([unit.text for unit in units]),
        )

    def _made(self, found: "Mol", text: str) -> "_Made":
        return _Made(
            rdkit_molecules.bits(found, self.params.radius, self.params.bits, self.params.chirality),
            rdkit_molecules.pattern_bits(found),
            rdkit_molecules.inchikey(found).encode().ljust(KEY_BYTES, b" "),
            text.encode(),
        )

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        states = np.full(len(entries), EMPTY, np.uint8)
        kept: list[tuple[Arrays, Array]] = []  # (arrays, units) of each part
        rows = [np.zeros(0, np.int64)]
        for arrays, new_rows in parts:
            stays = new_rows >= 0
            states[new_rows[stays]] = arrays["states"][stays]
            places = new_rows[np.flatnonzero(arrays["states"] == MOLECULE)]
            kept.append((arrays, np.flatnonzero(places >= 0)))
            rows.append(places[places >= 0])
        order = np.argsort(np.concatenate(rows), kind="stable")

        def joined(name: str, width: int, dtype: type) -> Array:
            return np.concatenate([np.zeros((0, width), dtype), *(arrays[name][units] for arrays, units in kept)])[order]

        texts = [unpack_string(arrays["texts"], arrays["text_offsets"], unit) for arrays, units in kept for unit in units.tolist()]
        return _arrays(
            states,
            joined("bits", self.params.bits // 64, np.uint64),
            joined("pattern", PATTERN_BITS // 64, np.uint64),
            joined("keys", KEY_BYTES, np.uint8),
            *pack_strings([texts[unit] for unit in order.tolist()]),
        )

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        states, pattern = arrays["states"], arrays["pattern"]
        if rows is not None:
            chosen = np.zeros(len(states), bool)
            chosen[rows] = True
            pattern = pattern[chosen[np.flatnonzero(states == MOLECULE)]]
            states = states[rows]
        counts = np.zeros(PATTERN_BITS, np.uint32)
        for start in range(0, len(pattern), 4096):  # unpacked, 8 MB
            part = np.ascontiguousarray(pattern[start : start + 4096]).view(np.uint8)
            counts += np.unpackbits(part, axis=1, bitorder="little").sum(axis=0, dtype=np.uint32)
        return {
            "n_units": np.array([len(pattern)], np.int64),
            "n_unreadable": np.array([np.count_nonzero(states == UNREADABLE)], np.int64),
            "pattern_counts": counts,
        }

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> MoleculeStatistics:
        n_units = sum(sign * int(part["n_units"][0]) for sign, part in parts)
        n_unreadable = sum(sign * int(part["n_unreadable"][0]) for sign, part in parts)
        counts = sum((sign * part["pattern_counts"].astype(np.int64) for sign, part in parts), np.zeros(PATTERN_BITS, np.int64))
        return MoleculeStatistics(n_units, n_unreadable, counts)

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> "FingerprintReader":
        from shards.layers.fingerprint_reader import FingerprintReader

        return FingerprintReader(arrays, live)

    # --- asking --------------------------------------------------------------------------------------------------------------

    def prepare(self, request: Request, statistics: MoleculeStatistics) -> SpaceQuery | None:
        form = _form_of(request)
        if form is None:
            return None
        if form.inchikey is not None:
            return SpaceQuery("", f"the molecule {form.inchikey}", MoleculeQuestion(key=form.inchikey.encode()), KEY_LOG_P)
        wanted, asked = None, []
        if form.smiles is not None:
            found = rdkit_molecules.molecule(form.smiles)
            if found is None:
                if not request.form and not request.explicit:
                    return None
                raise BadQuery(
                    f"{form.smiles[:200]!r} is no SMILES or InChI that RDKit can read. Take it from a column, or a drawing program."
                )
            wanted = rdkit_molecules.bits(found, self.params.radius, self.params.bits, self.params.chirality)
            asked.append(f"molecules like {rdkit_molecules.canonical(found)}")
        text, smarts = (form.smarts, True) if form.smarts is not None else (form.substructure, False)
        if text is None:
            return SpaceQuery("", asked[0], MoleculeQuestion(wanted))
        screen = rdkit_molecules.pattern_bits(rdkit_molecules.fragment(text, smarts))
        asked = [*(asked or ["molecules"]), f"with the substructure {text}"]
        return SpaceQuery("", " ".join(asked), MoleculeQuestion(wanted, text, smarts, screen), statistics.log_p_screen(screen))

    def check_form(self, request: Request) -> None:
        _form_of(request)

    def surprise(self, query: SpaceQuery, scores: Array) -> Array:
        """Of a molecule that holds the substructure, or has the key."""
        return np.where(scores > 0, 0.0 - (query.log_p or 0.0), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """One molecule: its Morgan and pattern bits, InChIKey (27 bytes, spaces where it has none) and the text it came from."""

    morgan: Array
    pattern: Array
    key: bytes
    text: bytes


def _arrays(states: Array, morgan: Array, pattern: Array, keys: Array, texts: Array, text_offsets: Array) -> Arrays:
    from shards import tanimoto_kernels

    counts, pattern_counts = np.zeros(len(morgan), np.int32), np.zeros(len(pattern), np.int32)
    tanimoto_kernels.counts(morgan, counts)
    tanimoto_kernels.counts(pattern, pattern_counts)
    return {
        "states": states,
        "bits": morgan,
        "counts": counts,
        "pattern": pattern,
        "pattern_set": pattern_counts,
        "keys": keys.astype(np.uint8),
        "texts": texts,
        "text_offsets": text_offsets,
    }


def _texts(entries: Entries, column: str) -> dict[int, str]:
    """The texts of a metadata field by entry's row, ends stripped, the empty ones left out. Of fields that differ in case alone, the one
    spelt as asked counts, else the first by name."""
    if entries.metadata.is_empty:
        return {}
    columns = entries.metadata.columns
    order = np.asarray(entries.order)
    found: dict[int, str] = {}
    same = [name for name in columns.names if name.casefold() == column.casefold()]
    for name in sorted(same, key=lambda name: (name != column, name), reverse=True):  # the first overwrites
        for one in columns.named(name):
            if one.kind == "string":
                filled = np.arange(len(order)) if one.filled is None else np.flatnonzero(one.filled)
                found |= {
                    int(order[place]): one.words[code] for place, code in zip(filled.tolist(), one.values[filled].tolist(), strict=True)
                }
    for place, values in columns.rest.items():  # fields that few entries of a large segment have
        names = [name for name in values if name.casefold() == column.casefold() and isinstance(values[name], str)]
        if names and (column in names or int(order[place]) not in found):
            found[int(order[place])] = values[min(names, key=lambda name: (name != column, name))]
    return {row: text.strip() for row, text in found.items() if text.strip()}


def _form_of(request: Request) -> Form | None:
    """What is asked; None where the common text is no molecule. Raises BadQuery."""
    if request.form:
        try:
            form = Form(**request.form)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise BadQuery(f"{problems}. Expected {Fingerprint.query_format}.") from None
        given = {name for name, value in form.model_dump().items() if value is not None}
        if not given or ("inchikey" in given and len(given) > 1) or {"substructure", "smarts"} <= given:
            raise BadQuery(f"the form has {', '.join(sorted(given)) or 'nothing'}. Expected {Fingerprint.query_format}.")
        if form.inchikey is not None and not _INCHIKEY.fullmatch(form.inchikey):
            raise BadQuery(f"{form.inchikey[:80]!r} is no InChIKey: 14 letters, or 27 characters as in BSYNRYMUTXBXSQ-UHFFFAOYSA-N.")
        return form
    text = request.text.strip()
    if len(text) == KEY_BYTES and _INCHIKEY.fullmatch(text):
        return Form(inchikey=text)
    if request.explicit and text:
        return Form(smiles=text)
    # Words never load RDKit.
    return Form(smiles=text) if text.startswith("InChI=") or parse_smiles(text) is not None else None
