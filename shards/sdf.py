"""SDF files as tables: each molecule a row, with SMILES and InChIKey made by RDKit.

Format: BIOVIA CTfile Formats (2020): a molfile, then data items `> <NAME>` with their lines, then `$$$$`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_ITEM = re.compile(r">.*?<([^>]*)>")
_END = re.compile(r"^\$\$\$\$[ \t]*\r?$\n?", re.MULTILINE)
MAX_BLOCK_CHARS = 1 << 20  # of one molfile: 10,000 atoms
UNREADABLE = "molecule that RDKit cannot read"


class Record(NamedTuple):
    """One molecule of an SDF file. block: its molfile; title: the first line of it; items: data items in their order."""

    block: str
    title: str
    items: dict[str, str]


def records(text: str) -> Iterator[Record]:
    """The records of a file, damaged ones included."""
    pieces = _END.split(text.replace("\r\n", "\n"))
    for piece in pieces if pieces[-1].strip() else pieces[:-1]:
        head, end, rest = piece.partition("M  END")
        items: dict[str, str] = {}
        for part in re.split(r"^(?=>)", rest, flags=re.MULTILINE)[1:] if end else []:
            first, _, value = part.partition("\n")
            if found := _ITEM.match(first):
                items.setdefault(found.group(1).strip(), value.strip())
        yield Record(head + end + "\n", head.partition("\n")[0].strip(), items)


def rows(text: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Columns of each molecule, and what is odd about it: id (its title if all have one of their own, else its number), name, smiles,
    inchikey, its data items, and all of these as `text`. Raises ModelMissing without RDKit."""
    from shards import rdkit_molecules

    found = list(records(text))
    titles = {record.title for record in found}
    titled = len(titles) == len(found) and "" not in titles
    for number, record in enumerate(found, 1):
        molecule = rdkit_molecules.of_block(record.block) if len(record.block) <= MAX_BLOCK_CHARS else None
        made: dict[str, Any] = {}
        if molecule is not None:
            made = {"smiles": rdkit_molecules.canonical(molecule), "inchikey": rdkit_molecules.inchikey(molecule)}
        columns = {"name": record.title} | {key: value for key, value in made.items() if value}
        columns = {key: value for key, value in columns.items() if value} | _without(record.items, {*columns, "id", "text"})
        yield {"id": record.title if titled else str(number), "text": _text(columns), **columns}, "" if made else UNREADABLE


def _without(items: Mapping[str, str], taken: set[str]) -> dict[str, str]:
    return {key: value for key, value in items.items() if key and value and key not in taken}


def _text(columns: Mapping[str, str]) -> str:
    """The molecule as a document: its name, then a line for each other column."""
    lines = [f"{_LABELS.get(key, key)}: {value}" for key, value in columns.items() if key != "name"]
    return "\n".join([columns["name"], *lines] if "name" in columns else lines) or "molecule"


_LABELS = {"smiles": "SMILES", "inchikey": "InChIKey"}
