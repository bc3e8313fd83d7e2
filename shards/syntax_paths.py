"""Where the documents of a segment lie in one generation, and so what language each is of."""

from collections.abc import Callable, Iterable

import numpy as np

from shards.documents import Documents, Entries
from shards.identity import find_rows
from shards.languages import FILENAME_EXTENSIONS, LANGUAGES, NUMBERS, is_cpp_header, language_of_path, language_of_shebang
from shards.types import Array

UNKNOWN = 0
_LATER = 255  # than any language: nothing is known yet

Places = Callable[[], Iterable[tuple[Entries, Array, Array]]]  # entries, their rows (m,) int64, the rows of their documents (m,) int64


def own_places(documents: Documents, entries: Entries) -> Places:
    """Those that a segment has itself."""
    rows = find_rows(documents.hashes, entries.hashes)
    at = np.flatnonzero(rows >= 0)
    return lambda: [(entries, at, rows[at])]


def languages_of(documents: Documents, places: Places) -> Array:
    """The language of each document by number (place in LANGUAGES + 1), UNKNOWN where nothing says it: (n,) uint8.

    By extension, else file name; where a document has no extension anywhere, by the interpreter in its `#!` line. A `.h` file that
    begins as only C++ does is C++. Of several languages the one listed first counts, in whatever order the paths come.
    """
    found = np.full(len(documents), _LATER, np.uint8)
    bare = np.zeros(len(documents), bool)  # has a path without extension
    known = np.zeros(len(documents), bool)  # has one that means something, be it no language
    for entries, entry_rows, rows in places():
        codes = entries.exts[entry_rows]
        by_extension = np.full(len(entries.ext_names), _LATER, np.uint8)
        for code, extension in enumerate(entries.ext_names):
            if (language := language_of_path(f"x.{extension}")) is not None:
                by_extension[code] = NUMBERS[language.name]
        np.minimum.at(found, rows, by_extension[codes])
        named = np.isin(codes, [code for code, extension in enumerate(entries.ext_names) if extension in FILENAME_EXTENSIONS])
        for entry, row in zip(entry_rows[named].tolist(), rows[named].tolist(), strict=True):
            if (language := language_of_path(entries.path(entry))) is not None:
                found[row] = min(int(found[row]), NUMBERS[language.name])
        without = np.isin(codes, [code for code, extension in enumerate(entries.ext_names) if not extension])
        bare[rows[without]] = True
        known[rows[~without]] = True
        headers = rows[np.isin(codes, [code for code, extension in enumerate(entries.ext_names) if extension == "h"])]
        for row in headers[found[headers] == NUMBERS["c"]].tolist():
            if is_cpp_header(documents.content(row)):
                found[row] = NUMBERS["cpp"]
    for row in np.flatnonzero(bare & ~known & (found == _LATER)).tolist():
        if (language := language_of_shebang(bytes(documents.content(row)[:256]))) is not None:
            found[row] = NUMBERS[language.name]
    found[found > len(LANGUAGES)] = UNKNOWN
    return found


def placed(documents: Documents, places: Places) -> Array:
    """Which documents have a path among these: (n,) bool."""
    found = np.zeros(len(documents), bool)
    for _, _, rows in places():
        found[rows] = True
    return found


class Paths:
    """Paths of documents, looked up one by one."""

    def __init__(self, places: Places):
        self._parts = []
        for entries, entry_rows, rows in places():
            order = np.argsort(rows, kind="stable")
            self._parts.append((entries, entry_rows[order], rows[order]))

    def of(self, row: int) -> list[str]:
        """All paths of a document."""
        found = []
        for entries, entry_rows, rows in self._parts:
            low, high = np.searchsorted(rows, (row, row + 1))
            found += [entries.path(entry) for entry in entry_rows[low:high].tolist()]
        return found


def module_of(path: str) -> tuple[str, ...]:
    """A path as a scope: `asyncio/events.py` is asyncio, events; `json/__init__.py` is json."""
    *folders, name = path.split("/")
    stem = name.partition(".")[0]
    return (*folders, stem) if stem not in ("__init__", "__main__", "index", "mod", "lib", "main", "package-info") else tuple(folders)
