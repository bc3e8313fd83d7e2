"""Molecules by RDKit: SMILES, InChI and SMARTS read, fingerprints as packed bits, InChIKeys. RDKit is optional, the extra `chem`.

Bits lie in 64-bit words, bit i of a fingerprint in word i // 64 at 2^(i % 64). Texts and molecules are bounded in size: what RDKit does
with one molecule cannot be interrupted.
"""

import hashlib
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.errors import BadQuery, ModelMissing
from shards.types import Array

if TYPE_CHECKING:
    from rdkit.Chem import Mol

MAX_CHARS = 2_000  # of a SMILES, InChI or SMARTS
MAX_KEY_ATOMS = 200  # heavy atoms of a molecule that gets an InChIKey: InChI's time grows fast with symmetric cages
MAX_FRAGMENT_ATOMS = 100
PATTERN_BITS = 2048  # RDKit's own size of pattern fingerprints
KEY_BYTES, SKELETON_BYTES = 27, 14  # of an InChIKey, and of its first block, which leaves out stereo and isotopes
REMEDY = "pip install 'sondage[chem]'"
# Their bits and keys stand for RDKit's algorithms: rings, aromaticity, charges, stereo, several parts, a metal.
_SAMPLES = ("CC(=O)Oc1ccccc1C(=O)O", "C[C@H](N)C(=O)O", "F/C=C/F", "[Na+].[Cl-]", "CN1CCC[C@H]1c1cccnc1", "O=C1NC(=O)c2ccccc12", "[Cu+2]")


def available() -> bool:
    """Whether RDKit can be imported. Looks, imports nothing."""
    return find_spec("rdkit") is not None


def _chem() -> Any:
    """RDKit's modules of molecules. Raises ModelMissing with the remedy."""
    try:
        from rdkit import Chem
    except ImportError as error:
        raise ModelMissing(f"Molecules need RDKit, which cannot be imported here ({error}): {REMEDY}.") from None
    return Chem


def algorithms() -> str:
    """A hash of what RDKit makes of some molecules: another one where a version of it gives other bits or keys."""
    parts = []
    for smiles in _SAMPLES:
        found = molecule(smiles)
        assert found is not None, smiles
        parts += [bits(found, 2, 2048, True).tobytes(), pattern_bits(found).tobytes(), inchikey(found).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def molecule(text: str) -> "Mol | None":
    """A molecule from SMILES or InChI; None where it is none, or has more than `MAX_CHARS` characters, or no atoms."""
    chem = _chem()
    text = text.strip()
    if not text or len(text) > MAX_CHARS or any(c.isspace() for c in text):
        return None
    from rdkit import rdBase

    with rdBase.BlockLogs():
        found = chem.MolFromInchi(text) if text.startswith("InChI=") else chem.MolFromSmiles(text)
    return found if found is not None and found.GetNumAtoms() else None


def stored(text: str) -> "Mol":
    """The molecule of a text that `molecule` has read before."""
    found = molecule(text)
    assert found is not None, text
    return found


def of_block(block: str) -> "Mol | None":
    """A molecule from a molfile (V2000 or V3000), explicit hydrogens removed; None where it is none."""
    chem = _chem()
    from rdkit import rdBase

    with rdBase.BlockLogs():
        found = chem.MolFromMolBlock(block)
    return found if found is not None and found.GetNumAtoms() else None


def fragment(text: str, smarts: bool) -> "Mol":
    """What a substructure search looks for. Raises BadQuery."""
    chem = _chem()
    kind = "SMARTS" if smarts else "SMILES"
    if not text or len(text) > MAX_CHARS:
        raise BadQuery(f"the {kind} of a substructure must have 1 to {MAX_CHARS:,} characters, this one has {len(text):,}.")
    from rdkit import rdBase

    with rdBase.BlockLogs():
        found = chem.MolFromSmarts(text) if smarts else chem.MolFromSmiles(text)
    if found is None or not found.GetNumAtoms():
        raise BadQuery(f"{text[:200]!r} is no {kind} that RDKit {rdBase.rdkitVersion} can read.")
    if found.GetNumAtoms() > MAX_FRAGMENT_ATOMS:
        raise BadQuery(f"the substructure has {found.GetNumAtoms():,} atoms, at most {MAX_FRAGMENT_ATOMS} are allowed.")
    if smarts:
        found.UpdatePropertyCache(False)
        chem.FastFindRings(found)
    return found


def canonical(found: "Mol") -> str:
    """RDKit's canonical SMILES."""
    return _chem().MolToSmiles(found)


def inchikey(found: "Mol") -> str:
    """The standard InChIKey, 27 letters; "" for molecules that InChI has none for, and for very large ones."""
    if found.GetNumHeavyAtoms() > MAX_KEY_ATOMS:
        return ""
    from rdkit import rdBase

    with rdBase.BlockLogs():
        key = _chem().MolToInchiKey(found)
    return key if len(key) == KEY_BYTES else ""


def bits(found: "Mol", radius: int, n_bits: int, chirality: bool = False) -> Array:
    """The Morgan fingerprint: (n_bits / 64,) uint64. Source: Rogers & Hahn 2010, "Extended-Connectivity Fingerprints"."""
    return _packed(_generator(radius, n_bits, chirality).GetFingerprint(found))


def pattern_bits(found: "Mol") -> Array:
    """RDKit's pattern fingerprint, (32,) uint64: a molecule that holds a fragment has all of the fragment's bits."""
    return _packed(_chem().PatternFingerprint(found, fpSize=PATTERN_BITS))


@lru_cache(maxsize=16)
def _generator(radius: int, n_bits: int, chirality: bool) -> Any:
    _chem()
    from rdkit.Chem import rdFingerprintGenerator

    return rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=n_bits, includeChirality=chirality)


def _packed(fingerprint: Any) -> Array:
    from rdkit.DataStructs import BitVectToBinaryText

    return np.frombuffer(BitVectToBinaryText(fingerprint), "<u8").astype(np.uint64)
