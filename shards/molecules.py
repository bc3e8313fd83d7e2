"""SMILES as text: whether a string is a well-formed one and what speaks for its being meant as one. Needs no chemistry package.

Grammar: OpenSMILES 1.0 (Craig A. James et al., 2016), sections 3.1 to 3.10, without reactions and the wildcard. Valence is not
checked: RDKit does that where a molecule is made (`shards/rdkit_molecules.py`).
"""

import re
from dataclasses import dataclass

_ELEMENTS = (
    "He|Li|Be|Ne|Na|Mg|Al|Si|Cl|Ar|Ca|Sc|Ti|Cr|Mn|Fe|Co|Ni|Cu|Zn|Ga|Ge|As|Se|Br|Kr|Rb|Sr|Zr|Nb|Mo|Tc|Ru|Rh|Pd|Ag|Cd|In|Sn|Sb|Te|Xe|"
    "Cs|Ba|La|Ce|Pr|Nd|Pm|Sm|Eu|Gd|Tb|Dy|Ho|Er|Tm|Yb|Lu|Hf|Ta|Re|Os|Ir|Pt|Au|Hg|Tl|Pb|Bi|Po|At|Rn|Fr|Ra|Ac|Th|Pa|Np|Pu|Am|Cm|H|B|C|N|"
    "O|F|P|S|K|V|Y|I|W|U"
)
_TOKEN = re.compile(
    rf"(?P<bracket>\[(?P<isotope>\d{{1,3}})?(?P<symbol>{_ELEMENTS}|se|as|te|[bcnops])(?P<chiral>@{{1,2}}(?:(?:TH|AL|SP|TB|OH)\d+)?)?"
    r"(?P<hydrogens>H\d?)?(?P<charge>\+{1,3}\d?|-{1,3}\d?)?(?::\d+)?\])"
    r"|(?P<organic>Cl|Br|[BCNOPSFI])|(?P<aromatic>[bcnops])|(?P<ring>%\d\d|\d)|(?P<bond>[-=#$:/\\])|(?P<open>\()|(?P<close>\))|(?P<dot>\.)"
)
_AROMATIC = frozenset("b c n o p s se as te".split())


@dataclass(frozen=True, slots=True)
class Smiles:
    """What a well-formed SMILES has: atoms written, closed rings, branches, bonds of order 2 and 3, atoms in brackets that say more
    than an element, marks beside a double bond, and whether it is letters alone."""

    n_atoms: int
    n_rings: int
    n_branches: int
    n_multiple: int
    n_described: int
    stereo: bool
    letters: bool


def parse_smiles(text: str) -> Smiles | None:
    """The counts of a SMILES, None where the text is not one: wrong letters, open rings or branches, aromatic atoms in no ring."""
    edges: list[tuple[int, int]] = []
    aromatic: list[bool] = []
    rings: dict[str, tuple[int, str]] = {}
    stack: list[int] = []
    previous, bond, at = -1, "", 0
    n_rings = n_branches = n_multiple = n_described = 0
    last = ""
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        at, kind, value = token.end(), token.lastgroup or "", token.group()
        # Named groups inside a bracket would be the last ones matched.
        kind = "bracket" if value[0] == "[" else kind
        if kind in ("bracket", "organic", "aromatic"):
            atom = len(aromatic)
            symbol = token["symbol"] if kind == "bracket" else value
            aromatic.append(symbol in _AROMATIC)
            n_described += kind == "bracket" and bool(token["chiral"] or token["charge"] or token["isotope"] or token["hydrogens"])
            if previous >= 0:
                edges.append((previous, atom))
                n_multiple += bond in ("=", "#")
            elif bond:
                return None
            previous, bond = atom, ""
        elif kind == "bond":
            if bond or previous < 0:
                return None
            bond = value
        elif kind == "ring":
            if previous < 0:
                return None
            if value in rings:
                other, opened = rings.pop(value)
                if (other, previous) in edges or other == previous or (bond and opened and bond != opened):
                    return None
                edges.append((other, previous))
                n_multiple += (bond or opened) in ("=", "#")
                n_rings += 1
            else:
                rings[value] = (previous, bond)
            bond = ""
        elif kind == "open":
            if previous < 0 or bond:
                return None
            stack.append(previous)
            n_branches += 1
        elif kind == "close":
            if not stack or bond or last == "open":
                return None
            previous = stack.pop()
        else:  # dot
            if previous < 0 or bond or stack:
                return None
            previous = -1
        last = kind
    if rings or stack or bond or previous < 0 or not _in_rings(aromatic, edges):
        return None
    stereo = bool(re.search(r"[/\\][^/\\]*=[^/\\]*[/\\]", text))
    return Smiles(len(aromatic), n_rings, n_branches, n_multiple, n_described, stereo, text.isalpha())


def _in_rings(aromatic: list[bool], edges: list[tuple[int, int]]) -> bool:
    """Whether no aromatic atom is left when atoms with fewer than two bonds are taken away, one after another."""
    if not any(aromatic):
        return True
    bonds: list[set[int]] = [set() for _ in aromatic]
    for a, b in edges:
        bonds[a].add(b)
        bonds[b].add(a)
    loose = [atom for atom, others in enumerate(bonds) if len(others) < 2]
    while loose:
        atom = loose.pop()
        if aromatic[atom]:
            return False
        for other in bonds[atom]:
            bonds[other].discard(atom)
            if len(bonds[other]) == 1:
                loose.append(other)
        bonds[atom] = set()
    return True


def looks_meant(found: Smiles) -> bool:
    """Whether a well-formed SMILES can hardly be anything else: not words, code, Big-O notation, C=C, P=NP, I/O or a Makefile's CC=."""
    if found.letters:
        return False
    if found.n_rings and found.n_atoms >= 5:
        return True
    if found.n_atoms >= 4 and found.n_multiple and (found.n_branches or found.n_described or found.stereo):
        return True
    if found.n_atoms >= 6 and found.n_branches:
        return True
    return found.n_described >= 2 or (found.n_described >= 1 and found.n_atoms >= 4)


def may_be_meant(text: str, found: Smiles) -> bool:
    """Whether a short one is worth asking too: carbon beside carbon or at a multiple bond, as in CCO, CC=O, C#N."""
    return found.n_atoms >= 2 and (("CC" in text and found.n_atoms >= 3) or (found.n_multiple > 0 and "C" in text))
